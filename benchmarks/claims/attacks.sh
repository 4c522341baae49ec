#!/usr/bin/env bash
# FedGEMS, Tables 3 and 8: FedGEMS withstands poisoned logits (PAF, LIE, OFOM), FedMD and DS-FL do
# not. client_accuracy_distilled is measured after clients learned from the others, where an attack
# acts; client_accuracy_private after the private training, which heals.
#   fedgem-0.1, fedgems-0.1    epsilon 0.1: more distillation, less cross-entropy (0.75 otherwise);
#                              without attack and under PAF only
# usage: benchmarks/claims/attacks.sh [ATTACK ...]
# Embedded data, half of it public, 1,000 public images used; 16 clients, alpha 0.5, 10 rounds of 5
# local epochs. PAF and LIE have one attacker, OFOM two. LIE has z = 1.5: the z of its formula
# hardly attacks with 1 of 16 (ATTACK lie-formula). FedMD has no transfer phase, as in FedGEMS's
# Table 13. 17 minutes on one core for one seed.
# Tried on seed 0: one local epoch, with which FedMD stayed at chance, and five; epsilon 0.75 and
# 0.1.
source "$(dirname "$0")/common.sh"
data="--model cnn --server-model cnn_large --clients 16 --partition dirichlet_balanced --alpha 0.5"
data+=" --public half --public-size 1000 --rounds 10 --local-epochs 5 --batch-size 32"
fedmd="--public-batch-size 32 --subset-size none --kernel-l2 0 --optimizer amsgrad"
fedmd+=" --weight-decay 1e-4 --no-early-stopping --transfer-public-epochs 0"
fedmd+=" --transfer-local-epochs 0"
server="--server-batch-size 32"
for name in ${*:-none paf lie ofom}; do
    case $name in
    none) attack="" ;;
    lie) attack="--attack lie --attack-z 1.5" ;;
    lie-formula) attack="--attack lie" ;;
    *) attack="--attack $name" ;;
    esac
    run "fedmd-$name" fedmd $data $fedmd $attack
    run "cronus-$name" cronus $data $attack
    for algo in dsfl fedgem fedgems; do
        run "$algo-$name" "$algo" $data $server $attack
    done
    if [[ $name != none && $name != paf ]]; then continue; fi
    for algo in fedgem fedgems; do
        run "$algo-0.1-$name" "$algo" $data $server --epsilon 0.1 $attack
    done
done
