"""FedKD: a client's own mentor and a shared mentee distill from each other; SVD factors are sent.

Wu et al., "Communication-efficient federated learning via knowledge distillation", Nature
Communications 2022, arXiv:2108.13323. Its text was not at hand: this file follows later
descriptions of it, and the authors' public code, github.com/wuch15/FedKD of 2022 (9b9e63f), which
trains transformers on news. "Paper" below is what the descriptions say.

    python fedkd_minimal.py --algo fedkd
        runs `Config` on digits of 16x16 pixels: 20 clients hold unequal shares of the classes
        (Dirichlet, alpha 0.5), 300 images each. The mentor of every second client has one hidden
        layer (mlp), that of the others is a CNN (cnn_large); the mentee is a smaller CNN (cnn). It
        takes a minute and a half on two cores.

It has no --paper. From Python, fedkd.run(fed, **PAPER) runs `PAPER`: more rounds, each of one pass.

Clients hold labeled images of their own; between rounds each keeps its mentor, the mentor's
optimizer, and a matrix W. The mentee is shared: before a round the server and all clients have the
same. There are no public images. A network's features are what its last layer, `classifier`, reads.
Training: train mode, images cropped and flipped with --augment, the mean loss of a batch.
Prediction, for the accuracies alone: eval mode, no gradient, images as they are.

The algorithm; the numbers are ours. CE is cross-entropy with the label, KL is at temperature 1:
  1   start with a mentor and a W in each client and a mentee, all of random weights
  2   for each round t:
  3       draw the active clients, a share of all
  4       for each active client, in parallel:
  5           copy the mentee
  6           train the mentor, this mentee and W on the client's own images, in each batch by
                  loss(mentor)    = CE(mentor) + (KL(mentee || mentor) + H) / S
                  loss(mentee, W) = CE(mentee) + (KL(mentor || mentee) + H) / S
                  H = the mean over batch and features of
                      (the mentor's features - W times the mentee's features)²
                  S = CE(mentor) + CE(mentee): in a batch where both do badly KL and H count less
              Both predict the same images before either takes its step. S is a constant, and so
              is the other model's output: loss(mentor) has no gradient for mentee and W,
              loss(mentee, W) none for the mentor.
  7           upload the compressed change of this mentee. A weight of two or more dimensions is
                  taken as a matrix [P, Q]. It is cut to the smallest rank r whose squared singular
                  values have the share `energy` of their sum, and sent as r (P + 1 + Q) numbers;
                  it is sent whole if that is no fewer, and so is a bias. What is cut off is lost
  8       change = the mean of these changes, weighted by numbers of images, compressed again
  9       the server and all clients, active or not, add this change to the mentee
`energy` rises in equal steps, from energy_first in round 1 to energy_last in round energy_rounds.
Buffers, such as BatchNorm's statistics, are no weights: the trained ones are uploaded as they are,
and their mean, of counters the largest, becomes the mentee's.

Mentors and W are never sent. A client that is not active keeps them. An active one keeps what it
trained, also if the server leaves its upload out.

Accuracy is of the mentors on the test images, after step 6: the mean over all clients, each with
the classes weighted as in its own images. `client_accuracy` is the same with all test images
weighted alike; `server_accuracy` is the mentee's, after step 9.

Bad uploads: a client of whose upload a number is nan, infinite, or 1e30 or more in magnitude is
left out of the mean. If nobody is left, the mentee stays. If mentor or mentee becomes nan in a
training, S, KL and H carry it to the other: this mentor stays nan, and its client's uploads are
left out. A finite upload below 1e30 is not caught, and can spoil the mentee and all mentors.

Departures
  1  Public code: one optimizer minimizes the sum of both losses, so that each reaches both models,
     also through S. Here: the other model's output and S are constants.
  2  Public code: KL is the mean over batch and classes. Here: the sum over classes.
  3  Public code: H compares hidden states and attentions of several layers, which are of one size;
     its W is not used. Here: the last layers' inputs, and W, as in the paper, learns with the
     mentee.
  4  Paper: each step's gradient is uploaded. Public code: the change in ten steps by Adam, whose
     state is kept. Here: the change in a whole local training, and the mentee's optimizer is new in
     every round.
  5  Public code: in round t of T energy is first + t/T (last - first). Here: round 1 has first.
  6  Public code: factors are sent also where they have more numbers than the matrix. Here: then the
     matrix is sent.
  7  Public code: step 8 is the plain mean. Here: it is weighted by numbers of images.
  8  Paper: silent about S = 0. Here: S below 1e-6 counts as 1e-6.
"""
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from algorithms import Algorithm, configured
from federation import (FLOAT_BYTES, OPTIMIZERS, Optimizer, active_in, average_weights,
                        client_metrics, client_scores, feature_size, loaded, minibatches,
                        parallel_map, random_numbers, received, restored, server_metrics, snapshot,
                        weights_ledger, with_features)

