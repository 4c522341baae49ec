#!/usr/bin/env bash
# FedSDD's ablations, Tables 5 and 6, on the embedded data at two degrees of heterogeneity.
# usage: benchmarks/ablations.sh [alpha ...]
# Three seeds; about 20 minutes on two cores. The paper's 100 rounds are 20 here, and its warm-ups
# of 20 and 40 rounds are 4 and 8.
set -euo pipefail
cd "$(dirname "$0")/.."
for alpha in ${*:-0.1 1.0}; do
    common="--alpha $alpha --seeds 0,1,2 --public glyphs-letters --threads 1"
    out="runs/ablations/$alpha"
    run() { python fedkd_minimal.py --algo "$2" $common "${@:3}" --out "$out/$1"; }

    # Table 5: ensembles without distillation.
    # In the first three runs the global model is FedAvg's, and `accuracy` is FedAvg's.
    run clients-K1 fedsdd-ablations --K 1 --ensemble clients --students none
    run gaussian fedbe --posterior gaussian
    run dirichlet fedbe --posterior dirichlet
    run clients-K4 fedsdd-ablations --K 4 --ensemble clients --students none
    for R in 1 2 4; do
        run "aggregated-K4-R$R" fedsdd-ablations --K 4 --R "$R" --students none
    done
    python plot.py --key accuracy,ensemble_accuracy \
        "$out"/{clients-K1,gaussian,dirichlet,clients-K4,aggregated-K4-R{1,2,4}} \
        > "results/table5-alpha$alpha.txt"

    # Table 6: which models learn from the ensemble, and from which round on, with K = 4 and R = 1.
    run basic fedsdd-ablations --K 4 --students all
    run basic-warmup4 fedsdd-ablations --K 4 --students all --warmup-rounds 4
    run basic-warmup8 fedsdd-ablations --K 4 --students all --warmup-rounds 8
    run diversity fedsdd --K 4
    python plot.py --key accuracy,ensemble_accuracy \
        "$out"/{aggregated-K4-R1,basic,basic-warmup4,basic-warmup8,diversity} \
        > "results/table6-alpha$alpha.txt"
done
