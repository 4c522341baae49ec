#!/usr/bin/env bash
# FedSDD, Table 5: ensembles without distillation, and FedBE's, on the embedded data.
#   clients-K1             of the clients' models; the global model is FedAvg's
#   gaussian, dirichlet    of FedBE's samples; the global model is FedBE's
#   clients-K4             of the clients' models, which belong to four global models
#   R1, R2, R4             of the four global models of the last rounds
#   ...-hetero             alpha 0.1, otherwise 1.0
# usage: benchmarks/claims/ensembles.sh [METHOD ...]
# 8 minutes on one core for one seed.
source "$(dirname "$0")/common.sh"
methods=$(echo {clients-K1,gaussian,dirichlet,clients-K4,R1,R2,R4}{,-hetero})
for method in ${*:-$methods}; do
    data="--public glyphs-letters --alpha 1.0"
    if [[ $method = *-hetero ]]; then data="--public glyphs-letters --alpha 0.1"; fi
    name=${method%-hetero}
    case $name in
    clients-*) run "$method" fedsdd-ablations --students none --ensemble clients \
                   --K "${name#*-K}" $data ;;
    R*) run "$method" fedsdd-ablations --students none --K 4 --R "${name:1}" $data ;;
    *) run "$method" fedbe --posterior "$name" $data ;;
    esac
done
