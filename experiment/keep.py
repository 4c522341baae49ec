"""A run on disk: DIR/LABEL-seedN holds config.json, checkpoint.pt, metrics.jsonl, timing.jsonl.
DIR/split-seedN.npz holds who has which images.

config.json is written when the run begins; the next command is compared with it. The checkpoint
holds the state after a round and the rows of all rounds so far. After each round it is replaced in
one step, then the .jsonl files, which are written from its rows. So a run that is killed at any
moment goes on after its last finished round, and no row is lost or doubled. Nothing is locked: two
commands that work on one folder compute the same rows and states, and each file is one of theirs as
a whole, of the one that is ahead. `load_model` reads a trained network.
"""
import io
import json
import math
import os
import subprocess
import time
import zipfile
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from zlib import crc32

import numpy as np
import torch

import models
from algorithms import ALGORITHMS
from data.images import adapt, check_range, normalize, to_float
from experiment import build
from experiment.processes import fail, from_first, is_first
from experiment.settings import NETWORKS, Images, Method, Training, flag_with, text_of
from federation import average_weights, in_bfloat16

FORMAT = 2       # of states, in config.json: a run of another format does not go on
FILES = ("config.json", "checkpoint.pt", "metrics.jsonl", "timing.jsonl")


@dataclass
class Record:
    """What is known, and kept, of a method's rounds with one seed."""

    method: Method
    seed: int
    config: dict             # what its numbers depend on, and what `load_model` and curves.py need
    folder: Path | None      # None: nothing is kept
    begun_with: str = ""     # what was another at its start: commit, torch, device, ...
    state: dict | None = None                        # after the last finished round
    rows: list = field(default_factory=list)         # the metrics of each round so far
    timings: list = field(default_factory=list)      # and its seconds
    clock: float = 0.0                               # when the last round ended


def records_of(command, datasets):
    """The `Record` of each seed and method. Those that the first process finds have their rows.

    Raises ValueError if a folder holds other data or settings than this command's, or is damaged.
    """
    out = command.program["out"]
    if out is not None and Path(out, "config.json").exists():
        raise ValueError(f"{out} has a config.json: --out takes the folder above those of the runs")
    records = []
    for seed in command.seeds:
        for method in command.methods:
            name = f"{method.label.replace(':', '-')}-seed{seed}"
            records.append(Record(method, seed, config_for(command, datasets, seed, method),
                                  folder=None if out is None else Path(out, name)))
    if out is not None and is_first():
        configs = {record.method.label: record.config for record in records}
        for path in sorted(Path(out).glob("*-seed*/config.json")):   # other methods and seeds, too
            if path.stat().st_size:                          # else killed before it was written
                then = config_of(path.parent)
                compare(path.parent, then, configs.get(then["algo"], records[0].config))
        for record in records:
            find(record)
    return records


def config_for(command, datasets, seed, method):
    """The content of config.json, as it is read again: tuples are lists."""
    shared, images = command.shared, datasets.images
    if shared["joint"] and method.algorithm.public != "joint":           # as build.of_the_task
        images = images | {"classes": images["classes"][datasets.foreign.num_classes:]}
    return json.loads(dumps({
        "format": FORMAT, "algo": method.label, "seed": seed,
        "data": {flag.name: shared[flag.name] for flag in fields(Images)},
        "fingerprints": datasets.fingerprints,
        "training": {flag.name: shared[flag.name] for flag in fields(Training)
                     if flag.name not in NETWORKS},
        "networks": method.networks, "hyperparameters": method.hyperparameters,
        "environment": {"commit": commit(), "torch": torch.__version__,
                        "device": command.program["device"],
                        "cpu": torch.backends.cpu.get_cpu_capability(),      # "AVX2", "AVX512"
                        "threads": method.threads},
        "images": images, "scores": scores_of(method.algorithm, shared["public"])}))


