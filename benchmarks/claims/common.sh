# Sourced by each script here. A script measures one claim: every method with the same seeds, one
# folder runs/CLAIM/METHOD/ALGO-seedN each. Started again, it goes on where it was cut.
# Each seed draws its own images, so that the intervals cover their choice: of all of CIFAR-10's
# 50,000 training images, in a file made once for all scripts by
#     python benchmarks/cifar10_npz.py downloads cifar10.npz --test-per-class 200
# The older figures in docs/results (see docs/RESULTS.md) are of one file of 10,000 images for all
# seeds, fedgkt.sh's of 5,000, five seeds and the last round: measured again, they change.
# Seeds are 10 to 14, of the methods in $headline 10 to 19; no setting was chosen on these.
# SEEDS="10 11" measures two of them, so that two cores can work side by side. Settings are tried
# with SEEDS=0, other flags in EXTRA, and the name of another folder in CLAIM.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if [[ " $* " = *" --help "* ]]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "benchmarks/claims/$(basename "$0")"
    exit
fi
claim=${CLAIM:-$(basename "$0" .sh)}

run() {     # run METHOD ALGORITHM FLAG ...
    local seeds="10 11 12 13 14"
    if [[ " ${headline:-} " = *" $1 "* ]]; then seeds+=" 15 16 17 18 19"; fi
    seeds=${SEEDS:-$seeds}
    python fedkd_minimal.py --algo "$2" --seeds "${seeds// /,}" --threads 1 "${@:3}" ${EXTRA:-} \
        --out "runs/$claim/$1"
}

# What tables.sh writes above the figures: by which commit and command they were measured.
mkdir -p "runs/$claim"
commit=$(git describe --always --dirty --exclude='*')
echo "commit $commit, ${EXTRA:+EXTRA=\"$EXTRA\" }$(basename "$0") ${*##*/}" >> "runs/$claim/commands.txt"
