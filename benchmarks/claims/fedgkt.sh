#!/usr/bin/env bash
# FedGKT: it reaches FedAvg of the full network, with edges far too weak alone (Table 1); the
# server's logits help the edges (Table 2); asynchronous is level with synchronous (Table 3).
#   none, to-edge, both    who is taught: nobody, the edges, the edges and the server
#   none-own               none, from different initial weights
#   async                  to-edge without waiting: as many trainings in all as to-edge
#   fedavg                 of edge and server as one network; central: trained on all data at once
# usage: benchmarks/claims/fedgkt.sh FILE.npz [METHOD ...]
# FILE.npz: 10,000 training and 1,000 test images of CIFAR-10, made by
# benchmarks/cifar10_npz.py --train-per-class 1000 --test-per-class 100
source "$(dirname "$0")/common.sh"
file=$1
shift
gkt="--model gkt_edge_small --server-model gkt_server_small --server-epochs 2"
gkt+=" --server-batch-size 32"
for partition in iid fedgkt_table6; do
    data="--dataset $file --partition $partition --clients 16 --augment"
    common="--rounds 8 --batch-size 32 --lr 0.001"
    for method in ${*:-none to-edge both none-own async fedavg central}; do
        name="$method-$partition"
        case $method in
        none) run "$name" fedgkt $data $common $gkt --no-client-distill --no-server-distill ;;
        to-edge) run "$name" fedgkt $data $common $gkt --no-server-distill ;;
        both) run "$name" fedgkt $data $common $gkt ;;
        none-own) run "$name" fedgkt $data $common $gkt --no-client-distill \
                      --no-server-distill --no-common-start ;;
        async) run "$name" fedgkt-async $data $common $gkt --no-server-distill ;;
        fedavg) run "$name" fedavg $data $common --model gkt_full_small --local-epochs 2 \
                    --participation 1 --optimizer amsgrad --weight-decay 1e-4 ;;
        central) run "$name" centralized $data $common --model gkt_full_small --local-epochs 2 ;;
        esac
    done
done
