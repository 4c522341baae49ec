"""What a round of FedGEMS costs beyond the forward and backward passes that it cannot do without.

    python benchmarks/fedgems_cost.py [ROUNDS]

Embedded data, 16 clients, 1,500 public images; 12 rounds take 3 minutes on two cores. After each
round of FedGEMS the passes of this round alone are timed, as many and as large: private training,
the clients' prediction of the rows that are not in the pool, the server's prediction and training
of every batch, its prediction of all rows, distillation on the clients, and the test sets. No state
is kept or copied, no weights or masks are computed, and every loss is cross-entropy.
"""
import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import torch
import torch.nn.functional as F

from algorithms import fedgems
from benchmarks.commands import federation_of

BATCH, PREDICTION_BATCH = 64, 64
WARM_UP = 2                                              # rounds that are not in the medians

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("rounds", nargs="?", type=int, default=12, help="more than 2; default 12")
num_rounds = parser.parse_args().rounds

fed, settings = federation_of([
    "--algo", "fedgems", "--clients", "16", "--partition", "dirichlet_balanced", "--alpha", "0.5",
    "--public", "half", "--public-size", "1500", "--rounds", str(num_rounds),
    "--local-epochs", "1", "--batch-size", str(BATCH), "--server-batch-size", str(BATCH)])


def with_optimizer(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4, amsgrad=True)
    return model, optimizer


def train(model, optimizer, images, labels):
    model.train()
    for rows in torch.randperm(len(labels)).split(BATCH):
        loss = F.cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def predict(model, images, batch_size=PREDICTION_BATCH):
    model.eval()
    for batch in images.split(batch_size):
        model(batch)


clients = [with_optimizer(fed.client_model(i, i)) for i in range(len(fed.private))]
server = with_optimizer(fed.server_model())
test_sets = (fed.test.images, fed.public_test.images)
public_images, public_labels = fed.public


def passes_seconds(num_requested):
    """Seconds of the passes of a round in which the clients predict num_requested public rows."""
    start = time.perf_counter()
    for (model, optimizer), (images, labels) in zip(clients, fed.private):
        train(model, optimizer, images, labels)
        for predicted in (public_images[:num_requested], *test_sets):
            predict(model, predicted)
    predict(server[0], public_images, BATCH)             # before each step: what is correct?
    train(*server, public_images, public_labels)
    for predicted in (public_images, *test_sets):
        predict(server[0], predicted)
    for model, optimizer in clients:
        train(model, optimizer, public_images, public_labels)
        for predicted in test_sets:
            predict(model, predicted)
    return time.perf_counter() - start


fedgems_seconds, bare_seconds, pool = [], [], 0.0
run = fedgems.run(fed, **settings["fedgems"])
next(run)                                                # round 0, the untrained start
for _ in range(num_rounds):
    num_requested = round((1 - pool) * len(public_labels))
    start = time.perf_counter()
    metrics, _ = next(run)
    fedgems_seconds.append(time.perf_counter() - start)
    bare_seconds.append(passes_seconds(num_requested))
    pool = metrics["pool"]                               # share of the rows, after this round
ours, bare = fedgems_seconds[WARM_UP:], bare_seconds[WARM_UP:]
ratios = [a / b for a, b in zip(ours, bare)]
print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, cpu; cnn, server cnn_large, "
      "16 clients, 1,500 public images, seed 0")
print(f"FedGEMS {statistics.median(ours):.2f} s a round, its passes alone "
      f"{statistics.median(bare):.2f} s; ratio, median of rounds {WARM_UP + 1} to {num_rounds}: "
      f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
