"""Tables and curves of kept runs: means over seeds and differences, with 95% intervals.

    python -m experiment.plot runs/a                           last and best accuracy of each label
    python -m experiment.plot runs/a --last 10                 the mean of the last 10 rounds, too
    python -m experiment.plot runs/a --base fedavg,fedprox     differences from both, by seed
    python -m experiment.plot runs/a --rounds 30               after 30 rounds of longer runs
    python -m experiment.plot runs/a --key ComU@0.3            MB until the clients' accuracy is 0.3
    python -m experiment.plot runs/a --out curves.png          accuracy by round (needs matplotlib)
    python -m experiment.plot runs/a --out curves.csv.gz       each seed's, a file that is a RUN too
    python -m experiment.plot runs/a runs/b --key server_accuracy,client_accuracy --x MB --out b.svg

A RUN is a folder that --out of fedkd_minimal.py made, or a folder above it. The runs of one
algorithm in a folder, FOLDER/ALGO-seedN, FOLDER/SEED or FOLDER/SEED/ALGO-seedN, have one label:
FOLDER, or FOLDER/ALGO if it has several algorithms, without the folders that all labels share.
"""
import argparse
import csv
import gzip
import io
import json
import os
import re
import signal
import sys
from itertools import accumulate
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

AXES = {"round": "round", "MB": "MB up and down, summed"}
SHARES = ("disagreement", "pool", "nobody_right",      # of 1, as accuracies are
          "self_training", "self_distillation", "ensemble_distillation")
COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#999999")
# Student's t: the 97.5% quantiles of 1 to 29 degrees of freedom. For more the last is a bound.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
     2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
     2.052, 2.048, 2.045)


def half_width(values):
    """Half the width of the 95% confidence interval of the values' mean; None of one value."""
    n = len(values)
    return T[min(n - 1, len(T)) - 1] * stdev(values) / sqrt(n) if n > 1 else None


def scores_of(config, algo):
    """{accuracy metric: whose it is, and on which half of the test set}; `accuracy` is the first.

    config.json of older runs does not say it; for them the registry does.
    """
    if "scores" in config:
        return config["scores"][algo]
    from algorithms import ALGORITHMS  # torch takes seconds to import
    algorithm = ALGORITHMS.get(algo.partition(":")[0])
    if algorithm is None:                                # a reader's own
        return {"accuracy": "accuracy"}
    if config["flags"]["public"] != "half":
        return algorithm.scores
    half = {"server_accuracy": "public half"} if algorithm.server == "images" else {}
    return {key: f"{whose}, {half.get(key, 'private half')}"
            for key, whose in algorithm.scores.items()}


def read_run(folder):
    """{algo, seed, scores, settings, environment, rows: the metrics by round} of a run.

    Raises ValueError if a file of the run is missing or damaged.
    """
    try:
        config = json.loads((folder / "config.json").read_text())
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        [algo], [seed] = config["algo"], config["seeds"]
        settings = config["flags"] | config["networks"][algo] | config["settings"][algo]
        for name in {"dataset", "public", "data_root"} & settings.keys():
            if settings[name]:                           # without the folders of this machine
                settings[name] = Path(settings[name]).name
        sent = accumulate((row.get("bytes_up", 0) + row.get("bytes_down", 0)) / 2**20
                          for row in rows)
        return {"algo": algo, "seed": seed, "scores": scores_of(config, algo),
                "settings": settings, "environment": config["environment"],
                "rows": [{**row, "MB": megabytes} for row, megabytes in zip(rows, sent)]}
    except (OSError, LookupError, ValueError) as error:
        raise ValueError(f"{folder} has a damaged run ({error}); "
                         f"fedkd_minimal.py --resume {folder} may repair it") from None


def read_folders(folders):
    """{label: {seed: run}} of the runs below folders."""
    places = {}                                          # a run that is named twice is read once
    for folder in folders:
        found = {path.parent.resolve(): None for path in sorted(folder.rglob("metrics.jsonl"))
                 if path.stat().st_size}
        if not found:
            raise ValueError(f"{folder} has no finished round of a run; "
                             "name a folder that fedkd_minimal.py --out made")
        places |= found
    groups = {}                                          # {(folder, algorithm): {seed: run}}
    for place in places:
        run = read_run(place)
        algo, seed = run["algo"], run["seed"]
        for name in (f"{algo.replace(':', '-')}-seed{seed}", str(seed)):
            place = place.parent if place.name == name else place
        seeds = groups.setdefault((place, algo), {})
        if seed in seeds:
            raise ValueError(f"{place} has two runs of {algo} with seed {seed}; "
                             "name folders separately")
        seeds[seed] = run
    places = [place for place, _ in groups]
    names = [place / algo if places.count(place) > 1 else place for place, algo in groups]
    above = os.path.commonpath([name.parent for name in names])
    return {str(name.relative_to(above)): dict(sorted(seeds.items()))
            for name, seeds in zip(names, groups.values())}


