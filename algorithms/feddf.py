"""FedDF: the server averages the clients' models, and distills their ensemble into the average.

Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020,
arXiv:2006.07242. Its text was not at hand: this file follows the authors' public code and what
FedSDD (Kwan and Song, arXiv:2312.17029v1), which compares itself with FedDF, says of it.

    python fedkd_minimal.py --algo feddf
        runs `Config` on digits of 16x16 pixels: 20 clients with a small CNN hold unequal shares of
        the classes (Dirichlet, alpha 0.5), 216 images each; 1,200 images are public, and 480 are
        for validation. It takes half a minute on two cores.
    python fedkd_minimal.py --algo feddf --paper feddf --dataset cifar10
        runs `PAPER` with a ResNet-8: 20 clients, alpha 1, 2,250 images each; CIFAR-100's training
        images are public, and 5,000 of CIFAR-10's are for validation. All images that models train
        on are cropped and flipped.

Clients hold labeled images of their own; between rounds they keep nothing. The server holds N
public images without labels, and labeled validation images of the task, for drop_worst and
patience. Clients may have different networks: then each network has a global model. An active
client is sent its network's global model, and sends back its weights and its number of images;
logits never travel. Training: train mode, images cropped and flipped with --augment, the mean loss
of a batch. Prediction: eval mode, no gradient, images as they are, but for public ones: with
--augment each is cropped and flipped once in a round, for all who predict or learn it.

The algorithm; the numbers are ours. C is the number of classes:
  1   start with a global model of random weights for each network
  2   for each round t:
  3       draw the active clients: the same share of each network's clients
  4       for each active client, in parallel:
  5           copy its network's global model
  6           train it on the client's own images, by cross-entropy
  7       with drop_worst keep the clients whose model has an accuracy of 1.2 / C or more, where
              chance has 1 / C, on the validation images; if none has, keep all
  8       for each network: student = the mean of its kept clients' models, weighted by numbers of
              images
  9       teacher = the mean of the logits of all kept clients, of all networks, on the public
              images (AVGLOGITS)
 10       for each network, in parallel: train the student on the public images, by
              temperature² KL(softmax(teacher / temperature) || softmax(logits / temperature)),
              which also moves its BatchNorm statistics to the public images;
              check its accuracy on the validation images after every `check_every` steps, and end
              after `patience` steps without a better one, or after `distill_steps`
 11           the network's global model = the student at its best check (the mean of step 8 itself
              is not checked); without patience, at the end

Accuracy is the global model's on the test images, after step 11; of several networks, the mean.
`client_accuracy` is the mean over the kept clients' models, after step 7, and `ensemble_accuracy`
is that of the mean of their logits.

Bad uploads: a client of which a weight is nan, infinite, or 1e30 or more in magnitude is left out
from step 7 on. A network of which no client is left has its global model as the student. If no
client at all is left, there is no teacher, and all global models stay. A nan that arises in
distillation is not caught: then the global model stays nan, and its clients count as bad uploads.

Departures
  1  Public code: the active clients are drawn from all. Here: from each network's.
  2  Public code: none of its commands for FedDF has drop_worst. Here, as FedSDD's appendix A.4 says
     of the original FedDF: it is on.
  3  Public code: where drop_worst finds no client below 1.2 / C, it drops those whose accuracy is
     an outlier; where all clients are below, it fails. Here: step 7.
  4  Public code: all models have the same weight in the mean. Here: numbers of images. In the
     code's partition all clients have equally many.
  5  Public code: BatchNorm's running statistics are the last client's. Here: their mean.
  6  Public code: crops and flips public images anew in each batch, for teacher and student. Here:
     once in a round.
  7  Public code: no factor temperature², at its temperature of 1. Here: temperature².
  8  Public code: the last student is checked only if `check_every` divides `distill_steps`. Here:
     always.
"""
import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from algorithms import Algorithm, configured
from federation import (OPTIMIZERS, Optimizer, accuracy, active_clients, average_weights,
                        by_architecture, disagreement, loaded, mean_accuracy, minibatches,
                        parallel_map, predict, public_view, random_numbers, received,
                        server_threads, weights_ledger)

