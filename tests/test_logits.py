"""What algorithms that exchange logits share: models that live through rounds, uploads that are not finite, resuming, bytes."""
import copy
import dataclasses
import functools
import io
import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from toys import federation, labelled, last, linear, same, samples, with_batchnorm, with_dropout, with_hidden_layer
from torch import nn

import runs
from algorithms import common, cronus, dsfl, evaluation, fedgem, fedgems, fedmd, fedmd_pooled
from algorithms.common import Data, finite, seeded, stream
from algorithms.equations import soft_cross_entropy
from algorithms.evaluation import client_metrics, score, server_metrics
from algorithms.training import OPTIMIZERS, batches, restore, snapshot, train, train_with_labels

SHARED = {"rounds": 2, "local_epochs": 1, "batch_size": 4, "lr": 0.05}
TRANSFER = {"transfer_public_epochs": 2, "transfer_public_batch_size": 5}
QUICK = {
    fedmd.run: {**SHARED, **TRANSFER, "transfer_local_epochs": 2, "transfer_batch_size": 4, "subset_size": 7,
                "public_batch_size": 3},
    dsfl.run: {**SHARED, "server_batch_size": 5, "server_lr": 0.05},
    cronus.run: {**SHARED, "malicious_fraction": 0.1},
    fedgem.run: {**SHARED, "server_batch_size": 5, "server_lr": 0.05},
    fedgems.run: {**SHARED, "server_batch_size": 5, "server_lr": 0.05},
    fedmd_pooled.run: {**TRANSFER, "rounds": 2, "batch_size": 8, "lr": 0.05},
}
EXCHANGING = [fedmd.run, dsfl.run, cronus.run, fedgem.run, fedgems.run]
WITH_SERVER = [dsfl.run, fedgem.run, fedgems.run]
MODULES = {module.run: module for module in (fedmd, dsfl, cronus, fedgem, fedgems, fedmd_pooled)}
UNLABELLED = (dsfl.run, cronus.run)


def each(functions):
    return pytest.mark.parametrize("run", functions, ids=[f"{f.__module__.split('.')[-1]}-{f.__name__}" for f in functions])


def layered(num_classes=3):
    """What a round may stumble over: running statistics and dropout."""
    return nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(4, num_classes))


def toy(run, **changes):
    """Three clients, 10 public samples, which have labels where the algorithm may see them, 20 for validation."""
    changes = {"sizes": (5, 3, 4), "network": layered, "num_public": 10, "validation": samples(20, seed=3), **changes}
    return federation(**changes) if run in UNLABELLED else labelled(**changes)


def mixed(run, **changes):
    """Three networks, and a public test set."""
    return toy(run, network=(layered, linear, with_hidden_layer), public_test=samples(30, seed=5), **changes)


@functools.cache
def whole(run):
    """Two rounds of `mixed`, made once for many tests: (the federation, [(metrics, state, the state as it was then)])."""
    fed = mixed(run)
    return fed, [(metrics, state, copy.deepcopy(state)) for metrics, state in run(fed, **QUICK[run])]


def clients_of(state):
    """What is kept of each client: before FedMD's round 0 its model alone."""
    if "models" in state:
        return [{"model": model_state} for model_state in state["models"]]
    return next(state[key] for key in ("clients", "parties") if key in state)


def loaded(model, saved):
    model.load_state_dict(saved["model"])
    return model


def is_sound(saved):
    return all(torch.isfinite(w).all() for w in saved["model"].values())


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


# ------------------------------------------------- slow rounds: softmax regression, one sample and one number at a time

def slow_learner(model):
    """The weights [C, 4] and the biases [C] of a linear network, in double precision."""
    return [w.detach().double().clone().requires_grad_() for w in (model[1].weight, model[1].bias)]


def slow_logits(learner, images):
    """[N][C]"""
    weight, bias = (w.tolist() for w in learner)
    return [[sum(w * x for w, x in zip(row, image.flatten().tolist())) + b for row, b in zip(weight, bias)] for image in images]


def slow_softmax(z):
    exponentials = [math.exp(v - max(z)) for v in z]
    return [e / sum(exponentials) for e in exponentials]


