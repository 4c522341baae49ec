"""FedProx: FedAvg with a penalty on the distance between a client's model and the global model.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, arXiv:1812.06127. Here it
is a baseline of FedSDD (Kwan and Song, arXiv:2312.17029v1), whose Eq. (1) and (2) are FedAvg's.

    python fedkd_minimal.py --algo fedprox
        runs `Config` on digits of 16x16 pixels: 20 clients with a small CNN hold unequal shares of
        the classes (Dirichlet, alpha 0.5), 300 images each. It takes 20 seconds on two cores.
    python fedkd_minimal.py --algo fedprox --paper fedsdd --dataset cifar10
        runs `PAPER`, FedSDD's values, with its ResNet-20: 20 clients, alpha 0.1, 2,500 images each,
        which are cropped and flipped.

Clients hold labeled images of their own; between rounds they keep nothing. There are no public
images. An active client is sent the global model, and sends back its weights and its number of
images. Training: train mode, images cropped and flipped with --augment, the mean loss of a batch.
Prediction: eval mode, no gradient, images as they are.

The algorithm; the numbers are ours, and only step 6 differs from fedavg.py:
  1   start with a global model of random weights
  2   for each round t:
  3       draw the active clients, a share of all
  4       for each active client, in parallel:
  5           copy the global model, w^t                                         FedSDD Eq. (1)
  6           train the copy, w, on the client's own images by
                  cross-entropy + (mu / 2) ||w - w^t||²                                 Eq. (2)
  7       global model = the mean of the trained models, weighted by
                         numbers of images                                       FedSDD Eq. (2)

Accuracy is the global model's on the test images, after step 7.

Bad uploads: a client of which a weight is nan, infinite, or 1e30 or more in magnitude is left out
of the mean. If nobody is left, the global model stays.

Departures
  1  Paper, Alg. 2: client k is drawn with probability p_k, its share of all images, and step 7 is
     the plain mean. Here, as in FedAvg: clients are drawn uniformly, and weighted.
"""
from dataclasses import dataclass

import torch.nn.functional as F

from algorithms import Algorithm, configured
from federation import (OPTIMIZERS, Optimizer, accuracy, active_in, average_weights, loaded,
                        minibatches, parallel_map, predict_models, random_numbers, received,
                        weights_ledger)

# active_in         the clients of a round, drawn at random without replacement
# average_weights   the weighted mean of every entry of models, BatchNorm's statistics too
# loaded            a network, after a copy of some weights into it
# minibatches       row numbers of batches, reshuffled in each pass; the last one may be smaller
# parallel_map      {i: fn(i) for i in ids}, by several processes
# predict_models    logits [models, images, C], in eval mode, without gradient and augmentation
# random_numbers    a generator for what is named; it also seeds torch, for dropout
# received          {client: weights}: after an attack, and without the bad uploads
# weights_ledger    bytes that are sent up and down


@dataclass
class Config:
    rounds: int = 20                     # of communication
    participation: float = 0.4           # share of the clients that are active in a round
    local_epochs: int = 5                # passes of a client over its images in a round
    local_steps: int | None = None       # if it is a number: so many steps, instead of passes
    batch_size: int = 32                 # of a client
    lr: float = 0.1                      # of a client, constant
    mu: float = 0.001                    # weight of the penalty; 0 is FedAvg, bit for bit
    optimizer: Optimizer = "sgd"         # of a client, new in every round; sgd has no momentum
    weight_decay: float = 0.0            # L2 penalty of this optimizer


# FedSDD, section 4.1.
# Clients, partition, networks, augmentation: experiment/presets.py.
PAPER = dict(rounds=100, participation=0.4, local_epochs=40, batch_size=64, lr=0.8, mu=0.001,
             optimizer="sgd", weight_decay=0.0)


@configured(Config)
def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained model, and after every round.

    fed       fed.private[i]: client i's images [n, c, h, w] and labels [n]; fed.test likewise;
              fed.global_model(), and fed.client_model(i) for client i: new networks, all of one
              architecture; fed.augment: random crops and flips with --augment, else the images
              unchanged
    state     of an earlier round, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    if state is None:
        # Step 1: a global model of random weights.
        state = {"round": 0, "server": {"model": fed.global_model().state_dict()}}
        yield evaluate(fed, state), state
    weights = state["server"]["model"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3-6: each active client trains the global model on its own images.
        active = active_in(fed, cfg.participation, t)                        # departure 1
        trained = parallel_map(fed, active, lambda i: train_client(fed, cfg, t, i, weights))
        uploads = received(fed, trained, attack)                             # {client: weights}

        # Step 7: the mean of their models, by numbers of images.              FedSDD Eq. (2)
        if uploads:
            sizes = [len(fed.private[i].labels) for i in uploads]            # departure 1
            weights = average_weights([*uploads.values()], sizes)

        state = {"round": t, "server": {"model": weights}}
        yield {**evaluate(fed, state), "bad_uploads": len(active) - len(uploads),
               **weights_ledger([(fed.global_model(), len(active))])}, state


def train_client(fed, cfg, t, i, weights):
    """Client i starts from the global weights; returns them after training on its own images."""
    images, labels = fed.private[i]
    model = loaded(fed.client_model(i), weights)                                 # FedSDD Eq. (1)
    optimizer = OPTIMIZERS[cfg.optimizer](model.parameters(), lr=cfg.lr,
                                          weight_decay=cfg.weight_decay)
    model.train()
    with random_numbers(fed, "local", t, i) as rng:         # order, augmentation, dropout
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

    model           the client's network; only its parameters count, not its buffers
    global_state    w^t, a state_dict that holds at least these parameters; it gets no gradient
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

def evaluate(fed, state):
    """Test accuracy of the global model."""
    logits = predict_models(fed, [state["server"]["model"]], fed.test.images)[0]     # [N, C]
    return {"accuracy": accuracy(logits, fed.test.labels)}


# --------------------------------------------------------------------------------------------------
# For the command line

ALGORITHM = Algorithm("fedprox", run, scores={"accuracy": "server"}, paper=PAPER)
