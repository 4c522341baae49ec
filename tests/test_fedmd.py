"""FedMD: the consensus, its digest, the public subset, the transfer phase, whole rounds; the upper bound of pooled private data."""
import collections
import copy
import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from test_logits import slow_accuracy, slow_learner, slow_logits, slow_training, towards_labels
from test_logits import close as close_to
from toys import federation, labelled, last, linear, same, samples, with_batchnorm, with_hidden_layer
from torch import nn

from algorithms import fedmd, fedmd_pooled, fedmd_transfer
from algorithms.common import Data, stream
from algorithms.training import OPTIMIZERS

TRANSFER = {"transfer_public_epochs": 12, "transfer_public_batch_size": 6, "lr": 0.05}
QUICK = {**TRANSFER, "rounds": 2, "transfer_local_epochs": 18, "transfer_batch_size": 3, "subset_size": 7, "public_epochs": 2,
         "public_batch_size": 3, "local_epochs": 2, "batch_size": 2, "weight_decay": 0.01, "kernel_l2": 0.02}
BRIEF = {**QUICK, "transfer_public_epochs": 1, "transfer_local_epochs": 1, "rounds": 1}


def joint(sizes=(5, 3, 4), num_public=24, **changes):
    """One output layer over public classes 0, 1, 2 and, behind them, the private ones, 3 and 4."""
    def task(count, seed):
        images, labels = samples(count, 2, seed)
        return Data(images, labels + 3)
    return federation(**{
        "sizes": sizes, "num_classes": 5, "private": [task(size, 100 + i) for i, size in enumerate(sizes)],
        "public": samples(num_public, 3, seed=2), "test": task(40, 1), "public_test": samples(30, 3, seed=4),
        "validation": task(8, 5), **changes})


def rows_of(run, *arguments, **settings):
    """([(metrics, state)], [the public rows of each round])."""
    rows = []
    rounds = list(run(*arguments, **settings, attack=lambda uploads, ids, asked, t: rows.append(asked) or uploads))
    return rounds, rows


# ------------------------------------------------------------------------------------------------------------- consensus

def test_consensus_is_the_mean_of_the_logits_by_hand():
    logits = torch.tensor([[[3., 0.], [1., 1.]], [[0., 6.], [1., 4.]]])
    assert fedmd.consensus(logits).tolist() == [[(3 + 0) / 2, (0 + 6) / 2], [(1 + 1) / 2, (1 + 4) / 2]]


def test_consensus_is_of_logits_not_of_probabilities():
    """Of (4, 0) and (0, 1): (2, .5), whose softmax is another one than the mean of the softmaxes."""
    probs = fedmd.consensus(torch.tensor([[[4., 0.]], [[0., 1.]]])).softmax(-1)
    assert probs[0, 0].item() == pytest.approx(1 / (1 + math.exp(-(4 / 2 - 1 / 2))), abs=1e-6)


def test_a_weighted_consensus_by_hand():
    logits = torch.tensor([[[4., 0.]], [[0., 8.]], [[-4., 4.]]])
    expected = [[(2 * 4 + 1 * 0 + 1 * -4) / 4, (2 * 0 + 1 * 8 + 1 * 4) / 4]]
    assert fedmd.consensus(logits, [2, 1, 1]).tolist() == expected == fedmd.consensus(logits, torch.tensor([2, 1, 1])).tolist()


def test_a_weighted_consensus_by_slow_loop():
    rng = np.random.default_rng(0)
    logits, weights = rng.normal(size=(4, 5, 3)), rng.random(4)
    expected = [[sum(w * logits[m, n, c] for m, w in enumerate(weights)) / sum(weights) for c in range(3)] for n in range(5)]
    assert np.allclose(fedmd.consensus(torch.tensor(logits), weights.tolist()), expected, atol=1e-12)


def test_equal_weights_are_no_weights_and_their_scale_does_not_matter():
    logits = torch.randn(3, 5, 4).double()
    assert torch.allclose(fedmd.consensus(logits, [7, 7, 7]), fedmd.consensus(logits))
    assert torch.allclose(fedmd.consensus(logits, [1, 2, 5]), fedmd.consensus(logits, [.1, .2, .5]))


