"""FedGEMS Table 4's shape: bytes until the clients reach given accuracies, and their best accuracy.

The accuracy is the clients' mean at the end of a round.

    python benchmarks/comu.py 0.3,0.35,0.4 runs/a runs/b ...        (folders that --out made)

The last column is what all clients together send in each round.
"""
import argparse
import statistics
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from experiment.plot import read_runs
from experiment.report import bytes_until, clients_metric


def megabytes(seeds, threshold):
    """{seed: MB up and down until the threshold}, of the seeds that reach it."""
    totals = {seed: bytes_until(run["rows"], threshold, run["scores"])
              for seed, run in seeds.items()}
    return {seed: total / 2**20 for seed, total in totals.items() if total is not None}


def cell(values):
    """Mean ± standard deviation, and the number of values, or "-" without one."""
    if not values:
        return "-"
    deviation = f"{statistics.stdev(values):.2f}" if len(values) > 1 else "-"
    return f"{statistics.mean(values):.2f} ± {deviation} ({len(values)})"


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("thresholds", help="accuracies in [0, 1], separated by commas")
parser.add_argument("folders", nargs="+", type=Path, help="folders that --out made")
args = parser.parse_args()
thresholds = [float(x) for x in args.thresholds.split(",")]

results = read_runs(args.folders)
needed = {(label, x): megabytes(seeds, x) for label, seeds in results.items() for x in thresholds}

print("MB (2^20 bytes) up and down until the clients' mean accuracy is x, "
      "mean and deviation of the seeds that reach it (how many do)")
width = max(map(len, results))
print(" " * width + "".join(f"{f'ComU@{x:g}':>18}" for x in thresholds)
      + f"{'best accuracy':>16}   KiB up in each round, mean over seeds")
for label, seeds in results.items():
    best = statistics.mean(max(row[clients_metric(run["scores"])] for row in run["rows"])
                           for run in seeds.values())
    up = [statistics.mean(row.get("bytes_up", 0) for row in rows_of_a_round) / 1024
          for rows_of_a_round in zip(*(run["rows"] for run in seeds.values()))]
    cells = [cell(needed[label, x].values()) for x in thresholds]
    print(f"{label:<{width}}" + "".join(f"{text:>18}" for text in cells) + f"{100 * best:>16.2f}   "
          + " ".join(f"{x:.0f}" for x in up[1:]))            # round 0 is the untrained start
for x in thresholds:
    reached = {seed for label in results for seed in needed[label, x]}
    fewest = Counter(min(results, key=lambda label: needed[label, x].get(seed, float("inf")))
                     for seed in reached)
    print(f"fewest at {x:g}:", ", ".join(f"{label} with {n} of {len(reached)} seeds"
                                         for label, n in fewest.most_common()) or "-")