def read_csv(path):
    """{label: {seed: run}} of a file that `write_csv` made."""
    data = path.read_bytes()
    first, *lines = (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines()
    if not first.startswith("# ["):
        raise ValueError(f"{path} is no file that --out made here")
    curves = {}
    for label, run in json.loads(first.removeprefix("# ")):
        curves.setdefault(label, {})[run["seed"]] = run | {"rows": []}
    for row in csv.DictReader(lines):
        run = curves[row.pop("label")][int(row.pop("seed"))]
        run["rows"].append({key: json.loads(text) for key, text in row.items() if text})
    return curves


def write_csv(curves, path):
    """Writes every metric of each round; the first line is what else `read_csv` needs of a run."""
    runs = [(label, run) for label, seeds in curves.items() for run in seeds.values()]
    heads = [(label, {name: run[name] for name in run if name != "rows"}) for label, run in runs]
    keys = list(dict.fromkeys(key for _, run in runs for row in run["rows"] for key in row))
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["label", "seed", *keys])
    for label, run in runs:
        for row in run["rows"]:
            cells = [row.get(key) for key in keys]
            table.writerow([label, run["seed"],
                            *(f"{x:.6g}" if isinstance(x, float) else x for x in cells)])
    data = f"# {json.dumps(heads)}\n{text.getvalue()}".encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def read_runs(paths, rounds=None):
    """{label: {seed: run}}, see `read_run`, without the rounds after `rounds`.

    Raises ValueError if a folder has no run, or the runs of a label are not those of one method.
    """
    files = [path for path in paths if path.suffix in (".csv", ".gz")]
    folders = [path for path in paths if path not in files]
    curves = read_folders(folders) if folders else {}
    for file in files:
        found = read_csv(file)
        for label in curves.keys() & found.keys():
            raise ValueError(f"{file} has the label {label}, and another RUN has it, too")
        curves |= found
    for label, seeds in curves.items():
        first = None
        for seed, run in seeds.items():
            run["rows"] = [row for row in run["rows"] if rounds is None or row["round"] <= rounds]
            found = run["settings"] | {"rounds": last_round(run)}
            first = first or found
            for name, value in found.items():
                if value != first.get(name):
                    raise ValueError(f"{label}: not all seeds have the same {name} "
                                     f"({first.get(name)}, but {value} with seed {seed}); name "
                                     "folders separately, or compare after the same --rounds")
    return curves


def last_round(run):
    return run["rows"][-1]["round"]


def whose(seeds, key):
    """Whose accuracy a metric is: its own name if that is not declared, "" if it is no accuracy."""
    scores = next(iter(seeds.values()))["scores"]
    if key == "accuracy":
        return next(iter(scores.values()))
    return scores.get(key, key) if "accuracy" in key else ""


def is_share(key):
    return "accuracy" in key or key in SHARES


def rows_with(run, key):
    """[(row, its metric)] of the rounds that have the metric.

    ComU@0.3 is FedGEMS's, Table 4: MB up and down until the clients' mean accuracy is 0.3.
    """
    if key.startswith("ComU@"):
        from experiment.report import bytes_until        # torch takes seconds to import
        total = bytes_until(run["rows"], float(key.removeprefix("ComU@")), run["scores"])
        return [] if total is None else [(run["rows"][-1], total / 2**20)]
    return [(row, row[key]) for row in run["rows"] if row.get(key) is not None]


def curve(seeds, key, axis, last=1):
    """[(x, mean, half width or None, number of seeds)] of each round with the metric.

    last    each point is the mean of so many rounds up to it
    """
    found = {}                                           # {round: [(x, value) of each seed]}
    for run in seeds.values():
        rows, values = zip(*rows_with(run, key))
        for end, row in enumerate(rows, start=1):
            value = mean(values[max(0, end - last):end])
            found.setdefault(row["round"], []).append((row[axis], value))
    points = []
    for _, of_round in sorted(found.items()):
        x, values = zip(*of_round)
        points.append((mean(x), mean(values), half_width(values), len(values)))
    return points


