"""Who has which images: the data sets of a command, and a `Split` of their rows for each seed.

In all functions `images` are settings: an `Images` of experiment/settings.py.
"""
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

import numpy as np
import torch

import partition
from data.images import BadData, statistics, to_float
from data.load import (Dataset, by_superclass, check_classes, fingerprint, load_dataset,
                       load_public, only)
from federation import make_rng

# --public: the share that no client holds. With "half" the test set is halved as well.
HELD_OUT = {"half": 1 / 2, "half-train": 1 / 2, "fifth": 1 / 5}


def is_split_file(images):
    """True if --partition is a file of row numbers, not a rule."""
    return images.partition.lower().endswith(".npz")


def is_held_out(images):
    """True if the public images are a share of the task's training images."""
    return images.public in HELD_OUT


def is_foreign(images):
    """True if the public images come from another data set than the clients' images."""
    return images.public is not None and not is_held_out(images)


def seed_of_split(images, seed):
    """The seed that decides who has which images in the run of a seed."""
    return seed if images.split_seed is None else images.split_seed


class Split(NamedTuple):
    """Rows of the task's training and test set; all of one set are different."""

    clients: list[np.ndarray]           # of the training set, as the next two
    public: np.ndarray | None           # None if no training images are public
    validation: np.ndarray | None
    test: np.ndarray                    # of the test set, as the next one
    public_test: np.ndarray | None      # None unless half of the test images are public


@dataclass(eq=False)
class Datasets:
    """What the runs of a command share; pixels are as in the files."""

    task: Dataset
    foreign: Dataset | None      # the public data set, if it is another one
    fingerprints: dict           # {flag: a line that identifies its data set}
    mean: torch.Tensor           # of the task's training images, [c]; with std it normalizes all
    std: torch.Tensor
    class_names: list            # the name of each label of the task
    splits: dict                 # {seed: its `Split`}


def load_datasets(images, seeds, rows=None):
    """The `Datasets` of the seeds of a command.

    rows      of --partition FILE, see `readers.split`; None: a rule divides the images
    raises    BadData: a data set cannot be loaded, or does not go with the settings
    """
    task = load_task(images)
    foreign = load_foreign(images, task) if is_foreign(images) else None
    fingerprints = {"dataset": fingerprint(task)}
    if foreign is not None:
        fingerprints["public"] = fingerprint(foreign)
    if rows is not None:
        rows = checked_rows(images, rows, task, fingerprints["dataset"])
        content = repr([(name, rows[name].tolist()) for name in sorted(rows)]).encode()
        fingerprints["partition"] = f"{images.clients} clients, checksum {crc32(content):08x}"
    try:
        splits = {number: split_images(images, task, rows, number)
                  for number in {seed_of_split(images, seed) for seed in seeds}}
    except ValueError as error:              # of a rule, for example: too few images of a class
        raise BadData(error) from error
    mean, std = statistics(to_float(task.train.images))
    names = task.class_names or [*map(str, images.classes or range(task.num_classes))]
    return Datasets(task, foreign, fingerprints, mean, std, names,
                    {seed: splits[seed_of_split(images, seed)] for seed in seeds})


def load_task(images):
    """The data set that the clients learn, with the labels that --partition and --classes leave."""
    size = images.image_size and (images.image_size,) * 2
    task = load_dataset(images.dataset, images.data_root, size)
    height, width = task.train.images.shape[2:]
    if size not in (None, (height, width)):
        raise BadData(f"--image-size is for a folder of images; those of {images.dataset} have "
                         f"{height}x{width} pixels")
    _, needed = partition.PARTITIONS.get(images.partition, (None, ()))
    if "subclass" in needed:
        task = by_superclass(task, images.dataset)
    if "writers" in needed and task.writers is None:
        raise BadData(f"--partition {images.partition}: {images.dataset} does not name its "
                         "writers")
    if images.classes is not None:
        task = only(task, images.classes)
    check_classes(f"--dataset {images.dataset}", task, "; --classes can leave labels out")
    return task


def load_foreign(images, task):
    """The public images that are another data set; its labels are read for --joint alone."""
    load = load_dataset if images.joint else load_public
    foreign = load(images.public, images.data_root, tuple(task.train.images.shape[2:]))
    if torch.equal(foreign.train.images, task.train.images):
        raise BadData(f"--public {images.public}: these are the training images themselves, "
                         "which clients hold; --public half or fifth keeps a share of them out of "
                         "the clients")
    if images.joint:
        check_classes(f"--public {images.public}", foreign)
    return foreign


