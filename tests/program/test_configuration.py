"""From flags to a config: defaults, the quick start on the embedded data, the papers' presets."""
import dataclasses
import re

import numpy as np
import pytest
from commands import refused
from test_command_line import configured, kept
from toys import arrays

from algorithms import ALGORITHMS
from experiment import settings
from experiment.presets import PAPERS
from experiment.settings import HELD_OUT, NETWORKS, Images, Training, flag_of, text_of
from fedkd_minimal import main
from models import BOTTLENECKS

DEFAULTS = dataclasses.asdict(Images()) | dataclasses.asdict(Training())
SETS = """
# flags win over the paper, also if they equal the default; the paper over the quick start
fedavg                 | model cnn | lr 0.1 | local_epochs 5 | clients 20
fedavg --paper fedgkt  | model bottleneck56 | lr 0.001 | local_epochs 20 | augment on | clients 16
fedavg --paper fedgkt --lr 0.8 --optimizer sgd | lr 0.8 | optimizer sgd
fedavg                 | threads 1
fedavg --threads 3     | threads 3
# the quick start's server has an eighth of its clients' rate, as FedSDD's has
fedsdd                 | lr 0.1 | server_lr 0.0125
# FedSDD, Table 10: each step from FedDF to FedSDD is one command
feddf --paper feddf --dataset cifar10 | drop_worst on | validation 0.1 | public cifar100
feddf --paper feddf --model resnet20 | model resnet20 | lr 0.1
feddf --paper fedsdd --drop-worst --patience 1000 | drop_worst on | patience 1000 | validation 0.1
fedsdd --paper fedsdd --validation 0.1 | model resnet20 | lr 0.8 | validation 0.1
# FedSDD, section 4.1: its own distillation for FedDF, without a validation set
feddf --paper fedsdd   | model resnet20 | lr 0.8 | server_lr 0.1 | server_batch_size 256
feddf --paper fedsdd   | distill_steps 5000 | server_optimizer sgd | validation none
# FedSDD, section 4.1, and FedDF: public images by task; no algorithm's data is smaller for it
fedsdd --paper fedsdd --dataset cifar10 | public cifar100 | validation none
fedsdd --paper fedsdd --dataset cifar100 --public imagenet.npz | public imagenet.npz
fedmd --paper fedmd --dataset cifar100 | public cifar10 | joint on
# FedGKT, Tables 6, 10, section 4.2: rates fall, but not those of split learning
fedgkt --paper fedgkt  | partition iid | model gkt_edge | optimizer amsgrad | lr_patience 10
split-learning --paper fedgkt | lr_patience 10 | validation 0.1 | model gkt_edge
fedgkt --paper fedgkt-noniid | partition fedgkt_table6 | optimizer momentum | weight_decay 0.0
fedgkt --paper fedgkt-noniid | lr 0.005 | server_lr 0.005 | server_epochs 40 | batch_size 256
# FedGEMS, Tables 11 and 13
fedgems --paper fedgems-homogeneous | partition iid | model bottleneck11 | public half
fedgems --paper fedgems-heterogeneous | partition dirichlet_balanced | alpha 0.5 | lr_patience 10
fedgkt --paper fedgems-heterogeneous | optimizer sgd | weight_decay 0.0001 | model gkt_edge
fedmd --paper fedgems-heterogeneous | transfer_public_epochs 20 | kernel_l2 0.0 | batch_size 64
feddf --paper fedgems-homogeneous | distill_steps 1955 | server_batch_size 64 | weight_decay 0.0001
# FedGen, Table 1: steps, not epochs; the epochs of the command win over them, and vice versa
fedavg --paper fedgen --dataset mnist | local_steps 20 | lr 0.01 | public half-train | alpha 0.1
fedavg --paper fedgen --local-epochs 2 | local_steps none | local_epochs 2
fedavg:local-epochs=2 --local-steps 5 | local_steps none | local_epochs 2
fedavg:local-steps=5 --local-epochs 2 | local_steps 5
# public sets
fedsdd --dataset x.npz | public fifth
fedsdd --paper fedsdd | public glyphs-letters
fedmd --dataset glyphs-letters --classes 0,1,5 | public glyphs | joint on | classes 0,1,5
fedmd --transfer-public-epochs 0 | public glyphs-letters | joint off
"""


