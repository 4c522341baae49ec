#!/usr/bin/env bash
# FedGKT, Tables 4 and 5, on the embedded data: how many edges, and how small the edge's network.
#   8, 16, 64                         edges; the quick start's settings
#   gkt_edge4, gkt_edge6, gkt_edge    the paper's own edges with ResNet-55: 4 clients, 5 rounds of
#                                     one server epoch
# usage: benchmarks/claims/fedgkt-edges.sh [METHOD ...]
# About 13 minutes on one core for one seed.
source "$(dirname "$0")/common.sh"
for method in ${*:-8 16 64 gkt_edge4 gkt_edge6 gkt_edge}; do
    case $method in
    gkt_*) run "$method" fedgkt --partition iid --lr-patience none --model "$method" \
               --server-model gkt_server55 --clients 4 --rounds 5 --server-epochs 1 ;;
    *) run "$method" fedgkt --partition iid --lr-patience none --clients "$method" ;;
    esac
done