# active_in         the clients of a round, drawn at random without replacement
# average_weights   the weighted mean of every entry of {name: tensor}; a counter is the largest
# loaded            a network, after a copy of some weights into it
# minibatches       row numbers of batches, reshuffled in each pass; the last one may be smaller
# parallel_map      {i: fn(i) for i in ids}, by several processes
# random_numbers    a generator for what is named; it also seeds torch, for dropout and new weights
# received          {client: upload}: after an attack, and without the bad uploads
# restored          a network and its optimizer, after a snapshot has been copied into both; the
#                   learning rate and the weight decay are those given here
# snapshot          {"model": weights, "optimizer": state or None}, to be kept
# with_features     (what the layer `classifier` reads [B, D], logits [B, C]) of a forward pass in
#                   the network's mode


@dataclass
class Config:
    rounds: int = 20                     # of communication
    participation: float = 1.0           # share of the clients that are active in a round
    local_epochs: int = 5                # passes of a client over its images in a round
    local_steps: int | None = None       # if it is a number: so many steps, instead of passes
    batch_size: int = 32                 # of a client
    lr: float = 0.01                     # of mentor, mentee, W; constant; --lr-patience lowers it
    hidden: bool = True                  # off: H is 0, so that W does not change
    energy_first: float = 0.95           # share of the squared singular values, in round 1
    energy_last: float = 0.98            # this share from round energy_rounds on
    energy_rounds: int = 20              # the round in which energy_last is reached
    optimizer: Optimizer = "momentum"    # the mentor's is kept over the rounds, that of mentee and
    #                                      W is new in every round
    weight_decay: float = 0.0            # L2 penalty of both optimizers


# The energies are the public code's; the other values are those of fml.py's PAPER.
PAPER = dict(rounds=100, participation=1.0, local_epochs=1, batch_size=64, lr=0.05, hidden=True,
             energy_first=0.95, energy_last=0.98, energy_rounds=100, optimizer="momentum",
             weight_decay=0.0)


@configured(Config)
def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round.

    fed       fed.private[i]: client i's images [n, c, h, w] and labels [n]; fed.client_model(i,
              init=k): a new mentor of client i, with the k-th random weights; fed.server_model(): a
              new mentee; fed.augment: random crops and flips with --augment, else the images
              unchanged
    state     of an earlier round, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    if state is None:
        # Step 1: mentors, their W, and a mentee, of different random weights.
        clients = {i: start_client(fed, i) for i in range(len(fed.private))}
        state = {"round": 0, "server": {"model": fed.server_model().state_dict()},
                 "clients": clients}
        yield evaluate(fed, state), state
    weights, buffers = split(fed, state["server"]["model"])      # of the mentee
    clients = state["clients"]           # {i: {"model", "optimizer": the mentor's, "W"}}

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3-7: each active client trains both models, and uploads the change of the mentee.
        active = active_in(fed, cfg.participation, t)
        trained = parallel_map(
            fed, active, lambda i: train_client(fed, cfg, t, i, clients[i], weights, buffers))
        clients = clients | {i: result.client for i, result in trained.items()}
        uploads = received(fed, {i: result.upload for i, result in trained.items()}, attack)

        # Step 8-9: everyone adds the compressed mean change to the mentee.
        numbers_down = 0
        if uploads:
            sizes = [len(fed.private[i].labels) for i in uploads]                # departure 7
            mean = average_weights([*uploads.values()], sizes)
            change, numbers_down = compress_all(fed, {name: mean[name] for name in weights},
                                                energy_of(cfg, t))
            weights = {name: w + change[name] for name, w in weights.items()}
            buffers = {name: mean[name] for name in buffers}

        state = {"round": t, "server": {"model": weights | buffers}, "clients": clients}
        numbers_up = sum(trained[i].numbers for i in uploads)
        yield {**evaluate(fed, state), "bad_uploads": len(active) - len(uploads),
               **ledger(fed, len(uploads), numbers_up, numbers_down)}, state


