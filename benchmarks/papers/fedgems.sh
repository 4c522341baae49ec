#!/usr/bin/env bash
# FedGEMS's tables and figures, arXiv:2110.11027. Usage: rows.sh
# Where the paper names no data set or setting, it is CIFAR-10, homogeneous.
iid="--paper fedgems-homogeneous"
skewed="--paper fedgems-heterogeneous"
cifar10="--dataset cifar10"
small="--clients 8 --server-model bottleneck20"
exchange=fedmd,cronus,dsfl,fedgem,fedgems           # the methods with public images and logits
alone=standalone,centralized,centralized-all
weights=fedavg,feddf                                # these average clients with one network

table2() {      # accuracy of servers and clients
    for data in cifar10 cifar100; do
        row --algo $alone,$weights,$exchange $iid --dataset $data
        row --algo $alone,$exchange $skewed --dataset $data
        row --algo fedgkt $iid --dataset $data
        row --algo fedgkt $skewed --dataset $data
    done
}
table3() {      # attacks, heterogeneous
    for attack in paf lie "lie --attack-z 1.5" ofom; do
        row --algo $exchange $skewed $cifar10 --attack $attack
        row --algo fedgkt $skewed $cifar10 --attack $attack
    done
}
table4() {      # bytes until an accuracy, heterogeneous, one epoch for all
    row --algo $exchange $skewed $cifar10 --local-epochs 1 --server-epochs 1
    row --algo fedgkt $skewed $cifar10 --local-epochs 1 --server-epochs 1
}
table5() {      # FedGEMS with one of three parts left out
    for part in "" --no-self-training --no-self-distillation --no-ensemble-distillation; do
        row --algo fedgems-ablations $iid $cifar10 $part
    done
}
table6() {      # KiB of uploaded logits in a round
    for size in 5000 10000 15000 20000 25000; do
        row --algo $exchange $iid $cifar10 --public-size $size
    done
}
table7() {      # table 2 with 8 clients and ResNet-20 as server
    for data in cifar10 cifar100; do
        row --algo $alone,$weights,$exchange $iid $small --dataset $data
        row --algo $alone,$exchange $skewed $small --dataset $data
        row --algo fedgkt $iid --clients 8 --server-model gkt_server19 --dataset $data
        row --algo fedgkt $skewed --clients 8 --server-model gkt_server19 --dataset $data
    done
}
table8() {      # attacks, homogeneous, 8 clients
    for attack in paf lie "lie --attack-z 1.5" ofom; do
        row --algo $weights,$exchange $iid $small $cifar10 --attack $attack
    done
}
table9() {      # weight epsilon
    row --algo fedgems:epsilon=0.1,fedgems:epsilon=0.5,fedgems:epsilon=0.75,fedgems:epsilon=0.9 \
        $iid $cifar10
}
figure3() {     # samples in each case of the selection
    row --algo fedgems $iid $cifar10
}
figure4() {     # size of the public data; FedDF makes five epochs of batches of 64
    for size in 5000 10000 15000 20000 25000; do
        row --algo $weights,$exchange $iid $cifar10 --public-size $size \
            --distill-steps $((5 * ((size + 63) / 64)))
    done
}
figure5a() {    # size of the server
    for model in bottleneck20 bottleneck38 bottleneck56 bottleneck110; do
        row --algo fedgem,fedgems $iid $cifar10 --server-model $model
    done
}
figure5b() {    # number of clients; those between 4 and 64 are ours
    for clients in 4 8 16 32 64; do
        row --algo fedgem,fedgems $iid $cifar10 --clients $clients
    done
}
figure7() {     # bytes by size of the public data, 8 clients
    for size in 5000 10000 15000 20000 25000; do
        row --algo $weights,$exchange $iid $small $cifar10 --public-size $size \
            --distill-steps $((5 * ((size + 63) / 64)))
    done
}
source "$(dirname "$0")/rows.sh"
