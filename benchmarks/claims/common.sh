# Sourced by each script here. A script measures one claim: every method with the same seeds, one
# folder runs/CLAIM/METHOD/SEED each. Started again, it goes on where it was cut.
# SEEDS are 10 to 14, which no setting was chosen on; SEEDS="10 11" measures two of them, so that
# two cores can work side by side. Settings are tried with SEEDS=0, other flags in EXTRA, and the
# name of another folder in CLAIM.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
claim=${CLAIM:-$(basename "$0" .sh)}

run() {     # run METHOD ALGORITHM FLAG ...
    for seed in ${SEEDS:-10 11 12 13 14}; do
        local out="runs/$claim/$1/$seed"
        if [ -e "$out/config.json" ]; then
            python fedkd_minimal.py --resume "$out"
        else
            python fedkd_minimal.py --algo "$2" --seeds "$seed" --threads 1 "${@:3}" \
                ${EXTRA:-} --out "$out"
        fi
    done
}
