"""EQUATIONS.md: each equation and line of the papers is where it says, and a test pins it.
Run as a script, this file corrects the line numbers there and in the README's index."""
import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
INDEX = ROOT / "EQUATIONS.md"
LINK = re.compile(r"\[`([^`]+)`\]\(([\w/.]+)#L(\d+)\)")
NUMBERED = {   # what each paper numbers: {paper: {kind: its first number and its last}}
    "FedGEMS": {"Eq.": (1, 11), "Alg. 1": (1, 33), "Alg. 2": (1, 6)},
    "FedGKT": {"Eq.": (1, 13), "Alg. 1": (1, 30)}, "FedSDD": {"Eq.": (1, 5), "Alg. 1": (1, 10)},
    "FedMD": {"Alg. 1": (0, 5)}}
PAPERS = {     # whose numbers the anchors of a file are, unless they name a paper
    "FedGEMS": "attacks fedgem fedgems fedgems_ablations", "FedProx": "fedprox",
    "FedGKT": "communication fedgkt fedgkt_async fedgkt_features split_learning",
    "FedMD": "fedmd fedmd_pooled fedmd_transfer", "SCAFFOLD": "scaffold",
    "FedSDD": "equations fedavg fedsdd fedsdd_ablations"}
PAPER_OF = {stem: paper for paper, stems in PAPERS.items() for stem in stems.split()}
ANCHOR = re.compile(r"(?:\b(Fed[A-Z]\w+|SCAFFOLD) )?(?:(Eq\.) (?=\()|(?:Alg\. (\d), |(?<=# ))"
                    r"(?:lines?|step) (?=\d))((?:\(?\d+\)?(?:-|, )?)+)")


def anchors(text, paper=None):
    """{(paper, "Eq." or "Alg. 1", number)} of "Eq. (6)-(7)", "Alg. 1, line 5-7, 9", "# line 4"."""
    return {(own or paper, kind or f"Alg. {algorithm or 1}", k)
            for own, kind, algorithm, numbers in ANCHOR.findall(text)
            for first, last in re.findall(r"(\d+)(?:\)?-\(?(\d+))?", numbers)
            for k in range(int(first), int(last or first) + 1)}


def read(path):
    return (ROOT / path).read_text()


def corrected(text):
    """The text whose links to code have the line of the function, or of the only such code."""
    def correct(link):
        name, path, _ = link.groups()
        wanted = re.compile(rf"def {name}\(" if name.isidentifier() else re.escape(name))
        found = [n for n, line in enumerate(read(path).splitlines(), 1) if wanted.search(line)]
        assert len(found) == 1, f"{path} has {name} in the lines {found}, not in one"
        return f"[`{name}`]({path}#L{found[0]})"
    return LINK.sub(correct, text)


def rows():
    """[(paper, {what it numbers}, here, pinned by)] of the whole index."""
    found = []
    for paper, section in re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", INDEX.read_text(), re.M):
        for line in re.findall(r"^\| (?!paper|-)(.*) \|$", section, re.M):
            numbers, _, here, tests = line.split(" | ")
            found.append((paper, anchors(numbers, paper), here, tests))
    return found


def short_index():
    """The README's links: each equation, to the first place where it is computed."""
    links = {paper: [paper] for paper in NUMBERED}
    for paper, numbers, here, _ in rows():
        equations = [k for _, kind, k in sorted(numbers) if kind == "Eq."]
        for _, path, line in LINK.findall(here)[:1] if paper in NUMBERED else ():
            links[paper] += [f"[({k})]({path}#L{line})" for k in equations]
    lines = [" ".join(words) for words in links.values() if words[1:]]
    return f"Equations, one click each: {'; '.join(lines)}."


def says(path, line):
    """The anchors of the statement in that line, with a function's docstring or a loop's head."""
    node = max((node for node in ast.walk(ast.parse(read(path))) if isinstance(node, ast.stmt)
                and node.lineno <= line <= node.end_lineno), key=lambda node: node.lineno)
    last = node.body[0].end_lineno if hasattr(node, "body") else node.end_lineno
    lines = read(path).splitlines()[node.lineno - 1:last]
    return anchors("\n".join(lines), PAPER_OF.get(Path(path).stem))


def test_every_equation_and_line_of_a_paper_is_in_the_index_once():
    found = [number for paper, numbers, *_ in rows() if paper in NUMBERED for number in numbers]
    assert sorted(found) == sorted((paper, kind, k) for paper in NUMBERED for kind, (first, last)
                                   in NUMBERED[paper].items() for k in range(first, last + 1))


def test_every_link_leads_to_the_line_it_names():
    assert INDEX.read_text() == corrected(INDEX.read_text())
    assert short_index() in read("README.md")


def test_the_code_says_the_same_number_where_the_index_leads():
    for paper, numbers, here, _ in rows():
        said = [says(path, int(line)) for _, path, line in LINK.findall(here)]
        assert said or here in ("definition", "heading"), here
        assert all(numbers & each for each in said), (paper, numbers, here)
        assert not said or numbers <= set.union(*said), (paper, numbers, here)


def test_no_equation_or_line_that_is_code_is_without_a_test():
    for _, numbers, here, tests in rows():
        named = LINK.findall(tests)
        assert bool(named) == bool(LINK.search(here)), numbers
        assert all(x[0].startswith("test_") and x[1].startswith("tests/test_") for x in named)


def test_every_anchor_in_the_code_is_in_the_index():
    indexed = set().union(*(numbers for _, numbers, *_ in rows()))
    for path in [*ROOT.glob("*.py"), *(ROOT / "algorithms").glob("*.py")]:
        assert anchors(path.read_text(), PAPER_OF.get(path.stem)) <= indexed, path.name


if __name__ == "__main__":
    INDEX.write_text(corrected(INDEX.read_text()))
    readme = re.sub("Equations, one click each: .*", lambda _: short_index(), read("README.md"))
    (ROOT / "README.md").write_text(readme)
