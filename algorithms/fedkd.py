"""FedKD: a client's own mentor and a shared mentee distill from each other; SVD factors are sent.

Wu et al., "Communication-efficient federated learning via knowledge distillation", Nature
Communications 2022, arXiv:2108.13323. Not at hand: below, "paper" is what later papers say of it.

    python fedkd_minimal.py --algo fedkd
        runs `Config` on digits of 16x16 pixels: 20 clients hold unequal shares of the classes
        (Dirichlet, alpha 0.5), 300 images each. Every second mentor has one hidden layer (mlp), the
        others are CNNs (cnn_large); the mentee is a smaller CNN (cnn). 1.5 minutes on two cores.

Clients hold labeled images of their own. Each keeps its mentor, the mentor's optimizer and W, a
matrix from the mentee's features to the mentor's. Features are the inputs of the last layer.

The algorithm; the numbers are ours. CE is cross-entropy with the label, KL is at temperature 1:
  1   start with a mentor and a W in each client and one mentee for all, of random weights
  2   for each round t:
  3       for each active client, in parallel:
  4           train the mentor, a copy of the mentee, and W on the client's images, in each batch by
                  loss(mentor)    = CE(mentor) + (KL(mentee || mentor) + H) / S
                  loss(mentee, W) = CE(mentee) + (KL(mentor || mentee) + H) / S
                  H = the mean of (mentor's features - W times mentee's features)²
                  S = CE(mentor) + CE(mentee); S and what the other model predicts are constants
  5           send the change of the mentee, compressed: of each matrix of weights the largest
                  singular values and their vectors, as few as have the share `energy` of the sum
                  of all squared values; or the matrix as it is, if it has no more numbers
  6       change = the mean of these changes, by numbers of images, compressed again
  7       the server and all clients, active or not, add this change to the mentee
BatchNorm's statistics are sent as they are after training; their mean becomes the mentee's.

  step   who predicts         images   mode    gradient   augmented      loss, how often
  4      mentor and mentee    own      train   yes        in each pass   as above, local_epochs
  -      all mentors          test     eval    no         no             `accuracy`
  -      the mentee after 7   test     eval    no         no             `server_accuracy`
`accuracy` is the mean over all clients; a class weighs as much as in a client's own images.

An upload with a number that is nan, infinite, or 1e30 or more in magnitude is left out; its client
keeps what it trained, so that a mentor that is nan stays so. If none is left, the mentee stays.

Departures; 6 and more are in docs/DEPARTURES.md. The public code is github.com/wuch15/FedKD
  1  Public code: minimizes the losses' sum. Here: S and the other model's output are constants.
  2  Public code: KL is the mean over batch and classes. Here: the sum over classes.
  3  Public code: H is of several layers, of one size, without W. Here: of the last, and with W.
  4  Paper: sends each step's gradient. Public code: the change in ten steps by Adam, which is kept.
     Here: the change in a whole training, by momentum, which for the mentee is new in every round.
  5  Public code: step 6 is the plain mean. Here: it is weighted by numbers of images.
"""
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from federation import (FLOAT_BYTES, OPTIMIZERS, Algorithm, Count, Natural, NonNegative, Optimizer,
                        Positive, Settings, Share, accuracy, average_weights, count_weight_bytes,
                        drop_bad_uploads, is_usable, minibatches, parallel_map, predict_models,
                        resume, score_personal, snapshot)


@dataclass
class Config(Settings):
    rounds: Natural = 20                 # of communication
    participation: Share = 1.0           # share of the clients that are active in a round
    local_epochs: Count = 5              # passes of a client over its images in a round
    local_steps: Count | None = None     # if it is a number: so many steps, instead of passes
    batch_size: Count = 32               # of a client
    lr: Positive = 0.01                  # of mentor, mentee and W, constant
    hidden: bool = True                  # False: H is 0, so that W does not change
    energy_first: Share = 0.95           # `energy` in round 1; it rises evenly to energy_last
    energy_last: Share = 0.98            # in round energy_rounds and later; both the public code's
    energy_rounds: Count = 20            # 1: energy_last from the start
    optimizer: Optimizer = "momentum"    # the mentor's is kept over the rounds, that of mentee and
    #                                      W is new in every round
    weight_decay: NonNegative = 0.0      # L2 penalty of both optimizers


