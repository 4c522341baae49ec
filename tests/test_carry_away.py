"""Each function that carries an equation works outside this project, with nothing but what its docstring names."""
import ast
import builtins
import contextlib
import importlib
import inspect
import io
import math
import re
import symtable
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from toys import EQUATIONS, linear, same, with_batchnorm, with_hidden_layer

import partition
from algorithms import cronus, equations, fedgems, fedgkt
from algorithms.common import seeded

ROOT = Path(__file__).parent.parent
IMPORTS = {"torch": torch, "np": np, "F": torch.nn.functional}     # what a reader's own file has


# ------------------------------------------------------------------------------------- carrying one function or constant away

def module_of(name):
    """"fedsdd.group_clients" -> the module fedsdd, which is in algorithms/ or at the top."""
    stem = name.split(".")[0]
    return importlib.import_module(f"algorithms.{stem}" if (ROOT / "algorithms" / f"{stem}.py").exists() else stem)


def own(name):
    return getattr(module_of(name), name.split(".")[1])


def source(module, name):
    """The text of a module's function, or of the assignment of its constant."""
    if inspect.isfunction(getattr(module, name)):
        return inspect.getsource(getattr(module, name))
    text = inspect.getsource(module)
    [assignment] = [node for node in ast.parse(text).body if isinstance(node, ast.Assign) and node.targets[0].id == name]
    return ast.get_source_segment(text, assignment)


def needs(thing):
    """["a", "b"] for a function whose docstring has the sentence "Needs `a` and `b`."."""
    text = " ".join((thing.__doc__ or "").split()) if inspect.isfunction(thing) else ""
    return [name for pair in re.findall(r"\bNeeds `([\w.]+)`(?: and `([\w.]+)`)?\.", text) for name in pair if name]


def bound(name):
    """What a name is bound to in the file that needs it: `statistics.NormalDist` is imported from statistics."""
    return name.split(".")[-1]


def carried(module, name, without=None):
    """The thing made from its source alone, beside IMPORTS and what it needs, each made in the same way in a place of its own."""
    if name.split(".")[0] in sys.stdlib_module_names:
        stem, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(stem), attribute) if stem else importlib.import_module(name)
    thing = getattr(module, name)
    module = sys.modules[thing.__module__] if inspect.isfunction(thing) else module
    namespace = IMPORTS | {bound(helper): carried(module, helper) for helper in needs(thing) if helper != without}
    exec(compile(source(module, name), f"<{name}>", "exec"), namespace)
    return namespace[name]


# ------------------------------------------------------------------------------------------------------------------- inputs

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
    with seeded(seed, "carried"):
        model = make()
    for name, buffer in model.named_buffers():
        buffer.copy_(torch.tensor(5 + seed) if name.endswith("tracked") else normal(*buffer.shape, seed=seed).abs())
    return model


def models(make):
    """Three of one architecture; the second has the largest counter."""
    return [network(make, seed).state_dict() for seed in (1, 2, 0)]


def spoilt(values, *places):
    """A copy with nan in these places."""
    values = values.clone()
    for place in places:
        values[place] = math.nan
    return values


RIGHT = torch.tensor([[1, 0, 1, 1, 0], [1, 0, 0, 1, 1], [0, 0, 0, 1, 1], [1, 0, 1, 0, 1]]).bool()      # nobody on the second sample
TAUGHT = torch.tensor([True, False, True, False, True])
LABELS = torch.tensor([2, 0, 1, 1, 0])

