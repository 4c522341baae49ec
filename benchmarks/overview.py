"""All algorithms in one picture: test accuracy after the last round by what a client has sent.

    python fedkd_minimal.py --algo ALGO --distill --seeds 0,1,2,3,4 --out runs/overview    # 2 hours
    python benchmarks/overview.py runs/overview          writes docs/results/overview.csv
    python benchmarks/overview.py                        draws docs/pictures/overview_results.svg
                                                         from it (needs matplotlib)

ALGO is what `python benchmarks/overview.py --algo` prints. In one command all algorithms have the
same images: 20 clients hold half of the training images, unevenly (Dirichlet, alpha 0.5), the other
half is public, with labels for those that use them; all accuracies are on the private half of the
test images, those of clients that learn from public images after this learning. Settings are those
of each file, so rounds and passes differ (--distill is FedBE's).
"""
import csv
import json
import sys
from itertools import groupby
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from experiment.measures import half_width  # noqa: E402

TABLE = ROOT / "docs" / "results" / "overview.csv"
PICTURE = ROOT / "docs" / "pictures" / "overview_results.svg"
PRIVATE, LEARNED = "server_accuracy_private_test", "client_accuracy_distilled"
GROUPS = {           # as in README's table: {label of the runs: {whose accuracy: metric}}
    "clients send weights": ("#0072B2", {
        name: {"server": "accuracy"} for name in (
            "fedavg", "fedprox", "scaffold", "fedntd", "feddf", "fedbe", "fedsdd:K=4:R=2",
            "fedgen")}),
    "clients send predictions on public images": ("#D55E00", {
        "fedmd": {"clients": LEARNED},
        "dsfl": {"clients": "accuracy", "server": PRIVATE},
        "cronus": {"clients": "accuracy"},
        "fedgem": {"clients": LEARNED, "server": PRIVATE},
        "fedgems": {"clients": LEARNED, "server": PRIVATE}}),
    "clients keep models of their own": ("#009E73", {
        "fd": {"clients": "accuracy"},
        **{name: {"clients": "client_accuracy"} for name in ("fml", "fedproto", "fedkd")}}),
    "the network is cut in two": ("#CC79A7", {
        "fedgkt": {"clients": "accuracy"}, "split-learning": {"clients": "accuracy"}})}
LINES = {            # levels that need no exchange: {label of the runs: {text: metric}}
    "local": {"clients alone": "client_accuracy"},
    "standalone": {"the server's network on the public labels alone": PRIVATE},
    "fedgem:epsilon=1": {"clients with the public labels alone": LEARNED}}
METRICS = {label: of for _, found in GROUPS.values() for label, of in found.items()} | LINES
ON_THE_LEFT = {"fedavg", "fedprox", "fedntd", "feddf", "fedbe", "fedsdd", "fedgen", "fedgems",
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


def megabytes(runs):
    """What a client has sent by the last round, all of it, in MB of 2^20 bytes: mean."""
    return mean(sum(number for row in rows for name, number in row.items()
                    if name.startswith("bytes_up")) / clients / 2**20 for rows, clients, _ in runs)


def write(folder):
    """The table: a line for each accuracy, with the value of each seed; prints the minutes."""
    seconds = 0
    with TABLE.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["label", "accuracy of", "metric", "MB sent by a client", "last round",
                        "of each seed, %", "mean", "half of the 95% interval"])
        for label, metrics in METRICS.items():
            runs = of_label(folder, label)
            seconds += sum(time for *_, time in runs)
            for whose, metric in metrics.items():
                values = [100 * rows[-1][metric] for rows, *_ in runs]
                table.writerow([label, whose, metric, f"{megabytes(runs):.4f}",
                                len(runs[0][0]) - 1, " ".join(f"{x:.2f}" for x in values),
                                f"{mean(values):.2f}", f"{half_width(values) or 0:.2f}"])
    print(f"{TABLE}: {len(runs)} seeds, {seconds / 60:.0f} minutes of rounds")


def read():
    """{label: {whose accuracy: (MB, mean, half of the interval)}}"""
    rows = csv.DictReader(TABLE.open())
    return {label: {row["accuracy of"]: (float(row["MB sent by a client"]), float(row["mean"]),
                                         float(row["half of the 95% interval"])) for row in found}
            for label, found in groupby(rows, lambda row: row["label"])}


def draw(found):
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "", "font.family": "sans-serif"}):
        axes = (figure := Figure((10, 6.2), layout="constrained")).subplots()
        crowds = {}                        # {MB, rounded: the points there}
        for color, labels in GROUPS.values():
            for label in labels:
                name, points = label.split(":")[0], found[label]
                x, y, _ = next(iter(points.values()))
                axes.plot([x] * len(points), [y for _, y, _ in points.values()], color=color,
                          lw=0.7)
                for whose, point in points.items():
                    axes.errorbar(*point, fmt=MARKS[whose][0], color=color, capsize=2, ms=6)
                crowds.setdefault(round(x, 2), []).append((y, x, name, color))
        for crowd in crowds.values():
            low, x, _, color = min(crowd)
            listed = len(crowd) > 4        # then a list below the points, the highest first
            if listed:
                axes.plot([x, x / 1.3], [low, low - 6], color=color, lw=0.7)
            for i, (y, x, name, color) in enumerate(sorted(crowd, reverse=True)):
                side = -1 if name in ON_THE_LEFT else 1
                axes.text(x * (1.2 if listed else 1.09)**side, low - 7 - 2.4 * i if listed else y,
                          name, color=color, fontsize=9, va="center",
                          ha="left" if side > 0 else "right",
                          url=f"../../algorithms/{name.replace('-', '_')}.py")
        for label in LINES:
            for text, (_, y, _) in found[label].items():
                axes.axhline(y, color="0.4", ls="--", lw=0.8, zorder=0)
                axes.annotate(f"{text}, {y:.0f}", (0.005, y), (0, 2), color="0.3", fontsize=8,
                              xycoords=("axes fraction", "data"), textcoords="offset points")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.margins(x=0.16)
        axes.set_ylim(top=100)
        axes.set(xlabel="MB that a client sends in all rounds",
                 ylabel="test accuracy after the last round, %")
        axes.grid(color="0.92")
        axes.spines[["top", "right"]].set_visible(False)
        groups = [Line2D([], [], color=color, marker="o", ls="", label=text)
                  for text, (color, _) in GROUPS.items()]
        whose = [Line2D([], [], color="0.3", marker=mark, ls="", label=text)
                 for mark, text in MARKS.values()]
        figure.legend(handles=groups + whose, fontsize=9, frameon=False, ncols=3,
                      loc="outside upper center")
        figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    if sys.argv[1:] == ["--algo"]:
        print(",".join(METRICS))
    elif len(sys.argv) == 2:
        write(sys.argv[1])
    elif len(sys.argv) == 1:
        draw(read())
    else:
        raise SystemExit(__doc__)
