"""From a command to a run: bad input, flags, presets, help, and what a run prints and keeps."""
import contextlib
import dataclasses
import inspect
import io
import itertools
import json
import os
import re
import signal
import statistics
import typing
from types import SimpleNamespace
from typing import Literal

import numpy as np
import pytest
import torch
from commands import OF_PAPERS, refused
from PIL import Image
from toys import same

import fedkd_minimal
import models
from algorithms import ALGORITHMS, fedavg, fedsdd
from data import readers
from data.load import DATASETS
from experiment import processes
from experiment.presets import PAPERS
from experiment.report import megabytes, metric_text, seconds_left
from experiment.settings import Images, Program, Training, flag_of, read, text_of
from federation import make_rng
from fedkd_minimal import main
from partition import PARTITIONS

FLAGS = {field.name: field for table in (Images, Training, Program)
         for field in dataclasses.fields(table)}
TINY = "--model mlp --clients 4 --partition iid --threads 1".split()
SHORT = "--rounds 2 --local-epochs 1 --batch-size 16 --participation 1".split()
SHORT_SDD = [*SHORT, *"--K 2 --distill-steps 2 --server-batch-size 16".split()]
LOGITS = [*TINY, *"--server-model mlp --public half --local-epochs 1 --batch-size 16".split()]


def configured(command):
    """(the federation's settings, {label: `Method`}) of a command."""
    found = read(command.split())
    return found.shared, {method.label: method for method in found.methods}


def hyperparameters(algo):
    return {field.name: field for field in dataclasses.fields(ALGORITHMS[algo].Config)}


def kept(folder, name="metrics.jsonl"):
    lines = (folder / name).read_text().splitlines()
    return [json.loads(line, parse_constant=pytest.fail) for line in lines]


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def finished(npz, tmp_path_factory):
    """(folder, command, printed) of two algorithms with two seeds each."""
    folder = tmp_path_factory.mktemp("runs") / "out"
    argv = ["--algo", "fedavg,fedsdd", "--dataset", npz, *TINY, *SHORT_SDD]
    argv += ["--seeds", "3,5", "--out", str(folder)]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        main(argv)
    return folder, argv, printed.getvalue()


REFUSED = """
--seeds 0 --rounds 3                  | --algo | fedsdd
--algo fedsd                          | fedsd | fedavg
--algo FedSDD                         | 'FedSDD', perhaps fedsdd;
--algo fedavg, fedsdd                 | argument --algo: 'fedavg,' has an empty word: write a,b
--algo fedavg --seeds 0, 1            | argument --seeds: '0,' has an empty word
--algo fedavg --seed 1                | unknown --seed 1, perhaps --seeds
--algo fedavg --epochs 1              | unknown --epochs 1, perhaps --local-epochs
--algo fedavg,fedavg                  | --algo
--algo fedavg --R 3                   | fedavg has no --R
--algo fedsdd:seeds=3                 | fedsdd:seeds=3
--algo fedsdd:R=x                     | --R
--algo fedsdd TINY                    | K = 4 | participation 0.4 of 4 clients is 2: K is at most 2
--algo fedsdd-ablations TINY          | K = 4 | but it has 2: K is at most 2
--algo feddf --temperature none       | --temperature | none
--algo fedavg --model cnn,resnet21    | resnet21 | resnet20
--algo fedavg,fedsdd --model cnn,mlp  | fedavg: every client needs the same network
--algo fedgem --server-model fedmd_cifar9 | fedmd_cifar9
--algo fedavg --device abacus         | abacus
--algo fedavg --device meta           | meta
--algo fedavg --seeds 0,0             | --seeds
--algo fedavg --partition few_per_class --per-class 100 | 600 samples | 2000 | per_class 100
--algo fedavg --partition dirichle    | --partition dirichle: choose from iid, dirichlet, | .npz
--algo fedavg --partition nowhere.npz | nowhere.npz: cannot be read
--algo fedsdd --public nowhere        | nowhere
--algo fedgems --paper fedgems        | --paper | fedgems-homogeneous
--algo scaffold --paper fedgkt        | fedgkt | scaffold | fedavg
--algo fedsdd --paper fedsdd --dataset cifar100 | ImageNet-32
--algo fedavg,feddf --paper feddf TINY | feddf | NAME or PATH
--algo fedavg,split-learning --lr-patience 3 | --lr-patience | split-learning
--algo fedgkt --lr-patience 1 --validation none | --lr-patience | --validation 0.1
--algo fedsdd --public none           | fedsdd needs public images | --public fifth
--algo fedgems --public glyphs-letters | fedgems | --public half
--algo fedmd,fedgems --public glyphs-letters | fedgems
--algo fedgems --public glyphs-letters --joint | fedgems
--algo fedmd --public half --joint    | --joint
--algo fedmd --no-joint               | fedmd
--algo fedgems --attack paf --attackers 20 | attackers is 20 | 19
--algo fedgems,scaffold --attack paf  | --attack | scaffold | fedgems
--algo feddf --model cnn,mlp --attack paf | feddf | one network
--algo split-learning TINY            | mlp | gkt_edge
--algo fedgems,fedgkt --server-model gkt_server_small --model gkt_edge_small | fedgems
--algo fedgkt TINY                    | mlp | gkt_edge
--algo fedproto --model cnn,mlp       | fedproto: | not cnn 512, mlp 128
--algo fedgkt TINY --model gkt_edge --server-model gkt_server_small | gkt_server_small
"""


