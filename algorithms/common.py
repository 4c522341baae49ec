"""Parts that all algorithms share: the federation, random streams, clients in parallel.

Batches, prediction and training are in training.py, accuracies in evaluation.py, the equations
that several papers share in equations.py.

Words used in every algorithm file, each with one meaning:

name                 shape                  meaning
*_logits             [N, C], [M, N, C]      raw scores; probabilities are `*_probs`, their
                                            logarithms `*_log_probs`
M, N, C                                     clients or ensemble members, samples, classes
rows                 int64 [B]              positions of samples in a `Data`
t                                           the round, from 1; round 0 is the untrained start
i                                           a client, from 0 to num_clients - 1
"""
import collections
import contextlib
import functools
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from algorithms.equations import (average_weights, distillation_loss,  # noqa: F401  also here
                                  kl_divergence)
from attacks import attack_models


class Data(NamedTuple):
    """Images and labels. Row n is the same sample for the whole run."""

    images: Tensor         # float32 [n, c, h, w], normalized, channels-last
    labels: Tensor | None  # int64 [n]; None: the algorithm must not use them


def no_server_model(init=0):
    raise ValueError("this algorithm needs a network of the server: "
                     "Federation(..., server_model=...)")


@dataclass
class Federation:
    """The input of every algorithm: samples, networks, seed. No algorithm changes it."""

    private: list[Data]                          # private[i]: the samples of client i
    test: Data
    num_classes: int
    client_model: Callable[..., nn.Module]       # client_model(i, init=0): client i's new network,
    #                                              whose initial weights depend on seed and init
    architecture: list[str]                      # architecture[i]: the name of client i's network
    seed: int
    device: torch.device                         # all tensors are on it
    server_model: Callable[..., nn.Module] = no_server_model     # server_model(init=0), likewise
    public: Data | None = None                   # labels None: the algorithm must not use them
    public_test: Data | None = None              # the public half of the test set
    validation: Data | None = None               # for early stopping and learning rates
    augment: Callable[[Tensor, np.random.Generator], Tensor] | None = None   # training images
    amp: bool = False                            # bfloat16 autocast in every forward pass


def needs_public(fed, labels=False):
    """Raises ValueError without public images; with labels=True also if they have no labels."""
    if fed.public is None:
        raise ValueError("this algorithm needs public images: Federation(..., public=Data(...))")
    if labels and fed.public.labels is None:
        raise ValueError("this algorithm needs the labels of the public images")


# --------------------------------------------------------------------------------------------------
# Random numbers: each purpose has its own stream, so the order of computation does not matter.

def _words(keys):
    """Each key as one 32-bit word: an integer as it is, a string by its CRC."""
    return [zlib.crc32(key.encode()) if isinstance(key, str) else int(key) for key in keys]


def stream(seed, *keys):
    """The numpy Generator of one purpose, for example stream(seed, "local", t, i).

    The same keys give the same numbers; different keys give independent ones.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=_words(keys)))


@contextlib.contextmanager
def seeded(seed, *keys):
    """Seeds torch's default generators by (seed, keys) inside the block, and restores them after.

    Initial weights and dropout need this, because torch draws them from these generators alone.
    """
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    sequence = np.random.SeedSequence(seed, spawn_key=_words(keys))
    number = int(sequence.generate_state(1, np.uint64)[0])
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(number)      # faster than torch.manual_seed on a CPU
        if gpus:
            torch.cuda.manual_seed_all(number)
        yield


# --------------------------------------------------------------------------------------------------
# Clients

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


def in_parallel(fn, ids, device="cpu"):
    """[fn(i) for i in ids], in this order, computed by all processes together.

    fn(i) is pure: it returns tensors (in tuples, lists, dicts) and changes nothing outside.
    Under torchrun, process j % world_size computes fn(ids[j]); then every process gets all
    results, with their tensors on its own `device`.
    """
    if not dist.is_initialized():
        return [fn(i) for i in ids]
    rank, world_size = dist.get_rank(), dist.get_world_size()
    gathered = [None] * world_size
    dist.all_gather_object(gathered, to_device([fn(i) for i in ids[rank::world_size]], "cpu"))
    return [to_device(gathered[j % world_size][j // world_size], device) for j in range(len(ids))]


def run_clients(train, ids, device="cpu"):
    """The papers' "for each client in parallel do": `in_parallel`, which counts trained clients."""
    def counted(i):
        result = train(i)
        run_clients.done += 1
        if run_clients.progress:
            run_clients.progress(run_clients.done - before, len(ids), time.perf_counter() - start)
        return result

    before, start = run_clients.done, time.perf_counter()
    return in_parallel(counted, ids, device)


run_clients.done = 0                                # how many clients this process has trained
run_clients.progress = None                         # fn(done, clients, seconds), after each client


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
    """Decorator: adds the seconds of each call fn(fed, ...) to timed.seconds[name of fn]."""
    @functools.wraps(function)
    def wrapper(fed, *args, **kwargs):
        start = seconds(fed.device)
        result = function(fed, *args, **kwargs)
        timed.seconds[function.__name__] += seconds(fed.device) - start
        return result
    return wrapper


timed.seconds = collections.Counter()    # {function: seconds}, which the driver reads and clears


@timed
def collect(fed, t, ids, train, attack=None):
    """{client: upload} of the clients `ids`, which train in parallel; train(i) -> upload.

    Attackers replace what they upload. Then an upload that is not finite is left out.
    """
    uploads = run_clients(train, ids, fed.device)
    if attack:
        uploads = attack_models(attack, uploads, ids, t)
    return {i: upload for i, upload in zip(ids, uploads) if is_finite(upload)}


class Trained(NamedTuple):
    """Result of local training where clients keep their models: the upload, and what they keep."""

    upload: Tensor | tuple
    client: dict | None


@timed
def collect_logits(fed, t, rows, train, attack=None):
    """(logits or probabilities [M, n, C] of the public rows [n], the clients after training).

    All clients train in parallel; train(i) -> Trained. Attackers replace what they upload.
    """
    ids = range(len(fed.private))
    trained = run_clients(train, ids, fed.device)
    uploads = torch.stack([result.upload for result in trained])
    if attack:
        uploads = attack(uploads, ids, rows, t)
    return uploads, [result.client for result in trained]
