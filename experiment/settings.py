"""The command line: flags, the papers' presets and defaults become the settings of every run.

A flag is a field of a dataclass: of one of the four below, or of the `Config` in an algorithm's
file. Its type and default are the flag's, its comment is the flag's help. Which numbers it takes is
part of its type: see `checked` in federation.py. All runs of a folder have the same `Images`, those
of one label also the same `Training`, `Networks` and `Config`; `Program` decides no number.

Where several places have a value of a method, the last of these wins: `Config` and the networks
that the algorithm's file names; with --paper its `PAPER`, then what presets.py has for this paper;
the flag; a word of --algo such as fedsdd:R=1.
"""
import argparse
import difflib
import inspect
import typing
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, get_type_hints

import torch

import attacks
import models
from algorithms import ALGORITHMS
from data import readers
from data.images import BadData
from data.load import DATASETS
from data.split import is_foreign, is_split_file
from experiment.common import BadInput, refuses
from experiment.presets import EMBEDDED, PAPERS, PUBLIC_SETS
from experiment.processes import cpu_has_bfloat16, num_cores
from federation import Algorithm, Count, Natural, NonNegative, Positive, checked
from partition import PARTITIONS

for module in (attacks, models):
    if not Path(module.__file__).samefile(Path(__file__).parents[1] / f"{module.__name__}.py"):
        raise ImportError(f"{module.__file__} hides this project's file of that name: rename it")

Names = tuple[str, ...]
Few = Annotated[int, "[1, 1024]"]


@dataclass
class Program:
    """Which runs, where, and what becomes of them."""

    algo: Names = ()                      # algorithms on the same data; a colon adds one's
    #                                       hyperparameters, as in fedsdd:R=1,fedsdd:R=4:K=2
    seeds: tuple[Natural, ...] = (0,)      # one run for each
    out: str | None = None                # folder of the runs: the same command goes on, a longer
    #                                       one adds seeds, algorithms, rounds (default: none)
    device: str | None = None             # cpu, cuda, cuda:1, ... (default: a GPU if there is one)
    processes: Few | None = None          # that compute together (default: the cores, at most 8;
    #                                       1 on a GPU and outside Linux)
    threads: Few | None = None            # while the server trains (default: the cores with
    #                                       --paper, --model or --server-model, otherwise 1)
    describe: bool = False                # print all settings, and who has which classes, and end
    list: bool = False                    # print algorithms, data sets, networks, ..., and end
    help: bool = False                    # this text; with --algo NAME, NAME's own flags


@dataclass
class Images:
    """Who has which images: alike for all runs in a folder."""

    dataset: str = "glyphs"               # the task: a name of --list, a .npz file, or a folder
    data_root: str = "downloads"          # folder for torchvision's data sets
    train_size: Count | None = None       # at most this many training images, of each class a share
    test_size: Count | None = None        # at most this many test images, of each class a share
    image_size: Few | None = None         # resizes a folder's images to this height and width
    classes: tuple[Natural, ...] | None = None    # only these of the task
    clients: Count = 20                   # number of clients
    partition: str = "dirichlet_equal"    # split among the clients: a name of --list, or a .npz
    #                                       file of row numbers, as --out writes it
    split_seed: Natural | None = None     # decides who has which images, for all seeds (default:
    #                                       each seed its own; of a .npz file 0)
    alpha: Positive = 0.5                 # of Dirichlet partitions; smaller is more heterogeneous
    per_class: Count = 3                  # images of a class, for few_per_class and by_subclass
    public: str | None = None             # half, half-train or fifth of the training images, which
    #                                       are then no client's, or another data set (default: half
    #                                       if labels of the task are needed, otherwise fifth; with
    #                                       --paper the paper's; for FedMD letters for digits)
    joint: bool | None = None             # FedMD: one output layer for public classes and task
    #                                       (default, if the public images are another data set)
    public_size: Count | None = None      # at most this many public images
    validation: Annotated[float, "(0, 1)"] | None = None     # share of the training images, but
    #                                       the public ones, that the server holds for validation
    #                                       (default: 0.1 if an algorithm needs them)