@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_bad_input_is_one_line_status_2_and_nothing_on_disk(capsys, tmp_path, npz, line):
    """TINY: 4 clients, of which 2 are active in a round."""
    command, *words = line.split(" | ")
    command = command.replace("TINY", f"--dataset {npz} {' '.join(TINY)}")
    refused(capsys, [*command.split(), "--out", tmp_path / "out"], *words)
    assert not (tmp_path / "out").exists()


EDGES = [   # numbers that are refused, numbers that are allowed, the flags
    ("0 -1 2.5 two 99999999999999999999999", "1 7",
     "train_size test_size local_epochs local_steps server_epochs batch_size server_batch_size "
     "public_batch_size lr_patience K R distill_steps check_every patience subset_size clients "
     "generator_steps energy_rounds "
     "transfer_public_batch_size transfer_batch_size per_class public_size attackers"),
    ("-1 2.5 two", "0 7", "rounds warmup_rounds samples transfer_public_epochs "
                          "transfer_local_epochs public_epochs classes seeds generated split_seed"),
    ("0 -1 nan inf two", "1e-9 7", "lr server_lr global_lr generator_lr max_grad_norm temperature "
                                   "concentration latencies alpha generated_weight_decay"),
    ("-1 nan inf", "0 7.5", "weight_decay kernel_l2 min_delta mu consensus_weights attack_scale "
                              "beta gamma diversity generated_weight prototype_weight"),
    ("0 -0.1 1.01 nan", "0.01 1", "participation energy_first energy_last"),
    ("-0.1 1.01 nan", "0 1", "epsilon alpha_ce beta_ce"),
    ("-0.1 0.5 nan", "0 0.49", "malicious_fraction"), ("0 1 nan", "0.01 0.99", "validation"),
    ("nan inf", "-1 0 1", "attack_z"),
    ("0 1025 99999999999999999999999", "1 1024", "processes threads image_size")]


def is_number(field):
    kinds = [field.type]
    for kind in kinds:               # the list grows: X | None, tuple[X, ...], Annotated[X, "..."]
        kinds += typing.get_args(kind) if typing.get_origin(kind) is not Literal else ()
    return int in kinds or float in kinds


FIELDS = FLAGS | {name: field for algo in OF_PAPERS
                  for name, field in hyperparameters(algo).items()}
NUMBERS = [name for name, field in FIELDS.items() if is_number(field)]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_outside_its_range_is_refused(name):
    """Before it reaches torch: too many threads end the process."""
    [(outside, inside)] = [edge[:2] for edge in EDGES if name in edge[2].split()]
    algo = next((algo for algo in ALGORITHMS if name in hyperparameters(algo)), "fedavg")

    def check(value):
        [method] = read(["--algo", algo, f"{flag_of(name)}={value}"]).methods
        assert method.cfg

    for value in outside.split():
        with pytest.raises(ValueError, match=name.replace("_", ".")):
            check(value)
    for value in inside.split():
        check(value)


