"""FedDF: the server averages the clients' models, then teaches the average what the clients' models say on public images.

Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020; here as the baseline of FedSDD
(Kwan and Song, arXiv:2312.17029v1), whose equations are quoted. The defaults are FedDF's own settings as its public code has
them; --paper fedsdd has those that FedSDD compares with, and FedSDD Table 10 goes from one to the other.
What travels: weights, down and up. Public data: unlabelled, on the server, and labelled images of the task for validation.
Clients may have different networks: one average each, and every client is a teacher of all of them.
Run:   python fedkd_minimal.py --algo feddf

Paper              here                         shape            note
x_k                uploads[i]["model"]          state_dict       client i's model after local training
x_{t,0}            servers[name]["model"]       state_dict       the average of one network's clients: where its student starts
f(x_k)             client_logits                [M, N, C]        raw logits of the M clients on the public images
AVGLOGITS          teacher_logits               [N, C]           their mean
v                  accuracies                   [M]              of the clients' models on the server's validation set

A round trains the clients, leaves out the worst, averages the others' models network by network, and distils into each average.
The teachers and the public images do not change while a student learns, so each teacher predicts each image once: M x N samples
a round, where the public code predicts anew at every step.

Where the paper is silent or we differ:
D1  the clients' models count by their numbers of samples in the average (the public code counts them equally, which its equal
    partition hides)                                                 [test_feddf_round_by_hand]
D2  BatchNorm's statistics are averaged too; in the public code the average keeps the last client's
                                                                     [test_the_averages_running_statistics_are_the_clients_mean]
D3  teachers are in eval mode and stay as they are                   [test_teachers_stay_as_they_are_and_do_not_see_the_batch]
D4  drop-worst is the threshold alone; the public code has a second rule when nobody falls below it
                                                                     [test_drop_worst_by_hand]
D5  the last step is looked at as well, and stands if no other was   [test_fewer_steps_than_a_look_still_return_a_student]
D6  at temperatures other than the paper's 1 the loss has the factor temperature²  [test_distil_is_temperature_squared_kl]
D7  written from FedDF's public code, without its text at hand; for what that leaves to the caller we take FedSDD's local epochs
    and batch size, and the local rate 0.1                           [test_defaults_are_the_papers]
"""
import copy
import itertools

import torch
from torch import nn

from algorithms import fedavg
from algorithms.common import (OPTIMIZERS, Optimizer, accuracy, active_clients, batches, by_architecture, disagreement,
                               distillation_loss, forward, is_finite, predict_logits, predict_members, run_clients, seconds,
                               seeded, server_metrics, stream)
from attacks import attack_uploads
from communication import weights_ledger

PUBLIC = "unlabelled"
VALIDATION = ("drop_worst", "patience")     # keywords that need the server's validation set, unless they are off
MIXED = True    # may clients have different networks?
COLUMNS = ("accuracy", "ensemble_accuracy", "disagreement", "teacher_forwards", "dropped", "steps")


def drop_worst(accuracies, num_classes):
    """Who stays: the clients that are right at least 1.2 times as often as a guess; everyone, if nobody is.

    accuracies    float [M], in [0, 1], on a validation set; num_classes: C, where a guess is right with 1/C
    returns       bool [M]
    >>> drop_worst(torch.tensor([0.11, 0.12, 0.50]), num_classes=10)
    tensor([False,  True,  True])
    """
    accuracies = torch.as_tensor(accuracies, dtype=torch.float64)
    stays = accuracies >= 1.2 / num_classes - 1e-6                                       # 12% stays, whatever its last bit
    return stays if stays.any() else torch.ones_like(stays)


def without_worst(fed, models, uploads):
    """The uploads {client: upload} of those who stay; models[i] is a workbench for client i's network."""
    states = [upload["model"] for upload in uploads.values()]
    client_logits = predict_members(fed, [models[i] for i in uploads], states, fed.validation.images)
    accuracies = [accuracy(logits, fed.validation.labels) for logits in client_logits]   # [M]
    return {i: upload for (i, upload), stays in zip(uploads.items(), drop_worst(accuracies, fed.num_classes)) if stays}


def distil(fed, t, i, model_state, teacher_logits, *, distill_steps, server_batch_size, server_lr, server_optimizer, cosine,
           max_grad_norm, temperature, patience, check_every):
    """(state_dict, steps made): a student of client i's network, from model_state towards teacher_logits [N, C] on public images.

    With patience, what is returned is the student that was best on the validation set, looked at every check_every steps; it
    ends when no look of the last `patience` steps was a new best. Without, it is the student after all distill_steps.
    """
    model = fed.client_model(i)
    model.load_state_dict(model_state)
    model.train()
    update = OPTIMIZERS[server_optimizer](model.parameters(), lr=server_lr)
    annealing = torch.optim.lr_scheduler.CosineAnnealingLR(update, distill_steps)
    rng = stream(fed.seed, "distil", t, i)
    images = fed.public.images
    best_accuracy, best_state, best_step = -1.0, None, 0
    with seeded(fed.seed, "distil", t, i):
        passes = batches(len(images), server_batch_size, distill_steps, rng, fed.device)    # more than enough: a pass is >= 1 step
        for step, rows in enumerate(itertools.islice(passes, distill_steps), start=1):   # rows: [B]
            batch = fed.augment(images[rows], rng) if fed.augment else images[rows]
            loss = distillation_loss(teacher_logits[rows], forward(fed, model, batch), temperature)      # FedSDD Eq. (4)
            update.zero_grad()
            loss.backward()
            if max_grad_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
            update.step()
            if cosine:
                annealing.step()
            if patience is not None and (step % check_every == 0 or step == distill_steps):
                validation_accuracy = accuracy(predict_logits(fed, model, fed.validation.images), fed.validation.labels)
                if validation_accuracy > best_accuracy:
                    best_accuracy, best_state, best_step = validation_accuracy, copy.deepcopy(model.state_dict()), step
                elif step - best_step >= patience:
                    break
    return (model.state_dict() if patience is None else best_state), step


