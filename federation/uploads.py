"""What the server receives: uploads of clients, replaced by attackers, left out if not usable.

An upload is usable if all its numbers are finite and below 1e30 in absolute value. One that is not
never ends a run: the server leaves it out of the round, and the metrics count it (`bad_uploads`).
Where the server averages models this is a whole model; FedGEMS judges each sample on its own.
"""
import torch
from torch import Tensor

from attacks import HUGE, attack_models, attack_rows, attack_samples


def tensors(value, besides=()):
    """All tensors inside nested dicts, lists and tuples, in order; without the keys `besides`."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for key, x in value.items():
            if key not in besides:
                yield from tensors(x, besides)
    elif isinstance(value, (list, tuple)):
        for x in value:
            yield from tensors(x, besides)


def is_usable(upload, besides=()):
    """True if every real number of every tensor in the (nested) upload is finite and below HUGE."""
    return all(bool((x.abs() < HUGE).all()) for x in tensors(upload, besides)
               if x.is_floating_point())


def usable(uploads):
    """The uploads [M, ...] of the clients whose own is usable: [m, ...]."""
    return uploads[(uploads.abs() < HUGE).flatten(1).all(1)]


def masks(fed, i):
    """The names of what is not finite in new networks either, of client i and of the server."""
    new = [fed.client_model(i)]
    if fed.server_model is not None:
        new.append(fed.server_model())
    return {name for model in new for name, w in model.state_dict().items() if not is_usable(w)}


def received(fed, uploads, attack=None):
    """{client: upload} as the server receives it of {client: upload}; an upload holds weights.

    Attackers' weights are replaced. Then an upload with nan, infinity or a number of 1e30 or more
    is left out; what has such numbers in a new network too, as a mask has, may have them.
    """
    if attack:
        models = [{"model": weights} for weights in uploads.values()]
        attacked = attack_models(attack, models, list(uploads))
        uploads = {i: upload["model"] for i, upload in zip(uploads, attacked)}
    return {i: upload for i, upload in uploads.items()
            if is_usable(upload) or is_usable(upload, besides=masks(fed, i))}


def received_logits(uploads, rows, attack=None):
    """Logits [M, n, C] as the server receives them of {client: logits [n, C]}.

    rows    int64 [n]: the row numbers of the public images that they are of
    Attackers' logits are replaced. Nothing is left out.
    """
    logits = torch.stack([*uploads.values()])
    return attack_rows(attack, logits, [*uploads], rows) if attack else logits


def received_samples(uploads, attack=None):
    """{client: upload} as the server receives it of {client: upload}, of clients' own samples.

    An upload is a NamedTuple of tensors [n_i, ...]. Attackers' tensors of floating-point numbers
    are replaced, each by the statistics of its own kind. Then an upload with nan, infinity or a
    number of 1e30 or more is left out.
    """
    if attack and uploads:
        ids = [*uploads]
        parts = [attack_samples(attack, part, ids) if part[0].is_floating_point() else part
                 for part in zip(*uploads.values())]
        uploads = {i: uploads[i]._make(values) for i, values in zip(ids, zip(*parts))}
    return {i: upload for i, upload in uploads.items() if is_usable(upload)}
