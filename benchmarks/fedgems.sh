#!/usr/bin/env bash
# FedGEMS Tables 2, 4 and 5 and the runs of Fig. 3 on real images, three seeds.
# usage: benchmarks/fedgems.sh FILE.npz homo|hetero
# FILE.npz: 10,000 training and 2,000 test images; benchmarks/cifar10_npz.py makes it. As in the
# paper, half of the training and test images are public (1,500 of the training images are used),
# and there are 8 clients, as in its Table 7. About 40 minutes on two cores, if both settings run at
# once.
set -euo pipefail
cd "$(dirname "$0")/.."
out="runs/fedgems/$2"
setting="--model cnn --partition iid"
if [ "$2" = hetero ]; then
    setting="--model cnn,mini2,mini5,mlp --partition dirichlet_balanced --alpha 0.5"
fi
common="--dataset $1 $setting --server-model cnn_large --clients 8 --public half"
common+=" --public-size 1500 --seeds 0,1,2 --threads 1 --rounds 10 --batch-size 32 --lr 0.001"
run() { python fedkd_minimal.py --algo "$2" $common "${@:3}" --out "$out/$1"; }
run alone standalone,public-private,centralized,centralized-all
run fedmd fedmd --local-epochs 2 --public-batch-size 32 --subset-size none --kernel-l2 0 \
    --optimizer amsgrad --weight-decay 1e-4 --no-early-stopping \
    --transfer-public-epochs 5 --transfer-local-epochs 5
run unlabelled dsfl,cronus --comu 0.3,0.35,0.4
run labelled fedgem,fedgems --server-batch-size 32 --comu 0.3,0.35,0.4
if [ "$2" = homo ]; then                                 # Table 5
    for part in self-training self-distillation ensemble-distillation; do
        run "no-$part" fedgems-ablations --server-batch-size 32 "--no-$part"
    done
    python plot.py --key server_accuracy,client_accuracy --base fedgems \
        "$out"/{labelled,no-self-training,no-self-distillation,no-ensemble-distillation} \
        > results/fedgems-table5.txt
    python plot.py --key self_training,self_distillation,ensemble_distillation,nobody_right \
        "$out/labelled" --csv results/fedgems-fig3.csv
fi
python plot.py --key server_accuracy,client_accuracy,client_accuracy_private \
    --base public-private,standalone "$out"/{alone,fedmd,unlabelled,labelled} \
    > "results/fedgems-table2-$2.txt"
python benchmarks/comu.py 0.3,0.35,0.4 "$out"/{fedmd,unlabelled,labelled} \
    > "results/fedgems-table4-$2.txt"
