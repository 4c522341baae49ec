"""Images and labels as tensors: embedded glyphs, torchvision's sets, .npz files, folders.

    task = load_dataset("glyphs")                                 # pixels as in the file

The files are read in readers.py; images.py scales and normalizes the pixels.
"""
import zlib
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from data import readers
from data.glyphs import FONT, handwriting
from data.images import BadData, check_range
from data.readers import TORCHVISION
from federation import Data

MAX_CLASSES = 10**6      # larger labels are a mistake, and a table of all classes needs memory


class Dataset(NamedTuple):
    """A training and a test set: [n, c, h, w] channels-last uint8 or float32, int64 [n] labels."""

    train: Data
    test: Data | None                     # None: public images without labels, `load_public`
    num_classes: int                      # labels are 0, ..., num_classes - 1
    writers: np.ndarray | None = None     # int64 [n_train]: the writer of each image, if known
    superclass: np.ndarray | None = None  # int64 [n_train]: CIFAR-100's 20 coarse labels
    subclass: np.ndarray | None = None    # int64 [n_train]: the labels before `by_superclass`
    class_names: list[str] | None = None  # class_names[j] is the name of label j, if known


def glyphs(font, train_writers, test_writers, copies, sloppiness, seed):
    """Arrays of drawn symbols; the test writers do not appear in the training set."""
    num_writers = train_writers + test_writers
    images, labels, writers = handwriting(font, num_writers, copies, sloppiness, seed)
    train, test = writers < train_writers, writers >= train_writers
    return {"x_train": images[train], "y_train": labels[train], "writer_train": writers[train],
            "x_test": images[test], "y_test": labels[test]}


DATASETS = {      # {name: function(root) -> the arguments of `checked`}
    # 6,000 training and 1,500 test images of digits; 4,160 and 1,040 of the letters A-Z.
    "glyphs": lambda root: glyphs(FONT[:10], 60, 15, copies=10, sloppiness=1.3, seed=1),
    "glyphs-letters": lambda root: glyphs(FONT[10:], 40, 10, copies=4, sloppiness=1.0, seed=2),
    **{name: partial(readers.torchvision, name) for name in TORCHVISION},
    "cifar100": readers.cifar100, "emnist": readers.emnist}


def load_dataset(name_or_path, root="downloads", size=None):
    """The `Dataset` with this name (see DATASETS), or from this .npz file or folder of images.

    size    (height, width), to which the images of a folder are resized; None: they have one size
    A name takes precedence over a file or folder of the same name. torchvision's files are read
    from the folder `root`, or downloaded to it. ValueError, in one line, if this is not possible.
    """
    return checked(str(name_or_path), **arrays(str(name_or_path), root, size))


def load_public(name_or_path, root="downloads", size=None):
    """A `Dataset` of images alone, without labels and test images: see `arrays`.

    They are the training images where a data set has more.
    """
    name = str(name_or_path)
    images = image_tensor(f"{name}: x_train", arrays(name, root, size, labeled=False)["x_train"])
    return Dataset(Data(images, None), None, 0)


def arrays(name, root, size, labeled=True):
    """The arrays of a data set: the arguments of `checked`.

    size       (height, width) of a folder's images, or None
    labeled    False: x_train alone is needed. Then an .npz file may have no other array, and a
               folder may have its images in any folders
    """
    if name in DATASETS:
        return DATASETS[name](root)
    if name.lower().endswith(".npz"):
        return readers.npz(name, labeled)
    if Path(name).is_dir():
        return readers.folder(name, size) if labeled else readers.unlabeled_folder(name, size)
    raise BadData(f"no dataset '{name}': use {', '.join(DATASETS)}, a .npz file or a folder")


def only(dataset, classes):
    """The dataset with only these classes; classes[j] is label j.

    ValueError: fewer than two classes, a class twice, or one that the dataset lacks.
    """
    allowed = range(dataset.num_classes)
    if not 2 <= len(classes) == len(set(classes)) or not set(classes) <= set(allowed):
        raise BadData(f"--classes {','.join(map(str, classes))}: "
                         f"give two or more different classes from 0 to {allowed[-1]}")
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
        raise BadData(f"--partition by_subclass: {name} has no superclasses, use cifar100")
    superclass_of = torch.zeros(dataset.num_classes, dtype=torch.int64)
    superclass_of[dataset.train.labels] = torch.from_numpy(dataset.superclass)
    train, test = (part._replace(labels=superclass_of[part.labels])
                   for part in (dataset.train, dataset.test))
    return dataset._replace(train=train, test=test, num_classes=int(superclass_of.max()) + 1,
                            superclass=None, subclass=dataset.train.labels.numpy(),
                            class_names=None)


