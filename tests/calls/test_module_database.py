"""PyTorch's database of modules, in training and evaluation: one case of each, or with ``--full`` all there are.

Of the sample, one module in `EAGER` runs operation by operation as well, which compiles each by itself.
"""

import contextlib
import zlib

import pytest
import torch

from tests.ops.database import Refused
from tests.ops.database.exceptions import excluded
from tests.ops.database.modules import check_module, module_cases, module_db

EAGER = 5


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("info", [pytest.param(info, id=info.name) for info in module_db])
def test_module(info, mode, request):
    if excluded(info.name, "values"):
        pytest.skip(excluded(info.name, "values"))
    full = request.config.getoption("full")
    eager = full or zlib.crc32(f"{info.name} {mode}".encode()) % EAGER == 0
    for case in module_cases(info, torch.float32, mode == "train", None if full else 1):
        with contextlib.suppress(Refused):
            check_module(case, eager)
