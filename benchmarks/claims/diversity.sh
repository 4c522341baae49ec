#!/usr/bin/env bash
# FedSDD, Table 6: to distil all K models makes them alike and spoils the ensemble; to distil the
# main model alone does not. Table 2: FedSDD also lifts FedProx and SCAFFOLD.
#   fedavg, fedprox, scaffold               without distillation, one model
#   none, main, all                         K = 4, R = 1: which of the four models learn
#   main-fedprox, main-scaffold             the same as main, with that local training
# usage: benchmarks/claims/diversity.sh [METHOD ...]
# Embedded data, letters as public images, 40 rounds. 12 minutes on one core for one seed.
source "$(dirname "$0")/common.sh"
local="--participation 0.4 --rounds 40 --local-epochs 5 --batch-size 32 --lr 0.1"
server="--K 4 --R 1 --distill-steps 100 --server-batch-size 128 --server-lr 0.0125"
for alpha in 1.0 0.1; do
    data="--model cnn --clients 20 --partition dirichlet_equal --alpha $alpha"
    data+=" --public glyphs-letters"
    methods="fedavg fedprox scaffold none main all main-fedprox main-scaffold"
    for method in ${*:-$methods}; do
        case $method in
        fedavg | fedprox | scaffold) run "$method-$alpha" "$method" $data $local ;;
        none | all) run "$method-$alpha" fedsdd-ablations --students "$method" \
                        $data $local $server ;;
        main) run "$method-$alpha" fedsdd $data $local $server ;;
        main-*) run "$method-$alpha" fedsdd --local "${method#main-}" $data $local $server ;;
        esac
    done
done
