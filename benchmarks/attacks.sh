#!/usr/bin/env bash
# FedGEMS Table 3's shape on the embedded data: five methods, each without and under six attacks.
# usage: benchmarks/attacks.sh [seed ...]
# Seeds 0 and 1; 13 minutes a seed on one core.
set -euo pipefail
cd "$(dirname "$0")/.."
for seed in ${*:-0 1}; do
    common="--model cnn --server-model cnn_large --clients 16 --partition dirichlet_balanced"
    common+=" --alpha 0.5 --public half --public-size 1000 --rounds 10 --batch-size 32"
    common+=" --threads 1 --seeds $seed"
    run() {
        python fedkd_minimal.py --algo dsfl,cronus,fedgem,fedgems $common \
            --local-epochs 1 --server-batch-size 32 "${@:2}" --out "runs/attacks/$1/$seed"
        python fedkd_minimal.py --algo fedmd $common \
            --local-epochs 2 --public-batch-size 32 --subset-size none --kernel-l2 0 \
            --optimizer amsgrad --weight-decay 1e-4 --no-early-stopping \
            --transfer-public-epochs 2 --transfer-local-epochs 5 "${@:2}" \
            --out "runs/attacks/$1-fedmd/$seed"
    }
    run none
    for scale in 1 10 100; do
        run "paf-$scale" --attack paf --attack-scale "$scale"
    done
    run lie --attack lie
    run lie-1.5 --attack lie --attack-z 1.5
    run ofom --attack ofom
done
for algo in dsfl cronus fedgem fedgems; do               # each against the first, without attack
    keys=server_accuracy,client_accuracy
    if [ "$algo" = cronus ]; then keys=client_accuracy; fi
    python plot.py --key "$keys" \
        runs/attacks/{none,paf-{1,10,100},lie,lie-1.5,ofom}/*/"$algo"-seed*
done > results/attacks.txt
python plot.py --key client_accuracy runs/attacks/{none,paf-{1,10,100},lie,lie-1.5,ofom}-fedmd \
    >> results/attacks.txt
