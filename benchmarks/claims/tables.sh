#!/usr/bin/env bash
# The files of docs/results/ and the pictures of docs/pictures/ (matplotlib) from the runs of the
# scripts here: NAME.txt with tables, each against the reference that a claim needs, NAME.csv.gz
# with the curves that they are made of. At the end, the verdicts and their picture.
# usage: benchmarks/claims/tables.sh [NAME ...]
# Values are means of the last tenth of the rounds, of five at least. CLAIM is the name of other runs
# of one claim, and of its files; methods without runs are left out, and it has no picture. SEEDS and
# EXTRA are not read.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [[ " $* " = *" --help "* ]]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "benchmarks/claims/$(basename "$0")"
    exit
fi
folders() { # folders METHOD ...: of CLAIM's runs those that are there
    for method in "$@"; do
        if [ -z "${CLAIM:-}" ] || [ -d "runs/$CLAIM/$method" ]; then echo "runs/$runs/$method"; fi
    done
}
table() {   # table KEYS METHOD ...: the first method is the reference; after so many $rounds
    if [ -z "$(folders "$2")" ]; then return; fi
    python -m experiment.plot --any-data --key "$1" --base "${base:-$2}" --last "${last:-5}" \
        ${rounds:+--rounds $rounds} $(folders "${@:2}")
    echo
}
picture() { # picture NAME KEYS METHOD ...
    if [ -z "${CLAIM:-}" ]; then
        python -m experiment.plot --any-data --key "$2" --last "${smooth:-1}" \
            --out "docs/pictures/$1.svg" $(folders "${@:3}")
    fi
}
both=accuracy,ensemble_accuracy
comu=ComU@0.3,ComU@0.35,ComU@0.4,bytes_up
claims="fedsdd fedsdd-hetero fedsdd-all fedsdd-all-mnist ensembles ablations fedmd"
claims+=" fedmd-pooled fedgems fedgems-augmented attacks fedgkt fedgkt-noniid fedgen own-models"
claims+=" quick-start"
for claim in ${*:-$claims}; do
    runs=${CLAIM:-${claim%-noniid}}
    name=${CLAIM:-$claim}
    {
    sort -u "runs/$runs/commands.txt"
    echo "tables: commit $(git describe --always --dirty --exclude='*'), tables.sh $claim"
    echo
    case $claim in
    fedsdd)
        last=6
        table $both fedavg R4 none-R4
        table $both none-R4 R4 ;;
    fedsdd-hetero)
        for rounds in 25 50 ""; do
            last=${rounds:+5}
            last=${last:-10}
            table $both fedavg none-R4 R1 R4
            table $both none-R4 R1 R4
            table $both R1 R4
        done
        smooth=5 picture fedsdd-hetero $both fedavg R4 ;;
    fedsdd-all)
        for kind in "" -digits; do
            table $both,disagreement {none,{one,all}-{10,26}}$kind
            for passes in 10 26; do table $both {one,all}-$passes$kind; done
        done ;;
    fedsdd-all-mnist)
        for kind in "" -fashion; do
            table $both,disagreement {none,one,all}$kind
            table $both {one,all}$kind
        done ;;
    ensembles)
        for split in "" -hetero; do
            table $both {clients-K1,gaussian,dirichlet,clients-K4,R1,R2,R4}$split
            table $both {R1,R2,R4}$split
        done ;;
    ablations)
        table $both fedavg fedprox scaffold none R1 R4 all R1-fedprox R1-scaffold feddf config plain
        table $both,disagreement none R1 R4 all
        table $both R1 R4 all
        table $both scaffold R1-scaffold
        table $both fedprox R1-fedprox
        table $both plain feddf config R1
        table $both config feddf R1
        table accuracy fedavg fedavg-amp
        table $both R1 R1-amp ;;
    fedmd)
        each=$(echo client_accuracy_private_{0..9} | tr ' ' ,)
        for split in iid writer; do
            table accuracy,client_accuracy_distilled {alone,fedmd,pooled}-$split
            table accuracy {fedmd,pooled}-$split
            table "$each" {alone,fedmd}-$split
        done
        picture fedmd client_accuracy_distilled {alone,fedmd}-{iid,writer} ;;
    fedmd-pooled)
        keys=client_accuracy_private,client_accuracy_distilled
        last=6 table accuracy {pooled,fedmd}-3
        table accuracy {pooled,fedmd}-12
        for rounds in 12 20 40 ""; do table $keys fedmd-3; done
        for rounds in 12 ""; do table $keys fedmd-12; done ;;
    fedgems)
        keys=server_accuracy,client_accuracy_distilled,client_accuracy_private
        table $keys control fedgem-{0.75,0.1} fedgems-{0.75,0.1} fedmd dsfl cronus
        for epsilon in 0.75 0.1; do table $keys fedgem{,s}-$epsilon; done
        table $keys control-hetero fedgem{,s}-0.1-hetero
        table $keys fedgem{,s}-0.1-hetero
        table $keys fedgems-0.1 no-{self-training,self-distillation,ensemble-distillation}
        table $keys {control,standalone,fedgems-0.75,fedmd,dsfl,cronus}-networks
        table client_accuracy standalone-networks
        for split in "" -networks; do table $keys {fedgems-0.75,fedmd,dsfl,cronus}$split; done
        table $comu fedgems-0.75 fedmd cronus dsfl fedgem-0.75
        table $comu {fedgems-0.75,fedmd,cronus,dsfl}-networks
        picture fedgems server_accuracy control fedgem{,s}-0.1{,-hetero}
        cases=self_training,self_distillation,ensemble_distillation,nobody_right
        picture fedgems_cases $cases fedgems-0.75 ;;
    fedgems-augmented)
        keys=server_accuracy,client_accuracy_distilled,client_accuracy_private
        table $keys control fedgem fedgems
        table $keys fedgem fedgems
        table $keys {control,fedgems}-hetero
        table $keys \
            {fedgems,no-self-training,no-self-distillation,no-ensemble-distillation}-hetero
        keys=self_training,self_distillation,ensemble_distillation
        for rounds in 1 5 10 ""; do last=1 table $keys fedgems{,-hetero}; done ;;
    attacks)
        keys=client_accuracy_distilled,client_accuracy_private
        for algo in fedmd cronus; do table $keys $algo-{none,paf,lie,ofom}; done
        keys=server_accuracy,$keys
        for algo in dsfl fedgem fedgems; do table $keys $algo-{none,paf,lie,ofom}; done
        for algo in fedgem fedgems; do table $keys $algo-0.1-{none,paf}; done
        picture attacks client_accuracy_distilled fedmd-{none,paf} fedgem-0.1-{none,paf} \
            fedgems-0.1-paf ;;
    fedgkt)
        keys=accuracy,edge_accuracy
        table $keys fedavg to-edge ordered both none none-own centralized
        table $keys none to-edge both none-own
        table $keys to-edge ordered both
        table $keys ordered async-work async-time
        picture fedgkt accuracy fedavg to-edge none none-own centralized ;;
    fedgkt-noniid)
        keys=accuracy,edge_accuracy
        table $keys {fedavg,to-edge,ordered,none,slow,still}-noniid
        table $keys {to-edge,ordered,none,slow,still}-noniid
        table $keys {fedavg,to-edge,still}-skewed
        table $keys {to-edge,still}-skewed
        table $keys to-edge still
        picture fedgkt-noniid accuracy {fedavg,to-edge,ordered,still}-noniid ;;
    fedgen)
        last=20
        keys=$both,client_accuracy,client_accuracy_own
        table $keys fedavg fedprox feddf fd fedgen{,-code} fedntd fedbe scaffold R1 R4
        table accuracy feddf fedgen{,-code}
        table accuracy fedgen{,-code}
        for alpha in 0.05 1.0; do table accuracy {fedavg,fedgen-code}-$alpha; done
        table $both R1 R4
        last=5 table accuracy {fedavg,fd}-iid ;;
    own-models)
        table client_accuracy_own,client_accuracy local local-0.03 fml fedproto fedkd fd
        table client_accuracy_own local-0.03 fml fedproto fedkd
        table prototype_accuracy_own,prototype_accuracy fedproto
        table server_accuracy fml fedkd ;;
    quick-start)
        base=fedavg
        for data in readme default fifth letters letters-validation letters-1.0; do
            if [ -n "$(folders $data)" ]; then echo "$data"; fi
            table $both $data
        done
        for rounds in 3 5; do                            # when does FedSDD reach FedAvg?
            echo "round-$rounds"
            last=1 table $both readme
        done
        rounds=""
        base=fedsdd:R=1
        for data in default fifth letters letters-validation letters-1.0; do
            if [ -n "$(folders $data)" ]; then echo "$data"; fi
            table $both $data
        done
        base="" ;;
    esac
    } > "docs/results/$name.new"                         # if a table fails, the file stays
    mv "docs/results/$name.new" "docs/results/$name.txt"
    last="" rounds=""
    if [ "$claim" = fedgkt-noniid ]; then continue; fi   # fedgkt.csv.gz has these runs
    python -m experiment.plot "runs/$runs" --out "docs/results/$name.csv.gz"
done
python benchmarks/verdicts.py --write --draw
