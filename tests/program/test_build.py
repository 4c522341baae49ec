"""From flags to a federation: who holds which images, with which labels and networks."""
import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_data import COLOR, SUPERCLASS, TOY, refused, toy_set, write_images

from algorithms import ALGORITHMS
from benchmarks.commands import federation_of
from data.images import adapt, crop_and_flip, normalize, statistics
from data.load import Dataset, load_dataset, load_public
from experiment import build
from experiment.settings import Command, Images, Method, Training
from federation import Data
from partition import PARTITIONS

FOREIGN = toy_set(4, 6, 2, seed=1)
BYTES = torch.arange(500 * 4 * 4).remainder(256).byte().view(500, 1, 4, 4)
TEN = toy_set(10, 100, 2)
SETS = {"toy": TOY, "foreign": FOREIGN, "ten": TEN, "copy": TOY}
FLAGS = dataclasses.asdict(Images()) | dataclasses.asdict(Training()) | dict(
    dataset="toy", partition="iid", clients=3, per_class=2, joint=False, model=["mlp"],
    server_model="mlp")

# An algorithm that sees whatever public images there are, and whose server has a network.
SEES_ALL = SimpleNamespace(public="joint", server="images", Config=SimpleNamespace,
                           check=lambda fed, cfg, attack: None)


@pytest.fixture(autouse=True)
def sets(monkeypatch):
    """`load_dataset` knows the toy sets: "toy" is in color, "foreign" and "ten" are gray."""
    sets = dict(SETS)
    monkeypatch.setattr(build, "load_dataset", lambda name, root, size: sets[name])
    monkeypatch.setattr(build, "load_public", lambda name, root, size: Dataset(
        Data(sets[name].train.images, None), None, 0))
    return sets


def built(seed=0, **changes):
    """(the federation, the data sets, the split)."""
    flags = FLAGS | changes
    networks = {name: flags.pop(name) for name in ("model", "server_model")}
    method = Method("all", SEES_ALL, {}, [], networks, 1)
    command = Command([method], [seed], flags, {})
    datasets = build.load_datasets(flags)
    build.check(command, datasets, torch.device("cpu"))
    fed = build.make_federation(command.shared, datasets, seed, torch.device("cpu"))
    return build.seen_by(method, fed, flags), datasets, build.split(flags, datasets, seed)


def classes_of(part):
    """The class that the pixels of each image tell, once normalization by the task is undone."""
    mean, std = statistics(TOY.train.images)
    return (part.images[:, 0, 0, 0] * std[0] + mean[0]).add(1e-4).floor().long()


# ---------------------------------------------------------------------------------------- labels
@pytest.mark.parametrize("joint, first", [(True, 4), (False, 0)])
def test_joint_labels_of_the_task_come_after_the_public_classes(joint, first):
    fed, datasets, _ = built(public="foreign", joint=joint, validation=0.2)
    assert datasets.images["classes"] == [f"public {j}" for j in range(first)] + [*"0123456"]
    assert (fed.num_public_classes, fed.num_classes) == (first, first + 7)
    assert fed.client_model(0)(fed.test.images[:2]).shape == (2, first + 7)
    for part in (*fed.private, fed.test, fed.validation):
        assert torch.equal(part.labels, classes_of(part) + first)


@pytest.mark.parametrize("algo", ["fedavg", "dsfl"])
def test_beside_fedmd_an_algorithm_has_the_classes_of_the_task_alone(algo):
    """With a joint layer chance would be 1/11 for FedDF, and DS-FL would send 11 probabilities."""
    method = Method(algo, ALGORITHMS[algo], {}, [], {"model": ["mlp"], "server_model": "mlp"}, 1)
    every, *_ = built(public="foreign", joint=True, validation=0.2)
    alone, *_ = built(public="foreign", validation=0.2)
    fed, other = (build.seen_by(method, fed, {"joint": joint})
                  for fed, joint in [(every, True), (alone, False)])
    assert (fed.num_classes, fed.num_public_classes, fed.public_test) == (7, 0, None)
    for part, same in zip((*fed.private, fed.test, fed.validation),
                          (*other.private, other.test, other.validation)):
        assert torch.equal(part.labels, classes_of(part)) and torch.equal(part.labels, same.labels)
    assert all(map(torch.equal, *(seen.client_model(0).state_dict().values()
                                  for seen in (fed, other))))


