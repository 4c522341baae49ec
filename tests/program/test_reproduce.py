"""benchmarks/papers: every command is understood, and REPRODUCE.md has every table and figure."""
import os
import re
import subprocess
from pathlib import Path

import pytest

from experiment.settings import read

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "REPRODUCE.md").read_text()
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
LAST = {       # the papers number their tables and figures from 1 to this
    "FedGEMS": {"Table": 13, "Figure": 7}, "FedMD": {"Table": 4},
    "FedGKT": {"Table": 12, "Figure": 7}, "FedSDD": {"Table": 10, "Figure": 2}}


def printed(paper, *item):
    """The lines that the script of a paper prints."""
    script = ROOT / "benchmarks" / "papers" / f"{paper.lower()}.sh"
    return subprocess.run([script, *item], capture_output=True, text=True,
                          check=True).stdout.splitlines()


ITEMS = [(paper, line.split()[0]) for paper in LAST for line in printed(paper)]


@pytest.mark.parametrize("paper, item", ITEMS)
def test_every_command_of_an_item_is_understood(paper, item):
    commands = printed(paper, item)
    assert commands
    for command in commands:
        start, flags = command.split(" ", 2)[:2], command.split()[2:]
        assert start == ["python", "fedkd_minimal.py"] and {"--paper", "--dataset"} <= {*flags}
        read(flags)


@pytest.mark.parametrize("code, started", [(2, 4), (130, 2)])
def test_a_refused_command_does_not_stop_the_next_ones_any_other_end_does(tmp_path, code, started):
    """The second of Table 4's four commands ends so."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho x\ncase "$*" in *emnist-letters*) exit {code};; esac\n')
    python.chmod(0o755)
    done = subprocess.run([ROOT / "benchmarks" / "papers" / "fedmd.sh", "table4", "--run"],
                          capture_output=True, text=True,
                          env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert (done.returncode, done.stdout.count("x")) == (code, started)


@pytest.mark.parametrize("paper", LAST)
def test_every_table_and_figure_has_a_row(paper):
    """Or a place in the sentence of those without a run. The items in the rows are the script's."""
    for kind, last in LAST[paper].items():
        rows, _, without_run = SECTIONS[paper].partition("\nNo run: ")
        cells = re.findall(rf"^\| {kind}s? (\d+(?:, \d+)*)", rows, re.M) + re.findall(
            rf"{kind}s? (\d+(?:, \d+)*)", " ".join(without_run.split()))
        assert {int(k) for cell in cells for k in cell.split(", ")} == {*range(1, last + 1)}, kind
    named = re.findall(r"^\| [^|]+\| ((?:`\w+`(?:, )?)*) \|", SECTIONS[paper], re.M)
    items = {item for of, item in ITEMS if of == paper}
    assert {*re.findall(r"`(\w+)`", " ".join(named))} == items
