#!/usr/bin/env bash
# FedGKT Tables 1-3 on real images, three seeds. About 50 minutes on one core; iid and non-iid can run at once.
# usage: benchmarks/fedgkt.sh FILE.npz iid|fedgkt_table6   (10,000 training, 1,000 test images: benchmarks/cifar10_npz.py --train-per-class 1000 --test-per-class 100)
# 16 clients, as in the paper; its 200 rounds of 20 or 40 server epochs are 8 of 2 here, its networks a pair for small machines.
set -euo pipefail
cd "$(dirname "$0")/.."
out="runs/fedgkt/$2"
common="--dataset $1 --partition $2 --clients 16 --seeds 0,1,2 --threads 1 --batch-size 32 --lr 0.001"
run() { python fedkd_minimal.py $common "${@:2}" --out "$out/$1"; }
gkt="--algo fedgkt --model gkt_edge_small --server-model gkt_server_small --rounds 8 --server-epochs 2 --server-batch-size 32 --lr-patience none"
run none $gkt --no-client-distill --no-server-distill                      # its edge_accuracy is that of edges alone
run server-to-edge $gkt --no-server-distill
run both $gkt
run asynchronous $gkt --no-server-distill --asynchronous
run fedavg --algo fedavg --model gkt_full_small --rounds 8 --local-epochs 2 --participation 1 --optimizer amsgrad
folders=("$out"/{none,server-to-edge,both,asynchronous,fedavg})
if [ "$2" = iid ]; then
    run own-starts $gkt --no-server-distill --no-common-start
    for network in full edge; do                                           # centralised: no matter who holds what
        run "centralized-$network" --algo centralized --model "gkt_${network}_small" --rounds 8 --local-epochs 2
    done
    folders+=("$out"/{own-starts,centralized-full,centralized-edge})
fi
python benchmarks/table.py --key accuracy,edge_accuracy "${folders[@]}" > "results/fedgkt-$2.txt"
