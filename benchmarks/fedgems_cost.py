"""What a round of FedGEMS costs beyond the forward and backward passes that it cannot do without.

    python benchmarks/fedgems_cost.py [rounds]          (embedded data, 16 clients, 1,500 public images; 3 minutes on two cores)

The bare loop makes these passes alone, as many and as large as FedGEMS made in the round before it: private training, prediction of
the rows that are not in the pool, on the server prediction and training of every batch, prediction of all rows, distillation on
the clients, and the test sets. No state is kept, moved or copied, no weights or masks are computed, every loss is cross-entropy.
"""
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import torch
import torch.nn.functional as F

import federation
import fedkd_minimal
from algorithms import fedgems

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 12
argv = ("--algo fedgems --clients 16 --partition dirichlet_balanced --alpha 0.5 --public half --public-size 1500 --local-epochs 1 "
        "--batch-size 64 --server-batch-size 64")
config = fedkd_minimal.configure(fedkd_minimal.parse(argv.split()))
dataset, foreign = federation.load(config["flags"])
fed = federation.build(config["flags"], dataset, foreign, *federation.split(config["flags"], dataset, 0), 0, torch.device("cpu"))
settings = config["settings"]["fedgems"] | {"rounds": ROUNDS}


def network(make):
    model = make()
    return model, torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4, amsgrad=True)


def train(model, update, images, labels):
    model.train()
    for rows in torch.randperm(len(labels)).split(64):
        loss = F.cross_entropy(model(images[rows]), labels[rows])
        update.zero_grad()
        loss.backward()
        update.step()


@torch.no_grad()
def predict(model, images, size=500):
    model.eval()
    for batch in images.split(size):
        model(batch)


clients = [network(lambda i=i: fed.client_model(i, i)) for i in range(len(fed.private))]
server = network(fed.server_model)
tests = (fed.test.images, fed.public_test.images)
public, labels = fed.public


def bare_round(asked):
    """Seconds of the passes of one round in which the clients predict `asked` public rows."""
    start = time.perf_counter()
    for (model, update), private in zip(clients, fed.private):
        train(model, update, *private)
        for images in (public[:asked], *tests):
            predict(model, images)
    for images in (public, public, *tests):                  # the first in batches: who is right?
        predict(server[0], images, 64 if images is public else 500)
    train(*server, public, labels)
    for model, update in clients:
        train(model, update, public, labels)
        for images in tests:
            predict(model, images)
    return time.perf_counter() - start


ratios, ours, bares, pool = [], [], [], 0.0
turn = fedgems.run(fed, **settings)
next(turn)
for _ in range(ROUNDS):
    asked = round((1 - pool) * len(labels))
    start = time.perf_counter()
    metrics, _ = next(turn)
    ours.append(time.perf_counter() - start)
    bares.append(bare_round(asked))
    ratios.append(ours[-1] / bares[-1])
    pool = metrics["pool"]
print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, cpu; cnn, server cnn_large, 16 clients, 1,500 public images, seed 0")
print(f"FedGEMS {statistics.median(ours[2:]):.2f} s a round, its passes alone {statistics.median(bares[2:]):.2f} s; "
      f"ratio, median of rounds 3 to {ROUNDS}: {statistics.median(ratios[2:]):.2f} ({min(ratios[2:]):.2f} to {max(ratios[2:]):.2f})")
