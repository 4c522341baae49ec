"""FedBE: draws from the posterior over models, the sharpened teacher, whole rounds."""
import math
from functools import partial

import pytest
import torch
from toys import SHAPE, federation, last, same, slopes, with_batchnorm

from algorithms import fedavg, fedbe, fedsdd
from algorithms.equations import average_weights
from algorithms.evaluation import accuracy
from algorithms.training import predict_members
from federation import Data, stream

LOCAL = {"local_epochs": 1, "batch_size": 2, "lr": 0.1}
SERVER = {"distill_steps": 5, "server_batch_size": 4, "server_lr": 0.3}
QUICK = {"rounds": 2, "participation": 1.0, **LOCAL, **SERVER}
SIZES = (5, 3, 4, 6)


def models(*values):
    """State_dicts of two numbers each, far enough apart to be told from one another."""
    return [{"w": torch.tensor([float(v), 10.0 * v])} for v in values]


def clients_of_round(fed, t, server):
    return [fedavg.train_client(fed, i, t, server, **LOCAL)["model"] for i in range(len(SIZES))]


def test_gaussian_sample_by_hand():
    """Weights 1 : 3 of 2 and 6: mean 5, variance 1/4 * 9 + 3/4 * 1 = 3."""
    noise = stream(0, "draw").standard_normal(2, dtype="float32")
    sample = fedbe.gaussian_sample(models(2, 6), [10, 30], stream(0, "draw"))["w"]
    expected = [5 + math.sqrt(3) * noise[0], 50 + math.sqrt(300) * noise[1]]
    assert sample.tolist() == pytest.approx(expected, rel=1e-6)


def test_dirichlet_sample_by_hand():
    """sum gamma p w / sum gamma p, with p = 1/4 and 3/4, the same for all entries."""
    a, b = stream(0, "draw").dirichlet([2.0, 2.0])
    sample = fedbe.dirichlet_sample(models(2, 6), [10, 30], stream(0, "draw"), concentration=2.0)
    expected = (a * .25 * 2 + b * .75 * 6) / (a * .25 + b * .75)
    assert sample["w"].tolist() == pytest.approx([expected, 10 * expected], rel=1e-6)


def test_dirichlet_samples_of_equal_clients_have_their_average():
    """Of uniform gammas, if there is no other concentration: gamma_1 has the variance 1/12."""
    states, rng = models(4, 6), stream(0, "many")
    draws = torch.stack([fedbe.dirichlet_sample(states, [5, 5], rng)["w"] for _ in range(2000)])
    assert draws.mean(0).tolist() == pytest.approx([5, 50], rel=0.03)
    assert draws.var(0).tolist() == pytest.approx([2**2 / 12, 20**2 / 12], rel=0.1)


@pytest.mark.parametrize("draw", [fedbe.gaussian_sample, fedbe.dirichlet_sample])
def test_samples_have_the_averages_buffers(draw):
    """BatchNorm's own parameters are drawn."""
    fed = federation(sizes=SIZES, network=with_batchnorm)
    states = clients_of_round(fed, 1, fedavg.start_server(fed, "with_batchnorm"))
    average, sample = average_weights(states, SIZES), draw(states, SIZES, stream(0))
    for name in ("0.running_mean", "0.running_var", "0.num_batches_tracked"):
        assert same(sample[name], average[name])
    assert not torch.allclose(sample["0.weight"], average["0.weight"], atol=1e-5)


def test_teacher_is_the_sharpened_mean_of_probabilities():
    """(.8, .2) and (.4, .6): mean (.6, .4), squares .36 : .16; a shift of logits is nothing."""
    members = torch.tensor([[[.8, .2]], [[.4, .6]]]).log() + torch.tensor([[[3.0]], [[-2.0]]])
    probs = fedbe.sharpened_teacher(members).softmax(-1)[0]
    assert probs.tolist() == pytest.approx([.36 / .52, .16 / .52], abs=1e-6)
    probs = fedbe.sharpened_teacher(torch.tensor([[[1e4, -1e4]], [[-1e4, 1e4]]])).softmax(-1)[0]
    assert probs.tolist() == pytest.approx([.5, .5], abs=1e-6)


