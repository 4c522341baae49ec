"""Learning rates that fall on a plateau: --lr-patience, for any algorithm whose paper does so.

FedGKT (section 4.2) and FedGEMS (section 4.1) reduce the rate when accuracy stops growing. This
is not a line of their algorithms, and it measures on images that an algorithm does not see. So it
is not in the round loops: not a schedule that each loop would ask for its rates and keep in its
state, but one function around all of them. `with_plateau` calls an algorithm's `run` for one round
at a time, from the state of the last round, with the rates of the new round.

Where the papers are silent or we differ:
D1  the accuracy is the metric `accuracy` on the validation set. This set is held out of the private
    data, also for the other algorithms of a command. Public code looks at the test set
    [test_the_test_set_does_not_move_a_rate]
D2  a rate falls to a tenth after more than `lr_patience` rounds without a better accuracy. The
    algorithm's declaration names the rates. FedGKT's code reduces the server's alone
    [test_a_rate_falls_after_more_than_patience_rounds_by_hand]
D3  the rates of an algorithm fall together. Only networks that are trained separately
    (baselines.py) have a plateau each [test_networks_trained_separately_have_separate_plateaus]
"""
import dataclasses
import statistics

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau


def new_plateau(patience, saved=None):
    """A scheduler whose rate is a factor of learning rates: 1 at first, or as it was saved."""
    factor = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    plateau = ReduceLROnPlateau(factor, mode="max", patience=patience, threshold=0, eps=0)
    if saved is not None:
        plateau.load_state_dict(saved)
        factor.param_groups[0]["lr"] = plateau.get_last_lr()[0]
    return plateau


def with_plateau(algorithm, patience):
    """The algorithm's `run`, whose rates fall on a plateau of the validation accuracy.

    algorithm    its `plateau` names the keywords that fall, for example ("lr", "server_lr"). If it
                 has `evaluate_each`, its networks are trained separately: then its `run` multiplies
                 each network's rates by state["rate_factors"][network] itself, and the metrics have
                 the mean rates
    patience     a rate falls after more than this many rounds without a better accuracy
    """
    run, rates, evaluate_each = algorithm.run, algorithm.plateau, algorithm.evaluate_each

    def reached(fed, state):
        if evaluate_each:
            return evaluate_each(fed, state)
        return {"all": algorithm.evaluate(fed, state)["accuracy"]}

    def reduced(fed, state=None, *, rounds, **settings):
        on_validation = dataclasses.replace(fed, test=fed.validation, public_test=None)
        saved = {} if state is None else state.get("plateau", {})
        plateaus = {name: new_plateau(patience, plateau) for name, plateau in saved.items()}
        while state is None or state["round"] < rounds:
            t = 0 if state is None else state["round"] + 1
            factors = {name: plateau.get_last_lr()[0] for name, plateau in plateaus.items()}
            mean = statistics.fmean(factors.values()) if factors else 1.0
            now = {name: settings[name] * mean for name in rates}
            if evaluate_each and state is not None:
                one_round = run(fed, state | {"rate_factors": factors}, rounds=t, **settings)
            else:
                one_round = run(fed, state, rounds=t, **settings | now)
            for metrics, state in one_round:
                if t > 0:
                    for name, accuracy in reached(on_validation, state).items():
                        plateaus.setdefault(name, new_plateau(patience)).step(accuracy)
                yield metrics | now, state | {"plateau": {
                    name: plateau.state_dict() for name, plateau in plateaus.items()}}

    return reduced