def test_without_joint_public_images_have_neither_labels_nor_a_test_set():
    fed, *_ = built(public="foreign")
    assert len(fed.public.images) == 4 * 6
    assert fed.public.labels is None and fed.public_test is None


def test_an_algorithm_sees_only_the_public_data_that_it_uses():
    fed, *_ = built(public="half")
    for use in ("none", "unlabeled", "labeled"):
        algorithm = SimpleNamespace(public=use, server="none")
        method = Method(use, algorithm, {}, [], {"model": ["mlp"], "server_model": "mlp"}, 1)
        seen = build.seen_by(method, fed, {"joint": False}).public
        expected = {"none": None, "unlabeled": Data(fed.public.images, None)}
        assert seen == expected.get(use, fed.public)


@pytest.mark.parametrize("algo, has_one", [("fedavg", False), ("dsfl", True), ("fedgkt", True)])
def test_only_an_algorithm_whose_server_has_a_network_sees_one(algo, has_one):
    method = Method(algo, ALGORITHMS[algo], {}, [], {"model": ["mlp"], "server_model": "mlp"}, 1)
    fed, *_ = built(public="half")
    assert (build.seen_by(method, fed, {"joint": False}).server_model is not None) == has_one


# ---------------------------------------------------------------------------------------- images
def test_joint_public_images_are_adapted_and_keep_their_labels():
    fed, *_ = built(public="foreign", joint=True)
    mean, std = statistics(TOY.train.images)
    for part, old in [(fed.public, FOREIGN.train), (fed.public_test, FOREIGN.test)]:
        assert torch.equal(part.images, normalize(adapt(old.images, (3, 4, 4)), mean, std))
        assert torch.equal(part.labels, old.labels)


def test_public_size_draws_public_images_with_their_labels():
    fed, some = (built(public="foreign", joint=True, public_size=n)[0] for n in (None, 9))
    rows = [(fed.public.images == image).flatten(1).all(1).nonzero().item()
            for image in some.public.images]
    assert len(rows) == 9 and rows == sorted(rows) and rows != list(range(9))
    assert torch.equal(some.public.labels, FOREIGN.train.labels[rows])


def test_only_used_public_images_become_floats(sets, monkeypatch):
    """All of ImageNet-32 would be 16 GB."""
    sets["bytes"] = FOREIGN._replace(train=Data(BYTES, torch.arange(500) % 4))
    counts, to_float = [], build.to_float
    monkeypatch.setattr(build, "to_float", lambda x: counts.append(len(x)) or to_float(x))
    fed, *_ = built(public="bytes", public_size=9)
    assert len(fed.public.images) == 9 and max(counts) == len(TOY.train.images) == 84


def test_public_bytes_give_the_numbers_of_public_floats(sets):
    for name, public in (("bytes", BYTES), ("floats", BYTES / 255)):
        sets[name] = FOREIGN._replace(train=Data(public, torch.arange(500) % 4))
    one, other = (built(public=name)[0].public.images for name in ("bytes", "floats"))
    assert torch.equal(one, other)


