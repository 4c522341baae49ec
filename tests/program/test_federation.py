"""federation.py itself: your own tensors and networks, batches, random numbers, accuracy, several
processes; and the algorithm in the lines at its head."""
import copy
import dataclasses
import importlib.util
import math
import re
import sys
import textwrap
import typing

import numpy as np
import pytest
import torch
from torch import nn
from toys import (constant, federation, labeled, linear, rounds, same, samples, with_batchnorm,
                  with_dropout, with_hidden_layer)

import federation as federation_py
from algorithms import fedavg, fedgems, fedprox, fedsdd, local
from federation import (OPTIMIZERS, Algorithm, Data, accuracy, disagreement,
                        from_tensors, is_usable, make_rng, minibatches, on_server, own_accuracy,
                        parallel_map, predict, predict_models, resume, score_clients,
                        score_personal, score_server, snapshot)

# ---------------------------------------------------------------------------- the lines at its head

def module_of(text, path, monkeypatch):
    """A file with this text, imported."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    return module


def test_the_algorithm_in_the_docstring_is_fedavg(tmp_path, monkeypatch):
    """Bit for bit."""
    _, _, text = federation_py.__doc__.partition("FedAvg:\n")
    mine = module_of(textwrap.dedent(text), tmp_path / "mine.py", monkeypatch)
    fed, settings = federation((40, 33, 70, 6)), {"rounds": 2, "participation": 0.5, "lr": 0.1}
    both = zip(rounds(mine, fed, **settings),
               rounds(fedavg, fed, **settings, batch_size=32, local_epochs=5), strict=True)
    for (metrics, state), (expected, theirs) in both:
        assert metrics == expected and same(state["server"], theirs["server"])
    refuses_wrong_values(mine.Config)


def refuses_wrong_values(Config):
    """Every setting of a Config is checked."""
    for name in typing.get_type_hints(Config):
        with pytest.raises(ValueError, match=f"^{name} is "):
            Config(**{name: "no such value"})


CONFIG = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Annotated, Literal
from federation import Count, Natural, NonNegative, Positive, Settings, Share

@dataclass
class Config(Settings):
    rounds: Natural = 20
    share: Share = 1.0
    steps: Count | None = None
    rate: Positive = 0.1
    decay: NonNegative = 0.0
    shift: float = 0.0
    bad: Annotated[float, "[0, 0.5)"] = 0.1
    kind: Literal["a", "b"] = "a"
    each: tuple[NonNegative, ...] | None = None
    flag: bool = False
"""
WRONG = {
    "rounds": [-1, 0.5, True, None], "share": [0, 1.1], "steps": [0], "rate": [0, math.inf],
    "decay": [-0.5, None], "shift": ["1", math.nan, True], "bad": [0.5], "kind": ["c", None],
    "each": [1, (1, -1)], "flag": [1, None]}


def test_a_config_of_a_file_whose_annotations_are_texts_is_checked(tmp_path, monkeypatch):
    """As they are after `from __future__ import annotations`."""
    Config = module_of(CONFIG, tmp_path / "future.py", monkeypatch).Config
    assert type(dataclasses.fields(Config)[0].type) is str
    for name, values in WRONG.items():
        for wrong in values:
            with pytest.raises(ValueError, match=f"^{name} is {re.escape(repr(wrong))}"):
                Config(**{name: wrong})
    given = {"rounds": 0, "share": 1, "steps": np.int64(7), "rate": 1e9, "shift": -1, "bad": 0.0,
             "kind": "b", "each": (0.0, 2), "flag": np.bool_(True)}
    cfg = Config(**given)
    assert dataclasses.asdict(cfg) == given | {"decay": 0.0}
    assert type(cfg.steps) is int and cfg.flag is True


# ------------------------------------------------------------------------------- your own tensors

def of_tensors(networks=(with_hidden_layer,), **changes):
    """A federation of four clients; `changes` replaces parts by their names."""
    parts = {"client": samples(6, seed=4), "test": samples(9, seed=1),
             "public": samples(8, seed=2), "validation": samples(5, seed=3)} | changes
    others = {name: x for name, x in parts.items() if name not in ("client", "test")}
    return from_tensors([samples(6)] * 3 + [parts["client"]], parts["test"], networks, **others)


