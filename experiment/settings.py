"""The command line: flags, presets and defaults become the settings of every run."""
import argparse
import inspect
import typing
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

import attacks
import models
from algorithms import ALGORITHMS, Algorithm
from algorithms.hyperparameters import (AT_LEAST_0, AT_LEAST_1, FINITE, HYPERPARAMETERS, POSITIVE,
                                        Hyperparameter, Range, allowed_numbers)
from data.load import DATASETS
from experiment.presets import EMBEDDED, HELD_OUT, PAPER, PUBLIC_SETS, QUICK_START
from experiment.processes import cpu_has_bfloat16, num_cores, say
from partition import PARTITIONS


class Flag(NamedTuple):
    """A flag."""

    name: str
    kind: object            # as an annotation has it: int, tuple[int, ...], Literal[...], X | None
    default: object         # None: nothing, or what its meaning says
    allowed: Range | None   # None: any
    meaning: str


NAMES = tuple[str, ...]
SPLIT_SHARE = Range("greater than 0 and less than 1", lambda x: 0 < x < 1)
NETWORK = Range(f"of {', '.join(models.NETWORKS)}", models.NETWORKS.__contains__)
UP_TO_1024 = Range("from 1 to 1024", lambda x: 1 <= x <= 1024)
DATA = [                    # who has which images: alike for all runs in a folder
    Flag("dataset", str, "glyphs", None,
         f"the task: {', '.join(DATASETS)}, a .npz file, or a folder of images"),
    Flag("data_root", str, "downloads", None,
         "folder for torchvision's data sets, which it downloads"),
    Flag("train_size", int, None, AT_LEAST_1,
         "use at most this many training images, of each class its share"),
    Flag("test_size", int, None, AT_LEAST_1,
         "use at most this many test images, of each class its share"),
    Flag("classes", tuple[int, ...], None, AT_LEAST_0, "keep only these classes of the task"),
    Flag("clients", int, 20, AT_LEAST_1, "number of clients"),
    Flag("partition", Literal[tuple(PARTITIONS)], "dirichlet_equal", None,
         "split of the training images among clients"),
    Flag("alpha", float, 0.5, POSITIVE,
         "concentration of Dirichlet partitions; smaller is more heterogeneous"),
    Flag("per_class", int, 3, AT_LEAST_1,
         "samples per class and client, for few_per_class and by_subclass"),
    Flag("public", str, None, None,
         "public images: half, half-train or fifth of the training images, which no client then "
         "holds (half: also half of the test images), or another data set, as for --dataset "
         "(default: half if an algorithm needs labels of the task; with --paper the paper's; with "
         "--paper and for FedMD glyphs-letters for glyphs, and vice versa; otherwise fifth)"),
    Flag("joint", bool, None, None,
         "one output layer for the classes of the public data set and of the task (default: on for "
         "algorithms that support it, if the public images are another data set)"),
    Flag("public_size", int, None, AT_LEAST_1, "use at most this many public images"),
    Flag("validation", float, None, SPLIT_SHARE,
         "share of the training images that the server holds for validation; with a partition by "
         "writer, of writers that no client has (default: 0.1 if an algorithm needs them)"),
]
TRAINING = [                # what else all methods of a command have; of networks, by default
    Flag("paper", Literal[tuple(PAPER)], None, None,
         "use this paper's networks, partition, hyperparameters"),
    Flag("model", NAMES, ["cnn"], NETWORK,
         "networks of the clients (see --list), assigned to them in turn"),
    Flag("server_model", str, "cnn_large", NETWORK, "network of the server, if it has its own"),
    Flag("augment", bool, False, None, "train on randomly cropped and flipped images"),
    Flag("amp", bool, False, None, "use bfloat16 autocast in every forward pass"),
    Flag("lr_patience", int | None, None, AT_LEAST_1,
         "learning rates fall to a tenth after more than this many rounds without a better "
         "validation accuracy; none: they do not fall"),
    Flag("attack", Literal[tuple(attacks.ATTACKS)], None, None, "how some clients poison uploads"),
    Flag("attackers", int, None, AT_LEAST_1,
         "number of malicious clients (default 1, with ofom 2)"),
    Flag("attack_scale", float, 10.0, AT_LEAST_0,
         "strength of paf and ofom, in standard deviations"),
    Flag("attack_z", float, None, FINITE,
         "strength of lie, in standard deviations (default: the paper's formula)"),
]
PROGRAM = [                 # which runs, where, and what becomes of them
    Flag("algo", NAMES, None, None,
         "algorithms to run on the same data; a colon adds hyperparameters of one, as in "
         f"fedsdd:R=1,fedsdd:R=4:K=2; there are {', '.join(ALGORITHMS)}"),
    Flag("seeds", tuple[int, ...], [0], AT_LEAST_0, "one run for each seed"),
    Flag("out", str, None, None,
         "folder that keeps the runs: the same command goes on where it was stopped, a longer one "
         "adds seeds, algorithms or rounds (default: nothing is kept)"),
    Flag("device", str, None, None, "cpu, cuda, cuda:1, ... (default: a GPU if there is one)"),
    Flag("processes", int, None, UP_TO_1024,
         "processes that compute together, with the same numbers for any number of them (default: "
         "the cores, at most 8 and at most the clients of a round; 1 on a GPU and outside Linux)"),
    Flag("threads", int, None, UP_TO_1024,
         "CPU threads while the server trains; clients have one (default: the cores, but 1 for the "
         "small networks of the quick start; the last digits depend on it, and on the CPU)"),
    Flag("describe", bool, False, None,
         "print all settings and how many samples of each class a client holds, and end"),
    Flag("list", bool, False, None, "print algorithms, data sets, networks, partitions, papers"),
]
NETWORKS = ("model", "server_model")         # these may differ between the methods
DEFAULTS = {flag.name: flag.default for flag in DATA + TRAINING}
# Networks for a minute on a CPU, so small that more than one thread does not make them faster.
SMALL = {"cnn", "cnn_large", "cnn_6_16", "mlp", "gkt_edge_small", "gkt_server_small",
         "gkt_full_small", "mini0", "mini9", *models.MINI}


