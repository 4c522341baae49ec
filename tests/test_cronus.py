"""Cronus: the robust mean of probabilities, sample by sample; whole rounds against plain Python."""
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from test_logits import close, slow_accuracy, slow_learner, slow_logits, slow_softmax, slow_training, towards_labels, towards_probs
from toys import federation, same

from algorithms import cronus
from algorithms.common import stream

LARGEST = torch.finfo(torch.float32).max
BOTH_BRANCHES = [3, 12]             # classes: of 8 clients the first takes the covariance, the second the Gram matrix


def probabilities(num_clients, num_samples, num_classes, seed=0):
    return torch.tensor(np.random.default_rng(seed).dirichlet(np.ones(num_classes), size=(num_clients, num_samples)))


def slow_robust_mean(vectors, malicious_fraction):
    """[M, N, C] -> ([N, C], the clients that are left for each sample). One sample after the other.

    Twice: the top eigenvector of the covariance of those who are left; the ceil(epsilon M / 2) farthest along it go, unless fewer
    than M / 2 + 1 stayed.
    """
    num_clients, means, everyone_left = len(vectors), [], []
    dropped = math.ceil(Fraction(str(malicious_fraction)) * num_clients / 2)
    for of_sample in np.asarray(vectors, dtype=float).swapaxes(0, 1):
        left = list(range(num_clients))
        for _ in range(2):
            if dropped == 0 or len(left) - dropped < num_clients / 2 + 1:
                break
            mean = sum(of_sample[k] for k in left) / len(left)
            covariance = sum(np.outer(of_sample[k] - mean, of_sample[k] - mean) for k in left) / len(left)
            values, columns = np.linalg.eigh(covariance)
            direction = columns[:, np.argmax(values)]
            left.sort(key=lambda k: float(direction @ (of_sample[k] - mean)) ** 2)
            left = left[:len(left) - dropped]
        means.append(sum(of_sample[k] for k in left) / len(left))
        everyone_left.append(sorted(left))
    return np.array(means), everyone_left


# ------------------------------------------------------------------------------------------------------------ by the loop

SIZES = [(8, 3), (8, 8), (8, 9), (8, 30), (5, 2), (5, 6), (16, 10), (3, 4), (2, 2), (1, 5)]


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.25, 0.3, 0.49])
@pytest.mark.parametrize("num_clients, num_classes", SIZES)
def test_robust_mean_by_slow_loop(num_clients, num_classes, fraction):
    """Up to as many classes as clients by the covariance, beyond by the Gram matrix."""
    probs = probabilities(num_clients, 12, num_classes)
    expected, _ = slow_robust_mean(probs, fraction)
    assert np.allclose(cronus.robust_mean(probs, fraction), expected, atol=1e-12)
    assert np.allclose(cronus.robust_mean(probs.float(), fraction), expected, atol=1e-6)


@pytest.mark.parametrize("num_classes", [2, 3, 8])
def test_both_branches_agree(num_classes):
    """Classes that nobody believes in change nothing but the branch."""
    probs = probabilities(8, 20, num_classes)
    padded = torch.cat([probs, torch.zeros(8, 20, 9)], dim=-1)
    few, many = (cronus.robust_mean(p, 0.3) for p in (probs, padded))
    assert torch.allclose(many[:, :num_classes], few, atol=1e-12) and many[:, num_classes:].eq(0).all()
    assert not torch.allclose(few, probs.mean(0), atol=1e-3)


@pytest.mark.parametrize("shape", [(1, 4, 3), (5, 4, 3), (5, 1, 2), (5, 4, 9)])
def test_with_no_malicious_fraction_it_is_the_mean_exactly(shape):
    probs = torch.randn(shape).softmax(-1)
    assert torch.equal(cronus.robust_mean(probs, 0), probs.mean(0)) and torch.equal(cronus.robust_mean(probs, 0.0), probs.mean(0))


def test_two_passes_by_hand():
    """On a line: 0, 1, 2, 3, 4, 30 and 100, one left out each time. Of mean 20 it is 100; of the rest's mean 40 / 6 it is 30."""
    line = torch.tensor([0., 1., 2., 3., 4., 30., 100.])
    probs = torch.stack([line, torch.zeros(7)], dim=-1)[:, None]
    assert math.ceil(0.2 * 7 / 2) == 1
    assert cronus.robust_mean(probs, 0.2)[0].tolist() == [(0 + 1 + 2 + 3 + 4) / 5, 0]


