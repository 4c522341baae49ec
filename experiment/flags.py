"""The flags: a row for each that every run has; the hyperparameters of the algorithms join them.

`given` returns the flags that were given; plan.py fills in the others.
"""
import argparse
import difflib
import inspect
import os
import typing
from pathlib import Path
from typing import Literal, NamedTuple

import models
from algorithms import ALGORITHMS
from algorithms.hyperparameters import (AT_LEAST_0, AT_LEAST_1, FINITE, HYPERPARAMETERS, POSITIVE,
                                        Hyperparameter, Range, allowed_numbers)
from attacks import ATTACKS
from data.load import DATASETS
from experiment.presets import HELD_OUT, PAPER
from experiment.processes import fail, say
from partition import PARTITIONS

EPILOG = """Without --paper, a run replaces some defaults by small networks and few epochs, so that
it takes a minute on the embedded data (glyphs, glyphs-letters); it prints what it changed."""


def data(text):
    """The type of --dataset and --public: a path is absolute, so that --resume finds its file."""
    is_path = text not in {*DATASETS, *HELD_OUT} and Path(text).exists()
    return str(Path(text).absolute()) if is_path else text


def file(text):
    """The type of --save-model: a file in a folder that can be written."""
    path = Path(text).absolute()
    if path.exists() and not path.is_file() or not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a file in a folder")
    return str(path)


def flag_name(name):
    return "--" + name.replace("_", "-")


NAMES = {"type": lambda text: [word.strip() for word in text.split(",")], "metavar": "NAME,..."}
FOLDER = {"type": Path, "metavar": "DIR"}
SWITCH = {"action": "store_true"}
SPLIT_SHARE = Range("greater than 0 and less than 1", lambda x: 0 < x < 1)
PROCESSES = Range("from 1 to 64", lambda x: 1 <= x <= 64)
THREADS = Range("from 1 to 1024", lambda x: 1 <= x <= 1024)


class Flag(NamedTuple):
    """A flag of every run."""

    name: str
    kind: object            # a type, as an annotation has it, or argparse's options
    default: object         # None: nothing, or what plan.py finds
    allowed: Range | None   # of numbers
    meaning: str            # its help; the default is added to it


FEDERATION_FLAGS = [        # who has which data and which networks: config.json keeps them
    Flag("dataset", {"type": data}, "glyphs", None,
         f"the task: {', '.join(DATASETS)}, a .npz file, or a folder of images"),
    Flag("data_root", {"metavar": "DIR"}, "downloads", None,
         "folder for torchvision's data sets, which it downloads"),
    Flag("paper", Literal[tuple(PAPER)], None, None,
         "use this paper's networks, partition, settings (default none)"),
    Flag("train_size", int, None, AT_LEAST_1,
         "use at most this many training images, of each class its share (default: all)"),
    Flag("test_size", int, None, AT_LEAST_1,
         "use at most this many test images, of each class its share (default: all)"),
    Flag("classes", tuple[int, ...] | None, None, AT_LEAST_0,
         "keep these classes of the task (default none: all)"),
    Flag("model", NAMES, ["cnn"], None,
         "networks of the clients (see --list), assigned to them in turn"),
    Flag("server_model", {"metavar": "NAME"}, "cnn_large", None,
         "network of the server, if it has its own"),
    Flag("clients", int, 20, AT_LEAST_1, "number of clients"),
    Flag("partition", Literal[tuple(PARTITIONS)], "dirichlet_equal", None,
         "split of the training images among clients"),
    Flag("alpha", float, 0.5, POSITIVE,
         "concentration of Dirichlet partitions; smaller is more heterogeneous"),
    Flag("per_class", int, 3, AT_LEAST_1,
         "samples per class and client, for few_per_class and by_subclass"),
    Flag("public", {"type": data, "metavar": "half|half-train|fifth|NAME|PATH"}, None, None,
         "public images: a share of the training images, which no client then holds (half: also "
         "half of the test images), or another data set (default: half if an algorithm needs "
         "labels of the task; with --paper the paper's; with --paper and for FedMD glyphs-letters "
         "for glyphs, and vice versa; otherwise fifth)"),
    Flag("joint", bool, None, None,
         "one output layer for the classes of the public data set and of the task (default: on for "
         "algorithms that support it, if the public images are another data set)"),
    Flag("public_size", int, None, AT_LEAST_1,
         "use at most this many public images (default: all)"),
    Flag("validation", float, None, SPLIT_SHARE,
         "share of the training images that the server holds for validation; with a partition by "
         "writer, of writers that no client has (default: 0.1 if an algorithm needs validation "
         "images, otherwise none)"),
    Flag("augment", bool, False, None, "train on randomly cropped and flipped images"),
    Flag("amp", bool, False, None,
         "use bfloat16 autocast in every forward pass, if the device can compute with it"),
    Flag("lr_patience", int | None, None, AT_LEAST_1,
         "learning rates fall to a tenth after more than this many rounds without a better "
         "validation accuracy (default none: rates do not fall)"),
    Flag("attack", Literal[tuple(ATTACKS)], None, None,
         "how some clients poison uploads (default none)"),
    Flag("attackers", int, None, AT_LEAST_1,
         "number of malicious clients (default 1, with ofom 2)"),
    Flag("attack_scale", float, None, AT_LEAST_0,
         "strength of paf and ofom, in standard deviations (default 10)"),
    Flag("attack_z", float, None, FINITE,
         "strength of lie, in standard deviations (default: the paper's formula)"),
]
RUN_FLAGS = [               # which runs, where, and what becomes of them
    Flag("algo", NAMES, None, None,
         "algorithms to run on the same data; a colon adds hyperparameters of one, as in "
         f"fedsdd:R=1,fedsdd:R=4:K=2; there are {', '.join(ALGORITHMS)}"),
    Flag("seeds", tuple[int, ...], None, AT_LEAST_0, "one run for each seed (default 0)"),
    Flag("device", {}, None, None, "cpu, cuda, cuda:1, ... (default: a GPU if there is one)"),
    Flag("processes", int, None, PROCESSES,
         "processes that compute together, with the same numbers for any number of them (default: "
         "the cores, at most 8 and at most the clients of a round; 1 on a GPU and outside Linux)"),
    Flag("threads", int, None, THREADS,
         "CPU threads while the server trains; clients have one (default: the cores, but 1 for the "
         "small networks of the quick start; the numbers depend on it, and in their last digits on "
         "the kind of CPU)"),
    Flag("out", FOLDER, None, None,
         "folder for config, metrics, timing and checkpoint (default: none is kept)"),
    Flag("resume", FOLDER, None, None,
         "continue the run in this folder; --rounds can be raised; --device, --processes and, for "
         "data that have moved, --dataset and --public may be given as well"),
    Flag("save_model", {"type": file, "metavar": "FILE"}, None, None,
         "write the trained models to this file; saved_model.py reads it"),
    Flag("describe", SWITCH, None, None,
         "print all settings and how many samples of each class a client holds, and end"),
    Flag("list", SWITCH, None, None, "print algorithms, data sets, networks, partitions, papers"),
]
COMMON_FLAGS = {flag.name: flag for flag in RUN_FLAGS + FEDERATION_FLAGS}


