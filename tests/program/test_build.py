"""Who has which images (data/split.py), and the federation that a method sees of them
(experiment/build.py)."""
import numpy as np
import pytest
import torch
from commands import main
from commands import refused as refused_command
from test_data import (COLOR, SUPERCLASS, TOY, TOY_ARRAYS, classes_of, refused, toy_arrays,
                       write_images)
from toys import arrays

from algorithms import ALGORITHMS
from benchmarks.commands import federation_of
from data import readers, split
from data.images import adapt, crop_and_flip, normalize, statistics
from data.load import DATASETS, checked
from experiment import build
from experiment.settings import Command, DataConfig, Method, Networks, Program, Training
from partition import PARTITIONS

SETS = {"toy": TOY_ARRAYS, "foreign": toy_arrays(4, 6, 2, seed=1), "ten": toy_arrays(10, 100, 2)}
FOREIGN = checked("foreign", **SETS["foreign"])


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    """The program knows the toy sets: "toy" is in color, "foreign" and "ten" are gray."""
    for name, made in SETS.items():
        monkeypatch.setitem(DATASETS, name, lambda root, made=made: made)


def datasets_of(seed=0, **changes):
    """(the settings, the data sets and splits of a seed)."""
    data_cfg = DataConfig(**{"dataset": "toy", "partition": "iid", "clients": 3, "joint": False,
                       **changes})
    rows = readers.split(data_cfg.partition) if split.is_split_file(data_cfg) else None
    return data_cfg, split.load_datasets(data_cfg, [seed], rows)


def split_of(**changes):
    return datasets_of(**changes)[1].splits[0]


def built(seed=0, algo="fedmd", training=None, model=("mlp",), **changes):
    """The federation as an algorithm sees it; FedMD sees all public images with their labels."""
    algorithm, networks = ALGORITHMS[algo], Networks(model, "mlp")
    method = Method(algo, algorithm, algorithm.Config(), networks, 1, [])
    images, datasets = datasets_of(seed, **changes)
    command = Command(Program(), images, training or Training(), [method])
    fed = build.make_federation(command, datasets, seed, torch.device("cpu"))
    return build.seen_by(method, fed, datasets)


def pixels_of(part):
    """The pixels of each image, once normalization by the task is undone."""
    mean, std = (x[:, None, None] for x in statistics(TOY.train.images))
    return part.images * std + mean


# ------------------------------------------------------------------------------------ public images

def test_joint_labels_of_the_task_come_after_the_public_classes():
    """And public images are brought to the task's shape and normalized as the task's."""
    fed = built(public="foreign", joint=True, validation=0.2)
    assert (fed.num_public_classes, fed.num_classes) == (4, 4 + 7)
    assert fed.client_model(0)(fed.test.images[:2]).shape == (2, 4 + 7)
    for part in (*fed.private, fed.test, fed.validation):
        assert torch.equal(part.labels, classes_of(pixels_of(part)) + 4)
    for part, old in [(fed.public, FOREIGN.train), (fed.public_test, FOREIGN.test)]:
        assert torch.equal(part.labels, old.labels)
        assert torch.equal(part.images, normalize(adapt(old.images, (3, 4, 4)),
                                                  *statistics(TOY.train.images)))


@pytest.mark.parametrize("algo, has_images, has_labels, has_server", [
    ("fedavg", False, False, False), ("dsfl", True, False, True), ("fedgems", True, True, True)])
def test_an_algorithm_sees_the_public_data_and_the_servers_network_that_it_uses(
        algo, has_images, has_labels, has_server):
    fed = built(algo=algo, public="half")
    assert (fed.public is not None) == has_images and (fed.server_model is not None) == has_server
    assert (has_images and fed.public.labels is not None) == has_labels


def test_public_size_draws_public_images_with_their_labels():
    every, some = (built(public="foreign", joint=True, public_size=n).public for n in (None, 9))
    rows = [(every.images == image).flatten(1).all(1).nonzero().item() for image in some.images]
    assert len(rows) == 9 and rows == sorted(rows) and rows != list(range(9))
    assert torch.equal(some.labels, FOREIGN.train.labels[rows])


