"""Every algorithm by its name on the command line.

An algorithm is a generator run(fed, state=None, *, rounds, ...) of (metrics, state).
"""
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
