"""plot: means, intervals and differences by hand, labels of folders, one line for bad input."""
import io
import json
import re
import runpy
import sys
import time
from statistics import stdev

import pytest

from algorithms import ALGORITHMS
from experiment import plot
from experiment.curves import by_round, clients_metric, half_width, read_runs, t_quantile

A = {0: [0.1, 0.5, 0.4], 1: [0.1, 0.3, 0.6]}             # {seed: accuracy of each round}
B = {0: [0.1, 0.6, 0.7], 1: [0.1, 0.2, 0.5], 2: [0.1, 0.2, 0.1]}
MODEL = {"server_accuracy": "server", "ensemble_accuracy": "ensemble"}
ROW = '{"round": 0, "accuracy": 0.1, "loss": 2}'


def write(folder, algo, values, lr=1, scores=MODEL, data="one set", ended=None, **more):
    """Runs of these accuracies; `more` in each row; ended: when their round 0 did, in seconds."""
    for seed, accuracies in values.items():
        (run := folder / f"{algo.replace(':', '-')}-seed{seed}").mkdir(parents=True)
        (run / "config.json").write_text(json.dumps({
            "algo": algo, "seed": seed, "networks": {}, "training": {},
            "hyperparameters": {"lr": lr}, "fingerprints": {"dataset": data},
            "data": {"dataset": "/me/x.npz", "public": None, "data_root": "/me/data"},
            "environment": {"threads": 1}, "scores": scores}))
        if ended is not None:
            (run / "timing.jsonl").write_text(json.dumps({"round": 0, "ended": ended}) + "\n")
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
    return {2: 12.7062047, 3: 4.3026527}[n] * stdev(values) / n ** .5


def test_the_table_has_the_mean_and_its_interval_in_the_last_round(table):
    assert "minus a accuracy (server) minus b accuracy (server) last round seed 0 seed 1" in table
    x = f"10.00 +- {half(70 - 40, 50 - 60):.2f}"
    assert f"\na server 50.00 +- {half(40, 60):.2f} reference -{x} 2 40.00 60.00 -\n" in table
    b = f"\nb server {130 / 3:.2f} +- {half(70, 50, 10):.2f} +{x} (n = 2) reference 2 70.00 "
    assert b in table
    assert "\nb 1234 +- 0 - reference 2 1234 1234 1234\n" in table       # no percent


def test_differences_are_paired_by_seed(table):
    """b has three seeds, a two."""
    row = r"\nb server \S+ .* (\+\S+ \+- \S+) \(n = 2\) reference 2 \S+ \S+ \S+\n"
    mean, final, best = re.findall(row, table)
    assert mean == f"+5.00 +- {half(65 - 45, 35 - 45):.2f}"
    assert final == f"+10.00 +- {half(70 - 40, 50 - 60):.2f}"
    assert best == f"+5.00 +- {half(70 - 50, 50 - 60):.2f}"


def test_last_is_the_mean_of_the_last_rounds(table):
    """(0.5 + 0.4) / 2, (0.3 + 0.6) / 2 and so on."""
    assert re.search(r"mean of 2 rounds accuracy, % .*\na .* 45.00 45.00 -\nb .* 65.00 35.00 15.00",
                     table)


def test_the_table_tells_the_settings_once_the_data_and_each_labels_own(table):
    assert table.startswith("settings: dataset=x.npz public=None data_root=data threads=1\n"
                            "dataset: one set\na: algo=a lr=1\nb: algo=b lr=2\n")


def test_t_is_that_of_the_tables_of_statistics():
    """With all digits that are printed; of any number of values."""
    table = {1: 12.7062047, 2: 4.3026527, 3: 3.1824463, 4: 2.7764451, 5: 2.5705818, 9: 2.2621572,
             29: 2.0452296, 30: 2.0422725, 120: 1.9799304, 1000: 1.9623391}
    assert {n: round(t_quantile(n), 7) for n in table} == table
    assert half_width([1.0]) is None
    values = [*range(121)]
    assert half_width(values) == pytest.approx(1.9799304 * stdev(values) / 11)


