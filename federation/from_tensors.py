"""A federation of tensors and networks of your own.

    fed = from_tensors(private, test, [Network])
    for metrics, state in fedavg.run(fed, rounds=10, lr=0.1): ...
"""
import torch
from torch import Tensor, nn

from federation.networks import output_shape, prepared
from federation.randomness import seeded
from federation.samples import Data, Federation


def check_images(name, part, test):
    """ValueError unless `part` is (images, labels) and the images are like the test images."""
    if not isinstance(part, (tuple, list)) or len(part) != 2 or not isinstance(part[0], Tensor):
        raise ValueError(f"{name}: give two tensors, (images, labels)")
    images = part[0]
    if (images.dtype != torch.float32 or images.ndim != 4 or len(images) == 0
            or images.shape[1:] != test[0].shape[1:]):
        raise ValueError(f"{name}: images are float32 tensors [n, c, h, w] with n > 0, of the "
                         f"test images' size, not {images.dtype} {list(images.shape)}")
    if bad := int((~images.isfinite()).flatten(1).any(1).sum()):
        raise ValueError(f"{name}: images hold nan or infinity: {bad} of {len(images)} images")
    if images.min() >= 0 and images.max() > 100:
        raise ValueError(f"{name}: images hold numbers from {images.min():g} to "
                         f"{images.max():g}, like bytes; normalize them")


def check_labels(name, labels, num_samples, num_classes):
    """ValueError unless these are the labels of so many samples."""
    if (not isinstance(labels, Tensor) or labels.dtype != torch.int64
            or labels.shape != (num_samples,) or labels.min() < 0 or labels.max() >= num_classes):
        raise ValueError(f"{name}: labels are an int64 tensor [{num_samples}] from 0 to "
                         f"{num_classes - 1}, as the network has {num_classes} outputs")


def from_tensors(private, test, networks, *, public=None, validation=None, server_network=None,
                 seed=0, device="cpu", **options):
    """A federation of tensors and networks of your own, for an algorithm's `run`.

    private           [(images, labels), ...]: float32 [n, c, h, w] and int64 [n] of each client,
                      normalized
    test, validation  (images, labels)
    networks          [Network, ...]: Network() is a new nn.Module, images -> logits [B, C]; client
                      i uses networks[i % len(networks)]. For FedGKT it also has the methods
                      extract, images -> feature maps, and classify, feature maps -> logits
    public            (images, labels), or (images, None) where no algorithm needs labels
    server_network    Network of a server with a model of its own: for FedGEMS it reads images, for
                      FedGKT feature maps
    options           augment, amp: see `Federation`
    raises            ValueError: images, labels or networks are missing or do not fit together;
                      TypeError: a network that does not make a new one in each call
    """
    device = torch.device(device)
    for name, given, one in [("private", private, "(images, labels)"),
                             ("networks", networks, "Network")]:
        if not isinstance(given, (tuple, list)) or len(given) == 0:
            raise ValueError(f"{name} is a list, [{one}, ...], of at least one")
    parts = {"test": test, **{f"client {i}": part for i, part in enumerate(private)}}
    parts |= {name: part for name, part in [("public", public), ("validation", validation)]
              if part is not None}
    for name, part in parts.items():
        check_images(name, part, test)

    def new_network(make, key, init):
        with seeded(seed, key, init):
            model = make().to(device, memory_format=torch.channels_last)
        return prepared(model, options.get("amp", False))

    def client_model(i, init=0):
        return new_network(networks[i % len(networks)], "init", init)

    def server_model(init=0):
        return new_network(server_network, "server init", init)

    makers = {f"network {j}": make for j, make in enumerate(networks)}
    if server_network is not None:
        makers["server_network"] = server_network
    for name, make in makers.items():
        if isinstance(make, nn.Module) or not callable(make) or (
                new_network(make, "init", 0) is new_network(make, "init", 0)):
            raise TypeError(f"{name}: give a class or function of which each call makes a new "
                            "network")
    image = torch.zeros(1, *test[0].shape[1:], device=device)                    # [1, c, h, w]
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
