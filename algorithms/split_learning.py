"""Split learning: one network cut in two; in every batch features go up and gradients come down.

Gupta and Raskar, "Distributed Learning of Deep Neural Network over Multiple Agents", 2018;
Vepakomma et al., arXiv:1812.00564; here as the baseline of FedGKT's communication (He et al.,
arXiv:2007.14513, Eq. (12)), whose settings for FedGKT are the defaults.

Run:    python fedkd_minimal.py --algo split-learning    small settings, about half a minute
        --paper fedgkt has the defaults of `run`, and FedGKT's networks
Data:   clients: their own labeled images
Sent:   in every batch, up: the feature map and the labels, down: the gradient of the feature map;
        between clients: the edge's half and its optimizer. Bytes are those of maps and gradients

A round goes from client to client; 1 to 3 for each batch, for local_epochs; the numbers are ours:
 1  the client computes the feature map of a batch of its own images, and sends it
 2  the server computes the logits and their cross-entropy, and its half makes a step
 3  it sends back the gradient of the feature map, with which the client's half makes its step
 4  then the edge's half and its optimizer go to the next client
Together the two halves train as one network would. The edge's half is the extractor of one of
FedGKT's edge networks, whose own classifier is not trained.

Scores: `accuracy`, also `server_accuracy`, is of the two halves together, after the last client
D1  a round is local_epochs passes over each client's data, in the order of the clients' numbers
"""
import copy

import torch
import torch.nn.functional as F

from algorithms import Algorithm, checked
from algorithms.fedgkt import check_settings
from federation import timed
from federation.communication import FLOAT_BYTES
from federation.evaluation import accuracy
from federation.training import (OPTIMIZERS, Optimizer, autocast, forward, predict_logits, restore,
                                 shuffled, snapshot)


@timed
def train_split(fed, i, t, edge, server, edge_optimizer, server_optimizer, local_epochs,
                batch_size):
    """Trains both halves in place on client i's data; returns the bytes that go up (and down).

    A client whose features hold nan spoils both halves: here nobody looks for it.
    """
    sent_bytes = 0
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    edge.train()
    server.train()
    # `shuffled` augments with --augment; ("local", t, i) names the random numbers of this training.
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size):
        with autocast(fed):
            features = edge.extract(batch)                                   # [B, c, h, w]
        sent = features.detach().requires_grad_()                            # line 1, goes up
        loss = F.cross_entropy(forward(fed, server, sent), labels[rows])
        server_optimizer.zero_grad()
        loss.backward()
        server_optimizer.step()                                              # line 2
        edge_optimizer.zero_grad()
        features.backward(sent.grad)                                         # line 3, comes down
        edge_optimizer.step()
        sent_bytes += FLOAT_BYTES * sent.numel()
    return sent_bytes


@timed
@torch.no_grad()
def evaluate(fed, edge, server):
    """Test accuracy of the edge's extractor with the server's network behind it, in eval mode."""
    edge.eval()
    logits = []
    for images in fed.test.images.split(64):             # not all feature maps at once
        with autocast(fed):
            features = edge.extract(images)                                  # [B, c, h, w]
        logits.append(predict_logits(fed, server, features.float()))         # [B, C]
    of_both = accuracy(torch.cat(logits), fed.test.labels)
    return {"accuracy": of_both, "server_accuracy": of_both}


@checked
def run(fed, state=None, *,
        rounds: int = 200,                   # passes of the edge's half from client to client
        local_epochs: int = 1,               # passes of a client over its own images in a round
        batch_size: int = 256,               # images whose feature maps go up at once
        lr: float = 1e-3,                    # of both halves
        optimizer: Optimizer = "amsgrad",    # of each half; kept over clients and rounds
        weight_decay: float = 1e-4):         # of both halves
    """Yields (metrics, state) after round 0, the untrained models, and after every round."""
    edge, server = fed.client_model(0), fed.server_model()
    if state is None:
        state = {"round": 0, "clients": [snapshot(edge)], "server": snapshot(server)}
        yield evaluate(fed, edge, server), state
    edge_optimizer = OPTIMIZERS[optimizer](edge.parameters(), lr=lr, weight_decay=weight_decay)
    restore(state["clients"][0], edge, edge_optimizer)   # the half that all clients train
    server_optimizer = OPTIMIZERS[optimizer](server.parameters(), lr=lr,
                                             weight_decay=weight_decay)
    restore(state["server"], server, server_optimizer)

    for t in range(state["round"] + 1, rounds + 1):
        # The edge's half goes from client to client.
        sent_bytes = 0
        for i in range(len(fed.private)):                                    # line 4, D1
            sent_bytes += train_split(fed, i, t, edge, server, edge_optimizer, server_optimizer,
                                      local_epochs, batch_size)

        # All that the next round needs; a copy, because the next round trains both in place.
        state = copy.deepcopy({"round": t, "clients": [snapshot(edge, edge_optimizer)],
                               "server": snapshot(server, server_optimizer)})
        # Measured; no step above sees it.
        metrics = {**evaluate(fed, edge, server),
                   "bytes_up": sent_bytes, "bytes_down": sent_bytes}         # FedGKT Eq. (12)
        yield metrics, state


ALGORITHM = Algorithm(
    "split-learning", run, scores={"server_accuracy": "server"},
    keeps=("clients", "server"),
    server="features", check_settings=check_settings)
