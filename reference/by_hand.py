"""What the four rounds by hand share, such as `python -m reference.fedsdd`: each prints a round,
every number under its equation, from the numbers at the top of its file.

A network is a table: its row n are its logits of image n. In the words of linear.py image n is the
n-th unit vector, and the network is one layer without bias. So a step of SGD on a batch of B images
moves the row of each by lr / B (target - prediction), two lists of probabilities, and no other row.
"""
import sys

from reference.linear import softmax


def images(count):
    return [[float(j == n) for j in range(count)] for n in range(count)]


def matrix(name, rows, height, width):
    """The rows, if there are `height` of `width` numbers each; `name` is for the error."""
    fit(len(rows) == height and all(len(row) == width for row in rows),
        f"{name} needs {height} rows of {width} numbers each; its rows have {[*map(len, rows)]}")
    return [[*row] for row in rows]


def network(name, rows, num_images, width):
    """The network with this table: a row of `width` numbers for each image."""
    return [[[*column] for column in zip(*matrix(name, rows, num_images, width))], []]


def table(network):
    """The rows of a network, or of its first layer."""
    return [[*row] for row in zip(*network[0])]


def samples(name, pairs, num_images, num_classes):
    """[(x, label)] of [(number of an image, label)]."""
    fit(pairs and all(n in range(num_images) and y in range(num_classes) for n, y in pairs),
        f"{name} needs pairs (an image, 0 to {num_images - 1}; a label, 0 to {num_classes - 1})")
    return [(images(num_images)[n], y) for n, y in pairs]


def fit(holds, line):
    """Unless it holds, the program ends with exit status 2 and this line."""
    if not holds:
        print(line, file=sys.stderr)
        sys.exit(2)


def say(step, text):
    """A heading: a step or an equation, and what is computed."""
    print(f"\n{step:14}{text}")


def show(name, rows):
    """A line of numbers: one group for each row, as wide as the columns of `heads`."""
    print(f"  {name:28}" + "  ".join(" ".join(f"{v:7.4f}" for v in row) for row in rows))


def heads(numbers, width):
    """The line over rows: the image of each group of so many numbers."""
    print(" " * 30 + "  ".join(f"image {n}".rjust(8 * width - 1) for n in numbers))


def text_of_kl(teacher, z, temperature=1.0):
    """The sum in `linear.kl`, with numbers: "T² (0.9 ln (0.9 / 0.5) + 0.1 ln (0.1 / 0.5))"."""
    p, q = (softmax([v / temperature for v in values]) for values in (teacher, z))
    terms = " + ".join(f"{a:.4f} ln ({a:.4f} / {b:.4f})" for a, b in zip(p, q))
    return terms if temperature == 1 else f"T² ({terms})"


def text_of_ce(z, label):
    return f"- ln {softmax(z)[label]:.4f}"
