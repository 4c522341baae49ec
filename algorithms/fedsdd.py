"""FedSDD: K groups of clients train K global models; their ensemble teaches the main model.

Kwan and Song, "FedSDD: Scalable and Diversity-enhanced Distillation for Model Aggregation in
Federated Learning", arXiv:2312.17029v1.
What travels: weights. In each round an active client receives the global model of its group, trains
it and uploads it (SCAFFOLD: with a control). Public data: unlabeled images, on the server alone.
Run:   python fedkd_minimal.py --algo fedsdd --K 4 --R 2

Paper              here                         shape         note
K, R, T, tau       K, R, rounds, temperature    numbers       global models, rounds in the ensemble
w*_{t,k}           global_models[k]["model"]    state_dict    global model k; the main one is k = 0
N_{t,k}            len(groups[k])               number        clients of model k in round t
w^l*_{t,k,n}       uploads[k][i]["model"]       state_dict    client i's model after local training
w_{t,k}            averaged[k]["model"]         state_dict    after line 7, before distillation
F(x|w_{t,k})       member_logits                [K, N, C]     raw logits on the N public images
F_ensemble, R = 1  ring[-1]                     [N, C]        Eq. (3): the mean over k in round t
F_ensemble         teacher_logits               [N, C]        Eq. (5): the mean over R rounds too

Algorithm 1 of the paper, which does not number its lines:
 1  initialize w*_{0,k} for every k
 2  for t = 1 ... T
 3    for every k in parallel
 4      for every client n of group k in parallel
 5        w^l_{t,k,n} <- w*_{t-1,k}
 6        w^l*_{t,k,n} <- LocalTraining(C_{t,k,n}, w^l_{t,k,n})
 7      w_{t,k} <- Aggregation(w^l*_{t,k,0}, ..., w^l*_{t,k,N-1})
 8    for every k in parallel
 9      if k = 0: w*_{t,0} <- Distillation(w_{t,0}, {w_{t-r,k}: 0 <= k < K, 0 <= r < R})
10      else: w*_{t,k} <- w_{t,k}

Before line 3 a share of the clients (--participation) is drawn and dealt to the K groups at random.
Line 6 is cross-entropy with SGD, by `train_client` of fedavg.py, fedprox.py or scaffold.py, as
--local says. Line 7 is the mean by numbers of samples (SCAFFOLD: the plain mean). Line 9 is SGD on
Eq. (4), by `distill`. No optimizer is kept: each training starts a new one.

A state keeps the K global models after lines 9 and 10, and the ring: for each of the last R rounds,
the mean logits of the K averaged models on the public images. Clients keep nothing. (With SCAFFOLD
a client keeps its control, and the server one for each global model.)

The ring of logits instead of models is this implementation's, not the paper's: past models and
public images never change, so K models predict N images in a round, for any R. The paper claims the
same cost for any number of clients.

Scores of a round, on the test set: `accuracy` of the main model after line 9 (of several main
models, the mean); `ensemble_accuracy` of the averaged models of line 7, over R rounds (test_ring:
their mean logits on the test images); `disagreement` of those of this round.

With different networks (section A.5) each network has K global models, one of them a main model.
k counts over all of them, all are in the ensemble, and K in a shape is the number of all.
--secure-sum (section 3.2): secure_sum.py; Tables 5 and 6: fedsdd_ablations.py.

Where the paper is silent or we differ (more: docs/DEPARTURES.md):
D1  Eq. (4) reads KL(student || teacher); we take Hinton's temperature² KL(teacher || student)
    [test_eq4_is_temperature_squared_kl_from_the_teacher]
D2  --augment: the student sees augmented images, the teachers clean ones; in FedDF's code both see
    the same [test_augmentation_is_for_what_is_trained_on_alone]
D3  the student's BatchNorm is in train mode [test_distill_moves_the_students_running_statistics]
D4  SCAFFOLD: a server control per global model, a client control per (client, global model)
    [test_rounds_with_R_2_against_algorithm_1]
D5  `ensemble_accuracy` is of the averaged models, the main one before distillation; Table 6 does
    not say which [test_ensemble_accuracy_is_of_K_models_of_each_of_the_last_R_rounds]
"""
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch

