"""Curves and tables of kept runs: mean and standard deviation over seeds.

    python -m experiment.plot runs/a                     final and best accuracy of each label
    python -m experiment.plot runs/a --base fedavg       differences from fedavg, paired by seed
    python -m experiment.plot runs/a --rounds 30         the same after 30 rounds of longer runs
    python -m experiment.plot runs/a --out curves.png    accuracy by round (needs matplotlib)
    python -m experiment.plot runs/a --out curves.csv    the same numbers, without matplotlib
    python -m experiment.plot runs/a runs/b --key server_accuracy,client_accuracy --x MB --out b.svg

A RUN is a folder that --out of fedkd_minimal.py made, or a folder above it. The runs of one
algorithm in a folder, FOLDER/ALGO-seedN or FOLDER/SEED, have one label: FOLDER, or FOLDER/ALGO if
it has several algorithms, without the folders that all labels share.
"""
import argparse
import csv
import json
import os
import signal
import statistics
import sys
from itertools import accumulate
from pathlib import Path

AXES = {"round": "round", "MB": "MB up and down, summed"}
SHARES = ("disagreement", "pool", "nobody_right",      # of 1, as accuracies are
          "self_training", "self_distillation", "ensemble_distillation")
COLORS = "#000000 #0072B2 #D55E00 #009E73 #E69F00 #56B4E9 #CC79A7 #999999".split()  # Okabe and Ito
MARKERS = "os^DvPX"                                      # lines differ in gray print, too


def read_run(folder):
    """{algo, seed, rows, settings} of the run in a folder: the metrics by round, ["name=value"].

    Raises ValueError if a file of the run is missing or damaged.
    """
    try:
        config = json.loads((folder / "config.json").read_text())
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        [algo], [seed] = config["algo"], config["seeds"]
        settings = {"algo": algo, **config["flags"], **config["settings"][algo],
                    **config["environment"]}
        for name in ("dataset", "public", "data_root"):  # without the folders of this machine
            settings[name] = settings[name] and Path(settings[name]).name
        return {"algo": algo, "seed": seed, "rows": [json.loads(line) for line in lines],
                "settings": [f"{name}={value}" for name, value in settings.items()]}
    except (OSError, LookupError, ValueError) as error:
        raise ValueError(f"{folder} has a damaged run ({error}); "
                         f"fedkd_minimal.py --resume {folder} may repair it") from None


def read_runs(folders):
    """{label: {seed: run}}, see `read_run`. Raises ValueError if a folder has no run."""
    groups = {}                                          # {(folder, algorithm): {seed: run}}
    for folder in folders:
        paths = [path for path in sorted(folder.rglob("metrics.jsonl")) if path.stat().st_size]
        if not paths:
            raise ValueError(f"{folder} has no finished round of a run; "
                             "name a folder that fedkd_minimal.py --out made")
        for place in (path.parent.resolve() for path in paths):
            run = read_run(place)
            algo, seed = run["algo"], run["seed"]
            if place.name in (f"{algo.replace(':', '-')}-seed{seed}", str(seed)):
                place = place.parent
            groups.setdefault((place, algo), {})[seed] = run
    places = [place for place, _ in groups]
    names = [place / algo if places.count(place) > 1 else place for place, algo in groups]
    above = os.path.commonpath([name.parent for name in names])
    return {str(name.relative_to(above)): dict(sorted(seeds.items()))
            for name, seeds in zip(names, groups.values())}


def deviation(values):
    return statistics.stdev(values) if len(values) > 1 else None


def curve(seeds, key, axis):
    """[(x, mean, standard deviation or None, number of seeds)] of each round with the metric."""
    found = {}                                           # {round: [(x, value) of each seed]}
    for run in seeds.values():
        sent = accumulate((row.get("bytes_up", 0) + row.get("bytes_down", 0)) / 2**20
                          for row in run["rows"])
        for row, megabytes in zip(run["rows"], sent):
            if row.get(key) is not None:
                x = megabytes if axis == "MB" else row["round"]
                found.setdefault(row["round"], []).append((x, row[key]))
    columns = [[*zip(*pairs)] for _, pairs in sorted(found.items())]
    return [(statistics.mean(x), statistics.mean(values), deviation(values), len(values))
            for x, values in columns]


def is_share(key):
    return "accuracy" in key or key in SHARES


def draw(lines, axis, path):
    """Writes a picture of {(label, metric): curve}: means, with bands of one deviation."""
    import numpy as np
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter
    figure = Figure(figsize=(8, 4), dpi=150, layout="constrained")
    ax, keys = figure.subplots(), {key for _, key in lines}
    for i, ((label, key), points) in enumerate(lines.items()):
        x, mean, std, _ = np.array(points, float).T      # None becomes nan: no band
        name = label if len(keys) == 1 else f"{label}, {key.replace('_', ' ')}"
        color, marker = COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)]
        ax.plot(x, mean, color=color, marker=marker, markersize=4, markevery=0.1, label=name)
        ax.fill_between(x, mean - std, mean + std, color=color, alpha=0.15, linewidth=0)
    ax.set(xlabel=AXES[axis], ylabel=min(keys).replace("_", " ") if len(keys) == 1 else "")
    ax.grid(color="0.9")
    if all(map(is_share, keys)):
        ax.yaxis.set_major_formatter(PercentFormatter(1))
    figure.legend(loc="outside right upper", frameon=False, title="mean ± std over seeds")
    figure.savefig(path)


