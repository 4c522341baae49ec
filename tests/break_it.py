"""Break it: mistakes of one line, each with the test that notices it.

For a reader:
    python tests/break_it.py --list --only fedsdd             # with file, line, change and test
For the tests: a mistake that none of them notices is a test that is missing.
    python tests/break_it.py                                  # all; a minute or two
    python tests/break_it.py --only "FedML"                   # by file, function or words

A mistake is caught if an assertion of the named test fails; SURVIVED if the test passes; broken if
anything else happens, such as a NameError. The exit status is 0 if all are caught.
"""
import argparse
import ast
import functools
import linecache
import multiprocessing
import os
import re
import signal
import sys
import time
from collections import Counter
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import NamedTuple

import pytest
from mistakes import TABLE

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 2
LIMIT = 300                          # seconds for a test, so that a mistake that never ends does


class Mutant(NamedTuple):
    file: str
    old: str                         # a part of one line, once in the file
    new: str
    test: str                        # of tests/
    what: str
    whose: str = ""                  # public code that has, or had, this mistake


def mutant(file, home, mistake, test, *words):
    """Of "lr=«lr→0.1»" the text before, lr=lr, and after, lr=0.1; the test's full name."""
    old, new = (re.sub("«(.*?)→(.*?)»", part, mistake) for part in (r"\1", r"\2"))
    module, _, name = test.rpartition("::")
    [path] = ROOT.glob(f"tests/*/test_{module or home}.py")
    return Mutant(file, old, new, f"{path.relative_to(ROOT / 'tests')}::test_{name}", *words)


MUTANTS = [mutant(file, home, *row) for (file, home), rows in TABLE.items() for row in rows]


@functools.cache
def functions_of(file):
    """[(name, first line after the docstring, last line)] of the functions of a file."""
    return [(f.name, f.body[ast.get_docstring(f) is not None].lineno, f.end_lineno)
            for f in ast.parse((ROOT / file).read_text()).body if isinstance(f, ast.FunctionDef)]


def place_of(mutant):
    """(the number of its line, the name of the function whose body this is a line of, or "")."""
    before, _, _ = (ROOT / mutant.file).read_text().partition(mutant.old)
    line = before.count("\n") + 1
    inside = [name for name, first, last in functions_of(mutant.file) if first <= line <= last]
    return line, "".join(inside)


def mutated(mutant):
    """The text of the file with the mistake in it."""
    text = (ROOT / mutant.file).read_text()
    if text.count(mutant.old) != 1 or "\n" in mutant.old + mutant.new:
        raise ValueError(f"{mutant.file} must hold this once, in one line: {mutant.old}")
    return text.replace(mutant.old, mutant.new)


def import_from(file, text):
    """From now on this process imports a file of the project from this text."""
    path, get_code = str(ROOT / file), SourceFileLoader.get_code
    linecache.cache[path] = len(text), None, text.splitlines(True), path     # for tracebacks

    def of_this_text(loader, name):
        return compile(text, path, "exec") if loader.path == path else get_code(loader, name)
    SourceFileLoader.get_code = of_this_text


def run_tests(tests, *options, plugins=()):
    """pytest's exit status for the tests, which are named from tests/."""
    return pytest.main([*(f"{ROOT}/tests/{test}" for test in tests), "-c", f"{ROOT}/pyproject.toml",
                        "-p", "no:cacheprovider", *options], plugins=plugins)


class Failures:
    """A plugin of pytest that keeps what was raised: [(test, phase, exception)]."""

    def __init__(self):
        self.seen = []

    def pytest_runtest_makereport(self, item, call):
        if call.excinfo:
            self.seen.append((item.nodeid, call.when, call.excinfo.value))


def verdict(mutant, tests):
    """"SURVIVED", "caught" or "broken: why". It is for a process that ends after it, and that has
    imported nothing of the project before."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    signal.alarm(LIMIT)
    if mutant:
        import_from(mutant.file, mutated(mutant))
    failures = Failures()
    status = run_tests(tests, "-x", "--assert=plain", "--tb=no", plugins=[failures])
    if status == 0:
        return "SURVIVED"
    if not failures.seen:
        return f"broken: pytest ran no test, status {int(status)}"
    test, phase, error = failures.seen[0]
    if phase == "call" and isinstance(error, (AssertionError, pytest.fail.Exception)):
        return "caught"
    return f"broken: {type(error).__name__} in the {phase} of {test}"


def too_late(*_):
    raise TimeoutError(f"{LIMIT} s: an endless loop?")


def attempt(mutant):
    return verdict(mutant, [mutant.test])


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="part of file, function, words")
    parser.add_argument("--list", action="store_true", help="show them, break nothing")
    args = parser.parse_args(argv)
    chosen = [m for m in MUTANTS if args.only.lower()
              in f"{m.file} {place_of(m)[1]} {m.what} {m.whose}".lower()]
    if not chosen:                   # without a name pytest would run every test there is
        parser.error(f"no mistake has {args.only!r} in its file, function or words")
    titles = [f"{m.file}:{place_of(m)[0]}  {m.what}{m.whose and f' (as {m.whose})'}"
              for m in chosen]
    if args.list:
        for title, m in zip(titles, chosen):
            print(f"{title}\n    {m.old}\n    {m.new}\n    tests/{m.test}")
        return 0
    tests = sorted({m.test for m in chosen})

    os.environ.update(OMP_NUM_THREADS="1", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTEST_ADDOPTS="")
    import torch._dynamo  # noqa: F401    once for all: a first optimizer imports it
    signal.signal(signal.SIGALRM, too_late)
    start, count = time.perf_counter(), Counter()
    with multiprocessing.get_context("fork").Pool(WORKERS, maxtasksperchild=1) as pool:
        if pool.apply(verdict, (None, tests)) != "SURVIVED":
            print("nothing is broken yet, and not all of the tests pass: see python -m pytest")
            return 1
        for title, m, result in zip(titles, chosen, pool.imap(attempt, chosen)):
            count[result.split(":")[0]] += 1
            print(f"{title}  {m.test}  {result}", flush=True)
    print(f"tried {len(chosen)}, caught {count['caught']}, survived {count['SURVIVED']}, "
          f"broken {count['broken']}, in {time.perf_counter() - start:.0f} s")
    return int(count["caught"] < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
