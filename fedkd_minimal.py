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

from data.images import BadData
from data.split import load_datasets
from experiment import build, keep, processes, report, settings, terminal
from experiment.common import refuses
from experiment.lock import alone_in


def main(argv, is_program=False):
    """Runs a command; returns the records of its runs if this process alone computes them.

    is_program    True: nobody else's program is in this process, so it may use all cores
    Bad input ends it with SystemExit(2), Ctrl-C with SystemExit(130), --help and --list with 0.
    """
    with processes.one_thread(), terminal.ends_in_one_line():
        command = settings.read(argv, __doc__)           # which algorithms, with which settings
        program = command.program
        with alone_in(None if program.describe else program.out):
            return run(command, processes.device_of(program.device, is_program), is_program)


def run(command, device, is_program):
    """Whatever can be refused is refused here, before a round is computed; then the rounds."""
    program, data_cfg = command.program, command.data_cfg
    with refuses(BadData, OSError):
        datasets = load_datasets(data_cfg, program.seeds, command.rows)   # and who has which
    first = program.seeds[0]
    federations = {first: build.make_federation(command, datasets, first, device)}
    build.check(command, datasets, federations[first])
    num_processes = processes.how_many(command, device, is_program)
    if program.describe:
        report.describe(command, datasets, num_processes)
        return report.describe_all(command, datasets)
    records = keep.open_records(command, datasets)       # one for each seed and method
    keep.make_folders(records, command, datasets)
    report.describe(command, datasets, num_processes)
    advice = "; the same command goes on" if program.out is not None else ""
    work = partial(train, command, datasets, federations, records, device)
    return processes.start(work, num_processes, advice)


def train(command, datasets, federations, records, device):
    """The rounds of all methods with all seeds, in every process.

    federations    {seed: its federation}, those that are made already
    """
    for seed in command.program.seeds:
        fed = federations.pop(seed, None) or build.make_federation(command, datasets, seed, device)
        for record in records:
            if record.seed == seed:
                run_rounds(record, records, fed, datasets, command.training, device)
        del fed                                          # before the next seed's is made
    report.summary(records)
    return records


def run_rounds(record, records, fed, datasets, training, device):
    """The rounds of a method with a seed, from its last finished round on."""
    keep.begin(record, device)
    report.heading(record, build.attack_on(fed, training))
    seen = build.seen_by(record.method, fed, datasets)
    for metrics, state in build.rounds_of(record.method, seen, training, record.state):
        keep.keep_round(record, metrics, state)
        report.tell_round(record, records)
    record.state = None                                  # its memory is for the next method


if __name__ == "__main__":
    terminal.end_with(main, sys.argv[1:])
