"""Every option of the constructors of PyTorch's modules, in training under ``jit``: a sample of a few each.

``python -m scripts.module_options`` runs them all and writes `docs/tested/module-options.md`.
"""

import contextlib
import itertools
import zlib

import pytest

from tests.ops.database import Refused
from tests.ops.database.exceptions import excluded
from tests.ops.database.modules import check_module
from tests.ops.database.options import options

ONE_IN = 16
# What failed once.
ALWAYS = ("nn.BatchNorm1d(momentum=None)", "nn.SyncBatchNorm(momentum=None)")


def pytest_generate_tests(metafunc):
    if "option" not in metafunc.fixturenames:
        return
    full = metafunc.config.getoption("full")
    chosen = [x for x in options() if full or x.name in ALWAYS or zlib.crc32(x.name.encode()) % ONE_IN == 0]
    metafunc.parametrize("option", [pytest.param(x, id=f"{n}-{x.name}") for n, x in enumerate(chosen)])


def test_option(option):
    if excluded(option.name, "gradients"):
        pytest.skip(excluded(option.name, "gradients"))
    with contextlib.suppress(Refused):
        check_module(option.build(), eager=False)


def test_most_options_are_taken():
    """The sample would prove nothing if PyTorch refused what is given."""
    taken = 0
    for option in itertools.islice(options(), 0, None, 20):
        with contextlib.suppress(Refused):
            option.build()
            taken += 1
    assert taken > 30
