"""The registry: every algorithm that `--algo` may name, as its file declares it."""
from importlib import import_module

from algorithms import baselines

FILES = (       # each of these files ends in `ALGORITHM = Algorithm(...)`
    "fedavg",
    "fedprox",
    "scaffold",
    "fedntd",
    "feddf",
    "fedbe",
    "fedsdd",
    "fedsdd_ablations",
    "fedgen",
    "fedmd",
    "fedmd_pooled",
    "dsfl",
    "cronus",
    "fd",
    "fedgem",
    "fedgems",
    "fedgems_ablations",
    "fedgkt",
    "fedgkt_async",
    "split_learning",
)
ALGORITHMS = {algorithm.name: algorithm for algorithm in (
    *(import_module(f"algorithms.{name}").ALGORITHM for name in FILES),
    baselines.STANDALONE,
    baselines.PUBLIC_PRIVATE,
    baselines.CENTRALIZED,
    baselines.CENTRALIZED_ALL,
)}