def test_the_second_pass_has_a_mean_and_a_direction_of_its_own():
    """First the client far off along the first class goes, then the one along the second, which was not conspicuous before."""
    probs = torch.tensor([[[1., 1.]], [[1., -1.]], [[-1., 1.]], [[-1., -1.]], [[0., 0.]], [[90., 0.]], [[0., 40.]]])
    expected = torch.tensor([(1 + 1 - 1 - 1 + 0) / 5, (1 - 1 + 1 - 1 + 0) / 5])
    assert torch.allclose(cronus.robust_mean(probs, 0.2)[0], expected, atol=1e-6)


@pytest.mark.parametrize("num_clients, fraction, kept", [
    (5, .2, 4),       # 1 each: 4 are at least 3.5, 3 are not
    (4, .2, 3),       # 1 each: 3 are at least 3, 2 are not
    (3, .2, 3),       # 1 each: 2 are not 2.5
    (2, .49, 2), (1, .49, 1),
    (6, .1, 4),       # 1 each: 5, and 4, which is 6 / 2 + 1
    (16, .49, 12),    # ceil(3.92) = 4 each: 12 are at least 9, 8 are not
    (16, .1, 14),     # ceil(.8) = 1 each
    (16, 1 / 16, 14), (16, 2 / 16, 14),
    (50, .28, 36),    # 7 each: .28 x 50 / 2 is 7, though not in floating point
])
@pytest.mark.parametrize("num_classes", [2, 60])
def test_a_pass_that_leaves_fewer_than_a_half_and_one_is_not_made(num_clients, fraction, kept, num_classes):
    """Those who are to go lie far out on both sides, so the mean tells whether all of them went, and nobody else."""
    line = [k / 10 for k in range(kept)] + [(-1) ** j * (1000 + j) for j in range(num_clients - kept)]
    probs = torch.tensor(line, dtype=torch.float64)[:, None, None] * torch.eye(num_classes, dtype=torch.float64)[0]
    assert cronus.robust_mean(probs, fraction)[0, 0].item() == pytest.approx(sum(k / 10 for k in range(kept)) / kept)


# ------------------------------------------------------------------------------------------------------------- properties

@pytest.mark.parametrize("num_classes", BOTH_BRANCHES)
def test_one_far_liar_is_left_out_on_each_sample_it_lies_on(num_classes):
    """With one other client in its second pass; what is left lies among the honest, and the other samples are as without a lie."""
    honest = 0.5 * probabilities(8, 6, num_classes) + 0.5 / num_classes
    lying = honest.clone()
    lying[3, [0, 2, 5]] = 50 * torch.eye(num_classes, dtype=torch.float64)[0]
    _, left = slow_robust_mean(lying, 0.1)
    mean = cronus.robust_mean(lying, 0.1)
    assert all(3 not in left[n] for n in (0, 2, 5))
    for n in range(6):
        assert torch.allclose(mean[n], lying[left[n], n].mean(0), atol=1e-12)
    assert torch.equal(mean[[1, 3, 4]], cronus.robust_mean(honest, 0.1)[[1, 3, 4]])
    assert (mean <= honest.amax(0) + 1e-12).all() and (mean >= honest.amin(0) - 1e-12).all()


@pytest.mark.parametrize("num_classes", BOTH_BRANCHES)
def test_among_clients_that_agree_two_liars_are_not_heard(num_classes):
    truth = probabilities(1, 6, num_classes)
    probs = truth.repeat(8, 1, 1)
    probs[0], probs[5] = probabilities(2, 6, num_classes, seed=1)
    assert torch.allclose(cronus.robust_mean(probs, 0.2), truth[0], atol=1e-12)
    assert not torch.allclose(probs.mean(0), truth[0], atol=1e-2)


@pytest.mark.parametrize("num_classes", BOTH_BRANCHES)
def test_robust_mean_of_identical_clients_is_theirs(num_classes):
    """Whatever it is: not brought to the simplex."""
    theirs = torch.randn(1, 6, num_classes).double() * 3
    for fraction in (0, 0.1, 0.3, 0.49):
        assert torch.allclose(cronus.robust_mean(theirs.repeat(8, 1, 1), fraction), theirs[0], atol=1e-12)


@pytest.mark.parametrize("num_classes", BOTH_BRANCHES)
def test_the_order_of_clients_samples_and_classes_does_not_matter(num_classes):
    probs, rng = probabilities(8, 6, num_classes), np.random.default_rng(1)
    expected = cronus.robust_mean(probs, 0.3)
    samples, classes = rng.permutation(6), rng.permutation(num_classes)
    assert torch.allclose(cronus.robust_mean(probs[rng.permutation(8)], 0.3), expected, atol=1e-12)
    assert torch.allclose(cronus.robust_mean(probs[:, samples], 0.3), expected[samples], atol=1e-12)
    assert torch.allclose(cronus.robust_mean(probs[..., classes], 0.3), expected[:, classes], atol=1e-12)


