"""What the algorithms that exchange logits share: starts, public epochs, valid uploads."""
import math

import pytest
import torch
from test_contracts import fields_of, run
from torch import nn
from toys import Change, labeled, last, same, samples

from algorithms import ALGORITHMS
from federation import snapshot

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


@pytest.mark.parametrize("algo", [a for a in ALGORITHMS if "public_epochs" in fields_of(a)])
def test_without_public_epochs_no_client_learns_from_another(algo):
    """Whatever the others hold, client 0 ends the same; with public epochs only the control's."""
    def first_client(seed, public_epochs):
        fed = toy(private=[samples(5), samples(3, seed=seed), samples(4, seed=seed)])
        _, state = last(run(algo, fed, rounds=1, public_epochs=public_epochs))
        return clients_of(state)[0]["model"]
    assert same(first_client(7, 0), first_client(8, 0))
    assert same(first_client(7, 1), first_client(8, 1)) == (algo == "public-private")


@pytest.mark.parametrize("algo", ["fedmd", "dsfl", "cronus", "fedgem"])
def test_everyone_learns_from_a_single_valid_upload(algo):
    """The first two are lost: the same as if all three had uploaded what the third did."""
    def ends_with(instead):
        attack = Change(lambda uploads, rows: torch.stack(
            [instead(uploads[2])] * 2 + [uploads[2]]))
        return last(run(algo, toy(), None, attack, rounds=1, optimizer="sgd", **HONEST))[1]
    lost, equal = ends_with(lambda logits: logits * math.nan), ends_with(lambda logits: logits)
    for a, b in zip(clients_of(lost), clients_of(equal), strict=True):
        assert torch.allclose(a["model"]["3.weight"], b["model"]["3.weight"], atol=1e-5)
