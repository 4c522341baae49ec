"""FedAvg and FedProx: rounds against slow loops, the proximal term, uploads that are not finite."""
import math

import numpy as np
import pytest
import torch
from toys import federation, last, linear, same, samples, with_batchnorm, with_dropout

import algorithms.fedavg as fedavg
from algorithms import fedbe, feddf, fedprox, fedsdd, scaffold
from algorithms.common import sample_clients, stream
from algorithms.equations import average_weights
from algorithms.evaluation import accuracy
from algorithms.training import batches, predict_members
from communication import buffers_bytes, weights_bytes

QUICK = {"rounds": 2, "participation": 0.5, "local_epochs": 2, "batch_size": 2, "lr": 0.1}


def slow_local_training(data, weight, bias, mu, seed, t, i, *, local_epochs, batch_size, lr):
    """Softmax regression by SGD, one sample and one number at a time, in plain Python floats."""
    start_weight, start_bias = [row[:] for row in weight], bias[:]
    weight, bias = [row[:] for row in weight], bias[:]
    for rows in batches(len(data.labels), batch_size, local_epochs, stream(seed, "local", t, i)):
        grad_weight, grad_bias = [[0.0] * 4 for _ in weight], [0.0] * len(bias)
        for n in rows.tolist():
            x, y = data.images[n].flatten().tolist(), int(data.labels[n])
            z = [sum(w * v for w, v in zip(weight[c], x)) + bias[c] for c in range(len(bias))]
            p = [math.exp(v) / sum(math.exp(u) for u in z) for v in z]
            for c in range(len(bias)):
                error = (p[c] - (c == y)) / len(rows)
                grad_bias[c] += error
                for d in range(4):
                    grad_weight[c][d] += error * x[d]
        for c in range(len(bias)):
            bias[c] -= lr * (grad_bias[c] + mu * (bias[c] - start_bias[c]))
            for d in range(4):
                weight[c][d] -= lr * (grad_weight[c][d] + mu * (weight[c][d] - start_weight[c][d]))
    return weight, bias


@pytest.mark.parametrize("run, mu", [(fedavg.run, 0.0), (fedprox.run, 0.7)])
def test_two_rounds_against_a_slow_loop(run, mu):
    fed = federation(sizes=(5, 3, 4, 6))
    model = fed.client_model(0)
    weight, bias = model[1].weight.tolist(), model[1].bias.tolist()
    for t in (1, 2):
        active = sample_clients(4, 0.5, stream(0, "active", t))
        trained = [slow_local_training(fed.private[i], weight, bias, mu, 0, t, i, local_epochs=2, batch_size=2, lr=0.1) for i in active]
        shares = [len(fed.private[i].labels) / sum(len(fed.private[j].labels) for j in active) for i in active]
        weight = [[sum(s * w[c][d] for s, (w, _) in zip(shares, trained)) for d in range(4)] for c in range(3)]
        bias = [sum(s * b[c] for s, (_, b) in zip(shares, trained)) for c in range(3)]
    _, state = last(run(fed, **QUICK, **({"mu": mu} if mu else {})))
    assert np.allclose(state["server"]["model"]["1.weight"], weight, atol=1e-5)
    assert np.allclose(state["server"]["model"]["1.bias"], bias, atol=1e-5)


def test_fedavg_round_by_hand():
    """One full-batch step each from weights 0: the gradient is the mean of (1/C - [class is the label]) x, times n_k / sum n."""
    fed = federation(sizes=(2, 6, 4))
    zero = {"architecture": "linear", "model": {"1.weight": torch.zeros(3, 4), "1.bias": torch.zeros(3)}}
    uploads = {i: fedavg.train_client(fed, i, 1, zero, local_epochs=1, batch_size=64, lr=1.0) for i in (1, 2)}
    server = fedavg.aggregate(fed, zero, uploads)
    expected = torch.zeros(3)
    for i in (1, 2):                                                    # client 0 is not active: the shares are 6/10 and 4/10
        labels = fed.private[i].labels.tolist()
        for label in labels:
            gradient = torch.tensor([1 / 3 - (c == label) for c in range(3)])
            expected -= len(labels) / 10 * gradient / len(labels)
    assert torch.allclose(server["model"]["1.bias"], expected, atol=1e-6)


