"""FedProto: prototypes and their loss by hand, rounds against a slow loop, what is refused."""
import math

import pytest
import torch
from slow import batches, doubles, near, own_share, slow_forward
from toys import (federation, last, last_layer, loaded, normal, normed, rounds, same,
                  samples, with_features)

from algorithms import fedproto
from attacks import Attack
from federation import make_rng

LOCAL = {"local_epochs": 2, "local_steps": None, "batch_size": 2, "lr": 0.05}
NAN = math.nan


def test_prototypes_by_hand():
    """Two samples of class 0, none of class 1, one of class 2."""
    features, labels = torch.tensor([[1., 0.], [0., 5.], [3., 2.]]), torch.tensor([0, 2, 0])
    means, counts = fedproto.prototypes(features, labels, 3)
    assert means.tolist() == [[(1 + 3) / 2, (0 + 2) / 2], [0, 0], [0, 5]]
    assert counts.tolist() == [2, 0, 1]


def test_a_nan_is_in_the_prototype_of_its_own_class_alone():
    features = torch.tensor([[1., 0.], [NAN, 5.], [3., 2.]])
    means, _ = fedproto.prototypes(features, torch.tensor([0, 1, 0]), 3)
    assert means[[0, 2]].tolist() == [[2, 1], [0, 0]] and means[1].isnan().tolist() == [True, False]


def test_global_prototypes_by_hand():
    """Client 0 has three samples of class 0, client 1 one; the plain mean would be [.5, 1]. Class 1
    is client 1's alone: zeros of client 0 would halve it. Nobody has class 2."""
    uploads = torch.tensor([[[1., 0.], [0., 0.], [0., 0.]], [[0., 2.], [4., 6.], [0., 0.]]])
    means, known = fedproto.global_prototypes(uploads, torch.tensor([[3, 0, 0], [1, 5, 0]]))
    assert means.tolist() == [[3 / 4 * 1, 1 / 4 * 2], [4, 6], [0, 0]]
    assert known.tolist() == [True, True, False]


def test_prototype_loss_by_hand():
    """The difference is [1, 0]: the mean over both dimensions is 1/2; the distance would be 1. With
    a second sample, whose class has no prototype, it is half of that."""
    features, means = torch.tensor([[1., 1.], [7., 9.]]), torch.tensor([[0., 1.], [0., 0.]])
    known, labels = torch.tensor([True, False]), torch.tensor([0, 1])
    assert fedproto.prototype_loss(features[:1], labels[:1], means, known).item() == 1 / 2
    assert fedproto.prototype_loss(features, labels, means, known).item() == 1 / 4
    assert fedproto.prototype_loss(features, labels, means, ~known).item() == (49 + 81) / 4
    assert fedproto.prototype_loss(features, labels, means, known & ~known).item() == 0


def test_features_are_drawn_to_their_prototype_which_stays():
    """By 2 (h - c) / (B D); without a prototype by nothing, even if it is nan."""
    features, means, known = normal(3, 2), normal(2, 2, seed=1), torch.tensor([True, False])
    labels, means[1] = torch.tensor([0, 1, 0]), torch.nan
    features.requires_grad_(), means.requires_grad_()
    fedproto.prototype_loss(features, labels, means, known).backward()
    expected = 2 * (features - means[0]) / (3 * 2) * known[labels][:, None]
    assert torch.allclose(features.grad, expected) and means.grad is None


def slow_loss(w, images, labels, means, weight):
    """CE + weight R, sample by sample; means: {class: [2]}."""
    total = 0
    for h, z, y in zip(*slow_forward(w, images), labels.tolist()):
        total = total + z.exp().sum().log() - z[y]
        if y in means:
            total = total + weight * ((h[0] - means[y][0])**2 + (h[1] - means[y][1])**2) / 2
    return total / len(labels)


def mean_of(rows):
    return [sum(column) / len(rows) for column in zip(*rows)]


def nearest(w, means, data):
    """Of each test image the class whose prototype is nearest to its features."""
    return [min(means, key=lambda c: sum((a - b)**2 for a, b in zip(h, means[c])))
            for h in slow_forward(w, data.images)[0].tolist()]


