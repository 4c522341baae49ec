"""The pages of results say what the files in docs/results say."""
import html
import re
import statistics
import subprocess
from pathlib import Path

import pytest

from benchmarks import verdicts
from experiment import plot

DOCS = Path(__file__).parents[2] / "docs"
SCRIPTS = DOCS.parent / "benchmarks" / "claims"
GENERATED = DOCS / "results" / "claims.md"
PAGES = [DOCS / "RESULTS.md", *sorted({*DOCS.glob("results/*.md")} - {GENERATED})]
TABLES = (SCRIPTS / "tables.sh").read_text()
DRAWN_BY_HAND = {"overview", "without_public", "worked_round"}
CLAIM = {"file": "x", "row": "fifth/a", "base": "fifth/b", "metric": "accuracy",
         "base_metric": "accuracy", "round": "", "margin": "", "unjudged": "", "claimed": "greater"}


def test_the_page_of_claims_is_what_verdicts_writes():
    """Otherwise: python benchmarks/verdicts.py --write"""
    assert GENERATED.read_text() == verdicts.page()


def test_the_picture_is_drawn_from_the_figures_of_today():
    """Otherwise: python benchmarks/verdicts.py --draw. The picture carries the page it shows."""
    assert verdicts.page() in html.unescape((DOCS / "pictures" / "claims.svg").read_text())


@pytest.mark.parametrize("claimed, middle, width, found", [
    ("greater", 2, 1, "holds"), ("greater", 2, 3, "open"), ("greater", -2, 1, "does not hold"),
    ("lower", -2, 1, "holds"), ("lower", -2, 3, "open"), ("lower", 2, 1, "does not hold"),
    ("level", 0, .9, "holds"), ("level", .5, .4, "holds"),       # without 0, but within a point
    ("level", 0, 2, "open"), ("level", .9, .5, "does not hold"), ("level", -3, 1, "does not hold"),
    ("not lower", 3, 1, "holds"), ("not lower", 0, .9, "holds"), ("not lower", -.5, .4, "holds"),
    ("not lower", -.5, 1, "open"), ("not lower", -3, 1, "does not hold"),
    ("not greater", -3, 1, "holds"), ("not greater", 0, 2, "open"),
    ("not greater", 3, 1, "does not hold")])
def test_verdicts_follow_the_rule_of_the_page(claimed, middle, width, found):
    """Two seeds on both sides of the mean: the deviation is t / sqrt(2) times smaller."""
    points = [middle - width / 12.706, middle + width / 12.706]
    assert plot.half_width(points) == pytest.approx(width)
    assert verdicts.verdict(CLAIM | {"claimed": claimed}, points) == found


def test_a_margin_is_how_much_lower_is_still_not_lower():
    points = [-4.1, -3.9]                                # -4 +- 1.27
    claim = CLAIM | {"claimed": "not lower"}
    assert verdicts.verdict(claim | {"margin": "6"}, points) == "holds"
    assert verdicts.verdict(claim | {"margin": "5"}, points) == "does not hold"


def test_what_cannot_be_judged_has_no_verdict():
    assert verdicts.verdict(CLAIM | {"unjudged": "chance"}, [1, 1]) == "cannot be judged"


def test_ours_are_not_counted_among_the_papers_claims(monkeypatch):
    papers = sum(claim["source"] != "ours" for claim in verdicts.CLAIMS)
    assert papers == len(verdicts.CLAIMS) - 2
    claims = len({verdicts.named(claim) for claim in verdicts.CLAIMS if claim["source"] != "ours"})
    assert f"The papers' {claims} claims have {papers} rows: " in verdicts.page()


def test_differences_are_paired_by_seed_and_of_the_round_that_is_named(tmp_path, monkeypatch):
    """Tables as experiment.plot prints them, below the name of their runs; seed 12 has no base."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "x.txt").write_text("""\
fifth
settings: rounds=9

final accuracy, %  mean +- std     minus b accuracy  last round  seed 10  seed 11  seed 12
a                  50.00 +- 1.00                  -           5    51.00    49.00    50.00
b                  10.00 +- 1.00          reference           5    10.00    20.00        -

mean of 2 rounds accuracy, %  mean +- 95%  minus b accuracy  last round  seed 10  seed 11  seed 12
a                                   60.00             45.01           9    61.00    59.00    60.00
b                                   10.00         reference           9    10.00    20.00        -

