"""Sparse tensors within a call: their indices and values are tensors of the call.

A rule of a function of strided tensors never sees one: what it asks for the array of is refused by `HasSparse`, and the
call goes to the rules of sparse tensors (`registry.implements_sparse`), which compute with indices and values by
functions of PyTorch. So code without sparse tensors is asked nothing, and derivatives, known values, and batches are
those of strided tensors.

Invariants, as in PyTorch: of `torch.sparse_coo`, the index is one tensor, ``(sparse dimensions, nnz)``, and the values
are ``(nnz, *dense dimensions)``. Of the compressed layouts, which are of matrices, it is two: where the rows begin,
``(rows + 1,)``, and the columns, ``(nnz,)``; the values are ``(nnz, *block)``; "rows" are those of blocks, and columns
in the layouts that compress these. A place beyond the shape is no element: it pads, and its value is zero.

COO and CSR have kernels. What CSC, BSR and BSC have of their own is their values, which all functions of elements take;
elsewhere they are converted (`ops.sparse.conversion`), and a result is converted back where PyTorch gives their layout.
"""

import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch

from ..internals.dispatch import DisableTorchDispatch, DisableTorchFunction
from ..internals.tensors import make_wrapper_subclass
from ..rules import registry
from ..rules.features import (
    HasSparse,
    Incoming,
    comes_in,
    handles,
    handles_without_values,
)
from ..rules.rule import MetadataRule
from ..runtime.errors import EndedCallError, NoRuleError
from ..runtime.layers import SPARSE
from ..runtime.translation import Call, current, kept, lift, this_call
from ..tensors.sparse_arrays import (
    SparseParts,
    array_of_parts,
    parts_of_array,
    parts_of_tensor,
    without_padding,
)
from ..tensors.tensor import Torchish, geometry
from ..tensors.trees import flatten, is_sparse_array, map_arguments
from .valueless import is_sparse

BLOCKED = frozenset((torch.sparse_bsr, torch.sparse_bsc))
"""The layouts whose values are blocks."""
COLUMNS = frozenset((torch.sparse_csc, torch.sparse_bsc))
"""The layouts that compress columns."""


