"""Curves and tables of kept runs: mean and standard deviation over seeds.

    python -m experiment.plot runs/a                           final and best accuracy of each label
    python -m experiment.plot runs/a --base fedavg,fedprox     differences from both, by seed
    python -m experiment.plot runs/a --rounds 30               after 30 rounds of longer runs
    python -m experiment.plot runs/a --out curves.png          accuracy by round (needs matplotlib)
    python -m experiment.plot runs/a --out curves.csv          the same numbers, without matplotlib
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

from experiment import picture
from experiment.accuracies import whose_accuracy

AXES = {"round": "round", "MB": "MB up and down, summed"}
SHARES = ("disagreement", "pool", "nobody_right",      # of 1, as accuracies are
          "self_training", "self_distillation", "ensemble_distillation")


def read_run(folder):
    """{algo, seed, rows, half_is_public, settings} of the run in a folder.

    rows       the metrics by round
    settings   ["name=value"]

    Raises ValueError if a file of the run is missing or damaged.
    """
    try:
        config = json.loads((folder / "config.json").read_text())
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        [algo], [seed] = config["algo"], config["seeds"]
        settings = {"algo": algo, **config["flags"], **config["networks"][algo],
                    **config["settings"][algo], **config["environment"]}
        half_is_public = settings["public"] == "half"
        for name, value in settings.items():
            if isinstance(value, list):
                settings[name] = ",".join(map(str, value))
        for name in ("dataset", "public", "data_root"):  # without the folders of this machine
            settings[name] = settings[name] and Path(settings[name]).name
        return {"algo": algo, "seed": seed, "rows": [json.loads(line) for line in lines],
                "half_is_public": half_is_public,
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
        for path in paths:
            place = path.parent.resolve()
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


def whose(seeds, key):
    """Whose accuracy a metric is, and on which part of the test set; "" if nobody's."""
    run = next(iter(seeds.values()))
    found = whose_accuracy(run["rows"][-1], run["half_is_public"])
    if key == "accuracy" and key not in found:           # it repeats one of the others
        [key, *_] = [other for other in found
                     if all(row.get(other) == row["accuracy"] for row in run["rows"])]
    return found.get(key, "")


def deviation(values):
    return statistics.stdev(values) if len(values) > 1 else None


def running_mean(values, width):
    """[mean of each value and of those before it, `width` values at most]."""
    return [statistics.mean(values[max(0, end - width):end])
            for end in range(1, len(values) + 1)]


def curve(seeds, key, axis, smooth=1):
    """[(x, mean, standard deviation or None, number of seeds)] of each round with the metric.

    smooth    number of rounds of a seed's running mean
    """
    found = {}                                           # {round: [(x, value) of each seed]}
    for run in seeds.values():
        sent = accumulate((row.get("bytes_up", 0) + row.get("bytes_down", 0)) / 2**20
                          for row in run["rows"])
        rows = [(row["round"], megabytes, row[key]) for row, megabytes in zip(run["rows"], sent)
                if row.get(key) is not None]
        smoothed = running_mean([value for _, _, value in rows], smooth)
        for (t, megabytes, _), value in zip(rows, smoothed):
            x = megabytes if axis == "MB" else t
            found.setdefault(t, []).append((x, value))
    points = []
    for t in sorted(found):
        x, values = zip(*found[t])
        points.append((statistics.mean(x), statistics.mean(values), deviation(values),
                       len(values)))
    return points


def is_share(key):
    return "accuracy" in key or key in SHARES


def draw_curves(curves, lines, axis, path, names=None):
    """Writes a picture of {(label, metric): curve}, see `picture.draw`.

    names    of the lines; by default the labels and, where it is not the same for all, whose
             accuracy it is
    """
    meanings = {(label, key): whose(curves[label], key) or key.replace("_", " ")
                for label, key in lines}
    same_meaning = len({*meanings.values()}) == 1
    names = names or [label if same_meaning else f"{label}: {meanings[label, key]}"
                      for label, key in lines]
    if len(names) != len(lines):
        raise ValueError(f"--names has {len(names)} names for these {len(lines)} lines: "
                         + ", ".join(f"{key} of {label}" for label, key in lines))
    named = []
    for name, ((label, key), points) in zip(names, lines.items()):
        algo = next(iter(curves[label].values()))["algo"].split(":")[0]
        named.append(picture.Line(name, picture.color_of(key, label, algo), points))
    is_accuracy = all("accuracy" in key for _, key in lines)
    described = ["accuracy"] * is_accuracy + [meanings[next(iter(lines))]] * same_meaning
    picture.draw(named, path, xlabel=AXES[axis], ylabel=" of ".join(described),
                 percent=all(is_share(key) for _, key in lines))


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
    scale = 100 if is_share(key) else 1
    found = {}
    for seed, run in seeds.items():
        values = [row[key] for row in run["rows"] if row.get(key) is not None]
        if values:
            found[seed] = scale * (values[-1] if measure == "final" else max(values))
    return found