def slow_accuracy(learner, data):
    hits = [z.index(max(z)) == y for z, y in zip(slow_logits(learner, data.images), data.labels.tolist())]
    return sum(hits) / len(hits)


def slow_training(learner, update, images, slope, *, epochs, batch_size, rng, kernel_l2=0.0):
    """Steps of `update` on the mean over each batch of losses whose derivative by the logits z of sample n is slope(n, z)."""
    for rows in batches(len(images), batch_size, epochs, rng):
        num_classes = len(learner[1])
        by_weight, by_bias = [[0.0] * 4 for _ in range(num_classes)], [0.0] * num_classes
        for n in rows.tolist():
            x, [z] = images[n].flatten().tolist(), slow_logits(learner, images[n:n + 1])
            for c, s in enumerate(slope(n, z)):
                by_bias[c] += s / len(rows)
                for d in range(4):
                    by_weight[c][d] += s * x[d] / len(rows)
        for c, row in enumerate(learner[0].tolist()):
            for d, w in enumerate(row):
                by_weight[c][d] += kernel_l2 * 2 * w
        learner[0].grad, learner[1].grad = (torch.tensor(g, dtype=torch.float64) for g in (by_weight, by_bias))
        update.step()


def towards_labels(labels):
    """Of cross-entropy: p - [c is the label]."""
    return lambda n, z: [p - (c == int(labels[n])) for c, p in enumerate(slow_softmax(z))]


def towards_probs(targets):
    """Of - sum_c y_c ln q_c: q_c sum_k y_k - y_c."""
    return lambda n, z: [q * sum(targets[n]) - y for q, y in zip(slow_softmax(z), targets[n])]


def close(model_state, learner, atol=1e-5):
    return all(np.allclose(model_state[name].numpy(), w.detach().numpy(), atol=atol)
               for name, w in zip(("1.weight", "1.bias"), learner))


# --------------------------------------------------------------------------------------------------- soft cross-entropy

def test_soft_cross_entropy_by_hand():
    """y = (.8, .2), q = (.6, .4): - .8 ln .6 - .2 ln .4, and not - .6 ln .8 - .4 ln .2."""
    q, y = (torch.tensor([row], dtype=torch.float64) for row in ([.6, .4], [.8, .2]))
    assert soft_cross_entropy(q.log(), y).tolist() == pytest.approx([-.8 * math.log(.6) - .2 * math.log(.4)], abs=1e-12)


def test_soft_cross_entropy_by_slow_loop_is_a_sum_over_classes_per_sample():
    rng = np.random.default_rng(0)
    logits, targets = rng.normal(size=(6, 4)) * 3, rng.dirichlet(np.ones(4), size=6)
    expected = [-sum(y * math.log(q) for y, q in zip(target, slow_softmax(z.tolist()))) for z, target in zip(logits, targets)]
    assert soft_cross_entropy(torch.tensor(logits), torch.tensor(targets)).tolist() == pytest.approx(expected, abs=1e-12)


def test_soft_cross_entropy_of_a_one_hot_target_is_minus_the_logarithm_of_its_probability():
    logits = torch.randn(3, 4).double()
    expected = [-math.log(slow_softmax(z)[c]) for z, c in zip(logits.tolist(), (2, 0, 3))]
    assert soft_cross_entropy(logits, torch.eye(4).double()[[2, 0, 3]]).tolist() == pytest.approx(expected, abs=1e-12)


def test_gradient_of_soft_cross_entropy_reaches_the_logits_alone():
    logits, target = torch.randn(3, 4).double().requires_grad_(), torch.rand(3, 4).double().softmax(-1).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: soft_cross_entropy(z, target), logits)
    soft_cross_entropy(logits, target).sum().backward()
    assert target.grad is None
    assert torch.allclose(logits.grad, logits.detach().softmax(-1) - target.detach())


