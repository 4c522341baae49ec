"""Splits of a training set over clients: every rule that FedMD, FedGKT, FedGEMS and FedSDD use.

Each function takes labels (or writers, or superclasses) [N] and a numpy Generator `rng`, such as
np.random.default_rng(0), the only source of randomness. Labels can be any whole numbers. Each
function returns index arrays: int64, sorted and disjoint. Inputs are not changed. Invalid arguments
raise a ValueError of one line.

    iid, dirichlet, dirichlet_balanced,        every sample is assigned to a client
    dirichlet_equal, dirichlet_by_client,
    by_writer, fedgkt_table6
    single_writer, few_per_class,              from FedMD: most samples are assigned to no client
    by_subclass, few_of_subclasses
    hold_out, halves, hold_out_writers         two parts, such as public and private

The literature calls four different rules "Dirichlet". `dirichlet` is the one that the text of
Yurochkin et al. 2019 (arXiv:1905.12022) describes: each class is divided over the clients.
`dirichlet_balanced` is that of their code, and of FedML's, which FedGKT and FedGEMS use; A.1 of
FedGKT's paper words the plain one. `dirichlet_equal` is that of FedDF's code: its clients have
equal sizes, so that the unweighted average of the models equals the average weighted by samples.
`dirichlet_by_client` is that of Hsu et al. 2019 (arXiv:1909.06335): each client has its own shares
of the classes, and all have equal sizes. FedSDD cites Hsu et al.; that it uses FedDF's rule is
inferred from "the same setting".
"""
import numpy as np


def iid(labels, num_clients, rng):
    """Random parts of the samples whose sizes differ by at most one, the larger parts first."""
    labels = _checked(labels, num_clients)
    parts = np.array_split(rng.permutation(len(labels)), num_clients)
    return [np.sort(part) for part in parts]


def dirichlet(labels, num_clients, alpha, rng, min_size=10):
    """Clients whose shares of each class are from Dir(alpha, ..., alpha).

    A client's share is rounded to samples, down or up at random, so that the mean is the share.
    alpha      concentration: with 0.1 a client has few classes, with 100 clients are nearly alike
    min_size   samples: all shares are drawn again until each client has at least this many
    raises     ValueError: alpha is not a positive number, there are too few samples, or 1,000
               draws did not reach min_size
    """
    labels = _checked(labels, num_clients, min_size)
    classes, counts = np.unique(labels, return_counts=True)
    for _ in range(1000):
        shares = _dirichlet_shares(alpha, np.ones(num_clients), len(classes), rng)    # [C, M]
        # Rounded down alone, all cuts of a class would leave its remainder to the last client.
        shift = rng.random((len(classes), 1))
        cuts = (shares[:, :-1].cumsum(1) * counts[:, None] + shift).astype(np.int64)  # [C, M - 1]
        sizes = np.diff(cuts, axis=1, prepend=0, append=counts[:, None]).sum(0)   # [M]
        if sizes.min() >= min_size:
            break
    else:
        raise ValueError(f"none of 1000 draws of Dir({alpha}) gave each of {num_clients} clients "
                         f"{min_size} samples: raise alpha, take fewer clients, or use "
                         "dirichlet_by_client, which needs no such draw")
    parts = [np.split(rng.permutation(np.flatnonzero(labels == c)), class_cuts)
             for c, class_cuts in zip(classes, cuts)]
    return [np.sort(np.concatenate(part)) for part in zip(*parts)]


def dirichlet_balanced(labels, num_clients, alpha, rng, min_size=10):
    """Like `dirichlet`, but a client with N / num_clients or more samples gets no more classes.

    This is the rule of Yurochkin et al.'s code, and of FedML's, which FedGKT and FedGEMS use (alpha
    0.5). Classes are split in the order of their numbers, over the clients that still have fewer
    than N / num_clients samples; the shares of these clients are scaled to sum to 1.
    """
    labels = _checked(labels, num_clients, min_size)
    classes, counts = np.unique(labels, return_counts=True)
    for _ in range(1000):
        all_shares = _dirichlet_shares(alpha, np.ones(num_clients), len(classes), rng)  # [C, M]
        sizes, cuts = np.zeros(num_clients, dtype=np.int64), []
        for shares, count in zip(all_shares, counts):
            below_mean = sizes * num_clients < len(labels)                        # [M]
            shares = shares * below_mean
            if shares.sum() == 0:                # with a tiny alpha: one client gets the class
                shares[rng.choice(np.flatnonzero(below_mean))] = 1
            cuts.append((shares[:-1].cumsum() / shares.sum() * count + 1e-9).astype(np.int64))
            sizes = sizes + np.diff(cuts[-1], prepend=0, append=count)
        if sizes.min() >= min_size:
            break
    else:
        raise ValueError(f"none of 1000 draws of Dir({alpha}) gave each of {num_clients} clients "
                         f"{min_size} samples: raise alpha, take fewer clients, or use "
                         "dirichlet_by_client, which needs no such draw")
    parts = [np.split(rng.permutation(np.flatnonzero(labels == c)), class_cuts)
             for c, class_cuts in zip(classes, cuts)]
    return [np.sort(np.concatenate(part)) for part in zip(*parts)]


