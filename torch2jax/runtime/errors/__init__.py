"""The errors that users of torch2jax meet, and what else their messages and tracebacks need.

`locations.py` finds the user's line, the object that keeps another alive, and what to write instead of an unknown name.
`hints.py` adds advice to errors of Python, PyTorch and JAX, and `tracebacks.py` the path of the module; it leaves out
this package's own frames. `unwinding.py` ends code that catches every exception.
"""

import torch

from ...internals.dispatch import DisableTorchFunction
from .locations import keeper_of, line_that_calls, user_line, user_location
from .unwinding import refused

REFUSALS = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
"""The exceptions that PyTorch's functions and rules refuse operands with."""


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
    " Code that leaves PyTorch, as for numpy, runs in PyTorch itself with torch2jax(function, *examples); within "
    "translated code, with j2t(torch2jax(function, *examples)), or, if it is a module or an operator, with "
    "t2j(..., call_torch=[...])."
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
        self.what, location = what, location or (_line_that_leaves() if leaves_pytorch else user_location())
        first = "" if instead is None else f"{instead}; "
        super().__init__(
            f"{what} needs the value of a tensor that depends on a traced input, at {location}. Under jax.jit, vmap "
            f"and scan such a value does not exist yet. Ways out: {first}call the function without jit; "
            "pass that input as a static argument or close over it; or rewrite the line with torch.where or masks, "
            "so that no shape and no branch depends on data." + (_LEAVING_HINT if leaves_pytorch else "")
        )
        refused(self, location)


def _line_that_leaves() -> str:
    """The line that asks for a value outside of PyTorch, and the user's own, if numpy or a library on it asks."""
    line = user_line()
    caller = line_that_calls(line)
    return str(line) if caller is None else f"{line}, called at {caller}"


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
