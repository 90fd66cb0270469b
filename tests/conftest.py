"""Fixtures that every part shares."""

import os
import warnings
from pathlib import Path

import pytest
import torch
from zoo import ZOO, module

from vitrail.model import View, load

# Two workers on two cores: more threads each would only fight.
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)

_VIEWS: dict[str, View] = {}


def view_of(name: str) -> View:
    """The view of a model of the zoo, made once."""
    if name not in _VIEWS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _VIEWS[name] = load(module(name), size=ZOO[name].size)
    return _VIEWS[name]


@pytest.fixture(scope="session")
def assets() -> Path:
    """Real weights and images, where the machine has them."""
    folder = os.environ.get("VITRAIL_ASSETS")
    if not folder or not Path(folder).is_dir():
        pytest.skip("set VITRAIL_ASSETS to a folder with data/ and weights/ to run the tests on real images")
    return Path(folder)
