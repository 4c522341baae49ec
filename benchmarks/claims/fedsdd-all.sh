#!/usr/bin/env bash
# FedSDD, Table 6: to distill all K models spoils the ensemble, to distill one does not. What
# decides it: the passes over the public images in a round, or the kind of these images? (10 passes:
# ablations.sh)
#   none, one-26, all-26    none, one or all of the four models are distilled, with 26 passes in a
#                           round, as in the paper
#   ...-digits              the public images are digits, as many; the paper's, too, are of another
#                           kind. Otherwise they are letters, from a fifth of the training images.
#                           With digits this fifth is for validation, so that clients hold as many
# usage: benchmarks/claims/fedsdd-all.sh [METHOD ...]
# The task is the embedded letters with alpha 1.0, because FedAvg has 94% of the digits right; 600
# public images. 7 minutes on one core for one seed.
source "$(dirname "$0")/common.sh"
for method in ${*:-none one-26 all-26 none-digits one-26-digits all-26-digits}; do
    public="--public fifth"
    if [[ $method = *-digits ]]; then public="--public glyphs --no-joint --validation 0.2"; fi
    case $method in
    none*) flags="--students none" ;;
    one-26*) flags="--students main --distill-steps 122" ;;
    all-26*) flags="--students all --distill-steps 122" ;;
    esac
    run "$method" fedsdd-ablations --K 4 --R 1 --dataset glyphs-letters --alpha 1.0 \
        $public --public-size 600 $flags
done
