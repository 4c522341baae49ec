"""What a run prints: its settings, a line per round, the summary. Only the first process prints."""
import os
import statistics
import sys

from attacks import lie_z
from communication import bytes_until


def rank():
    return int(os.environ.get("RANK", 0))


def printable(text, encoding):
    """The text in characters that the encoding has: +- for ±, ^2 for ², ? for any other."""
    try:
        text.encode(encoding)
        return text
    except UnicodeEncodeError:
        text = text.replace("±", "+-").replace("²", "^2")
        return text.encode(encoding, "replace").decode(encoding)


def say(text):
    """Prints a text.

    If printing fails, the program ends. If the reader of its output has closed the pipe
    (`| head -3`), it ends silently with exit status 141, as Unix programs do; otherwise with `fail`
    and status 1.
    """
    if rank() == 0:
        try:
            print(printable(text, sys.stdout.encoding or "utf-8"), flush=True)
        except OSError as error:
            # At its exit Python tries to print the rest again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if isinstance(error, BrokenPipeError):
                raise SystemExit(141) from None
            fail(f"standard output: {error}", 1)


def fail(message, status=2):
    """Ends the program with this exit status after one line on standard error."""
    if rank() == 0:
        print("fedkd_minimal.py: error:", *str(message).split(), file=sys.stderr)
    raise SystemExit(status)


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


def remaining(round_seconds, rounds):
    """Estimated seconds of `rounds` more rounds, from the mean so far; None if there is none."""
    return statistics.mean(round_seconds) * rounds if round_seconds else None


def heading(columns):
    """The line above the rounds."""
    return "  ".join(["  round", *columns, "  MB up", "MB down", "seconds", "  left"])


def round_line(columns, metrics, t, rounds, round_seconds, seconds_left):
    """A line of the log: the metrics in `columns`, MB of 2^20 bytes, seconds, the time left."""
    cells = [f"{t:>3}/{rounds:<3}"]
    cells += [metric_text(metrics.get(column)).rjust(len(column)) for column in columns]
    cells += [f"{metrics.get(key, 0) / 2**20:7.2f}" for key in ("bytes_up", "bytes_down")]
    cells += [f"{round_seconds:7.1f}", f"{duration(seconds_left):>6}"]
    if metrics.get("bad_uploads"):
        cells.append(f"{metrics['bad_uploads']} uploads were not finite")
    return "  ".join(cells)


def mean_and_deviation(values):
    deviation = f"{statistics.stdev(values):.4f}" if len(values) > 1 else "-"
    return f"{statistics.mean(values):.4f} ± {deviation}"


# Whose accuracy a metric is, in the order of the summary.
WHOSE = {"accuracy": "edges with the server", "edge_accuracy": "edges alone",          # FedGKT
         "server_accuracy": "server", "ensemble_accuracy": "ensemble", "client_accuracy": "clients",
         "client_accuracy_private": "clients, after private training"}


def accuracies(row, half_is_public):
    """{accuracy metric of a round: whose accuracy it is, and on which part of the test set}.

    Where half of the test set is public, a server with a network of its own is scored on that half,
    and everything else on the other.
    """
    found = {key: whose for key, whose in WHOSE.items() if row.get(key) is not None}
    if "edge_accuracy" not in found:
        found["accuracy"] = "model"
    if "server_accuracy" in found or "client_accuracy" in found:
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


def value_text(value):
    """A flag's value as it would be typed, with on or off for a bool."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "on", False: "off"}[value]
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def describe(config, expected, foreign, splits):
    """Prints what will run, and what differs from --paper, or from the algorithms' defaults.

    expected   {algorithm: {name: value}}: values of --paper, or the defaults
    foreign    another data set as public images, or None
    splits     {seed: see `federation.split`}; the first seed's is described
    """
    flags, environment = config["flags"], config["environment"]
    say(f"torch {environment['torch']}, {environment['device']}, "
        f"processes: {environment['processes']}, threads in each: {environment['threads']}")
    say(f"{flags['dataset']}: {config['data']['dataset']}; network {','.join(flags['model'])}")
    if foreign is not None:
        say(f"{flags['public']}: {config['data']['public']}")
    say(describe_split(flags, foreign, *next(iter(splits.values()))))
    if flags["attack"] is not None:
        strength = f"scale {flags['attack_scale']:g}"
        if flags["attack"] == "lie":
            z = flags["attack_z"]
            z = lie_z(flags["clients"], flags["attackers"]) if z is None else z
            strength = f"z {z:.3f}"
        say(f"attack: {flags['attack']} by {flags['attackers']} of {flags['clients']} clients, "
            + strength)
    for algo, settings in config["settings"].items():
        found = flags | settings
        changed = [f"{name} {value_text(found[name])} ({value_text(value)})"
                   for name, value in expected[algo].items()
                   if found[name] != value and name not in ("data_root", "comu")]
        paper = flags["paper"]
        basis = f"the settings of --paper {paper}" if paper else "without --paper, the defaults"
        changes = f" except (replaced values in brackets): {', '.join(changed)}" if changed else ""
        say(f"{algo}: {basis}{changes}")


def describe_split(flags, foreign, parts, public_rows, validation_rows):
    """The line about clients and public images; the arguments are those of `describe`."""
    sizes, public = sorted(map(len, parts)), "none"
    if flags["public"] is not None:
        available = len(foreign.train.images if public_rows is None else public_rows)
        public = f"{min(available, flags['public_size'] or available)} of {flags['public']}"
        if flags["joint"]:
            public += " (its classes and the task's in one output layer)"
    is_dirichlet = flags["partition"].startswith("dirichlet")
    partition = flags["partition"] + (f", alpha {flags['alpha']}" if is_dirichlet else "")
    clients = f"{flags['clients']} clients with {sizes[0]} to {sizes[-1]} samples each"
    notes = [f"{clients} ({partition})", f"public images: {public}"]
    if validation_rows is not None:
        notes.append(f"validation images: {len(validation_rows)}")
    if flags["augment"]:
        notes.append("augmented")
    if flags["amp"]:
        notes.append("bfloat16")
    return "; ".join(notes)
