"""FedSDD: K global models, each averaged over its own group of clients, teach one of them: the main model.

Kwan and Song, "FedSDD: Scalable and Diversity-enhanced Distillation for Model Aggregation in Federated Learning",
arXiv:2312.17029v1. With --students none the ensemble of the K models is Fed-ensemble (Shi et al., arXiv:2107.10663).
What travels: weights, down and up, as in the local method (--local). Public data: unlabelled, on the server.
Clients may have different networks (A.5): K global models of each network, the first of which is its main model.
Run:   python fedkd_minimal.py --algo fedsdd --K 4 --R 2

Paper              here                         shape            note
K, R, T, tau       K, R, rounds, temperature    numbers          global models (of each network), rounds in the ensemble
w*_{t-1,k}         servers[k]["model"]          state_dict       global model k as round t begins; k = 0, K, 2K, ... are the
                                                                 main models of the first, second, third, ... network
w_{t,k}            members[k]                   state_dict       after line 7, before any distillation
N_{t,k}            len(groups[k])               number           clients of model k in round t
F(x|w_{t,k})       member_logits                [M, N, C]        raw logits on the public or the test images, M = K x networks
Eq. (3)            public_ring[-1]              [N, C]           the round's mean over k
F_ensemble         teacher_logits               [N, C]           Eq. (5), before the softmax

Algorithm 1, whose lines are numbered here as follows:
 1  initialise w*_{0,k} for every k
 2  for t = 1 ... T
 3    for every k in parallel
 4      for every client n of group k in parallel
 5        w^l_{t,k,n} <- w*_{t-1,k}
 6        w^l*_{t,k,n} <- LocalTraining(X_{t,k,n}, w^l_{t,k,n})
 7      w_{t,k} <- Aggregation(w^l*_{t,k,0}, ..., w^l*_{t,k,N-1})
 8    for every k in parallel
 9      if k = 0: w*_{t,0} <- Distillation(w_{t,0}, {w_{t-r,k}: 0 <= k < K, 0 <= r < R})
10      else: w*_{t,k} <- w_{t,k}

The public images never change and neither does a past round's model, so what is kept of a round is not its K models but the
mean of their logits: teachers predict K x N samples a round, whatever R and however many clients.

The ablations: --ensemble clients (Table 5), --students none|all|main and --warmup-rounds (Table 6), --K (Tables 8, 9).
With --secure-sum the server sees masked models, whose sums alone mean something (section 3.2): see secure_sum.py.

Where the paper is silent or we differ:
D1  Eq. (4) read literally is KL(student || teacher), as PyTorch orders arguments: we take KL(teacher || student), Hinton's,
    with his factor temperature²                                          [test_eq4_is_temperature_squared_kl_from_the_teacher]
D2  in the first R - 1 rounds the ensemble has the rounds there are       [test_eq5_first_rounds_use_the_rounds_there_are]
D3  K does not divide the active clients: the first groups get one more   [test_group_clients_gives_the_first_groups_the_remainder]
D4  the main model's BatchNorm is in train mode while it learns           [test_distil_moves_the_students_running_statistics]
D5  SCAFFOLD: a server control per global model, a client control per (client, global model)
                                                                          [test_scaffold_controls_belong_to_one_global_model]
D6  each of the K initial models has its own seed; the main model's is FedAvg's   [test_initial_models_differ_and_main_is_fedavgs]
D7  with several networks the same share of each network's clients takes part, dealt to that network's K models
                                                        [test_each_network_has_K_models_trained_by_its_own_clients]
D8  --secure-sum: BatchNorm's counters are rounded averages, not the largest      [test_average_of_masked_models_by_hand]
"""
import itertools
from typing import Literal

import torch

from algorithms import fedavg, fedprox, scaffold
from algorithms.common import (accuracy, active_clients, batches, by_architecture, count_active, disagreement, distillation_loss,
                               forward, is_finite, predict_members, run_clients, seconds, seeded, server_metrics, stream)
from attacks import attack_uploads
from communication import FLOAT_BYTES, weights_ledger
from secure_sum import NUMBER_BYTES, average_of_masked, masked_model

PUBLIC = "unlabelled"
MIXED = True    # may clients have different networks?
COLUMNS = ("accuracy", "ensemble_accuracy", "disagreement", "teacher_forwards")
LOCAL = {"fedavg": fedavg, "fedprox": fedprox, "scaffold": scaffold}


def group_clients(active, K, rng):
    """The active clients dealt at random into K groups, one per global model.                      Section 3.1.1; A.2

    active    list of client ids
    returns   K sorted lists whose sizes differ by at most 1, the larger ones first (so the main model's is never smaller)
    raises    ValueError if K < 1 or K > len(active): a global model without clients would not be trained
    """
    if not 1 <= K <= len(active):
        raise ValueError(f"K = {K} global models need 1 <= K <= {len(active)}, the number of active clients")
    shuffled = rng.permutation(active).tolist()
    return [sorted(shuffled[k::K]) for k in range(K)]


