"""DS-FL: entropy reduction of the mean probabilities; rounds against plain Python."""
import math
from functools import partial

import pytest
import torch
from slow import (close, slow_accuracy, slow_learner, slow_logits, slow_softmax, slow_training,
                  towards_labels, towards_probs)
from toys import Change, federation, last, linear, rounds

from algorithms import cronus, dsfl
from federation import make_rng


def test_era_of_a_one_hot_mean_is_near_one_hot_by_hand():
    """Ten classes at temperature .1: e^10 of e^10 + 9 e^0, which is .9996."""
    right = math.exp(1 / .1) / (math.exp(1 / .1) + 9)
    expected = [right if c == 3 else (1 - right) / 9 for c in range(10)]
    mean = dsfl.entropy_reduction(torch.eye(10).double()[None, [3]], temperature=.1)
    assert mean[0].tolist() == pytest.approx(expected, abs=1e-12) and round(right, 4) == .9996


QUICK = {"rounds": 2, "local_epochs": 2, "public_epochs": 1, "batch_size": 2, "lr": 0.05,
         "weight_decay": 0.01}
amsgrad = partial(torch.optim.Adam, weight_decay=0.01, amsgrad=True)


def slow_rounds(fed, target_of):
    """Two rounds of private training, then of training towards target_of(probs [M][N][C]): yields
    (clients, target, their accuracy after the first, after the second). AMSGrad lives on."""
    public, ids = fed.public.images, range(len(fed.private))
    clients = [slow_learner(fed.client_model(i, init=i)) for i in ids]
    updates = [amsgrad(client, lr=0.05) for client in clients]
    for t in (1, 2):
        for i, (images, labels) in enumerate(fed.private):
            slow_training(clients[i], updates[i], images, towards_labels(labels),
                          epochs=2, batch_size=2, rng=make_rng(0, "local", t, i))
        private = sum(slow_accuracy(client, fed.test) for client in clients) / len(ids)
        target = target_of([[slow_softmax(z) for z in slow_logits(c, public)] for c in clients])
        for i in ids:
            slow_training(clients[i], updates[i], public, towards_probs(target),
                          epochs=1, batch_size=2, rng=make_rng(0, "public", t, i))
        own = sum(slow_accuracy(client, fed.test) for client in clients) / len(ids)
        yield clients, target, private, own


def agree(fed, metrics, state, slow):
    """What a round leaves of the clients, against the slow version."""
    clients, _, private, own = slow
    assert [*state["clients"]] == [*range(len(clients))]
    for i, client in enumerate(clients):
        assert close(state["clients"][i]["model"], client, atol=1e-4)
    assert metrics["accuracy"] == pytest.approx(own)
    assert metrics["client_accuracy_private"] == pytest.approx(private)
    assert metrics["bytes_up"] == metrics["bytes_down"] == 4 * 8 * 3 * len(clients)
    assert metrics["bytes_down_indices"] == metrics["bad_uploads"] == 0


@pytest.mark.parametrize("how", [{}, {"temperature": 0.5},
                                 {"aggregation": "mean", "temperature": 0.5}])
def test_dsfl_round_by_hand(how):
    """Server and clients learn towards the sharpened mean, which has no temperature as "mean"."""
    fed = federation(sizes=(5, 3, 4), server=linear)
    assert dsfl.ALGORITHM.public == "unlabeled" and fed.public.labels is None

    def mean(probs):
        of_sample = [[sum(p) / 3 for p in zip(*rows)] for rows in zip(*probs)]
        return of_sample if "aggregation" in how else [
            slow_softmax([p / how.get("temperature", 0.1) for p in row]) for row in of_sample]
    server = slow_learner(fed.server_model())
    server_update = amsgrad(server, lr=0.03)
    _, *found = rounds(dsfl, fed, **QUICK, server_epochs=2, server_batch_size=3, server_lr=0.03,
                       **how)
    for (metrics, state), slow in zip(found, slow_rounds(fed, mean), strict=True):
        agree(fed, metrics, state, slow)
        slow_training(server, server_update, fed.public.images, towards_probs(slow[1]),
                      epochs=2, batch_size=3, rng=make_rng(0, "server", state["round"]))
        assert close(state["server"]["model"], server, atol=1e-4)
        assert metrics["server_accuracy"] == pytest.approx(slow_accuracy(server, fed.test))


@pytest.mark.parametrize("module", [dsfl, cronus])
@pytest.mark.parametrize("num_bad", [3, 2])
def test_a_round_without_a_usable_upload_has_no_download(module, num_bad):
    """Of three clients; a single usable upload is enough for one."""
    bad = Change(lambda uploads, rows: uploads.index_fill(0, torch.arange(num_bad), math.nan))
    metrics, _ = last(rounds(module, federation(sizes=(5, 3, 4)), attack=bad, **QUICK))
    assert metrics["bad_uploads"] == num_bad and metrics["bytes_down_indices"] == 0
    assert metrics["bytes_up"] == 4 * 8 * 3 * 3
    assert metrics["bytes_down"] == (0 if num_bad == 3 else metrics["bytes_up"])
