"""docs/reading: a page for each algorithm; its formulas, code, tests and links are all there."""
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from commands import ROOT

from docs.reading import sources

REASON = "needs docs/reading/requirements.txt"
LAST_EQUATION = {"fedgems": 11, "fedgkt": 13, "fedsdd": 5}
# Files whose header numbers the lines of the paper's algorithm and whose code marks them.
WITH_LINES = ["fedgems", "fedgkt", "fedsdd", "fedmd", "scaffold", "fedntd", "fd", "fedgen"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """{name: (file, its HTML as a tree)}: also that each page is well-formed."""
    pytest.importorskip("markdown", reason=REASON)
    pytest.importorskip("latex2mathml", reason=REASON)
    from docs.reading import generate
    folder = tmp_path_factory.mktemp("pages")
    generate.write(folder)
    return {path.stem: (path, ET.parse(path).getroot()) for path in folder.glob("*.html")}


def test_every_algorithm_has_a_page(pages):
    linked = re.findall(r"\(algorithms/(\w+)\.py\)", (ROOT / "README.md").read_text())
    assert {*linked} <= {*sources.order()} and {*pages} == {"index", *sources.order()}


def test_every_departure_of_a_file_is_on_its_page_with_its_tests(pages):
    for name in sources.order():
        tests = {node.get("id"): len(node.findall(".//details"))
                 for node in pages[name][1].iter("section") if node.get("id")}
        for departure, text in sources.departures(f"algorithms/{name}.py").items():
            assert tests[f"{name}-{departure}"] == text.count("`test_") > 0


def test_every_link_on_a_page_leads_somewhere(pages):
    ids = {name: {node.get("id") for node in root.iter()} for name, (_, root) in pages.items()}
    for name, (path, root) in pages.items():
        links = [node.get("href") or node.get("src") for node in root.iter()
                 if node.tag in ("a", "img")]
        assert len(links) > 5
        for link in links:
            file, _, place = link.partition("#")
            target = path.parent / file if file else path
            if not link.startswith("https://arxiv.org/"):
                assert target.exists(), (name, link)
            if place and target.suffix == ".html":
                assert place in ids[target.stem], (name, link)


def test_no_formula_and_no_markdown_is_left_on_a_page(pages):
    for name, (_, root) in pages.items():
        for code in [*root.iter("pre"), *root.iter("code"), *root.iter("style")]:
            code.clear()
        text = "".join(root.itertext())
        assert re.findall(r"\\[A-Za-z]+|\$|`|\]\(|\*\*|wzxhzdk", text) == [], name


def test_every_page_takes_nothing_from_elsewhere(pages):
    for path, root in pages.values():
        assert not {"script", "link", "iframe"} & {node.tag for node in root.iter()}
        assert "@import" not in path.read_text() and "url(" not in path.read_text()


def test_without_its_libraries_the_program_says_so_in_one_line(tmp_path):
    (tmp_path / "markdown.py").write_text("raise ModuleNotFoundError(name='markdown')")
    (tmp_path / "latex2mathml.py").write_text("raise ModuleNotFoundError(name='latex2mathml')")
    done = subprocess.run([sys.executable, ROOT / "docs" / "reading" / "generate.py"],
                          env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 1 and not done.stdout
    assert re.fullmatch(r"no module \w+: pip install -r docs/reading/requirements.txt\n",
                        done.stderr)


# ---------------------------------------------------------------------------------------- sources

def test_no_equation_of_the_papers_is_missing_and_all_that_is_code_has_a_test():
    for name, (_, equations) in sources.equations().items():
        numbers = [int(n) for equation in equations if equation.heading.startswith("Eq.")
                   for n in re.findall(r"\d+", equation.heading.split(":")[0])]
        assert name not in LAST_EQUATION or numbers == [*range(1, LAST_EQUATION[name] + 1)]
        assert [x.heading for x in equations if x.code and not x.tests] == []


@pytest.mark.parametrize("name", WITH_LINES)
def test_a_line_of_the_header_is_found_by_its_mark_in_the_code(name):
    file = f"algorithms/{name}.py"
    steps = [step for paragraph in sources.header(file).algorithm
             for step in sources.steps(paragraph) if step.lines()]
    marked = dict(sources.marked(file))
    assert len([step for step in steps if step.lines() & {*marked}]) >= 3
    for number, place in marked.items():
        text = "".join((ROOT / file).read_text().splitlines(True)[place.first - 1:place.last])
        assert re.search(rf"#.*\b(line|step)s? (.*\b)?{number}\b", text)


def test_steps_and_cases_are_items_of_a_list_with_what_stands_below_them():
    found = sources.steps("""\
A round, with the paper's lines in brackets:
 a  Each client trains [25-27, 31].
 b  The server trains [4]
    on a batch, whose case is
      self_training  right: CE
                     alone [5-7]
 3- 5  each uploads
19-22    E_c passes
Then it ends""")
    assert [(step.label, step.text) for step in found] == [
        ("", "A round, with the paper's lines in brackets:"),
        ("a", "Each client trains [25-27, 31]."),
        ("b", "The server trains [4] on a batch, whose case is"),
        ("self_training", "right: CE alone [5-7]"), ("3-5", "each uploads"),
        ("19-22", "E_c passes"), ("", "Then it ends")]
    assert [sorted(step.lines()) for step in found] == [
        [], [25, 26, 27, 31], [4], [5, 6, 7], [3, 4, 5], [19, 20, 21, 22], []]


def test_code_is_found_by_its_name_or_by_a_text_that_is_there_once(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    (tmp_path / "found.py").write_text('''"""A file about rows."""
@timed
def mean(x):
    return x

# Of all rows.
for rows in mean(
        batches):
    # Each row.
    total = mean(rows)     # line 7-8, 12
''')
    def shown(name):
        return tuple(sources.find("found.py", name)[1:])

    assert shown("mean") == (2, 4)                      # a function with its decorator
    assert shown("total = mean(rows)") == (9, 10)       # a statement, the comment above it
    assert shown("for rows in") == (6, 8)               # the head of a loop, the comment above it
    assert sources.marked("found.py") == [(n, sources.Lines("found.py", 9, 10)) for n in (7, 12)]
    for unknown in ("no_such_function", "no such text", "row"):
        with pytest.raises(ValueError, match=unknown):
            shown(unknown)
