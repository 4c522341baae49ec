"""Cronus: the robust mean of probabilities, sample by sample; whole rounds against plain Python."""
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from test_dsfl import QUICK, agree, slow_rounds
from toys import federation, rounds

from algorithms import cronus

LARGEST = torch.finfo(torch.float32).max


def probabilities(num_clients, num_samples, num_classes, seed=0):
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.dirichlet(np.ones(num_classes), size=(num_clients, num_samples)))


def slow_robust_mean(vectors, malicious_fraction):
    """[M, N, C] -> ([N, C], the clients that are left for each sample). One sample after the other.

    Twice: the top eigenvector of the covariance of those who are left; the ceil(epsilon M / 2)
    farthest along it go, unless fewer than M / 2 + 1 stayed.
    """
    num_clients, means, everyone_left = len(vectors), [], []
    dropped = math.ceil(Fraction(str(malicious_fraction)) * num_clients / 2)
    for of_sample in np.asarray(vectors, dtype=float).swapaxes(0, 1):
        left = list(range(num_clients))
        for _ in range(2):
            if dropped == 0 or len(left) - dropped < num_clients / 2 + 1:
                break
            mean = sum(of_sample[k] for k in left) / len(left)
            covariance = sum(np.outer(of_sample[k] - mean, of_sample[k] - mean) for k in left)
            values, columns = np.linalg.eigh(covariance / len(left))
            direction = columns[:, np.argmax(values)]
            left.sort(key=lambda k: float(direction @ (of_sample[k] - mean)) ** 2)
            left = left[:len(left) - dropped]
        means.append(sum(of_sample[k] for k in left) / len(left))
        everyone_left.append(sorted(left))
    return np.array(means), everyone_left


@pytest.mark.parametrize("num_clients, num_classes", [
    (8, 3), (8, 8), (8, 9), (8, 30), (5, 2), (5, 6), (16, 10), (3, 4), (2, 2), (1, 5)])
def test_robust_mean_by_slow_loop(num_clients, num_classes):
    probs = probabilities(num_clients, 12, num_classes)
    assert torch.equal(cronus.robust_mean(probs.float(), 0), probs.float().mean(0))
    for fraction in (0.0, 0.1, 0.25, 0.3, 0.49):
        expected, _ = slow_robust_mean(probs, fraction)
        assert np.allclose(cronus.robust_mean(probs, fraction), expected, atol=1e-12)
        assert np.allclose(cronus.robust_mean(probs.float(), fraction), expected, atol=1e-6)


def test_two_passes_by_hand():
    """On a line: 0, 1, 2, 3, 4, 30 and 100; ceil(.2 x 7 / 2) = 1 is left out each time. Farthest
    from the mean 20 is 100; from the rest's mean 40 / 6 it is 30. Nothing is projected."""
    line = torch.tensor([0., 1., 2., 3., 4., 30., 100.])
    probs = torch.stack([line, torch.zeros(7)], dim=-1)[:, None]
    assert cronus.robust_mean(probs, 0.2)[0].tolist() == [(0 + 1 + 2 + 3 + 4) / 5, 0]


@pytest.mark.parametrize("num_clients, fraction, kept", [
    (5, .2, 4), (3, .2, 3),      # 1 each: 4 are at least 3.5, 3 are not; 2 are not 2.5
    (4, .2, 3),       # 1 each: 3 are at least 3, 2 are not
    (6, .1, 4),       # 1 each: 5, and 4, which is 6 / 2 + 1
    (16, .49, 12),    # ceil(3.92) = 4 each: 12 are at least 9, 8 are not
    (16, .1, 14), (16, 1 / 16, 14), (16, 2 / 16, 14), (2, .49, 2), (1, .49, 1),
    (16, .3, 10), (16, .4, 12), (5, .4, 4), (5, .45, 5),     # a larger fraction leaves out fewer
    (50, .28, 36),    # 7 each: .28 x 50 / 2 is 7, though not in floating point
])
def test_no_pass_leaves_fewer_than_half_plus_one(num_clients, fraction, kept):
    """Those who are to go lie far out on both sides: the mean tells whether just they went."""
    near, far = [k / 10 for k in range(kept)], [1000, -1001, 1002, -1003, 1004, -1005, 1006]
    for num_classes in (2, 60):
        probs = torch.zeros(num_clients, 1, num_classes)
        probs[:, 0, 0] = torch.tensor(near + (2 * far)[:num_clients - kept])
        assert cronus.robust_mean(probs, fraction)[0, 0].item() == pytest.approx(sum(near) / kept)


def test_of_clients_that_are_equally_far_one_goes():
    """-1, 0, 0, 0, 1 are left with four: the mean is .25 or -.25, by the order of the clients."""
    for line in ([-1., 0., 0., 0., 1.], [0., 1., 0., -1., 0.]):
        probs = torch.stack([torch.tensor(line), torch.zeros(5)], dim=-1)[:, None]
        assert cronus.robust_mean(probs, 0.2)[0].abs().tolist() == [0.25, 0]


@pytest.mark.parametrize("num_classes", [3, 12])
def test_liars_with_the_largest_numbers_are_left_out(num_classes):
    """No square nor sum of them is infinite, nor do they hide the others' differences from the
    second pass. With a fraction of .49, ceil(.49 x 8 / 2) = 2 are left out, once."""
    probs = probabilities(8, 6, num_classes).float()
    for huge in (1e30, LARGEST, -LARGEST):
        probs[2] = huge * torch.eye(num_classes)[1]
        expected, _ = slow_robust_mean(probs.clamp(-1e9, 1e9), 0.1)
        assert np.allclose(cronus.robust_mean(probs, 0.1), expected, atol=1e-5)
    honest, probs[6] = probs[[0, 1, 3, 4, 5, 7]].mean(0), probs[2]
    assert torch.allclose(cronus.robust_mean(probs, 0.49), honest, atol=1e-6)


def test_cronus_round_by_hand():
    """Towards what two passes of the filter leave of all clients."""
    fed = federation(sizes=(5, 3, 4, 6, 2, 4, 3, 5))
    assert cronus.ALGORITHM.public == "unlabeled" and fed.public.labels is None
    _, *found = rounds(cronus, fed, **QUICK, malicious_fraction=0.2)
    everyone_left = []

    def mean_of_left(probs):
        means, left = slow_robust_mean(probs, 0.2)
        everyone_left.extend(map(tuple, left))
        return means.tolist()
    for (metrics, state), slow in zip(found, slow_rounds(fed, mean_of_left), strict=True):
        agree(fed, metrics, state, slow)
    assert set(map(len, everyone_left)) == {6} and len(set(everyone_left)) > 1
