"""What a run prints: its settings, a line per round, the summary."""
import dataclasses
import statistics

from attacks import lie_z
from experiment import build
from experiment.keep import networks_in
from experiment.processes import num_cores, say
from experiment.settings import HELD_OUT, flag_of, text_of
from federation import HUGE


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


def print_table(lines, sides):
    """Prints lines of cells in columns; sides: str.ljust or str.rjust for each column."""
    widths = [max(map(len, cells)) for cells in zip(*lines)]
    say("")
    for line in lines:
        cells = [side(cell, width) for side, cell, width in zip(sides, line, widths)]
        say("  ".join(cells).rstrip())


def describe(command, datasets, num_processes):
    """Prints what will run, on which data, and what differs from the defaults of the files."""
    found = command.shared
    split, task = build.split(found, datasets, command.seeds[0]), datasets.task
    say(f"{command.program['device']}, {num_processes} of {num_cores()} cores")
    for flag, text in datasets.fingerprints.items():
        say(f"{flag} {found[flag]}: {text}")
    if found["classes"] is not None and datasets.task.class_names:
        say(f"classes: {', '.join(datasets.task.class_names)}")
    sizes = [*map(len, split.clients)]
    size = " to ".join(map(str, sorted({min(sizes), max(sizes)})))
    rule, public = f"{found['partition']}, alpha {found['alpha']}", text_of(found["public"])
    if datasets.rows:
        rule = "rows of the file"
        public = f"{len(split.public)} of the file" if public in HELD_OUT else public
    notes = [f"{found['clients']} clients with {size} samples ({rule})", f"public images: {public}"]
    if found["validation"] is not None:
        notes.append(f"validation images: {len(split.validation)}")
    if found["attack"]:
        z = found["attack_z"]
        z = lie_z(found["clients"], found["attackers"]) if z is None else z
        strength = f"z {z:.3f}" if found["attack"] == "lie" else f"scale {found['attack_scale']:g}"
        notes.append(f"{found['attack']} by {found['attackers']} of {found['clients']} clients, "
                     + strength)
    notes += [name for name in ("joint", "augment", "amp") if found[name]]
    if found["split_seed"] is not None:
        notes.append(f"split seed {found['split_seed']}")
    say(f"seed {command.seeds[0]}: {'; '.join(notes)}")
    counts = task.test.labels[split.test].bincount()
    largest = int(counts.argmax())
    name = build.class_names(found, task)[largest]
    say(f"test images: {len(split.test)}{' (private half)' * (found['public'] == 'half')}; the "
        f"answer {name} to all of them has an accuracy of {counts[largest] / len(split.test):.4f}")
    for method in command.methods:
        say(f"{method.label}: {'; '.join(notes_on(method))}")


def notes_on(method):
    """A method's line above the rounds: where methods differ, and what is not its default."""
    networks = f"network {text_of(method.networks['model'])}"
    if method.algorithm.server != "none":
        networks += f", server {method.networks['server_model']}"
    defaults, told = dataclasses.asdict(method.algorithm.Config()), []
    for name, value in method.hyperparameters.items():
        if value != defaults[name]:
            told.append(f"{name} {text_of(value)} ({text_of(defaults[name])})")
        elif name in ("rounds", "participation"):
            told.append(f"{name} {text_of(value)}")
    notes = [networks, f"threads of the server {method.threads}",
             f"{', '.join(told)}, other settings as in its file"]
    if method.lacks:
        notes.append(f"it has no {', '.join(map(flag_of, method.lacks))}")
    return notes


def describe_all(command, datasets):
    """Prints all settings, and how many samples of each class (columns) each client (rows) has."""
    def text(settings):
        return ", ".join(f"{name} {text_of(value)}" for name, value in settings.items())

    say(f"\nall algorithms: {text(command.shared)}")
    for method in command.methods:
        say(f"{method.label}: {text(method.networks | method.hyperparameters)}")
    differ = len(command.seeds) > 1 and command.shared["split_seed"] is None
    others = "; other seeds divide the images otherwise" * differ
    say(f"\nsamples of each class, seed {command.seeds[0]}{others}")
    task = datasets.task
    names = build.class_names(command.shared, task)
    lines = [("client", *names)]
    for i, rows in enumerate(build.split(command.shared, datasets, command.seeds[0]).clients):
        counts = task.train.labels[rows].bincount(minlength=task.num_classes)
        lines.append((str(i), *map(str, counts.tolist())))
    print_table(lines, [str.rjust] * len(lines[0]))