def with_nan():
    model = with_hidden_layer()
    model[1].bias.data[0] = torch.nan
    return model


IMAGES, LABELS = samples(6)
NETWORK = with_hidden_layer()
BAD_IMAGES = {
    "bytes": IMAGES.byte(), "nan": IMAGES * torch.nan, "none": IMAGES[:0], "an image": IMAGES[0],
    "too large": IMAGES.double() + 1e300, "another size": torch.zeros(6, 1, 3, 3)}
BAD_LABELS = {"column": LABELS[:, None], "half": LABELS + 0.5, "below 0": LABELS - 3,
              "no class": LABELS * 0 + 3, "too few": LABELS[:5]}


@pytest.mark.parametrize("part", ["client 3", "test", "public", "validation"])
@pytest.mark.parametrize("kind", [*BAD_IMAGES, *BAD_LABELS])
def test_images_and_labels_that_do_not_fit_are_refused_by_the_name_of_their_part(part, kind):
    if (part, kind) == ("test", "another size"):
        return                                           # all others have to have the test's
    given = BAD_IMAGES.get(kind, IMAGES), BAD_LABELS.get(kind, LABELS)
    with pytest.raises(ValueError, match=f"^{part}: (images|labels) are "):
        of_tensors(**{part.split()[0]: given})


@pytest.mark.parametrize("words, networks", [
    ("give the class", [NETWORK]), ("a new network in each call", [lambda: NETWORK]),
    ("with the same C", [with_hidden_layer, lambda: with_hidden_layer(5)]),
    ("with the same C", [lambda: nn.Conv2d(1, 3, (2, 1))]),
    ("finite float32", [lambda: with_hidden_layer().bfloat16()]), ("finite float32", [with_nan])])
def test_networks_that_do_not_fit_are_refused(words, networks):
    with pytest.raises(ValueError, match=f"^networks: .*{words}"):
        of_tensors(networks)
    if "same" not in words:
        with pytest.raises(ValueError, match=f"^server_network: .*{words}"):
            of_tensors(server_network=networks[0])


@pytest.mark.parametrize("images_as, labels_as", [
    (torch.Tensor.clone, torch.Tensor.clone), (torch.Tensor.double, torch.Tensor.int),
    (torch.Tensor.numpy, torch.Tensor.numpy), (torch.Tensor.bfloat16, torch.Tensor.float)])
def test_tensors_and_arrays_are_copied_as_float32_and_int64(images_as, labels_as):
    """What the caller does with them later changes nothing."""
    images, labels = IMAGES.bfloat16().float(), LABELS           # so that no type rounds them
    given = images_as(images.clone()), labels_as(labels.clone())
    fed = of_tensors(client=given, test=given, public=given, validation=given)
    given[0][...], given[1][...] = 7, 1
    for data in (fed.private[3], fed.test, fed.public, fed.validation):
        assert same(data, Data(images, labels))


def test_clients_have_the_networks_in_turn_and_weights_by_seed_and_number():
    fed, other = (of_tensors([with_batchnorm, with_hidden_layer], seed=s, server_network=linear)
                  for s in (0, 1))
    assert fed.architecture == ["network 0", "network 1"] * 2 and fed.num_classes == 3
    assert [len(fed.client_model(i)) for i in range(4)] == [3, 4, 3, 4]
    weights = [model[-1].weight for model in (
        fed.client_model(0), fed.client_model(2), fed.client_model(0, init=1),
        other.client_model(0), fed.server_model(), other.server_model())]
    assert same(weights[0], weights[1])
    assert len({str(w.tolist()) for w in weights}) == 5
    assert of_tensors().server_model is None


def test_images_and_networks_are_channels_last():
    colored = nn.Sequential(nn.Conv2d(3, 2, 2), nn.Flatten(), nn.Linear(2, 3))
    images = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    data = images, torch.arange(4) % 3
    fed = from_tensors([data], data, [lambda: copy.deepcopy(colored)])
    images += 1                                          # a copy, though it need not be converted
    assert same(fed.test.images + 1, images)
    for x in (fed.private[0].images, fed.test.images, fed.client_model(0)[0].weight):
        assert x.is_contiguous(memory_format=torch.channels_last)


