"""Python's access to a tensor: its values, its metadata, its copies."""

# Properties are looked up on the class, where pyright takes them for their values.
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false

import copy
import functools
import operator
from collections.abc import Callable

import numpy as np
import torch
from jax.core import Tracer

from ..internals.dispatch import DisableTorchFunction
from ..rules.options import Tag
from ..rules.registry import implements_metadata, implements_tensors
from ..runtime.errors import TracedValueError
from ..runtime.errors.locations import user_line
from ..runtime.errors.unwinding import Restart
from ..runtime.translation import current, lift, lift_own, this_call
from ..tensors.dtypes import dtype_t2j, has_doubles, is_integral
from ..tensors.interop import array_to_tensor, to_numpy, values_of
from ..tensors.known import Deferred, in_pytorch
from ..tensors.tensor import Torchish, geometry, make_region
from ..tensors.traced import is_traced
from ..tensors.wrapped import as_class
from ..tracing.conditions import decision
from ..transforms.inputs import is_tensor_differentiated
from ..transforms.vmap import of_all_examples
from ..values.item import HOW_TO_PRINT, Item, formats_text
from ..values.lengths import track_lengths
from ..values.pickled import lend
from ..values.traced_numbers import Number, is_unknown
from .storages import copy_of_memory, is_copied

Tensor = torch.Tensor
aten = torch.ops.aten


def values(tensor: torch.Tensor, what: str, *, leaves_pytorch: bool = False, instead: str | None = None) -> np.ndarray:
    """The values of a tensor, in its logical dtype.

    Args:
        what: what asks for them, whether it takes them out of PyTorch, and what to do; see `TracedValueError`.

    Raises:
        TracedValueError: they depend on a traced input.
    """
    tensor = lift(tensor)
    if leaves_pytorch and tensor.is_floating_point():
        execution = current().execution
        execution.left_pytorch = execution.left_pytorch or user_line()
    known = tensor.known
    if isinstance(known, (torch.Tensor, Deferred)):
        return in_pytorch(lambda: to_numpy(values_of(tensor.real_values)))  # pyright: ignore[reportArgumentType]
    array = tensor.read() if known is None else known
    if is_traced(array):
        array = _concrete(array)
    if array is None:
        if leaves_pytorch:
            current().paths[-1].convert()  # where handlers of the code do not see the error
        raise TracedValueError(what, leaves_pytorch=leaves_pytorch, instead=instead)
    return np.asarray(array).astype(dtype_t2j(tensor.dtype), copy=False)


def _concrete(array):
    """The values of an array that is traced for differentiation only, else None."""
    return array.to_concrete_value() if isinstance(array, Tracer) else array


_NUMBER = "a number that stays traced in sums, comparisons, subscripts and sizes"
_CHOSEN = "if it is a dimension, choose it by conditions, as in `x.sum(0) if d == 0 else x.sum(1)`"
_WRITTEN = f"if it is a size, write tensor.item() in its place, {_NUMBER}"
_TURNS = "for a range, write `i = 0`, `while i < n:` and `i += 1` at its end, which becomes one loop of the graph"


def _instead_of(conversion: str, tensor) -> str:
    """The advice to keep a value traced, in place of a conversion to a Python number."""
    if formats_text():
        return HOW_TO_PRINT
    if type(tensor) is Item:
        return f"leave {conversion}() out, since tensor.item() gives {_NUMBER}"
    return f"write tensor.item() for {conversion}(tensor), {_NUMBER}"


def _scalar(tensor, what: str, instead: str | None = None):
    known = lift(tensor).known
    if type(known) is torch.Tensor and known.dtype == tensor.dtype:
        return in_pytorch(known.item)
    try:
        array = values(tensor, what)
    except TracedValueError:
        if tensor.dtype != torch.bool and instead is not None and _gives_numbers(lift(tensor)):
            raise TracedValueError(what, instead=instead) from None
        if tensor.dtype != torch.bool or tensor.numel() != 1:
            raise
        return decision(lift(tensor), what)
    if array.size != 1:
        raise RuntimeError(f"a Tensor with {array.size} elements cannot be converted to Scalar")
    return array.reshape(()).item() if array.dtype.kind != "V" else float(array.reshape(()))


