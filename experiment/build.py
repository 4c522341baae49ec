"""What a command's flags name, loaded: data sets, a `Federation` for each seed, its networks."""
import dataclasses
from functools import partial
from typing import NamedTuple
from zlib import crc32

import numpy as np
import torch

import attacks
import models
import partition
from data import readers
from data.images import adapt, crop_and_flip, normalize, statistics, to_float
from data.load import (Dataset, by_superclass, check_classes, fingerprint, ignored,
                       load_dataset, load_public, only)
from experiment.plateau import run_with_plateau
from experiment.processes import say
from experiment.settings import HELD_OUT, is_foreign, is_split_file
from federation import Data, Federation, make_rng, new_network, predict, seed_torch


class Datasets(NamedTuple):
    """What the runs of all seeds share; pixels are as in the files."""

    task: Dataset
    foreign: Dataset | None             # the public data set, if it is another one
    fingerprints: dict                  # {flag: a line that identifies its data set}
    images: dict                        # what a network needs: {"shape", "mean", "std", "classes"}
    rows: dict | None = None            # of --partition FILE, see `readers.split`; None: of a rule


class Split(NamedTuple):
    """Rows of the task's training and test set; all of one set are different."""

    clients: list[np.ndarray]           # of the training set, as the next two
    public: np.ndarray | None           # None if no training images are public
    validation: np.ndarray | None
    test: np.ndarray                    # of the test set, as the next one
    public_test: np.ndarray | None      # None unless half of the test images are public


def load_datasets(shared):
    """The `Datasets` of a command; shared: its settings, {name: value} of `Images`, `Training`.

    Raises ValueError if a data set cannot be loaded, a class has no training images, the public
    images are the training images, or the partition needs what the data set does not tell. Prints
    how many files of a folder are not read.
    """
    size = shared["image_size"] and (shared["image_size"],) * 2
    task, foreign = load_dataset(shared["dataset"], shared["data_root"], size), None
    shape = tuple(task.train.images.shape[1:])
    if size not in (None, shape[1:]):
        raise ValueError(f"--image-size is for a folder of images; those of {shared['dataset']} "
                         f"have {shape[1]}x{shape[2]} pixels")
    if is_foreign(shared["public"]):
        load = load_dataset if shared["joint"] else load_public       # which reads no labels
        foreign = load(shared["public"], shared["data_root"], shape[1:])
        if torch.equal(foreign.train.images, task.train.images):
            raise ValueError(f"--public {shared['public']}: these are the training images "
                             "themselves, which clients hold; --public half or fifth keeps a share "
                             "of them out of the clients")
    if shared["joint"]:
        check_classes(f"--public {shared['public']}", foreign)
    _, needed = partition.PARTITIONS.get(shared["partition"], (None, ()))
    if "subclass" in needed:
        task = by_superclass(task, shared["dataset"])
    if "writers" in needed and task.writers is None:
        raise ValueError(f"--partition {shared['partition']}: {shared['dataset']} does not name "
                         "its writers")
    if shared["classes"] is not None:
        task = only(task, shared["classes"])
    check_classes(f"--dataset {shared['dataset']}", task, "; --classes can leave labels out")
    parts = {"dataset": task} if foreign is None else {"dataset": task, "public": foreign}
    fingerprints = {flag: fingerprint(part) for flag, part in parts.items()}
    rows = None
    if is_split_file(shared["partition"]):
        rows = readers.split(shared["partition"])
        made_of = str(rows.pop("dataset", fingerprints["dataset"]))
        if made_of != fingerprints["dataset"]:
            raise ValueError(f"{shared['partition']} is a split of other images, {made_of}: not of "
                             f"--dataset {shared['dataset']}, {fingerprints['dataset']}")
        check_rows(shared, rows, task)
        content = repr([(name, rows[name].tolist()) for name in sorted(rows)]).encode()
        fingerprints["partition"] = f"{shared['clients']} clients, checksum {crc32(content):08x}"
    classes = class_names(shared, task)
    if shared["joint"]:                                   # the public classes come first
        classes = [f"public {j}" for j in range(foreign.num_classes)] + classes
    mean, std = statistics(to_float(task.train.images))
    images = {"shape": shape, "mean": mean.tolist(), "std": std.tolist(), "classes": classes}
    for flag in parts:
        if files := ignored(shared[flag], labeled=flag == "dataset" or shared["joint"]):
            say(f"--{flag} {shared[flag]}: files that are not read: {files}")
    return Datasets(task, foreign, fingerprints, images, rows)


def class_names(shared, task):
    """The name of each label of the task: a folder's, or its number before --classes."""
    return task.class_names or [*map(str, shared["classes"] or range(task.num_classes))]


