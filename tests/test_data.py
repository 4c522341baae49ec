"""Images and labels arrive as the files hold them; a mistake in a file is one line naming it."""
import functools
import gzip
import hashlib
import itertools
import pickle
import re
import runpy
import sys
from collections import Counter
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

import data
import federation
import partition
from algorithms.common import Data

rng = np.random.default_rng
load = functools.cache(data.load)
CHANNELS_LAST = {"memory_format": torch.channels_last}


def pixels(*shape, seed=0):
    return rng(seed).integers(0, 256, size=shape, dtype=np.uint8)


def nchw(array):
    """What should be read from the pixels [n, h, w, c]."""
    return torch.from_numpy(np.ascontiguousarray(array)).permute(0, 3, 1, 2)


def refused(words, function, *arguments):
    """The message of a ValueError: one line with these words."""
    with pytest.raises(ValueError, match=words) as error:
        function(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def toy_set(num_classes, copies, test_copies, channels=1, seed=0):
    """Pixels of class c lie in [c, c + 1), no images are alike, rows are shuffled."""
    parts, draw = [], rng(seed)
    for count in (copies, test_copies):
        labels = draw.permutation(np.repeat(np.arange(num_classes), count))
        values = labels[:, None, None, None] + draw.random((len(labels), 4, 4, channels))
        parts.append(Data(torch.tensor(values).float().permute(0, 3, 1, 2), torch.tensor(labels)))
    return data.Dataset(*parts, num_classes, writers=np.arange(num_classes * copies) % 5)


SUPERCLASS = np.array([2, 0, 1, 1, 0, 2, 2])     # of the classes 0 ... 6
TOY = toy_set(7, 12, 4, channels=3)
TOY = TOY._replace(superclass=SUPERCLASS[TOY.train.labels])
FOREIGN = toy_set(4, 6, 2, seed=1)
COLOR = pixels(5, 5, 4, 3)                       # five images
FLAGS = dict(dataset="toy", data_root="data", classes=None, partition="iid", clients=3, alpha=0.5,
             per_class=2, public=None, public_size=None, joint=False, validation=None,
             model=["mlp"], server_model="mlp", augment=False, amp=False)


@pytest.mark.parametrize("name, sizes, classes, digest", [
    ("glyphs", (60 * 10 * 10, 15 * 10 * 10), 10, "c5852433be6358c2"),
    ("glyphs-letters", (40 * 26 * 4, 10 * 26 * 4), 26, "763baea44da66e06")])
def test_glyphs_are_the_same_bytes_for_everyone(name, sizes, classes, digest):
    """All accuracies on glyphs were measured on these bytes."""
    loaded, sha = load(name), hashlib.sha256()
    for part, size in zip(loaded, sizes):
        assert part.images.shape == (size, 1, 16, 16) and part.images.dtype == torch.uint8
        assert part.images.min() == 0 and part.images.max() == 255
        sha.update(part.images.contiguous().numpy().tobytes())
    sha.update(loaded.writers.tobytes() + loaded.train.labels.numpy().tobytes())
    assert loaded.num_classes == classes and sha.hexdigest()[:16] == digest


def test_writers_differ_in_appearance_and_test_writers_are_others():
    """Mean images of writers lie much further apart than those of random groups of that size."""
    images, writers = load("glyphs").train.images, load("glyphs").writers
    by_writer, random = (np.var([images.numpy()[own].mean(0) for own in deal(writers, 60, rng(0))],
                                axis=0).mean() for deal in (partition.by_writer, partition.iid))
    assert by_writer > 10 * random
    images, labels, writers = data.handwriting(data.FONT[:3], 5, 2, 1.3, seed=1)
    made = data.glyphs(data.FONT[:3], 3, 2, copies=2, sloppiness=1.3, seed=1)
    for part, rows in ((made.train, writers < 3), (made.test, writers >= 3)):
        assert torch.equal(part.images, nchw(images[rows][..., None]))
        assert part.labels.tolist() == labels[rows].tolist()
    assert made.writers.tolist() == writers[writers < 3].tolist()


def test_glyphs_need_no_torchvision(monkeypatch):
    for name in ("torchvision", "PIL"):
        monkeypatch.setitem(sys.modules, name, None)                          # an import raises
    fresh = runpy.run_path(data.__file__)
    assert torch.equal(fresh["load"]("glyphs").train.images, load("glyphs").train.images)


def write_npz(folder, **changes):
    """6 + 4 color images of 5 x 4, 3 classes, with some arrays changed, or left out if None."""
    arrays = {"x_train": pixels(6, 5, 4, 3), "y_train": np.array([0, 1, 2, 2, 1, 0]),
              "x_test": pixels(4, 5, 4, 3, seed=1), "y_test": np.array([0, 0, 2, 1])} | changes
    path = folder / "set.npz"
    np.savez(path, **{key: array for key, array in arrays.items() if array is not None})
    return path


@pytest.mark.parametrize("layout", [(0, 1, 2, 3), (0, 3, 1, 2)], ids=["NHWC", "NCHW"])
@pytest.mark.parametrize("channels", [1, 3])
def test_npz_bytes_stay_bytes_whatever_the_layout(tmp_path, layout, channels):
    arrays = [pixels(6, 5, 4, channels), pixels(4, 5, 4, channels, seed=1)]
    x_train, x_test = (array.transpose(layout) for array in arrays)
    loaded = data.load(write_npz(tmp_path, x_train=x_train, x_test=x_test))
    for part, array in zip(loaded, arrays):
        assert torch.equal(part.images, nchw(array)) and part.images.is_contiguous(**CHANNELS_LAST)
    assert loaded.test.labels.tolist() == [0, 0, 2, 1] and loaded[2:] == (3, *[None] * 4)
    ambiguous = write_npz(tmp_path, x_train=pixels(6, 3, 5, 1), x_test=pixels(4, 3, 5, 1))
    assert data.load(ambiguous).train.images.shape == (6, 1, 3, 5)


@pytest.mark.parametrize("x, y", [("f2", "u1"), ("f4", "f4"), ("f8", "i8"), (">f4", ">i2")])
def test_npz_keeps_float_pixels_and_takes_whole_numbers_of_any_type(tmp_path, x, y):
    values = (np.arange(6 * 20) / 128).astype(x).reshape(6, 5, 4)
    numbers = np.array([0, 1, 2, 2, 1, 0], y).reshape(6, 1)
    loaded = data.load(write_npz(tmp_path, x_train=values, x_test=values[:4],
                                 y_train=numbers, writer_train=numbers + 7))
    images, labels = loaded.train
    assert torch.equal(images, (torch.arange(6. * 20) / 128).view(6, 1, 5, 4))
    assert images.dtype == torch.float32 and labels.dtype == torch.int64
    assert labels.tolist() == [0, 1, 2, 2, 1, 0] and loaded.writers.tolist() == [7, 8, 9, 9, 8, 7]


@pytest.mark.parametrize("name, array, words", [
    ("x_train", None, r"is missing, .* \['y_train', 'x_test', 'y_test'\]"),
    ("x_train", pixels(6, 20), "has shape"), ("x_train", pixels(6, 5, 4, 2), "has shape"),
    ("x_train", pixels(6, 5, 5, 3), r"has .* \[3, 5, 5\], x_test has \[3, 5, 4\]"),
    ("x_train", np.full((6, 5, 4, 3), 1e300), "holds pixels that are not finite"),
    ("x_test", np.full((4, 5, 4, 3), np.nan), "holds pixels that are not finite"),
    ("x_test", pixels(0, 5, 4, 3), "is empty"), ("x_test", np.zeros((4, 5, 4), int), "has type"),
    ("writer_train", np.zeros(5), "has shape"), ("y_train", np.zeros(5), r"has .*\[5\], not .6"),
    ("y_train", np.array([0, 1, 2, 2, 1, -1]), "holds values other than whole numbers from 0"),
    ("y_test", np.array([0, 1, np.nan, 2]), "holds values"),
    ("y_test", np.array([*"abcd"]), "holds value"), ("writer_train", np.full(6, .5), "holds value"),
    ("y_train", np.zeros(6), "holds label 0 only"),
    ("x_test", pixels(4, 5, 4, 3) // 255, r"has pixels uint8 0\.\.[01], x_train uint8 0\.\.25"),
    ("x_train", pixels(6, 5, 4, 3) / 60 - 2, r"holds .* save x_train \* std \+ mean if it .* else"),
    ("x_train", pixels(6, 5, 4, 3) / 99, r"holds .* save \(x_train - low\) / \(high - low\) with"),
    ("y_train", np.array([0, 1, 2, 2, 1, .5]), "holds values .* such as 0.5$"),
    ("y_train", np.array([0, 1, 2, 2, 1, None]), "cannot be read: Object arrays")])
@pytest.mark.filterwarnings("error")
def test_npz_mistakes_are_one_line_with_file_and_array(tmp_path, name, array, words):
    path = write_npz(tmp_path, **{name: array})
    assert refused(f"{name} {words}", data.load, path).startswith(f"{path}: ")


BINARY = {"x_train": 255 * (pixels(6, 5, 5, 3) % 2), "x_test": 255 * (pixels(4, 5, 5, 3) % 2),
          "y_train": np.array([0, 1, 1, 0, 1, 0]), "y_test": np.array([0, 1, 1, 0])}


@pytest.mark.parametrize("letter, change", [
    *itertools.product("x", [
        lambda x: x / 1.0, lambda x: x.astype(int), lambda x: x > 127, lambda x: x / 127.5 - 1,
        lambda x: 257 * x.astype("u2"), lambda x: 257.0 * x, lambda x: x / 255 * 1.05,
        lambda x: x.transpose(0, 3, 1, 2).reshape(len(x), -1), lambda x: x[..., [0, 1, 2, 0]],
        lambda x: x[..., [0, 1, 2, 0]].transpose(0, 3, 1, 2)]),
    *itertools.product("y", [lambda y: y + 1, lambda y: 3 + 5 * y, lambda y: 2 * y - 1,
                             lambda y: y == 1, lambda y: np.array(["no", "yes"])[y]]),
    ("y_", lambda y: np.eye(2)[y]), ("y_", lambda y: y.astype(object))])
def test_what_a_refusal_says_to_save_is_accepted(tmp_path, letter, change):
    """One array after another, but `y` at once. Images and labels are as before the change."""
    arrays = BINARY | {key: change(BINARY[key]) for key in BINARY if key.startswith(letter)}
    flags = FLAGS | {"dataset": str(tmp_path / "set.npz")}
    for _ in range(1 if letter == "y" else 2):
        np.savez(flags["dataset"], **arrays)
        message = refused("save ", federation.load, flags)
        code, name = message.split("save ")[1], re.search("[xy]_t[a-z]+", message)[0]
        exec(code if " = " in code else f"{name} = {code}", {"np": np}, arrays)
    np.savez(flags["dataset"], **arrays)
    for part, name in zip(federation.load(flags)[0], ("train", "test")):
        assert part.labels.tolist() == BINARY[f"y_{name}"].tolist()
        assert torch.equal(data.to_float(part.images), nchw(BINARY[f"x_{name}"] / 255).float())


@pytest.mark.parametrize("y_train, y_test, words, used, absent, tested", [
    ([1, 2, 2, 1, 4, 4], [4, 1, 1, 2], "no image has label 0", "1,2,4", 0, 4),
    ([0, 1, 1, 0, 3, 3], [0, 1, 2, 4], "only test images have label 2", "0,1,3", 2, 2)])
def test_each_class_needs_training_images(tmp_path, y_train, y_test, words, used, absent, tested):
    """--classes as in the refusal leaves the others out. Public labels count if they are used."""
    path = str(write_npz(tmp_path, y_train=np.array(y_train), y_test=np.array(y_test)))
    task, public = FLAGS | {"dataset": path}, FLAGS | {"public": path}
    refused(f"dataset {path}: {words}.* give --classes {used}, or save", federation.load, task)
    refused(f"public {path}: {words}.* images; save", federation.load, public | {"joint": True})
    assert federation.load(public)[1].num_classes == 5
    loaded, _ = federation.load(task | {"classes": [int(c) for c in used.split(",")]})
    assert loaded.train.labels.unique().tolist() == [*range(loaded.num_classes)] == [0, 1, 2]
    assert len(loaded.train.labels) == 6 and len(loaded.test.labels) == tested
    refused(f"no training image has label {absent}", data.only, data.load(path), [1, absent])


def test_another_fingerprint_for_any_other_number(tmp_path):
    """Pixels, labels, writers; not for another layout. It names classes without test images."""
    x, y = BINARY["x_train"], np.array([0, 1, 2, 2, 1, 0])
    changes = [{}, {"x_train": x[::-1]}, {"x_test": x[1:5]}, {"y_train": y[[1, 0, 2, 3, 4, 5]]},
               {"y_test": y[1:5]}, {"writer_train": y // 2}, {"writer_train": None},
               {"x_test": x[:4] / 255 / 2}, {"x_train": x.transpose(0, 3, 1, 2)}]
    base = {"x_train": x, "x_test": x[:4], "writer_train": y, "y_test": np.array([0, 2, 2, 0])}
    lines = [data.fingerprint(data.load(write_npz(tmp_path, **base | own))) for own in changes]
    assert lines[-1] == lines[0] and len(set(lines)) == len(changes) - 1
    assert "(test images: float 0..0.5), 3 classes (without test images: 1), " in lines[-2]


def test_public_images_are_not_the_training_images_and_have_their_scale(tmp_path):
    copy = write_npz(tmp_path).rename(tmp_path / "copy.npz")
    flags = FLAGS | {"dataset": str(write_npz(tmp_path)), "public": str(copy), "classes": [0, 2]}
    refused(f"^--public {copy}: .* training images.* --public half", federation.load, flags)
    dark = {"x_train": pixels(6, 5, 4, 3) // 100, "x_test": pixels(4, 5, 4, 3) // 100}
    flags |= {"dataset": str(copy), "public": str(write_npz(tmp_path, **dark))}
    refused("^--public .* has pixels uint8 0..2, --dataset uint8 0..25", federation.load, flags)


def test_what_is_damaged_unknown_or_not_there_is_named(tmp_path):
    path = write_npz(tmp_path)
    good, damaged = path.read_bytes(), bytearray(path.read_bytes())
    damaged[300] ^= 255                                             # inside the pixels of x_train
    for content in (b"", b"text", pickle.dumps({"x_train": 1}), gzip.compress(b"x"), good[:-100]):
        path.write_bytes(content)
        refused("set.npz: not an .npz file, or cut short", data.load, path)
    path.write_bytes(damaged)
    refused("set.npz: x_train cannot be read: Bad CRC-32", data.load, path)
    refused("nothing.npz: no such file", data.load, tmp_path / "nothing.npz")
    refused("train: not a folder; expected train/CLASS/FILE", data.load, tmp_path)
    message = refused("no dataset 'glyph'", data.load, "glyph")
    assert all(name in message for name in ("glyphs", "glyphs-letters", *data.TORCHVISION))


def write_images(folder, images):
    """Arrays as image files, bytes as they are."""
    for name, image in images.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(image, bytes):
            (folder / name).write_bytes(image)
        else:
            Image.fromarray(image).save(folder / name)
    return folder


def test_folder_reads_classes_and_files_in_sorted_order(tmp_path):
    """CINIC-10's validation part and hidden files are left alone."""
    loaded = data.load(write_images(tmp_path, {
        "train/cat/0.png": COLOR[1], "train/cat/1.png": COLOR[2], "train/ant/0.png": COLOR[0],
        "test/cat/0.png": COLOR[4], "test/ant/0.png": COLOR[3],
        "valid/x/0.png": COLOR[0], "train/.DS_Store": b"x", "train/cat/.hidden": b"x"}))
    assert torch.equal(loaded.train.images, nchw(COLOR[:3]))
    assert torch.equal(loaded.test.images, nchw(COLOR[3:]))
    assert loaded.train.labels.tolist() == [0, 1, 1] and loaded.test.labels.tolist() == [0, 1]


def test_folder_has_one_channel_only_if_all_images_are_gray(tmp_path):
    images = dict.fromkeys(("train/a/0.png", "train/b/0.png", "test/a/0.png"), COLOR[1, :, :, 0])
    assert data.load(write_images(tmp_path, images)).train.images.shape == (2, 1, 5, 4)
    mixed = data.load(write_images(tmp_path, {"test/a/0.png": COLOR[0]})).train.images
    assert torch.equal(mixed, nchw(COLOR[[1, 1], :, :, :1]).expand(2, 3, 5, 4))


@pytest.mark.parametrize("name, image, words", [
    ("train/a/notes.txt", b"hello", "notes.txt: cannot be read as an image"),
    ("train/readme.txt", b"hello", "readme.txt: not a folder"),
    ("train/a/9.png", pixels(4, 6, 3), r"9.png: size \(4, 6\), the first image has \(5, 4\)"),
    ("train/a/9.png", np.zeros((5, 4), np.uint16), "9.png: .*more than 8 bits"),
    ("test/c/0.png", COLOR[0], "c: a class without training images"),
    ("train/c/.hidden", b"", "c: no images"), ("test/a/0.png", b"", "0.png: cannot be read")])
def test_folder_mistakes_are_one_line_that_names_the_place(tmp_path, name, image, words):
    images = {"train/a/0.png": COLOR[0], "train/b/0.png": COLOR[1], "test/a/0.png": COLOR[2]}
    refused(f"^{tmp_path}.*{words}", data.load, write_images(tmp_path, images | {name: image}))


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "emnist"])
def test_files_that_are_there_are_read_and_not_downloaded(tmp_path, monkeypatch, name):
    """The images in EMNIST's files are transposed, and its letters count from 1."""
    dataset, emnist = getattr(datasets, data.TORCHVISION[name]), name == "emnist"
    monkeypatch.setattr(dataset, "download", lambda self: pytest.fail("downloads"))
    names = ("emnist-letters-train", "emnist-letters-test") if emnist else ("train", "t10k")
    images, labels = [pixels(6, 28, 28), pixels(4, 28, 28)], [np.arange(6) % 3, np.arange(4) % 3]
    folder = tmp_path / data.TORCHVISION[name] / "raw"
    folder.mkdir(parents=True)
    for part, image, label in zip(names, images, labels):
        for kind, array in (("images-idx3", image), ("labels-idx1", label + emnist)):
            header = np.array([8 * 256 + array.ndim, *array.shape], dtype=">i4").tobytes()
            (folder / f"{part}-{kind}-ubyte").write_bytes(header + array.astype("u1").tobytes())
    loaded = data.load(name, tmp_path)
    for part, image, label in zip(loaded, images, labels):
        assert torch.equal(part.images, nchw(image[..., None].swapaxes(1, 1 + emnist)))
        assert part.labels.tolist() == label.tolist()


def test_cifar100_has_its_images_fine_labels_and_superclasses(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.cifar, "check_integrity", lambda path, md5: True)
    content = {"data": pixels(4, 3 * 32 * 32), "fine_labels": [0, 1, 2, 0],
               "coarse_labels": [19, 18, 17, 19], "fine_label_names": ["a", "b", "c"]}
    (tmp_path / "cifar-100-python").mkdir()
    for name in ("train", "test", "meta"):
        (tmp_path / "cifar-100-python" / name).write_bytes(pickle.dumps(content))
    loaded = data.load("cifar100", tmp_path)
    assert torch.equal(loaded.train.images.flatten(1), torch.from_numpy(content["data"]))
    assert loaded.train.labels.tolist() == loaded.test.labels.tolist() == [0, 1, 2, 0]
    assert loaded.superclass.tolist() == [19, 18, 17, 19] and loaded.superclass.dtype == np.int64


@pytest.mark.parametrize("name", sorted(data.TORCHVISION))
def test_a_failed_download_is_one_line_naming_set_and_root(tmp_path, monkeypatch, name):
    for failure in (EOFError(), ValueError("damaged"), OSError("no route to host"),
                    RuntimeError("Error downloading x:\nTried y,\ngot z")):
        dataset = getattr(datasets, data.TORCHVISION[name])
        monkeypatch.setattr(dataset, "download", Mock(side_effect=failure))
        words = f"^{name}: can be neither read under '{tmp_path}' .* or use --dataset glyphs"
        refused(words, data.load, name, tmp_path)


def test_x5_public_images_are_normalized_with_the_tasks_statistics():
    """Pixels 0, 0, 0, 1: mean 1/4, variance 1/4 - 1/16. A constant channel is divided by 1."""
    mean, std = data.statistics(torch.tensor([[[[0., 0], [0, 1]], [[7, 7], [7, 7]]]]))
    public = torch.tensor([3., 9]).view(1, 2, 1, 1).repeat(5, 1, 4, 4)
    normal = data.normalize(public, mean, std)
    expected = torch.tensor([(3 - 1 / 4) / (1 / 4 - 1 / 16)**.5, (9 - 7) / 1])
    assert torch.allclose(normal[:, :, 0, 0], expected) and (public[:, 1] == 9).all()
    assert normal.is_contiguous(**CHANNELS_LAST)


def test_adapt_by_hand():
    """Color becomes luminance. With antialiasing, stripes shrink to gray; without, to white."""
    image = torch.tensor([1., .5, .25]).view(1, 3, 1, 1).expand(1, 3, 4, 4)
    gray = torch.full((1, 1, 4, 4), .299 * 1 + .587 * .5 + .114 * .25)
    assert torch.allclose(data.adapt(image, (1, 4, 4)), gray)
    assert torch.equal(data.adapt(gray, (3, 4, 4)), gray.expand(1, 3, 4, 4))
    assert torch.equal(data.adapt(image, (3, 4, 4)), image)
    stripes = torch.tensor([0., 1, 1, 0]).repeat(8).expand(1, 1, 32, 32)
    assert torch.allclose(data.adapt(stripes, (1, 8, 8))[..., 1:-1], torch.tensor(.5), atol=1e-6)
    for channels, shape in ((3, (1, 16, 16)), (1, (3, 32, 32)), (3, (3, 16, 20))):
        adapted = data.adapt(nchw(pixels(4, 24, 24, channels)).contiguous() / 255, shape)
        assert adapted.shape == (4, *shape) and adapted.is_contiguous(**CHANNELS_LAST)
        assert adapted.min() >= 0 and adapted.max() <= 1 + 1e-6
    for channels, wanted in ((4, 3), (3, 2)):
        images = torch.zeros(1, channels, 4, 4)
        refused(f"adapt {channels} channels to {wanted}", data.adapt, images, (wanted, 4, 4))


def test_crop_and_flip_gives_each_image_one_of_its_crops_all_equally_often():
    """All 9 x 9 shifts by up to 4 pixels, and mirrored. The generator alone decides."""
    pictures, padded = torch.from_numpy(pixels(2, 3, 5, 6)) + 1., torch.zeros(2, 3, 13, 14)
    padded[:, :, 4:-4, 4:-4] = pictures
    crops = [padded[..., top:top + 5, left:left + 6] for top in range(9) for left in range(9)]
    crops += [crop.flip(3) for crop in crops]
    images = pictures.repeat(25 * len(crops), 1, 1, 1)
    once, again, other = (data.crop_and_flip(images, rng(seed)) for seed in (0, 0, 1))
    for k in (0, 1):
        counts = Counter(image.tobytes() for image in once[k::2].numpy())     # 25 on average
        assert counts.keys() == {crop[k].numpy().tobytes() for crop in crops}
        assert len(counts) == 2 * 9 * 9 and min(counts.values()) > 5
    assert torch.equal(once, again) and not torch.equal(once, other)
    assert once.is_contiguous(**CHANNELS_LAST) and torch.equal(images[-2:], pictures)


@pytest.mark.parametrize("classes", [[3, 5], [5, 3], [4, 5, 6], [6, 2, 0, 1, 3], [*range(7)][::-1]])
def test_b24_only_numbers_classes_in_the_order_given(classes):
    """The pixels tell the old class; a new number may be an old one that comes later, or stay."""
    before = TOY._replace(subclass=100 + TOY.train.labels.numpy(), class_names="0123456")
    kept = data.only(before, classes)
    assert kept.num_classes == len(classes) and [*map(int, kept.class_names)] == classes
    for array, old in zip(kept[3:6], before[3:6]):
        assert np.array_equal(array, old[np.isin(TOY.train.labels, classes)])
    for part, old in zip(kept[:2], before[:2]):
        assert torch.equal(torch.tensor(classes)[part.labels], part.images[:, 0, 0, 0].long())
        rows, images = torch.isin(old.labels, torch.tensor(classes)), part.images
        assert torch.equal(images, old.images[rows]) and images.is_contiguous(**CHANNELS_LAST)
    assert data.only(FOREIGN._replace(writers=None), [3, 0])[3:] == (None, None, None, None)


def test_by_superclass_keeps_the_old_labels_as_subclasses():
    """Then --classes 2,0 are superclasses, which `only` takes whole."""
    after = data.by_superclass(TOY, "toy")
    for part, old in [(after.train, TOY.train), (after.test, TOY.test)]:
        assert part.labels.tolist() == SUPERCLASS[old.labels].tolist()
        assert torch.equal(part.images, old.images)
    assert after.num_classes == 3 and np.array_equal(after.subclass, TOY.train.labels)
    assert np.array_equal(after.writers, TOY.writers) and after.superclass is None
    kept = data.only(after, [2, 0])
    pairs = set(zip(kept.train.labels.tolist(), kept.subclass.tolist()))
    assert pairs == {(0, 0), (0, 5), (0, 6), (1, 1), (1, 4)}


@pytest.fixture(autouse=True)
def sets(monkeypatch):
    """`load` knows the task `toy`, in color and with superclasses, and `foreign`, in gray."""
    for name, dataset in {"toy": TOY, "foreign": FOREIGN, "glyphs": load("glyphs")}.items():
        monkeypatch.setitem(data.DATASETS, name, lambda root, dataset=dataset: dataset)


def built(seed=0, **changes):
    """(the federation, the data set, the clients' parts, public rows)."""
    flags = FLAGS | changes
    dataset, foreign = federation.load(flags)
    rows = federation.split(flags, dataset, seed)
    fed = federation.build(flags, dataset, foreign, *rows, seed, torch.device("cpu"))
    return fed, dataset, rows[0], [] if rows[1] is None else rows[1]


def classes_of(part):
    """The class that the pixels of each image tell, once normalization by the task is undone."""
    mean, std = data.statistics(TOY.train.images)
    return (part.images[:, 0, 0, 0] * std[0] + mean[0]).add(1e-4).floor().long()


@pytest.mark.parametrize("joint", [True, False])
def test_joint_labels_of_the_task_come_after_the_public_classes(joint):
    """Images of a foreign set that is not joint have no labels, and shift none."""
    fed, *_ = built(public="foreign", joint=joint, validation=0.2, model=["mlp", "cnn"],
                    server_model="cnn_large", augment=True, amp=True)
    first = 4 * joint
    assert fed.num_classes == first + 7 and len(fed.public.images) == 4 * 6
    assert (fed.public.labels is not None) == (fed.public_test is not None) == joint
    assert fed.amp and fed.augment is data.crop_and_flip
    for part in (*fed.private, fed.test, fed.validation):
        assert torch.equal(part.labels, classes_of(part) + first)
        assert part.images.is_contiguous(**CHANNELS_LAST)
    everyone = torch.cat([part.labels for part in (*fed.private, fed.validation)])
    assert everyone.bincount().tolist() == [0] * first + [12] * 7
    assert len(fed.validation.labels) == round(0.2 * len(everyone))
    networks = [fed.client_model(0), fed.client_model(1), fed.server_model()]
    assert [type(network).__name__ for network in networks] == ["MLP", "CNN", "LargeCNN"]
    assert {network(fed.test.images[:2]).shape for network in networks} == {(2, first + 7)}


def test_joint_public_images_are_adapted_and_keep_their_labels():
    fed, some = (built(public="foreign", joint=True, public_size=n)[0] for n in (None, 9))
    mean, std = data.statistics(TOY.train.images)
    for part, old in [(fed.public, FOREIGN.train), (fed.public_test, FOREIGN.test)]:
        images = data.normalize(data.adapt(old.images, (3, 4, 4)), mean, std)
        assert torch.equal(part.images, images) and torch.equal(part.labels, old.labels)
    rows = [(fed.public.images == image).flatten(1).all(1).nonzero().item()
            for image in some.public.images]
    assert len(rows) == 9 and rows == sorted(rows) and rows != list(range(9))
    assert torch.equal(some.public.labels, FOREIGN.train.labels[rows])


@pytest.mark.parametrize("public, share", [("half", 1 / 2), ("fifth", 1 / 5)])
def test_public_samples_held_out_of_the_task_keep_its_labels(public, share):
    """With a half, the test set is halved as well. No image is in two places."""
    fed, *_ = built(public=public, validation=0.1)
    assert fed.num_classes == 7 and torch.equal(fed.public.labels, classes_of(fed.public))
    assert len(fed.public.labels) == round(share * 84)
    assert len(fed.validation.labels) == round(0.1 * (84 - round(share * 84)))
    assert {*fed.validation.labels.bincount(minlength=7).tolist()} <= {0, 1}
    tests = [fed.test.images, *([fed.public_test.images] if fed.public_test else [])]
    assert [len(images) for images in tests] == {"half": [14, 14], "fifth": [28]}[public]
    used = torch.cat([*tests, *(x.images for x in (*fed.private, fed.public, fed.validation))])
    assert len(used.unique(dim=0)) == len(used) == 84 + 28


def test_an_algorithm_sees_only_the_public_data_that_it_uses():
    fed, *_ = built(public="half")
    seen = [federation.restrict_public(fed, use).public for use in ("none", "unlabelled", "joint")]
    assert seen[0] is None and seen[2] == fed.public
    assert seen[1].images is fed.public.images and seen[1].labels is None


def test_classes_are_taken_and_normalized_alone():
    fed, dataset, parts, _ = built(classes=[6, 0])
    images, labels = map(torch.cat, zip(*fed.private))
    assert dataset.num_classes == 2 and len(fed.test.labels) == 2 * 4
    assert images.mean().abs() < 1e-5 and abs(images.square().mean() - 1) < 1e-4
    assert torch.equal(labels == 0, images[:, 0, 0, 0] > 0)                   # 6 is the brighter
    assert [len(part) for part in parts] == [8, 8, 8]


def test_only_used_public_images_become_floats(monkeypatch):
    """All of ImageNet-32 would be 16 GB. The numbers are those of floats that came as floats."""
    counts, to_float, images = [], data.to_float, nchw(pixels(500, 8, 8, 1))
    for name, array in (("bytes", images), ("floats", images / 255)):
        foreign = FOREIGN._replace(train=Data(array, torch.arange(500) % 4))
        monkeypatch.setitem(data.DATASETS, name, lambda root, foreign=foreign: foreign)
    monkeypatch.setattr(data, "to_float", lambda x: counts.append(len(x)) or to_float(x))
    few, whole = (built(public="bytes", public_size=n)[0].public.images for n in (9, None))
    assert len(few) == 9 and counts.count(9) == counts.count(500) == 1
    assert torch.equal(whole, built(public="floats")[0].public.images)
    assert all((whole == image).flatten(1).all(1).any() for image in few)


def test_what_the_data_set_cannot_give_is_refused():
    for classes in ([3], [], [3, 3], [3, 5, 3], [3, 7], [-1, 3]):
        refused("two or more different classes from 0 to 6", data.only, TOY, classes)
    for words, changes in [
            ("^fedmd5 needs images of at least 12x12 .* have 4x4$", {"model": ["mlp", "fedmd5"]}),
            ("foreign has no superclass", {"dataset": "foreign", "partition": "by_subclass"}),
            ("has 12 samples", {"partition": "by_subclass", "clients": 2, "per_class": 13})]:
        refused(words, lambda: built(**changes))
    for kind in ("by_writer", "single_writer"):
        refused(f"{kind}: toy does not name its writers", federation.split,
                FLAGS | {"partition": kind}, TOY._replace(writers=None), 0)


def test_split_by_subclass_gives_clients_other_subclasses_of_all_superclasses():
    _, dataset, parts, _ = built(partition="by_subclass", clients=2, public="half")
    held = [dataset.subclass[part].tolist() for part in parts]
    for own, part in zip(held, parts):
        assert dataset.train.labels[part].tolist() == SUPERCLASS[own].tolist()
        assert sorted(SUPERCLASS[own]) == [0, 0, 1, 1, 2, 2] and len(set(own)) == 3
    assert not set(held[0]) & set(held[1])
    fed, *_ = built(partition="by_subclass", classes=[2, 0], clients=2)
    assert all(sorted(private.labels.tolist()) == [0, 0, 1, 1] for private in fed.private)


def test_split_few_per_class_and_single_writer_divide_what_is_private():
    _, dataset, parts, _ = built(partition="few_per_class", public="half", per_class=1)
    for part in parts:
        assert dataset.train.labels[part].bincount().tolist() == [1] * 7
    _, dataset, parts, public_rows = built(dataset="glyphs", partition="single_writer",
                                           public="half", clients=4)
    writers = [writer for part in parts for writer in {*dataset.writers[part]}]
    assert len(writers) == len(set(writers)) == 4
    rows = np.setdiff1d(np.flatnonzero(np.isin(dataset.writers, writers)), public_rows)
    assert sorted(np.concatenate(parts)) == rows.tolist()


@pytest.mark.parametrize("kind", federation.PARTITIONS)
def test_every_partition_is_reachable_and_another_seed_gives_another_one(kind):
    """No row is in two places."""
    changes = {"partition": kind, "alpha": 100.0, "clients": 2, "public": "half"}
    if kind in ("fedgkt_table6", "single_writer"):    # 16 clients, 10 classes; 18 samples a writer
        changes |= {"dataset": "glyphs", "clients": 16}
    splits = [built(seed, **changes)[2:] for seed in (0, 0, 1, 2)]
    parts, public = zip(*(([tuple(x) for x in parts], tuple(rows)) for parts, rows in splits))
    assert parts[0] == parts[1] and public[0] == public[1]
    assert len(set(map(tuple, parts))) == len(set(public)) == 3
    assert all(part and list(part) == sorted(part) for part in parts[0])
    rows = [*sum(parts[0], ()), *public[0]]
    assert len(set(rows)) == len(rows)


def test_the_servers_network_has_a_seed_of_its_own():
    """Another than the clients', though both networks are of the same kind here."""
    fed, other = built()[0], built(seed=1)[0]
    one, same, *others = (next(network.parameters()) for network in (
        fed.server_model(), fed.server_model(), fed.server_model(1), other.server_model(),
        fed.client_model(0)))
    assert torch.equal(one, same) and not any(torch.equal(one, weights) for weights in others)