# ------------------------------------------------------------------------------------------------
# From a row of the table to argparse

def number(kind, allowed, optional=False, several=False):
    """The type of an int or float in a `Range`.

    optional   "none" is allowed as well and gives None
    several    a list of such numbers, separated by commas
    """
    def convert(text):
        try:
            value = kind(text)
        except ValueError:
            noun = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {noun}") from None
        if not allowed.holds(value):
            raise argparse.ArgumentTypeError(f"must be {allowed.words}, not {text}")
        return value

    def convert_all(text):
        if optional and text == "none":
            return None
        return [convert(word) for word in text.split(",")] if several else convert(text)
    return convert_all


def flag_options(kind, allowed):
    """argparse's options for str, bool, Literal[...], int, float, tuple[int, ...], or X | None."""
    if isinstance(kind, dict):
        return kind
    if kind is str:
        return {}
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
    metavar = kind.__name__.upper() + ",..." * several + "|none" * optional
    return {"type": number(kind, allowed, optional, several), "metavar": metavar}


def value_text(value):
    """A flag's value as it would be typed, with on or off for a bool."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def words(given):
    """The words of a command line that gives these flags, {name: value}."""
    return [flag_name(name) if value is True else flag_name(f"no_{name}") if value is False
            else f"{flag_name(name)}={value_text(value)}" for name, value in given.items()]


def hyperparameter_help(name, algorithms):
    """The help of a hyperparameter: its meaning and its default, or each algorithm's."""
    meaning = HYPERPARAMETERS.get(name, Hyperparameter()).meaning or name.replace("_", " ")
    defaults = {algorithm.name: value_text(algorithm.hyperparameters[name].default)
                for algorithm in algorithms}
    if len(set(defaults.values())) == 1:
        return f"{meaning} (default {defaults[algorithms[0].name]})"
    return f"{meaning} (default: {', '.join(f'{algo} {x}' for algo, x in defaults.items())})"


class Parser(argparse.ArgumentParser):
    """It tells an error in one line, and the first process alone prints."""

    def __init__(self, **options):
        super().__init__("fedkd_minimal.py", allow_abbrev=False,
                         argument_default=argparse.SUPPRESS, **options)

    def add(self, group, name, kind, allowed, text):
        action = group.add_argument(flag_name(name), **flag_options(kind, allowed))
        action.help = text.replace("%", "%%")                # argparse formats the help with %

    def error(self, message):
        fail(message)

    def print_help(self, file=None):
        say(self.format_help().rstrip())


