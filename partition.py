"""Who holds which samples: every split of a training set over clients that the papers use.

Each function takes labels (or writers, or superclasses) [N] of any whole numbers and a numpy Generator `rng`, draws
from nothing else, changes no input, and returns index arrays: int64, sorted, no sample in two of them. Bad numbers are
a ValueError of one line.

    iid, dirichlet, dirichlet_balanced, dirichlet_equal, by_writer    every sample is somebody's
    single_writer, few_per_class, by_subclass                         FedMD's: most samples are nobody's
    hold_out, halves                                                  two parts, such as public and private

Three rules are called "Dirichlet" in the literature, and their clients differ: `dirichlet` is the plain one,
`dirichlet_balanced` FedML's (so FedGKT's and FedGEMS's), `dirichlet_equal` FedDF's (so FedSDD's), whose clients are all
of one size, so that its uniform average of models equals the one weighted by samples.
"""
import numpy as np


def iid(labels, num_clients, rng):
    """Shuffled and cut into `num_clients` parts whose sizes differ by at most one, the first the larger. Needs `_check_clients`."""
    _check_clients(len(labels), num_clients)
    return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), num_clients)]


def dirichlet(labels, num_clients, alpha, rng, min_size=10):
    """Each class is dealt by its own shares ~ Dir(alpha, ..., alpha) over the clients (Hsu et al. 2019).

    alpha      concentration: 0.1 gives a client few classes, 100 nearly all of them alike
    min_size   samples: everything is redrawn until each client has that many
    raises     ValueError: alpha not a positive number, too few samples, or no such draw in 1,000
    Needs `_check_clients` and `_dirichlet_shares`.
    """
    labels = np.asarray(labels)
    _check_clients(len(labels), num_clients, min_size)
    classes, counts = np.unique(labels, return_counts=True)
    for _ in range(1000):
        shares = _dirichlet_shares(alpha, len(classes), num_clients, rng)                   # [C, M]
        # [C, M - 1]; without the 1e-9 a sum of shares of 0.999... would leave one sample to a last client of share 0.
        cuts = (shares[:, :-1].cumsum(1) * counts[:, None] + 1e-9).astype(np.int64)
        sizes = np.diff(cuts, axis=1, prepend=0, append=counts[:, None]).sum(0)             # [M]
        if sizes.min() >= min_size:
            break
    else:
        raise ValueError(f"no draw of Dir({alpha}) in 1000 gave each of {num_clients} clients {min_size} samples: "
                         "raise alpha, or lower min_size or the number of clients")
    parts = [np.split(rng.permutation(np.flatnonzero(labels == c)), cut) for c, cut in zip(classes, cuts)]
    return [np.sort(np.concatenate(part)) for part in zip(*parts)]


def dirichlet_balanced(labels, num_clients, alpha, rng, min_size=10):
    """Like `dirichlet`, but a client with N / num_clients samples or more gets nothing of the later classes.

    FedML's rule, hence FedGKT's and FedGEMS's (alpha 0.5). Classes go in the order of their numbers; the shares of the
    clients that still have room are scaled up to sum to 1. Arguments and errors as in `dirichlet`. Needs `_check_clients`
    and `_dirichlet_shares`.
    """
    labels = np.asarray(labels)
    _check_clients(len(labels), num_clients, min_size)
    classes, counts = np.unique(labels, return_counts=True)
    for _ in range(1000):
        all_shares = _dirichlet_shares(alpha, len(classes), num_clients, rng)               # [C, M]
        sizes, cuts = np.zeros(num_clients, dtype=np.int64), []
        for shares, count in zip(all_shares, counts):
            room = sizes * num_clients < len(labels)
            shares = shares * room
            if shares.sum() == 0:                                         # tiny alpha: its limit, one client
                shares[rng.choice(np.flatnonzero(room))] = 1
            cuts.append((shares[:-1].cumsum() / shares.sum() * count + 1e-9).astype(np.int64))
            sizes = sizes + np.diff(cuts[-1], prepend=0, append=count)
        if sizes.min() >= min_size:
            break
    else:
        raise ValueError(f"no balanced draw of Dir({alpha}) in 1000 gave each of {num_clients} clients {min_size} "
                         "samples: raise alpha, or lower min_size or the number of clients")
    parts = [np.split(rng.permutation(np.flatnonzero(labels == c)), cut) for c, cut in zip(classes, cuts)]
    return [np.sort(np.concatenate(part)) for part in zip(*parts)]


