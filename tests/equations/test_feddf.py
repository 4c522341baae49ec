"""FedDF: who is left out, how the student learns and when it stops, rounds, different networks."""
import functools
import math

import pytest
import torch
from slow import close, slow_learner, slow_logits, slow_slopes, slow_training
from test_fedavg import slow_average, slow_client
from toys import (constant, federation, last, linear, loaded, rounds, same, sample_clients, samples,
                  with_batchnorm, with_hidden_layer)

from algorithms import fedbe, feddf
from federation import accuracy, average_weights, disagreement, make_rng, minibatches, predict
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


def start_of(fed, i=0):
    """The weights of client i's network before round 1."""
    return fed.client_model(i).state_dict()


def own_models(fed, local=LOCAL):
    """What the clients upload in the first round: {client: weights}."""
    return {i: feddf.train_client(fed, feddf.Config(**local), 1, i, start_of(fed, i))
            for i in range(len(fed.private))}


def predicted(fed, models, images):
    """Logits [M, N, C] of {client: weights}."""
    return torch.stack([predict(loaded(fed.client_model(i), weights), images)
                        for i, weights in models.items()])


def distill(fed, weights, teacher, t=1, **changes):
    """(the student's weights, its steps), of the first client's network."""
    cfg = feddf.Config(**{**DISTILL, **changes})
    return feddf.distill(fed, cfg, t, fed.architecture[0], weights, fed.public.images, teacher)


@pytest.fixture
def teachers_of(monkeypatch):
    """What every call of `distill` was given and gave: [(network, start, teacher, student)]."""
    calls, original = [], feddf.distill

    def recorded(fed, cfg, t, name, weights, images, teacher):
        student, steps = original(fed, cfg, t, name, weights, images, teacher)
        calls.append((name, weights, teacher, student))
        return student, steps
    monkeypatch.setattr(feddf, "distill", recorded)
    return calls


def test_drop_worst_by_hand():
    """Chance is right with 1 / C: the threshold is 1.2 / C. If nobody would stay, everyone does."""
    for C, threshold in [(2, .6), (3, .4), (10, .12), (100, .012)]:
        accuracies = torch.tensor([threshold - 1e-4, threshold, threshold + 1e-4, 1., 0.])
        assert feddf.drop_worst(accuracies, C).tolist() == [False, True, True, True, False]
    assert feddf.drop_worst([.0, .1, .11], 10).tolist() == [True] * 3


def with_spoilt_client():
    """(a federation whose client 1 of 3 learns wrong labels, so that on the validation set it is
    worse than a guess; the metrics of a round; what the clients upload)."""
    fed = with_validation((30, 20, 10))
    images, labels = fed.private[1]
    fed.private[1] = fed.private[1]._replace(images=3 * images, labels=(labels + 1) % 3)
    metrics, _ = last(rounds(feddf, fed, **{**ONCE, **LONG, "drop_worst": True}))
    return fed, metrics, own_models(fed, LONG)


def test_worse_than_a_guess_neither_counts_nor_teaches(teachers_of):
    fed, metrics, members = with_spoilt_client()
    images, labels = fed.validation
    right = [accuracy(logits, labels) for logits in predicted(fed, members, images)]
    assert right[1] < 1.2 / 3 <= min(right[0], right[2])
    [(_, start, teacher, _)] = teachers_of
    kept = {0: members[0], 2: members[2]}
    assert same(start, average_weights([*kept.values()], [30, 10]))
    expected = predicted(fed, kept, fed.public.images).mean(0)
    assert torch.allclose(teacher, expected, atol=1e-6)
    assert metrics["dropped"] == 1 and metrics["teacher_forwards"] == 2 * 8


@pytest.mark.parametrize("keyword, value", [("drop_worst", True), ("patience", 5)])
def test_either_use_of_validation_images_needs_them(keyword, value):
    with pytest.raises(ValueError, match="feddf needs validation images"):
        next(rounds(feddf, federation(), **{**ONCE, keyword: value}))


