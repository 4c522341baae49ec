"""The functions that carry an equation, each with inputs: each can be copied alone, and none can
change unnoticed."""
import copy
import importlib
import math
from pathlib import Path

import numpy as np
import torch
from toys import linear, same, with_batchnorm, with_hidden_layer

from federation import seed_torch

ROOT = Path(__file__).parent.parent


def module_of(name):
    """"fedsdd.divide" -> the module fedsdd, in algorithms/ or at the top."""
    stem = name.split(".")[0]
    folder = "algorithms." if (ROOT / "algorithms" / f"{stem}.py").exists() else ""
    return importlib.import_module(folder + stem)


def own(name):
    return getattr(module_of(name), name.split(".")[1])


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def probs(*shape, seed=0):
    return (2 * normal(*shape, seed=seed)).softmax(-1)


def classes(count=300, num_classes=5, seed=0):
    return np.random.default_rng(seed).integers(num_classes, size=count)


def rng(seed=0):
    return np.random.default_rng(seed)


def network(make, seed=0):
    """With statistics and counters that differ from seed to seed."""
    with seed_torch(seed, "carried"):
        model = make()
    for name, buffer in model.named_buffers():
        buffer.copy_(torch.tensor(5 + seed) if name.endswith("tracked")
                     else normal(*buffer.shape, seed=seed).abs())
    return model


def models(make):
    """Three of one architecture; the second has the largest counter."""
    return [network(make, seed).state_dict() for seed in (1, 5, 0)]


def toy_models(count, seed=1):
    return [{"w": normal(2, 3, seed=seed + k)} for k in range(count)]


def spoilt(values, *places):
    """A copy with nan in these places."""
    values = values.clone()
    for place in places:
        values[place] = math.nan
    return values


RIGHT = torch.tensor([[1, 0, 1, 1, 0], [1, 0, 0, 1, 1], [0, 0, 0, 1, 1], [1, 0, 1, 0, 1]]).bool()
TAUGHT = torch.tensor([True, False, True, False, True])       # nobody is right on the second sample
LABELS = torch.tensor([2, 0, 1, 1, 0])

