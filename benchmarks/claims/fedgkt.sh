#!/usr/bin/env bash
# FedGKT, Tables 1 to 3: does it reach FedAvg of the full network? Do the server's logits help the
# edges, the edges' logits the server? Is asynchronous level with synchronous?
# Parts: fedgkt-order, iid, and fedgkt-order-noniid, alpha 0.5: 20 rounds in the paper's order, the
# server's batches client after client, as in Algorithm 1.
#   fedavg       of edge and server as one network, with as many local epochs as the edges
#   fedgkt       as in Table 1: the edges learn from the server's logits, not the server from theirs
#   none, both   nobody learns from logits; both sides do
#   mixed        the server's batches mix the clients: ours, not the paper's
#   async        asynchronous; all clients are nearly as fast and do the same work
# fedgkt and fedgkt-noniid: 8 rounds, mixed, but for `ordered` and `async`.
# fedgkt-rates: alpha 0.5, 8 rounds, FedAvg and FedGKT with three rates each, to be run with
# SEEDS="0 1 2".
# usage: benchmarks/claims/fedgkt.sh FILE.npz [PART ...]
# FILE.npz: CIFAR-10, see common.sh; each seed draws 5,000 of its training images.
# Each upload is for two epochs of the server.
# Tried on seed 0. Iid: FedAvg with 2 local epochs (45.7) and 5 (52.2; taken); 10,000 images, 16
# clients, 2 local epochs (none 53, FedGKT 53). Alpha 0.5, FedAvg 46.3, FedGKT 39.7: six epochs of
# the server 42.7; the clients' rate 0.0003 42.2, 0.0001 49.5 (five seeds do not confirm it),
# 0.000001 54.1 (iid 56.4; an edge alone then only guesses); the server's rate 0.0003 39.0; SGD on
# the server 39.0, on both 35.3; batches that mix the clients 41.8; one local epoch 42.1 after 24
# rounds (three times as many); no distillation 43.1.
source "$(dirname "$0")/common.sh"
file=$1
shift
cifar="--dataset $file --train-size 5000 --clients 8 --augment --batch-size 32 --local-epochs 5"
edges="--model gkt_edge_small --server-model gkt_server_small --server-epochs 2"
edges+=" --server-batch-size 32"
latencies=1,1.01,1.02,1.03,1.04,1.05,1.06,1.07
for part in ${*:-fedgkt fedgkt-noniid fedgkt-order fedgkt-order-noniid fedgkt-rates}; do
    case $part in
    *-noniid | *-rates) data="$cifar --partition dirichlet_balanced --alpha 0.5" ;;
    *) data="$cifar --partition iid" ;;
    esac
    case $part in
    fedgkt-order*) data+=" --rounds 20" ;;
    *) data+=" --rounds 8" ;;
    esac
    full="--model gkt_full_small --participation 1 --optimizer amsgrad --weight-decay 1e-4"
    gkt="$data $edges --no-server-distill"
    if [ "$part" = fedgkt-rates ]; then
        for lr in 0.0003 0.001 0.003; do
            run "$part/fedavg-$lr" fedavg $data $full --lr $lr
            run "$part/fedgkt-$lr" fedgkt $gkt --lr $lr --server-lr $lr
        done
        continue
    fi
    run "$part/fedavg" fedavg $data $full --lr 0.001
    case $part in
    fedgkt-order*)
        run "$part/fedgkt" fedgkt $gkt --lr 0.001
        run "$part/none" fedgkt $gkt --no-client-distill --lr 0.001
        run "$part/both" fedgkt $data $edges --lr 0.001
        run "$part/mixed" fedgkt $gkt --server-order mixed --lr 0.001
        run "$part/async" fedgkt-async $gkt --latencies $latencies --lr 0.001 ;;
    *)
        run "$part/fedgkt" fedgkt $gkt --server-order mixed --lr 0.001
        run "$part/none" fedgkt $gkt --server-order mixed --no-client-distill --lr 0.001
        if [ "$part" = fedgkt-noniid ]; then continue; fi
        run "$part/both" fedgkt $data $edges --server-order mixed --lr 0.001
        run "$part/ordered" fedgkt $gkt --lr 0.001
        run "$part/async" fedgkt-async $gkt --latencies $latencies --lr 0.001 ;;
    esac
done
