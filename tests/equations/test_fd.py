"""FD: the mean over the others, rounds against plain Python, the reduction to clients alone."""
import numpy as np
import pytest
import torch
from slow import (close, cross_entropy_slope, slow_accuracy, slow_learner, slow_own_accuracy,
                  slow_softmax, slow_training)
from toys import federation, last, rounds, same

from algorithms import fd
from attacks import Attack
from federation import make_rng

LOCAL = {"local_epochs": 2, "local_steps": None, "batch_size": 2, "lr": 0.05}
NONE = [0., 0.]


def test_others_mean_by_hand():
    """Three clients, two classes; client 1 lacks class 1. With the own row client 0's first target
    would be [.7, .3]; with the row of zeros in the mean its second one would sum to 1/2."""
    means = torch.tensor([[[.9, .1], [.2, .8]], [[.5, .5], NONE], [[.7, .3], [.4, .6]]])
    expected = [[[(.5 + .7) / 2, (.5 + .3) / 2], [.4, .6]],
                [[(.9 + .7) / 2, (.1 + .3) / 2], [(.2 + .4) / 2, (.8 + .6) / 2]],
                [[(.9 + .5) / 2, (.1 + .5) / 2], [.2, .8]]]
    assert torch.allclose(fd.others_mean(means), torch.tensor(expected), atol=1e-6)
    assert not fd.others_mean(means[:1]).any()            # no other has these classes


def mean_row(rows):
    """[3]: the mean of lists, or zeros if there is none."""
    return [sum(column) / len(rows) for column in zip(*rows)] or [0.] * 3


def slow_others_mean(means):
    """[M][3][3], client by client and class by class."""
    return [[mean_row([other[c] for j, other in enumerate(means) if j != i and any(other[c])])
             for c in range(3)] for i in range(len(means))]


@pytest.mark.parametrize("local_steps", [None, 4])
def test_rounds_of_fd_against_algorithm_1(local_steps):
    """Three rounds in plain Python; the sums start anew in each. Client 2 has class 1 alone."""
    fed, ids, gamma = federation(sizes=(5, 3, 4)), range(3), 0.7
    fed.private[2].labels[:] = 1
    clients = [slow_learner(fed.client_model(i, init=i)) for i in ids]
    updates = [torch.optim.Adam(c, lr=0.05, weight_decay=0.01, amsgrad=True) for c in clients]
    targets = [[[0.] * 3] * 3] * 3
    settings = LOCAL | {"local_steps": local_steps, "weight_decay": 0.01, "gamma": gamma}
    _, *found = rounds(fd, fed, rounds=3, **settings)
    for t, (metrics, state) in enumerate(found, start=1):
        means = []
        for i in ids:
            labels, given = fed.private[i].labels.tolist(), [[] for _ in range(3)]

            def slope(n, z, labels=labels, given=given, i=i):
                q, y = slow_softmax(z), targets[i][labels[n]]
                given[labels[n]].append(q)                                           # line 6
                return [ce + gamma * (q_c * sum(y) - y_c) for ce, q_c, y_c in
                        zip(cross_entropy_slope(z, labels[n]), q, y)]                # line 5
            slow_training(clients[i], updates[i], fed.private[i].images, slope, batch_size=2,
                          epochs=2, steps=local_steps, rng=make_rng(0, "local", t, i))
            means.append([mean_row(probs) for probs in given])                       # line 7-8
        targets = slow_others_mean(means)                                            # line 10-15
        assert np.allclose(state["targets"], targets, atol=1e-5)
        assert all(close(state["clients"][i]["model"], clients[i], atol=1e-4) for i in ids)
        own = [slow_accuracy(client, fed.test) for client in clients]
        assert metrics["client_accuracy_own"] == pytest.approx(sum(
            slow_own_accuracy(w, fed.test, fed.private[i]) for i, w in enumerate(clients)) / 3)
        assert metrics["accuracy"] == pytest.approx(sum(own) / 3)
        assert metrics["bytes_up"] == metrics["bytes_down"] == 4 * 3 * 3 * 3     # no network's size


def test_an_attack_is_on_the_rows_of_all_classes():
    """It sees the zeros of a class that a client lacks; its own row is then that class's target."""
    fed, seen = federation(sizes=(5, 3, 4)), []
    fed.private[1].labels[:], fed.private[2].labels[:] = torch.tensor([0, 1, 2]), 1

    def forge(i, upload, benign, rows):
        seen.append((benign, rows))
        return torch.full_like(upload, 7.)
    _, state = last(rounds(fd, fed, attack=Attack([0], forge), rounds=1, **LOCAL))
    [(benign, rows)] = seen
    assert benign.shape == (2, 3, 3) and rows.tolist() == [0, 1, 2]
    assert benign.any(-1).tolist() == [[True] * 3, [False, True, False]]
    assert (state["targets"][1, [0, 2]] == 7).all() and same(state["targets"][0, 0], benign[0, 0])
