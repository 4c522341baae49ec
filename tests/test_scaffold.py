"""SCAFFOLD: the correction, the control variates, whole rounds, and the mistakes of public code."""
import inspect
import math

import pytest
import torch
import torch.nn.functional as F
from toys import federation, last, linear, same, with_batchnorm

import algorithms.fedavg as fedavg
from algorithms import scaffold
from algorithms.common import sample_clients, stream, tensors
from algorithms.training import batches
from communication import weights_bytes

LOCAL = {"local_epochs": 2, "batch_size": 2, "lr": 0.1}


def random_like(state, seed):
    rng = torch.Generator().manual_seed(seed)
    return {name: torch.randn(w.shape, generator=rng) for name, w in state.items()}


def test_correction_is_minus_the_clients_plus_the_servers_control():
    """Gradient -.5, c_i = .3, c = .1: -.5 - .3 + .1. The wrong sign gives -.3."""
    corrected = scaffold.corrected_gradient(*torch.tensor([-.5, .3, .1], dtype=torch.float64))
    assert corrected.item() == pytest.approx(-.5 - .3 + .1, abs=1e-15)


def test_new_control_by_hand():
    """c_i = .3, c = .1, x = 1, y = .6 after 2 steps of .1: .3 - .1 + .4 / .2."""
    new = scaffold.updated_client_control(*torch.tensor([.3, .1, 1., .6], dtype=torch.float64), steps=2, lr=.1)
    assert new.item() == pytest.approx(.3 - .1 + (1 - .6) / (2 * .1), abs=1e-12)


@pytest.mark.parametrize("seed", [0, 1])
def test_new_control_is_the_mean_gradient_along_the_path_whatever_the_controls_were(seed):
    fed = federation(sizes=(5,))
    server = scaffold.start_server(fed, fed.architecture[0])
    server["control"], client = random_like(server["control"], seed), random_like(server["control"], seed + 10)
    server["client_controls"] = {0: client}
    new_control = scaffold.train_client(fed, 0, 1, server, **LOCAL)["client_control"]
    model, gradients = fed.client_model(0), []
    for rows in batches(5, 2, 2, stream(0, "local", 1, 0)):
        model.zero_grad()
        F.cross_entropy(model(fed.private[0].images[rows]), fed.private[0].labels[rows]).backward()
        gradients.append({name: w.grad.clone() for name, w in model.named_parameters()})
        for name, w in model.named_parameters():
            w.data -= 0.1 * (w.grad - client[name] + server["control"][name])
    assert len(gradients) == 6                                           # 2 epochs of 3 batches: K counts the smaller ones
    for name, control in new_control.items():
        assert torch.allclose(control, sum(g[name] for g in gradients) / 6, atol=1e-5)


def test_scaffold_round_against_slow_loop():
    """Two rounds of Algorithm 1 on scalars-as-tensors, from the paper's lines; client sizes differ and clients count equally."""
    fed, lr_g, n = federation(sizes=(5, 3, 4, 6)), 0.7, 4
    x = {name: w.clone() for name, w in fed.client_model(0).named_parameters()}
    c, c_i = {name: torch.zeros_like(w) for name, w in x.items()}, [{name: torch.zeros_like(w) for name, w in x.items()} for _ in range(n)]
    took_part = set()
    for t in (1, 2):
        active, dy, dc = sample_clients(n, 0.5, stream(0, "active", t)), [], []
        took_part |= set(active)
        for i in active:
            y, steps = {name: w.detach().clone().requires_grad_() for name, w in x.items()}, 0
            for rows in batches(len(fed.private[i].labels), 2, 2, stream(0, "local", t, i)):
                z = fed.private[i].images[rows].flatten(1) @ y["1.weight"].T + y["1.bias"]
                loss = -z.log_softmax(1)[range(len(rows)), fed.private[i].labels[rows]].mean()
                for name, g in zip(y, torch.autograd.grad(loss, list(y.values()))):
                    y[name] = (y[name].detach() - 0.1 * (g - c_i[i][name] + c[name])).requires_grad_()
                steps += 1
            new = {name: c_i[i][name] - c[name] + (x[name] - y[name]).detach() / (steps * 0.1) for name in x}
            dy.append({name: (y[name] - x[name]).detach() for name in x})
            dc.append({name: new[name] - c_i[i][name] for name in x})
            c_i[i] = new
        x = {name: x[name].detach() + lr_g * (dy[0][name] + dy[1][name]) / 2 for name in x}
        c = {name: c[name] + 2 / n * (dc[0][name] + dc[1][name]) / 2 for name in x}
    _, state = last(scaffold.run(fed, rounds=2, participation=0.5, global_lr=lr_g, **LOCAL))
    assert state["server"]["client_controls"].keys() == took_part
    for name in x:
        assert torch.allclose(state["server"]["model"][name], x[name], atol=1e-5)
        assert torch.allclose(state["server"]["control"][name], c[name], atol=1e-5)
        for i, control in state["server"]["client_controls"].items():
            assert torch.allclose(control[name], c_i[i][name], atol=1e-5)


