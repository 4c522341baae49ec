"""Flags, presets, bad input: one clear line, exit status 2, nothing on disk."""
import itertools
import json
import math
import statistics
import time
from typing import Literal, get_args, get_origin

import numpy as np
import pytest
import torch
from toys import labelled, linear, same

import data
import federation
import models
import fedkd_minimal
from algorithms import ALGORITHMS, fedavg, fedsdd
from algorithms.common import sample_clients, stream, timed
from command_line import build_parser, default_text, descriptions, hyperparameter_help, module_of
from fedkd_minimal import configure, keywords, main, module_constant, parse
from presets import DEFAULTS, PAPER, QUICK_START, RANGES

TINY = "--model mlp --clients 4 --partition iid --threads 1".split()
SHORT = "--rounds 2 --local-epochs 1 --batch-size 16 --participation 1".split()
SHORT_SDD = [*SHORT, *"--K 2 --distill-steps 2 --server-batch-size 16".split()]


def arrays(num_train=96, num_test=40, num_classes=3, shape=(8, 8)):
    rng = np.random.default_rng(0)
    y_train, y_test = np.arange(num_train) % num_classes, np.arange(num_test) % num_classes
    x_train, x_test = (np.clip(60 * y.reshape(-1, *[1] * len(shape)) + rng.integers(0, 80, (len(y), *shape)), 0, 255).astype(np.uint8)
                       for y in (y_train, y_test))
    return {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}


@pytest.fixture
def npz(tmp_path):
    path = tmp_path / "tiny.npz"
    np.savez(path, **arrays())
    return str(path)


def refused(capsys, argv, *words):
    """The command ends with status 2 and one line on standard error, which holds the words; returns the line."""
    with pytest.raises(SystemExit) as stop:
        main([str(x) for x in argv])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.startswith("fedkd_minimal.py: error: ") and error.count("\n") == 1, error
    for word in words:
        assert str(word) in error, error
    return error


# ------------------------------------------------------------------------------------------------------------- bad input