def ensemble_logits(member_logits):
    """The mean over the members of their logits: [M, N, C] -> [N, C].                              Eq. (3), (5), before sigma

    >>> ensemble_logits(torch.tensor([[[4., 0.]], [[0., 1.]]])).softmax(-1)         # the mean of the softmaxes is .6255, .3745
    tensor([[0.8176, 0.1824]])
    """
    return member_logits.mean(0)


def round_seconds(group_seconds, distill_seconds):
    """Seconds of a round when one client can train at a time: (one thing after the other, server and clients at once).     A.6

    group_seconds     [K]: what local training takes in each group, the main model's first
    distill_seconds   what distillation takes on the server

    Distillation needs all models of its round, but of the next round only the main model needs distillation. So meanwhile the
    others train, and the main model last: a round lasts until everyone has trained, or until distillation and the main model's
    training are done, whichever is later.
    >>> round_seconds([1.0, 1.0, 1.0, 1.0], 2.0)
    (6.0, 4.0)
    """
    return sum(group_seconds) + distill_seconds, max(sum(group_seconds), distill_seconds + group_seconds[0])


def distil(fed, t, k, model_state, teacher_logits, *, distill_steps, server_batch_size, server_lr, temperature, i=0):
    """The state_dict of global model k (of client i's network) after `distill_steps` steps of SGD towards teacher_logits [N, C].

    A step is on a batch of the public images.
    """
    model = fed.client_model(i)
    model.load_state_dict(model_state)
    model.train()
    update = torch.optim.SGD(model.parameters(), lr=server_lr)
    rng = stream(fed.seed, "distil", t, k)
    images = fed.public.images
    with seeded(fed.seed, "distil", t, k):
        passes = batches(len(images), server_batch_size, distill_steps, rng, fed.device)    # more than enough: a pass is >= 1 step
        for rows in itertools.islice(passes, distill_steps):                             # rows: [B]
            batch = fed.augment(images[rows], rng) if fed.augment else images[rows]
            loss = distillation_loss(teacher_logits[rows], forward(fed, model, batch), temperature)             # Eq. (4)
            update.zero_grad()
            loss.backward()
            update.step()
    return model.state_dict()


def check_groups(fed, participation, K, ensemble, local, secure_sum):
    """ValueError, in one line, if some group would have no client, or one where sums are to hide each client's model."""
    for ids in by_architecture(fed).values():
        groups = group_clients(range(count_active(len(ids), participation)), K, stream(fed.seed))
        if secure_sum and len(groups[-1]) < 2:
            raise ValueError("--secure-sum with a single client in a group: the sum would be its model; a smaller --K, or "
                             "more clients, make groups larger")
    if secure_sum and ensemble == "clients":
        raise ValueError("--secure-sum hides the clients' models, which --ensemble clients needs one by one")
    if secure_sum and local == "scaffold":
        raise ValueError("--secure-sum is not built for --local scaffold, which sums controls as well: fedavg or fedprox")


