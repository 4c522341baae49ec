"""The mistakes of break_it.py: what the table must hold, and that its program tells caught,
survived and broken apart."""
import ast
import functools
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import break_it
import pytest
from break_it import MUTANTS, ROOT, mutated, place_of
from functions import EQUATIONS
from test_docs import ALLOWED


def test_every_file_of_algorithms_and_every_function_with_an_equation_has_one():
    files = {m.file for m in MUTANTS}
    functions = {f"{Path(m.file).stem}.{place_of(m)[1]}" for m in MUTANTS}
    expected = {f"algorithms/{path.name}" for path in (ROOT / "algorithms").glob("*.py")
                if path.stem in ALLOWED}
    assert files == expected | {
        "attacks.py", "partition.py", "communication.py", "plateau.py", "secure_sum.py"}
    assert set(EQUATIONS) <= functions


def test_the_readme_tells_how_many():
    told = (f"{len(MUTANTS)} mistakes of one line, {sum(bool(m.whose) for m in MUTANTS)} of them "
            "found in public code")
    assert told in " ".join((ROOT / "README.md").read_text().split())


def test_no_two_are_the_same():
    for names in (("file", "old", "new"), ("file", "what")):
        counts = Counter(tuple(getattr(m, name) for name in names) for m in MUTANTS)
        assert [key for key, count in counts.items() if count > 1] == []


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
    tests = {path.name: {node.name for node in ast.parse(path.read_text()).body
                         if isinstance(node, ast.FunctionDef)}
             for path in (ROOT / "tests").glob("test_*.py")}
    for m in MUTANTS:
        file, function = re.fullmatch(r"(test_\w+\.py)::(test_\w+)(?:\[.+\])?", m.test).groups()
        assert function in tests[file], m


# ------------------------------------------------------------------------------------- the program

HAND = "test_common.py::test_kl_is_from_teacher_to_student_by_hand"
UNNOTICED = {   # what: (old, new, verdict)
    "a comment": ("dim=-1)     # [N, C]", "dim=-1)", "SURVIVED"),
    "a docstring": ("in nats, without the factor", "in nats", "SURVIVED"),
    "a name that is nowhere": ("student_logits.to(wide)", "student_logits.to(side)",
                               "broken: NameError"),
    "no Python": ("student_logits.to(wide) /", "student_logits // /", "broken"),
    "a wrong import": ("import torch.nn.functional as F", "import torch.nn.functions as F",
                       "broken"),
    "an error of another kind": (
        "student_logits.to(wide)", "student_logits.reshape(7)",
        f"broken: RuntimeError in the call of tests/{HAND}")}


@pytest.fixture(scope="module")
def told():
    """{which: (exit status, lines)} of a sample, of what nobody notices, of a test that fails."""
    if not hasattr(os, "fork"):
        pytest.skip("needs os.fork")
    odd = [("algorithms/equations.py", old, new, HAND, what)
           for what, (old, new, _) in UNNOTICED.items()]
    absent = [tuple(MUTANTS[0]._replace(test="test_common.py::test_that_is_not_there"))]
    script = f"""import break_it
print('status', break_it.main(['--every', '24']))
for table in {[odd, absent]!r}:
    break_it.MUTANTS = [break_it.Mutant(*fields) for fields in table]
    print('status', break_it.main([]))"""
    before = {file: (ROOT / file).read_bytes() for file in {m.file for m in MUTANTS}}
    done = subprocess.run([sys.executable, "-B", "-c", script], cwd=ROOT / "tests",
                          capture_output=True, text=True, timeout=600)
    assert before == {file: (ROOT / file).read_bytes() for file in before}, "the repository changed"
    *parts, rest = re.split(r"^status (\d)\n", done.stdout, flags=re.M)
    assert len(parts) == 6 and not rest, done.stdout + done.stderr
    runs = [(int(status), lines.splitlines()) for lines, status in zip(parts[::2], parts[1::2])]
    return dict(zip(("sample", "odd", "absent"), runs))


def test_every_twenty_fourth_mistake_is_caught(told):
    status, (*lines, summary) = told["sample"]
    number = len(MUTANTS[::24])
    assert len(lines) == number and all(line.endswith("  caught") for line in lines)
    assert re.fullmatch(rf"tried {number}, caught {number}, survived 0, broken 0, in \d+ s",
                        summary) and status == 0


def test_what_no_assertion_notices_is_not_called_caught(told):
    """A comment and a docstring survive; whatever ends in an error, anywhere, is broken."""
    status, (*lines, summary) = told["odd"]
    for what, (_, _, verdict) in UNNOTICED.items():
        [line] = [line for line in lines if f"  {what}  " in line]
        assert line.split("  ")[-1].startswith(verdict), what
    assert summary.startswith("tried 6, caught 0, survived 2, broken 4, ") and status == 1


def test_nothing_is_broken_before_all_named_tests_pass(told):
    status, lines = told["absent"]
    assert lines[-1].startswith("nothing is broken yet") and status == 1
    assert any("test_that_is_not_there" in line for line in lines)


def test_the_list_shows_what_is_asked_for_and_breaks_nothing(capsys):
    assert break_it.main(["--list", "--only", "cronus"]) == 0
    shown = capsys.readouterr().out.splitlines()[::4]
    expected = [m for m in MUTANTS if m.file == "algorithms/cronus.py"]
    assert len(shown) == len(expected) > 2
    assert all(m.what in line for m, line in zip(expected, shown))


def test_a_text_that_no_mistake_has_is_refused(capsys):
    with pytest.raises(SystemExit):
        break_it.main(["--only", "no such words"])
    assert "no mistake has 'no such words'" in capsys.readouterr().err
