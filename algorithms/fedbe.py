"""FedBE: an ensemble of the average model, the clients' models, and models drawn around them.

Chen and Chao, "FedBE: Making Bayesian Model Ensemble Applicable to Federated Learning", ICLR 2021,
arXiv:2009.01974. Its text was not at hand: this file follows the formulas that later papers quote.

    python fedkd_minimal.py --algo fedbe
        runs `Config` on digits of 16x16 pixels: 20 clients with a small CNN hold 240 images each
        (Dirichlet, alpha 0.5), and 1,200 are kept for --distill. Twenty seconds on two cores.
    python fedkd_minimal.py --algo fedbe --paper fedsdd --dataset cifar10
        runs `PAPER`, the values of FedSDD (arXiv:2312.17029v1, Table 5), with a ResNet-20: alpha is
        0.1, and images are augmented, that is, cropped and flipped at random.

Clients hold labeled images of their own, and keep nothing between rounds. The server holds the
global model and, for --distill alone, public images without labels.

The algorithm; the numbers are ours. p_i is client i's share of the active clients' images:
  1   start with a global model of random weights
  2   for each round t:
  3       draw the active clients, a share of all
  4       for each active client i, in parallel:
  5           copy the global model
  6           train it on the client's own images, by cross-entropy, and send its weights, w_i
  7       w = sum_i p_i w_i
  8       draw `samples` models of the --posterior, either
              gaussian     N(w, diag(sum_i p_i (w_i - w)²))
              dirichlet    sum_i g_i p_i w_i / sum_i g_i p_i with g ~ Dir(concentration, ...)
  9       ensemble = w, all w_i, and the models drawn
 10       global model = w
 11       with --distill: m = the mean of the ensemble's probabilities, on the public images
 12           teacher = m² / the sum of m² over the classes
 13           global model = w, trained on the public images by KL(teacher || softmax(logits))

  step  who predicts             images   mode   gradient  augmented      loss, how often
  6     an active client         its own  train  yes       in each pass   CE, local_epochs
  11    the ensemble             public   eval   no        once a round   none, once
  13    the global model         public   train  yes       as in step 11  KL, distill_steps
  -     the global model         test     eval   no        no             `accuracy`, at the end
  -     ensemble's mean logits   test     eval   no        no             `ensemble_accuracy`

A client with a weight that is nan, infinite, or 1e30 or more in magnitude is left out. If all are,
the global model stays, and is the ensemble. If step 13 makes such a weight, the global model is w.

Departures; 3 and more are in docs/DEPARTURES.md
  1  Public code, gaussian: draws normalized directions of change. Here: step 8, entry by entry.
  2  Public code, dirichlet: the weights are g_i. Here: g_i p_i.
"""
import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from federation import (Algorithm, Count, Natural, Positive, Settings, Share, accuracy,
                        average_weights, count_weight_bytes, disagreement, drop_bad_uploads,
                        is_usable, minibatches, on_server, parallel_map, predict_models,
                        score_global)


@dataclass
class Config(Settings):
    rounds: Natural = 20                 # of communication
    participation: Share = 0.4           # share of the clients that are active in a round
    local_epochs: Count = 5              # passes of a client over its images in a round
    local_steps: Count | None = None     # if it is a number: so many steps, instead of passes
    batch_size: Count = 32               # of a client
    lr: Positive = 0.1                   # of a client, constant; SGD without momentum
    posterior: Literal["gaussian", "dirichlet"] = "gaussian"     # where models are drawn from
    samples: Natural = 10                # models drawn in a round
    concentration: Positive = 1.0        # of the Dirichlet distribution, for each client
    distill: bool = False                # the global model trains on the ensemble's predictions
    distill_steps: Count = 100           # SGD steps of the server in a round, with --distill
    server_batch_size: Count = 128       # of these steps
    server_lr: Positive = 0.0125         # of these steps, constant; SGD without momentum


# FedSDD, section 4.1, where it differs from Config; the ensemble of its Table 5 is Config's.
PAPER = dict(rounds=100, local_epochs=40, batch_size=64, lr=0.8, distill_steps=5000,
             server_batch_size=256, server_lr=0.1)


