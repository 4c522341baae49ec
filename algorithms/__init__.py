"""Every algorithm by its name on the command line, and what its file declares.

An algorithm is a generator run(fed, state=None, *, rounds, ...) of (metrics, state).
"""
import inspect
from collections.abc import Callable
from typing import NamedTuple

from algorithms import (baselines, cronus, dsfl, fd, fedavg, fedbe, feddf, fedgem, fedgems,
                        fedgems_ablations, fedgen, fedgkt, fedgkt_async, fedmd, fedmd_pooled,
                        fedntd, fedprox, fedsdd, fedsdd_ablations, scaffold, split_learning)

ALGORITHMS = {
    "fedavg": fedavg.run,
    "fedprox": fedprox.run,
    "scaffold": scaffold.run,
    "fedntd": fedntd.run,
    "feddf": feddf.run,
    "fedbe": fedbe.run,
    "fedsdd": fedsdd.run,
    "fedsdd-ablations": fedsdd_ablations.run,
    "fedgen": fedgen.run,
    "fedmd": fedmd.run,
    "fedmd-pooled": fedmd_pooled.run,
    "dsfl": dsfl.run,
    "cronus": cronus.run,
    "fd": fd.run,
    "fedgem": fedgem.run,
    "fedgems": fedgems.run,
    "fedgems-ablations": fedgems_ablations.run,
    "fedgkt": fedgkt.run,
    "fedgkt-async": fedgkt_async.run,
    "split-learning": split_learning.run,
    "standalone": baselines.standalone,
    "public-private": baselines.public_private,
    "centralized": baselines.centralized,
    "centralized-all": baselines.centralized_all,
}


class Declared(NamedTuple):
    """An algorithm: its `run`, and what its file may define beside it, with the defaults.

    In a file with several algorithms a constant may be a dict {name of the function: value}.
    """

    run: Callable                # (fed, state=None, *, rounds, ...) -> (metrics, state), ...
    PUBLIC: str = "none"         # the public images that it sees: "none", "unlabeled", "labeled",
    #                              or "joint": labels of another task, in one output layer with it
    MIXED: bool = False          # may clients have different networks?
    COLUMNS: tuple = ("accuracy",)         # the metrics in its log
    PLATEAU: tuple = ()          # the learning rates that --lr-patience reduces
    VALIDATION: tuple = ()       # the keywords that need the server's validation set
    STACKED: bool = False        # does the server's network continue the clients'?
    LIKE: str | None = None      # another algorithm, whose presets it takes
    check: Callable = lambda fed, **settings: None    # raises ValueError: `fed` or a value of the
    #                              hyperparameters does not fit; `run` calls it too
    announcement: Callable | None = None   # (fed, settings) -> a line to print before training
    evaluate: Callable | None = None       # (fed, state) -> metrics, for --lr-patience
    accuracies: Callable | None = None     # (fed, state) -> {network: accuracy}, for --lr-patience
    #                              if its networks are trained separately: each has rates of its own


def declared(name):
    """What the file of the algorithm with this name declares."""
    run = ALGORITHMS[name]
    found = {key: value for key, value in vars(inspect.getmodule(run)).items()
             if key in Declared._fields and key != "run"}
    return Declared(run, **{key: value[run.__name__] if isinstance(value, dict) else value
                            for key, value in found.items()})