@pytest.mark.parametrize("num_classes", BOTH_BRANCHES)
def test_a_shift_and_a_scale_of_all_vectors_pass_through(num_classes):
    probs, shift = probabilities(8, 6, num_classes), torch.randn(6, num_classes).double()
    expected = cronus.robust_mean(probs, 0.3)
    assert torch.allclose(cronus.robust_mean(probs + shift, 0.3), expected + shift, atol=1e-10)
    assert torch.allclose(cronus.robust_mean(1e-3 * probs, 0.3), 1e-3 * expected, atol=1e-12)


def test_robust_mean_changes_no_input():
    probs = torch.rand(5, 4, 3)
    before = probs.clone()
    cronus.robust_mean(probs, 0.3)
    assert same(probs, before)


# ------------------------------------------------------------------------------------------------------------------ edges

@pytest.mark.parametrize("shape", [(1, 1, 2), (2, 1, 7), (5, 1, 2), (5, 1, 9), (5, 3, 1), (5, 0, 3), (5, 0, 9)])
def test_edge_sizes(shape):
    mean = cronus.robust_mean(torch.rand(shape), 0.3)
    assert mean.shape == shape[1:] and torch.isfinite(mean).all()


@pytest.mark.parametrize("num_classes", BOTH_BRANCHES)
@pytest.mark.parametrize("huge", [1e4, 1e30, -1e30, LARGEST, -LARGEST])
def test_a_liar_with_huge_numbers_is_left_out(num_classes, huge):
    """Their squares do not overflow, nor do they make the others' differences vanish in the second pass."""
    probs = probabilities(8, 6, num_classes).float()
    lying = probs.clone()
    lying[2] = huge * torch.eye(num_classes)[1]
    expected, left = slow_robust_mean(np.where(lying.abs() > 1, 1e9 * lying.sign(), lying), 0.1)
    assert all(2 not in of_sample for of_sample in left)
    assert np.allclose(cronus.robust_mean(lying, 0.1), expected, atol=1e-5)


@pytest.mark.parametrize("num_classes", BOTH_BRANCHES)
def test_several_liars_with_the_largest_numbers_do_not_take_the_run_down(num_classes):
    """Finite numbers whose sum is not."""
    probs = probabilities(8, 6, num_classes).float()
    honest = probs[[0, 1, 3, 4, 5, 7]].mean(0)                                          # ceil(.49 x 8 / 2) = 2 are left out, once
    probs[2] = probs[6] = LARGEST * torch.eye(num_classes)[1]
    assert torch.allclose(cronus.robust_mean(probs, 0.49), honest, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------- whole rounds

def test_cronus_round_by_hand():
    """Two rounds in plain Python: private labels, all public samples, two passes of the filter, the clients; AMSGrad lives on."""
    fed, ids = federation(sizes=(5, 3, 4, 6, 2, 4, 3, 5)), range(8)
    clients = [slow_learner(fed.client_model(i, init=i)) for i in ids]
    updates = [torch.optim.Adam(client, lr=0.05, weight_decay=0.01, amsgrad=True) for client in clients]
    (_, start), *rounds = cronus.run(fed, rounds=2, local_epochs=2, public_epochs=1, batch_size=2, lr=0.05, weight_decay=0.01,
                                     malicious_fraction=0.2)
    assert start["round"] == 0
    for t, (metrics, state) in enumerate(rounds, start=1):
        for i in ids:
            slow_training(clients[i], updates[i], fed.private[i].images, towards_labels(fed.private[i].labels), epochs=2,
                          batch_size=2, rng=stream(0, "local", t, i))
        private = [slow_accuracy(client, fed.test) for client in clients]
        probs = [[slow_softmax(z) for z in slow_logits(client, fed.public.images)] for client in clients]
        target, left = slow_robust_mean(probs, 0.2)
        assert all(len(of_sample) == 6 for of_sample in left) and len(set(map(str, left))) > 1       # not the same for every sample
        for i in ids:
            slow_training(clients[i], updates[i], fed.public.images, towards_probs(target.tolist()), epochs=1, batch_size=2,
                          rng=stream(0, "public", t, i))
        own = [slow_accuracy(client, fed.test) for client in clients]
        assert all(close(state["clients"][i]["model"], clients[i], atol=1e-4) for i in ids)
        assert metrics["accuracy"] == metrics["client_accuracy"] == pytest.approx(sum(own) / 8)
        assert metrics["client_accuracy_private"] == pytest.approx(sum(private) / 8)


def test_public_labels_are_not_needed():
    assert cronus.PUBLIC == "unlabelled" and federation().public.labels is None
