"""Curves of kept runs, drawn by matplotlib: means by round and bands of their 95% intervals."""
from statistics import mean

from experiment.common import BadInput
from experiment.measures import half_width, mean_of_last

AXES = {"round": "round", "MB": "MB up and down, summed"}
COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#999999")
STYLES = ("-", "--", ":", "-.")


def curve(runs, key, axis, last=1):
    """[(x, mean, half width or None)] of each round in which all runs have the metric.

    last    each point is the mean of so many rounds up to it, at first of fewer
    """
    points = []
    for row in runs[0].rows:
        until_now = [run.up_to(row["round"]) for run in runs]
        values = [mean_of_last(run, key, last) for run in until_now]
        if None not in values:
            x = mean(run.rows[-1][axis] for run in until_now)
            points.append((x, mean(values), half_width(values)))
    return points


def draw(named, path, axis="round", last=1, ylabel="accuracy", bottom=None):
    """Writes a picture with a line for each (name, runs, metric) whose runs have the metric.

    bottom    the lowest value that is shown; None: of all
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator, PercentFormatter
    except ImportError as error:
        raise BadInput(f"a picture needs matplotlib: pip install matplotlib ({error})") from None

    lines = [(name, curve(runs, key, axis, last), runs[0].is_share(key))
             for name, runs, key in named]
    lines = [line for line in lines if line[1]]
    is_share = all(share for *_, share in lines)
    figure = Figure(figsize=(9, 4.5), dpi=150, layout="constrained")
    ax = figure.subplots()
    for i, (name, points, _) in enumerate(lines):
        color, style = COLORS[i % len(COLORS)], STYLES[i // len(COLORS) % len(STYLES)]
        draw_line(ax, points, name, color, style, is_share)
    title = "mean of n seeds and its 95% interval" if any(
        width is not None for _, points, _ in lines for *_, width in points) else "one seed"
    window = f"; each point: mean of up to {last} rounds" if last > 1 else ""
    ax.set(xlabel=AXES[axis], ylabel=ylabel, title=title + window)
    ax.set_ylim(bottom=bottom)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(color="0.9")
    if is_share:
        ax.yaxis.set_major_formatter(PercentFormatter(1))
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    with rc_context({"svg.hashsalt": "curves"}):         # the same curves, the same .svg
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def draw_line(ax, points, name, color, style, is_share):
    """A line of means, and a band of their intervals. A band of shares ends at 0 and 1, though an
    interval of two seeds can be wider."""
    import numpy as np
    x, middle, width = np.array(points, float).T         # without a width it is nan
    low, high = middle - width, middle + width
    if is_share:
        low, high = low.clip(0, 1), high.clip(0, 1)
    ax.plot(x, middle, style, color=color, label=name)
    ax.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
