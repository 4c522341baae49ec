"""The runs of a command on disk: config.json, checkpoint.pt, metrics.jsonl, timing.jsonl of each.

The checkpoint holds the state after a round and the rows of all rounds so far. It is replaced in
one step, and the .jsonl files are written after it, from its rows. So a run that is killed at any
moment can continue after its last finished round, and no row is lost or doubled.
"""
import contextlib
import io
import json
import math
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from algorithms import Algorithm
from experiment import process
from experiment.flags import choose
from experiment.process import fail, rank, say

try:
    import fcntl
except ImportError:    # Windows: folders are not locked
    fcntl = None

FILES = ("config.json", "checkpoint.pt", "metrics.jsonl", "timing.jsonl")
TEMPORARY = ".fedkd-minimal-"    # prefix of the names of temporary folders


# ------------------------------------------------------------------------------------------ a run

@dataclass
class Run:
    """An algorithm with one seed: its rounds so far, and the folder that keeps them."""

    label: str                   # the word of --algo
    algorithm: Algorithm
    seed: int
    config: dict                 # that of the command, with this run alone
    folder: Path | None          # None: nothing is kept
    state: dict | None = None    # after the last finished round; None before the first
    rows: list = field(default_factory=list)         # the metrics of each round so far
    timings: list = field(default_factory=list)      # and its seconds
    clock: Callable | None = None                    # it tells the seconds of a round

    @property
    def settings(self):
        """The hyperparameters: the keywords of the algorithm's `run`."""
        return self.config["settings"][self.label]

    @property
    def networks(self):
        """{"model": [names of the clients' networks], "server_model": name of the server's}."""
        return self.config["networks"][self.label]

    def read(self, device):
        """Reads state, rows and timings of the last finished round, if there is one.

        Raises ValueError if the checkpoint is missing, damaged, or of a run with other settings.
        """
        if self.folder is None:
            return
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            if (self.folder / "metrics.jsonl").exists():
                raise ValueError(f"{path} is missing, but {self.folder / 'metrics.jsonl'} exists")
            return
        try:
            if damaged := zipfile.ZipFile(path).testzip():   # torch.load does not check these
                raise ValueError(f"{damaged} has a wrong checksum")
            found = torch.load(path, map_location=device, weights_only=True)
            self.state, self.rows, self.timings = found["state"], found["rows"], found["timings"]
            is_of_this_run = found["identity"] == identity(self.config)
        except Exception as error:       # of many types: from zipfile, pickle, torch
            reason = str(error)[:100]    # torch's go on for many lines
            raise ValueError(f"{path} is damaged, or not from this program ({reason})") from None
        if not is_of_this_run:
            raise ValueError(f"{path} is from a run with other settings than "
                             f"{self.folder / 'config.json'}")

    def open(self, device):
        """Goes on after the last finished round: writes config and .jsonl files as they were then.

        Only the first process writes, after all processes have read.
        """
        self.read(device)
        process.wait_for_all()
        write_config(self.folder, self.config)
        for name, lines in [("metrics.jsonl", self.rows), ("timing.jsonl", self.timings)]:
            if self.folder and rank() == 0 and lines:
                text = "".join(map(dumps, lines))
                replace(self.folder / name, lambda path: path.write_text(text))

    def keep(self, metrics, state):
        """Keeps a finished round: the checkpoint, then a line of metrics.jsonl and timing.jsonl.

        Only the first process writes. A metric that is no number ends the program with one line.
        """
        if "accuracy" not in metrics:
            fail(f"{self.label}: the metrics of round {state['round']} have no accuracy")
        for name, value in metrics.items():
            is_number = isinstance(value, (int, float)) and math.isfinite(value)
            if not is_number and value is not None:
                fail(f"{self.label}: the metric {name} is {value!r:.60}; a metric is an int, a "
                     "finite float or None")
        self.state = state
        self.rows.append({"round": state["round"], **metrics})
        self.timings.append({"round": state["round"], **self.clock.seconds_of_round()})
        if self.folder is None or rank() > 0:
            return
        content = io.BytesIO()    # torch.save to a file gives no reason when the disk is full
        torch.save({"identity": identity(self.config), "state": state, "rows": self.rows,
                    "timings": self.timings}, content)
        replace(self.folder / "checkpoint.pt", lambda path: path.write_bytes(content.getbuffer()))
        for name, lines in [("metrics.jsonl", self.rows), ("timing.jsonl", self.timings)]:
            with open(self.folder / name, "a") as file:
                file.write(dumps(lines[-1]))

    def close(self):
        """Frees the state; what was measured stays."""
        self.state = None


def runs_of(folder, config, choices):
    """The `Run` of each seed and algorithm, in the order in which they are made.

    Each has a folder: `folder` itself, or one inside it for each if there are several. None:
    nothing is kept.
    """
    runs = []
    for seed in config["seeds"]:
        for choice in choices:
            place = folder
            if folder and len(config["seeds"]) * len(choices) > 1:
                place = folder / f"{choice.label.replace(':', '-')}-seed{seed}"
            runs.append(Run(choice.label, choice.algorithm, seed,
                            one_run(config, choice.label, seed), place))
    return runs


def check_readable(runs, device):
    """Raises ValueError if the checkpoint of a run cannot be read."""
    for run in runs:
        run.read(device)
        run.close()


