"""The weighted mean of models: FedSDD, Eq. (2), and FedAvg."""
import pytest
import torch

from federation import average_weights


def test_eq2_average_by_hand():
    """Of running statistics, too: not the last client's."""
    for name in ("w", "0.running_mean"):
        states = [{name: torch.tensor([1., 2.])}, {name: torch.tensor([4., -2.])}]
        expected = [.25 * 1 + .75 * 4, .25 * 2 + .75 * -2]
        assert average_weights(states, [1, 3])[name].tolist() == expected


def test_models_and_sizes_are_of_one_number():
    with pytest.raises(ValueError):
        average_weights([{"w": torch.zeros(1)}] * 2, [1, 1, 1])


def test_average_weights_keeps_counters_whole():
    states = [{"0.num_batches_tracked": torch.tensor(count)} for count in (4, 7, 6)]
    counter = average_weights(states, [1, 1, 1])["0.num_batches_tracked"]
    assert counter.dtype == torch.int64 and counter.item() == 7
