"""FedGEMS: who is right, what counts how much, what is learned in each case; Algorithm 1 whole."""
import math
from functools import partial
from itertools import product

import pytest
import torch
from slow import close, drawn, numbers, pixels, slow_accuracy, update_by
from toys import SHAPE, Change, labeled, last, linear, normal, rounds, same, with_batchnorm

from algorithms import fedgem, fedgems, fedgems_ablations
from algorithms.fedgems import (CASES, choose_teacher, entropy, entropy_weights, fuse, is_right,
                                server_loss)
from federation import HUGE, is_usable, predict
from reference import fedgems as oracle

QUICK = {"rounds": 2, "local_epochs": 1, "public_epochs": 1, "server_epochs": 1, "batch_size": 4,
         "server_batch_size": 5, "lr": 0.1, "server_lr": 0.1, "epsilon": 0.6,
         "optimizer": "amsgrad", "weight_decay": 0.01}
TWICE = {"local_epochs": 2, "public_epochs": 2, "server_epochs": 2}


def logits_of(*probs):
    """Logits whose softmax is the given probabilities."""
    return torch.tensor(probs, dtype=torch.float64).log()


def test_eq3_by_hand():
    """In nats, a sum over the classes."""
    expected = [-(.8 * math.log(.8) + .2 * math.log(.2)), math.log(2)]
    assert entropy(logits_of([.8, .2], [.5, .5])).tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("size", [1e3, 0.9 * HUGE])
def test_eq3_certain_logits_have_entropy_zero(size):
    """Up to the largest number of a usable upload."""
    logits = torch.tensor([[size, -size, 0.0], [-size, 0.0, -size]])
    assert entropy(logits).tolist() == [oracle.entropy(z) for z in logits.tolist()] == [0.0, 0.0]


def test_eq4_weights_of_nearly_certain_clients_in_float32_are_those_of_float64():
    """H is from 1e-5 to 1e-3: by - p ln p a weight in float32 is off by up to 0.9995."""
    logits = torch.randn(2, 4000, 10, generator=torch.Generator().manual_seed(13))
    logits[..., 0] = logits.max(-1).values + 13
    reliable = torch.ones(2, 4000, dtype=torch.bool)
    single, double = (entropy_weights(z, reliable) for z in (logits, logits.double()))
    assert single.dtype == torch.float32 and (single - double).abs().max() < 1e-4


def test_reliable_is_who_predicts_the_label_by_hand():
    logits = torch.tensor([[[1., 3., 2.], [5., 4., 3.]], [[.1, 0., 0.], [-9., -8., -7.]]])
    for labels in (torch.tensor([1, 2]), torch.tensor([[1], [2]])):
        assert is_right(logits, labels).tolist() == [[True, False], [False, True]]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, HUGE, -HUGE])
@pytest.mark.parametrize("where", [0, 1])
def test_a_logit_that_is_not_usable_is_never_right(bad, where):
    """Nor is one whose argmax is the label, with the bad number at another class. The bound is that
    of all uploads."""
    logits = torch.tensor([[[2., 1.], [2., 1.], [.9 * HUGE, 1.]]])
    logits[0, 0, where] = bad
    assert is_right(logits, torch.tensor([0, 0, 0])).tolist() == [[False, True, True]]
    assert [is_usable(row) for row in logits[0]] == [False, True, True]


def test_eq4_by_hand():
    """Softmax of 1/H over two reliable clients, beside one that is more certain but wrong."""
    logits = logits_of([[.8, .2]], [[.6, .4]], [[.01, .99]])
    a, b = (math.exp(-1 / (p * math.log(p) + (1 - p) * math.log(1 - p))) for p in (.8, .6))
    weights = entropy_weights(logits, torch.tensor([[True], [True], [False]]))[:, 0]
    assert weights.tolist() == pytest.approx([a / (a + b), b / (a + b), 0], abs=1e-12)  # .625, .375


def test_eq4_unreliable_client_gets_exactly_zero():
    """And the others' weights are as without it: a 0 before the softmax would give it exp(0)."""
    logits = .1 * normal(4, 5, 3)                   # 1/H is about .9, not far from 0
    reliable = torch.tensor([[True] * 5, [False] * 5, [True] * 5, [False] * 5])
    weights = entropy_weights(logits, reliable)
    assert weights[[1, 3]].tolist() == [[0.0] * 5] * 2
    assert torch.allclose(weights[[0, 2]], entropy_weights(logits[[0, 2]], reliable[[0, 2]]))


