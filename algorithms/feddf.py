"""FedDF: the server averages the clients' models, and distills their ensemble into the average.

Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020,
arXiv:2006.07242. Its text was not at hand: this file follows the authors' public code.

    python fedkd_minimal.py --algo feddf
        runs `Config` on 16x16 digits, in half a minute on two cores: 20 clients with a small CNN
        hold 216 images each (Dirichlet, alpha 0.5); 1,200 are public, 480 are for validation.
    python fedkd_minimal.py --algo feddf --paper feddf --dataset cifar10
        runs `PAPER` with a ResNet-8: alpha is 1, CIFAR-100's training images are public, 5,000 of
        CIFAR-10's are for validation, and models train on images cropped and flipped at random.

Clients hold labeled images of their own, and keep nothing between rounds. The server holds public
images without labels, labeled validation images, and a global model for each network of clients.

The algorithm; the numbers are ours. C is the number of classes:
  1   start with a global model of random weights for each network
  2   for each round t:
  3       draw the active clients: the same share of each network's clients
  4       for each active client, in parallel:
  5           copy its network's global model
  6           train it on the client's own images, by cross-entropy, and send its weights
  7       with drop_worst leave out clients with a validation accuracy below 1.2 / C, unless all are
  8       for each network: student = the mean of its kept clients' models, by numbers of images
  9       teacher = the mean of the logits of all kept clients on the public images
 10       for each network, in parallel: train the student on the public images by
              temperature² KL(softmax(teacher / temperature) || softmax(logits / temperature))
 11       the global models are the students at their best validation accuracy (early stopping)

  step   who predicts         images      mode   gradient  augmented     loss, how often
  6      an active client     its own     train  yes       in each pass  CE, local_epochs
  9      a kept client        public      eval   no        once a round  none, once
 10      a student            public      train  yes       as in step 9  KL, up to distill_steps
  7, 10  a client; a student  validation  eval   no        no            none, once; at each check
  -      the global models    test        eval   no        no            `accuracy`, the mean
  -      the kept clients     test        eval   no        no            `client_accuracy`, the mean
  -      their mean logits    test        eval   no        no            `ensemble_accuracy`

A client of which a weight is nan, infinite, or 1e30 or more in magnitude is left out after step 6.
The student of a network without kept clients is its global model; without any kept client all
global models stay. If a model of step 11 has such a weight, it is the mean of step 8.

Departures; 3 and more are in docs/DEPARTURES.md
  1  Public code: draws from all clients. Here: from each network's, at least one.
  2  Public code: where step 7 leaves out nobody, outliers do not teach. Here: all teach.
"""
import copy
from dataclasses import dataclass
from statistics import fmean

import torch
import torch.nn.functional as F

from federation import (OPTIMIZERS, Algorithm, Count, Natural, NonNegative, Optimizer, Positive,
                        Settings, Share, accuracy, average_weights, count_weight_bytes,
                        disagreement, drop_bad_uploads, is_usable, minibatches, parallel_map,
                        predict)


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
    drop_worst: bool = True              # leave out clients near chance accuracy
    distill_steps: Count = 100           # of a student in a round, at most
    server_batch_size: Count = 128       # of a student
    server_lr: Positive = 1e-3           # of a student, in its first step
    server_optimizer: Optimizer = "adam"     # of a student, new in every round
    cosine: bool = True                  # a student's rate falls to 0 over distill_steps
    max_grad_norm: Positive | None = 5.0     # a student's longer gradients are scaled to this norm
    temperature: Positive = 1.0          # of teacher and student
    patience: Count | None = 60          # steps without a better accuracy; none: no checks at all
    check_every: Count = 20              # steps from one check of the accuracy to the next


# The public code's for CIFAR-10 with ResNet-8, where they differ from Config. Participation, 0.4 in
# its README and in FedSDD, is 0.1 in its commands.
PAPER = dict(rounds=100, local_epochs=40, batch_size=64, distill_steps=10000, server_batch_size=64,
             patience=1000, check_every=100)


