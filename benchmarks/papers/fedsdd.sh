#!/usr/bin/env bash
# FedSDD's tables, arXiv:2312.17029v1. Usage: rows.sh
# imagenet32.npz: ImageNet in 32x32 pixels, FedSDD's public images for CIFAR-100.
sdd="--paper fedsdd --seeds 0,1,2"
cifar10="--dataset cifar10"
ablations=fedsdd-ablations

table2() {      # accuracy: six methods, three networks, two data sets, two alphas
    for data in "$cifar10" "--dataset cifar100 --public imagenet32.npz"; do
        for model in resnet20 resnet56 wrn16_2; do
            for alpha in 1.0 0.1; do
                row --algo fedavg,fedprox,scaffold,feddf,fedsdd:R=1,fedsdd:R=2,fedsdd:R=4 \
                    $sdd $data --model $model --alpha $alpha
            done
        done
    done
}
table3() {      # seconds of a round with 8, 14 and 20 clients
    for share in 0.4 0.7 1.0; do
        row --algo fedavg,feddf,fedsdd --paper fedsdd $cifar10 --participation $share --rounds 3
    done
}
table4() {      # other local training, 8 and 20 clients
    local methods=fedsdd,$ablations:local=fedprox,$ablations:local=scaffold
    for share in 0.4 1.0; do
        for alpha in 1.0 0.1; do
            row --algo fedavg,fedprox,scaffold,$methods $sdd $cifar10 --participation $share \
                --alpha $alpha
        done
    done
}
table5() {      # ensembles without distillation
    local one=$ablations:K=1:ensemble=clients four=$ablations:K=4
    for alpha in 1.0 0.1; do
        row --algo $one,fedbe:posterior=gaussian,fedbe:posterior=dirichlet $sdd $cifar10 \
            --students none --alpha $alpha
        row --algo $four:ensemble=clients,$four:R=1,$four:R=2,$four:R=4 $sdd $cifar10 \
            --students none --alpha $alpha
    done
}
table6() {      # which models are distilled
    local all=$ablations:students=all
    local warm=$all:warmup-rounds
    for alpha in 1.0 0.1; do
        row --algo $ablations:students=none,$all,$warm=20,$warm=40,$ablations:students=main \
            $sdd $cifar10 --alpha $alpha
    done
}
table7() {      # rounds and local epochs
    while read -r rounds epochs steps; do
        for alpha in 1.0 0.1; do
            row --algo fedavg,feddf,fedsdd $sdd $cifar10 --rounds $rounds --local-epochs $epochs \
                --distill-steps $steps --alpha $alpha
        done
    done <<< $'25 160 20000\n100 40 5000\n400 10 1250'
}
table8() {      # number of global models
    for alpha in 1.0 0.1; do
        row --algo fedsdd:K=2,fedsdd:K=3,fedsdd:K=4 $sdd $cifar10 --alpha $alpha
    done
}
table9() {      # number of clients
    for alpha in 1.0 0.1; do
        row --algo fedavg,feddf,fedsdd $sdd $cifar10 --participation 0.4 --alpha $alpha
        row --algo fedavg,feddf,fedsdd,fedsdd:K=7 $sdd $cifar10 --participation 0.7 --alpha $alpha
        row --algo fedavg,feddf,fedsdd,fedsdd:K=10 $sdd $cifar10 --participation 1.0 --alpha $alpha
    done
}
table10() {     # from FedDF to FedSDD, row by row
    for alpha in 1.0 0.1; do
        local same="--seeds 0,1,2 $cifar10 --alpha $alpha"
        row --algo feddf --paper feddf --model resnet20 $same
        row --algo feddf --paper fedsdd $same --validation 0.1 --drop-worst --patience 1000
        row --algo feddf --paper fedsdd $same --validation 0.1 --no-drop-worst --patience none
        row --algo fedsdd --paper fedsdd $same --validation 0.1
    done
}
a5() {          # clients with different networks
    row --algo $ablations $sdd $cifar10 --model resnet20,wrn16_2 --K 2
}
secure() {      # secure aggregation, section 3.2: the server sees sums alone
    row --algo $ablations $sdd $cifar10 --secure-sum
}
source "$(dirname "$0")/rows.sh"