@pytest.mark.parametrize("size", [1e2, 1e4])
def test_eq4_certain_clients_share_equally(size):
    """H is 0 for both, whatever their logits; who is less certain by a margin gets nothing."""
    logits = torch.tensor([[[size, 0.]], [[2 * size, -size]], [[1., 0.]]])
    weights = entropy_weights(logits, torch.tensor([[True]] * 3))
    slow, _ = oracle.fuse(logits[:, 0].tolist(), 0)
    assert weights.flatten().tolist() == [*slow.values()] == [.5, .5, 0.]


@pytest.mark.parametrize("sure, less, low, high, expected", [
    (25., 20., 1e-10, 1e-6, [.5, .5]),
    (16.5, 16., 1e-6, 2e-6, [1, 0])])                # 1/H differs by 1e5, and exp(-1e5) is 0
def test_eq4_entropies_below_a_millionth_count_the_same(sure, less, low, high, expected):
    logits = torch.tensor([[[sure, 0.]], [[less, 0.]]], dtype=torch.float64)
    [a], [b] = entropy(logits).tolist()
    assert low < a < b < high
    weights = entropy_weights(logits, torch.tensor([[True], [True]]))
    assert weights.flatten().tolist() == expected


def test_eq5_fused_logits_by_hand():
    logits = torch.tensor([[[4., 0.], [1., 2.]], [[0., 1.], [3., 4.]], [[9., 9.], [5., 7.]]])
    weights = torch.tensor([[.25, 0.], [.75, .5], [0., .5]])
    assert fuse(logits, weights).tolist() == [
        [.25 * 4 + .75 * 0, .25 * 0 + .75 * 1], [.5 * 3 + .5 * 5, .5 * 4 + .5 * 7]]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_eq4_eq5_a_logit_that_is_not_finite_reaches_nothing(bad):
    """One client has bad logits of the second of three samples, all clients of the third."""
    logits, labels = 2 * normal(3, 3, 2), torch.tensor([0, 0, 0])
    logits[:, :, 0] = logits[:, :, 1] + 1                                        # all are right
    others = entropy_weights(logits[[0, 2]], torch.ones(2, 3, dtype=torch.bool))
    without = fuse(logits[[0, 2]], others)
    logits[1, 1, 0] = logits[:, 2, 1] = bad
    weights = entropy_weights(logits, is_right(logits, labels))
    fused = fuse(logits, weights)
    assert weights[:, 2].tolist() == [0.0] * 3 and fused[2].tolist() == [0.0] * 2
    assert weights[1, 1] == 0 and torch.allclose(weights[[0, 2], 1], others[:, 1])
    assert torch.allclose(fused[1], without[1]) and torch.isfinite(fused).all()


def test_a_weight_of_nan_shows_and_never_makes_a_uniform_teacher():
    """The first client is called reliable, with logits of nan."""
    logits = torch.tensor([[[math.nan, 0.]], [[1., 0.]]])
    weights = entropy_weights(logits, torch.tensor([[True], [True]]))
    assert weights.isnan().all() and fuse(logits, weights).isnan().all()


@pytest.mark.parametrize("right, in_pool, client_right", [*product((True, False), repeat=3)])
def test_who_teaches_the_server_by_hand(right, in_pool, client_right):
    """Line 5-12: a server that is right has no teacher; the pool goes before the clients."""
    flags = [torch.tensor([flag]) for flag in (right, in_pool, client_right)]
    teacher, has_teacher, case = choose_teacher(
        *flags, pool_logits=torch.tensor([[5., 0.]]), ensemble=torch.tensor([[7., 1.]]))
    expected = ("self_training" if right else "self_distillation" if in_pool else
                "ensemble_distillation" if client_right else "nobody_right")
    assert CASES[case] == expected and case.dtype == torch.int64
    assert has_teacher.tolist() == [expected.endswith("distillation")]
    if has_teacher:
        assert teacher.tolist() == [[5., 0.] if in_pool else [7., 1.]]


