"""FedDF: who is left out, how the student learns and when it stops, whole rounds, clients with different networks."""
import copy
import itertools
import math

import numpy as np
import pytest
import torch
from test_fedavg import slow_local_training
from test_fedsdd import predictions, slow_distil
from toys import (constant, federation, last, linear, same, samples, with_batchnorm,
                  with_hidden_layer)

from algorithms import fedavg, feddf
from algorithms.common import active_clients, average_weights, sample_clients, stream
from algorithms.evaluation import accuracy
from algorithms.training import batches, predict_logits
from communication import weights_bytes

PLAIN = {"server_optimizer": "sgd", "cosine": False, "max_grad_norm": None, "patience": None}
DISTIL = {**PLAIN, "distill_steps": 5, "server_batch_size": 4, "server_lr": 0.3, "temperature": 1.0, "check_every": 2}
LOCAL = {"local_epochs": 1, "batch_size": 2, "lr": 0.1}
QUICK = {"rounds": 2, "participation": 1.0, **LOCAL, **DISTIL, "drop_worst": False}


def with_validation(count=30, **changes):
    return federation(validation=samples(count, seed=3), **changes)


def own_model(fed, i):
    """The state_dict that client i uploads in the first round."""
    return fedavg.train_client(fed, i, 1, fedavg.start_server(fed, fed.architecture[i]), **LOCAL)["model"]


@pytest.fixture
def teachers_of(monkeypatch):
    """What every call of `distil` was given and gave: [(start, teacher_logits, student)]."""
    calls, original = [], feddf.distil

    def recorded(fed, t, student, teacher_logits, **settings):
        given = copy.deepcopy((student, teacher_logits))
        distilled = original(fed, t, student, teacher_logits, **settings)
        calls.append((*given, distilled.student))
        return distilled
    monkeypatch.setattr(feddf, "distil", recorded)
    return calls


# ------------------------------------------------------------------------------------------------------------ drop-worst

def test_drop_worst_by_hand():
    """Ten classes: a guess is right with .1, the threshold is .12."""
    assert feddf.drop_worst(torch.tensor([.119, .12, .121, .5, 0.]), 10).tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("num_classes, threshold", [(2, .6), (3, .4), (10, .12), (100, .012)])
def test_the_threshold_is_a_fifth_above_a_guess(num_classes, threshold):
    stays = feddf.drop_worst([threshold - 1e-4, threshold, threshold + 1e-4, 1.0], num_classes)
    assert stays.tolist() == [False, True, True, True]


@pytest.mark.parametrize("accuracies", [[.0], [.0, .1, .11], [.05] * 5])
def test_if_nobody_would_stay_everyone_does(accuracies):
    assert feddf.drop_worst(torch.tensor(accuracies), 10).tolist() == [True] * len(accuracies)


def test_drop_worst_changes_no_input():
    accuracies = torch.tensor([.3, .1])
    feddf.drop_worst(accuracies, 10)
    assert torch.equal(accuracies, torch.tensor([.3, .1])) and feddf.drop_worst(accuracies, 10).dtype == torch.bool


def spoilt_client(fed, i):
    """Client i learns from labels that are all wrong by one class: on the validation set it is worse than a guess."""
    images, labels = fed.private[i]
    fed.private[i] = fed.private[i]._replace(images=3 * images, labels=(labels + 1) % fed.num_classes)


def test_a_client_worse_than_a_guess_neither_counts_in_the_average_nor_teaches(teachers_of):
    fed = with_validation(sizes=(30, 30, 30))
    spoilt_client(fed, 1)
    local = {"local_epochs": 20, "batch_size": 10, "lr": 0.3}
    metrics, _ = last(feddf.run(fed, **{**QUICK, **local, "rounds": 1, "drop_worst": True}))
    uploads = [fedavg.train_client(fed, i, 1, fedavg.start_server(fed, "linear"), **local)["model"] for i in range(3)]
    right = [accuracy(logits, fed.validation.labels) for logits in predictions(fed, uploads, fed.validation.images)]
    assert right[1] < 1.2 / 3 <= min(right[0], right[2])
    [(start, teacher_logits, _)] = teachers_of
    kept = [uploads[0], uploads[2]]
    assert metrics["dropped"] == 1 and metrics["teacher_forwards"] == 2 * 8
    assert same(start, {"architecture": "linear", "model": average_weights(kept, [30, 30])})
    assert torch.allclose(teacher_logits, predictions(fed, kept, fed.public.images).mean(0), atol=1e-6)
    metrics, _ = last(feddf.run(fed, **{**QUICK, **local, "rounds": 1}))
    assert metrics["dropped"] == 0 and metrics["teacher_forwards"] == 3 * 8


