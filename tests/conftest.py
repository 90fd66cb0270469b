"""Fixtures that every part shares."""

import os
from pathlib import Path

import pytest
import torch

# Two workers on two cores: more threads each would only fight. Who says how many there are is heard.
if "OMP_NUM_THREADS" not in os.environ:
    torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)

# Without a GPU, Triton's kernels are interpreted; it wants to know before it is first loaded.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def assets() -> Path:
    """Real weights and images, where the machine has them."""
    folder = os.environ.get("VITRAIL_ASSETS")
    if not folder or not Path(folder).is_dir():
        pytest.skip("set VITRAIL_ASSETS to a folder with data/ and weights/ to run the tests on real images")
    return Path(folder)
