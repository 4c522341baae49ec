"""From flags and a seed to a `Federation`: each client's images, the device, the networks."""
import dataclasses

import torch

import data
import models
import partition
from algorithms.common import Data, Federation, no_server_model, seeded, stream

PARTITIONS = ("iid", "dirichlet", "dirichlet_balanced", "dirichlet_equal", "by_writer",
              "single_writer", "few_per_class", "by_subclass", "fedgkt_table6")
HELD_OUT = {"half": 1 / 2, "fifth": 1 / 5}      # --public: the share that no client holds


def has_foreign_public(flags):
    """True if the public images come from another data set than the clients' images."""
    return flags["public"] is not None and flags["public"] not in HELD_OUT


def load(flags):
    """(the data set, the foreign public data set or None): what the runs of all seeds share.

    Pixels are as in the files. Raises ValueError if a data set cannot be loaded, a class has no
    training images, the public images are the training images, or a network cannot
    take the images.
    """
    dataset, foreign = data.load(flags["dataset"], flags["data_root"]), None
    if has_foreign_public(flags):
        foreign = data.load(flags["public"], flags["data_root"])
        data.check_public(f"--public {flags['public']}", foreign, dataset)
    if flags["joint"]:
        data.check_classes(f"--public {flags['public']}", foreign, can_choose=False)
    if flags["partition"] == "by_subclass":
        dataset = data.by_superclass(dataset, flags["dataset"])
    if flags["classes"] is not None:
        dataset = data.only(dataset, flags["classes"])
    data.check_classes(f"--dataset {flags['dataset']}", dataset, can_choose=True)
    image_shape = tuple(dataset.train.images.shape[1:])
    with seeded(0, "can the networks take such images"):
        for name in flags["model"]:
            models.build(name, image_shape, num_outputs(flags, dataset, foreign))
    return dataset, foreign


def fingerprints(flags, dataset, foreign):
    """{flag: the fingerprint of its data set}; held-out public images have "half" or "fifth"."""
    public = flags["public"] if foreign is None else data.fingerprint(foreign)
    return {"dataset": data.fingerprint(dataset), "public": public}


def num_outputs(flags, dataset, foreign):
    """The networks' number of classes: the task's, and with --joint also the public data set's."""
    return dataset.num_classes + (foreign.num_classes if flags["joint"] else 0)


def split(flags, dataset, seed):
    """The training rows of (each client, the public set or None, the validation set or None).

    Raises ValueError if the data set does not allow the partition.
    """
    labels = dataset.train.labels.numpy()
    public_rows, validation_rows, rows = None, None, torch.arange(len(labels)).numpy()
    if flags["public"] in HELD_OUT:
        rng = stream(seed, "public")
        public_rows, rows = partition.hold_out(labels, HELD_OUT[flags["public"]], rng)
    if flags["validation"] is not None:
        rng = stream(seed, "validation")
        held_out, rest = partition.hold_out(labels[rows], flags["validation"], rng)
        validation_rows, rows = rows[held_out], rows[rest]
    kind, clients, rng = flags["partition"], flags["clients"], stream(seed, "partition")
    if kind in ("by_writer", "single_writer"):
        if dataset.writers is None:
            raise ValueError(f"--partition {kind}: {flags['dataset']} does not name its writers")
        parts = getattr(partition, kind)(dataset.writers[rows], clients, rng)
    elif kind in ("iid", "fedgkt_table6"):
        parts = getattr(partition, kind)(labels[rows], clients, rng)
    elif kind == "few_per_class":
        parts = partition.few_per_class(labels[rows], clients, flags["per_class"], rng)
    elif kind == "by_subclass":
        subclasses = partition.by_subclass(labels[rows], dataset.subclass[rows], clients, rng)
        parts = [part[partition.few_per_class(labels[rows[part]], 1, flags["per_class"], rng)[0]]
                 for part in subclasses]
    else:
        parts = getattr(partition, kind)(labels[rows], clients, flags["alpha"], rng)
    return [rows[part] for part in parts], public_rows, validation_rows