@pytest.mark.parametrize("argv, words", [
    ("", ["--algo is missing", "fedsdd"]),
    ("--algo fedsd", ["fedsd", "fedavg, fedprox, scaffold, feddf, fedbe, fedsdd"]),
    ("--algo fedavg,fedavg", ["twice"]),
    ("--algo feddf --secure-sum", ["feddf cannot have --secure-sum: its teachers are the clients' own models"]),
    ("--algo fedsdd,feddf --K 2 --secure-sum", ["feddf cannot have --secure-sum"]),
    ("--algo fedbe --secure-sum", ["fedbe cannot have --secure-sum: the clients' own models are in its ensemble"]),
    ("--algo fedavg --secure-sum", ["--secure-sum", "fedavg has"]),
    ("--algo fedsdd --K 8 --secure-sum", ["--secure-sum", "single client"]),
    ("--algo fedsdd --K 2 --secure-sum --local scaffold", ["--secure-sum", "scaffold"]),
    ("--algo fedsdd-ablations --K 2 --secure-sum --ensemble clients", ["unknown flag --secure-sum", "--ensemble"]),
    ("--algo fedsdd --model cnn,mlp --K 5", ["K = 5", "4"]),                    # 4 of each network's 10 clients are active
    ("--algo feddf,fedavg --model cnn,mlp", ["fedavg: every client needs the same network"]),
    ("--algo fedbe --model cnn,mlp", ["fedbe: every client needs the same network"]),
    ("--algo feddf --patience 0", ["--patience", "1 or more"]),
    ("--algo feddf --patience never", ["--patience", "never"]),
    ("--algo feddf --max-grad-norm 0", ["--max-grad-norm", "greater than 0"]),
    ("--algo feddf --check-every 0", ["--check-every"]),
    ("--algo feddf --temperature none", ["--temperature", "none"]),
    ("--algo feddf --validation 0", ["--validation"]),
    ("--algo feddf --validation 1", ["--validation"]),
    ("--algo feddf --validation 0.00001", ["leaves one part empty"]),
    ("--algo fedbe --posterior uniform", ["--posterior", "dirichlet"]),
    ("--algo fedbe --samples -1", ["--samples", "0 or more"]),
    ("--algo fedbe --concentration 0", ["--concentration"]),
    ("--algo fedsdd-ablations --ensemble some", ["--ensemble", "aggregated"]),
    ("--algo fedavg --dataset glyph", ["glyph", "glyphs-letters"]),
    ("--algo fedavg --model resnet21", ["resnet21", "resnet20"]),
    ("--algo fedavg --model cnn,mlp", ["same network"]),
    ("--algo fedavg --model fedmd_cifar9", ["fedmd_cifar9"]),                   # glyphs are too small for it
    ("--algo fedavg --device abacus", ["abacus"]),
    ("--algo fedavg --R 3", ["--R", "fedavg has --rounds --participation --local-epochs"]),
    ("--algo fedavg --local fedprox", ["--local", "fedavg has"]),
    ("--algo scaffold --optimizer adam", ["--optimizer", "scaffold has"]),
    ("--algo fedavg --round 3", ["--round", "fedavg has"]),
    ("--algo fedsdd --K 2.5", ["--K", "2.5", "whole number"]),
    ("--algo fedsdd --K two", ["--K", "two"]),
    ("--algo fedsdd --K 0", ["--K", "1 or more"]),
    ("--algo fedsdd --R 0", ["--R", "1 or more"]),
    ("--algo fedsdd --K 9", ["K = 9", "8"]),
    ("--algo fedsdd-ablations --students some", ["--students", "main"]),
    ("--algo fedsdd --temperature 0", ["--temperature", "greater than 0"]),
    ("--algo fedsdd --distill-steps 0", ["--distill-steps"]),
    ("--algo fedsdd-ablations --warmup-rounds -1", ["--warmup-rounds", "0 or more"]),
    ("--algo fedsdd --server-lr nan", ["--server-lr"]),
    ("--algo fedavg --alpha 0", ["--alpha"]),
    ("--algo fedavg --alpha nan", ["--alpha"]),
    ("--algo fedavg --alpha inf", ["--alpha"]),
    ("--algo fedavg --participation 0", ["--participation", "(0, 1]"]),
    ("--algo fedavg --participation 1.01", ["--participation", "(0, 1]"]),
    ("--algo fedavg --participation nan", ["--participation"]),
    ("--algo fedavg --rounds 0", ["--rounds"]),
    ("--algo fedavg --lr 0", ["--lr", "greater than 0"]),
    ("--algo fedavg --lr -1", ["--lr"]),
    ("--algo fedavg --lr nan", ["--lr"]),
    ("--algo fedavg --lr inf", ["--lr"]),
    ("--algo fedprox --mu -1", ["--mu"]),
    ("--algo fedavg --clients 0", ["--clients"]),
    ("--algo fedavg --clients 7000", ["7000"]),
    ("--algo fedavg --threads 0", ["--threads"]),
    ("--algo fedavg --seeds -1", ["--seeds"]),
    ("--algo fedavg --seeds 0,0", ["--seeds", "twice"]),
    ("--algo fedavg --seeds x", ["--seeds"]),
    ("--algo fedavg --partition fair", ["--partition", "dirichlet_equal"]),
    ("--algo fedavg --public-size 0", ["--public-size"]),
    ("--algo fedsdd --public nowhere", ["nowhere"]),
    ("--algo scaffold --paper fedgems", ["fedgems", "scaffold", "fedavg"]),
    ("--algo fedavg --paper resnet", ["--paper", "fedsdd"]),
    ("--algo fedavg --dataset missing.npz", ["missing.npz"]),
    ("--algo fedgems --epsilon 1.1", ["--epsilon", "from 0 to 1"]),
    ("--algo fedgems --epsilon -0.1", ["--epsilon"]),
    ("--algo fedgems --epsilon nan", ["--epsilon"]),
    ("--algo fedgem --server-model resnet21", ["resnet21", "resnet20"]),
    ("--algo fedgem --server-model fedmd_cifar9", ["fedmd_cifar9"]),
    ("--algo fedgems --public glyphs-letters", ["fedgems", "labels of the task", "--public half"]),
    ("--algo fedsdd,standalone --public glyphs-letters", ["standalone", "labels of the task"]),
    ("--algo fedmd --public half --joint", ["--joint", "foreign"]),
    ("--algo fedmd --public glyphs-letters --no-joint", ["fedmd", "labels of the task"]),
    ("--algo fedmd --consensus-weights 1,2", ["weight", "20 clients"]),
    ("--algo fedmd --consensus-weights 1,x", ["--consensus-weights", "x"]),
    ("--algo fedmd --clients 2 --consensus-weights 0,0", ["not all 0"]),
    ("--algo fedmd --clients 2 --consensus-weights 1,-1", ["--consensus-weights", "0 or more"]),
    ("--algo fedmd --subset-size 0", ["--subset-size"]),
    ("--algo dsfl --aggregation median", ["--aggregation", "era"]),
    ("--algo cronus --malicious-fraction 0.5", ["--malicious-fraction", "less than 0.5"]),
    ("--algo fedgems --attack flip", ["--attack", "paf"]),
    ("--algo fedgems --attack paf --attackers 0", ["--attackers"]),
    ("--algo fedgems --attack paf --attackers 20", ["--attackers 20", "from 1 to 19"]),
    ("--algo fedgems --attack ofom --attackers 1", ["ofom", "exactly 2"]),
    ("--algo fedgems --attack lie --attack-z inf", ["--attack-z"]),
    ("--algo fedgems --attack-z 1.5", ["--attack-z", "without --attack"]),
    ("--algo fedgems --attackers 2", ["--attackers", "without --attack"]),
    ("--algo fedgems,scaffold --attack paf", ["--attack", "scaffold", "fedgems"]),
    ("--algo feddf --model cnn,mlp --attack paf", ["--attack", "one network"]),
    ("--algo fedsdd --K 2 --secure-sum --attack paf", ["--attack", "--secure-sum"]),
    ("--algo fedavg --classes 1", ["--classes", "two or more"]),
    ("--algo fedavg --classes 1,1", ["--classes", "different"]),
    ("--algo fedavg --classes 1,10", ["--classes", "0 to 9"]),
    ("--algo fedavg --partition by_subclass", ["by_subclass", "superclasses"]),
    ("--algo fedavg --partition single_writer --clients 61", ["61 clients", "60 writers"]),
    ("--algo fedavg --partition few_per_class --per-class 100", ["600 samples", "2000"]),
    ("--algo fedgems --comu 0", ["--comu"]),
    ("--algo fedgkt --model cnn", ["--model cnn", "gkt_edge"]),
    ("--algo fedgkt --model gkt_edge", ["gkt_server_small", "[16, 16, 16]"]),
    ("--algo fedgkt-async --latencies 1,2", ["--latencies", "16 clients"]),
    ("--algo fedgkt-async --latencies 0", ["--latencies", "greater than 0"]),
    ("--algo fedgkt --features float16", ["--features", "bfloat16"]),
    ("--algo fedgkt --lr-patience 0", ["--lr-patience"]),
    ("--algo fedavg --partition fedgkt_table6", ["Table 6", "16 clients"]),
    ("--algo split-learning --model cnn", ["--model cnn", "gkt_edge"]),
    ("--algo split-learning --attack paf", ["--attack", "split-learning"]),
    ("--algo fedgems --comu 1.5", ["--comu", "(0, 1]"]),
])
def test_bad_input_is_one_line_and_status_2_and_nothing_on_disk(capsys, tmp_path, argv, words):
    refused(capsys, [*argv.split(), *(["--out", tmp_path / "out"] if argv else [])], *words)
    assert not (tmp_path / "out").exists()


ONE_NETWORK = {"fedavg", "fedprox", "scaffold", "fedbe", "split-learning"}   # one model goes to all


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_clients_may_have_different_networks_unless_one_model_goes_to_all(capsys, algo):
    refusal = ""
    try:
        configure(parse(["--algo", algo, "--model", "cnn,mlp"]))
    except SystemExit:
        refusal = capsys.readouterr().err
    assert bool(refusal) == (algo in ONE_NETWORK)
    assert ("every client needs the same network" in refusal) == bool(refusal)


