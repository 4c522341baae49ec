"""FedDF: the server averages the clients' models, and the clients' ensemble teaches the average.

Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020;
here as the baseline of FedSDD (Kwan and Song, arXiv:2312.17029v1): equation numbers are FedSDD's.
Written from FedDF's public code, whose settings are the defaults; --paper fedsdd has those of
FedSDD's comparison.

Run:   python fedkd_minimal.py --algo feddf
What travels: in each round the server sends each active client its network's global model; the
client sends back its trained model and its number of samples. No logits travel.
Public data: unlabeled images, on the server alone. --drop-worst and --patience, both on by default,
also need labeled images of the task there, held by no client: fed.validation.
Clients may have different networks: each network has its own average, and every student learns from
the clients of all networks.

Paper              here                         shape         note
x_k                uploads[i]["model"]          state_dict    client i's model after local training
x_{t,0}            averaged                     models        the average of each network's clients:
                                                              where its student starts
f(x_k)             client_logits                [M, N, C]     of M clients on N public images
AVGLOGITS          teacher_logits               [N, C]        their mean
v                  accuracies                   [M]           of clients, on the validation set

A round:
 1  active clients train their network's global model on their own samples: cross-entropy,
    --optimizer (plain SGD)
 2  --drop-worst leaves out clients whose accuracy on the validation set is below 1.2 / C; if all
    are below, all are kept
 3  a student is the average of its network's remaining clients, by numbers of samples, FedSDD
    Eq. (2)
 4  the server runs each remaining client's model once over the public images; the teacher is the
    mean of their logits
 5  each student makes steps towards the teacher, on batches of public images: Adam with cosine
    annealing and clipped gradients, on temperature² KL(teacher || student), both softmaxes at the
    temperature. A student stops when the last --patience steps brought no better validation
    accuracy, and its weights at the best one are taken

Modes: clients and students train in train mode, with --augment on augmented images; each loss is
the mean over the batch. All predictions, the teacher's and those on validation and test images, are
of clean images in eval mode: a student sees an augmented image, its teacher the clean one.
Kept between rounds: one global model for each network. No optimizer is kept.
Scores: `accuracy` and server_accuracy are of the students after step 5, in the mean over the
networks, client_accuracy of the uploads that count in step 3, ensemble_accuracy of their mean
logits; disagreement is among them. dropped: clients that step 2 left out. steps: of all students in
step 5. teacher_forwards: public images that clients predicted in step 4.
Bad upload (nan or infinity): `collect` leaves it out of steps 2 to 5. A network without a remaining
upload starts its student from its old global model. If none is left at all, all global models stay,
and the scores of clients and of their ensemble are null.
Departures (docs/DEPARTURES.md has more):
D2  models are averaged by numbers of samples; the public code weighs them equally, which is the
    same in its equal partition
D9  the loss has the factor temperature², which is 1 at the paper's temperature
"""
import copy
import itertools
from typing import NamedTuple

import torch
from torch import nn

from algorithms import Algorithm, checked, fedavg
from algorithms.equations import distillation_loss, ensemble_logits
from federation import timed
from federation.communication import weights_ledger
from federation.evaluation import Score, accuracy, client_metrics, disagreement, global_metrics
from federation.parallel import active_clients, by_architecture, run_students
from federation.training import (OPTIMIZERS, Best, Optimizer, best_of, forward, load_model, network,
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


def without_worst(fed, uploads):
    """The uploads {client: upload} of the clients that stay by `drop_worst`."""
    client_logits = predict_members(fed, client_members(fed, uploads), fed.validation.images)
    accuracies = [accuracy(logits, fed.validation.labels) for logits in client_logits]   # [M]
    stays = drop_worst(accuracies, fed.num_classes)
    return {i: uploads[i] for i, keep in zip(uploads, stays) if keep}


def client_members(fed, uploads):
    """The clients' models, [{"architecture", "model"}]."""
    return [{"architecture": fed.architecture[i], "model": upload["model"]}
            for i, upload in uploads.items()]


def average_networks(fed, global_models, uploads):
    """The average of each network's uploads; a network without any keeps its global model."""
    averaged = []
    for global_model in global_models:
        own = {i: upload for i, upload in uploads.items()
               if fed.architecture[i] == global_model["architecture"]}
        averaged.append(fedavg.aggregate(fed, global_model, own))               # FedSDD Eq. (2), D2
    return averaged


class Distilled(NamedTuple):
    """A student after distillation, and the number of steps of the distillation."""

    student: dict      # {"architecture", "model"}; with patience the weights of the best step
    steps: int


@timed
def distill(fed, t, student, teacher_logits, *, distill_steps, server_batch_size, server_lr,
           server_optimizer, cosine, max_grad_norm, temperature, patience, check_every):
    """`Distilled`: the student after steps towards teacher_logits [N, C] on the public images."""
    model = load_model(fed, student)
    optimizer = OPTIMIZERS[server_optimizer](model.parameters(), lr=server_lr)
    annealing = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, distill_steps)
    first_client = fed.architecture.index(student["architecture"])       # stands for the network
    best, best_state = Best(), None
    model.train()                        # --augment: the batches are augmented
    for step, (rows, batch) in enumerate(
            shuffled(fed, fed.public.images, ("distil", t, first_client),
                     batch_size=server_batch_size, steps=distill_steps), start=1):
        student_logits = forward(fed, model, batch)                                      # [B, C]
        loss = distillation_loss(teacher_logits[rows], student_logits, temperature)      # D9
        optimizer.zero_grad()
        loss.backward()
        if max_grad_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        optimizer.step()
        if cosine:
            annealing.step()
        if patience is not None and (step % check_every == 0 or step == distill_steps):
            logits = predict_logits(fed, model, fed.validation.images)     # in eval mode
            best = best_of(best, accuracy(logits, fed.validation.labels), now=step)
            if best.when == step:
                best_state = copy.deepcopy(model.state_dict())
            elif step - best.when >= patience:
                break
    model_state = model.state_dict() if patience is None else best_state
    return Distilled(student | {"model": model_state}, step)


