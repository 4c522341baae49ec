"""Nothing is lost, nothing is doubled, and the numbers do not depend on kills, processes or the order of clients: same bytes."""
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_command_line import arrays, refused
from toys import federation, same, samples, without_seconds

import algorithms.fedavg as fedavg
import runs
from algorithms import ALGORITHMS, common, evaluation, fedbe, feddf, fedprox, fedsdd, scaffold
from fedkd_minimal import keywords, main

ROOT = Path(__file__).parent.parent
FLAGS = "--validation 0.1 --clients 6 --partition iid --threads 1 --rounds 5 --batch-size 16".split()
NETWORKS = "--model mlp --server-model mlp".split()
EDGES, EDGE_NETWORKS = ("fedgkt", "fedgkt-async", "split-learning"), "--model gkt_edge_small --server-model gkt_server_small".split()
OWN = {"local_epochs": 1, "participation": 0.7, "K": 2, "R": 2, "distill_steps": 3, "server_batch_size": 16, "check_every": 1, "samples": 2,
       "transfer_public_epochs": 1, "transfer_local_epochs": 1, "public_batch_size": 16, "server_epochs": 1}


DISTILLING = {   # what the algorithms with a server's student are given on toys
    feddf: {"distill_steps": 4, "server_batch_size": 4, "check_every": 2, "server_lr": 0.1},
    fedbe: {"distill": True, "distill_steps": 2, "server_batch_size": 4, "samples": 2},
    fedsdd: {"K": 2, "R": 3, "distill_steps": 2, "server_batch_size": 4}}


@pytest.fixture(scope="module")
def npz(tmp_path_factory):
    import numpy as np
    path = tmp_path_factory.mktemp("data") / "tiny.npz"
    np.savez(path, **arrays())
    return str(path)


def command(algos, npz, *more):
    values = OWN | ({"participation": 1.0} if "fedgkt-async" in algos else {})              # it has every client take part
    own = [f"--{name.replace('_', '-')}={value}" for name, value in values.items()
           if any(name in keywords(algo) for algo in algos.split(","))]
    networks = EDGE_NETWORKS if algos.split(",")[0] in EDGES else NETWORKS
    return ["--algo", algos, "--dataset", npz, "--public", "fifth", *FLAGS, *networks, *own, *map(str, more)]


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("metrics.jsonl"))}


