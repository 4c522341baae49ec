"""The registry: what an algorithm's file declares, and every algorithm that `--algo` may name."""
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from importlib import import_module

import numpy as np

from algorithms.ranges import check_values
from federation import output_shape


@dataclass(frozen=True, eq=False)
class Algorithm:
    """An algorithm: its `run`, what it needs, and what the program prints of it.

    Where a need depends on settings, it exists if one of them is neither False, None nor "none".
    """

    name: str                # on the command line
    run: Callable            # run(fed, state=None, rounds=..., ...) yields (metrics, state)
    scores: dict             # {accuracy metric: whose accuracy it is}; the first is `accuracy`
    paper: dict = field(default_factory=dict)    # the settings of --paper, over those of its Config
    public: str = "none"     # the public images that it sees: "none", "unlabeled", "labeled", or
    #                          "joint", as in FedMD: images and labels of another task too, whose
    #                          classes stand in one output layer with the task's own
    public_for: tuple = ()       # the settings that need public images; (): it always needs them
    labels_for: tuple = ()       # the settings that need their labels if above 0; (): always
    validation_for: tuple = ()   # the settings that need the server's validation images
    mixed_networks: bool = False     # may clients have different networks?
    server: str = "none"     # a network of the server's own, which reads "images" or "features" of
    #                          the clients' networks
    model: tuple = ("cnn",)          # networks of the clients without --paper and --model,
    server_model: str = "cnn_large"  #   and of the server without --paper and --server-model
    check_settings: Callable | None = None   # check_settings(fed, cfg, attack) raises ValueError if
    #                          a setting does not fit the federation
    columns: tuple = ()      # the metrics in its log besides its scores
    like: str = ""           # the name of another algorithm, whose presets it takes
    # Without --lr-patience the next two are not used.
    plateau: tuple = ()      # the learning rates that fall on a plateau of validation accuracy
    evaluate: Callable | None = None         # evaluate(fed, state) -> metrics, with that accuracy

    def __post_init__(self):
        self.run.algorithm = self            # for `configured`

    @property
    def Config(self):
        """The dataclass of its settings."""
        return self.run.Config

    @property
    def config_fields(self):
        """{name: dataclass field} of its settings."""
        return {field.name: field for field in fields(self.Config)}

    @property
    def log_columns(self):
        """The metrics in its log."""
        return (*self.scores, *self.columns)

    @property
    def can_be_attacked(self):
        """True if `run` takes an attack: clients upload something that can be poisoned."""
        return "attack" in inspect.signature(self.run).parameters

    def needs_public(self, settings):
        """True if it needs public images with these {name: value} of its settings."""
        always = self.public != "none" and not self.public_for
        return always or is_given(self.public_for, settings)

    def needs_labels(self, settings):
        """True if it needs the public images' labels with these {name: value} of its settings."""
        always = self.public in ("labeled", "joint") and not self.labels_for
        return always or any(settings[name] > 0 for name in self.labels_for)

    def needs_validation(self, settings):
        """True if it needs validation images with these {name: value} of its settings."""
        return is_given(self.validation_for, settings)

    def check(self, fed, state=None, attack=None, **settings):
        """Raises ValueError if the algorithm cannot run with this federation, state and settings.

        settings    fields of its Config; the others have their defaults
        """
        cfg = self.Config(**settings)
        check_values(self.Config, vars(cfg), lambda name: f"{self.name}: {name}")
        if state is not None:
            self.check_state(fed, cfg, state)
        if isinstance(attack, str):
            raise ValueError(f"{self.name}: attack is {attack!r}: give an Attack of attacks.py, "
                             f"build({attack!r}, partial(stream, fed.seed), len(fed.private), 1)")
        networks = list(dict.fromkeys(fed.architecture))
        if not self.mixed_networks and len(networks) > 1:
            raise ValueError(f"{self.name}: every client needs the same network, "
                             f"not {', '.join(networks)}")
        if self.needs_public(vars(cfg)) and fed.public is None:
            raise ValueError(f"{self.name} needs public images: "
                             "from_tensors(..., public=(images, labels))")
        if self.needs_labels(vars(cfg)) and fed.public.labels is None:
            raise ValueError(f"{self.name} needs the labels of the public images")
        if self.needs_validation(vars(cfg)) and fed.validation is None:
            raise ValueError(f"{self.name} needs validation images for "
                             f"{' and '.join(self.validation_for)}: "
                             "from_tensors(..., validation=(images, labels))")
        if self.server != "none" and fed.server_model is None:
            raise ValueError(f"{self.name} needs a network of the server: "
                             "from_tensors(..., server_network=Network)")
        if self.server == "images":
            image = fed.private[0].images[:1]
            shape = output_shape(fed.server_model(), image)
            if shape != (1, fed.num_classes):
                raise ValueError(f"{self.name}: the server's network must make logits "
                                 f"[B, {fed.num_classes}] of images {list(image.shape[1:])}, "
                                 f"not {shape}")
        if self.check_settings:
            self.check_settings(fed, cfg, attack)

    def check_state(self, fed, cfg, state):
        """Raises ValueError if a run with these settings cannot go on from this state.

        Entries that are missing, and networks and optimizers that differ, are found when they are
        read: see `State`, `loaded` and `restored`.
        """
        if not isinstance(state, dict):
            raise ValueError(f"{self.name}: state is the dict of a yielded (metrics, state), not a "
                             f"{type(state).__name__}")
        if state.get("algorithm") != self.name:
            raise ValueError(f"{self.name}: the state is another algorithm's: "
                             f"{state.get('algorithm', 'of none that is known')}")
        clients, models = state.get("clients"), state.get("global_models")
        if clients and len(clients) not in (1, len(fed.private)):    # 1: split learning's edge
            raise ValueError(f"{self.name}: the state is of {len(clients)} clients, not "
                             f"{len(fed.private)}")
        if isinstance(models, dict) and models.keys() != {*fed.architecture}:
            raise ValueError(f"{self.name}: the state is of clients with {', '.join(models)}, not "
                             f"with {', '.join(dict.fromkeys(fed.architecture))}")
        if hasattr(cfg, "K") and models is not None:
            for saved in models.values() if isinstance(models, dict) else [models]:
                if len(saved) != cfg.K:
                    raise ValueError(f"{self.name}: the state is of K = {len(saved)}, not {cfg.K}")