def draw(curves, keys, axis, last, path, names=None):
    """Writes a picture of each metric of each label: means and bands of their 95% intervals.

    names    of the lines; by default the labels, and whose accuracy it is if that differs
    """
    lines = [(label, key) for key in keys for label, seeds in curves.items()
             if any(rows_with(run, key) for run in seeds.values())]
    meanings = [whose(curves[label], key) or key.replace("_", " ") for label, key in lines]
    same = len({*meanings}) == 1
    names = names or [label if same else f"{label}: {meaning}"
                      for (label, _), meaning in zip(lines, meanings)]
    if len(names) != len(lines):
        raise ValueError(f"--names has {len(names)} names for these {len(lines)} lines: "
                         + ", ".join(f"{key} of {label}" for label, key in lines))
    import numpy as np
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    figure = Figure(figsize=(9, 4.5), dpi=150, layout="constrained")
    ax = figure.subplots()
    for i, (name, (label, key)) in enumerate(zip(names, lines)):
        x, middle, width, numbers = np.array(curve(curves[label], key, axis, last), float).T
        color, style = COLORS[i % len(COLORS)], "-" if i < len(COLORS) else "--"
        ax.plot(x, middle, style, color=color, label=name)
        ax.fill_between(x, middle - width, middle + width, color=color, alpha=0.15, linewidth=0)
    seeds = max(len(runs) for runs in curves.values())
    described = ["accuracy"] * all("accuracy" in key for key in keys) + meanings[:1] * same
    title = f"mean of {seeds} seeds and its 95% interval" if seeds > 1 else "one seed"
    ax.set(xlabel=AXES[axis], ylabel=" of ".join(described),
           title=title + f"; each point: mean of {last} rounds" * (last > 1))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(color="0.9")
    if all(is_share(key) for key in keys):
        ax.yaxis.set_major_formatter(PercentFormatter(1))
        low, high = ax.get_ylim()
        ax.set_ylim(max(low, 0), min(high, 1))           # two seeds' interval can be wider
    figure.legend(loc="outside right upper", frameon=False)
    with rc_context({"svg.hashsalt": "curves"}):         # the same curves, the same bytes
        figure.savefig(path, metadata={"Date": None})


def print_settings(curves):
    """Prints the settings that all runs share, then each label's others."""
    texts = {(label, seed): [f"{name}={','.join(map(str, x)) if isinstance(x, list) else x}"
                             for name, x in [("algo", run["algo"]), *run["settings"].items(),
                                             *run["environment"].items()]]
             for label, seeds in curves.items() for seed, run in seeds.items()}
    first, *others = texts.values()
    shared = [text for text in first if all(text in own for own in others)]
    print("settings:", *shared)
    for label, seeds in curves.items():                  # a name twice: seeds have different values
        own = dict.fromkeys(text for seed in seeds for text in texts[label, seed])
        print(f"{label}:", *(text for text in own if text not in shared))


def values_of(seeds, key, measure):
    """{seed: measure([the metric by round])}, in percent if it is a share."""
    scale = 100 if is_share(key) else 1
    return {seed: scale * measure([value for _, value in rows])
            for seed, run in seeds.items() if (rows := rows_with(run, key))}


def interval_text(values, form):
    """"MEAN +- HALF WIDTH"; the mean alone of one value, a dash of none."""
    width = half_width(values)
    text = f"{mean(values):{form}}" if values else "-"
    return text if width is None else f"{text} +- {width:{form.lstrip('+')}}"


def table_rows(curves, key, name, measure, bases):
    """The cells of a table, its header first: a label's values, their differences from each base.

    name, measure    "best", max
    From a base that does not have an accuracy its `accuracy` is subtracted.
    """
    form = ".2f" if is_share(key) else ".6g"
    found = {label: values_of(seeds, key, measure) for label, seeds in curves.items()}
    ends = {label: last_round(next(iter(seeds.values()))) for label, seeds in curves.items()}
    seeds = sorted({seed for values in found.values() for seed in values})
    owned = "accuracy" in key
    keys = {base: "accuracy" if owned and not found[base] else key for base in bases}
    owners = {base: whose(curves[base], keys[base]) for base in bases}
    rows = [[f"{name} {key}" + ", %" * is_share(key), *["accuracy of"] * owned, "mean +- 95%",
             *(f"minus {base} {keys[base]}" + f" ({owners[base]})" * owned for base in bases),
             "last round", *(f"seed {seed}" for seed in seeds)]]
    for label, values in found.items():
        owner, cells = whose(curves[label], key), []
        for base in bases:
            theirs = values_of(curves[base], keys[base], measure)
            text = interval_text([values[seed] - theirs[seed] for seed in values if seed in theirs],
                                 "+" + form)
            marks = "*" * (owner != owners[base]) + "#" * (ends[label] != ends[base])
            is_base = (label, key) == (base, keys[base])
            cells.append("reference" if is_base else text + marks * (text != "-"))
        rows.append([label, *[owner if values else "-"] * owned,
                     interval_text([*values.values()], form), *cells, str(ends[label]),
                     *(f"{values[seed]:{form}}" if seed in values else "-" for seed in seeds)])
    return rows


