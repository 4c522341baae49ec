# Sourced at the end of each script here, whose functions are the items of a paper: each `row` in
# them is a command at the paper's scale. docs/REPRODUCE.md says how to read what it prints.
# usage: benchmarks/papers/PAPER.sh                            the items
#        benchmarks/papers/PAPER.sh ITEM                       its commands
#        benchmarks/papers/PAPER.sh ITEM --run [FLAG ...]      runs them, each with these flags
# A later flag replaces an earlier one: --run --dataset glyphs --public fifth --rounds 1 shows that
# an item runs; its accuracies then say nothing. Items of fedmd.sh also need
#     --classes 0,1,2,3,4,5 --partition few_per_class --model fedmd0
# as these data have ten classes, no superclasses and images too small for some of its networks.
# Runs are kept in runs/papers/PAPER/ITEM/1, 2, ..., or below OUT instead of runs/papers; started
# again, they go on where they were cut. A command that is refused (exit status 2), for example for
# data that are missing, does not keep the next ones from running; the script then ends with 2.
set -euo pipefail
item=${1:-} rows=0 status=0

row() {     # row FLAG ...
    local out="${OUT:-runs/papers}/$(basename "$0" .sh)/$item/$((++rows))"
    if [ "$mode" != --run ]; then
        echo "python fedkd_minimal.py $*"
    else
        python fedkd_minimal.py "$@" $flags --out "$out" || status=$?
        if [ $status != 0 ] && [ $status != 2 ]; then exit $status; fi
    fi
}

items=$(sed -n 's/^\([a-z0-9_]*\)() {  *# /\1\t/p' "$0")
if [ -z "$item" ]; then
    echo "$items" | expand -t 12
elif ! grep -q "^$item	" <<< "$items" || [ "${2:---run}" != --run ]; then
    echo "usage: $0 [ITEM [--run [FLAG ...]]]; without ITEM it lists them" >&2
    exit 2
else
    mode=${2:-} flags=${*:3}
    cd "$(dirname "$0")/../.."
    "$item"
    exit $status
fi
