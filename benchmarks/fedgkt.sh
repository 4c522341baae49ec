#!/usr/bin/env bash
# FedGKT Tables 1-3 on real images, three seeds. About 50 minutes on one core.
# usage: benchmarks/fedgkt.sh FILE.npz iid|fedgkt_table6
# FILE.npz: 10,000 training and 1,000 test images, made by
# benchmarks/cifar10_npz.py --train-per-class 1000 --test-per-class 100. The two partitions can run
# at once. 16 clients, as in the paper; its 200 rounds of 20 or 40 server epochs are 8 rounds of 2
# here, and its networks are a pair for small machines.
set -euo pipefail
cd "$(dirname "$0")/.."
out="runs/fedgkt/$2"
common="--dataset $1 --partition $2 --clients 16 --rounds 8 --seeds 0,1,2 --threads 1"
common+=" --batch-size 32 --lr 0.001"
gkt="--model gkt_edge_small --server-model gkt_server_small --server-epochs 2"
gkt+=" --server-batch-size 32 --lr-patience none"
run() { python fedkd_minimal.py --algo "$2" $common "${@:3}" --out "$out/$1"; }
run none fedgkt $gkt --no-client-distill --no-server-distill     # edge_accuracy: edges alone
run server-to-edge fedgkt $gkt --no-server-distill
run both fedgkt $gkt
run asynchronous fedgkt-async $gkt --no-server-distill
run fedavg fedavg --model gkt_full_small --local-epochs 2 --participation 1 --optimizer amsgrad
folders=("$out"/{none,server-to-edge,both,asynchronous,fedavg})
if [ "$2" = iid ]; then
    run own-starts fedgkt $gkt --no-server-distill --no-common-start
    for network in full edge; do                         # centralized: no partition matters
        run "centralized-$network" centralized --model "gkt_${network}_small" --local-epochs 2
    done
    folders+=("$out"/{own-starts,centralized-full,centralized-edge})
fi
python plot.py --key accuracy,edge_accuracy "${folders[@]}" > "results/fedgkt-$2.txt"
