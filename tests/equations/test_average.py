"""The weighted mean of models: FedSDD, Eq. (2), and FedAvg."""
import torch

from federation import average_weights


def test_eq2_average_by_hand():
    states = [{"w": torch.tensor([1., 2.])}, {"w": torch.tensor([4., -2.])}]
    assert average_weights(states, [1, 3])["w"].tolist() == [.25 * 1 + .75 * 4, .25 * 2 - .75 * 2]


def test_average_weights_averages_running_statistics():
    states = [{"0.running_mean": torch.tensor([x])} for x in (2., 10.)]  # not the last client's 10
    assert average_weights(states, [3, 1])["0.running_mean"].tolist() == [.75 * 2 + .25 * 10]


def test_average_weights_keeps_counters_whole():
    states = [{"0.num_batches_tracked": torch.tensor(count)} for count in (4, 7, 6)]
    counter = average_weights(states, [1, 1, 1])["0.num_batches_tracked"]
    assert counter.dtype == torch.int64 and counter.item() == 7