@pytest.mark.parametrize("file", [fedgems, fedgem], ids=["fedgems", "fedgem"])
def test_eq2_eq6_by_hand(file):
    """epsilon is the share of the cross-entropy; KL(teacher || student), summed over the classes.
    Of each of two images."""
    p, q = [[.7, .2, .1], [.25, .25, .5]], [[.3, .6, .1], [.5, .25, .25]]
    first = .75 * -math.log(.3) + .25 * (.7 * math.log(.7 / .3) + .2 * math.log(.2 / .6))
    second = .75 * -math.log(.25) + .25 * (.25 * math.log(.25 / .5) + .5 * math.log(.5 / .25))
    loss = file.distillation(logits_of(*q), torch.tensor([0, 2]), logits_of(*p), .75)
    assert loss.tolist() == pytest.approx([first, second], abs=1e-12)


def test_server_loss_is_one_mean_over_mixed_cases():
    """The one sample of four with a teacher weighs a quarter, not as much as the other three, whose
    teachers may be anything. Numbers 0 and 1 are refused: they could be taken for rows."""
    q, p, any_ = [.4, .6], [.9, .1], [math.nan, math.inf]
    logits = logits_of(q, q, q, q).requires_grad_()
    with_teacher = .5 * -math.log(.4) + .5 * (.9 * math.log(.9 / .4) + .1 * math.log(.1 / .6))
    labels, teacher = torch.tensor([0, 0, 1, 1]), logits_of(p, any_, any_, any_)
    loss = server_loss(logits, labels, teacher, torch.tensor([True, False, False, False]), .5)
    [gradient] = torch.autograd.grad(loss, logits)
    expected = (with_teacher - math.log(.4) - 2 * math.log(.6)) / 4
    assert loss.item() == pytest.approx(expected, abs=1e-12) and gradient.isfinite().all()
    with pytest.raises(RuntimeError, match="boolean"):
        server_loss(logits, labels, teacher, torch.tensor([1, 0, 0, 0]), .5)


# What is done with a public sample, by (the server is right, it was right before): Alg. 1,
# line 5-12; then Table 5 as fedgems_ablations.py reads it.
ALGORITHM_1 = {kind: oracle.who_teaches(*kind) for kind in product((True, False), repeat=2)}
WITHOUT = {
    (): ALGORITHM_1,
    ("self_training",): ALGORITHM_1 | {(True, True): "self_distillation", (True, False): "clients"},
    ("self_distillation",): ALGORITHM_1 | {(False, True): "clients"},
    ("ensemble_distillation",): ALGORITHM_1 | {(False, False): "nobody_right"},
    ("self_training", "self_distillation"): dict.fromkeys(ALGORITHM_1, "clients")}


def slow_rounds(fed, settings, table=ALGORITHM_1):
    """Yields what reference/fedgems.py knows after each round, with the batches of the run."""
    *private, public = ([*zip(pixels(images), labels.tolist())]
                        for images, labels in (*fed.private, fed.public))
    clients = [numbers(fed.client_model(i, init=i)) for i in range(len(private))]
    server, kinds, answers = numbers(fed.server_model()), set(), []
    *updates, server_update = (
        update_by(partial(torch.optim.Adam, lr=settings[lr], amsgrad=True,
                          weight_decay=settings["weight_decay"]), w)
        for w, lr in [*((w, "lr") for w in clients), (server, "server_lr")])
    epochs = {"local": "local_epochs", "server": "server_epochs", "public": "public_epochs"}

    def draw(purpose, t, *client):
        size = len(private[client[0]] if purpose == "local" else public)
        batch_size = settings["batch_size" if client else "server_batch_size"]
        return drawn(fed, size, batch_size, settings[epochs[purpose]], purpose, t, *client)

    def view(x):                                                    # it needs no rng in these tests
        return fed.augment(torch.tensor(x).view(1, *SHAPE), None).flatten().tolist()

    def who_teaches(*kind):
        kinds.add(kind)
        answers.append(table[kind])
        return table[kind]

    found = oracle.run(
        clients, server, private, public, rounds=settings["rounds"], batches=draw, updates=updates,
        server_update=server_update, epsilon=settings["epsilon"], augment=view,
        who_teaches=who_teaches)
    for t, (server, clients, trained, pool, cases, weights) in enumerate(found, start=1):
        of_clients = {n: "ensemble_distillation" if weights[n] else "nobody_right" for n in weights}
        order = [n for rows in draw("server", t) for n in rows]              # of all epochs
        taken = [of_clients[n] if answer == "clients" else answer
                 for n, answer in zip(order, answers, strict=True)]
        answers.clear()
        yield {"server": server, "clients": clients, "pool": pool, "asked": set(weights),
               "cases": cases, "taken": taken, "kinds": kinds,
               "effective": [1 / sum(w * w for w in shares.values())
                             for shares in weights.values() if shares],
               "private": [slow_accuracy(client, fed.test) for client in trained]}