def test_consensus_follows_samples_and_classes_and_ignores_the_order_of_clients():
    logits, weights = torch.randn(3, 5, 4).double(), torch.tensor([1., 2., 5.]).double()
    clients, order, classes = torch.tensor([2, 0, 1]), torch.tensor([3, 1, 4, 0, 2]), torch.tensor([1, 3, 0, 2])
    expected = fedmd.consensus(logits, weights)
    assert torch.allclose(fedmd.consensus(logits[clients], weights[clients]), expected)
    assert torch.allclose(fedmd.consensus(logits[:, order], weights), expected[order])
    assert torch.allclose(fedmd.consensus(logits[:, :, classes], weights), expected[:, classes])


def test_a_party_of_weight_zero_is_not_heard():
    logits = torch.randn(3, 5, 4).double()
    assert torch.allclose(fedmd.consensus(logits, [1, 0, 3]), fedmd.consensus(logits[[0, 2]], [1, 3]))


def test_the_consensus_of_one_client_is_its_logits():
    logits = 1e4 * torch.randn(1, 5, 4)
    assert torch.equal(fedmd.consensus(logits), logits[0]) and torch.equal(fedmd.consensus(logits, [1.0]), logits[0])


def test_consensus_changes_no_input():
    logits, weights = torch.randn(2, 3, 4), torch.tensor([1., 3.])
    before = logits.clone(), weights.clone()
    fedmd.consensus(logits, weights)
    assert same((logits, weights), before)


WRONG_WEIGHTS = [[1, 1], [1, 1, 1, 1], [], [0, 0, 0], [1, -1, 1], [1, math.nan, 1], [1, math.inf, 1]]


@pytest.mark.parametrize("weights", WRONG_WEIGHTS)
def test_weights_that_make_no_consensus_are_refused_in_one_line(weights):
    with pytest.raises(ValueError, match="weight >= 0 for each of 3 clients") as error:
        fedmd.consensus(torch.randn(3, 5, 4), weights)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="weight >= 0 for each of 3 clients"):          # before any training
        next(fedmd.run(joint(), consensus_weights=tuple(weights)))


# ---------------------------------------------------------------------------------------------------------------- digest

def test_digest_loss_is_the_mean_absolute_error():
    """Over samples and classes: neither a sum over classes, nor squares, nor after a softmax."""
    logits, target = torch.tensor([[1., -2., 0.], [0., 0., 3.]]), torch.tensor([[0., 2., 0.], [1., 0., 1.]])
    assert fedmd.digest_loss(logits, target).item() == pytest.approx((1 + 4 + 0 + 1 + 0 + 2) / 6)


def test_digest_loss_by_slow_loop():
    rng = np.random.default_rng(0)
    logits, target = rng.normal(size=(2, 6, 4))
    expected = sum(abs(logits[n][c] - target[n][c]) for n in range(6) for c in range(4)) / (6 * 4)
    assert fedmd.digest_loss(torch.tensor(logits), torch.tensor(target)).item() == pytest.approx(expected, abs=1e-12)


def test_the_gradient_of_digest_is_a_sign_and_the_consensus_gets_none():
    logits, target = torch.randn(3, 4).double().requires_grad_(), torch.randn(3, 4).double().requires_grad_()
    fedmd.digest_loss(logits, target).backward()
    assert target.grad is None and torch.equal(logits.grad, torch.sign(logits - target).detach() / (3 * 4))
    assert torch.autograd.gradcheck(lambda z: fedmd.digest_loss(z, target), logits)


def test_digest_loss_is_of_raw_logits_a_shift_counts():
    logits, shift = torch.randn(3, 4).double(), .25
    assert fedmd.digest_loss(logits + shift, logits).item() == pytest.approx(shift, abs=1e-12)
    assert fedmd.digest_loss(logits, logits) == 0


def test_digest_loss_ignores_the_order_of_samples_and_classes_and_is_finite_for_large_logits():
    logits, target, order, classes = *torch.randn(2, 5, 4).double(), torch.tensor([3, 1, 4, 0, 2]), torch.tensor([1, 3, 0, 2])
    expected = fedmd.digest_loss(logits, target)
    assert torch.allclose(fedmd.digest_loss(logits[order][:, classes], target[order][:, classes]), expected)
    assert fedmd.digest_loss(torch.tensor([[1e4, -1e4]]), torch.tensor([[-1e4, 1e4]])).item() == 2e4


