"""Baselines: networks that train by cross-entropy on labels alone, without any exchange.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv:2110.11027, section 4.1. public-private is not in the paper: its clients make the steps of
FedGEMS's clients, but without distillation.

    python fedkd_minimal.py --algo standalone,public-private,centralized,centralized-all
        runs `Config`, or `PublicPrivateConfig`, on digits of 16x16 pixels. 20 clients with a small
        CNN hold unequal shares of the classes (Dirichlet, alpha 0.5), 150 images each; 3,000 images
        are public. The server has a CNN twice as wide. The four take a minute and a half on two
        cores.
    python fedkd_minimal.py --algo standalone,public-private,centralized,centralized-all \\
            --paper fedgems-homogeneous --dataset cifar10
        runs `PAPER`, or `PUBLIC_PRIVATE_PAPER`: 16 clients with a ResNet-11 hold 1,406 images each,
        iid; 25,000 images are public; the server has a ResNet-56. Images are cropped and flipped.
        The learning rate of all networks falls to a tenth after more than 10 rounds without a
        better `accuracy` on 2,500 validation images, on which nothing is trained.

Each client holds labeled images of its own, and there are labeled public images. Networks exchange
nothing. In centralized and centralized-all they train on the images of all clients, which no party
has in federated learning. Training: train mode, images cropped and flipped with --augment, the mean
loss of a batch. Prediction: eval mode, no gradient, images as they are. Every network has one
optimizer over all rounds.

The algorithm; the numbers are ours:
  1   start with networks of random weights
  2   for each round t:
  3       for each network, in parallel:
  4           train it on its images, by cross-entropy

Which networks on which images?
  standalone         the server's network      the public images
                     each client's network     the client's own images
  public-private     each client's network     the client's own images, then the public images
  centralized        one network of each       all clients' images
                     architecture of clients
  centralized-all    the server's network,     the public images and all clients' images
                     and one of each
                     architecture of clients

Accuracy is the server's network's, after step 4, where there is one; otherwise the mean over the
clients. In centralized and centralized-all a network counts for every client of its architecture.
With public images the server is tested on one half of the test images, the clients on the other.

Departure
  1  Paper: counts epochs. Here: a round is `local_epochs` passes over the images of each network,
     and all rounds are one long training.
"""
from dataclasses import dataclass

import torch.nn.functional as F

from algorithms import Algorithm, configured
from federation import (Optimizer, by_architecture, client_metrics, client_scores, loaded,
                        minibatches, parallel_map, random_numbers, restored, score, server_metrics,
                        snapshot, union)

# by_architecture   {name of an architecture: the clients that have it}
# minibatches       row numbers of batches, reshuffled in each pass; the last one may be smaller
# parallel_map      {name: fn(name) for name in names}, by several processes
# random_numbers    a generator for what is named; it also seeds torch, for dropout
# restored          a network and its optimizer, after a copy of a snapshot into both; learning rate
#                   and weight decay are the ones given
# snapshot          {"model": its state_dict, "optimizer": its state_dict, or None: a new one}
# union             the images of several owners, one after the other


@dataclass
class Config:
    rounds: int = 20                    # of training
    local_epochs: int = 1               # passes of each network over its images in a round
    batch_size: int = 64                # of every network
    lr: float = 1e-3                    # of every network; constant; --lr-patience lowers it
    optimizer: Optimizer = "amsgrad"    # of every network
    weight_decay: float = 1e-4          # L2 penalty of this optimizer


@dataclass
class PublicPrivateConfig:
    rounds: int = 10                    # of training
    local_epochs: int = 5               # passes of a client over its own images in a round,
    public_epochs: int = 1              #   then over the public images
    batch_size: int = 64                # of every client
    lr: float = 1e-3                    # of every client; constant; --lr-patience lowers it
    optimizer: Optimizer = "amsgrad"    # of every client
    weight_decay: float = 1e-4          # L2 penalty of this optimizer


# Table 13, rows Standalone and Centralized; public-private: row FedGEMS.
# Clients, partition, networks, augmentation: experiment/presets.py.
PAPER = dict(rounds=200, local_epochs=1, batch_size=256, lr=1e-3, optimizer="amsgrad",
             weight_decay=1e-4)
PUBLIC_PRIVATE_PAPER = dict(rounds=200, local_epochs=1, public_epochs=1, batch_size=256, lr=1e-3,
                            optimizer="amsgrad", weight_decay=1e-4)


@configured(Config)
def standalone(fed, cfg, state=None):
    """Yields (metrics, state) after round 0, the untrained networks, and after every round.

    fed      fed.private[i]: client i's images [n, c, h, w] and labels [n]; fed.public likewise
    state    of an earlier round, to go on from; None: from the start
    """
    images_of = {"server": [(fed.public, cfg.local_epochs)]}
    for i, private in enumerate(fed.private):
        images_of[i] = [(private, cfg.local_epochs)]
    yield from train_alone(fed, cfg, images_of, state)


