"""Images and labels arrive as the files hold them; a mistake in a file is one line naming it."""
import functools
import hashlib
import pickle
import struct
import zlib
from collections import Counter
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from data import images, load, readers
from data.load import DATASETS, TORCHVISION, load_dataset
from federation import Data

CHANNELS_LAST = {"memory_format": torch.channels_last}
rng = np.random.default_rng
cached = functools.cache(load_dataset)


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


# ------------------------------------------------------------------------------------------ glyphs
@pytest.mark.parametrize("name, sizes, classes, digest", [
    ("glyphs", (60 * 10 * 10, 15 * 10 * 10), 10, "c5852433be6358c2"),
    ("glyphs-letters", (40 * 26 * 4, 10 * 26 * 4), 26, "763baea44da66e06")])
def test_glyphs_are_the_same_bytes_for_everyone(name, sizes, classes, digest):
    """All accuracies on glyphs were measured on these bytes."""
    loaded, sha = cached(name), hashlib.sha256()
    for part, size in zip(loaded, sizes):
        assert part.images.shape == (size, 1, 16, 16) and part.images.dtype == torch.uint8
        sha.update(part.images.contiguous().numpy().tobytes())
    sha.update(loaded.writers.tobytes() + loaded.train.labels.numpy().tobytes())
    assert loaded.num_classes == classes and sha.hexdigest()[:16] == digest


# ------------------------------------------------------------------------------------- .npz files
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
    loaded = load_dataset(write_npz(tmp_path, x_train=x_train, x_test=x_test))
    for part, array in zip(loaded, arrays):
        assert torch.equal(part.images, nchw(array)) and part.images.is_contiguous(**CHANNELS_LAST)


def test_the_last_axis_is_the_channels_if_two_could_be(tmp_path):
    ambiguous = write_npz(tmp_path, x_train=pixels(6, 3, 5, 1), x_test=pixels(4, 3, 5, 1))
    assert load_dataset(ambiguous).train.images.shape == (6, 1, 3, 5)


def test_a_npz_file_without_writers_has_labels_and_classes_alone(tmp_path):
    loaded = load_dataset(write_npz(tmp_path))
    assert loaded.train.labels.tolist() == [0, 1, 2, 2, 1, 0]
    assert loaded.test.labels.tolist() == [0, 0, 2, 1]
    assert loaded[2:] == (3, None, None, None, None)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
def test_npz_keeps_float_pixels(tmp_path, dtype):
    values = (np.arange(6 * 20) / 128).astype(dtype).reshape(6, 5, 4)
    found = load_dataset(write_npz(tmp_path, x_train=values, x_test=values[:4])).train.images
    assert torch.equal(found, (torch.arange(6. * 20) / 128).view(6, 1, 5, 4))
    assert found.dtype == torch.float32


@pytest.mark.parametrize("dtype", ["u1", "f4", "i8", ">i2"])
def test_npz_takes_whole_numbers_of_any_type(tmp_path, dtype):
    numbers = np.array([0, 1, 2, 2, 1, 0], dtype).reshape(6, 1)
    loaded = load_dataset(write_npz(tmp_path, y_train=numbers, writer_train=numbers + 7))
    assert loaded.train.labels.dtype == torch.int64
    assert loaded.train.labels.tolist() == [0, 1, 2, 2, 1, 0]
    assert loaded.writers.tolist() == [7, 8, 9, 9, 8, 7]


