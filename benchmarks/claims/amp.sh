#!/usr/bin/env bash
# --amp (bfloat16 in every forward pass) costs no accuracy: FedAvg and FedSDD of fedsdd.sh with it.
# usage: benchmarks/claims/amp.sh FILE.npz
# Compare with runs/fedsdd/fedavg and runs/fedsdd/R4, seed by seed.
source "$(dirname "$0")/common.sh"
data="--dataset $1 --model cnn --clients 20 --partition dirichlet_equal --public fifth --alpha 1.0"
local="--participation 0.4 --rounds 60 --local-epochs 10 --batch-size 32 --lr 0.1 --amp"
server="--K 4 --R 4 --distill-steps 300 --server-batch-size 128 --server-lr 0.0125"
run fedavg-amp fedavg $data $local
run R4-amp fedsdd $data $local $server
