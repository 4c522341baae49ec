"""The registry: what an algorithm's file declares, and every algorithm that `--algo` may name."""
import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from numbers import Integral, Real
from typing import Literal

from algorithms.hyperparameters import allowed_numbers
from federation import output_shape


@dataclass(frozen=True, eq=False)
class Algorithm:
    """An algorithm: its `run`, what it needs, and what the program prints of it.

    Where a need depends on keywords of `run`, it exists if one of them is neither False nor None.
    """

    name: str                # on the command line
    run: Callable            # run(fed, state=None, *, rounds, ...) yields (metrics, state)
    scores: dict             # {accuracy metric: whose accuracy it is}; `accuracy` repeats the first
    keeps: tuple             # what its state has besides "round", such as "server", "clients"
    public: str = "none"     # the public images that it sees: "none", "unlabeled", "labeled", or
    #                          "joint", as in FedMD: images and labels of another task too, whose
    #                          classes stand in one output layer with the task's own
    public_for: tuple = ()       # the keywords that need public images; (): it always needs them
    validation_for: tuple = ()   # the keywords that need the server's validation images
    mixed_networks: bool = False     # may clients have different networks?
    server: str = "none"     # a network of the server's own, which reads "images" or "features" of
    #                          the clients' networks
    check_settings: Callable | None = None   # check_settings(fed, **settings) raises ValueError if
    #                          a hyperparameter does not fit the federation
    columns: tuple = ("accuracy",)           # the metrics in its log
    like: str = ""           # the name of another algorithm, whose presets it takes
    # Without --lr-patience the next three are not used.
    plateau: tuple = ()      # the learning rates that fall on a plateau of validation accuracy
    evaluate: Callable | None = None         # evaluate(fed, state) -> metrics, with that accuracy
    evaluate_each: Callable | None = None    # evaluate_each(fed, state) -> {network: accuracy}, if
    #                          its networks are trained separately and each has rates of its own

    def __post_init__(self):
        self.run.algorithm = self            # for `checked`

    @property
    def keywords(self):
        """{name: inspect.Parameter} of the keyword-only arguments of `run`."""
        parameters = inspect.signature(self.run).parameters.items()
        return {name: x for name, x in parameters if x.kind is x.KEYWORD_ONLY}

    @property
    def hyperparameters(self):
        """Those of the keywords that are flags: they have an annotation; `attack` has none."""
        return {name: x for name, x in self.keywords.items() if x.annotation is not x.empty}

    @property
    def can_be_attacked(self):
        """True if `run` has the keyword `attack`: clients upload something that can be poisoned."""
        return "attack" in self.keywords

    def needs_public(self, settings):
        """True if it needs public images with these settings of `run`."""
        always = self.public != "none" and not self.public_for
        return always or is_given(self.public_for, settings)

    def needs_validation(self, settings):
        """True if it needs validation images with these settings of `run`."""
        return is_given(self.validation_for, settings)

    def check(self, fed, state=None, **settings):
        """Raises ValueError if the algorithm cannot run with this federation, state and settings.

        settings    keywords of `run`; the others have their defaults
        """
        settings = {name: x.default for name, x in self.keywords.items()} | settings
        for name, parameter in self.hyperparameters.items():
            check_value(f"{self.name}: {name}", settings[name], parameter.annotation, name)
        keeps = {"round", *self.keeps}
        if state is not None and state.keys() - {"plateau", "rate_factors"} != keeps:
            raise ValueError(f"{self.name}: the state is another algorithm's: it has "
                             f"{', '.join(state)}, not {', '.join(('round', *self.keeps))}")
        networks = list(dict.fromkeys(fed.architecture))
        if not self.mixed_networks and len(networks) > 1:
            raise ValueError(f"{self.name}: every client needs the same network, "
                             f"not {', '.join(networks)}")
        if self.needs_public(settings) and fed.public is None:
            raise ValueError(f"{self.name} needs public images: "
                             "from_tensors(..., public=(images, labels))")
        if self.public in ("labeled", "joint") and fed.public.labels is None:
            raise ValueError(f"{self.name} needs the labels of the public images")
        if self.needs_validation(settings) and fed.validation is None:
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
            self.check_settings(fed, **settings)


def is_given(names, settings):
    """True if one of these keywords is neither False nor None: 0 is given."""
    return any(settings[name] is not None and settings[name] is not False for name in names)


def check_value(what, value, annotation, name):
    """Raises ValueError unless a keyword's value is one that its annotation and its row allow."""
    if value is None and type(None) in typing.get_args(annotation):
        return
    if annotation is bool and not isinstance(value, bool):
        raise ValueError(f"{what} is {value!r}: it must be True or False")
    if typing.get_origin(annotation) is Literal:
        if value not in typing.get_args(annotation):
            raise ValueError(f"{what} is {value!r}: choose from "
                             f"{', '.join(map(str, typing.get_args(annotation)))}")
        return
    allowed = allowed_numbers(name, annotation)
    kind = Integral if int in (annotation, *typing.get_args(annotation)) else Real
    for number in value if isinstance(value, (tuple, list)) else [value]:
        if allowed and not isinstance(number, Real):
            raise ValueError(f"{what} is {number!r}: it is not a number")
        if allowed and not (isinstance(number, kind) and allowed.holds(number)):
            noun = "a whole number, " if kind is Integral else ""
            raise ValueError(f"{what} is {number!r}: it must be {noun}{allowed.words}")


def checked(run):
    """Decorator of an algorithm's `run`: `Algorithm.check` with its arguments, before all else."""
    @functools.wraps(run)
    def wrapper(fed, state=None, **keywords):
        wrapper.algorithm.check(fed, state, **keywords)
        return run(fed, state, **keywords)
    return wrapper


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
