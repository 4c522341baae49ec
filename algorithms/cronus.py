"""Cronus: clients upload probabilities of public images, and learn from a mean without outliers.

Chang et al., "Cronus: Robust and Heterogeneous Collaborative Learning with Black-Box Knowledge
Transfer", arXiv:1912.11279, with the filter of Diakonikolas et al., "Being Robust (in High
Dimensions) Can Be Practical", ICML 2017. Here it is a baseline of FedGEMS (Cheng et al.,
arXiv:2110.11027). Cronus's own text was not at hand: this file was written from FedGEMS, section 2
and Table 13, and from the idea of the filter.

    python fedkd_minimal.py --algo cronus
        runs `Config` on digits of 16x16 pixels: 20 clients with a small CNN hold unequal shares of
        the classes (Dirichlet, alpha 0.5), 240 images each; 1,200 images are public. It takes less
        than a minute on two cores.
    python fedkd_minimal.py --algo cronus --paper fedgems-homogeneous --dataset cifar10
        runs `PAPER`, FedGEMS's values: 16 clients with a ResNet-11 hold random shares of the
        images, 1,406 or 1,407 each; half of the training images are public. Images are cropped and
        flipped. The rate falls to a tenth after more than 10 rounds in which the accuracy, on 2,500
        validation images that no client holds, has not grown. With fedgems-heterogeneous clients
        have seven networks, and shares by Dirichlet, alpha 0.5.

Clients hold labeled images of their own; they and the server hold N public images without labels.
Networks may differ; the server has none. Training: train mode, images cropped and flipped with
--augment, the mean loss of a batch. Prediction: eval mode, no gradient, images as they are, but for
public ones: with --augment each is cropped and flipped once in a round, for all who predict or
learn it. CE is cross-entropy with the label; q are the probabilities, the softmax of the logits, of
the model that is trained.

The algorithm; the numbers are ours:
  1   start with M clients' networks of different random weights
  2   for each round t:
  3       each client, in parallel, trains on its own images by CE                   (departure 1)
  4       each client i predicts all public images and sends the probabilities p_i, [N, C]
  5       y = the mean of the p_i of each image over the clients that a filter keeps for this
              image; the server sends it to all clients                          (departure 2, 3)
  6       each client, in parallel, trains on the public images by - sum_c y_c ln q_c

The filter of step 5, for one image, with m usable uploads; epsilon is --malicious-fraction:
      twice: v = the direction in which the p_i of the clients that are left vary most, the first
                 eigenvector of their covariance
             leave out the ceil(epsilon m / 2) clients with the largest (v . (p_i - mean))², unless
                 fewer than m / 2 + 1 clients would stay

All clients take part in every round. Weights are never sent. A client keeps its weights and one
optimizer, of all its training, which goes on from step to step and round to round.

Accuracy is the mean over the clients after step 6; client_accuracy_private is that after step 3.
They are of the test images; with --public half, as in FedGEMS's settings, of one half of these, on
which FedGEMS tests its clients.

Bad uploads: a client of which a number is nan, infinite, or 1e30 or more in magnitude is left out
before the filter. It receives y and trains as the others do. If nobody is left, there is no step 6.

Departures
  1  FedGEMS, section 2: "a public dataset with soft labels jointly with local private dataset for
     local training". Here: two trainings after one another, steps 3 and 6, as its Table 13 counts
     epochs of each.
  2  FedGEMS: "secure robust aggregation", which it does not describe. Here: the filter above, which
     leaves out nobody of three clients or fewer.
  3  FedGEMS does not say whether the mean is projected onto the simplex, outside which an attacker
     may upload. Here: it is not.
"""
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from algorithms import Algorithm, configured
from federation import (Optimizer, distillation_metrics, loaded, logits_ledger, minibatches,
                        on_server, parallel_map, predict, public_view, random_numbers,
                        received_logits, restored, snapshot, usable)

