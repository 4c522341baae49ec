"""Final and best accuracies of several runs, and their differences from a reference, seed by seed.

    python benchmarks/table.py [--key METRIC,...] [--base LABEL,...] runs/a runs/b ...

The folders are those that --out made. A folder with one algorithm has its own name as its label; in
a folder with several, each algorithm's name is a label. The reference is the first label's first
metric; with --base it is, for each metric, the first of these labels that has the metric.
"""
import argparse
import json
import platform
import statistics
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--key", default="accuracy,ensemble_accuracy", help="metrics (%(default)s)")
parser.add_argument("--base", default="", help="labels of the references (default: the first)")
parser.add_argument("folders", nargs="+", type=Path, help="folders that --out made")
args = parser.parse_args()
metrics = args.key.split(",")


def mean_std(values):
    deviation = f" ± {100 * statistics.stdev(values):5.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):6.2f}{deviation}"


def has(label, metric):
    """True if the label's runs end with a value of this metric (it may be null in some rounds)."""
    seeds = results.get(label)
    return seeds is not None and seeds[min(seeds)][-1].get(metric) is not None


def of_each_seed(label, metric, choose):
    """{seed: choose(the metric's values in all rounds that have one)}"""
    return {seed: choose([row[metric] for row in rows if row.get(metric) is not None])
            for seed, rows in results[label].items()}


def words(values):
    return " ".join(f"{name}={value}" for name, value in values.items())


results, settings, environments = {}, {}, set()          # {label: {seed: rows}}, {label: settings}
for folder in args.folders:
    paths = sorted(folder.rglob("metrics.jsonl"))
    configs = [json.loads((path.parent / "config.json").read_text()) for path in paths]
    several = len({config["algo"][0] for config in configs}) > 1
    for path, config in zip(paths, configs):
        [algo], [seed] = config["algo"], config["seeds"]
        label = algo if several else folder.name
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        results.setdefault(label, {})[seed] = rows
        settings[label], flags = config["settings"][algo], config["flags"]
        environments.add(words(config["environment"]))

flags["dataset"] = Path(flags["dataset"]).name
print("environment:", "; ".join(sorted(environments)),
      f"python={platform.python_version()} machine={platform.machine()}")
print("federation: ", words(flags))
first = next(iter(results))
for measure, choose in [("final", lambda values: values[-1]), ("best", max)]:
    for metric in metrics:
        named = next((label for label in args.base.split(",") if has(label, metric)), None)
        reference, reference_metric = (named, metric) if named else (first, metrics[0])
        print(f"\n{measure} {metric} in percent, mean ± standard deviation over seeds "
              f"{sorted(results[first])}; difference from {named or 'the first'}'s "
              f"{reference_metric}")
        base = {}
        if has(reference, reference_metric):
            base = of_each_seed(reference, reference_metric, choose)
        for label in results:
            if has(label, metric):
                values = of_each_seed(label, metric, choose)
                difference = ""
                if base:
                    difference = mean_std([x - base[seed] for seed, x in values.items()])
                print(f"{label:<24} {mean_std(list(values.values()))}    {difference}    each: "
                      + " ".join(f"{100 * values[seed]:.2f}" for seed in sorted(values)))
print("\nsettings:")
for label, own in settings.items():
    print(f"{label:<24} {words(own)}")
