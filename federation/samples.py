"""What an algorithm sees: samples, networks, a seed."""
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from federation.randomness import stream


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


def as_they_are(images, rng):
    """The augmentation of a run without --augment: none."""
    return images


@dataclass
class Federation:
    """The input of every algorithm: samples, networks, seed. Nothing in it ever changes."""

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
    num_public_classes: int = 0                  # of a joint output layer, in which they come first
    validation: Data | None = None               # no client's: for early stopping, learning rates,
    #                                              and FedDF's drop_worst
    augment: Callable[[Tensor, np.random.Generator], Tensor] = as_they_are   # augment(images, rng):
    #                                              images, cropped and flipped at random
    amp: bool = False                            # networks compute in bfloat16: see `prepared`
    threads: int | None = None                   # CPU threads while the server trains; None: as now

    def __repr__(self):
        """One line: dataclass would print all images."""
        return (f"Federation({len(self.private)} clients, {self.num_classes} classes, images "
                f"{list(self.test.images.shape[1:])}, seed {self.seed})")

    def global_model(self, init=0):
        """A new network of the architecture that all clients have; see `client_model`."""
        return self.client_model(0, init)


def public_view(fed, t):
    """The public samples of round t: with --augment each image is cropped and flipped, once.

    Whoever predicts or learns public images in a round sees the same view, so that a teacher's
    logits are of the images that its student learns.
    """
    images = fed.augment(fed.public.images, stream(fed.seed, "view", t))
    return fed.public._replace(images=images)


def restrict_public(fed, public_use):
    """The federation with the public data that an algorithm may see.

    public_use   "none": no public data; "unlabeled": images alone; otherwise labels as well
    """
    if public_use == "none":
        return dataclasses.replace(fed, public=None)
    if public_use == "unlabeled" and fed.public is not None:
        return dataclasses.replace(fed, public=Data(fed.public.images, None))
    return fed
