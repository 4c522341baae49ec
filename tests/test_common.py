"""Streams, clients in parallel, batches, prediction, KL and averaging."""
import math
from functools import partial

import numpy as np
import pytest
import torch
from toys import federation, linear, same, samples, with_batchnorm, with_dropout
from torch import nn

from algorithms import (
    common,
    fedavg,
    fedbe,
    feddf,
    fedgems,
    fedgems_ablations,
    fedgkt,
    fedprox,
    fedsdd,
    scaffold,
    split_learning,
)
from algorithms.common import Trained, count_active, is_finite, run_clients, sample_clients, seeded, stream, timed, to_device
from algorithms.equations import average_weights, distillation_loss, kl_divergence
from algorithms.evaluation import accuracy, disagreement
from algorithms.training import batches, forward, predict_logits, predict_members, snapshot


def logits_of(*rows):
    """Logits whose softmax is the given probabilities."""
    return torch.tensor(rows, dtype=torch.float64).log()


# ------------------------------------------------------------------------------------------------------ KL and distillation

def test_kl_is_from_teacher_to_student_by_hand():
    expected = .8 * math.log(.8 / .5) + .2 * math.log(.2 / .5)          # .1927; the other direction is .2231
    assert kl_divergence(logits_of([.8, .2]), logits_of([.5, .5])).item() == pytest.approx(expected, abs=1e-12)


def test_kl_is_a_sum_over_classes_and_one_number_per_sample():
    teacher, student = logits_of([.8, .2], [.5, .5], [.1, .9]), logits_of([.5, .5], [.5, .5], [.5, .5])
    expected = [.8 * math.log(1.6) + .2 * math.log(.4), 0, .1 * math.log(.2) + .9 * math.log(1.8)]
    assert kl_divergence(teacher, student).tolist() == pytest.approx(expected, abs=1e-12)


def test_temperature_softens_both_sides_by_hand():
    teacher, student = torch.tensor([[4., 0.]]).double(), torch.tensor([[0., 2.]]).double()
    p, q = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(1))                # first class, at temperature 2
    expected = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    assert kl_divergence(teacher, student, temperature=2).item() == pytest.approx(expected, abs=1e-12)


def test_distillation_loss_is_temperature_squared_times_the_mean():
    teacher, student = torch.randn(5, 3).double(), torch.randn(5, 3).double()
    expected = 9 * sum(kl_divergence(teacher, student, 3.0).tolist()) / 5
    assert distillation_loss(teacher, student, 3.0).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_kl_against_a_slow_loop(temperature):
    rng = np.random.default_rng(0)
    teacher, student = rng.normal(size=(6, 4)) * 3, rng.normal(size=(6, 4)) * 3
    expected = []
    for t, s in zip(teacher, student):
        p = [math.exp(z / temperature) / sum(math.exp(y / temperature) for y in t) for z in t]
        q = [math.exp(z / temperature) / sum(math.exp(y / temperature) for y in s) for z in s]
        expected.append(sum(a * (math.log(a) - math.log(b)) for a, b in zip(p, q)))
    assert kl_divergence(torch.tensor(teacher), torch.tensor(student), temperature).tolist() == pytest.approx(expected, abs=1e-12)


def test_kl_of_equal_logits_is_exactly_zero_and_otherwise_positive():
    z = torch.randn(20, 5).double()
    assert kl_divergence(z, z).tolist() == [0.0] * 20
    assert (kl_divergence(z, torch.randn(20, 5).double()) > 0).all()


def test_kl_gives_the_teacher_no_gradient_and_the_student_the_difference_of_probabilities():
    teacher, student = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    kl_divergence(teacher, student).sum().backward()
    assert teacher.grad is None
    assert torch.allclose(student.grad, student.detach().softmax(1) - teacher.detach().softmax(1), atol=1e-6)


