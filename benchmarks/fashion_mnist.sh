#!/usr/bin/env bash
# All of Fashion-MNIST, read by torchvision: FedAvg and FedSDD side by side, one seed.
# usage: benchmarks/fashion_mnist.sh DATA_ROOT
# DATA_ROOT holds FashionMNIST/raw, or torchvision downloads it there. About 3 minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."
python fedkd_minimal.py --algo fedavg,fedsdd --K 4 --R 2 \
    --dataset fashion-mnist --data-root "$1" --model cnn --alpha 0.1 \
    --rounds 10 --local-epochs 1 --batch-size 32 --lr 0.1 \
    --distill-steps 100 --server-batch-size 128 --out runs/fashion-mnist \
    | tee results/fashion-mnist.txt