# active_clients    {network: the clients of a round that have it}: of each network's clients the
#                   same share, drawn at random without replacement
# average_weights   the weighted mean of every entry of models, BatchNorm's statistics too
# by_architecture   {network: its clients}
# disagreement      the share of images of which two models predict different classes, the mean
#                   over all pairs
# loaded            a network, after a copy of some weights into it
# minibatches       row numbers of batches, reshuffled in each pass; the last one may be smaller
# parallel_map      {i: fn(i) for i in ids}, by several processes
# predict           logits in eval mode, without gradient and augmentation; it restores the mode
# public_view       the public samples of a round; with --augment each image is cropped and
#                   flipped once, for all who predict or learn it
# random_numbers    a generator for what is named; it also seeds torch, for dropout
# received          {client: weights}: after an attack, and without the bad uploads
# server_threads    a process computes with all CPU threads that the server may have
# weights_ledger    bytes that are sent up and down


@dataclass
class Config:
    rounds: int = 20                     # of communication
    participation: float = 0.4           # share of the clients that are active in a round
    local_epochs: int = 5                # passes of a client over its images in a round
    local_steps: int | None = None       # if it is a number: so many steps, instead of passes
    batch_size: int = 32                 # of a client
    lr: float = 0.1                      # of a client, constant; --lr-patience lowers it
    optimizer: Optimizer = "sgd"         # of a client, new in every round; sgd has no momentum
    weight_decay: float = 0.0            # L2 penalty of this optimizer
    drop_worst: bool = True              # leave out clients near chance accuracy; departure 2
    distill_steps: int = 100             # of a student in a round, at most
    server_batch_size: int = 128         # of a student
    server_lr: float = 1e-3              # of a student, in its first step
    server_optimizer: Optimizer = "adam"     # of a student, new in every round
    cosine: bool = True                  # a student's rate falls to 0 over distill_steps
    max_grad_norm: float | None = 5.0    # a student's longer gradients are scaled to this norm
    temperature: float = 1.0             # of teacher and student
    patience: int | None = 60            # steps without a better accuracy; none: no checks at all
    check_every: int = 20                # steps from one check of the accuracy to the next


# The public code, CIFAR-10 with ResNet-8: its README, its commands, its defaults; drop_worst is of
# FedSDD's A.4 (departure 2). Participation is 0.4 in the README's text and in FedSDD, 0.1 in the
# commands.
# Clients, partition, networks, augmentation: experiment/presets.py.
PAPER = dict(rounds=100, participation=0.4, local_epochs=40, batch_size=64, lr=0.1,
             optimizer="sgd", weight_decay=0.0, drop_worst=True, distill_steps=10000,
             server_batch_size=64, server_lr=1e-3, server_optimizer="adam", cosine=True,
             max_grad_norm=5.0, temperature=1.0, patience=1000, check_every=100)


@configured(Config)
def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round.

    fed       fed.private[i]: client i's images [n, c, h, w] and labels [n]; fed.test,
              fed.validation likewise; fed.public.images [N, c, h, w]; fed.architecture[i]: the name
              of client i's network; fed.client_model(i): a new one; fed.augment: random crops and
              flips with --augment, else the images unchanged
    state     of an earlier round, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    clients_of = by_architecture(fed)                        # {network: its clients}
    if state is None:
        # Step 1: a global model of random weights for each network.
        state = {"round": 0, "global_models": {name: new_model(fed, name).state_dict()
                                               for name in clients_of}}
        yield evaluate(fed, state), state
    models = state["global_models"]                          # {network: weights}

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3-6: each active client trains its network's global model on its own images.
        drawn = active_clients(fed, cfg.participation, t)                    # departure 1
        active = sorted(i for clients in drawn.values() for i in clients)
        trained = parallel_map(fed, active, lambda i: train_client(
            fed, cfg, t, i, models[fed.architecture[i]]))
        uploads = received(fed, trained, attack)                             # {client: weights}

        # Step 7: clients near chance accuracy are left out.
        kept = above_chance(fed, uploads) if cfg.drop_worst else uploads     # {client: weights}

        # Step 8: each network's student is the mean of its clients' models.
        students = {name: average(fed, clients, kept, models[name])          # {network: weights}
                    for name, clients in clients_of.items()}

        # Step 9-11: the students train on the mean of the logits of all kept clients.
        models, steps = students, {}
        if kept:
            images = public_view(fed, t).images                              # departure 6
            client_logits = predict_clients(fed, kept, images)
            teacher = client_logits.mean(0)                                  # [M, N, C] -> [N, C]
            distilled = parallel_map(fed, students, lambda name: distill(
                fed, cfg, t, name, students[name], images, teacher))
            models = {name: weights for name, (weights, _) in distilled.items()}
            steps = {name: number for name, (_, number) in distilled.items()}

        state = {"round": t, "global_models": models}
        yield {**evaluate(fed, state), **measure(fed, active, uploads, kept, steps)}, state


