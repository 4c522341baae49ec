"""All algorithms in one picture: test accuracy after the last round by what a client has sent.

    python fedkd_minimal.py --algo ALGO --distill --seeds 0,1,2,3,4 --out runs/overview
    python benchmarks/overview.py runs/overview          writes docs/pictures/overview_results.svg
                                                         and its numbers, docs/results/overview.csv

ALGO is what `python benchmarks/overview.py --command` prints, in one line. In one command all
algorithms have the same images: 20 clients hold half of the training images, unevenly (Dirichlet,
alpha 0.5), the other half is public, with labels for those that use them; all accuracies are on the
private half of the test images. Settings are those of each file, so rounds and passes differ
(--distill is FedBE's). Reads kept runs, runs nothing; needs matplotlib.
"""
import csv
import json
import sys
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from experiment.measures import half_width  # noqa: E402

COLORS = {"weights": "#0072B2", "predictions on public images": "#D55E00",
          "means of each class": "#009E73", "a shared model": "#CC79A7", "features": "#E69F00"}
PRIVATE, END = "server_accuracy_private_test", "client_accuracy_distilled"
ALGORITHMS = {       # label of the runs: what its clients send, {whose accuracy: metric}
    "fedavg": ("weights", {"server": "accuracy"}),
    "fedprox": ("weights", {"server": "accuracy"}),
    "scaffold": ("weights", {"server": "accuracy"}),
    "fedntd": ("weights", {"server": "accuracy"}),
    "feddf": ("weights", {"server": "accuracy"}),
    "fedbe": ("weights", {"server": "accuracy"}),
    "fedsdd:K=4:R=2": ("weights", {"server": "accuracy"}),
    "fedgen": ("weights", {"server": "accuracy"}),
    "fedmd": ("predictions on public images", {"clients": "accuracy"}),
    "dsfl": ("predictions on public images", {"clients": "accuracy", "server": PRIVATE}),
    "cronus": ("predictions on public images", {"clients": "accuracy"}),
    "fedgem": ("predictions on public images", {"clients": END, "server": PRIVATE}),
    "fedgems": ("predictions on public images", {"clients": END, "server": PRIVATE}),
    "fd": ("means of each class", {"clients": "accuracy"}),
    "fedproto": ("means of each class", {"clients": "client_accuracy"}),
    "fml": ("a shared model", {"clients": "client_accuracy"}),
    "fedkd": ("a shared model", {"clients": "client_accuracy"}),
    "fedgkt": ("features", {"clients": "accuracy"}),
    "split-learning": ("features", {"clients": "accuracy"})}
LINES = {            # label of the runs: {text: metric}, levels that need no exchange
    "standalone": {"clients alone": "client_accuracy",
                   "the server's network on the public labels alone": PRIVATE},
    "fedgem:epsilon=1": {"clients with the public labels alone": END}}
NAME_ON_THE_LEFT = {"fedavg", "fedprox", "fedntd", "feddf", "fedbe", "fedsdd", "fedgen", "fedgems",
                    "fedkd"}
MARKS = {"server": ("o", "server's model"), "clients": ("s", "mean over clients")}


def of_label(folder, label):
    """[(rows, number of clients, seconds)] of the runs of all seeds of a label."""
    runs = []
    for path in sorted(Path(folder).glob(f"{label.replace(':', '-')}-seed*/metrics.jsonl")):
        rows, timing = ([json.loads(line) for line in file.read_text().splitlines()]
                        for file in (path, path.with_name("timing.jsonl")))
        config = json.loads(path.with_name("config.json").read_text())
        if len(rows) <= config["settings"]["rounds"]:
            raise SystemExit(f"{path.parent}: not finished")
        runs.append((rows, config["data"]["clients"], sum(x["round_seconds"] for x in timing)))
    if not runs:
        raise SystemExit(f"{folder}: no run of {label}")
    return runs


def last(runs, metric):
    """(mean, half of the 95% interval or 0) over the seeds, of the last round."""
    values = [100 * rows[-1][metric] for rows, *_ in runs]
    return mean(values), half_width(values) or 0


def megabytes(runs):
    """What a client has sent by the last round, all of it, in MB of 2^20 bytes: mean."""
    return mean(sum(number for row in rows for name, number in row.items()
                    if name.startswith("bytes_up")) / clients / 2**20 for rows, clients, _ in runs)


