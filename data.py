"""Images and labels as plain tensors: embedded glyphs, torchvision's sets, .npz files, folders of images.

    task = data.load("glyphs")                                    # pixels in [0, 1], not normalised
    mean, std = data.statistics(task.train.images)                # of the task's training set, also for public images
    images = data.normalise(task.train.images, mean, std)         # float32 [n, c, h, w], channels-last

A foreign public set goes through `adapt` (to the task's image shape) and then `normalise` with the TASK's mean and std:
a student trained on task images must meet public images on the same scale (FedDF's code used the public set's own).

torchvision (and PIL, which comes with it) is imported only where its sets or a folder are read.
"""
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from algorithms.common import Data
from glyphs import FONT, handwriting


class Dataset(NamedTuple):
    """A training and a test set: float32 [n, c, h, w] pixels (channels-last in memory), int64 [n] labels 0..C-1."""

    train: Data
    test: Data
    num_classes: int
    writers: np.ndarray | None = None     # int64 [n_train]: who wrote the image, where known
    superclass: np.ndarray | None = None  # int64 [n_train]: CIFAR-100's 20 coarse labels, where known
    subclass: np.ndarray | None = None    # int64 [n_train]: the labels there were, where superclasses are the labels now


def load(name_or_path, root="data"):
    """A `Dataset` by name (see DATASETS), from a path that ends in .npz, or from a folder of images.

    root: where torchvision's files lie or are downloaded to. A name wins over a file or folder that is called the same.
    ValueError, in one line, if there is no such set, or it can be neither read nor downloaded.
    """
    name = str(name_or_path)
    if name in DATASETS:
        return DATASETS[name](root)
    if name.lower().endswith(".npz"):
        return read_npz(name)
    if Path(name).is_dir():
        return read_folder(name)
    raise ValueError(f"no dataset '{name}': use one of {', '.join(DATASETS)}, a .npz file or a folder of images")


def only(dataset, classes):
    """The same data set without the other classes; classes[j] is label j now. ValueError: a class that is not there, or twice."""
    if not len(set(classes)) == len(classes) >= 2 or not 0 <= min(classes) <= max(classes) < dataset.num_classes:
        raise ValueError(f"--classes {','.join(map(str, classes))}: two or more different ones of 0 to {dataset.num_classes - 1}")
    new_label = torch.full((dataset.num_classes,), -1)
    new_label[torch.tensor(classes)] = torch.arange(len(classes))    # a table: what is relabelled is never looked up again

    def part(data):
        labels = new_label[data.labels]
        return Data(data.images[labels >= 0], labels[labels >= 0])

    stays = (new_label[dataset.train.labels] >= 0).numpy()
    arrays = {name: getattr(dataset, name) for name in ("writers", "superclass", "subclass")}
    return Dataset(part(dataset.train), part(dataset.test), len(classes),
                   **{name: None if array is None else array[stays] for name, array in arrays.items()})


def by_superclass(dataset, name):
    """The same data set with superclasses as labels, and what was the label as subclass. ValueError if it has no superclasses."""
    if dataset.superclass is None:
        raise ValueError(f"--partition by_subclass: {name} has no superclasses")
    superclass_of = torch.zeros(dataset.num_classes, dtype=torch.int64)
    superclass_of[dataset.train.labels] = torch.from_numpy(dataset.superclass)
    train, test = (part._replace(labels=superclass_of[part.labels]) for part in (dataset.train, dataset.test))
    return dataset._replace(train=train, test=test, num_classes=int(superclass_of.max()) + 1, superclass=None,
                            subclass=dataset.train.labels.numpy())


# ---------------------------------------------------------------------------------------------- embedded glyphs
def glyphs(font, train_writers, test_writers, copies, sloppiness, seed):
    """A Dataset of what `train_writers` wrote; its test images are by other writers: a stranger's hand is read."""
    images, labels, writers = handwriting(font, train_writers + test_writers, copies, sloppiness, seed)
    train = writers < train_writers
    return _dataset("glyphs", images[train], labels[train], images[~train], labels[~train], writers=writers[train])


# ------------------------------------------------------------------------------------- torchvision, files, folders
def _torchvision(name, root, **options):
    """x_train, y_train, x_test, y_test of one of torchvision's sets, downloaded only if it is not under `root`."""
    from torchvision import datasets
    dataset = getattr(datasets, TORCHVISION[name])

    def part(train):
        try:
            return dataset(root, train=train, **options)
        except RuntimeError:                                                                # not there
            return dataset(root, train=train, download=True, **options)

    try:
        train, test = part(True), part(False)
    except Exception as error:                              # torchvision, urllib, tarfile and pickle raise many kinds
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise ValueError(f"{name}: can be neither read under '{root}' nor downloaded ({reason}): put the files of "
                         f"torchvision's {TORCHVISION[name]} under '{root}', or use --dataset glyphs") from error
    return [np.asarray(array) for array in (train.data, train.targets, test.data, test.targets)]


