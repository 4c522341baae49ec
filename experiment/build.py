"""From flags and a seed to a `Federation`: each client's images, the device, the networks."""
import dataclasses
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

import attacks
import models
import partition
from data.images import adapt, crop_and_flip, normalize, statistics, to_float
from data.load import Dataset, by_superclass, check_classes, fingerprint, load_dataset, only
from experiment.presets import HELD_OUT
from federation import Data, Federation, restrict_public, seeded, stream


class Datasets(NamedTuple):
    """What the runs of all seeds share; pixels are as in the files."""

    task: Dataset
    foreign: Dataset | None             # the public data set, if it is another one


class Split(NamedTuple):
    """Rows of the task's training set, all different."""

    clients: list[np.ndarray]
    public: np.ndarray | None           # None if no training images are public
    validation: np.ndarray | None


def has_foreign_public(flags):
    """True if the public images come from another data set than the clients' images."""
    return flags["public"] is not None and flags["public"] not in HELD_OUT


def load_datasets(flags):
    """The `Datasets` of a command.

    Raises ValueError if a data set cannot be loaded, a class has no training images, the public
    images are the training images, or the partition needs what the data set does not tell.
    """
    task, foreign = load_dataset(flags["dataset"], flags["data_root"]), None
    if has_foreign_public(flags):
        foreign = load_dataset(flags["public"], flags["data_root"])
        if torch.equal(foreign.train.images, task.train.images):
            raise ValueError(f"--public {flags['public']}: these are the training images "
                             "themselves, which clients hold; --public half or fifth keeps a share "
                             "of them out of the clients")
    if flags["joint"]:
        check_classes(f"--public {flags['public']}", foreign)
    _, needed = partition.PARTITIONS[flags["partition"]]
    if "subclass" in needed:
        task = by_superclass(task, flags["dataset"])
    if "writers" in needed and task.writers is None:
        raise ValueError(f"--partition {flags['partition']}: {flags['dataset']} does not name its "
                         "writers")
    if flags["classes"] is not None:
        task = only(task, flags["classes"])
    check_classes(f"--dataset {flags['dataset']}", task, "; --classes can leave labels out")
    return Datasets(task, foreign)


def fingerprints(flags, datasets):
    """{flag: the fingerprint of its data set}; held-out public images have a name of HELD_OUT."""
    task, foreign = datasets
    return {"dataset": fingerprint(task),
            "public": flags["public"] if foreign is None else fingerprint(foreign)}


def num_outputs(flags, datasets):
    """The networks' number of classes: the task's, and with --joint also the public data set's."""
    return datasets.task.num_classes + (datasets.foreign.num_classes if flags["joint"] else 0)


def split(flags, task, seed):
    """The `Split` of a seed. Raises ValueError if the data set does not allow the partition."""
    labels = task.train.labels.numpy()
    rows = at_most(flags["train_size"], labels, stream(seed, "train_size"))
    public, validation = None, None
    if flags["public"] in HELD_OUT:
        share = HELD_OUT[flags["public"]]
        held_out, rest = partition.hold_out(labels[rows], share, stream(seed, "public"))
        public, rows = rows[held_out], rows[rest]
    rule, needed = partition.PARTITIONS[flags["partition"]]
    if flags["validation"] is not None:
        rng = stream(seed, "validation")
        if "writers" in needed:                          # whole writers
            held_out, rest = partition.hold_out_writers(
                task.writers[rows], flags["validation"], rng)
        else:
            held_out, rest = partition.hold_out(labels[rows], flags["validation"], rng)
        validation, rows = rows[held_out], rows[rest]
    known = {"labels": labels, "writers": task.writers, "subclass": task.subclass}
    arguments = {name: known[name][rows] if name in known else flags[name] for name in needed}
    parts = rule(**arguments, num_clients=flags["clients"], rng=stream(seed, "partition"))
    return Split([rows[part] for part in parts], public, validation)


def at_most(size, labels, rng):
    """Rows of `size` samples, of each class its share; all rows if size is None or too large."""
    if size is None or size >= len(labels):
        return np.arange(len(labels))
    return partition.hold_out(labels, size / len(labels), rng)[0]


