"""The texts say what the code does: departures name tests, tables name code, imports go down."""
import ast
import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import shipped
from functions import EQUATIONS
from pages import (ROOT, departures, docstring, equations, names_of_tests, numbered_in_header,
                   tree)
from test_claims import linked, num_words, rows_of
from toys import federation, rounds

from algorithms import ALGORITHMS, fedavg, fedsdd_ablations
from benchmarks import claims
from experiment.settings import read

README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/results/*.md")]
TEXT = "".join(path.read_text() for path in PAGES).replace("\\\n", " ")
LINK = r"(?:\]\(|\b(?:href|src|srcset)=\")(?!\w+:)([^()\s\">`#]*)#?([^()\s\">`]*)"
SCRIPT = (r"(?:`(?=(?:benchmarks|data|docs|experiment|tests)/)|"
          r"\bpython (?:-m pytest )?(?=\S+\.py))([^:()\s\">`#]*)")

LAYERS = {       # what of the project the files of a folder, or one file, may import
    "fedkd_minimal.py": "experiment data algorithms federation attacks partition models",
    "experiment": "experiment data algorithms federation attacks partition models",
    "algorithms": "algorithms federation attacks",
    "data": "data federation partition",
    "federation.py": "",
    "attacks.py": "federation", "partition.py": "", "models.py": "",
    "reference": "math sys pathlib reference"}
FILES = {layer: [layer] if layer.endswith(".py") else
         [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / layer).glob("*.py"))]
         for layer in LAYERS} | {"algorithms": [f"algorithms/{name}.py" for name in shipped()]}
PRODUCT = sum(FILES.values(), [])
WITH_DEPARTURES = [file for file in PRODUCT if departures(file) or numbered_in_header(file)]
EXAMPLES = [file for file in PRODUCT if ">>> " in (ROOT / file).read_text()]
HEADERS = "".join(map(docstring, FILES["algorithms"])).replace("\\\n", "")
LAST_EQUATION = {"fedgems": 11, "fedgkt": 13, "fedsdd": 5}


def module(file):
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports(file):
    """{"algorithms", "algorithms.fedavg", "torch"}: what a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_go_downwards(layer):
    """An algorithm knows no data set, no network, no command line; reference/ not even torch."""
    project = {name.removesuffix(".py") for name in LAYERS}
    for file in FILES[layer]:
        used = {name.split(".")[0] for name in imports(file)}
        used = used if layer == "reference" else used & project
        assert used <= {*LAYERS[layer].split()}, file


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda p: p.stem)
def test_what_a_benchmark_imports_from_the_project_exists(path):
    """Most cannot be imported: they measure at once."""
    project = {name.removesuffix(".py") for name in LAYERS} | {"benchmarks"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in project:
            exec(ast.unparse(node), {})


@pytest.mark.parametrize("file", EXAMPLES)
def test_examples_in_docstrings_are_true(file):
    found = doctest.testmod(importlib.import_module(module(file)), extraglobs={"torch": torch})
    assert found.failed == 0 < found.attempted


@pytest.mark.parametrize("file", WITH_DEPARTURES)
def test_every_departure_names_a_test_that_exists(file):
    """On the page, which has those of the file's first section, and more."""
    found = departures(file)
    assert [*found] == [*range(1, len(found) + 1)] and {*numbered_in_header(file)} <= {*found}
    for text in found.values():
        named = {*re.findall(r"\btest_\w+", text)}
        assert named and named <= names_of_tests(), text


def test_no_equation_of_the_papers_is_missing_and_all_that_is_code_has_a_test():
    for name, sections in equations().items():
        found = [int(n) for heading in sections if heading.startswith("Eq.")
                 for n in re.findall(r"\d+", heading.split(":")[0])]
        assert name not in LAST_EQUATION or sorted(found) == [*range(1, LAST_EQUATION[name] + 1)]
        for heading, text in sections.items():
            links = r"^Code: .+?Tests:\s\[|^Nothing to compute"
            assert re.search(links, text, re.M | re.S), heading
            assert {*re.findall(r"\btest_\w+(?=`\])", text)} <= names_of_tests(), heading


@pytest.mark.parametrize("file", FILES["algorithms"])
def test_all_draws_are_by_the_runs_seed(file):
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("make_rng", "seed_torch"):
            assert ast.unparse(node.args[0]) == "fed.seed"


@pytest.mark.parametrize("command", re.findall(
    r"\b(?:python|torchrun \S+ \d+) fedkd_minimal\.py (?!.*(?:--list|--help|fedavgm))"
    r"([^#\n`|]+)", TEXT.replace((ROOT / "docs" / "REPRODUCE.md").read_text(), "") + HEADERS))
def test_every_command_on_a_page_or_in_a_header_is_understood(command):
    """Those of REPRODUCE.md are in test_reproduce.py."""
    read(re.sub(r"[][]|\.\.\.", "", command).split())


def places(path):
    """What may follow a page's #: its headings in GitHub's spelling."""
    text = re.sub("^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    headings = re.findall("^#+ (.*)", text, re.M)
    return {re.sub(r"\]\(.*?\)|[^\w\- ]", "", x).lower().replace(" ", "-") for x in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_every_link_on_a_page_leads_to_a_file_and_to_a_place_in_it(page):
    for name, place in re.findall(LINK, page.read_text()):
        path = page.parent / (name or page.name)
        is_row = path.suffix == ".csv" and re.fullmatch(r"L\d+", place)
        assert path.exists() and (not place or is_row or place in places(path)), (name, place)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_name_given_with_a_file_on_a_page_is_in_that_file(page):
    """[`name`](file.py), and `name` in [file.py](file.py)."""
    named = re.findall(r"\[`([^`]+)`\]\(([\w./]+\.py)", page.read_text()) + re.findall(
        r"(?<=`)([\w.]+)` (?:in|of|from) \[[^]]+\]\(([\w./]+\.py)", page.read_text())
    for name, file in named:
        text = Path(file).name + (page.parent / file).read_text()
        assert re.search(rf"(?<!\w){re.escape(name)}", text), (name, file)


def test_every_script_and_path_on_a_page_exists():
    assert [name for name in re.findall(SCRIPT, TEXT) if not (ROOT / name).exists()] == []


def test_the_claims_of_the_readme_are_their_rows():
    rows, ours, papers = {row["id"]: row for row in rows_of("claims")}, [], []
    table = [line.split("|") for line in README.splitlines()
             if "claims.csv#" in line and line.startswith("|")]
    for *_, paper, figure, verdict, _ in table:
        row = rows[linked(figure)[0][-1]]
        assert verdict.strip() == row["verdict"]
        assert row["paper"] in (paper.strip(), "")
        if "data" not in row["not_the_papers"]:
            ours += float(row["a_mean"]), float(row["b_mean"])
            claim = claims.BY_ID[row["id"]]
            papers += [float(x) for x in (claim["paper_row"], claim["paper_base"]) if x]
    text = " ".join(README.split())
    assert (f"reach {min(ours):.0f} to {max(ours):.0f}% on CIFAR-10, the papers' {min(papers):.0f} "
            f"to {max(papers):.0f}%") in text and len(table) == 8
    assert f"rows after seeing all {len(rows)}." in text
    assert num_words(README) <= 1350


def test_fedavgs_averaged_model_is_that_of_the_runs_in_the_evidence():
    """They were made before FedAvg had --average-last."""
    new = rounds(fedavg, federation(), rounds=3, average_last=2)
    old = rounds(fedsdd_ablations, federation(), rounds=3, students="none", K=1, R=2)
    found, expected = ([metrics["averaged_accuracy"] for metrics, state in runs
                        if state["round"] > 0] for runs in (new, old))
    assert found == expected and len(found) == 3


def test_the_readme_says_which_networks_and_public_images_an_algorithm_takes():
    rows = re.findall(r"^\| (\[`.+?\)) \| .+? \| (one|any) \| .+ \| (.+?) \|$", README, re.M)
    names = [(re.findall("`(.+?)`", files), *cells) for files, *cells in rows]
    assert sum(len(of_row) for of_row, *_ in names) == 19
    for of_row, networks, public in names:
        for algorithm in map(ALGORITHMS.get, of_row):
            assert networks == ("any" if algorithm.mixed_networks else "one")
            assert public == {"joint": "labeled or not"}.get(algorithm.public, algorithm.public)


def test_the_readme_shows_lines_of_fedsdd_and_of_a_round_by_hand():
    """FedSDD's but for attacks, augmentation, the detached teacher and a student that diverges."""
    code = (ROOT / "algorithms" / "fedsdd.py").read_text()
    for ours, shown in (("trained = parallel", "uploads = parallel"), (".detach()", ""),
                        ("ensemble, images)", "ensemble, fed.public.images)"),
                        ('range(state["round"] + 1,', "range(1,")):
        code = code.replace(ours, shown)
    [loop] = re.findall("```python\n(.*?)```", README, re.S)
    lines = [re.split(r"  +#", line)[0].strip() for line in loop.splitlines()]
    assert [x for x in lines if x not in code] == [
        "global_models = [distill(fed, cfg, t, w[0], fed.public.images, teacher), *w[1:]]"]
    [by_hand] = [block for block in README.split("```") if "Eq. (3)       H" in block]
    printed = subprocess.run([sys.executable, "-m", "reference.fedgems"], cwd=ROOT, check=True,
                             capture_output=True, text=True).stdout
    assert {*by_hand.splitlines()} <= {*printed.splitlines()}


SEMINAR = (ROOT / "docs" / "SEMINAR.md").read_text()


def test_the_rows_of_the_seminar_are_those_of_their_ids():
    rows = {row["id"]: row for row in rows_of("claims")}
    found = re.findall(r"^\| \d+ \| (.+?) \| (.+?) \| (.+?) \| .+? \| `(.+?)`", SEMINAR, re.M)
    assert len(found) == 10
    for *cells, name in found:
        assert cells == [rows[name][column] for column in ("claim", "setting", "verdict")], name


def test_the_exercises_of_the_seminar_exist():
    named = {*re.findall(r"`(\w+\.\w+)`", SEMINAR)}
    assert len(named) > 8 and named - {"reference.fedsdd", "one_round.fedsdd"} <= {*EQUATIONS}
