"""FedMD's upper bound: each client's network trains on the private images of all clients in one.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", arXiv:1910.03581, have
"the performance each model would have obtained if all private datasets were pooled"; how it is
trained is in the authors' code for CIFAR, iid: "the code".

    python fedkd_minimal.py --algo fedmd-pooled
        runs `Config` on digits of 16x16 pixels: 20 clients with a small CNN hold 270 images each,
        5,400 in all. 4,160 letters of 26 classes are public; 600 digits, which no client holds,
        are for validation. It takes about two minutes on two cores.
    python fedkd_minimal.py --algo fedmd-pooled --paper fedmd --dataset cifar100
        runs `PAPER`: 10 clients hold three images of each class (the paper has six classes:
        --classes 0,2,20,63,71,82). Each has another CNN of Table 1, as in the code; the paper's
        for CIFAR are those of Table 2. All training images of CIFAR-10 are public, a tenth of
        CIFAR-100's are for validation. Images are not augmented, and rates are constant.

As in fedmd.py clients hold a few labeled images of their own, and all have labeled public images;
but here all private images are in one place. If the public images are of another task, as in both
commands, the output layer is joint: the public classes come first, then the task's. Training: train
mode, images cropped and flipped with --augment, the mean loss of a batch. Prediction: eval mode, no
gradient, images as they are. CE is cross-entropy with the label. Every loss below also has the
penalty kernel_l2 |W|²; W are the weights of the network's last linear layer.

Nothing is sent, and no network learns from another. Each client's network, on its own and in
parallel; these numbers are ours:
  0   trains, from random weights of its own, on the public images by CE, until the accuracy on a
          tenth of them, which all clients leave out, has not grown by min_delta or more for 3
          epochs: the first half of FedMD's step 0
      in each round t:
  1       stays as it is, from now on, if the accuracy on the validation images has not grown by
              0.001 or more for 10 rounds                                            (departure 1)
  2       otherwise trains on all private images by CE, for one epoch, with an optimizer that goes
              on from round to round

Accuracy is the mean over the networks, each as it is after the round, on the test images of the
task; in round 0 after step 0.

Departure
  1  Code: training stops by the accuracy on test images. Here: by that on validation images.
"""
from dataclasses import dataclass

import torch.nn.functional as F

from algorithms import Algorithm, configured
from algorithms.fedmd import OWN_MIN_DELTA, OWN_PATIENCE, penalty, transfer_public
from federation import (Optimizer, accuracy, by_client, client_metrics, client_scores, minibatches,
                        parallel_map, predict, random_numbers, restored, snapshot, union)

# OWN_MIN_DELTA, OWN_PATIENCE     0.001 and 10, of step 1
# penalty           kernel_l2 |W|²; W are the weights of the last linear layer
# transfer_public   step 0; it reads the settings of these names from this file's Config
# minibatches       row numbers of batches, reshuffled in each pass; the last one may be smaller
# parallel_map      {i: fn(i) for i in ids}, by several processes
# predict           logits, in eval mode, without gradient; then the mode is as before
# random_numbers    a generator for what is named; it also seeds torch, for dropout
# restored          a network and its optimizer, after a copy of a snapshot into both; None: a new
#                   optimizer. Its rate and weight decay are the ones given here
# snapshot          {"model": weights, "optimizer": its state}


@dataclass
class Config:
    rounds: int = 20                        # epochs over all private images, at most
    transfer_public_epochs: int = 5         # step 0: passes over the public images, at most
    transfer_public_batch_size: int = 128
    batch_size: int = 32                    # on the private images
    early_stopping: bool = True             # False: all passes, in step 0 over all public images,
    #                                         and all rounds
    min_delta: float = 0.005                # step 0: a smaller gain is none
    lr: float = 1e-3                        # of all training, constant
    optimizer: Optimizer = "adam"           # of all training
    weight_decay: float = 0.0               # L2 penalty of the optimizers
    kernel_l2: float = 1e-3                 # factor of |W|² in all losses


