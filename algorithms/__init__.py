"""Every algorithm by its name on the command line: a generator run(fed, state=None, *, rounds, ...) of (metrics, state)."""
from algorithms import baselines, fedavg, fedbe, feddf, fedprox, fedsdd, scaffold

ALGORITHMS = {
    "fedavg": fedavg.run,
    "fedprox": fedprox.run,
    "scaffold": scaffold.run,
    "feddf": feddf.run,
    "fedbe": fedbe.run,
    "fedsdd": fedsdd.run,
    "centralized": baselines.centralized,
}
