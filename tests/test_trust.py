"""Whatever write a run is killed at, and whatever the process did before: the same bytes."""
import contextlib
import itertools
import os
import signal
import subprocess
import sys

import pytest
import torch
from test_runs import ROOT, bytes_of, command, stopped_after

import runs
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
