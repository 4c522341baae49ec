"""What the pages of this folder share: networks of linear layers, in plain Python.

A network is a list [weight, bias, weight, bias, ...]: weight[c][j] and bias[c] are numbers. A layer
without a bias has [] in its place.
x    an image: the list of its pixels (for FedGKT's server a feature map: a list of numbers)
z    the logits of one sample: a list of one number for each class
There is no activation between the layers; the networks that the tests compare with have none.
"""
import math


def layer_outputs(network, x):
    """What comes out of each layer; the last one gives the logits."""
    outputs = []
    for weight, bias in zip(network[::2], network[1::2]):
        x = [sum(w * v for w, v in zip(row, x)) + b
             for row, b in zip(weight, bias or [0.0] * len(weight))]
        outputs.append(x)
    return outputs


def logits(network, x):
    return layer_outputs(network, x)[-1]


def predicted(z):
    """The class with the largest logit."""
    return z.index(max(z))


def softmax(z):
    exponentials = [math.exp(v - max(z)) for v in z]
    return [e / sum(exponentials) for e in exponentials]


def log_softmax(z):
    """ln softmax(z), which is finite where softmax(z) is too small for a float."""
    return [v - max(z) - math.log(sum(math.exp(u - max(z)) for u in z)) for v in z]


def cross_entropy(z, label):
    """CE = -ln softmax(z)[label]"""
    return -log_softmax(z)[label]


def kl(teacher, z, temperature=1.0):
    """temperature² KL(p || q) = temperature² sum of p ln (p / q); p and q as in `kl_slope`."""
    log_p, log_q = (log_softmax([v / temperature for v in values]) for values in (teacher, z))
    return temperature**2 * sum(math.exp(a) * (a - b) for a, b in zip(log_p, log_q))


def cross_entropy_slope(z, label):
    """The derivative of -ln p[label] by z, with p = softmax(z): p - (1 at the label, else 0)."""
    return [p - (c == label) for c, p in enumerate(softmax(z))]


def kl_slope(z, teacher, temperature=1.0):
    """The derivative by z of temperature² KL(p || q), Hinton's order and factor (arXiv:1503.02531):
    p and q are the softmax of teacher / temperature and of z / temperature."""
    p, q = (softmax([v / temperature for v in values]) for values in (teacher, z))
    return [temperature * (q_c - p_c) for q_c, p_c in zip(q, p)]


def gradient(network, images, rows, slope):
    """The gradient of the mean loss of a batch, shaped like the network: backpropagation by hand.

    rows           the batch: positions in images
    slope(n, z)    the derivative of sample n's loss by its logits z
    """
    total = scaled(0.0, network)
    for n in rows:
        inputs = [images[n], *layer_outputs(network, images[n])]
        delta = scaled(1 / len(rows), slope(n, inputs.pop()))
        for weight, of_weight, of_bias in reversed([*zip(network[::2], total[::2], total[1::2])]):
            x = inputs.pop()
            for c, d in enumerate(delta):
                if of_bias:
                    of_bias[c] += d
                for j, v in enumerate(x):
                    of_weight[c][j] += d * v
            delta = [sum(row[j] * d for row, d in zip(weight, delta)) for j in range(len(x))]
    return total


def train(network, images, batches, slope, update):
    """The network after a step on each batch; update(network, gradient) gives the next network."""
    for rows in batches:
        network = update(network, gradient(network, images, rows, slope))
    return network


def sgd(lr):
    """The update w <- w - lr g."""
    return lambda network, g: added(network, scaled(-lr, g))


def scaled(factor, values):
    """factor times each number of nested lists."""
    return [scaled(factor, v) for v in values] if isinstance(values, list) else factor * values


def added(*values):
    """The sum of nested lists of the same shape, number by number."""
    return [added(*v) for v in zip(*values)] if isinstance(values[0], list) else sum(values)


def average(values, weights):
    """The weighted mean of nested lists of the same shape, number by number."""
    return added(*[scaled(w / sum(weights), v) for w, v in zip(weights, values)])
