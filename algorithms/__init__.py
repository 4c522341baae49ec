"""The registry: what an algorithm's file declares, and every algorithm that `--algo` may name."""
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from federation import can_read, no_server_model


@dataclass(frozen=True, eq=False)
class Algorithm:
    """An algorithm: its `run`, what it needs, and what the program prints of it.

    Where a need depends on keywords of `run`, it exists if one of them is neither False nor None.
    """

    name: str                # on the command line
    run: Callable            # run(fed, state=None, *, rounds, ...) yields (metrics, state)
    scores: dict             # {accuracy metric: whose accuracy it is}; `accuracy` repeats the first
    public: str = "none"     # the public images that it sees: "none", "unlabeled", "labeled", or
    #                          "joint", as in FedMD: images and labels of another task too, whose
    #                          classes stand in one output layer with the task's own
    public_for: tuple = ()       # the keywords that need public images; (): it always needs them
    validation: bool = False     # does it always need the server's validation images?
    validation_for: tuple = ()   # otherwise, the keywords that need them
    mixed_networks: bool = False     # may clients have different networks?
    server: str = "none"     # a network of the server's own, which reads "images" or "features" of
    #                          the clients' networks
    check_settings: Callable | None = None   # check_settings(fed, **settings) raises ValueError if
    #                          a hyperparameter does not fit the federation
    columns: tuple = ("accuracy",)           # the metrics in its log
    announcement: Callable | None = None     # announcement(fed, settings) -> a line above the log
    like: str = ""           # the name of another algorithm, whose presets it takes
    # Without --lr-patience the next three are not used.
    plateau: tuple = ()      # the learning rates that fall on a plateau of validation accuracy
    evaluate: Callable | None = None         # evaluate(fed, state) -> metrics, with that accuracy
    evaluate_each: Callable | None = None    # evaluate_each(fed, state) -> {network: accuracy}, if
    #                          its networks are trained separately and each has rates of its own

    @property
    def hyperparameters(self):
        """{name: inspect.Parameter} of the keyword-only arguments of `run` that are flags.

        They have an annotation; `attack` has none.
        """
        parameters = inspect.signature(self.run).parameters
        return {name: parameter for name, parameter in parameters.items()
                if parameter.kind is parameter.KEYWORD_ONLY
                and parameter.annotation is not parameter.empty}

    @property
    def can_be_attacked(self):
        """True if `run` has the keyword `attack`: clients upload something that can be poisoned."""
        return "attack" in inspect.signature(self.run).parameters

    def needs_public(self, settings):
        """True if it needs public images with these settings of `run`."""
        always = self.public != "none" and not self.public_for
        return always or self.is_given(self.public_for, settings)

    def needs_validation(self, settings):
        """True if it needs validation images with these settings of `run`."""
        return self.validation or self.is_given(self.validation_for, settings)

    def is_given(self, names, settings):
        """True if one of these keywords is neither False nor None: 0 is given."""
        for name in names:
            if name not in settings:
                raise ValueError(f"{self.name}: ALGORITHM.check needs {name}={name}")
        return any(settings[name] is not None and settings[name] is not False
                   for name in names)

    def check(self, fed, **settings):
        """Raises ValueError if the federation lacks what the algorithm needs.

        settings    the keywords of `run` on which a need depends, or that check_settings reads
        """
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
            purpose = f" for {' and '.join(self.validation_for)}" if self.validation_for else ""
            raise ValueError(f"{self.name} needs validation images{purpose}: "
                             "from_tensors(..., validation=(images, labels))")
        if self.server != "none" and fed.server_model is no_server_model:
            raise ValueError(f"{self.name} needs a network of the server: "
                             "from_tensors(..., server_network=Network)")
        image = fed.private[0].images[:1]
        if self.server == "images" and not can_read(fed.server_model(), image):
            raise ValueError(f"{self.name}: the server's network cannot read images "
                             f"{list(image.shape[1:])}")
        if self.check_settings:
            self.check_settings(fed, **settings)


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
BASELINES = ("STANDALONE", "PUBLIC_PRIVATE", "CENTRALIZED", "CENTRALIZED_ALL")    # of baselines.py
ALGORITHMS = {algorithm.name: algorithm for algorithm in (
    *(import_module(f"algorithms.{name}").ALGORITHM for name in FILES),
    *(getattr(import_module("algorithms.baselines"), name) for name in BASELINES))}
