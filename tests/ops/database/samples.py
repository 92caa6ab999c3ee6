"""The entries of the operator database, and their samples as functions of the tensors in them."""

import contextlib
import copy
import fnmatch
import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from unittest import mock

import jax
import torch
from torch.utils import _pytree as pytree

from . import exceptions

if TYPE_CHECKING:
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput

__all__ = [
    "DTYPES",
    "Case",
    "bad_cases",
    "cases",
    "dtypes_of",
    "entries",
    "entry",
    "full_name",
    "in_precision",
    "refused_dtypes",
    "samples",
    "twin",
]

DTYPES = (
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.bfloat16,
    torch.float16,
)


def full_name(op: "OpInfo") -> str:
    """The name of an entry with that of its variant, which is unique."""
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def entries(pattern: str = "*") -> "Iterator[OpInfo]":
    """The entries of the operator database whose name, with or without the variant, matches."""
    for op in _by_name().values():
        if fnmatch.fnmatchcase(op.name, pattern) or fnmatch.fnmatchcase(full_name(op), pattern):
            yield op


def entry(name: str) -> "OpInfo":
    """The entry of a full name."""
    return _by_name()[name]


def has_entry(name: str) -> bool:
    """Whether the database of this PyTorch has an entry of that full name."""
    return name in _by_name()


@functools.cache
def _by_name() -> "dict[str, OpInfo]":
    # not above: it takes seconds to import, and many tests only compare results
    from torch.testing._internal.common_methods_invocations import op_db

    return {full_name(op): op for op in op_db}


def dtypes_of(op: "OpInfo", gradients: bool = False) -> list[torch.dtype]:
    """The dtypes of `DTYPES` that an entry, or its derivative, supports in PyTorch on the CPU."""
    supported = op.supported_backward_dtypes("cpu") if gradients else op.supported_dtypes("cpu")
    return [dtype for dtype in DTYPES if dtype in supported]


def refused_dtypes(op: "OpInfo") -> list[torch.dtype]:
    """The dtypes of `DTYPES` that an entry supports on no device."""
    supported = op.supported_dtypes("cpu") | op.supported_dtypes("cuda")
    return [dtype for dtype in DTYPES if dtype not in supported]


def samples(
    op: "OpInfo", dtype: torch.dtype, limit: int | None = None, requires_grad: bool = False, reference: bool = False
) -> "list[SampleInput]":
    """The first samples of an operator, the same ones in every run."""
    torch.manual_seed(0)
    with _making():
        make = op.reference_inputs if reference else op.sample_inputs
        return list(itertools.islice(make("cpu", dtype, requires_grad=requires_grad), limit))


@contextlib.contextmanager
def _making() -> Iterator[None]:
    """Samples are made without warnings, and without a search of the stack for PyTorch's own test.

    Where that is as deep as in pytest, the search costs more than everything else.
    """
    from torch.testing._internal import common_utils
    from torch.testing._internal.opinfo import core

    with (
        warnings.catch_warnings(),
        mock.patch.object(common_utils, "extract_test_fn", return_value=None),
        mock.patch.object(core, "extract_test_fn", return_value=None),
    ):
        warnings.simplefilter("ignore")
        yield


def twin(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same values and strides, on memory of its own."""
    return copy.deepcopy(tensor.detach()).requires_grad_(tensor.requires_grad)


def _as_held(tensor: torch.Tensor) -> torch.Tensor:
    physical = {torch.float64: torch.float32, torch.complex128: torch.complex64}.get(tensor.dtype)
    if physical is not None and not jax.config.jax_enable_x64:
        memory = tensor.detach().new_empty(0).set_(tensor.untyped_storage())
        memory.copy_(memory.to(physical))
    return tensor


def in_precision(tensor: torch.Tensor, precision: torch.dtype) -> torch.Tensor:
    """A tensor of floating point numbers, real or complex, in that of a real dtype; any other as it is."""
    if not (tensor.is_complex() or tensor.is_floating_point()):
        return tensor
    dtype = precision.to_complex() if tensor.is_complex() else precision
    return tensor.detach().to(dtype).requires_grad_(tensor.requires_grad)


class Case:
    """One sample of an entry: `function` of the `tensors` in it, however deep in its arguments they are."""

    def __init__(self, op: "OpInfo", dtype: torch.dtype, sample: "SampleInput"):
        self.op, self.name, self.dtype, self.sample = op, full_name(op), dtype, sample
        self._leaves, self._spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self._at = [i for i, leaf in enumerate(self._leaves) if isinstance(leaf, torch.Tensor)]
        self.tensors: list[torch.Tensor] = [self._leaves[i] for i in self._at]

    def function(self, *tensors):
        """The entry's function."""
        return self.call(self.op, *tensors)

    def comparable(self, result, *tensors):
        """What of a result must be the same in every implementation."""
        freedom = exceptions.freedom_of(self.name)
        return result if freedom is None else self.call(functools.partial(freedom, result), *tensors)

    def traced(self, *tensors):
        """The comparable result, for tensors that were arrays: with x64 off these have lost that they are 64 bits."""
        tensors = [x.to(like.dtype) for x, like in zip(tensors, self.tensors, strict=True)]
        return self.comparable(self.function(*tensors), *tensors)

    def differentiable(self, *tensors) -> list[torch.Tensor]:
        """The entry's function as its derivatives are tested: of inputs and results without freedoms."""
        result = self.call(functools.partial(self.op.gradcheck_wrapper, self.op.get_op()), *tensors)
        leaves = pytree.tree_leaves(self.sample.output_process_fn_grad(result))
        return [x for x in leaves if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())]

    def call(self, function: Callable, *tensors):
        """Calls another function on the sample's arguments, with `tensors` for those in it."""
        filled = list(self._leaves)
        for i, tensor in zip(self._at, tensors, strict=True):
            filled[i] = tensor
        first, args, kwargs = pytree.tree_unflatten(filled, self._spec)
        return function(first, *args, **kwargs)

    def in_precision(self, precision: torch.dtype) -> "Case":
        """The same case in another precision; double tells the more accurate of two results."""
        other = copy.copy(self)
        other.tensors = [in_precision(tensor, precision) for tensor in self.tensors]
        return other

    def twins(self) -> list[torch.Tensor]:
        """The tensors, on memory of their own; with ``jax_enable_x64`` off, 64-bit numbers as 32 bits hold them."""
        return [_as_held(twin(tensor)) for tensor in self.tensors]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}: {str(self.sample)[:500]}"


def cases(
    op: "OpInfo", dtype: torch.dtype, limit: int | None = None, requires_grad: bool = False, reference: bool = False
) -> list[Case]:
    """The first cases of an operator, the same ones in every run."""
    return [Case(op, dtype, sample) for sample in samples(op, dtype, limit, requires_grad, reference)]


def bad_cases(op: "OpInfo") -> Iterator[Case]:
    """What PyTorch refuses: its own error inputs, and samples in dtypes that it supports nowhere."""
    if op.error_inputs_func is not None:
        torch.manual_seed(0)
        with _making():
            inputs = list(op.error_inputs("cpu"))
        for bad in inputs:
            yield Case(op, torch.float32, bad.sample_input)
    for dtype in refused_dtypes(op):
        if not exceptions.is_converted(full_name(op), dtype):
            with contextlib.suppress(Exception):  # samples that cannot be made
                yield from cases(op, dtype, 2)
