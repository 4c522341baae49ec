"""FedBE: an ensemble of the average model, the clients' models, and models drawn around them.

Chen and Chao, "FedBE: Making Bayesian Model Ensemble Applicable to Federated Learning", ICLR 2021,
arXiv:2009.01974. Its text was not at hand: this file follows the formulas that later papers quote,
and says where the authors' public code differs. Without --distill the ensemble only predicts, as
where FedSDD compares itself with it (Kwan and Song, arXiv:2312.17029v1, Table 5).

    python fedkd_minimal.py --algo fedbe
        runs `Config` on digits of 16x16 pixels: 20 clients with a small CNN hold unequal shares of
        the classes (Dirichlet, alpha 0.5), 240 images each. It takes twenty seconds on two cores;
        with --distill, on 1,200 public images, half a minute.
    python fedkd_minimal.py --algo fedbe --paper fedsdd --dataset cifar10
        runs `PAPER`, FedSDD's values, with its ResNet-20: 20 clients, alpha 0.1, 2,500 images each,
        which are cropped and flipped. With --distill CIFAR-100's training images are public.

Clients hold labeled images of their own; between rounds they keep nothing. With --distill the
server holds N public images without labels. An active client is sent the global model, and sends
back its weights and its number of images; logits never travel. Training: train mode, images cropped
and flipped with --augment, the mean loss of a batch. Prediction: eval mode, no gradient, images as
they are, but for public ones: with --augment each is cropped and flipped once in a round, for all
who predict or learn it.

The algorithm; the numbers are ours. p_i is client i's share of the active clients' images:
  1   start with a global model of random weights
  2   for each round t:
  3       draw the active clients, a share of all
  4       for each active client i, in parallel:
  5           copy the global model
  6           train it on the client's own images, by cross-entropy: w_i
  7       w = sum_i p_i w_i
  8       draw `samples` models of the --posterior, either
              gaussian     N(w, diag(sum_i p_i (w_i - w)²))
              dirichlet    sum_i g_i p_i w_i / sum_i g_i p_i with g ~ Dir(concentration, ...)
  9       ensemble = w, all w_i, and the models drawn
 10       global model = w
 11       with --distill: m = the mean of the ensemble's probabilities, on the public images
 12           teacher = m² / the sum of m² over the classes
 13           global model = w, trained on the public images by KL(teacher || softmax(logits))

The power in step 12 is 1 / temp of the public code, with its temp of 0.5.

Accuracy is the global model's on the test images, at the end of the round; `ensemble_accuracy` is
that of the ensemble of step 9, by its mean logits.

Bad uploads: a client of which a weight is nan, infinite, or 1e30 or more in magnitude is left out
of the round. If nobody is left, the global model stays, and is the ensemble; nothing is drawn and
nothing distilled.

Departures
  1  Public code, gaussian: draws directions of change. Of each tensor, with v being that of the
     global model in step 5, it draws around the plain mean of the (w_i - v) / |w_i - v|, with 0.1
     of their standard deviation; this, times the mean of the |w_i - v|, is added to v. Here: line
     8, entry by entry.
  2  Public code, dirichlet: the weights are g_i. Here: g_i p_i.
  3  Public code: BatchNorm's running statistics are drawn, too. Here: they are those of w, because
     a variance that is drawn can be negative.
  4  Public code: the ensemble predicts by its mean probabilities. Here: by its mean logits, as
     FedSDD's does.
  5  Public code: the KL is averaged over the classes, too. Here: it is their sum.
  6  Public code: 20 epochs of SGD at 1e-3, with momentum 0.9 and weight decay 1e-5; the global
     model becomes the mean of the weights along the path (SWA). Here: `distill_steps` of plain SGD
     at `server_lr`, and the last weights.
"""
import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from algorithms import Algorithm, configured
from federation import (accuracy, active_in, average_weights, disagreement, loaded, minibatches,
                        on_server, parallel_map, predict_models, public_view, random_numbers,
                        received, stream, weights_ledger)

