"""PyTorch's `scan` and `map` are `jax.lax.scan`; `associative_scan` is `jax.lax.associative_scan`."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import torch
from jax import lax

from ...branches.block import Block, BlockEffects, trace_blocks, uncaptured
from ...calls.call import current
from ...internals.control_flow import (
    associative_scan as torch_associative_scan,
    associative_scan_module,
    scan as torch_scan,
)
from ...internals.pytree import tree_leaves
from ...patches import runs_instead_of, stands_in
from ...rules.registry import implements_tensors
from ...tensors.tensor import Torchish
from ...tracing.tensor_spec import TensorSpec
from .carry import TensorCarry
from .results import Tensors


class _Direction:
    """That of the next scan."""

    def __init__(self, *, reverse: bool):
        self._reverse = reverse

    def take(self) -> bool:
        """Whether the scan that asks first goes backwards; those within it do not."""
        reverse, self._reverse = self._reverse, False
        return reverse


_direction: ContextVar[_Direction | None] = ContextVar("direction", default=None)


@runs_instead_of(torch_scan, with_original=True)
def _scan(original, combine_fn, init, xs, *, dim=0, reverse=False):
    """PyTorch checks the arguments, moves `dim`, and turns all around that JAX can go through backwards."""

    def combine(carry, x):
        result = combine_fn(carry, x)
        if not (isinstance(result, (tuple, list)) and len(result) == 2):
            raise uncaptured("scan", f"expected combine_fn to return a tuple (next_carry, y), but got {type(result)}")
        got, wanted = len(tree_leaves(result[0])), len(tree_leaves(init))
        if got != wanted:
            raise uncaptured("scan", f"expected the next carry to have {wanted} tensors, as init has, but got {got}")
        return tuple(result)

    token = _direction.set(_Direction(reverse=reverse is True))
    try:
        function = combine if callable(combine_fn) else combine_fn
        return original(function, init, xs, dim=dim, reverse=False if reverse is True else reverse)
    finally:
        _direction.reset(token)


@implements_tensors(torch.ops.higher_order.scan)
def scan(combine_fn, init, xs, additional_inputs=(), **options):
    del options  # which of its inputs it writes: that is seen
    direction = _direction.get()

    def combine(*args):
        return combine_fn(*args, *additional_inputs)

    return _loop("scan", combine, init, xs, reverse=direction is not None and direction.take())


@implements_tensors(torch.ops.higher_order.map_impl)
def map_impl(f, xs, pos_args=(), **options):
    del options
    return _loop("map", lambda *args: f(*args, *pos_args), (), xs)


def _loop(operator: str, function: Callable, init: Sequence, xs: Sequence, *, reverse: bool = False) -> Any:
    """Runs ``function(*carry, *slices)`` for one slice after the other; its first results are the next carry."""
    call: Any = current()
    state = TensorCarry(operator, init)
    slices = _Slices([call.lift(x) for x in xs])
    return trace_blocks(lambda effects: _trace(effects, operator, function, state, slices, reverse), operator)


class _Slices:
    """What is gone through along its first dimension."""

    def __init__(self, tensors: list[Torchish]):
        self.length = tensors[0].shape[0]
        self._specs, self.arrays = [], []
        for tensor in tensors:
            spec, array = TensorSpec.of(tensor), tensor.physical.array
            if spec.layout is not None and spec.layout[0] != 0:
                spec, array = spec._replace(layout=None), tensor.read()
            self._specs.append(spec.example(0))
            self.arrays.append(array)

    @property
    def wants_grad(self) -> bool:
        return any(spec.wants_grad for spec in self._specs)

    def tensors(self, arrays: Sequence) -> list[Torchish]:
        return [spec.tensor(array) for spec, array in zip(self._specs, arrays, strict=True)]


def _trace(
    effects: BlockEffects, operator: str, function: Callable, state: TensorCarry, slices: _Slices, reverse: bool
):
    count = len(state.given)
    function = Tensors(function, operator, integers=False)
    block = Block(function, effects, repeats=True)
    keys = None if effects.key is None else jax.random.split(effects.key, slices.length)

    def step(carry, x):
        arrays, key = x
        args = [*state.tensors(carry[0]), *slices.tensors(arrays)]
        results, written = block.trace(args, carry[1], key)
        carried = state.next(effects, results[:count], block.given[:count])
        return (carried, written), results[count:]

    carry = (state.arrays, effects.arrays)
    (last, written), stacked = lax.scan(step, carry, (slices.arrays, keys), slices.length, reverse)
    effects.leave(written)
    wants_grad = slices.wants_grad or state.wants_grad or block.wants_grad
    specs = [given.spec for given in state.given]
    specs += [given.spec.with_examples(0) for given in block.given[count:]]
    pairs = zip(specs, [*last, *stacked], strict=True)
    return function.restored([spec.that_may_want_grad(wants_grad).result(array) for spec, array in pairs])


@runs_instead_of(torch_associative_scan, with_original=True)
def _associative_scan(original, combine_fn, xs, dim, reverse=False, combine_mode="pointwise"):
    """Where PyTorch has a kernel of its own, for CUDA, any function will do."""
    mode = "generic" if combine_mode == "pointwise" else combine_mode
    return original(combine_fn, xs, dim, reverse, mode)


@stands_in(associative_scan_module, "generic_associative_scan")
def generic_associative_scan(operator: Callable, leaves: Sequence, dim=0, additional_inputs=()):
    call: Any = current()
    lifted = [call.lift(leaf) for leaf in leaves]
    specs = [TensorSpec.of(tensor)._replace(layout=None, strides=None) for tensor in lifted]

    def combine(left, right):
        tensors = [spec.tensor(array) for array, spec in zip([*left, *right], [*specs, *specs], strict=True)]
        results = tree_leaves(operator(*tensors, *additional_inputs))
        return [call.lift(result).to(spec.dtype).read() for result, spec in zip(results, specs, strict=True)]

    arrays = lax.associative_scan(combine, [tensor.read() for tensor in lifted], axis=dim)
    return [spec.result(array) for spec, array in zip(specs, arrays, strict=True)]


@implements_tensors(torch.ops.higher_order.associative_scan)
def associative_scan(combine_fn: Callable, xs: Sequence, additional_inputs=()):
    return generic_associative_scan(combine_fn, xs, 0, additional_inputs)