def write(folder, path):
    """A table of the picture's numbers: a line for each accuracy, with the value of each seed."""
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["label", "accuracy of", "metric", "MB sent by a client", "last round",
                        "of each seed, %", "mean", "half of the 95% interval"])
        found = {label: metrics for label, (_, metrics) in ALGORITHMS.items()} | LINES
        for label, metrics in found.items():
            runs = of_label(folder, label)
            for whose, metric in metrics.items():
                values = " ".join(f"{100 * rows[-1][metric]:.2f}" for rows, *_ in runs)
                average, half = last(runs, metric)
                table.writerow([label, whose, metric, f"{megabytes(runs):.4f}",
                                len(runs[0][0]) - 1, values, f"{average:.2f}", f"{half:.2f}"])


def spread(wanted, gap):
    """Heights of labels in the order of `wanted`, at least `gap` apart, near where they belong."""
    groups = []                            # [sum of the wanted heights, number] of touching labels
    for y in sorted(wanted):
        groups.append([y, 1])
        while len(groups) > 1:
            (low, n), (high, m) = groups[-2:]
            if high / m - low / n >= gap * (n + m) / 2:
                break
            groups[-2:] = [[low + high, n + m]]
    heights = [total / n + gap * (k - (n - 1) / 2) for total, n in groups for k in range(n)]
    return dict(zip(sorted(range(len(wanted)), key=wanted.__getitem__), heights, strict=True))


def draw(folder, path):
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "", "font.family": "sans-serif"}):
        axes = (figure := Figure((10, 6.2), layout="constrained")).subplots()
        seconds, points = 0, []                            # (MB, accuracy, label)
        for label, (sent, metrics) in ALGORITHMS.items():
            runs = of_label(folder, label)
            seconds += sum(time for *_, time in runs)
            x, found = megabytes(runs), {who: last(runs, key) for who, key in metrics.items()}
            axes.plot([x] * len(found), [y for y, _ in found.values()], color=COLORS[sent], lw=0.7)
            for who, (y, half) in found.items():
                axes.errorbar(x, y, half, fmt=MARKS[who][0], color=COLORS[sent], capsize=2, ms=6)
            points.append((x, found[next(iter(found))][0], label, COLORS[sent]))
        for label, texts in LINES.items():
            runs = of_label(folder, label)
            seconds += sum(time for *_, time in runs)
            for text, metric in texts.items():
                y, _ = last(runs, metric)
                axes.axhline(y, color="0.4", ls="--", lw=0.8, zorder=0)
                axes.annotate(f"{text}, {y:.0f}", (0.005, y), (0, 2), color="0.3", fontsize=8,
                              xycoords=("axes fraction", "data"), textcoords="offset points")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.margins(x=0.16)
        axes.set_ylim(top=100)
        low, high = axes.get_ylim()
        columns = {}                                       # names beside each other share heights
        for x, y, label, color in sorted(points):
            name = label.split(":")[0]
            side = -1 if name in NAME_ON_THE_LEFT else 1
            start = next((at for at, of in columns if of == side and x < 1.2 * at), x)
            columns.setdefault((start, side), []).append((x, y, name, color))
        for (_, side), column in columns.items():
            end = max(x for x, *_ in column) * 1.16**side
            heights = spread([y for _, y, *_ in column], (high - low) / 34)
            for i, (x, y, name, color) in enumerate(column):
                axes.plot([x, end], [y, heights[i]], color=color, lw=0.4)
                axes.text(end * 1.02**side, heights[i], name, color=color, fontsize=9, va="center",
                          ha="left" if side > 0 else "right",
                          url=f"../../algorithms/{name.replace('-', '_')}.py")
        num_seeds = len(of_label(folder, "fedavg"))
        axes.set(xlabel="MB that a client sends in all rounds",
                 ylabel="test accuracy after the last round, %, "
                        f"mean of {num_seeds} seed{'s' * (num_seeds > 1)}")
        axes.grid(color="0.92")
        axes.spines[["top", "right"]].set_visible(False)
        sent = [Line2D([], [], color=color, marker="o", ls="", label=f"sends {text}")
                for text, color in COLORS.items()]
        whose = [Line2D([], [], color="0.3", marker=mark, ls="", label=text)
                 for mark, text in MARKS.values()]
        figure.legend(handles=sent + whose, fontsize=9, frameon=False, ncols=4,
                      loc="outside upper center")
        figure.savefig(path, metadata={"Date": None})
    print(f"{path}: {num_seeds} seeds, {seconds / 60:.0f} minutes of rounds")


if __name__ == "__main__":
    if sys.argv[1:] == ["--command"]:
        print("python fedkd_minimal.py --algo " + ",".join([*ALGORITHMS, *LINES])
              + " --distill --seeds 0,1,2,3,4 --out runs/overview")
    elif len(sys.argv) == 2:
        draw(sys.argv[1], ROOT / "docs" / "pictures" / "overview_results.svg")
        write(sys.argv[1], ROOT / "docs" / "results" / "overview.csv")
    else:
        raise SystemExit(__doc__)
