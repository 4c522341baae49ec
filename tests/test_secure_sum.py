"""The secure sum: masks that cancel, messages that say nothing alone, averages as without it, and FedSDD on top of it."""
import inspect
import math

import numpy as np
import pytest
import torch
from toys import federation, last, same, with_batchnorm, with_hidden_layer

import secure_sum
from algorithms import ALGORITHMS, common, fedavg, fedsdd
from algorithms.common import stream
from algorithms.equations import average_weights
from secure_sum import FRACTION_BITS, LIMIT, average_of_masked, count_valid, masked, masked_model

QUICK = {"rounds": 3, "participation": 1.0, "local_epochs": 1, "batch_size": 2, "lr": 0.1, "distill_steps": 3, "server_batch_size": 4}
EIGHT = (5, 3, 4, 6, 4, 5, 3, 4)


def pair_rng(i, j):
    assert i < j
    return stream(7, "mask", 1, i, j)


def send(states, weights, group):
    return [masked_model(state, weight, i, group, pair_rng) for state, weight, i in zip(states, weights, group)]


def states_of(count, network=with_batchnorm):
    fed = federation(sizes=(5, 3, 4, 6)[:count], network=network)
    server = fedavg.start_server(fed, network.__name__)
    return [fedavg.train_client(fed, i, 1, server, local_epochs=1, batch_size=2, lr=0.1)["model"] for i in range(count)]


# ----------------------------------------------------------------------------------------------------------------- masks

def test_masks_by_hand():
    """Clients 2, 5, 9: y_2 = x_2 + m_25 + m_29, y_5 = x_5 - m_25 + m_59, y_9 = x_9 - m_29 - m_59, modulo 2^64."""
    def m(i, j):
        return int(pair_rng(i, j).integers(-2**63, 2**63, size=(1,), dtype="int64")[0])
    x = {2: 10, 5: -3, 9: 2**40}
    y = {2: x[2] + m(2, 5) + m(2, 9), 5: x[5] - m(2, 5) + m(5, 9), 9: x[9] - m(2, 9) - m(5, 9)}
    for i in x:
        sent = masked({"x": torch.tensor([x[i]])}, i, [2, 5, 9], pair_rng)["x"].item()
        assert (sent - y[i]) % 2**64 == 0


@pytest.mark.parametrize("group", [[0, 1], [3, 1, 8], list(range(20))])
def test_the_masks_cancel_exactly(group):
    numbers = {i: {"a": torch.randint(-2**50, 2**50, (3, 2)), "b": torch.tensor(i)} for i in group}
    sent = [masked(numbers[i], i, group, pair_rng) for i in group]
    for name in ("a", "b"):
        assert torch.equal(sum(message[name] for message in sent), sum(numbers[i][name] for i in group))


def test_every_entry_has_its_own_mask():
    sent = masked({"a": torch.zeros(1000, dtype=torch.int64), "b": torch.zeros(1000, dtype=torch.int64)}, 0, [0, 1], pair_rng)
    assert len(set(sent["a"].tolist()) | set(sent["b"].tolist())) == 2000


def test_a_message_alone_is_uniform_whatever_it_hides():
    """The share of ones in every one of the 64 bits is a half to five standard errors, for zeros as for a constant."""
    for value in (0, 12345):
        sent = masked({"x": torch.full((4000,), value)}, 1, [0, 1, 2], pair_rng)["x"].numpy().view(np.uint64)
        ones = np.array([((sent >> np.uint64(bit)) & np.uint64(1)).mean() for bit in range(64)])
        assert abs(ones - 0.5).max() < 5 * 0.5 / math.sqrt(4000)


def test_masks_are_new_in_every_round():
    first, second = (masked({"x": torch.zeros(4, dtype=torch.int64)}, 0, [0, 1], lambda i, j: stream(7, "mask", t, i, j))["x"]
                     for t in (1, 2))
    assert not (first == second).any()


def test_masking_changes_no_input():
    numbers = {"x": torch.tensor([1, 2])}
    masked(numbers, 0, [0, 1], pair_rng)
    assert numbers["x"].tolist() == [1, 2]


# --------------------------------------------------------------------------------------------------------------- average

