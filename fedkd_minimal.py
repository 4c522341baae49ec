"""Federated learning by knowledge distillation: flags -> federation -> algorithm -> log lines, metrics, checkpoint, summary.

    python fedkd_minimal.py --algo fedsdd --K 4 --R 2                     embedded data, under a minute on two CPU cores
    python fedkd_minimal.py --algo fedavg,fedsdd --seeds 0,1,2            side by side: mean and standard deviation
    python fedkd_minimal.py --algo fedsdd --dataset cifar10 --paper fedsdd --out runs/fedsdd
    python fedkd_minimal.py --resume runs/fedsdd                          goes on where it was stopped
    python fedkd_minimal.py --algo fedsdd --help                          what the algorithm is, and its flags
    python fedkd_minimal.py --list                                        algorithms, datasets, networks, partitions
    torchrun --nproc-per-node 2 fedkd_minimal.py --algo fedsdd            the same numbers, clients spread over processes

An algorithm's flags are the keyword-only arguments of its `run`: --local-epochs is `local_epochs`, --K is `K`.
"""
import argparse
import inspect
import itertools
import os
import sys
import time
import typing
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

import attacks
import data
import federation
import models
import runs
from algorithms import ALGORITHMS
from algorithms.common import run_clients, stream
from presets import DEFAULTS, PAPER, QUICK_START, RANGES
from report import describe, heading, rank, round_line, say, summary


# ---------------------------------------------------------------------------------------------------------------------
# The command line

def fail(message):
    """Bad input: one line, exit status 2."""
    if rank() == 0:
        print("fedkd_minimal.py: error:", *str(message).split(), file=sys.stderr)
    raise SystemExit(2)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        fail(message)


def keywords(algo):
    """The hyperparameters of an algorithm: its run's keyword-only arguments with an annotation, by name (`attack` has none)."""
    parameters = inspect.signature(ALGORITHMS[algo]).parameters
    return {name: p for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY and p.annotation is not p.empty}


def fact(algo, name, default=None):
    """What an algorithm's file says in capitals: PUBLIC, MIXED, COLUMNS, VALIDATION; a dict says it for each of its functions."""
    value = getattr(inspect.getmodule(ALGORITHMS[algo]), name, default)
    return value[ALGORITHMS[algo].__name__] if isinstance(value, dict) else value


def spelled(name):
    return "--" + name.replace("_", "-")


def number(kind, name, optional=False):
    """An argparse type: an int or a float inside the range that the name has everywhere; or "none", if it may be."""
    allowed, words = RANGES[name]

    def convert(text):
        if optional and text == "none":
            return None
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {'a whole number' if kind is int else 'a number'}") from None
        if not allowed(value):
            raise argparse.ArgumentTypeError(f"must be {words}, not {text}")
        return value
    return convert


def add_flag(parser, name, kind, help):
    """One flag from an annotation: int, float, bool, Literal[...], tuple[int or float, ...], or one of these | None."""
    optional = type(None) in typing.get_args(kind)
    kind = next((k for k in typing.get_args(kind) if k in (int, float) or typing.get_origin(k) is tuple), kind)
    if typing.get_origin(kind) is tuple:
        one = typing.get_args(kind)[0]
        parser.add_argument(spelled(name), type=numbers(one, name, optional), help=help,
                            metavar=f"{one.__name__.upper()},..." + ("|none" if optional else ""))
    elif kind is bool:
        parser.add_argument(spelled(name), action=argparse.BooleanOptionalAction, help=help)
    elif typing.get_origin(kind) is typing.Literal:
        parser.add_argument(spelled(name), choices=typing.get_args(kind), help=help)
    else:
        parser.add_argument(spelled(name), type=number(kind, name, optional), help=help,
                            metavar=kind.__name__.upper() + ("|none" if optional else ""))


def numbers(kind, name, optional=False):
    """An argparse type: a list of numbers with commas between them; or "none", if it may be."""
    convert = number(kind, name)
    return lambda text: None if optional and text == "none" else [convert(word) for word in text.split(",")]