# ---------------------------------------------------------------------------------------------------------- distillation

@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_distil_is_temperature_squared_kl(temperature):
    fed = federation(num_public=6, network=(with_hidden_layer, linear))                 # client 1 is the first of its network
    start, teacher = fedavg.start_server(fed, "linear"), 3 * torch.randn(6, 3)
    student, steps = feddf.distil(fed, 2, start, teacher, **{**DISTIL, "temperature": temperature})
    w = start["model"]
    weight, bias = slow_distil(fed, w["1.weight"].tolist(), w["1.bias"].tolist(), teacher, 0, 2, 1, distill_steps=5,
                               server_batch_size=4, server_lr=0.3, temperature=temperature)
    assert steps == 5 and student["architecture"] == "linear"
    assert np.allclose(student["model"]["1.weight"], weight, atol=1e-5) and np.allclose(student["model"]["1.bias"], bias, atol=1e-5)


def test_the_papers_own_student_against_a_slow_adam_with_cosine_rate_and_clipped_gradient():
    """Plain Python: gradient q - p of the KL, scaled down to norm 0.2 if it is longer, Adam's moments, rate lr (1 + cos(pi s / S)) / 2."""
    fed, steps, rate, norm = federation(num_public=6), 7, 0.05, 0.2
    start, teacher = fedavg.start_server(fed, "linear"), 3 * torch.randn(6, 3)
    w = [*start["model"]["1.weight"].flatten().tolist(), *start["model"]["1.bias"].tolist()]              # 12 weights, 3 biases
    m, v, clipped = [0.0] * 15, [0.0] * 15, 0
    passes = batches(6, 4, steps, stream(0, "distil", 3, 0))
    for s, rows in enumerate(itertools.islice(passes, steps)):
        g = [0.0] * 15
        for n in rows.tolist():
            x = fed.public.images[n].flatten().tolist()
            z = [sum(w[4 * c + d] * x[d] for d in range(4)) + w[12 + c] for c in range(3)]
            p, q = [math.exp(u) for u in teacher[n].tolist()], [math.exp(u) for u in z]
            for c in range(3):
                error = (q[c] / sum(q) - p[c] / sum(p)) / len(rows)
                g[12 + c] += error
                for d in range(4):
                    g[4 * c + d] += error * x[d]
        length = math.sqrt(sum(u * u for u in g))
        if length > norm:
            g, clipped = [u * norm / length for u in g], clipped + 1
        lr = rate * (1 + math.cos(math.pi * s / steps)) / 2
        m = [0.9 * a + 0.1 * b for a, b in zip(m, g)]
        v = [0.999 * a + 0.001 * b * b for a, b in zip(v, g)]
        w = [u - lr * (a / (1 - 0.9 ** (s + 1))) / (math.sqrt(b / (1 - 0.999 ** (s + 1))) + 1e-8) for u, a, b in zip(w, m, v)]
    student, _ = feddf.distil(fed, 3, start, teacher, **{**DISTIL, "distill_steps": steps, "server_lr": rate, "max_grad_norm": norm,
                                                         "server_optimizer": "adam", "cosine": True})
    assert clipped > 0
    assert np.allclose([*student["model"]["1.weight"].flatten().tolist(), *student["model"]["1.bias"].tolist()], w, atol=1e-4)


