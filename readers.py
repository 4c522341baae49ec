"""Arrays from files: torchvision's sets, .npz files, image folders. (LEAF's FEMNIST: leaf.py)

    x_train, y_train, x_test, y_test, writers = readers.npz("mine.npz")

Each reader returns the arrays as the files hold them; `data.load` checks and converts them.
torchvision and PIL are imported only when a data set needs them.
"""
import math
import pickle
import string
import zipfile
import zlib
from pathlib import Path

import numpy as np

TORCHVISION = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "mnist": "MNIST",
               "fashion-mnist": "FashionMNIST", "emnist": "EMNIST"}


def torchvision(name, root, **options):
    """x_train, y_train, x_test, y_test of a torchvision set; missing files are downloaded.

    After them come None for writers and superclasses, and the names of the classes. ValueError if
    the files can be neither read from the folder `root` nor downloaded to it.
    """
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
    arrays = map(np.asarray, (train.data, train.targets, test.data, test.targets))
    return *arrays, None, None, train.classes


def cifar100(root):
    """CIFAR-100 with its 20 superclasses, which torchvision does not return."""
    *arrays, writers, _, class_names = torchvision("cifar100", root)
    with open(Path(root) / "cifar-100-python" / "train", "rb") as file:
        superclass = pickle.load(file, encoding="latin1")["coarse_labels"]  # MD5 verified above
    return *arrays, writers, np.array(superclass, dtype=np.int64), class_names


def emnist(root):
    """EMNIST `letters`: 124,800 + 20,800 gray 28 x 28 images, A-Z in both cases as 26 classes.

    The files hold transposed images and labels 1..26; here images are upright and labels are 0..25.
    FedMD's a-f are 0..5. Writers are unknown: to split by writer, use LEAF's FEMNIST (leaf.py).
    """
    x_train, y_train, x_test, y_test, *_ = torchvision("emnist", root, split="letters")
    return (x_train.swapaxes(1, 2), y_train - 1, x_test.swapaxes(1, 2), y_test - 1, None, None,
            string.ascii_uppercase)


