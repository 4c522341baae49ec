"""EQUATIONS.md: each equation and line of the papers is where it says, and a test pins it.
Run as a script, this file corrects the line numbers there."""
import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "EQUATIONS.md"
LINK = re.compile(r"\[`([^`]+)`\]\(\.\./([\w/.]+)#L(\d+)\)")
NUMBERED = {   # what each paper numbers: {paper: {kind: its first number and its last}}
    "FedGEMS": {"Eq.": (1, 11), "Alg. 1": (1, 33), "Alg. 2": (1, 6)},
    "FedGKT": {"Eq.": (1, 13), "Alg. 1": (1, 30)}, "FedSDD": {"Eq.": (1, 5), "Alg. 1": (1, 10)},
    "FedMD": {"Alg. 1": (0, 5)}, "FedNTD": {"Alg. 1": (1, 8)}}
PAPERS = {     # whose numbers the anchors of a file are, unless they name a paper
    "FedGEMS": "attacks fedgem fedgems fedgems_ablations", "FedProx": "fedprox",
    "FedGKT": "communication fedgkt fedgkt_async fedgkt_features split_learning",
    "FedGen": "fedgen", "FedMD": "fedmd fedmd_pooled fedmd_transfer", "SCAFFOLD": "scaffold",
    "FedNTD": "fedntd", "FD": "fd",
    "FedSDD": "equations fedavg fedsdd fedsdd_ablations"}
PAPER_OF = {stem: paper for paper, stems in PAPERS.items() for stem in stems.split()}
ANCHOR = re.compile(r"(?:\b(Fed[A-Z]\w+|SCAFFOLD) )?(?:(Eq\.) (?=\()|(?:Alg\. (\d), |(?<=# ))"
                    r"(?:lines?|step) (?=\d))((?:\(?\d+\)?(?:-|, )?)+)")

MATH = re.compile(r"(?:^```math\n|(?<!\w)\$`)((?:[^`$]|\n)+?)(?:^```$|`\$(?!\w))", re.M)
SIDES = r"{ } \left \right \begin{cases} \end{cases} \begin{aligned} \end{aligned}".split()
KNOWN = {*SIDES, *r"""\{ \} \, \\ \Big \Delta \Vert \alpha \beta \boldsymbol \cdot \ell \epsilon
    \eta \exp \frac \gamma \hat \in \lVert \leftarrow \lfloor \log \lt \lvert \mathcal \mathrm \max
    \mid \min \mu \nabla \neq \phi \quad \rVert \rfloor \rvert \sigma \sim \stackrel \sum \tau \text
    \theta \tilde \times \underbrace \underset""".split()}
# KNOWN: commands of MathJax, without \operatorname: GitHub bars it


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
        wanted = re.compile(rf"def {name}\(|^{name} " if name.isidentifier() else re.escape(name))
        found = [n for n, line in enumerate(read(path).splitlines(), 1) if wanted.search(line)]
        assert len(found) == 1, f"{path} has {name} in the lines {found}, not in one"
        return f"[`{name}`](../{path}#L{found[0]})"
    return LINK.sub(correct, text)


def rows():
    """[(paper, {what it numbers}, here, pinned by, number, what it shows)] of the whole index."""
    found, paper, text = [], None, INDEX.read_text()
    for level, title, body in re.findall(r"^(##+) (.*)\n((?:(?!##).*\n)*)", text, re.M):
        paper = title if level == "##" else paper
        for here, tests in re.findall(r"^- Here: (.*)\n(?:- Tests: (.*)\n)?", body, re.M):
            found.append((paper, anchors(title, paper), here, tests, title.split(":")[0], body))
        cells = re.findall(r"^\| ([\d-]+) \| (.*) \| (.*) \| (.*) \|$", body, re.M)
        for k, shown, here, tests in cells:
            tests += body.partition("\n|")[0] if here != "nothing" else ""     # tests of all lines
            line = f"Alg. {title[-1]}, line {k}"
            found.append((paper, anchors(line, paper), here, tests, line, shown + "\n"))
    return found


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


def test_the_code_says_the_same_number_where_the_index_leads():
    for paper, numbers, here, *_ in rows():
        said = [says(path, int(line)) for _, path, line in LINK.findall(here)]
        assert all(numbers & each for each in said), (paper, numbers, here)
        assert numbers <= set.union(*said) if said else here.startswith("nothing"), (numbers, here)


def test_no_equation_or_line_that_is_code_is_without_a_test():
    for _, numbers, here, tests, *_ in rows():
        assert bool(LINK.search(tests)) == bool(LINK.search(here)), numbers
        assert all(re.match(r"\[`test_\w+`\]\(\.\./tests/", x[0]) for x in LINK.finditer(tests))


def test_every_anchor_in_the_code_is_in_the_index():
    indexed = set().union(*(numbers for _, numbers, *_ in rows()))
    for path in [*ROOT.glob("*.py"), *(ROOT / "algorithms").glob("*.py")]:
        assert anchors(path.read_text(), PAPER_OF.get(path.stem)) <= indexed, path.name


def renders(formula):
    """Only known commands, no "|" (it would end a table's cell), as much closed as opened."""
    words = re.findall(r"\\(?:begin|end)\{\w+\}|\\[A-Za-z]+|\\.|[{|}]", formula)
    counts = [words.count(side) for side in SIDES]
    return {*words} <= KNOWN and counts[::2] == counts[1::2]


def test_every_formula_renders():
    assert not re.search(r"\$|```", MATH.sub("", INDEX.read_text()))
    assert [formula for formula in MATH.findall(INDEX.read_text()) if not renders(formula)] == []
    assert not any(map(renders, (r"\operatorname{f}", r"\frac{1}{2", r"\left(", "a | b")))


def test_formulas_and_notation_tables_have_the_same_letters():
    noise = re.compile(r"\\(boldsymbol|text|tilde|[lr]vert|mid)\b|[\\{}^~| ]")
    letters = noise.sub("", "\n".join(MATH.findall(INDEX.read_text())))
    for path in {path for _, path, _ in LINK.findall(INDEX.read_text())}:
        for head, table in re.findall(r'^(Paper .*)here .*\n((?:[^"\n]+\n)+)', read(path), re.M):
            words = re.findall(r"[^\s,]+", " ".join(x[:len(head)] for x in table.splitlines()))
            assert [word for word in words if noise.sub("", word) not in letters] == [], path


if __name__ == "__main__":
    INDEX.write_text(corrected(INDEX.read_text()))
