"""exercise.py: what it writes has no body; every right form passes, and a mistake has its name."""
import csv
import inspect
import math
import re
import signal
from pathlib import Path
from statistics import NormalDist

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
KL, CE = "KL(student || teacher)", F.cross_entropy


def softmax(z):
    return z.softmax(-1)


def log_softmax(z):
    return z.log_softmax(-1)


# ------------------------------------------------------------------------------ the student's file

@every_exercise
def test_an_exercise_has_the_docstring_no_body_and_every_symbol_that_the_projects_body_uses(name):
    text = template(name)
    exec(text, namespace := {})
    function = namespace[name.split(".")[1]]
    assert function.__doc__ == own(name).__doc__ and "\\" not in text
    assert text.endswith('"""\n    ...\n')
    assert inspect.getclosurevars(own(name)).globals.keys() <= namespace.keys()


def test_the_list_goes_from_short_to_long_and_begins_with_fedsdd_and_fedgems(capsys):
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [re.fullmatch(r"(\S+) +(\S+) .* (\d+) minutes", line).groups() for line in lines]
    names, papers, minutes = zip(*rows)
    order = [{"FedSDD": 0, "FedGEMS": 1}.get(paper, 2) for paper in papers]
    assert names == tuple(EXERCISES) and order == sorted(order)
    for place in range(3):
        found = [int(number) for where, number in zip(order, minutes) if where == place]
        assert found == sorted(found)


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
    ("def fuse(client_logits):\n    return client_logits",
     "wrong: it raises TypeError: fuse() takes 1"),
    ("def other():\n    ...", "has no function fuse"),
    ("from algorithms.fedgems import fuse", "this is the project's function: write its body"),
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