def mean_std(values, form):
    """"MEAN +- STD"; the mean alone of one value."""
    values = [*values]
    std = f" +- {deviation(values):{form.lstrip('+')}}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{form}}{std}"


def difference_text(values, reference, form):
    """How much {seed: value} is above the reference's, paired by seed: "+1.00 +- 0.50, 4 of 5"."""
    differences = [value - reference[seed] for seed, value in values.items() if seed in reference]
    if not differences:
        return "-"
    agree = sum(x * statistics.mean(differences) > 0 for x in differences)
    return f"{mean_std(differences, '+' + form)}, {agree} of {len(differences)}"


def table_rows(curves, key, measure, bases):
    """The cells of a table, its header first: a label's values, their differences from each base.

    A base that does not have an accuracy is compared by its `accuracy`.
    """
    form = ".2f" if is_share(key) else ".6g"
    references = {}                                      # {base: (metric, {seed: value})}
    for base in bases:
        has_key = values_of(curves[base], key, measure)
        base_key = key if has_key or not key.endswith("accuracy") else "accuracy"
        references[base] = base_key, values_of(curves[base], base_key, measure)
    has_owner = any(whose(runs, key) for runs in curves.values())
    seeds = sorted({seed for runs in curves.values() for seed in runs})
    rows = [[f"{measure} {key}" + ", %" * is_share(key), *["accuracy of"] * has_owner,
             "mean +- std", *(f"minus {base} {base_key}" for base, (base_key, _)
                              in references.items()),
             "last round", *(f"seed {seed}" for seed in seeds)]]
    for label, runs in curves.items():
        values = values_of(runs, key, measure)
        if not values:
            continue
        row = [label, *[whose(runs, key) or "-"] * has_owner, mean_std(values.values(), form)]
        for base, (base_key, reference) in references.items():
            is_base = (label, key) == (base, base_key)
            row.append("reference" if is_base else difference_text(values, reference, form))
        ends = sorted({run["rows"][-1]["round"] for run in runs.values()})
        row.append(",".join(map(str, ends)))
        row += [f"{values[seed]:{form}}" if seed in values else "-" for seed in seeds]
        rows.append(row)
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


def main(argv):
    parser = argparse.ArgumentParser(prog="plot", description=__doc__.splitlines()[0])
    parser.add_argument("folders", metavar="RUN", nargs="+", type=Path,
                        help="a folder that --out of fedkd_minimal.py made, or a folder above it")
    parser.add_argument("--key", default="accuracy", help="metrics, separated by commas")
    parser.add_argument("--base", help="labels, separated by commas, whose values the table "
                                       "subtracts (default: the first)")
    parser.add_argument("--rounds", type=int, help="leave out the rounds after this one")
    parser.add_argument("--out", type=Path, help="a file to write instead of the table: .png, "
                                                 ".svg, or .csv with the points of the curves")
    parser.add_argument("--x", choices=AXES, default="round", help="x axis of --out")
    parser.add_argument("--smooth", type=int, default=1, metavar="N",
                        help="curves of the mean of the last N rounds")
    parser.add_argument("--names", nargs="+", metavar="NAME",
                        help="what --out writes at the lines, in their order")
    parser.error = lambda message: parser.exit(2, f"plot: error: {message}\n")    # one line
    args = parser.parse_args(argv)
    keys = [*dict.fromkeys(args.key.split(","))]
    try:
        if args.smooth < 1:
            raise ValueError(f"--smooth {args.smooth}: a number of rounds, 1 or more")
        curves = read_runs(args.folders)
        if args.rounds is not None:
            for seeds in curves.values():
                for run in seeds.values():
                    run["rows"] = [row for row in run["rows"] if row["round"] <= args.rounds]
        known = {key for runs in curves.values() for run in runs.values() for row in run["rows"]
                 for key in row}
        for key in {*keys} - known:
            raise ValueError(f"no run has the metric {key!r}; there are "
                             f"{', '.join(sorted(known))}")
        bases = args.base.split(",") if args.base else [next(iter(curves))]
        for base in {*bases} - {*curves}:
            raise ValueError(f"--base {base}: the labels are {', '.join(curves)}")
        if args.out:
            lines = {(label, key): points for key in keys for label, seeds in curves.items()
                     if (points := curve(seeds, key, args.x, args.smooth))}
            if args.out.suffix == ".csv":
                write_csv(lines, args.x, args.out)
            else:
                draw_curves(curves, lines, args.x, args.out, args.names)
        else:
            print_settings(curves)
            print("\nminus ...: differences, paired by seed: mean +- std, and how many of the "
                  "seeds have the sign of the mean")
            for measure in ("final", "best"):
                for key in keys:
                    if measure == "final" or "accuracy" in key:    # best loss, bytes: no meaning
                        print_table(table_rows(curves, key, measure, bases))
    except ImportError as error:
        parser.error(f"{error}: pip install matplotlib, or write the numbers with --out FILE.csv")
    except (ValueError, OSError) as error:
        parser.error(error)


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")    # names of folders on an ASCII terminal
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)    # | head ends it without a traceback
    main(sys.argv[1:])
