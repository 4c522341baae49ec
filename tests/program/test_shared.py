"""Random streams, clients in parallel, batches and prediction."""
import copy
from collections import OrderedDict

import pytest
import torch
from test_contracts import recorded, run
from torch import nn
from toys import federation, linear, same, samples, with_batchnorm, with_dropout, with_features

from algorithms import ALGORITHMS
from federation import (
    accuracy,
    active_in,
    count_active,
    disagreement,
    feature_size,
    mean_accuracy,
    minibatches,
    own_accuracy,
    predict,
    predict_models,
    prepared,
    seeded,
    stream,
    with_features as forward_with_features,
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
def test_no_two_trainings_share_dropout(algo):
    """In two rounds, with two global models of each network: each has a seed of its own. (FedGen's
    generator is new in every training, and its weights are loaded.)"""
    trainings = [keys for keys in recorded(algo).seeds if keys[1] != "generator"]
    assert len(set(trainings)) == len(trainings) > 1


def test_the_log_shows_what_asynchronous_fedgkt_measures_beside_fedgkts():
    """Its clocks."""
    (plain, own), (asynchronous, more) = (
        (run(algo)[-1][0], ALGORITHMS[algo].log_columns) for algo in ("fedgkt", "fedgkt-async"))
    assert more[:len(own)] == own and {*more[len(own):]} == asynchronous.keys() - plain.keys()


# ----------------------------------------------------------------------------------------- clients

@pytest.mark.parametrize("share, expected", [(1.0, 20), (0.7, 14), (0.145, 3), (0.01, 1)])
def test_participation_is_a_share_at_least_one_client(share, expected):
    active = active_in(federation(sizes=(1,) * 20), share, 1)
    assert count_active(20, share) == len(active) == len(set(active)) == expected
    assert active == sorted(active) and set(active) <= set(range(20))


# ------------------------------------------------------------------------- batches and predictions

def test_every_pass_has_each_sample_once_in_a_new_order():
    rows = list(minibatches(torch.empty(10, 1), 4, stream(0), epochs=3))
    assert [len(r) for r in rows] == [4, 4, 2] * 3                  # the last batch may be smaller
    passes = [torch.cat(rows[k:k + 3]).tolist() for k in (0, 3, 6)]
    assert all(sorted(order) == list(range(10)) != order for order in passes)
    assert passes[0] != passes[1] != passes[2] != passes[0]
    few = minibatches(torch.empty(3, 1), 64, stream(0), epochs=2)       # fewer samples than a batch
    assert [len(r) for r in few] == [3, 3]


def test_so_many_steps_are_the_first_batches_of_as_many_passes_as_needed():
    images = torch.empty(10, 1)
    steps = list(minibatches(images, 4, stream(0), epochs=1, steps=5))
    assert [len(rows) for rows in steps] == [4, 4, 2, 4, 4]
    assert same(steps, list(minibatches(images, 4, stream(0), epochs=2))[:5])


@pytest.mark.parametrize("network", [with_batchnorm, with_dropout])
def test_prediction_is_pure_and_image_by_image(network):
    images, model = samples(40).images, network()
    for training in (True, False):
        model.train(training)
        before = {name: w.clone() for name, w in model.state_dict().items()}
        logits = predict(model, images)
        assert torch.allclose(logits[7:8], predict(model, images[7:8]), atol=1e-6)
        assert predict(model, images[:0]).shape == (0, 3)
        assert same(dict(model.state_dict()), before) and model.training is training
        assert not logits.requires_grad


def test_prediction_is_in_batches_of_64_and_accuracy_over_samples():
    model, (images, labels), sizes = linear(), samples(150), []
    hits = [int(model(image[None]).argmax()) == int(label) for image, label in zip(images, labels)]
    model.register_forward_hook(lambda module, args, output: sizes.append(len(output)))
    logits = predict(model, images)
    assert accuracy(logits, labels) == pytest.approx(sum(hits) / 150) and sizes == [64, 64, 22]


def test_predict_models_is_one_prediction_per_state():
    fed, models = federation(), [linear() for _ in range(3)]
    expected = torch.stack([predict(model, fed.test.images) for model in models])    # [3, 40, 3]
    weights = [model.state_dict() for model in models]
    assert same(predict_models(fed, weights, fed.test.images), expected)
    assert same(predict_models(fed, weights[:1], fed.test.images), expected[:1])


def test_a_lone_training_sample_passes_batchnorm_and_counts_once():
    """BatchNorm alone would refuse a map of 1 x 1, or a vector. The gradient is one sample's."""
    (image, label), model = samples(1), linear()
    narrow = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 3))
    logits = prepared(narrow)(image)
    assert logits.shape == (1, 3) and torch.isfinite(logits).all()
    assert prepared(nn.BatchNorm1d(5))(torch.ones(1, 5)).shape == (1, 5)
    gradients = [torch.autograd.grad(nn.functional.cross_entropy(z, label), model[1].weight)[0]
                 for z in (model(image), prepared(model)(image))]
    assert torch.allclose(*gradients, atol=1e-7)


def test_a_prepared_network_is_the_same_network():
    """Its weights and names, its class's name; deep copies are networks of their own."""
    model = prepared(with_batchnorm())
    assert type(model).__name__ == "Sequential" and isinstance(model, nn.Sequential)
    assert model.state_dict().keys() == with_batchnorm().state_dict().keys()
    other = copy.deepcopy(model)
    other[2].bias.data += 1
    images = samples(5).images
    assert torch.allclose(other.eval()(images), model.eval()(images) + 1)


def test_features_are_the_input_of_the_last_layer():
    """Those of the same pass as the logits, with its gradient; nothing stays behind in the network.
    A lone sample of a training has one row, as in its logits."""
    model = prepared(with_features())
    for images in (samples(7).images, samples(1).images):
        features, logits = forward_with_features(model, images)
        assert torch.allclose(features, model.hidden(images.flatten(1)))
        assert same(logits, model(images)) and len(features) == len(images)
        assert features.requires_grad and not model.classifier._forward_pre_hooks
    assert feature_size(model, "its name") == features.shape[1] == 2


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


def test_shares_and_their_means_are_whole_counts_divided_once():
    """0.9 and 0.7 are the floats of these names: as float32 they would be .8999999762 and
    .6999999881. Each class has ten test images, of which 9, 9 and 3 are right."""
    labels = torch.arange(3).repeat_interleave(10)
    answers = labels.clone()
    answers[[0, 10, *range(20, 27)]] = torch.tensor([1, 2, *[0] * 7])
    logits = nn.functional.one_hot(answers).float()
    assert accuracy(logits[:10], labels[:10]) == 0.9 and accuracy(logits, labels) == 0.7
    assert own_accuracy(logits, labels, torch.tensor([0, 1, 1])) == 0.9
    members = nn.functional.one_hot(torch.stack([labels, answers])).float()
    assert disagreement(members[:, :20]) == 0.1 and disagreement(members[:, 20:]) == 0.7
    assert [mean_accuracy(x) for x in ([0.9] * 10, [0.6, 0.8], [0.7])] == [0.9, 0.7, 0.7]


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
