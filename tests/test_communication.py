"""Bytes over the wire, by the papers' arithmetic (4 bytes a number, 1 KiB = 1024 bytes)."""
import copy
import functools
import inspect

import pytest
import torch
from torch import nn
from toys import labelled, last, linear, same, with_batchnorm

from algorithms import ALGORITHMS
from communication import (
    buffers_bytes,
    bytes_until,
    features_bytes,
    features_ledger,
    logits_bytes,
    logits_ledger,
    network_cost,
    split_learning_bytes,
    weights_bytes,
    weights_ledger,
)
from models import build


def test_fedavg_of_fedgems_resnet11_costs_what_the_paper_counts():
    """127,642 parameters: 498.6 KiB a model; 16 clients, both ways: 15,955 KiB a round."""
    model = build("bottleneck11", (3, 32, 32), 10)
    assert weights_bytes(model, 1) == 4 * 127_642 and round(weights_bytes(model, 1) / 1024, 1) == 498.6
    ledger = weights_ledger([(model, 16)])
    assert round((ledger["bytes_up"] + ledger["bytes_down"]) / 1024) == 15_955


def test_batchnorm_statistics_are_counted_apart():
    model = build("bottleneck11", (3, 32, 32), 10)
    counters = sum(name.endswith("num_batches_tracked") for name, _ in model.named_buffers())
    assert buffers_bytes(model, 1) == 4 * 2_272 + 8 * counters
    assert buffers_bytes(linear(), 5) == 0


def test_bytes_are_proportional_to_clients_and_copies():
    model = with_batchnorm()
    assert weights_bytes(model, 6, copies=2) == 12 * weights_bytes(model, 1) == 12 * 4 * 17
    assert weights_ledger([(model, 3)], 2) == {"bytes_up": 6 * 4 * 17, "bytes_down": 6 * 4 * 17, "bytes_up_buffers": 48, "bytes_down_buffers": 48}


def test_different_networks_pay_for_their_own_size_and_masked_numbers_for_eight_bytes():
    small, large = linear(), with_batchnorm()
    ledger = weights_ledger([(small, 2), (large, 3)], up_number_bytes=8)
    assert ledger["bytes_down"] == 2 * 4 * 15 + 3 * 4 * 17 and ledger["bytes_up"] == 2 * ledger["bytes_down"]
    assert ledger["bytes_down_buffers"] == 3 * (4 + 4 + 8) and ledger["bytes_up_buffers"] == 3 * (8 + 8 + 8)

# --------------------------------------------------------------------------------------------------- logits: FedGEMS's tables

EXCHANGING_ALL = ("fedmd", "dsfl", "cronus", "fedgem")
KIB, MB = 1024, 1024**2                          # the paper's "kb" and "MB"


@functools.cache
def a_round(algo, num_public):
    """The metrics of a real round of 16 clients on 10 classes with all public samples. No client distils: nothing would travel."""
    fed = labelled(sizes=(2,) * 16, num_classes=10, num_public=num_public)
    settings = {"local_epochs": 1, "public_epochs": 0, "server_epochs": 1, "batch_size": 50_000, "server_batch_size": 50_000,
                "transfer_public_epochs": 0, "transfer_local_epochs": 0, "early_stopping": False, "subset_size": None,
                "malicious_fraction": 0.0}
    known = inspect.signature(ALGORITHMS[algo]).parameters
    metrics, state = last(ALGORITHMS[algo](fed, rounds=1, **{name: value for name, value in settings.items() if name in known}))
    assert state["round"] == 1
    return metrics


def test_logits_bytes_by_hand():
    """7 samples, 3 classes, 5 clients: 4 bytes for each number; nothing for no samples."""
    assert logits_bytes(7, 3, 5) == 4 * 7 * 3 * 5 and logits_bytes(0, 3, 5) == 0 and isinstance(logits_bytes(7, 3, 5), int)