@cache
def commit():
    """The commit of this program; if its code was changed since, "-dirty-" and a checksum of how.

    None if git has none. Files that git does not know do not count.
    """
    def git(*words):
        return subprocess.run(["git", "-C", Path(__file__).parents[1], *words],
                              capture_output=True).stdout.strip()
    try:
        found = git("describe", "--always", "--exclude=*").decode()
        changes = git("diff", "HEAD", "*.py")
        if changes:
            found += f"-dirty-{crc32(changes):08x}"
        return found or None
    except OSError:                                          # no git here
        return None


def scores_of(algorithm, public):
    """{accuracy metric: whose accuracy it is}.

    Where half of the test set is public, a server that reads images is scored on that half, and
    everything else on the other.
    """
    if public != "half":
        return algorithm.scores
    def half(name, whose):
        is_servers = name == "server_accuracy" or whose == "server"
        return "public" if algorithm.server == "images" and is_servers else "private"

    return {name: f"{whose}, {half(name, whose)} half" for name, whose in algorithm.scores.items()}


def find(record):
    """Gives the record its rows so far. Raises ValueError if its folder is damaged."""
    files = [record.folder / name for name in FILES]
    if not any(path.exists() and path.stat().st_size for path in files):
        return
    then = config_of(record.folder)
    if (then["algo"], then.get("seed")) != (record.config["algo"], record.seed):     # renamed
        raise ValueError(f"{record.folder} holds a run of {then['algo']}, seed {then.get('seed')}: "
                         "choose another --out")
    before, now = then["environment"], record.config["environment"]
    record.begun_with = ", ".join(f"{name} {text_of(value)}" for name, value in before.items()
                                  if value != now[name])
    record.config["environment"] = before
    if (record.folder / "checkpoint.pt").exists():
        if then.get("format") != FORMAT:
            raise ValueError(f"{record.folder} is from an older version: choose another --out")
        kept = loaded(record.folder, (record.folder / "checkpoint.pt").read_bytes(), "cpu")
        record.rows, record.timings = kept["rows"], kept["timings"]
    elif (record.folder / "metrics.jsonl").exists():
        raise ValueError(f"{record.folder} has metrics.jsonl, but no checkpoint.pt")


def config_of(folder):
    """config.json of a folder that holds a run. Raises ValueError if it is missing or damaged."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
        parts = ("data", "fingerprints", "training", "networks", "hyperparameters", "environment",
                 "images")
        return config | {"algo": str(config["algo"])} | {part: dict(config[part]) for part in parts}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path} is missing or damaged, or not from this program "
                         f"({error})") from None


def compare(folder, then, now):
    """Raises ValueError if the run in a folder and a new one, two configs, do not fit together.

    They have the same data, and with one label, also of another seed, the same settings; a new one
    may have more rounds. A data set is known by its fingerprint, wherever its file is.
    """
    parts = ["data"]
    if then["algo"] == now["algo"]:
        parts += ["training", "networks", "hyperparameters"]
    typed_then, typed_now = ({name: value for part in parts for name, value in config[part].items()}
                             for config in (then, now))
    if "rounds" in typed_then:
        typed_then["rounds"] = max(typed_then["rounds"], typed_now["rounds"])
    known_then, known_now = typed_then | then["fingerprints"], typed_now | now["fingerprints"]
    differ = [name for name in known_then | known_now
              if name != "data_root" and known_then.get(name) != known_now.get(name)]
    if differ:
        differ.sort(key=lambda name: name in then["fingerprints"])   # --classes changes them, too
        flags = [flag_with(name, typed_then.get(name)) for name in differ
                 if typed_then.get(name) != typed_now.get(name)]
        # Whoever needs public or validation images cannot do without them.
        needed = [name for name in ("public", "validation") if name in differ]
        can_join = flags and all(typed_then.get(name) is not None for name in needed)
        advice = f"add {' '.join(flags)}, or " if can_join else ""
        name = differ[0]
        raise ValueError(f"{folder} holds a run with {name} {text_of(known_then.get(name))}, not "
                         f"{text_of(known_now.get(name))}: {advice}choose another --out")


def loaded(folder, content, device):
    """{"state", "rows", "timings"} of the bytes of a checkpoint. Raises ValueError: it is damaged.

    Nothing in it is executed.
    """
    try:
        if damaged := zipfile.ZipFile(io.BytesIO(content)).testzip():    # torch does not check it
            raise ValueError(f"{damaged} has a wrong checksum")
        kept = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
        return {name: kept[name] for name in ("state", "rows", "timings")}
    except Exception as error:           # of many types: from zipfile, pickle, torch
        raise ValueError(f"{folder / 'checkpoint.pt'} is damaged, or not from this program "
                         f"({str(error)[:100]})") from None


def make_folders(records):
    """Makes the runs' folders with config.json. Only the first process does."""
    for record in records:
        if record.folder is None or not is_first():
            continue
        record.folder.mkdir(parents=True, exist_ok=True)
        path, text = record.folder / "config.json", dumps(record.config, indent=2)
        if path.exists():
            if path.stat().st_size:          # another command may have made it in the meantime
                compare(record.folder, config_of(record.folder), record.config)
            replace(path, text.encode())                     # it may have more rounds now
            continue
        with open(path, "x") as file:                        # of two commands at once one makes it
            try:
                file.write(text)
                file.flush()
            except OSError:                                  # a full disk
                path.unlink()
                raise


