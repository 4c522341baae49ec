"""Whatever write a run is killed at, and whatever the process did before: the same bytes. One
folder has one run at a time. A full disk, a closed pipe or a plain terminal is no traceback."""
import contextlib
import dataclasses
import errno
import io
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_runs import ROOT, bytes_of, command, stopped_after
from toys import federation, refused

import fedkd_minimal
import runs
from algorithms import ALGORITHMS, fedbe, fedgems, fedsdd
from command_line import module_constant
from fedkd_minimal import main


class Killed(BaseException):
    """Ends a run as kill -9 does: nothing in the program catches it."""


def killed_at(step, argv):
    """True if the command was killed at its write number `step`: a file replaced, a line added."""
    writes = itertools.count()

    def counted(write, is_write):
        def write_or_die(value, *more, **options):
            if is_write(value) and next(writes) >= step:
                raise Killed
            return write(value, *more, **options)
        return write_or_die
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(runs.os, "replace", counted(os.replace, lambda temporary: True))
        patch.setattr(runs, "dumps", counted(runs.dumps, lambda value: "round" in value))
        main(argv)
        return False
    return True


@pytest.fixture(scope="module")
def short(npz, tmp_path_factory):
    """A command of two rounds, and the bytes of its uninterrupted run."""
    argv, folder = [*command("scaffold", npz), "--rounds", "2"], tmp_path_factory.mktemp("short")
    main([*argv, "--out", str(folder)])
    return argv, bytes_of(folder)


def test_killed_before_any_single_write_a_run_goes_on_with_the_same_bytes(short, tmp_path):
    step = 0
    while killed_at(step, [*short[0], "--out", str(tmp_path / str(step))]):
        if (tmp_path / str(step) / "config.json").exists():       # else nothing has begun
            main(["--resume", str(tmp_path / str(step))])
            assert bytes_of(tmp_path / str(step)) == short[1], step
        step += 1
    assert step == 2 + 3 * 3     # the config twice; checkpoint, metrics and timing of rounds 0 to 2


def test_killed_again_and_again_a_run_ends_with_the_same_bytes(short, tmp_path):
    assert killed_at(5, [*short[0], "--out", str(tmp_path)])        # two configs and round 0
    resume = ["--resume", str(tmp_path)]                            # each time a write further
    kills = itertools.takewhile(lambda step: killed_at(step, resume), itertools.count())
    assert len([*kills]) > 6 and bytes_of(tmp_path) == short[1]


@pytest.mark.parametrize("rounds, begun", [(0, "1"), (1, "1"), (1, "2")])
def test_a_stopped_run_with_cut_lines_grows_to_the_same_bytes(short, tmp_path, rounds, begun):
    stopped_after(rounds, [*short[0], "--rounds", begun, "--out", str(tmp_path)])
    for name in ("metrics.jsonl", "timing.jsonl"):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-7])
    main(["--resume", str(tmp_path), "--rounds", "2"])
    assert bytes_of(tmp_path) == short[1]
    assert len((tmp_path / "timing.jsonl").read_text().splitlines()) == 3


def test_a_run_neither_reads_nor_moves_torchs_global_generator(short, tmp_path):
    before = torch.manual_seed(123).get_state()
    main([*short[0], "--out", str(tmp_path)])
    assert bytes_of(tmp_path) == short[1]
    assert torch.equal(torch.get_rng_state(), before)


def test_seeds_side_by_side_give_the_bytes_of_each_alone(npz, tmp_path):
    for seeds in ("4,2", "4", "2"):
        main(command("fedsdd", npz, "--rounds", 2, "--seeds", seeds, "--out", tmp_path / seeds))
    alone = [bytes_of(tmp_path / seed) for seed in ("4", "2")]
    assert [bytes_of(tmp_path / "4,2" / f"fedsdd-seed{seed}") for seed in (4, 2)] == alone
    assert alone[0] != alone[1]


def test_ctrl_c_in_a_fresh_process_ends_with_130_and_how_to_go_on(npz, tmp_path):
    argv = command("fedavg", npz, "--rounds", 100000, "--out", tmp_path)
    with subprocess.Popen(
            [sys.executable, "fedkd_minimal.py", *argv], cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,     # who runs the tests may ignore it:
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler)) as run:
        assert any(line.startswith("  3/") for line in run.stdout)
        run.send_signal(signal.SIGINT)
        printed, errors = run.communicate(timeout=60)
    assert run.returncode == 130 and errors == "" and f"--resume {tmp_path} continues" in printed
    kept = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert kept["state"]["round"] == kept["rows"][-1]["round"] >= 3


# ------------------------------------------------------------------------- two runs, one folder

HOLD = """import fcntl, os, sys, time
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(100)"""


def test_a_folder_in_use_is_refused_until_its_process_is_killed(short, tmp_path, capsys):
    stopped_after(1, [*short[0], "--out", str(tmp_path)])
    (tmp_path / f"{runs.TEMPORARY}x").mkdir()            # as a kill leaves it
    holder = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout.readline() == b"held\n"
        before = sorted(tmp_path.iterdir())
        refused(capsys, ["--resume", tmp_path], f"{tmp_path} is in use by another process")
        assert sorted(tmp_path.iterdir()) == before
        holder.kill()
    assert main(["--resume", str(tmp_path)]) == 0 and bytes_of(tmp_path) == short[1]
    assert {path.name for path in tmp_path.iterdir()} == {*runs.FILES}


