"""Images and labels as tensors: embedded glyphs, torchvision's sets, .npz files, folders.

    task = data.load("glyphs")                                    # pixels as in the file
    images = data.to_float(task.train.images)                     # bytes are scaled to [0, 1]
    images = data.normalize(images, *data.statistics(images))     # [n, c, h, w], channels-last

Public images from another dataset go through `adapt`. Then they are normalized with the TASK's mean
and std (FedDF's code uses the public set's own). The files are read in readers.py and leaf.py.
"""
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

import leaf
import readers
from algorithms.common import Data
from glyphs import FONT, handwriting
from readers import TORCHVISION

# Python code for error messages: it numbers the classes of both parts from 0, without gaps.
RELABEL = ("y_train, y_test = np.split(np.unique(np.concatenate([y_train, y_test]), "
           "return_inverse=True)[1], [len(y_train)])")


class Dataset(NamedTuple):
    """A training and a test set: [n, c, h, w] channels-last uint8 or float32, int64 [n] labels."""

    train: Data
    test: Data
    num_classes: int                      # labels are 0, ..., num_classes - 1
    writers: np.ndarray | None = None     # int64 [n_train]: the writer of each image, if known
    superclass: np.ndarray | None = None  # int64 [n_train]: CIFAR-100's 20 coarse labels
    subclass: np.ndarray | None = None    # int64 [n_train]: the labels before `by_superclass`
    class_names: list[str] | None = None  # class_names[j] is the name of label j, if known


def load(name_or_path, root="data"):
    """The `Dataset` with this name (see DATASETS), or from this .npz file, image or LEAF folder.

    A name takes precedence over a file or folder of the same name. torchvision's files are read
    from the folder `root`, or downloaded to it. ValueError, in one line, if this is not possible.
    """
    name = str(name_or_path)
    if name in DATASETS:
        return DATASETS[name](root)
    if name.lower().endswith(".npz"):
        return _dataset(name, *readers.npz(name))
    if Path(name).is_dir():
        return _dataset(name, *(leaf.read if leaf.is_leaf(name) else readers.folder)(name))
    raise ValueError(f"no dataset '{name}': use {', '.join(DATASETS)}, a .npz file or a folder")


def only(dataset, classes):
    """The dataset with only these classes; classes[j] is label j.

    ValueError: fewer than two classes, a class twice, or one without training images.
    """
    allowed = range(dataset.num_classes)
    if not 2 <= len(classes) == len(set(classes)) or not set(classes) <= set(allowed):
        raise ValueError(f"--classes {','.join(map(str, classes))}: "
                         f"give two or more different classes from 0 to {allowed[-1]}")
    if missing := set(classes) - set(dataset.train.labels.unique().tolist()):
        raise ValueError(f"--classes: no training image has label {min(missing)}")
    # One look-up replaces all labels: replacing class after class could merge two classes.
    new_label = torch.full((dataset.num_classes,), -1)
    new_label[torch.tensor(classes)] = torch.arange(len(classes))

    def part(data):
        labels = new_label[data.labels]
        return Data(data.images[labels >= 0], labels[labels >= 0])

    kept = (new_label[dataset.train.labels] >= 0).numpy()
    arrays = (dataset.writers, dataset.superclass, dataset.subclass)
    names = dataset.class_names and [dataset.class_names[c] for c in classes]
    return Dataset(part(dataset.train), part(dataset.test), len(classes),
                   *(None if array is None else array[kept] for array in arrays), names)


def by_superclass(dataset, name):
    """The dataset labeled by superclass, old labels in `subclass`. ValueError: no superclasses."""
    if dataset.superclass is None:
        raise ValueError(f"--partition by_subclass: {name} has no superclasses, use cifar100")
    superclass_of = torch.zeros(dataset.num_classes, dtype=torch.int64)
    superclass_of[dataset.train.labels] = torch.from_numpy(dataset.superclass)
    train, test = (part._replace(labels=superclass_of[part.labels])
                   for part in (dataset.train, dataset.test))
    return dataset._replace(train=train, test=test, num_classes=int(superclass_of.max()) + 1,
                            superclass=None, subclass=dataset.train.labels.numpy(),
                            class_names=None)