def run(fed, state=None, *, rounds: int = 100, participation: float = 0.4, local_epochs: int = 40, batch_size: int = 64,
        lr: float = 0.1, optimizer: Optimizer = "sgd", weight_decay: float = 0.0, drop_worst: bool = True,
        distill_steps: int = 10000, server_batch_size: int = 128, server_lr: float = 1e-3,
        server_optimizer: Optimizer = "adam", cosine: bool = True, max_grad_norm: float | None = 5.0,
        temperature: float = 1.0, patience: int | None = 1000, check_every: int = 100, secure_sum: bool = False,
        attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    drop_worst      clients that hardly beat a guess on the validation set neither count in the average nor teach
    cosine          the server's rate falls to 0 over distill_steps
    patience        steps without a better student, on the validation set, before a distillation ends; none: it never does
    secure_sum      an error that says why
    attack          (uploads [M, P], client ids, rows [P], t) -> uploads: what malicious clients make of theirs, as vectors
    """
    if secure_sum:
        raise ValueError("feddf cannot have --secure-sum: its teachers are the clients' own models, so the server must see them "
                         "one by one, and a secure sum hides them; fedsdd can, whose teachers are averages")
    if attack and len(set(fed.architecture)) > 1:
        raise ValueError("--attack on weights needs one network for all clients")
    if (drop_worst or patience is not None) and fed.validation is None:
        raise ValueError("feddf needs a validation set for --drop-worst and --patience")
    settings = dict(local_epochs=local_epochs, batch_size=batch_size, lr=lr, optimizer=optimizer, weight_decay=weight_decay)
    clients_of = by_architecture(fed)                    # {name of a network: its clients}
    bench = {name: fed.client_model(ids[0]) for name, ids in clients_of.items()}     # states are loaded into these to predict
    models = [bench[name] for name in fed.architecture]
    if state is None:
        state = {"round": 0, "servers": {name: fedavg.start_server(fed, i=ids[0]) for name, ids in clients_of.items()}}
        yield server_metrics(fed, bench, {name: server["model"] for name, server in state["servers"].items()}), state
    servers = state["servers"]
    for t in range(state["round"] + 1, rounds + 1):
        start = seconds(fed.device)
        active = sorted(itertools.chain(*active_clients(fed, participation, t).values()))
        trained = run_clients(lambda i: fedavg.train_client(fed, i, t, servers[fed.architecture[i]], None, **settings),
                              active, fed.device)                                        # FedSDD Eq. (1)
        trained = attack_uploads(attack, trained, active, t) if attack else trained
        good = {i: upload for i, (upload, _) in zip(active, trained) if is_finite(upload)}
        trained_at = seconds(fed.device)

        kept = without_worst(fed, models, good) if drop_worst and good else good
        servers = {name: fedavg.aggregate(fed, server, {i: kept[i] for i in clients_of[name] if i in kept})
                   for name, server in servers.items()}                                  # FedSDD Eq. (2)
        own_models, own_states = [models[i] for i in kept], [upload["model"] for upload in kept.values()]
        steps = 0
        if kept:
            client_logits = predict_members(fed, own_models, own_states, fed.public.images)              # [M, N, C]
            teacher_logits = client_logits.mean(0)                                       # [N, C]
            for name, ids in clients_of.items():
                student, made = distil(fed, t, ids[0], servers[name]["model"], teacher_logits, distill_steps=distill_steps,
                                       server_batch_size=server_batch_size, server_lr=server_lr, server_optimizer=server_optimizer,
                                       cosine=cosine, max_grad_norm=max_grad_norm, temperature=temperature, patience=patience,
                                       check_every=check_every)
                servers[name], steps = {"model": student}, steps + made
        distilled_at = seconds(fed.device)

        test_logits = predict_members(fed, own_models, own_states, fed.test.images) if kept else None    # [M, N_test, C]
        metrics = {**server_metrics(fed, bench, {name: server["model"] for name, server in servers.items()}),
                   "ensemble_accuracy": accuracy(test_logits.mean(0), fed.test.labels) if kept else None,
                   "disagreement": disagreement(test_logits) if kept else None,
                   "teacher_forwards": len(kept) * len(fed.public.images), "dropped": len(good) - len(kept), "steps": steps,
                   "bad_uploads": len(active) - len(good),
                   "local_seconds": trained_at - start, "distill_seconds": distilled_at - trained_at,
                   **weights_ledger([(models[i], 1) for i in active], fedavg.COPIES)}
        yield metrics, {"round": t, "servers": servers}
