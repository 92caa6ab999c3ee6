"""In-place writes: the forms derived from a rule, the ``out=`` argument, and PyTorch's checks of both."""

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..internals.dispatch import DisableTorchFunction
from ..internals.transforms import is_fwd_grad_enabled
from ..runtime.errors.locations import user_level, user_location
from ..runtime.translation import lift, this_call
from ..tensors.array_buffer import ArrayBuffer, LazyArray
from ..tensors.dtypes import canonical, type_name
from ..tensors.history import Source
from ..tensors.interop import is_dense
from ..tensors.known import defer
from ..tensors.rebinding import resize
from ..tensors.regions import overlaps_itself
from ..tensors.tensor import Torchish
from ..tensors.traced import with_derivatives_of, with_tangents_of, without_gradient
from .float8 import FLOAT8, to_float8
from .options import BodyParameters, Rule, Tag
from .pointwise import cast


class InPlace:
    """The form that writes its result into its first operand: ``add_``, ``+=``, ``relu(x, inplace=True)``.

    Args:
        rule: gives the result.
        function: PyTorch's in-place function.
    """

    is_pure = False

    def __init__(self, rule: Any, function: Callable):
        self.rule, self.name, self.elementwise = rule, rule.name + "_", rule.elementwise
        self.names, self.tags = rule.names, rule.tags - {Tag.FRESH} | {Tag.WRITES}
        self._functional = functools.partial(_on_copy, function)

    def __call__(self, args: tuple, kwargs: dict):
        target, operands = lift(args[0]), (*args[1:], *kwargs.values())
        dims = []
        if Tag.INTO_EXPANDED in self.tags and not _accumulates(self.names, args, kwargs):
            dims = _expanded_dims(target)
        with DisableTorchFunction():
            if not dims:
                _expect_no_overlap(target)
            fully = Tag.WRITES_BY_INDEX in self.tags and not _is_mask(operands[:1])
            _expect_no_overlap_with(target, operands, fully=fully)
        value = this_call().run_rule(self._functional, self.rule, args, kwargs)
        if dims:
            value = _as_expanded(target, value, dims, self.name)
        return _write(args[0], value)


def _is_mask(operands: tuple) -> bool:
    """Returns True if a mask alone selects the elements to write, where PyTorch fills all at once."""
    indices = operands[0] if operands and isinstance(operands[0], (list, tuple)) else ()
    return len(indices) == 1 and isinstance(indices[0], torch.Tensor) and indices[0].dtype in (torch.bool, torch.uint8)


def _accumulates(names: BodyParameters, args: tuple, kwargs: dict) -> bool:
    """Returns True if a call adds to the values that it writes to."""
    position = names.positional.index("accumulate") if "accumulate" in names.positional else len(args)
    return bool(args[position] if position < len(args) else kwargs.get("accumulate", False))


def _expanded_dims(tensor: Torchish) -> list[int]:
    """The dimensions along which all elements are at one place."""
    if not tensor._node.overlaps:
        return []
    with DisableTorchFunction():
        sizes, strides = tuple(tensor.shape), tensor.stride()
    if 0 in sizes:
        return []
    return [dim for dim, (size, stride) in enumerate(zip(sizes, strides, strict=True)) if stride == 0 and size > 1]


def _as_expanded(target: Torchish, value: Torchish, dims: list[int], name: str) -> Any:
    """The value to write to a tensor that is expanded in `dims`: at each place, the last element that changes."""
    warnings.warn(
        f"Use of {name} on expanded tensors is deprecated. Please clone() the tensor before performing this operation. "
        "This also applies to advanced indexing e.g. tensor[indices] = tensor",
        stacklevel=user_level(),
    )
    last = list(range(-len(dims), 0))
    with this_call().inside():
        before, after = (x.movedim(dims, last).flatten(last[0]) for x in (target.detach(), value))
        is_changed = before.ne(after) & (before.eq(before) | after.eq(after))
        position = (is_changed * torch.arange(1, after.shape[-1] + 1)).argmax(-1, True)
        found = after.gather(-1, position)
        return found.reshape(*found.shape[:-1], *[1] * len(dims)).movedim(last, dims).expand(target.shape)


