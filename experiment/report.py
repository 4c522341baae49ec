"""What a run prints: its settings, a line per round, the summary."""
import statistics
import time

from federation.communication import bytes_until
from attacks import lie_z
from experiment import process
from experiment.accuracies import whose_accuracy
from experiment.config import reference_settings
from experiment.flags import value_text
from experiment.process import say


class Clock:
    """A run's clock."""

    def __init__(self, run, fed):
        self.run, self.fed = run, fed
        self.round_start = time.perf_counter()

    def seconds_of_round(self):
        """{"round_seconds": since the last round, and "NAME_seconds" of each @timed function}."""
        now = time.perf_counter()
        seconds = {"round_seconds": now - self.round_start}
        seconds |= {f"{name}_seconds": x for name, x in self.fed.seconds.items()}
        self.fed.seconds.clear()
        self.round_start = now
        return seconds


def metric_text(value):
    """A metric in a log line: a share with four decimals, a count as it is, None as a dash."""
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.4f}"


def duration(seconds):
    """A time as 45s, 12min, 3.4h or 2.1 days; None as a dash."""
    if seconds is None:
        return "-"
    if seconds < 600:
        return f"{seconds:.0f}s"
    if seconds < 7200:
        return f"{seconds / 60:.0f}min"
    return f"{seconds / 3600:.1f}h" if seconds < 172800 else f"{seconds / 86400:.1f} days"


def heading(run, fed):
    """Prints the lines above the rounds of a run."""
    resumed = f": resumed after round {run.state['round']}" if run.state else ""
    say(f"\n{run.label}, seed {run.seed}{resumed}")
    if run.algorithm.announcement:
        say(run.algorithm.announcement(fed, run.settings))
    columns = run.algorithm.columns
    say("  ".join(["  round", *columns, "  MB up", "MB down", "seconds", "  left"]))


def tell_round(run):
    """Prints the last round of a run: metrics, MB of 2^20 bytes, seconds, the time left."""
    metrics, seconds, rounds = run.rows[-1], run.timings[-1], run.settings["rounds"]
    later = [timing["round_seconds"] for timing in run.timings[1:]]    # round 0 trains nothing
    left = statistics.mean(later) * (rounds - metrics["round"]) if later else None
    cells = [f"{metrics['round']:>3}/{rounds:<3}"]
    cells += [metric_text(metrics.get(column)).rjust(len(column))
              for column in run.algorithm.columns]
    cells += [f"{metrics.get(key, 0) / 2**20:7.2f}" for key in ("bytes_up", "bytes_down")]
    cells += [f"{seconds['round_seconds']:7.1f}", f"{duration(left):>6}"]
    if metrics.get("bad_uploads"):
        cells.append(f"{metrics['bad_uploads']} uploads were not finite")
    say("  ".join(cells))


def mean_and_deviation(values):
    deviation = f"{statistics.stdev(values):.4f}" if len(values) > 1 else "-"
    return f"{statistics.mean(values):.4f} ± {deviation}"


def summary(runs):
    """Prints the table at the end of all runs, and with --comu the bytes until each accuracy."""
    lines = [("algorithm", "accuracy of", "seeds", "final", "best", "MB up", "MB down", "seconds")]
    notes = []
    for label in dict.fromkeys(run.label for run in runs):
        seeds = [run for run in runs if run.label == label and run.rows]
        if seeds:
            lines += summary_lines(label, seeds)
            notes += comu_lines(label, seeds)
    print_table(lines, [str.ljust, str.ljust, str.rjust, str.ljust, str.ljust, *3 * [str.rjust]])
    for note in notes:
        say(note)


def summary_lines(label, seeds):
    """The summary's lines of an algorithm, one for each accuracy; seeds: its runs."""
    flags = seeds[0].config["flags"]
    megabytes = []
    for key in ("bytes_up", "bytes_down"):
        sent = [sum(row.get(key, 0) for row in run.rows) for run in seeds]
        megabytes.append(f"{statistics.mean(sent) / 2**20:.1f}")
    seconds = [sum(timing["round_seconds"] for timing in run.timings) for run in seeds]
    costs = (*megabytes, f"{statistics.mean(seconds):.1f}")
    lines = []
    for key, whose in whose_accuracy(seeds[0].rows[-1], flags["public"] == "half").items():
        of_rounds = [[row[key] for row in run.rows if row.get(key) is not None] for run in seeds]
        final = mean_and_deviation([values[-1] for values in of_rounds])
        best = mean_and_deviation([max(values) for values in of_rounds])
        lines.append((label, whose, str(len(seeds)), final, best, *costs))
        label, costs = "", ("", "", "")                  # once for each algorithm
    return lines


