"""A run on disk: config.json, checkpoint.pt, metrics.jsonl, timing.jsonl.

The checkpoint holds the state after a round and the rows of all rounds so far. It is replaced in
one step, and the .jsonl files are written after it, from its rows. So a run that is killed at any
moment can continue after its last finished round, and no row is lost or doubled.
"""
import contextlib
import io
import json
import os
import pickle
import shutil
import tempfile
import zipfile
from pathlib import Path

import torch

try:
    import fcntl
except ImportError:    # Windows
    fcntl = None

FILES = ("config.json", "checkpoint.pt", "metrics.jsonl", "timing.jsonl")
TEMPORARY = ".fedkd-minimal-"    # prefix of the names of temporary folders


@contextlib.contextmanager
def lock(folder):
    """Keeps other processes from writing to `folder` while the block runs.

    It also removes temporary files that a killed run left there. The lock ends with the process,
    even if that is killed. Nothing is locked or removed on Windows, or on a network file system
    that cannot lock folders. Raises ValueError if another process holds the lock.
    """
    if fcntl is None:
        yield
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
        yield
    finally:
        os.close(number)


def check_free(folder):
    """Raises ValueError if `folder` holds a run."""
    if any((folder / name).exists() for name in FILES):
        raise ValueError(f"{folder} already holds a run; --resume {folder} continues it")


def dumps(value, indent=None):
    return json.dumps(value, indent=indent, allow_nan=False) + "\n"


def replace(path, write):
    """Writes a file in one step: after a kill, the old file or all of the new one is there."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=TEMPORARY) as temporary:
        write(Path(temporary) / path.name)
        os.replace(Path(temporary) / path.name, path)


def write_config(folder, config):
    folder.mkdir(parents=True, exist_ok=True)
    replace(folder / "config.json", lambda path: path.write_text(dumps(config, indent=2)))


def read_config(folder):
    """The config of the run in `folder`. Raises ValueError if there is none that can be read."""
    try:
        config = json.loads((folder / "config.json").read_text())
        keys = ("algo", "seeds", "flags", "settings", "environment")
        return {key: config[key] for key in keys} | {"data": config.get("data")}
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"{folder} holds no run: it has no readable config.json") from None
    except (json.JSONDecodeError, KeyError, TypeError):
        raise ValueError(f"{folder / 'config.json'} is damaged, or not from this program") from None


def check_data(config, found, folder):
    """Raises ValueError if a data set has changed since the run in `folder` was started.

    found   see `federation.fingerprints`
    """
    for flag, now in found.items():
        if config["data"][flag] != now:
            raise ValueError(f"--resume {folder}: {config['flags'][flag]} has changed; the run was "
                             f"started with {config['data'][flag]}; now it has {now}")


def with_more_rounds(config, rounds):
    """The config with this number of rounds; None keeps it. Raises ValueError if it is smaller."""
    for algo, settings in config["settings"].items():
        if rounds is not None and rounds < settings["rounds"]:
            raise ValueError(f"--rounds {rounds}: {algo} was started with {settings['rounds']} "
                             "rounds, and this number can only be raised")
        settings["rounds"] = rounds or settings["rounds"]
    return config


def one_run(config, algo, seed):
    """The part of a config that is one algorithm with one seed."""
    return {**config, "algo": [algo], "seeds": [seed], "settings": {algo: config["settings"][algo]}}


def identity(config):
    """The part of a config that must not change on resume.

    `rounds`, the environment and the paths of the data may change; the data's fingerprints may not.
    """
    settings = {algo: {name: value for name, value in algo_settings.items() if name != "rounds"}
                for algo, algo_settings in config["settings"].items()}
    kept = {key: config[key] for key in ("algo", "seeds", "data")}
    flags = {name: value for name, value in config["flags"].items()
             if name not in ("dataset", "public", "data_root")}
    return json.loads(dumps({**kept, "flags": flags, "settings": settings}))


def save(folder, config, state, rows, timings):
    """Writes the checkpoint of a round, then its lines of metrics.jsonl and timing.jsonl."""
    checkpoint = {"config": identity(config), "state": state, "rows": rows, "timings": timings}
    content = io.BytesIO()    # torch.save to a file gives no reason when the disk is full
    torch.save(checkpoint, content)
    replace(folder / "checkpoint.pt", lambda path: path.write_bytes(content.getbuffer()))
    for name, lines in [("metrics.jsonl", rows), ("timing.jsonl", timings)]:
        with open(folder / name, "a") as file:
            file.write("".join(map(dumps, lines[-1:])))


def restore(folder, config, device):
    """(state, rows, timings) of the last finished round; (None, [], []) if there is no such round.

    Raises ValueError if the checkpoint is missing, damaged, or of a run with other settings.
    """
    path = folder / "checkpoint.pt"
    if not path.exists():
        if (folder / "metrics.jsonl").exists():
            raise ValueError(f"{path} is missing, but {folder / 'metrics.jsonl'} exists")
        return None, [], []
    try:
        with zipfile.ZipFile(path) as file:              # torch.load does not check the checksums
            if file.testzip() is not None:
                raise zipfile.BadZipFile
        checkpoint = torch.load(path, map_location=device, weights_only=True)
        num_rows = max(0, checkpoint["state"]["round"] + 1)
        if not len(checkpoint["timings"]) == len(checkpoint["rows"]) == num_rows:
            raise KeyError("rounds")
    except (OSError, EOFError, RuntimeError, ValueError, LookupError, TypeError,
            pickle.UnpicklingError, zipfile.BadZipFile):
        raise ValueError(f"{path} is damaged, or not from this program") from None
    if checkpoint.get("config") != identity(config):
        raise ValueError(f"{path} is from a run with other settings than {folder / 'config.json'}")
    return checkpoint["state"], checkpoint["rows"], checkpoint["timings"]


def rewrite(folder, rows, timings):
    """Writes the .jsonl files from a checkpoint's rows, each in one step."""
    for name, lines in [("metrics.jsonl", rows), ("timing.jsonl", timings)]:
        replace(folder / name, lambda path: path.write_text("".join(map(dumps, lines))))
