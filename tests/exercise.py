"""Exercises: write the body of an equation's function; it is compared with the project's.

    python tests/exercise.py                  # the exercises: paper, equation, minutes
    python tests/exercise.py fedgems.entropy  # writes exercises/fedgems.entropy.py
    python tests/exercise.py fedgems.entropy  # again, with your body in that file: grades it
    python tests/exercise.py --class FOLDER   # grades FOLDER/anna/fedgems.entropy.py and all others

Your function gets the inputs of functions.py in float64. Every form is right that gives the
project's numbers, to a relative 1e-4, and of a loss the gradients, too. If yours gives what a
mistake of mistakes.py or of KINDS gives, the mistake is named. The exit status is 0 if all is
right. Each file of a class runs in a process of its own, with your rights, for a minute at most;
FOLDER/grades.csv has the lines.
"""
import argparse
import ast
import contextlib
import copy
import csv
import functools
import inspect
import io
import math
import multiprocessing
import re
import runpy
import sys
import textwrap
import traceback
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from break_it import MUTANTS, ROOT

sys.path.insert(0, str(ROOT))

from functions import (  # noqa: E402
    EQUATIONS, INPUTS, identical, in_type, module_of, own, shared)

EXERCISES = {       # function: (paper, equation, minutes, a guess); each formula once
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
    "fedgen.generator_loss": ("FedGen", "Eq. (4)", 5),
    "fedntd.not_true": ("FedNTD", "Step 8", 5),
    "fedntd.not_true_loss": ("FedNTD", "", 5),
    "fedntd.client_loss": ("FedNTD", "Step 8-9", 5),
    "fedbe.sharpened_teacher": ("FedBE", "", 10),
    "fedbe.kl_divergence": ("FedBE", "Step 13", 10),
    "fml.mutual_loss": ("FML", "", 10),
    "fedgen.diversity_loss": ("FedGen", "Step 12", 10),
    "fedproto.prototypes": ("FedProto", "", 10),
    "fedproto.global_prototypes": ("FedProto", "Eq. (6)", 10),
    "fedproto.prototype_loss": ("FedProto", "", 10),
    "fd.others_mean": ("FD", "Step 6", 15),
    "fedkd.adaptive_losses": ("FedKD", "", 20),
    "fedkd.compress": ("FedKD", "", 25)}
SIZES = {"B": "images of a batch", "C": "classes", "D": "features", "E": "members of the ensemble",
         "M": "clients (or models)", "N": "images", "n": "images", "P": "rows"}
LIMIT = 60           # seconds for a file of a class


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
    meant = SIZES | ({"n": "benign uploads"} if module.__name__ == "attacks" else {})
    sizes = ", ".join(f"{letter} {meant[letter]}" for letter in sorted(found & SIZES.keys()))
    file = Path(module.__file__).relative_to(ROOT)
    comment = [", ".join(filter(None, [paper, equation, f"{minutes} minutes"])),
               sizes and f"Sizes: {sizes}.",
               f"More: the first lines of {file}. The arguments must stay as they are."]
    return "\n".join([*(f"# {line}" for line in comment if line), *imports.values(), "", "", head,
                      "    ...", ""])


# ------------------------------------------------------------------------------------------ grading

def numbers(value, label="result"):
    """{label: tensor} of every number of a result; a label such as result["fc.bias"] or result[0].
    """
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, (list, tuple)) and not all(isinstance(x, (int, float)) for x in value):
        parts = enumerate(value)
    else:
        return {label: value if torch.is_tensor(value) else torch.as_tensor(np.asarray(value))}
    return {name: x for key, part in parts
            for name, x in numbers(part, f"{label}[{key!r}]").items()}


def leaves(argument):
    """The tensors of an argument that can have a gradient."""
    if isinstance(argument, torch.nn.Module):
        argument = dict(argument.named_parameters())
    values = argument.values() if isinstance(argument, dict) else [argument]
    return [x for x in values if torch.is_tensor(x) and x.is_floating_point()]


