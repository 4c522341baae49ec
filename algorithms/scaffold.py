"""SCAFFOLD: control variates correct each local step for the client's drift (option II).

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
Algorithm 1; here as the baseline of FedSDD (Kwan and Song, arXiv:2312.17029v1), whose settings are
the defaults.
What travels: weights and a control variate of the same size, down and up. Public data: none.
Run:   python fedkd_minimal.py --algo scaffold

Paper              here                         shape         note
x                  server["model"]              state_dict    the global model
c                  server["control"]            state_dict    parameters only; zeros at the start
c_i                client_control               state_dict    zeros until client i's first round;
                   server["client_controls"]    {i: c_i}      client i keeps it, no message holds it
y_i                model, upload["model"]       state_dict    during and after local training
Delta c_i          upload["control_change"]     state_dict    c_i+ - c_i
K                  steps                        number        optimizer steps of a client in a round
eta_l, eta_g       lr, global_lr                numbers       local and global learning rate
|S|, N             len(uploads), num_clients    numbers       clients of the round, all clients

Where the paper is silent or we differ:
D1  BatchNorm's buffers are outside c; they are averaged as in FedAvg
    [test_controls_hold_parameters_only]
D2  clients count equally in both averages, as in the paper; FedAvg weighs them by sample counts
    [test_scaffold_round_against_slow_loop]
D3  plain SGD only: momentum or weight decay would break (x - y) / (K lr)
    [test_scaffold_offers_no_other_optimizer]
D4  a client whose upload is not finite keeps its old control
    [test_bad_upload_keeps_the_clients_control]
"""
import torch
import torch.nn.functional as F

from algorithms import fedavg
from algorithms.clients import sample_clients
from algorithms.communication import weights_ledger
from algorithms.declaration import Algorithm
from algorithms.training import batches, forward, load_model, network
from algorithms.uploads import collect
from federation import seeded, stream

COPIES = 2      # a message has twice the model's parameters: the model and a control


def start_server(fed, architecture, init=0):
    """The global model before round 1 and its control; `init` picks the seed of its weights."""
    server = fedavg.start_server(fed, architecture, init)
    return server | {"control": zero_control(load_model(fed, server)), "client_controls": {}}


def zero_control(model):
    """A control variate of zeros: one tensor per parameter, none for BatchNorm's buffers."""
    return {name: torch.zeros_like(w, requires_grad=False) for name, w in model.named_parameters()}


def corrected_gradient(grad, client_control, server_control):
    """g - c_i + c: the mini-batch gradient without the client's drift.      Alg. 1, line 10

    returns    a tensor of grad's shape
    >>> g, c_i, c = torch.tensor(2.0), torch.tensor(0.5), torch.tensor(0.1)
    >>> corrected_gradient(g, client_control=c_i, server_control=c)
    tensor(1.6000)
    """
    return grad - client_control + server_control


def updated_client_control(client_control, server_control, global_params, local_params, steps, lr):
    """c_i+ = c_i - c + (x - y_i) / (K eta_l), of one tensor.           Alg. 1, line 12

    all four tensors              of one shape: one parameter of the network
    global_params, local_params   x and y_i: before and after `steps` (K) steps of plain SGD with
                                  rate `lr` (eta_l); this is option II of the paper
    property                      at a constant rate c_i+ is the mean of the K mini-batch
                                  gradients, for any c_i and c
    >>> c_i, c, x, y = map(torch.tensor, (0.5, 0.1, 1.0, 0.6))
    >>> updated_client_control(c_i, c, x, y, steps=2, lr=0.1)
    tensor(2.4000)
    """
    return client_control - server_control + (global_params - local_params) / (steps * lr)


def train_client(fed, i, t, server, *, local_epochs, local_steps=None, batch_size, lr):
    """Local training of client i in round t, from what the server sent. Returns its upload.

    Cross-entropy with plain SGD on corrected gradients; the client keeps its control alone.
    """
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    model = load_model(fed, server)                                          # Alg. 1, line 7
    model.train()
    client_control = server["client_controls"].get(i) or zero_control(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    rng = stream(fed.seed, "local", t, i)
    steps = 0
    with seeded(fed.seed, "local", t, i):
        for rows in batches(len(labels), batch_size, local_epochs, rng, fed.device, local_steps):
            batch = fed.augment(images[rows], rng) if fed.augment else images[rows]
            loss = F.cross_entropy(forward(fed, model, batch), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            for name, w in model.named_parameters():                         # Alg. 1, line 10
                w.grad = corrected_gradient(w.grad, client_control[name], server["control"][name])
            optimizer.step()
            steps += 1
    new_control = {name: updated_client_control(client_control[name], server["control"][name],
                                                server["model"][name], w.detach(), steps, lr)
                   for name, w in model.named_parameters()}                  # Alg. 1, line 12
    control_change = {name: new_control[name] - client_control[name] for name in new_control}
    return {"model": model.state_dict(), "control_change": control_change,   # Alg. 1, line 13
            "client_control": new_control}                                   # stays on the client


def aggregate(fed, server, uploads, global_lr=1.0):
    """The server after the uploads {client: upload}: the model x + eta_g mean(y_i - x), the control
    c + |S|/N mean(Delta c_i), and buffers averaged as in FedAvg.

    N counts the clients that can hold a control of this model: those of its network.
    Without any upload the server stays as it is.
    """
    if not uploads:
        return server
    num_clients = fed.architecture.count(server["architecture"])             # N
    model = fedavg.aggregate(fed, server, uploads)["model"]                  # the buffers
    control = {}
    for name, c in server["control"].items():
        x = server["model"][name]
        change = sum(upload["model"][name] - x for upload in uploads.values()) / len(uploads)
        model[name] = x + global_lr * change                                 # Alg. 1, line 16-17
        change = sum(upload["control_change"][name] for upload in uploads.values()) / len(uploads)
        control[name] = c + len(uploads) / num_clients * change              # Alg. 1, line 16-17
    client_controls = server["client_controls"] | {i: upload["client_control"]
                                                   for i, upload in uploads.items()}
    return server | {"model": model, "control": control, "client_controls": client_controls}


def run(fed, state=None, *, rounds: int = 100, participation: float = 0.4,
        local_epochs: int = 40, local_steps: int | None = None, batch_size: int = 64,
        lr: float = 0.8, global_lr: float = 1.0):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    global_lr    learning rate of the server: 1 takes the mean of the clients' models
    The other keywords are in hyperparameters.py.
    """
    settings = dict(local_epochs=local_epochs, local_steps=local_steps, batch_size=batch_size,
                    lr=lr)
    if state is None:
        ALGORITHM.check(fed)
        state = {"round": 0, "server": start_server(fed, fed.architecture[0])}
        yield fedavg.evaluate(fed, state), state
    server = state["server"]
    for t in range(state["round"] + 1, rounds + 1):
        # A share of the clients takes part: each trains the global model on its own data.
        active = sample_clients(len(fed.private), participation, stream(fed.seed, "active", t))
        uploads = collect(fed, active,
                          lambda i: train_client(fed, i, t, server, **settings))
        # The server's model and control move by the means of the clients' changes.
        server = aggregate(fed, server, uploads, global_lr)                  # Alg. 1, line 16-17

        state = {"round": t, "server": server}
        model = network(fed, server["architecture"])
        metrics = {**fedavg.evaluate(fed, state), "bad_uploads": len(active) - len(uploads),
                   **weights_ledger([(model, len(active))], COPIES)}
        yield metrics, state


ALGORITHM = Algorithm("scaffold", run)
