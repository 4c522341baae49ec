"""Asynchronous FedGKT: the server trains on each upload as it arrives, and answers at once.

He, Annavaram and Avestimehr, "Group Knowledge Transfer: Federated Learning of Large CNNs at the
Edge", arXiv:2007.14513, Table 3 ("asynchronous training"). Read fedgkt.py first: the steps, the
losses, what a client keeps, views, accuracies and bad uploads are described there.

    python fedkd_minimal.py --algo fedgkt-async
        runs `Config` with the images and networks that --algo fedgkt has: 20 clients hold unequal
        shares of the classes (Dirichlet, alpha 0.5), 300 digits of 16x16 pixels each. A client's
        network has two layers, the server's four. It takes a minute on two cores.
    python fedkd_minimal.py --algo fedgkt-async --paper fedgkt --dataset cifar10
        runs `PAPER`, iid, with the images and networks that fedgkt.py describes: 16 clients, 2,812
        or 2,813 images each, which are cropped and flipped. `server_lr` falls to a tenth after more
        than 10 rounds without a better `accuracy` on 5,000 validation images.

Time is simulated. Client i's first upload arrives at the time latencies[i], and each later one
latencies[i] after the server's answer to the one before, for which the server needs no time.

The algorithm; the numbers are ours:
  1   start with the server and the clients as in fedgkt.py, at time 0
  2   for each round t:
  3       until as many uploads have arrived in this round as there are clients, or more:
  4           go to the next moment at which uploads arrive
  5           each client whose upload arrives then trains, and makes the upload
                                                                         (steps 1, 2 of fedgkt.py)
  6           the server trains on these uploads for E_s passes, and predicts Z_s   (steps 3, 4)
  7           each of these clients receives its own Z_s                            (step 5)
So in a round the server sees at least as many uploads as in one of fedgkt.py; a fast client trains
several times in it, and a slow one maybe not at all. A client trains before its upload arrives, but
step 5 may stand here: what it trains with has not changed since the server's last answer to it.

Accuracy is that of fedgkt.py, after the last step 7 of a round.

Departures
  1  Paper: gives no algorithm, only that the server starts when it receives inputs from any client.
     Here: the lines above. Uploads of the same moment are trained on together, so that with equal
     latencies this is fedgkt.py.
  2  Paper: no latencies. Here: drawn once for each client, uniformly from 1 to 10, or given.
  3  Paper: no rounds. Here: step 3.
"""
from dataclasses import dataclass
from typing import Literal

from algorithms import Algorithm, configured
from algorithms.fedgkt import check as check_networks
from algorithms.fedgkt import (evaluate, make_upload, measure, new_client, predict_server,
                               train_client, train_server)
from federation import (Optimizer, parallel_map, parallel_map_to_server, received_samples, snapshot,
                        stream)

# parallel_map             {i: fn(i) for i in ids}, by several processes
# parallel_map_to_server   the same, for the process that trains the server; {} elsewhere
# received_samples         {client: upload}, without the bad uploads
# snapshot                 {"model": weights, "optimizer": its state, or None for a new one}
# stream                   a generator for what is named


@dataclass
class Config:
    rounds: int = 10                    # of communication
    local_epochs: int = 1               # E_c: passes of a client over its images
    server_epochs: int = 5              # E_s: passes of the server over the uploads of a moment
    latencies: tuple[float, ...] | None = None    # one for each client; None: drawn from 1 to 10
    batch_size: int = 32                # of a client
    server_batch_size: int = 32
    lr: float = 1e-3                    # of a client
    server_lr: float = 1e-3
    optimizer: Optimizer = "amsgrad"            # of each client, kept over the rounds
    server_optimizer: Optimizer = "amsgrad"     # kept over the rounds
    weight_decay: float = 1e-4          # L2 penalty of both
    temperature: float = 3.0            # T, of teacher and student
    server_distill: bool = True         # False: the server trains by CE alone
    client_distill: bool = True         # False: the clients train by CE alone
    server_order: Literal["clients", "mixed"] = "clients"    # mixed: batches of all, shuffled
    common_start: bool = True           # False: each client starts from weights of its own
    features: Literal["float32", "bfloat16"] = "float32"     # number type of the uploaded H


