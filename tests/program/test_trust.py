"""However a command ends, by a kill, a full disk, Ctrl-C or a mistake: what it has kept is whole,
it says why in one line, and it goes on with the same bytes."""
import contextlib
import errno
import itertools
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from commands import bytes_of, child, command, contents, kept, refused, status_of

from algorithms import fedavg
from data import split
from experiment import keep
from fedkd_minimal import main

several_processes = pytest.mark.skipif(sys.platform != "linux", reason="it forks")


class Killed(BaseException):
    """Ends a run as kill -9 does: nothing in the program catches it."""


def killed_at(step, argv):
    """True if the command was killed while it wrote its file number `step`."""
    writes, replace = itertools.count(), os.replace

    def replace_or_die(temporary, path):
        if next(writes) >= step:
            os.truncate(temporary, 9)
            raise Killed
        replace(temporary, path)
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(keep.os, "replace", replace_or_die)
        main(argv)
        return False
    return True


@pytest.fixture(scope="module")
def short(npz, tmp_path_factory):
    """A command of two rounds, and the bytes of its uninterrupted run."""
    argv, folder = [*command("scaffold", npz), "--rounds", "2"], tmp_path_factory.mktemp("short")
    main([*argv, "--out", str(folder)])
    return argv, bytes_of(folder)


def test_killed_in_any_single_write_a_run_goes_on_with_the_same_bytes(short, tmp_path):
    for step in itertools.count():
        out = tmp_path / str(step)
        if not killed_at(step, [*short[0], "--out", str(out)]):
            break
        main([*short[0], "--out", str(out)])
        assert bytes_of(out) == short[1], step
        names = {f"scaffold-seed0/{name}" for name in keep.FILES}
        assert contents(out).keys() == {"split-seed0.npz", *names}       # and no temporary
    assert step == 2 + 3 * 3     # config, split; checkpoint, metrics, timing of rounds 0 to 2


def test_after_a_write_that_fails_every_finished_round_is_kept(short, tmp_path, capsys):
    write, writes = keep.Path.write_bytes, itertools.count()

    def written(path, content):
        write(path, content[:1000])
        if next(writes) == 2 + 3:                            # the checkpoint of round 1
            raise OSError(errno.ENOSPC, "no space")
        write(path, content)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(keep.Path, "write_bytes", written)
        main([*short[0], "--out", str(tmp_path)])
    error = capsys.readouterr().err
    assert stop.value.code == 1 and error.count("\n") == 1
    assert "no space" in error and "goes on" in error
    assert {path.name for path in tmp_path.glob("*/*")} == {*keep.FILES}
    assert len(kept(tmp_path / "scaffold-seed0")) == 1
    main([*short[0], "--out", str(tmp_path)])
    assert bytes_of(tmp_path) == short[1]


def test_a_closed_pipe_ends_a_run_silently_and_it_goes_on_with_the_same_bytes(short, tmp_path):
    argv = [*short[0], "--out", tmp_path / "out"]
    with child(argv, tmp_path / "errors") as (number, printed):
        assert any(line.startswith("  0/") for line in printed)
        printed.close()
        assert status_of(number) in (-signal.SIGPIPE, 128 + signal.SIGPIPE)     # it has children
    assert (tmp_path / "errors").read_text() == ""
    main([*map(str, argv)])
    assert bytes_of(tmp_path / "out") == short[1]


# ------------------------------------------------------------------------- one and two processes

one_and_two = pytest.mark.parametrize("processes", [
    1, pytest.param(2, marks=several_processes)])


@contextlib.contextmanager
def endless(npz, tmp_path, processes):
    """A command that never ends, when it has finished a round: yields (its number, those of its
    children, what it prints)."""
    argv = command("fedavg", npz, "--rounds", 100000, "--processes", processes, "--out",
                   tmp_path / "out")
    with child(argv, tmp_path / "errors") as (number, printed):
        assert any(line.startswith("  1/") for line in printed)
        children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
        yield number, [*map(int, children)], printed


def have_ended(numbers):
    """True if these processes end within 20 seconds."""
    end = time.monotonic() + 20
    while any(Path(f"/proc/{number}").exists() for number in numbers):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@one_and_two
def test_a_command_holds_its_folder_until_kill_9_ends_it(npz, tmp_path, capsys, processes):
    """A second one is refused, and goes on when the first one is dead."""
    second = command("fedprox", npz, "--rounds", 1, "--out", tmp_path / "out")
    with endless(npz, tmp_path, processes) as (number, children, _):
        refused(capsys, second, f"process {number} is at work in {tmp_path / 'out'}")
        os.kill(number, signal.SIGKILL)
        assert status_of(number) == -signal.SIGKILL
        main(second)
        assert have_ended(children)
    folder = tmp_path / "out" / "fedavg-seed0"
    found = keep.read_checkpoint(folder / "checkpoint.pt")
    assert found["state"]["round"] == found["rows"][-1]["round"] >= 1
    assert found["rows"][:len(kept(folder))] == kept(folder)[:len(found["rows"])]


@several_processes
def test_a_process_that_is_killed_ends_all_with_one_line(npz, tmp_path):
    with endless(npz, tmp_path, 2) as (number, children, _):
        os.kill(children[1], signal.SIGKILL)
        assert status_of(number) == 1 and have_ended(children)
    error = (tmp_path / "errors").read_text()
    assert error.count("\n") == 1
    assert f"process {children[1]} of this run was killed; the same command goes on" in error


@several_processes
def test_ctrl_c_ends_all_with_130_and_one_line_though_a_process_is_stopped(npz, tmp_path):
    with endless(npz, tmp_path, 2) as (number, children, printed):
        os.kill(children[1], signal.SIGSTOP)
        os.kill(number, signal.SIGINT)
        assert have_ended(children) and status_of(number) == 130
        assert "stopped; the same command goes on" in printed.read()
    assert (tmp_path / "errors").read_text() == ""


@one_and_two
def test_a_mistake_in_one_process_alone_ends_all_with_its_traceback(
        npz, tmp_path, monkeypatch, processes):
    """Also if it raises what bad input does. The processes share the clients of a round."""
    train_client, file = fedavg.train_client, tmp_path / "clients"

    def planted(fed, cfg, t, i, *more):
        rank = int(os.environ.get("RANK", 0))
        with open(file, "a") as seen:
            print(rank, file=seen)
        if t == 2 and rank == processes - 1:
            raise ValueError("not of a user")
        return train_client(fed, cfg, t, i, *more)
    monkeypatch.setattr(fedavg, "train_client", planted)
    argv = command("fedavg", npz, "--processes", processes, "--out", tmp_path / "out")
    with child(argv, tmp_path / "errors") as (number, _):
        assert status_of(number) == 1
    errors = (tmp_path / "errors").read_text()
    assert "in planted" in errors and "ValueError: not of a user" in errors
    assert len(kept(tmp_path / "out" / "fedavg-seed0")) == 2
    of_round_1 = [*map(int, file.read_text().split()[:4])]                   # 4 of 6 are active
    assert sorted(of_round_1) == sorted(k % processes for k in range(4))


def test_a_mistake_in_a_loader_ends_with_its_traceback(npz, tmp_path, monkeypatch):
    monkeypatch.setattr(split, "load_dataset", lambda *arguments: {}["no such name"])
    argv = command("fedavg", npz, "--out", tmp_path / "out")
    with child(argv, tmp_path / "errors") as (number, _):
        assert status_of(number) == 1
    errors = (tmp_path / "errors").read_text()
    assert errors.startswith("Traceback") and "KeyError: 'no such name'" in errors
    assert not (tmp_path / "out").exists()
