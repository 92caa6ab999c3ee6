"""PyTorch's errors for a call, found by calling PyTorch on small tensors of the same dtypes and shapes."""

import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import torch

from ..functional.vmap import Batch
from ..internals.dispatch import DisableTorchDispatch, DisableTorchFunction
from ..tensors.dtypes import is_integral
from ..tensors.tensor import Torchish
from ..tensors.trees import flatten
from ..values.valueless import natively

if TYPE_CHECKING:
    from .dispatch import Call

_MOST = 2**20  # elements of a tensor of which PyTorch is given another one, to refuse


class Numbers(NamedTuple):
    """The whole numbers that stand in for others."""

    value: int = 1
    is_wide: bool = False
    """Whether int32 stands for int64, as it does in arrays."""


def other_numbers() -> list[Numbers]:
    """Those by which what is of the default ones alone is told apart."""
    x64: bool = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    return [Numbers(value=0)] + [Numbers(is_wide=True)] * (not x64)


def refusal_of(
    call: "Call",
    func: Any,
    args: tuple,
    kwargs: dict,
    device: str,
    whole: Numbers = Numbers(),  # noqa: B008
) -> Exception | None:
    """What PyTorch raises for such tensors on a device, if it does."""
    try:
        with DisableTorchFunction(), DisableTorchDispatch():
            run = _asked(call, func, args, kwargs, device, whole)
        with natively(call), torch.no_grad(), torch.random.fork_rng([]), warnings.catch_warnings(action="ignore"):
            run()
    except MemoryError:
        return None
    except Exception as refused:
        return refused.with_traceback(None)
    return None


def _asked(call: "Call", func: Any, args: tuple, kwargs: dict, device: str, whole: Numbers) -> Callable[[], Any]:
    """The call of PyTorch: within a `torch.vmap`, where a tensor is an example of one."""
    if any(isinstance(x, (torch.UntypedStorage, torch.TypedStorage)) for x in (*args, *kwargs.values())):
        raise MemoryError  # there is none that PyTorch could read
    leaves, structure = flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    given = [_stand_in(device, leaves[place], whole) for place in places]
    level = call.transformations[-1] if call.transformations and isinstance(call.transformations[-1], Batch) else None
    dims = [None if level is None else _dim(level, leaves[place]) for place in places]

    def run(*tensors: torch.Tensor):
        found = dict(zip(places, tensors, strict=True))
        args, kwargs = structure.unflatten([found.get(place, leaf) for place, leaf in enumerate(leaves)])
        func(*args, **kwargs)
        return torch.zeros(())

    if all(dim is None for dim in dims):
        return functools.partial(run, *given)
    stacked = [tensor if dim is None else torch.stack([tensor] * 2) for tensor, dim in zip(given, dims, strict=True)]
    return lambda: torch.vmap(run, tuple(dims), randomness="same")(*stacked)


def _dim(level: Batch, tensor: torch.Tensor) -> int | None:
    return 0 if isinstance(tensor, Torchish) and level.is_batched(tensor) else None


def _stand_in(device: str, tensor: torch.Tensor, whole: Numbers) -> torch.Tensor:
    if device == "cpu" and tensor.numel() > _MOST:
        raise MemoryError
    dtype = torch.int64 if whole.is_wide and tensor.dtype == torch.int32 else tensor.dtype
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=device)
    return made if device == "meta" else made.fill_(whole.value if is_integral(dtype) else 1)
