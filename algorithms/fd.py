"""FD: a client also learns from the other clients' mean prediction for the label's class.

Jeong, Oh, Kim, Park, Bennis and Kim, "Communication-Efficient On-Device Machine Learning: Federated
Distillation and Augmentation under Non-IID Private Data", arXiv:1811.11479; without its second
half, the augmentation with generated samples.

    python fedkd_minimal.py --algo fd
        runs `Config` on digits of 16x16 pixels: 20 clients with a small CNN hold unequal shares of
        the classes (Dirichlet, alpha 0.5), 300 images each. It takes less than a minute on two
        cores.
    python fedkd_minimal.py --algo fd --paper fedgen --dataset mnist
        runs `PAPER`, but for what the comparison with FedGen sets (experiment/presets.py): 200
        rounds of 20 steps on 32 images, SGD at a constant rate of 0.01. 20 clients with FedGen's
        CNN hold half of the training images, unequal numbers of them and shares of the classes
        (Dirichlet, alpha 0.1). Images are not augmented.

Clients hold labeled images of their own. There are no public images. Networks may differ; the
server has none. Training: train mode, images cropped and flipped with --augment, the mean loss of a
batch. Test images are predicted in eval mode, as they are. phi(q, y) = - sum_c y_c ln q_c is the
cross-entropy, where a label is a one-hot y. F(b) are the probabilities of image b, the softmax of
its logits, as they are in training. The paper calls F(b) a logit vector, "normalized by the softmax
function".

Algorithm 1; the numbers in brackets are lines of the paper.
  1   start with M clients' networks of different random weights
  2   for each round t:
  3       each client i, in parallel, trains on its own images; the loss of image b with label y is
              phi(F(b), y) + gamma phi(F(b), hat F_i[y]);                      [5] (departure 1)
              in round 1 there is no hat F_i, and the second term is 0
  4       meanwhile it adds F(b) to the sum of class y and counts it           [6] (departure 1)
  5       for each class l it sends F_i[l] = sum / count, so C rows of C numbers             [7-8]
  6       for each client i and class l the server sends hat F_i[l], the mean of F_j[l] over the
              other clients j                                              [10-15] (departure 2)

All clients take part in every round. Weights are never sent. A client keeps its weights and one
optimizer, which goes on from round to round, and its hat F_i, which the next round uses.

Accuracy is the mean over the clients, on the test images, after step 4.

Bad uploads: a client of which a number is nan, infinite, or 1e30 or more in magnitude counts in
step 6 as one that has drawn no class. It keeps what it trained and receives its hat F_i.

Departures
  1  Paper: a step on each image of a batch. Here: one on the mean of the batch; step 4 takes the
     F(b) from before this step.
  2  Paper: the mean is over all M - 1 other clients; where one of them has not drawn the class, the
     target would sum to less than 1. Here: over those that have drawn it. If there is none, the
     target is a row of zeros, and the second term of step 3 is 0.
  3  Paper: gives neither gamma nor the optimizer and its rate. Here: 1, and AMSGrad at 0.001, as
     FedGEMS has it for DS-FL.
"""
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms import Algorithm, configured
from federation import (Optimizer, client_metrics, client_scores, is_usable, logits_ledger,
                        minibatches, parallel_map, random_numbers, received_logits, restored,
                        snapshot)

# is_usable         False if a number is nan, infinite, or 1e30 or more in magnitude
# minibatches       row numbers of batches, reshuffled in each pass; the last one may be smaller
# parallel_map      {i: fn(i) for i in ids}, by several processes
# random_numbers    a generator for what is named; it also seeds torch, for dropout
# received_logits   [M, C, C] of {client: [C, C]}, after an attack; nothing is left out
# restored          a network and its optimizer, after a copy of a snapshot into both; None: a new
#                   optimizer. Its rate and weight decay are the ones given here
# snapshot          {"model": weights, "optimizer": its state, or None}


@dataclass
class Config:
    rounds: int = 10                     # of communication
    local_epochs: int = 5                # passes of a client over its images in a round
    local_steps: int | None = None       # if it is a number: so many steps, instead of passes
    batch_size: int = 64
    lr: float = 1e-3                     # constant; --lr-patience lowers it
    optimizer: Optimizer = "amsgrad"
    weight_decay: float = 1e-4           # L2 penalty of the optimizer
    gamma: float = 1.0                   # weight of the second term; 0: each client is alone


# The paper, with 10 clients of 2,000 images of MNIST; but for what departure 3 names.
PAPER = dict(rounds=16, local_epochs=1, local_steps=250, batch_size=64, lr=1e-3,
             optimizer="amsgrad", weight_decay=1e-4, gamma=1.0)