# --------------------------------------------------------------------------------------------------------- public subset

@pytest.mark.parametrize("counts", [(50, 50, 50), (97, 2, 1), (10, 0, 30, 7), (40,)])
@pytest.mark.parametrize("size", [1, 7, 30])
def test_a_public_subset_has_of_each_class_its_share_to_one(counts, size):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    before = labels.copy()
    for t in range(20):
        rows = fedmd.public_subset(labels, size, stream(0, "subset", t))
        assert len(rows) == len(set(rows.tolist())) == size and rows.dtype == np.int64
        assert rows.tolist() == sorted(rows.tolist()) and 0 <= rows[0] and rows[-1] < len(labels)
        drawn = collections.Counter(labels[rows].tolist())
        assert all(abs(drawn[c] - size * count / len(labels)) < 1 for c, count in enumerate(counts))
    assert np.array_equal(labels, before)


@pytest.mark.parametrize("size", [8, 9, 5000, None])
def test_a_subset_of_at_least_all_samples_is_all_of_them(size):
    assert fedmd.public_subset(np.array([2, 0, 1, 1, 0, 2, 2, 2]), size, stream(0)).tolist() == list(range(8))


@pytest.mark.parametrize("labels", [np.arange(20) % 3, np.arange(20)])
def test_every_sample_is_drawn_as_often_as_every_other(labels):
    """300 times 6 of 20: each 90 times, give or take 5 standard deviations of a count of 300 draws with .3."""
    counts = collections.Counter(n for t in range(300) for n in fedmd.public_subset(labels, 6, stream(0, "subset", t)).tolist())
    assert all(abs(counts[n] - 300 * .3) < 5 * math.sqrt(300 * .3 * .7) for n in range(20))


def test_the_names_of_the_classes_and_the_order_of_the_samples_do_not_matter():
    """Also with labels behind the task's, which share no row with them: 10 to 12."""
    labels, rng = np.arange(30) % 3, np.random.default_rng(0)
    for other in (labels + 10, rng.permutation(labels), 2 - labels):
        rows = fedmd.public_subset(other, 9, stream(0))
        assert sorted(collections.Counter(other[rows].tolist()).values()) == [3, 3, 3]


def test_the_subset_of_a_round_is_drawn_anew_from_the_rounds_stream():
    fed = joint()
    _, rows = rows_of(fedmd.run, fed, **{**BRIEF, "rounds": 4})
    expected = [fedmd.public_subset(fed.public.labels.numpy(), 7, stream(0, "subset", t)).tolist() for t in (1, 2, 3, 4)]
    assert [r.tolist() for r in rows] == expected and len(set(map(str, expected))) == 4
    _, rows = rows_of(fedmd.run, fed, **{**BRIEF, "subset_size": None})
    assert rows[0].tolist() == list(range(24))


# ----------------------------------------------------------------------------------------------- penalty, early stopping

def test_the_penalty_is_of_the_last_layers_kernel_alone():
    model = with_hidden_layer()
    kernel = model[3].weight.detach()
    loss = fedmd_transfer.penalty(model, 0.5)
    assert loss.item() == pytest.approx(0.5 * sum(w * w for w in kernel.flatten().tolist()), rel=1e-6)
    loss.backward()
    assert torch.allclose(model[3].weight.grad, 0.5 * 2 * kernel)
    assert all(w.grad is None for name, w in model.named_parameters() if name != "3.weight")
    assert fedmd_transfer.penalty(model, 0.0).item() == 0


LOOK = samples(5, seed=3)


@pytest.fixture
def told(monkeypatch):
    """told(accuracies, patience, ...) -> how many epochs there are when the validation set says these."""
    def epochs_of(accuracies, epochs=20, min_delta=0.01, patience=3, validation=LOOK):
        fed, model, script, passes = federation(), linear(), iter(accuracies), []
        monkeypatch.setattr(fedmd_transfer, "accuracy", lambda logits, labels: next(script))
        fed.augment = lambda images, rng: passes.append(len(images)) or images
        update = torch.optim.SGD(model.parameters(), lr=0.1)
        fedmd_transfer.train_until_converged(fed, model, update, fed.private[0], validation, epochs=epochs, batch_size=5,
                                             kernel_l2=0.0, keys=("here",), min_delta=min_delta, patience=patience)
        return len(passes)                                                              # 5 samples in one batch: one step an epoch
    return epochs_of