def test_networks_may_differ_unless_one_model_goes_to_all_clients():
    """These refuse several networks; test_contracts.py runs all others with two."""
    assert {algo for algo in OF_PAPERS if not ALGORITHMS[algo].mixed_networks} == {
        "fedavg", "fedprox", "scaffold", "fedntd", "fedgen", "fedbe", "fedsdd", "split-learning"}


def test_an_error_is_one_line_of_the_first_process_alone(capsys, monkeypatch):
    argv = ["--algo", "fedavg", "--dataset", "no\nset"]
    refused(capsys, argv, "no set")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2 and capsys.readouterr() == ("", "")
    monkeypatch.delenv("WORLD_SIZE")                     # RANK alone says nothing
    refused(capsys, argv, "no set")


def out_of_gpu_memory():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize("fill", [
    lambda: torch.empty(10**15), lambda: np.empty(10**15), out_of_gpu_memory])
def test_missing_memory_is_one_line_that_names_what_to_make_smaller(capsys, monkeypatch, fill):
    """Of the first process; another one raises, for the process that started it to tell."""
    with pytest.raises(SystemExit) as stop, processes.stops_are_told():
        fill()
    [line] = capsys.readouterr().err.splitlines()
    assert stop.value.code == 1 and "not enough memory: make --batch-size " in line
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises((RuntimeError, MemoryError)), processes.stops_are_told():
        fill()
    assert capsys.readouterr() == ("", "")


def test_another_error_of_torch_keeps_its_traceback():
    with pytest.raises(RuntimeError, match="size"), processes.stops_are_told():
        torch.ones(2) + torch.ones(3)