def spoilt(**changes):
    made = {**arrays(), **changes}
    return {key: value for key, value in made.items() if value is not None}


@pytest.mark.parametrize("contents, words", [
    (spoilt(y_test=None), ["y_test", "missing"]),
    (spoilt(y_train=np.arange(5)), ["y_train"]),
    (spoilt(x_train=np.zeros((96, 8), np.uint8)), ["x_train"]),
    (spoilt(y_test=np.full(40, 7)), ["y_test"]),
    (spoilt(y_train=np.full(96, -1)), ["y_train"]),
    (spoilt(x_train=np.full((96, 8, 8), math.nan)), ["x_train"]),
    (spoilt(x_train=np.array([None] * 96, dtype=object)), ["x_train"]),
])
def test_a_bad_npz_is_named_with_the_array_at_fault(capsys, tmp_path, contents, words):
    np.savez(tmp_path / "bad.npz", **contents)
    refused(capsys, ["--algo", "fedavg", "--dataset", tmp_path / "bad.npz", *TINY, "--out", tmp_path / "out"], "bad.npz", *words)
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_npz_is_refused(capsys, tmp_path):
    (tmp_path / "text.npz").write_text("hello")
    refused(capsys, ["--algo", "fedavg", "--dataset", tmp_path / "text.npz", *TINY], "text.npz")


def test_by_writer_needs_writers(capsys, npz):
    refused(capsys, ["--algo", "fedavg", "--dataset", npz, "--model", "mlp", "--clients", 4, "--partition", "by_writer"], "by_writer")


def test_a_device_that_is_not_there_is_refused(capsys):
    refused(capsys, ["--algo", "fedavg", "--device", "cuda:99"], "cuda:99")


def test_a_dirichlet_split_that_cannot_be_drawn_is_refused(capsys, npz):
    argv = ["--algo", "fedavg", "--dataset", npz, "--model", "mlp", "--clients", 9, "--partition", "dirichlet", "--alpha", "1e-6"]
    refused(capsys, argv, "alpha")


# ------------------------------------------------------------------------------------------------------------------ flags

@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_numeric_keyword_has_a_range_and_a_default_inside_it(algo):
    for name, parameter in keywords(algo).items():
        if get_args(parameter.annotation)[1:] == (type(None),):                 # a number, a list of numbers, or none
            kind = get_args(parameter.annotation)[0]
            assert (get_args(kind)[0] if get_origin(kind) is tuple else kind) in (int, float) and RANGES[name][0](parameter.default or 1)
        elif parameter.annotation in (int, float):
            assert RANGES[name][0](parameter.default)
        else:
            assert parameter.annotation is bool or get_origin(parameter.annotation) is Literal
            assert parameter.annotation is bool or parameter.default in get_args(parameter.annotation)


def test_one_word_means_the_same_kind_of_thing_in_every_algorithm():
    kinds = {}
    for algo in ALGORITHMS:
        for name, parameter in keywords(algo).items():
            assert kinds.setdefault(name, parameter.annotation) == parameter.annotation


LOCAL = {"rounds": 100, "participation": 0.4, "local_epochs": 40, "batch_size": 64, "lr": 0.8}
PLAIN = {"optimizer": "sgd", "weight_decay": 0.0}
SDD = {**LOCAL, "K": 4, "R": 1, "local": "fedavg", "mu": 0.001, "distill_steps": 5000,
       "server_batch_size": 256, "server_lr": 0.1, "temperature": 4.0}
ADAM = {"lr": 1e-3, "optimizer": "amsgrad", "weight_decay": 1e-4}
GEMS = {**ADAM, "rounds": 200, "local_epochs": 1, "public_epochs": 1, "batch_size": 256}
GEMS_SERVER = {"server_epochs": 1, "server_batch_size": 256, "server_lr": 1e-3, "epsilon": 0.75}
ALONE = {name: value for name, value in GEMS.items() if name != "public_epochs"}
GKT = {**ALONE, "server_epochs": 20, "server_batch_size": 256, "server_lr": 1e-3,
       "server_optimizer": "amsgrad", "temperature": 3.0, "server_distill": True,
       "client_distill": True, "lr_patience": 10, "common_start": True, "features": "float32"}
MD = {"transfer_public_epochs": 20, "transfer_public_batch_size": 128, "early_stopping": True,
      "lr": 1e-3, "optimizer": "adam", "weight_decay": 0.0, "kernel_l2": 1e-3}
PAPERS_DEFAULTS = {   # every keyword of every algorithm
    # FedSDD, section 4.1
    "fedavg": {**LOCAL, **PLAIN},
    "fedprox": {**LOCAL, **PLAIN, "mu": 0.001},
    "scaffold": {**LOCAL, "global_lr": 1.0},
    "fedsdd": {**SDD, "secure_sum": False},
    "fedsdd-ablations": {**SDD, "ensemble": "aggregated", "students": "main", "warmup_rounds": 0},
    # FedSDD, Table 5: ten samples, and the ensemble only predicts; gamma ~ Dir(1, ..., 1)
    "fedbe": {**LOCAL, "posterior": "gaussian", "samples": 10, "concentration": 1.0,
              "distill": False, "distill_steps": 5000, "server_batch_size": 256, "server_lr": 0.1},
    # FedDF's public code
    "feddf": {**LOCAL, **PLAIN, "lr": 0.1, "drop_worst": True, "distill_steps": 10000,
              "server_batch_size": 128, "server_lr": 1e-3, "server_optimizer": "adam",
              "cosine": True, "max_grad_norm": 5.0, "temperature": 1.0, "patience": 1000,
              "check_every": 100},
    # FedMD's public code, CIFAR iid
    "fedmd": {**MD, "rounds": 20, "transfer_local_epochs": 25, "transfer_batch_size": 32,
              "subset_size": 5000, "public_epochs": 1, "public_batch_size": 256,
              "local_epochs": 4, "batch_size": 5, "consensus_weights": None},
    "fedmd-pooled": {**MD, "rounds": 50, "batch_size": 32},
    # FedGEMS, Table 13 and section 4
    "dsfl": {**GEMS, "rounds": 300, "server_epochs": 2, "batch_size": 64, "server_batch_size": 64,
             "server_lr": 1e-3, "temperature": 0.1, "aggregation": "era"},
    "cronus": {**GEMS, "batch_size": 64, "malicious_fraction": 0.1},
    "fedgem": {**GEMS, **GEMS_SERVER},
    "fedgems": {**GEMS, **GEMS_SERVER},
    "fedgems-ablations": {**GEMS, **GEMS_SERVER, "self_training": True, "self_distillation": True,
                          "ensemble_distillation": True},
    "public-private": GEMS,
    **dict.fromkeys(("standalone", "centralized", "centralized-all"), ALONE),
    # FedGKT's public code of 2020, iid
    "fedgkt": {**GKT, "participation": 1.0},
    "fedgkt-async": {**GKT, "latencies": None},
    "split-learning": ALONE,
}


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_defaults_are_the_papers(algo):
    assert {name: p.default for name, p in keywords(algo).items()} == PAPERS_DEFAULTS[algo]