@implements_tensors(Tensor.item, tags=[Tag.READS])
def item(self):
    if type(self) is Item:
        return self
    if current().steps_abstractly and is_unknown(self):
        return (Item if has_doubles() else Number).of(self.detach().reshape(()).double())
    try:
        return _scalar(self, "Tensor.item()")
    except TracedValueError:
        number = lift(self)
        if number.numel() != 1 or not _gives_numbers(number):
            raise
        current().paths[-1].convert()
        track_lengths()
        return Item.out_of(number)


def _gives_numbers(tensor: Torchish) -> bool:
    """Returns True if code may compute with elements of a traced tensor as with Python numbers."""
    is_real = tensor.dtype != torch.bool and not tensor.dtype.is_complex
    return is_real and current().paths[-1].can_decide(tensor)


@implements_tensors(aten.item.default, aten._local_scalar_dense.default, tags=[Tag.READS])
def _item_of_operators(self):
    """Serves ``item()``, which PyTorch's parser calls for a tensor in place of a number: ``torch.arange(x.max())``."""
    if not current().execution.tracks_lengths and self.numel() == 1 and _may_decide(self):
        raise Restart  # of a size
    return _scalar(self, "Tensor.item()", _CHOSEN if type(self) is Item else f"{_CHOSEN}; {_WRITTEN}")


@implements_tensors(Tensor.__bool__, aten.is_nonzero.default, torch.is_nonzero, Tensor.is_nonzero, tags=[Tag.READS])
def is_nonzero(input):
    size = input.numel()
    if size != 1:
        ambiguity = "no values" if size == 0 else "more than one value"
        raise RuntimeError(f"Boolean value of Tensor with {ambiguity} is ambiguous")
    try:
        return bool(_scalar(input, "bool(tensor)"))
    except TracedValueError:
        return decision(lift(input), "bool(tensor)")


@implements_tensors(Tensor.__int__, tags=[Tag.READS])
def _int(self):
    return _convertible(self, lambda: int(_real(_scalar(self, "int(tensor)", _instead_of("int", self)), "int64_t")))


@implements_tensors(Tensor.__float__, tags=[Tag.READS])
def _float(self):
    what = "float(tensor)"
    return _convertible(self, lambda: float(_real(_scalar(self, what, _instead_of("float", self)), "double")))


def _convertible(tensor, ask: Callable[[], object]) -> object:
    """The result of `ask`; if that is traced, the code starts again, converted, and gets a traced number there."""
    try:
        return ask()
    except TracedValueError:
        number = lift(tensor)
        if number.numel() == 1 and _gives_numbers(number):
            current().paths[-1].convert()
        raise


def _real(value, kind: str):
    """A number as one without an imaginary part, which is none to lose."""
    if not isinstance(value, complex):
        return value
    if value.imag:
        raise RuntimeError(f"value cannot be converted to type {kind} without overflow, got {value}")
    return value.real


@implements_tensors(Tensor.__complex__, tags=[Tag.READS])
def _complex(self):
    return complex(_scalar(self, "complex(tensor)"))


@implements_tensors(Tensor.__index__, tags=[Tag.READS])
def _index(self):
    call = current()
    if not call.execution.tracks_lengths and self.numel() == 1 and _may_decide(self):
        raise Restart  # of a range, or of a size
    try:
        return operator.index(_scalar(self, "a tensor used as an index", _TURNS))  # pyright: ignore[reportArgumentType]
    except TypeError as error:
        if isinstance(error, TracedValueError):
            raise
        raise TypeError("only integer tensors of a single element can be converted to an index") from None


def _may_decide(tensor) -> bool:
    """Returns True if a tensor has a traced integer."""
    if not is_integral(tensor.dtype) or tensor.dtype == torch.bool:
        return False
    lifted = lift(tensor)
    return lifted.known is None and is_traced(lifted.read())


_MOST_NUMBERS = 64
"""The largest number of a traced tensor's elements that become numbers: each one is a slice."""


@implements_tensors(Tensor.tolist, tags=[Tag.READS])
def tolist(self):
    try:
        return values(self, "Tensor.tolist()", leaves_pytorch=True).tolist()
    except TracedValueError:
        tensor, path = lift(self), current().paths[-1]
        is_bool = tensor.dtype == torch.bool and path.can_decide(tensor)
        if not 0 < tensor.numel() <= _MOST_NUMBERS or not (is_bool or _gives_numbers(tensor)):
            raise
        if is_bool:  # of which other code may ask whether one is True
            path.convert()
        track_lengths()
        return _listed(tensor.detach())


def _listed(tensor) -> object:
    """The elements of a traced tensor as numbers, in lists as its dimensions are."""
    if tensor.ndim:
        return [_listed(x) for x in tensor.unbind()]
    return Item.of(tensor) if tensor.dtype == torch.bool else Item.out_of(tensor)


