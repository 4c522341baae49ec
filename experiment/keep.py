"""A run on disk: DIR/LABEL-seedN holds config.json, checkpoint.pt, metrics.jsonl, timing.jsonl.
DIR/split-seedN.npz holds who has which images.

config.json is written by every command, before its rounds; a later command is compared with it. The
checkpoint holds the state after a round and the rows of all rounds so far. After each round it is
replaced in one step, then the .jsonl files, which are written from its rows. So a run that is
killed at any moment goes on after its last finished round, and no row is lost or doubled.
"""
import contextlib
import io
import json
import math
import os
import subprocess
import time
import zipfile
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import cache
from pathlib import Path

import numpy as np
import torch

from data.split import seed_of_split
from experiment.common import FORMAT, BadInput, Stopped, read_config, refuses, text_of
from experiment.processes import from_first
from experiment.settings import DataConfig, Method, Networks, Training
from experiment.terminal import is_first
from federation import pack, unpack

FILES = ("config.json", "checkpoint.pt", "metrics.jsonl", "timing.jsonl")


@dataclass
class Record:
    """What is known, and kept, of a method's rounds with one seed."""

    method: Method
    seed: int
    config: dict             # the content of config.json: see `config_of`
    folder: Path | None      # None: nothing is kept
    begun_with: str = ""     # the commit, torch, device, ... of its start, where now they differ
    state: dict | None = None                        # after the last finished round
    rows: list = field(default_factory=list)         # the metrics of each round so far
    timings: list = field(default_factory=list)      # and its seconds
    clock: float = 0.0                               # when the last round ended


# ----------------------------------------------------------------------------- before the rounds

def open_records(command, datasets):
    """The `Record` of each seed and method. Those that the first process finds go on.

    Raises BadInput if a folder holds other data or settings than this command's, or is damaged.
    """
    out, records = command.program.out, []
    for seed in command.program.seeds:
        for method in command.methods:
            name = f"{method.label.replace(':', '-')}-seed{seed}"
            records.append(Record(method, seed, config_of(command, datasets, seed, method),
                                  folder=None if out is None else Path(out, name)))
    if out is None or not is_first():
        return records
    if Path(out, "config.json").exists():
        raise BadInput(f"{out} has a config.json: --out takes the folder above those of the runs")
    of_label = {record.method.label: record for record in records}
    for path in sorted(Path(out).glob("*-seed*/config.json")):     # of other methods and seeds, too
        then = read_config(path.parent)
        refuse_other(path.parent, then["data"], records[0].config["data"], [DataConfig])
        if record := of_label.get(then["algo"]):
            before, now = (x["settings"] | x["data"] for x in (then, record.config))
            refuse_other(path.parent, before, now,
                         [DataConfig, Training, Networks, record.method.algorithm.Config])
    for record in records:
        read_kept(record)
    return records


def config_of(command, datasets, seed, method):
    """The content of config.json, as it is read again: tuples are lists."""
    algorithm, data_cfg = method.algorithm, command.data_cfg
    classes = datasets.class_names
    if data_cfg.joint and algorithm.public == "joint":         # as build.with_joint_layer
        classes = [f"public {j}" for j in range(datasets.foreign.num_classes)] + classes
    settings = {name: value for table in (data_cfg, command.training, method.networks, method.cfg)
                for name, value in asdict(table).items()}
    # Files may move: data have fingerprints in place of names, last, as other settings decide them.
    data = {name: value for name, value in asdict(data_cfg).items()
            if name not in ("data_root", *datasets.fingerprints)} | datasets.fingerprints
    return json.loads(dumps({
        "format": FORMAT, "algo": method.label, "seed": seed,
        "begun": datetime.now(timezone.utc).isoformat(), "settings": settings, "data": data,
        "environment": {"commit": commit(), "torch": torch.__version__,
                        "device": command.program.device,
                        "cpu": torch.backends.cpu.get_cpu_capability(),      # "AVX2", "AVX512"
                        "threads": method.threads},
        "images": {"shape": datasets.task.train.images.shape[1:], "mean": datasets.mean.tolist(),
                   "std": datasets.std.tolist(), "classes": classes},
        "scores": algorithm.scores_on(data_cfg.public), "keys": algorithm.keys_on(data_cfg.public),
        "shares": algorithm.shares}))


@cache
def commit():
    """The commit of this program, with "-dirty" if its code was changed since; None without git."""
    with contextlib.suppress(OSError):                       # no git here
        found = subprocess.run(
            ["git", "-C", Path(__file__).parents[1], "describe", "--always", "--exclude=*",
             "--dirty"], capture_output=True, text=True)
        return found.stdout.strip() or None


def refuse_other(folder, before, now, tables):
    """Raises BadInput if the run in a folder has other settings than this command.

    before, now    {setting: value} of the run and of this command; their rounds may differ
    tables         the dataclasses of the settings: one that the run does not have, as it is newer,
                   has its default
    """
    defaults = {name: value for table in tables for name, value in asdict(table()).items()}
    before = json.loads(dumps(defaults)) | before
    for name, value in now.items():
        if before.get(name) != value and name not in ("rounds", "data_root"):
            raise BadInput(f"{folder} holds a run with {name} {text_of(before.get(name))}, not "
                           f"{text_of(value)}: choose another --out")


