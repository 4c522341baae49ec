"""Tables and curves of kept runs: means over seeds and differences, with 95% intervals.

    python -m experiment.plot runs/a                           last and best accuracy of each label
    python -m experiment.plot runs/a --base fedavg,fedprox     minus those of both, by seed
    python -m experiment.plot runs/a --rounds 30 --last 10     the mean of rounds 21 to 30, too
    python -m experiment.plot runs/a --key clients             the clients' mean accuracy
    python -m experiment.plot runs/a --key server              the server's, on the clients' images
    python -m experiment.plot runs/a --key ComU@0.3            MB until the clients' accuracy is 0.3
    python -m experiment.plot runs/a --out table.md            the tables as Markdown; LaTeX: .tex
    python -m experiment.plot runs/a --out curves.png --x MB   accuracy by MB (needs matplotlib);
                                                               also .pdf and .svg
    python -m experiment.plot runs/a --out curves.csv          all metrics; settings in curves.json;
                                                               the .csv is a RUN, too

A RUN is a folder that --out of fedkd_minimal.py made, or a folder above it. The runs
DIR/ALGO-seedN have the label ALGO. Where several folders DIR hold runs, it is DIR/ALGO, or DIR if
that holds no other. The first label is the run that began first, in the first RUN.

Of two labels, differences are taken only after the same rounds, of accuracies on the same images
(--public half: public or private half; clients' "own classes" or all). Else "-", and a line why.
"""
import argparse
import csv
import json
import re
import signal
import sys
from functools import cache
from math import atan, cos, inf, pi, sin, sqrt
from pathlib import Path
from statistics import mean, stdev

# `curves` are {label: [the run of each seed]}. A run is {HEAD..., "rows", "rounds"}: a row has the
# metrics of a round, the first of round 0, and MB, the payload up and down so far.
HEAD = ("algo", "scores", "settings", "data", "environment")
CAPTION = "minus ...: the mean difference, paired by seed; +- half of its 95% interval"
AXES = {"round": "round", "MB": "MB up and down, summed"}
SHARES = ("disagreement", "pool", "nobody_right",      # of 1, as accuracies are
          "self_training", "self_distillation", "ensemble_distillation")
COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#999999")


def t_probability(t, n):
    """Of |T| < t for Student's t of n degrees of freedom.

    A sum of powers of cos(angle): Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle, odd = atan(t / sqrt(n)), n % 2
    terms = [cos(angle) if odd else 1.0]
    for j in range(2 + odd, n, 2):
        terms.append(terms[-1] * cos(angle)**2 * (j - 1) / j)
    found = sin(angle) * sum(terms) * (n > 1)
    return 2 / pi * (angle + found) if odd else found


@cache
def t_quantile(n):
    """Student's t of n degrees of freedom: |T| is below it with probability 95%; by bisection."""
    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_probability(middle, n) < 0.95 else (low, middle)
    return low


def half_width(values):
    """Half the width of the 95% confidence interval of the values' mean; None of one value."""
    n = len(values)
    return t_quantile(n - 1) * stdev(values) / sqrt(n) if n > 1 else None


def read_run(path):
    """[(DIR, label, run)] of a metrics.jsonl in DIR/LABEL-seedN."""
    folder = path.parent.absolute()
    config = json.loads((folder / "config.json").read_text())
    rows, num_bytes = [json.loads(line) for line in path.read_text().splitlines()], 0
    for row in rows:
        num_bytes += row.get("bytes_up", 0) + row.get("bytes_down", 0)
        row["MB"] = num_bytes / 2**20
    # A data set is known by its fingerprint, not by the folders of this machine.
    data = {name: x for name, x in {**config["data"], **config["fingerprints"]}.items()
            if name != "data_root"}
    settings = config["data"] | config["training"] | config["networks"] | config["hyperparameters"]
    paths = ("dataset", "public", "data_root", "partition")
    settings |= {name: Path(settings[name]).name for name in paths if settings.get(name)}
    run = {name: config[name] for name in ("algo", "seed", "scores", "environment")}
    timing = folder / "timing.jsonl"                     # older ones do not tell when a round ended
    lines = timing.read_text().splitlines() if timing.exists() else []
    run["begun"] = json.loads(lines[0]).get("ended", 0) if lines else 0
    label = folder.name.removesuffix(f"-seed{run['seed']}")
    if label == run["algo"].replace(":", "-"):           # it was not renamed
        label = run["algo"]
    return [(folder.parent, label, run | {"settings": settings, "data": data, "rows": rows})]


