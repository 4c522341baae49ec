"""FedDF: who is left out, how the student learns and when it stops, rounds, different networks."""
import functools
import math

import pytest
import torch
from slow import close, slow_learner, slow_logits, slow_slopes, slow_training
from test_fedavg import slow_average, slow_client
from toys import (
    constant,
    federation,
    last,
    linear,
    same,
    samples,
    with_batchnorm,
    with_hidden_layer,
)

from algorithms import fedbe, feddf
from algorithms.equations import average_weights
from federation import stream
from federation.evaluation import accuracy, disagreement
from federation.parallel import active_clients, sample_clients
from federation.training import batches, network, predict_members
from reference.linear import kl_slope

DISTILL = {"distill_steps": 5, "server_batch_size": 4, "server_lr": 0.3, "temperature": 2.0,
           "server_optimizer": "sgd", "cosine": False, "max_grad_norm": None, "patience": None,
           "check_every": 2}
LOCAL = {"local_epochs": 1, "batch_size": 2, "lr": 0.1}
LONG = {"local_epochs": 20, "batch_size": 10, "lr": 0.3}
QUICK = {"rounds": 2, "participation": 1.0, **LOCAL, **DISTILL, "drop_worst": False}
ONCE = {**QUICK, "rounds": 1}
MIXED = (linear, with_hidden_layer)


def with_validation(sizes=(5,), count=30, **changes):
    return federation(sizes, validation=samples(count, seed=3), **changes)


def start_of(fed, name="linear"):
    """The global model of a network before round 1."""
    return {"architecture": name, "model": network(fed, name).state_dict()}


def own_models(fed, local=LOCAL):
    """What the clients upload in the first round, as members of an ensemble."""
    settings = {"local_steps": None, "optimizer_name": "sgd", "weight_decay": 0.0, **local}
    starts = [start_of(fed, name) for name in fed.architecture]
    return [start | feddf.train_client(fed, i, 1, start, **settings)
            for i, start in enumerate(starts)]


def distill(fed, start, teacher, t=1, **changes):
    return feddf.distill(fed, t, start, teacher, **{**DISTILL, **changes})


@pytest.fixture
def teachers_of(monkeypatch):
    """What every call of `distill` was given and gave: [(start, teacher_logits, student)]."""
    calls, original = [], feddf.distill

    def recorded(fed, t, start, teacher_logits, *settings):
        distilled = original(fed, t, start, teacher_logits, *settings)
        calls.append((start, teacher_logits, distilled.student))
        return distilled
    monkeypatch.setattr(feddf, "distill", recorded)
    return calls


def test_drop_worst_by_hand():
    """Chance is right with 1 / C: the threshold is 1.2 / C. If nobody would stay, everyone does."""
    for C, threshold in [(2, .6), (3, .4), (10, .12), (100, .012)]:
        accuracies = torch.tensor([threshold - 1e-4, threshold, threshold + 1e-4, 1., 0.])
        assert feddf.drop_worst(accuracies, C).tolist() == [False, True, True, True, False]
    assert feddf.drop_worst([.0, .1, .11], 10).tolist() == [True] * 3


def with_spoilt_client():
    """Client 1 of 3 learns wrong labels: on the validation set it is worse than a guess."""
    fed = with_validation((30, 20, 10))
    images, labels = fed.private[1]
    fed.private[1] = fed.private[1]._replace(images=3 * images, labels=(labels + 1) % 3)
    return fed


def test_worse_than_a_guess_neither_counts_nor_teaches(teachers_of):
    fed = with_spoilt_client()
    metrics, _ = last(feddf.run(fed, **{**ONCE, **LONG, "drop_worst": True}))
    members = own_models(fed, LONG)
    images, labels = fed.validation
    right = [accuracy(logits, labels) for logits in predict_members(fed, members, images)]
    assert right[1] < 1.2 / 3 <= min(right[0], right[2])
    [(start, teacher_logits, _)] = teachers_of
    kept = [members[0], members[2]]
    assert same(start["model"], average_weights([member["model"] for member in kept], [30, 10]))
    expected = predict_members(fed, kept, fed.public.images).mean(0)
    assert torch.allclose(teacher_logits, expected, atol=1e-6)
    assert metrics["dropped"] == 1 and metrics["teacher_forwards"] == 2 * 8


