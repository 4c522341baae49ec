"""FedBE: draws from the posterior over models, the sharpened teacher, whole rounds."""
import math
from functools import partial

import pytest
import torch
from slow import slow_learner, slow_training, towards_probs
from toys import federation, last, rounds, same, with_batchnorm

from algorithms import fedavg, fedbe
from federation import accuracy, average_weights, make_rng, predict_models

LOCAL = {"local_epochs": 1, "batch_size": 2, "lr": 0.1}
SERVER = {"distill_steps": 5, "server_batch_size": 4, "server_lr": 0.3}
QUICK = {"rounds": 2, "participation": 1.0, **LOCAL, **SERVER}
SIZES = (5, 3, 4, 6)


def models(*values):
    """State_dicts of two numbers each, far enough apart to be told from one another."""
    return [{"w": torch.tensor([float(v), 10.0 * v])} for v in values]


def clients_of_round(fed, t, weights):
    """What the clients upload in round t: their weights."""
    return [fedbe.train_client(fed, fedbe.Config(**LOCAL), t, i, weights)
            for i in range(len(SIZES))]


def test_gaussian_sample_by_hand():
    """Weights 1 : 3 of 2 and 6: mean 5, variance 1/4 * 9 + 3/4 * 1 = 3."""
    noise = make_rng(0, "draw").standard_normal(2, dtype="float32")
    sample = fedbe.gaussian_sample(models(2, 6), [10, 30], make_rng(0, "draw"))["w"]
    expected = [5 + math.sqrt(3) * noise[0], 50 + math.sqrt(300) * noise[1]]
    assert sample.tolist() == pytest.approx(expected, rel=1e-6)


def test_the_deviation_of_usable_weights_is_finite():
    """Weights of 1e29 are usable. In float32 the squares of 2e19 and more are infinite."""
    noise = make_rng(0, "draw").standard_normal(2, dtype="float32")
    sample = fedbe.gaussian_sample(models(-1e28, 1e28), [1, 1], make_rng(0, "draw"))["w"]
    assert sample.dtype == torch.float32
    assert sample.tolist() == pytest.approx([1e28 * noise[0], 1e29 * noise[1]], rel=1e-6)


@pytest.mark.parametrize("concentration, more", [(1.0, ()), (2.0, (2.0,))])
def test_dirichlet_sample_by_hand(concentration, more):
    """sum gamma p w / sum gamma p, with p = 1/4 and 3/4, the same for all entries."""
    a, b = make_rng(0, "draw").dirichlet([concentration, concentration])
    sample = fedbe.dirichlet_sample(models(2, 6), [10, 30], make_rng(0, "draw"), *more)
    expected = (a * .25 * 2 + b * .75 * 6) / (a * .25 + b * .75)
    assert sample["w"].tolist() == pytest.approx([expected, 10 * expected], rel=1e-6)


@pytest.mark.parametrize("draw", [fedbe.gaussian_sample, fedbe.dirichlet_sample])
def test_samples_have_the_averages_buffers(draw):
    """BatchNorm's own parameters are drawn."""
    fed = federation(sizes=SIZES, network=with_batchnorm)
    states = clients_of_round(fed, 1, fed.global_model().state_dict())
    average, sample = average_weights(states, SIZES), draw(states, SIZES, make_rng(0))
    for name in ("0.running_mean", "0.running_var", "0.num_batches_tracked"):
        assert same(sample[name], average[name])
    assert not torch.allclose(sample["0.weight"], average["0.weight"], atol=1e-5)


def test_kl_is_a_sum_over_classes_from_teacher_to_student():
    """The mean of two samples; from student to teacher the first would be .2231, not .1927."""
    teacher = torch.tensor([[.8, .2], [.1, .9]], dtype=torch.float64).log()
    student = torch.tensor([[.5, .5], [.3, .7]], dtype=torch.float64).log() + 4
    first = .8 * math.log(.8 / .5) + .2 * math.log(.2 / .5)
    second = .1 * math.log(.1 / .3) + .9 * math.log(.9 / .7)
    found = fedbe.kl_divergence(student, teacher).item()
    assert found == pytest.approx((first + second) / 2, abs=1e-12)


@pytest.mark.parametrize("posterior, draw", [
    ("gaussian", fedbe.gaussian_sample),
    ("dirichlet", partial(fedbe.dirichlet_sample, concentration=9.0))])
def test_the_average_learns_from_the_ensemble_and_goes_on(posterior, draw):
    """Of the average, clients and samples: slow SGD towards their sharpened mean probability. Round
    2 begins with what round 1 distilled."""
    fed = federation(sizes=SIZES)
    expected = fed.global_model().state_dict()
    for t in (1, 2):
        own, rng = clients_of_round(fed, t, expected), make_rng(0, "posterior", t)
        members = [average_weights(own, SIZES), *own, *(draw(own, SIZES, rng) for _ in range(2))]
        mean = predict_models(fed, members, fed.public.images).softmax(-1).sum(0) / (1 + 4 + 2)
        teacher = mean**2 / (mean**2).sum(-1, keepdim=True)
        student = slow_learner(members[0])
        slow_training(student, torch.optim.SGD(student, lr=0.3), fed.public.images,
                      towards_probs(teacher.tolist()), epochs=5, steps=5, batch_size=4,
                      rng=make_rng(0, "distil", t))
        weights, biases = (w.detach().float() for w in student)
        expected = {"1.weight": weights, "1.bias": biases}
    metrics, state = last(rounds(fedbe, fed, **QUICK, distill=True, samples=2,
                                 posterior=posterior, concentration=9.0))
    for name, w in expected.items():
        assert torch.allclose(state["server"]["model"][name], w, atol=1e-5)
    logits = predict_models(fed, members, fed.test.images)
    assert metrics["ensemble_accuracy"] == accuracy(logits.mean(0), fed.test.labels)
    assert metrics["teacher_forwards"] == (1 + 4 + 2) * 8


def test_a_global_model_that_diverges_in_distillation_is_the_average():
    """Of both rounds, as FedAvg's: its rate of 1e38 makes it nan."""
    fed = federation(sizes=SIZES)
    metrics, state = last(rounds(fedbe, fed, **{**QUICK, "server_lr": 1e38}, distill=True))
    _, plain = last(rounds(fedavg, fed, rounds=2, participation=1.0, **LOCAL))
    assert same(state["server"], plain["server"]) and metrics["bad_uploads"] == 0
