"""What a run prints: its settings, a line per round, the summary."""
import statistics
import time

from algorithms import ALGORITHMS
from algorithms.communication import bytes_until
from attacks import lie_z
from experiment import process
from experiment.config import reference_settings
from experiment.flags import name_of, value_text
from experiment.process import say


class Progress:
    """A run's clock, and the number of clients that this process has trained.

    It is the federation's `on_trained`, which is called after each trained client.
    """

    def __init__(self):
        self.round_start = time.perf_counter()
        self.num_trained, self.num_before, self.told = 0, 0, False

    def __call__(self, num_clients):
        """Counts a client; once, after 5 seconds, tells how long all num_clients take."""
        self.num_trained += 1
        seconds = time.perf_counter() - self.round_start
        if seconds > 5 and not self.told:
            self.told = True
            each = seconds / (self.num_trained - self.num_before)
            total = each * num_clients / process.count()
            if total > 15:
                say(f"{num_clients} networks train for about {duration(total)}; a smaller --model "
                    "or fewer --local-epochs takes less")

    def seconds_of_round(self, fed):
        """{"round_seconds": since the last round, and "NAME_seconds" of each @timed function}."""
        now = time.perf_counter()
        seconds = {"round_seconds": now - self.round_start}
        seconds |= {f"{name}_seconds": x for name, x in fed.seconds.items()}
        fed.seconds.clear()
        self.round_start, self.num_before = now, self.num_trained
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


def begin(algo, fed, settings, state):
    """Prints the lines above the rounds of an algorithm; state: None, or where it is resumed."""
    algorithm = ALGORITHMS[name_of(algo)]
    resumed = f": resumed after round {state['round']}" if state else ""
    say(f"\n{algo}, seed {fed.seed}{resumed}")
    if algorithm.announcement:
        say(algorithm.announcement(fed, settings))
    say("  ".join(["  round", *algorithm.columns, "  MB up", "MB down", "seconds", "  left"]))


def tell_round(algo, rows, timings, rounds):
    """Prints the last of the rows: metrics, MB of 2^20 bytes, seconds, the time left.

    rows, timings    of all rounds so far
    rounds           number of the run's last round
    """
    metrics, t = rows[-1], rows[-1]["round"]
    later = [timing["round_seconds"] for timing in timings[1:]]        # round 0 trains nothing
    left = statistics.mean(later) * (rounds - t) if later else None
    cells = [f"{t:>3}/{rounds:<3}"]
    cells += [metric_text(metrics.get(column)).rjust(len(column))
              for column in ALGORITHMS[name_of(algo)].columns]
    cells += [f"{metrics.get(key, 0) / 2**20:7.2f}" for key in ("bytes_up", "bytes_down")]
    cells += [f"{timings[-1]['round_seconds']:7.1f}", f"{duration(left):>6}"]
    if metrics.get("bad_uploads"):
        cells.append(f"{metrics['bad_uploads']} uploads were not finite")
    say("  ".join(cells))


def mean_and_deviation(values):
    deviation = f"{statistics.stdev(values):.4f}" if len(values) > 1 else "-"
    return f"{statistics.mean(values):.4f} ± {deviation}"


# Whose accuracy a metric is, in the order of the summary.
WHOSE = {"accuracy": "edges with the server", "edge_accuracy": "edges alone",          # FedGKT
         "server_accuracy": "server", "ensemble_accuracy": "ensemble", "client_accuracy": "clients",
         "client_accuracy_distilled": "clients, after distillation",
         "client_accuracy_private": "clients, after private training"}


def accuracies(row, half_is_public):
    """{accuracy metric of a round: whose accuracy it is, and on which part of the test set}.

    Where half of the test set is public, a server with a network of its own is scored on that half,
    and everything else on the other.
    """
    found = {key: whose for key, whose in WHOSE.items() if row.get(key) is not None}
    if "edge_accuracy" not in found:
        found["accuracy"] = "model"
    if found.keys() & {"server_accuracy", "client_accuracy", "client_accuracy_distilled"}:
        del found["accuracy"]                                # it repeats one of the others
    for key in found if half_is_public else ():
        on_public = key == "server_accuracy" and "server_accuracy_private_test" in row
        found[key] += ", public half" if on_public else ", private half"
    return found