INPUTS = {      # name: a function that makes the arguments of one call or several; new ones each time, so that an rng starts anew
    "equations.kl_divergence": lambda: [(normal(5, 3), normal(5, 3, seed=1), *T) for T in ((), (3.0,))],
    "equations.distillation_loss": lambda: [(normal(5, 3), normal(5, 3, seed=1), *T) for T in ((), (3.0,))],
    "equations.soft_cross_entropy": lambda: [(normal(5, 3), probs(5, 3, seed=1))],
    "equations.average_weights": lambda: [(models(make), [1, 4, 3]) for make in (linear, with_hidden_layer, with_batchnorm)],
    "fedprox.proximal_term": lambda: [(network(with_batchnorm), network(with_batchnorm, 1).state_dict(), 0.3)],
    "scaffold.corrected_gradient": lambda: [tuple(normal(3, 4, seed=i) for i in range(3))],
    "scaffold.updated_client_control": lambda: [(*(normal(3, 4, seed=i) for i in range(4)), 7, 0.1)],
    "feddf.drop_worst": lambda: [([0.11, 0.12, 0.5], 10), (torch.tensor([0.11, 0.1, 0.02]), 10)],
    "fedbe.gaussian_sample": lambda: [(models(with_batchnorm), [1, 4, 3], rng())],
    "fedbe.dirichlet_sample": lambda: [(models(with_batchnorm), [1, 4, 3], rng(), *more) for more in ((), (0.3,))],
    "fedsdd.group_clients": lambda: [([9, 2, 5, 11, 4, 0, 7, 3], 3, rng())],
    "fedsdd.ensemble_logits": lambda: [(normal(4, 5, 3),)],
    "fedmd.consensus": lambda: [(normal(4, 5, 3),), (normal(4, 5, 3), [2, 0, 1, 5])],
    "fedmd.digest_loss": lambda: [(normal(5, 3), normal(5, 3, seed=1))],
    "dsfl.entropy_reduction": lambda: [(probs(4, 5, 3), *T) for T in ((), (0.5,))],
    "cronus.robust_mean": lambda: [(probs(10, 6, 4), 0.3), (probs(5, 6, 8), 0.4), (probs(5, 6, 4), 0.0)],
    "fedgems.entropy": lambda: [(normal(4, 5, 3),), (torch.tensor([[1e4, 0., -1e4], [1., 0., 2.]]),)],
    "fedgems.reliable_clients": lambda: [(spoilt(normal(4, 5, 3), (0, 0, 2), (3, 3)), LABELS)],
    "fedgems.entropy_weights": lambda: [(spoilt(normal(4, 5, 3), (2, 0)), RIGHT)],
    "fedgems.fuse_logits": lambda: [(spoilt(normal(4, 5, 3), (2, 0)), RIGHT / RIGHT.sum(0).clamp(min=1) * 1.0)],
    "fedgems.server_loss": lambda: [(normal(5, 3), LABELS, spoilt(normal(5, 3, seed=1), 1), TAUGHT, 0.6)],
    "fedgems.client_loss": lambda: [(normal(5, 3), LABELS, normal(5, 3, seed=1), 0.6)],
    "fedgkt.server_loss": lambda: [(normal(5, 3), LABELS, normal(5, 3, seed=1), 3.0, *flag) for flag in ((), (False,))],
    "fedgkt.client_loss": lambda: [(normal(5, 3), LABELS, z, 3.0) for z in (normal(5, 3, seed=1), None)],
    "attacks.paf": lambda: [(normal(4, 5, 3), normal(5, 3, seed=1))],
    "attacks.lie": lambda: [(normal(4, 5, 3), 1.5)],
    "attacks.ofom": lambda: [(normal(4, 5, 3), normal(5, 3, seed=1))],
    "attacks.lie_z": lambda: [(50, 12), (16, 1), (8, 7)],
    "partition.iid": lambda: [(classes(), 7, rng())],
    "partition.dirichlet": lambda: [(classes(), 6, 0.3, rng(seed)) for seed in range(3)],
    "partition.dirichlet_balanced": lambda: [(classes(), 6, 0.3, rng()), (classes(30), 3, 1e-4, rng(1), 1)],
    "partition.dirichlet_equal": lambda: [(classes(), 6, 0.3, rng()), (classes(400), 23, 0.3, rng())],
    "partition.by_writer": lambda: [(classes(60, 9), 4, rng())],
    "partition.few_per_class": lambda: [(classes(), 4, 3, rng())],
    "partition.by_subclass": lambda: [(classes(), classes(300, 3, seed=1) + 10 * classes(), n, rng()) for n in (2, 5)],
    "partition.fedgkt_table6": lambda: [(classes(2000, 10), 16, rng())],
    "communication.weights_bytes": lambda: [(network(with_batchnorm), 3, *more) for more in ((), (2, 8))],
    "communication.logits_bytes": lambda: [(1500, 10, 8)],
    "communication.features_bytes": lambda: [(1500, 16 * 8 * 8, 10, *more) for more in ((), (2,))],
    "communication.split_learning_bytes": lambda: [(1500, 16 * 8 * 8)]}

ERRORS = {      # the same for what is refused
    "equations.average_weights": lambda: (models(linear), [1, 4]), "fedsdd.group_clients": lambda: ([1, 2], 3, rng()),
    "fedmd.consensus": lambda: (normal(4, 5, 3), [0, 0, 0, 0]), "partition.iid": lambda: (classes(5), 6, rng()),
    "partition.dirichlet": lambda: (classes(30), 3, 0.01, rng(), 10), "partition.by_writer": lambda: (classes(60, 9), 10, rng()),
    "partition.dirichlet_balanced": lambda: (classes(30), 6, 0.0, rng(), 1), "partition.few_per_class": lambda: (classes(), 4, 30, rng()),
    "partition.dirichlet_equal": lambda: (classes(30), 0, 0.3, rng()), "partition.fedgkt_table6": lambda: (classes(), 16, rng()),
    "partition.by_subclass": lambda: (classes(9), classes(9, 2, seed=1), 9, rng())}


