"""What FedGKT costs an edge, and what it takes to simulate it: time of a batch, peak resident memory of a run.

    python benchmarks/fedgkt_cost.py            (about 4 minutes on two cores)

Time: forward and backward of a batch of 64 images 3x32x32; the networks take turns, the ratio is the median over the turns.
Memory: two rounds of the command line in a process of its own (8 clients, gkt_edge with gkt_server55, one server epoch), against the
sum of what it cannot do without: an idle process that has imported what a run does, all images, the feature maps, every network with
gradients and three numbers of amsgrad for each weight, and the activations of one batch on the server.
"""
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import numpy as np
import torch
import torch.nn.functional as F

import models
from communication import network_cost

ROOT = Path(__file__).parent.parent
TURNS, BATCH, SAMPLES, TEST, CLIENTS = 15, 64, 8000, 400, 8
EDGE, SERVER = "gkt_edge", "gkt_server55"


def peak(*command):
    """Peak resident bytes of a command in a process of its own."""
    watch = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
             "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
    said = subprocess.run([sys.executable, "-c", watch, *command], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return 1024 * int(said)


print(f"torch {metadata.version('torch')}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, cpu")
if "memory" not in sys.argv[1:]:
    names = [EDGE, "bottleneck56", "bottleneck110"]
    networks = [models.build(name, (3, 32, 32), 10).train() for name in names]
    images, labels = torch.randn(BATCH, 3, 32, 32).contiguous(memory_format=torch.channels_last), torch.randint(10, (BATCH,))
    turns = []
    for _ in range(TURNS + 2):                                          # two turns warm up
        turn = []
        for network in networks:
            start = time.perf_counter()
            F.cross_entropy(network(images), labels).backward()
            turn.append(time.perf_counter() - start)
        turns.append(turn)
    print(f"\nforward and backward of {BATCH} images 3x32x32, median of {TURNS} turns; the edge's share of a larger network's time and multiply-adds")
    for j, name in enumerate(names):
        shares = [f"{statistics.median(turn[0] / turn[j] for turn in turns[2:]):8.1%}"] if j else []
        cost = network_cost(networks[j], (3, 32, 32))
        share = f"{network_cost(networks[0], (3, 32, 32))['multiply_adds'] / cost['multiply_adds']:8.1%}" if j else ""
        print(f"{name:<16} {1000 * statistics.median(turn[j] for turn in turns[2:]):8.1f} ms   edge's share {''.join(shares):>8}   "
              f"of the multiply-adds {share:>8}   activations of a sample {cost['activations'] / 2**20:6.2f} MiB")

with tempfile.TemporaryDirectory() as folder:
    rng, path = np.random.default_rng(0), str(Path(folder) / "noise.npz")
    made = {f"x_{part}": rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8) for part, n in [("train", SAMPLES), ("test", TEST)]}
    np.savez(path, y_train=np.arange(SAMPLES) % 10, y_test=np.arange(TEST) % 10, **made)
    whole = peak(sys.executable, "fedkd_minimal.py", "--algo", "fedgkt", "--dataset", path, "--model", EDGE, "--server-model", SERVER,
                 "--clients", str(CLIENTS), "--partition", "iid", "--rounds", "2", "--server-epochs", "1", "--batch-size", str(BATCH),
                 "--server-batch-size", str(BATCH), "--lr-patience", "none")
edge, server = models.build(EDGE, (3, 32, 32), 10), models.build(SERVER, (3, 32, 32), 10)
idle = peak(sys.executable, "-c", "import fedkd_minimal, torch; torch.optim.Adam([torch.zeros(1)])")       # imports all that a run does
weights = CLIENTS * network_cost(edge, (3, 32, 32))["parameters"] + network_cost(server, (16, 32, 32))["parameters"]
parts = {"idle process": idle, "images": 4 * 3 * 32 * 32 * (SAMPLES + TEST), "feature maps": 4 * 16 * 32 * 32 * SAMPLES,
         "networks": 4 * 5 * weights, "activations of a batch": BATCH * network_cost(server, (16, 32, 32))["activations"]}
print(f"\npeak resident memory of two rounds with {SAMPLES} samples 3x32x32, MiB")
for name, size in parts.items():
    print(f"{name:<24} {size / 2**20:8.0f}")
print(f"{'sum':<24} {sum(parts.values()) / 2**20:8.0f}\n{'peak':<24} {whole / 2**20:8.0f}   {whole / sum(parts.values()):.2f} times the sum")
