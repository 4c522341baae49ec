"""FedSDD Table 3's shape: how long distillation takes in a round, FedDF against FedSDD.

    python benchmarks/distillation_cost.py                  embedded data, 4 minutes on two cores
    python benchmarks/distillation_cost.py --recompute      8 minutes

8, 14 or 20 of 20 clients are active. As in the paper a student sees 25.6 passes over the public
images. The runs take turns, one round each, so that a change of the machine's speed affects them
all. Distillation seconds are those of a round without local training and evaluation; this leaves
the average, the teachers' predictions and the student's steps. --recompute also measures what
public code does: all teachers predict the batch of every step, not all public images once a round.
"""
import argparse
import statistics
import sys
import time
from collections import Counter
from functools import wraps
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import torch

from algorithms import feddf, fedsdd
from benchmarks.commands import federation_of
from benchmarks.costs import round_seconds
from federation import parallel_map, predict

ROUNDS, WARM_UP = 8, 4       # rounds, and how many at the start do not count: after 4 the ensemble
                             # has R rounds for every R below
REPETITIONS = 3              # distillations with recomputed predictions
STEPS, BATCH = 416, 256      # of a distillation
K, CLIENTS, ACTIVE = 4, 20, (8, 14, 20)
CASES = [*(("feddf", n, 1) for n in ACTIVE),             # (algorithm, active clients, R)
         *(("fedsdd", n, 1) for n in ACTIVE), ("fedsdd", 8, 2), ("fedsdd", 8, 4)]
RECOMPUTED = [*(("feddf", n, n) for n in ACTIVE), ("fedsdd", 8, K)]      # (.., active, teachers)
MODULES = {"feddf": feddf, "fedsdd": fedsdd}

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--recompute", action="store_true",
                    help="also measure teachers that predict the batch of every step")
recompute = parser.parse_args().recompute

fed, settings = federation_of([
    "--algo", "feddf,fedsdd", "--public", "glyphs-letters", "--clients", str(CLIENTS),
    "--rounds", str(ROUNDS), "--local-epochs", "1", "--K", str(K), "--distill-steps", str(STEPS),
    "--server-batch-size", str(BATCH), "--server-lr", "0.1", "--server-optimizer", "sgd",
    "--no-cosine", "--max-grad-norm", "none", "--temperature", "4", "--no-drop-worst",
    "--patience", "none"])


seconds = Counter()          # of the functions that are `timed`, since it was cleared


def timed(module, name):
    """Puts in the place of a module's function one that adds its time to `seconds`."""
    function = getattr(module, name)

    @wraps(function)
    def wrapper(*args, **kwargs):
        start = time.perf_counter()
        result = function(*args, **kwargs)
        seconds[name] += time.perf_counter() - start
        return result
    setattr(module, name, wrapper)


for module in MODULES.values():
    for name in ("train_client", "measure", "distill"):
        timed(module, name)


def start(algo, active, R):
    """The algorithm's generator of (metrics, state)."""
    changed = {"participation": active / CLIENTS} | ({"R": R} if algo == "fedsdd" else {})
    return MODULES[algo].run(fed, MODULES[algo].Config(**settings[algo] | changed))


def timed_round(run):
    """(metrics, seconds of distillation, seconds of local training) of the run's next round."""
    seconds.clear()
    begin = time.perf_counter()
    metrics, _ = next(run)
    whole = time.perf_counter() - begin
    return metrics, whole - seconds["train_client"] - seconds["measure"], seconds["train_client"]


class RecomputedLogits:
    """In place of the teacher's logits [N, C]: every access to rows makes all teachers predict."""

    def __init__(self, num_teachers):
        self.teachers = [fed.global_model(init) for init in range(num_teachers)]

    def __getitem__(self, rows):
        images = fed.public.images[rows]
        return torch.stack([predict(teacher, images) for teacher in self.teachers]).mean(0)


def recomputed_seconds(algo, num_teachers, t):
    """Seconds of a distillation for which all teachers predict the batch of every step."""
    given = fed.global_model().state_dict(), fed.public.images, RecomputedLogits(num_teachers)
    cfg = MODULES[algo].Config(**settings[algo])
    seconds.clear()
    if algo == "feddf":                                  # with the server's threads, as in its loop
        parallel_map(fed, [0], lambda _: feddf.distill(fed, cfg, t, fed.architecture[0], *given),
                     threads=fed.threads)
    else:
        fedsdd.distill(fed, cfg, t, *given)
    return seconds["distill"]


runs = {case: start(*case) for case in CASES}
cached, forwards = {case: [] for case in CASES}, {}
training = []                                            # seconds of one client in one round
for t in range(ROUNDS + 1):
    for case, run in runs.items():
        metrics, distillation, local = timed_round(run)
        if t > WARM_UP:
            cached[case].append(distillation)
            forwards[case] = metrics["teacher_forwards"]
            training.append(local / case[1])
recomputed = {case: [] for case in RECOMPUTED if recompute}
for t in range(REPETITIONS):
    for algo, active, num_teachers in recomputed:
        recomputed[algo, active, num_teachers].append(recomputed_seconds(algo, num_teachers, t))

print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, cpu; cnn, K = {K}, "
      f"{len(fed.public.images)} public images, {STEPS} steps of {BATCH}; "
      f"medians of rounds {WARM_UP + 1} to {ROUNDS}, seed 0")
print("algorithm  active clients   R   distillation seconds   to the first   "
      "teacher forwards per round")
medians = {case: statistics.median(values) for case, values in cached.items()}
first = medians[CASES[0]]
for (algo, active, R), middle in medians.items():
    print(f"{algo:<9} {active:>15} {R:>3} {middle:>22.3f} {middle / first:>14.2f} "
          f"{forwards[algo, active, R]:>28}")
for (algo, active, num_teachers), values in recomputed.items():
    middle = statistics.median(values)
    print(f"{algo:<9} {active:>15}   1 {middle:>22.3f} {middle / first:>14.2f} "
          f"{STEPS * BATCH * num_teachers:>28}   recomputed at every step: "
          f"{middle / medians[algo, active, 1]:.2f} times as long as cached")
group = 8 / K * statistics.median(training)              # the clients of a group, one epoch each
for epochs in (1, 5, 40):
    sequential, overlapped = round_seconds([epochs * group] * K, medians["fedsdd", 8, 1])
    print(f"a round of FedSDD, 8 clients one after the other with local epochs: {epochs}, "
          f"{sequential:.2f} s; with distillation beside the training of the other models (A.6): "
          f"{overlapped:.2f} s")