@pytest.mark.parametrize("change", [{"cosine": True}, {"max_grad_norm": 0.01}, {"server_optimizer": "adam"}])
def test_each_of_the_papers_extras_makes_a_difference(change):
    fed, teacher = federation(), 3 * torch.randn(8, 3)
    start = fedavg.start_server(fed, "linear")
    plain, other = (feddf.distil(fed, 1, start, teacher, **{**DISTIL, **c}).student["model"] for c in ({}, change))
    assert not torch.allclose(plain["1.weight"], other["1.weight"], atol=1e-4)


def looks(fed, start, teacher, at, **settings):
    """The students after so many steps each, and their accuracies on the validation set."""
    students = [feddf.distil(fed, 1, start, teacher, **{**DISTIL, **settings, "distill_steps": s}).student for s in at]
    logits = predictions(fed, [student["model"] for student in students], fed.validation.images)
    return students, [accuracy(z, fed.validation.labels) for z in logits]


def overshooting(seed):
    """A student that swings: (fed, start, teacher, settings)."""
    fed = with_validation(200, sizes=(5,))
    teacher = 4 * torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))
    return fed, fedavg.start_server(fed, "linear"), teacher, {"server_lr": 3.0}


@pytest.mark.parametrize("seed", range(4))
def test_with_patience_the_student_is_the_best_on_validation_not_the_last(seed):
    fed, start, teacher, settings = overshooting(seed)
    students, right = looks(fed, start, teacher, at=range(2, 21, 2), **settings)
    student, steps = feddf.distil(fed, 1, start, teacher, **{**DISTIL, **settings, "distill_steps": 20, "patience": 100})
    assert steps == 20 and right[-1] < max(right)
    assert same(student, students[right.index(max(right))])             # the first of equals


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("patience", [2, 4, 6])
def test_distillation_ends_when_patience_steps_brought_nothing_new(seed, patience):
    fed, start, teacher, settings = overshooting(seed)
    students, right = looks(fed, start, teacher, at=range(2, 41, 2), **settings)
    best = end = 0
    for look in range(1, 20):
        if right[look] > right[best]:
            best = look
        elif 2 * (look - best) >= patience:
            end = look
            break
    assert end > 0
    student, steps = feddf.distil(fed, 1, start, teacher, **{**DISTIL, **settings, "distill_steps": 40, "patience": patience})
    assert steps == 2 * (end + 1) and same(student, students[best])


def test_a_tie_is_nothing_new():
    """A student that hardly moves is as good at each look: the first one stands, and patience runs out."""
    fed = with_validation()
    start, teacher = fedavg.start_server(fed, fed.architecture[0]), torch.randn(8, 3)
    settings = {**DISTIL, "server_lr": 1e-9, "check_every": 1, "distill_steps": 10}
    student, steps = feddf.distil(fed, 1, start, teacher, **{**settings, "patience": 3})
    first, _ = feddf.distil(fed, 1, start, teacher, **{**settings, "distill_steps": 1})
    assert steps == 1 + 3 and same(student, first)


def test_a_student_that_is_wrong_at_every_look_is_that_of_the_first_look():
    """All labels are 2, and class 2 starts and stays far below the others: accuracy 0."""
    fed = federation(validation=samples(5)._replace(labels=torch.full((5,), 2)))
    start = {"architecture": "linear", "model": constant(0., 0., -100.)}
    teacher = torch.tensor([[1., 0., -100.]] * 8)
    students, right = looks(fed, start, teacher, at=(2, 4, 6))
    student, _ = feddf.distil(fed, 1, start, teacher,
                              **{**DISTIL, "distill_steps": 6, "patience": 100})
    assert right == [0, 0, 0] and same(student, students[0])


def test_fewer_steps_than_a_look_still_return_a_student():
    fed = with_validation()
    start, teacher = fedavg.start_server(fed, fed.architecture[0]), torch.randn(8, 3)
    student, steps = feddf.distil(fed, 1, start, teacher, **{**DISTIL, "patience": 100, "check_every": 100})
    last_one, _ = feddf.distil(fed, 1, start, teacher, **DISTIL)
    assert steps == 5 and same(student, last_one)


