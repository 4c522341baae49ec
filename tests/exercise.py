"""Exercises: write the body of an equation's function; it is compared with the project's.

    python tests/exercise.py                  # the exercises: paper, equation, minutes
    python tests/exercise.py fedgems.entropy  # writes exercises/fedgems.entropy.py
    python tests/exercise.py fedgems.entropy  # again, with your body in that file: grades it

Your function gets the inputs of functions.py. Every form is right that gives the project's numbers,
to a relative 1e-4, and of a loss the gradients, too. If yours gives what a mistake of mistakes.py
gives, the mistake is named. The exit status is 0 if the function is right.
"""
import argparse
import ast
import copy
import functools
import inspect
import re
import runpy
import sys
import traceback
from pathlib import Path

import torch
from break_it import MUTANTS, ROOT

sys.path.insert(0, str(ROOT))

from functions import INPUTS, identical, module_of, own  # noqa: E402

EXERCISES = {       # function: (paper, equation, minutes, a guess)
    "fedsdd.distillation_loss": ("FedSDD", "Eq. (4)", 10),
    "federation.disagreement": ("FedSDD", "", 10),
    "federation.average_weights": ("FedSDD", "Eq. (2)", 15),
    "one_round.fedsdd": ("FedSDD", "lines 4-10", 25),
    "attacks.paf": ("FedGEMS", "Eq. (7)", 3),
    "attacks.lie": ("FedGEMS", "Eq. (10)", 3),
    "attacks.harmful_vector": ("FedGEMS", "", 5),
    "fedgems.is_right": ("FedGEMS", "", 5),
    "fedgems.fuse": ("FedGEMS", "Eq. (5)", 5),
    "attacks.ofom": ("FedGEMS", "Eq. (11)", 5),
    "attacks.lie_z": ("FedGEMS", "Eq. (8), (9)", 10),
    "fedgems.choose_teacher": ("FedGEMS", "Lines 5-12", 10),
    "fedgems.entropy": ("FedGEMS", "Eq. (3)", 10),
    "fedgems.distillation": ("FedGEMS", "Eq. (2), (5), (6)", 10),
    "fedgems.server_loss": ("FedGEMS", "Eq. (2), (5)", 15),
    "fedgems.entropy_weights": ("FedGEMS", "Eq. (4)", 15),
    "scaffold.corrected_gradient": ("SCAFFOLD", "Alg. 1, line 10", 2),
    "fedmd.digest_loss": ("FedMD", "Step 4", 3),
    "scaffold.updated_client_control": ("SCAFFOLD", "Alg. 1, line 12", 3),
    "dsfl.entropy_reduction": ("DS-FL", "Step 5", 3),
    "fedgkt.transfer_loss": ("FedGKT", "Eq. (6), (7)", 5),
    "fedmd.consensus": ("FedMD", "Step 3", 5),
    "fedprox.proximal_term": ("FedProx", "Eq. (2)", 5),
    "feddf.drop_worst": ("FedDF", "", 5),
    "dsfl.soft_cross_entropy": ("DS-FL", "Step 6, 7", 5),
    "cronus.soft_cross_entropy": ("Cronus", "Step 6", 5),
    "fd.soft_cross_entropy": ("FD", "In step 3", 5),
    "fedgen.generator_loss": ("FedGen", "Eq. (4)", 5),
    "fedntd.not_true": ("FedNTD", "Step 8", 5),
    "fedntd.not_true_loss": ("FedNTD", "", 5),
    "fedntd.client_loss": ("FedNTD", "Step 8-9", 5),
    "fedbe.sharpened_teacher": ("FedBE", "", 10),
    "fedbe.kl_divergence": ("FedBE", "Step 13", 10),
    "feddf.distillation_loss": ("FedDF", "Step 10", 10),
    "fedntd.distillation_loss": ("FedNTD", "Step 9", 10),
    "fedgem.distillation": ("FedGEM", "Eq. (5), (6)", 10),
    "fml.mutual_loss": ("FML", "", 10),
    "fedkd.kl_divergence": ("FedKD", "", 10),
    "fedgen.diversity_loss": ("FedGen", "Step 12", 10),
    "fedproto.prototypes": ("FedProto", "", 10),
    "fedproto.global_prototypes": ("FedProto", "Eq. (6)", 10),
    "fedproto.prototype_loss": ("FedProto", "", 10),
    "fd.others_mean": ("FD", "Step 6", 15),
    "fedkd.adaptive_losses": ("FedKD", "", 20),
    "fedkd.compress": ("FedKD", "", 25)}
