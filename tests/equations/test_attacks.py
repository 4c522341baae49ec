"""Poisoning: PAF, LIE and OFOM by hand; who is malicious; models and logits under attack."""
import copy
import math
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from toys import federation, linear, rounds, same, with_batchnorm, with_hidden_layer

from algorithms import feddf, fedsdd_ablations
from attacks import Attack, build, check, harmful_vector, lie, lie_z, ofom, paf
from federation import make_rng

BENIGN = torch.tensor([[1., 0., 4.], [3., 0., 5.], [8., 3., 6.]])                # means 4, 1, 5
SIGMAS = [math.sqrt(total / 3) for total in (9 + 1 + 16, 1 + 1 + 4, 1 + 0 + 1)]
ROWS = torch.arange(5)
ATTACKERS = {"paf": 1, "lie": 1, "ofom": 2}
every_attack = pytest.mark.parametrize("name", ATTACKERS)


def close(a, b, atol=1e-6):
    return torch.allclose(a, torch.as_tensor(b, dtype=a.dtype), atol=atol)


def uploads_of(num_clients, rows=5, classes=3, seed=0):
    return torch.stack(samples_of([rows] * num_clients, (classes,), seed))


def samples_of(sizes=(3, 2, 4, 3, 2, 5), shape=(3,), seed=0, dtype=torch.float32):
    """What each client sends: [n_i, ...]."""
    rng = np.random.default_rng(seed)
    return [torch.tensor(rng.normal(size=(n, *shape)), dtype=dtype) for n in sizes]


class Upload(NamedTuple):
    """Samples of a client's own, as in FedGKT, and what no attack changes."""

    features: torch.Tensor
    labels: torch.Tensor


def attack_rows(attack, uploads, ids, rows=ROWS):
    """What the server receives of uploads [[n, ...]] of the same rows, by the clients `ids`."""
    return [*attack.poison_rows(dict(zip(ids, uploads, strict=True)), rows).values()]


def attack_samples(attack, uploads, ids):
    """Each uploads samples of its own."""
    sent = {i: Upload(x, torch.arange(len(x))) for i, x in zip(ids, uploads, strict=True)}
    received = attack.poison_samples(sent)
    assert [*received] == [*sent] and all(same(received[i].labels, sent[i].labels) for i in sent)
    return [upload.features for upload in received.values()]


def made(name, num_clients=6, seed=0, attackers=None, **settings):
    return build(name, partial(make_rng, seed), num_clients, attackers or ATTACKERS[name],
                 **settings)


def sides(attack, num_clients=6):
    """(malicious, benign): the clients' numbers."""
    return attack.malicious, [i for i in range(num_clients) if i not in attack.malicious]


def u_of(attack, uploads, rows, scale=10.0):
    """What PAF attackers add to the mean of the others' uploads, in units of their deviation."""
    malicious, benign = sides(attack, len(uploads))
    attacked = torch.stack(attack_rows(attack, uploads, range(len(uploads)), rows))
    theta = attacked[malicious] - uploads[benign].mean(0)
    return theta / (scale * np.std(uploads[benign].numpy()))


def test_eq7_paf_by_hand():
    """The sum over the three benign clients is divided by three."""
    assert paf(BENIGN, torch.tensor([10., -1., 0.])).tolist() == [
        (1 + 3 + 8) / 3 + 10, (0 + 0 + 3) / 3 - 1, (4 + 5 + 6) / 3]


@pytest.mark.parametrize("z", [1.5, 0.0, -0.5])
def test_eq10_lie_by_hand(z):
    """The squares are divided by n, not by n - 1: a single benign client has deviation 0."""
    assert close(lie(BENIGN, z), [4 + z * SIGMAS[0], 1 + z * SIGMAS[1], 5 + z * SIGMAS[2]])
    assert torch.equal(lie(BENIGN[:1], z), BENIGN[0])


def test_eq11_ofom_by_hand():
    """The second is the mean of the three benign clients and of the first, over four."""
    first = [4 + 10, 1 - 1, 5 + 2]
    second = [(1 + 3 + 8 + first[0]) / 4, (0 + 0 + 3 + first[1]) / 4, (4 + 5 + 6 + first[2]) / 4]
    assert close(ofom(BENIGN, torch.tensor([10., -1., 2.])), [first, second])