@pytest.fixture(scope="module")
def finished(npz, tmp_path_factory):
    """A folder with a run of every algorithm, alone, in one process, from start to end."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    for algo in ALGORITHMS:
        main(command(algo, npz, "--out", folder / algo))
    return folder


@pytest.fixture(scope="module")
def uninterrupted(finished):
    """metrics.jsonl of every algorithm."""
    return {algo: (finished / algo / "metrics.jsonl").read_bytes() for algo in ALGORITHMS}


def fresh(code, *arguments):
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=170)


def under_torchrun(processes, *argv):
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes),
                           "fedkd_minimal.py", *map(str, argv)], cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    return done.stdout


# -------------------------------------------------------------------------------------- the seconds

TIMED = {   # beside the evaluation, which every algorithm has
    **dict.fromkeys(("fedavg", "fedprox", "scaffold", "fedbe"), {"collect"}),
    "feddf": {"collect", "distil"},
    **dict.fromkeys(("fedsdd", "fedsdd-ablations"), {"collect", "distil", "evaluate_ensemble"}),
    "fedmd": {"collect_logits"}, "fedmd-pooled": set(),
    **dict.fromkeys(("dsfl", "cronus"), {"collect_logits", "distil"}),
    **dict.fromkeys(("fedgem", "fedgems", "fedgems-ablations"), {"collect_logits", "train_server"}),
    **dict.fromkeys(("fedgkt", "fedgkt-async"), {"collect", "train_server"}),
    "split-learning": {"train_split"},
    **dict.fromkeys(("standalone", "public-private", "centralized", "centralized-all"), set())}


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_rounds_parts_are_timed_and_none_takes_longer_than_the_round(algo, finished):
    lines = (finished / algo / "timing.jsonl").read_text().splitlines()
    timings = [json.loads(line) for line in lines]
    assert [timing.pop("round") for timing in timings] == list(range(6))
    for t, timing in enumerate(timings):
        parts = {"round", "evaluate"} | (TIMED[algo] if t else set())
        assert timing.keys() == {f"{part}_seconds" for part in parts}
        assert all(0 <= seconds <= timing["round_seconds"] + 0.01 for seconds in timing.values())


# --------------------------------------------------------------------------------------------------------- the same bytes

@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(algo, npz, tmp_path, uninterrupted):
    main(command(algo, npz, "--out", tmp_path / "again"))
    main(command(algo, npz, "--out", tmp_path / "other", "--seeds", "1"))
    assert (tmp_path / "again" / "metrics.jsonl").read_bytes() == uninterrupted[algo]
    assert (tmp_path / "other" / "metrics.jsonl").read_bytes() != uninterrupted[algo]


def test_one_and_two_processes_give_the_same_bytes_and_both_train_clients(npz, tmp_path, uninterrupted):
    algos = ",".join(algo for algo in ALGORITHMS if algo not in EDGES)                      # FedGKT: see the next test
    printed = under_torchrun(2, *command(algos, npz, "--out", tmp_path / "two"))
    found = files(tmp_path / "two")
    assert found == {f"{algo}-seed0/metrics.jsonl": uninterrupted[algo] for algo in algos.split(",")}
    counts = [int(x) for x in printed.split("clients trained by each process:")[1].split()]
    weights, logits = 7 * 5 * 4, 5 * 5 * 2 * 6        # 7 algorithms, 5 rounds, 4 of 6 clients; 5, 5 rounds, 6 clients twice each
    fedmd, pooled, alone = (2 + 2 * 5) * 6, (1 + 5) * 6, 5 * ((1 + 6) + 6 + 1 + 2)    # transfer in two stages; a server is one more
    assert len(counts) == 2 and min(counts) > 0 and sum(counts) == weights + logits + fedmd + pooled + alone


def test_fedgkt_asynchronous_fedgkt_and_split_learning_in_two_processes_give_the_same_bytes(npz, tmp_path):
    more = ["--latencies", "1,2,3,1,2,10"]
    main(command(",".join(EDGES), npz, *more, "--out", tmp_path / "one"))
    under_torchrun(2, *command(",".join(EDGES), npz, *more, "--out", tmp_path / "two"))
    assert files(tmp_path / "one") == files(tmp_path / "two") and len(files(tmp_path / "one")) == 3


@pytest.mark.parametrize("module", [fedavg, fedprox, scaffold, feddf, fedbe, fedsdd])
def test_the_order_in_which_clients_run_does_not_matter(module, monkeypatch):
    settings = {"rounds": 3, "participation": 1.0, "local_epochs": 1, "batch_size": 2, "lr": 0.1}
    settings |= DISTILLING.get(module, {})
    fed = federation(validation=samples(20))
    forwards = list(module.run(fed, **settings))
    for shared in (common, evaluation):
        monkeypatch.setattr(shared, "in_parallel", lambda fn, ids, device: [fn(i) for i in ids[::-1]][::-1])
    for (a, state_a), (b, state_b) in zip(forwards, module.run(fed, **settings), strict=True):
        assert without_seconds(a) == without_seconds(b) and same(state_a, state_b)


# ------------------------------------------------------------------------------------------------------------------ kills

KILLED = """
import json, os, signal, sys
import torch
import fedkd_minimal, runs
moment, current = None, []
save, replace, write = runs.save, runs.replace, torch.save

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def half_written(checkpoint, path):
    if moment == "while the checkpoint is written" and current[-1] == 3:
        path.write_bytes(b"half of it")
        die()
    write(checkpoint, path)

def replaced(path, how):
    replace(path, how)
    if moment == "between checkpoint and metrics" and current and current[-1] == 3 and path.name == "checkpoint.pt":
        die()

def saved(folder, config, state, rows, timings):
    current.append(state["round"])
    save(folder, config, state, rows, timings)
    if moment == "after the round" and current[-1] == 3 or moment == "in the transfer phase" and current[-1] == -1:
        die()

runs.save, runs.replace, torch.save = saved, replaced, half_written
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1)        # the first optimiser imports for a second: once, not in each child
for moment, argv in json.loads(sys.argv[1]):                       # each run in a process of its own, forked before torch has threads
    child = os.fork()
    if child == 0:
        fedkd_minimal.main(argv)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL, argv
