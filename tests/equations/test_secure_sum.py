"""The secure sum: masks that cancel, messages that alone say nothing, and FedSDD on top of it."""
import math

import numpy as np
import pytest
import torch
from test_fedsdd import EIGHT, models_of
from toys import federation, last, rounds, same, with_batchnorm, with_hidden_layer

from algorithms import fedsdd, fedsdd_ablations
from algorithms.secure_sum import (average_of_masked, count_valid, masked, masked_model,
                                   masked_upload)
from federation import make_rng

QUICK = {"rounds": 2, "participation": 1.0, "local_epochs": 1, "batch_size": 2, "lr": 0.1,
         "distill_steps": 3, "server_batch_size": 4}


def pair_rng(i, j):
    assert i < j
    return make_rng(7, "mask", 1, i, j)


def send(values, weights, group=None):
    """The messages of clients whose models are one entry "w" each."""
    group = group or range(len(values))
    return [masked_model({"w": torch.tensor(value)}, weight, i, group, pair_rng)
            for value, weight, i in zip(values, weights, group)]


def average(messages, like=0.0):
    result = average_of_masked(messages, like={"w": torch.tensor(like)})
    return result and result["w"]


def test_masks_by_hand():
    """Clients 2, 5, 9: y_2 = x_2 + m_25 + m_29, y_5 = x_5 - m_25 + m_59,
    y_9 = x_9 - m_29 - m_59, modulo 2^64. The sum of the y is the sum of the x."""
    def m(i, j):
        return int(pair_rng(i, j).integers(-2**63, 2**63, size=(1,), dtype="int64")[0])
    x = {2: 10, 5: -3, 9: 2**40}
    y = {2: x[2] + m(2, 5) + m(2, 9), 5: x[5] - m(2, 5) + m(5, 9), 9: x[9] - m(2, 9) - m(5, 9)}
    numbers = {i: {"x": torch.tensor([x[i]])} for i in x}
    sent = {i: masked(numbers[i], i, [5, 2, 9], pair_rng)["x"] for i in x}
    assert all((sent[i].item() - y[i]) % 2**64 == 0 and numbers[i]["x"].item() == x[i] for i in x)
    assert sum(sent.values()).item() == 10 - 3 + 2**40


@pytest.mark.parametrize("value", [0, 12345])
def test_a_message_alone_is_uniform_whatever_it_hides(value):
    """No two entries have the same mask, and the share of ones in each of the 64 bits is a half
    to five standard errors."""
    numbers = {name: torch.full((4000,), value) for name in "ab"}
    sent = masked(numbers, 1, [0, 1, 2], pair_rng)
    sent = torch.cat([sent["a"], sent["b"]]).numpy().view(np.uint64)
    ones = np.array([((sent >> np.uint64(bit)) & np.uint64(1)).mean() for bit in range(64)])
    assert len(set(sent.tolist())) == 8000 and abs(ones - .5).max() < 5 * .5 / math.sqrt(8000)


def test_average_of_masked_models_by_hand():
    """Weights 1 and 3: (1 * 2 + 3 * 6) / 4 = 5; counters 3 and 8: (3 + 24) / 4 = 6.75, so 7.
    A number travels in 2^-24ths, rounded: three quarters of one are one."""
    messages = send([2.0, 6.0], [1, 3], [4, 9])
    assert count_valid(messages) == 2 and average(messages).item() == 5.0
    counter = average(send([3, 8], [1, 3]), like=0)
    assert counter.item() == 7 and counter.dtype == torch.int64
    assert average(send([.75 * 2.0**-24] * 2, [1, 1])).item() == 2.0**-24


def test_a_weighted_model_is_not_rounded_to_float32():
    """3 (1 + 2^-23), in 2^-24ths: a whole number between two float32 numbers that are 4 apart."""
    summed = sum(message["model.w"] for message in send([1 + 2.0**-23, 0.0], [3, 1])).item()
    assert summed == 3 * (2**24 + 2) and (summed - 2) % 4 == 0


def test_an_average_is_not_rounded_to_float32():
    assert average(send([2**24 + 1] * 2, [1, 3]), like=0).item() == 2**24 + 1       # no float32


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30, -1e30])
def test_a_model_that_cannot_be_summed_counts_for_nothing_and_stays_hidden(value):
    messages = send([1.0, value, 7.0], [5, 3, 4])
    assert count_valid(messages) == 2
    assert average(messages).item() == pytest.approx((5 * 1 + 4 * 7) / (5 + 4))
    assert all(x.dtype == torch.int64 and (x != 0).all() for x in messages[1].values())
    one_bad = [{"fine": torch.tensor(1.0), "w": torch.tensor(w)} for w in (value, 7.0)]
    assert count_valid([masked_model(model, 1, i, [0, 1], pair_rng)
                        for i, model in enumerate(one_bad)]) == 1
    alone = send([value, 7.0, value], [1, 4, 2])            # which nothing hides
    assert count_valid(alone) == 1 and average(alone).item() == 7
    nobody = send([value, value], [1, 1])
    assert count_valid(nobody) == 0 and average(nobody) is None


