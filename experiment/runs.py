"""Kept runs: reading and writing them. `by_label` are {label: [the `Run` of each seed]}."""
import csv
import json
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf
from pathlib import Path

from experiment.common import BadInput, read_config

HEAD = ("algo", "scores", "keys", "shares", "settings", "data", "environment")   # of config.json


@dataclass
class Run:
    """A run that --out has kept."""

    label: str
    seed: int
    begun: str       # when, as "2026-11-27T10:13:49.250000+00:00"; "" of an older run
    head: dict       # its config.json, of which `scores` are {accuracy: [whose, on which images]}
    rows: list       # the metrics of each round from 0 on; MB is the payload so far, up and down
    folder: Path | None = None       # DIR of DIR/LABEL-seedN; None of a .csv

    @property
    def last_round(self):
        return len(self.rows) - 1

    def up_to(self, last):
        """The run without the rounds after round `last`."""
        return replace(self, rows=[row for row in self.rows if row["round"] <= last])

    def name_of(self, key):
        """A metric's name in the rows; for "clients" and "server" that of their accuracy."""
        return self.head["keys"].get(key, key)

    def by_round(self, key):
        """[the metric, or None] of each row."""
        return [row.get(self.name_of(key)) for row in self.rows]

    def is_share(self, key):
        """True for a share of 1, which is shown as a percentage."""
        return key in ("clients", "server") or "accuracy" in key or key in self.head["shares"]

    def score(self, key):
        """Of an accuracy: whose it is and on which images, in words; and these images.

        Two accuracies are compared if their images are the same. If the algorithm's file does not
        declare them, as those of client_accuracy_3, both are the metric's name.
        """
        name = self.name_of(key)
        if name not in self.head["scores"]:
            return name, name
        whose, images = self.head["scores"][name]
        return (f"{whose}, {images}", images) if images else (whose, "all test images")


def is_accuracy(key):
    """True for an accuracy: "clients", "server", or a metric that is called so. (Those that end in
    _as_public are shares of answers, not of right ones.)"""
    return key in ("clients", "server") or "accuracy" in key and not key.endswith("_as_public")


# ---------------------------------------------------------------------------------------- reading

def read_runs(paths, rounds=inf):
    """{label: [the run of each seed]} of folders and files, without the rounds after `rounds`.

    The labels of a folder are in the order in which their runs began: a label that joins is last.
    Raises BadInput if a folder has no run, a run is damaged, or the runs of a label are not those
    of one method with different seeds on the same data.
    """
    found = [run for path in paths for run in read_path(path)]
    inside, by_label = {}, {}                            # inside: {DIR: the labels of its runs}
    for run in found:
        if run.folder:
            inside.setdefault(run.folder, set()).add(run.label)
    for run in found:
        label = label_among(inside, run)
        by_label.setdefault(label, []).append(replace(run.up_to(rounds), label=label))
    for runs in by_label.values():
        runs.sort(key=lambda run: run.seed)
        refuse_different(runs)
    return by_label


def label_among(inside, run):
    """ALGO of DIR/ALGO-seedN; where several folders DIR hold runs, it is DIR/ALGO, or DIR if that
    holds no other."""
    if run.folder is None or len(inside) == 1:
        return run.label
    if len(inside[run.folder]) == 1:
        return run.folder.name
    return f"{run.folder.name}/{run.label}"


def read_path(path):
    """The runs of a folder, a metrics.jsonl or a .csv; the one that began first comes first."""
    runs = []
    for file in [path] if path.is_file() else sorted(path.rglob("metrics.jsonl")):
        try:
            if file.stat().st_size:
                runs += read_csv(file) if file.suffix == ".csv" else [read_run(file)]
        except BadInput:
            raise
        except (OSError, LookupError, TypeError, ValueError) as error:
            raise BadInput(f"{file} is damaged, or --out did not make it ({error})") from None
    if not runs:
        raise BadInput(f"{path} has no run of fedkd_minimal.py --out with a finished round")
    return sorted(runs, key=lambda run: run.begun)


def read_run(path):
    """The run of a metrics.jsonl in DIR/LABEL-seedN."""
    folder = path.parent.absolute()
    config = read_config(folder)
    rows, num_bytes = [json.loads(line) for line in path.read_text().splitlines()], 0
    for row in rows:
        num_bytes += row.get("bytes_up", 0) + row.get("bytes_down", 0)
        row["MB"] = num_bytes / 2**20
    settings = config["settings"]
    for name in ("dataset", "public", "data_root", "partition"):    # without a machine's folders
        if settings.get(name):
            settings[name] = Path(settings[name]).name
    label = folder.name.removesuffix(f"-seed{config['seed']}")
    if label == config["algo"].replace(":", "-"):        # it was not renamed
        label = config["algo"]
    head = {name: config[name] for name in HEAD}
    return Run(label, config["seed"], config["begun"], head, rows, folder.parent)


def read_csv(path):
    """The runs of the two files of `write_csv`."""
    runs = {}
    for group in json.loads(path.with_suffix(".json").read_text()):
        label, head = group["label"], {name: group[name] for name in HEAD}
        for seed in group["seeds"]:
            runs[label, seed] = Run(label, seed, group["begun"].get(str(seed), ""), head, [])
    for row in csv.DictReader(path.read_text().splitlines()):
        run = runs[row.pop("label"), int(row.pop("seed"))]
        run.rows.append({key: json.loads(text) for key, text in row.items() if text})
    return [*runs.values()]


def refuse_different(runs):
    """Raises BadInput if runs under one label are not of one method with different seeds. What an
    older run does not know does not count."""
    label, seeds = runs[0].label, [run.seed for run in runs]
    if len({*seeds}) < len(seeds):
        raise BadInput(f"{label} has two runs with one seed, {seeds}")
    values = {}                                          # {setting: its values in the runs}
    for run in runs:
        settings = run.head["settings"] | run.head["data"] | {
            "algo": run.head["algo"], "rounds": run.last_round}
        for name, value in settings.items():
            values.setdefault(name, set()).add(str(value))
    for name, found in values.items():
        if len(found) > 1 and name != "data_root":           # the files may be elsewhere
            raise BadInput(f"{label}: not all have the same {name}: {sorted(found)}; "
                           "compare after the same --rounds, or name folders separately")


# ---------------------------------------------------------------------------------------- writing

def write_csv(by_label, path):
    """Writes every metric of each round, and what else `read_csv` needs beside it, as .json.

    path    ends in .csv
    """
    every, groups, rows = [run for runs in by_label.values() for run in runs], [], []
    for head, group in groupby(every, lambda run: {"label": run.label, **run.head}):
        runs = [*group]                                  # they differ in their seeds alone
        groups.append(head | {"seeds": [run.seed for run in runs],
                              "begun": {run.seed: run.begun for run in runs if run.begun}})
    for run in every:
        for row in run.rows:
            short = {key: f"{x:.6g}" if isinstance(x, float) else x for key, x in row.items()}
            rows.append({"label": run.label, "seed": run.seed, **short})
    with path.open("w", newline="") as file:
        names = dict.fromkeys(key for row in rows for key in row)
        table = csv.DictWriter(file, names, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    path.with_suffix(".json").write_text(json.dumps(groups, indent=1) + "\n")