def check_rows(shared, rows, task):
    """Raises ValueError if the rows of --partition FILE do not fit the images and the settings."""
    path, clients, size = shared["partition"], shared["clients"], shared["train_size"]
    if f"client_{clients - 1}" not in rows or f"client_{clients}" in rows:
        raise ValueError(f"{path} has another number of clients than --clients {clients}")
    for name, is_used in [("public", shared["public"] in HELD_OUT),
                          ("validation", shared["validation"] is not None)]:
        if is_used and name not in rows:
            raise ValueError(f"--{name} {shared[name]}: {path} has no array {name}")
    for noun, part in [("training", task.train), ("test", task.test)]:
        chosen = [rows[name] for name in rows if ("test" in name) == (noun == "test")]
        found, counts = np.unique(np.concatenate(chosen or [[]]), return_counts=True)
        if len(found) and not 0 <= found[0] <= found[-1] < len(part.labels):
            raise ValueError(f"{path} has rows from {found[0]} to {found[-1]}; the {noun} images "
                             f"of {shared['dataset']} are 0 to {len(part.labels) - 1}")
        if (counts > 1).any():
            raise ValueError(f"{path} has {noun} image {found[counts > 1][0]} twice")
        if noun == "training" and size is not None and len(found) > size:
            raise ValueError(f"{path} has {len(found)} training images, more than --train-size "
                             f"{size}")


def split_seed(shared, seed):
    """The seed that decides who has which images in the run of a seed."""
    return seed if shared["split_seed"] is None else shared["split_seed"]


def split(shared, datasets, seed):
    """The `Split` of a seed. Raises ValueError if the data set does not allow the partition."""
    task, kept, seed = datasets.task, datasets.rows or {}, split_seed(shared, seed)
    labels = task.test.labels.numpy()
    test = kept.get("test", np.arange(len(labels)))
    test = test[at_most(shared["test_size"], labels[test], make_rng(seed, "test_size"))]
    public_test = kept.get("public_test")
    if shared["public"] == "half" and public_test is None:   # the test set is halved as well
        halves = partition.halves(labels[test], make_rng(seed, "public_test"))
        public_test, test = (test[half] for half in halves)
    if kept:
        clients = [kept[f"client_{i}"] for i in range(shared["clients"])]
        public, validation = kept.get("public"), kept.get("validation")
    else:
        clients, public, validation = divided(shared, task, seed)
    if public is not None:
        public = some_of(public, shared["public_size"], seed)
    return Split(clients, public, validation, test, public_test)


def divided(shared, task, seed):
    """(rows of each client, of the public images, of the validation images) by a rule."""
    labels = task.train.labels.numpy()
    rows = at_most(shared["train_size"], labels, make_rng(seed, "train_size"))
    public, validation = None, None
    if shared["public"] in HELD_OUT:
        share = HELD_OUT[shared["public"]]
        held_out, rest = partition.hold_out(labels[rows], share, make_rng(seed, "public"))
        public, rows = rows[held_out], rows[rest]
    rule, needed = partition.PARTITIONS[shared["partition"]]
    if shared["validation"] is not None:
        rng = make_rng(seed, "validation")
        if "writers" in needed:                          # whole writers
            held_out, rest = partition.hold_out_writers(
                task.writers[rows], shared["validation"], rng)
        else:
            held_out, rest = partition.hold_out(labels[rows], shared["validation"], rng)
        validation, rows = rows[held_out], rows[rest]
    known = {"labels": labels, "writers": task.writers, "subclass": task.subclass}
    arguments = {name: known[name][rows] if name in known else shared[name] for name in needed}
    parts = rule(**arguments, num_clients=shared["clients"], rng=make_rng(seed, "partition"))
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


def make_federation(shared, datasets, seed, device):
    """The `Federation` of a seed, on `device`, without networks: see `seen_by`.

    All images get the task's shape and are normalized by its training images. Bytes become floats
    here, after the rows are chosen: 1.28 million public images of ImageNet-32 are 4 GB of bytes.
    """
    task, foreign = datasets.task, datasets.foreign
    rows = split(shared, datasets, seed)
    mean, std = torch.tensor(datasets.images["mean"]), torch.tensor(datasets.images["std"])

    def normalized(part, chosen):
        chosen = torch.as_tensor(chosen)
        images = adapt(to_float(part.images[chosen]), datasets.images["shape"])
        labels = None if part.labels is None else part.labels[chosen].to(device)
        return Data(normalize(images, mean, std).to(device), labels)

    num_classes = len(datasets.images["classes"])
    first_label = num_classes - task.num_classes         # of the task; public classes come first
    train, test = (part._replace(labels=part.labels + first_label)
                   for part in (task.train, task.test))
    # The rows of a file may have public and validation images that this command does not use.
    public, public_test, validation = None, None, None
    if foreign is not None:
        every = np.arange(len(foreign.train.images))
        public = normalized(foreign.train, some_of(every, shared["public_size"],
                                                   split_seed(shared, seed)))
        if shared["joint"]:
            public_test = normalized(foreign.test, np.arange(len(foreign.test.labels)))
    elif shared["public"] is not None:
        public = normalized(train, rows.public)
    if shared["public"] == "half":
        public_test = normalized(test, rows.public_test)
    if shared["validation"] is not None:
        validation = normalized(train, rows.validation)
    return Federation(
        private=[normalized(train, part) for part in rows.clients],
        test=normalized(test, rows.test), num_classes=num_classes, num_public_classes=first_label,
        client_model=None, architecture=[], seed=seed, device=device, public=public,
        public_test=public_test, validation=validation,
        amp=shared["amp"], **({"augment": crop_and_flip} if shared["augment"] else {}))