def run(fed, state=None, *, rounds: int = 100, participation: float = 0.4, K: int = 4, R: int = 1,
        ensemble: Literal["aggregated", "clients"] = "aggregated", students: Literal["main", "all", "none"] = "main",
        warmup_rounds: int = 0, local: Literal["fedavg", "fedprox", "scaffold"] = "fedavg", local_epochs: int = 40,
        batch_size: int = 64, lr: float = 0.8, mu: float = 0.001, distill_steps: int = 5000, server_batch_size: int = 256,
        server_lr: float = 0.1, temperature: float = 4.0, secure_sum: bool = False, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    ensemble        whose logits are averaged: the "aggregated" global models', or the "clients"' (Table 5)
    students        which global models learn from the ensemble: "main" (diversity-enhanced), "all" (basic), "none" (Fed-ensemble)
    warmup_rounds   rounds at the start without distillation (Table 6)
    secure_sum      the server sees sums of models only
    attack          (uploads [M, P], client ids, rows [P], t) -> uploads: what malicious clients make of theirs, as vectors
    """
    method = LOCAL[local]
    clients_of = by_architecture(fed)                    # {name of a network: its clients}
    owner = [ids[0] for ids in clients_of.values() for _ in range(K)]      # of each global model: a client with its network
    main = {name: K * a for a, name in enumerate(clients_of)}              # of each network: its main model
    taught = {"main": list(main.values()), "all": range(len(owner)), "none": []}[students]
    settings = dict(local_epochs=local_epochs, batch_size=batch_size, lr=lr) | ({"mu": mu} if local == "fedprox" else {})
    models = [fed.client_model(i) for i in owner]        # workbenches: states are loaded into them to predict
    bench = {name: models[k] for name, k in main.items()}
    if state is None:
        check_groups(fed, participation, K, ensemble, local, secure_sum)
        if attack and (secure_sum or local == "scaffold" or len(clients_of) > 1):
            raise ValueError("--attack on weights needs one network for all clients, and neither --secure-sum nor --local scaffold")
        state = {"round": 0, "servers": [method.start_server(fed, init=k % K, i=i) for k, i in enumerate(owner)],   # Alg. 1, line 1
                 "clients": [{} for _ in owner], "public_ring": [], "test_ring": []}
        yield server_metrics(fed, bench, {name: state["servers"][k]["model"] for name, k in main.items()}), state
    servers, clients = list(state["servers"]), list(state["clients"])
    public_ring, test_ring = state["public_ring"], state["test_ring"]
    for t in range(state["round"] + 1, rounds + 1):                                                          # Alg. 1, line 2
        start = seconds(fed.device)
        rng = stream(fed.seed, "groups", t)
        groups = [group for ids in active_clients(fed, participation, t).values() for group in group_clients(ids, K, rng)]
        group_of = {i: k for k, group in enumerate(groups) for i in group}
        active = sorted(group_of)

        def train(i):                                                                                        # Alg. 1, line 4-6
            k = group_of[i]
            upload, client = method.train_client(fed, i, t, servers[k], clients[k].get(i), **settings)
            if secure_sum:                               # what leaves the client, and all that the server sees
                upload = masked_model(upload["model"], len(fed.private[i].labels), i, groups[k],
                                      lambda *pair: stream(fed.seed, "mask", t, *pair))
            return upload, client

        trained = run_clients(train, active, fed.device)                                                     # Alg. 1, line 3
        trained = attack_uploads(attack, trained, active, t) if attack else trained
        good = {i: result for i, result in zip(active, trained) if is_finite(result)}
        num_good = len(good)
        for k, group in enumerate(groups):                                                                   # Alg. 1, line 7
            if secure_sum:
                average, counted = average_of_masked([good[i][0] for i in group], like=servers[k]["model"])
                servers[k], num_good = {"model": average} if counted else servers[k], num_good - len(group) + counted
            else:
                servers[k] = method.aggregate(fed, servers[k], {i: good[i][0] for i in group if i in good})
            clients[k] = clients[k] | {i: good[i][1] for i in group if i in good}
        trained_at = seconds(fed.device)

        members, own_models = [server["model"] for server in servers], models            # w_{t,k}, before any distillation
        if ensemble == "clients" and good:
            members, own_models = [good[i][0]["model"] for i in good], [models[group_of[i]] for i in good]
        teacher_forwards = 0                                                             # samples predicted by a teacher
        if taught:
            member_logits = predict_members(fed, own_models, members, fed.public.images)      # [M, N, C]
            teacher_forwards = member_logits.shape[0] * member_logits.shape[1]
            public_ring = (public_ring + [ensemble_logits(member_logits)])[-R:]          # R of [N, C]           Eq. (3)
            teacher_logits = ensemble_logits(torch.stack(public_ring))                   # [N, C]                Eq. (5)
        if t > warmup_rounds:
            for k in taught:                             # all others stay as they are                    Alg. 1, line 8, 10
                student = distil(fed, t, k, servers[k]["model"], teacher_logits, distill_steps=distill_steps, i=owner[k],
                                 server_batch_size=server_batch_size, server_lr=server_lr, temperature=temperature)
                servers[k] = servers[k] | {"model": student}                                                 # Alg. 1, line 9
        distilled_at = seconds(fed.device)

        member_logits = predict_members(fed, own_models, members, fed.test.images)       # [M, N_test, C]
        test_ring = (test_ring + [ensemble_logits(member_logits)])[-R:]
        metrics = {**server_metrics(fed, bench, {name: servers[k]["model"] for name, k in main.items()}),
                   "ensemble_accuracy": accuracy(ensemble_logits(torch.stack(test_ring)), fed.test.labels),
                   "disagreement": disagreement(member_logits), "teacher_forwards": teacher_forwards,
                   "bad_uploads": len(active) - num_good,
                   "local_seconds": trained_at - start, "distill_seconds": distilled_at - trained_at,
                   **weights_ledger([(models[k], len(group)) for k, group in enumerate(groups)], method.COPIES,
                                    NUMBER_BYTES if secure_sum else FLOAT_BYTES)}
        yield metrics, {"round": t, "servers": list(servers), "clients": list(clients),
                        "public_ring": public_ring, "test_ring": test_ring}
