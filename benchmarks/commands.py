"""What a command has, for the programs of this folder that make their own rounds."""
import torch

from experiment import build
from experiment.plan import plan_of
from federation import restrict_public


def federation_of(argv, seed=0, split_clients=None):
    """(the federation, {algorithm: its hyperparameters}) of a command for a seed, on the CPU.

    argv             as after `python fedkd_minimal.py`; the networks are of its first algorithm
    split_clients    labels of the training images, [N] -> the rows of each client; None: the
                     command's partition
    """
    plan = plan_of(argv)
    datasets = build.load_datasets(plan.flags)
    rows = build.split(plan.flags, datasets.task, seed)
    if split_clients is not None:
        rows = rows._replace(clients=split_clients(datasets.task.train.labels.numpy()))
    fed = build.federation(plan, datasets, seed, torch.device("cpu"), rows)
    label, algorithm = next(iter(plan.algorithms.items()))
    fed = build.with_networks(fed, **plan.networks[label])
    return restrict_public(fed, algorithm.public), plan.settings