def dirichlet_equal(labels, num_clients, alpha, rng):
    """FedDF's rule: non-iid clients of one size (to one sample).

    The samples are shuffled and the clients taken in groups of at most ten, each with its part of the samples. In a
    group they are dealt as in `dirichlet_balanced`, redrawn until the smallest client has half of the group's mean.
    Then the lists of all clients (class by class in each) are laid end to end and cut into `num_clients` equal chunks:
    what one client has too much falls to the next. Fewer than ten clients are one group. Errors as in `dirichlet`.
    Needs `_check_clients` and `dirichlet_balanced`.
    """
    labels = np.asarray(labels)
    _check_clients(len(labels), num_clients)
    order, dealt = rng.permutation(len(labels)), []
    for first in range(0, num_clients, 10):
        size = min(10, num_clients - first)
        rows = order[len(order) * first // num_clients:len(order) * (first + size) // num_clients]
        for part in dirichlet_balanced(labels[rows], size, alpha, rng, min_size=len(rows) // (2 * size)):
            dealt.append(rows[part[np.argsort(labels[rows[part]], kind="stable")]])
    return [np.sort(chunk) for chunk in np.array_split(np.concatenate(dealt), num_clients)]


def by_writer(writers, num_clients, rng):
    """Whole writers [N] dealt at random, to each client as many (to one): nobody's samples are split (FEMNIST)."""
    names, writers = np.unique(writers, return_inverse=True)
    if not 1 <= num_clients <= len(names):
        raise ValueError(f"{num_clients} clients and {len(names)} writers: from 1 client to one for each writer")
    return [np.flatnonzero(np.isin(writers, mine)) for mine in np.array_split(rng.permutation(len(names)), num_clients)]


FEDGKT_TABLE_6 = np.array([              # samples of each CIFAR-10 class (columns) for each client; columns sum to 5,000
    [144, 94, 1561, 133, 1099, 1466, 0, 0, 0, 0],
    [327, 28, 264, 16, 354, 2, 100, 20, 200, 3],
    [6, 6, 641, 1, 255, 4, 1, 2, 106, 1723],
    [176, 792, 100, 28, 76, 508, 991, 416, 215, 0],
    [84, 1926, 1, 408, 133, 24, 771, 0, 0, 0],
    [41, 46, 377, 541, 7, 235, 54, 1687, 666, 0],
    [134, 181, 505, 720, 123, 210, 44, 58, 663, 221],
    [87, 2, 131, 1325, 0, 1117, 704, 0, 0, 0],       # printed without the 0 of c4, which makes columns 4 to 6 sum wrongly
    [178, 101, 5, 32, 1553, 10, 163, 9, 437, 131],
    [94, 125, 0, 147, 287, 100, 23, 217, 608, 279],
    [379, 649, 106, 90, 35, 119, 807, 819, 3, 85],
    [1306, 55, 681, 227, 202, 34, 0, 648, 0, 0],
    [1045, 13, 53, 6, 77, 70, 482, 7, 761, 494],
    [731, 883, 15, 161, 387, 552, 4, 1051, 0, 0],
    [4, 97, 467, 899, 0, 407, 50, 64, 1098, 797],
    [264, 2, 93, 266, 412, 142, 806, 2, 243, 1267]])


def fedgkt_table6(labels, num_clients, rng):
    """FedGKT's one non-iid split of CIFAR-10 (appendix, Table 6, its row 7 put right), scaled to classes of any size.

    Which samples a client gets is drawn; how many of each class is the table's share of that class, rounded so that none is
    left. ValueError: not 16 clients, labels other than 0 to 9, or so few samples that a client would have none. Needs
    `FEDGKT_TABLE_6`.
    """
    labels = np.asarray(labels)
    if num_clients != 16 or not np.array_equal(np.unique(labels), np.arange(10)):
        raise ValueError("FedGKT's Table 6 is for 16 clients and 10 classes")
    parts = [[] for _ in range(16)]
    for c in range(10):
        rows = rng.permutation(np.flatnonzero(labels == c))
        cuts = np.round(FEDGKT_TABLE_6[:-1, c].cumsum() * len(rows) / FEDGKT_TABLE_6[:, c].sum()).astype(np.int64)
        for part, share in zip(parts, np.split(rows, cuts)):
            part.append(share)
    parts = [np.sort(np.concatenate(part)) for part in parts]
    if min(map(len, parts)) == 0:
        raise ValueError(f"{len(labels)} samples are too few for FedGKT's Table 6: a client would have none")
    return parts


def single_writer(writers, num_clients, rng):
    """All samples of one writer [N] for each client, drawn without replacement; the other writers are nobody's (FedMD)."""
    names = np.unique(writers)
    if not 1 <= num_clients <= len(names):
        raise ValueError(f"{num_clients} clients and {len(names)} writers: from 1 client to one for each writer")
    return [np.flatnonzero(writers == mine) for mine in rng.choice(names, num_clients, replace=False)]


def few_per_class(labels, num_clients, per_class, rng):
    """Exactly `per_class` samples of every class for each client, all different; the rest is nobody's (FedMD).

    ValueError names the class that has fewer than num_clients * per_class samples. Needs `_check_clients`.
    """
    labels = np.asarray(labels)
    _check_clients(len(labels), num_clients)
    if per_class < 1:
        raise ValueError(f"per_class is {per_class}: at least 1")
    chosen = []
    for c in np.unique(labels):
        rows = np.flatnonzero(labels == c)
        if len(rows) < num_clients * per_class:
            raise ValueError(f"class {c} has {len(rows)} samples: {num_clients} clients with {per_class} each need "
                             f"{num_clients * per_class}")
        chosen.append(rng.permutation(rows)[:num_clients * per_class].reshape(num_clients, per_class))
    return list(np.sort(np.concatenate(chosen, axis=1), axis=1))


def by_subclass(superclass, subclass, num_clients, rng):
    """In every superclass [N] each client has samples of one subclass [N] only (FedMD's non-iid CIFAR-100).

    The subclasses of a superclass, in an order drawn from `rng`, are dealt round and round; clients that meet at one
    share out its samples, none in two of them (FedMD's code lets them overlap). With fewer clients than subclasses, the
    other subclasses are nobody's. Callers choose the superclasses: FedMD's code uses 0, 1, 7, 9, 12, 18 (and takes
    the superclass as the label). ValueError names a subclass that has fewer samples than clients. Needs
    `_check_clients`.
    """
    superclass, subclass = np.asarray(superclass), np.asarray(subclass)
    _check_clients(len(superclass), num_clients)
    parts = [[] for _ in range(num_clients)]
    for s in np.unique(superclass):
        subclasses = rng.permutation(np.unique(subclass[superclass == s]))
        for j, c in enumerate(subclasses[:num_clients]):
            sharers = range(j, num_clients, len(subclasses))
            rows = rng.permutation(np.flatnonzero((superclass == s) & (subclass == c)))
            if len(rows) < len(sharers):
                raise ValueError(f"subclass {c} of superclass {s} has {len(rows)} samples for {len(sharers)} clients")
            for i, share in zip(sharers, np.array_split(rows, len(sharers))):
                parts[i].append(share)
    return [np.sort(np.concatenate(part)) for part in parts]


def hold_out(labels, share, rng):
    """(held_out, rest): `share` of every class, drawn at random, and what is left.

    A class gives its exact share rounded down or up: up where the fraction is largest (ties are drawn), as often as
    makes the total right to half a sample. ValueError if `share` is not inside (0, 1), or one part would be empty.
    """
    labels = np.asarray(labels)
    if not 0 < share < 1:
        raise ValueError(f"share is {share}: it must lie between 0 and 1")
    classes, counts = np.unique(labels, return_counts=True)
    quota = np.round(share * counts, 9)
    take = np.floor(quota).astype(np.int64)
    ups = int(round(quota.sum() - take.sum()))
    take[np.lexsort((rng.random(len(classes)), take - quota))[:ups]] += 1
    if not 0 < take.sum() < len(labels):
        raise ValueError(f"a share of {share} of {len(labels)} samples leaves one part empty")
    held = np.zeros(len(labels), dtype=bool)
    for c, n in zip(classes, take):
        held[rng.permutation(np.flatnonzero(labels == c))[:n]] = True
    return np.flatnonzero(held), np.flatnonzero(~held)


def halves(labels, rng):
    """(public, private): two halves, equal in every class to one sample, and in total to one (FedGEMS's split)."""
    return hold_out(labels, 0.5, rng)


def _check_clients(num_samples, num_clients, min_size=1):
    """ValueError if `num_clients` cannot have `min_size` of `num_samples` samples each."""
    if num_clients < 1:
        raise ValueError(f"{num_clients} clients: at least 1")
    if num_clients * max(min_size, 1) > num_samples:
        raise ValueError(f"{num_samples} samples are too few for {num_clients} clients with {max(min_size, 1)} or more "
                         "each: lower the number of clients, or min_size where there is one")


def _dirichlet_shares(alpha, num_rows, num_clients, rng):
    """[num_rows, num_clients]: rows ~ Dir(alpha, ..., alpha) that sum to 1, also where alpha is tiny or huge."""
    if not 0 < alpha < np.inf:
        raise ValueError(f"alpha is {alpha}: a positive, finite number is needed")
    shares = rng.dirichlet(np.full(num_clients, min(alpha, 1e9)), size=num_rows)            # 1e9: equal to 4 digits
    lost = ~np.isfinite(shares).all(axis=1)                         # 0/0 of a tiny alpha in some versions of numpy:
    shares[lost] = np.eye(num_clients)[rng.integers(num_clients, size=lost.sum())]          # one client, its limit
    return shares
