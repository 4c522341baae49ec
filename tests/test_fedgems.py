"""FedGEMS: who is right, what counts how much, what is learned in each case; whole rounds against Algorithm 1, sample by sample."""
import copy
import dataclasses
import io
import itertools
import math
from functools import partial

import pytest
import torch
from toys import labelled, last, linear, same, samples, with_batchnorm, with_dropout, with_hidden_layer

from algorithms import fedgems, fedgems_ablations
from algorithms.common import seeded, stream
from algorithms.evaluation import accuracy
from algorithms.fedgems import client_loss, entropy, entropy_weights, fuse_logits, reliable_clients, server_loss
from algorithms.training import OPTIMIZERS, batches, predict_logits, snapshot, train_with_labels

CASES = ("self_training", "self_distillation", "ensemble_distillation", "nobody_right")
QUICK = {"rounds": 2, "local_epochs": 1, "public_epochs": 1, "server_epochs": 1, "batch_size": 4, "server_batch_size": 5, "lr": 0.1,
         "server_lr": 0.1, "epsilon": 0.6, "optimizer": "amsgrad", "weight_decay": 0.01}
AT_CLIENT = {"batch_size": 4, "new_optimizer": partial(OPTIMIZERS["amsgrad"], lr=0.1, weight_decay=0.01)}      # what QUICK means
ALL_AT_ONCE = {**QUICK, "server_batch_size": 1000}
FLAGS = ("self_training", "self_distillation", "ensemble_distillation")


def logits_of(*probs):
    """Logits whose softmax is the given probabilities."""
    return torch.tensor(probs, dtype=torch.float64).log()


def random_logits(*shape, seed=0, scale=2.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ----------------------------------------------------------------------------------------------------- slow: one sample

def slow_probs(z):
    total = sum(math.exp(u) for u in z)
    return [math.exp(u) / total for u in z]


def slow_entropy(z):
    return -sum(p * math.log(p) for p in slow_probs(z))


def slow_fusion(uploads, y):
    """Eq. (3)-(5) for one sample: ({client: weight}, mixed logits) of the clients that are right; ({}, None) if there are none."""
    right = [j for j, z in enumerate(uploads) if z.index(max(z)) == y]
    if not right:
        return {}, None
    confidence = {j: 1 / slow_entropy(uploads[j]) for j in right}
    top = max(confidence.values())
    total = sum(math.exp(u - top) for u in confidence.values())
    weights = {j: math.exp(u - top) / total for j, u in confidence.items()}
    return weights, [sum(w * uploads[j][c] for j, w in weights.items()) for c in range(len(uploads[0]))]


def slow_ce(z, y):
    """Eq. (1); z holds numbers or, for a gradient, scalar tensors."""
    log = math.log if isinstance(z[0], float) else torch.log
    exp = math.exp if isinstance(z[0], float) else torch.exp
    return log(sum(exp(u) for u in z)) - z[y]


def slow_kl(teacher, z):
    """KL(softmax(teacher) || softmax(z)) = sum_c p_c (ln p_c - ln q_c), where - ln q_c is the cross-entropy towards class c."""
    return sum(p * (math.log(p) + slow_ce(z, c)) for c, p in enumerate(slow_probs(teacher)))


def slow_loss(z, y, teacher, epsilon):
    """Eq. (2), (5), (6); Eq. (1) where there is no teacher."""
    return slow_ce(z, y) if teacher is None else epsilon * slow_ce(z, y) + (1 - epsilon) * slow_kl(teacher, z)


# ------------------------------------------------------------------------------------------------------- entropy: Eq. (3)

def test_eq3_by_hand():
    """In nats, a sum over the classes."""
    expected = [-(.8 * math.log(.8) + .2 * math.log(.2)), math.log(2)]
    assert entropy(logits_of([.8, .2], [.5, .5])).tolist() == pytest.approx(expected, abs=1e-12)


def test_eq3_against_a_slow_loop():
    logits = random_logits(3, 6, 4)
    expected = [[slow_entropy(z) for z in client] for client in logits.tolist()]
    for ours, slow in zip(entropy(logits).tolist(), expected, strict=True):
        assert ours == pytest.approx(slow, abs=1e-12)


@pytest.mark.parametrize("num_classes", [2, 3, 100])
def test_eq3_lies_between_0_and_ln_C(num_classes):
    values = entropy(random_logits(50, num_classes))
    assert ((values > 0) & (values < math.log(num_classes))).all()
    assert entropy(torch.full((1, num_classes), 7.0)).item() == pytest.approx(math.log(num_classes), abs=1e-5)


def test_eq3_neither_the_order_of_classes_nor_a_shift_matters():
    logits = random_logits(6, 4)
    assert torch.allclose(entropy(logits[:, [2, 0, 3, 1]]), entropy(logits))
    assert torch.allclose(entropy(logits + 100.0), entropy(logits))


@pytest.mark.parametrize("size", [1e3, 1e4, 1e30])
def test_eq3_certain_logits_have_entropy_zero(size):
    assert entropy(torch.tensor([[size, -size, 0.0], [-size, 0.0, -size]])).tolist() == [0.0, 0.0]


def test_eq3_finite_logits_never_give_nan():
    """Two finite float32 can be further apart than any float32."""
    assert entropy(torch.tensor([3e38, -3e38])).item() == 0.0


def test_eq3_gradcheck():
    assert torch.autograd.gradcheck(entropy, random_logits(3, 4).requires_grad_())


# -------------------------------------------------------------------------------------------------------- who is reliable

def test_reliable_is_who_predicts_the_label_by_hand():
    logits = torch.tensor([[[1., 3., 2.], [5., 4., 3.]], [[.1, 0., 0.], [-9., -8., -7.]]])
    assert reliable_clients(logits, torch.tensor([1, 2])).tolist() == [[True, False], [False, True]]


def test_reliable_against_a_slow_loop():
    logits, labels = random_logits(5, 7, 4), [0, 1, 2, 3, 0, 1, 2]
    expected = [[z.index(max(z)) == y for z, y in zip(client, labels)] for client in logits.tolist()]
    ours = reliable_clients(logits, torch.tensor(labels))
    assert ours.dtype == torch.bool and ours.tolist() == expected and any(map(any, expected))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [0, 1])