# --------------------------------------------------------------------------------- random numbers

def draws(seed, *name):
    """A number of numpy's and one of torch's."""
    with federation(seed=seed).random_numbers(*name) as rng:
        return int(rng.integers(2**62)), torch.randint(2**62, (1,)).item()


def test_only_equal_keys_give_equal_numbers():
    """Also names with a 0 at the end, which a plain list as the seed would lose."""
    keys = [(0, "local", 1, 2), (0, "local", 2, 1), (0, "local", 1), (0, "local", 1, 0),
            (0, "masks", 1, 2), (1, "local", 1, 2)]
    first, again = ([draws(*key) for key in keys] for _ in range(2))
    assert first == again and all(len(set(numbers)) == len(keys) for numbers in zip(*first))


def test_torchs_generator_is_as_before_after_a_training():
    """Also after an error. In a training the numbers depend on its name alone."""
    numbers = []
    for _ in range(2):
        before = torch.get_rng_state()
        with pytest.raises(ArithmeticError), federation().random_numbers("here", 7):
            numbers.append(torch.rand(1))
            raise ArithmeticError
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(5)
    assert numbers[0] == numbers[1]


@pytest.mark.parametrize("share, expected", [(1.0, 20), (0.7, 14), (0.145, 3), (0.01, 1)])
def test_participation_is_a_share_at_least_one_client(share, expected):
    active = federation(sizes=(1,) * 20).sample_clients(share, t=1)
    assert len(active) == len({*active}) == expected
    assert active == sorted(active) and {*active} <= {*range(20)}


# ---------------------------------------------------------------------------- batches and training

def test_every_pass_has_each_sample_once_in_a_new_order():
    found = [*minibatches(torch.empty(10, 1), 4, make_rng(0), epochs=3)]
    assert [len(rows) for rows in found] == [4, 4, 2] * 3           # the last batch may be smaller
    passes = [torch.cat(found[k:k + 3]).tolist() for k in (0, 3, 6)]
    assert all(sorted(order) == [*range(10)] != order for order in passes)
    assert passes[0] != passes[1] != passes[2] != passes[0]
    steps = [*minibatches(torch.empty(10, 1), 4, make_rng(0), epochs=1, steps=5)]
    assert same(steps, found[:5])                                  # of as many passes as they need
    few = minibatches(torch.empty(3, 1), 64, make_rng(0), epochs=2)     # fewer than a batch
    assert [len(rows) for rows in few] == [3, 3]


def test_a_batch_of_one_image_has_it_twice_and_trains_a_batchnorm():
    """BatchNorm1d refuses a single vector."""
    *_, last = minibatches(IMAGES[:5], 4, make_rng(0), epochs=1)
    assert len(last) == 2 and last[0] == last[1]
    fed = from_tensors([(IMAGES[:1], LABELS[:1])] * 2, (IMAGES, LABELS), [
        lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 3))])
    (_, start), (metrics, end) = rounds(fedavg, fed, rounds=1, participation=1.0)
    weights = end["server"]["model"]
    assert metrics["bad_uploads"] == 0 and not same(start["server"]["model"], weights)
    assert all(w.isfinite().all() for w in weights.values())


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("other", OPTIMIZERS)
def test_resume_goes_on_with_the_same_optimizer_and_refuses_another(name, other):
    """It copies weights and momentum, and takes rate and weight decay of the call."""
    model, optimizer = resume(snapshot(linear()), linear(), name, lr=0.1)
    nn.functional.cross_entropy(model(IMAGES), LABELS).backward()
    optimizer.step()
    kept = snapshot(model, optimizer)
    before = copy.deepcopy(kept)
    if name != other:
        with pytest.raises(ValueError, match=f"^the snapshot is of another optimizer than {other}"):
            resume(kept, linear(), other, lr=0.1)
        return
    again, its_optimizer = resume(kept, linear(), other, lr=0.03, weight_decay=0.2)
    assert same(dict(again.state_dict()), dict(model.state_dict()))
    assert same(its_optimizer.state_dict()["state"], optimizer.state_dict()["state"])
    [group] = its_optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.03, 0.2)
    for trained, its in ((model, optimizer), (again, its_optimizer)):
        nn.functional.cross_entropy(trained(IMAGES), LABELS).backward()
        its.step()
    assert same(kept, before)                            # neither training changes it