def test_soft_cross_entropy_follows_samples_and_ignores_a_permutation_of_classes_and_a_shift():
    logits, target = torch.randn(5, 3).double(), torch.rand(5, 3).double().softmax(-1)
    expected, order, classes = soft_cross_entropy(logits, target), torch.tensor([3, 1, 4, 0, 2]), torch.tensor([2, 0, 1])
    assert torch.equal(soft_cross_entropy(logits[order], target[order]), expected[order])
    assert torch.allclose(soft_cross_entropy(logits[:, classes], target[:, classes]), expected)
    assert torch.allclose(soft_cross_entropy(logits + torch.randn(5, 1), target), expected)


def test_soft_cross_entropy_of_logits_of_ten_thousand_is_finite():
    logits = torch.tensor([[1e4, -1e4]])
    assert soft_cross_entropy(logits, torch.tensor([[0., 1.]])).item() == 2e4
    assert soft_cross_entropy(logits, torch.tensor([[1., 0.]])).item() == 0


def test_soft_cross_entropy_changes_no_input():
    logits, target = torch.randn(2, 3), torch.rand(2, 3)
    before = logits.clone(), target.clone()
    soft_cross_entropy(logits, target)
    assert same((logits, target), before)


# ------------------------------------------------------------------------------------------------------- finite uploads

@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_finite_leaves_out_every_upload_with_one_bad_number(value):
    uploads = torch.randn(4, 5, 3)
    uploads[1, 4, 2] = uploads[3, 0, 0] = value
    assert torch.equal(finite(uploads), uploads[[0, 2]])


def test_finite_keeps_what_can_be_summed_and_all_or_nobody():
    assert finite(torch.tensor([[3e38, 0.], [-1e30, 0.], [9e29, -9e29]])).tolist() == torch.tensor([[9e29, -9e29]]).tolist()
    uploads = torch.tensor([[[9e29, -9e29]], [[0., 1e-45]]])
    assert torch.equal(finite(uploads), uploads)
    assert finite(torch.full((3, 5, 2), math.nan)).shape == (0, 5, 2)
    assert finite(torch.empty(3, 0, 2)).shape == (3, 0, 2)


# ------------------------------------------------------------------------------------------------------------- accuracies

def always_class_2():
    """A network that always says class 2."""
    model = linear()
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.copy_(torch.tensor([0., 0., 1.]))
    return model


def test_accuracies_are_on_the_test_set_and_on_the_public_one_if_there_is_one():
    model, images = always_class_2(), samples(4).images
    fed = federation(test=Data(images, torch.tensor([2, 2, 2, 0])))
    assert score(fed, model) == (3 / 4, None)
    fed = dataclasses.replace(fed, public_test=Data(images, torch.tensor([1, 2, 0, 0])))
    assert score(fed, model) == (3 / 4, 1 / 4)


def test_client_metrics_by_hand():
    assert client_metrics([(.2, None), (.9, None), (.4, None)], "k") == {"k": (.2 + .9 + .4) / 3, "k_min": .2, "k_max": .9}
    assert client_metrics([(.2, .5), (.4, 0.)]) == {"client_accuracy": (.2 + .4) / 2, "client_accuracy_min": .2,
                                                    "client_accuracy_max": .4, "client_accuracy_public_test": (.5 + 0.) / 2}


def test_a_large_servers_headline_is_on_the_public_test_set_where_there_is_one():
    server, images = snapshot(always_class_2()), samples(4).images
    fed = federation(server=linear, test=Data(images, torch.tensor([2, 0, 1, 0])))
    assert server_metrics(fed, server) == {"server_accuracy": 1 / 4}
    for labels, right in [([2, 2, 2, 0], 3 / 4), ([0, 1, 0, 1], 0.)]:
        fed.public_test = Data(images, torch.tensor(labels))
        assert server_metrics(fed, server) == {"server_accuracy": right, "server_accuracy_private_test": 1 / 4}


# --------------------------------------------------------------------------------------------------------------- training

@pytest.mark.parametrize("epochs", [1, 3])
def test_train_with_labels_by_slow_loop(epochs):
    fed, model = federation(), linear()
    learner = slow_learner(model)
    data = fed.private[0]
    slow_training(learner, torch.optim.SGD(learner, lr=0.2), data.images, towards_labels(data.labels), epochs=epochs, batch_size=2,
                  rng=stream(0, "here", 7))
    train_with_labels(fed, model, torch.optim.SGD(model.parameters(), lr=0.2), data, epochs=epochs, batch_size=2, keys=("here", 7))
    assert close(model.state_dict(), learner)


