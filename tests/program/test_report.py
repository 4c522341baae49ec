"""What a run prints at its end: whose accuracies."""
import re

from algorithms import ALGORITHMS
from experiment.keep import Record
from experiment.report import summary
from experiment.settings import Method, Networks


def lines_of(capsys, algo, public, *runs):
    """The lines of the summary of an algorithm; a run has the scores of each round in order."""
    algorithm = ALGORITHMS[algo]
    method = Method(algo, algorithm, algorithm.Config(), Networks(), threads=1, ignored=[])
    scores = algorithm.scores_on(public)
    summary([Record(method, seed, {"scores": scores}, folder=None,
                    rows=[dict(zip(algorithm.scores, row)) for row in rows])
             for seed, rows in enumerate(runs)])
    return capsys.readouterr().out.splitlines()[2:]


def test_the_summary_says_whose_accuracy_it_is_and_on_which_half(capsys):
    """Final and best are means over two seeds: (.5 + .1) / 2 and (.6 + .9) / 2."""
    runs = [[(.1, None), (.6, .3), (.5, .4)], [(.9, None), (.2, .1), (.1, .2)]]
    for public, half in ("half", ", private half"), ("fifth", ""):
        distilled, private = lines_of(capsys, "dsfl", public, *runs)[:2]      # the server has none
        assert re.search(rf" clients, after distillation{half} +2 +0.3000 ± .+ 0.7500 ±", distilled)
        assert re.search(rf" clients, after private training{half} +2 +0.3000 ± ", private)
    [server, *_] = lines_of(capsys, "fedgems", "half", [(.7, None)])
    assert re.search(" server, public half +1 +0.7000", server)


def test_a_last_round_without_a_value_is_a_dash_in_the_summary(capsys):
    """Of FedMD's distilled clients: no accuracy where nobody digested. Best is of other rounds."""
    runs = [(.1, .2), (.3, None)], [(.1, .4), (.3, .1)]
    private, distilled = lines_of(capsys, "fedmd", None, *runs)
    assert re.search(r"after private training +2  0.3000 ± 0.0000 +0.3000 ± ", private)
    assert re.search(r"after distillation +2  - +0.3000 ± ", distilled)
