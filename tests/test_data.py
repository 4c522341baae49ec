"""Images and labels arrive as the files hold them, and whatever is wrong with a file is one line that names it."""
import gzip
import hashlib
import pickle
import subprocess
import sys
import zlib
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch

import data
import federation
import partition
from algorithms.common import Data

ROOT = Path(data.__file__).parent


def rng(seed=0):
    return np.random.default_rng(seed)


def pixels(*shape, seed=0):
    return rng(seed).integers(0, 256, size=shape, dtype=np.uint8)


def write_npz(folder, **changes):
    """A good file (6 + 4 colour images of 5 x 4, 3 classes) with some arrays changed, or left out where None."""
    arrays = {"x_train": pixels(6, 5, 4, 3), "y_train": np.array([0, 1, 2, 2, 1, 0]),
              "x_test": pixels(4, 5, 4, 3, seed=1), "y_test": np.array([0, 0, 2, 1])} | changes
    path = folder / "set.npz"
    np.savez(path, **{key: array for key, array in arrays.items() if array is not None})
    return path


def write_images(folder, train=None, test=None):
    """An image folder: {class: [array, ...]} for both parts."""
    from PIL import Image
    for part, classes in {"train": train, "test": test}.items():
        for name, images in (classes or {}).items():
            (folder / part / name).mkdir(parents=True)
            for i, image in enumerate(images):
                Image.fromarray(image).save(folder / part / name / f"{i}.png")
    return folder


def one_line(error):
    return "\n" not in str(error.value)


# ------------------------------------------------------------------------------------------------------------ glyphs
@pytest.fixture(scope="module", params=["glyphs", "glyphs-letters"])
def glyphs(request):
    return data.load(request.param)


@pytest.fixture(scope="module")
def digits():
    return data.load("glyphs")


def test_glyphs_have_the_promised_sizes():
    sizes = {name: (len(set_.train.labels), len(set_.test.labels), set_.num_classes)
             for name in ("glyphs", "glyphs-letters") for set_ in [data.load(name)]}
    assert sizes == {"glyphs": (60 * 10 * 10, 15 * 10 * 10, 10), "glyphs-letters": (40 * 26 * 4, 10 * 26 * 4, 26)}


def test_glyphs_are_grey_float_pixels_between_0_and_1(glyphs):
    for part in (glyphs.train, glyphs.test):
        assert part.images.dtype == torch.float32 and part.images.shape[1:] == (1, 16, 16)
        assert part.images.min() == 0 and part.images.max() == 1 and part.labels.dtype == torch.int64


@pytest.mark.parametrize("name, expected", [("glyphs", "c5852433be6358c2"), ("glyphs-letters", "763baea44da66e06")])
def test_glyphs_are_the_same_bytes_for_everyone(name, expected):
    """Every accuracy that is reported on glyphs was measured on these bytes: who changes them measures anew."""
    glyphs, digest = data.load(name), hashlib.sha256()
    for part in (glyphs.train, glyphs.test):
        digest.update((part.images * 255).round().byte().contiguous().numpy().tobytes())
    digest.update(glyphs.writers.tobytes() + glyphs.train.labels.numpy().tobytes())
    assert digest.hexdigest()[:16] == expected


def test_glyphs_leave_the_global_generators_alone():
    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    data.load("glyphs")
    assert torch.equal(torch.get_rng_state(), before[0]) and np.array_equal(np.random.get_state()[1], before[1])


def test_every_writer_draws_every_symbol_equally_often(glyphs):
    drawn = np.zeros((glyphs.writers.max() + 1, glyphs.num_classes), dtype=int)
    np.add.at(drawn, (glyphs.writers, glyphs.train.labels.numpy()), 1)
    assert (drawn == drawn[0, 0]).all() and drawn[0, 0] > 0


def test_test_images_are_by_other_writers(digits):
    images, labels, writers = data.handwriting(data.FONT[:10], 75, 10, sloppiness=1.3, seed=1)
    others = writers >= 60
    assert np.array_equal(np.unique(digits.writers), np.arange(60))
    assert np.array_equal((digits.test.images[:, 0] * 255).round().numpy(), images[others])
    assert np.array_equal(digits.test.labels.numpy(), labels[others])


def test_writers_differ_in_appearance(digits):
    """The mean images of two writers lie much further apart than those of two random groups of the same size."""
    images = digits.train.images.numpy()

    def spread(parts):
        return np.var([images[part].mean(axis=0) for part in parts], axis=0).mean()
    by_writer = partition.by_writer(digits.writers, 60, rng())
    assert spread(by_writer) > 10 * spread(partition.iid(digits.writers, 60, rng()))


def test_rows_are_shuffled(digits):
    """The first tenth of the rows holds all classes and all writers."""
    assert len(digits.train.labels[:600].unique()) == 10 and len(np.unique(digits.writers[:600])) == 60


@pytest.mark.parametrize("symbols, count", [(data.FONT[:10], 10), (data.FONT[10:], 26)])
def test_symbols_of_one_alphabet_differ(symbols, count):
    """Digits from digits and letters from letters; a zero and an O may look alike, as they do in most hands."""
    assert len(np.unique(symbols.reshape(count, -1), axis=0)) == count and data.FONT.shape == (36, 7, 5)


@pytest.fixture(scope="module")
def another_process():
    """What a fresh process says: [the checksum of its glyphs, did it import torchvision or PIL?]."""
    code = ("import data, sys, zlib; print(zlib.crc32(data.load('glyphs').train.images.contiguous().numpy().tobytes()), "
            "'torchvision' in sys.modules or 'PIL' in sys.modules)")
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120, capture_output=True, text=True).stdout.split()


def test_glyphs_do_not_import_torchvision(another_process):
    assert another_process[1] == "False"