def build(flags, dataset, foreign, parts, public_rows, validation_rows, seed, device):
    """The federation of one seed, on `device`.

    All images get the task's shape and are normalized by its training images. Bytes become floats
    here, after the rows are chosen: 1.28 million public images of ImageNet-32 are 4 GB of bytes.

    dataset, foreign                      see `load`
    parts, public_rows, validation_rows   see `split`
    """
    image_shape = tuple(dataset.train.images.shape[1:])
    mean, std = data.statistics(data.to_float(dataset.train.images))

    def pick(part, rows):
        rows = torch.as_tensor(rows)
        images = data.adapt(data.to_float(part.images[rows]), image_shape)
        labels = None if part.labels is None else part.labels[rows].to(device)
        return Data(data.normalize(images, mean, std).to(device), labels)

    num_classes = num_outputs(flags, dataset, foreign)
    first_label = num_classes - dataset.num_classes      # of the task; public classes come first
    train, test = (part._replace(labels=part.labels + first_label)
                   for part in (dataset.train, dataset.test))
    public, public_test, test_rows = None, None, torch.arange(len(test.labels))
    public_part = train
    if foreign is not None:
        public_part = foreign.train if flags["joint"] else foreign.train._replace(labels=None)
        public_rows = torch.arange(len(foreign.train.labels))
        if flags["joint"]:
            public_test = pick(foreign.test, torch.arange(len(foreign.test.labels)))
    if public_rows is not None:
        if (flags["public_size"] or len(public_rows)) < len(public_rows):
            rng = stream(seed, "public_size")
            chosen = rng.choice(len(public_rows), flags["public_size"], replace=False)
            public_rows = public_rows[sorted(chosen)]
        public = pick(public_part, public_rows)
    if flags["public"] == "half":                        # the test set is halved as well
        rng = stream(seed, "public_test")
        public_test_rows, test_rows = partition.halves(test.labels.numpy(), rng)
        public_test = pick(test, public_test_rows)
    architecture = [flags["model"][i % len(flags["model"])] for i in range(flags["clients"])]

    def client_model(i, init=0):
        with seeded(seed, "init", init):
            return models.build(architecture[i], image_shape, num_classes).to(device)

    def server_model(init=0):
        with seeded(seed, "server init", init):
            return models.build(flags["server_model"], image_shape, num_classes).to(device)

    return Federation(
        private=[pick(train, part) for part in parts], test=pick(test, test_rows),
        num_classes=num_classes, client_model=client_model, server_model=server_model,
        architecture=architecture, seed=seed, device=device, public=public, public_test=public_test,
        validation=None if validation_rows is None else pick(train, validation_rows),
        augment=data.crop_and_flip if flags["augment"] else None, amp=flags["amp"])


def restrict_public(fed, public_use):
    """The federation with the public data that an algorithm with PUBLIC = public_use may see.

    public_use   "none": no public data; "unlabelled": images alone; otherwise labels as well
    """
    if public_use == "none":
        return dataclasses.replace(fed, public=None)
    if public_use == "unlabelled" and fed.public is not None:
        return dataclasses.replace(fed, public=Data(fed.public.images, None))
    return fed


def from_tensors(private, test, networks, *, public=None, validation=None, server_network=None,
                 seed=0, device="cpu", **options):
    """A federation of tensors and networks of your own, for an algorithm's `run`.

    private           [(images, labels), ...]: float32 [n, c, h, w] and int64 [n] of each client,
                      normalized
    test, validation  (images, labels)
    networks          [Network, ...]: Network() is a new nn.Module, images -> logits [B, C]; client
                      i uses networks[i % len(networks)]
    public            (images, labels), or (images, None) where no algorithm needs labels
    server_network    Network of a server with a model of its own, as in FedGEMS
    options           augment, amp: see `Federation`
    raises            ValueError if images and labels do not match, or labels and logits do not
    """
    device = torch.device(device)

    def client_model(i, init=0):
        with seeded(seed, "init", init):
            return networks[i % len(networks)]().to(device)

    def server_model(init=0):
        with seeded(seed, "server init", init):
            return server_network().to(device)

    with torch.no_grad():
        num_classes = client_model(0).eval()(private[0][0][:1].to(device)).shape[1]

    def checked(where, images, labels):
        if images.dtype != torch.float32 or images.ndim != 4:
            raise ValueError(f"{where}: images are float32 [n, c, h, w], "
                             f"not {images.dtype} {list(images.shape)}")
        if labels is None:
            return Data(images.to(device), None)
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1] or (
                labels.min() < 0 or labels.max() >= num_classes):
            raise ValueError(f"{where}: labels are int64 [{len(images)}] from 0 to "
                             f"{num_classes - 1}, as the network has {num_classes} outputs")
        return Data(images.to(device), labels.to(device))

    return Federation(
        private=[checked(f"client {i}", *part) for i, part in enumerate(private)],
        test=checked("test", *test), public=public and checked("public", *public),
        validation=validation and checked("validation", *validation), num_classes=num_classes,
        client_model=client_model, server_model=server_model if server_network else no_server_model,
        architecture=[f"network {i % len(networks)}" for i in range(len(private))],
        seed=seed, device=device, **options)
