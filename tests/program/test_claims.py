"""RESULTS.md, the pages of results and claims.csv say what the curves in docs/results say."""
import csv
import html
import os
import re
import shutil
import subprocess
from pathlib import Path
from statistics import mean

import pytest

from benchmarks import claims
from experiment.measures import half_width
from experiment.runs import Run, write_csv

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = DOCS.parent / "benchmarks" / "claims"
SCRIPTS = sorted({*FOLDER.glob("*.sh")} - {FOLDER / "common.sh"})
RESULTS = DOCS / "RESULTS.md"
PAGES = [RESULTS, *sorted(DOCS.glob("results/*.md"))]
WITH_ROWS = [page for page in PAGES if page.stem not in ("cost", "removed")]
WORDS = {"RESULTS": 1300, "cost": 300, "removed": 500}                    # the others: 900
DRAWN_BY_HAND = {"overview", "rounds", "without_public"}
CLAIM = {"id": "x-001", "row": "x/a", "base": "x/b", "metric": "accuracy",
         "base_metric": "accuracy", "claimed": "greater", "margin": ""}
FIGURE = re.compile(r"[+-]?\d+\.\d\d ± \d+\.\d\d")
LINK = re.compile(r'\[(\**)([^][*]+)\**\]\((?:[\w/]+/)?claims\.csv#L(\d+) "(.+?)"\)')
NUMBER = re.compile(r"(?<![\w.])[+-]?\d+\.\d\d\b")
SETTING = re.compile(r"(?:ε|rate|at) 0\.\d+")


def rows_of(name):
    return list(csv.DictReader((DOCS / "results" / f"{name}.csv").open()))


