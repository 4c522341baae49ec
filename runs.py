"""A run on disk: config.json, checkpoint.pt, metrics.jsonl, timing.jsonl. Nothing is lost and nothing is doubled.

The checkpoint holds all a later round needs and every row so far, and is replaced in one step; the .jsonl files are written
after it, from its rows. So whatever moment a run is killed at, what is on disk is the end of some round.
"""
import json
import os
import pickle
import zipfile

import torch


FILES = ("config.json", "checkpoint.pt", "metrics.jsonl", "timing.jsonl")


def dumps(value, indent=None):
    return json.dumps(value, indent=indent, allow_nan=False) + "\n"


def replace(path, write):
    """Writes a file in one step: all of it is there, or the old one is."""
    temporary = path.with_name(path.name + ".tmp")
    write(temporary)
    os.replace(temporary, path)


def write_config(folder, config):
    folder.mkdir(parents=True, exist_ok=True)
    replace(folder / "config.json", lambda path: path.write_text(dumps(config, indent=2)))


def read_config(folder):
    """The config of the run kept in `folder`. Raises ValueError if there is none, or none that can be read."""
    try:
        config = json.loads((folder / "config.json").read_text())
        return {key: config[key] for key in ("algo", "seeds", "flags", "settings", "environment")}
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"{folder} holds no run: it has no readable config.json") from None
    except (json.JSONDecodeError, KeyError, TypeError):
        raise ValueError(f"{folder / 'config.json'} is damaged, or not of this program") from None


def grown(config, rounds):
    """The config with more rounds, if `rounds` says so (None does not). Raises ValueError if they would be fewer."""
    for algo, settings in config["settings"].items():
        if rounds is not None and rounds < settings["rounds"]:
            raise ValueError(f"--rounds {rounds}: {algo} was to run {settings['rounds']} rounds, and the number may only grow")
        settings["rounds"] = rounds or settings["rounds"]
    return config


def one_run(config, algo, seed):
    """The part of a config that is one algorithm with one seed."""
    return {**config, "algo": [algo], "seeds": [seed], "settings": {algo: config["settings"][algo]}}


def identity(config):
    """What must not change on resume: all of the config but the number of rounds (and where it ran)."""
    settings = {algo: {name: value for name, value in own.items() if name != "rounds"} for algo, own in config["settings"].items()}
    return json.loads(dumps({"algo": config["algo"], "seeds": config["seeds"], "flags": config["flags"], "settings": settings}))


def save(folder, config, state, rows, timings):
    """After a round: the checkpoint first, then the new line of metrics.jsonl and of timing.jsonl."""
    checkpoint = {"config": identity(config), "state": state, "rows": rows, "timings": timings}
    replace(folder / "checkpoint.pt", lambda path: torch.save(checkpoint, path))
    for name, lines in [("metrics.jsonl", rows), ("timing.jsonl", timings)]:
        with open(folder / name, "a") as file:
            file.write("".join(map(dumps, lines[-1:])))


def restore(folder, config, device):
    """(state, rows, timings) of the last finished round; (None, [], []) if none was. ValueError if the checkpoint is unusable."""
    path = folder / "checkpoint.pt"
    if not path.exists():
        if (folder / "metrics.jsonl").exists():
            raise ValueError(f"{path} is missing, though {folder / 'metrics.jsonl'} says that the run had begun")
        return None, [], []
    try:
        with zipfile.ZipFile(path) as file:              # torch.load does not look at the checksums that torch.save writes
            if file.testzip() is not None:
                raise zipfile.BadZipFile
        checkpoint = torch.load(path, map_location=device, weights_only=True)
        if not len(checkpoint["timings"]) == len(checkpoint["rows"]) == max(0, checkpoint["state"]["round"] + 1):
            raise KeyError("rounds")
    except (OSError, EOFError, RuntimeError, ValueError, LookupError, TypeError, pickle.UnpicklingError, zipfile.BadZipFile):
        raise ValueError(f"{path} is damaged, or not of this program") from None
    if checkpoint.get("config") != identity(config):
        raise ValueError(f"{path} is of a run with other settings than {folder / 'config.json'}")
    return checkpoint["state"], checkpoint["rows"], checkpoint["timings"]


def rewrite(folder, rows, timings):
    """On resume: the .jsonl files from the checkpoint's rows, in one step each."""
    for name, lines in [("metrics.jsonl", rows), ("timing.jsonl", timings)]:
        replace(folder / name, lambda path: path.write_text("".join(map(dumps, lines))))
