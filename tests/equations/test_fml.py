"""FML: the loss of mutual learning, rounds against plain Python, and what it is with CE alone."""
import dataclasses
import math

import pytest
import torch
from slow import (batches, close, cross_entropy_slope, slow_accuracy, slow_learner, slow_logits,
                  slow_own_accuracy, slow_slopes, slow_softmax)
from toys import (federation, last, linear, rounds, same, sample_clients, samples,
                  with_batchnorm, with_hidden_layer)

from algorithms import fedavg, fml, local
from attacks import Attack
from federation import make_rng

LOCAL = {"local_epochs": 2, "local_steps": None, "batch_size": 2, "lr": 0.05}


def test_mutual_loss_by_hand():
    """Two samples, two classes. The teacher says (.8, .2) of the first, where KL(student ||
    teacher) is .2231 instead of .1927, and as the student of the second."""
    student, teacher = torch.tensor([[.5, .5], [.25, .75]]), torch.tensor([[.8, .2], [.25, .75]])
    ce = (math.log(2) + math.log(4)) / 2
    kl = (.8 * math.log(.8 / .5) + .2 * math.log(.2 / .5) + 0) / 2
    labels = torch.tensor([0, 0])
    for weight in (0.25, 0.0, 1.0):
        found = fml.mutual_loss(student.log(), labels, teacher.log(), weight)
        assert found.item() == pytest.approx(weight * ce + (1 - weight) * kl, abs=1e-6)


def slow_client(fed, i, t, personal, update, shared, alpha, beta):
    """Trains the personal model in place, and returns the client's copy of the shared one."""
    copy, (images, labels) = [w.detach().clone().requires_grad_() for w in shared], fed.private[i]
    of_copy = torch.optim.SGD(copy, lr=0.05, momentum=0.9)                   # new in every round
    for rows in batches(len(labels), 2, 2, make_rng(0, "local", t, i)):
        z = [slow_logits(learner, images) for learner in (personal, copy)]   # before either step
        for learner, own, other, weight in [(personal, 0, 1, alpha), (copy, 1, 0, beta)]:
            def slope(n, _, own=own, other=other, weight=weight):
                q, p = slow_softmax(z[own][n]), slow_softmax(z[other][n])
                ce = cross_entropy_slope(z[own][n], int(labels[n]))
                return [weight * c + (1 - weight) * (q_c - p_c) for c, q_c, p_c in zip(ce, q, p)]
            for w, slopes in zip(learner, slow_slopes(learner, images, rows, slope)):
                w.grad = slopes
        update.step()
        of_copy.step()
    return copy


@pytest.mark.parametrize("alpha, beta", [(0.5, 0.5), (0.2, 0.9)])
def test_rounds_of_fml_against_a_slow_loop(alpha, beta):
    """Half of four clients take part. A personal model and its momentum stay with the client. The
    shared model sees no public images: its accuracy is of the clients' half of the test set."""
    fed, ids = federation(server=linear, public_test=samples(25, seed=9)), range(4)
    personal = [slow_learner(fed.client_model(i, init=i)) for i in ids]
    updates = [torch.optim.SGD(w, lr=0.05, momentum=0.9) for w in personal]
    shared = slow_learner(fed.server_model())
    found = rounds(fml, fed, rounds=3, participation=0.5, **LOCAL, alpha_ce=alpha, beta_ce=beta)
    for t, (metrics, state) in enumerate(found):
        active = sample_clients(4, 0.5, make_rng(0, "active", t)) if t else []
        copies = [slow_client(fed, i, t, personal[i], updates[i], shared, alpha, beta)
                  for i in active]
        sizes = [len(fed.private[i].labels) for i in active]
        if t:
            shared = [sum(n * w.detach() for n, w in zip(sizes, ws)) / sum(sizes)
                      for ws in zip(*copies)]
        assert close(state["server"]["model"], shared)
        assert all(close(state["clients"][i]["model"], personal[i]) for i in ids)
        own = [slow_own_accuracy(w, fed.test, fed.private[i]) for i, w in enumerate(personal)]
        assert metrics["accuracy"] == pytest.approx(sum(own) / 4)
        assert metrics["server_accuracy"] == pytest.approx(slow_accuracy(shared, fed.test))
    assert metrics["bytes_up"] == metrics["bytes_down"] == 2 * 4 * (3 * 4 + 3)    # of two clients


def test_with_cross_entropy_alone_it_is_fedavg_and_local_training():
    """Bit for bit: the shared model is FedAvg's, the personal ones, of two networks, `local`'s."""
    fed = federation(sizes=(5, 1, 4, 6), network=(linear, with_hidden_layer), server=with_batchnorm,
                     augment=lambda images, rng: images + rng.normal())
    shared = dataclasses.replace(
        fed, client_model=lambda i, init=0: fed.server_model(init), architecture=["shared"] * 4)
    both = {**LOCAL, "rounds": 3, "participation": 0.5, "weight_decay": 0.01}
    found = zip(rounds(fml, fed, **both, alpha_ce=1.0, beta_ce=1.0), rounds(local, fed, **both),
                rounds(fedavg, shared, **both, optimizer="momentum"), strict=True)
    for (metrics, state), (alone, theirs), (averaged, average) in found:
        assert same(state["server"]["model"], average["server"]["model"])
        assert same(state["clients"], theirs["clients"])
        assert metrics["server_accuracy"] == averaged["accuracy"]
        assert metrics["accuracy"] == alone["accuracy"]


def test_a_client_whose_upload_is_left_out_keeps_what_it_trained():
    """Client 1 sends nan. The shared model is the mean of the other copies."""
    fed = federation(sizes=(5, 3, 4))
    attack = Attack([1], lambda i, upload, benign, rows: upload * math.nan)
    (_, start), (_, honest) = rounds(fml, fed, rounds=1, **LOCAL)
    metrics, state = last(rounds(fml, fed, attack=attack, rounds=1, **LOCAL))
    assert metrics["bad_uploads"] == 1 and same(state["clients"], honest["clients"])
    assert not same(state["clients"][1], start["clients"][1])
    shared = start["server"]["model"]
    copies = [fml.train_client(fed, fml.Config(**LOCAL), 1, i, start["clients"][i], shared)[1]
              for i in (0, 2)]
    for name, w in state["server"]["model"].items():
        assert torch.allclose(w, (5 * copies[0][name] + 4 * copies[1][name]) / 9)
