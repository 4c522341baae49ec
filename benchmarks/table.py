"""The final and the best of a metric, runs side by side, and each one's difference from the first's accuracy, seed by seed.

    python benchmarks/table.py [--key accuracy,ensemble_accuracy] [--base LABEL,...] runs/a runs/b ...    (folders that --out made)

With --base the difference is from the first of these labels that has the metric.
"""
import argparse
import json
import platform
import statistics
from pathlib import Path


def mean_std(values):
    deviation = f" ± {100 * statistics.stdev(values):5.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):6.2f}{deviation}"


parser = argparse.ArgumentParser()
parser.add_argument("--key", default="accuracy,ensemble_accuracy")
parser.add_argument("--base", default="", help="labels")
parser.add_argument("folders", nargs="+", type=Path)
arguments = parser.parse_args()
keys = arguments.key.split(",")

results, settings, environments = {}, {}, set()                     # {label: {seed: rows}}, {label: settings}, ...
for top in arguments.folders:
    paths = sorted(top.rglob("metrics.jsonl"))
    several = len({json.loads((path.parent / "config.json").read_text())["algo"][0] for path in paths}) > 1
    for path in paths:
        config = json.loads((path.parent / "config.json").read_text())
        [algo], [seed] = config["algo"], config["seeds"]
        own = config["settings"][algo]
        label = algo if several else top.name
        results.setdefault(label, {})[seed] = [json.loads(line) for line in path.read_text().splitlines()]
        settings[label], flags = own, config["flags"]
        environments.add(" ".join(f"{name}={value}" for name, value in config["environment"].items()))

print("environment:", "; ".join(sorted(environments)), f"python={platform.python_version()} machine={platform.machine()}")
print("federation: ", " ".join(f"{name}={Path(value).name if name == 'dataset' else value}" for name, value in flags.items()))
first = next(iter(results.values()))
for measure, choose in [("final", lambda values: values[-1]), ("best", max)]:
    for key in keys:
        other = next((label for label in arguments.base.split(",") if key in results.get(label, {min(first): [{}]})[min(first)][-1]), None)
        reference, metric = (results[other], key) if other else (first, keys[0])
        print(f"\n{measure} {key} in percent, mean ± standard deviation over seeds {sorted(first)}; difference from "
              f"{other or 'the first'}'s {metric}")
        base = {seed: choose([row[metric] for row in rows]) for seed, rows in reference.items() if metric in rows[-1]}
        for label, seeds in results.items():
            if seeds[min(seeds)][-1].get(key) is not None:
                values = {seed: choose([row[key] for row in rows if row.get(key) is not None]) for seed, rows in seeds.items()}
                difference = mean_std([values[seed] - base[seed] for seed in values]) if base else ""
                print(f"{label:<24} {mean_std(list(values.values()))}    {difference}    each: "
                      + " ".join(f"{100 * values[seed]:.2f}" for seed in sorted(values)))
print("\nsettings:")
for label, own in settings.items():
    print(f"{label:<24} " + " ".join(f"{name}={value}" for name, value in own.items()))