def test_logits_ledger_by_hand():
    """Up and down may be different numbers of samples; which samples are meant is counted apart, 4 bytes for each and client."""
    assert logits_ledger(5, 3, up=7, down=11, indices=13) == {"bytes_up": 4 * 7 * 3 * 5, "bytes_down": 4 * 11 * 3 * 5,
                                                              "bytes_down_indices": 4 * 13 * 5}
    assert logits_ledger(5, 3, up=7, down=7)["bytes_down_indices"] == 0


@pytest.mark.parametrize("thousands, kib", [(5, 3125.0), (10, 6250.0), (15, 9375.0), (20, 12500.0), (25, 15625.0)])
@pytest.mark.parametrize("algo", EXCHANGING_ALL)
def test_fedgems_table_6_uploads_of_a_real_round(algo, thousands, kib):
    assert a_round(algo, 1000 * thousands)["bytes_up"] / KIB == kib == 1000 * thousands * 10 * 4 * 16 / KIB


@pytest.mark.parametrize("algo, rounds, printed", [
    ("fedmd", 32, 976.56), ("fedmd", 180, 5493.16), ("cronus", 20, 610.35), ("cronus", 81, 2471.92), ("dsfl", 121, 3692.63),
    ("fedgem", 3, 91.55), ("fedgem", 8, 244.14)])
def test_fedgems_table_4_is_whole_rounds_up_and_down(algo, rounds, printed):
    """Each client is sent a copy of its own: a round is twice 15,625 KiB."""
    metrics = a_round(algo, 25_000)
    assert metrics["bytes_down"] == metrics["bytes_up"]
    assert round(rounds * (metrics["bytes_up"] + metrics["bytes_down"]) / MB, 2) == printed


def test_fedmd_and_fedgems_say_which_samples_they_mean_and_the_others_need_not():
    assert {algo: a_round(algo, 5000)["bytes_down_indices"] for algo in EXCHANGING_ALL} == {
        "fedmd": 4 * 5000 * 16, "dsfl": 0, "cronus": 0, "fedgem": 0}


def test_fedgems_pays_up_for_what_was_asked_and_down_for_everything():
    """The samples that any pass of the server found wrong and outside the pool: of each pass at most those outside it before."""
    fed = labelled(sizes=(4,) * 5, num_public=40)
    rounds = list(ALGORITHMS["fedgems"](fed, rounds=3, batch_size=8, server_batch_size=8, lr=0.05, server_lr=0.05))
    for (_, before), (metrics, _) in zip(rounds, rounds[1:]):
        asked, rest = divmod(metrics["bytes_up"], 4 * 3 * 5)
        outside = int((~before["pool"]["mask"]).sum())
        assert rest == 0 and metrics["bytes_down"] == 4 * 40 * 3 * 5 and metrics["bytes_down_indices"] == 4 * asked * 5
        assert asked == round(40 * (metrics["ensemble_distillation"] + metrics["nobody_right"])) <= outside


# -------------------------------------------------------------------------------------------------------------- ComU@x

ROWS = [{"accuracy": .9, "client_accuracy": .1},                                         # round 0: nothing has travelled
        {"accuracy": .9, "client_accuracy": .3, "bytes_up": 10, "bytes_down": 200, "bytes_down_indices": 5_000},
        {"accuracy": .9, "client_accuracy": .5, "bytes_up": 30, "bytes_down": 400, "bytes_up_buffers": 5_000},
        {"accuracy": .9, "client_accuracy": .4, "bytes_up": 1, "bytes_down": 1}]


@pytest.mark.parametrize("x, total", [(.05, 0), (.1, 0), (.2, 10 + 200), (.3, 10 + 200), (.31, 10 + 200 + 30 + 400),
                                      (.5, 10 + 200 + 30 + 400)])
def test_bytes_until_by_hand(x, total):
    """Payload both ways, up to and with the first round that is there; by the clients' accuracy where there is one."""
    assert bytes_until(ROWS, x) == total


def test_bytes_until_of_what_is_never_reached_is_none():
    assert bytes_until(ROWS, .51) is None and bytes_until([], .1) is None