def keep_splits(command, datasets):
    """Writes DIR/split-seedN.npz of --out: who has which rows, see `readers.split`.

    N is the seed of the split. Only the first process does. A file that came with --partition stays
    as it is.
    """
    out = command.program["out"]
    if out is None or not is_first():
        return
    Path(out).mkdir(parents=True, exist_ok=True)
    for seed in command.seeds:
        path = Path(out, f"split-seed{build.split_seed(command.shared, seed)}.npz")
        if datasets.rows and path.exists():
            continue
        found = build.split(command.shared, datasets, seed)._asdict()
        rows = {f"client_{i}": part for i, part in enumerate(found.pop("clients"))}
        rows |= {name: part for name, part in found.items() if part is not None}
        content = io.BytesIO()
        np.savez(content, **rows, dataset=datasets.fingerprints["dataset"])
        replace(path, content.getbuffer())


def begin(record, device):
    """Goes on after the last finished round, which the first process reads for all."""
    path = record.folder and record.folder / "checkpoint.pt"
    content = from_first(path.read_bytes() if path and is_first() and path.exists() else None)
    if content is not None:
        kept = loaded(record.folder, content, device)
        record.state, record.rows, record.timings = kept["state"], kept["rows"], kept["timings"]
        if is_first():
            write_rows(record)
    record.clock = time.perf_counter()


def keep_round(record, metrics, state):
    """Keeps a finished round; only the first process writes.

    A metric that is no number ends the program with one line.
    """
    for name, value in metrics.items():
        if value is not None and not (isinstance(value, int | float) and math.isfinite(value)):
            fail(f"{record.method.label}: the metric {name} is {value!r:.60}; a metric is an int, "
                 "a finite float or None")
    now = time.perf_counter()
    record.rows.append({"round": state["round"], **metrics})
    record.timings.append({"round": state["round"], "round_seconds": now - record.clock,
                           "ended": time.time()})
    record.state, record.clock = state, now
    if record.folder and is_first():
        path = record.folder / "metrics.jsonl"
        if path.exists() and path.read_bytes().count(b"\n") > len(record.rows):
            return                           # another command has kept more rounds
        content = io.BytesIO()    # torch.save to a file gives no reason when the disk is full
        torch.save({"state": state, "rows": record.rows, "timings": record.timings}, content)
        replace(record.folder / "checkpoint.pt", content.getbuffer())
        write_rows(record)


def write_rows(record):
    for name, rows in [("metrics.jsonl", record.rows), ("timing.jsonl", record.timings)]:
        replace(record.folder / name, "".join(map(dumps, rows)).encode())


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


