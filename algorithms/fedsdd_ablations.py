"""FedSDD varied: who is in the ensemble, which models learn from it, and secure aggregation.

Kwan and Song, arXiv:2312.17029v1, Tables 5 and 6 and section 3.1.1. The loop is that of fedsdd.py:
this file replaces functions of it. With --students none the ensemble of the K models is
Fed-ensemble (Shi et al., arXiv:2107.10663): read its `ensemble_accuracy`.

Run:   python fedkd_minimal.py --algo fedsdd-ablations --students all
What travels: as in fedsdd.py. With --secure-sum a client's model is masked, 8 bytes a number.
Public data: unlabeled images, on the server alone. With --students none they are not used.

Paper                       here                         source        note
diversity-enhanced          students = "main"            Table 6       FedSDD: the main model learns
basic                       students = "all"             Table 6       all K models learn
basic with warm-up          warmup_rounds                Table 6       no distillation at first
no distillation             students = "none"            Table 6       Fed-ensemble
ensemble of clients         ensemble = "clients"         Table 5       members: all clients' models
secure aggregation          secure_sum                   section 3.1.1 secure_sum.py: the server
                                                                       learns a group's sum alone

Modes: those of fedsdd.py.
Kept between rounds: as in fedsdd.py.
Scores: those of fedsdd.py. `accuracy` is the main model's, also where other models learn or none
does. ensemble_accuracy and disagreement are the members', before distillation.
Bad upload (nan or infinity): `collect` leaves it out of the average and of an ensemble of clients.
If no upload is left at all, the averaged models are the members. With --secure-sum: see
secure_sum.py.
Departures (docs/DEPARTURES.md has more):
D1  all students learn from the same teacher, the ensemble before any distillation
"""
import dataclasses
from functools import partial
from typing import Literal

from algorithms import Algorithm, checked, fedsdd
from algorithms.fedsdd import LOCAL, averaged_models, deal_clients, main_models
from algorithms.secure_sum import NUMBER_BYTES, with_masks
from federation import Data
from federation.communication import weights_ledger
from federation.training import network


def client_models(averaged, uploads):
    """The members of the ensemble: all clients' models, by client; without uploads the averages."""
    clients = {i: average | {"model": upload["model"]}
               for average, group in zip(averaged, uploads) for i, upload in group.items()}
    return [clients[i] for i in sorted(clients)] or averaged


MEMBERS = {"aggregated": averaged_models, "clients": client_models}                      # Table 5
STUDENTS = {"main": main_models, "all": lambda num_models, K, t: list(range(num_models)),
            "none": lambda num_models, K, t: []}                                         # Table 6


def secure_ledger(fed, t, participation, K, global_models):
    """Bytes of a round in which masked models went up, and the number of bad uploads."""
    groups = deal_clients(fed, t, participation, K)
    messages = [(network(fed, saved["architecture"]), len(group))
                for saved, group in zip(global_models, groups)]
    bad = sum(len(group) - saved["valid"] for saved, group in zip(global_models, groups))
    return {"bad_uploads": bad, **weights_ledger(messages, up_number_bytes=NUMBER_BYTES)}


def check_settings(fed, *, participation, K, local, secure_sum, ensemble, attack, **settings):
    """Raises ValueError as FedSDD's, and if a secure sum would tell a model, or cannot be made."""
    fedsdd.check_settings(fed, participation=participation, K=K, local=local, attack=attack)
    if not secure_sum:
        return
    if min(map(len, deal_clients(fed, 1, participation, K))) < 2:
        raise ValueError("secure_sum needs two clients in each group: the sum of one is its "
                         "model; a smaller K, or more clients, make groups larger")
    if local == "scaffold" or ensemble == "clients" or attack:
        raise ValueError("secure_sum goes with local fedavg and fedprox, and with an ensemble of "
                         "aggregated models, without an attack: the server sees no single model")


@checked
def run(fed, state=None, *, rounds: int = 100, participation: float = 0.4, K: int = 4, R: int = 1,
        ensemble: Literal["aggregated", "clients"] = "aggregated",
        students: Literal["main", "all", "none"] = "main", warmup_rounds: int = 0,
        secure_sum: bool = False,
        local: Literal["fedavg", "fedprox", "scaffold"] = "fedavg", local_epochs: int = 40,
        local_steps: int | None = None, batch_size: int = 64, lr: float = 0.8, mu: float = 0.001,
        distill_steps: int = 5000, server_batch_size: int = 256, server_lr: float = 0.1,
        temperature: float = 4.0, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    hyperparameters.py explains the keywords.
    """
    def students_of(num_models, K, t):
        return STUDENTS[students](num_models, K, t) if t > warmup_rounds else []

    methods = LOCAL
    if secure_sum:
        groups_of = partial(deal_clients, participation=participation, K=K)
        methods = {name: with_masks(method, groups_of) for name, method in LOCAL.items()}
    if students == "none":                       # nobody needs the ensemble's public predictions
        fed = dataclasses.replace(fed, public=Data(fed.public.images[:0], None))
    varied = fedsdd.run(
        fed, state, rounds=rounds, participation=participation, K=K, R=R, local=local,
        local_epochs=local_epochs, local_steps=local_steps, batch_size=batch_size, lr=lr, mu=mu,
        distill_steps=distill_steps, server_batch_size=server_batch_size, server_lr=server_lr,
        temperature=temperature, attack=attack, methods=methods, members_of=MEMBERS[ensemble],
        students_of=students_of)
    for metrics, state in varied:
        if secure_sum and state["round"] > 0:
            metrics = metrics | secure_ledger(fed, state["round"], participation, K,
                                              state["global_models"])
        yield metrics, state


ALGORITHM = Algorithm(
    "fedsdd-ablations", run, scores=fedsdd.ALGORITHM.scores, keeps=fedsdd.ALGORITHM.keeps,
    public="unlabeled", mixed_networks=True, check_settings=check_settings,
    columns=fedsdd.ALGORITHM.columns)
