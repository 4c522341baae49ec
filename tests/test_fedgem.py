"""FedGEM: whole rounds sample by sample, what travels, uploads that are not finite, and what it shares with FedGEMS."""
import copy
import dataclasses

import pytest
import torch
from test_fedgems import (
    AT_CLIENT,
    QUICK,
    TWICE,
    WAYS,
    counted,
    near,
    numbers,
    public_logits,
    slow_accuracy,
    slow_ce,
    slow_epochs,
    slow_learner,
    slow_logits,
    slow_loss,
    spoilt,
    through_a_file,
    trained_with_labels,
    with_server,
)
from toys import labelled, linear, same, with_batchnorm

from algorithms import fedgem, fedgems, fedgems_ablations


def slow_rounds(fed, settings):
    """Section 3.2 sample by sample; yields (server, clients, accuracies of server, clients, clients before distillation)."""
    images, labels, epsilon = fed.public.images, fed.public.labels.tolist(), settings["epsilon"]
    server = slow_learner(fed.server_model(), settings, settings["server_lr"])
    clients = [slow_learner(fed.client_model(i, init=i), settings, settings["lr"]) for i in range(len(fed.private))]
    for t in range(1, settings["rounds"] + 1):
        for i, client in enumerate(clients):
            own = fed.private[i].labels.tolist()
            slow_epochs(fed, client, fed.private[i].images, settings["local_epochs"], settings["batch_size"], ("local", t, i),
                        lambda z, n: slow_ce(z, own[n]))
        private = [slow_accuracy(model, fed.test) for model, _ in clients]
        teacher = []
        for image in images:
            uploads = [numbers(slow_logits(model, image)) for model, _ in clients]
            teacher.append([sum(z[c] for z in uploads) / len(uploads) for c in range(fed.num_classes)])
        slow_epochs(fed, server, images, settings["server_epochs"], settings["server_batch_size"], ("server", t),
                    lambda z, n: slow_loss(z, labels[n], teacher[n], epsilon))
        server_logits = [numbers(slow_logits(server[0], image)) for image in images]
        for i, client in enumerate(clients):
            slow_epochs(fed, client, images, settings["public_epochs"], settings["batch_size"], ("public", t, i),
                        lambda z, n: slow_loss(z, labels[n], server_logits[n], epsilon))
        yield (copy.deepcopy(server[0].state_dict()), [copy.deepcopy(model.state_dict()) for model, _ in clients],
               slow_accuracy(server[0], fed.test), [slow_accuracy(model, fed.test) for model, _ in clients], private)


@WAYS
def test_fedgem_round_by_hand(changes, more):
    """Private training, upload, server, broadcast, distillation; the teacher is the softmax of the mean of all clients' logits."""
    fed, settings = labelled(num_public=10, **changes), {**QUICK, **more}
    for (metrics, state), expected in zip(list(fedgem.run(fed, **settings))[1:], slow_rounds(fed, settings), strict=True):
        server, clients, score, distilled, private = expected
        assert near(state["server"]["model"], server)
        assert all(near(ours["model"], theirs) for ours, theirs in zip(state["clients"], clients, strict=True))
        assert metrics["accuracy"] == metrics["server_accuracy"] == pytest.approx(score)
        assert metrics["client_accuracy"] == pytest.approx(sum(distilled) / 4)
        assert metrics["client_accuracy_private"] == pytest.approx(sum(private) / 4)


def test_clients_learn_from_the_final_server_model_of_fedgem():
    """One pass of it over all clean public images, in eval mode, after several batches and epochs of training."""
    fed = with_server(labelled(num_public=14, augment=lambda images, rng: -images), with_batchnorm)
    (_, before), (_, after) = fedgem.run(fed, **{**QUICK, "rounds": 1, "server_epochs": 2})
    server_logits = public_logits(fed, after["server"])
    for i, client in enumerate(before["clients"]):
        _, trained = fedgems.train_client(fed, i, 1, client, torch.arange(14), local_epochs=1, **AT_CLIENT)
        distilled = fedgems.distil_client(fed, i, 1, trained, server_logits, public_epochs=1, epsilon=0.6, **AT_CLIENT)
        assert same(after["clients"][i], distilled)
    assert after["server"]["model"]["0.num_batches_tracked"].item() == 6              # batches of 5, 5 and 4, twice