def test_looking_at_the_validation_set_changes_nothing_in_the_student():
    """Also with BatchNorm, whose statistics a forward pass in train mode would move."""
    fed = with_validation(network=with_batchnorm)
    start, teacher = fedavg.start_server(fed, fed.architecture[0]), torch.randn(8, 3)
    looked, _ = feddf.distil(fed, 1, start, teacher, **{**DISTIL, "patience": 100, "check_every": 5})
    blind, _ = feddf.distil(fed, 1, start, teacher, **DISTIL)
    assert same(looked, blind) and looked["model"]["0.num_batches_tracked"].item() == 5


def test_feddfs_student_learns_from_augmented_public_images():
    """Here from black ones: no gradient for the weights, only for the bias."""
    fed = federation(augment=lambda images, rng: images * 0)
    start = fedavg.start_server(fed, "linear")
    student = feddf.distil(fed, 1, start, torch.randn(8, 3), **DISTIL).student["model"]
    start = start["model"]
    assert torch.equal(student["1.weight"], start["1.weight"]) and not torch.equal(student["1.bias"], start["1.bias"])


def test_distil_changes_neither_the_state_nor_the_teacher():
    fed = federation(network=with_batchnorm)
    start, teacher = fedavg.start_server(fed, fed.architecture[0]), torch.randn(8, 3)
    before = copy.deepcopy((start, teacher))
    feddf.distil(fed, 1, start, teacher, **DISTIL)
    assert same((start, teacher), before)


# ---------------------------------------------------------------------------------------------------------- whole rounds

def test_feddf_round_by_hand():
    """Two rounds in plain Python: local SGD, the average by sample counts, the mean of the clients' logits, SGD on the KL."""
    fed = federation(sizes=(5, 3, 4, 6))
    model = fed.client_model(0)
    weight, bias = model[1].weight.tolist(), model[1].bias.tolist()
    for t in (1, 2):
        active = sample_clients(4, 0.5, stream(0, "active", t))
        trained = [slow_local_training(fed.private[i], weight, bias, 0.0, 0, t, i, **LOCAL) for i in active]
        shares = [len(fed.private[i].labels) / sum(len(fed.private[j].labels) for j in active) for i in active]
        assert shares[0] != shares[1]                                                   # so that equal weights would be another result
        teacher = [[sum(sum(w[c][d] * x for d, x in enumerate(image.flatten().tolist())) + b[c] for w, b in trained) / len(trained)
                    for c in range(3)] for image in fed.public.images]
        weight = [[sum(s * w[c][d] for s, (w, _) in zip(shares, trained)) for d in range(4)] for c in range(3)]
        bias = [sum(s * b[c] for s, (_, b) in zip(shares, trained)) for c in range(3)]
        weight, bias = slow_distil(fed, weight, bias, torch.tensor(teacher), 0, t, 0, temperature=2.0, distill_steps=5,
                                   server_batch_size=4, server_lr=0.3)
    _, state = last(feddf.run(fed, **{**QUICK, "participation": 0.5, "temperature": 2.0}))
    [student] = state["global_models"]
    assert student["architecture"] == "linear"
    assert np.allclose(student["model"]["1.weight"], weight, atol=1e-5)
    assert np.allclose(student["model"]["1.bias"], bias, atol=1e-5)


def test_teachers_stay_as_they_are_and_do_not_see_the_batch(monkeypatch, teachers_of):
    """The logits that teach an image are those of the image alone, in eval mode, of models that training left behind."""
    fed, uploads, original = federation(network=with_batchnorm), [], fedavg.train_client

    def kept(*arguments, **settings):
        upload = original(*arguments, **settings)
        uploads.append((upload["model"], copy.deepcopy(dict(upload["model"]))))
        return upload
    monkeypatch.setattr(fedavg, "train_client", kept)
    last(feddf.run(fed, **{**QUICK, "rounds": 1}))
    assert len(uploads) == 4 and all(same(dict(now), before) for now, before in uploads)
    [(_, teacher_logits, _)] = teachers_of
    for n, image in enumerate(fed.public.images):
        alone = predictions(fed, [before for _, before in uploads], image[None]).mean(0)
        assert torch.allclose(teacher_logits[n], alone[0], atol=1e-5)