def test_a_logit_that_is_not_finite_is_never_right(bad, where):
    """Also one whose argmax is the label, and also where the bad number is at another class than the largest."""
    logits = torch.tensor([[[2., 1.], [2., 1.]]])
    logits[0, 0, where] = bad
    assert reliable_clients(logits, torch.tensor([0, 0])).tolist() == [[False, True]]


def test_reliable_follows_a_permutation_of_classes_and_ignores_a_shift():
    logits, labels, order = random_logits(4, 6, 3), torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([2, 0, 1])
    expected = reliable_clients(logits, labels)
    assert torch.equal(reliable_clients(logits[..., order], order.argsort()[labels]), expected)
    assert torch.equal(reliable_clients(logits - 50.0, labels), expected)


# ------------------------------------------------------------------------------------------------------- weights: Eq. (4)

def test_eq4_by_hand():
    """Softmax of 1/H over two reliable clients, beside a third one that is more certain but wrong."""
    logits = logits_of([[.8, .2]], [[.6, .4]], [[.01, .99]])
    a, b = (math.exp(-1 / (p * math.log(p) + (1 - p) * math.log(1 - p))) for p in (.8, .6))
    weights = entropy_weights(logits, torch.tensor([[True], [True], [False]]))
    assert weights.flatten().tolist() == pytest.approx([a / (a + b), b / (a + b), 0], abs=1e-12)    # .625; with H for 1/H .457