def test_client_accuracy_is_of_the_uploads_that_count():
    fed, metrics, members = with_spoilt_client()
    logits = predicted(fed, {0: members[0], 2: members[2]}, fed.test.images)
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
    slow = slow_learner(start)
    adam = torch.optim.Adam(slow)
    rng = make_rng(0, "distil", 3, 0)
    for s, rows in enumerate(minibatches(fed.public.images, 4, rng, steps=steps)):
        g = slow_slopes(slow, fed.public.images, rows, towards_softened(teacher, 1.0))
        scale = min(1, norm / math.sqrt(sum((u * u).sum().item() for u in g)))
        for w, u in zip(slow, g):
            w.grad = u * scale
        adam.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * s / steps)) / 2
        adam.step()
        clipped += scale < 1
    student, _ = distill(fed, start, teacher, t=3, distill_steps=steps, server_lr=rate, cosine=True,
                        max_grad_norm=norm, server_optimizer="adam", temperature=1.0)
    assert 0 < clipped and close(student, slow)


@functools.cache
def swinging(seed):
    """A student that overshoots: (its `distill`, it after 2, 4 ... 40 steps, its accuracies)."""
    fed, generator = with_validation(count=200), torch.Generator().manual_seed(seed)
    start, teacher = start_of(fed), 4 * torch.randn(8, 3, generator=generator)
    run = functools.partial(distill, fed, start, teacher, server_lr=3.0)
    students = [student for student, _ in (run(distill_steps=s) for s in range(2, 41, 2))]
    logits = [predict(loaded(fed.client_model(0), w), fed.validation.images) for w in students]
    return run, students, [accuracy(z, fed.validation.labels) for z in logits]


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
    start, teacher = constant(0., 0., -100.), torch.tensor([[1., 0., -100.]] * 8)
    first, _ = distill(fed, start, teacher, distill_steps=2)
    best, _ = distill(fed, start, teacher, patience=100)
    assert same(best, first)


def test_fewer_steps_than_a_look_still_return_a_student():
    """The one after the last step. The look changes nothing in it, nor in BatchNorm's counter."""
    fed = with_validation(network=with_batchnorm)
    start, teacher = start_of(fed), torch.randn(8, 3)
    student, steps = distill(fed, start, teacher, patience=100, check_every=100)
    assert same((student, steps), distill(fed, start, teacher)) and steps == 5
    assert student["0.num_batches_tracked"].item() == 5


def test_feddf_round_by_hand():
    """Slow local SGD; the average by sample counts; the mean of the logits; slow SGD on the KL."""
    sizes, fed = (5, 3, 4, 6), federation((5, 3, 4, 6))
    expected = start_of(fed)
    for t in (1, 2):
        active = sample_clients(4, 0.5, make_rng(0, "active", t))
        trained = [slow_client(fed, expected, t, i, **LOCAL) for i in active]
        teacher = torch.tensor([slow_logits(w, fed.public.images) for w in trained]).mean(0)
        own = [sizes[i] for i in active]
        assert own[0] != own[1]                     # so that equal weights give another result
        student = slow_learner(slow_average(trained, own))
        slow_training(student, torch.optim.SGD(student, lr=0.3), fed.public.images,
                      towards_softened(teacher, 2.0), epochs=5, steps=5, batch_size=4,
                      rng=make_rng(0, "distil", t, 0))
        expected = slow_average([student], [1])
    _, state = last(rounds(feddf, fed, **{**QUICK, "participation": 0.5}))
    assert close(state["global_models"]["linear"], student)


@pytest.mark.parametrize("measure", [
    lambda fed, state, uploads: feddf.measure(fed, state, [*uploads], uploads, uploads, {}),
    lambda fed, state, uploads: fedbe.measure(fed, fedbe.Config(), state, [*uploads], uploads,
                                              [*uploads.values()])], ids=["feddf", "fedbe"])
def test_the_ensemble_predicts_by_mean_logits(measure):
    """Class 0 wins, 10/3 to 2. By probabilities it would lose: two of three are sure of class 1."""
    fed = federation(test=samples(6)._replace(labels=torch.zeros(6, dtype=torch.int64)))
    logits = [(10., 0., 0.), (0., 3., 0.), (0., 3., 0.)]
    uploads = {i: constant(*z) for i, z in enumerate(logits)}
    state = {"server": {"model": uploads[0]}, "global_models": {"linear": uploads[0]}}
    metrics = measure(fed, state, uploads)
    assert metrics["ensemble_accuracy"] == 1 and metrics["disagreement"] == pytest.approx(2 / 3)