def read_csv(path):
    """[(None, label, run)] of the two files of `write_csv`."""
    groups = json.loads(path.with_suffix(".json").read_text())
    runs = {(one["label"], seed): {"seed": seed, "rows": []} | {name: one[name] for name in HEAD}
            for one in groups for seed in one["seeds"]}
    for row in csv.DictReader(path.read_text().splitlines()):
        run = runs[row.pop("label"), int(row.pop("seed"))]
        run["rows"].append({key: json.loads(text) for key, text in row.items() if text})
    return [(None, label, run) for (label, _), run in runs.items()]


def write_csv(curves, path):
    """Writes every metric of each round, and what else `read_csv` needs beside it, as .json.

    path    ends in .csv
    """
    groups, rows = [], []
    for label, runs in curves.items():
        for run in runs:
            head = {"label": label, **{name: run[name] for name in HEAD}}
            if not groups or head != {name: groups[-1][name] for name in head}:
                groups.append(head | {"seeds": []})      # the seeds that differ in nothing else
            groups[-1]["seeds"].append(run["seed"])
            rows += [{"label": label, "seed": run["seed"]}
                     | {key: f"{x:.6g}" if isinstance(x, float) else x for key, x in row.items()}
                     for row in run["rows"]]
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, dict.fromkeys(key for row in rows for key in row),
                               lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    path.with_suffix(".json").write_text(json.dumps(groups, indent=1) + "\n")


def read_runs(paths, rounds=inf):
    """{label: [the run of each seed]} of folders and files, without the rounds after `rounds`.

    The labels of a folder are in the order in which their runs began: a label that joins is last.
    Raises ValueError if a folder has no run, a run is damaged, or the runs of a label are not those
    of one method with different seeds on the same data.
    """
    found = []                                           # [(DIR, label in it, run)]
    for path in paths:
        files = [path] if path.is_file() else sorted(path.rglob("metrics.jsonl"))
        files = [file for file in files if file.stat().st_size]
        if not files:
            raise ValueError(f"{path} has no run of fedkd_minimal.py --out with a finished round")
        inside = []
        for file in files:
            try:
                inside += read_csv(file) if file.suffix == ".csv" else read_run(file)
            except (OSError, LookupError, TypeError, ValueError) as error:
                raise ValueError(f"{file} is damaged, or --out did not make it ({error})") from None
        found += sorted(inside, key=lambda one: one[2].get("begun", 0))
    inside = {}                                          # {DIR: its labels}
    for folder, label, _ in found:
        inside.setdefault(folder, set()).add(label)
    curves = {}
    for folder, label, run in found:
        if folder and len(inside.keys() - {None}) > 1:
            alone = len(inside[folder]) == 1
            label = folder.name if alone else f"{folder.name}/{label}"
        run["rows"] = [row for row in run["rows"] if row["round"] <= rounds]
        run["rounds"] = len(run["rows"]) - 1
        curves.setdefault(label, []).append(run)
    for label, runs in curves.items():
        runs.sort(key=lambda run: run["seed"])
        seeds = [run["seed"] for run in runs]
        if len({*seeds}) < len(seeds):
            raise ValueError(f"{label} has two runs with one seed, {seeds}")
        refuse_different(label, [run["settings"] | run["data"] | {
            "algo": run["algo"], "rounds": run["rounds"]} for run in runs],
            "compare after the same --rounds, or name folders separately")
    return curves