def test_a_loss_is_given_the_rows_of_its_images():
    fed, seen = federation(), []
    images = fed.public.images

    def loss(logits, rows):
        seen.append(rows)
        assert torch.allclose(logits, model(images[rows]))
        return logits.sum()
    model = linear()
    train(fed, model, torch.optim.SGD(model.parameters(), lr=0.1), images, loss, epochs=2, batch_size=3, keys=("here",))
    assert [len(rows) for rows in seen] == [3, 3, 2] * 2
    assert all(sorted(torch.cat(seen[s:s + 3]).tolist()) == list(range(8)) for s in (0, 3))


def test_a_student_sees_augmented_images_in_train_mode():
    fed, given = federation(network=with_batchnorm), []
    fed.augment = lambda images, rng: given.append(rng.random()) or images + 100
    model = fed.client_model(0).eval()
    settings = {"epochs": 1, "batch_size": 4, "keys": ("here",)}
    train_with_labels(fed, model, torch.optim.SGD(model.parameters(), lr=0.1), samples(8), **settings)
    assert model[0].num_batches_tracked == len(given) == 2
    assert model[0].running_mean.item() == pytest.approx((1 - .9**2) * 100, rel=.05)     # momentum .1, two batches of about 100


def test_dropout_is_drawn_by_the_keys_and_not_by_what_happened_before():
    def trained(keys, before):
        fed = federation()
        with seeded(0, "init"):
            model = with_dropout()
        torch.randn(before)
        update = torch.optim.SGD(model.parameters(), lr=0.1)
        train_with_labels(fed, model, update, fed.private[0], epochs=2, batch_size=5, keys=keys)
        return model.state_dict()
    assert same(trained(("local", 1, 0), 1), trained(("local", 1, 0), 2))
    assert not same(trained(("local", 1, 0), 1), trained(("local", 1, 1), 1))


def test_no_epochs_change_nothing():
    fed, model = federation(network=with_batchnorm), with_batchnorm()
    before = copy.deepcopy(model.state_dict())
    update = torch.optim.Adam(model.parameters())
    train_with_labels(fed, model, update, fed.private[0], epochs=0, batch_size=2, keys=("here",))
    assert same(model.state_dict(), before) and update.state_dict()["state"] == {}


@pytest.mark.parametrize("optimizer, kind, amsgrad", [("sgd", torch.optim.SGD, None), ("adam", torch.optim.Adam, False),
                                                      ("amsgrad", torch.optim.Adam, True)])
def test_a_new_model_is_restored_with_its_weights_and_an_optimiser_without_a_past(optimizer, kind, amsgrad):
    model = with_batchnorm()
    saved = snapshot(model)
    other = with_batchnorm()
    update = restore(saved, other, partial(OPTIMIZERS[optimizer], lr=0.3, weight_decay=0.02))
    assert same(dict(other.state_dict()), dict(model.state_dict()))
    [group] = update.param_groups
    assert type(update) is kind and group["lr"] == 0.3 and group["weight_decay"] == 0.02 and group.get("amsgrad") == amsgrad
    assert update.state_dict()["state"] == {} and all(a is b for a, b in zip(group["params"], other.parameters(), strict=True))


def test_a_snapshot_does_not_change_with_its_model():
    model = linear()
    saved = snapshot(model)
    before = model[1].weight.detach().clone()
    with torch.no_grad():
        model[1].weight += 1
    assert torch.equal(saved["model"]["1.weight"], before)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "amsgrad"])
def test_saved_and_restored_is_as_if_never_saved(optimizer):
    fed, model = federation(network=with_batchnorm), with_batchnorm()
    settings, new_optimizer = {"epochs": 2, "batch_size": 2}, partial(OPTIMIZERS[optimizer], lr=0.05, weight_decay=0.01)
    saved = snapshot(model)
    update = restore(saved, model, new_optimizer)
    for t in (1, 2, 3):
        train_with_labels(fed, model, update, fed.private[0], **settings, keys=("local", t))
        other = with_batchnorm()
        restored = restore(saved, other, new_optimizer)
        train_with_labels(fed, other, restored, fed.private[0], **settings, keys=("local", t))
        saved = through_a_file(snapshot(other, restored))
        assert same(dict(saved["model"]), dict(model.state_dict())) and same(saved["optimizer"], update.state_dict())


