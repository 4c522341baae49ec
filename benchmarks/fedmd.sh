#!/usr/bin/env bash
# FedMD's own setting on the embedded data: ten different networks, digits public, letters A-F
# private, three seeds.
# usage: benchmarks/fedmd.sh iid|writer
# iid: each client has 3 samples of each letter. writer: each client has what one writer wrote.
# About 20 minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."
setting="--partition few_per_class --per-class 3"
if [ "$1" = writer ]; then
    setting="--partition single_writer"
fi
common="--dataset glyphs-letters --classes 0,1,2,3,4,5 --public glyphs $setting --clients 10"
common+=" --model $(echo mini{0..9} | tr ' ' ,) --seeds 0,1,2 --threads 1"
python fedkd_minimal.py --algo fedmd $common --rounds 20 \
    --transfer-public-epochs 20 --transfer-local-epochs 25 \
    --subset-size 5000 --public-batch-size 256 --local-epochs 4 --out "runs/fedmd/$1/fedmd"
python fedkd_minimal.py --algo fedmd-pooled $common --rounds 50 \
    --transfer-public-epochs 20 --out "runs/fedmd/$1/pooled"
python plot.py --key accuracy,gain "runs/fedmd/$1"/{fedmd,pooled} \
    > "results/fedmd-$1.txt"
