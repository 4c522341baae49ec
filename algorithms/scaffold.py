"""SCAFFOLD: control variates correct each local step for the drift of its client (option II).

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
arXiv:1910.06378. Here it is a baseline of FedSDD (Kwan and Song, arXiv:2312.17029v1).

    python fedkd_minimal.py --algo scaffold
        runs `Config` on digits of 16x16 pixels: 20 clients with a small CNN hold unequal shares of
        the classes (Dirichlet, alpha 0.5), 300 images each. It takes ten seconds on two cores.
    python fedkd_minimal.py --algo scaffold --paper fedsdd --dataset cifar10
        runs `PAPER`, FedSDD's values, with its ResNet-20: 20 clients, alpha 0.1, 2,500 images each,
        which are cropped and flipped.

N clients hold labeled images of their own, and each a control c_i, as large as a network's
parameters, which it keeps between rounds and never sends. The server holds the global model x and
its control c. There are no public images. An active client is sent x and c, and sends back y_i, the
change of c_i, and its number of images. Training: train mode, images cropped and flipped with
--augment, the mean loss of a batch. Prediction: eval mode, no gradient, images as they are.

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
 13           send y_i and c_i+ - c_i to the server                                  departure 1
 14           c_i = c_i+
 17       x = x + global_lr mean(y_i - x) and c = c + |S| / N mean(c_i+ - c_i),
              where the means, line 16, are over the clients of S

The |S| clients count equally, whatever their numbers of images. A client that does not take part
keeps its c_i.

Accuracy is the global model's on the test images, after line 17.

Bad uploads: a client is left out of S if a number of its upload is nan, infinite, or 1e30 or more
in magnitude. Then it keeps its old c_i, as if it had not taken part, so that c remains the mean of
all c_i. If nobody is left, x and c stay.

Departures
  1  Paper, line 13: y_i - x is sent. Here: y_i, which is as large.
  2  Paper: silent about BatchNorm. Here: its buffers have no control, and are averaged by numbers
     of images, as in FedAvg.
"""
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

from algorithms import Algorithm, configured
from federation import (accuracy, active_in, average_weights, loaded, minibatches, parallel_map,
                        predict_models, random_numbers, received, weights_ledger)

# active_in         the clients of a round, drawn at random without replacement
# average_weights   the weighted mean of every entry of models, BatchNorm's statistics too
# loaded            a network, after a copy of some weights into it
# minibatches       row numbers of batches, reshuffled in each pass; the last one may be smaller
# parallel_map      {i: fn(i) for i in ids}, by several processes
# predict_models    logits [models, images, C], in eval mode, without gradient and augmentation
# random_numbers    a generator for what is named; it also seeds torch, for dropout
# received          {client: upload}: without the bad ones
# weights_ledger    bytes that are sent up and down: twice those of a model


@dataclass
class Config:
    rounds: int = 20                     # of communication
    participation: float = 0.4           # share of the clients that are active in a round
    local_epochs: int = 5                # passes of a client over its images in a round
    local_steps: int | None = None       # if it is a number: so many steps, instead of passes
    batch_size: int = 32                 # of a client
    lr: float = 0.1                      # of a client, eta_l, constant; SGD without momentum
    global_lr: float = 1.0               # eta_g; 1 takes the mean of the clients' models


# FedSDD, section 4.1; it does not give global_lr.
# Clients, partition, networks, augmentation: experiment/presets.py.
PAPER = dict(rounds=100, participation=0.4, local_epochs=40, batch_size=64, lr=0.8, global_lr=1.0)


@configured(Config)
def run(fed, cfg, state=None):
    """Yields (metrics, state) after round 0, the untrained model, and after every round.

    fed       fed.private[i]: client i's images [n, c, h, w] and labels [n]; fed.test likewise;
              fed.global_model(), and fed.client_model(i) for client i: new networks, all of one
              architecture; fed.augment: random crops and flips with --augment, else the images
              unchanged
    state     of an earlier round, to go on from; None: from the start
    """
    if state is None:
        # Line 1: a global model of random weights; all controls are 0.
        model = fed.global_model()
        server = {"model": model.state_dict(), "control": zero_control(model)}       # x, c
        state = {"round": 0, "server": server, "client_controls": {}}
        yield evaluate(fed, state), state
    server = state["server"]
    controls = state["client_controls"]          # {i: c_i} of the clients that have been in S

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Line 4-13: each active client trains the global model on its own images.
        active = active_in(fed, cfg.participation, t)
        trained = parallel_map(fed, active, lambda i: train_client(fed, cfg, t, i, server,
                                                                   controls.get(i)))
        uploads = received(fed, {i: trained[i].upload for i in active})      # {client of S: upload}

        # Line 14: the clients of S have new controls.
        controls = controls | {i: trained[i].control for i in uploads}

        # Line 16-17: the global model and its control move by the means of the clients' changes.
        server = aggregate(fed, cfg, server, uploads, len(fed.private))

        state = {"round": t, "server": server, "client_controls": controls}
        yield {**evaluate(fed, state), "bad_uploads": len(active) - len(uploads),
               **weights_ledger([(fed.global_model(), len(active))], copies=2)}, state


def zero_control(model):
    """A control of zeros: one tensor per parameter, none for BatchNorm's buffers."""
    return {name: torch.zeros_like(w) for name, w in parameters_of(model)}


def parameters_of(model):
    """[(name, parameter)]; a weight that two layers share has both names, as in the state_dict."""
    return list(model.named_parameters(remove_duplicate=False))


class Trained(NamedTuple):
    """What a client has after its local training."""

    upload: dict       # {"model": y_i, "control_change": c_i+ - c_i}
    control: dict      # c_i+, which it keeps


def train_client(fed, cfg, t, i, server, control):
    """Client i starts from the server's model; `Trained` after training on its own images.

    control    c_i; None: zeros
    """
    images, labels = fed.private[i]
    model = loaded(fed.client_model(i), server["model"])                                 # line 7
    control = control or zero_control(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr)     # any other would break line 12
    steps = 0
    model.train()
    with random_numbers(fed, "local", t, i) as rng:         # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs, cfg.local_steps):
            logits = model(fed.augment(images[rows], rng))                       # [B, C]
            loss = F.cross_entropy(logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            for name, w in model.named_parameters():                                     # line 10
                gradient = torch.zeros_like(w) if w.grad is None else w.grad     # None: is frozen
                w.grad = corrected_gradient(gradient, control[name], server["control"][name])
            optimizer.step()
            steps += 1

    new_control = {name: updated_client_control(control[name], server["control"][name],
                                                server["model"][name], w.detach(), steps, cfg.lr)
                   for name, w in parameters_of(model)}                                  # line 12
    change = {name: new_control[name] - control[name] for name in new_control}
    upload = {"model": model.state_dict(), "control_change": change}         # departure 1, line 13
    return Trained(upload, new_control)


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

def evaluate(fed, state):
    """Test accuracy of the global model."""
    logits = predict_models(fed, [state["server"]["model"]], fed.test.images)[0]     # [N, C]
    return {"accuracy": accuracy(logits, fed.test.labels)}


# --------------------------------------------------------------------------------------------------
# For the command line

ALGORITHM = Algorithm("scaffold", run, scores={"accuracy": "server"}, paper=PAPER)