SIZES = {"B": "images of a batch", "C": "classes", "D": "features", "E": "members of the ensemble",
         "M": "clients (or models)", "N": "images", "n": "images", "P": "rows"}


# ------------------------------------------------------------------------------ the student's file

def template(name):
    """The student's file: the function with its docstring, `...` in the place of its body."""
    module, function = module_of(name), own(name)
    text = inspect.getsource(function)
    [node] = ast.parse(text).body
    docstring = node.body[0]
    head = "\n".join(text.splitlines()[:docstring.end_lineno])
    used = {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
    imports = {"math": "import math", "torch": "import torch",
               "F": "import torch.nn.functional as F"}
    for word in sorted(used & vars(module).keys() - imports.keys()):
        thing = vars(module)[word]
        imports[word] = (f"import {word}" if inspect.ismodule(thing)
                         else f"from {getattr(thing, '__module__', module.__name__)} import {word}")
    paper, equation, minutes = EXERCISES[name]
    found = set(re.findall(r"\b\w\b", "".join(re.findall(r"\[[^]]*\]", docstring.value.value))))
    sizes = ", ".join(f"{letter} {SIZES[letter]}" for letter in sorted(found & SIZES.keys()))
    header = f"algorithms/{paper.lower().replace('-', '')}.py"
    comment = [", ".join(filter(None, [paper, equation, f"{minutes} minutes"])),
               sizes and f"Sizes: {sizes}.",
               f"The algorithm: the first lines of {header}. The arguments must stay as they are."]
    return "\n".join([*(f"# {line}" for line in comment if line), *imports.values(), "", "", head,
                      "    ...", ""])


# ------------------------------------------------------------------------------------------ grading

def numbers(value):
    """Every number of a result: a list of tensors in float64."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, (list, tuple)) and not all(isinstance(x, (int, float)) for x in value):
        return [x for part in value for x in numbers(part)]
    return [torch.as_tensor(value).double()]


def leaves(argument):
    """The tensors of an argument that can have a gradient."""
    if isinstance(argument, torch.nn.Module):
        argument = dict(argument.named_parameters())
    tensors = argument.values() if isinstance(argument, dict) else [argument]
    return [x for x in tensors if torch.is_tensor(x) and x.is_floating_point()]


def measured(function, name, arguments):
    """{"result": ..., "gradient by logits": ...} of a call, or a sentence that says what it did
    instead."""
    before = copy.deepcopy(arguments)
    try:
        result = function(*arguments)
        if result is None:
            return "it returns None"
        found = {f"result{n or ''}": x.detach() for n, x in enumerate(numbers(result))}
        if not identical(arguments, before):
            return "it changes its arguments"
        if "loss" not in name and "no gradient" not in " ".join(own(name).__doc__.split()):
            return found
        by = {f"{word}{n or ''}": x.requires_grad_()
              for word, argument in zip(inspect.signature(own(name)).parameters, arguments)
              for n, x in enumerate(leaves(argument))}
        for n, x in enumerate(numbers(function(*arguments))):
            for word, leaf in by.items():
                [slope] = torch.autograd.grad(x.sum(), leaf, retain_graph=True, allow_unused=True
                                              ) if x.requires_grad else [None]
                found[f"gradient of result{n or ''} by {word}"] = (
                    torch.zeros_like(leaf) if slope is None else slope)
        return found
    except Exception as error:           # the student's: it is shown, with its line
        lines = [f" in line {frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
                 if Path(frame.filename).parent.name == "exercises"]
        return f"it raises {type(error).__name__}{''.join(lines[-1:])}: {error}"


def outcome(function, name):
    return [measured(function, name, arguments) for arguments in INPUTS[name]()]


@functools.cache
def expected(name):
    """The outcome of the project's function."""
    return outcome(own(name), name)


def unlike(found, right):
    """What differs in two measured calls: the labels of `right`."""
    return [label for label, b in right.items() if isinstance(found, str)
            or (a := found.get(label)) is None or a.shape != b.shape
            or not torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-5, equal_nan=True)]


