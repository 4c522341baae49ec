"""DS-FL: entropy reduction of the mean probabilities; whole rounds against plain Python."""
import math

import numpy as np
import pytest
import torch
from toys import (close, federation, linear, slow_accuracy, slow_learner, slow_logits, slow_softmax,
                  slow_training, towards_labels, towards_probs)

from algorithms import dsfl
from federation import stream

# ------------------------------------------------------------------------------ entropy reduction


@pytest.mark.parametrize("temperature", [.1, 7.])
def test_era_of_a_uniform_mean_stays_uniform(temperature):
    """Also if no client's own probabilities are uniform."""
    mean = dsfl.entropy_reduction(torch.eye(4)[:, None].double(), temperature)
    assert mean[0].tolist() == pytest.approx([1 / 4] * 4, abs=1e-12)


def test_era_of_a_one_hot_mean_is_near_one_hot_by_hand():
    """Ten classes at temperature .1: e^10 of e^10 + 9 e^0, which is .9996."""
    right = math.exp(1 / .1) / (math.exp(1 / .1) + 9)
    expected = [right if c == 3 else (1 - right) / 9 for c in range(10)]
    mean = dsfl.entropy_reduction(torch.eye(10).double()[None, [3]])
    assert mean[0].tolist() == pytest.approx(expected, abs=1e-12) and round(right, 4) == .9996


def test_era_of_two_likely_classes_of_ten_by_hand():
    """The mean of (.8, .2, 0 ...) and (.4, .6, 0 ...) is (.6, .4, 0 ...): e^6, e^4 and 8 e^0."""
    probs = torch.zeros(2, 1, 10).double()
    probs[:, 0, :2] = torch.tensor([[.8, .2], [.4, .6]])
    total = math.exp(6) + math.exp(4) + 8
    expected = [math.exp(6) / total, math.exp(4) / total] + [1 / total] * 8
    assert dsfl.entropy_reduction(probs)[0].tolist() == pytest.approx(expected, rel=1e-5)


def test_era_sharpens_the_mean_and_not_each_client():
    """(.8, .2) and (.4, .6): e^6 of e^6 + e^4, .88. Each client sharpened, then the mean: .56."""
    mean = dsfl.entropy_reduction(torch.tensor([[[.8, .2]], [[.4, .6]]]))
    assert mean[0, 0].item() == pytest.approx(1 / (1 + math.exp((.4 - .6) / .1)), abs=1e-6)


def test_era_by_slow_loop():
    probs = np.random.default_rng(0).dirichlet(np.ones(3), size=(4, 6))              # [M, N, C]
    expected = [slow_softmax([sum(client[n][c] for client in probs) / 4 / .3 for c in range(3)])
                for n in range(6)]
    assert np.allclose(dsfl.entropy_reduction(torch.tensor(probs), .3), expected, atol=1e-12)


# ------------------------------------------------------------------------------------ whole rounds

@pytest.mark.parametrize("how", [{}, {"temperature": 0.5},
                                 {"aggregation": "mean", "temperature": 0.5}])
def test_dsfl_round_by_hand(how):
    """Two rounds in plain Python: private labels, the sharpened mean of all clients on all public
    samples, then server and clients towards it; AMSGrad lives on. The mean has no temperature."""
    fed, ids = federation(sizes=(5, 3, 4), server=linear), range(3)
    public, settings = fed.public.images, {"weight_decay": 0.01, "amsgrad": True}
    assert dsfl.PUBLIC == "unlabeled" and fed.public.labels is None
    clients = [slow_learner(fed.client_model(i, init=i)) for i in ids]
    server = slow_learner(fed.server_model())
    updates = [torch.optim.Adam(client, lr=0.05, **settings) for client in clients]
    server_update = torch.optim.Adam(server, lr=0.03, **settings)
    (_, start), *rounds = dsfl.run(
        fed, rounds=2, local_epochs=2, public_epochs=1, server_epochs=2, batch_size=2,
        server_batch_size=3, lr=0.05, server_lr=0.03, weight_decay=0.01, **how)
    assert start["round"] == 0 and len(rounds) == 2
    for t, (metrics, state) in enumerate(rounds, start=1):
        for i in ids:
            images, labels = fed.private[i]
            slow_training(clients[i], updates[i], images, towards_labels(labels),
                          epochs=2, batch_size=2, rng=stream(0, "local", t, i))
        private = [slow_accuracy(client, fed.test) for client in clients]
        probs = [[slow_softmax(z) for z in slow_logits(client, public)] for client in clients]
        target = [[sum(probs[i][n][c] for i in ids) / 3 for c in range(3)] for n in range(8)]
        if how.get("aggregation") != "mean":
            target = [slow_softmax([p / how.get("temperature", 0.1) for p in row])
                      for row in target]
        slow_training(server, server_update, public, towards_probs(target),
                      epochs=2, batch_size=3, rng=stream(0, "server", t))
        for i in ids:
            slow_training(clients[i], updates[i], public, towards_probs(target),
                          epochs=1, batch_size=2, rng=stream(0, "public", t, i))
        own = [slow_accuracy(client, fed.test) for client in clients]
        assert all(close(state["clients"][i]["model"], clients[i], atol=1e-4) for i in ids)
        assert close(state["server"]["model"], server, atol=1e-4)
        assert metrics["accuracy"] == pytest.approx(sum(own) / 3)
        assert metrics["client_accuracy_distilled"] == metrics["accuracy"]
        assert metrics["client_accuracy_private"] == pytest.approx(sum(private) / 3)
        assert metrics["server_accuracy"] == pytest.approx(slow_accuracy(server, fed.test))
        assert metrics["bytes_up"] == metrics["bytes_down"] == 4 * 8 * 3 * 3
        assert metrics["bytes_down_indices"] == metrics["bad_uploads"] == 0
