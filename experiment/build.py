"""From flags and a seed to a `Federation`: each client's images, the device, the networks."""
import dataclasses
from typing import NamedTuple

import numpy as np
import torch

import models
import partition
from data.images import adapt, crop_and_flip, normalize, statistics, to_float
from data.load import (Dataset, by_superclass, check_classes, check_public, fingerprint,
                       load_dataset, only)
from federation import Data, Federation, seeded, stream

# --public: the share that no client holds. With "half" the test set is halved as well.
HELD_OUT = {"half": 1 / 2, "half-train": 1 / 2, "fifth": 1 / 5}


class Datasets(NamedTuple):
    """What the runs of all seeds share; pixels are as in the files."""

    task: Dataset
    foreign: Dataset | None             # the public data set, if it is another one


class Split(NamedTuple):
    """Rows of the task's training set, all different."""

    clients: list[np.ndarray]
    public: np.ndarray | None           # None if no training images are public
    validation: np.ndarray | None


class Private(NamedTuple):
    """The samples to be split among the clients: what a partition may depend on."""

    labels: np.ndarray
    writers: np.ndarray | None
    subclass: np.ndarray | None


def few_of_subclasses(flags, private, rng):
    """FedMD's CIFAR-100: --per-class samples of one subclass of each superclass for each client."""
    parts = partition.by_subclass(private.labels, private.subclass, flags["clients"], rng)
    return [part[partition.few_per_class(private.labels[part], 1, flags["per_class"], rng)[0]]
            for part in parts]


PARTITIONS = {      # {name: function(flags, private, rng) -> the indices of each client's samples}
    "iid": lambda flags, private, rng: partition.iid(private.labels, flags["clients"], rng),
    "dirichlet": lambda flags, private, rng: partition.dirichlet(
        private.labels, flags["clients"], flags["alpha"], rng),
    "dirichlet_balanced": lambda flags, private, rng: partition.dirichlet_balanced(
        private.labels, flags["clients"], flags["alpha"], rng),
    "dirichlet_equal": lambda flags, private, rng: partition.dirichlet_equal(
        private.labels, flags["clients"], flags["alpha"], rng),
    "by_writer": lambda flags, private, rng: partition.by_writer(
        private.writers, flags["clients"], rng),
    "single_writer": lambda flags, private, rng: partition.single_writer(
        private.writers, flags["clients"], rng),
    "few_per_class": lambda flags, private, rng: partition.few_per_class(
        private.labels, flags["clients"], flags["per_class"], rng),
    "by_subclass": few_of_subclasses,
    "fedgkt_table6": lambda flags, private, rng: partition.fedgkt_table6(
        private.labels, flags["clients"], rng)}


def has_foreign_public(flags):
    """True if the public images come from another data set than the clients' images."""
    return flags["public"] is not None and flags["public"] not in HELD_OUT


def load_datasets(flags, networks):
    """The `Datasets` of a run; networks: the `networks_of` each algorithm, by label.

    Raises ValueError if a data set cannot be loaded, a class has no training images, the public
    images are the training images, the partition needs what the data set does not tell, or a
    network cannot take the images.
    """
    task, foreign = load_dataset(flags["dataset"], flags["data_root"]), None
    if has_foreign_public(flags):
        foreign = load_dataset(flags["public"], flags["data_root"])
        check_public(f"--public {flags['public']}", foreign, task)
    if flags["joint"]:
        check_classes(f"--public {flags['public']}", foreign)
    if flags["partition"] == "by_subclass":
        task = by_superclass(task, flags["dataset"])
    if flags["partition"] in ("by_writer", "single_writer") and task.writers is None:
        raise ValueError(f"--partition {flags['partition']}: {flags['dataset']} does not name its "
                         "writers")
    if flags["classes"] is not None:
        task = only(task, flags["classes"])
    check_classes(f"--dataset {flags['dataset']}", task, "; --classes can leave labels out")
    datasets, image_shape = Datasets(task, foreign), tuple(task.train.images.shape[1:])
    with seeded(0, "can the networks take such images"):
        for name in dict.fromkeys(name for own in networks.values() for name in own["model"]):
            models.build(name, image_shape, num_outputs(flags, datasets))
    return datasets


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
    public, validation, rows = None, None, np.arange(len(labels))
    if (flags["train_size"] or len(rows)) < len(rows):
        share = flags["train_size"] / len(rows)
        rows, _ = partition.hold_out(labels, share, stream(seed, "train_size"))
    if flags["public"] in HELD_OUT:
        share = HELD_OUT[flags["public"]]
        held_out, rest = partition.hold_out(labels[rows], share, stream(seed, "public"))
        public, rows = rows[held_out], rows[rest]
    if flags["validation"] is not None:
        rng = stream(seed, "validation")
        held_out, rest = partition.hold_out(labels[rows], flags["validation"], rng)
        validation, rows = rows[held_out], rows[rest]
    private = Private(labels[rows], *(
        None if array is None else array[rows] for array in (task.writers, task.subclass)))
    parts = PARTITIONS[flags["partition"]](flags, private, stream(seed, "partition"))
    return Split([rows[part] for part in parts], public, validation)


