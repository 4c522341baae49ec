"""Asynchronous FedGKT: the server trains on each upload as it arrives, and answers at once.

He, Annavaram and Avestimehr, "Group Knowledge Transfer: Federated Learning of Large CNNs at the
Edge", arXiv:2007.14513, Table 3 ("asynchronous training"). Read fedgkt.py first: it has the steps,
the losses, who predicts what, accuracies, and what happens to bad uploads.

    python fedkd_minimal.py --algo fedgkt-async
        runs `Config` with the images and networks of --algo fedgkt: 20 clients, 300 digits each.
        A minute on two cores.
    python fedkd_minimal.py --algo fedgkt-async --paper fedgkt --dataset cifar10
        runs `PAPER` with the 16 clients, images and networks that fedgkt.py describes.

Time is simulated. Client i's first upload arrives at the time latencies[i], and each later one
latencies[i] after the server's answer to the one before, for which the server needs no time.

The algorithm; the numbers are ours:
  1   start with the server and the clients as in fedgkt.py, at time 0
  2   for each round t:
  3       until as many uploads have arrived in this round as there are clients, or more:
  4           go to the next moment at which uploads arrive
  5           each client whose upload arrives trains, and makes the upload    steps 1, 2 there
  6           the server trains on these uploads for E_s passes, predicts Z_s, and sends each of
              these clients its own                                            steps 3 to 5 there
So a fast client trains several times in a round, and a slow one maybe not at all. A client trains
before its upload arrives, but step 5 may stand here: what it trains with has not changed since the
server's last answer to it.

Departures
  1  Paper: gives no algorithm, only that the server starts when it receives inputs from any client.
     Here: the lines above. Uploads of the same moment are trained on together, so that with equal
     latencies this is fedgkt.py.
  2  Paper: no latencies. Here: drawn once for each client, uniformly from 1 to 10, or given.
  3  Paper: no rounds. Here: step 3.
"""
from dataclasses import dataclass
from typing import Literal

from algorithms.fedgkt import check as check_networks
from algorithms.fedgkt import (evaluate, make_upload, measure, models, new_client, predict_server,
                               train_client, train_server)
from federation import (Algorithm, Count, Natural, NonNegative, Optimizer, Positive, Settings,
                        drop_bad_uploads, parallel_map, snapshot)


@dataclass
class Config(Settings):
    rounds: Natural = 10                 # of as many uploads as there are clients, or more
    local_epochs: Count = 1              # E_c: passes of a client over its images
    server_epochs: Count = 5             # E_s: passes of the server over the uploads of a moment
    latencies: tuple[Positive, ...] | None = None    # one for each client; None: drawn from 1 to 10
    batch_size: Count = 32               # of a client
    server_batch_size: Count = 32
    lr: Positive = 1e-3                  # of a client, constant
    server_lr: Positive = 1e-3           # constant
    optimizer: Optimizer = "amsgrad"             # of each client, kept over the rounds
    server_optimizer: Optimizer = "amsgrad"      # kept over the rounds
    weight_decay: NonNegative = 1e-4     # L2 penalty of both
    temperature: Positive = 3.0          # T, of teacher and student
    server_distill: bool = True          # False: the server trains by CE alone
    client_distill: bool = True          # False: the clients train by CE alone
    server_order: Literal["clients", "mixed"] = "clients"    # mixed: the batches of all, shuffled
    common_start: bool = True            # False: each client starts from weights of its own
    features: Literal["float32", "bfloat16"] = "float32"     # type of the uploaded H


# fedgkt.py's: the paper has no other values for Table 3.
PAPER = dict(rounds=200, server_epochs=20, batch_size=256, server_batch_size=256)


