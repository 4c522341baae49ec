#!/usr/bin/env bash
# The tables of docs/results/ and the pictures of docs/pictures/ (matplotlib) from the runs of the
# scripts here: final and best values, differences paired by seed, each against the reference that a
# claim needs. At the end, the verdicts of docs/results/claims.md and their picture.
# usage: benchmarks/claims/tables.sh [CLAIM ...]
set -euo pipefail
cd "$(dirname "$0")/../.."
table() {   # table CLAIM KEYS METHOD ...: the first method is the reference; after so many $rounds
    python -m experiment.plot --key "$2" --base "$3" ${rounds:+--rounds $rounds} \
        $(printf "runs/$1/%s " "${@:3}")
    echo
}
picture() { # picture NAME CLAIM KEYS METHOD ...: $names at the lines, means of $smooth rounds
    python -m experiment.plot --key "$3" --smooth "${smooth:-1}" --out "docs/pictures/$1.svg" \
        $(printf "runs/$2/%s " "${@:4}") --names "${names[@]}"
}
both=accuracy,ensemble_accuracy
claims="fedsdd fedsdd-hetero fedsdd-all fedsdd-all-mnist ensembles ablations fedmd"
claims+=" fedmd-pooled fedgems fedgems-augmented attacks fedgkt fedgkt-noniid fedgen quick-start"
claims+=" first-rounds"
for claim in ${*:-$claims}; do
    case $claim in
    fedsdd)
        table fedsdd $both fedavg R4 none-R4
        table fedsdd $both none-R4 R4 ;;
    fedsdd-hetero)
        for rounds in 25 50 ""; do
            table fedsdd-hetero $both fedavg none-R4 R1 R4
            table fedsdd-hetero $both none-R4 R1 R4
            table fedsdd-hetero $both R1 R4
        done
        names=(FedAvg "FedSDD, R = 4" "its ensemble")
        smooth=5 picture fedsdd-hetero fedsdd-hetero $both fedavg R4 ;;
    fedsdd-all)
        for kind in "" -digits; do
            table fedsdd-all $both,disagreement {none,{one,all}-{10,26}}$kind
            for passes in 10 26; do table fedsdd-all $both {one,all}-$passes$kind; done
        done ;;
    fedsdd-all-mnist)
        for kind in "" -fashion; do
            table fedsdd-all-mnist $both,disagreement {none,one,all}$kind
            table fedsdd-all-mnist $both {one,all}$kind
        done ;;
    ensembles)
        for split in "" -hetero; do
            table ensembles $both {clients-K1,gaussian,dirichlet,clients-K4,R1,R2,R4}$split
            table ensembles $both {R1,R2,R4}$split
        done ;;
    ablations)
        table ablations $both fedavg fedprox scaffold none R1 R4 all R1-fedprox R1-scaffold \
            feddf config plain
        table ablations $both,disagreement none R1 R4 all
        table ablations $both R1 R4 all
        table ablations $both scaffold R1-scaffold
        table ablations $both fedprox R1-fedprox
        table ablations $both plain feddf config R1
        table ablations $both config feddf R1
        table ablations accuracy fedavg fedavg-amp
        table ablations $both R1 R1-amp ;;
    fedmd)
        each=$(echo client_accuracy_private_{0..9} | tr ' ' ,)
        for split in iid writer; do
            table fedmd accuracy,client_accuracy_distilled {alone,fedmd,pooled}-$split
            table fedmd accuracy {fedmd,pooled}-$split
            table fedmd "$each" {alone,fedmd}-$split
        done
        names=("alone, iid" "alone, by writer" "FedMD, iid" "FedMD, by writer")
        picture fedmd fedmd client_accuracy_distilled {alone,fedmd}-{iid,writer} ;;
    fedmd-pooled)
        keys=client_accuracy_private,client_accuracy_distilled
        for private in 3 12; do table fedmd-pooled accuracy {pooled,fedmd}-$private; done
        for rounds in 12 20 40 ""; do table fedmd-pooled $keys fedmd-3; done
        for rounds in 12 ""; do table fedmd-pooled $keys fedmd-12; done ;;
    fedgems)
        keys=server_accuracy,client_accuracy_distilled,client_accuracy_private
        table fedgems $keys control fedgem-{0.75,0.1} fedgems-{0.75,0.1} fedmd dsfl cronus
        for epsilon in 0.75 0.1; do table fedgems $keys fedgem{,s}-$epsilon; done
        table fedgems $keys control-hetero fedgem{,s}-0.1-hetero
        table fedgems $keys fedgem{,s}-0.1-hetero
        table fedgems $keys fedgems-0.1 no-{self-training,self-distillation,ensemble-distillation}
        table fedgems $keys {control,standalone,fedgems-0.75,fedmd,dsfl,cronus}-networks
        table fedgems client_accuracy standalone-networks
        for split in "" -networks; do
            table fedgems $keys {fedgems-0.75,fedmd,dsfl,cronus}$split
        done
        python benchmarks/comu.py 0.3,0.35,0.4 \
            runs/fedgems/{fedmd,cronus,dsfl,fedgem-0.75,fedgems-0.75}
        echo
        python benchmarks/comu.py 0.3,0.35,0.4 \
            runs/fedgems/{fedmd,cronus,dsfl,fedgems-0.75}-networks
        names=("labels alone, iid" "FedGEM, iid" "FedGEM, alpha 0.1" "FedGEMS, iid")
        names+=("FedGEMS, alpha 0.1")
        picture fedgems fedgems server_accuracy control fedgem{,s}-0.1{,-hetero}
        cases=self_training,self_distillation,ensemble_distillation,nobody_right
        names=(self-training self-distillation "ensemble distillation" "nobody right")
        picture fedgems_cases fedgems $cases fedgems-0.75 ;;
    fedgems-augmented)
        keys=server_accuracy,client_accuracy_distilled,client_accuracy_private
        table fedgems-augmented $keys control fedgem fedgems
        table fedgems-augmented $keys fedgem fedgems
        table fedgems-augmented $keys {control,fedgems}-hetero
        table fedgems-augmented $keys \
            {fedgems,no-self-training,no-self-distillation,no-ensemble-distillation}-hetero
        keys=self_training,self_distillation,ensemble_distillation
        for rounds in 1 5 10 ""; do table fedgems-augmented $keys fedgems{,-hetero}; done ;;
    attacks)
        keys=client_accuracy_distilled,client_accuracy_private
        for algo in fedmd cronus; do table attacks $keys $algo-{none,paf,lie,ofom}; done
        keys=server_accuracy,$keys
        for algo in dsfl fedgem fedgems; do table attacks $keys $algo-{none,paf,lie,ofom}; done
        for algo in fedgem fedgems; do table attacks $keys $algo-0.1-{none,paf}; done
        names=(FedMD "FedMD, PAF" FedGEM "FedGEM, PAF" "FedGEMS, PAF")
        picture attacks attacks client_accuracy_distilled \
            fedmd-{none,paf} fedgem-0.1-{none,paf} fedgems-0.1-paf ;;
    fedgkt)
        table fedgkt accuracy,edge_accuracy fedavg to-edge ordered both none none-own centralized
        table fedgkt accuracy,edge_accuracy none to-edge both none-own
        table fedgkt accuracy,edge_accuracy to-edge ordered both
        table fedgkt accuracy,edge_accuracy ordered async-work async-time
        names=(FedAvg FedGKT None "None, own weights" centralized)
        picture fedgkt fedgkt accuracy fedavg to-edge none none-own centralized ;;
    fedgkt-noniid)
        table fedgkt accuracy,edge_accuracy {fedavg,to-edge,ordered,none,slow,still}-noniid
        table fedgkt accuracy,edge_accuracy {to-edge,ordered,none,slow,still}-noniid
        table fedgkt accuracy,edge_accuracy {fedavg,to-edge,still}-skewed
        table fedgkt accuracy,edge_accuracy {to-edge,still}-skewed
        table fedgkt accuracy,edge_accuracy to-edge still
        names=(FedAvg FedGKT "Algorithm 1's order" "extractors at rest")
        picture fedgkt-noniid fedgkt accuracy {fedavg,to-edge,ordered,still}-noniid ;;
    fedgen)
        keys=accuracy,ensemble_accuracy,client_accuracy,client_accuracy_own
        table fedgen $keys fedavg fedprox feddf fd fedgen{,-code} fedntd fedbe scaffold R1 R4
        table fedgen accuracy feddf fedgen{,-code}
        table fedgen accuracy fedgen{,-code}
        for alpha in 0.05 1.0; do
            table fedgen accuracy {fedavg,fedgen-code}-$alpha
        done
        table fedgen $both R1 R4
        table fedgen accuracy {fedavg,fd}-iid ;;
    quick-start)
        for data in default fifth letters letters-validation letters-1.0; do
            for base in fedavg fedsdd:R=1; do
                echo "$data"
                python -m experiment.plot "runs/quick-start/$data" --key $both --base $base
            done
        done ;;
    first-rounds)
        for rounds in 3 5; do
            python -m experiment.plot runs/first-rounds --key accuracy --rounds $rounds
            echo
        done ;;
    esac > "docs/results/$claim.new"                     # if a run is missing, the table stays
    mv "docs/results/$claim.new" "docs/results/$claim.txt"
done
python benchmarks/verdicts.py --write --draw
