"""FedGKT: feature maps up, logits both ways; whole runs, synchronous and not, against Algorithm 1, sample by sample."""
import copy
import dataclasses
import functools
import heapq
import inspect
import itertools
import math

import numpy as np
import pytest
import torch
from test_logits import equal, slow_softmax, through_a_file
from toys import federation, last, linear, same, samples
from torch import nn

import runs
from algorithms import common, fedgkt, fedgkt_async, fedgkt_features
from algorithms.common import Data, sample_clients, stream, tensors
from algorithms.fedgkt import client_loss, server_loss
from algorithms.fedgkt_features import extract
from algorithms.training import OPTIMIZERS, batches
from communication import features_bytes

NUMBERS = 5          # in a feature map: neither the classes (3) nor the pixels (4)
SIZES = (5, 3, 4)
QUICK = {"rounds": 2, "local_epochs": 2, "server_epochs": 2, "batch_size": 2, "server_batch_size": 3, "lr": 0.1, "server_lr": 0.05,
         "optimizer": "sgd", "server_optimizer": "sgd", "weight_decay": 0.01, "temperature": 2.0, "lr_patience": None}


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


class DeepEdge(Edge):
    """Another network with the same feature map."""

    def __init__(self, num_classes=3):
        super().__init__(num_classes)
        self.hidden = nn.Linear(NUMBERS, NUMBERS)

    def classify(self, features):
        return self.classifier(self.hidden(features.flatten(1)).tanh())


def linear_server(num_classes=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(NUMBERS, num_classes))


def layered_server(num_classes=3):
    """What eval mode is needed for: running statistics and dropout."""
    return nn.Sequential(nn.BatchNorm2d(NUMBERS), nn.Flatten(), nn.Dropout(0.3), nn.Linear(NUMBERS, num_classes))


def toy(sizes=SIZES, network=Edge, server=linear_server, num_classes=3, **changes):
    """The federation of `toys` with networks cut in two, and a validation set."""
    return federation(sizes, network, num_classes=num_classes, server=server,
                      **{"public": None, "validation": samples(20, num_classes, seed=3), **changes})


def finished(fed, **changes):
    """(metrics, state) of the last round."""
    return last(fedgkt.run(fed, **{**QUICK, **changes}))


def loaded(model, learner):
    model.load_state_dict(learner["model"])
    return model.eval()


def trainings(state):
    """How often each client has been trained."""
    return [client["trainings"] for client in state["clients"]]


def watched(monkeypatch, name, module=fedgkt):
    """A function's calls, from now on, where this module makes them: [(arguments, what it returned)]."""
    calls, original = [], getattr(module, name)

    def watcher(*args, **keywords):
        returned = original(*args, **keywords)
        calls.append((args, returned))
        return returned
    monkeypatch.setattr(module, name, watcher)
    return calls


def uploads_of(monkeypatch, module=fedgkt):
    """What the server trains on, from now on: [{client: (features, logits)}] of each event."""
    calls = watched(monkeypatch, "train_server", module)
    return lambda: [args[3] for args, _ in calls]


# ------------------------------------------------------------------------------- slow: Algorithm 1, number by number

def slow_layers(*layers):
    """[weight, bias, weight, bias, ...] of linear layers, in double precision."""
    return [w.detach().double().clone().requires_grad_() for layer in layers for w in (layer.weight, layer.bias)]


def slow_values(layers, x):
    """What goes into each layer, and what comes out of the last: of an edge [image, feature map, logits]."""
    values = [x]
    for weight, bias in zip(layers[::2], layers[1::2]):
        values.append([sum(w * v for w, v in zip(row, values[-1])) + b for row, b in zip(weight.tolist(), bias.tolist())])
    return values


def slow_slope(z, label, teacher, temperature):
    """d/dz of - ln p_label + T² KL(softmax(teacher / T) || softmax(z / T)): p - [c is the label] + T (q - p_teacher)."""
    slope = [p - (c == label) for c, p in enumerate(slow_softmax(z))]
    if teacher is not None:
        q, p = (slow_softmax([v / temperature for v in logits]) for logits in (z, teacher))
        slope = [s + temperature * (a - b) for s, a, b in zip(slope, q, p)]
    return slope


