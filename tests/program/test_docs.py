"""The texts say what the code does: departures name tests, tables name code, imports go down."""
import ast
import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch
from toys import OF_PAPERS

from algorithms import ALGORITHMS
from experiment.config import configure
from experiment.flags import parse
from fedkd_minimal import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DEPARTURES = (ROOT / "docs" / "DEPARTURES.md").read_text()
PAGES = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/reading/fed*.html")]
TEXT = "".join(path.read_text() for path in PAGES).replace("\\\n", " ")
LINK = r"(?:\]\(|\b(?:href|src|srcset)=\")(?!\w+:)([^()\s\">`#]*)#?([^()\s\">`]*)"
SCRIPT = (r"(?:`(?=(?:benchmarks|data|docs|experiment|tests)/)|"
          r"\bpython (?:-m pytest )?(?=\S+\.py))([^:()\s\">`#]*)")

LAYERS = {       # what of the project the files of a folder, or one file, may import
    "fedkd_minimal.py": "experiment data algorithms federation attacks partition models",
    "experiment": "experiment data algorithms federation attacks partition models",
    "algorithms": "algorithms federation attacks",
    "data": "data federation",
    "federation.py": "", "attacks.py": "", "partition.py": "", "models.py": "",
    "reference": "reference"}
FILES = {layer: [ROOT / layer] if layer.endswith(".py") else sorted((ROOT / layer).glob("*.py"))
         for layer in LAYERS}
PRODUCT = [path for paths in FILES.values() for path in paths if path.stem != "__init__"]
MODULE = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in PRODUCT}
ALGORITHM_FILES = [path for path in FILES["algorithms"] if path.stem != "__init__"]
TREE = {path: ast.parse(path.read_text()) for path in PRODUCT}
DOCSTRING = {path: ast.get_docstring(TREE[path]) for path in ALGORITHM_FILES}
CODE = {path: path.read_text().replace(text, "") for path, text in DOCSTRING.items() if text}
OWN_FILES = [path for path, text in DOCSTRING.items()                             # of a paper
             if re.search(r"^(Run:|Paper.* here )", text or "", re.M)]
TESTS = {name for path in (ROOT / "tests").glob("*/test_*.py")
         for name in re.findall(r"^def (test_\w+)\(", path.read_text(), re.M)}
SECTIONS = dict(re.findall(r"^## (\S+)$(.*?)(?=^## |\Z)", DEPARTURES, re.M | re.S))
HEADINGS = ["Run:", "What travels:", "Public data:", "Paper", "Kept between rounds:", "Scores:",
            "Bad upload:", "Departures (more: docs/DEPARTURES.md):"]


