"""Poisoning: PAF, LIE and OFOM by hand, who is malicious and when, attacks on models, and every algorithm under attack."""
import copy
import functools
import inspect
import itertools
import math
from functools import partial
from statistics import NormalDist

import numpy as np
import pytest
import torch
from test_fedgkt import QUICK as GKT, toy as gkt_toy, uploads_of as trained_on
from toys import federation, labelled, last, linear, same, with_batchnorm, with_hidden_layer

import attacks
from algorithms import ALGORITHMS, cronus, dsfl, fedavg, fedgem, fedgems, fedgems_ablations, fedmd, fedprox, fedsdd
from algorithms.common import active_clients, sample_clients, stream
from algorithms.training import OPTIMIZERS, predict_logits
from attacks import build, check, lie, lie_z, ofom, paf

BENIGN = torch.tensor([[1., 0., 4.], [3., 0., 5.], [8., 3., 6.]])                       # means 4, 1, 5
SIGMAS = [math.sqrt(((1 - 4)**2 + (3 - 4)**2 + (8 - 4)**2) / 3), math.sqrt((1 + 1 + 4) / 3), math.sqrt((1 + 0 + 1) / 3)]
ROWS = torch.arange(5)
ATTACKERS = {"paf": 1, "lie": 1, "ofom": 2}


def close(a, b, rtol=1e-5, atol=1e-6):
    return torch.allclose(a, torch.as_tensor(b, dtype=a.dtype), rtol=rtol, atol=atol)


def uploads_of(num_clients, rows=5, classes=3, seed=0, dtype=torch.float32):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(num_clients, rows, classes))).to(dtype)


def made(name, num_clients=6, seed=0, attackers=None, **settings):
    return build(name, partial(stream, seed), num_clients, attackers or ATTACKERS[name], **settings)


def changed(before, after):
    return [j for j, (a, b) in enumerate(zip(before, after, strict=True)) if not torch.equal(a, b)]


def malicious_of(attack, num_clients):
    """Who is malicious, as seen from outside."""
    uploads = uploads_of(num_clients, seed=99)
    return changed(uploads, attack(uploads, range(num_clients), ROWS, 1))


def theta_of(attack, uploads, rows, t=1):
    """What a single PAF attacker adds to the mean of the others' uploads."""
    [m] = malicious_of(attack, len(uploads))
    others = [j for j in range(len(uploads)) if j != m]
    return attack(uploads, range(len(uploads)), rows, t)[m] - uploads[others].mean(0)


# ------------------------------------------------------------------------------------------------------- PAF, LIE, OFOM

def test_eq7_paf_by_hand():
    """The sum over the three benign clients is divided by three."""
    assert paf(BENIGN, torch.tensor([10., -1., 0.])).tolist() == [(1 + 3 + 8) / 3 + 10, (0 + 0 + 3) / 3 - 1, (4 + 5 + 6) / 3]


@pytest.mark.parametrize("z", [1.5, 0.0, -0.5])
def test_eq10_lie_by_hand(z):
    """The standard deviation is the population's: the squares are divided by n, not by n - 1."""
    assert close(lie(BENIGN, z), [4 + z * SIGMAS[0], 1 + z * SIGMAS[1], 5 + z * SIGMAS[2]])


def test_eq11_ofom_by_hand():
    """The second is the mean of the three benign clients and of the first, over four."""
    first = [4 + 10, 1 - 1, 5 + 2]
    second = [(1 + 3 + 8 + first[0]) / 4, (0 + 0 + 3 + first[1]) / 4, (4 + 5 + 6 + first[2]) / 4]
    assert close(ofom(BENIGN, torch.tensor([10., -1., 2.])), [first, second])


def test_eq7_to_eq11_against_slow_loops():
    """Coordinate by coordinate over [n, N, C], as Algorithm 2 of the paper goes through them."""
    benign, theta, z, n = uploads_of(4, seed=1), uploads_of(1, seed=2)[0], 0.7, 4
    for row, c in itertools.product(range(5), range(3)):
        values = [benign[i, row, c].item() for i in range(n)]
        mu = sum(values) / n
        sigma = math.sqrt(sum((value - mu)**2 for value in values) / n)
        far = mu + theta[row, c].item()
        found = [paf(benign, theta)[row, c], lie(benign, z)[row, c], *ofom(benign, theta)[:, row, c]]
        assert np.allclose([x.item() for x in found], [far, mu + z * sigma, far, (sum(values) + far) / (n + 1)], atol=1e-6)


@pytest.mark.parametrize("poison", [lambda x: paf(x, torch.ones(5, 3)), lambda x: lie(x, 1.5), lambda x: ofom(x, torch.ones(5, 3))])
def test_the_order_of_the_benign_clients_does_not_matter(poison):
    benign = uploads_of(5)
    assert torch.allclose(poison(benign), poison(benign[[3, 0, 4, 1, 2]]), atol=1e-6)


