"""RESULTS.md and the pages of results say what the curves in docs/results say."""
import html
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks import claims
from experiment.curves import half_width, write_csv

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = DOCS.parent / "benchmarks" / "claims"
SCRIPTS = sorted({*FOLDER.glob("*.sh")} - {FOLDER / "common.sh"})
REMOVED = DOCS / "results" / "removed.md"          # figures of commit 33af17e^
PAGES = [DOCS / "RESULTS.md", *sorted({*DOCS.glob("results/*.md")} - {REMOVED})]
TABLES = [path for path in sorted(DOCS.glob("results/*.txt")) if "\n$ python" in path.read_text()]
DRAWN_BY_HAND = {"overview", "rounds", "without_public"}
CLAIM = {"row": "x/a", "base": "x/b", "metric": "accuracy", "base_metric": "accuracy",
         "claimed": "greater", "margin": ""}


@pytest.mark.parametrize("path", claims.tables(), ids=lambda path: path.stem)
def test_the_tables_of_results_are_of_the_curves_of_today(path):
    """Otherwise: python benchmarks/claims.py"""
    assert claims.TABLE.findall(path.read_text()) == claims.tables()[path]


def test_each_row_is_on_the_page_of_its_script_that_names_its_runs():
    lines = [line for path, [table, *_] in claims.tables().items() if path != claims.RESULTS
             for line in table.splitlines()[2:] if not line.startswith("|**")]
    assert len(lines) == len(claims.CLAIMS)
    for claim in claims.CLAIMS:
        script = (FOLDER / f"{claims.page_of(claim)}.sh").read_text()
        for part in re.findall(r"`([^`]+)`", claims.runs_of(claim)):
            assert all(re.search(rf"(?<![\w-]){x}(?![\w-])", script) for x in part.split("+")), part


def test_the_picture_is_drawn_from_the_curves_of_today():
    """Otherwise: python benchmarks/claims.py --draw. The picture carries the table it shows."""
    shown = html.unescape((DOCS / "pictures" / "claims.svg").read_text())
    assert claims.tables()[claims.RESULTS][1] in shown


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_file_of_results_has_what_its_commands_print(path, monkeypatch):
    """Otherwise: python benchmarks/claims.py"""
    monkeypatch.chdir(DOCS.parent)
    assert claims.renewed(path.read_text()) == path.read_text()


@pytest.mark.parametrize("claimed, middle, width, found", [
    ("greater", 2, 1, "holds"), ("greater", 2, 3, "open"), ("greater", -2, 1, "does not hold"),
    ("lower", -2, 1, "holds"), ("lower", -2, 3, "open"), ("lower", 2, 1, "does not hold"),
    ("level", 0, .9, "holds"), ("level", .5, .4, "holds"),       # without 0, but within a point
    ("level", 0, 2, "open"), ("level", .9, .5, "open"),
    ("level", -3, 1, "does not hold"), ("level", 3, 1, "does not hold"),
    ("not lower", 3, 1, "holds"), ("not lower", -.5, .4, "holds"), ("not lower", -.5, 1, "open"),
    ("not lower", -3, 1, "does not hold")])
def test_verdicts_follow_the_rule_of_the_page(claimed, middle, width, found):
    """Two seeds on both sides of the mean: the deviation is t / sqrt(2) times smaller."""
    points = [middle - width / 12.7062047, middle + width / 12.7062047]
    assert half_width(points) == pytest.approx(width)
    assert claims.verdict(CLAIM | {"claimed": claimed}, points) == found


def test_a_margin_is_how_much_lower_is_still_not_lower():
    points = [-4.1, -3.9]                                # -4 +- 1.27
    claim = CLAIM | {"claimed": "not lower"}
    found = [claims.verdict(claim | {"margin": margin}, points) for margin in ("6", "5", "2")]
    assert found == ["holds", "open", "does not hold"]


@pytest.mark.parametrize("claimed, middle", [
    ("greater", 2), ("greater", -2), ("lower", 2), ("level", 0), ("level", 3), ("not lower", 1)])
def test_p_is_below_005_where_the_claim_is_decided(claimed, middle):
    """The interval reaches the next end of the claim's range at p, whatever the verdict."""
    claim = CLAIM | {"claimed": claimed}
    distance = min(abs(middle - end) for end in claims.bounds(claim))
    for width, decided in (distance * .99, True), (distance * 1.01, False):
        points = [middle - width / 12.7062047, middle + width / 12.7062047]
        assert (claims.p_value(claim, points) < .05) is decided
        assert (claims.verdict(claim, points) != "open") is decided


