"""FedSDD: K groups of clients train K global models; their ensemble teaches the main model.

Kwan and Song, "FedSDD: Scalable and Diversity-enhanced Distillation for Model Aggregation in
Federated Learning", arXiv:2312.17029v1, whose settings are the defaults.

Run:   python fedkd_minimal.py --algo fedsdd --K 4 --R 2
What travels: in each round the server sends each active client its group's global model; the client
sends back its trained model and its number of samples. SCAFFOLD's controls travel, too.
Public data: N unlabeled images, on the server alone.

Paper              here                         shape         note
K, R, T, tau       K, R, rounds, temperature    numbers       global models, rounds in the ensemble
M                  len(global_models)           number        K; with several networks K of each
w*_{t,k}           global_models[k]["model"]    state_dict    global model k; the main one is k = 0
C_{t,k,n}          groups[k]                    client ids    N_{t,k} clients train model k
w^l*_{t,k,n}       uploads[k][i]["model"]       state_dict    client i's model after local training
w_{t,k}            averaged[k]["model"]         state_dict    after line 7, before distillation
F(x|w_{t,k})       member_logits                [M, N, C]     raw logits of all M models, C classes
F_ensemble, R = 1  ring[-1]                     [N, C]        Eq. (3): the mean over k in round t
F_ensemble         teacher_logits               [N, C]        Eq. (5): the mean over R rounds too

Algorithm 1 of the paper, which does not number its lines:
 1  initialize w*_{0,k} for every k
 2  for t = 1 ... T
 3    for every k in parallel
 4      for every client n of group k in parallel
 5        w^l_{t,k,n} <- w*_{t-1,k}
 6        w^l*_{t,k,n} <- LocalTraining(C_{t,k,n}, w^l_{t,k,n})
 7      w_{t,k} <- Aggregation(w^l*_{t,k,0}, ..., w^l*_{t,k,N_{t,k}-1})
 8    for every k in parallel
 9      if k = 0: w*_{t,0} <- Distillation(w_{t,0}, {w_{t-r,k}: 0 <= k < K, 0 <= r < R})
10      else: w*_{t,k} <- w_{t,k}
Before line 3 a share of the clients (--participation) is drawn and dealt at random to K groups.
By default line 6 is plain SGD on cross-entropy and line 7 the mean, weighed by numbers of samples;
--local fedprox or scaffold replaces both. Line 9 is distill_steps steps of plain SGD on public
images, with the loss of Eq. (4) changed as in D1. All optimizers are new in every round.
With several networks (A.5) each has K models with groups of its own clients; k counts through all
M of them, k = 0, K, 2K, ... are main models, and all M are in the ensemble.

Modes: clients (line 6) and the main model (line 9) train in train mode, with --augment on augmented
images; each loss is the mean over the batch. All predictions, the teacher's and those for a score,
are of clean images in eval mode: the main model sees an augmented image, its teacher the clean one.
Kept between rounds: server: the global models after line 10, and for each of the last R rounds the
logits of Eq. (3), of public images (ring) and of test images (test_ring). Client: nothing. With
--local scaffold global_models[k] also has the server's control and those of the clients; a real
client would keep its own, one for each global model.
Scores: `accuracy` and server_accuracy are of the main model after line 9, in the mean over several
main models, ensemble_accuracy of the mean logits of line 7's models of the last R rounds, Eq. (5).
disagreement: the share of test images on which two models of this round's line 7 predict different
classes, in the mean over the pairs. teacher_forwards: public images that models predicted.
Bad upload (nan or infinity): `collect` leaves it out of line 7. If a group has none left, w_{t,k} =
w*_{t-1,k}.
Departures (docs/DEPARTURES.md has more):
D1  Eq. (4) is printed KL(student || teacher), without the temperature that section 4.1 sets to 4.
    Line 9 takes temperature² KL(teacher || student) of softmax(logits / temperature), as in Hinton
    et al., which the paper cites for distillation
"""
from functools import partial
from typing import Literal

import torch

from algorithms import Algorithm, checked, fedavg, fedprox, scaffold
from algorithms.equations import distillation_loss, ensemble_logits
from federation import stream, timed
from federation.communication import weights_ledger
from federation.evaluation import accuracy, disagreement, global_metrics
from federation.parallel import active_clients, by_architecture, count_active, run_students
from federation.training import forward, load_model, network, predict_members, shuffled
from federation.uploads import collect

