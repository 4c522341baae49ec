"""FedSDD varied: other local training, members, students, and secure aggregation.

Kwan and Song, arXiv:2312.17029v1, Tables 4, 5, 6 and section 3.1.1. fedsdd.py has the algorithm
itself, without these choices, and its settings are the defaults.

Run:    python fedkd_minimal.py --algo fedsdd-ablations --students all    small settings
Data:   as in fedsdd.py; with --students none the public images are not used
Sent:   as in fedsdd.py; --local scaffold sends controls, too; --secure-sum masked models of 8 bytes
        a number

Algorithm 1's lines, and what varies:
 5-6  --local: plain SGD, FedProx's or SCAFFOLD's training (Table 4)
 7    --local scaffold: SCAFFOLD's aggregation. --secure-sum: the server learns the sum of a group's
      models and no single one (secure_sum.py)
 9    --ensemble clients: the members are the clients' models instead of their averages (Table 5)
 8    --students all: all K models learn, "basic" in Table 6; none: nobody does, which is
      Fed-ensemble (Shi et al., arXiv:2107.10663): read its `ensemble_accuracy`. Nobody does in the
      first --warmup-rounds either

Scores: as in fedsdd.py: `accuracy` is the main model's, also where other models learn or none does
D1  all students learn from the same teacher, the ensemble before any distillation
"""
from typing import Literal

from algorithms import Algorithm, checked, fedprox, fedsdd, scaffold
from algorithms.equations import ensemble_logits
from algorithms.fedsdd import deal_clients, distill, evaluate, evaluate_ensemble
from algorithms.secure_sum import NUMBER_BYTES, average_of_masked, count_valid, masked_upload
from federation.communication import FLOAT_BYTES, weights_ledger
from federation.parallel import by_architecture, count_active, run_students
from federation.training import network, predict_members
from federation.uploads import collect


def start_model(fed, architecture, k, local):
    """Global model k of a network before round 1, for SCAFFOLD with controls of zeros."""
    if local == "scaffold":
        return scaffold.start_server(fed, architecture, k)
    return fedsdd.start_model(fed, architecture, k)


def train_locally(fed, i, t, global_model, local, local_epochs, local_steps, batch_size, lr, mu):
    """Client i's upload in round t, after the local training that `local` names.   Table 4"""
    if local == "fedprox":
        return fedprox.train_client(fed, i, t, global_model, local_epochs, local_steps, batch_size,
                                    lr, mu, "sgd", 0.0)
    if local == "scaffold":
        return scaffold.train_client(fed, i, t, global_model, local_epochs, local_steps, batch_size,
                                     lr)
    return fedsdd.train_client(fed, i, t, global_model, local_epochs, local_steps, batch_size, lr)


def train_client(fed, i, t, global_model, group, local, secure_sum, local_epochs, local_steps,
                 batch_size, lr, mu):
    """Client i's upload in round t; with a secure sum its masks hide it from all but its group."""
    upload = train_locally(fed, i, t, global_model, local, local_epochs, local_steps, batch_size,
                           lr, mu)
    if secure_sum:
        return masked_upload(fed, i, t, group, global_model["model"], upload["model"])
    return upload


def aggregate(fed, global_model, uploads, local, secure_sum):
    """The group's global model after its uploads {client: upload}; without any it stays."""
    if local == "scaffold":
        return scaffold.aggregate(fed, global_model, uploads, 1.0)
    if not secure_sum:
        return fedsdd.aggregate(fed, global_model, uploads)
    average = average_of_masked(list(uploads.values()), like=global_model["model"])
    return global_model if average is None else global_model | {"model": average}


def members_of(averaged, groups, uploads, ensemble):
    """The members of the ensemble: the averaged models or, by client, the clients' own.   Table 5

    Where no client has uploaded a usable model, the averaged models are the members.
    """
    if ensemble == "aggregated" or not uploads:
        return averaged
    average_of = {i: model for model, group in zip(averaged, groups) for i in group}
    return [average_of[i] | {"model": uploads[i]["model"]} for i in sorted(uploads)]


def students_of(t, num_models, K, students, warmup_rounds):
    """The numbers k of the global models that learn from the ensemble in round t.   Table 6"""
    if students == "none" or t <= warmup_rounds:
        return []
    return list(range(num_models)) if students == "all" else list(range(0, num_models, K))


def teach(fed, t, averaged, student_ks, teacher_logits, distill_steps, server_batch_size, server_lr,
          temperature):
    """The global models after the students among them have learned from the same teacher."""   # D1
    def teach_one(k):
        return distill(fed, t, k, averaged[k], teacher_logits, distill_steps, server_batch_size,
                       server_lr, temperature)

    taught = dict(zip(student_ks, run_students(fed, teach_one, student_ks)))
    return [taught.get(k, model) for k, model in enumerate(averaged)]


def count_bad(groups, uploads, secure_sum):
    """How many clients' uploads were not usable; a masked one tells only the sum of the valid."""
    valid = len(uploads)
    if secure_sum:
        valid = sum(count_valid([uploads[i] for i in group]) for group in groups)
    return sum(map(len, groups)) - valid