def test_one_client_and_one_group_is_that_clients_model():
    fed = federation(sizes=(5,))
    server = fedavg.start_server(fed, fed.architecture[0])
    upload = fedavg.train_client(fed, 0, 1, server, local_epochs=1, batch_size=2, lr=0.1)
    assert same(fedavg.aggregate(fed, server, {0: upload}), {"architecture": "linear", "model": dict(upload["model"])})


DISTIL = {"distill_steps": 3, "server_batch_size": 4, "server_lr": 0.1}


@pytest.mark.parametrize("module, more", [
    (fedavg, {}), (fedprox, {"mu": 0.0}), (scaffold, {}), (fedbe, {"posterior": "gaussian"}),
    (fedbe, {"posterior": "dirichlet"}), (fedsdd, {"K": 1, **DISTIL}),
    (feddf, {"server_optimizer": "sgd", **DISTIL})],
    ids=["fedavg", "fedprox", "scaffold", "gaussian", "dirichlet", "fedsdd", "feddf"])
def test_a_federation_of_one_client_learns_as_that_client_does_alone(module, more):
    """The default share of one client is one; a lone client's control corrects nothing, its
    posterior is a point, and its ensemble teaches it what it says itself."""
    fed = federation(sizes=(5,), validation=samples(20))
    local, own = {"local_epochs": 2, "batch_size": 2, "lr": 0.1}, fedavg.start_server(fed, "linear")
    for t in (1, 2):
        own = own | {"model": fedavg.train_client(fed, 0, t, own, **local)["model"]}
    metrics, state = last(module.run(fed, rounds=2, **local, **more))
    [found] = state.get("global_models") or [state["server"]]
    for name, w in own["model"].items():
        assert torch.allclose(found["model"][name], w, atol=1e-5)
    [logits] = predict_members(fed, [own], fed.test.images)
    expected = {"accuracy": accuracy(logits, fed.test.labels), "bad_uploads": 0}
    if "ensemble_accuracy" in module.COLUMNS:
        expected["ensemble_accuracy"] = expected["accuracy"]
    assert metrics | expected == metrics and not metrics.get("disagreement")


def test_training_changes_neither_what_the_server_sent_nor_the_data():
    fed = federation(network=with_batchnorm)
    server = fedavg.start_server(fed, fed.architecture[0])
    before = {name: w.clone() for name, w in server["model"].items()}, fed.private[0].images.clone()
    fedavg.train_client(fed, 0, 1, server, local_epochs=2, batch_size=2, lr=0.1)
    assert same(dict(server["model"]), before[0]) and torch.equal(fed.private[0].images, before[1])


@pytest.mark.parametrize("network", [linear, with_dropout])
def test_a_client_trains_the_same_whoever_trained_before(network):
    fed = federation(network=network)
    server = fedavg.start_server(fed, fed.architecture[0])
    settings = {"local_epochs": 2, "batch_size": 2, "lr": 0.1}
    alone = fedavg.train_client(fed, 2, 1, server, **settings)
    fedavg.train_client(fed, 0, 1, server, **settings)
    again = fedavg.train_client(fed, 2, 1, server, **settings)
    assert same(dict(alone["model"]), dict(again["model"]))


LOCAL = [(fedavg, {}), (fedprox, {"mu": 0.0}), (scaffold, {})]


