"""plot.py: means, deviations and differences by hand, labels of folders, one line for bad input."""
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from statistics import stdev

import pytest

import fedkd_minimal
import plot

A = {0: [0.1, 0.5, 0.4], 1: [0.1, 0.3, 0.6]}             # {seed: accuracy of each round}
B = {0: [0.1, 0.6, 0.7], 1: [0.1, 0.2, 0.5], 2: [0.1]}
ROW = '{"round": 0, "accuracy": 0.1, "loss": 2}'


def write(folder, algo, values, alpha=1, **more):
    for seed, accuracies in values.items():
        (run := folder / f"{algo.replace(':', '-')}-seed{seed}").mkdir(parents=True)
        (run / "config.json").write_text(json.dumps({
            "algo": [algo], "seeds": [seed], "settings": {algo: {"alpha": alpha}},
            "flags": {"dataset": "/me/x.npz"}, "environment": {}}))
        for name in ("metrics", "timing"):
            (run / f"{name}.jsonl").write_text("\n".join(json.dumps(
                {"round": t, "accuracy": x, "bytes_up": 2**20 * t, "bytes_down": 2**19,
                 "round_seconds": 3 + seed} | more) for t, x in enumerate(accuracies)))


def test_the_table_tells_means_deviations_and_differences_paired_by_seed(tmp_path, capsys):
    write(tmp_path, "a", A)
    write(tmp_path, "b", B, alpha=2, loss=1234)
    plot.main([str(tmp_path), "--key", "accuracy,loss", "--base", "a"])
    text = re.sub(" +", " ", capsys.readouterr().out)
    assert f"\na 50.00 +- {100 * stdev([.4, .6]):.2f} reference 40.00 60.00 -\n" in text
    b = f"\nb {130 / 3:.2f} +- {100 * stdev([.7, .5, .1]):.2f}"
    assert f"{b} +10.00 +- {100 * stdev([.3, -.1]):.2f}, 1 of 2 70.00 50.00 10.00\n" in text
    assert f"{b} +5.00 +- {100 * stdev([.2, -.1]):.2f}, 1 of 2 70.00 50.00 10.00\n" in text  # best
    assert "\nb 1234 +- 0 1234 1234 1234\n" in text and "note: a has no loss" in text
    assert "note: seeds or lengths differ; {seed: last round}: a {0: 2, 1: 2}, b {0: 2" in text
    assert "\nsettings: dataset=x.npz\na: algo=a alpha=1\nb: algo=b alpha=2\n" in text


@pytest.mark.parametrize("axis, x", [
    ("round", "0 1 2"), ("MB", "0.5 2.0 4.5"), ("seconds", "4 7 10.5")])
def test_the_csv_has_the_mean_deviation_and_count_of_each_round(tmp_path, axis, x):
    write(tmp_path, "b", B)
    plot.main(f"{tmp_path} --x {axis} --csv {tmp_path}/x.csv".split())
    rows = [line.split(",")[2:] for line in (tmp_path / "x.csv").read_text().splitlines()]
    assert rows[0] == [axis, "mean", "std", "seeds"] and [row[0] for row in rows[1:]] == x.split()
    assert rows[1][1:] + rows[3][1:] == ["0.1", "0.0", "3", "0.6", str(stdev([0.7, 0.5])), "2"]


def test_a_label_is_the_folder_or_the_algorithm_with_what_makes_it_unique(tmp_path):
    def labels(*folders):
        return sorted(plot.read_runs([tmp_path / x for x in folders], []))
    write(tmp_path / "x", "fedavg", A)
    assert labels("x") == labels("x/fedavg-seed0", "x") == ["x"]
    write(tmp_path / "x", "fedsdd:R=1", A)
    write(tmp_path / "x" / "fedavg", "dsfl", A)
    write(tmp_path / "y" / "R4", "fedsdd", B)
    write(tmp_path / "z" / "R4", "fedavg", {7: A[0]})
    (tmp_path / "z" / "R4" / "fedavg-seed7").rename(tmp_path / "z" / "R4" / "7")
    assert labels("z") == labels("z/R4/7") == ["R4"]     # METHOD/SEED
    assert labels("x", "y", "z") == ["dsfl", "fedavg", "fedsdd:R=1", "y/R4", "z/R4"]


@pytest.mark.parametrize("flags, rows, words", [
    ("--key acc", ROW, "there are accuracy, loss"), ("--out x.pdf", ROW, ".png or .svg"),
    ("--base c", ROW, "the labels are"), ("", "", "no finished round"), ("", ROW[:9], "damaged"),
    ("--out x.png", ROW, "pip install matplotlib, or"), ("", ROW.replace("0,", "1,"), "damaged")])
def test_bad_input_ends_in_one_line(tmp_path, monkeypatch, capsys, flags, rows, words):
    write(tmp_path, "a", {0: [0.1]})
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    (tmp_path / "a-seed0" / "metrics.jsonl").write_text(rows)
    with pytest.raises(SystemExit, match="2"):
        plot.main(f"{tmp_path} {flags}".split())
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("plot.py: error: ") and words in line


def test_it_draws_what_the_program_writes_and_does_not_load_torch(tmp_path, npz, pytestconfig):
    flags = "--model mlp --clients 4 --partition iid --rounds 1 --local-epochs 1 --seeds 3,4"
    fedkd_minimal.main(f"--algo fedavg --dataset {npz} {flags} --out {tmp_path}".split())
    code = "import sys, plot; plot.main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    out = ["--out", tmp_path / "x.svg"] if find_spec("matplotlib") else []
    argv = [sys.executable, "-c", code, tmp_path, *out]
    subprocess.run(argv, cwd=pytestconfig.rootpath, check=True)
    assert not out or f"<!-- {tmp_path.name} -->" in (tmp_path / "x.svg").read_text()