def measured(function, name, arguments):
    """{"result": ..., "gradient by logits": ...} of a call, or a sentence that says what it did
    instead."""
    arguments, before = copy.deepcopy(arguments), arguments
    try:
        result = function(*arguments)
        if result is None:
            return "it returns None"
        found = {label: x.detach().clone() for label, x in numbers(result).items()}
        if not identical(arguments, before):
            return "it changes its arguments"
        if name == "fedgems.choose_teacher" and "result[1]" in found:
            found["result[0]"][found["result[1]"] == 0] = 0         # no teacher: means nothing
        if "loss" not in name and "no gradient" not in " ".join(own(name).__doc__.split()):
            return found
        by = {f"{word}{n or ''}": x.requires_grad_()
              for word, argument in zip(inspect.signature(own(name)).parameters, arguments)
              for n, x in enumerate(leaves(argument))}
        for label, x in numbers(function(*arguments)).items():
            for word, leaf in by.items():
                [slope] = torch.autograd.grad(x.sum(), leaf, retain_graph=True, allow_unused=True
                                              ) if x.requires_grad else [None]
                found[f"gradient of {label} by {word}"] = (
                    torch.zeros_like(leaf) if slope is None else slope)
        return found
    except Exception as error:           # the student's: it is shown, with its line
        lines = [f" in line {frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
                 if frame.filename.endswith(f"{name}.py")]
        return f"it raises {type(error).__name__}{''.join(lines[-1:])}: {error}"


@functools.cache
def inputs(name):
    return in_type(INPUTS[name](), torch.float64)


def outcome(function, name):
    return [measured(function, name, arguments) for arguments in inputs(name)]


@functools.cache
def expected(name):
    """The outcome of the project's function."""
    return outcome(own(name), name)


def unlike(found, right):
    """What differs in two measured calls: labels."""
    if isinstance(found, str) or isinstance(right, str):
        return [] if found == right else ["result"]
    return [label for label in {**right, **found} if not alike(found.get(label), right.get(label))]


def alike(a, b):
    """a is b up to rounding; True is not 1, and 1.0 is not an integer."""
    if a is None or b is None or a.shape != b.shape:
        return False
    if (a.dtype == torch.bool) != (b.dtype == torch.bool):
        return False
    if a.is_floating_point() and not b.is_floating_point():
        return False
    a, b = a.double(), b.double()
    size = b.nan_to_num(posinf=0, neginf=0).abs().sum().item()
    return torch.allclose(a, b, rtol=1e-4, atol=1e-6 * size + 1e-12, equal_nan=True)


# ----------------------------------------------------------------------------------------- mistakes

ARGUMENTS = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
PART = rf"[\w.]+(?:{ARGUMENTS})?"
TERM = rf"{PART}(?: \* {PART})*"
KINDS = [       # (what is in the project's function, in its place, the mistake)
    (r"softmax\(-1\)", "softmax(0)", "softmax over the wrong axis"),
    (r"softmax\(-1\)", "softmax(1)", "softmax over the wrong axis"),
    (r"softmax\(0\)", "softmax(-1)", "softmax over the wrong axis"),
    *((rf"\.(mean|sum|std|argmax)\({a}\b", rf".\1({b}", "mean, sum or argmax over the wrong axis")
      for a, b in ((0, 1), (0, -1), (-1, 0), (-1, 1))),
    (r"\.(mean|sum|std|argmax)\((0|-1)(, )?", r".\1(", "mean, sum or argmax over all axes"),
    (r"\.(mean|sum)\((0|-1)?\)", "", "a mean or a sum is missing"),
    (r"\.mean\(", ".sum(", "a sum in the place of a mean"),
    (r"\.sum\(", ".mean(", "a mean in the place of a sum"),
    (r"\.std\(", ".var(", "the variance, without its root"),
    (r"\(log_p - log_q\)", f"((log_p - log_q) / {math.log(2)})", "log2 in the place of ln"),
    (rf"\.masked_fill{ARGUMENTS}|torch\.where\([^()]*?, ({TERM}), {TERM}\)", r"\1",
     "a mask is missing"),
    (rf"\.(clamp|abs){ARGUMENTS}", "", "clamp or abs is missing"),
    (rf" / {PART}", "", "a division is missing"),
    (rf"{PART} \* ", "", "a factor is missing"), (rf" \* {PART}", "", "a factor is missing"),
    (r" \*\* ?2", "", "a square is missing"),
    (r" \+ ", " - ", "minus in the place of plus"), (r" - ", " + ", "plus in the place of minus"),
    (rf" [+-] {TERM}", "", "a term is missing"), (rf"{TERM} \+ ", "", "a term is missing"),
    (rf"{TERM} - ", "-", "a term is missing"),
    (r"correction=0", "correction=1", "n - 1 in the place of n"),
    (r" != ", " == ", "== in the place of !=")]