@configured(PublicPrivateConfig)
def public_private(fed, cfg, state=None):
    """Yields (metrics, state) as `standalone` does."""
    images_of = {i: [(private, cfg.local_epochs), (fed.public, cfg.public_epochs)]
                 for i, private in enumerate(fed.private)}
    yield from train_alone(fed, cfg, images_of, state)


@configured(Config)
def centralized(fed, cfg, state=None):
    """Yields (metrics, state) as `standalone` does."""
    everything = [(union(*fed.private), cfg.local_epochs)]
    images_of = dict.fromkeys(by_architecture(fed), everything)
    yield from train_alone(fed, cfg, images_of, state)


@configured(Config)
def centralized_all(fed, cfg, state=None):
    """Yields (metrics, state) as `standalone` does."""
    everything = [(union(fed.public, *fed.private), cfg.local_epochs)]
    images_of = dict.fromkeys(["server", *by_architecture(fed)], everything)
    yield from train_alone(fed, cfg, images_of, state)


def train_alone(fed, cfg, images_of, state):
    """The rounds of all four.

    images_of    {network: [(images and labels, passes over them), ...]}, in the order in which it
                 trains on them. A network is "server", a client's number, or an architecture
    """
    if state is None:
        # Step 1: networks of random weights.
        networks = {name: snapshot(new_network(fed, name)) for name in images_of}
        state = state_of(0, networks)
        yield evaluate(fed, state), state
    networks = networks_of(state)

    for t in range(state["round"] + 1, cfg.rounds + 1):                          # departure 1
        # Step 3-4: each network trains on its images.
        networks = parallel_map(fed, images_of, lambda name: train(
            fed, cfg, t, name, networks[name], images_of[name]))

        state = state_of(t, networks)
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
    model, optimizer = restored(network, new_network(fed, name), cfg.optimizer, cfg.lr,
                                cfg.weight_decay)
    model.train()
    for number, ((images, labels), epochs) in enumerate(parts):
        # Order, augmentation, dropout.
        with random_numbers(fed, "alone", t, name, number) as rng:
            for rows in minibatches(images, cfg.batch_size, rng, epochs):
                logits = model(fed.augment(images[rows], rng))                   # [B, C]
                loss = F.cross_entropy(logits, labels[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return snapshot(model, optimizer)


def state_of(t, networks):
    """The state after round t of {network: snapshot}."""
    state = {"round": t}
    for name, network in networks.items():
        if name == "server":
            state["server"] = network
        elif isinstance(name, int):
            state.setdefault("clients", {})[name] = network
        else:
            state.setdefault("global_models", {})[name] = network
    return state


def networks_of(state):
    """{network: snapshot} of a state, the inverse of `state_of`."""
    server = {"server": state["server"]} if "server" in state else {}
    shared = state.get("global_models", {})
    return server | state.get("clients", {}) | shared


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def evaluate(fed, state):
    """Test accuracies of the server and of the clients."""
    if "clients" in state:
        scores = client_scores(fed, state["clients"])
    else:
        networks = networks_of(state)
        score_of = parallel_map(fed, by_architecture(fed), lambda name: score(
            fed, loaded(new_network(fed, name), networks[name]["model"])))
        scores = [score_of[name] for name in fed.architecture]
    clients = client_metrics(scores)
    if "server" not in state:
        return {"accuracy": clients.pop("client_accuracy"), **clients}
    server = server_metrics(fed, state["server"])
    return {"accuracy": server.pop("server_accuracy"), **server, **clients}


# --------------------------------------------------------------------------------------------------
# For the command line

WITH_SERVER = {"accuracy": "server", "client_accuracy": "clients"}
WITHOUT_SERVER = {"accuracy": "clients"}
COLUMNS = ("client_accuracy_min", "client_accuracy_max")
STANDALONE = Algorithm(
    "standalone", standalone, paper=PAPER, scores=WITH_SERVER, columns=COLUMNS, public="labeled",
    mixed_networks=True, server="images", plateau=("lr",), evaluate=evaluate)
PUBLIC_PRIVATE = Algorithm(
    "public-private", public_private, paper=PUBLIC_PRIVATE_PAPER, scores=WITHOUT_SERVER,
    columns=COLUMNS, public="labeled", mixed_networks=True, plateau=("lr",), evaluate=evaluate)
CENTRALIZED = Algorithm(
    "centralized", centralized, paper=PAPER, scores=WITHOUT_SERVER, columns=COLUMNS,
    mixed_networks=True, plateau=("lr",), evaluate=evaluate)
CENTRALIZED_ALL = Algorithm(
    "centralized-all", centralized_all, paper=PAPER, scores=WITH_SERVER, columns=COLUMNS,
    public="labeled", mixed_networks=True, server="images", plateau=("lr",), evaluate=evaluate)
