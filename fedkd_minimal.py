"""Federated learning by knowledge distillation: from flags to log lines, metrics and checkpoints.

    python fedkd_minimal.py --algo fedsdd --K 4 --R 2            embedded data, under a minute
    python fedkd_minimal.py --algo fedavg,fedsdd --seeds 0,1,2   side by side, with mean and std
    python fedkd_minimal.py --algo fedsdd:R=1,fedsdd:R=4         each with its own hyperparameters
    python fedkd_minimal.py --algo fedsdd --dataset cifar10 --paper fedsdd --out runs/fedsdd
    python fedkd_minimal.py --resume runs/fedsdd                 continue a run that was stopped
    python fedkd_minimal.py --algo fedsdd --help                 the algorithm and its flags
    python fedkd_minimal.py --list                               algorithms, data sets, networks
    torchrun --nproc-per-node 2 fedkd_minimal.py --algo fedsdd   clients spread over processes

An algorithm's flags are the keyword-only arguments of its `run`: --local-epochs is `local_epochs`.
"""
import contextlib
import dataclasses
import itertools
import os
import signal
import sys
import time
from functools import partial

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))     # Ctrl-C while torch is imported

import torch
import torch.distributed as dist

import attacks
import data
import federation
import models
import runs
import saved_model
from algorithms import ALGORITHMS
from algorithms.common import Data, run_clients, stream, timed
from command_line import module_constant, module_of, parse, run_of
from configuration import configure, expected, validated_config
from plateau import with_plateau
from presets import PAPER
from report import (describe, duration, fail, heading, rank, remaining, round_line, say,
                    summary)


def set_up(environment):
    """Sets threads and the device; returns the device.

    Raises ValueError if the device cannot be used.
    """
    torch.set_num_threads(environment["threads"])
    try:
        device = torch.device(environment["device"])
        if environment["device"] == "cuda" and "LOCAL_RANK" in os.environ:
            number = int(os.environ["LOCAL_RANK"]) % max(1, torch.cuda.device_count())
            device = torch.device("cuda", number)
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {environment['device']!r} cannot be used ({reason}): "
                         "choose another with --device, such as --device cpu") from None
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    return device


def start(algo, fed, state, config):
    """The algorithm's generator of (metrics, state).

    The algorithm gets only the public data that PUBLIC in its file allows.
    """
    flags, keyword = config["flags"], {}
    if flags["attack"] is not None:
        keyword["attack"] = attacks.build(
            flags["attack"], partial(stream, fed.seed), len(fed.private), flags["attackers"],
            flags["attack_scale"], flags["attack_z"])
    run, rates = run_of(algo), module_constant(algo, "PLATEAU")
    if rates and flags["lr_patience"] is not None:
        run = with_plateau(run, module_of(algo).evaluate, rates, flags["lr_patience"])
    fed = federation.restrict_public(fed, module_constant(algo, "PUBLIC"))
    return run(fed, state, **config["settings"][algo], **keyword)


def tell_duration(done, clients, seconds):
    """Prints once, after 5 seconds, how long all networks of the round's local training take."""
    if seconds > 5:
        total = seconds / done * clients / int(os.environ.get("WORLD_SIZE", 1))
        if total > 15:
            say(f"{clients} networks train for about {duration(total)}; a smaller --model or fewer "
                "--local-epochs takes less")
        run_clients.progress = None


def run_one(algo, fed, config, folder, checkpoint):
    """Runs one algorithm with one seed; prints a line and keeps a checkpoint for each round.

    Returns the state after the last round.

    folder       where the run is saved, or None
    checkpoint   (state, rows, timings); (None, [], []) for a new run. Each round appends its
                 metrics to rows, and its wall-clock seconds to timings
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
    run_clients.progress = tell_duration
    last, state = time.perf_counter(), resumed_state
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
        left = remaining([row["round_seconds"] for row in timings[1:]], settings["rounds"] - t)
        say(round_line(columns, metrics, t, settings["rounds"], round_seconds, left))
    return state


def with_small_tests(fed):
    """The federation with two images in each test set, for checks that need no accuracy."""
    def few(part):
        return part and Data(part.images[:2], part.labels[:2])

    return dataclasses.replace(fed, test=few(fed.test), public_test=few(fed.public_test))


def environment_of(given, processes):
    """Environment of a new run: torch's version, processes, device, threads of each process."""
    return {"torch": torch.__version__, "processes": processes,
            "device": given.get("device", "cuda" if torch.cuda.is_available() else "cpu"),
            "threads": given.get("threads", 1 if processes > 1 else torch.get_num_threads())}


def hold(folders, locks, is_new):
    """Makes the folders of runs if needed, and locks them until `locks` is closed.

    Only the first process locks. All processes raise ValueError if another process uses a folder.
    If is_new, they also raise it if a folder already holds a run.
    """
    problem = [None]
    if rank() == 0:
        try:
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
                locks.enter_context(runs.lock(folder))
                if is_new:
                    runs.check_free(folder)
        except (ValueError, OSError) as error:
            problem = [str(error)]
    if dist.is_initialized():
        dist.broadcast_object_list(problem)
    if problem[0]:
        raise ValueError(problem[0])


