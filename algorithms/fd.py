"""FD: a client also learns from the other clients' mean prediction for the label's class.

Jeong, Oh, Kim, Park, Bennis and Kim, "Communication-Efficient On-Device Machine Learning: Federated
Distillation and Augmentation under Non-IID Private Data", arXiv:1811.11479; without its second
half, the augmentation with generated samples.

    python fedkd_minimal.py --algo fd
        runs `Config` on digits of 16x16 pixels: 20 clients with a small CNN hold unequal shares of
        the classes (Dirichlet, alpha 0.5), 300 images each. Less than a minute on two cores.
    python fedkd_minimal.py --algo fd --paper fedgen --dataset mnist
        runs FD in FedGen's comparison: 200 rounds of 20 steps by SGD, with FedGen's CNN for each of
        20 clients (Dirichlet, alpha 0.1), which hold half of the training images.

Clients hold labeled images of their own; there are no public images. Each of M clients keeps a
network, its optimizer, of all its training, and hat F_i. The server has no network.

Algorithm 1; the numbers in brackets are lines of the paper. F(b), which the paper calls a logit
vector, are the probabilities of image b, and phi(q, y) = - sum_c y_c ln q_c.
  1   start with M networks of different random weights
  2   for each round t:
  3       each client i, in parallel, trains on its own images; the loss of image b with label y is
              phi(F(b), one-hot y) + gamma phi(F(b), hat F_i[y])               [5] (departure 1)
              in round 1 there is no hat F_i, and the second term is 0
  4       meanwhile it adds F(b) to the sum of class y and counts it           [6] (departure 1)
  5       for each class l it sends F_i[l] = sum / count, so C rows of C numbers             [7-8]
  6       for each client i and class l the server sends hat F_i[l], the mean of F_j[l] over the
              other clients j                                              [10-15] (departure 2)

  step   who predicts     images    mode    gradient   augmented       loss, how often
  3      each client      its own   train   yes        in each pass    of step 3, local_epochs
  4      each client      its own   train   no         as in step 3    none: it takes step 3's F(b)
  -      all M, after 4   test      eval    no         no              `accuracy`: the mean

A client of which a number is nan, infinite, or 1e30 or more in magnitude counts in step 6 as one
that has drawn no class. It keeps what it trained and receives its hat F_i. An attacker may send
numbers below 0: then hat F_i may have such, and the second term of step 3 has no lower bound.

Departures
  1  Paper: a step on each image of a batch. Here: one on their mean loss; F(b) is from before it.
  2  Paper: the mean over all M - 1 others, of which some have not drawn class l, so that it would
     sum to less than 1. Here: over those who have; without any, hat F_i[l] and its term are 0.
  3  Paper: neither gamma nor an optimizer. Here: 1, and AMSGrad at 0.001, as FedGEMS's DS-FL.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from federation import (Algorithm, Count, Natural, NonNegative, Optimizer, Positive, Settings,
                        count_logit_bytes, drop_bad_uploads, minibatches, parallel_map, resume,
                        score_clients, snapshot)


@dataclass
class Config(Settings):
    rounds: Natural = 10                 # of communication
    local_epochs: Count = 5              # passes of a client over its images in a round
    local_steps: Count | None = None     # if it is a number: so many steps, instead of passes
    batch_size: Count = 64
    lr: Positive = 1e-3                  # constant
    optimizer: Optimizer = "amsgrad"
    weight_decay: NonNegative = 1e-4     # L2 penalty of the optimizer
    gamma: NonNegative = 1.0             # weight of the second term; 0: each client is alone


# The paper's, with 10 clients of 2,000 images of MNIST, where it differs from Config: departure 3.
PAPER = dict(rounds=16, local_epochs=1, local_steps=250)


def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round.

    fed       a `Federation`
    cfg       a `Config`
    state     one that it has yielded, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ALGORITHM.check(fed, cfg, state, attack)
    ids, C = range(len(fed.private)), fed.num_classes                        # M clients
    none = torch.zeros(C, C, device=fed.device)              # rows of who has drawn no class
    if state is None:
        # Step 1: networks of random weights, and no hat F yet.
        state = {"algorithm": "fd", "round": 0,
                 "clients": {i: snapshot(fed.client_model(i, init=i)) for i in ids},
                 "targets": none.repeat(len(ids), 1, 1)}
        yield evaluate(fed, state), state
    clients, targets = state["clients"], state["targets"]    # targets: hat F, [M, C, C]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3-4: each client trains on its own images, and averages its predictions by class.
        trained = parallel_map(
            fed, ids, lambda i: train_client(fed, cfg, t, i, clients[i], targets[i]))
        clients = {i: client for i, (client, _) in trained.items()}

        # Step 5: it sends these averages.
        sent = {i: means for i, (_, means) in trained.items()}
        uploads = attack.poison_rows(sent, torch.arange(C, device=fed.device)) if attack else sent
        uploads = drop_bad_uploads(uploads)                                  # {client: F_i, [C, C]}

        # Step 6: the server sends each client the mean over the others.
        targets = others_mean(torch.stack([uploads.get(i, none) for i in ids]))

        state = {**state, "round": t, "clients": clients, "targets": targets}
        yield measure(fed, state, uploads), state


def train_client(fed, cfg, t, i, client, targets):
    """Step 3-4: (client i after training on its own images, its mean probabilities F_i, [C, C]).

    client     a snapshot
    targets    hat F_i, [C, C]: row l is the target for images of class l, or zeros: there is none
    returns    (its snapshot, F_i), of which row l is zeros if it has drawn no image of class l
    """
    images, labels = fed.private[i]
    model, optimizer = resume(client, fed.client_model(i), cfg.optimizer, cfg.lr, cfg.weight_decay)
    sums = torch.zeros_like(targets)                                             # [C, C]
    counts = torch.zeros_like(targets[:, :1])                                    # [C, 1]
    model.train()
    with fed.random_numbers("local", t, i) as rng:          # order, augmentation, dropout
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
    return snapshot(model, optimizer), sums / counts.clamp(min=1)


def soft_cross_entropy(logits, target_probs):
    """phi(F(b), hat F[y]) = - sum_c hat F[y]_c ln F(b)_c: [B, C], [B, C] -> [B].   In step 3

    logits, target_probs    of F(b), and hat F[y] of each image; the target gets no gradient
    >>> soft_cross_entropy(torch.tensor([[.5, .5]]).log(), torch.tensor([[.8, .2]]))
    tensor([0.6931])
    """
    log_q = logits.log_softmax(-1)                                               # [B, C]
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

def measure(fed, state, uploads):
    """The metrics of a round."""
    M, C = len(fed.private), fed.num_classes
    return {**evaluate(fed, state), "bad_uploads": M - len(uploads),
            **count_logit_bytes(M, C, up=C, down=C)}


def evaluate(fed, state):
    """Test accuracies of all clients: `score_clients`."""
    metrics = score_clients(fed, state["clients"])
    return {"accuracy": metrics.pop("client_accuracy"), **metrics}


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

ALGORITHM = Algorithm(
    "fd", run, Config, mixed_networks=True, program=dict(
        scores={"accuracy": ("clients", "test")},
        more_scores={"client_accuracy_own": ("clients", "own classes")},
        paper=PAPER, plateau=("lr",), evaluate=evaluate,
        columns=("client_accuracy_min", "client_accuracy_max")))
