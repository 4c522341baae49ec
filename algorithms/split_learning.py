"""Split learning: one network cut in two; in every batch features go up and gradients come down.

Gupta and Raskar, "Distributed Learning of Deep Neural Network over Multiple Agents", 2018;
Vepakomma et al., arXiv:1812.00564; here as the baseline of FedGKT's communication (He et al.,
arXiv:2007.14513, Eq. (12)). The edge's half is the extractor of an edge network, which one client
sends to the next; the server's half is the server's network. Together they train as one network.
What travels: feature maps up, gradients down, in every batch; and the edge's half between clients.
Public data: none.
Run:   python fedkd_minimal.py --algo split-learning

Paper                  here              shape            note
the split layer        sent              [B, 16, h, w]    the feature map, detached from the graph
its gradient           sent.grad         [B, 16, h, w]    the edge's half is trained with it
edge, server           edge, server      networks         W_e and W_s of FedGKT

Where the papers are silent or we differ:
D1  a round is local_epochs passes over each client's data, client after client in the order of
    their numbers [test_split_learning_is_training_the_stacked_network]
D2  both halves keep their optimizers; the edge's travels with its half, so that a state has one
    entry in "clients", the half that all clients train in turn
    [test_split_learning_is_training_the_stacked_network]
D3  the edge network's own classifier is not used and not changed
    [test_the_edges_classifier_is_left_alone]
"""
import copy
from functools import partial

import torch.nn.functional as F

from algorithms.communication import FLOAT_BYTES
from algorithms.declaration import Algorithm
from algorithms.fedgkt_features import feature_map, stacked_scores
from algorithms.training import (OPTIMIZERS, Optimizer, autocast, batches, forward, restore,
                                 snapshot)
from federation import seeded, stream, timed



@timed
def train_split(fed, i, t, edge, server, edge_optimizer, server_optimizer, *, local_epochs,
                batch_size):
    """Trains both halves in place on client i's data; returns the bytes that go up (and down).

    Cross-entropy; each half has its own optimizer, and keeps it over clients and rounds.
    """
    edge.train()
    server.train()
    sent_bytes = 0
    images, labels = fed.private[i]
    rng = stream(fed.seed, "local", t, i)
    with seeded(fed.seed, "local", t, i):
        for rows in batches(len(labels), batch_size, local_epochs, rng, fed.device):     # [B]
            batch = fed.augment(images[rows], rng) if fed.augment else images[rows]
            with autocast(fed):
                features = edge.extract(batch)                               # [B, 16, h, w]
            sent = features.detach().requires_grad_()                        # goes up
            loss = F.cross_entropy(forward(fed, server, sent), labels[rows])
            server_optimizer.zero_grad()
            loss.backward()
            server_optimizer.step()
            edge_optimizer.zero_grad()
            features.backward(sent.grad)                                     # comes down
            edge_optimizer.step()
            sent_bytes += FLOAT_BYTES * sent.numel()
    return sent_bytes


@timed
def evaluate(fed, state):
    """Test accuracy of the edge's extractor with the server's network behind it."""
    [score] = stacked_scores(fed, state["clients"], state["server"], fed.test)
    return {"accuracy": score.stacked, "server_accuracy": score.stacked}


def check_settings(fed, **settings):
    """Raises ValueError if the two halves do not fit together."""
    feature_map(fed)


def run(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, batch_size: int = 256,
        lr: float = 1e-3, optimizer: Optimizer = "amsgrad", weight_decay: float = 1e-4):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    local_epochs    passes over each client's data in a round
    lr              learning rate of both halves
    optimizer       optimizer of both halves, kept over the rounds
    The other keywords are in hyperparameters.py.
    """
    new_optimizer = partial(OPTIMIZERS[optimizer], lr=lr, weight_decay=weight_decay)
    if state is None:
        ALGORITHM.check(fed)
        state = {"round": 0, "clients": [snapshot(fed.client_model(0))],
                 "server": snapshot(fed.server_model())}
        yield evaluate(fed, state), state
    edge, server = fed.client_model(0), fed.server_model()
    [travelling] = state["clients"]                          # the half that all clients train
    edge_optimizer = restore(travelling, edge, new_optimizer)
    server_optimizer = restore(state["server"], server, new_optimizer)
    for t in range(state["round"] + 1, rounds + 1):
        # The edge's half goes from client to client.
        sent_bytes = sum(train_split(fed, i, t, edge, server, edge_optimizer, server_optimizer,
                                     local_epochs=local_epochs, batch_size=batch_size)
                         for i in range(len(fed.private)))

        state = copy.deepcopy({"round": t, "clients": [snapshot(edge, edge_optimizer)],
                               "server": snapshot(server, server_optimizer)})
        metrics = {**evaluate(fed, state),                                 # FedGKT Eq. (12)
                   "bytes_up": sent_bytes, "bytes_down": sent_bytes}
        yield metrics, state


ALGORITHM = Algorithm("split-learning", run, server="features", check_settings=check_settings)