@pytest.mark.parametrize("poison", [lambda x: paf(x, x[0]), lambda x: lie(x, 1.5), lambda x: ofom(x, x[0])])
def test_b20_no_benign_upload_is_changed(poison):
    benign = uploads_of(3)
    before = benign.clone()
    poison(benign).add_(1)                                     # nor is what comes back a view of what went in
    assert torch.equal(benign, before)


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (2, 3, 4)])
def test_an_upload_may_have_any_shape(shape):
    benign, theta = torch.randn(3, *shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    assert paf(benign, theta).shape == lie(benign, 1.0).shape == shape and ofom(benign, theta).shape == (2, *shape)
    assert paf(benign, theta).dtype == lie(benign, 1.0).dtype == ofom(benign, theta).dtype == torch.float64


def test_a_single_benign_client_has_deviation_0_not_nan():
    assert torch.equal(lie(BENIGN[:1], 3.0), BENIGN[0]) and torch.equal(ofom(BENIGN[:1], 2 * BENIGN[0])[1], (1 + 3) / 2 * BENIGN[0])


def phi(z):
    """The share of the normal distribution below z."""
    return (1 + math.erf(z / math.sqrt(2))) / 2


@pytest.mark.parametrize("n, m, printed", [(50, 12, .336), (16, 1, -.084), (8, 1, -.18), (16, 2, None), (100, 30, None)])
def test_eq9_lie_z(n, m, printed):
    """s = floor(n / 2 + 1) - m supporters among the n - m benign clients: z has a share (n - m - s) / (n - m) below it."""
    s = math.floor(n / 2 + 1) - m
    assert phi(lie_z(n, m)) == pytest.approx((n - m - s) / (n - m), abs=1e-9)
    assert lie_z(n, m) == pytest.approx(NormalDist().inv_cdf((n - m - s) / (n - m)), abs=1e-9)
    assert printed is None or lie_z(n, m) == pytest.approx(printed, abs=5e-4)


@pytest.mark.parametrize("n, m, share", [(10, 6, .999), (10, 9, .999), (1000, 999, .999), (2, 1, .001)])
def test_eq9_the_share_is_clipped_where_no_z_would_be_finite(n, m, share):
    """With 6 of 10 nobody need be won (4 / 4), with more it is above 1; with 1 of 2 everybody must (0 / 1)."""
    assert lie_z(n, m) == pytest.approx(NormalDist().inv_cdf(share))


# ---------------------------------------------------------------------------------------------- who, when, and how much

@pytest.mark.parametrize("name", ATTACKERS)
@pytest.mark.parametrize("clients", [1, 6])
def test_no_client_or_all_of_them_cannot_be_malicious(name, clients):
    for attackers in (0, -1, clients, clients + 1):
        for refuses in (check, partial(build, stream=partial(stream, 0))):
            with pytest.raises(ValueError, match=f"{attackers}: from 1 to {clients - 1} of the {clients} clients") as error:
                refuses(name, num_clients=clients, attackers=attackers)
            assert "\n" not in str(error.value)


@pytest.mark.parametrize("attackers", [1, 3])
def test_ofom_has_exactly_two_attackers(attackers):
    for refuses in (check, partial(build, stream=partial(stream, 0))):
        with pytest.raises(ValueError, match=f"ofom has exactly 2 attackers, not {attackers}"):
            refuses("ofom", num_clients=6, attackers=attackers)
    assert check("ofom", 6, 2) is None and check("paf", 6, attackers) is None


@pytest.mark.parametrize("name", ATTACKERS)
@pytest.mark.parametrize("seed", range(4))
def test_only_the_attackers_uploads_change(name, seed):
    """As many uploads as there are attackers are replaced, by what the equations make of all others; their own does not count."""
    uploads, attack = uploads_of(6), made(name, seed=seed, z=1.5)
    attacked = attack(uploads, range(6), ROWS, 1)
    malicious = changed(uploads, attacked)
    assert len(malicious) == ATTACKERS[name] and attacked.shape == uploads.shape
    benign = uploads[[i for i in range(6) if i not in malicious]]
    if name == "lie":
        assert torch.equal(attacked[malicious[0]], lie(benign, 1.5))
    if name == "ofom":
        assert torch.allclose(attacked[malicious], ofom(benign, attacked[malicious[0]] - benign.mean(0)), atol=1e-4)
    own = uploads.clone()
    own[malicious] = 1e6
    assert torch.equal(attack(own, range(6), ROWS, 1)[malicious], attacked[malicious])


@pytest.mark.parametrize("name", ATTACKERS)
def test_b20_the_attack_changes_none_of_its_inputs(name):
    uploads, rows, ids = uploads_of(6), torch.tensor([7, 2, 0, 9, 4]), [0, 1, 2, 3, 4, 5]
    before = uploads.clone(), rows.clone()
    made(name)(uploads, ids, rows, 1)
    assert torch.equal(uploads, before[0]) and torch.equal(rows, before[1]) and ids == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ATTACKERS)
def test_uploads_in_another_order_are_attacked_alike(name):
    """It is the clients' ids that say who is malicious, not their places."""
    uploads, attack, order = uploads_of(6), made(name), [4, 2, 5, 0, 1, 3]
    assert torch.allclose(attack(uploads[order], order, ROWS, 1), attack(uploads, range(6), ROWS, 1)[order], atol=1e-4)


@pytest.mark.parametrize("name, attackers", [("paf", 1), ("lie", 2), ("ofom", 2), ("paf", 3)])
def test_attackers_are_drawn_once_from_the_seed(name, attackers):
    """The same in every round, in every order of calls and for every attack that is built anew; from other seeds come others."""
    def drawn(seed):
        return malicious_of(made(name, seed=seed, attackers=attackers), 6)
    attack = made(name, seed=3, attackers=attackers)
    for t in (1, 2, 7, 3, 1):
        uploads = uploads_of(6, seed=t)
        assert changed(uploads, attack(uploads, range(6), ROWS, t)) == drawn(3)
    everyone = [tuple(drawn(seed)) for seed in range(40)]
    assert all(len(ids) == attackers for ids in everyone) and set(itertools.chain(*everyone)) == set(range(6))


@pytest.mark.parametrize("name", ATTACKERS)
def test_b19_the_attack_fires_in_every_round(name):
    attack = made(name)
    for t in range(1, 8):
        uploads = uploads_of(6, seed=t)
        assert len(changed(uploads, attack(uploads, range(6), ROWS, t))) == ATTACKERS[name]


@pytest.mark.parametrize("name", ["paf", "ofom"])
def test_theta_is_the_same_in_all_rounds(name):
    """The same uploads become the same in every round; other uploads get the same u, in units of their own deviation."""
    attack, uploads = made(name), uploads_of(6)
    assert all(torch.equal(attack(uploads, range(6), ROWS, t), attack(uploads, range(6), ROWS, 1)) for t in (2, 3, 50))
    attack, u = made("paf"), []
    for t, other in enumerate([uploads, uploads_of(6, seed=8), 7 * uploads_of(6, seed=9) + 3], start=1):
        [m] = malicious_of(attack, 6)
        deviation = np.std([other[i].tolist() for i in range(6) if i != m])              # one number over all benign entries
        u.append(theta_of(attack, other, ROWS, t) / (10 * deviation))
    assert close(u[1], u[0], atol=1e-4) and close(u[2], u[0], atol=1e-4)