# ------------------------------------------------------------------------------------- the folders

def check_free(folder):
    """Raises ValueError if `folder` holds a run."""
    if any((folder / name).exists() for name in FILES):
        raise ValueError(f"{folder} already holds a run; --resume {folder} continues it")


@contextlib.contextmanager
def lock(folder):
    """Keeps other processes from writing to `folder` while the block runs; yields the open file.

    It also removes temporary files that a killed run left there. The lock ends with the process,
    even if that is killed. Nothing is locked or removed on Windows, or on a network file system
    that cannot lock folders. Raises ValueError if another process holds the lock.
    """
    if fcntl is None:
        yield None
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder} is in use by another process: wait until it ends, or give "
                             "a new run another --out") from None
        except OSError:        # the file system cannot lock a folder
            pass
        else:
            for leftover in folder.glob(f"{TEMPORARY}*"):
                shutil.rmtree(leftover)
        yield number
    finally:
        os.close(number)


@contextlib.contextmanager
def kept_in(folder, config, runs, is_new):
    """Makes the folders of a command, writes its config, and keeps other processes out of them.

    The first process locks them. If it cannot, or if a new run's folder holds a run, all processes
    end with one line and exit status 2. folder may be None: nothing is kept. Yields the open files
    that hold the locks.
    """
    problem, held = None, []
    with contextlib.ExitStack() as locks:
        if folder and rank() == 0:
            try:
                for place in dict.fromkeys([folder, *(run.folder for run in runs)]):
                    place.mkdir(parents=True, exist_ok=True)
                    held.append(locks.enter_context(lock(place)))
                    if is_new:
                        check_free(place)
            except (ValueError, OSError) as error:
                problem = str(error)
        if problem := process.gather(problem)[0]:
            fail(problem)
        write_config(folder, config)
        yield [number for number in held if number is not None]


# -------------------------------------------------------------------------------------- the config

def identity(config):
    """A number for the part of a config that must not change on resume.

    `rounds`, the device, the versions and the paths of the data may change; the data's fingerprints
    may not.
    """
    settings = {algo: {name: value for name, value in of_algo.items() if name != "rounds"}
                for algo, of_algo in config["settings"].items()}
    flags = {name: value for name, value in config["flags"].items()
             if name not in ("dataset", "public", "data_root")}
    kept = [config["algo"], config["seeds"], config["data"], config["environment"]["threads"]]
    return zlib.crc32(dumps([*kept, flags, config["networks"], settings]).encode())


def one_run(config, label, seed):
    """The part of a config that is one algorithm with one seed."""
    return {**config, "algo": [label], "seeds": [seed],
            "networks": {label: config["networks"][label]},
            "settings": {label: config["settings"][label]}}


def write_config(folder, config):
    """Writes config.json; only the first process does. folder may be None: nothing is kept."""
    if folder and rank() == 0:
        text = dumps(config | {"identity": identity(config)}, indent=2)
        replace(folder / "config.json", lambda path: path.write_text(text))


def resumed(given):
    """(config, its `Choice`s) of the folder of --resume, with the rounds and the device of `given`.

    Raises ValueError if there is no run, if config.json is damaged or was changed by hand, or if
    there would be fewer rounds.
    """
    folder = given["resume"]
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
        is_whole = config.pop("identity") == identity(config)
        is_whole &= all(type(x["rounds"]) is int for x in config["settings"].values())
    except OSError:
        raise ValueError(f"{folder} holds no run: it has no readable config.json") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        is_whole = False
    if not is_whole:
        raise ValueError(f"{path} is damaged, was changed, or is not from this program")
    for algo, settings in config["settings"].items():
        rounds = given.get("rounds", settings["rounds"])
        if rounds < settings["rounds"]:
            raise ValueError(f"--rounds {rounds}: {algo} was started with {settings['rounds']} "
                             "rounds, and this number can only be raised")
        settings["rounds"] = rounds
    environment = config["environment"]
    now = {"torch": torch.__version__, "device": given.get("device", environment["device"])}
    for name, value in now.items():
        if environment[name] != value:
            say(f"the run was started with {name} {environment[name]} and continues with "
                f"{value}: the last digits may differ")
    config["environment"] = environment | now
    choices = [choose(label) for label in config["algo"]]
    for choice in choices:
        if config["settings"][choice.label].keys() != choice.algorithm.hyperparameters.keys():
            raise ValueError(f"{folder} was made by another version of {choice.algorithm.name}, "
                             "with other hyperparameters")
    return config, choices


def with_data(config, found):
    """The config with the fingerprints of its data sets, `found` (see `build.fingerprints`).

    Raises ValueError if they have changed since the run was started.
    """
    for flag, now in found.items():
        before = config.get("data", found)[flag]
        if now != before:
            raise ValueError(f"{config['flags'][flag]} has changed; the run was started with "
                             f"{before}; now it has {now}")
    return config | {"data": found}


# --------------------------------------------------------------------------------------- the files

def dumps(value, indent=None):
    """A line of JSON, or an indented text. Raises ValueError for nan and infinity."""
    return json.dumps(value, indent=indent, allow_nan=False) + "\n"


def replace(path, write):
    """Writes a file in one step: after a kill, the old file or all of the new one is there."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=TEMPORARY) as temporary:
        write(Path(temporary) / path.name)
        os.replace(Path(temporary) / path.name, path)
