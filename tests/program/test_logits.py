"""What the algorithms that exchange logits share: training, optimizers that live, valid uploads."""
import dataclasses
import math
from functools import partial

import pytest
import torch
from test_contracts import run
from torch import nn
from toys import (
    constant,
    federation,
    labeled,
    last,
    linear,
    receives,
    same,
    samples,
    through_a_file,
    train_with_labels,
    with_batchnorm,
)

from algorithms import ALGORITHMS
from federation import (
    Data,
    client_scores,
    is_usable,
    minibatches,
    random_numbers,
    restored,
    server_metrics,
    snapshot,
    usable,
)

EXCHANGING = ["fedmd", "dsfl", "cronus", "fd", "fedgem", "fedgems"]
HONEST = {"malicious_fraction": 0.0}        # Cronus leaves nobody out


def layered(num_classes=3):
    """What a round may stumble over: running statistics and dropout."""
    return nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Dropout(.3), nn.Linear(4, num_classes))


def toy(**changes):
    """Three clients and 10 public samples."""
    return labeled(**{"sizes": (5, 3, 4), "network": layered, "num_public": 10,
                       "validation": samples(20, seed=3), **changes})


def clients_of(state):
    return [*state["clients"].values()]


# ---------------------------------------------------------------------- valid uploads, scores

@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1e30])
def test_an_upload_with_one_bad_number_is_left_out(value):
    uploads = torch.randn(4, 5, 3)
    uploads[1, 4, 2] = uploads[3, 0, 0] = value
    uploads[2, 1] = torch.tensor([9e29, -9e29, 0.])         # which can be summed
    assert torch.equal(usable(uploads), uploads[[0, 2]])
    assert [is_usable({"w": (upload[:1], upload[1:])}) for upload in uploads] == [True, False] * 2
    assert usable(uploads[[1, 3]]).shape == (0, 5, 3) and usable(uploads[:, :0]).shape == (4, 0, 3)


def test_a_public_test_set_has_a_score_of_its_own_a_servers_headline():
    """Of a network that always says class 2."""
    model, images = {"model": constant(0., 0., 1.)}, samples(4).images
    fed = federation(server=linear, test=Data(images, torch.tensor([2, 2, 2, 0])))
    assert client_scores(fed, [model])[0][:2] == (3 / 4, None)
    assert server_metrics(fed, model) == {"server_accuracy": 3 / 4}
    for labels, right in [([1, 2, 0, 0], 1 / 4), ([0, 1, 0, 1], 0.)]:
        fed.public_test = Data(images, torch.tensor(labels))
        assert client_scores(fed, [model])[0][:2] == (3 / 4, right)
        assert server_metrics(fed, model) == {"server_accuracy": right,
                                              "server_accuracy_private_test": 3 / 4}


# --------------------------------------------------------------------------------------- training

HERE = {"epochs": 2, "batch_size": 3, "keys": ("here", 7)}


def test_a_batch_has_the_images_of_its_rows_augmented_if_the_run_says_so():
    fed = federation()
    brighter = dataclasses.replace(fed, augment=lambda images, rng: images + 10)
    images = fed.public.images
    with random_numbers(fed, *HERE["keys"]) as rng:
        for rows in minibatches(images, 3, rng, epochs=2):
            assert torch.equal(fed.augment(images[rows], rng), images[rows])
            assert torch.equal(brighter.augment(images[rows], rng), images[rows] + 10)


@pytest.mark.parametrize("end", ["break", "exception", "last batch"])
def test_torchs_generator_is_as_before_after_a_training(end):
    """In it the numbers depend on its name alone."""
    def first_number():
        with random_numbers(federation(), *HERE["keys"]) as rng:
            for _ in minibatches(federation().public.images, 3, rng, epochs=2):
                number = torch.rand(1)
                if end == "break":
                    break
                if end == "exception":
                    raise ArithmeticError(number)
        return number
    before, numbers = torch.get_rng_state(), []
    for _ in range(2):
        try:
            numbers.append(first_number())
        except ArithmeticError as error:
            numbers.append(error.args[0])
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(5)
        before = torch.get_rng_state()
    assert numbers[0] == numbers[1]


@pytest.mark.parametrize("optimizer, kind", [
    ("momentum", partial(torch.optim.SGD, momentum=0.9)), ("adam", torch.optim.Adam),
    ("nesterov", partial(torch.optim.SGD, momentum=0.9, nesterov=True))])
def test_saved_and_restored_is_as_if_never_saved(optimizer, kind):
    """Three rounds of a network that lives on, and of others that go through files."""
    fed, model, settings = federation(), with_batchnorm(), {"lr": 0.05, "weight_decay": 0.01}
    saved, update = snapshot(model), kind(model.parameters(), **settings)
    for t in (1, 2, 3):
        train_with_labels(fed, model, update, fed.private[0], **{**HERE, "keys": ("local", t)})
        before = through_a_file(saved)
        other, again = restored(saved, with_batchnorm(), optimizer, **settings)
        train_with_labels(fed, other, again, fed.private[0], **{**HERE, "keys": ("local", t)})
        assert same(saved, before)              # what was kept is not trained
        saved = through_a_file(snapshot(other, again))
        assert same(dict(saved["model"]), dict(model.state_dict()))
        assert same(saved["optimizer"], update.state_dict())


# ------------------------------------------------------------ starts, scores, what is exchanged

@pytest.mark.parametrize("algo", [*EXCHANGING, "fedmd-pooled"])
def test_every_client_starts_from_weights_of_its_own(algo):
    """Without FedMD's transfer learning, which trains them before round 0."""
    fed = toy()
    [(_, state)] = run(algo, fed, rounds=0, transfer_public_epochs=0, transfer_local_epochs=0)
    models = [client["model"] for client in clients_of(state)]
    own = [fed.client_model(i, init=i).state_dict() for i in range(3)]
    assert all(same(a, b) for a, b in zip(models, own, strict=True))
    assert len({str(model["3.weight"]) for model in models}) == 3
    assert "server" not in state or same(state["server"], snapshot(fed.server_model()))


@pytest.mark.parametrize("algo", [name for name, algorithm in ALGORITHMS.items()
                                  if "public_epochs" in algorithm.config_fields])
def test_without_public_epochs_no_client_learns_from_another(algo):
    """Whatever the others hold, client 0 ends the same; with public epochs only the control's."""
    def first_client(seed, public_epochs):
        fed = toy(private=[samples(5), samples(3, seed=seed), samples(4, seed=seed)])
        _, state = last(run(algo, fed, rounds=1, public_epochs=public_epochs))
        return clients_of(state)[0]["model"]
    assert same(first_client(7, 0), first_client(8, 0))
    assert same(first_client(7, 1), first_client(8, 1)) == (algo == "public-private")


# --------------------------------------------------------------------- uploads that are not finite

@pytest.mark.parametrize("algo", ["fedmd", "dsfl", "cronus", "fedgem"])
def test_everyone_learns_from_a_single_valid_upload(algo, monkeypatch):
    """The first two are lost: the same as if all three had uploaded what the third did."""
    def ends_with(instead):
        attack = receives(monkeypatch, lambda uploads, rows: torch.stack(
            [instead(uploads[2])] * 2 + [uploads[2]]))
        return last(run(algo, toy(), rounds=1, optimizer="sgd", **HONEST, **attack))[1]
    lost, equal = ends_with(lambda logits: logits * math.nan), ends_with(lambda logits: logits)
    for a, b in zip(clients_of(lost), clients_of(equal), strict=True):
        assert torch.allclose(a["model"]["3.weight"], b["model"]["3.weight"], atol=1e-5)