def test_us_of_a_row_does_not_depend_on_which_other_rows_there_are():
    """Uploads whose benign rows are all alike have the same deviation whichever rows are asked for."""
    attack, row = made("paf"), uploads_of(6, rows=1)
    whole = theta_of(attack, row.expand(6, 40, 3), torch.arange(40))
    for rows in ([7], [0, 1, 2], [39, 3, 12], [12, 3, 39, 0]):
        assert close(theta_of(attack, row.expand(6, len(rows), 3), torch.tensor(rows)), whole[rows], atol=1e-4)
    assert len({tuple(u) for u in whole.tolist()}) == 40


@pytest.mark.parametrize("scale", [5.0, 20.0, 0.0])
def test_theta_grows_with_scale_and_with_the_benign_deviation(scale):
    uploads = uploads_of(6)
    theta = theta_of(made("paf"), uploads, ROWS)                                         # scale 10
    assert close(theta_of(made("paf", scale=scale), uploads, ROWS), scale / 10 * theta, atol=1e-4)
    assert close(theta_of(made("paf"), 3 * uploads, ROWS), 3 * theta, atol=1e-4)
    assert close(theta_of(made("paf"), uploads + 100, ROWS), theta, atol=1e-2)


def test_us_are_standard_normal():
    """Of 10,000 the mean lies within five standard errors of 0, the mean square within five of 1 (a square has variance 2)."""
    uploads = torch.tensor([-1., 1.]).repeat(3).view(6, 1, 1).expand(6, 1000, 10) * torch.tensor([1., -1.]).repeat(5)
    [m] = malicious_of(made("paf"), 6)
    benign = uploads[[i for i in range(6) if i != m]]
    u = theta_of(made("paf", scale=4.0), uploads, torch.arange(1000)) / (4 * benign.std(correction=0))
    assert abs(u.mean().item()) < 5 / 100 and abs(u.square().mean().item() - 1) < 5 * math.sqrt(2) / 100


def test_two_paf_attackers_add_different_thetas():
    uploads, attack = uploads_of(6), made("paf", attackers=2)
    a, b = attack(uploads, range(6), ROWS, 1)[malicious_of(attack, 6)]
    assert (a - b).abs().min() > 1e-3


@pytest.mark.parametrize("name", ["paf", "ofom"])
def test_the_attack_changes_the_softmax_where_a_constant_would_not(name):
    uploads, attack = uploads_of(6), made(name)
    malicious = malicious_of(attack, 6)
    mean = uploads[[i for i in range(6) if i not in malicious]].mean(0)
    far = attack(uploads, range(6), ROWS, 1)[malicious[0]]
    assert torch.allclose((mean + 7).softmax(-1), mean.softmax(-1), atol=1e-6)
    assert ((far.softmax(-1) - mean.softmax(-1)).abs().amax(-1) > .1).all()


@pytest.mark.parametrize("z, used", [(None, lie_z(6, 1)), (1.5, 1.5), (0.0, 0.0)])
def test_lie_goes_as_far_as_asked_or_as_the_paper(z, used):
    uploads, attack = uploads_of(6), made("lie", z=z)
    [m] = malicious_of(attack, 6)
    benign = uploads[[i for i in range(6) if i != m]]
    assert torch.equal(attack(uploads, range(6), ROWS, 1)[m], lie(benign, used))


def test_benign_clients_who_do_not_take_part_are_not_imitated():
    uploads, attack = uploads_of(6), made("lie", z=1.5)
    [m] = malicious_of(attack, 6)
    ids = sorted([m, *[i for i in range(6) if i != m][:2]])
    attacked = attack(uploads[ids], ids, ROWS, 1)
    assert torch.equal(attacked[ids.index(m)], lie(uploads[[i for i in ids if i != m]], 1.5))


@pytest.mark.parametrize("name", ATTACKERS)
def test_an_attacker_that_does_not_take_part_changes_nothing(name):
    uploads, attack = uploads_of(6), made(name)
    ids = [i for i in range(6) if i not in malicious_of(attack, 6)]
    assert torch.equal(attack(uploads[ids], ids, ROWS, 1), uploads[ids])


@pytest.mark.parametrize("there", [0, 1])
def test_eq11_one_of_ofoms_two_alone_uploads_what_it_would_beside_the_other(there):
    uploads, attack = uploads_of(6), made("ofom")
    malicious = malicious_of(attack, 6)
    ids = [i for i in range(6) if i != malicious[1 - there]]
    alone = attack(uploads[ids], ids, ROWS, 1)
    assert changed(uploads[ids], alone) == [ids.index(malicious[there])]
    assert torch.equal(alone[ids.index(malicious[there])], attack(uploads, range(6), ROWS, 1)[malicious[there]])


