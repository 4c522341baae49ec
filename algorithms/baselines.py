"""Baselines for federated learning: training without any exchange.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv:2110.11027, section 4, whose settings are the defaults.

Run:   python fedkd_minimal.py --algo standalone,centralized,centralized-all,public-private
What travels: nothing.
Public data: X_0, with labels; `centralized` has none.

Paper         here              shape           note
X_0           fed.public        [N, ...], [N]   public samples and their labels
X_k           fed.private[i]    [n, ...], [n]   those of client k, here i

What trains in a round, for local_epochs, by cross-entropy (CE) with AMSGrad, a kind of Adam
(--optimizer); the hyperparameters of clients are those of all networks:
standalone        the server's network on X_0, each client's on its own X_k
centralized       the clients' networks on the union of all X_k
centralized-all   the server's network and the clients' on X_0 and the union of all X_k
public-private    each client's on X_k, then, for public_epochs, on X_0. It is not in the paper: in
                  FedGEMS a client trains on labeled public data in every round, so a part of its
                  gain does not come from the others. Here it makes the same steps by CE alone
On a union one network of each kind is trained, which counts for all clients that have this kind.

Kept between rounds: all networks and the states of their optimizers, so that all rounds together
are one long training.
Modes: training is in train mode, with --augment on augmented images; the loss is the mean over the
batch. The test images are predicted in eval mode.
Scores: at the end of a round. server_accuracy is of the server's network, client_accuracy the mean
over the clients; `accuracy` repeats the first, where there is one, or the second. evaluation.py
says on which test images.
Bad upload: there is no upload.
Departures (docs/DEPARTURES.md has more):
D1  the paper counts epochs; here a round is local_epochs passes over the data of each network
"""
from functools import partial

import torch.nn.functional as F

from algorithms import Algorithm, checked
from federation import timed, union
from federation.evaluation import client_metrics, client_scores, score, server_metrics
from federation.parallel import by_architecture, in_parallel
from federation.training import (OPTIMIZERS, Optimizer, forward, load_model, network, restore,
                                 shuffled, snapshot)


def new_network(fed, name):
    """The untrained network of this name: "server", a client's number, or an architecture."""
    if name == "server":
        return fed.server_model()
    return fed.client_model(name, init=name) if isinstance(name, int) else network(fed, name)


