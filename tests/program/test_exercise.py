"""exercise.py: what it writes has no body; a right body passes, a wrong one does not."""
import os
import subprocess
import sys

import pytest
from break_it import ROOT
from exercise import exercises, main, solved, template
from exercise import tests_of as graded_by
from functions import own


@pytest.mark.parametrize("name", exercises())
def test_an_exercise_tells_the_formula_in_words_and_has_no_body(name):
    text = template(name)
    exec(text, namespace := {})                                 # what it imports is there
    function = namespace[name.split(".")[1]]
    assert function.__doc__ == own(name).__doc__ and "\\" not in text
    assert text.endswith('"""\n    ...\n') and graded_by(name)
    body = compile(solved(name, text.replace("    ...", "    return 'mine'")), "", "exec")
    exec(body, module := {"__name__": own(name).__module__})
    assert "mine" in module[name.split(".")[1]].__code__.co_consts


def test_what_is_no_exercise_is_an_error_of_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["fedmd.nothing"])
    assert capsys.readouterr().err.endswith("no exercise fedmd.nothing; without a name all are "
                                            "listed\n")
    assert os.listdir() == []


NAME = "fedsdd.distillation_loss"
GRADED = {"right": ("teacher", "student"), "wrong": ("student", "teacher")}  # KL(first || second)


def start_graded(npz, folder):
    """The process of `graded`, which works while other tests run (conftest.py starts it)."""
    for word, (first, second) in GRADED.items():
        path = folder / word / "exercises" / f"{NAME}.py"
        path.parent.mkdir(parents=True)
        path.write_text(template(NAME).replace("    ...", f"""
    log_p, log_q = ((z / temperature).log_softmax(-1) for z in ({first}, {second}))
    log_ratio = (log_p - log_q).masked_fill(log_p.exp() == 0, 0)
    return temperature**2 * (log_p.exp() * log_ratio).sum(-1).mean()"""))
    grade = f"{sys.executable} {ROOT}/tests/exercise.py {NAME}"
    commands = [f"(cd {folder}/{word}; {grade} > printed; echo $? > status)" for word in GRADED]
    return subprocess.Popen("; ".join(commands), shell=True)


@pytest.fixture(scope="module")
def graded(background):
    """A folder where exercise.py has graded a right body and a wrong one."""
    out, process = background["graded"]
    assert process.wait(timeout=300) == 0
    return out


@pytest.mark.parametrize("word", GRADED)
def test_a_right_body_passes_and_swapped_arguments_do_not(graded, word):
    printed, passes = (graded / word / "printed").read_text(), word == "right"
    assert int((graded / word / "status").read_text()) == (not passes)
    assert (" failed" in printed) == (not passes) and printed.count(" passed") == 1 + passes
    assert passes or "0.8041181193982111" in printed         # what the test expects


def test_an_exercise_is_written_where_its_grading_looks_for_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([NAME]) == 0 and "wrote" in capsys.readouterr().out
    assert (tmp_path / "exercises" / f"{NAME}.py").read_text() == template(NAME)
