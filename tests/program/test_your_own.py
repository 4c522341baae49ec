"""YOUR_OWN.md: its algorithm, its library program, its prediction of a folder, as printed there."""
import contextlib
import dataclasses
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
from test_federation import module_of
from toys import same

import algorithms
from algorithms import ALGORITHMS
from data.load import load_dataset
from experiment import keep
from federation import accuracy, disagreement
from fedkd_minimal import main

PAGE = (Path(__file__).parents[2] / "docs" / "YOUR_OWN.md").read_text()
BLOCKS = dict(re.findall(r"<!-- test: (\w+) -->\n```python\n(.*?)```", PAGE, re.S))


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


@pytest.mark.parametrize("flags", ["", " --dataset some.npz"])
def test_a_sibling_has_the_settings_of_the_one_it_is_like(fedavgm, flags):
    federation, methods = configured("--algo fedavg,fedavgm" + flags)
    own = methods["fedavgm"].hyperparameters
    assert own.pop("server_momentum") == 0.5 and own == methods["fedavg"].hyperparameters
    assert federation == configured("--algo fedavg" + flags)[0]


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
    settings = json.loads((folder / "config.json").read_text())["hyperparameters"]
    assert settings["server_momentum"] == 0.9 and settings["local_epochs"] == 2
    table = capsys.readouterr().out.split("algorithm ")[1]
    assert "\nfedavg  " in table and f"\n{variant}  server  " in table


def test_a_hyperparameter_has_the_range_beside_its_field(fedavgm, capsys):
    for value in ("inf", "nan", "much", "-2", "1.5"):
        refused(capsys, f"--algo fedavgm --server-momentum {value}".split(), "momentum")
    [method] = configured("--algo fedavgm --server-momentum 0.9")[1].values()
    assert method.hyperparameters["server_momentum"] == 0.9
    assert all(map(configured, re.findall(r"fedkd_minimal\.py (.*\bfedavgm\b.*)", PAGE)))


@pytest.mark.parametrize("value, text", [
    (torch.tensor(0.5), "tensor(0.5000)"), (float("nan"), "nan"), ("much", "'much'")])
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


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_models_of_every_algorithm_are_found_in_its_state(algo):
    _, state, *_ = test_contracts.whole(algo)[-1]
    stacked = ALGORITHMS[algo].server == "features"
    networks = {"model": ["one", "two"], "server_model": "large"}
    found = keep.networks_in(state, ALGORITHMS[algo], networks)
    kept = [id(weights) for weights in test_contracts.models_in(state)]
    assert found and all(id(w) in kept for networks in found.values() for _, w in networks)
    has_server = "server" in state or "global_models" in state
    assert next(iter(found)).startswith("server") == (has_server and not stacked)
    own = {name for name in found if name.startswith("client")}
    assert own == {f"client {i}" for i in state.get("clients", {})}
    assert all(len(pair) == 1 + stacked for pair in found.values())
    if not stacked:
        models = state.get("global_models", [])          # a list; or {network: it, or one}
        models = {"": models} if isinstance(models, list) else models
        count = ("server" in state) + sum(
            len(found) if isinstance(found, list) else 1 for found in models.values())
        assert {*found} - own == {f"server {k}" if k else "server" for k in range(count)}