@pytest.mark.parametrize("joint", [False, True])
def test_folders_get_one_size_and_the_files_that_are_not_read_are_told(
        tmp_path, monkeypatch, capsys, joint):
    """The task's images that of --image-size, the public images then the task's."""
    monkeypatch.setattr(build, "load_dataset", load_dataset)
    monkeypatch.setattr(build, "load_public", load_public)
    task, public = map(str, (tmp_path / "task", tmp_path / "public"))
    names = [f"{part}/{c}/{k}.png" for part in ("train", "test") for c in "ab" for k in (0, 1)]
    write_images(tmp_path / "task", {"train/a/2.gif": b"", "val/a/0.png": b""} | {
        name: COLOR[k % 5, :4 + k % 2] for k, name in enumerate(names)})
    write_images(tmp_path / "public", {"train/0.jpeg2000": b"", "notes.txt": b""} | {
        name: COLOR[k % 5, :3 + k % 2] // 2 for k, name in enumerate(names)})
    flags = FLAGS | {"dataset": task, "public": public, "joint": joint}
    refused("the first image has .*--image-size", build.load_datasets, flags)
    datasets = build.load_datasets(flags | {"image_size": 8})
    sizes = [part.images.shape for part in (*datasets.task[:2], *datasets.foreign[:2]) if part]
    assert sizes == [(4, 3, 8, 8)] * (4 if joint else 3) and datasets.images["shape"] == (3, 8, 8)
    assert capsys.readouterr().out == (
        f"--dataset {task}: files that are not read: 1 .gif, 1 in val\n"
        f"--public {public}: files that are not read: " + (
            "1 .jpeg2000, 1 .txt\n" if joint else "4 in test, 1 .jpeg2000, 1 .txt\n"))


def test_image_size_is_for_folders():
    refused("^--image-size is for a folder .* toy have 4x4 pixels$", built, image_size=5)
    assert built(image_size=4)[0].test.images.shape[1:] == (3, 4, 4)


def test_classes_are_taken_and_normalized_alone():
    fed, datasets, split = built(classes=[6, 0])
    images, labels = map(torch.cat, zip(*fed.private))
    assert datasets.task.num_classes == 2 and len(fed.test.labels) == 2 * 4
    assert images.mean().abs() < 1e-5 and abs(images.square().mean() - 1) < 1e-4
    assert torch.equal(labels == 0, images[:, 0, 0, 0] > 0)                   # 6 is the brighter
    assert [len(part) for part in split.clients] == [8, 8, 8]


# -------------------------------------------------------------------------------------- held out
@pytest.mark.parametrize("public, share", [
    ("half", 1 / 2), ("half-train", 1 / 2), ("fifth", 1 / 5)])
def test_held_out_samples_are_a_share_of_every_class(public, share):
    """84 training images. Validation images are a share of what is not public."""
    fed, *_ = built(public=public, validation=0.1)
    num_public = round(share * 84)
    assert len(fed.public.labels) == num_public
    assert torch.equal(fed.public.labels, classes_of(fed.public))
    assert len(fed.validation.labels) == round(0.1 * (84 - num_public))
    assert {*fed.validation.labels.bincount(minlength=7).tolist()} <= {0, 1}


@pytest.mark.parametrize("public, sizes", [
    ("half", [14, 14]), ("half-train", [28]), ("fifth", [28])])
def test_with_half_of_the_training_images_half_of_the_test_images_is_public(public, sizes):
    fed, *_ = built(public=public)
    assert [len(part.labels) for part in (fed.test, fed.public_test) if part] == sizes


@pytest.mark.parametrize("public", ["half", "fifth"])
def test_no_image_is_in_two_places_and_all_are_used(public):
    fed, *_ = built(public=public, validation=0.1)
    parts = [*fed.private, fed.public, fed.validation, fed.test, fed.public_test]
    used = torch.cat([part.images for part in parts if part])
    assert len(used.unique(dim=0)) == len(used) == 84 + 28


@pytest.mark.parametrize("public, sizes", [(None, [14]), ("half", [7, 7])])
def test_test_size_takes_a_share_of_every_class_before_the_test_set_is_halved(public, sizes):
    """28 test images of 7 classes. Another seed draws others."""
    fed, other = (built(seed, test_size=14, public=public)[0] for seed in (0, 1))
    tests = [part for part in (fed.test, fed.public_test) if part]
    assert [len(part.labels) for part in tests] == sizes
    images, labels = (torch.cat(parts) for parts in zip(*tests))
    assert len(images.unique(dim=0)) == 14 and labels.bincount().tolist() == [2] * 7
    assert not torch.equal(fed.test.images, other.test.images)


# ------------------------------------------------------------------------------------ partitions
@pytest.mark.parametrize("kind", PARTITIONS)
def test_the_rows_of_every_partition_are_sorted_and_in_one_place(kind):
    """FedGKT's table wants 16 clients and 10 classes, a writer 18 samples."""
    fit = {"fedgkt_table6": {"dataset": "ten", "clients": 16}, "single_writer": {"dataset": "ten"}}
    flags = {"partition": kind, "alpha": 100.0, "clients": 2, "public": "half"} | fit.get(kind, {})
    *_, split = built(**flags)
    rows = np.concatenate([*split.clients, split.public])
    assert len(set(rows)) == len(rows)
    assert all(len(part) and (np.diff(part) > 0).all() for part in split.clients)


def test_the_seed_decides_who_holds_which_images_and_which_are_public():
    one, same, other = (built(seed, public="half")[2] for seed in (0, 0, 1))
    for place in (lambda split: split.clients[0], lambda split: split.public):
        assert place(one).tolist() == place(same).tolist() != place(other).tolist()


@pytest.mark.parametrize("kind, clients", [("by_writer", 7), ("single_writer", 4)])
def test_validation_images_by_writer_are_of_writers_that_no_client_has(kind, clients):
    """A client has all images of its writers. 40 writers of 104 letters, a tenth are four."""
    flags = FLAGS | {"partition": kind, "clients": clients, "validation": 0.1}
    letters = load_dataset("glyphs-letters")
    for seed in range(3):
        split = build.split(flags, build.Datasets(letters, None, {}, {}), seed)
        owners = [np.unique(letters.writers[rows]) for rows in [*split.clients, split.validation]]
        for rows, own in zip([*split.clients, split.validation], owners):
            assert np.array_equal(rows, np.flatnonzero(np.isin(letters.writers, own)))
        everyone = np.concatenate(owners)
        assert len(set(everyone)) == len(everyone) and len(owners[-1]) == 4


def test_by_subclass_gives_clients_other_subclasses_of_all_superclasses():
    _, datasets, split = built(partition="by_subclass", clients=2, public="half")
    held = [datasets.task.subclass[part].tolist() for part in split.clients]
    for own, part in zip(held, split.clients):
        assert datasets.task.train.labels[part].tolist() == SUPERCLASS[own].tolist()
        assert sorted(SUPERCLASS[own]) == [0, 0, 1, 1, 2, 2] and len(set(own)) == 3
    assert not set(held[0]) & set(held[1])


def test_by_subclass_takes_the_superclasses_of_classes():
    fed, *_ = built(partition="by_subclass", classes=[2, 0], clients=2)
    assert all(sorted(private.labels.tolist()) == [0, 0, 1, 1] for private in fed.private)


def test_few_per_class_takes_that_many_private_samples_of_each_class():
    _, datasets, split = built(partition="few_per_class", public="half", per_class=1)
    for part in split.clients:
        assert datasets.task.train.labels[part].bincount().tolist() == [1] * 7


# --------------------------------------------------------------------------------- a split to keep
def written(tmp_path, **arrays):
    """{flags} of a file with these arrays, as the command line sets them."""
    np.savez(tmp_path / "own.npz", **arrays)
    clients = sum(name.startswith("client_") for name in arrays)
    return {"partition": str(tmp_path / "own.npz"), "clients": clients, "split_seed": 0}


def test_a_file_of_row_numbers_says_who_has_which_images(tmp_path):
    """In any order, and for every seed."""
    flags = written(tmp_path, client_0=[50, 3], client_1=np.uint8([7]), public=[2, 1],
                    validation=[9], test=[4, 0], public_test=[5, 27])
    for seed in (0, 1):
        fed, *_ = built(seed, public="half", validation=0.1, **flags)
        parts = [*fed.private, fed.public, fed.validation, fed.test, fed.public_test]
        rows = [[3, 50], [7], [1, 2], [9], [0, 4], [5, 27]]
        for part, data, own in zip(parts, [TOY.train] * 4 + [TOY.test] * 2, rows, strict=True):
            assert part.labels.tolist() == data.labels[own].tolist()
            assert torch.equal(part.images, normalize(data.images[own], *statistics(
                TOY.train.images)))


def test_what_a_file_does_not_have_is_as_without_it(tmp_path):
    """All test images, or those that the seed of the split draws; other images stay unused."""
    flags = written(tmp_path, client_0=[50, 3], client_1=[7], public=[2, 1], validation=[9])
    whole, some = (built(3, test_size=size, **flags)[0] for size in (None, 14))
    assert whole.public is whole.validation is whole.public_test is None
    assert [len(fed.test.labels) for fed in (whole, some)] == [28, 14]
    assert torch.equal(some.test.images, built(0, test_size=14)[0].test.images)
    assert len(built(public="foreign", **flags)[0].public.images) == 4 * 6


def test_one_seed_of_the_split_is_one_split_for_all_seeds():
    """All that decides the data; initial weights differ."""
    flags = dict(train_size=70, test_size=14, public="half", public_size=9, validation=0.1)
    one, *others = (built(seed, split_seed=5, **flags)[0] for seed in (5, 0, 1))
    alone, _, _ = built(5, **flags)
    for fed in (alone, *others):
        for name in ("test", "public", "public_test", "validation"):
            assert torch.equal(getattr(fed, name).images, getattr(one, name).images), name
        assert all(torch.equal(a.images, b.images) for a, b in zip(fed.private, one.private))
    weights = [next(fed.client_model(0).parameters()) for fed in (one, *others)]
    assert not torch.equal(weights[0], weights[1]) and [fed.seed for fed in others] == [0, 1]
    foreign = [built(seed, split_seed=5, public="foreign", public_size=9)[0] for seed in (5, 0)]
    assert torch.equal(*(fed.public.images for fed in foreign))


@pytest.mark.parametrize("words, arrays, flags", [
    ("has the arrays client_1; expected client_0, ", {"client_1": [1]}, {}),
    ("has the arrays client_0, client_2; ", {"client_0": [1], "client_2": [2]}, {}),
    ("has the arrays client_0, x; ", {"client_0": [1], "x": [2]}, {}),
    ("has the arrays public; ", {"public": [1]}, {}),
    ("has public_test, but no test", {"client_0": [1], "public_test": [2]}, {}),
    (r"client_0 has shape \[1\] and type float64; ", {"client_0": [1.]}, {}),
    (r"client_0 has shape \[1, 1\] ", {"client_0": [[1]]}, {}),
    (r"client_0 has shape \[0\] ", {"client_0": np.zeros(0, int)}, {}),
    ("rows from 1 to 84; the training images of toy are 0 to 83", {"client_0": [84, 1]}, {}),
    ("rows from -1 to -1; ", {"client_0": [-1]}, {}),
    ("rows from 28 to 28; the test images of toy are 0 to 27", {"client_0": [1], "test": [28]}, {}),
    ("has training image 4 twice", {"client_0": [1, 4], "public": [4]}, {}),
    ("has training image 4 twice", {"client_0": [4, 4]}, {}),
    ("has test image 2 twice", {"client_0": [1], "test": [2], "public_test": [2]}, {}),
    ("has 2 training images, more than --train-size 1", {"client_0": [1, 4]}, {"train_size": 1}),
    ("another number of clients than --clients 2", {"client_0": [1]}, {"clients": 2}),
    ("another number of clients than --clients 1", {"client_0": [1], "client_1": [2]},
     {"clients": 1}),
    ("--public fifth: .*own.npz has no array public", {"client_0": [1]}, {"public": "fifth"}),
    ("--validation 0.1: .*own.npz has no array validation", {"client_0": [1]},
     {"validation": 0.1}),
    ("is a split of other images, mine: not of --dataset toy, 84 training",
     {"client_0": [1], "dataset": "mine"}, {})])
def test_a_file_that_is_no_split_of_the_images_is_refused(tmp_path, words, arrays, flags):
    refused(words, built, **written(tmp_path, **arrays) | flags)


# -------------------------------------------------------------------------------------- networks
def test_networks_are_those_of_the_flags():
    fed, *_ = built(model=["mlp", "cnn"], server_model="cnn_large")
    networks = [*map(fed.client_model, range(3)), fed.server_model()]
    assert [type(network).__name__ for network in networks] == ["MLP", "CNN", "MLP", "LargeCNN"]
    assert fed.architecture == ["mlp", "cnn", "mlp"]


def test_augment_and_amp_reach_the_federation():
    plain, other = built()[0], built(augment=True, amp=True)[0]
    assert plain.augment(plain.test.images, None) is plain.test.images and not plain.amp
    assert (other.augment, other.amp) == (crop_and_flip, True)


def test_the_servers_network_has_a_seed_of_its_own():
    """Another than the clients', though both networks are of the same kind here."""
    fed, other = built()[0], built(seed=1)[0]
    one, same, *others = (next(network.parameters()) for network in (
        fed.server_model(), fed.server_model(), fed.server_model(1), other.server_model(),
        fed.client_model(0)))
    assert torch.equal(one, same) and not any(torch.equal(one, weights) for weights in others)


# --------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize("words, changes", [
    ("^fedmd5 needs images of at least 12x12 .* have 4x4$", {"model": ["mlp", "fedmd5"]}),
    ("foreign has no superclass", {"dataset": "foreign", "partition": "by_subclass"}),
    ("has 12 samples", {"partition": "by_subclass", "clients": 2, "per_class": 13}),
    ("^--public copy: .* training images.* --public half", {"public": "copy", "classes": [0, 2]})])
