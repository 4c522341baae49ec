"""KL divergence, averaging, random streams, clients in parallel, batches and prediction."""
import math
from functools import partial

import numpy as np
import pytest
import torch
from toys import federation, linear, same, samples, with_batchnorm, with_dropout
from torch import nn

from algorithms import (common, dsfl, fedavg, fedbe, feddf, fedgems, fedgems_ablations, fedgkt,
                        fedprox, fedsdd, scaffold, split_learning)
from algorithms.common import (Trained, count_active, is_finite, run_clients, sample_clients,
                               seeded, stream, timed, to_device)
from algorithms.equations import average_weights, distillation_loss, kl_divergence
from algorithms.evaluation import accuracy, disagreement
from algorithms.training import batches, forward, predict_logits, predict_members, snapshot


def test_kl_is_from_teacher_to_student_by_hand():
    """A sum over classes for each sample; from student to teacher it would begin with .2231."""
    teacher = torch.tensor([[.8, .2], [.1, .9], [1., 0.]]).log()
    student = torch.tensor([[.5, .5]] * 3).log()
    expected = [.8 * math.log(.8 / .5) + .2 * math.log(.2 / .5),                         # .1927
                .1 * math.log(.1 / .5) + .9 * math.log(.9 / .5),
                math.log(1 / .5)]                                                    # 0 ln 0 = 0
    assert kl_divergence(teacher, student).tolist() == pytest.approx(expected, abs=1e-6)


def test_distillation_is_t_squared_times_mean_kl():
    rng, T, total = np.random.default_rng(0), 3.0, 0.0
    teacher, student = rng.normal(size=(6, 4)) * 3, rng.normal(size=(6, 4)) * 3
    for t, s in zip(teacher, student):
        p = [math.exp(z / T) / sum(math.exp(y / T) for y in t) for z in t]
        q = [math.exp(z / T) / sum(math.exp(y / T) for y in s) for z in s]
        total += sum(a * (math.log(a) - math.log(b)) for a, b in zip(p, q))
    loss = distillation_loss(torch.tensor(teacher), torch.tensor(student), T)
    assert loss.item() == pytest.approx(T * T * total / 6, abs=1e-12)


def test_gradient_of_kl_is_q_minus_p_none_for_teacher():
    teacher, student = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
    kl_divergence(teacher, student).sum().backward()
    assert teacher.grad is None
    assert torch.allclose(student.grad, student.softmax(1) - teacher.softmax(1), atol=1e-6)


def test_kl_is_exact_for_equal_and_huge_logits():
    z, teacher = torch.randn(20, 5), torch.tensor([[1e4, -1e4]])
    assert kl_divergence(z, z).tolist() == [0] * 20 and kl_divergence(teacher, teacher).item() == 0
    assert kl_divergence(teacher, -teacher).item() == 2e4     # 1 (ln 1 - (-2e4)) + 0 (-2e4 - ln 1)


def test_eq2_average_by_hand():
    states = [{"w": torch.tensor([1., 2.])}, {"w": torch.tensor([4., -2.])}]
    assert average_weights(states, [1, 3])["w"].tolist() == [.25 * 1 + .75 * 4, .25 * 2 - .75 * 2]


def test_average_weights_averages_running_statistics():
    states = [{"0.running_mean": torch.tensor([x])} for x in (2., 10.)]  # not the last client's 10
    assert average_weights(states, [3, 1])["0.running_mean"].tolist() == [.75 * 2 + .25 * 10]


def test_average_weights_keeps_counters_whole():
    states = [{"0.num_batches_tracked": torch.tensor(count)} for count in (4, 7, 6)]
    counter = average_weights(states, [1, 1, 1])["0.num_batches_tracked"]
    assert counter.dtype == torch.int64 and counter.item() == 7


def test_the_average_of_one_model_is_a_copy_of_it():
    state = with_batchnorm().state_dict()
    average = average_weights([state], [17])
    assert same(average, state)
    assert not any(w.data_ptr() == state[name].data_ptr() for name, w in average.items())


