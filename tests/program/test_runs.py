"""Nothing that a run keeps is lost or doubled, no number depends on stops or on how many processes
there are, and a folder that does not fit is refused."""
import json
import os
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from commands import EDGES, ROOT, ROUNDS, bytes_of, command, contents, kept, refused, stopped_after

from algorithms import ALGORITHMS
from experiment import keep
from fedkd_minimal import main

KINDS = [",".join(EDGES), ",".join(algo for algo in ALGORITHMS if algo not in EDGES)]


@pytest.fixture(scope="module")
def finished(npz, tmp_path_factory):
    """The folder of a run of every algorithm, in this process and without a stop."""
    out = tmp_path_factory.mktemp("finished")
    for algos in KINDS:
        main(command(algos, npz, "--out", out))
    return out


@pytest.fixture(scope="module")
def expected(finished):
    """{algorithm: the bytes of its metrics}."""
    return {algo: bytes_of(finished / f"{algo}-seed0") for algo in ALGORITHMS}


# ------------------------------------------------------------------------- the same bytes, always

def start_elsewhere(npz, out):
    """The process of `elsewhere`, which works while other tests run (conftest.py starts it)."""
    argvs = [command(algos, npz, "--out", out, *more) for algos in KINDS for more in (
        ["--processes", 3, "--rounds", 1], ["--processes", 2])]
    program = "import json, sys, fedkd_minimal; [*map(fedkd_minimal.main, json.loads(sys.argv[1]))]"
    return subprocess.Popen([sys.executable, "-c", program, json.dumps(argvs)], cwd=ROOT,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def elsewhere(background):
    """The folder of a round of every algorithm in three processes, and of the others in two."""
    out, process = background["elsewhere"]
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    return out


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_with_several_processes_and_after_a_stop_the_bytes_are_the_same(algo, expected, elsewhere):
    folder = elsewhere / f"{algo}-seed0"
    assert bytes_of(folder) == expected[algo]
    assert contents(folder).keys() == {*keep.FILES}
    timings = kept(folder, "timing.jsonl")
    assert [timing["round"] for timing in timings] == [*range(ROUNDS + 1)]
    assert all(timing["round_seconds"] > 0 for timing in timings)


def start_torchrun(npz, out):
    """The process of `torchrun`, which works while other tests run (conftest.py starts it)."""
    argv = command("feddf,fedsdd-ablations", npz, "--model", "mlp,cnn", "--participation", "1")
    main([*argv, "--out", str(out / "whole")])
    stopped_after(2, [*argv, "--out", str(out / "out")])
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "fedkd_minimal.py", *argv, "--out", str(out / "out")],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def torchrun(background):
    """(folder, printed) of a run of two algorithms that was stopped; two processes went on."""
    out, process = background["torchrun"]
    printed, _ = process.communicate(timeout=170)
    assert process.returncode == 0, printed
    return out, printed


def test_torchrun_goes_on_with_two_networks_with_the_same_bytes(torchrun):
    out, printed = torchrun
    for name in "feddf-seed0", "fedsdd-ablations-seed0":
        assert bytes_of(out / "out" / name) == bytes_of(out / "whole" / name)
    assert printed.count("cpu, 2 processes of torchrun\n") == 1


@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="this machine has no NVIDIA GPU")
def test_a_gpu_gives_the_same_bytes_twice(npz, tmp_path):
    environment = {**os.environ}
    del environment["CUDA_VISIBLE_DEVICES"]                  # conftest.py hides the GPUs
    for out in "once", "again":
        for algos in KINDS:
            argv = command(algos, npz, "--device", "cuda", "--out", tmp_path / out)
            subprocess.run([sys.executable, "fedkd_minimal.py", *argv], cwd=ROOT, env=environment,
                           check=True)
    for algo in ALGORITHMS:
        once, again = (bytes_of(tmp_path / out / f"{algo}-seed0") for out in ("once", "again"))
        assert once == again, algo


@pytest.mark.parametrize("algo, more", [
    ("fedsdd-ablations", "--secure-sum"), ("fedgems", "--attack ofom --lr-patience 1")])
def test_other_modes_go_on_with_the_same_bytes(algo, more, npz, tmp_path):
    argv = command(algo, npz, *more.split())
    main([*argv, "--out", str(tmp_path / "whole")])
    stopped_after(2, [*argv, "--out", str(tmp_path / "out")])
    main([*argv, "--out", str(tmp_path / "out")])
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")


