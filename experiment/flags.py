"""The flags: those of every run, and one for each keyword-only argument of an algorithm's `run`.

`parse(argv)` returns the flags that were given. Their defaults depend on --algo and --paper, so
`configure` in config.py fills them in.
"""
import argparse
import inspect
import re
import typing
from pathlib import Path

import models
from algorithms import ALGORITHMS
from algorithms.hyperparameters import MEANING
from attacks import ATTACKS
from data.load import DATASETS
from experiment.build import PARTITIONS
from experiment.presets import DEFAULTS, PAPER, RANGES, at_least_0, finite
from experiment.process import fail, say

EPILOG = """Without --paper, a run replaces some defaults by small networks and few epochs, so that
it takes a minute on the embedded data (glyphs, glyphs-letters); it prints what it changed."""


# ------------------------------------------------------------------------------------------------
# Hyperparameters. algo is a name in ALGORITHMS, maybe with hyperparameters of its own: fedsdd:R=4

def name_of(algo):
    """The name in ALGORITHMS."""
    return algo.partition(":")[0]


def keywords(algo):
    """{name: inspect.Parameter} of the algorithm's hyperparameters.

    These are the keyword-only arguments of its `run` that have an annotation (`attack` has none).
    """
    parameters = inspect.signature(ALGORITHMS[name_of(algo)].run).parameters
    return {name: p for name, p in parameters.items()
            if p.kind is p.KEYWORD_ONLY and p.annotation is not p.empty}


def descriptions(run):
    """{name of an argument: its description}, from the docstring of an algorithm's `run`.

    An entry is a line `name   description` at the docstring's own indentation, with two or more
    spaces between; lines after it that are indented further belong to the description.
    """
    found, name, parameters = {}, None, inspect.signature(run).parameters
    for line in (inspect.getdoc(run) or "").splitlines():
        entry = re.fullmatch(r"(\w+) {2,}(.*\S)\s*", line)
        if entry and entry[1] in parameters:
            name = entry[1]
            found[name] = entry[2]
        elif name and line.startswith(" "):
            found[name] += " " + line.strip()
        else:
            name = None
    return found


