"""Nothing is lost or doubled, and no number depends on kills or on how many processes there are:
runs of every algorithm have the same bytes."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import child, refused, status_of
from test_command_line import contents, hyperparameters, kept
from toys import same

from algorithms import ALGORITHMS
from experiment import keep, processes
from federation import pack, parallel_map, unpack
from fedkd_minimal import main

ROOT = Path(__file__).parents[2]
ROUNDS = 3
FLAGS = "--validation 0.1 --clients 6 --partition iid --threads 1 --batch-size 16 --public fifth"
OWN = {    # of the hyperparameters with these names
    "rounds": ROUNDS, "local_epochs": 1, "participation": 0.7, "K": 2, "R": 2, "distill_steps": 3,
    "server_batch_size": 16, "check_every": 1, "samples": 2, "transfer_public_epochs": 1,
    "transfer_local_epochs": 1, "public_batch_size": 16, "server_epochs": 1}
EDGES = ("fedgkt", "fedgkt-async", "split-learning")


def command(algos, npz, *more):
    """The command line of a short run; FedGKT and split learning have networks of their own."""
    own = [f"--{name.replace('_', '-')}={value}" for name, value in OWN.items()
           if any(name in hyperparameters(algo) for algo in algos.split(","))]
    networks = ("--model", "gkt_edge_small", "--server-model", "gkt_server_small")
    if algos.split(",")[0] not in EDGES:
        networks = ("--model", "mlp", "--server-model", "mlp")
    return ["--algo", algos, "--dataset", npz, *FLAGS.split(), *networks, *own, *map(str, more)]


def bytes_of(folder):
    """The metrics of the one run in the folder of a command, or of a run."""
    [path] = folder.rglob("metrics.jsonl")
    return path.read_bytes()


@pytest.fixture(scope="module")
def finished(npz, tmp_path_factory):
    """{algorithm: its folder}: each alone, in this process."""
    folders = {algo: tmp_path_factory.mktemp("finished") / algo for algo in ALGORITHMS}
    for algo, folder in folders.items():
        main(command(algo, npz, "--out", folder))
    return folders


@pytest.fixture(scope="module")
def expected(finished):
    """{algorithm: the bytes of its metrics}."""
    return {algo: bytes_of(folder) for algo, folder in finished.items()}


# ------------------------------------------------------------------------------------- the seconds

@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_round_is_timed(algo, finished):
    timings = kept(finished[algo] / f"{algo}-seed0", "timing.jsonl")
    assert [timing.pop("round") for timing in timings] == list(range(ROUNDS + 1))
    assert all(timing.keys() == {"round_seconds", "ended"} for timing in timings)
    ended = [timing["ended"] for timing in timings]
    assert ended == sorted(ended) and 0 <= time.time() - ended[-1] < 3600
    assert all(timing["round_seconds"] > 0 for timing in timings)


# --------------------------------------------------------------------------- kills, two processes

ELSEWHERE = """
import json, os, signal, sys, traceback
import torch
import fedkd_minimal
from experiment import keep
killed, write, writes = False, keep.Path.write_bytes, []

def half_written(path, content):         # of round 2: its checkpoint is the third
    writes.extend([path] * path.name.startswith("checkpoint.pt"))
    if killed and len(writes) == 3:
        write(path, b"half of it")
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, content)

def child(argvs, printed):
    pid = os.fork()                # before torch has threads; its first optimizer imports for long
    if pid == 0:
        sys.stdout = open(printed, "w")
        try:
            for argv in argvs:
                fedkd_minimal.main(argv)
            sys.stdout.flush()
            os._exit(0)
        finally:                   # whatever happened: nothing of the parent's is done twice
            traceback.print_exc()
            os._exit(1)
    return pid

keep.Path.write_bytes = half_written
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1)
for killed, printed, argvs in json.loads(sys.argv[1]):
    _, status = os.waitpid(child(argvs, printed), 0)
    assert status == (signal.SIGKILL if killed else 0), (argvs, status)
