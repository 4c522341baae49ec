#!/usr/bin/env bash
# Clients with models of their own: is a client better on its own classes with FML, FedProto, FedKD
# or FD than alone? Embedded digits, alpha 0.1, 20 clients with two networks; FML and FedKD share a
# third, small one. All have the same optimizer, rate and number of passes.
#   local-0.03     training alone with the rate that suited it best on seed 0
# usage: benchmarks/claims/own-models.sh [METHOD ...]
# A seed draws the clients' shares. 7 minutes on one core for one seed.
# Tried on seed 0, local, FML, FedProto in round 20: rate 0.01 (the quick start's; taken) 91.0, 92.3,
# 90.9; 0.03 91.7, 92.5, 90.2. FedKD in round 14: 91.8 and below 90.3.
source "$(dirname "$0")/common.sh"
settings="--alpha 0.1 --rounds 20 --local-epochs 5 --batch-size 32 --optimizer momentum"
settings+=" --weight-decay 0 --model cnn_large,mlp --server-model cnn"
for method in ${*:-local local-0.03 fml fedproto fedkd fd}; do
    lr=0.01
    if [ "$method" = local-0.03 ]; then lr=0.03; fi
    run "$method" "${method%-0.03}" $settings --lr $lr
done