@pytest.mark.parametrize("optimizer", ["adam", "amsgrad"])
def test_training_a_restored_model_does_not_change_what_was_kept(optimizer):
    fed, model = federation(network=with_batchnorm), with_batchnorm()
    saved, settings = snapshot(model), {"epochs": 1, "batch_size": 2, "keys": ("here",)}
    for _ in range(2):                                                                  # without, and with a past
        before, other = copy.deepcopy(saved), with_batchnorm()
        update = restore(saved, other, partial(OPTIMIZERS[optimizer], lr=0.05, weight_decay=0.01))
        train_with_labels(fed, other, update, fed.private[0], **settings)
        assert same(saved, before) and not same(dict(other.state_dict()), dict(saved["model"]))
        saved = snapshot(other, update)


# ---------------------------------------------------------------------------------------------------- where a run begins

@each([*EXCHANGING, fedmd_pooled.run])
def test_every_client_starts_from_weights_of_its_own(run):
    fed = toy(run)
    _, state = next(run(fed, **QUICK[run]))
    weights = [client["model"]["3.weight"] for client in clients_of(state)]
    assert len(weights) == 3 and not any(torch.equal(a, b) for a, b in itertools.combinations(weights, 2))
    assert all(torch.equal(w, fed.client_model(i, init=i)[3].weight) for i, w in enumerate(weights))


@each([f for f in EXCHANGING if f is not fedmd.run])
def test_round_0_is_the_untrained_start(run):
    fed, [(metrics, _, state), *_] = whole(run)
    own = [score(fed, fed.client_model(i, init=i)) for i in range(3)]
    assert state["round"] == 0
    assert metrics["client_accuracy"] == sum(a for a, _ in own) / 3
    assert metrics["client_accuracy_public_test"] == sum(b for _, b in own) / 3
    if run in WITH_SERVER:
        assert same(state["server"], snapshot(fed.server_model()))
        assert (metrics["server_accuracy_private_test"], metrics["server_accuracy"]) == score(fed, fed.server_model())


# -------------------------------------------------------------------------------------------------------- what is exchanged

@each(EXCHANGING)
def test_an_upload_is_what_the_network_says_of_each_clean_image_alone(run):
    """In eval mode, after private training (FedMD: as the round begins), though students see other images."""
    fed, seen = toy(run), []
    fed.augment = lambda images, rng: images + 1
    settings = {**QUICK[run], "rounds": 1, "public_epochs": 0, "attack": lambda *given: seen.append(given) or given[0]}
    *_, (_, before), (_, after) = run(fed, **settings)
    [(uploads, _, rows, t)] = seen
    assert t == 1 and len(rows) == (7 if run is fedmd.run else 10)
    for i, client in enumerate(clients_of(before if run is fedmd.run else after)):      # without public epochs nothing follows
        model = loaded(fed.client_model(i), client).eval()
        with torch.no_grad():
            logits = torch.cat([model(fed.public.images[n:n + 1]) for n in rows.tolist()])
        expected = logits.softmax(1) if run in UNLABELLED else logits
        assert torch.allclose(uploads[i], expected, atol=1e-5)


@each(EXCHANGING)
def test_bytes_of_a_round_by_the_formula(run):
    """4 bytes x samples x 3 classes x 3 clients each way; 4 bytes for each sample's number where a subset is asked for."""
    for metrics, *_ in whole(run)[1][-2:]:
        up = down = 7 if run is fedmd.run else 10
        indices = 7 if run is fedmd.run else 0
        if run is fedgems.run:
            up = indices = round(10 * (metrics["ensemble_distillation"] + metrics["nobody_right"]))
        assert metrics["bytes_up"] == 4 * up * 3 * 3 and metrics["bytes_down"] == 4 * down * 3 * 3
        assert metrics["bytes_down_indices"] == 4 * indices * 3


