"""Local training: rounds against plain Python; what a client keeps, and what is scored."""
import dataclasses

import pytest
import torch
from slow import (
    close,
    slow_accuracy,
    slow_learner,
    slow_own_accuracy,
    slow_training,
    towards_labels,
)
from toys import federation, last, same

from algorithms import local
from federation import pick, stream
from federation.parallel import sample_clients

SETTINGS = {"participation": 0.5, "local_epochs": 2, "batch_size": 2, "lr": 0.05,
            "weight_decay": 0.01}


@pytest.mark.parametrize("local_steps", [None, 4])
def test_rounds_of_local_training_against_a_slow_loop(local_steps):
    """From weights of its own; momentum is kept, also over a round in which a client is not drawn.
    The others' images do not matter."""
    fed = federation(sizes=(5, 3, 4, 6))
    clients = [slow_learner(fed.client_model(i, init=i)) for i in range(4)]
    updates = [torch.optim.SGD(c, lr=0.05, momentum=0.9, weight_decay=0.01) for c in clients]
    settings = {**SETTINGS, "local_steps": local_steps}
    for t, (metrics, state) in enumerate(local.run(fed, rounds=3, **settings)):
        active = sample_clients(4, 0.5, stream(0, "active", t)) if t else []
        for i in active:
            images, labels = fed.private[i]
            slow_training(clients[i], updates[i], images, towards_labels(labels), batch_size=2,
                          epochs=2, steps=local_steps, rng=stream(0, "local", t, i))
        assert all(close(state["clients"][i]["model"], clients[i]) for i in range(4))
        everywhere = [slow_accuracy(client, fed.test) for client in clients]
        own = [slow_own_accuracy(w, fed.test, fed.private[i]) for i, w in enumerate(clients)]
        assert metrics["client_accuracy"] == pytest.approx(sum(everywhere) / 4)
        assert metrics["accuracy"] == pytest.approx(sum(own) / 4)
        assert metrics.get("bytes_up", 0) == metrics.get("bytes_down", 0) == 0


def test_a_client_learns_from_its_own_images_alone():
    fed = federation(sizes=(5, 3, 4))
    everybody = {**SETTINGS, "rounds": 2, "participation": 1.0}
    _, found = last(local.run(fed, **everybody))
    for private in fed.private[1:]:
        private.images[:] = 0.0
    _, others = last(local.run(fed, **everybody))
    assert same(found["clients"][0], others["clients"][0])
    assert not same(found["clients"][1], others["clients"][1])


def test_without_test_images_of_the_clients_classes_there_is_no_accuracy_on_them():
    fed = federation(sizes=(5, 3))
    fed = dataclasses.replace(fed, test=pick(fed.test, fed.test.labels == 2))
    for private in fed.private:
        private.labels[:] = 1
    metrics, _ = last(local.run(fed, rounds=1, **SETTINGS))
    assert metrics["accuracy"] is None
    assert 0 <= metrics["client_accuracy"] <= 1
