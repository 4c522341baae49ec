"""One thread: the networks of the tests are so small that a second one only waits. No GPU: a
process that has trained on one cannot fork another that trains, as some tests do; the test of GPUs
starts a process of its own. Processes that work for long are started before the first test."""
import os

import numpy as np
import pytest
import torch
from toys import arrays

torch.set_num_threads(1)
os.environ["CUDA_VISIBLE_DEVICES"] = ""                  # torch reads it when it first needs a GPU


@pytest.fixture(scope="session")
def npz(tmp_path_factory):
    """The path of a small data set."""
    path = tmp_path_factory.mktemp("npz") / "tiny.npz"
    np.savez(path, **arrays())
    return str(path)


@pytest.fixture(scope="session", autouse=True)
def background(request, npz, tmp_path_factory):
    """{name: (folder, process)}: what works while other tests run.

    The process of a fixture `name` is what `start_name(npz, folder)` in its module returns. It is
    started if a test needs the fixture.
    """
    needed = {name: getattr(item.module, f"start_{name}") for item in request.session.items
              for name in item.fixturenames if hasattr(item.module, f"start_{name}")}
    started = {}
    for name, start in needed.items():
        folder = tmp_path_factory.mktemp(name)
        started[name] = folder, start(npz, folder)
    yield started
    for _, process in started.values():
        with process:
            process.kill()