def read_kept(record):
    """Gives a record what its folder has of it. Raises BadInput if the folder is damaged."""
    path = record.folder / "checkpoint.pt"
    if not any((record.folder / name).exists() for name in FILES):
        return
    if not path.exists() and (record.folder / "metrics.jsonl").exists():
        raise BadInput(f"{record.folder} has metrics.jsonl, but no checkpoint.pt")
    then, now = read_config(record.folder), record.config
    if (then["algo"], then["seed"]) != (now["algo"], record.seed):       # the folder was renamed
        raise BadInput(f"{record.folder} holds a run of {then['algo']}, seed {then['seed']}: "
                       "choose another --out")
    record.begun_with = ", ".join(
        f"{name} {text_of(value)}" for name, value in then["environment"].items()
        if value != now["environment"].get(name))
    record.config |= {"environment": then["environment"], "begun": then["begun"]}
    if path.exists():
        kept = read_checkpoint(path)
        record.state, record.rows, record.timings = kept["state"], kept["rows"], kept["timings"]
    if len(record.rows) - 1 > record.method.cfg.rounds:
        raise BadInput(f"{record.folder} has {len(record.rows) - 1} rounds, more than "
                       f"{record.method.cfg.rounds}: choose another --out")


def read_checkpoint(path):
    """{"state", "rows", "timings"}; tensors are read from the disk when they are used.

    Nothing in the file is executed.
    """
    try:
        if damaged := zipfile.ZipFile(path).testzip():       # torch does not check it
            raise ValueError(f"{damaged} has a wrong checksum")
        kept = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        return {name: kept[name] for name in ("state", "rows", "timings")}
    except Exception as error:           # of many types: from zipfile, pickle, torch
        raise BadInput(f"{path} is damaged, or not from this program ({error!s:.100})") from None


def make_folders(records, command, datasets):
    """Writes config.json of each run, and DIR/split-seedN.npz of each split, as `readers.split`
    reads it. Only the first process does. A split that came with --partition stays as it is.
    """
    out = command.program.out
    if out is None or not is_first():
        return
    for record in records:
        with refuses(OSError):
            record.folder.mkdir(exist_ok=True)
        write(record.folder / "config.json", dumps(record.config, indent=2).encode())
    for seed in command.program.seeds:
        path = Path(out, f"split-seed{seed_of_split(command.data_cfg, seed)}.npz")
        if command.rows and path.exists():
            continue
        found = datasets.splits[seed]._asdict()
        rows = {f"client_{i}": part for i, part in enumerate(found.pop("clients"))}
        rows |= {name: part for name, part in found.items() if part is not None}
        content = io.BytesIO()
        np.savez(content, **rows, dataset=datasets.fingerprints["dataset"])
        write(path, content.getbuffer())


# ------------------------------------------------------------------------------- round by round

def begin(record, device):
    """Goes on after the last finished round, which the first process has read for all."""
    kept = (record.state, record.rows, record.timings)
    kept = from_first(pack(kept) if is_first() else None)
    record.state, record.rows, record.timings = unpack(kept, device)
    if record.folder and record.rows and is_first():
        write_rows(record)
    record.clock = time.perf_counter()


def keep_round(record, metrics, state):
    """Keeps a finished round; only the first process writes."""
    for name, value in metrics.items():
        if value is not None and not (isinstance(value, int | float) and math.isfinite(value)):
            raise BadInput(f"{record.method.label}: the metric {name} is {value!r:.60}; a metric "
                           "is an int, a finite float or None")
    now, t = time.perf_counter(), state["round"]
    record.rows.append({"round": t, **metrics})
    record.timings.append({"round": t, "round_seconds": now - record.clock, "ended": time.time()})
    record.state = state
    if record.folder and is_first():
        content = io.BytesIO()    # torch.save to a file gives no reason when the disk is full
        torch.save({"state": state, "rows": record.rows, "timings": record.timings}, content)
        write(record.folder / "checkpoint.pt", content.getbuffer())
        write_rows(record)
    record.clock = time.perf_counter()


def write_rows(record):
    for name, rows in [("metrics.jsonl", record.rows), ("timing.jsonl", record.timings)]:
        write(record.folder / name, "".join(map(dumps, rows)).encode())


def dumps(value, indent=None):
    """A line of JSON, or an indented text. Raises ValueError for nan and infinity."""
    return json.dumps(value, indent=indent, allow_nan=False) + "\n"


def write(path, content):
    """Writes a file in one step: after a kill, the old file or all of the new one is there."""
    temporary = path.with_name(f"{path.name}.tmp")       # a kill leaves it, the next write takes it
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:                             # a full disk, for example
        temporary.unlink(missing_ok=True)
        raise Stopped(error) from None
