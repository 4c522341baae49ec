"""The papers' claims, judged by the curves in docs/results: the tables of RESULTS.md and its pages.

    python benchmarks/claims.py            renews the tables, and the output below each "$ python -m
                                           experiment.plot ..." of docs/results/*.txt
    python benchmarks/claims.py --draw     draws the pictures, too (needs matplotlib)

A row of claims.csv: what is claimed of the row's metric minus the base's (greater, lower, level,
not lower, by `margin` points instead of 1); both as FILE/LABEL of docs/results/FILE.csv; the
paper's two figures and the number of their table (of two tables: the row's, the base's), with the
paper's name if it is not the method's; first: the row's words in the table of RESULTS.md, if it is
there; fixed: the commit that wrote the row down before the runs of the row or of the base.
"""
import argparse
import contextlib
import csv
import io
import os
import re
import shlex
import sys
from collections import Counter
from functools import cache
from math import atan, cos, inf, pi, sin, sqrt
from pathlib import Path
from statistics import mean, stdev

sys.path.insert(0, str(Path(__file__).parents[1]))
from experiment import plot
from experiment.curves import half_width, mean_of_last, read_runs, values_of

REPOSITORY = Path(__file__).parents[1]
RESULTS, CURVES = REPOSITORY / "docs" / "RESULTS.md", REPOSITORY / "docs" / "results"
PAGES = {"fedsdd": "FedSDD", "fedmd": "FedMD", "fedgems": "FedGEM and FedGEMS", "fedgkt": "FedGKT",
         "without-public": "Without public images"}    # docs/results/*.md: the rows of each
CLAIMS = list(csv.DictReader((Path(__file__).parent / "claims.csv").open()))
TABLE = re.compile("(?<=<!-- claims.py -->\n).*?(?=<!-- end -->)", re.S)
OUTPUT = re.compile(r"^\$ python -m experiment\.plot (.*)\n((?:(?!\$ ).*\n)*)", re.M)
COLORS = {"holds": "#0072B2", "open": "#999999", "does not hold": "#D55E00"}   # Okabe and Ito's


@cache
def curves(file):
    return read_runs([CURVES / f"{file}.csv"])


def runs_behind(side):
    """The runs of "FILE/LABEL"; of "FILE+FILE/LABEL" those of both files."""
    files, label = side.split("/")
    return [run for file in files.split("+") for run in curves(file)[label]]


