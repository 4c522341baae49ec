"""FedSDD varied: local training, members of the ensemble, students, secure sums, several networks.

Kwan and Song, arXiv:2312.17029v1, Tables 4, 5 and 6, sections 3.1.1 and A.5. Read fedsdd.py first:
with the values of `Config` and one network this file gives its numbers.

    python fedkd_minimal.py --algo fedsdd-ablations --students all
        runs `Config`, with students = all, on fedsdd.py's digits. A minute on two cores.
    python fedkd_minimal.py --algo fedsdd-ablations --paper fedsdd --dataset cifar10 --local fedprox
        runs `PAPER`, which is fedsdd.py's, with local = fedprox.
    python fedkd_minimal.py --algo fedsdd-ablations --model cnn,mlp --K 2
        runs `Config` with two networks: clients 0, 2, 4, ... have a CNN, the others an MLP.

What differs from fedsdd.py, with the numbers of its steps. With several networks there are K global
models of each, M in all: 0 to K - 1 are of the first network, K to 2K - 1 of the second; 0, K, 2K,
... are main models. With local = scaffold clients keep control variates between rounds.
  1   K global models of each network                                               departure 3
  3   the same share of each network's clients, in K groups
  6   local = fedprox:        cross-entropy + (mu / 2) ||w - global model||²            Table 4
      local = scaffold:       cross-entropy, with gradients g - c_i + c
  7   local = scaffold:       lines 14 to 17 of scaffold.py with global_lr = 1      departure 2
      secure_sum:             the server sees the sum of a group's models: secure_sum.py
  8   ensemble = aggregated:  a round's members are w_0, ..., w_M-1                     Table 5
      ensemble = clients:     they are the models that the active clients have sent
  9   students = main, all:   the main models, or all M, learn from the same teacher    Table 6
      students = none:        nobody does; no public images are needed
      warmup_rounds:          in so many rounds at the start nobody does            departure 1

  step   who predicts            images   mode    gradient   augmented      loss, how often
  6      an active client        its own  train   yes        in each pass   step 6, local_epochs
  8      members of R rounds     public   eval    no         once a round   none, once, for students
  9      each student            public   train   yes        as in step 8   Eq. (4), distill_steps
  -      main models after 9     test     eval    no         no             `accuracy`, their mean
  -      members of R rounds     test     eval    no         no             `ensemble_accuracy`
  -      a main model's weights  test     eval    no         no             `averaged_accuracy`, the
         averaged over the last K R rounds, at first fewer                  mean over the networks

students = none is like Fed-ensemble (Shi et al., arXiv:2107.10663), but that the groups of that one
are drawn once, and the models permuted over them. Bad uploads are left out as in fedsdd.py; with
secure_sum a client sends zeros instead. If none is left, a round's members are w_0, ..., w_M-1.

Departures, besides fedsdd.py's
  1  Paper: silent about the models of warm-up rounds. Here: they are in later ensembles, too.
  2  Paper: silent about control variates in groups. Here: each global model has a c, and a c_i for
     each client; N is the number of all clients with its network.
  3  Paper, A.5: "multiple global models for each model type". Here: K of each.
"""
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, NamedTuple

import torch

from algorithms import fedprox, fedsdd, scaffold
from algorithms.fedsdd import average, distillation_loss, divide
from algorithms.secure_sum import NUMBER_BYTES, average_of_masked, count_valid, masked_upload
from federation import (Algorithm, Count, Natural, NonNegative, Positive, Settings, Share, accuracy,
                        average_weights, count_weight_bytes, disagreement, drop_bad_uploads,
                        minibatches, parallel_map, predict)


@dataclass
class Config(Settings):
    rounds: Natural = 20                 # T
    participation: Share = 0.4           # share of the clients that are active in a round
    K: Count = 4                         # global models of each network; at most its active
    #                                      clients
    R: Count = 1                         # rounds whose members form the ensemble
    ensemble: Literal["aggregated", "clients"] = "aggregated"    # the members of a round
    students: Literal["main", "all", "none"] = "main"            # who learns from the teacher
    warmup_rounds: Natural = 0           # rounds at the start in which nobody does
    secure_sum: bool = False             # the server sees a group's sum, and no client's model
    local: Literal["fedavg", "fedprox", "scaffold"] = "fedavg"   # local training and step 7
    local_epochs: Count = 5              # passes of a client over its images in a round
    local_steps: Count | None = None     # if it is a number: so many steps, instead of passes
    batch_size: Count = 32               # of a client
    lr: Positive = 0.1                   # of a client, constant; SGD without momentum
    mu: NonNegative = 0.001              # weight of the penalty; for --local fedprox alone
    distill_steps: Count = 100           # steps of the server in a round, for each student
    server_batch_size: Count = 128
    server_lr: Positive = 0.0125         # constant; SGD without momentum
    temperature: Positive = 4.0          # tau, of teacher and student


