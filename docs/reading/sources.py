"""What the pages are made of: code, found by its name or its text; headers of files; the equations
and lines of docs/EQUATIONS.md in the order of docs/READING.md."""
import ast
import functools
import html
import keyword
import re
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CODE_LINK = re.compile(r"\[`([^`]+)`\]\(\.\./([^)#]+)\)")              # [`name`](../file)
PAINT = re.compile(r'(?P<string>[rbf]*"""(?:.|\n)*?"""|[rbf]*"(?:\\.|[^"\\\n])*")'
                   rf"|(?P<comment>#.*)|(?P<keyword>\b(?:{'|'.join(keyword.kwlist)})\b)")


def read(file):
    """The text of one of the project's files."""
    return (ROOT / file).read_text(encoding="utf-8")


# ------------------------------------------------------------------------------------------- code

class Lines(NamedTuple):
    """Lines of a file, the first and the last included, counted from 1."""

    file: str          # from the project's folder: "algorithms/fedavg.py"
    first: int
    last: int


@functools.cache
def tree(file):
    return ast.parse(read(file))


@functools.cache
def statements(file):
    """All statements of a file, also those inside of others."""
    return [node for node in ast.walk(tree(file)) if isinstance(node, ast.stmt)]


@functools.cache
def painted(file):
    """The lines of a file as HTML, in which strings, comments and keywords have a class."""
    def paint(found):
        lines = found[0].split("\n")
        return "\n".join(f'<span class="{found.lastgroup}">{line}</span>' for line in lines)

    return PAINT.sub(paint, html.escape(read(file), quote=False)).split("\n")


def shown(lines):
    """The `Lines` as HTML, without the indentation that they share."""
    return textwrap.dedent("\n".join(painted(lines.file)[lines.first - 1:lines.last]))


def find(file, name):
    """The `Lines` of the function `name`, or of the one statement that has `name` as a part.

    Of a loop or a condition only the head; of each statement also the comment above it.
    ValueError: there is none, or more than one.
    """
    if name.isidentifier():
        return function(file, name)
    lines = read(file).splitlines()
    docstring = tree(file).body[0].end_lineno
    places = [n for n, line in enumerate(lines, 1) if name in line and n > docstring]
    if len(places) != 1:
        raise ValueError(f"{file} has {name!r} in the lines {places}, not in exactly one")
    around = [node for node in statements(file) if node.lineno <= places[0] <= node.end_lineno]
    statement = max(around, key=lambda node: node.lineno)              # the innermost
    first, last = statement.lineno, statement.end_lineno
    if isinstance(statement, (ast.For, ast.If, ast.With)):
        last = statement.body[0].lineno - 1
        while lines[last - 1].lstrip()[:1] in ("", "#"):               # the body's own comment
            last -= 1
    while lines[first - 2].lstrip()[:1] == "#":
        first -= 1
    return Lines(file, first, last)


def function(file, name):
    """The `Lines` of a function with its decorators."""
    found = [node for node in statements(file)
             if isinstance(node, ast.FunctionDef) and node.name == name]
    if len(found) != 1:
        raise ValueError(f"{file} has {len(found)} functions {name}, not one")
    starts = [found[0].lineno, *(decorator.lineno for decorator in found[0].decorator_list)]
    return Lines(file, min(starts), found[0].end_lineno)


def rounds(file):
    """The `Lines` of an algorithm's loop over the rounds t."""
    loops = [node for node in ast.walk(tree(file)) if isinstance(node, ast.For)
                 and ast.unparse(node).startswith("for t in range(")]
    if len(loops) != 1:
        raise ValueError(f"{file} has {len(loops)} loops over the rounds t, not one")
    return Lines(file, loops[0].lineno, loops[0].end_lineno)


@functools.cache
def tests():
    """[(name of a test, its file)]"""
    return [(name, path.relative_to(ROOT).as_posix())
            for path in sorted((ROOT / "tests").glob("*/test_*.py"))
            for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M)]


def test_file(name, stem):
    """The file of the test with this name: test_STEM.py if it has one, else the only one."""
    files = [file for each, file in tests() if each == name]
    files = [file for file in files if file.endswith(f"/test_{stem}.py")] or files
    if len(files) != 1:
        raise ValueError(f"the tests called {name} are in the files {files}, not in exactly one")
    return files[0]


# ------------------------------------------------------------------------------------------ texts

class Header(NamedTuple):
    """The docstring of an algorithm's file, in its parts."""

    title: str
    introduction: list     # paragraphs
    notation: list         # rows: the paper's symbol, the code's name, shape, note
    algorithm: list        # paragraphs: the paper's lines in the order of the code, what is kept
    decisions: dict        # {"D1": text}: those that change an equation or the order of steps


