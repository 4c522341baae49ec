#!/usr/bin/env bash
# FedGEMS, Table 4: FedGEMS needs the fewest bytes until the clients reach x%. One epoch everywhere,
# as in the paper's section 4.4; FedMD without a transfer phase, as in its Table 13.
# usage: benchmarks/claims/bytes.sh FILE.npz [METHOD ...]
# FILE.npz: 10,000 training and 2,000 test images of CIFAR-10, made by benchmarks/cifar10_npz.py.
# Half of both are public, 1,500 of the public training images are used; 8 clients, iid.
# The summary of each run has the bytes (--comu); benchmarks/comu.py reads them from kept runs.
source "$(dirname "$0")/common.sh"
file=$1
shift
data="--dataset $file --model cnn --clients 8 --partition iid --public half --public-size 1500"
data+=" --rounds 20 --local-epochs 1 --batch-size 32 --lr 0.001 --comu 0.3,0.35,0.4"
fedmd="--public-batch-size 32 --subset-size none --kernel-l2 0 --optimizer amsgrad"
fedmd+=" --weight-decay 1e-4 --no-early-stopping --transfer-public-epochs 0"
fedmd+=" --transfer-local-epochs 0"
for method in ${*:-fedmd dsfl cronus fedgem fedgems}; do
    case $method in
    fedmd) run "$method" fedmd $data $fedmd ;;
    cronus) run "$method" cronus $data ;;
    *) run "$method" "$method" $data --server-model cnn_large --server-batch-size 32 ;;
    esac
done
