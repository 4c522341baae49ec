"""The pages of results say what the files in docs/results say."""
import html
import re
import statistics
from pathlib import Path

import pytest

from benchmarks import verdicts

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "RESULTS.md", *sorted(DOCS.glob("results/*.md"))]
TABLES = (DOCS.parent / "benchmarks" / "claims" / "tables.sh").read_text()
DRAWN_BY_HAND = {"overview", "without_public", "worked_round"}
OF_README = {"quick-start"}       # the curves of its command
CLAIM = verdicts.Claim("", "", "greater", "", "", "")


def test_the_table_of_the_page_is_what_verdicts_prints():
    """Otherwise: python benchmarks/verdicts.py --write"""
    _, rest = verdicts.PAGE.read_text().split(verdicts.START)
    assert rest.split(verdicts.END)[0] == verdicts.table()


def test_the_picture_is_drawn_from_the_figures_of_today():
    """Otherwise: python benchmarks/verdicts.py --draw. The picture carries the table it shows."""
    assert verdicts.table() in html.unescape(verdicts.PICTURE.read_text())


@pytest.mark.parametrize("claimed, points, found", [
    ("greater", [1, 2, 1, 2, 1], "holds"), ("lower", [1, 2, 1, 2, 1], "does not hold"),
    ("greater", [3, 3, 3, 3, -1], "holds"),                      # four; mean 2.2 above 1.8
    ("greater", [1, 1, 1, 1, -3], "no difference seen"),         # four; mean 0.2 below 1.8
    ("greater", [9, 9, 9, -1, -1], "no difference seen"),        # three
    ("greater", [1, 1, 1, 1, 0], "holds"), ("greater", [1, 0, 0, 0, 0], "no difference seen"),
    ("lower", [-1, -2, -1, -2, -1], "holds"),
    ("level", [1, 2, -1, -2, 1], "as claimed"), ("level", [1, 2, 1, 2, 1], "does not hold"),
    ("not lower", [1, 2, -1, -2, 1], "as claimed"), ("not lower", [1, 2, 1, 2, 1], "holds"),
    ("not lower", [-1, -2, -1, -2, -1], "does not hold")])
def test_verdicts_follow_the_rule_of_the_page(claimed, points, found):
    assert verdicts.verdict(CLAIM._replace(claimed=claimed), points) == found


def test_what_hardly_acts_cannot_be_judged():
    assert verdicts.verdict(CLAIM._replace(acts=False), [1, 1, 1, 1, 1]) == "cannot be judged"


def test_differences_are_paired_by_seed_and_of_the_round_that_is_named(tmp_path, monkeypatch):
    """A table as experiment.plot prints it, below the name of its runs; seed 12 has no base."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "x.txt").write_text("""\
fifth
settings: rounds=9

final accuracy, %  mean +- std     minus b accuracy  last round  seed 10  seed 11  seed 12
a                  50.00 +- 1.00                  -           5    51.00    49.00    50.00
b                  10.00 +- 1.00          reference           5    10.00    20.00        -

final accuracy, %  mean +- std     minus b accuracy  last round  seed 10  seed 11  seed 12
a                  60.00 +- 1.00  +45.01 +- 8.48, 2 of 2       9    61.00    59.00    60.00
b                  10.00 +- 1.00          reference           9    10.00    20.00        -
""")
    monkeypatch.setattr(verdicts, "DOCS", tmp_path)
    claim = CLAIM._replace(file="x", row="fifth/a", base="fifth/b")
    assert verdicts.differences(claim) == [61 - 10, 59 - 20]
    assert verdicts.differences(claim._replace(round=5)) == [51 - 10, 49 - 20]
    assert verdicts.difference_text(claim) == "+45.01 ± 8.48, 2 of 2"        # as the table has it
    other = claim._replace(row="fifth/b", base="fifth/a")           # no table subtracts the row a
    assert verdicts.difference_text(other) == "-45.00 ± 8.49, 2 of 2"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_every_figure_of_a_page_is_in_a_file_that_it_links(page):
    """All with two decimals but the papers' own, in italics; the claims' table is tested above."""
    text = re.sub(f"{verdicts.START}.*{verdicts.END}", "", page.read_text(), flags=re.S)
    ours = re.sub(r"\*[+-]?\d[^*\n]*\*", "", text)
    figures = re.findall(r"(?<![\w.])-?\d+\.\d\d\b(?: ± \d+\.\d\d\b)?", ours)
    files = [page.parent / name for name in re.findall(r"\(([\w/-]+\.txt)\)", ours)]
    kept = re.sub(r" (?:\+-|±) +", " ± ", "".join(path.read_text() for path in files))
    assert [x for x in figures if x not in kept] == []
    assert figures or page.stem in ("RESULTS", "cost", "claims")


def test_every_measured_picture_has_its_command():
    drawn = set(re.findall(r"\bpicture ([a-z]\S+) ", TABLES)) | {verdicts.PICTURE.stem}
    assert {path.stem for path in DOCS.glob("pictures/*.svg")} == drawn | DRAWN_BY_HAND | OF_README


def test_tables_are_made_of_every_script_of_a_claim():
    scripts = {path.stem for path in (DOCS.parent / "benchmarks" / "claims").glob("*.sh")}
    made = set(" ".join(re.findall(r'^claims\+?="(.*)"$', TABLES, re.M)).split())
    assert made - {"fedgkt-noniid"} == scripts - {"common", "tables"}


@pytest.mark.parametrize("path", sorted(DOCS.glob("results/*.txt")), ids=lambda path: path.stem)
def test_the_differences_of_a_table_are_those_of_its_seeds(path):
    """To within the rounding of the seeds' columns."""
    for table in re.findall(r"^(?:final|best) .*\n(?:.+\n)+", path.read_text(), re.M):
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
                    shown = float(found[1]), float(found[2])
                    assert shown == pytest.approx(
                        (statistics.mean(points), statistics.stdev(points)), abs=0.015), row