@pytest.mark.parametrize("name", ATTACKERS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nobody_to_imitate(name, bad):
    """Uploads with nan or infinity count for nothing in what an attacker makes; without any good one, all uploads stay."""
    uploads, attack = uploads_of(6), made(name, z=1.5)
    malicious = malicious_of(attack, 6)
    benign = [i for i in range(6) if i not in malicious]
    uploads[benign[1], 2, 1] = bad
    attacked, kept = attack(uploads, range(6), ROWS, 1), [i for i in range(6) if i != benign[1]]
    assert torch.equal(attacked[malicious], attack(uploads[kept], kept, ROWS, 1)[[kept.index(m) for m in malicious]])
    assert torch.isfinite(attacked[malicious]).all() and torch.equal(attacked[benign].nan_to_num(), uploads[benign].nan_to_num())
    uploads[benign, 0, 0] = bad
    assert torch.equal(attack(uploads, range(6), ROWS, 1).nan_to_num(), uploads.nan_to_num())
    assert torch.equal(attack(uploads[malicious], malicious, ROWS, 1), uploads[malicious])


@pytest.mark.parametrize("name", ATTACKERS)
def test_no_rows_and_no_uploads_are_no_error(name):
    """FedGEMS may ask for nothing; in a round nobody but attackers may take part."""
    assert made(name)(torch.zeros(6, 0, 3), range(6), torch.arange(0), 1).shape == (6, 0, 3)
    assert made(name)(torch.zeros(0, 5, 3), [], ROWS, 1).shape == (0, 5, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ATTACKERS)
def test_the_attack_keeps_the_type_of_the_uploads(name, dtype):
    assert made(name)(uploads_of(6, dtype=dtype), range(6), ROWS, 1).dtype == dtype


@pytest.mark.parametrize("name", ATTACKERS)
def test_the_attack_leaves_the_global_generators_alone(name):
    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    made(name)(uploads_of(6), range(6), ROWS, 1)
    assert torch.equal(torch.get_rng_state(), before[0]) and np.array_equal(np.random.get_state()[1], before[1])


# ---------------------------------------------------------------------------------------------------- attacks on models

FLOATS = ["0.weight", "0.bias", "0.running_mean", "0.running_var", "2.weight", "2.bias"]     # of `with_batchnorm`, as they are kept


def batchnorm_uploads():
    """Three clients whose numbers are all i + 1, but for the counters, 10 (i + 1)."""
    def model(i):
        return {name: torch.full_like(value, 10 * (i + 1) if name.endswith("tracked") else i + 1)
                for name, value in with_batchnorm().state_dict().items()}
    return [{"model": model(i), "steps": 7 + i} for i in range(3)]


def test_attack_on_models_by_hand():
    """The vector is every float of the model in its order; a running variance stays >= 0; counters and all else are left."""
    trained, seen = batchnorm_uploads(), []
    before = copy.deepcopy(trained)

    def attack(uploads, client_ids, rows, t):
        seen.append((uploads.clone(), client_ids, rows.tolist(), t))
        uploads = uploads.clone()
        uploads[1] = torch.arange(len(rows)) - 9.5
        return uploads
    attacked = attacks.attack_models(attack, trained, [4, 7, 9], 5)
    [(uploads, ids, rows, t)] = seen
    assert ids == [4, 7, 9] and t == 5 and rows == list(range(1 + 1 + 1 + 1 + 12 + 3))
    assert torch.equal(uploads, torch.tensor([1., 2., 3.])[:, None].expand(3, 19))
    model = attacked[1]["model"]
    assert {name: model[name].flatten().tolist() for name in FLOATS} == {
        "0.weight": [-9.5], "0.bias": [-8.5], "0.running_mean": [-7.5], "0.running_var": [0.0],
        "2.weight": [n - 9.5 for n in range(4, 16)], "2.bias": [6.5, 7.5, 8.5]}
    assert model["2.weight"].shape == (3, 4) and list(model) == list(before[1]["model"])
    assert same(model["0.num_batches_tracked"], torch.tensor(20)) and attacked[1]["steps"] == 8
    assert same([attacked[0], attacked[2]], [before[0], before[2]]) and [list(upload) for upload in attacked] == [["model", "steps"]] * 3
    assert same(trained, before)


@pytest.mark.parametrize("z, number, variance", [(2.0, 2 + 2 * 1, 2 + 2 * 1), (-3.0, 2 - 3 * 1, 0)])
def test_lie_on_models_never_gives_a_negative_variance(z, number, variance):
    """All numbers of the benign clients are 1 and 3: mean 2, deviation 1. The attacker's own are 2."""
    attack = build("lie", partial(stream, 0), 3, 1, z=z)
    [m] = malicious_of(attack, 3)
    first, third = [i for i in range(3) if i != m]
    _, upload, _ = attacks.attack_models(attack, batchnorm_uploads(), [first, m, third], 1)
    assert upload["model"]["0.running_var"].item() == variance
    assert all((upload["model"][name] == number).all() for name in FLOATS if name != "0.running_var")


def test_lie_on_one_model_in_a_round_of_fedavg_by_hand():
    """The attacked upload takes its place in the average, with its client's number of samples: nothing else is replaced."""
    fed, local = federation(sizes=(5, 3, 4, 6)), {"local_epochs": 1, "batch_size": 2, "lr": 0.1}
    attack = build("lie", partial(stream, fed.seed), 4, 1, z=1.5)
    [m] = malicious_of(attack, 4)
    models = [fedavg.train_client(fed, i, 1, fedavg.start_server(fed, "linear"), **local)["model"] for i in range(4)]
    expected = {}
    for name in ("1.weight", "1.bias"):
        values = np.stack([model[name].double().numpy() for model in models])
        benign = np.delete(values, m, axis=0)
        values[m] = benign.mean(0) + 1.5 * np.sqrt(((benign - benign.mean(0))**2).mean(0))
        expected[name] = sum(size * value for size, value in zip((5, 3, 4, 6), values)) / (5 + 3 + 4 + 6)
    _, state = last(fedavg.run(fed, rounds=1, participation=1.0, **local, attack=attack))
    assert all(np.allclose(state["server"]["model"][name], value, atol=1e-5) for name, value in expected.items())


# --------------------------------------------------------------------------------------------- every algorithm under attack

LOCAL = {"local_epochs": 1, "batch_size": 4, "lr": 0.1}
DISTIL = {"distill_steps": 1, "server_batch_size": 4, "server_lr": 0.1}
LOGITS = {"local_epochs": 1, "public_epochs": 1, "batch_size": 8, "lr": 0.05}
SERVER = {"server_epochs": 1, "server_batch_size": 8, "server_lr": 0.05}
SETTINGS = {
    "fedavg": LOCAL, "fedprox": {**LOCAL, "mu": 0.1},
    "feddf": {**LOCAL, **DISTIL, "drop_worst": False, "patience": None}, "fedsdd": {**LOCAL, **DISTIL, "K": 2, "R": 2},
    "fedsdd-ablations": {**LOCAL, **DISTIL, "K": 2, "R": 2, "ensemble": "clients", "students": "all"},
    "fedmd": {**LOGITS, "transfer_public_epochs": 1, "transfer_local_epochs": 1, "early_stopping": False, "subset_size": 7},
    "dsfl": {**LOGITS, **SERVER}, "cronus": LOGITS, "fedgem": {**LOGITS, **SERVER}, "fedgems": {**LOGITS, **SERVER},
    "fedgems-ablations": {**LOGITS, **SERVER, "self_training": False},
}
WEIGHTS = ("fedavg", "fedprox", "feddf", "fedsdd", "fedsdd-ablations")
NEEDS_LABELS = ("fedmd", "fedgem", "fedgems", "fedgems-ablations")
SIZES = (3, 2, 4, 3, 2)
every_algorithm = pytest.mark.parametrize("algo", SETTINGS)


def toy(algo, **changes):
    """Five clients and 12 public samples, with labels only for those that use them."""
    return (labelled if algo in NEEDS_LABELS else federation)(**{"sizes": SIZES, "num_public": 12, **changes})


def run(algo, fed, attack=None, rounds=2, **changes):
    """(metrics, state) of each round, without rounds that are checkpoints alone."""
    settings = {**SETTINGS[algo], **({"participation": 1.0} if algo in WEIGHTS else {}), "rounds": rounds, **changes}
    return [(metrics, state) for metrics, state in ALGORITHMS[algo](fed, **settings, attack=attack) if metrics is not None]


def nothing(uploads, client_ids, rows, t):
    """An attack that changes nothing."""
    return uploads


def recorded(attack):
    """The attack, what it is handed from now on, [(uploads, client ids, rows, t)], and what it makes of it, [uploads]."""
    handed, returned = [], []

    def recorder(uploads, client_ids, rows, t):
        handed.append((uploads.clone(), list(client_ids), rows.clone(), t))
        returned.append(attack(uploads, client_ids, rows, t))
        return returned[-1]
    return recorder, handed, returned


@functools.cache
def whole(algo, attack=None, network=linear, **settings):
    """(rounds, handed, returned) of a run under the attack of that name, under one that is a function, or under none."""
    attack = made(attack, len(SIZES), z=1.5) if attack in ATTACKERS else attack
    recorder, handed, returned = recorded(attack)
    return run(algo, toy(algo, network=network), attack and recorder, **settings), handed, returned


def test_every_algorithm_that_can_be_attacked_is_attacked_here():
    assert {name for name, function in ALGORITHMS.items() if "attack" in inspect.signature(function).parameters} == {*SETTINGS, "fedgkt"}


@every_algorithm
@pytest.mark.parametrize("name", ATTACKERS)
def test_an_attacked_run_goes_on_with_finite_numbers_and_differs_from_the_clean_one_in_every_round(algo, name):
    (clean, _, _), (attacked, _, _) = whole(algo), whole(algo, name)
    assert len(clean) == len(attacked) == 3 and same(clean[0][1], attacked[0][1])
    for (_, a), (metrics, b) in list(zip(clean, attacked))[1:]:
        assert not same(a, b)
        assert all(value is None or math.isfinite(value) for value in metrics.values()) and metrics["bad_uploads"] == 0


@every_algorithm
@pytest.mark.parametrize("name", ATTACKERS)
def test_b19_in_every_round_of_every_algorithm_the_attackers_uploads_are_replaced(algo, name):
    _, handed, returned = whole(algo, name)
    assert [t for *_, t in handed] == [1, 2]
    for (uploads, ids, _, _), after in zip(handed, returned, strict=True):
        assert [ids[j] for j in changed(uploads, after)] == malicious_of(made(name, len(SIZES)), len(SIZES))


@every_algorithm
def test_an_attack_that_changes_nothing_is_no_attack_bit_for_bit(algo):
    settings = {"network": with_batchnorm, "participation": 0.6} if algo in WEIGHTS else {}
    for (a, state_a), (b, state_b) in zip(whole(algo, **settings)[0], whole(algo, nothing, **settings)[0], strict=True):
        assert a == b and same(state_a, state_b)


@pytest.mark.parametrize("algo", WEIGHTS)
def test_an_attacker_that_is_not_drawn_in_a_round_changes_nothing_in_it(algo):
    """With the first seed whose attacker sits out round 1 and is there in round 2."""
    for seed in itertools.count():
        fed, attack = toy(algo, seed=seed), made("paf", len(SIZES), seed=seed)
        [m] = malicious_of(attack, len(SIZES))
        if [m in active_clients(fed, 0.6, t)["linear"] for t in (1, 2)] == [False, True]:
            break
    clean, attacked = (run(algo, fed, a, participation=0.6) for a in (None, attack))
    assert same(clean[1][1], attacked[1][1]) and not same(clean[2][1], attacked[2][1])


def vector(state_dict):
    return torch.cat([value.flatten() for value in state_dict.values() if value.is_floating_point()])


@pytest.mark.parametrize("algo", WEIGHTS)
def test_the_attack_is_handed_the_active_clients_trained_models_as_vectors(algo):
    fed = toy(algo, network=with_batchnorm)
    rounds, handed, _ = whole(algo, nothing, network=with_batchnorm, participation=0.6)
    states = [state for _, state in rounds]
    for t, (uploads, ids, rows, now) in enumerate(handed, start=1):
        active = sample_clients(5, 0.6, stream(fed.seed, "active", t))
        assert now == t and ids == active and len(ids) == 3 and rows.tolist() == list(range(1 + 1 + 1 + 1 + 12 + 3))
        before = states[t - 1]
        groups = fedsdd.group_clients(active, 2, stream(fed.seed, "groups", t))
        start = {"fedavg": lambda i: before["server"], "fedprox": lambda i: before["server"],
                 "feddf": lambda i: before["global_models"][0]}
        start["fedsdd"] = start["fedsdd-ablations"] = lambda i: before["global_models"][[i in group for group in groups].index(True)]
        train = partial(fedprox.train_client, mu=0.1) if algo == "fedprox" else fedavg.train_client
        for upload, i in zip(uploads, ids, strict=True):
            assert torch.equal(upload, vector(train(fed, i, t, start[algo](i), **LOCAL)["model"]))
    assert len(handed) == 2


def test_fedmds_attack_is_handed_the_logits_of_the_rounds_public_subset():
    fed = toy("fedmd")
    rounds, handed, _ = whole("fedmd", nothing)
    states = [state for _, state in rounds]
    for t, (uploads, ids, rows, now) in enumerate(handed, start=1):
        assert now == t and ids == list(range(5)) and uploads.shape == (5, 7, 3)
        assert np.array_equal(rows, fedmd.public_subset(fed.public.labels.numpy(), 7, stream(fed.seed, "subset", t)))
        for upload, party in zip(uploads, states[t - 1]["parties"], strict=True):
            model = fed.client_model(0)
            model.load_state_dict(party["model"])
            assert torch.equal(upload, predict_logits(fed, model, fed.public.images[rows]))


def after_private_training(fed, t, client, i):
    """The logits of client i on all public samples after its own training in round t; client: as the round before left it."""
    logits, _ = fedgems.train_client(fed, i, t, client, torch.arange(len(fed.public.images)), local_epochs=1, batch_size=8,
                                     new_optimizer=partial(OPTIMIZERS["amsgrad"], lr=0.05, weight_decay=1e-4))
    return logits


@pytest.mark.parametrize("algo", ["dsfl", "cronus", "fedgem"])
def test_the_attack_is_handed_what_each_client_says_of_every_public_sample(algo):
    """Probabilities in DS-FL and Cronus, logits in FedGEM; after private training, before anything is averaged."""
    fed = toy(algo)
    rounds, handed, _ = whole(algo, nothing)
    states = [state for _, state in rounds]
    for t, (uploads, ids, rows, now) in enumerate(handed, start=1):
        assert now == t and ids == list(range(5)) and rows.tolist() == list(range(12)) and uploads.shape == (5, 12, 3)
        for i in ids:
            logits = after_private_training(fed, t, states[t - 1]["clients"][i], i)
            assert torch.equal(uploads[i], logits if algo == "fedgem" else logits.softmax(-1))


@pytest.mark.parametrize("algo", ["fedgems", "fedgems-ablations"])
def test_fedgems_attack_is_handed_the_logits_of_the_rows_that_are_not_in_the_pool(algo):
    fed = toy(algo)
    rounds, handed, _ = whole(algo, nothing)
    states = [state for _, state in rounds]
    for t, (uploads, ids, rows, now) in enumerate(handed, start=1):
        outside = [row for row in range(12) if not states[t - 1]["pool"]["mask"][row]]
        assert now == t and ids == list(range(5)) and rows.tolist() == outside and uploads.shape == (5, len(outside), 3)
        for i in ids:
            assert torch.allclose(uploads[i], after_private_training(fed, t, states[t - 1]["clients"][i], i)[outside], atol=1e-6)
    assert len(handed[0][2]) == 12 > len(handed[1][2])


@pytest.mark.parametrize("algo", ["fedmd", "fedgem", "fedgems", "fedgems-ablations", "dsfl", "cronus"])
def test_clients_with_different_networks_can_be_attacked_through_their_logits(algo):
    rounds, handed, returned = whole(algo, "paf", network=(linear, with_hidden_layer), rounds=1)
    assert math.isfinite(rounds[-1][0]["accuracy"])
    assert [len(changed(uploads, after)) for (uploads, *_), after in zip(handed, returned, strict=True)] == [1]


def first_arguments(monkeypatch, module, name):
    """What one function of a module is called with, from now on."""
    seen, original = [], getattr(module, name)
    monkeypatch.setattr(module, name, lambda first, *rest: seen.append(first.clone()) or original(first, *rest))
    return seen


@pytest.mark.parametrize("algo, module, aggregate", [("fedmd", fedmd, "consensus"), ("dsfl", dsfl, "entropy_reduction"),
                                                     ("cronus", cronus, "robust_mean"), ("fedgems", fedgems, "reliable_clients"),
                                                     ("fedgems-ablations", fedgems_ablations, "reliable_clients")])
def test_what_the_attack_returns_is_what_is_aggregated(monkeypatch, algo, module, aggregate):
    seen = first_arguments(monkeypatch, module, aggregate)
    recorder, _, returned = recorded(made("paf", len(SIZES)))
    run(algo, toy(algo), recorder)
    assert same(seen, returned)


def test_the_server_of_fedgem_learns_from_the_mean_of_the_attacked_logits(monkeypatch):
    """FedGEM's teacher, seen where it is handed to the server."""
    seen, original = [], fedgem.train_server

    def watched(fed, t, server, teacher_logits, *rest, **settings):
        seen.append(teacher_logits.clone())
        return original(fed, t, server, teacher_logits, *rest, **settings)
    monkeypatch.setattr(fedgem, "train_server", watched)
    recorder, _, returned = recorded(made("paf", len(SIZES)))
    run("fedgem", toy("fedgem"), recorder)
    assert len(seen) == 2 and all(torch.allclose(teacher, uploads.mean(0)) for teacher, uploads in zip(seen, returned, strict=True))


# ------------------------------------------------------------------------------------------------------------- refusals

@pytest.mark.parametrize("algo, changes, network", [("fedsdd", {"secure_sum": True}, linear), *(
    (algo, changes, network) for algo in ("fedsdd", "fedsdd-ablations")
    for changes, network in [({"local": "scaffold"}, linear), ({}, (linear, with_hidden_layer))])])
def test_fedsdd_refuses_an_attack_it_could_not_carry_out(algo, changes, network):
    fed = toy(algo, network=network)
    with pytest.raises(ValueError, match="one network for all clients, and neither --secure-sum nor --local scaffold") as error:
        run(algo, fed, made("paf", len(SIZES)), **changes)
    assert "\n" not in str(error.value)
    assert len(run(algo, fed, rounds=1, **changes)) == 2                              # without an attack it is allowed


def test_feddf_refuses_an_attack_on_several_networks():
    fed = toy("feddf", network=(linear, with_hidden_layer))
    with pytest.raises(ValueError, match="--attack on weights needs one network for all clients") as error:
        run("feddf", fed, made("paf", len(SIZES)))
    assert "\n" not in str(error.value) and len(run("feddf", fed, rounds=1)) == 2


# ----------------------------------------------------------------------------------------- FedGEMS trusts those who are right

@pytest.mark.parametrize("scale", [1e2, 1e6, 1e30])
def test_under_paf_an_attacker_of_fedgems_is_right_no_oftener_than_a_guess_and_else_counts_for_nothing(scale):
    """1,000 rows, 10 classes: five standard deviations of a guess. Where it is wrong the fused logits are those of the others."""
    labels = torch.from_numpy(np.random.default_rng(0).integers(10, size=1000))
    logits = uploads_of(6, 1000, 10) + 3 * torch.nn.functional.one_hot(labels, 10)
    attack = made("paf", scale=scale)
    [m] = malicious_of(attack, 6)
    others = [i for i in range(6) if i != m]
    attacked = attack(logits, range(6), torch.arange(1000), 1)
    reliable = fedgems.reliable_clients(attacked, labels)
    fused = fedgems.fuse_logits(attacked, fedgems.entropy_weights(attacked, reliable))
    without = fedgems.fuse_logits(logits[others], fedgems.entropy_weights(logits[others], reliable[others]))
    wrong = ~reliable[m]
    assert abs(reliable[m].float().mean().item() - 1 / 10) < 5 * math.sqrt(1 / 10 * 9 / 10 / 1000)
    assert torch.isfinite(fused).all() and torch.allclose(fused[wrong], without[wrong], atol=1e-5)
    assert (fused.argmax(1) == labels)[reliable[m]].all()


# --------------------------------------------------------------------------- A7: uploads of samples of each client's own (FedGKT)

OWN = (3, 2, 4, 3, 2, 5)


def samples_of(sizes=OWN, shape=(3,), seed=0, dtype=torch.float32):
    """What each client sends: [n_i, ...]."""
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(rng.normal(size=(n, *shape))).to(dtype) for n in sizes]


