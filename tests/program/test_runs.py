"""Nothing is lost or doubled, and no number depends on kills or on how many processes there are:
runs of every algorithm have the same bytes."""
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from commands import refused
from test_command_line import contents, kept

from algorithms import ALGORITHMS
from experiment import keep
from federation.parallel import packed, unpacked
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
           if any(name in ALGORITHMS[algo].hyperparameters for algo in algos.split(","))]
    networks = ("--model", "gkt_edge_small", "--server-model", "gkt_server_small")
    if algos.split(",")[0] not in EDGES:
        networks = ("--model", "mlp", "--server-model", "mlp")
    return ["--algo", algos, "--dataset", npz, *FLAGS.split(), *networks, *own, *map(str, more)]


def bytes_of(folder):
    return (folder / "metrics.jsonl").read_bytes()


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
def test_a_rounds_parts_are_timed_and_fit_into_it(algo, finished):
    timings = kept(finished[algo], "timing.jsonl")
    assert [timing.pop("round") for timing in timings] == list(range(ROUNDS + 1))
    for timing in timings:
        assert timing.keys() >= {"round_seconds", "evaluate_seconds"}
        assert all(0 <= x <= timing["round_seconds"] + 0.01 for x in timing.values())


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
    jobs = [(True, f"{out}/killed.txt", [command(algo, npz, "--out", out / algo)])
            for algo in ALGORITHMS]
    jobs += [(False, f"{out}/{algo}.txt", [["--resume", f"{out / algo}"]])
             for algo in ALGORITHMS]
    for kind, algos, processes in [
            ("edges", EDGES, 2), ("others", [a for a in ALGORITHMS if a not in EDGES], 3)]:
        several = command(",".join(algos), npz, "--processes", processes, "--out",
                          out / "several" / kind)
        jobs.append((False, f"{out}/{kind}.txt", [several]))
    return subprocess.Popen([sys.executable, "-c", ELSEWHERE, json.dumps(jobs)], cwd=ROOT,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def elsewhere(background):
    """A folder where other processes ran every algorithm: killed in round 2, while its checkpoint
    was written, and resumed in another process; and in two or three processes."""
    out, process = background["elsewhere"]
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    return out


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_kill_9_and_resume_give_the_same_bytes(algo, elsewhere, expected):
    assert bytes_of(elsewhere / algo) == expected[algo]
    assert [timing["round"] for timing in kept(elsewhere / algo, "timing.jsonl")] == list(
        range(ROUNDS + 1))
    [left] = contents(elsewhere / algo).keys() - {*keep.FILES}    # what the killed process wrote
    assert left.startswith("checkpoint.pt.")
    printed = (elsewhere / f"{algo}.txt").read_text()
    assert f"\n{algo}, seed 0: resumed after round 1\n" in printed


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_several_processes_give_the_same_bytes(algo, elsewhere, expected):
    kind = "edges" if algo in EDGES else "others"
    assert bytes_of(elsewhere / "several" / kind / f"{algo}-seed0") == expected[algo]


@pytest.mark.parametrize("sent", [
    torch.ones(2, 3), torch.ones(()), torch.ones(2, dtype=torch.bfloat16), torch.ones(2, 3)[:0],
    torch.tensor([True])], ids=["matrix", "scalar", "bfloat16", "no rows", "mask"])
def test_a_message_is_read_as_it_was_sent(sent):
    """No rows are sent once FedGEMS's server gets all public images right by itself."""
    [(name, got)] = unpacked(packed([("logits", sent)]), "cpu")
    assert (name, got.dtype) == ("logits", sent.dtype) and torch.equal(got, sent)


def started(lines):
    """What a program with these lines does in two processes: its standard output and error."""
    before = """
import os, signal
from types import SimpleNamespace
from federation.parallel import in_parallel
from experiment import processes
fed = SimpleNamespace(device="cpu")
def work():
"""
    text = before + lines + "\nprocesses.start(work, 2, '; --resume DIR continues')"
    return subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True)


several_processes = pytest.mark.skipif(sys.platform != "linux", reason="it forks")


@several_processes
def test_all_processes_train_clients():
    ended = started("    processes.say(in_parallel(fed, lambda i: os.getpid(), [0, 1, 2, 3, 4]))")
    numbers = ended.stdout.strip("[]\n").split(", ")
    assert len({*numbers}) == 2 and numbers[0::2] == [numbers[0]] * 3 and ended.returncode == 0