class State(dict):
    """A state to go on from; a missing entry is a ValueError."""

    def __missing__(self, key):
        raise ValueError(f"the state has no {key!r}: give one that this algorithm has yielded")


def is_given(names, settings):
    """True if one of these settings is neither False, None nor "none": 0 is given."""
    return any(settings[name] is not False and settings[name] not in (None, "none")
               for name in names)


def configured(Config):
    """Decorator of run(fed, cfg, state=None, attack=None), the rounds of an algorithm.

    Users call run(fed, state=None, K=2, ..., attack=...): the keywords are the fields of the
    dataclass Config. Before all else they are checked: see `Algorithm.check`. Each state that is
    yielded is marked as this algorithm's. A run that goes on from a state takes all settings from
    its keywords; the number of clients, K, the networks and optimizers that are kept must be those
    of the state.
    """
    def decorate(run):
        @functools.wraps(run)
        def wrapper(fed, state=None, *, attack=None, **settings):
            settings = {name: x.item() if isinstance(x, np.generic) else x
                        for name, x in settings.items()}
            wrapper.algorithm.check(fed, state, attack, **settings)
            more = {} if attack is None else {"attack": attack}
            state = None if state is None else State(state)
            return marked(run(fed, Config(**settings), state, **more))

        def marked(rounds):
            for metrics, state in rounds:
                yield metrics, {"algorithm": wrapper.algorithm.name, **state}

        kinds = inspect.Parameter
        has_attack = "attack" in inspect.signature(run).parameters
        del wrapper.__wrapped__              # so that the signature is that of the keywords
        wrapper.__signature__ = inspect.Signature([
            kinds("fed", kinds.POSITIONAL_OR_KEYWORD),
            kinds("state", kinds.POSITIONAL_OR_KEYWORD, default=None),
            *(kinds(field.name, kinds.KEYWORD_ONLY, default=field.default, annotation=field.type)
              for field in fields(Config)),
            *([kinds("attack", kinds.KEYWORD_ONLY, default=None)] if has_attack else [])])
        wrapper.Config = Config
        return wrapper
    return decorate


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
    "local",
    "fml",
    "fedproto",
    "fedkd",
    "fedgem",
    "fedgems",
    "fedgems_ablations",
    "fedgkt",
    "fedgkt_async",
    "split_learning",
)
BASELINES = ("STANDALONE", "PUBLIC_PRIVATE", "CENTRALIZED", "CENTRALIZED_ALL")    # of baselines.py
ALGORITHMS = {algorithm.name: algorithm for algorithm in (
    *(import_module(f"algorithms.{name}").ALGORITHM for name in FILES),
    *(getattr(import_module("algorithms.baselines"), name) for name in BASELINES))}