def test_ofoms_second_weighs_clients_and_not_their_samples():
    """Two benign clients of five samples in all: mean 4, the first a third of the second."""
    attack = made("ofom", num_clients=4)
    (_, second), benign = attack.malicious, sides(attack, 4)[1]
    samples = {benign[0]: torch.tensor([[1.], [3.]]), benign[1]: torch.tensor([[8.], [4.], [4.]])}
    uploads = [samples.get(i, torch.zeros(1, 1)) for i in range(4)]
    attacked = attack_samples(attack, uploads, range(4))
    first = attacked[attack.malicious[0]]
    assert close(attacked[second], (2 * 4 + first) / 3)


@pytest.mark.parametrize("n, m, share", [
    (50, 12, 24 / 38), (16, 1, 7 / 15), (16, 2, 1 / 2), (6, 2, 1 / 2), (7, 2, 3 / 5),
    (10, 6, .999), (10, 9, .999), (2, 1, .001)])
def test_eq9_lie_z(n, m, share):
    """s = floor(n / 2 + 1) - m; a share (n - m - s) / (n - m) of the normal curve is below z.
    16, 1: s = 9 - 1, (15 - 8) / 15; 16, 2: z = 0, the mean. It is clipped where no z would be
    finite: with 6 of 10 nobody need be won (4 / 4), with more it is above 1; with 1 of 2 everybody
    must (0 / 1)."""
    assert (1 + math.erf(lie_z(n, m) / math.sqrt(2))) / 2 == pytest.approx(share, abs=1e-9)


@pytest.mark.parametrize("name, clients, attackers, words", [
    ("paf", 6, 0, "from 1 to 5 of the 6"), ("lie", 6, 6, "from 1 to 5 of the 6"),
    ("ofom", 6, 1, "exactly 2 attackers, not 1"), ("ofom", 6, 3, "exactly 2 attackers, not 3"),
    ("LIE", 6, 1, "unknown attack 'LIE'; choose from paf, lie, ofom")])
def test_names_and_numbers_of_attackers_that_are_refused(name, clients, attackers, words):
    for refuses in (check, partial(build, make_rng=partial(make_rng, 0))):
        with pytest.raises(ValueError, match=words):
            refuses(name, num_clients=clients, attackers=attackers)
    assert check("ofom", 3, 2) is None and check("paf", 6, 5) is None


@every_attack
@pytest.mark.parametrize("send, sizes, shape, dtype", [
    (attack_rows, [5] * 6, (3,), torch.float32),
    (attack_samples, [3, 2, 4, 3, 2, 5], (3,), torch.float32),
    (attack_samples, [3, 2, 4, 3, 2, 5], (5, 2, 2), torch.bfloat16)])
def test_only_the_attackers_uploads_change(name, send, sizes, shape, dtype):
    """The attackers' own do not count, nor does the order: the ids tell who is malicious. What is
    handed over stays as it is; what returns has the rows, the shape and the type of each."""
    for seed in range(3):
        uploads, attack = samples_of(sizes, shape, dtype=dtype), made(name, seed=seed, z=1.5)
        before, (malicious, benign) = copy.deepcopy(uploads), sides(attack)
        attacked = send(attack, uploads, range(6))
        assert same(uploads, before) and len(malicious) == ATTACKERS[name]
        assert malicious == [i for i, (a, b) in enumerate(zip(uploads, attacked, strict=True))
                             if not torch.equal(a, b)]
        assert [(x.shape, x.dtype) for x in attacked] == [(x.shape, x.dtype) for x in uploads]
        order = [4, 2, 5, 0, 1, 3]
        for i, x in zip(order, send(attack, [uploads[i] for i in order], order)):
            assert close(x, attacked[i], atol=1e-1 if dtype == torch.bfloat16 else 1e-4)
        for m in malicious:                            # without the other attacker it is the same
            ids = sorted([m, *benign])
            assert same(send(attack, [uploads[i] for i in ids], ids), [attacked[i] for i in ids])
            uploads[m] = uploads[m] + 1e6
        assert same(send(attack, uploads, range(6)), attacked)


