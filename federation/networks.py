"""Networks as algorithms call them, their last layer's input, and what is kept of them.

Between rounds a network is a snapshot, {"model": state_dict, "optimizer": state_dict}, or the
state_dict alone where it has no optimizer that is kept.
"""
import contextlib
import copy
from functools import partial
from typing import Literal

import torch


def prepared(model, amp=False):
    """The network as algorithms call it: model(images) gives float32 logits [B, C].

    amp    True: it computes in bfloat16
    In train mode a lone image is computed twice, because BatchNorm on vectors, or on a 1x1 map,
    needs two values; its logits come back once. FedGKT's clients also call `extract`, which gives
    feature maps of images, and `classify`, which gives logits of feature maps.
    """
    network = type(model)

    def autocast(inputs):
        # Without the cache: inside a caller's own autocast it would keep the first batch's weights.
        return torch.autocast(inputs.device.type, torch.bfloat16, enabled=amp, cache_enabled=False)

    class Prepared(network):
        def forward(self, inputs):
            is_lone = self.training and len(inputs) == 1
            batch = inputs.expand(2, *inputs.shape[1:]) if is_lone else inputs
            with autocast(inputs):
                return network.forward(self, batch)[: len(inputs)].float()

        if hasattr(network, "extract"):
            def extract(self, images):
                with autocast(images):
                    return network.extract(self, images)

            def classify(self, features):
                with autocast(features):
                    return network.classify(self, features).float()

    Prepared.__name__, Prepared.__qualname__ = network.__name__, network.__qualname__
    model.__class__ = Prepared
    return model


@torch.no_grad()
def output_shape(model, inputs):
    """The shape of the network's output for inputs [n, ...], a tuple, or the error it raises."""
    try:
        return tuple(model.eval()(inputs).shape)
    except Exception as error:       # of any type: it is somebody's own network
        return error


@contextlib.contextmanager
def features_of(model):
    """A list of the features, float32 [B, D], of each forward pass in the block: what `classifier`,
    the network's last layer, reads."""
    features = []
    hook = model.classifier.register_forward_pre_hook(
        lambda layer, given: features.append(given[0].float()))
    try:
        yield features
    finally:
        hook.remove()


def with_features(model, images):
    """(features [B, D], logits [B, C]): what the last layer `classifier` reads, and the output."""
    with features_of(model) as features:
        logits = model(images)
    return features[0][: len(images)], logits


def feature_size(model, name):
    """D: how many numbers the last layer `classifier` of a network reads.

    raises    ValueError: the network, called `name`, has no linear layer `classifier`
    """
    layer = getattr(model, "classifier", None)
    if not isinstance(layer, torch.nn.Linear):
        raise ValueError("features are the input of the last layer, so a network must end with a "
                         f"linear layer named classifier; {name} does not")
    return layer.in_features


Optimizer = Literal["sgd", "momentum", "nesterov", "adam", "amsgrad"]
OPTIMIZERS = {"sgd": torch.optim.SGD, "momentum": partial(torch.optim.SGD, momentum=0.9),
              "nesterov": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
              "adam": torch.optim.Adam, "amsgrad": partial(torch.optim.Adam, amsgrad=True)}


def loaded(model, weights):
    """The network after a copy of these weights, a state_dict, into it.

    raises    ValueError: they are of another network
    """
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        words = " ".join(str(error).split())
        raise ValueError(f"these weights are of another network: {words:.200}") from None
    return model


def snapshot(model, optimizer=None):
    """A model and its optimizer as they are kept between rounds: a dict of state_dicts."""
    weights = {name: w.clone() if isinstance(w, torch.Tensor) else copy.deepcopy(w)
               for name, w in model.state_dict().items()}
    return {"model": weights,
            "optimizer": None if optimizer is None else copy.deepcopy(optimizer.state_dict())}


def restored(saved, model, optimizer, lr, weight_decay=0.0):
    """(the network, its optimizer), both as they were saved: they go on from their last step.

    saved        {"model": state_dict, "optimizer": state_dict, or None for a new optimizer}; it is
                 copied
    optimizer    a name of OPTIMIZERS; its learning rate and weight decay are the ones given here
    raises       ValueError: the saved optimizer has another name, or the weights are of another
                 network
    """
    name, optimizer = optimizer, OPTIMIZERS[optimizer](model.parameters(), lr=lr,
                                                       weight_decay=weight_decay)
    if saved["optimizer"] is not None:
        new, old = optimizer.param_groups[0], saved["optimizer"]["param_groups"][0]
        if any(new.get(key) != old.get(key) for key in ("momentum", "nesterov", "amsgrad")):
            raise ValueError(f"the state was made with another optimizer than {name}: go on with "
                             "the same one")
        kept = copy.deepcopy(saved["optimizer"])["state"]        # steps change it in place
        for numbers in kept.values():
            if "step" in numbers:
                numbers["step"] = numbers["step"].cpu()          # on a GPU, Adam would wait for it
        optimizer.load_state_dict(optimizer.state_dict() | {"state": kept})
    return loaded(model, saved["model"]), optimizer
