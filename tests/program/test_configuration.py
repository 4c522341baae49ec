"""From flags to settings: defaults, flags, the papers' presets."""
import dataclasses
import re

import numpy as np
import pytest
from commands import refused

from algorithms import ALGORITHMS
from data.split import HELD_OUT
from experiment import settings
from experiment.common import text_of
from experiment.flags import field_names
from experiment.presets import PAPERS
from experiment.settings import DataConfig, Networks, Training, read
from fedkd_minimal import main
from models import BOTTLENECKS

# The papers' values that `PAPER` leaves to the defaults of `Config`: who changes a default does not
# want to change --paper. A line: algorithms; settings.
VALUES = """
# FedSDD, section 4.1, and for FedBE Table 5: ten samples, and the ensemble only predicts
fedavg fedprox scaffold fedbe fedsdd | participation 0.4 | local_steps none
fedbe | posterior gaussian | samples 10 | concentration 1.0 | distill off
fedsdd | K 4 | R 1 | temperature 4.0
# FedDF's public code
feddf | participation 0.4 | drop_worst on | temperature 1.0 | server_lr 0.001
feddf | server_optimizer adam | cosine on | max_grad_norm 5.0
# FedGen, Table 1; its public code for the generator
fedgen | batch_size 32 | generator_steps 50 | generator_lr 0.0003 | diversity 1.0 | generated 32
# FedMD's public code, CIFAR iid
fedmd fedmd-pooled | transfer_public_batch_size 128 | min_delta 0.005 | early_stopping on
fedmd fedmd-pooled | lr 0.001 | optimizer adam | kernel_l2 0.001
fedmd | transfer_batch_size 32 | public_epochs 1 | batch_size 5
# FedGEMS, Table 13 and section 4
fedgem fedgems dsfl cronus standalone | lr 0.001 | optimizer amsgrad | weight_decay 0.0001
fedgem fedgems | server_epochs 1 | epsilon 0.75 | public_epochs 1
dsfl | server_epochs 2 | batch_size 64 | server_batch_size 64 | temperature 0.1
cronus | batch_size 64 | malicious_fraction 0.1
# FedGKT's public code of 2020, iid
fedgkt split-learning | local_epochs 1 | lr 0.001 | optimizer amsgrad
fedgkt | temperature 3.0 | server_lr 0.001 | server_distill on | client_distill on
# FD's text; the public code of FedNTD (CIFAR-10) and FedProto; FedKD's energies
fd | batch_size 64
fedntd | local_epochs 5 | temperature 1.0 | beta 1.0 | keep_true off
fedproto | lr 0.01 | prototype_weight 1.0
fedkd | energy_first 0.95 | energy_last 0.98
"""


@pytest.mark.parametrize("line", re.findall("^[a-z].*", VALUES, re.M))
def test_a_files_PAPER_has_the_papers_values(line):
    algos, *expected = line.split(" | ")
    for algorithm in map(ALGORITHMS.get, algos.split()):
        cfg = algorithm.Config(**algorithm.paper)
        assert told(dataclasses.asdict(cfg), expected) == expected, algorithm.name


def told(found, expected):
    """"lr 0.1" of each of these settings, as found."""
    return [f"{name} {text_of(found[name])}" for name, _ in map(str.split, expected)]


SETS = """
# a word wins over a flag, this over the paper, also if it equals the default; the paper over Config
fedavg                 | model cnn | lr 0.1 | local_epochs 5 | clients 20 | rounds 20 | threads 1
fedavg --paper fedgkt  | model bottleneck56 | lr 0.001 | local_epochs 20 | augment on | clients 16
fedavg --paper fedgkt --lr 0.8 --optimizer sgd --clients 20 | lr 0.8 | optimizer sgd | clients 20
fedavg,fedsdd:R=3 --lr 0.3 --R 2 --threads 3 | lr 0.3 | threads 3
fedavg:rounds=3 --rounds 7 | rounds 3
# the small settings' server has an eighth of its clients' rate, as FedSDD's has
fedsdd                 | lr 0.1 | server_lr 0.0125
# FedSDD, section 4.1: its own distillation for FedDF; with its Table 10 also FedDF's
feddf --paper fedsdd   | server_lr 0.1 | distill_steps 5000 | drop_worst off | validation none
feddf --paper fedsdd --drop-worst --patience 1000 | drop_worst on | patience 1000 | validation 0.1
# public images of a paper, by task
fedsdd --paper fedsdd --dataset cifar10 | public cifar100 | validation none | alpha 0.1
fedmd --paper fedmd --dataset cifar100 | public cifar10 | joint on
fedbe --paper fedsdd --dataset cifar100 | public none
# FedGKT, Tables 6, 10, section 4.2: rates fall, but not those of split learning
split-learning --paper fedgkt | lr_patience 10 | validation 0.1 | model gkt_edge
fedgkt --paper fedgkt-noniid | partition fedgkt_table6 | optimizer momentum | weight_decay 0.0
# FedGEMS, Tables 11 and 13
fedgems --paper fedgems-homogeneous | partition iid | model bottleneck11 | public half
fedgkt --paper fedgems-heterogeneous | optimizer sgd | weight_decay 0.0001 | model gkt_edge
feddf --paper fedgems-homogeneous | distill_steps 1955 | server_batch_size 64 | weight_decay 0.0001
# FedGen, Table 1: steps, not epochs; the epochs of the command win over them, and vice versa
fedavg --paper fedgen --dataset mnist | local_steps 20 | lr 0.01 | public half-train | alpha 0.1
fedavg --paper fedgen --local-epochs 2 | local_steps none | local_epochs 2
fedavg:local-epochs=2 --local-steps 5 | local_steps none | local_epochs 2
fedavg:local-steps=5 --local-epochs 2 | local_steps 5
# public images: labels of the task, of another data set, none
fedgem,fedsdd,local    | public half | joint off
fedmd,fedgems          | public half | joint off
fedmd,fedsdd           | public glyphs-letters | joint on
fedmd --transfer-public-epochs 0 | public glyphs-letters | joint off
fedavg,fedgen,fedgkt   | public none | joint off
# validation images where one algorithm uses them
fedavg,feddf           | validation 0.1
feddf --no-drop-worst --patience none | validation none
fedgkt --lr-patience 3 | validation 0.1
"""


