"""Who has which images: the data sets of a command, and a `Split` of their rows for each seed.

`data_cfg` are settings: a `DataConfig` of experiment/settings.py.
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


def is_split_file(data_cfg):
    """True if --partition is a file of row numbers, not a rule."""
    return data_cfg.partition.lower().endswith(".npz")


def is_held_out(data_cfg):
    """True if the public images are a share of the task's training images."""
    return data_cfg.public in HELD_OUT


def is_foreign(data_cfg):
    """True if the public images come from another data set than the clients' images."""
    return data_cfg.public is not None and not is_held_out(data_cfg)


def seed_of_split(data_cfg, seed):
    """The seed that decides who has which images in the run of a seed."""
    return seed if data_cfg.split_seed is None else data_cfg.split_seed


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


def load_datasets(data_cfg, seeds, rows=None):
    """The `Datasets` of the seeds of a command.

    rows      of --partition FILE, see `readers.split`; None: a rule divides the images
    raises    BadData: a data set cannot be loaded, or does not go with the settings
    """
    task = load_task(data_cfg)
    foreign = load_foreign(data_cfg, task) if is_foreign(data_cfg) else None
    fingerprints = {"dataset": fingerprint(task)}
    if foreign is not None:
        fingerprints["public"] = fingerprint(foreign)
    if rows is not None:
        rows = checked_rows(data_cfg, rows, task, fingerprints["dataset"])
        content = repr([(name, rows[name].tolist()) for name in sorted(rows)]).encode()
        fingerprints["partition"] = f"{data_cfg.clients} clients, checksum {crc32(content):08x}"
    try:
        splits = {number: split_images(data_cfg, task, rows, number)
                  for number in {seed_of_split(data_cfg, seed) for seed in seeds}}
    except ValueError as error:              # of a rule, for example: too few images of a class
        raise BadData(error) from error
    mean, std = statistics(to_float(task.train.images))
    names = task.class_names or [*map(str, data_cfg.classes or range(task.num_classes))]
    return Datasets(task, foreign, fingerprints, mean, std, names,
                    {seed: splits[seed_of_split(data_cfg, seed)] for seed in seeds})


def load_task(data_cfg):
    """The data set that the clients learn, with the labels that --partition and --classes leave."""
    size = data_cfg.image_size and (data_cfg.image_size,) * 2
    task = load_dataset(data_cfg.dataset, data_cfg.data_root, size)
    height, width = task.train.images.shape[2:]
    if size not in (None, (height, width)):
        raise BadData(f"--image-size is for a folder of images; those of {data_cfg.dataset} have "
                      f"{height}x{width} pixels")
    _, needed = partition.PARTITIONS.get(data_cfg.partition, (None, ()))
    if "subclass" in needed:
        task = by_superclass(task, data_cfg.dataset)
    if "writers" in needed and task.writers is None:
        raise BadData(f"--partition {data_cfg.partition}: {data_cfg.dataset} does not name its "
                      "writers")
    if data_cfg.classes is not None:
        task = only(task, data_cfg.classes)
    check_classes(f"--dataset {data_cfg.dataset}", task, "; --classes can leave labels out")
    return task


def load_foreign(data_cfg, task):
    """The public images that are another data set; its labels are read for --joint alone."""
    load = load_dataset if data_cfg.joint else load_public
    foreign = load(data_cfg.public, data_cfg.data_root, tuple(task.train.images.shape[2:]))
    if torch.equal(foreign.train.images, task.train.images):
        raise BadData(f"--public {data_cfg.public}: these are the training images themselves, "
                      "which clients hold; --public half or fifth keeps a share of them out of "
                      "the clients")
    if data_cfg.joint:
        check_classes(f"--public {data_cfg.public}", foreign)
    return foreign


# --------------------------------------------------------------------------- who has which rows

