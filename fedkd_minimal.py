"""Federated learning by knowledge distillation: from flags to log lines, metrics and checkpoints.

    python fedkd_minimal.py --algo fedsdd --K 4 --R 2            embedded data, about a minute
    python fedkd_minimal.py --algo fedavg,fedsdd --seeds 0,1,2   side by side, with mean and std
    python fedkd_minimal.py --algo fedsdd:R=1,fedsdd:R=4         each with its own hyperparameters
    python fedkd_minimal.py --algo fedsdd --dataset cifar10 --paper fedsdd --out runs/fedsdd
    python fedkd_minimal.py --algo fedsdd --help                 the algorithm and its flags
    python fedkd_minimal.py --list                               algorithms, data sets, networks
    torchrun --nproc-per-node 2 fedkd_minimal.py --algo fedsdd   clients spread over processes

algorithms/ has a file for each algorithm. Its `run` is a generator that yields (metrics, state)
after every round. Its own flags are the annotated keyword-only arguments of `run`: --local-epochs
is `local_epochs`.

With --out nothing is lost but an unfinished round: after a kill, Ctrl-C or a full disk the same
command goes on, and its numbers are those of an uninterrupted run. On Linux, without a GPU, the
program makes a process for each core, eight at most; all run the same lines, and only the first one
prints and writes.
"""
import sys
from functools import partial

from experiment import build, keep, processes, report, settings
from experiment.plateau import with_plateau


def main(argv, is_program=False):
    """Runs a command; returns its runs if this process alone computes them.

    is_program    True: nobody else's program is in this process, so it may use all cores
    Bad input ends it with SystemExit(2), Ctrl-C with SystemExit(130).
    """
    with processes.one_thread():
        # Whatever can be refused is refused here, before a round is computed.
        with processes.bad_input_is_refused():
            command = settings.read(argv, __doc__)           # what runs, with which settings
            device = processes.device_of(command.program["device"], is_program)
            num_processes = processes.how_many(command, device, is_program)
            datasets = build.load_datasets(command.federation)
            build.check(command, datasets, device)
            runs = keep.runs_of(command, datasets)           # one for each seed and method
            if not command.program["describe"]:
                keep.make_folders(runs)

        report.describe(command, datasets, num_processes)
        if command.program["describe"]:
            return report.describe_all(command, datasets)
        advice = "; the same command goes on" if command.program["out"] is not None else ""
        work = partial(train, command, datasets, runs, device)
        return processes.start(work, num_processes, advice)


def train(command, datasets, runs, device):
    """The rounds of all runs, in every process."""
    for seed in command.seeds:
        fed = build.federation(command, datasets, seed, device)
        for run in [run for run in runs if run.seed == seed]:
            keep.begin(run, device)                          # after its last finished round
            own = build.seen_by(run.method, fed, command.federation)
            attack = build.attack(fed, command.federation)
            report.heading(run, attack.get("attack"))
            algorithm_run = run.method.algorithm.run
            patience = command.federation["lr_patience"]
            if patience is not None and run.method.algorithm.plateau:
                algorithm_run = with_plateau(run.method.algorithm, patience)
            for metrics, state in algorithm_run(own, run.state, **run.method.settings, **attack):
                keep.keep_round(run, metrics, state)
                report.tell_round(run, runs)
            run.state = None                                 # its memory is for the next run
    report.summary(runs)
    return runs


if __name__ == "__main__":
    processes.end_with(main, sys.argv[1:])