def test_training_ends_when_patience_epochs_brought_nothing_better(told):
    """The best is epoch 2; 3, 4 and 5 are no better."""
    assert told([.5, .6, .6, .5, .55, .9, .9]) == 2 + 3
    assert told([.5, .6, .6, .5, .9, .9, .9, .9, .9]) == 5 + 3
    assert told([.7, .6, .5], patience=1) == 2


def test_better_is_better_than_the_best_by_min_delta(told):
    """.508 is not .01 above .5; .016 is, though not above .508, the epoch before."""
    assert told([.5, .508, .505, .509]) == 4
    assert told([.5, .508, .516, .516, .516, .516]) == 3 + 3
    assert told([.5, .49, .495, .5]) == 4


@pytest.mark.parametrize("learn, settings, min_delta, patience", [
    (fedmd_transfer.learn_public, {"transfer_public_epochs": 20, "transfer_public_batch_size": 5},
     .005, 3),
    (fedmd_transfer.learn_private, {"transfer_local_epochs": 20, "transfer_batch_size": 5},
     .001, 10)])
@pytest.mark.parametrize("share, best_epoch", [(.9, 1), (1.1, 2)])
def test_each_stage_counts_growth_beyond_its_own_min_delta(monkeypatch, learn, settings, min_delta,
                                                           patience, share, best_epoch):
    """Accuracies .5, then .5 + share min_delta: the end is `patience` epochs after the best."""
    fed, looks = joint(), []

    def told(logits, labels):
        looks.append(.5 + share * min_delta if looks else .5)
        return looks[-1]
    monkeypatch.setattr(fedmd_transfer, "accuracy", told)
    learn(fed, 0, fed.client_model(0).state_dict(), **settings, kernel_l2=0.0, early_stopping=True,
          new_optimizer=partial(torch.optim.SGD, lr=0.1))
    assert len(looks) == best_epoch + patience


def test_a_first_accuracy_of_zero_is_the_best_so_far(told):
    assert told([0.0] * 9, patience=4) == 1 + 4


def test_training_that_gets_better_makes_all_epochs(told):
    assert told([k / 10 for k in range(7)], epochs=7) == 7


def test_without_a_validation_set_training_makes_all_epochs(told):
    assert told([], epochs=13, validation=None) == 13


def test_early_stopping_keeps_the_last_weights():
    """An accuracy that never changes is best in epoch 1: the weights are those of 1 + 3 epochs without looking."""
    fed = federation(network=with_batchnorm)
    never_right = Data(samples(5).images, torch.full((5,), 7))

    def trained(validation, epochs):
        model = fed.client_model(0)
        update = torch.optim.SGD(model.parameters(), lr=0.1)
        fedmd_transfer.train_until_converged(fed, model, update, fed.private[0], validation, epochs=epochs, batch_size=2,
                                             kernel_l2=0.1, keys=("here",), min_delta=0.005, patience=3)
        return dict(model.state_dict())
    assert same(trained(never_right, 20), trained(None, 1 + 3))
    assert not same(trained(None, 4), trained(None, 1))


# --------------------------------------------------------------------------------------------------------- transfer phase

def test_transfer_never_sees_a_test_set():
    """Nor does a later round: other test sets, the same states; another validation set, others."""
    def states(**changes):
        return [state for _, state in fedmd.run(joint(**changes), **{**QUICK, "rounds": 1})]
    fed = joint()
    wrong = {"test": fed.test._replace(labels=7 - fed.test.labels),
             "public_test": fed.public_test._replace(labels=2 - fed.public_test.labels)}
    here = states()
    for a, b in zip(here, states(**wrong), strict=True):
        a, b = ({key: value for key, value in state.items() if key != "start"} for state in (a, b))      # test accuracies
        assert same(a, b) and ("models" in a or "parties" in a)
    assert not same(here[-1]["parties"], states(validation=wrong["test"])[-1]["parties"])