@pytest.mark.parametrize("name, array, words", [
    ("x_train", None, "is missing"),
    ("x_train", pixels(6, 20), r"has shape \[6, 20\]; expected \[n, h, w\]"),
    ("x_train", pixels(6, 5, 4, 2), r"has shape \[6, 5, 4, 2\]; expected \[n, h, w\]"),
    ("x_train", pixels(6, 5, 5, 3), r"has .* \[3, 5, 5\], x_test has \[3, 5, 4\]"),
    ("x_test", pixels(0, 5, 4, 3), r"has shape \[0, 5, 4, 3\]; expected .* with n > 0"),
    ("x_test", np.zeros((4, 5, 4), int), "has type int64; expected uint8, or floats from 0 to 1"),
    ("x_train", np.full((6, 5, 4, 3), 1e300), r"holds floats from 1e\+300 to 1e\+300; expected 0"),
    ("x_train", np.full((6, 5, 4, 3), -.5), "holds floats from -0.5 to -0.5; expected 0 to 1"),
    ("x_test", np.full((4, 5, 4, 3), np.nan), "holds floats from nan to nan; expected 0 to 1"),
    ("writer_train", np.zeros(5), r"has shape \[5\]; expected \[6\]"),
    ("y_train", np.eye(6), r"has shape \[6, 6\]; expected \[6\], one number per image"),
    *((name, np.zeros((size, 5, 4, 3), dtype), f"holds {size} images that are all alike")
      for name, size in (("x_train", 6), ("x_test", 4)) for dtype in ("u1", "f4")),
    *(("y_train", np.array([0, 1, 2, 2, 1, label]), "must hold whole numbers from 0 to 999999$")
      for label in (-1, .5, np.nan, np.inf, 10**6, 10**11, np.uint64(2**63), 1e19)),
    *(("writer_train", np.array([0, 1, 2, 2, 1, writer]), "must hold whole numbers from 0 to 92")
      for writer in (np.uint64(2**63), 1e19))])
@pytest.mark.filterwarnings("error")
def test_npz_mistakes_are_one_line_with_file_and_array(tmp_path, name, array, words):
    path = write_npz(tmp_path, **{name: array})
    refused(f"^{path}: {name} {words}", load_dataset, path)


@pytest.mark.parametrize("kind", ["U", "S"])
def test_labels_of_an_npz_file_may_be_names_of_classes(tmp_path, kind):
    """Their order is that of class folders."""
    names = np.array(["cat", "10", "ant", "9", "ant", "10"], kind)
    loaded = load_dataset(write_npz(tmp_path, y_train=names[:, None], y_test=names[:4]))
    assert loaded.class_names == ["9", "10", "ant", "cat"] and loaded.num_classes == 4
    assert loaded.train.labels.tolist() == [3, 1, 2, 0, 2, 1]
    assert loaded.test.labels.tolist() == [3, 1, 2, 0]
    for y_test, words in [(np.array(["ant", "dog", "cat", "9"]), "'dog', a class without training"),
                          (np.arange(4), "'0', a class without training images$")]:
        refused(f"y_test has {words}", load_dataset,
                write_npz(tmp_path, y_train=names, y_test=y_test))


@pytest.mark.parametrize("spoil", [
    lambda whole: b"", lambda whole: b"text", lambda whole: whole[:-100],
    lambda whole: whole[:300] + bytes([255 - whole[300]]) + whole[301:]])    # a pixel of x_train
def test_what_is_not_a_whole_npz_file_is_named(tmp_path, spoil):
    path = write_npz(tmp_path)
    path.write_bytes(spoil(path.read_bytes()))
    refused("set.npz: cannot be read as an .npz file", load_dataset, path)


def test_pickled_arrays_are_refused(tmp_path):
    path = write_npz(tmp_path, y_train=np.array([0, 1, 2, 2, 1, None]))
    refused("set.npz: cannot be read .*Object arrays", load_dataset, path)


def test_what_is_not_there_is_named(tmp_path):
    refused("nothing.npz: cannot be read .*No such file", load_dataset, tmp_path / "nothing.npz")
    for load_it in (load_dataset, load.load_public):
        refused(f"no dataset 'glyph': use {', '.join(DATASETS)}, a .npz", load_it, "glyph")


