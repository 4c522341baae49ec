"""Arrays from files: torchvision's sets, .npz files, image folders.

    arrays = readers.npz("mine.npz")     # {"x_train": ..., "y_train": ..., "x_test": ..., ...}

Each reader returns arrays under the names of the arguments of `data.load.checked`, which checks and
converts them. They are as the files hold them, but for EMNIST (upright, labels from 0), image files
(decoded, resized if asked, one channel if all are gray) and names of classes (numbers). torchvision
and PIL are imported only when a data set needs them.
"""
import pickle
import string
from pathlib import Path

import numpy as np

from data.images import BadData

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
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BadData(f"{name}: can be neither read under '{root}' nor downloaded ({reason}): "
                         "put torchvision's files there (--data-root), give the images as an .npz "
                         "file, or take the embedded glyphs and glyphs-letters") from error
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


def npz(path, labeled=True):
    """x_train, y_train, x_test, y_test and, if the file has it, writer_train of an .npz file.

    labeled    False: x_train alone; the file needs no other array

    Images are [n, h, w], [n, h, w, c] or [n, c, h, w] with c = 1 or 3 (the last axis if both can be
    c), uint8 or floats in [0, 1]. Labels [n] or [n, 1] are whole numbers from 0, or names of
    classes: see `numbered`. Pickled arrays are refused. ValueError names the file.
    """
    names = ("x_train", "y_train", "x_test", "y_test", "writer_train") if labeled else ("x_train",)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in names if name in file}
    except Exception as error:      # many types: from zipfile, zlib and numpy
        raise BadData(f"{path}: cannot be read as an .npz file ({error})") from error
    for name in names[:4]:
        if name not in arrays:
            raise BadData(f"{path}: {name} is missing")
    if labeled and arrays["y_train"].dtype.kind in "SU":
        arrays |= numbered(path, arrays["y_train"].astype(str), arrays["y_test"].astype(str))
    return arrays


def split(path):
    """{"client_0": row numbers, "client_1": ..., ...} of an .npz file, for --partition.

    It may also have public and validation, rows of the training images as the clients' are; test
    and public_test, rows of the test images; dataset, the `fingerprint` of the data set. Rows are
    returned as int64, sorted. ValueError names the file.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except Exception as error:      # many types: from zipfile, zlib and numpy
        raise BadData(f"{path}: cannot be read as an .npz file ({error})") from error
    clients = [f"client_{i}" for i in range(sum(name.startswith("client_") for name in arrays))]
    others = ("public", "validation", "test", "public_test", "dataset")
    if not {"client_0"} <= {*clients} <= {*arrays} <= {*clients, *others}:
        raise BadData(f"{path}: has the arrays {', '.join(arrays)}; expected client_0, "
                         f"client_1, ... and, if there are such, {', '.join(others)}")
    if "public_test" in arrays and "test" not in arrays:
        raise BadData(f"{path}: has public_test, but no test")
    for name in arrays.keys() - {"dataset"}:
        rows = arrays[name]
        if rows.ndim != 1 or len(rows) == 0 or rows.dtype.kind not in "iu":
            raise BadData(f"{path}: {name} has shape {list(rows.shape)} and type {rows.dtype}; "
                             "expected row numbers: whole numbers [n] with n > 0")
        arrays[name] = np.sort(rows).astype(np.int64)
    return arrays


def numbered(path, y_train, y_test):
    """y_train and y_test as numbers, and class_names, of labels that are names.

    ValueError if the test labels have a class without training images.
    """
    classes = np.unique(y_train)                         # by alphabet
    if unknown := {*y_test.flat} - {*classes}:
        raise BadData(f"{path}: y_test has '{min(unknown)}', a class without training images")
    y_train, y_test = (np.searchsorted(classes, y) for y in (y_train, y_test))
    return {"y_train": y_train, "y_test": y_test, "class_names": classes.tolist()}


def folder(root, size=None):
    """Images, labels and class names of ROOT/train/CLASS/FILE and ROOT/test/CLASS/FILE, as
    torchvision's ImageFolder finds them: classes and files by alphabet.

    Other parts, such as CINIC-10's `valid`, are not read. Images have three channels, or one if all
    are gray, and `size`: see `read_images`. ValueError or OSError names the place of the problem.
    """
    from torchvision.datasets import ImageFolder
    for part in ("train", "test"):
        if not Path(root, part).is_dir():
            raise BadData(f"{root} has no folder {part}: expected {root}/{part}/CLASS/a.png")
    train, test = (ImageFolder(Path(root, part)) for part in ("train", "test"))
    if unknown := {*test.classes} - {*train.classes}:
        raise BadData(f"{Path(root, 'test', min(unknown))}: a class without training images")
    if train.classes[0].startswith("."):
        raise BadData(f"{Path(root, 'train', train.classes[0])}: a hidden folder among the classes")
    images = [read_images([path for path, _ in part.samples], size) for part in (train, test)]
    images = one_channel_if_gray(images)
    y_test = [train.class_to_idx[test.classes[label]] for label in test.targets]
    return {"x_train": images[0], "y_train": train.targets, "x_test": images[1], "y_test": y_test,
            "class_names": train.classes}


def unlabeled_folder(root, size=None):
    """All images of ROOT/train, if it exists, otherwise of ROOT, in any folders inside it."""
    from torchvision.datasets.folder import IMG_EXTENSIONS
    train = Path(root, "train")
    paths = sorted(path for path in (train if train.is_dir() else Path(root)).rglob("*")
                   if path.suffix.lower() in IMG_EXTENSIONS)
    if not paths:
        raise BadData(f"{root}: no images")
    [images] = one_channel_if_gray([read_images(paths, size)])
    return {"x_train": images}


def read_images(paths, size):
    """Bytes [n, h, w, 3] of image files.

    size    (height, width), to which each is resized; None: ValueError names the first whose size
            is not the first one's
    """
    images = [read_image(path, size) for path in paths]
    for path, image in zip(paths, images):
        if image.shape != images[0].shape:
            raise BadData(f"{path}: size {image.shape[:2]}, the first image has "
                          f"{images[0].shape[:2]}; --image-size 32 makes all 32x32")
    return np.stack(images)


def read_image(path, size=None):
    """An image file as bytes [h, w, 3]: upright as its EXIF data say, transparent parts on white.

    size    (height, width), to which it is resized, bilinear with antialiasing
    ValueError names a file that is no image, or has gray of more than 8 bits, which PIL would cut.
    """
    from PIL import Image, ImageOps
    try:
        with Image.open(path) as image:
            if image.mode[0] in "IF":
                raise BadData("gray of more than 8 bits; an .npz file may hold floats")
            image = ImageOps.exif_transpose(image).convert("RGBA")
    except Exception as error:      # PIL raises many types of errors for a damaged file
        raise BadData(f"{path}: cannot be read as an image ({error})") from error
    image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    if size is not None:
        image = image.resize(size[::-1], Image.Resampling.BILINEAR)
    return np.array(image)


def one_channel_if_gray(parts):
    """The images [[n, h, w, 3], ...], or their first channel if all images are gray."""
    if all((images == images[..., :1]).all() for images in parts):
        return [images[..., :1] for images in parts]
    return parts