def start_client(fed, i):
    """Step 1: client i's mentor, without an optimizer, and its W [mentor's D, mentee's D]."""
    mentor = fed.client_model(i, init=i)
    with random_numbers(fed, "mapping", i):
        W = nn.Linear(fed.server_model().classifier.in_features, mentor.classifier.in_features,
                      bias=False).weight
    return snapshot(mentor) | {"W": W.detach().to(fed.device)}


def split(fed, mentee):
    """(the weights, the buffers), {name: tensor} each, of the mentee's state_dict."""
    weight_names = dict(fed.server_model().named_parameters(remove_duplicate=False))
    return ({name: w for name, w in mentee.items() if name in weight_names},
            {name: w for name, w in mentee.items() if name not in weight_names})


class Trained(NamedTuple):
    client: dict             # what it keeps: a snapshot of the mentor and its optimizer, and W
    upload: dict             # {name: tensor}: the changes of the mentee's weights, its new buffers
    numbers: int             # how many numbers are sent for the changes


def train_client(fed, cfg, t, i, client, weights, buffers):
    """Client i, `Trained`.   Step 5-7

    client              what it kept
    weights, buffers    {name: tensor} each: the shared mentee's
    """
    images, labels = fed.private[i]
    mentor, mentor_optimizer = restored(client, fed.client_model(i), cfg.optimizer, cfg.lr,
                                        cfg.weight_decay)
    mentee = loaded(fed.server_model(), weights | buffers)
    W = client["W"].clone().requires_grad_()
    mentee_optimizer = OPTIMIZERS[cfg.optimizer]([*mentee.parameters(), W], lr=cfg.lr,
                                                 weight_decay=cfg.weight_decay)
    mentor.train()
    mentee.train()
    with random_numbers(fed, "local", t, i) as rng:      # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs, cfg.local_steps):
            batch = fed.augment(images[rows], rng)       # both models see the same crops
            mentor_features, mentor_logits = with_features(mentor, batch)
            mentee_features, mentee_logits = with_features(mentee, batch)
            mentor_loss, mentee_loss = adaptive_losses(
                mentor_logits, mentee_logits, labels[rows], mentor_features, mentee_features @ W.T,
                cfg.hidden)
            mentor_optimizer.zero_grad()
            mentee_optimizer.zero_grad()
            mentor_loss.backward()
            mentee_loss.backward()
            mentor_optimizer.step()
            mentee_optimizer.step()
    after = mentee.state_dict()
    change, numbers = compress_all(fed, {name: after[name] - w for name, w in weights.items()},
                                   energy_of(cfg, t))                            # departure 4
    upload = after | change              # in place of each weight its change
    return Trained(snapshot(mentor, mentor_optimizer) | {"W": W.detach()}, upload, numbers)


def adaptive_losses(mentor_logits, mentee_logits, labels, mentor_features, mapped, hidden=True):
    """(the mentor's loss, the loss of mentee and W), means over the batch: scalars.

    mentor_logits, mentee_logits, labels    [B, C], [B, C], [B]
    mentor_features, mapped                 [B, D], [B, D]: mapped is W times the mentee's features
    hidden                                  False: without H
    CE(mentor) + (KL(mentee || mentor) + H) / S, and likewise with the two swapped. H is the mean of
    (mentor_features - mapped)², S = CE(mentor) + CE(mentee), at least 1e-6. S and the other model's
    output get no gradient.
    >>> mentor, mentee = torch.tensor([[.8, .2]]).log(), torch.tensor([[.5, .5]]).log()
    >>> adaptive_losses(mentor, mentee, torch.tensor([0]), torch.ones(1, 2), torch.zeros(1, 2))
    (tensor(1.5580), tensor(1.9949))
    """
    mentor_ce = F.cross_entropy(mentor_logits, labels)
    mentee_ce = F.cross_entropy(mentee_logits, labels)
    S = (mentor_ce + mentee_ce).detach().clamp(min=1e-6)                         # departure 1, 8
    mentor_H = F.mse_loss(mentor_features, mapped.detach()) if hidden else 0.0   # departure 1, 3
    mentee_H = F.mse_loss(mapped, mentor_features.detach()) if hidden else 0.0
    mentor_loss = mentor_ce + (kl_divergence(mentee_logits, mentor_logits) + mentor_H) / S
    mentee_loss = mentee_ce + (kl_divergence(mentor_logits, mentee_logits) + mentee_H) / S
    return mentor_loss, mentee_loss


