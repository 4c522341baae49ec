"""plot: means, deviations and differences by hand, labels of folders, one line for bad input."""
import json
import re
import sys
from statistics import stdev

import pytest

from experiment import picture, plot

A = {0: [0.1, 0.5, 0.4], 1: [0.1, 0.3, 0.6]}             # {seed: accuracy of each round}
B = {0: [0.1, 0.6, 0.7], 1: [0.1, 0.2, 0.5], 2: [0.1]}
ROW = '{"round": 0, "accuracy": 0.1, "loss": 2}'


def write(folder, algo, values, alpha=1, public=None, **more):
    for seed, accuracies in values.items():
        (run := folder / f"{algo.replace(':', '-')}-seed{seed}").mkdir(parents=True)
        (run / "config.json").write_text(json.dumps({
            "algo": [algo], "seeds": [seed], "networks": {algo: {}},
            "settings": {algo: {"alpha": alpha}},
            "flags": {"dataset": "/me/x.npz", "public": public, "data_root": "/me/data"},
            "environment": {"threads": 1}}))
        (run / "metrics.jsonl").write_text("\n".join(json.dumps(
            {"round": t, "accuracy": x, "bytes_up": 2**20 * t, "bytes_down": 2**19} | more)
            for t, x in enumerate(accuracies)))


@pytest.fixture
def table(tmp_path, capsys):
    """What the program prints of two labels; runs of spaces are one space."""
    write(tmp_path, "a", A)
    write(tmp_path, "b", B, alpha=2, loss=1234)
    plot.main([str(tmp_path), "--key", "accuracy,loss", "--base", "a"])
    return re.sub(" +", " ", capsys.readouterr().out)


def test_the_table_has_the_mean_and_deviation_of_the_last_round(table):
    assert f"\na model 50.00 +- {100 * stdev([.4, .6]):.2f} reference 2 40.00 60.00 -\n" in table
    assert f"\nb model {130 / 3:.2f} +- {100 * stdev([.7, .5, .1]):.2f} " in table
    assert "\nb 1234 +- 0 - 0,2 1234 1234 1234\n" in table       # no percent; rounds 0 and 2


def test_differences_are_paired_by_seed(table):
    row = r"\nb model 43.33 .* (\+\S+ \+- \S+, \d of \d) 0,2 70.00 50.00 10"
    final, best = re.findall(row, table)
    assert final == f"+10.00 +- {100 * stdev([.7 - .4, .5 - .6]):.2f}, 1 of 2"
    assert best == f"+5.00 +- {100 * stdev([.7 - .5, .5 - .6]):.2f}, 1 of 2"


def test_the_table_tells_the_settings_once_and_each_labels_own(table):
    assert table.startswith("settings: dataset=x.npz public=None data_root=data threads=1\n"
                            "a: algo=a alpha=1\nb: algo=b alpha=2\n")


def test_an_accuracy_that_the_reference_lacks_is_compared_with_its_accuracy(tmp_path, capsys):
    write(tmp_path, "a", {0: [0.2]})
    write(tmp_path, "b", {0: [0.1]}, ensemble_accuracy=0.5)
    plot.main([str(tmp_path), "--key", "ensemble_accuracy"])
    out = capsys.readouterr().out
    assert re.search(r"minus a accuracy .*\nb +ensemble +50.00 +\+30.00, 1 of 1 ", out)


def test_the_table_says_whose_accuracy_it_is_and_on_which_half(tmp_path, capsys):
    """In one table: `accuracy` of a server on the public half, of clients on the private one."""
    last = {"public": "half", "client_accuracy_distilled": 0.1, "client_accuracy_private": 0.4}
    write(tmp_path, "fedmd", {0: [0.4]}, **last)
    write(tmp_path, "fedgems", {0: [0.6]}, server_accuracy=0.6, server_accuracy_private_test=0.5,
          **last)
    plot.main([str(tmp_path)])
    out = re.sub(" +", " ", capsys.readouterr().out)
    assert "\nfedmd clients, after private training, private half 40.00 " in out
    assert "\nfedgems server, public half 60.00 " in out


def test_several_bases_have_a_column_each(tmp_path, capsys):
    write(tmp_path, "a", A)
    write(tmp_path, "b", B)
    plot.main([str(tmp_path), "--base", "b,a"])
    out = re.sub(" +", " ", capsys.readouterr().out)
    assert "minus b accuracy minus a accuracy last round" in out
    assert re.search(r"\na model \S+ \+- \S+ -10.00 \+- \S+, 1 of 2 reference 2 40.00", out)