SIBLINGS = {"fedsdd-ablations": "fedsdd", "fedgems-ablations": "fedgems", "fedgkt-async": "fedgkt"}


@pytest.mark.parametrize("table", [QUICK_START, *PAPER.values()])
def test_the_presets_of_a_papers_variants_are_those_of_the_paper(table):
    for sibling, parent in SIBLINGS.items():
        assert (sibling in table) == (parent in table) and table.get(sibling) == table.get(parent)


@pytest.mark.parametrize("table", [QUICK_START, *PAPER.values()])
def test_presets_set_only_what_exists_and_is_allowed(table):
    assert table.keys() <= {"data", *ALGORITHMS, *SIBLINGS}
    tables = [*table.items(), *(("data", settings["data"]) for algo, settings in table.items() if algo != "data" and "data" in settings)]
    for algo, settings in tables:
        if algo not in ("data", *ALGORITHMS):
            continue
        known = DEFAULTS if algo == "data" else {**keywords(algo), "data": None}
        assert settings.keys() <= known.keys()
        for name, value in settings.items():
            if name == "data":
                continue
            optional = algo != "data" and type(None) in get_args(known[name].annotation)
            assert name not in RANGES or (optional and value is None) or RANGES[name][0](value)


def test_explicit_flags_win_over_the_paper_and_the_paper_over_the_quick_start():
    quick = configure(parse("--algo fedavg".split()))
    paper = configure(parse("--algo fedavg --paper fedgems".split()))
    explicit = configure(parse("--algo fedavg --paper fedgems --lr 0.5 --model mlp".split()))
    assert (quick["settings"]["fedavg"]["lr"], quick["flags"]["model"]) == (QUICK_START["fedavg"]["lr"], ["cnn"])
    assert (paper["settings"]["fedavg"]["lr"], paper["flags"]["model"]) == (1e-3, ["bottleneck11"])
    assert (explicit["settings"]["fedavg"]["lr"], explicit["flags"]["model"]) == (0.5, ["mlp"])
    assert explicit["settings"]["fedavg"]["local_epochs"] == 20


def test_on_other_data_the_defaults_are_the_signatures():
    config = configure(parse("--algo fedsdd --dataset some.npz".split()))
    assert config["settings"]["fedsdd"] == {name: p.default for name, p in keywords("fedsdd").items()}


def test_with_several_algorithms_a_flag_goes_to_those_that_have_it():
    settings = configure(parse("--algo fedavg,fedsdd --lr 0.3 --R 2".split()))["settings"]
    assert settings["fedavg"]["lr"] == settings["fedsdd"]["lr"] == 0.3 and settings["fedsdd"]["R"] == 2 and "R" not in settings["fedavg"]


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_keyword_is_a_flag_and_reaches_the_settings(algo):
    argv, changed = ["--algo", algo], {}
    for name, parameter in keywords(algo).items():
        flag, default, choices = "--" + name.replace("_", "-"), parameter.default, get_args(parameter.annotation)
        if parameter.annotation is bool:
            changed[name] = not default
            argv.append(flag if changed[name] else flag.replace("--", "--no-", 1))
        elif get_origin(choices[0] if choices else None) is tuple:
            changed[name] = [0.5, 1.0]
            argv += [flag, "0.5,1"]
        else:
            changed[name] = next((x for x in choices if x != default and isinstance(x, str)), None)
            changed[name] = changed[name] or type(default)(1 if default is None or RANGES[name][0](1) else 0.25)
            argv += [flag, str(changed[name])]
    assert configure(parse(argv))["settings"][algo] == changed


def test_a_number_that_may_be_none_is_said_so_and_kept_so():
    settings = configure(parse("--algo feddf --patience none --max-grad-norm none".split()))["settings"]["feddf"]
    assert settings["patience"] is settings["max_grad_norm"] is None
    assert configure(parse("--algo feddf --patience 7".split()))["settings"]["feddf"]["patience"] == 7


TABLE_10 = [   # FedSDD Table 10: what is on in each step from FedDF to FedSDD (R = 1)
    ("--algo feddf --paper feddf --model resnet20", "adam", True, 1000, 0.1),
    ("--algo feddf --paper fedsdd --drop-worst --patience 1000", "sgd", True, 1000, 0.8),
    ("--algo feddf --paper fedsdd --validation 0.1", "sgd", False, None, 0.8),
    ("--algo fedsdd --paper fedsdd --validation 0.1", None, None, None, 0.8),
]


@pytest.mark.parametrize("command, optimizer, drop, patience, lr", TABLE_10)
def test_each_step_of_fedsdds_table_10_is_one_command(command, optimizer, drop, patience, lr):
    config = configure(parse(command.split()))
    [settings] = config["settings"].values()
    assert (settings.get("server_optimizer"), settings.get("drop_worst"), settings.get("patience")) == (optimizer, drop, patience)
    assert settings["lr"] == lr and config["flags"]["validation"] == 0.1 and config["flags"]["model"] == ["resnet20"]


