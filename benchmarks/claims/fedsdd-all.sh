#!/usr/bin/env bash
# FedSDD, Table 6: to distill all K models spoils the ensemble, to distill one does not. What
# decides it: the passes over the public images in a round, or the kind of these images?
#   none                  four models without distillation
#   one-10, all-10        one or all of the four models are distilled, 10 passes in a round
#   one-26, all-26        26 passes, as in the paper
#   ...-digits            the public images are digits, as many; the paper's, too, are of another
#                         kind. Otherwise they are letters, from a fifth of the training images. With
#                         digits this fifth is for validation, so that clients hold as many letters
# usage: benchmarks/claims/fedsdd-all.sh [METHOD ...]
# The task is the embedded letters with alpha 1.0, because FedAvg has 94% of the digits right; 600
# public images. 10 minutes on one core for one seed.
source "$(dirname "$0")/common.sh"
methods="none one-10 all-10 one-26 all-26"
methods+=" none-digits one-10-digits all-10-digits one-26-digits all-26-digits"
for method in ${*:-$methods}; do
    public="--public fifth"
    if [[ $method = *-digits ]]; then public="--public glyphs --no-joint --validation 0.2"; fi
    case $method in
    none*) flags="--students none" ;;
    one-10*) flags="--students main --distill-steps 47" ;;
    all-10*) flags="--students all --distill-steps 47" ;;
    one-26*) flags="--students main --distill-steps 122" ;;
    all-26*) flags="--students all --distill-steps 122" ;;
    esac
    run "$method" fedsdd-ablations --K 4 --R 1 --dataset glyphs-letters --alpha 1.0 \
        $public --public-size 600 $flags
done