def federation(flags, datasets, split, seed, device, threads=None):
    """The `Federation` of a seed, on `device`, without networks: see `with_networks`.

    All images get the task's shape and are normalized by its training images. Bytes become floats
    here, after the rows are chosen: 1.28 million public images of ImageNet-32 are 4 GB of bytes.
    """
    task, foreign = datasets
    image_shape = tuple(task.train.images.shape[1:])
    mean, std = statistics(to_float(task.train.images))

    def pick(part, rows):
        rows = torch.as_tensor(rows)
        images = adapt(to_float(part.images[rows]), image_shape)
        labels = None if part.labels is None else part.labels[rows].to(device)
        return Data(normalize(images, mean, std).to(device), labels)

    num_classes = num_outputs(flags, datasets)
    first_label = num_classes - task.num_classes         # of the task; public classes come first
    train, test = (part._replace(labels=part.labels + first_label) for part in task[:2])
    public, public_test, test_rows = None, None, np.arange(len(test.labels))
    public_part, public_rows = train, split.public
    if foreign is not None:
        public_part = foreign.train if flags["joint"] else foreign.train._replace(labels=None)
        public_rows = np.arange(len(foreign.train.labels))
        if flags["joint"]:
            public_test = pick(foreign.test, np.arange(len(foreign.test.labels)))
    if flags["public"] == "half":                        # the test set is halved as well
        public_test_rows, test_rows = partition.halves(
            test.labels.numpy(), stream(seed, "public_test"))
        public_test = pick(test, public_test_rows)
    if public_rows is not None:
        if (flags["public_size"] or len(public_rows)) < len(public_rows):
            rng = stream(seed, "public_size")
            chosen = rng.choice(len(public_rows), flags["public_size"], replace=False)
            public_rows = public_rows[sorted(chosen)]
        public = pick(public_part, public_rows)
    return Federation(
        private=[pick(train, rows) for rows in split.clients], test=pick(test, test_rows),
        num_classes=num_classes, client_model=None, architecture=[], seed=seed, device=device,
        public=public, public_test=public_test,
        validation=None if split.validation is None else pick(train, split.validation),
        augment=crop_and_flip if flags["augment"] else None, amp=flags["amp"], threads=threads)


def with_networks(fed, model, server_model):
    """The federation with these networks.

    model           names of the clients' networks: client i has number i mod their number
    server_model    the name of the server's
    """
    image_shape = tuple(fed.private[0].images.shape[1:])
    architecture = [model[i % len(model)] for i in range(len(fed.private))]

    def new_client_model(i, init=0):
        with seeded(fed.seed, "init", init):
            return models.build(architecture[i], image_shape, fed.num_classes).to(fed.device)

    def new_server_model(init=0):
        with seeded(fed.seed, "server init", init):
            return models.build(server_model, image_shape, fed.num_classes).to(fed.device)

    return dataclasses.replace(fed, client_model=new_client_model, server_model=new_server_model,
                               architecture=architecture)