def test_fedsdds_feddf_is_fedsdds_own_distillation():
    """Section 4.1: both make 5,000 steps of SGD at 0.1 on batches of 256, at temperature 4, without a validation set."""
    config = configure(parse("--algo feddf,fedsdd --paper fedsdd".split()))
    feddf, fedsdd = config["settings"]["feddf"], config["settings"]["fedsdd"]
    shared = ("rounds", "participation", "local_epochs", "batch_size", "lr", "distill_steps", "server_batch_size", "server_lr", "temperature")
    assert {name: feddf[name] for name in shared} == {name: fedsdd[name] for name in shared}
    assert (feddf["server_optimizer"], feddf["cosine"], feddf["max_grad_norm"]) == ("sgd", False, None)
    assert config["flags"]["validation"] is None


@pytest.mark.parametrize("command, share", [
    ("--algo feddf", 0.1), ("--algo fedavg,feddf", 0.1), ("--algo feddf --no-drop-worst", 0.1), ("--algo feddf --patience none", 0.1),
    ("--algo feddf --no-drop-worst --patience none", None), ("--algo fedavg", None), ("--algo fedavg --validation 0.2", 0.2),
    ("--algo feddf --validation 0.3", 0.3)])
def test_validation_images_are_held_out_where_somebody_looks_at_them(command, share):
    assert configure(parse(command.split()))["flags"]["validation"] == share


@pytest.mark.parametrize("algos", ["fedavg", "fedavg,fedsdd", "fedsdd,fedavg"])
def test_a_flag_that_an_algorithm_refuses_is_refused_with_its_reason(monkeypatch, capsys, algos):
    monkeypatch.setattr(fedavg, "REFUSED_FLAGS", {"secure_sum": "it is only an example"}, raising=False)
    line = refused(capsys, ["--algo", algos, "--secure-sum"], "fedavg cannot have --secure-sum: it is only an example")
    assert "unknown flag" not in line


def test_a_flag_that_an_algorithm_refuses_may_be_off(monkeypatch):
    monkeypatch.setattr(fedavg, "REFUSED_FLAGS", {"secure_sum": "it is only an example"}, raising=False)
    assert configure(parse("--algo fedavg,fedsdd --no-secure-sum".split()))["settings"]["fedsdd"]["secure_sum"] is False


# ------------------------------------------------------------------------------------------------------------------- help

PUBLIC, MIXED, COLUMNS = "none", True, ("accuracy",)                  # this file as that of an algorithm, which is `toy`


@timed
def pretrain(fed):
    time.sleep(0.01)


@timed
def evaluate(fed):
    return {"accuracy": 0.5}


