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


@every_loss
def test_distillation_is_t_squared_times_mean_kl(distillation_loss):
    """T² sum p ln (p / q), the mean of two samples; a sum over classes for each."""
    T = 3.0
    teacher = T * torch.tensor([[.8, .2], [.5, .5]], dtype=torch.float64).log()
    student = T * torch.tensor([[.6, .4], [.3, .7]], dtype=torch.float64).log()
    first = .8 * math.log(.8 / .6) + .2 * math.log(.2 / .4)
    second = .5 * math.log(.5 / .3) + .5 * math.log(.5 / .7)
    loss = distillation_loss(student, teacher, T)
    assert loss.item() == pytest.approx(3**2 * (first + second) / 2, abs=1e-12)


@every_loss
def test_the_loss_of_equal_logits_is_exactly_zero(distillation_loss):
    z = torch.cat([torch.randn(20, 5), torch.tensor([[1e4, -1e4, 0., 0., 0.]])])
    assert [distillation_loss(x[None], x[None], 1.0).item() for x in z] == [0] * 21


@every_loss
def test_the_loss_of_huge_logits_is_exact(distillation_loss):
    """p = (1, 0) and ln q = (-2e4, 0)."""
    teacher = torch.tensor([[1e4, -1e4]])
    assert distillation_loss(-teacher, teacher, 1.0).item() == 1 * (math.log(1) - -2e4) + 0


@every_cross_entropy
def test_soft_cross_entropy_by_hand(soft_cross_entropy):
    """q = (.6, .4); y = (.8, .2): - .8 ln .6 - .2 ln .4; y = (0, 1), a label's: - ln .4."""
    logits = torch.tensor([[.6, .4]] * 2, dtype=torch.float64).log() + torch.tensor([[3.], [-7.]])
    target = torch.tensor([[.8, .2], [0., 1.]], dtype=torch.float64)
    expected = [-.8 * math.log(.6) - .2 * math.log(.4), -math.log(.4)]
    assert soft_cross_entropy(logits, target).tolist() == pytest.approx(expected, abs=1e-12)
