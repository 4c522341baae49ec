"""Part of CIFAR-10 as one .npz file, from torchvision's files: the first N images of each class.

    python benchmarks/cifar10_npz.py downloads part.npz --train-per-class 1000 --test-per-class 200
"""
import argparse

import numpy as np
from torchvision.datasets import CIFAR10

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("root", help="torchvision's folder for CIFAR-10; it downloads what is missing")
parser.add_argument("out", help="the .npz file to write")
parser.add_argument("--train-per-class", type=int, default=5000, help="training images per class")
parser.add_argument("--test-per-class", type=int, default=1000, help="test images per class")
parser.add_argument("--test-skip", type=int, default=0, help="of each class, before these")
args = parser.parse_args()

arrays = {}
for part, skip, per_class in [("train", 0, args.train_per_class),
                              ("test", args.test_skip, args.test_per_class)]:
    dataset = CIFAR10(args.root, train=part == "train", download=True)
    labels = np.array(dataset.targets)
    rows = np.concatenate([np.flatnonzero(labels == c)[skip:skip + per_class] for c in range(10)])
    arrays |= {f"x_{part}": dataset.data[rows], f"y_{part}": labels[rows]}
np.savez(args.out, **arrays)