def checked_rows(data_cfg, rows, task, made_of):
    """{name: row numbers} of --partition FILE. Raises BadData if they do not fit the images.

    made_of    the fingerprint of the task
    """
    path, rows = data_cfg.partition, dict(rows)
    if str(rows.pop("dataset", made_of)) != made_of:
        raise BadData(f"{path} is a split of other images, not of --dataset {data_cfg.dataset}, "
                      f"{made_of}")
    if f"client_{data_cfg.clients - 1}" not in rows or f"client_{data_cfg.clients}" in rows:
        raise BadData(f"{path} has another number of clients than --clients {data_cfg.clients}")
    for name, is_used in [("public", is_held_out(data_cfg)),
                          ("validation", data_cfg.validation is not None)]:
        if is_used and name not in rows:
            raise BadData(f"--{name} {getattr(data_cfg, name)}: {path} has no array {name}")
    of_test = {"test", "public_test"}
    for noun, part, names in [("training", task.train, rows.keys() - of_test),
                              ("test", task.test, rows.keys() & of_test)]:
        chosen = [rows[name] for name in names]
        found, counts = np.unique(np.concatenate(chosen or [[]]), return_counts=True)
        if len(found) and not 0 <= found[0] <= found[-1] < len(part.labels):
            raise BadData(f"{path} has rows from {found[0]} to {found[-1]}; the {noun} images "
                          f"of {data_cfg.dataset} are 0 to {len(part.labels) - 1}")
        if (counts > 1).any():
            raise BadData(f"{path} has {noun} image {found[counts > 1][0]} twice")
    return rows


def split_images(data_cfg, task, rows, seed):
    """The `Split` of a split's seed. Raises ValueError if the data do not allow the partition.

    rows    of --partition FILE, which --train-size and --public do not change; None: a rule divides
    """
    labels, public_test = task.test.labels.numpy(), None
    test = np.arange(len(labels))
    if rows:
        clients = [rows[f"client_{i}"] for i in range(data_cfg.clients)]
        public, validation, public_test = map(rows.get, ("public", "validation", "public_test"))
        test = rows.get("test", test)
    else:
        clients, public, validation = divide(data_cfg, task, seed)
    test = test[stratified(data_cfg.test_size, labels[test], make_rng(seed, "test_size"))]
    if data_cfg.public == "half" and public_test is None:      # the test set is halved as well
        halves = partition.halves(labels[test], make_rng(seed, "public_test"))
        public_test, test = (test[half] for half in halves)
    if public is not None:
        public = some_public(public, data_cfg.public_size, seed)
    return Split(clients, public, validation, test, public_test)


def divide(data_cfg, task, seed):
    """(rows of each client, of the public images, of the validation images) by a rule."""
    labels = task.train.labels.numpy()
    rows = stratified(data_cfg.train_size, labels, make_rng(seed, "train_size"))
    public, validation = None, None
    if is_held_out(data_cfg):
        share = HELD_OUT[data_cfg.public]
        held_out, rest = partition.hold_out(labels[rows], share, make_rng(seed, "public"))
        public, rows = rows[held_out], rows[rest]
    rule, needed = partition.PARTITIONS[data_cfg.partition]
    if data_cfg.validation is not None:
        rng = make_rng(seed, "validation")
        if "writers" in needed:                          # whole writers
            held_out, rest = partition.hold_out_writers(
                task.writers[rows], data_cfg.validation, rng)
        else:
            held_out, rest = partition.hold_out(labels[rows], data_cfg.validation, rng)
        validation, rows = rows[held_out], rows[rest]
    of_rows = {"labels": labels, "writers": task.writers, "subclass": task.subclass}
    arguments = {name: of_rows[name][rows] if name in of_rows else getattr(data_cfg, name)
                 for name in needed}
    parts = rule(**arguments, num_clients=data_cfg.clients, rng=make_rng(seed, "partition"))
    return [rows[part] for part in parts], public, validation


def some_public(rows, size, seed):
    """At most `size` of the public rows, or all of them if size is None."""
    if size is None or size >= len(rows):
        return rows
    return rows[np.sort(make_rng(seed, "public_size").choice(len(rows), size, replace=False))]


def stratified(size, labels, rng):
    """Rows of `size` samples, of each class its share; all rows if size is None or too large."""
    if size is None or size >= len(labels):
        return np.arange(len(labels))
    return partition.hold_out(labels, size / len(labels), rng)[0]