def test_bytes_until_goes_by_the_global_model_where_clients_have_none_of_their_own():
    rows = [{name: value for name, value in row.items() if name != "client_accuracy"} for row in ROWS]
    rows = [row | {"accuracy": t / 10} for t, row in enumerate(rows)]
    assert bytes_until(rows, .2) == 10 + 200 + 30 + 400 and bytes_until(rows, 0) == 0


# ----------------------------------------------------------------------------------------- FedGKT and split learning: features

GIB = 1024**3
MAP = 16 * 32 * 32                               # numbers in the feature map of an image of CIFAR


def test_eq13_features_bytes_by_hand():
    """7 samples: a map of 5 numbers up, 3 soft labels down, 4 bytes each; maps in bfloat16 are half as large, soft labels are not."""
    assert features_bytes(7, 5, 3) == 7 * (4 * 5 + 4 * 3) and features_bytes(7, 5, 3, number_bytes=2) == 7 * (2 * 5 + 4 * 3)
    assert features_bytes(0, 5, 3) == 0 and isinstance(features_bytes(7, 5, 3), int)


def test_eq12_split_learning_bytes_by_hand():
    """7 samples: a map of 5 numbers up, its gradient down."""
    assert split_learning_bytes(7, 5) == 7 * (4 * 5 + 4 * 5) and isinstance(split_learning_bytes(7, 5), int)


def test_eq12_and_eq13_on_cifar_10():
    """50,000 images: 6.10 GiB in an epoch of split learning; 3.054 GiB in a round of FedGKT, 610.7 GiB in its 200."""
    assert split_learning_bytes(50_000, MAP) == 50_000 * 2 * 64 * KIB and round(split_learning_bytes(50_000, MAP) / GIB, 2) == 6.10
    a_round = features_bytes(50_000, MAP, 10)
    assert a_round == 50_000 * (64 * KIB + 40) and round(a_round / GIB, 3) == 3.054 and round(200 * a_round / GIB, 1) == 610.7


def test_fedgems_counts_features_alone_in_a_round_of_fedgkt():
    """Half of CIFAR-10: "1.6M kb" a round; 20 of these are Table 4's 31,250 MB."""
    ledger = features_ledger(25_000, 25_000, MAP, 10)
    assert ledger["bytes_up"] == 1_600_000 * KIB and 20 * ledger["bytes_up"] == 31_250 * MB


@pytest.mark.parametrize("number_bytes", [4, 2])
def test_features_ledger_by_hand(number_bytes):
    """Up and down make Eq. (13); the clients' own logits and the labels are counted apart, 4 bytes for each number."""
    ledger = features_ledger(7, 7, 5, 3, number_bytes)
    assert ledger == {"bytes_up": 7 * 5 * number_bytes, "bytes_down": 7 * 3 * 4, "bytes_up_logits": 7 * 3 * 4, "bytes_up_labels": 7 * 4}
    assert ledger["bytes_up"] + ledger["bytes_down"] == features_bytes(7, 5, 3, number_bytes)
    assert features_ledger(7, 4, 5, 3, number_bytes) == ledger | {"bytes_down": 4 * 3 * 4}      # a client with 3 samples left out


def test_a_feature_map_of_fedgkts_edge_is_64_kib():
    with torch.no_grad():
        features = build("gkt_edge", (3, 32, 32), 10).eval().extract(torch.zeros(1, 3, 32, 32))
    assert features.numel() == MAP and 4 * MAP == 64 * KIB


# -------------------------------------------------------------------------------------------------- what a network costs

