"""Federated learning by knowledge distillation: from flags to log lines, metrics and checkpoints.

    python fedkd_minimal.py --algo fedsdd --K 4 --R 2            embedded data, under a minute
    python fedkd_minimal.py --algo fedavg,fedsdd --seeds 0,1,2   side by side, with mean and std
    python fedkd_minimal.py --algo fedsdd --dataset cifar10 --paper fedsdd --out runs/fedsdd
    python fedkd_minimal.py --resume runs/fedsdd                 continue a run that was stopped
    python fedkd_minimal.py --algo fedsdd --help                 the algorithm and its flags
    python fedkd_minimal.py --list                               algorithms, data sets, networks
    torchrun --nproc-per-node 2 fedkd_minimal.py --algo fedsdd   clients spread over processes

An algorithm's flags are the keyword-only arguments of its `run`: --local-epochs is `local_epochs`.
"""
import inspect
import itertools
import os
import sys
import time
from functools import partial

import torch
import torch.distributed as dist

import attacks
import data
import federation
import models
import runs
from algorithms import ALGORITHMS
from algorithms.common import run_clients, stream, timed
from command_line import fail, flag_name, keywords, module_constant, module_of, parse
from plateau import with_plateau
from presets import DEFAULTS, PAPER, QUICK_START
from report import describe, heading, rank, round_line, say, summary

EMBEDDED = {"glyphs": "glyphs-letters", "glyphs-letters": "glyphs"}   # {data set: its public set}


# ------------------------------------------------------------------------------------------------
# From the flags that were given to a config: explicit flags over the preset over the defaults

def configure(given):
    """The config of a run: all flags and hyperparameters, which decide its numbers."""
    algos, preset = given["algo"], preset_of(given)
    flags = complete_flags(given, preset)
    for problem in problems(given, preset, flags):
        fail(problem)
    settings = {algo: {name: given.get(name, preset.get(algo, {}).get(name, parameter.default))
                       for name, parameter in keywords(algo).items()} for algo in algos}
    needs_validation = [*map(uses_validation, algos, settings.values()),
                        flags["lr_patience"] is not None]
    if flags["validation"] is None and any(needs_validation):
        flags["validation"] = 0.1
    return {"algo": algos, "seeds": given.get("seeds", [0]), "flags": flags, "settings": settings}


def preset_of(given):
    """The table of --paper; without it, on the embedded data, the quick start's."""
    if "paper" in given:
        return PAPER[given["paper"]]
    return QUICK_START if given.get("dataset", DEFAULTS["dataset"]) in EMBEDDED else {}


def complete_flags(given, preset):
    """The federation's flags; those whose default depends on others are filled in here."""
    algos, flags = given["algo"], dict(DEFAULTS)
    for table in [preset, *(preset.get(algo, {}) for algo in algos)]:
        flags |= table.get("data", {})
    flags |= {name: value for name, value in given.items() if name in DEFAULTS}
    public_uses = {module_constant(algo, "PUBLIC") for algo in algos} - {"none"}
    if flags["public"] is None and public_uses:
        is_labelled = "labelled" in public_uses
        flags["public"] = "half" if is_labelled else EMBEDDED.get(flags["dataset"], "fifth")
    if flags["joint"] is None:
        flags["joint"] = federation.has_foreign_public(flags) and "joint" in public_uses
    if flags["attack"] is not None and flags["attackers"] is None:
        flags["attackers"] = 2 if flags["attack"] == "ofom" else 1
    if flags["attack"] is not None and flags["attack_scale"] is None:
        flags["attack_scale"] = 10.0
    return flags


def uses_validation(algo, settings):
    """True if one of the keywords in the file's VALIDATION is on."""
    names = module_constant(algo, "VALIDATION", ())
    return any(settings[name] not in (False, None) for name in names)