def test_gradient_of_the_distillation_loss_is_right():
    teacher = torch.randn(3, 4).double()
    student = torch.randn(3, 4).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: distillation_loss(teacher, z, 4.0), student)


@pytest.mark.parametrize("function", [kl_divergence, distillation_loss])
def test_a_constant_added_to_a_samples_logits_changes_nothing(function):
    teacher, student, shift = torch.randn(4, 3).double(), torch.randn(4, 3).double(), torch.randn(4, 1).double()
    assert torch.allclose(function(teacher, student, 2.0), function(teacher + shift, student - 3 * shift, 2.0), atol=1e-12)


def test_kl_follows_a_permutation_of_samples_and_ignores_one_of_classes():
    teacher, student = torch.randn(5, 3).double(), torch.randn(5, 3).double()
    samples, classes = torch.tensor([3, 1, 4, 0, 2]), torch.tensor([2, 0, 1])
    expected = kl_divergence(teacher, student)
    assert torch.equal(kl_divergence(teacher[samples], student[samples]), expected[samples])
    assert torch.allclose(kl_divergence(teacher[:, classes], student[:, classes]), expected, atol=1e-12)


def test_kl_of_logits_of_ten_thousand_is_finite():
    teacher, student = torch.tensor([[1e4, -1e4]]), torch.tensor([[-1e4, 1e4]])
    assert kl_divergence(teacher, student).item() == 2e4               # ln 1 - (-2e4), and 0 times something finite
    assert kl_divergence(student, student).item() == 0


def test_kl_changes_neither_input():
    teacher, student = torch.randn(2, 3), torch.randn(2, 3)
    before = teacher.clone(), student.clone()
    distillation_loss(teacher, student, 4.0)
    assert same(before, (teacher, student))


# ------------------------------------------------------------------------------------------------------------- averaging

def test_eq2_average_by_hand():
    states = [{"w": torch.tensor([1., 2.])}, {"w": torch.tensor([4., -2.])}]
    assert average_weights(states, [1, 3])["w"].tolist() == [.25 * 1 + .75 * 4, .25 * 2 + .75 * -2]


def test_average_weights_averages_running_statistics():
    states = [with_batchnorm().state_dict(), with_batchnorm().state_dict()]
    states[0]["0.running_mean"].fill_(2.)
    states[1]["0.running_mean"].fill_(10.)
    assert average_weights(states, [3, 1])["0.running_mean"].tolist() == [.75 * 2 + .25 * 10]   # not the last client's 10


def test_average_weights_keeps_counters_whole():
    states = [with_batchnorm().state_dict(), with_batchnorm().state_dict()]
    states[0]["0.num_batches_tracked"].fill_(7)
    states[1]["0.num_batches_tracked"].fill_(4)
    counter = average_weights(states, [1, 1])["0.num_batches_tracked"]
    assert counter.dtype == torch.int64 and counter.item() == 7


def test_average_of_one_model_is_that_model_bit_for_bit():
    state = with_batchnorm().state_dict()
    assert same(average_weights([state], [17]), state)


def test_average_is_a_copy_and_changes_no_input():
    states = [linear().state_dict(), linear().state_dict()]
    before = [{name: w.clone() for name, w in state.items()} for state in states]
    average = average_weights(states, [1, 2])
    for w in average.values():
        w.fill_(99.)
    assert same(states, before)


def test_average_of_one_model_does_not_share_its_memory():
    state = with_batchnorm().state_dict()
    for w in average_weights([state], [1]).values():
        w.fill_(9)
    assert not any((w == 9).all() for w in state.values())


def test_average_does_not_depend_on_the_scale_of_the_weights():
    states = [linear().state_dict() for _ in range(3)]
    assert same(average_weights(states, [1, 2, 1]), average_weights(states, [100, 200, 100]))


@pytest.mark.parametrize("count, weights", [(0, []), (2, [1]), (2, [2, -1]), (2, [0, 0]), (2, [1, math.nan]), (2, [1, math.inf])])
def test_average_refuses_weights_that_make_no_average(count, weights):
    with pytest.raises(ValueError, match="weight"):
        average_weights([linear().state_dict() for _ in range(count)], weights)