def dealt(attack, attackers_rows):
    """The three benign samples `BENIGN` with two clients, two and one, and so many rows of 9 with the attacker: (uploads, attacker)."""
    [m] = malicious_of(attack, 3)
    uploads = [BENIGN[:2], BENIGN[2:]]
    uploads.insert(m, torch.full((attackers_rows, 3), 9.))
    return uploads, m


@pytest.mark.parametrize("rows", [1, 4])
def test_a7_lie_on_samples_by_hand_repeats_one_value_for_all_rows(rows):
    """Mean and deviation over the three benign samples, each counted once; not over the two clients' means."""
    attack = build("lie", partial(stream, 0), 3, 1, z=1.5)
    uploads, m = dealt(attack, rows)
    expected = torch.tensor([4 + 1.5 * SIGMAS[0], 1 + 1.5 * SIGMAS[1], 5 + 1.5 * SIGMAS[2]])
    assert close(attack.samples(uploads, range(3), 1)[m], expected.expand(rows, 3))


@pytest.mark.parametrize("scale", [2.0, 0.0])
def test_a7_paf_on_samples_by_hand(scale):
    """Mean over the benign samples plus scale times the deviation of all nine benign numbers times u, another u for each row."""
    attack = build("paf", partial(stream, 0), 3, 1, scale=scale)
    uploads, m = dealt(attack, 4)
    numbers = [1, 0, 4, 3, 0, 5, 8, 3, 6]
    deviation = math.sqrt(sum((number - sum(numbers) / 9)**2 for number in numbers) / 9)
    theta = attack.samples(uploads, range(3), 1)[m] - torch.tensor([4., 1., 5.])
    if not scale:
        assert close(theta, torch.zeros(4, 3))
        return
    u = theta / (scale * deviation)
    again, one = build("paf", partial(stream, 0), 3, 1, scale=1.0), torch.tensor([[-1.], [1.]]).expand(2, 3)     # mean 0, deviation 1
    plain = [one, one]
    plain.insert(m, torch.zeros(4, 3))
    assert close(u, again.samples(plain, range(3), 1)[m], atol=1e-4) and len(set(u.flatten().tolist())) == 12