@pytest.mark.parametrize("name, attackers", [("paf", 1), ("lie", 2), ("ofom", 2), ("paf", 3)])
def test_attackers_are_drawn_once_from_the_seed(name, attackers):
    """The same for each attack built anew; over 30 seeds, each client is drawn."""
    drawn, again = ([made(name, seed=seed, attackers=attackers).malicious for seed in range(30)]
                    for _ in range(2))
    assert drawn == again
    assert {len(ids) for ids in drawn} == {attackers} and set(sum(drawn, [])) == set(range(6))


def test_thetas_deviation_is_that_of_all_entries():
    """1, 3 of one client, 5, 7 of another: mean 4, variance (9 + 1 + 1 + 9) / 4."""
    theta = harmful_vector(torch.tensor([[1., 3.], [5., 7.]]), torch.tensor([2., -1.]), scale=3.0)
    assert close(theta, [3 * math.sqrt(5) * 2, 3 * math.sqrt(5) * -1])


def test_theta_is_the_same_in_all_rounds():
    """And for all uploads, in units of the deviation of all benign entries; u is another for
    each row, whichever rows are asked for."""
    attack, row = made("paf"), uploads_of(6, rows=1)
    [whole] = u_of(attack, row.expand(6, 40, 3), torch.arange(40))
    assert len({tuple(u) for u in whole.tolist()}) == 40
    for t, rows in enumerate([[7], [0, 1, 2], [12, 3, 39, 0]], start=1):
        [u] = u_of(attack, t * uploads_of(6, len(rows), seed=t) + 3, torch.tensor(rows))
        assert close(u, whole[rows], atol=1e-4)


@pytest.mark.parametrize("scale", [10.0, 4.0, 0.0])
def test_us_are_standard_normal(scale):
    """A constant would change no softmax. Two attackers draw independently: (u - v)² is 2. Mean
    and mean square of 10,000 lie within five standard errors (a square has variance 2)."""
    attack = made("paf", attackers=2, **({} if scale == 10 else {"scale": scale}))
    u, v = u_of(attack, uploads_of(6, 1000, 10), torch.arange(1000), scale or 1)
    for x, square in [(u, 1), (v, 1), (u - v, 2)]:
        assert abs(x.mean().item()) < 5 * math.sqrt(square) / 100
        assert abs(x.square().mean().item() / square - (scale > 0)) < 5 * math.sqrt(2) / 100


@pytest.mark.parametrize("z, used", [(None, lie_z(6, 1)), (1.5, 1.5), (0.0, 0.0)])
def test_lie_goes_as_far_as_eq9_says_unless_it_is_told(z, used):
    """It imitates the benign clients who take part."""
    uploads, attack = uploads_of(6), made("lie", z=z)
    [m], benign = sides(attack)
    for others in (benign, benign[:2]):
        ids = sorted([m, *others])
        attacked = attack_rows(attack, uploads[ids], ids, ROWS)
        assert torch.equal(attacked[ids.index(m)], lie(uploads[others], used))


@every_attack
@pytest.mark.parametrize("send", [attack_rows, attack_samples])
@pytest.mark.parametrize("bad", [math.nan, -math.inf, 2e30])
def test_nobody_to_imitate(name, send, bad):
    """A client with one bad number is left out as a whole, as its upload is in FedGKT. Without a
    good one, an attacker, rows or uploads, all stays as it is."""
    uploads, attack = samples_of([5] * 6), made(name, z=1.5)
    malicious, benign = sides(attack)
    spoilt, good = copy.deepcopy(uploads), dict(enumerate(uploads))
    spoilt[benign[1]][2, 1] = bad
    del good[benign[1]]
    expected = dict(zip(good, send(attack, [*good.values()], [*good])))
    for i, x in enumerate(send(attack, spoilt, range(6))):
        assert same(x.nan_to_num(), (expected if i in malicious else spoilt)[i].nan_to_num())
    for i in benign:
        spoilt[i] = torch.full_like(uploads[i], bad)
    for x, ids in [(spoilt, range(6)), (uploads, malicious), (uploads, benign), (uploads, [])]:
        sent = [x[i] for i in ids]
        for before, after in zip(sent, send(attack, sent, ids), strict=True):
            assert same(before.nan_to_num(), after.nan_to_num())
    none = attack_rows(attack, torch.zeros(6, 0, 3), range(6), torch.arange(0))
    assert torch.stack(none).shape == (6, 0, 3)