@pytest.mark.parametrize("algo, networks", [("fedsdd", "mlp"), ("fedsdd-ablations", "mlp,cnn")])
def test_a_loaded_ensemble_predicts_as_in_the_run(algo, networks, npz, tmp_path):
    """The K = 2 models of each network of the last two rounds; some predict other classes."""
    [run] = main(f"--algo {algo} --R 2 --K 2 --model {networks} --dataset {npz} --clients 4 "
                 "--partition iid --participation 1 --rounds 3 --threads 1 --local-epochs 1 "
                 f"--distill-steps 2 --out {tmp_path}".split())
    test, (model, prepare, _) = load_dataset(npz).test, keep.load_model(run.folder, "ensemble")
    images, members = prepare(test.images), len(networks.split(",")) * 2 * 2
    logits = torch.stack([member(images) for member in model.members[-members // 2:]])
    assert accuracy(model(images), test.labels) == run.rows[-1]["ensemble_accuracy"]
    assert disagreement(logits) == run.rows[-1]["disagreement"] > 0
    assert len(model.members) == members and not model.training
    torch.testing.assert_close(model(images), sum(m(images) for m in model.members) / members)
    if algo == "fedsdd-ablations":
        averaged = [keep.load_model(run.folder, name)[0] for name in ("averaged", "averaged 1")]
        accuracies = [accuracy(m(images), test.labels) for m in averaged]
        assert sum(accuracies) / 2 == pytest.approx(run.rows[-1]["averaged_accuracy"], abs=1e-6)


def test_load_model_names_the_classes_that_were_chosen_and_what_is_missing(npz, tmp_path):
    [run] = main(f"--algo fedavg --dataset {npz} --clients 4 --classes 2,0 --partition iid "
                 f"--rounds 1 --out {tmp_path}".split())
    assert keep.load_model(run.folder)[2] == ["2", "0"]
    path, images = run.folder / "config.json", torch.zeros(2, 1, 8, 8)
    config = json.loads(path.read_text())
    config["training"]["amp"] = True                         # it then computes in bfloat16
    exact, prepare, _ = keep.load_model(run.folder)
    path.write_text(json.dumps(config))
    coarse, *_ = keep.load_model(run.folder)
    logits, found = (model(prepare(images)).detach() for model in (exact, coarse))
    assert not torch.equal(logits, found) and torch.allclose(logits, found, atol=0.1)
    (run.folder / "checkpoint.pt").unlink()
    with pytest.raises(ValueError, match="has no checkpoint.pt"):
        keep.load_model(run.folder)


@pytest.mark.parametrize("algo, key", [("fedsdd --K 2", "accuracy"), ("fedgkt", "accuracy"),
                                       ("fedmd --rounds 1", "client_accuracy_private_0")])
def test_a_loaded_model_predicts_as_in_the_run(algo, key, npz, tmp_path, monkeypatch, capsys):
    """FedGKT's accuracy is the mean over the clients, each with the server's network."""
    monkeypatch.chdir(tmp_path)
    [run] = main(f"--algo {algo} --dataset {npz} --clients 4 --partition iid --rounds 1 --threads "
                 "1 --local-epochs 1 --out runs/digits".split())
    test, (model, prepare, classes) = load_dataset(npz).test, keep.load_model(run.folder)
    found = [accuracy(model(prepare(test.images)), test.labels)]
    if algo == "fedgkt":
        found = [accuracy(model(prepare(test.images)), test.labels) for model, *_ in
                 (keep.load_model(run.folder, f"client {i}") for i in range(4))]
    assert sum(found) / len(found) == pytest.approx(run.rows[-1][key], abs=1e-6)
    assert classes[-3:] == ["0", "1", "2"] and not model.training
    if algo == "fedsdd --K 2":
        other, *_ = keep.load_model(run.folder, "server 1")
        assert not same(other.state_dict(), model.state_dict())
        (tmp_path / "photos").mkdir()
        Image.new("L", (9, 9)).save("photos/a.png")
        Image.new("LA", (9, 9)).save("photos/b.png")         # transparent, so it is white
        page = {}
        exec(BLOCKS["predict"], page)
        assert re.search("a.png [012]\nb.png [012]\n", capsys.readouterr().out)
        white = torch.full((1, 1, 9, 9), 255, dtype=torch.uint8)
        assert torch.allclose(page["logits"], model(prepare(white)), atol=1e-5)
        assert torch.equal(prepare(white), prepare(torch.ones(1, 1, 9, 9, dtype=torch.float64)))
        for bad, words in [(white.float(), "tensor holds floats from 255 to 255; expected 0 "),
                           (white.numpy(), r"tensor .* not ndarray \[1, 1, 9, 9\]"),
                           (white.expand(1, 3, 9, 9).permute(0, 2, 3, 1), r"Tensor \[1, 9, 9, 3\]"),
                           (white[0], r"Tensor \[1, 9, 9\]"), (white[:0], "with n > 0")]:
            with pytest.raises(ValueError, match=f"^prepare.* {words}"):
                prepare(bad)
    with pytest.raises(ValueError, match="has no model 'client 9'; it has "):
        keep.load_model(run.folder, "client 9")