@pytest.mark.parametrize("module, more", LOCAL)
def test_augmentation_is_what_the_client_trains_on(module, more):
    fed = federation()
    blind = federation(augment=lambda images, rng: images * 0)
    server = module.start_server(fed, fed.architecture[0])
    settings = {"local_epochs": 1, "batch_size": 8, "lr": 0.1, **more}
    upload = module.train_client(blind, 0, 1, server, **settings)
    assert torch.equal(upload["model"]["1.weight"], server["model"]["1.weight"])       # black images: no gradient for the weights
    upload = module.train_client(fed, 0, 1, server, **settings)
    assert not torch.equal(upload["model"]["1.weight"], server["model"]["1.weight"])


@pytest.mark.parametrize("module, more", LOCAL[:2])
def test_weight_decay_shrinks_the_weights_by_hand(module, more):
    fed = federation(augment=lambda images, rng: images * 0)                           # so that only the decay moves the weights
    server = module.start_server(fed, fed.architecture[0])
    upload = module.train_client(fed, 0, 1, server, local_epochs=1, batch_size=8, lr=0.5, weight_decay=0.1, **more)
    assert torch.allclose(upload["model"]["1.weight"], (1 - 0.5 * 0.1) * server["model"]["1.weight"])


@pytest.mark.parametrize("module, more", LOCAL[:2])
def test_a_first_step_of_adam_is_the_rate_in_every_weight(module, more):
    """The gradient divided by its own size, so that --optimizer is seen to be obeyed."""
    fed = federation(sizes=(3,))
    server = module.start_server(fed, fed.architecture[0])
    upload = module.train_client(fed, 0, 1, server, local_epochs=1, batch_size=3, lr=0.01, optimizer="adam", **more)
    moved = (upload["model"]["1.weight"] - server["model"]["1.weight"]).abs()
    assert torch.allclose(moved, torch.full_like(moved, 0.01), rtol=1e-3)


@pytest.mark.parametrize("module, more", LOCAL)
def test_another_seed_draws_other_batches_and_another_dropout_from_the_same_weights(module, more):
    """The start is that of seed 0: what differs is drawn in the training."""
    for network, batch_size in [(linear, 2), (with_dropout, 5)]:                       # in one batch of 5 the dropout alone is drawn
        server = module.start_server(federation(network=network), network.__name__)
        trained = [module.train_client(federation(network=network, seed=seed), 0, 1, server, local_epochs=1, batch_size=batch_size,
                                       lr=0.1, **more)["model"] for seed in (0, 0, 1)]
        assert same(dict(trained[0]), dict(trained[1])) and not same(dict(trained[0]), dict(trained[2]))


def test_global_model_learns():
    rows = [metrics["accuracy"] for metrics, _ in fedavg.run(federation(sizes=(40,) * 4), rounds=15, participation=1.0,
                                                             local_epochs=2, batch_size=8, lr=0.1)]
    assert rows[-1] > 0.6 > 1 / 3 + 0.2                                  # three classes


def test_bytes_of_a_round_are_what_the_messages_hold():
    fed = federation(network=with_batchnorm)
    metrics, _ = last(fedavg.run(fed, **QUICK))
    model = fed.client_model(0)
    upload = fedavg.train_client(fed, 0, 1, fedavg.start_server(fed, fed.architecture[0]), local_epochs=1, batch_size=2, lr=0.1)
    sent = sum(w.numel() * w.element_size() for w in upload["model"].values())
    assert weights_bytes(model, 1) == 4 * (3 * 4 + 3 + 2) and buffers_bytes(model, 1) == 4 * 2 + 8
    assert sent == weights_bytes(model, 1) + buffers_bytes(model, 1)
    assert metrics["bytes_up"] == metrics["bytes_down"] == 2 * weights_bytes(model, 1)
    assert metrics["bytes_up_buffers"] == metrics["bytes_down_buffers"] == 2 * buffers_bytes(model, 1)


# --------------------------------------------------------------------------------------------------- uploads gone wrong

