"""Networks by name, batches of a training, prediction: the same in every algorithm.

Between rounds a model is a dict: {"architecture": name, "model": state_dict} if the server averages
models, and {"model": state_dict, "optimizer": state_dict} if its owner keeps it: a snapshot.

Every training in algorithms/ reads like this. Its batches are augmented if the run says so
(--augment), and dropout and BatchNorm are in train mode:

    model.train()
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=1, batch_size=64):
        loss = F.cross_entropy(forward(fed, model, batch), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Every prediction is of clean images, in eval mode and without gradient: `predict_logits`. It leaves
the model in the mode in which it found it.
"""
import contextlib
import copy
import itertools
from functools import partial
from typing import Literal, NamedTuple

import torch

from federation import seeded, stream
from federation.parallel import in_parallel


def network(fed, architecture, init=0):
    """A new network of this architecture; `init` picks the seed of its weights."""
    return fed.client_model(fed.architecture.index(architecture), init)


def load_model(fed, saved):
    """The network with its saved weights; saved: {"architecture": name, "model": state_dict}."""
    model = network(fed, saved["architecture"])
    model.load_state_dict(saved["model"])
    return model


def batches(num_samples, batch_size, epochs, rng, device="cpu", steps=None):
    """Yields `rows` (int64 [B]) of each batch of `epochs` shuffled passes, or of `steps` batches.

    steps    None: all batches of `epochs` passes; otherwise so many, in as many passes as needed:
             then `epochs` has no effect and may be None
    The last batch of a pass may be smaller; none is dropped.
    """
    passes = range(epochs) if steps is None else itertools.count()
    orders = (torch.from_numpy(rng.permutation(num_samples)).to(device) for _ in passes)
    all_rows = (rows for order in orders for rows in order.split(batch_size))
    yield from itertools.islice(all_rows, steps)


def shuffled(fed, images, keys, *, epochs=None, batch_size, steps=None, augment=True):
    """Yields (rows [B], batch [B, c, h, w]) of shuffled passes over `images`: of one training.

    batch     images[rows], augmented if fed.augment; with augment=False as they are
    keys      words and numbers that select the random numbers of this training: its order and its
              augmentation, and those that torch draws while it goes on, for dropout
    epochs, batch_size, steps    see `batches`
    While the loop goes on, torch's generators are seeded by `keys`; afterwards, also after `break`
    or an exception, they are as they were. So two of these loops must not be interleaved.
    """
    rng = stream(fed.seed, *keys)
    with seeded(fed.seed, *keys):
        for rows in batches(len(images), batch_size, epochs, rng, fed.device, steps):
            yield rows, fed.augment(images[rows], rng) if fed.augment and augment else images[rows]


def autocast(fed):
    """The context of a forward pass: bfloat16 with `amp`, otherwise float32.

    Without the cache: inside a caller's own autocast it would keep the weights of the first batch.
    """
    return torch.autocast(fed.device.type, torch.bfloat16, enabled=fed.amp, cache_enabled=False)


def forward(fed, model, images):
    """Logits, float32 [B, C], in the model's current mode, computed as `autocast` says.

    A training batch of one sample is duplicated and the copy's logits are dropped: BatchNorm
    on vectors, or on a 1x1 map, needs two values.
    """
    is_lone = model.training and len(images) == 1
    inputs = images.expand(2, *images.shape[1:]) if is_lone else images
    with autocast(fed):
        return model(inputs)[: len(images)].float()


@contextlib.contextmanager
def features_of(model):
    """A list of the features, float32 [B, D], of each forward pass in the block: what `classifier`,
    the network's last layer, reads."""
    features = []
    hook = model.classifier.register_forward_pre_hook(
        lambda layer, given: features.append(given[0].float()))
    yield features
    hook.remove()


def forward_with_features(fed, model, images):
    """(features [B, D], logits [B, C]) of `forward`; see `features_of`."""
    with features_of(model) as features:
        logits = forward(fed, model, images)
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


def prediction_batch(images):
    """The images in a batch of prediction: 64 on a CPU, so that a batch fits into memory that
    training has freed; 500 on a GPU, because starting the kernels of each batch takes time."""
    return 64 if images.device.type == "cpu" else 500


@torch.no_grad()
def predict_logits(fed, model, images, batch_size=None):
    """Logits, float32 [N, C], in eval mode and without gradient; the model keeps its mode.

    batch_size    None: see `prediction_batch`
    """
    batch_size = batch_size or prediction_batch(images)
    was_training = model.training
    model.eval()
    logits = [forward(fed, model, batch) for batch in images.split(batch_size) if len(batch)]
    model.train(was_training)
    return torch.cat(logits) if logits else torch.empty(0, fed.num_classes, device=fed.device)


def predict_features(fed, model, images):
    """Features, float32 [N, D], of the prediction by `predict_logits`; see `features_of`."""
    with features_of(model) as features:
        predict_logits(fed, model, images)
    return torch.cat(features)


def predict_together(fed, model, images):
    """`predict_logits` of one network by all processes: each takes some of the batches."""
    batches_of_images = images.split(prediction_batch(images))
    logits = in_parallel(fed, lambda j: predict_logits(fed, model, batches_of_images[j]),
                         range(len(batches_of_images)))
    return torch.cat(logits)


def predict_members(fed, members, images):
    """Logits, float32 [M, N, C], of M members {"architecture": name, "model": state_dict}."""
    return torch.stack(in_parallel(
        fed, lambda m: predict_logits(fed, load_model(fed, members[m]), images),
        range(len(members))))


Optimizer = Literal["sgd", "momentum", "nesterov", "adam", "amsgrad"]
OPTIMIZERS = {"sgd": torch.optim.SGD, "momentum": partial(torch.optim.SGD, momentum=0.9),
              "nesterov": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
              "adam": torch.optim.Adam, "amsgrad": partial(torch.optim.Adam, amsgrad=True)}


def snapshot(model, optimizer=None):
    """A model and its optimizer as they are kept between rounds: a dict of state_dicts."""
    return {"model": copy.deepcopy(model.state_dict()),
            "optimizer": None if optimizer is None else optimizer.state_dict()}


def restore(saved, model, optimizer):
    """Loads a snapshot into `model` and into its new `optimizer`.

    The optimizer's learning rate stays, because it may fall between rounds. A snapshot without an
    optimizer leaves it new.
    """
    model.load_state_dict(saved["model"])
    if saved["optimizer"] is not None:
        lr = optimizer.param_groups[0]["lr"]
        kept = copy.deepcopy(saved["optimizer"])         # steps change it in place
        for numbers in kept["state"].values():
            if "step" in numbers:
                numbers["step"] = numbers["step"].cpu()  # on a GPU, Adam would wait for it
        optimizer.load_state_dict(kept)
        optimizer.param_groups[0]["lr"] = lr


class Best(NamedTuple):
    """For early stopping: the best accuracy so far, and the epoch, round or step of it."""

    accuracy: float = float("-inf")
    when: int = 0


def best_of(best, accuracy, now, min_delta=0.0):
    """The `Best` after an accuracy was measured: a new one only if it is above by min_delta."""
    return Best(accuracy, now) if accuracy > best.accuracy + min_delta else best
