"""FEMNIST from the files that LEAF's scripts write: images with the names of their writers.

Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097. A folder holds
train/*.json and test/*.json; each file is {"users": [name, ...], "num_samples": [n, ...],
"user_data": {name: {"x": [[784 pixels in 0..1], ...], "y": [label, ...]}}}.

LEAF draws dark ink on white paper. Here 1 is ink and 0 is paper, as in MNIST and EMNIST, so that
FedMD's public digits and private letters look alike; nothing else is changed. LEAF's labels stay:
0-9 are digits, 10-35 are A-Z, 36-61 are a-z.
"""
import json
from pathlib import Path

import numpy as np


def is_leaf(folder):
    """True if the folder holds files train/*.json."""
    return any(Path(folder, "train").glob("*.json"))


def read(folder):
    """x_train [n, 28, 28], y_train [n], x_test, y_test and the writer [n] of each training image.

    Pixels are float32. The writers are numbered in the sorted order of their names; a writer may
    have training and test images. ValueError names the file with the problem.
    """
    (x_train, y_train, names), (x_test, y_test, _) = (
        read_part(Path(folder) / part) for part in ("train", "test"))
    return x_train, y_train, x_test, y_test, np.unique(names, return_inverse=True)[1]


def read_part(folder):
    """(pixels [n, 28, 28], labels [n], the name of each image's writer [n]) of all files."""
    pixels, labels, names = [], [], []
    for path in sorted(folder.glob("*.json")):
        for user, x, y in users_of(path):
            pixels.append(1 - x)
            labels += y
            names += [user] * len(y)
    if not labels:
        raise ValueError(f"{folder}: no .json file with images")
    return np.concatenate(pixels), labels, names


def users_of(path):
    """Yields (name, float32 [n, 28, 28], n labels) of each user in a file."""
    try:
        content = json.loads(path.read_text())
        for user, size in zip(content["users"], content["num_samples"], strict=True):
            own = content["user_data"][user]
            x = np.array(own["x"], dtype=np.float32).reshape(-1, 28, 28)
            if not len(x) == len(own["y"]) == size:
                raise ValueError(f"user {user} has {len(x)} images and {len(own['y'])} labels, "
                                 f"num_samples says {size}")
            if not all(type(label) is int and label >= 0 for label in own["y"]):
                raise ValueError(f"user {user} has labels other than whole numbers from 0")
            if not (0 <= x.min(initial=0) and x.max(initial=1) <= 1):
                raise ValueError(f"user {user} has pixels outside 0..1")
            yield user, x, own["y"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not a file of LEAF's FEMNIST "
                         f"({type(error).__name__}: {error})") from error
