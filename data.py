"""Images and labels as tensors: embedded glyphs, torchvision's sets, .npz files, folders.

    task = data.load("glyphs")                                    # pixels as in the file
    images = data.to_float(task.train.images)                     # bytes are scaled to [0, 1]
    images = data.normalize(images, *data.statistics(images))     # [n, c, h, w], channels-last

Public images from another dataset go through `adapt`, then the TASK's mean and std (FedDF's code:
the public set's own). torchvision and PIL are imported only when a dataset needs them.
"""
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

import leaf
from algorithms.common import Data
from glyphs import FONT, handwriting


class Dataset(NamedTuple):
    """A training and a test set: [n, c, h, w] channels-last uint8 or float32, int64 [n] labels."""

    train: Data
    test: Data
    num_classes: int                      # labels are 0, ..., num_classes - 1
    writers: np.ndarray | None = None     # int64 [n_train]: the writer of each image, if known
    superclass: np.ndarray | None = None  # int64 [n_train]: CIFAR-100's 20 coarse labels
    subclass: np.ndarray | None = None    # int64 [n_train]: the labels before `by_superclass`


def load(name_or_path, root="data"):
    """The `Dataset` with this name (see DATASETS), or from this .npz file, image or LEAF folder.

    A name takes precedence over a file or folder of the same name. torchvision's files are read
    from the folder `root`, or downloaded to it. ValueError, in one line, if this is not possible.
    """
    name = str(name_or_path)
    if name in DATASETS:
        return DATASETS[name](root)
    if name.lower().endswith(".npz"):
        return read_npz(name)
    if Path(name).is_dir():
        return _dataset(name, *leaf.read(name)) if leaf.is_leaf(name) else read_folder(name)
    raise ValueError(f"no dataset '{name}': use {', '.join(DATASETS)}, a .npz file or a folder")


def only(dataset, classes):
    """The dataset with only these classes (two or more, else ValueError); classes[j] is label j."""
    allowed = range(dataset.num_classes)
    if not 2 <= len(classes) == len(set(classes)) or not set(classes) <= set(allowed):
        raise ValueError(f"--classes {','.join(map(str, classes))}: "
                         f"give two or more different classes from 0 to {allowed[-1]}")
    # One look-up replaces all labels: replacing class after class could merge two classes.
    new_label = torch.full((dataset.num_classes,), -1)
    new_label[torch.tensor(classes)] = torch.arange(len(classes))

    def part(data):
        labels = new_label[data.labels]
        return Data(data.images[labels >= 0], labels[labels >= 0])

    kept = (new_label[dataset.train.labels] >= 0).numpy()
    arrays = (dataset.writers, dataset.superclass, dataset.subclass)
    return Dataset(part(dataset.train), part(dataset.test), len(classes),
                   *(None if array is None else array[kept] for array in arrays))


def by_superclass(dataset, name):
    """The dataset labeled by superclass, old labels in `subclass`. ValueError: no superclasses."""
    if dataset.superclass is None:
        raise ValueError(f"--partition by_subclass: {name} has no superclasses, use cifar100")
    superclass_of = torch.zeros(dataset.num_classes, dtype=torch.int64)
    superclass_of[dataset.train.labels] = torch.from_numpy(dataset.superclass)
    train, test = (part._replace(labels=superclass_of[part.labels])
                   for part in (dataset.train, dataset.test))
    return dataset._replace(train=train, test=test, num_classes=int(superclass_of.max()) + 1,
                            superclass=None, subclass=dataset.train.labels.numpy())


# --------------------------------------------------------------------------------- embedded glyphs
def glyphs(font, train_writers, test_writers, copies, sloppiness, seed):
    """A Dataset of drawn symbols; the test writers do not appear in the training set."""
    num_writers = train_writers + test_writers
    images, labels, writers = handwriting(font, num_writers, copies, sloppiness, seed)
    train, test = writers < train_writers, writers >= train_writers
    return _dataset("glyphs", images[train], labels[train], images[test], labels[test],
                    writers=writers[train])


