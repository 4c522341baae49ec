"""What a command has, for the programs of this folder that make their own rounds."""
import torch

from experiment import build
from experiment.config import configure
from experiment.flags import parse
from federation import restrict_public


def federation_of(argv, seed=0, split_clients=None):
    """(the federation, {algorithm: its hyperparameters}) of a command for a seed, on the CPU.

    argv             as after `python fedkd_minimal.py`; the networks are of its first algorithm
    split_clients    labels of the training images, [N] -> the rows of each client; None: the
                     command's partition
    """
    config, choices = configure(parse(argv))
    datasets = build.load_datasets(config["flags"], config["networks"])
    split = build.split(config["flags"], datasets.task, seed)
    if split_clients is not None:
        split = split._replace(clients=split_clients(datasets.task.train.labels.numpy()))
    fed = build.federation(config["flags"], datasets, split, seed, torch.device("cpu"))
    fed = build.with_networks(fed, **config["networks"][choices[0].label])
    return restrict_public(fed, choices[0].algorithm.public), config["settings"]