def dirichlet_equal(labels, num_clients, alpha, rng):
    """Non-iid clients whose sizes differ by at most one sample: the rule of FedDF's code.

    The samples are shuffled, and each group of ten clients gets its part of them; the last group
    has the clients that are left, and one that is alone there, as of 11 or 21, is iid. In each
    group `dirichlet_balanced` splits this part, with half the mean client size as min_size. Every
    client's samples are then ordered by class, and the lists of all clients are concatenated and
    cut into `num_clients` chunks of equal size: a client's surplus goes to the next client.
    """
    labels = _checked(labels, num_clients)
    order, assigned = rng.permutation(len(labels)), []
    for first in range(0, num_clients, 10):
        size = min(10, num_clients - first)                                       # clients
        begin = len(order) * first // num_clients
        end = len(order) * (first + size) // num_clients
        rows = order[begin:end]
        min_size = len(rows) // (2 * size)
        try:
            parts = dirichlet_balanced(labels[rows], size, alpha, rng, min_size)
        except ValueError as error:
            raise ValueError(f"{num_clients} clients, split {size} at a time: {error}") from None
        for part in parts:
            by_class = np.argsort(labels[rows[part]], kind="stable")
            assigned.append(rows[part[by_class]])
    chunks = np.array_split(np.concatenate(assigned), num_clients)
    return [np.sort(chunk) for chunk in chunks]


def dirichlet_by_client(labels, num_clients, alpha, rng):
    """Clients of equal sizes, each with class shares q ~ Dir(alpha p) of its own (Hsu et al. 2019).

    p is the share of each class in `labels`, so alpha is the sum of the concentrations: with ten
    classes, Hsu et al.'s 1 is as skewed as 0.1 of a Dir(alpha, ..., alpha). One client after the
    other draws a class from its q for each of its samples, and a sample of this class that nobody
    has. A class that has run out is drawn again from q. If q has only such classes, they are drawn
    in proportion to what is left. So the last clients have what the others left. Sizes differ by at
    most one, the larger first.
    """
    labels = _checked(labels, num_clients)
    classes, left = np.unique(labels, return_counts=True)
    shares = _dirichlet_shares(alpha, left / len(labels), num_clients, rng)       # [M, C]
    queues = [rng.permutation(np.flatnonzero(labels == c)) for c in classes]
    parts = []
    for i, q in enumerate(shares):
        size = (len(labels) - i - 1) // num_clients + 1
        taken = np.zeros_like(left)                                               # [C]
        while taken.sum() < size:
            possible = q * (taken < left)
            if possible.sum() == 0:
                possible = left - taken
            drawn = rng.multinomial(size - taken.sum(), possible / possible.sum())
            taken = np.minimum(taken + drawn, left)
        parts.append([queue[n - k:n] for queue, n, k in zip(queues, left, taken)])
        left = left - taken
    return [np.sort(np.concatenate(part)) for part in parts]


def by_writer(writers, num_clients, rng):
    """All samples of the writers [N] that are assigned to each client at random (FEMNIST).

    The clients' numbers of writers differ by at most one.
    """
    writers = _checked(writers)
    names, writers = np.unique(writers, return_inverse=True)
    if not 1 <= num_clients <= len(names):
        raise ValueError(f"{num_clients} clients and {len(names)} writers: from 1 to {len(names)} "
                         "clients can have a writer each")
    groups = np.array_split(rng.permutation(len(names)), num_clients)
    return [np.flatnonzero(np.isin(writers, group)) for group in groups]


