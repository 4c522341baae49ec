"""Secure aggregation: the server learns the sum of the clients' models and no single model.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017,
section 4. Every pair of clients of a group agrees on a random number per entry; one adds it, the
other subtracts it, all modulo 2^64:

    y_i = x_i + sum_{j > i} m_ij - sum_{j < i} m_ij   (mod 2^64)
    sum_i y_i = sum_i x_i                             (mod 2^64)

Each y_i alone is uniformly random. The masks cancel exactly in sums of integers, not of floats. So
a real number x travels as round(x 2^24) in 64 bits: exact to 2^-25. A group's sum may reach 2^38.

The average of a group is the sum of n_i w_i over the sum of n_i. A client whose model is not
finite, or too large for 64 bits, sends zeros and the weight 0, masked like all others: it leaves
the average intact, and nobody learns which client it was.

Departures
  1  Paper: clients agree on the masks by a key exchange (Diffie-Hellman), and may drop out. Here,
     in a simulation: the masks come from the seed of the run, and nobody drops out.
  2  Paper: silent about BatchNorm. Here: its counters, which take the maximum in fedavg.py, become
     rounded averages.
"""
import torch

from federation import stream

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
            drawn = rng.integers(-2**63, 2**63, size=tuple(x.shape), dtype="int64", endpoint=False)
            mask = torch.from_numpy(drawn)
            sums[name] = sums[name] + (mask if i < j else -mask)         # int64 wraps: modulo 2^64
    return sums


def numbers_of(model_state):
    """The names of the entries that can be summed: all tensors but a mask, of truth values or with
    -inf."""
    return [name for name, w in model_state.items() if isinstance(w, torch.Tensor)
            and w.dtype != torch.bool and bool(w.isfinite().all())]


def masked_model(model_state, weight, i, group, pair_rng):
    """Client i's message: masked numbers of weight x model, the weight, and "counts" (1 or 0).

    weight    a whole number >= 0
    """
    if not (float(weight).is_integer() and weight >= 0):
        raise ValueError(f"weight is {weight}: a secure sum adds whole numbers >= 0")
    weight = int(weight)
    scaled = {name: model_state[name].double().cpu() * weight for name in model_state}
    limit = LIMIT / len(group)
    counts = all(bool((x.abs() < limit).all()) for x in scaled.values())     # False for nan, inf
    message = {"weight": torch.tensor(weight if counts else 0),
               "counts": torch.tensor(int(counts))}
    for name, x in scaled.items():
        message["model." + name] = ((x * 2**FRACTION_BITS).round().long() if counts
                                    else torch.zeros(x.shape, dtype=torch.int64))
    return masked(message, i, group, pair_rng)


def count_valid(messages):
    """How many of a group's messages hold a valid model, from their sum."""
    return int(sum(message["counts"] for message in messages))


def average_of_masked(messages, like):
    """The weighted average of the models of one group, a state_dict, from the sum of its messages.

    like       the state_dict that the group received: gives dtypes, device and what is not summed;
               integer entries are rounded averages
    returns    None if no message holds a valid model
    """
    messages = list(messages)
    if count_valid(messages) == 0:
        return None
    sums = {name: sum(message[name] for message in messages) for name in messages[0]}
    average = dict(like)
    for name in numbers_of(like):
        mean = sums["model." + name].double() / 2**FRACTION_BITS / int(sums["weight"])
        w = like[name]
        mean = mean if w.is_floating_point() else mean.round()       # departure 2
        average[name] = mean.to(w.dtype).to(w.device)
    return average


def masked_upload(fed, t, i, group, received, trained):
    """The message of client i of a group in round t: its model, weighed by its number of samples.

    received, trained    state_dicts: the model before and after local training
    The masks come from the seed of the run, anew in every round.
    """
    def pair_rng(*pair):
        return stream(fed.seed, "mask", t, *pair)                    # departure 1

    numbers = {name: trained[name] for name in numbers_of(received)}
    return masked_model(numbers, len(fed.private[i].labels), i, group, pair_rng)