def load_model(folder, name=None):
    """(the network in eval mode, prepare(images) -> its input, the names of its classes).

        model, prepare, classes = load_model("runs/a/fedsdd-seed0")
        logits = model(prepare(images))        # images [n, c, h, w]: bytes, or floats in [0, 1]

    name      "server", of several models "server", "server 1", ..., "client 0", "client 1", ...,
              of FedSDD "ensemble", of fedsdd-ablations "averaged", too, of several networks
              "averaged", "averaged 1", ...: after the run's last finished round; None: the first
              of these that it has
    raises    ValueError if the run has no such model
    Of a run with --amp it computes in bfloat16.
    logits[:, j] is of the class names[j]. With a joint layer (FedMD) the public classes come first,
    as "public 0", "public 1", ..., then those of the task.
    """
    folder = Path(folder)
    config = config_of(folder)
    path = folder / "checkpoint.pt"
    if not path.exists():
        raise ValueError(f"{folder} has no checkpoint.pt: no round of its run is finished")
    state = loaded(folder, path.read_bytes(), "cpu")["state"]
    images = config["images"]
    found = networks_in(state, ALGORITHMS[config["algo"].split(":")[0]], config["networks"])
    if ensemble := ensemble_in(state, config["networks"]):
        found["ensemble"] = ensemble
    found |= averaged_in(state)
    name = name or next(iter(found))
    if name not in found:
        raise ValueError(f"{folder} has no model {name!r}; it has {', '.join(found)}")
    networks = []
    for network, weights in found[name]:
        model = models.build(network, tuple(images["shape"]), len(images["classes"]))
        model.load_state_dict(weights)
        if config["training"]["amp"]:
            model.forward = in_bfloat16(model.forward)
        networks.append(model)
    together = models.Ensemble if name == "ensemble" else models.Stacked
    model = networks[0] if len(networks) == 1 else together(*networks)
    mean, std = torch.tensor(images["mean"]), torch.tensor(images["std"])

    def prepare(pixels):
        given = list(getattr(pixels, "shape", ()))
        if (not isinstance(pixels, torch.Tensor) or len(given) != 4 or given[1] not in (1, 3)
                or 0 in given):
            raise ValueError("prepare takes a tensor of images [n, c, h, w] with n > 0 and c = 1 "
                             f"or 3, not {type(pixels).__name__} {given}")
        pixels = to_float(pixels)
        check_range("prepare: the tensor", pixels)
        return normalize(adapt(pixels, images["shape"]), mean, std)

    return model.eval(), prepare, images["classes"]


def networks_in(state, algorithm, networks):
    """{name: [(network, state_dict), ...]} of the models in a state.

    state    of its entries some hold models: "clients", {i: snapshot}; "server", a snapshot;
             "global_models", a list of state_dicts, or {network: such a list, or one}
    Where the server's network continues the clients', a client has both, one after the other.
    """
    clients_network = networks["model"][0]
    own = networks["server_model"] if algorithm.server != "none" else clients_network
    models = state.get("global_models", [])      # a list; of several networks {name: it, or one}
    if isinstance(models, list):
        models = {clients_network: models}
    pairs = [(own, state["server"]["model"])] if "server" in state else []
    pairs += [(network, saved.get("model", saved))       # weights, or a snapshot that has them
              for network, found in models.items()
              for saved in (found if isinstance(found, list) else [found])]
    found = {f"server {k}" if k else "server": [pair] for k, pair in enumerate(pairs)}
    clients = {}
    for i, saved in state.get("clients", {}).items():
        network = networks["model"][i % len(networks["model"])]
        clients[f"client {i}"] = [(network, saved["model"])]
    if algorithm.server == "features":
        return {name: pair + found["server"] for name, pair in clients.items()}
    return found | clients


def averaged_in(state):
    """{name: [(network, state_dict)]} of fedsdd-ablations: the models of `averaged_accuracy`."""
    last = zip(state.get("global_models", []), zip(*state.get("main", [])))
    averages = [(network, average_weights(models, [1] * len(models))) for network, models in last]
    return {f"averaged {k}" if k else "averaged": [pair] for k, pair in enumerate(averages)}


def ensemble_in(state, networks):
    """[(network, state_dict), ...] of the ensemble that taught in the last round of FedSDD; else []

    Its members in a state are state_dicts or, where networks may differ, such pairs.
    """
    recent = state.get("recent_w", state.get("recent_members", []))
    members = [member for of_round in recent for member in of_round]
    return [member if isinstance(member, tuple) else (networks["model"][0], member)
            for member in members]
