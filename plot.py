"""Curves and tables of kept runs: mean and standard deviation over seeds.

    python plot.py runs/a --out curves.png                  accuracy by round (needs matplotlib)
    python plot.py runs/a runs/b --key server_accuracy,client_accuracy --x MB --out curves.svg
    python plot.py runs/a --csv curves.csv                  the same numbers, without matplotlib
    python plot.py runs/a runs/b                            final and best accuracy of each label
    python plot.py runs/a --base fedavg                     differences from fedavg, paired by seed

A RUN is a folder that --out made, or a folder above it. The runs of one algorithm in a folder,
FOLDER/ALGO-seedN or FOLDER/SEED, are one curve. Its label is the folder's name, or the
algorithm's where the folder has several.
"""
import argparse
import csv
import json
import platform
import re
import signal
import statistics
import sys
from itertools import accumulate, count, product
from pathlib import Path

AXES = {"round": "round", "MB": "MB up and down, summed", "seconds": "seconds, summed"}
# Metrics that are shares of 1, printed in percent.
SHARES = re.compile(r"accuracy|^(gain|disagreement|pool|nobody_right)$|^self_|_distillation$")
# Dark, then light with markers, for gray print: Okabe and Ito's colors, with gray for their yellow.
COLORS = "#000000 #0072B2 #D55E00 #009E73 #E69F00 #56B4E9 #CC79A7 #999999".split()
DASHES = "-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5))
MARKERS = *4 * [None], *"os^DvP*X"


def read_rows(path):
    """The rows of a .jsonl file, one for each round from 0 on. Raises ValueError, OSError."""
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        if [row["round"] for row in rows] != [*range(len(rows))]:
            raise LookupError
    except (ValueError, LookupError, TypeError):
        raise ValueError(f"{path} is damaged; fedkd_minimal.py --resume {path.parent} "
                         "writes it again") from None
    return rows


def find_runs(folder):
    """[{folder, rows, algo, seed, flags, environment}] of the runs in a folder and below it.

    Raises ValueError if there is none, or one is damaged.
    """
    runs = []
    for path in sorted(folder.rglob("metrics.jsonl")):
        config_path, rows = path.with_name("config.json"), read_rows(path)
        try:
            config = json.loads(config_path.read_text())
            [algo], [seed] = config["algo"], config["seeds"]
            flags = {"algo": algo} | config["flags"] | config["settings"][algo]
            runs.append({"folder": path.parent, "rows": rows, "algo": algo, "seed": seed,
                         "flags": flags, "environment": config["environment"]})
        except (OSError, ValueError, LookupError, TypeError):
            raise ValueError(f"{config_path} is missing or damaged") from None
    runs = [run for run in runs if run["rows"]]
    if not runs:
        raise ValueError(f"{folder} holds no finished round of a run; "
                         "name a folder that fedkd_minimal.py --out made")
    return runs


def read_runs(folders, notes):
    """{label: {seed: run}}, see `find_runs`; adds to the list `notes` how the runs differ.

    Raises ValueError if a folder has no run, or two runs have the same label and seed.
    """
    found = {}                                           # {(folder, algorithm): {seed: run}}
    for run in [run for folder in folders for run in find_runs(folder)]:
        algo, seed, place = run["algo"], run["seed"], run["folder"].resolve()
        for name in (f"{algo.replace(':', '-')}-seed{seed}", str(seed)):
            place = place.parent if place.name == name else place
        other = found.setdefault((place, algo), {}).setdefault(seed, run)["folder"]
        if other.resolve() != run["folder"].resolve():
            raise ValueError(f"{other} and {run['folder']} are both {algo} with seed {seed}")
    places = [place for place, _ in found]
    # A label has the algorithm, too, if an algorithm of the folder above has the folder's name.
    names = [place.parts + (algo,) * (places.count(place) > 1
                                      or (place.parent, place.name) in found)
             for place, algo in found]
    curves = {}
    for name, seeds in zip(names, found.values()):       # as many parts as make the label unique
        n = next(n for n in count(1) if sum(name[-n:] == other[-n:] for other in names) == 1)
        curves["/".join(name[-n:])] = dict(sorted(seeds.items()))
    ends = {label: {seed: run["rows"][-1]["round"] for seed, run in seeds.items()}
            for label, seeds in curves.items()}
    first = next(iter(ends.values()))
    if any(own != first for own in ends.values()) or len({*first.values()}) > 1:
        notes.append("seeds or lengths differ; {seed: last round}: "
                     + ", ".join(f"{label} {own}" for label, own in ends.items()))
    return curves


