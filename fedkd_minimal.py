"""Federated learning by knowledge distillation: from flags to log lines, metrics and checkpoints.

    python fedkd_minimal.py --algo fedsdd --K 4 --R 2            embedded data, half a minute or one
    python fedkd_minimal.py --algo fedavg,fedsdd --seeds 0,1,2   side by side, with mean and std
    python fedkd_minimal.py --algo fedsdd:R=1,fedsdd:R=4         each with its own hyperparameters
    python fedkd_minimal.py --algo fedsdd --dataset cifar10 --paper fedsdd --out runs/fedsdd
    python fedkd_minimal.py --algo fedsdd --help                 the algorithm and its flags
    python fedkd_minimal.py --list                               algorithms, data sets, networks
    torchrun --nproc-per-node 2 fedkd_minimal.py --algo fedsdd   clients spread over processes

algorithms/ has a file for each algorithm. Its `run` is a generator that yields (metrics, state)
after every round; the fields of its `Config` are flags: --local-epochs is `local_epochs`.

With --out nothing is lost but an unfinished round: after a kill, Ctrl-C or a full disk the same
command goes on, and its numbers are those of an uninterrupted run. On Linux, without a GPU, the
program makes a process for each core, eight at most, and no more than a round has clients; all run
the same lines, and only the first one prints and writes.
"""
import sys
from functools import partial

from experiment import build, keep, processes, report, settings


def main(argv, is_program=False):
    """Runs a command; returns the records of its runs if this process alone computes them.

    is_program    True: nobody else's program is in this process, so it may use all cores
    Bad input ends it with SystemExit(2), Ctrl-C with SystemExit(130).
    """
    with processes.one_thread():
        # Whatever can be refused is refused here, before a round is computed.
        with processes.bad_input_is_refused():
            command = settings.read(argv, __doc__)           # what runs, with which settings
            device = processes.device_of(command.program["device"], is_program)
            datasets = build.load_datasets(command.shared)
            build.check(command, datasets, device)
            num_processes = processes.how_many(command, device, is_program)
            records = keep.records_of(command, datasets)     # one for each seed and method
            if not command.program["describe"]:
                keep.make_folders(records)
            keep.keep_splits(command, datasets)

        report.describe(command, datasets, num_processes)
        if command.program["describe"]:
            return report.describe_all(command, datasets)
        advice = "; the same command goes on" if command.program["out"] is not None else ""
        work = partial(train, command, datasets, records, device)
        return processes.start(work, num_processes, advice)


def train(command, datasets, records, device):
    """The rounds of all methods with all seeds, in every process."""
    for seed in command.seeds:
        without_networks = build.make_federation(command.shared, datasets, seed, device)
        for record in [record for record in records if record.seed == seed]:
            keep.begin(record, device)                       # after its last finished round
            fed = build.seen_by(record.method, without_networks, command.shared)
            report.heading(record, build.attack_in(fed, command.shared))
            for metrics, state in build.rounds_of(record.method, fed, command.shared, record.state):
                keep.keep_round(record, metrics, state)
                report.tell_round(record, records)
            record.state = None                              # its memory is for the next method
    report.summary(records)
    return records


if __name__ == "__main__":
    processes.end_with(main, sys.argv[1:])