def test_the_averages_running_statistics_are_the_clients_mean(teachers_of):
    fed = federation(sizes=(5, 3, 4), network=with_batchnorm)
    last(feddf.run(fed, **{**QUICK, "rounds": 1}))
    uploads = [own_model(fed, i) for i in range(3)]
    [(start, _, _)] = teachers_of
    start = start["model"]
    means = [upload["0.running_mean"] for upload in uploads]
    assert torch.allclose(start["0.running_mean"], (5 * means[0] + 3 * means[1] + 4 * means[2]) / 12)
    assert not torch.allclose(start["0.running_mean"], means[2], atol=1e-3)


def test_next_round_begins_with_the_student():
    fed = federation()
    (_, _), (_, first), (_, second) = feddf.run(fed, **QUICK)
    [server] = first["global_models"]
    uploads = {i: fedavg.train_client(fed, i, 2, server, **LOCAL) for i in range(4)}
    average = fedavg.aggregate(fed, server, uploads)
    teacher = predictions(fed, [upload["model"] for upload in uploads.values()], fed.public.images).mean(0)
    student, _ = feddf.distil(fed, 2, average, teacher, **DISTIL)
    assert same(second["global_models"], [student])


def test_the_metrics_are_the_students_and_the_teachers():
    fed = federation()
    metrics, state = last(feddf.run(fed, **{**QUICK, "rounds": 1}))
    uploads = [own_model(fed, i) for i in range(4)]
    student = predictions(fed, [state["global_models"][0]["model"]], fed.test.images)[0]
    assert metrics["accuracy"] == metrics["server_accuracy"] == accuracy(student, fed.test.labels)
    assert metrics["ensemble_accuracy"] == accuracy(predictions(fed, uploads, fed.test.images).mean(0), fed.test.labels)
    assert metrics["bytes_up"] == metrics["bytes_down"] == 4 * weights_bytes(fed.client_model(0), 1) and metrics["steps"] == 5


def test_the_ensemble_predicts_by_mean_logits_not_by_mean_probabilities():
    """Class 0 wins, 10/3 to 2. It would lose by probabilities: two of three are sure of class 1."""
    fed = federation(test=samples(6)._replace(labels=torch.zeros(6, dtype=torch.int64)))
    uploads = {i: {"model": constant(*logits)}
               for i, logits in enumerate([(10., 0., 0.), (0., 3., 0.), (0., 3., 0.)])}
    state = {"global_models": [fedavg.start_server(fed, "linear")]}
    assert feddf.evaluate(fed, state, uploads)["ensemble_accuracy"] == 1


def test_uploads_that_are_not_finite_neither_count_nor_teach(teachers_of):
    fed = federation()
    fed.private[1].images[:] = math.nan
    metrics, _ = last(feddf.run(fed, **{**QUICK, "rounds": 1}))
    assert metrics["bad_uploads"] == 1 and metrics["teacher_forwards"] == 3 * 8
    assert all(torch.isfinite(teacher_logits).all() for _, teacher_logits, _ in teachers_of)


def test_a_round_without_any_good_upload_keeps_the_model(teachers_of):
    fed = with_validation(sizes=(5, 3))
    for private in fed.private:
        private.images[:] = math.nan
    metrics, state = last(feddf.run(fed, **{**QUICK, "drop_worst": True}))
    assert metrics["bad_uploads"] == 2 and metrics["ensemble_accuracy"] is metrics["disagreement"] is None and not teachers_of
    assert same(state["global_models"], [fedavg.start_server(fed, "linear")])


# ------------------------------------------------------------------------------------------------------- mixed networks

def test_one_average_for_each_network_and_every_client_teaches_both(teachers_of):
    fed = federation(sizes=(5, 3, 4, 6), network=(linear, with_hidden_layer))
    _, state = last(feddf.run(fed, **{**QUICK, "rounds": 1}))
    uploads = {i: own_model(fed, i) for i in range(4)}
    logits = []
    for i, upload in uploads.items():
        model = fed.client_model(i)
        model.load_state_dict(upload)
        logits.append(predict_logits(fed, model, fed.public.images))
    assert [start["architecture"] for start, *_ in teachers_of] == ["linear", "with_hidden_layer"]
    for (start, teacher_logits, _), (a, b) in zip(teachers_of, [(0, 2), (1, 3)], strict=True):
        average = average_weights([uploads[a], uploads[b]], [len(fed.private[a].labels), len(fed.private[b].labels)])
        assert same(start, {"architecture": fed.architecture[a], "model": average})
        assert torch.allclose(teacher_logits, torch.stack(logits).mean(0), atol=1e-6)
    assert same(state["global_models"], [student for *_, student in teachers_of])


