"""The command line: flags, the papers' presets and defaults become the settings of every run.

A flag is a field of a dataclass: of `Images`, `Training` or `Program` below, or of the `Config` in
an algorithm's file. Its type and default are the flag's, its comment is the flag's help. Which
numbers it takes is part of its type: see `checked` in federation.py.

Where several places have a value of a method, the last of these wins: `Config` and the networks
that the algorithm's file names; with --paper its `PAPER`, then what presets.py has for this paper;
the flag; a word of --algo such as fedsdd:R=1.
"""
import argparse
import difflib
import inspect
import re
import typing
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Literal, get_type_hints

import torch

import attacks
import models
from algorithms import ALGORITHMS
from data import readers
from data.load import DATASETS
from experiment.presets import PAPERS, PUBLIC_SETS
from experiment.processes import cpu_has_bfloat16, num_cores, say
from federation import Algorithm, Count, Natural, NonNegative, Positive, checked
from partition import PARTITIONS

Names = tuple[str, ...]
Few = Annotated[int, "[1, 1024]"]


@dataclass
class Images:
    """Who has which images: alike for all runs in a folder."""

    dataset: str = "glyphs"               # the task: a name of --list, a .npz file, or a folder
    data_root: str = "downloads"          # folder for torchvision's data sets
    train_size: Count | None = None       # at most this many training images, of each class a share
    test_size: Count | None = None        # at most this many test images, of each class a share
    image_size: Few | None = None         # resizes a folder's images to this height and width
    classes: tuple[Natural, ...] | None = None    # only these classes of the task
    clients: Count = 20                   # number of clients
    partition: str = "dirichlet_equal"    # split among the clients: a name of --list, or a .npz
    #                                       file of row numbers, as --out writes it
    split_seed: Natural | None = None         # decides who has which images, for all seeds (default:
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
    model: Names = ()                     # networks of the clients, assigned to them in turn
    server_model: str = ""                # network of the server, if it has its own (defaults: the
    #                                       paper's with --paper, otherwise the algorithm's)
    augment: bool = False                 # train on randomly cropped and flipped images
    amp: bool = False                     # bfloat16 in every forward pass
    lr_patience: Count | None = None      # rates fall to a tenth after more than this many rounds
    #                                       without a better validation accuracy
    attack: Literal[tuple(attacks.ATTACKS)] | None = None     # how some clients poison uploads
    attackers: Count | None = None        # malicious clients (default: 1, with ofom 2)
    attack_scale: NonNegative = 10.0      # strength of paf and ofom, in standard deviations
    attack_z: float | None = None    # strength of lie (default: the
    #                                       paper's formula)


@dataclass
class Program:
    """Which runs, where, and what becomes of them."""

    algo: Names = ()                      # algorithms on the same data; a colon adds one's
    #                                       hyperparameters, as in fedsdd:R=1,fedsdd:R=4:K=2
    seeds: tuple[Natural, ...] = (0,)         # one run for each
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


NETWORKS = ("model", "server_model")      # these may differ between the methods
# --public: the share that no client holds. With "half" the test set is halved as well.
HELD_OUT = {"half": 1 / 2, "half-train": 1 / 2, "fifth": 1 / 5}
EMBEDDED = {"glyphs": "glyphs-letters", "glyphs-letters": "glyphs"}      # public for each other


@dataclass
class Method:
    """A word of --algo, such as fedsdd:R=4."""

    label: str
    algorithm: Algorithm
    hyperparameters: dict    # {name: value} of the fields of its Config
    lacks: list[str]         # the settings that the command has flags for, and it has not
    networks: dict           # {"model": [names of the clients'], "server_model": the server's}
    threads: int             # while the server trains

    @property
    def cfg(self):
        """The hyperparameters as a Config. Raises ValueError for a value out of its range."""
        try:
            return self.algorithm.Config(**self.hyperparameters)
        except ValueError as error:
            raise ValueError(f"{self.algorithm.name}: {error}") from None


