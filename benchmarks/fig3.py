"""FedGEMS Fig. 3: in each round, the share of the public samples in each case of selective fusion.

    python benchmarks/fig3.py runs/fedgems/homo/labelled results/fedgems-fig3

Reads the runs of FedGEMS in the folder; writes .txt and, if matplotlib is installed, .png.
"""
import argparse
import json
import statistics
import sys
from pathlib import Path

CASES = {"self_training": "self-training", "self_distillation": "self-distillation",
         "ensemble_distillation": "ensemble distillation", "nobody_right": "nobody right"}

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("folder", type=Path, help="a folder that --out made")
parser.add_argument("out", help="the files to write, without .txt and .png")
args = parser.parse_args()

seeds = []                                               # rows of each seed, without round 0
for path in sorted(args.folder.rglob("metrics.jsonl")):
    if json.loads((path.parent / "config.json").read_text())["algo"] == ["fedgems"]:
        seeds.append([json.loads(line) for line in path.read_text().splitlines()][1:])
rounds = list(zip(*seeds))                               # for each round the row of each seed
percent = {case: [100 * statistics.mean(row[case] for row in rows) for rows in rounds]
           for case in CASES}

with open(args.out + ".txt", "w") as file:
    print(f"share of the public samples in percent, mean over {len(seeds)} seeds; "
          "effective number of teachers", file=file)
    print("round  " + "  ".join(CASES.values()) + "  teachers", file=file)
    for t, rows in enumerate(rounds, start=1):
        cells = [f"{percent[case][t - 1]:>{len(name)}.2f}" for case, name in CASES.items()]
        # None: the clients taught no sample in this round.
        teachers = [row["effective_teachers"] for row in rows
                    if row["effective_teachers"] is not None]
        cells.append(f"{statistics.mean(teachers):>8.2f}" if teachers else f"{'-':>8}")
        print(f"{t:>5}  " + "  ".join(cells), file=file)

try:
    from matplotlib import pyplot
except ImportError:
    sys.exit("no picture: matplotlib is not installed")
for case, name in CASES.items():
    pyplot.plot(range(1, len(rounds) + 1), percent[case], label=name)
pyplot.xlabel("round")
pyplot.ylabel("public samples, %")
pyplot.legend()
pyplot.savefig(args.out + ".png", dpi=80, bbox_inches="tight")