def test_every_client_teaches_the_average_of_each_network(teachers_of):
    """Two students of 5 steps; 4 teachers and 8 images; 2 clients of each network."""
    fed = federation(network=MIXED)
    (metrics, state), members = last(rounds(feddf, fed, **ONCE)), own_models(fed)
    expected = predicted(fed, members, fed.public.images).mean(0)
    for k, (name, start, teacher, _) in enumerate(teachers_of):
        own = [members[i] for i in (k, k + 2)]
        sizes = [len(fed.private[i].labels) for i in (k, k + 2)]
        assert name == fed.architecture[k]
        assert same(start, average_weights(own, sizes))
        assert torch.allclose(teacher, expected, atol=1e-6)
    assert same(state["global_models"], {name: student for name, *_, student in teachers_of})
    assert metrics["steps"] == 2 * 5 and metrics["dropped"] == 0
    assert metrics["teacher_forwards"] == 4 * 8
    assert metrics["bytes_down"] == metrics["bytes_up"] == 4 * (2 * (3 * 5) + 2 * (2 * 5 + 3 * 3))


@pytest.mark.parametrize("network, each", [(MIXED, 2), (MIXED[0], 0)])
def test_of_several_networks_each_global_model_has_an_accuracy(network, each):
    """The headline is their mean. (Of one network it is the same number.)"""
    fed = federation(network=network)
    metrics, state = last(rounds(feddf, fed, **ONCE))
    images, labels = fed.test
    own = [accuracy(predict(loaded(fed.client_model(k), weights), images), labels)
           for k, weights in enumerate(state["global_models"].values())]
    assert metrics["accuracy"] == pytest.approx(sum(own) / len(own))
    found = {name: x for name, x in metrics.items() if name.startswith("server_accuracy")}
    assert found == pytest.approx({f"server_accuracy_{name}": x for name, x in zip(
        fed.architecture, own[:each])})


def test_a_network_whose_uploads_are_all_bad_distills_its_global_model(teachers_of):
    """Its clients are 1 and 3; the other network's clients are the teacher of both."""
    fed = federation(network=MIXED)
    for i in (1, 3):
        fed.private[i].images[0] = math.inf
    metrics, state = last(rounds(feddf, fed, **ONCE))
    (_, first, teacher, _), (name, second, _, student) = teachers_of
    kept = {i: own_models(fed)[i] for i in (0, 2)}
    assert torch.allclose(teacher, predicted(fed, kept, fed.public.images).mean(0), atol=1e-6)
    assert same(second, start_of(fed, 1)) and not same(first, start_of(fed, 0))
    assert same(state["global_models"][name], student) and not same(student, second)
    assert metrics["bad_uploads"] == 2 and metrics["teacher_forwards"] == 2 * 8


@pytest.mark.parametrize("more", [{}, {"patience": 100}])
def test_a_student_that_diverges_is_left_out_for_the_average(more):
    """Its rate of 1e38 makes it nan at every look. So nobody is bad in the next round."""
    fed = with_validation((5, 3))
    metrics, state = last(rounds(feddf, fed, **{**QUICK, **more, "server_lr": 1e38}))
    expected = start_of(fed)
    for t in (1, 2):
        expected = average_weights([feddf.train_client(fed, feddf.Config(**LOCAL), t, i, expected)
                                    for i in (0, 1)], [5, 3])
    assert same(state["global_models"], {"linear": expected})
    assert metrics["bad_uploads"] == 0 and metrics["accuracy"] > 0


def test_of_each_network_the_same_share_takes_part():
    """At least one client: 0.1 of four is one. With one network they are FedAvg's."""
    mixed, one = federation((3,) * 8, MIXED), federation((3,) * 8)
    for t in range(1, 20):
        for share, drawn in [(0.5, [[0, 0], [1, 1]]), (0.1, [[0], [1]])]:
            active = mixed.sample_by_architecture(share, t)
            assert [[i % 2 for i in ids] for ids in active.values()] == drawn
        assert one.sample_by_architecture(0.4, t) == {"linear": one.sample_clients(0.4, t)}
