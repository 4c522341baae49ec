"""Random streams, clients in parallel, batches and prediction."""
import sys
from collections import OrderedDict

import pytest
import torch
from test_contracts import run
from torch import nn
from toys import federation, linear, same, samples, with_batchnorm, with_dropout, with_features

import federation as federation_module
from algorithms import ALGORITHMS
from federation import seeded, stream, timed
from federation.evaluation import accuracy, disagreement
from federation.parallel import count_active, sample_clients
from federation.training import (
    batches,
    feature_size,
    forward,
    forward_with_features,
    predict_features,
    predict_logits,
    predict_members,
)


def draw_seeded(*keys):
    with seeded(*keys):
        return torch.randint(2**62, (1,)).item()


@pytest.mark.parametrize("draw", [lambda *keys: stream(*keys).integers(2**62), draw_seeded])
def test_only_equal_keys_give_equal_numbers(draw):
    """Also keys with a 0 at the end, which a plain list as the seed would lose."""
    keys = [(0, "local", 1, 2), (0, "local", 2, 1), (0, "local", 1), (0, "local", 1, 0),
            (0, "masks", 1, 2), (1, "local", 1, 2)]
    first, again = ([int(draw(*key)) for key in keys] for _ in range(2))
    assert first == again and len(set(first)) == len(keys)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_no_two_trainings_share_dropout(algo, monkeypatch):
    """In two rounds, with two global models of each network: each has a seed of its own. (FedGen's
    generator is new in every training, and its weights are loaded.)"""
    seeds = []
    for name, module in list(sys.modules.items()):
        if name.startswith(("algorithms.", "federation.")) and hasattr(module, "seeded"):
            monkeypatch.setattr(module, "seeded", lambda *keys: seeds.append(keys) or seeded(*keys))
    run(algo)
    trainings = [keys for keys in seeds if keys[1] != "generator"]
    assert len(set(trainings)) == len(trainings) > 1


def test_the_log_shows_what_asynchronous_fedgkt_measures_beside_fedgkts():
    """Its clocks."""
    (plain, own), (asynchronous, more) = (
        (run(algo)[-1][0], ALGORITHMS[algo].columns) for algo in ("fedgkt", "fedgkt-async"))
    assert more[:len(own)] == own and {*more[len(own):]} == asynchronous.keys() - plain.keys()


# ----------------------------------------------------------------------------------------- clients

@pytest.mark.parametrize("share, expected", [(1.0, 20), (0.7, 14), (0.145, 3), (0.01, 1)])
def test_participation_is_a_share_at_least_one_client(share, expected):
    active = sample_clients(20, share, stream(0))
    assert count_active(20, share) == len(active) == len(set(active)) == expected
    assert active == sorted(active) and set(active) <= set(range(20))


def test_timed_adds_up_the_seconds_of_each_function(monkeypatch):
    clock = iter([1., 3., 10., 14.])
    monkeypatch.setattr(federation_module, "seconds", lambda device: next(clock))

    @timed
    def a_pass(fed, x, *, y):
        return x + y
    fed = federation()
    assert a_pass(fed, 1, y=2) == 3 and fed.seconds == {"a_pass": 3 - 1}
    assert a_pass(fed, 1, y=2) == 3 and fed.seconds == {"a_pass": 2 + (14 - 10)}


# ------------------------------------------------------------------------- batches and predictions

def test_every_pass_has_each_sample_once_in_a_new_order():
    rows = list(batches(10, 4, 3, stream(0)))
    assert [len(r) for r in rows] == [4, 4, 2] * 3                  # the last batch may be smaller
    passes = [torch.cat(rows[k:k + 3]).tolist() for k in (0, 3, 6)]
    assert all(sorted(order) == list(range(10)) != order for order in passes)
    assert passes[0] != passes[1] != passes[2] != passes[0]
    assert [len(r) for r in batches(3, 64, 2, stream(0))] == [3, 3]     # fewer samples than a batch


def test_so_many_steps_are_the_first_batches_of_as_many_passes_as_needed():
    steps = list(batches(10, 4, 1, stream(0), steps=5))
    assert [len(rows) for rows in steps] == [4, 4, 2, 4, 4]
    assert same(steps, list(batches(10, 4, 2, stream(0)))[:5])


@pytest.mark.parametrize("network", [with_batchnorm, with_dropout])
def test_prediction_is_pure_and_image_by_image(network):
    fed, model = federation(), network()
    images = fed.test.images
    for training in (True, False):
        model.train(training)
        before = {name: w.clone() for name, w in model.state_dict().items()}
        logits = predict_logits(fed, model, images)
        assert torch.allclose(logits[7:8], predict_logits(fed, model, images[7:8]), atol=1e-6)
        assert same(dict(model.state_dict()), before) and model.training is training
        assert not logits.requires_grad