def test_glyphs_are_the_same_in_another_process(digits, another_process):
    assert int(another_process[0]) == zlib.crc32(digits.train.images.contiguous().numpy().tobytes())


# -------------------------------------------------------------------------------------------------------- load, names
def test_an_unknown_name_lists_the_names():
    with pytest.raises(ValueError, match="no dataset 'glyph': use glyphs, glyphs-letters, cifar10, .*emnist") as error:
        data.load("glyph")
    assert one_line(error)


def test_the_names_are_the_promised_ones():
    assert set(data.DATASETS) == {"glyphs", "glyphs-letters", "cifar10", "cifar100", "mnist", "fashion-mnist", "emnist"}


# ---------------------------------------------------------------------------------------------------------------- npz
def test_npz_uint8_is_scaled_to_0_1(tmp_path):
    loaded = data.load(write_npz(tmp_path))
    assert torch.equal(loaded.train.images, torch.from_numpy(pixels(6, 5, 4, 3)).permute(0, 3, 1, 2).float() / 255)
    assert loaded.train.labels.tolist() == [0, 1, 2, 2, 1, 0] and loaded.test.labels.tolist() == [0, 0, 2, 1]
    assert loaded.num_classes == 3 and loaded.writers is None and loaded.superclass is None


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
def test_npz_float_pixels_are_kept_as_they_are(tmp_path, dtype):
    values = (np.arange(6 * 20, dtype=dtype) - 50).reshape(6, 5, 4)
    images = data.load(write_npz(tmp_path, x_train=values, x_test=values[:4])).train.images
    assert images.dtype == torch.float32 and torch.equal(images[:, 0].flatten(), torch.arange(6. * 20) - 50)


@pytest.mark.parametrize("layout", [(0, 1, 2, 3), (0, 3, 1, 2)], ids=["NHWC", "NCHW"])
@pytest.mark.parametrize("channels", [1, 3])
def test_npz_layouts_give_the_same_images(tmp_path, layout, channels):
    train, test = pixels(6, 5, 4, channels), pixels(4, 5, 4, channels, seed=1)
    loaded = data.load(write_npz(tmp_path, x_train=train.transpose(layout), x_test=test.transpose(layout)))
    assert torch.equal(loaded.train.images, torch.from_numpy(train).permute(0, 3, 1, 2) / 255)
    assert torch.equal(loaded.test.images, torch.from_numpy(test).permute(0, 3, 1, 2) / 255)


def test_npz_without_a_channel_axis_is_grey(tmp_path):
    train, test = pixels(6, 5, 4), pixels(4, 5, 4)
    grey = data.load(write_npz(tmp_path, x_train=train, x_test=test)).train.images
    assert grey.shape == (6, 1, 5, 4) and torch.equal(grey[:, 0], torch.from_numpy(train) / 255)


def test_npz_ambiguous_layout_is_channels_last(tmp_path):
    train, test = pixels(6, 3, 5, 1), pixels(4, 3, 5, 1)
    assert data.load(write_npz(tmp_path, x_train=train, x_test=test)).train.images.shape == (6, 1, 3, 5)


def test_loaded_images_are_channels_last(tmp_path, digits):
    for set_ in (digits, data.load(write_npz(tmp_path))):
        assert all(part.images.is_contiguous(memory_format=torch.channels_last) for part in (set_.train, set_.test))


@pytest.mark.parametrize("labels", [np.array([[0], [1], [2], [2], [1], [0]]), np.array([0., 1, 2, 2, 1, 0]),
                                    np.array([0, 1, 2, 2, 1, 0], dtype=np.uint8)], ids=["column", "float", "uint8"])
def test_npz_accepts_labels_that_are_whole_numbers_in_any_type(tmp_path, labels):
    train = data.load(write_npz(tmp_path, y_train=labels)).train
    assert train.labels.dtype == torch.int64 and train.labels.tolist() == [0, 1, 2, 2, 1, 0]


def test_npz_writers_are_read(tmp_path):
    assert data.load(write_npz(tmp_path, writer_train=np.array([7, 7, 1, 1, 9, 9]))).writers.tolist() == [7, 7, 1, 1, 9, 9]


@pytest.mark.parametrize("changes, message", [
    ({"x_train": None}, r"x_train is missing, the file holds \['y_train', 'x_test', 'y_test'\]"),
    ({"y_test": None}, "y_test is missing"),
    ({"y_train": np.zeros(5, int)}, r"y_train has shape \[5\], not \[6\] .one per image"),
    ({"y_test": np.zeros((4, 3), int)}, r"y_test has shape \[4, 3\], not \[4\]"),
    ({"x_train": pixels(6, 20)}, r"x_train has shape \[6, 20\]: \[n, h, w\], \[n, h, w, c\] or"),
    ({"x_train": pixels(6, 5, 4, 2)}, r"x_train has shape \[6, 5, 4, 2\]: "),
    ({"x_test": pixels(4, 5, 5, 3)}, r"x_train has \[c, h, w\] \[3, 5, 4\], x_test has \[3, 5, 5\]"),
    ({"x_test": pixels(4, 5, 4)}, r"x_train has \[c, h, w\] \[3, 5, 4\], x_test has \[1, 5, 4\]"),
    ({"x_train": pixels(6, 5, 4, 3).astype(np.int64)}, "x_train has type int64: uint8 or float"),
    ({"x_test": np.full((4, 5, 4, 3), np.nan)}, "x_test holds pixels that are not finite"),
    ({"x_train": np.full((6, 5, 4, 3), 1e300)}, "x_train holds pixels that are not finite"),
    ({"x_train": pixels(0, 5, 4, 3), "y_train": np.zeros(0, int)}, "x_train is empty"),
    ({"x_test": pixels(0, 5, 4, 3), "y_test": np.zeros(0, int)}, "x_test is empty"),
    ({"y_train": np.array([0, 1, 2, 2, 1, -1])}, "y_train holds values other than whole numbers from 0"),
    ({"y_test": np.array([0, 1, 1.5, 2])}, "y_test holds values other than whole numbers from 0"),
    ({"y_test": np.array([0, 1, np.nan, 2])}, "y_test holds values other than whole numbers from 0"),
    ({"y_test": np.array(["a", "b", "c", "d"])}, "y_test holds values other than whole numbers from 0"),
    ({"y_test": np.array([0, 1, 3, 2])}, "y_test holds label 3, y_train none above 2"),
    ({"y_train": np.zeros(6, int), "y_test": np.zeros(4, int)}, "y_train holds label 0 only: at least two classes"),
    ({"writer_train": np.zeros(5, int)}, r"writer_train has shape \[5\]"),
    ({"writer_train": np.array([0, 0, 0, 0, 0, .5])}, "writer_train holds values other than"),
    ({"y_train": np.array([0, 1, 2, 2, 1, None], dtype=object)}, "y_train cannot be read: Object arrays cannot be loaded"),
])
@pytest.mark.filterwarnings("error")
def test_npz_mistakes_are_one_line_with_file_and_array(tmp_path, changes, message):
    path = write_npz(tmp_path, **changes)
    with pytest.raises(ValueError, match=message) as error:
        data.load(path)
    assert one_line(error) and str(error.value).startswith(f"{path}: ")


