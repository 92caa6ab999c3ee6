"""PyTorch's database of modules: one case of each in training or evaluation, or with ``--full`` all there are in both.

Of the sample, one module in `EAGER` runs operation by operation as well, which compiles each by itself.
"""

import contextlib
import zlib

import pytest
import torch

from tests.ops.database import Refused
from tests.ops.database.exceptions import excluded
from tests.ops.database.modules import check_module, module_cases, module_db

EAGER = 10


def _turn(info) -> int:
    """A number that only the name decides, so that every run has the same sample."""
    return zlib.crc32(info.name.encode())


def pytest_generate_tests(metafunc):
    full = metafunc.config.getoption("full")
    rows = [
        pytest.param(info, mode, id=f"{info.name}-{mode}")
        for info in module_db
        for turn, mode in enumerate(("eval", "train"))
        if full or turn == _turn(info) % 2
    ]
    metafunc.parametrize(("info", "mode"), rows)


def test_module(info, mode, request):
    if excluded(info.name, "values"):
        pytest.skip(excluded(info.name, "values"))
    full = request.config.getoption("full")
    for case in module_cases(info, torch.float32, mode == "train", None if full else 1):
        with contextlib.suppress(Refused):
            check_module(case, full or _turn(info) % EAGER == 0)
