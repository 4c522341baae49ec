"""SCAFFOLD: control variates correct each local step for the drift of its client (option II).

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
arXiv:1910.06378. Here it is a baseline of FedSDD (Kwan and Song, arXiv:2312.17029v1).

    python fedkd_minimal.py --algo scaffold
        runs `Config` on digits of 16x16 pixels: 20 clients with a small CNN hold unequal shares of
        the classes (Dirichlet, alpha 0.5), 300 images each. Ten seconds on two cores.
    python fedkd_minimal.py --algo scaffold --paper fedsdd --dataset cifar10
        runs `PAPER`, FedSDD's values, with its ResNet-20: alpha is 0.1, and images are augmented,
        that is, cropped and flipped at random.

N clients hold labeled images of their own. Client i keeps a control variate c_i between rounds,
which is as large as the network's parameters, and never sends it. The server holds the global model
x and its own control variate c. An active client is sent x and c, and sends back y_i, the change of
c_i, and its number of images.

Algorithm 1, with the paper's line numbers:
  1   start with a global model x of random weights, and with c = c_i = 0
  3   for each round t:
  4       draw S, the active clients, a share of all
  6       for each client i of S, in parallel:
  7           copy the global model: y_i = x
  8           for each of its K batches:
  9               g = the gradient of the cross-entropy on the client's own images
 10               y_i = y_i - lr (g - c_i + c)
 12           c_i+ = c_i - c + (x - y_i) / (K lr)
 13           send y_i and c_i+ - c_i to the server
 14           c_i = c_i+
 16       the changes of x and of c = mean(y_i - x) and mean(c_i+ - c_i), over the clients of S
 17       x = x + global_lr (change of x) and c = c + |S| / N (change of c)

  line   who predicts       images    mode    gradient   augmented       loss, how often
  9      an active client   its own   train   yes        in each pass    CE, local_epochs
  -      the global model   test      eval    no         no              `accuracy`, after line 17

A client is left out of S if a number of its upload is nan, infinite, or 1e30 or more in magnitude.
It keeps its c_i, so that c remains the mean of all c_i. If nobody is left, x and c stay.

Departures
  1  Paper, line 13: y_i - x is sent. Here: y_i, which is as large.
  2  Paper: silent about BatchNorm. Here: its buffers have no control variate, and are averaged by
     numbers of images, as in FedAvg.
  3  Paper: K is the same for all. Here: clients with more images take more steps in `local_epochs`.
"""
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

from federation import (Algorithm, Count, Natural, Positive, Settings, Share, average_weights,
                        count_weight_bytes, drop_bad_uploads, minibatches, parallel_map,
                        score_global)


@dataclass
class Config(Settings):
    rounds: Natural = 20                 # of communication
    participation: Share = 0.4           # share of the clients that are active in a round
    local_epochs: Count = 5              # passes of a client over its images in a round
    local_steps: Count | None = None     # if it is a number: so many steps, instead of passes
    batch_size: Count = 32               # of a client
    lr: Positive = 0.1                   # of a client, eta_l, constant; SGD without momentum
    global_lr: Positive = 1.0            # eta_g; 1 takes the mean of the clients' models


# FedSDD, section 4.1, where it differs from Config; it does not give global_lr.
PAPER = dict(rounds=100, local_epochs=40, batch_size=64, lr=0.8)


