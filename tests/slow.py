"""Slow rounds: softmax regression, one sample and one number at a time."""
import itertools

import numpy as np
import torch
from torch import nn

from federation import make_rng, minibatches
from reference.linear import cross_entropy_slope, gradient, logits
from reference.linear import softmax as slow_softmax


def slow_learner(model):
    """The weights [C, 4] and the biases [C] of a linear network, or of its state_dict, in double
    precision."""
    state = model if isinstance(model, dict) else model.state_dict()
    return [state[name].double().clone().requires_grad_() for name in ("1.weight", "1.bias")]


def numbers(network):
    """Weights and biases as reference/linear.py has them, of a model or of a list of tensors."""
    values = network.parameters() if isinstance(network, nn.Module) else network
    return [w if isinstance(w, list) else w.tolist() for w in values]


def pixels(images):
    return images.flatten(1).tolist()


def batches(size, batch_size, epochs, rng, steps=None):
    """The batches of `minibatches` of so many samples."""
    return minibatches(torch.empty(size, 0), batch_size, rng, epochs, steps)


def drawn(fed, size, batch_size, epochs, *keys):
    """The batches of a training as lists of positions."""
    rng = make_rng(fed.seed, *keys)
    return [rows.tolist() for rows in batches(size, batch_size, epochs, rng)]


def update_by(make, network):
    """update(w, gradient) as in reference/: steps of the optimizer make(parameters), in double."""
    parameters = [torch.tensor(w, dtype=torch.float64) for w in network]
    optimizer = make(parameters)

    def update(network, gradient):
        for w, now, slopes in zip(parameters, network, gradient):
            w.data, w.grad = (torch.tensor(x, dtype=torch.float64) for x in (now, slopes))
        optimizer.step()
        return numbers(parameters)
    return update


def slow_logits(learner, images):
    """[N][C]"""
    network = numbers(learner)
    return [logits(network, x) for x in pixels(images)]


def slow_accuracy(learner, data):
    hits = [z.index(max(z)) == y
            for z, y in zip(slow_logits(learner, data.images), data.labels.tolist())]
    return sum(hits) / len(hits)


def slow_own_accuracy(learner, test, own):
    """`own_share` of a linear network's answers."""
    return own_share([z.index(max(z)) for z in slow_logits(learner, test.images)], test, own)


def own_share(answers, test, own):
    """The accuracy on each class of a client's own images, averaged with its shares of them."""
    right = [(y, a == y) for a, y in zip(answers, test.labels.tolist())]
    of_class = {c: [x for y, x in right if y == c] for c in set(own.labels.tolist())}
    return sum(sum(of_class[y]) / len(of_class[y]) for y in own.labels.tolist()) / len(own.labels)


def slow_slopes(learner, images, rows, slope):
    """Of the mean of single samples' losses over rows, by the weights [C, 4] and the biases [C].

    slope(n, z)    the derivative of sample n's loss by its logits z
    """
    slopes = gradient(numbers(learner), pixels(images), rows.tolist(), slope)
    return [torch.tensor(w, dtype=torch.float64) for w in slopes]


def slow_training(learner, update, images, slope, *, epochs, batch_size, rng, steps=None,
                  kernel_l2=0.0, mu=0.0):
    """Steps of `update` on the batches of all epochs, or on the first ones, with two penalties:
    kernel_l2 weights² and mu / 2 (w - start)²."""
    start = [w.detach().clone() for w in learner]
    for rows in itertools.islice(minibatches(images, batch_size, rng, epochs), steps):
        for w, before, slopes in zip(learner, start, slow_slopes(learner, images, rows, slope)):
            w.grad = slopes + mu * (w.detach() - before)
        learner[0].grad += kernel_l2 * 2 * learner[0].detach()
        update.step()


def towards_labels(labels):
    return lambda n, z: cross_entropy_slope(z, int(labels[n]))


def towards_probs(targets):
    """Of - sum_c y_c ln q_c: q_c sum_k y_k - y_c."""
    return lambda n, z: [q * sum(targets[n]) - y for q, y in zip(slow_softmax(z), targets[n])]


def doubles(state):
    """A state_dict of numbers in double precision, to be trained."""
    return {name: w.double().clone().requires_grad_() for name, w in state.items()}


def slow_forward(w, images):
    """(features, logits): `last_layer`'s features are the pixels, `with_features` has two."""
    x = images.double().flatten(1)
    if "hidden.weight" in w:
        x = x @ w["hidden.weight"].T + w["hidden.bias"]
    return x, x @ w["classifier.weight"].T + w["classifier.bias"]


def near(state, slow, atol=1e-5):
    """Of two state_dicts, one in double precision."""
    return all(torch.allclose(state[name].double(), w, atol=atol) for name, w in slow.items())


def close(model_state, learner, atol=1e-5):
    return all(np.allclose(model_state[name].numpy(), w, atol=atol)
               for name, w in zip(("1.weight", "1.bias"), numbers(learner)))
