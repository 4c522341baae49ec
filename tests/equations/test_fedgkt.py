"""FedGKT: feature maps up, logits both ways; whole runs, synchronous and not, by slow loops."""
import copy
import itertools
import math
import types
from functools import partial

import numpy as np
import pytest
import torch
from slow import batches, drawn, numbers, pixels, update_by
from torch import nn
from toys import federation, last, linear, loaded, rounds, same, sample_clients, samples

from algorithms import fedgkt, fedgkt_async
from algorithms.fedgkt import new_edge, predict_with_features, transfer_loss
from federation import OPTIMIZERS, make_rng, own_accuracy
from reference import fedgkt as oracle

NUMBERS = 5          # in a feature map: neither the classes (3) nor the pixels (4)
SIZES = (5, 3, 4)
QUICK = {"rounds": 2, "local_epochs": 2, "server_epochs": 2, "batch_size": 2,
         "server_batch_size": 3, "lr": 0.1, "server_lr": 0.05, "optimizer": "sgd",
         "server_optimizer": "sgd", "weight_decay": 0.01, "temperature": 2.0}
BOTH = (fedgkt, fedgkt_async)


class Edge(nn.Module):
    """Linear twice: images [B, 1, 2, 2] -> feature map [B, numbers, 1, 1] -> logits [B, C]."""

    def __init__(self, num_classes=3, numbers=NUMBERS):
        super().__init__()
        self.stem = nn.Linear(4, numbers)
        self.classifier = nn.Linear(numbers, num_classes)

    def extract(self, images):
        return self.stem(images.flatten(1))[:, :, None, None]

    def classify(self, features):
        return self.classifier(features.flatten(1))

    def forward(self, images):
        return self.classify(self.extract(images))


class EdgeWithBatchNorm(Edge):
    """With running statistics before the feature map is sent."""

    def __init__(self, num_classes=3):
        super().__init__(num_classes)
        self.bn = nn.BatchNorm2d(NUMBERS)

    def extract(self, images):
        return self.bn(super().extract(images))


def linear_server(num_classes=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(NUMBERS, num_classes))


def layered_server(num_classes=3):
    """What eval mode is needed for: running statistics and dropout."""
    return nn.Sequential(nn.BatchNorm2d(NUMBERS), nn.Flatten(), nn.Dropout(0.3),
                         nn.Linear(NUMBERS, num_classes))


def toy(sizes=SIZES, network=Edge, server=linear_server, num_classes=3, **changes):
    """The federation of `toys` with networks cut in two, and a test set of a batch and a half."""
    settings = {"public": None, "test": samples(150, num_classes, seed=1),
                "validation": samples(20, num_classes, seed=3), **changes}
    return federation(sizes, network, num_classes=num_classes, server=server, **settings)


def shifted(images, rng):
    """An augmentation that makes each image brighter or darker."""
    return images + torch.tensor(rng.normal(size=(len(images), 1, 1, 1)), dtype=torch.float32)


def upload_images(fed, i, n):
    """What client i uploads after n trainings and trains on next: all its images at once."""
    return fed.augment(fed.private[i].images, make_rng(fed.seed, "view", n, i))


def finished(fed, **changes):
    """(metrics, state) of the last round."""
    return last(rounds(fedgkt, fed, **{**QUICK, **changes}))


def trainings(state):
    """How often each client has been trained."""
    return [client["trainings"] for client in state["clients"].values()]


@torch.no_grad()
def check_accuracies(fed, metrics, state):
    """Mean, least and largest over the clients: their extractor with the server behind it."""
    server = loaded(fed.server_model(), state["server"]["model"]).eval()
    stacked, own, on_own_classes = [], [], []
    for i, client in state["clients"].items():
        model = loaded(fed.client_model(i), client["model"]).eval()
        features = model.extract(fed.test.images)
        for found, logits in ((stacked, server(features)), (own, model.classify(features))):
            found.append(int((logits.argmax(1) == fed.test.labels).sum()) / len(logits))
        on_own_classes.append(own_accuracy(logits, fed.test.labels, fed.private[i].labels))
    assert metrics["accuracy"] == pytest.approx(sum(stacked) / len(stacked))
    assert metrics["edge_accuracy"] == pytest.approx(sum(own) / len(own))
    assert metrics["edge_accuracy_own"] == pytest.approx(sum(on_own_classes) / len(own))
    assert (metrics["accuracy_min"], metrics["accuracy_max"]) == (min(stacked), max(stacked))