def _on_copy(function: Callable, target: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    """The value that an in-place function would write; the tensor itself is not changed."""
    return function(target.clone(memory_format=torch.contiguous_format), *args, **kwargs)


class WithFlag:
    """A function with an ``inplace`` argument, which chooses between the two forms."""

    is_pure = False

    def __init__(self, rule: Any, function: Callable, position: int):
        self.rule, self.name, self.position, self.elementwise = rule, rule.name, position, rule.elementwise
        self._function, self._in_place = function, InPlace(rule, function)
        self.names, self.tags = rule.names.with_flag("inplace", position), rule.tags - {Tag.FRESH}

    def __call__(self, args: tuple, kwargs: dict):
        form, args, kwargs = self.form(args, kwargs)
        return (
            form(args, kwargs) if form is self._in_place else this_call().run_rule(self._function, form, args, kwargs)
        )

    def writes(self, args: tuple, kwargs: dict) -> bool:
        """Returns True if a call selects the form that writes."""
        return self.form(args, kwargs)[0] is self._in_place

    def form(self, args: tuple, kwargs: dict):
        """The form that a call wants, and its arguments without the flag."""
        inplace = kwargs.get("inplace", False)
        if "inplace" in kwargs:
            kwargs = {key: value for key, value in kwargs.items() if key != "inplace"}
        if len(args) > self.position:
            inplace = args[self.position]
            args = args[: self.position] + args[self.position + 1 :]
        return (self._in_place if inplace else self.rule), args, kwargs


def write_in_place(target: Any, value: Torchish, operands: Iterable[object] = (), *, fills: bool = False) -> object:
    """Writes `value` into `target` and returns `target`, with PyTorch's checks.

    Args:
        target: the tensor; everything on its memory sees the write.
        value: of the same shape, and of a dtype that casts to that of `target`.
        operands: what `value` was computed from; arguments that are no tensors are passed over.
        fills: what of `value` is written to one place is one number, so that `target` may overlap itself.

    Raises:
        RuntimeError: `target` overlaps itself or an operand, has another shape, or cannot hold the values' dtype.
    """
    with DisableTorchFunction():
        tensor = lift(target)
        if not fills:
            _expect_no_overlap(tensor)
        _expect_no_overlap_with(tensor, operands)
    return _write(target, value)


def _write(target: torch.Tensor, value: Torchish) -> torch.Tensor:
    with DisableTorchFunction():
        tensor = lift(target)
        if value.shape != tensor.shape:
            raise RuntimeError(
                f"output with shape {list(tensor.shape)} doesn't match the broadcast shape {list(value.shape)}"
            )
        check_cast(value, tensor)
        _store(tensor, value)
        return target  # itself: after ``self.buffer += 1`` a module from outside holds what it held


def check_cast(value: torch.Tensor, target: torch.Tensor) -> None:
    if not torch.can_cast(value.dtype, target.dtype):
        raise RuntimeError(
            f"result type {type_name(value.dtype)} can't be cast to the desired output type {type_name(target.dtype)}"
        )


def _store(tensor: Torchish, value: Torchish) -> None:
    storage = tensor._node.storage
    if storage.memory.foreign:
        storage.memory.foreign = False
        this_call().settings.modules.loses = True
        warnings.warn(
            f"translated code writes in place to a tensor from outside the call, at {user_location()}. The write is "
            "seen inside the call and never outside; return the new value, or pass the tensor through state_dict.",
            stacklevel=user_level(),
        )
    expect_in_its_mode(tensor)
    buffer, known = _cast(value, tensor)
    if isinstance(buffer, LazyArray):
        if torch.is_grad_enabled():
            expect_writable(tensor, (value,))
        tensor.write(buffer, known, keeps_derivatives=not torch.is_grad_enabled())
        return
    array, layout = buffer.buffer
    if not is_fwd_grad_enabled() and array.dtype.kind in "fcV":
        array = with_tangents_of(tensor.buffer.arranged(layout), array)
    dual = this_call().dual
    if dual is not None and dual.has_tangent(tensor) and not dual.has(array) and array.dtype.kind in "fcV":
        array, known = dual.with_zero_tangent(array), None
    if torch.is_grad_enabled():
        expect_writable(tensor, (value,))
        tensor.write(ArrayBuffer(array, layout), known)
        tensor.descend((tensor, value), "CopySlices")
        return
    differentiable = storage.differentiable  # a write without gradients changes nothing about derivatives
    if differentiable:
        written, known = array, None
        array = with_derivatives_of(tensor.buffer.arranged(layout), array)
        if this_call().dual is not None:  # but those forwards follow
            array = with_tangents_of(written, this_call().without_tangents(array))
    elif value._node.storage.differentiable:
        array = without_gradient(array)
    tensor.write(ArrayBuffer(array, layout), known, keeps_derivatives=True)
    storage.differentiable = differentiable


def _cast(value: Torchish, target: Torchish) -> tuple[ArrayBuffer | LazyArray, Any]:
    """The values in the dtype of `target`, and their known value."""
    known, dtype = value.known, canonical(target.dtype)
    is_plain = target.history is None and value.history is None and not target._node.storage.differentiable
    if is_plain and isinstance(known, torch.Tensor) and value.dtype == target.dtype and this_call().is_lazy:
        return value.lazy, known
    buffer = value.buffer
    if value.dtype != target.dtype and known is not None:
        known = defer(torch.Tensor.to, known, target.dtype)
    if buffer.dtype != dtype:
        array = to_float8(buffer.array, dtype) if dtype in FLOAT8 else cast(buffer.array, dtype)
        buffer = ArrayBuffer(array, buffer.layout)
    return buffer, known


def expect_in_its_mode(tensor: Torchish) -> None:
    """Refuses to change a tensor from inference mode outside of it.

    Raises:
        RuntimeError: it was.
    """
    if tensor._node.storage.memory.is_inference and not torch.is_inference_mode_enabled():
        raise RuntimeError(
            "Inplace update to inference tensor outside InferenceMode is not allowed. You can make a clone to get a "
            "normal tensor before doing inplace update."
        )


def expect_writable(tensor: Torchish, values: tuple[Torchish, ...] = ()) -> None:
    """Refuses a write that PyTorch refuses with gradients on: to a leaf, or through some views.

    Args:
        tensor: is to be written to.
        values: what is to be written.

    Raises:
        RuntimeError: it requires grad by itself, or is a view that was made in a way that forbids this.
    """
    restriction = tensor._restriction
    if restriction is not None and any(_leads_to_grad(x) for x in (tensor, *values)):
        view = "Output 0 of View is a view of a view which was" if restriction.is_inherited else "A view was"
        message = _RESTRICTIONS[restriction.kind]
        raise RuntimeError(message.format(view=view, name=restriction.name, number=restriction.number))
    source = tensor.history
    if source is None and isinstance(tensor._viewed, Torchish):  # which may have begun to require grad since
        source = tensor._viewed.history
    if isinstance(source, Source) and not source.is_given:
        what = "a leaf Variable" if source.variable is tensor else "a view of a leaf Variable"
        raise RuntimeError(f"{what} that requires grad is being used in an in-place operation.")


def _leads_to_grad(tensor: Torchish) -> bool:
    """Returns True if a tensor requires grad, or is a view of one that does."""
    return tensor.history is not None or (isinstance(tensor._viewed, Torchish) and tensor._viewed.history is not None)


MADE_IN_FUNCTION = (
    "This view was created inside a custom Function (or because an input was returned as-is) and the autograd logic to "
    "handle view+inplace would override the custom backward associated with the custom Function, leading to incorrect "
    "gradients. This behavior is forbidden. You can fix this by cloning the output of the custom Function."
)
_RESTRICTIONS = {
    "inference": "{view} created in inference mode and is being modified inplace in normal mode. Given that this use "
    "case is ambiguous and error-prone, it is forbidden. You can clarify your code by moving both the view and the "
    "inplace either both inside the inference_mode block (if you don't want the inplace to be tracked) or both outside "
    "(if you want the inplace to be tracked).",
    "no_grad": "{view} created in no_grad mode and is being modified inplace with grad mode enabled. Given that this "
    "use case is ambiguous and error-prone, it is forbidden. You can clarify your code by moving both the view and the "
    "inplace either both inside the no_grad block (if you don't want the inplace to be tracked) or both outside (if "
    "you want the inplace to be tracked).",
    "multiple": "Output {number} of {name} is a view and is being modified inplace. This view is the output of a "
    "function that returns multiple views. Such functions do not allow the output views to be modified inplace. You "
    "should replace the inplace operation by an out-of-place one.",
    "custom": "Output {number} of {name} is a view and is being modified inplace. " + MADE_IN_FUNCTION,
}


def _expect_no_overlap(target: Torchish) -> None:
    if target._node.overlaps and overlaps_itself(tuple(target.shape), target.stride()):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory "
            "location. Please clone() the tensor before performing the operation."
        )