# --------------------------------------------------------------------------- who has which rows

def checked_rows(images, rows, task, made_of):
    """{name: row numbers} of --partition FILE. Raises BadData if they do not fit the images.

    made_of    the fingerprint of the task
    """
    path, rows = images.partition, dict(rows)
    if str(rows.pop("dataset", made_of)) != made_of:
        raise BadData(f"{path} is a split of other images, not of --dataset {images.dataset}, "
                         f"{made_of}")
    if f"client_{images.clients - 1}" not in rows or f"client_{images.clients}" in rows:
        raise BadData(f"{path} has another number of clients than --clients {images.clients}")
    for name, is_used in [("public", is_held_out(images)),
                          ("validation", images.validation is not None)]:
        if is_used and name not in rows:
            raise BadData(f"--{name} {getattr(images, name)}: {path} has no array {name}")
    for noun, part in [("training", task.train), ("test", task.test)]:
        chosen = [rows[name] for name in rows if ("test" in name) == (noun == "test")]
        found, counts = np.unique(np.concatenate(chosen or [[]]), return_counts=True)
        if len(found) and not 0 <= found[0] <= found[-1] < len(part.labels):
            raise BadData(f"{path} has rows from {found[0]} to {found[-1]}; the {noun} images "
                             f"of {images.dataset} are 0 to {len(part.labels) - 1}")
        if (counts > 1).any():
            raise BadData(f"{path} has {noun} image {found[counts > 1][0]} twice")
    return rows


def split_images(images, task, rows, seed):
    """The `Split` of a split's seed. Raises ValueError if the data do not allow the partition.

    rows    of --partition FILE, which --train-size and --public do not change; None: a rule divides
    """
    labels, public_test = task.test.labels.numpy(), None
    test = np.arange(len(labels))
    if rows:
        clients = [rows[f"client_{i}"] for i in range(images.clients)]
        public, validation, public_test = map(rows.get, ("public", "validation", "public_test"))
        test = rows.get("test", test)
    else:
        clients, public, validation = divide(images, task, seed)
    test = test[at_most(images.test_size, labels[test], make_rng(seed, "test_size"))]
    if images.public == "half" and public_test is None:      # the test set is halved as well
        halves = partition.halves(labels[test], make_rng(seed, "public_test"))
        public_test, test = (test[half] for half in halves)
    if public is not None:
        public = some_of(public, images.public_size, seed)
    return Split(clients, public, validation, test, public_test)


def divide(images, task, seed):
    """(rows of each client, of the public images, of the validation images) by a rule."""
    labels = task.train.labels.numpy()
    rows = at_most(images.train_size, labels, make_rng(seed, "train_size"))
    public, validation = None, None
    if is_held_out(images):
        share = HELD_OUT[images.public]
        held_out, rest = partition.hold_out(labels[rows], share, make_rng(seed, "public"))
        public, rows = rows[held_out], rows[rest]
    rule, needed = partition.PARTITIONS[images.partition]
    if images.validation is not None:
        rng = make_rng(seed, "validation")
        if "writers" in needed:                          # whole writers
            held_out, rest = partition.hold_out_writers(
                task.writers[rows], images.validation, rng)
        else:
            held_out, rest = partition.hold_out(labels[rows], images.validation, rng)
        validation, rows = rows[held_out], rows[rest]
    of_rows = {"labels": labels, "writers": task.writers, "subclass": task.subclass}
    arguments = {name: of_rows[name][rows] if name in of_rows else getattr(images, name)
                 for name in needed}
    parts = rule(**arguments, num_clients=images.clients, rng=make_rng(seed, "partition"))
    return [rows[part] for part in parts], public, validation


def some_of(rows, size, seed):
    """At most `size` of the public rows, or all of them if size is None."""
    if size is None or size >= len(rows):
        return rows
    return rows[np.sort(make_rng(seed, "public_size").choice(len(rows), size, replace=False))]


def at_most(size, labels, rng):
    """Rows of `size` samples, of each class its share; all rows if size is None or too large."""
    if size is None or size >= len(labels):
        return np.arange(len(labels))
    return partition.hold_out(labels, size / len(labels), rng)[0]