# ----------------------------------------------------------------------------------------- checks
def checked(source, x_train, y_train, x_test, y_test, writer_train=None, superclass=None,
            class_names=None):
    """A Dataset of these arrays. ValueError, which begins with `source`, if they do not fit.

    Images and labels have a layout and type that `readers.npz` allows.
    """
    def part(name, images, labels):
        images = image_tensor(f"{source}: x_{name}", images)
        labels = whole_numbers(f"{source}: y_{name}", labels, len(images), MAX_CLASSES)
        return Data(images, torch.from_numpy(labels))

    train, test = part("train", x_train, y_train), part("test", x_test, y_test)
    train_shape, test_shape = (list(part.images.shape[1:]) for part in (train, test))
    if train_shape != test_shape:
        raise BadData(f"{source}: x_train has [c, h, w] {train_shape}, x_test has {test_shape}")
    if writer_train is not None:
        writer_train = whole_numbers(f"{source}: writer_train", writer_train, len(train.labels))
    num_classes = int(torch.cat([train.labels, test.labels]).max()) + 1
    return Dataset(train, test, num_classes, writer_train, superclass, class_names=class_names)


def image_tensor(where, array):
    """The images [n, c, h, w], channels-last, of an array in a layout that `readers.npz` allows."""
    array = pixels(where, array)
    if len(array) > 1 and not np.ptp(array, axis=0).any():
        raise BadData(f"{where} holds {len(array)} images that are all alike")
    return torch.from_numpy(np.ascontiguousarray(array)).permute(0, 3, 1, 2)


def pixels(where, array):
    """uint8 or float32 [n, h, w, c] of an array in a layout that `readers.npz` allows."""
    shape = array.shape
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        raise BadData(f"{where} has type {array.dtype}; expected uint8, or floats from 0 to 1")
    if array.ndim == 3:
        array = array[..., None]
    elif array.ndim == 4 and shape[3] not in (1, 3) and shape[1] in (1, 3):
        array = array.transpose(0, 2, 3, 1)
    if array.ndim != 4 or array.shape[3] not in (1, 3) or array.size == 0:
        raise BadData(f"{where} has shape {list(shape)}; expected [n, h, w], [n, h, w, c] or "
                         "[n, c, h, w] with n > 0 and c = 1 or 3")
    if array.dtype == np.uint8:
        return array
    check_range(where, array)
    return array.astype(np.float32)


def whole_numbers(where, numbers, length, end=2**63):
    """int64 [length] of labels or writers below `end`: [length] or [length, 1] of any type."""
    numbers = np.asarray(numbers)
    if numbers.shape not in [(length,), (length, 1)]:
        raise BadData(f"{where} has shape {list(numbers.shape)}; expected [{length}], "
                         "one number per image")
    if (numbers.dtype.kind not in "biuf"
            or not (numbers.min() >= 0 and float(numbers.max()) < end)        # nan, too
            or (numbers % 1 != 0).any()):
        raise BadData(f"{where} must hold whole numbers from 0 to {end - 1}")
    return numbers.reshape(length).astype(np.int64)


def check_classes(source, dataset, advice=""):
    """ValueError, which ends with `advice`, if a class has no training images."""
    counts = dataset.train.labels.bincount(minlength=dataset.num_classes)
    if counts.min() == 0:
        raise BadData(f"{source}: no training image has label {counts.argmin()}{advice}")


# ----------------------------------------------------------------------------------- fingerprints
def pixel_range(images):
    """The type and the range of the pixels, such as "uint8 0..255" or "float 0..1"."""
    low, high = images.permute(0, 2, 3, 1).aminmax()            # in memory's order: 10 times faster
    return f"{'float' if images.is_floating_point() else 'uint8'} {low:.3g}..{high:.3g}"


def fingerprint(dataset):
    """A line that identifies a data set: its sizes, pixels, classes, and CRC-32 of its bytes.

    Of images alone: without classes. It takes 0.3 s for the 60,000 images of CIFAR.
    """
    def crc(*arrays):
        code = 0
        for array in arrays:
            code = zlib.crc32(np.ascontiguousarray(array), code)
        return f"{code:08x}"

    train, test = dataset[:2]
    pixels, shape = pixel_range(train.images), "x".join(map(str, train.images.shape[1:]))
    if test is None:
        return (f"{len(train.images)} images {shape}, {pixels}, "
                f"checksum {crc(train.images.permute(0, 2, 3, 1))} (pixels)")
    known = [array for array in dataset[3:] if array is not None]       # other labels, names
    test_pixels = pixel_range(test.images)
    pixels += "" if pixels == test_pixels else f" (test images: {test_pixels})"
    untested = sorted({*range(dataset.num_classes)} - {*test.labels.tolist()})
    note = f" (without test images: {', '.join(map(str, untested))})" if untested else ""
    return (f"{len(train.labels)} training and {len(test.labels)} test images {shape}, {pixels}, "
            f"{dataset.num_classes} classes{note}, "
            f"checksums {crc(*(part.images.permute(0, 2, 3, 1) for part in (train, test)))} "
            f"(pixels) and {crc(train.labels, test.labels, *known)} (labels)")
