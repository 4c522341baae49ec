"""Learning rates that fall on a plateau: --lr-patience, for any algorithm whose paper does so.

FedGKT (section 4.2) and FedGEMS (section 4.1) reduce the rate when accuracy stops growing. This
is not a line of their algorithms, so it is not in the round loops. Instead, `with_plateau` calls an
algorithm's `run` for one round at a time, from the state of the last round, with the rates of the
new round.

Where the papers are silent or we differ:
D1  the accuracy is the metric `accuracy` on the validation set. This set is held out of the private
    data, also for the other algorithms of a command. Public code looks at the test set
    [test_the_test_set_does_not_move_a_rate]
D2  a rate falls to a tenth after more than `lr_patience` rounds without a better accuracy. The
    algorithm's module constant PLATEAU names the rates. FedGKT's code reduces the server's alone
    [test_a_rate_falls_after_more_than_patience_rounds_by_hand]
"""
import dataclasses

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau


def with_plateau(run, evaluate, rates, patience):
    """An algorithm like `run` whose learning rates fall on a plateau of validation accuracy.

    run         the algorithm, a generator of (metrics, state)
    evaluate    evaluate(fed, state) -> metrics with "accuracy"
    rates       the names of the keywords that fall, for example ("lr", "server_lr")
    patience    a rate falls after more than this many rounds without a better accuracy
    raises      ValueError without a validation set
    """
    def reduced(fed, state=None, *, rounds, **settings):
        if fed.validation is None:
            raise ValueError("--lr-patience needs a validation set: --validation SHARE")
        on_validation = dataclasses.replace(fed, test=fed.validation, public_test=None)
        factor = torch.optim.SGD([torch.zeros(1)], lr=1.0)         # its rate multiplies the rates
        plateau = ReduceLROnPlateau(factor, mode="max", patience=patience, threshold=0, eps=0)
        if state is not None and "plateau" in state:
            plateau.load_state_dict(state["plateau"])
            factor.param_groups[0]["lr"] = plateau.get_last_lr()[0]
        while state is None or state["round"] < rounds:
            t = 0 if state is None else state["round"] + 1
            now = {name: settings[name] * factor.param_groups[0]["lr"] for name in rates}
            one_round = run(fed, state, rounds=t, **settings | now)
            for metrics, state in one_round:
                if t > 0:
                    plateau.step(evaluate(on_validation, state)["accuracy"])
                yield metrics | now, state | {"plateau": plateau.state_dict()}

    return reduced
