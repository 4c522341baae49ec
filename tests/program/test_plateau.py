"""Learning rates that fall on a plateau of validation accuracy, outside the algorithms' loops."""
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


def rounds_of(patience, state=None, seen=None, reached=REACHED, cfg=None):
    """seen: a list, to which the images of each measurement are added."""
    def evaluate(fed, state):
        if seen is not None:
            seen.append((fed.test, fed.public_test))
        return {"accuracy": reached[state["round"] - 1]}
    algorithm = Listed("scripted", scripted, Config, plateau=("lr",), evaluate=evaluate)
    return [*run_with_plateau(algorithm, FED, cfg or Config(), state, patience)]


FED = federation(validation=samples(20, seed=3), public_test=samples(5))


def test_a_rate_falls_after_more_than_patience_rounds_by_hand():
    """.5 is reached in round 1, and rounds 2 and 3 bring nothing better: more than one. The
    caller's Config is copied. A round without an accuracy does not count."""
    cfg = Config()
    rounds = rounds_of(1, cfg=cfg)
    assert [state["round"] for _, state in rounds] == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert rounds[-1][1]["rates"] == pytest.approx(PATIENCE_1, rel=1e-12)
    assert [metrics["lr"] for metrics, _ in rounds[1:]] == pytest.approx(PATIENCE_1, rel=1e-12)
    assert rounds[0][0] == {"accuracy": 0.0, "lr": 0.8} and cfg.lr == 0.8
    assert rounds_of(9)[-1][1]["rates"] == rounds_of(1, reached=[None] * 8)[-1][1]["rates"] == [
        0.8] * 8


def test_a_run_goes_on_with_the_fallen_rate():
    whole = rounds_of(1)
    for n, (_, state) in enumerate(whole, start=1):
        assert same(rounds_of(1, state=through_a_file(state)), whole[n:])


def test_the_test_set_does_not_move_a_rate():
    """The validation set does: it is what evaluate finds in the place of the test set."""
    rounds_of(1, seen=(seen := []))
    assert len(seen) == 8 and all(same(given, (FED.validation, None)) for given in seen)


@pytest.mark.parametrize("algo", [algo for algo in ALGORITHMS if ALGORITHMS[algo].plateau])
def test_what_moves_a_rate_is_the_accuracy_of_the_metrics(algo):
    for metrics, state in whole(algo):
        assert ALGORITHMS[algo].evaluate(toy(algo), state)["accuracy"] == metrics["accuracy"]


def test_a_rate_that_never_falls_changes_nothing():
    fed, cfg = toy("fedgems"), config("fedgems")
    kept = [*run_with_plateau(ALGORITHMS["fedgems"], fed, cfg, None, 9)]
    for (metrics, state), (found, found_state) in zip(whole("fedgems"), kept, strict=True):
        assert same({key: found_state[key] for key in state}, state)
        assert without_seconds(found) == metrics | {"lr": cfg.lr, "server_lr": cfg.server_lr}
