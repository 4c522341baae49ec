"""Baselines of federated learning: each network trains on its own data, without any exchange.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv:2110.11027, section 4, whose settings are the defaults.

Run:    python fedkd_minimal.py --algo standalone,centralized,centralized-all,public-private
        small settings, about two minutes; --paper fedgems-homogeneous has the paper's, which are
        the defaults of `run`, and learning rates that fall (experiment/plateau.py)
Data:   server: public images X_0, with labels; client k: its own labeled images X_k
Sent:   nothing

What trains in a round, on the cross-entropy:
standalone        the server's network on X_0, each client's on its own X_k
centralized       the clients' networks on the union of all X_k
centralized-all   the server's network and the clients' on the union of X_0 and all X_k
public-private    each client's on X_k, then on X_0: the steps of FedGEMS's clients, which learn
                  from others besides. It is not in the paper
On a union one network of each architecture is trained, which counts for all clients that have it.

Scores: `server_accuracy` is the server's network's at the end of a round, `client_accuracy` the
        mean over the clients; `accuracy` repeats the first where there is a server, else the
        second. If half of the test images are public, as by default, the server's are on that half
        and the clients' on the other
D1  the paper counts epochs; here a round is local_epochs passes over the data of each network
"""
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
    if isinstance(name, int):
        return fed.client_model(name, init=name)         # each client starts from its own weights
    return network(fed, name)


def train_network(fed, name, t, saved, data, batch_size, lr, optimizer_name, weight_decay):
    """The snapshot of a network after round t: its model, and the optimizer that it keeps.

    saved   the snapshot after round t - 1
    data    [(Data, epochs), ...]: what it trains on, in this order
    """
    model = new_network(fed, name)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    restore(saved, model, optimizer)
    model.train()
    for part, ((images, labels), epochs) in enumerate(data):                 # [n, c, h, w], [n]
        # `shuffled` augments with --augment; the keys name the random numbers of this training.
        for rows, batch in shuffled(fed, images, ("alone", t, name, part), epochs=epochs,
                                    batch_size=batch_size):
            logits = forward(fed, model, batch)                              # [B, C]
            loss = F.cross_entropy(logits, labels[rows])                     # mean over the batch
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return snapshot(model, optimizer)


def state_of(t, networks):
    """The state after round t of {name: snapshot}; the names are those of `new_network`."""
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
    networks |= dict(enumerate(state.get("clients", [])))
    return networks | {saved["architecture"]: saved for saved in state.get("global_models", [])}


@timed
def evaluate(fed, state):
    """Test accuracy of clients and server, in eval mode; `accuracy` is the server's, if any."""
    if "clients" in state:
        scores = client_scores(fed, state["clients"])
    else:
        shared = {saved["architecture"]: saved for saved in state["global_models"]}

        def shared_score(architecture):
            return score(fed, load_model(fed, shared[architecture]))

        score_of = dict(zip(shared, in_parallel(fed, shared_score, list(shared))))
        scores = [score_of[architecture] for architecture in fed.architecture]
    metrics = client_metrics(scores)
    if "server" in state:
        metrics |= server_metrics(fed, state["server"])
    return {"accuracy": metrics.get("server_accuracy", metrics["client_accuracy"]), **metrics}


def evaluate_each(fed, state):
    """{name: test accuracy} of each network, for --lr-patience: each has a plateau of its own."""
    networks = networks_of(state)

    def test_accuracy(name):
        model = new_network(fed, name)
        model.load_state_dict(networks[name]["model"])
        return score(fed, model).test

    return dict(zip(networks, in_parallel(fed, test_accuracy, list(networks))))


def train_alone(fed, state, data, rounds, batch_size, lr, optimizer_name, weight_decay):
    """The rounds of all baselines: yields (metrics, state).

    data    {name: [(Data, epochs), ...]}: what each network trains on in a round, in this order;
            the names are those of `new_network`
    """
    if state is None:
        state = state_of(0, {name: snapshot(new_network(fed, name)) for name in data})
        yield evaluate(fed, state), state
    networks = networks_of(state)
    factors = state.get("rate_factors", {})              # of --lr-patience: experiment/plateau.py

    for t in range(state["round"] + 1, rounds + 1):                          # D1
        def train(name):
            return train_network(fed, name, t, networks[name], data[name], batch_size,
                                 lr * factors.get(name, 1), optimizer_name, weight_decay)

        # {name: train(name)}, in parallel.
        networks = dict(zip(data, in_parallel(fed, train, list(data))))

        # All networks and their optimizers, so that all rounds together are one long training.
        state = state_of(t, networks)
        # Measured; no step above sees it.
        metrics = {**evaluate(fed, state), "bytes_up": 0, "bytes_down": 0}
        yield metrics, state


