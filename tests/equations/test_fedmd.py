"""FedMD: the consensus, its digest, public subsets, the transfer, whole rounds; the upper bound."""
import collections
import dataclasses
import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from slow import (close, drawn, numbers, pixels, slow_accuracy, slow_learner, slow_training,
                  towards_labels, update_by)
from torch import nn
from toys import Change, federation, rounds, same, samples, through_a_file, with_hidden_layer

from algorithms import fedmd, fedmd_pooled
from attacks import Attack
from federation import Data, make_rng, score_clients
from reference import fedmd as oracle

TRANSFER = {"transfer_public_epochs": 12, "transfer_public_batch_size": 6, "lr": 0.05,
            "min_delta": 0.6}
QUICK = {**TRANSFER, "rounds": 2, "transfer_local_epochs": 18, "transfer_batch_size": 3,
         "subset_size": 7, "public_epochs": 2, "public_batch_size": 3, "local_epochs": 2,
         "batch_size": 2, "weight_decay": 0.01, "kernel_l2": 0.02}
BRIEF = {**QUICK, "transfer_public_epochs": 1, "transfer_local_epochs": 1, "rounds": 1}
POOLED = {**TRANSFER, "rounds": 2, "batch_size": 5, "weight_decay": 0.01, "kernel_l2": 0.02}


def joint(sizes=(5, 3, 4), num_public=24, **changes):
    """One output layer over public classes 0, 1, 2 and, behind them, the private ones, 3 and 4."""
    def task(count, seed):
        images, labels = samples(count, 2, seed)
        return Data(images, labels + 3)
    return federation(**{
        "sizes": sizes, "num_classes": 5, "public": samples(num_public, 3, seed=2),
        "private": [task(size, 100 + i) for i, size in enumerate(sizes)], "test": task(40, 1),
        "public_test": samples(30, 3, seed=4), "validation": task(8, 5),
        "num_public_classes": 3, **changes})


def rows_of(fed, **settings):
    """([(metrics, state)], [the public rows of each round])"""
    rows = []
    idle = Attack([0], lambda i, upload, benign, asked: rows.append(asked) or upload)
    return list(rounds(fedmd, fed, attack=idle, **settings)), rows


def public_rows(labels, size, t=1):
    """The rows of round t, of images with these labels."""
    labels = torch.as_tensor(labels)
    data = Data(torch.zeros(len(labels), 1, 2, 2), labels)
    return fedmd.public_subset(data, size, make_rng(0, "subset", t))


@pytest.mark.parametrize("weights", [[2, 1, 1], [.5, .25, .25]])
def test_a_weighted_consensus_by_hand(weights):
    logits = torch.tensor([[[4., 0.]], [[0., 8.]], [[-4., 4.]]])
    expected = [[(2 * 4 + 1 * 0 + 1 * -4) / 4, (2 * 0 + 1 * 8 + 1 * 4) / 4]]
    assert fedmd.consensus(logits, weights).tolist() == expected
    assert torch.equal(fedmd.consensus(logits[:1], [7]), logits[0])


@pytest.mark.parametrize("weights", [(1, 1), (1, 1, 1, 1), (0, 0, 0)])
def test_weights_that_make_no_consensus_are_refused(weights):
    with pytest.raises(ValueError, match="consensus_weights needs"):
        next(rounds(fedmd, joint(), **BRIEF, consensus_weights=weights))


def end_of_round(weights, lost=(), **settings):
    """[(metrics, state)] of rounds 0 and 1; all logits of the clients `lost` are nan."""
    def change(uploads, rows):
        uploads[list(lost)] = math.nan
        return uploads
    return list(rounds(fedmd, joint(), attack=Change(change),
                       **{**BRIEF, **settings, "consensus_weights": weights}))


