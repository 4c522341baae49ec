"""What a command has, for the programs of this folder that make their own rounds."""
from dataclasses import asdict

import torch

from data.split import load_datasets
from experiment import build, settings


def federation_of(argv):
    """(the federation, {algorithm: its hyperparameters}) of a command's first seed, on the CPU.

    argv    as after `python fedkd_minimal.py`; the networks are of its first algorithm
    """
    command = settings.read(argv)
    seed = command.program.seeds[0]
    datasets = load_datasets(command.data_cfg, [seed], command.rows)
    fed = build.make_federation(command, datasets, seed, torch.device("cpu"))
    fed = build.seen_by(command.methods[0], fed, datasets)
    return fed, {method.label: asdict(method.cfg) for method in command.methods}
