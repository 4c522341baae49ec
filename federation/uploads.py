"""What the server receives: uploads of clients, replaced by attackers, left out if not usable.

An upload is usable if all its numbers are finite and below 1e30 in absolute value. One that is not
never ends a run: the server leaves it out of the round, and the metrics count it (`bad_uploads`).
Where the server averages models this is a whole model; FedGEMS judges each sample on its own.
"""
from typing import NamedTuple

import torch
from torch import Tensor

from attacks import HUGE, attack_models, attack_rows, attack_samples
from federation import timed
from federation.parallel import in_parallel, own_share, to_all, to_server


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


@timed
def collect(fed, ids, train, attack=None):
    """{client: upload} of the clients `ids`, which train in parallel.

    train(i) -> upload: a dict of tensors, in which "model" is a state_dict. Attackers replace their
    models. Then an upload that is not usable is left out.
    """
    uploads = in_parallel(fed, train, ids)
    if attack:
        uploads = attack_models(attack, uploads, ids)
    return {i: upload for i, upload in zip(ids, uploads)
            if is_usable(upload) or is_usable(upload, besides=masks(fed, i))}


@timed
def collect_logits(fed, rows, predict, attack=None):
    """The logits [M, n, C] of the public rows [n] that all clients predict, without training.

    They predict in parallel; predict(i) -> [n, C]. Attackers replace what they upload.
    """
    ids = range(len(fed.private))
    uploads = torch.stack(in_parallel(fed, predict, ids))
    return attack_rows(attack, uploads, ids, rows) if attack else uploads


class Trained(NamedTuple):
    """Result of local training where clients keep their models: the upload, and what they keep."""

    upload: Tensor | tuple
    client: dict


@timed
def collect_rows(fed, rows, train, attack=None):
    """(logits or probabilities [M, n, C] of the public rows [n], the clients after training).

    All clients train in parallel; train(i) -> Trained. Attackers replace what they upload.
    """
    ids = range(len(fed.private))
    trained = in_parallel(fed, train, ids)
    uploads = torch.stack([result.upload for result in trained])
    if attack:
        uploads = attack_rows(attack, uploads, ids, rows)
    return uploads, [result.client for result in trained]


@timed
def collect_features(fed, ids, train, attack=None):
    """({client: usable upload}, {client: what it keeps}) of the clients `ids`, after training.

    They train in parallel; train(i) -> Trained, whose upload is a NamedTuple of tensors [n_i, ...],
    such as feature maps and logits, of client i's own samples. Attackers replace each of these
    tensors. Then an upload that is not usable is left out.
    Feature maps are large: of several processes only the one that trains the server has uploads,
    the others have {}.
    """
    trained = {i: train(i) for i in own_share(ids)}
    clients = to_all(fed, {i: result.client for i, result in trained.items()}, ids)
    uploads = to_server(fed, {i: result.upload for i, result in trained.items()}, ids)
    if attack and uploads:
        # All clients' feature maps are one part, all their logits another.
        attacked = [attack_samples(attack, part, ids) for part in zip(*uploads.values())]
        uploads = {i: uploads[i]._make(values) for i, values in zip(ids, zip(*attacked))}
    return {i: upload for i, upload in uploads.items() if is_usable(upload)}, clients