def ledger(fed, averaged, groups, local, secure_sum):
    """Bytes of a round: SCAFFOLD's messages are twice a model, masked numbers have 8 bytes."""
    messages = [(network(fed, model["architecture"]), len(group))
                for model, group in zip(averaged, groups)]
    copies = 2 if local == "scaffold" else 1
    return weights_ledger(messages, copies, NUMBER_BYTES if secure_sum else FLOAT_BYTES)


def check_settings(fed, *, participation, K, local, secure_sum, ensemble, attack, **settings):
    """Raises ValueError as FedSDD's, and if a secure sum would tell a model, or cannot be made."""
    fedsdd.check_settings(fed, participation=participation, K=K, attack=attack)
    if attack and local == "scaffold":
        raise ValueError("fedsdd-ablations: an attack on weights does not go with local scaffold")
    if not secure_sum:
        return
    if min(count_active(len(ids), participation) for ids in by_architecture(fed).values()) < 2 * K:
        raise ValueError("secure_sum needs two clients in each group: the sum of one is its "
                         "model; a smaller K, or more clients, make groups larger")
    if local == "scaffold" or ensemble == "clients" or attack:
        raise ValueError("secure_sum goes with local fedavg and fedprox, and with an ensemble of "
                         "aggregated models, without an attack: the server sees no single model")


@checked
def run(fed, state=None, *,
        rounds: int = 100,                   # T
        participation: float = 0.4,          # share of the clients that train in a round
        K: int = 4,                          # global models, and groups of clients
        R: int = 1,                          # rounds whose averaged models are the ensemble
        ensemble: Literal["aggregated", "clients"] = "aggregated",    # its members
        students: Literal["main", "all", "none"] = "main",            # who learns from it
        warmup_rounds: int = 0,              # rounds at the start without distillation
        secure_sum: bool = False,            # clients upload masked models
        local: Literal["fedavg", "fedprox", "scaffold"] = "fedavg",   # training and aggregation
        local_epochs: int = 40,              # passes of a client over its images in a round, or,
        local_steps: int | None = None,      #   if given, its SGD steps
        batch_size: int = 64,                # of a client
        lr: float = 0.8,                     # of a client
        mu: float = 0.001,                   # of --local fedprox alone
        distill_steps: int = 5000,           # SGD steps of the server in a round
        server_batch_size: int = 256,
        server_lr: float = 0.1,
        temperature: float = 4.0,            # tau, of teacher and student
        attack=None):                        # replaces the uploads of some clients
    """Yields (metrics, state) after round 0, the untrained models, and after every round."""
    if state is None:
        global_models = [start_model(fed, architecture, k, local)            # Alg. 1, line 1
                         for architecture in by_architecture(fed) for k in range(K)]
        state = {"round": 0, "global_models": global_models, "undistilled": []}
        yield evaluate(fed, global_models[::K]), state
    global_models, undistilled = state["global_models"], state["undistilled"]
    # Without students nobody needs the ensemble's predictions of public images.
    public_images = fed.public.images[:0] if students == "none" else fed.public.images

    for t in range(state["round"] + 1, rounds + 1):                          # Alg. 1, line 2
        groups = deal_clients(fed, t, participation, K)                      # Alg. 1, line 3
        group_of = {i: k for k, group in enumerate(groups) for i in group}

        def train(i):
            k = group_of[i]
            return train_client(fed, i, t, global_models[k], groups[k], local, secure_sum,
                                local_epochs, local_steps, batch_size, lr, mu)

        uploads = collect(fed, sorted(group_of), train, attack)              # Alg. 1, line 4-6
        averaged = [aggregate(fed, model, {i: uploads[i] for i in group if i in uploads},
                              local, secure_sum)
                    for model, group in zip(global_models, groups)]          # Alg. 1, line 7

        newest = members_of(averaged, groups, uploads, ensemble)             # Table 5
        undistilled = [*undistilled, newest][-R:]
        members = [model for earlier in undistilled for model in earlier]    # of the last R rounds
        member_logits = predict_members(fed, members, public_images)         # [M R, N, C]
        teacher_logits = ensemble_logits(member_logits)          # [N, C], Eq. (3), (5)

        student_ks = students_of(t, len(averaged), K, students, warmup_rounds)       # Table 6
        global_models = teach(fed, t, averaged, student_ks, teacher_logits,  # Alg. 1, line 8-10
                              distill_steps, server_batch_size, server_lr, temperature)

        # Measured; no step above sees it.
        metrics = {**evaluate(fed, global_models[::K]),
                   **evaluate_ensemble(fed, members, len(newest)),
                   "teacher_forwards": len(members) * len(public_images),
                   "bad_uploads": count_bad(groups, uploads, secure_sum),
                   **ledger(fed, averaged, groups, local, secure_sum)}
        # SCAFFOLD's global models also hold the clients' controls, which real clients would keep.
        state = {"round": t, "global_models": global_models, "undistilled": undistilled}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedsdd-ablations", run, scores=fedsdd.ALGORITHM.scores, keeps=fedsdd.ALGORITHM.keeps,
    public="unlabeled", mixed_networks=True, check_settings=check_settings,
    columns=fedsdd.ALGORITHM.columns)
