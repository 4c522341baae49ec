"""Tables and curves of kept runs: means over seeds and differences, with 95% intervals.

    python -m experiment.plot runs/a                           final and best accuracy of each label
    python -m experiment.plot runs/a --base fedavg,fedprox     minus those of both, by seed
    python -m experiment.plot runs/a --key clients,server      of the clients and of the server
    python -m experiment.plot runs/a --out table.md            the tables as Markdown
    python -m experiment.plot runs/a --out curves.png --x MB   a picture (needs matplotlib)
    python -m experiment.plot runs/a --out curves.csv          all metrics; settings in curves.json

A RUN is a folder that --out of fedkd_minimal.py made, a folder above it, or such a .csv. The runs
DIR/ALGO-seedN have the label ALGO. Where several folders DIR hold runs, it is DIR/ALGO, or DIR if
that holds no other. The first label is the run that began first, in the first RUN.

Differences are taken only after the same rounds, on the same data, of accuracies on the same
images. Else the table has "-", and a line says why.
"""
import argparse
import signal
import sys
from math import inf
from pathlib import Path

from experiment.common import BadInput, text_of
from experiment.runs import is_accuracy, read_runs, write_csv
from experiment.picture import AXES, draw
from experiment.tables import quantities, tables_text


def main(argv=None):
    parser = argparse.ArgumentParser(prog="plot", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="folders and files")
    parser.add_argument("--key", default="accuracy", help="metrics, separated by commas; clients: "
                        "the clients' mean accuracy, server: the server's on the same images")
    parser.add_argument("--labels", help="which, separated by commas (default: all)")
    parser.add_argument("--base", help="labels to subtract, with commas (default: the first)")
    parser.add_argument("--rounds", type=int, default=inf, help="leave out the rounds after this")
    parser.add_argument("--last", type=int, default=1, help="also average the last LAST rounds")
    parser.add_argument("--until", type=float, metavar="ACCURACY", help="also the MB, up and down, "
                        "until the accuracy of --key is this, of the seeds that reach it (ComU in "
                        "FedGEMS, Table 4)")
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
    """({label: runs}, the labels to subtract, the keys) of a command, if they go together."""
    if args.rounds < 0:
        raise BadInput(f"--rounds {args.rounds}: the first round is 0")
    if args.until is not None and not 0 < args.until <= 1:
        raise BadInput(f"--until {args.until:g}: an accuracy is between 0 and 1")
    by_label, keys = read_runs(args.runs, args.rounds), args.key.split(",")
    if args.labels:
        by_label = {label: by_label[label] for label in labels_of("labels", args.labels, by_label)}
    bases = [*by_label][:1] if len(by_label) > 1 else []     # a label alone has no difference
    if args.base:
        bases = labels_of("base", args.base, by_label)
    runs = [run for runs in by_label.values() for run in runs]
    known = sorted({key for run in runs for row in run.rows for key in row})
    for key in keys:
        if key not in ("clients", "server", *known):
            raise BadInput(f"no run has {key}, but clients, server, {', '.join(known)}")
    for run in runs:
        if not 1 <= args.last <= max(1, run.last_round):
            raise BadInput(f"--last {args.last}: {run.label} has {run.last_round} rounds")
    return by_label, bases, keys


def labels_of(flag, text, by_label):
    """The labels in a flag's text, separated by commas."""
    labels = text.split(",")
    for label in labels:
        if label not in by_label:
            raise BadInput(f"--{flag} {label}: the labels are {', '.join(by_label)}")
    return labels


def write(args, by_label, bases, keys):
    """Prints the tables, or writes a file of the kind that its name ends in."""
    suffix = args.out.suffix if args.out else ".txt"
    if suffix == ".csv":
        write_csv(by_label, args.out)
    elif suffix in (".png", ".svg", ".pdf"):
        named = [(f"{runs[0].label}: {runs[0].score(key)[0]} (n = {len(runs)})", runs, key)
                 for key in keys for runs in by_label.values()]
        ylabel = "accuracy" if all(map(is_accuracy, keys)) else ", ".join(keys)
        draw(named, args.out, args.x, args.last, ylabel)
    elif args.out and suffix not in (".md", ".tex"):
        raise BadInput(f"--out {args.out}: a name ends in .png, .svg, .pdf, .md, .tex, .csv")
    else:
        shown = quantities(by_label, keys, args.last, args.until)
        text = tables_text(by_label, shown, bases, suffix)
        if args.out:
            args.out.write_text(text)
        else:
            print(text, settings_text(by_label), sep="\n")


def settings_text(by_label):
    """Lines: the settings that all runs share, the data's fingerprints, each label's others."""
    texts = {label: dict.fromkeys(text for run in runs for text in settings_of(run))
             for label, runs in by_label.items()}      # where seeds differ, a setting stands twice
    first, *others = texts.values()
    shared = [text for text in first if all(text in own for own in others)]
    lines = [" ".join(["settings:", *shared])]
    lines += dict.fromkeys(f"{name}: {x}" for runs in by_label.values() for run in runs
                           for name, x in run.head["data"].items()
                           if x != run.head["settings"].get(name))
    for label, own in texts.items():
        if rest := [text for text in own if text not in shared]:
            lines.append(" ".join([f"{label}:", *rest]))
    return "\n".join(lines)


def settings_of(run):
    """["algo=fedavg", "lr=0.1", ...]"""
    settings = {"algo": run.head["algo"], **run.head["settings"], **run.head["environment"]}
    return [f"{name}={text_of(x)}" for name, x in settings.items()]


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")             # "?" for what the terminal does not have
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)    # | head ends it without an error
    main()