def test_distill_is_plain_sgd_from_the_average():
    """One step on sum p ln (p / q). Clients stay where they start (lr = 0), so that the average and
    all members are the start. On black images its logits are its biases z, and p is proportional to
    the square of the softmax of z."""
    fed, lr = federation(public=Data(torch.zeros(2, *SHAPE), None)), 0.3
    (_, start), (_, end) = fedbe.run(fed, rounds=1, lr=0.0, local_epochs=1, samples=0, distill=True,
                                     distill_steps=1, server_batch_size=1, server_lr=lr)
    z = start["server"]["model"]["1.bias"].tolist()
    p = [math.exp(2 * v) / sum(math.exp(2 * u) for u in z) for v in z]

    def kl(z):
        q = [math.exp(v) / sum(math.exp(u) for u in z) for v in z]
        return sum(p_c * math.log(p_c / q_c) for p_c, q_c in zip(p, q))

    expected = [v - lr * slope for v, slope in zip(z, slopes(kl, z))]
    assert end["server"]["model"]["1.bias"].tolist() == pytest.approx(expected, abs=1e-5)


def test_without_distillation_the_global_model_is_fedavgs():
    """Bit for bit, and needs no public images."""
    fed = federation(network=with_batchnorm, public=None)
    plain, ours = (algo.run(fed, rounds=3, participation=0.5, **LOCAL) for algo in (fedavg, fedbe))
    for (a, state_a), (b, state_b) in zip(plain, ours, strict=True):
        assert same(state_a["server"], state_b["server"]) and a.items() <= b.items()
        assert b.get("teacher_forwards", 0) == 0


@pytest.mark.parametrize("posterior, draw", [
    ("gaussian", fedbe.gaussian_sample),
    ("dirichlet", partial(fedbe.dirichlet_sample, concentration=9.0))])
def test_the_average_learns_from_the_ensemble_and_goes_on(posterior, draw):
    """Of the average, clients and samples; round 2 begins with what round 1 distilled."""
    fed = federation(sizes=SIZES)
    server = fedavg.start_server(fed, "linear")
    for t in (1, 2):
        own, rng = clients_of_round(fed, t, server), stream(0, "posterior", t)
        states = [average_weights(own, SIZES), *own, *(draw(own, SIZES, rng) for _ in range(2))]
        members = [server | {"model": w} for w in states]
        mean = predict_members(fed, members, fed.public.images).softmax(-1).sum(0) / (1 + 4 + 2)
        teacher = (mean**2 / (mean**2).sum(-1, keepdim=True)).log()
        server = fedsdd.distill(fed, members[0], teacher, temperature=1.0, keys=("distil", t),
                                **SERVER)
    metrics, state = last(fedbe.run(fed, **QUICK, distill=True, samples=2, posterior=posterior,
                                    concentration=9.0))
    for name, w in server["model"].items():
        assert torch.allclose(state["server"]["model"][name], w, atol=1e-5)
    logits = predict_members(fed, members, fed.test.images)
    assert metrics["ensemble_accuracy"] == accuracy(logits.mean(0), fed.test.labels)
    assert metrics["teacher_forwards"] == (1 + 4 + 2) * 8


@pytest.mark.parametrize("sizes, bad, members", [((5, 3, 4), 1, 1 + 2 + 10), ((5,), 0, 1)])
def test_bad_uploads_are_in_neither_average_nor_ensemble(sizes, bad, members):
    fed = federation(sizes=sizes)
    fed.private[bad].images[:] = math.nan
    metrics, _ = last(fedbe.run(fed, **QUICK, distill=True))
    assert metrics["bad_uploads"] == 1 and metrics["teacher_forwards"] == members * 8