def test_only_the_same_numbers_have_the_same_fingerprint(tmp_path):
    x, y = pixels(6, 5, 5, 3), np.array([0, 1, 2, 2, 1, 0])
    base = {"x_train": x, "x_test": x[:4], "y_train": y, "y_test": y[:4], "writer_train": y}
    changes = [{}, {"x_train": x[::-1]}, {"x_test": x[1:5]}, {"y_train": y[[1, 0, 2, 3, 4, 5]]},
               {"y_test": y[1:5]}, {"writer_train": y // 2}, {"writer_train": None}]
    lines = [load.fingerprint(load_dataset(write_npz(tmp_path, **base | own))) for own in changes]
    assert len(set(lines)) == len(changes)
    other_layout = write_npz(tmp_path, **base | {"x_train": x.transpose(0, 3, 1, 2)})
    assert load.fingerprint(load_dataset(other_layout)) == lines[0]


def test_a_fingerprint_tells_another_scale_and_classes_without_test_images(tmp_path):
    x_train, x_test = np.tile(np.uint8([0, 255]), (6, 4, 2)), np.tile([0., .5], (4, 4, 2))
    x_train[0], x_test[0] = 255, 0
    path = write_npz(tmp_path, x_train=x_train, x_test=x_test, y_test=np.array([0, 2, 2, 0]))
    assert load.fingerprint(load_dataset(path)).startswith(
        "6 training and 4 test images 1x4x4, uint8 0..255 (test images: float 0..0.5), "
        "3 classes (without test images: 1), ")


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
    """CINIC-10's validation part, what is hidden and files that are no images are left alone."""
    loaded = load_dataset(write_images(tmp_path, {
        "train/cat/0.png": COLOR[1], "train/cat/1.png": COLOR[2], "train/ant/0.png": COLOR[0],
        "test/cat/0.png": COLOR[4], "test/ant/0.png": COLOR[3],
        "valid/x/0.png": COLOR[0], "train/.DS_Store": b"x", "train/cat/notes.txt": b"x",
        "train/.ipynb_checkpoints/0.png": COLOR[0], "test/.ipynb_checkpoints/0.png": COLOR[0],
        "train/cat/.ipynb_checkpoints/1.png": COLOR[2], "train/cat/._1.png": b"x"}))
    assert torch.equal(loaded.train.images, nchw(COLOR[:3]))
    assert torch.equal(loaded.test.images, nchw(COLOR[3:]))
    assert loaded.train.labels.tolist() == [0, 1, 1] and loaded.test.labels.tolist() == [0, 1]
    assert loaded.class_names == ["ant", "cat"]


def test_classes_that_are_numbers_are_in_the_order_of_numbers(tmp_path):
    """And before other names. The same in `test`, where there may be fewer."""
    names = ["8", "9", "010", "11", "a"]
    loaded = load_dataset(write_images(tmp_path, {
        **{f"train/{name}/0.png": image for name, image in zip(names, COLOR)},
        "test/11/0.png": COLOR[0], "test/9/0.png": COLOR[1]}))
    assert loaded.class_names == names and torch.equal(loaded.train.images, nchw(COLOR))
    assert loaded.train.labels.tolist() == [0, 1, 2, 3, 4]
    assert loaded.test.labels.tolist() == [1, 3]
    assert load.only(loaded, [0, 1]).class_names == ["8", "9"]


BLACK_ON_NOTHING = np.uint8([[[0, 255], [0, 0]], [[0, 127], [200, 255]]])     # gray, alpha


@pytest.mark.parametrize("mode", ["LA", "RGBA", "PA"])
def test_what_is_transparent_is_white(tmp_path, mode):
    """Black ink on nothing would be black on black. Half of black is half of white."""
    path = tmp_path / ("0.tif" if mode == "PA" else "0.png")
    image = Image.fromarray(BLACK_ON_NOTHING, "LA").convert("RGBA").convert(mode)
    image.save(path)
    found = readers.read_image(path)
    assert (found == found[..., :1]).all() and found[..., 0].tolist() == [[0, 255], [128, 200]]


@pytest.mark.parametrize("mode", ["L", "RGB", "P"])
def test_a_color_that_is_declared_transparent_is_white(tmp_path, mode):
    ink = Image.fromarray(np.uint8([[0, 9], [9, 0]])).convert(mode)
    ink.save(tmp_path / "0.png", transparency=(0, 0, 0) if mode == "RGB" else 0)
    assert readers.read_image(tmp_path / "0.png")[..., 0].tolist() == [[255, 9], [9, 255]]


def test_an_image_is_turned_as_its_exif_data_say(tmp_path):
    """Orientation 3 is upside down, 6 lies on its left side."""
    for orientation, upright in [(3, COLOR[0][::-1, ::-1]), (6, np.rot90(COLOR[0], -1))]:
        exif = Image.Exif()
        exif[274] = orientation
        Image.fromarray(COLOR[0]).save(tmp_path / "0.png", exif=exif)
        assert np.array_equal(readers.read_image(tmp_path / "0.png"), upright)


def png_of_16_bits(numbers):
    """A file of uint16 [h, w, c], which PIL writes only of gray images."""
    def chunk(name, content):
        code = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + code

    height, width, channels = numbers.shape
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]            # gray, gray and alpha, RGB, RGBA
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in numbers)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(
        ">IIBBBBB", width, height, 16, kind, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b""))


