"""Split learning: two halves that train as one network would, and what goes over the wire in every batch."""
import copy
import dataclasses
import functools

import numpy as np
import pytest
import torch
from test_fedgkt import (
    NUMBERS,
    SIZES,
    Edge,
    EdgeWithBatchNorm,
    layered_server,
    linear_server,
    loaded,
    slow_layers,
    slow_slope,
    slow_values,
    toy,
)
from test_logits import equal, through_a_file
from toys import last, linear, same
from torch import nn

import runs
from algorithms import split_learning
from algorithms.common import stream
from algorithms.training import batches
from communication import split_learning_bytes

QUICK = {"rounds": 2, "local_epochs": 2, "batch_size": 2, "lr": 0.1, "optimizer": "sgd", "weight_decay": 0.01}
OPTIMIZERS = {"sgd": torch.optim.SGD, "nesterov": functools.partial(torch.optim.SGD, momentum=0.9, nesterov=True),
              "adam": torch.optim.Adam, "amsgrad": functools.partial(torch.optim.Adam, amsgrad=True)}


def deep_server(num_classes=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(NUMBERS, 4), nn.Tanh(), nn.Linear(4, num_classes))


def doubled(fed):
    """The same federation in float64."""
    def make(build):
        return lambda *args, **keywords: build(*args, **keywords).double()
    return dataclasses.replace(fed, private=[data._replace(images=data.images.double()) for data in fed.private],
                               test=fed.test._replace(images=fed.test.images.double()),
                               client_model=make(fed.client_model), server_model=make(fed.server_model))


def finished(fed, **changes):
    return last(split_learning.run(fed, **{**QUICK, **changes}))


def centrally(fed, *, rounds, local_epochs, batch_size, lr, optimizer, weight_decay):
    """One network of both halves, one optimiser, no cut: (edge, server, optimiser) after the same batches."""
    edge, server = fed.client_model(0), fed.server_model()
    halves = [*edge.parameters(), *server.parameters()]
    update = OPTIMIZERS[optimizer](halves, lr=lr, weight_decay=weight_decay)
    for t in range(1, rounds + 1):
        for i, (images, labels) in enumerate(fed.private):
            for rows in batches(len(labels), batch_size, local_epochs, stream(fed.seed, "local", t, i)):
                logits = server(edge.extract(images[rows])).float()                      # logits are float32 everywhere
                loss = (logits.exp().sum(1).log() - logits[torch.arange(len(rows)), labels[rows]]).mean()
                update.zero_grad()
                loss.backward()
                update.step()
    return edge, server, update


def close(a, b):
    return a.keys() == b.keys() and all(torch.allclose(a[name], b[name], rtol=1e-5, atol=1e-6) for name in a)


