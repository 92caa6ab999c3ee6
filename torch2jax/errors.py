"""The errors that users of torch2jax meet, and how they name the user's line."""

import dis
import functools
import itertools
import os
import sys
import sysconfig
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import optree
import torch

from .internals.dispatch import DisableTorchFunction
from .keepers import keeper_of
from .restarts import refused

REFUSALS = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
"""The exceptions that PyTorch's functions and rules refuse operands with."""


def folders_of(*paths: Any) -> tuple[str, ...]:
    """Folders as frames may name them: through links, as in an environment that is one, or without."""
    found = [str(each) + os.sep for path in paths for each in (Path(path).absolute(), Path(path).resolve())]
    return tuple(dict.fromkeys(found))


_TORCH = folders_of(Path(str(torch.__file__)).parent)
_JAX = folders_of(Path(str(jax.__file__)).parent)
_TRANSLATORS = _JAX + folders_of(Path(__file__).parent, Path(str(optree.__file__)).parent)
_LIBRARIES = _TORCH + _TRANSLATORS
_STANDARD = folders_of(sysconfig.get_paths()["stdlib"])
# An installed package lives below the standard library's folder, yet is the user's model code.
_SITE_PACKAGES = folders_of(sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"])


@functools.lru_cache(maxsize=4096)
def is_library(filename: str) -> bool:
    """Returns True if a file is of torch, jax, the standard library or this package."""
    if filename.startswith("<"):
        return True
    if filename.startswith(_LIBRARIES):
        return True
    return filename.startswith(_STANDARD) and not filename.startswith(_SITE_PACKAGES)


class SourceLine(NamedTuple):
    """A line of source code, and the function that it is in."""

    file: str
    line: int
    function: str
    is_loop: bool = False
    """True for a loop, as opposed to a condition in the same line, such as its test."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}" if self.file else "<unknown location>"


def _innermost(is_skipped: Callable[[str], bool]) -> SourceLine:
    frame = sys._getframe(2)
    while frame is not None:
        if not is_skipped(frame.f_code.co_filename):
            return SourceLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return SourceLine("", 0, "")


def user_line() -> SourceLine:
    """The innermost line on the stack outside torch, jax, the standard library and this package."""
    return _innermost(is_library)


def caller_line() -> SourceLine:
    """The innermost line on the stack outside jax and this package."""
    return _innermost(is_translator)


def user_location() -> str:
    """Names the innermost ``file:line`` on the stack outside torch, jax, the standard library and this package."""
    return str(user_line())


def user_level() -> int:
    """The ``stacklevel`` of a warning that is given by who calls this, for the user's innermost line to be named."""
    frame, level = sys._getframe(1), 1
    while frame is not None and is_library(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return level


def is_jax(filename: str) -> bool:
    """Returns True if a file is of JAX."""
    return filename.startswith(_JAX)


def is_translator(filename: str) -> bool:
    """Returns True if a file is of JAX or of this package."""
    return filename.startswith(_TRANSLATORS)


def is_raised_by_code(error: BaseException, caller_file: str) -> bool:
    """Returns True if code itself raises an exception, with a ``raise`` or ``assert`` of its own, as a check does.

    It does not where an operation fails, or in answer to what PyTorch, JAX or this package raises. PyTorch's Python
    code does where the same file has asked for a value before, as `torch.distributions` does, and in ``torch._check``.

    Args:
        caller_file: the file that has asked for a value last.
    """
    if _fails_while_raising(error, caller_file):
        return True
    raised: BaseException | None = error
    while raised is not None:
        frame = _innermost_of(raised)
        if frame is None:
            return False
        file, operation = frame
        if isinstance(raised, (TracedValueError, NoRuleError)) or is_translator(file):
            return False
        if file.startswith(_TORCH) and file not in (caller_file, str(torch.__file__)):
            return False
        if raised is error and operation != "RAISE_VARARGS":
            return False
        raised = raised.__cause__ or raised.__context__
    return True


def _fails_while_raising(error: BaseException, caller_file: str) -> bool:
    """True if an exception comes while code makes the one that it is about to raise: a message that shows values."""
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        is_of_code = not is_library(code.co_filename) or code.co_filename == caller_file
        if is_of_code and _is_raising(code, traceback.tb_lasti):
            return True
        traceback = traceback.tb_next
    return False


def _is_raising(code: types.CodeType, offset: int) -> bool:
    """Returns True if an instruction is in the expression of a ``raise``, or in the message of an ``assert``.

    A ``raise`` has all of its expression within its place in the source, also loops of comprehensions and conditions.
    The place of an ``assert`` may be its condition: its message lies between the class of its error and the end.
    """
    here = next(itertools.islice(code.co_positions(), offset // 2, None))
    asserted = None
    for instruction in dis.get_instructions(code):
        if instruction.opname in _ASSERTING and instruction.argrepr in ("", "AssertionError"):
            asserted = instruction.offset
        elif instruction.opname == "RAISE_VARARGS":
            if instruction.offset == offset:
                return False
            if asserted is None and _is_within(here, instruction.positions):
                return True
            if asserted is not None and asserted < offset < instruction.offset:
                return True
            asserted = None
    return False


_ASSERTING = ("LOAD_ASSERTION_ERROR", "LOAD_COMMON_CONSTANT")  # the latter of other things too, since Python 3.14


def _is_within(part: tuple, full: dis.Positions | None) -> bool:
    """Returns True if a position in the source lies in another; a file may be compiled without positions."""
    if full is None or None in part or None in full:
        return False
    (first, last, start, end), (begins, ends, left, right) = part, full
    return (begins, left) <= (first, start) and (last, end) <= (ends, right)


def _innermost_of(error: BaseException) -> tuple[str, str] | None:
    """The file that an exception comes from, and the operation of Python that raised it."""
    traceback: types.TracebackType | None = error.__traceback__
    if traceback is None:
        return None
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    return code.co_filename, dis.opname[code.co_code[traceback.tb_lasti]]


_OF_QUANTIZED_DTYPES = ("torch.ops.quantized.", "torch.ops.aten.quantize_per_")
_OF_QUANTIZED_DTYPES += (
    "torch.ops.aten._make_per_",
    "torch.ops.aten._empty_affine",
    "torch.ops.aten._empty_per_channel",
)


class NoRuleError(NotImplementedError):
    """A PyTorch operator has no JAX implementation: neither a rule nor a decomposition into operators with rules.

    Args:
        operator: its name.
        reason: why it cannot run in PyTorch either, if you asked for that.
        unknown: PyTorch's message, if PyTorch itself cannot run it.
        layout: the layout of a sparse tensor among its arguments.
    """

    def __init__(
        self, operator: str, reason: str | None = None, unknown: str | None = None, layout: object | None = None
    ):
        location = user_location()
        if layout is not None:
            message = (
                f"torch2jax has no rule for {operator} of a tensor of layout {layout}, called at {location}. "
                "tensor.to_dense() gives a strided one; docs/sparse.md lists what sparse tensors can do."
            )
        elif reason is None and operator.startswith(_OF_QUANTIZED_DTYPES):
            message = (
                f"{operator}, called at {location}, is of PyTorch's own quantized dtypes (torch.qint8, torch.quint8), "
                "whose scales JAX's arrays cannot hold: torch.ao.quantization leads to it. Quantize the model with "
                "torchao.quantization.quantize_ instead, or keep int_repr() and scales as plain tensors, as "
                "docs/quantized.md has it; or run the model in PyTorch: torch2jax.torch2jax(model, *examples)."
            )
        elif reason is None:
            message = (
                f"torch2jax has no rule for {operator}, called at {location}. "
                f"Add one with `@torch2jax.implements({operator})` on a function from jax arrays to jax arrays, "
                'rewrite that line with other operators, or run it in PyTorch: t2j(..., on_missing="call_torch").'
            )
        else:
            message = (
                f"torch2jax cannot run {operator} in PyTorch, called at {location}: {reason}. "
                "Rewrite that line, or add a rule with `@torch2jax.implements` for an operator that has none."
            )
        super().__init__(message if unknown is None else f"{message} PyTorch has no kernel for it either: {unknown}")
        refused(self, location)


class SparseLayoutError(TypeError):
    """A tensor of a sparse layout was passed to, or requested from, something that does not support it."""

    def __init__(self, what: str):
        super().__init__(
            f"{what}, at {user_location()}, which takes no tensor of a sparse layout: give dense tensors "
            "(tensor.to_dense()). docs/sparse.md lists what sparse ones can do."
        )


class StridedNestedError(TypeError):
    """A nested tensor of strided layout was passed or requested: it has no shape, and no JAX equivalent."""

    def __init__(self):
        super().__init__(
            "got a nested tensor of layout torch.strided; wanted a jagged one: torch.nested.nested_tensor(parts, "
            "layout=torch.jagged), torch.nested.as_nested_tensor(parts, layout=torch.jagged) of tensor.unbind(), or a "
            "padded tensor: torch.nested.to_padded_tensor(tensor, 0.0)"
        )


_LEAVING_HINT = (
    " Code that leaves PyTorch, as for numpy, runs in PyTorch itself with torch2jax(function, *examples), or, as a "
    "part or operator of what is translated, with t2j(..., call_torch=[...])."
)


class TracedValueError(TypeError):
    """Python needs the value of a tensor that depends on a traced input.

    Args:
        what: the function that needs the value.
        leaves_pytorch: whether it takes the value out of PyTorch, as for numpy.
        location: the user's ``file:line`` that the error names; by default the innermost one on the stack.
        instead: code that can replace it, and needs no value.
    """

    def __init__(
        self, what: str, *, leaves_pytorch: bool = False, location: str | None = None, instead: str | None = None
    ):
        self.what, location = what, location or user_location()
        first = "" if instead is None else f"{instead}; "
        super().__init__(
            f"{what} needs the value of a tensor that depends on a traced input, at {location}. Under jax.jit, vmap "
            f"and scan such a value does not exist yet. Ways out: {first}call the function without jit; "
            "pass that input as a static argument or close over it; or rewrite the line with torch.where or masks, "
            "so that no shape and no branch depends on data." + (_LEAVING_HINT if leaves_pytorch else "")
        )
        refused(self, location)


class BranchError(TracedValueError):
    """A condition or loop on traced values cannot be part of the graph."""

    def __init__(self, message: str):
        self.what = "bool(tensor)"
        Exception.__init__(self, message)


class EndedCallError(RuntimeError):
    """A tensor is used outside of the translated call that made it.

    Args:
        function: the PyTorch function that received it.
        tensor: the tensor in words.
        origin: where it was made, and what keeps it.
    """

    def __init__(self, function: str, tensor: str = "a tensor", origin: str = ""):
        super().__init__(
            f"{function} got {tensor} of a translated call that has ended, at {user_location()}; wanted one of this "
            f"call. {origin}Return tensors from the function given to t2j instead of keeping them aside. What depends "
            "on no input, no parameter and no random key may be kept: after the call it is a tensor of PyTorch's own"
        )


class StaleGradientError(RuntimeError):
    """A tensor that PyTorch has computed with gradients before the call, as in a cache, is used in it as a constant.

    Args:
        tensor: PyTorch's own.
    """

    def __init__(self, tensor: torch.Tensor):
        with DisableTorchFunction():
            dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
            name = "a view" if tensor.grad_fn is None else tensor.grad_fn.name()
        keeper = keeper_of(tensor)
        kept = f" (kept by {keeper})" if keeper else ""
        super().__init__(
            f"got a {dtype} tensor of shape {shape}{kept}, which PyTorch has computed with gradients before the call "
            f"({name}), at {user_location()}. Here it is a constant: the gradients of what it was computed "
            "from would be zero. Ways out: clear what keeps it before the call; let PyTorch fill that under "
            "torch.no_grad(); or detach() it, if it is a constant"
        )


class WithoutValuesError(NotImplementedError):
    """A tensor has no values that an array could hold."""


class OnMetaError(WithoutValuesError):
    """A tensor on the meta device, or a fake tensor, meets tensors with values.

    Args:
        made: the dtype that a function creates on meta, whatever its arguments; None if it received a meta tensor.
    """

    def __init__(self, made: torch.dtype | None = None):
        self.made = made
        super().__init__(
            "expected all tensors to be on one device, but got one on meta, which has no data. Give a parameter or "
            "buffer its array, state_dict=...; make others where the values are, or all of them on meta"
        )


class WrapsOthersError(WithoutValuesError):
    """A tensor wraps others and has no values of its own: it computes in its ``__torch_dispatch__``.

    Args:
        kind: its class.
    """

    def __init__(self, kind: type):
        super().__init__(
            f"got a {kind.__name__}, which holds no values but wraps other tensors; wanted one with values: "
            "give the tensors that it wraps"
        )


class QuantizedError(WithoutValuesError):
    """A tensor of PyTorch's own quantized dtypes was passed to something that takes none: JAX has no such dtype.

    Args:
        dtype: the tensor's.
    """

    def __init__(self, dtype: torch.dtype):
        super().__init__(
            f"got a quantized tensor ({dtype}); wanted a dense one. Convert it first with tensor.dequantize(), or keep "
            "tensor.int_repr() and its scales as plain tensors. What code closes over may be read alone (dequantize, "
            "int_repr, q_scale, ...); docs/quantized.md"
        )


class SymbolicSizeError(TypeError):
    """An argument has a symbolic size, but PyTorch's code needs integers."""

    def __init__(self):
        super().__init__(
            "got an array with a symbolic size (jax.export.symbolic_shape); PyTorch's code wants integers. "
            "torch2jax.export(f)(*args) in place of jax.export.export(jax.jit(f))(*args) exports it for all sizes; f "
            "is what t2j gave, or a function that calls it"
        )


class BatchedValueError(TracedValueError, RuntimeError):
    """Like `TracedValueError`, for a value that differs between the examples of a ``torch.vmap``."""

    def __init__(self, error: TracedValueError):
        hint = _VMAP_HINTS.get(error.what)
        if hint is None:
            hint = "We do not support batching operators that can output dynamic shape"
            if error.what.startswith("torch."):
                hint += f". Attempted to vmap over aten::{error.what.removeprefix('torch.')}"
        self.what = error.what
        Exception.__init__(self, f"vmap: {hint}. {error}")


_VMAP_HINTS = {
    "Tensor.item()": "It looks like you're calling .item() on a Tensor",
    "bool(tensor)": "It looks like you're attempting to use a Tensor in some data-dependent control flow",
}


_AXES_HINT = (
    "PyTorch's code says nothing of shardings, which JAX's types have on a mesh with explicit axes. Give the function "
    "that calls it to jax.sharding.auto_axes(function, out_sharding=...), or make the mesh with "
    "axis_types=(jax.sharding.AxisType.Auto,) for each axis"
)


def hint_at_axes(error: Exception) -> None:
    """Adds advice on JAX's sharded types to an error about them."""
    if type(error).__name__ == "ShardingTypeError" and _AXES_HINT not in getattr(error, "__notes__", ()):
        error.add_note(_AXES_HINT)


def hint_at_symbols(error: Exception) -> None:
    """Says how to export symbolic sizes, if an error shows that PyTorch received one.

    Raises:
        SymbolicSizeError: it does.
    """
    if isinstance(error, TypeError) and "_DimExpr" in str(error):
        raise SymbolicSizeError from None