INPUTS = {      # name: makes the arguments of one call or several, new each time: rngs start anew
    "federation.average_weights": lambda: [
        (models(make), [1, 4, 3]) for make in (linear, with_hidden_layer, with_batchnorm)],
    "fedprox.proximal_term": lambda: [
        (network(with_batchnorm), network(with_batchnorm, 1).state_dict(), 0.3)],
    "scaffold.corrected_gradient": lambda: [tuple(normal(3, 4, seed=i) for i in range(3))],
    "scaffold.updated_client_control": lambda: [
        (*(normal(3, 4, seed=i) for i in range(4)), 7, 0.1)],
    "fedntd.not_true": lambda: [(normal(5, 3), LABELS)],
    "fedntd.not_true_loss": lambda: [
        (normal(5, 3), LABELS, normal(5, 3, seed=1), T) for T in (1.0, 2.5)],
    "fedntd.client_loss": lambda: [
        (normal(5, 3), LABELS, normal(5, 3, seed=1), 2.5, 0.7, flag) for flag in (False, True)],
    "fedntd.distillation_loss": lambda: [
        (normal(5, 3), normal(5, 3, seed=1), T) for T in (1.0, 2.5)],
    "feddf.drop_worst": lambda: [
        ([0.11, 0.12, 0.5], 10), (torch.tensor([0.11, 0.1, 0.02]), 10)],
    "feddf.distillation_loss": lambda: [
        (normal(5, 3), normal(5, 3, seed=1), T) for T in (1.0, 2.5)],
    "fedbe.gaussian_sample": lambda: [(models(with_batchnorm), [1, 4, 3], rng())],
    "fedbe.dirichlet_sample": lambda: [
        (models(with_batchnorm), [1, 4, 3], rng(), *more) for more in ((), (0.3,))],
    "fedbe.sharpened_teacher": lambda: [(normal(4, 5, 3),)],
    "fedbe.kl_divergence": lambda: [(normal(5, 3), normal(5, 3, seed=1))],
    "federation.disagreement": lambda: [(normal(M, 5, 3),) for M in (4, 3, 1)],
    "fedsdd.divide": lambda: [([9, 2, 5, 11, 4, 0, 7, 3], 3, rng())],
    "fedsdd.distillation_loss": lambda: [
        *((normal(5, 3), normal(5, 3, seed=1), T) for T in (1.0, 2.5)),
        *((torch.tensor([z]), torch.tensor([[150., -150.]]), 1.0)
          for z in ([-150., 150.], [300., -150.])),
        (torch.tensor([[1., 2.]]), torch.tensor([[450., -450.]]), 1.0)],
    "fedmd.consensus": lambda: [(normal(4, 5, 3), [2, 0, 1, 5])],
    "fedmd.digest_loss": lambda: [(normal(5, 3), normal(5, 3, seed=1))],
    "dsfl.entropy_reduction": lambda: [(probs(4, 5, 3), T) for T in (0.1, 0.5)],
    "dsfl.soft_cross_entropy": lambda: [(normal(5, 3), probs(5, 3, seed=1))],
    "cronus.soft_cross_entropy": lambda: [(normal(5, 3), probs(5, 3, seed=1))],
    "fd.soft_cross_entropy": lambda: [(normal(5, 3), probs(5, 3, seed=1))],
    "fml.mutual_loss": lambda: [
        (normal(5, 3), LABELS, normal(5, 3, seed=1), weight) for weight in (0.3, 0.0)],
    "fedproto.prototypes": lambda: [(normal(5, 2), LABELS, num_classes) for num_classes in (3, 4)],
    "fedproto.global_prototypes": lambda: [
        (normal(4, 3, 2), torch.tensor([[3, 0, 1], [0, 0, 5], [2, 0, 0], [1, 0, 7]]))],
    "fedproto.prototype_loss": lambda: [
        (normal(5, 2), LABELS, normal(3, 2, seed=1), torch.tensor([True, False, True]))],
    "fedkd.adaptive_losses": lambda: [
        (normal(5, 3), normal(5, 3, seed=1), LABELS, normal(5, 4), normal(5, 4, seed=1), *more)
        for more in ((), (False,))] + [
        (40 * torch.eye(3)[LABELS], 40 * torch.eye(3)[LABELS], LABELS, normal(5, 4), normal(5, 4))],
    "fedkd.kl_divergence": lambda: [(normal(5, 3), normal(5, 3, seed=1))],
    "fedkd.compress": lambda: [
        (normal(9, 2) @ normal(2, 12, seed=1), 0.99), (normal(2, 3), 0.9),
        # Rounding turns singular vectors by more the closer two singular values are.
        (normal(12, 9) * 0.5 ** torch.arange(9), 0.3),
        *((scale * torch.diag(torch.tensor([4., 3., 0., 0., 0., 0.])), energy)
          for scale, energy in ((1, 0.64), (1, 0.6), (1e-30, 0.9))),
        (normal(6, 1, 1) * normal(1, 4, 4, seed=1), 0.99)],
    "fd.others_mean": lambda: [(probs(4, 3, 3) * RIGHT[:, :3, None],)],
    "cronus.robust_mean": lambda: [
        (probs(10, 6, 4), 0.3), (probs(5, 6, 8), 0.4), (probs(5, 6, 4), 0.0)],
    "fedgems.entropy": lambda: [
        (normal(4, 5, 3),), (normal(5, 3),), (torch.tensor([[[1e4, 0., -1e4], [1., 0., 2.]]]),),
        (torch.tensor([[[16., 0.]]]),)],
    "fedgems.is_right": lambda: [(spoilt(normal(4, 5, 3), (0, 0, 2), (3, 3)), LABELS),
        (torch.tensor([[[0., 2e29], [0., 2e30], [-2e30, 0.]]]), torch.tensor([1, 1, 1])),
        (normal(5, 3), LABELS[:, None])],
    "fedgems.entropy_weights": lambda: [
        (normal(4, 4, 3), RIGHT[:, [0, 2, 3, 4]]), (spoilt(normal(4, 5, 3), (2, 0)), RIGHT),
        (torch.tensor([[[25., 0.], [16.5, 0.]], [[20., 0.], [16., 0.]]]), RIGHT[:2, [0, 3]])],
    "fedgems.fuse": lambda: [
        (spoilt(normal(4, 5, 3), (2, 0)), RIGHT / RIGHT.sum(0).clamp(min=1) * 1.0)],
    "fedgems.choose_teacher": lambda: [
        (*(torch.tensor([bool(n & bit) for n in range(8)]) for bit in (1, 2, 4)),
         normal(8, 3), normal(8, 3, seed=1))],
    "fedgems.server_loss": lambda: [
        (normal(5, 3), LABELS, spoilt(normal(5, 3, seed=1), 1), taught, 0.6)
        for taught in (TAUGHT, torch.zeros(5).bool())],
    "fedgems.distillation": lambda: [(normal(5, 3), LABELS, normal(5, 3, seed=1), 0.6)],
    "fedgem.distillation": lambda: [(normal(5, 3), LABELS, normal(5, 3, seed=1), 0.6)],
    "fedgen.generator_loss": lambda: [(normal(4, 5, 3), LABELS)],
    "fedgen.diversity_loss": lambda: [(normal(5, 2), normal(5, 4, seed=1))],
    "fedgkt.distillation_loss": lambda: [
        (normal(5, 3), normal(5, 3, seed=1), T) for T in (1.0, 2.5)],
    "fedgkt.transfer_loss": lambda: [
        (normal(5, 3), LABELS, z, 2.5) for z in (normal(5, 3, seed=1), None)],
    "attacks.harmful_vector": lambda: [(normal(4, 5, 3), normal(5, 3, seed=1), 2.5)],
    "attacks.paf": lambda: [(normal(4, 5, 3), normal(5, 3, seed=1))],
    "attacks.lie": lambda: [(normal(4, 5, 3), 1.5)],
    "attacks.ofom": lambda: [(normal(4, 5, 3), normal(5, 3, seed=1), *n) for n in ((), (2,))],
    "attacks.lie_z": lambda: [(50, 12), (16, 1), (8, 7), (21, 4), (25, 5)],
    "partition.iid": lambda: [(classes(), 7, rng())],
    "partition.dirichlet": lambda: [(classes(), 6, 0.3, rng(seed)) for seed in range(3)],
    "partition.dirichlet_balanced": lambda: [
        (classes(), 6, 0.3, rng()), (classes(30), 3, 1e-4, rng(1), 1)],
    "partition.dirichlet_equal": lambda: [
        (classes(), 6, 0.3, rng()), (classes(400), 23, 0.3, rng())],
    "partition.dirichlet_by_client": lambda: [
        (classes(), 6, 0.3, rng()), (classes(30), 4, 1e-9, rng(1))],
    "partition.by_writer": lambda: [(classes(60, 9), 4, rng())],
    "partition.single_writer": lambda: [(classes(300, 9), 4, rng())],
    "partition.hold_out": lambda: [(classes(), 0.29, rng())],
    "partition.hold_out_writers": lambda: [(classes(60, 9), 0.29, rng())],
    "partition.halves": lambda: [(classes(301), rng())],
    "partition.few_per_class": lambda: [(classes(), 4, 3, rng())],
    "partition.by_subclass": lambda: [
        (classes(), classes(300, 3, seed=1) + 10 * classes(), n, rng()) for n in (2, 5)],
    "partition.fedgkt_table6": lambda: [(classes(2000, 10), 16, rng())],
    "federation.count_weight_bytes": lambda: [
        ([(network(with_batchnorm).requires_grad_(bool(more)), 3)], *more) for more in ((), (8,))],
    "federation.count_logit_bytes": lambda: [(8, 10, 1500, 700, *more) for more in ((), (300,))]}
