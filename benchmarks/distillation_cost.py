"""FedSDD Table 3's claim: the cost of distillation depends neither on the active clients nor, here, on R.

    python benchmarks/distillation_cost.py            (embedded data, about 3 minutes on two cores)

Five federations take turns, one round each, so that a change of the machine's speed meets all of them alike.
"""
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import torch

import federation
import fedkd_minimal
from algorithms import fedsdd

CASES = [(8, 1), (14, 1), (20, 1), (8, 2), (8, 4)]                      # active clients of 20, R
ROUNDS = 12

config = fedkd_minimal.configure(fedkd_minimal.parse(["--algo", "fedsdd", "--distill-steps", "200", "--local-epochs", "1"]))
dataset, foreign = federation.load(config["flags"])
fed = federation.build(config["flags"], dataset, foreign, *federation.split(config["flags"], dataset, 0), 0, torch.device("cpu"))
settings = config["settings"]["fedsdd"] | {"rounds": ROUNDS}
turns = {case: fedsdd.run(fed, **{**settings, "participation": case[0] / 20, "R": case[1]}) for case in CASES}
rows = {case: [] for case in CASES}
for t in range(ROUNDS + 1):
    for case, turn in turns.items():
        metrics, _ = next(turn)
        if t > 4:                                                       # from here on R rounds are in the ensemble for every R
            rows[case].append((metrics["distill_seconds"], metrics["teacher_forwards"]))

print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, cpu; cnn, K = 4, {len(fed.public.images)} public images, "
      f"200 steps of {settings['server_batch_size']}; medians of rounds 5 to {ROUNDS}, seed 0")
print("active clients   R   distillation seconds   to the first   teacher forwards per round")
base = statistics.median(seconds for seconds, _ in rows[CASES[0]])
for (active, R), measured in rows.items():
    seconds = statistics.median(seconds for seconds, _ in measured)
    print(f"{active:>14} {R:>3} {seconds:>22.3f} {seconds / base:>14.2f} {statistics.median(f for _, f in measured):>28.0f}")
