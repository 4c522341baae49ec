"""FedDF: the server averages the clients' models, and the clients' ensemble teaches the average.

Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020,
arXiv:2006.07242; written from its public code, whose settings are the defaults. Equations have the
numbers of FedSDD (Kwan and Song, arXiv:2312.17029v1), which compares itself with it.

Run:    python fedkd_minimal.py --algo feddf    small settings, about half a minute
        --paper feddf has the paper's, which are the defaults of `run`; --paper fedsdd, FedSDD's
Data:   clients: their own labeled images; server: N unlabeled public images, and labeled validation
        images of the task for --drop-worst and --patience, which are both on by default
Sent:   down: its network's global model, to each active client; up: its model, its sample count

A round; the numbers are ours, and clients may have different networks:
 1  active clients train their network's global model on their own images, by cross-entropy
 2  clients with a validation accuracy below 1.2 / C (chance is 1 / C) are left out, unless all are
 3  each network's student, x_{t,0}, is the mean of its remaining clients' models, by sample counts
 4  the teacher, AVGLOGITS, is the mean of the logits of the remaining clients of all networks
 5  each student makes steps on KL(teacher || student) over the public images, until its validation
    accuracy has not grown for --patience steps; then it takes the weights of its best step

Scores: `accuracy` is the students' after step 5, in the mean over the networks; `client_accuracy`
        and `ensemble_accuracy` are of the clients' models of step 3, before they are averaged
D2  models are averaged by sample counts; the public code weighs them equally, which is the same in
    its equal partition
D9  the loss has the factor temperature², which is 1 at the paper's temperature
"""
import copy
from typing import NamedTuple

import torch
import torch.nn.functional as F

from algorithms import Algorithm, checked
from algorithms.equations import average_weights, distillation_loss, ensemble_logits
from federation import timed
from federation.communication import weights_ledger
from federation.evaluation import Score, accuracy, client_metrics, disagreement, global_metrics
from federation.parallel import active_clients, by_architecture, run_students
from federation.training import (OPTIMIZERS, Optimizer, forward, load_model, network,
                                 predict_logits, predict_members, shuffled)
from federation.uploads import collect


def drop_worst(accuracies, num_classes):
    """True for clients that stay: right at least 1.2 times as often as chance; all, if none is.

    accuracies     float [M], in [0, 1], on a validation set
    num_classes    C; chance is right with probability 1/C
    returns        bool [M]
    >>> drop_worst(torch.tensor([0.11, 0.12, 0.50]), num_classes=10)
    tensor([False,  True,  True])
    """
    accuracies = torch.as_tensor(accuracies, dtype=torch.float64)
    stays = accuracies >= 1.2 / num_classes - 1e-6           # 12% stays in spite of rounding
    return stays if stays.any() else torch.ones_like(stays)


def train_client(fed, i, t, global_model, local_epochs, local_steps, batch_size, lr,
                 optimizer_name, weight_decay):
    """Client i's upload in round t: its network's global model after training on its own images."""
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    model = load_model(fed, global_model)                                 # FedSDD Eq. (1): a copy
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    model.train()
    # `shuffled` augments with --augment; ("local", t, i) names the random numbers of this training.
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size, steps=local_steps):
        loss = F.cross_entropy(forward(fed, model, batch), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"model": model.state_dict()}


def predict_clients(fed, uploads, images):
    """Logits [M, N, C] of the models {client: upload} on clean images, in eval mode."""
    members = [{"architecture": fed.architecture[i], "model": upload["model"]}
               for i, upload in uploads.items()]
    return predict_members(fed, members, images)


def above_chance(fed, uploads):
    """The uploads {client: upload} of those that `drop_worst` lets stay, by validation accuracy."""
    client_logits = predict_clients(fed, uploads, fed.validation.images)                 # [M, N, C]
    accuracies = [accuracy(logits, fed.validation.labels) for logits in client_logits]   # [M]
    stays = drop_worst(accuracies, fed.num_classes)                                      # [M]
    return {i: uploads[i] for i, stay in zip(uploads, stays) if stay}


def aggregate(fed, global_model, uploads):
    """The global model: the mean of its network's models in {client: upload}, by sample counts."""
    own = [i for i in uploads if fed.architecture[i] == global_model["architecture"]]
    if not own:                                          # none of this network: the model stays
        return global_model
    sizes = [len(fed.private[i].labels) for i in own]
    models = [uploads[i]["model"] for i in own]
    return global_model | {"model": average_weights(models, sizes)}          # FedSDD Eq. (2), D2


class Distilled(NamedTuple):
    """A student after distillation, and the number of its steps."""

    student: dict      # {"architecture", "model"}
    steps: int


@timed
def distill(fed, t, student, teacher_logits, distill_steps, server_batch_size, server_lr,
            server_optimizer, cosine, max_grad_norm, temperature, patience, check_every):
    """`Distilled`: the student after steps towards teacher_logits [N, C] on the public images."""
    model = load_model(fed, student)
    optimizer = OPTIMIZERS[server_optimizer](model.parameters(), lr=server_lr)
    annealing = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, distill_steps)
    best_accuracy = float("-inf")
    best_step = 0
    best_weights = None
    first_client = fed.architecture.index(student["architecture"])
    model.train()
    # The first client that has this network stands for it in the name of this training's random
    # numbers. With --augment the student sees augmented images; the teacher saw the clean ones.
    for step, (rows, batch) in enumerate(
            shuffled(fed, fed.public.images, ("distil", t, first_client),
                     batch_size=server_batch_size, steps=distill_steps), start=1):
        student_logits = forward(fed, model, batch)                                      # [B, C]
        loss = distillation_loss(teacher_logits[rows], student_logits, temperature)      # D9
        optimizer.zero_grad()
        loss.backward()
        if max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        optimizer.step()
        if cosine:
            annealing.step()
        if patience is not None and (step % check_every == 0 or step == distill_steps):
            logits = predict_logits(fed, model, fed.validation.images)       # clean, in eval mode
            step_accuracy = accuracy(logits, fed.validation.labels)
            if step_accuracy > best_accuracy:
                best_accuracy = step_accuracy
                best_step = step
                best_weights = copy.deepcopy(model.state_dict())
            elif step - best_step >= patience:
                break
    weights = model.state_dict() if patience is None else best_weights
    return Distilled(student | {"model": weights}, step)