def test_eq4_unreliable_client_gets_exactly_zero():
    """And the others' weights are what they were without it: a 0 before the softmax would leave it exp(0)."""
    logits = random_logits(4, 5, 3, scale=.1)                           # 1/H is about .9, not far from 0
    reliable = torch.tensor([[True] * 5, [False] * 5, [True] * 5, [False] * 5])
    weights = entropy_weights(logits, reliable)
    assert weights[[1, 3]].tolist() == [[0.0] * 5] * 2
    assert torch.allclose(weights[[0, 2]], entropy_weights(logits[[0, 2]], reliable[[0, 2]]), atol=1e-15)
    assert torch.allclose(weights.sum(0), torch.ones(5, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("size", [1e2, 1e4])
def test_eq4_certain_clients_share_equally(size):
    """H is 0 for both, whatever their logits; whoever has H > 0 by a margin gets nothing."""
    logits = torch.tensor([[[size, 0.]], [[2 * size, -size]], [[1., 0.]]])
    assert entropy_weights(logits, torch.tensor([[True]] * 3)).flatten().tolist() == [.5, .5, 0.]


def test_eq4_below_a_millionth_of_a_nat_all_are_equally_certain():
    logits = torch.tensor([[[20., 0.]], [[25., 0.]]], dtype=torch.float64)
    H = entropy(logits).flatten().tolist()
    assert 1e-10 < H[1] < H[0] < 1e-6
    assert entropy_weights(logits, torch.tensor([[True], [True]])).flatten().tolist() == [.5, .5]


def test_eq4_above_a_millionth_of_a_nat_the_more_certain_client_has_all_the_weight():
    """1/H differs by more than 100,000, and exp(-100,000) is 0."""
    logits = torch.tensor([[[16.5, 0.]], [[16., 0.]]], dtype=torch.float64)
    H = entropy(logits).flatten().tolist()
    assert 1e-6 < H[0] < H[1] < 2e-6 and 1 / H[0] - 1 / H[1] > 1e5
    assert entropy_weights(logits, torch.tensor([[True], [True]])).flatten().tolist() == [1, 0]


def test_eq4_against_a_slow_loop():
    logits, labels = random_logits(5, 12, 3), [0, 1, 2] * 4
    weights = entropy_weights(logits, reliable_clients(logits, torch.tensor(labels)))
    for n, y in enumerate(labels):
        slow, _ = slow_fusion([client[n] for client in logits.tolist()], y)
        assert weights[:, n].tolist() == pytest.approx([slow.get(j, 0.0) for j in range(5)], abs=1e-12)


def test_eq4_weights_sum_to_1_or_are_0_where_nobody_is_reliable():
    logits, reliable = random_logits(3, 4, 5), torch.tensor([[1, 0, 0, 1], [1, 0, 0, 0], [1, 1, 0, 0]]).bool()
    weights = entropy_weights(logits, reliable)
    assert weights.sum(0).tolist() == pytest.approx([1, 1, 0, 1], abs=1e-12)
    assert weights[:, 1].tolist() == [0, 0, 1] and weights[:, 2].tolist() == [0, 0, 0] and (weights >= 0).all()


def test_eq4_follows_a_permutation_of_clients_and_ignores_one_of_classes_and_a_shift():
    logits, reliable = random_logits(4, 6, 3), random_logits(4, 6, seed=1) > 0
    expected = entropy_weights(logits, reliable)
    order = torch.tensor([2, 0, 3, 1])
    assert torch.allclose(entropy_weights(logits[order], reliable[order]), expected[order], atol=1e-12)
    assert torch.allclose(entropy_weights(logits[..., [1, 2, 0]], reliable), expected, atol=1e-12)
    assert torch.allclose(entropy_weights(logits + 30.0, reliable), expected, atol=1e-10)


@pytest.mark.parametrize("right, expected", [(True, 1.0), (False, 0.0)])
def test_eq4_a_client_alone_has_all_the_weight_or_none(right, expected):
    assert entropy_weights(torch.tensor([[[3., 1.]]]), torch.tensor([[right]])).tolist() == [[expected]]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_eq4_eq5_nothing_that_is_not_finite_reaches_weights_or_fused_logits(bad):
    """Of three samples one client has bad logits in the second and all clients have in the third."""
    logits, labels = random_logits(3, 3, 2), torch.tensor([0, 0, 0])
    logits[:, :, 0] = logits[:, :, 1] + 1                                               # all are right
    spoilt = logits.clone()
    spoilt[1, 1, 0] = spoilt[:, 2, 1] = bad
    weights = entropy_weights(spoilt, reliable_clients(spoilt, labels))
    fused = fuse_logits(spoilt, weights)
    others = entropy_weights(logits[[0, 2]], torch.ones(2, 3, dtype=torch.bool))
    assert weights[1, 1] == 0 and torch.allclose(weights[[0, 2], 1], others[:, 1]) and weights[:, 2].tolist() == [0.0] * 3
    assert torch.allclose(fused[1], fuse_logits(logits[[0, 2]], others)[1]) and fused[2].tolist() == [0.0] * 2
    assert torch.isfinite(weights).all() and torch.isfinite(fused).all()


# -------------------------------------------------------------------------------------------------- fused logits: Eq. (5)

def test_eq5_fused_logits_by_hand():
    logits = torch.tensor([[[4., 0.], [1., 2.]], [[0., 1.], [3., 4.]], [[9., 9.], [5., 7.]]])
    weights = torch.tensor([[.25, 0.], [.75, .5], [0., .5]])
    assert fuse_logits(logits, weights).tolist() == [[.25 * 4 + .75 * 0, .25 * 0 + .75 * 1], [.5 * 3 + .5 * 5, .5 * 4 + .5 * 7]]


def test_eq5_fused_logits_against_a_slow_loop():
    logits, labels = random_logits(5, 12, 3), [0, 1, 2] * 4
    fused = fuse_logits(logits, entropy_weights(logits, reliable_clients(logits, torch.tensor(labels))))
    seen = 0
    for n, y in enumerate(labels):
        weights, mixed = slow_fusion([client[n] for client in logits.tolist()], y)
        assert fused[n].tolist() == pytest.approx(mixed or [0.0] * 3, abs=1e-12)
        seen += len(weights) > 1
    assert seen > 3


def test_eq5_fusing_follows_classes_and_shifts_and_ignores_the_order_of_clients():
    logits, weights = random_logits(3, 4, 5), torch.rand(3, 4, dtype=torch.float64).softmax(0)
    fused, order = fuse_logits(logits, weights), torch.tensor([1, 2, 0])
    assert torch.allclose(fuse_logits(logits[order], weights[order]), fused)
    assert torch.allclose(fuse_logits(logits.flip(-1), weights), fused.flip(-1))
    assert torch.allclose(fuse_logits(logits + 3.0, weights), fused + 3.0)


def test_eq5_one_client_of_weight_1_is_passed_on_as_it_is():
    logits = random_logits(1, 4, 3)
    assert torch.equal(fuse_logits(logits, torch.ones(1, 4, dtype=torch.float64)), logits[0])


def test_inputs_stay_as_they_are():
    logits, labels, flags = random_logits(3, 4, 5), torch.tensor([0, 1, 2, 3]), torch.tensor([True, False, True, False])
    reliable, weights = random_logits(3, 4) > 0, random_logits(3, 4).softmax(0)
    for function, *inputs in [(entropy, logits), (reliable_clients, logits, labels), (entropy_weights, logits, reliable),
                              (fuse_logits, logits, weights), (server_loss, logits[0], labels, logits[1], flags, .5),
                              (client_loss, logits[0], labels, logits[1], .5)]:
        before = copy.deepcopy(inputs)
        function(*inputs)
        assert same(inputs, before), function.__name__


# ------------------------------------------------------------------------------------------------- losses: Eq. (1), (2), (5), (6)

def taught(*flags):
    return torch.tensor(flags)


def test_eq1_by_hand():
    """Cross-entropy alone, neither weighed by epsilon nor moved by a teacher."""
    loss = server_loss(logits_of([.7, .2, .1]), torch.tensor([1]), logits_of([.1, .1, .8]), taught(False), .75)
    assert loss.item() == pytest.approx(-math.log(.2), abs=1e-12)


def test_eq2_by_hand():
    """epsilon is the share of the cross-entropy; KL(pool || server), summed over the classes."""
    p, q, epsilon = [.7, .2, .1], [.3, .6, .1], .75
    expected = .75 * -math.log(.3) + .25 * (.7 * math.log(.7 / .3) + .2 * math.log(.2 / .6))
    loss = server_loss(logits_of(q), torch.tensor([0]), logits_of(p), taught(True), epsilon)
    assert loss.item() == pytest.approx(expected, abs=1e-12)


def test_eq5_the_teacher_is_the_softmax_of_the_mixed_logits():
    """Weights 1/4 and 3/4 of logits (4, 0) and (0, 1): the mixture is (1, .75); mixing the two softmaxes would favour class 1."""
    fused = fuse_logits(torch.tensor([[[4., 0.]], [[0., 1.]]]).double(), torch.tensor([[.25], [.75]]).double())
    p = 1 / (1 + math.exp(.75 - 1))
    kl = p * math.log(p / .5) + (1 - p) * math.log((1 - p) / .5)
    loss = server_loss(torch.zeros(1, 2).double(), torch.tensor([0]), fused, taught(True), .6)
    assert loss.item() == pytest.approx(.6 * math.log(2) + .4 * kl, abs=1e-12)


def test_eq6_by_hand():
    p, q = [[.7, .2, .1], [.25, .25, .5]], [[.3, .6, .1], [.5, .25, .25]]
    first = .75 * -math.log(.3) + .25 * (.7 * math.log(.7 / .3) + .2 * math.log(.2 / .6))
    second = .75 * -math.log(.25) + .25 * (.25 * math.log(.25 / .5) + .5 * math.log(.5 / .25))
    loss = client_loss(logits_of(*q), torch.tensor([0, 2]), logits_of(*p), .75)
    assert loss.item() == pytest.approx((first + second) / 2, abs=1e-12)


def test_server_loss_is_one_mean_over_mixed_cases():
    """One sample with a teacher among four weighs a quarter; the means of the two subsets, added, would give it the weight of 3."""
    q, p = [.4, .6], [.9, .1]
    with_teacher = .5 * -math.log(.4) + .5 * (.9 * math.log(.9 / .4) + .1 * math.log(.1 / .6))
    flags = taught(True, False, False, False)
    loss = server_loss(logits_of(q, q, q, q), torch.tensor([0, 0, 1, 1]), logits_of(p, p, p, p), flags, .5)
    assert loss.item() == pytest.approx((with_teacher - math.log(.4) - 2 * math.log(.6)) / 4, abs=1e-12)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 0.75, 1.0])
def test_losses_against_a_slow_loop(epsilon):
    logits, teacher, labels = random_logits(7, 4), random_logits(7, 4, seed=1), [0, 1, 2, 3, 0, 1, 2]
    flags, y = [True, False, True, True, False, False, True], torch.tensor(labels)
    slow = [slow_loss(z, label, p, epsilon) for z, label, p in zip(logits.tolist(), labels, teacher.tolist())]
    mixed = [value if flag else slow_ce(z, label) for value, flag, z, label in zip(slow, flags, logits.tolist(), labels)]
    assert server_loss(logits, y, teacher, taught(*flags), epsilon).item() == pytest.approx(sum(mixed) / 7, abs=1e-12)
    assert client_loss(logits, y, teacher, epsilon).item() == pytest.approx(sum(slow) / 7, abs=1e-12)


