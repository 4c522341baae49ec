"""A federation of tensors and networks of your own.

    fed = from_tensors(private, test, [Network])
    for metrics, state in fedavg.run(fed, rounds=10, lr=0.1): ...
"""
from numbers import Integral

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from federation.networks import output_shape, prepared
from federation.randomness import seeded
from federation.samples import Data, Federation


def as_tensors(name, part):
    """(images, labels), tensors or numpy arrays: floats become float32, whole labels int64."""
    images, labels = [
        torch.from_numpy(x.astype(x.dtype.newbyteorder("=")))
        if isinstance(x, np.ndarray) and x.dtype.kind in "biuf" else x
        for x in (part if isinstance(part, (tuple, list)) and len(part) == 2 else (None, None))]
    if not isinstance(images, Tensor):
        raise ValueError(f"{name}: give two tensors or numpy arrays, (images, labels)")
    if not images.is_floating_point():
        raise ValueError(f"{name}: images are {images.dtype}: make them floats, normalized as the "
                         "network expects")
    if isinstance(labels, Tensor) and not labels.is_floating_point():
        labels = labels.to(torch.int64)
    return images.to(torch.float32), labels


def check_images(name, images, test_images):
    """ValueError unless the images are finite and like the test images."""
    if images.ndim != 4 or len(images) == 0 or images.shape[1:] != test_images.shape[1:]:
        raise ValueError(f"{name}: images are floats [n, c, h, w] with n > 0, of the test images' "
                         f"size, not {list(images.shape)}")
    if bad := int((~images.isfinite()).flatten(1).any(1).sum()):
        raise ValueError(f"{name}: images hold nan or infinity: {bad} of {len(images)} images")
    if images.min() >= 0 and images.max() > 100:
        raise ValueError(f"{name}: images hold numbers from {images.min():g} to "
                         f"{images.max():g}, like bytes; normalize them")


def check_labels(name, labels, num_samples, num_classes):
    """ValueError unless these are the labels of so many samples."""
    if (not isinstance(labels, Tensor) or labels.dtype != torch.int64
            or labels.shape != (num_samples,) or labels.min() < 0 or labels.max() >= num_classes):
        raise ValueError(f"{name}: labels are whole numbers [{num_samples}] from 0 to "
                         f"{num_classes - 1}, as the network has {num_classes} outputs")


def has_lazy_layers(model):
    """True if a layer waits for its first input to take its size."""
    return any(map(is_lazy, (*model.parameters(), *model.buffers())))


def share_layers(*models):
    """True if two networks have memory of parameters, or modules with buffers, in common."""
    one, other = ({id(model), *(w.data_ptr() for w in model.parameters() if w.data_ptr()),
                   *(id(module) for module in model.modules() if module._buffers)}
                  for model in models)
    return bool(one & other)


def from_tensors(private, test, networks, *, public=None, validation=None, server_network=None,
                 seed=0, device="cpu", **options):
    """A federation of tensors and networks of your own, for an algorithm's `run`.

    private           [(images, labels), ...] of each client: floats [n, c, h, w], normalized, and
                      whole numbers [n] from 0; tensors or numpy arrays
    test, validation  (images, labels)
    networks          [Network, ...]: Network() is a new nn.Module, images -> logits [B, C]; client
                      i uses networks[i % len(networks)]. Its weights are drawn anew in each call:
                      a copy of trained weights is the same start for all clients, and for all K
                      models of FedSDD. For FedGKT it also has the methods extract, images ->
                      feature maps, and classify, feature maps -> logits
    public            (images, labels), or (images, None) where no algorithm needs labels
    server_network    Network of a server with a model of its own: for FedGEMS it reads images, for
                      FedGKT feature maps
    seed              of all random numbers: a whole number >= 0
    options           augment, amp: see `Federation`
    raises            ValueError: images, labels or networks are missing or do not fit together;
                      TypeError: a network that does not make a new one in each call
    """
    if not isinstance(seed, Integral) or seed < 0:
        raise ValueError(f"seed is {seed!r}: it must be a whole number, 0 or more")
    seed = int(seed)
    device = torch.device(device)
    for name, given, one in [("private", private, "(images, labels)"),
                             ("networks", networks, "Network")]:
        if not isinstance(given, (tuple, list)) or len(given) == 0:
            raise ValueError(f"{name} is a list, [{one}, ...], of at least one")
    parts = {"test": test, **{f"client {i}": part for i, part in enumerate(private)}}
    parts |= {name: part for name, part in [("public", public), ("validation", validation)]
              if part is not None}
    parts = {name: as_tensors(name, part) for name, part in parts.items()}
    test_images = parts["test"][0]
    for name, (images, _) in parts.items():
        check_images(name, images, test_images)
    # As in training, where images are channels-last.
    image = torch.zeros_like(test_images[:1], device=device).to(memory_format=torch.channels_last)

    def new_network(make, key, init):
        with seeded(seed, key, init):
            model = make().to(device)
            if has_lazy_layers(model):           # they take their sizes, and draw their weights
                output = output_shape(model, image)
                if has_lazy_layers(model):
                    raise ValueError(f"lazy layers must find their sizes from one image of "
                                     f"{list(image.shape[1:])}: {output}")
        return prepared(model.to(memory_format=torch.channels_last), options.get("amp", False))

    def client_model(i, init=0):
        return new_network(networks[i % len(networks)], "init", init)

    def server_model(init=0):
        return new_network(server_network, "server init", init)

    makers = {f"network {j}": make for j, make in enumerate(networks)}
    if server_network is not None:
        makers["server_network"] = server_network
    for name, make in makers.items():
        if isinstance(make, nn.Module) or not callable(make) or share_layers(
                new_network(make, "init", 0), new_network(make, "init", 0)):
            raise TypeError(f"{name}: give a class or function of which each call makes a new "
                            "network, with layers of its own")
        for w in new_network(make, "init", 0).parameters():
            if w.is_floating_point() and w.element_size() < 4:
                raise ValueError(f"{name}: weights are {w.dtype}, in which small steps are lost: "
                                 "make them float32; amp=True computes in bfloat16")
    shapes = [output_shape(client_model(j), image) for j in range(len(networks))]
    if len({*shapes}) > 1 or not isinstance(shapes[0], tuple) or len(shapes[0]) != 2:
        raise ValueError("all networks must give logits [B, C] with the same C; for one image of "
                         f"{list(image.shape[1:])}: {', '.join(map(str, shapes))}")
    num_classes = shapes[0][1]

    def data(name):
        if name not in parts:
            return None
        images, labels = parts[name]
        if not (name == "public" and labels is None):
            check_labels(name, labels, len(images), num_classes)
            labels = labels.to(device)
        return Data(images.to(device, memory_format=torch.channels_last), labels)

    return Federation(
        test=data("test"), private=[data(f"client {i}") for i in range(len(private))],
        public=data("public"), validation=data("validation"), num_classes=num_classes,
        client_model=client_model, server_model=None if server_network is None else server_model,
        architecture=[f"network {i % len(networks)}" for i in range(len(private))],
        seed=seed, device=device, **options)