def slow_step(layers, update, xs, labels, teachers, temperature):
    """A step of `update` on the mean loss over a batch of one or more linear layers: backpropagation written out."""
    grads = [torch.zeros_like(w).tolist() for w in layers]
    for x, label, teacher in zip(xs, labels, teachers, strict=True):
        values = slow_values(layers, x)
        delta = [s / len(xs) for s in slow_slope(values[-1], label, teacher, temperature)]
        for k in reversed(range(len(layers) // 2)):
            for c, d in enumerate(delta):
                grads[2 * k + 1][c] += d
                for j, v in enumerate(values[k]):
                    grads[2 * k][c][j] += d * v
            weight = layers[2 * k].tolist()
            delta = [sum(weight[c][j] * d for c, d in enumerate(delta)) for j in range(len(values[k]))]
    for w, grad in zip(layers, grads):
        w.grad = torch.tensor(grad, dtype=torch.float64)
    update.step()


SLOW_OPTIMIZERS = {"sgd": torch.optim.SGD, "amsgrad": functools.partial(torch.optim.Adam, amsgrad=True)}


def slow_fedgkt(fed, events, *, local_epochs, server_epochs, batch_size, server_batch_size, lr, server_lr, optimizer, server_optimizer,
                weight_decay, temperature, server_distill=True, client_distill=True):
    """(clients, the server, each client's server logits [n][C] or None) after events, each a group of clients that is answered."""
    edges = [fed.client_model(i) for i in range(len(fed.private))]
    clients, server = [slow_layers(edge.stem, edge.classifier) for edge in edges], slow_layers(fed.server_model()[1])
    updates = [SLOW_OPTIMIZERS[optimizer](client, lr=lr, weight_decay=weight_decay) for client in clients]
    server_update = SLOW_OPTIMIZERS[server_optimizer](server, lr=server_lr, weight_decay=weight_decay)
    answers, trained = [None] * len(clients), [0] * len(clients)
    images = [[image.flatten().tolist() for image in private.images] for private in fed.private]
    labels = [private.labels.tolist() for private in fed.private]
    for event, group in enumerate(events, start=1):
        sent = {}
        for i in group:
            trained[i] += 1
            teachers = answers[i] if client_distill and answers[i] else [None] * len(labels[i])
            for rows in batches(len(labels[i]), batch_size, local_epochs, stream(fed.seed, "local", trained[i], i)):
                slow_step(clients[i], updates[i], *([values[n] for n in rows] for values in (images[i], labels[i], teachers)), temperature)
            sent[i] = [slow_values(clients[i], x)[1:] for x in images[i]]                # of each sample: feature map, logits
        rng = stream(fed.seed, "server", event)
        for _ in range(server_epochs):
            for i in group:
                for rows in batches(len(labels[i]), server_batch_size, 1, rng):
                    slow_step(server, server_update, [sent[i][n][0] for n in rows], [labels[i][n] for n in rows],
                              [sent[i][n][1] if server_distill else None for n in rows], temperature)
        for i in group:
            answers[i] = [slow_values(server, h)[-1] for h, _ in sent[i]]
    return clients, server, answers


def slow_accuracies(fed, clients, server):
    """Of each client: how many test samples its extractor with the server behind it, and its own network, get right."""
    stacked, own = [], []
    for client in clients:
        outputs = [slow_values(client, image.flatten().tolist()) for image in fed.test.images]
        behind = [slow_values(server, h)[-1] for _, h, _ in outputs]
        for hits, logits in ((stacked, behind), (own, [z for *_, z in outputs])):
            hits.append(sum(z.index(max(z)) == y for z, y in zip(logits, fed.test.labels.tolist())) / len(fed.test.labels))
    return stacked, own


def close_to(model_state, layers, names, atol=1e-5):
    return all(np.allclose(model_state[name], w.detach(), atol=atol) for name, w in zip(names, layers, strict=True))


def check(state, clients, server, answers, atol=1e-5):
    """A state's networks and server logits are those of the slow run."""
    for learner, client in zip(state["clients"], clients, strict=True):
        assert close_to(learner["model"], client, ("stem.weight", "stem.bias", "classifier.weight", "classifier.bias"), atol)
    assert close_to(state["server"]["model"], server, ("1.weight", "1.bias"), atol)
    for ours, expected in zip(state["server_logits"], answers, strict=True):
        assert ours is expected is None or np.allclose(ours, expected, atol=10 * atol)


def slow_settings(**changes):
    return {name: value for name, value in {**QUICK, **changes}.items() if name not in ("rounds", "lr_patience")}


# ------------------------------------------------------------------------------------------------------------ the losses

T = 2.0


def softened(*probs):
    """Logits whose softmax at temperature T is the given probabilities; their softmax at 1 is their squares, scaled."""
    return T * torch.tensor(probs, dtype=torch.float64).log()


STUDENT, TEACHER, LABELS = softened([.6, .4], [.3, .7]), softened([.8, .2], [.5, .5]), torch.tensor([0, 0])
CE = (-math.log(.6**2 / (.6**2 + .4**2)) - math.log(.3**2 / (.3**2 + .7**2))) / 2
TAUGHT = (.8 * math.log(.8 / .6) + .2 * math.log(.2 / .4) + .5 * math.log(.5 / .3) + .5 * math.log(.5 / .7)) / 2
losses = pytest.mark.parametrize("loss", [server_loss, client_loss], ids=["server", "client"])


def test_eq6_by_hand():
    """Temperature² times the divergence of the server from the sample's one client, mean over the batch; the client is the teacher."""
    assert server_loss(STUDENT, LABELS, TEACHER, T).item() == pytest.approx(CE + T**2 * TAUGHT, abs=1e-12)


def test_eq7_by_hand():
    """The same with the server as the teacher."""
    assert client_loss(STUDENT, LABELS, TEACHER, T).item() == pytest.approx(CE + T**2 * TAUGHT, abs=1e-12)


def random_logits(n=6, classes=4, seed=0):
    return torch.randn(n, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3


@losses
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_eq6_and_eq7_by_slow_loop(loss, temperature):
    student, teacher, labels = random_logits(), random_logits(seed=1), torch.tensor([0, 3, 1, 1, 2, 0])
    total = 0.0
    for z, z_teacher, y in zip(student.tolist(), teacher.tolist(), labels.tolist()):
        p, q = (slow_softmax([v / temperature for v in logits]) for logits in (z_teacher, z))
        total += -math.log(slow_softmax(z)[y]) + temperature**2 * sum(a * math.log(a / b) for a, b in zip(p, q))
    assert loss(student, labels, teacher, temperature).item() == pytest.approx(total / 6, abs=1e-12)


def test_eq7_before_the_servers_first_answer_is_cross_entropy_alone():
    assert client_loss(STUDENT, LABELS, None, T).item() == pytest.approx(CE, abs=1e-12)


def test_eq6_without_distillation_is_cross_entropy_alone():
    assert server_loss(STUDENT, LABELS, TEACHER, T, distill=False).item() == pytest.approx(CE, abs=1e-12)


@losses
def test_b5_who_agrees_with_the_teacher_pays_cross_entropy_alone(loss):
    assert loss(STUDENT, LABELS, STUDENT.clone(), T).item() == pytest.approx(CE, abs=1e-12)


@losses
def test_gradient_goes_to_the_student_alone(loss):
    student, teacher = random_logits().requires_grad_(), random_logits(seed=1).requires_grad_()
    labels = torch.tensor([0, 3, 1, 1, 2, 0])
    assert torch.autograd.gradcheck(lambda z: loss(z, labels, teacher, 3.0), student)
    loss(student, labels, teacher, 3.0).backward()
    assert teacher.grad is None
    slopes = [slow_slope(z, y, z_teacher, 3.0) for z, z_teacher, y in zip(student.tolist(), teacher.tolist(), labels.tolist())]
    assert np.allclose(student.grad, np.array(slopes) / 6, atol=1e-12)


@losses
def test_a_permutation_of_classes_or_samples_and_a_shift_of_logits_change_no_loss(loss):
    student, teacher, labels = random_logits(), random_logits(seed=1), torch.tensor([0, 3, 1, 1, 2, 0])
    expected, classes, order = loss(student, labels, teacher, 3.0), torch.tensor([2, 0, 3, 1]), torch.tensor([5, 2, 0, 1, 4, 3])
    renamed = torch.tensor([classes.tolist().index(y) for y in labels.tolist()])
    assert torch.allclose(loss(student[:, classes], renamed, teacher[:, classes], 3.0), expected)
    assert torch.allclose(loss(student[order], labels[order], teacher[order], 3.0), expected)
    assert torch.allclose(loss(student + random_logits(6, 1, seed=2), labels, teacher + random_logits(6, 1, seed=3), 3.0), expected)


@losses
def test_logits_of_ten_thousand_give_a_finite_loss(loss):
    """The student is sure and right, the teacher sure of the other class: T² (0 - (-20,000 / T)), as softmax rounds to 1 and 0."""
    student, teacher = torch.tensor([[1e4, -1e4]]), torch.tensor([[-1e4, 1e4]])
    assert loss(student, torch.tensor([0]), teacher, 4.0).item() == 0 + 4**2 * (2e4 / 4)


@losses
def test_a_loss_changes_no_input(loss):
    arguments = random_logits(), torch.tensor([0, 3, 1, 1, 2, 0]), random_logits(seed=1)
    before = copy.deepcopy(arguments)
    loss(*arguments, 3.0)
    assert same(arguments, before)


# ------------------------------------------------------------------------------------------------------------ extraction

def trained_client(fed, i=0, **changes):
    """(features, logits, the client) after its first training."""
    settings = {**QUICK, **changes}
    new_optimizer = functools.partial(OPTIMIZERS[settings["optimizer"]], lr=settings["lr"], weight_decay=settings["weight_decay"])
    client = {"model": fed.client_model(i).state_dict(), "optimizer": None, "trainings": 0}
    upload, client = fedgkt.train_client(fed, i, client, None, local_epochs=settings["local_epochs"], batch_size=settings["batch_size"],
                                         new_optimizer=new_optimizer, temperature=settings["temperature"], client_distill=True,
                                         dtype=torch.float32)
    assert client["trainings"] == 1
    return *upload, client


def batchnorm_features(client, images):
    """Of `EdgeWithBatchNorm`, with its running statistics, by the formula."""
    w = client["model"]
    h = images.flatten(1) @ w["stem.weight"].T + w["stem.bias"]
    return (h - w["bn.running_mean"]) / (w["bn.running_var"] + 1e-5).sqrt() * w["bn.weight"] + w["bn.bias"]


def test_extraction_is_of_clean_images():
    """Training sees images + 100, extraction the images themselves, with the weights after training, in eval mode."""
    fed = toy(network=EdgeWithBatchNorm, augment=lambda images, rng: images + 100)
    features, logits, client = trained_client(fed, lr=1e-4)
    expected = batchnorm_features(client, fed.private[0].images)
    assert torch.allclose(features.flatten(1), expected, rtol=1e-4, atol=1e-4)
    assert torch.allclose(logits, expected @ client["model"]["classifier.weight"].T + client["model"]["classifier.bias"], atol=1e-3)
    assert not torch.allclose(client["model"]["bn.running_mean"], trained_client(toy(network=EdgeWithBatchNorm), lr=1e-4)[2]["model"]["bn.running_mean"])


def test_extraction_is_with_the_weights_after_training():
    fed = toy()
    features, logits, client = trained_client(fed)
    model, start = loaded(fed.client_model(0), client), fed.client_model(0)
    images = fed.private[0].images
    assert torch.equal(features, model.extract(images)) and torch.allclose(logits, model(images), atol=1e-6)
    assert not torch.allclose(features, start.extract(images), atol=1e-2)


def test_b15_extraction_holds_no_graph():
    model = EdgeWithBatchNorm()
    for value in extract(toy(), model, samples(7).images):
        assert not value.requires_grad and value.grad_fn is None


@pytest.mark.parametrize("training", [True, False])
def test_extraction_is_in_eval_mode_and_leaves_batchnorm_and_the_mode_alone(training):
    """An image's map does not depend on the others': it is that of the running statistics."""
    model, images = EdgeWithBatchNorm().train(training), samples(7).images
    with torch.no_grad():
        model.bn.running_mean += 3
        model.bn.running_var *= 2
    before = copy.deepcopy(model.state_dict())
    features, logits = extract(toy(), model, images)
    assert torch.allclose(features.flatten(1), batchnorm_features({"model": model.state_dict()}, images), atol=1e-5)
    assert torch.allclose(extract(toy(), model, images[2:3])[0], features[2:3], atol=1e-6)
    assert same(dict(model.state_dict()), dict(before)) and model.training == model.bn.training == training


@pytest.mark.parametrize("batch_size", [1, 3, 7])
def test_b3_extraction_keeps_every_row_in_its_place_whatever_the_batches(batch_size, monkeypatch):
    monkeypatch.setattr(fedgkt_features, "CHUNK", batch_size)
    model, images = Edge(), samples(7).images
    features, logits = extract(toy(), model, images)
    assert features.shape == (7, NUMBERS, 1, 1) and logits.shape == (7, 3)
    for n in range(7):
        h, z = extract(toy(), model, images[n:n + 1])
        assert torch.allclose(features[n], h[0], atol=1e-6) and torch.allclose(logits[n], z[0], atol=1e-6)


def test_features_may_be_bfloat16_and_logits_are_float32_of_the_unrounded_map():
    model, images = Edge(), samples(7).images
    (full, logits), (half, same_logits) = (extract(toy(), model, images, dtype) for dtype in (torch.float32, torch.bfloat16))
    assert half.dtype == torch.bfloat16 and torch.equal(half, full.bfloat16()) and not torch.equal(half.float(), full)
    assert logits.dtype == same_logits.dtype == torch.float32 and torch.equal(logits, same_logits)


def test_features_in_bfloat16_are_what_the_server_trains_on(monkeypatch):
    uploads = uploads_of(monkeypatch)
    (full, _), (half, _) = (finished(toy(), rounds=1, features=dtype) for dtype in ("float32", "bfloat16"))
    sent, rounded = uploads()
    for i in range(3):
        assert rounded[i][0].dtype == torch.bfloat16 and torch.equal(rounded[i][0], sent[i][0].bfloat16())
        assert rounded[i][1].dtype == torch.float32 and torch.equal(rounded[i][1], sent[i][1])
    assert 2 * half["bytes_up"] == full["bytes_up"]
    assert all(half[key] == full[key] for key in ("bytes_down", "bytes_up_logits", "bytes_up_labels"))


def test_under_amp_maps_are_computed_in_bfloat16_and_kept_in_the_type_asked_for():
    model, images = Edge(), samples(7).images
    features, logits = extract(toy(amp=True), model, images)
    plain, _ = extract(toy(), model, images)
    assert features.dtype == logits.dtype == torch.float32 and torch.equal(features, features.bfloat16().float())
    assert not torch.equal(features, plain) and torch.allclose(features, plain, rtol=.05, atol=.05)


# ---------------------------------------------------------------------------------------------- whole rounds, synchronous

@pytest.mark.parametrize("settings", [{}, {"optimizer": "amsgrad", "lr": 0.01}, {"server_optimizer": "amsgrad", "server_lr": 0.01},
                                      {"temperature": 3.0, "local_epochs": 1, "server_epochs": 3}])
def test_two_rounds_against_algorithm_1(settings):
    fed = toy()
    clients, server, answers = slow_fedgkt(fed, [(0, 1, 2)] * 2, **slow_settings(**settings))
    metrics, state = finished(fed, **settings)
    check(state, clients, server, answers)
    stacked, own = slow_accuracies(fed, clients, server)
    assert (metrics["accuracy"], metrics["edge_accuracy"]) == (pytest.approx(sum(stacked) / 3), pytest.approx(sum(own) / 3))
    assert (metrics["accuracy_min"], metrics["accuracy_max"]) == (pytest.approx(min(stacked)), pytest.approx(max(stacked)))
    numbers = 5 + 3 + 4
    assert {key: value for key, value in metrics.items() if key.startswith("bytes")} == {
        "bytes_up": 4 * NUMBERS * numbers, "bytes_down": 4 * 3 * numbers, "bytes_up_logits": 4 * 3 * numbers, "bytes_up_labels": 4 * numbers}
    assert metrics["answers_min"] == metrics["answers_max"] == 2
    assert metrics["bad_uploads"] == 0 and trainings(state) == [2, 2, 2] and state["round"] == 2


def test_participation_below_1_against_algorithm_1():
    """A client's server logits stay its own until it is there again; its batches are those of its own n-th training."""
    fed, sizes = toy(sizes=(5, 3, 4, 2)), (5, 3, 4, 2)
    groups = [sample_clients(4, .5, stream(0, "active", t)) for t in range(1, 6)]
    assert len({tuple(group) for group in groups}) > 2 and max(sum(i in group for group in groups) for i in range(4)) < 5
    rounds = list(fedgkt.run(fed, **{**QUICK, "rounds": 5}, participation=.5))[1:]
    for (metrics, _), group in zip(rounds, groups, strict=True):
        assert metrics["bytes_up"] == 4 * NUMBERS * sum(sizes[i] for i in group)
    check(rounds[-1][1], *slow_fedgkt(fed, groups, **slow_settings()), atol=1e-4)


def test_who_does_not_take_part_keeps_its_network_and_its_server_logits():
    fed = toy(sizes=(5, 3, 4, 2), network=EdgeWithBatchNorm)
    states = [copy.deepcopy(state) for _, state in fedgkt.run(fed, **{**QUICK, "rounds": 4}, participation=.5)]
    for t, (before, after) in enumerate(itertools.pairwise(states), start=1):
        there = sample_clients(4, .5, stream(0, "active", t))
        for i in range(4):
            unchanged = [same(before[key][i], after[key][i]) for key in ("clients", "server_logits")]
            assert unchanged == [i not in there] * 2 and trainings(after)[i] == trainings(before)[i] + (i in there)


def test_table_2_switches():
    """None, S->E and S<->E, and the fourth: who learns from whose logits, each against Algorithm 1."""
    fed, seen = toy(), []
    for server_distill, client_distill in itertools.product((False, True), repeat=2):
        switches = {"server_distill": server_distill, "client_distill": client_distill}
        _, state = finished(fed, **switches)
        check(state, *slow_fedgkt(fed, [(0, 1, 2)] * 2, **slow_settings(**switches)))
        seen.append((state["clients"][0]["model"]["stem.weight"], state["server"]["model"]["1.weight"]))
    assert not any(torch.allclose(a[0], b[0], atol=1e-4) or torch.allclose(a[1], b[1], atol=1e-4)
                   for a, b in itertools.combinations(seen[1:], 2))


def test_in_the_first_round_there_are_no_server_logits():
    """Clients that would learn from them and clients that would not are the same after round 1, not after round 2."""
    fed = toy()
    both, alone = ([state for _, state in fedgkt.run(fed, **QUICK, client_distill=on)] for on in (True, False))
    assert both[0]["server_logits"] == [None] * 3 and all(logits is not None for logits in both[1]["server_logits"])
    assert same(both[1], alone[1])
    assert not any(same(a["model"], b["model"]) for a, b in zip(both[2]["clients"], alone[2]["clients"]))


def test_permuting_a_clients_rows_permutes_its_server_logits():
    """With batches that hold all rows of a client the order is of no matter to a step: logits stay with their samples."""
    fed, order = toy(), torch.tensor([3, 1, 4, 0, 2])
    private = [Data(fed.private[0].images[order], fed.private[0].labels[order]), *fed.private[1:]]
    settings = {"rounds": 3, "batch_size": 5, "server_batch_size": 5}
    (_, ours), (_, permuted) = finished(fed, **settings), finished(dataclasses.replace(fed, private=private), **settings)
    assert torch.allclose(ours["server_logits"][0][order], permuted["server_logits"][0], atol=1e-4)
    assert (ours["server_logits"][0][order] - ours["server_logits"][0]).abs().max() > .1
    for a, b in zip([*ours["clients"], ours["server"]], [*permuted["clients"], permuted["server"]], strict=True):
        assert all(torch.allclose(a["model"][name], b["model"][name], atol=1e-4) for name in a["model"])


def test_initial_weights_depend_on_the_seed_alone():
    """All clients begin with the same weights, or each with its own, drawn anew; no data and no other setting has a part in them."""
    def start(common=True, **changes):
        return next(fedgkt.run(toy(**changes), **QUICK, common_start=common))[1]
    state, other, own = start(), start(seed=1), start(common=False)
    for i in range(3):
        assert same(dict(state["clients"][i]["model"]), dict(toy().client_model(i).state_dict()))
        assert same(dict(own["clients"][i]["model"]), dict(toy().client_model(i, init=i).state_dict()))
    assert same(dict(state["server"]["model"]), dict(toy().server_model().state_dict())) and same(state["server"], own["server"])
    assert same(state["clients"][0], state["clients"][1]) and same(state["clients"][0], state["clients"][2])
    assert not any(same(a["model"], b["model"]) for a, b in itertools.combinations(own["clients"], 2))
    assert same(state, start(private=[samples(n, seed=7 + n) for n in SIZES])) and all(client["optimizer"] is None for client in state["clients"])
    assert not any(same(a["model"], b["model"]) for a, b in zip([*state["clients"], state["server"]], [*other["clients"], other["server"]]))


@pytest.mark.parametrize("server_batch_size", [1, 3, 100])
def test_server_logits_are_of_the_trained_server(server_batch_size):
    """One pass in eval mode after the last epoch, over the maps that were sent: what the state's networks say, row by row."""
    fed = toy(network=EdgeWithBatchNorm, server=layered_server)
    _, state = finished(fed, server_batch_size=server_batch_size)
    server = loaded(fed.server_model(), state["server"])
    for i, (images, _) in enumerate(fed.private):
        with torch.no_grad():
            expected = server(loaded(fed.client_model(i), state["clients"][i]).extract(images))
        assert torch.allclose(state["server_logits"][i], expected, atol=1e-5)


def test_the_servers_running_statistics_are_of_the_maps_it_trains_on():
    """Each batch once in each epoch: a counter of ceil(n_i / B) E_s steps."""
    _, state = finished(toy(server=layered_server), rounds=1, server_epochs=4)
    assert state["server"]["model"]["0.num_batches_tracked"].item() == 4 * (2 + 1 + 2)


def test_nothing_in_a_state_or_an_upload_holds_a_graph(monkeypatch):
    uploads = uploads_of(monkeypatch)
    _, state = finished(toy(network=EdgeWithBatchNorm, server=layered_server), optimizer="amsgrad")
    assert not any(value.requires_grad for value in tensors([state, *uploads()]))


def test_clients_may_have_different_networks_with_one_feature_map():
    fed = toy(network=(Edge, DeepEdge, EdgeWithBatchNorm))
    metrics, state = finished(fed)
    for i in range(3):
        before, after = fed.client_model(i).state_dict(), state["clients"][i]["model"]
        assert before.keys() == after.keys() and not any(torch.equal(before[name], after[name]) for name in before)
    assert metrics["bad_uploads"] == 0


@pytest.mark.parametrize("sizes", [(1, 2), (6,)])
def test_a_client_may_hold_a_single_sample_or_be_alone(sizes):
    """With BatchNorm over maps of 1 x 1, where one sample has no variance."""
    metrics, state = finished(toy(sizes=sizes, network=EdgeWithBatchNorm, server=layered_server), server_batch_size=2)
    assert metrics["bad_uploads"] == 0 and all(torch.isfinite(logits).all() for logits in state["server_logits"]) and runs.dumps(metrics)


# ---------------------------------------------------------------------------------------------------------- asynchronous

@pytest.mark.parametrize("settings", [{}, {"network": EdgeWithBatchNorm, "server": layered_server}])
def test_equal_latencies_are_synchronous(settings):
    """Bit for bit; the clock, which the synchronous algorithm does not have, is that of rounds of one latency."""
    fed, changes = toy(**settings), {**QUICK, "rounds": 4, "lr_patience": 1}
    together, one_by_one = list(fedgkt.run(fed, **changes)), list(fedgkt_async.run(fed, **changes, latencies=(2.5,) * 3))
    own, clocks = ("event", "clock", "clock_if_all_wait"), []
    for t, found in enumerate(one_by_one):
        clocks.append([{key: value for key, value in part.items() if key in own} for part in found])
        one_by_one[t] = tuple({key: value for key, value in part.items() if key not in own} for part in found)
    assert equal(together, one_by_one)
    assert clocks == [[{"clock": t * 2.5, "clock_if_all_wait": t * 2.5}, {"event": t, "clock": t * 2.5}] for t in range(5)]


def slow_arrivals(latencies, rounds):
    """[[(moment, who arrives then), ...] of each round]: who is answered at a moment is back a latency later."""
    queue, arrivals = [(latency, i) for i, latency in enumerate(latencies)], []
    heapq.heapify(queue)
    for _ in range(rounds):
        arrivals.append([])
        while sum(len(group) for _, group in arrivals[-1]) < len(latencies):
            moment, group = queue[0][0], []
            while queue[0][0] == moment:
                group.append(queue[0][1])
                heapq.heapreplace(queue, (moment + latencies[queue[0][1]], queue[0][1]))
            arrivals[-1].append((moment, group))
    return arrivals


@pytest.mark.parametrize("latencies", [(1., 2.5, 4.), (4., 1.5, 1.), (3., 3., 1.)])
def test_asynchronous_rounds_against_a_slow_queue(latencies):
    """Moments and groups in order, and after three rounds the networks and logits of Algorithm 1 on those groups."""
    fed, arrivals = toy(), slow_arrivals(latencies, 3)
    rounds = list(fedgkt_async.run(fed, **{**QUICK, "rounds": 3}, latencies=latencies))[1:]
    for t, (metrics, state) in enumerate(rounds, start=1):
        groups = [group for events in arrivals[:t] for _, group in events]
        answers = [sum(i in group for group in groups) for i in range(3)]
        assert metrics["clock"] == state["clock"] == arrivals[t - 1][-1][0] and trainings(state) == answers
        assert (metrics["answers_min"], metrics["answers_max"]) == (min(answers), max(answers)) and state["event"] == len(groups)
        assert metrics["bytes_up"] == 4 * NUMBERS * sum(SIZES[i] for _, group in arrivals[t - 1] for i in group)
        assert metrics["clock_if_all_wait"] == pytest.approx(sum(answers) / 3 * max(latencies))
    check(rounds[-1][1], *slow_fedgkt(fed, groups, **slow_settings()), atol=1e-4)


def test_who_is_ten_times_as_fast_is_answered_ten_times_as_often(monkeypatch):
    """Alone at 1, 2, ..., 9, together with the slow one at 10; and so on."""
    uploads = uploads_of(monkeypatch, fedgkt_async)
    rounds = fedgkt_async.run(toy(sizes=(5, 3)), **{**QUICK, "rounds": 100}, latencies=(1., 10.))
    metrics, state = next((metrics, state) for metrics, state in rounds if state["clock"] == 20)
    assert [sorted(who) for who in uploads()] == ([[0]] * 9 + [[0, 1]]) * 2
    assert trainings(state) == [20, 2] and (metrics["answers_min"], metrics["answers_max"]) == (2, 20)


def test_uploads_meet_although_their_moments_are_different_floats():
    """After three trainings of 0.1 and one of 0.3."""
    assert 3 * 0.1 != 1 * 0.3
    _, group = fedgkt_async.next_arrivals([{"trainings": 2}, {"trainings": 0}], (0.1, 0.3))
    assert group == [0, 1]


def test_latencies_are_drawn_once_from_the_seed():
    """From 1 to 10. A client alone has its latency in every round; of many the slowest, for which all would wait, is slower."""
    def slowest(seed, **changes):
        settings = {**QUICK, "local_epochs": 1, "server_epochs": 1}
        rounds = list(fedgkt_async.run(toy(seed=seed, **changes), **settings))[1:]
        found = {round(metrics["clock_if_all_wait"] * len(trainings(state)) / sum(trainings(state)), 9) for metrics, state in rounds}
        assert len(rounds) == 2 and len(found) == 1
        return rounds[0][0]["clock"], *found
    drawn = [slowest(seed) for seed in range(5)]
    assert slowest(0) == drawn[0] and all(len(set(values)) == 5 for values in zip(*drawn))
    assert all(1 <= value <= 10 for values in drawn for value in values)
    for seed in range(3):
        clock, alone = slowest(seed, sizes=(2,))
        assert clock == alone < slowest(seed, sizes=(2,) * 8)[1]


def test_if_all_waited_each_round_would_take_as_long_as_its_slowest_client():
    """As many rounds of all three as there have been trainings; at moment 4 the fourth, second and first training are over."""
    rounds = fedgkt_async.run(toy(), **{**QUICK, "rounds": 100}, latencies=(1., 2., 4.))
    metrics, state = next((metrics, state) for metrics, state in rounds if state["clock"] == 4)
    assert trainings(state) == [4, 2, 1] and metrics["clock_if_all_wait"] == pytest.approx((4 + 2 + 1) / 3 * 4)
    metrics, state = last(fedgkt_async.run(toy(), **QUICK, latencies=(3., 3., 3.)))
    assert metrics["clock_if_all_wait"] == metrics["clock"] == 3 + 3


# ------------------------------------------------------------------------------------------------------- the server's rate

WAVERING = {"lr": 0.05, "server_lr": 0.3, "rounds": 12, "server_epochs": 1}


def validation_accuracy(fed, state, data):
    """Mean over the clients of their extractor with the server's network behind it."""
    server, hits = loaded(fed.server_model(), state["server"]), []
    for i, client in enumerate(state["clients"]):
        with torch.no_grad():
            predicted = server(loaded(fed.client_model(i), client).extract(data.images)).argmax(1)
        hits.append((predicted == data.labels).float().mean().item())
    return sum(hits) / len(hits)


@pytest.mark.parametrize("lr_patience", [1, 2])
def test_the_rate_falls_when_validation_stands_still(lr_patience, monkeypatch):
    """By the rule of torch's ReduceLROnPlateau, which the public code uses too, but on the server's validation set."""
    fed, calls = toy(), watched(monkeypatch, "train_server")
    rounds = list(fedgkt.run(fed, **{**QUICK, **WAVERING, "lr_patience": lr_patience}))
    update = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(update, mode="max", factor=0.1, patience=lr_patience, threshold=0, eps=0)
    rates, best, stale, rate = [], -1.0, 0, 0.3
    for (metrics, state), (_, (stepped, _)) in zip(rounds[1:], calls, strict=True):
        [group] = stepped["optimizer"]["param_groups"]
        assert group["lr"] == ([0.3] + rates)[-1]                              # this round's steps are at the rate before it
        reached = validation_accuracy(fed, state, fed.validation)
        plateau.step(reached)
        best, stale = (reached, 0) if reached > best else (best, stale + 1)    # the rule written out
        rate, stale = (rate / 10, 0) if stale > lr_patience else (rate, stale)
        [group] = state["server"]["optimizer"]["param_groups"]
        assert metrics["server_lr"] == state["server"]["lr"] == group["lr"] == pytest.approx(update.param_groups[0]["lr"], rel=1e-12)
        assert metrics["server_lr"] == pytest.approx(rate, rel=1e-12)
        rates.append(metrics["server_lr"])
    assert 1 < len(set(rates)) < len(rates) - 2 and rates[0] == 0.3


def test_b8_the_test_set_has_no_part_in_the_rate_nor_in_any_network():
    fed = toy()
    settings = {**WAVERING, "lr_patience": 1}
    (_, ours), (_, other) = (finished(f, **settings) for f in (fed, dataclasses.replace(fed, test=samples(30, seed=11))))
    assert same(ours, other)


def test_without_patience_the_rate_stays_and_no_validation_set_is_needed():
    metrics, _ = finished(toy(validation=None), rounds=4, server_lr=1e-9, lr=1e-9)
    assert metrics["server_lr"] == 1e-9
    assert finished(toy(), rounds=4, server_lr=1e-9, lr=1e-9, lr_patience=1)[0]["server_lr"] == pytest.approx(1e-10)


# ------------------------------------------------------------------------------------------------- uploads not to be used

class Spoilt:
    """Stands where an attack would: puts a value into what some clients send, from an event on."""

    def __init__(self, who, what, value, since=1):
        self.who, self.what, self.value, self.since, self.calls = who, what, value, since, 0

    def samples(self, uploads, client_ids, t):
        """Called for the feature maps, then for the logits."""
        part, self.calls = ("features", "logits")[self.calls % 2], self.calls + 1
        if part != self.what or t < self.since:
            return uploads
        uploads = [own.clone() for own in uploads]
        for j, i in enumerate(client_ids):
            if i in self.who:
                uploads[j][-1] = self.value
        return uploads


@pytest.mark.parametrize("what", ["features", "logits"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1e30])
def test_non_finite_features_are_left_out(what, value):
    """The server learns from the others as if the client were not there; the client trains on and keeps its old server logits."""
    fed = toy()
    (_, first), (metrics, state) = list(fedgkt.run(fed, **QUICK, attack=Spoilt([1], what, value, since=2)))[1:]
    _, server, answers = slow_fedgkt(fed, [(0, 1, 2), (0, 2)], **slow_settings())
    clients, _, _ = slow_fedgkt(fed, [(0, 1, 2)] * 2, **slow_settings())
    check(state, clients, server, answers)
    assert torch.equal(state["server_logits"][1], first["server_logits"][1]) and metrics["bad_uploads"] == 1 and trainings(state) == [2, 2, 2]
    sizes = [len(private.labels) for private in fed.private]
    assert metrics["bytes_down"] == 4 * fed.num_classes * (sizes[0] + sizes[2])             # the client left out is not answered


def test_without_any_finite_upload_the_server_stays_and_the_run_goes_on():
    rounds = list(fedgkt.run(toy(), **QUICK, attack=Spoilt(range(3), "features", math.nan)))
    for metrics, state in rounds[1:]:
        assert same(state["server"], rounds[0][1]["server"]) and state["server_logits"] == [None] * 3
        assert metrics["bad_uploads"] == 3 and runs.dumps(metrics)


@pytest.mark.parametrize("run", [fedgkt.run, functools.partial(fedgkt_async.run, latencies=(2.,) * 3)], ids=["synchronous", "asynchronous"])
def test_a_client_whose_network_is_spoilt_takes_nobody_down(run):
    fed = toy()
    fed.private[1].images[0, 0, 0, 0] = math.nan
    metrics, state = last(run(fed, **QUICK))
    assert metrics["bad_uploads"] == 1 and runs.dumps(metrics)
    assert all(torch.isfinite(w).all() for i in (0, 2) for w in state["clients"][i]["model"].values())
    assert all(torch.isfinite(w).all() for w in state["server"]["model"].values()) and state["server_logits"][1] is None


# -------------------------------------------------------------------------------------------------------- the same bytes

KINDS = {"synchronous": {}, "some": {"participation": .5}, "asynchronous": {"latencies": (1., 2.5, 4.)},
         "bfloat16": {"features": "bfloat16"}}
RUNS = dict.fromkeys(KINDS, fedgkt.run) | {"asynchronous": fedgkt_async.run}
each_kind = pytest.mark.parametrize("kind", KINDS)


def layered():
    return toy(network=(EdgeWithBatchNorm, DeepEdge, Edge), server=layered_server)


@functools.cache
def whole(kind):
    """A run with all that a round may stumble over, made once for many tests: (its settings, [(metrics, state, a copy of then)])."""
    settings = {**QUICK, "rounds": 4, "optimizer": "amsgrad", "server_optimizer": "nesterov", "lr_patience": 1, "server_lr": .2, **KINDS[kind]}
    return settings, [(metrics, state, copy.deepcopy(state)) for metrics, state in RUNS[kind](layered(), **settings)]


@each_kind
def test_every_state_is_all_that_the_next_rounds_need(kind):
    """Through a file: from every round the next one, and from the first all that follow."""
    settings, rounds = whole(kind)
    assert [state["round"] for _, state, _ in rounds] == list(range(5))
    for (_, _, state), expected in itertools.pairwise(rounds):
        assert equal([next(RUNS[kind](layered(), through_a_file(state), **settings))], [expected])
    assert equal(RUNS[kind](layered(), through_a_file(rounds[1][2]), **settings), rounds[2:])


@each_kind
def test_a_later_round_does_not_change_a_state(kind):
    settings, rounds = whole(kind)
    assert all(same(state, then) for _, state, then in rounds)
    list(RUNS[kind](layered(), rounds[2][1], **settings))
    assert same(rounds[2][1], rounds[2][2])


@each_kind
def test_the_same_seed_gives_the_same_bytes_with_clients_in_any_order(kind, monkeypatch):
    settings, rounds = whole(kind)
    for module in (common, fedgkt_features):
        monkeypatch.setattr(module, "in_parallel", lambda fn, ids, device: [fn(i) for i in ids[::-1]][::-1])
    assert equal(RUNS[kind](layered(), **settings), rounds)


def test_another_seed_trains_every_client_and_the_server_otherwise():
    """Also where each begins with the same weights."""
    settings, rounds = whole("synchronous")
    _, state = next(fedgkt.run(dataclasses.replace(layered(), seed=1), rounds[1][1], **settings))
    pairs = zip([*state["clients"], state["server"]], [*rounds[2][1]["clients"], rounds[2][1]["server"]], strict=True)
    assert not any(same(dict(a["model"]), dict(b["model"])) for a, b in pairs)


def test_a_run_does_not_change_the_federation():
    fed, untouched = layered(), layered()
    finished(fed)
    assert all(same(getattr(fed, name), getattr(untouched, name)) for name in ("private", "test", "validation"))


# ------------------------------------------------------------------------------------------------------------ the metrics

@each_kind
def test_accuracies_are_of_what_the_state_holds(kind):
    """Mean, least and largest of each client's extractor with the server behind it; the edge networks alone, apart."""
    fed = layered()
    for metrics, state, _ in whole(kind)[1]:
        server, stacked, own = loaded(fed.server_model(), state["server"]), [], []
        for i, client in enumerate(state["clients"]):
            model = loaded(fed.client_model(i), client)
            with torch.no_grad():
                features = model.extract(fed.test.images)
                for hits, logits in ((stacked, server(features)), (own, model.classify(features))):
                    hits.append((logits.argmax(1) == fed.test.labels).float().mean().item())
        assert metrics["accuracy"] == pytest.approx(sum(stacked) / 3) and metrics["edge_accuracy"] == pytest.approx(sum(own) / 3)
        assert (metrics["accuracy_min"], metrics["accuracy_max"]) == (min(stacked), max(stacked))


def test_b4_accuracy_counts_samples_not_batches():
    """101 test samples, of which only the last, in a batch of its own, is of class 1; a network that always says class 1."""
    fed = toy(test=Data(samples(fedgkt_features.CHUNK + 1).images, torch.tensor([0] * fedgkt_features.CHUNK + [1])))
    model, server = fed.client_model(0), fed.server_model()
    for layer in (model.classifier, server[1]):
        nn.init.zeros_(layer.weight)
        layer.bias.data = torch.tensor([0., 1., 0.])
    scores = fedgkt_features.stacked_scores(fed, [{"model": model.state_dict()}], {"model": server.state_dict()}, fed.test)
    assert scores == [(pytest.approx(1 / 101), pytest.approx(1 / 101))]


def test_metrics_are_numbers_and_never_nan():
    for kind in KINDS:
        for metrics, *_ in whole(kind)[1]:
            assert runs.dumps(metrics) and all(type(value) in (int, float) for value in metrics.values())


def test_round_0_is_the_untrained_start():
    for run in (fedgkt.run, fedgkt_async.run):
        metrics, state = next(run(toy(), **QUICK))
        assert state["round"] == 0 and metrics["server_lr"] == 0.05 and not any(key.startswith("bytes") for key in metrics)
        assert [metrics[key] for key in ("clock", "clock_if_all_wait") if key in metrics] == [0, 0] * (run is fedgkt_async.run)


def test_eq13_is_what_the_metrics_of_a_round_add_up_to():
    metrics, _ = finished(toy(), rounds=1)
    assert metrics["bytes_up"] + metrics["bytes_down"] == features_bytes(5 + 3 + 4, NUMBERS, 3)


# ------------------------------------------------------------------------------------------------------- what is refused

def refused(fed, message, functions=(fedgkt.run, fedgkt_async.run), **changes):
    """Before anything is computed: there is not even a first row."""
    for run in functions:
        with pytest.raises(ValueError, match=message) as error:
            next(run(fed, **{**QUICK, **changes}))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("network", [linear, (Edge, linear)])
def test_a_network_without_a_feature_map_is_refused(network):
    refused(toy(network=network), "linear has no feature map to send: an edge network such as gkt_edge has")


def narrower(num_classes=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(NUMBERS - 1, num_classes))


def test_a_server_that_cannot_read_the_feature_map_is_refused():
    refused(toy(server=narrower), r"server's network cannot read the \[5, 1, 1\] feature maps of Edge: gkt_server55")


class WiderEdge(Edge):
    def __init__(self, num_classes=3):
        super().__init__(num_classes, numbers=NUMBERS + 1)


def test_a_server_that_cannot_read_the_map_of_another_client_is_refused():
    refused(toy(network=(Edge, Edge, WiderEdge)), "feature map.* WiderEdge")


@pytest.mark.parametrize("latencies", [(1., 2.), (1., 2., 3., 4.), (1., 0., 2.), (1., 2., -1.)])
def test_latencies_are_a_time_for_each_client(latencies):
    refused(toy(), "--latencies needs a time greater than 0 for each of 3 clients", [fedgkt_async.run], latencies=latencies)


@pytest.mark.parametrize("run, excluded", [(fedgkt_async.run, {"participation": .5}),
                                           (fedgkt_async.run, {"attack": Spoilt([1], "logits", 0.0)}),
                                           (fedgkt.run, {"latencies": (1., 2., 3.)})])
def test_asynchronous_with_some_clients_is_refused(run, excluded):
    """Who arrives alone has nobody to imitate, and whoever waits for all has no latencies: there are no such keywords."""
    assert not set(excluded) & set(inspect.signature(run).parameters)
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{next(iter(excluded))}'"):
        run(toy(), **QUICK, **excluded)


def test_patience_without_a_validation_set_is_refused():
    refused(toy(validation=None), "needs a validation set for --lr-patience", lr_patience=1)


@pytest.mark.parametrize("features, size", [("float32", 4), ("bfloat16", 2)])
def test_feature_maps_that_do_not_fit_in_memory_are_refused(monkeypatch, features, size):
    """Before anything is trained; those that just fit are not."""
    needed = size * NUMBERS * (5 + 3 + 4)
    monkeypatch.setattr(fedgkt_features, "available_memory", lambda device: needed - 1)
    refused(toy(), "--features bfloat16 halves them", features=features)
    monkeypatch.setattr(fedgkt_features, "available_memory", lambda device: needed)
    for run in (fedgkt.run, fedgkt_async.run):
        assert last(run(toy(), **QUICK, features=features))[1]["round"] == 2


@pytest.mark.parametrize("linux", [True, False])
def test_available_memory_is_some_and_at_most_all_there_is(linux, monkeypatch):
    """A system without /proc/meminfo, as a laptop may be, has at least its size."""
    if not linux:
        monkeypatch.setattr(fedgkt_features.os.path, "exists", lambda path: False)
    total = fedgkt_features.os.sysconf("SC_PHYS_PAGES") * fedgkt_features.os.sysconf("SC_PAGE_SIZE")
    free = fedgkt_features.available_memory(torch.device("cpu"))
    assert 2**20 < free <= total and (linux or free == total)


def test_what_is_said_before_a_run_is_the_memory_of_all_maps():
    fed = toy(sizes=(40_000, 2**16 - 40_000))
    for module in (fedgkt, fedgkt_async):
        said = module.announcement(fed, {"features": "float32"})
        assert said == f"the feature maps of 65536 samples, 5 numbers each, take {5 * 4 / 16:.1f} MiB"
        assert module.announcement(fed, {"features": "bfloat16"}).endswith(f"take {5 * 2 / 16:.1f} MiB")