@pytest.mark.parametrize("local_steps", [None, 5])
def test_rounds_of_fedproto_against_a_slow_loop(local_steps):
    """Four clients of different sizes; client 1 has class 1 alone, class 2 is client 3's alone."""
    fed, ids = federation(sizes=(5, 3, 4, 6), network=with_features), range(4)
    for i, labels in enumerate([[0, 0, 1, 0, 1], [1, 1, 1], [0, 1, 1, 1], [2, 2, 0, 1, 2, 0]]):
        fed.private[i].labels[:] = torch.tensor(labels)
    clients = [doubles(fed.client_model(i, init=i).state_dict()) for i in ids]
    updates = [torch.optim.SGD(w.values(), lr=0.05, momentum=0.9) for w in clients]
    means = {}                                                       # in round 1 nobody has one
    settings = LOCAL | {"local_steps": local_steps, "prototype_weight": 0.7}
    _, *found = rounds(fedproto, fed, rounds=3, **settings)
    for t, (metrics, state) in enumerate(found, start=1):
        features = {c: [] for c in range(3)}
        for i, (images, labels) in enumerate(fed.private):
            for rows in batches(len(labels), 2, 2, make_rng(0, "local", t, i), steps=local_steps):
                updates[i].zero_grad()
                slow_loss(clients[i], images[rows], labels[rows], means, 0.7).backward()
                updates[i].step()
            own = slow_forward(clients[i], images)[0].tolist()            # after training
            for c in {*labels.tolist()}:
                rows = [h for h, y in zip(own, labels.tolist()) if y == c]
                features[c] += [mean_of(rows)] * len(rows)           # weighed by their number
        means = {c: mean_of(rows) for c, rows in features.items()}

        assert state["known"].all()
        assert torch.allclose(state["means"].double(), torch.tensor([*means.values()]).double(),
                              atol=1e-5)
        assert all(near(state["clients"][i]["model"], clients[i]) for i in ids)
        for (key, own_key), answers in [
                (("prototype_accuracy", "prototype_accuracy_own"),
                 [nearest(w, means, fed.test) for w in clients]),
                (("client_accuracy", "accuracy"),
                 [slow_forward(w, fed.test.images)[1].argmax(1).tolist() for w in clients])]:
            right = [sum(a == y for a, y in zip(of_client, fed.test.labels.tolist()))
                     for of_client in answers]
            own = [own_share(*pair) for pair in zip(answers, [fed.test] * 4, fed.private)]
            assert metrics[key] == pytest.approx(sum(right) / (4 * len(fed.test.labels)))
            assert metrics[own_key] == pytest.approx(sum(own) / 4)
        # Clients have 2, 1, 2 and 3 classes, and a count of each of 3; two numbers a prototype.
        assert metrics["bytes_up"] == 4 * ((2 + 1 + 2 + 3) * 2 + 4 * 3)
        assert metrics["bytes_down"] == 4 * (4 * 3 * 2)


def test_prototypes_are_of_the_trained_network_in_eval_mode():
    """On clean images, by BatchNorm's statistics and without dropout."""
    fed = federation(network=normed, augment=lambda images, rng: images + 100)
    means, known = torch.zeros(3, 4), torch.zeros(3).bool()
    start = {"model": fed.client_model(0).state_dict(), "optimizer": None}
    client, upload = fedproto.train_client(fed, fedproto.Config(**LOCAL), 1, 0, start, means, known)
    model = loaded(fed.client_model(0), client["model"]).eval()
    features = model[:-1](fed.private[0].images).detach()
    expected, counts = fedproto.prototypes(features, fed.private[0].labels, 3)
    assert torch.allclose(upload["prototypes"], expected) and same(upload["counts"], counts)
    assert not upload["prototypes"].requires_grad


def attacked(t, values):
    """(an attack by client 0: {class: value} of its prototypes in round t, what it is handed)."""
    handed = []

    def forge(i, upload, benign, rows):
        handed.append((benign, rows))
        forged = upload.clone()
        for c, value in values.items():
            forged[2 * c : 2 * c + 2] = value
        return forged if len(handed) == t else upload
    return Attack([0], forge), handed