def seen_by(method, fed, shared):
    """The federation as a method sees it: with its networks, its threads and its public data.

    Client i has network i mod the number of names in --model.
    """
    if shared["joint"] and method.algorithm.public != "joint":
        fed = of_the_task(fed)
    image_shape, names = tuple(fed.test.images.shape[1:]), method.networks["model"]
    architecture = [names[i % len(names)] for i in range(len(fed.private))]

    def new(name, key, init):
        return new_network(partial(models.build, name, image_shape, fed.num_classes), fed.seed, key,
                           init, device=fed.device, amp=fed.amp)

    def client_model(i, init=0):
        return new(architecture[i], "init", init)

    def server_model(init=0):
        return new(method.networks["server_model"], "server init", init)

    fed = dataclasses.replace(
        fed, client_model=client_model, architecture=architecture, threads=method.threads,
        server_model=None if method.algorithm.server == "none" else server_model)
    if method.algorithm.public == "none":
        return dataclasses.replace(fed, public=None)
    if method.algorithm.public == "unlabeled" and fed.public is not None:
        return dataclasses.replace(fed, public=Data(fed.public.images, None))
    return fed


def of_the_task(fed):
    """The federation of --joint for an algorithm whose networks know the task's classes alone.

    More outputs than classes would change it: drop_worst's chance, a softmax, the bytes of logits.
    """
    def shifted(data):
        return data._replace(labels=data.labels - fed.num_public_classes)

    return dataclasses.replace(
        fed, private=[shifted(data) for data in fed.private], test=shifted(fed.test),
        validation=fed.validation and shifted(fed.validation), public_test=None,
        num_classes=fed.num_classes - fed.num_public_classes, num_public_classes=0)


def attack_in(fed, shared):
    """The `Attack` of --attack on a federation, or None."""
    if shared["attack"] is None:
        return None
    return attacks.build(shared["attack"], fed.rng, len(fed.private),
                         shared["attackers"], shared["attack_scale"], shared["attack_z"])


def rounds_of(method, fed, shared, state=None):
    """The generator that computes a method's rounds, or those that are left after `state`."""
    algorithm, attack = method.algorithm, attack_in(fed, shared)
    attack = {} if attack is None else {"attack": attack}
    if shared["lr_patience"] is not None and algorithm.plateau:
        return run_with_plateau(algorithm, fed, method.cfg, state, shared["lr_patience"], **attack)
    return algorithm.run(fed, method.cfg, state, **attack)


def check(command, datasets, device):
    """Raises ValueError if a partition, a network or an algorithm does not fit the data.

    For the algorithms the first seed's federation will do: with another seed clients have other
    images, but there are as many clients, of the same networks.
    """
    with seed_torch(0, "can the networks take such images"):
        for name in dict.fromkeys(name for method in command.methods
                                  for name in method.networks["model"]):
            models.build(name, datasets.images["shape"], len(datasets.images["classes"]))
    for seed in command.seeds[1:]:
        split(command.shared, datasets, seed)
    fed = make_federation(command.shared, datasets, command.seeds[0], device)
    for method in command.methods:
        check_method(method, seen_by(method, fed, command.shared), attack_in(fed, command.shared))


def check_method(method, fed, attack):
    """Raises ValueError if the algorithm cannot run with its settings and networks."""
    method.algorithm.check(fed, method.cfg, attack=attack)
    if method.algorithm.server == "images":
        image, name = fed.private[0].images[:1], method.networks["server_model"]
        try:
            fits = predict(fed.server_model(), image).shape == (1, fed.num_classes)
        except RuntimeError:             # torch's own, of shapes that do not fit
            fits = False
        if not fits:
            raise ValueError(f"{method.label}: the server's network {name} does not make logits "
                             f"[B, {fed.num_classes}] of images {list(image.shape[1:])}")