# active_in         the clients of a round, drawn at random without replacement
# average_weights   the weighted mean of every entry of models, BatchNorm's statistics too; the
#                   weights are normalized
# disagreement      the share of images of which two models predict different classes, the mean
#                   over all pairs
# loaded            a network, after a copy of some weights into it
# minibatches       row numbers of batches, reshuffled in each pass; the last one may be smaller
# on_server         one process computes the function, and sends the result to all
# parallel_map      {i: fn(i) for i in ids}, by several processes
# predict_models    logits [models, images, C], in eval mode, without gradient and augmentation
# public_view       the public samples of a round; with --augment each image is cropped and
#                   flipped once, for all who predict or learn it
# random_numbers    a generator for what is named; it also seeds torch, for dropout
# received          {client: weights}, without the bad uploads
# stream            a generator for what is named
# weights_ledger    bytes that are sent up and down


@dataclass
class Config:
    rounds: int = 20                     # of communication
    participation: float = 0.4           # share of the clients that are active in a round
    local_epochs: int = 5                # passes of a client over its images in a round
    local_steps: int | None = None       # if it is a number: so many steps, instead of passes
    batch_size: int = 32                 # of a client
    lr: float = 0.1                      # of a client, constant; plain SGD, new in every round
    posterior: Literal["gaussian", "dirichlet"] = "gaussian"     # where models are drawn from
    samples: int = 10                    # models drawn in a round
    concentration: float = 1.0           # of the Dirichlet distribution, for each client
    distill: bool = False                # the global model trains on the ensemble's predictions
    distill_steps: int = 100             # SGD steps of the server in a round, with --distill
    server_batch_size: int = 128         # of these steps
    server_lr: float = 0.0125            # of these steps, constant


# FedSDD, section 4.1, and Table 5 for the ensemble.
# Clients, partition, networks, augmentation: experiment/presets.py.
PAPER = dict(rounds=100, participation=0.4, local_epochs=40, batch_size=64, lr=0.8,
             posterior="gaussian", samples=10, concentration=1.0, distill=False,
             distill_steps=5000, server_batch_size=256, server_lr=0.1)