@pytest.mark.parametrize("name", ["0.png", "0.tif", "0.pgm"])
def test_gray_of_16_bits_keeps_all_of_them(tmp_path, name):
    """Medical images often have 12: their upper 8 of 16 would be 0 ... 15."""
    numbers = rng(0).integers(0, 4096, (5, 4), dtype=np.uint16)
    path = write_images(tmp_path, {name: numbers}) / name
    found = readers.read_image(path)
    assert found.shape == (5, 4, 3) and found.dtype == np.float32
    assert (found * 65535 == numbers[..., None]).all()


def test_gray_of_16_bits_is_upright_and_white_where_it_is_transparent(tmp_path):
    exif = Image.Exif()
    exif[274] = 6                                        # lies on its left side
    Image.fromarray(np.uint16([[0, 300, 301]])).save(tmp_path / "0.png", exif=exif,
                                                     transparency=300)
    found = readers.read_image(tmp_path / "0.png")[:, 0, 0]
    assert (found * 65535).tolist() == [0, 65535, 301]


def test_bytes_beside_images_of_16_bits_are_brought_to_their_scale(tmp_path):
    loaded = load_dataset(write_images(tmp_path, {
        "train/a/0.png": np.uint16([[65535, 257 * 7]]), "train/b/0.png": np.uint8([[255, 7]]),
        "train/b/1.png": np.uint8([[0, 51]]), "test/a/0.png": np.uint8([[255, 0]])}))
    one, same, other = loaded.train.images
    assert torch.allclose(one, same) and torch.allclose(other, torch.tensor([0, .2]))
    assert loaded.test.images.dtype == torch.uint8                       # each part has its type


@pytest.mark.parametrize("name, content", [
    *(("0.png", png_of_16_bits(np.zeros((5, 4, channels)))) for channels in (2, 3, 4)),
    ("0.ppm", b"P6 2 2 65535\n" + bytes(24)), ("0.tif", np.zeros((2, 2), np.float32)),
    ("0.tif", np.zeros((2, 2), np.int32))])
def test_colors_of_more_than_8_bits_are_refused(tmp_path, name, content):
    """PIL would keep the upper 8 and not say so."""
    write_images(tmp_path, {name: content})
    refused(f"{name}: .*colors of more than 8 bits", readers.read_image, tmp_path / name)


@pytest.mark.parametrize("mode, tag, value", [("RGB", 258, (16, 16, 16)), ("I;16", 262, 0)])
def test_a_tiff_file_of_which_pil_does_not_say_what_it_is_is_refused(tmp_path, mode, tag, value):
    """16 bits of each color, of which it reads 8; gray that counts from white, as if from black."""
    array = COLOR[0] if mode == "RGB" else np.zeros((2, 2), np.uint16)
    Image.fromarray(array).save(tmp_path / "0.tif")
    with Image.open(tmp_path / "0.tif") as image:
        assert image.mode == mode and readers.more_than_8_bits(image) == (mode == "I;16")
        image.tag_v2[tag] = value
        assert readers.more_than_8_bits(image)
        refused("colors of more than 8 bits", readers.gray_of_16_bits, image)


@pytest.mark.parametrize("name", ["0.tif", "0.png", "0.webp"])
def test_a_file_of_several_pages_is_refused(tmp_path, name):
    pages = [Image.fromarray(array) for array in COLOR[:2]]
    pages[0].save(tmp_path / name, save_all=True, append_images=pages[1:])
    refused(f"{name}: .*2 pages; each must be a file", readers.read_image, tmp_path / name)


def test_the_preview_inside_a_jpeg_is_ignored(tmp_path):
    """Phones write such files: their format is MPO."""
    pages = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    pages[0].save(tmp_path / "0.jpg", "MPO", save_all=True, append_images=pages[1:])
    with Image.open(tmp_path / "0.jpg") as image:
        assert image.n_frames == 2
    red, _, blue = readers.read_image(tmp_path / "0.jpg")[0, 0]
    assert red > 200 and blue < 50