def test_holm_stops_at_the_first_that_is_not_small_enough():
    """0.03 is not below 0.05 / 2: so 0.04 does not survive, although it is below 0.05 / 1."""
    assert claims.survivors([.001, .04, .03, .0126]) == {0, 3}       # .0126: below 0.05 / 3
    assert claims.survivors([.049]) == {0} and claims.survivors([.06, .06]) == set()


@pytest.mark.parametrize("rounds, last", [(8, 5), (70, 7)])
def test_differences_are_of_the_last_tenth_of_the_rounds_paired_by_seed(
        rounds, last, tmp_path, monkeypatch):
    def run(seed, points):
        """Zero until the last rounds; seed 12 has no base."""
        rows = [{"round": t, "MB": t, "accuracy": points / 100 * (t > rounds - last)}
                for t in range(rounds + 1)]
        head = {"algo": "a", "scores": {}, "settings": {}, "data": {}, "environment": {}}
        return head | {"seed": seed, "begun": "", "rows": rows}
    write_csv({"a": [run(10, 61), run(11, 59), run(12, 60)],
               "b": [run(11, 20), run(10, 10)]}, tmp_path / "x.csv")
    monkeypatch.setattr(claims, "CURVES", tmp_path)
    claims.curves.cache_clear()
    assert claims.differences(CLAIM) == pytest.approx([61 - 10, 59 - 20])
    claims.curves.cache_clear()


def test_a_difference_of_a_paper_counts_once_however_many_rows_stand_beside_it():
    """+3 has two decided rows and an open one, -1 one of each sign, +2 an open one, 0.5 one."""
    def row(ours, paper, table):
        points = {"open": [-1, 1, 0], "+": [1, 1.1, 1.2], "-": [-1, -1.1, -1.2]}[ours]
        return CLAIM | {"paper_row": paper, "paper_base": "0", "paper_table": table}, points
    pairs = [row("+", "3", "2"), row("+", "3", "2"), row("open", "3", "2"), row("+", "-1", "2"),
             row("-", "-1", "2"), row("open", "2", "2"), row("-", "0.5", "2"), row("+", "3", "6"),
             row("+", "", "")]
    assert claims.beside_the_papers(pairs) == (
        "8 of them stand beside 5 differences of the papers: the decided rows have the same sign "
        "for 2, the opposite for 1, both for 1; 1 have no decided row.")


def test_what_the_second_five_seeds_say_is_counted(monkeypatch):
    """By spreads of five: 2 +- 0.2 is decided, 0 +- 2 is open; five rows have ten seeds."""
    up, down, wide = [2, 2, 2, 1.9, 2.1], [-2, -2, -2, -1.9, -2.1], [2, 0, 0, 1, -1]
    small = [.1, 1, 1, 1, -.1]                           # open, but decided with `up`, and twice
    points = {"a": up + up, "b": up + wide, "c": up + down, "d": small + up, "e": small + small,
              "f": up}
    accuracy = {f"x/{label}": dict(zip(range(10, 20), of)) for label, of in points.items()}
    monkeypatch.setattr(claims, "accuracies", lambda run, *_: accuracy.get(
        run, dict.fromkeys(range(10, 20), 0)))
    monkeypatch.setattr(claims, "CLAIMS", [CLAIM | {"row": run, "base": "x/0"} for run in accuracy])
    assert claims.second_fives() == (
        "5 rows have seeds 10 to 19. 3 of them are decided with 10 to 14: 15 to 19 alone decide 1 "
        "in the same way, leave 1 open, and decide 1 otherwise; with all ten 1 of them become "
        "open. 2 are open with 10 to 14: 2 of them are decided with all ten, 1 of these by neither "
        "half alone. "
        "No interval is corrected for the second look.\n")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_every_figure_of_a_page_is_in_its_table_of_claims_or_in_a_file_that_it_links(page):
    """All with two decimals but the papers' own, in italics; a page's file is its tables alone."""
    [*table], text = claims.TABLE.findall(page.read_text()), claims.TABLE.sub("", page.read_text())
    ours = re.sub(r"\*[+-]?\d[^*\n]*\*", "", text)
    figures = re.findall(r"(?<![\w.])-?\d+\.\d\d\b(?: ± \d+\.\d\d\b)?", ours)
    files = [page.parent / name
             for name in re.findall(r"\(([\w/-]+\.txt|(?:results/)?removed\.md)\)", ours)]
    pages = [page.parent / name for name in re.findall(r"\((results/[\w-]+\.md)\)", ours)]
    kept = "".join([*table, *(path.read_text() for path in files), *(
        x for path in pages for x in claims.TABLE.findall(path.read_text()))])
    kept = re.sub(r"\s(?:\+-|±)\s+", " ± ", kept)
    assert [x for x in figures if x not in kept] == []


