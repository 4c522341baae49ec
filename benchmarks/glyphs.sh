#!/usr/bin/env bash
# The embedded data at two degrees of heterogeneity, three seeds: FedAvg and FedSDD with R = 1, 2, 4. About 10 minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."
for alpha in 0.1 1.0; do
    common="--alpha $alpha --seeds 0,1,2 --public glyphs-letters"
    python fedkd_minimal.py --algo fedavg $common --out "runs/glyphs/$alpha/fedavg"
    for R in 1 2 4; do
        python fedkd_minimal.py --algo fedsdd --K 4 --R "$R" $common --out "runs/glyphs/$alpha/fedsdd-R$R"
    done
    python benchmarks/table.py runs/glyphs/$alpha/fedavg runs/glyphs/$alpha/fedsdd-R{1,2,4} > "results/glyphs-alpha$alpha.txt"
done