@dataclass
class Command:
    """What a command line asks for."""

    methods: list[Method]
    seeds: list[int]
    shared: dict             # {name: value} of Images and Training, without the networks
    program: dict            # {name: value} of Program


def read(argv, about=""):
    """The `Command` of the words of a command line. Raises ValueError for bad input.

    about    the description in the help without --algo
    --help and --list print and end the program.
    """
    algorithms = algorithms_in(argv)             # {word of --algo: `Algorithm`}
    tables = [Program, Images, Training, *(algorithm.Config for algorithm in algorithms.values())]
    found, unknown = parser_of(tables).parse_known_args(argv)
    given = vars(found)
    if given.get("help"):
        say(help_of([*dict.fromkeys(algorithms.values())], about))
        raise SystemExit(0)
    if given.get("list"):
        say(inventory())
        raise SystemExit(0)
    if not algorithms:
        raise ValueError(f"--algo is missing; there are {', '.join(ALGORITHMS)}")
    if unknown:
        flag = unknown[0].split("=")[0]
        if any(flag == flag_of(setting.name) for other in ALGORITHMS.values()
               for setting in fields(other.Config)):
            raise ValueError(f"{','.join(algorithms)} has no {flag}; others have")
        flags = [flag_of(field.name) for table in tables for field in fields(table)]
        raise ValueError(f"unknown {' '.join(unknown)}{suggestion(unknown[0], flags)}; --algo "
                         f"{','.join(algorithms)} --help lists the flags")
    program = merged(asdict(Program()), given)
    for name in ("algo", "seeds"):
        if len({*program[name]}) < len(program[name]):
            raise ValueError(f"--{name} has a word twice")
    if program["device"] is None:
        program["device"] = "cuda" if torch.cuda.is_available() else "cpu"
    methods = [method_of(word, algorithm, given) for word, algorithm in algorithms.items()]
    command = Command(methods, [*program["seeds"]], shared_by(methods, given), program)
    check(command, given)
    return command


def algorithms_in(argv):
    """{word of --algo: `Algorithm`}. They are read first: their flags are the parser's, too."""
    found, _ = parser_of([Program]).parse_known_args(argv)
    return {word: named(word.split(":")[0]) for word in vars(found).get("algo", [])}


def named(name):
    if name not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {name!r}{suggestion(name.lower(), ALGORITHMS)}; there "
                         f"are {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


def suggestion(word, words):
    close = difflib.get_close_matches(word, words, 1)
    return f", perhaps {close[0]}" if close else ""


def inventory():
    return (f"algorithms  {', '.join(ALGORITHMS)}\n"
            f"datasets    {', '.join(DATASETS)}, FILE.npz, FOLDER\n"
            f"networks    {', '.join(models.NETWORKS)}\n"
            f"partitions  {', '.join(PARTITIONS)}, FILE.npz\n"
            f"papers      {', '.join(PAPERS)}")


def help_of(algorithms, about):
    """The headers of these algorithms' files, then all flags."""
    files = dict.fromkeys(inspect.getmodule(algorithm.run).__doc__ for algorithm in algorithms)
    flags = [f"{algorithm.name}\n{flags_of(algorithm.Config)}" for algorithm in algorithms]
    flags += [f"{table.__doc__}\n{flags_of(table)}" for table in (Images, Training, Program)]
    return "\n\n".join([*files, *flags] if algorithms else [about, *flags])


def flags_of(table):
    """A line for each flag of a dataclass: its name, its default, its comment in the source."""
    defaults = {field.name: text_of(field.default) for field in fields(table)}
    lines = []
    for line in inspect.getsource(table).splitlines():
        field = re.match(r"    (\w+): [^#]*(?:# (.*))?", line)
        if field and field[1] in defaults:
            name, meaning = field[1], field[2] or ""
            lines.append(f"  {flag_of(name):<22} {defaults[name]:<16} {meaning}".rstrip())
        elif more := re.match(r"    # +(.*)", line):     # the comment goes on
            lines.append(" " * 42 + more[1])
    return "\n".join(lines)


