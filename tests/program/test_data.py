"""Images and labels arrive as the files hold them; a mistake in a file is one line naming it."""
import hashlib
import pickle
from collections import Counter
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from data import images, load, readers
from data.load import load_dataset, load_public

CHANNELS_LAST = {"memory_format": torch.channels_last}
rng = np.random.default_rng


def pixels(*shape, seed=0):
    return rng(seed).integers(0, 256, size=shape, dtype=np.uint8)


def nchw(array):
    """What should be read from the pixels [n, h, w, c]."""
    return torch.from_numpy(np.ascontiguousarray(array)).permute(0, 3, 1, 2)


def refused(words, function, *arguments, **keywords):
    """Checks that a ValueError of one line has these words."""
    with pytest.raises(ValueError, match=words) as error:
        function(*arguments, **keywords)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name, sizes, classes, digest", [
    ("glyphs", (60 * 10 * 10, 15 * 10 * 10), 10, "c5852433be6358c2"),
    ("glyphs-letters", (40 * 26 * 4, 10 * 26 * 4), 26, "763baea44da66e06")])
def test_glyphs_are_the_same_bytes_for_everyone(name, sizes, classes, digest):
    """All accuracies on glyphs were measured on these bytes. As public images they have no labels,
    and are those of the training set."""
    loaded, sha = load_dataset(name), hashlib.sha256()
    for part, size in zip(loaded, sizes):
        assert part.images.shape == (size, 1, 16, 16) and part.images.dtype == torch.uint8
        sha.update(part.images.contiguous().numpy().tobytes())
    sha.update(loaded.writers.tobytes() + loaded.train.labels.numpy().tobytes())
    assert loaded.num_classes == classes and sha.hexdigest()[:16] == digest
    public = load_public(name)
    assert is_unlabeled(public) and torch.equal(public.train.images, loaded.train.images)


# ------------------------------------------------------------------------------------- .npz files

def write_npz(folder, **changes):
    """6 + 4 color images of 5 x 4, 3 classes, with some arrays changed, or left out if None."""
    arrays = {"x_train": pixels(6, 5, 4, 3), "y_train": np.array([0, 1, 2, 2, 1, 0]),
              "x_test": pixels(4, 5, 4, 3, seed=1), "y_test": np.array([0, 0, 2, 1])} | changes
    path = folder / "set.npz"
    np.savez(path, **{key: array for key, array in arrays.items() if array is not None})
    return path


@pytest.mark.parametrize("height, channels, layout", [
    (5, 3, (0, 1, 2, 3)), (5, 1, (0, 3, 1, 2)), (5, 3, (0, 3, 1, 2)), (3, 1, (0, 1, 2, 3))])
def test_bytes_of_a_npz_file_stay_bytes_whatever_the_layout(tmp_path, height, channels, layout):
    """The last axis is the channels if two could be."""
    arrays = [pixels(6, height, 4, channels), pixels(4, height, 4, channels, seed=1)]
    x_train, x_test = (array.transpose(layout) for array in arrays)
    loaded = load_dataset(write_npz(tmp_path, x_train=x_train, x_test=x_test))
    for part, array in zip(loaded, arrays):
        assert torch.equal(part.images, nchw(array)) and part.images.is_contiguous(**CHANNELS_LAST)


@pytest.mark.parametrize("floats, numbers", [("f2", "u1"), (">f4", ">i2"), ("f8", "f4")])
def test_a_npz_file_may_hold_floats_labels_and_writers_of_any_type(tmp_path, floats, numbers):
    values = (np.arange(6 * 20) / 128).astype(floats).reshape(6, 5, 4)
    labels = np.array([0, 1, 2, 2, 1, 0], numbers).reshape(6, 1)
    loaded = load_dataset(write_npz(tmp_path, x_train=values, x_test=values[:4], y_train=labels,
                                    writer_train=labels + 7))
    assert torch.equal(loaded.train.images, (torch.arange(6. * 20) / 128).view(6, 1, 5, 4))
    assert loaded.train.images.dtype == torch.float32 and loaded.train.labels.dtype == torch.int64
    assert loaded.train.labels.tolist() == [0, 1, 2, 2, 1, 0] and loaded.num_classes == 3
    assert loaded.test.labels.tolist() == [0, 0, 2, 1]
    assert loaded.writers.tolist() == [7, 8, 9, 9, 8, 7]


