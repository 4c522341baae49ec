"""What a run prints: its settings, a line per round, the summary."""
import os
from dataclasses import asdict
from statistics import mean, stdev

from data.split import is_held_out, is_split_file
from experiment.common import table_text, text_of
from experiment.flags import flag_of
from experiment.processes import num_cores
from experiment.settings import Training
from experiment.terminal import say
from partition import PARTITIONS


def metric_text(value):
    """A metric in a log line: a share with four decimals, a count as it is, None as a dash."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.4f}"


def megabytes(num_bytes):
    """MB of 2^20 bytes with three significant digits, or all digits before the point."""
    value = num_bytes / 2**20
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds):
    """A time as 45s, 12min or 3.4h."""
    if seconds < 600:
        return f"{seconds:.0f}s"
    return f"{seconds / 60:.0f}min" if seconds < 7200 else f"{seconds / 3600:.1f}h"


# ------------------------------------------------------------------------------ before the rounds

def describe(command, datasets, num_processes):
    """Prints what will run, on which data, and what differs from the defaults of the files."""
    program, data_cfg = command.program, command.data_cfg
    seed = program.seeds[0]
    split = datasets.splits[seed]
    cores = f"{num_processes} of {num_cores()} cores"
    if "WORLD_SIZE" in os.environ:
        cores = f"{os.environ['WORLD_SIZE']} processes of torchrun"
    say(f"{program.device}, {cores}")
    for flag, text in datasets.fingerprints.items():
        say(f"{flag} {getattr(data_cfg, flag)}: {text}")
    if data_cfg.classes is not None and datasets.task.class_names:
        say(f"classes: {', '.join(datasets.class_names)}")
    notes = [*notes_on_images(data_cfg, split), *notes_on_training(data_cfg, command.training)]
    say(f"seed {seed}: {'; '.join(notes)}")
    if command.note:
        say(command.note)
    say(f"test images: {constant_answer(data_cfg, datasets, split)}")
    for method in command.methods:
        say(f"{method.label}: {'; '.join(notes_on(method))}")


def notes_on_images(data_cfg, split):
    """Who has which images."""
    sizes, rule, public = [*map(len, split.clients)], data_cfg.partition, text_of(data_cfg.public)
    if is_split_file(data_cfg):
        rule = "rows of the file"
        if is_held_out(data_cfg):
            public = f"{len(split.public)} of the file"
    else:
        for name in PARTITIONS[data_cfg.partition][1]:         # the settings that it needs
            if hasattr(data_cfg, name):
                rule += f", {name} {getattr(data_cfg, name)}"
    size = f"{min(sizes)} to {max(sizes)}" if min(sizes) < max(sizes) else sizes[0]
    notes = [f"{data_cfg.clients} clients with {size} samples ({rule})", f"public images: {public}"]
    if data_cfg.validation is not None:
        notes.append(f"validation images: {len(split.validation)}")
    return notes


def notes_on_training(data_cfg, training):
    """What else all methods share, where it is not the default."""
    notes = ["joint"] if data_cfg.joint else []
    for name, value in asdict(training).items():
        if value != getattr(Training(), name):
            notes.append(name if value is True else f"{name} {text_of(value)}")
    return notes if data_cfg.split_seed is None else [*notes, f"split seed {data_cfg.split_seed}"]


def constant_answer(data_cfg, datasets, split):
    """The number of test images, and the accuracy of their most frequent class as an answer."""
    counts = datasets.task.test.labels[split.test].bincount()
    largest, half = int(counts.argmax()), " (private half)" if data_cfg.public == "half" else ""
    return (f"{len(split.test)}{half}; the answer {datasets.class_names[largest]} to all of them "
            f"has an accuracy of {counts[largest] / len(split.test):.4f}")


def notes_on(method):
    """A method's line above the rounds: where methods differ, and what is not its default."""
    networks = f"network {text_of(method.networks.model)}"
    if method.algorithm.server != "none":
        networks += f", server {method.networks.server_model}"
    defaults, told = asdict(method.algorithm.Config()), []
    for name, value in asdict(method.cfg).items():
        if value != defaults[name]:
            told.append(f"{name} {text_of(value)} (default {text_of(defaults[name])})")
        elif name in ("rounds", "participation"):
            told.append(f"{name} {text_of(value)}")
    notes = [networks, f"threads of the server {method.threads}",
             f"{', '.join(told)}, other settings as in its file"]
    if method.ignored:
        notes.append(f"it has no {', '.join(map(flag_of, method.ignored))}")
    return notes


