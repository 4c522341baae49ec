"""What every function that carries an equation promises, on the inputs of functions.py."""
import copy
import inspect
import math

import numpy as np
import pytest
import torch
from functions import (EQUATIONS, INPUTS, identical, in_type, normal, own, results, rng,
                       shared, tensors)

LOGITS = {  # the positions of logits: what counts is their softmax
    "fedsdd.distillation_loss": (0, 1), "fedgems.entropy": (0,), "fedgems.is_right": (0,),
    "fedgems.entropy_weights": (0,), "fedgems.server_loss": (0, 2), "fedgems.distillation": (0, 2),
    "fedgem.distillation": (0, 2), "fedbe.sharpened_teacher": (0,),
    "fedgen.generator_loss": (0,), "fedgkt.transfer_loss": (0, 2),
    "fedntd.not_true_loss": (0, 2), "fml.mutual_loss": (0, 2)}
LOGITS |= {f"{file}.soft_cross_entropy": (0,) for file in ("dsfl", "cronus", "fd")}
# Losses with a teacher take the student, the labels if they need them, the teacher, in this order.
LOSSES = [name for name in EQUATIONS if "no gradient" in " ".join(own(name).__doc__.split())
          and name not in ("fedkd.adaptive_losses", "fedprox.proximal_term")]
every_function = pytest.mark.parametrize("name", EQUATIONS)


def changed(arguments, **changes):
    """The arguments with others at the positions p0, p1, ..."""
    return [changes.get(f"p{n}", argument) for n, argument in enumerate(arguments)]


def close(a, b):
    return torch.allclose(a.double(), b.double(), atol=1e-5, equal_nan=True)


@every_function
def test_inputs_are_not_changed_nor_shared_with_the_result(name):
    for arguments in INPUTS[name]():
        before = copy.deepcopy(arguments)
        own(name)(*arguments)
        assert identical(arguments, before)
        assert not shared(own(name), arguments)


@every_function
def test_the_global_generators_are_left_alone(name):
    """Neither moved nor read: what was drawn before changes nothing."""
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    expected = results(own(name), name)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    torch.rand(3), np.random.rand(3)
    assert identical(results(own(name), name), expected)


@pytest.mark.parametrize("name", [
    name for name in EQUATIONS if "rng" in inspect.signature(own(name)).parameters])
def test_what_is_drawn_depends_on_the_seed(name):
    def other(argument):
        return rng(99) if isinstance(argument, np.random.Generator) else argument
    for arguments in INPUTS[name]():
        assert not identical(own(name)(*map(other, arguments)), own(name)(*arguments))


@pytest.mark.parametrize("name", LOGITS)
def test_a_constant_added_to_a_samples_logits_changes_nothing(name):
    for arguments in INPUTS[name]():
        for p in LOGITS[name]:
            if arguments[p] is not None:
                shifted = arguments[p] + normal(*arguments[p].shape[:-1], 1, seed=7)
                found = own(name)(*changed(arguments, **{f"p{p}": shifted}))
                assert close(found, own(name)(*arguments))


@pytest.mark.parametrize("name", LOGITS)
def test_logits_of_ten_thousand_are_finite(name):
    for arguments in INPUTS[name]():
        large = {f"p{p}": 1e4 * arguments[p].nan_to_num() for p in LOGITS[name]
                 if arguments[p] is not None}
        assert torch.isfinite(own(name)(*changed(arguments, **large))).all()


@pytest.mark.parametrize("name", LOSSES)
def test_the_student_learns_and_the_teacher_gets_no_gradient(name):
    student, teacher = 0, 1 + ("labels" in inspect.signature(own(name)).parameters)
    learned = False
    for arguments in INPUTS[name]():
        arguments = [x.double().nan_to_num(neginf=-math.inf) if isinstance(x, torch.Tensor) and
                     x.is_floating_point() else x for x in arguments]
        z = arguments[student].requires_grad_()
        assert torch.autograd.gradcheck(
            lambda z: own(name)(*changed(arguments, **{f"p{student}": z})), z)
        if arguments[teacher] is not None:
            arguments[teacher].requires_grad_()
            own(name)(*arguments).sum().backward()
            assert arguments[teacher].grad is None
            learned |= bool(z.grad.any())
    assert learned


@pytest.mark.parametrize("name", [name for name in EQUATIONS if "partition" not in name])
def test_float64_gives_float64_and_float32_gives_float32_near_it(name):
    """Within eight units in the last place of the largest number."""
    for arguments in INPUTS[name]():
        found = own(name)(*in_type(arguments, torch.float32))
        expected = own(name)(*in_type(arguments, torch.float64))
        for x, y in zip(tensors(found), tensors(expected), strict=True):
            assert y.dtype != torch.float32
            assert x.dtype == (torch.float32 if y.is_floating_point() else y.dtype)
            float32 = torch.finfo(torch.float32)
            limit = 8 * float32.eps * y.double().abs().max() + float32.tiny
            assert (x.double() - y.double()).abs().max() <= limit < math.inf