def docstring(file):
    """The docstring at the top of a file; "" if it has none."""
    return ast.get_docstring(tree(file)) or ""


def header(file):
    """The `Header` of a file."""
    text, _, decisions = docstring(file).partition("\nDepartures (more: docs/DEPARTURES.md):")
    title, *paragraphs = text.split("\n\n")
    at = [n for n, x in enumerate(paragraphs) if re.match("Paper.* here .* shape .* note", x)]
    before, table, after = paragraphs, [], []
    if at:
        before, after = paragraphs[:at[0]], paragraphs[at[0] + 1:]
        table = notation(paragraphs[at[0]])
    found = re.findall(r"^(D\d+)  (.*(?:\n .*)*)", decisions, re.M)
    return Header(title, before, table, after, dict(found))


def notation(table):
    """The rows of a header's table; its columns begin where the words of its first line do."""
    head, *lines = table.split("\n")
    starts = [head.index(word) for word in ("Paper", "here", "shape", "note")]
    rows = []
    for line in lines:
        cells = [line[start:end].strip() for start, end in zip(starts, [*starts[1:], None])]
        if cells[0] or cells[1] or not rows:
            rows.append(cells)
        else:                                                          # the last row goes on
            rows[-1] = [f"{a} {b}".strip() for a, b in zip(rows[-1], cells)]
    return rows


def departures(file):
    """{"D1": text}: all decisions about a file, which docs/DEPARTURES.md has under its name."""
    text = read("docs/DEPARTURES.md")
    section = re.search(rf"^## {re.escape(Path(file).name)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return dict(re.findall(r"^- (D\d+): (.*(?:\n  .*)*)", section[1] if section else "", re.M))


class Row(NamedTuple):
    """A part of an algorithm: what the paper says, its code, its tests, our decisions."""

    heading: str
    said: str          # Markdown
    lines: list        # [(number, Markdown)]: lines of an algorithm
    code: list         # [(name, file)]
    tests: list        # [(name, file)]
    notes: list        # [Markdown]


def order():
    """The names of the algorithms' files in the order in which docs/READING.md links them."""
    links = re.findall(r"\]\(\.\./algorithms/(\w+)\.py\)", read("docs/READING.md"))
    return list(dict.fromkeys(links))


def equations():
    """{name of an algorithm's file: (introduction, [Row])}, from docs/EQUATIONS.md."""
    found = {}
    for section in re.split("^## .*\n", read("docs/EQUATIONS.md"), flags=re.M)[1:]:
        introduction, *parts = re.split("^### ", section, flags=re.M)
        rows = []
        for part in parts:
            heading, body = part.split("\n", 1)
            rows += algorithm_rows(heading, body) if "\n|" in body else [equation(heading, body)]
        found[re.search(r"\(\.\./algorithms/(\w+)\.py\)", introduction)[1]] = introduction, rows
    return found


def equation(heading, body):
    """The `Row` of an equation: formulas, then a list with "Here: ", "Tests: " and remarks."""
    items = re.findall(r"^- (.*(?:\n  .*)*)", body, re.M)
    said = re.sub(r"^- .*(?:\n  .*)*", "", body, flags=re.M)
    links = {kind: CODE_LINK.findall(item) for item in items for kind in ("Here: ", "Tests: ")
             if item.startswith(kind)}
    notes = [item for item in items if not item.startswith(("Here: [", "Tests: "))]
    return Row(heading, said, [], links["Here: "], links.get("Tests: ", []), notes)


def algorithm_rows(heading, body):
    """The `Row`s of an algorithm: a table of lines, then a list of remarks on some of them.

    Lines with the same code are one row. A line without code joins the next one, or the last.
    """
    introduction = body.split("\n|")[0]
    rows = [Row(heading, introduction, [], [], CODE_LINK.findall(introduction), [])]
    for number, said, here, tests in re.findall(
            r"^\| ([\d-]+) \| (.*) \| (.*) \| (.*) \|$", body, re.M):
        code = CODE_LINK.findall(here)
        if not rows[-1].lines or rows[-1].code and rows[-1].code != code:
            rows.append(Row("", "", [], [], [], []))
        rows[-1].lines.append((number, said))
        rows[-1].code.extend(x for x in code if x not in rows[-1].code)
        rows[-1].tests.extend(x for x in CODE_LINK.findall(tests) if x not in rows[-1].tests)
    if not rows[-1].code:
        rows[-2].lines.extend(rows.pop().lines)
    for note in re.findall(r"^- (.*(?:\n  .*)*)", body, re.M):
        place = int(re.search(r"\d+", note)[0])                        # "Lines 9 and 29, ..."
        row = next(row for row in rows
                   if row.lines and place <= int(row.lines[-1][0].split("-")[-1]))
        row.notes.append(note)
    return rows
