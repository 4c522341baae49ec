"""FedAvg's level in FedGen's Table 1: four habits of FedGen's public code, one at a time.

    python benchmarks/fedgen_habits.py DATASET [SEED]       DATASET: mnist, or MNIST as an .npz file

What the code does and the paper's text does not say:
    split         1,500 images of each class, dealt class after class; who holds 1,500 gets no more
    rate          the learning rate is multiplied by 0.99 after every round
    statistics    BatchNorm's running statistics are never averaged: each client keeps its own, and
                  the global model is tested with those of every client
    test          a client's test images are a twentieth of the test images of each class that it
                  has; the accuracy is over all clients' test images
"none" is `fedkd_minimal.py --algo fedavg --paper fedgen`. 15 minutes on one core.
"""
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import numpy as np
import torch

from algorithms import fedavg
from federation.parallel import sample_clients
from federation.training import load_model, predict_logits
from benchmarks.commands import federation_of
from federation import stream

HABITS = ("split", "rate", "statistics", "test")
CLIENTS, ROUNDS = 20, 200


def codes_split(labels, rng):
    """The rows of each client, as FedGen's code splits them, with alpha 0.1."""
    while True:
        clients = [np.array([], dtype=np.int64)] * CLIENTS
        for c in rng.permutation(10):
            rows = rng.permutation(np.flatnonzero(labels == c))[:1500]
            shares = rng.dirichlet([0.1] * CLIENTS) * [len(own) < 1500 for own in clients]
            cuts = (shares.cumsum() / shares.sum() * len(rows)).astype(int)[:-1]
            clients = [np.append(own, part) for own, part in zip(clients, np.split(rows, cuts))]
        if min(map(len, clients)) >= 10:
            return clients


def build_federation(dataset, seed, habits):
    """The federation of --paper fedgen, or with the code's split."""
    split = partial(codes_split, rng=stream(seed, "habits")) if "split" in habits else None
    return federation_of(["--algo", "fedavg", "--paper", "fedgen", "--dataset", dataset], seed,
                         split)[0]


def test_rows(fed, i, habits):
    """The test images of client i."""
    labels = fed.test.labels
    if "test" not in habits:
        return torch.arange(len(labels))
    of_class = [torch.where(labels == c)[0] for c in fed.private[i].labels.unique()]
    return torch.cat([rows.tensor_split(CLIENTS)[i] for rows in of_class])


def test_accuracy(fed, server, own, habits):
    """The share of all clients' test images that the global model classifies correctly."""
    hits, total = 0, 0
    for i in range(CLIENTS) if {"statistics", "test"} & {*habits} else [0]:
        model = load_model(fed, server | {"model": server["model"] | own[i]})
        rows = test_rows(fed, i, habits)
        predicted = predict_logits(fed, model, fed.test.images[rows]).argmax(1)
        hits, total = hits + (predicted == fed.test.labels[rows]).sum().item(), total + len(rows)
    return hits / total


def fedavg_with(dataset, seed, habits):
    """Yields (round, test accuracy) every 50 rounds."""
    fed = build_federation(dataset, seed, habits)
    server = fedavg.start_server(fed, fed.architecture[0])
    statistics = {name: x for name, x in server["model"].items() if "running" in name}
    own = [statistics if "statistics" in habits else {}] * CLIENTS
    for t in range(1, ROUNDS + 1):
        active = sample_clients(CLIENTS, 0.5, stream(seed, "active", t))
        lr = 0.01 * 0.99 ** (t - 1) if "rate" in habits else 0.01
        uploads = {i: fedavg.train_client(
            fed, i, t, server | {"model": server["model"] | own[i]}, local_epochs=None,
            local_steps=20, batch_size=32, lr=lr) for i in active}
        server = fedavg.aggregate(fed, server, uploads)
        if "statistics" in habits:
            for i in active:
                own[i] = {name: uploads[i]["model"][name] for name in statistics}
        if t % 50 == 0:
            yield t, test_accuracy(fed, server, own, habits)


if __name__ == "__main__":
    torch.set_num_threads(1)
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    print(f"FedAvg, seed {seed}, test accuracy in %")
    for habits in [(), *((habit,) for habit in HABITS), HABITS]:
        found = [f"round {t} {100 * x:.2f}" for t, x in fedavg_with(sys.argv[1], seed, habits)]
        print(f"{'+'.join(habits) or 'none':28}", *found, sep="  ", flush=True)