@pytest.mark.parametrize("line", re.findall("^[a-z].*", SETS, re.M))
def test_what_a_command_sets(line):
    command, *expected = line.split(" | ")
    federation, methods = configured("--algo " + command)
    [method] = methods.values()
    found = {**federation, "threads": method.threads, **method.networks, **method.hyperparameters}
    assert [f"{name} {text_of(found[name])}"
            for name, _ in map(str.split, expected)] == expected


def test_a_split_in_a_file_has_its_clients_and_one_seed(tmp_path):
    np.savez(tmp_path / "own.npz", client_0=[0], client_1=[3], test=[1])
    command = f"--algo fedavg --paper fedsdd --partition {tmp_path}/own.npz"
    for flags, clients, seed in [("", 2, 0), (" --split-seed 3", 2, 3), (" --clients 4", 4, 0)]:
        found, _ = configured(command + flags)
        assert (found["clients"], found["split_seed"]) == (clients, seed)
    assert configured("--algo fedavg")[0]["split_seed"] is None


@pytest.mark.parametrize("command, share", [
    ("feddf", 0.1), ("fedavg,feddf", 0.1), ("feddf --no-drop-worst", 0.1),
    ("feddf --patience none", 0.1), ("feddf --no-drop-worst --patience none", None),
    ("fedavg", None), ("fedavg --validation 0.2", 0.2), ("feddf --validation 0.3", 0.3),
    ("fedmd", 0.1), ("fedmd-pooled --no-early-stopping", None),
    ("fedgkt --lr-patience 3", 0.1), ("fedgkt-async", None)])
def test_validation_images_are_held_out_where_they_are_used(command, share):
    assert configured("--algo " + command)[0]["validation"] == share


def test_a_cpu_without_bfloat16_refuses_amp(monkeypatch, capsys):
    monkeypatch.setattr(settings, "cpu_has_bfloat16", lambda: False)
    refused(capsys, "--algo fedavg --amp --device cpu".split(), "--amp")
    assert configured("--algo fedavg --amp --device cuda")[0]["amp"]
    monkeypatch.setattr(settings, "cpu_has_bfloat16", lambda: True)
    assert configured("--algo fedavg --amp --device cpu")[0]["amp"]


@pytest.mark.parametrize("public, joint, commands", [
    ("half", False, "fedgem fedgems fedgems-ablations fedgems,fedsdd fedmd,fedgems standalone "
                    "public-private centralized-all"),                   # labels of the task
    ("glyphs-letters", True, "fedmd fedmd-pooled fedmd,fedsdd"),         # labels of either
    ("fifth", False, "feddf fedbe fedsdd fedsdd-ablations dsfl cronus"),
    (None, False, "fedavg fedprox scaffold fedgen centralized fedgkt fedgkt-async "
                  "split-learning")])
def test_public_data_by_default(public, joint, commands):
    for algos in commands.split():
        flags, _ = configured(f"--algo {algos}")
        assert (flags["public"], flags["joint"]) == (public, joint), algos


@pytest.mark.parametrize("table", PAPERS.values())
def test_presets_are_alike_for_variants(table):
    for algo in ("fedsdd", "fedgems"):
        assert table.get(f"{algo}-ablations") == table.get(algo)
    assert table.get("fedgkt-async", table.get("fedgkt")) == table.get("fedgkt")


@pytest.mark.parametrize("paper", PAPERS)
def test_a_papers_methods_hold_the_same_private_data(paper):
    """Each in a command of its own."""
    found, task = set(), "cifar100" if paper == "fedmd" else "cifar10"
    for algo in PAPERS[paper].keys() - {"data"}:
        flags, _ = configured(f"--algo {algo} --paper {paper} --dataset {task}")
        names = ("clients", "partition", "alpha", "validation")
        found.add((flags["public"] in HELD_OUT, *(flags[name] for name in names)))
    assert len(found) == 1 and found.pop()[0] == paper.startswith(("fedgems", "fedgen"))


