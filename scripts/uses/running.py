"""Runs a use in PyTorch and translated, and compares values and gradients."""

import random
import time
import traceback
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch

from scripts.uses.outcome import Outcome
from scripts.uses.use import Made, Use
from torch2jax import Padded, t2j
from torch2jax.tools.models import define_vision_operators

__all__ = ["difference", "run"]

FLOOR = 1e-3  # of the largest element of all: what is that much smaller is measured by it


def run(use: Use) -> Outcome:
    """The outcome of a use: PyTorch's forward and gradients, then those of ``jax.jit(t2j(f))``."""
    outcome = Outcome(use.name, use.version, torch.__version__, jax.__version__)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _run(use, outcome)
    except Exception as error:
        outcome.error = f"{type(error).__name__}: {error}"[:2000]
        outcome.traceback = "".join(traceback.format_exception(error))[-20_000:]
    return outcome


def _run(use: Use, outcome: Outcome) -> None:
    define_vision_operators()
    values, gradients = _in_pytorch(*_made(use), use.gradients)
    outcome.pytorch = True
    x64 = use.x64 or any(x.dtype in (torch.float64, torch.complex128) for x in values)
    with jax.enable_x64(x64):
        _compare(use, outcome, values, gradients)


def _compare(use: Use, outcome: Outcome, values: list, gradients: list) -> None:
    program = _Program(*_made(use))  # made anew: the run may have changed its buffers
    found, outcome.trace, outcome.compile = _timed(program.forward, program.variables)
    found = [x.compact() if isinstance(x, Padded) else x for x in found]
    outcome.forward = difference([t2j(x) for x in values], found)
    if use.gradients:
        found, outcome.trace, outcome.compile = _timed(jax.grad(program.total), program.variables)
        outcome.gradient = difference([t2j(x) for x in gradients], jax.tree.leaves(found))
    worst = max(outcome.forward, outcome.gradient or 0)
    outcome.agrees = worst <= use.tolerance
    if not outcome.agrees:
        outcome.error = f"AssertionError: differs by {worst:.1e}"


def _made(use: Use) -> Made:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (of libraries)
    torch.manual_seed(0)
    return use.make()


def _in_pytorch(function: Callable, inputs: tuple, differentiate: bool) -> tuple[list, list]:
    """PyTorch's values, and the gradients of their weighted sum, in the order of `_Program.variables`."""
    inputs = tuple(x.detach().clone().requires_grad_(_is_inexact(x)) for x in inputs)
    variables = [x for x in inputs if x.requires_grad] + [x for _, x in sorted(_parameters(function).items())]
    values = [x for x in jax.tree.leaves(function(*inputs)) if isinstance(x, torch.Tensor)]
    if not values:
        raise ValueError("a use that gives no tensor")
    if not differentiate:
        return [x.detach() for x in values], []
    weighted = [(x * torch.from_numpy(_weights(x.shape, n)).to(x.dtype)).real.sum() for n, x in _inexact(values)]
    gradients = torch.autograd.grad(sum(weighted), variables, allow_unused=True, materialize_grads=True)
    if not any(x.abs().max() > 0 for x in gradients if x.numel()):
        raise ValueError("a use without gradients")
    # JAX's gradient of a real function of complex numbers is the conjugate of PyTorch's.
    return [x.detach() for x in values], [x.detach().conj().resolve_conj() for x in gradients]


class _Program:
    """A use as functions of all its variables: the inputs that have gradients, and parameters by their names."""

    def __init__(self, function: Callable, inputs: tuple):
        self.function, self.parametrized = t2j(function), isinstance(function, torch.nn.Module)
        inexact = [x for x in inputs if _is_inexact(x)]
        parameters = {name: t2j(x.detach()) for name, x in _parameters(function).items()}
        self.places = [_is_inexact(x) for x in inputs]
        self.others = [t2j(x) for x in inputs if not _is_inexact(x)]
        self.variables = [[t2j(x) for x in inexact], parameters]

    def forward(self, variables: list) -> list:
        inexact, others = iter(variables[0]), iter(self.others)
        arguments = [next(inexact if place else others) for place in self.places]
        state = {"state_dict": variables[1]} if self.parametrized else {}
        found = jax.tree.leaves(self.function(*arguments, **state), is_leaf=lambda x: isinstance(x, Padded))
        return [x for x in found if isinstance(x, (jax.Array, Padded))]

    def total(self, variables: list) -> jax.Array:
        # The weights of the first rows are those of as many rows alone.
        values = [x.values if isinstance(x, Padded) else x for x in self.forward(variables)]
        weighted = [
            jnp.real(x * _weights(x.shape, n)).sum()
            for n, x in enumerate(values)
            if jnp.issubdtype(x.dtype, jnp.inexact)
        ]
        return sum(weighted, jnp.zeros(()))


def _parameters(function: Callable) -> dict[str, torch.Tensor]:
    named = function.named_parameters() if isinstance(function, torch.nn.Module) else ()
    return {name: x for name, x in named if x.requires_grad}


def _is_inexact(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _inexact(values: list) -> list:
    return [(n, x) for n, x in enumerate(values) if _is_inexact(x)]


def _weights(shape: tuple, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def _timed(function: Callable, variables: list) -> tuple[list, float, float]:
    """Results of a function under ``jit``, and the seconds of its trace and of its compilation."""
    begin = time.perf_counter()
    lowered = jax.jit(function).trace(variables).lower()
    traced = time.perf_counter()
    compiled = lowered.compile()
    seconds = time.perf_counter() - traced
    return jax.block_until_ready(compiled(variables)), round(traced - begin, 2), round(seconds, 2)


def difference(expected: list, found: list) -> float:
    """The largest difference of elements, relative to the largest element of their array.

    Raises:
        AssertionError: numbers, shapes or dtypes of arrays differ, or one has a value that is not finite alone.
    """
    assert [x.shape for x in expected] == [x.shape for x in found], "shapes differ"
    assert [x.dtype for x in expected] == [x.dtype for x in found], "dtypes differ"
    expected, found = ([np.asarray(x, _wide(x.dtype)) for x in arrays] for arrays in (expected, found))
    assert all(np.array_equal(np.isfinite(x), np.isfinite(y)) for x, y in zip(expected, found, strict=True)), (
        "not finite"
    )
    floor = FLOOR * max((_largest(x) for x in expected), default=0)
    pairs = zip(expected, found, strict=True)
    return float(max((_largest(x - y) / (max(_largest(x), floor) or 1) for x, y in pairs), default=0))


def _wide(dtype: np.dtype) -> type:
    return np.complex128 if jnp.issubdtype(dtype, jnp.complexfloating) else np.float64


def _largest(x: np.ndarray) -> float:
    finite = np.where(np.isfinite(x), x, 0)
    return float(np.abs(finite).max()) if x.size else 0.0
