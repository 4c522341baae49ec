"""FedSDD: K global models, each averaged over its own group of clients, teach one of them: the main model.

Kwan and Song, "FedSDD: Scalable and Diversity-enhanced Distillation for Model Aggregation in Federated Learning",
arXiv:2312.17029v1. With --distill none the ensemble of the K models is Fed-ensemble (Shi et al., arXiv:2107.10663).
What travels: weights, down and up, as in the local method (--local). Public data: unlabelled, on the server.
Run:   python fedkd_minimal.py --algo fedsdd --K 4 --R 2

Paper              here                         shape            note
K, R, T, tau       K, R, rounds, temperature    numbers          global models, rounds in the ensemble
w*_{t-1,k}         servers[k]["model"]          state_dict       global model k as round t begins
w_{t,k}            members[k]                   state_dict       after line 7, before any distillation
N_{t,k}            len(groups[k])               number           clients of model k in round t
F(x|w_{t,k})       member_logits                [K, N, C]        raw logits on the public or the test images
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

Where the paper is silent or we differ:
D1  Eq. (4) read literally is KL(student || teacher), as PyTorch orders arguments: we take KL(teacher || student), Hinton's,
    with his factor temperature²                                          [test_eq4_is_temperature_squared_kl_from_the_teacher]
D2  in the first R - 1 rounds the ensemble has the rounds there are       [test_eq5_first_rounds_use_the_rounds_there_are]
D3  K does not divide the active clients: the first groups get one more   [test_group_clients_gives_the_first_groups_the_remainder]
D4  the main model's BatchNorm is in train mode while it learns           [test_distil_moves_the_students_running_statistics]
D5  SCAFFOLD: a server control per global model, a client control per (client, global model)
                                                                          [test_scaffold_controls_belong_to_one_global_model]
D6  each of the K initial models has its own seed; the main model's is FedAvg's   [test_initial_models_differ_and_main_is_fedavgs]
"""
import itertools
from typing import Literal

import torch

from algorithms import fedavg, fedprox, scaffold
from algorithms.common import (accuracy, batches, count_active, distillation_loss, forward, is_finite, predict_members,
                               run_clients, sample_clients, seconds, seeded, stream, test_accuracy)
from communication import weights_ledger

PUBLIC = "unlabelled"
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


def disagreement(member_logits):
    """Share of (pair of members, sample) whose predicted classes differ, a float in [0, 1]; None for a single member. [M, N, C]"""
    predicted = member_logits.argmax(-1)                                                 # [M, N]
    pairs = list(itertools.combinations(predicted, 2))
    return sum((a != b).float().mean().item() for a, b in pairs) / len(pairs) if pairs else None


def distil(fed, t, k, model_state, teacher_logits, *, temperature, distill_steps, server_batch_size, server_lr):
    """The state_dict of global model k after `distill_steps` steps of SGD towards teacher_logits [N, C] on the public images."""
    model = fed.client_model(0)
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


def run(fed, state=None, *, rounds: int = 100, participation: float = 0.4, K: int = 4, R: int = 1,
        distill: Literal["main", "all", "none"] = "main", warmup_rounds: int = 0,
        local: Literal["fedavg", "fedprox", "scaffold"] = "fedavg", local_epochs: int = 40, batch_size: int = 64, lr: float = 0.8,
        mu: float = 0.001, distill_steps: int = 5000, server_batch_size: int = 256, server_lr: float = 0.1,
        temperature: float = 4.0):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    distill         which global models learn from the ensemble: "main" (diversity-enhanced), "all" (basic), "none" (Fed-ensemble)
    warmup_rounds   rounds at the start without distillation (Table 6)
    """
    method = LOCAL[local]
    settings = dict(local_epochs=local_epochs, batch_size=batch_size, lr=lr) | ({"mu": mu} if local == "fedprox" else {})
    students = {"main": [0], "all": range(K), "none": []}[distill]
    model = fed.client_model(0)                          # a workbench: states are loaded into it to predict
    if state is None:
        group_clients(range(count_active(len(fed.private), participation)), K, stream(fed.seed))    # says so if K is too large
        state = {"round": 0, "servers": [method.start_server(fed, init=k) for k in range(K)],                # Alg. 1, line 1
                 "clients": [{} for _ in range(K)], "public_ring": [], "test_ring": []}
        server_accuracy = test_accuracy(fed, model, state["servers"][0]["model"])
        yield {"accuracy": server_accuracy, "server_accuracy": server_accuracy}, state
    servers, clients = list(state["servers"]), list(state["clients"])
    public_ring, test_ring = state["public_ring"], state["test_ring"]
    for t in range(state["round"] + 1, rounds + 1):                                                          # Alg. 1, line 2
        start = seconds(fed.device)
        active = sample_clients(len(fed.private), participation, stream(fed.seed, "active", t))
        groups = group_clients(active, K, stream(fed.seed, "groups", t))
        group_of = {i: k for k, group in enumerate(groups) for i in group}
        trained = run_clients(lambda i: method.train_client(fed, i, t, servers[group_of[i]], clients[group_of[i]].get(i),
                                                            **settings), active, fed.device)                 # Alg. 1, line 3-6
        good = {i: result for i, result in zip(active, trained) if is_finite(result)}
        for k, group in enumerate(groups):
            servers[k] = method.aggregate(fed, servers[k], {i: good[i][0] for i in group if i in good})      # Alg. 1, line 7
            clients[k] = clients[k] | {i: good[i][1] for i in group if i in good}
        trained_at = seconds(fed.device)

        members = [server["model"] for server in servers]                                # w_{t,k}, before any distillation
        teacher_forwards = 0                                                             # samples predicted by a teacher
        if students:
            member_logits = predict_members(fed, model, members, fed.public.images)      # [K, N, C]
            teacher_forwards = member_logits.shape[0] * member_logits.shape[1]
            public_ring = (public_ring + [ensemble_logits(member_logits)])[-R:]          # R of [N, C]           Eq. (3)
            teacher_logits = ensemble_logits(torch.stack(public_ring))                   # [N, C]                Eq. (5)
        if t > warmup_rounds:
            for k in students:
                student = distil(fed, t, k, servers[k]["model"], teacher_logits, temperature=temperature,
                                 distill_steps=distill_steps, server_batch_size=server_batch_size, server_lr=server_lr)
                servers[k] = servers[k] | {"model": student}                                                 # Alg. 1, line 9
        distilled_at = seconds(fed.device)

        member_logits = predict_members(fed, model, members, fed.test.images)            # [K, N_test, C]
        test_ring = (test_ring + [ensemble_logits(member_logits)])[-R:]
        server_accuracy = test_accuracy(fed, model, servers[0]["model"])
        metrics = {"accuracy": server_accuracy, "server_accuracy": server_accuracy,
                   "ensemble_accuracy": accuracy(ensemble_logits(torch.stack(test_ring)), fed.test.labels),
                   "disagreement": disagreement(member_logits), "teacher_forwards": teacher_forwards,
                   "bad_uploads": len(active) - len(good),
                   "local_seconds": trained_at - start, "distill_seconds": distilled_at - trained_at,
                   **weights_ledger(model, len(active), method.COPIES)}
        yield metrics, {"round": t, "servers": list(servers), "clients": list(clients),
                        "public_ring": public_ring, "test_ring": test_ring}