# loaded            a network, after a copy of some weights into it
# minibatches       row numbers of batches, reshuffled in each pass; the last one may be smaller
# on_server         one process computes the function, and sends the result to all
# parallel_map      {i: fn(i) for i in ids}, by several processes
# predict           logits, in eval mode, without gradient; then the mode is as before
# public_view       the public samples of a round; with --augment each image is cropped and
#                   flipped once, for all who predict or learn it
# random_numbers    a generator for what is named; it also seeds torch, for dropout
# received_logits   [M, N, C] of {client: [N, C]}, after an attack; nothing is left out
# restored          a network and its optimizer, after a copy of a snapshot into both; None: a new
#                   optimizer. Its rate and weight decay are the ones given here
# snapshot          {"model": weights, "optimizer": its state, or None}
# usable            [m, N, C] of [M, N, C]: without the bad uploads


@dataclass
class Config:
    rounds: int = 10                     # of communication
    local_epochs: int = 5                # step 3: passes of a client over its own images
    public_epochs: int = 1               # step 6: passes of a client over the public images
    batch_size: int = 64
    lr: float = 1e-3                     # constant; --lr-patience lowers it
    optimizer: Optimizer = "amsgrad"
    weight_decay: float = 1e-4           # L2 penalty of the optimizer
    malicious_fraction: float = 0.1      # epsilon, in [0, 0.5): assumed share of malicious clients


# FedGEMS, Table 13, which has all but epsilon.
# Clients, partition, networks, augmentation: experiment/presets.py.
PAPER = dict(rounds=200, local_epochs=1, public_epochs=1, batch_size=64, lr=1e-3,
             optimizer="amsgrad", weight_decay=1e-4, malicious_fraction=0.1)