def problems(given, preset, flags):
    """Yields a one-line message for each check that the flags fail, in the order of the checks."""
    algos, foreign = given["algo"], federation.has_foreign_public(flags)
    for algo in algos:
        if "paper" in given and algo not in preset:
            available = ", ".join(name for name in preset if name in ALGORITHMS)
            yield f"--paper {given['paper']} has no {algo}; it has {available}"

    if flags["joint"] and not foreign:
        yield "--joint needs a foreign public set: --public NAME or PATH"
    labelled = [algo for algo in algos if module_constant(algo, "PUBLIC") in ("labelled", "joint")]
    if labelled and foreign and not flags["joint"]:
        yield (f"{', '.join(labelled)}: the public images need labels of the task: "
               f"--public half or fifth, not {flags['public']}")

    for name in [*flags["model"], flags["server_model"]]:
        if name not in models.NETWORKS:
            yield f"unknown network {name!r}; there are {', '.join(models.NETWORKS)}"
    one_network = [algo for algo in algos if not module_constant(algo, "MIXED")]
    if one_network and len(set(flags["model"])) > 1:
        yield (f"{', '.join(one_network)}: every client needs the same network, "
               f"not {', '.join(flags['model'])}")

    kept = [algo for algo in algos if not module_constant(algo, "PLATEAU")]
    if kept and flags["lr_patience"] is not None:
        falling = ", ".join(algo for algo in ALGORITHMS if module_constant(algo, "PLATEAU"))
        yield f"--lr-patience: {kept[0]} keeps its learning rates; they may fall in {falling}"

    for name in ("attackers", "attack_scale", "attack_z"):
        if name in given and flags["attack"] is None:
            yield f"{flag_name(name)} has no effect without --attack"
    if flags["attack"] is not None:
        attacks.check(flags["attack"], flags["clients"], flags["attackers"])   # raises ValueError
        attackable = [name for name, run in ALGORITHMS.items()
                      if "attack" in inspect.signature(run).parameters]
        for algo in algos:
            if algo not in attackable:
                yield (f"--attack: {algo} has no uploads to poison; "
                       f"these algorithms have: {', '.join(attackable)}")

    if "seeds" in given and len(set(given["seeds"])) < len(given["seeds"]):
        yield "--seeds names a seed twice"


def validated_config(config, folder):
    """The config read from `folder` if the command line would produce it too, else ValueError."""
    try:
        flags, environment = config["flags"], config["environment"]
        for algo in config["algo"]:
            settings = config["settings"][algo]
            words = {**flags, **{name: "none" if value is None else value
                                 for name, value in settings.items()},
                     "seeds": config["seeds"], "device": environment["device"],
                     "threads": environment["threads"]}
            argv = ["--algo", algo]
            for name, value in words.items():
                if isinstance(value, bool):
                    argv.append(flag_name(name if value else "no_" + name))
                elif value is not None:
                    text = ",".join(map(str, value)) if isinstance(value, list) else value
                    argv.append(f"{flag_name(name)}={text}")
            produced = configure(parse(argv))
            found = produced["flags"], produced["settings"][algo], produced["seeds"]
            if found != (flags, settings, config["seeds"]):
                raise KeyError(algo)
        if not config["algo"] or not isinstance(environment["torch"], str):
            raise KeyError("torch")
        return config
    except (KeyError, TypeError, AttributeError):
        path = folder / "config.json"
        raise ValueError(f"{path} is damaged, or not from this program") from None


# ------------------------------------------------------------------------------------------------
# Runs

def set_up(environment):
    """Sets threads, processes and the device; returns the device.

    Raises ValueError if the device cannot be used.
    """
    torch.set_num_threads(environment["threads"])
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    try:
        device = torch.device(environment["device"])
        if environment["device"] == "cuda" and "LOCAL_RANK" in os.environ:
            number = int(os.environ["LOCAL_RANK"]) % max(1, torch.cuda.device_count())
            device = torch.device("cuda", number)
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {environment['device']!r} cannot be used: {reason}") from None
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    return device


def start(algo, fed, state, config):
    """The algorithm's generator of (metrics, state), with the public data that its file allows."""
    flags, keyword = config["flags"], {}
    if flags["attack"] is not None:
        keyword["attack"] = attacks.build(
            flags["attack"], partial(stream, fed.seed), len(fed.private), flags["attackers"],
            flags["attack_scale"], flags["attack_z"])
    run = ALGORITHMS[algo]
    if flags["lr_patience"] is not None:
        run = with_plateau(run, module_of(algo).evaluate, module_constant(algo, "PLATEAU"),
                           flags["lr_patience"])
    fed = federation.restrict_public(fed, module_constant(algo, "PUBLIC"))
    return run(fed, state, **config["settings"][algo], **keyword)


def run_one(algo, fed, config, folder, checkpoint):
    """Runs one algorithm with one seed; prints a line and keeps a checkpoint for each round.

    folder       where the run is kept, or None
    checkpoint   (state, rows, timings), (None, [], []) at the start; a round adds a row to each
                 of the lists: its metrics to rows, its wall-clock seconds to timings
    """
    resumed_state, rows, timings = checkpoint
    columns, settings = module_constant(algo, "COLUMNS"), config["settings"][algo]

    def keep(state):
        if folder and rank() == 0:
            runs.save(folder, config, state, rows, timings)

    if folder and rank() == 0:
        runs.write_config(folder, config)
        if resumed_state:
            runs.rewrite(folder, rows, timings)
    resumed = f": resumed after round {resumed_state['round']}" if rows else ""
    say(f"\n{algo}, seed {fed.seed}{resumed}")
    announcement = getattr(module_of(algo), "announcement", None)
    if announcement:
        say(announcement(fed, settings))
    say(heading(columns))
    timed.seconds.clear()
    last = time.perf_counter()
    for metrics, state in start(algo, fed, resumed_state, config):
        if metrics is None:                              # a checkpoint of a phase before round 0
            keep(state)
            continue
        round_seconds, last = time.perf_counter() - last, time.perf_counter()
        t = state["round"]
        seconds = {f"{name}_seconds": x for name, x in timed.seconds.items()}
        seconds |= {key: x for key, x in metrics.items() if key.endswith("_seconds")}
        timed.seconds.clear()
        rows.append({"round": t} | {key: x for key, x in metrics.items() if key not in seconds})
        timings.append({"round": t, "round_seconds": round_seconds} | seconds)
        keep(state)
        say(round_line(columns, metrics, t, settings["rounds"], round_seconds))


