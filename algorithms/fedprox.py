"""FedProx: FedAvg with a penalty on the distance between a client's model and the global model.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, arXiv:1812.06127. Here it
is a baseline of FedSDD (Kwan and Song, arXiv:2312.17029v1), whose Eq. (1) and (2) are FedAvg's.

    python fedkd_minimal.py --algo fedprox
        runs `Config` on digits of 16x16 pixels: 20 clients with a small CNN hold unequal shares of
        the classes (Dirichlet, alpha 0.5), 300 images each. Twenty seconds on two cores.
    python fedkd_minimal.py --algo fedprox --paper fedsdd --dataset cifar10
        runs `PAPER`, FedSDD's values, with its ResNet-20: alpha is 0.1, and images are augmented,
        that is, cropped and flipped at random.

Clients hold labeled images of their own, and keep nothing between rounds. An active client is sent
the global model, and sends back its weights and its number of images.

The algorithm; the numbers are ours, and only step 6 differs from fedavg.py:
  1   start with a global model of random weights
  2   for each round t:
  3       draw the active clients, a share of all
  4       for each active client, in parallel:
  5           copy the global model, w^t                                         FedSDD Eq. (1)
  6           train the copy, w, on the client's own images by
                  cross-entropy + (mu / 2) ||w - w^t||²                                 Eq. (2)
  7       global model = the mean of the trained models, by numbers of images    FedSDD Eq. (2)

With --mu 0 it is FedAvg, but that --weight-decay also shrinks layers that the network never uses.

  step   who predicts       images    mode    gradient   augmented       loss, how often
  6      an active client   its own   train   yes        in each pass    CE + penalty, local_epochs
  -      the global model   test      eval    no         no              `accuracy`, after step 7

A client of which a weight is nan, infinite, or 1e30 or more in magnitude is left out of the mean.
If nobody is left, the global model stays.

Departures
  1  Paper, Alg. 2: client k is drawn with probability p_k, its share of all images, and step 7 is
     the plain mean. Here, as in FedAvg: clients are drawn uniformly, and weighted.
  2  Paper: each client stops at an inexactness gamma_k of its own. Here: all make as many passes.
"""
from dataclasses import dataclass

import torch.nn.functional as F

from federation import (OPTIMIZERS, Algorithm, Count, Natural, NonNegative, Optimizer, Positive,
                        Settings, Share, average_weights, count_weight_bytes, drop_bad_uploads,
                        minibatches, parallel_map, score_global)


@dataclass
class Config(Settings):
    rounds: Natural = 20                 # of communication
    participation: Share = 0.4           # share of the clients that are active in a round
    local_epochs: Count = 5              # passes of a client over its images in a round
    local_steps: Count | None = None     # if it is a number: so many steps, instead of passes
    batch_size: Count = 32               # of a client
    lr: Positive = 0.1                   # of a client, constant
    mu: NonNegative = 0.001              # weight of the penalty; 0 is FedAvg
    optimizer: Optimizer = "sgd"         # of a client, new in every round; sgd has no momentum
    weight_decay: NonNegative = 0.0      # L2 penalty of this optimizer


# FedSDD, section 4.1, where it differs from Config.
PAPER = dict(rounds=100, local_epochs=40, batch_size=64, lr=0.8)


def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained model, and after every round.

    fed       a `Federation`; all clients have one architecture
    cfg       a `Config`
    state     one that it has yielded, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ALGORITHM.check(fed, cfg, state, attack)
    if state is None:
        # Step 1: a global model of random weights.
        state = {"algorithm": "fedprox", "round": 0,
                 "server": {"model": fed.global_model().state_dict()}}
        yield score_global(fed, state), state
    weights = state["server"]["model"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3-6: each active client trains the global model on its own images.
        active = fed.sample_clients(cfg.participation, t)                        # departure 1
        trained = parallel_map(fed, active, lambda i: train_client(fed, cfg, t, i, weights))
        uploads = attack.poison_weights(trained) if attack else trained
        uploads = drop_bad_uploads(uploads)                                  # {client: weights}

        # Step 7: the mean of their models, by numbers of images.              FedSDD Eq. (2)
        if uploads:
            sizes = [len(fed.private[i].labels) for i in uploads]            # departure 1
            weights = average_weights([*uploads.values()], sizes)

        state = {**state, "round": t, "server": {"model": weights}}
        yield measure(fed, state, active, uploads), state


def train_client(fed, cfg, t, i, weights):
    """Client i starts from the global weights; returns new ones, trained on its own images."""
    images, labels = fed.private[i]
    model = fed.client_model(i)
    model.load_state_dict(weights)                                 # FedSDD Eq. (1)
    optimizer = OPTIMIZERS[cfg.optimizer](model.parameters(), lr=cfg.lr,
                                          weight_decay=cfg.weight_decay)
    model.train()
    with fed.random_numbers("local", t, i) as rng:         # order, augmentation, dropout
        # Departure 2: all clients make as many passes.
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs, cfg.local_steps):
            logits = model(fed.augment(images[rows], rng))                       # [B, C]
            loss = F.cross_entropy(logits, labels[rows])
            loss = loss + proximal_term(model, weights, cfg.mu)                         # Eq. (2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.state_dict()


def proximal_term(model, global_state, mu):
    """(mu / 2) ||w - w^t||²: the penalty on the distance to w^t, a scalar.   Eq. (2)

    model           the client's network; only its parameters count, not BatchNorm's statistics
    global_state    w^t, a state_dict; it gets no gradient
    returns         a scalar, whose gradient is mu (w - w^t)
    >>> model = torch.nn.Linear(1, 1, bias=False); _ = model.weight.data.fill_(3.0)
    >>> global_state = {"weight": torch.tensor([[1.0]])}
    >>> proximal_term(model, global_state, mu=0.5).item()                    # 0.5 / 2 * (3 - 1)²
    1.0
    """
    squared_distance = sum((w - global_state[name].detach()).square().sum()
                           for name, w in model.named_parameters())
    return mu / 2 * squared_distance


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def measure(fed, state, active, uploads):
    """The metrics of a round."""
    return {**score_global(fed, state), "bad_uploads": len(active) - len(uploads),
            **count_weight_bytes([(fed.global_model(), len(active))])}


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

ALGORITHM = Algorithm("fedprox", run, Config,
                      program=dict(paper=PAPER, scores={"accuracy": ("server", "test")}))
