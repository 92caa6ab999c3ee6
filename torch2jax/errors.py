"""The errors a user of torch2jax meets, and how they name the user's own line."""

import os
import sys
import sysconfig
from pathlib import Path

import jax
import optree
import torch

__all__ = [
    "BatchedValueError",
    "NoRuleError",
    "OnMetaError",
    "SparseLayoutError",
    "TracedValueError",
    "WithoutValuesError",
    "WrapsOthersError",
    "user_location",
]

_LIBRARIES = tuple(
    str(Path(path).resolve()) + os.sep  # torchvision is none of them
    for path in (
        Path(__file__).parent,
        Path(str(torch.__file__)).parent,
        Path(str(jax.__file__)).parent,
        Path(str(optree.__file__)).parent,
        sysconfig.get_paths()["stdlib"],
    )
)
# An installed package lives below the standard library's folder, yet is the user's model code.
_SITE_PACKAGES = tuple({sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]})


def _is_library(filename: str) -> bool:
    if filename.startswith("<"):
        return True
    if filename.startswith(_LIBRARIES[:-1]):
        return True
    return filename.startswith(_LIBRARIES[-1]) and not filename.startswith(_SITE_PACKAGES)


def user_location() -> str:
    """Names the innermost ``file:line`` on the stack outside torch, jax, the standard library and this package."""
    frame = sys._getframe(1)
    while frame is not None:
        if not _is_library(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return "<unknown location>"


class NoRuleError(NotImplementedError):
    """No rule and no decomposition leads from a PyTorch operator to JAX.

    Args:
        operator: its name.
        reason: why it cannot run in PyTorch either, where that was asked for.
    """

    def __init__(self, operator: str, reason: str | None = None):
        place = user_location()
        if reason is None:
            message = (
                f"torch2jax has no rule for {operator}, called at {place}. "
                f"Add one with `@torch2jax.implements({operator})` on a function from jax arrays to jax arrays, "
                'rewrite that line with other operators, or run it in PyTorch: t2j(..., on_missing="call_torch").'
            )
        else:
            message = (
                f"torch2jax cannot run {operator} in PyTorch, called at {place}: {reason}. "
                "Rewrite that line, or add a rule with `@torch2jax.implements` for an operator that has none."
            )
        super().__init__(message)


class SparseLayoutError(TypeError):
    """A tensor of a sparse layout was given or asked for."""

    def __init__(self, what: str):
        super().__init__(
            f"{what}, at {user_location()}. Sparse layouts are not translated: give dense tensors "
            "(tensor.to_dense()) and leave out what makes sparse ones."
        )


class TracedValueError(TypeError):
    """Python asked for the value of a tensor that depends on a traced input."""

    def __init__(self, what: str):
        self.what = what
        super().__init__(
            f"{what} needs the value of a tensor that depends on a traced input, at {user_location()}. "
            "Under jax.jit, vmap and scan such a value does not exist yet. Ways out: call the function without jit; "
            "pass that input as a static argument or close over it; or rewrite the line with torch.where or masks, "
            "so that no shape and no branch depends on data."
        )


class WithoutValuesError(NotImplementedError):
    """A tensor has no values that an array could hold."""


class OnMetaError(WithoutValuesError):
    """A tensor is on the meta device, or a fake one: PyTorch itself runs what is asked of it.

    Args:
        made: the dtype of what a function makes there, whatever it is given; None if it was given such a tensor.
    """

    def __init__(self, made: torch.dtype | None = None):
        self.made = made
        super().__init__("expected all tensors to be on one device, but got one on meta, which has no data")


class WrapsOthersError(WithoutValuesError):
    """A tensor wraps others, and computes with them in a ``__torch_dispatch__`` of its own.

    Args:
        kind: its class.
    """

    def __init__(self, kind: type):
        super().__init__(
            f"got a {kind.__name__}, which holds no values but wraps other tensors; wanted one with values: "
            "give the tensors that it wraps"
        )


class BatchedValueError(TracedValueError, RuntimeError):
    """As `TracedValueError`, of a value that each example of ``torch.vmap`` has another of."""

    def __init__(self, error: TracedValueError):
        hint = _VMAP_HINTS.get(error.what, "We do not support batching operators that can output dynamic shape")
        self.what = error.what
        Exception.__init__(self, f"vmap: {hint}. {error}")


_VMAP_HINTS = {
    "Tensor.item()": "It looks like you're calling .item() on a Tensor",
    "bool(tensor)": "It looks like you're attempting to use a Tensor in some data-dependent control flow",
}
