"""Which clients take part in a round, and how several of them are computed at once."""
import contextlib
import functools
import io

import torch
import torch.distributed as dist

from federation.randomness import stream


def count_active(num_clients, participation):
    """Number of clients in a round: participation * num_clients, rounded, at least 1."""
    return max(1, round(participation * num_clients))


def sample_clients(num_clients, participation, rng):
    """Sorted ids of the clients that take part in a round, drawn without replacement."""
    size = count_active(num_clients, participation)
    return sorted(rng.choice(num_clients, size=size, replace=False).tolist())


def active_in(fed, participation, t):
    """Sorted ids of the clients that take part in round t, drawn without replacement."""
    return sample_clients(len(fed.private), participation, stream(fed.seed, "active", t))


def by_architecture(fed):
    """{architecture: its clients}, in the order of each architecture's first client."""
    return {name: [i for i, other in enumerate(fed.architecture) if other == name]
            for name in dict.fromkeys(fed.architecture)}


def active_clients(fed, participation, t):
    """{architecture: sorted ids of its clients in round t}: the same share of each architecture.

    Where all clients have one architecture these are the clients of `active_in`.
    """
    rng = stream(fed.seed, "active", t)
    return {name: [ids[j] for j in sample_clients(len(ids), participation, rng)]
            for name, ids in by_architecture(fed).items()}


def parallel_map(fed, ids, fn):
    """The papers' "for each client i in parallel do": {i: fn(i) for i in ids}, by all processes.

    fn(i) is pure: it returns tensors (in tuples, lists, dicts) and changes nothing outside. Every
    process gets all results, with their tensors on its own device.
    """
    ids = list(ids)
    results = to_all(fed, {i: fn(i) for i in own_share(ids)}, ids)
    return {i: results[i] for i in ids}


def parallel_map_to_server(fed, ids, fn):
    """`parallel_map` of large results: only the process that trains the server has them.

    The other processes get {}.
    """
    ids = list(ids)
    return to_server(fed, {i: fn(i) for i in own_share(ids)}, ids)


@contextlib.contextmanager
def server_threads(fed):
    """Inside the block torch has the server's CPU threads (--threads); a client has one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(fed.threads or threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def on_server(function):
    """Decorator: one process computes function(fed, ...), with the server's threads, for all."""
    @functools.wraps(function)
    def wrapper(fed, *arguments, **keywords):
        def compute(_):
            with server_threads(fed):
                return function(fed, *arguments, **keywords)

        return parallel_map(fed, [0], compute)[0]
    return wrapper


# --------------------------------------------------------------------------------------------------
# Several processes: number r of them computes for ids[r], ids[r + world_size], ... The server is
# trained by the first one, number 0: see `on_server`.

def own_share(ids):
    """Those of `ids` for which this process computes: all, if there is one process."""
    return ids[dist.get_rank()::dist.get_world_size()] if dist.is_initialized() else ids


def to_all(fed, computed, ids):
    """{i: value} of all `ids`, in every process; computed: {i: value} of `own_share(ids)`."""
    if not dist.is_initialized():
        return computed
    results = {}
    for source in range(min(dist.get_world_size(), len(ids))):
        message = [packed(computed)] if source == dist.get_rank() else [None]
        dist.broadcast_object_list(message, src=source)
        results |= unpacked(message[0], fed.device)
    return results


def to_server(fed, computed, ids):
    """{i: value} of all `ids` in the first process, which trains the server; {} in the others.

    So what is large, such as feature maps, is only where it is needed.
    """
    if dist.is_initialized() and dist.get_rank() > 0:
        dist.send_object_list([packed(computed)], dst=0)
        return {}
    for source in range(1, dist.get_world_size() if dist.is_initialized() else 1):
        message = [None]
        dist.recv_object_list(message, src=source)
        computed = computed | unpacked(message[0], fed.device)
    return {i: computed[i] for i in ids}


def packed(value):
    """The bytes of nested dicts, lists and tuples with tensors, for a message."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def unpacked(message, device):
    """The inverse of `packed`, with every tensor on `device`."""
    # The sender is a process of this run; weights_only would refuse the NamedTuples in a message.
    return torch.load(io.BytesIO(message), map_location=device, weights_only=False)