def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round.

    fed       a `Federation`, with public images and, for drop_worst and patience, validation images
    cfg       a `Config`
    state     one that it has yielded, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ALGORITHM.check(fed, cfg, state, attack)
    clients_of = fed.clients_by_architecture()                           # {network: its clients}
    if state is None:
        # Step 1: a global model of random weights for each network.
        state = {"algorithm": "feddf", "round": 0,
                 "global_models": {name: new_model(fed, name).state_dict() for name in clients_of}}
        yield evaluate(fed, state), state
    models = state["global_models"]                                      # {network: weights}

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3-6: each active client trains its network's global model on its own images.
        drawn = fed.sample_by_architecture(cfg.participation, t)                     # departure 1
        active = sorted(i for clients in drawn.values() for i in clients)
        trained = parallel_map(fed, active, lambda i: train_client(
            fed, cfg, t, i, models[fed.architecture[i]]))
        uploads = attack.poison_weights(trained) if attack else trained
        uploads = drop_bad_uploads(uploads)                                  # {client: weights}

        # Step 7: clients near chance accuracy are left out.
        kept = above_chance(fed, uploads) if cfg.drop_worst and uploads else uploads

        # Step 8: each network's student is the mean of its clients' models.
        models = {name: average(fed, clients, kept, models[name])
                  for name, clients in clients_of.items()}

        # Step 9-11: the students train on the mean of the logits of all kept clients.
        distilled = {}                                       # {network: (weights, steps)}
        if kept:
            images = fed.augment_public(t)                                   # [N, c, h, w]
            teacher = predict_clients(fed, kept, images).mean(0)             # [N, C]
            distilled = parallel_map(fed, models, lambda name: distill(
                fed, cfg, t, name, models[name], images, teacher), threads=fed.threads)
        models = models | {name: weights for name, (weights, _) in distilled.items()
                           if is_usable(weights)}

        state = {**state, "round": t, "global_models": models}
        yield measure(fed, state, active, uploads, kept, distilled), state


def new_model(fed, name):
    """A new network of this name."""
    return fed.client_model(fed.architecture.index(name))


def train_client(fed, cfg, t, i, weights):
    """Client i starts from the global weights; returns new ones, trained on its own images."""
    images, labels = fed.private[i]
    model = fed.client_model(i)
    model.load_state_dict(weights)
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


def above_chance(fed, uploads):
    """Those uploads {client: weights} that are kept.   Step 7"""
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
    return stays if stays.any() else torch.ones_like(stays)              # departure 2


def average(fed, clients, kept, before):
    """The mean of these clients' models in kept {client: weights}, by numbers of images.   Step 8

    before    the weights that these clients started from; they stay if none of them is kept
    """
    members = [i for i in clients if i in kept]
    if not members:
        return before
    sizes = [len(fed.private[i].labels) for i in members]
    return average_weights([kept[i] for i in members], sizes)


def predict_clients(fed, uploads, images):
    """Logits [M, N, C] of the models {client: weights} on these images."""
    def predict_client(i):
        model = fed.client_model(i)
        model.load_state_dict(uploads[i])
        return predict(model, images)

    return torch.stack([*parallel_map(fed, uploads, predict_client).values()])


def distill(fed, cfg, t, name, weights, images, teacher):
    """(new weights of the student of this network, how many steps it made).   Step 10-11

    weights    those that it starts from
    images     the public ones of this round [N, c, h, w]
    teacher    its logits of them [N, C]
    """
    model = new_model(fed, name)
    model.load_state_dict(weights)
    optimizer = OPTIMIZERS[cfg.server_optimizer](model.parameters(), lr=cfg.server_lr)
    annealing = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cfg.distill_steps)
    best_accuracy, best_step, best_weights = -1.0, 0, None
    first_client = fed.architecture.index(name)          # names the network's random numbers
    model.train()
    with fed.random_numbers("distil", t, first_client) as rng:
        for step, rows in enumerate(minibatches(images, cfg.server_batch_size, rng,
                                                steps=cfg.distill_steps), start=1):
            student = model(images[rows])                                        # [B, C]
            loss = distillation_loss(student, teacher[rows], cfg.temperature)
            optimizer.zero_grad()
            loss.backward()
            if cfg.max_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.max_grad_norm)
            optimizer.step()
            if cfg.cosine:
                annealing.step()

            is_last = step == cfg.distill_steps
            if cfg.patience is not None and (step % cfg.check_every == 0 or is_last):
                found = accuracy(predict(model, fed.validation.images), fed.validation.labels)
                if found > best_accuracy:
                    best_accuracy, best_step = found, step
                    best_weights = copy.deepcopy(model.state_dict())
                elif step - best_step >= cfg.patience:
                    break
    return (model.state_dict() if cfg.patience is None else best_weights), step