@each(EXCHANGING)
def test_optimisers_live_through_all_rounds(run):
    """Adam counts its steps: 5 private samples are 2 batches of 4; 10 public ones are 3 of 4, FedMD's 7 are 3 of 3."""
    client = clients_of(whole(run)[1][-1][1])[0]
    steps = {key: int(optimizer["state"][0]["step"]) for key, optimizer in client.items() if key != "model"}
    assert steps == ({"digest": 2 * 3, "revisit": 2 * 2} if run is fedmd.run else {"optimizer": 2 * (2 + 3)})


@each(WITH_SERVER)
def test_the_servers_optimiser_lives_through_all_rounds(run):
    """10 public samples are 2 batches of 5; DS-FL's server makes two passes."""
    server = whole(run)[1][-1][1]["server"]
    assert int(server["optimizer"]["state"][0]["step"]) == 2 * 2 * (2 if run is dsfl.run else 1)


# -------------------------------------------------------------------------------------------------- uploads that are not finite

def without_the_last_client(run):
    fed = toy(run)
    return dataclasses.replace(fed, private=fed.private[:2], architecture=fed.architecture[:2])


@functools.cache
def rounds_without_the_last_client(run):
    return list(run(without_the_last_client(run), **QUICK[run]))


@each(EXCHANGING)
def test_non_finite_logits_are_left_out(run):
    """The last client's network is spoilt by one pixel: the others and the server learn what they learn without it, bit for bit."""
    fed = toy(run)
    fed.private[2].images[0, 0, 0, 0] = math.inf
    rounds = list(run(fed, **QUICK[run]))
    for (metrics, state), (_, expected) in zip(rounds, rounds_without_the_last_client(run), strict=True):
        assert same(clients_of(state)[:2], clients_of(expected)) and same(state.get("server"), expected.get("server"))
        assert all(map(is_sound, clients_of(state)[:2])) and (metrics is None or runs.dumps(metrics))
    assert not is_sound(clients_of(state)[2])
    assert [metrics["bad_uploads"] for metrics, _ in rounds[-2:]] == [1, 1]
    assert [metrics["bad_uploads"] for metrics, _ in rounds_without_the_last_client(run)[-2:]] == [0, 0]


@pytest.mark.parametrize("value", [math.inf, 3e38])       # two of the largest floats would sum to infinity
@each([f for f in EXCHANGING if f is not fedgems.run])
def test_an_upload_is_left_out_for_a_single_infinity(run, value):
    """FedGEMS does not trust that sample alone."""
    def spoil(uploads, ids, rows, t):
        uploads = uploads.clone()
        uploads[2, -1, -1] = value
        return uploads
    metrics, state = last(run(toy(run), **{**QUICK[run], "rounds": 1}, attack=spoil))
    _, expected = rounds_without_the_last_client(run)[-2]
    assert metrics["bad_uploads"] == 1
    assert same(clients_of(state)[:2], clients_of(expected)) and same(state.get("server"), expected.get("server"))


@each([f for f in EXCHANGING if f is not fedgems.run])
@pytest.mark.parametrize("lost", [1, 2])
def test_whoever_is_left_out_the_mean_is_of_the_others(run, lost):
    """The first are lost: the same as if they had uploaded the mean of the others, 2 or 1."""
    settings = {**QUICK[run], "rounds": 1, "optimizer": "sgd", **({"malicious_fraction": 0.0} if run is cronus.run else {})}

    def ends_with(upload):
        def replaced(uploads, ids, rows, t):
            return torch.stack([upload(uploads[lost:])] * lost + [*uploads[lost:]])
        return clients_of(last(run(toy(run), **settings, attack=replaced))[1])
    without = ends_with(lambda others: torch.full_like(others[0], math.nan))
    with_mean = ends_with(lambda others: others.mean(0))
    for a, b in zip(without, with_mean, strict=True):
        assert torch.allclose(a["model"]["3.weight"], b["model"]["3.weight"], atol=1e-5)