# FedGKT Table 6: samples of each CIFAR-10 class (columns) for each client. Columns sum to 5,000.
FEDGKT_TABLE_6 = np.array([
    [144, 94, 1561, 133, 1099, 1466, 0, 0, 0, 0],
    [327, 28, 264, 16, 354, 2, 100, 20, 200, 3],
    [6, 6, 641, 1, 255, 4, 1, 2, 106, 1723],
    [176, 792, 100, 28, 76, 508, 991, 416, 215, 0],
    [84, 1926, 1, 408, 133, 24, 771, 0, 0, 0],
    [41, 46, 377, 541, 7, 235, 54, 1687, 666, 0],
    [134, 181, 505, 720, 123, 210, 44, 58, 663, 221],
    # The paper prints the next row without the 0 of column c4: columns 4 to 6 sum to wrong numbers.
    [87, 2, 131, 1325, 0, 1117, 704, 0, 0, 0],
    [178, 101, 5, 32, 1553, 10, 163, 9, 437, 131],
    [94, 125, 0, 147, 287, 100, 23, 217, 608, 279],
    [379, 649, 106, 90, 35, 119, 807, 819, 3, 85],
    [1306, 55, 681, 227, 202, 34, 0, 648, 0, 0],
    [1045, 13, 53, 6, 77, 70, 482, 7, 761, 494],
    [731, 883, 15, 161, 387, 552, 4, 1051, 0, 0],
    [4, 97, 467, 899, 0, 407, 50, 64, 1098, 797],
    [264, 2, 93, 266, 412, 142, 806, 2, 243, 1267]])


def fedgkt_table6(labels, num_clients, rng):
    """FedGKT's one non-iid split of CIFAR-10 (Table 6, row 7 corrected), for any class sizes.

    Each client gets the table's share of each class. Shares are rounded such that all samples are
    used. ValueError: not 16 clients, labels other than 0 to 9, or so few samples that a client has
    none.
    """
    labels = _checked(labels)
    if num_clients != 16 or not np.array_equal(np.unique(labels), np.arange(10)):
        raise ValueError("FedGKT's Table 6 is for 16 clients and 10 classes, labels 0 to 9, as "
                         "CIFAR-10 has them")
    parts = [[] for _ in range(16)]
    for c in range(10):
        rows = rng.permutation(np.flatnonzero(labels == c))
        cumulative = FEDGKT_TABLE_6[:-1, c].cumsum()                              # [15]
        cuts = np.round(cumulative * len(rows) / FEDGKT_TABLE_6[:, c].sum()).astype(np.int64)
        for part, share in zip(parts, np.split(rows, cuts)):
            part.append(share)
    parts = [np.sort(np.concatenate(part)) for part in parts]
    if min(map(len, parts)) == 0:
        raise ValueError(f"{len(labels)} samples are too few for FedGKT's Table 6: "
                         "a client would have none; use another partition")
    return parts


def single_writer(writers, num_clients, rng, min_size=18):
    """All samples of one writer [N] for each client (FedMD).

    The writers are drawn without replacement from those with at least min_size samples; the other
    writers' samples are not used. 18 is FedMD's: 3 for each of its six classes, which a writer need
    not have of each. ValueError: too few such writers.
    """
    writers = _checked(writers)
    names, sizes = np.unique(writers, return_counts=True)
    names = names[sizes >= min_size]
    if not 1 <= num_clients <= len(names):
        raise ValueError(f"{num_clients} clients and {len(names)} writers with {min_size} or more "
                         f"samples (of {len(sizes)}): each client needs such a writer, so take "
                         "fewer clients")
    chosen = rng.choice(names, num_clients, replace=False)
    return [np.flatnonzero(writers == name) for name in chosen]


def few_per_class(labels, num_clients, per_class, rng):
    """Exactly `per_class` samples of every class for each client, all different (FedMD).

    The remaining samples are not used. ValueError: a class has fewer than num_clients * per_class
    samples.
    """
    labels = _checked(labels, num_clients)
    chosen, needed = [], num_clients * per_class
    for c in np.unique(labels):
        rows = np.flatnonzero(labels == c)
        if len(rows) < needed:
            raise ValueError(f"class {c} has {len(rows)} samples: {num_clients} clients with "
                             f"per_class {per_class} need {needed}")
        chosen.append(rng.permutation(rows)[:needed].reshape(num_clients, per_class))
    return list(np.sort(np.concatenate(chosen, axis=1), axis=1))


def by_subclass(superclass, subclass, num_clients, rng):
    """For each client, one subclass [N] of every superclass [N] (FedMD's non-iid CIFAR-100).

    The subclasses of a superclass are put in random order and assigned to the clients in turn.
    Clients with the same subclass share its samples without overlap. (In FedMD's code they may
    overlap.) With fewer clients than subclasses, the other subclasses are not used. The caller
    selects the superclasses: FedMD's code uses 0, 1, 7, 9, 12, 18, and the superclass as the label.
    ValueError: a subclass has fewer samples than clients.
    """
    superclass, subclass = (_checked(x, num_clients) for x in (superclass, subclass))
    parts = [[] for _ in range(num_clients)]
    for s in np.unique(superclass):
        subclasses = rng.permutation(np.unique(subclass[superclass == s]))
        for j, c in enumerate(subclasses[:num_clients]):
            sharers = range(j, num_clients, len(subclasses))
            rows = rng.permutation(np.flatnonzero((superclass == s) & (subclass == c)))
            if len(rows) < len(sharers):
                raise ValueError(f"subclass {c} of superclass {s} has {len(rows)} samples for "
                                 f"{len(sharers)} clients: at least one each is needed, so "
                                 "take fewer clients")
            for i, share in zip(sharers, np.array_split(rows, len(sharers))):
                parts[i].append(share)
    return [np.sort(np.concatenate(part)) for part in parts]


