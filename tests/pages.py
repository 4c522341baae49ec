"""What the tests read of the project's texts: headers of files, the sections of docs/DEPARTURES.md,
the order of docs/READING.md, the names of all tests."""
import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


@functools.cache
def tree(file):
    return ast.parse((ROOT / file).read_text())


def docstring(file):
    """The docstring at the top of a file; "" if it has none."""
    return ast.get_docstring(tree(file)) or ""


def numbered_in_header(file):
    """The numbers of the departures in a file's header, in order; a lone one has no number: 1."""
    _, found, text = docstring(file).partition("\nDeparture")
    return [*map(int, re.findall(r"^ +(\d+)  ", text, re.M))] or [1] * bool(found)


def departures(file):
    """{number: text with the names of tests}: a file's departures, from docs/DEPARTURES.md. Those
    of a header may have a name alone; "Others" is the test of all that have none."""
    text = (ROOT / "docs" / "DEPARTURES.md").read_text()
    section = re.search(rf"^## {re.escape(Path(file).name)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    if not section:
        return {}
    head, *items = re.split("^- ", section[1], flags=re.M)
    named, *others = re.split(r"Others:\s", head)
    others = " ".join(others)
    found = dict.fromkeys(numbered_in_header(file) if others else [], others)
    found |= {int(n): tests for n, tests in re.findall(r"\s(\d+)((?:\s+`test_\w+`)+)", named)}
    for numbers, item in (item.split(":", 1) for item in items):
        item += others * ("`test_" not in item)
        found |= dict.fromkeys(map(int, numbers.split(", ")), item)
    return dict(sorted(found.items()))


@functools.cache
def names_of_tests():
    """The names of all tests."""
    return {name for path in (ROOT / "tests").glob("*/test_*.py")
            for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)}


def order():
    """The names of the algorithms' files in the order in which docs/READING.md links them."""
    text = (ROOT / "docs" / "READING.md").read_text()
    return list(dict.fromkeys(re.findall(r"\]\(\.\./algorithms/(\w+)\.py\)", text)))


def equations():
    """{name of a file: {heading: text}} of docs/EQUATIONS.md."""
    text = (ROOT / "docs" / "EQUATIONS.md").read_text()
    found = {}
    for section in re.split("^## .*\n", text, flags=re.M)[1:]:
        introduction, *parts = re.split("^### ", section, flags=re.M)
        name = re.search(r"\(\.\./algorithms/(\w+)\.py\)", introduction)[1]
        found[name] = dict(part.split("\n", 1) for part in parts)
    return found
