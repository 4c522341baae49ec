#!/usr/bin/env bash
# FedSDD's ablations on CIFAR-10, in a quarter of fedsdd.sh's time.
#   fedavg, fedprox, scaffold          one model, no distillation (Table 2)
#   none, R1, all                      K = 4: no model learns, the main one (FedSDD), all (Table 6)
#   R4                                 an ensemble of four rounds (Tables 2 and 5)
#   R1-fedprox, R1-scaffold            FedSDD over another local training (Table 4)
#   feddf, config, plain               from FedDF to FedSDD (Table 10): FedDF as in its paper; with
#                                      FedSDD's SGD and temperature; without drop-worst and early
#                                      stopping too
#   fedavg-amp, R1-amp                 fedavg and R1 with bfloat16 (--amp, our own claim)
# usage: benchmarks/claims/ablations.sh FILE.npz [METHOD ...]
# FILE.npz: CIFAR-10, see common.sh; each seed draws 10,000 of its training images.
# A tenth of the training images is for validation, a fifth is public, for every method. 45 minutes
# on one core for one seed: 1.5 without distillation, 3 with it.
# Tried on seed 0: each method once. Before, at alpha 0.1, 30 rounds, SCAFFOLD diverged with two
# of three seeds.
source "$(dirname "$0")/common.sh"
file=$1
shift
data="--dataset $file --train-size 10000 --model cnn --clients 20"
data+=" --partition dirichlet_equal --alpha 1.0 --public fifth --validation 0.1"
local="--participation 0.4 --rounds 30 --local-epochs 5 --batch-size 32 --lr 0.1"
steps="--distill-steps 150 --server-batch-size 128"
server="$steps --server-lr 0.0125"
sgd="--temperature 4 --server-optimizer sgd --no-cosine --max-grad-norm none"
stop="--check-every 30 --patience 90"
methods="fedavg fedprox scaffold none R1 all R4 R1-fedprox R1-scaffold feddf config plain"
methods+=" fedavg-amp R1-amp"
for method in ${*:-$methods}; do
    case $method in
    fedavg | fedprox | scaffold) run "$method" "$method" $data $local ;;
    none | all) run "$method" fedsdd-ablations --students "$method" --K 4 --R 1 \
                    $data $local $server ;;
    R[14]) run "$method" fedsdd --K 4 --R "${method:1}" $data $local $server ;;
    fedavg-amp) run "$method" fedavg $data $local --amp ;;
    R1-amp) run "$method" fedsdd --K 4 --R 1 $data $local $server --amp ;;
    R1-*) run "$method" fedsdd-ablations --K 4 --R 1 --local "${method#R1-}" $data $local $server ;;
    feddf) run "$method" feddf $data $local $steps $stop ;;
    config) run "$method" feddf $data $local $server $sgd $stop ;;
    plain) run "$method" feddf $data $local $server $sgd --no-drop-worst --patience none ;;
    esac
done