def identical(a, b):
    """Of one type, and equal bit for bit."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(identical, a, b))
    return type(a) is type(b) and same(a, b)


def results(function, name):
    return [function(*arguments) for arguments in INPUTS[name]()]


def test_every_function_that_carries_an_equation_has_inputs():
    assert sorted(INPUTS) == sorted(EQUATIONS)
    assert set(ERRORS) == {name for name in EQUATIONS if "raise ValueError" in inspect.getsource(own(name))
                           or "_check_clients" in needs(own(name))}


# ------------------------------------------------------------------------------------------------------------------ carried

@pytest.mark.parametrize("name", EQUATIONS)
def test_a_function_carried_away_gives_what_it_gives_here(name):
    function = carried(module_of(name), name.split(".")[1])
    assert function is not own(name) and function.__globals__ is not own(name).__globals__
    assert identical(results(function, name), results(own(name), name))


@pytest.mark.parametrize("name", ERRORS)
def test_a_function_carried_away_refuses_what_is_refused_here(name):
    with pytest.raises(ValueError) as here:
        own(name)(*ERRORS[name]())
    with pytest.raises(ValueError, match=f"^{re.escape(str(here.value))}$"):
        carried(module_of(name), name.split(".")[1])(*ERRORS[name]())


@pytest.mark.parametrize("name", EQUATIONS)
def test_a_docstring_names_what_is_used_and_nothing_else(name):
    """In every branch, also where these inputs do not lead; two names at most."""
    def names(table):
        here = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced() and symbol.is_global()}
        return here.union(*map(names, table.get_children()))

    used = names(symtable.symtable(inspect.getsource(own(name)), name, "exec")) - set(dir(builtins))
    assert used - set(IMPORTS) == set(map(bound, needs(own(name))))
    assert len(needs(own(name))) <= 2


@pytest.mark.parametrize("name, helper", [(name, helper) for name in EQUATIONS for helper in needs(own(name))])
def test_without_what_it_needs_a_function_fails(name, helper):
    with pytest.raises(NameError, match=f"'{bound(helper)}'"):
        results(carried(module_of(name), name.split(".")[1], without=helper), name)


def test_a_helper_that_is_missing_is_noticed_when_the_function_is_called():
    function = carried(fedgems, "server_loss", without="kl_divergence")
    with pytest.raises(NameError, match="name 'kl_divergence' is not defined"):
        function(*INPUTS["fedgems.server_loss"]()[0])


def test_a_helper_does_not_lend_what_it_needs_itself():
    """FedGKT's loss needs distillation_loss, which needs kl_divergence: only the one who names it has it."""
    function = carried(fedgkt, "server_loss")
    assert "kl_divergence" not in function.__globals__ and "kl_divergence" in function.__globals__["distillation_loss"].__globals__


# ---------------------------------------------------------------------------------------------------------- inputs that matter

@pytest.mark.parametrize("name", EQUATIONS)
def test_the_inputs_reach_every_line_but_the_errors(name):
    function, reached = carried(module_of(name), name.split(".")[1]), set()
    _, *body = [node for node in ast.walk(ast.parse(inspect.getsource(own(name))).body[0]) if isinstance(node, ast.stmt)]
    lines = {node.lineno for node in body if not isinstance(node, ast.Raise) and not (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))}

    def trace(frame, event, _):
        if frame.f_code.co_filename == function.__code__.co_filename:
            reached.add(frame.f_lineno)
            return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        results(function, name)
    finally:
        sys.settrace(before)
    assert lines and lines <= reached


@pytest.mark.parametrize("name", [name for name in EQUATIONS if "rng" in inspect.signature(own(name)).parameters])
def test_what_is_drawn_depends_on_the_seed(name):
    def other(argument):
        return rng(99) if isinstance(argument, np.random.Generator) else argument

    for arguments in INPUTS[name]():
        assert any(isinstance(argument, np.random.Generator) for argument in arguments)
        assert not identical(own(name)(*map(other, arguments)), own(name)(*arguments))


def test_average_weights_is_asked_for_counters_and_for_several_architectures():
    calls = INPUTS["equations.average_weights"]()
    assert len({tuple(first) for (first, *_), _ in calls}) == 3
    (first, largest, last), weights = calls[2]
    counters = [model["0.num_batches_tracked"].item() for model in (first, largest, last)]
    assert counters == [6, 7, 5] and len(set(weights)) == 3 and "0.running_var" in first
    assert equations.average_weights([first, largest, last], weights)["0.num_batches_tracked"].tolist() == 7


