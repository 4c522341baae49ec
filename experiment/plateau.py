"""Learning rates that fall on a plateau: --lr-patience, for any algorithm whose paper does so.

FedGKT (section 4.2) and FedGEMS (section 4.1) reduce the rate when accuracy stops growing. This
is not a line of their algorithms, and it measures on images that an algorithm does not see. So it
is not in the round loops: not a schedule that each loop would ask for its rates and keep in its
state, but one function around all of them. `with_plateau` calls an algorithm's `run` for one round
at a time, from the state of the last round, with the rates of the new round.

Departures
  1  Papers: do not say on which images; public code looks at the test set. Here: the metric
     `accuracy` on the validation set, which is held out of the private data, also for the other
     algorithms of a command.
  2  Papers: do not say how far and when. Here: to a tenth, after more than `lr_patience` rounds
     without a better accuracy.
  3  Papers: do not say which rates; FedGKT's code reduces the server's alone. Here: those that the
     algorithm's declaration names, all together.
"""
import dataclasses

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau


def new_plateau(patience, saved=None):
    """A scheduler whose rate is a factor of learning rates: 1 at first, or as it was saved."""
    factor = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    # Its `factor` is 0.1: departure 2.
    plateau = ReduceLROnPlateau(factor, mode="max", patience=patience, threshold=0, eps=0)
    if saved is not None:
        plateau.load_state_dict(saved)
        factor.param_groups[0]["lr"] = plateau.get_last_lr()[0]
    return plateau


def with_plateau(algorithm, patience):
    """The algorithm's `run`, whose rates fall on a plateau of the validation accuracy.

    algorithm    its `plateau` names the settings that fall, for example ("lr", "server_lr")
    patience     they fall after more than this many rounds without a better accuracy
    """
    def reduced(fed, state=None, *, rounds, **settings):
        # Departure 1: on validation images.
        on_validation = dataclasses.replace(fed, test=fed.validation, public_test=None)
        plateau = new_plateau(patience, (state or {}).get("plateau"))
        while state is None or state["round"] < rounds:
            t = 0 if state is None else state["round"] + 1
            factor = plateau.get_last_lr()[0]
            rates = {name: settings[name] * factor for name in algorithm.plateau}    # departure 3
            one_round = algorithm.run(fed, state, rounds=t, **settings | rates)
            for metrics, state in one_round:
                if t > 0:
                    plateau.step(algorithm.evaluate(on_validation, state)["accuracy"])
                yield metrics | rates, state | {"plateau": plateau.state_dict()}

    return reduced