def memory(optimizer_state):
    """{place of a parameter: {name: what an optimiser remembers of it}}"""
    return {place: {name: value for name, value in own.items() if isinstance(value, torch.Tensor)}
            for place, own in optimizer_state["state"].items()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("sizes, network, server, batch_size", [(SIZES, Edge, deep_server, 2), ((6, 4), EdgeWithBatchNorm, deep_server, 2),
                                                                ((6, 3), EdgeWithBatchNorm, linear_server, 3)])
def test_split_learning_is_training_the_stacked_network(optimizer, sizes, network, server, batch_size):
    """Weights, running statistics and the optimisers' memories, after two rounds over the clients in order, two epochs of each."""
    fed, settings = doubled(toy(sizes, network, server)), {**QUICK, "optimizer": optimizer, "batch_size": batch_size, "lr": 0.02}
    edge, whole_server, update = centrally(fed, **settings)
    metrics, state = finished(fed, **settings)
    assert close(state["edge"]["model"], edge.state_dict()) and close(state["server"]["model"], whole_server.state_dict())
    held = [state[half]["optimizer"] for half in ("edge", "server")]
    assert [len(half["param_groups"][0]["params"]) for half in held] == [len(list(model.parameters())) for model in (edge, whole_server)]
    places = len(list(edge.parameters()))
    ours = memory(held[0]) | {place + places: own for place, own in memory(held[1]).items()}
    expected = memory(update.state_dict())
    assert ours.keys() == expected.keys() and all(close(own, expected[place]) for place, own in ours.items())
    outputs = whole_server.eval()(edge.eval().extract(fed.test.images))
    assert metrics["accuracy"] == metrics["server_accuracy"] == pytest.approx((outputs.argmax(1) == fed.test.labels).double().mean().item())


def test_a_batch_by_slow_loop():
    """The server steps on its own gradient; the edge on what comes down, taken at the server's weights before that step."""
    fed, lr = toy(sizes=(4,)), 0.3
    layers = slow_layers(fed.client_model(0).stem, fed.server_model()[1])
    grads = [torch.zeros_like(w) for w in layers]
    for image, label in zip(*fed.private[0]):
        x, h, z = slow_values(layers, image.flatten().tolist())
        slope = [s / 4 for s in slow_slope(z, int(label), None, 1.0)]
        down = [sum(layers[2][c][j].item() * s for c, s in enumerate(slope)) for j in range(NUMBERS)]
        for k, (delta, values) in enumerate([(down, x), (slope, h)]):
            grads[2 * k] += torch.tensor([[d * v for v in values] for d in delta])
            grads[2 * k + 1] += torch.tensor(delta)
    _, state = finished(fed, rounds=1, local_epochs=1, batch_size=4, lr=lr, weight_decay=0.0)
    found = [state[half]["model"][name] for half, name in
             [("edge", "stem.weight"), ("edge", "stem.bias"), ("server", "1.weight"), ("server", "1.bias")]]
    assert all(np.allclose(w, (before - lr * grad).detach(), atol=1e-6) for w, before, grad in zip(found, layers, grads, strict=True))


def test_the_edges_classifier_is_left_alone():
    """Weight decay does not shrink it either, and no optimiser remembers it; all else moves."""
    fed = toy(sizes=(4, 6), network=EdgeWithBatchNorm)
    start = fed.client_model(0).state_dict()
    for optimizer in ("sgd", "amsgrad"):
        _, state = finished(fed, optimizer=optimizer, weight_decay=0.5)
        assert {name for name in start if torch.equal(start[name], state["edge"]["model"][name])} == {"classifier.weight", "classifier.bias"}
    parameters = [name for name, _ in fed.client_model(0).named_parameters()]
    assert {parameters[place].split(".")[0] for place in state["edge"]["optimizer"]["state"]} == {"stem", "bn"}


@pytest.mark.parametrize("local_epochs, batch_size", [(1, 2), (3, 2), (2, 100)])
def test_eq12_is_what_the_metrics_of_a_round_add_up_to(local_epochs, batch_size):
    """A feature map up and a gradient of its size down, for each sample in each epoch, whatever the batches."""
    samples_seen = (5 + 3 + 4) * local_epochs
    for metrics, _ in list(split_learning.run(toy(), **{**QUICK, "local_epochs": local_epochs, "batch_size": batch_size}))[1:]:
        assert metrics["bytes_up"] == metrics["bytes_down"] == 4 * NUMBERS * samples_seen
        assert metrics["bytes_up"] + metrics["bytes_down"] == split_learning_bytes(samples_seen, NUMBERS)


def test_clients_train_on_augmented_images_and_are_scored_on_clean_ones():
    fed = toy()
    seen, build = [], fed.client_model

    def watched(i, init=0):
        model = build(i, init)
        model.stem.register_forward_hook(lambda module, args, output: seen.append((module.training, args[0].min().item())))
        return model
    fed = dataclasses.replace(fed, augment=lambda images, rng: images + 100, client_model=watched)
    finished(fed, rounds=1)
    assert {training for training, _ in seen} == {True, False}
    assert all((smallest > 50) == training for training, smallest in seen)


def test_the_start_is_of_the_seed_and_untrained():
    fed = toy()
    metrics, state = next(split_learning.run(fed, **QUICK))
    assert state["round"] == 0 and not any(key.startswith("bytes") for key in metrics)
    assert same(dict(state["edge"]["model"]), dict(fed.client_model(0).state_dict()))
    assert same(dict(state["server"]["model"]), dict(fed.server_model().state_dict()))
    _, other = next(split_learning.run(toy(seed=1), **QUICK))
    assert not same(other["edge"]["model"], state["edge"]["model"]) and not same(other["server"]["model"], state["server"]["model"])


@functools.cache
def whole(optimizer):
    """Three rounds with all that a round may stumble over: (the federation, settings, [(metrics, state, a copy of then)])."""
    fed, settings = toy((6, 4, 2), EdgeWithBatchNorm, layered_server), {**QUICK, "rounds": 3, "optimizer": optimizer}
    return fed, settings, [(metrics, state, copy.deepcopy(state)) for metrics, state in split_learning.run(fed, **settings)]


@pytest.mark.parametrize("optimizer", ["nesterov", "amsgrad"])
def test_every_state_is_all_that_the_next_rounds_need(optimizer):
    fed, settings, rounds = whole(optimizer)
    for t in range(4):
        assert rounds[t][1]["round"] == t
        assert equal(split_learning.run(fed, through_a_file(rounds[t][2]), **settings), rounds[t + 1:])


@pytest.mark.parametrize("optimizer", ["nesterov", "amsgrad"])
def test_a_later_round_does_not_change_a_state(optimizer):
    fed, settings, rounds = whole(optimizer)
    assert all(same(state, then) for _, state, then in rounds)
    list(split_learning.run(fed, rounds[1][1], **settings))
    assert same(rounds[1][1], rounds[1][2])


def test_another_seed_trains_otherwise_from_the_same_weights():
    fed, settings, rounds = whole("amsgrad")
    _, state = next(split_learning.run(dataclasses.replace(fed, seed=1), rounds[1][1], **settings))
    assert not any(same(dict(state[half]["model"]), dict(rounds[2][1][half]["model"])) for half in ("edge", "server"))


def test_accuracy_is_of_the_halves_that_the_state_holds_in_eval_mode():
    fed, _, rounds = whole("amsgrad")
    for metrics, state, _ in rounds:
        edge, server = loaded(fed.client_model(0), state["edge"]), loaded(fed.server_model(), state["server"])
        with torch.no_grad():
            hits = server(edge.extract(fed.test.images)).argmax(1) == fed.test.labels
        assert metrics["accuracy"] == metrics["server_accuracy"] == hits.float().mean().item() and runs.dumps(metrics)


def test_a_lone_sample_in_the_last_batch_is_no_error():
    """With BatchNorm behind the cut over a map of 1 x 1, where one sample has no variance."""
    metrics, state = finished(toy(sizes=(3, 1), server=layered_server))
    assert all(torch.isfinite(w).all() for w in state["server"]["model"].values())


def test_a_run_does_not_change_the_federation():
    fed, untouched = toy(), toy()
    finished(fed)
    assert same(fed.private, untouched.private) and same(fed.test, untouched.test)


def test_a_network_without_a_feature_map_is_refused_in_one_line():
    with pytest.raises(ValueError, match="feature map") as error:
        finished(toy(network=linear))
    assert "\n" not in str(error.value)


def test_a_server_that_cannot_read_the_feature_map_is_refused_in_one_line():
    with pytest.raises(ValueError, match="feature map") as error:
        finished(toy(server=lambda num_classes: nn.Sequential(nn.Flatten(), nn.Linear(NUMBERS - 1, num_classes))))
    assert "\n" not in str(error.value)
