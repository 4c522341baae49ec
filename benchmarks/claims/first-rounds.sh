#!/usr/bin/env bash
# The first rounds of README's first command with five seeds: when does FedSDD reach FedAvg?
# usage: benchmarks/claims/first-rounds.sh
# 80 seconds on two cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
python fedkd_minimal.py --algo fedavg,fedsdd --K 4 --R 2 --rounds 5 \
    --seeds 10,11,12,13,14 --threads 1 --out runs/first-rounds