PAPER = fedsdd.PAPER


class Group(NamedTuple):
    """A group of clients, and what they start from in a round."""

    clients: list            # their ids
    network: str             # its name
    weights: dict            # of the global model
    control: dict | None     # with local = scaffold: {"server": c, "clients": {i: c_i}}


def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round.

    fed       a `Federation`, with public images unless students = none
    cfg       a `Config`
    state     one that it has yielded, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    ALGORITHM.check(fed, cfg, state, attack)
    # The networks of the M global models.                                       departure 3
    networks = [name for name in fed.clients_by_architecture() for _ in range(cfg.K)]
    if state is None:
        # Step 1: K global models of each network, of different random weights.
        models = [new_network(fed, name, m % cfg.K).state_dict() for m, name in enumerate(networks)]
        controls = [start_control(fed, name) if cfg.local == "scaffold" else None
                    for name in networks]
        state = {"algorithm": "fedsdd-ablations", "round": 0,
                 "global_models": by_network(networks, models), "recent_members": [], "main": [],
                 "controls": controls}
        yield evaluate(fed, cfg, state), state
    models = [weights for of_network in state["global_models"].values() for weights in of_network]
    recent, main, controls = state["recent_members"], state["main"], state["controls"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3: the active clients of each network are divided into K groups.
        groups = [Group(*of_group) for of_group in zip(divide_all(fed, cfg, t), networks, models,
                                                       controls)]
        group_of = {i: group for group in groups for i in group.clients}
        active = sorted(group_of)

        # Step 4-6: each client trains its group's model on its own images.             Table 4
        trained = parallel_map(fed, active, lambda i: train_client(fed, cfg, t, i, group_of[i]))
        uploads = {}                                                         # {client: weights}
        for group in groups:                         # attackers know the uploads of their group
            sent = {i: trained[i].upload for i in group.clients}
            uploads |= attack.poison_weights(sent) if attack else sent
        uploads = drop_bad_uploads({i: uploads[i] for i in active})

        # Step 7: each group's mean, by numbers of images.                              Eq. (2)
        w, controls = zip(*[aggregate(fed, cfg, group, trained, uploads) for group in groups])

        # Step 8: the mean of the logits of the members of the last R rounds.      Eq. (3), (5)
        members = members_of(fed, cfg, networks, w, uploads)                        # Table 5
        recent = [*recent, members][-cfg.R:]                                 # departure 1
        students = students_of(cfg, t)                                              # Table 6
        images, teacher = None, None                                         # if nobody learns
        if students:
            ensemble = [member for of_round in recent for member in of_round]
            images = fed.augment_public(t)                                   # [N, c, h, w]
            teacher = predict_members(fed, ensemble, images).mean(0)         # [N, C]

        # Step 9-10: the students are distilled, the others stay as they are.
        distilled = parallel_map(
            fed, [m for m in range(len(w)) if m % cfg.K in students],
            lambda m: distill(fed, cfg, t, m, networks[m], w[m], images, teacher),
            threads=fed.threads)
        distilled = drop_bad_uploads(distilled)
        models = [distilled.get(m, w[m]) for m in range(len(w))]

        main = [*main, models[::cfg.K]][-cfg.K * cfg.R:]     # for averaged_accuracy alone
        state = {**state, "round": t, "global_models": by_network(networks, models),
                 "recent_members": recent, "main": main, "controls": controls}
        yield measure(fed, cfg, state, groups, uploads), state


def new_network(fed, name, init=0):
    """A new network of this name, with the random weights number `init`."""
    return fed.client_model(fed.architecture.index(name), init)


def by_network(networks, models):
    """The M models as {network: its K models}."""
    return {name: [model for other, model in zip(networks, models) if other == name]
            for name in dict.fromkeys(networks)}


def start_control(fed, name):
    """SCAFFOLD's control variates of a global model and of its network's clients, all 0."""
    zeros = scaffold.zero_control(new_network(fed, name))
    return {"server": zeros, "clients": dict.fromkeys(fed.clients_by_architecture()[name], zeros)}


def divide_all(fed, cfg, t):
    """M lists of clients: the active ones of each network in its K groups."""
    rng = fed.rng("groups", t)
    return [group for active in fed.sample_by_architecture(cfg.participation, t).values()
            for group in divide(active, cfg.K, rng)]


def train_client(fed, cfg, t, i, group):
    """Client i after the local training that cfg.local names: a scaffold.Trained.   Table 4"""
    if cfg.local == "scaffold":
        server = {"model": group.weights, "control": group.control["server"]}
        return scaffold.train_client(fed, cfg, t, i, server, group.control["clients"][i])
    if cfg.local == "fedprox":
        of_fedprox = fedprox.Config(local_epochs=cfg.local_epochs, local_steps=cfg.local_steps,
                                    batch_size=cfg.batch_size, lr=cfg.lr, mu=cfg.mu)
        weights = fedprox.train_client(fed, of_fedprox, t, i, group.weights)
    else:
        weights = fedsdd.train_client(fed, cfg, t, i, group.weights)
    if cfg.secure_sum:
        weights = masked_upload(fed, t, i, group.clients, weights)
    return scaffold.Trained(upload=weights, control=None)


def aggregate(fed, cfg, group, trained, uploads):
    """(w_m, SCAFFOLD's control variates) of a group, from what its clients trained and sent.

    trained, uploads    {client: scaffold.Trained}, {client: upload}, of all groups
    """
    if cfg.secure_sum:
        messages = [uploads[i] for i in group.clients]
        return average_of_masked(messages, like=group.weights) or group.weights, None
    if cfg.local != "scaffold":
        return average(fed, group.clients, uploads, before=group.weights), None
    own = {i: uploads[i] for i in group.clients if i in uploads}
    num_clients = fed.architecture.count(group.network)                      # departure 2
    server = scaffold.aggregate(fed, scaffold.Config(global_lr=1.0), {
        "model": group.weights, "control": group.control["server"]}, own, num_clients)
    kept = {**group.control["clients"], **{i: trained[i].control for i in own}}
    return server["model"], {"server": server["control"], "clients": kept}


def members_of(fed, cfg, networks, w, uploads):
    """[(network, weights)] of the round's members of the ensemble.   Table 5"""
    if cfg.ensemble == "aggregated" or not uploads:
        return [*zip(networks, w)]
    return [(fed.architecture[i], upload["model"] if cfg.local == "scaffold" else upload)
            for i, upload in uploads.items()]


def predict_members(fed, members, images):
    """Logits [M, N, C] of the M members [(network, weights)], by all processes."""
    def logits_of(m):
        network, weights = members[m]
        model = new_network(fed, network)
        model.load_state_dict(weights)
        return predict(model, images)

    return torch.stack([*parallel_map(fed, range(len(members)), logits_of).values()])


def students_of(cfg, t):
    """Which of each network's K global models are distilled in round t: their numbers.   Table 6"""
    if cfg.students == "none" or t <= cfg.warmup_rounds:
        return []
    return [0] if cfg.students == "main" else [*range(cfg.K)]


def distill(fed, cfg, t, m, network, weights, images, teacher):
    """The weights of global model m after SGD on the public images, which starts from `weights`.

    weights    w_m
    images     the public ones of this round [N, c, h, w]
    teacher    its logits of them [N, C]
    """
    model = new_network(fed, network)
    model.load_state_dict(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.server_lr)
    model.train()
    with fed.random_numbers("distil", t, m) as rng:        # as in fedsdd.py
        for rows in minibatches(images, cfg.server_batch_size, rng, steps=cfg.distill_steps):
            student = model(images[rows])                                        # [B, C]
            loss = distillation_loss(student, teacher[rows], cfg.temperature)           # Eq. (4)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.state_dict()


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def measure(fed, cfg, state, groups, uploads):
    """The metrics of a round."""
    active, valid = sum(len(group.clients) for group in groups), len(uploads)
    if cfg.secure_sum:               # which clients sent zeros is hidden, but not how many
        valid = sum(count_valid([uploads[i] for i in group.clients]) for group in groups)
    return {**evaluate(fed, cfg, state), "bad_uploads": active - valid,
            **count_bytes(cfg, [(new_network(fed, group.network), len(group.clients))
                                for group in groups])}


def count_bytes(cfg, messages):
    """The bytes of a round, see `count_weight_bytes`. Masked numbers have 8 bytes; SCAFFOLD's
    control variates are as many numbers as the weights."""
    sent = count_weight_bytes(messages)
    if cfg.secure_sum:
        masked = count_weight_bytes(messages, NUMBER_BYTES)
        sent |= {key: masked[key] for key in ("bytes_up", "bytes_up_buffers")}
    if cfg.local == "scaffold":
        sent |= {key: 2 * sent[key] for key in ("bytes_up", "bytes_down")}
    return sent


def evaluate(fed, cfg, state):
    """Test accuracies of the main models and, from round 1 on, of the ensemble and of the main
    models' averaged weights."""
    images, labels = fed.test
    main = [(name, models[0]) for name, models in state["global_models"].items()]
    each = {f"server_accuracy_{name}": accuracy(logits, labels)
            for (name, _), logits in zip(main, predict_members(fed, main, images))}
    metrics = {"accuracy": fmean(each.values()), **(each if len(each) > 1 else {})}
    if not state["recent_members"]:
        return metrics
    ensemble = [member for of_round in state["recent_members"] for member in of_round]
    logits = predict_members(fed, ensemble, images)              # [members, test images, C]
    averaged = [(name, average_weights(models, [1] * len(models)))
                for name, models in zip(state["global_models"], zip(*state["main"]))]
    num_public = len(fed.public.images) if students_of(cfg, state["round"]) else 0
    return {
        **metrics, "ensemble_accuracy": accuracy(logits.mean(0), labels),
        "averaged_accuracy": fmean(
            accuracy(logits, labels) for logits in predict_members(fed, averaged, images)),
        "disagreement": disagreement(logits[-len(state["recent_members"][-1]):]),      # this round
        "teacher_forwards": len(ensemble) * num_public}      # images, each by each member


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

def check(fed, cfg, state, attack):
    """Raises ValueError if a group would have no client, if choices do not go together, or if a
    state does not go with them."""
    name = "fedsdd-ablations"
    active = min(map(len, fed.sample_by_architecture(cfg.participation, t=1).values()))
    if cfg.K > active:
        raise ValueError(f"{name}: K = {cfg.K} global models of a network need as many active "
                         f"clients, but it has {active}: K is at most {active}")
    if attack and cfg.local == "scaffold":
        raise ValueError(f"{name}: an attack on weights does not go with local scaffold")
    if cfg.secure_sum and active < 2 * cfg.K:
        raise ValueError(f"{name}: secure_sum needs two clients in each group: the sum of one is "
                         "its model; a smaller K, or more clients, make groups larger")
    if cfg.secure_sum and (cfg.local == "scaffold" or cfg.ensemble == "clients" or attack):
        raise ValueError(f"{name}: secure_sum goes with local fedavg and fedprox, and with an "
                         "ensemble of aggregated models, without an attack: the server sees no "
                         "single model")
    if state is None:
        return
    K = len(next(iter(state["global_models"].values())))
    if K != cfg.K:
        raise ValueError(f"{name}: the state has K = {K}, not {cfg.K}")
    kept = [control and [*control["clients"]] for control in state["controls"]]
    own = [ids if cfg.local == "scaffold" else None
           for ids in fed.clients_by_architecture().values() for _ in range(cfg.K)]
    if kept != own:
        raise ValueError(f"{name}: the state is of another `local`, or of other clients")


def models(state, client_network, server_network):
    """{name: [(network, weights), ...]} of the trained models, as `evaluate` takes them."""
    servers = [(name, weights) for name, models in state["global_models"].items()
               for weights in models]
    averaged = [(name, average_weights(models, [1] * len(models)))
                for name, models in zip(state["global_models"], zip(*state["main"]))]
    found = {f"{noun} {k}" if k else noun: [pair]
             for noun, pairs in [("server", servers), ("averaged", averaged)]
             for k, pair in enumerate(pairs)}
    ensemble = [member for of_round in state["recent_members"] for member in of_round]
    return {**found, "ensemble": ensemble} if ensemble else found


ALGORITHM = Algorithm(
    "fedsdd-ablations", run, Config, public="unlabeled", mixed_networks=True,
    needs_for=lambda cfg: set() if cfg.students == "none" else {"public"}, check_more=check,
    program={
        **fedsdd.ALGORITHM.program, "paper": PAPER, "models": models,
        "scores": {**fedsdd.ALGORITHM.program["scores"],
                   "averaged_accuracy": ("averaged", "test")}})
