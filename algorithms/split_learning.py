"""Split learning: one network cut in two; in every batch features go up and gradients come down.

Gupta and Raskar, "Distributed Learning of Deep Neural Network over Multiple Agents", 2018;
Vepakomma et al., arXiv:1812.00564; here as the baseline of FedGKT's communication (He et al.,
arXiv:2007.14513, Eq. (12)).

Run:   python fedkd_minimal.py --algo split-learning
What travels: in every batch the feature map and the labels up, the gradient of the feature map
down; between clients the edge's half and its optimizer. Bytes are those of maps and gradients.
Public data: none.

Paper                  here              shape            note
the split layer        sent              [B, c, h, w]     the feature map, detached from the graph
its gradient           sent.grad         [B, c, h, w]     the edge's half is trained with it
edge, server           edge, server      networks         W_e and W_s of FedGKT: the edge's half is
                                                          the extractor of an edge network, whose
                                                          own classifier is not trained

In a round, client after client; 1 to 3 for each batch, for local_epochs:
 1  the client computes the feature map of a batch of its own samples, and sends it
 2  the server computes the logits and their cross-entropy, and steps with AMSGrad (--optimizer)
 3  it sends back the gradient of the feature map; the client steps with the edge half's AMSGrad
 4  then the edge's half and its AMSGrad go to the next client
Together the two halves train as one network would.

Kept between rounds: both halves, and the states of their optimizers.
Modes: both halves train in train mode, with --augment on augmented images; the loss is the mean
over the batch. The test images are predicted in eval mode.
Scores: `accuracy`, also server_accuracy, is of the two halves together.
Bad upload: not looked for; nan in a client's features reaches both halves.
Departures (docs/DEPARTURES.md has more):
D1  a round is local_epochs passes over each client's data, in the order of the clients' numbers
"""
import copy
from functools import partial

import torch.nn.functional as F

from algorithms import Algorithm, checked
from algorithms.fedgkt import check_settings, stacked_scores
from federation import timed
from federation.communication import FLOAT_BYTES
from federation.training import (OPTIMIZERS, Optimizer, autocast, forward, restore, shuffled,
                                 snapshot)


@timed
def train_split(fed, i, t, edge, server, edge_optimizer, server_optimizer, *, local_epochs,
                batch_size):
    """Trains both halves in place on client i's data; returns the bytes that go up (and down).

    Each half keeps its optimizer over clients and rounds.
    """
    sent_bytes = 0
    images, labels = fed.private[i]
    edge.train()
    server.train()                       # --augment: the batches are augmented
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size):
        with autocast(fed):
            features = edge.extract(batch)                                   # [B, c, h, w]
        sent = features.detach().requires_grad_()                            # goes up
        loss = F.cross_entropy(forward(fed, server, sent), labels[rows])
        server_optimizer.zero_grad()
        loss.backward()
        server_optimizer.step()
        edge_optimizer.zero_grad()
        features.backward(sent.grad)                                         # comes down
        edge_optimizer.step()
        sent_bytes += FLOAT_BYTES * sent.numel()
    return sent_bytes


@timed
def evaluate(fed, state):
    """Test accuracy of the edge's extractor with the server's network behind it."""
    [score] = stacked_scores(fed, state["clients"], state["server"], fed.test)
    return {"accuracy": score.stacked, "server_accuracy": score.stacked}


@checked
def run(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, batch_size: int = 256,
        lr: float = 1e-3, optimizer: Optimizer = "amsgrad", weight_decay: float = 1e-4):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    lr, optimizer    of both halves; the optimizers are kept over the rounds
    hyperparameters.py explains the other keywords.
    """
    new_optimizer = partial(OPTIMIZERS[optimizer], lr=lr, weight_decay=weight_decay)
    if state is None:
        state = {"round": 0, "clients": [snapshot(fed.client_model(0))],
                 "server": snapshot(fed.server_model())}
        yield evaluate(fed, state), state
    edge, server = fed.client_model(0), fed.server_model()
    [travelling] = state["clients"]                          # the half that all clients train
    edge_optimizer = new_optimizer(edge.parameters())
    restore(travelling, edge, edge_optimizer)
    server_optimizer = new_optimizer(server.parameters())
    restore(state["server"], server, server_optimizer)
    for t in range(state["round"] + 1, rounds + 1):
        # D1: the edge's half goes from client to client.
        sent_bytes = sum(train_split(fed, i, t, edge, server, edge_optimizer, server_optimizer,
                                     local_epochs=local_epochs, batch_size=batch_size)
                         for i in range(len(fed.private)))

        state = copy.deepcopy({"round": t, "clients": [snapshot(edge, edge_optimizer)],
                               "server": snapshot(server, server_optimizer)})
        metrics = {**evaluate(fed, state),
                   "bytes_up": sent_bytes, "bytes_down": sent_bytes}       # FedGKT Eq. (12)
        yield metrics, state


ALGORITHM = Algorithm(
    "split-learning", run, scores={"server_accuracy": "server"},
    keeps=("clients", "server"),
    server="features", check_settings=check_settings)
