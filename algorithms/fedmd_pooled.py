"""FedMD's upper bound: each client's network trains on the private images of all clients together.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", arXiv:1910.03581: "the
performance each model would have obtained if all private datasets were pooled". How it is trained
is in the authors' code for CIFAR, i.i.d.: "the code".

    python fedkd_minimal.py --algo fedmd-pooled
        runs `Config` on digits of 16x16 pixels: 20 clients with a small CNN hold 270 images each,
        5,400 in all. 4,160 letters are public, 600 other digits are for validation. Two minutes on
        two cores.
    python fedkd_minimal.py --algo fedmd-pooled --paper fedmd --dataset cifar100
        runs `PAPER` on fedmd.py's images and networks.

Who holds what is as in fedmd.py, but all private images are in one place. Nothing is sent, and no
network learns from another.

Each client's network, in parallel; the numbers are ours:
  0   trains, from random weights of its own, on the public images: FedMD's step 0, first half
      in each round:
  1       stays as it is, from now on, if 10 rounds have brought no gain of 0.001 or more in its
          accuracy on the validation images                                          (departure 1)
  2       else trains for one pass over all private images; its optimizer goes on

  step   images       mode    gradient   augmented      loss, how often; each row is of all clients
  0      public       train   yes        in each pass   CE, transfer_public_epochs at most
  0      held out     eval    no         no             none, once after each pass: see fedmd.py
  2      private      train   yes        in each pass   CE, once
  2      validation   eval    no         no             none, once after the pass
  -      test         eval    no         no             `accuracy`: the mean, after each round

As in fedmd.py kernel_l2 |W|² is added to each loss.

Departure
  1  Code: training stops by the accuracy on test images, which should only measure. Here: by that
     on validation images.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from algorithms.fedmd import (PRIVATE_MIN_DELTA, PRIVATE_PATIENCE, needs, penalty,
                              transfer_public)
from federation import (Algorithm, Count, Data, Natural, NonNegative, Optimizer, Positive, Settings,
                        accuracy, minibatches, parallel_map, predict, resume, score_clients,
                        snapshot)


@dataclass
class Config(Settings):
    rounds: Natural = 20                    # passes over all private images, at most
    transfer_public_epochs: Natural = 5     # step 0: passes over the public images, at most
    transfer_public_batch_size: Count = 128
    batch_size: Count = 32                  # of private images
    early_stopping: bool = True             # False: all passes, step 0 over all public images
    min_delta: NonNegative = 0.005          # step 0: a smaller gain is none
    lr: Positive = 1e-3                     # of all training, constant
    optimizer: Optimizer = "adam"           # of all training
    weight_decay: NonNegative = 0.0         # L2 penalty of the optimizers, on all weights
    kernel_l2: NonNegative = 1e-3           # factor of |W|², the penalty on the last layer


# The code's, where it differs from Config.
PAPER = dict(rounds=50, transfer_public_epochs=20)


def run(fed, cfg, state=None):
    """Yields (metrics, state) after round 0, the training on public images, and every round.

    fed       a `Federation`, with public images, and validation images for early stopping
    cfg       a `Config`
    state     one that it has yielded, to go on from; None: from the start
    """
    ALGORITHM.check(fed, cfg, state)
    ids = range(len(fed.private))
    if state is None:
        # Step 0: each network trains on the public images.
        after_public = parallel_map(fed, ids, lambda k: transfer_public(fed, cfg, k))
        clients = {k: {"model": after_public[k]["model"], "optimizer": None,
                       "best_accuracy": float("-inf"), "best_round": 0} for k in ids}
        state = {"algorithm": "fedmd-pooled", "round": 0, "clients": clients}
        yield evaluate(fed, state), state
    clients = state["clients"]
    pooled = Data(*map(torch.cat, zip(*fed.private)))        # images [n, c, h, w], labels [n]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 1: some networks have stopped.
        going_on = [k for k in ids if not has_stopped(cfg, t, clients[k])]

        # Step 2: the others train for one pass over all private images.
        clients = clients | parallel_map(
            fed, going_on, lambda k: train_client(fed, cfg, t, k, clients[k], pooled))

        state = {**state, "round": t, "clients": clients}
        yield evaluate(fed, state), state


def has_stopped(cfg, t, client):
    """Step 1: True if the 10 rounds before round t have brought no gain."""
    return cfg.early_stopping and t - 1 - client["best_round"] >= PRIVATE_PATIENCE   # departure 1


def train_client(fed, cfg, t, k, client, pooled):
    """Step 2: client k's network after a pass over all private images.

    client    its snapshot, with the best accuracy on validation images so far and its round
    pooled    images [n, c, h, w] and labels [n] of all clients
    """
    images, labels = pooled
    model, optimizer = resume(client, fed.client_model(k), cfg.optimizer, cfg.lr, cfg.weight_decay)
    model.train()
    with fed.random_numbers("pooled", t, k) as rng:         # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, epochs=1):
            logits = model(fed.augment(images[rows], rng))                       # [B, C]
            loss = F.cross_entropy(logits, labels[rows]) + penalty(model, cfg.kernel_l2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    best_accuracy, best_round = client["best_accuracy"], client["best_round"]
    if cfg.early_stopping:
        now = accuracy(predict(model, fed.validation.images), fed.validation.labels)
        if round(now - best_accuracy, 12) >= PRIVATE_MIN_DELTA:      # rounded as in fedmd.py
            best_accuracy, best_round = now, t
    else:
        best_round = t           # so that early stopping, if it is on later, begins to wait here
    return {**snapshot(model, optimizer), "best_accuracy": best_accuracy, "best_round": best_round}


# --------------------------------------------------------------------------------------------------
# Metrics; no step uses them

def evaluate(fed, state):
    """Test accuracies of all clients' networks, stopped or not: `score_clients`."""
    metrics = score_clients(fed, state["clients"], each=True)
    return {"accuracy": metrics.pop("client_accuracy"), **metrics, "bytes_up": 0, "bytes_down": 0}


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

ALGORITHM = Algorithm(
    "fedmd-pooled", run, Config, public="joint", mixed_networks=True, needs_for=needs, program=dict(
        scores={"accuracy": ("clients", "test")}, paper=PAPER,
        columns=("client_accuracy_min", "client_accuracy_max")))
