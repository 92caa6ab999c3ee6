"""The parts of a sparse tensor, its layout, and its autograd attributes."""

# Properties are looked up on the class, where pyright takes them for their values.
# pyright: reportAttributeAccessIssue=false

import numpy as np
import torch

from ...rules.registry import implements_sparse, implements_tensors
from ...runtime.errors import TracedValueError
from ...tensors.sparse_arrays import layout_name
from ...values.item import Item
from ...values.lengths import track_lengths
from ...values.masked import first
from ...values.sparse import COLUMNS, Sparse, make_sparse, size_of
from ...values.valueless import expect_strided
from .conversion import dense, masked_by
from .rules import capacity, coalesced, forms_of, implements_forms, known_indices, of_known, unique_indices

Tensor = torch.Tensor
_COO = torch.sparse_coo
_KINDS = {"is_sparse": frozenset((_COO,)), "is_sparse_csr": frozenset((torch.sparse_csr,))}


@implements_sparse(Tensor.layout.__get__)
def layout(self):
    return self.kind


for _name, _kinds in _KINDS.items():
    implements_sparse(getattr(Tensor, _name).__get__)(lambda self, _kinds=_kinds: self.kind in _kinds)


@implements_sparse(Tensor.device.__get__)
def device(self):
    return self.elements.device


for _name in ("is_cuda", "is_cpu", "is_meta", "is_mps", "requires_grad", "is_leaf", "grad_fn", "retains_grad"):
    _function = getattr(Tensor, _name).__get__
    implements_sparse(_function)(lambda self, _function=_function: _function(self.elements))
for _name in ("is_conj", "is_neg", "get_device", "is_inference", "is_complex", "is_floating_point", "retain_grad"):
    for _function in {x for x in (getattr(Tensor, _name), getattr(torch, _name, None)) if x is not None}:
        implements_sparse(_function)(lambda self, *args, _function=_function: _function(self.elements, *args))


@implements_sparse(torch.result_type)
def result_type(tensor, other):
    return torch.result_type(*(x.elements if isinstance(x, Sparse) else x for x in (tensor, other)))


def _expect(tensor, name: str, kinds) -> None:
    kind = tensor.kind if isinstance(tensor, Sparse) else tensor.layout
    if kind not in kinds:
        wanted = {_COO: "coordinate", torch.sparse_csr: "row compressed", torch.sparse_csc: "column compressed"}
        which = next(text for layout, text in wanted.items() if layout in kinds)
        raise RuntimeError(f"{name} expected sparse {which} tensor layout but got {layout_name(kind)}")


_COMPRESSED = frozenset((torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc))
_ROWS = _COMPRESSED - COLUMNS
for _name, _kinds, _index in (
    ("crow_indices", _ROWS, 0),
    ("col_indices", _ROWS, 1),
    ("ccol_indices", COLUMNS, 0),
    ("row_indices", COLUMNS, 1),
):

    def _of_index(self, _name=_name, _kinds=_kinds, _index=_index):
        _expect(self, _name, _kinds)
        return self.index[_index].detach()

    implements_sparse(getattr(Tensor, _name), getattr(torch.ops.aten, _name))(_of_index)


@implements_forms("indices", "_indices")
def indices(self):
    _expect(self, "indices", {_COO})
    return self.index[0].detach()


@implements_sparse(Tensor.indices)
def indices_of_coalesced(self):
    _expect(self, "indices", {_COO})
    _expect_coalesced(self, "indices")
    if self.length is not None:
        raise TracedValueError("indices() of a tensor that was coalesced, of which the number of elements")
    return self.index[0].detach()


@implements_sparse(Tensor.values)
def values(self):
    if self.kind is _COO:
        _expect_coalesced(self, "values")
    if self.length is not None:
        return first(self.elements, self.length)
    return self.elements.view_as(self.elements)


@implements_forms("_values")
def _values(self):
    return self.elements.detach()


def _expect_coalesced(tensor, name: str) -> None:
    if not tensor.coalesced:
        raise RuntimeError(
            f"Cannot get {name} on an uncoalesced tensor, please call .coalesce() first; _{name}() gives them as they "
            "are"
        )


@implements_forms("_nnz")
def _nnz(self):
    if self.length is not None:
        track_lengths()
        return Item.of(self.length)
    return capacity(self)


@implements_forms("sparse_dim", "_dimI")
def sparse_dim(self):
    return self.sparse_ndim


@implements_forms("dense_dim", "_dimV")
def dense_dim(self):
    return self.dense_ndim


@implements_sparse(Tensor.is_coalesced, torch.ops.aten.is_coalesced)
def is_coalesced(self):
    _expect(self, "is_coalesced", {_COO})
    return self.coalesced


@implements_sparse(*forms_of("_coalesced_"))
def _coalesced_(self, coalesced):
    self.coalesced = coalesced
    return self


@implements_sparse(Tensor.coalesce, torch.ops.aten._coalesce, torch.ops.aten.coalesce)
def coalesce(self):
    _expect(self, "coalesce", {_COO})
    return coalesced(self)


@implements_sparse(Tensor._version.__get__)
def version(self):
    return self._writes[0] + self.elements._version


@implements_sparse(Tensor.is_contiguous)
def is_contiguous(self, memory_format=torch.contiguous_format):
    del memory_format
    return self.kind is _COO or _refuse(self, "is_contiguous", RuntimeError)


def _refuse(tensor, name: str, error: type[Exception]):
    raise error(f"Tensor.{name} of a tensor of layout {tensor.kind}, which has no strides: call .to_dense() first")