def test_a_round_without_a_value_is_a_dash_and_a_mean_says_of_how_many_rounds(tmp_path, capsys):
    """Final is the last round; with --last 3 a mean is of the last three rounds at most."""
    write(tmp_path, "a", {0: [.9, .1, None, .3], 1: [.9, .2, .4, None], 2: [.9, None, None, None]})
    final, = re.findall("final .*\na (.*)\n", printed(capsys, tmp_path))
    assert final == "server 30.00 (n = 1) reference 3 30.00 - -"
    mean, = re.findall("mean of 3 .*\na (.*)\n", printed(capsys, tmp_path, "--last", 3))
    assert mean == (f"server 25.00 +- {half(20, 30):.2f} (n = 2) reference 3 "
                    "20.00 (2 rounds) 30.00 (2 rounds) -")


def test_a_base_without_the_accuracy_is_there_with_its_other(tmp_path, capsys):
    write(tmp_path, "a", {0: [0.2]})
    write(tmp_path, "b", {0: [0.1]}, ensemble_accuracy=0.5)
    out = printed(capsys, tmp_path, "--key", "ensemble_accuracy")
    assert "minus a accuracy (server) last round" in out
    assert "\na - - - 0 -\nb ensemble 50.00 +30.00 0 50.00\n" in out


def test_differences_are_of_accuracies_on_the_same_images_unless_asked(tmp_path, capsys):
    """FedGEMS's server is tested on the public half, FedMD's clients on the private one."""
    write(tmp_path, "fedgems", {0: [.5]}, client_accuracy=.1, server_accuracy_private_test=.6,
          scores={"accuracy": "server, public half", "client_accuracy": "clients, private half"})
    write(tmp_path, "fedmd", {0: [.3]}, scores={"accuracy": "clients, private half"})
    out = printed(capsys, tmp_path, "--base", "fedmd")
    assert "\nfedgems server, public half 50.00 - 0 " in out
    assert out.endswith("\n\nno difference: fedgems minus fedmd accuracy: accuracy on public half, "
                        "not private half; --any-data subtracts\n")
    for flags, difference in (["--any-data"], "+20.00"), (["--key", "clients"], "-20.00"), (
            ["--key", "server"], "+30.00"), (["--key", "server_accuracy_private_test"], "+30.00"):
        out = printed(capsys, tmp_path, "--base", "fedmd", *flags)
        assert f" {difference} 0 " in out and "no difference" not in out


def test_own_classes_are_not_compared_with_all(tmp_path, capsys):
    """Under one name; and a base's other accuracy is one of the same images."""
    own = {"accuracy": "clients, own classes", "client_accuracy": "clients"}
    write(tmp_path, "fd", {0: [.2]}, scores={"accuracy": "clients"}, client_accuracy_own=.8)
    write(tmp_path, "fml", {0: [.9]}, scores=own, client_accuracy=.3, server_accuracy=.7)
    write(tmp_path, "local", {0: [.5]}, scores=own, client_accuracy=.4, client_accuracy_own=.5)

    def differences(key):
        out = printed(capsys, tmp_path, "--base", "local", "--key", key)
        return [line.split(" 0 ")[0].split()[-1] for line in out.split("\n\nfinal")[1].split("\n")
                if line.startswith(("fd ", "fml "))][:2]
    assert differences("accuracy") == ["-", "+40.00"]
    assert differences("client_accuracy_own") == ["+30.00", "-"]
    assert differences("server_accuracy") == ["-", "+30.00"]             # minus client_accuracy
    assert differences("server") == ["-20.00", "+30.00"]


def test_differences_are_of_the_same_rounds_unless_asked(tmp_path, capsys):
    write(tmp_path, "a", {0: [.1, .2]})
    write(tmp_path, "b", {0: [.3, .4, .5]})
    out = printed(capsys, tmp_path)
    assert "\nb server 50.00 - 2 50.00\n" in out and out.endswith(
        "no difference: b minus a accuracy: 2 rounds, not 1; --rounds 1 or --any-data subtracts\n")
    assert " +30.00 2 " in printed(capsys, tmp_path, "--any-data")
    assert " +20.00 1 " in printed(capsys, tmp_path, "--rounds", 1)