WHOLE = [("a wrong sign", lambda f, *a: -f(*a)),
         ("a mean over all is too much", lambda f, *a: f(*a).mean()),
         ("log2 in the place of ln", lambda f, *a: f(*a) / math.log(2)),
         ("numbers in the place of True and False", lambda f, *a: f(*a).double()),
         ("the first two arguments are swapped", lambda f, a, b, *more: f(b, a, *more))]
PLAIN = {"entropy": "\ndef entropy(z):\n    return -(z.softmax(-1) * z.log_softmax(-1)).sum(-1)"}


def wrong_forms(name):
    """Yields (a mistake in words, the function with it): of mistakes.py, then of KINDS."""
    module, function = module_of(name), own(name)
    called = set(re.findall(r"\w+", inspect.getsource(function)))
    texts = "\n".join(inspect.getsource(f) for word, f in vars(module).items()
                      if word in called and inspect.isfunction(f)
                      and f.__module__ == module.__name__)
    changed = [(m.what + (m.whose and f" (as in {m.whose})"), texts.replace(m.old, m.new))
               for m in MUTANTS if (ROOT / m.file).samefile(module.__file__) and m.old in texts]
    plain = "\n".join([ast.unparse(ast.parse(re.sub('""".*?"""', "", texts, flags=re.S))),
                       *(PLAIN[word] for word in PLAIN if f"def {word}(" in texts)])
    for pattern, new, what in KINDS:
        found = [*re.finditer(pattern, plain)]
        changed += [(what, plain[:x.start()] + x.expand(new) + plain[x.end():]) for x in found]
        changed += [(what, re.sub(pattern, new, plain))] * (len(found) > 1)
    for what, text in changed:
        try:
            exec(text, namespace := {**vars(module)})
        except SyntaxError:              # half of an expression was replaced
            continue
        yield what, namespace[function.__name__]
    for what, change in WHOLE:
        yield what, functools.partial(change, function)
    words = [*inspect.signature(function).parameters]
    for n in [n for n, word in enumerate(words) if word == "labels"]:
        for step in (1, -1):
            yield "labels are off by one", lambda *a, step=step, n=n: function(
                *a[:n], (a[n] + step) % (a[n].max() + 1), *a[n + 1:])


@functools.cache
def mistakes(name):
    """[(the mistake in words, its outcome)] of those that change a number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [(what, outcome(wrong, name)) for what, wrong in wrong_forms(name)]
    return [(what, wrong) for what, wrong in found if any(map(unlike, wrong, expected(name)))]


def leaked(found, right):
    """The labels of gradients that must be 0, and are not."""
    return [] if isinstance(found, str) else [
        label for label in unlike(found, right)
        if label.startswith("gradient") and label in right and not right[label].any()]


def hints(found, name, n):
    """Lines on what is wrong; n is an input with a wrong outcome.

    A mistake is known if all numbers that it changes are the student's, but those that are not
    finite. KINDS are guesses: they are named if no other is known. A gradient that must be 0 is
    told by itself, and hides no mistake.
    """
    known, right, guesses = {}, expected(name), {what for *_, what in KINDS}
    leaks = leaked(found[n], right[n])
    values = [label for label in unlike(found[n], right[n]) if label not in leaks]
    for what, wrong in mistakes(name):
        shown = {(k, label): (a.get(label), w.get(label))
                 for k, (a, w, b) in enumerate(zip(found, wrong, right))
                 if dict is type(a) is type(w) is type(b)
                 for label in unlike(w, b) if not (values and label in leaked(w, b))}
        same = {place: alike(*pair) for place, pair in shown.items()}
        if same.get((n, (values or leaks)[0])) and all(
                same[place] or getattr(x, "shape", 0) == getattr(y, "shape", 1)
                and not (x + y).isfinite().all() for place, (x, y) in shown.items()):
            rank = what not in guesses, sum(same.values())
            known[what] = max(rank, known.get(what, rank))
    best = [what for what in known if known[what] == max(known.values())][:2]
    return [*(f"This is a known mistake: {what}" for what in best),
            *(f"The {label} must be 0: detach" for label in leaks if values)]


def grade(function, name):
    """The lines of the answer; none if the function is right."""
    found, right = outcome(function, name), expected(name)
    different = [(n, label) for n in range(len(right)) for label in unlike(found[n], right[n])]
    if not different:
        if name in EQUATIONS and any(shared(function, copy.deepcopy(x)) for x in inputs(name)):
            return ["wrong: it returns a tensor of its arguments: who changes one changes both"]
        return []
    n, label = min(different, key=lambda at: (at[1] in leaked(found[at[0]], right[at[0]]),
                                              len(str(inputs(name)[at[0]]))))       # the shortest
    words = inspect.signature(own(name)).parameters
    given = ["The arguments:", *(f"{word} = {x}" for word, x in zip(words, inputs(name)[n]))]
    if isinstance(found[n], str):
        return [f"wrong: {found[n]}", *given]
    if isinstance(right[n], str):
        return [f"wrong, the result: {[*found[n].values()]}; of the project's: {right[n]}", *given]
    yours, ours = found[n].get(label), right[n].get(label)
    lines = [f"wrong, the {label}:", f"yours    {yours}", f"expected {ours}"]
    if None not in (yours, ours) and ours.isfinite().all() and not yours.isfinite().all():
        lines.append("Yours is not finite here")
    return [*lines, *hints(found, name, n), *given]


def graded(path, name):
    """The lines of the answer on a student's file; none if it is right."""
    module, function_name = module_of(name), name.split(".")[1]
    exec(template(name), empty := {})
    mistakes(name)                       # before the file runs, which may change torch's defaults

    @functools.wraps(own(name))
    def ours(*arguments):
        raise NotImplementedError("this is the project's function: write its body")
    try:
        with mock.patch.object(module, function_name, ours):
            function = runpy.run_path(str(path)).get(function_name)
            if function is None:
                return [f"{path} has no function {function_name}"]
            code = getattr(function, "__code__", None)
            if code and code.co_code == empty[function_name].__code__.co_code:
                return [f"{path}: {function_name} has no body yet: write it in the place of `...`"]
            return grade(function, name)
    except (Exception, SystemExit) as error:           # the student's
        return [f"{path}: {type(error).__name__}: {error}"]


