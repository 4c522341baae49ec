"""FedGEMS Fig. 3 from runs: how many public samples take which way, round by round; a picture, if matplotlib is installed.

    python benchmarks/fig3.py runs/fedgems/homo/labelled results/fedgems-fig3          (writes .txt and .png)
"""
import json
import statistics
import sys
from pathlib import Path

CASES = {"self_training": "self-training", "self_distillation": "self-distillation", "ensemble_distillation": "ensemble distillation",
         "nobody_right": "nobody right"}
paths = [path for path in sorted(Path(sys.argv[1]).rglob("metrics.jsonl"))
         if json.loads((path.parent / "config.json").read_text())["algo"] == ["fedgems"]]
seeds = [[json.loads(line) for line in path.read_text().splitlines()][1:] for path in paths]       # without round 0
shares = {case: [statistics.mean(row[case] for row in rows) for rows in zip(*seeds)] for case in CASES}
teachers = [[row["effective_teachers"] for row in rows if row["effective_teachers"] is not None] for rows in zip(*seeds)]
with open(sys.argv[2] + ".txt", "w") as file:
    print(f"share of the public samples in percent, mean over {len(seeds)} seeds; effective number of teachers", file=file)
    print("round  " + "  ".join(CASES.values()) + "  teachers", file=file)
    for t, values in enumerate(zip(*shares.values()), start=1):
        effective = f"{statistics.mean(teachers[t - 1]):>8.2f}" if teachers[t - 1] else f"{'-':>8}"
        print(f"{t:>5}  " + "  ".join(f"{100 * x:>{len(name)}.2f}" for x, name in zip(values, CASES.values())) + f"  {effective}", file=file)
try:
    from matplotlib import pyplot
except ImportError:
    sys.exit("no picture: matplotlib is not installed")
for case, name in CASES.items():
    pyplot.plot(range(1, len(shares[case]) + 1), [100 * x for x in shares[case]], label=name)
pyplot.xlabel("round")
pyplot.ylabel("public samples, %")
pyplot.legend()
pyplot.savefig(sys.argv[2] + ".png", dpi=80, bbox_inches="tight")