@configured(Config)
def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round.

    fed       fed.private[i]: client i's images [n, c, h, w] and labels [n]; fed.test likewise;
              fed.client_model(i, init=i): client i's new network, with the i-th random weights;
              fed.augment: random crops and flips with --augment, else the images unchanged
    state     of an earlier round, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ids, C = range(len(fed.private)), fed.num_classes                        # M clients
    if state is None:
        # Step 1: networks of random weights, and no targets yet.
        state = {"round": 0, "clients": {i: snapshot(fed.client_model(i, init=i)) for i in ids},
                 "targets": torch.zeros(len(ids), C, C, device=fed.device)}
        yield evaluate(fed, state), state
    clients, targets = state["clients"], state["targets"]                    # targets: hat F

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3-4: clients train on their own images, and average their predictions by class.
        trained = parallel_map(
            fed, ids, lambda i: train_client(fed, cfg, t, i, clients[i], targets[i]))
        clients = {i: result.client for i, result in trained.items()}

        # Step 5: they send these averages. A bad upload counts as one without any class.
        uploads = {i: result.means for i, result in trained.items()}
        means = received_logits(uploads, torch.arange(C, device=fed.device), attack)  # [M, C, C]
        usable = torch.tensor([is_usable(upload) for upload in means], device=fed.device)    # [M]
        means = means.where(usable[:, None, None], 0.0)

        # Step 6: each client receives the mean over the others.
        targets = others_mean(means)                                         # hat F, [M, C, C]

        state = {"round": t, "clients": clients, "targets": targets}
        yield {**evaluate(fed, state), "bad_uploads": int((~usable).sum()),
               **logits_ledger(len(ids), C, up=C, down=C)}, state


class Trained(NamedTuple):
    """A client after a round: what it keeps, and what it sends."""

    client: dict           # a snapshot
    means: Tensor          # F_i, [C, C]


def train_client(fed, cfg, t, i, client, targets):
    """Step 3-4: client i after training on its own images, and its mean probabilities F_i.

    targets    hat F_i, [C, C]: row l is the target for images of class l, or zeros: there is none
    returns    `Trained`; row l of its means has zeros if the client has drawn no image of class l
    """
    images, labels = fed.private[i]
    model, optimizer = restored(client, fed.client_model(i), cfg.optimizer, cfg.lr,
                                cfg.weight_decay)
    sums = torch.zeros_like(targets)                                             # [C, C]
    counts = torch.zeros_like(targets[:, :1])                                    # [C, 1]
    model.train()
    with random_numbers(fed, "local", t, i) as rng:          # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs, cfg.local_steps):
            logits, y = model(fed.augment(images[rows], rng)), labels[rows]      # [B, C], [B]
            distillation = soft_cross_entropy(logits, targets[y]).mean()
            loss = F.cross_entropy(logits, y) + cfg.gamma * distillation         # departure 1
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            probs = logits.detach().softmax(-1)              # F(b), before the step: departure 1
            is_of_class = F.one_hot(y, fed.num_classes).T.to(probs)              # [C, B]
            sums += is_of_class @ probs
            counts += is_of_class.sum(1, keepdim=True)
    return Trained(snapshot(model, optimizer), means=sums / counts.clamp(min=1))


def soft_cross_entropy(logits, target_probs):
    """phi(F(b), hat F[y]) = - sum_c hat F[y]_c ln F(b)_c: [B, C], [B, C] -> [B].   In step 3

    target_probs    hat F[y] for each image; it gets no gradient. A class of which it
                    is 0 adds 0, also where the logit is -inf
    >>> soft_cross_entropy(torch.tensor([[.5, .5]]).log(), torch.tensor([[.8, .2]]))
    tensor([0.6931])
    """
    log_q = logits.log_softmax(-1)                                               # [B, C]
    log_q = log_q.masked_fill(target_probs == 0, 0)                              # y = 0 adds 0
    return -(target_probs.detach() * log_q).sum(-1)


def others_mean(client_means):
    """For client i and class l the mean of row l over the OTHER clients that drew the class. Step 6

    client_means    [M, C, C]: row l has a client's mean probabilities on class l, or zeros: it has
                    drawn no image of the class in this round
    returns         [M, C, C]; a row of zeros: no other client drew the class
    >>> client_means = torch.tensor([[[.9, .1], [.2, .8]], [[.5, .5], [0., 0.]]])
    >>> others_mean(client_means)[0]    # client 1 drew no image of class 1
    tensor([[0.5000, 0.5000],
            [0.0000, 0.0000]])
    """
    has_class = client_means.any(-1).to(client_means)                            # [M, C]
    is_other = 1 - torch.eye(len(client_means)).to(client_means)                 # [M, M]
    totals = torch.einsum("ij,jlc->ilc", is_other, client_means)                 # [M, C, C]
    counts = is_other @ has_class                                                # [M, C]
    return totals / counts.clamp(min=1)[..., None]                               # departure 2


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def evaluate(fed, state):
    """Test accuracies of the clients."""
    metrics = client_metrics(client_scores(fed, state["clients"]))
    return {"accuracy": metrics.pop("client_accuracy"), **metrics}


# --------------------------------------------------------------------------------------------------
# For the command line

ALGORITHM = Algorithm(
    "fd", run, scores={"accuracy": "clients"}, paper=PAPER, mixed_networks=True, plateau=("lr",),
    evaluate=evaluate, columns=("client_accuracy_min", "client_accuracy_max"))
