"""By which route functions and operators reach JAX."""

import pytest
import torch

from torch2jax import implements
from torch2jax.tools.operators import Route, level_of


@torch.library.custom_op("test_routes::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("test_routes::kernel", mutates_args=())
def kernel(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@implements(torch.ops.test_routes.double)
def _(x):
    return x * 2


@pytest.mark.parametrize(
    ("function", "level"),
    [
        (torch.add, Route.RULE),
        (torch.Tensor.add_, Route.RULE),
        (torch.nn.functional.dropout, Route.BODY),
        (torch.Tensor.view, Route.COMPILED),
        (torch.ops.aten.add.Tensor, Route.ATEN_RULE),
        (torch.ops.aten.view.default, Route.LEAF),
        (torch.ops.test_routes.double, Route.LEAF),
        (torch.ops.test_routes.kernel, Route.KERNEL),
        (torch.ops.aten._test_optional_floatlist, Route.NONE),
    ],
)
def test_level(function, level):
    assert level_of(function) is level
