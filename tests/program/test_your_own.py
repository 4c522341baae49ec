"""YOUR_OWN.md: its algorithm, its library program, its prediction of a folder, as printed there."""
import contextlib
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import test_contracts
import torch
from commands import refused
from PIL import Image
from test_federation import module_of
from toys import federation

import algorithms
from algorithms import ALGORITHMS, feddf
from data.load import load_dataset
from experiment.trained import load_model
from experiment.settings import read
from federation import OPTIMIZERS, accuracy, disagreement
from fedkd_minimal import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "YOUR_OWN.md").read_text()
BLOCKS = dict(re.findall(r"<!-- test: (\w+) -->\n```python\n(.*?)```", PAGE, re.S))
SMALL = "--clients 4 --partition iid --threads 1 --participation 1 --local-epochs 1"


@pytest.fixture
def fedavgm(monkeypatch, tmp_path):
    """The module of the page's algorithm, after it was put into the registry."""
    module = module_of(BLOCKS["algorithm"], tmp_path / "fedavgm.py", monkeypatch)
    monkeypatch.setitem(sys.modules, "algorithms.fedavgm", module)
    monkeypatch.setattr(algorithms, "fedavgm", module, raising=False)
    monkeypatch.setattr(algorithms, "NAMES", (*algorithms.NAMES, "fedavgm"))
    return module


def test_the_pages_algorithm_keeps_every_promise(fedavgm):
    assert len(test_contracts.CONTRACTS) >= 13
    for contract in test_contracts.CONTRACTS:
        test_contracts.hold(contract, "fedavgm")


def test_the_pages_test_of_an_equation_notices_a_mistake(fedavgm, monkeypatch):
    test = {}
    exec(BLOCKS["equation"], test)
    for wrong in (False, True):
        if wrong:
            exec(BLOCKS["algorithm"].replace("cfg.server_momentum * v +", "v +"), vars(fedavgm))
        with (pytest.raises(AssertionError) if wrong else contextlib.nullcontext(),
              monkeypatch.context() as patch):
            test["test_the_server_adds_a_share_of_its_last_step"](patch)


def test_the_pages_split_is_that_of_a_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(BLOCKS["split"], {})
    main("--algo fedavg,fedsdd:K=1 --partition split.npz --describe".split())
    printed = capsys.readouterr().out
    assert "2 clients with 2000 samples (rows of the file); public images: 1000 of the" in printed


def test_a_hyperparameter_has_the_range_beside_its_field(fedavgm, capsys):
    for value in ("nan", "much", "-2", "1.5"):
        refused(capsys, f"--algo fedavgm --server-momentum {value}".split(), "momentum")
    commands = re.findall(r"fedkd_minimal\.py (.*\bfedavgm\b.*)", PAGE)
    methods = [method for command in commands for method in read(command.split()).methods]
    assert [getattr(method.cfg, "server_momentum", 0) for method in methods] == [0, 0.5, 0.9]


@pytest.mark.parametrize("value, text", [
    (torch.tensor(0.5), "tensor(0.5000)"), (float("nan"), "nan")])
def test_a_metric_that_is_no_number_is_named(fedavgm, value, text, monkeypatch, npz, capsys):
    def run(*arguments):
        for metrics, state in fedavgm.run(*arguments):
            yield metrics | {"distance": value}, state
    monkeypatch.setattr(fedavgm, "ALGORITHM", dataclasses.replace(fedavgm.ALGORITHM, run=run))
    refused(capsys, f"--algo fedavgm --dataset {npz} --clients 4 --partition iid".split(),
            "fedavgm", "distance", text)