def refuse_different(what, several, advice):
    """Raises ValueError if these {name: value} are not all the same."""
    for name in sorted({name for settings in several for name in settings}):
        values = {str(settings.get(name)) for settings in several}
        if len(values) > 1:
            raise ValueError(f"{what}: not all have the same {name}: {sorted(values)}; {advice}")


def is_accuracy(key):
    return "accuracy" in key or key in ("clients", "server")


def is_share(key):
    return is_accuracy(key) or key in SHARES


def metric_of(runs, key):
    """The name of a metric in the rows; of "clients", "server" and ComU@x the accuracy's."""
    scores = runs[0]["scores"]
    if key == "clients" or key.startswith("ComU@"):
        return clients_metric(scores)
    if key != "server":
        return key
    known = {name for run in runs for row in run["rows"] for name in row}
    names = [name for name in ("server_accuracy_private_test", "server_accuracy", *scores)
             if name in known and "own classes" not in scores.get(name, "")]
    return names[0] if names else "accuracy"


def whose(runs, key):
    """Whose accuracy a metric is; its own name if that is not declared, or it is no accuracy."""
    scores, key = runs[0]["scores"], metric_of(runs, key)
    return scores.get(next(iter(scores)) if key == "accuracy" else key, key)


def clients_metric(scores):
    """The name of the clients' mean accuracy at the end of a round; `accuracy` if there is none.

    It is the headline, unless that is the server's; then the first of the scores that is theirs.
    """
    if not next(iter(scores.values())).startswith("server"):
        return "accuracy"
    return next((name for name in scores if name.startswith("client_accuracy")), "accuracy")


def images_of(runs, key):
    """On which test images an accuracy is measured, in words: "private half, own classes", ...

    key    of an accuracy, or ComU@x
    """
    text, name = whose(runs, key), metric_of(runs, key)
    halves = any("half" in words for words in runs[0]["scores"].values())
    is_public = "public half" in text or name.endswith("public_test")
    which = "public" if is_public else "private" if halves else "all"
    is_own = "own classes" in text or name.endswith("_own")
    return f"{which} {'half' if halves else 'images'}{', own classes' * is_own}"


def by_round(run, key):
    """[the metric, or None] of each row.

    key    "clients": the clients' mean accuracy at the end of a round, whatever its name is;
           "server": the server's on the images on which clients are tested, the clients' where
           the server has no model. ComU@0.3 is FedGEMS's, Table 4: MB up and down until the
           clients' accuracy is 0.3 in six decimals, as `write_csv` keeps it; in the last row
    """
    name = metric_of([run], key)
    values = [row.get(name) for row in run["rows"]]
    if not key.startswith("ComU@"):
        return values
    reached = [row["MB"] for row, value in zip(run["rows"], values)
               if value is not None and round(value, 6) >= float(key.removeprefix("ComU@"))]
    return [None] * (len(values) - 1) + [*reached, None][:1]


def final(values):
    return values[-1]


def best(values):
    return max((x for x in values if x is not None), default=None)


def mean_of_last(number):
    """The measure: the mean of the last so many rounds, without those that have no value."""
    def measure(values):
        known = [x for x in values[-number:] if x is not None]
        return mean(known) if known else None
    return measure


def values_of(runs, key, measure):
    """{seed: measure([the metric of each round, or None])}, in percent if it is a share.

    A seed without a value is not in it.
    """
    scale = 100 if is_share(key) else 1
    values = {run["seed"]: measure(by_round(run, key)) for run in runs if run["rows"]}
    return {seed: scale * value for seed, value in values.items() if value is not None}