# --------------------------------------------------------------------------------- embedded glyphs
def glyphs(font, train_writers, test_writers, copies, sloppiness, seed):
    """A Dataset of drawn symbols; the test writers do not appear in the training set."""
    num_writers = train_writers + test_writers
    images, labels, writers = handwriting(font, num_writers, copies, sloppiness, seed)
    train, test = writers < train_writers, writers >= train_writers
    return _dataset("glyphs", images[train], labels[train], images[test], labels[test],
                    writers=writers[train])


DATASETS = {
    # 6,000 training and 1,500 test images of digits; 4,160 and 1,040 of the letters A-Z.
    "glyphs": lambda root: glyphs(FONT[:10], 60, 15, copies=10, sloppiness=1.3, seed=1),
    "glyphs-letters": lambda root: glyphs(FONT[10:], 40, 10, copies=4, sloppiness=1.0, seed=2),
    **{name: lambda root, name=name: _dataset(name, *readers.torchvision(name, root))
       for name in TORCHVISION},
    "cifar100": lambda root: _dataset("cifar100", *readers.cifar100(root)),
    "emnist": lambda root: _dataset("emnist", *readers.emnist(root))}


# ----------------------------------------------------------------------------------------- checks
def _dataset(source, x_train, y_train, x_test, y_test, writers=None, superclass=None,
             class_names=None):
    """A Dataset from arrays that are checked; every error message begins with `source`."""
    def part(name, pixels, labels):
        pixels = readers.pixels(source, f"x_{name}", pixels)
        labels = readers.whole_numbers(source, f"y_{name}", labels, len(pixels), RELABEL)
        images = torch.from_numpy(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2)  # channels-last
        return Data(images, torch.from_numpy(labels))

    train, test = part("train", x_train, y_train), part("test", x_test, y_test)
    train_shape, test_shape = (list(part.images.shape[1:]) for part in (train, test))
    if train_shape != test_shape:
        raise ValueError(f"{source}: x_train has [c, h, w] {train_shape}, x_test has {test_shape}")
    if (train.labels == train.labels[0]).all():
        raise ValueError(f"{source}: y_train holds label {train.labels[0]} only: "
                         "at least two classes are needed")
    _compare_scales(f"{source}: x_test", test.images, "x_train", train.images)
    if writers is not None:
        names = "np.unique(writer_train, return_inverse=True)[1]"
        writers = readers.whole_numbers(source, "writer_train", writers, len(train.labels), names)
    num_classes = int(torch.cat([train.labels, test.labels]).max()) + 1
    return Dataset(train, test, num_classes, writers, superclass,
                   class_names=class_names and [*class_names])


def _compare_scales(source, images, other_source, other):
    """ValueError if the brightest pixel of one set is below a tenth of the other's."""
    brightest = [to_float(_range(x)[1:]).item() for x in (images, other)]
    if min(brightest) < max(brightest) / 10:
        raise ValueError(f"{source} has pixels {pixel_range(images)}, {other_source} "
                         f"{pixel_range(other)}, and a run reads uint8 255 as 1.0: these are "
                         "different scales; save both as bytes 0..255 or as floats 0..1")


def check_public(source, public, task):
    """ValueError if public images are the task's training images, or have another scale."""
    if torch.equal(public.train.images, task.train.images):
        raise ValueError(f"{source}: these are the training images themselves, which clients hold; "
                         "--public half or fifth keeps a share of them out of the clients")
    _compare_scales(source, public.train.images, "--dataset", task.train.images)


def check_classes(source, dataset, can_choose):
    """ValueError, which says how to mend it, if a class has no training images.

    can_choose   True if --classes can leave the class out
    """
    train, test = (part.labels.bincount(minlength=dataset.num_classes) for part in dataset[:2])
    missing = (train == 0).nonzero().flatten()
    if len(missing) == 0:
        return
    choice = "give --classes " + ",".join(map(str, train.nonzero().flatten().tolist())) + ", or "
    code, tested = RELABEL, missing[test[missing] > 0]
    if len(tested):
        code = "keep = np.isin(y_test, y_train); x_test, y_test = x_test[keep], y_test[keep]"
    problem = "only test images have" if len(tested) else "no image has"
    raise ValueError(f"{source}: {problem} label {[*tested, *missing][0]}, but each label from 0 "
                     f"to {dataset.num_classes - 1} needs training images; "
                     f"{choice if can_choose else ''}save {code}")


