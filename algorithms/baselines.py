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
for all its clients.
Run:   python fedkd_minimal.py --algo standalone,centralized,centralized-all,public-private

Where the paper is silent or we differ:
D1  Adam is AMSGrad, as in FedGKT's public code [test_amsgrad_is_the_papers_adam]
D2  the optimizer is kept over the rounds, so all rounds are one long training
    [test_centralized_is_one_long_training]
D3  a round is local_epochs passes over a network's data [test_centralized_is_one_long_training]
"""
from functools import partial

import torch

from algorithms.common import Data, by_architecture, in_parallel, needs_public, run_clients, timed
from algorithms.evaluation import client_metrics, score, server_metrics
from algorithms.training import (OPTIMIZERS, Optimizer, network, restore, snapshot,
                                 train_with_labels)

PUBLIC = {"standalone": "labelled", "centralized": "none", "centralized_all": "labelled",
          "public_private": "labelled"}
MIXED = True    # may clients have different networks?
PLATEAU = ("lr",)    # what --lr-patience reduces
CLIENTS = ("client_accuracy", "client_accuracy_min", "client_accuracy_max")
COLUMNS = {"standalone": ("server_accuracy", *CLIENTS), "centralized": CLIENTS,
           "centralized_all": ("server_accuracy", *CLIENTS), "public_private": CLIENTS}


def union(*parts):
    """All samples of several Data, one after the other."""
    return Data(*(torch.cat(tensors) for tensors in zip(*parts)))


def train_network(fed, t, name, saved, model, data, *, batch_size, new_optimizer):
    """The snapshot of one network after round t; data: [(Data, epochs), ...], in this order."""
    optimizer = restore(saved, model, new_optimizer)
    for part, (samples, epochs) in enumerate(data):
        train_with_labels(fed, model, optimizer, samples, epochs=epochs, batch_size=batch_size,
                          keys=("alone", t, name, part))
    return snapshot(model, optimizer)


@timed
def evaluate(fed, state):
    """Test accuracy of clients and server; `accuracy` is the server's if it has a network."""
    def network_score(name):
        model = fed.client_model(name) if isinstance(name, int) else network(fed, name)
        model.load_state_dict(saved[name]["model"])
        return score(fed, model)

    saved = state["networks"]
    names = [name for name in saved if name != "server"]
    scores = dict(zip(names, in_parallel(network_score, names, fed.device)))
    metrics = client_metrics([scores.get(i, scores.get(architecture))
                              for i, architecture in enumerate(fed.architecture)])
    if "server" in saved:
        metrics |= server_metrics(fed, saved["server"])
    return {"accuracy": metrics.get("server_accuracy", metrics["client_accuracy"]), **metrics}


def train_alone(fed, state, networks, data, *, rounds, batch_size, lr, optimizer, weight_decay):
    """The rounds of all baselines: each network trains on its own data.

    networks    {name: its untrained network}: "server", a client's number, or an architecture
    data        {name: [(Data, epochs), ...]}: what it trains on in a round
    """
    new_optimizer = partial(OPTIMIZERS[optimizer], lr=lr, weight_decay=weight_decay)
    if state is None:
        saved = {name: snapshot(model) for name, model in networks.items()}
        state = {"round": 0, "networks": saved}
        yield evaluate(fed, state), state
    saved = state["networks"]
    for t in range(state["round"] + 1, rounds + 1):
        trained = run_clients(lambda name: train_network(
            fed, t, name, saved[name], networks[name], data[name], batch_size=batch_size,
            new_optimizer=new_optimizer), list(networks), fed.device)
        saved = dict(zip(networks, trained))

        state = {"round": t, "networks": saved}
        metrics = {**evaluate(fed, state), "bytes_up": 0, "bytes_down": 0}
        yield metrics, state


def client_networks(fed):
    """{client: its untrained network}."""
    return {i: fed.client_model(i, init=i) for i in range(len(fed.private))}


def architecture_networks(fed):
    """{architecture: one untrained network}."""
    return {name: fed.client_model(ids[0]) for name, ids in by_architecture(fed).items()}


def standalone(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, batch_size: int = 256,
               lr: float = 1e-3, optimizer: Optimizer = "amsgrad", weight_decay: float = 1e-4):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    rounds          number of rounds
    local_epochs    passes over a network's data in a round
    batch_size      batch size
    lr              learning rate
    optimizer       optimizer, kept over the rounds
    weight_decay    L2 penalty of the optimizer
    """
    needs_public(fed, labels=True)
    networks = {"server": fed.server_model(), **client_networks(fed)}
    data = {"server": [(fed.public, local_epochs)],
            **{i: [(private, local_epochs)] for i, private in enumerate(fed.private)}}
    yield from train_alone(fed, state, networks, data, rounds=rounds, batch_size=batch_size, lr=lr,
                           optimizer=optimizer, weight_decay=weight_decay)


def public_private(fed, state=None, *, rounds: int = 200, local_epochs: int = 1,
                   public_epochs: int = 1, batch_size: int = 256, lr: float = 1e-3,
                   optimizer: Optimizer = "amsgrad", weight_decay: float = 1e-4):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    rounds           number of rounds
    local_epochs     passes of a client over its own data in a round
    public_epochs    passes of a client over the public data in a round
    batch_size       batch size
    lr               learning rate
    optimizer        optimizer, kept over the rounds
    weight_decay     L2 penalty of the optimizer
    """
    needs_public(fed, labels=True)
    data = {i: [(private, local_epochs), (fed.public, public_epochs)]
            for i, private in enumerate(fed.private)}
    yield from train_alone(fed, state, client_networks(fed), data, rounds=rounds,
                           batch_size=batch_size, lr=lr, optimizer=optimizer,
                           weight_decay=weight_decay)


def centralized(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, batch_size: int = 256,
                lr: float = 1e-3, optimizer: Optimizer = "amsgrad", weight_decay: float = 1e-4):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    rounds          number of rounds
    local_epochs    passes over all private data in a round
    batch_size      batch size
    lr              learning rate
    optimizer       optimizer, kept over the rounds
    weight_decay    L2 penalty of the optimizer
    """
    networks = architecture_networks(fed)
    data = dict.fromkeys(networks, [(union(*fed.private), local_epochs)])
    yield from train_alone(fed, state, networks, data, rounds=rounds, batch_size=batch_size, lr=lr,
                           optimizer=optimizer, weight_decay=weight_decay)


def centralized_all(fed, state=None, *, rounds: int = 200, local_epochs: int = 1,
                    batch_size: int = 256, lr: float = 1e-3, optimizer: Optimizer = "amsgrad",
                    weight_decay: float = 1e-4):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    rounds          number of rounds
    local_epochs    passes over the public and all private data in a round
    batch_size      batch size
    lr              learning rate
    optimizer       optimizer, kept over the rounds
    weight_decay    L2 penalty of the optimizer
    """
    needs_public(fed, labels=True)
    networks = {"server": fed.server_model(), **architecture_networks(fed)}
    data = dict.fromkeys(networks, [(union(fed.public, *fed.private), local_epochs)])
    yield from train_alone(fed, state, networks, data, rounds=rounds, batch_size=batch_size, lr=lr,
                           optimizer=optimizer, weight_decay=weight_decay)
