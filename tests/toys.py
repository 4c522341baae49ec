"""Small federations whose rounds can be followed by hand: linear networks on a few images of 1 x 2 x 2."""
import dataclasses

import numpy as np
import torch
from torch import nn

from algorithms.common import Data, Federation, seeded

SHAPE = (1, 2, 2)
EQUATIONS = (    # the functions that carry an equation: each can be copied alone, and none can change unnoticed
    "equations.kl_divergence", "equations.distillation_loss", "equations.average_weights", "fedprox.proximal_term",
    "scaffold.corrected_gradient", "scaffold.updated_client_control", "feddf.drop_worst", "fedbe.gaussian_sample",
    "fedbe.dirichlet_sample", "fedsdd.group_clients", "fedsdd.ensemble_logits", "fedmd.consensus", "fedmd.digest_loss",
    "equations.soft_cross_entropy", "dsfl.entropy_reduction", "cronus.robust_mean", "fedgems.entropy", "fedgems.reliable_clients",
    "fedgems.entropy_weights", "fedgems.fuse_logits", "fedgems.server_loss", "fedgems.client_loss", "fedgkt.server_loss", "fedgkt.client_loss",
    "attacks.paf", "attacks.lie", "attacks.ofom", "attacks.lie_z", "partition.iid", "partition.dirichlet",
    "partition.dirichlet_balanced", "partition.dirichlet_equal", "partition.by_writer", "partition.few_per_class",
    "partition.by_subclass", "partition.fedgkt_table6", "communication.weights_bytes", "communication.logits_bytes",
    "communication.features_bytes", "communication.split_learning_bytes")


def linear(num_classes=3):
    """softmax regression on the four pixels: parameters 1.weight [C, 4] and 1.bias [C]."""
    return nn.Sequential(nn.Flatten(), nn.Linear(4, num_classes))


def with_batchnorm(num_classes=3):
    """A network with running statistics and a counter: buffers 0.running_mean [1], 0.running_var, 0.num_batches_tracked."""
    return nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(4, num_classes))


def with_dropout(num_classes=3):
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, num_classes))


def with_hidden_layer(num_classes=3):
    """Another network than `linear`: two hidden units."""
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, num_classes))


def constant(*logits):
    """A state_dict of `linear` that gives every image these logits."""
    return {"1.weight": torch.zeros(len(logits), 4), "1.bias": torch.tensor(logits)}


def samples(count, num_classes=3, seed=0):
    """Random images whose class is where their mean lies, so that there is something to learn."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(num_classes, size=count)
    images = rng.normal(size=(count, *SHAPE)) + labels[:, None, None, None]
    return Data(torch.tensor(images, dtype=torch.float32), torch.tensor(labels))


def federation(sizes=(5, 3, 4, 6), network=linear, seed=0, num_public=8, num_classes=3, server=with_hidden_layer, **changes):
    """One client per entry of sizes, holding that many samples; client i has network i mod len, if there are several."""
    networks = network if isinstance(network, tuple) else (network,)
    own = [networks[i % len(networks)] for i in range(len(sizes))]

    def client_model(i, init=0):
        with seeded(seed, "init", init):
            return own[i](num_classes)

    def server_model(init=0):
        with seeded(seed, "server init", init):
            return server(num_classes)

    return Federation(**{
        "private": [samples(size, num_classes, seed=100 + i) for i, size in enumerate(sizes)], "test": samples(40, num_classes, 1),
        "num_classes": num_classes, "client_model": client_model, "server_model": server_model,
        "architecture": [make.__name__ for make in own], "seed": seed,
        "device": torch.device("cpu"), "public": Data(samples(num_public, num_classes, 2).images, None), **changes})


def labelled(**changes):
    """A federation whose public samples have labels: 8 of them, or `num_public`."""
    fed = federation(**changes)
    return dataclasses.replace(fed, public=samples(len(fed.public.images), fed.num_classes, seed=2))


def same(a, b):
    """True if two nested states are equal bit for bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def without_seconds(metrics):
    return {key: value for key, value in metrics.items() if not key.endswith("_seconds")}


def last(generator):
    """The (metrics, state) of the last round."""
    *_, result = generator
    return result