def public_images_seen(fed, **settings):
    """Per party, which public rows it was trained on in the first transfer stage."""
    seen, number = [], {image.numpy().tobytes(): n for n, image in enumerate(fed.public.images)}
    fed.augment = lambda images, rng: seen.extend(number.get(image.numpy().tobytes()) for image in images) or images
    run = fedmd.run(fed, **{**BRIEF, **settings})
    next(run), next(run)
    epochs = len(seen) // len(fed.private)
    return [collections.Counter(seen[i * epochs:(i + 1) * epochs]) for i in range(len(fed.private))]


def test_a_tenth_of_the_public_samples_is_held_out_of_training_the_same_for_all():
    """24 public samples: two of them only say when it is enough."""
    seen = public_images_seen(joint())
    assert seen[0] == seen[1] == seen[2] and len(seen[0]) == 24 - 2 and set(seen[0].values()) == {1}


def test_without_early_stopping_all_public_samples_are_learned_in_every_epoch():
    fed = joint()
    fed.validation = None
    seen = public_images_seen(fed, early_stopping=False, transfer_public_epochs=5)
    assert seen == [collections.Counter({n: 5 for n in range(24)})] * 3


def test_with_fewer_than_ten_public_samples_nothing_is_held_out_and_nothing_ends_training_early():
    seen = public_images_seen(joint(num_public=9), transfer_public_epochs=8)
    assert seen == [collections.Counter({n: 8 for n in range(9)})] * 3


def test_early_stopping_without_a_validation_set_is_refused_in_one_line():
    """The upper bound needs none: it only stops by the public samples held out."""
    with pytest.raises(ValueError, match="validation.*early-stopping") as error:
        next(fedmd.run(labelled()))
    assert "\n" not in str(error.value)
    next(fedmd.run(labelled(), early_stopping=False))
    next(fedmd_pooled.run(labelled()))


# ---------------------------------------------------------------------------------------------------------- whole rounds

def towards_consensus(consensus):
    """Of the mean absolute error over C classes: the sign of each difference, over C."""
    return lambda n, z: [((a > b) - (a < b)) / len(z) for a, b in zip(z, consensus[n])]


def slow_until_no_better(learner, images, labels, validation, *, epochs, batch_size, keys, min_delta, patience):
    """Adam on cross-entropy; ends when the accuracy did not grow by min_delta for `patience` epochs. How many there were."""
    update, best, waited = torch.optim.Adam(learner, lr=QUICK["lr"], weight_decay=QUICK["weight_decay"]), -1.0, 0
    for epoch in range(1, epochs + 1):
        slow_training(learner, update, images, towards_labels(labels), epochs=1, batch_size=batch_size, rng=stream(0, *keys, epoch),
                      kernel_l2=QUICK["kernel_l2"])
        now = slow_accuracy(learner, validation)
        waited = 0 if now > best + min_delta else waited + 1
        best = now if waited == 0 else best
        if waited == patience:
            break
    return epoch