def graded_quietly(path, name):
    with contextlib.redirect_stdout(io.StringIO()):
        return graded(path, name) or ["right"]


def graded_apart(path, name):
    """The lines of `graded`, or ["right"]; what the file changes ends with its process."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        try:
            return pool.apply_async(graded_quietly, (path, name)).get(LIMIT)
        except multiprocessing.TimeoutError:
            return ["wrong: it takes more than a minute, or ends the program"]


def grade_class(folder):
    """Prints a line for each .py file of the folder, and writes those that are graded, whose names
    end with that of an exercise, to grades.csv; True if there are some, and all are right."""
    rows = []
    for path in sorted(folder.rglob("*.py")):
        names = [name for name in EXERCISES if path.stem.endswith(name)]
        if not names:
            print(f"not graded: {path}")
        for name in names:
            lines = graded_apart(path, name)
            told = [x for x in lines if x.startswith(("This is", "The gradient", "Yours is"))] or [
                x for x in lines if x.startswith(("wrong", "yours", "expected"))] or lines[-1:]
            student = str(path.relative_to(folder).with_suffix("")).removesuffix(name).strip("/_- ")
            rows.append((student, name, "; ".join(textwrap.shorten(x, 100) for x in told)))
            print(*rows[-1], sep="  ", flush=True)
    if rows:
        with open(folder / "grades.csv", "w", newline="") as file:
            csv.writer(file).writerows([("student", "exercise", "answer"), *rows])
    return {answer for *_, answer in rows} == {"right"}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", help="such as fedgems.entropy")
    parser.add_argument("--class", dest="folder", type=Path, help="a folder of students' files")
    args = parser.parse_args(argv)
    if args.folder and not args.folder.is_dir():
        parser.error(f"no folder {args.folder}")
    if args.folder:
        return int(not grade_class(args.folder))
    if not args.name:
        for word, (paper, equation, minutes) in EXERCISES.items():
            print(f"{word:36}{paper:10}{equation:20}{minutes:2} minutes")
        return 0
    if args.name not in EXERCISES:
        parser.error(f"no exercise {args.name}; without a name all are listed")
    path, function_name = Path("exercises", f"{args.name}.py"), args.name.split(".")[1]
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(template(args.name))
        print(f"wrote {path}: write the body of {function_name}, then give the same command again")
        return 0
    lines = graded(path, args.name)
    print(*lines or [f"right: {function_name} gives the project's numbers"], sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