@pytest.mark.parametrize("weights, equal", [((1., 2., 5.), (0., 2., 5.)), (None, (0., 1., 1.))])
def test_weights_stay_with_clients_if_one_is_not_finite(weights, equal):
    """A client whose upload is nan counts as one of weight 0, and learns like the others."""
    _, (metrics, state) = end_of_round(weights, lost=[0])
    _, (_, expected) = end_of_round(equal)
    assert metrics["bad_uploads"] == 1
    for i, other in expected["clients"].items():
        assert all(torch.allclose(state["clients"][i]["model"][name], w, atol=1e-5)
                   for name, w in other["model"].items())


@pytest.mark.parametrize("weights, lost", [((1., 0., 0.), [0]), (None, [0, 1, 2])])
def test_without_a_usable_upload_that_has_weight_nobody_digests(weights, lost):
    """And the accuracies after the digest are null, not those of the round before. There is no
    download."""
    (start, _), (metrics, state) = end_of_round(weights, lost)
    _, (_, expected) = end_of_round(None, public_epochs=0)
    for i, other in expected["clients"].items():
        assert state["clients"][i]["digest_optimizer"] is None
        assert same(dict(state["clients"][i]["model"]), dict(other["model"]))
    of_digest = {name for name in metrics if name.startswith("client_accuracy_distilled")}
    assert of_digest == {name for name, x in metrics.items() if x is None}
    assert "client_accuracy_distilled" in of_digest and of_digest <= start.keys()
    assert metrics["bytes_down"] == 0
    assert metrics["bytes_up"] == 4 * 7 * 5 * 3


def test_digest_loss_is_the_mean_absolute_error():
    """Of raw logits, over samples and classes: neither a sum over classes, nor squares, nor after a
    softmax. The gradient is a sign; the consensus gets none."""
    logits = torch.tensor([[1., -2., 0.], [0., 0., 3.]], requires_grad=True)
    target = torch.tensor([[0., 2., .5], [1., 0., 1.]], requires_grad=True)
    loss = fedmd.digest_loss(logits, target)
    loss.backward()
    assert loss.item() == pytest.approx((1 + 4 + .5 + 1 + 0 + 2) / 6)
    assert torch.allclose(logits.grad, torch.tensor([[1., -1., -1.], [-1., 0., 1.]]) / 6)
    assert target.grad is None