def curve(runs, key, axis, last=1):
    """[(x, mean, half width or None)] of each round in which all runs have the metric.

    last    each point is the mean of so many rounds up to it
    """
    points, of_runs = [], [by_round(run, key) for run in runs]
    for t in range(len(runs[0]["rows"])):
        values = [mean_of_last(last)(values[:t + 1]) for values in of_runs]
        if None not in values:
            points.append((mean(run["rows"][t][axis] for run in runs), mean(values),
                           half_width(values)))
    return points


def draw(curves, keys, axis, last, path):
    """Writes a picture of each metric of each label: means and bands of their 95% intervals."""
    import numpy as np
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    lines = [(label, key) for key in keys for label, runs in curves.items()
             if curve(runs, key, axis, last)]
    owners = [whose(curves[label], key) for label, key in lines]
    same = len({*owners}) == 1
    counts = sorted({len(curves[label]) for label, _ in lines})
    figure = Figure(figsize=(9, 4.5), dpi=150, layout="constrained")
    ax = figure.subplots()
    for i, ((label, key), owner) in enumerate(zip(lines, owners)):
        x, middle, width = np.array(curve(curves[label], key, axis, last), float).T
        color, style = COLORS[i % len(COLORS)], "-" if i < len(COLORS) else "--"
        name = label if same else f"{label}: {owner}"
        name += f" (n = {len(curves[label])})" * (len(counts) > 1)
        ax.plot(x, middle, style, color=color, label=name)
        ax.fill_between(x, middle - width, middle + width, color=color, alpha=0.15, linewidth=0)
    described = ["accuracy"] * all(map(is_accuracy, keys)) + owners[:1] * same
    seeds = f"{counts[0]} seeds" if len(counts) == 1 else "n seeds"
    title = "one seed" if counts == [1] else f"mean of {seeds} and its 95% interval"
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
        figure.savefig(path, metadata={"CreationDate" if path.suffix == ".pdf" else "Date": None})


def interval_text(values, form, num_seeds=0):
    """"MEAN +- HALF WIDTH"; the mean alone of one value, a dash of none; if they are fewer than
    the seeds, of how many."""
    text = f"{mean(values):{form}}" if values else "-"
    width = half_width(values)
    text += "" if width is None else f" +- {width:{form.lstrip('+')}}"
    return text + f" (n = {len(values)})" * (0 < len(values) < num_seeds)


def why_not(runs, key, others, other):
    """Why the difference of two labels' metrics is not shown; "" if it is."""
    rounds, images = runs[0]["rounds"], images_of(runs, key)
    if not {run["seed"] for run in runs} & {run["seed"] for run in others}:
        return "they have no seed in common"
    if rounds != others[0]["rounds"]:
        return (f"{rounds} rounds, not {others[0]['rounds']}; "
                f"--rounds {min(rounds, others[0]['rounds'])} or --any-data subtracts")
    if is_accuracy(metric_of(runs, key)) and images != images_of(others, other):
        return f"accuracy on {images}, not {images_of(others, other)}; --any-data subtracts"
    return ""