def agree(fed, metrics, state, slow):
    """Everything a round leaves behind, against the slow version."""
    M, C, N, asked = len(fed.private), fed.num_classes, len(fed.public.labels), len(slow["asked"])
    assert close(state["server"]["model"], slow["server"], atol=1e-4)
    for client, theirs in zip(state["clients"].values(), slow["clients"], strict=True):
        assert close(client["model"], theirs, atol=1e-4)
    assert state["pool"]["mask"].tolist() == [n in slow["pool"] for n in range(N)]
    for n, z in slow["pool"].items():
        assert state["pool"]["logits"][n].tolist() == pytest.approx(z, abs=1e-4)
    taken, effective = slow["taken"], slow["effective"]
    shares = [taken.count(case) / len(taken) for case in CASES]
    assert [metrics[case] for case in CASES] == pytest.approx(shares, abs=1e-6)
    assert metrics["pool"] == pytest.approx(len(slow["pool"]) / N, abs=1e-6)
    assert (metrics["bytes_up"], metrics["bytes_down"]) == (4 * asked * C * M, 4 * N * C * M)
    assert metrics["bytes_down_indices"] == 4 * asked * M and metrics["bad_uploads"] == 0
    mean = sum(effective) / len(effective) if effective else None
    assert metrics["effective_teachers"] == (mean and pytest.approx(mean, rel=1e-4))
    assert metrics["accuracy"] == pytest.approx(slow_accuracy(slow["server"], fed.test))
    distilled = [slow_accuracy(client, fed.test) for client in slow["clients"]]
    for when, scores in (("_distilled", distilled), ("_private", slow["private"])):
        ours = [metrics[f"client_accuracy{when}{kind}"] for kind in ("", "_min", "_max")]
        assert ours == pytest.approx([sum(scores) / M, min(scores), max(scores)])


def toy(**changes):
    return labeled(**{"num_public": 14, "server": linear, **changes})


@pytest.mark.parametrize("more, changes", [
    ({}, {"seed": 4}), (TWICE, {"seed": 3, "augment": lambda images, rng: images.flip(-1)})],
    ids=["one epoch", "two, augmented"])
def test_a_round_is_the_papers_algorithm(more, changes):
    """Two rounds, all four cases; a sample that is asked for in two epochs is paid for once."""
    fed, settings, known = toy(**changes), {**QUICK, **more}, []
    _, *found = rounds(fedgems, fed, **settings)
    for (metrics, state), slow in zip(found, slow_rounds(fed, settings), strict=True):
        agree(fed, metrics, state, slow)
        known.append(slow)
    assert {case for slow in known for case in slow["taken"]} == set(CASES)
    assert "self_distillation" in known[1]["taken"]
    twice = [n for n in known[0]["asked"] if known[0]["cases"][n] == "self_training"]
    assert bool(twice) == (more == TWICE)
    assert any(1.4 < x < 1.95 for slow in known for x in slow["effective"])


@pytest.mark.parametrize("off", WITHOUT, ids=lambda off: " and ".join(off) or "none")
def test_ablations_move_samples_between_cases(off):
    """Table 5 as fedgems_ablations.py reads it: who is the teacher of each sample."""
    fed, settings, known = toy(seed=4), {**QUICK, "server_epochs": 2}, []
    _, *found = rounds(fedgems_ablations, fed, **settings, **dict.fromkeys(off, False))
    for (metrics, state), slow in zip(found, slow_rounds(fed, settings, WITHOUT[off]), strict=True):
        agree(fed, metrics, state, slow)
        known.append(slow)
    assert set.union(*(slow["kinds"] for slow in known)) == set(ALGORITHM_1)
    assert {case for slow in known for case in slow["taken"]} >= set(WITHOUT[off].values()) - {
        "clients"}


