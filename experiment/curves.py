"""Kept runs: reading and writing them, their metrics by round, means over seeds.

`curves` are {label: [the `Run` of each seed]}.
"""
import csv
import json
import re
from dataclasses import dataclass
from math import inf, sqrt
from pathlib import Path
from statistics import NormalDist, mean, stdev

from experiment.common import BadInput, read_config

HEAD = ("algo", "scores", "keys", "shares", "settings", "data", "environment")   # of config.json
# Student's t of 1, 2, ..., 30 degrees of freedom: |T| is below it with probability 95%.
T = (12.7062047, 4.3026527, 3.1824463, 2.7764451, 2.5705818, 2.4469119, 2.3646243, 2.3060041,
     2.2621572, 2.2281389, 2.2009852, 2.1788128, 2.1603687, 2.1447867, 2.1314495, 2.1199053,
     2.1098156, 2.1009220, 2.0930241, 2.0859634, 2.0796138, 2.0738731, 2.0686576, 2.0638986,
     2.0595386, 2.0555294, 2.0518305, 2.0484071, 2.0452296, 2.0422725)


@dataclass
class Run:
    """A run that --out has kept."""

    label: str
    seed: int
    begun: str       # when, as "2026-11-27T10:13:49.250000+00:00"; "" of an older run
    head: dict       # its config.json, of which `scores` are {accuracy: [whose, on which images]}
    rows: list       # the metrics of each round from 0 on; MB is the payload so far, up and down

    def metric(self, key):
        """The name of a metric in the rows.

        key    that name; or "clients", the clients' mean accuracy at the end of a round, "server",
               the server's on the same images; of ComU@x it is the clients'
        """
        return self.head["keys"].get("clients" if is_comu(key) else key, key)

    def is_accuracy(self, key):
        return "accuracy" in self.metric(key) and not is_comu(key)

    def is_share(self, key):
        """True for accuracies and other shares of 1, which are shown as percentages."""
        return self.is_accuracy(key) or key in self.head["shares"]

    def whose(self, key):
        """Whose accuracy a metric is, and on which images; its name if that is not declared."""
        name = self.metric(key)
        return ", ".join(filter(None, self.head["scores"].get(name, [name])))

    def images(self, key):
        """On which images an accuracy is measured: one that is not declared has its own ones."""
        name = self.metric(key)
        if "accuracy" not in name:
            return ""
        return self.head["scores"].get(name, [name, name])[1] or "all test images"

    def accuracy_on(self, images):
        """The first declared accuracy that is measured on these images, else `accuracy`."""
        return next((name for name in self.head["scores"] if self.images(name) == images),
                    "accuracy")

    def by_round(self, key):
        """[the metric, or None] of each row."""
        return [row.get(self.metric(key)) for row in self.rows]

    def megabytes_until(self, accuracy):
        """FedGEMS's ComU, Table 4: MB up and down until the clients' accuracy is reached, in six
        decimals, as `write_csv` keeps it; None if it is not."""
        return next((row["MB"] for row, value in zip(self.rows, self.by_round("clients"))
                     if value is not None and round(value, 6) >= accuracy), None)


def is_comu(key):
    return re.fullmatch(r"ComU@\d*\.?\d+", key) is not None


# ------------------------------------------------------------------------------- means over seeds

def half_width(values):
    """Half the width of the 95% confidence interval of the values' mean; None of one value."""
    dof = len(values) - 1                    # degrees of freedom
    if dof < 1:
        return None
    if dof <= len(T):
        t = T[dof - 1]
    else:                                    # Abramowitz and Stegun, 26.7.5
        z = NormalDist().inv_cdf(0.975)
        t = z + (z**3 + z) / (4 * dof) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * dof**2)
    return t * stdev(values) / sqrt(len(values))


def final(values):
    return values[-1]


def best(values):
    return max((x for x in values if x is not None), default=None)


def mean_of_last(number):
    """The measure: the mean of the last so many rounds, without those that have no value."""
    def measure(values):
        known = [x for x in values[-number:] if x is not None]
        return mean(known) if known else None
    return measure


def values_of(runs, key, measure):
    """{seed: measure([the metric of each round, or None])}, in percent if it is a share; of ComU@x
    the megabytes. A seed without a value is not in it."""
    if is_comu(key):
        accuracy = float(key.removeprefix("ComU@"))
        values = {run.seed: run.megabytes_until(accuracy) for run in runs}
    else:
        values = {run.seed: measure(run.by_round(key)) for run in runs if run.rows}
    scale = 100 if runs[0].is_share(key) else 1
    return {seed: scale * value for seed, value in values.items() if value is not None}