def uploads_of(monkeypatch, module=fedgkt):
    """From now on, of each training of the server: [{client: (features, logits, labels)}]."""
    uploads, original = [], module.train_server
    monkeypatch.setattr(module, "train_server", lambda *args, **keywords:
                        uploads.append(dict(args[4])) or original(*args, **keywords))
    return uploads


def slow_fedgkt(fed, groups, server_distill=True, client_distill=True, **changes):
    """What reference/fedgkt.py yields after each training of the server on a group's uploads."""
    use = types.SimpleNamespace(**{**QUICK, "server_order": "clients", **changes})
    clients = [numbers(fed.client_model(i)) for i in range(len(fed.private))]
    server, labels = numbers(fed.server_model()), [labels.tolist() for _, labels in fed.private]
    *updates, server_update = (
        update_by(partial(OPTIMIZERS[name], lr=lr, weight_decay=use.weight_decay), w)
        for w, name, lr in [*((w, use.optimizer, use.lr) for w in clients),
                            (server, use.server_optimizer, use.server_lr)])

    def server_batches(number, group):
        rng = make_rng(fed.seed, "server", number)
        for _ in range(use.server_epochs):
            epoch = [(i, rows.tolist()) for i in group
                     for rows in batches(len(labels[i]), use.server_batch_size, 1, rng)]
            if use.server_order == "mixed":
                rng.shuffle(epoch)
            yield epoch

    return list(oracle.run(
        clients, server, lambda i, n: pixels(upload_images(fed, i, n)), labels, groups=groups,
        batches=lambda i, n: drawn(fed, len(labels[i]), use.batch_size, use.local_epochs,
                                   "local", n, i),
        server_batches=server_batches, updates=updates, server_update=server_update,
        temperature=use.temperature, server_distill=server_distill, client_distill=client_distill))


def check(state, clients, server, answers, atol=1e-5):
    """A state's networks and server logits are those of the slow run."""
    kept = [*state["clients"].values()]
    for learner, layers in zip([*kept, state["server"]], [*clients, server], strict=True):
        for w, slow in zip(learner["model"].values(), layers, strict=True):
            assert np.allclose(w, slow, atol=atol)
    for ours, expected in zip([client["server_logits"] for client in kept], answers, strict=True):
        assert (ours is None) == (expected is None)
        assert ours is None or np.allclose(ours, expected, atol=10 * atol)


T, LABELS = 3.0, torch.tensor([0, 0])
# Logits whose softmax at temperature T are these numbers; at 1 their T-th powers, scaled.
STUDENT, TEACHER = (T * torch.tensor(probs, dtype=torch.float64).log() for probs in
                    ([[.6, .4], [.3, .7]], [[.8, .2], [.5, .5]]))
CE = (-math.log(.6**3 / (.6**3 + .4**3)) - math.log(.3**3 / (.3**3 + .7**3))) / 2
KL = (.8 * math.log(.8 / .6) + .2 * math.log(.2 / .4)                  # of the first sample
      + .5 * math.log(.5 / .3) + .5 * math.log(.5 / .7)) / 2           # of the second


def test_eq6_eq7_by_hand():
    """CE and T² times the divergence from the teacher, or without one CE alone; mean over both."""
    for teacher, expected in ((TEACHER, CE + 3**2 * KL), (None, CE)):
        loss = transfer_loss(STUDENT, LABELS, teacher, T)
        assert loss.item() == pytest.approx(expected, abs=1e-12)