def test_the_removed_rows_are_as_many_as_the_page_says():
    text, found = REMOVED.read_text(), {}
    for heading, rows in re.findall(r"^## (.+)\n\n(?:.*\n\n)?((?:\|.*\n)+)", text, re.M):
        found[heading] = rows.count("\n") - 2
    judged = text.count("|not judged")
    told = re.search(r"These (\d+) still have none: (\d+) did not hold, (\d+) were open, "
                     r"(\d+) could not be judged, (\d+) held", " ".join(text.split()))
    counts = [found["Did not hold"], found["Open, or not judged"] - judged, judged, found["Held"]]
    assert [*map(int, told.groups())] == [sum(counts), *counts]
    page = " ".join((DOCS / "RESULTS.md").read_text().split())
    assert f"[{sum(counts)} older rows](results/removed.md)" in page
    assert (f"no successor: {counts[3]} held, {counts[1]} were open, {counts[0]} did not hold, "
            f"{counts[2]} could not be judged" in page)
    assert found["Measured again"] == 22 and "Twenty-two were measured again" in text


def test_every_measured_picture_has_its_command():
    commands = "".join(path.read_text() for path in TABLES)
    drawn = set(re.findall(r" --out docs/pictures/(\S+)\.svg", commands))
    assert {path.stem for path in DOCS.glob("pictures/*.svg")} - DRAWN_BY_HAND == drawn | {
        "claims", "quick-start", "overview_results"}


def test_every_file_of_curves_is_of_a_part_of_a_script():
    text = "".join(path.read_text() for path in SCRIPTS)
    parts = re.findall(r"for part in \$\{\*:-([^}]*)\}", text)
    files = {path.name.removesuffix(".csv") for path in DOCS.glob("results/*.csv")}
    assert files and files <= set(" ".join(parts).split())


def planned(path, folder):
    """{(part, method): its seeds} of a script, by a `python` that only prints its arguments."""
    shutil.copytree(path.parent, folder / "benchmarks" / "claims")
    (folder / "python").write_text("#!/bin/sh\necho \"$@\"\n")
    (folder / "python").chmod(0o755)
    run = [folder / "benchmarks" / "claims" / path.name, *["data.npz"] * (path.stem != "fedmd")]
    printed = subprocess.run(run, capture_output=True, text=True, check=True, env={
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}).stdout
    found = re.findall(r"--seeds (\S+) .*--out runs/claims/(\S+)/(\S+)", printed)
    return {(part, method): {*map(int, seeds.split(","))} for seeds, part, method in found}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_has_the_seeds_that_are_kept(path, tmp_path):
    found = planned(path, tmp_path)
    if path.stem == "fedsdd":                            # one run of two algorithms
        both = found.pop(("fedsdd-letters", "both"))
        found |= {("fedsdd-letters", algo): both for algo in ("fedavg", "fedsdd")}
    kept = {(part, label): {run["seed"] for run in runs} for part in {part for part, _ in found}
            if (DOCS / "results" / f"{part}.csv").exists()
            for label, runs in claims.curves(part).items() if part != "fedsdd-hetero-rates"}
    assert kept == {run: seeds for run, seeds in found.items()
                    if run[0] != "fedsdd-hetero-rates"}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_help_is_the_head_of_a_script_and_starts_no_run(path):
    shown = subprocess.run([path, "--help"], capture_output=True, text=True, check=True).stdout
    head = re.match(r"#!.*\n((?:#.*\n)+)", path.read_text())[1]
    assert shown == re.sub("^# ?", "", head, flags=re.M)


def test_the_order_of_the_jpeg_files_has_each_file_of_a_class_once():
    numbers = [*map(int, (DOCS.parent / "benchmarks" / "cifar10_jpeg.txt").read_text().split())]
    assert sorted(numbers[:5000]) == [*range(5000)] and sorted(numbers[5000:]) == [*range(1000)]


def test_a_row_has_all_seeds_that_both_of_its_runs_have():
    """Runs of different age may have an accuracy under different names."""
    def seeds(run):
        files, label = run.split("/")
        return {run["seed"] for file in files.split("+") for run in claims.curves(file)[label]}

    for claim in claims.CLAIMS:
        assert len(claims.pairs(claim)) == len(seeds(claim["row"]) & seeds(claim["base"])), claim


def test_seeds_of_two_files_are_pooled():
    one, other = "fedsdd-hetero/R4-half", "fedsdd-hetero-again/R4-half"
    both = claims.accuracies("fedsdd-hetero+fedsdd-hetero-again/R4-half", "accuracy")
    assert both == claims.accuracies(one, "accuracy") | claims.accuracies(other, "accuracy")
    assert len(both) == 15
