"""Baselines without exchange: what each network is trained on, and for whom it counts."""
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from toys import federation, labeled, last, linear, same, samples, with_hidden_layer

from algorithms import ALGORITHMS, baselines
from experiment.plateau import run_with_plateau
from federation import (OPTIMIZERS, make_rng, mean_of, minibatches, own_accuracy, score_clients,
                        score_server)

QUICK = {"rounds": 3, "batch_size": 4, "lr": 0.01}
BOTH = {"network": (linear, with_hidden_layer)}          # client i has network i mod 2
SIZES = (6, 3, 2)                  # with 8 public samples: no batch of 4 is of one sample
ALL = ["standalone", "public-private", "centralized", "centralized-all"]


def rounds(name, fed, **settings):
    """The rounds of a baseline with these settings."""
    algorithm = ALGORITHMS[name]
    return algorithm.run(fed, algorithm.Config(**QUICK, **settings))


def test_own_accuracy_by_hand():
    """Class 0: 1 of 3 right, class 1: 1 of 1. A client with three times as many images of class 1,
    one with class 0 alone, and one whose only class, 2, has no test image."""
    predicted, labels = F.one_hot(torch.tensor([0, 1, 2, 1])).float(), torch.tensor([0, 0, 0, 1])
    found = [own_accuracy(predicted, labels, torch.tensor(own))
             for own in ([1, 0, 1, 1], [0, 0], [2])]
    assert found == [pytest.approx(1 / 4 * 1 / 3 + 3 / 4), pytest.approx(1 / 3), None]
    assert mean_of(found) == pytest.approx((5 / 6 + 1 / 3) / 2) and mean_of([None]) is None


def one_long_training(model, name, *parts, rates=(0.01, 0.01, 0.01)):
    """A plain loop over all rounds with one optimizer, on parts (images, labels, epochs)."""
    adam = torch.optim.Adam(model.parameters(), weight_decay=1e-4, amsgrad=True)
    for t, adam.param_groups[0]["lr"] in enumerate(rates, start=1):
        for number, (images, labels, epochs) in enumerate(parts):
            rng = make_rng(0, "alone", t, name, number)
            for rows in minibatches(images, 4, rng, epochs):
                adam.zero_grad()
                F.cross_entropy(model(images[rows]), labels[rows]).backward()
                adam.step()
    return dict(model.state_dict())


def models_of(state):
    """{name: state_dict}: "server", a client's number, or an architecture."""
    models = {"server": dict(state["server"]["model"])} if "server" in state else {}
    models |= {i: dict(saved["model"]) for i, saved in state.get("clients", {}).items()}
    return models | {name: dict(saved["model"])
                     for name, saved in state.get("global_models", {}).items()}


def test_standalone_trains_each_on_its_own_data():
    """From weights of their own."""
    fed = labeled(sizes=SIZES, **BOTH)
    expected = {"server": one_long_training(fed.server_model(), "server", (*fed.public, 2))}
    for i, private in enumerate(fed.private):
        expected[i] = one_long_training(fed.client_model(i, init=i), i, (*private, 2))
    _, state = last(rounds("standalone", fed, local_epochs=2))
    assert same(models_of(state), expected)


def test_with_lr_patience_the_rates_of_all_networks_fall_together():
    """With patience 0 they fall when round 2 is not better than 1."""
    algorithm = dataclasses.replace(ALGORITHMS["standalone"],
                                    evaluate=lambda fed, state: {"accuracy": .5})
    fed = labeled(sizes=SIZES, validation=samples(5))
    models = {"server": (fed.server_model(), fed.public)}
    models |= {i: (fed.client_model(i, init=i), own) for i, own in enumerate(fed.private)}
    expected = {name: one_long_training(model, name, (*data, 1), rates=(.01, .01, .001))
                for name, (model, data) in models.items()}
    found = list(run_with_plateau(algorithm, fed, baselines.Config(**QUICK), None, 0))
    assert same(models_of(found[-1][1]), expected)
    assert [metrics["lr"] for metrics, _ in found] == pytest.approx([.01, .01, .01, .001])


