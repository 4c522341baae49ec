"""Arrays from files: torchvision's sets, .npz files, image folders.

    arrays = readers.npz("mine.npz")     # {"x_train": ..., "y_train": ..., "x_test": ..., ...}

Each reader returns arrays under the names of the arguments of `data.load.checked`, which checks and
converts them. They are as the files hold them, but for EMNIST (upright, labels from 0), image files
(decoded, resized if asked, one channel if all are gray) and names of classes (numbers). torchvision
and PIL are imported only when a data set needs them.
"""
import glob
import math
import os
import pickle
import string
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from data.images import BadData, adapt

TORCHVISION = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "mnist": "MNIST",
               "fashion-mnist": "FashionMNIST", "emnist": "EMNIST"}
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")


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
    classes = in_order({*y_train.flat})
    if unknown := {*y_test.flat} - {*classes}:
        raise BadData(f"{path}: y_test has '{min(unknown)}', a class without training images")
    number = {name: j for j, name in enumerate(classes)}
    y_train, y_test = (np.array([number[name] for name in y.flat], dtype=np.int64).reshape(y.shape)
                       for y in (y_train, y_test))
    return {"y_train": y_train, "y_test": y_test, "class_names": classes}


def in_order(names):
    """Names of classes in their order: numbers, then other names."""
    names = map(str, names)                              # of numpy, too
    return sorted(names, key=lambda name: (int(name) if name.isdecimal() else math.inf, name))


def read_image(path):
    """An image file as pixels [h, w, 3]: upright as its EXIF data say, transparent parts on white.

    They are bytes, or float32 in [0, 1] of a gray image of 16 bits. ValueError names a file that is
    no image, or has several pages, colors of more than 8 bits, or gray of more than 16.
    """
    from PIL import Image, ImageOps
    try:
        with Image.open(path) as image:
            if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":   # JPEG with a preview
                raise BadData(f"{image.n_frames} pages; each must be a file of its own")
            if more_than_8_bits(image):
                return gray_of_16_bits(image)
            upright = ImageOps.exif_transpose(image).convert("RGBA")
    except Exception as error:      # PIL raises many types of errors for a damaged file
        raise BadData(f"{path}: cannot be read as an image ({error})") from error
    white = Image.new("RGBA", upright.size, "white")
    return np.array(Image.alpha_composite(white, upright).convert("RGB"))


def more_than_8_bits(image):
    """True if a channel of an opened file has more than 8 bits, which PIL may cut off silently."""
    if image.mode[0] in "IF":
        return True
    if image.format == "TIFF":
        return max(image.tag_v2.get(258, [1])) > 8       # BitsPerSample
    layout = image.tile[0][3] if image.tile else ""      # of a .ppm ("RGB", the largest number)
    return ((image.format == "PNG" and layout.endswith(";16B"))
            or (image.format == "PPM" and isinstance(layout, tuple) and layout[1] > 255))


def gray_of_16_bits(image):
    """float32 [h, w, 3] in [0, 1] of an opened file. ValueError if it is another kind."""
    from PIL import ImageOps
    is_gray = image.mode[:4] == "I;16" or image.mode == "I" and image.format in ("PNG", "PPM")
    if not is_gray or image.format == "TIFF" and image.tag_v2.get(262) == 0:      # 0 is white
        raise BadData("colors of more than 8 bits, or gray that is not from 0, black, to 65535")
    numbers = np.array(ImageOps.exif_transpose(image)).astype(np.uint16)
    numbers[numbers == image.info.get("transparency", -1)] = 65535                # on white
    return np.repeat(numbers[..., None] / np.float32(65535), 3, axis=2)


def resized(image, size):
    """Pixels [h, w, 3] with another (height, width), bilinear with antialiasing, of their type."""
    tensor = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    resized = adapt(tensor, (3, *size))[0].permute(1, 2, 0).numpy()
    return resized.round().astype(np.uint8) if image.dtype == np.uint8 else resized


