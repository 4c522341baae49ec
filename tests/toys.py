"""Small federations whose rounds can be followed by hand, with linear networks and images of
1 x 2 x 2; slow training, one number at a time; small data sets."""
import dataclasses
import io
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from algorithms import ALGORITHMS
from federation import uploads
from federation.training import batches
from docs.reading.sources import order
from federation import Data, Federation, seeded, stream
from fedkd_minimal import main
from reference.linear import cross_entropy_slope, gradient, logits
from reference.linear import softmax as slow_softmax

ROOT = Path(__file__).parents[1]
SHAPE = (1, 2, 2)
# The project's own algorithms, without one that a user adds: their files are in docs/READING.md and
# have notation, departures, defaults of a paper.
OF_PAPERS = [name for name, algorithm in ALGORITHMS.items()
             if algorithm.run.__module__.removeprefix("algorithms.") in order()]


def shipped():
    """The names of the project's own files in algorithms/: those of docs/READING.md, and what they
    import. Tests of texts look at these; a file that a user adds is held to the contracts alone."""
    names = order()
    for name in names:                                       # the list grows
        text = (ROOT / "algorithms" / f"{name}.py").read_text()
        for other in re.findall(r"^from algorithms\.(\w+) import", text, re.M):
            if other not in names:
                names.append(other)
    return names


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


def constant(*logits):
    """A state_dict of `linear` that gives every image these logits."""
    return {"1.weight": torch.zeros(len(logits), 4), "1.bias": torch.tensor(logits)}


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
        with seeded(seed, "init", init):
            return own[i](num_classes)

    def server_model(init=0):
        with seeded(seed, "server init", init):
            return server(num_classes)

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


def refused(capsys, argv, *words, run=main):
    """The command ends with status 2 and one line on standard error, which holds the words."""
    with pytest.raises(SystemExit) as stop:
        run([str(x) for x in argv])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.count("\n") == 1, error
    assert error.startswith("fedkd_minimal.py: error: "), error
    for word in words:
        assert str(word) in error, error
    return error


def receives(monkeypatch, change):
    """{"attack": True} for a run whose server receives change(uploads [M, n, C], rows [n])."""
    monkeypatch.setattr(uploads, "attack_rows",
                        lambda attack, uploads, client_ids, rows: change(uploads, rows))
    return {"attack": True}


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


# ------------------- slow rounds: softmax regression, one sample and one number at a time

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


def drawn(fed, size, batch_size, epochs, *keys):
    """The batches of a training as lists of positions."""
    rng = stream(fed.seed, *keys)
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
    """The accuracy on each class of a client's own images, averaged with its shares of them."""
    labels, found = own.labels.tolist(), 0
    for c in set(labels):
        of_class = Data(test.images[test.labels == c], test.labels[test.labels == c])
        found += labels.count(c) / len(labels) * slow_accuracy(learner, of_class)
    return found


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
    for rows in itertools.islice(batches(len(images), batch_size, epochs, rng), steps):
        for w, before, slopes in zip(learner, start, slow_slopes(learner, images, rows, slope)):
            w.grad = slopes + mu * (w.detach() - before)
        learner[0].grad += kernel_l2 * 2 * learner[0].detach()
        update.step()


def towards_labels(labels):
    return lambda n, z: cross_entropy_slope(z, int(labels[n]))


def towards_probs(targets):
    """Of - sum_c y_c ln q_c: q_c sum_k y_k - y_c."""
    return lambda n, z: [q * sum(targets[n]) - y for q, y in zip(slow_softmax(z), targets[n])]


def close(model_state, learner, atol=1e-5):
    return all(np.allclose(model_state[name].numpy(), w, atol=atol)
               for name, w in zip(("1.weight", "1.bias"), numbers(learner)))
