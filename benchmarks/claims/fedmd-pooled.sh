#!/usr/bin/env bash
# FedMD, Table 4: it ends a few percent below the bound of all private data pooled. As fedmd.sh,
# iid, in 60 rounds instead of 12, and with four times as many private images.
#   fedmd-3, pooled-3      three private images of each letter for each party
#   fedmd-12, pooled-12    twelve; 24 rounds
# usage: benchmarks/claims/fedmd-pooled.sh [METHOD ...]
# A digest has 2,500 public images instead of 5,000. 17 minutes on one core for one seed.
source "$(dirname "$0")/common.sh"
data="--dataset glyphs-letters --classes 0,1,2,3,4,5 --public glyphs --clients 10"
data+=" --model $(echo mini{0..9} | tr ' ' ,) --partition few_per_class"
transfer="--transfer-public-epochs 5 --no-early-stopping"
rounds="--transfer-local-epochs 50 --transfer-batch-size 5 --batch-size 5 --local-epochs 4"
rounds+=" --subset-size 2500 --public-batch-size 256"
for method in ${*:-fedmd-3 pooled-3 fedmd-12 pooled-12}; do
    private="--per-class ${method#*-}"
    case $method in
    fedmd-3) run "$method" fedmd $data $private $transfer $rounds --rounds 60 ;;
    fedmd-12) run "$method" fedmd $data $private $transfer $rounds --rounds 24 ;;
    pooled-*) run "$method" fedmd-pooled $data $private $transfer --rounds 50 ;;
    esac
done
