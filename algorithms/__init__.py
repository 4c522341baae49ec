"""Every algorithm by its name on the command line.

An algorithm is a generator run(fed, state=None, *, rounds, ...) of (metrics, state).
"""
import functools
import inspect

from algorithms import (baselines, cronus, dsfl, fedavg, fedbe, feddf, fedgem, fedgems,
                        fedgems_ablations, fedgkt, fedgkt_async, fedmd, fedmd_pooled, fedprox,
                        fedsdd, fedsdd_ablations, scaffold, split_learning)

ALGORITHMS = {
    "fedavg": fedavg.run,
    "fedprox": fedprox.run,
    "scaffold": scaffold.run,
    "feddf": feddf.run,
    "fedbe": fedbe.run,
    "fedsdd": fedsdd.run,
    "fedsdd-ablations": fedsdd_ablations.run,
    "fedmd": fedmd.run,
    "fedmd-pooled": fedmd_pooled.run,
    "dsfl": dsfl.run,
    "cronus": cronus.run,
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


def with_check(run):
    """`run`, which first raises ValueError if the federation lacks public data that it needs.

    It takes the place of `run` in its file as well, for a script that calls fedsdd.run(fed).
    """
    name = f"{run.__module__}.{run.__name__}"
    module, distill = inspect.getmodule(run), inspect.signature(run).parameters.get("distill")
    public = module.PUBLIC[run.__name__] if isinstance(module.PUBLIC, dict) else module.PUBLIC

    @functools.wraps(run)
    def checked_run(fed, state=None, **settings):
        # Without `distill` the ensemble of fedbe only predicts.
        uses_public = settings.get("distill", distill.default) if distill else public != "none"
        if uses_public and fed.public is None:
            raise ValueError(f"{name} needs public images: Federation(..., public=Data(...))")
        if public in ("labelled", "joint") and fed.public.labels is None:
            raise ValueError(f"{name} needs public images with labels: Data(images, labels)")
        return run(fed, state, **settings)

    setattr(module, run.__name__, checked_run)
    return checked_run


ALGORITHMS = {name: with_check(run) for name, run in ALGORITHMS.items()}