@pytest.mark.parametrize("name, array, words", [
    ("x_train", None, "is missing"), ("x_train", pixels(6, 5, 4, 2), r"has shape \[6, 5, 4, 2\]"),
    ("x_train", pixels(6, 5, 5, 3), r"has .* \[3, 5, 5\], x_test has \[3, 5, 4\]"),
    ("x_test", pixels(0, 5, 4, 3), "has shape .* n > 0"),
    ("x_test", np.zeros((4, 5, 4), int), "has type int64"),
    ("x_test", np.full((4, 5, 4, 3), np.nan), "holds floats from nan"),
    ("x_test", np.zeros((4, 5, 4, 3), "u1"), "holds 4 images that are all alike"),
    ("writer_train", np.zeros(5), r"has shape \[5\]; expected \[6\]"),
    ("y_train", np.eye(6), "has shape .* one number per image"),
    *(("y_train", np.array([0, 1, 2, 2, 1, label]), "must hold whole numbers from 0 to 999999$")
      for label in (-1, .5, np.nan, 10**6))])
@pytest.mark.filterwarnings("error")
def test_npz_mistakes_are_one_line_with_file_and_array(tmp_path, name, array, words):
    path = write_npz(tmp_path, **{name: array})
    refused(f"^{path}: {name} {words}", load_dataset, path)


def test_labels_of_an_npz_file_may_be_names_of_classes(tmp_path):
    """They are numbered by alphabet, as class folders."""
    names = np.array(["cat", "10", "ant", "9", "ant", "10"])
    loaded = load_dataset(write_npz(tmp_path, y_train=names, y_test=names[:4]))
    assert loaded.class_names == ["10", "9", "ant", "cat"] and loaded.num_classes == 4
    assert loaded.train.labels.tolist() == [3, 0, 2, 1, 2, 0]
    assert loaded.test.labels.tolist() == [3, 0, 2, 1]
    path = write_npz(tmp_path, y_train=names, y_test=np.array(["ant", "dog", "cat", "9"]))
    refused("y_test has 'dog', a class without training", load_dataset, path)


def test_what_is_not_a_whole_npz_file_or_not_there_is_named(tmp_path):
    """Pickled arrays are refused, for reading them can run a program."""
    path = write_npz(tmp_path)
    whole = path.read_bytes()
    for spoilt in (b"text", whole[:-100],
                   whole[:300] + bytes([255 - whole[300]]) + whole[301:]):    # a pixel of x_train
        path.write_bytes(spoilt)
        refused("set.npz: cannot be read as an .npz file", load_dataset, path)
    path = write_npz(tmp_path, y_train=np.array([0, 1, 2, 2, 1, None]))
    refused("set.npz: cannot be read .*Object arrays", load_dataset, path)
    refused("nothing.npz: cannot be read .*No such file", load_dataset, tmp_path / "nothing.npz")
    for load_it in (load_dataset, load_public):
        refused("no dataset 'glyph': use glyphs, ", load_it, "glyph")


