"""FedKD: adaptive losses and compressed changes by hand, rounds against a slow loop, FedAvg."""
import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from slow import batches, doubles, near, own_share, slow_forward
from toys import (federation, last, last_layer, normal, normed, rounds, same,
                  sample_clients, samples, with_features)

from algorithms import fedavg, fedkd
from attacks import Attack
from federation import make_rng

LOCAL = {"local_epochs": 2, "local_steps": None, "batch_size": 2, "lr": 0.05}


def test_adaptive_losses_by_hand():
    """A sample of class 0: the mentor says (.8, .2), the mentee (.5, .5)."""
    mentor, mentee = torch.tensor([[.8, .2]]).log(), torch.tensor([[.5, .5]]).log()
    ce_t, ce_s = -math.log(.8), math.log(2)
    kl_from_mentee = .5 * math.log(.5 / .8) + .5 * math.log(.5 / .2)                     # 0.2231
    kl_from_mentor = .8 * math.log(.8 / .5) + .2 * math.log(.2 / .5)                     # 0.1927
    H = (1**2 + 3**2) / 2
    features = torch.tensor([[2., 5.]]), torch.tensor([[1., 2.]])
    for hidden in (1, 0):
        found = fedkd.adaptive_losses(mentor, mentee, torch.tensor([0]), *features, bool(hidden))
        assert [loss.item() for loss in found] == pytest.approx(
            [ce_t + (kl_from_mentee + hidden * H) / (ce_t + ce_s),
             ce_s + (kl_from_mentor + hidden * H) / (ce_t + ce_s)], abs=1e-5)
    alike = fedkd.adaptive_losses(mentor, mentor, torch.tensor([0]), *[features[0]] * 2)
    assert alike[0] == alike[1] == F.cross_entropy(mentor, torch.tensor([0]))


def test_no_loss_has_a_gradient_across_and_the_weight_has_none():
    """Of CE q - y, of KL q - p, of H twice the difference; the weight 1 / S is a number."""
    mentor, mentee, labels = normal(5, 3), normal(5, 3, seed=1), torch.tensor([2, 0, 0, 1, 2])
    h_t, mapped = normal(5, 4, seed=2), normal(5, 4, seed=3)
    for x in (mentor, mentee, h_t, mapped):
        x.requires_grad_()
    losses = fedkd.adaptive_losses(mentor, mentee, labels, h_t, mapped)
    t, s, y = mentor.softmax(-1), mentee.softmax(-1), torch.eye(3)[labels]
    S = (F.cross_entropy(mentor, labels) + F.cross_entropy(mentee, labels)).item()
    for loss, own, other, p, q, h, h_other in [
            (losses[0], mentor, mentee, s, t, h_t, mapped),
            (losses[1], mentee, mentor, t, s, mapped, h_t)]:
        slopes = torch.autograd.grad(loss, (own, h, other, h_other), allow_unused=True)
        assert torch.allclose(slopes[0], (q - y + (q - p) / S) / 5)
        assert torch.allclose(slopes[1], 2 * (h - h_other) / (5 * 4) / S)
        assert slopes[2] is slopes[3] is None


def test_two_certain_models_that_are_right_have_finite_losses():
    """S is 0, which counts as a millionth."""
    certain = torch.tensor([[1e4, 0.]])
    found = fedkd.adaptive_losses(certain, certain, torch.tensor([0]), torch.tensor([[2e-3]]),
                                  torch.tensor([[1e-3]]))
    assert [x.item() for x in found] == pytest.approx([1, 1])


def matrix_with(*values, rows=8, columns=8, seed=0):
    """[rows, columns] with these singular values: U diag(values) V of orthogonal U and V."""
    U, V = (torch.linalg.qr(normal(n, len(values), seed=seed + k)).Q
            for k, n in enumerate((rows, columns)))
    return U * torch.tensor(values, dtype=torch.float64) @ V.T


@pytest.mark.parametrize("energy, K", [(0.5, 1), (0.8, 1), (0.9, 2), (0.95, 3)])
def test_the_fewest_singular_values_with_the_share_of_the_squares_by_hand(energy, K):
    """3, 1, 1: the squares are 9, 1, 1 of 11, so the first has .818, two .909. Of the plain values
    the first would have .6, two .8."""
    matrix = matrix_with(3., 1., 1.)
    arrived, numbers = fedkd.compress(matrix, energy)
    assert numbers == K * (8 + 1 + 8)
    expected = [3, 1, 1][:K] + [0] * (8 - K)
    assert torch.linalg.svdvals(arrived).tolist() == pytest.approx(expected)
    assert (matrix - arrived).square().sum().item() == pytest.approx(3 - K)     # what is left out


