"""What several algorithms have in common: names of random numbers, features of a network."""
from collections import OrderedDict

import pytest
from test_contracts import recorded
from torch import nn
from toys import federation, linear, rounds, same, samples, with_features

from algorithms import ALGORITHMS, fedkd, fedproto


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_no_two_trainings_share_dropout(algo):
    """In two rounds, with two global models of each network: each has a name of its own. (FedGen's
    generator is new in every training, and its weights are loaded.)"""
    trainings = [name for name in recorded(algo).seeds if name[0] != "generator"]
    assert len(set(trainings)) == len(trainings) > 1


@pytest.mark.parametrize("module", [fedkd, fedproto])
def test_features_are_the_input_of_the_last_layer(module):
    """Those of the same pass as the logits, with its gradient; nothing stays in the network."""
    model, images = with_features(), samples(7).images
    features, logits = module.forward_with_features(model, images)
    assert same(features, model.hidden(images.flatten(1))) and same(logits, model(images))
    assert features.requires_grad and not model.classifier._forward_pre_hooks


@pytest.mark.parametrize("algo", ["fedkd", "fedproto", "fedgen"])
@pytest.mark.parametrize("network", [linear, lambda num_classes: nn.Sequential(OrderedDict(
    flatten=nn.Flatten(), classifier=nn.Identity()))])
def test_a_network_without_a_linear_layer_of_that_name_is_refused(algo, network):
    with pytest.raises(ValueError, match=f"^{algo}: .*linear.* classifier"):
        next(rounds(ALGORITHMS[algo], federation(network=network, server=network)))
