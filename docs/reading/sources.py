"""What the pages are made of: code, found by its name, its text or its marks; headers of files;
docs/EQUATIONS.md, docs/DEPARTURES.md and the order of docs/READING.md."""
import ast
import functools
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CODE_LINK = re.compile(r"\[`([^`]+)`\]\(\.\./([^)#]+)\)")              # [`name`](../file)
ITEM = re.compile(r"^- (.*(?:\n  .*)*)", re.M)                         # of a list in Markdown
LABEL = re.compile("(Run|Data|Sent|Scores):")                          # of a header's paragraph
DECISION = re.compile(r"^(D\d+)  (.*(?:\n .*)*)\n?", re.M)              # of a header
MARK = re.compile(r"#.*?\b(?:line|step)s? (\d[\d, -]*)")               # "# D5: Alg. 1, line 15"


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


def nodes(file, kind):
    return [node for node in ast.walk(tree(file)) if isinstance(node, kind)]


def only(found, name, file):
    if len(found) != 1:
        raise ValueError(f"{file} has {name!r} {len(found)} times, not once")
    return found[0]


def find(file, name):
    """The `Lines` of the function `name`, or of the one statement that has `name` as a part."""
    if name.isidentifier():
        return function(file, name)
    docstring = tree(file).body[0].end_lineno
    places = [n for n, line in enumerate(read(file).splitlines(), 1)
              if name in line and n > docstring]
    return statement(file, only(places, name, file))


def statement(file, line):
    """The `Lines` of the innermost statement that has this line, and of the comment above it; of a
    loop or a condition only the head."""
    lines = read(file).splitlines()
    found = max((node for node in nodes(file, ast.stmt) if node.lineno <= line <= node.end_lineno),
                key=lambda node: node.lineno)
    first, last = found.lineno, found.end_lineno
    if isinstance(found, (ast.For, ast.If, ast.With, ast.FunctionDef)):
        last = found.body[0].lineno - 1
        while lines[last - 1].lstrip()[:1] in ("", "#"):               # the body's own comment
            last -= 1
    while lines[first - 2].lstrip()[:1] == "#":
        first -= 1
    return Lines(file, first, last)


def function(file, name):
    """The `Lines` of a function with its decorators."""
    named = [node for node in nodes(file, ast.FunctionDef) if node.name == name]
    found = only(named, name, file)
    return Lines(file, min(x.lineno for x in [found, *found.decorator_list]), found.end_lineno)


def rounds(file):
    """The `Lines` of an algorithm's loop over the rounds t; without one, of all its functions."""
    loops = [node for node in nodes(file, ast.For)
             if ast.unparse(node).startswith("for t in range(")]
    shown = loops[:1] or [x for x in tree(file).body if isinstance(x, ast.FunctionDef)]
    return Lines(file, shown[0].lineno, shown[-1].end_lineno)


def marked(file):
    """[(number, `Lines`)]: the statements whose comment names a line of the paper's algorithm; of
    "line 25-27, 31-33" the numbers 25 and 31."""
    return [(int(number), statement(file, place))
            for place, line in enumerate(read(file).splitlines(), 1)
            for mark in MARK.findall(line) if not line.lstrip().startswith("#")
            for number in re.findall(r"(?:^|, )(\d+)", mark)]


@functools.cache
def tests():
    """[(name of a test, its file)]"""
    return [(name, path.relative_to(ROOT).as_posix())
            for path in sorted((ROOT / "tests").glob("*/test_*.py"))
            for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M)]


def test_file(name, stem):
    """The file of the test with this name: test_STEM.py if it has one, else the only one."""
    files = [file for each, file in tests() if each == name]
    return only([file for file in files if file.endswith(f"/test_{stem}.py")] or files,
                name, "tests")


# ------------------------------------------------------------------------------------------ texts

