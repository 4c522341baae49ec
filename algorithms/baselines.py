"""Baselines for federated learning: training without any exchange.

FedGEMS (Cheng et al., arXiv:2110.11027), section 4, whose settings (Adam, 200 epochs) are the
defaults. X0 are the public samples, with labels; Xk are the private samples of client k.
    standalone        the server's network on X0, each client's on its own Xk
    centralized       the clients' networks on the union of all Xk
    centralized-all   the server's network and the clients' on X0 and the union of all Xk
    public-private    our control, not in the paper: each client on Xk, then on X0. In FedGEMS a
                      client trains on labeled public data in every round, so a part of its gain
                      does not come from the other clients. Here a client makes the same steps
                      with cross-entropy alone
If clients have different networks, each network is trained once on a union. Its accuracy counts
for all its clients. The hyperparameters of clients are those of all networks.
Run:   python fedkd_minimal.py --algo standalone,centralized,centralized-all,public-private

Where the paper is silent or we differ:
D1  Adam is AMSGrad, as in FedGKT's public code [test_amsgrad_is_the_papers_adam]
D2  the optimizer is kept over the rounds, so all rounds are one long training
    [test_centralized_is_one_long_training]
D3  a round is local_epochs passes over a network's data [test_centralized_is_one_long_training]
"""
from functools import partial

from algorithms.clients import by_architecture, in_parallel, run_clients
from algorithms.declaration import Algorithm
from algorithms.evaluation import client_metrics, client_scores, score, server_metrics
from algorithms.training import (OPTIMIZERS, Optimizer, load_model, network, restore,
                                 snapshot, train_with_labels)
from federation import timed, union



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
    optimizer = restore(saved, model, new_optimizer)
    for part, (samples, epochs) in enumerate(data):
        train_with_labels(fed, model, optimizer, samples, epochs=epochs, batch_size=batch_size,
                          keys=("alone", t, name, part))
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
    networks = {"server": state["server"]} if "server" in state else {}
    networks |= enumerate(state.get("clients", []))
    return networks | {saved["architecture"]: saved for saved in state.get("global_models", [])}


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
    factors = state.get("rate_factors", {})            # of --lr-patience: plateau.py
    for t in range(state["round"] + 1, rounds + 1):
        trained = run_clients(fed, lambda name: train_network(
            fed, t, name, networks[name], data[name], batch_size=batch_size,
            new_optimizer=partial(new_optimizer, lr=lr * factors.get(name, 1))), list(data))
        networks = dict(zip(data, trained))

        state = state_of(t, networks)
        metrics = {**evaluate(fed, state), "bytes_up": 0, "bytes_down": 0}
        yield metrics, state


def standalone(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, batch_size: int = 256,
               lr: float = 1e-3, optimizer: Optimizer = "amsgrad", weight_decay: float = 1e-4):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    local_epochs    passes over a network's data in a round
    The other keywords are in hyperparameters.py.
    """
    if state is None:
        STANDALONE.check(fed)
    data = {"server": [(fed.public, local_epochs)],
            **{i: [(private, local_epochs)] for i, private in enumerate(fed.private)}}
    yield from train_alone(fed, state, data, rounds=rounds, batch_size=batch_size, lr=lr,
                           optimizer=optimizer, weight_decay=weight_decay)


def public_private(fed, state=None, *, rounds: int = 200, local_epochs: int = 1,
                   public_epochs: int = 1, batch_size: int = 256, lr: float = 1e-3,
                   optimizer: Optimizer = "amsgrad", weight_decay: float = 1e-4):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    The keywords are in hyperparameters.py.
    """
    if state is None:
        PUBLIC_PRIVATE.check(fed)
    data = {i: [(private, local_epochs), (fed.public, public_epochs)]
            for i, private in enumerate(fed.private)}
    yield from train_alone(fed, state, data, rounds=rounds, batch_size=batch_size, lr=lr,
                           optimizer=optimizer, weight_decay=weight_decay)


def centralized(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, batch_size: int = 256,
                lr: float = 1e-3, optimizer: Optimizer = "amsgrad", weight_decay: float = 1e-4):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    local_epochs    passes over all private data in a round
    The other keywords are in hyperparameters.py.
    """
    if state is None:
        CENTRALIZED.check(fed)
    data = dict.fromkeys(by_architecture(fed), [(union(*fed.private), local_epochs)])
    yield from train_alone(fed, state, data, rounds=rounds, batch_size=batch_size, lr=lr,
                           optimizer=optimizer, weight_decay=weight_decay)


def centralized_all(fed, state=None, *, rounds: int = 200, local_epochs: int = 1,
                    batch_size: int = 256, lr: float = 1e-3, optimizer: Optimizer = "amsgrad",
                    weight_decay: float = 1e-4):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    local_epochs    passes over the public and all private data in a round
    The other keywords are in hyperparameters.py.
    """
    if state is None:
        CENTRALIZED_ALL.check(fed)
    data = dict.fromkeys(["server", *by_architecture(fed)],
                         [(union(fed.public, *fed.private), local_epochs)])
    yield from train_alone(fed, state, data, rounds=rounds, batch_size=batch_size, lr=lr,
                           optimizer=optimizer, weight_decay=weight_decay)


CLIENTS = ("client_accuracy", "client_accuracy_min", "client_accuracy_max")
CLIENTS_AND_SERVER = ("server_accuracy", *CLIENTS)
common = dict(mixed=True, plateau=("lr",), evaluate=evaluate, evaluate_each=evaluate_each)
STANDALONE = Algorithm("standalone", standalone, public="labeled", server="images",
                       columns=CLIENTS_AND_SERVER, **common)
PUBLIC_PRIVATE = Algorithm("public-private", public_private, public="labeled",
                           columns=CLIENTS, **common)
CENTRALIZED = Algorithm("centralized", centralized, columns=CLIENTS, **common)
CENTRALIZED_ALL = Algorithm("centralized-all", centralized_all, public="labeled", server="images",
                            columns=CLIENTS_AND_SERVER, **common)