@implements_tensors(Tensor.numpy)
def numpy(self, *, force=False):
    if not force:
        _expect_no_gradient(lift(self))
        for bit, word in (("conj", "conjugate"), ("neg", "negative")):
            if bit in lift(self)._node.bits:
                raise RuntimeError(
                    f"Can't call numpy() on Tensor that has {word} bit set. Use tensor.resolve_{bit}().numpy() instead."
                )
    return lent_values(self, "Tensor.numpy()")


def _expect_no_gradient(tensor: Torchish) -> None:
    """Refuses a conversion that loses a gradient which the code, or JAX around the call, takes."""
    if not torch.is_grad_enabled() or not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        return
    if tensor.history is not None or (tensor.known is None and is_tensor_differentiated(tensor)):
        raise RuntimeError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead. Then no gradient "
            "leads through numpy: one of your own does, in a torch.autograd.Function around it"
        )


def lent_values(tensor, what: str) -> np.ndarray:
    """As `values`, as a read-only array that follows writes to the tensor."""
    return lend(lift(tensor), functools.partial(values, what=what, leaves_pytorch=True))


@implements_tensors(Tensor.__array__)
def __array__(self, dtype=None):
    _expect_no_gradient(lift(self))
    array = lent_values(self, "numpy.asarray(tensor)")
    return array if dtype is None else array.astype(dtype, copy=False)


@implements_tensors(Tensor.__array_wrap__)
def __array_wrap__(self, array):
    if array.dtype == bool:
        array = array.astype(np.uint8)  # as PyTorch does
    with DisableTorchFunction():
        made = torch.from_numpy(np.asarray(array))
    return lift_own(made)


@implements_tensors(Tensor.__repr__)
def _repr(self, *, tensor_contents=None):
    self = lift(self)
    try:
        array = values(self, "repr")
    except TracedValueError:
        return f"tensor(<traced>, shape={tuple(self.shape)}, dtype={self.dtype})"
    with DisableTorchFunction():
        text = repr(array_to_tensor(array, gathers=True).to(self.dtype))
    tangent = None if current().dual is None else current().dual.parts(self)[1]
    return text if tangent is None else f"{text[:-1]}, tangent={tangent!r})"


@implements_tensors(Tensor.__format__)
def _format(self, spec):
    if self.ndim == 0 and (spec or _is_available(self)):
        return format(_scalar(self, "format(tensor)", HOW_TO_PRINT), spec)
    return object.__format__(self, spec) if spec else repr(self)


def _is_available(tensor) -> bool:
    try:
        values(tensor, "format(tensor)")
    except TracedValueError:
        return False
    return True


@implements_tensors(Tensor.__iter__)
def _iter(self):
    if self.ndim == 0:
        raise TypeError("iteration over a 0-d tensor")
    return iter(self.unbind(0))


@implements_tensors(Tensor.__hash__)
def _hash(self):
    return id(self)


@implements_tensors(Tensor.__deepcopy__)
def _deepcopy(self, memo):
    call = current()
    if id(self) in memo:
        return memo[id(self)]
    if not isinstance(self, Torchish):
        # A real tensor is met here when a module's skeleton is made: it stands for itself.
        result = call.constants.lift(self)
    else:
        is_new = self._viewed is None and not is_copied(self, memo)
        is_alone = is_new and not self._node.storage.memory.is_shared
        with torch.no_grad():  # a copy is a leaf of its own
            result = _copied_with_its_memory(self, memo, is_new)
        if self.history is not None:
            result.start_history(is_alone=is_alone)
        result.__dict__.update({key: copy.deepcopy(value, memo) for key, value in self.attributes.items()})
    memo[id(self)] = result
    return result


def _copied_with_its_memory(tensor: Torchish, memo, is_new: bool) -> Torchish:
    """A copy that shares memory with the copies of the tensors with which `tensor` shares it.

    Args:
        is_new: whether it is the first tensor of its memory that is copied, and no view.
    """
    copy_of_root = copy_of_memory(tensor, memo)
    if is_new:
        return copy_of_root
    return make_region(copy_of_root, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype)


# Checks of values by PyTorch's own code (distributions and their samples). What is traced has no value yet: it passes,
# unless checks are to be made at run time.


def _passes(tensor) -> bool:
    return current().execution.path.policy.checks == "assume" and not _is_available(tensor)


