"""What a run prints: its settings, a line per round, the summary."""
import os
from dataclasses import asdict
from statistics import mean, stdev

from data.split import is_held_out, is_split_file
from experiment.common import table_text, text_of
from experiment.flags import flag_of
from experiment.processes import num_cores, say
from experiment.settings import Training
from partition import PARTITIONS


def metric_text(value):
    """A metric in a log line: a share with four decimals, a count as it is, None as a dash."""
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.4f}"


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
    program, images = command.program, command.images
    seed = program.seeds[0]
    split = datasets.splits[seed]
    if "WORLD_SIZE" in os.environ:
        say(f"{program.device}, {os.environ['WORLD_SIZE']} processes of torchrun")
    else:
        say(f"{program.device}, {num_processes} of {num_cores()} cores")
    for flag, text in datasets.fingerprints.items():
        say(f"{flag} {getattr(images, flag)}: {text}")
    if images.classes is not None and datasets.task.class_names:
        say(f"classes: {', '.join(datasets.class_names)}")
    say(f"seed {seed}: {'; '.join(notes_on_images(command, split))}")
    if command.note:
        say(command.note)
    counts = datasets.task.test.labels[split.test].bincount()
    largest, half = int(counts.argmax()), " (private half)" if images.public == "half" else ""
    say(f"test images: {len(split.test)}{half}; the answer {datasets.class_names[largest]} to all "
        f"of them has an accuracy of {counts[largest] / len(split.test):.4f}")
    for method in command.methods:
        say(f"{method.label}: {'; '.join(notes_on(method))}")


def notes_on_images(command, split):
    """Who has which images, and what else all methods share."""
    images, training = command.images, command.training
    sizes = [*map(len, split.clients)]
    size = " to ".join(map(str, sorted({min(sizes), max(sizes)})))
    if is_split_file(images):
        rule = "rows of the file"
    else:
        _, needed = PARTITIONS[images.partition]
        rule = ", ".join([images.partition] + [f"{name} {getattr(images, name)}" for name in needed
                                               if hasattr(images, name)])
    public = text_of(images.public)
    if is_split_file(images) and is_held_out(images):
        public = f"{len(split.public)} of the file"
    notes = [f"{images.clients} clients with {size} samples ({rule})", f"public images: {public}"]
    if images.validation is not None:
        notes.append(f"validation images: {len(split.validation)}")
    notes += ["joint"] if images.joint else []
    notes += [name if value is True else f"{name} {text_of(value)}"
              for name, value in asdict(training).items() if value != getattr(Training(), name)]
    if images.split_seed is not None:
        notes.append(f"split seed {images.split_seed}")
    return notes


def notes_on(method):
    """A method's line above the rounds: where methods differ, and what is not its default."""
    networks = f"network {text_of(method.networks.model)}"
    if method.algorithm.server != "none":
        networks += f", server {method.networks.server_model}"
    defaults, told = asdict(method.algorithm.Config()), []
    for name, value in asdict(method.cfg).items():
        if value != defaults[name]:
            told.append(f"{name} {text_of(value)} ({text_of(defaults[name])})")
        elif name in ("rounds", "participation"):
            told.append(f"{name} {text_of(value)}")
    notes = [networks, f"threads of the server {method.threads}",
             f"{', '.join(told)}, other settings as in its file"]
    if method.ignored:
        notes.append(f"it has no {', '.join(map(flag_of, method.ignored))}")
    return notes


def describe_all(command, datasets):
    """Prints all settings, and how many samples of each class (columns) each client (rows) has."""
    tables = [("all algorithms", command.images, command.training)]
    tables += [(method.label, method.networks, method.cfg) for method in command.methods]
    say("")
    for label, *parts in tables:
        settings = [f"{name} {text_of(value)}" for part in parts
                    for name, value in asdict(part).items()]
        say(f"{label}: {', '.join(settings)}")
    seeds = command.program.seeds
    differ = len(seeds) > 1 and command.images.split_seed is None
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
    title, done = f"\n{record.method.label}, seed {record.seed}", len(record.rows) - 1
    is_complete = done >= record.method.cfg.rounds
    if is_complete:
        title += f": complete, {done} rounds"
    elif record.rows:
        title += f": after round {done}"
    say(title)
    if record.begun_with:
        say(f"begun with {record.begun_with}: the numbers may differ")
    if is_complete:
        return
    if attack is not None:
        noun = "client" if len(attack.malicious) == 1 else "clients"
        say(f"malicious: {noun} {', '.join(map(str, attack.malicious))}")
    say("  ".join(["  round", *columns_of(record), "  MB up", "MB down", "seconds", "  left"]))


def tell_round(record, records):
    """Prints the last round of a run: metrics, MB, seconds, the time left, uploads left out."""
    metrics, seconds = record.rows[-1], record.timings[-1]["round_seconds"]
    cells = [f"{metrics['round']:>3}/{record.method.cfg.rounds:<3}"]
    cells += [metric_text(metrics.get(column)).rjust(len(column))
              for column in columns_of(record)]
    cells += [megabytes(metrics.get(key, 0)).rjust(7) for key in ("bytes_up", "bytes_down")]
    left = seconds_left(records)
    cells += [f"{seconds:7.1f}", f"{'-' if left is None else duration(left):>6}"]
    if bad := metrics.get("bad_uploads"):
        cells.append(f"bad uploads (nan, infinity or too large): {bad}")
    say("  ".join(cells))


def columns_of(record):
    """The metrics in a round's line; of a joint layer also the answers with a public class."""
    algorithm = record.method.algorithm
    is_joint = record.config["settings"]["joint"] and algorithm.public == "joint"
    more = ["client_accuracy_private_as_public"] if is_joint else []
    return (*algorithm.scores, *algorithm.columns, *more)


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
    table = [["algorithm", "accuracy of", "seeds", "final", "best", "MB up", "MB down", "seconds"]]
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
    deviation = f"{stdev(values):.4f}" if len(values) > 1 else "-"
    return f"{mean(values):.4f} ± {deviation}"