@dataclass
class Method:
    """A word of --algo, such as fedsdd:R=4."""

    label: str
    algorithm: Algorithm
    settings: dict           # its hyperparameters: the keywords of the algorithm's `run`
    networks: dict           # {"model": [names of the clients'], "server_model": the server's}
    threads: int             # while the server trains


@dataclass
class Command:
    """What a command line asks for."""

    methods: list[Method]
    seeds: list[int]
    federation: dict         # {name: value} of DATA and TRAINING, without the networks
    program: dict            # {name: value} of PROGRAM


def read(argv, about=""):
    """The `Command` of the words of a command line. Raises ValueError for bad input.

    about    the description in the help without --algo
    --help and --list print and end the program.
    """
    first = Parser(add_help=False)
    first.add(PROGRAM[0])
    labels = vars(first.parse_known_args(argv)[0]).get("algo", [])
    for name in (label.split(":")[0] for label in labels):
        if name not in ALGORITHMS:
            raise ValueError(f"unknown algorithm {name!r}; there are {', '.join(ALGORITHMS)}")
    algorithms = {label: ALGORITHMS[label.split(":")[0]] for label in labels}
    parser = parser_of([*dict.fromkeys(algorithms.values())], about)
    found, unknown = parser.parse_known_args(argv)
    given = vars(found)
    if given.get("list"):
        say(inventory())
        raise SystemExit(0)
    if not labels:
        raise ValueError(f"--algo is missing; there are {', '.join(ALGORITHMS)}")
    if unknown:
        raise ValueError(f"unknown {' '.join(unknown)}; --algo {','.join(labels)} --help lists the "
                         "flags")
    program = {flag.name: flag.default for flag in PROGRAM} | given
    for name in ("algo", "seeds"):
        if len({*program[name]}) < len(program[name]):
            raise ValueError(f"--{name} has a word twice")
    if program["device"] is None:
        program["device"] = "cuda" if torch.cuda.is_available() else "cpu"
    methods = [method_of(label, algorithm, given, parser)
               for label, algorithm in algorithms.items()]
    command = Command(methods, program["seeds"], federation_of(given, methods), program)
    check(command, given)
    return command