EQUATIONS = tuple(INPUTS)
INPUTS["one_round.fedsdd"] = lambda: [       # no equation: an exercise
    (toy_models(K), [toy_models(K, seed) for seed in past], [[0, 2], [3, 1], [4]][:K],
     {0: 5, 1: 2, 2: 3, 3: 9, 4: 6}, R,
     lambda i, model: {"w": model["w"] / 2 + i},                             # train
     lambda model: 3 * model["w"] - 1,                                       # predict
     lambda model, teacher: {"w": model["w"] + 0.1 * (teacher - model["w"])})
    for K, R, past in ((2, 2, []), (2, 1, [5]), (2, 2, [5, 7]), (3, 3, [5, 7, 9]))]


def results(function, name):
    return [function(*arguments) for arguments in INPUTS[name]()]


def identical(a, b):
    """Of one type, and equal bit for bit; nan is equal to nan."""
    if isinstance(a, torch.nn.Module):
        return same(dict(a.state_dict()), dict(b.state_dict()))
    if isinstance(a, torch.Tensor) and a.is_floating_point():
        return a.dtype == b.dtype and torch.equal(a.isnan(), b.isnan()) and torch.equal(
            a.nan_to_num(), b.nan_to_num())
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(identical(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(identical, a, b))
    return isinstance(a, np.random.Generator) or type(a) is type(b) and same(a, b)


def tensors(value):
    """Every tensor and array in a result."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for x in value.values() if isinstance(value, dict) else value:
            yield from tensors(x)


def in_type(value, dtype):
    """A copy in which all floating-point numbers of models and tensors have this type."""
    if isinstance(value, dict):
        return {key: in_type(x, dtype) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [in_type(x, dtype) for x in value]
    if isinstance(value, torch.nn.Module) or torch.is_tensor(value) and value.is_floating_point():
        return copy.deepcopy(value).to(dtype)
    return copy.deepcopy(value)


def shared(function, arguments):
    """Does a change of the result, in place, change the arguments?"""
    before = copy.deepcopy(arguments)
    for x in tensors(function(*arguments)):
        x[...] = True if x.dtype in (torch.bool, bool) else 77
    return not identical(arguments, before)
