"""What every test needs before it imports a library."""

import os

import pytest

from tests.memory import Bound

# One thread for each worker of pytest-xdist; more only make two cores wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="everything in PyTorch's databases, not a sample of each row")


@pytest.fixture(autouse=True)
def _distributions_check_their_arguments():
    """torch.compile turns these checks off for the whole process, which other tests share."""
    import torch

    yield
    torch.distributions.Distribution.set_default_validate_args(__debug__)


_memory = Bound(4)


def pytest_runtest_teardown():
    _memory.keep()
