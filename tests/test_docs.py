"""The texts say what the code does: departures name tests, tables name things that exist, keywords are read, imports go down."""
import ast
import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

from algorithms import ALGORITHMS

ROOT = Path(__file__).parent.parent
ALGORITHM_FILES = sorted((ROOT / "algorithms").glob("*.py"))
MODULES = sorted([path.stem for path in ROOT.glob("*.py")] + [f"algorithms.{path.stem}" for path in ALGORITHM_FILES
                                                              if path.stem != "__init__"])
TESTS = {node.name for path in (ROOT / "tests").glob("test_*.py") for node in ast.walk(ast.parse(path.read_text()))
         if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
OWN_FILES = [path for path in ALGORITHM_FILES if path.stem not in ("__init__", "common")]


def docstring(path):
    return ast.get_docstring(ast.parse(path.read_text()))


def code_of(path):
    """The file without its docstring."""
    return path.read_text().replace(docstring(path), "")


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_are_true(module):
    imported = importlib.import_module(module)
    assert doctest.testmod(imported, extraglobs={"torch": importlib.import_module("torch")}).failed == 0


@pytest.mark.parametrize("path", OWN_FILES, ids=lambda path: path.stem)
def test_every_departure_names_a_test_that_exists(path):
    text = docstring(path)
    departures = re.findall(r"^D\d+ .*?(?=^D\d+ |\Z)", text, re.M | re.S)
    assert [int(re.match(r"D(\d+)", d)[1]) for d in departures] == list(range(1, len(departures) + 1)) and departures
    for departure in departures:
        named = re.findall(r"\[(test_\w+)\]", departure)
        assert named and set(named) <= TESTS, departure


@pytest.mark.parametrize("path", [path for path in OWN_FILES if path.stem != "baselines"], ids=lambda path: path.stem)
def test_every_name_in_a_notation_table_is_in_the_code(path):
    lines = docstring(path).splitlines()
    header = next(i for i, line in enumerate(lines) if line.startswith("Paper") and " here " in line)
    start, end, checked = lines[header].index("here"), lines[header].index("shape"), 0
    for line in lines[header + 1:]:
        if not line.strip():
            break
        for name in re.findall(r"[a-z_]\w*", line[start:end].split("(")[0]):
            assert re.search(rf"\b{name}\b", code_of(path)), f"{name} is in the table but not in the code"
            checked += 1
    assert checked >= 5


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_keyword_is_read(algo):
    function = ast.parse(inspect.getsource(ALGORITHMS[algo])).body[0]
    loaded = {node.id for statement in function.body for node in ast.walk(statement)
              if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    assert {argument.arg for argument in function.args.kwonlyargs} <= loaded


OWN = {"communication", "attacks", "algorithms.common"}
ALLOWED = {"algorithms.common": set(), "algorithms.feddf": OWN | {"algorithms"}, "algorithms.fedbe": OWN | {"algorithms"},
           "algorithms.fedsdd": OWN | {"algorithms", "secure_sum"}, "algorithms.fedgem": OWN | {"algorithms.fedgems"}}  # one paper


@pytest.mark.parametrize("path", ALGORITHM_FILES, ids=lambda path: path.stem)
def test_imports_go_downwards(path):
    """No algorithm knows the data, the partition, the networks or the command line; few know others: those they train with."""
    if path.stem == "__init__":
        return
    own = {other.stem for other in ROOT.glob("*.py")} | {"algorithms"}
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names] if isinstance(node, ast.Import) else []
        found |= {name for name in names if name.split(".")[0] in own}
    assert found <= ALLOWED.get(f"algorithms.{path.stem}", OWN)


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "feddf", "fedbe", "fedsdd", "fedmd", "fedgem", "fedgems", "fedgkt",
                                  "split_learning"])
def test_every_algorithm_has_anchors_to_its_paper(name):
    assert re.search(r"# .*(Eq\. \(\d|Alg\. \d, (line|step) \d)", (ROOT / "algorithms" / f"{name}.py").read_text())


@pytest.mark.parametrize("path", [path for path in OWN_FILES], ids=lambda path: path.stem)
def test_who_borrows_from_another_algorithm_takes_its_local_training_only(path):
    """Files that import other algorithms use nothing of them but start_server, train_client, aggregate and COPIES."""
    borrowed = set(re.findall(r"\b(?:fedavg|fedprox|scaffold|method)\.(\w+)", code_of(path)))
    assert borrowed <= {"start_server", "train_client", "aggregate", "COPIES"}


def test_only_one_place_seeds_torch_and_none_seeds_numpy():
    texts = {path.name: path.read_text() for path in [*ROOT.glob("*.py"), *ALGORITHM_FILES]}
    assert [name for name, text in texts.items() for _ in range(text.count("manual_seed("))] == ["common.py"]
    assert not any(re.search(r"np\.random\.seed|random\.seed\(", text) for text in texts.values())


@pytest.mark.parametrize("path", OWN_FILES, ids=lambda path: path.stem)
def test_whatever_is_drawn_in_an_algorithm_is_drawn_by_the_runs_seed(path):
    drawn = re.findall(r"\b(?:stream|seeded)\(([\w.]+)", code_of(path))
    assert set(drawn) <= {"fed.seed"}


@pytest.mark.parametrize("command", re.findall(r"^ *\$? *(python fedkd_minimal\.py[^#\n`|]*)", (ROOT / "README.md").read_text(), re.M))
def test_every_command_of_the_readme_is_understood(command):
    """Parsed and configured, not run: flags exist and their values are allowed."""
    import fedkd_minimal
    argv = command.replace("\\", " ").split()[2:]
    if any(flag in argv for flag in ("--list", "--help", "--resume")):
        pytest.skip("prints names or help, or needs a run to resume: tested in test_cli.py and test_trust.py")
    fedkd_minimal.configure(fedkd_minimal.parse(argv))


def test_the_readme_tells_each_algorithm_files_length():
    readme = (ROOT / "README.md").read_text()
    for algo, run in ALGORITHMS.items():
        path = Path(inspect.getfile(run))
        lines = len(path.read_text().splitlines())
        assert f"[{path.name}](algorithms/{path.name}) ({lines})" in readme, f"{algo}: {path.name} has {lines} lines"
