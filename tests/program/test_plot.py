"""plot: means, intervals and differences by hand, labels of folders, one line for bad input."""
import json
import re
import sys
from statistics import stdev

import pytest

from algorithms import ALGORITHMS
from experiment import plot

A = {0: [0.1, 0.5, 0.4], 1: [0.1, 0.3, 0.6]}             # {seed: accuracy of each round}
B = {0: [0.1, 0.6, 0.7], 1: [0.1, 0.2, 0.5], 2: [0.1, 0.2, 0.1]}
MODEL = {"server_accuracy": "server", "ensemble_accuracy": "ensemble"}
ROW = '{"round": 0, "accuracy": 0.1, "loss": 2}'


def write(folder, algo, values, lr=1, scores=MODEL, data="one set", **more):
    for seed, accuracies in values.items():
        (run := folder / f"{algo.replace(':', '-')}-seed{seed}").mkdir(parents=True)
        (run / "config.json").write_text(json.dumps({
            "algo": algo, "seed": seed, "networks": {}, "training": {},
            "hyperparameters": {"lr": lr}, "fingerprints": {"dataset": data},
            "data": {"dataset": "/me/x.npz", "public": None, "data_root": "/me/data"},
            "environment": {"threads": 1}, "scores": scores}))
        (run / "metrics.jsonl").write_text("\n".join(json.dumps(
            {"round": t, "accuracy": x, "bytes_up": 2**20 * t, "bytes_down": 2**19} | more)
            for t, x in enumerate(accuracies)))


def printed(capsys, *argv):
    """What the program prints; runs of spaces are one space."""
    plot.main([str(word) for word in argv])
    return re.sub(" +", " ", capsys.readouterr().out)


@pytest.fixture
def table(tmp_path, capsys):
    write(tmp_path, "a", A)
    write(tmp_path, "b", B, lr=2, loss=1234)
    return printed(capsys, tmp_path, "--key", "accuracy,loss", "--base", "a,b", "--last", 2)


def half(*values):
    """t of 1 or 2 degrees of freedom, by a table of statistics."""
    n = len(values)
    return {2: 12.706, 3: 4.303}[n] * stdev(values) / n ** .5


def test_the_table_has_the_mean_and_its_interval_in_the_last_round(table):
    assert "minus a accuracy (server) minus b accuracy (server) last round seed 0 seed 1" in table
    x = f"10.00 +- {half(70 - 40, 50 - 60):.2f}"
    assert f"\na server 50.00 +- {half(40, 60):.2f} reference -{x} 2 40.00 60.00 -\n" in table
    assert f"\nb server {130 / 3:.2f} +- {half(70, 50, 10):.2f} +{x} reference 2 70.00 " in table
    assert "\nb 1234 +- 0 - reference 2 1234 1234 1234\n" in table       # no percent


def test_differences_are_paired_by_seed(table):
    row = r"\nb server \S+ .* (\+\S+ \+- \S+) reference 2 \S+ \S+ \S+\n"
    mean, final, best = re.findall(row, table)
    assert mean == f"+5.00 +- {half(65 - 45, 35 - 45):.2f}"
    assert final == f"+10.00 +- {half(70 - 40, 50 - 60):.2f}"
    assert best == f"+5.00 +- {half(70 - 50, 50 - 60):.2f}"


def test_last_is_the_mean_of_the_last_rounds(table):
    """(0.5 + 0.4) / 2, (0.3 + 0.6) / 2 and so on."""
    assert re.search(r"mean of 2 rounds accuracy, % .*\na .* 45.00 45.00 -\nb .* 65.00 35.00 15.00",
                     table)


def test_the_table_tells_the_settings_once_and_each_labels_own(table):
    assert table.startswith("settings: dataset=x.npz public=None data_root=data threads=1\n"
                            "a: algo=a lr=1\nb: algo=b lr=2\n")


def test_t_is_that_of_the_tables_of_statistics():
    assert [plot.T[n - 1] for n in (1, 4, 9, 29)] == [12.706, 2.776, 2.262, 2.045]
    assert plot.half_width([1.0]) is None
    for n, quantile in ((5, 2.776), (40, 2.045)):        # of more than 30 values: 2.045 is a bound
        values = list(range(n))
        assert plot.half_width(values) == pytest.approx(quantile * stdev(values) / n ** .5)


def test_a_base_without_the_accuracy_is_there_with_its_other(tmp_path, capsys):
    write(tmp_path, "a", {0: [0.2]})
    write(tmp_path, "b", {0: [0.1]}, ensemble_accuracy=0.5)
    out = printed(capsys, tmp_path, "--key", "ensemble_accuracy")
    assert "minus a accuracy (server) last round" in out
    assert "\na - - - 0 -\nb ensemble 50.00 +30.00 0 50.00\n" in out


def test_rounds_after_a_number_are_left_out(tmp_path, capsys):
    write(tmp_path, "a", {0: [0.4]})
    write(tmp_path, "b", {0: [0.1, 0.6]})
    assert "\nb server 60.00 +20.00 1 60.00\n" in printed(capsys, tmp_path)
    assert "\nb server 10.00 -30.00 0 10.00\n" in printed(capsys, tmp_path, "--rounds", 0)


