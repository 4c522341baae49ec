"""What a command has, for the programs of this folder that make their own rounds."""
import torch

from experiment import build, settings


def federation_of(argv):
    """(the federation, {algorithm: its hyperparameters}) of a command's first seed, on the CPU.

    argv    as after `python fedkd_minimal.py`; the networks are of its first algorithm
    """
    command = settings.read(argv)
    datasets = build.load_datasets(command.shared)
    fed = build.make_federation(command.shared, datasets, command.seeds[0], torch.device("cpu"))
    fed = build.seen_by(command.methods[0], fed, command.shared)
    return fed, {method.label: method.hyperparameters for method in command.methods}