def test_only_the_same_numbers_have_the_same_fingerprint(tmp_path):
    x, y = pixels(6, 5, 5, 3), np.array([0, 1, 2, 2, 1, 0])
    base = {"x_train": x, "x_test": x[:4], "y_train": y, "y_test": y[:4], "writer_train": y}
    changes = [{}, {"x_train": x[::-1]}, {"x_test": x[1:5]}, {"y_train": y[[1, 0, 2, 3, 4, 5]]},
               {"y_test": y[1:5]}, {"writer_train": y // 2}, {"writer_train": None}]
    lines = [load.fingerprint(load_dataset(write_npz(tmp_path, **base | own))) for own in changes]
    assert len({*lines}) == len(changes)
    other_layout = write_npz(tmp_path, **base | {"x_train": x.transpose(0, 3, 1, 2)})
    assert load.fingerprint(load_dataset(other_layout)) == lines[0]
    public = [load.fingerprint(load_public(write_npz(tmp_path, **base | own))) for own in changes]
    assert len({*public}) == 2 and public[0].startswith("6 images 3x5x5, uint8 0..255, checksum ")


# ---------------------------------------------------------------------------------- image folders

COLOR = pixels(5, 5, 4, 3)                       # five images


def write_images(folder, contents):
    """Arrays as image files, bytes as they are."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            Image.fromarray(content).save(folder / name)
    return folder


def test_folder_reads_classes_and_files_in_sorted_order(tmp_path):
    """With folders in a class. `test` may lack a class. CINIC-10's validation part and files that
    are no images are left alone."""
    loaded = load_dataset(write_images(tmp_path, {
        "train/cat/0.png": COLOR[1], "train/cat/new/1.PNG": COLOR[2], "train/ant/0.png": COLOR[0],
        "test/cat/0.png": COLOR[4], "valid/x/0.png": COLOR[0], "train/.DS_Store": b"x",
        "train/cat/notes.txt": b"x", "train/1.png": COLOR[0], "test/README": b"x"}))
    assert torch.equal(loaded.train.images, nchw(COLOR[:3]))
    assert torch.equal(loaded.test.images, nchw(COLOR[4:]))
    assert loaded.train.labels.tolist() == [0, 1, 1] and loaded.test.labels.tolist() == [1]
    assert loaded.class_names == ["ant", "cat"]


def test_what_is_transparent_is_white(tmp_path):
    """Black ink on nothing would be black on black. Half of black is half of white."""
    ink = np.uint8([[[0, 255], [0, 0]], [[0, 127], [200, 255]]])                  # gray, alpha
    Image.fromarray(ink, "LA").save(tmp_path / "0.png")
    found = readers.read_image(tmp_path / "0.png")
    assert (found == found[..., :1]).all() and found[..., 0].tolist() == [[0, 255], [128, 200]]


def test_an_image_is_turned_as_its_exif_data_say(tmp_path):
    """Orientation 3 is upside down, 6 lies on its left side."""
    path, exif = tmp_path / "0.png", Image.Exif()
    for orientation, upright in [(3, COLOR[0][::-1, ::-1]), (6, np.rot90(COLOR[0], -1))]:
        exif[274] = orientation
        Image.fromarray(COLOR[0]).save(path, exif=exif)
        assert np.array_equal(readers.read_image(path), upright)


@pytest.mark.parametrize("name, numbers", [
    ("0.png", np.zeros((2, 2), np.uint16)), ("0.tif", np.zeros((2, 2), np.float32))])
def test_gray_of_more_than_8_bits_is_refused(tmp_path, name, numbers):
    """PIL would make every number above 255 white, and not say so."""
    write_images(tmp_path, {name: numbers})
    refused(f"{name}: .*gray of more than 8 bits", readers.read_image, tmp_path / name)


@pytest.mark.parametrize("test_image, channels", [(COLOR[1, :, :, 0], 1), (COLOR[0], 3)])
def test_a_folder_has_three_channels_unless_all_images_are_gray(tmp_path, test_image, channels):
    contents = {"train/a/0.png": COLOR[1, :, :, 0], "train/b/0.png": COLOR[2, :, :, 0]}
    loaded = load_dataset(write_images(tmp_path, contents | {"test/a/0.png": test_image}))
    gray = nchw(COLOR[1:3, :, :, :1])
    assert torch.equal(loaded.train.images, gray.expand(2, channels, 5, 4))


@pytest.mark.parametrize("contents, words", [
    ({"train/a/9.png": b"hello"}, "9.png: cannot be read as an image"),
    ({"train/a/9.png": pixels(4, 6, 3)}, r"9.png: size \(4, 6\), the first image has \(5, 4\)"),
    ({"test/c/0.png": COLOR[0]}, "c: a class without training images"),
    ({"train/.x/0.png": COLOR[0]}, "train/.x: a hidden folder among the classes")])
def test_folder_mistakes_are_one_line_that_names_the_place(tmp_path, contents, words):
    contents = {"train/a/0.png": COLOR[0], "test/a/0.png": COLOR[2]} | contents
    write_images(tmp_path, {name: x for name, x in contents.items() if x is not None})
    refused(f"^{tmp_path}.*{words}", load_dataset, tmp_path)


def test_a_folder_without_images_is_named(tmp_path):
    write_images(tmp_path, {"train/a/0.png": COLOR[0]})
    refused("has no folder test: expected .*/test/CLASS/a.png", load_dataset, tmp_path)
    write_images(tmp_path, {"test/c/notes.txt": b"x"})
    with pytest.raises(FileNotFoundError, match="classes c"):            # by torchvision
        load_dataset(tmp_path)


def test_images_of_a_folder_can_be_resized_whatever_their_sizes(tmp_path):
    """An image that has the size stays as it is."""
    loaded = load_dataset(write_images(tmp_path, {
        "train/a/0.png": COLOR[0], "train/b/0.png": np.tile(np.uint8([0, 200]), (12, 6)),
        "test/a/0.png": COLOR[1]}), size=(5, 4))
    own, stripes = loaded.train.images
    assert torch.equal(own, nchw(COLOR[:1])[0])
    assert stripes.float().sub(100).abs().max() <= 13                    # of 3 columns 1 or 2


# ---------------------------------------------------------------------------------- public images

def is_unlabeled(loaded):
    return loaded.train.labels is None and loaded[1:] == (None, 0, None, None, None, None)


def test_public_images_need_no_labels(tmp_path):
    """Unused ones are not looked at."""
    x, path = pixels(6, 5, 4, 3), tmp_path / "public.npz"
    for more in ({}, {"y_train": np.eye(6)}):
        np.savez(path, x_train=x, **more)
        loaded = load_public(path)
        assert is_unlabeled(loaded) and torch.equal(loaded.train.images, nchw(x))


def test_a_public_folder_needs_no_classes(tmp_path):
    """If there is a folder `train`, only its images count."""
    refused(f"^{tmp_path}: no images$", load_public, tmp_path)
    write_images(tmp_path, {"2019/b.png": COLOR[0], "2020/a.png": COLOR[1], "a.gif": b""})
    assert torch.equal(load_public(tmp_path).train.images, nchw(COLOR[:2]))
    write_images(tmp_path, {"train/cat/1.png": COLOR[3], "train/dog/0.png": COLOR[4]})
    assert torch.equal(load_public(tmp_path).train.images, nchw(COLOR[3:]))


# ------------------------------------------------------------------------------------ torchvision

def test_files_that_are_there_are_read_and_not_downloaded(tmp_path):
    """The images in EMNIST's files are transposed, and its letters count from 1."""
    arrays, labels = [pixels(6, 28, 28), pixels(4, 28, 28)], [np.arange(6) % 3, np.arange(4) % 3]
    folder = tmp_path / "EMNIST" / "raw"
    folder.mkdir(parents=True)
    for part, array, label in zip(("train", "test"), arrays, labels):
        for kind, content in (("images-idx3", array), ("labels-idx1", label + 1)):
            header = np.array([8 * 256 + content.ndim, *content.shape], dtype=">i4").tobytes()
            path = folder / f"emnist-letters-{part}-{kind}-ubyte"
            path.write_bytes(header + content.astype("u1").tobytes())
    loaded = load_dataset("emnist", tmp_path)
    for part, array, label in zip(loaded, arrays, labels):
        assert torch.equal(part.images, nchw(array[..., None].swapaxes(1, 2)))
        assert part.labels.tolist() == label.tolist()


def test_cifar100_has_its_images_fine_labels_and_superclasses(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.cifar, "check_integrity", lambda path, md5: True)
    content = {"data": pixels(4, 3 * 32 * 32), "fine_labels": [0, 1, 2, 0],
               "coarse_labels": [19, 18, 17, 19], "fine_label_names": ["a", "b", "c"]}
    (tmp_path / "cifar-100-python").mkdir()
    for name in ("train", "test", "meta"):
        (tmp_path / "cifar-100-python" / name).write_bytes(pickle.dumps(content))
    loaded = load_dataset("cifar100", tmp_path)
    assert torch.equal(loaded.train.images.flatten(1), torch.from_numpy(content["data"]))
    assert loaded.train.labels.tolist() == loaded.test.labels.tolist() == [0, 1, 2, 0]
    assert loaded.superclass.tolist() == [19, 18, 17, 19] and loaded.superclass.dtype == np.int64


def test_a_failed_download_is_one_line_naming_set_and_root(tmp_path, monkeypatch):
    failure = RuntimeError("Error downloading x:\nTried y,\ngot z")
    monkeypatch.setattr(datasets.CIFAR10, "download", Mock(side_effect=failure))
    refused(f"^cifar10: .* '{tmp_path}' .* .npz .*glyphs", load_dataset, "cifar10", tmp_path)


# ------------------------------------------------------------------------------- pixels to tensors

def test_x5_public_images_are_normalized_with_the_tasks_statistics():
    """Pixels 0, 0, 0, 1: mean 1/4, variance 1/4 - 1/16. A constant channel is divided by 1."""
    mean, std = images.statistics(torch.tensor([[[[0., 0], [0, 1]], [[7, 7], [7, 7]]]]))
    public = torch.tensor([3., 9]).view(1, 2, 1, 1).repeat(5, 1, 4, 4)
    normal = images.normalize(public, mean, std)
    expected = torch.tensor([(3 - 1 / 4) / (1 / 4 - 1 / 16)**.5, (9 - 7) / 1])
    assert torch.allclose(normal[:, :, 0, 0], expected) and (public[:, 1] == 9).all()
    assert normal.is_contiguous(**CHANNELS_LAST)


@pytest.mark.parametrize("public, shape, expected", [
    ((1., .5, .25), (1, 4, 4), (.299 * 1 + .587 * .5 + .114 * .25,)),
    ((.5,), (3, 9, 7), (.5, .5, .5))])
def test_color_becomes_luminance_and_gray_three_equal_channels(public, shape, expected):
    """In the task's height and width."""
    adapted = images.adapt(torch.tensor(public).view(1, -1, 1, 1).expand(1, -1, 4, 4), shape)
    assert torch.allclose(adapted, torch.tensor(expected).view(-1, 1, 1).expand(1, *shape))
    assert adapted.is_contiguous(**CHANNELS_LAST)


def test_crop_and_flip_gives_each_image_one_of_its_crops_all_equally_often():
    """All 3 x 3 shifts by up to 1 pixel, and mirrored; the generator alone decides."""
    pictures, padded = torch.from_numpy(pixels(2, 3, 3, 4)) + 1., torch.zeros(2, 3, 5, 6)
    padded[:, :, 1:-1, 1:-1] = pictures
    crops = [padded[..., top:top + 3, left:left + 4] for top in range(3) for left in range(3)]
    crops += [crop.flip(3) for crop in crops]
    many = pictures.repeat(100 * len(crops), 1, 1, 1)
    made, again, other = (images.crop_and_flip(many, rng(seed), 1) for seed in (0, 0, 1))
    for k in (0, 1):
        counts = Counter(image.tobytes() for image in made[k::2].numpy())     # 100 on average
        assert counts.keys() == {crop[k].numpy().tobytes() for crop in crops}
        assert len(counts) == 2 * 3 * 3 and min(counts.values()) > 50
    assert made.is_contiguous(**CHANNELS_LAST)
    assert torch.equal(made, again) and not torch.equal(made, other)
    point = torch.zeros(1000, 1, 11, 11)
    point[..., 5, 5] = 1
    places = images.crop_and_flip(point, rng(0)).nonzero()[:, 2:]        # by up to 4 if not said
    assert places.unique(dim=0).tolist() == [[y, x] for y in range(1, 10) for x in range(1, 10)]


# --------------------------------------------------------------------------- classes of a data set

def toy_arrays(num_classes, copies, test_copies, channels=1, seed=0):
    """Arrays of a data set: pixels of class c lie in [c, c + 1) / 10, no images are alike, rows are
    shuffled."""
    draw, made = rng(seed), {}
    for part, count in (("train", copies), ("test", test_copies)):
        labels = draw.permutation(np.repeat(np.arange(num_classes), count))
        noise = draw.uniform(.05, .95, (len(labels), 4, 4, channels))
        made |= {f"x_{part}": (labels[:, None, None, None] + noise) / 10, f"y_{part}": labels}
    return made | {"writer_train": np.arange(num_classes * copies) % 5}


def classes_of(images):
    """The class that the pixels of each image of `toy_arrays` tell."""
    return (images[:, 0, 0, 0] * 10).long()


SUPERCLASS = np.array([2, 0, 1, 1, 0, 2, 2])     # of the classes 0 ... 6
TOY_ARRAYS = toy_arrays(7, 12, 4, channels=3)
TOY_ARRAYS |= {"superclass": SUPERCLASS[TOY_ARRAYS["y_train"]]}
TOY = load.checked("toy", **TOY_ARRAYS)


@pytest.mark.parametrize("classes", [[5, 3], [6, 2, 0, 1, 3]])
def test_only_numbers_classes_in_the_order_given(classes):
    """The pixels tell the old class; a new number may be an old one that comes later, or stay.
    What belongs to the images stays with them."""
    kept = load.only(TOY._replace(subclass=np.arange(84), class_names="0123456"), classes)
    assert kept.num_classes == len(classes) and kept.class_names == [*map(str, classes)]
    for part, old in zip(kept[:2], TOY[:2]):
        assert torch.equal(torch.tensor(classes)[part.labels], classes_of(part.images))
        assert torch.equal(part.images, old.images[torch.isin(old.labels, torch.tensor(classes))])
    rows = np.isin(TOY.train.labels, classes)
    for array, old in [(kept.writers, TOY.writers), (kept.superclass, TOY.superclass),
                       (kept.subclass, np.arange(84))]:
        assert np.array_equal(array, old[rows])


@pytest.mark.parametrize("classes", [[3], [3, 5, 3], [3, 7]])
def test_only_wants_two_or_more_different_classes(classes):
    refused("two or more different classes from 0 to 6", load.only, TOY, classes)


def test_by_superclass_keeps_the_old_labels_as_subclasses():
    after = load.by_superclass(TOY, "toy")
    for part, old in zip(after[:2], TOY[:2]):
        assert part.labels.tolist() == SUPERCLASS[old.labels].tolist()
        assert torch.equal(part.images, old.images)
    assert after.num_classes == 3 and np.array_equal(after.subclass, TOY.train.labels)