def test_list_prints_all_names(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--list"])
    printed = capsys.readouterr().out
    names = [*ALGORITHMS, *DATASETS, *models.NETWORKS, *PARTITIONS, *PAPERS]
    assert stop.value.code == 0 and [name for name in names if name not in printed] == []


# -------------------------------------------------------------------------------- flags and presets

def test_a_flag_goes_to_all_algorithms_that_have_it():
    """That they have one type: test_contracts.py."""
    _, methods = configured("--algo fedavg,fedsdd:R=3,fedsdd --lr 0.3 --R 2")
    assert {method.hyperparameters["lr"] for method in methods.values()} == {0.3}
    assert [method.hyperparameters.get("R") for method in methods.values()] == [None, 3, 2]


LOCAL = {"rounds": 100, "participation": 0.4, "local_epochs": 40, "local_steps": None,
         "batch_size": 64, "lr": 0.8}
PLAIN = {"optimizer": "sgd", "weight_decay": 0.0}
SDD = {**LOCAL, "K": 4, "R": 1, "distill_steps": 5000,
       "server_batch_size": 256, "server_lr": 0.1, "temperature": 4.0}
ADAM = {"lr": 1e-3, "optimizer": "amsgrad", "weight_decay": 1e-4}
GEMS = {**ADAM, "rounds": 200, "local_epochs": 1, "public_epochs": 1, "batch_size": 256}
GEMS_SERVER = {"server_epochs": 1, "server_batch_size": 256, "server_lr": 1e-3, "epsilon": 0.75}
ALONE = {name: value for name, value in GEMS.items() if name != "public_epochs"}
GKT = {**ALONE, "server_epochs": 20, "server_batch_size": 256, "server_lr": 1e-3,
       "server_optimizer": "amsgrad", "temperature": 3.0, "server_distill": True,
       "client_distill": True, "server_order": "clients", "common_start": True,
       "features": "float32"}
MD = {"transfer_public_epochs": 20, "transfer_public_batch_size": 128, "early_stopping": True,
      "min_delta": 0.005, "lr": 1e-3, "optimizer": "adam", "weight_decay": 0.0, "kernel_l2": 1e-3}
MUTUAL = {"rounds": 100, "participation": 1.0, "local_epochs": 1, "local_steps": None,
          "batch_size": 64, "lr": 0.05, "optimizer": "momentum", "weight_decay": 0.0}
PAPERS_DEFAULTS = {   # every setting of every algorithm with --paper, but for what one paper sets
    # for another's method
    # FedSDD, section 4.1
    "fedavg": {**LOCAL, **PLAIN}, "fedprox": {**LOCAL, **PLAIN, "mu": 0.001},
    "scaffold": {**LOCAL, "global_lr": 1.0},
    "fedsdd": SDD,
    "fedsdd-ablations": {**SDD, "ensemble": "aggregated", "students": "main", "warmup_rounds": 0,
                         "secure_sum": False, "local": "fedavg", "mu": 0.001},
    # FedSDD, Table 5: ten samples, and the ensemble only predicts; gamma ~ Dir(1, ..., 1)
    "fedbe": {**LOCAL, "posterior": "gaussian", "samples": 10, "concentration": 1.0,
              "distill": False, "distill_steps": 5000, "server_batch_size": 256, "server_lr": 0.1},
    # FedGen's Table 1; its public code for the generator
    "fedgen": {"rounds": 200, "participation": 0.5, "local_epochs": 1, "local_steps": 20,
               "batch_size": 32, "lr": 0.01, "generated": 32, "generated_weight": 1.0,
               "generated_weight_decay": 1.0, "generator_steps": 50, "generator_lr": 3e-4,
               "diversity": 1.0},
    # FedDF's public code
    "feddf": {**LOCAL, **PLAIN, "lr": 0.1, "drop_worst": True, "distill_steps": 10000,
              "server_batch_size": 64, "server_lr": 1e-3, "server_optimizer": "adam",
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
    # FD's text: rounds, steps, batch size; FedNTD's public code, CIFAR-10
    "fd": {**ALONE, "rounds": 16, "local_steps": 250, "batch_size": 64, "gamma": 1.0},
    "fedntd": {"rounds": 200, "participation": 0.1, "local_epochs": 5, "local_steps": None,
               "batch_size": 50, "lr": 0.01, "optimizer": "momentum", "weight_decay": 1e-5,
               "temperature": 1.0, "beta": 1.0, "keep_true": False},
    # FedProto's public code, but for a momentum of 0.5; FedKD's energies; the others are ours
    "local": MUTUAL, "fml": {**MUTUAL, "alpha_ce": 0.5, "beta_ce": 0.5},
    "fedproto": {"rounds": 100, "local_epochs": 1, "local_steps": None, "batch_size": 8,
                 "lr": 0.01, "prototype_weight": 1.0, "optimizer": "momentum",
                 "weight_decay": 0.0},
    "fedkd": {**MUTUAL, "hidden": True, "energy_first": 0.95, "energy_last": 0.98,
              "energy_rounds": 100},
    "cronus": {**GEMS, "batch_size": 64, "malicious_fraction": 0.1},
    "fedgem": {**GEMS, **GEMS_SERVER}, "fedgems": {**GEMS, **GEMS_SERVER},
    "fedgems-ablations": {**GEMS, **GEMS_SERVER, "self_training": True, "self_distillation": True,
                          "ensemble_distillation": True},
    "public-private": GEMS,
    **dict.fromkeys(("standalone", "centralized", "centralized-all"), ALONE),
    # FedGKT's public code of 2020, iid
    "fedgkt": {**GKT, "participation": 1.0}, "fedgkt-async": {**GKT, "latencies": None},
    "split-learning": ALONE}


@pytest.mark.parametrize("algo", OF_PAPERS)
def test_a_files_PAPER_has_the_papers_values(algo):
    found = dataclasses.asdict(ALGORITHMS[algo].Config(**ALGORITHMS[algo].paper))
    assert found == PAPERS_DEFAULTS[algo]


# --------------------------------------------------------------------------------------------- help

def printed_help(capsys, argv):
    with pytest.raises(SystemExit) as stop:
        main([*argv, "--help"])
    assert stop.value.code == 0
    return " ".join(capsys.readouterr().out.split())                 # without its line breaks


def test_a_value_is_told_as_it_is_typed():
    values = [None, True, False, 100, 0.001, "sgd", ["cnn", "mlp"]]
    assert [*map(text_of, values)] == "none on off 100 0.001 sgd cnn,mlp".split()


@pytest.mark.parametrize("algo", OF_PAPERS)
def test_help_is_the_files_own_text_and_describes_every_flag(capsys, algo):
    printed = printed_help(capsys, ["--algo", algo])
    assert " ".join(inspect.getmodule(ALGORITHMS[algo].run).__doc__.split()) in printed
    source = inspect.getsource(ALGORITHMS[algo].Config)
    for name, field in hyperparameters(algo).items():
        told = re.search(rf"^    {name}: [^#\n]*(?:# +(.*))?$", source, re.M)
        words = [flag_of(name), text_of(field.default), *(told[1] or "").split()]
        assert " ".join(words) in printed, name


def test_help_of_several_algorithms_and_of_none(capsys):
    printed = printed_help(capsys, ["--algo", "fedavg,fedsdd"])
    for words in (fedavg.__doc__.splitlines()[0], fedsdd.__doc__.splitlines()[0], "--distill-step"):
        assert words in printed
    printed = printed_help(capsys, [])
    assert fedkd_minimal.__doc__.splitlines()[0] in printed
    assert all(flag_of(name) in printed for name in FLAGS)


# --------------------------------------------------------------------------------------------- runs

def test_a_run_prints_a_line_per_round_and_keeps_what_it_measured(finished):
    folder, _, printed = finished
    lines = printed.split("fedsdd, seed 3\n")[1].splitlines()
    rows, timings = (kept(folder / "fedsdd-seed3", f"{x}.jsonl") for x in ("metrics", "timing"))
    for t, (line, row, timing) in enumerate(zip(lines[1:4], rows, timings, strict=True)):
        assert row["round"] == timing["round"] == t
        assert not any(key.endswith("_seconds") for key in row)
        shown = [metric_text(row.get(key)) for key in (
            *ALGORITHMS["fedsdd"].scores, *ALGORITHMS["fedsdd"].columns)]
        assert line.split()[:5] == [f"{t}/2", *shown] and shown[0] == f"{row['accuracy']:.4f}"


def test_a_run_tells_what_differs_from_the_algorithms_defaults(finished):
    [line] = [line for line in finished[2].splitlines() if line.startswith("fedsdd: ")]
    own = {name: x.default for name, x in hyperparameters("fedsdd").items()}
    config = json.loads((finished[0] / "fedsdd-seed3" / "config.json").read_text())
    for name, value in config["hyperparameters"].items():
        told = f" {name} {text_of(value)} ({text_of(own[name])})"
        assert (told in line) == (value != own[name]) and line.count(f" {name} ") <= 1


def test_a_run_tells_how_long_each_method_is_and_which_flags_it_has_not(npz, capsys):
    main(f"--algo fedavg,fedgems,feddf --dataset {npz} --participation 1 --lr 1 --describe".split())
    above = capsys.readouterr().out.split("\n\n")[0]
    lines = {line.split(":")[0]: line for line in above.splitlines()}
    for algo, words in [("fedavg", "rounds 20, participation 1.0 (0.4), lr 1.0 (0.1)"),
                        ("feddf", "rounds 20, participation 1.0 (0.4), lr 1.0 (0.1)"),
                        ("fedgems", "rounds 10, lr 1.0 (0.001)")]:
        assert words in lines[algo]
        assert ("; it has no --participation" in lines[algo]) == (algo == "fedgems")


def test_a_run_tells_that_a_method_has_no_server_and_no_joint_layer(capsys):
    command = "--algo fedavg,fedmd --server-model mlp --public glyphs-letters --joint --describe"
    main(command.split())
    above = capsys.readouterr().out.split("\n\n")[0]
    fedavg, fedmd = [line for line in above.splitlines() if line.startswith(("fedavg:", "fedmd:"))]
    assert fedavg.endswith("; it has no --joint, --server-model")
    assert fedmd.endswith("; it has no --server-model")


def test_left_are_all_rounds_of_all_runs_at_their_methods_pace():
    """a: 2 of 4 rounds at 3 s. b: none yet, so at the mean of all. c: one run is complete."""
    def run(label, *seconds):
        return SimpleNamespace(rows=seconds, timings=[{"round_seconds": x} for x in seconds],
                               method=SimpleNamespace(label=label, hyperparameters={"rounds": 4}))
    runs = [run("a", 9, 2, 4), run("b"), run("c", 9, 1, 1, 1, 1), run("c")]
    every = (2 + 4 + 4 * 1) / 6
    assert seconds_left(runs) == pytest.approx(2 * 3 + 4 * every + 4 * 1)
    assert seconds_left([run("a", 9)]) is None


def test_several_runs_have_a_folder_each_and_a_mean_with_standard_deviation(finished):
    folder, _, printed = finished
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {
        f"{algo}-seed{seed}" for algo in ("fedavg", "fedsdd") for seed in (3, 5)}
    table = printed.split("\nalgorithm ")[1].splitlines()
    for algo, line in zip(("fedavg", "fedsdd"), table[1:3], strict=True):
        runs = [[row["accuracy"] for row in kept(folder / f"{algo}-seed{k}")] for k in (3, 5)]
        final, best = [run[-1] for run in runs], [max(run) for run in runs]
        expected = [f"{statistics.mean(x):.4f} ± {statistics.stdev(x):.4f}" for x in (final, best)]
        assert line.split()[:9] == [algo, "server", "2", *" ".join(expected).split()]
    assert table[3].split()[:2] == ["ensemble", "2"] and len(table) == 4


def test_describe_says_that_other_seeds_divide_the_images_otherwise(capsys, npz):
    for seeds, told in (("7", False), ("7,8", True), ("7,8 --split-seed 7", False)):
        main(["--algo", "fedavg", "--dataset", npz, *TINY, "--describe", "--seeds",
              *seeds.split()])
        [line] = [x for x in capsys.readouterr().out.splitlines() if "samples of each" in x]
        assert "seed 7" in line and ("other seeds" in line) == told


def test_describe_keeps_the_split_alone(npz, tmp_path):
    """The rows of all images that somebody has."""
    main(["--algo", "fedsdd", "--dataset", npz, *TINY, "--K", "2", "--seeds", "3,5", "--describe",
          "--validation", "0.1", "--out", str(tmp_path / "out")])
    assert contents(tmp_path / "out").keys() == {"split-seed3.npz", "split-seed5.npz"}
    found = readers.split(tmp_path / "out" / "split-seed3.npz")
    assert str(found.pop("dataset")).startswith("96 training and 40 test images")
    assert found.pop("test").tolist() == [*range(40)]
    assert found.keys() == {*(f"client_{i}" for i in range(4)), "public", "validation"}
    assert sorted(np.concatenate([*found.values()])) == [*range(96)]


def test_describe_prints_the_samples_of_each_class_and_client(capsys, npz):
    """And all settings, with the seed whose split it is; it trains nothing."""
    main(["--algo", "fedavg", "--dataset", npz, *TINY, *SHORT, "--seeds=7", "--describe"])
    printed = capsys.readouterr().out
    assert "seed 7" in printed and "MB up" not in printed
    for told in ("model mlp", "server_model cnn_large", "rounds 2", "partition iid"):
        assert told in printed
    lines = [line.split() for line in printed.split("client ")[-1].splitlines()]
    assert lines[0] == ["0", "1", "2"]                       # the classes of 96 samples
    counts = [[int(x) for x in row] for row in lines[1:5]]
    assert [row[0] for row in counts] == [0, 1, 2, 3]
    assert [sum(row[1:]) for row in counts] == [24] * 4
    assert [sum(column) for column in zip(*(row[1:] for row in counts))] == [32] * 3


@pytest.mark.parametrize("flags", ["--lr 1e30", "--server-lr 1e30", "--temperature 1e-30",
                                   "--algo fedsdd-ablations --local scaffold --lr 1e30",
                                   "--algo fedsdd-ablations --local fedprox --mu 1e30"])
def test_training_that_diverges_keeps_numbers_and_nulls(npz, tmp_path, flags):
    argv = ["--algo", "fedsdd", "--dataset", npz, *TINY, *SHORT_SDD, *flags.split()]
    [run] = main([*argv, "--out", str(tmp_path)])
    rows = kept(run.folder)
    assert len(rows) == 3 and all(0 <= row["accuracy"] <= 1 for row in rows)
    assert flags != "--lr 1e30" or rows[2]["bad_uploads"] == 4


def test_a_round_tells_how_many_models_have_diverged(npz, capsys):
    """Their accuracy is 0: argmax of nan would be class 0."""
    main(["--algo", "standalone", "--dataset", npz, *TINY, "--rounds", "2", "--lr", "1e30"])
    lines = [line for line in capsys.readouterr().out.splitlines() if re.match(" +[012]/2", line)]
    assert [("diverged models" in line, "0.0000" in line) for line in lines] == [
        (False, False), *[(True, True)] * 2]


def test_the_names_of_chosen_classes_are_printed(tmp_path, capsys):
    for part, name in itertools.product(("train", "test"), ("8", "9", "10")):
        folder = tmp_path / part / name
        folder.mkdir(parents=True)
        for i in range(20):
            Image.fromarray(np.full((8, 8), 12 * i, np.uint8)).save(folder / f"{i}.png")
    main(["--algo", "fedavg", "--dataset", str(tmp_path), *TINY, "--classes", "0,2", "--describe"])
    printed = capsys.readouterr().out
    assert "classes: 8, 10" in printed
    assert "\ntest images: 40; the answer 8 to all of them has an accuracy of 0.5000\n" in printed


@pytest.mark.parametrize("flags, text", [
    ("", "40; the answer 0 to all of them has an accuracy of 0.7000"),
    ("--public half", "20 (private half); the answer 0 to all of them has an accuracy of 0.7000"),
    ("--test-size 4", "4; the answer 0 to all of them has an accuracy of 0.7500")])
def test_a_run_tells_the_accuracy_of_a_constant_answer(npz, tmp_path, capsys, flags, text):
    """28 of 40 test images are of class 0; of four of them three."""
    path, labels = str(tmp_path / "x.npz"), np.array([0] * 28 + [1, 2] * 6)
    np.savez(path, **dict(np.load(npz)) | {"y_test": labels})
    main(["--algo", "fedavg", "--dataset", path, *TINY, "--describe", *flags.split()])
    assert f"\ntest images: {text}\n" in capsys.readouterr().out


def test_an_attack_is_printed_and_changes_the_numbers(capsys, npz, tmp_path):
    states, printed = {}, {}
    for name, flags in [("clean", ""), ("lie", "--attack lie"), ("ofom", "--attack ofom")]:
        argv = ["--algo", "fedgems", "--dataset", npz, *LOGITS, "--rounds", "2", *flags.split()]
        [run] = main([*argv, "--out", str(tmp_path / name)])
        states[name] = torch.load(run.folder / "checkpoint.pt", weights_only=True)["state"]
        printed[name] = capsys.readouterr().out
    z = statistics.NormalDist().inv_cdf((3 - 2) / 3)     # 4 clients, 1 malicious: s = 3 - 1 = 2
    assert f"lie by 1 of 4 clients, z {z:.3f}" in printed["lie"]
    malicious = sorted(make_rng(0, "attackers").choice(4, 2, replace=False).tolist())
    assert f"malicious clients: {malicious[0]}, {malicious[1]}" in printed["ofom"]
    assert "ofom by 2 of 4 clients, scale 10" in printed["ofom"]
    servers = [states[name]["server"] for name in ("clean", "lie", "ofom")]
    assert not any(same(a, b) for a, b in itertools.combinations(servers, 2))


def test_a_round_says_how_many_uploads_are_bad(capsys, npz):
    main(["--algo", "fedavg", "--dataset", npz, *TINY, *SHORT, "--rounds=1", "--lr=1e30"])
    assert re.search(r"bad uploads .*: 4", capsys.readouterr().out)


def test_megabytes_have_three_significant_digits():
    assert [megabytes(x * 2**20) for x in (0, 0.007629, 0.30303, 12.345, 1234.5)] == [
        "0", "0.00763", "0.303", "12.3", "1234"]


def test_main_leaves_the_callers_process_alone_and_returns_the_runs(npz):
    """With one process, which is the default for another's program."""
    threads, handlers = torch.get_num_threads(), [*map(signal.getsignal, (2, 13))]
    [run] = main(["--algo", "fedavg", "--dataset", npz, *TINY, *SHORT])
    assert [row["round"] for row in run.rows] == [0, 1, 2]
    assert [*map(signal.getsignal, (2, 13))] == handlers
    assert torch.get_num_threads() == threads and "RANK" not in os.environ