def nobody(uploads, ids, rows, t):
    return torch.full_like(uploads, math.nan)


@each([fedmd.run, dsfl.run, cronus.run])
def test_without_any_finite_upload_nothing_is_learned_from_nobody(run):
    """The same bytes as if nobody ever trained on the public samples, also in the round after."""
    fed, settings = toy(run), {**QUICK[run], "rounds": 1}
    metrics, state = last(run(fed, **settings, attack=nobody))
    _, idle = last(run(fed, **settings, public_epochs=0, **({"server_epochs": 0} if run is dsfl.run else {})))
    assert same(clients_of(state), clients_of(idle)) and state.keys() == idle.keys()
    if run is dsfl.run:                                                                 # the server has no optimiser yet
        assert same(state["server"], snapshot(fed.server_model())) and same(state["server"]["model"], idle["server"]["model"])
    assert equal([next(run(fed, state, **QUICK[run]))], [next(run(fed, idle, **QUICK[run]))])
    assert metrics["bad_uploads"] == 3 and runs.dumps(metrics)


@each([fedgem.run, fedgems.run])
def test_without_any_finite_upload_the_server_learns_from_the_labels_alone(run):
    """As with epsilon = 1, which gives the teachers no weight."""
    fed, settings = toy(run), {**QUICK[run], "rounds": 1}
    metrics, state = last(run(fed, **settings, attack=nobody))
    assert same(state["server"], last(run(fed, **settings, epsilon=1.0))[1]["server"])
    assert metrics["bad_uploads"] == 3 and runs.dumps(metrics) and all(map(is_sound, clients_of(state)))


@each(EXCHANGING)
def test_when_every_network_is_spoilt_the_run_goes_on(run):
    fed = toy(run)
    for private in fed.private:
        private.images[0, 0, 0, 0] = math.nan
    rounds = list(run(fed, **QUICK[run]))
    assert [metrics["bad_uploads"] for metrics, _ in rounds[-2:]] == [3, 3]
    assert all(metrics is None or runs.dumps(metrics) for metrics, _ in rounds)
    assert run not in WITH_SERVER or is_sound(rounds[-1][1]["server"])


# --------------------------------------------------------------------------------------------------------- the same bytes

def equal(rounds, expected):
    return all(same(a[1], b[1]) and a[0] == b[0] for a, b in zip(rounds, expected, strict=True))


@each([*EXCHANGING, fedmd_pooled.run])
def test_the_same_seed_gives_the_same_bytes_with_clients_in_any_order(run, monkeypatch):
    expected, ran = whole(run)[1], []

    def backwards(fn, ids, device):
        ran.append(ids)
        return [fn(i) for i in ids[::-1]][::-1]
    for module in (common, evaluation):
        monkeypatch.setattr(module, "in_parallel", backwards)
    assert equal(run(mixed(run), **QUICK[run]), expected) and ran and set(ran) == {range(3)}


@each([*EXCHANGING, fedmd_pooled.run])
def test_another_seed_trains_every_client_otherwise(run):
    """Also where each begins with the same weights."""
    (_, start, _), *_, (_, expected, _), _ = whole(run)[1]
    _, state = last(run(mixed(run, seed=1), start, **{**QUICK[run], "rounds": 1}))
    assert not any(same(dict(a["model"]), dict(b["model"])) for a, b in zip(clients_of(state), clients_of(expected), strict=True))


@each([*EXCHANGING, fedmd_pooled.run])
def test_every_state_is_all_that_the_next_needs(run):
    """Through a file, also from the checkpoints of FedMD's transfer phase."""
    fed, rounds = whole(run)
    assert [state["round"] for _, state, _ in rounds] == {fedmd.run: [-1, -1], fedmd_pooled.run: [-1]}.get(run, []) + [0, 1, 2]
    assert [state["stage"] for _, state, _ in rounds if "stage" in state] == (["public", "private"] if run is fedmd.run else [])
    assert [metrics is None for metrics, *_ in rounds] == [state["round"] < 0 for _, state, _ in rounds]
    for (_, _, state), expected in itertools.pairwise(rounds):
        assert equal([next(run(fed, through_a_file(state), **QUICK[run]))], [expected])
    assert list(run(fed, through_a_file(rounds[-1][2]), **QUICK[run])) == []


