"""FedGEMS Table 3's shape: final accuracy under each attack, and its change against no attack.

    python benchmarks/attack_table.py runs/attacks        (the folder that attacks.sh fills)

The folder holds ATTACK/SEED/..., and ATTACK-fedmd/SEED/... for FedMD, with ATTACK as in ATTACKS.
"""
import argparse
import json
import statistics
from pathlib import Path

ATTACKS = {"none": "none", "paf-1": "PAF, scale 1", "paf-10": "PAF, scale 10",
           "paf-100": "PAF, scale 100", "lie": "LIE, z by the formula", "lie-1.5": "LIE, z 1.5",
           "ofom": "OFOM, scale 10"}
METRICS = ("server_accuracy", "client_accuracy")


def read_final(folder):
    """{(algorithm, metric): {attack: {seed: accuracy after the last round, in percent}}}"""
    final = {}
    for path in sorted(folder.rglob("metrics.jsonl")):
        config = json.loads((path.parent / "config.json").read_text())
        [algo], [seed] = config["algo"], config["seeds"]
        attack = path.relative_to(folder).parts[0].removesuffix("-fedmd")
        last_row = json.loads(path.read_text().splitlines()[-1])
        for metric in METRICS:
            if metric in last_row:
                seeds = final.setdefault((algo, metric), {}).setdefault(attack, {})
                seeds[seed] = 100 * last_row[metric]
    return final


def mean_std(values, width):
    return f"{statistics.mean(values):{width}} ± {statistics.stdev(values):5.2f}"


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("folder", type=Path, help="what benchmarks/attacks.sh wrote")
folder = parser.parse_args().folder

print("final accuracy in percent, mean ± standard deviation over seeds; "
      "its change against no attack, seed by seed:")
print("absolute in percentage points, mean ± standard deviation, "
      "and relative in percent of what it was, mean")
for (algo, metric), attacks in read_final(folder).items():
    clean = attacks["none"]
    for attack, attack_name in ATTACKS.items():
        attacked = attacks.get(attack, {})
        if len(attacked) < 2:                            # a deviation needs two seeds
            continue
        change = [x - clean[seed] for seed, x in attacked.items()]
        relative = [100 * (x / clean[seed] - 1) for seed, x in attacked.items()]
        print(f"{algo:<8} {metric.removesuffix('_accuracy'):<7} {attack_name:<22} "
              f"{mean_std(attacked.values(), '6.2f')}   {mean_std(change, '+7.2f')}   "
              f"{statistics.mean(relative):+7.2f} %")
