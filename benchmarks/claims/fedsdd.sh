#!/usr/bin/env bash
# FedSDD, Tables 2, 5, 6: the distilled main model is above FedAvg and above its undistilled self,
# the ensemble is above both, and more rounds R in the ensemble help.
# usage: benchmarks/claims/fedsdd.sh FILE.npz [METHOD ...]
# FILE.npz: 10,000 training and 2,000 test images of CIFAR-10, made by benchmarks/cifar10_npz.py.
# A fifth of the training images is public, without labels, and no client has them, FedAvg's
# neither. 50 minutes on one core for one seed; each method's own stand beside it.
# The server's rate is an eighth of the clients', as in the paper (0.8 and 0.1).
source "$(dirname "$0")/common.sh"
file=$1
shift
data="--dataset $file --model cnn --clients 20 --partition dirichlet_equal --public fifth"
local="--participation 0.4 --rounds 60 --local-epochs 10 --batch-size 32 --lr 0.1"
server="--K 4 --distill-steps 300 --server-batch-size 128 --server-lr 0.0125"
methods="fedavg R4 none-R4 R1 fedavg-0.1 R4-0.1"
for method in ${*:-$methods}; do
    alpha="--alpha 1.0"
    if [[ $method = *-0.1 ]]; then alpha="--alpha 0.1"; fi
    case $method in
    fedavg*) run "$method" fedavg $data $alpha $local ;;                              # 5 minutes
    none-R4) run "$method" fedsdd-ablations --students none --R 4 \
                 $data $alpha $local $server ;;                                       # 7
    R[14]*) run "$method" fedsdd --R "${method:1:1}" $data $alpha $local $server ;;  # 12
    esac
done