def test_what_the_data_sets_cannot_give_is_refused(words, changes):
    refused(words, built, **changes)


@pytest.mark.parametrize("kind", ["by_writer", "single_writer"])
def test_a_partition_by_writer_needs_writers(sets, kind):
    sets["toy"] = TOY._replace(writers=None)
    refused(f"--partition {kind}: toy does not name its writers", built, partition=kind)


def without(label, part):
    return Data(*(x[part.labels != label] for x in part))


@pytest.mark.parametrize("missing", [0, 2])
def test_each_class_needs_training_images_or_is_left_out(sets, missing):
    sets["toy"] = TOY._replace(train=without(missing, TOY.train), writers=None, superclass=None)
    refused(f"^--dataset toy: no training image has label {missing}; "
            "--classes can leave labels out$", built)
    fed, *_ = built(classes=[c for c in range(7) if c != missing])
    assert fed.num_classes == 6 and len(fed.test.labels) == 6 * 4


def test_each_public_class_needs_training_images_if_labels_are_used(sets):
    sets["foreign"] = FOREIGN._replace(train=without(1, FOREIGN.train))
    refused("^--public foreign: no training image has label 1$", built, public="foreign",
            joint=True)
    assert built(public="foreign")[0].public.labels is None


def test_a_benchmark_has_the_federation_and_the_settings_of_its_command():
    fed, settings = federation_of("--algo fedsdd,fedavg --dataset ten --model mlp --clients 4 "
                                  "--participation 1 --seeds 3".split())
    assert fed.seed == 3 and len(fed.private) == 4 and fed.public.labels is None
    assert fed.architecture == ["mlp"] * 4 and settings["fedsdd"]["distill_steps"] == 100