def test_a7_ofom_on_samples_by_hand():
    """The second's row is the mean of all benign samples and of the first's row, over one more than there are benign samples."""
    attack, uploads = made("ofom"), samples_of((3, 3, 3, 3, 3, 3))
    first, second = malicious_of(attack, 6)
    benign = [row for i, own in enumerate(uploads) if i not in (first, second) for row in own.tolist()]
    attacked = attack.samples(uploads, range(6), 1)
    for far, mean in zip(attacked[first].tolist(), attacked[second].tolist(), strict=True):
        for c in range(3):
            assert mean[c] == pytest.approx((sum(row[c] for row in benign) + far[c]) / (12 + 1), abs=1e-5)
    assert attacked[first].std() > 3


def test_a7_thetas_u_is_the_same_in_all_rounds_for_a_clients_row():
    """Whatever is uploaded and by how many rows: in units of the benign deviation the same numbers come row by row."""
    attack, found = made("paf"), []
    [m] = malicious_of(attack, 6)
    for t, (seed, rows) in enumerate([(1, 7), (2, 7), (3, 4)], start=1):
        uploads = samples_of([rows if i == m else n for i, n in enumerate(OWN)], seed=seed)
        benign = torch.cat([own for i, own in enumerate(uploads) if i != m])
        theta = attack.samples(uploads, range(6), t)[m] - benign.mean(0)
        found.append(theta / (10 * np.std(benign.numpy())))
        assert torch.equal(attack.samples(uploads, range(6), 50)[m], attack.samples(uploads, range(6), t)[m])
    assert close(found[1], found[0], atol=1e-4) and close(found[2], found[0][:4], atol=1e-4)