@pytest.mark.parametrize("counts", [(50, 50, 50), (97, 2, 1), (10, 0, 30, 7)])
@pytest.mark.parametrize("size", [1, 7, 30, 47, 5000, None])
def test_a_public_subset_has_of_each_class_its_share_to_one(counts, size):
    """Whatever the classes are called, and in whatever order the samples are; at most all."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    expected = min(size or 5000, len(labels))
    for t, named in itertools.product(range(10), (labels, labels + 10, -labels)):
        rows = public_rows(named, size, t).numpy()
        assert rows.dtype == np.int64 and rows.tolist() == sorted(set(rows.tolist()))
        assert len(rows) == expected and 0 <= rows[0] and rows[-1] < len(labels)
        drawn = collections.Counter(labels[rows].tolist())
        assert all(abs(drawn[c] - expected * n / len(labels)) < 1 for c, n in enumerate(counts))


@pytest.mark.parametrize("labels", [np.arange(20) % 3, np.arange(20)])
def test_every_sample_is_drawn_as_often_as_every_other(labels):
    """300 times 6 of 20: each 90 times, give or take 5 standard deviations."""
    counts = collections.Counter(n for t in range(300) for n in public_rows(labels, 6, t).tolist())
    assert all(abs(counts[n] - 300 * .3) < 5 * math.sqrt(300 * .3 * .7) for n in range(20))


def test_each_rounds_subset_is_of_its_own_stream():
    fed = joint()
    _, rows = rows_of(fed, **{**BRIEF, "rounds": 3})
    expected = [public_rows(fed.public.labels, 7, t).tolist() for t in (1, 2, 3)]
    assert [r.tolist() for r in rows] == expected and len(set(map(str, expected))) == 3


@pytest.mark.parametrize("size", [None, 7])
def test_public_images_without_labels_will_do_if_no_client_trains_on_them_in_step_0(size):
    """All are drawn, with the metrics of images with labels; or any 7, of one unknown class."""
    fed, settings = joint(), {**BRIEF, "transfer_public_epochs": 0, "subset_size": size}
    unlabeled = dataclasses.replace(fed, public=Data(fed.public.images, None))
    rows, drawn = rows_of(unlabeled, **settings)
    if size is None:
        assert [x for x, _ in rows] == [x for x, _ in rows_of(fed, **settings)[0]]
    else:
        assert [x.tolist() for x in drawn] == [public_rows(np.zeros(24), 7).tolist()]


def test_the_penalty_is_of_the_last_layers_kernel_alone():
    model = with_hidden_layer()
    kernel = model[3].weight.detach()
    loss = fedmd.penalty(model, 0.5)
    loss.backward()
    squares = sum(w * w for w in kernel.flatten().tolist())
    assert loss.item() == pytest.approx(.5 * squares, rel=1e-6)
    assert torch.allclose(model[3].weight.grad, 0.5 * 2 * kernel)
    assert all(w.grad is None for name, w in model.named_parameters() if name != "3.weight")


@pytest.mark.parametrize("accuracies, settings, epochs", [
    ([.5, .6, .6, .5, .55, .9, .9], {}, 2 + 3),         # the best is epoch 2: no better in 3, 4, 5
    ([.5, .508, .505, .509], {}, 1 + 3),                # never .01 above .5
    ([.05, .06, .07, .08, .08, .08], {}, 4 + 3),        # .06 - .05 is .009999999999999995
    ([.5, .508, .516, .516, .516, .516], {}, 3 + 3),    # .516 is above .5, if not above .508
    ([0.0] * 9, {"patience": 4}, 1 + 4),                # 0 is the best so far
    ([], {"epochs": 13}, 13)])                          # without a validation set
def test_training_ends_after_patience_without_gain(monkeypatch, accuracies, settings, epochs):
    """Better is: by min_delta = .01 or more above the best. An epoch is one batch."""
    fed, passes, told = federation(), [], iter(accuracies)
    monkeypatch.setattr(fedmd, "accuracy", lambda logits, labels: next(told, 0))
    fed.augment = lambda images, rng: passes.append(len(images)) or images
    fedmd.train_until_converged(
        fed, fedmd.Config(lr=0.1, kernel_l2=0.1), fed.client_model(0), fed.private[0],
        fed.test if accuracies else None, ("here",),
        **{"epochs": 20, "batch_size": 5, "min_delta": .01, "patience": 3, **settings})
    assert len(passes) == epochs


def test_transfer_never_sees_a_test_set():
    """Nor does a round: other test sets, the same states; another validation set, others."""
    def states(**changes):
        (_, start), (_, end) = rounds(fedmd, joint(**changes), **{**QUICK, "rounds": 1})
        return start["clients"], end["clients"]
    fed, here = joint(), states()
    wrong = fed.test._replace(labels=7 - fed.test.labels)
    public_test = fed.public_test._replace(labels=2 - fed.public_test.labels)
    assert same(here, states(test=wrong, public_test=public_test))
    assert not same(here[-1], states(validation=wrong)[-1])


@pytest.mark.parametrize("num_public, epochs, early_stopping, held_out", [
    (20, 1, True, 2), (24, 5, False, 0), (9, 8, True, 0)])
def test_a_tenth_of_the_public_samples_is_held_out_for_early_stopping(
        num_public, epochs, early_stopping, held_out):
    """The same for all clients. All are learned, in all epochs, without it or if there are 9."""
    fed, seen = joint(num_public=num_public), collections.Counter()
    fed.augment = lambda images, rng: seen.update(str(image) for image in images) or images
    next(rounds(fedmd, fed, **{**BRIEF, "transfer_public_epochs": epochs,
                               "transfer_local_epochs": 0, "early_stopping": early_stopping}))
    assert len(seen) == num_public - held_out and set(seen.values()) == {3 * epochs}


def slow_until_no_better(learner, images, labels, validation, *, epochs, batch_size, keys,
                         min_delta, patience):
    """Adam on cross-entropy until `patience` epochs brought no growth by min_delta: how many."""
    update = torch.optim.Adam(learner, lr=QUICK["lr"], weight_decay=QUICK["weight_decay"])
    best, waited = -1.0, 0
    for epoch in range(1, epochs + 1):
        slow_training(learner, update, images, towards_labels(labels), epochs=1,
                      batch_size=batch_size, rng=make_rng(0, *keys, epoch),
                      kernel_l2=QUICK["kernel_l2"])
        now = slow_accuracy(learner, validation)
        waited = 0 if round(now - best, 12) >= min_delta else waited + 1
        best = now if waited == 0 else best
        if waited == patience:
            break
    return epoch


def slow_public_stage(fed, i, learner):
    order = make_rng(0, "transfer").permutation(24)
    held_out, kept = (Data(*(x[rows] for x in fed.public)) for rows in (order[:2], order[2:]))
    return slow_until_no_better(learner, *kept, held_out, epochs=12, batch_size=6,
                                keys=("transfer public", i), min_delta=.6, patience=3)


def slow_rounds(fed, clients, rows, weights):
    """reference/fedmd.py with the batches of the run and two Adams for each client."""
    adam = partial(torch.optim.Adam, lr=QUICK["lr"], weight_decay=QUICK["weight_decay"])
    sizes = {"digest": (lambda k: 7, QUICK["public_batch_size"], QUICK["public_epochs"]),
             "revisit": (lambda k: len(private[k]), QUICK["batch_size"], QUICK["local_epochs"])}

    def batches(step, t, k):
        size, batch_size, epochs = sizes[step]
        return drawn(fed, size(k), batch_size, epochs, step, t, k)

    private = [[*zip(pixels(images), labels.tolist())] for images, labels in fed.private]
    return oracle.run(
        clients, pixels(fed.public.images), private, subsets=[r.tolist() for r in rows],
        batches=batches, updates={step: [update_by(adam, w) for w in clients] for step in sizes},
        weights=weights, kernel_l2=QUICK["kernel_l2"])


@pytest.mark.parametrize("weights", [None, (2., 1., 0.)])
def test_fedmd_round_by_hand(weights):
    """Steps 0 to 5, a penalty in every loss, two Adams per client that live on."""
    fed, ids = joint(), range(3)
    found, rows = rows_of(fed, **QUICK, consensus_weights=weights)
    learners = [slow_learner(fed.client_model(i, init=i)) for i in ids]
    public_epochs = [slow_public_stage(fed, i, learners[i]) for i in ids]               # step 0
    for end, data in [("", fed.test), ("_public_test", fed.public_test)]:
        assert found[0][0]["client_accuracy_public_stage" + end] == pytest.approx(
            sum(slow_accuracy(learner, data) for learner in learners) / 3)
    private_epochs = [slow_until_no_better(
        learners[i], *fed.private[i], fed.validation, epochs=18, batch_size=3,
        keys=("transfer local", i), min_delta=.001, patience=10) for i in ids]
    assert min(public_epochs) < 12 and 10 < min(private_epochs) < 18    # some stopped early

    start = [numbers(learner) for learner in learners]
    slow = [(start, start), *slow_rounds(fed, start, rows, weights or (1., 1., 1.))]
    for (metrics, state), (digested, clients) in zip(found, slow, strict=True):
        own, before = ([slow_accuracy(client, fed.test) for client in those]
                       for those in (clients, digested))
        assert all(close(state["clients"][i]["model"], clients[i], atol=1e-4) for i in ids)
        assert metrics["accuracy"] == pytest.approx(sum(own) / 3)
        assert metrics["client_accuracy_distilled"] == pytest.approx(sum(before) / 3)
        assert [metrics[f"client_accuracy_private_{i}"] for i in ids] == pytest.approx(own)
        if state["round"] > 0:
            assert metrics["bytes_up"] == metrics["bytes_down"] == 4 * 7 * 5 * 3
            assert metrics["bytes_down_indices"] == 4 * 7 * 3


def test_pooled_is_public_training_and_then_epochs():
    """The public stage, then one Adam per client that lives on, over all private samples in one."""
    fed = joint()
    found = list(rounds(fedmd_pooled, fed, **POOLED))
    assert [state["round"] for _, state in found] == [0, 1, 2]
    images, labels = (torch.cat(parts) for parts in zip(*fed.private))
    for i in range(3):
        learner = slow_learner(fed.client_model(i, init=i))
        slow_public_stage(fed, i, learner)
        update = torch.optim.Adam(learner, lr=0.05, weight_decay=0.01)
        for t, (metrics, state) in enumerate(found):
            if t > 0:
                slow_training(learner, update, images, towards_labels(labels), epochs=1,
                              batch_size=5, rng=make_rng(0, "pooled", t, i), kernel_l2=0.02)
            assert close(state["clients"][i]["model"], learner, atol=1e-4)
            assert metrics["bytes_up"] == metrics["bytes_down"] == 0
            own = slow_accuracy(learner, fed.test)
            assert metrics[f"client_accuracy_{i}"] == pytest.approx(own)
            assert metrics["accuracy"] == pytest.approx(
                sum(metrics[f"client_accuracy_{j}"] for j in range(3)) / 3)


def test_pooled_training_stops_for_each_network_on_its_own(monkeypatch):
    """In round 2 client 0 grows by less than .001, and client 1 by .001, which is a gain."""
    def train(state=None, first=1):
        told = iter([x for t in range(first, 15) for x in (
            [.5 + .0009 * (t > 1)] if t <= 11 else []) + [.1 + .001 * (t > 1)]])
        fed = joint(sizes=(5, 7))
        monkeypatch.setattr(fedmd_pooled, "accuracy", lambda logits, labels: (
            torch.equal(labels, fed.validation.labels) and next(told)))
        return list(rounds(fedmd_pooled, fed, state, **{**POOLED, "batch_size": 6, "rounds": 14}))
    whole = train()
    for t, batches in [(11, [22, 22]), (12, [22, 24]), (14, [22, 24])]:         # two in a round
        clients = whole[t][1]["clients"]
        assert [clients[i]["optimizer"]["state"][0]["step"] for i in (0, 1)] == batches
    assert same(whole[11][1]["clients"][0], whole[14][1]["clients"][0])
    assert same(train(through_a_file(whole[8][1]), first=9), whole[9:])


def test_answers_with_a_public_class_are_a_metric_of_their_own():
    """Two public classes, then the task's: of four answers 0, 2, 1, 3 a half is public."""
    images = torch.eye(4).view(4, 1, 2, 2)

    def answers(i, init=0):
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4, bias=False))
        model[1].weight.data = torch.eye(4)[:, [0, 2, 1, 3]]
        return model
    own, clients = Data(images, torch.tensor([2, 3, 2, 3])), {0: {"model": answers(0).state_dict()}}
    for labels in ([2, 2, 3, 3], [3, 3, 3, 3]):          # without a test image of the first class
        fed = joint(num_public_classes=2, client_model=answers, private=[own], public_test=own,
                    test=Data(images, torch.tensor(labels)))
        assert score_clients(fed, clients)["client_accuracy_as_public"] == 2 / 4
    fed.num_public_classes = 0
    assert "client_accuracy_as_public" not in score_clients(fed, clients)
