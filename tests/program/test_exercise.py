"""exercise.py: what it writes has no body, every right form passes, mistakes are noticed."""
import csv
import inspect
import math
import signal
from pathlib import Path

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
    assert answer in capsys.readouterr().out.splitlines()[-1]


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
    setitimer = signal.setitimer         # 3 seconds in the place of a minute
    monkeypatch.setattr(signal, "setitimer", lambda timer, *time: setitimer(timer, time[0] / 20))
    bodies = {"anna/attacks.paf": "return benign.sum(0) / (len(benign) + 1) + theta",
              "notes": "return 5",
              "ben_attacks.paf": "print(benign); return benign.mean(0) + theta",
              "cem/attacks.paf": "exit()", "dora/attacks.paf": "while True: pass"}
    for path, body in bodies.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / f"{path}.py").write_text(f"def paf(benign, theta):\n    {body}")
    assert main(["--class", str(tmp_path)]) == 1
    printed = [line.split("  ", 2) for line in capsys.readouterr().out.splitlines()]
    with open(tmp_path / "grades.csv") as file:
        assert [*csv.reader(file)] == [["student", "exercise", "answer"], *printed]
    assert [student for student, *_ in printed] == ["anna", "ben", "cem", "dora"]
    for (*_, answer), told in zip(printed, ("divided by all", "right", "SystemExit", "a minute")):
        assert told in answer


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


@pytest.mark.parametrize("name, function", [
    ("fedsdd.distillation_loss", lambda s, t, T: soft_kl(s, t.detach(), T)),
    ("fedsdd.distillation_loss", ce_minus_entropy),
    ("fedkd.kl_divergence", lambda student, teacher: ce_minus_entropy(student, teacher, 1)),
    ("fedgems.entropy", lambda z: torch.distributions.Categorical(logits=z).entropy()),
    ("fedgems.entropy", lambda z: z.logsumexp(-1) - (z.softmax(-1) * z).sum(-1)),
    ("fedgems.entropy_weights", lambda z, right: (1 / entropy(z).clamp(min=1e-6)).masked_fill(
        ~right, -torch.inf).softmax(0).nan_to_num(0)),
    ("fedgems.fuse", lambda z, w: (z.masked_fill((w == 0)[..., None], 0) * w[..., None]).sum(0)),
    ("fedgkt.transfer_loss", lambda z, y, t, T: F.cross_entropy(z, y) + (
        0 if t is None else soft_kl(z, t.detach(), T))),
    ("federation.average_weights", loop_average),
    ("fedmd.consensus", lambda z, w: sum(x * k / sum(w) for x, k in zip(z, w)))])
def test_every_right_form_is_right(name, function):
    assert grade(function, name) == []


@pytest.mark.parametrize("name, function, known", [
    ("fedsdd.distillation_loss", lambda s, t, T: soft_kl(s, t.detach(), T) / T, "T for T²"),
    ("fedsdd.distillation_loss", lambda s, t, T: soft_kl(s, t.detach(), T) / math.log(2), "log2"),
    ("fedsdd.distillation_loss", lambda s, t, T: soft_kl(t, s, T), "KL(student || teacher)"),
    ("fedsdd.distillation_loss", lambda s, t, T: soft_kl(s.detach(), t.detach(), T), ""),
    ("fedgems.entropy", lambda z: torch.special.entr(z.softmax(-1)).sum(-1) / 0.6931472,
     "H in bits"),
    ("fedgems.entropy", lambda z: torch.special.entr(z.softmax(0)).sum(-1), "the wrong axis"),
    ("fedgems.entropy_weights", lambda z, right: (1 / entropy(z).clamp(min=1e-6)).softmax(0),
     "a mask is missing"),
    ("fedgems.fuse", lambda z, w: torch.einsum("mn,mnc->nc", w, z), "0 times nan"),
    ("fedgems.is_right", lambda z, y: z.argmax(-1) == y, "infinity can be right"),
    ("fedgems.is_right", lambda z, y: own("fedgems.is_right")(z, y).float(), "True and False"),
    ("fedgems.distillation", lambda z, y, t, e: own("fedgems.distillation")(z, (y + 1) % 3, t, e),
     "labels are off by one"),
    ("fedgkt.transfer_loss", lambda z, y, t, T: F.cross_entropy(z, y) + (
        0 if t is None else soft_kl(z, t, T)), "the teacher learns too"),
    ("fedmd.digest_loss", lambda z, f: (z - f.detach()).abs().sum(-1).mean(),
     "the sum over the classes"),
    ("federation.average_weights", lambda states, sizes: {
        key: sum(s[key] for s in states) / len(states) for key in states[0]},
     "all models weigh the same"),
    ("federation.disagreement", lambda z: own("federation.disagreement")(z) or 0.0, ""),
    ("federation.average_weights", lambda states, sizes: loop_average(states, sizes) | {
        key: w for key, w in states[1].items() if "tracked" in key}, "")])
def test_a_mistake_is_caught_and_has_its_name_if_it_is_a_known_one(name, function, known):
    lines = grade(function, name)
    assert any(line.startswith("wrong") for line in lines)
    named = [line for line in lines if line.startswith("This is a known mistake: ")]
    assert bool(named) == bool(known) and known in "".join(named)


def test_a_gradient_that_must_be_0_is_told_beside_another_mistake():
    assert "The gradient of result by teacher must be 0: detach" in grade(
        lambda s, t, T: soft_kl(t, s, T), "fedsdd.distillation_loss")
