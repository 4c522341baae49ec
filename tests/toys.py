"""A tiny federation whose rounds can be followed by hand: linear networks, images of 1 x 2 x 2, and
a small data set."""
import dataclasses
import io
from collections import OrderedDict
from functools import partial

import numpy as np
import torch
from torch import nn

from federation import Data, Federation, draw_clients, new_network

SHAPE = (1, 2, 2)


def linear(num_classes=3):
    """softmax regression on the four pixels: parameters 1.weight [C, 4] and 1.bias [C]."""
    return nn.Sequential(nn.Flatten(), nn.Linear(4, num_classes))


def with_batchnorm(num_classes=3):
    """With buffers 0.running_mean [1], 0.running_var and the counter 0.num_batches_tracked."""
    return nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(4, num_classes))


def with_dropout(num_classes=3):
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, num_classes))


def with_hidden_layer(num_classes=3):
    """Another network than `linear`: two hidden units."""
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, num_classes))


def last_layer(num_classes=3):
    """As `linear`; its layer has the name `classifier`, so its features are the four pixels."""
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), classifier=nn.Linear(4, num_classes)))


def with_features(num_classes=3):
    """Two features of an image, hidden.weight [2, 4] and hidden.bias [2], and a `classifier`."""
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), hidden=nn.Linear(4, 2),
                                     classifier=nn.Linear(2, num_classes)))


def normed(num_classes=3):
    """`last_layer` behind BatchNorm and dropout."""
    return nn.Sequential(OrderedDict(norm=nn.BatchNorm2d(1), flatten=nn.Flatten(),
                                     dropout=nn.Dropout(0.5), classifier=nn.Linear(4, num_classes)))


def constant(*logits):
    """A state_dict of `linear` that gives every image these logits."""
    return {"1.weight": torch.zeros(len(logits), 4), "1.bias": torch.tensor(logits)}


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def samples(count, num_classes=3, seed=0):
    """Random images whose class is where their mean lies, so that there is something to learn."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(num_classes, size=count)
    images = rng.normal(size=(count, *SHAPE)) + labels[:, None, None, None]
    return Data(torch.tensor(images, dtype=torch.float32), torch.tensor(labels))


def federation(sizes=(5, 3, 4, 6), network=linear, seed=0, num_public=8, num_classes=3,
               server=with_hidden_layer, **changes):
    """A client with so many samples for each of sizes; of several networks it has i mod len."""
    networks = network if isinstance(network, tuple) else (network,)
    own = [networks[i % len(networks)] for i in range(len(sizes))]

    def client_model(i, init=0):
        return new_network(partial(own[i], num_classes), seed, "init", init, device="cpu",
                           amp=changes.get("amp", False))

    def server_model(init=0):
        return new_network(partial(server, num_classes), seed, "server init", init, device="cpu",
                           amp=changes.get("amp", False))

    return Federation(**{
        "private": [samples(size, num_classes, seed=100 + i) for i, size in enumerate(sizes)],
        "test": samples(40, num_classes, 1),
        "num_classes": num_classes, "client_model": client_model, "server_model": server_model,
        "architecture": [make.__name__ for make in own], "seed": seed,
        "device": torch.device("cpu"),
        "public": Data(samples(num_public, num_classes, 2).images, None), **changes})


def labeled(**changes):
    """A federation whose public samples have labels: 8 of them, or `num_public`."""
    fed = federation(**changes)
    return dataclasses.replace(fed, public=samples(len(fed.public.images), fed.num_classes, seed=2))


def same(a, b):
    """True if two nested states are equal bit for bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def without_seconds(metrics):
    return {key: value for key, value in metrics.items() if not key.endswith("_seconds")}


def last(generator):
    """The (metrics, state) of the last round."""
    *_, result = generator
    return result


def arrays(num_train=96, num_test=40, num_classes=3, shape=(8, 8)):
    """What a .npz data set holds: noisy images whose brightness tells the class."""
    rng = np.random.default_rng(0)
    made = {}
    for part, size in [("train", num_train), ("test", num_test)]:
        y = np.arange(size) % num_classes
        noise = rng.integers(0, 80, (size, *shape))
        x = np.clip(60 * y.reshape(-1, *[1] * len(shape)) + noise, 0, 255)
        made |= {f"x_{part}": x.astype(np.uint8), f"y_{part}": y}
    return made


def rounds(algorithm, fed, state=None, attack=None, **settings):
    """The rounds of an algorithm, a module of algorithms/ or an `Algorithm`, with these settings
    of its Config, after `state`."""
    more = {} if attack is None else {"attack": attack}
    return algorithm.run(fed, algorithm.Config(**settings), state, **more)


class Change:
    """An attack after which the server receives change(uploads [M, n, C], rows [n])."""

    def __init__(self, change):
        self.change = change

    def poison_rows(self, uploads, rows):
        return dict(zip(uploads, self.change(torch.stack([*uploads.values()]), rows)))


def loaded(model, weights):
    """The network after a copy of these weights into it."""
    model.load_state_dict(weights)
    return model


def sample_clients(num_clients, share, rng):
    return draw_clients(range(num_clients), share, rng)


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)