@pytest.mark.parametrize("test_image, channels", [(COLOR[1, :, :, 0], 1), (COLOR[0], 3)])
def test_a_folder_has_three_channels_unless_all_images_are_gray(tmp_path, test_image, channels):
    contents = {"train/a/0.png": COLOR[1, :, :, 0], "train/b/0.png": COLOR[2, :, :, 0]}
    loaded = load_dataset(write_images(tmp_path, contents | {"test/a/0.png": test_image}))
    gray = nchw(COLOR[1:3, :, :, :1])
    assert torch.equal(loaded.train.images, gray.expand(2, channels, 5, 4))


@pytest.mark.parametrize("name, content, words", [
    ("train/a/9.png", b"hello", "9.png: cannot be read as an image"),
    ("train/a/9.png", pixels(4, 6, 3), r"9.png: size \(4, 6\), the first image has \(5, 4\)"),
    ("test/c/0.png", COLOR[0], "c: a class without training images")])
def test_folder_mistakes_are_one_line_that_names_the_place(tmp_path, name, content, words):
    good = {"train/a/0.png": COLOR[0], "train/b/0.png": COLOR[1], "test/a/0.png": COLOR[2]}
    refused(f"^{tmp_path}.*{words}", load_dataset, write_images(tmp_path, good | {name: content}))


@pytest.mark.parametrize("empty", ["train/b", "test/b"])
def test_a_class_folder_without_images_is_named(tmp_path, empty):
    write_images(tmp_path, {"train/a/0.png": COLOR[0], "test/a/0.png": COLOR[2],
                            f"{empty}/.hidden.png": b"x"})
    if empty == "test/b":
        write_images(tmp_path, {"train/b/0.png": COLOR[1]})
    refused(f"^{tmp_path}/{empty}: no images$", load_dataset, tmp_path)


def test_a_folder_of_images_is_no_task(tmp_path):
    write_images(tmp_path, {"train/0.png": COLOR[0]})
    refused(f"^{tmp_path}/train: no folders of classes$", load_dataset, tmp_path)


@pytest.mark.parametrize("part, other", [("train", "test"), ("test", "train")])
def test_a_missing_part_of_a_folder_is_named(tmp_path, part, other):
    write_images(tmp_path, {f"{other}/a/0.png": COLOR[0]})
    refused(f"^{tmp_path}/{part} is missing$", load_dataset, tmp_path)


def test_images_in_folders_inside_a_class_are_of_this_class(tmp_path):
    loaded = load_dataset(write_images(tmp_path, {
        "train/a/0.png": COLOR[0], "train/b/new/0.png": COLOR[1], "test/a/0.png": COLOR[2]}))
    assert torch.equal(loaded.train.images, nchw(COLOR[:2])) and loaded.class_names == ["a", "b"]


@pytest.mark.parametrize("labeled, words", [
    (True, "2 .gif, 2 in val, 1 .txt, 1 outside of a class, 1 without a suffix"),
    (False, "2 in val, 1 .gif, 1 .txt, 1 in test")])
def test_files_that_are_not_read_are_counted(tmp_path, labeled, words):
    """Not what is hidden, and nothing where all is read."""
    contents = {"train/a/0.png": COLOR[0], "train/b/new/1.JPG": COLOR[1], "test/a/0.png": COLOR[2]}
    assert load.ignored(write_images(tmp_path / "all", contents)) == ""
    more = dict.fromkeys(["train/a/0.gif", "val/a/0.png", "val/a/1.png", "train/a/.x"], b"")
    more |= {"train/0.png" if labeled else "notes.txt": b"", ".hidden/0.png": b""}
    if labeled:
        more |= dict.fromkeys(["notes.txt", "1.GIF", "test/README"], b"")
    assert load.ignored(str(write_images(tmp_path / "some", contents | more)), labeled) == words
    assert load.ignored("glyphs") == load.ignored(str(write_npz(tmp_path))) == ""


def test_a_folder_of_any_files_but_no_train_is_read_as_a_whole(tmp_path):
    write_images(tmp_path, {"0.png": COLOR[0], "a/b/1.png": COLOR[1], "a/2.gif": b""})
    assert load.ignored(tmp_path, labeled=False) == "1 .gif"