def both_losses(logits, labels, teacher, flags, epsilon=.4):
    return torch.stack([server_loss(logits, labels, teacher, flags, epsilon), client_loss(logits, labels, teacher, epsilon)])


def test_losses_ignore_the_order_of_samples_and_of_classes_and_shifts_of_either_side():
    logits, teacher, labels = random_logits(6, 3), random_logits(6, 3, seed=1), torch.tensor([0, 1, 2, 0, 1, 2])
    flags, rows, classes = taught(True, False, True, False, True, True), torch.tensor([4, 2, 0, 5, 1, 3]), torch.tensor([2, 0, 1])
    expected = both_losses(logits, labels, teacher, flags)
    assert torch.allclose(both_losses(logits[rows], labels[rows], teacher[rows], flags[rows]), expected)
    assert torch.allclose(both_losses(logits[:, classes], classes.argsort()[labels], teacher[:, classes], flags), expected)
    assert torch.allclose(both_losses(logits + 20.0, labels, teacher, flags), expected)
    assert torch.allclose(both_losses(logits, labels, teacher - 20.0, flags), expected)


def test_a_teacher_that_agrees_adds_nothing():
    logits, labels = random_logits(4, 3), torch.tensor([0, 1, 2, 0])
    ce = sum(slow_ce(z, y) for z, y in zip(logits.tolist(), labels.tolist())) / 4
    losses = both_losses(logits, labels, logits + 5.0, taught(True, True, True, True))
    assert losses.tolist() == pytest.approx([.4 * ce] * 2, abs=1e-12)


def test_losses_gradcheck():
    labels, teacher, flags = torch.tensor([0, 1, 2, 0]), random_logits(4, 3, seed=1), taught(True, False, True, False)
    assert torch.autograd.gradcheck(lambda z: both_losses(z, labels, teacher, flags), random_logits(4, 3).requires_grad_())


def test_the_server_moves_towards_label_and_teacher_and_no_teacher_moves():
    """d/dz is (epsilon (q - y) + (1 - epsilon) (q - p)) / B with a teacher, (q - y) / B without."""
    logits, teacher = logits_of([.2, .8], [.2, .8]).requires_grad_(), logits_of([.9, .1], [.9, .1]).requires_grad_()
    server_loss(logits, torch.tensor([0, 0]), teacher, taught(True, False), .6).backward()
    g = [(.6 * (.2 - 1) + .4 * (.2 - .9)) / 2, (.2 - 1) / 2]
    assert logits.grad.flatten().tolist() == pytest.approx([g[0], -g[0], g[1], -g[1]], abs=1e-12)
    assert teacher.grad is None or not teacher.grad.any()


def test_the_client_moves_towards_label_and_server_and_the_server_does_not():
    logits, teacher = logits_of([.2, .8]).requires_grad_(), logits_of([.9, .1]).requires_grad_()
    client_loss(logits, torch.tensor([0]), teacher, .6).backward()
    g = .6 * (.2 - 1) + .4 * (.2 - .9)
    assert logits.grad.flatten().tolist() == pytest.approx([g, -g], abs=1e-12)
    assert teacher.grad is None or not teacher.grad.any()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rows_without_a_teacher_may_hold_anything(bad):
    logits, teacher = random_logits(2, 3).requires_grad_(), random_logits(2, 3, seed=1)
    clean = server_loss(logits, torch.tensor([0, 1]), teacher, taught(True, False), .5)
    teacher = teacher.clone()
    teacher[1, 2] = bad
    loss = server_loss(logits, torch.tensor([0, 1]), teacher, taught(True, False), .5)
    [gradient] = torch.autograd.grad(loss, logits)
    assert loss.item() == clean.item() and torch.isfinite(gradient).all()


def test_losses_of_logits_of_1e4_by_hand():
    """The server is certain of class 1, label and teacher are certain of class 0: CE = KL = 2e4; both right: 0."""
    logits, teacher = torch.tensor([[-1e4, 1e4], [1e4, -1e4]]), torch.tensor([[1e4, -1e4], [1e4, -1e4]])
    assert both_losses(logits, torch.tensor([0, 0]), teacher, taught(True, True)).tolist() == [1e4, 1e4]    # (2e4 + 0) / 2
    assert both_losses(logits, torch.tensor([0, 0]), teacher, taught(False, False))[0].item() == 1e4


def test_losses_of_a_single_sample():
    logits, teacher = logits_of([.4, .6]), logits_of([.9, .1])
    expected = .4 * -math.log(.4) + .6 * (.9 * math.log(.9 / .4) + .1 * math.log(.1 / .6))
    assert both_losses(logits, torch.tensor([0]), teacher, taught(True)).tolist() == pytest.approx([expected] * 2, abs=1e-12)


# --------------------------------------------------------------------------------------------- whole rounds: Algorithm 1

# What is done with a public sample, by (the server is right, it was right before): Alg. 1, line 5-12; then Table 5 as D1 of
# fedgems_ablations.py reads it.
ALGORITHM_1 = {(True, True): "self_training", (True, False): "self_training",
               (False, True): "self_distillation", (False, False): "clients"}
WITHOUT = {"self_training": ALGORITHM_1 | {(True, True): "self_distillation", (True, False): "clients"},
           "self_distillation": ALGORITHM_1 | {(False, True): "clients"},
           "ensemble_distillation": ALGORITHM_1 | {(False, False): "labels"}}


def slow_learner(model, settings, lr):
    model = model.double()
    return model, torch.optim.Adam(model.parameters(), lr=lr, weight_decay=settings["weight_decay"], amsgrad=True)


def slow_logits(model, image):
    """A list of C scalars, for the image alone."""
    return list(model(image[None].double())[0])


def numbers(z):
    return [u.item() for u in z]


