"""Learning rates that fall on a plateau of validation accuracy, outside the algorithms' loops."""
import dataclasses
from dataclasses import dataclass

import pytest
from test_contracts import config, toy, whole
from toys import federation, same, samples, through_a_file, without_seconds

from algorithms import ALGORITHMS, Listed
from experiment.plateau import run_with_plateau
from federation import Positive, Settings

REACHED = [.5, .5, .5, .6, .6, .5, .6, .6]      # the accuracy after rounds 1, 2, ...
PATIENCE_1 = [.8, .8, .8, .08, .08, .08, .008, .008]      # in rounds 1, 2, ...: it falls after 3, 6


@dataclass
class Config(Settings):
    rounds: int = 8
    lr: Positive = 0.8


def scripted(fed, cfg, state=None):
    """An algorithm that keeps the rates it was given."""
    if state is None:
        state = {"round": 0, "rates": []}
        yield {"accuracy": 0.0}, state
    for t in range(state["round"] + 1, cfg.rounds + 1):
        state = {**state, "round": t, "rates": [*state["rates"], cfg.lr]}
        yield {"accuracy": 0.0}, state


def reached(fed, state):
    return {"accuracy": REACHED[state["round"] - 1]}


SCRIPTED = Listed("scripted", scripted, Config, plateau=("lr",), evaluate=reached)
FED = federation(validation=samples(20, seed=3))


def rounds_of(patience, algorithm=SCRIPTED, fed=FED, cfg=None, state=None):
    rounds = run_with_plateau(algorithm, fed, cfg or Config(), state, patience)
    return [(without_seconds(metrics), state) for metrics, state in rounds]


def test_a_rate_falls_after_more_than_patience_rounds_by_hand():
    """.5 is reached in round 1, and rounds 2 and 3 bring nothing better: more than one. The
    caller's Config is copied."""
    cfg = Config()
    rounds = rounds_of(1, cfg=cfg)
    assert [state["round"] for _, state in rounds] == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert rounds[-1][1]["rates"] == pytest.approx(PATIENCE_1, rel=1e-12)
    assert [metrics["lr"] for metrics, _ in rounds[1:]] == pytest.approx(PATIENCE_1, rel=1e-12)
    assert rounds[0][0] == {"accuracy": 0.0, "lr": 0.8} and cfg.lr == 0.8
    assert rounds_of(9)[-1][1]["rates"] == [0.8] * 8


def test_a_run_goes_on_with_the_fallen_rate():
    whole = rounds_of(1)
    for n, (_, state) in enumerate(whole, start=1):
        assert same(rounds_of(1, state=through_a_file(state)), whole[n:])


def test_a_round_without_an_accuracy_moves_no_rate():
    """No validation image is of any client's class."""
    unknown = dataclasses.replace(SCRIPTED, evaluate=lambda fed, state: {"accuracy": None})
    assert rounds_of(1, unknown)[-1][1]["rates"] == [0.8] * 8


@pytest.mark.parametrize("algo", [algo for algo in ALGORITHMS if ALGORITHMS[algo].plateau])
def test_a_rate_that_never_falls_changes_nothing(algo):
    """One run for all rounds, and one for each; a state's accuracy is that of the metrics."""
    algorithm, fed, cfg = ALGORITHMS[algo], toy(algo), config(algo)
    kept = rounds_of(9, algorithm, fed, cfg)
    for (metrics, state), (found, found_state) in zip(whole(algo), kept, strict=True):
        assert same({key: found_state[key] for key in state}, state)
        assert found == metrics | {name: getattr(cfg, name) for name in algorithm.plateau}
        assert algorithm.evaluate(fed, state)["accuracy"] == metrics["accuracy"]


def test_the_test_set_does_not_move_a_rate():
    """The validation set does: it is what evaluate finds in the place of the test set."""
    seen = []

    def evaluate(fed, state):
        seen.append((fed.test, fed.public_test))
        return reached(fed, state)
    fed = federation(validation=samples(20, seed=3), public_test=samples(5))
    rounds_of(1, dataclasses.replace(SCRIPTED, evaluate=evaluate), fed, Config(rounds=3))
    assert len(seen) == 3 and all(same(given, (fed.validation, None)) for given in seen)