def test_network_cost_by_hand_on_a_tiny_convolution():
    """2 channels of 4 x 5 through 3 kernels of 3 x 2 with stride 2 -> 3 x 1 x 2, then 6 numbers to 4."""
    model = nn.Sequential(nn.Conv2d(2, 3, (3, 2), stride=2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(6, 4))
    maps = 3 * 1 * 2
    assert network_cost(model, (2, 4, 5)) == {
        "parameters": (3 * 2 * 3 * 2 + 3) + 2 * 3 + (6 * 4 + 4), "statistics": 2 * 3,
        "multiply_adds": maps * (2 * 3 * 2) + 6 * 4, "activations": 4 * (maps + maps + maps + 4)}


def test_network_cost_of_a_grouped_convolution_and_of_a_lone_layer():
    """With two groups each output is a sum over half of the channels."""
    assert network_cost(nn.Conv2d(4, 6, 3, padding=1, groups=2), (4, 5, 5))["multiply_adds"] == 6 * 5 * 5 * (4 // 2 * 9)
    assert network_cost(nn.Linear(7, 3), (7,)) == {"parameters": 7 * 3 + 3, "statistics": 0, "multiply_adds": 7 * 3, "activations": 4 * 3}


def test_network_cost_counts_a_layer_as_often_as_it_is_used():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(self.layer(x))
    cost = network_cost(Twice(), (3,))
    assert cost["multiply_adds"] == 2 * 3 * 3 and cost["parameters"] == 3 * 3 + 3


@pytest.mark.parametrize("training", [True, False])
def test_network_cost_leaves_the_network_as_it_was(training):
    """The mode, the running statistics and the hooks; nor does it need a gradient."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5)).train(training)
    before = copy.deepcopy(model.state_dict())
    assert network_cost(model, (1, 4, 4)) == network_cost(model, (1, 4, 4))
    assert all(module.training == training and not module._forward_hooks for module in model.modules())
    assert same(dict(model.state_dict()), dict(before)) and all(p.grad is None for p in model.parameters())


def test_network_cost_leaves_no_hook_and_the_mode_when_the_shape_is_wrong():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).train()
    with pytest.raises(RuntimeError):
        network_cost(model, (5, 4, 4))
    assert all(module.training and not module._forward_hooks for module in model.modules())


@functools.cache
def cost(name):
    return network_cost(build(name, (3, 32, 32), 10), (3, 32, 32))


@pytest.mark.parametrize("name, fewer_parameters, fewer_multiply_adds", [("bottleneck56", 54, 9), ("bottleneck110", 105, 17)])
def test_fedgkts_edge_has_54_and_105_times_fewer_parameters_and_9_and_17_times_fewer_multiply_adds(name, fewer_parameters, fewer_multiply_adds):
    """Section 4.3. Parameters are counted with BatchNorm's statistics, and the edge is that of appendix B.3, not of Table 7."""
    edge, whole = cost("gkt_edge"), cost(name)
    assert edge["parameters"] + edge["statistics"] == 11_130
    assert round((whole["parameters"] + whole["statistics"]) / (edge["parameters"] + edge["statistics"])) == fewer_parameters
    assert round(whole["multiply_adds"] / edge["multiply_adds"]) == fewer_multiply_adds
    assert round(whole["multiply_adds"] / cost("gkt_edge_table7")["multiply_adds"]) < fewer_multiply_adds


def test_multiply_adds_of_fedgkts_edge_by_arithmetic():
    """The stem, two Bottlenecks of 1x1, 3x3, 1x1 and one projection, each over 32 x 32 pixels; then 64 numbers to 10."""
    stem, first, second, projection = 3 * 16 * 9, 16 * 16 + 16 * 16 * 9 + 16 * 64, 64 * 16 + 16 * 16 * 9 + 16 * 64, 16 * 64
    assert cost("gkt_edge")["multiply_adds"] == 32 * 32 * (stem + first + second + projection) + 64 * 10


def test_fedgkts_stem_and_server_cost_what_the_whole_network_does():
    edge_stem = network_cost(build("gkt_edge", (3, 32, 32), 10).stem, (3, 32, 32))
    server = network_cost(build("gkt_server55", (3, 32, 32), 10), (16, 32, 32))
    assert all(edge_stem[key] + server[key] == cost("bottleneck56")[key] for key in ("parameters", "statistics", "multiply_adds"))