@pytest.mark.parametrize("algo", ["dsfl", "fedmd"])
def test_images_of_folders_get_one_size(tmp_path, capsys, algo):
    """The task's images that of --image-size, the public images then the task's."""
    names = [f"{part}/{c}/{k}.png" for part in ("train", "test") for c in "ab" for k in (0, 1)]
    write_images(tmp_path / "task", {
        name: COLOR[k % 5, :4 + k % 2] for k, name in enumerate(names)})
    write_images(tmp_path / "public", {
        name: COLOR[k % 5, :3 + k % 2] // 2 for k, name in enumerate(names)})
    argv = (f"--algo {algo} --dataset {tmp_path}/task --public {tmp_path}/public --clients 2 "
            "--partition iid --validation 0.3 --describe").split()
    refused_command(capsys, argv, "--image-size")
    main([*argv, "--image-size", "8"])
    assert capsys.readouterr().out.count("images 3x8x8, ") == 2


# -------------------------------------------------------------------------------------- held out

@pytest.mark.parametrize("public, share, test_size, sizes", [
    ("half", 1 / 2, None, [14, 14]), ("half", 1 / 2, 14, [7, 7]), ("half-train", 1 / 2, 14, [14]),
    ("fifth", 1 / 5, None, [28])])
def test_held_out_images_are_a_share_of_every_class(public, share, test_size, sizes):
    """Of 84 training images; validation images are a share of what is not public. With half, half
    of the 28 test images, or of those that are left, is public. No image is in two places."""
    rows = split_of(public=public, validation=0.1, test_size=test_size)
    labels, tested = TOY.train.labels, [rows.test, rows.public_test][:len(sizes)]
    assert len(rows.public) == round(share * 84) and [len(part) for part in tested] == sizes
    assert len(rows.validation) == round(0.1 * (84 - len(rows.public)))
    assert {*labels[rows.public].bincount().tolist()} <= {int(share * 12), int(share * 12) + 1}
    assert {*labels[rows.validation].bincount(minlength=7).tolist()} <= {0, 1}
    assert sorted(np.concatenate([*rows.clients, rows.public, rows.validation])) == [*range(84)]
    tested = np.concatenate(tested)
    assert len({*tested}) == len(tested)
    assert TOY.test.labels[tested].bincount().tolist() == [sum(sizes) / 7] * 7


def test_classes_are_taken_and_normalized_alone():
    fed = built(classes=(6, 0))
    images, labels = map(torch.cat, zip(*fed.private))
    assert [len(part.labels) for part in fed.private] == [8, 8, 8]
    assert fed.num_classes == 2 and len(fed.test.labels) == 2 * 4
    assert images.mean().abs() < 1e-5 and abs(images.square().mean() - 1) < 1e-4
    assert torch.equal(labels == 0, images[:, 0, 0, 0] > 0)                   # 6 is the brighter


# ------------------------------------------------------------------------------------ partitions

@pytest.mark.parametrize("rule", PARTITIONS)
def test_the_rows_of_every_partition_are_sorted_and_in_one_place(rule):
    """FedGKT's table wants 16 clients and 10 classes, a writer 18 samples."""
    fit = {"fedgkt_table6": {"dataset": "ten", "clients": 16}, "single_writer": {"dataset": "ten"}}
    rows = split_of(**{"partition": rule, "alpha": 100.0, "clients": 2, "public": "half",
                       **fit.get(rule, {})})
    everywhere = np.concatenate([*rows.clients, rows.public])
    assert len({*everywhere}) == len(everywhere)
    assert all(len(part) and (np.diff(part) > 0).all() for part in rows.clients)


@pytest.mark.parametrize("rule, clients", [("by_writer", 7), ("single_writer", 4)])
def test_validation_images_by_writer_are_of_writers_that_no_client_has(rule, clients):
    """A client has all images of its writers. 40 writers of 104 letters, a tenth are four."""
    flags = {"dataset": "glyphs-letters", "partition": rule, "clients": clients}
    _, datasets = datasets_of(validation=0.1, **flags)
    rows, writers = datasets.splits[0], datasets.task.writers
    owners = [np.unique(writers[part]) for part in [*rows.clients, rows.validation]]
    for part, own in zip([*rows.clients, rows.validation], owners):
        assert np.array_equal(part, np.flatnonzero(np.isin(writers, own)))
    everyone = np.concatenate(owners)
    assert len({*everyone}) == len(everyone) and len(owners[-1]) == 4


def test_by_subclass_gives_clients_other_subclasses_of_all_superclasses():
    """Superclasses are the labels, and those that --classes names."""
    _, datasets = datasets_of(partition="by_subclass", clients=2, per_class=2, public="half")
    held = [datasets.task.subclass[part] for part in datasets.splits[0].clients]
    for own, part in zip(held, datasets.splits[0].clients):
        assert datasets.task.train.labels[part].tolist() == SUPERCLASS[own].tolist()
        assert sorted(SUPERCLASS[own]) == [0, 0, 1, 1, 2, 2] and len({*own}) == 3
    assert not {*held[0]} & {*held[1]}
    fed = built(partition="by_subclass", classes=(2, 0), clients=2, per_class=2)
    assert all(sorted(private.labels.tolist()) == [0, 0, 1, 1] for private in fed.private)


# --------------------------------------------------------------------------------- a split to keep

def written(tmp_path, **rows):
    """The settings of a file with these arrays, as the command line sets them."""
    np.savez(tmp_path / "own.npz", **rows)
    clients = sum(name.startswith("client_") for name in rows)
    return {"partition": str(tmp_path / "own.npz"), "clients": clients, "split_seed": 0}


def test_a_file_of_row_numbers_says_who_has_which_images(tmp_path):
    """In any order, and for every seed. What it does not have is drawn with the split's seed, and
    what a command does not use nobody has."""
    flags = written(tmp_path, client_0=[50, 3], client_1=np.uint8([7]), public=[2, 1],
                    validation=[9], test=[4, 0], public_test=[5, 27])
    for seed in (0, 1):
        fed = built(seed, public="half", validation=0.1, **flags)
        parts = [*fed.private, fed.public, fed.validation, fed.test, fed.public_test]
        rows = [[3, 50], [7], [1, 2], [9], [0, 4], [5, 27]]
        for part, data, own in zip(parts, [TOY.train] * 4 + [TOY.test] * 2, rows, strict=True):
            assert part.labels.tolist() == data.labels[own].tolist()
            assert torch.equal(part.images, normalize(data.images[own],
                                                      *statistics(TOY.train.images)))
    flags = written(tmp_path, client_0=[50, 3], client_1=[7], public=[2, 1], validation=[9])
    rest = built(3, test_size=14, public="foreign", **flags)
    assert torch.equal(rest.test.images, built(test_size=14).test.images)
    assert len(rest.public.images) == 4 * 6 and rest.public.labels is None
    assert rest.validation is rest.public_test is None


def test_one_seed_of_the_split_is_one_split_for_all_seeds():
    """All that decides the data; initial weights differ."""
    flags = dict(train_size=70, test_size=14, public="half", public_size=9, validation=0.1)
    one, *others = (built(seed, **flags, split_seed=number) for seed, number in (
        (5, 5), (5, None), (0, 5)))
    for fed in others:
        for name in ("test", "public", "public_test", "validation"):
            assert torch.equal(getattr(fed, name).images, getattr(one, name).images), name
        assert all(torch.equal(a.images, b.images) for a, b in zip(fed.private, one.private))
    assert not torch.equal(one.public.images, built(0, **flags).public.images)
    weights = [next(fed.client_model(0).parameters()) for fed in (one, others[1])]
    assert not torch.equal(*weights) and others[1].seed == 0
    foreign = [built(seed, split_seed=5, public="foreign", public_size=9) for seed in (5, 0)]
    assert torch.equal(*(fed.public.images for fed in foreign))


@pytest.mark.parametrize("words, rows, flags", [
    ("expected client_0, ", {"client_0": [1], "client_2": [2]}, {}),
    ("public_test, but no test", {"client_0": [1], "public_test": [2]}, {}),
    ("type float64", {"client_0": [1.]}, {}),
    ("rows from 1 to 84; .*training images of toy are 0 to 83", {"client_0": [84, 1]}, {}),
    ("rows from 28 to 28; .*test images of toy", {"client_0": [1], "test": [28]}, {}),
    ("training image 4 twice", {"client_0": [1, 4], "public": [4]}, {}),
    ("test image 2 twice", {"client_0": [1], "test": [2], "public_test": [2]}, {}),
    ("clients than --clients 2", {"client_0": [1]}, {"clients": 2}),
    ("clients than --clients 1", {"client_0": [1], "client_1": [2]}, {"clients": 1}),
    ("--public fifth: .* no array public", {"client_0": [1]}, {"public": "fifth"}),
    ("--validation 0.1: .* no array validation", {"client_0": [1]}, {"validation": 0.1}),
    ("split of other images", {"client_0": [1], "dataset": "mine"}, {})])
def test_a_file_that_is_no_split_of_the_images_is_refused(tmp_path, words, rows, flags):
    refused(words, datasets_of, **written(tmp_path, **rows) | flags)


# -------------------------------------------------------------------------------------- networks

def test_networks_are_those_of_the_flags_and_the_servers_has_random_numbers_of_its_own():
    fed, other = (built(seed, "fedgems", model=("mlp", "cnn")) for seed in (0, 1))
    assert [type(fed.client_model(i)).__name__ for i in range(3)] == ["MLP", "CNN", "MLP"]
    assert fed.architecture == ["mlp", "cnn", "mlp"]
    one, same, *others = (next(network.parameters()) for network in (
        fed.server_model(), fed.server_model(), other.server_model(), fed.client_model(0)))
    assert torch.equal(one, same) and not any(torch.equal(one, weights) for weights in others)


def test_augment_and_amp_reach_the_federation():
    plain, other = built(), built(training=Training(augment=True, amp=True))
    assert plain.augment(plain.test.images, None) is plain.test.images and not plain.amp
    assert (other.augment, other.amp) == (crop_and_flip, True)


def test_a_benchmark_has_the_federation_and_the_settings_of_its_command(npz):
    fed, settings = federation_of(f"--algo fedsdd,fedavg --dataset {npz} --model mlp --clients 4 "
                                  "--participation 1 --seeds 3".split())
    assert fed.seed == 3 and len(fed.private) == 4 and fed.public.labels is None
    assert fed.architecture == ["mlp"] * 4 and settings["fedsdd"]["distill_steps"] == 100


# --------------------------------------------------------------------------------------- refusals

@pytest.mark.parametrize("algo, flags, words", [
    ("fedavg", "--model mlp,fedmd5", ["fedmd5", "12x12"]),
    ("fedgems", "--server-model fedmd5", ["fedmd5", "12x12"]),
    ("fedgems", "--server-model gkt_server_small", ["fedgems", "server's network", "logits"]),
    ("fedgkt", "--server-model gkt_server55", ["feature maps"]),
    ("fedavg", "--image-size 5", ["--image-size", "8x8"]),
    ("dsfl", "--public {npz}", ["--public", "training images", "half"]),
    ("fedavg", "--partition by_subclass", ["by_subclass", "superclasses"]),
    ("fedavg", "--partition by_writer", ["by_writer", "writers"]),
    ("fedavg", "--partition few_per_class --per-class 60", ["per_class 60"])])
def test_what_the_data_cannot_give_is_refused_in_one_line(npz, capsys, algo, flags, words):
    argv = f"--algo {algo} --dataset {npz} --clients 4 {flags.format(npz=npz)} --describe"
    refused_command(capsys, argv.split(), *words)


def test_each_class_needs_training_images_or_is_left_out(tmp_path, capsys):
    """The task's classes; the public ones where FedMD uses them, for DS-FL does not."""
    task, gap = tmp_path / "task.npz", tmp_path / "gap.npz"
    made = arrays()
    np.savez(task, **made)
    np.savez(gap, **made | {"y_train": made["y_train"] // 2 * 2,
                            "x_train": made["x_train"] // 2})             # 0 and 2, without 1
    argv = "--clients 4 --partition iid --validation 0.2 --describe --dataset".split()
    refused_command(capsys, ["--algo", "fedavg", *argv, gap], "label 1", "--classes")
    main(["--algo", "fedavg", *argv, str(gap), "--classes", "2,0"])
    refused_command(capsys, ["--algo", "fedmd", *argv, task, "--public", gap], "--public", "label")
    main(["--algo", "dsfl", *argv, str(task), "--public", str(gap)])