# ---------------------------------------------------------------------- torchvision, files, folders
def _torchvision(name, root, **options):
    """x_train, y_train, x_test, y_test of a torchvision set; missing files are downloaded."""
    from torchvision import datasets
    dataset = getattr(datasets, TORCHVISION[name])
    def part(train):
        try:
            return dataset(root, train=train, **options)
        except RuntimeError:        # torchvision's error if the files are not under `root`
            return dataset(root, train=train, download=True, **options)

    try:
        train, test = part(True), part(False)
    except Exception as error:      # many types: from torchvision, urllib, tarfile and pickle
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise ValueError(f"{name}: can be neither read under '{root}' nor downloaded ({reason}): "
                         "put torchvision's files there, or use --dataset glyphs") from error
    return [np.asarray(array) for array in (train.data, train.targets, test.data, test.targets)]


def cifar100(root):
    """CIFAR-100 with its 20 superclasses, which torchvision does not return."""
    arrays = _torchvision("cifar100", root)
    with open(Path(root) / "cifar-100-python" / "train", "rb") as file:
        superclass = pickle.load(file, encoding="latin1")["coarse_labels"]  # MD5 verified above
    return _dataset("cifar100", *arrays, superclass=np.array(superclass, dtype=np.int64))


def emnist(root):
    """EMNIST `letters`: 124,800 + 20,800 gray 28 x 28 images, A-Z in both cases as 26 classes.

    The files hold transposed images and labels 1..26; here images are upright and labels are 0..25.
    FedMD's a-f are 0..5. Writers are unknown: to split by writer, use LEAF's FEMNIST (leaf.py).
    """
    x_train, y_train, x_test, y_test = _torchvision("emnist", root, split="letters")
    return _dataset("emnist", x_train.swapaxes(1, 2), y_train - 1,
                    x_test.swapaxes(1, 2), y_test - 1)


TORCHVISION = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "mnist": "MNIST",
               "fashion-mnist": "FashionMNIST", "emnist": "EMNIST"}
DATASETS = {
    # 6,000 training and 1,500 test images of digits; 4,160 and 1,040 of the letters A-Z.
    "glyphs": lambda root: glyphs(FONT[:10], 60, 15, copies=10, sloppiness=1.3, seed=1),
    "glyphs-letters": lambda root: glyphs(FONT[10:], 40, 10, copies=4, sloppiness=1.0, seed=2),
    **{name: lambda root, name=name: _dataset(name, *_torchvision(name, root))
       for name in TORCHVISION},
    "cifar100": cifar100, "emnist": emnist}


def read_npz(path):
    """A Dataset from an .npz file: x_train, y_train, x_test, y_test and optionally writer_train.

    Images [n, h, w], [n, h, w, c] or [n, c, h, w] with c = 1 or 3 (the last axis if both can be c)
    are uint8 or float (which is never scaled). Labels [n] or [n, 1] are whole numbers from
    0; num_classes = max(y_train) + 1. Pickled arrays are refused. ValueError names file and array.
    """
    if not zipfile.is_zipfile(path):
        problem = "not an .npz file, or cut short" if Path(path).exists() else "no such file"
        raise ValueError(f"{path}: {problem}")
    with np.load(path, allow_pickle=False) as file:
        arrays = []
        for key in ("x_train", "y_train", "x_test", "y_test", "writer_train"):
            if key not in file and key != "writer_train":
                raise ValueError(f"{path}: {key} is missing, the file holds {file.files}")
            try:
                arrays.append(np.asarray(file[key]) if key in file else None)
            except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
                raise ValueError(f"{path}: {key} cannot be read: {error}") from error
    return _dataset(path, *arrays)