def test_images_of_a_folder_can_be_resized_whatever_their_sizes(tmp_path):
    """Bytes stay bytes. An image that has the size stays as it is."""
    contents = {"train/a/0.png": COLOR[0], "train/b/0.png": np.tile(np.uint8([0, 200]), (12, 6)),
                "test/a/0.png": np.tile(np.uint16([0, 1000]), (20, 4))}
    loaded = load_dataset(write_images(tmp_path, contents), size=(5, 4))
    own, stripes = loaded.train.images
    assert torch.equal(own, nchw(COLOR[:1])[0]) and own.dtype == torch.uint8
    assert stripes.float().sub(100).abs().max() <= 13                    # of 3 columns 1 or 2
    assert ((loaded.test.images * 65535 - 500).abs() < 100).all()


def test_public_images_of_mixed_sizes_are_resized(tmp_path):
    write_images(tmp_path, {"0.png": COLOR[0], "1.png": COLOR[1, :, :3], "2.png": COLOR[2, :4]})
    refused("the first image has", load.load_public, tmp_path)
    loaded = load.load_public(tmp_path, size=(5, 4))
    assert unlabeled(loaded) and torch.equal(loaded.train.images[:1], nchw(COLOR[:1]))
    assert loaded.train.images.shape == (3, 3, 5, 4)


# ---------------------------------------------------------------------------------- public images
def unlabeled(loaded):
    return loaded.train.labels is None and loaded[1:] == (None, 0, None, None, None, None)


def test_public_images_need_no_labels(tmp_path):
    """Unused ones are not looked at: with 3 million classes the fingerprint was 26 MB."""
    images = pixels(6, 5, 4, 3)
    for more in ({}, {"y_train": np.array([0, 0, 0, 0, 0, 3 * 10**6])}, {"y_train": np.eye(6)}):
        np.savez(tmp_path / "public.npz", x_train=images, **more)
        loaded = load.load_public(tmp_path / "public.npz")
        assert unlabeled(loaded) and torch.equal(loaded.train.images, nchw(images))
        assert load.fingerprint(loaded).startswith("6 images 3x5x4, uint8 0..255, checksum ")
    refused("y_train is missing", load_dataset, write_npz(tmp_path, y_train=None))
    refused("public.npz: x_train holds 6 images that are all alike", load.load_public,
            write_npz(tmp_path, x_train=images[[0] * 6]).rename(tmp_path / "public.npz"))


def test_the_fingerprint_of_public_images_depends_on_the_pixels(tmp_path):
    one, other = (load.load_public(write_npz(tmp_path, x_train=pixels(6, 5, 4, seed=seed)))
                  for seed in (0, 2))
    assert load.fingerprint(one) != load.fingerprint(other)


@pytest.mark.parametrize("names", [
    ["0.png", "1.png"], ["2019/b.png", "2020/a.png"], ["train/0.png", "train/1.png"],
    ["train/cat/1.png", "train/dog/0.png"]])
def test_a_public_folder_needs_no_classes(tmp_path, names):
    """What is hidden and, where there is `train`, what is not in it is left alone."""
    write_images(tmp_path, dict(zip(names, COLOR)) | {".x/2.png": COLOR[2], "._1.png": b"x"})
    if "train" in names[0]:
        write_images(tmp_path, {"test/cat/0.png": COLOR[2], "9.png": COLOR[2]})
    loaded = load.load_public(tmp_path)
    assert unlabeled(loaded) and torch.equal(loaded.train.images, nchw(COLOR[:2]))


def test_gray_public_images_have_one_channel_and_an_empty_folder_is_named(tmp_path):
    refused(f"^{tmp_path}: no images$", load.load_public, tmp_path)
    write_images(tmp_path, {"0.png": COLOR[0, :, :, 0], "1.png": COLOR[1, :, :, 0]})
    assert torch.equal(load.load_public(tmp_path).train.images, nchw(COLOR[:2, :, :, :1]))


def test_a_named_public_set_has_its_training_images():
    loaded = load.load_public("glyphs")
    assert unlabeled(loaded) and torch.equal(loaded.train.images, cached("glyphs").train.images)