def accuracies(run, metric, last=None):
    """{seed: mean of the `last` rounds, in percent}; None: of a tenth of them, at least five."""
    runs = runs_behind(run)
    return values_of(runs, metric, mean_of_last(last or max(5, (len(runs[0].rows) - 1) // 10)))


def pairs(claim, last=None, seeds=range(100)):
    """[(the row's accuracy, the base's)] of those of the `seeds` that both have, in percent."""
    ours = accuracies(claim["row"], claim["metric"], last)
    base = accuracies(claim["base"], claim["base_metric"], last)
    return [(ours[seed], base[seed]) for seed in ours if seed in base and seed in seeds]


def differences(claim, last=None, seeds=range(100)):
    """[the row's accuracy minus the base's, in points] of each of these."""
    return [ours - base for ours, base in pairs(claim, last, seeds)]


def bounds(claim):
    """Where the range of a claim begins and ends, in points."""
    margin = float(claim["margin"] or 1)
    return {"greater": (0, inf), "lower": (-inf, 0), "not lower": (-margin, inf),
            "level": (-margin, margin)}[claim["claimed"]]


def verdict(claim, points):
    """Where the 95% interval of the differences' mean lies: in the range of the claim, or not."""
    width = half_width(points)
    low, high = mean(points) - width, mean(points) + width
    start, end = bounds(claim)
    if start < low and high < end:
        return "holds"
    return "does not hold" if high < start or low > end else "open"


def p_value(claim, points):
    """The share of the intervals of 1 - p that would just reach an end of the claim's range.

    It is below 0.05 if the claim is not open: Student's t of the mean's distance to the end.
    """
    distance = min(abs(mean(points) - end) for end in bounds(claim))
    t = distance / (stdev(points) / sqrt(len(points)))
    return 1 - t_probability(t, len(points) - 1)


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


def survivors(p_values):
    """The indices of those that Holm's correction leaves below 0.05.

    The smallest of n must be below 0.05 / n, the next below 0.05 / (n - 1), until one is not.
    """
    order, n = sorted(range(len(p_values)), key=p_values.__getitem__), len(p_values)
    failed = [i for i in range(n) if p_values[order[i]] >= 0.05 / (n - i)]
    return {*order[:min(failed, default=n)]}


def papers_difference(claim):
    return float(claim["paper_row"]) - float(claim["paper_base"]) if claim["paper_row"] else None


def page_of(claim):
    """The page, and the script, of a row: those of the part that made it."""
    part = claim["row"].split("/")[0]
    part = {"attacks": "fedgems", "own-models": "without-public"}.get(part, part)
    return next(page for page in PAGES if part.startswith(page))


def runs_of(claim):
    """The parts of a script and their methods that are the row and the base, as a cell."""
    (part, label), (other, base) = (claim[side].split("/") for side in ("row", "base"))
    return f"`{part}` {label}, {base}" if part == other else f"`{part}` {label}, `{other}` {base}"


@cache
def tables():
    """{file: the Markdown that belongs between its marks}.

    RESULTS.md has a sentence that counts, the rows with `first`, by page, and provenance; each page
    has all of its rows. There are no spaces around cells, and what is compared stands alone above
    its settings: on a telephone verdict and difference are then on the screen.
    """
    head = "|verdict|a - b|the paper|seeds|a|b|‡ by the last round|"
    first = [f"|claim{head}", "|-" * 8 + "|"]
    of_page = {page: [f"|claim and setting{head}runs of a, b|", "|-" * 9 + "|"] for page in PAGES}
    found, before, num_changed = Counter(), {}, 0
    all_points = [differences(claim) for claim in CLAIMS]
    survived = survivors([p_value(*pair) for pair in zip(CLAIMS, all_points)])
    for i, (claim, points) in enumerate(zip(CLAIMS, all_points)):
        judged, page = verdict(claim, points), page_of(claim)
        found[judged] += 1
        at_the_end = differences(claim, last=1)
        changed = verdict(claim, at_the_end) != judged
        num_changed += changed
        paper = papers_difference(claim)
        cells = [shown(judged, points) + "†" * (i in survived) + "‡" * changed
                 + "§" * bool(claim["fixed"]), interval(points),
                 "" if paper is None else f"*{paper:+.2f}*\u00a0({claim['paper_table']})",
                 str(len(points)), *(f"{mean(side):.1f}" for side in zip(*pairs(claim))),
                 f"{verdict(claim, at_the_end)}: {interval(at_the_end)}" if changed else ""]
        if claim["first"]:
            if before.get(RESULTS) != page:
                first.append(f"|[**{PAGES[page]}**](results/{page}.md#all-rows){'|' * 8}")
            before[RESULTS] = page
            first.append(f"|{claim['first']}|{'|'.join(cells)}|")
        if claim["claim"] != before.get(page):
            of_page[page].append(f"|**{claim['claim']}**{'|' * 9}")
        before[page] = claim["claim"]
        of_page[page].append(f"|{claim['setting']}|{'|'.join(cells)}|{runs_of(claim)}|")
    counts = ", ".join(f"{name} in {found[name]}" for name in COLORS)
    directed = [pair for pair in zip(CLAIMS, all_points) if pair[0]["claimed"] in (
        "greater", "lower")]
    counted = (
        f"{len(CLAIMS)} rows on all pages: {counts}; by the last round alone {num_changed} have "
        f"another verdict. {len(directed)} rows have > or <: if nothing differed, about "
        f"{len(directed) / 20:.0f} of their intervals would exclude 0, by chance. "
        f"{beside_the_papers(directed)} "
        f"{len(survived)} verdicts survive Holm's correction for all {len(CLAIMS)} rows (†).\n")
    return {RESULTS: [counted, "\n".join([*first, ""]), second_fives(), provenance()],
            **{CURVES / f"{page}.md": ["\n".join([*rows, ""])] for page, rows in of_page.items()}}


def beside_the_papers(pairs):
    """How many differences of the papers have their sign here, of rows with > or <."""
    signs, num_rows = {}, 0                 # {a difference of a paper: which its decided rows have}
    for claim, points in pairs:
        if claim["paper_row"]:
            num_rows += 1
            found = signs.setdefault(
                tuple(claim[name] for name in ("paper_table", "paper_row", "paper_base")), set())
            if verdict(claim, points) != "open":
                found.add(papers_difference(claim) * mean(points) > 0)
    found = [*signs.values()]
    same, other, both, none = map(found.count, ({True}, {False}, {True, False}, set()))
    return (f"{num_rows} of them stand beside {len(found)} differences of the papers: the "
            f"decided rows have the same sign for {same}, the opposite for {other}, both for "
            f"{both}; {none} have no decided row.")


def second_fives():
    """What seeds 15 to 19 say alone, of the rows that have 10 to 19."""
    ten = [claim for claim in CLAIMS if len(differences(claim, seeds=range(15, 20))) == 5]
    judged = [[verdict(claim, differences(claim, seeds=range(*ends)))
               for ends in [(10, 15), (15, 20), (10, 20)]] for claim in ten]
    decided = [(first, second, both) for first, second, both in judged if first != "open"]
    later = [second for first, second, both in judged if first == "open" != both]
    same = sum(first == second for first, second, _ in decided)
    left = sum(second == "open" for _, second, _ in decided)
    lost = sum(both == "open" for *_, both in decided)
    return (
        f"{len(ten)} rows have seeds 10 to 19. {len(decided)} of them are decided with 10 to 14: "
        f"15 to 19 alone decide {same} in the same way, leave {left} open, and decide "
        f"{len(decided) - same - left} otherwise; with all ten {lost} of them become open. "
        f"{len(ten) - len(decided)} are open with 10 to 14: {len(later)} of them are decided with "
        f"all ten, {later.count('open')} of these by neither half alone. No "
        "interval is corrected for the second look.\n")


def provenance():
    """How many of the kept runs tell their data and their CPU."""
    kept = [run for path in CURVES.glob("*.csv") for runs in curves(path.stem).values()
            for run in runs]
    data, cpu = (sum(not x for x in found) for found in (
        [run.head["data"] for run in kept],
        [run.head["environment"].get("cpu") for run in kept]))
    rows = sum(any(not run.head["data"] for side in ("row", "base")
                   for run in runs_behind(claim[side])) for claim in CLAIMS)
    return (f"Of the {len(kept)} runs {data}, the older ones, kept no fingerprint of their data; "
            f"{rows} rows have one of these. {cpu} runs did not record their CPU.\n")


def shown(judged, points):
    """A verdict as a cell; of an open one whether the interval lies within a point of 0."""
    if judged == "open" and abs(mean(points)) + half_width(points) < 1:
        return "open, within 1"
    return f"**{judged}**" if judged == "does not hold" else judged


def interval(points):
    """Mean and half of its interval; with no-break spaces they stay on one line."""
    return f"{mean(points):+.2f}\u00a0±\u00a0{half_width(points):.2f}"


def renewed(text):
    """A file of docs/results with the output of its commands of today."""
    def run(found):
        if " --out " in found[1]:                        # a picture
            return found[0]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            plot.main(shlex.split(found[1]))
        return f"$ python -m experiment.plot {found[1]}\n{printed.getvalue().rstrip()}\n\n"
    return OUTPUT.sub(run, text).rstrip() + "\n"


def draw(path):
    """Draws the rows of RESULTS.md below their words, as wide as a telephone; needs matplotlib."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    lines, page = [], ""                                 # a page's name alone, then its rows
    for claim in [claim for claim in CLAIMS if claim["first"]]:
        if page_of(claim) != page:
            page = page_of(claim)
            lines.append({"name": PAGES[page]})
        lines.append(claim)
    figure = Figure(figsize=(390 / 96, 0.3 * len(lines) + 1))
    ax = figure.add_axes((0.02, 0.6 / figure.get_figheight(),
                          0.96, 1 - 1.1 / figure.get_figheight()))
    for y, claim in enumerate(lines):
        name = claim.get("name", "")
        ax.text(0, y + 0.35 * bool(name), name or claim["first"], fontsize=7, va="center",
                fontweight="bold" if name else None, transform=ax.get_yaxis_transform(),
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})
        if name:
            continue
        points = differences(claim)
        color, middle, width = COLORS[verdict(claim, points)], mean(points), half_width(points)
        at = y + 0.5
        ax.plot([middle - width, middle + width], [at, at], color=color, linewidth=1.5, alpha=0.6)
        ax.plot(points, [at] * len(points), "o", color=color, markersize=2, alpha=0.6)
        ax.plot(middle, at, "o", color=color, markersize=4)
        if claim["paper_row"]:
            ax.plot(papers_difference(claim), at, "v", color="black", fillstyle="none",
                    markersize=4)
    ax.axvline(0, color="black", linewidth=0.8, zorder=0)
    ax.set_xscale("symlog", linthresh=1, linscale=0.8)   # as far from 0 to 1 as from 1 to 6
    ticks = [-50, -10, -3, -1, 0, 1, 3, 10, 50]
    ax.set_xticks(ticks, [f"{x:+d}" if x else "0" for x in ticks], fontsize=7)
    ax.set_xticks([], minor=True)
    ax.grid(axis="x", color="0.9", linewidth=0.6)
    ax.tick_params(top=True, labeltop=True, length=2)
    ax.set(xlim=(-70, 70), ylim=(len(lines), -0.6), yticks=[])
    ax.set_xlabel("points: mean, 95% interval, seeds; logarithmic beyond 1", fontsize=7)
    for name, color in COLORS.items():
        ax.plot([], [], "o", color=color, markersize=4, label=name)
    ax.plot([], [], "v", color="black", fillstyle="none", markersize=4, label="the paper")
    figure.legend(loc="upper left", ncols=4, frameon=False, fontsize=7, columnspacing=1)
    with rc_context({"svg.hashsalt": "claims", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None, "Description": tables()[RESULTS][1]})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="draw the pictures, too")
    args = parser.parse_args()
    os.chdir(REPOSITORY)
    for path, found in tables().items():
        found = iter(found)
        path.write_text(TABLE.sub(lambda _: next(found), path.read_text()))
    texts = {path: path.read_text() for path in CURVES.glob("*.txt")}
    for path, text in texts.items():
        path.write_text(renewed(text))
    if args.draw:
        draw(REPOSITORY / "docs" / "pictures" / "claims.svg")
        for command, _ in OUTPUT.findall("\n".join(texts.values())):
            if " --out " in command:
                plot.main(shlex.split(command))
