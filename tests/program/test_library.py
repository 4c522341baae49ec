"""The functions without the program: networks and tensors of one's own, errors that speak of
keywords."""
import ast
import copy
import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from functions import ROOT
from test_contracts import Net, Server, models_in, run, sound, toy
from torch import nn
from toys import linear, same, samples, with_batchnorm, with_hidden_layer

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
    fml,
    local,
    scaffold,
)
from attacks import build
from federation import (
    OPTIMIZERS,
    Data,
    from_tensors,
    on_server,
    predict,
    seeded,
    snapshot,
    stream,
    with_features,
)


def of_tensors(networks, server_network=None, **changes):
    """A federation of four clients; `changes` replaces parts by their names."""
    parts = {"client": samples(6), "test": samples(9, seed=1), "public": samples(8, seed=2),
             "validation": samples(5, seed=3), "seed": 0, **changes}
    client, test, public, validation, seed = parts.values()
    return from_tensors([samples(6, seed=4) if test is not client else test] * 3 + [client], test,
                        networks, public=public, validation=validation, seed=seed,
                        server_network=server_network)


# ------------------------------------------------------------------------------------ own networks

@pytest.mark.parametrize("run, settings", [
    (fedsdd_ablations.run, {"K": 2, "local_epochs": 1, "distill_steps": 2, "server_lr": 0.1}),
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


class Viewed(nn.Linear):
    """Takes contiguous images alone."""

    def __init__(self):
        super().__init__(8, 3)

    def forward(self, images):
        return super().forward(images.view(len(images), -1))


def assigned():
    """A network that takes the very tensors of another one."""
    model = with_hidden_layer()
    model.load_state_dict(network.state_dict(), assign=True)
    return model


network, larger = with_hidden_layer(), torch.zeros(2, 1, 3, 3)
layer, norm = nn.Linear(4, 3), nn.BatchNorm2d(1, affine=False)
two_channels = torch.ones(6, 2, 2, 2), torch.zeros(6, dtype=torch.int64)
PARTS = [("client 3", "client"), ("test", "test"), ("public", "public"),
         ("validation", "validation")]


@pytest.mark.parametrize("error, words, given", [
    (ValueError, r"same C; for one image of \[1, 2, 2\]: \(1, 3\), \(1, 5\)$",
     {"networks": [with_batchnorm, lambda: with_hidden_layer(5)]}),
    (ValueError, r": \(1, 3, 1, 2\)$", {"networks": [lambda: nn.Conv2d(1, 3, (2, 1))]}),
    (ValueError, r"for one image of \[1, 2, 2\]: .*mat1 and mat2 shapes cannot be multiplied",
     {"networks": [lambda: nn.Sequential(nn.Flatten(), nn.Linear(5, 3))]}),
    *((ValueError, f"^{name}: images are floats .*the test images' size, not .2, 1, 3, 3.$",
       {part: (larger, torch.tensor([0, 1]))})
      for name, part in PARTS if name != "test"),
    *((ValueError, f"^{name}: labels are whole numbers", {part: (samples(6).images, labels)})
      for name, part in PARTS if name != "public"
      for labels in (None, np.zeros(6), torch.full([6], -1), np.full(6, 3), np.array(["cat"] * 6))),
    *((ValueError, f"^{name}: give two tensors or numpy arrays, .images, labels.$", {part: given})
      for name, part in PARTS
      for given in (samples(2).images, (samples(2).images,), (np.array(["a", "b"]), None))),
    *((ValueError, f"^{name}: images are torch.uint8: make them floats, normalized as",
       {part: (images, None)}) for name, part in PARTS
      for images in (np.zeros((2, 1, 2, 2), np.uint8), torch.zeros(2, 1, 2, 2, dtype=torch.uint8))),
    *((ValueError, "^seed is .*: it must be a whole number, 0 or more$", {"seed": seed})
      for seed in (None, -1, 0.5)),
    *((ValueError, "^networks is a list, .*, of at least one$", {"networks": given})
      for given in ([], with_hidden_layer, network)),
    (TypeError, "^network 1: give a class or function of which each call",
     {"networks": [with_batchnorm, lambda: network]}),
    *((TypeError, "^network 1: give a class or function", {"networks": [with_batchnorm, given]})
      for given in (network, "cnn")),
    (TypeError, "^server_network: give a class or function", {"server_network": network}),
    *((TypeError, "^network 0: .* with layers of its own$", {"networks": [make]})
      for make in (lambda: nn.Sequential(nn.Flatten(), layer), lambda: nn.Sequential(network),
                   lambda: nn.Sequential(norm, with_hidden_layer()), assigned)),
    (ValueError, r"for one image of \[2, 2, 2\]: view size is not compatible",
     {"client": two_channels, "test": two_channels, "public": None, "validation": None,
      "networks": [lambda: Viewed()]}),
    (ValueError, "^network 0: weights are torch.bfloat16, .* amp=True computes in bfloat16$",
     {"networks": [lambda: with_hidden_layer().bfloat16()]}),
    (ValueError, r"^lazy layers must find their sizes from one image of \[1, 2, 2\]: ",
     {"networks": [lambda: nn.Sequential(nn.Conv2d(2, 2, 1), nn.LazyConv2d(3, 2))]})])
def test_what_from_tensors_refuses_in_one_line(error, words, given):
    with pytest.raises(error, match=words) as raised:
        of_tensors(**{"networks": [with_hidden_layer], **given})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("private", [[], None, {0: samples(6)}])
def test_private_is_a_list_of_at_least_one_client(private):
    with pytest.raises(ValueError, match="^private is a list, .*, of at least one$"):
        from_tensors(private, samples(9), [with_hidden_layer])


@pytest.mark.parametrize("name, part", PARTS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_images_that_are_not_finite_are_counted_and_refused(name, part, value):
    """Two of five images; in the first of them two pixels are bad."""
    images, labels = samples(5)
    images[1, 0, 0], images[4, 0, 1, 1] = value, value
    with pytest.raises(ValueError, match=f"^{name}: images hold nan or infinity: 2 of 5 images$"):
        of_tensors([with_hidden_layer], **{part: (images, labels)})


# ------------------------------------------------------------------------------- what is converted

@pytest.mark.parametrize("images_as", [
    torch.Tensor.double, torch.Tensor.bfloat16, lambda x: x.numpy().astype(np.float64),
    lambda x: x.numpy().astype(">f4"), lambda x: x.flip(2).numpy()[:, :, ::-1]])
@pytest.mark.parametrize("labels_as", [torch.Tensor.int, torch.Tensor.byte,
                                       lambda y: y.numpy().astype(np.int32),
                                       lambda y: y.numpy().astype(">u2")])
def test_images_become_float32_and_labels_int64(images_as, labels_as):
    images, labels = samples(6)
    images = images.bfloat16().float()                       # so that no type rounds them
    given = images_as(images), labels_as(labels)
    fed = of_tensors([with_hidden_layer], client=given, public=given, test=given)
    for data in (fed.private[3], fed.public, fed.test):
        assert same(data, Data(images, labels))


def test_whole_numbers_of_numpy_are_settings():
    """A run keeps Python's numbers."""
    def rounds(number, truth):
        fed = of_tensors([with_hidden_layer], seed=number(3))
        return list(fedsdd_ablations.run(fed, rounds=number(2), K=number(2), participation=1.0,
                                         batch_size=number(2), local_steps=number(3),
                                         distill_steps=number(1), secure_sum=truth(False)))
    assert same(rounds(np.int64, np.bool_), rounds(int, bool))


@pytest.mark.parametrize("run, more", [
    (fedavg.run, {"attack": build("paf", partial(stream, 0), 4, 1)}), (fedmd.run, {}),
    (fedsdd.run, {}), (fedsdd_ablations.run, {"secure_sum": True}), (scaffold.run, {}),
    (fedbe.run, {})])
@pytest.mark.parametrize("make", ["lazy", "empty", "extra"])
def test_lazy_layers_empty_parameters_and_extra_state_are_trained_with(run, more, make):
    """Lazy layers have the weights of the same layers with sizes."""
    fed = of_tensors([{"lazy": lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(3)),
                       "empty": WithAnEmptyParameter, "extra": WithExtraState}[make]])
    settings = {"rounds": 2, "local_epochs": 1, "participation": 1.0, "K": 1, "distill_steps": 1,
                "transfer_public_epochs": 1, "transfer_local_epochs": 1, "samples": 2}
    given = {name: x for name, x in settings.items() if name in run.algorithm.config_fields}
    *_, (metrics, state) = run(fed, **given, **more)
    assert metrics["bad_uploads"] == 0 and next(models_in(state))["1.weight"].shape == (3, 4)
    expected = seeded_linear().state_dict()
    assert all(same(fed.client_model(0).state_dict()[name], w) for name, w in expected.items())


def seeded_linear():
    with seeded(0, "init", 0):
        return linear()


class WithAnEmptyParameter(nn.Sequential):
    def __init__(self):
        super().__init__(*linear())
        self.empty = nn.Parameter(torch.empty(0, 5))


class WithExtraState(nn.Sequential):
    def __init__(self):
        super().__init__(*linear())

    def get_extra_state(self):
        return {"version": 3}

    def set_extra_state(self, state):
        assert state == {"version": 3}


def test_a_federation_prints_as_one_short_line():
    assert repr(of_tensors([with_hidden_layer])) == (
        "Federation(4 clients, 3 classes, images [1, 2, 2], seed 0)")


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


def test_with_amp_an_autocast_around_the_run_changes_nothing():
    """Autocast's cache would keep the weights of the first batch."""
    with torch.autocast("cpu", torch.bfloat16):
        inside = run("fedavg", toy("fedavg", amp=True))
    assert same(inside, run("fedavg", toy("fedavg", amp=True)))


def with_mask(num_classes=3, mask=-torch.inf):
    """A network whose buffer training does not change."""
    model = with_hidden_layer(num_classes)
    model.register_buffer("mask", torch.full((2, 2), mask).triu(1) if mask is not True
                          else torch.ones(2, 2, dtype=torch.bool))
    return model


@pytest.mark.parametrize("own, shared", [
    (with_mask, with_hidden_layer), (with_hidden_layer, with_mask)])
def test_a_mask_in_a_personal_or_a_shared_network_does_not_spoil_fmls_upload(own, shared):
    *_, (metrics, _) = fml.run(of_tensors([own], server_network=shared), rounds=1)
    assert metrics["bad_uploads"] == 0


@pytest.mark.parametrize("mask", [-torch.inf, True])
@pytest.mark.parametrize("run, settings", [
    (fedavg.run, {}), (scaffold.run, {}), (fedntd.run, {}), (fedbe.run, {"distill": True}),
    (feddf.run, {"drop_worst": False, "patience": None}), (fedsdd.run, {"K": 1}),
    (fedsdd_ablations.run, {"K": 1, "secure_sum": True})])
def test_a_mask_among_the_buffers_is_neither_judged_nor_changed(run, settings, mask):
    """With an attack its numbers stay, too."""
    fed = of_tensors([lambda: with_mask(mask=mask)])
    settings = settings | {"participation": 1.0, "local_epochs": 1, "rounds": 2, "lr": 0.05}
    if "distill_steps" in ALGORITHMS[run.algorithm.name].config_fields:
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


@pytest.mark.parametrize("value, words", [
    ("0.1", "is '0.1': it is not a number"), (None, "is None: it is not a number"),
    (-0.1, "is -0.1: it must be greater than 0")])
def test_a_text_is_not_a_number(value, words):
    with pytest.raises(ValueError, match=f"^fedavg: lr {words}$"):
        next(fedavg.run(of_tensors([with_hidden_layer]), lr=value))


# -------------------------------------------------------------------------- going on from a state

def state_of(run, **changes):
    """After round 1 of a small run of four clients."""
    *_, (_, state) = run(of_tensors([with_hidden_layer]), rounds=1, **changes)
    return state


def go_on(run, state, networks=(with_hidden_layer,), **changes):
    """The state after round 2."""
    *_, (_, state) = run(of_tensors(networks), state, rounds=2, **changes)
    return state


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("other", OPTIMIZERS)
def test_a_kept_optimizer_goes_on_as_the_same_kind_or_is_refused(name, other):
    state = state_of(local.run, optimizer=name)
    if name == other:
        assert go_on(local.run, state, optimizer=other)["round"] == 2
    else:
        with pytest.raises(ValueError, match=f"with another optimizer than {other}: go on with"):
            go_on(local.run, state, optimizer=other)


def test_a_run_that_goes_on_takes_rate_and_weight_decay_of_its_keywords():
    state = state_of(local.run, lr=0.1, weight_decay=0.0)
    after = go_on(local.run, state, lr=0.03, weight_decay=0.2)
    [group] = after["clients"][0]["optimizer"]["param_groups"]
    assert group["lr"] == 0.03 and group["weight_decay"] == 0.2 and group["momentum"] == 0.9


K2 = {"K": 2, "participation": 1.0, "local_epochs": 1, "distill_steps": 1}


@pytest.mark.parametrize("run, state, changes, words", [
    (fedavg.run, lambda: {"algorithm": "fedavg", "round": 1}, {}, "the state has no 'server': "),
    (fedavg.run, lambda: (0.5, state_of(fedavg.run)), {},
     "fedavg: state is the dict of a yielded .metrics, state., not a tuple"),
    (fedavg.run, lambda: state_of(local.run), {}, "the state is another algorithm's: local$"),
    (fedavg.run, lambda: state_of(fedavg.run), {"networks": [linear]},
     "of another network: .*size mismatch for 1.weight"),
    (local.run, lambda: state_of(local.run) | {"clients": dict.fromkeys(range(5))}, {},
     "local: the state is of 5 clients, not 4$"),
    (feddf.run, lambda: state_of(feddf.run, local_epochs=1, distill_steps=1),
     {"networks": [with_hidden_layer, linear]},
     "feddf: the state is of clients with network 0, not with network 0, network 1$"),
    (fedsdd.run, lambda: state_of(fedsdd.run, **K2), K2 | {"K": 3},
     "fedsdd: the state is of K = 2, not 3$"),
    (fedsdd_ablations.run, lambda: state_of(fedsdd_ablations.run, **K2), K2 | {"K": 1},
     "fedsdd-ablations: the state is of K = 2, not 1$")])
def test_a_state_that_does_not_fit_is_refused_in_one_line(run, state, changes, words):
    with pytest.raises(ValueError, match=words) as raised:
        go_on(run, state(), **changes)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_a_snapshot_is_not_changed_by_training_on(optimizer):
    model, (images, labels) = linear(), samples(6)
    update = OPTIMIZERS[optimizer](model.parameters(), lr=0.1)

    def step():
        update.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        update.step()
    step()
    kept = snapshot(model, update)
    before = copy.deepcopy(kept)
    step()
    assert same(kept, before)


class Fails(nn.Sequential):
    """Its last layer raises an error."""

    def __init__(self):
        super().__init__(nn.Flatten())
        self.classifier = nn.Linear(5, 3)


@pytest.mark.parametrize("call", [predict, with_features])
def test_an_error_in_a_network_leaves_its_mode_and_no_hook(call):
    model = Fails()
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        call(model, samples(2).images)
    assert model.training and not model.classifier._forward_pre_hooks


def test_an_error_on_the_server_leaves_the_number_of_threads():
    before = torch.get_num_threads()

    @on_server
    def fails(fed):
        assert torch.get_num_threads() == before + 1
        raise ArithmeticError
    with pytest.raises(ArithmeticError):
        fails(dataclasses.replace(of_tensors([linear]), threads=before + 1))
    assert torch.get_num_threads() == before


def test_an_attack_is_built_before_it_is_given():
    with pytest.raises(ValueError, match="^fedavg: attack is 'lie': give an Attack .* build.'lie'"):
        fedavg.run(of_tensors([linear]), attack="lie")


def test_labels_may_be_a_list_or_an_array():
    """A tensor is equal to no list."""
    logits = torch.eye(3)[None]
    for labels in ([0, 1, 1], np.array([0, 1, 1]), torch.tensor([0, 1, 1])):
        assert fedgems.is_right(logits, labels).tolist() == [[True, True, False]]


def test_errors_speak_of_keywords_not_of_flags():
    files = [*(ROOT / "algorithms").glob("*.py"), *(ROOT / "federation").glob("*.py"),
             *(ROOT / f"{name}.py" for name in ("attacks", "models", "partition"))]
    raised = [node for path in files for node in ast.walk(ast.parse(path.read_text()))
              if isinstance(node, ast.Raise)]
    words = [node.value for error in raised for node in ast.walk(error)
             if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert len(words) > 50 and not [text for text in words if "--" in text]