def toy(fed, state=None, *, rounds: int = 3, participation: float = 1.0, distill: bool = False, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    rounds          number of communication rounds
    participation   share of the clients that take part in a round;
                      100% of them
                      is 1.0
    speed           not an argument
    distill is the first word of a sentence.
    attack          uploads -> uploads

      rounds        indented further, after an empty line
    """
    for t in range(0 if state is None else state["round"] + 1, rounds + 1):
        if t == 0:
            pretrain(fed)
        yield {**evaluate(fed), "own_seconds": 10.0 * t}, {"round": t, "participation": participation, "distill": distill}


@pytest.fixture
def with_toy(monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "toy", toy)


def printed_help(capsys, argv):
    with pytest.raises(SystemExit) as stop:
        main([*argv, "--help"])
    assert stop.value.code == 0
    return " ".join(capsys.readouterr().out.split())                            # without argparse's line breaks


def test_descriptions_are_read_from_the_docstring_of_run():
    assert descriptions(toy) == {
        "rounds": "number of communication rounds", "attack": "uploads -> uploads",
        "participation": "share of the clients that take part in a round; 100% of them is 1.0"}
    assert descriptions(lambda *, rounds: None) == {}


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_hyperparameter_is_described(algo):
    assert [name for name in keywords(algo) if name not in descriptions(ALGORITHMS[algo])] == []


@pytest.mark.parametrize("value, text", [(None, "none"), (True, "on"), (False, "off"), (100, "100"), (0.001, "0.001"), ("sgd", "sgd"),
                                         (["cnn", "mlp"], "cnn,mlp")])
def test_a_default_is_shown_as_it_would_be_typed(value, text):
    assert default_text(value) == text


def test_the_help_of_a_hyperparameter_tells_the_default_of_each_algorithm(with_toy):
    rounds = keywords("fedavg")["rounds"].default
    assert hyperparameter_help("rounds", ["toy"]) == "number of communication rounds (default 3)"
    assert hyperparameter_help("rounds", ["toy", "fedavg"]) == f"number of communication rounds (default: toy 3, fedavg {rounds})"
    assert hyperparameter_help("distill", ["toy", "fedbe"]).endswith("(default off)")
    assert hyperparameter_help("consensus_weights", ["fedmd"]).endswith("(default none)")


def test_a_percent_sign_in_a_description_is_printed(with_toy, capsys):
    assert "100% of them is 1.0 (default 1.0)" in printed_help(capsys, ["--algo", "toy"])


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_help_is_the_files_own_text_and_has_every_flag_with_its_default(capsys, algo):
    printed = printed_help(capsys, ["--algo", algo]).replace(" ", "")           # argparse also breaks lines after a hyphen
    assert module_of(algo).__doc__.splitlines()[0].replace(" ", "") in printed
    helps = {action.dest: action.help for action in build_parser([algo], "")._actions}
    for name, parameter in keywords(algo).items():
        assert "--" + name.replace("_", "-") in printed and "".join(helps[name].replace("%%", "%").split()) in printed, name
        assert helps[name].endswith(f"(default {default_text(parameter.default)})"), name


def test_help_of_several_algorithms_and_of_none(capsys):
    printed = printed_help(capsys, ["--algo", "fedavg,fedsdd"])
    assert fedavg.__doc__.splitlines()[0] in printed and fedsdd.__doc__.splitlines()[0] in printed and "--distill-steps" in printed
    assert fedkd_minimal.__doc__.splitlines()[0] in printed_help(capsys, [])


def test_every_flag_of_every_algorithm_is_described_with_its_default():
    for action in build_parser([], "")._actions:
        assert len(action.help.split()) > 2, action.dest
        assert "(default" in action.help or action.dest in ("help", "algo", "resume", "list"), action.dest
    assert all(f"(default {default_text(DEFAULTS[action.dest])})" in action.help
               for action in build_parser([], "")._actions if DEFAULTS.get(action.dest) is not None)


def test_list_names_everything(capsys):
    assert main(["--list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in [*ALGORITHMS, *data.DATASETS, *models.NETWORKS, *federation.PARTITIONS, *PAPER])


# ------------------------------------------------------------------------------------------------------------- federation

def build(argv, seed=0, **flags):
    config = configure(parse(argv))
    dataset, foreign = federation.load(config["flags"] | flags)
    return federation.build(config["flags"], dataset, foreign, *federation.split(config["flags"], dataset, seed), seed, torch.device("cpu"))


def test_side_by_side_everyone_has_the_same_private_data(npz):
    alone, together = (build(["--algo", algos, "--dataset", npz, *TINY]) for algos in ("fedsdd", "fedavg,fedsdd"))
    for a, b in zip(alone.private, together.private, strict=True):
        assert torch.equal(a.images, b.images)
    assert len(together.public.images) == 19 and sum(len(p.labels) for p in together.private) == 96 - 19    # a fifth held out


def test_public_images_are_in_no_client_and_lose_their_labels(npz):
    fed = build(["--algo", "fedsdd", "--dataset", npz, *TINY])
    held = {row.numpy().tobytes() for private in fed.private for row in private.images.contiguous()}
    assert not held & {row.numpy().tobytes() for row in fed.public.images.contiguous()}
    assert fed.public.labels is not None
    assert federation.restrict_public(fed, "unlabelled").public.labels is None and federation.restrict_public(fed, "none").public is None
    assert federation.restrict_public(fed, "labelled").public.labels is not None


def test_foreign_public_images_are_normalized_by_the_tasks_statistics():
    fed = build("--algo fedsdd --clients 4".split())
    task, letters = data.load("glyphs"), data.load("glyphs-letters")
    mean, std = data.statistics(task.train.images)
    assert torch.allclose(fed.public.images, (letters.train.images - mean.item()) / std.item(), atol=1e-5)
    assert fed.public.labels is None


def test_half_splits_training_and_test_set(npz):
    fed = build(["--algo", "fedsdd", "--dataset", npz, *TINY, "--public", "half"])
    assert len(fed.public.images) == sum(len(p.labels) for p in fed.private) == 48
    assert len(fed.public_test.labels) == len(fed.test.labels) == 20


def test_public_size_takes_a_part(npz):
    assert len(build(["--algo", "fedsdd", "--dataset", npz, *TINY, "--public-size", "7"]).public.images) == 7


def rows_of(images):
    return [row.numpy().tobytes() for row in images.contiguous()]


@pytest.mark.parametrize("public", ["half", "fifth", "glyphs-letters"])
def test_the_validation_set_is_a_share_of_every_class_in_no_client_and_not_public_nor_test(public):
    fed = build(["--algo", "feddf", "--clients", "4", "--partition", "iid", "--public", public])
    validation, private = rows_of(fed.validation.images), [row for own in fed.private for row in rows_of(own.images)]
    others = {*private, *rows_of(fed.public.images), *rows_of(fed.test.images)}
    assert len(validation) == round(0.1 * (len(validation) + len(private))) and not others & set(validation)
    counts = torch.bincount(fed.validation.labels, minlength=10)
    assert counts.max() - counts.min() <= 1 + 0.1 * counts.max() and fed.validation.labels is not None


def test_side_by_side_everyone_leaves_the_validation_images_out():
    alone, together = (build(f"--algo {algos} --clients 4".split()) for algos in ("feddf", "fedavg,feddf"))
    for a, b in zip(alone.private, together.private, strict=True):
        assert torch.equal(a.images, b.images)


def test_another_seed_gives_another_partition_and_sampling(npz):
    one, two = (build(["--algo", "fedavg", "--dataset", npz, *TINY], seed) for seed in (0, 1))
    assert not torch.equal(one.private[0].images, two.private[0].images)
    assert sample_clients(20, 0.4, stream(0, "active", 1)) != sample_clients(20, 0.4, stream(1, "active", 1))


def test_images_and_convolutions_are_channels_last(tmp_path):
    np.savez(tmp_path / "colour.npz", **arrays(shape=(8, 8, 3)))
    fed = build(["--algo", "fedavg", "--dataset", str(tmp_path / "colour.npz"), "--model", "cnn", "--clients", "4", "--partition", "iid"])
    for tensor in (fed.private[1].images, fed.private[1].images[torch.tensor([2, 0])], fed.test.images, fed.client_model(0).conv2.weight):
        assert tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


# ------------------------------------------------------------------------------------------------------------------- runs

def test_a_run_prints_a_line_per_round_and_keeps_what_it_measured(capsys, npz, tmp_path):
    assert main(["--algo", "fedsdd", "--dataset", npz, *TINY, *SHORT_SDD, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    timings = [json.loads(line) for line in (tmp_path / "out" / "timing.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [timing["round"] for timing in timings] == [0, 1, 2]
    assert not any(key.endswith("_seconds") for row in rows for key in row)
    for row in rows:
        assert f"{row['round']:>3}/2" in printed and f"{row['accuracy']:.4f}" in printed
    assert "local_epochs 1 (40)" in printed and "distill_steps 2 (5000)" in printed
    [changed] = [line for line in printed.splitlines() if line.startswith("fedsdd: not the paper")]
    assert "mu" not in changed


def seconds_kept(folder):
    return [json.loads(line) for line in (folder / "timing.jsonl").read_text().splitlines()]


def test_the_seconds_of_a_round_are_those_of_its_own_timed_functions_and_of_its_metrics(with_toy, npz, tmp_path):
    timed.seconds["left_over"] = 1.0
    main(["--algo", "toy", "--dataset", npz, *TINY, "--rounds", "2", "--out", str(tmp_path / "out")])
    timings = seconds_kept(tmp_path / "out")
    each = {"round", "round_seconds", "evaluate_seconds", "own_seconds"}
    assert [timing.keys() for timing in timings] == [each | {"pretrain_seconds"}, each, each]
    assert [timing["own_seconds"] for timing in timings] == [0.0, 10.0, 20.0]
    assert 0.01 <= timings[0]["pretrain_seconds"] <= timings[0]["round_seconds"]
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert rows == [{"round": t, "accuracy": 0.5} for t in range(3)]


class Scaled(torch.nn.Module):
    """A feature map as large as an image, three of whose numbers are the logits."""

    def __init__(self, num_classes):
        super().__init__()
        self.scale = torch.nn.Linear(2, 2)

    def extract(self, images):
        return self.scale(images)

    def classify(self, features):
        return features.flatten(1)[:, :3]

    def forward(self, images):
        return self.classify(self.extract(images))


def models_in(state):
    """The state_dicts of all networks in a state, in order."""
    for key, value in state.items() if isinstance(state, dict) else enumerate(state):
        if key == "model":
            yield value
        elif isinstance(value, dict | list):
            yield from models_in(value)


ONE_STEP = {   # with one step in each training, but for Adam's second one
    "rounds": 1, "participation": 1.0, "batch_size": 8, "server_batch_size": 8, "local_epochs": 1,
    "server_epochs": 1, "distill_steps": 1, "lr": 1e-6, "server_lr": 1e-6, "weight_decay": 1e6,
    "transfer_public_epochs": 0, "transfer_local_epochs": 0, "early_stopping": False,
    "subset_size": None, "kernel_l2": 0.0, "drop_worst": False, "patience": None,
    "lr_patience": None, "latencies": (1.0, 1.0, 1.0)}


@pytest.mark.parametrize("optimizer", ["sgd", "amsgrad"])
@pytest.mark.parametrize("algo", [algo for algo in ALGORITHMS if "weight_decay" in keywords(algo)])
def test_optimizer_and_weight_decay_reach_every_network(algo, optimizer):
    """A penalty of 1 / lr. By SGD nothing is left of w: w - lr (g + w / lr) = -lr g. By Adam, which
    divides the gradient by its size, w moves by about lr in a step, and 1e-4 is a hundred lr."""
    settings = {**ONE_STEP, "optimizer": optimizer, "server_optimizer": optimizer}
    settings = {name: value for name, value in settings.items() if name in keywords(algo)}
    fed = labelled(sizes=(5, 3, 4), network=Scaled, server=linear)
    states = [state for metrics, state in ALGORITHMS[algo](fed, **settings) if metrics is not None]
    start, end = (list(models_in(state)) for state in (states[0], states[-1]))
    assert len(start) == len(end) > 0
    for before, after in zip(start, end):
        for name, w in before.items():
            expected = torch.zeros_like(w) if optimizer == "sgd" else w
            assert torch.allclose(after[name], expected, rtol=0, atol=1e-4)


def test_several_runs_have_a_folder_each_and_a_mean_with_standard_deviation(capsys, npz, tmp_path):
    out = tmp_path / "out"
    assert main(["--algo", "fedavg,fedsdd", "--dataset", npz, *TINY, *SHORT_SDD, "--seeds", "3,5", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["fedavg-seed3", "fedavg-seed5", "fedsdd-seed3", "fedsdd-seed5"]
    for algo in ("fedavg", "fedsdd"):
        accuracies = [[json.loads(line)["accuracy"] for line in (out / f"{algo}-seed{seed}" / "metrics.jsonl").read_text().splitlines()]
                      for seed in (3, 5)]
        final, best = [row[-1] for row in accuracies], [max(row) for row in accuracies]
        [line] = [line for line in printed.split("algorithm ")[1].splitlines() if line.startswith(algo)]
        assert f"{statistics.mean(final):.4f} ± {statistics.stdev(final):.4f}" in line
        assert f"{statistics.mean(best):.4f} ± {statistics.stdev(best):.4f}" in line


LOGITS = [*TINY, *"--server-model mlp --public half --rounds 2 --local-epochs 1 --batch-size 16".split()]


def test_an_attack_is_said_and_kept_and_changes_the_numbers(capsys, npz, tmp_path):
    for name, flags in [("clean", []), ("lie", ["--attack", "lie"]), ("paf", ["--attack", "paf", "--attackers", "2"])]:
        main(["--algo", "fedgem", "--dataset", npz, *LOGITS, *flags, "--out", str(tmp_path / name)])
    printed = capsys.readouterr().out
    z = statistics.NormalDist().inv_cdf((3 - 2) / 3)                          # 4 clients, 1 of them malicious: s = 3 - 1 = 2
    assert f"attack: lie by 1 of 4 clients, z {z:.3f}" in printed and "attack: paf by 2 of 4 clients, scale 10" in printed
    assert json.loads((tmp_path / "paf" / "config.json").read_text())["flags"]["attackers"] == 2
    servers = [torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["state"]["server"] for name in ("clean", "lie", "paf")]
    assert not any(same(a, b) for a, b in itertools.combinations(servers, 2))


def test_an_attacked_run_goes_on_with_the_same_bytes(npz, tmp_path):
    flags = ["--algo", "fedgems", "--dataset", npz, *LOGITS, "--attack", "ofom", "--attack-scale", "3"]
    main([*flags, "--out", str(tmp_path / "whole")])
    main([*[word if word != "2" else "1" for word in flags], "--out", str(tmp_path / "part")])
    main(["--resume", str(tmp_path / "part"), "--rounds", "2"])
    whole, part = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in ("whole", "part"))
    assert whole["rows"] == part["rows"] and same(whole["state"], part["state"])


def test_the_summary_counts_the_bytes_until_an_accuracy(capsys, npz, tmp_path):
    main(["--algo", "fedgem", "--dataset", npz, *LOGITS, "--comu", "0.01,1", "--out", str(tmp_path / "out")])
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    printed = capsys.readouterr().out
    assert rows[0]["client_accuracy"] > 0.01 and "ComU@0.01: 0.00 MB up and down" in printed            # before anything was sent
    assert max(row["client_accuracy"] for row in rows) < 1 and "ComU@1: not reached" in printed


def test_a_foreign_labelled_set_makes_one_label_space_for_fedmd(capsys):
    flags = "--algo fedmd --dataset glyphs-letters --classes 0,1,2,3,4,5 --clients 3 --partition few_per_class --per-class 2".split()
    config = configure(parse(flags))["flags"]
    assert config["public"] == "glyphs" and config["joint"] is True and config["classes"] == [0, 1, 2, 3, 4, 5]
    fed = build(flags)
    assert fed.num_classes == 16 and [len(private.labels) for private in fed.private] == [12, 12, 12]
    assert all(torch.bincount(private.labels, minlength=16).tolist() == [0] * 10 + [2] * 6 for private in fed.private)
    assert set(fed.public.labels.tolist()) == set(range(10)) and set(fed.test.labels.tolist()) == set(range(10, 16))
    assert set(fed.validation.labels.tolist()) == set(range(10, 16))


@pytest.mark.parametrize("command, public", [
    ("--algo fedgems", "half"), ("--algo fedgems,fedsdd", "half"), ("--algo fedmd,fedgems", "half"), ("--algo fedmd", "glyphs-letters"),
    ("--algo fedmd,fedsdd", "glyphs-letters"), ("--algo standalone", "half"), ("--algo centralized", None),
    ("--algo fedgems --public fifth", "fifth")])
def test_public_data_by_default(command, public):
    flags = configure(parse(command.split()))["flags"]
    assert flags["public"] == public and flags["joint"] is (public == "glyphs-letters")


def test_the_servers_network_is_its_own(npz):
    fed = build(["--algo", "fedgems", "--dataset", npz, *TINY, "--server-model", "cnn_large"])
    assert type(fed.server_model()).__name__ == "LargeCNN" and type(fed.client_model(0)).__name__ == "MLP"


def test_an_output_folder_that_holds_a_run_is_left_alone(capsys, npz, tmp_path):
    argv = ["--algo", "fedavg", "--dataset", npz, *TINY, *SHORT, "--out", str(tmp_path / "out")]
    main(argv)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    refused(capsys, argv, "already holds a run", "--resume")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize("flags, dtype", [(["--amp"], torch.bfloat16), ([], torch.float32)])
def test_amp_reaches_training_and_prediction(monkeypatch, npz, flags, dtype):
    seen, make = set(), models.build

    def hooked(*arguments):
        model = make(*arguments)
        model.hidden.register_forward_hook(lambda module, args, output: seen.add((module.training, output.dtype)))
        return model
    monkeypatch.setattr(models, "build", hooked)
    main(["--algo", "fedsdd", "--dataset", npz, *TINY, *SHORT_SDD, *flags])
    assert seen == {(True, dtype), (False, dtype)}


def test_augment_reaches_training_and_never_the_teachers(monkeypatch, npz):
    seen, original = [], data.crop_and_flip
    monkeypatch.setattr(data, "crop_and_flip", lambda images, rng: seen.append(len(images)) or original(images, rng))
    main(["--algo", "fedsdd", "--dataset", npz, *TINY, *SHORT_SDD])
    assert not seen
    main(["--algo", "fedsdd", "--dataset", npz, *TINY, *SHORT_SDD, "--augment"])
    assert sum(seen) == 2 * (77 + 16 + 3)                  # two rounds: every private image once, and two steps on 19 public ones


PRESETS = [(paper, algo) for paper, table in PAPER.items() for algo in table if algo in ALGORITHMS]


@pytest.mark.parametrize("paper, algo", PRESETS)
def test_every_preset_runs_its_real_network(tmp_path, paper, algo):
    np.savez(tmp_path / "colour.npz", **arrays(32, 8, 4, (32, 32, 3)))
    small = {"rounds": 1, "local_epochs": 1, "distill_steps": 1, "K": 2, "participation": 1.0, "transfer_public_epochs": 1,
             "transfer_local_epochs": 1, "server_epochs": 1}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in small.items() if name in keywords(algo)]
    main(["--algo", algo, "--paper", paper, "--dataset", str(tmp_path / "colour.npz"), "--clients", "2", "--partition", "iid",
          "--threads", "1", "--out", str(tmp_path / "out"), *flags])
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    for name, value in {**{name: p.default for name, p in keywords(algo).items()}, **PAPER[paper][algo], **small}.items():
        assert name not in keywords(algo) or config["settings"][algo][name] == value
    for name in ("model", "server_model", "augment"):
        own = {**DEFAULTS, **PAPER[paper]["data"], **PAPER[paper][algo].get("data", {})}
        assert config["flags"][name] == own[name]
    assert len((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_client_with_one_sample_and_missing_classes_simply_works(tmp_path, algo):
    made = arrays(40, 12, 3, (16, 16, 3))
    np.savez(tmp_path / "few.npz", **made, writer_train=np.array([0] + [1] * 20 + [2] * 19))      # writer 0 has a single image
    flags = [f"--{name}={value}" for name, value in [("K", 2), ("distill-steps", 2), ("participation", 1), ("validation", 0.2),
                                                      ("local-epochs", 1), ("transfer-public-epochs", 1), ("server-epochs", 1)]
             if name.replace("-", "_") in {*keywords(algo), "validation"}]
    public = "fifth" if module_constant(algo, "PUBLIC") == "labelled" else "glyphs-letters"
    edges = ("fedgkt", "fedgkt-async", "split-learning")
    model, server = ("gkt_edge4", "gkt_server55") if algo in edges else ("resnet8", "resnet8")
    assert main(["--algo", algo, "--dataset", str(tmp_path / "few.npz"), "--model", model, "--clients", "3", "--public", public,
                 "--server-model", server, "--public-size", "9", "--partition", "by_writer", "--rounds", "1", "--threads", "1", *flags]) == 0
