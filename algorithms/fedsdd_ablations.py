"""FedSDD varied: local training, members of the ensemble, students, secure sums, several networks.

Kwan and Song, "FedSDD: Scalable and Diversity-enhanced Distillation for Model Aggregation in
Federated Learning", arXiv:2312.17029v1, Tables 4, 5 and 6, sections 3.1.1 and A.5. With the values
of `Config` and one network it is fedsdd.py, number for number.

    python fedkd_minimal.py --algo fedsdd-ablations --students all
        runs `Config`, with students = all, on digits of 16x16 pixels: 20 clients with a small CNN
        hold unequal shares of the classes (Dirichlet, alpha 0.5), 240 images each; 1,200 other
        images are public. It takes a minute on two cores.
    python fedkd_minimal.py --algo fedsdd-ablations --paper fedsdd --dataset cifar10 --local fedprox
        runs `PAPER`, with local = fedprox, and a ResNet-20: 20 clients, alpha 0.1, 2,500 images
        each; CIFAR-100's 50,000 training images are public. Images of clients and server are
        cropped and flipped.
    python fedkd_minimal.py --algo fedsdd-ablations --model cnn,mlp --K 2
        runs `Config` with two networks: clients 0, 2, 4, ... have a CNN, the others an MLP.
    python fedkd_minimal.py --algo fedsdd-ablations --students none --K 1 --R 16 --public none
        is FedAvg, with the ensemble of its last 16 models, and the mean of their weights.

Clients hold labeled images of their own; between rounds they keep nothing, but for SCAFFOLD's
controls. The server holds N public images without labels. Training: train mode, images cropped and
flipped with --augment, the mean loss of a batch. Prediction: eval mode, no gradient, images as they
are, but for public ones: with --augment each is cropped and flipped once in a round, for all who
predict or learn it.

Algorithm 1 with the lines of fedsdd.py. With several networks there are K global models of each:
numbers 0 to K - 1 are of the first, K to 2K - 1 of the second, M in all; 0, K, 2K, ... are main
models.
  1   start with K global models of each network, of different random weights
  2   for each round t:
  3       draw the active clients, the same share of each network's, and divide each network's
              at random into K groups
  4       for each active client, in parallel:
  5           copy the global model of its group                                        Eq. (1)
  6           train it on the client's own images by                                   Table 4
                  local = fedavg:    cross-entropy
                  local = fedprox:   cross-entropy + (mu / 2) ||w - copied model||²
                  local = scaffold:  cross-entropy, with gradients g - c_i + c
  7       w_0, ..., w_M-1 = the means of the trained models of each group,
                            weighted by numbers of images                               Eq. (2)
              local = scaffold:  scaffold.py's steps 14 to 17, with global_lr = 1
              secure_sum:        the server only sees the sum of a group's models, not one of them
  8       teacher = the mean of the logits, on the public images, of the members of this
                    round and of the R - 1 rounds before it (at first fewer)      Eq. (3), (5)
              ensemble = aggregated:  the members of a round are w_0, ..., w_M-1       Table 5
              ensemble = clients:     they are the trained models of all clients
  9       each student m = w_m, trained on the public images by                         Eq. (4)
              temperature² KL(softmax(teacher / temperature) || softmax(logits / temperature))
              students = main, all:   the main models, or all M, are students          Table 6
              students = none:        nobody is; the public images are not used
              warmup_rounds:          in so many rounds at the start nobody is, either
 10       the other global models are their w_m

students = none is Fed-ensemble (Shi et al., arXiv:2107.10663): its result is `ensemble_accuracy`.

Accuracy is the main model's on the test images, after step 9, also where it is no student; with
several networks the mean over the main models. `ensemble_accuracy` is the teacher's.
`averaged_accuracy` is that of one model, the mean of the main model's weights at the end of the
last K R rounds (at first fewer): with one network and ensemble = aggregated of as many models as
the ensemble has. With K = 1 and students = none these are FedAvg's; with several networks it is the
mean over them.

Bad uploads: a client of which a number is nan, infinite, or 1e30 or more in magnitude is left out
of its group's mean. A group with nobody left keeps the model that it started from, which then is
its w_m. With secure_sum clients whose models are not finite, or too large, send zeros that count
for nothing. If no client at all is left, a round's members are w_0, ..., w_M-1 with ensemble =
clients, too.

Departures, besides fedsdd.py's
  1  Paper, Table 6: silent about the teacher of several students. Here: it is the same for all, the
     ensemble before any is distilled.
  2  Paper: silent about the models of warm-up rounds. Here: they are in later ensembles, too.
  3  Paper: silent about SCAFFOLD's controls in groups. Here: each global model has a control c, and
     for each of its clients a control c_i; N is the number of all clients with its network.
  4  Paper, A.5: "multiple global models for each model type". Here: K of each.
"""
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from algorithms import Algorithm, configured, fedprox, fedsdd, scaffold
from algorithms.fedsdd import average, distillation_loss, divide
from algorithms.secure_sum import NUMBER_BYTES, average_of_masked, count_valid, masked_upload
from federation import (FLOAT_BYTES, accuracy, active_clients, average_weights, by_architecture,
                        count_active, disagreement, loaded, mean_accuracy, minibatches,
                        parallel_map, predict, public_view, random_numbers, received,
                        server_threads, stream, weights_ledger)

