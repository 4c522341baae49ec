"""T² KL(teacher || student) and the soft cross-entropy: each file that distills has its own copy,
and every copy is held to the same."""
import importlib
import math
from pathlib import Path

import pytest
import torch

ALGORITHMS = Path(__file__).parents[2] / "algorithms"


def copies_of(name):
    """[the function of this name, of each file of algorithms/ that defines one]"""
    modules = [importlib.import_module(f"algorithms.{path.stem}")
               for path in sorted(ALGORITHMS.glob("[a-z]*.py"))]
    functions = [getattr(module, name) for module in modules if hasattr(module, name)]
    return [pytest.param(function, id=function.__module__.removeprefix("algorithms."))
            for function in dict.fromkeys(functions)]


every_loss = pytest.mark.parametrize("distillation_loss", copies_of("distillation_loss"))
every_cross_entropy = pytest.mark.parametrize("soft_cross_entropy", copies_of("soft_cross_entropy"))
every_kl = pytest.mark.parametrize("kl", [
    copy for name in ("distillation_loss", "kl_divergence", "distillation", "mutual_loss")
    for copy in copies_of(name)])


def test_the_files_that_distill_have_the_loss():
    files = {copy.id for copy in copies_of("distillation_loss")}
    assert files >= {"feddf", "fedsdd", "fedgkt"}


@every_loss
def test_distillation_is_t_squared_times_mean_kl(distillation_loss):
    """T² sum p ln (p / q), the mean of two samples; a sum over classes for each."""
    T = 3.0
    teacher = T * torch.tensor([[.8, .2], [.5, .5]], dtype=torch.float64).log()
    student = T * torch.tensor([[.6, .4], [.3, .7]], dtype=torch.float64).log()
    first = .8 * math.log(.8 / .6) + .2 * math.log(.2 / .4)
    second = .5 * math.log(.5 / .3) + .5 * math.log(.5 / .7)
    loss = distillation_loss(teacher, student, T)
    assert loss.item() == pytest.approx(3**2 * (first + second) / 2, abs=1e-12)


@every_loss
def test_kl_is_from_teacher_to_student_by_hand(distillation_loss):
    """Of one sample at temperature 1; from student to teacher the first would be .2231."""
    for p, q in [((.8, .2), (.5, .5)), ((.1, .9), (.5, .5)), ((.7, .3), (.2, .8))]:
        expected = sum(a * math.log(a / b) for a, b in zip(p, q))                        # .1927
        loss = distillation_loss(torch.tensor([p]).log(), torch.tensor([q]).log(), 1.0)
        assert loss.item() == pytest.approx(expected, abs=1e-6)


@every_loss
def test_the_students_gradient_is_t_times_q_minus_p(distillation_loss):
    """Of a sum over the batch: T² / T (q - p)."""
    T, teacher, student = 2.0, torch.randn(3, 4), torch.randn(3, 4, requires_grad=True)
    (3 * distillation_loss(teacher, student, T)).backward()
    expected = T * ((student / T).softmax(1) - (teacher / T).softmax(1))
    assert torch.allclose(student.grad, expected, atol=1e-6)


@every_loss
def test_the_loss_of_equal_logits_is_exactly_zero(distillation_loss):
    z = torch.cat([torch.randn(20, 5), torch.tensor([[1e4, -1e4, 0., 0., 0.]])])
    assert [distillation_loss(x[None], x[None], 1.0).item() for x in z] == [0] * 21


@every_loss
def test_the_loss_of_huge_logits_is_exact(distillation_loss):
    """p = (1, 0) and ln q = (-2e4, 0)."""
    teacher = torch.tensor([[1e4, -1e4]])
    assert distillation_loss(teacher, -teacher, 1.0).item() == 1 * (math.log(1) - -2e4) + 0


@every_cross_entropy
def test_soft_cross_entropy_by_hand(soft_cross_entropy):
    """q = (.6, .4); y = (.8, .2): - .8 ln .6 - .2 ln .4; y = (0, 1), a label's: - ln .4."""
    logits = torch.tensor([[.6, .4]] * 2, dtype=torch.float64).log() + torch.tensor([[3.], [-7.]])
    target = torch.tensor([[.8, .2], [0., 1.]], dtype=torch.float64)
    expected = [-.8 * math.log(.6) - .2 * math.log(.4), -math.log(.4)]
    assert soft_cross_entropy(logits, target).tolist() == pytest.approx(expected, abs=1e-12)


def kl_at_1(kl, teacher, student):
    """KL(teacher || student) at temperature 1, the mean over the batch, by any of the copies."""
    if kl.__name__ in ("distillation", "mutual_loss"):           # with weight 0 of cross-entropy
        return kl(student, torch.zeros(len(student), dtype=torch.long), teacher, 0.0).mean()
    return kl(teacher, student, *[1.0] * (kl.__name__ == "distillation_loss"))


@every_kl
@pytest.mark.parametrize("q", [(.8, .2, 0.), (.4, .1, .5)])
def test_a_class_of_probability_0_adds_0_to_the_kl(kl, q):
    """p = (.5, .5, 0), whose logit is -inf; q of the third class may be 0, too. By the student's
    logits the gradient is q - p."""
    teacher = torch.tensor([[.5, .5, 0.]]).log()
    student = torch.tensor([q]).log().requires_grad_()
    loss = kl_at_1(kl, teacher, student)
    loss.backward()
    expected = .5 * math.log(.5 / q[0]) + .5 * math.log(.5 / q[1])
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    assert torch.allclose(student.grad, torch.tensor([q]) - torch.tensor([[.5, .5, 0.]]), atol=1e-6)


@every_cross_entropy
def test_a_class_of_target_0_adds_0_to_the_soft_cross_entropy(soft_cross_entropy):
    """q = (.5, .5, 0), whose logit is -inf; y = (.25, .75, 0): ln 2. The gradient is q - y."""
    logits = torch.tensor([[.5, .5, 0.]]).log().requires_grad_()
    target = torch.tensor([[.25, .75, 0.]])
    loss = soft_cross_entropy(logits, target)
    loss.sum().backward()
    assert loss.item() == pytest.approx(math.log(2))
    assert torch.allclose(logits.grad, torch.tensor([[.25, -.25, 0.]]))