def test_a_share_that_is_reached_exactly_is_enough():
    """4, 3: the squares are 16 and 9 of 25."""
    matrix = torch.diag(torch.tensor([4., 3., 0., 0., 0., 0.]))
    assert [fedkd.compress(matrix, energy)[1] for energy in (16 / 25, 0.65)] == [13, 2 * 13]


@pytest.mark.parametrize("energy", [0.01, 0.95, 1.0])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e25, 0.0])
def test_a_matrix_of_rank_1_survives_at_any_energy(scale, energy):
    """Of any size, too: squares of 1e-30 and 1e25 are 0 and infinity in float32. Of zeros one."""
    matrix = (scale * matrix_with(2.)).float()
    arrived, numbers = fedkd.compress(matrix, energy)
    assert torch.allclose(arrived, matrix, atol=1e-6 * scale) and numbers >= 17
    two = (scale * matrix_with(2., 1.)).float()
    assert fedkd.compress(two, 0.9)[1] == (2 * 17 if scale else 17)


@pytest.mark.parametrize("shape, K", [((3, 6), 2), ((2, 3), 1), ((1, 50), 1), ((8, 8), 4)])
def test_a_matrix_comes_back_as_it_is_where_its_factors_are_no_fewer_numbers(shape, K):
    """3 x 6 of rank 2: 6 + 2 + 12 = 20 numbers for 18; 2 x 3 of rank 1: 2 + 1 + 3 = 6 for 6."""
    matrix = matrix_with(*[1.] * K, rows=shape[0], columns=shape[1])
    assert sum(shape) * K + K >= math.prod(shape)
    arrived, numbers = fedkd.compress(matrix, 0.99)
    assert same(arrived, matrix) and numbers == math.prod(shape)


def test_what_is_no_matrix_travels_as_it_is():
    for tensor in (torch.ones(7), torch.tensor(3.0)):
        arrived, numbers = fedkd.compress(tensor, 0.5)
        assert same(arrived, tensor) and numbers == tensor.numel()


def test_a_kernel_is_a_matrix_of_its_output_channels():
    """[out, in k k]: of rank 1, each k x k slice of it is of full rank. 6 + 1 + 4 x 9 numbers."""
    out, inside = normal(6), normal(4, 3, 3, seed=1)
    kernel = out[:, None, None, None] * inside
    for memory_format in (torch.contiguous_format, torch.channels_last):
        arrived, numbers = fedkd.compress(kernel.to(memory_format=memory_format), 0.99)
        assert torch.allclose(arrived, kernel) and numbers == 6 + 1 + 4 * 3 * 3


def test_the_energy_rises_linearly_from_the_first_to_the_last_round_and_stays():
    cfg = fedkd.Config(energy_first=0.95, energy_last=0.98, energy_rounds=4)
    found = [fedkd.energy_of(cfg, t) for t in (1, 2, 3, 4, 5, 100)]
    assert found == pytest.approx([.95, .96, .97, .98, .98, .98])
    assert fedkd.energy_of(dataclasses.replace(cfg, energy_rounds=1), 1) == 0.98


def slow_step(t, s, W, images, labels, updates, hidden):
    """A step of mentor t and of mentee s with W. What is constant is made of numbers."""
    def batch_losses(other):
        (h_t, z_t), (h_s, z_s) = slow_forward(t, images), slow_forward(s, images)
        ce_t, ce_s = (-z.log_softmax(1)[torch.arange(len(labels)), labels].mean()
                      for z in (z_t, z_s))
        S = ce_t.item() + ce_s.item()
        mapped = h_s @ W.T
        if other == "mentee":                                        # is a constant
            z_s, mapped = torch.tensor(z_s.tolist()), torch.tensor(mapped.tolist())
            p, q, ce = z_s.log_softmax(1), z_t.log_softmax(1), ce_t
        else:
            z_t, h_t = torch.tensor(z_t.tolist()), torch.tensor(h_t.tolist())
            p, q, ce = z_t.log_softmax(1), z_s.log_softmax(1), ce_s
        kl = (p.exp() * (p - q)).sum() / len(labels)
        H = (h_t - mapped).square().sum() / h_t.numel() if hidden else 0
        return ce + (kl + H) / S

    losses = batch_losses("mentee"), batch_losses("mentor")
    for update, loss, weights in zip(updates, losses, (t.values(), [*s.values(), W])):
        slopes = torch.autograd.grad(loss, list(weights), allow_unused=True)
        for w, slope in zip(weights, slopes):
            w.grad = slope
        update.step()