@pytest.mark.parametrize("module", [fedavg, fedprox])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_upload_is_left_out(module, bad):
    fed = federation(sizes=(5, 3, 4, 6))
    poisoned = federation(sizes=(5, 3, 4, 6))
    poisoned.private[1].images[0] = bad
    settings = {**QUICK, "rounds": 1, "participation": 1.0}
    metrics, state = last(module.run(poisoned, **settings))
    kept = {}
    for i in (0, 2, 3):
        kept[i] = module.train_client(fed, i, 1, module.start_server(fed, "linear"), local_epochs=2, batch_size=2, lr=0.1,
                                      **({"mu": 0.001} if module is fedprox else {}))["model"]
    assert metrics["bad_uploads"] == 1
    assert same(state["server"]["model"], average_weights(list(kept.values()), [5, 4, 6]))


def test_a_round_without_a_single_good_upload_keeps_the_global_model():
    fed = federation()
    for private in fed.private:
        private.images[:] = math.nan
    metrics, state = last(fedavg.run(fed, **QUICK))
    assert metrics["bad_uploads"] == 2 and same(state["server"], fedavg.start_server(fed, "linear"))


# --------------------------------------------------------------------------------------------------------------- FedProx

def one_weight(value):
    model = torch.nn.Linear(1, 1, bias=False).double()
    model.weight.data.fill_(value)
    return model


def test_proximal_term_is_half_mu_times_the_squared_distance_by_hand():
    assert fedprox.proximal_term(one_weight(3.0), {"weight": torch.tensor([[1.0]]).double()}, 0.5).item() == 0.5 / 2 * (3 - 1) ** 2


def test_gradient_of_the_proximal_term_is_mu_times_the_difference():
    model, start = linear().double(), {name: torch.randn(w.shape).double() for name, w in linear().state_dict().items()}
    fedprox.proximal_term(model, start, 0.3).backward()
    for name, w in model.named_parameters():                             # an un-squared norm would be 1 long; weights alone, no bias
        assert torch.allclose(w.grad, 0.3 * (w.detach() - start[name]))


def test_two_proximal_steps_by_hand():
    """w0 = 1, gradient 2, mu = .5, lr = .1: 1 - .1 * 2 = .8; .8 - .1 * (2 + .5 * (.8 - 1)) = .61."""
    model, start = one_weight(1.0), {"weight": torch.tensor([[1.0]]).double()}
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        sgd.zero_grad()
        (2 * model.weight.sum() + fedprox.proximal_term(model, start, 0.5)).backward()
        sgd.step()
    assert model.weight.item() == pytest.approx(.8 - .1 * (2 + .5 * (.8 - 1)), abs=1e-12)


def test_proximal_term_ignores_buffers():
    model = with_batchnorm()
    start = {name: w.clone() for name, w in model.state_dict().items()}
    model[0].running_mean.fill_(5.0)
    assert fedprox.proximal_term(model, start, 1.0).item() == 0


def test_proximal_term_gives_the_global_model_no_gradient():
    model, start = linear(), {name: torch.zeros_like(w, requires_grad=True) for name, w in linear().state_dict().items()}
    fedprox.proximal_term(model, start, 1.0).backward()
    assert all(w.grad is None for w in start.values())


@pytest.mark.parametrize("network", [linear, with_batchnorm, with_dropout])
def test_fedprox_with_mu_0_is_fedavg_bit_for_bit(network):
    fed = federation(network=network)
    for (a, state_a), (b, state_b) in zip(fedavg.run(fed, **QUICK), fedprox.run(fed, **QUICK, mu=0.0), strict=True):
        assert a == b and same(state_a, state_b)


def test_mu_holds_the_clients_near_the_global_model():
    fed, moved = federation(), {}
    server = fedavg.start_server(fed, fed.architecture[0])
    for mu in (0.0, 1.0, 5.0):
        upload = fedprox.train_client(fed, 0, 1, server, local_epochs=20, batch_size=8, lr=0.1, mu=mu)
        moved[mu] = sum((upload["model"][name] - w).square().sum().item() for name, w in server["model"].items())
    assert moved[0.0] > moved[1.0] > moved[5.0] > 0
