"""Federated learning by knowledge distillation: from flags to log lines, metrics and checkpoints.

    python fedkd_minimal.py --algo fedsdd --K 4 --R 2            embedded data, under a minute
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
On Linux the program makes a process for each core; all run the same lines, and only the first one
prints and writes.
"""
import sys
from dataclasses import replace
from functools import partial

from experiment import process

if __name__ == "__main__":
    process.end_on_signals()                        # also while torch is imported

import attacks
from experiment import build, checkpoint, report, saved_model
from experiment.config import configure, most_clients
from experiment.flags import parse
from experiment.plateau import with_plateau
from federation import restrict_public, stream


def federation_of(run, fed):
    """The federation as the algorithm of a run sees it: with its networks and its public data."""
    fed = build.with_networks(fed, **run.networks)
    if run.config["flags"]["joint"] and run.algorithm.public != "joint":
        fed = replace(fed, public_test=None)     # its labels are of classes that are not learned
    return restrict_public(fed, run.algorithm.public)


def keywords_of(run, fed):
    """The keyword arguments for the algorithm's `run`: its hyperparameters, and who attacks."""
    flags = run.config["flags"]
    if flags["attack"] is None:
        return run.settings
    # Some clients poison their uploads.
    attack = attacks.build(flags["attack"], partial(stream, fed.seed), len(fed.private),
                           flags["attackers"], flags["attack_scale"], flags["attack_z"])
    return run.settings | {"attack": attack}


def rounds_of(run, fed):
    """The rounds after the last finished one: the algorithm's generator of (metrics, state)."""
    algorithm, patience = run.algorithm, run.config["flags"]["lr_patience"]
    algorithm_run = algorithm.run
    if patience is not None and algorithm.plateau:
        algorithm_run = with_plateau(algorithm, patience)
    return algorithm_run(fed, run.state, **keywords_of(run, fed))


def main(argv, may_fork=False):
    """Runs a command. Bad input ends it with SystemExit(2), Ctrl-C with SystemExit(130).

    may_fork    True: it may use all cores without --processes, because nobody else's program is
                in this process
    """
    # What can be refused is refused here, before anything is trained. (Below, `kept_in` refuses a
    # folder that holds a run or that another process uses.)
    with process.bad_input_is_refused():
        # What to run: the flags, or the config in the folder that --resume names.
        given = parse(argv, __doc__)
        is_new = "resume" not in given
        folder = given.get("out") if is_new else given["resume"]              # None: keep nothing
        config, choices = configure(given) if is_new else checkpoint.resumed(given)
        # The data, and for each seed who holds which images.
        device = process.set_up(config["environment"])
        num_processes = process.how_many(given, device.type, most_clients(config), may_fork)
        datasets = build.load_datasets(config["flags"], config["networks"])
        config = checkpoint.with_data(config, build.fingerprints(config["flags"], datasets))
        splits = {seed: build.split(config["flags"], datasets.task, seed)
                  for seed in config["seeds"]}
        # A run for each seed and algorithm.
        runs = checkpoint.runs_of(folder, config, choices)
        if "save_model" in given and len(runs) > 1:
            raise ValueError("--save-model is for one algorithm and one seed")
        if not is_new:
            checkpoint.check_readable(runs, device)
        # Does each algorithm fit the federation? They are alike for all seeds: one will do.
        first_seed, first_split = next(iter(splits.items()))
        fed = build.federation(config["flags"], datasets, first_split, first_seed, device)
        for run in [run for run in runs if run.seed == first_seed]:
            own = federation_of(run, fed)
            run.algorithm.check(own, **keywords_of(run, own))

    if "describe" in given:
        report.describe(config, choices, datasets, first_split, num_processes)
        report.tell_classes(datasets.task, first_split)
        return
    with checkpoint.kept_in(folder, config, runs, is_new) as locks, process.resumable(folder):
        report.describe(config, choices, datasets, first_split, num_processes)
        process.import_optimizers()              # 2 seconds that would count in round 1
        with process.forked(num_processes, locks):
            for seed in config["seeds"]:
                fed = build.federation(config["flags"], datasets, splits[seed], seed, device,
                                       config["environment"]["threads"])
                for run in [run for run in runs if run.seed == seed]:
                    run.open(device)
                    own = federation_of(run, fed)
                    run.clock = report.Clock(run, own)
                    report.heading(run, own)
                    for metrics, state in rounds_of(run, own):
                        run.keep(metrics, state)
                        report.tell_round(run)
                    if "save_model" in given:
                        saved_model.save(given["save_model"], run, own, datasets)
                    run.close()
            report.summary(runs)


if __name__ == "__main__":
    process.end_with(main, sys.argv[1:])
