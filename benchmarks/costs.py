"""What a round of FedSDD and a network cost, for the benchmarks."""
import copy

import torch
from torch import nn

from federation import FLOAT_BYTES


def round_seconds(group_seconds, distill_seconds):
    """Seconds of a round of FedSDD: (all in sequence, distillation beside training).

    group_seconds      [K]: local training of each group, the main model's first
    distill_seconds    distillation on the server
    source             FedSDD A.6, for clients that train one after the other

    In the next round only the main model needs the result of the distillation. So the other
    groups train while the server distills, and the main model's group trains last.
    >>> round_seconds([1.0, 1.0, 1.0, 1.0], 2.0)
    (6.0, 4.0)
    """
    training = sum(group_seconds)
    return training + distill_seconds, max(training, distill_seconds + group_seconds[0])


def network_cost(model, shape):
    """What a network costs for one sample [1, *shape], counted in a forward pass: a dict of ints.

    parameters       trainable numbers
    statistics       BatchNorm's running means and variances (its counters are not counted)
    multiply_adds    of convolutions and linear layers
    activations      bytes of all layers' outputs, 4 each: about what a backward pass needs
    """
    statistics = sum(b.numel() for b in model.buffers() if b.is_floating_point())
    cost = {"parameters": sum(p.numel() for p in model.parameters()), "statistics": statistics,
            "multiply_adds": 0, "activations": 0}

    def count(module, _, output):
        cost["activations"] += FLOAT_BYTES * output.numel()
        if isinstance(module, nn.Conv2d):    # an output is a sum over kernel and input channels
            cost["multiply_adds"] += output.numel() * module.weight[0].numel()
        elif isinstance(module, nn.Linear):
            cost["multiply_adds"] += output.numel() * module.in_features

    model = copy.deepcopy(model).eval()
    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(count)
    with torch.no_grad():
        model(next(model.parameters()).new_zeros(1, *shape))
    return cost
