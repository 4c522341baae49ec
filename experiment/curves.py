"""Kept runs: reading and writing them, their metrics by round, means over seeds.

`curves` are {label: [the run of each seed]}. A run is {HEAD..., "seed", "begun", "rows", "rounds"}:
a row has the metrics of a round, the first of round 0, and MB, the payload up and down so far;
begun is when round 0 ended, as "2026-11-27T10:13:49.250000+00:00", or "" of an older run.
"""
import csv
import json
from datetime import datetime, timezone
from functools import cache
from math import atan, cos, inf, pi, sin, sqrt
from pathlib import Path
from statistics import mean, stdev

HEAD = ("algo", "scores", "settings", "data", "environment")
SHARES = ("disagreement", "pool", "nobody_right",      # of 1, as accuracies are
          "self_training", "self_distillation", "ensemble_distillation")


def t_probability(t, n):
    """Of |T| < t for Student's t of n degrees of freedom.

    A sum of powers of cos(angle): Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle, odd = atan(t / sqrt(n)), n % 2
    terms = [cos(angle) if odd else 1.0]
    for j in range(2 + odd, n, 2):
        terms.append(terms[-1] * cos(angle)**2 * (j - 1) / j)
    found = sin(angle) * sum(terms) * (n > 1)
    return 2 / pi * (angle + found) if odd else found


@cache
def t_quantile(n):
    """Student's t of n degrees of freedom: |T| is below it with probability 95%; by bisection."""
    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_probability(middle, n) < 0.95 else (low, middle)
    return low


def half_width(values):
    """Half the width of the 95% confidence interval of the values' mean; None of one value."""
    n = len(values)
    return t_quantile(n - 1) * stdev(values) / sqrt(n) if n > 1 else None


def read_run(path):
    """[(DIR, label, run)] of a metrics.jsonl in DIR/LABEL-seedN."""
    folder = path.parent.absolute()
    config = json.loads((folder / "config.json").read_text())
    rows, num_bytes = [json.loads(line) for line in path.read_text().splitlines()], 0
    for row in rows:
        num_bytes += row.get("bytes_up", 0) + row.get("bytes_down", 0)
        row["MB"] = num_bytes / 2**20
    # A data set is known by its fingerprint, not by the folders of this machine.
    data = {name: x for name, x in {**config["data"], **config["fingerprints"]}.items()
            if name != "data_root"}
    settings = config["data"] | config["training"] | config["networks"] | config["hyperparameters"]
    paths = ("dataset", "public", "data_root", "partition")
    settings |= {name: Path(settings[name]).name for name in paths if settings.get(name)}
    run = {name: config[name] for name in ("algo", "seed", "scores", "environment")}
    timing = folder / "timing.jsonl"
    lines = timing.read_text().splitlines() if timing.exists() else []
    ended = json.loads(lines[0]).get("ended") if lines else None
    run["begun"] = datetime.fromtimestamp(ended, timezone.utc).isoformat() if ended else ""
    label = folder.name.removesuffix(f"-seed{run['seed']}")
    if label == run["algo"].replace(":", "-"):           # it was not renamed
        label = run["algo"]
    return [(folder.parent, label, run | {"settings": settings, "data": data, "rows": rows})]


def read_csv(path):
    """[(None, label, run)] of the two files of `write_csv`."""
    groups = json.loads(path.with_suffix(".json").read_text())
    runs = {(one["label"], seed): {name: one[name] for name in HEAD}
            | {"seed": seed, "begun": one.get("begun", {}).get(str(seed), ""), "rows": []}
            for one in groups for seed in one["seeds"]}
    for row in csv.DictReader(path.read_text().splitlines()):
        run = runs[row.pop("label"), int(row.pop("seed"))]
        run["rows"].append({key: json.loads(text) for key, text in row.items() if text})
    return [(None, label, run) for (label, _), run in runs.items()]


def write_csv(curves, path):
    """Writes every metric of each round, and what else `read_csv` needs beside it, as .json.

    path    ends in .csv
    """
    groups, rows = [], []
    for label, runs in curves.items():
        for run in runs:
            head = {"label": label, **{name: run[name] for name in HEAD}}
            if not groups or head != {name: groups[-1][name] for name in head}:
                groups.append(head | {"seeds": [], "begun": {}})   # seeds that differ in no more
            groups[-1]["seeds"].append(run["seed"])
            if run["begun"]:
                groups[-1]["begun"][run["seed"]] = run["begun"]
            rows += [{"label": label, "seed": run["seed"]}
                     | {key: f"{x:.6g}" if isinstance(x, float) else x for key, x in row.items()}
                     for row in run["rows"]]
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, dict.fromkeys(key for row in rows for key in row),
                               lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    path.with_suffix(".json").write_text(json.dumps(groups, indent=1) + "\n")