def check_keys(curves, keys, notes):
    """Raises ValueError if no run has a metric; notes the labels that lack one."""
    has = {label: {key for run in seeds.values() for row in run["rows"] for key in row
                   if row[key] is not None} for label, seeds in curves.items()}
    known = sorted(set.union(*has.values()) - {"round"})
    for key in keys:
        if key not in known:
            raise ValueError(f"no run has the metric {key!r}; there are {', '.join(known)}")
        notes += [f"{label} has no {key}" for label, own in has.items() if key not in own]


def x_values(run, axis):
    """The x value of each round: its number, or the MB or seconds until its end."""
    if axis == "round":
        return range(len(run["rows"]))
    if axis == "MB":
        return accumulate((row.get("bytes_up", 0) + row.get("bytes_down", 0)) / 2**20
                          for row in run["rows"])
    path = run["folder"] / "timing.jsonl"
    timings = read_rows(path)
    if len(timings) < len(run["rows"]):
        raise ValueError(f"{path} has fewer rounds than metrics.jsonl")
    return accumulate(row["round_seconds"] for row in timings)


def deviation(values):
    return statistics.stdev(values) if len(values) > 1 else None


def curve(seeds, key, axis):
    """[(x, mean, standard deviation or None, count)] of each round, over the seeds with a value."""
    found = {}                                           # {round: [(x, value) of each seed]}
    for run in seeds.values():
        for x, row in zip(x_values(run, axis), run["rows"]):
            if row.get(key) is not None:
                found.setdefault(row["round"], []).append((x, row[key]))
    columns = [[*zip(*pairs)] for _, pairs in sorted(found.items())]
    return [(statistics.mean(x), statistics.mean(values), deviation(values), len(values))
            for x, values in columns]


def draw(lines, axis, path, together):
    """Writes a picture: a panel for each metric, or one panel for all metrics of a single label.

    lines      {(label, metric): see `curve`}
    together   one panel for all
    """
    from matplotlib.figure import Figure
    labels, keys = ([*dict.fromkeys(names)] for names in zip(*lines))
    panels = [keys] if together or len(labels) == 1 else [[key] for key in keys]
    figure = Figure(figsize=(2 + 5 * len(panels), 4), dpi=150, layout="constrained")
    legend = {}
    for ax, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        for (label, key), points in lines.items():
            if key in panel:
                name, i = label, labels.index(label)
                if len(panel) > 1:
                    name = f"{label}, " * (len(labels) > 1) + key.replace("_", " ")
                    i = len(legend)
                x, mean, std, _ = zip(*points)
                [line] = ax.plot(x, mean, color=COLORS[i % 8], linestyle=DASHES[i % 4],
                                 marker="o" if len(x) == 1 else MARKERS[i % 12],
                                 markersize=4, markevery=(i % 4 / 40, 0.1))
                low, high = ([m + sign * (s or 0) for m, s in zip(mean, std)] for sign in (-1, 1))
                ax.fill_between(x, low, high, color=COLORS[i % 8], alpha=0.15, linewidth=0)
                legend.setdefault(name, line)
        ax.set(xlabel=AXES[axis], ylabel=panel[0].replace("_", " ") if len(panel) == 1 else "")
        ax.grid(color="0.9")
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
        ax.xaxis.get_major_locator().set_params(integer=axis == "round")
        if all(map(SHARES.search, panel)):
            ax.yaxis.set_major_formatter(lambda y, _: f"{100 * y:g}%")
    names = sorted(legend, key=lambda name: -legend[name].get_ydata()[-1])    # by the last values
    counts = sorted({point[-1] for points in lines.values() for point in points})
    title = f"mean ± std, {'-'.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} seeds"
    figure.legend([legend[name] for name in names], names, loc="outside right upper",
                  frameon=False, handlelength=4, title=title if counts != [1] else None)
    figure.savefig(path)


def texts(values):
    """name=value of each: lists with commas, a data set without the path of its file."""
    return [f"{name}=" + (",".join(map(str, x)) if isinstance(x, list) else
                          Path(x).name if name in ("dataset", "public") and x else str(x))
            for name, x in values.items()]


def print_settings(curves):
    """Prints the environment, the settings that all runs share, and each label's others."""
    runs = [run for seeds in curves.values() for run in seeds.values()]
    print("environment:", "; ".join({" ".join(texts(run["environment"])): None for run in runs}),
          f"python={platform.python_version()} machine={platform.machine()}")
    shared = [x for x in texts(runs[0]["flags"]) if all(x in texts(run["flags"]) for run in runs)]
    print("settings:", *shared)
    for label, seeds in curves.items():                  # a name twice: seeds have different values
        own = dict.fromkeys(x for run in seeds.values() for x in texts(run["flags"]))
        if len(own) > len(shared):
            print(f"{label}:", *(x for x in own if x not in shared))