def test_npz_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="nothing.npz: no such file"):
        data.load(tmp_path / "nothing.npz")


@pytest.mark.parametrize(
    "content", [b"", b"not a zip", pickle.dumps({"x_train": 1}), gzip.compress(b"x")],
    ids=["empty", "text", "pickle", "gzip"])        # not the bytes: gzip's hold the time
def test_npz_that_is_no_zip(tmp_path, content):
    (tmp_path / "set.npz").write_bytes(content)
    with pytest.raises(ValueError, match="set.npz: not an .npz file, or cut short"):
        data.load(tmp_path / "set.npz")


def test_npz_cut_short(tmp_path):
    path = write_npz(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="set.npz: not an .npz file, or cut short"):
        data.load(path)


def test_npz_with_a_damaged_array_names_it(tmp_path):
    path = write_npz(tmp_path)
    content = bytearray(path.read_bytes())
    content[300] ^= 255                                                         # inside the pixels of x_train
    path.write_bytes(content)
    with pytest.raises(ValueError, match="set.npz: x_train cannot be read: Bad CRC-32") as error:
        data.load(path)
    assert one_line(error)


# ------------------------------------------------------------------------------------------------------ image folders
def colour(seed, *, height=5, width=4):
    return pixels(height, width, 3, seed=seed)


def test_folder_reads_classes_and_files_in_sorted_order(tmp_path):
    write_images(tmp_path, train={"cat": [colour(0), colour(1)], "ant": [colour(2)]},
                 test={"cat": [colour(3)], "ant": [colour(4)]})
    loaded = data.load(tmp_path)
    expected = np.stack([colour(2), colour(0), colour(1)])
    assert torch.equal(loaded.train.images, torch.from_numpy(expected).permute(0, 3, 1, 2) / 255)
    assert loaded.train.labels.tolist() == [0, 1, 1] and loaded.test.labels.tolist() == [0, 1] and loaded.num_classes == 2


def test_folder_of_grey_images_has_one_channel(tmp_path):
    images = {"a": [pixels(5, 4)], "b": [pixels(5, 4, seed=1)]}
    assert data.load(write_images(tmp_path, images, images)).train.images.shape == (2, 1, 5, 4)


def test_folder_with_a_grey_image_among_coloured_ones_is_rgb(tmp_path):
    grey = pixels(5, 4)
    images = data.load(write_images(tmp_path, {"a": [grey], "b": [colour(0)]}, {"a": [colour(1)]})).train.images
    assert images.shape == (2, 3, 5, 4) and all(torch.equal(images[0, c], torch.from_numpy(grey) / 255) for c in range(3))


def test_folder_leaves_cinic10s_validation_part_and_hidden_files_alone(tmp_path):
    write_images(tmp_path, {"a": [colour(0)], "b": [colour(1)]}, {"a": [colour(2)]})
    (tmp_path / "valid" / "c").mkdir(parents=True)
    (tmp_path / "train" / ".DS_Store").write_bytes(b"x")
    (tmp_path / "train" / "a" / ".hidden").write_bytes(b"x")
    assert data.load(tmp_path).num_classes == 2


def test_folder_with_a_truncated_image_names_it(tmp_path):
    write_images(tmp_path, {"a": [pixels(40, 40, 3)] * 2, "b": [pixels(40, 40, 3)]}, {"a": [pixels(40, 40, 3)]})
    bad = tmp_path / "train" / "a" / "1.png"
    bad.write_bytes(bad.read_bytes()[:300])
    with pytest.raises(ValueError, match="1.png: cannot be read as an image") as error:
        data.load(tmp_path)
    assert one_line(error) and str(bad) in str(error.value)


