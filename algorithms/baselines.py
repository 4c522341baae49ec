"""Baselines: networks that train by cross-entropy on labels alone, without any exchange.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv:2110.11027, section 4.1. public-private is not in the paper: its clients make the steps of
FedGEMS's clients, but without distillation.

    python fedkd_minimal.py --algo standalone,public-private,centralized,centralized-all
        runs `Config`, or `PublicPrivateConfig`, on digits: 20 clients with a small CNN hold 150
        each (Dirichlet, alpha 0.5); 3,000 others, and half of the test images, are public; the
        server's CNN is twice as wide. The four take a minute and a half on two cores.
    python fedkd_minimal.py --algo standalone,public-private,centralized,centralized-all \\
            --paper fedgems-homogeneous --dataset cifar10
        runs `PAPER`: 16 clients with a ResNet-11 hold 1,406 or 1,407 images each, iid; 25,000 are
        public; the server has a ResNet-56. Images are augmented, that is, cropped and flipped, and
        the learning rate falls when `accuracy` stops growing (experiment/plateau.py).

Clients hold labeled images of their own, and there are labeled public images. Every network has one
optimizer over all rounds.
  1   start with networks of random weights
  2   for each round t, for each network, in parallel: train it on its images, by cross-entropy

                    who predicts            images                   passes in a round
  standalone        the server              public                   local_epochs
                    each client             its own                  local_epochs
  public-private    each client             its own, then public     local_epochs, public_epochs
  centralized       one network of each     all clients', which      local_epochs
                      architecture            no party may see
  centralized-all   these, the server       all clients' and public  local_epochs

Training is in train mode, with gradient, and images are augmented anew in each pass. Test images
are predicted in eval mode, as they are: `accuracy` is the server's on the public half of them where
it trains a network, else the mean over all clients, on the rest. A network of an architecture
counts for every client that has it.

Departures
  1  Paper: counts epochs. Here: all rounds are one long training, of local_epochs passes each.
  2  public-private: augments public images in each pass. FedGEMS's clients: once a round.
"""
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import torch
import torch.nn.functional as F

from federation import (Algorithm, Count, Data, Natural, NonNegative, Optimizer, Positive, Settings,
                        accuracy, minibatches, parallel_map, predict_models, resume, score_clients,
                        score_server, snapshot)


@dataclass
class Config(Settings):
    rounds: Natural = 20                # of training
    local_epochs: Count = 1             # passes of each network over its images in a round
    batch_size: Count = 64              # of every network
    lr: Positive = 1e-3                 # of every network, constant
    optimizer: Optimizer = "amsgrad"    # of every network
    weight_decay: NonNegative = 1e-4    # L2 penalty of this optimizer


@dataclass
class PublicPrivateConfig(Settings):
    rounds: Natural = 10                # of training
    local_epochs: Count = 5             # passes of a client over its own images in a round,
    public_epochs: Natural = 1          #   then over the public images
    batch_size: Count = 64              # of every client
    lr: Positive = 1e-3                 # of every client, constant
    optimizer: Optimizer = "amsgrad"    # of every client
    weight_decay: NonNegative = 1e-4    # L2 penalty of this optimizer


# Table 13, rows Standalone and Centralized, and row FedGEMS for public-private, where they differ
# from Config. Clients, partition, networks: experiment/presets.py.
PAPER = dict(rounds=200, batch_size=256)
PUBLIC_PRIVATE_PAPER = dict(rounds=200, local_epochs=1, batch_size=256)


def standalone(fed, cfg, state=None):
    """Yields (metrics, state) after round 0, the untrained networks, and after every round.

    fed      a `Federation`, with labeled public images and a network of the server
    cfg      a `Config`
    state    one that it has yielded, to go on from; None: from the start
    """
    STANDALONE.check(fed, cfg, state)
    images_of = {"server": [(fed.public, cfg.local_epochs)]}
    for i, private in enumerate(fed.private):
        images_of[i] = [(private, cfg.local_epochs)]
    yield from train_alone("standalone", fed, cfg, images_of, state)


def public_private(fed, cfg, state=None):
    """Yields (metrics, state) as `standalone` does."""
    PUBLIC_PRIVATE.check(fed, cfg, state)
    images_of = {i: [(private, cfg.local_epochs), (fed.public, cfg.public_epochs)]
                 for i, private in enumerate(fed.private)}
    yield from train_alone("public-private", fed, cfg, images_of, state)


def centralized(fed, cfg, state=None):
    """Yields (metrics, state) as `standalone` does."""
    CENTRALIZED.check(fed, cfg, state)
    everything = [(Data(*map(torch.cat, zip(*fed.private))), cfg.local_epochs)]
    images_of = dict.fromkeys(fed.clients_by_architecture(), everything)
    yield from train_alone("centralized", fed, cfg, images_of, state)


def centralized_all(fed, cfg, state=None):
    """Yields (metrics, state) as `standalone` does."""
    CENTRALIZED_ALL.check(fed, cfg, state)
    everything = [(Data(*map(torch.cat, zip(fed.public, *fed.private))), cfg.local_epochs)]
    images_of = dict.fromkeys(["server", *fed.clients_by_architecture()], everything)
    yield from train_alone("centralized-all", fed, cfg, images_of, state)


