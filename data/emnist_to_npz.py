"""EMNIST's letters with their writers, FedMD's private data, as an .npz file for --dataset.

    python data/emnist_to_npz.py emnist-letters.mat emnist-letters.npz

Cohen et al., "EMNIST: an extension of MNIST to handwritten letters", arXiv:1702.05373.
emnist-letters.mat is in the archive of MATLAB files that EMNIST's page offers. A class is a letter
of both cases, and the file's labels are 1 to 26; here they are 0 to 25, so that FedMD's a to f are
0 to 5. The file has each image column by column.

It needs scipy, which the project itself does not.
"""
import argparse

import numpy as np


def convert(mat, out):
    """Writes the .npz file."""
    from scipy.io import loadmat
    parts = loadmat(mat, simplify_cells=True)["dataset"]
    arrays = {"writer_train": parts["train"]["writers"]}
    for name in ("train", "test"):
        columns = parts[name]["images"].reshape(-1, 28, 28)              # [n, column, row]
        arrays[f"x_{name}"] = columns.transpose(0, 2, 1)
        arrays[f"y_{name}"] = parts[name]["labels"].astype(np.int64) - 1
    np.savez_compressed(out, **arrays)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mat")
    parser.add_argument("out")
    convert(**vars(parser.parse_args()))
