"""What federated learning is measured against: nobody talks to anybody.

FedGEMS (Cheng et al., arXiv:2110.11027), section 4, whose settings (Adam, 200 epochs) are the defaults. X0 is the public data, with
labels; Xk are the private data of client k.
    standalone        the server's network on X0, each client's on its own Xk
    centralized       the clients' networks on the union of all Xk: what no client could train alone
    centralized-all   the server's network and the clients' on X0 and the union of all Xk
    public-private    the control that the paper lacks: a client of FedGEMS sees labelled public data in every round, so part of its
                      gain is not the others'. Here each makes the steps of FedGEMS's clients, on Xk and then on X0, with
                      cross-entropy alone
Where clients have different networks, each network is trained once on a union, and counts for all its clients.
Run:   python fedkd_minimal.py --algo standalone,centralized,centralized-all,public-private

Where the paper is silent or we differ:
D1  Adam is AMSGrad, as in FedGKT's public code                       [test_amsgrad_is_the_papers_adam]
D2  the optimiser lives through the rounds: it is one long training   [test_centralized_is_one_long_training]
D3  a round is local_epochs passes over a network's data              [test_centralized_is_one_long_training]
"""
import torch

from algorithms.common import (Data, Optimizer, asleep, by_architecture, client_metrics, large_server_metrics, new_learner,
                               run_clients, seconds, test_accuracies, train_with_labels, wake)

PUBLIC = {"standalone": "labelled", "centralized": "none", "centralized_all": "labelled", "public_private": "labelled"}
MIXED = True    # may clients have different networks?
COLUMNS = ("server_accuracy", "client_accuracy", "client_accuracy_min", "client_accuracy_max")


def union(*parts):
    """All samples of several Data, one after the other."""
    return Data(*(torch.cat(tensors) for tensors in zip(*parts)))


def everyone_alone(fed, state, networks, data, *, rounds, batch_size, lr, optimizer, weight_decay):
    """The rounds of all baselines.

    networks    {name: its untrained network}; "server" is the server's, a client's number its own, a network's name its clients'
    data        {name: [(Data, epochs), ...]}: what it is trained on in a round, one after the other, and how often
    """
    def metrics_of(scores):
        clients = client_metrics([scores.get(i, scores.get(fed.architecture[i])) for i in range(len(fed.private))])
        server = large_server_metrics(scores["server"]) if "server" in scores else {}
        return {"accuracy": server.get("server_accuracy", clients["client_accuracy"]), **clients, **server}

    if state is None:
        state = {"round": 0, "learners": {name: new_learner(model) for name, model in networks.items()}}
        yield metrics_of({name: test_accuracies(fed, model) for name, model in networks.items()}), state
    learners = state["learners"]

    def learn(name, t):
        model = networks[name]
        update = wake(learners[name], model, optimizer, lr, weight_decay)
        for part, (own, epochs) in enumerate(data[name]):
            train_with_labels(fed, model, update, own, epochs=epochs, batch_size=batch_size, keys=("alone", t, name, part))
        return asleep(model, update), test_accuracies(fed, model)

    for t in range(state["round"] + 1, rounds + 1):
        start = seconds(fed.device)
        trained = dict(zip(networks, run_clients(lambda name: learn(name, t), list(networks), fed.device)))
        learners = {name: learner for name, (learner, _) in trained.items()}
        metrics = {**metrics_of({name: score for name, (_, score) in trained.items()}), "bytes_up": 0, "bytes_down": 0,
                   "local_seconds": seconds(fed.device) - start}
        yield metrics, {"round": t, "learners": learners}


def clients_networks(fed):
    """{client: its untrained network}."""
    return {i: fed.client_model(i, init=i) for i in range(len(fed.private))}


def standalone(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, batch_size: int = 256, lr: float = 1e-3,
               optimizer: Optimizer = "amsgrad", weight_decay: float = 1e-4):
    """Yields (metrics, state) after round 0, the untrained start, and after every round."""
    networks = {"server": fed.server_model(), **clients_networks(fed)}
    data = {"server": [(fed.public, local_epochs)], **{i: [(private, local_epochs)] for i, private in enumerate(fed.private)}}
    yield from everyone_alone(fed, state, networks, data, rounds=rounds, batch_size=batch_size, lr=lr, optimizer=optimizer,
                              weight_decay=weight_decay)


def public_private(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, public_epochs: int = 1,
                   batch_size: int = 256, lr: float = 1e-3, optimizer: Optimizer = "amsgrad",
                   weight_decay: float = 1e-4):
    """Yields (metrics, state) after round 0, the untrained start, and after every round."""
    networks = clients_networks(fed)
    data = {i: [(private, local_epochs), (fed.public, public_epochs)] for i, private in enumerate(fed.private)}
    yield from everyone_alone(fed, state, networks, data, rounds=rounds, batch_size=batch_size, lr=lr, optimizer=optimizer,
                              weight_decay=weight_decay)


def centralized(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, batch_size: int = 256, lr: float = 1e-3,
                optimizer: Optimizer = "amsgrad", weight_decay: float = 1e-4):
    """Yields (metrics, state) after round 0, the untrained start, and after every round."""
    networks = {name: fed.client_model(ids[0]) for name, ids in by_architecture(fed).items()}
    data = dict.fromkeys(networks, [(union(*fed.private), local_epochs)])
    yield from everyone_alone(fed, state, networks, data, rounds=rounds, batch_size=batch_size, lr=lr, optimizer=optimizer,
                              weight_decay=weight_decay)


def centralized_all(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, batch_size: int = 256, lr: float = 1e-3,
                    optimizer: Optimizer = "amsgrad", weight_decay: float = 1e-4):
    """Yields (metrics, state) after round 0, the untrained start, and after every round."""
    networks = {"server": fed.server_model(), **{name: fed.client_model(ids[0]) for name, ids in by_architecture(fed).items()}}
    data = dict.fromkeys(networks, [(union(fed.public, *fed.private), local_epochs)])
    yield from everyone_alone(fed, state, networks, data, rounds=rounds, batch_size=batch_size, lr=lr, optimizer=optimizer,
                              weight_decay=weight_decay)
