"""Bytes over the wire, by the papers' arithmetic (4 bytes a number, 1 KiB = 1024 bytes)."""
import pytest
import torch
from torch import nn
from toys import federation, labeled, last, linear, rounds, with_batchnorm

from algorithms import ALGORITHMS, fedgkt, split_learning
from benchmarks.costs import network_cost
from federation import Data, count_logit_bytes, count_weight_bytes
from models import build

KIB, MB, GIB = 1024, 1024**2, 1024**3            # FedGEMS writes "kb" and "MB"


def test_fedavg_of_resnet11_costs_what_fedgems_counts():
    """127,642 parameters: 498.6 KiB a model; 16 clients, both ways: 15,955 KiB a round."""
    model = build("bottleneck11", (3, 32, 32), 10)
    one, all_clients = (count_weight_bytes([(model, clients)]) for clients in (1, 16))
    assert one["bytes_up"] == 4 * 127_642 and round(one["bytes_up"] / KIB, 1) == 498.6
    assert round((all_clients["bytes_up"] + all_clients["bytes_down"]) / KIB) == 15_955


def test_bytes_are_proportional_to_clients_and_to_the_size_of_a_number():
    """15 weights, with BatchNorm 17 and its buffers: a mean, a variance, a counter of 8 bytes.
    A secure sum's masked numbers take 8 bytes."""
    assert count_weight_bytes([(linear(), 2), (with_batchnorm(), 3)]) == {
        "bytes_up": 4 * (2 * 15 + 3 * 17), "bytes_down": 4 * (2 * 15 + 3 * 17),
        "bytes_up_buffers": 3 * (4 + 4 + 8), "bytes_down_buffers": 3 * (4 + 4 + 8)}
    assert count_weight_bytes([(with_batchnorm(), 3)], number_bytes=8) == {
        "bytes_up": 3 * 8 * 17, "bytes_down": 3 * 8 * 17,
        "bytes_up_buffers": 3 * (8 + 8 + 8), "bytes_down_buffers": 3 * (8 + 8 + 8)}


def test_what_is_not_in_the_state_dict_does_not_travel_and_a_shared_layer_travels_once():
    """A buffer of 30,000 numbers is not persistent; a BatchNorm layer stands at two places."""
    norm = nn.BatchNorm1d(4)
    model = nn.Sequential(norm, nn.Linear(4, 4), norm)
    model.register_buffer("cache", torch.zeros(30_000), persistent=False)
    assert count_weight_bytes([(model, 3)]) == {
        "bytes_up": 3 * 4 * (8 + 20), "bytes_down": 3 * 4 * (8 + 20),
        "bytes_up_buffers": 3 * (16 + 16 + 8), "bytes_down_buffers": 3 * (16 + 16 + 8)}


def test_logits_bytes_by_hand():
    """5 clients, 3 classes. The numbers of the samples meant are counted apart, 4 bytes each."""
    assert count_logit_bytes(5, 3, up=7, down=11, indices=13) == {
        "bytes_up": 4 * 7 * 3 * 5, "bytes_down": 4 * 11 * 3 * 5, "bytes_down_indices": 4 * 13 * 5}
    assert count_logit_bytes(5, 3, up=7, down=7)["bytes_down_indices"] == 0
    table_6 = {5_000: 3125, 10_000: 6250, 15_000: 9375, 20_000: 12_500, 25_000: 15_625}  # KiB
    assert {n: count_logit_bytes(16, 10, n, 0)["bytes_up"] / KIB for n in table_6} == table_6


TABLE_4 = {"fedmd": {32: 976.56, 180: 5493.16}, "cronus": {20: 610.35, 81: 2471.92},
           "dsfl": {121: 3692.63}, "fedgem": {3: 91.55, 8: 244.14}}          # {rounds: MB}


@pytest.mark.parametrize("algo", TABLE_4)
def test_fedgems_table_4_is_whole_rounds_up_and_down(algo):
    """25,000 public samples, a thousand times those of this round; each client is sent its own
    copy. No algorithm needs to say which samples it means, as it means all."""
    fed = labeled(sizes=(1,) * 16, num_classes=10, num_public=25)
    settings = {"subset_size": None, "early_stopping": False, "transfer_public_epochs": 0,
                "transfer_local_epochs": 0, "local_epochs": 1, "public_epochs": 1,
                "server_epochs": 1}
    has = ALGORITHMS[algo].Config.__dataclass_fields__.keys()
    settings = {name: settings[name] for name in settings.keys() & has}
    metrics, _ = last(rounds(ALGORITHMS[algo], fed, rounds=1, **settings))
    up, down, indices = (metrics[f"bytes_{way}"] for way in ("up", "down", "down_indices"))
    assert up == down == 4 * 25 * 10 * 16 and indices == 0
    assert {n: round(n * 1000 * (up + down) / MB, 2) for n in TABLE_4[algo]} == TABLE_4[algo]