def test_the_reference_is_the_first_of_the_command_and_stays_when_another_joins(tmp_path, capsys):
    write(tmp_path, "fedsdd", {0: [.1], 1: [.1]}, ended=1)
    write(tmp_path, "fedavg", {0: [.1], 1: [.1]}, ended=2)
    write(tmp_path, "a-later-one", {0: [.1]}, ended=3)
    assert "minus fedsdd accuracy" in printed(capsys, tmp_path)
    assert [*read_runs([tmp_path])] == ["fedsdd", "fedavg", "a-later-one"]
    assert [*read_runs([tmp_path / "fedavg-seed0", tmp_path / "fedsdd-seed0"])] == [
        "fedavg", "fedsdd"]                              # as the words of this command


def test_labels_are_those_that_are_named_in_their_order(tmp_path, capsys):
    for name in "abc":
        write(tmp_path, name, A)
    table = printed(capsys, tmp_path, "--labels", "c,a")
    assert "minus c accuracy" in table and "\na server" in table and "\nb server" not in table
    assert "--base b: the labels are c, a" in error_line(
        capsys, tmp_path, "--labels", "c,a", "--base", "b")


def test_a_label_that_the_terminal_does_not_have_is_printed(tmp_path, monkeypatch):
    write(tmp_path, "α", A)
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "argv", ["plot", str(tmp_path)])
    monkeypatch.setattr(plot.signal, "signal", lambda *_: None)
    runpy.run_path(plot.__file__, run_name="__main__")
    terminal.flush()
    assert re.search(rb"\n\? +server ", terminal.buffer.getvalue())


def test_rounds_after_a_number_are_left_out(tmp_path, capsys):
    write(tmp_path, "a", {0: [0.4]})
    write(tmp_path, "b", {0: [0.1, 0.6]})
    assert "\nb server 60.00 - 1 60.00\n" in printed(capsys, tmp_path)
    assert "\nb server 10.00 -30.00 0 10.00\n" in printed(capsys, tmp_path, "--rounds", 0)


