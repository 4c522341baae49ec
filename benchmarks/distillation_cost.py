"""FedSDD Table 3's shape: what distillation costs a round with 8, 14 and 20 active clients, FedDF against FedSDD.

    python benchmarks/distillation_cost.py [--recompute]       (embedded data; 4 minutes on two cores, with --recompute 8)

All federations take turns, one round each, so that a change of the machine's speed meets all of them alike. As in the paper a
student sees 25.6 passes over the public images. --recompute adds what public code does: every teacher predicts every batch anew.
"""
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import torch

import federation
import fedkd_minimal
from algorithms import feddf, fedsdd
from algorithms.common import forward, seconds

CLIENTS, WARM_UP, ROUNDS = (8, 14, 20), 4, 8         # active clients of 20; rounds that are not counted, and all rounds
CASES = [("feddf", n, 1) for n in CLIENTS] + [("fedsdd", n, 1) for n in CLIENTS] + [("fedsdd", 8, R) for R in (2, 4)]
RECOMPUTED = [("feddf", n, n) for n in CLIENTS] + [("fedsdd", n, 4) for n in CLIENTS[:1]]       # algorithm, active, teachers

argv = ("--algo feddf,fedsdd --distill-steps 416 --server-batch-size 256 --server-lr 0.1 --local-epochs 1 --server-optimizer sgd "
        "--no-cosine --max-grad-norm none --temperature 4 --no-drop-worst --patience none")
config = fedkd_minimal.configure(fedkd_minimal.parse(argv.split()))
dataset, foreign = federation.load(config["flags"])
fed = federation.build(config["flags"], dataset, foreign, *federation.split(config["flags"], dataset, 0), 0, torch.device("cpu"))
server = dict(distill_steps=416, server_batch_size=256, server_lr=0.1, temperature=4.0)
plain = dict(server_optimizer="sgd", cosine=False, max_grad_norm=None, patience=None, check_every=1)


class Recomputed:
    """Stands where the teacher's logits [N, C] stand: asked for the rows of a batch, it lets all teachers predict them."""

    def __init__(self, teachers):
        self.teachers = [fed.client_model(0, init).eval() for init in range(teachers)]

    @torch.no_grad()
    def __getitem__(self, rows):
        return torch.stack([forward(fed, teacher, fed.public.images[rows]) for teacher in self.teachers]).mean(0)


def recomputed(algo, teachers, t):
    start = seconds(fed.device)
    own = feddf.distil(fed, t, 0, state, Recomputed(teachers), **server, **plain) if algo == "feddf" else \
        fedsdd.distil(fed, t, 0, state, Recomputed(teachers), **server)
    return own and seconds(fed.device) - start


def turn(algo, active, R):
    changes = {"rounds": ROUNDS, "participation": active / 20} | ({"R": R} if algo == "fedsdd" else {})
    return {"feddf": feddf, "fedsdd": fedsdd}[algo].run(fed, **{**config["settings"][algo], **changes})


state = fed.client_model(0).state_dict()
turns = {case: turn(*case) for case in CASES}
spent, trained, forwards = {case: [] for case in CASES}, [], {}
for t in range(ROUNDS + 1):
    for case, rounds in turns.items():
        metrics, _ = next(rounds)
        if t > WARM_UP:                                                 # from here on R rounds are in the ensemble for every R
            spent[case].append(metrics["distill_seconds"])
            trained.append(metrics["local_seconds"] / case[1])
            forwards[case] = metrics["teacher_forwards"]
anew = {case: [] for case in RECOMPUTED}
for t in range(3 if "--recompute" in sys.argv else 0):
    for (algo, _, teachers), values in anew.items():
        values.append(recomputed(algo, teachers, t))

print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, cpu; cnn, K = 4, {len(fed.public.images)} public images, "
      f"416 steps of 256; medians of rounds {WARM_UP + 1} to {ROUNDS}, seed 0")
print("algorithm  active clients   R   distillation seconds   to the first   teacher forwards per round")
base = statistics.median(spent[CASES[0]])
for (algo, active, R), values in spent.items():
    middle = statistics.median(values)
    print(f"{algo:<9} {active:>15} {R:>3} {middle:>22.3f} {middle / base:>14.2f} {forwards[algo, active, R]:>28}")
for (algo, active, teachers), values in anew.items():
    if values:
        middle = statistics.median(values)
        print(f"{algo:<9} {active:>15}   1 {middle:>22.3f} {middle / base:>14.2f} {416 * 256 * teachers:>28}"
              f"   recomputed at every step: {middle / statistics.median(spent[algo, active, 1]):.2f} times as long as cached")
group = 2 * statistics.median(trained)
for epochs in (1, 5, 40):
    after, together = fedsdd.round_seconds([epochs * group] * 4, statistics.median(spent["fedsdd", 8, 1]))
    print(f"a round of FedSDD, 8 clients one after the other with {epochs} local epochs: {after:.2f} s; with distillation beside the "
          f"training of the other models (A.6): {together:.2f} s")
