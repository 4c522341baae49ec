"""FedGEMS Table 3's shape: accuracy under each attack, and its change, absolute (percentage points) and relative (percent).

    python benchmarks/attack_table.py runs/attacks       (what benchmarks/attacks.sh made)
"""
import json
import statistics
import sys
from pathlib import Path

ATTACKS = {"none": "none", "paf-1": "PAF, scale 1", "paf-10": "PAF, scale 10", "paf-100": "PAF, scale 100", "lie": "LIE, z by the formula",
           "lie-1.5": "LIE, z 1.5", "ofom": "OFOM, scale 10"}
final = {}                                                          # {(algorithm, metric): {attack: {seed: last accuracy}}}
for path in sorted(Path(sys.argv[1]).rglob("metrics.jsonl")):
    config = json.loads((path.parent / "config.json").read_text())
    attack = path.relative_to(sys.argv[1]).parts[0].removesuffix("-fedmd")
    row = json.loads(path.read_text().splitlines()[-1])
    for metric in ("server_accuracy", "client_accuracy"):
        if metric in row:
            final.setdefault((config["algo"][0], metric), {}).setdefault(attack, {})[config["seeds"][0]] = 100 * row[metric]

print("final accuracy in percent, mean ± standard deviation over seeds; its change against no attack, seed by seed:")
print("absolute in percentage points, mean ± standard deviation, and relative in percent of what it was, mean")
for (algo, metric), attacks in final.items():
    for attack, name in ATTACKS.items():
        seeds, clean = attacks.get(attack, {}), attacks["none"]
        if len(seeds) > 1:
            values, change = list(seeds.values()), [seeds[s] - clean[s] for s in seeds]
            relative = statistics.mean(100 * (seeds[s] / clean[s] - 1) for s in seeds)
            print(f"{algo:<8} {metric.removesuffix('_accuracy'):<7} {name:<22} {statistics.mean(values):6.2f} ± {statistics.stdev(values):5.2f}   "
                  f"{statistics.mean(change):+7.2f} ± {statistics.stdev(change):5.2f}   {relative:+7.2f} %")