def blocks(page):
    """Rows of tables, paragraphs and list items, each on one line."""
    text = re.sub("^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    return [" ".join(block.split()) for block in re.split(r"\n(?=\||\d+\. |- |\n)", text)]


def linked(text):
    """[("**" or "", figure, line of claims.csv, reference)] of the figures of a text."""
    return LINK.findall(" ".join(text.split()))


def num_words(text):
    """Those that a reader sees."""
    return len(re.sub(r"\]\([^)]*\)", "]", text).replace("|", " ").split())


def papers_number(reference):
    """The paper's difference of a row, as a page writes it without a sign; None: it has none."""
    paper = claims.papers_difference(claims.BY_ID[reference.split("@")[0]])
    return None if paper is None else f"{abs(paper):.2f}"


# --------------------------------------------------------------------------------------------------
# The file of rows

def test_the_rows_are_of_the_curves_of_today():
    """Otherwise: python benchmarks/claims.py"""
    today = [{name: str(x) for name, x in claims.as_row(claim).items()} for claim in claims.CLAIMS]
    assert rows_of("claims") == today


def test_an_id_is_its_pages_and_a_number_and_stays():
    """A new row has the next number of its page, wherever it stands; these are as in 2026."""
    numbers = {page: [] for page in claims.PAGES}
    for claim in claims.CLAIMS:
        page, number = claim["id"].rsplit("-", 1)
        assert page == claims.page_of(claim)
        numbers[page].append(int(number))
    assert all(len({*found}) == len(found) for found in numbers.values())
    for name, row, base in [
            ("fedsdd-014", "fedsdd-hetero+fedsdd-hetero-again/R4-half",
             "fedsdd-hetero+fedsdd-hetero-again/last16-half"),
            ("fedgems-145", "fedgems-networks/fedmd", "fedgems-networks/standalone"),
            ("without-public-019", "own-models/fedproto-0.03", "own-models/local-0.03")]:
        assert (claims.BY_ID[name]["row"], claims.BY_ID[name]["base"]) == (row, base)


def test_the_script_of_a_row_has_its_parts():
    parts = {script.stem: re.search(r"for part in \$\{\*:-([^}]*)\}", script.read_text())[1].split()
             for script in SCRIPTS}
    for claim in claims.CLAIMS:
        of_row = {part for side in ("row", "base") for part in claim[side].split("/")[0].split("+")}
        assert of_row <= {*parts[claims.page_of(claim)]}, claim["id"]


def test_a_commit_that_wrote_a_row_down_is_listed():
    known = " ".join(row["commit"] for row in rows_of("written_down"))
    assert [x["id"] for x in claims.CLAIMS if x["fixed"] and x["fixed"] not in known] == []


@pytest.mark.parametrize("name, rounds, measure", [
    ("fedsdd-014", "rounds 91 to 100", {}), ("fedsdd-006@25", "rounds 21 to 25", {"rounds": 25}),
    ("fedgkt-006@last", "Round 8", {"last": 1}), ("fedsdd-001@best", "Best round", {"best": True})])
def test_a_row_is_shown_with_its_seeds_and_its_commands(name, rounds, measure, capsys):
    """Those of the reference's window, whose mean and interval follow."""
    claims.show(name)
    shown = capsys.readouterr().out
    claim = claims.BY_ID[name.split("@")[0]]
    points = claims.differences(claim, **measure)
    assert rounds in shown
    assert f"\nmean {mean(points):+.2f} ± {half_width(points):.2f}, where " in shown
    assert all(f"{seed:4} {a:7.2f} {b:7.2f} {a - b:+7.2f}\n" in shown
               for seed, (a, b) in claims.pairs(claim, **measure).items())
    assert f": {claims.verdict(claim, points)}, p = " in shown
    assert f"\nThe row: {claims.figure(claim['id'])}: {claims.judged(claim)}\n" in shown
    for part in claim["row"].split("/")[0].split("+"):
        assert re.search(rf"^SEEDS=.* METHODS=.* benchmarks/claims/\S+\.sh.* {part}$", shown, re.M)


def test_a_reference_to_one_side_is_shown_without_the_other(capsys):
    claims.show("fedmd-004@a")
    shown = capsys.readouterr().out
    assert f"\nmean {claims.figure('fedmd-004@a')}, where " in shown
    assert "\na = " in shown and "\nb = " not in shown


# --------------------------------------------------------------------------------------------------
# The pages

@pytest.mark.parametrize("page", [*WITH_ROWS, DOCS / "SEMINAR.md", DOCS.parent / "README.md"],
                         ids=lambda path: path.stem)
def test_every_figure_of_a_page_is_that_of_its_reference_and_links_its_row(page):
    """Its own, or without ± the paper's. In a table of results bold says that the interval of a
    difference does not contain 0. Other numbers with two decimals are settings, or accuracies of
    the rows that the block links."""
    lines = {row["id"]: (str(2 + i), row) for i, row in enumerate(rows_of("claims"))}
    assert len(linked(page.read_text())) > 8
    for block in blocks(page):
        known = set()
        for bold, figure, line, name in linked(block):
            number, row = lines[name.split("@")[0]]
            assert line == number, (name, number)
            known |= {row["a_mean"], row["b_mean"], papers_number(name)}
            if " ± " not in figure:
                assert figure.lstrip("+-") == papers_number(name), name
                continue
            assert figure == claims.figure(name), name
            points = claims.values(name)
            is_difference = block.startswith("|") and not {"a", "b"} & {*name.split("@")}
            if page in WITH_ROWS:
                is_away = abs(mean(points)) > half_width(points)
                assert bool(bold) is (is_difference and is_away), (figure, name)
        rest = SETTING.sub("", LINK.sub("", block))
        assert not FIGURE.search(rest), block
        assert page not in WITH_ROWS or {x.lstrip("+-") for x in NUMBER.findall(rest)} <= known


@pytest.mark.parametrize("page", [page for page in PAGES if page not in WITH_ROWS],
                         ids=lambda path: path.stem)
def test_a_page_without_rows_has_the_figures_of_its_files(page):
    text = page.read_text()
    files = "".join((page.parent / name).read_text()
                    for name in re.findall(r"\(([\w-]+\.(?:txt|csv))\)", text))
    assert [x for x in NUMBER.findall(text) if x not in files] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_is_short_and_has_one_mark(page):
    """Bold for decided figures, and for a paragraph's first words; no dagger, no italics."""
    text = page.read_text()
    assert num_words(text) <= WORDS.get(page.stem, 900)
    assert not re.search("[†‡§]", text)
    assert not re.search(r"(?<![*\w])\*(?!\*)[^*\n]+\*(?!\*)", text)
    tables = re.findall(r"(?:^\|.*\n)+", text, re.M)
    assert all(table.count("\n") <= 13 for table in tables)


def test_the_counts_of_results_are_of_the_rows():
    found, text = claims.counts(), " ".join(RESULTS.read_text().split())
    for sentence in [
            "by the last alone {changed by the last round} of {rows} verdicts differ",
            "{holds} rows hold, {open} are open, {does not hold} do not hold, in {diverged} a run "
            "diverged",
            "{directed} rows claim a sign; chance alone would decide about {by chance}. Holm's "
            "correction leaves {holm} of the {directed}.",
            "Of {decided by the first five} rows decided by seeds 10 to 14, 15 to 19 alone decide "
            "{by the second five alike} alike, none otherwise."]:
        assert sentence.format(**found) in text
    assert found["by the second five otherwise"] == 0


def test_holms_correction_leaves_the_answers_that_results_says():
    rows = [row for row in blocks(RESULTS) if row.startswith("|Is ") or row.startswith("|Are ")]
    assert len(rows) == 11
    for row in rows:
        assert (row.split("|")[-2] == "yes") is (linked(row)[0][-1] in claims.holm()), row


def test_the_removed_rows_are_as_many_as_the_pages_say():
    rows, text = rows_of("removed"), " ".join((DOCS / "results" / "removed.md").read_text().split())
    kinds = [row["kind"] for row in rows]
    verdicts = [row["verdict"] for row in rows if row["kind"] == "removed"]
    held, opened, lost, unjudged = map(verdicts.count, (
        "held", "open", "did not hold", "not judged"))
    assert len(verdicts) == held + opened + lost + unjudged
    assert (f'{len(verdicts)} have no successor ("removed"): {lost} did not hold, {opened} were '
            f"open, {unjudged} could not be judged, {held} held") in text
    assert (f"[{len(verdicts)} older rows](results/removed.md) were removed: {held} held, {opened} "
            f"were open, {lost} did not hold, {unjudged} could not be judged"
            ) in " ".join(RESULTS.read_text().split())
    assert kinds.count("measured again") == 22 and "22 were measured again" in text


# --------------------------------------------------------------------------------------------------
# Pictures

def test_the_picture_is_drawn_from_the_curves_of_today():
    """Otherwise: python benchmarks/claims.py --draw. The picture carries the rows it shows."""
    assert claims.drawn() in html.unescape((DOCS / "pictures" / "claims.svg").read_text())


def test_the_picture_of_results_has_the_rows_of_its_table_and_others_of_the_pages():
    of_table = {linked(row)[0][-1] for row in blocks(RESULTS) if re.match(r"\|(Is|Are) ", row)}
    every = {name for page in WITH_ROWS for *_, name in linked(page.read_text())}
    assert of_table <= {claim["id"] for claim in claims.CLAIMS if claim["first"]} <= every


def test_every_measured_picture_is_drawn_by_a_script():
    drawn = {path.stem for path in DOCS.glob("pictures/*.svg")} - DRAWN_BY_HAND
    assert drawn == {*claims.PLOTS, "claims", "overview_results", "quick-start"}


# --------------------------------------------------------------------------------------------------
# Verdicts

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


@pytest.mark.parametrize("n, t", [(1, 12.7062047), (2, 4.3026527), (4, 2.7764451), (9, 2.2621572),
                                  (14, 2.1447867)])
def test_students_t_has_its_tabulated_quantiles(n, t):
    assert claims.t_probability(t, n) == pytest.approx(.95, abs=1e-7)


def test_holm_stops_at_the_first_that_is_not_small_enough():
    """0.03 is not below 0.05 / 2: so 0.04 does not survive, although it is below 0.05 / 1."""
    assert claims.survivors([.001, .04, .03, .0126]) == {0, 3}       # .0126: below 0.05 / 3
    assert claims.survivors([.049]) == {0} and claims.survivors([.06, .06]) == set()


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A function that keeps {label: {seed: [accuracy of each round, in percent]}} as x.csv."""
    def keep(curves):
        head = {"algo": "a", "scores": {}, "keys": {}, "shares": [], "settings": {}, "data": {},
                "environment": {}}
        write_csv({label: [Run(label, seed, "", head, [
            {"round": t, "MB": t, "accuracy": x / 100} for t, x in enumerate(of_seed)])
            for seed, of_seed in seeds.items()] for label, seeds in curves.items()},
            tmp_path / "x.csv")
        claims.curves.cache_clear()
    monkeypatch.setattr(claims, "CURVES", tmp_path)
    monkeypatch.setitem(claims.BY_ID, "x-001", CLAIM)
    yield keep
    claims.curves.cache_clear()


@pytest.mark.parametrize("rounds, last", [(8, 5), (70, 7)])
def test_differences_are_of_the_last_tenth_of_the_rounds_paired_by_seed(rounds, last, kept):
    def run(points):
        return [points * (t > rounds - last) for t in range(rounds + 1)]
    kept({"a": {10: run(61), 11: run(59), 12: run(60)},              # seed 12 has no base
          "b": {11: run(20), 10: run(10)}})
    assert claims.differences(CLAIM) == pytest.approx([61 - 10, 59 - 20])


def test_a_reference_names_another_measure_of_its_row(kept):
    """Accuracies rise by a point a round; b has a best round in the middle."""
    rise, hill = [*range(21)], [0, *[90] * 5, *range(6, 21)]
    kept({"a": {10: rise, 11: rise}, "b": {10: [0] * 21, 11: hill}})
    assert claims.values("x-001") == pytest.approx([18, 0])          # rounds 16 to 20
    assert claims.values("x-001@10") == pytest.approx([8, 0])        # rounds 6 to 10
    assert claims.values("x-001@last") == pytest.approx([20, 0])
    assert claims.values("x-001@10@last") == pytest.approx([10, 0])
    assert claims.values("x-001@best") == pytest.approx([20, 20 - 90])
    assert claims.values("x-001@11-11") == pytest.approx([0])
    assert claims.values("x-001@a") == pytest.approx([18, 18])
    assert claims.values("x-001@b") == pytest.approx([0, 18])
    assert claims.values("x-001@b@MB") == pytest.approx([18, 18])    # no share: not times 100
    assert claims.values("x-001@a@until-9") == pytest.approx([9, 9])
    assert claims.values("x-001@until-6") == pytest.approx([6 - 1])  # a's MB minus b's


@pytest.mark.parametrize("at_the_end, found", [(10, "diverged"), (40, "open")])
def test_a_run_that_ends_below_half_of_its_best_round_diverged(at_the_end, found, kept):
    good = [50] * 11
    kept({"a": {10: good, 11: good}, "b": {10: good, 11: [50] * 5 + [at_the_end] * 6}})
    assert claims.judged(CLAIM) == found


def test_a_row_has_all_seeds_that_both_of_its_runs_have():
    """Runs of different age may have an accuracy under different names."""
    def seeds(run):
        files, label = run.split("/")
        return {run.seed for file in files.split("+") for run in claims.curves(file)[label]}

    for claim in claims.CLAIMS:
        assert {*claims.pairs(claim)} == seeds(claim["row"]) & seeds(claim["base"]), claim


def test_seeds_of_two_files_are_pooled():
    one, other = "fedsdd-hetero/R4-half", "fedsdd-hetero-again/R4-half"
    both = claims.accuracies("fedsdd-hetero+fedsdd-hetero-again/R4-half", "accuracy")
    assert both == claims.accuracies(one, "accuracy") | claims.accuracies(other, "accuracy")
    assert len(both) == 15


# --------------------------------------------------------------------------------------------------
# The scripts

def test_every_file_of_curves_is_of_a_part_of_a_script():
    text = "".join(path.read_text() for path in SCRIPTS)
    parts = re.findall(r"for part in \$\{\*:-([^}]*)\}", text)
    files = {path.stem for path in DOCS.glob("results/*.json")}
    assert files and files <= set(" ".join(parts).split())
    assert {path.stem for path in DOCS.glob("results/*.csv")} == files | {
        "claims", "overview", "removed", "scale", "written_down"}


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
    kept = {(part, label): {run.seed for run in runs} for part in {part for part, _ in found}
            if (DOCS / "results" / f"{part}.csv").exists()
            for label, runs in claims.curves(part).items() if part != "fedsdd-hetero-rates"}
    assert kept == {run: seeds for run, seeds in found.items()
                    if run[0] != "fedsdd-hetero-rates"}


def test_the_order_of_the_jpeg_files_has_each_file_of_a_class_once():
    numbers = [*map(int, (DOCS.parent / "benchmarks" / "cifar10_jpeg.txt").read_text().split())]
    assert sorted(numbers[:5000]) == [*range(5000)] and sorted(numbers[5000:]) == [*range(1000)]