def table_of(curves, key, name, measure, bases, last=1, any_data=False):
    """A row for each label: mean and interval, differences from each base, values by seed.

    name, measure    "best", best
    last             of so many rounds `measure` takes the mean
    any_data         True: subtracts whatever `why_not` says
    returns          rows of cells, the first of headings; {from what no difference is shown, and
                     why: the labels}
    From a base that does not have an accuracy, one of its others is subtracted.
    """
    owned, form = is_accuracy(key), ".2f" if is_share(key) else ".6g"
    values = {label: values_of(runs, key, measure) for label, runs in curves.items()}
    columns = {f"{name} {key}" + ", %" * is_share(key): [*curves]}
    if owned:
        columns["accuracy of"] = [whose(curves[label], key) if own else "-"
                                  for label, own in values.items()]
    columns["mean +- 95%"] = [interval_text([*own.values()], form, len(curves[label]))
                              for label, own in values.items()]
    reasons = {}
    for base in bases:
        other = key if values[base] or not owned else stand_in(curves, base, key, values)
        theirs, owner = values_of(curves[base], other, measure), whose(curves[base], other)
        cells = []
        for label, own in values.items():
            points = [own[seed] - theirs[seed] for seed in own if seed in theirs]
            why = why_not(curves[label], key, curves[base], other) if own and theirs else ""
            if why and (not any_data or not points):
                points = []
                reasons.setdefault(f" minus {base} {other}: {why}", []).append(label)
            is_base = (label, key) == (base, other)
            cells.append("reference" if is_base else interval_text(points, "+" + form))
        columns[f"minus {base} {other}" + f" ({owner})" * owned] = cells
    columns["last round"] = [str(runs[0]["rounds"]) for runs in curves.values()]
    for seed in sorted({run["seed"] for runs in curves.values() for run in runs}):
        columns[f"seed {seed}"] = cells = []
        for label, own in values.items():
            cells.append(f"{own[seed]:{form}}" if seed in own else "-")
            if last > 1 and seed in own:
                [run] = [run for run in curves[label] if run["seed"] == seed]
                known = sum(x is not None for x in by_round(run, key)[-last:])
                cells[-1] += f" ({known} rounds)" * (known < last)
    return [[*columns], *zip(*columns.values())], reasons


def words_in(table):
    """How many columns of a table are words, on its left: the others are numbers."""
    return 1 + ("accuracy of" in table[0])


def as_text(table):
    """Aligned columns."""
    widths = [max(map(len, column)) for column in zip(*table)]
    sides = [str.ljust] * words_in(table) + [str.rjust] * len(widths)
    return "".join("  ".join(side(cell, width) for side, cell, width in zip(sides, row, widths))
                   + "\n" for row in table)


def as_markdown(table):
    sides = ["---"] * words_in(table) + ["---:"] * (len(table[0]) - words_in(table))
    return "".join("| " + " | ".join(cell.replace("|", r"\|").replace("+-", "±") for cell in row)
                   + " |\n" for row in [table[0], sides, *table[1:]])


def as_latex(table):
    marks = {mark: "\\" + mark for mark in "&%$#_{}"}
    marks |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}

    def cell(text):
        text = text.translate(str.maketrans(marks)).replace("+-", r"$\pm$")
        return re.sub(r"(?<!\S)-(?=\d)", "$-$", text)       # a minus sign, not a hyphen

    lines = [" & ".join(map(cell, row)) + r" \\" for row in table]
    sides = "l" * words_in(table) + "r" * (len(table[0]) - words_in(table))
    return "\n".join([rf"\begin{{tabular}}{{{sides}}}", r"\hline", lines[0], r"\hline", *lines[1:],
                      r"\hline", r"\end{tabular}", ""])


def stand_in(curves, base, key, values):
    """The accuracy of a base that does not have `key`, on the images of the first label that does;
    its `accuracy` if it has none on these."""
    images = next((images_of(curves[label], key) for label, own in values.items() if own), "")
    return next((name for name in ("accuracy", *curves[base][0]["scores"])
                 if images_of(curves[base], name) == images), "accuracy")


def settings_in(curves):
    """Lines: the settings that all runs share, each label's others."""
    texts = {label: {f"{name}={','.join(map(str, x)) if isinstance(x, list) else x}": None
                     for run in runs
                     for name, x in {"algo": run["algo"], **run["settings"],
                                     **run["environment"]}.items()}
             for label, runs in curves.items()}
    shared = [text for text in [*texts.values()][0] if all(text in own for own in texts.values())]
    lines = [" ".join(["settings:", *shared])]
    lines += dict.fromkeys(f"{name}: {x}" for runs in curves.values() for run in runs
                           for name, x in run["data"].items()        # the fingerprints of the data
                           if x != run["settings"].get(name))
    for label, own in texts.items():                     # a name twice: seeds have different values
        lines.append(" ".join([f"{label}:", *(text for text in own if text not in shared)]))
    return "\n".join(lines)


