#!/usr/bin/env bash
# FedGKT Tables 4 and 5 on the embedded data: how many edges, and how small the edge's network.
# usage: benchmarks/fedgkt_glyphs.sh [edges] [networks]
# Three seeds; about 40 minutes on one core.
set -euo pipefail
cd "$(dirname "$0")/.."
common="--algo fedgkt --partition iid --seeds 0,1,2 --threads 1 --lr-patience none"
run() { python fedkd_minimal.py $common "${@:2}" --out "runs/fedgkt/$1"; }
for what in ${*:-edges networks}; do
    if [ "$what" = edges ]; then                         # Table 4
        for edges in 8 16 64; do
            run "edges/$edges" --clients "$edges"
        done
        folders=(runs/fedgkt/edges/{8,16,64})
    else                                                 # Table 5, with the paper's own networks
        for network in gkt_edge4 gkt_edge6 gkt_edge; do
            run "networks/$network" --model "$network" --server-model gkt_server55 \
                --clients 4 --rounds 5 --server-epochs 1
        done
        folders=(runs/fedgkt/networks/{gkt_edge4,gkt_edge6,gkt_edge})
    fi
    python -m experiment.plot --key accuracy,edge_accuracy "${folders[@]}" \
        > "docs/results/fedgkt-$what.txt"
done