def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round.

    fed       a `Federation`; client_model(i) is a mentor, server_model() the mentee, and the last
              layer of each has the name `classifier`
    cfg       a `Config`
    state     one that it has yielded, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ALGORITHM.check(fed, cfg, state, attack)
    if state is None:
        # Step 1: mentors, their W, and a mentee, of different random weights.
        state = {"algorithm": "fedkd", "round": 0,
                 "server": {"model": fed.server_model().state_dict()},
                 "clients": {i: new_client(fed, i) for i in range(len(fed.private))}}
        yield evaluate(fed, state), state
    mentee = state["server"]["model"]    # state_dict
    buffers = {name for name, _ in fed.server_model().named_buffers()}       # of BatchNorm
    clients = state["clients"]           # {i: {"model", "optimizer": the mentor's, "W"}}

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3-5: each active client trains both models, and uploads the change of the mentee.
        active = fed.sample_clients(cfg.participation, t)
        trained = parallel_map(
            fed, active, lambda i: train_client(fed, cfg, t, i, clients[i], mentee, buffers))
        clients = clients | {i: result.client for i, result in trained.items()}
        uploads = {i: result.upload for i, result in trained.items()}
        uploads = attack.poison_weights(uploads) if attack else uploads
        uploads = drop_bad_uploads(uploads)                                  # {client: change}

        # Step 6-7: everyone adds the compressed mean change to the mentee.
        numbers_down = 0
        if uploads:
            sizes = [len(fed.private[i].labels) for i in uploads]                # departure 5
            mean = average_weights([*uploads.values()], sizes)
            change, numbers_down = compress_all(mean, buffers, energy_of(cfg, t))
            mentee = add_change(mentee, change, buffers)

        state = {**state, "round": t, "server": {"model": mentee}, "clients": clients}
        yield measure(fed, state, trained, uploads, numbers_down), state


def new_client(fed, i):
    """Step 1: client i's mentor, without an optimizer, and its W [mentor's D, mentee's D]."""
    mentor, mentee = fed.client_model(i, init=i), fed.server_model()
    with fed.random_numbers("mapping", i):
        W = nn.Linear(mentee.classifier.in_features, mentor.classifier.in_features, bias=False)
    return snapshot(mentor) | {"W": W.weight.detach().to(fed.device)}


class Trained(NamedTuple):
    client: dict             # what it keeps: a snapshot of the mentor and its optimizer, and W
    upload: dict             # {name: tensor}: changes of the mentee's weights, its new buffers
    numbers: int             # how many numbers are sent for the changes


def train_client(fed, cfg, t, i, client, weights, buffers):
    """Step 4-5: client i, `Trained`.

    client              what it kept
    weights, buffers    the shared mentee's state_dict, and the names of its BatchNorm statistics
    """
    images, labels = fed.private[i]
    mentor, mentor_optimizer = resume(client, fed.client_model(i), cfg.optimizer, cfg.lr,
                                      cfg.weight_decay)
    mentee = fed.server_model()
    mentee.load_state_dict(weights)
    W = client["W"].clone().requires_grad_()
    mentee_optimizer = OPTIMIZERS[cfg.optimizer]([*mentee.parameters(), W], lr=cfg.lr,
                                                 weight_decay=cfg.weight_decay)  # departure 4
    mentor.train()
    mentee.train()
    with fed.random_numbers("local", t, i) as rng:         # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs, cfg.local_steps):
            batch = fed.augment(images[rows], rng)       # both models see the same crops
            mentor_features, mentor_logits = forward_with_features(mentor, batch)
            mentee_features, mentee_logits = forward_with_features(mentee, batch)
            mentor_loss, mentee_loss = adaptive_losses(
                mentor_logits, mentee_logits, labels[rows], mentor_features, mentee_features @ W.T,
                cfg.hidden)
            mentor_optimizer.zero_grad()
            mentee_optimizer.zero_grad()
            mentor_loss.backward()
            mentee_loss.backward()
            mentor_optimizer.step()
            mentee_optimizer.step()
    change = {name: after if name in buffers else after - weights[name]
              for name, after in mentee.state_dict().items()}
    if is_usable(change):
        upload, numbers = compress_all(change, buffers, energy_of(cfg, t))
    else:                # nan has no singular values: it is sent as it is, and the server drops it
        upload, numbers = change, sum(w.numel() for w in mentee.parameters())
    return Trained(snapshot(mentor, mentor_optimizer) | {"W": W.detach()}, upload, numbers)


def forward_with_features(model, images):
    """(features [B, D], which the last layer `classifier` reads, logits [B, C]): float32."""
    features = []
    hook = model.classifier.register_forward_pre_hook(
        lambda layer, inputs: features.append(inputs[0].float()))
    logits = model(images)
    hook.remove()
    return features[0], logits


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
    S = (mentor_ce + mentee_ce).detach().clamp(min=1e-6)                         # departure 1
    mentor_H = F.mse_loss(mentor_features, mapped.detach()) if hidden else 0.0   # departure 1, 3
    mentee_H = F.mse_loss(mapped, mentor_features.detach()) if hidden else 0.0
    mentor_loss = mentor_ce + (kl_divergence(mentor_logits, mentee_logits) + mentor_H) / S
    mentee_loss = mentee_ce + (kl_divergence(mentee_logits, mentor_logits) + mentee_H) / S
    return mentor_loss, mentee_loss


