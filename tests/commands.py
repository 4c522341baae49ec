"""The command of the project, what it refuses, and the names of its own algorithms."""
import re

import pytest

from algorithms import ALGORITHMS
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