"""


def start_elsewhere(npz, out):
    """The process of `elsewhere`, which works while other tests run (conftest.py starts it)."""
    jobs = [(killed, f"{out}/{algo}.txt", [command(algo, npz, "--out", out / algo)])
            for killed in (True, False) for algo in ALGORITHMS]
    for kind, algos, number in [
            ("edges", EDGES, 2), ("others", [a for a in ALGORITHMS if a not in EDGES], 3)]:
        several = command(",".join(algos), npz, "--processes", number, "--out",
                          out / "several" / kind)
        jobs.append((False, f"{out}/{kind}.txt", [several]))
    return subprocess.Popen([sys.executable, "-c", ELSEWHERE, json.dumps(jobs)], cwd=ROOT,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def elsewhere(background):
    """A folder where other processes ran every algorithm: killed in round 2, while its checkpoint
    was written, and given again in another process; and in two or three processes."""
    out, process = background["elsewhere"]
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    return out


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_after_kill_9_the_same_command_gives_the_same_bytes(algo, elsewhere, expected):
    folder = elsewhere / algo / f"{algo}-seed0"
    assert bytes_of(folder) == expected[algo]
    assert [timing["round"] for timing in kept(folder, "timing.jsonl")] == [*range(ROUNDS + 1)]
    [left] = contents(folder).keys() - {*keep.FILES}         # what the killed process wrote
    assert left.startswith("checkpoint.pt.")
    assert re.findall(r"^ +(\d)/", (elsewhere / f"{algo}.txt").read_text(), re.M) == ["2", "3"]


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_several_processes_give_the_same_bytes(algo, elsewhere, expected):
    kind = "edges" if algo in EDGES else "others"
    assert bytes_of(elsewhere / "several" / kind / f"{algo}-seed0") == expected[algo]


ON_GPU = """
import json, sys
from fedkd_minimal import main

for argv in json.loads(sys.argv[1]):
    main(argv, is_program=True)
"""


@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="this machine has no NVIDIA GPU")
def test_a_gpu_gives_the_same_bytes_twice(npz, tmp_path):
    argvs = [command(algo, npz, "--device", "cuda", "--out", tmp_path / turn / algo)
             for turn in ("once", "again") for algo in ALGORITHMS]
    environment = {**os.environ}
    del environment["CUDA_VISIBLE_DEVICES"]                  # conftest.py hides the GPUs
    subprocess.run([sys.executable, "-c", ON_GPU, json.dumps(argvs)], cwd=ROOT, env=environment,
                   check=True)
    for algo in ALGORITHMS:
        assert bytes_of(tmp_path / "once" / algo) == bytes_of(tmp_path / "again" / algo), algo


@pytest.mark.parametrize("sent", [
    torch.ones(2, 3), torch.ones(()), torch.ones(2, dtype=torch.bfloat16), torch.ones(2, 3)[:0],
    torch.tensor([True])], ids=["matrix", "scalar", "bfloat16", "no rows", "mask"])
def test_a_message_is_read_as_it_was_sent(sent):
    """No rows are sent once FedGEMS's server gets all public images right by itself."""
    assert same(unpack(pack({3: (sent, [sent])}), "cpu"), {3: (sent, [sent])})


def started(work, tmp_path):
    """(exit status, standard output, standard error) of a program that does work(fed) in two
    processes."""
    def program(argv, is_program):
        processes.start(lambda: work(SimpleNamespace(device="cpu")), 2, "; go on")

    with child(program, [], tmp_path / "errors") as (number, printed):
        return status_of(number), printed.read(), (tmp_path / "errors").read_text()


several_processes = pytest.mark.skipif(sys.platform != "linux", reason="it forks")