def imports(path):
    """{"algorithms", "algorithms.fedavg", "torch"}: what a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(TREE[path]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_go_downwards(layer):
    """Of an algorithm: it knows no data set, no network, no command line."""
    project = {name.removesuffix(".py") for name in LAYERS}
    for path in {*FILES[layer]} & {*PRODUCT}:
        used = {name.split(".")[0] for name in imports(path)} & project
        assert used <= {*LAYERS[layer].split()}, path


def test_what_algorithms_share_imports_no_papers_file():
    for path in {*ALGORITHM_FILES} - {*OWN_FILES}:
        assert not imports(path) & {MODULE[own] for own in OWN_FILES}, path


@pytest.mark.parametrize("path", [path for path in PRODUCT if ">>> " in path.read_text()],
                         ids=lambda path: path.stem)
def test_examples_in_docstrings_are_true(path):
    module = importlib.import_module(MODULE[path])
    found = doctest.testmod(module, extraglobs={"torch": torch})
    assert found.failed == 0 < found.attempted


def departures(text):
    """[(number, text)] of the lines "D1  ..." of a file, "- D1: ..." of the page."""
    found = re.findall(r"^(?:- )?D(\d+)\b(.*?)(?=^(?:- )?D\d|\Z)", text, re.M | re.S)
    return [(int(number), rest) for number, rest in found]


@pytest.mark.parametrize("file", SECTIONS)
def test_every_departure_names_a_test_that_exists(file):
    found = departures(SECTIONS[file])
    assert file in {path.name for path in PRODUCT}
    assert [number for number, _ in found] == [*range(1, len(found) + 1)]
    for _, text in found:
        named = {*re.findall(r"\btest_\w+", text)}
        assert named and named <= TESTS, text


@pytest.mark.parametrize("path", OWN_FILES, ids=lambda path: path.stem)
def test_a_departure_of_a_header_is_on_the_page_and_marked_in_the_code(path):
    """Under the same number. The names of tests are on the page alone."""
    numbers = {number for number, _ in departures(DOCSTRING[path])}
    assert numbers <= {number for number, _ in departures(SECTIONS.get(path.name, ""))}
    code = CODE[path] + CODE[path.with_stem("fedgkt_features")] * (path.stem == "fedgkt")
    assert [k for k in numbers if not re.search(rf"#.*\bD{k}\b", code)] == []
    assert not {*re.findall(r"\btest_\w+", DOCSTRING[path])} & TESTS


@pytest.mark.parametrize("path", [path for path in OWN_FILES if "\nRun:" in DOCSTRING[path]],
                         ids=lambda path: path.stem)
def test_every_header_has_its_headings_in_one_order(path):
    """A heading that has nothing to say is left out."""
    found = re.findall(rf"^({'|'.join(map(re.escape, HEADINGS))})", DOCSTRING[path], re.M)
    assert found == [heading for heading in HEADINGS if heading in found]
    assert {*HEADINGS[:3]} <= {*found}


def test_every_name_in_a_notation_table_is_in_the_code():
    for path in {*OWN_FILES} - {ROOT / "algorithms" / "baselines.py"}:
        code = CODE[path] + CODE[path.with_stem("fedgkt_features")] * (path.stem == "fedgkt")
        [table] = re.findall(r"^(Paper.* here .*\n(?:.*\S.*\n)+)", DOCSTRING[path] + "\n", re.M)
        header, *rows = table.splitlines()
        here = [row[header.index("here"):header.index("shape")].split("(")[0] for row in rows]
        names = re.findall(r"[A-Za-z_]\w*", " ".join(here))
        assert len(names) >= max(4, sum(bool(cell.strip()) for cell in here)), path
        assert [name for name in names if not re.search(rf"\b{name}\b", code)] == [], path


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_keyword_is_read(algo):
    function = ast.parse(inspect.getsource(ALGORITHMS[algo].run)).body[0]
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    assert {argument.arg for argument in function.args.kwonlyargs} <= read


def test_a_round_is_at_most_twenty_lines_of_code():
    """From the head of the loop to the metrics; blank lines and comment lines do not count."""
    found = set()
    for path in OWN_FILES:
        lines = path.read_text().splitlines()
        for loop in ast.walk(TREE[path]):
            if isinstance(loop, ast.For) and ast.unparse(loop).startswith("for t in range("):
                [end] = [x.lineno for x in loop.body if ast.unparse(x).startswith("metrics = ")]
                body = map(str.strip, lines[loop.lineno:end - 1])
                assert sum(line[:1] not in ("", "#") for line in body) <= 20, path.stem
                found.add(path.stem)
    assert found == {ALGORITHMS[algo].run.__module__.split(".")[1] for algo in OF_PAPERS}


def test_all_draws_are_by_the_runs_seed():
    for path in OWN_FILES:
        assert set(re.findall(r"\b(?:stream|seeded)\(([\w.]+)", CODE[path])) <= {"fed.seed"}


@pytest.mark.parametrize("command", re.findall(
    r"\b(?:python|torchrun \S+ \d+) fedkd_minimal\.py (?!.*(?:--list|--help|--resume|fedavgm))"
    r"([^#\n`|]+)", TEXT.replace((ROOT / "docs" / "REPRODUCE.md").read_text(), "")))
def test_every_command_on_a_page_is_understood(command):
    """Those of REPRODUCE.md are in test_reproduce.py."""
    configure(parse(re.sub(r"[][]|\.\.\.", "", command).split()))


def places(path):
    """What may follow a file's #: L and a line's number, an id, a heading in GitHub's spelling."""
    text = path.read_text()
    headings = re.findall("^#+ (.*)", re.sub("^```.*?^```", "", text, flags=re.M | re.S), re.M)
    words = [re.sub(r"\]\(.*?\)|[^\w\- ]", "", x).lower().replace(" ", "-") for x in headings]
    lines = map("L{}".format, range(1, text.count("\n") + 1))
    return {*words, *lines, *re.findall(r'\bid="(.*?)"', text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_every_link_on_a_page_leads_to_a_file_and_to_a_place_in_it(page):
    for name, place in re.findall(LINK, page.read_text()):
        path = page.parent / (name or page.name)
        assert path.exists() and (not place or place.split("-L")[0] in places(path)), (name, place)


def test_every_script_and_path_on_a_page_exists():
    assert [name for name in re.findall(SCRIPT, TEXT) if not (ROOT / name).exists()] == []


def test_every_figure_of_the_results_is_in_a_file_that_its_section_names():
    for section in re.split("^## ", (ROOT / "docs" / "RESULTS.md").read_text(), flags=re.M):
        ours = re.sub(r"\*[+-]?\d[^*\n]*\*", "", section)         # without *the papers'*
        figures = re.findall(r"(?<![\w.])-?\d+\.\d\d\b(?: ± \d+\.\d\d\b)?", ours)
        files = map((ROOT / "docs").joinpath, re.findall(r"\((results/\S+txt)\)", ours))
        kept = re.sub(r" (?:\+-|±) +", " ± ", "".join(path.read_text() for path in files))
        assert [x for x in figures if x not in kept] == [], section[:60]


def test_the_differences_in_the_readme_are_in_a_file_of_results():
    kept = "".join(path.read_text() for path in ROOT.glob("docs/results/*.txt"))
    found = re.findall(r"(\d\.\d\d) ± (\d\.\d\d)", README)
    assert len(found) == 3 and all(f"+{mean} +- {std}, " in kept for mean, std in found)


def test_the_readme_shows_what_its_first_command_prints(capsys):
    """The columns; round 0 and 1, to the digits that the number of threads leaves alone."""
    [shown] = [block.splitlines() for block in README.split("```") if "  round" in block]
    main("--algo fedsdd --K 4 --R 2 --rounds 1".split())
    printed = capsys.readouterr().out.splitlines()
    for start in ("  round", "algorithm"):
        assert next(filter(re.compile(start).match, shown)).split() == next(
            filter(re.compile(start).match, printed)).split()
    for t in (0, 1):
        told, found = (next(line.split() for line in lines if re.match(rf" +{t}/", line))
                       for lines in (shown, printed))
        assert told[4:7] == found[4:7] and abs(float(told[1]) - float(found[1])) < .01