def comu_lines(label, seeds):
    """A line for each accuracy of --comu: the bytes that were sent until it was reached."""
    lines = []
    for threshold in seeds[0].config["flags"]["comu"] or ():
        needed = [bytes_until(run.rows, threshold) for run in seeds]
        reached = [num_bytes / 2**20 for num_bytes in needed if num_bytes is not None]
        text = f"{statistics.mean(reached):.2f} MB up and down" if reached else "not reached"
        if len(seeds) > 1:
            text += f", by {len(reached)} of {len(seeds)} seeds"
        lines.append(f"{label}  ComU@{threshold:g}: {text}")
    return lines


def print_table(lines, sides):
    """Prints lines of cells in columns; sides: str.ljust or str.rjust for each column."""
    widths = [max(map(len, cells)) for cells in zip(*lines)]
    say("")
    for line in lines:
        cells = [side(cell, width) for side, cell, width in zip(sides, line, widths)]
        say("  ".join(cells).rstrip())


def describe(config, choices, datasets, split, num_processes):
    """Prints what will run, and what differs from --paper, or from the algorithms' defaults.

    choices            the `Choice` of each algorithm
    datasets, split    see `build.load_datasets`, and `build.split` of the first seed
    """
    flags, environment = config["flags"], config["environment"]
    say(f"torch {environment['torch']}, {environment['device']}, processes: {num_processes} on "
        f"{process.num_cores()} cores, threads while the server trains: {environment['threads']}")
    say(f"{flags['dataset']}: {config['data']['dataset']}; {network_text(choices, config)}")
    if datasets.foreign is not None:
        say(f"{flags['public']}: {config['data']['public']}")
    say(split_line(flags, datasets.foreign, split))
    if flags["attack"] is not None:
        strength = f"scale {flags['attack_scale']:g}"
        if flags["attack"] == "lie":
            z = flags["attack_z"]
            z = lie_z(flags["clients"], flags["attackers"]) if z is None else z
            strength = f"z {z:.3f}"
        say(f"attack: {flags['attack']} by {flags['attackers']} of {flags['clients']} clients, "
            + strength)
    reference = reference_settings(config, choices)
    for label, settings in config["settings"].items():
        found = flags | config["networks"][label] | settings
        changed = [f"{name} {value_text(found[name])} ({value_text(value)})"
                   for name, value in reference[label].items()
                   if found[name] != value and name not in ("data_root", "comu")]
        paper = flags["paper"]
        basis = f"the settings of --paper {paper}" if paper else "without --paper, the defaults"
        changes = f" except (replaced values in brackets): {', '.join(changed)}" if changed else ""
        say(f"{label}: {basis}{changes}")


def network_text(choices, config):
    """The clients' networks: of all algorithms, or of each; and the servers' that are used."""
    texts = {}
    for choice in choices:
        networks = config["networks"][choice.label]
        server = f", server {networks['server_model']}" if choice.algorithm.server != "none" else ""
        texts[choice.label] = ",".join(networks["model"]) + server
    if len(set(texts.values())) == 1:
        return f"network {texts[choices[0].label]}"
    return "networks: " + "; ".join(f"{label} {text}" for label, text in texts.items())


def tell_classes(task, split):
    """Prints a table: how many samples of each class (columns) each client (rows) holds."""
    counts = [task.train.labels[rows].bincount(minlength=task.num_classes).tolist()
              for rows in split.clients]
    names = task.class_names or [str(label) for label in range(task.num_classes)]
    lines = [("client", *names)] + [(str(i), *map(str, row)) for i, row in enumerate(counts)]
    print_table(lines, [str.rjust] * len(lines[0]))


def split_line(flags, foreign, split):
    """The line about clients and public images; foreign: another data set, or None."""
    sizes, public = sorted(map(len, split.clients)), "none"
    if flags["public"] is not None:
        available = len(foreign.train.images if split.public is None else split.public)
        public = f"{min(available, flags['public_size'] or available)} of {flags['public']}"
        if flags["joint"]:
            public += " (its classes and the task's in one output layer)"
    is_dirichlet = flags["partition"].startswith("dirichlet")
    partition = flags["partition"] + (f", alpha {flags['alpha']}" if is_dirichlet else "")
    clients = f"{flags['clients']} clients with {sizes[0]} to {sizes[-1]} samples each"
    notes = [f"{clients} ({partition})", f"public images: {public}"]
    if split.validation is not None:
        notes.append(f"validation images: {len(split.validation)}")
    if flags["augment"]:
        notes.append("augmented")
    if flags["amp"]:
        notes.append("bfloat16")
    return "; ".join(notes)