def slow_epochs(fed, learner, images, epochs, batch_size, keys, loss, before=lambda rows: None):
    """Mini-batch steps on the mean of loss(logits, n) over the samples n of each batch; before(rows) looks at a batch first."""
    model, update = learner
    rng = stream(fed.seed, *keys)
    for rows in batches(len(images), batch_size, epochs, rng):
        before(rows.tolist())
        shown = fed.augment(images[rows], rng) if fed.augment else images[rows]
        losses = [loss(slow_logits(model, image), n) for image, n in zip(shown, rows.tolist())]
        update.zero_grad()
        (sum(losses) / len(losses)).backward()
        update.step()


def slow_accuracy(model, data):
    right = 0
    for image, y in zip(data.images, data.labels.tolist()):
        z = numbers(slow_logits(model, image))
        right += z.index(max(z)) == y
    return right / len(data.labels)


def slow_rounds(fed, settings, table=ALGORITHM_1):
    """Algorithm 1 sample by sample, in the order of section 3.2 and with D1-D10; yields what is known after each round."""
    images, labels = fed.public.images, fed.public.labels.tolist()
    server = slow_learner(fed.server_model(), settings, settings["server_lr"])
    clients = [slow_learner(fed.client_model(i, init=i), settings, settings["lr"]) for i in range(len(fed.private))]
    pool, epsilon = {}, settings["epsilon"]
    for t in range(1, settings["rounds"] + 1):
        asked, teachers, cases, kinds = set(), {}, {}, set()
        for i, client in enumerate(clients):
            own = fed.private[i].labels.tolist()
            slow_epochs(fed, client, fed.private[i].images, settings["local_epochs"], settings["batch_size"], ("local", t, i),
                        lambda z, n: slow_ce(z, own[n]))
        private = [slow_accuracy(model, fed.test) for model, _ in clients]
        target = {}                                                  # of the current batch: n -> teacher logits, or None

        def select(rows):
            for n in rows:
                z = numbers(slow_logits(server[0], images[n]))
                right, known = z.index(max(z)) == labels[n], n in pool
                case, target[n] = table[right, known], None
                kinds.add((right, known))
                if case == "self_distillation":
                    target[n] = pool[n]
                if case == "clients":                                # ClientSelect
                    asked.add(n)
                    weights, target[n] = slow_fusion([numbers(slow_logits(model, images[n])) for model, _ in clients], labels[n])
                    case = "ensemble_distillation" if weights else "nobody_right"
                    if weights:
                        teachers[n] = 1 / sum(w * w for w in weights.values())
                if right:
                    pool[n] = z
                cases[n] = case

        slow_epochs(fed, server, images, settings["server_epochs"], settings["server_batch_size"], ("server", t),
                    lambda z, n: slow_loss(z, labels[n], target[n], epsilon), before=select)
        server_logits = [numbers(slow_logits(server[0], image)) for image in images]
        for i, client in enumerate(clients):
            slow_epochs(fed, client, images, settings["public_epochs"], settings["batch_size"], ("public", t, i),
                        lambda z, n: slow_loss(z, labels[n], server_logits[n], epsilon))
        yield {"server": copy.deepcopy(server[0].state_dict()),
               "clients": [copy.deepcopy(model.state_dict()) for model, _ in clients],
               "pool": dict(pool), "asked": asked, "teachers": teachers, "cases": cases, "kinds": kinds, "private": private,
               "distilled": [slow_accuracy(model, fed.test) for model, _ in clients], "score": slow_accuracy(server[0], fed.test)}


def near(ours, slow, atol=1e-4):
    assert ours.keys() == slow.keys()
    return all(torch.allclose(ours[name].double(), slow[name], atol=atol) for name in slow)


def agree(fed, metrics, state, slow):
    """Everything a round leaves behind, against the slow version."""
    M, C, N, asked = len(fed.private), fed.num_classes, len(fed.public.labels), len(slow["asked"])
    assert near(state["server"]["model"], slow["server"])
    assert all(near(client["model"], theirs) for client, theirs in zip(state["clients"], slow["clients"], strict=True))
    assert state["pool"]["mask"].tolist() == [n in slow["pool"] for n in range(N)]
    for n, z in slow["pool"].items():
        assert state["pool"]["logits"][n].tolist() == pytest.approx(z, abs=1e-4)
    taken = list(slow["cases"].values())
    assert [metrics[case] for case in CASES] == pytest.approx([taken.count(case) / N for case in CASES], abs=1e-6)
    assert metrics["pool"] == pytest.approx(len(slow["pool"]) / N, abs=1e-6)
    assert (metrics["bytes_up"], metrics["bytes_down"]) == (4 * asked * C * M, 4 * N * C * M)
    assert metrics["bytes_down_indices"] == 4 * asked * M
    expected = sum(slow["teachers"].values()) / len(slow["teachers"]) if slow["teachers"] else None
    assert metrics["effective_teachers"] == (expected and pytest.approx(expected, rel=1e-4))
    assert metrics["accuracy"] == metrics["server_accuracy"] == pytest.approx(slow["score"])
    for key, scores in (("client_accuracy", slow["distilled"]), ("client_accuracy_private", slow["private"])):
        ours = [metrics[key], metrics[f"{key}_min"], metrics[f"{key}_max"]]
        assert ours == pytest.approx([sum(scores) / M, min(scores), max(scores)])


def flip(images, rng):
    return images.flip(-1) if rng.random() < .5 else images


TWICE = {"local_epochs": 2, "public_epochs": 2, "server_epochs": 2}
WAYS = pytest.mark.parametrize("changes, more", [({}, {}), ({"network": (linear, with_hidden_layer), "augment": flip}, TWICE)],
                               ids=["one network", "two networks, augmented, two epochs of each kind"])


@WAYS
def test_a_round_is_the_papers_algorithm(changes, more):
    """Private training, upload, server, broadcast, distillation; two rounds, all four cases, a pool of the first for the second."""
    fed, settings = labelled(num_public=14, seed=4, **changes), {**QUICK, **more}
    slow = list(slow_rounds(fed, settings))
    for (metrics, state), expected in zip(list(fedgems.run(fed, **settings))[1:], slow, strict=True):
        agree(fed, metrics, state, expected)
    assert {case for s in slow for case in s["cases"].values()} == set(CASES)
    assert "self_distillation" in slow[1]["cases"].values() and any(1.4 < x < 1.95 for s in slow for x in s["teachers"].values())