# --------------------------------------------------------------------------------------- uploads

@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, -1e30])
def test_an_upload_with_one_bad_number_is_not_usable(value):
    good, bad = torch.tensor([[9e29, -9e29], [0., 1.]]), torch.tensor([[1., 2.], [3., value]])
    for make in (lambda x: x, lambda x: {"w": (x[1:], x[:1])}, lambda x: Data(x, LABELS)):
        assert [is_usable(make(x)) for x in (good, bad)] == [True, False]
    assert is_usable({"counter": torch.tensor(2**62), "mask": torch.tensor([True])})


# ----------------------------------------------------------------------- prediction and accuracy

@pytest.mark.parametrize("network", [with_batchnorm, with_dropout])
def test_prediction_is_pure_and_image_by_image(network):
    images, model, sizes = samples(150).images, network(), []
    for training in (True, False):
        model.train(training)
        before = copy.deepcopy(model.state_dict())
        logits = predict(model, images)
        assert torch.allclose(logits[7:8], predict(model, images[7:8]), atol=1e-6)
        assert predict(model, images[:0]).shape == (0, 3)
        assert same(dict(model.state_dict()), dict(before)) and model.training is training
        assert not logits.requires_grad
    model.register_forward_hook(lambda module, args, output: sizes.append(len(output)))
    predict(model, images)
    assert sizes == [64, 64, 22]                         # of a CPU
    model.register_forward_pre_hook(lambda module, args: args[0].zero_())
    predict(model, images)
    assert torch.equal(images, samples(150).images)      # a network may change its input


def test_predict_models_is_one_prediction_per_model():
    fed, models = federation(), [linear() for _ in range(3)]
    expected = torch.stack([predict(model, fed.test.images) for model in models])    # [3, 40, 3]
    weights = [model.state_dict() for model in models]
    assert same(predict_models(fed, weights, fed.test.images), expected)
    assert same(predict_models(fed, weights[:1], fed.test.images), expected[:1])


def test_accuracies_are_whole_counts_divided_once():
    """0.9 and 0.7 are the floats of these names: as float32 they would be .8999999762 and
    .6999999881. Each class has ten test images, of which 9, 9 and 3 are right."""
    labels = torch.arange(3).repeat_interleave(10)
    answers = labels.clone()
    answers[[0, 10, *range(20, 27)]] = torch.tensor([1, 2, *[0] * 7])
    logits = nn.functional.one_hot(answers).float()
    assert accuracy(logits[:10], labels[:10]) == 0.9 and accuracy(logits, labels) == 0.7
    assert accuracy(logits, labels[:, None]) == 0.7      # labels [n, 1] are not compared with all
    assert own_accuracy(logits, labels, torch.tensor([0, 1, 1])) == 0.9
    members = nn.functional.one_hot(torch.stack([labels, answers])).float()
    assert disagreement(members[:, :20]) == 0.1 and disagreement(members[:, 20:]) == 0.7


def test_an_image_with_a_logit_that_is_not_finite_is_wrong():
    """argmax would be class 0 of the first three: an accuracy of 1 for labels 0, 0, 0, 1."""
    nothing = torch.tensor([[1., torch.nan], [torch.nan] * 2, [torch.inf, 0.], [0., 1.]])
    assert accuracy(nothing, torch.tensor([0, 0, 0, 1])) == 1 / 4


def test_a_client_of_which_no_class_is_tested_has_no_own_accuracy_and_the_mean_leaves_it_out():
    """Test images are of class 0 and 1. The first client always says 0, the second 1."""
    labels = torch.tensor([0, 0, 0, 1])
    assert own_accuracy(torch.eye(3)[labels], labels, torch.tensor([2, 2])) is None
    fed = federation(test=Data(samples(4).images, labels), private=[
        Data(IMAGES, torch.full([6], c)) for c in (0, 2, 1)])
    clients = {i: {"model": constant(*map(float, logits))} for i, logits in enumerate(
        [(1, 0, 0), (0, 1, 0), (1, 0, 0)])}
    found = score_clients(fed, clients, each=True)
    assert found == {
        "client_accuracy": (3 + 1 + 3) / 12, "client_accuracy_min": 1 / 4,
        "client_accuracy_max": 3 / 4, "client_accuracy_own": (1 + 0) / 2,
        "client_accuracy_0": 3 / 4, "client_accuracy_1": 1 / 4, "client_accuracy_2": 3 / 4}
    assert score_personal(fed, clients)["accuracy"] == 1 / 2
    assert score_personal(fed, {1: clients[1]})["accuracy"] is None
    some = score_clients(fed, {2: clients[2], 1: clients[1]}, each=True)         # ids, not places
    assert (some["client_accuracy_1"], some["client_accuracy_2"]) == (1 / 4, 3 / 4)
    assert "client_accuracy_0" not in some


