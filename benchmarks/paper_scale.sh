#!/usr/bin/env bash
# FedSDD's Table 2 and FedGEMS's Table 2, homogeneous, at the papers' scale, on a GPU.
# usage: benchmarks/paper_scale.sh [FLAG ...]
# FLAG: for every run, for example --rounds 3 --amp. torchvision downloads CIFAR-10 and CIFAR-100
# to downloads/. benchmarks/paper_scale.py estimates the hours.
# A round of FedSDD with ResNet-20 takes about three minutes on an H100, the paper's 298 s on an A100
# (docs/results/paper_scale.txt).
set -euo pipefail
cd "$(dirname "$0")/.."
fedkd() {
    python fedkd_minimal.py --dataset cifar10 --seeds 0,1,2 --device cuda "$@"
}
fedkd --algo fedavg,fedprox,scaffold,feddf,fedsdd:R=1,fedsdd:R=2,fedsdd:R=4 --paper fedsdd \
    --out runs/paper-scale/fedsdd "$@"
fedkd --algo standalone,centralized,centralized-all,dsfl,cronus,fedmd,fedgem,fedgems \
    --paper fedgems-homogeneous --out runs/paper-scale/fedgems "$@"