# --------------------------------------------------------------------------------------------------------------- streams

def test_equal_keys_give_equal_numbers_and_other_keys_others():
    draw = {keys: tuple(stream(*keys).integers(2**62, size=2)) for keys in
            [(0, "local", 1, 2), (0, "local", 2, 1), (0, "local", 1), (0, "local", 1, 0), (0, "active", 1, 2), (1, "local", 1, 2)]}
    assert len(set(draw.values())) == len(draw)                        # also with a 0 at the end, which a plain list would lose
    assert tuple(stream(0, "local", 1, 2).integers(2**62, size=2)) == draw[0, "local", 1, 2]


def test_streams_leave_every_global_generator_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    stream(0, "local").normal(size=5)
    with seeded(0, "init", 0):
        torch.randn(5)
    assert torch.equal(torch.get_rng_state(), before[0]) and (np.random.get_state()[1] == before[1]).all()


def test_seeded_blocks_repeat_and_differ_by_key():
    def draw(*keys):
        with seeded(*keys):
            return torch.randn(3)
    assert torch.equal(draw(0, "init", 1), draw(0, "init", 1))
    assert not torch.equal(draw(0, "init", 1), draw(0, "init", 2)) and not torch.equal(draw(0, "init", 1), draw(1, "init", 1))


EIGHT = {"local_epochs": 8, "batch_size": 1, "lr": 0.1}         # steps, as below
DISTIL = {"distill_steps": 8, "server_batch_size": 1, "server_lr": 0.1}
DF = {"server_optimizer": "sgd", "cosine": False, "max_grad_norm": None, "patience": None,
      "check_every": 1, "temperature": 1.0}
GEMS = {"server_epochs": 8, "batch_size": 1, "epsilon": 0.75}
GKT = {"server_epochs": 8, "server_batch_size": 1, "temperature": 3.0, "server_distill": True}
SGD = partial(torch.optim.SGD, lr=0.1)
TEACHER = torch.tensor([[1., 0., -1.]])


def start(fed, i=0):
    return fedavg.start_server(fed, fed.architecture[i])


def split(fed, i, t):
    with seeded(0, "edge"):
        edge = nn.Conv2d(1, 1, 1)
    edge.extract = edge.forward
    stacked = split_learning.Stacked(edge, fed.server_model())
    split_learning.train_split(fed, i, t, stacked, SGD(edge.parameters()),
                               SGD(stacked.server.parameters()), local_epochs=8, batch_size=1)
    return stacked.state_dict()


def select(module, fed, t, **more):
    pool = fedgems.Pool(torch.zeros(1, 3), torch.zeros(1, dtype=torch.bool))
    return module.train_server(fed, t, snapshot(fed.server_model()), pool, torch.tensor([0]),
                               TEACHER, torch.tensor([True]), new_optimizer=SGD, **GEMS, **more)


DRAWS_DROPOUT = {   # its round (or event) t, and i, its client or global model, if it has one
    "fedavg": lambda fed, t, i: fedavg.train_client(fed, i, t, start(fed), **EIGHT),
    "fedprox": lambda fed, t, i: fedprox.train_client(fed, i, t, start(fed), mu=0.0, **EIGHT),
    "scaffold": lambda fed, t, i: scaffold.train_client(
        fed, i, t, scaffold.start_server(fed, "one"), **EIGHT),
    "split-learning": lambda fed, t, i: split(fed, i, t),
    "fedsdd": lambda fed, t, i: fedsdd.distil(
        fed, t, i, start(fed), TEACHER, temperature=4.0, **DISTIL),
    "feddf": lambda fed, t, i: feddf.distil(
        fed, t, start(fed, i), TEACHER, **DISTIL, **DF).student["model"],
    "fedbe": lambda fed, t: fedbe.distil(fed, t, start(fed), TEACHER, **DISTIL),
    "fedgkt": lambda fed, t: fedgkt.train_server(
        fed, t, snapshot(fed.server_model()), {0: fedgkt.Upload(fed.public.images, TEACHER)},
        new_optimizer=SGD, **GKT),
    "fedgems": lambda fed, t: select(fedgems, fed, t),
    "fedgems-ablations": lambda fed, t: select(
        fedgems_ablations, fed, t, self_training=True, self_distillation=True,
        ensemble_distillation=True),
}
WITHOUT_I = ("fedbe", "fedgkt", "fedgems", "fedgems-ablations")
KEYS = [*((name, "t") for name in DRAWS_DROPOUT),
        *((name, "i") for name in DRAWS_DROPOUT if name not in WITHOUT_I)]


