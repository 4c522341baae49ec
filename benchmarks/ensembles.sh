#!/usr/bin/env bash
# FedSDD, Table 5: ensembles without distillation, on the embedded data.
# usage: benchmarks/ensembles.sh [alpha ...]
# Three seeds; about 10 minutes on two cores. The paper's 100 rounds are 20 here.
set -euo pipefail
cd "$(dirname "$0")/.."
for alpha in ${*:-0.1 1.0}; do
    common="--alpha $alpha --seeds 0,1,2 --public glyphs-letters --threads 1"
    out="runs/ensembles/$alpha"
    run() { python fedkd_minimal.py --algo "$2" $common "${@:3}" --out "$out/$1"; }

    # In the first three runs the global model is FedAvg's, and `accuracy` is FedAvg's.
    run clients-K1 fedsdd-ablations --K 1 --ensemble clients --students none
    run gaussian fedbe --posterior gaussian
    run dirichlet fedbe --posterior dirichlet
    run clients-K4 fedsdd-ablations --K 4 --ensemble clients --students none
    for R in 1 2 4; do
        run "aggregated-K4-R$R" fedsdd-ablations --K 4 --R "$R" --students none
    done
    python -m experiment.plot --key accuracy,ensemble_accuracy \
        "$out"/{clients-K1,gaussian,dirichlet,clients-K4,aggregated-K4-R{1,2,4}} \
        > "docs/results/table5-alpha$alpha.txt"
done
