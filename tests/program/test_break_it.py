"""The mistakes of break_it.py: what the table must hold, and that its program tells caught,
survived and broken apart."""
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from break_it import MUTANTS, mutated, place_of
from commands import ROOT, shipped
from functions import EQUATIONS


def test_every_file_of_algorithms_and_every_function_with_an_equation_has_one():
    files = {m.file for m in MUTANTS}
    functions = {f"{Path(m.file).stem}.{place_of(m)[1]}" for m in MUTANTS}
    algorithms = {f"algorithms/{name}.py" for name in shipped()}
    without = {f"algorithms/{name}.py" for name in ("__init__", "fedmd_pooled")}
    assert files >= algorithms - without | {"attacks.py", "partition.py", "experiment/plateau.py"}
    assert set(EQUATIONS) <= functions


@functools.cache
def compiled(text):
    return compile(text, "", "exec", optimize=2)


def test_each_is_a_part_of_one_line_that_changes_code_and_there_once():
    """Code, and not only a comment or a docstring, which optimize=2 leaves out."""
    assert len(MUTANTS) == len({(m.file, m.old, m.new) for m in MUTANTS})
    for m in MUTANTS:
        assert compiled((ROOT / m.file).read_text()) != compiled(mutated(m)), m


def test_each_names_a_test_that_exists():
    for m in MUTANTS:
        file, test = re.fullmatch(r"(\w+/test_\w+\.py)::(test_\w+)(?:\[.+\])?", m.test).groups()
        assert re.search(rf"^def {test}\(", (ROOT / "tests" / file).read_text(), re.M), m


# ------------------------------------------------------------------------------------- the program

HAND = "equations/test_distillation.py::test_distillation_is_t_squared_times_mean_kl[fedsdd]"
VERDICTS = {    # what: (old, new, verdict)
    "a wrong sum": ("log_q)).sum(-1)", "log_q)).mean(-1)", "caught"),
    "a docstring": ("the mean over the batch: a scalar", "a scalar", "SURVIVED"),
    "a name that is nowhere": ("student / temperature", "student / heat",
                               f"broken: NameError in the call of tests/{HAND}"),
    "an error of another kind": ("student / temperature", "student.reshape(7)",
                                 f"broken: RuntimeError in the call of tests/{HAND}")}


def start_told(npz, folder):
    """The process of `told` (conftest.py): a mistake of each kind."""
    odd = [("algorithms/fedsdd.py", old, new, HAND, what)
           for what, (old, new, _) in VERDICTS.items()]
    script = f"""import break_it
break_it.MUTANTS = [break_it.Mutant(*fields) for fields in {odd!r}]
print('status', break_it.main([]))"""
    return subprocess.Popen([sys.executable, "-c", script], cwd=ROOT / "tests",
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def told(background):
    """(exit status, lines) of the odd ones."""
    if not hasattr(os, "fork"):
        pytest.skip("needs os.fork")
    out, errors = background["told"][1].communicate(timeout=600)
    *lines, last = out.splitlines()
    assert re.fullmatch(r"status \d", last), out + errors
    return int(last[-1]), lines


def test_only_an_assertion_that_fails_is_called_caught(told):
    """A docstring survives; what ends in an error of another kind is broken."""
    status, (*lines, summary) = told
    for line in lines:
        [what] = [what for what in VERDICTS if f"  {what}  " in line]
        assert line.split("  ")[-1] == VERDICTS[what][2]
    assert summary.startswith("tried 4, caught 1, survived 1, broken 2, ") and status == 1
