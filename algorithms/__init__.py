"""The registry: every algorithm that `--algo` may name. A file is imported when it is asked for.

    from algorithms import ALGORITHMS, fedsdd
    ALGORITHMS["fedsdd"]         # fedsdd.ALGORITHM, with what the program needs of it

To add one, write its file, whose last lines are ALGORITHM = Algorithm(...), and its name below.
"""
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module

from federation import Algorithm

NAMES = (
    "fedavg", "fedprox", "scaffold", "fedntd",                       # clients send weights
    "feddf", "fedbe", "fedsdd", "fedsdd-ablations", "fedgen",
    "fedmd", "fedmd-pooled", "dsfl", "cronus", "fd", "local", "fml", "fedproto", "fedkd",
    "fedgem", "fedgems", "fedgems-ablations",
    "fedgkt", "fedgkt-async", "split-learning")                      # the network is cut in two
BASELINES = ("standalone", "public-private", "centralized", "centralized-all")    # baselines.py


@dataclass(frozen=True, eq=False)
class Listed(Algorithm):
    """An `Algorithm` with the entries of its `program`, which the program alone reads."""

    scores: dict = field(default_factory=lambda: {"accuracy": "server"})     # {accuracy metric:
    #                          whose accuracy it is}; the first is `accuracy`
    paper: dict = field(default_factory=dict)    # the settings of --paper, over those of its Config
    columns: tuple = ()      # the metrics in its log besides its scores
    model: tuple = ("cnn",)          # networks of the clients without --paper and --model,
    server_model: str = "cnn_large"  #   and of the server without --paper and --server-model
    plateau: tuple = ()      # the learning rates that --lr-patience lowers
    evaluate: Callable | None = None         # evaluate(fed, state) -> metrics, for --lr-patience


class Registry(Mapping):
    """{name: its `Listed`}, in the order of NAMES."""

    def __getitem__(self, name):
        if name not in (*NAMES, *BASELINES):
            raise KeyError(name)
        words = name.replace("-", "_")
        file, variable = ("baselines", words.upper()) if name in BASELINES else (words, "ALGORITHM")
        algorithm = getattr(import_module(f"algorithms.{file}"), variable)
        return Listed(**vars(algorithm), **algorithm.program)

    def __iter__(self):
        return iter((*NAMES, *BASELINES))

    def __len__(self):
        return len(NAMES) + len(BASELINES)


ALGORITHMS = Registry()
