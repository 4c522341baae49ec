"""Arrays from files: torchvision's sets, .npz files, image folders.

    arrays = readers.npz("mine.npz")     # {"x_train": ..., "y_train": ..., "x_test": ..., ...}

Each reader returns the arrays as the files hold them, under the names of the arguments of
`data.load.checked`, which checks and converts them. torchvision and PIL are imported only when a
data set needs them.
"""
import pickle
import string
import zipfile
from pathlib import Path

import numpy as np

TORCHVISION = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "mnist": "MNIST",
               "fashion-mnist": "FashionMNIST", "emnist": "EMNIST"}


def torchvision(name, root, **options):
    """Images, labels and class names of a torchvision set; missing files are downloaded.

    ValueError if the files can be neither read from the folder `root` nor downloaded to it.
    """
    from torchvision import datasets
    try:
        train, test = (getattr(datasets, TORCHVISION[name])(
            root, train=part, download=True, **options) for part in (True, False))
    except Exception as error:      # many types: from torchvision, urllib, tarfile and pickle
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"{name}: can be neither read under '{root}' nor downloaded ({reason}): "
                         "put torchvision's files there (--data-root), or take the embedded "
                         "glyphs and glyphs-letters") from error
    return {"x_train": np.asarray(train.data), "y_train": np.asarray(train.targets),
            "x_test": np.asarray(test.data), "y_test": np.asarray(test.targets),
            "class_names": train.classes}


def cifar100(root):
    """CIFAR-100 with its 20 superclasses, which torchvision does not return."""
    arrays = torchvision("cifar100", root)
    with open(Path(root) / "cifar-100-python" / "train", "rb") as file:
        superclass = pickle.load(file, encoding="latin1")["coarse_labels"]  # MD5 verified above
    return arrays | {"superclass": np.array(superclass, dtype=np.int64)}


def emnist(root):
    """EMNIST `letters`: 124,800 + 20,800 gray 28 x 28 images, A-Z in both cases as 26 classes.

    The files hold transposed images and labels 1..26; here images are upright and labels are 0..25.
    FedMD's a-f are 0..5. Writers are unknown: emnist_to_npz.py makes a file that has them.
    """
    arrays = torchvision("emnist", root, split="letters")
    return {"x_train": arrays["x_train"].swapaxes(1, 2), "y_train": arrays["y_train"] - 1,
            "x_test": arrays["x_test"].swapaxes(1, 2), "y_test": arrays["y_test"] - 1,
            "class_names": [*string.ascii_uppercase]}


def npz(path):
    """x_train, y_train, x_test, y_test and, if the file has it, writer_train of an .npz file.

    Images are [n, h, w], [n, h, w, c] or [n, c, h, w] with c = 1 or 3 (the last axis if both can be
    c), uint8 or floats in [0, 1]. Labels [n] or [n, 1] are whole numbers from 0. Pickled arrays are
    refused. ValueError names file and array.
    """
    if not zipfile.is_zipfile(path):
        problem = "not an .npz file, or cut short" if Path(path).exists() else "no such file"
        raise ValueError(f"{path}: {problem}")
    arrays = {}
    with np.load(path, allow_pickle=False) as file:
        for key in ("x_train", "y_train", "x_test", "y_test", "writer_train"):
            if key in file:
                try:
                    arrays[key] = np.asarray(file[key])
                except Exception as error:      # many types: from zipfile, zlib and numpy
                    raise ValueError(f"{path}: {key} cannot be read: {error}") from error
            elif key != "writer_train":
                raise ValueError(f"{path}: {key} is missing, the file holds {file.files}")
    return arrays


def folder(root):
    """Images, labels and class names of ROOT/train/CLASS/FILE and ROOT/test/CLASS/FILE.

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
    arrays, size = {"class_names": classes}, None
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
        arrays |= {f"x_{part}": np.stack(images), f"y_{part}": labels}
    pixels = [arrays["x_train"], arrays["x_test"]]
    if all((x == x[..., :1]).all() for x in pixels):
        arrays |= {"x_train": pixels[0][..., :1], "x_test": pixels[1][..., :1]}
    return arrays