def test_a_class_that_no_usable_upload_has_keeps_its_prototype():
    """Class 2 is client 0's alone, whose upload of round 2 has one nan: it counts for no class."""
    fed = federation(sizes=(5, 3, 4), network=with_features)
    fed.private[0].labels[:], fed.private[1].labels[:], fed.private[2].labels[:] = (
        torch.tensor([2, 2, 0, 2, 1]), 0, 1)
    attack, _ = attacked(2, {1: NAN})
    (_, start), (_, first), (metrics, second) = rounds(fedproto, fed, attack=attack, rounds=2,
                                                       **LOCAL)
    assert not start["known"].any() and first["known"].all() and second["known"].all()
    assert metrics["bad_uploads"] == 1 and same(second["means"][2], first["means"][2])
    _, honest = last(rounds(fedproto, fed, rounds=2, **LOCAL))
    assert same(second["clients"], honest["clients"])    # client 0 keeps what it trained, too
    for c, i in [(0, 1), (1, 2)]:                        # now of the other client with it alone
        model = loaded(fed.client_model(i), second["clients"][i]["model"])
        features = model[:2](fed.private[i].images)
        assert torch.allclose(second["means"][c], features.mean(0), atol=1e-6)


def test_an_attack_is_on_prototypes_of_all_classes_and_counts_where_its_client_has_samples():
    """It sees the zeros of a class that a client lacks."""
    fed = federation(sizes=(5, 3, 4), network=with_features)
    fed.private[0].labels[:], fed.private[1].labels[:] = torch.tensor([0, 0, 1, 0, 1]), 1
    fed.private[2].labels[:] = torch.tensor([0, 1, 2, 2])
    clean = last(rounds(fedproto, fed, rounds=1, **LOCAL))[1]["means"]
    attack, handed = attacked(1, {0: 100., 1: 100., 2: 100.})
    _, state = last(rounds(fedproto, fed, attack=attack, rounds=1, **LOCAL))
    assert same(state["means"][2], clean[2]) and (state["means"][:2] - clean[:2] > 10).all()
    [(benign, rows)] = handed
    assert benign.view(2, 3, 2).any(-1).tolist() == [[False, True, False], [True] * 3]
    assert rows.tolist() == [0, 1, 2, 3, 4, 5]


def test_before_any_usable_upload_there_is_no_nearest_prototype():
    fed = federation(sizes=(5, 3), network=with_features)
    for private in fed.private:
        private.images[0, 0, 0, 0] = NAN
    metrics, state = last(rounds(fedproto, fed, rounds=1, **LOCAL))
    assert metrics["prototype_accuracy"] is metrics["prototype_accuracy_own"] is None
    assert metrics["bytes_down"] == 0 and not state["known"].any() and not state["means"].any()


def test_only_known_classes_are_predicted():
    """Nobody has class 0: its row of zeros would be the nearest to many features. As no class of a
    client is tested, there is no accuracy on its own."""
    fed = federation(sizes=(5, 3), network=with_features, test=samples(60, seed=1))
    fed.private[0].labels[:], fed.private[1].labels[:] = 1, 2
    fed.test.labels[:] = 0
    metrics, state = last(rounds(fedproto, fed, rounds=1, **LOCAL))
    assert state["known"].tolist() == [False, True, True] and metrics["prototype_accuracy"] == 0
    assert metrics["prototype_accuracy_own"] is metrics["accuracy"] is None


def test_the_nearest_prototype_is_found_far_from_0_too():
    """By x² - 2xy + y² in float32 the accuracy of these 60 images is about chance."""
    means = torch.tensor([[0., 0, 0, 0], [.5, 0, 0, 0], [0, .5, 0, 0]]) + 12345.678
    test = samples(60, 3)
    test = test._replace(images=means[test.labels].view(60, 1, 2, 2))
    fed = federation(sizes=(3,), network=last_layer, test=test)
    state = {"clients": {0: {"model": last_layer().state_dict()}}, "means": means,
             "known": torch.ones(3, dtype=torch.bool)}
    assert fedproto.evaluate_prototypes(fed, state)["prototype_accuracy"] == 1


def test_features_of_different_sizes_are_refused_in_one_line():
    with pytest.raises(ValueError, match="of one size, not with_features 2, last_layer 4$"):
        next(rounds(fedproto, federation(network=(with_features, last_layer))))


def test_features_that_are_not_finite_predict_no_class():
    """argmin of nan would be class 0."""
    fed = federation(sizes=(6,), network=with_features, test=samples(4, seed=1))
    fed.private[0].labels[:], fed.test.labels[:] = 0, 0
    fed.test.images[1, 0, 0, 0] = NAN
    metrics, _ = last(rounds(fedproto, fed, rounds=1, **LOCAL))
    assert metrics["prototype_accuracy"] == metrics["prototype_accuracy_own"] == 3 / 4
