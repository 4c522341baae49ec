"""The papers' claims against the figures in docs/results.

    python benchmarks/verdicts.py --write          writes docs/results/claims.md
    python benchmarks/verdicts.py --draw           draws docs/pictures/claims.svg (needs matplotlib)

A claim is a line of claims.csv: on which page of docs/results it stands; what is claimed of the
row's metric minus the base's (greater, lower, level, not lower, not greater, by the margin in
points); the file of docs/results with both, as experiment/plot.py prints them, and the round, if it
is not the last; the paper's figures and where they stand ("ours": it is no paper's claim); why it
cannot be judged.
"""
import argparse
import csv
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).parents[1]))
from experiment.plot import half_width

DOCS = Path(__file__).parents[1] / "docs"
CLAIMS = list(csv.DictReader((Path(__file__).parent / "claims.csv").open()))
TITLES = {"fedsdd": "FedSDD", "fedmd": "FedMD", "fedgems": "FedGEMS",
          "attacks": "Attacks (FedGEMS)", "fedgkt": "FedGKT",
          "without-public": "FedGen, FedNTD, FD: no public images"}
COLORS = {"holds": "#0072B2", "open": "#999999", "does not hold": "#D55E00",
          "cannot be judged": "#CC79A7"}                 # Okabe and Ito's
HEAD = """# Every claim

Which claims of the papers hold here? `python benchmarks/verdicts.py --write` makes this page from
the tables in this folder.

A difference is paired by seed. It is the mean ± half of the mean's 95% confidence interval, in
points of test accuracy, with the number of seeds. A claim that one method is above another
**holds** if the interval is on the claimed side of 0, **does not hold** if it is on the other side,
and is **open** if the interval contains 0. A claim that two methods are level holds if the interval
lies within one point of 0; a claim that one is not lower, if the interval lies above -1 (above -5
where the paper says "a few percent"). Otherwise these do not hold if the interval excludes 0, and
are open if it contains 0.

Without °: the mean of the last rounds, a tenth of all and at least five. °: the older protocol, the
last round alone, and on CIFAR-10 one file of images for all seeds; elsewhere a seed draws the
clients' shares and the public images. Differences are of the accuracies as the tables round them:
the last digit can differ from the pages'.

"""


@cache
def read(file):
    """{(row, metric): {last round: {measure: {header: cell}}}} of the tables of docs/results."""
    found, heading, header = {}, "", None
    for line in (DOCS / "results" / f"{file}.txt").read_text().splitlines():
        cells = re.split("  +", line.strip())
        if re.fullmatch(r"[\w.-]+", line):               # "fifth": the runs of the next tables
            heading = f"{line}/"
        elif "  seed " in line:
            header = cells
        elif header and len(cells) == len(header):
            named = dict(zip(header, cells))
            measure, metric = header[0].removesuffix(", %").rsplit(" ", 1)
            rounds = found.setdefault((heading + cells[0], metric), {})
            measures = rounds.setdefault(int(named["last round"]), {})
            measures.setdefault(measure.split()[0], {}).update(named)
    return found


def differences(claim):
    """([the row's accuracy minus the base's, in points, by seed], was it the mean of rounds?)."""
    values = []
    for name, metric in (("row", "metric"), ("base", "base_metric")):
        rounds = read(claim["file"])[claim[name], claim[metric]]
        measures = rounds[int(claim["round"]) if claim["round"] else max(rounds)]
        cells = measures.get("mean") or measures["final"]
        values.append({seed: float(cell) for seed, cell in cells.items()
                       if seed.startswith("seed ") and cell != "-"})
    ours, base = values
    return [ours[seed] - base[seed] for seed in ours if seed in base], "mean" in measures


def verdict(claim, points):
    """What the 95% interval of the mean of the differences says about a claim."""
    middle, width, margin = mean(points), half_width(points), float(claim["margin"] or 1)
    if claim["unjudged"]:
        return "cannot be judged"
    if claim["claimed"] in ("lower", "not greater"):
        middle = -middle
    low, high = middle - width, middle + width
    holds = {"greater": low > 0, "lower": low > 0, "not lower": low > -margin,
             "not greater": low > -margin, "level": -margin < low and high < margin}
    if holds[claim["claimed"]]:
        return "holds"
    return "does not hold" if high < 0 or claim["claimed"] == "level" and low > 0 else "open"


def judged():
    """[(claim, its verdict, its differences by seed, their text)]."""
    found = []
    for claim in CLAIMS:
        points, of_rounds = differences(claim)
        text = f"{mean(points):+.2f} ± {half_width(points):.2f} ({len(points)})"
        text += "°" * (not of_rounds)
        found.append((claim, verdict(claim, points), points, text))
    return found


def named(claim):
    """A claim with its page: two pages may have claims of one name."""
    return f"{TITLES[claim['page']].split(':')[0]}: {claim['claim']}"


def papers_difference(claim):
    return float(claim["paper_row"]) - float(claim["paper_base"]) if claim["paper_row"] else None


