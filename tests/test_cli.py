"""The command line at its edges: odd values, folders within folders, what is explicit wins; see also test_command_line.py."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_command_line import SHORT, SHORT_SDD, TINY, npz, refused  # noqa: F401

from fedkd_minimal import configure, main, parse

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def fedavg(dataset, *more):
    return ["--algo", "fedavg", "--dataset", dataset, *TINY, *SHORT, *map(str, more)]


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# ------------------------------------------------------------------------------------------------------------- bad input

@pytest.mark.parametrize("flag", ["--threads", "--batch-size", "--rounds", "--local-epochs", "--clients"])
def test_a_number_that_no_machine_can_use_is_refused_before_it_reaches_torch(capsys, flag):
    with pytest.raises(SystemExit) as stop:                 # parse alone: torch dies of too many threads, without a word
        parse(["--algo", "fedavg", flag, "99999999999999999999999"])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and flag in error and error.count("\n") == 1


def test_more_threads_than_any_machine_has_are_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        parse(["--algo", "fedavg", "--threads", "100000"])
    assert stop.value.code == 2 and "--threads" in capsys.readouterr().err


def test_a_device_that_cannot_compute_is_refused(capsys, npz, tmp_path):  # noqa: F811
    refused(capsys, fedavg(npz, "--device", "meta", "--out", tmp_path / "out"), "meta")
    assert not (tmp_path / "out").exists()


def test_a_name_with_a_line_break_is_still_one_line(capsys):
    refused(capsys, ["--algo", "fedavg", "--dataset", "no\nset"], "no", "set")


@pytest.mark.parametrize("algos", ["fedavg,fedprox", "fedprox,fedavg"])
def test_a_folder_that_holds_one_of_the_runs_inside_is_left_alone(capsys, npz, tmp_path, algos):  # noqa: F811
    main(fedavg(npz, "--out", tmp_path / "out" / "fedavg-seed0"))
    before = contents(tmp_path / "out")
    capsys.readouterr()
    refused(capsys, fedavg(npz, "--algo", algos, "--lr", 0.3, "--out", tmp_path / "out"), "already holds a run")
    assert contents(tmp_path / "out") == before


def test_a_file_in_the_place_of_the_output_folder_is_refused_and_kept(capsys, npz, tmp_path):  # noqa: F811
    (tmp_path / "out").write_text("mine")
    refused(capsys, fedavg(npz, "--out", tmp_path / "out"), tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("path, value", [
    (["algo"], 5), (["algo"], []), (["algo"], [["fedavg"]]), (["algo"], ["fedprox"]), (["seeds"], 5), (["seeds"], [0, 0]), (["seeds"], []), (["seeds"], ["x"]),
    (["flags"], {}),
    (["flags"], 5), (["flags", "clients"], "x"), (["flags", "partition"], "fair"), (["settings"], {}), (["settings"], 5),
    (["settings", "fedavg"], {}), (["settings", "fedavg"], None), (["settings", "fedavg", "rounds"], "x"), (["environment"], {}),
    (["environment"], 5), (["environment", "threads"], 0), (["environment", "threads"], "x"),
])
def test_a_config_changed_by_hand_is_refused_in_one_line(capsys, npz, tmp_path, path, value):  # noqa: F811
    main(fedavg(npz, "--out", tmp_path / "out"))
    file = tmp_path / "out" / "config.json"
    config = inner = json.loads(file.read_text())
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    file.write_text(json.dumps(config))
    before = contents(tmp_path / "out")
    capsys.readouterr()
    refused(capsys, ["--resume", tmp_path / "out"])
    assert contents(tmp_path / "out") == before


def test_bad_input_in_a_fresh_process_ends_with_status_2_one_line_and_no_traceback(tmp_path):
    done = subprocess.run([sys.executable, "fedkd_minimal.py", "--algo", "fedsdd", "--K", "9", "--out", str(tmp_path / "out")],
                          cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stdout == "" and not (tmp_path / "out").exists()
    assert done.stderr.startswith("fedkd_minimal.py: error: K = 9 ") and done.stderr.count("\n") == 1


def test_under_torchrun_bad_input_is_said_by_the_first_process_alone(capsys, monkeypatch):
    monkeypatch.setitem(os.environ, "RANK", "1")
    with pytest.raises(SystemExit) as stop:
        main(["--algo", "fedsd"])
    printed = capsys.readouterr()
    assert stop.value.code == 2 and printed.err == printed.out == ""


# ------------------------------------------------------------------------------------------------------------------ flags

def test_an_explicit_no_wins_over_the_papers_yes():
    assert configure(parse("--algo fedsdd --paper fedsdd".split()))["flags"]["augment"] is True
    assert configure(parse("--algo fedsdd --paper fedsdd --no-augment".split()))["flags"]["augment"] is False


def test_an_explicit_flag_that_equals_the_default_still_wins_over_the_preset():
    config = configure(parse("--algo fedavg --paper fedgems --lr 0.8 --optimizer sgd --alpha 0.1 --clients 20".split()))
    assert (config["settings"]["fedavg"]["lr"], config["settings"]["fedavg"]["optimizer"]) == (0.8, "sgd")
    assert (config["flags"]["alpha"], config["flags"]["clients"]) == (0.1, 20)


def test_presets_are_not_changed_by_a_run(npz):  # noqa: F811
    import presets
    before = json.dumps([presets.PAPER, presets.QUICK_START, presets.DEFAULTS])
    main([*fedavg(npz), "--paper", "fedsdd"])
    assert json.dumps([presets.PAPER, presets.QUICK_START, presets.DEFAULTS]) == before


@pytest.mark.parametrize("K, known", [(1, False), (2, True)])
def test_a_share_of_no_pairs_is_null_in_the_metrics_and_a_dash_in_the_log(capsys, npz, tmp_path, K, known):  # noqa: F811
    main(["--algo", "fedsdd", "--dataset", npz, *TINY, *SHORT_SDD, "--K", str(K), "--out", str(tmp_path / "out")])
    last = json.loads((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()[-1])
    assert isinstance(last["disagreement"], float) if known else last["disagreement"] is None
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  2/2")]
    assert (" - " in line) is not known


@pytest.mark.parametrize("flags", [["--lr", "1e30"], ["--server-lr", "1e30"], ["--local", "scaffold", "--lr", "1e30"],
                                   ["--local", "fedprox", "--mu", "1e30"], ["--temperature", "1e-30"], ["--temperature", "1e30"]])
def test_training_that_diverges_ends_with_numbers_and_nulls_in_the_metrics(npz, tmp_path, flags):  # noqa: F811
    assert main(["--algo", "fedsdd", "--dataset", npz, *TINY, *SHORT_SDD, *flags, "--out", str(tmp_path / "out")]) == 0

    def not_json(word):
        raise AssertionError(f"{word} is not JSON")
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=not_json) for line in lines]
    assert len(rows) == 3 and all(0 <= row["accuracy"] <= 1 for row in rows)
    if flags == ["--lr", "1e30"]:
        assert rows[2]["bad_uploads"] == 4
