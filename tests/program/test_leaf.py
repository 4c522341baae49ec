"""LEAF's FEMNIST becomes an .npz file that the loader reads."""
import json

import pytest
import torch

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


@pytest.mark.parametrize("old, new, words", [
    ('"y": [2]', '"y": [2, 2]', "1.json: f01 has 1 images and 2 labels"),
    (f"[{1 / 255}", "[1.1", "1.json: f05 has pixels outside 0..1"),
    (f"[{1 / 255}", "[NaN", "1.json: f05 has pixels outside 0..1")])
def test_a_mistake_in_a_leaf_file_is_named(leaf, old, new, words):
    path = leaf / "train" / "1.json"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match=words):
        convert(leaf, leaf / "femnist.npz")
