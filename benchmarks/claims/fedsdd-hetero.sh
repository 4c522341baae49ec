#!/usr/bin/env bash
# FedSDD at alpha 0.1 on CIFAR-10, where the paper's gain is largest (Tables 2 and 5): FedAvg,
# FedSDD with R = 1 and R = 4, and four models without distillation, with rounds enough for each of
# the four: a model of FedSDD has a quarter of FedAvg's clients in a round, so that FedAvg after 25
# rounds and FedSDD after 100 have made the same local training per model.
# usage: benchmarks/claims/fedsdd-hetero.sh FILE.npz [METHOD ...]
# FILE.npz: CIFAR-10, see common.sh; each seed draws 10,000 of its training images.
# A fifth of the training images is public, for every method. 24 minutes on one core for one seed.
# Tried on seed 0: 120 rounds (FedAvg 47.4, R = 4 52.1, ensemble 53.9); 1,000 public images, 40
# steps (R = 4 after 100 rounds 49.6, 52.0).
source "$(dirname "$0")/common.sh"
file=$1
shift
headline="fedavg R4"
data="--dataset $file --train-size 10000 --model cnn --clients 20"
data+=" --partition dirichlet_equal --alpha 0.1 --public fifth"
local="--participation 0.4 --rounds 100 --local-epochs 2 --batch-size 32 --lr 0.1"
server="--K 4 --distill-steps 60 --server-batch-size 128 --server-lr 0.0125"
for method in ${*:-fedavg none-R4 R1 R4}; do
    case $method in
    fedavg) run "$method" fedavg $data $local ;;
    none-R4) run "$method" fedsdd-ablations --students none --R 4 $data $local $server ;;
    R[14]) run "$method" fedsdd --R "${method:1}" $data $local $server ;;
    esac
done
