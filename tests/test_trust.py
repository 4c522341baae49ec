"""Whatever write a run is killed at, and whatever the process did before: the same bytes."""
import contextlib
import dataclasses
import errno
import io
import itertools
import os
import signal
import subprocess
import sys

import pytest
import torch
from test_runs import ROOT, bytes_of, command, stopped_after
from toys import federation as toy
from toys import labelled, refused

import federation
import runs
from algorithms import ALGORITHMS, fedbe, fedgems
from algorithms.common import no_server_model
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


def test_a_sweep_holds_its_folder_and_those_of_all_its_runs(npz, tmp_path, capsys, monkeypatch):
    resume = ["--resume", tmp_path]       # also from inside the run, which still holds its folder
    monkeypatch.setattr(runs, "save", lambda *all: refused(capsys, resume, f"{tmp_path} is in use"))
    for argv in (command("fedavg", npz, "--seeds=0,1", "--rounds=1", "--out", tmp_path), resume):
        for folder in (tmp_path, tmp_path / "fedavg-seed0", tmp_path / "fedavg-seed1"):
            folder.mkdir(exist_ok=True)
            with runs.lock(folder):
                refused(capsys, argv, f"{folder} is in use")
        assert main([*map(str, argv)]) == 0


def test_a_run_that_began_and_ended_meanwhile_stays(short, tmp_path, capsys, monkeypatch):
    argv, load = [*short[0], "--out", str(tmp_path)], federation.load
    monkeypatch.setattr(federation, "load", lambda flags: (
        monkeypatch.undo(), main(argv), load(flags))[-1])
    refused(capsys, argv, "already holds a run")
    assert bytes_of(tmp_path) == short[1]


def test_two_writers_of_a_file_do_not_meet(tmp_path):
    def write(temporary):
        temporary.write_text("first")
        runs.replace(tmp_path / "file", lambda other: other.write_text("second"))
    runs.replace(tmp_path / "file", write)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["first"]


@pytest.mark.parametrize("place, number, status, words", [
    ("disk", errno.ENOSPC, 1, "continues"), ("stdout", errno.ENOSPC, 1, "standard output: "),
    ("stdout", errno.EPIPE, 141, "")])
def test_after_a_write_or_print_that_fails_every_finished_round_is_kept(
        short, tmp_path, capsys, place, number, status, words):
    """141 is 128 + SIGPIPE. The null device takes the rest: Python's exit prints nothing."""
    write, file, writes = runs.Path.write_bytes, os.open(tmp_path, os.O_RDONLY), itertools.count()
    def written(path, content):
        write(path, content[:1000])
        if next(writes) == 2:
            raise OSError(number, "failed")
        write(path, content)
    def flushed(output):
        if "  1/2 " in output.getvalue():
            raise OSError(number, "failed")
    Output = type("Output", (io.StringIO,), {"flush": flushed, "fileno": lambda output: file})
    patches = {"disk": (runs.Path, "write_bytes", written), "stdout": (sys, "stdout", Output())}
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(*patches[place])
        main([*short[0], "--out", str(tmp_path / "out")])
    error = capsys.readouterr().err
    assert stop.value.code == status and words in error and error.count("\n") == bool(words)
    assert place == "disk" or os.fstat(file).st_rdev == os.stat(os.devnull).st_rdev
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*runs.FILES}
    main(["--resume", str(tmp_path / "out")])
    assert bytes_of(tmp_path / "out") == short[1]


def test_an_ascii_terminal_gets_every_text(short, monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    for argv in (*(["--algo", algo, "--help"] for algo in ALGORITHMS), ["--list"], short[0]):
        with contextlib.suppress(SystemExit):
            main(argv)
    printed = output.buffer.getvalue().decode("ascii")
    assert "factor temperature^2" in printed and " +- - " in printed and "?" not in printed


def test_ctrl_c_while_torch_is_imported_or_data_are_loaded(short, tmp_path, monkeypatch, capsys):
    (tmp_path / "torch.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    done = subprocess.run(
        [sys.executable, "fedkd_minimal.py"], cwd=ROOT, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
    monkeypatch.setattr(federation, "load",
                        lambda flags: signal.default_int_handler(signal.SIGINT, None))
    assert main([*short[0], "--out", str(tmp_path / "out")]) == 130
    printed = capsys.readouterr().out
    assert printed == "\nstopped before the first round\n" and not (tmp_path / "out").exists()


def test_an_algorithm_asks_for_its_public_data_before_any_work():
    without = dataclasses.replace(toy(), public=None)
    for algo, run in ALGORITHMS.items():
        if module_constant(algo, "PUBLIC") != "none":
            with pytest.raises(ValueError, match="needs public images: "):
                next(run(without, **({"distill": True} if algo == "fedbe" else {})))
    with pytest.raises(ValueError, match="needs the labels"):
        next(fedgems.run(toy()))
    server = dataclasses.replace(labelled(), server_model=no_server_model)
    with pytest.raises(ValueError, match="needs a network of the server: "):
        next(fedgems.run(server))
    next(fedbe.run(without))                             # its ensemble only predicts
