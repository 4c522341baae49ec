"""Whatever write a run is killed at, and whatever else the process did before: the same bytes; see also test_runs.py."""
import os
import signal
import subprocess
import sys
import zipfile
from functools import partial

import numpy as np
import pytest
import torch
from test_command_line import refused
from test_runs import ROOT, command, files, npz, stopped_after  # noqa: F401

import runs
from algorithms import ALGORITHMS
from fedkd_minimal import main


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Killed(BaseException):
    """Ends a run as kill -9 does: nothing in the program catches it, and nothing is tidied up."""


def killed_at(step, argv):
    """Runs a command until its write number `step`; True if it was killed there, False if it ended before.

    Writes are counted before a file is put in its place, and before a line is appended to one; a line is half written.
    """
    replace, dumps, writes = os.replace, runs.dumps, []

    def counted():
        writes.append(None)
        return len(writes) > step

    def no_replace(temporary, path):
        if counted():
            raise Killed
        replace(temporary, path)

    def half_a_line(value, indent=None):
        if indent is None and "round" in value and counted():
            raise Killed
        return dumps(value, indent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs.os, "replace", no_replace)
        patch.setattr(runs, "dumps", half_a_line)
        try:
            main(argv)
        except Killed:
            return True
    return False


@pytest.fixture(scope="module")
def short(npz, tmp_path_factory):  # noqa: F811
    """A command of two rounds, and the bytes of its uninterrupted run."""
    argv = [word if word != "5" else "2" for word in command("scaffold", npz)]
    folder = tmp_path_factory.mktemp("short")
    main([*argv, "--out", str(folder)])
    return argv, (folder / "metrics.jsonl").read_bytes()


def test_killed_before_any_single_write_a_run_goes_on_with_the_same_bytes(short, tmp_path):
    argv, expected = short
    step = 0
    while killed_at(step, [*argv, "--out", str(tmp_path / str(step))]):
        if (tmp_path / str(step) / "config.json").exists():             # else nothing is kept, and nothing has begun
            main(["--resume", str(tmp_path / str(step))])
            assert (tmp_path / str(step) / "metrics.jsonl").read_bytes() == expected, step
        step += 1
    assert step == 2 + 3 * 3                   # the config twice; checkpoint, metrics and timing of rounds 0, 1 and 2


def test_killed_again_and_again_while_it_goes_on_a_run_ends_with_the_same_bytes(short, tmp_path):
    argv, expected = short
    assert killed_at(5, [*argv, "--out", str(tmp_path / "out")])        # two configs and round 0 are written
    step = 0
    while killed_at(step, ["--resume", str(tmp_path / "out")]):        # each time it comes one write further
        step += 1
    assert step > 6 and (tmp_path / "out" / "metrics.jsonl").read_bytes() == expected


@pytest.mark.parametrize("name", ["metrics.jsonl", "timing.jsonl"])
def test_a_line_cut_in_the_middle_is_whole_again_after_resume(short, tmp_path, name):
    argv, expected = short
    stopped_after(1, [*argv, "--out", str(tmp_path / "out")])
    path = tmp_path / "out" / name
    path.write_bytes(path.read_bytes()[:-7])
    main(["--resume", str(tmp_path / "out")])
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == expected
    assert len((tmp_path / "out" / "timing.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("rounds", [0, 1])
def test_rounds_grow_on_a_run_that_was_stopped_early(npz, short, tmp_path, rounds):  # noqa: F811
    argv, expected = short
    begun = [word if word != "2" or argv[j - 1] != "--rounds" else "1" for j, word in enumerate(argv)]
    stopped_after(rounds, [*begun, "--out", str(tmp_path / "out")])
    main(["--resume", str(tmp_path / "out"), "--rounds", "2"])
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == expected


def test_what_the_process_drew_before_does_not_matter(short, tmp_path):
    argv, expected = short
    torch.manual_seed(123)
    np.random.seed(123)
    main([*argv, "--out", str(tmp_path / "out")])
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == expected


def test_a_run_leaves_the_global_generators_alone(short):
    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    main(short[0])
    assert torch.equal(torch.get_rng_state(), before[0]) and np.array_equal(np.random.get_state()[1], before[1])


def test_seeds_side_by_side_give_the_bytes_of_each_alone(npz, tmp_path):  # noqa: F811
    main(command("fedsdd", npz, "--seeds", "4,2", "--out", tmp_path / "both"))
    for seed in (4, 2):
        main(command("fedsdd", npz, "--seeds", seed, "--out", tmp_path / str(seed)))
    assert files(tmp_path / "both") == {f"fedsdd-seed{seed}/metrics.jsonl": (tmp_path / str(seed) / "metrics.jsonl").read_bytes()
                                        for seed in (4, 2)}


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_checkpoint_holds_only_what_loads_without_running_code(npz, tmp_path, algo):  # noqa: F811
    main([*command(algo, npz, "--out", tmp_path / "out"), "--rounds", "2"])
    checkpoint = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)
    assert checkpoint["state"]["round"] == 2 and [row["round"] for row in checkpoint["rows"]] == [0, 1, 2]


def test_ctrl_c_in_a_fresh_process_ends_with_130_and_a_word_how_to_go_on(npz, tmp_path):  # noqa: F811
    argv = [*command("fedavg", npz, "--out", tmp_path / "out"), "--rounds", "100000"]
    heeds = partial(signal.signal, signal.SIGINT, signal.default_int_handler)    # whoever runs the tests may ignore Ctrl-C
    with subprocess.Popen([sys.executable, "fedkd_minimal.py", *argv], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, preexec_fn=heeds) as process:
        for line in process.stdout:
            if line.startswith("  3/"):
                process.send_signal(signal.SIGINT)
                break
        printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors == "" and f"--resume {tmp_path / 'out'} continues" in printed
    kept = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)
    assert kept["state"]["round"] == kept["rows"][-1]["round"] >= 3


def test_a_bit_that_turned_inside_a_tensor_is_noticed(short, tmp_path, capsys):
    """The weights in a checkpoint have a checksum; wrong ones would go on as if nothing had happened."""
    stopped_after(1, [*short[0], "--out", str(tmp_path / "out")])
    path = tmp_path / "out" / "checkpoint.pt"
    with zipfile.ZipFile(path) as file:
        largest = max(file.infolist(), key=lambda entry: entry.file_size)
        weights = file.read(largest)
    whole = bytearray(path.read_bytes())
    whole[whole.index(weights) + 100] ^= 1
    path.write_bytes(whole)
    capsys.readouterr()
    refused(capsys, ["--resume", tmp_path / "out"], "checkpoint.pt", "damaged")


def test_a_checkpoint_with_broken_text_is_named(short, tmp_path, capsys):
    stopped_after(1, [*short[0], "--out", str(tmp_path / "out")])
    (tmp_path / "out" / "checkpoint.pt").write_bytes(b"\x80\x02X\x01\x00\x00\x00\xff.")
    capsys.readouterr()
    refused(capsys, ["--resume", tmp_path / "out"], "checkpoint.pt", "damaged")