def test_opposite_updates_of_two_clients_cancel():
    fed = federation(sizes=(5, 3))
    server = scaffold.start_server(fed, fed.architecture[0])
    step = random_like(server["control"], 3)
    uploads = {i: {"model": {name: w + sign * step[name] for name, w in server["model"].items()},
                   "control_change": {name: sign * w for name, w in step.items()}, "client_control": step}
               for i, sign in ((0, 1), (1, -1))}
    after = scaffold.aggregate(fed, server, uploads)
    for name, w in server["model"].items():
        assert torch.allclose(after["model"][name], w, atol=1e-6) and torch.equal(after["control"][name], torch.zeros_like(w))


def test_server_control_moves_by_the_share_of_all_clients_that_took_part():
    fed = federation(sizes=(5, 3, 4, 6))
    server = scaffold.start_server(fed, fed.architecture[0])
    change = random_like(server["control"], 3)
    after = scaffold.aggregate(fed, server, {2: {"model": server["model"], "control_change": change, "client_control": change}})
    for name in change:
        assert torch.allclose(after["control"][name], change[name] / 4)


def test_controls_hold_parameters_only():
    fed = federation(network=with_batchnorm)
    _, state = last(scaffold.run(fed, rounds=1, participation=1.0, **LOCAL))
    names = {name for name, _ in fed.client_model(0).named_parameters()}
    server = state["server"]
    assert server["control"].keys() == names and all(control.keys() == names for control in server["client_controls"].values())


def test_nothing_in_an_upload_holds_a_graph():
    fed = federation(network=with_batchnorm)
    upload = scaffold.train_client(fed, 0, 1, scaffold.start_server(fed, "with_batchnorm"), **LOCAL)
    assert upload.keys() == {"model", "control_change", "client_control"}
    assert not any(w.requires_grad for w in tensors(upload))


def test_buffers_are_averaged_as_in_fedavg():
    fed = federation(sizes=(5, 3), network=with_batchnorm)
    server = scaffold.start_server(fed, fed.architecture[0])
    uploads = {i: scaffold.train_client(fed, i, 1, server, **LOCAL) for i in (0, 1)}
    after = scaffold.aggregate(fed, server, uploads)["model"]
    means = [uploads[i]["model"]["0.running_mean"] for i in (0, 1)]
    assert torch.allclose(after["0.running_mean"], (5 * means[0] + 3 * means[1]) / 8)
    assert after["0.num_batches_tracked"].item() == 6 and after["0.num_batches_tracked"].dtype == torch.int64


def test_a_client_that_returns_uses_the_control_it_kept():
    fed = federation()
    server = scaffold.start_server(fed, fed.architecture[0])
    first = scaffold.train_client(fed, 0, 1, server, **LOCAL)["client_control"]
    with_control = scaffold.train_client(fed, 0, 2, server | {"client_controls": {0: first}}, **LOCAL)
    without = scaffold.train_client(fed, 0, 2, server, **LOCAL)
    assert not same(dict(with_control["model"]), dict(without["model"]))
    _, state = last(scaffold.run(fed, rounds=2, participation=1.0, **LOCAL))
    kept = state["server"]["client_controls"]
    assert kept.keys() == {0, 1, 2, 3} and all(any((w != 0).any() for w in control.values()) for control in kept.values())


def test_frozen_zero_controls_and_equal_clients_are_fedavg():
    fed = federation(sizes=(4, 4, 4))
    server = scaffold.start_server(fed, fed.architecture[0])
    ours = {i: scaffold.train_client(fed, i, 1, server, **LOCAL) for i in range(3)}
    theirs = {i: fedavg.train_client(fed, i, 1, server, **LOCAL) for i in range(3)}
    mine, expected = scaffold.aggregate(fed, server, ours)["model"], fedavg.aggregate(fed, server, theirs)["model"]
    for name in expected:
        assert torch.allclose(mine[name], expected[name], atol=1e-6)


def test_scaffold_offers_no_other_optimizer():
    assert not {"optimizer", "weight_decay", "momentum"} & inspect.signature(scaffold.run).parameters.keys()


def test_bad_upload_keeps_the_clients_control():
    fed = federation(sizes=(5, 3, 4, 6))
    generator = scaffold.run(fed, rounds=2, participation=1.0, **LOCAL)
    next(generator)
    _, state = next(generator)
    fed.private[1].images[:] = math.nan
    metrics, after = next(generator)
    before, kept = state["server"]["client_controls"], after["server"]["client_controls"]
    assert metrics["bad_uploads"] == 1 and same(kept[1], before[1])
    assert not same(kept[0], before[0])
    assert all(torch.isfinite(w).all() for w in tensors(after["server"]))


def test_messages_are_twice_the_parameters():
    fed = federation(network=linear)
    metrics, _ = last(scaffold.run(fed, rounds=1, participation=1.0, **LOCAL))
    upload = scaffold.train_client(fed, 0, 1, scaffold.start_server(fed, fed.architecture[0]), **LOCAL)
    sent = sum(4 * w.numel() for part in ("model", "control_change") for w in upload[part].values())    # not client_control
    assert metrics["bytes_up"] == metrics["bytes_down"] == 4 * sent == 4 * 2 * weights_bytes(fed.client_model(0), 1)


def test_correction_reaches_the_server_control_over_rounds():
    """With every client in every round, c is the mean of the c_i."""
    fed = federation(sizes=(5, 3, 4, 6))
    _, state = last(scaffold.run(fed, rounds=3, participation=1.0, **LOCAL))
    for name, c in state["server"]["control"].items():
        assert torch.allclose(c, sum(control[name] for control in state["server"]["client_controls"].values()) / 4, atol=1e-5)