def describe_all(command, datasets):
    """Prints all settings, and how many samples of each class (columns) each client (rows) has."""
    tables = [("all algorithms", command.data_cfg, command.training)]
    tables += [(method.label, method.networks, method.cfg) for method in command.methods]
    say("")
    for label, *parts in tables:
        settings = [f"{name} {text_of(value)}" for part in parts
                    for name, value in asdict(part).items()]
        say(f"{label}: {', '.join(settings)}")
    seeds = command.program.seeds
    differ = len(seeds) > 1 and command.data_cfg.split_seed is None
    others = "; other seeds divide the images otherwise" if differ else ""
    say(f"\nsamples of each class, seed {seeds[0]}{others}\n")
    task, table = datasets.task, [["client", *datasets.class_names]]
    for i, rows in enumerate(datasets.splits[seeds[0]].clients):
        counts = task.train.labels[rows].bincount(minlength=task.num_classes)
        table.append([str(i), *map(str, counts.tolist())])
    say(table_text(table, "r" * len(table[0])).rstrip("\n"))


# ------------------------------------------------------------------------------------ the rounds

def heading(record, attack):
    """Prints the lines above the rounds of a run; attack: an `Attack`, or None."""
    done = len(record.rows) - 1
    is_complete, progress = done >= record.method.cfg.rounds, ""
    if is_complete:
        progress = f": complete, {done} rounds"
    elif record.rows:
        progress = f": after round {done}"
    say(f"\n{record.method.label}, seed {record.seed}{progress}")
    if record.begun_with:
        say(f"begun with {record.begun_with}: the numbers may differ")
    if is_complete:
        return
    if attack is not None:
        noun = "client" if len(attack.malicious) == 1 else "clients"
        say(f"malicious: {noun} {', '.join(map(str, attack.malicious))}")
    say(aligned(record, ["round", *columns_of(record), "MB up", "MB down", "seconds", "left"]))


def tell_round(record, records):
    """Prints the last round of a run: metrics, MB, seconds, the time left, uploads left out."""
    metrics, left = record.rows[-1], seconds_left(records)
    line = aligned(record, [
        f"{metrics['round']:>3}/{record.method.cfg.rounds:<3}",
        *(metric_text(metrics.get(column)) for column in columns_of(record)),
        *(megabytes(metrics.get(key, 0)) for key in ("bytes_up", "bytes_down")),
        f"{record.timings[-1]['round_seconds']:.1f}", "-" if left is None else duration(left)])
    if bad := metrics.get("bad_uploads"):
        line += f"  bad uploads (nan, infinity or too large): {bad}"
    say(line)


def aligned(record, cells):
    """A line of the log: cells below the titles of their columns."""
    widths = [7, *map(len, columns_of(record)), 7, 7, 7, 6]
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths))


def columns_of(record):
    """The metrics in a round's line."""
    return (*record.method.algorithm.scores, *record.method.algorithm.columns)


def seconds_left(records):
    """Of all rounds that are left, at their method's mean so far, or the mean of all; or None."""
    times = {}                                           # {label: [of each round]}
    for record in records:                               # round 0 trains nothing
        known = [timing["round_seconds"] for timing in record.timings[1:]]
        times.setdefault(record.method.label, []).extend(known)
    every = [x for known in times.values() for x in known]
    if not every:
        return None
    return sum(mean(times[record.method.label] or every)
               * (record.method.cfg.rounds - max(0, len(record.rows) - 1)) for record in records)


# ----------------------------------------------------------------------------------- the summary

def summary(records):
    """Prints the table at the end: a line for each accuracy of each method."""
    std = " ± std" if len({record.seed for record in records}) > 1 else ""
    table = [["algorithm", "accuracy of", "seeds", f"final{std}", f"best{std}", "MB up", "MB down",
              "seconds"]]
    for label in dict.fromkeys(record.method.label for record in records):
        of_seeds = [record for record in records if record.method.label == label]
        head, costs = label, costs_of(of_seeds)          # once for each method
        for key in of_seeds[0].method.algorithm.scores:
            whose, images = of_seeds[0].config["scores"][key]
            values = [[row[key] for row in record.rows if row.get(key) is not None]
                      for record in of_seeds]
            if all(values):
                final = mean_and_deviation([record.rows[-1].get(key) for record in of_seeds])
                best = mean_and_deviation([max(of_rounds) for of_rounds in values])
                table.append([head, ", ".join(filter(None, [whose, images])), str(len(of_seeds)),
                              final, best, *costs])
                head, costs = "", ["", "", ""]
    say("\n" + table_text(table, "llrllrrr").rstrip("\n"))


def costs_of(records):
    """The cells MB up, MB down and seconds: means over the seeds of sums over the rounds."""
    up, down = (mean(sum(row.get(key, 0) for row in record.rows) for record in records)
                for key in ("bytes_up", "bytes_down"))
    seconds = mean(sum(timing["round_seconds"] for timing in record.timings) for record in records)
    return [megabytes(up), megabytes(down), f"{seconds:.1f}"]


def mean_and_deviation(values):
    """Of the seeds; a dash if one of them has no value."""
    if None in values:
        return "-"
    deviation = f" ± {stdev(values):.4f}" if len(values) > 1 else ""
    return f"{mean(values):.4f}{deviation}"