def test_average_of_masked_models_by_hand():
    """Weights 1 and 3: (1 * 2 + 3 * 6) / 4 = 5; counters 3 and 8: (3 + 24) / 4 = 6.75, rounded 7."""
    states = [{"w": torch.tensor([2.0]), "n": torch.tensor(3)}, {"w": torch.tensor([6.0]), "n": torch.tensor(8)}]
    messages = send(states, [1, 3], [4, 9])
    average = average_of_masked(messages, like=states[0])
    assert count_valid(messages) == 2 and average["w"].item() == 5.0 and average["n"].item() == 7
    assert average["w"].dtype == torch.float32 and average["n"].dtype == torch.int64


def test_a_weighted_model_is_sent_exactly_where_float32_would_round_it():
    """3 (1 + 2^-23), in 2^-24ths: a whole number, between two float32 numbers that are 4 apart."""
    states = [{"w": torch.tensor([1 + 2.0**-23])}, {"w": torch.tensor([0.0])}]
    summed = sum(message["model.w"] for message in send(states, [3, 1], [4, 9])).item()
    assert summed == 3 * (2**24 + 2) and (summed - 2) % 4 == 0


def test_an_average_is_exact_where_float32_would_round_it():
    """2^24 + 1 is no float32."""
    states = [{"n": torch.tensor(2**24 + 1)}] * 2
    assert average_of_masked(send(states, [1, 3], [4, 9]), like=states[0])["n"].item() == 2**24 + 1


def test_average_agrees_with_the_plain_one_to_rounding():
    states = states_of(4)
    messages = send(states, [5, 3, 4, 6], [0, 1, 2, 3])
    average = average_of_masked(messages, like=states[0])
    for name, w in average_weights(states, [5, 3, 4, 6]).items():
        if w.is_floating_point():
            assert (average[name] - w).abs().max() <= 2.0**-FRACTION_BITS + 2e-7 * w.abs().max()
    assert count_valid(messages) == 4


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
def test_a_model_that_cannot_be_summed_counts_for_nothing_and_nobody_learns_whose_it_was(value):
    states = states_of(3)
    states[1] = {**states[1], "0.weight": torch.full_like(states[1]["0.weight"], value)}
    messages = send(states, [5, 3, 4], [0, 1, 2])
    average = average_of_masked(messages, like=states[0])
    expected = average_weights([states[0], states[2]], [5, 4])
    assert count_valid(messages) == 2 and torch.allclose(average["2.weight"], expected["2.weight"], atol=1e-6)
    assert all(x.dtype == torch.int64 and (x != 0).all() for x in messages[1].values())        # masked like everyone's


def test_if_nobody_counts_there_is_no_average():
    states = [{"w": torch.tensor([math.nan])}] * 2
    messages = send(states, [1, 1], [0, 1])
    assert average_of_masked(messages, like=states[0]) is None and count_valid(messages) == 0


def test_a_share_of_the_limit_is_all_that_each_of_a_group_may_send():
    """Four numbers of half the limit would sum to twice what fits: none counts, where a wrong sum would pass for an average."""
    states = [{"w": torch.tensor([LIMIT / 2])} for _ in range(4)]
    messages = send(states, [1, 1, 1, 1], [0, 1, 2, 3])
    assert average_of_masked(messages, like=states[0]) is None and count_valid(messages) == 0


def test_the_largest_sum_still_fits():
    """20 clients at the limit: the sum of 2^38 each, in 2^-24ths, is 2^62 at most."""
    group = list(range(20))
    states = [{"w": torch.tensor([sign * 2.0**38 / 20 * 0.999])} for sign in [1] * 20]
    messages = send(states, [1] * 20, group)
    average = average_of_masked(messages, like=states[0])
    assert count_valid(messages) == 20 and average["w"].item() == pytest.approx(2.0**38 / 20 * 0.999)


# ------------------------------------------------------------------------------------------------------------- on FedSDD

@pytest.mark.parametrize("settings", [{"K": 4}, {"K": 2, "R": 2}, {"K": 1, "distill_steps": 0},
                                      {"K": 2, "local": "fedprox", "mu": 0.3}])
@pytest.mark.parametrize("network", [with_batchnorm, (with_batchnorm, with_hidden_layer)])
def test_fedsdd_with_a_secure_sum_agrees_with_the_plain_run_to_rounding(settings, network):
    fed = federation(sizes=EIGHT * 2, network=network)
    plain, secure = (list(fedsdd.run(fed, **{**QUICK, **settings}, secure_sum=s)) for s in (False, True))
    for (a, state_a), (b, state_b) in zip(plain, secure, strict=True):
        for server_a, server_b in zip(state_a["global_models"], state_b["global_models"], strict=True):
            for name, w in server_a["model"].items():
                assert not w.is_floating_point() or torch.allclose(server_b["model"][name], w, atol=1e-5)
        assert all(x == pytest.approx(b[key], abs=0.026) for key, x in a.items()                        # one test image of 40
                   if x is not None and not key.startswith("bytes_up"))
    assert b["bytes_up"] == 2 * a["bytes_up"]