def test_what_is_no_exercise_is_an_error_of_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["fedmd.nothing"])
    assert "no exercise fedmd.nothing" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


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
    bodies = {"anna/attacks.paf": "return benign.mean(0) - theta", "notes": "return 5",
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
    for (*_, answer), told in zip(printed, ("minus in the", "right", "SystemExit", "a minute")):
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

def loop_fuse(client_logits, weights):
    fused = torch.zeros_like(client_logits[0])
    for j, n in (weights != 0).nonzero().tolist():
        fused[n] += weights[j, n] * client_logits[j, n]
    return fused


def loop_weights(client_logits, reliable):
    weights = torch.zeros(reliable.shape, dtype=torch.float64)
    for n, right in enumerate(reliable.T):
        if right.any():
            H = entropy(client_logits[right, n].double())
            weights[right, n] = softmax(1 / torch.where(H < 1e-6, 1e-6, H))
    return weights


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


def loop_round(models, recent_w, groups, sizes, R, train, predict, distill):
    w = []
    for model, group in zip(models, groups):
        total = sum(sizes[i] for i in group)
        w.append({"w": sum(sizes[i] / total * train(i, model)["w"] for i in group)})
    kept = (recent_w + [w])[-R:]
    logits = [predict(x) for models in kept for x in models]
    main_model = distill(w[0], sum(logits) / len(logits))
    return [main_model] + w[1:], kept


def kd(t, s, T, scale=lambda T: T**2, mean=lambda kl: kl.sum(-1).mean()):
    return mean(F.kl_div(log_softmax(s / T), softmax(t / T), reduction="none")) * scale(T)


def xlogy_kl(t, s):
    p = softmax(t.detach())
    return (torch.xlogy(p, p) - p * log_softmax(s)).sum(-1)


def ce_minus_entropy(s, t):
    return CE(s, softmax(t.detach())) - torch.special.entr(softmax(t.detach())).sum(-1).mean()


RIGHT = {
    "fedsdd.distillation_loss": [
        lambda s, t, T: kd(t.detach(), s, T),
        lambda s, t, T: T * T * ce_minus_entropy(s / T, t / T),
        lambda s, t, T: T**2 * xlogy_kl(t / T, s / T).mean(),
        lambda s, t, T: T**2 * (softmax(t.detach() / T) * (
            softmax(t.detach() / T) / softmax(s / T)).log()).sum(-1).mean()],
    "fedkd.kl_divergence": [
        lambda s, t: kd(t.detach(), s, 1.0), ce_minus_entropy,
        lambda s, t: torch.distributions.kl_divergence(
            *(torch.distributions.Categorical(logits=z) for z in (t.detach(), s))).mean(),
        lambda s, t: torch.stack([xlogy_kl(a, b) for a, b in zip(t, s)]).mean()],
    "fedgems.entropy": [
        lambda z: torch.distributions.Categorical(logits=z).entropy(),
        lambda z: z.logsumexp(-1) - (softmax(z) * z).sum(-1),
        lambda z: -torch.einsum("mnc,mnc->mn", softmax(z.double()), log_softmax(z.double())),
        lambda z: torch.tensor([[-sum(p * math.log(p) for p in row if p > 0) for row in rows]
                                for rows in softmax(z).tolist()])],
    "fedgems.entropy_weights": [
        loop_weights,
        lambda z, ok: softmax(torch.where(ok, 1 / entropy(z).clamp(min=1e-6), -torch.inf).T).T
        .nan_to_num(0),
        lambda z, ok: (lambda c: (c - c.logsumexp(0)).exp().nan_to_num(0))(
            torch.where(ok, 1 / entropy(z).clamp(min=1e-6), -torch.inf))],
    "fedgems.fuse": [
        loop_fuse,
        lambda z, w: (z.masked_fill((w == 0)[..., None], 0) * w.unsqueeze(2)).sum(0).double()],
    "fedgems.is_right": [
        lambda z, y: ((z.argmax(-1) == y) & ~(z.isnan() | (z.abs() >= 1e30)).any(-1))],
    "fedgems.distillation": [
        lambda z, y, t, e: (1 - e) * F.kl_div(log_softmax(z), softmax(t.detach()),
                                              reduction="none").sum(1)
        - e * log_softmax(z)[range(len(y)), y]],
    "fedgems.server_loss": [
        lambda z, y, t, has, e: torch.where(
            has, e * CE(z, y, reduction="none") + (1 - e) * xlogy_kl(
                torch.where(has[:, None], t, 0), z), CE(z, y, reduction="none")).mean()],
    "fedgkt.transfer_loss": [
        lambda z, y, t, T: CE(z, y) + (0 if t is None else kd(t.detach(), z, T))],
    "federation.average_weights": [loop_average],
    "one_round.fedsdd": [loop_round],
    "fedmd.digest_loss": [
        lambda z, f: torch.linalg.vector_norm(z - f.data, ord=1) / z.numel()],
    "fedmd.consensus": [
        lambda z, w: torch.einsum("mnc,m->nc", z.double(), F.normalize(
            torch.tensor(w).double(), p=1, dim=0))],
    "dsfl.soft_cross_entropy": [
        lambda z, y: -torch.einsum("bc,bc->b", y.detach(), log_softmax(z))],
    "scaffold.updated_client_control": [
        lambda ci, c, x, y, K, lr: torch.lerp(c, ci, 1.0) - c + torch.div(x - y, K * lr)]}


@pytest.mark.parametrize("name, function", [
    pytest.param(name, function, id=f"{name}-{n}")
    for name, functions in RIGHT.items() for n, function in enumerate(functions)])
def test_every_right_form_is_right(name, function):
    assert grade(function, name) == []


WRONG = {   # (a student's form, part of the name of its mistake, or "" for none)
    "fedsdd.distillation_loss": [
        (lambda s, t, T: kd(s, t, T), KL), (lambda s, t, T: kd(t, s, T), "the teacher learns too"),
        (lambda s, t, T: kd(t.detach(), s, T, mean=torch.mean), "C times too small"),
        (lambda s, t, T: T**2 * xlogy_kl(t.T / T, s.T / T).sum() / len(t), "the wrong axis"),
        (lambda s, t, T: T**2 * xlogy_kl(t / T, s / T).mean() / math.log(2), "log2"),
        (lambda s, t, T: T**2 * xlogy_kl(t / T, s / T), "a mean or a sum is missing"),
        (lambda s, t, T: T**2 * CE(s / T, softmax(t.detach() / T)), "a term is missing"),
        (lambda s, t, T: kd(t, s.detach(), T), "")],
    "fedkd.kl_divergence": [
        (lambda s, t: kd(t, s, 1.0) / math.log(2), "log2 in the place of ln")],
    "federation.disagreement": [(lambda z: own("federation.disagreement")(z) or 0.0, "")],
    "fedgems.entropy": [
        (lambda z: -(softmax(z) * softmax(z).log()).sum(-1), "the logarithm of 0"),
        (lambda z: -(softmax(z) * softmax(z).log2()).sum(-1), "H in bits"),
        (lambda z: -(softmax(z) * (softmax(z) + 1e-8).log()).sum(-1), ""),
        (lambda z: torch.special.entr(z.softmax(0)).sum(-1), "softmax over the wrong axis"),
        (lambda z: (softmax(z) * log_softmax(z)).sum(-1), "a wrong sign")],
    "fedgems.entropy_weights": [
        (lambda z, ok: (1 / entropy(z).clamp(min=1e-6)).softmax(0), "a mask is missing"),
        (lambda z, ok: torch.where(ok, 1 / entropy(z).clamp(min=1e-6), 0) / torch.where(
            ok, 1 / entropy(z).clamp(min=1e-6), 0).sum(0).clamp(min=1e-9), "")],
    "fedgems.fuse": [
        (lambda z, w: torch.einsum("mn,mnc->nc", w, z), "0 times nan"),
        (lambda z, w: loop_fuse(softmax(z), w), "probabilities")],
    "fedgems.is_right": [
        (lambda z, y: z.argmax(-1) == y, "infinity can be right"),
        (lambda z, y: (z.argmax(-1) == y) & (z < 1e30).all(-1), "clamp or abs is missing"),
        (lambda z, y: own("fedgems.is_right")(z, y).float(), "numbers in the place of True")],
    "fedgems.distillation": [
        (lambda z, y, t, e: (1 - e) * CE(z, y, reduction="none") + e * xlogy_kl(t, z),
         "epsilon on the wrong term"),
        (lambda z, y, t, e: own("fedgems.distillation")(z, (y + 1) % 3, t, e), "off by one"),
        (lambda z, y, t, e: e * CE(z, y) + (1 - e) * xlogy_kl(t, z).mean(), "a mean over all is")],
    "fedgems.server_loss": [
        (lambda z, y, t, has, e: CE(z[~has], y[~has]) + (
            e * CE(z[has], y[has]) + (1 - e) * xlogy_kl(t[has], z[has]).mean()), "a sum of means")],
    "attacks.lie_z": [
        (lambda n, m: NormalDist().inv_cdf(1 - max((round(n / 2 + 1) - m) / (n - m), .001)), "")],
    "attacks.ofom": [(lambda b, theta, n=None: own("attacks.ofom")(b, theta), "n has no effect")],
    "fedgkt.transfer_loss": [
        (lambda z, y, t, T: CE(z, y) + (0 if t is None else kd(t, z, T)),
         "the teacher's logits get a gradient"),
        (lambda z, y, t, T: CE(z, y) + (0 if t is None else kd(t.detach(), z, 1)), "")],
    "federation.average_weights": [
        (lambda states, weights: loop_average(states, weights) | {
            k: w for k, w in states[1].items() if "tracked" in k}, ""),        # its own tensors
        (lambda states, weights: {k: sum(s[k] for s in states) / len(states) for k in states[0]},
         "all models weigh the same")],
    "one_round.fedsdd": [
        (lambda models, *rest: loop_round(models[:1] * len(models), *rest), "from the main model")],
    "fedmd.digest_loss": [
        (lambda z, f: (z - f).abs().sum(-1).mean(), "the sum over the classes")],
    "fd.others_mean": [
        (lambda p: p.sum(0, keepdim=True).expand_as(p) / p.any(-1).sum(0).clamp(min=1)[:, None],
         "the own row is in the target")]}


@pytest.mark.parametrize("name, function, known", [
    pytest.param(name, *case, id=f"{name}-{n}")
    for name, cases in WRONG.items() for n, case in enumerate(cases)])
def test_a_mistake_is_caught_and_has_its_name_if_it_is_a_known_one(name, function, known):
    lines = grade(function, name)
    assert any(line.startswith("wrong") for line in lines)
    named = [line for line in lines if line.startswith("This is a known mistake: ")]
    assert bool(named) == bool(known) and known in "".join(named)


def test_an_entry_of_a_state_dict_and_a_gradient_that_must_be_0_are_told():
    lines = grade(lambda w, sizes: loop_average(w[:1], sizes), "federation.average_weights")
    assert "wrong, the result['1.weight']:" in lines
    assert "The gradient of result by teacher must be 0: detach" in grade(
        lambda s, t, T: kd(s, t, T), "fedsdd.distillation_loss")
