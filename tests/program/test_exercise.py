"""exercise.py: an exercise can be solved; a wrong function is told what is wrong."""
import re
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from break_it import ROOT
from exercise import exercises, is_written, known_mistakes, main, mistakes_in, own, template

from algorithms.equations import distillation_loss, kl_divergence
from algorithms.fedgems import entropy

PROGRAM = ROOT / "tests" / "exercise.py"


@pytest.mark.parametrize("name", exercises())
def test_an_exercise_tells_the_formula_in_words_and_has_no_body(name):
    text = template(name)
    exec(text, namespace := {})                                 # what it imports is there
    function = namespace[name.split(".")[1]]
    assert function.__doc__ == own(name).__doc__ and "\\" not in text
    assert not is_written(text, name) and mistakes_in(name)
    for empty in ("pass", '"""Text."""\n    ...', "pass\n    pass"):
        assert not is_written(text.replace("    ...", "    " + empty), name)
    assert is_written(text.replace("    ...", "    return 1"), name)
    assert not is_written("", name)


def wrong_server_loss(logits, labels, teacher_logits, has_teacher, epsilon):
    ce = F.cross_entropy(logits, labels, reduction="none")
    kl = kl_divergence(teacher_logits.nan_to_num(), logits)
    return torch.where(has_teacher, (1 - epsilon) * ce + epsilon * kl, ce).mean()


def inverse(client_logits):
    return 1 / entropy(client_logits).clamp(min=1e-6)


WRONG = [       # (exercise, what a student may write, the start of the mistake's name)
    ("equations.distillation_loss", lambda p, q, T=1.0: T**2 * kl_divergence(q, p, T).mean(),
     "KL(student || teacher)"),
    ("equations.distillation_loss", lambda p, q, T=1.0: T**2 * F.kl_div(
        F.log_softmax(p / T, 1), F.softmax(q / T, 1), reduction="batchmean"),
     "KL(student || teacher)"),
    ("equations.distillation_loss", lambda p, q, T=1.0: kl_divergence(p, q, T).mean(),
     "no temperature²"),
    ("equations.kl_divergence", lambda p, q, T=1.0: F.kl_div(
        F.log_softmax(q / T, 1), F.softmax(p / T, 1), reduction="none").mean(1),
     "the mean over classes"),
    ("fedgems.entropy_weights", lambda z, reliable: inverse(z).softmax(0) * reliable,
     "softmax over all clients"),
    ("fedgems.entropy_weights", lambda z, reliable: torch.where(
        reliable, inverse(z).softmax(0), 0), "softmax over all clients"),
    ("fedgems.entropy_weights", lambda z, reliable: (inverse(z) * reliable).softmax(0) * reliable,
     "masked with 0"),
    ("fedgems.entropy_weights", lambda z, reliable: (1 / inverse(z)).masked_fill(
        ~reliable, -torch.inf).softmax(0), "H for 1/H"),
    ("fedgems.server_loss", wrong_server_loss, "epsilon on the wrong term"),
    ("fedgkt.server_loss", lambda z, labels, z_c, T, distill=True: F.cross_entropy(z, labels)
     + distillation_loss(z_c, z, T) / T**2, "no temperature²"),
    ("equations.ensemble_logits", lambda z: z.softmax(-1).mean(0).log(),
     "the mean of the softmaxes"),
    ("fedmd.digest_loss", lambda z, consensus: F.mse_loss(z, consensus), "the squared error"),
    ("attacks.lie", lambda benign, z: benign.mean(0) + z * benign.std(0), "the sample's standard")]


@pytest.mark.parametrize("name, students, start", WRONG)
def test_a_known_mistake_is_named(name, students, start):
    assert any(m.what.startswith(start) for m in known_mistakes(name, students))


@pytest.mark.parametrize("name", exercises())
def test_what_is_right_has_no_mistake_and_what_raises_or_returns_nothing_no_name(name):
    assert known_mistakes(name, own(name)) == []
    assert known_mistakes(name, lambda: None) == []
    if name != "evaluation.disagreement":                   # None for a single member
        assert known_mistakes(name, lambda *arguments: None) == []


# ------------------------------------------------------------------------------------- the program

NAME = "equations.distillation_loss"
PATH = f"exercises/{NAME}.py"


def test_writing_a_file_that_has_no_body_yet_or_is_not_python(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([NAME]) == 0 and capsys.readouterr().out.startswith(f"wrote {PATH}: write ")
    assert main([NAME]) == 1 and f"{PATH} has no body of dist" in capsys.readouterr().out
    path = tmp_path / PATH
    assert path.read_text() == template(NAME)
    path.write_text(template(NAME).replace("    ...", "    return ("))
    with pytest.raises(SystemExit, match="1"):
        main([NAME])
    assert re.match(rf'  File "{PATH}", line \d+\n(.*\n)+SyntaxError', capsys.readouterr().err)


def test_what_is_no_exercise_is_an_error_of_one_line(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["fedmd.nothing"])
    assert capsys.readouterr().err.endswith("no exercise fedmd.nothing; without a name all are "
                                            "listed\n")


BODY = "    return temperature**2 * kl_divergence({}, {}, temperature).mean()"
GRADES = [      # (the arguments of kl_divergence, exit status, what is printed)
    (("teacher_logits", "student_logits"), 0,
     r".*\n.*\n\n(holds  .*\n){5,}\n(\d+) of \2 claims hold\n"),
    (("student_logits", "teacher_logits"), 1,
     r"(.*\n)+    assert loss.item\(\) == .*\n(.*\n)+E     Expected: 0.8041181193982111 .*\n"
     r"(.*\n)+DOES NOT HOLD  distillation is t squared times mean kl\n(.*\n)+"
     r"Known mistake: KL\(student \|\| teacher\): .*\n\n0 of 1 claims hold\n")]


def start_background(npz, folder):
    bodies = [template(NAME).replace("    ...", BODY.format(*given)) for given, *_ in GRADES]
    script = f"""import os, subprocess
os.mkdir("exercises")
for text in {bodies!r}:
    open({PATH!r}, "w").write(text)
    done = subprocess.run({[sys.executable, str(PROGRAM), NAME]!r}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    print(done.returncode, done.stdout, sep="\\n", end="\\0")"""
    return subprocess.Popen([sys.executable, "-c", script], cwd=folder, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_a_right_body_holds_and_swapped_arguments_are_told(background):
    out, _ = background["background"][1].communicate(timeout=300)
    *runs, rest = out.split("\0")
    assert len(runs) == len(GRADES) and not rest, out
    for run, (_, status, told) in zip(runs, GRADES):
        assert re.fullmatch(rf"{status}\n{told}", run), run
