"""The equations that several papers share: KL divergence, distillation loss, soft cross-entropy,
the average of models."""
import math

import pytest
import torch
from toys import linear, same, with_batchnorm

from algorithms.equations import (
    average_weights,
    distillation_loss,
    kl_divergence,
    soft_cross_entropy,
)


def test_kl_is_from_teacher_to_student_by_hand():
    """A sum over classes for each sample; from student to teacher it would begin with .2231."""
    teacher = torch.tensor([[.8, .2], [.1, .9], [1., 0.]]).log()
    student = torch.tensor([[.5, .5]] * 3).log()
    expected = [.8 * math.log(.8 / .5) + .2 * math.log(.2 / .5),                         # .1927
                .1 * math.log(.1 / .5) + .9 * math.log(.9 / .5),
                math.log(1 / .5)]                                                    # 0 ln 0 = 0
    assert kl_divergence(teacher, student).tolist() == pytest.approx(expected, abs=1e-6)


def test_distillation_is_t_squared_times_mean_kl():
    """Eq. (4) of FedSDD: T² sum p ln (p / q), the mean of two samples."""
    T = 3.0
    teacher_logits = T * torch.tensor([[.8, .2], [.5, .5]], dtype=torch.float64).log()
    student_logits = T * torch.tensor([[.6, .4], [.3, .7]], dtype=torch.float64).log()
    first = .8 * math.log(.8 / .6) + .2 * math.log(.2 / .4)
    second = .5 * math.log(.5 / .3) + .5 * math.log(.5 / .7)
    loss = distillation_loss(teacher_logits, student_logits, T)
    assert loss.item() == pytest.approx(3**2 * (first + second) / 2, abs=1e-12)


def test_gradient_of_kl_is_q_minus_p_none_for_teacher():
    teacher, student = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
    kl_divergence(teacher, student).sum().backward()
    assert teacher.grad is None
    assert torch.allclose(student.grad, student.softmax(1) - teacher.softmax(1), atol=1e-6)


def test_kl_of_equal_logits_is_exactly_zero():
    z = torch.cat([torch.randn(20, 5), torch.tensor([[1e4, -1e4, 0., 0., 0.]])])
    assert kl_divergence(z, z).tolist() == [0] * 21


def test_kl_of_huge_logits_is_exact():
    """p = (1, 0) and ln q = (-2e4, 0)."""
    teacher = torch.tensor([[1e4, -1e4]])
    assert kl_divergence(teacher, -teacher).item() == 1 * (math.log(1) - -2e4) + 0


def test_soft_cross_entropy_by_hand():
    """q = (.6, .4); y = (.8, .2): - .8 ln .6 - .2 ln .4; y = (0, 1), a label's: - ln .4."""
    logits = torch.tensor([[.6, .4]] * 2, dtype=torch.float64).log() + torch.tensor([[3.], [-7.]])
    target = torch.tensor([[.8, .2], [0., 1.]], dtype=torch.float64)
    expected = [-.8 * math.log(.6) - .2 * math.log(.4), -math.log(.4)]
    assert soft_cross_entropy(logits, target).tolist() == pytest.approx(expected, abs=1e-12)


def test_eq2_average_by_hand():
    states = [{"w": torch.tensor([1., 2.])}, {"w": torch.tensor([4., -2.])}]
    assert average_weights(states, [1, 3])["w"].tolist() == [.25 * 1 + .75 * 4, .25 * 2 - .75 * 2]


def test_average_weights_averages_running_statistics():
    states = [{"0.running_mean": torch.tensor([x])} for x in (2., 10.)]  # not the last client's 10
    assert average_weights(states, [3, 1])["0.running_mean"].tolist() == [.75 * 2 + .25 * 10]


def test_average_weights_keeps_counters_whole():
    states = [{"0.num_batches_tracked": torch.tensor(count)} for count in (4, 7, 6)]
    counter = average_weights(states, [1, 1, 1])["0.num_batches_tracked"]
    assert counter.dtype == torch.int64 and counter.item() == 7


def test_the_average_of_one_model_is_a_copy_of_it():
    state = with_batchnorm().state_dict()
    average = average_weights([state], [17])
    assert same(average, state)
    assert not any(w.data_ptr() == state[name].data_ptr() for name, w in average.items())


@pytest.mark.parametrize("weights", [[], [1], [2, -1], [0, 0], [1, math.nan], [1, math.inf]])
def test_weights_that_make_no_average_are_refused(weights):
    with pytest.raises(ValueError, match="weight"):
        average_weights([linear().state_dict()] * 2, weights)


@pytest.mark.parametrize("names, size", [("", 3), ("w", 1), ("wb", 3)])
def test_models_with_other_names_or_shapes_are_refused(names, size):
    with pytest.raises(ValueError, match="[wb] has shape .* in model 0 and .* in model 1$"):
        average_weights([{"w": torch.ones(3)}, {name: torch.ones(size) for name in names}], [1, 1])