def print_table(rows):
    """Prints a table, its first column to the left; an accuracy's owner, too."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    left = {0} | {i for i, name in enumerate(rows[0]) if name == "accuracy of"}
    print()
    for row in rows:
        cells = [cell.ljust(width) if i in left else cell.rjust(width)
                 for i, (cell, width) in enumerate(zip(row, widths))]
        print(*cells, sep="  ")


def print_tables(curves, keys, bases, last):
    print_settings(curves)
    print("\nminus ...: the mean difference, paired by seed; +- half of its 95% interval\n"
          "*: not an accuracy of the same models on the same half of the test images\n"
          "#: the two end in different rounds")
    measures = {"final": lambda values: values[-1], "best": max}
    if last > 1:
        measures = {f"mean of {last} rounds": lambda values: mean(values[-last:])} | measures
    for name, measure in measures.items():
        for key in keys:
            if name == "final" or "accuracy" in key:     # best loss, bytes: no meaning
                print_table(table_rows(curves, key, name, measure, bases))


def main(argv):
    parser = argparse.ArgumentParser(prog="plot", description=__doc__.splitlines()[0])
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path,
                        help="a folder that --out of fedkd_minimal.py made, a folder above it, or "
                             "a .csv or .csv.gz file that --out made here")
    parser.add_argument("--key", default="accuracy", help="metrics, separated by commas")
    parser.add_argument("--base", help="labels, separated by commas, whose values the table "
                                       "subtracts (default: that of the first row)")
    parser.add_argument("--rounds", type=int, help="leave out the rounds after this one")
    parser.add_argument("--last", type=int, default=1, metavar="N",
                        help="the mean of the last N rounds, in tables and at each point of curves")
    parser.add_argument("--out", type=Path, help="a file to write instead of the table: .png, "
                        ".svg, or .csv or .csv.gz with every metric by label, seed and round")
    parser.add_argument("--x", choices=AXES, default="round", help="x axis of a picture")
    parser.add_argument("--names", nargs="+", metavar="NAME",
                        help="names of a picture's lines, in their order")
    parser.error = lambda message: parser.exit(2, f"plot: error: {message}\n")    # one line
    args = parser.parse_args(argv)
    keys = [*dict.fromkeys(args.key.split(","))]
    try:
        if args.last < 1 or args.rounds is not None and args.rounds < 0:
            raise ValueError("--last is 1 or more, --rounds 0 or more")
        curves = read_runs(args.runs, args.rounds)
        for label, runs in curves.items():
            if args.last > 1 and any(last_round(run) < args.last for run in runs.values()):
                raise ValueError(f"--last {args.last}: {label} has fewer rounds")
        known = {key for runs in curves.values() for run in runs.values() for row in run["rows"]
                 for key in row}
        for key in keys:
            if key not in known and not re.fullmatch(r"ComU@\d*\.?\d+", key):
                raise ValueError(f"no run has the metric {key!r}; there are "
                                 f"{', '.join(sorted(known))}, ComU@0.5")
        bases = args.base.split(",") if args.base else [next(iter(curves))]
        for base in {*bases} - {*curves}:
            raise ValueError(f"--base {base}: the labels are {', '.join(curves)}")
        if args.out and ".csv" in args.out.suffixes:
            write_csv(curves, args.out)
        elif args.out:
            draw(curves, keys, args.x, args.last, args.out, args.names)
        else:
            print_tables(curves, keys, bases, args.last)
    except ImportError as error:
        parser.error(f"{error}: pip install it, or write the numbers with --out FILE.csv")
    except (ValueError, OSError) as error:
        parser.error(error)


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")    # names of folders on an ASCII terminal
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)    # | head ends it without a traceback
    main(sys.argv[1:])