def test_all_rows_travel_both_ways_every_round():
    fed, seen = labelled(num_public=14), []
    for metrics, _ in list(fedgem.run(counted(fed, seen), **{**QUICK, **TWICE}))[1:]:
        assert (metrics["bytes_up"], metrics["bytes_down"], metrics["bytes_down_indices"]) == (4 * 4 * 3 * 14, 4 * 4 * 3 * 14, 0)
    assert seen == 2 * [(i, list(range(14))) for i in range(4)]


def test_without_any_finite_upload_two_rounds_are_plain_training_with_the_labels():
    fed = spoilt(labelled(num_public=14), 0, 1, 2, 3)
    for (metrics, state), model in zip(list(fedgem.run(fed, **QUICK))[1:], trained_with_labels(fed, QUICK), strict=True):
        assert metrics["bad_uploads"] == 4 and same(dict(state["server"]["model"]), model)
        assert all(torch.isfinite(w).all() for w in model.values())


def test_with_epsilon_1_no_teacher_matters_to_fedgem():
    fed, settings = labelled(num_public=14), {**QUICK, "epsilon": 1.0}
    for (_, state), model in zip(list(fedgem.run(fed, **settings))[1:], trained_with_labels(fed, settings), strict=True):
        assert same(dict(state["server"]["model"]), model)


def test_what_is_left_of_the_federation_is_as_if_a_client_with_nan_had_never_been():
    fed = labelled(num_public=14)
    fewer = dataclasses.replace(fed, private=fed.private[:3])
    for (bad, ours), (good, theirs) in zip(fedgem.run(spoilt(fed, 3), **QUICK), fedgem.run(fewer, **QUICK), strict=True):
        assert same([ours["server"], ours["clients"][:3]], [theirs["server"], theirs["clients"]])
        assert (bad.get("bad_uploads"), good.get("bad_uploads")) == ((1, 0) if ours["round"] else (None, None))


def test_with_one_client_that_is_right_and_nothing_else_to_learn_from_fedgems_is_fedgem():
    """Its weight is 1 on every sample: the same bytes in server and client."""
    fed = labelled(sizes=(12,), num_classes=2, num_public=12)
    fed.public.images.add_(6.0 * fed.public.labels[:, None, None, None])                # the two classes lie far apart
    fed = dataclasses.replace(fed, private=[fed.public])
    settings = {**QUICK, "local_epochs": 30}
    selective = list(fedgems_ablations.run(fed, **settings, self_training=False, self_distillation=False))
    for (metrics, a), (ours, b) in zip(selective[1:], list(fedgem.run(fed, **settings))[1:], strict=True):
        assert metrics["ensemble_distillation"] == 1.0
        assert same([a["server"], a["clients"]], [b["server"], b["clients"]])
        assert (metrics["bytes_up"], metrics["bytes_down"]) == (ours["bytes_up"], ours["bytes_down"])


def test_no_round_changes_a_state_that_was_yielded_by_fedgem():
    states = [(state, copy.deepcopy(state)) for _, state in fedgem.run(labelled(num_public=14), **{**QUICK, "rounds": 3})]
    assert all(same(state, then) for state, then in states)


def test_resuming_fedgem_from_any_round_gives_the_same_bytes():
    fed, settings = labelled(num_public=14, network=(linear, with_batchnorm)), {**QUICK, "rounds": 3}
    rounds = list(fedgem.run(fed, **settings))
    for at in (0, 1, 2):
        resumed = list(fedgem.run(fed, through_a_file(rounds[at][1]), **settings))
        for (ours, a), (theirs, b) in zip(resumed, rounds[at + 1:], strict=True):
            assert same(a, b) and ours == theirs
