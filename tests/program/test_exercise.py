"""exercise.py: what it writes has no body, every right form passes, mistakes are noticed."""
import csv
import inspect
import math
from pathlib import Path

import exercise
import pytest
import torch
import torch.nn.functional as F
from break_it import MUTANTS, place_of
from exercise import EXERCISES, expected, grade, main, mistakes, template
from functions import own
from one_round import fedsdd as one_round
from toys import federation, same

from algorithms import fedsdd
from algorithms.fedgems import entropy
from federation import make_rng, predict_models

every_exercise = pytest.mark.parametrize("name", EXERCISES)


@every_exercise
def test_an_exercise_has_the_docstring_no_body_and_every_symbol_that_the_projects_body_uses(name):
    text = template(name)
    namespace = {}
    exec(text, namespace)
    function = namespace[name.split(".")[1]]
    assert function.__doc__ == own(name).__doc__ and "\\" not in text
    assert text.endswith('"""\n    ...\n')
    assert inspect.getclosurevars(own(name)).globals.keys() <= namespace.keys()


def test_the_program_lists_its_exercises_and_refuses_others_in_one_line(capsys):
    assert main([]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == [*EXERCISES]
    with pytest.raises(SystemExit, match="2"):
        main(["fedmd.nothing"])
    assert "no exercise fedmd.nothing" in capsys.readouterr().err


@every_exercise
def test_the_docstring_has_the_equation_and_names_a_gradient_that_must_not_be(name):
    docstring = " ".join(own(name).__doc__.split())
    assert EXERCISES[name][1] in docstring
    slopes = [(label, x) for found in expected(name) if isinstance(found, dict)
              for label, x in found.items() if label.startswith("gradient")]
    none = {label for label, _ in slopes} - {label for label, x in slopes if x.any()}
    assert not none or "no gradient" in docstring


@pytest.mark.parametrize("text, answer", [
    ("def fuse(client_logits, weights):\n    '''It.'''\n    ...",
     "fuse has no body yet: write it in the place of `...`"),
    ("fuse = ", "SyntaxError: invalid syntax (fedgems.fuse.py, line 1)"),
    ("def other():\n    ...", "has no function fuse"),
    ("import algorithms.fedgems as f\ndef fuse(client_logits, weights):\n"
     "    return f.fuse(client_logits, weights)", "this is the project's function: write its body"),
    ("def fuse(client_logits, weights):\n    client_logits + 1", "wrong: it returns None"),
    ("def fuse(client_logits, weights):\n    client_logits *= 2\n    return client_logits[0]",
     "wrong: it changes its arguments"),
    ("def fuse(client_logits, weights):\n    return client_logits @ weights",
     "wrong: it raises RuntimeError in line 2")])
def test_what_cannot_be_graded_is_told_in_a_sentence(text, answer, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exercises").mkdir()
    (tmp_path / "exercises" / "fedgems.fuse.py").write_text(text)
    assert main(["fedgems.fuse"]) == 1
    assert answer in capsys.readouterr().out.splitlines()[0]


def test_an_exercise_is_written_where_its_grading_looks_for_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = "fedgkt.transfer_loss"
    assert main([name]) == 0 and "wrote" in capsys.readouterr().out
    path = tmp_path / "exercises" / f"{name}.py"
    assert path.read_text() == template(name)
    for first, second, status, answer in [
            ("logits", "teacher.detach()", 0, "right: "),
            ("teacher", "logits", 1, "known mistake: the teacher learns, and not")]:
        path.write_text(template(name).replace("    ...", f"""
    ce = F.cross_entropy(logits, labels)
    return ce if teacher is None else ce + distillation_loss({first}, {second}, temperature)"""))
        assert main([name]) == status and answer in capsys.readouterr().out


def test_a_class_is_graded_a_line_each_and_in_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(exercise, "LIMIT", 5)
    monkeypatch.chdir(tmp_path)
    right = "return benign.mean(0) + theta"
    bodies = {"anna/attacks.paf": "return benign.sum(0) / (len(benign) + 1) + theta",
              "Paf (1)": right, "ben_attacks.paf": f"print(benign); {right}",
              "cem/attacks.paf": "exit()", "dora/attacks.paf": "while True: pass",
              "emil/attacks.paf": f"{right}\nimport os\nos.chdir('/')\n"
              "torch.set_default_dtype(torch.float64)\ntorch.set_grad_enabled(False)",
              "fay/attacks.paf": "return 7 * theta", "gus/attacks.paf": right}
    for path, body in bodies.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / f"{path}.py").write_text(f"import torch\ndef paf(benign, theta):\n    {body}")
    assert main(["--class", "."]) == 1
    skipped, *printed = capsys.readouterr().out.splitlines()
    printed = [line.split("  ", 2) for line in printed]
    assert skipped == "not graded: Paf (1).py"
    with open(tmp_path / "grades.csv") as file:
        assert [*csv.reader(file)] == [["student", "exercise", "answer"], *printed]
    assert [student for student, *_ in printed] == "anna ben cem dora emil fay gus".split()
    for (*_, answer), told in zip(printed, ("divided by all", "right", "SystemExit", "a minute",
                                            "right", "the result:; yours tensor([[", "right")):
        assert told in answer


def test_a_class_without_a_graded_file_is_no_success(tmp_path, capsys):
    assert main(["--class", str(tmp_path)]) == 1 and not [*tmp_path.iterdir()]
    with pytest.raises(SystemExit, match="2"):
        main(["--class", str(tmp_path / "none")])


# ---------------------------------------------------------------------------------------- one round

def test_the_round_to_write_is_fedsdds():
    fed, settings = federation((2, 4, 3, 5)), dict(
        rounds=3, participation=1.0, K=2, R=2, local_epochs=1, batch_size=4, lr=0.1,
        distill_steps=2, server_batch_size=4, server_lr=1.0)
    cfg, sizes = fedsdd.Config(**settings), [len(data.labels) for data in fed.private]
    (_, state), *rounds = fedsdd.run(fed, cfg)
    models, recent_w = state["global_models"], []
    for t, (_, state) in enumerate(rounds, start=1):
        groups = fedsdd.divide(range(4), 2, make_rng(fed.seed, "groups", t))
        models, recent_w = one_round(
            models, recent_w, groups, sizes, 2,
            train=lambda i, model: fedsdd.train_client(fed, cfg, t, i, model),
            predict=lambda model: predict_models(fed, [model], fed.public.images)[0],
            distill=lambda model, teacher: fedsdd.distill(
                fed, cfg, t, model, fed.public.images, teacher))
        assert same(models, state["global_models"]) and same(recent_w, state["recent_w"])


# --------------------------------------------------------------------------------- the known ones

RIGHT_ENOUGH = {  # what an exercise does not ask for: rounding, checks
    "the digits of H near certainty are lost", "a weight of nan counts as 0",
    "squares that underflow", "softmax underflows"}
RIGHT_ENOUGH_IN = {("fedproto.prototypes", "0 times nan")}


@every_exercise
def test_every_mistake_of_the_table_is_wrong(name):
    of_function = [m for m in MUTANTS if f"{Path(m.file).stem}.{place_of(m)[1]}" == name]
    assert of_function
    wrong = {what.partition(" (as in ")[0] for what, _ in mistakes(name)}
    for m in of_function:
        accepted = m.what in RIGHT_ENOUGH or (name, m.what) in RIGHT_ENOUGH_IN
        assert (m.what in wrong) != accepted, m.what


# ------------------------------------------------------------------------------ students' own forms

def loop_average(state_dicts, weights):
    total, average = sum(weights), {}
    for name, first in state_dicts[0].items():
        if "tracked" in name:
            average[name] = max(s[name] for s in state_dicts).clone()
        else:
            average[name] = torch.zeros(first.shape, dtype=torch.float64)
            for s, w in zip(state_dicts, weights):
                average[name] += s[name] * (w / total)
    return average


def soft_kl(student, teacher, T):
    """F.kl_div takes the student first, as logarithms."""
    log_q, p = (student / T).log_softmax(-1), (teacher / T).softmax(-1)
    return F.kl_div(log_q, p, reduction="batchmean") * T**2


def ce_minus_entropy(student, teacher, T):
    p = (teacher.detach() / T).softmax(-1)
    ce = F.cross_entropy(student / T, p)
    return T**2 * (ce - torch.special.entr(p).sum(-1).mean())


def choice_with_nan(*arguments):
    teacher, has_teacher, case = own("fedgems.choose_teacher")(*arguments)
    return teacher.where(has_teacher[:, None], math.nan), has_teacher, case.int()


@pytest.mark.parametrize("name, function", [
    ("fedsdd.distillation_loss", lambda s, t, T: soft_kl(s, t.detach(), T)),
    ("fedsdd.distillation_loss", ce_minus_entropy),
    ("fedsdd.distillation_loss", lambda s, t, T: T**2 * torch.distributions.kl_divergence(
        *(torch.distributions.Categorical(logits=x / T) for x in (t.detach(), s))).mean()),
    ("fedgems.choose_teacher", choice_with_nan),
    ("fedgems.entropy", lambda z: torch.distributions.Categorical(logits=z).entropy()),
    ("fedgems.entropy", lambda z: z.logsumexp(-1) - (z.softmax(-1) * z).sum(-1)),
    ("fedgems.entropy_weights", lambda z, right: (1 / entropy(z).clamp(min=1e-6)).masked_fill(
        ~right, -torch.inf).softmax(0).nan_to_num(0)),
    ("fedgems.fuse", lambda z, w: (z.masked_fill((w == 0)[..., None], 0) * w[..., None]).sum(0)),
    ("federation.average_weights", loop_average),
    ("fedmd.consensus", lambda z, w: sum(x * k / sum(w) for x, k in zip(z, w)))])
def test_every_right_form_is_right(name, function):
    assert grade(function, name) == []


@pytest.mark.parametrize("name, function, known", [
    ("fedsdd.distillation_loss", lambda s, t, T: soft_kl(s, t.detach(), T) / T, "T for T²"),
    ("fedsdd.distillation_loss", lambda s, t, T: soft_kl(s, t.detach(), T) / math.log(2), "log2"),
    ("fedsdd.distillation_loss", lambda s, t, T: soft_kl(t, s, T), "by teacher must be 0: detach"),
    ("fedsdd.distillation_loss", lambda s, t, T: soft_kl(s, t.detach(), T)
     + 0 * t.softmax(-1).log().sum().detach(), "not finite here"),
    ("fedsdd.distillation_loss", lambda s, t, T: soft_kl(s.detach(), t.detach(), T), ""),
    ("fedgems.entropy", lambda z: torch.special.entr(z.softmax(-1)).sum(-1) / 0.6931472,
     "H in bits"),
    ("fedgems.entropy", lambda z: torch.special.entr(z.softmax(0)).sum(-1), "the wrong axis"),
    ("fedgems.entropy_weights", lambda z, right: (1 / entropy(z).clamp(min=1e-6)).softmax(0),
     "a mask is missing"),
    ("fedgems.is_right", lambda z, y: own("fedgems.is_right")(z, y).float(), "True and False"),
    ("fedgems.choose_teacher", lambda *a: [x.double() for x in choice_with_nan(*a)], ""),
    ("scaffold.corrected_gradient", lambda g, c, s: c - g + s, "arguments are swapped"),
    ("federation.disagreement", lambda z: own("federation.disagreement")(z) or 0.0, ""),
    ("federation.average_weights", lambda states, sizes: loop_average(states, sizes) | {
        key: w for key, w in states[1].items() if "tracked" in key}, "")])
def test_a_mistake_is_caught_and_has_its_name_if_it_is_a_known_one(name, function, known):
    lines = grade(function, name)
    assert any(line.startswith("wrong") for line in lines)
    told = [x for x in lines if x.startswith(("This is a known mistake:", "The gradient", "Yours"))]
    assert bool(told) == bool(known) and known in "".join(told)