def kl_divergence(teacher, student):
    """KL(teacher || student), the mean over the batch: a scalar; the teacher gets no gradient.

    teacher, student    logits [B, C]
    A class of p = 0, such as a teacher's logit of -inf, adds 0 whatever the student's q is.
    """
    log_p, log_q = teacher.detach().log_softmax(-1), student.log_softmax(-1)     # departure 1
    log_ratio = (log_p - log_q).masked_fill(log_p.exp() == 0, 0)                 # p = 0 adds 0
    return (log_p.exp() * log_ratio).sum(-1).mean()                              # departure 2


def energy_of(cfg, t):
    """The share of the squared singular values that is sent in round t."""
    progress = min((t - 1) / max(cfg.energy_rounds - 1, 1), 1.0)                 # departure 5
    return cfg.energy_first + (cfg.energy_last - cfg.energy_first) * progress


def compress_all(fed, change, energy):
    """({name: what arrives}, how many numbers are sent) of a change {name: tensor} of the mentee.

    A tensor that has two names, because two layers share it, is sent once.
    """
    messages = {name: compress(tensor, energy) for name, tensor in change.items()}
    return ({name: arrived for name, (arrived, _) in messages.items()},
            sum(messages[name][1] for name, _ in fed.server_model().named_parameters()))


def compress(tensor, energy):
    """(what arrives of a tensor, how many numbers are sent for it).

    A tensor [P, ...] of two dimensions or more is a matrix [P, Q]. Its `rank` largest singular
    values and their vectors, rank (P + 1 + Q) numbers, are sent: as few as have the share `energy`
    of the sum of all squared values. Where these are no fewer numbers than the tensor has, it is
    sent as it is; so is what has fewer dimensions, or a number that is not finite.
    >>> compress(torch.ones(4, 5), energy=0.9)[1]        # of rank 1
    10
    """
    if tensor.ndim < 2 or tensor.numel() == 0 or not tensor.isfinite().all():
        return tensor.clone(), tensor.numel()
    U, sigma, Vt = torch.linalg.svd(tensor.flatten(1), full_matrices=False)      # sigma falls
    # Squares of the scaled values are neither too large nor too small to add. They are added on the
    # CPU, because a GPU's cumsum is not deterministic. Where all values are 0, rank is 1.
    squares = (sigma / sigma.max().clamp(min=torch.finfo(sigma.dtype).tiny)).square().cpu()
    rank = int((squares.cumsum(0) < energy * squares.sum()).sum()) + 1
    rank = min(rank, len(sigma))         # rounding may leave the sum of all below energy 1
    numbers = rank * (len(U) + 1 + Vt.shape[1])
    if numbers >= tensor.numel():
        return tensor.clone(), tensor.numel()                                    # departure 6
    return (U[:, :rank] * sigma[:rank] @ Vt[:rank]).view(tensor.shape), numbers


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def evaluate(fed, state):
    """Test accuracies of the mentors and of the mentee."""
    metrics = client_metrics(client_scores(fed, state["clients"]))
    own = metrics.pop("client_accuracy_own", None)       # None: no test image is of their classes
    return {"accuracy": own, **metrics, **server_metrics(fed, state["server"])}


def ledger(fed, num_uploads, numbers_up, numbers_down):
    """Bytes of a round: the usable uploads go up, the mean change goes down to all clients."""
    receivers = len(fed.private) if num_uploads else 0
    up, down = (weights_ledger([(fed.server_model(), n)]) for n in (num_uploads, receivers))
    return {"bytes_up": FLOAT_BYTES * numbers_up,
            "bytes_down": FLOAT_BYTES * numbers_down * receivers,
            "bytes_up_buffers": up["bytes_up_buffers"],
            "bytes_down_buffers": down["bytes_down_buffers"]}


# --------------------------------------------------------------------------------------------------
# For the command line

def check(fed, cfg, attack):
    """Raises ValueError unless every network's last layer is a linear one called `classifier`."""
    feature_size(fed.server_model(), "the server's network")
    for name in dict.fromkeys(fed.architecture):
        feature_size(fed.client_model(fed.architecture.index(name)), name)


ALGORITHM = Algorithm(
    "fedkd", run, scores={"accuracy": "mentors, own classes", "client_accuracy": "mentors",
                          "server_accuracy": "mentee"},
    paper=PAPER, mixed_networks=True, server="images", model=("cnn_large", "mlp"),
    server_model="cnn", plateau=("lr",), check_settings=check, evaluate=evaluate)
