"""A picture of curves: their colors, the names at their ends. Needs matplotlib."""
from typing import NamedTuple
from zlib import crc32

# An algorithm, a label or a metric has the same color in every picture; the colors are Okabe and
# Ito's.
BLACK, BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE, GRAY = (
    "#000000", "#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#999999")
COLORS = {"fedavg": BLACK, "fedprox": GRAY, "scaffold": SKY, "feddf": ORANGE, "fedbe": PURPLE,
          "fedsdd": BLUE, "fedsdd-ablations": GREEN,
          "fedmd": VERMILION, "fedmd-pooled": BLACK, "dsfl": PURPLE, "cronus": GRAY,
          "fedgem": ORANGE, "fedgems": GREEN, "fedgems-ablations": SKY,
          "fedgkt": PURPLE, "fedgkt-async": SKY, "centralized": GRAY, "standalone": GRAY,
          "fedntd": SKY, "fd": VERMILION, "fedgen": GREEN,
          "control": BLACK,                              # FedGEMS's: FedGEM with labels alone
          "alone-iid": GRAY, "alone-writer": GRAY,       # FedMD's: without digest
          "self_training": BLACK, "self_distillation": BLUE,
          "ensemble_distillation": VERMILION, "nobody_right": GRAY}
STYLES = ("solid", "dashed", "dotted", "dashdot")        # of the lines that share a color
MAX_NAMED = 5                                            # more lines than these have a legend


class Line(NamedTuple):
    name: str
    color: str
    points: list             # [(x, mean, standard deviation or None, number of seeds)]


def color_of(metric, label, algo):
    """The color of the first of these names that has one; of a new algorithm by its name."""
    known = COLORS.get(metric) or COLORS.get(label) or COLORS.get(algo)
    return known or [*COLORS.values()][crc32(algo.encode()) % len(COLORS)]


def spread(heights, gap):
    """The heights of names, moved upwards where two are nearer than the gap."""
    moved = {}
    for i in sorted(range(len(heights)), key=heights.__getitem__):
        moved[i] = max([heights[i], *(height + gap for height in moved.values())])
    return [moved[i] for i in range(len(heights))]


def draw(lines, path, *, xlabel, ylabel, percent):
    """Writes a picture of the lines: means, with bands of one standard deviation."""
    import numpy as np
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    figure = Figure(figsize=(9, 4.5), dpi=150, layout="constrained")
    ax = figure.subplots()
    colors = []
    for line in lines:
        style = STYLES[colors.count(line.color) % len(STYLES)]
        colors.append(line.color)
        x, mean, std, _ = np.array(line.points, float).T     # None becomes nan: no band
        ax.plot(x, mean, color=line.color, linestyle=style, label=line.name)
        ax.fill_between(x, mean - std, mean + std, color=line.color, alpha=0.15, linewidth=0)
    seeds = max(number for line in lines for *_, number in line.points)
    ax.set(xlabel=xlabel, ylabel=ylabel,
           title=f"mean ± standard deviation of {seeds} seeds" if seeds > 1 else "one seed")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(color="0.9")
    if percent:
        ax.yaxis.set_major_formatter(PercentFormatter(1))
    if len(lines) > MAX_NAMED:
        figure.legend(loc="outside right upper", frameon=False)
    else:
        name_ends(ax, lines)
    with rc_context({"svg.hashsalt": "curves"}):         # the same curves, the same bytes
        figure.savefig(path, metadata={"Date": None})


def name_ends(ax, lines):
    """Writes each line's name to the right of the axes, at the height of its last point."""
    low, high = ax.get_ylim()
    ends = [line.points[-1][1] for line in lines]
    for line, height in zip(lines, spread(ends, gap=0.055 * (high - low))):
        ax.text(1.01, height, line.name, color=line.color, va="center",
                transform=ax.get_yaxis_transform())      # x: share of the width; y: as the data