def test_selection_is_in_eval_mode():
    """Of the crops that the server then learns, and with the weights before."""
    fed = toy(server=with_batchnorm, augment=lambda images, rng: images.flip(-1))
    logits = predict(fed.server_model(), fed.public.images.flip(-1))
    right = logits.argmax(1) == fed.public.labels
    assert 0 < right.sum() < 14
    metrics, state = last(rounds(fedgems, fed, **{**QUICK, "rounds": 1, "server_batch_size": 14}))
    assert torch.equal(state["pool"]["mask"], right)
    assert torch.allclose(state["pool"]["logits"][right], logits[right], atol=1e-6)
    assert metrics["self_training"] == pytest.approx(right.sum().item() / 14)
    assert state["server"]["model"]["0.num_batches_tracked"] == 1          # no prediction is a step


def test_nobody_right_is_plain_cross_entropy():
    """Clients that know class 0 alone, of which no public sample is, and an empty pool."""
    fed = toy()
    fed.public.labels.clamp_(min=1)
    for private in fed.private:
        private.labels.zero_()
    settings = {**QUICK, "rounds": 1, "local_epochs": 10, "lr": 0.5}
    metrics, state = last(rounds(fedgems, fed, **settings))
    assert metrics["nobody_right"] > 0 == metrics["ensemble_distillation"]
    assert metrics["nobody_right"] + metrics["self_training"] == pytest.approx(1)
    assert metrics["effective_teachers"] is None
    _, by_labels = last(rounds(fedgems, fed, **{**settings, "epsilon": 1.0}))
    assert same(state["server"], by_labels["server"])


def test_an_upload_is_bad_only_for_what_was_asked():
    """Clients 0, 1, 2 have nan on samples 1, 2, 3, of which 1 and 3 were requested."""
    logits, asked = 2 * normal(3, 3, 3), torch.tensor([False, True, False, True])
    logits[range(3), range(3)] = math.nan
    fed, times = toy(num_public=4), torch.zeros(4, 4, dtype=torch.int64)
    times[3, asked], times[0, ~asked] = 1, 1
    [(_, state)] = rounds(fedgems, fed, rounds=0)
    metrics = fedgems.measure(fed, state, state["clients"], torch.arange(1, 4), logits,
                              torch.zeros(3, 3), times)
    assert metrics["bad_uploads"] == 2 and metrics["bytes_up"] == 4 * 2 * 3 * 3


def rows_asked(module, **settings):
    """([(metrics, state)], the public rows that the clients predict in each round)."""
    asked = []
    idle = Change(lambda uploads, rows: asked.append(rows.tolist()) or uploads)
    return list(rounds(module, toy(), attack=idle, **QUICK, **settings)), asked


def test_clients_predict_exactly_what_the_pool_lacks():
    found, seen = rows_asked(fedgems)
    pools = [state["pool"]["mask"].tolist() for _, state in found]
    assert seen == [[n for n in range(14) if not pool[n]] for pool in pools[:-1]]
    assert 0 < sum(pools[1]) < 14


@pytest.mark.parametrize("off, expected", [("self_distillation", 14), ("ensemble_distillation", 0)])
def test_an_ablations_clients_predict_what_may_be_requested(off, expected):
    """Every sample if the pool never teaches; none if the clients never teach."""
    found, seen = rows_asked(fedgems_ablations, **{off: False})
    assert 0 < found[-1][0]["pool"] < 1 and [len(rows) for rows in seen] == [expected] * 2


def test_a_teacher_in_double_precision_teaches_a_student_in_single():
    """e = 0, p = (.8, .2), q = (.5, .5): the mean over two images, of which one has a teacher."""
    logits, labels = torch.zeros(2, 2), torch.tensor([0, 0])
    teacher = torch.tensor([[.8, .2]] * 2, dtype=torch.float64).log()
    loss = fedgems.server_loss(logits, labels, teacher, torch.tensor([True, False]), epsilon=0.0)
    kl = .8 * math.log(.8 / .5) + .2 * math.log(.2 / .5)
    assert loss.item() == pytest.approx((kl + math.log(2)) / 2)