def test_table_11_gives_clients_networks_in_turn():
    """FedGEMS: the blocks of clients 1 to 8 as printed, then again of clients 9 to 16."""
    blocks = [BOTTLENECKS[name] for name in PAPERS["fedgems-heterogeneous"]["data"]["model"]]
    assert blocks == [(1, 1, 1), (1, 1, 2), (1, 2, 1), (2, 1, 1),
                      (1, 2, 2), (2, 1, 2), (2, 2, 1), (1, 1, 2)]


def test_without_a_paper_the_federation_does_not_depend_on_the_algorithms():
    """But for what one of them needs held out."""
    expected, _ = configured("--algo fedavg")
    assert (expected["clients"], expected["partition"], expected["alpha"]) == (
        DEFAULTS["clients"], DEFAULTS["partition"], DEFAULTS["alpha"])
    for algo in ALGORITHMS:
        for found in (configured(f"--algo {algo}"), configured(f"--algo fedntd:lr=1,{algo}")):
            for name in expected.keys() - {"public", "joint", "validation"}:
                assert found[0][name] == expected[name], (algo, name)


@pytest.mark.parametrize("command, rounds", [
    ("fedavg", 20), ("fedavg --paper fedsdd", 100), ("fedavg --rounds 7", 7),
    ("fedavg:rounds=3 --rounds 7", 3)])
def test_a_later_table_wins(command, rounds):
    """The Config's value, the paper's, the flag's, the word's."""
    [method] = configured("--algo " + command)[1].values()
    assert method.hyperparameters["rounds"] == rounds


SMALL = {"rounds": 1, "local_epochs": 1, "distill_steps": 1, "K": 2, "participation": 1.0,
         "transfer_public_epochs": 1, "transfer_local_epochs": 1, "server_epochs": 1}
PRESETS = [(paper, algo) for paper in PAPERS for algo in PAPERS[paper] if algo != "data"]


def flags_of(paper, algo):
    networks = {name: getattr(ALGORITHMS[algo], name) for name in NETWORKS}
    return {**DEFAULTS, **networks, **PAPERS[paper]["data"], **{
        name: value for name, value in PAPERS[paper][algo].items() if name in NETWORKS}}


FIRST = {(*own["model"], own["server_model"]): preset for preset in reversed(PRESETS)
         for own in [flags_of(*preset)]}.values()        # the first one with these networks


@pytest.mark.parametrize("paper, algo", PRESETS)
def test_every_preset_runs(tmp_path, paper, algo):
    """A round with its settings; the first algorithm with the same networks runs the real ones."""
    federation, methods = configured(f"--algo {algo} --paper {paper}")
    own = dataclasses.asdict(ALGORITHMS[algo].Config(**ALGORITHMS[algo].paper))
    own |= {name: x for name, x in PAPERS[paper][algo].items() if name not in NETWORKS}
    assert methods[algo].hyperparameters == own
    for name, value in flags_of(paper, algo).items():
        found = methods[algo].networks if name in NETWORKS else federation
        assert value is None or found[name] == value
    flags = [f"{flag_of(name)}={value}" for name, value in SMALL.items() if own.get(name)]
    if (paper, algo) not in FIRST:
        edges = algo in ("fedgkt", "fedgkt-async", "split-learning")
        small = "gkt_edge_small gkt_server_small".split() if edges else ["mlp", "mlp"]
        flags += ["--model", small[0], "--server-model", small[1]]
    if ALGORITHMS[algo].public != "none" and flags_of(paper, algo)["public"] is None:
        flags.append("--public=fifth")                   # of the papers' own sets none is here
    np.savez(tmp_path / "few.npz", **arrays(16, 8, 4, (12, 12, 3)))
    main(["--algo", algo, "--paper", paper, "--dataset", str(tmp_path / "few.npz"), "--clients",
          "2", "--partition", "iid", "--threads", "1", "--out", str(tmp_path / "out"), *flags])
    rows = kept(tmp_path / "out" / f"{algo}-seed0")
    no_server = {"server_accuracy"} if algo in ("public-private", "centralized") else set()
    columns = {*ALGORITHMS[algo].scores, *ALGORITHMS[algo].columns}
    assert columns - no_server <= rows[1].keys() and len(rows) == 2