def names(text):
    return text.split(",")


def seed_list(text):
    try:
        seeds = [int(word) for word in text.split(",")]
    except ValueError:
        seeds = [-1]
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError(f"must be different whole numbers >= 0 with commas between them, not {text!r}")
    return seeds


def build_parser(algos):
    """The parser for these algorithms: the flags that every run has, and the keywords of each algorithm's `run`."""
    about = "\n\n".join(inspect.getmodule(ALGORITHMS[algo]).__doc__ for algo in algos) or __doc__
    parser = Parser("fedkd_minimal.py", description=about, formatter_class=argparse.RawDescriptionHelpFormatter,
                    allow_abbrev=False, argument_default=argparse.SUPPRESS)
    every = parser.add_argument_group("every algorithm")
    every.add_argument("--algo", type=names, metavar="NAME[,NAME...]", help=", ".join(ALGORITHMS))
    every.add_argument("--dataset", help=f"{', '.join(data.DATASETS)}, a .npz file, or a folder of images (glyphs)")
    every.add_argument("--data-root", help="where torchvision's files are, or go (data)")
    every.add_argument("--paper", choices=PAPER, help="that paper's network, partition and hyperparameters")
    every.add_argument("--model", type=names, metavar="NAME[,NAME...]", help="client i takes network i mod len; see --list")
    every.add_argument("--server-model", metavar="NAME", help="the server's own network, where it has one")
    every.add_argument("--partition", choices=federation.PARTITIONS, help="who holds which samples (dirichlet_equal)")
    every.add_argument("--public", metavar="half|fifth|NAME|PATH", help="public images: of the training set, or another dataset")
    every.add_argument("--attack", choices=attacks.ATTACKS, help="malicious clients poison what they upload")
    for name, kind, text in [("clients", int, "all clients (20)"), ("alpha", float, "Dirichlet concentration (0.1)"),
                             ("per_class", int, "samples of each class per client, for few_per_class and by_subclass (3)"),
                             ("classes", tuple[int, ...] | None, "only these classes of the data set"),
                             ("joint", bool, "one output layer over the classes of a foreign public set and the task's"),
                             ("attackers", int, "malicious clients (1, for ofom 2)"),
                             ("attack_scale", float, "of paf and ofom, in standard deviations (10)"),
                             ("attack_z", float, "of lie, in standard deviations (the paper's formula)"),
                             ("comu", tuple[float, ...] | None, "accuracies until which the summary counts the bytes"),
                             ("public_size", int, "at most so many public images"),
                             ("validation", float, "share of the training images that the server keeps for validation"),
                             ("augment", bool, "students see crops and flips"),
                             ("amp", bool, "bfloat16 autocast in every forward pass"), ("threads", int, "CPU threads per process")]:
        add_flag(every, name, kind, text)
    every.add_argument("--device", help="cpu, cuda, cuda:1, ... (a GPU if there is one)")
    every.add_argument("--seeds", type=seed_list, metavar="INT[,INT...]", help="one run for each (0)")
    every.add_argument("--out", type=Path, metavar="DIR", help="keep config, metrics, timing and checkpoint there")
    every.add_argument("--resume", type=Path, metavar="DIR", help="go on with the run kept there; only --rounds may grow")
    every.add_argument("--list", action="store_true", help="print the names of algorithms, datasets, networks, partitions, papers")
    own = parser.add_argument_group(", ".join(algos) or "and those of --algo")
    for name in dict.fromkeys(itertools.chain.from_iterable(keywords(algo) for algo in algos)):
        owners = {algo: keywords(algo)[name] for algo in algos if name in keywords(algo)}
        default = ", ".join(dict.fromkeys(str(p.default) for p in owners.values()))
        add_flag(own, name, next(iter(owners.values())).annotation, f"default {default}")
    return parser


