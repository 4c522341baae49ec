"""The settings of a command: which there are, their defaults, and what depends on several of them.

A flag is a field of a dataclass: of one of the four below, or of the `Config` in an algorithm's
file. Its type and default are the flag's, its comment is the flag's help (see flags.py). All runs
of a folder have the same `DataConfig`, those of one label also the same `Training`, `Networks` and
`Config`; `Program` says which runs there are, and where they compute.

Where several places have a value of a method, the last of these wins: `Config` and the networks
that the algorithm's file names; with --paper its `PAPER`, then what presets.py has for this paper;
the flag; a word of --algo such as fedsdd:R=1.
"""
import inspect
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch

import attacks
import models
from algorithms import ALGORITHMS
from data import readers
from data.images import BadData
from data.load import DATASETS
from data.split import is_foreign, is_split_file
from experiment.common import BadInput, refuses
from experiment.flags import field_names, filled, flag_of, help_of, suggestion, typed
from experiment.presets import PAPERS
from experiment.processes import cpu_has_bfloat16, num_cores
from experiment.terminal import say
from federation import Algorithm, Count, Natural, NonNegative, Positive
from partition import PARTITIONS

# An installed copy comes last on Python's path: a user's own file of the same name would win.
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
class DataConfig:
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


TABLES = (DataConfig, Training, Networks, Program)


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
    data_cfg: DataConfig
    training: Training
    methods: list[Method]
    rows: dict | None = None     # of --partition FILE, see `readers.split`; None: a rule
    note: str = ""               # a sentence on a default that changes the clients' images


def read(argv, about=""):
    """The `Command` of a command line. --help and --list print a text and end the program.

    about    the description in the help without --algo
    """
    words = typed(argv, [Program])[0].get("algo", ())        # their Configs have flags, too
    algorithms = {word: algorithm_of(word) for word in words}
    tables = [*TABLES, *(algorithm.Config for algorithm in algorithms.values())]
    given, unknown = typed(argv, tables)
    if given.get("help") or given.get("list"):
        say(help_text(algorithms.values(), about) if given.get("help") else inventory())
        raise SystemExit(0)
    if not words:
        raise BadInput(f"--algo is missing; there are {', '.join(ALGORITHMS)}")
    if unknown and not unknown[0].startswith("-"):
        raise BadInput(f"{' '.join(unknown)} belongs to no flag: write several as a,b")
    if unknown:
        near = suggestion(unknown[0], sorted(map(flag_of, field_names(*tables))))
        algo = ",".join(words)
        raise BadInput(f"{algo} has no {' '.join(unknown)}{near}; --algo {algo} --help lists the "
                       "flags")
    for name in ("algo", "seeds"):
        if len({*given.get(name, ())}) < len(given.get(name, ())):
            raise BadInput(f"--{name} has a word twice")
    preset = PAPERS.get(given.get("paper"))              # a wrong name is refused with `Training`
    shared = preset.shared if preset else {}
    methods = [method_of(word, algorithm, given, preset) for word, algorithm in algorithms.items()]
    command = Command(filled(Program, given), filled(DataConfig, shared | given),
                      filled(Training, shared | given), methods)
    decide(command, given)
    check(command, given)
    return command


# ------------------------------------------------------------------------------- names, and --help