def build_parser(algorithms, about):
    """The parser for these algorithms; `about` is its description if there are no algorithms."""
    files = [inspect.getmodule(algorithm.run).__doc__ or "" for algorithm in algorithms]
    parser = Parser(description="\n\n".join(dict.fromkeys(files)) or about, epilog=EPILOG,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    common = parser.add_argument_group("every algorithm")
    for flag in COMMON_FLAGS.values():
        default = "" if flag.default is None else f" (default {value_text(flag.default)})"
        parser.add(common, flag.name, flag.kind, flag.allowed, flag.meaning + default)
    group = parser.add_argument_group(
        ", ".join(algorithm.name for algorithm in algorithms) or "and those of --algo")
    for name in dict.fromkeys(name for algorithm in algorithms
                              for name in algorithm.hyperparameters):
        having = [algorithm for algorithm in algorithms if name in algorithm.hyperparameters]
        annotation = having[0].hyperparameters[name].annotation
        parser.add(group, name, annotation, allowed_numbers(name, annotation),
                   hyperparameter_help(name, having))
    return parser


# ------------------------------------------------------------------------------------------------
# The two parsers

def who(argv):
    """(the words of --algo or [], the folder of --resume or None, the other words of argv)."""
    parser = Parser(add_help=False)
    parser.add_argument("--algo", default=[], **NAMES)
    parser.add_argument("--resume", default=None, **FOLDER)
    found, others = parser.parse_known_args(argv)
    return found.algo, found.resume, others


def given(labels, argv, about=""):
    """The flags in argv, and the hyperparameters in the words of --algo.

    returns    ({name: value}, {label: Algorithm}, {label: {name: value}}); what was not given is
               not in it. --help and --list print and end the program; bad input ends it too: `fail`
    """
    if "--list" in argv:
        say(f"algorithms  {', '.join(ALGORITHMS)}\n"
            f"datasets    {', '.join(DATASETS)}, FILE.npz, FOLDER\n"
            f"networks    {', '.join(models.NETWORKS)}\n"
            f"partitions  {', '.join(PARTITIONS)}\n"
            f"papers      {', '.join(PAPER)}")
        raise SystemExit(0)
    algorithms = {label: algorithm_of(label) for label in labels}
    if len(algorithms) < len(labels):
        fail("--algo names an algorithm twice")
    different = list(dict.fromkeys(algorithms.values()))
    parser = build_parser(different, about)
    flags = parse(parser, different, argv)
    of_words = {}
    for label, algorithm in algorithms.items():
        of_words[label] = parse(parser, [algorithm], ["--" + x for x in label.split(":")[1:]])
        for name in of_words[label].keys() - algorithm.hyperparameters.keys():
            fail(f"{label}: {flag_name(name)} is not a hyperparameter of {algorithm.name}; the "
                 "algorithms of a command share all other flags")
    return {"algo": labels} | flags, algorithms, of_words


def algorithm_of(label):
    """The `Algorithm` of a word of --algo, such as fedsdd:R=4."""
    name, *settings = label.split(":")
    if name not in ALGORITHMS:
        fail(f"unknown algorithm {label!r}{similar(name, ALGORITHMS)}; there are "
             f"{', '.join(ALGORITHMS)}")
    if "" in settings:
        fail(f"{label}: a hyperparameter must follow each colon, as in fedsdd:R=4:K=2")
    if taken := {"help", *COMMON_FLAGS} & ALGORITHMS[name].hyperparameters.keys():
        fail(f"{name}: its `run` cannot have the hyperparameter {min(taken)}, which is a flag of "
             "every run")
    return ALGORITHMS[name]


def parse(parser, algorithms, argv):
    """{name: value} of the flags in argv."""
    flags, unknown = parser.parse_known_args(argv)
    if not algorithms:
        fail(f"--algo is missing; there are {', '.join(ALGORITHMS)}")
    if unknown:
        known = [f"{algorithm.name} has {' '.join(map(flag_name, algorithm.hyperparameters))}; "
                 for algorithm in algorithms]
        names = [flag_name(name) for name in (*COMMON_FLAGS, *(
            name for algorithm in algorithms for name in algorithm.hyperparameters))]
        kind = "flag" if unknown[0].startswith("-") else "word"
        owners = [name for name, algorithm in ALGORITHMS.items()
                  if unknown[0].split("=")[0] in map(flag_name, algorithm.hyperparameters)]
        hint = f" (of {', '.join(owners)})" if owners else similar(unknown[0], names)
        fail(f"unknown {kind} {unknown[0]}{hint}; {''.join(known)}--help lists those of every "
             "algorithm")
    if "local_epochs" in flags and "local_steps" in flags:
        fail("--local-epochs and --local-steps exclude each other")
    return vars(flags)


def similar(text, names):
    """A question for the name that is meant, or nothing."""
    lower = {name.lower(): name for name in names}
    found = difflib.get_close_matches(text.split("=")[0].lower(), lower, 1)
    return f" (did you mean {lower[found[0]]}?)" if found else ""