@pytest.mark.parametrize("weights", [[], [1], [2, -1], [0, 0], [1, math.nan], [1, math.inf]])
def test_weights_that_make_no_average_are_refused(weights):
    with pytest.raises(ValueError, match="weight"):
        average_weights([linear().state_dict()] * 2, weights)


@pytest.mark.parametrize("names, size", [("", 3), ("w", 1), ("wb", 3)])
def test_models_with_other_names_or_shapes_are_refused(names, size):
    with pytest.raises(ValueError, match="[wb] has shape .* in model 0 and .* in model 1$"):
        average_weights([{"w": torch.ones(3)}, {name: torch.ones(size) for name in names}], [1, 1])


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


def test_seeded_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    draw_seeded(0, "init", 0)
    assert torch.equal(torch.get_rng_state(), before)


LOCAL = {"local_epochs": 8, "batch_size": 1, "lr": 0.1}                  # 8 steps, as all below
DISTIL = {"distill_steps": 8, "server_batch_size": 1, "server_lr": 0.1}
DF = {"server_optimizer": "sgd", "cosine": False, "max_grad_norm": None, "patience": None,
      "check_every": 1, "temperature": 1.0, **DISTIL}
SGD = partial(torch.optim.SGD, lr=0.1)
TEACHER = torch.tensor([[1., 0., -1.]])


def split(fed, t, i, w):
    edge = nn.PReLU()
    edge.extract = edge.forward
    stacked = split_learning.Stacked(edge, fed.server_model())
    split_learning.train_split(fed, i, t, stacked, SGD(edge.parameters()),
                               SGD(stacked.server.parameters()), local_epochs=8, batch_size=1)
    return stacked.state_dict()


def gems(module, fed, t, **more):
    pool, asked = fedgems.Pool(torch.zeros(1, 3), torch.tensor([False])), torch.tensor([0])
    return module.train_server(
        fed, t, snapshot(fed.server_model()), pool, asked, TEACHER, torch.tensor([True]),
        new_optimizer=SGD, server_epochs=8, batch_size=1, epsilon=0.75, **more)


DRAWS_DROPOUT = {   # from its start w: its round (or event) t; its client or global model i
    "fedavg": lambda fed, t, i, w: fedavg.train_client(fed, i, t, w, **LOCAL),
    "fedprox": lambda fed, t, i, w: fedprox.train_client(fed, i, t, w, mu=0.0, **LOCAL),
    "scaffold": lambda fed, t, i, w: scaffold.train_client(
        fed, i, t, scaffold.start_server(fed, "one"), **LOCAL),
    "dsfl": lambda fed, t, i, w: dsfl.train_client(
        fed, i, t, w | {"optimizer": None}, local_epochs=8, batch_size=1, new_optimizer=SGD).client,
    "split-learning": split,
    "fedsdd": lambda fed, t, i, w: fedsdd.distil(
        fed, t, i, w, TEACHER, temperature=4.0, **DISTIL)["model"],
    "feddf": lambda fed, t, i, w: feddf.distil(fed, t, w, TEACHER, **DF).student["model"],
    "fedbe": lambda fed, t, i, w: fedbe.distil(fed, t, w, TEACHER, **DISTIL),
    "fedgkt": lambda fed, t, i, w: fedgkt.train_server(
        fed, t, snapshot(fed.server_model()), {0: fedgkt.Upload(fed.public.images, TEACHER)},
        new_optimizer=SGD, server_epochs=8, server_batch_size=1, server_order="clients",
        temperature=3.0, server_distill=True),
    "fedgems": lambda fed, t, i, w: gems(fedgems, fed, t),
    "fedgems-ablations": lambda fed, t, i, w: gems(
        fedgems_ablations, fed, t, self_training=True, self_distillation=True,
        ensemble_distillation=True),
}
WITH_I = ("fedavg", "fedprox", "scaffold", "dsfl", "split-learning", "fedsdd", "feddf")
KEYS = [(name, "t") for name in DRAWS_DROPOUT] + [(name, "i") for name in WITH_I]


