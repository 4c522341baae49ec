"""From flags and a seed to a `Federation`: who holds which images, on which device, with which networks."""
import torch

import data
import models
import partition
from algorithms.common import Data, Federation, seeded, stream

PARTITIONS = ("iid", "dirichlet", "dirichlet_balanced", "dirichlet_equal", "by_writer")
HELD_OUT = {"half": 1 / 2, "fifth": 1 / 5}      # --public: shares of the training set that no client holds


def load(flags):
    """What every seed shares: the data set, normalised by its training images, and foreign public images (or None).

    Raises ValueError, in one line, for data that cannot be had or that the networks cannot take.
    """
    dataset = data.load(flags["dataset"], flags["data_root"])
    image_shape = tuple(dataset.train.images.shape[1:])
    with seeded(0, "can the networks take such images"):
        for name in flags["model"]:
            models.build(name, image_shape, dataset.num_classes)
    mean, std = data.statistics(dataset.train.images)
    foreign = None
    if flags["public"] is not None and flags["public"] not in HELD_OUT:                  # normalised by the TASK's statistics
        foreign = data.load(flags["public"], flags["data_root"]).train.images
        foreign = data.normalise(data.adapt(foreign, image_shape), mean, std)
    train, test = (part._replace(images=data.normalise(part.images, mean, std)) for part in (dataset.train, dataset.test))
    return dataset._replace(train=train, test=test), foreign


def split(flags, dataset, seed):
    """Who holds which training rows: (one index array per client, the public rows or None, the server's validation rows or None).

    ValueError if it cannot be.
    """
    labels = dataset.train.labels.numpy()
    public_rows, validation_rows, private_rows = None, None, torch.arange(len(labels)).numpy()
    if flags["public"] in HELD_OUT:
        public_rows, private_rows = partition.hold_out(labels, HELD_OUT[flags["public"]], stream(seed, "public"))
    if flags["validation"] is not None:
        held, rest = partition.hold_out(labels[private_rows], flags["validation"], stream(seed, "validation"))
        validation_rows, private_rows = private_rows[held], private_rows[rest]
    rng = stream(seed, "partition")
    if flags["partition"] == "by_writer":
        if dataset.writers is None:
            raise ValueError(f"--partition by_writer: {flags['dataset']} does not say who wrote what")
        parts = partition.by_writer(dataset.writers[private_rows], flags["clients"], rng)
    elif flags["partition"] == "iid":
        parts = partition.iid(labels[private_rows], flags["clients"], rng)
    else:
        parts = getattr(partition, flags["partition"])(labels[private_rows], flags["clients"], flags["alpha"], rng)
    return [private_rows[part] for part in parts], public_rows, validation_rows


def build(flags, dataset, foreign, parts, public_rows, validation_rows, seed, device):
    """The federation of one seed, everything on `device`; dataset, foreign: from `load`; parts, *_rows: from `split`."""
    def pick(part, rows):
        rows = torch.as_tensor(rows)
        return Data(part.images[rows].to(device), None if part.labels is None else part.labels[rows].to(device))

    public, public_test, test_rows = None, None, torch.arange(len(dataset.test.labels))
    if public_rows is not None:
        public = pick(dataset.train, public_rows)
    elif foreign is not None:
        public = Data(foreign.to(device), None)
    if public is not None and (flags["public_size"] or len(public.images)) < len(public.images):
        chosen = stream(seed, "public_size").choice(len(public.images), flags["public_size"], replace=False)
        public = pick(public, sorted(chosen))
    if flags["public"] == "half":                                                        # the test set is halved as well
        public_test_rows, test_rows = partition.halves(dataset.test.labels.numpy(), stream(seed, "public_test"))
        public_test = pick(dataset.test, public_test_rows)
    architecture = [flags["model"][i % len(flags["model"])] for i in range(flags["clients"])]
    image_shape = tuple(dataset.train.images.shape[1:])

    def client_model(i, init=0):
        with seeded(seed, "init", init):
            return models.build(architecture[i], image_shape, dataset.num_classes).to(device)

    return Federation(private=[pick(dataset.train, part) for part in parts], test=pick(dataset.test, test_rows),
                      num_classes=dataset.num_classes, client_model=client_model, architecture=architecture, seed=seed,
                      device=device, public=public, public_test=public_test,
                      validation=None if validation_rows is None else pick(dataset.train, validation_rows),
                      augment=data.crop_and_flip if flags["augment"] else None, amp=flags["amp"])


def seen_by(public_use, federation):
    """The federation as an algorithm may see it, by its file's PUBLIC: no public data, public images alone, or labels too."""
    public = federation.public
    if public_use == "none":
        public = None
    elif public_use == "unlabelled":
        public = Data(public.images, None)
    return Federation(**{**vars(federation), "public": public})