# As in fedgkt.py: the paper has no other values for Table 3.
# Clients, partition, networks, augmentation: experiment/presets.py.
PAPER = dict(rounds=200, local_epochs=1, server_epochs=20, latencies=None, batch_size=256,
             server_batch_size=256, lr=1e-3, server_lr=1e-3, optimizer="amsgrad",
             server_optimizer="amsgrad", weight_decay=1e-4, temperature=3.0,
             server_distill=True, client_distill=True)


@configured(Config)
def run(fed, cfg, state=None):
    """Yields (metrics, state) after round 0, the untrained networks, and after every round.

    fed      as in fedgkt.py
    state    of an earlier round, to go on from; None: from the start
    """
    latencies = cfg.latencies
    if latencies is None:                                                    # departure 2
        latencies = stream(fed.seed, "latencies").uniform(1, 10, len(fed.private)).tolist()
    if state is None:
        # Step 1: the server and the clients, at time 0.
        state = {"round": 0, "server": snapshot(fed.server_model()),
                 "clients": {i: new_client(fed, cfg, i) for i in range(len(fed.private))},
                 "server_trainings": 0}
        yield {**evaluate(fed, state), **clocks(state, latencies)}, state
    server, clients = state["server"], state["clients"]
    server_trainings = state["server_trainings"]         # so far: it names their random numbers

    for t in range(state["round"] + 1, cfg.rounds + 1):
        arrived, answered = [], []               # clients; `answered` is for the metrics
        while len(arrived) < len(clients):                                   # step 3, departure 3
            # Step 4: the clients whose uploads arrive at the next moment.
            group = next_group(clients, latencies)

            # Step 5: they train, and make these uploads.
            trained = parallel_map(fed, group, lambda i: train_client(fed, cfg, i, clients[i]))
            uploads = parallel_map_to_server(
                fed, group, lambda i: make_upload(fed, cfg, i, trained[i]))
            uploads = received_samples(uploads)                              # {client: Upload}

            # Step 6: the server trains on these uploads, and predicts their feature maps.
            server_trainings += 1
            server = train_server(fed, cfg, server_trainings, server, uploads)
            server_logits = predict_server(fed, server, uploads)             # {client: Z_s [n, C]}
            del uploads                      # frees the feature maps before new ones are made

            # Step 7: each of these clients receives its own; after a bad upload it has none.
            clients = clients | {i: trained[i] | {"server_logits": server_logits.get(i)}
                                 for i in group}
            arrived += group
            answered += server_logits

        state = {"round": t, "server": server, "clients": clients,
                 "server_trainings": server_trainings}
        yield {**measure(fed, cfg, state, arrived, answered), **clocks(state, latencies)}, state


def next_group(clients, latencies):
    """The clients whose uploads arrive at the next moment at which any arrives."""
    arrivals = {i: arrival(client["trainings"] + 1, latencies[i]) for i, client in clients.items()}
    return [i for i in clients if arrivals[i] == min(arrivals.values())]         # departure 1


def arrival(n, latency):
    """The time at which a client's n-th upload arrives."""
    return round(n * latency, 9)                         # 3 x 0.1 becomes 0.3


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def clocks(state, latencies):
    """The time, which is that of the last arrival, and what it would be for as many trainings if
    each round waited for the slowest client."""
    trainings = [client["trainings"] for client in state["clients"].values()]
    return {"clock": max(arrival(n, latency) for n, latency in zip(trainings, latencies)),
            "clock_if_all_wait": sum(trainings) / len(trainings) * max(latencies)}


# --------------------------------------------------------------------------------------------------
# For the command line

def check(fed, cfg, attack):
    """Raises ValueError as FedGKT does, and unless each client has a latency."""
    check_networks(fed, cfg, attack)
    if cfg.latencies is not None and len(cfg.latencies) != len(fed.private):
        raise ValueError(f"latencies needs a time greater than 0 for each of {len(fed.private)} "
                         f"clients, not {list(cfg.latencies)}")


ALGORITHM = Algorithm(
    "fedgkt-async", run,
    scores={"accuracy": "edges with the server", "edge_accuracy": "edges alone"}, paper=PAPER,
    mixed_networks=True, server="features", model=("gkt_edge_small",),
    server_model="gkt_server_small", check_settings=check, plateau=("server_lr",),
    evaluate=evaluate, columns=("accuracy_min", "accuracy_max", "clock", "clock_if_all_wait"))