def test_a_sweep_holds_its_folder_and_those_of_all_its_runs(npz, tmp_path, capsys, monkeypatch):
    folders = [tmp_path, *(tmp_path / f"fedavg-seed{seed}" for seed in (0, 1))]
    argv, held = command("fedavg", npz, "--seeds=0,1", "--rounds=1", "--out", tmp_path), []

    def try_all(*save_arguments):
        for folder in folders:
            with pytest.raises(ValueError, match=f"{folder} is in use"), runs.lock(folder):
                pass
            held.append(folder)
    folders[1].mkdir()
    with runs.lock(folders[1]):
        refused(capsys, argv, f"{folders[1]} is in use")
    monkeypatch.setattr(runs, "save", try_all)
    main(argv)
    assert held == 4 * folders                           # rounds 0 and 1 of two runs


def test_a_run_that_began_and_ended_meanwhile_is_not_overwritten(short, tmp_path, monkeypatch,
                                                                 capsys):
    load = fedkd_minimal.federation.load

    def load_while_another_runs(flags):
        monkeypatch.setattr(fedkd_minimal.federation, "load", load)
        main([*short[0], "--out", str(tmp_path)])
        return load(flags)
    monkeypatch.setattr(fedkd_minimal.federation, "load", load_while_another_runs)
    refused(capsys, [*short[0], "--out", tmp_path], "already holds a run")
    assert bytes_of(tmp_path) == short[1]


def test_two_writers_of_a_file_do_not_meet(tmp_path):
    path = tmp_path / "file"

    def write(temporary):
        temporary.write_text("first")
        runs.replace(path, lambda other: other.write_text("second"))
    runs.replace(path, write)
    assert path.read_text() == "first" and [*tmp_path.iterdir()] == [path]


# ------------------------------------------------------------------ where nothing can be printed

def test_a_full_disk_is_one_line_and_every_finished_round_is_kept(short, tmp_path, capsys):
    def full(path, content):
        write(path, content[:1000])
        if next(writes) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, content)
    write, writes = Path.write_bytes, itertools.count()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(Path, "write_bytes", full)
        main([*short[0], "--out", str(tmp_path)])
    error = capsys.readouterr().err
    assert stop.value.code == 1 and error.count("\n") == 1
    assert "No space left" in error and f"--resume {tmp_path} continues" in error
    assert {path.name for path in tmp_path.iterdir()} == {*runs.FILES}
    assert main(["--resume", str(tmp_path)]) == 0 and bytes_of(tmp_path) == short[1]


@pytest.mark.parametrize("error, status, words", [
    (BrokenPipeError(errno.EPIPE, "closed"), 141, ""), (OSError(errno.ENOSPC, "full"), 1, "full")])
def test_output_that_nobody_takes_ends_a_run_that_can_go_on(short, tmp_path, capsys, monkeypatch,
                                                           error, status, words):
    """141 is 128 + SIGPIPE, as of other Unix programs before `| head`; Python's exit adds nothing:
    what is left goes to the null device."""
    class Output(io.StringIO):
        def flush(self):
            if "  1/2 " in self.getvalue():
                raise error

        def fileno(self):
            return number
    number = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(sys, "stdout", Output())
    with pytest.raises(SystemExit) as stop:
        main([*short[0], "--out", str(tmp_path / "out")])
    assert stop.value.code == status and os.fstat(number).st_rdev == os.stat("/dev/null").st_rdev
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == bool(words)
    monkeypatch.undo()
    main(["--resume", str(tmp_path / "out")])
    assert bytes_of(tmp_path / "out") == short[1]


def test_an_ascii_terminal_gets_every_text(short, monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    for algo in ALGORITHMS:
        with pytest.raises(SystemExit) as stop:
            main(["--algo", algo, "--help"])
        assert stop.value.code == 0
    main(["--list"])
    main(short[0])
    printed = output.buffer.getvalue().decode("ascii")
    assert "factor temperature^2" in printed and " +- - " in printed and "?" not in printed


def test_ctrl_c_while_torch_is_imported_or_data_are_loaded(short, tmp_path, monkeypatch, capsys):
    (tmp_path / "torch.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    done = subprocess.run(
        [sys.executable, "fedkd_minimal.py"], cwd=ROOT, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")

    def load(flags):
        raise KeyboardInterrupt
    monkeypatch.setattr(fedkd_minimal.federation, "load", load)
    assert main([*short[0], "--out", str(tmp_path / "out")]) == 130
    assert capsys.readouterr().out == "\nstopped before the first round\n"
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------------------- as a library

@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_federation_without_the_public_data_is_refused_before_any_work(algo):
    run, use = ALGORITHMS[algo], module_constant(algo, "PUBLIC")
    settings = {"distill": True} if algo == "fedbe" else {}
    if use != "none":
        with pytest.raises(ValueError, match="needs public images: "):
            run(dataclasses.replace(federation(), public=None), **settings)
    if use in ("labelled", "joint"):
        with pytest.raises(ValueError, match="needs public images with labels: "):
            run(federation())


def test_it_is_refused_in_an_algorithms_own_file_too():
    without = dataclasses.replace(federation(), public=None)
    for module in (fedgems, fedsdd):
        with pytest.raises(ValueError, match=f"{module.__name__}.run needs public"):
            module.run(without)
    next(fedbe.run(without))                             # its ensemble only predicts