def flag_of(name):
    return "--" + name.replace("_", "-")


def flag_with(name, value):
    """A setting as it is typed on the command line."""
    if isinstance(value, bool):
        return flag_of(name if value else f"no_{name}")
    return f"{flag_of(name)} {text_of(value)}"


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise ValueError(message)


def parser_of(tables):
    """The parser of the flags of these dataclasses; what is not given is not in its result."""
    parser = Parser("fedkd_minimal.py", add_help=False, allow_abbrev=False,
                    argument_default=argparse.SUPPRESS)
    kinds = {name: kind for table in tables for name, kind in get_type_hints(table).items()}
    for name, kind in kinds.items():
        names = ("--help", "-h") if name == "help" else (flag_of(name),)
        parser.add_argument(*names, **options_of(kind))
    return parser


def options_of(kind):
    """argparse's options for a str, bool, Literal, int, float, tuple[X, ...] or None."""
    optional = type(None) in typing.get_args(kind)
    kind = typing.get_args(kind)[0] if optional else kind                    # X | None
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    choices, several = None, typing.get_origin(kind) is tuple
    if typing.get_origin(kind) is Literal:
        choices, kind = [*typing.get_args(kind), *[None] * optional], str
    kind = typing.get_args(kind)[0] if several else kind

    def convert(word):
        try:
            return kind(word.strip())
        except ValueError:
            noun = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{word!r} is not {noun}") from None

    def convert_all(text):
        if optional and text == "none":
            return None
        if several and "" in map(str.strip, text.split(",")):
            raise argparse.ArgumentTypeError(f"{text!r} has an empty word: write a,b without blank")
        return [*map(convert, text.split(","))] if several else convert(text)

    return {"type": convert_all, "choices": choices}


def text_of(value):
    """A value as it is typed, with on or off for a bool."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def method_of(label, algorithm, given):
    """The `Method` of a word of --algo: Config, paper, flags, the word; a later one wins."""
    config = asdict(algorithm.Config())
    if given.get("paper"):
        config |= algorithm.paper                        # PAPER in its file
    parts = [f"--{part}" for part in label.split(":")[1:]]
    word, unknown = parser_of([algorithm.Config]).parse_known_args(parts)
    if unknown:
        raise ValueError(f"{label}: {algorithm.name} has no {unknown[0]}; it has "
                         f"{', '.join(map(flag_of, config))}")
    preset = PAPERS.get(given.get("paper"), {})
    of_method = preset.get(algorithm.name)
    if of_method is None and preset:
        available = ", ".join(name for name in preset if name in ALGORITHMS)
        raise ValueError(f"--paper {given['paper']} has no {label}; it has {available}")
    networks = {name: getattr(algorithm, name) for name in NETWORKS}
    values = merged(networks | config, preset.get("data", {}), of_method or {}, given, vars(word))
    flags_of_all = {field.name for table in (Images, Training, Program) for field in fields(table)}
    if algorithm.server == "none":
        flags_of_all.remove("server_model")
    if algorithm.public != "joint":
        flags_of_all.remove("joint")
    may_be_large = any(given.get(name) for name in ("paper", *NETWORKS))     # the networks
    return Method(
        label, algorithm, hyperparameters={name: values[name] for name in config},
        lacks=sorted(given.keys() - flags_of_all - config.keys()),
        networks={"model": [*values["model"]], "server_model": values["server_model"]},
        threads=given.get("threads") or (num_cores() if may_be_large else 1))


def merged(defaults, *layers):
    """The defaults, with the values that the layers have for them; a later layer wins.

    Whoever gives epochs does not want the steps of an earlier layer, which would win over them.
    """
    values = dict(defaults)
    for layer in layers:
        if "local_epochs" in layer and "local_steps" in values:
            values["local_steps"] = None
        values |= {name: value for name, value in layer.items() if name in values}
    return values


def shared_by(methods, given):
    """{name: value} of Images and Training; what depends on the methods is decided here."""
    paper_data = PAPERS[given["paper"]]["data"] if given.get("paper") else {}
    found = merged(asdict(Images()) | asdict(Training()), paper_data, given)
    found = {name: value for name, value in found.items() if name not in NETWORKS}
    if is_split_file(found["partition"]):
        rows = readers.split(found["partition"])
        if "clients" not in given:
            found["clients"] = sum(name.startswith("client_") for name in rows)
        if found["split_seed"] is None:                      # of what the file does not have
            found["split_seed"] = 0
    uses = {method.algorithm.public for method in methods} - {"none"}
    if found["public"] is None and uses and "public" not in given:       # not --public none
        found["public"] = default_public(found, uses)
    if found["joint"] is None:
        found["joint"] = is_foreign(found["public"]) and any(
            method.algorithm.public == "joint"
            and "labels" in method.algorithm.needs(method.cfg) for method in methods)
    needed = any("validation" in method.algorithm.needs(method.cfg) for method in methods)
    needed = needed or found["lr_patience"] is not None
    if found["validation"] is None and needed and "validation" not in given:
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


def is_split_file(partition):
    """True if --partition is a file of row numbers, not a rule."""
    return partition.lower().endswith(".npz")


def is_foreign(public):
    """True if the public images come from another data set than the clients' images."""
    return public is not None and public not in HELD_OUT