def print_values(measure, key, curves, base):
    """Prints a metric's final or best value for each label, and the differences from a reference.

    base   labels: the first that has the metric is the reference. If none has it and it is an
           accuracy, the reference is `accuracy` of the first label
    """
    scale, form = (100, ".2f") if SHARES.search(key) else (1, ".6g")

    def values_of(label, key):
        found = {seed: [row[key] for row in run["rows"] if row.get(key) is not None]
                 for seed, run in curves[label].items()}
        return {seed: scale * (own[-1] if measure == "final" else max(own))
                for seed, own in found.items() if own}

    def mean_std(values, sign=""):
        std = f" +- {deviation(values):{form}}" if len(values) > 1 else ""
        return f"{statistics.mean(values):{sign}{form}}{std}"

    pairs = [(label, key) for label in base]
    pairs += [(label, "accuracy") for label in base[:1] if key.endswith("accuracy")]
    reference = next((pair for pair in pairs if values_of(*pair)), ())
    base_values = values_of(*reference) if reference else {}
    seeds = sorted({seed for own in curves.values() for seed in own})
    rows = [[f"{measure} {key}" + ", %" * (scale == 100), "mean +- std",
             " ".join(("minus", *reference)) if reference else "", *(f"seed {n}" for n in seeds)]]
    for label in curves:
        values, compared = values_of(label, key), "reference" * ((label, key) == reference)
        differences = [x - base_values[seed] for seed, x in values.items() if seed in base_values]
        if differences and not compared:
            mean = statistics.mean(differences)
            agree = sum(x * mean > 0 or x == mean == 0 for x in differences)
            compared = f"{mean_std(differences, '+')}, {agree} of {len(differences)}"
        if values:
            each = [f"{values[seed]:{form}}" if seed in values else "-" for seed in seeds]
            rows.append([label, mean_std([*values.values()]), compared, *each])
    widths = [max(map(len, column)) for column in zip(*rows)]
    print()
    for first, *others in rows:
        cells = [x.rjust(width) for x, width in zip(others, widths[1:])]
        print(first.ljust(widths[0]), *cells, sep="  ")


def main(argv):
    parser = argparse.ArgumentParser(prog="plot.py", description=__doc__.splitlines()[0])
    parser.add_argument("folders", metavar="RUN", nargs="+", type=Path,
                        help="a folder that --out of fedkd_minimal.py made, or a folder above it")
    parser.add_argument("--key", default="accuracy", help="metrics, separated by commas")
    parser.add_argument("--x", choices=AXES, default="round", help="x axis of --out and --csv")
    parser.add_argument("--out", type=Path, help="a picture to write, .png or .svg")
    parser.add_argument("--together", action="store_true", help="draw all metrics in one panel")
    parser.add_argument("--csv", type=Path, help="a file to write, with the points of the curves")
    parser.add_argument("--base", help="labels; the first that has a metric is its reference "
                                       "(default: the first label)")
    parser.error = lambda message: parser.exit(2, f"plot.py: error: {message}\n")    # one line
    args, notes = parser.parse_args(argv), []
    keys = [*dict.fromkeys(args.key.split(","))]
    try:
        if args.out and args.out.suffix not in (".png", ".svg"):
            raise ValueError(f"--out {args.out}: the name must end in .png or .svg")
        curves = read_runs(args.folders, notes)
        check_keys(curves, keys, notes)
        base = args.base.split(",") if args.base else [*curves][:len(curves) > 1]
        if not {*base} <= {*curves}:
            raise ValueError(f"--base {args.base}: the labels are {', '.join(curves)}")
        lines = {(label, key): points for key in keys for label, seeds in curves.items()
                 if (points := curve(seeds, key, args.x))}
        if args.csv:
            with open(args.csv, "w", newline="") as file:
                rows = csv.writer(file)
                rows.writerow(["label", "key", args.x, "mean", "std", "seeds"])
                rows.writerows([*names, *point] for names, points in lines.items()
                               for point in points)
        if args.out:
            draw(lines, args.x, args.out, args.together)
    except ImportError as error:
        parser.error(f"{error}: pip install matplotlib, or write the numbers with --csv FILE")
    except (ValueError, OSError) as error:
        parser.error(error)
    if not args.csv and not args.out:
        print_settings(curves)
        if base:
            print("\nminus ...: differences, paired by seed: mean +- std, and how many of the "
                  "seeds have the sign of the mean")
        for measure, key in product(("final", "best"), keys):
            if measure == "final" or "accuracy" in key:  # of other metrics no end is the best
                print_values(measure, key, curves, base)
    for note in notes:
        print("note:", note, file=sys.stderr if args.csv or args.out else sys.stdout)


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")    # names of folders on an ASCII terminal
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)    # | head ends it without a traceback
    main(sys.argv[1:])