def algorithm_of(word):
    """The `Algorithm` of a word of --algo."""
    name = word.split(":")[0]
    if name not in ALGORITHMS:
        raise BadInput(f"unknown algorithm {name!r}{suggestion(name.lower(), ALGORITHMS)}; there "
                       f"are {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


def inventory():
    """What --list prints."""
    return (f"algorithms  {', '.join(ALGORITHMS)}\n"
            f"datasets    {', '.join(DATASETS)}, FILE.npz, FOLDER\n"
            f"networks    {', '.join(models.NETWORKS)}\n"
            f"partitions  {', '.join(PARTITIONS)}, FILE.npz\n"
            f"papers      {', '.join(PAPERS)}")


def help_text(algorithms, about):
    """The headers of these algorithms' files, or `about`; then the flags."""
    headers = dict.fromkeys(inspect.getmodule(algorithm.run).__doc__ for algorithm in algorithms)
    configs = dict.fromkeys(table for algorithm in algorithms
                            for table in reversed(algorithm.Config.__mro__) if is_dataclass(table))
    return "\n\n".join([*(headers or [about]), help_of([*configs, *TABLES])])


# ----------------------------------------------------------------------------- settings of a method

def method_of(word, algorithm, given, preset):
    """The `Method` of a word of --algo.

    given     {setting: value} of the flags that were typed
    preset    the `Preset` of --paper; None without it
    """
    values = {"model": algorithm.model, "server_model": algorithm.server_model}
    if preset:
        if algorithm.name not in preset.methods:
            raise BadInput(f"--paper {given['paper']} has no {word}; it has "
                           f"{', '.join(preset.methods)}")
        values |= algorithm.paper | preset.shared | preset.methods[algorithm.name]
    for layer in (given, settings_in(word, algorithm)):
        if "local_epochs" in layer:          # who types epochs does not want the steps of a preset
            values["local_steps"] = None
        values |= layer
    has_chosen_networks = any(given.get(name) for name in ("paper", "model", "server_model"))
    threads = given.get("threads") or (num_cores() if has_chosen_networks else 1)
    return Method(word, algorithm, filled(algorithm.Config, values), filled(Networks, values),
                  threads, ignored_by(algorithm, given))


def settings_in(word, algorithm):
    """{setting: value} of the hyperparameters in a word of --algo, such as fedsdd:R=4."""
    found, unknown = typed([f"--{part}" for part in word.split(":")[1:]], [algorithm.Config])
    if unknown:
        raise BadInput(f"{word}: {algorithm.name} has no {unknown[0]}; --algo {algorithm.name} "
                       "--help lists what it has")
    return found


def ignored_by(algorithm, given):
    """The names of the flags that were typed and that this algorithm does not have."""
    used = field_names(*TABLES, algorithm.Config)
    if algorithm.server == "none":
        used.remove("server_model")
    if algorithm.public != "joint":
        used.remove("joint")
    return sorted(given.keys() - used)


# ---------------------------------------------------------- settings that depend on several of them

def decide(command, given):
    """Gives settings that were not `given` the values that depend on the methods or on a file."""
    data_cfg, training = command.data_cfg, command.training
    if command.program.device is None:
        command.program.device = "cuda" if torch.cuda.is_available() else "cpu"
    if data_cfg.public is None and "public" not in given:      # given as none it stays None
        decide_public(command)
    if data_cfg.joint is None:
        data_cfg.joint = is_foreign(data_cfg) and any(
            method.algorithm.public == "joint" and "labels" in needs_of(method)
            for method in command.methods)
    is_needed = training.lr_patience is not None or any(
        "validation" in needs_of(method) for method in command.methods)
    if is_needed and data_cfg.validation is None and "validation" not in given:
        data_cfg.validation = 0.1
    if is_split_file(data_cfg):
        with refuses(BadData, OSError):
            command.rows = readers.split(data_cfg.partition)
        if "clients" not in given:
            data_cfg.clients = sum(name.startswith("client_") for name in command.rows)
        if data_cfg.split_seed is None:                        # of what the file does not have
            data_cfg.split_seed = 0
    if training.attack and training.attackers is None:
        training.attackers = 2 if training.attack == "ofom" else 1


def needs_of(method):
    """What it cannot do without: a set of "public", "labels" (of public images), "validation"."""
    return method.algorithm.needs(method.cfg)


# The embedded data sets: each may be public for the other one.
EMBEDDED = {"glyphs": "glyphs-letters", "glyphs-letters": "glyphs"}


def decide_public(command):
    """Chooses the public images without --public.

    They stay None if no method sees any; with --paper also if the paper's are not known for the
    task, or not among the program's data sets.
    """
    data_cfg, paper = command.data_cfg, command.training.paper
    uses = {method.algorithm.public for method in command.methods}
    if uses == {"none"}:
        return
    if "labeled" in uses:                                # labels of the task, as in FedGEMS
        data_cfg.public = "half"
        names = ", ".join(method.label for method in command.methods
                          if method.algorithm.public == "labeled")
        command.note = (f"{names}: public images need the labels of the task, so half of the "
                        "training and of the test images are public, and the clients of all "
                        "methods share the other half")
    elif public_set_of(paper, data_cfg.dataset) in DATASETS:
        data_cfg.public = public_set_of(paper, data_cfg.dataset)
    elif data_cfg.dataset in EMBEDDED and (paper or "joint" in uses):      # as FedMD: another task
        data_cfg.public = EMBEDDED[data_cfg.dataset]
    elif not paper:
        data_cfg.public = "fifth"


def public_set_of(paper, dataset):
    """The name of a paper's public data set for the task `dataset`, or None."""
    return PAPERS[paper].public_sets.get(dataset) if paper else None


def check(command, given):
    """Raises BadInput for settings that do not go together. What an algorithm needs beyond, it
    checks itself: see `build.check`."""
    data_cfg, training = command.data_cfg, command.training
    if data_cfg.partition not in PARTITIONS and not is_split_file(data_cfg):
        raise BadInput(f"--partition {data_cfg.partition}: choose from {', '.join(PARTITIONS)}, "
                       "or a .npz file")
    for method in command.methods:
        check_public(method, data_cfg, training.paper)
        check_training(method, data_cfg, training, given)
    if data_cfg.joint and not is_foreign(data_cfg):
        raise BadInput("--joint needs a foreign public set: --public NAME or PATH")
    if training.attack:
        with refuses(ValueError):
            attacks.check(training.attack, data_cfg.clients, training.attackers)
    if training.amp and command.program.device == "cpu" and not cpu_has_bfloat16():
        raise BadInput("--amp: this CPU has no bfloat16 arithmetic")


def check_public(method, data_cfg, paper):
    """Raises BadInput if a method cannot do with the public images."""
    needs = needs_of(method)
    if "public" in needs and data_cfg.public is None:
        wanted = public_set_of(paper, data_cfg.dataset)
        of_paper = f" (the paper's: {wanted})" if wanted else ""
        raise BadInput(f"{method.label} needs public images for {data_cfg.dataset}: --public "
                       f"fifth, half, NAME or PATH{of_paper}")
    is_joint = data_cfg.joint and method.algorithm.public == "joint"
    if "labels" in needs and is_foreign(data_cfg) and not is_joint:
        raise BadInput(f"{method.label}: the public images need labels of the task: --public half "
                       f"or fifth, not {data_cfg.public}")


def check_training(method, data_cfg, training, given):
    """Raises BadInput if a method cannot be attacked, or its learning rates cannot fall."""
    algorithm, label = method.algorithm, method.label
    if training.attack and "attack" not in inspect.signature(algorithm.run).parameters:
        raise BadInput(f"--attack: {label} has no uploads that an attack replaces")
    if given.get("lr_patience") and not algorithm.plateau:   # a paper's is for those that can
        raise BadInput(f"--lr-patience: the learning rates of {label} do not fall")
    if training.lr_patience is not None and algorithm.plateau and data_cfg.validation is None:
        raise BadInput(f"--lr-patience: {label}'s rates fall by the accuracy on validation "
                       "images: --validation 0.1")