def test_the_pages_program_learns(capsys):
    exec(BLOCKS["library"], {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 11 and float(lines[-1].split()[-1]) > 0.6 > float(lines[0].split()[-1])


def test_the_pages_own_optimizer_and_loss_are_those_that_train(monkeypatch):
    monkeypatch.setattr(feddf, "distillation_loss", None)
    monkeypatch.setitem(OPTIMIZERS, "radam", None)
    steps, step = [], torch.optim.RAdam.step
    monkeypatch.setattr(torch.optim.RAdam, "step", lambda self: steps.append(step(self)))
    exec(BLOCKS["replace"], {"torch": torch, "fed": federation()})
    student, teacher = torch.tensor([[1., 2.]]), torch.tensor([[3., 6.]])
    assert steps and feddf.distillation_loss(student, teacher, 4.0) == (2**2 + 4**2) / 2


def test_another_folders_files_go_first_and_ours_are_never_another_one(tmp_path):
    """After `pip install -e .` this folder is the last on Python's path."""
    (tmp_path / "attacks.py").write_text("")
    (tmp_path / "mine.py").write_text(f"import sys\nsys.path.append({str(ROOT)!r})\n"
                                      "import federation, experiment.keep\n")
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True)
    assert "attacks.py hides this project's file of that name" in done.stderr.splitlines()[-1]


def test_every_file_at_the_top_is_installed():
    [listed] = re.findall("^py-modules = (.*)$", (ROOT / "pyproject.toml").read_text(), re.M)
    assert all((ROOT / f"{name}.py").exists() for name in json.loads(listed))
    assert {"federation", "models", "attacks", "partition"} <= {*json.loads(listed)}


# ---------------------------------------------------------------------------------- trained models

MODELS = {   # of the contracts' run, with two networks where clients may have such
    "fedavg fedprox scaffold fedntd fedbe fedgen": "server",
    "feddf centralized": "server, server 1",
    "fedsdd": "server, server 1, ensemble",
    "fedsdd-ablations": "server, server 1, server 2, server 3, averaged, averaged 1, ensemble",
    "fedmd fedmd-pooled cronus fd local fedproto public-private fedgkt fedgkt-async": "CLIENTS",
    "dsfl fml fedkd fedgem fedgems fedgems-ablations standalone": "server, CLIENTS",
    "split-learning": "client 0",
    "centralized-all": "server, server 1, server 2"}


@pytest.mark.parametrize("algos", MODELS)
def test_the_models_of_every_algorithm_are_found_in_its_state(algos):
    names = MODELS[algos].replace("CLIENTS", ", ".join(f"client {i}" for i in range(6)))
    for algo in algos.split():
        state = test_contracts.whole(algo)[-1][1]
        found = ALGORITHMS[algo].models(state, lambda i: f"network {i % 2}", "server's")
        assert ", ".join(found) == names, algo


@pytest.mark.parametrize("algo, networks", [("fedsdd", "mlp"), ("fedsdd-ablations", "mlp,cnn")])
def test_a_loaded_ensemble_predicts_as_in_the_run(algo, networks, npz, tmp_path):
    """The K = 2 models of each network of the last two rounds; some predict other classes."""
    [run] = main(f"--algo {algo} --R 2 --K 2 --model {networks} --dataset {npz} {SMALL} "
                 f"--rounds 3 --distill-steps 2 --out {tmp_path}".split())
    test, (model, prepare, _) = load_dataset(npz).test, load_model(run.folder, "ensemble")
    images, row, count = prepare(test.images), run.rows[-1], 2 * len(networks.split(","))
    logits = torch.stack([member(images) for member in model.members])
    assert accuracy(model(images), test.labels) == row["ensemble_accuracy"]
    assert disagreement(logits[-count:]) == row["disagreement"] > 0
    assert len(model.members) == 2 * count and not model.training
    torch.testing.assert_close(model(images), logits.mean(0))
    if algo == "fedsdd-ablations":
        averaged = [load_model(run.folder, name)[0] for name in ("averaged", "averaged 1")]
        accuracies = [accuracy(m(images), test.labels) for m in averaged]
        assert sum(accuracies) / 2 == pytest.approx(row["averaged_accuracy"], abs=1e-6)


def test_load_model_names_the_classes_that_were_chosen_and_what_is_missing(npz, tmp_path):
    [run] = main(f"--algo fedavg --dataset {npz} {SMALL} --classes 2,0 --rounds 1 "
                 f"--out {tmp_path}".split())
    exact, prepare, classes = load_model(run.folder)
    assert classes == ["2", "0"]
    path, images = run.folder / "config.json", torch.zeros(2, 1, 8, 8)
    config = json.loads(path.read_text())
    config["settings"]["amp"] = True                         # it then computes in bfloat16
    path.write_text(json.dumps(config))
    coarse, *_ = load_model(run.folder)
    logits, found = (model(prepare(images)).detach() for model in (exact, coarse))
    assert not torch.equal(logits, found) and torch.allclose(logits, found, atol=0.1)
    with pytest.raises(ValueError, match="has no model 'client 9'; it has server"):
        load_model(run.folder, "client 9")
    (run.folder / "checkpoint.pt").unlink()
    with pytest.raises(ValueError, match="has no checkpoint.pt"):
        load_model(run.folder)


@pytest.mark.parametrize("algo, key", [("fedgkt", "accuracy"),
                                       ("fedmd", "client_accuracy_private_0")])
def test_a_loaded_model_of_a_client_predicts_as_in_the_run(algo, key, npz, tmp_path):
    """FedGKT's accuracy is the mean over the clients, each with the server's network."""
    [run] = main(f"--algo {algo} --dataset {npz} --clients 2 --partition iid --rounds 1 --threads "
                 f"1 --local-epochs 1 --out {tmp_path}".split())
    test, clients = load_dataset(npz).test, ["client 0", "client 1"][:1 + (algo == "fedgkt")]
    loaded = [load_model(run.folder, name) for name in clients]
    found = [accuracy(model(prepare(test.images)), test.labels) for model, prepare, _ in loaded]
    assert sum(found) / len(found) == pytest.approx(run.rows[-1][key], abs=1e-6)
    assert all(classes[-3:] == ["0", "1", "2"] for *_, classes in loaded)


def test_a_loaded_model_predicts_as_in_the_run(npz, tmp_path, monkeypatch, capsys):
    """With the page's lines. A transparent image is white. Other tensors are refused."""
    monkeypatch.chdir(tmp_path)
    main(f"--algo fedsdd --K 2 --dataset {npz} {SMALL} --rounds 1 --out runs/digits".split())
    row = json.loads(Path("runs/digits/fedsdd-seed0/metrics.jsonl").read_text().splitlines()[-1])
    test, (model, prepare, _) = load_dataset(npz).test, load_model("runs/digits/fedsdd-seed0")
    assert accuracy(model(prepare(test.images)), test.labels) == row["accuracy"]
    assert not model.training
    (tmp_path / "photos").mkdir()
    Image.new("L", (9, 9)).save("photos/a.png")
    Image.new("LA", (9, 9)).save("photos/b.png")
    page = {}
    exec(BLOCKS["predict"], page)
    assert re.search("a.png [012]\nb.png [012]\n", capsys.readouterr().out)
    white = torch.full((1, 1, 9, 9), 255, dtype=torch.uint8)
    assert torch.allclose(page["logits"], model(prepare(white)), atol=1e-5)
    assert torch.equal(prepare(white), prepare(torch.ones(1, 1, 9, 9, dtype=torch.float64)))
    for bad, words in [(white.float(), "255"), (white[0], "1, 9, 9"), (white[:0], "n > 0"),
                       (white.expand(1, 3, 9, 9).permute(0, 2, 3, 1), "1, 9, 9, 3")]:
        with pytest.raises(ValueError, match=f"^prepare.*{words}"):
            prepare(bad)
