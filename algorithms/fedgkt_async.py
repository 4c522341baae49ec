"""Asynchronous FedGKT: the server trains on each upload as it arrives, and answers at once.

He, Annavaram and Avestimehr, "Group Knowledge Transfer: Federated Learning of Large CNNs at the
Edge", arXiv:2007.14513, Table 3 ("asynchronous training"), which gives no algorithm. Local
training, upload, server training, losses, accuracies and defaults are those of fedgkt.py.

Run:    python fedkd_minimal.py --algo fedgkt-async    small settings, about a minute
        --paper fedgkt has the paper's, which are the defaults of `run`; with it the server's
        learning rate falls when the validation accuracy no longer grows (experiment/plateau.py)
Data:   clients: their own labeled images; server: only what they upload. Edge networks may differ,
        but their feature maps have one shape
Sent:   up: feature maps, logits, labels of a client's images; down: the server's logits of them

A queue of uploads; the numbers are ours:
 1  client i's upload arrives latencies[i], in simulated time, after the server's last answer to it
 2  the server trains, for all its epochs, on the uploads that arrive at that moment
 3  it answers these clients at once, and they train again
 4  a round ends when at least as many uploads have arrived as there are clients, so that it has the
    work of a synchronous round

Scores: `accuracy` and `edge_accuracy` as in fedgkt.py, after line 4; `clock` is the simulated time,
        `clock_if_all_wait` that of as many trainings if each round waited for the slowest client
D1  the paper gives no algorithm; here the server trains on uploads of the same moment together, so
    that with equal latencies this is fedgkt.py
"""
from typing import Literal

import torch

from algorithms import Algorithm, checked
from algorithms.fedgkt import check_settings as check_feature_maps
from algorithms.fedgkt import evaluate, ledger, start, train_client, train_server
from federation import stream
from federation.training import Optimizer
from federation.uploads import collect_features


def check_settings(fed, *, latencies, **settings):
    """Raises ValueError as FedGKT's, and unless each client has a latency."""
    check_feature_maps(fed)
    if latencies is not None and len(latencies) != len(fed.private):
        raise ValueError(f"latencies needs a time greater than 0 for each of {len(fed.private)} "
                         f"clients, not {list(latencies)}")


def next_arrivals(clients, latencies):
    """(the next moment at which uploads arrive, the clients whose uploads arrive then).

    Client i's n-th upload arrives at n * latencies[i], because the server answers without delay.
    """
    arrivals = [round((client["trainings"] + 1) * latency, 9)        # makes 3 x 0.1 equal 0.3
                for client, latency in zip(clients, latencies)]
    clock = min(arrivals)
    return clock, [i for i, arrival in enumerate(arrivals) if arrival == clock]          # D1


@checked
def run(fed, state=None, *,
        rounds: int = 200,                                      # see line 4
        local_epochs: int = 1,                                  # E_c
        server_epochs: int = 20,                                # E_s, over uploads of a moment
        latencies: tuple[float, ...] | None = None,             # [M]; None: drawn from 1 to 10
        batch_size: int = 256,                                  # of a client
        server_batch_size: int = 256,                           # of the server
        lr: float = 1e-3,                                       # eta_k, of a client
        server_lr: float = 1e-3,                                # eta_s, of the server
        optimizer: Optimizer = "amsgrad",                       # of a client and
        server_optimizer: Optimizer = "amsgrad",                #   the server; kept over rounds
        weight_decay: float = 1e-4,                             # of both
        temperature: float = 3.0,                               # T below Eq. (7)
        server_distill: bool = True,                            # False: Eq. (6) without KD
        client_distill: bool = True,                            # False: Eq. (7) without KD
        server_order: Literal["clients", "mixed"] = "clients",  # as in fedgkt.server_batches
        common_start: bool = True,                              # clients start equal
        features: Literal["float32", "bfloat16"] = "float32"):  # number type of the feature maps
    """Yields (metrics, state) after round 0, the untrained models, and after every round."""
    dtype = getattr(torch, features)                     # torch.float32 or torch.bfloat16
    if latencies is None:
        latencies = stream(fed.seed, "latencies").uniform(1, 10, len(fed.private)).tolist()
    if state is None:
        server, clients, server_logits = start(fed, common_start)
        state = {"round": 0, "server": server, "clients": clients, "server_logits": server_logits,
                 "server_trainings": 0, "clock": 0.0}
        yield {**evaluate(fed, state), "clock": 0.0, "clock_if_all_wait": 0.0}, state
    server, clients, server_logits = state["server"], state["clients"], state["server_logits"]
    server_trainings, clock = state["server_trainings"], state["clock"]

    for t in range(state["round"] + 1, rounds + 1):
        arrived, answered = [], []
        while len(arrived) < len(clients):                                   # line 4
            clock, group = next_arrivals(clients, latencies)                 # line 1

            def train(i):
                return train_client(fed, i, clients[i], server_logits[i], local_epochs, batch_size,
                                    lr, temperature, client_distill, dtype, optimizer, weight_decay)

            # The uploads that arrive next, maybe several at one moment, are made only now: nothing
            # that they depend on has changed since the server's last answer to their clients.
            uploads, trained = collect_features(fed, group, train)
            clients = [trained.get(i, client) for i, client in enumerate(clients)]

            # The server trains on them, and answers these clients at once.
            server_trainings += 1
            server, answers = train_server(fed, server_trainings, server, uploads, server_epochs,
                                           server_batch_size, server_lr, server_order, temperature,
                                           server_distill, server_optimizer, weight_decay)  # line 2
            del uploads                  # frees all feature maps before new ones are made
            server_logits = [answers.get(i) if i in group else logits        # line 3
                             for i, logits in enumerate(server_logits)]
            arrived += group
            answered += list(answers)

        # All that the next round needs: what fedgkt.py keeps, how often the server has trained, and
        # the simulated time.
        state = {"round": t, "server": server, "clients": clients, "server_logits": server_logits,
                 "server_trainings": server_trainings, "clock": clock}
        # Measured; no step above sees it.
        metrics = {**evaluate(fed, state), "clock": clock,
                   "clock_if_all_wait": (sum(client["trainings"] for client in clients)
                                         / len(clients) * max(latencies)),
                   **ledger(fed, clients, arrived, answered, dtype)}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedgkt-async", run,
    scores={"accuracy": "edges with the server", "edge_accuracy": "edges alone"},
    keeps=("server", "clients", "server_logits", "server_trainings", "clock"), mixed_networks=True,
    server="features", check_settings=check_settings, plateau=("server_lr",), evaluate=evaluate,
    columns=("accuracy", "accuracy_min", "accuracy_max", "edge_accuracy", "clock",
             "clock_if_all_wait"))