@dataclass
class Training:
    """What else the methods of a command share."""

    paper: Literal[tuple(PAPERS)] | None = None    # this paper's networks, data, hyperparameters
    augment: bool = False                 # train on randomly cropped and flipped images
    amp: bool = False                     # bfloat16 in every forward pass
    lr_patience: Count | None = None      # rates fall to a tenth after more than this many rounds
    #                                       without a better validation accuracy
    attack: Literal[tuple(attacks.ATTACKS)] | None = None     # how some clients poison uploads
    attackers: Count | None = None        # malicious clients (default: 1, with ofom 2)
    attack_scale: NonNegative = 10.0      # strength of paf and ofom, in standard deviations
    attack_z: float | None = None         # strength of lie (default: the paper's formula)


@dataclass
class Networks:
    """A method's networks (defaults: the paper's with --paper, otherwise the algorithm's)."""

    model: Names = ()                     # networks of the clients, assigned to them in turn
    server_model: str = ""                # network of the server, if it has its own


TABLES = (Images, Training, Networks, Program)


def client_network(model, i):
    """The name of client i's network; model: the names of --model."""
    return model[i % len(model)]


@dataclass
class Method:
    """A word of --algo, such as fedsdd:R=4."""

    label: str
    algorithm: Algorithm
    cfg: object              # its hyperparameters: a Config of the algorithm's file
    networks: Networks
    threads: int             # while the server trains
    ignored: list[str]       # settings that were typed and that it does not have


@dataclass
class Command:
    """What a command line asks for."""

    program: Program
    images: Images
    training: Training
    methods: list[Method]
    rows: dict | None = None     # of --partition FILE, see `readers.split`; None: a rule
    note: str = ""               # a sentence on a default that changes the clients' images


def read(argv, about=""):
    """The `Command` of the words of a command line; of --help and --list the text to print.

    about    the description in the help without --algo
    """
    words = names_in(argv)                       # their Configs have flags, too
    algorithms = {word: algorithm_of(word) for word in words}
    tables = [*TABLES, *(algorithm.Config for algorithm in algorithms.values())]
    found, unknown = parser_of(tables).parse_known_args(argv)
    given = vars(found)                          # {setting: value} of what was typed
    if given.get("help"):
        return help_text([*dict.fromkeys(algorithms.values())], about)
    if given.get("list"):
        return inventory()
    if not algorithms:
        raise BadInput(f"--algo is missing; there are {', '.join(ALGORITHMS)}")
    if unknown:
        refuse_unknown(unknown, words, tables)
    preset = PAPERS.get(given.get("paper"), {})
    program = filled(Program, given)
    for name, values in (("algo", program.algo), ("seeds", program.seeds)):
        if len({*values}) < len(values):
            raise BadInput(f"--{name} has a word twice")
    program.device = program.device or ("cuda" if torch.cuda.is_available() else "cpu")
    methods = [method_of(word, algorithm, given, preset) for word, algorithm in algorithms.items()]
    command = Command(program, filled(Images, preset.get("shared", {}), given),
                      filled(Training, preset.get("shared", {}), given), methods)
    decide(command, given)
    check(command, given)
    return command


# ----------------------------------------------------------------- from words to values of settings

class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise BadInput(message)


def parser_of(tables):
    """The parser of the flags of these dataclasses; its result has only what was typed."""
    parser = Parser("fedkd_minimal.py", add_help=False, allow_abbrev=False,
                    argument_default=argparse.SUPPRESS)
    kinds = {name: kind for table in tables for name, kind in get_type_hints(table).items()}
    for name, kind in kinds.items():
        names = ("--help", "-h") if name == "help" else (flag_of(name),)
        parser.add_argument(*names, **options_of(kind))
    return parser


def options_of(kind):
    """argparse's options for a str, bool, Literal, int, float, tuple[X, ...] or None."""
    inside = typing.get_args(kind)
    if kind is bool or bool in inside:
        return {"action": argparse.BooleanOptionalAction}
    if type(None) in inside:                                                 # X | None
        options = options_of(inside[0])
        typed, choices = options["type"], options["choices"]
        return {"type": lambda text: None if text == "none" else typed(text),
                "choices": choices and [*choices, None]}
    if typing.get_origin(kind) is Literal:
        return {"type": str, "choices": inside}
    if typing.get_origin(kind) is tuple:
        return {"type": partial(convert_all, inside[0]), "choices": None}
    return {"type": partial(convert, kind), "choices": None}


def convert(kind, word):
    try:
        return kind(word.strip())
    except ValueError:
        noun = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"{word!r} is not {noun}") from None


def convert_all(kind, text):
    words = text.split(",")
    if "" in map(str.strip, words):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty word: write a,b without blank")
    return tuple(convert(kind, word) for word in words)


