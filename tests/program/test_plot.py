"""plot: means, intervals and differences by hand, labels of folders, one line for bad input."""
import json
import re
import sys
from statistics import stdev
from types import SimpleNamespace

import pytest

from algorithms import ALGORITHMS
from experiment import plot
from experiment.common import FORMAT
from experiment.runs import read_runs
from experiment.measures import half_width
from experiment.picture import curve, draw_line
from fedkd_minimal import main

A = {0: [0.1, 0.5, 0.4], 1: [0.1, 0.3, 0.6]}             # {seed: accuracy of each round}
B = {0: [0.1, 0.6, 0.7], 1: [0.1, 0.2, 0.5], 2: [0.1, 0.2, 0.1]}
MODEL = {"accuracy": ["server", ""], "ensemble_accuracy": ["ensemble", ""]}


def write(folder, label, values, *, lr=1, scores=MODEL, clients="accuracy", server="accuracy",
          data="one set", begun="", **more):
    """Runs as --out keeps them. values: {seed: [the accuracy, or the metrics, of each round]}"""
    for seed, rounds in values.items():
        (run := folder / f"{label.replace(':', '-')}-seed{seed}").mkdir(parents=True)
        (run / "config.json").write_text(json.dumps({
            "format": FORMAT, "algo": label, "seed": seed, "begun": begun,
            "data": {"dataset": data, "public": None},
            "settings": {"dataset": "/me/x.npz", "public": None, "lr": lr}, "images": {},
            "environment": {"threads": 1}, "scores": scores, "shares": [],
            "keys": {"clients": clients, "server": server}}))
        rows = [{"round": t, "bytes_up": 2**20 * t, "bytes_down": 2**19, **more}
                | (x if isinstance(x, dict) else {"accuracy": x}) for t, x in enumerate(rounds)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def printed(capsys, *argv):
    """What the program prints; runs of spaces are one space."""
    capsys.readouterr()
    plot.main([str(word) for word in argv])
    return re.sub(" +", " ", capsys.readouterr().out)


def error_line(capsys, *argv):
    """What the program prints when it ends with status 2: one line."""
    with pytest.raises(SystemExit, match="2"):
        plot.main([str(word) for word in argv])
    [line] = capsys.readouterr().err.splitlines()
    return line.removeprefix("plot: error: ")


def half(*values):
    """t of 1 or 2 degrees of freedom, by a table of statistics."""
    n = len(values)
    return {2: 12.7062047, 3: 4.3026527}[n] * stdev(values) / n ** .5


def test_the_tables_have_means_with_intervals_and_differences_paired_by_seed(tmp_path, capsys):
    """b has three seeds, a two. The mean of the last 2 rounds is (0.5 + 0.4) / 2 and so on."""
    write(tmp_path, "a", A)
    write(tmp_path, "b", B, lr=2, loss=1234)
    table = printed(capsys, tmp_path, "--key", "accuracy,loss", "--base", "a,b", "--last", 2)
    assert table.endswith("settings: dataset=x.npz public=none threads=1\n"
                          "dataset: one set\na: algo=a lr=1\nb: algo=b lr=2\n")
    assert "minus a accuracy (server) minus b accuracy (server) last round seed 0 seed 1" in table
    x = f"10.00 +- {half(70 - 40, 50 - 60):.2f}"
    assert f"\na server 50.00 +- {half(40, 60):.2f} reference -{x} 2 40.00 60.00 -\n" in table
    assert f"\nb server {130 / 3:.2f} +- {half(70, 50, 10):.2f} +{x} (n = 2) reference" in table
    assert "\nb 1234 +- 0 - reference 2 1234 1234 1234\n" in table       # no percent
    assert re.search("mean of 2 rounds accuracy, % .*\na .* 45.00 45.00 -\n"
                     "b .* 65.00 35.00 15.00\n", table)
    best = f"+5.00 +- {half(70 - 50, 50 - 60):.2f} (n = 2)"
    assert re.search(rf"best accuracy, % .*\na .*\nb .* {re.escape(best)} ", table)


def test_t_is_that_of_the_tables_of_statistics():
    for n, t in {1: 12.7062047, 2: 4.3026527, 30: 2.0422725, 31: 2.0395134, 1000: 1.9623}.items():
        values = [*range(n + 1)]                         # n degrees of freedom
        assert half_width(values) == pytest.approx(t * stdev(values) / (n + 1) ** .5, rel=1e-4)


def test_a_round_without_a_value_is_a_dash_and_a_mean_says_of_how_many_seeds(tmp_path, capsys):
    """Final is the last round; with --last 3 a mean is of the last three rounds at most."""
    write(tmp_path, "a", {0: [.9, .1, None, .3], 1: [.9, .2, .4, None], 2: [.9, None, None, None]})
    table = printed(capsys, tmp_path, "--last", 3)
    assert re.search(r"final .*\na server 30.00 \(n = 1\) 3 30.00 - -\n", table)
    mean = f"25.00 +- {half(20, 30):.2f} (n = 2) 3 20.00 30.00 -\n"
    assert re.search(rf"mean of 3 .*\na server {re.escape(mean)}", table)


@pytest.mark.parametrize("until, megabytes", [(.1, "0"), (.3, "1.5"), (.31, "4"), (.51, "-")])
def test_megabytes_until_an_accuracy_by_hand(tmp_path, capsys, until, megabytes):
    """ComU: payload both ways, up to and with the first round in which the clients reach it."""
    rows = [{"accuracy": .9, "client_accuracy": .1 - 1e-8, "bytes_down": 0},     # a float32's mean
            {"client_accuracy": .3, "bytes_down_indices": 5_000},
            {"client_accuracy": .5, "bytes_up_buffers": 5_000}, {"client_accuracy": .4}]
    write(tmp_path, "a", {0: rows}, clients="client_accuracy")
    table = printed(capsys, tmp_path, "--key", "clients", "--until", until)
    assert re.search(f"MB until clients is {until} .*\na .* {megabytes} 3 {megabytes}\n", table)


@pytest.mark.parametrize("metric, algos", [
    ("client_accuracy_distilled", "fedgem fedgems"), ("client_accuracy", "feddf standalone"),
    ("accuracy", "fedmd dsfl cronus fd fml fedkd fedgkt centralized fedavg fedsdd")])
def test_the_key_clients_is_their_metric_at_the_end_of_the_round(metric, algos):
    assert {ALGORITHMS[algo].clients_score for algo in algos.split()} == {metric}


@pytest.mark.parametrize("suffix, mark, rows", [
    ("md", "", ["| final accuracy, % | accuracy of | mean ± 95% | minus a_1 accuracy (server) | "
                "last round | seed 0 |", "| --- | --- | ---: | ---: | ---: | ---: |",
                "| b:R=1\\|2 | server | 10.00 | -20.00 | 1 | 10.00 |"]),
    ("tex", "% ", [r"\begin{tabular}{llrrrr}", r"a\_1 & server & 30.00 & reference & 1 & 30.00 \\",
                   r"b:R=1|2 & server & 10.00 & $-$20.00 & 1 & 10.00 \\", r"\end{tabular}"])])
def test_a_table_is_written_as_markdown_or_latex(tmp_path, capsys, suffix, mark, rows):
    write(tmp_path, "a_1", {0: [.5, .3]})
    write(tmp_path, "b:R=1|2", {0: [.5, .1]})
    assert printed(capsys, tmp_path, "--out", tmp_path / f"x.{suffix}") == ""
    lines = (tmp_path / f"x.{suffix}").read_text().splitlines()
    assert lines[0].startswith(f"{mark}+-: half of the 95%") and {*rows} < {*lines}


def test_differences_are_of_accuracies_on_the_same_images(npz, tmp_path, capsys):
    """FedGEMS's server is tested on the public half, FedAvg's on the private one."""
    main(["--algo", "fedgems,fedavg", "--dataset", npz, "--public", "half", "--rounds", "1",
          "--clients", "2", "--model", "mini0", "--server-model", "mini0", "--local-epochs", "1",
          "--processes", "1", "--out", str(tmp_path)])
    table = printed(capsys, tmp_path, "--base", "fedavg", "--until", ".001")
    assert len(re.findall(r"\nfedgems server, public half \S+ - 1 ", table)) == 3    # tables
    assert ("\nno difference: fedgems minus fedavg accuracy: accuracy on public half, not private "
            "half; --key server takes the same images\n") in table
    for key in "server", "clients":
        table = printed(capsys, tmp_path, "--base", "fedavg", "--key", key)
        assert re.search(rf"\nfedgems {key}.*, private half \S+ [+-]\d\S+ 1 ", table)


def test_own_classes_are_not_compared_with_all(tmp_path, capsys):
    """Under one name; a base without an accuracy has its `accuracy` in its place."""
    own = {"accuracy": ["clients", "own classes"], "client_accuracy": ["clients", ""]}
    write(tmp_path, "local", {0: [.5]}, scores=own, server="client_accuracy", client_accuracy=.4)
    write(tmp_path, "fd", {0: [.2]}, scores={"accuracy": ["clients", ""]})
    write(tmp_path, "fml", {0: [.9]}, scores=own | {"server_accuracy": ["server", ""]},
          server="server_accuracy", server_accuracy=.7)
    for key, of_fd, of_fml in [("accuracy", "-", "+40.00"), ("server", "-20.00", "+30.00"),
                               ("server_accuracy", "-", "-")]:
        table = printed(capsys, tmp_path, "--base", "local", "--key", key)
        assert re.findall(r"\n(?:fd|fml) .* (\S+) 0 \S+(?=\n)", table)[:2] == [of_fd, of_fml], key


def test_a_difference_on_other_data_seeds_or_rounds_is_a_dash_and_a_line_says_why(
        tmp_path, capsys):
    write(tmp_path, "a", {0: [.1, .2]})
    write(tmp_path, "b", {0: [.3, .4, .5]})
    write(tmp_path, "c", {0: [.3, .4]}, data="another set")
    write(tmp_path, "d", {1: [.3, .4]})
    lines = printed(capsys, tmp_path).partition("\nsettings: ")[0].splitlines()
    assert {"b server 50.00 - 2 50.00 -", "c server 40.00 - 1 40.00 -",
            "d server 40.00 - 1 - 40.00"} < {*lines}
    assert lines[-3:] == [f"no difference: {label} minus a accuracy: {why}" for label, why in [
        ("b", "2 rounds, not 1; --rounds 1 subtracts"),
        ("c", "other data, dataset another set, not one set"),
        ("d", "they have no seed in common")]]
    assert "\nb server 40.00 +20.00 1 40.00 -\n" in printed(capsys, tmp_path, "--rounds", 1)


def test_the_reference_is_the_first_of_the_command_and_stays_when_another_joins(tmp_path, capsys):
    for day, label in enumerate(["fedsdd", "fedavg", "a-later-one"], start=1):
        write(tmp_path, label, {0: [.1]}, begun=f"2026-11-0{day}T10:00:00+00:00")
    assert [*read_runs([tmp_path])] == ["fedsdd", "fedavg", "a-later-one"]
    assert "minus fedavg accuracy" in printed(capsys, tmp_path / "fedavg-seed0", tmp_path
                                              / "fedsdd-seed0")          # as the words say
    table = printed(capsys, tmp_path, "--labels", "a-later-one,fedsdd")
    assert "minus a-later-one accuracy" in table and "\nfedavg" not in table


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


def test_a_csv_of_all_metrics_is_read_like_the_runs_themselves(tmp_path, capsys):
    write(tmp_path / "runs", "b", B, begun="2026-11-01T10:00:00+00:00")
    write(tmp_path / "runs", "a", A, lr=2, begun="2026-11-02T10:00:00+00:00", client_accuracy=0.3,
          scores=MODEL | {"client_accuracy": ["clients", ""]}, clients="client_accuracy")
    flags, kept = ["--key", "accuracy,clients", "--until", .2, "--last", 2], tmp_path / "x.csv"
    assert printed(capsys, tmp_path / "runs", "--out", kept) == ""
    assert printed(capsys, kept, *flags) == printed(capsys, tmp_path / "runs", *flags)
    header, first, *_ = kept.read_text().splitlines()
    assert (header, first) == ("label,seed,round,bytes_up,bytes_down,accuracy,MB,client_accuracy",
                               "b,0,0,0,524288,0.1,0.5,")
    of_b, of_a = json.loads((tmp_path / "x.json").read_text())      # one for all seeds
    assert of_b["seeds"] == [*B] and of_b["settings"]["lr"] == 1 and of_a["settings"]["lr"] == 2


def test_a_point_of_a_curve_is_of_rounds_in_which_every_seed_has_a_value(tmp_path):
    write(tmp_path, "b", B)
    [runs] = read_runs([tmp_path]).values()
    points = curve(runs, "accuracy", "round")
    assert [x for x, *_ in points] == [0, 1, 2]
    assert points[2][1:] == pytest.approx((1.3 / 3, half(.7, .5, .1)))
    assert [x for x, *_ in curve(runs, "accuracy", "MB")] == [0.5, 2.0, 4.5]
    smooth = [value for _, value, _ in curve(runs[:1], "accuracy", "round", last=2)]
    assert smooth == pytest.approx([0.1, 0.35, 0.65])
    runs[0].rows[1]["accuracy"] = None
    assert [x for x, *_ in curve(runs, "accuracy", "round")] == [0, 2]


def test_the_band_of_an_accuracy_ends_at_0_and_1():
    bands = []
    ax = SimpleNamespace(plot=lambda *_, **__: None,
                         fill_between=lambda x, low, high, **_: bands.append([*low, *high]))
    for is_share in (True, False):
        draw_line(ax, [(0, .2, .1), (1, .9, 2.5)], "a", "red", "-", is_share)
    assert bands == [pytest.approx([.1, 0, .3, 1]), pytest.approx([.1, -1.6, .3, 3.4])]


def test_a_picture_names_each_line_and_the_same_curves_are_the_same_bytes(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    write(tmp_path, "a", A, ensemble_accuracy=0.5)
    write(tmp_path, "b", B)                              # three seeds
    pictures = [tmp_path / "0.svg", tmp_path / "1.svg"]
    for path in pictures:
        with matplotlib.rc_context({"svg.fonttype": "none"}):
            plot.main([str(tmp_path), "--key", "accuracy,ensemble_accuracy", "--out", str(path)])
    one, other = (path.read_text() for path in pictures)
    assert one == other and "<dc:date>" not in one
    for name in ("a: server (n = 2)", "a: ensemble (n = 2)", "b: server (n = 3)"):
        assert f">{name}" in one


@pytest.mark.parametrize("seed, values, changes, words", [
    (1, [0.1], {}, "the same rounds: ['0', '2']"), (1, A[1], {"lr": 2}, "the same lr: ['1', '2']"),
    (1, A[1], {"data": "another set"}, "the same dataset: ['another set', 'one set']"),
    (0, A[0], {}, "two runs with one seed")])
def test_runs_of_two_methods_or_data_sets_or_of_one_seed_are_not_pooled(
        tmp_path, capsys, seed, values, changes, words):
    """The others come from a .csv, whose labels no folder is put before."""
    write(tmp_path / "x", "a", {0: A[0]})
    printed(capsys, tmp_path / "x", "--out", tmp_path / "x.csv")
    write(tmp_path / "y", "a", {seed: values}, **changes)
    assert words in error_line(capsys, tmp_path / "x.csv", tmp_path / "y")


ROW = '{"round": 0, "accuracy": 0.1, "loss": 2}'


@pytest.mark.parametrize("flags, rows, words", [
    ("--key acc", ROW, "no run has acc, but clients, server, MB, accuracy, loss"),
    ("--rounds -1", ROW, "--rounds -1"), ("--base a,c", ROW, "--base c: the labels are a"),
    ("--last 2", ROW, "has 0 rounds"), ("--until x", ROW, "invalid float"),
    ("", "", "finished round"), ("", ROW[:9], "a-seed0/metrics.jsonl is damaged"),
    ("--out x.png", ROW, "pip install matplotlib"), ("--out no/x.csv", ROW, "no/x.csv"),
    ("--out x.txt", ROW, "ends in .png")])
def test_bad_input_ends_in_one_line(tmp_path, monkeypatch, capsys, flags, rows, words):
    write(tmp_path, "a", {0: [0.1]})
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    (tmp_path / "a-seed0" / "metrics.jsonl").write_text(rows)
    assert words in error_line(capsys, tmp_path, *flags.split())


def test_a_run_of_an_older_version_and_a_csv_of_another_program_end_in_one_line(tmp_path, capsys):
    write(tmp_path, "a", {0: [0.1]})
    path = tmp_path / "a-seed0" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 1}))
    assert "older version" in error_line(capsys, tmp_path)
    for content in ("label,mean\na,1\n", ""):
        (tmp_path / "x.csv").write_text(content)
        assert "x.csv " in error_line(capsys, tmp_path / "x.csv")