@SPARSE.has
class Sparse(torch.Tensor):
    """A tensor of a sparse layout; see the invariants above."""

    __module__ = "torch"

    kind: torch.layout
    index: tuple[torch.Tensor, ...]
    elements: torch.Tensor
    coalesced: bool
    """True if, in COO, the indices are distinct and in order."""
    length: torch.Tensor | None = None
    """The number of elements, if a traced input decides it and the others are padding; None if all count.

    Those of a coalesced tensor come first.
    """
    _writes: list[int]
    _gradient: torch.Tensor | None = None

    @classmethod
    def __torch_function__(
        cls, func: Callable, kinds: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        del kinds
        call = current()
        if call is None:
            raise EndedCallError(getattr(func, "__name__", str(func)), "a sparse tensor")
        return _run(call, func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(
        cls, func: object, kinds: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        del kinds
        return _run(this_call(), func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: object = None) -> str:
        del tensor_contents
        call = current()
        return "<tensor of another call>" if call is None else _run(call, torch.Tensor.__repr__, (self,), {})

    def __deepcopy__(self, memo: dict[int, Any]) -> "Sparse":
        return memo.setdefault(id(self), self.of_values(self.elements.clone()))

    @property
    def sparse_ndim(self) -> int:
        """The number of sparse dimensions: those with an index."""
        return self.index[0].shape[0] if self.kind is torch.sparse_coo else 2

    @property
    def dense_ndim(self) -> int:
        """The number of dense dimensions, which come after them (COO)."""
        return self.elements.ndim - 1 if self.kind is torch.sparse_coo else 0

    @property
    def block(self) -> tuple[int, ...]:
        """The size of a block, of the layouts that have them."""
        return tuple(self.elements.shape[1:]) if self.kind in BLOCKED else ()

    def of_values(self, elements: torch.Tensor) -> "Sparse":
        """Other values at the same places."""
        found = make_sparse(self.kind, self.index, elements, size_of(self), self.coalesced, self.length)
        found.coalesced = self.coalesced
        return found

    def become(self, other: "Sparse") -> "Sparse":
        """Takes over all of `other`, as a write in place does."""
        self.kind, self.index, self.coalesced = other.kind, other.index, other.coalesced
        self.elements, self.length = other.elements, other.length
        self._writes[0] += 1
        if size_of(self) != size_of(other):
            with DisableTorchFunction(), DisableTorchDispatch():
                torch.Tensor.data.__set__(self, other)  # pyright: ignore[reportAttributeAccessIssue]
        return self


def size_of(tensor: torch.Tensor) -> torch.Size:
    """The shape, without asking a rule."""
    with DisableTorchFunction():
        return tensor.shape


def make_sparse(
    kind: torch.layout,
    index: Sequence[torch.Tensor],
    elements: torch.Tensor,
    size: Sequence[int],
    coalesced: bool,
    length: torch.Tensor | None = None,
) -> Sparse:
    """A tensor of a sparse layout with these indices and values; that they fit is not checked.

    Raises:
        RuntimeError: a tensor of a compressed layout has batches or dense dimensions.
    """
    with DisableTorchFunction():
        if kind is not torch.sparse_coo and len(size) != 2:
            raise no_matrix(kind, size)
        dtype = elements.dtype
        coalesced = coalesced or (kind is torch.sparse_coo and not index[0].shape[1])
    tensor = make_wrapper_subclass(Sparse, tuple(size), dtype=dtype)
    tensor.kind, tensor.index, tensor.elements, tensor.coalesced = kind, tuple(index), elements, coalesced
    tensor.length = length
    tensor._writes = [0]
    return tensor


def no_matrix(kind: torch.layout, size: Sequence[int]) -> RuntimeError:
    """An error about batches or dense dimensions of a compressed layout."""
    return RuntimeError(
        f"got a tensor of layout {kind} and shape {list(size)}; wanted a matrix: give batches and dense dimensions as "
        ".to_sparse_coo() or .to_dense()"
    )


class _Constants(dict[int, tuple[torch.Tensor, "Sparse"]]):
    """The call's tensor for each sparse tensor from outside, by id, with that one to keep it alive."""


def lifted_sparse(tensor: torch.Tensor) -> Sparse:
    """The call's tensor for a sparse tensor from outside: a constant."""
    if isinstance(tensor, Sparse):
        return tensor
    known = kept(_Constants).get(id(tensor))
    if known is not None:
        return known[1]
    with DisableTorchFunction(), DisableTorchDispatch(), torch.no_grad():
        parts = parts_of_tensor(tensor)
        requires_grad = tensor.requires_grad
        gradient = tensor.grad if tensor.is_leaf else None
    index = [lift(x) for x in parts.index]
    lifted = make_sparse(parts.layout, index, lift(parts.values), parts.shape, parts.is_coalesced)
    if requires_grad:
        lifted.elements.start_history()  # pyright: ignore[reportAttributeAccessIssue]
    if gradient is not None:
        lifted._gradient = lifted_sparse(gradient) if gradient.layout is not torch.strided else lift(gradient)
    kept(_Constants)[id(tensor)] = tensor, lifted
    return lifted


@comes_in
class _IncomingSparse(Incoming):
    """The call's own sparse tensors, which have no array."""

    def takes(self, kind: type) -> bool:
        return issubclass(kind, Sparse)

    def lift(self, call: object, tensor: object) -> Any:
        raise HasSparse


def given_sparse(array: object) -> Sparse:
    """The call's tensor for a sparse array that is an argument.

    Raises:
        TypeError: PyTorch has no layout for it.
    """
    call, parts = this_call(), without_padding(parts_of_array(array))
    index = [call.constants.given(x, torch.int64) for x in parts.index]
    return make_sparse(parts.layout, index, lift(parts.values), parts.shape, parts.is_coalesced)


def bound_sparse(tensor: torch.Tensor, array: jax.Array) -> Sparse:
    """Binds a sparse array to a tensor from outside, such as a buffer.

    Raises:
        TypeError: the array is not sparse.
    """
    if not is_sparse_array(array):
        raise TypeError(
            f"the state has a dense array of shape {list(array.shape)} for a tensor of layout {tensor.layout}; wanted "
            "a sparse array, as t2j(tensor) gives it"
        )
    bound = given_sparse(array)
    if tensor.requires_grad:
        bound.elements.start_history()  # pyright: ignore[reportAttributeAccessIssue]
    kept(_Constants)[id(tensor)] = tensor, bound
    return bound


def array_of_sparse(tensor: torch.Tensor) -> object:
    """The sparse array that a sparse tensor leaves a call as."""
    call, tensor = this_call(), lifted_sparse(tensor)
    index, values = (
        [call.array_of(lift(x)) for x in tensor.index],
        call.array_of(lift(tensor.elements)),
    )
    return array_of_parts(SparseParts(tensor.kind, index, values, tuple(size_of(tensor)), tensor.coalesced))


def _lifted(value: object) -> object:
    if isinstance(value, torch.Tensor) and not isinstance(value, (Torchish, Sparse)):
        return lifted_sparse(value) if is_sparse(value) else value
    return value


@handles_without_values(HasSparse)
def _run_lifted(error: HasSparse, call: Call, function: Callable, args: tuple, kwargs: dict) -> object:
    if not any(isinstance(x, torch.Tensor) and is_sparse(x) for x in flatten((args, kwargs))[0]):
        raise _refusal(function, args, kwargs) from error  # it comes from within, and would come again
    return _run(call, function, args, kwargs)


@handles(Sparse, 1)
def _run(call: Call, function: Any, args: tuple, kwargs: dict) -> Any:
    """The result of a PyTorch function with a sparse argument.

    Raises:
        NoRuleError: no rule says so.
    """
    args, kwargs = map_arguments(_lifted, (args, kwargs))
    rule = registry.lookup_sparse(function)
    if rule is not None:
        if kwargs.pop("out", None) is not None:
            raise NotImplementedError(
                "got out= for a function of a sparse tensor, which has none: take what the function gives instead"
            )
        with call.inside():
            return rule(*args, **kwargs)
    strided = registry.lookup(function)
    if type(strided) is MetadataRule:
        return geometry(function, *args, **kwargs)
    if strided is None and isinstance(function, types.FunctionType) and not call.is_own_body(function, args):
        return call.run_body(function, args, kwargs)
    raise _refusal(function, args, kwargs) from None


def _refusal(function: Callable[..., object], args: tuple, kwargs: dict) -> NoRuleError:
    found: list[Sparse] = []
    map_arguments(lambda x: found.append(x) if isinstance(x, Sparse) else None, (args, kwargs))
    name = function.__self__.__name__ if function.__name__ == "__get__" else function.__name__
    layout = found[0].kind if found else torch.sparse_coo
    return NoRuleError(f"torch.{name}", layout=layout)