@checked
def standalone(
        fed, state=None, *,
        rounds: int = 200,                   # D1
        local_epochs: int = 1,               # passes of a network over its data in a round
        batch_size: int = 256,               # of every network
        lr: float = 1e-3,                    # of every network
        optimizer: Optimizer = "amsgrad",    # of every network, kept over the rounds
        weight_decay: float = 1e-4):         # L2 penalty of this optimizer
    """Yields (metrics, state) after round 0, the untrained models, and after every round."""
    data = {"server": [(fed.public, local_epochs)]}
    for i, private in enumerate(fed.private):
        data[i] = [(private, local_epochs)]
    yield from train_alone(fed, state, data, rounds, batch_size, lr, optimizer, weight_decay)


@checked
def public_private(
        fed, state=None, *,
        rounds: int = 200,                   # D1
        local_epochs: int = 1,               # passes of a client over its images in a round,
        public_epochs: int = 1,              #   then over the public images
        batch_size: int = 256,               # of every client
        lr: float = 1e-3,                    # of every client
        optimizer: Optimizer = "amsgrad",    # of every client, kept over the rounds
        weight_decay: float = 1e-4):         # L2 penalty of this optimizer
    """Yields (metrics, state) after round 0, the untrained models, and after every round."""
    data = {i: [(private, local_epochs), (fed.public, public_epochs)]
            for i, private in enumerate(fed.private)}
    yield from train_alone(fed, state, data, rounds, batch_size, lr, optimizer, weight_decay)


@checked
def centralized(
        fed, state=None, *,
        rounds: int = 200,                   # D1
        local_epochs: int = 1,               # passes over all private data in a round
        batch_size: int = 256,               # of every network
        lr: float = 1e-3,                    # of every network
        optimizer: Optimizer = "amsgrad",    # of every network, kept over the rounds
        weight_decay: float = 1e-4):         # L2 penalty of this optimizer
    """Yields (metrics, state) after round 0, the untrained models, and after every round."""
    samples = union(*fed.private)
    data = {name: [(samples, local_epochs)] for name in by_architecture(fed)}
    yield from train_alone(fed, state, data, rounds, batch_size, lr, optimizer, weight_decay)


@checked
def centralized_all(
        fed, state=None, *,
        rounds: int = 200,                   # D1
        local_epochs: int = 1,               # passes over all data, the public ones too
        batch_size: int = 256,               # of every network
        lr: float = 1e-3,                    # of every network
        optimizer: Optimizer = "amsgrad",    # of every network, kept over the rounds
        weight_decay: float = 1e-4):         # L2 penalty of this optimizer
    """Yields (metrics, state) after round 0, the untrained models, and after every round."""
    samples = union(fed.public, *fed.private)
    data = {name: [(samples, local_epochs)] for name in ["server", *by_architecture(fed)]}
    yield from train_alone(fed, state, data, rounds, batch_size, lr, optimizer, weight_decay)


CLIENT_COLUMNS = ("client_accuracy", "client_accuracy_min", "client_accuracy_max")
SERVER_COLUMNS = ("server_accuracy", *CLIENT_COLUMNS)
STANDALONE = Algorithm(
    "standalone", standalone, scores={"server_accuracy": "server", "client_accuracy": "clients"},
    keeps=("server", "clients"), public="labeled", mixed_networks=True, server="images",
    columns=SERVER_COLUMNS, plateau=("lr",), evaluate=evaluate, evaluate_each=evaluate_each)
PUBLIC_PRIVATE = Algorithm(
    "public-private", public_private, scores={"client_accuracy": "clients"}, keeps=("clients",),
    public="labeled", mixed_networks=True,
    columns=CLIENT_COLUMNS, plateau=("lr",), evaluate=evaluate, evaluate_each=evaluate_each)
CENTRALIZED = Algorithm(
    "centralized", centralized, scores={"client_accuracy": "clients"}, keeps=("global_models",),
    mixed_networks=True,
    columns=CLIENT_COLUMNS, plateau=("lr",), evaluate=evaluate, evaluate_each=evaluate_each)
CENTRALIZED_ALL = Algorithm(
    "centralized-all", centralized_all,
    scores={"server_accuracy": "server", "client_accuracy": "clients"},
    keeps=("server", "global_models"), public="labeled", mixed_networks=True, server="images",
    columns=SERVER_COLUMNS, plateau=("lr",), evaluate=evaluate, evaluate_each=evaluate_each)