@pytest.mark.parametrize("keyword, value", [("drop_worst", True), ("patience", 5)])
def test_either_use_of_validation_images_needs_them(keyword, value):
    with pytest.raises(ValueError, match="feddf needs validation images"):
        next(feddf.run(federation(), **{**ONCE, keyword: value}))


def test_client_accuracy_is_of_the_uploads_that_count():
    fed = with_spoilt_client()
    metrics, _ = last(feddf.run(fed, **{**ONCE, **LONG, "drop_worst": True}))
    first, _, third = own_models(fed, LONG)
    logits = predict_members(fed, [first, third], fed.test.images)
    a, c = (accuracy(each, fed.test.labels) for each in logits)
    found = [metrics[f"client_accuracy{part}"] for part in ("", "_min", "_max")]
    assert found == [(a + c) / 2, min(a, c), max(a, c)] and a != c
    assert metrics["disagreement"] == disagreement(logits)


def towards_softened(teacher_logits, T):
    return lambda n, z: kl_slope(z, teacher_logits[n].tolist(), T)


def test_the_papers_student_against_a_slow_adam():
    """Rate lr (1 + cos(pi s / S)) / 2; the gradient is scaled down to norm 0.2 if it is longer."""
    fed, steps, rate, norm, clipped = federation(num_public=6), 7, 0.05, 0.2, 0
    start, teacher = start_of(fed), 3 * torch.randn(6, 3)
    slow = slow_learner(start["model"])
    adam = torch.optim.Adam(slow)
    for s, rows in zip(range(steps), batches(6, 4, steps, stream(0, "distil", 3, 0))):
        g = slow_slopes(slow, fed.public.images, rows, towards_softened(teacher, 1.0))
        scale = min(1, norm / math.sqrt(sum((u * u).sum().item() for u in g)))
        for w, u in zip(slow, g):
            w.grad = u * scale
        adam.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * s / steps)) / 2
        adam.step()
        clipped += scale < 1
    student, _ = distill(fed, start, teacher, t=3, distill_steps=steps, server_lr=rate, cosine=True,
                        max_grad_norm=norm, server_optimizer="adam", temperature=1.0)
    assert 0 < clipped and close(student["model"], slow)


@functools.cache
def swinging(seed):
    """A student that overshoots: (its `distill`, it after 2, 4 ... 40 steps, its accuracies)."""
    fed, generator = with_validation(count=200), torch.Generator().manual_seed(seed)
    start, teacher = start_of(fed), 4 * torch.randn(8, 3, generator=generator)
    run = functools.partial(distill, fed, start, teacher, server_lr=3.0)
    students = [run(distill_steps=s).student for s in range(2, 41, 2)]
    return run, students, [accuracy(logits, fed.validation.labels) for logits in
                           predict_members(fed, students, fed.validation.images)]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("patience", [2, 4, 6, 100])
def test_patience_ends_and_returns_the_best(seed, patience):
    run, students, right = swinging(seed)
    best = look = 0                                                 # a look after every second step
    while 2 * (look - best) < patience and look < 19:
        look += 1
        best = look if right[look] > right[best] else best          # the first of equals
    student, steps = run(distill_steps=40, patience=patience)
    assert steps == 2 * (look + 1) and same(student, students[best])
    assert right[look] < right[best] and (look < 19 or patience == 100)


def test_a_student_wrong_at_every_look_is_that_of_the_first():
    """All labels are 2, and class 2 starts and stays far below the others: accuracy 0."""
    fed = federation(validation=samples(5)._replace(labels=torch.full((5,), 2)))
    start = {"architecture": "linear", "model": constant(0., 0., -100.)}
    teacher = torch.tensor([[1., 0., -100.]] * 8)
    first = distill(fed, start, teacher, distill_steps=2)
    assert same(distill(fed, start, teacher, patience=100).student, first.student)