def run(fed, cfg, state=None):
    """Yields (metrics, state) after round 0, the untrained model, and after every round.

    fed       a `Federation`, for `distill` with public images; all clients have one architecture
    cfg       a `Config`
    state     one that it has yielded, to go on from; None: from the start
    """
    ALGORITHM.check(fed, cfg, state)
    if state is None:
        # Step 1: a global model of random weights.
        state = {"algorithm": "fedbe", "round": 0,
                 "server": {"model": fed.global_model().state_dict()}}
        yield score_global(fed, state), state
    weights = state["server"]["model"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3-6: each active client trains the global model on its own images.
        active = fed.sample_clients(cfg.participation, t)
        trained = parallel_map(fed, active, lambda i: train_client(fed, cfg, t, i, weights))
        uploads = drop_bad_uploads(trained)                                  # {client: weights}

        # Step 7-10: the mean of their models, models drawn around it, and the ensemble of all.
        ensemble = [weights]                                                 # if nobody is left
        if uploads:
            models = [*uploads.values()]
            sizes = [len(fed.private[i].labels) for i in uploads]
            weights = average_weights(models, sizes)
            ensemble = [weights, *models, *draw_models(fed, cfg, t, models, sizes)]

        # Step 11-13: the mean model trains on what the ensemble predicts.
        if cfg.distill and uploads:
            images = fed.augment_public(t)                                       # [N, c, h, w]
            teacher = sharpened_teacher(predict_models(fed, ensemble, images))   # [N, C]
            distilled = train_server(fed, cfg, t, weights, images, teacher)
            weights = distilled if is_usable(distilled) else weights

        state = {**state, "round": t, "server": {"model": weights}}
        yield measure(fed, cfg, state, active, uploads, ensemble), state


def train_client(fed, cfg, t, i, weights):
    """Client i starts from the global weights; returns new ones, trained on its own images."""
    images, labels = fed.private[i]
    model = fed.client_model(i)
    model.load_state_dict(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr)
    model.train()
    with fed.random_numbers("local", t, i) as rng:         # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs, cfg.local_steps):
            logits = model(fed.augment(images[rows], rng))                       # [B, C]
            loss = F.cross_entropy(logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.state_dict()


def draw_models(fed, cfg, t, models, sizes):
    """`samples` models of round t, drawn from the posterior of these models.   Step 8"""
    rng = fed.rng("posterior", t)
    if cfg.posterior == "gaussian":
        return [gaussian_sample(models, sizes, rng) for _ in range(cfg.samples)]
    return [dirichlet_sample(models, sizes, rng, cfg.concentration) for _ in range(cfg.samples)]


BUFFERS = ("running_mean", "running_var", "num_batches_tracked")     # BatchNorm's statistics


def gaussian_sample(state_dicts, weights, rng):
    """A model drawn from N(w, diag(sum_i p_i (w_i - w)²)), entry by entry: a state_dict.

    state_dicts, weights   M models of one network and their weights p_i, normalized here
    rng                    a numpy Generator
    returns                BatchNorm's statistics and counters are the averaged ones: a variance
                           that is drawn could be negative
    """
    average = average_weights(state_dicts, weights)
    sample = dict(average)
    for name, mean in average.items():
        if mean.is_floating_point() and not name.endswith(BUFFERS):
            squares = [(state_dict[name].double() - mean).square() for state_dict in state_dicts]
            variance = sum(p * square for p, square in zip(weights, squares)) / sum(weights)
            deviation = variance.sqrt().to(mean)       # squares of float32 overflow; departure 1
            noise = rng.standard_normal(tuple(mean.shape), dtype="float32")
            sample[name] = mean + deviation * torch.from_numpy(noise).to(mean)
    return sample


def dirichlet_sample(state_dicts, weights, rng, concentration=1.0):
    """A random average sum_i g_i p_i w_i / sum_i g_i p_i: a state_dict.

    g ~ Dir(concentration, ..., concentration)
    state_dicts, weights   M models of one network and their weights p_i
    rng                    a numpy Generator
    returns                BatchNorm's statistics and counters are those of the average by p alone
    limits                 a large concentration gives the average, a small one gives one model
    """
    g = rng.dirichlet([concentration] * len(weights))                        # [M]
    sample = average_weights(state_dicts, [g_i * p for g_i, p in zip(g, weights)])   # departure 2
    average = average_weights(state_dicts, weights)
    return {name: average[name] if name.endswith(BUFFERS) else drawn
            for name, drawn in sample.items()}


def sharpened_teacher(member_logits):
    """Logits whose softmax is the squared, normalized mean of the members' probabilities.

    member_logits    [E, N, C]
    returns          [N, C]
    >>> member_logits = torch.tensor([[[.8, .2]], [[.4, .6]]]).log()
    >>> sharpened_teacher(member_logits).softmax(-1)             # means .6, .4; squares .36, .16
    tensor([[0.6923, 0.3077]])
    """
    log_m = member_logits.log_softmax(-1).logsumexp(0) - math.log(len(member_logits))    # step 11
    return 2 * log_m                                                                     # step 12


@on_server
def train_server(fed, cfg, t, weights, images, teacher):
    """The weights of the global model after SGD on the public images, which starts from `weights`.

    weights    w
    images     the public ones of this round [N, c, h, w]
    teacher    its logits of them [N, C]
    """
    model = fed.global_model()
    model.load_state_dict(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.server_lr)
    model.train()
    with fed.random_numbers("distil", t) as rng:
        for rows in minibatches(images, cfg.server_batch_size, rng, steps=cfg.distill_steps):
            student = model(images[rows])                                        # [B, C]
            loss = kl_divergence(student, teacher[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.state_dict()


def kl_divergence(student, teacher):
    """KL(teacher || student), the mean over the batch: a scalar.   Step 13

    student, teacher    finite logits [B, C]; the teacher's get no gradient
    """
    log_p, log_q = teacher.detach().log_softmax(-1), student.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean()


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def measure(fed, cfg, state, active, uploads, ensemble):
    """The metrics of a round."""
    logits = predict_models(fed, ensemble, fed.test.images)              # [E, test images, C]
    distills = cfg.distill and uploads
    return {**score_global(fed, state),
            "ensemble_accuracy": accuracy(logits.mean(0), fed.test.labels),
            "disagreement": disagreement(logits),
            "teacher_forwards": len(ensemble) * len(fed.public.images) if distills else 0,
            "bad_uploads": len(active) - len(uploads),
            **count_weight_bytes([(fed.global_model(), len(active))])}


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

ALGORITHM = Algorithm(
    "fedbe", run, Config, public="unlabeled",
    needs_for=lambda cfg: {"public"} if cfg.distill else set(), program=dict(
        paper=PAPER,
        scores={"accuracy": ("server", "test"), "ensemble_accuracy": ("ensemble", "test")},
        columns=("disagreement",), shares=("disagreement",)))
