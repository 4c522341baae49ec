"""FedAvg and FedProx: rounds against slow loops, the proximal term."""

import pytest
import torch
from slow import close, slow_learner, slow_training, towards_labels
from toys import (federation, last, linear, loaded, rounds, same, sample_clients,
                  with_batchnorm)

from algorithms import fedavg, fedbe, fedprox, scaffold
from federation import accuracy, average_weights, make_rng, predict

LOCAL = {"local_epochs": 3, "batch_size": 2, "lr": 0.1}
QUICK = {**LOCAL, "rounds": 2, "participation": 0.5}


def slow_client(fed, start, t, i, *, local_epochs, batch_size, lr, mu=0.0):
    """A client's weights and biases after softmax regression by SGD from a state_dict."""
    learner, (images, labels) = slow_learner(start), fed.private[i]
    slow_training(learner, torch.optim.SGD(learner, lr=lr), images, towards_labels(labels), mu=mu,
                  epochs=local_epochs, batch_size=batch_size, rng=make_rng(fed.seed, "local", t, i))
    return learner


def slow_average(learners, sizes):
    """The state_dict of their mean, by numbers of samples."""
    return {name: sum(n * w.detach() for n, w in zip(sizes, ws)) / sum(sizes)
            for name, ws in zip(("1.weight", "1.bias"), zip(*learners))}


@pytest.mark.parametrize("module, mu", [(fedavg, 0.0), (fedprox, 0.7)])
def test_two_rounds_against_a_slow_loop(module, mu):
    fed = federation(sizes=(5, 3, 4, 6))
    expected = fed.client_model(0).state_dict()
    for t in (1, 2):
        active = sample_clients(4, 0.5, make_rng(0, "active", t))
        trained = [slow_client(fed, expected, t, i, **LOCAL, mu=mu) for i in active]
        expected = slow_average(trained, [len(fed.private[i].labels) for i in active])
    metrics, state = last(rounds(module, fed, **QUICK, **({"mu": mu} if mu else {})))
    assert close(state["server"]["model"], expected.values())
    assert metrics["bytes_up"] == metrics["bytes_down"] == 2 * 4 * (3 * 4 + 3)    # of two clients


@pytest.mark.parametrize("module, more", [
    pytest.param(fedavg, {}, id="fedavg"), pytest.param(fedprox, {"mu": 0.0}, id="fedprox"),
    (scaffold, {}), (fedbe, {"posterior": "gaussian"}), (fedbe, {"posterior": "dirichlet"})])
def test_a_federation_of_one_is_local_training(module, more):
    """Its control corrects nothing, its posterior is a point, its ensemble says what it says."""
    fed = federation(sizes=(5,))
    own = fed.client_model(0).state_dict()
    for t in (1, 2):
        own = fedavg.train_client(fed, fedavg.Config(**LOCAL), t, 0, own)
    metrics, state = last(rounds(module, fed, rounds=2, **LOCAL, **more))
    found = state["server"]["model"]
    assert all(torch.allclose(found[name], w, atol=1e-5) for name, w in own.items())
    assert metrics.get("ensemble_accuracy", metrics["accuracy"]) == metrics["accuracy"]
    assert metrics["bad_uploads"] == 0 and not metrics.get("disagreement")


def test_proximal_gradient_is_mu_times_difference():
    """Over all weights and biases, of the client's model alone. A distance has one of length 1."""
    model = linear()
    start = {n: torch.full_like(w, 2., requires_grad=True) for n, w in model.state_dict().items()}
    fedprox.proximal_term(model, start, 0.3).backward()
    assert all(w.grad is None for w in start.values())
    assert all(torch.allclose(w.grad, 0.3 * (w - 2)) for w in model.parameters())


def test_proximal_term_ignores_buffers():
    model = with_batchnorm()
    start = {name: w.clone() for name, w in model.state_dict().items()}
    model[0].running_mean.fill_(5.0)
    assert fedprox.proximal_term(model, start, 1.0).item() == 0


def test_averaged_weights_are_the_mean_of_the_last_global_models_and_change_nothing_else():
    """Of two: in round 1 of the only one. The untrained model is not among them."""
    fed = federation()
    plain = list(rounds(fedavg, fed, rounds=3, **LOCAL))
    found = list(rounds(fedavg, fed, rounds=3, average_last=2, **LOCAL))
    models = [state["server"]["model"] for _, state in found]
    assert same(models, [state["server"]["model"] for _, state in plain])
    for t, expected in [(1, models[1]), (3, average_weights(models[2:], [1, 1]))]:
        metrics, state = found[t]
        logits = predict(loaded(fed.global_model(), expected), fed.test.images)
        assert metrics["averaged_accuracy"] == accuracy(logits, fed.test.labels)
        assert same(fedavg.averaged(state), expected)
    assert "averaged_accuracy" not in plain[1][0] and "last_models" not in plain[1][1]
    later = rounds(fedavg, fed, found[1][1], rounds=3, average_last=2, **LOCAL)
    assert same(list(later), found[2:])
