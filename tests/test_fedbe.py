"""FedBE: draws from the posterior over models, the ensemble, the sharpened teacher, whole rounds."""
import copy
import math
from functools import partial

import numpy as np
import pytest
import torch
from test_fedsdd import predictions, slow_distil
from toys import constant, federation, last, same, samples, with_batchnorm

from algorithms import fedavg, fedbe
from algorithms.common import average_weights, stream
from algorithms.evaluation import accuracy

LOCAL = {"local_epochs": 1, "batch_size": 2, "lr": 0.1}
SERVER = {"distill_steps": 5, "server_batch_size": 4, "server_lr": 0.3}
QUICK = {"rounds": 2, "participation": 1.0, **LOCAL, **SERVER}


def models(*values):
    """State_dicts of two numbers each, far enough apart to be told from one another."""
    return [{"w": torch.tensor([float(v), 10.0 * v])} for v in values]


# --------------------------------------------------------------------------------------------------------------- samples

def test_gaussian_sample_by_hand():
    """Weights 1 : 3 of 2 and 6: mean 5, variance 1/4 * 9 + 3/4 * 1 = 3."""
    noise = stream(0, "draw").standard_normal(2, dtype="float32")
    sample = fedbe.gaussian_sample(models(2, 6), [10, 30], stream(0, "draw"))["w"]
    assert sample.tolist() == pytest.approx([5 + math.sqrt(3) * noise[0], 50 + math.sqrt(300) * noise[1]], rel=1e-6)


def test_gaussian_samples_have_the_average_and_the_clients_variance():
    """Many draws: mean 5, variance 3; the public code's centre and floor give other moments."""
    rng = stream(0, "many")
    draws = torch.stack([fedbe.gaussian_sample(models(2, 6), [1, 3], rng)["w"] for _ in range(4000)])
    assert draws.mean(0).tolist() == pytest.approx([5, 50], rel=0.03) and draws.var(0).tolist() == pytest.approx([3, 300], rel=0.1)


def test_dirichlet_sample_by_hand():
    """sum gamma p w / sum gamma p, with p = 1/4 and 3/4."""
    a, b = stream(0, "draw").dirichlet([2.0, 2.0])
    sample = fedbe.dirichlet_sample(models(2, 6), [10, 30], stream(0, "draw"), concentration=2.0)["w"]
    expected = (a * .25 * 2 + b * .75 * 6) / (a * .25 + b * .75)
    assert sample.tolist() == pytest.approx([expected, 10 * expected], rel=1e-6)


def test_dirichlet_samples_of_equal_clients_have_their_average():
    rng = stream(0, "many")
    draws = torch.stack([fedbe.dirichlet_sample(models(2, 6, 7), [5, 5, 5], rng)["w"] for _ in range(4000)])
    assert draws.mean(0).tolist() == pytest.approx([5, 50], rel=0.03)


@pytest.mark.parametrize("concentration, spread", [(1e6, 0.01), (1e-3, 2.0)])
def test_concentration_goes_from_one_of_the_models_to_the_average(concentration, spread):
    draws = [fedbe.dirichlet_sample(models(2, 6), [1, 1], stream(0, j), concentration)["w"][0].item() for j in range(50)]
    assert all(2 <= draw <= 6 for draw in draws)
    assert np.std(draws) == pytest.approx(spread, abs=0.3 if spread > 1 else spread)
    assert np.mean([min(abs(d - 2), abs(d - 6), abs(d - 4)) for d in draws]) < 0.05


def test_samples_of_a_dirichlet_are_averages_of_the_models():
    """Every entry lies between the smallest and the largest of the models', with one and the same weight for all entries."""
    for j in range(20):
        a, b = fedbe.dirichlet_sample(models(2, 6), [1, 3], stream(1, j))["w"].tolist()
        assert 2 <= a <= 6 and b == pytest.approx(10 * a, rel=1e-6)


@pytest.mark.parametrize("draw", [fedbe.gaussian_sample, fedbe.dirichlet_sample])
def test_identical_clients_give_their_own_model(draw):
    model = federation(network=with_batchnorm).client_model(0).state_dict()
    sample = draw([model, model, model], [1, 2, 3], stream(0))
    assert sample.keys() == model.keys()
    for name, w in model.items():
        assert torch.allclose(sample[name], w, atol=1e-6) and sample[name].dtype == w.dtype


@pytest.mark.parametrize("draw", [fedbe.gaussian_sample, fedbe.dirichlet_sample])
def test_one_client_gives_its_own_model(draw):
    [model] = models(3)
    assert torch.allclose(draw([model], [7], stream(0))["w"], model["w"])


