"""The texts say what the code does: departures name tests, tables name code, imports go down."""
import ast
import doctest
import graphlib
import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch
from toys import OF_PAPERS

from algorithms import ALGORITHMS
from fedkd_minimal import configure, main, parse

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("[!.]*/*.md"), *ROOT.glob("reading/fed*.html")]
LINK = (r"(?:\]\(|\b(?:href|src|srcset)=\"|`(?=(?:benchmarks|results|tests)/)|"
        r"\bpython (?:-m pytest )?(?=\S+\.py))(?!\w+:)([^()\s\">`#]*)#?([^()\s\">`]*)")
ALGORITHM_FILES = sorted((ROOT / "algorithms").glob("[!_]*.py"))
PRODUCT = [*sorted(ROOT.glob("*.py")), *ALGORITHM_FILES]
SHARED = {       # files that all algorithms use: {file: files of the project that it may import}
    "equations": set(), "common": {"attacks", "equations"},
    "training": {"common"}, "evaluation": {"common", "training"}}
OWN_FILES = [path for path in ALGORITHM_FILES if "\nD1  " in path.read_text()]
OTHERS = {       # the few that import other algorithms: their local training, or what they vary
    "fedsdd": {"fedavg", "fedprox", "scaffold", "secure_sum"}, "feddf": {"fedavg"},
    "fedbe": {"fedavg"}, "fedsdd_ablations": {"fedsdd"}, "fedgem": {"fedgems"},
    "fedgems_ablations": {"fedgems"}, "fedgkt": {"fedgkt_features"}, "fedgkt_async": {"fedgkt"},
    "split_learning": {"fedgkt_features"}, "fedmd": {"fedmd_transfer"},
    "fedmd_pooled": {"fedmd_transfer"}}
ALLOWED = SHARED | {path.stem: {*SHARED, "communication", "attacks", *OTHERS.get(path.stem, ())}
                    for path in OWN_FILES}
TREE = {path: ast.parse(path.read_text()) for path in ALGORITHM_FILES}
DOCSTRING = {path: ast.get_docstring(tree) for path, tree in TREE.items()}
CODE = {path: path.read_text().replace(text, "") for path, text in DOCSTRING.items()}


@pytest.mark.parametrize("path", PRODUCT, ids=lambda path: path.stem)
def test_examples_in_docstrings_are_true(path):
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0


@pytest.mark.parametrize("path", OWN_FILES, ids=lambda path: path.stem)
def test_every_departure_names_a_test_that_exists(path):
    tests = "".join(file.read_text() for file in (ROOT / "tests").glob("test_*.py"))
    departures = re.findall(r"^D(\d+) (.*?)(?=^D\d+ |\Z)", DOCSTRING[path], re.M | re.S)
    assert departures and [int(k) for k, _ in departures] == [*range(1, len(departures) + 1)]
    for _, text in departures:
        named = re.findall(r"\[(test_\w+)\]", text)
        assert named and all(f"def {name}(" in tests for name in named), text


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
    function = ast.parse(inspect.getsource(ALGORITHMS[algo])).body[0]
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    assert {argument.arg for argument in function.args.kwonlyargs} <= read


def test_imports_go_downwards_and_take_only_local_training_of_others():
    """No algorithm knows the data, the networks or the command line."""
    for path in (path for path in TREE if path.stem in ALLOWED):
        found = set()
        for node in ast.walk(TREE[path]):
            if isinstance(node, ast.Import) or getattr(node, "module", "") == "algorithms":
                found |= {alias.name.removeprefix("algorithms.") for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module.removeprefix("algorithms."))
        assert found & {other.stem for other in PRODUCT} <= ALLOWED[path.stem], path.stem
        taken = set(re.findall(r"\b(?:fedavg|fedprox|scaffold|module)\.(\w+)", CODE[path]))
        assert taken <= {"start_server", "train_client", "aggregate", "COPIES"}, path.stem
        assert path.stem not in ("feddf", "fedbe", "fedsdd") or len(taken) == 4
    graphlib.TopologicalSorter(ALLOWED).prepare()        # raises an error if there is a cycle


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
    assert found == {ALGORITHMS[algo].__module__.split(".")[1] for algo in OF_PAPERS}


def test_all_draws_are_by_the_runs_seed():
    for path in OWN_FILES:
        assert set(re.findall(r"\b(?:stream|seeded)\(([\w.]+)", CODE[path])) <= {"fed.seed"}


@pytest.mark.parametrize("command", re.findall(
    r"\b(?:python|torchrun \S+ \d+) fedkd_minimal\.py (?!.*(?:--list|--help|--resume|fedavgm))"
    r"([^#\n`|]+)", "".join(path.read_text() for path in PAGES).replace("\\\n", " ")))
def test_every_command_on_a_page_is_understood(command):
    configure(parse(re.sub(r"[][]|\.\.\.", "", command).split()))


def places(path):
    """What may follow a file's #: L and a line's number, an id, a heading in GitHub's spelling."""
    text = path.read_text()
    headings = re.findall("^#+ (.*)", re.sub("^```.*?^```", "", text, flags=re.M | re.S), re.M)
    words = [re.sub(r"\]\(.*?\)|[^\w\- ]", "", x).lower().replace(" ", "-") for x in headings]
    lines = map("L{}".format, range(1, text.count("\n") + 1))
    return {*words, *lines, *re.findall(r'\bid="(.*?)"', text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_every_link_and_script_on_a_page_exists_and_every_anchor(page):
    for name, place in re.findall(LINK, page.read_text(), re.M):
        path = page.parent / (name or page.name)
        assert path.exists() and (not place or place.split("-L")[0] in places(path)), (name, place)


def test_every_figure_of_the_results_is_in_a_file_that_its_section_names():
    for section in re.split("^## ", (ROOT / "RESULTS.md").read_text(), flags=re.M):
        ours = re.sub(r"\*[+-]?\d[^*\n]*\*", "", section)         # without *the papers'*
        figures = re.findall(r"(?<![\w.])-?\d+\.\d\d\b(?: ± \d+\.\d\d\b)?", ours)
        files = map(ROOT.joinpath, re.findall(r"\((results/\S+txt)\)", ours))
        kept = re.sub(r" (?:\+-|±) +", " ± ", "".join(path.read_text() for path in files))
        assert [x for x in figures if x not in kept] == [], section[:60]


def test_the_readme_shows_what_its_first_command_prints(capsys):
    """The columns; round 0 and 1, to the digits that the number of threads leaves alone."""
    shown = README.partition("--K 4 --R 2")[2].partition("```")[0].splitlines()
    main("--algo fedsdd --K 4 --R 2 --alpha 1.0 --rounds 1".split())
    printed = capsys.readouterr().out.splitlines()
    for start in ("  round", "algorithm"):
        assert next(filter(re.compile(start).match, shown)).split() == next(
            filter(re.compile(start).match, printed)).split()
    for t in (0, 1):
        told, found = (next(line.split() for line in lines if re.match(rf" +{t}/", line))
                       for lines in (shown, printed))
        assert told[4:7] == found[4:7] and abs(float(told[1]) - float(found[1])) < .01
