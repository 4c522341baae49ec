#!/usr/bin/env bash
# FedSDD Table 2's methods and FedBE on real images, three seeds. About an hour on two cores.
# usage: benchmarks/cifar10.sh FILE.npz
# FILE.npz: 10,000 training and 2,000 test images; benchmarks/cifar10_npz.py makes it. The public
# images are a fifth of the training images, without labels, held by no client. That is easier than
# the paper's public images, which come from another data set.
set -euo pipefail
cd "$(dirname "$0")/.."
common="--dataset $1 --model cnn --clients 20 --partition dirichlet_equal --alpha 0.1"
common+=" --public fifth --seeds 0,1,2 --rounds 30"
local="--participation 0.4 --local-epochs 5 --batch-size 32 --lr 0.1"
server="--distill-steps 100 --server-batch-size 128 --server-lr 0.1"
run() { python fedkd_minimal.py --algo "$2" $common "${@:3}" --out "runs/cifar10/$1"; }
run weights fedavg,fedprox,scaffold $local
for R in 1 2 4; do
    run "fedsdd-R$R" fedsdd --K 4 --R "$R" $local $server
done
run feddf feddf $local $server --server-optimizer sgd --no-cosine --max-grad-norm none \
    --temperature 4 --no-drop-worst --patience none
run fedbe-distill fedbe --distill $local $server
run centralized centralized --batch-size 64
python plot.py --key accuracy,ensemble_accuracy \
    runs/cifar10/weights runs/cifar10/{feddf,fedbe-distill,fedsdd-R{1,2,4},centralized} \
    > results/cifar10.txt
