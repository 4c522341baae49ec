"""The command of the project, what it refuses and keeps, and the names of its own algorithms."""
import contextlib
import dataclasses
import json
import os
import re
import signal
import sys

import pytest

from algorithms import ALGORITHMS
from experiment import keep, terminal
from fedkd_minimal import main
from pages import ROOT, order

# The project's own algorithms, without one that a user adds: their files are in docs/READING.md and
# have notation, departures, defaults of a paper.
OF_PAPERS = [name for name, algorithm in ALGORITHMS.items()
             if algorithm.run.__module__.removeprefix("algorithms.") in order()]

# Of `command`.
ROUNDS = 3
FLAGS = "--validation 0.1 --clients 6 --partition iid --threads 1 --batch-size 16 --public fifth"
OWN = {    # of the hyperparameters with these names
    "rounds": ROUNDS, "local_epochs": 1, "participation": 0.7, "K": 2, "R": 2, "distill_steps": 3,
    "server_batch_size": 16, "check_every": 1, "samples": 2, "transfer_public_epochs": 1,
    "transfer_local_epochs": 1, "public_batch_size": 16, "server_epochs": 1}
EDGES = ("fedgkt", "fedgkt-async", "split-learning")     # with networks of their own


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


def hyperparameters(algo):
    """{name: the field} of the settings of an algorithm."""
    return {field.name: field for field in dataclasses.fields(ALGORITHMS[algo].Config)}


def command(algos, npz, *more):
    """The command line of a short run. Those of EDGES do not go with the others."""
    own = [f"--{name.replace('_', '-')}={value}" for name, value in OWN.items()
           if any(name in hyperparameters(algo) for algo in algos.split(","))]
    networks = ("--model", "gkt_edge_small", "--server-model", "gkt_server_small")
    if algos.split(",")[0] not in EDGES:
        networks = ("--model", "mlp", "--server-model", "mlp")
    return ["--algo", algos, "--dataset", npz, *FLAGS.split(), *networks, *own, *map(str, more)]


def bytes_of(folder):
    """The metrics of the one run in the folder of a command, or of a run."""
    [path] = folder.rglob("metrics.jsonl")
    return path.read_bytes()


def kept(folder, name="metrics.jsonl"):
    """The rows of a file of a run."""
    lines = (folder / name).read_text().splitlines()
    return [json.loads(line, parse_constant=pytest.fail) for line in lines]


def contents(folder):
    """{path: bytes} of all files in a folder and in those below it."""
    return {str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*") if path.is_file()}


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


def stopped_after(rounds, argv, algo=None):
    """Ctrl-C after that many rounds of the first run, or of this algorithm."""
    keep_round = keep.keep_round

    def keep_then_stop(record, metrics, state):
        keep_round(record, metrics, state)
        if state["round"] == rounds and algo in (None, record.method.label):
            raise KeyboardInterrupt
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(keep, "keep_round", keep_then_stop)
        main(argv)
    assert stop.value.code == 130


@contextlib.contextmanager
def child(argv, errors):
    """The program in a child of this process: yields (its number, what it prints as a file).

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
            terminal.end_with(main, [*map(str, argv)])
        finally:
            os._exit(99)                                     # nothing of the parent's is done twice
    os.close(write)
    with open(read, errors="replace") as printed:
        yield number, printed


def status_of(number):
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