@functools.cache
def mistakes(name):
    """[(the mistake in words, its outcome)] of those in the function, or in one of its file that it
    calls, that change a number."""
    function, module = own(name), module_of(name)
    called = set(re.findall(r"\w+", inspect.getsource(function)))
    texts = "\n".join(inspect.getsource(f) for word, f in vars(module).items()
                      if word in called and inspect.isfunction(f)
                      and f.__module__ == module.__name__)
    found = []
    for m in MUTANTS:
        if (ROOT / m.file).samefile(module.__file__) and m.old in texts:
            exec(texts.replace(m.old, m.new), namespace := {**vars(module)})
            wrong = outcome(namespace[function.__name__], name)
            if any(map(unlike, wrong, expected(name))):
                found.append((m.what + (m.whose and f" (as in {m.whose})"), wrong))
    return found


def names_of(found, name, n):
    """The known mistakes that give the same on the n-th input, and on as many others as any."""
    alike = {}
    for what, wrong in mistakes(name):
        same = [not isinstance(b, str) and not unlike(a, {label: b[label] for label in right})
                for a, b, right in zip(found, wrong, expected(name))]
        if same[n]:
            alike[what] = sum(same)
    return [what for what, count in alike.items() if count == max(alike.values())]


def grade(function, name):
    """The lines of the answer; none if the function is right."""
    found, right = outcome(function, name), expected(name)
    different = [(n, label) for n in range(len(right)) for label in unlike(found[n], right[n])]
    if not different:
        return []
    n, label = different[0]
    words = inspect.signature(own(name)).parameters
    lines = [f"{word} = {x}" for word, x in zip(words, INPUTS[name]()[n])]
    if isinstance(found[n], str):
        return [*lines, f"wrong: {found[n]}"]
    yours = found[n].get(label)
    return [*lines, f"wrong, the {label}:", f"yours    {yours}", f"expected {right[n][label]}",
            *(f"This is a known mistake: {what}" for what in names_of(found, name, n))]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", help="such as fedgems.entropy")
    name = parser.parse_args(argv).name
    if not name:
        for word, (paper, equation, minutes) in EXERCISES.items():
            print(f"{word:36}{paper:10}{equation:20}{minutes:2} minutes")
        return 0
    if name not in EXERCISES:
        parser.error(f"no exercise {name}; without a name all are listed")
    path, function_name = Path("exercises", f"{name}.py"), name.split(".")[1]
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(template(name))
        print(f"wrote {path}: write the body of {function_name}, then give the same command again")
        return 0
    exec(template(name), empty := {})
    try:
        function = runpy.run_path(str(path)).get(function_name)
    except Exception as error:           # the student's
        lines = [f"{path}: {type(error).__name__}: {error}"]
    else:
        if function is None:
            lines = [f"{path} has no function {function_name}"]
        elif function.__code__.co_code == empty[function_name].__code__.co_code:
            lines = [f"{path}: {function_name} has no body yet: write it in the place of `...`"]
        else:
            lines = grade(function, name)
    print(*lines or [f"right: {function_name} gives the project's numbers"], sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