def new_model(fed, name):
    """A new network of this name."""
    return fed.client_model(fed.architecture.index(name))


def train_client(fed, cfg, t, i, weights):
    """Client i starts from the global weights; returns them after training on its own images."""
    images, labels = fed.private[i]
    model = loaded(fed.client_model(i), weights)
    optimizer = OPTIMIZERS[cfg.optimizer](model.parameters(), lr=cfg.lr,
                                          weight_decay=cfg.weight_decay)
    model.train()
    with random_numbers(fed, "local", t, i) as rng:         # order, augmentation, dropout
        for rows in minibatches(images, cfg.batch_size, rng, cfg.local_epochs, cfg.local_steps):
            logits = model(fed.augment(images[rows], rng))                       # [B, C]
            loss = F.cross_entropy(logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.state_dict()


def above_chance(fed, uploads):
    """Those of the uploads {client: weights} whose clients are kept.   Step 7"""
    if not uploads:
        return uploads
    client_logits = predict_clients(fed, uploads, fed.validation.images)         # [M, N, C]
    accuracies = [accuracy(logits, fed.validation.labels) for logits in client_logits]
    stays = drop_worst(accuracies, fed.num_classes)                              # bool [M]
    return {i: uploads[i] for i, stay in zip(uploads, stays) if stay}


def drop_worst(accuracies, num_classes):
    """True for clients that stay: right at least 1.2 times as often as chance; all, if none is.

    accuracies     float [M], in [0, 1], on a validation set
    num_classes    C; chance is right with probability 1/C
    returns        bool [M]
    >>> drop_worst(torch.tensor([0.11, 0.12, 0.50]), num_classes=10)
    tensor([False,  True,  True])
    """
    accuracies = torch.as_tensor(accuracies, dtype=torch.float64)
    stays = accuracies >= 1.2 / num_classes - 1e-6       # 0.12, rounded to float32, is below 0.12
    return stays if stays.any() else torch.ones_like(stays)              # departure 3


def average(fed, clients, kept, before):
    """The mean of these clients' models in kept {client: weights}, by numbers of images.   Step 8

    before    the weights that these clients started from; they stay if none of them is kept
    """
    members = [i for i in clients if i in kept]
    if not members:
        return before
    sizes = [len(fed.private[i].labels) for i in members]
    return average_weights([kept[i] for i in members], sizes)            # departures 4, 5


def predict_clients(fed, uploads, images):
    """Logits [M, N, C] of the models {client: weights} on these images."""
    logits = parallel_map(fed, uploads,
                          lambda i: predict(loaded(fed.client_model(i), uploads[i]), images))
    return torch.stack([*logits.values()])


def distill(fed, cfg, t, name, weights, images, teacher):
    """(weights of the student of this network after distillation, number of its steps).  Step 10-11

    weights    those that it starts from
    images     the public ones of this round [N, c, h, w]
    teacher    logits of them [N, C]
    """
    validation = fed.validation
    model = loaded(new_model(fed, name), weights)
    optimizer = OPTIMIZERS[cfg.server_optimizer](model.parameters(), lr=cfg.server_lr)
    annealing = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cfg.distill_steps)
    best_accuracy, best_step, best_weights = float("-inf"), 0, None
    first_client = fed.architecture.index(name)          # names the network's random numbers
    model.train()
    with server_threads(fed), random_numbers(fed, "distil", t, first_client) as rng:
        for step, rows in enumerate(minibatches(images, cfg.server_batch_size, rng,
                                                steps=cfg.distill_steps), start=1):
            logits = model(images[rows])                                         # [B, C]
            loss = distillation_loss(teacher[rows], logits, cfg.temperature)
            optimizer.zero_grad()
            loss.backward()
            if cfg.max_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.max_grad_norm)
            optimizer.step()
            if cfg.cosine:
                annealing.step()

            is_last = step == cfg.distill_steps                                  # departure 8
            if cfg.patience is not None and (step % cfg.check_every == 0 or is_last):
                found = accuracy(predict(model, validation.images), validation.labels)
                if found > best_accuracy:
                    best_accuracy, best_step = found, step
                    best_weights = copy.deepcopy(model.state_dict())
                elif step - best_step >= cfg.patience:
                    break
    return (model.state_dict() if cfg.patience is None else best_weights), step