from algorithms import fedavg, fedprox, scaffold
from algorithms.clients import active_clients, by_architecture, count_active
from algorithms.communication import FLOAT_BYTES, weights_ledger
from algorithms.declaration import Algorithm
from algorithms.equations import distillation_loss, ensemble_logits
from algorithms.evaluation import accuracy, disagreement, global_metrics
from algorithms.secure_sum import with_masks
from algorithms.training import batches, forward, load_model, network, predict_members
from algorithms.uploads import collect
from federation import seeded, stream, timed

LOCAL = {"fedavg": fedavg, "fedprox": fedprox, "scaffold": scaffold}


def group_clients(active, K, rng):
    """The active clients dealt at random into K groups, one per global model.   Section 3.1.1; A.2

    active    list of client ids
    returns   K sorted lists; their sizes differ by at most 1, and the larger ones come first, so
              the main model's group is never the smaller one
    raises    ValueError if K < 1 or K > len(active): a group without clients could not be trained
    """
    if not 1 <= K <= len(active):
        raise ValueError(f"fedsdd: K = {K} global models need 1 <= K <= {len(active)}, the number "
                         "of active clients: change K, participation or the number of clients")
    shuffled = rng.permutation(active).tolist()
    return [sorted(shuffled[k::K]) for k in range(K)]


@timed
def distill(fed, student, teacher_logits, *, distill_steps, server_batch_size, server_lr,
            temperature, keys):
    """The student after SGD steps towards teacher_logits [N, C] on the public images.

    The loss is temperature² KL(teacher || student). The optimizer is new in every call, without
    momentum; only the model is kept.
    student    {"architecture", "model", ...}: a global model before distillation
    keys       name the purpose: the stream that shuffles and augments, and the seed of dropout
    """
    model = load_model(fed, student)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=server_lr)
    rng = stream(fed.seed, *keys)                                          # batches, augmentation
    images = fed.public.images
    with seeded(fed.seed, *keys):                                                        # dropout
        for rows in batches(len(images), server_batch_size, None, rng, fed.device, distill_steps):
            batch = fed.augment(images[rows], rng) if fed.augment else images[rows]
            student_logits = forward(fed, model, batch)                                  # [B, C]
            loss = distillation_loss(teacher_logits[rows], student_logits, temperature)  # Eq. (4)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return student | {"model": model.state_dict()}


class LocalMethod(NamedTuple):
    """The functions and numbers that FedSDD takes from FedAvg, FedProx or SCAFFOLD."""

    start_server: Callable     # (fed, architecture, init) -> global model
    train_client: Callable     # (fed, i, t, global model) -> upload
    aggregate: Callable        # (fed, global model, {client: upload}) -> global model
    copies: int                # a message has so many times the model's parameters
    count_valid: Callable = len            # {client: upload} -> number of valid uploads
    number_bytes: int = FLOAT_BYTES        # of one uploaded number


def local_method(local, **settings):
    """The `LocalMethod` of that name; settings: the hyperparameters of its local training."""
    module = LOCAL[local]
    return LocalMethod(module.start_server, partial(module.train_client, **settings),
                       module.aggregate, module.COPIES)


def start_models(fed, method, K):
    """K global models of each network, each from initial weights of its own."""
    return [method.start_server(fed, architecture, init=k)
            for architecture in by_architecture(fed) for k in range(K)]


def deal_clients(fed, t, participation, K):
    """The groups of round t, one per global model: each network's active clients dealt to its K."""
    rng = stream(fed.seed, "groups", t)
    active = active_clients(fed, participation, t)
    return [group for ids in active.values() for group in group_clients(ids, K, rng)]


def train_groups(fed, t, groups, global_models, method, attack=None):
    """[{client: upload} of each group]; all clients train in parallel, from their group's model."""
    group_of = {i: k for k, group in enumerate(groups) for i in group}
    uploads = collect(fed, sorted(group_of),
                      lambda i: method.train_client(fed, i, t, global_models[group_of[i]]), attack)
    return [{i: uploads[i] for i in group if i in uploads} for group in groups]


def is_main(k, K):
    """True for the main model: the first of the K global models of a network."""
    return k % K == 0


@timed
def evaluate(fed, state, K):
    """Test accuracy of the main model; with several networks, of each network's main model."""
    return global_metrics(fed, [saved for k, saved in enumerate(state["global_models"])
                                if is_main(k, K)])


