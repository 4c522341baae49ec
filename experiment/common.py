"""What the program and the plot share: bad input, config.json, values and tables as text.

Nothing here needs torch, so that the plot starts at once.
"""
import contextlib
import json
import re
from pathlib import Path

# The parts of config.json. "settings" has all flags and hyperparameters, in one dict. "data" has
# the settings that decide who has which images, with fingerprints instead of the names of files.
PARTS = ("settings", "data", "environment", "images", "scores", "keys")
FORMAT = 2       # of a run's folder, in config.json: runs of other formats are refused


class BadInput(ValueError):
    """What a user typed, or a file, cannot be used. It ends the program: one line, status 2."""


class Stopped(Exception):
    """A full disk or a killed process ends the program: one line, status 1."""


@contextlib.contextmanager
def refuses(*errors):
    """In this block errors of these types, of functions that check user input, are `BadInput`."""
    try:
        yield
    except errors as error:
        raise BadInput(error) from error


def read_config(folder):
    """The config.json of a run's folder, which keep.py writes: a dict, see `PARTS`."""
    path = Path(folder, "config.json")
    try:
        config = json.loads(path.read_text())
        if config["format"] != FORMAT:
            raise BadInput(f"{folder} is from an older version: choose another --out")
        return config | {part: dict(config[part]) for part in PARTS} | {
            "algo": str(config["algo"]), "seed": int(config["seed"]), "begun": str(config["begun"])}
    except BadInput:
        raise
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise BadInput(f"{path} is missing or damaged, or not from this program "
                       f"({error})") from None


def text_of(value):
    """A value as it is typed, with on or off for a bool."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def table_text(rows, sides, form=".txt"):
    """Rows of cells, the first of headings, as a table.

    sides    "l" or "r" for each column, such as "llr"
    form     ".txt": aligned columns; ".md": Markdown; ".tex": LaTeX
    """
    if form == ".md":
        rule = ["---" if side == "l" else "---:" for side in sides]
        cells = [[cell.replace("|", r"\|").replace("+-", "±") for cell in row] for row in rows]
        return "".join(f"| {' | '.join(row)} |\n" for row in [cells[0], rule, *cells[1:]])
    if form == ".tex":
        head, *lines = [" & ".join(map(latex_of, row)) + r" \\" for row in rows]
        return "\n".join([rf"\begin{{tabular}}{{{sides}}}", r"\hline", head, r"\hline", *lines,
                          r"\hline", r"\end{tabular}", ""])
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(cell.ljust(width) if side == "l" else cell.rjust(width)
                       for cell, width, side in zip(row, widths, sides)) for row in rows]
    return "".join(line.rstrip() + "\n" for line in lines)


def latex_of(text):
    """A cell in LaTeX: characters that mean something there are escaped."""
    marks = {mark: "\\" + mark for mark in "&%$#_{}"}
    marks |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    text = text.translate(str.maketrans(marks)).replace("+-", r"$\pm$")
    return re.sub(r"(?<!\S)-(?=\d)", "$-$", text)            # a minus sign, not a hyphen