def _expect_no_overlap_with(target: Torchish, operands: Iterable[object], *, fully: bool = False) -> None:
    """Refuses a write to a part of an operand, or if `fully` also to all of it."""
    for operand in operands:
        if isinstance(operand, (list, tuple)):
            _expect_no_overlap_with(target, operand, fully=fully)
        elif isinstance(operand, Torchish) and (fully or operand is not target) and _overlap(target, operand, fully):
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to tensor refer to a "
                "single memory location. Please clone() the tensor before performing the operation."
            )


def _overlap(a: Torchish, b: Torchish, fully: bool) -> bool:
    # As PyTorch: only dense tensors are compared, and the same region is no partial overlap.
    if a._node.storage.memory is not b._node.storage.memory or a.numel() == 0 or b.numel() == 0:
        return False
    if not (is_dense(a) and is_dense(b)):
        return False
    first, second = a.storage_offset() * a.element_size(), b.storage_offset() * b.element_size()
    first_end, second_end = first + a.numel() * a.element_size(), second + b.numel() * b.element_size()
    if (first, first_end) == (second, second_end):
        return fully or a.stride() != b.stride()
    return first < second_end and second < first_end


def with_dtype_of_out(rule: Rule, kwargs: dict) -> dict:
    """The keywords of a call with ``out=``, with its dtype for sums and the like if they get no other."""
    if kwargs.get("dtype") is None and "dtype" in rule.names.options and isinstance(kwargs["out"], torch.Tensor):
        return {**kwargs, "dtype": kwargs["out"].dtype}
    return kwargs