# active_clients    {network: the clients of a round}, drawn at random without replacement
# average_weights   the weighted mean of models of one network
# by_architecture   {network: its clients}
# disagreement      the share of images of which two models predict different classes, the mean
#                   over all pairs
# loaded            a network, after a copy of some weights into it
# minibatches       row numbers of batches, reshuffled in each pass; the last one may be smaller
# parallel_map      {i: fn(i) for i in ids}, by several processes
# predict           logits [images, C], in eval mode, without gradient and augmentation
# public_view       the public samples of a round; with --augment each image is cropped and
#                   flipped once, for all who predict or learn it
# random_numbers    a generator for what is named; it also seeds torch, for dropout
# received          {client: upload}: after an attack, and without the bad uploads
# server_threads    inside the block torch has the CPU threads of a server
# stream            a generator for what is named
# weights_ledger    bytes that are sent up and down


@dataclass
class Config:
    rounds: int = 20                     # T
    participation: float = 0.4           # share of the clients that are active in a round
    K: int = 4                           # global models of each network; at most its active
    #                                      clients
    R: int = 1                           # rounds whose members form the ensemble
    ensemble: Literal["aggregated", "clients"] = "aggregated"    # the members of a round
    students: Literal["main", "all", "none"] = "main"            # who learns from the teacher
    warmup_rounds: int = 0               # rounds at the start in which nobody does
    secure_sum: bool = False             # the server sees a group's sum, and no client's model
    local: Literal["fedavg", "fedprox", "scaffold"] = "fedavg"   # local training and step 7
    local_epochs: int = 5                # passes of a client over its images in a round
    local_steps: int | None = None       # if it is a number: so many steps, instead of passes
    batch_size: int = 32                 # of a client
    lr: float = 0.1                      # of a client, constant; SGD without momentum
    mu: float = 0.001                    # weight of the penalty; for --local fedprox alone
    distill_steps: int = 100             # steps of the server in a round, for each student
    server_batch_size: int = 128
    server_lr: float = 0.0125            # constant; SGD without momentum
    temperature: float = 4.0             # tau, of teacher and student


# Section 4.1, and the variant that is fedsdd.py.
# Clients, partition, networks, augmentation: experiment/presets.py.
PAPER = dict(rounds=100, participation=0.4, K=4, R=1, ensemble="aggregated", students="main",
             warmup_rounds=0, secure_sum=False, local="fedavg", local_epochs=40, batch_size=64,
             lr=0.8, mu=0.001, distill_steps=5000, server_batch_size=256, server_lr=0.1,
             temperature=4.0)


class Group(NamedTuple):
    """A group of clients, and what they start from in a round."""

    clients: list            # their ids
    network: str             # its name
    weights: dict            # of the global model
    control: dict | None     # SCAFFOLD's of the global model: {"server": c, "clients": {i: c_i}}