def summary(results, flags):
    """Prints the table at the end of all runs.

    results   {algorithm: [(rows, timings) of each seed]}
    flags     with --comu the table says how many bytes were sent until each accuracy was reached
    """
    lines = [("algorithm", "accuracy of", "seeds", "final", "best", "MB up", "MB down", "seconds")]
    notes = []
    for algo, seeds in results.items():
        seeds = [(rows, timings) for rows, timings in seeds if rows]
        if not seeds:
            continue
        up, down = (statistics.mean(sum(row.get(key, 0) for row in rows) for rows, _ in seeds)
                    / 2**20 for key in ("bytes_up", "bytes_down"))
        seconds = statistics.mean(sum(timing["round_seconds"] for timing in timings)
                                  for _, timings in seeds)
        costs, name = (f"{up:.1f}", f"{down:.1f}", f"{seconds:.1f}"), algo
        for key, whose in accuracies(seeds[0][0][-1], flags["public"] == "half").items():
            of_rounds = [[row[key] for row in rows if row.get(key) is not None]
                         for rows, _ in seeds]
            final = mean_and_deviation([values[-1] for values in of_rounds])
            best = mean_and_deviation(list(map(max, of_rounds)))
            lines.append((name, whose, str(len(seeds)), final, best, *costs))
            name, costs = "", ("", "", "")
        for threshold in flags["comu"] or ():
            needed = [bytes_until(rows, threshold) for rows, _ in seeds]
            reached = [b / 2**20 for b in needed if b is not None]
            text = f"{statistics.mean(reached):.2f} MB up and down" if reached else "not reached"
            if len(seeds) > 1:
                text += f", by {len(reached)} of {len(seeds)} seeds"
            notes.append(f"{algo}  ComU@{threshold:g}: {text}")
    sides = [str.ljust, str.ljust, str.rjust, str.ljust, str.ljust, *3 * [str.rjust]]
    widths = [max(map(len, cells)) for cells in zip(*lines)]
    say("")
    for line in lines:
        cells = [side(cell, width) for side, cell, width in zip(sides, line, widths)]
        say("  ".join(cells).rstrip())
    for note in notes:
        say(note)


def describe(config, datasets, split):
    """Prints what will run, and what differs from --paper, or from the algorithms' defaults.

    datasets, split    see `build.load`, and `build.split` of the first seed
    """
    flags, environment = config["flags"], config["environment"]
    say(f"torch {environment['torch']}, {environment['device']}, "
        f"processes: {environment['processes']}, threads in each: {environment['threads']}")
    say(f"{flags['dataset']}: {config['data']['dataset']}; network {','.join(flags['model'])}")
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
    reference = reference_settings(config)
    for algo, settings in config["settings"].items():
        found = flags | settings
        changed = [f"{name} {value_text(found[name])} ({value_text(value)})"
                   for name, value in reference[algo].items()
                   if found[name] != value and name not in ("data_root", "comu")]
        paper = flags["paper"]
        basis = f"the settings of --paper {paper}" if paper else "without --paper, the defaults"
        changes = f" except (replaced values in brackets): {', '.join(changed)}" if changed else ""
        say(f"{algo}: {basis}{changes}")


def tell_classes(task, split):
    """Prints a table: how many samples of each class (columns) each client (rows) holds."""
    counts = [task.train.labels[rows].bincount(minlength=task.num_classes).tolist()
              for rows in split.clients]
    names = task.class_names or [str(label) for label in range(task.num_classes)]
    for name, row in [("client", names), *((str(i), row) for i, row in enumerate(counts))]:
        say(f"{name:>6}  " + " ".join(f"{x:>5}" for x in row))


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
