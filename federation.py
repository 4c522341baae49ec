"""From flags and a seed to a `Federation`: who holds which images, on which device, with which networks."""
import torch

import data
import models
import partition
from algorithms.common import Data, Federation, seeded, stream

PARTITIONS = ("iid", "dirichlet", "dirichlet_balanced", "dirichlet_equal", "by_writer", "single_writer", "few_per_class",
              "by_subclass", "fedgkt_table6")
HELD_OUT = {"half": 1 / 2, "fifth": 1 / 5}      # --public: shares of the training set that no client holds


def load(flags):
    """What every seed shares: the data set, and a foreign public one of the same image shape (or None); both normalised by the
    task's training images.

    Raises ValueError, in one line, for data that cannot be had or that the networks cannot take.
    """
    dataset = data.load(flags["dataset"], flags["data_root"])
    if flags["partition"] == "by_subclass":
        dataset = data.by_superclass(dataset, flags["dataset"])
    if flags["classes"] is not None:
        dataset = data.only(dataset, flags["classes"])
    image_shape = tuple(dataset.train.images.shape[1:])
    mean, std = data.statistics(dataset.train.images)
    foreign = None
    if flags["public"] is not None and flags["public"] not in HELD_OUT:
        foreign = data.load(flags["public"], flags["data_root"])

    def ready(part):
        return part._replace(images=data.normalise(data.adapt(part.images, image_shape), mean, std))

    both = [x and x._replace(train=ready(x.train), test=ready(x.test)) for x in (dataset, foreign)]
    with seeded(0, "can the networks take such images"):
        for name in flags["model"]:
            models.build(name, image_shape, outputs(flags, *both))
    return both


def outputs(flags, dataset, foreign):
    """How many classes the networks tell apart: with --joint the foreign public set's come first, the task's behind them."""
    return dataset.num_classes + (foreign.num_classes if flags["joint"] else 0)


def split(flags, dataset, seed):
    """Who holds which training rows: (one index array per client, the public rows or None, the server's validation rows or None).

    ValueError if it cannot be.
    """
    labels = dataset.train.labels.numpy()
    public_rows, validation_rows, rows = None, None, torch.arange(len(labels)).numpy()
    if flags["public"] in HELD_OUT:
        public_rows, rows = partition.hold_out(labels, HELD_OUT[flags["public"]], stream(seed, "public"))
    if flags["validation"] is not None:
        held, rest = partition.hold_out(labels[rows], flags["validation"], stream(seed, "validation"))
        validation_rows, rows = rows[held], rows[rest]
    kind, clients, rng = flags["partition"], flags["clients"], stream(seed, "partition")
    if kind in ("by_writer", "single_writer"):
        if dataset.writers is None:
            raise ValueError(f"--partition {kind}: {flags['dataset']} does not say who wrote what")
        parts = getattr(partition, kind)(dataset.writers[rows], clients, rng)
    elif kind in ("iid", "fedgkt_table6"):
        parts = getattr(partition, kind)(labels[rows], clients, rng)
    elif kind == "few_per_class":
        parts = partition.few_per_class(labels[rows], clients, flags["per_class"], rng)
    elif kind == "by_subclass":
        parts = [part[partition.few_per_class(labels[rows[part]], 1, flags["per_class"], rng)[0]]
                 for part in partition.by_subclass(labels[rows], dataset.subclass[rows], clients, rng)]
    else:
        parts = getattr(partition, kind)(labels[rows], clients, flags["alpha"], rng)
    return [rows[part] for part in parts], public_rows, validation_rows


def build(flags, dataset, foreign, parts, public_rows, validation_rows, seed, device):
    """The federation of one seed, everything on `device`; dataset, foreign: from `load`; parts, *_rows: from `split`."""
    def pick(part, rows):
        rows = torch.as_tensor(rows)
        return Data(part.images[rows].to(device), None if part.labels is None else part.labels[rows].to(device))

    num_classes = outputs(flags, dataset, foreign)
    shift = num_classes - dataset.num_classes            # the task's labels begin here
    task = dataset._replace(train=shifted(dataset.train, shift), test=shifted(dataset.test, shift))
    public, public_test, test_rows = None, None, torch.arange(len(task.test.labels))
    if public_rows is not None:
        public = pick(task.train, public_rows)
    elif foreign is not None:
        public = Data(foreign.train.images.to(device), foreign.train.labels.to(device) if flags["joint"] else None)
        public_test = pick(foreign.test, torch.arange(len(foreign.test.labels))) if flags["joint"] else None
    if public is not None and (flags["public_size"] or len(public.images)) < len(public.images):
        chosen = stream(seed, "public_size").choice(len(public.images), flags["public_size"], replace=False)
        public = pick(public, sorted(chosen))
    if flags["public"] == "half":                                                        # the test set is halved as well
        public_test_rows, test_rows = partition.halves(task.test.labels.numpy(), stream(seed, "public_test"))
        public_test = pick(task.test, public_test_rows)
    architecture = [flags["model"][i % len(flags["model"])] for i in range(flags["clients"])]
    image_shape = tuple(task.train.images.shape[1:])

    def client_model(i, init=0):
        with seeded(seed, "init", init):
            return models.build(architecture[i], image_shape, num_classes).to(device)

    def server_model(init=0):
        with seeded(seed, "server init", init):
            return models.build(flags["server_model"], image_shape, num_classes).to(device)

    return Federation(private=[pick(task.train, part) for part in parts], test=pick(task.test, test_rows),
                      num_classes=num_classes, client_model=client_model, server_model=server_model, architecture=architecture,
                      seed=seed, device=device, public=public, public_test=public_test,
                      validation=None if validation_rows is None else pick(task.train, validation_rows),
                      augment=data.crop_and_flip if flags["augment"] else None, amp=flags["amp"])


def shifted(part, shift):
    """The same images with labels that begin at `shift`."""
    return part._replace(labels=part.labels + shift)


def seen_by(public_use, federation):
    """The federation as an algorithm may see it, by its file's PUBLIC: no public data, public images alone, or labels too."""
    public = federation.public
    if public_use == "none":
        public = None
    elif public_use == "unlabelled":
        public = Data(public.images, None)
    return Federation(**{**vars(federation), "public": public})
