#!/usr/bin/env bash
# FedGEMS, Tables 2, 5, 9: the server of FedGEM and FedGEMS is above the server alone, and selection
# (FedGEMS) is better than the mean (FedGEM). What may decide it is the weight of distillation,
# 1 - epsilon: epsilon 1 is the paired control, whose server learns from labels alone.
# usage: benchmarks/claims/fedgems.sh FILE.npz [METHOD ...]
# FILE.npz: 10,000 training and 2,000 test images of CIFAR-10, made by benchmarks/cifar10_npz.py.
# Half of both are public, 1,500 of the public training images are used; 8 clients, iid.
source "$(dirname "$0")/common.sh"
file=$1
shift
data="--dataset $file --model cnn --server-model cnn_large --clients 8 --partition iid"
data+=" --public half --public-size 1500"
common="--rounds 40 --local-epochs 1 --batch-size 32 --server-batch-size 32 --lr 0.001"
for method in ${*:-control fedgem-0.75 fedgem-0.1 fedgems-0.75 fedgems-0.1}; do
    case $method in
    control) run "$method" fedgem $data $common --epsilon 1 ;;
    *) run "$method" "${method%-*}" $data $common --epsilon "${method#*-}" ;;
    esac
done
