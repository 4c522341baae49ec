"""Federated learning by knowledge distillation: from flags to log lines, metrics and checkpoints.

    python fedkd_minimal.py --algo fedsdd --K 4 --R 2            embedded data, under a minute
    python fedkd_minimal.py --algo fedavg,fedsdd --seeds 0,1,2   side by side, with mean and std
    python fedkd_minimal.py --algo fedsdd:R=1,fedsdd:R=4         each with its own hyperparameters
    python fedkd_minimal.py --algo fedsdd --dataset cifar10 --paper fedsdd --out runs/fedsdd
    python fedkd_minimal.py --resume runs/fedsdd                 continue a run that was stopped
    python fedkd_minimal.py --algo fedsdd --help                 the algorithm and its flags
    python fedkd_minimal.py --list                               algorithms, data sets, networks
    torchrun --nproc-per-node 2 fedkd_minimal.py --algo fedsdd   clients spread over processes

An algorithm is one file of algorithms/; its `run` is a generator that yields (metrics, state) after
every round. Its flags are the keyword-only arguments of `run`: --local-epochs is `local_epochs`.

Nothing is lost: a run that is killed at any moment, or stopped by Ctrl-C or a full disk, goes on
with --resume after its last finished round, and its numbers are those of an uninterrupted run.
Under torchrun every process runs this program; only the first prints and writes.
"""
import sys
from functools import partial

from experiment import process

if __name__ == "__main__":
    process.end_on_signals()                        # Ctrl-C while torch is imported

import attacks
from algorithms import ALGORITHMS
from experiment import build, checkpoint, report, saved_model
from experiment.config import configure
from experiment.flags import name_of, parse
from experiment.plateau import with_plateau
from experiment.process import say
from federation import restrict_public, stream


def inputs_of(algo, fed, config):
    """(the federation, the keyword arguments) for the algorithm's `run`."""
    flags, settings = config["flags"], dict(config["settings"][algo])         # hyperparameters
    if flags["attack"] is not None:                          # some clients poison their uploads
        settings["attack"] = attacks.build(
            flags["attack"], partial(stream, fed.seed), len(fed.private), flags["attackers"],
            flags["attack_scale"], flags["attack_z"])
    public = ALGORITHMS[name_of(algo)].public
    return restrict_public(fed, public), settings            # maybe without labels


def rounds_of(algo, fed, state, config):
    """The rounds of an algorithm after `state`: a generator of (metrics, state)."""
    algorithm, patience = ALGORITHMS[name_of(algo)], config["flags"]["lr_patience"]
    fed, settings = inputs_of(algo, fed, config)
    run = algorithm.run
    if patience is not None and algorithm.plateau:
        run = with_plateau(run, algorithm.evaluate, algorithm.plateau, patience,
                           algorithm.evaluate_each)
    return run(fed, state, **settings)


def main(argv):
    """Runs a command. Bad input ends it with SystemExit(2), Ctrl-C with SystemExit(130)."""
    # Everything that can be refused is refused here, before anything is trained or written.
    with process.bad_input_is_refused():
        # What to run: the flags, or the config of the run that --resume names.
        given = parse(argv, __doc__)
        is_new = "resume" not in given
        folder = given.get("out") if is_new else given["resume"]              # None: keep nothing
        config = configure(given) if is_new else checkpoint.resumed(given)
        places = checkpoint.places(folder, config)       # {(algorithm, seed): folder of this run}
        if "save_model" in given and len(places) > 1:
            raise ValueError("--save-model is for one algorithm and one seed")
        # The images, the same as before if the run is resumed; for each seed, who holds which.
        device = process.set_up(config["environment"])
        datasets = build.load(config["flags"])
        config = checkpoint.with_data(config, build.fingerprints(config["flags"], datasets))
        splits = {seed: build.split(config["flags"], datasets.task, seed)
                  for seed in config["seeds"]}
        # Does each algorithm fit the federation? They are alike for all seeds: the first will do.
        first_seed, first_split = next(iter(splits.items()))
        fed = build.federation(config["flags"], datasets, first_split, first_seed, device)
        for algo in config["algo"]:
            seen, settings = inputs_of(algo, fed, config)
            ALGORITHMS[name_of(algo)].check(seen, **settings)
        # Can all checkpoints be read?
        for (algo, seed), place in places.items() if not is_new else ():
            checkpoint.restore(place, checkpoint.one_run(config, algo, seed), device)

    results, num_trained = {}, 0
    with checkpoint.locked(folder, places, is_new), process.resumable(folder):
        report.describe(config, datasets, first_split)
        if "describe" in given:
            report.tell_classes(datasets.task, first_split)
        checkpoint.write_config(folder, config)
        process.import_optimizers()
        for seed in config["seeds"]:
            fed = build.federation(config["flags"], datasets, splits[seed], seed, device)
            for algo in config["algo"]:
                # The state after the last finished round, and what was measured until then.
                place, run_config = places[algo, seed], checkpoint.one_run(config, algo, seed)
                state, rows, timings = checkpoint.restore(place, run_config, device)
                process.wait_for_all()              # until the other processes have read it, too
                checkpoint.begin(place, run_config, rows, timings)
                report.begin(algo, fed, config["settings"][algo], state)
                results.setdefault(algo, []).append((rows, timings))
                progress = report.Progress()        # the clock; it also counts trained clients
                fed.on_trained = progress

                # The rounds after that state: for each a checkpoint, and a line of the log.
                rounds = rounds_of(algo, fed, state, config)
                for metrics, state in rounds:
                    rows.append({"round": state["round"], **metrics})
                    timings.append({"round": state["round"], **progress.seconds_of_round(fed)})
                    checkpoint.save(place, run_config, state, rows, timings)
                    report.tell_round(algo, rows, timings, config["settings"][algo]["rounds"])
                num_trained += progress.num_trained
                if "save_model" in given:
                    saved_model.save(given["save_model"], algo, state, config["flags"], datasets)

        report.summary(results, config["flags"])
        if process.count() > 1:
            counts = process.gather(num_trained)
            say(f"clients trained by each process: {' '.join(map(str, counts))}")


if __name__ == "__main__":
    process.run(main, sys.argv[1:])
