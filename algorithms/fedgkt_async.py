"""Asynchronous FedGKT: the server trains on each upload as it arrives, and answers at once.

He, Annavaram and Avestimehr, "Group Knowledge Transfer: Federated Learning of Large CNNs at the
Edge", arXiv:2007.14513, Table 3 ("asynchronous training"), which gives no algorithm. Local
training, upload, server training and losses are those of fedgkt.py, as are the other symbols, the
modes and the defaults.

Run:   python fedkd_minimal.py --algo fedgkt-async
What travels: at each event the clients whose uploads arrive have sent feature maps, logits and
labels of all their samples; the server sends its logits of these samples back.
Public data: none. Edge networks may differ; their feature maps have one shape.

Paper              here                         shape         note
the clients' speed latencies                    [M]           simulated time from the server's
                                                              answer to client i's next upload
                   clock                        number        simulated time so far
                   group                        client ids    whose uploads arrive at this event
                   event                        number        the server's trainings so far

A queue of events:
 1  client i's uploads arrive latencies[i] after the server's last answer to client i
 2  at each event the server trains, for all its epochs, on the uploads that arrive at that moment
 3  the server answers these clients at once, and these clients train again
 4  a round ends when at least as many uploads have arrived as there are clients, so that it has the
    work of a synchronous round

Kept between rounds: server: network, optimizer, clock and number of events. Client: network,
optimizer, number of its trainings and the server's logits of its samples.
Scores: those of fedgkt.py. clock: simulated time; clock_if_all_wait: the time of as many trainings
if each round waited for the slowest client.
Bad upload: as in fedgkt.py.
Departures (docs/DEPARTURES.md has more):
D1  uploads that arrive at the same moment are trained on together, client after client
"""
from functools import partial
from typing import Literal

import torch

from algorithms import Algorithm, checked
from algorithms.fedgkt import collect_features, evaluate, feature_map, ledger, start, train_server
from federation import stream
from federation.training import OPTIMIZERS, Optimizer


def check_settings(fed, *, latencies, **settings):
    """Raises ValueError as FedGKT's, and unless each client has a latency."""
    feature_map(fed)
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
def run(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, server_epochs: int = 20,
        latencies: tuple[float, ...] | None = None, batch_size: int = 256,
        server_batch_size: int = 256, lr: float = 1e-3, server_lr: float = 1e-3,
        optimizer: Optimizer = "amsgrad", server_optimizer: Optimizer = "amsgrad",
        weight_decay: float = 1e-4, temperature: float = 3.0, server_distill: bool = True,
        client_distill: bool = True, server_order: Literal["clients", "mixed"] = "clients",
        common_start: bool = True, features: Literal["float32", "bfloat16"] = "float32"):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    server_epochs       passes of the server over the uploads of an event
    server_optimizer    optimizer of the server, kept over the rounds
    hyperparameters.py explains the other keywords.
    """
    dtype = getattr(torch, features)
    if latencies is None:
        latencies = stream(fed.seed, "latencies").uniform(1, 10, len(fed.private)).tolist()
    training = dict(local_epochs=local_epochs, batch_size=batch_size, temperature=temperature,
                    new_optimizer=partial(OPTIMIZERS[optimizer], lr=lr, weight_decay=weight_decay),
                    client_distill=client_distill, dtype=dtype)
    server_training = dict(server_epochs=server_epochs, server_batch_size=server_batch_size,
                           server_order=server_order, temperature=temperature,
                           server_distill=server_distill)
    new_optimizer = partial(OPTIMIZERS[server_optimizer], lr=server_lr, weight_decay=weight_decay)
    if state is None:
        server, clients, server_logits = start(fed, common_start)
        state = {"round": 0, "server": server, "clients": clients, "server_logits": server_logits,
                 "event": 0, "clock": 0.0}
        yield {**evaluate(fed, state), "clock": 0.0, "clock_if_all_wait": 0.0}, state
    server, clients, server_logits = state["server"], state["clients"], state["server_logits"]
    event, clock = state["event"], state["clock"]
    values_per_map = feature_map(fed).numel()
    for t in range(state["round"] + 1, rounds + 1):
        arrived, valid = [], []
        while len(arrived) < len(clients):
            # The uploads that arrive next, maybe several at one moment.
            clock, group = next_arrivals(clients, latencies)
            event += 1
            uploads, clients = collect_features(fed, clients, group, server_logits, **training)
            # The server trains on them and answers these clients at once.
            server, answers = train_server(fed, event, server, uploads,
                                           new_optimizer=new_optimizer, **server_training)
            server_logits = [answers.get(i) if i in group else z
                             for i, z in enumerate(server_logits)]
            arrived, valid = arrived + group, valid + list(answers)
            uploads.clear()          # frees all feature maps before the next event makes new ones

        state = {"round": t, "server": server, "clients": clients, "server_logits": server_logits,
                 "event": event, "clock": clock}
        trainings = sum(client["trainings"] for client in clients) / len(clients)
        metrics = {**evaluate(fed, state), "clock": clock,
                   "clock_if_all_wait": trainings * max(latencies),
                   **ledger(fed, clients, arrived, valid, values_per_map, dtype)}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedgkt-async", run,
    scores={"accuracy": "edges with the server", "edge_accuracy": "edges alone"},
    keeps=("server", "clients", "server_logits", "event", "clock"), mixed_networks=True,
    server="features", check_settings=check_settings, plateau=("server_lr",), evaluate=evaluate,
    columns=("accuracy", "accuracy_min", "accuracy_max", "edge_accuracy", "clock",
             "clock_if_all_wait"))