def read_folder(root):
    """A Dataset from an image folder: ROOT/train/CLASS/FILE and ROOT/test/CLASS/FILE.

    Other parts, such as CINIC-10's `valid`, are NOT read. Classes are numbered in the sorted order
    of the training folders. Files are read in sorted order; hidden files are ignored. Images have
    three channels, or one if all images are gray. ValueError names the file with the problem.
    """
    from PIL import Image
    def visible(folder):
        if not folder.is_dir():
            raise ValueError(f"{folder}: not a folder; expected train/CLASS/FILE, test/CLASS/FILE")
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))

    def read(path):
        try:
            with Image.open(path) as image:
                if image.mode[0] in "IF":
                    raise ValueError(f"more than 8 bits per pixel, mode {image.mode}")
                return np.asarray(image.convert("RGB"))
        except Exception as error:  # PIL raises many types of errors for a damaged file
            raise ValueError(f"{path}: cannot be read as an image ({error})") from error

    classes = [folder.name for folder in visible(Path(root) / "train")]
    arrays, size = [], None
    for part in ("train", "test"):
        images, labels = [], []
        for folder in visible(Path(root) / part):
            files = visible(folder)
            if not files or folder.name not in classes:
                problem = "a class without training images" if files else "no images"
                raise ValueError(f"{folder}: {problem}")
            for path in files:
                image = read(path)
                size = size or image.shape[:2]
                if image.shape[:2] != size:
                    raise ValueError(f"{path}: size {image.shape[:2]}, the first image has {size}")
                images.append(image)
            labels += [classes.index(folder.name)] * len(files)
        if not images:
            raise ValueError(f"{Path(root) / part}: no images")
        arrays += [np.stack(images), labels]
    if all((arrays[i] == arrays[i][..., :1]).all() for i in (0, 2)):
        arrays[0], arrays[2] = arrays[0][..., :1], arrays[2][..., :1]
    return _dataset(root, *arrays)


def _dataset(source, x_train, y_train, x_test, y_test, writers=None, superclass=None):
    """A Dataset from arrays that are checked; every error message begins with `source`."""
    def data(part, pixels, labels):
        pixels = _pixels(f"{source}: x_{part}", pixels)
        labels = _whole_numbers(f"{source}: y_{part}", labels, len(pixels))
        images = torch.from_numpy(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2)  # channels-last
        return Data(images, torch.from_numpy(labels))

    train, test = data("train", x_train, y_train), data("test", x_test, y_test)
    train_shape, test_shape = (list(part.images.shape[1:]) for part in (train, test))
    train_max, test_max = int(train.labels.max()), int(test.labels.max())
    if train_shape != test_shape:
        raise ValueError(f"{source}: x_train has [c, h, w] {train_shape}, x_test has {test_shape}")
    if train_max < 1:
        raise ValueError(f"{source}: y_train holds label 0 only: at least two classes are needed")
    if test_max > train_max:
        raise ValueError(f"{source}: y_test holds label {test_max}, y_train none above {train_max}")
    if writers is not None:
        writers = _whole_numbers(f"{source}: writer_train", writers, len(train.images))
    return Dataset(train, test, train_max + 1, writers, superclass)


def _pixels(where, pixels):
    """uint8 or float32 [n, h, w, c] from any allowed layout."""
    if pixels.dtype != np.uint8 and pixels.dtype.kind != "f":
        raise ValueError(f"{where} has type {pixels.dtype}: uint8 or float expected")
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    elif pixels.ndim == 4 and pixels.shape[3] not in (1, 3) and pixels.shape[1] in (1, 3):
        pixels = pixels.transpose(0, 2, 3, 1)
    if pixels.ndim != 4 or pixels.shape[3] not in (1, 3):
        raise ValueError(f"{where} has shape {list(pixels.shape)}: "
                         "[n, h, w], [n, h, w, c] or [n, c, h, w] with c = 1 or 3 expected")
    if pixels.size == 0:
        raise ValueError(f"{where} is empty")
    with np.errstate(over="ignore"):
        pixels = pixels if pixels.dtype == np.uint8 else pixels.astype(np.float32)
    if pixels.dtype != np.uint8 and not np.isfinite(pixels).all():
        raise ValueError(f"{where} holds pixels that are not finite in float32")
    return pixels


def _whole_numbers(where, numbers, length):
    """int64 [length] of labels or writers, which may have any numeric type."""
    numbers = np.asarray(numbers)
    if numbers.ndim == 2 and numbers.shape[1] == 1:
        numbers = numbers[:, 0]
    if numbers.shape != (length,):
        raise ValueError(f"{where} has shape {list(numbers.shape)}, not [{length}] (one per image)")
    with np.errstate(invalid="ignore"):
        whole = numbers.astype(np.int64) if numbers.dtype.kind in "iuf" else None
    if whole is None or not np.array_equal(whole, numbers) or whole.min() < 0:
        raise ValueError(f"{where} holds values other than whole numbers from 0")
    return whole


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