def cifar100(root):
    """CIFAR-100 with its 20 superclasses, which torchvision drops: read from the file whose checksum it verified."""
    arrays = _torchvision("cifar100", root)
    with open(Path(root) / "cifar-100-python" / "train", "rb") as file:
        superclass = pickle.load(file, encoding="latin1")["coarse_labels"]
    return _dataset("cifar100", *arrays, superclass=np.array(superclass, dtype=np.int64))


def emnist(root):
    """EMNIST's split `letters`: 124,800 + 20,800 grey images of 28 x 28, A-Z in both cases as 26 classes.

    The files hold every image transposed, and labels 1..26: here images are upright, and labels 0..25. FedMD's a-f are
    the classes 0..5; who wrote them is not in these files (take FEMNIST as an .npz with `writer_train` for that).
    """
    x_train, y_train, x_test, y_test = _torchvision("emnist", root, split="letters")
    return _dataset("emnist", x_train.swapaxes(1, 2), y_train - 1, x_test.swapaxes(1, 2), y_test - 1)


TORCHVISION = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "mnist": "MNIST", "fashion-mnist": "FashionMNIST",
               "emnist": "EMNIST"}
DATASETS = {"glyphs": lambda root: glyphs(FONT[:10], 60, 15, 10, sloppiness=1.3, seed=1),       # 6,000 and 1,500
            "glyphs-letters": lambda root: glyphs(FONT[10:], 40, 10, 4, sloppiness=1.0, seed=2),  # 4,160 and 1,040: A-Z
            **{name: lambda root, name=name: _dataset(name, *_torchvision(name, root)) for name in TORCHVISION},
            "cifar100": cifar100, "emnist": emnist}


def read_npz(path):
    """x_train, y_train, x_test, y_test and, if there, writer_train from an .npz file; num_classes = max(y_train) + 1.

    Images are uint8 (scaled to [0, 1]) or float (kept as they are), [n, h, w], [n, h, w, c] or [n, c, h, w] with c 1 or
    3; where both axes could be the channels, the last one is. Labels are whole numbers from 0, [n] or [n, 1]. Nothing
    pickled is ever loaded. ValueError, in one line, names the file, the array and what is wrong with it.
    """
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path}: {'not an .npz file, or cut short' if Path(path).exists() else 'no such file'}")
    with np.load(path, allow_pickle=False) as file:
        arrays = []
        for key in ("x_train", "y_train", "x_test", "y_test", "writer_train"):
            if key not in file and key != "writer_train":
                raise ValueError(f"{path}: {key} is missing (there is: {', '.join(file.files) or 'nothing'})")
            try:
                arrays.append(np.asarray(file[key]) if key in file else None)
            except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
                raise ValueError(f"{path}: {key} cannot be read: {error}") from error
    return _dataset(path, *arrays)


def read_folder(root):
    """An image folder, ROOT/train/CLASS/FILE and ROOT/test/CLASS/FILE; CINIC-10's third part, `valid`, is NOT read.

    Classes are numbered in the sorted order of the training folders; files are read in sorted order, hidden ones left
    out. Where every image is grey there is one channel, else three. ValueError names the file that is at fault.
    """
    from PIL import Image

    def visible(folder):
        if not folder.is_dir():
            raise ValueError(f"{folder}: not a folder (expected: train/CLASS/FILE and test/CLASS/FILE)")
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))

    def read(path):
        try:
            with Image.open(path) as image:
                if image.mode[0] in "IF":
                    raise ValueError(f"more than 8 bits per pixel, mode {image.mode}")
                return np.asarray(image.convert("RGB"))
        except Exception as error:                          # PIL's readers raise many kinds on a damaged file
            raise ValueError(f"{path}: cannot be read as an image ({error})") from error

    classes = [folder.name for folder in visible(Path(root) / "train")]
    arrays, size = [], None
    for part in ("train", "test"):
        images, labels = [], []
        for folder in visible(Path(root) / part):
            files = visible(folder)
            if folder.name not in classes or not files:
                raise ValueError(f"{folder}: {'no images' if not files else 'a class without training images'}")
            for path in files:
                images.append(read(path))
                size = size or images[0].shape
                if images[-1].shape != size:
                    raise ValueError(f"{path}: {images[-1].shape[:2]} pixels where the first image has {size[:2]}")
            labels += [classes.index(folder.name)] * len(files)
        if not images:
            raise ValueError(f"{Path(root) / part}: no images")
        arrays += [np.stack(images), labels]
    if all((arrays[i] == arrays[i][..., :1]).all() for i in (0, 2)):
        arrays[0], arrays[2] = arrays[0][..., :1], arrays[2][..., :1]
    return _dataset(root, *arrays)


