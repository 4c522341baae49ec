#!/usr/bin/env bash
# FedGen, Table 1, MNIST at its own scale: FedGen is above FedDF, FedDF above FedAvg and FedProx, FD
# far below all; beside them what the paper does not have: FedNTD, FedBE, SCAFFOLD and FedSDD with
# K = 4 (R1, R4). FD has no model on the server: its accuracy is the clients' mean, on all classes
# and (client_accuracy_own) on those that a client holds.
#   fedgen                the generated features have the text's weight, 1
#   fedgen-code           they have that of the public code, as in the preset: from 10 it falls by 2%
#                         a round
#   ...-0.05, ...-1.0     alpha 0.05, alpha 1; otherwise 0.1
#   fd-iid, fedavg-iid    FD, Table 1: ten devices with 2,000 images each, 250 steps of 64 in a
#                         round, 16 rounds; FedAvg with the same steps. FD's text leaves the split
#                         open: here each device has as many images of each class
# usage: benchmarks/claims/fedgen.sh DATASET [METHOD ...]
# DATASET: mnist, which torchvision downloads, or MNIST as an .npz file.
# Tried on seed 0: FedDF with a tenth of its rate, for all rounds: ahead of FedAvg up to round 66,
# a point behind at the end. FedSDD's rate 0.005 (kept), 0.00125 and 0.01 for at most 19 rounds;
# FedBE's 0.01 for 4. Nothing of the others.
# FedAvg's level: four habits of FedGen's code, one at a time on seed 10, change FedAvg's 95.81 to
# 94.36 (a falling rate), 95.07, 95.96 and 96.11; all four to 94.41
# (docs/results/fedgen_habits.txt). The rest of the distance to the paper's 90.16 was not looked
# for.
source "$(dirname "$0")/common.sh"
dataset=$1
shift
paper="--paper fedgen --dataset $dataset"
devices="--dataset $dataset --model cnn_6_16 --clients 10 --rounds 16 --batch-size 64"
devices+=" --local-steps 250 --lr 0.001 --optimizer amsgrad --weight-decay 1e-4"
iid="--partition few_per_class --per-class 200"
methods="fedavg fedprox feddf fd fedgen fedgen-code fedntd fedbe scaffold R1 R4"
methods+=" $(echo {fedavg,fedgen-code}-{0.05,1.0}) fd-iid fedavg-iid"
text="--generated-weight 1 --generated-weight-decay 1"
for method in ${*:-$methods}; do
    alpha=""
    case $method in
    *-0.05 | *-1.0) alpha="--alpha ${method##*-}" ;;
    esac
    name=${method%-0.05}
    name=${name%-1.0}
    case $name in
    R[14]) run "$method" fedsdd --K 4 --R "${name:1}" $paper ;;
    fd-iid) run "$method" fd $devices $iid ;;
    fedavg-iid) run "$method" fedavg --participation 1 $devices $iid ;;
    fedgen) run "$method" fedgen $paper $alpha $text ;;
    fedgen-code) run "$method" fedgen $paper $alpha ;;
    *) run "$method" "$name" $paper $alpha ;;
    esac
done
