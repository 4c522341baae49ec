"""Cronus: clients upload probabilities of public images, and learn from a mean without outliers.

Chang et al., "Cronus: Robust and Heterogeneous Collaborative Learning with Black-Box Knowledge
Transfer", arXiv:1912.11279. Its text was not at hand: this file was written from FedGEMS, of which
Cronus is a baseline (Cheng et al., arXiv:2110.11027, section 2 and Table 13). The filter is ours,
after the idea of Diakonikolas et al., "Being Robust (in High Dimensions) Can Be Practical", 2017.

    python fedkd_minimal.py --algo cronus
        runs `Config` on digits of 16x16 pixels: 20 clients with a small CNN hold unequal shares of
        the classes (Dirichlet, alpha 0.5), 240 images each; 1,200 are public. A minute on 2 cores.
    python fedkd_minimal.py --algo cronus --paper fedgems-homogeneous --dataset cifar10
        runs `PAPER`, FedGEMS's values, with a ResNet-11 for each of 16 clients; half of the
        training images are public. fedgems-heterogeneous has seven networks.

Clients hold labeled images of their own, and all of them hold N public images without labels. Each
of M clients keeps a network and its optimizer, of all its training. The server has no network.

The algorithm; the numbers are ours:
  1   start with M networks of different random weights
  2   for each round t:
  3       each client, in parallel, trains on its own images                         (departure 1)
  4       each client i sends p_i, its probabilities of the public images, [N, C]
  5       the server sends y, for each image the mean of the p_i of those clients that a filter
          keeps, to all clients                                                   (departure 2, 3)
  6       each client, in parallel, trains on the public images by - sum_c y_c ln q_c (q: its own)
The filter, for one image and M uploads; epsilon is --malicious-fraction:
      twice: v = the direction in which the p_i of the clients that are left vary most, the first
                 eigenvector of their covariance
             leave out the ceil(epsilon M / 2) clients with the largest (v . (p_i - mean))², unless
                 fewer than M / 2 + 1 clients would stay

  step   who predicts       images    mode    gradient   augmented       loss, how often
  3      each client        its own   train   yes        in each pass    CE, local_epochs
  4      each client        public    eval    no         once a round    none, once
  6      each client        public    train   yes        as in step 4    of step 6, public_epochs
  -      all M, after 6     test      eval    no         no              `accuracy`: the mean
  -      all M, after 3     test      eval    no         no              `client_accuracy_private`

A client of which a number is nan, infinite, or 1e30 or more in magnitude is left out before the
filter, and trains as the others do. If nobody is left, steps 5 and 6 are left out: y is not sent.

Departures, from FedGEMS's account of Cronus
  1  FedGEMS: clients train on both sets "jointly". Here: on their own, then on the public images.
  2  FedGEMS: "secure robust aggregation", which it does not describe. Here: the filter.
  3  FedGEMS: silent about a mean outside the simplex, where attackers may send. Here: it stays.
"""
import math
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F

from federation import (Algorithm, Count, Natural, NonNegative, Optimizer, Positive, Settings,
                        count_logit_bytes, drop_bad_uploads, minibatches, parallel_map, predict,
                        resume, score_clients, snapshot)


@dataclass
class Config(Settings):
    rounds: Natural = 10                 # of communication
    local_epochs: Count = 5              # step 3: passes of a client over its own images
    public_epochs: Natural = 1           # step 6: passes of a client over the public images
    batch_size: Count = 64
    lr: Positive = 1e-3                  # constant
    optimizer: Optimizer = "amsgrad"
    weight_decay: NonNegative = 1e-4     # L2 penalty of the optimizer
    malicious_fraction: Annotated[float, "[0, 0.5)"] = 0.1     # epsilon; more than 0.3 or so leaves
    #                                      out fewer clients again: see `robust_mean`


# FedGEMS's Table 13, where it differs from Config. It has no epsilon.
PAPER = dict(rounds=200, local_epochs=1)


