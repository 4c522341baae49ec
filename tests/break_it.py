"""Break it: mistakes of one line, each with the test that notices it.

For a reader: guess which test notices which mistake:
    python tests/break_it.py --quiz --only fedsdd
Or make a change by hand, and predict with which numbers its test fails:
    python tests/break_it.py --list --only fedgems            # with file, line, change and test
    python -m pytest tests/equations/test_fedgems.py::test_eq4_unreliable_client_gets_exactly_zero
    git checkout algorithms                                   # make it whole again
For the tests: a mistake that none of them notices is a test that is missing.
    python tests/break_it.py                                  # all, in copies; a minute or two
    python tests/break_it.py --every 10                       # a sample
    python tests/break_it.py --only "FedML"                   # by file, function or words

A mistake is caught if the modules can still be imported and an assertion of the named test fails;
SURVIVED if the test passes; broken if anything else happens, such as a NameError. The exit status
is 0 if all are caught.
"""
import argparse
import ast
import functools
import gc
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import pytest
from mistakes import TABLE

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("algorithms benchmarks data docs experiment federation reference tests *.py "
          "pyproject.toml").split()
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


def mutated(text, mutant):
    """The text of the file with the mistake in it."""
    if text.count(mutant.old) != 1 or "\n" in mutant.old + mutant.new:
        raise SystemExit(f"{mutant.file} must hold this once, in one line: {mutant.old}")
    return text.replace(mutant.old, mutant.new)


class Failures:
    """A plugin of pytest that keeps what was raised: [(test, phase, exception)]."""

    def __init__(self):
        self.seen = []

    def pytest_runtest_makereport(self, item, call):
        if call.excinfo:
            self.seen.append((item.nodeid, call.when, call.excinfo.value))


def enter(folder):
    """Into a copy of the project; what is printed from now on goes to the file folder + ".out"."""
    output = os.open(folder + ".out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1), os.dup2(output, 2)
    os.chdir(folder)
    sys.path[:0] = [folder, f"{folder}/tests"]
    os.environ.update(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTEST_ADDOPTS="")
    sys.dont_write_bytecode = True   # a stale one would hide the next mistake
    gc.freeze()                      # pytest collects garbage when it ends, and torch is large


def run_tests(folder, tests, answer):
    """In a process of its own: sends what pytest makes of the tests of a copy of the project,
    "SURVIVED", "caught" or "broken: why"."""
    enter(folder)
    failures = Failures()
    options = ["-x", "--assert=plain", "--tb=short", "-p", "no:cacheprovider"]
    status = pytest.main([*options, *tests], plugins=[failures])
    result = "SURVIVED" if status == 0 else f"broken: pytest ran no test, status {int(status)}"
    for test, phase, error in failures.seen[:1]:
        asserted = isinstance(error, (AssertionError, pytest.fail.Exception))
        result = "caught" if phase == "call" and asserted else (
            f"broken: {type(error).__name__} in the {phase} of {test}")
    answer.send(result)


def verdict(folder, tests):
    """What run_tests sends."""
    fork = multiprocessing.get_context("fork")      # a child that has torch already
    received, answer = fork.Pipe(duplex=False)
    child = fork.Process(target=run_tests, args=(folder, tests, answer))
    child.start()
    late = f"broken: no answer within {LIMIT} s: an endless loop?"
    result = received.recv() if received.poll(LIMIT) else late
    child.kill()
    child.join()
    return result


def copy_project(folder):
    """Copies what the tests need, and returns the folder."""
    os.mkdir(folder)
    for path in (path for name in COPIED for path in ROOT.glob(name)):
        copy = shutil.copytree if path.is_dir() else shutil.copy
        copy(path, Path(folder, path.name))
    return folder


def attempt(mutant, folder):
    """The verdict on a mistake, in the copy of the project that this process has in the folder."""
    copy = f"{folder}/{os.getpid()}"
    if not Path(copy).exists():
        copy_project(copy)
    path = Path(copy, mutant.file)
    text = path.read_text()
    path.write_text(mutated(text, mutant))
    result = verdict(copy, [f"tests/{mutant.test}"])
    path.write_text(text)
    return result


def quiz(chosen, titles):
    """Prints mistakes and tests without saying which belong together; the reader guesses.

    A guess is tried: the mistake is made in a copy of the project, and that test runs.
    """
    tests = sorted({m.test for m in chosen})
    for heading, lines in ("Mistakes", [m.what for m in chosen]), ("Tests", tests):
        print(f"{heading}:", *(f"{n:4}  {line}" for n, line in enumerate(lines, 1)), sep="\n")
    prompt = "\nWhich test fails after which mistake? Mistake and test, such as 1 2 (Ctrl-D ends): "
    print(prompt, end="", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            guess = [int(word) for word in line.split() if word.isdecimal()]
            if len(guess) == 2 and 1 <= guess[0] <= len(chosen) and 1 <= guess[1] <= len(tests):
                m, test = chosen[guess[0] - 1], tests[guess[1] - 1]
                result = attempt(m._replace(test=test), folder)
                if result == "caught":
                    print(f"Yes, it fails. {titles[guess[0] - 1]}\n    {m.old}\n    {m.new}")
                else:
                    print("No, it passes." if result == "SURVIVED" else result)
            print(prompt, end="", flush=True)
    print()


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th only")
    parser.add_argument("--only", default="", metavar="TEXT", help="part of file, function, words")
    parser.add_argument("--list", action="store_true", help="show them, break nothing")
    parser.add_argument("--quiz", action="store_true", help="guess which test notices which")
    args = parser.parse_args(argv)
    chosen = [m for m in MUTANTS if args.only.lower()
              in f"{m.file} {place_of(m)[1]} {m.what} {m.whose}".lower()][::max(1, args.every)]
    if not chosen:                   # without a name pytest would run every test there is
        parser.error(f"no mistake has {args.only!r} in its file, function or words")
    titles = [f"{m.file}:{place_of(m)[0]}  {m.what}{m.whose and f' (as {m.whose})'}"
              for m in chosen]
    if args.list:
        for title, m in zip(titles, chosen):
            print(f"{title}\n    {m.old}\n    {m.new}\n    tests/{m.test}")
        return 0

    os.environ["OMP_NUM_THREADS"] = "1"
    import torch._dynamo  # noqa: F401    once for all: a first optimizer imports it
    if args.quiz:
        quiz(chosen, titles)
        return 0

    start, count = time.perf_counter(), Counter()
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(WORKERS, fork) as pool:
        whole = copy_project(f"{folder}/whole")
        if verdict(whole, sorted({f"tests/{m.test}" for m in chosen})) != "SURVIVED":
            print(Path(whole + ".out").read_text()
                  + "nothing is broken yet, and not all of the named tests pass")
            return 1
        for title, m, result in zip(titles, chosen, pool.map(attempt, chosen, repeat(folder))):
            count[result.split(":")[0]] += 1
            print(f"{title}  {m.test}  {result}")
    print(f"tried {len(chosen)}, caught {count['caught']}, survived {count['SURVIVED']}, "
          f"broken {count['broken']}, in {time.perf_counter() - start:.0f} s")
    return int(count["caught"] < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
