"""Random numbers: each purpose has its own stream, so the order of computation does not matter."""
import contextlib
import zlib

import numpy as np
import torch


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


@contextlib.contextmanager
def random_numbers(fed, *name):
    """The random numbers of one training, in a `with` block: they depend on fed.seed and its name.

    Yields a numpy Generator, for the order of the batches and for augmentation. Inside the block
    torch's generators, from which dropout draws, are seeded too; afterwards they are as they were.
    """
    with seeded(fed.seed, *name):
        yield stream(fed.seed, *name)