def test_prediction_is_in_batches_of_64_and_accuracy_over_samples():
    fed, model, (images, labels), sizes = federation(), linear(), samples(150), []
    hits = [int(model(image[None]).argmax()) == int(label) for image, label in zip(images, labels)]
    model.register_forward_hook(lambda module, args, output: sizes.append(len(output)))
    logits = predict_logits(fed, model, images)
    assert accuracy(logits, labels) == pytest.approx(sum(hits) / 150) and sizes == [64, 64, 22]


def test_predict_members_is_one_prediction_per_state():
    fed, models = federation(), [linear() for _ in range(3)]
    saved = [{"architecture": "linear", "model": model.state_dict()} for model in models]
    expected = torch.stack([predict_logits(fed, model, fed.test.images) for model in models])
    assert same(predict_members(fed, saved, fed.test.images), expected)      # [3, 40, 3]


def test_a_lone_training_sample_passes_batchnorm_and_counts_once():
    """BatchNorm alone would refuse a map of 1 x 1, or a vector. The gradient is one sample's."""
    (image, label), fed, model = samples(1), federation(), linear()
    narrow = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 3))
    logits = forward(fed, narrow, image)
    assert logits.shape == (1, 3) and torch.isfinite(logits).all()
    assert forward(fed, nn.BatchNorm1d(5), torch.ones(1, 5)).shape == (1, 5)
    gradients = [torch.autograd.grad(nn.functional.cross_entropy(z, label), model[1].weight)[0]
                 for z in (forward(fed, model, image), model(image))]
    assert torch.allclose(*gradients, atol=1e-7)


def test_features_are_the_input_of_the_last_layer():
    """Those of the same pass as the logits, with its gradient; nothing stays behind in the network.
    A lone sample of a training has one row, as in its logits."""
    fed, model = federation(), with_features()
    for images in (samples(7).images, samples(1).images):
        features, logits = forward_with_features(fed, model, images)
        assert torch.allclose(features, model.hidden(images.flatten(1)))
        assert same(logits, forward(fed, model, images)) and len(features) == len(images)
        assert features.requires_grad and not model.classifier._forward_pre_hooks
    assert feature_size(model, "its name") == features.shape[1] == 2


def test_features_are_predicted_in_eval_mode_image_by_image():
    fed, model = federation(), nn.Sequential(nn.Flatten(), nn.Dropout(0.5))
    model.add_module("classifier", nn.Linear(4, 3))
    images = samples(150).images
    for training in (True, False):
        features = predict_features(fed, model.train(training), images)
        assert same(features, images.flatten(1)) and not features.requires_grad
        assert model.training is training and not model.classifier._forward_pre_hooks


@pytest.mark.parametrize("network", [linear, lambda: nn.Sequential(OrderedDict(
    flatten=nn.Flatten(), classifier=nn.Identity()))])
def test_a_network_without_a_last_layer_of_that_name_has_no_features(network):
    with pytest.raises(ValueError, match="linear layer named classifier; mine does not$"):
        feature_size(network(), "mine")


def test_disagreement_by_hand():
    """The six pairs of members differ on 1, 2, 1, 1, 2 and 1 of 3 samples."""
    classes = torch.tensor([[0, 0, 1], [0, 1, 1], [0, 1, 0], [0, 0, 0]])
    members = nn.functional.one_hot(classes, 2).float()
    assert disagreement(members) == pytest.approx((1 + 2 + 1 + 1 + 2 + 1) / 3 / 6)
    assert disagreement(members[:1]) is None and disagreement(members[[0, 0]]) == 0


NOTHING = torch.tensor([[1., torch.nan], [torch.nan, torch.nan], [torch.inf, 0.], [0., 1.]])


def test_a_sample_with_a_logit_that_is_not_finite_is_wrong():
    """argmax would be class 0 of the first three: an accuracy of 1 for labels 0, 0, 0, 1."""
    assert accuracy(NOTHING, torch.tensor([0, 0, 0, 1])) == 1 / 4
    assert accuracy(NOTHING[1:2], torch.tensor([0])) == 0


def test_a_member_that_predicts_nothing_differs_from_all_others():
    """From one that predicts class 0, and from one that predicts nothing either: on three of four
    samples; on the fourth all predict class 1."""
    zeros = torch.tensor([[1., 0.]]).expand(3, 2)
    predicts = torch.cat([zeros, NOTHING[3:]])
    for members in ([NOTHING, predicts], [predicts, NOTHING], [NOTHING, NOTHING]):
        assert disagreement(torch.stack(members)) == 3 / 4