"""
MOMENTS = ["while the checkpoint is written", "between checkpoint and metrics", "after the round"]


def test_kill_9_and_resume_in_fresh_processes_give_the_same_bytes(npz, tmp_path, uninterrupted):
    """Every algorithm, killed in round 3, at one of three moments; then all of them go on in one other process."""
    killed = fresh(KILLED, json.dumps([(MOMENTS[number % 3], command(algo, npz, "--out", tmp_path / algo))
                                       for number, algo in enumerate(ALGORITHMS)]))
    assert killed.returncode == 0, killed.stderr
    for number, algo in enumerate(ALGORITHMS):
        rounds = len((tmp_path / algo / "metrics.jsonl").read_text().splitlines()) - 1
        assert rounds == (3 if number % 3 == 2 else 2)
    resumed = fresh("import sys, fedkd_minimal\nfor folder in sys.argv[1:]: fedkd_minimal.main(['--resume', folder])",
                    *(tmp_path / algo for algo in ALGORITHMS))
    assert resumed.returncode == 0, resumed.stderr
    for number, algo in enumerate(ALGORITHMS):
        assert (tmp_path / algo / "metrics.jsonl").read_bytes() == uninterrupted[algo], algo
        assert f"resumed after round {2 if number % 3 == 0 else 3}" in resumed.stdout.split(f"\n{algo}, seed 0")[1]


def test_kill_9_in_fedmds_transfer_phase_and_resume_gives_the_same_bytes(npz, tmp_path, uninterrupted):
    killed = fresh(KILLED, json.dumps([("in the transfer phase", command("fedmd", npz, "--out", tmp_path / "out"))]))
    assert killed.returncode == 0, killed.stderr
    assert torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)["state"]["round"] == -1
    assert (tmp_path / "out" / "metrics.jsonl").read_text() == ""
    main(["--resume", str(tmp_path / "out")])
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == uninterrupted["fedmd"]


def stopped_after(rounds, argv):
    """Ctrl-C after that many rounds of the first run whose rows get there."""
    save = runs.save

    def save_then_stop(folder, config, state, rows, timings):
        save(folder, config, state, rows, timings)
        if state["round"] == rounds:
            raise KeyboardInterrupt
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "save", save_then_stop)
        assert main(argv) == 130


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_ctrl_c_keeps_the_rounds_and_resume_gives_the_same_bytes(algo, npz, tmp_path, uninterrupted, capsys):
    stopped_after(2, command(algo, npz, "--out", tmp_path / "out"))
    assert f"--resume {tmp_path / 'out'}" in capsys.readouterr().out
    assert len((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()) == 3
    main(["--resume", str(tmp_path / "out")])
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == uninterrupted[algo]
    timings = [json.loads(line)["round"] for line in (tmp_path / "out" / "timing.jsonl").read_text().splitlines()]
    assert timings == list(range(6))


@pytest.mark.parametrize("algo, more", [("fedbe", ["--distill", "--posterior", "dirichlet"]), ("fedsdd", ["--secure-sum"]),
                                        ("fedsdd-ablations", ["--ensemble", "clients"]), ("feddf,fedsdd", ["--model", "mlp,cnn"]),
                                        ("feddf", ["--patience", "none", "--max-grad-norm", "none"])])
def test_other_modes_resume_in_one_process_or_in_two_with_the_same_bytes(algo, more, npz, tmp_path):
    argv = command(algo, npz, *more, "--participation", "1")
    main([*argv, "--out", str(tmp_path / "whole")])
    stopped_after(2, [*argv, "--out", str(tmp_path / "out")])
    if more[-1] == "mlp,cnn":                                           # processes take a while to start: once
        under_torchrun(2, "--resume", tmp_path / "out")
    else:
        main(["--resume", str(tmp_path / "out")])
    assert files(tmp_path / "out") == files(tmp_path / "whole") and files(tmp_path / "out")


def test_a_side_by_side_run_goes_on_where_it_was(npz, tmp_path, uninterrupted):
    """Stopped in its second algorithm: the first is not run again, the third not lost."""
    algos = "fedavg,fedsdd,fedprox"
    save, seen = runs.save, []

    def stop_in_second(folder, config, state, rows, timings):
        save(folder, config, state, rows, timings)
        seen.append((folder.name, state["round"]))
        if seen[-1] == ("fedsdd-seed0", 2):
            raise KeyboardInterrupt
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "save", stop_in_second)
        assert main(command(algos, npz, "--out", tmp_path / "out")) == 130
        stopped_at = len(seen)
        main(["--resume", str(tmp_path / "out")])
    assert {name for name, _ in seen[stopped_at:]} == {"fedsdd-seed0", "fedprox-seed0"}
    assert files(tmp_path / "out") == {f"{algo}-seed0/metrics.jsonl": uninterrupted[algo] for algo in algos.split(",")}


def test_rounds_may_grow_on_resume(npz, tmp_path, uninterrupted):
    short = [word if word != "5" else "3" for word in command("fedsdd", npz, "--out", tmp_path / "out")]
    main(short)
    main(["--resume", str(tmp_path / "out"), "--rounds", "5"])
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == uninterrupted["fedsdd"]


def test_resuming_a_finished_run_changes_nothing(npz, tmp_path):
    main(command("fedavg", npz, "--out", tmp_path / "out"))
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert main(["--resume", str(tmp_path / "out")]) == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_failing_write_keeps_the_last_checkpoint(npz, tmp_path, uninterrupted):
    write = torch.save

    def full_disk(checkpoint, path):
        if checkpoint["rows"][-1]["round"] == 3:
            path.write_bytes(b"half of it")
            raise OSError("no space left")
        write(checkpoint, path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "save", full_disk)
        with pytest.raises(OSError, match="no space left"):
            main(command("scaffold", npz, "--out", tmp_path / "out"))
    main(["--resume", str(tmp_path / "out")])
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == uninterrupted["scaffold"]


@pytest.mark.parametrize("module", [fedavg, fedprox, scaffold, feddf, fedbe, fedsdd])
def test_state_of_a_round_is_all_that_later_rounds_need(module, tmp_path):
    """Through a file, as plain tensors, from every round."""
    settings = {"rounds": 4, "participation": 0.5, "local_epochs": 1, "batch_size": 2, "lr": 0.1}
    settings |= DISTILLING.get(module, {})
    fed = federation(validation=samples(20))
    whole = list(module.run(fed, **settings))
    for t, (_, state) in enumerate(whole):
        torch.save(state, tmp_path / "state.pt")
        rest = list(module.run(fed, torch.load(tmp_path / "state.pt", weights_only=True), **settings))
        assert len(rest) == 4 - t
        for (a, state_a), (b, state_b) in zip(rest, whole[t + 1:], strict=True):
            assert without_seconds(a) == without_seconds(b) and same(state_a, state_b)


# -------------------------------------------------------------------------------------------------- resuming what is not

@pytest.fixture
def stopped(npz, tmp_path):
    stopped_after(2, command("fedavg", npz, "--out", tmp_path / "out"))
    return tmp_path / "out"


@pytest.mark.parametrize("flags", [["--lr", "0.2"], ["--seeds", "1"], ["--out", "x"], ["--algo", "fedavg"], ["--threads", "1"]])
def test_resume_takes_no_flag_but_rounds(stopped, capsys, flags):
    before = {path.name: path.read_bytes() for path in stopped.iterdir()}
    refused(capsys, ["--resume", stopped, *flags], "--resume takes no other flag", flags[0])
    assert {path.name: path.read_bytes() for path in stopped.iterdir()} == before


def test_rounds_may_not_shrink(stopped, capsys):
    refused(capsys, ["--resume", stopped, "--rounds", 4], "--rounds 4", "5")


def test_resuming_nothing_is_refused(tmp_path, capsys):
    refused(capsys, ["--resume", tmp_path], "holds no run")
    refused(capsys, ["--resume", tmp_path / "missing"], "holds no run")


@pytest.mark.parametrize("spoil, words", [
    (lambda out: (out / "checkpoint.pt").write_bytes((out / "checkpoint.pt").read_bytes()[:1000]), ["checkpoint.pt", "damaged"]),
    (lambda out: (out / "checkpoint.pt").write_bytes(b""), ["checkpoint.pt", "damaged"]),
    (lambda out: (out / "checkpoint.pt").unlink(), ["checkpoint.pt", "missing"]),
    (lambda out: torch.save({"weights": torch.ones(3)}, out / "checkpoint.pt"), ["checkpoint.pt", "not from this program"]),
    (lambda out: torch.save([1, 2], out / "checkpoint.pt"), ["checkpoint.pt", "not from this program"]),
    (lambda out: (out / "checkpoint.pt").write_bytes(pickle.dumps(print, protocol=2)), ["checkpoint.pt", "damaged"]),
    (lambda out: (out / "config.json").write_text("{"), ["config.json", "damaged"]),
    (lambda out: (out / "config.json").write_text("[]"), ["config.json", "damaged"]),
    (lambda out: (out / "config.json").unlink(), ["holds no run"]),
    (lambda out: (out / "config.json").write_text((out / "config.json").read_text().replace('"lr": 0.8', '"lr": 0.1')), ["other settings"]),
])
def test_a_spoilt_run_is_refused_in_one_line(stopped, capsys, spoil, words):
    spoil(stopped)
    before = {path.name: path.read_bytes() for path in stopped.iterdir()}
    refused(capsys, ["--resume", stopped], *words)
    assert {path.name: path.read_bytes() for path in stopped.iterdir()} == before


def test_nothing_is_executed_from_a_checkpoint(stopped, capsys, tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)
    torch.save({"state": Bomb()}, stopped / "checkpoint.pt")
    refused(capsys, ["--resume", stopped], "checkpoint.pt")
    assert not (tmp_path / "exploded").exists()


def test_nan_never_reaches_the_metrics():
    with pytest.raises(ValueError, match="JSON"):
        runs.dumps({"accuracy": float("nan")})
