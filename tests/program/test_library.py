"""The functions without the program: networks and tensors of one's own, an autocast of one's own,
errors that speak of keywords."""
import ast
import copy
from functools import partial

import numpy as np
import pytest
import torch
from functions import ROOT
from test_contracts import Net, Server, every_algorithm, models_in, run, sound, toy
from torch import nn
from toys import same, samples, with_batchnorm, with_hidden_layer

from algorithms import (
    ALGORITHMS,
    fedavg,
    fedbe,
    feddf,
    fedgems,
    fedgkt,
    fedmd,
    fedntd,
    fedsdd,
    fedsdd_ablations,
    scaffold,
)
from attacks import build
from federation import from_tensors, stream


def of_tensors(networks, server_network=None, **changes):
    """A federation of four clients; `changes` replaces parts by their names."""
    parts = {"client": samples(6), "test": samples(9, seed=1), "public": samples(8, seed=2),
             "validation": samples(5, seed=3), **changes}
    client, test, public, validation = parts.values()
    return from_tensors([samples(6, seed=4)] * 3 + [client], test, networks, public=public,
                        validation=validation, server_network=server_network)


# ------------------------------------------------------------------------------------ own networks

@pytest.mark.parametrize("run, settings", [
    (fedsdd.run, {"K": 2, "local_epochs": 1, "distill_steps": 2, "server_lr": 0.1}),
    (feddf.run, {"local_epochs": 1, "distill_steps": 20, "check_every": 10}),
    (fedmd.run, {"transfer_public_epochs": 1, "transfer_local_epochs": 1})])
def test_mixed_networks_of_ones_own_train(run, settings):
    participation = {} if run is fedmd.run else {"participation": 1.0}
    fed = of_tensors([with_batchnorm, with_hidden_layer], server_network=with_hidden_layer)
    *_, (metrics, state) = run(fed, rounds=2, **settings, **participation)
    assert state["round"] == 2 and 0 <= metrics["accuracy"] <= 1


class Edge(Net):
    def __init__(self):
        super().__init__(3)


def test_a_servers_network_may_read_feature_maps():
    """It is not tried on images where the clients' networks have feature maps."""
    fed = of_tensors([Edge], server_network=lambda: nn.Linear(7, 3))
    assert fed.num_classes == 3 and fed.server_model().in_features == 7


network, larger = with_hidden_layer(), np.zeros((2, 1, 3, 3), np.float32)


@pytest.mark.parametrize("error, words, given", [
    (ValueError, r"same C; for one image: network 0 \[1, 3\], network 1 \[1, 5\]$",
     {"networks": [with_batchnorm, lambda: with_hidden_layer(5)]}),
    (ValueError, r"network 0 \[1, 3, 1, 2\]$", {"networks": [lambda: nn.Conv2d(1, 3, (2, 1))]}),
    (ValueError, r"^network 0 cannot take images \[1, 2, 2\]: ",
     {"networks": [lambda: nn.Sequential(nn.Flatten(), nn.Linear(5, 3))]}),
    *((ValueError, r"^network 0 cannot take images \[1, 3, 3\]: ",
       {part: (torch.tensor(larger), torch.tensor([0, 1]))})
      for part in ("client", "test", "public", "validation")),
    (TypeError, r"as a class or function that makes one, not as Sequential\(", {
        "networks": [with_batchnorm, network]}),
    (TypeError, r"that makes one, not as Sequential\(", {"server_network": network}),
    (TypeError, "^network 1: each call must make a new network",
     {"networks": [with_batchnorm, lambda: network]}),
    *((TypeError, f"^{name}: images and labels must be torch tensors$", {part: given})
      for name, part, given in [("client 3", "client", (larger, np.array([0, 1]))),
                                ("client 3", "client", (samples(6).images, None)),
                                ("test", "test", (samples(6).images, [0] * 6)),
                                ("public", "public", (larger, None))])])
def test_what_from_tensors_refuses_in_one_line(error, words, given):
    with pytest.raises(error, match=words) as raised:
        of_tensors(**{"networks": [with_hidden_layer], **given})
    assert "\n" not in str(raised.value)


# ------------------------------------------------------------------------------ own torch.autocast

@every_algorithm
def test_an_autocast_around_a_run_reaches_every_network(algo):
    Net.types.clear()
    with torch.autocast("cpu", torch.bfloat16):
        run(algo, toy(algo), rounds=1)
    assert {dtype for _, dtype in Net.types} == {torch.bfloat16}


