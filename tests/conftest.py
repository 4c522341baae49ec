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