def write_out(
    result: Any, out: Any, operands: Iterable[object] = (), *, exact: bool = False, by_index: bool = False
) -> Any:
    """Writes a rule's result to the ``out=`` argument, which takes its shape, and returns that.

    With `exact` it must have the dtype of what is written, else one that this casts to. With `by_index` it must share
    no memory with the operands, as those that are read one element after the other.
    """
    if isinstance(result, (tuple, list)):
        if isinstance(out, torch.Tensor):
            raise RuntimeError(f"got one tensor as out; wanted {len(result)}, or no out")
        for part, target in zip(result, out, strict=True):
            _write_one_out(part, target, operands, exact, by_index)
        return type(result)(out) if hasattr(type(result), "n_fields") else out
    return _write_one_out(result, out, operands, exact, by_index)


def _write_one_out(result: Torchish, out: torch.Tensor, operands: Iterable[object], exact: bool, by_index: bool):
    target = lift(out)
    if exact and result.dtype != target.dtype:
        raise RuntimeError(f"Expected out tensor to have dtype {result.dtype}, but got {target.dtype} instead")
    check_cast(result, target)
    _expect_no_overlap(target)
    _expect_no_overlap_with(target, operands, fully=by_index)
    if target.shape != result.shape:
        _resize_out(target, result, operands)
    _store(target, result)
    return out  # itself, as in-place forms


def _resize_out(target: Torchish, result: Torchish, operands: Iterable[object]) -> None:
    if any(target is operand for operand in operands):
        raise RuntimeError(
            f"output with shape {list(target.shape)} doesn't match the broadcast shape {list(result.shape)}"
        )
    if target.numel():
        warnings.warn(
            f"An output with one or more elements was resized since it had shape {list(target.shape)}, which does not "
            f"match the required output shape {list(result.shape)}. This behavior is deprecated, and in a future "
            "PyTorch release outputs will not be resized unless they have zero elements. You can explicitly reuse an "
            "out tensor t by resizing it, inplace, to zero elements with t.resize_(0).",
            stacklevel=user_level(),
        )
    resize(target, result.shape, result.stride())
