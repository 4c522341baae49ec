"""Learning rates that fall on a plateau: --lr-patience, for any algorithm whose paper does so.

FedGKT (section 4.2) and FedGEMS (section 4.1) reduce the rate when accuracy stops growing. This
is not a line of their algorithms, and it measures on images that an algorithm does not see. So it
is not in the round loops, but around them: between two rounds it changes `cfg.lr`, and what other
rates the algorithm's declaration names, in the Config from which the next round reads them.

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
    holder = torch.optim.SGD([torch.zeros(1)], lr=1.0)       # nothing but this number is used
    plateau = ReduceLROnPlateau(holder, mode="max", factor=0.1, patience=patience, eps=0,
                                threshold=1e-9, threshold_mode="abs")    # departure 2; rounding
    if saved is not None:
        plateau.load_state_dict(saved)
        holder.param_groups[0]["lr"] = plateau.get_last_lr()[0]
    return plateau


def run_with_plateau(algorithm, fed, cfg, state, patience, **attack):
    """The rounds of algorithm.run(fed, cfg, state), whose rates in `cfg` fall between rounds.

    algorithm    its `plateau` names the rates that fall, for example ("lr", "server_lr")
    cfg          is copied
    patience     they fall after more than this many rounds without a better accuracy
    """
    cfg = dataclasses.replace(cfg)
    on_validation = dataclasses.replace(fed, test=fed.validation, public_test=None)  # departure 1
    plateau = new_plateau(patience, (state or {}).get("plateau"))
    first = {name: getattr(cfg, name) for name in algorithm.plateau}             # departure 3

    def lower():
        rates = {name: rate * plateau.get_last_lr()[0] for name, rate in first.items()}
        for name, rate in rates.items():
            setattr(cfg, name, rate)
        return rates

    rates = lower()                                      # by 1, or as far as an earlier run has
    rounds = algorithm.run(fed, cfg, state, **attack)
    for metrics, state in rounds:
        if state["round"] > 0:
            found = algorithm.evaluate(on_validation, state)["accuracy"]
            if found is not None:        # None: no validation image is of any client's class
                plateau.step(found)
        yield metrics | rates, state | {"plateau": plateau.state_dict()}
        rates = lower()