def value_text(value):
    """A flag's value as it would be typed, with on or off for a bool."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "on", False: "off"}[value]
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


# ------------------------------------------------------------------------------------------------
# Flags and their types; a type converts the text of a flag or raises ArgumentTypeError

def flag_name(name):
    return "--" + name.replace("_", "-")


def number(kind, name, optional=False, several=False):
    """The type of an int or float in the range that `name` has in every algorithm.

    A name without a range may be a whole number from 0, or any finite number.

    optional   "none" is allowed as well and gives None
    several    a list of such numbers, separated by commas
    """
    is_allowed, range_text = RANGES.get(name, at_least_0 if kind is int else finite)

    def convert(text):
        try:
            value = kind(text)
        except ValueError:
            noun = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {noun}") from None
        if not is_allowed(value):
            raise argparse.ArgumentTypeError(f"must be {range_text}, not {text}")
        return value

    def convert_all(text):
        if optional and text == "none":
            return None
        return [convert(word) for word in text.split(",")] if several else convert(text)
    return convert_all


def flag_options(name, annotation):
    """argparse's options for int, float, bool, Literal[...], tuple[int, ...], or these | None."""
    if annotation is bool:
        return {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(annotation) is typing.Literal:
        return {"choices": typing.get_args(annotation)}
    optional = type(None) in typing.get_args(annotation)
    kind = typing.get_args(annotation)[0] if optional else annotation
    several = typing.get_origin(kind) is tuple
    kind = typing.get_args(kind)[0] if several else kind
    metavar = kind.__name__.upper() + ",..." * several + "|none" * optional
    return {"type": number(kind, name, optional, several), "metavar": metavar}


def add_flag(group, name, options, help_text=""):
    """Adds a flag; options: an annotation, or a dict of argparse's options."""
    options = options if isinstance(options, dict) else flag_options(name, options)
    action = group.add_argument(flag_name(name), **options)
    action.help = help_text.replace("%", "%%")           # argparse formats the help with %


def folder(text):
    """The type of --out and --resume."""
    if not text.strip():               # Path("") is the current folder
        raise argparse.ArgumentTypeError("it is empty; . is the current folder")
    return Path(text)


def file(text):
    """The type of --save-model: a file that can be made."""
    if not text.strip() or Path(text).is_dir() or not Path(text).parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a file in a folder")
    return Path(text)


NAMES = {"type": lambda text: text.split(","), "metavar": "NAME,..."}
FOLDER = {"type": folder, "metavar": "DIR"}
FILE = {"type": file, "metavar": "FILE"}
COMMON_FLAGS = [   # (name, annotation or argparse's options, help); DEFAULTS gives their defaults
    ("algo", NAMES, "algorithms to run on the same data; a colon adds hyperparameters of one, "
     f"as in fedsdd:R=1,fedsdd:R=4:K=2; there are {', '.join(ALGORITHMS)}"),
    ("dataset", {}, f"the task: {', '.join(DATASETS)}, a .npz file, or a folder of images"),
    ("data_root", FOLDER | {"type": str}, "folder for torchvision's data sets, which it downloads"),
    ("paper", {"choices": PAPER}, "use this paper's networks, partition, settings (default none)"),
    ("model", NAMES, "networks of the clients (see --list), assigned to them in turn"),
    ("server_model", {"metavar": "NAME"}, "network of the server, if it has its own"),
    ("clients", int, "number of clients"),
    ("partition", {"choices": [*PARTITIONS]}, "split of the training images among clients"),
    ("alpha", float, "concentration of Dirichlet partitions; smaller is more heterogeneous"),
    ("per_class", int, "samples per class and client, for few_per_class and by_subclass"),
    ("classes", tuple[int, ...] | None, "keep these classes of the task (default none: all)"),
    ("public", {"metavar": "half|half-train|fifth|NAME|PATH"}, "public images: a share of the "
     "training images, which no client then holds (half: also half of the test images), or another "
     "data set (default: half if an algorithm needs labels of the task; with --paper the paper's; "
     "with --paper and for FedMD glyphs-letters for glyphs, and vice versa; otherwise fifth)"),
    ("joint", bool, "one output layer for the classes of the public data set and of the task "
     "(default: on for algorithms that support it, if the public images are another data set)"),
    ("public_size", int, "use at most this many public images (default: all)"),
    ("validation", float, "share of the training images that the server holds for validation "
     "(default: 0.1 if an algorithm needs validation images, otherwise none)"),
    ("augment", bool, "train on randomly cropped and flipped images"),
    ("lr_patience", int | None, "learning rates fall to a tenth after more than this many rounds "
     "without a better validation accuracy (default none: rates do not fall)"),
    ("attack", {"choices": ATTACKS}, "how some clients poison uploads (default none)"),
    ("attackers", int, "number of malicious clients (default 1, with ofom 2)"),
    ("attack_scale", float, "strength of paf and ofom, in standard deviations (default 10)"),
    ("attack_z", float, "strength of lie, in standard deviations (default: the paper's formula)"),
    ("comu", tuple[float, ...] | None, "accuracies; the summary shows the bytes sent until each "
     "of them is reached (default none)"),
    ("seeds", tuple[int, ...], "one run for each seed (default 0)"),
    ("device", {}, "cpu, cuda, cuda:1, ... (default: a GPU if there is one)"),
    ("threads", int, "CPU threads per process (default 1; torchrun uses more cores)"),
    ("amp", bool, "use bfloat16 autocast in every forward pass, if the device can compute with it"),
    ("out", FOLDER, "folder for config, metrics, timing and checkpoint (default: none is kept)"),
    ("resume", FOLDER, "continue the run in this folder; only --rounds, --device and --save-model "
     "may be given as well"),
    ("save_model", FILE, "write the trained models to this file; saved_model.py reads it"),
    ("describe", {"action": "store_true"}, "print how many samples of each class a client holds"),
    ("list", {"action": "store_true"}, "print algorithms, data sets, networks, partitions, papers")]


def print_names():
    """What --list prints."""
    say(f"algorithms  {', '.join(ALGORITHMS)}\n"
        f"datasets    {', '.join(DATASETS)}, FILE.npz, FOLDER\n"
        f"networks    {', '.join(models.NETWORKS)}\n"
        f"partitions  {', '.join(PARTITIONS)}\n"
        f"papers      {', '.join(PAPER)}")


def hyperparameter_help(name, algos):
    """The help of a hyperparameter: its description and its default, or each algorithm's."""
    texts = [descriptions(ALGORITHMS[name_of(algo)].run).get(name) for algo in algos]
    text = next(filter(None, texts), MEANING.get(name, name.replace("_", " ")))
    defaults = {algo: value_text(keywords(algo)[name].default) for algo in algos}
    if len(set(defaults.values())) == 1:
        return f"{text} (default {defaults[algos[0]]})"
    return f"{text} (default: {', '.join(f'{algo} {x}' for algo, x in defaults.items())})"


# ------------------------------------------------------------------------------------------------
# The parser

class Parser(argparse.ArgumentParser):
    """It tells an error in one line, and the first process alone prints."""

    def error(self, message):
        fail(message)

    def print_help(self, file=None):
        say(self.format_help().rstrip())


def build_parser(algos, about):
    """The parser for these algorithms; `about` is its description if there are no algorithms."""
    files = [inspect.getmodule(ALGORITHMS[name_of(algo)].run).__doc__ for algo in algos]
    parser = Parser("fedkd_minimal.py", description="\n\n".join(dict.fromkeys(files)) or about,
                    epilog=EPILOG, allow_abbrev=False, argument_default=argparse.SUPPRESS,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    common = parser.add_argument_group("every algorithm")
    for name, options, text in COMMON_FLAGS:
        default = DEFAULTS.get(name)
        text += "" if default is None else f" (default {value_text(default)})"
        add_flag(common, name, options, text)
    group = parser.add_argument_group(", ".join(algos) or "and those of --algo")
    for name in dict.fromkeys(name for algo in algos for name in keywords(algo)):
        with_flag = [algo for algo in algos if name in keywords(algo)]
        annotation = keywords(with_flag[0])[name].annotation
        add_flag(group, name, annotation, hyperparameter_help(name, with_flag))
    return parser


def own_settings(algo):
    """{name: value} of the hyperparameters in the name of a variant: fedsdd:R=4:local-epochs=1."""
    name, *words = algo.split(":")
    if not words:
        return {}
    if "" in words:
        fail(f"{algo}: a hyperparameter must follow each colon, as in fedsdd:R=4:K=2")
    own = parse(["--algo", name, *("--" + word for word in words)])
    for flag in own.keys() - keywords(name).keys() - {"algo"}:
        fail(f"{algo}: {flag_name(flag)} is not a hyperparameter of {name}; the algorithms of a "
             "command share all other flags")
    return {flag: value for flag, value in own.items() if flag != "algo"}


def parse(argv, about=""):
    """The flags in argv, {name: value}; a flag that was not given is not in it.

    With --help or --list it prints and ends the program; bad input ends it too: `fail`.
    """
    if "--list" in argv:
        print_names()
        raise SystemExit(0)
    first = Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    add_flag(first, "resume", FOLDER)
    add_flag(first, "rounds", int)
    add_flag(first, "device", {})
    add_flag(first, "save_model", FILE)
    known, others = first.parse_known_args(argv)
    if "resume" in known:
        if others:
            fail("--resume takes no other flags than --rounds, --device and --save-model, "
                 f"not {others[0]}")
        return vars(known)
    add_flag(first, "algo", NAMES | {"default": []})
    algos = first.parse_known_args(argv)[0].algo
    for algo in algos:
        if name_of(algo) not in ALGORITHMS:
            fail(f"unknown algorithm {algo!r}; there are {', '.join(ALGORITHMS)}")
    flags, unknown = build_parser(algos, about).parse_known_args(argv)
    if unknown:
        known = [f"{algo} has {' '.join(map(flag_name, keywords(algo)))}; " for algo in algos]
        fail(f"unknown flag {unknown[0]}; {''.join(known)}--help lists those of every algorithm")
    if not algos:
        fail(f"--algo is missing; there are {', '.join(ALGORITHMS)}")
    if "local_epochs" in flags and "local_steps" in flags:
        fail("--local-epochs and --local-steps exclude each other")
    if len(set(algos)) < len(algos):
        fail("--algo names an algorithm twice")
    return vars(flags)
