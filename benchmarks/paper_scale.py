"""What a run at the papers' scale would take here: multiply-adds, seconds of a round, hours.

    python benchmarks/paper_scale.py [--device cuda] [--amp]     half a minute on one core

Networks, rounds, epochs and steps are those of --paper. Clients and server train one after the
other; a sample that a network trains on counts three times as many multiply-adds as one that it
predicts. The script measures how many multiply-adds a second each network makes here, in training
and in prediction, and divides. benchmarks/paper_scale.sh makes the runs.
"""
import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import torch
import torch.nn.functional as F

import models
from benchmarks.costs import network_cost
from experiment.settings import read

IMAGE, CLASSES, BATCHES = (3, 32, 32), 10, 5
TRAINING = 50_000                                        # CIFAR-10's images, and CIFAR-100's

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--amp", action="store_true")
args = parser.parse_args()
torch.set_num_threads(args.threads)


def settings_of(paper, algo):
    """{hyperparameter: value} of an algorithm with --paper."""
    argv = ["--algo", algo, "--paper", paper]
    if paper == "fedsdd":
        argv += ["--public", "glyphs-letters"]           # embedded; here only settings are read
    return read(argv).methods[0].hyperparameters


def samples_a_second(name, batch_size):
    """{"train": ..., "predict": ...}: samples a second of a network, here."""
    model = models.build(name, IMAGE, CLASSES).to(args.device, memory_format=torch.channels_last)
    images = torch.randn(batch_size, *IMAGE, device=args.device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(CLASSES, (batch_size,), device=args.device)

    def train():
        with torch.autocast(args.device.type, torch.bfloat16, enabled=args.amp):
            loss = F.cross_entropy(model.train()(images), labels)
        model.zero_grad()
        loss.backward()
        loss.item()                                      # waits for the device

    def predict():
        with torch.no_grad(), torch.autocast(args.device.type, torch.bfloat16, enabled=args.amp):
            model.eval()(images).sum().item()

    speed = {}
    for work in (train, predict):
        work()                                           # warm-up
        start = time.perf_counter()
        for _ in range(BATCHES):
            work()
        speed[work.__name__] = batch_size * BATCHES / (time.perf_counter() - start)
    return speed


def fedsdd_work(algo, s):
    """[(network, "train" or "predict", samples of a round)] of FedSDD's Table 2."""
    active = round(20 * s["participation"])
    work = [("resnet20", "train", active * TRAINING / 20 * s["local_epochs"])]
    if algo != "fedavg":
        teachers = s["K"] * s["R"] if "K" in s else active
        work += [("resnet20", "predict", teachers * TRAINING),
                 ("resnet20", "train", s["distill_steps"] * s["server_batch_size"])]
    return work


def fedgems_work(algo, s):
    """The same of FedGEMS's Table 2, homogeneous: half of the images are public."""
    public, private = TRAINING / 2, 0.9 * TRAINING / 2   # a tenth of the private is for validation
    return [("bottleneck11", "train", private * s["local_epochs"]),
            ("bottleneck11", "train", 16 * public * s["public_epochs"]),
            ("bottleneck11", "predict", 16 * public),
            ("bottleneck56", "train", public * s["server_epochs"]),
            ("bottleneck56", "predict", public)]


adds = {name: network_cost(models.build(name, IMAGE, CLASSES), IMAGE)["multiply_adds"]
        for name in ("resnet20", "bottleneck11", "bottleneck56")}
speeds = {name: samples_a_second(name, 256 if args.device.type == "cuda" else 64)
          for name in adds}
where = torch.cuda.get_device_name(args.device) if args.device.type == "cuda" else \
    f"CPU, {args.threads} threads"
print(f"torch {torch.__version__}, {where}, amp {args.amp}\n")
print("network        multiply-adds of a sample   samples/s, training   samples/s, prediction")
for name, speed in speeds.items():
    print(f"{name:<14} {adds[name]:>25,} {speed['train']:>21.0f} {speed['predict']:>23.0f}")
print("\nalgorithm   10^12 multiply-adds of a round   seconds   rounds   hours of a run")
for paper, work_of, algos in (("fedsdd", fedsdd_work, ("fedavg", "feddf", "fedsdd")),
                              ("fedgems-homogeneous", fedgems_work, ("fedgem", "fedgems"))):
    for algo in algos:
        settings = settings_of(paper, algo)
        work = work_of(algo, settings)
        total = sum(adds[net] * n * (3 if kind == "train" else 1) for net, kind, n in work)
        seconds = sum(n / speeds[net][kind] for net, kind, n in work)
        print(f"{algo:<11} {total / 1e12:>30.1f} {seconds:>9.0f} {settings['rounds']:>8} "
              f"{seconds * settings['rounds'] / 3600:>16.1f}")
