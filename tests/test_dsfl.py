"""DS-FL: entropy reduction of the mean probabilities, whole rounds against plain Python."""
import math

import numpy as np
import pytest
import torch
from test_logits import close, slow_accuracy, slow_learner, slow_logits, slow_softmax, slow_training, towards_labels, towards_probs
from toys import federation, linear, same

from algorithms import dsfl
from algorithms.common import seeded, stream

QUICK = {"rounds": 2, "local_epochs": 2, "public_epochs": 1, "server_epochs": 2, "batch_size": 2, "server_batch_size": 3,
         "lr": 0.05, "server_lr": 0.03, "weight_decay": 0.01}


def entropy_of(probs):
    return -(probs * probs.log()).sum(-1)


# ----------------------------------------------------------------------------------------------------- entropy reduction

@pytest.mark.parametrize("temperature", [.1, 1., 7.])
def test_era_of_a_uniform_mean_stays_uniform(temperature):
    """Also if no client's own probabilities are uniform."""
    probs = torch.eye(4)[:, None].double()
    assert torch.allclose(dsfl.entropy_reduction(probs, temperature), torch.full((1, 4), 1 / 4).double())


def test_era_of_a_one_hot_mean_is_nearly_one_hot_by_hand():
    """Ten classes at temperature .1: e^10 of e^10 + 9 e^0, which is .9996; twice through it or on logits it would be another."""
    probs = torch.eye(10).double()[None, [3]]
    right = math.exp(1 / .1) / (math.exp(1 / .1) + 9)
    expected = [right if c == 3 else (1 - right) / 9 for c in range(10)]
    assert dsfl.entropy_reduction(probs)[0].tolist() == pytest.approx(expected, abs=1e-12)
    assert round(right, 4) == .9996


def test_era_of_two_likely_classes_of_ten_by_hand():
    """(.6, .4, 0 ...) becomes e^6 and e^4 of e^6 + e^4 + 8: (.866, .117, ...)."""
    probs = torch.zeros(2, 1, 10).double()
    probs[0, 0, :2], probs[1, 0, :2] = torch.tensor([.8, .2]), torch.tensor([.4, .6])
    total = math.exp(.6 / .1) + math.exp(.4 / .1) + 8
    expected = [math.exp(6) / total, math.exp(4) / total] + [1 / total] * 8
    assert dsfl.entropy_reduction(probs)[0].tolist() == pytest.approx(expected, rel=1e-5)
    assert [round(x, 3) for x in expected[:2]] == [.866, .117]


def test_era_sharpens_the_mean_of_the_probabilities_not_each_client():
    """(.8, .2) and (.4, .6): e^6 of e^6 + e^4. The mean of the clients' own softmaxes at .1 would be .56, of powers p^10 .51."""
    mean = dsfl.entropy_reduction(torch.tensor([[[.8, .2]], [[.4, .6]]]))
    assert mean[0, 0].item() == pytest.approx(1 / (1 + math.exp((.4 - .6) / .1)), abs=1e-6)


def test_era_by_slow_loop():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(3), size=(4, 6))                                      # [M, N, C]
    expected = [slow_softmax([sum(probs[m, n, c] for m in range(4)) / 4 / .3 for c in range(3)]) for n in range(6)]
    assert np.allclose(dsfl.entropy_reduction(torch.tensor(probs), .3), expected, atol=1e-12)


def test_era_gives_probabilities_of_less_entropy_at_a_tenth_and_in_the_same_order():
    probs = torch.randn(3, 50, 10).double().softmax(-1)
    mean, reduced = probs.mean(0), dsfl.entropy_reduction(probs)
    assert torch.allclose(reduced.sum(-1), torch.ones(50).double()) and (reduced >= 0).all()
    assert torch.equal(reduced.argsort(-1), mean.argsort(-1))
    sharp = torch.tensor([[.7, .2, .1], [.5, .4, .1]]).double()[None]
    assert (entropy_of(dsfl.entropy_reduction(sharp)) < entropy_of(sharp[0])).all()
    assert (entropy_of(dsfl.entropy_reduction(sharp, 1.)) > entropy_of(sharp[0])).all()          # at 1 it flattens: no power of p


def test_era_follows_samples_and_classes_and_ignores_the_order_of_clients():
    probs, order, classes = torch.rand(3, 5, 4).double(), torch.tensor([3, 1, 4, 0, 2]), torch.tensor([1, 3, 0, 2])
    expected = dsfl.entropy_reduction(probs)
    assert torch.allclose(dsfl.entropy_reduction(probs[[2, 0, 1]]), expected)
    assert torch.allclose(dsfl.entropy_reduction(probs[:, order][..., classes]), expected[order][:, classes])