@timed
def evaluate_ensemble(fed, members, test_ring, R):
    """(accuracy of the ensemble and disagreement of its members in this round, the test ring).

    test_ring    R times [N, C]: the mean logits of each round's members on the test images
    """
    member_logits = predict_members(fed, members, fed.test.images)                       # [K, N, C]
    test_ring = [*test_ring, ensemble_logits(member_logits)][-R:]
    logits = ensemble_logits(torch.stack(test_ring))                                     # [N, C]
    return {"ensemble_accuracy": accuracy(logits, fed.test.labels),
            "disagreement": disagreement(member_logits)}, test_ring


def ledger(fed, groups, uploads, global_models, method):
    """Bytes of the round and the number of uploads that were not valid."""
    valid = sum(method.count_valid(upload) for upload in uploads)
    messages = [(network(fed, saved["architecture"]), len(group))
                for saved, group in zip(global_models, groups)]
    return {"bad_uploads": sum(map(len, groups)) - valid,
            **weights_ledger(messages, method.copies, method.number_bytes)}


def check_settings(fed, *, participation, K, local, secure_sum=False, attack=None, **settings):
    """Raises ValueError if a group would have no client, or if options exclude each other."""
    for ids in by_architecture(fed).values():
        groups = group_clients(range(count_active(len(ids), participation)), K, stream(fed.seed))
        if secure_sum and len(groups[-1]) < 2:
            raise ValueError("secure_sum needs two clients in each group: the sum of one is its "
                             "model; a smaller K, or more clients, make groups larger")
    if secure_sum and local == "scaffold":
        raise ValueError("secure_sum does not work with local scaffold, which also sums controls: "
                         "use fedavg or fedprox")
    if attack and (secure_sum or local == "scaffold" or len(by_architecture(fed)) > 1):
        raise ValueError("fedsdd: an attack on weights needs one network for all clients, and "
                         "neither secure_sum nor local scaffold")


def run(fed, state=None, *, rounds: int = 100, participation: float = 0.4, K: int = 4, R: int = 1,
        local: Literal["fedavg", "fedprox", "scaffold"] = "fedavg", local_epochs: int = 40,
        local_steps: int | None = None, batch_size: int = 64, lr: float = 0.8, mu: float = 0.001,
        distill_steps: int = 5000, server_batch_size: int = 256, server_lr: float = 0.1,
        temperature: float = 4.0, secure_sum: bool = False, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    secure_sum    clients upload masked models: the server learns only a group's average
    The other keywords are in hyperparameters.py.
    """
    training = dict(local_epochs=local_epochs, local_steps=local_steps, batch_size=batch_size,
                    lr=lr)
    method = local_method(local, **training, **({"mu": mu} if local == "fedprox" else {}))
    if secure_sum:
        method = with_masks(method, lambda t: deal_clients(fed, t, participation, K),
                            lambda t, *pair: stream(fed.seed, "mask", t, *pair))
    distillation = dict(distill_steps=distill_steps, server_batch_size=server_batch_size,
                        server_lr=server_lr, temperature=temperature)
    if state is None:
        ALGORITHM.check(fed, participation=participation, K=K, local=local,
                        secure_sum=secure_sum, attack=attack)
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

        # The teacher is the ensemble of the averaged models of the last R rounds.
        member_logits = predict_members(fed, averaged, fed.public.images)        # [K, N, C]
        ring = [*ring, ensemble_logits(member_logits)][-R:]                      # Eq. (3)
        teacher_logits = ensemble_logits(torch.stack(ring))                      # [N, C], Eq. (5)

        # Only the main model learns from the ensemble, so that the others stay diverse.
        global_models = [distill(fed, average, teacher_logits,                   # Alg. 1, line 9
                                 keys=("distil", t, k), **distillation)
                         if is_main(k, K) else average                           # Alg. 1, line 10
                         for k, average in enumerate(averaged)]                  # Alg. 1, line 8

        ensemble, test_ring = evaluate_ensemble(fed, averaged, test_ring, R)
        state = {"round": t, "global_models": global_models, "ring": ring, "test_ring": test_ring}
        metrics = {**evaluate(fed, state, K), **ensemble,
                   "teacher_forwards": len(averaged) * len(fed.public.images),
                   **ledger(fed, groups, uploads, averaged, method)}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedsdd", run, public="unlabeled", mixed=True, check_settings=check_settings,
    columns=("accuracy", "ensemble_accuracy", "disagreement", "teacher_forwards"))