def test_eq12_and_eq13_on_cifar_10():
    """50,000 images: an epoch of split learning takes 6.10 GiB, a round of FedGKT 3.054 GiB and
    its 200 rounds 610.7. FedGEMS counts half of the images, and of them the features alone:
    "1.6M kb" a round, 31,250 MB (Table 4) in 20. Here there are 4 images."""
    images = Data(torch.randn(4, 3, 32, 32), torch.arange(4))
    fed = federation(sizes=(4,), num_classes=10, private=[images], test=images,
                     network=lambda classes: build("gkt_edge", (3, 32, 32), classes),
                     server=lambda classes: nn.Sequential(
                         nn.AvgPool2d(32), nn.Flatten(), nn.Linear(16, classes)))
    split, gkt = (last(rounds(algorithm, fed, rounds=1, local_epochs=1))[0]
                  for algorithm in (split_learning, fedgkt))
    up, down = gkt["bytes_up"], gkt["bytes_down"]
    assert split["bytes_up"] == split["bytes_down"] == up == 4 * 4 * (16 * 32 * 32)
    assert round((split["bytes_up"] + split["bytes_down"]) * 12_500 / GIB, 2) == 6.10
    assert round((up + down) * 12_500 / GIB, 3) == 3.054
    assert round(200 * (up + down) * 12_500 / GIB, 1) == 610.7
    assert up * 6_250 == 1_600_000 * KIB and 20 * up * 6_250 == 31_250 * MB


def test_network_cost_by_hand_on_a_tiny_convolution():
    """2 channels of 4 x 5, 3 kernels of 3 x 2, stride 2 -> 3 x 1 x 2, then 6 numbers to 4."""
    model = nn.Sequential(nn.Conv2d(2, 3, (3, 2), stride=2), nn.BatchNorm2d(3), nn.Flatten(),
                          nn.Linear(6, 4))
    maps = 3 * 1 * 2
    assert network_cost(model, (2, 4, 5)) == {
        "parameters": (3 * 2 * 3 * 2 + 3) + 2 * 3 + (6 * 4 + 4), "statistics": 2 * 3,
        "multiply_adds": maps * (2 * 3 * 2) + 6 * 4, "activations": 4 * (maps + maps + maps + 4)}
    groups = nn.Conv2d(4, 6, 3, padding=1, groups=2)
    assert network_cost(groups, (4, 5, 5))["multiply_adds"] == 6 * 5 * 5 * (4 // 2) * 9
    layer = nn.Linear(3, 3)                                                       # used twice
    assert network_cost(nn.Sequential(layer, layer), (3,)) == {
        "parameters": 9 + 3, "statistics": 0, "multiply_adds": 2 * 9, "activations": 2 * 4 * 3}


@pytest.mark.parametrize("training", [True, False])
def test_network_cost_leaves_the_network_in_its_mode(training):
    """And computes in eval mode: BatchNorm's counter stays."""
    model = with_batchnorm().train(training)
    network_cost(model, (1, 2, 2))
    assert [module.training for module in model.modules()] == [training] * 4
    assert model[0].num_batches_tracked.item() == 0


def test_fedgkts_edge_is_as_much_smaller_as_the_paper_says():
    """Section 4.3. BatchNorm's statistics count, and the edge is appendix B.3's, not Table 7's.
    Its stem, two Bottlenecks of 1x1, 3x3, 1x1 and a projection multiply for each of 32 x 32
    pixels, its linear layer once."""
    names = ("gkt_edge", "gkt_edge_table7", "bottleneck56", "bottleneck110")
    edge, table7, whole, deeper = (network_cost(build(n, (3, 32, 32), 10), (3, 32, 32))
                                   for n in names)
    stem, bottlenecks = 3 * 16 * 9, (16 + 64) * 16 + 2 * 16 * 16 * 9 + 2 * 16 * 64
    assert edge["multiply_adds"] == 32 * 32 * (stem + bottlenecks + 16 * 64) + 64 * 10
    assert edge["parameters"] + edge["statistics"] == 11_130
    for net, fewer_numbers, fewer_multiply_adds in ((whole, 54, 9), (deeper, 105, 17)):
        assert round((net["parameters"] + net["statistics"]) / 11_130) == fewer_numbers
        assert round(net["multiply_adds"] / edge["multiply_adds"]) == fewer_multiply_adds
        assert round(net["multiply_adds"] / table7["multiply_adds"]) < fewer_multiply_adds
