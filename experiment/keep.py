"""The runs of a command on disk: config.json, checkpoint.pt, metrics.jsonl, timing.jsonl of each.

The checkpoint holds the state after a round, the rows of all rounds so far, and the config that
they belong to. After each round it is replaced in one step, then the .jsonl files, which are
written from its rows. So a run that is killed at any moment can continue after its last finished
round, and no row is lost or doubled. Nothing is locked: two commands that resume one folder compute
the same rows and states, and each file is one of theirs as a whole.
"""
import io
import json
import math
import os
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import torch

from algorithms import Algorithm
from experiment.flags import value_text
from experiment.processes import fail, from_first, rank, say

FILES = ("config.json", "checkpoint.pt", "metrics.jsonl", "timing.jsonl")
MAY_MOVE = ("dataset", "public", "data_root")    # the data's fingerprints must stay


@dataclass
class Run:
    """An algorithm with one seed: its rounds so far, and the folder that keeps them."""

    label: str                   # the word of --algo
    algorithm: Algorithm
    seed: int
    settings: dict               # the hyperparameters: the keywords of the algorithm's `run`
    networks: dict               # {"model": [names of the clients'], "server_model": the server's}
    scores: dict                 # {accuracy metric: whose accuracy it is}
    folder: Path | None          # None: nothing is kept
    config: dict | None = None   # what its numbers depend on, and "argv", "scores" for its readers
    state: dict | None = None    # after the last finished round; None before the first
    rows: list = field(default_factory=list)         # the metrics of each round so far
    timings: list = field(default_factory=list)      # and its seconds
    clock: float = 0.0           # when the last round ended


def command(folder):
    """(argv, labels, seeds) of the command whose runs this folder holds.

    Raises ValueError if it holds none.
    """
    path = Path(folder) / "config.json"
    try:
        config = json.loads(path.read_text())
        return config["argv"], config["algo"], config["seeds"]
    except OSError:
        raise ValueError(f"{folder} holds no run: it has no readable config.json") from None
    except (ValueError, LookupError, TypeError):
        raise ValueError(f"{path} is damaged, or is not from this program") from None


def runs_of(plan):
    """The `Run` of each seed and algorithm, in the order in which they are made.

    Each has a folder: the plan's, or one inside it for each if there are several.
    """
    runs, several = [], len(plan.seeds) * len(plan.algorithms) > 1
    for seed in plan.seeds:
        for label, algorithm in plan.algorithms.items():
            folder = plan.folder
            if folder and several:
                folder = folder / f"{label.replace(':', '-')}-seed{seed}"
            runs.append(Run(label, algorithm, seed, plan.settings[label], plan.networks[label],
                            plan.scores(label), folder))
    return runs


def config_of(plan, fingerprints, labels, seeds):
    """What config.json holds of a command, or of one of its runs."""
    return json.loads(dumps({
        "argv": plan.argv, "algo": labels, "seeds": seeds, "flags": plan.flags,
        "networks": {label: plan.networks[label] for label in labels},
        "settings": {label: plan.settings[label] for label in labels},
        "environment": plan.environment, "data": fingerprints,
        "scores": {label: plan.scores(label) for label in labels}}))


# ------------------------------------------------------------------------------------ on --resume

def take_decisions(plan, runs):
    """The config in the checkpoint of each run, or None; the plan gets what the machine decided.

    Raises ValueError if a checkpoint is missing or damaged.
    """
    if plan.is_new:
        return [None] * len(runs)
    kept = []
    for run in runs:
        content = checkpoint(run.folder)
        kept.append(None if content is None else loaded(run.folder, content)["config"])
    started = next((config["environment"] for config in kept if config), {})
    given = {name: plan.environment[name] for name in ("device", "threads") if name in plan.given}
    now = plan.environment | started | given | {"torch": torch.__version__}
    for name in ("torch", "device"):
        if now[name] != started.get(name, now[name]):
            say(f"the run was started with {name} {started[name]} and continues with {now[name]}: "
                "the last digits may differ")
    plan.environment = now
    return kept


def configure(plan, runs, kept, fingerprints):
    """Gives each run its config. Raises ValueError if its checkpoint belongs to another one.

    Then config.json tells where the run was started: on which device, with which torch.
    """
    for run, before in zip(runs, kept):
        if before is not None and ":rounds=" in run.label:    # an earlier --resume can raise it
            run.settings["rounds"] = max(run.settings["rounds"],
                                         before["settings"][run.label]["rounds"])
        run.config = config_of(plan, fingerprints, [run.label], [run.seed])
        if before is None:
            continue
        check_same(run, before)
        run.config["environment"] = before["environment"]


def check_same(run, before):
    """Raises ValueError if the run's config is not the one in its checkpoint, which names it."""
    now, then = flat(run.config), flat(before)
    rounds, started = now.pop("rounds"), then.pop("rounds")
    if rounds < started:
        raise ValueError(f"--rounds {rounds}: {run.label} was started with {started} rounds, and "
                         "this number can only be raised")
    for flag, text in run.config["data"].items():
        if text != before["data"][flag]:
            raise ValueError(f"--{flag} {run.config['flags'][flag]}: the run was started with "
                             f"{before['data'][flag]}, and this is {text}")
    for name in [*now, *then]:
        if now.get(name) != then.get(name):
            raise ValueError(f"{run.folder / 'checkpoint.pt'} is of a run with {name} "
                             f"{value_text(then.get(name))}, not {value_text(now.get(name))}")