@pytest.mark.parametrize("send", [attack_rows, attack_samples])
@pytest.mark.parametrize("ids", ["abcdef", [0, 1, 2, 3, 4, "5"]])
def test_clients_without_a_number_are_refused(send, ids):
    with pytest.raises(ValueError, match="^uploads are {number of a client: upload}, not of .*'"):
        send(made("paf"), samples_of([5] * 6), ids)
    numbers = send(made("paf"), samples_of([5] * 6), np.arange(6))
    assert same(numbers, send(made("paf"), samples_of([5] * 6), range(6)))


@pytest.mark.parametrize("name", ["paf", "ofom"])
def test_each_part_of_an_upload_has_its_own_u(name):
    """Were features and logits alike, so would be what an attacker makes of them."""
    class Twice(NamedTuple):
        features: torch.Tensor
        logits: torch.Tensor
    attack = made(name)
    uploads = {i: Twice(x, x) for i, x in enumerate(samples_of())}
    for i, upload in attack.poison_samples(uploads).items():
        assert same(*upload) == (i not in attack.malicious)


def batchnorm_uploads():
    """Of clients 4, 7, 9, whose numbers are all 1, 2, 3, but for the counters, 10, 20, 30."""
    state = with_batchnorm().state_dict()
    return {client: {name: torch.full_like(w, (1 if w.is_floating_point() else 10) * number)
                     for name, w in state.items()}
            for number, client in enumerate((4, 7, 9), start=1)}


def test_attack_on_models_by_hand():
    """The vector is every float of the model in its order; a running variance stays >= 0."""
    trained, seen = batchnorm_uploads(), []

    def forge(i, upload, benign, rows):
        seen.append((i, upload, benign, rows.tolist()))
        return rows - 9.5
    attacked = Attack([7], forge).poison_weights(trained)
    [(attacker, upload, benign, rows)] = seen
    assert attacker == 7 and rows == list(range(1 + 1 + 1 + 1 + 12 + 3))
    assert torch.equal(upload, torch.full((19,), 2.))
    assert torch.equal(benign, torch.tensor([1., 3.])[:, None].expand(2, 19))
    model = attacked[7]
    assert {name: value.flatten().tolist() for name, value in model.items()} == {
        "0.weight": [-9.5], "0.bias": [-8.5], "0.running_mean": [-7.5], "0.running_var": [0.0],
        "0.num_batches_tracked": [20], "2.weight": [n - 9.5 for n in range(4, 16)],
        "2.bias": [6.5, 7.5, 8.5]}
    assert model["2.weight"].shape == (3, 4) and list(model) == list(trained[7])
    assert model["0.num_batches_tracked"].dtype == torch.int64
    assert same(trained, batchnorm_uploads()) and same(attacked | {7: trained[7]}, trained)


@pytest.mark.parametrize("algorithm, settings, networks, words", [
    (fedsdd_ablations, {"K": 2, "local": "scaffold"}, 1, "does not go with local scaffold"),
    (feddf, {"patience": None, "drop_worst": False}, 2, "needs one network for all clients")])
def test_an_attack_that_could_not_be_carried_out_is_refused(algorithm, settings, networks, words):
    fed = federation(network=(linear, with_hidden_layer)[:networks])
    with pytest.raises(ValueError, match="an attack on weights " + words):
        next(rounds(algorithm, fed, attack=made("paf", 4), **settings, participation=1.0))


@pytest.mark.parametrize("rows", [1, 4])
def test_lie_on_samples_by_hand_repeats_one_value_for_all_rows(rows):
    """Over the three benign samples of two clients, each counted once; not the clients' means."""
    attack, uploads = made("lie", 3, z=1.5), [BENIGN[:2], BENIGN[2:]]
    [m], _ = sides(attack, 3)
    uploads.insert(m, torch.full((rows, 3), 9.))
    expected = torch.tensor([4, 1, 5]) + 1.5 * torch.tensor(SIGMAS)
    assert close(attack_samples(attack, uploads, range(3))[m], expected.expand(rows, 3))