@several_processes
@pytest.mark.parametrize("number", [0, 1])
def test_an_error_in_one_process_alone_is_printed_and_ends_all(number):
    """The other one waits for it."""
    ended = started(f"""    assert processes.rank() != {number}, "its client has no samples"
    in_parallel(fed, lambda i: i, [0, 1])""")
    assert ended.returncode == 1 and "AssertionError: its client has no samples" in ended.stderr


@several_processes
@pytest.mark.parametrize("number", [0, 1])
def test_a_process_that_is_killed_ends_all_with_one_line(number):
    ended = started(f"""    if processes.rank() == {number}:
        os.kill(os.getpid(), signal.SIGKILL)
    in_parallel(fed, lambda i: i, [0, 1])""")
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1
    assert "was killed; --resume DIR continues" in ended.stderr


# ------------------------------------------------------------------------------- stops and resumes

def stopped_after(rounds, argv, algo=None):
    """Ctrl-C after that many rounds of the first run, or of this algorithm."""
    keep_round = keep.keep_round

    def keep_then_stop(run, fed, metrics, state):
        keep_round(run, fed, metrics, state)
        if state["round"] == rounds and algo in (None, run.label):
            raise KeyboardInterrupt
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(keep, "keep_round", keep_then_stop)
        main(argv)
    assert stop.value.code == 130


@pytest.mark.parametrize("algo, more", [
    ("fedbe", ["--distill", "--posterior", "dirichlet"]), ("fedsdd-ablations", ["--secure-sum"]),
    ("fedsdd-ablations", ["--ensemble", "clients"]),
    ("feddf", ["--patience", "none", "--max-grad-norm", "none"])])
def test_other_modes_resume_with_the_same_bytes(algo, more, npz, tmp_path):
    argv = command(algo, npz, *more, "--participation", "1")
    main([*argv, "--out", str(tmp_path / "whole")])
    stopped_after(2, [*argv, "--out", str(tmp_path / "out")])
    main(["--resume", str(tmp_path / "out")])
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")


def start_torchrun(npz, out):
    """The process of `torchrun`, which works while other tests run (conftest.py starts it)."""
    argv = command("feddf,fedsdd", npz, "--model", "mlp,cnn", "--participation", "1")
    main([*argv, "--out", str(out / "whole")])
    stopped_after(2, [*argv, "--out", str(out / "out")])
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "fedkd_minimal.py", "--resume", str(out / "out")],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def torchrun(background):
    """The folder of a run of two algorithms that was stopped, and resumed by two processes."""
    out, process = background["torchrun"]
    printed, _ = process.communicate(timeout=170)
    assert process.returncode == 0, printed
    return out


@pytest.mark.parametrize("name", ["feddf-seed0", "fedsdd-seed0"])
def test_torchrun_resumes_two_networks_with_the_same_bytes(name, torchrun):
    assert bytes_of(torchrun / "out" / name) == bytes_of(torchrun / "whole" / name)


def test_a_side_by_side_run_goes_on_where_it_was(npz, tmp_path, expected, capsys):
    """Stopped in its second algorithm: the first is not run again, the third not lost."""
    algos = ("fedavg", "fedsdd", "fedprox")
    stopped_after(2, command(",".join(algos), npz, "--out", tmp_path), algo="fedsdd")
    assert f"--resume {tmp_path} continues" in capsys.readouterr().out
    first = contents(tmp_path / "fedavg-seed0")   # run again, its seconds would be others
    assert len(kept(tmp_path / "fedsdd-seed0")) == 3
    main(["--resume", str(tmp_path)])
    assert contents(tmp_path / "fedavg-seed0") == first
    assert [bytes_of(tmp_path / f"{algo}-seed0") for algo in algos] == [
        expected[algo] for algo in algos]


# -------------------------------------------------------------------------- what cannot be resumed

@pytest.fixture(scope="module")
def first_stop(npz, tmp_path_factory):
    out = tmp_path_factory.mktemp("stopped") / "out"
    stopped_after(2, command("fedavg", npz, "--out", out))
    return out


@pytest.fixture
def stopped(first_stop, tmp_path):
    """A folder with a run that was stopped after two rounds."""
    return shutil.copytree(first_stop, tmp_path / "out")


