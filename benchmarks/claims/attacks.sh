#!/usr/bin/env bash
# FedGEMS, Tables 3 and 8: FedGEMS withstands poisoned logits (PAF, LIE, OFOM), FedMD and DS-FL do
# not. client_accuracy is measured after clients learned from the others, where an attack acts;
# client_accuracy_private after the private training, which heals.
# usage: benchmarks/claims/attacks.sh [ATTACK ...]
# Embedded data, half of it public, 1,000 public images used; 16 clients, alpha 0.5, 10 rounds. PAF
# and LIE have one attacker, OFOM two. lie: the paper's z, which hardly attacks with 1 of 16;
# lie-1.5: z = 1.5. FedMD has no transfer phase, as in FedGEMS's Table 13.
source "$(dirname "$0")/common.sh"
data="--model cnn --server-model cnn_large --clients 16 --partition dirichlet_balanced --alpha 0.5"
data+=" --public half --public-size 1000 --rounds 10 --batch-size 32"
fedmd="--local-epochs 1 --public-batch-size 32 --subset-size none --kernel-l2 0 --optimizer amsgrad"
fedmd+=" --weight-decay 1e-4 --no-early-stopping --transfer-public-epochs 0"
fedmd+=" --transfer-local-epochs 0"
for name in ${*:-none paf lie lie-1.5 ofom}; do
    case $name in
    none) attack="" ;;
    lie-1.5) attack="--attack lie --attack-z 1.5" ;;
    *) attack="--attack $name" ;;
    esac
    for algo in dsfl cronus fedgem fedgems; do
        server=""
        if [[ $algo != cronus ]]; then server="--server-batch-size 32"; fi
        run "$algo-$name" "$algo" $data --local-epochs 1 $server $attack
    done
    run "fedmd-$name" fedmd $data $fedmd $attack
done
