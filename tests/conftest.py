"""What every test needs before it imports a library."""

import contextlib
import gc
import os

import pytest

from tests.compiling import keep_context, keep_programs, set_flags
from tests.durations import Durations, Nightly
from tests.memory import Bound

# One thread for each process of `scripts.tests`; more only make two cores wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What is sharded needs several devices (see `eight_devices`). `XLA_FLAGS= pytest` compiles as users do, for one device.
set_flags("--xla_force_host_platform_device_count=8")
keep_programs()
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
_COMPARED = ("autograd", "functional", "rules", "tensors", "tracing")  # folders of `_plans_are_compared`


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="everything: whole databases, and tests/nightly.txt")
    parser.addoption("--strict-durations", action="store_true", help="fail where a test is slow and has no mark for it")
    parser.addoption("--record-outcomes", metavar="FILE", help="append each test's outcome and seconds to a file")


def pytest_configure(config):
    is_strict, record = config.getoption("--strict-durations"), config.getoption("--record-outcomes")
    config.pluginmanager.register(Durations(is_strict, record))
    if not config.getoption("--full"):
        config.pluginmanager.register(Nightly())


@pytest.fixture(autouse=True)
def _distributions_check_their_arguments():
    """torch.compile turns these checks off for the whole process, which other tests share."""
    import torch

    yield
    torch.distributions.Distribution.set_default_validate_args(__debug__)


@pytest.fixture(autouse=True)
def _random_numbers_are_those_of_a_seed():
    """A test that draws weights or inputs draws the same ones alone and beside others."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _plans_are_compared(request):
    """Where operators themselves are tested, the long way runs beside plans; with --full everywhere, each time."""
    from tests.plan_checks import checking_plans

    folder = request.path.relative_to(request.config.rootpath / "tests").parts[0]
    is_full = request.config.getoption("--full")
    is_compared = folder in _COMPARED or is_full
    with checking_plans(most=None if is_full else 1) if is_compared else contextlib.nullcontext():
        yield


@pytest.fixture
def eight_devices():
    """Skips a test that needs so many, which `XLA_FLAGS` gives on a CPU."""
    import jax

    if len(jax.devices()) < 8:
        pytest.skip("needs eight devices")


def pytest_collection_finish():
    """What has been imported stays: collections of garbage need not walk it. What it stands in for has to be there."""
    from torch2jax.runtime import patches

    patches.expect_targets()
    keep_context()
    gc.collect()
    gc.freeze()


_memory = Bound(2.5)


def pytest_runtest_teardown():
    _memory.keep()