def page():
    """The Markdown of docs/results/claims.md."""
    rows = judged()
    of_papers = [row for row in rows if row[0]["source"] != "ours"]
    counts = Counter(found for _, found, *_ in of_papers)
    directed = sum(claim["claimed"] in ("greater", "lower") and found != "cannot be judged"
                   for claim, found, *_ in of_papers)
    older = sum(text.endswith("°") for *_, text in rows)
    claims = {named(claim) for claim, *_ in of_papers}
    settings = Counter(named(claim) for claim, found, *_ in of_papers
                       if found != "cannot be judged")
    lines = [f"{older} of all {len(rows)} rows have a °.",
             f"The papers' {len(claims)} claims have {len(of_papers)} rows: "
             + ", ".join(f"{name} {counts[name]}" for name in COLORS if counts[name]) + ".",
             f"{directed} of them say that one method is above another. If none were, noise alone "
             f"would give about {directed / 20:.0f} intervals without 0, "
             f"{directed / 40:.0f} of them on the claimed side.", "", "## Does not hold", "",
             "In brackets: in how many of the settings that can be judged.", ""]
    failed = {}                                          # {claim: [what is found in a setting]}
    for claim, found, _, text in of_papers:
        if found == "does not hold":
            paper = papers_difference(claim)
            paper = "" if paper is None else f", the paper *{paper:+.2f}*"
            failed.setdefault(named(claim), []).append(f"{claim['regime']}: {text}{paper}")
    lines += [f"- {name} ({len(found)} of {settings[name]}): {'; '.join(found)}"
              for name, found in failed.items()]
    for name, title in TITLES.items():
        lines += ["", f"## [{title}]({name}.md)", "",
                  "| claim | where | difference | verdict | the paper |", "|---|---|---|---|---|"]
        before = ""
        for claim, found, _, text in rows:
            if claim["page"] != name:
                continue
            difference, theirs = papers_difference(claim), claim["source"]
            if difference is not None:
                theirs = f"*{difference:+.2f}*, {theirs}"
            reason = f": {claim['unjudged']}" if claim["unjudged"] else ""
            first = "" if claim["claim"] == before else claim["claim"]
            lines.append(f"| {first} | {claim['regime']} | {text} | {found}{reason} | {theirs} |")
            before = claim["claim"]
    return HEAD + "\n".join(lines) + "\n"


def draw(path):
    """Draws all claims, a row each; needs matplotlib."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = judged()
    height = len(rows) + 2 * len(TITLES)
    figure = Figure(figsize=(10, 0.155 * height + 1.1))
    ax = figure.add_axes((0.52, 0.02, 0.47, 0.95))
    y, before = 0, None
    for claim, found, points, text in rows:
        if before is None or claim["page"] != before["page"]:
            y += 2
            ax.text(-1.08, y - 1.2, TITLES[claim["page"]], weight="bold", va="center",
                    transform=ax.get_yaxis_transform())
        name = "" if before and claim["claim"] == before["claim"] else claim["claim"]
        for x, words in ((-1.08, name), (-0.54, claim["regime"])):
            ax.text(x, y, words, fontsize=7.5, va="center", transform=ax.get_yaxis_transform())
        color, middle, width = COLORS[found], mean(points), half_width(points)
        ax.plot([middle - width, middle + width], [y, y], color=color, linewidth=1.5, alpha=0.6)
        ax.plot(points, [y] * len(points), "o", color=color, markersize=2.5, alpha=0.6)
        ax.plot(middle, y, "o", color=color, markersize=6,
                markerfacecolor="white" if text.endswith("°") else color)
        if claim["paper_row"]:
            ax.plot(papers_difference(claim), y, "v", color="black", fillstyle="none", markersize=5)
        y, before = y + 1, claim
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set_xscale("symlog", linthresh=1, linscale=0.8)   # as far from 0 to 1 as from 1 to 6
    ticks = [-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50]
    ax.set_xticks(ticks, [f"{x:+d}" if x else "0" for x in ticks], fontsize=8)
    ax.set_xticks([], minor=True)
    ax.grid(axis="x", color="0.9", linewidth=0.6)
    ax.tick_params(top=True, labeltop=True)
    ax.set(xlim=(-70, 70), ylim=(height + 0.2, 0), yticks=[])
    ax.set_xlabel("points of accuracy, logarithmic beyond 1: mean, 95% interval, seeds", fontsize=8)
    for name, color in COLORS.items():
        ax.plot([], [], "o", color=color, label=name)
    ax.plot([], [], "o", color="black", markerfacecolor="white", label="older protocol")
    ax.plot([], [], "v", color="black", fillstyle="none", label="the paper")
    figure.legend(loc="upper left", ncols=6, frameon=False, fontsize=8)
    with rc_context({"svg.hashsalt": "claims", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None, "Description": page()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write docs/results/claims.md")
    parser.add_argument("--draw", action="store_true", help="draw docs/pictures/claims.svg")
    args = parser.parse_args()
    if args.write:
        (DOCS / "results" / "claims.md").write_text(page())
    if args.draw:
        draw(DOCS / "pictures" / "claims.svg")
