"""The average of models."""
import copy

import torch


def average_weights(state_dicts, weights):
    """The weighted average of models of one architecture, as a new state_dict.   FedSDD Eq. (2)

    state_dicts   M state_dicts with the same names and shapes
    weights       M numbers >= 0, for example sample counts; they are normalized to sum to 1.
                  Leave out a model that has nan: with weight 0 it makes the average nan
    returns       floating-point entries (also BatchNorm's running statistics) are averaged, narrow
                  ones (bfloat16) in float32; integer entries (BatchNorm's counters) take the
                  maximum; an entry that is the same in all models stays, for example a mask of
                  -inf; one that is no tensor (a module's extra state) is the first model's
    raises        ValueError: see `check_models`
    """
    state_dicts, weights = list(state_dicts), [float(w) for w in weights]
    check_models(state_dicts, weights)
    total = sum(weights)
    shares = [w / total for w in weights]                                                # [M]
    average = {}
    for name, first in state_dicts[0].items():
        values = [state_dict[name] for state_dict in state_dicts]
        if not isinstance(first, torch.Tensor):
            average[name] = copy.deepcopy(first)
        elif all(torch.equal(first, value) for value in values):
            average[name] = first.clone()
        elif first.is_floating_point():
            wide = torch.promote_types(first.dtype, torch.float32)
            mean = sum(share * value.to(wide) for share, value in zip(shares, values))
            average[name] = mean.to(first.dtype)
        else:
            average[name] = torch.stack(values).amax(0)
    return average


def check_models(state_dicts, weights):
    """Raises ValueError if there is no average of these models with these weights.

    That is: no models, not one weight per model, a negative weight, weights that sum to 0 or to no
    finite number, models with different names or shapes.
    """
    if not state_dicts or len(state_dicts) != len(weights):
        raise ValueError(f"needs models and one weight for each, "
                         f"not {len(state_dicts)} models and {len(weights)} weights")
    if not all(w >= 0 for w in weights) or not 0 < sum(weights) < float("inf"):
        raise ValueError(f"weights must be >= 0, with a finite sum above 0, not {weights}")
    shapes = [shapes_of(state_dict) for state_dict in state_dicts]
    for m, other in enumerate(shapes):
        for name in shapes[0] | other:
            if shapes[0].get(name) != other.get(name):
                raise ValueError(f"models of one architecture are needed: {name} has shape "
                                 f"{shapes[0].get(name, 'none')} in model 0 and "
                                 f"{other.get(name, 'none')} in model {m}")


def shapes_of(state_dict):
    """{name: the shape of its tensor, a tuple; () of what is no tensor}."""
    return {name: tuple(getattr(value, "shape", ())) for name, value in state_dict.items()}
