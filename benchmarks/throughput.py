"""Local training and prediction against plain PyTorch loops: samples per second, and their ratio.

    python benchmarks/throughput.py FILE.npz [NETWORK ...]      (resnet20: 5 minutes on two cores)
    python benchmarks/throughput.py --prediction-only FILE.npz [NETWORK ...]          (1 minute)

Training. The plain loop: contiguous NCHW float32 tensors in memory, the same shuffled batches of
64, cross-entropy, plain SGD. Against it: fedavg.train_client with one client, channels-last as
always, and the same with --amp. The three loops take turns, one epoch each, and each continues with
its own model; the ratio is the median over the epochs.
Prediction of 500 test images. The plain loop: the same NCHW tensors in batches of 64, in eval mode,
without gradient. Against it: `predict` with several batch sizes. They take turns, each in a
process of its own, and each trains two batches of 64 before it predicts, as in a round: the speed
depends on how much memory the allocator already holds.
"""
import argparse
import multiprocessing
import statistics
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import torch
import torch.nn.functional as F

import federation
from algorithms import fedavg
from benchmarks.commands import federation_of
from federation import accuracy, make_rng, minibatches, predict

EPOCHS, BATCH, LR = 5, 64, 0.1
PREDICTED, PREDICTION_BATCHES, TURNS = 500, (32, 64, 100, 256, 500), 11
LOOPS = ("plain, NCHW float32", "train_client", "train_client, --amp")

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("file", help="a data set as .npz, for example from cifar10_npz.py")
parser.add_argument("networks", nargs="*", help="default: resnet20")
parser.add_argument("--prediction-only", action="store_true", help="do not measure training")
args = parser.parse_args()


def one_client(name, amp=False):
    """A federation of one client that holds all training images."""
    return federation_of(["--algo", "fedavg", "--dataset", args.file, "--model", name, "--clients",
                          "1", "--partition", "iid", "--amp" if amp else "--no-amp"])[0]


def plain_epoch(model, images, labels, t):
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    model.train()
    for rows in minibatches(images, BATCH, make_rng(0, "local", t, 0), epochs=1):
        loss = F.cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def measure_training(name):
    """Prints the speed of local training, and the accuracy that it reaches."""
    feds = [one_client(name, amp) for amp in (False, True)]
    images, labels = feds[0].private[0].images.contiguous(), feds[0].private[0].labels
    plain = feds[0].client_model(0).to(memory_format=torch.contiguous_format)
    trained, times = [fed.global_model().state_dict() for fed in feds], []
    cfg = fedavg.Config(local_epochs=1, batch_size=BATCH, lr=LR)
    for t in range(EPOCHS + 1):                          # epoch 0 warms up and is not counted
        start = time.perf_counter()
        plain_epoch(plain, images, labels, t)
        seconds = [time.perf_counter() - start]
        for j, fed in enumerate(feds):
            start = time.perf_counter()
            trained[j] = fedavg.train_client(fed, cfg, t, 0, trained[j])
            seconds.append(time.perf_counter() - start)
        if t > 0:
            times.append(seconds)
    models = [plain, *(fed.global_model() for fed in feds)]
    for model, weights in zip(models[1:], trained):
        model.load_state_dict(weights)
    for j, (loop, fed) in enumerate(zip(LOOPS, [feds[0], *feds])):
        test_accuracy = accuracy(predict(models[j], fed.test.images), fed.test.labels)
        samples_per_second = len(labels) / statistics.median(seconds[j] for seconds in times)
        ratio = statistics.median(seconds[0] / seconds[j] for seconds in times)
        print(f"{name:<14} {loop:<24} {samples_per_second:>12.0f} {ratio:>19.2f} "
              f"{test_accuracy:>15.4f}")


@torch.no_grad()
def plain_prediction(model, images, batch_size):
    model.eval()
    return torch.cat([model(batch) for batch in images.split(batch_size)])


def start_worker(name, loop, size):
    """Makes `predict_in_turn` of this process: the seconds of one prediction."""
    global predict_in_turn
    fed = one_client(name)
    model, (train_images, labels), images = fed.client_model(0), fed.private[0], fed.test.images
    federation.prediction_batch = lambda images: size
    work = partial(predict, model, images[:PREDICTED])
    if loop == LOOPS[0]:
        model = model.to(memory_format=torch.contiguous_format)
        train_images = train_images[:2 * BATCH].contiguous()
        work = partial(plain_prediction, model, images[:PREDICTED].contiguous(), size)

    def predict_in_turn():
        plain_epoch(model, train_images[:2 * BATCH], labels[:2 * BATCH], 0)
        start = time.perf_counter()
        work()
        return time.perf_counter() - start


def turn():
    return predict_in_turn()


def measure_prediction(name):
    """Prints the speed of prediction with each batch size."""
    fork = multiprocessing.get_context("fork")
    cases = [(LOOPS[0], BATCH), *(("predict", size) for size in PREDICTION_BATCHES)]
    workers = [fork.Pool(1, start_worker, (name, *case)) for case in cases]
    times = [[worker.apply(turn) for worker in workers] for _ in range(TURNS + 1)][1:]  # 1 warms up
    for j, (loop, size) in enumerate(cases):
        samples_per_second = PREDICTED / statistics.median(seconds[j] for seconds in times)
        ratio = statistics.median(seconds[0] / seconds[j] for seconds in times)
        print(f"{name:<14} {loop:<24} {size:>5} {samples_per_second:>12.0f} {ratio:>19.2f}")
    for worker in workers:
        worker.terminate()


names = args.networks or ["resnet20"]
threads = f"torch {torch.__version__}, {torch.get_num_threads()} threads, cpu; "
print(f"{threads}prediction of {PREDICTED} images, median of {TURNS} turns, seed 0")
print("network        loop                     batch    samples/s   to the plain loop")
for name in names:                                       # first: before this process computes
    measure_prediction(name)
if not args.prediction_only:
    print(f"\n{threads}training, batch {BATCH}, SGD {LR}, {EPOCHS} epochs, seed 0")
    print("network        loop                        samples/s   to the plain loop   "
          "test accuracy")
    for name in names:
        measure_training(name)
