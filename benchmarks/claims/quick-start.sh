#!/usr/bin/env bash
# The README's first command with five seeds and R = 1, 2, 4: is FedSDD above FedAvg at alpha 0.1,
# and what do the public images decide?
#   fifth                 the default: a fifth of the digits is public
#   letters               letters are public; clients hold all 6,000 digits
#   letters-validation    letters are public; clients hold 4,800 digits, as many as with fifth
#   letters-1.0           letters are public, alpha 1.0
# usage: benchmarks/claims/quick-start.sh [DATA ...]
# 12 minutes on one core each.
set -euo pipefail
cd "$(dirname "$0")/../.."
for data in ${*:-fifth letters letters-validation letters-1.0}; do
    case $data in
    fifth) flags="" ;;
    letters) flags="--public glyphs-letters" ;;
    letters-validation) flags="--public glyphs-letters --validation 0.2" ;;
    letters-1.0) flags="--public glyphs-letters --alpha 1.0" ;;
    esac
    python fedkd_minimal.py --algo fedavg,fedsdd:R=1,fedsdd:R=2,fedsdd:R=4 $flags \
        --seeds 10,11,12,13,14 --threads 1 --out "runs/quick-start/$data"
done