@pytest.mark.parametrize("name", ATTACKERS)
@pytest.mark.parametrize("shape, dtype", [((3,), torch.float32), ((5, 2, 2), torch.float32), ((5, 2, 2), torch.bfloat16)])
def test_a7_only_the_attackers_values_change_and_each_keeps_its_rows_shape_and_type(name, shape, dtype):
    uploads, attack = samples_of(shape=shape, dtype=dtype), made(name, z=1.5)
    before = copy.deepcopy(uploads)
    attacked = attack.samples(uploads, range(6), 1)
    assert changed(uploads, attacked) == malicious_of(attack, 6) and same(uploads, before)
    assert [(own.shape, own.dtype) for own in attacked] == [(own.shape, own.dtype) for own in uploads]


@pytest.mark.parametrize("name", ATTACKERS)
def test_a7_what_attackers_would_have_sent_does_not_count(name):
    uploads, attack = samples_of(), made(name, z=1.5)
    own = [torch.full_like(x, 1e6) if i in malicious_of(attack, 6) else x for i, x in enumerate(uploads)]
    assert same(attack.samples(own, range(6), 1), attack.samples(uploads, range(6), 1))


@pytest.mark.parametrize("name", ATTACKERS)
def test_a7_the_order_of_the_clients_does_not_matter(name):
    uploads, attack, order = samples_of(), made(name, z=1.5), [4, 2, 5, 0, 1, 3]
    straight, turned = attack.samples(uploads, range(6), 1), attack.samples([uploads[i] for i in order], order, 1)
    assert all(torch.allclose(turned[order.index(i)], straight[i], atol=1e-4) for i in range(6))


