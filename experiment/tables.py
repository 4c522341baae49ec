"""Tables of kept runs: a row for each label, its mean over seeds, its differences from others.

`by_label` are {label: [the `Run` of each seed]}.
"""
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean

from experiment.common import table_text, text_of
from experiment.measures import best, final, half_width, mean_of_last, megabytes_until
from experiment.runs import is_accuracy


@dataclass
class Quantity:
    """What a table shows of each label: one measure of one metric."""

    heading: str
    key: str              # the metric, as in --key
    measure: Callable     # (run, key) -> number, or None
    in_percent: bool

    @property
    def digits(self):
        return ".2f" if self.in_percent else ".6g"


@dataclass
class Row:
    """A row of a table: a quantity of a label, seed by seed."""

    label: str
    key: str
    whose: str            # whose accuracy it is, with the images: "clients, private half"
    images: str           # the images on which it is measured
    last_round: int
    data: dict            # of config.json: which images there are, and who has them
    seeds: list           # of all runs
    values: dict          # {seed: number, as it is shown}, of the seeds that have one


def quantities(by_label, keys, last, until):
    """The `Quantity` of each table.

    last     if above 1, also means of the last so many rounds
    until    if not None, also the MB until an accuracy is this
    """
    found, measures = [], {"final": final, "best": best}
    if last > 1:
        measures = {f"mean of {last} rounds": partial(mean_of_last, rounds=last)} | measures
    for name, measure in measures.items():
        for key in keys:
            if measure is not best or is_accuracy(key):  # the best loss or bytes: no meaning
                in_percent = any(runs[0].is_share(key) for runs in by_label.values())
                unit = ", %" if in_percent else ""
                found.append(Quantity(f"{name} {key}{unit}", key, measure, in_percent))
    if until is not None:
        measure = partial(megabytes_until, accuracy=until)
        found += [Quantity(f"MB until {key} is {until:g}", key, measure, in_percent=False)
                  for key in filter(is_accuracy, keys)]
    return found


def tables_text(by_label, shown, bases, form):
    """A table of each quantity, with differences from some labels, and why some are missing.

    shown    [`Quantity`, ...]
    bases    the labels that are subtracted
    form     see `table_text`
    """
    comment, reasons = "% " if form == ".tex" else "", {}    # {why: {label: None}}
    caption = "+-: half of the 95% interval"
    if bases:
        caption += "; minus ...: the mean difference, paired by seed"
    parts = [f"{comment}{caption}\n"]
    for quantity in shown:
        rows = [row_of(runs, quantity) for runs in by_label.values()]
        columns = columns_of(quantity, rows)
        for base in [base_of(by_label[label], quantity) for label in bases]:
            owner = f" ({base.whose})" if is_accuracy(quantity.key) else ""
            found = [difference(row, base, quantity.digits) for row in rows]
            columns.append((f"minus {base.label} {base.key}{owner}", "r", [x for x, _ in found]))
            for row, (_, why) in zip(rows, found):
                if why:
                    why = f"minus {base.label} {base.key}: {why}"
                    reasons.setdefault(why, {})[row.label] = None
        headings, sides, cells = zip(*columns, *columns_of_seeds(quantity, rows))
        parts.append(table_text([headings, *zip(*cells)], "".join(sides), form))
    if reasons:
        parts.append("".join(f"{comment}no difference: {', '.join(labels)} {why}\n"
                             for why, labels in reasons.items()))
    return "\n".join(parts)


def row_of(runs, quantity):
    """The row of a label."""
    first, key, scale = runs[0], quantity.key, 100 if quantity.in_percent else 1
    numbers = {run.seed: quantity.measure(run, key) for run in runs}
    values = {seed: scale * x for seed, x in numbers.items() if x is not None}
    whose, images = first.score(key)
    return Row(first.label, key, whose, images, last_round=first.last_round,
               data=first.head["data"], seeds=[*numbers], values=values)


def base_of(runs, quantity):
    """The row of a label that is subtracted: if it has no such accuracy, of its `accuracy`."""
    has_it = any(value is not None for run in runs for value in run.by_round(quantity.key))
    if is_accuracy(quantity.key) and not has_it:
        quantity = replace(quantity, key="accuracy")
    return row_of(runs, quantity)


def columns_of(quantity, rows):
    """[(heading, "l" or "r", cells)]: labels, whose accuracies these are, means over seeds."""
    columns = [(quantity.heading, "l", [row.label for row in rows])]
    if is_accuracy(quantity.key):
        columns.append(("accuracy of", "l", [row.whose if row.values else "-" for row in rows]))
    means = [mean_text([*row.values.values()], quantity.digits, len(row.seeds)) for row in rows]
    return [*columns, ("mean +- 95%", "r", means)]


def columns_of_seeds(quantity, rows):
    """The last columns: the number of rounds, and the value of each seed."""
    columns = [("last round", "r", [str(row.last_round) for row in rows])]
    for seed in sorted({seed for row in rows for seed in row.seeds}):
        numbers = [row.values.get(seed) for row in rows]
        cells = ["-" if x is None else f"{x:{quantity.digits}}" for x in numbers]
        columns.append((f"seed {seed}", "r", cells))
    return columns


def mean_text(values, digits, num_seeds, sign=""):
    """MEAN +- HALF WIDTH; of one value the mean alone, of none a dash. If they are fewer than the
    seeds, their number is added.

    sign    "+" for a mean that always has one
    """
    if not values:
        return "-"
    width, text = half_width(values), f"{mean(values):{sign}{digits}}"
    if width is not None:
        text += f" +- {width:{digits}}"
    return text if len(values) >= num_seeds else f"{text} (n = {len(values)})"


def difference(row, base, digits):
    """(the cell of a row minus a base, paired by seed; why there is no difference, or "")."""
    if (row.label, row.key) == (base.label, base.key):
        return "reference", ""
    if why := why_not(row, base):
        return "-", why
    points = [row.values[seed] - base.values[seed] for seed in row.values if seed in base.values]
    return mean_text(points, digits, len(row.seeds), sign="+"), ""


def why_not(row, base):
    """Why the difference of two rows is not shown; "" if it is, or if a row has no value."""
    if not (row.values and base.values):
        return ""
    for name, own in row.data.items():
        if name in base.data and own != base.data[name]:
            return f"other data, {name} {text_of(own)}, not {text_of(base.data[name])}"
    if not {*row.seeds} & {*base.seeds}:
        return "they have no seed in common"
    if row.last_round != base.last_round:
        return (f"{row.last_round} rounds, not {base.last_round}; "
                f"--rounds {min(row.last_round, base.last_round)} subtracts")
    if row.images != base.images:
        return f"accuracy on {row.images}, not {base.images}; --key server takes the same images"
    return ""