def slow_compressed(change, energy):
    """(what arrives, numbers) of a matrix [3, 4] or a vector [3], by numpy."""
    if change.ndim == 1:
        return change, 3
    U, s, V = np.linalg.svd(change.numpy())
    K = next(k for k in range(1, 4) if sum(s[:k]**2) >= energy * sum(s**2))
    if K > 1:                                                        # 3 x 2 + 2 + 2 x 4 = 16 > 12
        return change, 12
    return torch.tensor(s[0] * np.outer(U[:, 0], V[0])), 3 + 1 + 4


@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize("energies", [(0.5, 0.9), (1.0, 1.0)])
def test_rounds_of_fedkd_against_a_slow_loop(hidden, energies):
    """Mentors, their momentum and W, [2, 4], stay with clients; the mentee's momentum is new."""
    fed, ids = federation(network=with_features, server=last_layer,
                          public_test=samples(20, seed=5)), range(4)
    found_rounds = rounds(fedkd, fed, rounds=3, participation=0.5, **LOCAL, hidden=hidden,
                          energy_rounds=3, energy_first=energies[0], energy_last=energies[1])
    _, start = next(found_rounds)
    mentors = [doubles(fed.client_model(i, init=i).state_dict()) for i in ids]
    of_mentors = [torch.optim.SGD(w.values(), lr=0.05, momentum=0.9) for w in mentors]
    Ws = [start["clients"][i]["W"].double().requires_grad_() for i in ids]
    mentee = doubles(fed.server_model().state_dict())
    for t, (metrics, state) in enumerate(found_rounds, start=1):
        energy = energies[0] + (energies[1] - energies[0]) * (t - 1) / 2
        active, changes, sent = sample_clients(4, 0.5, make_rng(0, "active", t)), [], 0
        for i in active:
            copy, (images, labels) = doubles({n: w.detach() for n, w in mentee.items()}), (
                fed.private[i])
            of_copy = torch.optim.SGD([*copy.values(), Ws[i]], lr=0.05, momentum=0.9)
            for rows in batches(len(labels), 2, 2, make_rng(0, "local", t, i)):
                slow_step(mentors[i], copy, Ws[i], images[rows], labels[rows],
                          (of_mentors[i], of_copy), hidden)
            arrived = {n: slow_compressed((w - mentee[n]).detach(), energy)
                       for n, w in copy.items()}
            changes.append({n: change for n, (change, _) in arrived.items()})
            sent += sum(numbers for _, numbers in arrived.values())
        sizes = [len(fed.private[i].labels) for i in active]
        mean = {n: slow_compressed(sum(k * c[n] for k, c in zip(sizes, changes)) / sum(sizes),
                                   energy) for n in mentee}
        mentee = {n: w.detach() + mean[n][0] for n, w in mentee.items()}

        assert near(state["server"]["model"], mentee)
        for i in ids:
            assert near(state["clients"][i]["model"], mentors[i])
            assert torch.allclose(state["clients"][i]["W"].double(), Ws[i], atol=1e-5)
        assert metrics["bytes_up"] == 4 * sent                       # of two clients
        assert metrics["bytes_down"] == 4 * 4 * sum(numbers for _, numbers in mean.values())
        own = [own_share(slow_forward(w, fed.test.images)[1].argmax(1), fed.test, fed.private[i])
               for i, w in enumerate(mentors)]
        assert metrics["accuracy"] == pytest.approx(sum(own) / 4)
        # The mentee has seen no public image: also with public test images it is tested on private.
        right = slow_forward(mentee, fed.test.images)[1].argmax(1) == fed.test.labels
        assert metrics["server_accuracy"] == pytest.approx(right.double().mean().item())
    moved = [not same(state["clients"][i]["W"], start["clients"][i]["W"]) for i in ids]
    assert any(moved) == hidden


def test_each_client_has_a_W_of_its_own():
    """Of two networks: mentors of two and four features, a mentee of four."""
    fed = federation(network=(with_features, last_layer), server=last_layer)
    _, state = next(rounds(fedkd, fed))
    Ws = [state["clients"][i]["W"] for i in range(4)]
    assert [tuple(W.shape) for W in Ws] == [(2, 4), (4, 4)] * 2
    assert not same(Ws[0], Ws[2]) and not same(Ws[1], Ws[3])
    assert not any(W.requires_grad for W in Ws)