def slow_public_stage(fed, i, learner):
    order = stream(0, "transfer").permutation(len(fed.public.labels))
    held_out, kept = order[:len(order) // 10], order[len(order) // 10:]
    return slow_until_no_better(learner, fed.public.images[kept], fed.public.labels[kept],
                                Data(fed.public.images[held_out], fed.public.labels[held_out]), epochs=12, batch_size=6,
                                keys=("transfer public", i), min_delta=.005, patience=3)


@pytest.mark.parametrize("weights", [None, (2., 1., 0.)])
def test_fedmd_round_by_hand(weights):
    """Transfer and two rounds in plain Python: steps 0 to 5, a penalty in every loss, two Adams per party that live on."""
    fed, ids = joint(), range(3)
    rounds, rows = rows_of(fedmd.run, fed, **QUICK, consensus_weights=weights)
    parties = [slow_learner(fed.client_model(i, init=i)) for i in ids]
    adam = {"lr": QUICK["lr"], "weight_decay": QUICK["weight_decay"]}

    public_epochs = [slow_public_stage(fed, i, parties[i]) for i in ids]                # step 0
    assert [state.get("stage") for _, state in rounds[:3]] == ["public", "private", None]
    assert all(close_to(model_state, parties[i]) for i, model_state in enumerate(rounds[1][1]["models"]))
    private_epochs = [slow_until_no_better(parties[i], *fed.private[i], fed.validation, epochs=18, batch_size=3,
                                           keys=("transfer local", i), min_delta=.001, patience=10) for i in ids]
    assert min(public_epochs) < 12 and 10 < min(private_epochs) < 18                    # so that stopping early is tested
    start = [slow_accuracy(party, fed.test) for party in parties]

    digests, revisits = ([torch.optim.Adam(party, **adam) for party in parties] for _ in range(2))
    c = [w / sum(weights) for w in weights] if weights else [1 / 3] * 3
    for t in (0, 1, 2):
        if t > 0:
            images, labels = fed.public.images[rows[t - 1]], fed.public.labels[rows[t - 1]]      # step 1
            assert len(labels) == 7
            said = [slow_logits(party, images) for party in parties]                    # step 2: all, before anybody learns
            consensus = [[sum(c[i] * said[i][n][k] for i in ids) for k in range(5)] for n in range(7)]       # step 3
            for i in ids:
                slow_training(parties[i], digests[i], images, towards_consensus(consensus), epochs=2, batch_size=3,
                              rng=stream(0, "digest", t, i), kernel_l2=QUICK["kernel_l2"])       # step 4
                slow_training(parties[i], revisits[i], fed.private[i].images, towards_labels(fed.private[i].labels), epochs=2,
                              batch_size=2, rng=stream(0, "revisit", t, i), kernel_l2=QUICK["kernel_l2"])    # step 5
        metrics, state = rounds[2 + t]
        own = [slow_accuracy(party, fed.test) for party in parties]
        assert all(close_to(learner["model"], parties[i], atol=1e-4) for i, learner in enumerate(state["parties"]))
        assert metrics["accuracy"] == metrics["client_accuracy"] == pytest.approx(sum(own) / 3)
        assert [metrics[f"client_accuracy_{i}"] for i in ids] == pytest.approx(own)
        assert metrics["gain"] == pytest.approx(sum(own) / 3 - sum(start) / 3, abs=1e-7)
        public = [slow_accuracy(party, fed.public_test) for party in parties]
        assert metrics["client_accuracy_public_test"] == pytest.approx(sum(public) / 3)


def test_gain_is_since_the_transfer_also_after_resuming():
    rounds = list(fedmd.run(joint(), **{**BRIEF, "rounds": 4, "lr": 0.5}))
    start = rounds[2][0]["client_accuracy"]
    gains = [metrics["gain"] for metrics, _ in rounds[2:]]
    assert gains == pytest.approx([metrics["client_accuracy"] - start for metrics, _ in rounds[2:]]) and gains[0] == 0 != gains[-1]
    metrics, _ = last(fedmd.run(joint(), copy.deepcopy(rounds[4][1]), **{**BRIEF, "rounds": 4, "lr": 0.5}))
    assert metrics["gain"] == gains[-1]


@pytest.mark.parametrize("weights, j, heard", [((0., 2., 1.), 0, [1, 2]), ((1., 2., 5.), 0, [1, 2]), ((3., 1., 0.), 1, [0])])
def test_weights_stay_with_their_parties_when_one_is_not_finite(weights, j, heard):
    fed, said = joint(), []
    settings = {key: QUICK[key] for key in ("public_epochs", "public_batch_size", "local_epochs", "batch_size", "kernel_l2")}
    new_optimizer = partial(OPTIMIZERS["adam"], lr=QUICK["lr"], weight_decay=QUICK["weight_decay"])

    def spoil(uploads, ids, rows, t):
        said.append((uploads.clone(), rows))
        uploads[j] = math.nan
        return uploads
    *_, (_, before), (metrics, after) = fedmd.run(fed, **BRIEF, consensus_weights=weights, attack=spoil)
    [(uploads, rows)] = said
    expected = sum(weights[i] * uploads[i] for i in heard) / sum(weights[i] for i in heard)
    party = fedmd.digest_and_revisit(fed, 2, 1, before["parties"][2], rows, expected, new_optimizer=new_optimizer, **settings)
    assert metrics["bad_uploads"] == 1
    for name, w in party["model"].items():
        assert torch.allclose(after["parties"][2]["model"][name], w, atol=1e-5)


def test_where_only_parties_of_weight_zero_are_finite_there_is_no_digest():
    def spoil(uploads, ids, rows, t):
        return torch.cat([torch.full_like(uploads[:1], math.nan), uploads[1:]])
    _, state = last(fedmd.run(joint(), **BRIEF, consensus_weights=(1., 0., 0.), attack=spoil))
    _, alone = last(fedmd.run(joint(), **{**BRIEF, "public_epochs": 0}))
    assert same(state["parties"], alone["parties"])


def network_of(units):
    def make(num_classes=5):
        return nn.Sequential(nn.Flatten(), nn.Linear(4, units), nn.ReLU(), nn.Linear(units, num_classes))
    make.__name__ = f"units{units}"
    return make


def test_ten_parties_have_ten_networks():
    fed = joint(sizes=(4,) * 10, network=tuple(map(network_of, range(1, 11))))
    metrics, state = last(fedmd.run(fed, **BRIEF))
    own = [metrics[f"client_accuracy_{i}"] for i in range(10)]
    assert [len(party["model"]["1.bias"]) for party in state["parties"]] == list(range(1, 11))
    assert metrics["client_accuracy"] == pytest.approx(sum(own) / 10) and metrics["client_accuracy_max"] == max(own)
    assert metrics["bytes_up"] == metrics["bytes_down"] == 4 * 7 * 5 * 10 and metrics["bad_uploads"] == 0


# ------------------------------------------------------------------------------------------------------- the upper bound

POOLED = {**TRANSFER, "rounds": 2, "batch_size": 5, "weight_decay": 0.01, "kernel_l2": 0.02}


def test_pooled_is_public_training_and_then_epochs():
    """The public stage, then one Adam per party that lives on, over the private samples of all parties in one."""
    fed = joint()
    rounds = list(fedmd_pooled.run(fed, **POOLED))
    images = torch.cat([data.images for data in fed.private])
    labels = torch.cat([data.labels for data in fed.private])
    for i in range(3):
        learner = slow_learner(fed.client_model(i, init=i))
        slow_public_stage(fed, i, learner)
        update = torch.optim.Adam(learner, lr=0.05, weight_decay=0.01)
        for t in (0, 1, 2):
            if t > 0:
                slow_training(learner, update, images, towards_labels(labels), epochs=1, batch_size=5,
                              rng=stream(0, "pooled", t, i), kernel_l2=0.02)
            assert close_to(rounds[1 + t][1]["parties"][i]["model"], learner, atol=1e-4)


def test_every_network_learns_every_private_sample_once_a_round():
    fed, seen = joint(), []
    fed.augment = lambda images, rng: seen.append(images) or images
    run = fedmd_pooled.run(fed, **{**POOLED, "transfer_public_epochs": 1})
    next(run), next(run)
    for _ in range(2):
        seen.clear()
        next(run)
        learned = collections.Counter(image.numpy().tobytes() for image in torch.cat(seen))
        assert learned == {image.numpy().tobytes(): 3 for data in fed.private for image in data.images}
        assert len(learned) == 5 + 3 + 4


def test_pooled_exchanges_nothing_and_its_accuracy_is_the_parties_mean():
    rounds = list(fedmd_pooled.run(joint(), **{**POOLED, "transfer_public_epochs": 1}))
    assert [state["round"] for _, state in rounds] == [-1, 0, 1, 2] and rounds[0][0] is None
    for metrics, _ in rounds[1:]:
        assert metrics["bytes_up"] == metrics["bytes_down"] == 0 and metrics["accuracy"] == metrics["client_accuracy"]


def test_pooled_begins_as_fedmd_does():
    """The same weights after the same training on the public samples."""
    fed = joint()
    transfer = itertools.islice(fedmd.run(fed, **QUICK), 1, 2)
    pooled = itertools.islice(fedmd_pooled.run(fed, **POOLED), 1, 2)
    for (_, a), (_, b) in zip(transfer, pooled, strict=True):
        assert all(same(dict(x), dict(y["model"])) for x, y in zip(a["models"], b["parties"], strict=True))