def environment_of(given, processes):
    """Where a new run runs: torch's version, processes, device and threads of each process."""
    return {"torch": torch.__version__, "processes": processes,
            "device": given.get("device", "cuda" if torch.cuda.is_available() else "cpu"),
            "threads": given.get("threads", 1 if processes > 1 else torch.get_num_threads())}


def prepare(argv):
    """(tasks, build(seed) -> federation, device), after all checks and before any training.

    Only config.json is written, at the end. Raises ValueError or OSError with a one-line message.
    """
    given = parse(argv, __doc__)
    processes = int(os.environ.get("WORLD_SIZE", 1))
    if "resume" in given:
        folder = given["resume"]
        config = validated_config(runs.read_config(folder), folder)
        config = runs.with_more_rounds(config, given.get("rounds"))
        environment = config["environment"]
        if environment["torch"] != torch.__version__:
            say(f"the run was started with torch {environment['torch']} and continues with "
                f"{torch.__version__}: the last digits may differ")
        environment |= {"torch": torch.__version__, "processes": processes}
    else:
        folder, config = given.get("out"), configure(given)
        config["environment"] = environment_of(given, processes)
    pairs = list(itertools.product(config["seeds"], config["algo"]))
    tasks = []                                           # (algorithm, seed, config, folder or None)
    for seed, algo in pairs:
        is_alone = folder is None or len(pairs) == 1
        run_folder = folder if is_alone else folder / f"{algo}-seed{seed}"
        tasks.append((algo, seed, runs.one_run(config, algo, seed), run_folder))
        for place in (folder, run_folder):
            if "resume" not in given and place and any((place / x).exists() for x in runs.FILES):
                fail(f"{place} already holds a run; --resume {place} continues it")
    device = set_up(config["environment"])
    dataset, foreign = federation.load(config["flags"])
    splits = {seed: federation.split(config["flags"], dataset, seed) for seed in config["seeds"]}

    def build(seed):
        return federation.build(config["flags"], dataset, foreign, *splits[seed], seed, device)

    for algo, seed, run_config, run_folder in tasks:
        if "resume" in given:
            runs.restore(run_folder, run_config, device)
        elif seed == config["seeds"][0]:     # the first yield comes after an algorithm's checks
            next(start(algo, build(seed), None, run_config))
    if folder and rank() == 0:
        runs.write_config(folder, config)
    defaults = {algo: {name: parameter.default for name, parameter in keywords(algo).items()}
                for algo in config["algo"]}
    describe(config, dataset, foreign, splits, defaults)
    return tasks, build, device


def main(argv):
    if "--list" in argv:
        say(f"algorithms  {', '.join(ALGORITHMS)}\n"
            f"datasets    {', '.join(data.DATASETS)}, FILE.npz, FOLDER\n"
            f"networks    {', '.join(models.NETWORKS)}\n"
            f"partitions  {', '.join(federation.PARTITIONS)}\n"
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
                dist.barrier()    # every process has read the checkpoint before one replaces it
            results.setdefault(algo, []).append(checkpoint[1:])
            run_one(algo, build(seed), config, folder, checkpoint)
    except KeyboardInterrupt:
        status = 130
        say("\nstopped")
        if folder:
            whole_run = folder.parent if len(tasks) > 1 else folder
            say(f"every finished round is kept; --resume {whole_run} continues")
    summary(results, tasks[0][2]["flags"]["comu"] or ())
    if dist.is_initialized():
        counts = [None] * dist.get_world_size()
        dist.all_gather_object(counts, run_clients.done)
        say(f"clients trained by each process: {' '.join(map(str, counts))}")
        dist.destroy_process_group()
    return status


if __name__ == "__main__":
    exit_status = main(sys.argv[1:])
    if "RANK" in os.environ:     # gloo's threads sometimes abort Python's own exit
        sys.stdout.flush()
        os._exit(exit_status)
    sys.exit(exit_status)
