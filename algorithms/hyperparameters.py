"""The keywords of every algorithm's `run`: which numbers are allowed, and what they mean.

A keyword's type and default are in the signature of `run`. A keyword without a meaning here, or
one that means something special in an algorithm, is described in the docstring of that `run`.
"""
from collections.abc import Callable
from typing import NamedTuple


class Range(NamedTuple):
    """The numbers that a flag takes."""

    words: str
    holds: Callable      # holds(number) -> bool


AT_LEAST_0 = Range("0 or more", lambda x: 0 <= x < float("inf"))
AT_LEAST_1 = Range("1 or more", lambda x: 1 <= x < 2**31)
POSITIVE = Range("greater than 0", lambda x: 0 < x < float("inf"))
SHARE = Range("in (0, 1]", lambda x: 0 < x <= 1)
FROM_0_TO_1 = Range("from 0 to 1", lambda x: 0 <= x <= 1)
BELOW_HALF = Range("at least 0 and less than 0.5", lambda x: 0 <= x < 0.5)
FINITE = Range("finite", lambda x: abs(x) < float("inf"))


class Hyperparameter(NamedTuple):
    allowed: Range | None = None     # None: not a number; of numbers that are not in the table, a
    #                                  whole number may be 0 or more, and another one any finite one
    meaning: str = ""                # "": see the docstring of `run`


HYPERPARAMETERS = {
    "rounds": Hyperparameter(AT_LEAST_0, "number of communication rounds"),
    "participation": Hyperparameter(SHARE, "share of the clients that take part in a round"),
    "attack": Hyperparameter(None, "an `Attack` of attacks.py, which replaces the uploads of "
                             "malicious clients"),
    # the clients
    "local_epochs": Hyperparameter(AT_LEAST_1, "passes of a client over its own data in a round"),
    "local_steps": Hyperparameter(AT_LEAST_1, "optimizer steps of a client in a round, instead of "
                                  "--local-epochs"),
    "public_epochs": Hyperparameter(AT_LEAST_0, "passes of a client over the public data in a "
                                    "round"),
    "batch_size": Hyperparameter(AT_LEAST_1, "batch size of a client"),
    "public_batch_size": Hyperparameter(AT_LEAST_1),
    "lr": Hyperparameter(POSITIVE, "learning rate of a client"),
    "optimizer": Hyperparameter(None, "optimizer of a client: new in every round if the client "
                                "receives a model from the server, otherwise kept over the rounds"),
    "weight_decay": Hyperparameter(AT_LEAST_0, "L2 penalty of the optimizers"),
    "kernel_l2": Hyperparameter(AT_LEAST_0, "L2 penalty on the last layer's weights"),
    "mu": Hyperparameter(AT_LEAST_0, "weight of the proximal term, in FedProx's local training"),
    # the server
    "server_epochs": Hyperparameter(AT_LEAST_1, "passes of the server over the public data in a "
                                    "round"),
    "distill_steps": Hyperparameter(AT_LEAST_1, "steps of distillation on the server in a round"),
    "server_batch_size": Hyperparameter(AT_LEAST_1, "batch size of the server"),
    "server_lr": Hyperparameter(POSITIVE, "learning rate of the server"),
    "server_optimizer": Hyperparameter(None, "optimizer of the server"),
    "temperature": Hyperparameter(POSITIVE, "softens teacher and student in the distillation loss"),
    # SCAFFOLD, FedDF, FedBE
    "global_lr": Hyperparameter(POSITIVE),
    "max_grad_norm": Hyperparameter(POSITIVE),
    "patience": Hyperparameter(AT_LEAST_1),
    "check_every": Hyperparameter(AT_LEAST_1),
    "samples": Hyperparameter(AT_LEAST_0),
    "concentration": Hyperparameter(POSITIVE),
    # FedSDD
    "K": Hyperparameter(AT_LEAST_1, "global models (of each network), each with a group of "
                        "clients"),
    "R": Hyperparameter(AT_LEAST_1, "number of last rounds whose averaged models form the "
                        "ensemble"),
    "local": Hyperparameter(None, "method of local training and averaging inside a group"),
    "warmup_rounds": Hyperparameter(AT_LEAST_0),
    # FedGEMS, Cronus
    "epsilon": Hyperparameter(FROM_0_TO_1, "weight of the cross-entropy; 1 - epsilon is that of "
                              "the distillation"),
    "malicious_fraction": Hyperparameter(BELOW_HALF),
    # FedMD
    "transfer_public_epochs": Hyperparameter(AT_LEAST_0),
    "transfer_public_batch_size": Hyperparameter(AT_LEAST_1),
    "transfer_local_epochs": Hyperparameter(AT_LEAST_0),
    "transfer_batch_size": Hyperparameter(AT_LEAST_1),
    "min_delta": Hyperparameter(AT_LEAST_0, "smallest gain of accuracy that counts for early "
                                "stopping on the public data; FedMD's code has 0.005 for CIFAR, "
                                "0.001 for MNIST"),
    "subset_size": Hyperparameter(AT_LEAST_1),
    "consensus_weights": Hyperparameter(AT_LEAST_0),
    # FedGKT
    "server_distill": Hyperparameter(None, "the server learns from the clients' logits too"),
    "client_distill": Hyperparameter(None, "the clients learn from the server's logits too"),
    "server_order": Hyperparameter(None, "order of the server's batches in each epoch: client "
                                   "after client, or the batches of all clients mixed"),
    "common_start": Hyperparameter(None, "clients of one architecture start from the same weights, "
                                   "so that their feature maps are alike"),
    "features": Hyperparameter(None, "number type in which feature maps are sent and kept"),
    "latencies": Hyperparameter(POSITIVE),
    # FedNTD, FD, FedGen
    "beta": Hyperparameter(AT_LEAST_0),
    "gamma": Hyperparameter(AT_LEAST_0),
    "generated": Hyperparameter(AT_LEAST_0),
    "generated_weight": Hyperparameter(AT_LEAST_0),
    "generated_weight_decay": Hyperparameter(POSITIVE),
    "generator_steps": Hyperparameter(AT_LEAST_1),
    "generator_lr": Hyperparameter(POSITIVE),
    "diversity": Hyperparameter(AT_LEAST_0),
}