def npz(path):
    """x_train, y_train, x_test, y_test and writer_train, or None without it, of an .npz file.

    Images are [n, h, w], [n, h, w, c] or [n, c, h, w] with c = 1 or 3 (the last axis if both can be
    c), uint8 or floats in [0, 1]. Labels [n] or [n, 1] are whole numbers from 0. Pickled arrays are
    refused. ValueError names file and array.
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
                code = f"; save np.array({key}.tolist())" if "Object arrays" in str(error) else ""
                raise ValueError(f"{path}: {key} cannot be read: {error}{code}") from error
    return arrays


def folder(root):
    """x_train, y_train, x_test, y_test of ROOT/train/CLASS/FILE and ROOT/test/CLASS/FILE.

    Other parts, such as CINIC-10's `valid`, are NOT read. Classes are numbered in the sorted order
    of the training folders. Files are read in sorted order; hidden files are ignored. Images have
    three channels, or one if all images are gray. ValueError names the file with the problem.
    """
    from PIL import Image
    def visible(place):
        if not place.is_dir():
            raise ValueError(f"{place}: not a folder; expected train/CLASS/FILE, test/CLASS/FILE")
        return sorted(path for path in place.iterdir() if not path.name.startswith("."))

    def read(path):
        try:
            with Image.open(path) as image:
                if image.mode[0] in "IF":
                    raise ValueError(f"more than 8 bits per pixel, mode {image.mode}")
                return np.asarray(image.convert("RGB"))
        except Exception as error:  # PIL raises many types of errors for a damaged file
            raise ValueError(f"{path}: cannot be read as an image ({error})") from error

    classes = [place.name for place in visible(Path(root) / "train")]
    arrays, size = [], None
    for part in ("train", "test"):
        images, labels = [], []
        for place in visible(Path(root) / part):
            files = visible(place)
            if not files or place.name not in classes:
                problem = "a class without training images" if files else "no images"
                raise ValueError(f"{place}: {problem}")
            for path in files:
                image = read(path)
                size = size or image.shape[:2]
                if image.shape[:2] != size:
                    raise ValueError(f"{path}: size {image.shape[:2]}, the first image has {size}")
                images.append(image)
            labels += [classes.index(place.name)] * len(files)
        if not images:
            raise ValueError(f"{Path(root) / part}: no images")
        arrays += [np.stack(images), labels]
    if all((arrays[i] == arrays[i][..., :1]).all() for i in (0, 2)):
        arrays[0], arrays[2] = arrays[0][..., :1], arrays[2][..., :1]
    return *arrays, None, None, classes


# ---------------------------------------------------- checks; an error says what to save instead
def pixels(source, name, array):
    """uint8 or float32 in [0, 1], [n, h, w, c], from any allowed layout."""
    where, shape = f"{source}: {name}", array.shape
    if array.size == 0:
        raise ValueError(f"{where} is empty")
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        code = _as_pixels(name, array) if array.dtype.kind in "biu" else "numbers"
        raise ValueError(f"{where} has type {array.dtype}: uint8 or float expected; save {code}")
    if array.ndim == 3:
        array = array[..., None]
    elif array.ndim == 4 and shape[3] not in (1, 3) and shape[1] in (1, 3):
        array = array.transpose(0, 2, 3, 1)
    if array.ndim != 4 or array.shape[3] not in (1, 3):
        raise ValueError(f"{where} has shape {list(shape)}: [n, h, w], [n, h, w, c] or "
                         f"[n, c, h, w] with c = 1 or 3 expected{_as_images(name, shape)}")
    if array.dtype == np.uint8:
        return array
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)
    if not np.isfinite(array).all():
        raise ValueError(f"{where} holds pixels that are not finite in float32")
    low, high = array.min(), array.max()
    if low < -1e-3 or high > 1 + 1e-3:
        raise ValueError(f"{where} holds floats from {low:.4g} to {high:.4g}, outside [0, 1]; "
                         f"save {_as_pixels(name, array)}")
    return array


def _as_pixels(name, array):
    """What to save instead of these numbers: bytes, or floats in [0, 1]."""
    low, high, is_float = array.min(), array.max(), array.dtype.kind == "f"
    if -0.1 < low and high < 1.1:                        # resizing may leave [0, 1] a little
        return f"np.clip({name}, 0, 1)" if is_float else f"{name}.astype(np.float32)"
    if -1 <= low and high <= 1:
        return f"({name} + 1) / 2"
    if 0 <= low and 16 < high <= 255:
        return f"{name} / 255" if is_float else f"{name}.astype(np.uint8)"
    if 0 <= low and 255 < high <= 65535:
        return f"{name} / 65535"
    # A run standardizes the images, so that a common offset and factor change nothing.
    standardized = f"{name} * std + mean if it was standardized (a run does that itself), else "
    return (standardized if low < 0 else "") + (
        f"({name} - low) / (high - low) with one low and one high for all arrays")


def _as_images(name, shape):
    """What to save instead of an array whose shape is not that of images."""
    if len(shape) == 2:
        for channels in (1, 3):
            side = math.isqrt(shape[1] // channels)
            if side**2 * channels == shape[1]:
                color = "" if channels == 1 else "3, "
                return f"; save {name}.reshape(-1, {color}{side}, {side})"
        return f"; save {name}.reshape(-1, 1, {shape[1]}) and give --model mlp"
    for axis, index in ((3, "..., "), (1, ":, ")):
        if len(shape) == 4 and shape[axis] in (2, 4):    # the last channel is the transparency
            return f"; save {name}[{index}:{shape[axis] - 1}]"
    return ""


def whole_numbers(source, name, numbers, length, code):
    """int64 [length] of labels or writers, of any numeric type; code: how to make such numbers."""
    where, numbers = f"{source}: {name}", np.asarray(numbers)
    if numbers.ndim == 2 and numbers.shape[1] == 1:
        numbers = numbers[:, 0]
    if numbers.shape != (length,):
        one_hot = f"; save {name}.argmax(1)" if numbers.shape[:1] == (length,) else ""
        raise ValueError(f"{where} has shape {list(numbers.shape)}, not [{length}] (one per image)"
                         + one_hot)
    with np.errstate(invalid="ignore"):
        whole = numbers.astype(np.int64) if numbers.dtype.kind in "iuf" else None
    wrong = numbers if whole is None else numbers[(whole != numbers) | (whole < 0)]
    if len(wrong):
        has_fractions = whole is not None and (whole != numbers).any()
        raise ValueError(f"{where} holds values other than whole numbers from 0, such as "
                         f"{wrong[0].item()!r}{'' if has_fractions else f'; save {code}'}")
    return whole