def distillation_loss(teacher, student, temperature):
    """temperature² KL(teacher || student), the mean over the batch: a scalar.   Step 10

    teacher, student    logits [B, C]
    A class of p = 0, such as a teacher's logit of -inf, adds 0 whatever the student's q is.
    """
    log_p = (teacher / temperature).log_softmax(-1)
    log_q = (student / temperature).log_softmax(-1)
    log_ratio = (log_p - log_q).masked_fill(log_p.exp() == 0, 0)             # p = 0 adds 0
    return temperature**2 * (log_p.exp() * log_ratio).sum(-1).mean()             # departure 7


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def evaluate(fed, state):
    """Test accuracy of the global models: the mean and, of several networks, of each."""
    models = state["global_models"]
    logits = parallel_map(fed, models, lambda name: predict(
        loaded(new_model(fed, name), models[name]), fed.test.images))            # {name: [N, C]}
    accuracies = {name: accuracy(z, fed.test.labels) for name, z in logits.items()}
    each = {f"server_accuracy_{name}": x for name, x in accuracies.items()}
    return {"accuracy": mean_accuracy(accuracies.values()),
            **(each if len(each) > 1 else {})}


def measure(fed, active, uploads, kept, steps):
    """Test accuracy of the kept clients and of their ensemble, and what the round cost."""
    found = dict.fromkeys(("client_accuracy", "client_accuracy_min", "client_accuracy_max",
                           "ensemble_accuracy", "disagreement"))         # None: nobody is left
    if kept:
        client_logits = predict_clients(fed, kept, fed.test.images)              # [M, N, C]
        accuracies = [accuracy(logits, fed.test.labels) for logits in client_logits]
        found = {"client_accuracy": mean_accuracy(accuracies),
                 "client_accuracy_min": min(accuracies), "client_accuracy_max": max(accuracies),
                 "ensemble_accuracy": accuracy(client_logits.mean(0), fed.test.labels),
                 "disagreement": disagreement(client_logits)}
    return {**found, "dropped": len(uploads) - len(kept), "bad_uploads": len(active) - len(uploads),
            "teacher_forwards": len(kept) * len(fed.public.images), "steps": sum(steps.values()),
            **weights_ledger([(fed.client_model(i), 1) for i in active])}    # a model to and from i


# --------------------------------------------------------------------------------------------------
# For the command line

def check(fed, cfg, attack):
    """Raises ValueError for an attack on several networks: it computes means over weights."""
    if attack and len(by_architecture(fed)) > 1:
        raise ValueError("feddf: an attack on weights needs one network for all clients")


ALGORITHM = Algorithm(
    "feddf", run,
    scores={"accuracy": "server", "ensemble_accuracy": "ensemble", "client_accuracy": "clients"},
    paper=PAPER, public="unlabeled", mixed_networks=True,
    validation_for=("drop_worst", "patience"), check_settings=check, plateau=("lr", "server_lr"),
    evaluate=evaluate,
    columns=("disagreement", "teacher_forwards", "dropped", "steps"))