def parse(argv):
    """argv -> the explicit flags, a dict. What was not given is not in it."""
    first = Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    first.add_argument("--resume", type=Path)
    first.add_argument("--rounds", type=number(int, "rounds"))
    known, others = first.parse_known_args(argv)
    if "resume" in known:
        if others:
            fail(f"--resume takes no other flag but --rounds, not {others[0]}")
        return vars(known)
    first.add_argument("--algo", type=names, default=[])
    algos = first.parse_known_args(argv)[0].algo
    for algo in algos:
        if algo not in ALGORITHMS:
            fail(f"unknown algorithm {algo!r}; there are {', '.join(ALGORITHMS)}")
    given, unknown = build_parser(algos).parse_known_args(argv)
    given = vars(given)
    if unknown:
        own = "; ".join(f"{algo} has {' '.join(map(spelled, keywords(algo)))}" for algo in algos)
        fail(f"unknown flag {unknown[0]}" + (f"; {own}" if own else "") + "; --help lists those of every algorithm")
    if not algos:
        fail(f"--algo is missing; there are {', '.join(ALGORITHMS)}")
    if len(set(algos)) < len(algos):
        fail("--algo names an algorithm twice")
    return given


def needs_validation(algo, settings):
    """Does the algorithm look at a validation set with these settings? Its file names the keywords that do, unless they are off."""
    return any(settings[name] not in (False, None) for name in fact(algo, "VALIDATION", ()))


def configure(given):
    """Explicit flags over the paper's (or the embedded data's) over the defaults: a dict of all that decides the numbers."""
    algos = given["algo"]
    dataset = given.get("dataset", DEFAULTS["dataset"])
    preset = PAPER[given["paper"]] if "paper" in given else QUICK_START if dataset in ("glyphs", "glyphs-letters") else {}
    for algo in algos:
        if "paper" in given and algo not in preset:
            fail(f"--paper {given['paper']} has no {algo}; it has {', '.join(k for k in preset if k != 'data')}")
    usual = [DEFAULTS, preset.get("data", {}), *(preset.get(algo, {}).get("data", {}) for algo in algos), given]
    flags = {name: next(table[name] for table in reversed(usual) if name in table) for name in DEFAULTS}
    needs = {fact(algo, "PUBLIC") for algo in algos} - {"none"}
    if flags["public"] is None and needs:
        foreign = {"glyphs": "glyphs-letters", "glyphs-letters": "glyphs"}
        flags["public"] = "half" if "labelled" in needs else foreign.get(dataset, "fifth")
    is_foreign = flags["public"] is not None and flags["public"] not in federation.HELD_OUT
    if flags["joint"] is None:
        flags["joint"] = is_foreign and "joint" in needs
    labelled = [algo for algo in algos if fact(algo, "PUBLIC") in ("labelled", "joint")]
    if flags["joint"] and not is_foreign:
        fail("--joint needs a foreign public set: --public NAME or PATH")
    if labelled and is_foreign and not flags["joint"]:
        fail(f"{', '.join(labelled)}: the public images need labels of the task: --public half or fifth, not {flags['public']}")
    for name in flags["model"] + [flags["server_model"]]:
        if name not in models.NETWORKS:
            fail(f"unknown network {name!r}; there are {', '.join(models.NETWORKS)}")
    one_network = [algo for algo in algos if not fact(algo, "MIXED")]
    if len(set(flags["model"])) > 1 and one_network:
        fail(f"{', '.join(one_network)}: every client needs the same network, not {', '.join(flags['model'])}")
    lost = [name for name in ("attackers", "attack_scale", "attack_z") if name in given and flags["attack"] is None]
    if lost:
        fail(f"{spelled(lost[0])} means nothing without --attack")
    if flags["attack"] is not None:
        flags["attackers"] = flags["attackers"] or (2 if flags["attack"] == "ofom" else 1)
        flags["attack_scale"] = 10.0 if flags["attack_scale"] is None else flags["attack_scale"]
        attacks.check(flags["attack"], flags["clients"], flags["attackers"])
        for algo in algos:
            if "attack" not in inspect.signature(ALGORITHMS[algo]).parameters:
                able = [name for name, run in ALGORITHMS.items() if "attack" in inspect.signature(run).parameters]
                fail(f"--attack: {algo} has no uploads to poison; {', '.join(able)} have")
    settings = {algo: {name: given.get(name, preset.get(algo, {}).get(name, p.default)) for name, p in keywords(algo).items()}
                for algo in algos}
    if flags["validation"] is None and any(needs_validation(algo, settings[algo]) for algo in algos):
        flags["validation"] = 0.1
    return {"algo": algos, "seeds": given.get("seeds", [0]), "flags": flags, "settings": settings}