@pytest.mark.parametrize("draw", [fedbe.gaussian_sample, fedbe.dirichlet_sample])
def test_samples_have_the_averages_buffers(draw):
    fed = federation(sizes=(5, 3, 4), network=with_batchnorm)
    states = clients_of_round(fed, 1, fedavg.start_server(fed, "with_batchnorm"))
    average, sample = average_weights(states, [5, 3, 4]), draw(states, [5, 3, 4], stream(0))
    for name in ("0.running_mean", "0.running_var", "0.num_batches_tracked"):
        assert torch.equal(sample[name], average[name]) and sample[name].dtype == average[name].dtype
    assert not torch.allclose(sample["0.weight"], average["0.weight"], atol=1e-5)         # BatchNorm's own parameters are drawn


@pytest.mark.parametrize("draw", [fedbe.gaussian_sample, fedbe.dirichlet_sample])
def test_only_the_weights_proportions_matter_and_nothing_is_changed(draw):
    states, before = models(2, 6), copy.deepcopy(models(2, 6))
    assert torch.allclose(draw(states, [1, 3], stream(0))["w"], draw(states, [10, 30], stream(0))["w"], rtol=1e-5)
    assert same(states, before)


# --------------------------------------------------------------------------------------------------------------- teacher

def test_teacher_is_the_sharpened_mean_of_probabilities():
    """Members (.8, .2) and (.4, .6): mean (.6, .4), squares .36 : .16. The mean of the logits gives another teacher."""
    members = torch.tensor([[[.8, .2]], [[.4, .6]]]).log() + torch.tensor([[[3.0]], [[-2.0]]])       # a shift changes nothing
    probs = fedbe.sharpened_teacher(members).softmax(-1)[0]
    assert probs.tolist() == pytest.approx([.36 / .52, .16 / .52], abs=1e-6)
    by_logits = (2 * members.mean(0)).softmax(-1)[0]
    assert abs(by_logits[0].item() - .36 / .52) > 0.02


def test_teacher_of_logits_of_1e4_is_finite():
    members = torch.tensor([[[1e4, -1e4, 0.]], [[-1e4, 1e4, 0.]]])
    probs = fedbe.sharpened_teacher(members).softmax(-1)[0]
    assert probs.tolist() == pytest.approx([.5, .5, 0.], abs=1e-6)


def test_distil_is_plain_sgd_from_the_average():
    fed = federation(num_public=6)
    server, teacher = fedavg.start_server(fed, "linear"), 3 * torch.randn(6, 3)
    start = server["model"]
    weight, bias = slow_distil(fed, start["1.weight"].tolist(), start["1.bias"].tolist(), teacher, 0, 2, temperature=1.0, **SERVER)
    student = fedbe.distil(fed, 2, server, teacher, **SERVER)["model"]
    assert np.allclose(student["1.weight"], weight, atol=1e-5) and np.allclose(student["1.bias"], bias, atol=1e-5)


def test_fedbes_student_learns_from_augmented_public_images():
    """Here from black ones: no gradient for the weights, only for the bias."""
    fed = federation(augment=lambda images, rng: images * 0)
    server = fedavg.start_server(fed, "linear")
    start, student = server["model"], fedbe.distil(fed, 1, server, torch.randn(8, 3), **SERVER)["model"]
    assert torch.equal(student["1.weight"], start["1.weight"]) and not torch.equal(student["1.bias"], start["1.bias"])


# ---------------------------------------------------------------------------------------------------------- whole rounds

def clients_of_round(fed, t, server):
    return [fedavg.train_client(fed, i, t, server, **LOCAL)["model"] for i in range(len(fed.private))]


def test_ensemble_is_the_mean_of_average_clients_and_samples():
    fed = federation(sizes=(5, 3, 4, 6))
    metrics, _ = last(fedbe.run(fed, **{**QUICK, "rounds": 1}, posterior="dirichlet", samples=3, concentration=0.5))
    own, rng = clients_of_round(fed, 1, fedavg.start_server(fed, "linear")), stream(0, "posterior", 1)
    sampled = [fedbe.dirichlet_sample(own, [5, 3, 4, 6], rng, 0.5) for _ in range(3)]
    logits = predictions(fed, [average_weights(own, [5, 3, 4, 6]), *own, *sampled], fed.test.images)
    assert logits.shape[0] == 1 + 4 + 3
    assert metrics["ensemble_accuracy"] == accuracy(logits.mean(0), fed.test.labels)


def test_the_ensemble_predicts_by_mean_logits_not_by_mean_probabilities():
    """Class 0 wins, 10/3 to 2. It would lose by probabilities: two of three are sure of class 1."""
    fed = federation(test=samples(6)._replace(labels=torch.zeros(6, dtype=torch.int64)))
    average, *own = members = [{"architecture": "linear", "model": constant(*logits)}
                               for logits in [(10., 0., 0.), (0., 3., 0.), (0., 3., 0.)]]
    metrics = fedbe.evaluate(fed, {"server": average}, members)
    assert metrics["ensemble_accuracy"] == 1