def test_a_picture_names_each_line_and_whose_accuracy_it_is(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    write(tmp_path, "a", A, ensemble_accuracy=0.5)
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot.main([str(tmp_path), "--key", "accuracy,ensemble_accuracy",
                   "--out", f"{tmp_path}/x.svg"])
    picture = (tmp_path / "x.svg").read_text()
    assert all(name in picture for name in (">a: server<", ">a: ensemble<", "2 seeds"))


def test_a_curve_has_the_mean_and_interval_of_each_round(tmp_path):
    write(tmp_path, "b", B)
    [runs] = plot.read_runs([tmp_path]).values()
    points = plot.curve(runs, "accuracy", "round")
    assert [x for x, *_ in points] == [0, 1, 2]
    assert points[2][1:] == pytest.approx((1.3 / 3, half(.7, .5, .1)))
    assert [x for x, *_ in plot.curve(runs, "accuracy", "MB")] == [0.5, 2.0, 4.5]
    smooth = [value for _, value, _ in plot.curve(runs[:1], "accuracy", "round", last=2)]
    assert smooth == pytest.approx([0.1, 0.35, 0.65])


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz"])
def test_a_csv_of_all_metrics_is_read_like_the_runs_themselves(tmp_path, capsys, name):
    write(tmp_path / "runs", "a", A)
    write(tmp_path / "runs", "b", B, lr=2, client_accuracy=0.3,
          scores=MODEL | {"client_accuracy": "clients"})
    keys = "accuracy,client_accuracy,ComU@0.2"
    kept = tmp_path / name
    plot.main([f"{tmp_path}/runs", "--out", str(kept)])
    of_folders = printed(capsys, tmp_path / "runs", "--key", keys, "--last", 2)
    assert printed(capsys, kept, "--key", keys, "--last", 2) == of_folders
    assert "\nb 0.5 +- 0 " in of_folders                 # ComU: in round 0 the clients have 0.3
    if name == "x.csv":
        _, header, first, *_ = kept.read_text().splitlines()
        assert header.startswith("label,seed,round,accuracy,")
        assert first == "a,0,0,0.1,0,524288,0.5,"


def test_comu_by_hand(tmp_path):
    """ComU@x: payload both ways, up to and with the first round in which the clients reach x;
    the headline, if no client is scored."""
    rows = [{"accuracy": .0, "client_accuracy": .1},
            {"accuracy": .1, "client_accuracy": .3,
             "bytes_up": 10, "bytes_down": 200, "bytes_down_indices": 5_000},
            {"accuracy": .2, "client_accuracy": .5,
             "bytes_up": 30, "bytes_down": 400, "bytes_up_buffers": 5_000},
            {"accuracy": .9, "client_accuracy": .4, "bytes_up": 1, "bytes_down": 1}]

    def comu(x, scores):
        folder = tmp_path / f"{x}, {len(scores)}"
        write(folder, "a", {0: [0]}, scores=scores)
        (folder / "a-seed0" / "metrics.jsonl").write_text("".join(
            json.dumps({"round": t} | row) + "\n" for t, row in enumerate(rows)))
        [[run]] = plot.read_runs([folder]).values()
        return [MB * 2**20 for _, MB in plot.series(run, f"ComU@{x}")]

    one, two = 10 + 200, 10 + 200 + 30 + 400
    clients = {"accuracy": "server", "client_accuracy": "clients"}
    expected = {.05: [0], .1: [0], .2: [one], .3: [one], .31: [two], .5: [two], .51: []}
    assert {x: comu(x, clients) for x in expected} == expected
    assert comu(.2, {"accuracy": "server"}) == [two]
    assert comu(0, {"accuracy": "server"}) == [0]


@pytest.mark.parametrize("metric, algos", [
    ("client_accuracy_distilled", "fedgem fedgems"), ("client_accuracy", "feddf standalone"),
    ("accuracy", "fedmd dsfl cronus fd fml fedkd fedgkt centralized fedavg fedsdd")])
def test_the_clients_metric_is_that_at_the_end_of_the_round(metric, algos):
    assert {plot.clients_metric(ALGORITHMS[algo].scores) for algo in algos.split()} == {metric}


def test_the_key_clients_shows_their_accuracy_under_the_name_that_each_algorithm_has(
        tmp_path, capsys):
    """FedMD's headline is its clients', FedGEMS's is the server's."""
    for name, scores, row in [
            ("fedmd", {"accuracy": "clients, after private training",
                       "client_accuracy_distilled": "clients, after distillation"},
             {"accuracy": .75, "client_accuracy_distilled": .25}),
            ("fedgems", {"accuracy": "server", "client_accuracy_distilled": "clients"},
             {"accuracy": .9, "client_accuracy_distilled": .5})]:
        write(tmp_path, name, {0: [0]}, scores=scores)
        (tmp_path / f"{name}-seed0" / "metrics.jsonl").write_text(json.dumps({"round": 0} | row))
    table = printed(capsys, tmp_path, "--key", "clients")
    assert re.search(r"fedmd +clients, after private training +75\.00 ", table)
    assert re.search(r"fedgems +clients +50\.00 ", table)


def test_comu_is_missing_where_the_accuracy_is_not_reached(tmp_path, capsys):
    write(tmp_path, "a", A)                              # 0.5 MB, then 1.5, then 2.5 more
    assert re.search(r"final ComU@0.6 .*\n\S+ 4.5 reference 2 4.5\n",
                     printed(capsys, tmp_path, "--key", "ComU@0.6"))


def test_a_label_is_the_folder_of_the_run_behind_the_one_above_it_where_there_are_several(tmp_path):
    def labels(*folders):
        return sorted(plot.read_runs([tmp_path / x for x in folders]))
    write(tmp_path / "x", "fedavg", A)
    write(tmp_path / "x", "fedsdd:R=1", A)
    assert labels("x") == labels("x/fedavg-seed0", "x/fedsdd-R=1-seed0") == ["fedavg", "fedsdd:R=1"]
    write(tmp_path / "z" / "R1", "fedsdd", B)
    write(tmp_path / "z" / "R4", "fedsdd", {7: A[0]})
    assert labels("z") == ["R1", "R4"] and labels("z/R4") == ["fedsdd"]
    assert labels("x", "z") == ["R1", "R4", "x/fedavg", "x/fedsdd:R=1"]
    (tmp_path / "z" / "R4" / "fedsdd-seed7").rename(tmp_path / "x" / "mine-seed7")
    assert labels("x") == ["fedavg", "fedsdd:R=1", "mine"]


def error_line(capsys, *argv):
    """What the program prints when it ends with status 2: one line."""
    with pytest.raises(SystemExit, match="2"):
        plot.main([str(word) for word in argv])
    [line] = capsys.readouterr().err.splitlines()
    return line.removeprefix("plot: error: ")


@pytest.mark.parametrize("values, changes, words", [
    (A[1], {"lr": 2}, "the same lr: ['1', '2']"), ([0.1], {}, "the same rounds: ['0', '2']"),
    (A[1], {"data": "another set"}, "the same dataset: ['another set', 'one set']")])
def test_runs_of_two_methods_or_on_two_data_sets_are_not_pooled(
        tmp_path, capsys, values, changes, words):
    write(tmp_path, "a", {0: A[0]})
    write(tmp_path, "a", {1: values}, **changes)
    assert words in error_line(capsys, tmp_path)
    assert words in error_line(capsys, tmp_path, "--any-data")


def test_labels_on_different_data_are_compared_only_if_asked(tmp_path, capsys):
    write(tmp_path, "a", A)
    write(tmp_path, "b", A, data="another set")
    for flags in ([], ["--out", tmp_path / "x.svg"]):
        assert "a, b: not all have the same dataset" in error_line(capsys, tmp_path, *flags)
    assert "\nb server " in printed(capsys, tmp_path, "--any-data")
    printed(capsys, tmp_path, "--out", tmp_path / "x.csv")
    assert "same dataset" in error_line(capsys, tmp_path / "x.csv")


def test_no_run_hides_another(tmp_path, capsys):
    """Two runs of one label and seed: one in a folder, the other in a file."""
    write(tmp_path / "x", "fedavg", A)
    printed(capsys, tmp_path / "x", "--out", tmp_path / "x.csv")
    words = "fedavg has two runs with one seed, [0, "
    assert words in error_line(capsys, tmp_path / "x", tmp_path / "x.csv")
    write(tmp_path / "y", "fedavg", {2: B[2]})           # another seed is one more
    [runs] = plot.read_runs([tmp_path / "x.csv", tmp_path / "y"]).values()
    assert [run["seed"] for run in runs] == [0, 1, 2]


@pytest.mark.parametrize("flags, rows, words", [
    ("--key acc", ROW, "no run has acc, but clients, MB, accuracy, loss"),
    ("--base a,c", ROW, "the labels are"), ("--last 2", ROW, "has 0 rounds"),
    ("--last 0", ROW, "--last 0"), ("--rounds -1", ROW, "no run has accuracy"),
    ("", "", "finished round"), ("", ROW[:9], "a-seed0/metrics.jsonl is damaged"),
    ("--x week", ROW, "invalid choice"), ("--out x.png", ROW, "matplotlib"),
    ("--out no/x.csv", ROW, "no/x.csv")])
def test_bad_input_ends_in_one_line(tmp_path, monkeypatch, capsys, flags, rows, words):
    write(tmp_path, "a", {0: [0.1]})
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    (tmp_path / "a-seed0" / "metrics.jsonl").write_text(rows)
    assert words in error_line(capsys, tmp_path, *flags.split())


@pytest.mark.parametrize("content", [b"label,mean\na,1\n", b"", b"[]\nlabel,seed\na,1\n"])
def test_a_csv_of_another_program_ends_in_one_line(tmp_path, capsys, content):
    (tmp_path / "x.csv").write_bytes(content)
    assert "x.csv " in error_line(capsys, tmp_path / "x.csv")