@timed
def evaluate(fed, state, uploads=None):
    """Test accuracy of the global models, of the clients in `uploads`, and of their ensemble."""
    metrics = global_metrics(fed, state["global_models"])
    if uploads is None:
        return metrics
    if not uploads:
        return metrics | dict.fromkeys(("client_accuracy", "client_accuracy_min",
                                        "client_accuracy_max", "ensemble_accuracy", "disagreement"))
    client_logits = predict_members(fed, client_members(fed, uploads), fed.test.images)  # [M, N, C]
    scores = [Score(accuracy(logits, fed.test.labels), None) for logits in client_logits]
    return {**metrics, **client_metrics(scores),
            "ensemble_accuracy": accuracy(ensemble_logits(client_logits), fed.test.labels),
            "disagreement": disagreement(client_logits)}


def check_settings(fed, *, attack, **settings):
    """Raises ValueError for an attack on several networks: it computes means over weights."""
    if attack and len(by_architecture(fed)) > 1:
        raise ValueError("feddf: an attack on weights needs one network for all clients")


@checked
def run(fed, state=None, *, rounds: int = 100, participation: float = 0.4, local_epochs: int = 40,
        local_steps: int | None = None, batch_size: int = 64, lr: float = 0.1,
        optimizer: Optimizer = "sgd", weight_decay: float = 0.0, drop_worst: bool = True,
        distill_steps: int = 10000, server_batch_size: int = 64, server_lr: float = 1e-3,
        server_optimizer: Optimizer = "adam", cosine: bool = True,
        max_grad_norm: float | None = 5.0, temperature: float = 1.0,
        patience: int | None = 1000, check_every: int = 100, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    distill_steps    steps of distillation in a round, at most
    hyperparameters.py explains the other keywords.
    """
    training = dict(local_epochs=local_epochs, local_steps=local_steps, batch_size=batch_size,
                    lr=lr, optimizer_name=optimizer, weight_decay=weight_decay)
    distillation = dict(distill_steps=distill_steps, server_batch_size=server_batch_size,
                        server_lr=server_lr, server_optimizer=server_optimizer, cosine=cosine,
                        max_grad_norm=max_grad_norm, temperature=temperature, patience=patience,
                        check_every=check_every)
    if state is None:
        global_models = [fedavg.start_server(fed, name) for name in by_architecture(fed)]
        state = {"round": 0, "global_models": global_models}
        yield evaluate(fed, state), state
    global_models = state["global_models"]
    for t in range(state["round"] + 1, rounds + 1):
        # Active clients train their network's global model on their own data.
        active = sorted(itertools.chain(*active_clients(fed, participation, t).values()))
        model_of = {saved["architecture"]: saved for saved in global_models}
        uploads = collect(fed, active, lambda i: fedavg.train_client(            # FedSDD Eq. (1)
            fed, i, t, model_of[fed.architecture[i]], **training), attack)

        # Clients near chance accuracy are excluded; each network's remaining models are averaged.
        kept = without_worst(fed, uploads) if drop_worst and uploads else uploads
        averaged = average_networks(fed, global_models, kept)

        # Every student learns from the mean logits of all kept clients, if there are any.
        distilled = [Distilled(average, steps=0) for average in averaged]
        if kept:
            client_logits = predict_members(fed, client_members(fed, kept), fed.public.images)
            teacher_logits = ensemble_logits(client_logits)                      # [N, C]
            distilled = run_students(fed, lambda k: distill(
                fed, t, averaged[k], teacher_logits, **distillation), range(len(averaged)))
        global_models = [student for student, _ in distilled]

        state = {"round": t, "global_models": global_models}
        messages = [(network(fed, fed.architecture[i]), 1) for i in active]
        metrics = {**evaluate(fed, state, kept), "dropped": len(uploads) - len(kept),
                   "teacher_forwards": len(kept) * len(fed.public.images),
                   "steps": sum(steps for _, steps in distilled),
                   "bad_uploads": len(active) - len(uploads),
                   **weights_ledger(messages, fedavg.COPIES)}
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