# ------------------------------------------------------------------------------------ torchvision
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "emnist"])
def test_files_that_are_there_are_read_and_not_downloaded(tmp_path, name):
    """The images in EMNIST's files are transposed, and its letters count from 1."""
    emnist = name == "emnist"
    names = ("emnist-letters-train", "emnist-letters-test") if emnist else ("train", "t10k")
    arrays, labels = [pixels(6, 28, 28), pixels(4, 28, 28)], [np.arange(6) % 3, np.arange(4) % 3]
    folder = tmp_path / TORCHVISION[name] / "raw"
    folder.mkdir(parents=True)
    for part, array, label in zip(names, arrays, labels):
        for kind, content in (("images-idx3", array), ("labels-idx1", label + emnist)):
            header = np.array([8 * 256 + content.ndim, *content.shape], dtype=">i4").tobytes()
            (folder / f"{part}-{kind}-ubyte").write_bytes(header + content.astype("u1").tobytes())
    loaded = load_dataset(name, tmp_path)
    for part, array, label in zip(loaded, arrays, labels):
        assert torch.equal(part.images, nchw(array[..., None].swapaxes(1, 1 + emnist)))
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


@pytest.mark.parametrize("name", TORCHVISION)
def test_a_failed_download_is_one_line_naming_set_and_root(tmp_path, monkeypatch, name):
    for failure in (EOFError(), ValueError("damaged"), OSError("no route to host"),
                    RuntimeError("Error downloading x:\nTried y,\ngot z")):
        dataset = getattr(datasets, TORCHVISION[name])
        monkeypatch.setattr(dataset, "download", Mock(side_effect=failure))
        words = (f"^{name}: can be neither read under '{tmp_path}' .*, give the images as an .npz "
                 "file, or take the embedded glyphs")
        refused(words, load_dataset, name, tmp_path)


# -------------------------------------------------------------------------------- pixels to tensors
def test_x5_public_images_are_normalized_with_the_tasks_statistics():
    """Pixels 0, 0, 0, 1: mean 1/4, variance 1/4 - 1/16. A constant channel is divided by 1."""
    mean, std = images.statistics(torch.tensor([[[[0., 0], [0, 1]], [[7, 7], [7, 7]]]]))
    public = torch.tensor([3., 9]).view(1, 2, 1, 1).repeat(5, 1, 4, 4)
    normal = images.normalize(public, mean, std)
    expected = torch.tensor([(3 - 1 / 4) / (1 / 4 - 1 / 16)**.5, (9 - 7) / 1])
    assert torch.allclose(normal[:, :, 0, 0], expected) and (public[:, 1] == 9).all()
    assert normal.is_contiguous(**CHANNELS_LAST)


def plain(*channels):
    """An image of 4 x 4 equal pixels."""
    return torch.tensor(channels).view(1, -1, 1, 1).expand(1, -1, 4, 4)


@pytest.mark.parametrize("public, expected", [
    (plain(1., .5, .25), plain(.299 * 1 + .587 * .5 + .114 * .25)), (plain(.5), plain(.5, .5, .5))])
def test_color_becomes_luminance_and_gray_three_equal_channels(public, expected):
    assert torch.allclose(images.adapt(public, expected.shape[1:]), expected)


def test_stripes_shrink_to_gray():
    """Antialiasing: each new pixel is half black, half white. Without it all would be white."""
    stripes = torch.tensor([0., 1, 1, 0]).repeat(8).expand(1, 1, 32, 32)
    shrunk = images.adapt(stripes, (1, 8, 8))
    assert torch.allclose(shrunk[..., 1:-1], torch.tensor(.5), atol=1e-6)


@pytest.mark.parametrize("channels, shape", [(3, (1, 4, 4)), (1, (3, 9, 9)), (3, (3, 4, 5))])
def test_adapted_images_have_the_shape_and_stay_in_0_to_1(channels, shape):
    adapted = images.adapt(nchw(pixels(4, 6, 6, channels)).contiguous() / 255, shape)
    assert adapted.shape == (4, *shape) and adapted.is_contiguous(**CHANNELS_LAST)
    assert adapted.min() >= 0 and adapted.max() <= 1 + 1e-6


