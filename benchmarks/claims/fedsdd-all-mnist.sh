#!/usr/bin/env bash
# FedSDD, Table 6, as in fedsdd-all.sh, with MNIST and 26 passes over the public images: 122 steps
# of 128 images.
#   none, one, all    none, one or all of the four models are distilled; 600 public images of MNIST
#   ...-fashion       600 public images of Fashion-MNIST; clients hold as many images
# usage: benchmarks/claims/fedsdd-all-mnist.sh DATASET DATA_ROOT [METHOD ...]
# DATASET: mnist, or MNIST as an .npz file; DATA_ROOT: where torchvision keeps its data sets.
# 3 minutes on one core for one seed.
source "$(dirname "$0")/common.sh"
dataset=$1
data_root=$2
shift 2
for method in ${*:-none one all none-fashion one-fashion all-fashion}; do
    public="--public fifth"
    if [[ $method = *-fashion ]]; then
        public="--public fashion-mnist --no-joint --validation 0.2"
    fi
    case $method in
    none*) flags="--students none" ;;
    one*) flags="--students main --distill-steps 122" ;;
    all*) flags="--students all --distill-steps 122" ;;
    esac
    run "$method" fedsdd-ablations --K 4 --R 1 --dataset "$dataset" --data-root "$data_root" \
        --model mlp --alpha 1.0 --rounds 20 --local-steps 50 $public --public-size 600 $flags
done
