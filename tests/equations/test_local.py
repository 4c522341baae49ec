"""Local training: rounds against plain Python; what a client keeps, and what is scored."""
import pytest
import torch
from slow import (close, slow_accuracy, slow_learner, slow_own_accuracy, slow_training,
                  towards_labels)
from toys import federation, rounds, sample_clients

from algorithms import local
from federation import make_rng


@pytest.mark.parametrize("local_steps", [None, 4])
def test_rounds_of_local_training_against_a_slow_loop(local_steps):
    """Momentum is kept, also over a round in which a client is not drawn."""
    fed = federation(sizes=(5, 3, 4, 6))
    clients = [slow_learner(fed.client_model(i, init=i)) for i in range(4)]
    updates = [torch.optim.SGD(c, lr=0.05, momentum=0.9, weight_decay=0.01) for c in clients]
    found = rounds(local, fed, rounds=3, participation=0.5, local_epochs=2, batch_size=2, lr=0.05,
                   weight_decay=0.01, local_steps=local_steps)
    for t, (metrics, state) in enumerate(found):
        active = sample_clients(4, 0.5, make_rng(0, "active", t)) if t else []
        for i in active:
            images, labels = fed.private[i]
            slow_training(clients[i], updates[i], images, towards_labels(labels), batch_size=2,
                          epochs=2, steps=local_steps, rng=make_rng(0, "local", t, i))
        assert all(close(state["clients"][i]["model"], clients[i]) for i in range(4))
        everywhere = [slow_accuracy(client, fed.test) for client in clients]
        own = [slow_own_accuracy(w, fed.test, fed.private[i]) for i, w in enumerate(clients)]
        assert metrics["client_accuracy"] == pytest.approx(sum(everywhere) / 4)
        assert metrics["accuracy"] == pytest.approx(sum(own) / 4)
        assert metrics.get("bytes_up", 0) == metrics.get("bytes_down", 0) == 0