@pytest.mark.parametrize("name, key", KEYS, ids=map("-".join, KEYS))
def test_another_round_client_or_model_draws_other_dropout(name, key):
    """All data is one sample, so that without dropout another t or i changes nothing at all."""
    first, other = ((1, 0), (2, 0) if key == "t" else (1, 1))
    if name in WITHOUT_I:
        first, other = first[:1], other[:1]
    train, sample = DRAWS_DROPOUT[name], samples(1)
    for network, changes in [(linear, False), (with_dropout, True)]:
        fed = federation((1, 1), network, server=network, private=[sample] * 2, public=sample,
                         architecture=["one", "other"])
        assert same(train(fed, *first), train(fed, *first))
        assert same(train(fed, *first), train(fed, *other)) is not changes


# --------------------------------------------------------------------------------------------------------------- clients

@pytest.mark.parametrize("participation, expected", [(1.0, 20), (0.4, 8), (0.7, 14), (0.145, 3), (0.01, 1)])
def test_participation_is_a_share_of_all_clients_and_at_least_one(participation, expected):
    active = sample_clients(20, participation, stream(0))
    assert count_active(20, participation) == len(active) == len(set(active)) == expected
    assert active == sorted(active) and set(active) <= set(range(20))


def test_sampling_depends_on_the_seed_and_on_the_round():
    drawn = {tuple(sample_clients(20, 0.4, stream(seed, "active", t))) for seed in range(3) for t in range(3)}
    assert len(drawn) == 9


def test_run_clients_keeps_the_order_of_the_ids_and_counts_them():
    before = run_clients.done
    assert run_clients(lambda i: i * i, [3, 1, 2]) == [9, 1, 4]
    assert run_clients.done == before + 3


def test_an_upload_is_finite_only_if_every_tensor_in_it_is():
    upload = {"model": {"w": torch.ones(2), "n": torch.tensor(3)}, "control": [torch.zeros(1)]}
    assert is_finite(upload) and is_finite((upload, None))
    for bad in (math.nan, math.inf, -math.inf):
        upload["control"][0][0] = bad
        assert not is_finite(upload)


def test_to_device_keeps_the_structure():
    value = ({"a": [torch.ones(2)], "b": None}, 3, Trained(torch.zeros(1), None))
    assert same(to_device(value, "cpu"), value) and isinstance(to_device(value, "cpu")[2], Trained)


def test_timed_adds_up_the_seconds_of_each_call_under_the_functions_name(monkeypatch):
    clock = iter([1., 3., 10., 14.])
    monkeypatch.setattr(common, "seconds", lambda device: next(clock))

    @timed
    def a_pass(fed, x, *, y):
        return x + y
    assert a_pass(federation(), 1, y=2) == 3 and timed.seconds["a_pass"] == 2
    assert a_pass(federation(), 1, y=2) == 3 and timed.seconds.pop("a_pass") == 2 + 4


# ------------------------------------------------------------------------------------------------ batches and predictions

