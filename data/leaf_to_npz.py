"""FEMNIST with its writers, from the files of LEAF's scripts, as an .npz file for --dataset.

    python data/leaf_to_npz.py FOLDER femnist.npz

Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097. FOLDER holds
train/*.json and test/*.json; each file is {"users": [name, ...], "user_data":
{name: {"x": [[784 pixels in 0..1], ...], "y": [label, ...]}}}.

LEAF draws dark ink on white paper and divides the bytes of its images by 255. Here the images are
bytes again, with bright ink on black paper as in MNIST and EMNIST, so that FedMD's public digits
and private letters look alike. Labels stay: 0-9 are digits, 10-35 are A-Z, 36-61 are a-z.
"""
import argparse
import json
from pathlib import Path

import numpy as np


def read_part(folder):
    """(uint8 [n, 28, 28], labels [n], the name of each image's writer [n]) of all files."""
    images, labels, names = [], [], []
    for path in sorted(folder.glob("*.json")):
        print(f"reading {path}")
        content = json.loads(path.read_text())
        for user in content["users"]:
            own = content["user_data"][user]
            x = np.array(own["x"]).reshape(-1, 28, 28)
            images.append(np.round(255 * (1 - x)).astype(np.uint8))
            labels += own["y"]
            names += [user] * len(x)
    if not labels:
        raise ValueError(f"{folder}: no .json file with images")
    return np.concatenate(images), labels, names


def convert(folder, out):
    """Writes the .npz file. Writers are numbered in the sorted order of their names."""
    x_train, y_train, names = read_part(Path(folder) / "train")
    x_test, y_test, _ = read_part(Path(folder) / "test")
    np.savez_compressed(out, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test,
                        writer_train=np.unique(names, return_inverse=True)[1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("out")
    convert(**vars(parser.parse_args()))