def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round.

    fed       a `Federation`, with public images
    cfg       a `Config`
    state     one that it has yielded, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ALGORITHM.check(fed, cfg, state, attack)
    ids = range(len(fed.private))                                            # M clients
    all_rows = torch.arange(len(fed.public.images), device=fed.device)       # [N]
    if state is None:
        # Step 1: networks of random weights.
        state = {"algorithm": "cronus", "round": 0,
                 "clients": {i: snapshot(fed.client_model(i, init=i)) for i in ids}}
        yield evaluate(fed, state), state
    clients = state["clients"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3: each client trains on its own images (departure 1).
        trained = parallel_map(fed, ids, lambda i: train_client(fed, cfg, t, i, clients[i]))

        # Step 4: it sends its probabilities of all public images.
        images = fed.augment_public(t)                                       # [N, c, h, w]
        sent = parallel_map(fed, ids, lambda i: predict_client(fed, i, trained[i], images))
        uploads = attack.poison_rows(sent, all_rows) if attack else sent
        uploads = drop_bad_uploads(uploads)                                  # {client: [N, C]}

        clients = trained
        if uploads:
            # Step 5: the server sends their robust mean to all clients.
            client_probs = torch.stack([*uploads.values()])                  # [uploads, N, C]
            y = robust_mean(client_probs, cfg.malicious_fraction)            # [N, C]

            # Step 6: each client trains towards it.
            clients = parallel_map(
                fed, ids, lambda i: distill_client(fed, cfg, t, i, trained[i], images, y))

        state = {**state, "round": t, "clients": clients}
        yield measure(fed, state, trained, uploads), state


# --------------------------------------------------------------------------------------------------
# The steps. Between them a client is a snapshot.

def train_client(fed, cfg, t, i, client):
    """Step 3: client i after training on its own images."""
    images, labels = fed.private[i]
    model, optimizer = resume(client, fed.client_model(i), cfg.optimizer, cfg.lr, cfg.weight_decay)
    model.train()
    with fed.random_numbers("local", t, i) as rng:          # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs):
            logits = model(fed.augment(images[rows], rng))                       # [B, C]
            loss = F.cross_entropy(logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return snapshot(model, optimizer)


def predict_client(fed, i, client, images):
    """Step 4: client i's probabilities p_i, [N, C], of all public images [N, c, h, w]."""
    model = fed.client_model(i)
    model.load_state_dict(client["model"])
    return predict(model, images).softmax(-1)


def robust_mean(client_probs, malicious_fraction):
    """The mean of the clients that the filter keeps, image by image: [M, N, C] -> [N, C].   Step 5

    client_probs         finite numbers
    malicious_fraction   epsilon, in [0, 0.5): the share of clients that may be malicious; 0 gives
                         the mean of all
    A pass that would keep fewer than M / 2 + 1 clients is not made, so that a larger epsilon may
    leave out fewer: of 16 clients six at 0.3, four at 0.4; of five one at 0.4, nobody at 0.45; of
    three never anybody. Among clients that are equally far the choice may change with their order.
    >>> probs = torch.tensor([[[.8, .2]], [[.8, .2]], [[.7, .3]], [[.7, .3]], [[0., 1.]]])
    >>> robust_mean(probs, 0.2)
    tensor([[0.7500, 0.2500]])
    """
    M = len(client_probs)
    # Rounded first: .28 x 50 / 2 is 7.000000000000001, of which ceil would make 8.
    dropped = math.ceil(round(malicious_fraction * M / 2, 9))
    if dropped == 0:
        return client_probs.mean(0)
    probs = client_probs.double()            # squares of large float32 numbers overflow
    kept = torch.ones_like(probs[..., :1])                       # [M, N, 1]: 1, or 0 if left out
    for remaining in (M - dropped, M - 2 * dropped):             # after pass 1, pass 2
        if remaining < M / 2 + 1:
            break
        mean = (kept * probs).sum(0) / kept.sum(0)                                       # [N, C]
        deviation = (kept * (probs - mean)).movedim(0, 1)                                # [N, M, C]
        # v is the eigenvector of the largest eigenvalue, which eigh gives last.
        _, vectors = torch.linalg.eigh(deviation.mT @ deviation)                         # [N, C, C]
        distances = (deviation @ vectors[..., -1:])[..., 0].square().T                   # [M, N]
        farthest = distances.topk(dropped, dim=0).indices                          # [dropped, N]
        kept = kept.scatter(0, farthest[..., None], 0.0)
    return ((kept * probs).sum(0) / kept.sum(0)).to(client_probs.dtype)      # departure 2, 3


def distill_client(fed, cfg, t, i, client, images, y):
    """Step 6: client i after training on the public images [N, c, h, w] towards y, [N, C]."""
    model, optimizer = resume(client, fed.client_model(i), cfg.optimizer, cfg.lr, cfg.weight_decay)
    model.train()
    with fed.random_numbers("public", t, i) as rng:         # order, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.public_epochs):
            logits = model(images[rows])                                         # [B, C]
            loss = soft_cross_entropy(logits, y[rows]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return snapshot(model, optimizer)


def soft_cross_entropy(logits, target_probs):
    """- sum_c y_c ln q_c of each sample, q = softmax(logits): [B, C], [B, C] -> [B].   Step 6

    logits, target_probs    of q and y; the target y gets no gradient
    >>> soft_cross_entropy(torch.tensor([[.5, .5]]).log(), torch.tensor([[.8, .2]]))
    tensor([0.6931])
    """
    log_q = logits.log_softmax(-1)                                               # [B, C]
    return -(target_probs.detach() * log_q).sum(-1)


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def measure(fed, state, trained, uploads):
    """The metrics of a round; `trained` are the clients after step 3."""
    M, N = len(fed.private), len(fed.public.images)
    return {**evaluate(fed, state, trained), "bad_uploads": M - len(uploads),
            **count_logit_bytes(M, fed.num_classes, up=N, down=N if uploads else 0)}


def evaluate(fed, state, trained=None):
    """Test accuracies of all clients after step 6, and after step 3.

    trained    the clients after step 3; None: as in `state`
    With --public half they are of the half of the test images that is not public.
    """
    distilled = score_clients(fed, state["clients"], "client_accuracy_distilled")
    private = score_clients(fed, trained or state["clients"], "client_accuracy_private")
    return {"accuracy": distilled.pop("client_accuracy_distilled"), **distilled, **private}


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

ALGORITHM = Algorithm(
    "cronus", run, Config, public="unlabeled", mixed_networks=True, program=dict(
        scores={"accuracy": ("clients, after distillation", "test"),
                "client_accuracy_private": ("clients, after private training", "test")},
        paper=PAPER, plateau=("lr",), evaluate=evaluate))