def test_every_sample_is_in_every_pass_exactly_once_and_the_last_batch_may_be_smaller():
    rows = list(batches(10, 4, 3, stream(0)))
    assert [len(r) for r in rows] == [4, 4, 2] * 3
    for epoch in range(3):
        assert sorted(torch.cat(rows[3 * epoch:3 * epoch + 3]).tolist()) == list(range(10))


def test_passes_are_shuffled_anew():
    rows = torch.cat(list(batches(50, 50, 2, stream(0))))
    assert rows[:50].tolist() != rows[50:].tolist() and rows[:50].tolist() != list(range(50))


def test_a_client_with_fewer_samples_than_a_batch_is_trained_on_all_of_them():
    assert [len(rows) for rows in batches(3, 64, 2, stream(0))] == [3, 3]


@pytest.mark.parametrize("batch_size", [1, 3, 40])
def test_accuracy_is_over_samples_not_a_mean_over_batches(batch_size):
    fed, model = federation(), linear()
    logits = predict_logits(fed, model, fed.test.images, batch_size)
    hits = sum(int(row.argmax()) == label for row, label in zip(logits, fed.test.labels.tolist()))
    assert accuracy(logits, fed.test.labels) == pytest.approx(hits / 40)


@pytest.mark.parametrize("network", [with_batchnorm, with_dropout])
def test_prediction_does_not_depend_on_the_other_images_and_leaves_the_model_as_it_was(network):
    fed, model = federation(), network()
    for training in (True, False):
        model.train(training)
        before = {name: w.clone() for name, w in model.state_dict().items()}
        logits = predict_logits(fed, model, fed.test.images)
        assert torch.allclose(logits[7:8], predict_logits(fed, model, fed.test.images[7:8]), atol=1e-6)
        assert same(dict(model.state_dict()), before) and model.training is training and not logits.requires_grad


def test_predict_members_is_one_prediction_per_state():
    fed, models = federation(), [linear() for _ in range(3)]
    members = predict_members(fed, [{"architecture": "linear", "model": model.state_dict()} for model in models], fed.test.images)
    assert members.shape == (3, 40, 3)
    for member, model in zip(members, models):
        assert torch.equal(member, predict_logits(fed, model, fed.test.images))


def test_a_lone_training_sample_passes_batchnorm_on_a_single_pixel():
    fed = federation()
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 3))     # 2x2 -> 1x1: BN alone refuses
    with pytest.raises(ValueError, match="more than 1 value"):
        model(fed.test.images[:1])
    logits = forward(fed, model, fed.test.images[:1])
    assert logits.shape == (1, 3) and torch.isfinite(logits).all()


def test_a_lone_training_sample_has_the_gradient_of_one_sample():
    fed, model = federation(), linear()
    image, label = fed.test.images[:1], fed.test.labels[:1]
    gradients = [torch.autograd.grad(nn.functional.cross_entropy(logits, label), model[1].weight)[0]
                 for logits in (forward(fed, model, image), model(image))]
    assert torch.allclose(*gradients, atol=1e-7)


@pytest.mark.parametrize("amp, dtype", [(True, torch.bfloat16), (False, torch.float32)])
def test_amp_computes_in_bfloat16_and_returns_float32(amp, dtype):
    fed, model, seen = federation(amp=amp), linear(), []
    model[1].register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    assert forward(fed, model, fed.test.images).dtype == torch.float32
    assert seen == [dtype]


def test_disagreement_by_hand():
    """Predicted classes (0,0,1), (0,1,1), (0,1,0), (0,0,0): the six pairs differ on 1, 2, 1, 1, 2 and 1 of 3 samples."""
    classes = torch.tensor([[0, 0, 1], [0, 1, 1], [0, 1, 0], [0, 0, 0]])
    members = torch.nn.functional.one_hot(classes, 2).float()
    assert disagreement(members) == pytest.approx((1 + 2 + 1 + 1 + 2 + 1) / 3 / 6)
    assert disagreement(members[:1]) is None
    assert disagreement(members[[0, 0]]) == 0