@configured(Config)
def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round.

    fed       fed.private[i]: client i's images [n, c, h, w] and labels [n]; fed.test likewise;
              fed.public.images [N, c, h, w]; fed.client_model(i, init=i): client i's new network,
              with the i-th random weights; fed.augment: random crops and flips with --augment, else
              the images unchanged
    state     of an earlier round, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ids = range(len(fed.private))                                            # M clients
    all_rows = torch.arange(len(fed.public.images), device=fed.device)       # [N]
    if state is None:
        # Step 1: networks of random weights.
        state = {"round": 0, "clients": {i: snapshot(fed.client_model(i, init=i)) for i in ids}}
        yield evaluate(fed, state), state
    clients = state["clients"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3: clients train on their own images (departure 1).
        trained = parallel_map(fed, ids, lambda i: train_client(fed, cfg, t, i, clients[i]))

        # Step 4: they send their probabilities of all public images.
        images = public_view(fed, t).images                                  # [N, c, h, w]
        uploads = parallel_map(fed, ids, lambda i: predict_client(fed, i, trained[i], images))
        client_probs = usable(received_logits(uploads, all_rows, attack))    # [m, N, C]

        # Step 5-6: they train towards the robust mean, if there is an upload.
        clients = trained
        if len(client_probs) > 0:
            target_probs = aggregate(fed, cfg, client_probs)                 # y, [N, C]
            clients = parallel_map(fed, ids, lambda i: distill_client(
                fed, cfg, t, i, trained[i], images, target_probs))

        state = {"round": t, "clients": clients}
        yield {**evaluate(fed, state, trained), "bad_uploads": len(ids) - len(client_probs),
               **logits_ledger(len(ids), fed.num_classes, up=len(all_rows), down=len(all_rows))
               }, state


# --------------------------------------------------------------------------------------------------
# The steps. Between them a client is a snapshot.

def train_client(fed, cfg, t, i, client):
    """Step 3: client i after training on its own images."""
    images, labels = fed.private[i]
    model, optimizer = restored(client, fed.client_model(i), cfg.optimizer, cfg.lr,
                                cfg.weight_decay)
    model.train()
    with random_numbers(fed, "local", t, i) as rng:          # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs):
            logits = model(fed.augment(images[rows], rng))                       # [B, C]
            loss = F.cross_entropy(logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return snapshot(model, optimizer)


def predict_client(fed, i, client, images):
    """Step 4: client i's probabilities p_i, [N, C], of all public images [N, c, h, w]."""
    model = loaded(fed.client_model(i), client["model"])
    return predict(model, images).softmax(-1)


@on_server
def aggregate(fed, cfg, client_probs):
    """Step 5: the target y, [N, C], of probabilities [m, N, C]."""
    return robust_mean(client_probs, cfg.malicious_fraction)                     # departure 2


def robust_mean(client_probs, malicious_fraction):
    """The mean of the clients that the filter keeps, image by image: [M, N, C] -> [N, C].   Step 5

    client_probs         finite numbers
    malicious_fraction   epsilon, in [0, 0.5): the share of clients that may be malicious; 0 gives
                         the mean of all
    >>> probs = torch.tensor([[[.8, .2]], [[.8, .2]], [[.7, .3]], [[.7, .3]], [[0., 1.]]])
    >>> robust_mean(probs, 0.2)
    tensor([[0.7500, 0.2500]])
    """
    num_clients, _, num_classes = client_probs.shape
    # Rounded first: .28 x 50 / 2 is 7.000000000000001, of which ceil would make 8.
    dropped = math.ceil(round(malicious_fraction * num_clients / 2, 9))
    if dropped == 0:
        return client_probs.mean(0)
    probs = client_probs.double()            # squares of large float32 numbers overflow
    kept = torch.ones_like(probs[..., 0], dtype=torch.bool)                              # [M, N]
    for remaining in (num_clients - dropped, num_clients - 2 * dropped):     # after pass 1, pass 2
        if remaining < num_clients / 2 + 1:
            break
        deviation = torch.where(kept[..., None], probs - mean_of_kept(probs, kept), 0.0)
        deviation = deviation.movedim(0, 1)                                              # [N, M, C]
        # v is the eigenvector of the largest eigenvalue, which eigh gives last.
        if num_classes <= num_clients:
            _, vectors = torch.linalg.eigh(deviation.mT @ deviation)                     # [N, C, C]
            scores = (deviation @ vectors[..., -1:]).squeeze(-1).square().T              # [M, N]
        else:       # the same scores, up to a factor, from the smaller Gram matrix
            _, vectors = torch.linalg.eigh(deviation @ deviation.mT)                     # [N, M, M]
            scores = vectors[..., -1].square().T                                         # [M, N]
        farthest = scores.topk(dropped, dim=0).indices       # [dropped, N]; who is out has score 0
        kept = kept.scatter(0, farthest, False)
    return mean_of_kept(probs, kept).to(client_probs.dtype)                  # departure 3


def mean_of_kept(probs, kept):
    """The mean over the clients that are kept: [M, N, C], bool [M, N] -> [N, C]."""
    return torch.where(kept[..., None], probs, 0.0).sum(0) / kept.sum(0)[:, None]


def distill_client(fed, cfg, t, i, client, images, target_probs):
    """Step 6: client i after training on the public images, towards target_probs [N, C]."""
    model, optimizer = restored(client, fed.client_model(i), cfg.optimizer, cfg.lr,
                                cfg.weight_decay)
    model.train()
    with random_numbers(fed, "public", t, i) as rng:
        for rows in minibatches(images, cfg.batch_size, rng, cfg.public_epochs):
            logits = model(images[rows])                                         # [B, C]
            loss = soft_cross_entropy(logits, target_probs[rows]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return snapshot(model, optimizer)


def soft_cross_entropy(logits, target_probs):
    """- sum_c y_c ln q_c of each sample, q = softmax(logits): [B, C], [B, C] -> [B].   Step 6

    The target y gets no gradient. A class of y = 0 adds 0, also where the logit is -inf.
    >>> soft_cross_entropy(torch.tensor([[.5, .5]]).log(), torch.tensor([[.8, .2]]))
    tensor([0.6931])
    """
    log_q = logits.log_softmax(-1)                                               # [B, C]
    log_q = log_q.masked_fill(target_probs == 0, 0)                              # y = 0 adds 0
    return -(target_probs.detach() * log_q).sum(-1)


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def evaluate(fed, state, trained=None):
    """Test accuracies of the clients.

    trained    the clients after step 3; None: as in `state`
    """
    metrics = distillation_metrics(fed, state["clients"], trained)
    return {"accuracy": metrics.pop("client_accuracy_distilled"), **metrics}


# --------------------------------------------------------------------------------------------------
# For the command line

ALGORITHM = Algorithm(
    "cronus", run,
    scores={"accuracy": "clients, after distillation",
            "client_accuracy_private": "clients, after private training"},
    paper=PAPER, public="unlabeled", mixed_networks=True, plateau=("lr",), evaluate=evaluate)