# ----------------------------------------------------------------------------------- fingerprints
def pixel_range(images):
    """The type and the range of the pixels, such as "uint8 0..255" or "float 0..1"."""
    low, high = _range(images)
    return f"{'float' if images.is_floating_point() else 'uint8'} {low:.3g}..{high:.3g}"


def _range(images):
    """[2]: the smallest and the largest pixel."""
    return torch.stack(images.permute(0, 2, 3, 1).aminmax())    # in memory's order: 10 times faster


def fingerprint(dataset):
    """A line that identifies a data set: its sizes, pixels, classes, and CRC-32 of its bytes.

    It takes 0.3 s for the 60,000 images of CIFAR.
    """
    def crc(*arrays):
        code = 0
        for array in arrays:
            code = zlib.crc32(np.ascontiguousarray(array), code)
        return f"{code:08x}"

    train, test = dataset[:2]
    known = [array for array in dataset[3:] if array is not None]       # writers, other labels
    pixels, test_pixels = (pixel_range(part.images) for part in (train, test))
    pixels += "" if pixels == test_pixels else f" (test images: {test_pixels})"
    untested = sorted({*range(dataset.num_classes)} - {*test.labels.tolist()})
    note = f" (without test images: {', '.join(map(str, untested))})" if untested else ""
    return (f"{len(train.labels)} training and {len(test.labels)} test images "
            f"{'x'.join(map(str, train.images.shape[1:]))}, {pixels}, "
            f"{dataset.num_classes} classes{note}, "
            f"pixels {crc(*(part.images.permute(0, 2, 3, 1) for part in (train, test)))}, "
            f"labels {crc(train.labels, test.labels, *known)}")


# ------------------------------------------------------------------------------- pixels to tensors
def to_float(images):
    """float32 pixels: bytes are divided by 255, floats stay as they are."""
    return images.float().div_(255) if images.dtype == torch.uint8 else images


def statistics(images):
    """(mean [c], population std [c]) of the images; std is 1 for a constant channel, never 0."""
    std, mean = torch.std_mean(images, dim=(0, 2, 3), correction=0)
    return mean, torch.where(std > 1e-6, std, 1.0)


def normalize(images, mean, std):
    """(images - mean) / std per channel: float32 [n, c, h, w], channels-last, a new tensor."""
    normalized = (images - mean[:, None, None]) / std[:, None, None]
    return normalized.contiguous(memory_format=torch.channels_last)


def adapt(images, image_shape):
    """Public images in the task's image shape (c, h, w): [n, c, h, w] pixels, channels-last.

    RGB becomes gray by luminance (ITU-R 601); gray becomes three equal channels (other numbers of
    channels: ValueError). Resizing is bilinear with antialiasing, so that pixels stay in [0, 1].
    """
    channels, height, width = image_shape
    if {images.shape[1], channels} - {1, 3}:
        raise ValueError(f"cannot adapt {images.shape[1]} channels to {channels}: 1 or 3 expected")
    if channels < images.shape[1]:
        luminance = images.new_tensor([.299, .587, .114])[:, None, None]
        images = (images * luminance).sum(1, keepdim=True)
    if images.shape[2:] != (height, width):
        images = F.interpolate(images, size=(height, width), mode="bilinear", antialias=True)
    if channels > images.shape[1]:
        images = images.repeat(1, 3, 1, 1)
    return images.contiguous(memory_format=torch.channels_last)


def crop_and_flip(images, rng, padding=4):
    """Randomly shifted and mirrored images: a new channels-last tensor of the same shape.

    Each image has its own shift, -padding..padding in both directions, and is mirrored left to
    right with probability 1/2. Pixels from outside are 0, the mean color of normalized images.
    `images` [n, c, h, w] may be on any device; `rng` is a numpy Generator.
    """
    n, _, h, w = images.shape
    top, left = rng.integers(0, 2 * padding + 1, size=(2, n, 1))
    mirrored = rng.integers(0, 2, size=(n, 1)) == 1
    rows = top + np.arange(h)                                                   # [n, h]
    columns = left + np.where(mirrored, np.arange(w)[::-1], np.arange(w))       # [n, w]
    rows, columns = (torch.from_numpy(index).to(images.device) for index in (rows, columns))
    padded = F.pad(images, (padding,) * 4).permute(0, 2, 3, 1)                  # [n, h+2p, w+2p, c]
    image = torch.arange(n, device=images.device)[:, None, None]
    return padded[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