def run(fed, cfg, state=None):
    """Yields (metrics, state) after round 0, the untrained networks, and after every round.

    fed      a `Federation`, as in fedgkt.py
    cfg      a `Config`
    state    one that it has yielded, to go on from, with its latencies; None: from the start
    """
    ALGORITHM.check(fed, cfg, state)
    if state is None:
        # Step 1: the server and the clients, at time 0.
        latencies = cfg.latencies
        if latencies is None:                                                    # departure 2
            latencies = fed.rng("latencies").uniform(1, 10, len(fed.private)).tolist()
        state = {"algorithm": "fedgkt-async", "round": 0, "server": snapshot(fed.server_model()),
                 "clients": {i: new_client(fed, cfg, i) for i in range(len(fed.private))},
                 "latencies": [*latencies], "server_trainings": 0}
        yield {**evaluate(fed, state), **clocks(state)}, state
    server, clients, latencies = state["server"], state["clients"], state["latencies"]
    server_trainings = state["server_trainings"]         # so far: it names their random numbers

    for t in range(state["round"] + 1, cfg.rounds + 1):
        arrived, answered = [], []               # clients; `answered` is for the metrics
        while len(arrived) < len(clients):                                   # step 3, departure 3
            # Step 4: the clients whose uploads arrive at the next moment.
            group = next_group(clients, latencies)

            # Step 5: they train, and make these uploads.
            trained = parallel_map(fed, group, lambda i: train_client(fed, cfg, i, clients[i]))
            uploads = parallel_map(
                fed, group, lambda i: make_upload(fed, cfg, i, trained[i]), to_server=True)
            uploads = drop_bad_uploads(uploads)                              # {client: Upload}

            # Step 6: the server trains on these uploads, and answers with Z_s.
            server_trainings += 1
            server = train_server(fed, cfg, server_trainings, server, uploads)
            server_logits = predict_server(fed, server, uploads)             # {client: [n, C]}
            del uploads                      # frees the feature maps before new ones are made
            clients = clients | {i: trained[i] | {"server_logits": server_logits.get(i)}
                                 for i in group}
            arrived += group
            answered += server_logits

        state = {**state, "round": t, "server": server, "clients": clients,
                 "server_trainings": server_trainings}
        yield {**measure(fed, cfg, state, arrived, answered), **clocks(state)}, state


def next_group(clients, latencies):
    """The clients whose uploads arrive at the next moment at which any arrives."""
    arrivals = {i: arrival(client["trainings"] + 1, latencies[i]) for i, client in clients.items()}
    return [i for i in clients if arrivals[i] == min(arrivals.values())]         # departure 1


def arrival(n, latency):
    """The time at which a client's n-th upload arrives."""
    return round(n * latency, 9)                         # 3 x 0.1 becomes 0.3


# --------------------------------------------------------------------------------------------------
# Metrics; no step of the algorithm uses them

def clocks(state):
    """The time, which is that of the last arrival, and what it would be for as many trainings if
    each round waited for the slowest client."""
    latencies = state["latencies"]
    trainings = [client["trainings"] for client in state["clients"].values()]
    return {"clock": max(arrival(n, latency) for n, latency in zip(trainings, latencies)),
            "clock_if_all_wait": sum(trainings) / len(trainings) * max(latencies)}


# --------------------------------------------------------------------------------------------------
# What it needs, and what the program prints

def check(fed, cfg, state, attack):
    """Raises ValueError as FedGKT does, unless each client has a latency, and if a state has other
    latencies: what has arrived in it depends on them."""
    check_networks(fed, cfg, state, attack)
    if cfg.latencies is not None and len(cfg.latencies) != len(fed.private):
        raise ValueError(f"latencies needs a time greater than 0 for each of {len(fed.private)} "
                         f"clients, not {list(cfg.latencies)}")
    if state is not None and cfg.latencies is not None and (
            [*cfg.latencies] != state["latencies"]):
        raise ValueError(f"fedgkt-async: the state has the latencies {state['latencies']}, not "
                         f"{[*cfg.latencies]}")


ALGORITHM = Algorithm(
    "fedgkt-async", run, Config, mixed_networks=True, server="features", check_more=check,
    program=dict(
        scores={"accuracy": ("edges with the server", "test"),
                "edge_accuracy": ("edges alone", "test")}, paper=PAPER, models=models,
        model=("gkt_edge_small",), server_model="gkt_server_small", plateau=("server_lr",),
        evaluate=evaluate, columns=("accuracy_min", "accuracy_max", "clock", "clock_if_all_wait")))