@several_processes
def test_all_processes_train_clients(tmp_path):
    def work(fed):
        found = parallel_map(fed, range(5), lambda i: os.getpid())
        processes.say([*found.values()])

    status, printed, _ = started(work, tmp_path)
    numbers = printed.strip("[]\n").split(", ")
    assert len({*numbers}) == 2 and numbers[0::2] == [numbers[0]] * 3 and status == 0


@several_processes
@pytest.mark.parametrize("rank", "01")
def test_an_error_in_one_process_alone_is_printed_and_ends_all(rank, tmp_path):
    """The other one waits for it."""
    def work(fed):
        assert os.environ["RANK"] != rank, "its client has no samples"
        parallel_map(fed, [0, 1], lambda i: i)

    status, _, errors = started(work, tmp_path)
    assert status == 1 and "AssertionError: its client has no samples" in errors


@several_processes
@pytest.mark.parametrize("rank", "01")
def test_a_process_that_is_killed_ends_all_with_one_line(rank, tmp_path):
    def work(fed):
        if os.environ["RANK"] == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        parallel_map(fed, [0, 1], lambda i: i)

    status, _, errors = started(work, tmp_path)
    assert status == 1 and errors.count("\n") == 1 and "was killed; go on" in errors


# -------------------------------------------------------------------- stops, and the command again

def stopped_after(rounds, argv, algo=None):
    """Ctrl-C after that many rounds of the first run, or of this algorithm."""
    keep_round = keep.keep_round

    def keep_then_stop(run, metrics, state):
        keep_round(run, metrics, state)
        if state["round"] == rounds and algo in (None, run.method.label):
            raise KeyboardInterrupt
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(keep, "keep_round", keep_then_stop)
        main(argv)
    assert stop.value.code == 130


@pytest.mark.parametrize("algo, more", [
    ("fedbe", ["--distill", "--posterior", "dirichlet"]), ("fedsdd-ablations", ["--secure-sum"]),
    ("fedsdd-ablations", ["--ensemble", "clients"]), ("fedgems", ["--attack", "ofom"]),
    ("fedgems", ["--lr-patience", "1"]),
    ("feddf", ["--patience", "none", "--max-grad-norm", "none"])])
def test_other_modes_go_on_with_the_same_bytes(algo, more, npz, tmp_path):
    all_clients = ["--participation=1"] * ("participation" in hyperparameters(algo))
    argv = command(algo, npz, *more, *all_clients)
    main([*argv, "--out", str(tmp_path / "whole")])
    stopped_after(2, [*argv, "--out", str(tmp_path / "out")])
    main([*argv, "--out", str(tmp_path / "out")])
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")


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
    """The folder of a run of two algorithms that was stopped; two processes went on with it."""
    out, process = background["torchrun"]
    printed, _ = process.communicate(timeout=170)
    assert process.returncode == 0, printed
    return out


@pytest.mark.parametrize("name", ["feddf-seed0", "fedsdd-ablations-seed0"])
def test_torchrun_goes_on_with_two_networks_with_the_same_bytes(name, torchrun):
    assert bytes_of(torchrun / "out" / name) == bytes_of(torchrun / "whole" / name)