@pytest.mark.parametrize("flag", FLAGS)
def test_ablations_move_samples_between_cases(flag):
    """Table 5 as D1 of fedgems_ablations.py reads it: the case of every sample by whether the server is right and was right before."""
    fed, settings = labelled(num_public=14, seed=4), {**QUICK, "server_epochs": 2}
    slow = list(slow_rounds(fed, settings, WITHOUT[flag]))
    for (metrics, state), expected in zip(list(fedgems_ablations.run(fed, **settings, **{flag: False}))[1:], slow, strict=True):
        agree(fed, metrics, state, expected)
    assert set.union(*(s["kinds"] for s in slow)) == set(ALGORITHM_1)
    assert {case for s in slow for case in s["cases"].values()} >= set(WITHOUT[flag].values()) - {"clients"}


@WAYS
def test_ablations_without_an_ablation_are_fedgems_bit_for_bit(changes, more):
    fed, settings = labelled(num_public=14, seed=4, **changes), {**QUICK, **more, "rounds": 3}
    for (ours, a), (theirs, b) in zip(fedgems_ablations.run(fed, **settings), fedgems.run(fed, **settings), strict=True):
        assert same(a, b) and ours == theirs


# --------------------------------------------------------------------------------------------------- selection and pool

def public_logits(fed, server):
    """What a server, as it is kept in a state, says about clean public images in eval mode."""
    model = fed.server_model()
    model.load_state_dict(server["model"])
    return predict_logits(fed, model, fed.public.images)


def with_server(fed, network):
    def server_model(init=0):
        with seeded(fed.seed, "server init", init):
            return network(fed.num_classes)
    return dataclasses.replace(fed, server_model=server_model)


def test_the_pool_holds_the_logits_that_were_judged_right():
    """Those of before the step, the newest over the older; rows that are wrong again keep theirs."""
    fed, kept, renewed = labelled(num_public=14), 0, 0
    states = [state for _, state in fedgems.run(fed, **{**ALL_AT_ONCE, "rounds": 5, "server_lr": 0.5})]
    for before, after in itertools.pairwise(states):
        logits, later = public_logits(fed, before["server"]), public_logits(fed, after["server"])
        right = logits.argmax(1) == fed.public.labels
        old, new = before["pool"], after["pool"]
        assert torch.equal(new["mask"], old["mask"] | right)
        assert torch.allclose(new["logits"][right], logits[right], atol=1e-6)
        assert torch.equal(new["logits"][~right], old["logits"][~right])
        assert not torch.allclose(later[right], logits[right], atol=1e-2)
        kept, renewed = kept + (old["mask"] & ~right).sum(), renewed + (old["mask"] & right).sum()
    assert kept > 0 and renewed > 0


@pytest.mark.parametrize("network", [with_batchnorm, with_dropout])
def test_selection_is_in_eval_mode(network):
    """Also on clean images, though the server learns from others, and with the weights before the step."""
    fed = with_server(labelled(num_public=14, augment=lambda images, rng: -images), network)
    logits, model = public_logits(fed, {"model": fed.server_model().state_dict()}), fed.server_model().train()
    right = logits.argmax(1) == fed.public.labels
    with torch.no_grad():
        assert 0 < right.sum() < 14 and not torch.allclose(model(fed.public.images), logits, atol=0.1)
    metrics, state = last(fedgems.run(fed, **{**ALL_AT_ONCE, "rounds": 1}))
    pool = state["pool"]
    assert torch.equal(pool["mask"], right) and torch.allclose(pool["logits"][right], logits[right], atol=1e-6)
    assert metrics["self_training"] == pytest.approx(right.sum().item() / 14)


def test_judging_and_predicting_move_no_running_statistics():
    """Only the 2 x 3 steps do: 14 samples in batches of 5, two epochs."""
    _, state = last(fedgems.run(with_server(labelled(num_public=14), with_batchnorm), **{**QUICK, "rounds": 1, "server_epochs": 2}))
    assert state["server"]["model"]["0.num_batches_tracked"].item() == 6


def test_uploads_are_those_of_each_clean_image_alone():
    """In eval mode, of the model that private training left behind."""
    fed = labelled(num_public=14, network=with_batchnorm, augment=lambda images, rng: -images)
    rows, start = torch.tensor([3, 0, 11]), snapshot(fed.client_model(1))
    logits, client = fedgems.train_client(fed, 1, 1, start, rows, local_epochs=2, **AT_CLIENT)
    model = fed.client_model(1)
    model.load_state_dict(client["model"])
    for ours, n in zip(logits, rows.tolist(), strict=True):
        assert torch.allclose(ours, predict_logits(fed, model, fed.public.images[n:n + 1])[0], atol=1e-6)
    assert not same(dict(client["model"]), dict(start["model"]))


def test_clients_learn_from_the_final_server_model():
    """One pass of it over all clean public images, in eval mode, after several batches and epochs of training."""
    fed = with_server(labelled(num_public=14, augment=lambda images, rng: -images), with_batchnorm)
    (_, before), (_, after) = fedgems.run(fed, **{**QUICK, "rounds": 1, "server_epochs": 2})
    server_logits = public_logits(fed, after["server"])
    for i, client in enumerate(before["clients"]):
        _, trained = fedgems.train_client(fed, i, 1, client, torch.arange(14), local_epochs=1, **AT_CLIENT)
        distilled = fedgems.distil_client(fed, i, 1, trained, server_logits, public_epochs=1, epsilon=0.6, **AT_CLIENT)
        assert same(after["clients"][i], distilled)


def test_permuting_the_public_rows_permutes_the_pool():
    fed, order = labelled(num_public=14), torch.tensor([3, 1, 0, 12, 7, 5, 13, 2, 6, 4, 9, 8, 11, 10])
    images, labels = fed.public
    shuffled = dataclasses.replace(fed, public=fed.public._replace(images=images[order], labels=labels[order]))
    settings = {**ALL_AT_ONCE, "rounds": 3, "batch_size": 1000}
    (ours, a), (theirs, b) = (last(fedgems.run(f, **settings)) for f in (fed, shuffled))
    assert torch.equal(a["pool"]["mask"][order], b["pool"]["mask"]) and 0 < a["pool"]["mask"].sum() < 14
    assert torch.allclose(a["pool"]["logits"][order], b["pool"]["logits"], atol=1e-4)
    assert [ours[case] for case in CASES] == [theirs[case] for case in CASES] and ours["bytes_up"] == theirs["bytes_up"]


