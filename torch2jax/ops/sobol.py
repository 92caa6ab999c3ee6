"""Sobol sequences: PyTorch's own kernels make them, from directions that are known while JAX traces."""

from collections.abc import Callable
from typing import Any

import torch

from ..rules.registry import implements_tensors
from ..translation import current
from ..values.valueless import run_on_values


def _runs_in_pytorch(function: Callable, written: tuple[int, ...]) -> None:
    @implements_tensors(function)
    def rule(*args, **kwargs) -> Any:
        return run_on_values(current(), function, args, kwargs, written)


_runs_in_pytorch(torch._sobol_engine_draw, ())
for _function in (torch._sobol_engine_ff_, torch._sobol_engine_scramble_, torch._sobol_engine_initialize_state_):
    _runs_in_pytorch(_function, (0,))
