#!/usr/bin/env bash
# FedSDD Table 2's methods and FedBE on real images, three seeds. About an hour on two cores.
# usage: benchmarks/cifar10.sh FILE.npz   (10,000 training and 2,000 test images: benchmarks/cifar10_npz.py makes it)
# Public images: a fifth of the training images, labels withheld, in no client. That is easier than the paper's foreign set.
set -euo pipefail
cd "$(dirname "$0")/.."
common="--dataset $1 --model cnn --clients 20 --partition dirichlet_equal --alpha 0.1 --public fifth --seeds 0,1,2 --rounds 30"
local="--participation 0.4 --local-epochs 5 --batch-size 32 --lr 0.1"
python fedkd_minimal.py --algo fedavg,fedprox,scaffold $common $local --out runs/cifar10/weights
server="--distill-steps 100 --server-batch-size 128 --server-lr 0.1"
for R in 1 2 4; do
    python fedkd_minimal.py --algo fedsdd --K 4 --R "$R" $common $local $server --out "runs/cifar10/fedsdd-R$R"
done
python fedkd_minimal.py --algo feddf $common $local $server --server-optimizer sgd --no-cosine --max-grad-norm none --temperature 4 \
    --no-drop-worst --patience none --out runs/cifar10/feddf
python fedkd_minimal.py --algo fedbe --distill $common $local $server --out runs/cifar10/fedbe-distill
python fedkd_minimal.py --algo centralized $common --batch-size 64 --out runs/cifar10/centralized
python benchmarks/table.py runs/cifar10/weights runs/cifar10/{feddf,fedbe-distill,fedsdd-R{1,2,4},centralized} > results/cifar10.txt