def test_a_longer_command_adds_seeds_algorithms_and_rounds_to_a_folder(npz, tmp_path, expected):
    """Stopped in its second algorithm: the first is not run again, the third not lost."""
    stopped_after(2, command("fedavg,fedsdd,fedprox", npz, "--out", tmp_path), algo="fedsdd")
    first = contents(tmp_path / "fedavg-seed0")   # run again, its seconds would be others
    assert len(kept(tmp_path / "fedsdd-seed0")) == 3
    runs = main(command("fedprox,fedavg,fedsdd,fedntd", npz, "--seeds", "0,1", "--out", tmp_path))
    assert contents(tmp_path / "fedavg-seed0") == first
    algos = ("fedavg", "fedsdd", "fedprox", "fedntd")
    assert [bytes_of(tmp_path / f"{algo}-seed0") for algo in algos] == [
        expected[algo] for algo in algos]
    assert bytes_of(tmp_path / "fedavg-seed1") != expected["fedavg"]
    assert [len(run.rows) for run in runs] == [ROUNDS + 1] * 8
    main(command("fedavg", npz, "--rounds", "2", "--out", tmp_path / "short"))
    main(command("fedavg", npz, "--out", tmp_path / "short"))
    assert bytes_of(tmp_path / "short") == expected["fedavg"]
    config = json.loads((tmp_path / "short" / "fedavg-seed0" / "config.json").read_text())
    assert config["hyperparameters"]["rounds"] == ROUNDS


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
    ("fedavg", "--lr 0.2", "lr 0.1, not 0.2"), ("fedavg", "--augment", "augment off, not on"),
    ("fedavg", "--clients 4", "clients 6, not 4"), ("fedavg", "--rounds 2", "rounds 3, not 2"),
    ("fedavg", "--model cnn", "model mlp, not cnn"), ("fedavg", "--classes 0,2", "classes none"),
    ("fedavg", "--attack paf", "attack none, not paf"),
    ("fedavg", "--lr 0.2 --seeds 1", "lr 0.1, not 0.2: add --lr 0.1, or"),     # of another seed
    ("fedprox", "--validation 0.2", "validation 0.1, not 0.2"),      # beside a run on other data
    ("fedavg,fedprox", "--public half", "public fifth, not half")])
def test_a_folder_of_other_settings_is_refused_in_one_line(
        stopped, npz, capsys, algo, flags, words):
    before = contents(stopped)
    argv = [*command(algo, npz, "--out", stopped), *flags.split()]
    refused(capsys, argv, stopped / "fedavg-seed0", words, "--out")
    assert contents(stopped) == before


def test_a_refusal_says_what_to_type_to_join_the_folder(stopped, npz, capsys):
    for algo, more, expected in [                        # fedprox may augment
            ("fedprox", "--public none --augment", "--public fifth"),
            ("fedavg", "--augment --lr 1 --attack paf --public none --seeds 1",
             "--public fifth --no-augment --attack none --attackers none --lr 0.1")]:
        argv = [*command(algo, npz, "--out", stopped), *more.split()]
        [advice] = re.findall("add (.*), or", refused(capsys, argv))
        assert advice == expected
        main([*argv, *advice.split()])


def test_a_renamed_folder_is_not_taken_for_another_run(stopped, npz, capsys):
    """Its config.json says whose it is: of other settings, or of another seed."""
    shutil.copytree(stopped / "fedavg-seed0", stopped / "fedavg-seed1")
    (stopped / "fedavg-seed0").rename(stopped / "fedavg-lr=0.5-seed0")
    for more in "--algo fedavg:lr=0.5", "--seeds 1":
        refused(capsys, [*command("fedavg", npz, "--out", stopped), *more.split()],
                "holds a run of fedavg, seed 0: choose another --out")


def test_an_algorithm_joins_with_data_that_it_would_not_choose(npz, tmp_path, capsys):
    """FedAvg alone has neither public nor validation images; FedBE needs none to predict."""
    argv = [*command("fedavg", npz), "--public", "none", "--validation", "none"]
    main([*argv, "--out", str(tmp_path)])
    main([*argv, "--algo", "fedavg,fedbe", "--out", str(tmp_path)])
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {
        "fedavg-seed0", "fedbe-seed0"}
    refused(capsys, [*argv, "--algo", "fedsdd", "--out", tmp_path], "fedsdd needs public images")
    alone = ["--algo", "fedsdd-ablations", "--K", "1", "--students"]
    main([*argv, *alone, "none", "--out", str(tmp_path)])
    refused(capsys, [*argv, *alone, "main", "--out", tmp_path], "needs public images")
    joins = [*argv, "--algo", "fedsdd", "--public", "fifth", "--out", tmp_path]
    assert "add" not in refused(capsys, joins, "public none, not fifth: choose another --out")