def accepted(config, folder):
    """The config read from `folder`, if the command line would accept all of it, one algorithm at a time; else ValueError."""
    try:
        for algo in config["algo"]:
            flags, settings, environment = config["flags"], config["settings"][algo], config["environment"]
            argv = ["--algo", algo]
            optional = {name: "none" if value is None else value for name, value in settings.items()}
            for name, value in {**flags, **optional, "seeds": config["seeds"], "device": environment["device"],
                                "threads": environment["threads"]}.items():
                if isinstance(value, bool):
                    argv.append(spelled(name) if value else spelled("no_" + name))
                elif value is not None:
                    argv.append(f"{spelled(name)}={','.join(map(str, value)) if isinstance(value, list) else value}")
            again = configure(parse(argv))
            same = (again["flags"], again["settings"][algo], again["seeds"]) == (flags, settings, config["seeds"])
            if not same or not isinstance(environment["torch"], str):
                raise KeyError(algo)
        return config
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"{folder / 'config.json'} is damaged, or not of this program") from None


# ---------------------------------------------------------------------------------------------------------------------
# Runs

def set_up(environment):
    """Threads, processes and the device, as the environment says. Raises ValueError if the device cannot be used."""
    torch.set_num_threads(environment["threads"])
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    try:
        device = torch.device(environment["device"])
        if environment["device"] == "cuda" and "LOCAL_RANK" in os.environ:
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % max(1, torch.cuda.device_count()))
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {environment['device']!r} cannot be used: {str(error).splitlines()[0]}") from None
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    return device


def start(algo, fed, state, config):
    """The algorithm's generator of (metrics, state), with no more public data than its file's PUBLIC allows."""
    seen = federation.seen_by(fact(algo, "PUBLIC"), fed)
    flags, attack = config["flags"], {}
    if flags["attack"] is not None:
        attack["attack"] = attacks.build(flags["attack"], partial(stream, fed.seed), len(fed.private), flags["attackers"],
                                         flags["attack_scale"], flags["attack_z"])
    return ALGORITHMS[algo](seen, state, **config["settings"][algo], **attack)


def run_one(algo, fed, config, folder, checkpoint):
    """One algorithm with one seed: a log line and, with a folder, a checkpoint per round; rows and timings grow by one each.

    checkpoint is (state, rows, timings): (None, [], []) at the start.
    """
    begun_with, rows, timings = checkpoint
    columns, rounds = fact(algo, "COLUMNS"), config["settings"][algo]["rounds"]
    if folder and rank() == 0:
        runs.write_config(folder, config)
        if begun_with:
            runs.rewrite(folder, rows, timings)
    say(f"\n{algo}, seed {fed.seed}" + (f": going on after round {begun_with['round']}" if rows else ""))
    statement = getattr(inspect.getmodule(ALGORITHMS[algo]), "statement", None)
    if statement:
        say(statement(fed, config["settings"][algo]))
    say(heading(columns))
    last = time.perf_counter()
    for metrics, state in start(algo, fed, begun_with, config):
        if metrics is None:                              # a checkpoint on the way to round 0: FedMD's transfer phase
            if folder and rank() == 0:
                runs.save(folder, config, state, rows, timings)
            continue
        spent, last = time.perf_counter() - last, time.perf_counter()
        t = state["round"]
        rows.append({"round": t, **{key: x for key, x in metrics.items() if not key.endswith("_seconds")}})
        timings.append({"round": t, "round_seconds": spent, **{key: x for key, x in metrics.items() if key.endswith("_seconds")}})
        if folder and rank() == 0:
            runs.save(folder, config, state, rows, timings)
        say(round_line(columns, metrics, t, rounds, spent))