def test_the_server_sees_masked_numbers_only(monkeypatch):
    """What `average_of_masked` is given are whole numbers, none of them a client's; the plain average is never called."""
    fed, seen = federation(sizes=EIGHT), []

    def watched(messages, like):
        seen.extend(messages)
        return average_of_masked(messages, like)

    def never(*arguments):
        raise AssertionError("the server averaged models that it saw")
    monkeypatch.setattr(secure_sum, "average_of_masked", watched)
    monkeypatch.setattr(fedavg, "aggregate", never)
    last(fedsdd.run(fed, **{**QUICK, "rounds": 1}, K=4, secure_sum=True))
    assert len(seen) == 8
    for message in seen:
        assert all(x.dtype == torch.int64 for x in message.values())
        scaled = message["model.1.weight"].double() / 2**FRACTION_BITS
        assert scaled.abs().median() > 1e9                                               # weights are below 10


def test_in_torchruns_way_what_leaves_a_client_is_masked(monkeypatch):
    """The result of every client's function, which processes send to one another, holds no model."""
    sent, original = [], common.run_clients

    def watched(fn, ids, device):
        results = original(fn, ids, device)
        sent.extend(results)
        return results
    watched.done = 0                                                                     # it counts under its name
    monkeypatch.setattr(common, "run_clients", watched)
    last(fedsdd.run(federation(sizes=EIGHT), **{**QUICK, "rounds": 1}, K=2, secure_sum=True))
    assert len(sent) == 8 and all(x.dtype == torch.int64 for upload in sent for x in upload.values())


def test_a_client_whose_model_is_not_finite_is_left_out_and_counted():
    fed = federation(sizes=EIGHT)
    fed.private[3].images[:] = math.nan
    plain, secure = (last(fedsdd.run(fed, **QUICK, K=2, secure_sum=s)) for s in (False, True))
    assert plain[0]["bad_uploads"] == secure[0]["bad_uploads"] == 1
    for a, b in zip(plain[1]["global_models"], secure[1]["global_models"], strict=True):
        assert torch.allclose(a["model"]["1.weight"], b["model"]["1.weight"], atol=1e-5)


def test_a_group_whose_models_are_all_not_finite_keeps_its_own():
    fed = federation(sizes=(5, 3))
    for private in fed.private:
        private.images[:] = math.nan
    metrics, state = last(fedsdd.run(fed, **{**QUICK, "distill_steps": 0}, K=1, secure_sum=True))
    assert metrics["bad_uploads"] == 2 and same(state["global_models"][0], fedavg.start_server(fed, "linear"))


@pytest.mark.parametrize("settings, words", [({"K": 8}, "single client"), ({"K": 5}, "single client"),
                                             ({"K": 2, "local": "scaffold"}, "scaffold")])
def test_what_a_secure_sum_cannot_do_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        next(fedsdd.run(federation(sizes=EIGHT), **QUICK, **settings, secure_sum=True))


def test_no_algorithm_offers_both_a_secure_sum_and_an_ensemble_of_the_clients_models_that_it_hides():
    offers = {name: inspect.signature(run).parameters.keys() for name, run in ALGORITHMS.items()}
    assert "secure_sum" in offers["fedsdd"] and "ensemble" in offers["fedsdd-ablations"]
    assert not any({"secure_sum", "ensemble"} <= names for names in offers.values())


def test_fedsdds_masks_are_drawn_anew_in_every_round(monkeypatch):
    """A mask that came back would tell how a client's model changed in between."""
    seen = []

    def watched(model_state, weight, i, group, pair_rng):
        seen.append(pair_rng(0, 1).random())
        return masked_model(model_state, weight, i, group, pair_rng)

    monkeypatch.setattr(secure_sum, "masked_model", watched)
    list(fedsdd.run(federation(), **QUICK, K=1, R=1, secure_sum=True))
    assert len(seen) == 3 * 4 and len(set(seen)) == 3
