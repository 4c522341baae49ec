"""What a command has, for the programs of this folder that make their own rounds."""
import torch

from experiment import build
from experiment.plan import plan_of
from federation import restrict_public


def federation_of(argv):
    """(the federation, {algorithm: its hyperparameters}) of a command's first seed, on the CPU.

    argv    as after `python fedkd_minimal.py`; the networks are of its first algorithm
    """
    plan = plan_of(argv)
    datasets = build.load_datasets(plan.flags)
    fed = build.federation(plan, datasets, plan.seeds[0], torch.device("cpu"))
    label, algorithm = next(iter(plan.algorithms.items()))
    fed = build.with_networks(fed, **plan.networks[label])
    return restrict_public(fed, algorithm.public), plan.settings