@timed
def evaluate(fed, state):
    """Test accuracy of the global models: of each network's, and in the mean."""
    return global_metrics(fed, state["global_models"])


@timed
def evaluate_ensemble(fed, uploads):
    """Test accuracy of the clients in {client: upload}, and of their ensemble; None without any."""
    if not uploads:
        return dict.fromkeys(("client_accuracy", "client_accuracy_min", "client_accuracy_max",
                              "ensemble_accuracy", "disagreement"))
    client_logits = predict_clients(fed, uploads, fed.test.images)                       # [M, N, C]
    scores = [Score(accuracy(logits, fed.test.labels), None) for logits in client_logits]
    return {**client_metrics(scores),
            "ensemble_accuracy": accuracy(ensemble_logits(client_logits), fed.test.labels),
            "disagreement": disagreement(client_logits)}


def check_settings(fed, *, attack, **settings):
    """Raises ValueError for an attack on several networks: it computes means over weights."""
    if attack and len(by_architecture(fed)) > 1:
        raise ValueError("feddf: an attack on weights needs one network for all clients")


@checked
def run(fed, state=None, *,
        rounds: int = 100,                     # in all
        participation: float = 0.4,            # share of each network's clients in a round
        local_epochs: int = 40,                # a client's passes over its images in a round, or,
        local_steps: int | None = None,        #   if given, its steps
        batch_size: int = 64,                  # of a client
        lr: float = 0.1,                       # of a client
        optimizer: Optimizer = "sgd",          # of a client, new in every round
        weight_decay: float = 0.0,             # of a client
        drop_worst: bool = True,               # leave out clients near chance accuracy
        distill_steps: int = 10000,            # of a student in a round, at most
        server_batch_size: int = 64,           # of a student
        server_lr: float = 1e-3,               # of a student, at the start
        server_optimizer: Optimizer = "adam",  # of a student, new in every round
        cosine: bool = True,                   # does its rate fall to 0 over distill_steps?
        max_grad_norm: float | None = 5.0,     # longer gradients are shortened to this norm
        temperature: float = 1.0,              # of both softmaxes in the loss
        patience: int | None = 1000,           # steps without growth, then stop; None: never
        check_every: int = 100,                # steps from one validation to the next
        attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round."""
    if state is None:
        global_models = [{"architecture": name, "model": network(fed, name).state_dict()}
                         for name in by_architecture(fed)]
        state = {"round": 0, "global_models": global_models}
        yield evaluate(fed, state), state
    global_models = state["global_models"]

    for t in range(state["round"] + 1, rounds + 1):
        # Active clients start from their network's global model.
        active = sorted(i for ids in active_clients(fed, participation, t).values() for i in ids)
        model_of = {model["architecture"]: model for model in global_models}

        def train(i):
            return train_client(fed, i, t, model_of[fed.architecture[i]], local_epochs,
                                local_steps, batch_size, lr, optimizer, weight_decay)

        # {i: train(i)}, in parallel. Attackers' models are replaced; unusable uploads (nan,
        # infinity, 1e30 or more) are left out.
        uploads = collect(fed, active, train, attack)                        # step 1
        # Clients near chance accuracy would spoil the averages and the ensemble.
        kept = above_chance(fed, uploads) if drop_worst and uploads else uploads     # step 2
        averaged = [aggregate(fed, model, kept) for model in global_models]  # step 3, D2

        # Every network's student learns from the clients of all networks, if any is left.
        def teach(k):
            return distill(fed, t, averaged[k], teacher_logits, distill_steps, server_batch_size,
                           server_lr, server_optimizer, cosine, max_grad_norm, temperature,
                           patience, check_every)

        distilled = [Distilled(average, steps=0) for average in averaged]
        if kept:
            client_logits = predict_clients(fed, kept, fed.public.images)    # [M, N, C]
            teacher_logits = ensemble_logits(client_logits)                  # step 4: [N, C]
            distilled = run_students(fed, teach, range(len(averaged)))       # step 5
        global_models = [student for student, _ in distilled]

        # All that the next round needs; clients and optimizers keep nothing.
        state = {"round": t, "global_models": global_models}
        # Measured; no step above sees it.
        metrics = {**evaluate(fed, state), **evaluate_ensemble(fed, kept),
                   "dropped": len(uploads) - len(kept),
                   "teacher_forwards": len(kept) * len(fed.public.images),
                   "steps": sum(steps for _, steps in distilled),
                   "bad_uploads": len(active) - len(uploads),
                   **weights_ledger([(network(fed, fed.architecture[i]), 1) for i in active], 1)}
        yield metrics, state


ALGORITHM = Algorithm(
    "feddf", run,
    scores={"server_accuracy": "server", "ensemble_accuracy": "ensemble",
            "client_accuracy": "clients"},
    keeps=("global_models",),
    public="unlabeled", mixed_networks=True, check_settings=check_settings,
    validation_for=("drop_worst", "patience"), plateau=("lr", "server_lr"), evaluate=evaluate,
    columns=("accuracy", "client_accuracy", "ensemble_accuracy", "disagreement",
             "teacher_forwards", "dropped", "steps"))