def test_fewer_steps_than_a_look_still_return_a_student():
    """The one after the last step. The look changes nothing in it, nor in BatchNorm's counter."""
    fed = with_validation(network=with_batchnorm)
    start, teacher = start_of(fed, "with_batchnorm"), torch.randn(8, 3)
    looked = distill(fed, start, teacher, patience=100, check_every=100)
    assert same(looked, distill(fed, start, teacher)) and looked.steps == 5
    assert looked.student["model"]["0.num_batches_tracked"].item() == 5


def test_feddf_round_by_hand():
    """Slow local SGD; the average by sample counts; the mean of the logits; slow SGD on the KL."""
    sizes, fed = (5, 3, 4, 6), federation((5, 3, 4, 6))
    expected = start_of(fed)["model"]
    for t in (1, 2):
        active = sample_clients(4, 0.5, stream(0, "active", t))
        trained = [slow_client(fed, expected, t, i, **LOCAL) for i in active]
        teacher = torch.tensor([slow_logits(w, fed.public.images) for w in trained]).mean(0)
        own = [sizes[i] for i in active]
        assert own[0] != own[1]                     # so that equal weights give another result
        student = slow_learner(slow_average(trained, own))
        slow_training(student, torch.optim.SGD(student, lr=0.3), fed.public.images,
                      towards_softened(teacher, 2.0), epochs=5, steps=5, batch_size=4,
                      rng=stream(0, "distil", t, 0))
        expected = slow_average([student], [1])
    _, state = last(feddf.run(fed, **{**QUICK, "participation": 0.5}))
    assert close(state["global_models"][0]["model"], student)


@pytest.mark.parametrize("evaluate_ensemble", [
    lambda fed, members: feddf.evaluate_ensemble(fed, dict(enumerate(members))),
    fedbe.evaluate_ensemble], ids=["feddf", "fedbe"])
def test_the_ensemble_predicts_by_mean_logits(evaluate_ensemble):
    """Class 0 wins, 10/3 to 2. By probabilities it would lose: two of three are sure of class 1."""
    fed = federation(test=samples(6)._replace(labels=torch.zeros(6, dtype=torch.int64)))
    members = [{"architecture": "linear", "model": constant(*logits)}
               for logits in [(10., 0., 0.), (0., 3., 0.), (0., 3., 0.)]]
    metrics = evaluate_ensemble(fed, members)
    assert metrics["ensemble_accuracy"] == 1 and metrics["disagreement"] == pytest.approx(2 / 3)


def test_every_client_teaches_the_average_of_each_network(teachers_of):
    """Two students of 5 steps; 4 teachers and 8 images; 2 clients of each network."""
    fed = federation(network=MIXED)
    (metrics, state), members = last(feddf.run(fed, **ONCE)), own_models(fed)
    teacher = predict_members(fed, members, fed.public.images).mean(0)
    for k, (start, teacher_logits, _) in enumerate(teachers_of):
        own = [members[i]["model"] for i in (k, k + 2)]
        sizes = [len(fed.private[i].labels) for i in (k, k + 2)]
        assert start["architecture"] == fed.architecture[k]
        assert same(start["model"], average_weights(own, sizes))
        assert torch.allclose(teacher_logits, teacher, atol=1e-6)
    assert same(state["global_models"], [student for *_, student in teachers_of])
    assert metrics["steps"] == 2 * 5 and metrics["dropped"] == 0
    assert metrics["teacher_forwards"] == 4 * 8
    assert metrics["bytes_down"] == metrics["bytes_up"] == 4 * (2 * (3 * 5) + 2 * (2 * 5 + 3 * 3))


def test_of_each_network_the_same_share_takes_part():
    """With one network they are FedAvg's."""
    for t in range(1, 20):
        active = active_clients(federation((3,) * 8, MIXED), 0.5, t)
        assert [[i % 2 for i in ids] for ids in active.values()] == [[0, 0], [1, 1]]
        fedavgs = sample_clients(8, 0.4, stream(0, "active", t))
        assert active_clients(federation((3,) * 8), 0.4, t) == {"linear": fedavgs}