def train_network(fed, t, name, saved, data, *, batch_size, new_optimizer):
    """The snapshot of one network after round t: its model, and the optimizer that it keeps.

    data    [(Data, epochs), ...]: what it trains on with cross-entropy, in this order
    """
    model = new_network(fed, name)
    optimizer = new_optimizer(model.parameters())
    restore(saved, model, optimizer)
    model.train()                        # --augment: the batches are augmented
    for part, ((images, labels), epochs) in enumerate(data):
        for rows, batch in shuffled(fed, images, ("alone", t, name, part), epochs=epochs,
                                    batch_size=batch_size):
            loss = F.cross_entropy(forward(fed, model, batch), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return snapshot(model, optimizer)


def state_of(t, networks):
    """The state after round t; networks: {name: snapshot}, the names as in `new_network`."""
    state = {"round": t}
    for name, saved in networks.items():
        if name == "server":
            state["server"] = saved
        elif isinstance(name, int):
            state.setdefault("clients", []).append(saved)
        else:
            state.setdefault("global_models", []).append({"architecture": name, **saved})
    return state


def networks_of(state):
    """{name: snapshot} of a state, the inverse of `state_of`."""
    networks = {}
    if "server" in state:
        networks["server"] = state["server"]
    for i, saved in enumerate(state.get("clients", [])):
        networks[i] = saved
    for saved in state.get("global_models", []):
        networks[saved["architecture"]] = saved
    return networks


@timed
def evaluate(fed, state):
    """Test accuracy of clients and server; `accuracy` is the server's if it has a network."""
    if "clients" in state:
        scores = client_scores(fed, state["clients"])
    else:
        saved = state["global_models"]
        scores = in_parallel(fed, lambda k: score(fed, load_model(fed, saved[k])),
                             range(len(saved)))
        score_of = dict(zip(by_architecture(fed), scores))
        scores = [score_of[architecture] for architecture in fed.architecture]
    metrics = client_metrics(scores)
    if "server" in state:
        metrics |= server_metrics(fed, state["server"])
    return {"accuracy": metrics.get("server_accuracy", metrics["client_accuracy"]), **metrics}


def evaluate_each(fed, state):
    """{name: test accuracy} of each network, for --lr-patience: each has a plateau of its own."""
    networks = networks_of(state)

    def accuracy(name):
        model = new_network(fed, name)
        model.load_state_dict(networks[name]["model"])
        return score(fed, model).test

    return dict(zip(networks, in_parallel(fed, accuracy, list(networks))))


def train_alone(fed, state, data, *, rounds, batch_size, lr, optimizer, weight_decay):
    """The rounds of all baselines: each network trains on its own data.

    data    {name: [(Data, epochs), ...]}: what each network trains on in a round; the names are
            those of `new_network`
    """
    new_optimizer = partial(OPTIMIZERS[optimizer], weight_decay=weight_decay)
    if state is None:
        state = state_of(0, {name: snapshot(new_network(fed, name)) for name in data})
        yield evaluate(fed, state), state
    networks = networks_of(state)
    factors = state.get("rate_factors", {})            # of --lr-patience: experiment/plateau.py
    for t in range(state["round"] + 1, rounds + 1):                                      # D1
        trained = in_parallel(fed, lambda name: train_network(
            fed, t, name, networks[name], data[name], batch_size=batch_size,
            new_optimizer=partial(new_optimizer, lr=lr * factors.get(name, 1))), list(data))
        networks = dict(zip(data, trained))

        state = state_of(t, networks)
        metrics = {**evaluate(fed, state), "bytes_up": 0, "bytes_down": 0}
        yield metrics, state


@checked
def standalone(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, batch_size: int = 256,
               lr: float = 1e-3, optimizer: Optimizer = "amsgrad", weight_decay: float = 1e-4):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    local_epochs    passes over a network's data in a round
    hyperparameters.py explains the other keywords.
    """
    data = {"server": [(fed.public, local_epochs)]}
    for i, private in enumerate(fed.private):
        data[i] = [(private, local_epochs)]
    yield from train_alone(fed, state, data, rounds=rounds, batch_size=batch_size, lr=lr,
                           optimizer=optimizer, weight_decay=weight_decay)


@checked
def public_private(fed, state=None, *, rounds: int = 200, local_epochs: int = 1,
                   public_epochs: int = 1, batch_size: int = 256, lr: float = 1e-3,
                   optimizer: Optimizer = "amsgrad", weight_decay: float = 1e-4):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    hyperparameters.py explains the keywords.
    """
    data = {i: [(private, local_epochs), (fed.public, public_epochs)]
            for i, private in enumerate(fed.private)}
    yield from train_alone(fed, state, data, rounds=rounds, batch_size=batch_size, lr=lr,
                           optimizer=optimizer, weight_decay=weight_decay)


@checked
def centralized(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, batch_size: int = 256,
                lr: float = 1e-3, optimizer: Optimizer = "amsgrad", weight_decay: float = 1e-4):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    local_epochs    passes over all private data in a round
    hyperparameters.py explains the other keywords.
    """
    samples = union(*fed.private)
    data = {name: [(samples, local_epochs)] for name in by_architecture(fed)}
    yield from train_alone(fed, state, data, rounds=rounds, batch_size=batch_size, lr=lr,
                           optimizer=optimizer, weight_decay=weight_decay)


@checked
def centralized_all(fed, state=None, *, rounds: int = 200, local_epochs: int = 1,
                    batch_size: int = 256, lr: float = 1e-3, optimizer: Optimizer = "amsgrad",
                    weight_decay: float = 1e-4):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    local_epochs    passes over the public and all private data in a round
    hyperparameters.py explains the other keywords.
    """
    samples = union(fed.public, *fed.private)
    data = {name: [(samples, local_epochs)] for name in ["server", *by_architecture(fed)]}
    yield from train_alone(fed, state, data, rounds=rounds, batch_size=batch_size, lr=lr,
                           optimizer=optimizer, weight_decay=weight_decay)


CLIENTS = ("client_accuracy", "client_accuracy_min", "client_accuracy_max")
OF_CLIENTS = dict(scores={"client_accuracy": "clients"}, mixed_networks=True, plateau=("lr",),
                  evaluate=evaluate, evaluate_each=evaluate_each, columns=CLIENTS)
OF_SERVER_TOO = OF_CLIENTS | dict(
    scores={"server_accuracy": "server", "client_accuracy": "clients"}, public="labeled",
    server="images", columns=("server_accuracy", *CLIENTS))
STANDALONE = Algorithm("standalone", standalone, keeps=("server", "clients"), **OF_SERVER_TOO)
PUBLIC_PRIVATE = Algorithm("public-private", public_private, keeps=("clients",), public="labeled",
                           **OF_CLIENTS)
CENTRALIZED = Algorithm("centralized", centralized, keeps=("global_models",), **OF_CLIENTS)
CENTRALIZED_ALL = Algorithm("centralized-all", centralized_all, keeps=("server", "global_models"),
                            **OF_SERVER_TOO)
