"""Baselines without exchange: what each network is trained on, with which optimiser, and for whom it counts."""
import copy

import pytest
import torch
import torch.nn.functional as F
from toys import federation, labelled, last, linear, same, samples, with_batchnorm, with_hidden_layer

from algorithms import baselines
from algorithms.baselines import centralized, centralized_all, public_private, standalone
from algorithms.common import stream
from algorithms.evaluation import accuracy
from algorithms.training import OPTIMIZERS, batches, predict_logits

QUICK = {"rounds": 3, "batch_size": 4}
SIZES = (6, 3, 4)                                # with 8 public samples: no batch of 4 is of one sample, which is shown twice
ALL = [standalone, public_private, centralized, centralized_all]
every_baseline = pytest.mark.parametrize("run", ALL, ids=lambda run: run.__name__)
SERVERS = [standalone, centralized_all]


def one_long_training(model, name, *parts, rounds=3, batch_size=4, lr=1e-3):
    """A plain loop over all rounds with one optimiser: in each, each part (images, labels, epochs) one after the other."""
    adam = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=1e-4, amsgrad=True)
    for t in range(1, rounds + 1):
        for number, (images, labels, epochs) in enumerate(parts):
            for rows in batches(len(labels), batch_size, epochs, stream(0, "alone", t, name, number)):
                adam.zero_grad()
                F.cross_entropy(model(images[rows]), labels[rows]).backward()
                adam.step()
    return dict(model.state_dict())


def trained(run, fed, **settings):
    """{name: state_dict} after the last round."""
    _, state = last(run(fed, **{**QUICK, **settings}))
    return {name: dict(saved["model"]) for name, saved in state["networks"].items()}


def score(fed, state_dict, model, on="test"):
    model.load_state_dict(state_dict)
    data = getattr(fed, on)
    return accuracy(predict_logits(fed, model, data.images), data.labels)


def pooled(*parts):
    return tuple(torch.cat(tensors) for tensors in zip(*parts))


# --------------------------------------------------------------------------------------- what each network is trained on

def test_centralized_is_one_long_training():
    """Against one plain loop over all rounds, with two passes in each: the optimiser's moments are never forgotten."""
    fed = federation(sizes=SIZES)
    expected = one_long_training(fed.client_model(0), "linear", (*pooled(*fed.private), 2))
    assert same(trained(centralized, fed, local_epochs=2), {"linear": expected})


def test_standalone_trains_the_server_on_public_and_each_client_on_its_own_samples():
    fed = labelled(sizes=SIZES)
    expected = {"server": one_long_training(fed.server_model(), "server", (*fed.public, 2))}
    for i, private in enumerate(fed.private):
        expected[i] = one_long_training(fed.client_model(i, init=i), i, (*private, 2))
    assert same(trained(standalone, fed, local_epochs=2), expected)


def test_public_private_makes_private_steps_then_public_ones():
    """The steps of FedGEMS's clients, with one optimiser for both, towards the labels alone; no network for the server."""
    fed = labelled(sizes=SIZES)
    expected = {i: one_long_training(fed.client_model(i, init=i), i, (*private, 2), (*fed.public, 3))
                for i, private in enumerate(fed.private)}
    assert same(trained(public_private, fed, local_epochs=2, public_epochs=3), expected)


def test_centralized_all_trains_server_and_clients_on_public_and_all_private_samples():
    fed = labelled(sizes=SIZES)
    union = (*pooled(fed.public, *fed.private), 2)
    expected = {"server": one_long_training(fed.server_model(), "server", union),
                "linear": one_long_training(fed.client_model(0), "linear", union)}
    assert same(trained(centralized_all, fed, local_epochs=2), expected)


@pytest.mark.parametrize("run, own, rounds", [(centralized, 1, 1), (centralized_all, 2, 3), (standalone, 1, 2)])
def test_a_pass_sees_every_sample_of_the_network_once(run, own, rounds):
    """own: how many networks see each private sample."""
    seen = []
    fed = labelled(sizes=SIZES, augment=lambda images, rng: seen.extend(images.flatten(1).tolist()) or images)
    last(run(fed, rounds=rounds, batch_size=4))
    public = {"centralized": 0, "centralized_all": 2, "standalone": 1}[run.__name__]
    expected = pooled(*fed.private)[0].flatten(1).tolist() * own * rounds + fed.public.images.flatten(1).tolist() * public * rounds
    assert sorted(seen) == sorted(expected)


def test_centralized_needs_neither_public_data_nor_a_server():
    fed = federation(sizes=SIZES, public=None, server_model=None)
    assert same(trained(centralized, fed), trained(centralized, labelled(sizes=SIZES)))


def test_who_is_told_the_public_labels():
    assert baselines.PUBLIC == {**{run.__name__: "labelled" for run in ALL}, "centralized": "none"}


@pytest.mark.parametrize("run", [standalone, public_private])
def test_clients_start_from_weights_of_their_own(run):
    fed = labelled(sizes=SIZES)
    _, state = next(run(fed, **QUICK))
    assert all(same(dict(state["networks"][i]["model"]), dict(fed.client_model(i, init=i).state_dict())) for i in range(3))
    assert not torch.equal(state["networks"][0]["model"]["1.weight"], state["networks"][1]["model"]["1.weight"])


# --------------------------------------------------------------------------------------------------- several networks