@pytest.mark.parametrize("flags, words", [
    ("--lr 0.2", "lr 0.1, not 0.2"), ("--seeds 1", "does not hold all runs"),
    ("--algo fedprox", "does not hold all runs"), ("--threads 2", "threads 1, not 2"),
    ("--amp", "amp off, not on"), ("--clients 4", "clients 6, not 4"), ("--out x", "no --out"),
    ("--rounds 2", f"--rounds 2: fedavg was started with {ROUNDS} rounds")])
def test_resume_refuses_what_would_change_the_numbers(stopped, capsys, flags, words):
    before = contents(stopped)
    refused(capsys, ["--resume", stopped, *flags.split()], words)
    assert contents(stopped) == before


def test_a_run_from_another_machine_goes_on_as_it_was_started(stopped, expected, capsys):
    """With its threads, and with another device if that is given; config.json keeps the start."""
    path = stopped / "checkpoint.pt"
    found = torch.load(path, weights_only=True)
    found["config"]["environment"] |= {"device": "cuda:99", "torch": "2.4"}
    torch.save(found, path)
    refused(capsys, ["--resume", stopped], "'cuda:99' cannot be used", "--device cpu")
    main(["--resume", str(stopped), "--device", "cpu"])
    assert bytes_of(stopped) == expected["fedavg"]
    printed = capsys.readouterr().out
    assert "cuda:99 and continues with cpu: the last digits may differ" in printed
    assert "torch 2.4 and continues with" in printed
    environment = json.loads((stopped / "config.json").read_text())["environment"]
    assert (environment["device"], environment["torch"]) == ("cuda:99", "2.4")
    main(["--resume", str(stopped), "--rounds", str(ROUNDS + 1)])         # the device is kept, too


def test_two_commands_that_resume_one_folder_write_the_bytes_of_one(stopped, expected):
    argv = [sys.executable, "fedkd_minimal.py", "--resume", str(stopped), "--rounds", "9"]
    main(["--resume", str(shutil.copytree(stopped, stopped.parent / "alone")), "--rounds", "9"])
    both = [subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert bytes_of(stopped) == bytes_of(stopped.parent / "alone")
    assert contents(stopped).keys() == {*keep.FILES}


def test_a_folder_is_made_by_one_of_two_commands(npz, tmp_path, capsys, monkeypatch):
    """The second one finds config.json, which the first has just made."""
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(keep, "FILES", ())               # as if it had not been there before
    refused(capsys, command("fedavg", npz, "--out", tmp_path), "config.json", "exists")
    assert (tmp_path / "config.json").read_text() == "{}"


def turn_a_bit(path):
    """In a tensor, which would be other weights."""
    with zipfile.ZipFile(path) as file:
        weights = file.read(max(file.infolist(), key=lambda entry: entry.file_size))
    content = bytearray(path.read_bytes())
    content[content.index(weights) + 100] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name, spoil, word", [
    ("checkpoint.pt", turn_a_bit, "damaged"),
    ("checkpoint.pt", lambda path: path.write_bytes(path.read_bytes()[:1000]), "damaged"),
    ("checkpoint.pt", lambda path: path.write_bytes(b""), "damaged"),
    ("checkpoint.pt", lambda path: path.unlink(), "missing"),
    ("checkpoint.pt", lambda path: torch.save({"w": torch.ones(1)}, path), "not from this program"),
    ("checkpoint.pt", lambda path: torch.save([1, 2], path), "not from this program"),
    ("config.json", lambda path: path.write_text("{"), "damaged"),
    ("config.json", lambda path: path.write_text("[]"), "damaged"),
    ("checkpoint.pt", lambda path: path.write_bytes(b"x" * 1000), "damaged"),
    ("config.json", lambda path: path.unlink(), "holds no run")])
def test_a_spoilt_run_is_refused_in_one_line(stopped, capsys, name, spoil, word):
    spoil(stopped / name)
    before = contents(stopped)
    refused(capsys, ["--resume", stopped], name, word)
    assert contents(stopped) == before


def test_nothing_is_executed_from_a_checkpoint(stopped, capsys, tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)
    torch.save({"state": Bomb()}, stopped / "checkpoint.pt")
    refused(capsys, ["--resume", stopped], "checkpoint.pt")
    assert not (tmp_path / "exploded").exists()


def test_nan_never_reaches_the_metrics():
    with pytest.raises(ValueError, match="JSON"):
        keep.dumps({"accuracy": float("nan")})
