"""Secure aggregation: the server learns the sum of the clients' models and no single model.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017,
section 4. It is --secure-sum of fedsdd_ablations.py. Every pair of clients of a group agrees on a
random number per entry; one adds it, the other subtracts it, all modulo 2^64:

    y_i = x_i + sum_{j > i} m_ij - sum_{j < i} m_ij   (mod 2^64)
    sum_i y_i = sum_i x_i                             (mod 2^64)

Each y_i alone is uniformly random. The masks cancel exactly in sums of integers, not of floats. So
a real number x travels as round(x 2^24) in 64 bits: exact to 2^-25. A group's sum may reach 2^38.

The average of a group is the sum of n_i w_i over the sum of n_i. A client of which a weight is not
finite, or n_i times it too large, sends zeros, also as its n_i, masked like all others.

From the sums the server learns how many models are valid and how many images their clients have,
but not whose they are. If only one model of a group is valid, the sum is that model: nothing hides
it, and groups of two are the smallest that are allowed.

Departures
  1  Paper: clients agree on the masks by a key exchange (Diffie-Hellman), and may drop out. Here,
     in a simulation: the masks come from the seed of the run, and nobody drops out.
  2  Paper: silent about BatchNorm. Here: its counters, which take the maximum in fedavg.py, become
     rounded averages.
"""
import torch

FRACTION_BITS = 24
NUMBER_BYTES = 8         # of a masked number on the wire
LIMIT = 2.0**38          # largest sum of |n_i w_i|: 2^62 after scaling; int64 ends at 2^63


def masked(numbers, i, group, pair_rng):
    """y_i: the int64 tensors of client i plus the masks that it shares with the others.

    numbers     {name: int64 tensor}, the same names and shapes for all clients of the group
    pair_rng    pair_rng(i, j) with i < j: the numpy Generator that only clients i and j have
    """
    sums = dict(numbers)
    for j in group:
        if j == i:
            continue
        rng = pair_rng(min(i, j), max(i, j))
        for name, x in numbers.items():
            drawn = rng.integers(-2**63, 2**63, size=tuple(x.shape), dtype="int64")
            mask = torch.from_numpy(drawn)
            sums[name] = sums[name] + (mask if i < j else -mask)         # int64 wraps: modulo 2^64
    return sums


def masked_model(model_state, weight, i, group, pair_rng):
    """Client i's message: masked numbers of weight x model, the weight, and "counts" (1 or 0).

    weight    an int >= 0
    """
    scaled = {name: w.double().cpu() * weight for name, w in model_state.items()}
    message = {"weight": torch.tensor(weight), "counts": torch.tensor(1),
               **{f"model.{name}": (x * 2**FRACTION_BITS).round().long()
                  for name, x in scaled.items()}}
    limit = LIMIT / len(group)
    if not all((x.abs() < limit).all() for x in scaled.values()):        # nan, infinite, too large
        message = {name: torch.zeros_like(x) for name, x in message.items()}
    return masked(message, i, group, pair_rng)


def count_valid(messages):
    """How many of a group's messages hold a valid model, from their sum."""
    return int(sum(message["counts"] for message in messages))


def average_of_masked(messages, like):
    """The weighted average of the models of one group, a state_dict, from the sum of its messages.

    like       the state_dict that the group received: gives dtypes and device; integer entries are
               rounded averages
    returns    None if no message holds a valid model
    """
    if count_valid(messages) == 0:
        return None
    sums = {name: sum(message[name] for message in messages) for name in messages[0]}
    average = {}
    for name, w in like.items():
        mean = sums[f"model.{name}"].double() / 2**FRACTION_BITS / int(sums["weight"])
        mean = mean if w.is_floating_point() else mean.round()       # departure 2
        average[name] = mean.to(w.dtype).to(w.device)
    return average


def masked_upload(fed, t, i, group, trained):
    """The message of client i of a group in round t: its model, weighed by its number of samples.

    trained    the state_dict after local training
    The masks come from the seed of the run, anew in every round.
    """
    def pair_rng(*pair):
        return fed.rng("mask", t, *pair)                    # departure 1

    return masked_model(trained, len(fed.private[i].labels), i, group, pair_rng)