def test_crop_and_flip_gives_each_image_one_of_its_crops_all_equally_often():
    """All 3 x 3 shifts by up to 1 pixel, and mirrored."""
    pictures, padded = torch.from_numpy(pixels(2, 3, 3, 4)) + 1., torch.zeros(2, 3, 5, 6)
    padded[:, :, 1:-1, 1:-1] = pictures
    crops = [padded[..., top:top + 3, left:left + 4] for top in range(3) for left in range(3)]
    crops += [crop.flip(3) for crop in crops]
    made = images.crop_and_flip(pictures.repeat(100 * len(crops), 1, 1, 1), rng(0), padding=1)
    for k in (0, 1):
        counts = Counter(image.tobytes() for image in made[k::2].numpy())     # 100 on average
        assert counts.keys() == {crop[k].numpy().tobytes() for crop in crops}
        assert len(counts) == 2 * 3 * 3 and min(counts.values()) > 50
    assert made.is_contiguous(**CHANNELS_LAST)


def test_crop_and_flip_shifts_by_up_to_four_pixels():
    """The one bright pixel of 11 x 11 stands at each of 9 x 9 places."""
    picture = torch.zeros(1, 1, 11, 11)
    picture[..., 5, 5] = 1
    places = images.crop_and_flip(picture.repeat(1000, 1, 1, 1), rng(0)).nonzero()[:, 2:]
    assert places.unique(dim=0).tolist() == [[y, x] for y in range(1, 10) for x in range(1, 10)]


def test_crop_and_flip_depends_on_the_generator_alone():
    pictures = torch.from_numpy(pixels(9, 1, 5, 6)) + 1.
    once, again, other = (images.crop_and_flip(pictures, rng(seed)) for seed in (0, 0, 1))
    assert torch.equal(once, again) and not torch.equal(once, other)


# ---------------------------------------------------------------------------- classes of a data set
def toy_set(num_classes, copies, test_copies, channels=1, seed=0):
    """Pixels of class c lie in [c, c + 1), no images are alike, rows are shuffled."""
    parts, draw = [], np.random.default_rng(seed)
    for count in (copies, test_copies):
        labels = draw.permutation(np.repeat(np.arange(num_classes), count))
        values = labels[:, None, None, None] + draw.random((len(labels), channels, 4, 4))
        images = torch.tensor(values).float().contiguous(memory_format=torch.channels_last)
        parts.append(Data(images, torch.tensor(labels)))
    return load.Dataset(*parts, num_classes, writers=np.arange(num_classes * copies) % 5)


SUPERCLASS = np.array([2, 0, 1, 1, 0, 2, 2])     # of the classes 0 ... 6
TOY = toy_set(7, 12, 4, channels=3)
TOY = TOY._replace(superclass=SUPERCLASS[TOY.train.labels])


@pytest.mark.parametrize("classes", [[3, 5], [5, 3], [4, 5, 6], [6, 2, 0, 1, 3], [*range(7)][::-1]])
def test_b24_only_numbers_classes_in_the_order_given(classes):
    """The pixels tell the old class; a new number may be an old one that comes later, or stay."""
    kept = load.only(TOY, classes)
    assert kept.num_classes == len(classes)
    for part, old in zip(kept[:2], TOY[:2]):
        assert torch.equal(torch.tensor(classes)[part.labels], part.images[:, 0, 0, 0].long())
        assert torch.equal(part.images, old.images[torch.isin(old.labels, torch.tensor(classes))])


def test_only_keeps_what_belongs_to_the_images():
    rows = torch.isin(TOY.train.labels, torch.tensor([5, 3])).numpy()
    kept = load.only(TOY._replace(subclass=np.arange(84), class_names="0123456"), [5, 3])
    for array, old in [(kept.writers, TOY.writers), (kept.superclass, TOY.superclass),
                       (kept.subclass, np.arange(84))]:
        assert np.array_equal(array, old[rows])
    assert kept.class_names == ["5", "3"]


@pytest.mark.parametrize("classes", [[3], [], [3, 3], [3, 5, 3], [3, 7], [-1, 3]])
def test_only_wants_two_or_more_different_classes(classes):
    refused("two or more different classes from 0 to 6", load.only, TOY, classes)


def test_by_superclass_keeps_the_old_labels_as_subclasses():
    after = load.by_superclass(TOY, "toy")
    for part, old in zip(after[:2], TOY[:2]):
        assert part.labels.tolist() == SUPERCLASS[old.labels].tolist()
        assert torch.equal(part.images, old.images)
    assert after.num_classes == 3 and np.array_equal(after.subclass, TOY.train.labels)
