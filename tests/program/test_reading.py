"""docs/reading: a page for each algorithm; its formulas, code, tests and links are all there."""
import doctest
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from docs.reading import generate, mathml, sources

ROOT = Path(__file__).parents[2]
NUMBERED = {"fedgems": 11, "fedgkt": 13, "fedsdd": 5}     # the last equation of a paper


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """{name: (file, its HTML as a tree)}: also that each page is well-formed."""
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
        assert re.findall(r"\\[A-Za-z]+|\$|`|\]\(|\*\*", text) == [], name


def test_every_page_takes_nothing_from_elsewhere(pages):
    for path, root in pages.values():
        assert not {"script", "link", "iframe"} & {node.tag for node in root.iter()}
        assert "@import" not in path.read_text() and "url(" not in path.read_text()


def test_no_equation_of_the_four_papers_is_missing():
    for name, last_equation in NUMBERED.items():
        _, rows = sources.equations()[name]
        headings = [row.heading.split(":")[0] for row in rows if row.heading.startswith("Eq.")]
        numbers = [int(n) for heading in headings for n in re.findall(r"\d+", heading)]
        assert sorted(numbers) == [*range(1, last_equation + 1)]


def test_nothing_that_is_code_is_without_a_test():
    """A line has one of its own, or its algorithm has one of all lines."""
    for _, rows in sources.equations().values():
        of_all_lines = []
        for row in rows:
            if row.heading:
                of_all_lines = row.tests if not row.code else []
            assert row.tests or of_all_lines or not row.code, (row.heading, row.lines)


def test_code_is_found_by_its_name_or_by_a_text_that_is_there_once():
    def shown(name):
        found = sources.find("algorithms/fedsdd.py", name)
        return (ROOT / found.file).read_text().splitlines()[found.first - 1:found.last]

    assert [line.split("(")[0] for line in shown("is_main")] == [
        "def is_main", '    """True for the main model: the first of the K global models of a '
        'network."""', "    return k % K == 0"]
    assert len(shown("distilled = run_students(")) == 2        # a statement
    assert len(shown("main_ks = [k for k in range(")) == 2     # and the comment above it
    assert len(shown("for rows in batches(")) == 2             # the head of a loop
    for unknown in ("no_such_function", "no such text", "optimizer"):
        with pytest.raises(ValueError, match=unknown):
            shown(unknown)


@pytest.mark.parametrize("latex", [
    r"\operatorname{f}", r"\frac{1}{2", r"\frac{1}", r"\left(", "a | b", "a}", r"\mathcal{Q}",
    r"\boldsymbol{ab}", r"\begin{cases} a", "a & b"])
def test_a_formula_that_is_not_understood_is_an_error(latex):
    with pytest.raises(ValueError):
        mathml.mathml(latex)


def test_the_example_of_a_formula_is_true():
    found = doctest.testmod(mathml)
    assert found.failed == 0 < found.attempted
