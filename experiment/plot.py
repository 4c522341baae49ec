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

Of two labels, differences are taken only after the same rounds on the same data, of accuracies on
the same images (--public half: public or private half; clients' "own classes" or all). Else the
table has "-", and a line says why.
"""
import argparse
import signal
import sys
from math import inf
from pathlib import Path
from statistics import mean

from experiment.common import BadInput, table_text, text_of
from experiment.curves import (best, final, half_width, is_comu, mean_of_last, read_runs,
                               values_of, write_csv)
from experiment.picture import AXES, draw

CAPTION = "minus ...: the mean difference, paired by seed; +- half of its 95% interval"


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
    parser.error = lambda message: parser.exit(2, f"plot: error: {message}\n")    # one line
    args = parser.parse_args(argv)
    try:
        write(args, *chosen(args))
    except (BadInput, OSError) as error:
        parser.error(" ".join(str(error).split()))


def chosen(args):
    """(curves, the labels to subtract, the keys) of a command, if they go together."""
    if args.rounds < 0:
        raise BadInput(f"--rounds {args.rounds}: the first round is 0")
    curves, keys = read_runs(args.runs, args.rounds), args.key.split(",")
    labels = args.labels.split(",") if args.labels else [*curves]
    for label in {*labels} - {*curves}:
        raise BadInput(f"--labels {label}: the labels are {', '.join(curves)}")
    curves = {label: curves[label] for label in labels}
    bases = args.base.split(",") if args.base else labels[:1]
    for base in {*bases} - {*curves}:
        raise BadInput(f"--base {base}: the labels are {', '.join(curves)}")
    known = {key for runs in curves.values() for run in runs for row in run.rows for key in row}
    for key in keys:
        if key not in known | {"clients", "server"} and not is_comu(key):
            raise BadInput(f"no run has {key}, but clients, server, {', '.join(sorted(known))}, "
                           "ComU@0.5")
    for label, runs in curves.items():
        rounds = len(runs[0].rows) - 1
        if not 1 <= args.last <= max(1, rounds):
            raise BadInput(f"--last {args.last}: {label} has {rounds} rounds")
    return curves, bases, keys


def write(args, curves, bases, keys):
    """Prints the tables, or writes a file of the kind that its name ends in."""
    suffix = args.out.suffix if args.out else ""
    if suffix == ".csv":
        write_csv(curves, args.out)
    elif suffix in (".png", ".svg", ".pdf"):
        draw(curves, keys, args.x, args.last, args.out)
    elif suffix in (".md", ".tex"):
        args.out.write_text(tables_text(curves, keys, bases, args.last, suffix))
    elif args.out:
        raise BadInput(f"--out {args.out}: a name ends in .png, .svg, .pdf, .md, .tex, .csv")
    else:
        print(settings_text(curves), tables_text(curves, keys, bases, args.last), sep="\n\n",
              end="")


def settings_text(curves):
    """Lines: the settings that all runs share, each label's others."""
    texts = {}
    for label, runs in curves.items():
        found = [{"algo": run.head["algo"], **run.head["settings"], **run.head["environment"]}
                 for run in runs]
        # A name twice: the seeds have different values.
        texts[label] = [*dict.fromkeys(f"{name}={text_of(x)}" for settings in found
                                       for name, x in settings.items())]
    shared = [text for text in [*texts.values()][0] if all(text in own for own in texts.values())]
    lines = [" ".join(["settings:", *shared])]
    lines += dict.fromkeys(f"{name}: {x}" for runs in curves.values() for run in runs
                           for name, x in run.head["data"].items()   # the fingerprints of the data
                           if x != run.head["settings"].get(name))
    for label, own in texts.items():
        lines.append(" ".join([f"{label}:", *(text for text in own if text not in shared)]))
    return "\n".join(lines)


# ------------------------------------------------------------------------------------- the tables

def tables_text(curves, keys, bases, last, form=".txt"):
    """A table for each measure and key, and lines that say why a difference is not in them."""
    measures = [(f"mean of {last} rounds", mean_of_last(last)), ("final", final), ("best", best)]
    comment, reasons = "% " if form == ".tex" else "", {}    # {why: labels}
    parts = [f"{comment}{CAPTION}\n"]
    for name, measure in measures if last > 1 else measures[1:]:
        for key in keys:
            is_accuracy = any(runs[0].is_accuracy(key) for runs in curves.values())
            if name == "final" or is_accuracy:           # the best loss or bytes: no meaning
                columns, found = columns_of(curves, key, name, measure, bases)
                for why, label in found:
                    reasons.setdefault(why, []).append(label)
                sides = "l" * (1 + is_accuracy) + "r" * (len(columns) - 1 - is_accuracy)
                rows = [[*columns], *map(list, zip(*columns.values()))]
                parts.append(table_text(rows, sides, form))
    if reasons:
        parts.append("".join(f"{comment}no difference: {', '.join(dict.fromkeys(labels))}{why}\n"
                             for why, labels in reasons.items()))
    return "\n".join(parts)


def columns_of(curves, key, name, measure, bases):
    """A table with a row for each label, {heading: cells}: mean and interval, differences from each
    base, values by seed; and [(why, label)] of the differences that are not shown.

    name, measure    "best", best
    """
    first_runs = [runs[0] for runs in curves.values()]
    is_accuracy = any(run.is_accuracy(key) for run in first_runs)
    is_share = any(run.is_share(key) for run in first_runs)
    digits, unit = (".2f", ", %") if is_share else (".6g", "")
    values = {label: values_of(runs, key, measure) for label, runs in curves.items()}
    columns, reasons = {f"{name} {key}{unit}": [*curves]}, []
    if is_accuracy:
        columns["accuracy of"] = [run.whose(key) if values[run.label] else "-"
                                  for run in first_runs]
    columns["mean +- 95%"] = [interval_text([*own.values()], digits, len(curves[label]))
                              for label, own in values.items()]
    for base in bases:
        base_key = key
        if is_accuracy and not values[base]:
            # The base has no such accuracy: another one of it, on the images of the others'.
            images = next((run.images(key) for run in first_runs if values[run.label]), "")
            base_key = curves[base][0].accuracy_on(images)
        owner = f" ({curves[base][0].whose(base_key)})" if is_accuracy else ""
        base_values = values_of(curves[base], base_key, measure)
        cells, whys = differences(curves, key, values, base, base_key, base_values, digits)
        columns[f"minus {base} {base_key}{owner}"] = cells
        reasons += [(f" minus {base} {base_key}: {why}", label) for why, label in whys]
    columns["last round"] = [str(len(run.rows) - 1) for run in first_runs]
    for seed in sorted({run.seed for runs in curves.values() for run in runs}):
        columns[f"seed {seed}"] = [f"{own[seed]:{digits}}" if seed in own else "-"
                                   for own in values.values()]
    return columns, reasons


def differences(curves, key, values, base, base_key, base_values, digits):
    """The cells of all labels minus a base, paired by seed, and [(why, label)] where there is none.

    values         {label: {seed: value}} of the metric `key`
    base_values    {seed: value} of the base's metric `base_key`
    """
    cells, whys = [], []
    for label, own in values.items():
        points = [own[seed] - base_values[seed] for seed in own if seed in base_values]
        why = why_not(curves[label], key, curves[base], base_key)
        if why and own and base_values:
            points = []
            whys.append((why, label))
        cells.append("reference" if (label, key) == (base, base_key) else
                     interval_text(points, "+" + digits, len(curves[label])))
    return cells, whys


def interval_text(values, digits, num_seeds):
    """"MEAN +- HALF WIDTH"; the mean alone of one value, a dash of none; if they are fewer than
    the seeds, of how many."""
    if not values:
        return "-"
    width, text = half_width(values), f"{mean(values):{digits}}"
    if width is not None:
        text += f" +- {width:{digits.lstrip('+')}}"
    return text if len(values) >= num_seeds else f"{text} (n = {len(values)})"


def why_not(runs, key, base_runs, base_key):
    """Why the difference of two labels' metrics is not shown; "" if it is."""
    data, theirs = runs[0].head["data"], base_runs[0].head["data"]
    differ = [name for name in data if name in theirs and data[name] != theirs[name]]
    rounds, base_rounds = (len(one[0].rows) - 1 for one in (runs, base_runs))
    images, base_images = runs[0].images(key), base_runs[0].images(base_key)
    if differ:
        name = differ[0]
        return f"other data, {name} {text_of(data[name])}, not {text_of(theirs[name])}"
    if not {run.seed for run in runs} & {run.seed for run in base_runs}:
        return "they have no seed in common"
    if rounds != base_rounds:
        return (f"{rounds} rounds, not {base_rounds}; --rounds {min(rounds, base_rounds)} "
                "subtracts")
    if images != base_images:
        return f"accuracy on {images}, not {base_images}; --key server takes the same images"
    return ""


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")             # "?" for what the terminal does not have
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)    # | head ends it without an error
    main()