@pytest.fixture
def served(monkeypatch):
    """What every call of `train_server` returned."""
    calls = []

    def recording(original):
        def recorded(*arguments, **settings):
            calls.append(original(*arguments, **settings))
            return calls[-1]
        return recorded
    for module in (fedgems, fedgems_ablations):
        monkeypatch.setattr(module, "train_server", recording(module.train_server))
    return calls


@pytest.mark.parametrize("off", [(), ("self_training",), ("self_distillation",), ("self_training", "self_distillation")])
def test_every_sample_is_in_exactly_one_of_the_four_cases(served, off):
    run = partial(fedgems_ablations.run, **dict.fromkeys(off, False)) if off else fedgems.run
    rounds = list(run(labelled(num_public=14), **{**QUICK, "rounds": 3, "server_epochs": 2}))[1:]
    for (metrics, _), fusion in zip(rounds, served, strict=True):
        assert fusion.cases.sum(0).tolist() == [1] * 14
        assert [metrics[case] for case in CASES] == pytest.approx([row.sum().item() / 14 for row in fusion.cases], abs=1e-6)
        assert not any(metrics[case] for case in off)


# ------------------------------------------------------------------------------------------------------- reductions, edges

def trained_with_labels(fed, settings):
    """The server's models after each round if it learned from the public labels alone."""
    model = fed.server_model()
    update = torch.optim.Adam(model.parameters(), lr=settings["server_lr"], weight_decay=settings["weight_decay"], amsgrad=True)
    for t in range(1, settings["rounds"] + 1):
        train_with_labels(fed, model, update, fed.public, epochs=settings["server_epochs"],
                          batch_size=settings["server_batch_size"], keys=("server", t))
        yield copy.deepcopy(dict(model.state_dict()))


def test_nobody_right_is_plain_cross_entropy():
    """Clients that know class 0 alone, no public sample of which there is, and an empty pool; the uploads count all the same."""
    fed = labelled(num_public=14)
    fed.public.labels.clamp_(min=1)
    for private in fed.private:
        private.labels.zero_()
    settings = {**QUICK, "rounds": 1, "local_epochs": 40}
    metrics, state = last(fedgems.run(fed, **settings))
    assert metrics["nobody_right"] > 0 == metrics["ensemble_distillation"] and metrics["effective_teachers"] is None
    assert metrics["nobody_right"] + metrics["self_training"] == pytest.approx(1) and metrics["bad_uploads"] == 0
    assert same([dict(state["server"]["model"])], list(trained_with_labels(fed, settings)))
    assert metrics["bytes_up"] == 4 * 4 * 3 * round(14 * metrics["nobody_right"])


def test_with_epsilon_1_no_teacher_matters():
    """Server and clients: cross-entropy on the public labels."""
    settings = {**QUICK, "rounds": 3, "epsilon": 1.0}
    fed = labelled(num_public=14)
    rounds = list(fedgems.run(fed, **settings))[1:]
    assert any(m["ensemble_distillation"] for m, _ in rounds) and any(m["self_distillation"] for m, _ in rounds)
    for (_, state), model in zip(rounds, trained_with_labels(fed, settings), strict=True):
        assert same(dict(state["server"]["model"]), model)


def test_with_epsilon_0_clients_learn_from_the_server_alone():
    """Other public labels make no other client."""
    fed, settings = labelled(num_public=14), {"public_epochs": 1, "epsilon": 0.0, **AT_CLIENT}
    other = dataclasses.replace(fed, public=fed.public._replace(labels=(fed.public.labels + 1) % 3))
    start, server_logits = snapshot(fed.client_model(0)), random_logits(14, 3).float()
    ours, theirs = (fedgems.distil_client(f, 0, 1, start, server_logits, **settings) for f in (fed, other))
    assert same(ours, theirs)


def test_a_server_that_is_always_right_asks_for_nothing():
    fed = labelled(num_public=14)
    fed.public.labels[:] = public_logits(fed, {"model": fed.server_model().state_dict()}).argmax(1)
    settings = {**ALL_AT_ONCE, "rounds": 1}
    metrics, state = last(fedgems.run(fed, **settings))
    assert (metrics["self_training"], metrics["pool"], metrics["effective_teachers"]) == (1, 1, None)
    assert metrics["bytes_up"] == metrics["bytes_down_indices"] == 0 < metrics["bytes_down"]
    assert same([dict(state["server"]["model"])], list(trained_with_labels(fed, settings)))


@pytest.mark.parametrize("changes", [{"sizes": (5,)}, {"num_public": 1}, {"num_classes": 2}, {"sizes": (1,), "num_public": 1}])
def test_one_client_one_sample_two_classes(changes):
    for metrics, state in list(fedgems.run(labelled(**changes), **QUICK))[1:]:
        assert sum(metrics[case] for case in CASES) == pytest.approx(1)
        assert all(torch.isfinite(x).all() for x in [*state["server"]["model"].values(), state["pool"]["logits"]])


def spoilt(fed, *ids):
    """The clients `ids` upload nan: their images are."""
    private = [data._replace(images=torch.full_like(data.images, math.nan)) if i in ids else data
               for i, data in enumerate(fed.private)]
    return dataclasses.replace(fed, private=private)


def test_a_client_that_uploads_nan_is_never_trusted_and_counted():
    """Server, pool and the other clients are what they are without it."""
    fed = labelled(num_public=14)
    fewer = dataclasses.replace(fed, private=fed.private[:3])
    for (bad, ours), (good, theirs) in zip(fedgems.run(spoilt(fed, 3), **QUICK), fedgems.run(fewer, **QUICK), strict=True):
        assert same([ours["server"], ours["pool"], ours["clients"][:3]], [theirs["server"], theirs["pool"], theirs["clients"]])
        assert (bad.get("bad_uploads"), good.get("bad_uploads")) == ((1, 0) if ours["round"] else (None, None))
    assert bad["effective_teachers"] == good["effective_teachers"] > 0


def test_an_upload_is_bad_only_for_samples_that_were_requested():
    """Clients 0, 1, 2 have nan on samples 1, 2, 3, of which 1 and 3 were requested."""
    logits, requested = random_logits(3, 3, 3), torch.tensor([False, True, False, True])
    logits[range(3), range(3)] = math.nan
    pool = fedgems.Pool(torch.zeros(4, 3), torch.tensor([True, False, False, False]))
    fusion = fedgems.Fusion({}, torch.zeros(4, 3), pool, torch.zeros(4, 4), requested)
    rows, weights = torch.tensor([1, 2, 3]), torch.zeros(3, 3)
    assert fedgems.fusion_metrics(labelled(), rows, logits, weights, fusion)["bad_uploads"] == 2