@pytest.mark.parametrize("key", ["x_train", "y_test"])
def test_a_data_set_is_known_by_its_content_wherever_its_file_is(
        stopped, npz, tmp_path, capsys, expected, key):
    arrays = dict(np.load(npz))
    np.savez(tmp_path / "other.npz", **arrays | {key: np.roll(arrays[key], 1, axis=0)})
    refused(capsys, command("fedavg", str(tmp_path / "other.npz"), "--out", stopped),
            "holds a run with dataset", "training and")
    refused(capsys, command("fedprox", str(tmp_path / "other.npz"), "--out", stopped), "dataset")
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
        [kept] = (tmp_path / name).glob("split-seed*.npz")       # of all seeds
        assert kept.read_bytes() == split.read_bytes()
        one, other = (bytes_of(tmp_path / name / f"fedgems-seed{seed}") for seed in (3, 4))
        assert one == bytes_of(tmp_path / "a") != other


def test_a_run_goes_on_with_its_split_alone(npz, tmp_path, capsys):
    """It is known by its content, wherever its file is; the file in the folder stays."""
    def argv(file):
        return command("fedavg", npz, "--partition", file, "--out", tmp_path, "--test-size", 9)

    def write(file, **rows):
        parts = np.array_split(np.arange(60), 6)
        own = {f"client_{i}": part for i, part in enumerate(parts)}
        own |= {"public": np.arange(60, 70), "validation": np.arange(70, 80)}
        np.savez(file, **own | rows)

    own, moved, other = (tmp_path / f"{name}.npz" for name in ("split-seed0", "moved", "other"))
    write(own)
    before = own.read_bytes()
    stopped_after(1, argv(own))
    write(moved)
    write(other, client_0=np.arange(9), client_1=np.arange(9, 20))       # one image moves
    refused(capsys, argv(other), "holds a run with partition 6 clients, checksum ",
            f"add --partition {own}, or")
    refused(capsys, command("fedavg", npz, "--out", tmp_path, "--test-size", 9),
            f"add --split-seed 0 --partition {own}, or")
    assert own.read_bytes() == before
    main(argv(moved))
    assert len(kept(tmp_path / "fedavg-seed0")) == ROUNDS + 1
    write(moved, public=np.arange(61, 71), validation=[60, *range(71, 80)])      # as many
    refused(capsys, argv(moved), "holds a run with partition", ": choose another --out")


def test_of_two_commands_at_once_one_keeps_its_settings(npz, tmp_path, monkeypatch, capsys):
    """The other has made the folder after this one looked into it."""
    folder, find = tmp_path / "fedavg-seed0", keep.find

    def find_and_wait(record):
        find(record)
        folder.mkdir()
        other = record.config | {"hyperparameters": record.config["hyperparameters"] | {"lr": 9}}
        (folder / "config.json").write_text(json.dumps(other))
    monkeypatch.setattr(keep, "find", find_and_wait)
    refused(capsys, command("fedavg", npz, "--out", tmp_path), "holds a run with lr 9")
    assert json.loads((folder / "config.json").read_text())["hyperparameters"]["lr"] == 9