@pytest.mark.parametrize("name, content, message", [
    ("train/a/notes.txt", b"hello", "notes.txt: cannot be read as an image"),
    ("train/readme.txt", b"hello", "readme.txt: not a folder"),
    ("train/a/9.png", (6, 4), r"9.png: size \(6, 4\), the first image has \(5, 4\)"),
    ("train/a/9.png", "16 bits", "9.png: cannot be read as an image .more than 8 bits per pixel"),
    ("test/c/0.png", (5, 4), "c: a class without training images"),
    ("train/c", None, "c: no images"),
])
def test_folder_mistakes_are_one_line_that_names_the_place(tmp_path, name, content, message):
    from PIL import Image
    write_images(tmp_path, {"a": [colour(0)], "b": [colour(1)]}, {"a": [colour(2)]})
    path = tmp_path / name
    (path if content is None else path.parent).mkdir(exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        Image.fromarray(np.zeros((5, 4), np.uint16) if content == "16 bits" else pixels(*content, 3)).save(path)
    with pytest.raises(ValueError, match=message) as error:
        data.load(tmp_path)
    assert one_line(error)


def test_folder_without_a_test_part_says_what_is_expected(tmp_path):
    with pytest.raises(ValueError, match="test: not a folder; expected train/CLASS/FILE, test/CLASS/FILE"):
        data.load(write_images(tmp_path, {"a": [colour(0)], "b": [colour(1)]}))


# -------------------------------------------------------------------------------------------------- torchvision's sets
def write_idx(path, array):
    """MNIST's file format: magic number (type 8, number of axes), the axes as big-endian int32, the bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = np.array([8 * 256 + array.ndim, *array.shape], dtype=">i4")
    path.write_bytes(header.tobytes() + array.astype(np.uint8).tobytes())


def write_idx_set(folder, names, first_label=0):
    """Six training and four test images; the first label is 0 or 1."""
    arrays = {}
    for part, size, name in zip(("train", "test"), (6, 4), names):
        arrays[part] = pixels(size, 28, 28, seed=size), np.arange(size) % 3 + first_label
        write_idx(folder / f"{name}-images-idx3-ubyte", arrays[part][0])
        write_idx(folder / f"{name}-labels-idx1-ubyte", arrays[part][1])
    return arrays


@pytest.mark.parametrize("name, folder", [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_files_that_are_there_are_read(tmp_path, name, folder):
    arrays = write_idx_set(tmp_path / folder / "raw", ("train", "t10k"))
    loaded = data.load(name, tmp_path)
    for part, (images, labels) in zip((loaded.train, loaded.test), arrays.values()):
        assert torch.equal(part.images[:, 0], torch.from_numpy(images) / 255) and part.labels.tolist() == labels.tolist()


def test_emnist_letters_are_upright_and_count_from_0(tmp_path):
    arrays = write_idx_set(tmp_path / "EMNIST" / "raw", ("emnist-letters-train", "emnist-letters-test"), first_label=1)
    loaded = data.load("emnist", tmp_path)
    for part, (images, labels) in zip((loaded.train, loaded.test), arrays.values()):
        assert torch.equal(part.images[:, 0], torch.from_numpy(images.swapaxes(1, 2).copy()) / 255)
        assert part.labels.tolist() == (labels - 1).tolist()


@pytest.fixture
def cifar100_files(tmp_path, monkeypatch):
    """CIFAR-100's three pickles with six and four images, and torchvision told their checksums."""
    from torchvision import datasets
    folder, arrays = tmp_path / "cifar-100-python", {}
    folder.mkdir()

    def write(name, content):
        (folder / name).write_bytes(pickle.dumps(content))
        return hashlib.md5((folder / name).read_bytes()).hexdigest()
    for part, size in (("train", 6), ("test", 4)):
        arrays[part] = {"data": pixels(size, 3 * 32 * 32, seed=size), "fine_labels": [i % 3 for i in range(size)],
                        "coarse_labels": [19 - i % 3 for i in range(size)]}
        monkeypatch.setattr(datasets.CIFAR100, f"{part}_list", [[part, write(part, arrays[part])]])
    checksum = write("meta", {"fine_label_names": ["a", "b", "c"]})
    monkeypatch.setattr(datasets.CIFAR100, "meta", {"filename": "meta", "key": "fine_label_names", "md5": checksum})
    return tmp_path, arrays


def test_cifar100_has_its_images_fine_labels_and_superclasses(cifar100_files):
    root, arrays = cifar100_files
    loaded = data.load("cifar100", root)
    assert torch.equal(loaded.train.images, torch.from_numpy(arrays["train"]["data"].reshape(6, 3, 32, 32)) / 255)
    assert loaded.train.labels.tolist() == [0, 1, 2, 0, 1, 2] and loaded.test.labels.tolist() == [0, 1, 2, 0]
    assert loaded.superclass.tolist() == [19, 18, 17, 19, 18, 17] and loaded.superclass.dtype == np.int64


@pytest.mark.parametrize("name, class_name", sorted(data.TORCHVISION.items()))
@pytest.mark.parametrize("failure", [URLError("no route to host"), RuntimeError("Error downloading x:\nTried y,\ngot z"),
                                     OSError("read-only file system")])
def test_a_failed_download_is_one_line_that_names_set_and_root(tmp_path, monkeypatch, name, class_name, failure):
    from torchvision import datasets

    def download(self):
        raise failure
    monkeypatch.setattr(getattr(datasets, class_name), "download", download)
    with pytest.raises(ValueError, match=f"^{name}: can be neither read under '{tmp_path}' nor downloaded") as error:
        data.load(name, tmp_path)
    assert one_line(error) and "or use --dataset glyphs" in str(error.value)


def test_a_damaged_file_is_one_line_too(tmp_path):
    write_idx_set(tmp_path / "MNIST" / "raw", ("train", "t10k"))
    path = tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(ValueError, match="^mnist: can be neither read under") as error:
        data.load("mnist", tmp_path)
    assert one_line(error)


def test_nothing_is_downloaded_when_the_files_are_there(tmp_path, monkeypatch):
    from torchvision import datasets
    write_idx_set(tmp_path / "MNIST" / "raw", ("train", "t10k"))
    monkeypatch.setattr(datasets.MNIST, "download", lambda self: pytest.fail("downloads"))
    assert len(data.load("mnist", tmp_path).train.labels) == 6


# ---------------------------------------------------------------------------------------------------- pixels to tensors
def test_normalized_training_images_have_mean_0_and_std_1_in_each_channel():
    images = torch.from_numpy(rng().normal([1., -2., 5.], [.1, 3., 2.], size=(50, 8, 9, 3))).permute(0, 3, 1, 2)
    normal = data.normalize(images, *data.statistics(images))
    assert torch.allclose(normal.mean((0, 2, 3)), torch.zeros(3).double(), atol=1e-12)
    assert torch.allclose(normal.square().mean((0, 2, 3)), torch.ones(3).double(), atol=1e-12)


def test_statistics_by_hand():
    """Pixels 0, 0, 0, 1: mean 1/4, population variance 1/4 - 1/16."""
    mean, std = data.statistics(torch.tensor([0., 0, 0, 1]).view(2, 1, 1, 2))
    assert mean.tolist() == [1 / 4] and torch.allclose(std, torch.tensor([(1 / 4 - 1 / 16) ** .5]))


def test_a_constant_channel_becomes_0():
    images = torch.stack([torch.full((4, 5, 5), .7), torch.rand(4, 5, 5, generator=torch.Generator().manual_seed(0))], 1)
    normal = data.normalize(images, *data.statistics(images))
    assert normal[:, 0].abs().max() < 1e-6 and normal.isfinite().all()


def test_x5_public_images_are_normalized_with_the_tasks_statistics():
    task, public = torch.tensor([0., 2.]).view(2, 1, 1, 1), torch.tensor([3.]).view(1, 1, 1, 1)
    assert data.normalize(public, *data.statistics(task)).item() == (3 - 1) / 1


def test_normalise_gives_channels_last_float32_and_changes_no_input():
    images = torch.rand(4, 3, 5, 6, generator=torch.Generator().manual_seed(0))
    before = images.clone()
    normal = data.normalize(images, *data.statistics(images))
    assert normal.is_contiguous(memory_format=torch.channels_last) and normal.dtype == torch.float32
    assert torch.equal(images, before)


@pytest.mark.parametrize("channels, shape", [(3, (1, 16, 16)), (1, (3, 32, 32)), (3, (3, 16, 20)), (1, (1, 28, 28))])
def test_adapt_gives_the_tasks_shape_and_stays_in_0_1(channels, shape):
    images = torch.from_numpy(pixels(4, channels, 24, 24)) / 255
    adapted = data.adapt(images, shape)
    assert adapted.shape == (4, *shape) and adapted.is_contiguous(memory_format=torch.channels_last)
    assert adapted.min() >= 0 and adapted.max() <= 1 + 1e-6


def test_adapt_colour_to_grey_is_luminance():
    image = torch.tensor([1., .5, .25]).view(1, 3, 1, 1).expand(1, 3, 4, 4)
    grey = .299 * 1 + .587 * .5 + .114 * .25
    assert torch.allclose(data.adapt(image, (1, 4, 4)), torch.full((1, 1, 4, 4), grey))


def test_adapt_grey_to_colour_is_three_equal_channels():
    image = torch.from_numpy(pixels(2, 1, 4, 4)) / 255
    adapted = data.adapt(image, (3, 4, 4))
    assert all(torch.equal(adapted[:, [c]], image) for c in range(3))


def test_adapt_averages_when_it_shrinks():
    """Antialiasing: a chessboard of single pixels becomes grey away from the border; plain bilinear would alias."""
    board = ((torch.arange(32)[:, None] + torch.arange(32)) % 2).float().view(1, 1, 32, 32)
    assert torch.allclose(data.adapt(board, (1, 8, 8))[..., 1:-1, 1:-1], torch.tensor(.5), atol=1e-6)


def test_adapt_leaves_images_of_the_right_shape_as_they_are():
    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(data.adapt(images, (3, 8, 8)), images)


@pytest.mark.parametrize("channels, wanted", [(4, 3), (3, 2)])
def test_adapt_refuses_other_numbers_of_channels(channels, wanted):
    with pytest.raises(ValueError, match=f"cannot adapt {channels} channels to {wanted}"):
        data.adapt(torch.zeros(1, channels, 4, 4), (wanted, 4, 4))


# ------------------------------------------------------------------------------------------------------- augmentation
def crops(image, padding):
    """Every crop of one padded image [c, h, w], plain and mirrored, by slices."""
    channels, height, width = image.shape
    padded = torch.zeros(channels, height + 2 * padding, width + 2 * padding)
    padded[:, padding:padding + height, padding:padding + width] = image
    for top in range(2 * padding + 1):
        for left in range(2 * padding + 1):
            crop = padded[:, top:top + height, left:left + width]
            yield (top, left, False), crop
            yield (top, left, True), torch.stack([crop[:, :, width - 1 - j] for j in range(width)], dim=2)


def test_crop_and_flip_makes_each_image_one_of_its_own_crops_and_all_of_them_happen():
    """900 images of one picture, against a slow loop over its 3 x 3 x 2 crops: each about 50 times, none below 20."""
    picture = torch.rand(3, 5, 6, generator=torch.Generator().manual_seed(0)) + .1
    found = dict.fromkeys([key for key, _ in crops(picture, 1)], 0)
    for image in data.crop_and_flip(picture.expand(900, 3, 5, 6), rng(), padding=1):
        matches = [key for key, crop in crops(picture, 1) if torch.equal(crop, image)]
        assert len(matches) == 1
        found[matches[0]] += 1
    assert len(found) == 18 and min(found.values()) > 20


def test_crop_and_flip_keeps_rows_apart():
    images = torch.arange(1., 9.).view(8, 1, 1, 1).expand(8, 3, 6, 6)
    for i, image in enumerate(data.crop_and_flip(images, rng(), padding=2)):
        assert set(image.unique().tolist()) <= {0., i + 1.} and (image == i + 1).any()


def test_crop_and_flip_is_fixed_by_the_generator():
    images = torch.rand(20, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    state = torch.get_rng_state()
    assert torch.equal(data.crop_and_flip(images, rng(3)), data.crop_and_flip(images, rng(3)))
    assert not torch.equal(data.crop_and_flip(images, rng(3)), data.crop_and_flip(images, rng(4)))
    assert torch.equal(torch.get_rng_state(), state)


def test_crop_and_flip_is_channels_last_and_changes_no_input():
    images = torch.rand(5, 3, 8, 7, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=torch.channels_last)
    before = images.clone()
    augmented = data.crop_and_flip(images, rng())
    assert augmented.is_contiguous(memory_format=torch.channels_last) and augmented.shape == images.shape
    assert torch.equal(images, before)


def test_crop_and_flip_without_padding_only_mirrors():
    images = torch.rand(30, 1, 4, 5, generator=torch.Generator().manual_seed(0))
    same = (data.crop_and_flip(images, rng(), padding=0) == images).flatten(1).all(1)
    mirrored = (data.crop_and_flip(images, rng(), padding=0) == images.flip(3)).flatten(1).all(1)
    assert (same ^ mirrored).all() and same.any() and mirrored.any()


# ------------------------------------------------------------------------------------ fewer classes, superclasses as labels

def toy_set(num_classes=16, copies=6, test_copies=2, channels=1, superclass=None, seed=0):
    """Rows in random order; the pixels of an image of class c lie in [c, c + 1), and no two images are alike; writer = row % 5."""
    parts = []
    for count in (copies, test_copies):
        labels = rng(seed + count).permutation(np.repeat(np.arange(num_classes), count))
        pixels = labels[:, None, None, None] + rng(seed + 7).random((len(labels), channels, 4, 4))
        images = torch.tensor(pixels, dtype=torch.float32).contiguous(memory_format=torch.channels_last)
        parts.append(Data(images, torch.from_numpy(labels)))
    rows = len(parts[0].labels)
    return data.Dataset(*parts, num_classes, writers=np.arange(rows) % 5,
                        superclass=None if superclass is None else np.array(superclass)[parts[0].labels.numpy()])


@pytest.mark.parametrize("classes", [[3, 5], [5, 3], [10, 11, 12, 13, 14, 15], [10, 2, 0, 15, 1, 3], list(range(16))[::-1]])
def test_b24_only_numbers_classes_in_the_order_given_whatever_the_old_numbers_were(classes):
    """The pixels still tell the old class: also where a new number (0 ... 5) is an old one that comes later, or 10 ... 15 stay."""
    before = toy_set()
    kept = data.only(before, classes)
    assert kept.num_classes == len(classes)
    for part, old, copies in [(kept.train, before.train, 6), (kept.test, before.test, 2)]:
        assert torch.equal(torch.tensor(classes)[part.labels], part.images[:, 0, 0, 0].long())
        assert torch.equal(part.images, old.images[torch.isin(old.labels, torch.tensor(classes))])      # and rows keep their order
        assert part.labels.bincount().tolist() == [copies] * len(classes) and part.labels.dtype == torch.int64


def test_only_keeps_writers_superclasses_and_subclasses_of_the_rows_that_stay():
    before = toy_set(superclass=[c // 4 for c in range(16)])
    before = before._replace(subclass=100 + before.train.labels.numpy())
    kept, rows = data.only(before, [9, 2]), np.flatnonzero(np.isin(before.train.labels.numpy(), [9, 2]))
    for name in ("writers", "superclass", "subclass"):
        assert np.array_equal(getattr(kept, name), getattr(before, name)[rows])
    assert data.only(toy_set()._replace(writers=None), [9, 2])[3:] == (None, None, None)


def test_only_changes_no_input_and_stays_channels_last():
    before = toy_set(channels=3)
    copied = before.train.images.clone(), before.train.labels.clone()
    kept = data.only(before, [4, 1])
    assert torch.equal(before.train.images, copied[0]) and torch.equal(before.train.labels, copied[1])
    assert all(part.images.is_contiguous(memory_format=torch.channels_last) for part in (kept.train, kept.test))


@pytest.mark.parametrize("classes", [[3], [], [3, 3], [3, 5, 3], [3, 16], [-1, 3]])
def test_only_refuses_classes_that_are_not_there_or_too_few(classes):
    with pytest.raises(ValueError, match=f"{','.join(map(str, classes))}: give two or more different classes from 0 to 15") as error:
        data.only(toy_set(), classes)
    assert one_line(error)


SUPERCLASS = [2, 0, 1, 1, 0, 2, 2]               # of the classes 0 ... 6


def test_by_superclass_labels_both_parts_with_superclasses_and_keeps_the_old_labels():
    before = toy_set(7, superclass=SUPERCLASS)
    after = data.by_superclass(before, "toy")
    for part, old in [(after.train, before.train), (after.test, before.test)]:
        assert part.labels.tolist() == [SUPERCLASS[label] for label in old.labels.tolist()] and part.labels.dtype == torch.int64
        assert torch.equal(part.images, old.images)
    assert after.num_classes == 3 and np.array_equal(after.subclass, before.train.labels)
    assert np.array_equal(after.writers, before.writers)
    assert np.array_equal(before.superclass, [SUPERCLASS[label] for label in before.train.labels.tolist()])


def test_by_superclass_then_only_takes_whole_superclasses():
    """As --partition by_subclass --classes 2,0: the numbers are those of superclasses."""
    kept = data.only(data.by_superclass(toy_set(7, superclass=SUPERCLASS), "toy"), [2, 0])
    pairs = set(zip(kept.train.labels.tolist(), kept.subclass.tolist()))
    assert pairs == {(0, 0), (0, 5), (0, 6), (1, 1), (1, 4)}
    assert sorted(kept.test.images[:, 0, 0, 0].long().unique().tolist()) == [0, 1, 4, 5, 6]


def test_by_superclass_without_superclasses_is_one_line_that_names_the_set():
    with pytest.raises(ValueError, match="--partition by_subclass: glyphs has no superclasses, use cifar100") as error:
        data.by_superclass(toy_set(), "glyphs")
    assert one_line(error)


def test_cifar100s_superclasses_become_its_labels(cifar100_files):
    root, _ = cifar100_files
    after = data.by_superclass(data.load("cifar100", root), "cifar100")
    assert after.train.labels.tolist() == [19, 18, 17] * 2 and after.test.labels.tolist() == [19, 18, 17, 19]
    assert after.subclass.tolist() == [0, 1, 2] * 2 and after.num_classes == 20


# --------------------------------------------------------------------------------------------- from flags to a federation

FLAGS = {"dataset": "toy", "data_root": "data", "classes": None, "partition": "iid", "clients": 3, "alpha": 0.5, "per_class": 2,
         "public": None, "public_size": None, "joint": False, "validation": None, "model": ["mlp"], "server_model": "mlp",
         "augment": False, "amp": False}


@pytest.fixture
def sets(monkeypatch):
    """Two sets more that `load` knows: the task `toy`, 7 grey classes with superclasses, and `foreign`, 4 coloured ones."""
    made = {"toy": toy_set(7, copies=12, test_copies=4, superclass=SUPERCLASS), "foreign": toy_set(4, channels=3, seed=1)}
    for name, dataset in made.items():
        monkeypatch.setitem(data.DATASETS, name, lambda root, dataset=dataset: dataset)
    return made


def built(seed=0, **changes):
    flags = FLAGS | changes
    dataset, foreign = federation.load(flags)
    return federation.build(flags, dataset, foreign, *federation.split(flags, dataset, seed), seed, torch.device("cpu"))


def classes_of(part, sets):
    """The class that the pixels of each image tell, once normalisation by the task is undone."""
    mean, std = data.statistics(sets["toy"].train.images)
    return (part.images[:, 0, 0, 0] * std[0] + mean[0]).add(1e-4).floor().long()


def test_in_a_joint_label_space_the_tasks_labels_are_shifted_behind_the_public_classes(sets):
    fed = built(public="foreign", joint=True, validation=0.2)
    assert fed.num_classes == 4 + 7
    for part in (*fed.private, fed.test, fed.validation):
        assert torch.equal(part.labels, classes_of(part, sets) + 4)
    everyone = torch.cat([part.labels for part in (*fed.private, fed.validation)])
    assert everyone.bincount(minlength=11).tolist() == [0] * 4 + [12] * 7


def test_in_a_joint_label_space_public_labels_and_test_set_stay_as_they_are(sets):
    fed = built(public="foreign", joint=True)
    for part, old in [(fed.public, sets["foreign"].train), (fed.public_test, sets["foreign"].test)]:
        assert torch.equal(part.labels, old.labels) and part.images.shape == (len(old.labels), 1, 4, 4)
    mean, std = data.statistics(sets["toy"].train.images)
    pixels = data.adapt(sets["foreign"].test.images, (1, 4, 4))
    assert torch.allclose(fed.public_test.images, (pixels - mean.item()) / std.item(), atol=1e-5)


def test_in_a_joint_label_space_networks_have_an_output_for_every_class_of_both(sets):
    fed = built(public="foreign", joint=True, model=["mlp", "cnn"], server_model="cnn_large")
    networks = [fed.client_model(0), fed.client_model(1), fed.server_model()]
    assert [network(fed.test.images[:2]).shape for network in networks] == [(2, 11)] * 3


def test_without_a_joint_label_space_a_foreign_set_gives_images_alone_and_shifts_nothing(sets):
    fed = built(public="foreign")
    assert fed.num_classes == 7 and fed.public.labels is None and fed.public_test is None and len(fed.public.images) == 4 * 6
    assert all(torch.equal(part.labels, classes_of(part, sets)) for part in (*fed.private, fed.test))
    assert fed.client_model(0)(fed.test.images[:2]).shape == fed.server_model()(fed.test.images[:2]).shape == (2, 7)


def test_a_part_of_the_joint_public_set_keeps_images_and_labels_together(sets):
    fed, whole = built(public="foreign", joint=True, public_size=9), built(public="foreign", joint=True)
    label_of = {image.numpy().tobytes(): label for image, label in zip(whole.public.images, whole.public.labels.tolist())}
    assert len(fed.public.images) == 9 and fed.public_test.labels.tolist() == whole.public_test.labels.tolist()
    assert fed.public.labels.tolist() == [label_of[image.numpy().tobytes()] for image in fed.public.images]


@pytest.mark.parametrize("public, share", [("half", 1 / 2), ("fifth", 1 / 5)])
def test_public_samples_held_out_of_the_task_keep_its_labels(sets, public, share):
    fed = built(public=public)
    assert fed.num_classes == 7 and torch.equal(fed.public.labels, classes_of(fed.public, sets))
    assert len(fed.public.labels) == round(share * 7 * 12) and (fed.public_test is not None) == (public == "half")


def test_joining_changes_nothing_in_the_sets_that_all_seeds_share(sets):
    flags = FLAGS | {"public": "foreign", "joint": True}
    dataset, foreign = federation.load(flags)
    before = [part.labels.clone() for x in (dataset, foreign) for part in (x.train, x.test)]
    for seed in (0, 1):
        fed = federation.build(flags, dataset, foreign, *federation.split(flags, dataset, seed), seed, torch.device("cpu"))
        assert fed.test.labels.min() == 4 and fed.test.labels.max() == 10
    assert all(torch.equal(a, b) for a, b in zip(before, [part.labels for x in (dataset, foreign) for part in (x.train, x.test)]))


def test_load_takes_the_classes_asked_for_and_normalises_by_them_alone(sets):
    dataset, foreign = federation.load(FLAGS | {"classes": [6, 0]})
    images = dataset.train.images
    assert dataset.num_classes == 2 and foreign is None
    assert len(dataset.train.labels) == 2 * 12 and len(dataset.test.labels) == 2 * 4
    assert images.mean().abs() < 1e-5 and abs(images.square().mean() - 1) < 1e-4
    assert torch.equal(dataset.train.labels == 0, images[:, 0, 0, 0] > 0)                # class 6, the brighter one, comes first
    assert [len(part) for part in federation.split(FLAGS | {"classes": [6, 0]}, dataset, 0)[0]] == [8, 8, 8]


def test_load_refuses_images_too_small_for_any_of_the_clients_networks(sets):
    with pytest.raises(ValueError, match="^fedmd5 needs images of at least 12x12 pixels, these have 4x4$"):
        federation.load(FLAGS | {"model": ["mlp", "fedmd5"]})


@pytest.mark.parametrize("public", [None, "half"])
def test_split_few_per_class_gives_each_client_that_many_of_each(sets, public):
    flags = FLAGS | {"partition": "few_per_class", "public": public, "per_class": 2}
    dataset, _ = federation.load(flags)
    parts, public_rows, _ = federation.split(flags, dataset, 0)
    rows = np.concatenate(parts)
    assert [dataset.train.labels[part].bincount().tolist() for part in parts] == [[2] * 7] * 3 and len(np.unique(rows)) == 3 * 2 * 7
    assert public is None or not np.isin(rows, public_rows).any()


@pytest.mark.parametrize("public", [None, "half"])
def test_split_by_subclass_gives_each_client_one_subclass_of_each_superclass(sets, public):
    flags = FLAGS | {"partition": "by_subclass", "public": public, "clients": 2}
    dataset, _ = federation.load(flags)
    parts, public_rows, _ = federation.split(flags, dataset, 0)
    assert dataset.num_classes == 3 and sets["toy"].num_classes == 7
    held = [set(zip(dataset.train.labels[part].tolist(), dataset.subclass[part].tolist())) for part in parts]
    for own in held:
        assert sorted(superclass for superclass, _ in own) == [0, 1, 2]
        assert all(SUPERCLASS[c] == superclass for superclass, c in own)
    assert not held[0] & held[1] and (public is None or not np.isin(np.concatenate(parts), public_rows).any())


@pytest.mark.parametrize("per_class", [1, 2])
def test_split_by_subclass_leaves_each_client_few_samples_of_each_superclass(sets, per_class):
    flags = FLAGS | {"partition": "by_subclass", "per_class": per_class, "clients": 2}
    dataset, _ = federation.load(flags)
    parts, _, _ = federation.split(flags, dataset, 0)
    assert all(np.bincount(dataset.train.labels[part], minlength=3).tolist() == [per_class] * 3 for part in parts)
    with pytest.raises(ValueError, match="has 12 samples"):
        federation.split(flags | {"per_class": 13}, dataset, 0)


def test_split_by_subclass_with_classes_takes_those_superclasses(sets):
    fed = built(partition="by_subclass", classes=[2, 0], clients=2)
    assert fed.num_classes == 2 and all(sorted(private.labels.unique().tolist()) == [0, 1] for private in fed.private)


@pytest.mark.parametrize("public", [None, "half"])
def test_split_single_writer_gives_each_client_all_that_one_writer_left_in_private(sets, public):
    flags = FLAGS | {"partition": "single_writer", "public": public, "clients": 4}
    dataset, _ = federation.load(flags)
    parts, public_rows, _ = federation.split(flags, dataset, 0)
    private = np.setdiff1d(np.arange(7 * 12), [] if public is None else public_rows)
    writers = [set(dataset.writers[part].tolist()) for part in parts]
    assert all(len(own) == 1 for own in writers) and len(set.union(*writers)) == 4
    for part, [writer] in zip(parts, writers):
        assert np.array_equal(part, private[dataset.writers[private] == writer])


@pytest.mark.parametrize("kind", ["by_writer", "single_writer"])
def test_split_by_writers_nobody_knows_is_one_line(sets, kind):
    flags = FLAGS | {"partition": kind}
    dataset, _ = federation.load(flags)
    with pytest.raises(ValueError, match=f"--partition {kind}: toy does not name its writers") as error:
        federation.split(flags, dataset._replace(writers=None), 0)
    assert one_line(error)


def test_load_by_subclass_needs_superclasses(sets):
    with pytest.raises(ValueError, match="--partition by_subclass: foreign has no superclasses"):
        federation.load(FLAGS | {"dataset": "foreign", "partition": "by_subclass"})


@pytest.mark.parametrize("kind", federation.PARTITIONS)
def test_every_partition_is_reachable_and_another_seed_gives_another_one(sets, kind):
    flags = FLAGS | {"partition": kind, "alpha": 100.0, "clients": 2}
    if kind == "fedgkt_table6":                                              # for 16 clients and 10 classes
        flags |= {"dataset": "glyphs", "clients": 16}
    dataset, _ = federation.load(flags)
    splits = [[tuple(part) for part in federation.split(flags, dataset, seed)[0]] for seed in (0, 0, *range(1, 9))]
    assert splits[0] == splits[1] and len(set(map(tuple, splits))) > 2
    assert all(len(part) and part == tuple(sorted(set(part))) for part in splits[0])


def test_the_servers_network_has_a_seed_of_its_own(sets):
    made = [(built(), 0), (built(), 0), (built(), 1), (built(seed=1), 0)]
    weights = [list(fed.server_model(init).parameters()) for fed, init in made]
    assert all(torch.equal(a, b) for a, b in zip(weights[0], weights[1]))
    assert not torch.equal(weights[0][0], weights[2][0]) and not torch.equal(weights[0][0], weights[3][0])
    assert not torch.equal(weights[0][0], next(built().client_model(0).parameters()))    # though here it is the clients' network