class Header(NamedTuple):
    """The docstring of an algorithm's file, in its parts."""

    title: str
    introduction: list     # paragraphs: the paper; how to run it; who has which data; what is sent
    algorithm: list        # paragraphs: the paper's lines in the order of the code; the scores
    decisions: dict        # {"D1": text}: those that change an equation or the order of steps


class Step(NamedTuple):
    """A step of a round, or text between steps."""

    label: str             # "7", "3-5", "a", "self_training"; of text ""
    column: int            # where its text begins, or, of a case, the label
    text: str

    def lines(self):
        """The numbers of the paper's lines: the label's, or those in brackets: [25-27, 31]."""
        ranges = (self.label if self.label[:1].isdigit()
                  else " ".join(re.findall(r"\[(\d[\d, -]*)\]", self.text)))
        return {n for first, last in re.findall(r"(\d+)(?:-(\d+))?", ranges)
                for n in range(int(first), int(last or first) + 1)}


def docstring(file):
    """The docstring at the top of a file; "" if it has none."""
    return ast.get_docstring(tree(file)) or ""


def header(file):
    """The `Header` of a file."""
    text = docstring(file)
    title, *paragraphs = DECISION.sub("", text).strip().split("\n\n")
    run = [n for n, paragraph in enumerate(paragraphs) if paragraph.startswith("Run:")]
    end = run[0] + 1 if run else 1
    return Header(title, paragraphs[:end], paragraphs[end:], dict(DECISION.findall(text)))


def steps(paragraph):
    """The `Step`s of a paragraph of a header: a label, two spaces and a text that may go on below,
    further to the right."""
    made = []
    for line in paragraph.split("\n"):
        item = re.match(r" {0,6}(\d[\d, -]*\d|[\w-]+)  +(?=\S)", line)
        if item:
            column = item.end()
            if item[1][1:].isidentifier():             # a case: below the text of its step
                column = item.start(1) and item.start(1) + 5
            made.append(Step(item[1].replace("- ", "-"), column, line[item.end():]))
        elif not made or LABEL.match(line) or (made[-1].label and not line.startswith("  ")):
            made.append(Step("", 0, line.strip()))
        else:
            made[-1] = made[-1]._replace(text=f"{made[-1].text} {line.strip()}")
    return made


def departures(file):
    """{"D1": text}: all decisions about a file, which docs/DEPARTURES.md has under its name."""
    text = read("docs/DEPARTURES.md")
    section = re.search(rf"^## {re.escape(Path(file).name)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return dict(re.findall(r"^- (D\d+): (.*(?:\n  .*)*)", section[1] if section else "", re.M))


def order():
    """The names of the algorithms' files in the order in which docs/READING.md links them."""
    links = re.findall(r"\]\(\.\./algorithms/(\w+)\.py\)", read("docs/READING.md"))
    return list(dict.fromkeys(links))


class Equation(NamedTuple):
    heading: str
    said: str          # Markdown
    code: list         # [(name, file)]
    tests: list        # [(name, file)]
    notes: list        # [Markdown]


def equations():
    """{name of an algorithm's file: (introduction, [Equation])}, from docs/EQUATIONS.md."""
    found = {}
    for section in re.split("^## .*\n", read("docs/EQUATIONS.md"), flags=re.M)[1:]:
        introduction, *parts = re.split("^### ", section, flags=re.M)
        found[re.search(r"\(\.\./algorithms/(\w+)\.py\)", introduction)[1]] = (
            introduction, [equation(*part.split("\n", 1)) for part in parts if "\n|" not in part])
    return found


def equation(heading, body):
    """The `Equation` of formulas and a list with "Here: ", "Tests: " and remarks."""
    items = ITEM.findall(body)
    links = {kind: CODE_LINK.findall(item) for item in items for kind in ("Here: ", "Tests: ")
             if item.startswith(kind)}
    notes = [item for item in items if not item.startswith(("Here: [", "Tests: "))]
    return Equation(heading, ITEM.sub("", body), links["Here: "], links.get("Tests: ", []), notes)
