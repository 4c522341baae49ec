"""Local training: each client trains a model of its own on its own images; nothing is sent.

It is in no paper. With the same settings it is the baseline of FML, FedProto, FedKD and FD. What
FML and FedKD have above it is not from the other clients alone: their clients train a second
network along, which changes the first even where there is a single client.

    python fedkd_minimal.py --algo local
        runs `Config` on digits of 16x16 pixels: 20 clients hold unequal shares of the classes
        (Dirichlet, alpha 0.5), 300 images each. Every second client has a network with one hidden
        layer (mlp), the others have a CNN (cnn_large). Half a minute on two cores.

Clients hold labeled images of their own; between rounds each keeps its model and its optimizer,
whether it is active or not. There are no public images and no server.

The algorithm; the numbers are ours:
  1   start with a model in each client, of random weights of its own
  2   for each round t:
  3       draw the active clients, a share of all
  4       for each active client, in parallel:
  5           train its model on its own images, by cross-entropy; model and optimizer go on from
              the client's last training

  step   who predicts       images   mode    gradient   augmented      loss, how often
  5      an active client   its own  train   yes        in each pass   CE, local_epochs
  -      all clients        test     eval    no         no             `accuracy`, `client_accuracy`

Both accuracies are means over all clients, also those that were never active: `client_accuracy`
weighs all test images alike, `accuracy` weighs the classes as they are in the client's own images,
and leaves out a client none of whose classes has a test image.
"""
from dataclasses import dataclass

import torch.nn.functional as F

from federation import (Algorithm, Count, Natural, NonNegative, Optimizer, Positive, Settings,
                        Share, minibatches, parallel_map, resume, score_personal, snapshot)


@dataclass
class Config(Settings):
    rounds: Natural = 20                 # of training
    participation: Share = 1.0           # share of the clients that are active in a round
    local_epochs: Count = 5              # passes of a client over its images in a round
    local_steps: Count | None = None     # if it is a number: so many steps, instead of passes
    batch_size: Count = 32               # of a client
    lr: Positive = 0.01                  # of a client, constant
    optimizer: Optimizer = "momentum"    # one for each client, kept over the rounds
    weight_decay: NonNegative = 0.0      # L2 penalty of this optimizer


def run(fed, cfg, state=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round.

    fed       a `Federation`; clients may have different architectures
    cfg       a `Config`
    state     one that it has yielded, to go on from; None: from the start
    """
    ALGORITHM.check(fed, cfg, state)
    if state is None:
        # Step 1: each client starts from random weights of its own.
        clients = {i: snapshot(fed.client_model(i, init=i)) for i in range(len(fed.private))}
        state = {"algorithm": "local", "round": 0, "clients": clients}
        yield evaluate(fed, state), state
    clients = state["clients"]                                   # {i: snapshot}

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3-5: each active client trains its model on its own images.
        active = fed.sample_clients(cfg.participation, t)
        trained = parallel_map(fed, active, lambda i: train_client(fed, cfg, t, i, clients[i]))
        clients = clients | trained

        state = {**state, "round": t, "clients": clients}
        yield {**evaluate(fed, state), "bytes_up": 0, "bytes_down": 0}, state


def train_client(fed, cfg, t, i, client):
    """Client i, a `snapshot` of its model and its optimizer, after training on its own images."""
    images, labels = fed.private[i]
    model, optimizer = resume(client, fed.client_model(i), cfg.optimizer, cfg.lr, cfg.weight_decay)
    model.train()
    with fed.random_numbers("local", t, i) as rng:         # order, augmentation, dropout
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
    return score_personal(fed, state["clients"])


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

ALGORITHM = Algorithm(
    "local", run, Config, mixed_networks=True, program=dict(
        scores={"accuracy": ("clients", "own classes"), "client_accuracy": ("clients", "test")},
        server_score="client_accuracy", plateau=("lr",), evaluate=evaluate,
        model=("cnn_large", "mlp")))