def test_era_takes_any_numbers_as_an_attacker_may_send_them():
    """No projection onto the simplex: what it gives is a distribution in any case."""
    reduced = dsfl.entropy_reduction(torch.tensor([[[1e4, -1e4, 0.], [-3., 2., .5]]]))
    assert torch.isfinite(reduced).all() and torch.allclose(reduced.sum(-1), torch.ones(2))
    assert reduced[0].tolist() == [1, 0, 0]


@pytest.mark.parametrize("shape", [(1, 1, 2), (1, 6, 3), (7, 1, 2)])
def test_era_of_one_client_one_sample_two_classes(shape):
    probs = torch.rand(shape).softmax(-1)
    assert torch.allclose(dsfl.entropy_reduction(probs), (probs.mean(0) * 10).softmax(-1), atol=1e-6)


def test_era_changes_no_input():
    probs = torch.rand(3, 4, 5)
    before = probs.clone()
    dsfl.entropy_reduction(probs)
    assert same(probs, before)


# ---------------------------------------------------------------------------------------------------------- whole rounds

def with_linear_server(**changes):
    def server_model(init=0):
        with seeded(0, "server init", init):
            return linear()
    return federation(sizes=(5, 3, 4), server_model=server_model, **changes)


@pytest.mark.parametrize("how", [{}, {"temperature": 0.5}, {"aggregation": "mean"}, {"aggregation": "mean", "temperature": 0.5}])
def test_dsfl_round_by_hand(how):
    """Two rounds in plain Python: private labels, the sharpened mean of all public samples, server, clients; AMSGrad lives on."""
    fed, ids = with_linear_server(), range(3)
    public, settings = fed.public.images, {"weight_decay": 0.01, "amsgrad": True}
    clients, server = [slow_learner(fed.client_model(i, init=i)) for i in ids], slow_learner(fed.server_model())
    updates = [torch.optim.Adam(client, lr=0.05, **settings) for client in clients]
    server_update = torch.optim.Adam(server, lr=0.03, **settings)
    (_, start), *rounds = dsfl.run(fed, **QUICK, **how)
    assert start["round"] == 0
    for t, (metrics, state) in enumerate(rounds, start=1):
        for i in ids:
            slow_training(clients[i], updates[i], fed.private[i].images, towards_labels(fed.private[i].labels), epochs=2,
                          batch_size=2, rng=stream(0, "local", t, i))
        private = [slow_accuracy(client, fed.test) for client in clients]
        probs = [[slow_softmax(z) for z in slow_logits(client, public)] for client in clients]
        target = [[sum(probs[i][n][c] for i in ids) / 3 for c in range(3)] for n in range(8)]
        if how.get("aggregation") != "mean":
            target = [slow_softmax([p / how.get("temperature", 0.1) for p in row]) for row in target]
        slow_training(server, server_update, public, towards_probs(target), epochs=2, batch_size=3, rng=stream(0, "server", t))
        for i in ids:
            slow_training(clients[i], updates[i], public, towards_probs(target), epochs=1, batch_size=2,
                          rng=stream(0, "public", t, i))
        own = [slow_accuracy(client, fed.test) for client in clients]
        assert all(close(state["clients"][i]["model"], clients[i], atol=1e-4) for i in ids)
        assert close(state["server"]["model"], server, atol=1e-4)
        assert metrics["accuracy"] == metrics["client_accuracy"] == pytest.approx(sum(own) / 3)
        assert metrics["client_accuracy_private"] == pytest.approx(sum(private) / 3)
        assert metrics["server_accuracy"] == pytest.approx(slow_accuracy(server, fed.test))


def test_the_server_makes_its_passes_and_changes_no_client():
    """Without them it stays as it began; the clients learn from one another all the same."""
    idle, busy = (list(dsfl.run(with_linear_server(), **{**QUICK, "server_epochs": epochs})) for epochs in (0, 3))
    assert same(dict(idle[-1][1]["server"]["model"]), dict(idle[0][1]["server"]["model"]))
    assert not same(dict(busy[-1][1]["server"]["model"]), dict(idle[0][1]["server"]["model"]))
    assert same(idle[-1][1]["clients"], busy[-1][1]["clients"])


def test_public_labels_are_not_needed():
    assert dsfl.PUBLIC == "unlabelled" and with_linear_server().public.labels is None