def train_alone(algorithm, fed, cfg, images_of, state):
    """The rounds of all four.

    algorithm    its name
    images_of    {network: [(images and labels, passes over them), ...]}, in the order in which it
                 trains on them. A network is "server", a client's number, or an architecture
    """
    if state is None:
        # Step 1: networks of random weights.
        networks = {name: snapshot(new_network(fed, name)) for name in images_of}
        state = {"algorithm": algorithm, "round": 0, **by_kind(networks)}
        yield evaluate(fed, state), state
    networks = networks_of(state)

    for t in range(state["round"] + 1, cfg.rounds + 1):                          # departure 1
        # Step 2: each network trains on its images.
        networks = parallel_map(fed, images_of, lambda name: train(
            fed, cfg, t, name, networks[name], images_of[name]))

        state = {**state, "round": t, **by_kind(networks)}
        yield {**evaluate(fed, state), "bytes_up": 0, "bytes_down": 0}, state


def new_network(fed, name):
    """The untrained network of this name; each client's has random weights of its own."""
    if name == "server":
        return fed.server_model()
    if isinstance(name, int):
        return fed.client_model(name, init=name)
    return fed.client_model(fed.architecture.index(name))


def train(fed, cfg, t, name, network, parts):
    """The snapshot of a network after round t.

    network    its snapshot after round t - 1
    parts      [(images and labels, passes over them), ...]
    """
    model, optimizer = resume(network, new_network(fed, name), cfg.optimizer, cfg.lr,
                              cfg.weight_decay)
    model.train()
    for number, ((images, labels), epochs) in enumerate(parts):
        # Order, augmentation, dropout.
        with fed.random_numbers("alone", t, name, number) as rng:
            for rows in minibatches(images, cfg.batch_size, rng, epochs):
                logits = model(fed.augment(images[rows], rng))       # [B, C], departure 2
                loss = F.cross_entropy(logits, labels[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return snapshot(model, optimizer)


def by_kind(networks):
    """{"server", "clients", "global_models"}, those there are, of {network: snapshot}."""
    state = {}
    for name, network in networks.items():
        if name == "server":
            state["server"] = network
        elif isinstance(name, int):
            state.setdefault("clients", {})[name] = network
        else:
            state.setdefault("global_models", {})[name] = network
    return state


def networks_of(state):
    """{network: snapshot} of a state, the inverse of `by_kind`."""
    server = {"server": state["server"]} if "server" in state else {}
    shared = state.get("global_models", {})
    return server | state.get("clients", {}) | shared


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def evaluate(fed, state):
    """Test accuracies of the server and of the clients."""
    if "clients" in state:
        clients = score_clients(fed, state["clients"])
    else:
        clients = score_shared(fed, state["global_models"])
    if "server" not in state:
        return {"accuracy": clients.pop("client_accuracy"), **clients}
    server = score_server(fed, state["server"])
    return {"accuracy": server.pop("server_accuracy"), **server, **clients}


def score_shared(fed, networks):
    """`score_clients` of clients that use the network of their architecture, {name: snapshot}."""
    def score(data):
        """The accuracy of each client's network."""
        accuracies = {}
        for name, saved in networks.items():
            new_model = partial(new_network, fed, name)
            logits = predict_models(fed, [saved["model"]], data.images, new_model)[0]    # [N, C]
            accuracies[name] = accuracy(logits, data.labels)
        return [accuracies[name] for name in fed.architecture]

    each = score(fed.test)
    metrics = {"client_accuracy": fmean(each), "client_accuracy_min": min(each),
               "client_accuracy_max": max(each)}
    if fed.public_test is not None:
        metrics["client_accuracy_public_test"] = fmean(score(fed.public_test))
    return metrics


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

def models(state, client_network, server_network):
    """{name: [(network, weights)]} of the server's models: its own, then one of each network."""
    own = [(server_network, state["server"]["model"])] if "server" in state else []
    shared = [(name, saved["model"]) for name, saved in state["global_models"].items()]
    return {f"server {k}" if k else "server": [pair] for k, pair in enumerate(own + shared)}


WITH_SERVER = {"accuracy": ("server", "public half"), "client_accuracy": ("clients", "test")}
WITHOUT_SERVER = {"accuracy": ("clients", "test")}
ON_OTHER_HALF = {"server_accuracy_private_test": ("server", "test")}
COLUMNS = ("client_accuracy_min", "client_accuracy_max")
STANDALONE = Algorithm(
    "standalone", standalone, Config, public="labeled", mixed_networks=True, server="images",
    program=dict(
        paper=PAPER, scores=WITH_SERVER, more_scores=ON_OTHER_HALF,
        clients_score="client_accuracy", columns=COLUMNS, plateau=("lr",), evaluate=evaluate))
PUBLIC_PRIVATE = Algorithm(
    "public-private", public_private, PublicPrivateConfig, public="labeled", mixed_networks=True,
    program=dict(
        paper=PUBLIC_PRIVATE_PAPER, scores=WITHOUT_SERVER, columns=COLUMNS, plateau=("lr",),
        evaluate=evaluate))
CENTRALIZED = Algorithm(
    "centralized", centralized, Config, mixed_networks=True, program=dict(
        paper=PAPER, models=models, scores=WITHOUT_SERVER, columns=COLUMNS, plateau=("lr",),
        evaluate=evaluate))
CENTRALIZED_ALL = Algorithm(
    "centralized-all", centralized_all, Config, public="labeled", mixed_networks=True,
    server="images", program=dict(
        paper=PAPER, models=models, scores=WITH_SERVER, more_scores=ON_OTHER_HALF,
        clients_score="client_accuracy", columns=COLUMNS, plateau=("lr",), evaluate=evaluate))
