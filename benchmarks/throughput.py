"""Local training against a plain PyTorch loop: samples per second, their ratio, and the accuracy.

    python benchmarks/throughput.py FILE.npz [NETWORK ...]      (resnet20: 4 minutes on two cores)

The plain loop: contiguous NCHW float32 tensors in memory, the same shuffled batches of 64,
cross-entropy, plain SGD. Against it: fedavg.train_client with one client, channels-last as always,
and the same with --amp. The three loops take turns, one epoch each, and each continues with its own
model; the ratio is the median over the epochs.
"""
import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import torch
import torch.nn.functional as F

import federation
import fedkd_minimal
import models
from algorithms import fedavg
from algorithms.common import seeded, stream
from algorithms.evaluation import accuracy
from algorithms.training import batches, load_model, predict_logits

EPOCHS, BATCH, LR = 5, 64, 0.1
LOOPS = ("plain, NCHW float32", "train_client", "train_client, --amp")

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("file", help="a data set as .npz, for example from cifar10_npz.py")
parser.add_argument("networks", nargs="*", help="default: resnet20")
args = parser.parse_args()


def build(name, dataset_flag, amp):
    """A federation of one client that holds all training images."""
    flags = fedkd_minimal.configure(fedkd_minimal.parse([
        "--algo", "fedavg", "--dataset", dataset_flag, "--model", name, "--clients", "1",
        "--partition", "iid", "--amp" if amp else "--no-amp"]))["flags"]
    dataset, _ = federation.load(flags)
    return federation.build(flags, dataset, None, *federation.split(flags, dataset, 0), 0,
                            torch.device("cpu"))


def plain_epoch(model, images, labels, t):
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    model.train()
    for rows in batches(len(labels), BATCH, 1, stream(0, "local", t, 0)):
        loss = F.cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, cpu; batch {BATCH}, SGD {LR},"
      f" {EPOCHS} epochs, seed 0")
print("network        loop                        samples/s   to the plain loop   test accuracy")
for name in args.networks or ["resnet20"]:
    feds = [build(name, args.file, amp) for amp in (False, True)]
    images, labels = feds[0].private[0].images.contiguous(), feds[0].private[0].labels
    with seeded(0, "init", 0):                           # the same initial weights
        plain = models.build(name, images.shape[1:], feds[0].num_classes)
    plain = plain.to(memory_format=torch.contiguous_format)
    servers, times = [fedavg.start_server(fed, name) for fed in feds], []
    for t in range(EPOCHS + 1):                          # epoch 0 warms up and is not counted
        start = time.perf_counter()
        plain_epoch(plain, images, labels, t)
        seconds = [time.perf_counter() - start]
        for j, fed in enumerate(feds):
            start = time.perf_counter()
            servers[j] |= fedavg.train_client(fed, 0, t, servers[j], local_epochs=1,
                                              batch_size=BATCH, lr=LR)
            seconds.append(time.perf_counter() - start)
        if t > 0:
            times.append(seconds)
    trained = [plain, *(load_model(fed, server) for fed, server in zip(feds, servers))]
    for j, (loop, fed) in enumerate(zip(LOOPS, [feds[0], *feds])):
        test_accuracy = accuracy(predict_logits(fed, trained[j], fed.test.images), fed.test.labels)
        samples_per_second = len(labels) / statistics.median(seconds[j] for seconds in times)
        ratio = statistics.median(seconds[0] / seconds[j] for seconds in times)
        print(f"{name:<14} {loop:<24} {samples_per_second:>12.0f} {ratio:>19.2f} "
              f"{test_accuracy:>15.4f}")
