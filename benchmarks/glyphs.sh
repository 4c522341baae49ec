#!/usr/bin/env bash
# FedAvg and FedSDD with R = 1, 2, 4 on the embedded data at two degrees of heterogeneity.
# usage: benchmarks/glyphs.sh
# Three seeds; about 10 minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."
for alpha in 0.1 1.0; do
    common="--alpha $alpha --seeds 0,1,2 --public glyphs-letters"
    out="runs/glyphs/$alpha"
    python fedkd_minimal.py --algo fedavg $common --out "$out/fedavg"
    for R in 1 2 4; do
        python fedkd_minimal.py --algo fedsdd --K 4 --R "$R" $common --out "$out/fedsdd-R$R"
    done
    python plot.py --key accuracy,ensemble_accuracy "$out"/{fedavg,fedsdd-R{1,2,4}} \
        > "results/glyphs-alpha$alpha.txt"
done