@configured(Config)
def run(fed, cfg, state=None, attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round.

    fed       as in fedsdd.py, but for the networks: fed.architecture[i] is the name of client i's,
              and fed.client_model(i, init=k) a new one with the k-th random weights
    state     of an earlier round, to go on from; None: from the start
    attack    replaces the uploads of malicious clients (attacks.py); None: there are none
    """
    # The networks of the M global models; departure 4.
    networks = [name for name in by_architecture(fed) for _ in range(cfg.K)]
    if state is None:
        # Step 1: K global models of each network, of different random weights.
        models = [new_network(fed, name, m % cfg.K).state_dict() for m, name in enumerate(networks)]
        state = {"round": 0, "global_models": by_network(networks, models), "undistilled": [],
                 "main": [], "controls": [start_control(fed, cfg, name) for name in networks]}
        yield evaluate(fed, cfg, state), state
    models = [weights for of_network in state["global_models"].values() for weights in of_network]
    undistilled, main, controls = state["undistilled"], state["main"], state["controls"]

    for t in range(state["round"] + 1, cfg.rounds + 1):
        # Step 3: the active clients of each network are divided into K groups.
        clients = divide_all(fed, cfg, t)                                    # M lists
        groups = [Group(*start) for start in zip(clients, networks, models, controls)]
        group_of = {i: group for group in groups for i in group.clients}

        # Step 4-6: each client trains its group's model on its own images.             Table 4
        trained = parallel_map(fed, sorted(group_of),
                               lambda i: train_client(fed, cfg, t, i, group_of[i]))
        uploads = {}                                                         # {client: weights}
        for group in groups:                         # attackers know the uploads of their group
            uploads |= received(fed, {i: trained[i].upload for i in group.clients}, attack)
        uploads = {i: uploads[i] for i in sorted(uploads)}                   # in clients' order

        # Step 7: each group's mean, by numbers of images.                              Eq. (2)
        w, controls = zip(*[aggregate(fed, cfg, group, trained, uploads) for group in groups])

        # Step 8: the mean of the logits of the members of the last R rounds.      Eq. (3), (5)
        members = members_of(fed, cfg, networks, w, uploads)                 # Table 5
        undistilled = [*undistilled, members][-cfg.R:]                       # departure 2
        ensemble = [member for earlier in undistilled for member in earlier]
        images, teacher = None, None             # [N, c, h, w], [N, C]
        if cfg.students != "none":
            images = public_view(fed, t).images
            teacher = predict_members(fed, ensemble, images).mean(0)

        # Step 9-10: the students are distilled, the others stay as they are.           Table 6
        distilled = parallel_map(fed, students_of(cfg, t, len(w)), lambda m: distill(
            fed, cfg, t, m, networks[m], w[m], images, teacher))             # departure 1
        models = [distilled.get(m, w[m]) for m in range(len(w))]
        main = [*main, models[::cfg.K]][-cfg.K * cfg.R:]     # for averaged_accuracy alone

        state = {"round": t, "global_models": by_network(networks, models),
                 "undistilled": undistilled, "main": main, "controls": controls}
        yield {**evaluate(fed, cfg, state), **traffic(fed, cfg, groups, uploads)}, state


def new_network(fed, name, init=0):
    """A new network of this name, with the random weights number `init`."""
    return fed.client_model(fed.architecture.index(name), init)


def by_network(networks, models):
    """The M models as {network: its K models}."""
    return {name: [model for other, model in zip(networks, models) if other == name]
            for name in dict.fromkeys(networks)}


def start_control(fed, cfg, name):
    """A global model's control of zeros, and those of its clients, which are zeros if missing."""
    if cfg.local != "scaffold":
        return None
    return {"server": scaffold.zero_control(new_network(fed, name)), "clients": {}}


def divide_all(fed, cfg, t):
    """M lists of clients: the active ones of each network in its K groups."""
    rng = stream(fed.seed, "groups", t)
    return [group for active in active_clients(fed, cfg.participation, t).values()
            for group in divide(active, cfg.K, rng)]


def train_client(fed, cfg, t, i, group):
    """Client i after the local training that cfg.local names: a scaffold.Trained.   Table 4"""
    own = dict(local_epochs=cfg.local_epochs, local_steps=cfg.local_steps,
               batch_size=cfg.batch_size, lr=cfg.lr)
    if cfg.local == "scaffold":
        server = {"model": group.weights, "control": group.control["server"]}
        return scaffold.train_client(fed, scaffold.Config(**own), t, i, server,
                                     group.control["clients"].get(i))
    if cfg.local == "fedprox":
        weights = fedprox.train_client(fed, fedprox.Config(**own, mu=cfg.mu, optimizer="sgd",
                                                           weight_decay=0.0), t, i, group.weights)
    else:
        weights = fedsdd.train_client(fed, fedsdd.Config(**own), t, i, group.weights)
    if cfg.secure_sum:
        weights = masked_upload(fed, t, i, group.clients, group.weights, weights)
    return scaffold.Trained(upload=weights, control=None)


def aggregate(fed, cfg, group, trained, uploads):
    """(w_m, SCAFFOLD's control) of a group, from what clients trained and what has arrived of it.

    trained, uploads    {client: scaffold.Trained}, {client: upload}, of all groups
    """
    if cfg.secure_sum:
        messages = [uploads[i] for i in group.clients]
        return average_of_masked(messages, like=group.weights) or group.weights, None
    if cfg.local != "scaffold":
        return average(fed, group.clients, uploads, before=group.weights), None
    own = {i: uploads[i] for i in group.clients if i in uploads}
    num_clients = fed.architecture.count(group.network)                      # departure 3
    server = scaffold.aggregate(fed, scaffold.Config(global_lr=1.0), {
        "model": group.weights, "control": group.control["server"]}, own, num_clients)
    kept = group.control["clients"] | {i: trained[i].control for i in own}
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
        return predict(loaded(new_network(fed, network), weights), images)

    return torch.stack([*parallel_map(fed, range(len(members)), logits_of).values()])


def students_of(cfg, t, M):
    """The numbers m of the global models that are distilled in round t.   Table 6"""
    if cfg.students == "none" or t <= cfg.warmup_rounds:
        return []
    return range(0, M, cfg.K) if cfg.students == "main" else range(M)


def distill(fed, cfg, t, m, network, weights, images, teacher):
    """The weights of global model m after SGD on the public images, which starts from `weights`.

    weights    w_m
    images     the public ones of this round [N, c, h, w]
    teacher    its logits of them [N, C]
    """
    model = loaded(new_network(fed, network), weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.server_lr)
    model.train()
    with server_threads(fed), random_numbers(fed, "distil", t, m) as rng:
        for rows in minibatches(images, cfg.server_batch_size, rng, steps=cfg.distill_steps):
            student = model(images[rows])                                        # [B, C]
            loss = distillation_loss(teacher[rows], student, cfg.temperature)           # Eq. (4)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.state_dict()


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def evaluate(fed, cfg, state):
    """Test accuracies of the main models and, after round 0, of the ensemble with what it costs."""
    images, labels = fed.test
    main = [(name, models[0]) for name, models in state["global_models"].items()]
    each = {f"server_accuracy_{name}": accuracy(logits, labels)
            for (name, _), logits in zip(main, predict_members(fed, main, images))}
    metrics = {"accuracy": mean_accuracy(each.values()), **(each if len(each) > 1 else {})}
    if not state["undistilled"]:
        return metrics
    ensemble = [member for earlier in state["undistilled"] for member in earlier]
    logits = predict_members(fed, ensemble, images)                              # [M R, N, C]
    averaged = [(name, average_weights(models, [1] * len(models)))
                for name, models in zip(state["global_models"], zip(*state["main"]))]
    num_public = 0 if cfg.students == "none" else len(fed.public.images)
    return {
        **metrics, "ensemble_accuracy": accuracy(logits.mean(0), labels),
        "averaged_accuracy": mean_accuracy(
            accuracy(logits, labels) for logits in predict_members(fed, averaged, images)),
        "disagreement": disagreement(logits[-len(state["undistilled"][-1]):]),   # of this round's
        "teacher_forwards": len(ensemble) * num_public}      # images, each by each member


def traffic(fed, cfg, groups, uploads):
    """How many uploads were bad, and bytes: SCAFFOLD sends twice a model; masked numbers have 8."""
    active, valid = sum(len(group.clients) for group in groups), len(uploads)
    if cfg.secure_sum:               # which clients sent zeros is hidden, but not how many
        valid = sum(count_valid([uploads[i] for i in group.clients]) for group in groups)
    sent = [(new_network(fed, group.network), len(group.clients)) for group in groups]
    return {"bad_uploads": active - valid,
            **weights_ledger(sent, 2 if cfg.local == "scaffold" else 1,
                             NUMBER_BYTES if cfg.secure_sum else FLOAT_BYTES)}


# --------------------------------------------------------------------------------------------------
# For the command line

def check(fed, cfg, attack):
    """Raises ValueError if a group would have no client, or if choices do not go together."""
    name, networks = "fedsdd-ablations", by_architecture(fed)
    active = min(count_active(len(ids), cfg.participation) for ids in networks.values())
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


ALGORITHM = Algorithm(
    "fedsdd-ablations", run, paper=PAPER, public="unlabeled", public_for=("students",),
    scores={**fedsdd.ALGORITHM.scores, "averaged_accuracy": "averaged"},
    mixed_networks=True, check_settings=check, columns=fedsdd.ALGORITHM.columns)
