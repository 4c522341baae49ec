"""From a command to a run: bad input, help, and what a run prints and keeps."""
import contextlib
import io
import os
import re
import signal
import statistics

import numpy as np
import pytest
import torch
from commands import refused

import fedkd_minimal
import models
from algorithms import ALGORITHMS, fedavg, fedsdd_ablations
from data.load import DATASETS
from experiment.common import BadInput
from experiment.flags import field_names
from experiment.presets import PAPERS
from experiment.report import metric_text
from experiment.settings import read
from fedkd_minimal import main
from partition import PARTITIONS

TINY = "--model mlp --clients 4 --partition iid --threads 1".split()
SHORT = "--rounds 2 --local-epochs 1 --batch-size 16 --participation 1".split()
SHORT_SDD = [*SHORT, *"--K 2 --distill-steps 2 --server-batch-size 16".split()]


@pytest.fixture(scope="module")
def finished(npz, tmp_path_factory):
    """(records, printed) of two algorithms with two seeds each."""
    folder = tmp_path_factory.mktemp("runs") / "out"
    argv = ["--algo", "fedavg,fedsdd:R=2", "--dataset", npz, *TINY, *SHORT_SDD, "--seeds", "3,5"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        return main([*argv, "--out", str(folder)]), printed.getvalue()


# ---------------------------------------------------------------------------------------- bad input

REFUSED = """
--seeds 0 --rounds 3                  | --algo | fedsdd
--algo FedSDD                         | 'FedSDD', perhaps fedsdd;
--algo fedavg, fedsdd                 | --algo | empty word
--algo fedavg --epochs 1              | --epochs 1, perhaps --local-epochs
--algo fedavg --R 3                   | --R 3; --algo fedavg --help
--algo fedsdd:seeds=3                 | --seeds
--algo fedavg,fedavg                  | --algo
--algo fedavg --device abacus         | abacus
--algo fedavg NPZ --model cnn,resnet21 | resnet21 | resnet20
--algo fedgem NPZ --server-model gkt_server_small | server's network | images
--algo fedgkt NPZ                     | mlp | gkt_edge
--algo fedsdd NPZ                     | K = 4
--algo fedavg --partition dirichle    | dirichle: | dirichlet, | .npz
--algo fedavg --dataset nowhere       | nowhere
--algo fedgems --paper fedgems        | --paper | fedgems-homogeneous
--algo scaffold --paper fedgkt        | fedgkt | scaffold | fedavg
--algo fedsdd --paper fedsdd --dataset cifar100 | ImageNet-32
--algo fedmd,fedgems --public glyphs-letters | fedgems | --public half
--algo fedmd --public half --joint    | --joint
--algo fedgems --attack paf --attackers 20 | attackers is 20
--algo fedgems,scaffold --attack paf  | --attack | scaffold
--algo fedavg,split-learning --lr-patience 3 | --lr-patience | split-learning
--algo fedgkt --lr-patience 1 --validation none | --validation 0.1
"""


@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_bad_input_is_one_line_status_2_and_nothing_on_disk(capsys, tmp_path, npz, line):
    """NPZ: 4 clients, of which 2 are active in a round."""
    command, *words = line.split(" | ")
    command = command.replace("NPZ", f"--dataset {npz} {' '.join(TINY)}")
    refused(capsys, [*command.split(), "--out", tmp_path / "out"], *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("flag, outside, inside", [
    ("--clients", "0 2.5 two 99999999999999999999999", "1 7"), ("--seeds", "-1 2.5", "0 7"),
    ("--validation", "0 1 nan", "0.01 0.99"), ("--attack-z", "nan inf", "-1 0"),
    ("--server-lr", "0 -1 nan", "1e-9")])
def test_a_number_outside_its_range_is_refused(flag, outside, inside):
    for value in outside.split():
        with pytest.raises(BadInput, match=flag):
            read(["--algo", "fedsdd", f"{flag}={value}"])
    for value in inside.split():
        assert read(["--algo", "fedsdd", f"{flag}={value}"])


def test_an_error_is_one_line_of_the_first_process_alone(capsys, monkeypatch):
    argv = ["--algo", "fedavg", "--dataset", "no\nset"]
    refused(capsys, argv, "no set")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2 and capsys.readouterr() == ("", "")


# -------------------------------------------------------------------------------------- help, names

def printed_by(capsys, *argv):
    """What --list or --help prints before it ends the program."""
    with pytest.raises(SystemExit) as stop:
        main([*argv])
    assert not stop.value.code
    return capsys.readouterr().out


def test_list_prints_all_names(capsys):
    printed = printed_by(capsys, "--list")
    for name in (*ALGORITHMS, *DATASETS, *models.NETWORKS, *PARTITIONS, *PAPERS):
        assert name in printed


def test_help_has_the_files_own_text_and_every_field_of_its_config(capsys):
    """Also those of the Config that it extends; without --algo it is the program's text."""
    printed = printed_by(capsys, "--algo", "fedavg,fedsdd-ablations", "--help")
    for text in (fedavg.__doc__, fedsdd_ablations.__doc__, "    amp: bool = False",
                 *(f"\n    {name}: " for name in field_names(fedsdd_ablations.Config))):
        assert text in printed
    printed = printed_by(capsys, "-h")
    assert fedkd_minimal.__doc__ in printed and "    split_seed: " in printed


# -------------------------------------------------------------------------------- above the rounds

def described(capsys, *flags):
    main([*flags, "--describe"])
    return capsys.readouterr().out


def test_a_run_tells_that_a_default_halves_the_images_of_all_methods(npz, capsys):
    """Not where this was asked for."""
    argv = ["--dataset", npz, *TINY, "--algo", "fedavg,fedgems"]
    assert "all methods share the other half" in described(capsys, *argv)
    assert "other half" not in described(capsys, *argv, "--public", "half")


def test_a_run_tells_what_differs_from_defaults_and_which_flags_a_method_has_not(npz, capsys):
    printed = described(capsys, "--algo", "fedavg,fedmd", "--dataset", npz, *TINY, "--lr=1",
                        *"--participation 1 --server-model mlp --public glyphs --joint".split())
    for told in ("; rounds 20, participation 1.0 (default 0.4), lr 1.0 (default 0.1), other",
                 "; it has no --joint, --server-model\n",
                 "; rounds 10, lr 1.0 (default 0.001), other",
                 "; it has no --participation, --server-model\n"):
        assert told in printed


def test_a_run_tells_the_accuracy_of_a_constant_answer(npz, tmp_path, capsys):
    """28 of 40 test images are eels, six are owls. Classes keep their names if they are chosen."""
    names, data = np.array(["eel", "fox", "owl"]), dict(np.load(npz))
    labels = {"y_train": names[data["y_train"]], "y_test": names[[0] * 28 + [1, 2] * 6]}
    np.savez(tmp_path / "named.npz", **data | labels)
    argv = ["--algo", "fedavg", "--dataset", f"{tmp_path}/named.npz", *TINY]
    printed = described(capsys, *argv, "--classes", "0,2")
    assert "\nclasses: eel, owl\n" in printed
    assert "images: 34; the answer eel to all of them has an accuracy of 0.8235\n" in printed
    printed = described(capsys, *argv, "--public", "half")
    assert "20 (private half); the answer eel to all of them has an accuracy of 0.7000" in printed


def test_describe_prints_the_samples_of_each_class_and_client_and_writes_nothing(
        capsys, npz, tmp_path):
    printed = described(capsys, "--algo", "fedavg", "--dataset", npz, *TINY, *SHORT,
                        "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists() and "MB up" not in printed and "rounds 2" in printed
    head, *rows = [line.split() for line in printed.split("client ")[-1].splitlines()]
    counts = np.array(rows[:4], int)
    assert head == ["0", "1", "2"] and counts[:, 0].tolist() == [0, 1, 2, 3]
    assert counts[:, 1:].sum(0).tolist() == [32] * 3         # of 96 samples
    assert counts[:, 1:].sum(1).tolist() == [24] * 4


# --------------------------------------------------------------------------------------- the rounds

def test_a_run_prints_a_line_per_round(finished):
    records, printed = finished
    lines = printed.split("fedsdd:R=2, seed 3\n")[1].splitlines()
    for t, (line, row) in enumerate(zip(lines[1:4], records[1].rows, strict=True)):
        shown = [metric_text(row.get(key)) for key in lines[0].split()[1:5]]
        assert line.split()[:5] == [f"{t}/2", *shown] and shown[0] == f"{row['accuracy']:.4f}"


def test_several_runs_have_a_folder_each_and_a_mean_with_standard_deviation(finished):
    records, printed = finished
    assert [record.folder.name for record in records if record.folder.is_dir()] == [
        f"{name}-seed{seed}" for seed in (3, 5) for name in ("fedavg", "fedsdd-R=2")]
    _, fedavg, fedsdd, ensemble = printed.split("\nalgorithm ")[1].splitlines()
    for of_seeds, line in [(records[::2], fedavg), (records[1::2], fedsdd)]:
        runs = [[row["accuracy"] for row in record.rows] for record in of_seeds]
        for values in [run[-1] for run in runs], [max(run) for run in runs]:
            assert f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}" in line
    assert fedsdd.startswith("fedsdd:R=2") and ensemble.split()[:2] == ["ensemble", "2"]


@pytest.mark.parametrize("flags", ["--lr 1e30", "--temperature 1e-30"])
def test_training_that_diverges_has_numbers_and_tells_bad_uploads(npz, capsys, flags):
    [run] = main(["--algo", "fedsdd", "--dataset", npz, *TINY, *SHORT_SDD, *flags.split()])
    assert len(run.rows) == 3 and all(0 <= row["accuracy"] <= 1 for row in run.rows)
    told = re.findall("bad uploads .*: 4", capsys.readouterr().out)
    assert len(told) == (2 if flags == "--lr 1e30" else 0)


def test_an_attack_is_printed_and_changes_the_numbers(capsys, npz):
    argv = ["--algo", "fedavg", "--dataset", npz, *TINY, *SHORT]
    [clean], [attacked] = main(argv), main([*argv, "--attack", "ofom"])
    assert re.search("^malicious: clients [0-3], [0-3]$", capsys.readouterr().out, re.M)
    assert attacked.rows[1:] != clean.rows[1:]


def test_main_leaves_the_callers_process_alone_and_returns_the_runs(npz):
    """With one process, which is the default for another's program."""
    threads, handlers = torch.get_num_threads(), [*map(signal.getsignal, (2, 13))]
    [run] = main(["--algo", "fedavg", "--dataset", npz, *TINY, *SHORT])
    assert [row["round"] for row in run.rows] == [0, 1, 2]
    assert [*map(signal.getsignal, (2, 13))] == handlers
    assert torch.get_num_threads() == threads and "RANK" not in os.environ