def test_mixed_networks_are_scored_each_and_in_the_mean_and_pay_for_their_own_size():
    fed = federation(sizes=(5, 3, 4), network=(linear, with_hidden_layer))
    metrics, state = last(feddf.run(fed, **{**QUICK, "rounds": 1}))
    own = []
    for i, (server, name) in enumerate(zip(state["global_models"], ("linear", "with_hidden_layer"), strict=True)):
        model = fed.client_model(i)
        model.load_state_dict(server["model"])
        assert server["architecture"] == name
        own.append(accuracy(predict_logits(fed, model, fed.test.images), fed.test.labels))
        assert metrics[f"server_accuracy_{name}"] == own[-1]
    assert metrics["accuracy"] == sum(own) / 2
    assert metrics["bytes_up"] == 4 * (15 + 19 + 15)               # 3 (4 + 1); 2 (4 + 1) + 3 (2 + 1)


def test_of_each_network_the_same_share_takes_part():
    fed = federation(sizes=(3,) * 8, network=(linear, with_hidden_layer))
    for t in range(1, 20):
        active = active_clients(fed, 0.5, t)
        assert [len(ids) for ids in active.values()] == [2, 2]
        assert all(i % 2 == 0 for i in active["linear"]) and all(i % 2 == 1 for i in active["with_hidden_layer"])


def test_with_one_network_the_active_clients_are_fedavgs():
    fed = federation(sizes=(3,) * 8)
    for t in range(1, 10):
        assert active_clients(fed, 0.4, t) == {"linear": sample_clients(8, 0.4, stream(0, "active", t))}


def test_a_network_whose_clients_are_all_left_out_starts_from_its_old_model(teachers_of):
    fed = with_validation(sizes=(30, 30), network=(linear, with_hidden_layer))
    spoilt_client(fed, 1)
    local = {"local_epochs": 20, "batch_size": 10, "lr": 0.3}
    metrics, _ = last(feddf.run(fed, **{**QUICK, **local, "rounds": 1, "drop_worst": True}))
    assert metrics["dropped"] == 1 and same(teachers_of[1][0], fedavg.start_server(fed, "with_hidden_layer"))
    assert torch.equal(teachers_of[0][1], teachers_of[1][1])


# ----------------------------------------------------------------------------------------------------------------- costs

@pytest.mark.parametrize("steps", [1, 9])
def test_each_teacher_predicts_each_public_image_once_a_round(steps):
    fed, rows, build = federation(), [], federation().client_model

    def counted(i, init=0):
        model = build(i, init)
        model.register_forward_hook(lambda module, args, output: rows.append(
            0 if module.training else int((args[0][:, None] == fed.public.images).flatten(2).all(2).any(1).sum())))
        return model
    fed.client_model = counted
    metrics = [metrics for metrics, _ in feddf.run(fed, **{**QUICK, "distill_steps": steps})]
    assert sum(rows) == 2 * 4 * 8 and [m["teacher_forwards"] for m in metrics[1:]] == [4 * 8] * 2


# ---------------------------------------------------------------------------------------------------------------- errors

def test_a_secure_sum_is_refused_with_the_reason():
    """The command line says the reason."""
    assert "teachers are the clients' own models" in feddf.REFUSED_FLAGS["secure_sum"]
    with pytest.raises(TypeError, match="secure_sum"):
        next(feddf.run(with_validation(), secure_sum=True))


@pytest.mark.parametrize("needs", [{"drop_worst": True}, {"patience": 5}])
def test_without_a_validation_set_what_needs_it_is_refused(needs):
    with pytest.raises(ValueError, match="validation"):
        next(feddf.run(federation(), **{**QUICK, **needs}))