def federation(plan, datasets, seed, device):
    """The `Federation` of a seed, on `device`, without networks: see `with_networks`.

    All images get the task's shape and are normalized by its training images. Bytes become floats
    here, after the rows are chosen: 1.28 million public images of ImageNet-32 are 4 GB of bytes.
    """
    flags, (task, foreign) = plan.flags, datasets
    rows = split(flags, task, seed)
    image_shape = tuple(task.train.images.shape[1:])
    mean, std = statistics(to_float(task.train.images))

    def pick(part, chosen):
        chosen = torch.as_tensor(chosen)
        images = adapt(to_float(part.images[chosen]), image_shape)
        labels = None if part.labels is None else part.labels[chosen].to(device)
        return Data(normalize(images, mean, std).to(device), labels)

    num_classes = num_outputs(flags, datasets)
    first_label = num_classes - task.num_classes         # of the task; public classes come first
    train, test = (part._replace(labels=part.labels + first_label) for part in task[:2])
    test_rows = at_most(flags["test_size"], test.labels.numpy(), stream(seed, "test_size"))
    public, public_test, public_part, public_rows = None, None, train, rows.public
    if foreign is not None:
        public_part = foreign.train if flags["joint"] else foreign.train._replace(labels=None)
        public_rows = np.arange(len(foreign.train.labels))
        if flags["joint"]:
            public_test = pick(foreign.test, np.arange(len(foreign.test.labels)))
    if flags["public"] == "half":                        # the test set is halved as well
        halves = partition.halves(test.labels[test_rows].numpy(), stream(seed, "public_test"))
        public_test, test_rows = pick(test, test_rows[halves[0]]), test_rows[halves[1]]
    if public_rows is not None:
        if (flags["public_size"] or len(public_rows)) < len(public_rows):
            rng = stream(seed, "public_size")
            chosen = rng.choice(len(public_rows), flags["public_size"], replace=False)
            public_rows = public_rows[sorted(chosen)]
        public = pick(public_part, public_rows)
    return Federation(
        private=[pick(train, own) for own in rows.clients], test=pick(test, test_rows),
        num_classes=num_classes, client_model=None, architecture=[], seed=seed, device=device,
        public=public, public_test=public_test,
        validation=None if rows.validation is None else pick(train, rows.validation),
        augment=crop_and_flip if flags["augment"] else None,
        amp=plan.environment["amp"], threads=plan.environment["threads"])


def with_networks(fed, model, server_model):
    """The federation with these networks.

    model           names of the clients' networks: client i has number i mod their number
    server_model    the name of the server's
    """
    image_shape = tuple(fed.private[0].images.shape[1:])
    architecture = [model[i % len(model)] for i in range(len(fed.private))]

    def new(name, key, init):
        with seeded(fed.seed, key, init):
            return models.build(name, image_shape, fed.num_classes).to(fed.device)

    return dataclasses.replace(
        fed, architecture=architecture,
        client_model=lambda i, init=0: new(architecture[i], "init", init),
        server_model=lambda init=0: new(server_model, "server init", init))


def seen_by(run, fed, flags):
    """The federation as the algorithm of a run sees it: with its networks and its public data."""
    fed = with_networks(fed, **run.networks)
    if flags["joint"] and run.algorithm.public != "joint":
        fed = dataclasses.replace(fed, public_test=None)  # its labels are of classes not learned
    if run.algorithm.server == "none":
        fed = dataclasses.replace(fed, server_model=None)
    return restrict_public(fed, run.algorithm.public)


def attack(fed, flags):
    """The keyword arguments for `run` that say who attacks: {} or {"attack": `Attack`}."""
    if flags["attack"] is None:
        return {}
    return {"attack": attacks.build(flags["attack"], partial(stream, fed.seed), len(fed.private),
                                    flags["attackers"], flags["attack_scale"], flags["attack_z"])}


def check(plan, datasets, runs, device):
    """Raises ValueError if a partition, a network or an algorithm does not fit the data.

    Federations are alike for all seeds: for the algorithms one will do.
    """
    image_shape = tuple(datasets.task.train.images.shape[1:])
    with seeded(0, "can the networks take such images"):
        for name in dict.fromkeys(name for own in plan.networks.values() for name in own["model"]):
            models.build(name, image_shape, num_outputs(plan.flags, datasets))
    for seed in plan.seeds[1:]:
        split(plan.flags, datasets.task, seed)
    fed = federation(plan, datasets, plan.seeds[0], device)
    for run in runs[:len(plan.algorithms)]:
        own = seen_by(run, fed, plan.flags)
        run.algorithm.check(own, **run.settings)
