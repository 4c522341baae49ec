"""SCAFFOLD: control variates correct each local step for the drift towards the client's own optimum (option II).

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020, Algorithm 1; here as the
baseline of FedSDD (Kwan and Song, arXiv:2312.17029v1), whose settings are the defaults.
What travels: weights and a control variate of the same size, down and up. Public data: none.
Run:   python fedkd_minimal.py --algo scaffold

Paper              here                         shape            note
x, c               server["model"], ["control"] state_dict       c: parameters only, zeros at the start
c_i                client_control               state_dict       client i's, kept by the client; zeros until its first round
y_i                model, upload["model"]       state_dict       the client's model during and after local training
Delta c_i          upload["control_change"]     state_dict       c_i+ - c_i
K                  steps                        number           optimiser steps really made: epochs x batches
eta_l, eta_g       lr, global_lr                number           local and global learning rate
|S|, N             len(uploads), len(fed.private) number         clients of the round, all clients

Where the paper is silent or we differ:
D1  BatchNorm's buffers are outside c; they are averaged as in FedAvg      [test_controls_hold_parameters_only]
D2  clients count equally in both averages, as in the paper; FedAvg's weights differ when client sizes do
                                                                          [test_scaffold_round_against_slow_loop]
D3  plain SGD only: momentum or weight decay would break (x - y) / (K lr)  [test_scaffold_offers_no_other_optimizer]
D4  a client whose upload is not finite keeps its old control              [test_bad_upload_keeps_the_clients_control]
"""
import torch
import torch.nn.functional as F

from algorithms.common import (average_weights, batches, forward, is_finite, run_clients, sample_clients, seconds,
                               seeded, stream, test_accuracy)
from communication import weights_ledger

PUBLIC = "none"
MIXED = False   # may clients have different networks?
COLUMNS = ("accuracy",)
COPIES = 2     # tensors the size of the parameters in a message: a model and a control


def start_server(fed, init=0, i=0):
    """What the server knows before round 1, and sends down: the global model (of client i's network) and its control, all zeros."""
    model = fed.client_model(i, init)
    return {"model": model.state_dict(), "control": zero_control(model)}


def zero_control(model):
    """A control variate of zeros: one tensor per parameter, none for BatchNorm's buffers."""
    return {name: torch.zeros_like(w, requires_grad=False) for name, w in model.named_parameters()}


def corrected_gradient(grad, client_control, server_control):
    """g - c_i + c: the mini-batch gradient without the client's drift, a tensor of grad's shape.        Alg. 1, line 10

    >>> corrected_gradient(torch.tensor(2.0), client_control=torch.tensor(0.5), server_control=torch.tensor(0.1))
    tensor(1.6000)
    """
    return grad - client_control + server_control


def updated_client_control(client_control, server_control, global_params, local_params, steps, lr):
    """c_i+ = c_i - c + (x - y_i) / (K eta_l), a tensor of their common shape.                           Alg. 1, line 12, option II

    global_params, local_params   x and y_i: before and after `steps` (K) local steps of plain SGD with rate `lr` (eta_l)
    property                      at a constant rate: the mean of the mini-batch gradients along the path, whatever c_i and c were
    >>> updated_client_control(torch.tensor(0.5), torch.tensor(0.1), torch.tensor(1.0), torch.tensor(0.6), steps=2, lr=0.1)
    tensor(2.4000)
    """
    return client_control - server_control + (global_params - local_params) / (steps * lr)


def train_client(fed, i, t, server, client, *, local_epochs, batch_size, lr):
    """Local training of client i in round t, from what the server sent. Returns (upload, the client's new control c_i+)."""
    images, labels = fed.private[i]                                                      # [n, c, h, w], [n]
    model = fed.client_model(i)
    model.load_state_dict(server["model"])                                               # FedSDD Eq. (1); Alg. 1, line 7
    model.train()
    client_control = client or zero_control(model)
    update = torch.optim.SGD(model.parameters(), lr=lr)
    rng = stream(fed.seed, "local", t, i)
    steps = 0
    with seeded(fed.seed, "local", t, i):
        for rows in batches(len(labels), batch_size, local_epochs, rng, fed.device):     # rows: [B]
            batch = fed.augment(images[rows], rng) if fed.augment else images[rows]
            loss = F.cross_entropy(forward(fed, model, batch), labels[rows])
            update.zero_grad()
            loss.backward()
            for name, w in model.named_parameters():
                w.grad = corrected_gradient(w.grad, client_control[name], server["control"][name])   # Alg. 1, line 10
            update.step()
            steps += 1
    new_control = {name: updated_client_control(client_control[name], server["control"][name], server["model"][name],
                                                w.detach(), steps, lr) for name, w in model.named_parameters()}
    control_change = {name: new_control[name] - client_control[name] for name in new_control}        # Alg. 1, line 13
    return {"model": model.state_dict(), "control_change": control_change}, new_control


def aggregate(fed, server, uploads, global_lr=1.0):
    """The server after the uploads {client: upload} of one group: x + eta_g mean(y_i - x), c + |S|/N mean(Delta c_i)."""
    if not uploads:
        return server
    sizes = [len(fed.private[i].labels) for i in uploads]
    model = average_weights([upload["model"] for upload in uploads.values()], sizes)     # buffers as in FedAvg; parameters:
    control = {}
    for name, x in server["model"].items():
        if name in server["control"]:
            change = sum(upload["model"][name] - x for upload in uploads.values()) / len(uploads)
            model[name] = x + global_lr * change                                         # Alg. 1, line 16-17
            control_change = sum(upload["control_change"][name] for upload in uploads.values()) / len(uploads)
            control[name] = server["control"][name] + len(uploads) / len(fed.private) * control_change
    return {"model": model, "control": control}


def run(fed, state=None, *, rounds: int = 100, participation: float = 0.4, local_epochs: int = 40, batch_size: int = 64,
        lr: float = 0.8, global_lr: float = 1.0):
    """Yields (metrics, state) after round 0, the untrained start, and after every round."""
    settings = dict(local_epochs=local_epochs, batch_size=batch_size, lr=lr)
    model = fed.client_model(0)                          # a workbench: states are loaded into it to predict
    if state is None:
        state = {"round": 0, "server": start_server(fed), "clients": {}}
        server_accuracy = test_accuracy(fed, model, state["server"]["model"])
        yield {"accuracy": server_accuracy, "server_accuracy": server_accuracy}, state
    server, clients = state["server"], state["clients"]
    for t in range(state["round"] + 1, rounds + 1):
        start = seconds(fed.device)
        active = sample_clients(len(fed.private), participation, stream(fed.seed, "active", t))
        trained = run_clients(lambda i: train_client(fed, i, t, server, clients.get(i), **settings), active, fed.device)
        good = {i: result for i, result in zip(active, trained) if is_finite(result)}
        server = aggregate(fed, server, {i: upload for i, (upload, _) in good.items()}, global_lr)
        clients = clients | {i: client for i, (_, client) in good.items()}
        trained_at = seconds(fed.device)
        server_accuracy = test_accuracy(fed, model, server["model"])
        metrics = {"accuracy": server_accuracy, "server_accuracy": server_accuracy, "bad_uploads": len(active) - len(good),
                   "local_seconds": trained_at - start, **weights_ledger([(model, len(active))], COPIES)}
        yield metrics, {"round": t, "server": server, "clients": clients}