@pytest.mark.parametrize("run", [centralized, centralized_all])
def test_each_network_is_trained_once_on_a_union_and_counts_for_all_its_clients(run):
    fed = labelled(sizes=(6, 3, 4, 5, 4), network=(linear, with_hidden_layer))           # clients 0, 2, 4 and 1, 3
    metrics, state = last(run(fed, **QUICK, lr=0.05))
    parts = fed.private if run is centralized else [fed.public, *fed.private]
    own = []
    for name, i in [("linear", 0), ("with_hidden_layer", 1)]:
        expected = one_long_training(fed.client_model(i), name, (*pooled(*parts), 1), lr=0.05)
        assert same(dict(state["networks"][name]["model"]), expected)
        own.append(score(fed, expected, fed.client_model(i)))
    assert own[0] != own[1] and list(state["networks"]) == ["server"] * (run is centralized_all) + ["linear", "with_hidden_layer"]
    assert metrics["client_accuracy"] == pytest.approx((3 * own[0] + 2 * own[1]) / 5)
    assert metrics["client_accuracy_min"] == min(own) and metrics["client_accuracy_max"] == max(own)


@pytest.mark.parametrize("run", [standalone, public_private])
def test_clients_with_different_networks_each_train_their_own(run):
    fed = labelled(sizes=SIZES, network=(linear, with_hidden_layer))
    models = trained(run, fed, rounds=1)
    assert [models[i].keys() for i in range(3)] == [fed.client_model(i).state_dict().keys() for i in range(3)]
    assert models[0].keys() != models[1].keys()


# ----------------------------------------------------------------------------------------------------------- metrics

@every_baseline
def test_the_headline_is_the_servers_accuracy_where_there_is_a_server(run):
    """On the test set; the clients' mean, least and largest stand beside it. In round 0 too."""
    fed = labelled(sizes=SIZES)
    for metrics, state in run(fed, **QUICK, lr=0.05):
        models = {name: dict(saved["model"]) for name, saved in state["networks"].items()}
        own = [score(fed, models[i] if i in models else models["linear"], fed.client_model(i)) for i in range(3)]
        assert metrics["client_accuracy"] == pytest.approx(sum(own) / 3)
        assert (metrics["client_accuracy_min"], metrics["client_accuracy_max"]) == (min(own), max(own))
        if run in SERVERS:
            assert metrics["accuracy"] == metrics["server_accuracy"] == score(fed, models["server"], fed.server_model())
        else:
            assert metrics["accuracy"] == metrics["client_accuracy"] and "server_accuracy" not in metrics


@every_baseline
def test_with_a_public_test_set_the_server_is_judged_on_that_and_clients_on_the_private_one(run):
    fed = labelled(sizes=SIZES, public_test=samples(50, seed=9))
    metrics, state = last(run(fed, **QUICK, lr=0.05))
    models = {name: dict(saved["model"]) for name, saved in state["networks"].items()}
    clients = [models[i] if i in models else models["linear"] for i in range(3)]
    for key, on in [("client_accuracy", "test"), ("client_accuracy_public_test", "public_test")]:
        assert metrics[key] == pytest.approx(sum(score(fed, model, fed.client_model(0), on) for model in clients) / 3)
    if run in SERVERS:
        assert metrics["accuracy"] == metrics["server_accuracy"] == score(fed, models["server"], fed.server_model(), "public_test")
        assert metrics["server_accuracy_private_test"] == score(fed, models["server"], fed.server_model(), "test")


@every_baseline
def test_nothing_travels(run):
    _, *rounds = run(labelled(), **QUICK)
    assert [(metrics["bytes_up"], metrics["bytes_down"]) for metrics, _ in rounds] == [(0, 0)] * 3


@every_baseline
def test_every_baseline_learns(run):
    metrics = [metrics for metrics, _ in run(labelled(sizes=(40,) * 3, num_public=40), rounds=10, batch_size=16, lr=0.05)]
    assert metrics[-1]["client_accuracy"] > max(0.6, metrics[0]["client_accuracy"])
    assert run not in SERVERS or metrics[-1]["server_accuracy"] > max(0.6, metrics[0]["server_accuracy"])


# ------------------------------------------------------------------------------------------------------ states, optimisers

@every_baseline
def test_resuming_from_any_round_gives_the_same_bytes(run):
    fed = labelled(sizes=SIZES, network=with_batchnorm)
    rounds = list(run(fed, **QUICK))
    assert [state["round"] for _, state in rounds] == [0, 1, 2, 3]
    for t in range(4):
        resumed = list(run(fed, copy.deepcopy(rounds[t][1]), **QUICK))
        for (a, state_a), (b, state_b) in zip(resumed, rounds[t + 1:], strict=True):
            assert a == b and same(state_a, state_b)


@every_baseline
def test_a_rounds_state_is_not_changed_by_the_next(run):
    states = [(state, copy.deepcopy(state)) for _, state in run(labelled(sizes=SIZES, network=with_batchnorm), **QUICK)]
    assert all(same(state, snapshot) for state, snapshot in states)


@every_baseline
def test_the_optimiser_asked_for_is_used(run):
    models = {name: trained(run, labelled(sizes=SIZES), optimizer=name) for name in OPTIMIZERS}
    assert not same(models["sgd"], models["adam"]) and same(trained(run, labelled(sizes=SIZES)), models["amsgrad"])


@pytest.mark.parametrize("name, amsgrad", [("amsgrad", True), ("adam", False)])
def test_amsgrad_is_the_papers_adam(name, amsgrad):
    optimizer = OPTIMIZERS[name]([torch.zeros(1, requires_grad=True)], lr=1e-3, weight_decay=1e-4)
    assert type(optimizer) is torch.optim.Adam and optimizer.defaults["amsgrad"] is amsgrad
