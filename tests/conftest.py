"""One thread: the networks of the tests are so small that a second one only waits."""
import numpy as np
import pytest
import torch
from toys import arrays

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def npz(tmp_path_factory):
    """The path of a small data set."""
    path = tmp_path_factory.mktemp("npz") / "tiny.npz"
    np.savez(path, **arrays())
    return str(path)


@pytest.fixture(scope="session", autouse=True)
def elsewhere_process(request, npz, tmp_path_factory):
    """(folder, process) of `elsewhere` in test_runs.py, started with the first test if needed."""
    if not any("elsewhere" in getattr(item, "fixturenames", ()) for item in request.session.items):
        yield None
        return
    from test_runs import start_elsewhere
    out = tmp_path_factory.mktemp("elsewhere")
    with start_elsewhere(npz, out) as process:
        yield out, process
        process.kill()