def test_extraction_is_in_eval_mode_of_the_next_view(monkeypatch):
    """With the weights after training."""
    uploads, fed = uploads_of(monkeypatch), toy(network=EdgeWithBatchNorm, augment=shifted)
    states = [state for _, state in rounds(fedgkt, fed, **QUICK)][1:]
    for n, (state, sent) in enumerate(zip(states, uploads, strict=True), start=1):
        for i, (features, logits, labels) in sent.items():
            model = loaded(fed.client_model(i), state["clients"][i]["model"]).eval()
            images = upload_images(fed, i, n)
            assert torch.allclose(features, model.extract(images), atol=1e-4)
            assert torch.allclose(logits, model(images), atol=1e-4)
            assert torch.equal(labels, fed.private[i].labels)


@pytest.mark.parametrize("amp", [False, True])
def test_b3_b15_extraction_is_by_row_and_holds_no_graph(amp, monkeypatch):
    """The network stays as it was; under amp maps are computed in bfloat16, kept in float32."""
    monkeypatch.setattr(fedgkt, "CHUNK", 4)
    model = new_edge(toy(network=EdgeWithBatchNorm, amp=amp), 0)
    images = samples(7).images
    model(images)                                                   # fills its running statistics
    before = copy.deepcopy(model.state_dict())
    expected = loaded(EdgeWithBatchNorm(), before).eval()
    features, logits = predict_with_features(model, images)
    atol = .1 if amp else 1e-6
    assert torch.allclose(features, expected.extract(images), atol=atol)
    assert torch.allclose(logits, expected(images), atol=atol)
    assert torch.equal(features, features.bfloat16().float()) == amp
    assert features.dtype == logits.dtype == torch.float32
    assert not features.requires_grad and not logits.requires_grad
    assert same(dict(model.state_dict()), dict(before))


def test_bfloat16_rounds_the_maps_that_are_sent_and_not_the_logits(monkeypatch):
    uploads = uploads_of(monkeypatch)
    (full, _), (half, _) = (finished(toy(), rounds=1, features=features)
                            for features in ("float32", "bfloat16"))
    sent, rounded = uploads
    for i in range(3):
        assert same(rounded[i], (sent[i].features.bfloat16(), sent[i].logits, sent[i].labels))
        assert sent[i].features.dtype == sent[i].logits.dtype == torch.float32
    assert 2 * half["bytes_up"] == full["bytes_up"]


@pytest.mark.parametrize("settings", [
    {"optimizer": "amsgrad", "lr": .01, "server_optimizer": "nesterov", "server_lr": .02},
    {"temperature": 3.0, "local_epochs": 1, "server_epochs": 3},
    {"server_order": "mixed", "optimizer": "momentum", "server_optimizer": "momentum"},
    {"server_distill": False}, {"client_distill": False},                                # Table 2
    {"server_distill": False, "client_distill": False}])
def test_two_rounds_against_algorithm_1(settings):
    fed = toy()
    metrics, state = finished(fed, **settings)
    check(state, *slow_fedgkt(fed, [(0, 1, 2)] * 2, **settings)[-1])
    check_accuracies(fed, metrics, state)
    n = 5 + 3 + 4                                        # maps up, logits down: Eq. (13)
    assert {key: value for key, value in metrics.items() if key.startswith("bytes")} == {
        "bytes_up": 4 * NUMBERS * n, "bytes_down": 4 * 3 * n, "bytes_up_logits": 4 * 3 * n,
        "bytes_up_labels": 4 * n}
    assert metrics["trainings_min"] == metrics["trainings_max"] == 2 and metrics["bad_uploads"] == 0
    assert trainings(state) == [2, 2, 2] and state["round"] == 2