@each([*EXCHANGING, fedmd_pooled.run])
def test_a_later_round_does_not_change_a_state(run):
    fed, rounds = whole(run)
    assert all(same(state, then) for _, state, then in rounds)
    _, state, then = rounds[-2]
    next(run(fed, state, **QUICK[run]))
    assert same(state, then)


@each([*EXCHANGING, fedmd_pooled.run])
def test_a_run_does_not_change_the_federation(run):
    fed, _ = whole(run)
    untouched = mixed(run)
    for name in ("private", "public", "test", "public_test", "validation"):
        assert same(getattr(fed, name), getattr(untouched, name))


# --------------------------------------------------------------------------------------- networks that differ, lone samples

@each([*EXCHANGING, fedmd_pooled.run])
def test_clients_may_have_different_networks(run):
    fed, rounds = whole(run)
    metrics, state, _ = rounds[-1]
    for i, client in enumerate(clients_of(state)):
        before, after = fed.client_model(i, init=i).state_dict(), client["model"]
        assert before.keys() == after.keys() and not any(torch.equal(before[name], after[name]) for name in before)
    assert metrics.get("bad_uploads", 0) == 0


def down_to_a_pixel(num_classes=3):
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, num_classes))


@each([*EXCHANGING, fedmd_pooled.run])
def test_a_client_may_hold_a_single_sample(run):
    """With BatchNorm on one pixel, which has no variance over one sample."""
    metrics, state = last(run(toy(run, sizes=(1, 2), network=down_to_a_pixel), **{**QUICK[run], "rounds": 1}))
    assert all(map(is_sound, clients_of(state))) and runs.dumps(metrics)


@each(EXCHANGING)
def test_a_lone_client_works(run):
    metrics, _ = last(run(toy(run, sizes=(6,)), **{**QUICK[run], "rounds": 1}))
    assert metrics["bad_uploads"] == 0 and metrics["client_accuracy_min"] == metrics["client_accuracy_max"]


# -------------------------------------------------------------------------------------------------------------- the metrics

@each([*EXCHANGING, fedmd_pooled.run])
def test_accuracies_are_of_the_networks_that_the_state_holds(run):
    fed, rounds = whole(run)
    for metrics, _, state in rounds:
        if metrics is None:
            continue
        own, public = zip(*(score(fed, loaded(fed.client_model(i), client)) for i, client in enumerate(clients_of(state))))
        assert metrics["client_accuracy"] == sum(own) / 3
        assert (metrics["client_accuracy_min"], metrics["client_accuracy_max"]) == (min(own), max(own))
        assert metrics.get("client_accuracy_public_test") == sum(public) / 3
        if run in WITH_SERVER:
            server = score(fed, loaded(fed.server_model(), state["server"]))
            assert (metrics["server_accuracy_private_test"], metrics["server_accuracy"]) == server
        assert metrics["accuracy"] == metrics["server_accuracy" if run in (fedgem.run, fedgems.run) else "client_accuracy"]


@each([f for f in EXCHANGING if f is not fedmd.run])
def test_clients_are_also_scored_between_private_and_public_training(run):
    """Without public epochs the two scores are of one network; else the former is that of a round without them."""
    fed, settings = toy(run, test=samples(200, seed=1)), {**QUICK[run], "rounds": 1}
    idle, both = (last(run(fed, **settings, public_epochs=epochs))[0] for epochs in (0, 3))
    between = [key for key in idle if key.startswith("client_accuracy_private")]
    assert len(between) == 3 and all(idle[key] == both[key] == idle[key.replace("_private", "")] for key in between)
    assert both["client_accuracy"] != both["client_accuracy_private"]


@each([*EXCHANGING, fedmd_pooled.run])
def test_metrics_are_numbers_and_never_nan(run):
    for metrics, *_ in whole(run)[1]:
        assert metrics is None or all(type(value) in (int, float, type(None)) for value in metrics.values())
        assert metrics is None or (runs.dumps(metrics) and 0 <= metrics["accuracy"] <= 1)
