"""What FedGKT costs an edge device, and what it takes to simulate it: time and peak memory.

    python benchmarks/fedgkt_cost.py                  about 4 minutes on two cores
    python benchmarks/fedgkt_cost.py --memory-only    without the first part

Time: forward and backward of a batch of 64 images 3x32x32. The networks take turns, one batch each;
a share is the median over these repetitions.
Memory: the peak resident memory of two rounds on the command line, in a process of its own (8
clients, gkt_edge with gkt_server55, one server epoch), against the sum of what it needs at least:
a process that only imports what a run does, all images, the feature maps, every network with its
gradients and amsgrad's three numbers per weight, and the activations of one batch on the server.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import numpy as np
import torch
import torch.nn.functional as F

import models
from benchmarks.costs import network_cost
from federation import FLOAT_BYTES

ROOT = Path(__file__).parent.parent
REPETITIONS, WARM_UP, BATCH = 15, 2, 64
SAMPLES, TEST_SAMPLES, CLIENTS = 8000, 400, 8
IMAGE, FEATURES = (3, 32, 32), (16, 32, 32)              # shapes; the feature map's is gkt_edge's
EDGE, SERVER = "gkt_edge", "gkt_server55"
MIB = 2**20

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--memory-only", action="store_true", help="do not measure the time")
memory_only = parser.parse_args().memory_only


def measure_time():
    """Prints the time of a batch, and the edge's share of two large networks' time and work."""
    names = [EDGE, "bottleneck56", "bottleneck110"]
    networks = [models.build(name, IMAGE, 10).train() for name in names]
    images = torch.randn(BATCH, *IMAGE).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (BATCH,))
    times = []                                           # [repetitions, networks]
    for _ in range(WARM_UP + REPETITIONS):
        seconds = []
        for network in networks:
            start = time.perf_counter()
            F.cross_entropy(network(images), labels).backward()
            seconds.append(time.perf_counter() - start)
        times.append(seconds)
    times = times[WARM_UP:]
    costs = [network_cost(network, IMAGE) for network in networks]
    print(f"\nforward and backward of {BATCH} images 3x32x32, median of {REPETITIONS} repetitions; "
          "the edge's share of a larger network's time and multiply-adds")
    for j, (name, cost) in enumerate(zip(names, costs)):
        time_share = work_share = ""
        if j > 0:
            time_share = f"{statistics.median(row[0] / row[j] for row in times):.1%}"
            work_share = f"{costs[0]['multiply_adds'] / cost['multiply_adds']:.1%}"
        print(f"{name:<16} {1000 * statistics.median(row[j] for row in times):8.1f} ms   "
              f"edge's share {time_share:>8}   of the multiply-adds {work_share:>8}   "
              f"activations of a sample {cost['activations'] / MIB:6.2f} MiB")


def peak_memory(*command):
    """Peak resident bytes of a command in a process of its own (on Linux, which counts in KiB)."""
    watch = ("import resource, subprocess, sys; "
             "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
             "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
    printed = subprocess.run([sys.executable, "-c", watch, *command], cwd=ROOT, check=True,
                             capture_output=True, text=True).stdout
    return 1024 * int(printed)


def peak_of_a_run():
    """Peak resident bytes of two rounds of FedGKT on random images."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, n in [("train", SAMPLES), ("test", TEST_SAMPLES)]:
        arrays[f"x_{part}"] = rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(n) % 10
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "noise.npz")
        np.savez(path, **arrays)
        return peak_memory(
            sys.executable, "fedkd_minimal.py", "--algo", "fedgkt", "--dataset", path,
            "--model", EDGE, "--server-model", SERVER, "--clients", str(CLIENTS),
            "--partition", "iid", "--rounds", "2", "--server-epochs", "1",
            "--batch-size", str(BATCH), "--server-batch-size", str(BATCH), "--lr-patience", "none")


def measure_memory():
    """Prints the peak of a run, and the parts that it needs at least."""
    imports = "import fedkd_minimal, torch; torch.optim.Adam([torch.zeros(1)])"
    edge = network_cost(models.build(EDGE, IMAGE, 10), IMAGE)
    server = network_cost(models.build(SERVER, IMAGE, 10), FEATURES)
    weights = CLIENTS * edge["parameters"] + server["parameters"]
    peak = peak_of_a_run()
    parts = {"idle process": peak_memory(sys.executable, "-c", imports),
             "images": FLOAT_BYTES * np.prod(IMAGE) * (SAMPLES + TEST_SAMPLES),
             "feature maps": FLOAT_BYTES * np.prod(FEATURES) * SAMPLES,
             "networks": FLOAT_BYTES * 5 * weights,      # weight, gradient, three of amsgrad's
             "activations of a batch": BATCH * server["activations"]}
    total = sum(parts.values())
    print(f"\npeak resident memory of two rounds with {SAMPLES} samples 3x32x32, MiB")
    for name, size in parts.items():
        print(f"{name:<24} {size / MIB:8.0f}")
    print(f"{'sum':<24} {total / MIB:8.0f}\n"
          f"{'peak':<24} {peak / MIB:8.0f}   {peak / total:.2f} times the sum")


print(f"torch {torch.__version__}, {os.cpu_count()} cores, "
      f"{torch.get_num_threads()} threads, cpu")
if not memory_only:
    measure_time()
measure_memory()