def test_a_longer_command_adds_seeds_algorithms_and_rounds_to_a_folder(npz, tmp_path, expected):
    """Stopped in its second algorithm: the first is not run again, the third not lost."""
    stopped_after(2, command("fedavg,fedsdd,fedprox", npz, "--out", tmp_path), algo="fedsdd")
    first = contents(tmp_path / "fedavg-seed0")
    assert len(kept(tmp_path / "fedsdd-seed0")) == 3
    records = main(command("fedprox,fedavg,fedsdd,fedntd", npz, "--seeds", "0,1", "--out",
                           tmp_path))
    for name in "metrics.jsonl", "timing.jsonl":         # run again, its seconds would be others
        assert contents(tmp_path / "fedavg-seed0")[name] == first[name]
    for algo in "fedavg", "fedsdd", "fedprox", "fedntd":
        assert bytes_of(tmp_path / f"{algo}-seed0") == expected[algo]
    main(command("fedntd", npz, "--seeds", "1", "--out", tmp_path / "alone"))
    assert bytes_of(tmp_path / "fedntd-seed1") == bytes_of(tmp_path / "alone") != expected["fedntd"]
    assert [len(record.rows) for record in records] == [ROUNDS + 1] * 8
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {
        "split-seed0.npz", "split-seed1.npz"}                # and no lock is left


# ------------------------------------------------------------------------------- what is refused

@pytest.fixture(scope="module")
def first_stop(npz, tmp_path_factory):
    out = tmp_path_factory.mktemp("stopped") / "out"
    stopped_after(2, command("fedavg", npz, "--out", out))
    return out


@pytest.fixture
def stopped(first_stop, tmp_path):
    """The folder of a command that was stopped after two rounds."""
    return shutil.copytree(first_stop, tmp_path / "out")


@pytest.mark.parametrize("algo, flags, words", [
    ("fedavg", "--lr 0.2", "lr 0.1, not 0.2"), ("fedavg", "--clients 4", "clients 6, not 4"),
    ("fedavg", "--rounds 1", "has 2 rounds, more than 1"),
    ("fedavg", "--augment", "augment off, not on"),
    ("fedavg", "--lr 0.2 --seeds 1", "lr 0.1, not 0.2"),                       # of another seed
    ("fedprox", "--validation 0.2", "validation 0.1, not 0.2"),      # beside a run on other data
    ("fedavg", "--seeds 1 --algo fedavg:lr=0.1 --classes 0,2", "classes none, not 0,2")])
def test_a_folder_of_other_settings_is_refused_in_one_line(
        stopped, npz, capsys, algo, flags, words):
    before = contents(stopped)
    argv = [*command(algo, npz, "--out", stopped), *flags.split()]
    refused(capsys, argv, stopped / "fedavg-seed0", words, "--out")
    assert contents(stopped) == before


def test_a_setting_that_is_newer_than_a_run_has_its_default_there(stopped, npz, capsys, expected):
    path = stopped / "fedavg-seed0" / "config.json"
    config = json.loads(path.read_text())
    del config["settings"]["weight_decay"], config["data"]["per_class"]
    path.write_text(json.dumps(config))
    refused(capsys, [*command("fedavg", npz, "--out", stopped), "--weight-decay", "0.5"],
            "weight_decay", "not 0.5")
    main(command("fedavg", npz, "--out", stopped))
    assert bytes_of(stopped) == expected["fedavg"]


def test_a_renamed_folder_is_not_taken_for_another_run(stopped, npz, capsys):
    """Its config.json says whose it is."""
    (stopped / "fedavg-seed0").rename(stopped / "fedavg-seed1")
    refused(capsys, [*command("fedavg", npz, "--out", stopped), "--seeds", "1"],
            "holds a run of fedavg, seed 0: choose another --out")


def test_an_algorithm_joins_with_data_that_it_would_not_choose(npz, tmp_path, capsys):
    """FedAvg alone has neither public nor validation images; FedBE needs none to predict."""
    argv = [*command("fedavg", npz), "--public", "none", "--validation", "none"]
    main([*argv, "--out", str(tmp_path)])
    main([*argv, "--algo", "fedavg,fedbe", "--out", str(tmp_path)])
    assert len(kept(tmp_path / "fedbe-seed0")) == ROUNDS + 1
    joins = [*argv, "--algo", "fedsdd", "--public", "fifth", "--out", tmp_path]
    refused(capsys, joins, "public none, not fifth: choose another --out")


def test_a_data_set_is_known_by_its_content_wherever_its_file_is(
        stopped, npz, tmp_path, capsys, expected):
    arrays = dict(np.load(npz))
    np.savez(tmp_path / "other.npz", **arrays | {"y_test": np.roll(arrays["y_test"], 1)})
    for algo in "fedavg", "fedprox":
        refused(capsys, command(algo, str(tmp_path / "other.npz"), "--out", stopped),
                "holds a run with dataset")
    shutil.copy(npz, tmp_path / "moved.npz")
    main(command("fedavg", str(tmp_path / "moved.npz"), "--out", stopped))
    assert bytes_of(stopped) == expected["fedavg"]