def run(fed, cfg, state=None):
    """Yields (metrics, state) after round 0, the untrained model, and after every round.

    fed       a `Federation`; all clients have one architecture
    cfg       a `Config`
    state     one that it has yielded, to go on from; None: from the start
    """
    ALGORITHM.check(fed, cfg, state)
    if state is None:
        # Line 1: a global model of random weights; all control variates are 0.
        model = fed.global_model()
        zeros = zero_control(model)
        state = {"algorithm": "scaffold", "round": 0,
                 "server": {"model": model.state_dict(), "control": zeros},              # x, c
                 "client_controls": dict.fromkeys(range(len(fed.private)), zeros)}       # {i: c_i}
        yield score_global(fed, state), state
    server, controls = state["server"], state["client_controls"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Line 4-13: each active client trains the global model on its own images.
        active = fed.sample_clients(cfg.participation, t)
        trained = parallel_map(fed, active, lambda i: train_client(fed, cfg, t, i, server,
                                                                   controls[i]))
        uploads = drop_bad_uploads({i: trained[i].upload for i in active})   # of the clients of S

        # Line 14: the clients of S have new control variates.
        controls = {**controls, **{i: trained[i].control for i in uploads}}

        # Line 16-17: the global model and its control variate move by the mean changes.
        server = aggregate(fed, cfg, server, uploads, len(fed.private))

        state = {**state, "round": t, "server": server, "client_controls": controls}
        yield measure(fed, state, active, uploads), state


def zero_control(model):
    """A control variate of zeros: a tensor for each parameter, none for BatchNorm's buffers."""
    parameters = model.named_parameters(remove_duplicate=False)      # as in the state_dict
    return {name: torch.zeros_like(w) for name, w in parameters}


class Trained(NamedTuple):
    """What a client has after its local training."""

    upload: dict       # {"model": y_i, "control_change": c_i+ - c_i}
    control: dict      # c_i+, which it keeps


def train_client(fed, cfg, t, i, server, control):
    """Client i starts from the server's model; `Trained` after training on its own images.

    control    c_i
    """
    images, labels = fed.private[i]
    model = fed.client_model(i)
    model.load_state_dict(server["model"])                                               # line 7
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr)     # any other would break line 12
    steps = 0                                                            # K; departure 3
    model.train()
    with fed.random_numbers("local", t, i) as rng:         # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs, cfg.local_steps):
            logits = model(fed.augment(images[rows], rng))                       # [B, C]
            loss = F.cross_entropy(logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            for name, w in model.named_parameters():
                if w.grad is not None:           # None: a frozen or unused layer, which stays
                    w.grad = corrected_gradient(w.grad, control[name], server["control"][name])
            optimizer.step()                                                             # line 10
            steps += 1

    trained = model.state_dict()                                                         # y_i
    new_control = {name: updated_client_control(control[name], c, server["model"][name],
                                                trained[name], steps, cfg.lr)
                   for name, c in server["control"].items()}                             # line 12
    change = {name: new_control[name] - control[name] for name in new_control}
    return Trained({"model": trained, "control_change": change}, new_control)        # departure 1


def corrected_gradient(grad, client_control, server_control):
    """g - c_i + c: the batch's gradient, corrected for the client's drift.   Alg. 1, line 10

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


def aggregate(fed, cfg, server, uploads, num_clients):
    """The server after line 16-17, from the uploads {client: upload}; without any it stays.

    num_clients    N: all clients, active or not
    """
    if not uploads:
        return server
    sizes = [len(fed.private[i].labels) for i in uploads]
    uploads = [*uploads.values()]                                            # of |S| clients
    model = average_weights([upload["model"] for upload in uploads], sizes)  # departure 2: buffers
    control = {}
    for name, c in server["control"].items():
        x = server["model"][name]
        model_change = sum(upload["model"][name] - x for upload in uploads) / len(uploads)
        control_change = sum(upload["control_change"][name] for upload in uploads) / len(uploads)
        model[name] = x + cfg.global_lr * model_change                                   # line 17
        control[name] = c + len(uploads) / num_clients * control_change                  # line 17
    return {"model": model, "control": control}


# --------------------------------------------------------------------------------------------------
# Metrics; no line of the algorithm uses them

def measure(fed, state, active, uploads):
    """The metrics of a round. Both ways, a control variate is as large as the weights."""
    sent = count_weight_bytes([(fed.global_model(), len(active))])
    return {**score_global(fed, state), "bad_uploads": len(active) - len(uploads),
            **sent, "bytes_up": 2 * sent["bytes_up"], "bytes_down": 2 * sent["bytes_down"]}


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

def check(fed, cfg, state, attack):
    """Raises ValueError if a state is of another number of clients: c is the mean of all c_i."""
    if state is not None and len(state["client_controls"]) != len(fed.private):
        raise ValueError(f"scaffold: the state is of {len(state['client_controls'])} clients, not "
                         f"{len(fed.private)}")


ALGORITHM = Algorithm("scaffold", run, Config, check_more=check,
                      program=dict(paper=PAPER, scores={"accuracy": ("server", "test")}))
