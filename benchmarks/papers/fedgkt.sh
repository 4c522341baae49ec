#!/usr/bin/env bash
# FedGKT's tables and figures, arXiv:2007.14513. Usage: rows.sh
# cinic10/: the folder of CINIC-10. On CIFAR-100 both sides distill, elsewhere the clients alone:
# of Table 2's directions the better one, whose accuracy is that of Table 1.
iid="--paper fedgkt"
skewed="--paper fedgkt-noniid"
datasets="cifar10 cifar100 cinic10/"

direction() {
    if [ "$1" = cifar100 ]; then echo --server-distill; else echo --no-server-distill; fi
}
split() {
    # Table 6, the split of the preset, is of CIFAR-10.
    if [ "$1" != cifar10 ]; then echo --partition dirichlet_balanced; fi
}
table1() {      # accuracy of FedGKT, FedAvg and centralized training
    for data in $datasets; do
        for server in gkt_server55 gkt_server109; do
            local gkt="--algo fedgkt --server-model $server --dataset $data $(direction $data)"
            row $gkt $iid
            row $gkt $skewed $(split $data)
        done
        for model in bottleneck56 bottleneck110; do
            row --algo fedavg $iid --dataset $data --model $model
            row --algo fedavg $skewed --dataset $data --model $model $(split $data)
            row --algo centralized $iid --dataset $data --model $model
        done
        row --algo centralized $iid --dataset $data --model gkt_edge
    done
}
table2() {      # directions of the distillation
    for data in $datasets; do
        for directions in "--no-server-distill --no-client-distill" --no-server-distill \
                --server-distill; do
            row --algo fedgkt $iid --dataset $data $directions
        done
    done
}
table3() {      # asynchronous training
    for data in $datasets; do
        row --algo fedgkt,fedgkt-async $iid --dataset $data $(direction $data)
    done
}
table4() {      # 8 to 128 edges
    for clients in 8 16 64 128; do
        row --algo fedgkt $iid --dataset cifar100 --server-distill --clients $clients
    done
}
table5() {      # smaller edge networks
    for model in gkt_edge4 gkt_edge6 gkt_edge; do
        row --algo fedgkt $iid --dataset cifar10 --no-server-distill --model $model
    done
}
table6() {      # the split of CIFAR-10: printed before training
    row --algo fedgkt $skewed --dataset cifar10 --rounds 1 --describe
}
figure5() {     # bytes, against split learning
    for data in $datasets; do
        row --algo split-learning,fedgkt $iid --dataset $data
    done
}
sampled() {     # section 5, scalability: a share of the clients in each round
    row --algo fedgkt $iid --dataset cifar10 --no-server-distill --participation 0.25
}
splits() {      # A.2: other non-iid splits, drawn by the seed
    row --algo fedavg $skewed --dataset cifar10 --partition dirichlet_balanced --seeds 0,1,2
    row --algo fedgkt $skewed --dataset cifar10 --partition dirichlet_balanced --seeds 0,1,2 \
        --no-server-distill
}
source "$(dirname "$0")/rows.sh"