def heading(record, attack):
    """Prints the lines above the rounds of a run; attack: an `Attack`, or None."""
    title, rounds = f"\n{record.method.label}, seed {record.seed}", last_round(record)
    done = record.state["round"] if record.state else None
    complete = done is not None and done >= rounds
    if complete:
        say(f"{title}: complete, {done} rounds")
    else:
        say(title + ("" if done is None else f": after round {done}"))
    if record.begun_with:
        say(f"begun with {record.begun_with}: the numbers may differ")
    if complete:
        return
    if attack is not None:
        say(f"malicious clients: {', '.join(map(str, attack.malicious))}")
    say("  ".join(["  round", *columns_of(record), "  MB up", "MB down", "seconds", "  left"]))


def tell_round(record, records):
    """Prints the last round of a run: metrics, MB, seconds, the time left, uploads left out."""
    metrics, seconds = record.rows[-1], record.timings[-1]["round_seconds"]
    cells = [f"{metrics['round']:>3}/{last_round(record):<3}"]
    cells += [metric_text(metrics.get(column)).rjust(len(column))
              for column in columns_of(record)]
    cells += [megabytes(metrics.get(key, 0)).rjust(7) for key in ("bytes_up", "bytes_down")]
    left = seconds_left(records)
    cells += [f"{seconds:7.1f}", f"{'-' if left is None else duration(left):>6}"]
    if bad := metrics.get("bad_uploads"):
        cells.append(f"bad uploads (nan, infinity or too large): {bad}")
    if wild := diverged(record):
        cells.append(f"diverged models (weights of nan, infinity or 1e30 and more): {wild}")
    say("  ".join(cells))


def columns_of(record):
    """The metrics in a round's line; of a joint layer also the answers with a public class."""
    algorithm = record.method.algorithm
    is_joint = record.config["data"]["joint"] and algorithm.public == "joint"
    more = ["client_accuracy_private_as_public"] if is_joint else []
    return (*algorithm.scores, *algorithm.columns, *more)


def diverged(record):
    """How many models of a run have a weight that is not finite, or HUGE."""
    def is_wild(w):
        return not (w.abs() < HUGE).all()

    models = networks_in(record.state, record.method.algorithm, record.method.networks).values()
    return sum(any(is_wild(w) for _, weights in parts for w in weights.values()
                   if w.is_floating_point()) for parts in models)


def seconds_left(records):
    """Of all rounds that are left, at their method's mean so far, or the mean of all; or None."""
    times = {}                                           # {label: [of each round]}
    for record in records:                               # round 0 trains nothing
        known = [timing["round_seconds"] for timing in record.timings[1:]]
        times.setdefault(record.method.label, []).extend(known)
    every = [x for known in times.values() for x in known]
    if not every:
        return None
    return sum(statistics.mean(times[record.method.label] or every)
               * (last_round(record) - max(0, len(record.rows) - 1)) for record in records)


def last_round(record):
    """How many rounds the command asks for."""
    return record.method.hyperparameters["rounds"]


def summary(records):
    """Prints the table at the end: a line for each accuracy of each method."""
    lines = [("algorithm", "accuracy of", "seeds", "final", "best", "MB up", "MB down", "seconds")]
    for label in dict.fromkeys(record.method.label for record in records):
        of_seeds = [record for record in records if record.method.label == label]
        costs = [megabytes(statistics.mean(sum(row.get(key, 0) for row in record.rows)
                                           for record in of_seeds))
                 for key in ("bytes_up", "bytes_down")]
        times = [sum(timing["round_seconds"] for timing in record.timings) for record in of_seeds]
        costs.append(f"{statistics.mean(times):.1f}")
        for key, whose in of_seeds[0].config["scores"].items():
            values = [[row[key] for row in record.rows if row.get(key) is not None]
                      for record in of_seeds]
            if all(values):
                final = mean_and_deviation([record.rows[-1].get(key) for record in of_seeds])
                best = mean_and_deviation([max(of_rounds) for of_rounds in values])
                lines.append((label, whose, str(len(of_seeds)), final, best, *costs))
                label, costs = "", ("", "", "")          # once for each method
    print_table(lines, [str.ljust, str.ljust, str.rjust, str.ljust, str.ljust, *3 * [str.rjust]])


def mean_and_deviation(values):
    """Of the seeds; a dash if one of them has no value."""
    if None in values:
        return "-"
    deviation = f"{statistics.stdev(values):.4f}" if len(values) > 1 else "-"
    return f"{statistics.mean(values):.4f} ± {deviation}"