def few_of_subclasses(labels, subclass, num_clients, per_class, rng):
    """FedMD's CIFAR-100: `by_subclass`, of which each client keeps per_class samples of each class.

    `labels` [N] are the superclasses.
    """
    parts = by_subclass(labels, subclass, num_clients, rng)
    return [part[few_per_class(np.asarray(labels)[part], 1, per_class, rng)[0]] for part in parts]


# {name: (the rule, its arguments beside num_clients and rng)}: --partition
PARTITIONS = {
    "iid": (iid, ("labels",)),
    "dirichlet": (dirichlet, ("labels", "alpha")),
    "dirichlet_balanced": (dirichlet_balanced, ("labels", "alpha")),
    "dirichlet_equal": (dirichlet_equal, ("labels", "alpha")),
    "dirichlet_by_client": (dirichlet_by_client, ("labels", "alpha")),
    "by_writer": (by_writer, ("writers",)),
    "single_writer": (single_writer, ("writers",)),
    "few_per_class": (few_per_class, ("labels", "per_class")),
    "by_subclass": (few_of_subclasses, ("labels", "subclass", "per_class")),
    "fedgkt_table6": (fedgkt_table6, ("labels",))}


def hold_out(labels, share, rng):
    """(held_out, rest): a random `share` of every class, and the remaining samples.

    The number of samples of a class is share * count, rounded down or up. Classes with the largest
    fractions are rounded up (ties at random) until the total is share * N, rounded.
    ValueError: one part would be empty.
    """
    labels = _checked(labels)
    classes, counts = np.unique(labels, return_counts=True)
    exact = np.round(share * counts, 9)      # 0.29 * 100 is 28.999999999999996 in floating point
    sizes = np.floor(exact).astype(np.int64)
    num_rounded_up = int(round(exact.sum() - sizes.sum()))
    largest_fraction_first = np.lexsort((rng.random(len(classes)), sizes - exact))
    sizes[largest_fraction_first[:num_rounded_up]] += 1
    if not 0 < sizes.sum() < len(labels):
        raise ValueError(f"a share of {share} of {len(labels)} samples leaves one part empty: "
                         "change the share, or take more samples")
    held_out = np.zeros(len(labels), dtype=bool)
    for c, size in zip(classes, sizes):
        held_out[rng.permutation(np.flatnonzero(labels == c))[:size]] = True
    return np.flatnonzero(held_out), np.flatnonzero(~held_out)


def halves(labels, rng):
    """(public, private): two halves, equal to one sample in every class and in total (FedGEMS)."""
    return hold_out(labels, 0.5, rng)


def hold_out_writers(writers, share, rng):
    """(held_out, rest): the samples of writers [N] drawn until they are a `share` of all; the rest.

    ValueError: one part would be empty.
    """
    writers = _checked(writers)
    names, counts = np.unique(writers, return_counts=True)
    order = rng.permutation(len(names))
    before = counts[order].cumsum() - counts[order]      # samples of the writers drawn before
    drawn = names[order[before < np.round(share * len(writers), 9)]]
    held_out = np.isin(writers, drawn)
    if held_out.all() or not held_out.any():
        raise ValueError(f"a share of {share} of {len(names)} writers leaves one part empty")
    return np.flatnonzero(held_out), np.flatnonzero(~held_out)


def _checked(labels, num_clients=None, min_size=1):
    """The labels (or writers, or superclasses) as an array [N].

    ValueError: they are not one number per sample; or, where num_clients is given, there is no
    client or not min_size samples (at least 1) for each.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise ValueError(f"labels have shape {list(labels.shape)}: one number per sample, [N], is "
                         "needed, not one-hot rows")
    min_size = max(min_size, 1)
    if num_clients is not None and not 1 <= num_clients <= len(labels) // min_size:
        raise ValueError(f"{len(labels)} samples cannot be split among {num_clients} clients with "
                         f"{min_size} or more each")
    return labels


def _dirichlet_shares(alpha, p, num_rows, rng):
    """[num_rows, len(p)]: rows ~ Dir(alpha p), that sum to 1."""
    if not 0 < alpha < np.inf:
        raise ValueError(f"alpha is {alpha}: a positive, finite number is needed")
    return rng.dirichlet(alpha * p, size=num_rows)