def test_without_samples_the_ensemble_is_the_mean_of_clients_and_average():
    fed = federation(sizes=(5, 3, 4, 6))
    runs = [last(fedbe.run(fed, **QUICK, samples=0, posterior=posterior))[0] for posterior in ("gaussian", "dirichlet")]
    assert runs[0] == runs[1]
    (_, first) = list(fedbe.run(fed, **{**QUICK, "rounds": 1}, samples=0))[-1]
    own = clients_of_round(fed, 2, first["server"])
    logits = predictions(fed, [average_weights(own, [5, 3, 4, 6]), *own], fed.test.images)
    assert runs[0]["ensemble_accuracy"] == accuracy(logits.mean(0), fed.test.labels)


@pytest.mark.parametrize("network", [with_batchnorm, None])
def test_without_distillation_the_global_model_is_fedavgs_bit_for_bit(network):
    fed = federation(**({"network": network} if network else {}))
    plain = list(fedavg.run(fed, rounds=3, participation=0.5, **LOCAL))
    ours = list(fedbe.run(fed, rounds=3, participation=0.5, **LOCAL))
    for (a, state_a), (b, state_b) in zip(plain, ours, strict=True):
        assert same(state_a["server"], state_b["server"]) and {key: b[key] for key in a} == a


def test_without_distillation_no_public_images_are_needed():
    assert len(list(fedbe.run(federation(public=None), **QUICK))) == 3


def test_posteriors_and_rounds_draw_different_models():
    fed = federation(sizes=(5, 3, 4, 6))
    results = {name: last(fedbe.run(fed, **QUICK, distill=True, posterior=name))[1]["server"]["model"]["1.weight"]
               for name in ("gaussian", "dirichlet")}
    assert not torch.equal(results["gaussian"], results["dirichlet"])
    assert not np.array_equal(stream(0, "posterior", 1).random(3), stream(0, "posterior", 2).random(3))


@pytest.mark.parametrize("posterior, draw", [
    ({"posterior": "gaussian"}, fedbe.gaussian_sample),
    ({"posterior": "dirichlet", "concentration": 9.0},
     partial(fedbe.dirichlet_sample, concentration=9.0))])
def test_with_distillation_the_average_learns_from_the_ensemble_and_the_next_round_begins_with_it(
        posterior, draw):
    fed = federation(sizes=(5, 3, 4, 6))
    server = fedavg.start_server(fed, "linear")
    for t in (1, 2):
        own, rng = clients_of_round(fed, t, server), stream(0, "posterior", t)
        average = average_weights(own, [5, 3, 4, 6])
        sampled = [draw(own, [5, 3, 4, 6], rng) for _ in range(2)]
        member_logits = predictions(fed, [average, *own, *sampled], fed.public.images)
        mean = sum(logits.softmax(-1) for logits in member_logits) / 7
        teacher = (mean**2 / (mean**2).sum(-1, keepdim=True)).log()
        server = fedbe.distil(fed, t, server | {"model": average}, teacher, **SERVER)
    metrics, state = last(fedbe.run(fed, **QUICK, distill=True, samples=2, **posterior))
    for name, w in server["model"].items():
        assert torch.allclose(state["server"]["model"][name], w, atol=1e-5)
    assert metrics["teacher_forwards"] == 7 * 8
    assert metrics["accuracy"] == accuracy(predictions(fed, [state["server"]["model"]], fed.test.images)[0], fed.test.labels)


def test_uploads_that_are_not_finite_are_in_neither_average_nor_ensemble():
    fed = federation(sizes=(5, 3, 4))
    fed.private[1].images[:] = math.nan
    metrics, state = last(fedbe.run(fed, **QUICK, distill=True))
    assert metrics["bad_uploads"] == 1 and metrics["teacher_forwards"] == (1 + 2 + 10) * 8
    assert all(torch.isfinite(w).all() for w in state["server"]["model"].values())


def test_a_round_without_any_good_upload_goes_on_with_the_model_alone():
    fed = federation(sizes=(5,))
    fed.private[0].images[:] = math.nan
    metrics, state = last(fedbe.run(fed, **QUICK))
    assert metrics["bad_uploads"] == 1 and metrics["disagreement"] is None
    assert same(state["server"], fedavg.start_server(fed, "linear"))


def test_a_secure_sum_is_refused_with_the_reason():
    """The command line says the reason."""
    assert "clients' own models" in fedbe.REFUSED_FLAGS["secure_sum"]
    with pytest.raises(TypeError, match="secure_sum"):
        next(fedbe.run(federation(), secure_sum=True))
