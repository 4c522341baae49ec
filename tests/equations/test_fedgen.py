"""FedGen: both equations by hand, rounds against a slow loop, what is FedAvg's, what is refused."""
import math

import pytest
import torch
from toys import federation, last, normed, rounds, same, sample_clients, with_features

from algorithms import fedgen
from attacks import Attack
from federation import make_rng, minibatches, snapshot

LOCAL = {"local_epochs": 1, "local_steps": None, "batch_size": 2, "lr": 0.1}
GENERATOR = {"batch_size": 2, "generator_steps": 3, "generator_lr": 0.02, "diversity": 0.5}
ROUNDS = {**LOCAL, **GENERATOR, "rounds": 2, "participation": 0.5, "generated": 3}


def ce(logits, labels):
    return -sum(z.log_softmax(0)[y] for z, y in zip(logits, labels)) / len(labels)


def test_eq5_generated_features_train_the_last_layer_alone():
    """One step with and without them: nothing else differs, BatchNorm's statistics included."""
    fed, step = federation(network=normed), {**LOCAL, "batch_size": 8}
    start = fed.global_model().state_dict(), snapshot(fedgen.new_generator(fed)), [1 / 3] * 3
    one, two = (fedgen.train_client(fed, fedgen.Config(**step, generated=n), 1, 0, *start)[0]
                for n in (0, 3))
    assert {name for name in one if not same(one[name], two[name])} == {
        "classifier.weight", "classifier.bias"}


def test_diversity_loss_by_hand():
    """Two samples: noise [0, 0], [2, 0], a mean square of 2; features [1], [4], a distance of 3.
    Of the four pairs two are of a sample with itself."""
    noise, features = torch.tensor([[0., 0.], [2., 0.]]), torch.tensor([[1.], [4.]])
    found = fedgen.diversity_loss(features, noise).item()
    assert found == pytest.approx(math.exp(-(0 + 2 * 3 + 2 * 3 + 0) / 4))


def test_diversity_loss_keeps_no_tensor_larger_than_all_pairs():
    """[B, B, D] numbers of 10,000 features would be 25.6 GB."""
    kept, features = [], torch.randn(20, 64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x,
                                                  lambda x: x):
        fedgen.diversity_loss(features, torch.randn(20, 32)).backward()
    assert max(kept) <= 20 * 64 and features.grad.abs().sum() > 0


def slow_features(w, shares, count, rng):
    labels = rng.choice(3, count, p=shares)
    noise = torch.tensor(rng.standard_normal((count, 32)), dtype=torch.float32)
    inputs = torch.cat([noise, torch.eye(3)[labels]], 1)
    hidden = (inputs @ w["0.weight"].T + w["0.bias"]).clamp(min=0)
    return labels, noise, hidden @ w["2.weight"].T + w["2.bias"]


def slow_client(fed, i, t, model, generator, shares, weight):
    """(its model after local training, the labels that it has seen)."""
    w, seen = {name: x.clone().requires_grad_() for name, x in model.items()}, []
    images, labels = fed.private[i]
    rng = make_rng(0, "generated", t, i)
    for rows in minibatches(images, 2, make_rng(0, "local", t, i), epochs=1):
        seen += labels[rows].tolist()                                                    # line 8
        drawn, _, z = slow_features(generator, shares, 3, rng)                           # line 7
        real = images[rows].flatten(1) @ w["hidden.weight"].T + w["hidden.bias"]
        ce_real, ce_drawn = (ce(x @ w["classifier.weight"].T + w["classifier.bias"], y)
                             for x, y in [(real, labels[rows]), (z.detach(), drawn)])
        loss = ce_real + weight * ce_drawn                                               # Eq. (5)
        for name, g in zip(w, torch.autograd.grad(loss, list(w.values()))):              # line 9
            w[name] = (w[name] - 0.1 * g).detach().requires_grad_()
    return {name: x.detach() for name, x in w.items()}, seen


@pytest.mark.parametrize("weights", [(1, 1), (10, 9.8)], ids=["text", "code"])
def test_two_rounds_against_a_slow_loop(weights):
    """Of Algorithm 1: half of four clients, one of them in both rounds. Adam is kept. The generated
    features have the text's weight in both rounds, or the public code's, 10 x 0.98^(t - 1)."""
    fed, shares = federation(sizes=(5, 3, 4, 6), network=with_features), [1 / 3] * 3
    model, start = fed.global_model().state_dict(), fedgen.new_generator(fed).state_dict()
    generator = {name: w.clone().requires_grad_() for name, w in start.items()}
    adam = torch.optim.Adam(generator.values(), weight_decay=0.01)
    for t in (1, 2):
        active = sample_clients(4, 0.5, make_rng(0, "active", t))
        trained = [slow_client(fed, i, t, model, generator, shares, weights[t - 1])
                   for i in active]
        n = [len(fed.private[i].labels) for i in active]
        model = {name: sum(k * w[name] for k, (w, _) in zip(n, trained)) / sum(n)        # line 13
                 for name in model}
        seen = sum([labels for _, labels in trained], [])
        shares, rng = [seen.count(c) / len(seen) for c in range(3)], make_rng(0, "generator", t)
        for _ in range(3):                                                               # line 14
            labels, noise, z = slow_features(generator, shares, 2, rng)
            logits = sum(z @ w["classifier.weight"].T + w["classifier.bias"] for w, _ in trained)
            apart = sum((noise[a] - noise[b]).square().mean() * (z[a] - z[b]).abs().mean()
                        for a in range(2) for b in range(2)) / 4
            adam.param_groups[0]["lr"] = 0.02 * 0.98**(t - 1)
            adam.zero_grad()
            (ce(logits / len(trained), labels) + 0.5 * torch.exp(-apart)).backward()     # Eq. (4)
            adam.step()
    metrics, state = last(rounds(fedgen, fed, **ROUNDS, generated_weight=float(weights[0]),
                                 generated_weight_decay=weights[1] / weights[0]))
    assert state["label_shares"] == shares
    # Adam divides by the size of a gradient, so the rounding of a very small one can be seen.
    for ours, slow, atol in [(state["server"]["model"], model, 1e-5),
                             (state["generator"]["model"], generator, 1e-3)]:
        assert all(torch.allclose(ours[name], slow[name], atol=atol) for name in slow)
    parameters, numbers = 4 * 2 + 2 + 2 * 3 + 3, (32 + 3) * 256 + 256 + 256 * 2 + 2
    assert metrics["bytes_up"] == 2 * 4 * (parameters + 3)             # 3 counts, 3 shares
    assert metrics["bytes_down"] == 2 * 4 * (parameters + numbers + 3)


def test_an_attack_poisons_the_teachers_and_not_the_counts():
    """Nothing but zeros from three of four clients."""
    fed, attack = federation(network=with_features), Attack([0, 1, 2], lambda i, x, *others: x * 0)
    everybody = {**ROUNDS, "participation": 1.0, "rounds": 1}
    clean, poisoned = (last(rounds(fedgen, fed, attack=x, **everybody))[1] for x in (None, attack))
    assert clean["label_shares"] == poisoned["label_shares"]
    assert not same(clean["generator"]["model"], poisoned["generator"]["model"])
