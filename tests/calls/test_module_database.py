"""PyTorch's database of modules, in training and evaluation: one case of each, or with ``--full`` all there are."""

import contextlib

import pytest
import torch

from tests.ops.database import Refused
from tests.ops.database.exceptions import excluded
from tests.ops.database.modules import check_module, module_cases, module_db


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("info", [pytest.param(info, id=info.name) for info in module_db])
def test_module(info, mode, request):
    if excluded(info.name, "values"):
        pytest.skip(excluded(info.name, "values"))
    limit = None if request.config.getoption("full") else 1
    for case in module_cases(info, torch.float32, mode == "train", limit):
        with contextlib.suppress(Refused):
            check_module(case)