@pytest.mark.parametrize("algo", ["fedavg", "fedgkt", "split-learning", "fd", "fedmd"])
@pytest.mark.parametrize("amp", [False, True])
def test_a_run_inside_an_autocast_is_one_with_amp(algo, amp):
    """Autocast's cache would keep the weights of the first batch."""
    with torch.autocast("cpu", torch.bfloat16):
        inside = run(algo, toy(algo, amp=amp))
    assert same(inside[-1][1], run(algo, toy(algo, amp=True))[-1][1])
    assert not same(inside[-1][1], run(algo, toy(algo))[-1][1])


def test_fedgens_generator_learns_inside_an_autocast():
    """To rounding: its losses are computed in bfloat16 as well."""
    settings = {"rounds": 1, "generator_steps": 20, "generator_lr": 0.05}
    with torch.autocast("cpu", torch.bfloat16):
        [*_, (_, inside)] = run("fedgen", toy("fedgen"), **settings)
    [*_, (_, expected)] = run("fedgen", toy("fedgen", amp=True), **settings)
    for name, w in expected["server"]["generator"]["model"].items():
        assert (inside["server"]["generator"]["model"][name] - w).abs().mean() < 0.02


# ------------------------------------------------------------------------------------------- errors

@pytest.mark.parametrize("run, networks, server", [
    (fedgems.run, [with_batchnorm], lambda: with_hidden_layer(5)),
    (fedgems.run, [Edge], lambda: nn.Linear(7, 3)), (fedgkt.run, [Edge], lambda: Server(5)),
    (fedgkt.run, [Edge], lambda: nn.Linear(7, 3)),
    (fedgkt.run, [with_batchnorm], lambda: Server(3))])
def test_a_servers_network_that_does_not_fit_is_refused_before_training(run, networks, server):
    """Another number of outputs, another input; a client's network without feature maps."""
    with pytest.raises(ValueError, match=r"makes? (no )?logits \[B, 3\]|methods extract and"):
        run(of_tensors(networks, server_network=server), rounds=1)


def test_images_and_networks_are_channels_last():
    colored = nn.Sequential(nn.Conv2d(3, 2, 2), nn.Flatten(), nn.Linear(2, 3))
    images = torch.randn(4, 3, 2, 2)
    fed = from_tensors([(images, torch.arange(4) % 3)], (images, torch.arange(4) % 3),
                       [lambda: copy.deepcopy(colored)])
    for x in (fed.private[0].images, fed.test.images, fed.client_model(0)[0].weight):
        assert x.is_contiguous(memory_format=torch.channels_last)


def with_mask(num_classes=3, mask=-torch.inf):
    """A network whose buffer training does not change."""
    model = with_hidden_layer(num_classes)
    model.register_buffer("mask", torch.full((2, 2), mask).triu(1) if mask is not True
                          else torch.ones(2, 2, dtype=torch.bool))
    return model


@pytest.mark.parametrize("mask", [-torch.inf, True])
@pytest.mark.parametrize("run, settings", [
    (fedavg.run, {}), (scaffold.run, {}), (fedntd.run, {}), (fedbe.run, {"distill": True}),
    (feddf.run, {"drop_worst": False, "patience": None}), (fedsdd.run, {"K": 1}),
    (fedsdd_ablations.run, {"K": 1, "secure_sum": True})])
def test_a_mask_among_the_buffers_is_neither_judged_nor_changed(run, settings, mask):
    """With an attack its numbers stay, too."""
    fed = of_tensors([lambda: with_mask(mask=mask)])
    settings = settings | {"participation": 1.0, "local_epochs": 1, "rounds": 2, "lr": 0.05}
    if "distill_steps" in ALGORITHMS[run.algorithm.name].hyperparameters:
        settings["distill_steps"] = 2
    attacks_ = [{}]
    if run.algorithm.can_be_attacked and "secure_sum" not in settings:
        attacks_.append({"attack": build("paf", partial(stream, 0), 4, 1)})
    for attack in attacks_:
        [(_, first), *_, (metrics, state)] = run(fed, **settings, **attack)
        before, after = (next(models_in(x)) for x in (first, state))
        assert metrics["bad_uploads"] == 0 and torch.equal(before["mask"], after["mask"])
        assert not same(before, after) and sound([{name: w for name, w in after.items()
                                                   if name != "mask"}])


def test_errors_speak_of_keywords_not_of_flags():
    files = [*(ROOT / "algorithms").glob("*.py"), *(ROOT / "federation").glob("*.py"),
             *(ROOT / f"{name}.py" for name in ("attacks", "models", "partition"))]
    raised = [node for path in files for node in ast.walk(ast.parse(path.read_text()))
              if isinstance(node, ast.Raise)]
    words = [node.value for error in raised for node in ast.walk(error)
             if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert len(words) > 50 and not [text for text in words if "--" in text]
