#!/usr/bin/env bash
# FedGen, Table 1, MNIST with alpha 0.1, at its own scale: FedGen is above FedDF, FedDF above FedAvg
# and FedProx, FD far below all; beside them what the paper does not have: FedNTD, FedBE, SCAFFOLD
# and FedSDD with K = 4 (R1, R4). FD has no model on the server: its accuracy is the clients' mean.
#   fd-iid, fedavg-iid    FD, Table 1: ten devices with 2,000 images each, 250 steps of 64 in a
#                         round, 16 rounds; FedAvg with the same steps. FD's text leaves the split
#                         open: here each device has as many images of each class
# usage: benchmarks/claims/fedgen.sh DATASET [METHOD ...]
# DATASET: mnist, which torchvision downloads, or MNIST as an .npz file.
source "$(dirname "$0")/common.sh"
dataset=$1
shift
paper="--paper fedgen --dataset $dataset"
devices="--dataset $dataset --model cnn_6_16 --clients 10 --rounds 16 --batch-size 64"
devices+=" --local-steps 250 --lr 0.001 --optimizer amsgrad --weight-decay 1e-4"
iid="--partition few_per_class --per-class 200"
methods="fedavg fedprox feddf fd fedgen fedntd fedbe scaffold R1 R4"
methods+=" fd-iid fedavg-iid"
for method in ${*:-$methods}; do
    case $method in
    R[14]) run "$method" fedsdd --K 4 --R "${method:1}" $paper ;;
    fd-iid) run "$method" fd $devices $iid ;;
    fedavg-iid) run "$method" fedavg --participation 1 $devices $iid ;;
    *) run "$method" "$method" $paper ;;
    esac
done