@configured(Config)
def run(fed, cfg, state=None):
    """Yields (metrics, state) after round 0, the untrained model, and after every round.

    fed       fed.private[i]: client i's images [n, c, h, w] and labels [n]; fed.test likewise;
              fed.public.images [N, c, h, w]; fed.global_model(), and fed.client_model(i) for client
              i: new networks, all of one architecture; fed.augment: with --augment random crops and
              flips, otherwise nothing
    state     of an earlier round, to go on from; None: from the start
    """
    if state is None:
        # Step 1: a global model of random weights.
        state = {"round": 0, "server": {"model": fed.global_model().state_dict()}}
        yield evaluate(fed, state), state
    weights = state["server"]["model"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3-6: each active client trains the global model on its own images.
        active = active_in(fed, cfg.participation, t)
        trained = parallel_map(fed, active, lambda i: train_client(fed, cfg, t, i, weights))
        uploads = received(fed, trained)                                     # {client: weights}

        # Step 7-10: their mean, models that are drawn around it, and the ensemble of all.
        ensemble = [weights]                                                 # if nobody is left
        if uploads:
            models = [*uploads.values()]
            sizes = [len(fed.private[i].labels) for i in uploads]
            weights = average_weights(models, sizes)
            ensemble = [weights, *models, *draw_models(fed, cfg, t, models, sizes)]

        # Step 11-13: the mean model trains on what the ensemble predicts.
        if cfg.distill and uploads:
            images = public_view(fed, t).images                              # [N, c, h, w]
            teacher = sharpened_teacher(predict_models(fed, ensemble, images))   # [N, C]
            weights = train_server(fed, cfg, t, weights, images, teacher)

        state = {"round": t, "server": {"model": weights}}
        yield {**evaluate(fed, state), **measure(fed, cfg, active, uploads, ensemble)}, state


def train_client(fed, cfg, t, i, weights):
    """Client i starts from the global weights; returns them after SGD on its own images."""
    images, labels = fed.private[i]
    model = loaded(fed.client_model(i), weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr)
    model.train()
    with random_numbers(fed, "local", t, i) as rng:         # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs, cfg.local_steps):
            logits = model(fed.augment(images[rows], rng))                       # [B, C]
            loss = F.cross_entropy(logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.state_dict()


def draw_models(fed, cfg, t, models, sizes):
    """`samples` models of round t, drawn from the posterior of these models.   Step 8"""
    rng = stream(fed.seed, "posterior", t)
    if cfg.posterior == "gaussian":
        return [gaussian_sample(models, sizes, rng) for _ in range(cfg.samples)]
    return [dirichlet_sample(models, sizes, rng, cfg.concentration) for _ in range(cfg.samples)]


BUFFERS = ("running_mean", "running_var", "num_batches_tracked")     # BatchNorm's statistics


def gaussian_sample(state_dicts, weights, rng):
    """A model drawn from N(w, diag(sum_i p_i (w_i - w)²)), entry by entry: a state_dict.

    state_dicts, weights   M models of one network and their weights p_i, normalized here
    rng                    a numpy Generator
    returns                BatchNorm's statistics and counters are the averaged ones
    limits                 an entry that is equal in all models stays, and so does a mask, whose
                           entries are truth values or -inf
    """
    average = average_weights(state_dicts, weights)
    sample = dict(average)
    for name, mean in average.items():
        is_number = isinstance(mean, torch.Tensor) and mean.is_floating_point()
        if is_number and mean.isfinite().all() and not name.endswith(BUFFERS):   # departure 3
            deviations = (p * (state_dict[name] - mean).square()
                          for p, state_dict in zip(weights, state_dicts))
            variance = sum(deviations) / sum(weights)                        # departure 1
            noise = rng.standard_normal(tuple(mean.shape), dtype="float32")
            sample[name] = mean + variance.sqrt() * torch.from_numpy(noise).to(mean)
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
    return {name: average[name] if name.endswith(BUFFERS) else drawn         # departure 3
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
    """The mean model starts from its weights; returns them after SGD on the public images.

    images     the public ones of this round [N, c, h, w]
    teacher    logits of them [N, C]
    """
    model = loaded(fed.global_model(), weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.server_lr)
    model.train()
    with random_numbers(fed, "distil", t) as rng:
        for rows in minibatches(images, cfg.server_batch_size, rng, steps=cfg.distill_steps):
            logits = model(images[rows])                                         # [B, C]
            loss = kl_divergence(teacher[rows], logits)                          # step 13
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()                                                     # departure 6
    return model.state_dict()


def kl_divergence(teacher, student):
    """KL(teacher || student), the mean over the batch: a scalar.   Step 13

    teacher, student    logits [B, C]
    A class of p = 0, such as a teacher's logit of -inf, adds 0 whatever the student's q is.
    """
    log_p, log_q = teacher.log_softmax(-1), student.log_softmax(-1)
    log_ratio = (log_p - log_q).masked_fill(log_p.exp() == 0, 0)                 # p = 0 adds 0
    return (log_p.exp() * log_ratio).sum(-1).mean()                              # departure 5


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def evaluate(fed, state):
    """Test accuracy of the global model."""
    logits = predict_models(fed, [state["server"]["model"]], fed.test.images)[0]     # [N, C]
    return {"accuracy": accuracy(logits, fed.test.labels)}


def measure(fed, cfg, active, uploads, ensemble):
    """Test accuracy of the ensemble, how often two of its members differ, and what it all costs."""
    logits = predict_models(fed, ensemble, fed.test.images)                      # [E, N, C]
    distills = cfg.distill and uploads
    return {"ensemble_accuracy": accuracy(logits.mean(0), fed.test.labels),      # departure 4
            "disagreement": disagreement(logits),
            "teacher_forwards": len(ensemble) * len(fed.public.images) if distills else 0,
            "bad_uploads": len(active) - len(uploads),
            **weights_ledger([(fed.global_model(), len(active))])}


# --------------------------------------------------------------------------------------------------
# For the command line

ALGORITHM = Algorithm(
    "fedbe", run, scores={"accuracy": "server", "ensemble_accuracy": "ensemble"}, paper=PAPER,
    public="unlabeled", public_for=("distill",), columns=("disagreement",))