def test_a_public_test_set_has_a_score_of_its_own():
    """Of networks that always say class 2."""
    model, images = {"model": constant(0., 0., 1.)}, samples(4).images
    fed = federation(server=linear, test=Data(images, torch.tensor([2, 2, 2, 0])))
    assert "client_accuracy_public_test" not in score_clients(fed, {0: model})
    assert score_server(fed, model) == {"server_accuracy": 3 / 4}
    for labels, right in [([1, 2, 0, 0], 1 / 4), ([0, 1, 0, 1], 0.)]:
        fed.public_test = Data(images, torch.tensor(labels))
        assert score_clients(fed, {0: model})["client_accuracy_public_test"] == right
        assert score_server(fed, model) == {
            "server_accuracy": right, "server_accuracy_private_test": 3 / 4}


def test_disagreement_by_hand():
    """The six pairs of members differ on 1, 2, 1, 1, 2 and 1 of 3 images."""
    classes = torch.tensor([[0, 0, 1], [0, 1, 1], [0, 1, 0], [0, 0, 0]])
    members = nn.functional.one_hot(classes, 2).float()
    assert disagreement(members) == pytest.approx((1 + 2 + 1 + 1 + 2 + 1) / 3 / 6)
    assert disagreement(members[:1]) is None and disagreement(members[[0, 0]]) == 0


# --------------------------------------------------------------------- processes, declarations

def test_an_error_leaves_the_number_of_threads():
    before = torch.get_num_threads()

    def fails(fed):
        assert torch.get_num_threads() == before + 1
        raise ArithmeticError
    fed = dataclasses.replace(federation(), threads=before + 1)
    for call in (lambda: on_server(fails)(fed),
                 lambda: parallel_map(fed, [0], lambda i: fails(fed), threads=before + 1)):
        with pytest.raises(ArithmeticError):
            call()
        assert torch.get_num_threads() == before


@pytest.mark.parametrize("declared", [{"public": "labelled"}, {"server": "logits"}])
def test_a_wrong_declaration_is_refused_when_it_is_made(declared):
    [(name, value)] = declared.items()
    with pytest.raises(ValueError, match=f"^mine: {name} is '{value}': choose from none, "):
        Algorithm("mine", fedavg.run, fedavg.Config, **declared)


@pytest.mark.parametrize("words, call", [
    ("fedavg: the state is of fedprox", lambda fed: rounds(
        fedavg, fed, [*rounds(fedprox, fed, rounds=0)][0][1])),
    ("fedsdd needs public images: from_tensors(..., public=)", lambda fed: rounds(
        fedsdd, dataclasses.replace(fed, public=None))),
    ("fedgems needs the labels of the public images", lambda fed: rounds(fedgems, fed)),
    ("fedgems needs a network of the server: from_tensors(..., server_network=)",
     lambda fed: rounds(fedgems, labeled(server_model=None))),
    ("fedavg: every client needs the same network", lambda fed: rounds(
        fedavg, federation(network=(linear, with_batchnorm)))),
    ("fedsdd: the state has K = 2, not 3", lambda fed: rounds(fedsdd, fed, {
        "algorithm": "fedsdd", "round": 1, "global_models": [0, 0]}, K=3, participation=1.0)),
    ("the snapshot is of another optimizer than adam", lambda fed: rounds(
        local, fed, [*rounds(local, fed, rounds=1)][-1][1], rounds=2, optimizer="adam"))])
def test_what_a_run_refuses_it_refuses_at_the_first_next_in_one_line(words, call):
    run = call(federation())
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        next(run)
