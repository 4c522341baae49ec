"""What a run at the papers' scale would take here: multiply-adds, seconds of a round, hours.

    python benchmarks/paper_scale.py [--device cuda] [--amp]     half a minute on one core

Networks, rounds, epochs and steps are those of --paper. Clients and server train one after the
other; a sample that a network trains on counts three times as many multiply-adds as one that it
predicts. The script measures how many samples a second each network trains on here, in batches of
the paper's size, and predicts, and divides. On a GPU small batches wait for their kernels to start.
benchmarks/paper_scale.sh makes the runs.
"""
import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import torch
import torch.nn.functional as F

import models
from benchmarks.costs import network_cost
from experiment.processes import device_of
from experiment.settings import read
from federation import prediction_batch

IMAGE, CLASSES, BATCHES = (3, 32, 32), 10, 5
TRAINING = 50_000                                        # CIFAR-10's images, and CIFAR-100's

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--device", default="cpu")
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--amp", action="store_true")
args = parser.parse_args()
torch.set_num_threads(args.threads)
args.device = device_of(args.device, is_program=True)     # deterministic on a GPU, as in a run


def settings_of(paper, algo):
    """{hyperparameter: value} of an algorithm with --paper."""
    argv = ["--algo", algo, "--paper", paper]
    if paper == "fedsdd":
        argv += ["--public", "glyphs-letters"]           # embedded; here only settings are read
    return asdict(read(argv).methods[0].cfg)


def samples_a_second(name, batch_size):
    """Samples a second of a network, here: in training, if batch_size is None in prediction."""
    model = models.build(name, IMAGE, CLASSES).to(args.device, memory_format=torch.channels_last)
    size = batch_size or prediction_batch(torch.empty(0, device=args.device))
    images = torch.randn(size, *IMAGE, device=args.device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(CLASSES, (size,), device=args.device)

    def train():
        with torch.autocast(args.device.type, torch.bfloat16, enabled=args.amp):
            loss = F.cross_entropy(model.train()(images), labels)
        model.zero_grad()
        loss.backward()
        loss.item()                                      # waits for the device

    def predict():
        with torch.no_grad(), torch.autocast(args.device.type, torch.bfloat16, enabled=args.amp):
            model.eval()(images).sum().item()

    work = train if batch_size else predict
    work()                                               # warm-up
    start = time.perf_counter()
    for _ in range(BATCHES):
        work()
    return size * BATCHES / (time.perf_counter() - start)


def fedsdd_work(algo, s):
    """[(network, batch size of training or None, samples of a round)] of FedSDD's Table 2."""
    active = round(20 * s["participation"])
    work = [("resnet20", s["batch_size"], active * TRAINING / 20 * s["local_epochs"])]
    if algo != "fedavg":
        teachers = s["K"] * s["R"] if "K" in s else active
        work += [("resnet20", None, teachers * TRAINING),
                 ("resnet20", s["server_batch_size"], s["distill_steps"] * s["server_batch_size"])]
    return work


def fedgems_work(algo, s):
    """The same of FedGEMS's Table 2, homogeneous: half of the images are public."""
    public, private = TRAINING / 2, 0.9 * TRAINING / 2   # a tenth of the private is for validation
    return [("bottleneck11", s["batch_size"], private * s["local_epochs"]),
            ("bottleneck11", s["batch_size"], 16 * public * s["public_epochs"]),
            ("bottleneck11", None, 16 * public),
            ("bottleneck56", s["server_batch_size"], public * s["server_epochs"]),
            ("bottleneck56", None, public)]


adds = {name: network_cost(models.build(name, IMAGE, CLASSES), IMAGE)["multiply_adds"]
        for name in ("resnet20", "bottleneck11", "bottleneck56")}
works = {}
for paper, work_of, algos in (("fedsdd", fedsdd_work, ("fedavg", "feddf", "fedsdd")),
                              ("fedgems-homogeneous", fedgems_work, ("fedgem", "fedgems"))):
    for algo in algos:
        settings = settings_of(paper, algo)
        works[algo] = settings["rounds"], work_of(algo, settings)
speeds = {kind: samples_a_second(*kind)
          for kind in sorted({item[:2] for _, work in works.values() for item in work}, key=str)}
where = torch.cuda.get_device_name(args.device) if args.device.type == "cuda" else \
    f"CPU, {args.threads} threads"
print(f"torch {torch.__version__}, {where}, amp {args.amp}\n")
print("network        multiply-adds of a sample   samples/s")
for (name, batch_size), speed in speeds.items():
    doing = f"training in batches of {batch_size}" if batch_size else "prediction"
    print(f"{name:<14} {adds[name]:>25,} {speed:>11.0f}   {doing}")
print("\nalgorithm   10^12 multiply-adds of a round   seconds   rounds   hours of a run")
for algo, (rounds, work) in works.items():
    total = sum(adds[net] * n * (3 if batch_size else 1) for net, batch_size, n in work)
    seconds = sum(n / speeds[net, batch_size] for net, batch_size, n in work)
    print(f"{algo:<11} {total / 1e12:>30.1f} {seconds:>9.0f} {rounds:>8} "
          f"{seconds * rounds / 3600:>16.1f}")
