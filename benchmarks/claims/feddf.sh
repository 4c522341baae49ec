#!/usr/bin/env bash
# FedSDD, Table 10: from FedDF to FedSDD in three steps, on the embedded data.
#   feddf     as in FedDF's paper: Adam with a cosine schedule, drop-worst, early stopping
#   config    the same with FedSDD's training of the server: SGD, temperature 4
#   plain     the same without drop-worst and early stopping
#   fedsdd    four aggregated models as the ensemble, only the main one learns from it
# usage: benchmarks/claims/feddf.sh [METHOD ...]
# All hold a tenth of the training images out for validation, as the paper's section A.4. The rates
# are the quick start's: 0.1, and for the server an eighth of it. 7 minutes a seed on one core.
source "$(dirname "$0")/common.sh"
local="--participation 0.4 --rounds 20 --local-epochs 5 --batch-size 32 --lr 0.1"
server="--distill-steps 100 --server-batch-size 128 --temperature 4 --server-lr 0.0125"
sgd="--server-optimizer sgd --no-cosine --max-grad-norm none"
for alpha in 1.0 0.1; do
    data="--model cnn --clients 20 --partition dirichlet_equal --alpha $alpha --validation 0.1"
    data+=" --public glyphs-letters"
    for method in ${*:-fedavg feddf config plain fedsdd}; do
        case $method in
        fedavg) run "$method-$alpha" fedavg $data $local ;;
        feddf) run "$method-$alpha" feddf $data $local --distill-steps 100 --check-every 20 \
                   --patience 60 ;;
        config) run "$method-$alpha" feddf $data $local $server $sgd --check-every 20 \
                    --patience 60 ;;
        plain) run "$method-$alpha" feddf $data $local $server $sgd --no-drop-worst \
                   --patience none ;;
        fedsdd) run "$method-$alpha" fedsdd --K 4 --R 1 $data $local $server ;;
        esac
    done
done