def test_each_client_of_a_group_may_send_its_share_of_the_limit():
    """20 shares of 2^38 / 20, in 2^-24ths, sum to 2^62, which fits. Larger ones do not count."""
    share = 2.0**38 / 20 * 0.999
    messages = send([share] * 20, [1] * 20)
    assert count_valid(messages) == 20 and average(messages).item() == pytest.approx(share)
    assert average(send([2.0**38 / 4 * 1.001] * 4, [1] * 4)) is None


@pytest.mark.parametrize("network, settings", [
    (with_batchnorm, {"K": 4}), (with_batchnorm, {"K": 2, "local": "fedprox", "mu": 0.3}),
    ((with_batchnorm, with_hidden_layer), {"K": 2, "R": 2})], ids=["K", "fedprox", "networks"])
def test_fedsdd_with_a_secure_sum_is_the_plain_run_to_rounding(network, settings):
    fed = federation(sizes=EIGHT, network=network)
    plain, secure = (list(rounds(fedsdd_ablations, fed, **QUICK, **settings, secure_sum=s))
                     for s in (False, True))
    for (a, state_a), (b, state_b) in zip(plain, secure, strict=True):
        for one, other in zip(models_of(state_a), models_of(state_b), strict=True):
            assert all(torch.allclose(other[name], w, atol=1e-5)
                       for name, w in one.items() if w.is_floating_point())
        assert all(value == pytest.approx(b[key], abs=0.026)              # one test image of 40
                   for key, value in a.items() if value is not None and "bytes_up" not in key)
    assert b["bytes_up"] == 2 * a["bytes_up"]


def test_uploads_are_masked_anew_in_every_round():
    """A mask that came back would tell how a client's model changed in between."""
    fed = federation(sizes=EIGHT)
    weights = fed.global_model().state_dict()
    first, second = ([masked_upload(fed, t, i, range(8), weights) for i in range(8)]
                     for t in (1, 2))
    for a, b in zip(first, second):
        assert all(x.dtype == torch.int64 for x in a.values())
        assert (a["model.1.weight"] / 2**24).abs().median() > 1e9           # weights are below 10
        assert all((a[name] != b[name]).all() for name in a)                # "counts": 1 and masks


def test_what_the_server_sees_are_the_masked_uploads(monkeypatch):
    fed, cfg, seen = federation(sizes=EIGHT), fedsdd_ablations.Config(**QUICK), []
    monkeypatch.setattr(fedsdd_ablations, "average_of_masked", lambda messages, like:
                        seen.append(messages) or average_of_masked(messages, like))
    states = [state for _, state in rounds(fedsdd_ablations, fed, **QUICK, K=1, secure_sum=True)]
    for t, (before, messages) in enumerate(zip(states, seen), start=1):
        [weights] = models_of(before)
        expected = [masked_upload(fed, t, i, range(8), fedsdd.train_client(fed, cfg, t, i, weights))
                    for i in range(8)]
        assert same(messages, expected)
    assert len(seen) == 2


def test_clients_whose_models_are_not_finite_are_left_out_and_counted():
    """If nobody of a group is left, its global model stays."""
    fed = federation(sizes=EIGHT)
    fed.private[3].images[:] = math.nan
    (a, plain), (b, secure) = (last(rounds(fedsdd_ablations, fed, **QUICK, K=2, secure_sum=s))
                               for s in (False, True))
    assert a["bad_uploads"] == b["bad_uploads"] == 1
    torch.testing.assert_close(models_of(plain), models_of(secure), atol=1e-5, rtol=1e-5)
    for private in fed.private:
        private.images[:] = math.nan
    metrics, state = last(rounds(fedsdd_ablations, fed, **QUICK, students="none", K=1,
                                 secure_sum=True))
    assert metrics["bad_uploads"] == 8
    assert same(models_of(state), [fed.global_model().state_dict()])


@pytest.mark.parametrize("settings, word", [
    ({"K": 8}, "two"), ({"K": 5}, "two"), ({"K": 2, "local": "scaffold"}, "local fedavg and")])
def test_what_a_secure_sum_cannot_do_is_refused(settings, word):
    with pytest.raises(ValueError, match=word):
        next(rounds(fedsdd_ablations, federation(sizes=EIGHT), **QUICK, **settings,
                    secure_sum=True))
