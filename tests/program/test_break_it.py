"""The mistakes of break_it.py: what the table must hold, and that its program tells caught,
survived and broken apart."""
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from break_it import MUTANTS, ROOT, mutated, place_of
from commands import shipped
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


def test_each_is_a_part_of_one_line_that_changes_code():
    """Code, and not only a comment or a docstring, which optimize=2 leaves out."""
    for m in MUTANTS:
        text = (ROOT / m.file).read_text()
        assert text.count(m.old) == 1 and "\n" not in m.old + m.new, m
        assert compiled(text) != compiled(mutated(text, m)), m


def test_each_names_a_test_that_exists():
    for m in MUTANTS:
        file, test = re.fullmatch(r"(\w+/test_\w+\.py)::(test_\w+)(?:\[.+\])?", m.test).groups()
        assert re.search(rf"^def {test}\(", (ROOT / "tests" / file).read_text(), re.M), m


# ------------------------------------------------------------------------------------- the program

HAND = "equations/test_equations.py::test_kl_is_from_teacher_to_student_by_hand"
UNNOTICED = {   # what: (old, new, verdict)
    "a docstring": ("in nats, without the factor", "in nats", "SURVIVED"),
    "a name that is nowhere": ("student_logits / temperature", "student_logits / heat",
                               "broken: NameError"),
    "an error of another kind": (
        "student_logits / temperature", "student_logits.reshape(7)",
        f"broken: RuntimeError in the call of tests/{HAND}")}


def start_told(npz, folder):
    """The process of `told` (conftest.py): a sample, and what nobody notices."""
    odd = [("algorithms/equations.py", old, new, HAND, what)
           for what, (old, new, _) in UNNOTICED.items()]
    script = f"""import break_it, io, sys
sys.stdin = io.StringIO('1 1\\n2 1\\nabout\\n9 9\\n')
print('status', break_it.main(['--quiz', '--only', 'fedgems.py entropy ']))
print('status', break_it.main(['--every', '24']))
break_it.MUTANTS = [break_it.Mutant(*fields) for fields in {odd!r}]
print('status', break_it.main([]))"""
    return subprocess.Popen([sys.executable, "-B", "-c", script], cwd=ROOT / "tests",
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def told(background):
    """{which: (exit status, lines)}."""
    if not hasattr(os, "fork"):
        pytest.skip("needs os.fork")
    out, errors = background["told"][1].communicate(timeout=600)
    *parts, rest = re.split(r"^status (\d)\n", out, flags=re.M)
    assert len(parts) == 6 and not rest, out + errors
    runs = [(int(status), lines.splitlines()) for lines, status in zip(parts[::2], parts[1::2])]
    return dict(zip(("quiz", "sample", "odd"), runs))


def test_every_twenty_fourth_mistake_is_caught(told):
    status, (*lines, summary) = told["sample"]
    number = len(MUTANTS[::24])
    assert len(lines) == number and all(line.endswith("  caught") for line in lines)
    assert re.fullmatch(rf"tried {number}, caught {number}, survived 0, broken 0, in \d+ s",
                        summary) and status == 0


def test_a_quiz_says_where_a_mistake_is_only_after_a_right_guess(told):
    """A right guess, a wrong one, and what is no guess."""
    status, lines = told["quiz"]
    questions, right, wrong, *rest = "\n".join(lines).split("Which test fails after")
    assert "1  the mean over the classes\n" in questions and "::test_eq3_by_hand\n" in questions
    assert re.search(r"Yes, it fails. algorithms/fedgems.py:\d+  the mean over the classes", right)
    assert "No, it passes." in wrong and len(rest) == 3 and status == 0
    assert not any(re.search(r"\.py:\d|entr\(", part) for part in (questions, wrong, *rest))


def test_what_no_assertion_notices_is_not_called_caught(told):
    """A docstring survives; what ends in an error of another kind is broken."""
    status, (*lines, summary) = told["odd"]
    for what, (_, _, verdict) in UNNOTICED.items():
        [line] = [line for line in lines if f"  {what}  " in line]
        assert line.split("  ")[-1].startswith(verdict), what
    assert summary.startswith("tried 3, caught 0, survived 1, broken 2, ") and status == 1
