"""Local training against a plain PyTorch loop: samples per second as a ratio, with the accuracy beside it.

    python benchmarks/throughput.py FILE.npz [NETWORK ...]              (resnet20; about 4 minutes on two cores)

The plain loop: contiguous NCHW float32 tensors in memory, the same shuffled batches of 64, cross-entropy, plain SGD. Against it
fedavg.train_client with one client, as it is (channels-last) and with --amp. They take turns, one pass over the data each,
and go on from where they were; the ratio is the median over the passes of the times of one turn.
"""
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import torch
import torch.nn.functional as F

import federation
import models
from algorithms import fedavg
from algorithms.common import batches, predict_logits, seeded, stream

PASSES, BATCH, LR = 5, 64, 0.1
path, networks = sys.argv[1], sys.argv[2:] or ["resnet20"]


def plain_pass(model, images, labels, t):
    sgd = torch.optim.SGD(model.parameters(), lr=LR)
    model.train()
    for rows in batches(len(labels), BATCH, 1, stream(0, "local", t, 0)):
        loss = F.cross_entropy(model(images[rows]), labels[rows])
        sgd.zero_grad()
        loss.backward()
        sgd.step()


print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, cpu; batch {BATCH}, SGD {LR}, {PASSES} passes, seed 0")
print("network        loop                        samples/s   to the plain loop   test accuracy")
for name in networks:
    flags = {"dataset": path, "data_root": "data", "model": [name], "clients": 1, "partition": "iid", "alpha": None, "public": None,
             "public_size": None, "augment": False, "amp": False}
    dataset, _ = federation.load(flags)
    feds = [federation.build(flags | {"amp": amp}, dataset, None, *federation.split(flags, dataset, 0), 0, torch.device("cpu"))
            for amp in (False, True)]
    images, labels = feds[0].private[0].images.contiguous(), feds[0].private[0].labels
    with seeded(0, "init", 0):
        plain = models.build(name, images.shape[1:], dataset.num_classes).to(memory_format=torch.contiguous_format)
    servers, times = [fedavg.start_server(fed) for fed in feds], []
    for t in range(PASSES + 1):                                         # the first pass warms up and is not counted
        turn, start = [], time.perf_counter()
        plain_pass(plain, images, labels, t)
        turn.append(time.perf_counter() - start)
        for j, fed in enumerate(feds):
            start = time.perf_counter()
            servers[j], _ = fedavg.train_client(fed, 0, t, servers[j], None, local_epochs=1, batch_size=BATCH, lr=LR)
            turn.append(time.perf_counter() - start)
        times += [turn] * (t > 0)
    trained = [plain]
    for fed, server in zip(feds, servers):
        trained.append(fed.client_model(0))
        trained[-1].load_state_dict(server["model"])
    for j, loop in enumerate(["plain, NCHW float32", "train_client", "train_client, --amp"]):
        fed = feds[max(0, j - 1)]
        correct = predict_logits(fed, trained[j], fed.test.images).argmax(1) == fed.test.labels
        print(f"{name:<14} {loop:<24} {len(labels) / statistics.median(turn[j] for turn in times):>12.0f} "
              f"{statistics.median(turn[0] / turn[j] for turn in times):>19.2f} {correct.float().mean().item():>15.4f}")
