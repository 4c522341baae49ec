"""Federated learning by knowledge distillation: from flags to log lines, metrics and checkpoints.

    python fedkd_minimal.py --algo fedsdd --K 4 --R 2            embedded data, about a minute
    python fedkd_minimal.py --algo fedavg,fedsdd --seeds 0,1,2   side by side, with mean and std
    python fedkd_minimal.py --algo fedsdd:R=1,fedsdd:R=4         each with its own hyperparameters
    python fedkd_minimal.py --algo fedsdd --dataset cifar10 --paper fedsdd --out runs/fedsdd
    python fedkd_minimal.py --resume runs/fedsdd                 continue a run that was stopped
    python fedkd_minimal.py --algo fedsdd --help                 the algorithm and its flags
    python fedkd_minimal.py --list                               algorithms, data sets, networks
    torchrun --nproc-per-node 2 fedkd_minimal.py --algo fedsdd   clients spread over processes

algorithms/ has a file for each algorithm. Its `run` is a generator that yields (metrics, state)
after every round. Its own flags are the annotated keyword-only arguments of `run`: --local-epochs
is `local_epochs`.

With --out nothing is lost but an unfinished round: a run that is killed at any moment, or stopped
by Ctrl-C or a full disk, goes on with --resume, and its numbers are those of an uninterrupted run.
On Linux, without a GPU, the program makes a process for each core, eight at most; all run the same
lines, and only the first one prints and writes.
"""
import shlex
import sys
from functools import partial
from pathlib import Path

from experiment import build, keep, processes, report, saved_model
from experiment.plan import plan_of
from experiment.plateau import with_plateau


def main(argv, is_program=False):
    """Runs a command; returns its runs if this process alone computes them.

    is_program    True: nobody else's program is in this process, so it may use all cores
    Bad input ends it with SystemExit(2), Ctrl-C with SystemExit(130).
    """
    with processes.one_thread():
        # Whatever can be refused is refused here, before a folder is made.
        with processes.bad_input_is_refused():
            plan = plan_of(argv, __doc__)                    # what runs, with which settings
            runs = keep.runs_of(plan)                        # one for each seed and algorithm
            kept = keep.take_decisions(plan, runs)           # on --resume: as it was started
            device = processes.device_of(plan.environment["device"], is_program)
            num_processes = processes.how_many(plan.given.get("processes"), device.type,
                                               plan.most_clients, is_program)
            datasets = build.load_datasets(plan.flags)
            fingerprints = build.fingerprints(plan.flags, datasets)
            keep.configure(plan, runs, kept, fingerprints)
            build.check(plan, datasets, runs, device)
            if "describe" not in plan.given:
                keep.make(plan, runs, fingerprints)

        split = build.split(plan.flags, datasets.task, plan.seeds[0])
        report.describe(plan, datasets, fingerprints, split, num_processes)
        if "describe" in plan.given:
            report.tell_settings(plan)
            report.tell_classes(plan, datasets.task, split)
            return None
        advice = ""
        if plan.folder:
            folder = shlex.quote(str(plan.folder))
            advice = f"; every finished round is kept; --resume {folder} continues"
        return processes.start(partial(train, plan, datasets, runs, device), num_processes, advice)


def train(plan, datasets, runs, device):
    """The rounds of all runs, in every process."""
    for seed in plan.seeds:
        fed = build.federation(plan, datasets, seed, device)
        for run in [run for run in runs if run.seed == seed]:
            keep.begin(run, device)                          # after its last finished round
            own, attack = build.seen_by(run, fed, plan.flags), build.attack(fed, plan.flags)
            report.heading(run, attack.get("attack"))
            algorithm_run, patience = run.algorithm.run, plan.flags["lr_patience"]
            if patience is not None and run.algorithm.plateau:
                algorithm_run = with_plateau(run.algorithm, patience)
            for metrics, state in algorithm_run(own, run.state, **run.settings, **attack):
                keep.keep_round(run, own, metrics, state)
                report.tell_round(run)
            if "save_model" in plan.given:
                saved_model.save(Path(plan.given["save_model"]), run, own, datasets,
                                 plan.flags["joint"])
            run.state = None                                 # its memory is for the next run
    report.summary(runs)
    return runs


if __name__ == "__main__":
    processes.end_with(main, sys.argv[1:])
