"""What a run prints at its end: whose accuracies."""
import dataclasses
import re

from algorithms import ALGORITHMS
from experiment.keep import Record, scores_of
from experiment.report import summary
from experiment.settings import Method


def run_of(label, algorithm, public, rows):
    method = Method(label, algorithm, {}, [], {}, 1)
    return Record(method, 0, {"scores": scores_of(algorithm, public)}, None, rows=rows)


def test_the_summary_says_whose_accuracy_it_is_and_on_which_half(capsys):
    """Final and best of each, in the mean over two seeds; without what a round did not measure."""
    names = ("accuracy", *ALGORITHMS["dsfl"].scores)

    def both(*rows):
        return "dsfl", [dict(zip(names, (0., *row, None))) for row in rows]
    server = [{"accuracy": .7, "server_accuracy": .7, "server_accuracy_private_test": .5}]
    measured = [both((.1,), (.6, .3), (.5, .4)), both((.9,), (.2, .1), (.1, .2)),
                ("fedgems", server), ("fedavg", [{"accuracy": .4, "server_accuracy": .4}])]
    measured[0][1][0][names[2]] = measured[1][1][0][names[2]] = None
    lines = [("clients, after distillation", "private",
              ".3000", ".7500"),                             # final (.5 + .1)/2, best (.6 + .9)/2
             ("clients, after private training", "private", ".3000", ".3000"),
             ("server", "public", ".7000", ".7000"), ("server", "private", ".4000", ".4000")]
    for public in ("half", None):
        summary([run_of(label, ALGORITHMS[label], public, rows) for label, rows in measured])
        printed = capsys.readouterr().out.splitlines()[2:]
        for line, (whose, half, final, best) in zip(printed, lines, strict=True):
            whose += f", {half} half" * (public == "half")
            assert re.search(rf"  {whose} +\d  0{final} ± \S+ +0{best} ± ", line), line


def test_a_last_round_without_a_value_is_a_dash_in_the_summary(capsys):
    """Of FedMD's distilled clients: no accuracy where nobody digested. Best is of other rounds."""
    names = [*ALGORITHMS["fedmd"].scores]
    runs = [run_of("fedmd", ALGORITHMS["fedmd"], None, [dict(zip(names, row)) for row in rows])
            for rows in ([(.1, .2), (.3, None)], [(.1, .4), (.3, .1)])]
    summary(runs)
    printed = capsys.readouterr().out
    assert re.search(r"after private training +2  0.3000 ± 0.0000 +0.3000 ± ", printed)
    assert re.search(r"after distillation +2  - +0.3000 ± ", printed)


def test_an_algorithm_of_a_readers_own_has_the_headline_that_it_declares(capsys):
    own = dataclasses.replace(ALGORITHMS["fedavg"], scores={"client_accuracy_own": "own classes"})
    rows = [{"accuracy": .5, "client_accuracy_own": .5, "client_accuracy": .25}]
    summary([run_of("mine", own, None, rows)])
    printed = capsys.readouterr().out
    assert re.search(r"mine +own classes +1  0.5000", printed) and "0.2500" not in printed