def test_a_kept_split_gives_the_runs_bytes_again(npz, tmp_path):
    """Of a run whose seed is 3, and for each seed of another command the same split."""
    flags = ["--rounds", 1, "--public", "half", "--test-size", 20, "--seeds"]
    main(command("fedgems", npz, *flags, 3, "--out", tmp_path / "a"))
    split = tmp_path / "a" / "split-seed3.npz"
    for name, more in ("b", ["--partition", split]), ("c", ["--split-seed", 3]):
        main(command("fedgems", npz, *flags, "3,4", *more, "--out", tmp_path / name))
        [again] = (tmp_path / name).glob("split-seed*.npz")      # of all seeds
        assert again.read_bytes() == split.read_bytes()
        one, other = (bytes_of(tmp_path / name / f"fedgems-seed{seed}") for seed in (3, 4))
        assert one == bytes_of(tmp_path / "a") != other


def test_a_run_goes_on_with_its_split_alone(npz, tmp_path, capsys):
    """It is known by its content, wherever its file is."""
    def argv(file):
        return command("fedavg", npz, "--partition", file, "--out", tmp_path / "out")

    main(command("fedavg", npz, "--rounds", 1, "--out", tmp_path / "a"))
    split, moved, other = (tmp_path / name for name in ("a/split-seed0.npz", "b.npz", "c.npz"))
    stopped_after(1, argv(shutil.copy(split, moved)))
    rows = dict(np.load(split))
    np.savez(other, **rows | {"client_0": rows["client_1"], "client_1": rows["client_0"]})
    refused(capsys, argv(other), "holds a run with partition 6 clients, checksum ")
    main(argv(split))
    assert len(kept(tmp_path / "out" / "fedavg-seed0")) == ROUNDS + 1


def test_a_run_from_another_machine_goes_on_and_says_so(stopped, npz, expected, capsys):
    """config.json keeps what it was begun with."""
    path = stopped / "fedavg-seed0" / "config.json"
    config = json.loads(path.read_text())
    config["environment"] |= {"device": "cuda", "torch": "2.4", "cpu": "AVX"}
    path.write_text(json.dumps(config))
    for _ in range(2):                                   # when it is complete, too
        main(command("fedavg", npz, "--out", stopped))
        assert "begun with torch 2.4, device cuda, cpu AVX: " in capsys.readouterr().out
    assert bytes_of(stopped) == expected["fedavg"] and json.loads(path.read_text()) == config


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_says_whether_files_were_changed(tmp_path, monkeypatch):
    program = tmp_path / "experiment" / "keep.py"
    program.parent.mkdir()
    program.write_text("1")
    for words in ("init", "add .", "-c user.name=a -c user.email=a@a commit -m x"):
        subprocess.run(["git", "-C", tmp_path, *words.split()], check=True, capture_output=True)
    monkeypatch.setattr(keep, "__file__", str(program))
    commit = keep.commit.__wrapped__                         # it is read once in a process
    clean = commit()
    assert len(clean) >= 7
    program.write_text("2")
    assert commit() == f"{clean}-dirty"


def turn_a_bit(path):
    """In a tensor, which would be other weights."""
    with zipfile.ZipFile(path) as file:
        weights = file.read(max(file.infolist(), key=lambda entry: entry.file_size))
    content = bytearray(path.read_bytes())
    content[content.index(weights) + 100] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name, spoil", [
    ("checkpoint.pt", turn_a_bit),
    ("checkpoint.pt", lambda path: path.write_bytes(path.read_bytes()[:1000])),
    ("checkpoint.pt", lambda path: path.unlink()),           # its metrics.jsonl would be lost
    ("checkpoint.pt", lambda path: torch.save([1, 2], path)),
    ("config.json", lambda path: path.write_text("{")),
    ("config.json", lambda path: path.write_text('{"data": 3}')),
    ("config.json", lambda path: path.unlink()),
    ("older", lambda path: rewrite(path, '"format": 2', '"format": 1')),
    ("older", lambda path: rewrite(path, '"settings"', '"hyperparameters"'))])
def test_a_spoilt_or_older_run_is_refused_in_one_line(stopped, npz, capsys, name, spoil):
    file = "checkpoint.pt" if name == "checkpoint.pt" else "config.json"
    spoil(stopped / "fedavg-seed0" / file)
    before = contents(stopped)
    refused(capsys, command("fedavg", npz, "--out", stopped), name)
    assert contents(stopped) == before


def rewrite(path, old, new):
    path.write_text(path.read_text().replace(old, new))


def test_nothing_is_executed_from_a_checkpoint(stopped, npz, capsys, tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)
    torch.save({"state": Bomb()}, stopped / "fedavg-seed0" / "checkpoint.pt")
    refused(capsys, command("fedavg", npz, "--out", stopped), "checkpoint.pt")
    assert not (tmp_path / "exploded").exists()


def test_an_out_that_cannot_be_used_is_refused(stopped, npz, tmp_path, capsys):
    """A file; a folder that may not be written; the folder of a run, not the one above."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "closed").mkdir(mode=0o555)
    for out in (tmp_path / "file", tmp_path / "file" / "x", stopped / "fedavg-seed0",
                *[tmp_path / "closed"] * (os.geteuid() > 0)):
        before = contents(tmp_path)
        refused(capsys, command("fedavg", npz, "--out", out), out)
        assert contents(tmp_path) == before