def test_public_private_makes_private_steps_then_public_ones():
    """As FedGEMS's clients, with one optimizer for both, towards the labels alone; no server."""
    fed = labeled(sizes=SIZES, **BOTH)
    expected = {i: one_long_training(fed.client_model(i, init=i), i, (*own, 2), (*fed.public, 3))
                for i, own in enumerate(fed.private)}
    _, state = last(rounds("public-private", fed, local_epochs=2, public_epochs=3))
    assert same(models_of(state), expected)


@pytest.mark.parametrize("name", ["centralized", "centralized-all"])
def test_centralized_is_one_long_training(name):
    """On all private samples, centralized-all on the public ones too; one for each network."""
    if name == "centralized":
        fed = federation(sizes=SIZES, **BOTH, public=None, server_model=None)
        parts, expected = fed.private, {}
    else:
        fed = labeled(sizes=SIZES, **BOTH)
        parts, expected = [fed.public, *fed.private], {"server": fed.server_model()}
    expected |= {"linear": fed.client_model(0), "with_hidden_layer": fed.client_model(1)}
    images, labels = (torch.cat(tensors) for tensors in zip(*parts))
    _, state = last(rounds(name, fed, local_epochs=2))
    assert same(models_of(state), {key: one_long_training(model, key, (images, labels, 2))
                                   for key, model in expected.items()})


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("public_test", [None, samples(50, seed=9)], ids=["test", "public_test"])
def test_a_server_is_the_headline_and_a_network_counts_for_each_client(name, public_test):
    """In round 0 too. Clients 0, 2 and 4 have one kind of network, 1 and 3 another."""
    fed = labeled(sizes=(6, 3, 2, 5, 4), **BOTH, public_test=public_test)
    for t, (metrics, state) in enumerate(rounds(name, fed)):
        models = models_of(state)
        expected = score_clients(fed, {i: {"model": models.get(i, models.get(architecture))}
                                       for i, architecture in enumerate(fed.architecture)})
        if 0 not in models:                                            # no network is its own
            del expected["client_accuracy_own"]
        headline = "client_accuracy"
        if name in ("standalone", "centralized-all"):
            expected |= score_server(fed, state["server"])
            headline = "server_accuracy"
        expected["accuracy"] = expected.pop(headline)
        bytes_of_round = {"bytes_up": 0, "bytes_down": 0} if t else {}
        assert metrics == expected | bytes_of_round
        assert expected["client_accuracy_min"] < expected["client_accuracy_max"]


@pytest.mark.parametrize("name, epochs", [("standalone", [1] * 4), ("public-private", [1, 2] * 3)])
def test_images_are_augmented_anew_in_each_pass(name, epochs):
    """Also the public ones of public-private, which FedGEMS's clients see cropped once a round."""
    seen = []
    fed = labeled(sizes=SIZES, augment=lambda images, rng: seen.append(rng.random()) or images)
    more = {"local_epochs": 1, "public_epochs": 2} if name == "public-private" else {}
    last(rounds(name, fed, **more))
    sizes = [8, *SIZES] if name == "standalone" else [n for own in SIZES for n in (own, 8)]
    passes = sum(-(-size // 4) * n for size, n in zip(sizes, epochs, strict=True))
    assert len({*seen}) == len(seen) == 3 * passes


@pytest.mark.parametrize("name, amsgrad", [("amsgrad", True), ("adam", False)])
def test_amsgrad_is_the_papers_adam(name, amsgrad):
    optimizer = OPTIMIZERS[name]([torch.zeros(1, requires_grad=True)], lr=1e-3, weight_decay=1e-4)
    assert type(optimizer) is torch.optim.Adam and optimizer.defaults["amsgrad"] is amsgrad