def settings_of(given, locks):
    """(the run's folder or None, its config); --resume reads the config, else the flags give it."""
    processes = int(os.environ.get("WORLD_SIZE", 1))
    if "resume" not in given:
        return given.get("out"), configure(given) | {
            "environment": environment_of(given, processes)}
    folder = given["resume"]
    if folder.is_dir():
        hold([folder], locks, is_new=False)
    config = validated_config(runs.read_config(folder), folder)
    config = runs.with_more_rounds(config, given.get("rounds"))
    environment = config["environment"]
    now = {"torch": torch.__version__, "device": given.get("device", environment["device"])}
    for name, value in now.items():
        if environment[name] != value:
            say(f"the run was started with {name} {environment[name]} and continues with "
                f"{value}: the last digits may differ")
    environment |= now | {"processes": processes}
    return folder, config


def prepare(argv, locks):
    """(tasks, build(seed) -> federation, device, write_model(state)), after all checks.

    tasks is a list of (algorithm, seed, config, folder or None). Only config.json is written, at
    the end; `locks` (an ExitStack) keeps other runs out of the folders. Raises ValueError or
    OSError with a one-line message.
    """
    given = parse(argv, __doc__)
    is_new, model_file = "resume" not in given, given.get("save_model")
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    folder, config = settings_of(given, locks)
    places = {pair: folder for pair in itertools.product(config["seeds"], config["algo"])}
    if folder and len(places) > 1:
        places = {(seed, algo): folder / f"{algo.replace(':', '-')}-seed{seed}"
                  for seed, algo in places}
    folders = dict.fromkeys([folder, *places.values()]) if folder else {}
    for place in folders if is_new else ():
        runs.check_free(place)
    if model_file and len(places) > 1:
        raise ValueError("--save-model is for one algorithm and one seed")
    device = set_up(config["environment"])
    dataset, foreign = federation.load(config["flags"])
    fingerprints = federation.fingerprints(config["flags"], dataset, foreign)
    if not is_new:
        runs.check_data(config, fingerprints, folder)
    config["data"] = fingerprints
    splits = {seed: federation.split(config["flags"], dataset, seed) for seed in config["seeds"]}

    def build(seed):
        return federation.build(config["flags"], dataset, foreign, *splits[seed], seed, device)

    def write_model(state):
        if model_file and rank() == 0:
            names = saved_model.save(model_file, state, config["flags"], dataset, foreign)
            say(f"{model_file} holds the models: {', '.join(names)}")

    tasks = [(algo, seed, runs.one_run(config, algo, seed), place)
             for (seed, algo), place in places.items()]
    for algo, seed, run_config, place in tasks:
        if not is_new:
            runs.restore(place, run_config, device)
        elif seed == config["seeds"][0]:     # an algorithm checks its input before it yields
            next(start(algo, with_small_tests(build(seed)), None, run_config))
    hold([place for place in folders if is_new or place != folder], locks, is_new)
    if folder and rank() == 0:
        runs.write_config(folder, config)
    describe(config, expected(config), foreign, splits)
    return tasks, build, device, write_model


def main(argv):
    """Runs a command. Returns its exit status, or raises SystemExit: 2 means bad input."""
    with contextlib.ExitStack() as locks:
        return run_all(argv, locks)


def run_all(argv, locks):
    if "--list" in argv:
        say(f"algorithms  {', '.join(ALGORITHMS)}\n"
            f"datasets    {', '.join(data.DATASETS)}, FILE.npz, FOLDER\n"
            f"networks    {', '.join(models.NETWORKS)}\n"
            f"partitions  {', '.join(federation.PARTITIONS)}\n"
            f"papers      {', '.join(PAPER)}")
        return 0
    try:
        tasks, build, device, write_model = prepare(argv, locks)
    except (ValueError, OSError) as error:
        fail(error)
    except KeyboardInterrupt:
        say("\nstopped before the first round")
        return 130
    results, status, folder = {}, 0, tasks[0][3]
    whole_run = folder.parent if folder and len(tasks) > 1 else folder
    how_to_go_on = f"every finished round is kept; --resume {whole_run} continues"
    try:
        for algo, seed, config, folder in tasks:
            checkpoint = runs.restore(folder, config, device) if folder else (None, [], [])
            if dist.is_initialized():
                dist.barrier()    # every process has read the checkpoint before one replaces it
            results.setdefault(algo, []).append(checkpoint[1:])
            state = run_one(algo, build(seed), config, folder, checkpoint)
    except KeyboardInterrupt:
        status = 130
        say("\nstopped")
        if folder:
            say(how_to_go_on)
    except OSError as error:
        if not folder:
            raise
        fail(f"{whole_run}: {error}; {how_to_go_on}", 1)       # a full disk, for example
    summary(results, tasks[0][2]["flags"])
    if status == 0:
        try:
            write_model(state)
        except (ValueError, OSError) as error:       # an unknown kind of state, a full disk
            fail(f"--save-model: {error}", 1)
    if dist.is_initialized() and status == 0:
        counts = [None] * dist.get_world_size()
        dist.all_gather_object(counts, run_clients.done)
        say(f"clients trained by each process: {' '.join(map(str, counts))}")
        dist.destroy_process_group()
    return status


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        exit_status = main(sys.argv[1:])
    except SystemExit as stop:
        exit_status = stop.code
    except KeyboardInterrupt:
        exit_status = 130
    if "RANK" in os.environ:     # gloo's threads sometimes abort Python's own exit
        sys.stdout.flush()
        os._exit(exit_status)
    sys.exit(exit_status)
