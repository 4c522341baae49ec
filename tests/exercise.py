"""Exercises: write the body of an equation's function; the tests of the project grade it.

    python tests/exercise.py                  # the exercises, from short to long
    python tests/exercise.py fedgems.entropy  # writes exercises/fedgems.entropy.py
    python tests/exercise.py fedgems.entropy  # again, with your body in that file: grades it

--solution prints the project's function. The exit status is 0 if all claims hold, else 1.
"""
import argparse
import ast
import inspect
import runpy
import sys
import traceback
from pathlib import Path

import pytest
import torch
from break_it import MUTANTS, ROOT, place_of

sys.path.insert(0, str(ROOT))
from functions import EQUATIONS, INPUTS, module_of, own

FUNCTION_TESTS = "program/test_functions.py"      # what every function with an equation promises


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
    lines = [name, *"\n".join(letters).splitlines()]
    if "promote_types" in source:
        lines += ["Inputs may be float16, too small for what is computed on the way. Compute in",
                  "torch.promote_types(the input's type, torch.float32); return the input's type."]
    comment = "\n".join(f"# {line}".rstrip() for line in lines)
    return f"""{comment}
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


def outcome(function, arguments):
    """The result, or the exception that was raised: a test will raise it again, and show it."""
    try:
        return function(*arguments)
    except Exception as error:
        return error


def close(a, b):
    try:
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6, equal_nan=True, check_dtype=False)
        return True
    except (AssertionError, TypeError):       # TypeError: of other types, such as None
        return False


def known_mistakes(name, students):
    """The mistakes that give what the student's function gives where it first is wrong."""
    for n in range(len(INPUTS[name]())):
        def result(function, n=n):
            return outcome(function, INPUTS[name]()[n])      # new arguments for each function
        if not close(result(students), result(own(name))):
            return [m for m in mistakes_in(name)
                    if close(result(students), result(with_mistake(name, m)))]
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
    """Runs the tests that notice a mistake in this function, and those that all functions have.

    Prints pytest's report on those that fail, then a table, then known mistakes. True: all hold.
    """
    mistakes = known_mistakes(name, students)
    files = {f"{ROOT}/tests/{test}" for test in [*(m.test for m in mistakes_in(name)),
                                                 FUNCTION_TESTS]}
    own_tests = f"not test_functions or [{name}] or [{name}-"     # [...]: of this function
    replace(own(name), students)
    claims = Claims()
    status = pytest.main(
        [*sorted(files), "-k", own_tests, "-c", f"{ROOT}/pyproject.toml", "-qq", "-rN",
         "--tb=short", "-o", "verbosity_assertions=2", "-p", "no:cacheprovider"], plugins=[claims])
    print()
    for test, holds in claims.holds.items():
        words = test.partition("::test_")[2].replace(f"[{name}]", "").replace(f"[{name}-", " [")
        print("holds         " if holds else "DOES NOT HOLD ", words.replace("_", " "))
    for m in mistakes:
        print(f"\nKnown mistake: {m.what}{m.whose and f' (as in {m.whose})'}")
    print(f"\n{sum(claims.holds.values())} of {len(claims.holds)} claims hold")
    return status == 0


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", help="of an exercise; without it all are listed")
    parser.add_argument("--solution", action="store_true", help="print the project's function")
    args = parser.parse_args(argv)
    name, names = args.name, exercises()
    if not name:
        for name in names:
            print(f"{name:35}", *inspect.getdoc(own(name)).splitlines()[0].split())
        return 0
    if name not in names:
        parser.error(f"there is no exercise {name}; without a name all are listed")
    if args.solution:
        print(inspect.getsource(own(name)))
        return 0
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
