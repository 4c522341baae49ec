"""Learning rates that fall on a plateau of validation accuracy, outside the algorithms' loops."""
import dataclasses
from dataclasses import dataclass

import pytest
from test_contracts import SETTINGS, toy, whole
from toys import (
    federation,
    linear,
    same,
    samples,
    through_a_file,
    train_with_labels,
    without_seconds,
)

from algorithms import ALGORITHMS, Algorithm, configured
from experiment.plateau import with_plateau
from federation import OPTIMIZERS, restored, snapshot

REACHED = [.5, .5, .5, .6, .6, .5, .6, .6]      # the accuracy after rounds 1, 2, ...
PATIENCE_1 = [.8, .8, .8, .08, .08, .08, .008, .008]      # in rounds 1, 2, ...: it falls after 3, 6


@dataclass
class Config:
    rounds: int = 8
    lr: float = 0.8
    momentum: float = 0.9


@configured(Config)
def scripted(fed, cfg, state=None):
    """An algorithm that keeps the rates it was given."""
    if state is None:
        state = {"round": 0, "rates": []}
        yield {"accuracy": 0.0}, state
    for t in range(state["round"] + 1, cfg.rounds + 1):
        state = {"round": t, "rates": [*state["rates"], cfg.lr]}
        yield {"accuracy": 0.0}, state


def reached(fed, state):
    return {"accuracy": REACHED[state["round"] - 1]}


SCRIPTED = Algorithm("scripted", scripted, {"accuracy": "itself"}, plateau=("lr",),
                     evaluate=reached)
FED = federation(validation=samples(20, seed=3))


def rounds_of(run, fed=FED, state=None, **settings):
    return [(without_seconds(metrics), state) for metrics, state in run(fed, state, **settings)]


def test_a_rate_falls_after_more_than_patience_rounds_by_hand():
    """.5 is reached in round 1, and rounds 2 and 3 bring nothing better: more than one."""
    run = with_plateau(SCRIPTED, 1)
    rounds = rounds_of(run, rounds=8, lr=0.8)
    assert [state["round"] for _, state in rounds] == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert rounds[-1][1]["rates"] == pytest.approx(PATIENCE_1, rel=1e-12)
    assert [metrics["lr"] for metrics, _ in rounds[1:]] == pytest.approx(PATIENCE_1, rel=1e-12)
    assert rounds[0][0] == {"accuracy": 0.0, "lr": 0.8}
    unmoved = rounds_of(with_plateau(SCRIPTED, 9), rounds=8, lr=0.8)
    assert unmoved[-1][1]["rates"] == [0.8] * 8


def test_a_run_goes_on_with_the_fallen_rate():
    run = with_plateau(SCRIPTED, 1)
    whole = rounds_of(run, rounds=8, lr=0.8)
    for n, (_, state) in enumerate(whole, start=1):
        assert same(rounds_of(run, state=through_a_file(state), rounds=8, lr=0.8), whole[n:])


@pytest.mark.parametrize("algo", [algo for algo in ALGORITHMS if ALGORITHMS[algo].plateau])
def test_a_rate_that_never_falls_changes_nothing(algo):
    """One run for all rounds, and one for each; a state's accuracy is that of the metrics."""
    fed, rates = toy(algo), ALGORITHMS[algo].plateau
    defaults = {name: x.default for name, x in ALGORITHMS[algo].config_fields.items()}
    settings = {name: SETTINGS.get(name, default) for name, default in defaults.items()}
    evaluate = ALGORITHMS[algo].evaluate
    kept = rounds_of(with_plateau(ALGORITHMS[algo], 9), fed, **settings)
    for (metrics, state), (found, found_state) in zip(whole(algo), kept, strict=True):
        assert same({key: found_state[key] for key in state}, state)
        assert found == metrics | {name: settings[name] for name in rates}
        assert evaluate(fed, state)["accuracy"] == metrics["accuracy"]


def test_the_test_set_does_not_move_a_rate():
    """The validation set does: it is what evaluate finds in the place of the test set."""
    seen = []

    def evaluate(fed, state):
        seen.append((fed.test, fed.public_test))
        return reached(fed, state)
    fed = federation(validation=samples(20, seed=3), public_test=samples(5))
    algorithm = dataclasses.replace(SCRIPTED, evaluate=evaluate)
    rounds_of(with_plateau(algorithm, 1), fed, rounds=3, lr=0.8)
    assert len(seen) == 3 and all(same(given, (fed.validation, None)) for given in seen)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_kept_optimizer_takes_the_rate_of_the_round(optimizer):
    """Its momentum is kept, its rate is not."""
    fed = federation()
    model, first = restored(snapshot(linear()), linear(), optimizer, lr=0.3)
    train_with_labels(fed, model, first, fed.private[0], epochs=1, batch_size=2, keys=("here",))
    _, second = restored(snapshot(model, first), linear(), optimizer, lr=0.03)
    assert [group["lr"] for group in second.param_groups] == [0.03]
    assert same(second.state_dict()["state"], first.state_dict()["state"])
