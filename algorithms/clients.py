"""Which clients take part in a round, and how several of them are computed at once.

Words used in every algorithm file, each with one meaning:

name                 shape                  meaning
*_logits             [N, C], [M, N, C]      raw scores; probabilities are `*_probs`, their
                                            logarithms `*_log_probs`
M, N, C                                     clients or ensemble members, samples, classes
rows                 int64 [B]              positions of samples in a `Data`
t                                           the round, from 1; round 0 is the untrained start
i                                           a client, from 0 to num_clients - 1
"""
import torch.distributed as dist
from torch import Tensor

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
