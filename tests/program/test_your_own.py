"""YOUR_OWN.md: its algorithm, its library program, its prediction of a folder, as printed there."""
import dataclasses
import functools
import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
import test_contracts
import torch
from commands import refused
from PIL import Image
from test_command_line import configured

from algorithms import ALGORITHMS
from data.load import load_dataset
from experiment import saved_model
from federation import evaluation
from fedkd_minimal import main

PAGE = (Path(__file__).parents[2] / "docs" / "YOUR_OWN.md").read_text()
BLOCKS = dict(re.findall(r"<!-- test: (\w+) -->\n```python\n(.*?)```", PAGE, re.S))


@pytest.fixture
def fedavgm(monkeypatch, tmp_path):
    """The module of the page's algorithm, after it was put into the registry."""
    (tmp_path / "fedavgm.py").write_text(BLOCKS["algorithm"])
    spec = importlib.util.spec_from_file_location("fedavgm", tmp_path / "fedavgm.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fedavgm", module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(ALGORITHMS, "fedavgm", module.ALGORITHM)
    return module


def test_the_pages_algorithm_keeps_every_promise(fedavgm):
    assert len(test_contracts.CONTRACTS) >= 13
    for contract in test_contracts.CONTRACTS:
        test_contracts.hold(contract, "fedavgm")


@pytest.mark.parametrize("flags", ["", " --dataset some.npz", " --paper fedsdd", " --paper fedgkt"])
def test_a_sibling_has_the_settings_of_the_one_it_is_like(fedavgm, flags):
    config = configured("--algo fedavg,fedavgm" + flags)
    own = config["settings"]["fedavgm"]
    assert own.pop("server_momentum") == 0.5 and own == config["settings"]["fedavg"]
    assert config["flags"] == configured("--algo fedavg" + flags)["flags"]


def test_without_momentum_the_pages_algorithm_is_fedavg(fedavgm):
    [*_, (_, found)] = test_contracts.run("fedavgm", server_momentum=0.0)
    [*_, (_, expected)] = test_contracts.whole("fedavg")
    for name, w in expected["server"]["model"].items():
        torch.testing.assert_close(found["server"]["model"][name], w)


def test_variants_of_an_algorithm_are_named_in_table_and_folders(fedavgm, npz, tmp_path, capsys):
    variant = "fedavgm:server-momentum=0.9:local-epochs=2:rounds=1"
    main(f"--algo fedavg,{variant} --dataset {npz} --clients 4 --partition iid --rounds 1 "
         f"--local-epochs 1 --threads 1 --out {tmp_path}/run".split())
    folder = tmp_path / "run" / (variant.replace(":", "-") + "-seed0")
    settings = json.loads((folder / "config.json").read_text())["settings"][variant]
    assert settings["server_momentum"] == 0.9 and settings["local_epochs"] == 2
    table = capsys.readouterr().out.split("algorithm ")[1]
    assert "\nfedavg  " in table and f"\n{variant}  server  " in table
    main(["--resume", str(tmp_path / "run"), "--rounds", "2"])
    main(["--resume", str(tmp_path / "run")])
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3
    refused(capsys, ["--algo", "fedavgm:clients=3"], "--clients", "is not a hyperparameter of")
    refused(capsys, ["--algo", "fedavgm:lr=x"], "--lr", "'x' is not a number")
    refused(capsys, ["--algo", "fedavgm:"], "fedavgm:")


def test_a_hyperparameter_without_a_range_has_one_by_its_type(fedavgm, capsys):
    for value in ("inf", "nan", "much"):
        with pytest.raises(SystemExit):
            configured(f"--algo fedavgm --server-momentum {value}")
    assert configured("--algo fedavgm --server-momentum -2")["settings"]["fedavgm"]
    assert all(map(configured, re.findall(r"fedkd_minimal\.py (.*\bfedavgm\b.*)", PAGE)))


@pytest.mark.parametrize("value, text", [
    (torch.tensor(0.5), "tensor(0.5000)"), (float("nan"), "nan"), ("much", "'much'")])
def test_a_metric_that_is_no_number_is_named(fedavgm, value, text, monkeypatch, npz, capsys):
    @functools.wraps(fedavgm.run)
    def run(*arguments, **settings):
        for metrics, state in fedavgm.run(*arguments, **settings):
            yield metrics | {"distance": value}, state
    monkeypatch.setitem(ALGORITHMS, "fedavgm", dataclasses.replace(fedavgm.ALGORITHM, run=run))
    refused(capsys, f"--algo fedavgm --dataset {npz} --clients 4 --partition iid".split(),
            f"fedavgm: the metric distance is {text}; a metric is an int")


def test_the_pages_program_learns(capsys):
    exec(BLOCKS["library"], {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 11 and float(lines[-1].split()[-1]) > 0.6 > float(lines[0].split()[-1])


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_models_of_every_algorithm_are_found_in_its_state(algo):
    _, state, *_ = test_contracts.whole(algo)[-1]
    fed, stacked = test_contracts.toy(algo), ALGORITHMS[algo].server == "features"
    found = saved_model.trained_models(ALGORITHMS[algo], state, fed.architecture, "server")
    kept = [id(weights) for weights in test_contracts.models_in(state)]
    assert found and all(id(w) in kept for networks in found.values() for _, w in networks)
    has_server = "server" in state or "global_models" in state
    assert next(iter(found)).startswith("server") == (has_server and not stacked)
    own = {name for name in found if name.startswith("client")}
    assert own == {f"client {i}" for i in range(len(state.get("clients", [])))}
    assert all(len(networks) == 1 + stacked for networks in found.values())


@pytest.mark.parametrize("algo, key", [("fedsdd --K 2", "accuracy"), ("fedgkt", "accuracy"),
                                       ("fedmd --rounds 1", "client_accuracy_private_0")])
def test_a_saved_model_predicts_as_in_the_run(algo, key, npz, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(f"--algo {algo} --dataset {npz} --clients 4 --partition iid --rounds 1 --threads 1 "
         f"--local-epochs 1 --out run".split())
    main("--resume run --save-model model.pt".split())
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    test, (model, prepare, classes) = load_dataset(npz).test, saved_model.load("model.pt")
    found = evaluation.accuracy(model(prepare(test.images)), test.labels)
    assert classes == ["0", "1", "2"] and (key != "accuracy" or found == row[key])
    (tmp_path / "photos").mkdir()
    Image.new("L", (9, 9)).save("photos/a.png")
    Image.new("LA", (9, 9)).save("photos/b.png")             # transparent, so it is white
    page = {}
    exec(BLOCKS["predict"], page)
    assert re.search("a.png [012]\nb.png [012]\n", capsys.readouterr().out)
    white = torch.full((1, 1, 9, 9), 255, dtype=torch.uint8)
    assert torch.allclose(page["logits"], model(prepare(white)), atol=1e-5)
    for bad in ("", ".", "none/model.pt", "/dev/null"):
        refused(capsys, ["--algo", "fedavg", "--save-model", bad], "is not the name of a file")
    with pytest.raises(ValueError, match="has no model 'client 9'; it has "):
        saved_model.load("model.pt", "client 9")
