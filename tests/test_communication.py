"""Bytes over the wire, by the papers' arithmetic (4 bytes a number, 1 KiB = 1024 bytes)."""
from toys import linear, with_batchnorm

from communication import buffers_bytes, weights_bytes, weights_ledger
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
