"""Local training: each client trains a model of its own on its own images; nothing is sent.

It is in no paper. It is the baseline of FML, FedProto, FedKD and FD: with the same settings, what
these have above it is what a client gains from the others.

    python fedkd_minimal.py --algo local
        runs `Config` on digits of 16x16 pixels: 20 clients hold unequal shares of the classes
        (Dirichlet, alpha 0.5), 300 images each. Every second client has a network with one hidden
        layer (mlp), the others have a CNN (cnn_large). It takes half a minute on two cores.

No --paper has it. From Python, local.run(fed, **PAPER) runs `PAPER`.

Clients hold labeled images of their own; between rounds each keeps its model and its optimizer.
There are no public images and no server. Training: train mode, images cropped and flipped with
--augment, the mean loss of a batch. Prediction: eval mode, no gradient, images as they are.

The algorithm; the numbers are ours:
  1   start with a model in each client, of random weights of its own
  2   for each round t:
  3       draw the active clients, a share of all
  4       for each active client, in parallel:
  5           train its model on its own images, by cross-entropy; model and optimizer go on from
              the client's last training

A client that is not active keeps its model and its optimizer.

Accuracy is of the clients' models on the test images, after step 5: the mean over all clients,
active or not, each with the classes weighted as in its own images. `client_accuracy` is the same
with all test images weighted alike.
"""
from dataclasses import dataclass

import torch.nn.functional as F

from algorithms import Algorithm, configured
from federation import (Optimizer, active_in, client_metrics, client_scores, minibatches,
                        parallel_map, random_numbers, restored, snapshot)

# active_in         the clients of a round, drawn at random without replacement
# minibatches       row numbers of batches, reshuffled in each pass; the last one may be smaller
# parallel_map      {i: fn(i) for i in ids}, by several processes
# random_numbers    a generator for what is named; it also seeds torch, for dropout
# restored          a network and its optimizer, after a snapshot has been copied into both; the
#                   learning rate and the weight decay are those given here
# snapshot          {"model": weights, "optimizer": state or None}, to be kept


@dataclass
class Config:
    rounds: int = 20                     # of training
    participation: float = 1.0           # share of the clients that are active in a round
    local_epochs: int = 5                # passes of a client over its images in a round
    local_steps: int | None = None       # if it is a number: so many steps, instead of passes
    batch_size: int = 32                 # of a client
    lr: float = 0.01                     # of a client, constant; --lr-patience lowers it
    optimizer: Optimizer = "momentum"    # one for each client, kept over the rounds
    weight_decay: float = 0.0            # L2 penalty of this optimizer


# The values of fml.py's PAPER, so that the two can be compared.
PAPER = dict(rounds=100, participation=1.0, local_epochs=1, batch_size=64, lr=0.05,
             optimizer="momentum", weight_decay=0.0)


@configured(Config)
def run(fed, cfg, state=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round.

    fed       fed.private[i]: client i's images [n, c, h, w] and labels [n]; fed.client_model(i,
              init=k): a new network of client i, with the k-th random weights; fed.augment: random
              crops and flips with --augment, else the images unchanged
    state     of an earlier round, to go on from; None: from the start
    """
    if state is None:
        # Step 1: each client starts from random weights of its own.
        clients = {i: snapshot(fed.client_model(i, init=i)) for i in range(len(fed.private))}
        state = {"round": 0, "clients": clients}
        yield evaluate(fed, state), state
    clients = state["clients"]           # {i: {"model": weights, "optimizer": state or None}}

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3-5: each active client trains its model on its own images.
        active = active_in(fed, cfg.participation, t)
        trained = parallel_map(fed, active, lambda i: train_client(fed, cfg, t, i, clients[i]))
        clients = clients | trained

        state = {"round": t, "clients": clients}
        yield {**evaluate(fed, state), "bytes_up": 0, "bytes_down": 0}, state


def train_client(fed, cfg, t, i, client):
    """Client i, a snapshot of its model and its optimizer, after training on its own images."""
    images, labels = fed.private[i]
    model, optimizer = restored(client, fed.client_model(i), cfg.optimizer, cfg.lr,
                                cfg.weight_decay)
    model.train()
    with random_numbers(fed, "local", t, i) as rng:      # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs, cfg.local_steps):
            logits = model(fed.augment(images[rows], rng))                       # [B, C]
            loss = F.cross_entropy(logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return snapshot(model, optimizer)


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def evaluate(fed, state):
    """Test accuracies of the clients' models."""
    metrics = client_metrics(client_scores(fed, state["clients"]))
    own = metrics.pop("client_accuracy_own", None)       # None: no test image is of their classes
    return {"accuracy": own, **metrics}


# --------------------------------------------------------------------------------------------------
# For the command line

ALGORITHM = Algorithm(
    "local", run, scores={"accuracy": "clients, own classes", "client_accuracy": "clients"},
    paper=PAPER, mixed_networks=True, model=("cnn_large", "mlp"), server_model="cnn",
    plateau=("lr",), evaluate=evaluate)
