"""A sum that the server learns without seeing what was added: pairwise masks, without drop-outs.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, section 4, here for clients
that all answer. Every pair of clients agrees on a random number per entry; one adds it, the other subtracts it, all modulo 2^64:

    y_i = x_i + sum_{j > i} m_ij - sum_{j < i} m_ij   (mod 2^64),      sum_i y_i = sum_i x_i   (mod 2^64)

Each y_i alone is uniformly random. Sums of whole numbers cancel exactly, which sums of floats would not; so a real number x
travels as round(x 2^24) in 64 bits: exact to 2^-25, up to 2^38 in absolute value.

A model's average is the sum of n_i w_i over the sum of n_i. A client whose model is not finite, or too large for 64 bits, sends
zeros and the weight 0, masked like everyone's, so that it spoils nothing and nobody learns who it was.

What this is not: the keys that clients would agree on (Diffie-Hellman in the paper) come from the run's seed, as all here does.
"""
import torch

FRACTION_BITS = 24
NUMBER_BYTES = 8         # of a masked number on the wire
LIMIT = 2.0**38          # largest |n_i w_i| of one client: 2^62 after scaling, of which 2^63 is the end


def masked(numbers, i, group, pair_rng):
    """y_i: the int64 tensors of client i, each with the masks that it shares with the others of its group.

    numbers     {name: int64 tensor}, the same names and shapes for all of the group
    pair_rng    pair_rng(i, j) with i < j: the numpy Generator that clients i and j, and nobody else, have in common
    """
    sums = dict(numbers)
    for j in group:
        if j == i:
            continue
        rng = pair_rng(min(i, j), max(i, j))
        for name, x in numbers.items():
            mask = torch.from_numpy(rng.integers(-2**63, 2**63, size=tuple(x.shape), dtype="int64", endpoint=False))
            sums[name] = sums[name] + (mask if i < j else -mask)                         # int64 wraps: modulo 2^64
    return sums


def masked_model(model_state, weight, i, group, pair_rng):
    """What client i sends instead of its model: the masked numbers of weight x model, of the weight, and of "this counts"."""
    scaled = {name: w.double().cpu() * weight for name, w in model_state.items()}
    counts = all(bool((x.abs() < LIMIT / len(group)).all()) for x in scaled.values())    # False for nan and infinity too
    numbers = {name: (x * 2**FRACTION_BITS).round().long() if counts else torch.zeros(x.shape, dtype=torch.int64)
               for name, x in scaled.items()}
    sent = {"model." + name: x for name, x in numbers.items()}
    sent |= {"weight": torch.tensor(weight if counts else 0), "counts": torch.tensor(int(counts))}
    return masked(sent, i, group, pair_rng)


def average_of_masked(messages, like):
    """(state_dict, how many counted): the weighted average of the models of one group, from the sum of its masked messages.

    like       a state_dict of that network: gives dtypes and device; whole-number entries are rounded averages
    returns    (None, 0) if nobody counted
    """
    sums = {name: sum(message[name] for message in messages) for name in messages[0]}    # int64 wraps: the masks cancel
    total, counted = int(sums["weight"]), int(sums["counts"])
    if counted == 0:
        return None, 0
    average = {}
    for name, w in like.items():
        mean = sums["model." + name].double() / 2**FRACTION_BITS / total
        average[name] = (mean if w.is_floating_point() else mean.round()).to(w.dtype).to(w.device)
    return average, counted
