"""What a run prints: its settings, a line per round, the summary."""
import dataclasses
import math
import statistics

from attacks import HUGE, lie_z
from experiment import build
from experiment.keep import networks_in
from experiment.processes import num_cores, say
from experiment.settings import text_of


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
    found = command.federation
    split = build.split(found, datasets.task, command.seeds[0])
    say(f"{command.program['device']}, {num_processes} of {num_cores()} cores")
    for flag, text in datasets.fingerprints.items():
        say(f"{flag} {found[flag]}: {text}")
    if found["classes"] is not None and datasets.task.class_names:
        say(f"classes: {', '.join(datasets.task.class_names)}")
    sizes = [*map(len, split.clients)]
    size = " to ".join(map(str, sorted({min(sizes), max(sizes)})))
    notes = [f"{found['clients']} clients with {size} samples ({found['partition']}, alpha "
             f"{found['alpha']})", f"public images: {text_of(found['public'])}"]
    if split.validation is not None:
        notes.append(f"validation images: {len(split.validation)}")
    if found["attack"]:
        z = found["attack_z"]
        z = lie_z(found["clients"], found["attackers"]) if z is None else z
        strength = f"z {z:.3f}" if found["attack"] == "lie" else f"scale {found['attack_scale']:g}"
        notes.append(f"{found['attack']} by {found['attackers']} of {found['clients']} clients, "
                     + strength)
    notes += [name for name in ("joint", "augment", "amp") if found[name]]
    say(f"seed {command.seeds[0]}: {'; '.join(notes)}")
    for method in command.methods:
        networks = text_of(method.networks["model"])
        if method.algorithm.server != "none":
            networks += f", server {method.networks['server_model']}"
        defaults = dataclasses.asdict(method.algorithm.Config())
        changed = [f"{name} {text_of(value)} ({text_of(defaults[name])})"
                   for name, value in method.settings.items() if value != defaults[name]]
        say(f"{method.label}: network {networks}; threads of the server {method.threads}; "
            f"the defaults of its file, but for: {', '.join(changed) or 'none'}")


def describe_all(command, datasets):
    """Prints all settings, and how many samples of each class (columns) each client (rows) has."""
    def text(settings):
        return ", ".join(f"{name} {text_of(value)}" for name, value in settings.items())

    say(f"\nall algorithms: {text(command.federation)}")
    for method in command.methods:
        say(f"{method.label}: {text(method.networks | method.settings)}")
    others = "; other seeds divide the images otherwise" * (len(command.seeds) > 1)
    say(f"\nsamples of each class, seed {command.seeds[0]}{others}")
    task = datasets.task
    names = task.class_names or [str(label) for label in range(task.num_classes)]
    lines = [("client", *names)]
    for i, rows in enumerate(build.split(command.federation, task, command.seeds[0]).clients):
        counts = task.train.labels[rows].bincount(minlength=task.num_classes)
        lines.append((str(i), *map(str, counts.tolist())))
    print_table(lines, [str.rjust] * len(lines[0]))


def heading(run, attack):
    """Prints the lines above the rounds of a run; attack: an `Attack`, or None."""
    title, rounds = f"\n{run.method.label}, seed {run.seed}", run.method.settings["rounds"]
    done = run.state["round"] if run.state else None
    if done is not None and done >= rounds:
        say(f"{title}: complete, {done} rounds")
        return
    say(title + ("" if done is None else f": after round {done}"))
    if run.begun_with:
        say(f"begun with {run.begun_with}: the last digits may differ")
    if attack is not None:
        say(f"malicious clients: {', '.join(map(str, attack.malicious))}")
    say("  ".join(["  round", *columns_of(run), "  MB up", "MB down", "seconds", "  left"]))


def tell_round(run, runs):
    """Prints the last round of a run: metrics, MB, seconds, the time left, uploads left out."""
    metrics, seconds = run.rows[-1], run.timings[-1]["round_seconds"]
    cells = [f"{metrics['round']:>3}/{run.method.settings['rounds']:<3}"]
    cells += [metric_text(metrics.get(column)).rjust(len(column))
              for column in columns_of(run)]
    cells += [megabytes(metrics.get(key, 0)).rjust(7) for key in ("bytes_up", "bytes_down")]
    left = seconds_left(runs)
    cells += [f"{seconds:7.1f}", f"{'-' if left is None else duration(left):>6}"]
    if bad := metrics.get("bad_uploads"):
        cells.append(f"bad uploads (nan, infinity or too large): {bad}")
    if wild := diverged(run):
        cells.append(f"diverged models (weights of nan, infinity or 1e30 and more): {wild}")
    say("  ".join(cells))


def columns_of(run):
    """The metrics in a round's line; of a joint layer also the answers with a public class."""
    algorithm = run.method.algorithm
    is_joint = run.config["data"]["joint"] and algorithm.public == "joint"
    return (*algorithm.log_columns, *(["client_accuracy_private_as_public"] if is_joint else []))


def diverged(run):
    """How many models of a run have a weight that is not finite, or HUGE; -inf may be a mask."""
    def is_wild(w):
        return bool((w.isnan() | (w.abs() >= HUGE) & (w != -math.inf)).any())

    models = networks_in(run.state, run.method.algorithm, run.method.networks).values()
    return sum(any(is_wild(w) for _, weights in parts for w in weights.values()
                   if w.is_floating_point()) for parts in models)


def seconds_left(runs):
    """Of all rounds that are left, at their method's mean so far, or the mean of all; or None."""
    seconds = {}                                         # {label: [of each round]}
    for run in runs:                                     # round 0 trains nothing
        known = [timing["round_seconds"] for timing in run.timings[1:]]
        seconds.setdefault(run.method.label, []).extend(known)
    every = [x for known in seconds.values() for x in known]
    if not every:
        return None
    return sum(statistics.mean(seconds[run.method.label] or every)
               * max(0, run.method.settings["rounds"] - max(0, len(run.rows) - 1)) for run in runs)


def summary(runs):
    """Prints the table at the end: a line for each accuracy of each method."""
    lines = [("algorithm", "accuracy of", "seeds", "final", "best", "MB up", "MB down", "seconds")]
    for label in dict.fromkeys(run.method.label for run in runs):
        seeds = [run for run in runs if run.method.label == label]
        costs = [megabytes(statistics.mean(sum(row.get(key, 0) for row in run.rows)
                                           for run in seeds)) for key in ("bytes_up", "bytes_down")]
        seconds = [sum(timing["round_seconds"] for timing in run.timings) for run in seeds]
        costs.append(f"{statistics.mean(seconds):.1f}")
        for key, whose in seeds[0].config["scores"].items():
            values = [[row[key] for row in run.rows if row.get(key) is not None] for run in seeds]
            if all(values):
                final = mean_and_deviation([run.rows[-1].get(key) for run in seeds])
                best = mean_and_deviation([max(of_rounds) for of_rounds in values])
                lines.append((label, whose, str(len(seeds)), final, best, *costs))
                label, costs = "", ("", "", "")          # once for each method
    print_table(lines, [str.ljust, str.ljust, str.rjust, str.ljust, str.ljust, *3 * [str.rjust]])


def mean_and_deviation(values):
    """Of the seeds; a dash if one of them has no value."""
    if None in values:
        return "-"
    deviation = f"{statistics.stdev(values):.4f}" if len(values) > 1 else "-"
    return f"{statistics.mean(values):.4f} ± {deviation}"
