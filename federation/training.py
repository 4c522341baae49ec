"""The batches of a training, and prediction: the same in every algorithm.

Training on a client's own images reads like this in algorithms/. With --augment they are cropped
and flipped; dropout and BatchNorm are in train mode:

    model.train()
    with random_numbers(fed, "local", t, i) as rng:
        for rows in minibatches(images, batch_size, rng, epochs):
            logits = model(fed.augment(images[rows], rng))
            loss = F.cross_entropy(logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

Every prediction is in eval mode and without gradient: `predict`. Test images are as they are;
public ones are cropped once in a round, for prediction and training: `public_view`.
"""
import itertools

import torch

from federation.networks import loaded
from federation.parallel import parallel_map


def minibatches(images, batch_size, rng, epochs=None, steps=None):
    """Yields the rows, int64 [B], of each batch of `epochs` shuffled passes over the images.

    The last batch of a pass may be smaller; none is dropped.
    steps    None, or a number: so many batches, in as many passes as they need
    """
    passes = range(epochs) if steps is None else itertools.count()
    orders = (torch.from_numpy(rng.permutation(len(images))).to(images.device) for _ in passes)
    all_rows = (rows for order in orders for rows in order.split(batch_size))
    yield from itertools.islice(all_rows, steps)


def prediction_batch(images):
    """The images in a batch of prediction: 64 on a CPU, so that a batch fits into memory that
    training has freed; 500 on a GPU, because starting the kernels of each batch takes time."""
    return 64 if images.device.type == "cpu" else 500


@torch.no_grad()
def predict(model, images):
    """Logits, float32 [N, C], of images [N, c, h, w]: in eval mode, without gradient.

    Afterwards the model is in the mode in which it was.
    """
    was_training = model.training
    model.eval()
    try:
        if len(images) == 0:
            return model(images.new_zeros(1, *images.shape[1:]))[:0]
        return torch.cat([model(batch) for batch in images.split(prediction_batch(images))])
    finally:
        model.train(was_training)


def predict_by_all(fed, model, images):
    """`predict` of one network by all processes, each of which takes some of the batches."""
    parts = images.split(prediction_batch(images))
    logits = parallel_map(fed, range(len(parts)), lambda j: predict(model, parts[j]))
    return torch.cat([*logits.values()])


def predict_models(fed, models, images):
    """Logits, float32 [M, N, C], of M models (weights of one network), by all processes."""
    if len(models) == 1:
        return predict_by_all(fed, loaded(fed.global_model(), models[0]), images)[None]
    logits = parallel_map(fed, range(len(models)),
                          lambda m: predict(loaded(fed.global_model(), models[m]), images))
    return torch.stack([*logits.values()])