def write_csv(lines, axis, path):
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["label", "key", axis, "mean", "std", "seeds"])
        rows.writerows([*names, *point] for names, points in lines.items() for point in points)


def print_settings(curves):
    """Prints the settings that all runs share, then each label's others."""
    settings = {label: dict.fromkeys(text for run in seeds.values() for text in run["settings"])
                for label, seeds in curves.items()}      # a name twice: seeds have different values
    runs = [run["settings"] for seeds in curves.values() for run in seeds.values()]
    shared = [text for text in runs[0] if all(text in own for own in runs)]
    print("settings:", *shared)
    for label, own in settings.items():
        print(f"{label}:", *(text for text in own if text not in shared))


def values_of(seeds, key, measure):
    """{seed: the last or the largest value of a metric}, in percent if it is a share."""
    scale, found = 100 if is_share(key) else 1, {}
    for seed, run in seeds.items():
        values = [row[key] for row in run["rows"] if row.get(key) is not None]
        if values:
            found[seed] = scale * (values[-1] if measure == "final" else max(values))
    return found


def print_table(curves, key, measure, base):
    """Prints each label's final or best value of a metric, and its difference from a reference.

    The reference is the label `base`; where that has no such accuracy, its `accuracy`.
    """
    form = ".2f" if is_share(key) else ".6g"

    def mean_std(values, sign=""):
        std = f" +- {deviation(values):{form}}" if len(values) > 1 else ""
        return f"{statistics.mean(values):{sign}{form}}{std}"

    reference = values_of(curves[base], key, measure)
    base_key = "accuracy" if key.endswith("accuracy") and not reference else key
    reference = reference or values_of(curves[base], base_key, measure)
    seeds = sorted({seed for runs in curves.values() for seed in runs})
    rows = [[f"{measure} {key}" + ", %" * is_share(key), "mean +- std",
             f"minus {base} {base_key}", "last round", *(f"seed {seed}" for seed in seeds)]]
    for label, runs in curves.items():
        values = values_of(runs, key, measure)
        if not values:
            continue
        compared = "reference" if (label, key) == (base, base_key) else ""
        differences = [x - reference[seed] for seed, x in values.items() if seed in reference]
        if differences and not compared:
            agree = sum(x * statistics.mean(differences) > 0 for x in differences)
            compared = f"{mean_std(differences, '+')}, {agree} of {len(differences)}"
        ends = sorted({run["rows"][-1]["round"] for run in runs.values()})
        rows.append([label, mean_std([*values.values()]), compared, ",".join(map(str, ends)),
                     *(f"{values[seed]:{form}}" if seed in values else "-" for seed in seeds)])
    widths = [max(map(len, column)) for column in zip(*rows)]
    print()
    for first, *others in rows:
        cells = [x.rjust(width) for x, width in zip(others, widths[1:])]
        print(first.ljust(widths[0]), *cells, sep="  ")


def main(argv):
    parser = argparse.ArgumentParser(prog="plot", description=__doc__.splitlines()[0])
    parser.add_argument("folders", metavar="RUN", nargs="+", type=Path,
                        help="a folder that --out of fedkd_minimal.py made, or a folder above it")
    parser.add_argument("--key", default="accuracy", help="metrics, separated by commas")
    parser.add_argument("--base", help="the label whose values the table subtracts "
                                       "(default: the first)")
    parser.add_argument("--rounds", type=int, help="leave out the rounds after this one")
    parser.add_argument("--out", type=Path, help="a file to write instead of the table: .png, "
                                                 ".svg, or .csv with the points of the curves")
    parser.add_argument("--x", choices=AXES, default="round", help="x axis of --out")
    parser.error = lambda message: parser.exit(2, f"plot: error: {message}\n")    # one line
    args = parser.parse_args(argv)
    keys = [*dict.fromkeys(args.key.split(","))]
    try:
        curves = read_runs(args.folders)
        if args.rounds is not None:
            for seeds in curves.values():
                for run in seeds.values():
                    run["rows"] = [row for row in run["rows"] if row["round"] <= args.rounds]
        lines = {(label, key): points for key in keys for label, seeds in curves.items()
                 if (points := curve(seeds, key, args.x))}
        known = {key for runs in curves.values() for run in runs.values() for row in run["rows"]
                 for key in row}
        for key in {*keys} - known:
            raise ValueError(f"no run has the metric {key!r}; there are "
                             f"{', '.join(sorted(known))}")
        base = args.base or next(iter(curves))
        if base not in curves:
            raise ValueError(f"--base {base}: the labels are {', '.join(curves)}")
        if args.out and args.out.suffix == ".csv":
            write_csv(lines, args.x, args.out)
        elif args.out:
            draw(lines, args.x, args.out)
        else:
            print_settings(curves)
            print("\nminus ...: differences, paired by seed: mean +- std, and how many of the "
                  "seeds have the sign of the mean")
            for measure in ("final", "best"):
                for key in keys:
                    if measure == "final" or "accuracy" in key:    # best loss, bytes: no meaning
                        print_table(curves, key, measure, base)
    except ImportError as error:
        parser.error(f"{error}: pip install matplotlib, or write the numbers with --out FILE.csv")
    except (ValueError, OSError) as error:
        parser.error(error)


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")    # names of folders on an ASCII terminal
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)    # | head ends it without a traceback
    main(sys.argv[1:])