final accuracy, %  mean +- 95%     minus b accuracy  last round  seed 10  seed 11  seed 12
a                        70.00                45.01           9    71.00    69.00    60.00
b                        10.00            reference           9    10.00    20.00        -
""")
    monkeypatch.setattr(verdicts, "DOCS", tmp_path)
    verdicts.read.cache_clear()
    assert verdicts.differences(CLAIM) == ([61 - 10, 59 - 20], True)     # the mean of rounds
    assert verdicts.differences(CLAIM | {"round": "5"}) == ([51 - 10, 49 - 20], False)
    verdicts.read.cache_clear()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_every_figure_of_a_page_is_in_a_file_that_it_links(page):
    """All with two decimals but the papers' own, in italics."""
    ours = re.sub(r"\*[+-]?\d[^*\n]*\*", "", page.read_text())
    figures = re.findall(r"(?<![\w.])-?\d+\.\d\d\b(?: ± \d+\.\d\d\b)?", ours)
    files = [page.parent / name for name in re.findall(r"\(([\w/-]+\.(?:txt|md))\)", ours)]
    kept = re.sub(r" (?:\+-|±) +", " ± ", "".join(path.read_text() for path in files))
    assert [x for x in figures if x not in kept] == []
    assert figures or page.stem in ("RESULTS", "cost")


def test_every_measured_picture_has_its_command():
    drawn = set(re.findall(r"\bpicture ([a-z]\S+) ", TABLES)) | {"claims", "quick-start"}
    assert {path.stem for path in DOCS.glob("pictures/*.svg")} == drawn | DRAWN_BY_HAND


def test_tables_are_made_of_every_script_of_a_claim():
    scripts = {path.stem for path in SCRIPTS.glob("*.sh")}
    made = set(" ".join(re.findall(r'^claims\+?="(.*)"$', TABLES, re.M)).split())
    assert made - {"fedgkt-noniid"} == scripts - {"common", "tables"}


@pytest.mark.parametrize("path", sorted({*SCRIPTS.glob("*.sh")} - {SCRIPTS / "common.sh"}),
                         ids=lambda path: path.stem)
def test_help_is_the_head_of_a_script_and_starts_no_run(path):
    shown = subprocess.run([path, "--help"], capture_output=True, text=True, check=True).stdout
    head = re.match(r"#!.*\n((?:#.*\n)+)", path.read_text())[1]
    assert shown == re.sub("^# ?", "", head, flags=re.M)


@pytest.mark.parametrize("path", sorted(DOCS.glob("results/*.csv.gz")), ids=lambda path: path.name)
def test_a_file_of_curves_has_the_values_of_its_tables(path):
    """Of the last round; the file is read as experiment.plot reads it."""
    compared = 0
    curves = plot.read_runs([path])
    for (row, metric), rounds in verdicts.read(path.name.removesuffix(".csv.gz")).items():
        runs = curves.get(row, curves.get(row.rpartition("/")[2], []))
        for seed, value in plot.values_of(runs, metric, lambda values: values[-1]).items():
            if plot.is_share(metric) and runs[0]["rounds"] in rounds:
                final = rounds[runs[0]["rounds"]]["final"]
                assert float(final[f"seed {seed}"]) == pytest.approx(value, abs=0.006)
                compared += 1
    assert compared


@pytest.mark.parametrize("path", sorted(DOCS.glob("results/*.txt")), ids=lambda path: path.stem)
def test_the_differences_of_a_table_are_those_of_its_seeds(path):
    """To within the rounding of the seeds' columns."""
    for table in re.findall(r"^(?:mean|final|best) .*\n(?:.+\n)+", path.read_text(), re.M):
        head, *rows = (re.split("  +", line) for line in table.splitlines())
        rows = [dict(zip(head, row)) for row in rows]
        seeds = [name for name in head if name.startswith("seed ")]
        columns = [name for name in head if name.startswith("minus ")]
        for column, base in ((x, row) for x in columns for row in rows if row[x] == "reference"):
            for row in rows:
                found = re.match(r"([+-][\d.]+) \+- ([\d.]+)", row[column])
                points = [float(row[seed]) - float(base[seed]) for seed in seeds
                          if "-" not in (row[seed], base[seed])]
                if found:
                    # Columns are rounded to 0.005; of two seeds an interval has 12.7 times that.
                    off = 0.015 if len(points) > 2 else 0.15
                    shown, half = float(found[1]), plot.half_width(points)
                    assert shown == pytest.approx(statistics.mean(points), abs=off), row
                    assert float(found[2]) == pytest.approx(half, abs=off), row