def kl_divergence(student, teacher):
    """KL(teacher || student), the mean over the batch: a scalar.

    student, teacher    finite logits [B, C]; the teacher's get no gradient
    """
    log_p, log_q = teacher.detach().log_softmax(-1), student.log_softmax(-1)     # departure 1
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean()                        # departure 2


def energy_of(cfg, t):
    """The share of the squared singular values that is sent in round t.

    Departure 6: in the public code `progress` is t / rounds.
    """
    if t >= cfg.energy_rounds:
        return cfg.energy_last
    progress = (t - 1) / (cfg.energy_rounds - 1)
    return cfg.energy_first + (cfg.energy_last - cfg.energy_first) * progress


def compress_all(change, buffers, energy):
    """({name: what arrives} of a change {name: tensor}, how many numbers are sent for weights)."""
    messages = {name: (x, 0) if name in buffers else compress(x, energy)
                for name, x in change.items()}
    return ({name: arrived for name, (arrived, _) in messages.items()},
            sum(numbers for _, numbers in messages.values()))


def compress(tensor, energy):
    """(what arrives of a tensor, how many numbers are sent for it).

    A tensor [P, ...] of two dimensions or more is a matrix [P, Q]. Its `rank` largest singular
    values and their vectors, rank (P + 1 + Q) numbers, are sent: as few as have the share `energy`
    of the sum of all squared values. A tensor that has no more numbers than these, or that has one
    dimension, is sent as it is.
    >>> compress(torch.ones(4, 5), energy=0.9)[1]        # of rank 1
    10
    """
    if tensor.ndim < 2:
        return tensor.clone(), tensor.numel()
    U, sigma, Vt = torch.linalg.svd(tensor.flatten(1), full_matrices=False)      # sigma falls
    sums = sigma.cpu().double().square().cumsum(0)       # a GPU's cumsum is not deterministic
    rank = int((sums < energy * sums[-1]).sum()) + 1
    numbers = rank * (len(U) + 1 + Vt.shape[1])
    if numbers >= tensor.numel():
        return tensor.clone(), tensor.numel()
    return (U[:, :rank] * sigma[:rank] @ Vt[:rank]).view(tensor.shape), numbers


def add_change(mentee, change, buffers):
    """The mentee's state_dict after a change, which has its new buffers."""
    return {name: change[name] if name in buffers else w + change[name]
            for name, w in mentee.items()}


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def measure(fed, state, trained, uploads, numbers_down):
    """The metrics of a round. Bad uploads are sent, too; the mean change goes to all clients."""
    receivers = len(fed.private) if uploads else 0
    buffer_bytes = count_weight_bytes([(fed.server_model(), 1)])["bytes_up_buffers"]
    return {**evaluate(fed, state), "bad_uploads": len(trained) - len(uploads),
            "bytes_up": FLOAT_BYTES * sum(result.numbers for result in trained.values()),
            "bytes_down": FLOAT_BYTES * numbers_down * receivers,
            "bytes_up_buffers": buffer_bytes * len(trained),
            "bytes_down_buffers": buffer_bytes * receivers}


def evaluate(fed, state):
    """Test accuracies of the mentors and of the mentee."""
    images, labels = fed.test
    logits = predict_models(fed, [state["server"]["model"]], images, fed.server_model)[0]
    return {**score_personal(fed, state["clients"]), "server_accuracy": accuracy(logits, labels)}


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

def check(fed, cfg, state, attack):
    """Raises ValueError unless every network's last layer is a linear one called `classifier`."""
    clients = [ids[0] for ids in fed.clients_by_architecture().values()]
    models = [fed.server_model(), *map(fed.client_model, clients)]
    if not all(isinstance(getattr(model, "classifier", None), nn.Linear) for model in models):
        raise ValueError("fedkd: the last layer of every network must be linear, and its name "
                         "classifier")


ALGORITHM = Algorithm(
    "fedkd", run, Config, mixed_networks=True, server="images", check_more=check, program=dict(
        scores={"accuracy": ("mentors", "own classes"), "client_accuracy": ("mentors", "test"),
                "server_accuracy": ("mentee", "test")}, server_score="server_accuracy",
        plateau=("lr",), evaluate=evaluate, model=("cnn_large", "mlp"), server_model="cnn"))
