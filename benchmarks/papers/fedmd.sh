#!/usr/bin/env bash
# FedMD's tables and curves, arXiv:1910.03581. Usage: rows.sh
# emnist-letters.npz: EMNIST's letters with their writers, the authors' data, by
#     python data/emnist_to_npz.py emnist-letters.mat emnist-letters.npz
# Classes 0 to 5 are a to f of both cases. The rounds, epochs and batches are those of the authors'
# code.
networks() {
    echo "$1"{0..9} | tr ' ' ,
}
letters="--paper fedmd --dataset emnist --classes 0,1,2,3,4,5 --public mnist --min-delta 0.001"
writers="--paper fedmd --dataset emnist-letters.npz --classes 0,1,2,3,4,5 --public mnist"
writers+=" --partition single_writer --min-delta 0.001 --model $(networks fedmd)"
subclasses="--paper fedmd --dataset cifar100 --classes 0,2,20,63,71,82 --public cifar10"
superclasses="--paper fedmd --dataset cifar100 --classes 0,1,2,3,4,5 --public cifar10"
superclasses+=" --partition by_subclass --per-class 20 --model $(networks fedmd_cifar)"
alone=fedmd:public-epochs=0                         # the parties alone: no digest

table1() {      # ten networks, accuracy on MNIST
    for network in fedmd{0..9}; do
        row --algo fedmd $letters --rounds 1 --model $network
    done
}
table2() {      # ten networks, accuracy on CIFAR-10
    for network in fedmd_cifar{0..9}; do
        row --algo fedmd $subclasses --rounds 1 --model $network
    done
}
table4() {      # accuracy with pooled private data
    row --algo fedmd-pooled $letters --model $(networks fedmd)
    row --algo fedmd-pooled $writers
    row --algo fedmd-pooled $subclasses --model $(networks fedmd_cifar)
    row --algo fedmd-pooled $superclasses
}
curves() {      # each client's accuracy by round, in Table 3's four settings
    row --algo fedmd,$alone $letters --model $(networks fedmd) --local-epochs 2
    row --algo fedmd,$alone $writers
    row --algo fedmd,$alone $subclasses --model $(networks fedmd_cifar)
    row --algo fedmd,$alone $superclasses --rounds 13 --local-epochs 10 --batch-size 10 \
        --public-batch-size 128
}
weak() {        # supplement, results 3: a weak network, with the same and with a lower weight
    local mixed=$(networks fedmd | sed s/fedmd9/mlp/)
    row --algo fedmd $letters --model $mixed --local-epochs 2
    row --algo fedmd $letters --model $mixed --local-epochs 2 \
        --consensus-weights 1,1,1,1,1,1,1,1,1,.3
}
source "$(dirname "$0")/rows.sh"
