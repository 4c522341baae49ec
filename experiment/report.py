"""What a run prints: its settings, a line per round, the summary."""
import statistics

from attacks import lie_z
from experiment import processes
from experiment.flags import value_text
from experiment.processes import say
from partition import PARTITIONS


def metric_text(value):
    """A metric in a log line: a share with four decimals, a count as it is, None as a dash."""
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.4f}"


def megabytes(num_bytes):
    """MB of 2^20 bytes with three significant digits, or all digits before the point."""
    value = num_bytes / 2**20
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds):
    """A time as 45s, 12min or 3.4h; None as a dash."""
    if seconds is None:
        return "-"
    if seconds < 600:
        return f"{seconds:.0f}s"
    return f"{seconds / 60:.0f}min" if seconds < 7200 else f"{seconds / 3600:.1f}h"


def heading(run, attack):
    """Prints the lines above the rounds of a run; attack: an `Attack`, or None."""
    resumed = f": resumed after round {run.state['round']}" if run.state else ""
    say(f"\n{run.label}, seed {run.seed}{resumed}")
    if attack is not None:
        say(f"malicious clients: {', '.join(map(str, attack.malicious))}")
    columns = run.algorithm.columns
    say("  ".join(["  round", *columns, "  MB up", "MB down", "seconds", "  left"]))


def tell_round(run):
    """Prints the last round of a run: metrics, MB, seconds, the time left, uploads left out."""
    metrics, seconds, rounds = run.rows[-1], run.timings[-1], run.settings["rounds"]
    later = [timing["round_seconds"] for timing in run.timings[1:]]    # round 0 trains nothing
    left = statistics.mean(later) * (rounds - metrics["round"]) if later else None
    cells = [f"{metrics['round']:>3}/{rounds:<3}"]
    cells += [metric_text(metrics.get(column)).rjust(len(column))
              for column in run.algorithm.columns]
    cells += [megabytes(metrics.get(key, 0)).rjust(7) for key in ("bytes_up", "bytes_down")]
    cells += [f"{seconds['round_seconds']:7.1f}", f"{duration(left):>6}"]
    if bad := metrics.get("bad_uploads"):
        cells.append(f"bad uploads (nan, infinity or too large): {bad}")
    say("  ".join(cells))


def mean_and_deviation(values):
    deviation = f"{statistics.stdev(values):.4f}" if len(values) > 1 else "-"
    return f"{statistics.mean(values):.4f} ± {deviation}"


def summary(runs):
    """Prints the table at the end of all runs."""
    lines = [("algorithm", "accuracy of", "seeds", "final", "best", "MB up", "MB down", "seconds")]
    for label in dict.fromkeys(run.label for run in runs):
        lines += summary_lines(label, [run for run in runs if run.label == label])
    print_table(lines, [str.ljust, str.ljust, str.rjust, str.ljust, str.ljust, *3 * [str.rjust]])


def summary_lines(label, seeds):
    """The summary's lines of an algorithm, one for each accuracy; seeds: its runs."""
    costs = [megabytes(statistics.mean(sum(row.get(key, 0) for row in run.rows) for run in seeds))
             for key in ("bytes_up", "bytes_down")]
    seconds = [sum(timing["round_seconds"] for timing in run.timings) for run in seeds]
    costs.append(f"{statistics.mean(seconds):.1f}")
    lines = []
    for key, whose in seeds[0].scores.items():
        of_rounds = [[row[key] for row in run.rows if row.get(key) is not None] for run in seeds]
        if all(of_rounds):
            final = mean_and_deviation([values[-1] for values in of_rounds])
            best = mean_and_deviation([max(values) for values in of_rounds])
            lines.append((label, whose, str(len(seeds)), final, best, *costs))
            label, costs = "", ("", "", "")              # once for each algorithm
    return lines


def print_table(lines, sides):
    """Prints lines of cells in columns; sides: str.ljust or str.rjust for each column."""
    widths = [max(map(len, cells)) for cells in zip(*lines)]
    say("")
    for line in lines:
        cells = [side(cell, width) for side, cell, width in zip(sides, line, widths)]
        say("  ".join(cells).rstrip())


