#!/usr/bin/env bash
# FedMD, Table 4 and its curves, on the embedded data: every party gains quickly, far above no
# collaboration, and ends a few percent below the bound of all private data pooled.
# Parts: fedmd-iid, each party has 3 images of each letter; fedmd-writer, what one writer wrote;
# fedmd-iid-pooled and fedmd-writer-pooled, each party's network on the private data of all, after
# the same public training: 50 epochs, without rounds.
#   fedmd     ten parties with ten networks, digits public, letters A to F private
#   alone     the same without digest (--public-epochs 0): private training goes on alone
# usage: benchmarks/claims/fedmd.sh [PART ...]
# 13 minutes on one core for one seed.
# Tried on seed 0, iid, 20 rounds: 20 epochs of transfer learning on the digits 77.0, the settings
# here 76.3. With early stopping the private transfer learning once ended after 11 epochs, when
# six of ten clients still answered with digits.
source "$(dirname "$0")/common.sh"
headline=$(echo fedmd-{iid,writer}/{fedmd,alone})
headline+=" fedmd-iid-pooled/pooled"
data="--dataset glyphs-letters --classes 0,1,2,3,4,5 --public glyphs --clients 10"
data+=" --model $(echo mini{0..9} | tr ' ' ,) --transfer-public-epochs 5 --no-early-stopping"
rounds="--rounds 12 --transfer-local-epochs 50 --transfer-batch-size 5 --batch-size 5"
rounds+=" --local-epochs 4 --subset-size 5000 --public-batch-size 256"
for part in ${*:-fedmd-iid fedmd-writer fedmd-iid-pooled fedmd-writer-pooled}; do
    case $part in
    fedmd-iid*) split="--partition few_per_class --per-class 3" ;;
    fedmd-writer*) split="--partition single_writer" ;;
    esac
    case $part in
    *-pooled) run "$part/pooled" fedmd-pooled $data $split --rounds 50 ;;
    *)
        run "$part/fedmd" fedmd $data $split $rounds
        run "$part/alone" fedmd $data $split $rounds --public-epochs 0 ;;
    esac
done