def test_smooth_is_the_mean_of_the_last_rounds(tmp_path):
    write(tmp_path, "a", {0: [0.1, 0.3, 0.8]})
    plot.main(f"{tmp_path} --smooth 2 --out {tmp_path}/x.csv".split())
    lines = (tmp_path / "x.csv").read_text().splitlines()[1:]
    means = [float(line.split(",")[3]) for line in lines]
    assert means == pytest.approx([0.1, (0.1 + 0.3) / 2, (0.3 + 0.8) / 2])


def test_names_at_the_ends_of_lines_do_not_overlap():
    assert picture.spread([0.5, 0.9, 0.52], gap=0.1) == pytest.approx([0.5, 0.9, 0.6])


@pytest.mark.parametrize("flags, names", [([], [": model<", ": ensemble<"]),
                                          (["--names", "A", "B C"], [">A<", ">B C<"])])
def test_a_picture_names_each_line_and_whose_accuracy_it_is(tmp_path, flags, names):
    matplotlib = pytest.importorskip("matplotlib")
    write(tmp_path, "a", {0: [0.4]}, ensemble_accuracy=0.5)
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot.main([str(tmp_path), "--key", "accuracy,ensemble_accuracy",
                   "--out", f"{tmp_path}/x.svg", *flags])
    picture = (tmp_path / "x.svg").read_text()
    assert all(name in picture for name in names)


def test_rounds_leaves_out_the_later_ones(tmp_path, capsys):
    write(tmp_path, "a", A)
    plot.main([str(tmp_path), "--rounds", "1"])
    out = capsys.readouterr().out
    assert re.search(r"final .*\n\S+ +model +40.00 .* 1 +50.00 +30.00", out)


@pytest.mark.parametrize("axis, x", [("round", "0 1 2"), ("MB", "0.5 2.0 4.5")])
def test_the_csv_has_the_mean_deviation_and_count_of_each_round(tmp_path, axis, x):
    write(tmp_path, "b", B)
    plot.main(f"{tmp_path} --x {axis} --out {tmp_path}/x.csv".split())
    rows = [line.split(",")[2:] for line in (tmp_path / "x.csv").read_text().splitlines()]
    assert rows[0] == [axis, "mean", "std", "seeds"] and [row[0] for row in rows[1:]] == x.split()
    assert rows[1][1:] + rows[3][1:] == ["0.1", "0.0", "3", "0.6", str(stdev([0.7, 0.5])), "2"]


def test_a_label_is_the_folder_or_the_algorithm_below_what_all_share(tmp_path):
    def labels(*folders):
        return sorted(plot.read_runs([tmp_path / x for x in folders]))
    write(tmp_path / "x", "fedavg", A)
    assert labels("x") == labels("x/fedavg-seed0", "x") == ["x"]
    write(tmp_path / "x", "fedsdd:R=1", A)
    assert labels("x") == ["fedavg", "fedsdd:R=1"]
    write(tmp_path / "z" / "R1", "fedsdd", B)
    write(tmp_path / "z" / "R4", "fedsdd", {7: A[0]})
    (tmp_path / "z" / "R4" / "fedsdd-seed7").rename(tmp_path / "z" / "R4" / "7")
    assert labels("z") == labels("z/R1", "z/R4/7") == ["R1", "R4"]       # METHOD/SEED
    assert labels("x", "z") == ["x/fedavg", "x/fedsdd:R=1", "z/R1", "z/R4"]


@pytest.mark.parametrize("flags, rows, words", [
    ("--key acc", ROW, "there are accuracy, loss"), ("--base a,c", ROW, "the labels are"),
    ("--smooth 0", ROW, "1 or more"), ("--out x.png --names a b", ROW, "2 names for these 1 lines"),
    ("", "", "no finished round"), ("", ROW[:9], "damaged"), ("--x week", ROW, "invalid choice"),
    ("--out x.png", ROW, "pip install matplotlib, or"), ("--out no/x.csv", ROW, "no/x.csv")])
def test_bad_input_ends_in_one_line(tmp_path, monkeypatch, capsys, flags, rows, words):
    write(tmp_path, "a", {0: [0.1]})
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    (tmp_path / "a-seed0" / "metrics.jsonl").write_text(rows)
    with pytest.raises(SystemExit, match="2"):
        plot.main(f"{tmp_path} {flags}".split())
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("plot: error: ") and words in line
