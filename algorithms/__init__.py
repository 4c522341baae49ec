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
    "fedgkt", "fedgkt-async", "split-learning",                      # the network is cut in two
)
BASELINES = ("standalone", "public-private", "centralized", "centralized-all")    # baselines.py


def models_of(state, client_network, server_network):
    """The trained models in a state, for the algorithms that declare no `models` of their own.

    client_network    client_network(i) is the name of client i's network
    server_network    the name of the server's; the clients', if it has none of its own
    returns           {name: [(network, weights), ...]}. A model of several networks is the mean of
                      their logits, or, of an algorithm whose server reads features, one network
                      behind the other
    """
    pairs = [(server_network, state["server"]["model"])] if "server" in state else []
    pairs += [(client_network(0), weights) for weights in state.get("global_models", [])]
    found = {f"server {k}" if k else "server": [pair] for k, pair in enumerate(pairs)}
    return found | {f"client {i}": [(client_network(i), client["model"])]
                    for i, client in state.get("clients", {}).items()}


@dataclass(frozen=True, eq=False)
class Listed(Algorithm):
    """An `Algorithm` with the entries of its `program`, which the program alone reads."""

    scores: dict = field(default_factory=lambda: {"accuracy": ("server", "test")})   # {accuracy
    #                          metric: (whose it is, its images)}; the first is `accuracy`. Images:
    #                          "test"; "own classes": test images, weighted to each client's
    #                          classes; "public half": where --public halves the test images
    more_scores: dict = field(default_factory=dict)      # the same of accuracies that neither log
    #                          nor summary shows
    clients_score: str = "accuracy"  # the metric of --key clients: the clients' mean accuracy at
    #                                  the end of a round; where they have no model, the server's
    server_score: str = "accuracy"   # of --key server; where it has no model, the clients'
    shares: tuple = ()       # metrics that are shares of 1, and no accuracies
    columns: tuple = ()      # the metrics in its log besides its scores
    paper: dict = field(default_factory=dict)    # the settings of --paper, over those of its Config
    model: tuple = ("cnn",)          # networks of the clients without --paper and --model,
    server_model: str = "cnn_large"  #   and of the server without --paper and --server-model
    models: Callable = models_of     # models(state, client_network, server_network)
    plateau: tuple = ()      # the learning rates that --lr-patience lowers
    evaluate: Callable | None = None         # evaluate(fed, state) -> metrics, for --lr-patience

    def scores_on(self, public):
        """{accuracy metric: (whose, on which images)}, as a run with this --public measures it."""
        if public == "half":
            images = {"test": "private half", "own classes": "own classes, private half",
                      "public half": "public half"}
        else:
            images = {"test": "", "own classes": "own classes", "public half": ""}
        every = self.scores | self.more_scores
        return {name: (whose, images[part]) for name, (whose, part) in every.items()}

    def keys_on(self, public):
        """{"clients": metric, "server": metric}, on the same images, in a run with --public."""
        server = self.server_score
        if public == "half" and self.scores[server][1] == "public half":
            server = "server_accuracy_private_test"          # see `score_server` in federation.py
        return {"clients": self.clients_score, "server": server}


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
