"""Exercises: write the body of an equation's function; the tests of the project grade it.

    python tests/exercise.py                  # the exercises, from short to long
    python tests/exercise.py fedgems.entropy  # writes exercises/fedgems.entropy.py
    python tests/exercise.py fedgems.entropy  # again, with your body in that file: grades it

Your file then stands in the place of the function, in its module. More arguments are pytest's: -x,
-k eq3. The exit status is 0 if all tests pass. `python tests/break_it.py --list --only "entropy "`
shows known mistakes.
"""
import argparse
import ast
import inspect
import re
import sys
import textwrap
from pathlib import Path

from break_it import MUTANTS, ROOT, import_from, place_of, run_tests

sys.path.insert(0, str(ROOT))


def exercises():
    """The names of the functions with an equation that draw nothing at random, short ones first."""
    from functions import EQUATIONS, own
    names = [name for name in EQUATIONS if "rng" not in inspect.signature(own(name)).parameters]
    return sorted(names, key=lambda name: len(own(name).__code__.co_code))


def file_of(name):
    """"fedgems.entropy" -> "algorithms/fedgems.py"."""
    [path] = [path for folder in ("", "algorithms", "federation")
              if (path := ROOT / folder / f"{name.split('.')[0]}.py").exists()]
    return path.relative_to(ROOT).as_posix()


def function_in(text, name):
    [node] = [node for node in ast.parse(text).body
              if isinstance(node, ast.FunctionDef) and node.name == name.split(".")[1]]
    return node


def template(name):
    """The student's file: the function with its docstring, `...` in the place of its body."""
    file = file_of(name)
    text = (ROOT / file).read_text()
    node = function_in(text, name)
    head = "\n".join(text.splitlines()[node.lineno - 1:node.body[0].end_lineno])
    letters = [part for part in ast.get_docstring(ast.parse(text)).split("\n\n")
               if part.startswith("Paper")]
    comment = textwrap.indent("\n".join([name, *letters]), "# ")
    module = file.removesuffix(".py").replace("/", ".")
    return f"""{comment}
import torch
import torch.nn.functional as F

from {module} import *    # all that the docstring says it needs


{head}
    ...
"""


def solved(name, students):
    """The text of the module with the student's file, but for what it imports from the module, in
    the place of the function."""
    text = (ROOT / file_of(name)).read_text()
    lines, node = text.splitlines(), function_in(text, name)
    function_in(students, name)
    students = re.sub(r"^from .* import \*.*", "", students, flags=re.M)
    return "\n".join([*lines[:node.lineno - 1], students, *lines[node.end_lineno:], ""])


def tests_of(name):
    """The tests that notice a mistake in the function."""
    return sorted({m.test for m in MUTANTS if (m.file, place_of(m)[1]) == (
        file_of(name), name.split(".")[1])})


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", help="such as fedgems.entropy")
    args, options = parser.parse_known_args(argv)
    if not args.name:
        print(*exercises(), sep="\n")
        return 0
    path = Path("exercises", f"{args.name}.py")
    if path.exists():
        import_from(file_of(args.name), solved(args.name, path.read_text()))
        return (run_tests(tests_of(args.name), "--tb=short", *options)
                or run_tests(["program/test_functions.py"], "--tb=short",
                             "-k", f"[{args.name}] or [{args.name}-"))
    if args.name not in exercises():
        parser.error(f"no exercise {args.name}; without a name all are listed")
    path.parent.mkdir(exist_ok=True)
    path.write_text(template(args.name))
    print(f"wrote {path}: write the body of {args.name.split('.')[1]}, then give the same command "
          "again")
    return 0


if __name__ == "__main__":
    sys.exit(main())