def flat(config):
    """{name: value} of all that must not change on resume, and rounds."""
    [label] = config["algo"]
    found = {**config["flags"], **config["networks"][label], **config["settings"][label],
             "algo": config["algo"], "seeds": config["seeds"],
             "threads": config["environment"]["threads"]}
    return {name: value for name, value in found.items() if name not in MAY_MOVE}


# ------------------------------------------------------------------------------------- the folders

def make(plan, runs, fingerprints):
    """Makes the command's folder with its config.json. Only the first process does.

    Raises ValueError if a folder of a new command holds a run.
    """
    folder = plan.folder
    if folder is None or rank() > 0:
        return
    config = config_of(plan, fingerprints, list(plan.algorithms), plan.seeds)
    if not plan.is_new:
        write_config(folder, runs[0].config if len(runs) == 1 else config)
        return
    for place in [folder, *(run.folder for run in runs)]:
        if place.exists() and not place.is_dir():
            raise ValueError(f"--out {place} is a file, not a folder")
        if any((place / name).exists() for name in FILES):
            raise ValueError(f"{place} already holds a run; --resume {place} continues it")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    with open(path, "x") as file:                            # of two commands one makes it
        try:
            file.write(dumps(config, indent=2))
            file.flush()
        except OSError:                                      # a full disk
            path.unlink()
            raise


def write_config(folder, config):
    replace(folder / "config.json", dumps(config, indent=2).encode())


def dumps(value, indent=None):
    """A line of JSON, or an indented text. Raises ValueError for nan and infinity."""
    return json.dumps(value, indent=indent, allow_nan=False) + "\n"


def replace(path, content):
    """Writes a file in one step: after a kill, the old file or all of the new one is there."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


# ---------------------------------------------------------------------------------- its checkpoint

def checkpoint(folder):
    """The bytes of a run's checkpoint; None before the first round. ValueError if it is missing."""
    path = folder / "checkpoint.pt"
    if path.exists():
        return path.read_bytes()
    if (folder / "metrics.jsonl").exists():
        raise ValueError(f"{path} is missing, but {folder / 'metrics.jsonl'} exists")
    return None


def loaded(folder, content, device="cpu"):
    """What a checkpoint of this folder holds. Raises ValueError if it is damaged."""
    try:
        if damaged := zipfile.ZipFile(io.BytesIO(content)).testzip():    # torch does not check it
            raise ValueError(f"{damaged} has a wrong checksum")
        found = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
        return {name: found[name] for name in ("config", "state", "rows", "timings")}
    except Exception as error:           # of many types: from zipfile, pickle, torch
        reason = str(error)[:100]        # torch's go on for many lines
        raise ValueError(f"{folder / 'checkpoint.pt'} is damaged, or not from this program "
                         f"({reason})") from None


def begin(run, device):
    """Goes on after the last finished round, which the first process reads for all."""
    content = from_first(checkpoint(run.folder) if run.folder and rank() == 0 else None)
    if content is not None:
        found = loaded(run.folder, content, device)
        run.state, run.rows, run.timings = found["state"], found["rows"], found["timings"]
    if run.folder and rank() == 0:
        run.folder.mkdir(exist_ok=True)
        write_config(run.folder, run.config)
        write_rows(run)
    run.clock = time.perf_counter()


def keep_round(run, fed, metrics, state):
    """Keeps a finished round; only the first process writes.

    A metric that is no number ends the program with one line.
    """
    if "accuracy" not in metrics:
        fail(f"{run.label}: the metrics of round {state['round']} have no accuracy")
    for name, value in metrics.items():
        is_number = isinstance(value, (int, float)) and math.isfinite(value)
        if not is_number and value is not None:
            fail(f"{run.label}: the metric {name} is {value!r:.60}; a metric is an int, a finite "
                 "float or None")
    now = time.perf_counter()
    seconds = {"round_seconds": now - run.clock}
    seconds |= {f"{name}_seconds": x for name, x in fed.seconds.items()}     # of what is @timed
    fed.seconds.clear()
    run.state, run.clock = state, now
    run.rows.append({"round": state["round"], **metrics})
    run.timings.append({"round": state["round"], **seconds})
    if run.folder and rank() == 0:
        content = io.BytesIO()    # torch.save to a file gives no reason when the disk is full
        torch.save({"config": run.config, "state": state, "rows": run.rows,
                    "timings": run.timings}, content)
        replace(run.folder / "checkpoint.pt", content.getbuffer())
        write_rows(run)


def write_rows(run):
    for name, rows in [("metrics.jsonl", run.rows), ("timing.jsonl", run.timings)]:
        if rows:
            replace(run.folder / name, "".join(map(dumps, rows)).encode())