def describe(plan, datasets, fingerprints, split, num_processes):
    """Prints what will run, and which settings differ from the defaults of the algorithm's file.

    split    see `build.split`, of the first seed
    """
    flags, environment = plan.flags, plan.environment
    say(f"torch {environment['torch']}, {environment['device']}, processes: {num_processes} on "
        f"{processes.num_cores()} cores, threads while the server trains: {environment['threads']}")
    say(f"{flags['dataset']}: {fingerprints['dataset']}")
    if datasets.foreign is not None:
        say(f"{flags['public']}: {fingerprints['public']}")
    say(f"seed {plan.seeds[0]}: {split_line(plan, datasets.foreign, split)}")
    if flags["attack"] is not None:
        strength = f"scale {flags['attack_scale']:g}"
        if flags["attack"] == "lie":
            z = flags["attack_z"]
            z = lie_z(flags["clients"], flags["attackers"]) if z is None else z
            strength = f"z {z:.3f}"
        say(f"attack: {flags['attack']} by {flags['attackers']} of {flags['clients']} clients, "
            + strength)
    basis = f"--paper {flags['paper']}" if flags["paper"] else "without --paper"
    for label, algorithm in plan.algorithms.items():
        networks = plan.networks[label]
        server = f", server {networks['server_model']}" if algorithm.server != "none" else ""
        defaults = {name: x.default for name, x in algorithm.hyperparameters.items()}
        changed = [f"{name} {value_text(value)} ({value_text(defaults[name])})"
                   for name, value in plan.settings[label].items() if value != defaults[name]]
        changes = f" except (in brackets): {', '.join(changed)}" if changed else ""
        network = ",".join(networks["model"])
        say(f"{label}: network {network}{server}; {basis}, the defaults{changes}")


HELD_OUT = {"half": "half of the training and test images", "half-train": "half of the training "
            "images", "fifth": "a fifth of the training images"}


def split_line(plan, foreign, split):
    """The line about clients and public images; foreign: another data set, or None."""
    flags, sizes, public = plan.flags, sorted(map(len, split.clients)), "none"
    if flags["public"] is not None:
        available = len(foreign.train.images if split.public is None else split.public)
        source = HELD_OUT.get(flags["public"], f"those of {flags['public']}")
        used = min(available, flags["public_size"] or available)
        public = f"{used}, {source}" if used == available else f"{used} of {available}, {source}"
        if flags["joint"]:
            public += " (its classes and the task's in one output layer)"
    _, needed = PARTITIONS[flags["partition"]]
    partition = flags["partition"] + (f", alpha {flags['alpha']}" if "alpha" in needed else "")
    size = f"{sizes[0]}" if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
    clients = f"{flags['clients']} clients with {size} samples each"
    notes = [f"{clients} ({partition})", f"public images: {public}"]
    if split.validation is not None:
        notes.append(f"validation images: {len(split.validation)}")
    if flags["augment"]:
        notes.append("augmented")
    if plan.environment["amp"]:
        notes.append("bfloat16")
    return "; ".join(notes)


def tell_settings(plan):
    """Prints all settings: those that the algorithms share, and those of each."""
    def text(settings):
        return ", ".join(f"{name} {value_text(value)}" for name, value in settings.items())
    say(f"\nall algorithms: {text(plan.flags)}")
    for label in plan.algorithms:
        say(f"{label}: {text(plan.networks[label] | plan.settings[label])}")


def tell_classes(plan, task, split):
    """Prints a table: how many samples of each class (columns) each client (rows) holds."""
    say(f"\nsamples of each class, seed {plan.seeds[0]}")
    counts = [task.train.labels[rows].bincount(minlength=task.num_classes).tolist()
              for rows in split.clients]
    names = task.class_names or [str(label) for label in range(task.num_classes)]
    lines = [("client", *names)] + [(str(i), *map(str, row)) for i, row in enumerate(counts)]
    print_table(lines, [str.rjust] * len(lines[0]))