@implements_tensors(aten._is_all_true.default)
def _is_all_true(input):
    input = of_all_examples(input)
    return torch.ones((), dtype=torch.bool) if _passes(input) else input.all()


@implements_tensors(aten._is_any_true.default)
def _is_any_true(input):
    input = of_all_examples(input)
    return torch.zeros((), dtype=torch.bool) if _passes(input) else input.any()


@implements_tensors(aten._assert_async.default, aten._assert_async.msg)
def _assert_async(input, assert_msg="Expected Tensor with single nonzero value, but got zero"):
    if not _passes(input) and not input:
        raise RuntimeError(assert_msg)


@implements_tensors(aten._assert_scalar.default)
def _assert_scalar(self, assert_msg):
    if isinstance(self, Tensor):
        _assert_async(self, assert_msg)
    elif not self:
        raise RuntimeError(assert_msg)


@implements_tensors(aten.sym_constrain_range.default, aten.sym_constrain_range_for_size.default)
def _constrain_range(size, *, min=None, max=None):
    if (min is not None and size < min) or (max is not None and size > max):
        raise RuntimeError(f"Invalid value range for {size} between [{min}, {max}].")


@implements_tensors(aten._assert_tensor_metadata.default)
def _assert_tensor_metadata(a, *args, **kwargs):
    geometry(aten._assert_tensor_metadata.default, lift(a), *args, **kwargs)


# Metadata, which PyTorch holds for tensors of a call as for any other: it answers itself.

implements_metadata(
    Tensor.shape.__get__,
    Tensor.dtype.__get__,
    Tensor.ndim.__get__,
    Tensor.layout.__get__,
    Tensor.itemsize.__get__,
    Tensor.nbytes.__get__,
    Tensor.is_sparse.__get__,
    Tensor.is_quantized.__get__,
    Tensor.is_nested.__get__,
    Tensor.is_mkldnn.__get__,
    Tensor.size,
    Tensor.__len__,
    Tensor.dim,
    Tensor.ndimension,
    Tensor.stride,
    Tensor.numel,
    Tensor.nelement,
    Tensor.element_size,
    Tensor.is_contiguous,
    Tensor.is_floating_point,
    Tensor.is_complex,
    Tensor.is_signed,
    torch.numel,
    torch.is_floating_point,
    torch.is_complex,
    torch.is_signed,
)


@implements_tensors(Tensor.storage_offset)
def storage_offset(self):
    tensor = this_call().constants.standing_for(self)
    if isinstance(tensor, Torchish):
        tensor._node.storage.memory.expect_all()
    return geometry(Tensor.storage_offset, tensor)


@implements_tensors(Tensor.as_subclass)
def as_subclass(input, cls):
    return as_class(lift(input), cls)


@implements_tensors(Tensor.is_pinned, aten.is_pinned.default, Tensor.is_shared)
def is_pinned(self, device=None):
    return False


@implements_tensors(Tensor.pin_memory, Tensor.share_memory_)
def pin_memory(self, device=None):
    return self


@implements_tensors(Tensor.device.__get__)
def _device(self):
    if isinstance(self, Torchish):
        return self._label
    with DisableTorchFunction():
        return self.device


@implements_tensors(Tensor.get_device, torch.get_device)
def get_device(self):
    device = self.device
    return -1 if device.type == "cpu" else device.index or 0


@implements_tensors(Tensor.is_cuda.__get__)
def _is_cuda(self):
    return self.device.type == "cuda"


@implements_tensors(Tensor.is_cpu.__get__)
def _is_cpu(self):
    return self.device.type == "cpu"


# Functions of Python's, applied to each element.


@implements_tensors(Tensor.apply_)
def apply_(self, callable):
    return _computed(self, callable, self)


@implements_tensors(Tensor.map_)
def map_(self, tensor, callable):
    return _computed(self, callable, self, tensor)


@implements_tensors(Tensor.map2_)
def map2_(self, x, y, callable):
    return _computed(self, callable, self, x, y)


def _computed(tensor, function, *operands):
    if lift(tensor).history is not None:
        raise RuntimeError("Can't call apply_() on Variable that requires grad. Use var.detach().apply_() instead.")
    lists = [values(x.expand_as(tensor), "a function of each element").reshape(-1).tolist() for x in operands]
    results = [function(*elements) for elements in zip(*lists, strict=True)]
    return tensor.copy_(torch.tensor(results, dtype=tensor.dtype).reshape(tensor.shape))