for _error, _names in (
    (TypeError, ("storage", "untyped_storage", "data_ptr", "numpy", "tolist", "__array__", "item")),
    (RuntimeError, ("stride", "nbytes", "_base")),
):
    for _name in _names:
        _member = getattr(Tensor, _name)
        implements_sparse(_member if callable(_member) else _member.__get__)(
            lambda self, *args, _name=_name, _error=_error: _refuse(self, _name, _error)
        )


def _of_strided(name: str, count_of=None) -> None:
    def rule(self):
        expect_strided((self,), {})
        if count_of is None:
            raise RuntimeError(f"call .to_sparse() or .to_sparse_csr() first, which {name}() is for")
        return count_of(self)

    implements_tensors(*forms_of(name))(rule)


for _name in (
    *("crow_indices", "col_indices", "ccol_indices", "row_indices", "indices", "values", "is_coalesced", "coalesce"),
):
    _of_strided(_name)
_of_strided("sparse_dim", lambda self: 0)
_of_strided("dense_dim", lambda self: self.ndim)


@implements_sparse(Tensor.__setitem__)
def setitem(self, subscript, value):
    if isinstance(self, Sparse):
        raise TypeError("Cannot assign to a sparse tensor: make one of other indices and values")
    self[subscript] = dense(value)


@implements_sparse(Tensor.__repr__, Tensor.__format__)
def show(self, *args, **kwargs):
    del args, kwargs
    names = {_COO: ("indices",)}.get(self.kind, ("crow_indices", "col_indices"))
    names = ("ccol_indices", "row_indices") if self.kind in COLUMNS else names
    shown = [f"{name}={each!r}" for name, each in zip(names, self.index, strict=True)]
    shown += [
        f"values={self.elements!r}",
        f"size={tuple(size_of(self))}",
        f"nnz={capacity(self)}",
        f"layout={self.kind}",
    ]
    return f"tensor({', '.join(shown)})"


# Autograd: a sparse tensor's history is that of its values.


@implements_sparse(Tensor.requires_grad.__set__)
def set_requires_grad(self, value):
    self.elements.requires_grad = value


@implements_sparse(Tensor.requires_grad_)
def requires_grad_(self, requires_grad=True):
    self.elements.requires_grad_(requires_grad)
    return self


@implements_sparse(Tensor.grad.__get__)
def grad(self):
    if self._gradient is not None:
        return self._gradient
    gradient = self.elements.grad
    return None if gradient is None else gradient_of(self, gradient)


def gradient_of(tensor: Sparse, gradient: torch.Tensor) -> Sparse:
    """The gradient of a sparse tensor, from that of its values; an index that comes twice has it once."""
    found = tensor.of_values(gradient)
    if tensor.kind is not _COO or tensor.coalesced:
        return found
    known = known_indices(tensor.index[0])
    if known is None:
        raise TracedValueError("the gradient of an uncoalesced sparse tensor")
    distinct, which = unique_indices(known)
    positions = np.unique(which, return_index=True)[1]
    gradient = gradient.index_select(0, of_known(positions))
    return make_sparse(_COO, [of_known(distinct)], gradient, size_of(tensor), True)


@implements_sparse(Tensor.grad.__set__)
def set_grad(self, value):
    if value is None:
        self.elements.grad = None
    self._gradient = value


@implements_sparse(Tensor.detach, torch.detach, torch.ops.aten.detach, Tensor.data.__get__)
def detach(self):
    return self.of_values(self.elements.detach())


def _elements(tensor):
    return tensor.elements if isinstance(tensor, Sparse) else tensor


def _gradient_for(tensor, gradient):
    """The gradient that is given for a tensor, at its elements; a strided one for a strided tensor."""
    if not isinstance(tensor, Sparse):
        return dense(gradient) if isinstance(gradient, Sparse) else gradient
    if gradient is None:
        return None
    same = isinstance(gradient, Sparse) and all(a is b for a, b in zip(tensor.index, gradient.index, strict=False))
    if same and tensor.kind is gradient.kind and (tensor.kind is not _COO or tensor.coalesced):
        return gradient.elements  # elsewhere an index may come twice, whose gradients are the sum of what is given
    return masked_by(dense(gradient), tensor).elements


@implements_sparse(torch.autograd.backward)
def autograd_backward(tensors, grad_tensors=None, retain_graph=None, create_graph=False, inputs=None):
    tensors = tensors if isinstance(tensors, (tuple, list)) else (tensors,)
    given = grad_tensors if isinstance(grad_tensors, (tuple, list)) else [grad_tensors] * len(tensors)
    if inputs is not None:
        inputs = [_elements(x) for x in (inputs if isinstance(inputs, (tuple, list)) else (inputs,))]
    torch.autograd.backward(
        [_elements(x) for x in tensors],
        [_gradient_for(x, gradient) for x, gradient in zip(tensors, given, strict=True)],
        retain_graph,
        create_graph,
        inputs=inputs,
    )


@implements_sparse(torch.autograd.grad)
def autograd_grad(outputs, inputs, grad_outputs=None, **options):
    inputs = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    given = [None] * len(outputs) if grad_outputs is None else grad_outputs
    given = given if isinstance(given, (tuple, list)) else [given]
    found = torch.autograd.grad(
        [_elements(x) for x in outputs],
        [_elements(x) for x in inputs],
        [_gradient_for(x, gradient) for x, gradient in zip(outputs, given, strict=True)],
        **options,
    )
    return tuple(
        gradient_of(x, gradient) if isinstance(x, Sparse) and gradient is not None else gradient
        for x, gradient in zip(inputs, found, strict=True)
    )