def inventory():
    return (f"algorithms  {', '.join(ALGORITHMS)}\n"
            f"datasets    {', '.join(DATASETS)}, FILE.npz, FOLDER\n"
            f"networks    {', '.join(models.NETWORKS)}\n"
            f"partitions  {', '.join(PARTITIONS)}\n"
            f"papers      {', '.join(PAPER)}")


class Parser(argparse.ArgumentParser):
    """It raises ValueError for bad input."""

    def __init__(self, **options):
        super().__init__("fedkd_minimal.py", allow_abbrev=False,
                         argument_default=argparse.SUPPRESS,
                         formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def add(self, flag, group=None):
        action = (group or self).add_argument("--" + flag.name.replace("_", "-"),
                                              **options_of(flag.kind, flag.allowed))
        default = "" if flag.default is None else f" (default {text_of(flag.default)})"
        action.help = (flag.meaning + default).replace("%", "%%")    # argparse formats it with %

    def error(self, message):
        raise ValueError(message)


def parser_of(algorithms, about):
    """The parser of these algorithms' flags; `about` describes it if there are no algorithms."""
    files = [inspect.getmodule(algorithm.run).__doc__ or "" for algorithm in algorithms]
    parser = Parser(description="\n\n".join(dict.fromkeys(files)) or about,
                    epilog="Without --paper, small networks and few epochs replace some defaults, "
                    "so that a run takes a minute;\nit prints what it changed.")
    group = parser.add_argument_group("every algorithm")
    for flag in PROGRAM + DATA + TRAINING:
        parser.add(flag, group)
    names = ", ".join(algorithm.name for algorithm in algorithms)
    group = parser.add_argument_group(names or "and those of --algo")
    for name in dict.fromkeys(name for algorithm in algorithms
                              for name in algorithm.hyperparameters):
        having = [algorithm for algorithm in algorithms if name in algorithm.hyperparameters]
        defaults = [f"{algorithm.name} {text_of(algorithm.hyperparameters[name].default)}"
                    for algorithm in having]
        kind = having[0].hyperparameters[name].annotation
        meaning = HYPERPARAMETERS.get(name, Hyperparameter()).meaning or name.replace("_", " ")
        parser.add(Flag(name, kind, None, allowed_numbers(name, kind),
                        f"{meaning} (default: {', '.join(defaults)})"), group)
    return parser


def options_of(kind, allowed):
    """argparse's options for str, bool, Literal[...], int, float, tuple[X, ...], or X | None."""
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(kind) is Literal:
        return {"choices": typing.get_args(kind)}
    optional = type(None) in typing.get_args(kind)
    if optional:
        kind = typing.get_args(kind)[0]
    several = typing.get_origin(kind) is tuple
    if several:
        kind = typing.get_args(kind)[0]

    def convert(word):
        try:
            value = kind(word.strip())
        except ValueError:
            noun = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{word!r} is not {noun}") from None
        if allowed and not allowed.holds(value):
            raise argparse.ArgumentTypeError(f"must be {allowed.words}, not {word}")
        return value

    def convert_all(text):
        if optional and text == "none":
            return None
        return [*map(convert, text.split(","))] if several else convert(text)

    noun = "NAME" if kind is str else kind.__name__.upper()
    return {"type": convert_all, "metavar": noun + ",..." * several + "|none" * optional}


def text_of(value):
    """A value as it is typed, with on or off for a bool."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def method_of(label, algorithm, given, parser):
    """The `Method` of a word of --algo: defaults, preset, flags, the word; a later one wins."""
    words = vars(parser.parse_args([f"--{word}" for word in label.split(":")[1:]]))
    for name in words.keys() - algorithm.hyperparameters.keys():
        raise ValueError(f"{label}: {name} is not a hyperparameter of {algorithm.name}, which has "
                         f"{', '.join(algorithm.hyperparameters)}")
    preset = preset_of(given)
    own = preset.get(algorithm.name, preset.get(algorithm.like))
    if own is None and "paper" in given:
        available = ", ".join(name for name in preset if name in ALGORITHMS)
        raise ValueError(f"--paper {given['paper']} has no {label}; it has {available}")
    found = {name: x.default for name, x in algorithm.hyperparameters.items()} | DEFAULTS
    for table in (preset["data"], own or {}, given, words):
        if "local_epochs" in table:          # it wins over the local_steps of the tables before
            found["local_steps"] = None
        found |= table
    threads = given.get("threads", 1 if {*found["model"]} <= SMALL else num_cores())
    return Method(label, algorithm, {name: found[name] for name in algorithm.hyperparameters},
                  {name: found[name] for name in NETWORKS}, threads)


def preset_of(given):
    return PAPER[given["paper"]] if "paper" in given else QUICK_START


def federation_of(given, methods):
    """{name: value} of DATA and TRAINING; what depends on the methods is decided here."""
    found = DEFAULTS | preset_of(given)["data"] | given
    found = {name: found[name] for name in DEFAULTS if name not in NETWORKS}
    uses = {method.algorithm.public for method in methods} - {"none"}
    if found["public"] is None and uses:
        found["public"] = default_public(found, uses)
    if found["joint"] is None:
        found["joint"] = is_foreign(found["public"]) and "joint" in uses
    needed = any(method.algorithm.needs_validation(method.settings) for method in methods)
    if found["validation"] is None and (needed or found["lr_patience"] is not None):
        found["validation"] = 0.1
    if found["attack"] and found["attackers"] is None:
        found["attackers"] = 2 if found["attack"] == "ofom" else 1
    return found


def default_public(found, uses):
    """The public images without --public; None if the paper's set is not known for this task."""
    if "labeled" in uses:
        return "half"
    foreign_sets = PUBLIC_SETS.get(found["paper"], {})
    if found["paper"] or "joint" in uses:                # the letters, or digits for the letters
        foreign_sets = EMBEDDED | foreign_sets
    held_out = None if found["paper"] else "fifth"       # --paper holds out what the paper does
    return foreign_sets.get(found["dataset"], held_out)


def is_foreign(public):
    """True if the public images come from another data set than the clients' images."""
    return public is not None and public not in HELD_OUT


def scores_of(algorithm, public):
    """{accuracy metric: whose accuracy it is}.

    Where half of the test set is public, a server that reads images is scored on that half, and
    everything else on the other.
    """
    if public != "half":
        return algorithm.scores
    on_public = {"server_accuracy"} if algorithm.server == "images" else set()
    return {name: f"{whose}, {'public' if name in on_public else 'private'} half"
            for name, whose in algorithm.scores.items()}


def check(command, given):
    """Raises ValueError for flags that do not go together."""
    federation, public = command.federation, command.federation["public"]
    served = ("none", "unlabeled", "joint") if federation["joint"] else ("none", "unlabeled")
    for method in command.methods:
        algorithm = method.algorithm
        if (algorithm.public != "none" and "public" not in given
                and public not in (*HELD_OUT, *DATASETS)):
            raise ValueError(f"{method.label} needs public images for {federation['dataset']}: "
                             f"--public NAME or PATH (the paper's: {public or 'none'})")
        if is_foreign(public) and algorithm.public not in served:
            raise ValueError(f"{method.label}: the public images need labels of the task: "
                             f"--public half or fifth, not {public}")
        if federation["attack"] and not algorithm.can_be_attacked:
            others = ", ".join(name for name, x in ALGORITHMS.items() if x.can_be_attacked)
            raise ValueError(f"--attack: {method.label} has no uploads to poison; these algorithms "
                             f"have: {others}")
        if given.get("lr_patience") is not None and not algorithm.plateau:
            others = ", ".join(name for name, x in ALGORITHMS.items() if x.plateau)
            raise ValueError(f"--lr-patience: {method.label} keeps its learning rates; they may "
                             f"fall in {others}")
    if federation["joint"] and not is_foreign(public):
        raise ValueError("--joint needs a foreign public set: --public NAME or PATH")
    if federation["attack"]:
        attacks.check(federation["attack"], federation["clients"], federation["attackers"])
    if federation["amp"] and command.program["device"] == "cpu" and not cpu_has_bfloat16():
        raise ValueError("--amp: this CPU has no bfloat16 arithmetic")