def test_participation_below_1_against_algorithm_1():
    """Who is absent keeps all; batches are of its n-th training."""
    sizes = (5, 3, 4, 2)
    fed = toy(sizes, augment=shifted)
    groups = [sample_clients(4, .5, make_rng(0, "active", t)) for t in range(1, 6)]
    assert len({tuple(group) for group in groups}) > 2 and not set.intersection(*map(set, groups))
    found = list(rounds(fedgkt, fed, **{**QUICK, "rounds": 5}, participation=.5))
    for group, ((_, before), (metrics, after)) in zip(groups, itertools.pairwise(found)):
        assert metrics["bytes_up"] == 4 * NUMBERS * sum(sizes[i] for i in group)
        assert all(same(before["clients"][i], after["clients"][i]) == (i not in group)
                   for i in range(4))
    for (_, state), slow in zip(found[1:], slow_fedgkt(fed, groups), strict=True):
        check(state, *slow, atol=1e-4)
    check_accuracies(fed, *found[-1])                                    # on clean images


@pytest.mark.parametrize("module", BOTH)
def test_initial_weights_depend_on_the_seed_alone(module):
    """All clients start from the same weights, or each from its own; no data has a part in it."""
    def start(common=True, **changes):
        _, state = next(rounds(module, toy(**changes), **QUICK, common_start=common))
        clients = [*state["clients"].values()]
        assert state["round"] == 0
        assert [client["server_logits"] for client in clients] == [None] * 3
        return [dict(learner["model"]) for learner in [state["server"], *clients]]
    server, *edges = [dict(model.state_dict()) for model in
                      [toy().server_model(), *(toy().client_model(i, init=i) for i in range(3))]]
    assert same(start(), [server, *[edges[0]] * 3])
    assert same(start(common=False), [server, *edges])
    assert same(start(), start(private=[samples(n, seed=7 + n) for n in SIZES]))


def test_server_logits_are_of_the_trained_server():
    """In eval mode after the last epoch, of the maps that were sent, row by row."""
    fed = toy(network=EdgeWithBatchNorm, server=layered_server)
    metrics, state = finished(fed)
    server = loaded(fed.server_model(), state["server"]["model"]).eval()
    for i, (images, _) in enumerate(fed.private):
        edge = loaded(fed.client_model(i), state["clients"][i]["model"]).eval()
        with torch.no_grad():
            expected = server(edge.extract(images))
        assert torch.allclose(state["clients"][i]["server_logits"], expected, atol=1e-5)
    check_accuracies(fed, metrics, state)
    steps = 2 * 2 * (2 + 1 + 2)                       # rounds, E_s, ceil(n_i / 3)
    assert state["server"]["model"]["0.num_batches_tracked"].item() == steps
    kept = [*state["server"]["model"].values(), *(
        x for client in state["clients"].values()
        for x in (*client["model"].values(), client["server_logits"]))]
    assert not any(x.requires_grad for x in kept)


def test_asynchronous_rounds_against_algorithm_1(monkeypatch):
    """Uploads meet although their moments are different floats, as 3 * 0.1 and 2 * 0.15."""
    fed, uploads = toy(augment=shifted), uploads_of(monkeypatch, fedgkt_async)
    _, *found = rounds(fedgkt_async, fed, **{**QUICK, "rounds": 3}, latencies=(.4, .15, .1))
    groups = [[2], [1], [2],                                                # at .1, .15, .2
              [1, 2], [0, 2],                                               # at .3, .4
              [1], [2], [1, 2]]                                             # at .45, .5, .6
    assert [sorted(group) for group in uploads] == groups
    for (metrics, state), clock, server_trainings, answers, sent in zip(
            found, (.2, .4, .6), (3, 5, 8), ([0, 1, 2], [1, 2, 4], [1, 4, 6]),
            (4 + 3 + 4, (3 + 4) + (5 + 4), 3 + 4 + (3 + 4)), strict=True):
        assert metrics["clock"] == clock
        assert state["server_trainings"] == server_trainings
        assert trainings(state) == answers and metrics["bytes_up"] == 4 * NUMBERS * sent
        assert (metrics["trainings_min"], metrics["trainings_max"]) == (min(answers), max(answers))
        assert metrics["clock_if_all_wait"] == pytest.approx(sum(answers) / 3 * .4)
    check(found[-1][1], *slow_fedgkt(fed, groups)[-1], atol=1e-4)