@pytest.mark.parametrize("name", ATTACKERS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a7_benign_samples_that_are_not_finite_are_not_imitated(name, bad):
    """They alone: the other samples of that client are. With none left, or no benign client there, all stays."""
    uploads, attack = samples_of(), made(name, z=1.5)
    malicious = malicious_of(attack, 6)
    benign = next(i for i in range(6) if i not in malicious)
    spoilt, without = list(uploads), list(uploads)
    spoilt[benign] = torch.cat([uploads[benign], torch.full((1, 3), bad)])
    ours, expected = (attack.samples(x, range(6), 1) for x in (spoilt, without))
    assert all(torch.allclose(ours[m], expected[m], atol=1e-4) for m in malicious)
    everyone = [own if i in malicious else torch.full_like(own, bad) for i, own in enumerate(uploads)]
    assert all(x is y for x, y in zip(attack.samples(everyone, range(6), 1), everyone, strict=True))
    alone = [uploads[m] for m in malicious]
    assert same(attack.samples(alone, malicious, 1), alone)


@pytest.mark.parametrize("name", ATTACKERS)
def test_a7_where_no_attacker_takes_part_nothing_changes(name):
    uploads, attack = samples_of(), made(name)
    ids = [i for i in range(6) if i not in malicious_of(attack, 6)]
    assert same(attack.samples([uploads[i] for i in ids], ids, 1), [uploads[i] for i in ids])


class Recorded:
    """An attack on samples, what it is handed from now on, [(uploads, client ids, t)], and what it makes of it."""

    def __init__(self, samples):
        self.make, self.handed, self.returned = samples, [], []

    def samples(self, uploads, client_ids, t):
        self.handed.append(([own.clone() for own in uploads], list(client_ids), t))
        self.returned.append(self.make(uploads, client_ids, t))
        return self.returned[-1]


def gkt_rounds(attack=None, **changes):
    return list(ALGORITHMS["fedgkt"](gkt_toy(sizes=(3, 2, 4, 3, 2)), **{**GKT, **changes}, attack=attack))


@pytest.mark.parametrize("name", ATTACKERS)
def test_b19_in_every_round_of_fedgkt_the_attackers_maps_and_logits_are_replaced_and_nobody_elses(name):
    attack = made(name, 5, z=1.5)
    recorded = Recorded(attack.samples)
    clean, attacked = gkt_rounds(), gkt_rounds(recorded)
    assert [t for *_, t in recorded.handed] == [1, 1, 2, 2] and same(clean[0][1], attacked[0][1])
    for (uploads, ids, _), after, shape in zip(recorded.handed, recorded.returned, [(5, 1, 1), (3,)] * 2, strict=True):
        assert ids == list(range(5)) and [own.shape for own in uploads] == [(n, *shape) for n in (3, 2, 4, 3, 2)]
        assert changed(uploads, after) == malicious_of(attack, 5)
    for (_, a), (metrics, b) in list(zip(clean, attacked))[1:]:
        assert not same(a["server"], b["server"]) and metrics["bad_uploads"] == 0
        assert all(math.isfinite(value) for value in metrics.values())
    assert same(clean[1][1]["clients"], attacked[1][1]["clients"]) and not same(clean[2][1]["clients"], attacked[2][1]["clients"])


@pytest.mark.parametrize("settings", [{}, {"features": "bfloat16"}, {"participation": .6}])
def test_an_attack_that_changes_nothing_is_no_attack_on_fedgkt_bit_for_bit(settings):
    unchanged = Recorded(lambda uploads, client_ids, t: uploads)
    for (a, state_a), (b, state_b) in zip(gkt_rounds(**settings), gkt_rounds(unchanged, **settings), strict=True):
        assert a == b and same(state_a, state_b)
    assert len(unchanged.handed) == 2 * state_a["round"] == 2 * 2


def test_fedgkts_server_learns_from_what_the_attack_returns_and_the_clients_own_labels(monkeypatch):
    """Handed over are the maps and logits that clients made; back come those the server is trained with; no label changes."""
    uploads, recorded, fed = trained_on(monkeypatch), Recorded(made("paf", 5).samples), gkt_toy(sizes=(3, 2, 4, 3, 2))
    before = copy.deepcopy(fed.private)
    list(ALGORITHMS["fedgkt"](fed, **GKT, attack=recorded))
    for event, used in enumerate(uploads()):
        features, logits = recorded.returned[2 * event:2 * event + 2]
        assert all(torch.equal(used[i][0], features[i]) and torch.equal(used[i][1], logits[i]) for i in range(5))
    assert same(fed.private, before)
