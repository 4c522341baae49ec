"""The weighted mean of models: FedSDD, Eq. (2), and FedAvg."""
import math

import pytest
import torch
from toys import linear, same, with_batchnorm

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


def test_the_average_of_one_model_is_a_copy_of_it():
    state = with_batchnorm().state_dict()
    average = average_weights([state], [17])
    assert same(average, state)
    assert not any(w.data_ptr() == state[name].data_ptr() for name, w in average.items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_models_are_averaged_in_float32(dtype):
    """A sum of 1,000 numbers of 8 or 11 binary digits would stand still long before its end."""
    average = average_weights([{"w": torch.tensor([1.0 + 2 * (m % 2)], dtype=dtype)}
                               for m in range(1000)], [1] * 1000)["w"]
    assert average.dtype == dtype and average.item() == 2


def test_any_iterables_of_models_and_weights_will_do():
    states = [{"w": torch.tensor([1., 2.])}, {"w": torch.tensor([4., -2.])}]
    assert same(average_weights(iter(states), iter([1, 3])), average_weights(states, [1, 3]))


def test_what_is_no_tensor_is_a_copy_of_the_first_models():
    """What `get_extra_state` of a module gives."""
    states = [{"_extra_state": {"steps": [n]}} for n in (3, 5)]
    average = average_weights(states, [1, 3])["_extra_state"]
    assert average == {"steps": [3]} and average["steps"] is not states[0]["_extra_state"]["steps"]


@pytest.mark.parametrize("weights", [[], [1], [2, -1], [0, 0], [1, math.nan], [1, math.inf],
                                     [1e308, 1e308]])
def test_weights_that_make_no_average_are_refused(weights):
    with pytest.raises(ValueError, match="weight"):
        average_weights([linear().state_dict()] * 2, weights)


@pytest.mark.parametrize("names, size", [("", 3), ("w", 1), ("wb", 3)])
def test_models_with_other_names_or_shapes_are_refused(names, size):
    with pytest.raises(ValueError, match="[wb] has shape .* in model 0 and .* in model 1$"):
        average_weights([{"w": torch.ones(3)}, {name: torch.ones(size) for name in names}], [1, 1])
