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


@pytest.mark.parametrize("teacher, student, passes", [
    ("teacher", "student", True), ("student", "teacher", False)])
def test_a_right_body_passes_and_swapped_arguments_do_not(tmp_path, teacher, student, passes):
    name = "fedsdd.distillation_loss"
    command = [sys.executable, ROOT / "tests" / "exercise.py", name]
    subprocess.run(command, cwd=tmp_path, check=True)
    path = tmp_path / "exercises" / f"{name}.py"
    path.write_text(path.read_text().replace("    ...", f"""
    log_p, log_q = ((z / temperature).log_softmax(-1) for z in ({teacher}, {student}))
    log_ratio = (log_p - log_q).masked_fill(log_p.exp() == 0, 0)
    return temperature**2 * (log_p.exp() * log_ratio).sum(-1).mean()"""))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == (not passes)
    assert (" failed" in done.stdout) == (not passes) and done.stdout.count(" passed") == 1 + passes
    assert passes or "0.8041181193982111" in done.stdout     # what the test expects
