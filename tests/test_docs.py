"""The texts say what the code does: departures name tests, tables name things that exist, keywords are read, imports go down."""
import ast
import doctest
import graphlib
import importlib
import inspect
import re
from pathlib import Path

import pytest

from algorithms import ALGORITHMS
from algorithms.fedsdd import LocalMethod

ROOT = Path(__file__).parent.parent
ALGORITHM_FILES = sorted((ROOT / "algorithms").glob("*.py"))
MODULES = sorted([path.stem for path in ROOT.glob("*.py")] + [f"algorithms.{path.stem}" for path in ALGORITHM_FILES
                                                              if path.stem != "__init__"])
TESTS = {node.name for path in (ROOT / "tests").glob("test_*.py") for node in ast.walk(ast.parse(path.read_text()))
         if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
NO_PAPER = ("__init__", "common", "training", "evaluation", "equations")     # these files claim no paper
OWN_FILES = [path for path in ALGORITHM_FILES if path.stem not in NO_PAPER]
WITH_NOTATION = [path for path in ALGORITHM_FILES if path in OWN_FILES and path.stem != "baselines" or path.stem == "equations"]

SHARED = {       # files that all algorithms use: {file: files of the project that it may import}
    "algorithms.equations": set(),
    "algorithms.common": {"attacks", "algorithms.equations"},
    "algorithms.training": {"algorithms.common"},
    "algorithms.evaluation": {"algorithms.common", "algorithms.training"},
}
SIBLINGS = {     # the algorithms that know others: those whose local training they take, and those of which they are variants
    "fedsdd": {"fedavg", "fedprox", "scaffold"}, "feddf": {"fedavg"}, "fedbe": {"fedavg"}, "fedsdd_ablations": {"fedsdd"},
    "fedgem": {"fedgems"}, "fedgems_ablations": {"fedgems"},
    "fedgkt": {"fedgkt_features"}, "fedgkt_async": {"fedgkt"}, "split_learning": {"fedgkt_features"},
    "fedmd": {"fedmd_transfer"}, "fedmd_pooled": {"fedmd_transfer"},
}
ALLOWED = SHARED | {     # an algorithm: what is shared, bytes, attacks, and its siblings; fedsdd also secure_sum
    f"algorithms.{path.stem}": {*SHARED, "communication", "attacks"} | {f"algorithms.{name}" for name in SIBLINGS.get(path.stem, ())}
    | ({"secure_sum"} if path.stem == "fedsdd" else set()) for path in OWN_FILES}


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


@pytest.mark.parametrize("path", WITH_NOTATION, ids=lambda path: path.stem)
def test_every_name_in_a_notation_table_is_in_the_code(path):
    """FedGKT's table is of two files: its edge networks are used in fedgkt_features.py."""
    code = code_of(path) + (code_of(path.with_stem("fedgkt_features")) if path.stem == "fedgkt" else "")
    lines = docstring(path).splitlines()
    header = next(i for i, line in enumerate(lines) if line.startswith("Paper") and " here " in line)
    start, end, checked, rows = lines[header].index("here"), lines[header].index("shape"), 0, 0
    for line in lines[header + 1:]:
        if not line.strip():
            break
        rows += bool(line[:start].strip() and line[start:end].strip())
        for name in re.findall(r"[A-Za-z_]\w*", line[start:end].split("(")[0]):
            assert re.search(rf"\b{name}\b", code), f"{name} is in the table but not in the code"
            checked += 1
    assert checked >= max(4, rows)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_keyword_is_read(algo):
    function = ast.parse(inspect.getsource(ALGORITHMS[algo])).body[0]
    loaded = {node.id for statement in function.body for node in ast.walk(statement)
              if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    assert {argument.arg for argument in function.args.kwonlyargs} <= loaded


def imports(path):
    """The project's own modules that a file imports: `from algorithms import fedavg` is algorithms.fedavg."""
    own, found = {other.stem for other in ROOT.glob("*.py")} | {"algorithms"}, set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "algorithms":
            found |= {f"algorithms.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] in own}


@pytest.mark.parametrize("path", ALGORITHM_FILES, ids=lambda path: path.stem)
def test_imports_go_downwards(path):
    """No algorithm knows the data, the partition, the networks or the command line; few know others: those they train with."""
    if path.stem == "__init__":
        return
    assert imports(path) <= ALLOWED[f"algorithms.{path.stem}"]


def test_the_allowed_imports_have_no_cycle():
    """Each file of algorithms/ is in the table, and in some order each comes after all that it may import."""
    assert set(ALLOWED) == {f"algorithms.{path.stem}" for path in ALGORITHM_FILES if path.stem != "__init__"}
    graph = {name: {other for other in below if other.startswith("algorithms.")} for name, below in ALLOWED.items()}
    assert {*graphlib.TopologicalSorter(graph).static_order()} == set(ALLOWED)


def round_loops():
    """[(function, its loop over rounds, the statement that builds `metrics`, lines of the file)] of all algorithms."""
    found = []
    for path in OWN_FILES:
        for function in ast.parse(path.read_text()).body:
            for loop in function.body if isinstance(function, ast.FunctionDef) else []:
                if isinstance(loop, ast.For) and ast.unparse(loop).startswith("for t in range("):
                    [built] = [statement for statement in loop.body if ast.unparse(statement).startswith("metrics = ")]
                    found.append((f"{path.stem}.{function.name}", loop, built, path.read_text().splitlines()))
    return found


def test_a_round_is_at_most_twenty_lines_of_code():
    """From below the head of the loop to the statement that builds the metrics; blank lines and comment lines do not count."""
    loops, generators = round_loops(), {run.__module__.split(".")[1] for run in ALGORITHMS.values()}
    assert {name for name, *_ in loops} == {f"{stem}.{'train_alone' if stem == 'baselines' else 'run'}" for stem in generators}
    for name, loop, built, lines in loops:
        code = [line for line in lines[loop.lineno:built.lineno - 1] if line.strip() and not line.strip().startswith("#")]
        assert len(code) <= 20, f"{name}: {len(code)} lines"


def test_no_line_of_the_product_is_longer_than_100_columns():
    files = [*sorted(ROOT.glob("*.py")), *ALGORITHM_FILES, *sorted((ROOT / "benchmarks").glob("*.*"))]
    assert [f"{path.name}:{n}" for path in files for n, line in enumerate(path.read_text().splitlines(), 1) if len(line) > 100] == []


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "feddf", "fedbe", "fedsdd", "fedsdd_ablations", "fedmd", "fedgem",
                                  "fedgems", "fedgems_ablations", "fedgkt", "fedgkt_features", "split_learning"])
def test_every_algorithm_has_anchors_to_its_paper(name):
    assert re.search(r"# .*(Eq\. \(\d|Alg\. \d, (line|step) \d)", (ROOT / "algorithms" / f"{name}.py").read_text())


@pytest.mark.parametrize("path", [path for path in OWN_FILES], ids=lambda path: path.stem)
def test_who_borrows_from_another_algorithm_takes_its_local_training_only(path):
    """Files that import FedAvg, FedProx or SCAFFOLD use nothing of them but start_server, train_client, aggregate and COPIES.

    FedSDD holds these in a `LocalMethod`, made of the module of the method's name.
    """
    code = code_of(path)
    borrowed = set(re.findall(r"\b(?:fedavg|fedprox|scaffold|module)\.(\w+)", code))
    assert borrowed <= {"start_server", "train_client", "aggregate", "COPIES"}
    assert set(re.findall(r"\bmethod\.(\w+)", code)) <= set(LocalMethod._fields)
    assert path.stem not in ("feddf", "fedbe", "fedsdd") or len(borrowed) == 4


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
