"""FedGEMS Table 4's shape: bytes until given client accuracies, the best one, and what clients send in a round.

    python benchmarks/comu.py 0.3,0.35,0.4 runs/a runs/b ...         (folders that --out made)
"""
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from communication import bytes_until

thresholds = [float(x) for x in sys.argv[1].split(",")]
results = {}                                                        # {algorithm: [rows of each seed]}
for path in sorted(path for top in sys.argv[2:] for path in Path(top).rglob("metrics.jsonl")):
    [algo] = json.loads((path.parent / "config.json").read_text())["algo"]
    results.setdefault(algo, []).append([json.loads(line) for line in path.read_text().splitlines()])

print("MB (2^20 bytes) up and down until the clients' mean accuracy is x, mean over the seeds that reach it (how many do)")
print(f"{'':<10}" + "".join(f"{f'ComU@{x:g}':>16}" for x in thresholds) + f"{'best accuracy':>16}   KiB up in each round, mean over seeds")
for algo, seeds in results.items():
    cells = []
    for x in thresholds:
        reached = [total / 2**20 for rows in seeds if (total := bytes_until(rows, x)) is not None]
        cells.append(f"{statistics.mean(reached):.2f} ({len(reached)})" if reached else "-")
    best = statistics.mean(max(row["client_accuracy"] for row in rows) for rows in seeds)
    ups = [statistics.mean(row.get("bytes_up", 0) for row in same_round) / 1024 for same_round in zip(*seeds)][1:]
    print(f"{algo:<10}" + "".join(f"{cell:>16}" for cell in cells) + f"{100 * best:>16.2f}   " + " ".join(f"{up:.0f}" for up in ups))
