"""Parts that all algorithms share: which clients take part, clients in parallel, uploads.

Batches, prediction and training are in training.py, accuracies in evaluation.py, the equations
that several papers share in equations.py; the federation and its random streams are in
federation.py, one folder up.

Words used in every algorithm file, each with one meaning:

name                 shape                  meaning
*_logits             [N, C], [M, N, C]      raw scores; probabilities are `*_probs`, their
                                            logarithms `*_log_probs`
M, N, C                                     clients or ensemble members, samples, classes
rows                 int64 [B]              positions of samples in a `Data`
t                                           the round, from 1; round 0 is the untrained start
i                                           a client, from 0 to num_clients - 1
"""
import functools
import time
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from attacks import attack_models, attack_rows
from federation import stream


def count_active(num_clients, participation):
    """Number of clients in a round: participation * num_clients, rounded, at least 1."""
    return max(1, round(participation * num_clients))


def sample_clients(num_clients, participation, rng):
    """Sorted ids of the clients that take part in a round, drawn without replacement."""
    size = count_active(num_clients, participation)
    return sorted(rng.choice(num_clients, size=size, replace=False).tolist())


def by_architecture(fed):
    """{architecture: its clients}, in the order of each architecture's first client."""
    return {name: [i for i, other in enumerate(fed.architecture) if other == name]
            for name in dict.fromkeys(fed.architecture)}


def active_clients(fed, participation, t):
    """{architecture: sorted ids of its clients in round t}: the same share of each architecture.

    Where all clients have one architecture these are the clients that FedAvg samples.
    """
    rng = stream(fed.seed, "active", t)
    return {name: [ids[j] for j in sample_clients(len(ids), participation, rng)]
            for name, ids in by_architecture(fed).items()}


def in_parallel(fed, fn, ids):
    """[fn(i) for i in ids], in this order, computed by all processes together.

    fn(i) is pure: it returns tensors (in tuples, lists, dicts) and changes nothing outside.
    Under torchrun, process j % world_size computes fn(ids[j]); then every process gets all
    results, with their tensors on its own device.
    """
    if not dist.is_initialized():
        return [fn(i) for i in ids]
    rank, world_size = dist.get_rank(), dist.get_world_size()
    gathered = [None] * world_size
    dist.all_gather_object(gathered, to_device([fn(i) for i in ids[rank::world_size]], "cpu"))
    return [to_device(gathered[j % world_size][j // world_size], fed.device)
            for j in range(len(ids))]


def run_clients(fed, train, ids):
    """The papers' "for each client in parallel do": `in_parallel`, and fed.on_trained is told."""
    def trained(i):
        result = train(i)
        if fed.on_trained:
            fed.on_trained(len(ids))
        return result

    return in_parallel(fed, trained, ids)


def to_device(value, device):
    """The same nested dicts, lists and tuples with every tensor on `device`."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: to_device(x, device) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        moved = [to_device(x, device) for x in value]
        return type(value)(*moved) if hasattr(value, "_fields") else type(value)(moved)
    return value


def tensors(value):
    """All tensors inside nested dicts, lists and tuples, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for x in value.values() if isinstance(value, dict) else value:
            yield from tensors(x)


HUGE = 1e30    # sums of larger numbers, or their quotients by a temperature, overflow in float32


def is_finite(upload):
    """True if no tensor of the (nested) upload holds nan, infinity, or a number beyond HUGE."""
    return all(bool((x.abs() < HUGE).all()) for x in tensors(upload))


def finite(uploads):
    """The uploads [M, ...] without those that hold nan, infinity or a number beyond HUGE."""
    return uploads[(uploads.abs() < HUGE).flatten(1).all(1)]


def seconds(device):
    """The time in seconds; on a GPU it first waits for the work that was already submitted."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def timed(function):
    """Decorator: adds the seconds of each call fn(fed, ...) to fed.seconds[name of fn]."""
    @functools.wraps(function)
    def wrapper(fed, *args, **kwargs):
        start = seconds(fed.device)
        result = function(fed, *args, **kwargs)
        fed.seconds[function.__name__] += seconds(fed.device) - start
        return result
    return wrapper


@timed
def collect(fed, ids, train, attack=None):
    """{client: upload} of the clients `ids`, which train in parallel; train(i) -> upload.

    Attackers replace what they upload. Then an upload that is not finite is left out.
    """
    uploads = run_clients(fed, train, ids)
    if attack:
        uploads = attack_models(attack, uploads, ids)
    return {i: upload for i, upload in zip(ids, uploads) if is_finite(upload)}


class Trained(NamedTuple):
    """Result of local training where clients keep their models: the upload, and what they keep."""

    upload: Tensor | tuple
    client: dict | None


@timed
def collect_logits(fed, rows, train, attack=None):
    """(logits or probabilities [M, n, C] of the public rows [n], the clients after training).

    All clients train in parallel; train(i) -> Trained. Attackers replace what they upload.
    """
    ids = range(len(fed.private))
    trained = run_clients(fed, train, ids)
    uploads = torch.stack([result.upload for result in trained])
    if attack:
        uploads = attack_rows(attack, uploads, ids, rows)
    return uploads, [result.client for result in trained]