def test_robust_mean_is_asked_to_leave_out_clients_by_both_matrices():
    many_clients, many_classes, none = INPUTS["cronus.robust_mean"]()
    assert len(many_clients[0]) > many_clients[0].shape[-1] and len(many_classes[0]) < many_classes[0].shape[-1]
    for client_probs, fraction in (many_clients, many_classes):
        assert not torch.isclose(cronus.robust_mean(client_probs, fraction), client_probs.mean(0)).all(-1).any()
    assert none[1] == 0


def test_fedgems_is_asked_about_clients_that_are_wrong_and_samples_without_a_teacher():
    [(logits, labels)] = INPUTS["fedgems.reliable_clients"]()
    reliable = fedgems.reliable_clients(logits, labels)
    assert reliable.any() and not reliable.all() and ((logits.argmax(-1) == labels) & ~reliable).any()
    [(logits, reliable)] = INPUTS["fedgems.entropy_weights"]()
    weights = fedgems.entropy_weights(logits, reliable)
    assert (~reliable).any() and weights.sum(0).round().tolist() == [1, 0, 1, 1, 1] and len(weights[:, 3].unique()) == 4
    [(logits, weights)] = INPUTS["fedgems.fuse_logits"]()
    assert logits.isnan().any() and (weights[logits.isnan().any(-1)] == 0).all() and ((weights > 0) & (weights < 1)).any()
    [(_, _, teacher_logits, has_teacher, _)] = INPUTS["fedgems.server_loss"]()
    assert has_teacher.any() and not has_teacher.all() and not has_teacher[teacher_logits.isnan().any(-1)].any()


def test_drop_worst_and_group_clients_are_asked_for_both_cases():
    some, nobody = results(own("feddf.drop_worst"), "feddf.drop_worst")
    assert some.tolist() == [False, True, True] and nobody.all()
    [groups] = results(own("fedsdd.group_clients"), "fedsdd.group_clients")
    assert [len(group) for group in groups] == [3, 3, 2] and groups[0] != sorted(sum(groups, []))[:3]


def test_dirichlet_is_asked_for_draws_that_are_made_again_and_for_clients_that_are_full():
    redrawn = [not identical(partition.dirichlet(labels, n, alpha, generator), partition.dirichlet(labels, n, alpha, rng(seed), 0))
               for seed, (labels, n, alpha, generator) in enumerate(INPUTS["partition.dirichlet"]())]
    assert any(redrawn)
    labels, *settings, generator = INPUTS["partition.dirichlet_balanced"]()[0]
    assert not identical(partition.dirichlet_balanced(labels, *settings, generator), partition.dirichlet(labels, *settings, rng()))


# --------------------------------------------------------------------------------------------------------------- the README

def borrowings():
    """[(file, name), ...] and the code of each example below the heading: what to copy is in the line above it."""
    text = (ROOT / "README.md").read_text()
    assert "\n## Carrying functions away\n" in text
    section = re.split(r"^## ", text.split("\n## Carrying functions away\n")[1], maxsplit=1, flags=re.M)[0]
    examples = re.findall(r"^Copy ([^\n]+)\.\n+```python\n(.*?)^```$", section, re.M | re.S)
    assert len(examples) == section.count("```python") >= 2
    for line, code in examples:
        pieces = re.findall(r"((?:`\w+`(?:, | and )?)+) from \[([\w/.]+)\]\(([\w/.]+)\)", line)
        assert pieces and all(shown == linked for _, shown, linked in pieces), line
        named = [(file, name) for names, file, _ in pieces for name in re.findall(r"`(\w+)`", names)]
        assert len(named) == line.count("`") // 2, line
        yield named, code


def test_the_examples_of_the_readme_print_what_they_say():
    for named, code in borrowings():
        assert all(re.search(rf"^(def {name}\(|{name} = )", (ROOT / file).read_text(), re.M) for file, name in named), named
        sources = [source(importlib.import_module(file.removesuffix(".py").replace("/", ".")), name) for file, name in named]
        expected = re.findall(r"^ *print\(.*# -> (.*?) *$", code, re.M)
        assert expected and len(expected) == len(re.findall(r"\bprint\(", code))
        printed = io.StringIO()
        with torch.random.fork_rng(devices=[]), contextlib.redirect_stdout(printed):
            exec("\n\n".join([*sources, code]), {})
        assert printed.getvalue().splitlines() == expected