# ------------------------------------------------------------------------------- reading, writing

def read_runs(paths, rounds=inf):
    """{label: [the run of each seed]} of folders and files, without the rounds after `rounds`.

    The labels of a folder are in the order in which their runs began: a label that joins is last.
    Raises BadInput if a folder has no run, a run is damaged, or the runs of a label are not those
    of one method with different seeds on the same data.
    """
    found = [pair for path in paths for pair in read_files(path)]
    inside = {}                                          # {DIR: its labels}
    for folder, run in found:
        inside.setdefault(folder, set()).add(run.label)
    several, curves = len(inside.keys() - {None}) > 1, {}
    for folder, run in found:
        if folder and several:
            is_alone = len(inside[folder]) == 1
            run.label = folder.name if is_alone else f"{folder.name}/{run.label}"
        run.rows = [row for row in run.rows if row["round"] <= rounds]
        curves.setdefault(run.label, []).append(run)
    for runs in curves.values():
        runs.sort(key=lambda run: run.seed)
        refuse_different(runs)
    return curves


def read_files(path):
    """[(DIR, run)] of a folder, a metrics.jsonl or a .csv; the run that began first comes first."""
    files = [path] if path.is_file() else sorted(path.rglob("metrics.jsonl"))
    found = []
    for file in files:
        try:
            if file.stat().st_size:
                found += read_csv(file) if file.suffix == ".csv" else [read_run(file)]
        except BadInput:
            raise
        except (OSError, LookupError, TypeError, ValueError) as error:
            raise BadInput(f"{file} is damaged, or --out did not make it ({error})") from None
    if not found:
        raise BadInput(f"{path} has no run of fedkd_minimal.py --out with a finished round")
    return sorted(found, key=lambda pair: pair[1].begun)


def read_run(path):
    """(DIR, run) of a metrics.jsonl in DIR/LABEL-seedN."""
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
    return folder.parent, Run(label, config["seed"], config["begun"], head, rows)


def read_csv(path):
    """[(None, run)] of the two files of `write_csv`."""
    runs = {}
    for group in json.loads(path.with_suffix(".json").read_text()):
        label, head = group["label"], {name: group[name] for name in HEAD}
        runs |= {(label, seed): Run(label, seed, group["begun"].get(str(seed), ""), head, [])
                 for seed in group["seeds"]}
    for row in csv.DictReader(path.read_text().splitlines()):
        run = runs[row.pop("label"), int(row.pop("seed"))]
        run.rows.append({key: json.loads(text) for key, text in row.items() if text})
    return [(None, run) for run in runs.values()]


def write_csv(curves, path):
    """Writes every metric of each round, and what else `read_csv` needs beside it, as .json.

    path    ends in .csv
    """
    groups, rows = [], []
    for label, runs in curves.items():
        for run in runs:
            head = {"label": label, **run.head}
            if not groups or head != {name: groups[-1][name] for name in head}:
                groups.append(head | {"seeds": [], "begun": {}})   # seeds that differ in no more
            groups[-1]["seeds"].append(run.seed)
            if run.begun:
                groups[-1]["begun"][run.seed] = run.begun
            rows += [{"label": label, "seed": run.seed}
                     | {key: f"{x:.6g}" if isinstance(x, float) else x for key, x in row.items()}
                     for row in run.rows]
    with path.open("w", newline="") as file:
        names = dict.fromkeys(key for row in rows for key in row)
        table = csv.DictWriter(file, names, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    path.with_suffix(".json").write_text(json.dumps(groups, indent=1) + "\n")


def refuse_different(runs):
    """Raises BadInput if runs under one label are not of one method with different seeds. What an
    older run does not know does not count."""
    seeds = [run.seed for run in runs]
    if len({*seeds}) < len(seeds):
        raise BadInput(f"{runs[0].label} has two runs with one seed, {seeds}")
    several = [run.head["settings"] | run.head["data"]
               | {"algo": run.head["algo"], "rounds": len(run.rows) - 1} for run in runs]
    for name in dict.fromkeys(name for settings in several for name in settings):
        values = {str(settings[name]) for settings in several if name in settings}
        if len(values) > 1:
            raise BadInput(f"{runs[0].label}: not all have the same {name}: {sorted(values)}; "
                           "compare after the same --rounds, or name folders separately")