def read_images(paths, size):
    """Pixels [n, h, w, 3] of image files: bytes, or float32 if one of them has 16 bits.

    size    (height, width), to which each is resized; None: ValueError names the first whose size
            is not the first one's
    """
    images = []
    for path in paths:
        image = read_image(path)
        if size is not None and image.shape[:2] != tuple(size):
            image = resized(image, size)
        images.append(image)
        if image.shape != images[0].shape:
            raise BadData(f"{path}: size {image.shape[:2]}, the first image has "
                             f"{images[0].shape[:2]}; --image-size 32 makes all 32x32")
    if any(image.dtype != np.uint8 for image in images):
        images = [image / np.float32(255) if image.dtype == np.uint8 else image for image in images]
    return np.stack(images)


def one_channel_if_gray(parts):
    """The images [[n, h, w, 3], ...], or their first channel if all images are gray."""
    if all((images == images[..., :1]).all() for images in parts):
        return [images[..., :1] for images in parts]
    return parts


def image_files(folder):
    """The paths of all images in a folder and its folders, in sorted order.

    Names that begin with a dot are ignored, as `glob` does. ValueError if there are no images.
    """
    names = [name for name in glob.glob("**", root_dir=folder, recursive=True)
             if name.lower().endswith(SUFFIXES)]
    if not names:
        raise BadData(f"{folder}: no images")
    return [Path(folder, name) for name in sorted(names, key=os.path.split)]


def class_folders(folder):
    """The names of the folders in a folder: numbers in their order, then other names.

    Names that begin with a dot are ignored. ValueError if there are no folders.
    """
    if not Path(folder).is_dir():
        raise BadData(f"{folder} is missing")
    names = [path.name for path in Path(folder).iterdir()
             if path.is_dir() and not path.name.startswith(".")]
    if not names:
        raise BadData(f"{folder}: no folders of classes")
    return in_order(names)


def folder(root, size=None):
    """Images, labels and class names of ROOT/train/CLASS/FILE and ROOT/test/CLASS/FILE.

    Other parts, such as CINIC-10's `valid`, are NOT read. Classes are numbered in the order of
    `in_order`. Images have three channels, or one if all are gray, and `size`: see `read_images`.
    ValueError names the place of the problem.
    """
    train, test = ({name: image_files(Path(root, part, name))
                    for name in class_folders(Path(root, part))} for part in ("train", "test"))
    for name in test:
        if name not in train:
            raise BadData(f"{Path(root, 'test', name)}: a class without training images")
    classes, images, labels = list(train), [], []
    for part in (train, test):
        images.append(read_images([path for paths in part.values() for path in paths], size))
        labels.append([classes.index(name) for name, paths in part.items() for _ in paths])
    images = one_channel_if_gray(images)
    return {"x_train": images[0], "y_train": labels[0], "x_test": images[1], "y_test": labels[1],
            "class_names": classes}


def unlabeled_folder(root, size=None):
    """All images of ROOT/train, if it exists, otherwise of ROOT, in any folders inside it."""
    train = Path(root, "train")
    paths = image_files(train if train.is_dir() else root)
    [images] = one_channel_if_gray([read_images(paths, size)])
    return {"x_train": images}


def ignored(root, labeled):
    """How many files `folder`, or `unlabeled_folder`, does not read: "20 .gif, 3 in val", or "".

    Names that begin with a dot do not count.
    """
    needed, parts = (3, ("train", "test")) if labeled else (2, ("train",))   # train/cat/0.png
    if not Path(root, "train").is_dir():
        needed, parts = 1, None                                              # all of them
    counts = Counter()
    for name in glob.glob("**", root_dir=root, recursive=True):
        path = Path(name)
        if not Path(root, path).is_file():
            continue
        if parts and len(path.parts) > 1 and path.parts[0] not in parts:
            counts[f"in {path.parts[0]}"] += 1
        elif not name.lower().endswith(SUFFIXES):
            counts[path.suffix.lower() or "without a suffix"] += 1
        elif len(path.parts) < needed:
            counts[f"outside of {'a class' if labeled else 'train'}"] += 1
    kinds = sorted(counts, key=lambda kind: (-counts[kind], kind))
    return ", ".join([f"{counts[kind]} {kind}" for kind in kinds[:5]] + ["..."] * (len(kinds) > 5))
