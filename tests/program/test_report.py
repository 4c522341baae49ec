"""What a run prints at its end: whose accuracies, and the bytes until one is reached."""
import dataclasses
import re
from types import SimpleNamespace

import pytest

from algorithms import ALGORITHMS
from experiment.keep import Run
from experiment.plan import Plan
from experiment.plot import bytes_until, clients_metric
from experiment.report import summary


def scores_of(algorithm, public):
    """Whose accuracies an algorithm has with these public images."""
    plan = SimpleNamespace(algorithms={"one": algorithm}, flags={"public": public})
    return Plan.scores(plan, "one")


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
        summary([Run(label, None, 0, {}, {}, scores_of(ALGORITHMS[label], public), None, rows=rows)
                 for label, rows in measured])
        printed = capsys.readouterr().out.splitlines()[2:]
        for line, (whose, half, final, best) in zip(printed, lines, strict=True):
            whose += f", {half} half" * (public == "half")
            assert re.search(rf"  {whose} +\d  0{final} ± \S+ +0{best} ± ", line), line


def test_an_algorithm_of_a_readers_own_has_the_headline_that_it_declares(capsys):
    own = dataclasses.replace(ALGORITHMS["fedavg"], scores={"client_accuracy_own": "own classes"})
    rows = [{"accuracy": .5, "client_accuracy_own": .5, "client_accuracy": .25}]
    summary([Run("mine", own, 0, {}, {}, scores_of(own, None), None, rows=rows)])
    printed = capsys.readouterr().out
    assert re.search(r"mine +own classes +1  0.5000", printed) and "0.2500" not in printed


def test_bytes_until_by_hand():
    """ComU@x: payload both ways, up to and with the first round in which the clients reach x;
    the headline, if no client is scored."""
    rows = [{"accuracy": .0, "client_accuracy": .1},
            {"accuracy": .1, "client_accuracy": .3,
             "bytes_up": 10, "bytes_down": 200, "bytes_down_indices": 5_000},
            {"accuracy": .2, "client_accuracy": .5,
             "bytes_up": 30, "bytes_down": 400, "bytes_up_buffers": 5_000},
            {"accuracy": .9, "client_accuracy": .4, "bytes_up": 1, "bytes_down": 1}]
    one, two = 10 + 200, 10 + 200 + 30 + 400
    clients = {"server_accuracy": "", "client_accuracy": ""}
    expected = {.05: 0, .1: 0, .2: one, .3: one, .31: two, .5: two, .51: None}
    assert {x: bytes_until(rows, x, clients) for x in expected} == expected
    assert bytes_until(rows, .2, {"server_accuracy": ""}) == two
    assert bytes_until(rows, 0, {"server_accuracy": ""}) == 0


@pytest.mark.parametrize("metric, algos", [
    ("client_accuracy_distilled", "dsfl cronus fedgem fedgems"),
    ("client_accuracy_private", "fedmd"),                    # which ends with private training
    ("client_accuracy", "feddf fd standalone centralized"), ("accuracy", "fedavg fedsdd fedgkt")])
def test_the_clients_metric_is_that_at_the_end_of_the_round(metric, algos):
    assert {clients_metric(ALGORITHMS[algo].scores) for algo in algos.split()} == {metric}