def test_a_picture_names_each_line_and_whose_accuracy_it_is(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    write(tmp_path, "a", A, ensemble_accuracy=0.5)
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot.main([str(tmp_path), "--key", "accuracy,ensemble_accuracy",
                   "--out", f"{tmp_path}/x.svg"])
        picture = (tmp_path / "x.svg").read_text()
        assert all(name in picture for name in (">a: server<", ">a: ensemble<", "mean of 2 seeds"))
        write(tmp_path, "b", B)                          # three seeds
        plot.main([str(tmp_path), "--out", f"{tmp_path}/x.svg"])
    picture = (tmp_path / "x.svg").read_text()
    assert all(name in picture for name in (">a (n = 2)<", ">b (n = 3)<", "mean of n seeds"))


def test_the_same_curves_are_the_same_bytes_on_another_day(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    write(tmp_path, "a", A)
    for suffix in ("svg", "pdf", "png"):
        for day in range(2):
            monkeypatch.setattr(time, "time", lambda: 10**9 + 10**6 * day)
            plot.main([str(tmp_path), "--out", f"{tmp_path}/{day}.{suffix}"])
        one, other = (tmp_path / f"{day}.{suffix}" for day in range(2))
        assert one.read_bytes() == other.read_bytes(), suffix


def test_a_curve_has_the_mean_and_interval_of_each_round(tmp_path):
    write(tmp_path, "b", B)
    [runs] = read_runs([tmp_path]).values()
    points = plot.curve(runs, "accuracy", "round")
    assert [x for x, *_ in points] == [0, 1, 2]
    assert points[2][1:] == pytest.approx((1.3 / 3, half(.7, .5, .1)))
    assert [x for x, *_ in plot.curve(runs, "accuracy", "MB")] == [0.5, 2.0, 4.5]
    runs[0]["rows"][1]["accuracy"] = None                # no mean of two of three seeds
    assert [x for x, *_ in plot.curve(runs, "accuracy", "round")] == [0, 2]
    runs[0]["rows"][1]["accuracy"] = 0.6
    smooth = [value for _, value, _ in plot.curve(runs[:1], "accuracy", "round", last=2)]
    assert smooth == pytest.approx([0.1, 0.35, 0.65])


def test_a_csv_of_all_metrics_is_read_like_the_runs_themselves(tmp_path, capsys):
    write(tmp_path / "runs", "a", A)
    write(tmp_path / "runs", "b", B, lr=2, client_accuracy=0.3,
          scores=MODEL | {"client_accuracy": "clients"})
    keys = "accuracy,client_accuracy,ComU@0.2"
    kept = tmp_path / "x.csv"
    plot.main([f"{tmp_path}/runs", "--out", str(kept)])
    of_folders = printed(capsys, tmp_path / "runs", "--key", keys, "--last", 2)
    assert printed(capsys, kept, "--key", keys, "--last", 2) == of_folders
    assert "\nb 0.5 +- 0 " in of_folders                 # ComU: in round 0 the clients have 0.3
    header, first, *_ = kept.read_text().splitlines()
    assert header.startswith("label,seed,round,accuracy,")
    assert first == "a,0,0,0.1,0,524288,0.5,"
    of_a, of_b = json.loads((tmp_path / "x.json").read_text())      # one for all seeds
    assert of_a["seeds"] == [*A] and of_a["settings"]["lr"] == 1 and of_b["settings"]["lr"] == 2


def test_a_csv_keeps_when_each_run_began(tmp_path):
    write(tmp_path / "runs", "a", {0: A[0]}, ended=1e9 + .25)
    write(tmp_path / "runs", "a", {1: A[1]})             # an older run does not tell
    for path, out in ("runs", "x.csv"), ("x.csv", "y.csv"):
        plot.main([f"{tmp_path}/{path}", "--out", f"{tmp_path}/{out}"])
        [group] = json.loads((tmp_path / out).with_suffix(".json").read_text())
        assert group["begun"] == {"0": "2001-09-09T01:46:40.250000+00:00"}
        assert group["seeds"] == [0, 1]


def test_comu_by_hand(tmp_path):
    """ComU@x: payload both ways, up to and with the first round in which the clients reach x;
    the headline, if no client is scored."""
    rows = [{"accuracy": .0, "client_accuracy": .1 - 1e-8},      # a mean of float32
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
        [[run]] = read_runs([folder]).values()
        values = by_round(run, f"ComU@{x}")
        assert len(values) == len(rows) and values[:-1] == [None] * 3
        return [MB * 2**20 for MB in values if MB is not None]

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
    assert {clients_metric(ALGORITHMS[algo].scores) for algo in algos.split()} == {metric}


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
    assert re.search(r"final ComU@0.6 .*\n\S+ 4.5 \(n = 1\) reference 2 - 4.5\n",
                     printed(capsys, tmp_path, "--key", "ComU@0.6"))


def test_a_label_is_the_folder_of_the_run_behind_the_one_above_it_where_there_are_several(tmp_path):
    def labels(*folders):
        return sorted(read_runs([tmp_path / x for x in folders]))
    write(tmp_path / "x", "fedavg", A)
    write(tmp_path / "x", "fedsdd:R=1", A)
    assert labels("x") == labels("x/fedavg-seed0", "x/fedsdd-R=1-seed0") == ["fedavg", "fedsdd:R=1"]
    write(tmp_path / "z" / "R1", "fedsdd", B)
    write(tmp_path / "z" / "R4", "fedsdd", {7: A[0]})
    assert labels("z") == ["R1", "R4"] and labels("z/R4") == ["fedsdd"]
    assert labels("x", "z") == ["R1", "R4", "x/fedavg", "x/fedsdd:R=1"]
    (tmp_path / "z" / "R4" / "fedsdd-seed7").rename(tmp_path / "x" / "mine-seed7")
    assert labels("x") == ["fedavg", "fedsdd:R=1", "mine"]


@pytest.mark.parametrize("suffix, table", [
    ("md", ["| final accuracy, % | accuracy of | mean ± 95% | minus a_1 accuracy (server) | last "
            "round | seed 0 |", "| --- | --- | ---: | ---: | ---: | ---: |",
            "| a_1 | server | 30.00 | reference | 1 | 30.00 |",
            "| b:R=1\\|2 | server | 10.00 | -20.00 | 1 | 10.00 |"]),
    ("tex", [r"\begin{tabular}{llrrrr}", r"\hline",
             r"final accuracy, \% & accuracy of & mean $\pm$ 95\% & minus a\_1 accuracy (server) & "
             r"last round & seed 0 \\", r"\hline",
             r"a\_1 & server & 30.00 & reference & 1 & 30.00 \\",
             r"b:R=1|2 & server & 10.00 & $-$20.00 & 1 & 10.00 \\", r"\hline", r"\end{tabular}"])])
def test_a_table_is_written_as_markdown_or_latex(tmp_path, capsys, suffix, table):
    """The cells of the printed one; of LaTeX what is no table is a comment."""
    write(tmp_path, "a_1", {0: [.5, .3]})
    write(tmp_path, "b:R=1|2", {0: [.5, .1]})
    write(tmp_path, "c", {0: [.5]})
    assert printed(capsys, tmp_path, "--out", tmp_path / f"x.{suffix}") == ""
    lines = (tmp_path / f"x.{suffix}").read_text().splitlines()
    mark = "% " * (suffix == "tex")
    assert lines[:2] == [mark + plot.CAPTION, ""]
    number = len(table) - 2 * (suffix == "tex")              # c's row comes behind b's
    assert lines[2:2 + number] == table[:number]
    assert lines[2 + number].startswith(("| c |", "c & server & 50.00 & - & 0 "))
    assert lines[3 + number:3 + len(table)] == table[number:]
    assert lines[-1].startswith(f"{mark}no difference: c minus a_1 accuracy: 0 rounds, not 1; ")
    assert sum(line.startswith(("| best", "best")) for line in lines) == 1


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
    for flags in ([], ["--out", tmp_path / "x.svg"], ["--out", tmp_path / "x.csv"]):
        assert "a, b: not all have the same dataset" in error_line(capsys, tmp_path, *flags)
    assert "\nb server " in printed(capsys, tmp_path, "--any-data")
    printed(capsys, tmp_path, "--any-data", "--out", tmp_path / "x.csv")
    assert "same dataset" in error_line(capsys, tmp_path / "x.csv")


def test_labels_without_a_seed_in_common_have_a_line_why(tmp_path, capsys):
    write(tmp_path, "a", {0: [0.1, 0.2]})
    write(tmp_path, "b", {1: [0.1, 0.3]})
    for flags in ([], ["--any-data"]):
        assert printed(capsys, tmp_path, *flags).endswith(
            "\nno difference: b minus a accuracy: they have no seed in common\n")


def test_no_run_hides_another(tmp_path, capsys):
    """Two runs of one label and seed: one in a folder, the other in a file."""
    write(tmp_path / "x", "fedavg", A)
    printed(capsys, tmp_path / "x", "--out", tmp_path / "x.csv")
    words = "fedavg has two runs with one seed, [0, "
    assert words in error_line(capsys, tmp_path / "x", tmp_path / "x.csv")
    write(tmp_path / "y", "fedavg", {2: B[2]})           # another seed is one more
    [runs] = read_runs([tmp_path / "x.csv", tmp_path / "y"]).values()
    assert [run["seed"] for run in runs] == [0, 1, 2]


@pytest.mark.parametrize("flags, rows, words", [
    ("--key acc", ROW, "no run has acc, but clients, server, MB, accuracy, loss"),
    ("--base a,c", ROW, "--base c: the labels are a"), ("--last 2", ROW, "has 0 rounds"),
    ("--labels a,c", ROW, "--labels c: the labels are a"),
    ("--last 0", ROW, "--last 0"), ("--rounds -1", ROW, "no run has accuracy"),
    ("", "", "finished round"), ("", ROW[:9], "a-seed0/metrics.jsonl is damaged"),
    ("--x week", ROW, "invalid choice"), ("--out x.png", ROW, "matplotlib"),
    ("--out no/x.csv", ROW, "no/x.csv"), ("--out x.txt", ROW, "ends in .png, .svg, .pdf, .md")])
def test_bad_input_ends_in_one_line(tmp_path, monkeypatch, capsys, flags, rows, words):
    write(tmp_path, "a", {0: [0.1]})
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    (tmp_path / "a-seed0" / "metrics.jsonl").write_text(rows)
    assert words in error_line(capsys, tmp_path, *flags.split())


@pytest.mark.parametrize("content", [b"label,mean\na,1\n", b"", b"[]\nlabel,seed\na,1\n"])
def test_a_csv_of_another_program_ends_in_one_line(tmp_path, capsys, content):
    (tmp_path / "x.csv").write_bytes(content)
    assert "x.csv " in error_line(capsys, tmp_path / "x.csv")
