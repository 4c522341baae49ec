"""LEAF's FEMNIST and EMNIST's letters become .npz files that the loader reads."""
import json

import numpy as np
import pytest
import torch

from data import emnist_to_npz
from data.leaf_to_npz import convert
from data.load import load_dataset


def write(path, **users):
    """A file of LEAF: each user has these labels, and images of one gray, label / 255."""
    path.parent.mkdir(parents=True, exist_ok=True)
    own = {user: {"x": [[c / 255] * 784 for c in y], "y": y} for user, y in users.items()}
    path.write_text(json.dumps({"users": [*users], "user_data": own}))


@pytest.fixture
def leaf(tmp_path):
    """The writers of training images are f01, f05 and f07."""
    write(tmp_path / "train" / "0.json", f07=[1, 0, 2], f03=[])
    write(tmp_path / "train" / "1.json", f05=[1, 1], f01=[2])
    write(tmp_path / "test" / "0.json", f03=[2], f99=[0])
    return tmp_path


def test_leafs_writers_and_labels_are_read_from_the_npz_file(leaf):
    convert(leaf, leaf / "femnist.npz")
    loaded = load_dataset(leaf / "femnist.npz")
    assert loaded.train.labels.tolist() == [1, 0, 2, 1, 1, 2]
    assert loaded.test.labels.tolist() == [2, 0]
    assert loaded.writers.tolist() == [2, 2, 2, 1, 1, 0]


def test_leafs_dark_ink_becomes_bright(leaf):
    convert(leaf, leaf / "femnist.npz")
    for images, labels in load_dataset(leaf / "femnist.npz")[:2]:
        bright = (255 - labels).to(torch.uint8)[:, None, None, None]
        assert torch.equal(images, bright.expand(-1, 1, 28, 28))


def test_emnists_images_are_upright_its_labels_begin_at_0_and_it_names_writers(tmp_path):
    """In the file a pixel's number is 28 x its column + its row."""
    savemat = pytest.importorskip("scipy.io", reason="scipy writes the .mat file").savemat
    upright = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    columns = np.stack([image.flatten(order="F") for image in upright])
    labels, writers = np.array([[26], [1], [2], [1], [6]], np.uint8), np.array([[7], [7], [9.0]])
    savemat(tmp_path / "letters.mat", {"dataset": {
        "train": {"images": columns[:3], "labels": labels[:3], "writers": writers},
        "test": {"images": columns[3:], "labels": labels[3:], "writers": writers[:2]},
        "mapping": np.array([[1, 65, 97]])}})
    emnist_to_npz.convert(tmp_path / "letters.mat", tmp_path / "letters.npz")
    loaded = load_dataset(tmp_path / "letters.npz")
    images = torch.cat([loaded.train.images, loaded.test.images])
    assert torch.equal(images, torch.from_numpy(upright)[:, None])
    assert loaded.train.labels.tolist() == [25, 0, 1] and loaded.test.labels.tolist() == [0, 5]
    assert loaded.writers.tolist() == [7, 7, 9]
