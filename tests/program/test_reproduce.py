"""REPRODUCE.md: its commands are understood, and no table or figure is missing."""
import re
from pathlib import Path

import pytest

from experiment.plan import plan_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "REPRODUCE.md").read_text()
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
ROWS = [row for row in PAGE.splitlines() if "`python fedkd_minimal.py" in row]
LAST = {       # the papers number their tables and figures from 1 to this
    "FedGEMS": {"Table": 13, "Figure": 7}, "FedMD": {"Table": 4},
    "FedGKT": {"Table": 12, "Figure": 7}, "FedSDD": {"Table": 10, "Figure": 2}}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_every_command_and_its_variants_are_understood(row):
    """The command of a row, and with each flag behind it: a later flag replaces an earlier one."""
    codes = re.findall(r"`([^`]*)`", row)
    [command] = [code.split()[2:] for code in codes if code.startswith("python fedkd_minimal.py ")]
    assert "--paper" in command and "--dataset" in command
    for variant in ["", *(code for code in codes if code.startswith("--"))]:
        plan_of(command + variant.split())


def test_a_row_of_the_page_has_one_command_and_five_cells():
    assert PAGE.count("fedkd_minimal.py") == len(ROWS) > 40
    rows = [row for text in SECTIONS.values() for row in text.splitlines() if row.startswith("|")]
    assert {row.count("|") for row in rows} == {6}


@pytest.mark.parametrize("paper", SECTIONS)
def test_every_table_and_figure_has_a_row(paper):
    for kind, last in LAST[paper].items():
        cells = re.findall(rf"^\| {kind}s? (\d+(?:, \d+)*)", SECTIONS[paper], re.M)
        assert {int(k) for cell in cells for k in cell.split(", ")} == {*range(1, last + 1)}, kind
