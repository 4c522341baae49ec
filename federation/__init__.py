"""What an algorithm sees: samples, networks, a seed, and random numbers that depend on it.

    fed = from_tensors(private, test, [Network])        # of your own tensors and networks
    for metrics, state in fedavg.run(fed, rounds=10, lr=0.1): ...
"""
import contextlib
import dataclasses
import functools
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn


class Data(NamedTuple):
    """Images and labels. Row n is the same sample for the whole run."""

    images: Tensor         # float32 [n, c, h, w], normalized, channels-last
    labels: Tensor | None  # int64 [n]; None: the algorithm must not use them


def pick(data, rows):
    """The samples `rows` of a `Data`."""
    return Data(data.images[rows], data.labels[rows])


def union(*parts):
    """All samples of several `Data`, one after the other."""
    return Data(*(torch.cat(tensors) for tensors in zip(*parts)))


@dataclass
class Federation:
    """The input of every algorithm: samples, networks, seed. It changes nothing but `seconds`."""

    private: list[Data]                          # private[i]: the samples of client i
    test: Data
    num_classes: int
    client_model: Callable[..., nn.Module]       # client_model(i, init=0): client i's new network,
    #                                              whose initial weights depend on seed and init
    architecture: list[str]                      # architecture[i]: the name of client i's network
    seed: int
    device: torch.device                         # all tensors are on it
    server_model: Callable[..., nn.Module] | None = None     # server_model(init=0), likewise; None
    #                                              if the server has no network of its own
    public: Data | None = None                   # labels None: the algorithm must not use them
    public_test: Data | None = None              # the public half of the test set; where FedMD's
    #                                              output layer is joint, the public task's test set
    validation: Data | None = None               # no client's: for early stopping, learning rates,
    #                                              and FedDF's drop_worst
    augment: Callable[[Tensor, np.random.Generator], Tensor] | None = None   # training images
    amp: bool = False                            # bfloat16 autocast in every forward pass, instead
    #                                              of an autocast around `run`
    threads: int | None = None                   # CPU threads while the server trains; None: as now
    seconds: Counter = field(default_factory=Counter)  # {function: seconds} of what is @timed


# --------------------------------------------------------------------------------------------------
# Time

def seconds(device):
    """The time in seconds; on a GPU it first waits for the work that was already submitted."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def timed(function):
    """Decorator: adds the seconds of each call fn(fed, ...) to fed.seconds[name of fn]."""
    @functools.wraps(function)
    def wrapper(fed, *args, **kwargs):
        start = seconds(fed.device)
        result = function(fed, *args, **kwargs)
        fed.seconds[function.__name__] += seconds(fed.device) - start
        return result
    return wrapper


# --------------------------------------------------------------------------------------------------
# Random numbers: each purpose has its own stream, so the order of computation does not matter.

def _words(keys):
    """Each key as one 32-bit word: an integer as it is, a string by its CRC."""
    return [zlib.crc32(key.encode()) if isinstance(key, str) else int(key) for key in keys]


def stream(seed, *keys):
    """The numpy Generator of one purpose, for example stream(seed, "local", t, i).

    The same keys give the same numbers; different keys give independent ones.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=_words(keys)))


@contextlib.contextmanager
def seeded(seed, *keys):
    """Seeds torch's default generators by (seed, keys) inside the block, and restores them after.

    Initial weights and dropout need this, because torch draws them from these generators alone.
    """
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    sequence = np.random.SeedSequence(seed, spawn_key=_words(keys))
    number = int(sequence.generate_state(1, np.uint64)[0])
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(number)      # faster than torch.manual_seed on a CPU
        if gpus:
            torch.cuda.manual_seed_all(number)
        yield


def restrict_public(fed, public_use):
    """The federation with the public data that an algorithm may see.

    public_use   "none": no public data; "unlabeled": images alone; otherwise labels as well
    """
    if public_use == "none":
        return dataclasses.replace(fed, public=None)
    if public_use == "unlabeled" and fed.public is not None:
        return dataclasses.replace(fed, public=Data(fed.public.images, None))
    return fed


@torch.no_grad()
def output_shape(model, inputs):
    """The shape of the network's output for inputs [n, ...], a tuple, or the error it raises."""
    try:
        return tuple(model.eval()(inputs).shape)
    except Exception as error:       # of any type: it is somebody's own network
        return error


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
            return make().to(device, memory_format=torch.channels_last)

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
