"""FedAvg: active clients train the global model on their own images; the server averages them.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS
2017, arXiv:1602.05629. Here it is the baseline of FedSDD (Kwan and Song, arXiv:2312.17029v1), whose
Eq. (1) and (2) are FedAvg's.

    python fedkd_minimal.py --algo fedavg
        runs `Config` on digits of 16x16 pixels: 20 clients with a small CNN hold unequal shares of
        the classes (Dirichlet, alpha 0.5), 300 images each. Ten seconds on two cores.
    python fedkd_minimal.py --algo fedavg --paper fedsdd --dataset cifar10
        runs `PAPER`, FedSDD's values, with its ResNet-20: alpha is 0.1, and images are augmented,
        that is, cropped and flipped at random.

Clients hold labeled images of their own, and keep nothing between rounds. An active client is sent
the global model, and sends back its weights and its number of images.

The algorithm; the numbers are ours:
  1   start with a global model of random weights
  2   for each round t:
  3       draw the active clients, a share of all
  4       for each active client, in parallel:
  5           copy the global model                                              FedSDD Eq. (1)
  6           train it on the client's own images, by cross-entropy
  7       global model = the mean of the trained models, by numbers of images    FedSDD Eq. (2)

  step   who predicts       images    mode    gradient   augmented       loss, how often
  6      an active client   its own   train   yes        in each pass    CE, local_epochs
  -      the global model   test      eval    no         no              `accuracy`, after step 7
  -      averaged weights   test      eval    no         no              `averaged_accuracy`

The averaged weights are the mean of the last `average_last` global models, as FedSDD's ensemble has
models of several rounds. No step uses them.

A client of which a weight is nan, infinite, or 1e30 or more in magnitude is left out of the mean.
If nobody is left, the global model stays.
"""
from dataclasses import dataclass

import torch.nn.functional as F

from federation import (OPTIMIZERS, Algorithm, Count, Natural, NonNegative, Optimizer, Positive,
                        Settings, Share, accuracy, average_weights, count_weight_bytes,
                        drop_bad_uploads, minibatches, parallel_map, predict_models, score_global)


@dataclass
class Config(Settings):
    rounds: Natural = 20                 # of communication
    participation: Share = 0.4           # share of the clients that are active in a round
    local_epochs: Count = 5              # passes of a client over its images in a round
    local_steps: Count | None = None     # if it is a number: so many steps, instead of passes
    batch_size: Count = 32               # of a client
    lr: Positive = 0.1                   # of a client, constant
    optimizer: Optimizer = "sgd"         # of a client, new in every round; sgd has no momentum
    weight_decay: NonNegative = 0.0      # L2 penalty of this optimizer
    average_last: Count | None = None    # rounds of `averaged_accuracy`; None: it is not measured


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
        state = {"algorithm": "fedavg", "round": 0,
                 "server": {"model": fed.global_model().state_dict()}}
        yield score_global(fed, state), state
    weights = state["server"]["model"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3-6: each active client trains the global model on its own images.
        active = fed.sample_clients(cfg.participation, t)
        trained = parallel_map(fed, active, lambda i: train_client(fed, cfg, t, i, weights))
        uploads = attack.poison_weights(trained) if attack else trained
        uploads = drop_bad_uploads(uploads)                                  # {client: weights}

        # Step 7: the mean of their models, by numbers of images.              FedSDD Eq. (2)
        if uploads:
            sizes = [len(fed.private[i].labels) for i in uploads]
            weights = average_weights([*uploads.values()], sizes)

        state = {**state, "round": t, "server": {"model": weights}}
        if cfg.average_last is not None:                         # a metric; no step uses it
            state["last_models"] = [*state.get("last_models", []), weights][-cfg.average_last:]
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
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs, cfg.local_steps):
            logits = model(fed.augment(images[rows], rng))                       # [B, C]
            loss = F.cross_entropy(logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.state_dict()


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def measure(fed, state, active, uploads):
    """The metrics of a round."""
    return {**evaluate(fed, state), "bad_uploads": len(active) - len(uploads),
            **count_weight_bytes([(fed.global_model(), len(active))])}


def evaluate(fed, state):
    """Test accuracy of the global model and, with average_last, of the averaged weights."""
    metrics = score_global(fed, state)
    if "last_models" in state:
        logits = predict_models(fed, [averaged(state)], fed.test.images)[0]      # [N, C]
        metrics["averaged_accuracy"] = accuracy(logits, fed.test.labels)
    return metrics


def averaged(state):
    """The mean of the last `average_last` global models, or of as many as there are."""
    return average_weights(state["last_models"], [1] * len(state["last_models"]))


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

def models(state, client_network, server_network):
    """{name: [(network, weights)]} of the trained models."""
    found = {"server": state["server"]["model"]}
    found |= {"averaged": averaged(state)} if "last_models" in state else {}
    return {name: [(client_network(0), weights)] for name, weights in found.items()}


ALGORITHM = Algorithm(
    "fedavg", run, Config, program=dict(
        paper=PAPER, scores={"accuracy": ("server", "test")}, models=models, plateau=("lr",),
        more_scores={"averaged_accuracy": ("averaged weights", "test")}, evaluate=evaluate))