def test_if_all_clients_upload_nan_the_server_learns_from_labels():
    fed, settings = spoilt(labelled(num_public=14), 0, 1, 2, 3), {**QUICK, "rounds": 1}
    metrics, state = last(fedgems.run(fed, **settings))
    assert metrics["bad_uploads"] == 4 and metrics["nobody_right"] > 0 == metrics["ensemble_distillation"]
    assert same([dict(state["server"]["model"])], list(trained_with_labels(fed, settings)))


# ----------------------------------------------------------------------------------------------------------------- costs

def counted(fed, seen):
    """The federation whose clients note (client, public rows) of every forward pass in eval mode in `seen`."""
    def client_model(i, init=0):
        def note(module, args, output):
            is_public = (args[0][:, None] == fed.public.images).flatten(2).all(2)
            if not module.training and is_public.any():
                seen.append((i, is_public.int().argmax(1).tolist()))
                assert is_public.any(1).all()
        model = fed.client_model(i, init)
        model.register_forward_hook(note)
        return model
    return dataclasses.replace(fed, client_model=client_model)


@pytest.mark.parametrize("flags", [{}, {"self_training": False}, {"self_distillation": False}, {"ensemble_distillation": False}])
def test_clients_predict_exactly_the_rows_outside_the_pool(flags):
    """Without self-distillation the pool teaches nothing: all rows; without ensemble distillation nobody is asked: none."""
    fed, seen = labelled(num_public=14), []
    run = fedgems_ablations.run if flags else fedgems.run
    states = [state for _, state in run(counted(fed, seen), **QUICK, **flags)]
    expected = []
    for state in states[:-1]:
        rows = [n for n in range(14) if not state["pool"]["mask"][n] or "self_distillation" in flags]
        expected += [] if "ensemble_distillation" in flags else [(i, rows) for i in range(4)]
    assert seen == expected and (states[1]["pool"]["mask"].any() and not states[1]["pool"]["mask"].all())


def test_the_ledger_counts_exactly_the_rows_asked():
    """What is wrong and not in the pool, from every client; fewer than the clients predict. Down go all logits and the indices."""
    fed = labelled(num_public=14)
    rounds = list(fedgems.run(fed, **{**ALL_AT_ONCE, "rounds": 4}))
    for (_, before), (metrics, _) in itertools.pairwise(rounds):
        wrong = public_logits(fed, before["server"]).argmax(1) != fed.public.labels
        asked = int((wrong & ~before["pool"]["mask"]).sum())
        assert (metrics["bytes_up"], metrics["bytes_down_indices"]) == (4 * 4 * 3 * asked, 4 * 4 * asked)
        assert metrics["bytes_down"] == 4 * 4 * 3 * 14
        assert metrics["ensemble_distillation"] + metrics["nobody_right"] == pytest.approx(asked / 14)


def test_a_row_asked_twice_is_counted_once():
    """A server that does not move is wrong on the same rows in both epochs."""
    fed = labelled(num_public=14)
    wrong = int((public_logits(fed, {"model": fed.server_model().state_dict()}).argmax(1) != fed.public.labels).sum())
    metrics, _ = last(fedgems.run(fed, **{**QUICK, "rounds": 1, "server_lr": 1e-12, "server_epochs": 2}))
    assert wrong > 0 and metrics["bytes_up"] == 4 * 4 * 3 * wrong and metrics["bytes_down_indices"] == 4 * 4 * wrong


def test_a_row_asked_in_the_first_epoch_alone_is_counted():
    fed = labelled(num_public=14)
    one, two = (last(fedgems.run(fed, **{**ALL_AT_ONCE, "rounds": 1, "server_epochs": epochs}))[0] for epochs in (1, 2))
    assert two["bytes_up"] == one["bytes_up"]                       # in one batch: what is asked again was asked before
    assert two["ensemble_distillation"] + two["nobody_right"] < one["ensemble_distillation"] + one["nobody_right"]


# ----------------------------------------------------------------------------------------------------- scores and states

def test_the_server_is_scored_on_the_public_test_set_where_there_is_one():
    """The headline is the server's; clients are scored on the private one, and in the mean on both."""
    fed = labelled(num_public=14, public_test=samples(30, seed=9))
    metrics, state = last(fedgems.run(fed, **QUICK))
    model, scores = fed.server_model(), {"test": [], "public_test": []}
    model.load_state_dict(state["server"]["model"])
    own, public = (accuracy(predict_logits(fed, model, data.images), data.labels) for data in (fed.test, fed.public_test))
    for i, client in enumerate(state["clients"]):
        network = fed.client_model(i)
        network.load_state_dict(client["model"])
        for name, data in (("test", fed.test), ("public_test", fed.public_test)):
            scores[name].append(accuracy(predict_logits(fed, network, data.images), data.labels))
    assert own != public
    assert (metrics["accuracy"], metrics["server_accuracy"], metrics["server_accuracy_private_test"]) == (public, public, own)
    assert (metrics["client_accuracy"], metrics["client_accuracy_min"], metrics["client_accuracy_max"]) == (
        sum(scores["test"]) / 4, min(scores["test"]), max(scores["test"]))
    assert metrics["client_accuracy_public_test"] == sum(scores["public_test"]) / 4


def test_no_round_changes_a_state_that_was_yielded():
    states = [(state, copy.deepcopy(state)) for _, state in fedgems.run(labelled(num_public=14), **{**QUICK, "rounds": 3})]
    assert all(same(state, then) for state, then in states)


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def test_resuming_fedgems_from_any_round_gives_the_same_bytes():
    fed, settings = labelled(num_public=14, network=(linear, with_batchnorm)), {**QUICK, "rounds": 3}
    rounds = list(fedgems.run(fed, **settings))
    for at in (0, 1, 2):
        resumed = list(fedgems.run(fed, through_a_file(rounds[at][1]), **settings))
        for (ours, a), (theirs, b) in zip(resumed, rounds[at + 1:], strict=True):
            assert same(a, b) and ours == theirs
