"""FedSDD's ablations, Tables 5 and 6: who is in the ensemble, and which models learn from it.

Kwan and Song, arXiv:2312.17029v1. The loop is that of fedsdd.py except for lines marked with a
table. With --students none the ensemble of the K models is Fed-ensemble (Shi et al.,
arXiv:2107.10663): read its `ensemble_accuracy`.

Run:   python fedkd_minimal.py --algo fedsdd-ablations --students all
       (small settings of experiment/presets.py; with --paper fedsdd: `run`'s defaults)
What travels: as in fedsdd.py. In each round the server sends each active client the global model of
its group; the client sends its trained model back.
Public data: unlabeled images, on the server alone.

Paper                       here                         shape         note
diversity-enhanced          students = "main"            Table 6       FedSDD: the main model learns
basic                       students = "all"             Table 6       all K models learn
basic with warm-up          warmup_rounds                Table 6       no distillation at first
no distillation             students = "none"            Table 6       Fed-ensemble
ensemble of clients         ensemble = "clients"         Table 5       members: all clients' models
w_{t,k}                     averaged, members            state_dicts   before distillation

Losses and optimizers are those of fedsdd.py: for clients cross-entropy with plain SGD, for students
temperature² KL(teacher || student) with plain SGD. All optimizers are new in every round.

Kept between rounds: by the server the global models, and for each of the last R rounds the mean
logits of the members on the public images (ring) and on the test images (test_ring).
Scores: those of fedsdd.py, on the test set (with --public half: on the half that is not public).
`accuracy` is the main model's, also where other models learn or none does. ensemble_accuracy and
disagreement are the members', before distillation.
Bad upload: `collect` leaves out a model with nan, infinity or a magnitude of 1e30 or more, and
bad_uploads counts it. It is no member of an ensemble of clients. If no upload is left at all, the
averaged models are the members.
Departures (more: docs/DEPARTURES.md):
D1  all students learn from the same teacher, the ensemble before any distillation
"""
from typing import Literal

import torch

from algorithms import Algorithm
from algorithms.equations import ensemble_logits
from algorithms.fedsdd import (
    check_settings,
    deal_clients,
    distill,
    evaluate,
    evaluate_ensemble,
    is_main,
    ledger,
    local_method,
    start_models,
    train_groups,
)
from federation.parallel import run_students
from federation.training import predict_members


def client_members(averaged, uploads):
    """All clients' models, [{"architecture", "model"}] by client; without uploads the averages."""
    clients = {i: average | {"model": upload["model"]}
               for average, group in zip(averaged, uploads) for i, upload in group.items()}
    return [clients[i] for i in sorted(clients)] or averaged


def run(fed, state=None, *, rounds: int = 100, participation: float = 0.4, K: int = 4, R: int = 1,
        ensemble: Literal["aggregated", "clients"] = "aggregated",
        students: Literal["main", "all", "none"] = "main", warmup_rounds: int = 0,
        local: Literal["fedavg", "fedprox", "scaffold"] = "fedavg", local_epochs: int = 40,
        local_steps: int | None = None, batch_size: int = 64, lr: float = 0.8, mu: float = 0.001,
        distill_steps: int = 5000, server_batch_size: int = 256, server_lr: float = 0.1,
        temperature: float = 4.0, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    ensemble         members of the ensemble: aggregated global models, or clients' models
    students         global models that learn from the ensemble: the main one, all, or none
    warmup_rounds    rounds at the start without distillation
    The other keywords, and attack, are explained in hyperparameters.py.
    """
    method = local_method(local, mu, local_epochs=local_epochs, local_steps=local_steps,
                          batch_size=batch_size, lr=lr)
    distillation = dict(distill_steps=distill_steps, server_batch_size=server_batch_size,
                        server_lr=server_lr, temperature=temperature)

    def learns(k):                                                               # Table 6
        return students == "all" or is_main(k, K)

    if state is None:
        ALGORITHM.check(fed, participation=participation, K=K, local=local, attack=attack)
        state = {"round": 0, "global_models": start_models(fed, method, K),      # Alg. 1, line 1
                 "ring": [], "test_ring": []}
        yield evaluate(fed, state, K), state
    global_models, ring, test_ring = state["global_models"], state["ring"], state["test_ring"]
    for t in range(state["round"] + 1, rounds + 1):                              # Alg. 1, line 2
        # Clients are dealt to the K models anew, so that each model learns from all clients' data.
        groups = deal_clients(fed, t, participation, K)
        uploads = train_groups(fed, t, groups, global_models, method, attack)    # Alg. 1, line 3-6
        averaged = [method.aggregate(fed, global_model, uploads[k])              # Alg. 1, line 7
                    for k, global_model in enumerate(global_models)]

        # Members are the averaged models or, in Table 5, the models of all clients.
        members = client_members(averaged, uploads) if ensemble == "clients" else averaged

        # The teacher is the ensemble of the members of the last R rounds.
        if students != "none":                                                   # Table 6
            member_logits = predict_members(fed, members, fed.public.images)     # [M, N, C]
            ring = [*ring, ensemble_logits(member_logits)][-R:]                  # Eq. (3)
            teacher_logits = ensemble_logits(torch.stack(ring))                  # [N, C], Eq. (5)
        ensemble_metrics, test_ring = evaluate_ensemble(fed, members, test_ring, R)

        # Students learn from the ensemble, after the warm-up rounds; all from the same (D1).
        global_models = averaged
        if students != "none" and t > warmup_rounds:                             # Table 6
            student_ks = [k for k in range(len(averaged)) if learns(k)]
            distilled = dict(zip(student_ks, run_students(fed, lambda k: distill(
                fed, averaged[k], teacher_logits, keys=("distil", t, k), **distillation),
                student_ks)))
            global_models = [distilled.get(k, average) for k, average in enumerate(averaged)]

        state = {"round": t, "global_models": global_models, "ring": ring, "test_ring": test_ring}
        teachers = 0 if students == "none" else len(members)
        metrics = {**evaluate(fed, state, K), **ensemble_metrics,
                   "teacher_forwards": teachers * len(fed.public.images),
                   **ledger(fed, groups, uploads, averaged, method)}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedsdd-ablations", run,
    scores={"server_accuracy": "server", "ensemble_accuracy": "ensemble"},
    public="unlabeled", mixed_networks=True,
    check_settings=check_settings,
    columns=("accuracy", "ensemble_accuracy", "disagreement", "teacher_forwards"))
