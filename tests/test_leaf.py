"""LEAF's FEMNIST is read as it stands, but for ink, which is 1; a mistake names its file."""
import json

import numpy as np
import pytest

import data


def write(path, **users):
    """A file of LEAF: each user has these labels, and images of one gray, label / 10."""
    path.parent.mkdir(parents=True, exist_ok=True)
    own = {user: {"x": [[c / 10] * 783 + [1.0] for c in y], "y": y} for user, y in users.items()}
    sizes = [len(y) for y in users.values()]
    path.write_text(json.dumps({"users": [*users], "num_samples": sizes, "user_data": own}))


def leaf_set(root):
    write(root / "train" / "0.json", f07=[1, 0, 2], f03=[])
    write(root / "train" / "1.json", f05=[1, 1], f01=[2])
    write(root / "test" / "0.json", f03=[2], f99=[0])


def test_leafs_femnist_keeps_writers_and_labels_and_has_bright_ink(tmp_path):
    """The writers of training images, f01, f05, f07, are 0, 1, 2."""
    leaf_set(tmp_path)
    loaded = data.load(tmp_path)
    assert loaded.train.labels.tolist() == [1, 0, 2, 1, 1, 2] and loaded.num_classes == 3
    assert loaded.test.labels.tolist() == [2, 0] and loaded.writers.tolist() == [2, 2, 2, 1, 1, 0]
    for images, labels in (loaded.train, loaded.test):
        assert np.allclose(images[:, 0, 27, 26], 1 - labels.numpy() / 10)
        assert images.shape[1:] == (1, 28, 28) and (images[:, 0, 27, 27] == 0).all()


@pytest.mark.parametrize("old, new, words", [
    ("[2, 1]", "[2, 2]", "f01 has 1 images and 1 labels.* says 2"), ("[2, 1]", "[2]", "ValueError"),
    ('"f01": {', '"f02": {', "f01"), ("user_data", "data", "user_data"), ("[0.1, ", "[", "Value"),
    ("[0.1, ", "[1.1, ", "f05.* outside 0..1"), ("[0.1, ", "[NaN, ", "f05.* outside 0..1"),
    ('"y": [2]', '"y": [2.5]', "f01.* whole"), ('"y": [2]', '"y": 2', "Type"), ("]]", "", "JSON")])
def test_a_mistake_in_a_leaf_file_is_one_line_that_names_it(tmp_path, old, new, words):
    leaf_set(tmp_path)
    path = tmp_path / "train" / "1.json"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match=f"train/1.json: not a file of LEAF.*{words}") as error:
        data.load(tmp_path)
    assert "\n" not in str(error.value)
