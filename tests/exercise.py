"""Exercises: write the body of an equation's function; the tests of the project grade it.

    python tests/exercise.py                  # the exercises, from short to long
    python tests/exercise.py fedgems.entropy  # writes exercises/fedgems.entropy.py
    python tests/exercise.py fedgems.entropy  # again, with your body in that file: grades it

The exit status is 0 if all claims hold, else 1.
"""
import argparse
import ast
import inspect
import runpy
import sys
import textwrap
import traceback
from pathlib import Path

import pytest
import torch
from break_it import MUTANTS, ROOT, place_of

sys.path.insert(0, str(ROOT))
from functions import EQUATIONS, INPUTS, module_of, own

OF_ALL = "program/test_functions.py"      # tests of every function with an equation


def exercises():
    """The names of the functions with an equation that draw nothing at random, short ones first."""
    names = [name for name in EQUATIONS if "rng" not in inspect.signature(own(name)).parameters]
    return sorted(names, key=lambda name: len(own(name).__code__.co_code))


def is_written(text, name):
    """False if the function has no body in this text but a docstring, `...` and `pass`."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == name.split(".")[1]:
            return not all(isinstance(statement, ast.Pass) or isinstance(statement, ast.Expr)
                           and isinstance(statement.value, ast.Constant) for statement in node.body)
    return False


def template(name):
    """The student's file: the function with its docstring, `...` in the place of its body."""
    module, source = module_of(name), inspect.getsource(own(name))
    docstring = ast.parse(source).body[0].body[0]
    head = "\n".join(source.splitlines()[:docstring.end_lineno])
    letters = [part for part in module.__doc__.split("\n\n") if part.startswith("Paper")]
    comment = "\n".join([name, *letters])
    return f"""{textwrap.indent(comment, "# ")}
import torch
import torch.nn.functional as F

from {module.__name__} import *    # all that the docstring says it needs


{head}
    ...
"""


def mistakes_in(name):
    """The mistakes of mistakes.py that are in the body of this function."""
    function = own(name)
    file = Path(inspect.getsourcefile(function)).relative_to(ROOT).as_posix()
    return [m for m in MUTANTS if (m.file, place_of(m)[1]) == (file, function.__name__)]


def with_mistake(name, m):
    """The project's function with this mistake in it."""
    namespace = dict(vars(module_of(name)))
    exec(inspect.getsource(own(name)).replace(m.old, m.new), namespace)
    return namespace[name.split(".")[1]]


def same(name, n, one, other):
    """True if both functions give the same for the n-th input of functions.py."""
    try:
        torch.testing.assert_close(
            one(*INPUTS[name]()[n]), other(*INPUTS[name]()[n]),
            rtol=1e-4, atol=1e-6, equal_nan=True, check_dtype=False)
        return True
    except Exception:       # they differ, or one of them raises: if the student's, a test shows it
        return False


def known_mistakes(name, students):
    """The mistakes that give what the student's function gives where it first is wrong."""
    for n in range(len(INPUTS[name]())):
        if not same(name, n, students, own(name)):
            return [m for m in mistakes_in(name)
                    if same(name, n, students, with_mistake(name, m))]
    return []


def replace(original, students):
    """Every module that holds the project's function gets the student's."""
    for module in list(sys.modules.values()):
        for name, value in list(vars(module).items()):
            if value is original:
                setattr(module, name, students)


class Claims:
    """A plugin of pytest that keeps which tests hold."""

    def __init__(self):
        self.holds = {}

    def pytest_runtest_logreport(self, report):
        self.holds[report.nodeid] = self.holds.get(report.nodeid, True) and not report.failed


def grade(name, students):
    """True if all claims hold: those of the equation and, if they do, those of every function.

    Prints pytest's report on those that do not hold, then a table, then known mistakes.
    """
    mistakes, claims = known_mistakes(name, students), Claims()
    tests = {m.test for m in mistakes_in(name) if not m.test.startswith(OF_ALL)}
    replace(own(name), students)

    def hold(*arguments):
        return pytest.main(
            [*arguments, "-c", f"{ROOT}/pyproject.toml", "-p", "no:cacheprovider", "-qq", "-rN",
             "--tb=short", "-o", "verbosity_assertions=2"], plugins=[claims]) == 0   # 2: in full

    all_hold = (hold(*(f"{ROOT}/tests/{test}" for test in sorted(tests)))
                and hold(f"{ROOT}/tests/{OF_ALL}", "-k", f"[{name}] or [{name}-"))
    print()
    for test, holds in claims.holds.items():
        words = test.partition("::test_")[2].replace(f"[{name}]", "").replace(f"[{name}-", " [")
        print("holds         " if holds else "DOES NOT HOLD ", words.replace("_", " "))
    for m in mistakes:
        print(f"\nKnown mistake: {m.what}{m.whose and f' (as in {m.whose})'}")
    print(f"\n{sum(claims.holds.values())} of {len(claims.holds)} claims hold")
    return all_hold


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", help="of an exercise; without it all are listed")
    name, names = parser.parse_args(argv).name, exercises()
    if not name:
        for name in names:
            print(f"{name:35}", *inspect.getdoc(own(name)).splitlines()[0].split())
        return 0
    if name not in names:
        parser.error(f"there is no exercise {name}; without a name all are listed")
    path = Path("exercises", f"{name}.py")
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(template(name))
        print(f"wrote {path}: write the function's body there, then give the same command again")
        return 0
    try:
        is_ready = is_written(path.read_text(), name)
    except SyntaxError as error:
        error.filename = str(path)
        parser.exit(1, "".join(traceback.format_exception_only(error)))
    if not is_ready:
        print(f"{path} has no body of {name.split('.')[1]} yet: write it, then give the same "
              "command again")
        return 1
    students = runpy.run_path(str(path))[name.split(".")[1]]
    return 0 if grade(name, students) else 1


if __name__ == "__main__":
    sys.exit(main())
