"""Whatever write a run is killed at, and whatever the process did before: the same bytes."""
import contextlib
import dataclasses
import errno
import itertools
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from commands import child, status_of
from test_runs import bytes_of, command, stopped_after
from toys import federation as toy
from toys import labeled

from algorithms import ALGORITHMS
from experiment import keep
from fedkd_minimal import main


class Killed(BaseException):
    """Ends a run as kill -9 does: nothing in the program catches it."""


def killed_at(step, argv):
    """True if the command was killed before its file number `step` was replaced."""
    writes, replace = itertools.count(), os.replace

    def replace_or_die(temporary, path):
        if next(writes) >= step:
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


def test_killed_before_any_single_write_a_run_goes_on_with_the_same_bytes(short, tmp_path):
    step = 0
    while killed_at(step, [*short[0], "--out", str(tmp_path / str(step))]):
        main([*short[0], "--out", str(tmp_path / str(step))])
        assert bytes_of(tmp_path / str(step)) == short[1], step
        step += 1
    assert step == 1 + 3 * 3     # the split; checkpoint, metrics, timing of rounds 0 to 2


def test_killed_while_its_folder_is_made_a_run_begins_again(short, tmp_path):
    (tmp_path / "scaffold-seed0").mkdir()
    (tmp_path / "scaffold-seed0" / "config.json").touch()
    main([*short[0], "--out", str(tmp_path)])
    assert bytes_of(tmp_path) == short[1]


@pytest.mark.parametrize("rounds, begun", [(0, "1"), (1, "1"), (1, "2")])
def test_a_stopped_run_with_cut_lines_grows_to_the_same_bytes(short, tmp_path, rounds, begun):
    stopped_after(rounds, [*short[0], "--rounds", begun, "--out", str(tmp_path)])
    for name in ("metrics.jsonl", "timing.jsonl"):
        path = tmp_path / "scaffold-seed0" / name
        path.write_bytes(path.read_bytes()[:-7])
    main([*short[0], "--out", str(tmp_path)])
    assert bytes_of(tmp_path) == short[1]
    assert len(path.read_text().splitlines()) == 3


def test_seeds_side_by_side_give_the_bytes_of_each_alone(npz, tmp_path):
    for seeds in ("4,2", "4", "2"):
        main(command("fedsdd", npz, "--rounds", 2, "--seeds", seeds, "--out", tmp_path / seeds))
    alone = [bytes_of(tmp_path / seed) for seed in ("4", "2")]
    assert [bytes_of(tmp_path / "4,2" / f"fedsdd-seed{seed}") for seed in (4, 2)] == alone
    assert alone[0] != alone[1]


def test_ctrl_c_ends_with_130_and_one_line_that_says_how_to_go_on(npz, tmp_path):
    argv = command("fedavg", npz, "--rounds", 100000, "--out", tmp_path / "the out")
    with child(main, argv, tmp_path / "errors") as (number, printed):
        assert any(line.startswith("  3/") for line in printed)
        os.kill(number, signal.SIGINT)
        assert status_of(number) == 130
        assert "stopped; the same command goes on" in printed.read()
    assert (tmp_path / "errors").read_text() == ""
    kept = torch.load(tmp_path / "the out" / "fedavg-seed0" / "checkpoint.pt", weights_only=True)
    assert kept["state"]["round"] == kept["rows"][-1]["round"] >= 3


def test_ctrl_c_ends_a_run_whose_second_process_is_stopped(npz, tmp_path):
    argv = command("fedavg", npz, "--rounds", 100000, "--processes", 2)
    with child(main, argv, tmp_path / "errors") as (number, printed):
        assert any(line.startswith("  1/") for line in printed)
        children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
        os.kill(int(children[1]), signal.SIGSTOP)
        os.kill(number, signal.SIGINT)
        start = time.monotonic()
        assert status_of(number) == 130 and time.monotonic() - start < 20
        assert not any(Path(f"/proc/{own}").exists() for own in children)


@pytest.mark.parametrize("who", ["parent", "child"])
def test_kill_9_of_one_process_ends_all(npz, tmp_path, who):
    argv = command("fedavg", npz, "--rounds", 100000, "--processes", 2)
    with child(main, argv, tmp_path / "errors") as (number, printed):
        assert any(line.startswith("  1/") for line in printed)
        children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
        os.kill(number if who == "parent" else int(children[0]), signal.SIGKILL)
        assert status_of(number) == (-signal.SIGKILL if who == "parent" else 1)
        end = time.monotonic() + 20
        while any(Path(f"/proc/{own}").exists() for own in children):
            assert time.monotonic() < end
            time.sleep(0.05)
    errors = (tmp_path / "errors").read_text()
    assert errors.count("\n") == (who == "child") and (not errors or "was killed" in errors)


def test_a_closed_pipe_ends_a_run_silently_and_it_goes_on_with_the_same_bytes(short, tmp_path):
    argv = [*short[0], "--out", tmp_path / "out"]
    with child(main, argv, tmp_path / "errors") as (number, printed):
        assert any(line.startswith("  0/") for line in printed)
        printed.close()
        assert status_of(number) in (-signal.SIGPIPE, 128 + signal.SIGPIPE)     # it has children
    assert (tmp_path / "errors").read_text() == ""
    main([*map(str, argv)])
    assert bytes_of(tmp_path / "out") == short[1]


def test_after_a_write_that_fails_every_finished_round_is_kept(short, tmp_path, capsys):
    write, writes = keep.Path.write_bytes, itertools.count()

    def written(path, content):
        write(path, content[:1000])
        if next(writes) == 1 + 3:                            # the checkpoint of round 1
            raise OSError(errno.ENOSPC, "no space")
        write(path, content)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(keep.Path, "write_bytes", written)
        main([*short[0], "--out", str(tmp_path)])
    error = capsys.readouterr().err
    assert stop.value.code == 1 and "goes on" in error and error.count("\n") == 1
    assert {path.name for path in tmp_path.glob("*/*")} == {*keep.FILES}
    main([*short[0], "--out", str(tmp_path)])
    assert bytes_of(tmp_path) == short[1]


def using(*public):
    """The algorithms whose file declares one of these."""
    return [algo for algo in ALGORITHMS if ALGORITHMS[algo].public in public]


NEEDS = {   # what a federation lacks: (the federation, the algorithms that need it, their words)
    "public images": (lambda: dataclasses.replace(toy(), public=None),
                      using("unlabeled", "labeled", "joint"), "needs public images"),
    "their labels": (toy, using("labeled", "joint"), "needs the labels"),
    "a validation set": (labeled, ["feddf", "fedmd", "fedmd-pooled"], "needs validation images"),
    "a network of the server": (
        lambda: dataclasses.replace(labeled(), server_model=None),
        ["fml", "fedkd", "dsfl", "fedgem", "fedgems", "standalone", "centralized-all"],
        "needs a network of the server")}


@pytest.mark.parametrize("lacking, algo", [(x, algo) for x in NEEDS for algo in NEEDS[x][1]])
def test_an_algorithm_says_what_it_needs(lacking, algo):
    make, _, words = NEEDS[lacking]
    more = {"distill": True} if algo == "fedbe" else {}      # else its ensemble only predicts
    with pytest.raises(ValueError, match=words):
        next(ALGORITHMS[algo].run(make(), ALGORITHMS[algo].Config(**more)))