def filled(table, *layers):
    """An instance of a dataclass: its defaults, and the values {name: value} that the layers have
    for it; a later layer wins. Numbers out of their range are refused."""
    values = {name: value for layer in layers for name, value in layer.items()
              if name in field_names(table)}
    with refuses(ValueError):
        found = table(**values)
        for name, kind in get_type_hints(table, include_extras=True).items():
            checked(flag_of(name), getattr(found, name), kind)
    return found


def field_names(*tables):
    return {field.name for table in tables for field in fields(table)}


def flag_of(name):
    return "--" + name.replace("_", "-")


def names_in(argv):
    """The words of --algo in a command line, whatever else is in it."""
    found, _ = parser_of([Program]).parse_known_args(argv)
    return vars(found).get("algo", ())


def algorithm_of(word):
    """The `Algorithm` of a word of --algo."""
    name = word.split(":")[0]
    if name not in ALGORITHMS:
        raise BadInput(f"unknown algorithm {name!r}{suggestion(name.lower(), ALGORITHMS)}; there "
                       f"are {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


def refuse_unknown(unknown, words, tables):
    """Raises BadInput for what the parser does not know of a command; words: those of --algo."""
    flag = unknown[0].split("=")[0]
    others = map(flag_of, field_names(*(other.Config for other in ALGORITHMS.values())))
    if flag in others:
        raise BadInput(f"{','.join(words)} has no {flag}; others have")
    near = suggestion(unknown[0], sorted(map(flag_of, field_names(*tables))))
    raise BadInput(f"unknown {' '.join(unknown)}{near}; --algo {','.join(words)} --help lists the "
                   "flags")


def suggestion(word, words):
    close = difflib.get_close_matches(word, words, 1)
    return f", perhaps {close[0]}" if close else ""


# ---------------------------------------------------------------------------------- --help, --list

def inventory():
    return (f"algorithms  {', '.join(ALGORITHMS)}\n"
            f"datasets    {', '.join(DATASETS)}, FILE.npz, FOLDER\n"
            f"networks    {', '.join(models.NETWORKS)}\n"
            f"partitions  {', '.join(PARTITIONS)}, FILE.npz\n"
            f"papers      {', '.join(PAPERS)}")


def help_text(algorithms, about):
    """The headers of these algorithms' files, or `about`; then the dataclasses of all flags."""
    headers = dict.fromkeys(inspect.getmodule(algorithm.run).__doc__ for algorithm in algorithms)
    tables = dict.fromkeys(table for algorithm in algorithms
                           for table in reversed(algorithm.Config.__mro__) if is_dataclass(table))
    return "\n\n".join([
        *(headers or [about]),
        "Each field below is a flag: `local_epochs: Count = 5` is --local-epochs, by default 5;"
        "\n`amp: bool` is --amp and --no-amp; several values are written a,b without a blank.",
        *(inspect.getsource(table).rstrip() for table in [*tables, *TABLES])])


# ------------------------------------------------------------------- what depends on several flags

def method_of(label, algorithm, given, preset):
    """The `Method` of a word of --algo.

    given     {setting: value} of the flags that were typed
    preset    the paper's part of PAPERS; {} without --paper
    """
    if preset and algorithm.name not in preset:
        available = ", ".join(name for name in preset if name in ALGORITHMS)
        raise BadInput(f"--paper {given['paper']} has no {label}; it has {available}")
    shared, own_preset = preset.get("shared", {}), preset.get(algorithm.name, {})
    cfg = filled(algorithm.Config, algorithm.paper if preset else {}, own_preset,
                 epochs_alone(given), epochs_alone(settings_in(label, algorithm)))
    networks = filled(Networks, {"model": algorithm.model, "server_model": algorithm.server_model},
                      shared, own_preset, given)
    has_large_networks = any(given.get(name) for name in ("paper", "model", "server_model"))
    threads = given.get("threads") or (num_cores() if has_large_networks else 1)
    has = field_names(*TABLES, algorithm.Config)
    has -= {"server_model"} if algorithm.server == "none" else set()
    has -= {"joint"} if algorithm.public != "joint" else set()
    return Method(label, algorithm, cfg, networks, threads, sorted(given.keys() - has))


def settings_in(label, algorithm):
    """{setting: value} of the hyperparameters in a word of --algo, such as fedsdd:R=4."""
    found, unknown = parser_of([algorithm.Config]).parse_known_args(
        [f"--{part}" for part in label.split(":")[1:]])
    if unknown:
        raise BadInput(f"{label}: {algorithm.name} has no {unknown[0]}; it has "
                       f"{', '.join(flag_of(field.name) for field in fields(algorithm.Config))}")
    return vars(found)


def epochs_alone(typed):
    """What was typed; who types epochs does not want the steps of a preset, which would win."""
    return {"local_steps": None, **typed} if "local_epochs" in typed else typed


def decide(command, given):
    """Gives settings that were not `given` the values that depend on the methods or on a file."""
    images, training = command.images, command.training
    if images.public is None and "public" not in given:      # given as none it stays None
        decide_public(command)
    needs = {method.label: method.algorithm.needs(method.cfg) for method in command.methods}
    if images.joint is None:
        images.joint = is_foreign(images) and any(
            method.algorithm.public == "joint" and "labels" in needs[method.label]
            for method in command.methods)
    if images.validation is None and "validation" not in given:
        if training.lr_patience is not None or "validation" in set().union(*needs.values()):
            images.validation = 0.1
    if is_split_file(images):
        with refuses(BadData, OSError):
            command.rows = readers.split(images.partition)
        if "clients" not in given:
            images.clients = sum(name.startswith("client_") for name in command.rows)
        if images.split_seed is None:                        # of what the file does not have
            images.split_seed = 0
    if training.attack and training.attackers is None:
        training.attackers = 2 if training.attack == "ofom" else 1


def decide_public(command):
    """The public images without --public. None: nobody needs any, or the paper's are not known."""
    images, paper = command.images, command.training.paper
    uses = {method.algorithm.public for method in command.methods} - {"none"}
    if not uses:
        return
    if "labeled" in uses:                                # labels of the task, as in FedGEMS
        images.public = "half"
        names = ", ".join(method.label for method in command.methods
                          if method.algorithm.public == "labeled")
        command.note = (f"{names}: public images need the labels of the task, so half of the "
                        "training and of the test images are public, and the clients of all "
                        "methods share the other half")
    elif images.dataset in PUBLIC_SETS.get(paper, {}):
        images.public = PUBLIC_SETS[paper][images.dataset]
    elif images.dataset in EMBEDDED and (paper or "joint" in uses):      # as FedMD: another task
        images.public = EMBEDDED[images.dataset]
    elif not paper:
        images.public = "fifth"


def check(command, given):
    """Raises BadInput for settings that do not go together. What an algorithm needs beyond, it
    checks itself: see `build.check`."""
    images, training = command.images, command.training
    if images.partition not in PARTITIONS and not is_split_file(images):
        raise BadInput(f"--partition {images.partition}: choose from {', '.join(PARTITIONS)}, "
                       "or a .npz file")
    for method in command.methods:
        check_method(method, images, training, given)
    if images.joint and not is_foreign(images):
        raise BadInput("--joint needs a foreign public set: --public NAME or PATH")
    if training.attack:
        with refuses(ValueError):
            attacks.check(training.attack, images.clients, training.attackers)
    if training.amp and command.program.device == "cpu" and not cpu_has_bfloat16():
        raise BadInput("--amp: this CPU has no bfloat16 arithmetic")


def check_method(method, images, training, given):
    """Raises BadInput if a method cannot do with the settings that all methods share."""
    algorithm, label = method.algorithm, method.label
    needs, public = algorithm.needs(method.cfg), images.public
    is_unknown = is_foreign(images) and public not in DATASETS and "public" not in given
    if "public" in needs and (public is None or is_unknown):
        papers = f" (the paper's: {public})" if public else ""
        raise BadInput(f"{label} needs public images for {images.dataset}: --public fifth, half, "
                       f"NAME or PATH{papers}")
    is_joint = images.joint and algorithm.public == "joint"
    if "labels" in needs and is_foreign(images) and not is_joint:
        raise BadInput(f"{label}: the public images need labels of the task: --public half or "
                       f"fifth, not {public}")
    if training.attack and "attack" not in inspect.signature(algorithm.run).parameters:
        raise BadInput(f"--attack: {label} has no uploads that an attack replaces")
    if "lr_patience" in given and not algorithm.plateau:     # a paper's is for those that can
        raise BadInput(f"--lr-patience: the learning rates of {label} do not fall")
    if training.lr_patience is not None and algorithm.plateau and images.validation is None:
        raise BadInput(f"--lr-patience: {label}'s rates fall by the accuracy on validation "
                       "images: --validation 0.1")
