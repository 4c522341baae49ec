"""Tables and curves of kept runs: means over seeds and differences, with 95% intervals.

    python -m experiment.plot runs/a                           last and best accuracy of each label
    python -m experiment.plot runs/a --base fedavg,fedprox     minus those of both, by seed
    python -m experiment.plot runs/a --labels fedavg,feddf     these labels alone, in this order
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
import re
import signal
import sys
from math import inf
from pathlib import Path
from statistics import mean

from experiment.curves import (best, by_round, final, half_width, images_of, is_accuracy, is_share,
                               mean_of_last, metric_of, read_runs, refuse_different, values_of,
                               whose, write_csv)

CAPTION = "minus ...: the mean difference, paired by seed; +- half of its 95% interval"
AXES = {"round": "round", "MB": "MB up and down, summed"}
COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#999999")
STYLES = ("-", "--", ":", "-.")


def curve(runs, key, axis, last=1):
    """[(x, mean, half width or None)] of each round in which all runs have the metric.

    last    each point is the mean of so many rounds up to it, at first of fewer
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
        color, style = COLORS[i % len(COLORS)], STYLES[i // len(COLORS) % len(STYLES)]
        name = label if same else f"{label}: {owner}"
        name += f" (n = {len(curves[label])})" * (len(counts) > 1)
        ax.plot(x, middle, style, color=color, label=name)
        ax.fill_between(x, middle - width, middle + width, color=color, alpha=0.15, linewidth=0)
    described = ["accuracy"] * all(map(is_accuracy, keys)) + owners[:1] * same
    seeds = f"{counts[0]} seeds" if len(counts) == 1 else "n seeds"
    title = "one seed" if counts == [1] else f"mean of {seeds} and its 95% interval"
    ax.set(xlabel=AXES[axis], ylabel=" of ".join(described),
           title=title + f"; each point: mean of up to {last} rounds" * (last > 1))
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
            cells.append("reference" if is_base else
                         interval_text(points, "+" + form, len(curves[label])))
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
    parser.add_argument("--labels", help="which, separated by commas (default: all)")
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
        labels = args.labels.split(",") if args.labels else [*curves]
        for label in {*labels} - {*curves}:
            raise ValueError(f"--labels {label}: the labels are {', '.join(curves)}")
        curves = {label: curves[label] for label in labels}
        bases = args.base.split(",") if args.base else labels[:1]
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