def test_it_goes_on_with_the_latencies_of_its_state():
    """They say what has arrived; with others of the same clients past uploads would arrive anew."""
    fed, given = toy(), (.4, .15, .1)
    (_, start), *_, (metrics, state) = rounds(fedgkt_async, fed, **QUICK, latencies=given)
    for latencies in (given, None):
        found, other = last(rounds(fedgkt_async, fed, start, **QUICK, latencies=latencies))
        assert found == metrics and same(other["clients"], state["clients"])
    with pytest.raises(ValueError, match=r"the state has the latencies \[0.4, 0.15, 0.1\]"):
        next(rounds(fedgkt_async, fed, start, **QUICK, latencies=(.4, .15, .2)))


def test_latencies_are_uniform_from_1_to_10():
    _, state = next(rounds(fedgkt_async, toy(sizes=(1,) * 100), **QUICK))
    latencies = state["latencies"]
    assert 1 <= min(latencies) < 1.5 and 9.5 < max(latencies) <= 10
    assert len(set(latencies)) == 100


@pytest.mark.parametrize("part, value", [("features", math.nan), ("logits", -1e30)])
def test_non_finite_features_are_left_out(part, value):
    """Client 1's in round 2: the server learns from the others alone; the client has no server
    logits for round 3, because those of round 1 may be of other images."""
    fed, calls = toy(), itertools.count(1)

    def spoil(uploads):
        if next(calls) == 2:
            getattr(uploads[1], part)[-1] = value
        return uploads
    attack = types.SimpleNamespace(poison_samples=spoil)
    metrics, state = last(rounds(fedgkt, fed, attack=attack, **QUICK))
    _, server, answers = slow_fedgkt(fed, [(0, 1, 2), (0, 2)])[-1]
    clients, _, _ = slow_fedgkt(fed, [(0, 1, 2)] * 2)[-1]         # its local training counts
    check(state, clients, server, [answers[0], None, answers[2]])
    assert metrics["bad_uploads"] == 1 and trainings(state) == [2, 2, 2]
    assert metrics["bytes_down"] == 4 * fed.num_classes * (5 + 4)         # no answer to client 1


@pytest.mark.parametrize("modules, federation, settings, message", [
    (BOTH, {"network": (Edge, linear)}, {}, "linear has no feature map"),
    (BOTH, {"network": (Edge, lambda classes: Edge(classes, 6))}, {},
     r"makes no logits \[B, 3\] of the \[6, 1, 1\] feature maps of <lambda>.*cannot be mul"),
    (BOTH, {"server": lambda classes: linear_server(4)}, {}, r"makes no logits .* \[1, 4\] of one"),
    (BOTH, {"network": (Edge, lambda classes: Edge(classes, 6)), "server": lambda classes:
            nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(classes))}, {},
     r"one shape, not \[\(5, 1, 1\), \(6, 1, 1\)\]"),
    *((BOTH[1:], {}, {"latencies": latencies}, "latencies ")
      for latencies in [(1., 2., 3., 4.), (1., 0., 2.)])])
def test_what_does_not_fit_together_is_refused(modules, federation, settings, message):
    for module in modules:
        with pytest.raises(ValueError, match=message) as error:
            next(rounds(module, toy(**federation), **{**QUICK, **settings}))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("network, method", [
    (Edge, "extract"), (Edge, "classify"), (nn.Sequential, "forward")])      # the last: the server
@pytest.mark.parametrize("error", [ValueError, TypeError])
def test_an_error_inside_a_network_comes_through(network, method, error, monkeypatch):
    def broken(*args):
        raise error("mine")
    monkeypatch.setattr(network, method, broken)
    with pytest.raises(error, match="^mine$"):
        next(rounds(fedgkt, toy(), **QUICK))