@pytest.mark.parametrize("name, key", KEYS, ids=map("-".join, KEYS))
def test_no_two_trainings_share_dropout(name, key):
    """All data is one sample, so that without dropout another t or i changes nothing at all."""
    train, sample, other = DRAWS_DROPOUT[name], samples(1), (2, 0) if key == "t" else (1, 1)
    for network, changes in [(linear, False), (with_dropout, True)]:
        fed = federation((1, 1), network, server=network, private=[sample] * 2, public=sample,
                         architecture=["one", "other"])
        first, again, changed = (train(fed, t, i, fedavg.start_server(fed, fed.architecture[i]))
                                 for t, i in [(1, 0), (1, 0), other])
        assert same(first, again) and same(first, changed) is not changes


# ----------------------------------------------------------------------------------------- clients

@pytest.mark.parametrize("share, expected", [(1.0, 20), (0.7, 14), (0.145, 3), (0.01, 1)])
def test_participation_is_a_share_at_least_one_client(share, expected):
    active = sample_clients(20, share, stream(0))
    assert count_active(20, share) == len(active) == len(set(active)) == expected
    assert active == sorted(active) and set(active) <= set(range(20))


def test_run_clients_keeps_the_order_of_the_ids_and_counts_them():
    before = run_clients.done
    assert run_clients(lambda i: i * i, [3, 1, 2]) == [9, 1, 4] and run_clients.done == before + 3


def test_an_upload_is_finite_only_if_every_tensor_in_it_is():
    upload = {"model": {"w": torch.ones(2), "n": torch.tensor(3)}, "control": [torch.zeros(1)]}
    assert is_finite(upload) and is_finite((upload, None))
    for bad in (math.nan, math.inf, -math.inf):
        upload["control"][0][0] = bad
        assert not is_finite(upload) and not is_finite((upload, None))


def test_to_device_keeps_the_structure():
    value = ({"a": [torch.ones(2)], "b": None}, 3, Trained(torch.zeros(1), None))
    assert same(to_device(value, "cpu"), value) and isinstance(to_device(value, "cpu")[2], Trained)


def test_timed_adds_up_the_seconds_of_each_function(monkeypatch):
    clock = iter([1., 3., 10., 14.])
    monkeypatch.setattr(common, "seconds", lambda device: next(clock))

    @timed
    def a_pass(fed, x, *, y):
        return x + y
    assert a_pass(federation(), 1, y=2) == 3 and timed.seconds["a_pass"] == 3 - 1
    assert a_pass(federation(), 1, y=2) == 3 and timed.seconds.pop("a_pass") == 2 + (14 - 10)


# ------------------------------------------------------------------------- batches and predictions

def test_every_pass_has_each_sample_once_in_a_new_order():
    rows = list(batches(10, 4, 3, stream(0)))
    assert [len(r) for r in rows] == [4, 4, 2] * 3                  # the last batch may be smaller
    passes = [torch.cat(rows[k:k + 3]).tolist() for k in (0, 3, 6)]
    assert all(sorted(order) == list(range(10)) != order for order in passes)
    assert passes[0] != passes[1] != passes[2] != passes[0]
    assert [len(r) for r in batches(3, 64, 2, stream(0))] == [3, 3]     # fewer samples than a batch


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


@pytest.mark.parametrize("amp, dtype", [(True, torch.bfloat16), (False, torch.float32)])
def test_amp_computes_in_bfloat16_and_returns_float32(amp, dtype):
    fed, model, seen = federation(amp=amp), linear(), []
    model[1].register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    assert forward(fed, model, fed.test.images).dtype == torch.float32 and seen == [dtype]


def test_disagreement_by_hand():
    """The six pairs of members differ on 1, 2, 1, 1, 2 and 1 of 3 samples."""
    classes = torch.tensor([[0, 0, 1], [0, 1, 1], [0, 1, 0], [0, 0, 0]])
    members = nn.functional.one_hot(classes, 2).float()
    assert disagreement(members) == pytest.approx((1 + 2 + 1 + 1 + 2 + 1) / 3 / 6)
    assert disagreement(members[:1]) is None and disagreement(members[[0, 0]]) == 0
