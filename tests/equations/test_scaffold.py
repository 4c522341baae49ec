"""SCAFFOLD: the correction, the control variates, whole rounds, and the mistakes of public code."""
import pytest
import torch
from pytest import approx
from slow import batches, close, slow_learner, slow_slopes, towards_labels
from toys import (federation, last, linear, rounds, same, sample_clients, with_batchnorm,
                  with_hidden_layer)

from algorithms import fedsdd_ablations, scaffold
from federation import make_rng

LOCAL = {"local_epochs": 3, "batch_size": 2, "lr": 0.1}


def test_new_control_is_the_mean_gradient_along_the_path():
    """Whatever c_i and c were: y = x - lr sum_k (g_k - c_i + c)."""
    c, c_i, x, *gradients = torch.tensor([.7, -.4, 1., .3, .9, -2.], dtype=torch.float64)
    y = x - .1 * sum(scaffold.corrected_gradient(g, c_i, c) for g in gradients)
    new = scaffold.updated_client_control(c_i, c, x, y, steps=3, lr=.1)
    assert new.item() == approx((.3 + .9 - 2) / 3, abs=1e-12)


def test_a_frozen_parameter_stays_as_it_is():
    def network(num_classes):
        model = with_hidden_layer(num_classes)
        model[1].weight.requires_grad_(False)
        return model
    fed = federation(network=network)
    _, state = last(rounds(scaffold, fed, rounds=2, participation=0.5, **LOCAL))
    start, end = fed.client_model(0).state_dict(), state["server"]["model"]
    assert {name for name in start if same(start[name], end[name])} == {"1.weight"}


def test_scaffold_round_against_slow_loop():
    """Two rounds of Algorithm 1. Client sizes differ, and clients count equally."""
    fed, lr_g, n = federation(sizes=(5, 3, 4, 6)), 0.7, 4
    x = [w.detach() for w in slow_learner(fed.client_model(0))]
    c, c_i = [0., 0.], [[0., 0.]] * n
    active = {t: sample_clients(n, 0.5, make_rng(0, "active", t)) for t in (1, 2)}
    assert len({*active[1]} & {*active[2]}) == 1            # one client returns, one does not
    for t in (1, 2):
        dy, dc = [], []
        for i in active[t]:
            (images, labels), y, steps = fed.private[i], x, 0                              # line 7
            for rows in batches(len(labels), 2, 3, make_rng(0, "local", t, i)):
                slopes = slow_slopes(y, images, rows, towards_labels(labels))
                y = [w - 0.1 * (g - a + b) for w, g, a, b in zip(y, slopes, c_i[i], c)]    # line 10
                steps += 1
            new = [a - b + (v - w) / (steps * 0.1)                                         # line 12
                   for a, b, v, w in zip(c_i[i], c, x, y)]
            dy.append([w - v for v, w in zip(x, y)])                                       # line 13
            dc.append([after - before for before, after in zip(c_i[i], new)])
            c_i[i] = new
        x = [v + lr_g * (d + e) / 2 for v, d, e in zip(x, *dy)]                            # line 16
        c = [b + 2 / n * (d + e) / 2 for b, d, e in zip(c, *dc)]                           # line 17
    metrics, state = last(rounds(scaffold, fed, rounds=2, participation=0.5, global_lr=lr_g,
                                 **LOCAL))
    kept = state["client_controls"]
    never = {*range(n)} - {*active[1], *active[2]}
    assert len(never) == 1 and not any(w.any() for i in never for w in kept[i].values())
    for ours, slow in [(state["server"]["model"], x), (state["server"]["control"], c),
                       *((kept[i], c_i[i]) for i in kept if i not in never)]:
        assert close(ours, slow)
    # Two clients send a model and the change of a control, which itself stays with them.
    assert metrics["bytes_up"] == metrics["bytes_down"] == 2 * 4 * 2 * (4 * 3 + 3)


def test_the_control_of_a_network_counts_that_networks_clients():
    """Two of four clients have it, and both take part: c = |S| / N mean(c_i) with N = 2."""
    fed = federation(network=(linear, with_hidden_layer))
    x = fed.client_model(0).state_dict()
    d = {name: torch.full_like(w, .5) for name, w in x.items()}
    start = fedsdd_ablations.start_control(fed, "linear")
    group = fedsdd_ablations.Group([0, 2], "linear", x, start)
    trained = {i: scaffold.Trained({"model": x, "control_change": d}, d) for i in group.clients}
    uploads = {i: trained[i].upload for i in trained}
    cfg = fedsdd_ablations.Config(local="scaffold")
    _, control = fedsdd_ablations.aggregate(fed, cfg, group, trained, uploads)
    assert same(control, {"server": d, "clients": {0: d, 2: d}})
    _, control = fedsdd_ablations.aggregate(fed, cfg, group, trained, {2: uploads[2]})
    kept = {0: start["clients"][0], 2: d}        # client 0, whose upload is bad, keeps its own
    assert same(control["clients"], kept)


def test_controls_hold_parameters_only():
    """BatchNorm's buffers are averaged by samples, as in FedAvg."""
    fed, cfg = federation(sizes=(5, 3), network=with_batchnorm), scaffold.Config(**LOCAL)
    server = next(rounds(scaffold, fed))[1]["server"]
    trained = {i: scaffold.train_client(fed, cfg, 1, i, server, server["control"]) for i in (0, 1)}
    uploads = {i: trained[i].upload for i in trained}
    after = scaffold.aggregate(fed, cfg, server, uploads, 2)
    names = dict(fed.client_model(0).named_parameters()).keys()
    for control in (after["control"], *(trained[i].control for i in trained)):
        assert control.keys() == names == uploads[0]["control_change"].keys()
    means = [uploads[i]["model"]["0.running_mean"] for i in (0, 1)]
    assert torch.allclose(after["model"]["0.running_mean"], (5 * means[0] + 3 * means[1]) / 8)


def test_a_client_whose_upload_is_left_out_keeps_its_control():
    """One pixel makes the second of two clients infinite."""
    fed = federation(sizes=(5, 3))
    fed.private[1].images[0, 0, 0, 0] = torch.inf
    (_, start), (metrics, state) = rounds(scaffold, fed, rounds=1, participation=1.0, **LOCAL)
    before, after = start["client_controls"], state["client_controls"]
    assert metrics["bad_uploads"] == 1
    assert [same(before[i], after[i]) for i in (0, 1)] == [False, True]


def test_scaffold_offers_no_other_optimizer():
    fields = scaffold.Config.__dataclass_fields__.keys()
    assert not {"optimizer", "weight_decay", "momentum"} & fields


SIX = (4,) * 6


@pytest.mark.parametrize("module, first, then, word", [
    (scaffold, {}, {}, "scaffold: the state is of 6 clients, not 4"),
    (fedsdd_ablations, {"local": "scaffold"}, {"local": "scaffold"}, "other clients"),
    (fedsdd_ablations, {"local": "fedavg"}, {"local": "scaffold"}, "of another `local`"),
    (fedsdd_ablations, {"local": "scaffold"}, {"local": "fedavg"}, "of another `local`")])
def test_a_state_of_other_clients_or_without_controls_is_refused(module, first, then, word):
    """Server's c would not be the mean of the clients' c_i."""
    more = {} if module is scaffold else {"K": 1}
    short = {"participation": 0.5, "local_epochs": 1, **more}
    _, state = last(rounds(module, federation(SIX), rounds=1, **short, **first))
    sizes = SIX if "another" in word else SIX[:4]
    with pytest.raises(ValueError, match=word):
        next(rounds(module, federation(sizes), state, rounds=2, **short, **then))