# Local training and averaging: each file has start_server (line 1), train_client (line 5-6),
# aggregate (line 7; without uploads the model stays) and COPIES, the size of a message in models.
LOCAL = {"fedavg": fedavg, "fedprox": fedprox, "scaffold": scaffold}


def group_clients(active, K, rng):
    """The active clients dealt at random into K groups, one per global model.   Section 3.1.1; A.2

    active    list of client ids
    rng       numpy.random.Generator
    returns   K sorted lists; their sizes differ by at most 1, and the larger ones come first, so
              the main model's group is never the smaller one
    raises    ValueError if K < 1 or K > len(active): a group without clients could not be trained
    """
    if not 1 <= K <= len(active):
        raise ValueError(f"fedsdd: K = {K} global models need 1 <= K <= {len(active)}, the number "
                         "of active clients: change K, participation or the number of clients")
    dealt = rng.permutation(active).tolist()
    return [sorted(dealt[k::K]) for k in range(K)]


def deal_clients(fed, t, participation, K):
    """The groups of round t: each network's active clients dealt to its K models.

    Networks come in the order of `by_architecture`: group k is that of global model k.
    """
    rng = stream(fed.seed, "groups", t)
    active = active_clients(fed, participation, t)
    return [group for ids in active.values() for group in group_clients(ids, K, rng)]


def train_groups(fed, t, groups, global_models, train_client, attack=None):
    """[{client: upload} of each group]; active clients train in parallel, from their group's model.

    train_client    (fed, i, t, global model) -> upload
    """
    group_of = {i: k for k, group in enumerate(groups) for i in group}
    uploads = collect(fed, sorted(group_of),
                      lambda i: train_client(fed, i, t, global_models[group_of[i]]), attack)
    return [{i: uploads[i] for i in group if i in uploads} for group in groups]


@timed
def distill(fed, student, teacher_logits, *, distill_steps, server_batch_size, server_lr,
            temperature, keys):
    """The student after SGD steps towards teacher_logits [N, C] on the public images.

    student    {"architecture", "model", ...}: a global model before distillation, w_{t,k}
    keys       of `shuffled`: they name this training
    """
    model = load_model(fed, student)           # a network with a copy of its weights
    optimizer = torch.optim.SGD(model.parameters(), lr=server_lr)
    model.train()                        # --augment: the batches are augmented
    for rows, batch in shuffled(fed, fed.public.images, keys, batch_size=server_batch_size,
                                steps=distill_steps):
        student_logits = forward(fed, model, batch)                                      # [B, C]
        # D1: temperature² times the mean over the batch of KL(teacher || student)
        loss = distillation_loss(teacher_logits[rows], student_logits, temperature)      # Eq. (4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return student | {"model": model.state_dict()}         # SCAFFOLD's controls stay


# Who is in the ensemble, and who learns from it. Tables 5 and 6 vary both, also by the uploads and
# by the round: fedsdd_ablations.py.

def averaged_models(averaged, uploads):
    """The members of the ensemble: the averaged global models of the round."""
    return averaged


def main_models(num_models, K, t=None):
    """The global models that learn: the main one, the first of the K of each network."""
    return [k for k in range(num_models) if k % K == 0]


@timed
def evaluate(fed, state, K):
    """Test accuracy of the main model; with several networks, of each network's main model."""
    global_models = state["global_models"]
    return global_metrics(fed, [global_models[k] for k in main_models(len(global_models), K)])


@timed
def evaluate_ensemble(fed, members, test_ring, R):
    """(metrics, the test ring with this round): the ensemble's accuracy on the test images, and the
    disagreement of this round's members.

    test_ring    up to R times [N, C]: the mean logits of a round's members on the test images
    """
    member_logits = predict_members(fed, members, fed.test.images)                       # [M, N, C]
    test_ring = [*test_ring, ensemble_logits(member_logits)][-R:]
    logits = ensemble_logits(torch.stack(test_ring))                                     # [N, C]
    return {"ensemble_accuracy": accuracy(logits, fed.test.labels),
            "disagreement": disagreement(member_logits)}, test_ring


def ledger(fed, groups, uploads, models, copies):
    """Bytes of the round and the number of bad uploads; uploads: as from `train_groups`."""
    messages = [(network(fed, saved["architecture"]), len(group))
                for saved, group in zip(models, groups)]
    return {"bad_uploads": sum(map(len, groups)) - sum(map(len, uploads)),
            **weights_ledger(messages, copies)}