def read_runs(paths, rounds=inf):
    """{label: [the run of each seed]} of folders and files, without the rounds after `rounds`.

    The labels of a folder are in the order in which their runs began: a label that joins is last.
    Raises ValueError if a folder has no run, a run is damaged, or the runs of a label are not those
    of one method with different seeds on the same data.
    """
    found = []                                           # [(DIR, label in it, run)]
    for path in paths:
        files = [path] if path.is_file() else sorted(path.rglob("metrics.jsonl"))
        files = [file for file in files if file.stat().st_size]
        if not files:
            raise ValueError(f"{path} has no run of fedkd_minimal.py --out with a finished round")
        inside = []
        for file in files:
            try:
                inside += read_csv(file) if file.suffix == ".csv" else read_run(file)
            except (OSError, LookupError, TypeError, ValueError) as error:
                raise ValueError(f"{file} is damaged, or --out did not make it ({error})") from None
        found += sorted(inside, key=lambda one: one[2]["begun"])
    inside = {}                                          # {DIR: its labels}
    for folder, label, _ in found:
        inside.setdefault(folder, set()).add(label)
    curves = {}
    for folder, label, run in found:
        if folder and len(inside.keys() - {None}) > 1:
            alone = len(inside[folder]) == 1
            label = folder.name if alone else f"{folder.name}/{label}"
        run["rows"] = [row for row in run["rows"] if row["round"] <= rounds]
        run["rounds"] = len(run["rows"]) - 1
        curves.setdefault(label, []).append(run)
    for label, runs in curves.items():
        runs.sort(key=lambda run: run["seed"])
        seeds = [run["seed"] for run in runs]
        if len({*seeds}) < len(seeds):
            raise ValueError(f"{label} has two runs with one seed, {seeds}")
        refuse_different(label, [run["settings"] | run["data"] | {
            "algo": run["algo"], "rounds": run["rounds"]} for run in runs],
            "compare after the same --rounds, or name folders separately")
    return curves


def refuse_different(what, several, advice):
    """Raises ValueError if these {name: value} are not all the same."""
    for name in sorted({name for settings in several for name in settings}):
        values = {str(settings.get(name)) for settings in several}
        if len(values) > 1:
            raise ValueError(f"{what}: not all have the same {name}: {sorted(values)}; {advice}")


def is_accuracy(key):
    return "accuracy" in key or key in ("clients", "server")


def is_share(key):
    return is_accuracy(key) or key in SHARES


def metric_of(runs, key):
    """The name of a metric in the rows; of "clients", "server" and ComU@x the accuracy's."""
    scores = runs[0]["scores"]
    if key == "clients" or key.startswith("ComU@"):
        return clients_metric(scores)
    if key != "server":
        return key
    known = {name for run in runs for row in run["rows"] for name in row}
    names = [name for name in ("server_accuracy_private_test", "server_accuracy", *scores)
             if name in known and "own classes" not in scores.get(name, "")]
    return names[0] if names else "accuracy"


def whose(runs, key):
    """Whose accuracy a metric is; its own name if that is not declared, or it is no accuracy."""
    scores, key = runs[0]["scores"], metric_of(runs, key)
    return scores.get(next(iter(scores)) if key == "accuracy" else key, key)


def clients_metric(scores):
    """The name of the clients' mean accuracy at the end of a round; `accuracy` if there is none.

    It is the headline, unless that is the server's; then the first of the scores that is theirs.
    """
    if not next(iter(scores.values())).startswith("server"):
        return "accuracy"
    return next((name for name in scores if name.startswith("client_accuracy")), "accuracy")


def images_of(runs, key):
    """On which test images an accuracy is measured, in words: "private half, own classes", ...

    key    of an accuracy, or ComU@x
    """
    text, name = whose(runs, key), metric_of(runs, key)
    halves = any("half" in words for words in runs[0]["scores"].values())
    is_public = "public half" in text or name.endswith("public_test")
    which = "public" if is_public else "private" if halves else "all"
    is_own = "own classes" in text or name.endswith("_own")
    return f"{which} {'half' if halves else 'images'}{', own classes' * is_own}"


def by_round(run, key):
    """[the metric, or None] of each row.

    key    "clients": the clients' mean accuracy at the end of a round, whatever its name is;
           "server": the server's on the images on which clients are tested, the clients' where
           the server has no model. ComU@0.3 is FedGEMS's, Table 4: MB up and down until the
           clients' accuracy is 0.3 in six decimals, as `write_csv` keeps it; in the last row
    """
    name = metric_of([run], key)
    values = [row.get(name) for row in run["rows"]]
    if not key.startswith("ComU@"):
        return values
    reached = [row["MB"] for row, value in zip(run["rows"], values)
               if value is not None and round(value, 6) >= float(key.removeprefix("ComU@"))]
    return [None] * (len(values) - 1) + [*reached, None][:1]


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
    """{seed: measure([the metric of each round, or None])}, in percent if it is a share.

    A seed without a value is not in it.
    """
    scale = 100 if is_share(key) else 1
    values = {run["seed"]: measure(by_round(run, key)) for run in runs if run["rows"]}
    return {seed: scale * value for seed, value in values.items() if value is not None}
