"""EQUATIONS.md against the code and the tests: each equation and line of the papers is where it says, and some test pins it.

    python tests/test_equations.py            mends the line numbers in EQUATIONS.md and in the README's short index
"""
import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
INDEX = ROOT / "EQUATIONS.md"
LINK = re.compile(r"\[`([^`]+)`\]\(([\w/.]+)#L(\d+)\)")
NUMBERED = {   # what each paper numbers
    "FedGEMS": {("Eq.", k) for k in range(1, 12)} | {("Alg. 1", k) for k in range(1, 34)} | {("Alg. 2", k) for k in range(1, 7)},
    "FedGKT": {("Eq.", k) for k in range(1, 14)} | {("Alg. 1", k) for k in range(1, 31)},
    "FedSDD": {("Eq.", k) for k in range(1, 6)} | {("Alg. 1", k) for k in range(1, 11)},
    "FedMD": {("Alg. 1", k) for k in range(6)},
}
PAPER_OF = {   # whose numbers a file's anchors are, unless they say so themselves
    "attacks": "FedGEMS", "communication": "FedGKT", "equations": "FedSDD", "fedavg": "FedSDD", "fedgem": "FedGEMS", "fedgems": "FedGEMS",
    "fedgems_ablations": "FedGEMS", "fedgkt": "FedGKT", "fedgkt_async": "FedGKT", "fedgkt_features": "FedGKT", "fedmd": "FedMD",
    "fedmd_pooled": "FedMD", "fedmd_transfer": "FedMD", "fedprox": "FedProx", "fedsdd": "FedSDD", "fedsdd_ablations": "FedSDD",
    "scaffold": "SCAFFOLD", "split_learning": "FedGKT"}
SOURCES = sorted([*ROOT.glob("*.py"), *(ROOT / "algorithms").glob("*.py")])


def anchors(text, paper=None):
    """{(paper, "Eq." or "Alg. a", number)} of every "Eq. (4)", "Eq. (6)-(7)", "Alg. 1, line 5-7, 9" and "Alg. 1, step 3" in a text.

    A comment at the end of a long line of code leaves "Alg. 1, " out: "# line 4".
    """
    found = set()
    for own, kind, algorithm, numbers in re.findall(
            r"(?:\b(Fed[A-Z]\w+|SCAFFOLD) )?(?:(Eq\.) (?=\()|(?:Alg\. (\d), |(?<=# ))(?:lines?|step) (?=\d))((?:\(?\d+\)?(?:-|, )?)+)", text):
        for first, last in re.findall(r"(\d+)(?:\)?-\(?(\d+))?", numbers):
            found |= {(own or paper, kind or f"Alg. {algorithm or 1}", k) for k in range(int(first), int(last or first) + 1)}
    return found


@cache
def read(path):
    return (ROOT / path).read_text()


def line_of(text, path):
    """The line, from 1, that defines the function `text`, or the only one with that code in it."""
    lines = read(path).splitlines()
    wanted = re.compile(rf"def {text}\(") if text.isidentifier() else re.compile(re.escape(text))
    found = [n for n, line in enumerate(lines, 1) if wanted.search(line)]
    assert len(found) == 1, f"{path} has {text} in the lines {found}, not in one"
    return found[0]


def mended(text):
    """The text with the right line in every link to code."""
    return LINK.sub(lambda link: f"[`{link[1]}`]({link[2]}#L{line_of(link[1], link[2])})", text)


def rows():
    """[(paper, {what it numbers}, here, pinned by)] of the whole index."""
    found = []
    for section in INDEX.read_text().split("\n## ")[1:]:
        paper = section.splitlines()[0]
        for line in re.findall(r"^\| (?!paper|-)(.*) \|$", section, re.M):
            numbers, _, here, tests = (cell.strip() for cell in line.split(" | "))
            found.append((paper, anchors(numbers, paper), here, tests))
    return found


def short_index():
    """The README's lines: each numbered equation that is computed, linked to the first place where it is."""
    lines = []
    for paper in NUMBERED:
        links = []
        for of, numbers, here, _ in rows():
            if of == paper and LINK.search(here):
                for _, kind, k in sorted(numbers):
                    links += [f"[({k})]({LINK.search(here)[2]}#L{LINK.search(here)[3]})"] * (kind == "Eq.")
        lines += [f"{paper} " + " ".join(links)] * bool(links)
    return "Equations, one click each: " + "; ".join(lines) + "."


def says(path, line):
    """The anchors of the statement in that line; of a function, those of its docstring; of a loop, those of its head."""
    inside = [node for node in ast.walk(ast.parse(read(path))) if isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno]
    node = max(inside, key=lambda node: node.lineno)
    last = node.body[0].end_lineno if hasattr(node, "body") else node.end_lineno
    text = "\n".join(read(path).splitlines()[node.lineno - 1:last])
    return anchors(text, PAPER_OF.get(Path(path).stem))


def test_anchors_by_hand():
    text = "Eq. (1), (2), (5) of a loss; FedSDD Eq. (6)-(7); Alg. 1, line 8, 10; Alg. 2, lines 4-5. Alg. 1, step 0"
    text += "\nfor rows in batches(n):    # line 11\n# In line 12 nothing is said, nor in the first line 13."
    eq, own = [("FedX", "Eq.", k) for k in (1, 2, 5)], [("FedSDD", "Eq.", k) for k in (6, 7)]
    lines = [("FedX", "Alg. 1", 8), ("FedX", "Alg. 1", 10), ("FedX", "Alg. 2", 4), ("FedX", "Alg. 2", 5), ("FedX", "Alg. 1", 0)]
    lines += [("FedX", "Alg. 1", 11)]
    assert anchors(text, "FedX") == {*eq, *own, *lines}


@pytest.mark.parametrize("paper", NUMBERED)
def test_every_equation_and_line_of_a_paper_is_in_the_index_once(paper):
    numbers = [(kind, k) for of, found, *_ in rows() if of == paper for _, kind, k in found]
    assert sorted(numbers) == sorted(NUMBERED[paper])


def test_every_link_leads_to_the_line_it_names():
    assert INDEX.read_text() == mended(INDEX.read_text())


def test_the_code_says_the_same_number_where_the_index_leads():
    for paper, numbers, here, _ in rows():
        links = LINK.findall(here)
        assert links or here in ("definition", "heading"), here
        for _, path, line in links:
            assert numbers & says(path, int(line)), f"{path}:{line} does not say {sorted(numbers)}"
        if links:
            assert numbers <= set.union(*(says(path, int(line)) for _, path, line in links)), (paper, numbers)


def test_no_equation_or_line_that_is_code_is_without_a_test():
    for _, numbers, here, tests in rows():
        named = LINK.findall(tests)
        assert bool(named) == bool(LINK.search(here)), numbers
        assert all(name.startswith("test_") and path.startswith("tests/test_") for name, path, _ in named)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_anchor_in_the_code_is_in_the_index(path):
    indexed = set().union(*(numbers for _, numbers, *_ in rows()))
    found = anchors(path.read_text(), PAPER_OF.get(path.stem))
    assert found <= indexed, sorted(found - indexed)


def test_the_readme_leads_to_every_equation_in_one_click():
    assert short_index() in (ROOT / "README.md").read_text()


if __name__ == "__main__":
    INDEX.write_text(mended(INDEX.read_text()))
    readme = ROOT / "README.md"
    readme.write_text(re.sub(r"Equations, one click each: .*", lambda _: short_index(), readme.read_text()))
