"""The command of the project, what it refuses, and the names of its own algorithms."""
import contextlib
import os
import re
import signal
import sys

import pytest

from algorithms import ALGORITHMS
from experiment import processes
from fedkd_minimal import main
from pages import ROOT, order

# The project's own algorithms, without one that a user adds: their files are in docs/READING.md and
# have notation, departures, defaults of a paper.
OF_PAPERS = [name for name, algorithm in ALGORITHMS.items()
             if algorithm.run.__module__.removeprefix("algorithms.") in order()]


def shipped():
    """The names of the project's own files in algorithms/: those of docs/READING.md, and what they
    import. Tests of texts look at these; a file that a user adds is held to the contracts alone."""
    names = order()
    for name in names:                                       # the list grows
        text = (ROOT / "algorithms" / f"{name}.py").read_text()
        for other in re.findall(r"^from algorithms\.(\w+) import", text, re.M):
            if other not in names:
                names.append(other)
    return names


def refused(capsys, argv, *words, run=main):
    """The command ends with status 2 and one line on standard error, which holds the words."""
    with pytest.raises(SystemExit) as stop:
        run([str(x) for x in argv])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.count("\n") == 1, error
    assert error.startswith("fedkd_minimal.py: error: "), error
    for word in words:
        assert str(word) in error, error
    return error


@contextlib.contextmanager
def child(program, argv, errors):
    """The program in a child of this process: yields (its number, what it prints as a file).

    program   program(argv, is_program=True), as `main`
    errors    the file for its standard error
    """
    read, write = os.pipe()
    number = os.fork()
    if number == 0:
        try:
            os.close(read)
            signal.signal(signal.SIGINT, signal.default_int_handler)     # ignored in `pytest &`
            os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
            sys.stderr = open(2, "w", buffering=1, closefd=False)
            sys.stdout = open(write, "w", encoding="utf-8")
            processes.end_with(program, [*map(str, argv)])
        finally:
            os._exit(99)                                     # nothing of the parent's is done twice
    os.close(write)
    with open(read, errors="replace") as printed:
        yield number, printed


def status_of(number):
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