def distillation_loss(student, teacher, temperature):
    """temperature² KL(teacher || student), the mean over the batch: a scalar.   Step 10

    student, teacher    finite logits [B, C]; the teacher's get no gradient
    """
    log_p = (teacher.detach() / temperature).log_softmax(-1)
    log_q = (student / temperature).log_softmax(-1)
    return temperature**2 * (log_p.exp() * (log_p - log_q)).sum(-1).mean()


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def measure(fed, state, active, uploads, kept, distilled):
    """The metrics of a round. Without any kept client those of the ensemble are None."""
    ensemble = dict.fromkeys(("client_accuracy", "client_accuracy_min", "client_accuracy_max",
                              "ensemble_accuracy", "disagreement"))
    if kept:
        logits = predict_clients(fed, kept, fed.test.images)             # [M, test images, C]
        accuracies = [accuracy(of_client, fed.test.labels) for of_client in logits]
        ensemble = {"client_accuracy": fmean(accuracies), "client_accuracy_min": min(accuracies),
                    "client_accuracy_max": max(accuracies),
                    "ensemble_accuracy": accuracy(logits.mean(0), fed.test.labels),
                    "disagreement": disagreement(logits)}
    return {**evaluate(fed, state), **ensemble, "dropped": len(uploads) - len(kept),
            "bad_uploads": len(active) - len(uploads),
            "teacher_forwards": len(kept) * len(fed.public.images),     # images, each by each model
            "steps": sum(steps for _, steps in distilled.values()),     # of all students
            **count_weight_bytes([(fed.client_model(i), 1) for i in active])}


def evaluate(fed, state):
    """Test accuracy of the global models: the mean and, of several networks, of each."""
    def test(name):
        model = new_model(fed, name)
        model.load_state_dict(state["global_models"][name])
        return accuracy(predict(model, fed.test.images), fed.test.labels)

    accuracies = parallel_map(fed, state["global_models"], test)         # {network: accuracy}
    each = {f"server_accuracy_{name}": found for name, found in accuracies.items()}
    return {"accuracy": fmean(accuracies.values())} | (each if len(each) > 1 else {})


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

def check(fed, cfg, state, attack):
    """Raises ValueError for an attack on several networks: it computes means over weights."""
    if attack and len(fed.clients_by_architecture()) > 1:
        raise ValueError("feddf: an attack on weights needs one network for all clients")


def needs(cfg):
    return {"public"} | ({"validation"} if cfg.drop_worst or cfg.patience is not None else set())


def models(state, client_network, server_network):
    """{name: [(network, weights)]} of the server's models: one of each network."""
    return {f"server {k}" if k else "server": [pair]
            for k, pair in enumerate(state["global_models"].items())}


ALGORITHM = Algorithm(
    "feddf", run, Config, public="unlabeled", mixed_networks=True,
    needs_for=needs, check_more=check, program=dict(
        paper=PAPER, models=models,
        scores={"accuracy": ("server", "test"), "ensemble_accuracy": ("ensemble", "test"),
                "client_accuracy": ("clients", "test")},
        clients_score="client_accuracy", shares=("disagreement",),
        columns=("disagreement", "teacher_forwards", "dropped", "steps"),
        plateau=("lr", "server_lr"), evaluate=evaluate))