def check_settings(fed, *, participation, K, local, attack, **settings):
    """Raises ValueError if a group would have no client, or if uploads cannot be attacked.

    An attack computes means over all clients' weights: of one network, and without controls.
    """
    for ids in by_architecture(fed).values():      # every deal has groups of these sizes
        group_clients(range(count_active(len(ids), participation)), K, stream(fed.seed))
    if attack and (local == "scaffold" or len(by_architecture(fed)) > 1):
        raise ValueError("fedsdd: an attack on weights needs one network for all clients, and "
                         "not local scaffold")


@checked
def run(fed, state=None, *, rounds: int = 100, participation: float = 0.4, K: int = 4, R: int = 1,
        local: Literal["fedavg", "fedprox", "scaffold"] = "fedavg", local_epochs: int = 40,
        local_steps: int | None = None, batch_size: int = 64, lr: float = 0.8, mu: float = 0.001,
        distill_steps: int = 5000, server_batch_size: int = 256, server_lr: float = 0.1,
        temperature: float = 4.0, attack=None, methods=LOCAL, members_of=averaged_models,
        students_of=main_models):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    methods, members_of, students_of    what fedsdd_ablations.py replaces
    hyperparameters.py explains the other keywords.
    """
    method = methods[local]
    global_lr = [1.0] if local == "scaffold" else []
    training = dict(local_epochs=local_epochs, local_steps=local_steps, batch_size=batch_size,
                    lr=lr, **({"mu": mu} if local == "fedprox" else {}),
                    **({"optimizer_name": "sgd", "weight_decay": 0.0}
                       if local != "scaffold" else {}))
    distillation = dict(distill_steps=distill_steps, server_batch_size=server_batch_size,
                        server_lr=server_lr, temperature=temperature)
    if state is None:
        global_models = [method.start_server(fed, architecture, init)            # Alg. 1, line 1
                         for architecture in by_architecture(fed) for init in range(K)]
        state = {"round": 0, "global_models": global_models, "ring": [], "test_ring": []}
        yield evaluate(fed, state, K), state
    global_models, ring, test_ring = state["global_models"], state["ring"], state["test_ring"]
    for t in range(state["round"] + 1, rounds + 1):                              # Alg. 1, line 2
        # Clients are dealt to the K models anew, so that each model learns from all clients' data.
        groups = deal_clients(fed, t, participation, K)
        uploads = train_groups(fed, t, groups, global_models,                    # Alg. 1, line 3-6
                               partial(method.train_client, **training), attack)
        averaged = [method.aggregate(fed, global_model, uploads[k], *global_lr)  # Alg. 1, line 7
                    for k, global_model in enumerate(global_models)]

        # The teacher is the ensemble of the averaged models of the last R rounds. Old models and
        # public images are fixed: so the ring keeps old logits, and only the new models predict.
        members = members_of(averaged, uploads)
        member_logits = predict_members(fed, members, fed.public.images)         # [M, N, C]
        ring = [*ring, ensemble_logits(member_logits)][-R:]                      # Eq. (3)
        teacher_logits = ensemble_logits(torch.stack(ring))                      # [N, C], Eq. (5)
        ensemble_metrics, test_ring = evaluate_ensemble(fed, members, test_ring, R)

        # Only the main model learns from the ensemble, so that the others stay diverse.
        student_ks = students_of(len(averaged), K, t)                            # Alg. 1, line 8
        distilled = run_students(fed, lambda k: distill(                         # Alg. 1, line 9
            fed, averaged[k], teacher_logits, keys=("distil", t, k), **distillation), student_ks)
        students = dict(zip(student_ks, distilled))
        global_models = [students.get(k, average)                                # Alg. 1, line 10
                         for k, average in enumerate(averaged)]

        state = {"round": t, "global_models": global_models, "ring": ring, "test_ring": test_ring}
        metrics = {**evaluate(fed, state, K), **ensemble_metrics,
                   "teacher_forwards": len(members) * len(fed.public.images),
                   **ledger(fed, groups, uploads, averaged, method.COPIES)}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedsdd", run, scores={"server_accuracy": "server", "ensemble_accuracy": "ensemble"},
    keeps=("global_models", "ring", "test_ring"), public="unlabeled", mixed_networks=True,
    check_settings=check_settings,
    columns=("accuracy", "ensemble_accuracy", "disagreement", "teacher_forwards"))
