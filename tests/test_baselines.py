"""Centralized training."""
import copy

import pytest
import torch
import torch.nn.functional as F
from toys import federation, last, same, without_seconds

from algorithms.baselines import centralized
from algorithms.common import OPTIMIZERS, batches, stream

QUICK = {"rounds": 3, "batch_size": 4}


def test_centralized_is_one_long_training():
    """Against one plain loop over all rounds: the optimiser's moments are never forgotten."""
    fed = federation()
    images, labels = (torch.cat(parts) for parts in zip(*fed.private))
    model = fed.client_model(0)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4, amsgrad=True)
    for t in (1, 2, 3):
        for rows in batches(18, 4, 2, stream(0, "centralized", t)):
            adam.zero_grad()
            F.cross_entropy(model(images[rows]), labels[rows]).backward()
            adam.step()
    _, state = last(centralized(fed, **QUICK, local_epochs=2))
    assert same(dict(state["model"]), dict(model.state_dict()))


def test_resuming_from_any_round_gives_the_same_bytes():
    fed = federation()
    rounds = list(centralized(fed, **QUICK))
    for t in range(3):
        resumed = list(centralized(fed, copy.deepcopy(rounds[t][1]), **QUICK))
        for (a, state_a), (b, state_b) in zip(resumed, rounds[t + 1:], strict=True):
            assert without_seconds(a) == without_seconds(b) and same(state_a, state_b)


def test_a_rounds_state_is_not_changed_by_the_next():
    states = [(state, copy.deepcopy(state)) for _, state in centralized(federation(), **QUICK)]
    assert all(same(state, snapshot) for state, snapshot in states)


def test_centralized_sees_every_clients_samples():
    seen = []
    fed = federation(augment=lambda images, rng: seen.extend(images.flatten(1).tolist()) or images)
    last(centralized(fed, rounds=1, batch_size=4))
    assert sorted(seen) == sorted(torch.cat([private.images for private in fed.private]).flatten(1).tolist())


def test_nothing_travels():
    metrics, _ = last(centralized(federation(), **QUICK))
    assert metrics["bytes_up"] == metrics["bytes_down"] == 0


@pytest.mark.parametrize("name, amsgrad", [("amsgrad", True), ("adam", False)])
def test_amsgrad_is_the_papers_adam(name, amsgrad):
    optimizer = OPTIMIZERS[name]([torch.zeros(1, requires_grad=True)], lr=1e-3, weight_decay=1e-4)
    assert type(optimizer) is torch.optim.Adam and optimizer.defaults["amsgrad"] is amsgrad


def test_centralized_learns():
    metrics, _ = last(centralized(federation(sizes=(40,) * 4), rounds=20, batch_size=8, lr=0.01))
    assert metrics["accuracy"] > 0.6