@pytest.mark.parametrize("line", re.findall("^[a-z].*", SETS, re.M))
def test_what_a_command_sets(line):
    command, *expected = line.split(" | ")
    found = read(["--algo", *command.split()])
    shared = dataclasses.asdict(found.data_cfg) | dataclasses.asdict(found.training)
    for method in found.methods:
        own = dataclasses.asdict(method.networks) | dataclasses.asdict(method.cfg)
        assert told(shared | own | {"threads": method.threads}, expected) == expected


def test_a_split_in_a_file_has_its_clients_and_one_seed(tmp_path):
    np.savez(tmp_path / "own.npz", client_0=[0], client_1=[3], test=[1])
    command = f"--algo fedavg --paper fedsdd --partition {tmp_path}/own.npz".split()
    for flags, clients, seed in [([], 2, 0), (["--split-seed=3"], 2, 3), (["--clients=4"], 4, 0)]:
        data_cfg = read([*command, *flags]).data_cfg
        assert (data_cfg.clients, data_cfg.split_seed) == (clients, seed)


def test_a_cpu_without_bfloat16_refuses_amp(monkeypatch, capsys):
    monkeypatch.setattr(settings, "cpu_has_bfloat16", lambda: False)
    refused(capsys, "--algo fedavg --amp --device cpu".split(), "--amp")
    assert read("--algo fedavg --amp --device cuda".split()).training.amp


# ------------------------------------------------------------------------------------------ presets

@pytest.mark.parametrize("paper", PAPERS)
def test_a_papers_methods_hold_the_same_private_data(paper):
    """Each in a command of its own. FedGEMS's and FedGen's hold out public images as well."""
    found, task = set(), "cifar100" if paper == "fedmd" else "cifar10"
    for algo in PAPERS[paper].methods:
        data_cfg = read(f"--algo {algo} --paper {paper} --dataset {task}".split()).data_cfg
        found.add((data_cfg.public in HELD_OUT, data_cfg.clients, data_cfg.partition,
                   data_cfg.alpha, data_cfg.validation))
    assert len(found) == 1 and found.pop()[0] == paper.startswith(("fedgems", "fedgen"))


@pytest.mark.parametrize("paper", PAPERS)
def test_a_preset_has_settings_that_there_are_and_networks_that_fit_its_images(paper, capsys):
    """On the embedded data, which have ten classes as well."""
    methods = PAPERS[paper].methods
    assert PAPERS[paper].shared.keys() <= field_names(DataConfig, Training, Networks)
    for algo, values in methods.items():
        assert values.keys() <= field_names(ALGORITHMS[algo].Config, Networks), algo
    main(f"--algo {','.join(methods)} --paper {paper} --test-size 20 --describe".split())
    printed = capsys.readouterr().out
    assert all(f"\n{algo}: network " in printed for algo in methods)


def test_table_11_gives_clients_networks_in_turn():
    """FedGEMS: the blocks of clients 1 to 8 as printed, then again of clients 9 to 16."""
    blocks = [BOTTLENECKS[name] for name in PAPERS["fedgems-heterogeneous"].shared["model"]]
    assert blocks == [(1, 1, 1), (1, 1, 2), (1, 2, 1), (2, 1, 1),
                      (1, 2, 2), (2, 1, 2), (2, 2, 1), (1, 1, 2)]