# The code.
# Clients, partition, networks, augmentation: experiment/presets.py.
PAPER = dict(rounds=50, transfer_public_epochs=20, transfer_public_batch_size=128, batch_size=32,
             early_stopping=True, min_delta=0.005, lr=1e-3, optimizer="adam", weight_decay=0.0,
             kernel_l2=1e-3)


@configured(Config)
def run(fed, cfg, state=None):
    """Yields (metrics, state) after round 0, the training on public images, and every round.

    fed       fed.private[i]: client i's images [m, c, h, w] and labels [m]; fed.public,
              fed.validation and fed.test likewise; fed.client_model(i, init=i): client i's new
              network, with the i-th random weights; fed.augment: random crops and flips with
              --augment, else the images unchanged
    state     of an earlier round, to go on from; None: from the start
    """
    ids = range(len(fed.private))
    if state is None:
        # Step 0: each network trains on the public images.
        after_public = parallel_map(fed, ids, lambda i: transfer_public(fed, cfg, i))
        clients = {i: {"model": after_public[i]["model"], "optimizer": None,
                       "best_accuracy": float("-inf"), "best_round": 0} for i in ids}
        state = {"round": 0, "clients": clients}
        yield evaluate(fed, state), state
    clients = state["clients"]
    pooled = union(*fed.private)                             # images [n, c, h, w], labels [n]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 1: some networks have stopped.
        going_on = [i for i in ids if not has_stopped(cfg, t, clients[i])]

        # Step 2: the others train for an epoch on all private images.
        clients = clients | parallel_map(
            fed, going_on, lambda i: train_client(fed, cfg, t, i, clients[i], pooled))

        state = {"round": t, "clients": clients}
        yield evaluate(fed, state), state


def has_stopped(cfg, t, client):
    """Step 1: True if the 10 rounds before round t have brought no gain."""
    return cfg.early_stopping and t - 1 - client["best_round"] >= OWN_PATIENCE       # departure 1


def train_client(fed, cfg, t, i, client, pooled):
    """Step 2: client i after an epoch, with its best accuracy on validation images so far.

    client    its snapshot, its best accuracy and the round of it
    pooled    images [n, c, h, w] and labels [n] of all clients
    """
    images, labels = pooled
    model, optimizer = restored(client, fed.client_model(i), cfg.optimizer, cfg.lr,
                                cfg.weight_decay)
    model.train()
    with random_numbers(fed, "pooled", t, i) as rng:         # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, epochs=1):
            logits = model(fed.augment(images[rows], rng))                       # [B, C]
            loss = F.cross_entropy(logits, labels[rows]) + penalty(model, cfg.kernel_l2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    best = {"best_accuracy": client["best_accuracy"], "best_round": client["best_round"]}
    if cfg.early_stopping:
        now = accuracy(predict(model, fed.validation.images), fed.validation.labels)
        if round(now - client["best_accuracy"], 12) >= OWN_MIN_DELTA:      # exact: see fedmd.py
            best = {"best_accuracy": now, "best_round": t}
    return snapshot(model, optimizer) | best


# --------------------------------------------------------------------------------------------------
# Metrics; no step uses them

def evaluate(fed, state):
    """Test accuracies of the clients' networks: mean, minimum, maximum, and each."""
    scores = client_scores(fed, state["clients"])
    metrics = client_metrics(scores)
    return {"accuracy": metrics.pop("client_accuracy"), **metrics, **by_client(scores),
            "bytes_up": 0, "bytes_down": 0}


# --------------------------------------------------------------------------------------------------
# For the command line

ALGORITHM = Algorithm(
    "fedmd-pooled", run, scores={"accuracy": "clients"}, paper=PAPER, public="joint",
    mixed_networks=True, validation_for=("early_stopping",),
    columns=("client_accuracy_min", "client_accuracy_max"))