def tables_in(curves, keys, bases, last, any_data):
    """[tables], [lines that say why a difference is not in them]"""
    measures = [(f"mean of {last} rounds", mean_of_last(last), last),
                ("final", final, 1), ("best", best, 1)]
    tables, reasons = [], {}
    for name, measure, rounds in measures if last > 1 else measures[1:]:
        for key in keys:
            if name == "final" or is_accuracy(key):      # best loss, bytes: no meaning
                table, found = table_of(curves, key, name, measure, bases, rounds, any_data)
                tables.append(table)
                for why, labels in found.items():
                    reasons.setdefault(why, {}).update(dict.fromkeys(labels))
    return tables, [f"no difference: {', '.join(labels)}{why}" for why, labels in reasons.items()]


def main(argv=None):
    parser = argparse.ArgumentParser(prog="plot", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="folders and files")
    parser.add_argument("--key", default="accuracy", help="metrics, separated by commas")
    parser.add_argument("--base", help="labels to subtract, with commas (default: the first)")
    parser.add_argument("--rounds", type=int, default=inf, help="leave out the rounds after this")
    parser.add_argument("--last", type=int, default=1, help="also average the last LAST rounds")
    parser.add_argument("--out", type=Path, help="a picture: .png, .svg, .pdf; the "
                        "tables: .md, .tex; all metrics: .csv. Prints no tables")
    parser.add_argument("--x", choices=AXES, default="round", help="x axis of a picture")
    parser.add_argument("--any-data", action="store_true",
                        help="labels may differ in their images, clients and rounds")
    parser.error = lambda message: parser.exit(2, f"plot: error: {message}\n")    # one line
    args = parser.parse_args(argv)
    keys = args.key.split(",")
    try:
        curves = read_runs(args.runs, args.rounds)
        bases = args.base.split(",") if args.base else [*curves][:1]
        known = {key for runs in curves.values() for run in runs for row in run["rows"]
                 for key in row}
        for key in keys:
            if key not in known | {"clients", "server"} and not key.startswith("ComU@"):
                raise ValueError(f"no run has {key}, but clients, server, "
                                 f"{', '.join(sorted(known))}, ComU@0.5")
        for base in {*bases} - {*curves}:
            raise ValueError(f"--base {base}: the labels are {', '.join(curves)}")
        for label, runs in curves.items():
            if not 1 <= args.last <= max(1, runs[0]["rounds"]):
                raise ValueError(f"--last {args.last}: {label} has {runs[0]['rounds']} rounds")
        if not args.any_data:
            every = [run["data"] for runs in curves.values() for run in runs if run["data"]]
            refuse_different(", ".join(curves), every, "--any-data compares them")
        forms = {".md": as_markdown, ".tex": as_latex}
        if args.out and args.out.suffix not in (".csv", *forms, ".png", ".svg", ".pdf"):
            raise ValueError(f"--out {args.out}: a name ends in .png, .svg, .pdf, .md, .tex, .csv")
        if args.out and args.out.suffix == ".csv":
            write_csv(curves, args.out)
            return
        if args.out and args.out.suffix not in forms:
            draw(curves, keys, args.x, args.last, args.out)
            return
        form, comment = as_text, ""
        if args.out:
            form, comment = forms[args.out.suffix], "% " * (args.out.suffix == ".tex")
        tables, notes = tables_in(curves, keys, bases, args.last, args.any_data)
        parts = [f"{comment}{CAPTION}\n", *map(form, tables)]
        if notes:
            parts.append("".join(f"{comment}{note}\n" for note in notes))
        text = "\n".join(parts)
        if args.out:
            args.out.write_text(text)
        else:
            print(settings_in(curves), "", text, sep="\n", end="")
    except (ImportError, OSError, ValueError) as error:
        parser.error(error)


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")             # "?" for what the terminal does not have
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)    # | head ends it without an error
    main()
