"""The functions without the program: networks and tensors of one's own, errors that speak of
keywords. (federation.py's own promises: test_federation.py.)"""
import ast
import copy
import math
from functools import partial

import numpy as np
import pytest
import torch
from functions import ROOT
from test_contracts import Net, Server
from test_federation import of_tensors
from torch import nn
from toys import last, rounds, same, with_batchnorm, with_hidden_layer

from algorithms import (fedavg, fedbe, feddf, fedgkt, fedmd, fedntd, fedprox, fedproto, fedsdd,
                        fedsdd_ablations)
from federation import from_tensors


@pytest.mark.parametrize("algorithm, settings", [
    (fedsdd_ablations, {"K": 2, "participation": 1.0, "local_epochs": 1, "distill_steps": 2}),
    (feddf, {"participation": 1.0, "local_epochs": 1, "distill_steps": 20, "check_every": 10}),
    (fedmd, {"transfer_public_epochs": 1, "transfer_local_epochs": 1})])
def test_mixed_networks_of_ones_own_train(algorithm, settings):
    """FedMD's public images have labels, as its transfer learning needs."""
    fed = of_tensors([with_batchnorm, with_hidden_layer])
    (_, start), *_, (metrics, end) = rounds(algorithm, fed, rounds=2, **settings)
    assert end["round"] == 2 and 0 <= metrics["accuracy"] <= 1 and not same(start, end)


def test_whole_numbers_of_numpy_are_settings():
    """A run keeps Python's numbers."""
    def made(number, truth):
        fed = of_tensors(seed=number(3))
        return [*rounds(fedsdd_ablations, fed, rounds=number(2), K=number(2), participation=1.0,
                        batch_size=number(2), local_steps=number(3), distill_steps=number(1),
                        secure_sum=truth(False))]
    assert same(made(np.int64, np.bool_), made(int, bool))


class Edge(Net):
    def __init__(self):
        super().__init__(3)


def test_a_servers_network_may_read_feature_maps():
    """It is not tried on images."""
    fed = of_tensors([Edge], server_network=lambda: nn.Linear(7, 3))
    assert fed.num_classes == 3 and fed.server_model().in_features == 7


@pytest.mark.parametrize("network, server", [
    (Edge, lambda: Server(5)), (Edge, lambda: nn.Linear(7, 3)),
    (with_batchnorm, lambda: Server(3))])
def test_a_servers_network_that_does_not_fit_is_refused_before_training(network, server):
    """Another number of outputs, another input; a client's network without feature maps."""
    with pytest.raises(ValueError, match=r"makes no logits \[B, 3\]|methods extract and"):
        next(rounds(fedgkt, of_tensors([network], server_network=server)))


@pytest.mark.parametrize("algorithm", [fedavg, fedbe, feddf, fedntd, fedprox, fedsdd])
def test_weights_that_a_function_returns_are_the_callers_to_keep(algorithm):
    """Another call with the same weights changes neither them nor what the first has returned."""
    fed, cfg = of_tensors(), algorithm.Config(lr=0.1)
    start = fed.global_model().state_dict()
    functions = [partial(algorithm.train_client, fed, cfg, 1, 0)]
    if algorithm is fedsdd:
        functions += [lambda weights: fedsdd.distill(
            fed, cfg, 1, weights, fed.public.images, torch.ones(len(fed.public.images), 3))]
    for function in functions:
        before, kept = copy.deepcopy(start), function(start)
        copied = copy.deepcopy(kept)
        function(kept)
        assert same(start, before) and same(kept, copied) and not same(kept, start)


class Own(nn.Module):
    """Its methods have names that FedGKT uses, for something else; its numbers are counts."""

    def __init__(self):
        super().__init__()
        self.classifier = nn.Linear(4, 3)

    def extract(self, images, rows, columns):
        return images[:, :, :rows, :columns].log1p()

    def forward(self, images):
        return self.classifier(self.extract(images, 2, 2).flatten(1))


@pytest.mark.parametrize("algorithm", [fedavg, fedsdd, fedmd, fedproto])
def test_counts_are_images_and_a_network_may_have_an_extract_of_its_own(algorithm):
    def counts(n, seed):
        images = torch.from_numpy(np.random.default_rng(seed).poisson(5000., (n, 1, 2, 2)))
        return images.float(), torch.arange(n) % 3
    fed = from_tensors([counts(9, i) for i in range(10)], counts(9, 10), [Own],
                       public=counts(9, 11), validation=counts(9, 12))
    metrics, state = last(rounds(algorithm, fed, rounds=1))
    assert fed.test.images.max() > 1000 and math.isfinite(metrics["accuracy"])


def test_errors_speak_of_keywords_not_of_flags():
    files = [*(ROOT / "algorithms").glob("*.py"),
             *(ROOT / f"{name}.py" for name in ("federation", "attacks", "models", "partition"))]
    raised = [node for path in files for node in ast.walk(ast.parse(path.read_text()))
              if isinstance(node, ast.Raise)]
    words = [node.value for error in raised for node in ast.walk(error)
             if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert len(words) > 50 and not [text for text in words if "--" in text]
