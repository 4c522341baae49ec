"""The keywords of every algorithm's `run`: which numbers are allowed, and what they mean.

A keyword's type and default are in the signature of `run`, with what it means in that algorithm.
"""
import typing
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
    allowed: Range | None = None         # None: not a number
    meaning: str = ""


HYPERPARAMETERS = {
    "rounds": Hyperparameter(AT_LEAST_0, "number of rounds"),
    "participation": Hyperparameter(SHARE, "share of the clients that take part in a round"),
    # the clients
    "local_epochs": Hyperparameter(AT_LEAST_1, "passes of a client over its own data in a round"),
    "local_steps": Hyperparameter(AT_LEAST_1, "optimizer steps of a client in a round, instead of "
                                  "--local-epochs"),
    "public_epochs": Hyperparameter(AT_LEAST_0, "passes of a client over the public data in a "
                                    "round"),
    "batch_size": Hyperparameter(AT_LEAST_1, "batch size of a client"),
    "public_batch_size": Hyperparameter(AT_LEAST_1, "batch size of a client on the public data"),
    "lr": Hyperparameter(POSITIVE, "learning rate of a client"),
    "optimizer": Hyperparameter(None, "optimizer of a client and of a server that has no "
                                "--server-optimizer: new in every round if the server sends "
                                "clients a model, otherwise kept over the rounds"),
    "weight_decay": Hyperparameter(AT_LEAST_0, "L2 penalty of the optimizers"),
    "kernel_l2": Hyperparameter(AT_LEAST_0, "L2 penalty on the last layer's weights"),
    "mu": Hyperparameter(AT_LEAST_0, "weight of the proximal term, in FedProx's local training"),
    # the server
    "server_epochs": Hyperparameter(AT_LEAST_1, "passes of the server in a round over the public "
                                    "data, or over the clients' feature maps"),
    "distill_steps": Hyperparameter(AT_LEAST_1, "steps of distillation on the server in a round"),
    "server_batch_size": Hyperparameter(AT_LEAST_1, "batch size of the server"),
    "server_lr": Hyperparameter(POSITIVE, "learning rate of the server"),
    "server_optimizer": Hyperparameter(None, "optimizer of the server"),
    "temperature": Hyperparameter(POSITIVE, "of the softmax of teacher and student; in DS-FL, "
                                  "below 1, it sharpens the clients' mean"),
    # SCAFFOLD, FedDF, FedBE
    "drop_worst": Hyperparameter(None, "clients near chance accuracy on the validation set are "
                                 "excluded from the average and from the ensemble"),
    "cosine": Hyperparameter(None, "the learning rate of distillation falls to 0 over "
                             "distill_steps"),
    "posterior": Hyperparameter(None, "distribution from which the samples are drawn"),
    "distill": Hyperparameter(None, "the global model learns from the ensemble; otherwise the "
                              "ensemble only predicts"),
    "global_lr": Hyperparameter(POSITIVE, "learning rate of the server: 1 takes the mean of the "
                                "clients' models"),
    "max_grad_norm": Hyperparameter(POSITIVE, "gradients of distillation are clipped to this "
                                    "norm; none: no clipping"),
    "patience": Hyperparameter(AT_LEAST_1, "steps without a better student on the validation set "
                               "before distillation stops; none: it makes all steps"),
    "check_every": Hyperparameter(AT_LEAST_1, "steps between two measurements on the validation "
                                  "set"),
    "samples": Hyperparameter(AT_LEAST_0, "models drawn from the posterior in a round; 0: only "
                              "the average and the clients' models"),
    "concentration": Hyperparameter(POSITIVE, "parameter of --posterior dirichlet"),
    # FedSDD
    "K": Hyperparameter(AT_LEAST_1, "global models (of each network), each with a group of "
                        "clients"),
    "R": Hyperparameter(AT_LEAST_1, "number of last rounds whose averaged models form the "
                        "ensemble"),
    "local": Hyperparameter(None, "method of local training and averaging inside a group"),
    "ensemble": Hyperparameter(None, "members of the ensemble: aggregated global models, or "
                               "clients' models"),
    "students": Hyperparameter(None, "global models that learn from the ensemble: the main one, "
                               "all, or none"),
    "secure_sum": Hyperparameter(None, "clients upload masked models: the server learns only a "
                                 "group's average"),
    "warmup_rounds": Hyperparameter(AT_LEAST_0, "rounds at the start without distillation"),
    # FedGEMS, DS-FL, Cronus
    "epsilon": Hyperparameter(FROM_0_TO_1, "weight of the cross-entropy; 1 - epsilon is that of "
                              "the distillation"),
    "self_training": Hyperparameter(None, "samples that the server predicts correctly have no "
                                    "teacher"),
    "self_distillation": Hyperparameter(None, "the pool teaches samples that the server once "
                                        "predicted correctly"),
    "ensemble_distillation": Hyperparameter(None, "the clients that are right teach the other "
                                            "samples"),
    "aggregation": Hyperparameter(None, "era: the clients' mean is sharpened; mean: it is used as "
                                  "it is"),
    "malicious_fraction": Hyperparameter(BELOW_HALF, "share of malicious clients that the robust "
                                         "mean assumes"),
    # FedMD
    "transfer_public_epochs": Hyperparameter(AT_LEAST_0, "passes over the public data in the "
                                             "transfer learning, at most"),
    "transfer_public_batch_size": Hyperparameter(AT_LEAST_1, "batch size of these passes"),
    "transfer_local_epochs": Hyperparameter(AT_LEAST_0, "passes over a client's own data in the "
                                            "transfer learning, at most"),
    "transfer_batch_size": Hyperparameter(AT_LEAST_1, "batch size of these passes"),
    "early_stopping": Hyperparameter(None, "a stage of the transfer, and pooled training, stop "
                                     "when the accuracy on held-out samples stops growing"),
    "min_delta": Hyperparameter(AT_LEAST_0, "smallest gain of accuracy that counts for early "
                                "stopping on the public data; FedMD's code has 0.005 for CIFAR, "
                                "0.001 for MNIST"),
    "subset_size": Hyperparameter(AT_LEAST_1, "public samples in a round; none: all"),
    "consensus_weights": Hyperparameter(AT_LEAST_0, "weight of each client in the consensus; "
                                        "none: equal"),
    # FedGKT
    "server_distill": Hyperparameter(None, "the server learns from the clients' logits too"),
    "client_distill": Hyperparameter(None, "the clients learn from the server's logits too"),
    "server_order": Hyperparameter(None, "order of the server's batches in each epoch: client "
                                   "after client, or the batches of all clients mixed"),
    "common_start": Hyperparameter(None, "clients of one architecture start from the same weights, "
                                   "so that their feature maps are alike"),
    "features": Hyperparameter(None, "number type in which feature maps are sent and kept"),
    "latencies": Hyperparameter(POSITIVE, "simulated time from the server's answer to a client's "
                                "next upload; none: drawn from 1 to 10"),
    # FML, FedProto, FedKD
    "alpha_ce": Hyperparameter(FROM_0_TO_1, "weight of the cross-entropy in the personal model's "
                               "loss; the rest is that of the distillation"),
    "beta_ce": Hyperparameter(FROM_0_TO_1, "the same in the shared model's loss"),
    "prototype_weight": Hyperparameter(AT_LEAST_0, "weight of the distance between features and "
                                       "the prototype of their class"),
    "hidden": Hyperparameter(None, "mentor and mentee also learn from one another's features"),
    "energy_first": Hyperparameter(SHARE, "share of the squared singular values that is sent in "
                                   "round 1"),
    "energy_last": Hyperparameter(SHARE, "the same from round --energy-rounds on"),
    "energy_rounds": Hyperparameter(AT_LEAST_1, "rounds over which this share rises"),
    # FedNTD, FD, FedGen
    "keep_true": Hyperparameter(None, "distill over all classes, not only over those other than "
                                "the label"),
    "beta": Hyperparameter(AT_LEAST_0, "weight of the distillation loss"),
    "gamma": Hyperparameter(AT_LEAST_0, "weight of the distillation loss"),
    "generated": Hyperparameter(AT_LEAST_0, "generated features in each step of a client; 0 is "
                                "FedAvg"),
    "generated_weight": Hyperparameter(AT_LEAST_0, "weight of their loss in Eq. (5), in round 1"),
    "generated_weight_decay": Hyperparameter(POSITIVE, "this weight is multiplied by it after "
                                             "every round"),
    "generator_steps": Hyperparameter(AT_LEAST_1, "steps of the generator on the server in a "
                                      "round"),
    "generator_lr": Hyperparameter(POSITIVE, "learning rate of the generator; it falls by 2% "
                                   "after every round"),
    "diversity": Hyperparameter(AT_LEAST_0, "weight of the generator's diversity loss"),
}


def allowed_numbers(name, annotation):
    """The `Range` of a keyword; None if it is no number.

    Without a row in the table, a whole number may be 0 or more, another one any finite one.
    """
    if name in HYPERPARAMETERS:
        return HYPERPARAMETERS[name].allowed
    kinds = {kind for outer in (annotation, *typing.get_args(annotation))
             for kind in (outer, *typing.get_args(outer))}
    return AT_LEAST_0 if int in kinds else FINITE if float in kinds else None