def prepare(argv):
    """All that can be refused, before anything is written: raises ValueError or OSError with the one line to print."""
    given = parse(argv)
    processes = int(os.environ.get("WORLD_SIZE", 1))
    if "resume" in given:
        folder = given["resume"]
        config = runs.grown(accepted(runs.read_config(folder), folder), given.get("rounds"))
        environment = config["environment"]
        if environment["torch"] != torch.__version__:
            say(f"begun with torch {environment['torch']}, going on with {torch.__version__}: the last digits may differ")
        environment |= {"torch": torch.__version__, "processes": processes}
    else:
        folder, config = given.get("out"), configure(given)
        config["environment"] = environment = {
            "torch": torch.__version__, "processes": processes,
            "device": given.get("device", "cuda" if torch.cuda.is_available() else "cpu"),
            "threads": given.get("threads", 1 if processes > 1 else torch.get_num_threads())}
    pairs = list(itertools.product(config["seeds"], config["algo"]))
    tasks = []                                           # (algorithm, seed, config, folder or None) of every run
    for seed, algo in pairs:
        own_folder = folder if folder is None or len(pairs) == 1 else folder / f"{algo}-seed{seed}"
        tasks.append((algo, seed, runs.one_run(config, algo, seed), own_folder))
        for place in (folder, own_folder):
            if "resume" not in given and place and any((place / name).exists() for name in runs.FILES):
                fail(f"{place} already holds a run; --resume {place} goes on with it")
    device = set_up(environment)
    dataset, foreign = federation.load(config["flags"])
    splits = {seed: federation.split(config["flags"], dataset, seed) for seed in config["seeds"]}

    def build(seed):
        return federation.build(config["flags"], dataset, foreign, *splits[seed], seed, device)

    for algo, seed, own_config, own_folder in tasks:
        if "resume" in given:
            runs.restore(own_folder, own_config, device)
        elif seed == config["seeds"][0]:                 # an algorithm checks its hyperparameters before its first yield
            next(start(algo, build(seed), None, own_config))
    if folder and rank() == 0:
        runs.write_config(folder, config)
    defaults = {algo: {name: p.default for name, p in keywords(algo).items()} for algo in config["algo"]}
    describe(config, dataset, foreign, splits, defaults)
    return tasks, build, device


def main(argv):
    if "--list" in argv:
        say(f"algorithms  {', '.join(ALGORITHMS)}\ndatasets    {', '.join(data.DATASETS)}, FILE.npz, FOLDER\n"
            f"networks    {', '.join(models.NETWORKS)}\npartitions  {', '.join(federation.PARTITIONS)}\n"
            f"papers      {', '.join(PAPER)}")
        return 0
    try:
        tasks, build, device = prepare(argv)
    except (ValueError, OSError) as error:
        fail(error)
    results, status = {}, 0
    try:
        for algo, seed, config, folder in tasks:
            checkpoint = runs.restore(folder, config, device) if folder else (None, [], [])
            if dist.is_initialized():
                dist.barrier()                           # everyone has read the checkpoint before anyone replaces it
            results.setdefault(algo, []).append(checkpoint[1:])
            run_one(algo, build(seed), config, folder, checkpoint)
    except KeyboardInterrupt:
        status = 130
        whole = folder and (folder.parent if len(tasks) > 1 else folder)
        say("\nstopped" + (f"; every finished round is kept, and --resume {whole} goes on" if folder else ""))
    summary(results, tasks[0][2]["flags"]["comu"] or ())
    if dist.is_initialized():
        counts = [None] * dist.get_world_size()
        dist.all_gather_object(counts, run_clients.done)
        say(f"clients trained by each process: {' '.join(map(str, counts))}")
        dist.destroy_process_group()
    return status


if __name__ == "__main__":
    exit_status = main(sys.argv[1:])
    if "RANK" in os.environ:            # all is done and written: gloo's threads now and then abort Python's own way out
        sys.stdout.flush()
        os._exit(exit_status)
    sys.exit(exit_status)