def _dataset(source, x_train, y_train, x_test, y_test, writers=None, superclass=None):
    """The checked Dataset of four arrays; `source` opens every error line."""
    def data(part, pixels, labels):
        pixels = _pixels(f"{source}: x_{part}", pixels)
        labels = _whole_numbers(f"{source}: y_{part}", labels, len(pixels))
        images = torch.from_numpy(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2)         # channels-last stays
        return Data(images.float().div_(255) if images.dtype == torch.uint8 else images, torch.from_numpy(labels))

    train, test = data("train", x_train, y_train), data("test", x_test, y_test)
    shapes, num_classes = [tuple(part.images.shape[1:]) for part in (train, test)], int(train.labels.max()) + 1
    if shapes[0] != shapes[1]:
        raise ValueError(f"{source}: x_train has images of [c, h, w] {list(shapes[0])}, x_test of {list(shapes[1])}")
    if num_classes < 2:
        raise ValueError(f"{source}: y_train holds label 0 only, two classes are the least")
    if test.labels.max() >= num_classes:
        raise ValueError(f"{source}: y_test holds label {int(test.labels.max())}, y_train none above {num_classes - 1}")
    if writers is not None:
        writers = _whole_numbers(f"{source}: writer_train", writers, len(train.images))
    return Dataset(train, test, num_classes, writers, superclass)


def _pixels(where, pixels):
    """uint8 or float32 [n, h, w, c] of any allowed layout."""
    if pixels.dtype != np.uint8 and pixels.dtype.kind != "f":
        raise ValueError(f"{where} has type {pixels.dtype}: uint8 or float expected")
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    elif pixels.ndim == 4 and pixels.shape[3] not in (1, 3) and pixels.shape[1] in (1, 3):
        pixels = pixels.transpose(0, 2, 3, 1)
    if pixels.ndim != 4 or pixels.shape[3] not in (1, 3):
        raise ValueError(f"{where} is {list(pixels.shape)}, not [n, h, w], [n, h, w, c] or [n, c, h, w], c 1 or 3")
    if pixels.size == 0:
        raise ValueError(f"{where} is empty")
    with np.errstate(over="ignore"):
        pixels = pixels if pixels.dtype == np.uint8 else pixels.astype(np.float32)
    if not np.isfinite(pixels).all():
        raise ValueError(f"{where} holds pixels that are not finite")
    return pixels


def _whole_numbers(where, numbers, length):
    """int64 [length] of labels or writers in any type that holds whole numbers."""
    numbers = np.asarray(numbers)
    if numbers.ndim == 2 and numbers.shape[1] == 1:
        numbers = numbers[:, 0]
    if numbers.shape != (length,):
        raise ValueError(f"{where} has shape {list(numbers.shape)}: one entry for each of the {length} images expected")
    with np.errstate(invalid="ignore"):
        whole = numbers.astype(np.int64) if numbers.dtype.kind in "iuf" else None
    if whole is None or not np.array_equal(whole, numbers) or whole.min() < 0:
        raise ValueError(f"{where} holds something else than whole numbers from 0")
    return whole


# ------------------------------------------------------------------------------------------------ pixels to tensors
def statistics(images):
    """(mean [c], population std [c]) over the training set; a constant channel is given std 1, and so becomes 0."""
    std, mean = torch.std_mean(images, dim=(0, 2, 3), correction=0)
    return mean, torch.where(std > 1e-6, std, 1.0)


def normalise(images, mean, std):
    """(images - mean) / std per channel: float32 [n, c, h, w], channels-last, a new tensor."""
    return ((images - mean[:, None, None]) / std[:, None, None]).contiguous(memory_format=torch.channels_last)


def adapt(images, image_shape):
    """Foreign public images brought to the task's (c, h, w): [n, c, h, w] pixels, channels-last.

    RGB becomes grey by luminance (ITU-R 601), grey becomes three equal channels; the size changes by bilinear
    interpolation with antialiasing, which keeps [0, 1]. Other numbers of channels: ValueError.
    """
    channels, height, width = image_shape
    if {images.shape[1], channels} - {1, 3}:
        raise ValueError(f"cannot bring {images.shape[1]} channels to {channels}: 1 (grey) or 3 (RGB) expected")
    if channels < images.shape[1]:
        images = (images * images.new_tensor([.299, .587, .114])[:, None, None]).sum(1, keepdim=True)
    if images.shape[2:] != (height, width):
        images = F.interpolate(images, size=(height, width), mode="bilinear", antialias=True)
    if channels > images.shape[1]:
        images = images.repeat(1, 3, 1, 1)
    return images.contiguous(memory_format=torch.channels_last)


def crop_and_flip(images, rng, padding=4):
    """Each image moved by its own offset, -padding..padding both ways, and mirrored left to right with probability 1/2.

    images [n, c, h, w] on any device; what comes in from outside is 0, the mean colour of normalised images. `rng` is a
    numpy Generator. Returns a new channels-last tensor of the same shape.
    """
    n, _, h, w = images.shape
    top, left = rng.integers(0, 2 * padding + 1, size=(2, n, 1))
    mirrored = rng.integers(0, 2, size=(n, 1)) == 1
    rows = top + np.arange(h)                                                               # [n, h]
    columns = left + np.where(mirrored, np.arange(w)[::-1], np.arange(w))                   # [n, w]
    rows, columns = (torch.from_numpy(index).to(images.device) for index in (rows, columns))
    padded = F.pad(images, (padding,) * 4).permute(0, 2, 3, 1)                              # [n, h + 2p, w + 2p, c]
    image = torch.arange(n, device=images.device)[:, None, None]
    return padded[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