def test_without_distillation_and_with_all_energy_the_mentee_is_fedavgs(monkeypatch):
    """To rounding, BatchNorm's statistics included, with the same optimizer."""
    def cross_entropies(mentor_logits, mentee_logits, labels, *features_and_hidden):
        return F.cross_entropy(mentor_logits, labels), F.cross_entropy(mentee_logits, labels)
    monkeypatch.setattr(fedkd, "adaptive_losses", cross_entropies)
    fed = federation(network=with_features, server=normed)
    shared = dataclasses.replace(
        fed, client_model=lambda i, init=0: fed.server_model(init), architecture=["shared"] * 4)
    both = {**LOCAL, "rounds": 3, "participation": 0.5, "optimizer": "momentum",
            "weight_decay": 0.01}
    _, found = last(rounds(fedkd, fed, **both, energy_first=1.0, energy_last=1.0))
    _, expected = last(rounds(fedavg, shared, **both))
    torch.testing.assert_close(found["server"]["model"], expected["server"]["model"])


def test_buffers_travel_as_they_are_and_the_mean_change_goes_to_all_clients():
    """Two of four clients send, four receive: BatchNorm's mean, variance and counter of 8 bytes."""
    fed = federation(network=with_features, server=normed)
    metrics, _ = last(rounds(fedkd, fed, rounds=1, participation=0.5, **LOCAL, energy_first=0.01))
    assert metrics["bytes_up_buffers"] == 2 * (4 + 4 + 8)
    assert metrics["bytes_down_buffers"] == 4 * (4 + 4 + 8)
    # BatchNorm's weight and bias, a matrix [3, 4] as one singular value, a bias.
    assert metrics["bytes_up"] == 2 * 4 * (1 + 1 + (3 + 1 + 4) + 3)
    assert metrics["bytes_down"] == 4 * 4 * (1 + 1 + (3 + 1 + 4) + 3)


def test_a_round_without_a_usable_upload_has_no_download():
    """All four clients have sent all 17 numbers of the mentee, whose change has no SVD."""
    fed = federation(network=with_features, server=normed)
    for private in fed.private:
        private.images[0, 0, 0, 0] = math.nan
    metrics, _ = last(rounds(fedkd, fed, rounds=1, **LOCAL))
    assert metrics["bad_uploads"] == 4 and metrics["bytes_up"] == 4 * 4 * (1 + 1 + 3 * 4 + 3)
    assert metrics["bytes_down"] == metrics["bytes_down_buffers"] == 0


def test_a_client_whose_upload_is_left_out_keeps_what_it_trained():
    """Clients 0 and 1 send nan: what they keep is as it is without the attack."""
    fed = federation(sizes=(5, 3, 2), network=with_features, server=normed)
    attack = Attack([0, 1], lambda i, upload, benign, rows: upload * math.nan)
    (_, start), (honest_metrics, honest) = rounds(fedkd, fed, rounds=1, **LOCAL)
    metrics, state = last(rounds(fedkd, fed, rounds=1, **LOCAL, attack=attack))
    assert metrics["bad_uploads"] == 2 and same(state["clients"], honest["clients"])
    assert not any(same(state["clients"][i], start["clients"][i]) for i in range(3))
    assert not same(state["server"], start["server"])
    for name in ("bytes_up", "bytes_up_buffers"):                        # all three have sent
        assert metrics[name] == honest_metrics[name]
    assert metrics["bytes_up_buffers"] == 3 * (4 + 4 + 8)


def test_an_attack_is_on_the_change_that_arrives():
    """Zeros from all but the last client: the mean change is a share of its own."""
    fed = federation(sizes=(5, 3, 2), network=with_features, server=last_layer)
    cfg = fedkd.Config(**LOCAL, rounds=1, energy_first=1.0)
    attack = Attack([0, 1], lambda i, upload, benign, rows: upload * 0)
    (_, start), (_, state) = fedkd.run(fed, cfg, attack=attack)
    mentee = start["server"]["model"]
    _, change, _ = fedkd.train_client(fed, cfg, 1, 2, start["clients"][2], mentee, buffers=())
    assert near(state["server"]["model"],
                {name: w.double() + 2 / 10 * change[name] for name, w in mentee.items()})