def test_a_command_that_has_fallen_behind_deletes_no_round(npz, tmp_path, monkeypatch):
    """A longer one ran in the meantime; what it kept stays."""
    keep_round, kept = keep.keep_round, []

    def stopped_before_round_1(record, metrics, state):
        if state["round"] == 1 and not kept:
            kept.append(b"")                             # the other's rounds are not stopped
            main(command("fedavg", npz, "--out", tmp_path))
            kept.append(bytes_of(tmp_path))
        keep_round(record, metrics, state)
    monkeypatch.setattr(keep, "keep_round", stopped_before_round_1)
    main(command("fedavg", npz, "--out", tmp_path, "--rounds", 1))
    assert bytes_of(tmp_path) == kept[1] and kept[1].count(b"\n") == 4


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
def test_config_names_the_commit_of_the_program_and_whether_files_were_changed(
        stopped, tmp_path, monkeypatch):
    def git(*words):
        return subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@a",
                               *words], check=True, capture_output=True, text=True).stdout.strip()
    def commit():
        keep.commit.cache_clear()
        return keep.commit()
    assert "commit" in json.loads((stopped / "fedavg-seed0" / "config.json").read_text())[
        "environment"]
    program = tmp_path / "experiment" / "keep.py"
    program.parent.mkdir()
    program.write_text("1")
    monkeypatch.setattr(keep, "__file__", str(program))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit() is None
    for words in ["init"], ["add", "."], ["commit", "-m", "x"]:
        git(*words)
    assert commit() == git("rev-parse", "--short", "HEAD")
    edits = []
    for text in "2", "3":                                # two programs, and neither is the commit
        program.write_text(text)
        edits.append(commit())
        assert re.fullmatch(git("rev-parse", "--short", "HEAD") + "-dirty-[0-9a-f]{8}", edits[-1])
    assert edits[0] != edits[1]
    monkeypatch.setenv("PATH", "")
    assert commit() is None
    keep.commit.cache_clear()


def test_two_at_once_with_one_folder_write_the_bytes_of_one(stopped, npz):
    argv = command("fedavg", npz, "--rounds", "9", "--out")
    main([*argv, str(shutil.copytree(stopped, stopped.parent / "alone"))])
    errors = stopped.parent / "errors"
    with (child(main, [*argv, stopped], errors) as (one, _),
          child(main, [*argv, stopped], errors) as (other, _)):
        assert [status_of(one), status_of(other)] == [0, 0]
    assert bytes_of(stopped) == bytes_of(stopped.parent / "alone")
    assert contents(stopped / "fedavg-seed0").keys() == {*keep.FILES}


def test_of_two_new_commands_with_one_folder_one_makes_it(stopped, npz, capsys, monkeypatch):
    """The other one has looked before config.json was there."""
    before = contents(stopped)
    monkeypatch.setattr(keep, "find", lambda run: None)
    monkeypatch.setattr(keep.Path, "exists", lambda path: False)
    refused(capsys, command("fedavg", npz, "--out", stopped), "config.json")
    assert contents(stopped) == before


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
    ("checkpoint.pt", lambda path: path.write_bytes(b"")),
    ("checkpoint.pt", lambda path: path.unlink()),
    ("checkpoint.pt", lambda path: torch.save({"w": torch.ones(1)}, path)),
    ("checkpoint.pt", lambda path: torch.save([1, 2], path)),
    ("config.json", lambda path: path.write_text("{")),
    ("config.json", lambda path: path.write_text("")),
    ("config.json", lambda path: path.write_text("[]")),
    ("config.json", lambda path: path.write_text('{"name": "of another program"}')),
    ("config.json", lambda path: path.write_text('{"data": 3}')),
    ("config.json", lambda path: path.unlink())])
def test_a_spoilt_run_is_refused_in_one_line(stopped, npz, capsys, name, spoil):
    spoil(stopped / "fedavg-seed0" / name)
    before = contents(stopped)
    refused(capsys, command("fedavg", npz, "--out", stopped), name)
    assert contents(stopped) == before


def test_a_run_of_an_older_version_is_refused_in_one_line(stopped, npz, capsys):
    """Its states may be laid out in another way."""
    path = stopped / "fedavg-seed0" / "config.json"
    path.write_text(path.read_text().replace('"format": 2', '"format": 1'))
    refused(capsys, command("fedavg", npz, "--out", stopped), "older version")


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


def test_nan_never_reaches_the_metrics():
    with pytest.raises(ValueError, match="JSON"):
        keep.dumps({"accuracy": float("nan")})
