"""FedGEMS Table 4's shape: bytes until the clients reach given accuracies, and their best accuracy.

    python benchmarks/comu.py 0.3,0.35,0.4 runs/a runs/b ...        (folders that --out made)

The last column is what all clients together send in each round.
"""
import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from communication import bytes_until
from plot import read_runs


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

print("MB (2^20 bytes) up and down until the clients' mean accuracy is x, "
      "mean and deviation of the seeds that reach it (how many do)")
results = read_runs(args.folders, [])
width = max(map(len, results))
print(" " * width + "".join(f"{f'ComU@{x:g}':>18}" for x in thresholds)
      + f"{'best accuracy':>16}   KiB up in each round, mean over seeds")
for label, runs in results.items():
    seeds = [run["rows"] for run in runs.values()]
    cells = []
    for x in thresholds:
        totals = [bytes_until(rows, x) for rows in seeds]
        cells.append(cell([total / 2**20 for total in totals if total is not None]))
    best = statistics.mean(max(row["client_accuracy"] for row in rows) for rows in seeds)
    up = [statistics.mean(row.get("bytes_up", 0) for row in rows_of_a_round) / 1024
          for rows_of_a_round in zip(*seeds)][1:]        # without round 0, the untrained start
    print(f"{label:<{width}}" + "".join(f"{cell:>18}" for cell in cells) + f"{100 * best:>16.2f}   "
          + " ".join(f"{x:.0f}" for x in up))
