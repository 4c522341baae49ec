"""What a run prints: what will run, a line per round, the table at the end. Only the first process prints."""
import os
import statistics

from attacks import lie_z
from communication import bytes_until


def rank():
    return int(os.environ.get("RANK", 0))


def say(*words):
    if rank() == 0:
        print(*words, flush=True)


def shown(value):
    """A metric in a log line: a share with four decimals, a count as it is, nothing as a dash."""
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.4f}"


def heading(columns):
    """The line above the rounds."""
    return "  ".join(["  round", *columns, "  MB up", "MB down", "seconds", "  left"])


def round_line(columns, metrics, t, rounds, spent):
    """A line of the log: the metrics named by `columns`, bytes in MB of 2^20, seconds of this round, seconds still to go."""
    cells = [shown(metrics.get(column)).rjust(len(column)) for column in columns]
    cells += [f"{metrics.get(key, 0) / 2**20:7.2f}" for key in ("bytes_up", "bytes_down")]
    bad = metrics.get("bad_uploads")
    return ("  ".join([f"{t:>3}/{rounds:<3}", *cells, f"{spent:7.1f}", f"{spent * (rounds - t):5.0f}s"])
            + (f"  {bad} uploads were not finite" if bad else ""))


def summary(results, comu=()):
    """The table at the end. results: {algo: [(rows, timings) of each seed]}; comu: accuracies for `bytes_until`."""
    say(f"\n{'algorithm':<15} seeds    final accuracy     best accuracy    MB up  MB down  seconds")
    for algo, seeds in results.items():
        seeds = [(rows, timings) for rows, timings in seeds if rows]
        if not seeds:
            continue
        final = [rows[-1]["accuracy"] for rows, _ in seeds]
        best = [max(row["accuracy"] for row in rows) for rows, _ in seeds]
        cells = [f"{statistics.mean(x):.4f} ± {f'{statistics.stdev(x):.4f}' if len(x) > 1 else '-':<6}" for x in (final, best)]
        up, down = (statistics.mean(sum(row.get(key, 0) for row in rows) for rows, _ in seeds) / 2**20
                    for key in ("bytes_up", "bytes_down"))
        spent = statistics.mean(sum(timing["round_seconds"] for timing in timings) for _, timings in seeds)
        say(f"{algo:<15} {len(seeds):>5}  {cells[0]:>16}  {cells[1]:>16} {up:8.1f} {down:8.1f} {spent:8.1f}")
        for x in comu:
            needed = [bytes_until(rows, x) for rows, _ in seeds]
            reached = [b / 2**20 for b in needed if b is not None]
            say(f"{'':<15} ComU@{x:g}: " + (f"{statistics.mean(reached):.2f} MB up and down" if reached else "not reached")
                + (f", by {len(reached)} of {len(seeds)} seeds" if len(seeds) > 1 else ""))


def describe(config, dataset, foreign, splits, defaults):
    """What will run, before it does; and every hyperparameter that is not its signature's default ({algo: {name: default}})."""
    flags, environment, (parts, public_rows, validation_rows) = config["flags"], config["environment"], next(iter(splits.values()))
    sizes = sorted(map(len, parts))
    public = "none"
    if flags["public"] is not None:
        there_are = len(foreign.train.images if public_rows is None else public_rows)
        joint = " (its classes and the task's in one output layer)" if flags["joint"] else ""
        public = f"{min(there_are, flags['public_size'] or there_are)} of {flags['public']}{joint}"
    say(f"torch {environment['torch']}, {environment['device']}, "
        f"processes: {environment['processes']}, threads in each: {environment['threads']}")
    say(f"{flags['dataset']}: {len(dataset.train.labels)} training and {len(dataset.test.labels)} test images "
        f"{'x'.join(map(str, dataset.train.images.shape[1:]))}, {dataset.num_classes} classes; network {','.join(flags['model'])}")
    say(f"{flags['clients']} clients with {sizes[0]} to {sizes[-1]} samples each ({flags['partition']}"
        + (f", alpha {flags['alpha']}" if flags["partition"].startswith("dirichlet") else "") + f"); public images: {public}"
        + ("" if validation_rows is None else f"; validation images: {len(validation_rows)}")
        + ("; augmented" if flags["augment"] else "") + ("; bfloat16" if flags["amp"] else ""))
    if flags["attack"] is not None:
        z = lie_z(flags["clients"], flags["attackers"]) if flags["attack_z"] is None else flags["attack_z"]
        say(f"attack: {flags['attack']} by {flags['attackers']} of {flags['clients']} clients, "
            + (f"z {z:.3f}" if flags["attack"] == "lie" else f"scale {flags['attack_scale']:g}"))
    for algo, settings in config["settings"].items():
        usual = defaults[algo]
        changed = [f"{name} {x} ({usual[name]})" for name, x in settings.items() if x != usual[name]]
        say(f"{algo}: " + (f"not the paper's defaults (in brackets): {', '.join(changed)}" if changed else "the paper's defaults"))