def can_be_attacked(algorithm):
    """True if its `run` takes an attack: clients upload something that can be poisoned."""
    return "attack" in inspect.signature(algorithm.run).parameters


def check(command, given):
    """Raises ValueError for a number out of its range, and for flags that do not go together.

    Hyperparameters are checked by their algorithm: see `build.check`.
    """
    values = command.shared | command.program
    for table in (Images, Training, Program):
        for name, kind in get_type_hints(table, include_extras=True).items():
            if name in values:                           # not the networks
                checked(flag_of(name), values[name], kind)
    shared, public = command.shared, command.shared["public"]
    if shared["partition"] not in PARTITIONS and not is_split_file(shared["partition"]):
        raise ValueError(f"--partition {shared['partition']}: choose from {', '.join(PARTITIONS)}, "
                         "or a .npz file")
    served = ("none", "unlabeled", "joint") if shared["joint"] else ("none", "unlabeled")
    for method in command.methods:
        algorithm = method.algorithm
        is_unknown = public not in (*HELD_OUT, *DATASETS) and "public" not in given
        if "public" in algorithm.needs(method.cfg) and (public is None or is_unknown):
            papers = f" (the paper's: {public})" if public else ""
            raise ValueError(f"{method.label} needs public images for {shared['dataset']}: "
                             f"--public fifth, half, NAME or PATH{papers}")
        needs_labels = "labels" in algorithm.needs(method.cfg)
        if is_foreign(public) and needs_labels and algorithm.public not in served:
            raise ValueError(f"{method.label}: the public images need labels of the task: "
                             f"--public half or fifth, not {public}")
        if shared["attack"] and not can_be_attacked(algorithm):
            others = ", ".join(name for name, x in ALGORITHMS.items() if can_be_attacked(x))
            raise ValueError(f"--attack: {method.label} takes none; these algorithms do: "
                             f"{others}")
        if given.get("lr_patience") is not None and not algorithm.plateau:
            others = ", ".join(name for name, x in ALGORITHMS.items() if x.plateau)
            raise ValueError(f"--lr-patience: {method.label} keeps its learning rates; they may "
                             f"fall in {others}")
        if (shared["lr_patience"] is not None and algorithm.plateau
                and shared["validation"] is None):
            raise ValueError(f"--lr-patience: {method.label}'s rates fall by the accuracy on "
                             "validation images: --validation 0.1")
    if shared["joint"] and not is_foreign(public):
        raise ValueError("--joint needs a foreign public set: --public NAME or PATH")
    if shared["attack"]:
        attacks.check(shared["attack"], shared["clients"], shared["attackers"])
    if shared["amp"] and command.program["device"] == "cpu" and not cpu_has_bfloat16():
        raise ValueError("--amp: this CPU has no bfloat16 arithmetic")
