"""docs/reading/: the pages are current and complete. reference/: the pages stand on their own."""
import ast
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from test_equations_page import PAPER_OF, anchors

from docs.reading import generate

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.stem for path in (ROOT / "docs" / "reading").glob("*.txt"))
REFERENCES = sorted((ROOT / "reference").glob("[!_]*.py"))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_generator_makes_of_the_code(name):
    """Else: python docs/reading/generate.py. It is well-formed XML, and its links lead to files."""
    page = generate.page(name)
    assert (ROOT / "docs" / "reading" / f"{name}.html").read_text() == page
    links = [node.get("href") for node in ET.fromstring(page).iter("a")]
    assert len(links) >= 5 and all((ROOT / "docs" / "reading" / link).is_file() for link in links)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_every_line_and_equation_of_its_file_beside_its_code(name):
    """A row's code has an anchor of its heading, if the heading has any."""
    tree = ast.parse(code := (ROOT / "algorithms" / f"{name}.py").read_text())
    body, headings = "\n".join(code.splitlines()[tree.body[0].end_lineno:]), set()
    for row in ET.fromstring(generate.page(name)).iter("section"):
        said, beside = (anchors("".join(part.itertext()), PAPER_OF[name]) for part in
                        (row.find("div/h2"), row.find("div[@class='code']")))
        assert not said or said & beside, said
        headings |= said
    assert headings >= anchors(body, PAPER_OF[name]) != set()


@pytest.mark.parametrize("path", REFERENCES, ids=lambda path: path.stem)
def test_a_reference_is_short_plain_python_of_its_own(path):
    text = path.read_text()
    assert set(re.findall(r"^(?:from|import) (\S+)", text, re.M)) <= {"math", "reference.linear"}
    most = {"fedgems": 95, "fedgkt": 75, "fedmd": 60, "fedsdd": 70, "linear": 90}
    assert text.count("\n") <= most[path.stem]
