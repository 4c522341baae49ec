"""Every algorithm by its name on the command line: a generator run(fed, state=None, *, rounds, ...) of (metrics, state)."""
from algorithms import (baselines, cronus, dsfl, fedavg, fedbe, feddf, fedgem, fedgems, fedgkt, fedmd, fedprox, fedsdd, scaffold,
                        split_learning)

ALGORITHMS = {
    "fedavg": fedavg.run,
    "fedprox": fedprox.run,
    "scaffold": scaffold.run,
    "feddf": feddf.run,
    "fedbe": fedbe.run,
    "fedsdd": fedsdd.run,
    "fedmd": fedmd.run,
    "dsfl": dsfl.run,
    "cronus": cronus.run,
    "fedgem": fedgem.run,
    "fedgems": fedgems.run,
    "fedgkt": fedgkt.run,
    "split-learning": split_learning.run,
    "standalone": baselines.standalone,
    "public-private": baselines.public_private,
    "centralized": baselines.centralized,
    "centralized-all": baselines.centralized_all,
    "fedmd-pooled": fedmd.pooled,
}
