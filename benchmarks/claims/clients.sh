#!/usr/bin/env bash
# FedGEMS, Table 2: clients gain from the server beyond what the labels of the public images give
# them. public-private makes the same steps as FedGEM's clients with cross-entropy alone; it is the
# control that the paper lacks.
# usage: benchmarks/claims/clients.sh FILE.npz [METHOD ...]
# FILE.npz: 10,000 training and 2,000 test images of CIFAR-10, made by benchmarks/cifar10_npz.py.
# A small network at the clients (mini6), a large one at the server, 5,000 public images, augmented.
source "$(dirname "$0")/common.sh"
file=$1
shift
data="--dataset $file --model mini6 --clients 8 --partition iid --public half --augment"
data+=" --rounds 40 --local-epochs 1 --batch-size 32 --lr 0.001"
server="--server-model cnn_large --server-batch-size 32"
for method in ${*:-public-private fedgem-1 fedgem-0.75 fedgems-0.75}; do
    case $method in
    public-private) run "$method" public-private $data ;;
    *) run "$method" "${method%-*}" $data $server --epsilon "${method#*-}" ;;
    esac
done
