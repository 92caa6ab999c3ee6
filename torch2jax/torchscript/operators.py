"""The operators of a TorchScript graph: what each does with the values of its inputs.

One of tensors is called as Python would call it, and finds its rule in that way. One of numbers and strings alone is
PyTorch's own. Those of lists and dictionaries change the values that Python has.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..calls.call import this_call
from ..errors import NoRuleError
from ..internals.gradients import set_grad_enabled
from ..internals.guards import DisableTorchFunction
from ..internals.operators import OpOverload, dispatch_has_kernel
from ..internals.torchscript import Node, ScriptObject
from .containers import CONTAINERS
from .values import members, number_of

__all__ = ["operator"]

Body = Callable[..., Any]


def operator(node: Node) -> Body:
    """What a node that calls an operator does with the values of its inputs."""
    qualified, _, overload_name = node.schema().partition("(")[0].partition(".")
    body = _OWN.get(f"{qualified}.{overload_name}") or _OWN.get(qualified)
    if body is not None:
        return body
    namespace, _, name = qualified.partition("::")
    if not name:  # TorchScript runs it without an operator
        raise NoRuleError(node.kind())
    overload = getattr(getattr(getattr(torch.ops, namespace), name), overload_name or "default")
    schema = overload._schema
    first = str(schema.arguments[0].type) if schema.arguments else ""
    if qualified in CONTAINERS and (first.startswith(("List[", "Dict[")) or qualified in _MAKERS):
        return CONTAINERS[qualified]
    if not any("Tensor" in str(x.type) for x in (*schema.arguments, *schema.returns)):
        return _of_numbers(overload)
    return _of_tensors(overload, f"{qualified}.{overload_name}" if overload_name else qualified)


_MAKERS = ("aten::dict", "aten::list")


def _of_numbers(overload: OpOverload) -> Body:
    run = overload._op

    def body(*args: Any):
        with DisableTorchFunction():
            return run(*args)

    return body


def _of_tensors(overload: OpOverload, qualified: str) -> Body:
    arguments = overload._schema.arguments
    meanings = [members(str(argument.real_type)) for argument in arguments]
    positional = sum(not argument.kwarg_only for argument in arguments)
    names = [argument.name for argument in arguments]
    is_known = dispatch_has_kernel(qualified)

    def body(*args: Any):
        inputs = [
            value if meaning is None or not isinstance(value, int) else meaning[value]
            for value, meaning in zip(args, meanings, strict=False)
        ]
        kwargs = dict(zip(names[positional:], inputs[positional:], strict=False))
        if is_known:
            return overload(*inputs[:positional], **kwargs)
        return this_call().run_compiled(overload._op, tuple(inputs[:positional]), kwargs)

    return body


def _tensor(data: Any, dtype: int | None = None, device: Any = None, requires_grad: bool = False):
    return torch.tensor(data, dtype=_dtype(dtype), device=device, requires_grad=requires_grad)


def _as_tensor(data: Any, dtype: int | None = None, device: Any = None):
    return torch.as_tensor(data, dtype=_dtype(dtype), device=device)


def _dtype(number: int | None) -> torch.dtype | None:
    return None if number is None else members("ScalarType")[number]  # pyright: ignore[reportOptionalSubscript]


def _to_device(
    tensor: torch.Tensor, device: Any, dtype: int | None = None, non_blocking: bool = False, copy: bool = False
):
    return tensor.to(device=device, dtype=_dtype(dtype), non_blocking=non_blocking, copy=copy)


def _to_dtype(tensor: torch.Tensor, dtype: int | None = None, non_blocking: bool = False, copy: bool = False):
    return tensor.to(dtype=_dtype(dtype), non_blocking=non_blocking, copy=copy)


def _to_other(tensor: torch.Tensor, non_blocking: bool = False, copy: bool = False):
    return tensor.to(tensor.dtype, non_blocking=non_blocking, copy=copy)


def _size(tensor: torch.Tensor, dim: int | None = None):
    return list(tensor.size()) if dim is None else tensor.size(dim)


def _grad(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    grad_outputs: Sequence[torch.Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
):
    return list(
        torch.autograd.grad(outputs, inputs, grad_outputs, retain_graph, create_graph, allow_unused=allow_unused)
    )


def _backward(tensors: torch.Tensor | Sequence[torch.Tensor], *args: Any):
    if isinstance(tensors, torch.Tensor):
        return tensors.backward(*args)
    return torch.autograd.backward(tensors, *args)


def _warn(message: str, stacklevel: int = 2) -> None:
    warnings.warn(message, UserWarning, stacklevel=stacklevel + 1)


def _format(text: str, *args: Any) -> str:
    return text.format(*args)


def _unwrapped(value: Any):
    if value is None:
        raise RuntimeError("Unwrapping null optional")
    return value


def _percent(text: str, *args: Any) -> str:
    return text % args


def _is_same(left: Any, right: Any) -> bool:
    if isinstance(left, ScriptObject):
        return left == right  # each lookup of the attribute gives another wrapper
    return left is right


def _set_grad_enabled(enabled: bool) -> None:
    set_grad_enabled(enabled)


_OWN: dict[str, Body] = {
    "aten::size": _size,
    "prim::shape": _size,
    "aten::stride": lambda tensor, *dim: tensor.stride(*dim) if dim else list(tensor.stride()),
    "aten::dim": lambda tensor: tensor.dim(),
    "aten::numel": lambda tensor: tensor.numel(),
    "aten::element_size": lambda tensor: tensor.element_size(),
    "aten::storage_offset": lambda tensor: tensor.storage_offset(),
    "aten::get_device": lambda tensor: tensor.get_device(),
    "aten::is_contiguous": lambda tensor: tensor.is_contiguous(),
    "aten::is_floating_point": lambda tensor: tensor.is_floating_point(),
    "aten::is_complex": lambda tensor: tensor.is_complex(),
    "aten::is_signed": lambda tensor: tensor.is_signed(),
    "prim::dtype": lambda tensor: number_of(tensor.dtype),
    "prim::layout": lambda tensor: number_of(tensor.layout),
    "prim::device": lambda tensor: tensor.device,
    "prim::is_cpu": lambda tensor: tensor.is_cpu,
    "prim::is_cuda": lambda tensor: tensor.is_cuda,
    "prim::is_mps": lambda tensor: tensor.is_mps,
    "prim::is_xpu": lambda tensor: tensor.is_xpu,
    "prim::is_meta": lambda tensor: tensor.is_meta,
    "prim::is_mkldnn": lambda tensor: tensor.is_mkldnn,
    "prim::is_quantized": lambda tensor: tensor.is_quantized,
    "prim::is_sparse": lambda tensor: tensor.is_sparse,
    "prim::is_nested": lambda tensor: tensor.is_nested,
    "prim::itemsize": lambda tensor: tensor.itemsize,
    "prim::nbytes": lambda tensor: tensor.nbytes,
    "prim::requires_grad": lambda tensor: tensor.requires_grad,
    "prim::is_leaf": lambda tensor: tensor.is_leaf,
    "aten::is_leaf": lambda tensor: tensor.is_leaf,
    "prim::grad": lambda tensor: tensor.grad,
    "prim::data": lambda tensor: tensor.data,
    "aten::Int.Tensor": int,
    "aten::Float.Tensor": float,
    "aten::Bool.Tensor": bool,
    "aten::Complex.Tensor": complex,
    "aten::IntImplicit": int,
    "aten::FloatImplicit": float,
    "aten::ComplexImplicit": complex,
    "aten::ScalarImplicit": torch.ops.aten.item,
    "aten::item": torch.ops.aten.item,
    "aten::len.Tensor": len,
    "prim::NumToTensor": torch.tensor,
    "aten::tensor": _tensor,
    "aten::as_tensor": _as_tensor,
    "aten::to.prim_Device": _to_device,
    "aten::to.prim_dtype": _to_dtype,
    "aten::to.prim_other": _to_other,
    "aten::cpu": lambda tensor: tensor.cpu(),
    "aten::cuda": lambda tensor: tensor.cuda(),
    "aten::grad": _grad,
    "aten::backward": _backward,
    "aten::requires_grad_": lambda tensor, requires_grad=True: tensor.requires_grad_(requires_grad),
    "aten::is_grad_enabled": torch.is_grad_enabled,
    "aten::set_grad_enabled": _set_grad_enabled,
    "aten::is_autocast_enabled": torch.is_autocast_enabled,
    "aten::manual_seed": torch.manual_seed,
    "aten::warn": _warn,
    "aten::format": _format,
    "aten::percentFormat": _percent,
    "aten::__is__": _is_same,
    "aten::__isnot__": lambda left, right: not _is_same(left, right),
    "aten::_unwrap_optional": _unwrapped,
    "aten::wait": lambda value: value,
    "prim::unchecked_unwrap_optional": _unwrapped,
    "prim::is_grad_enabled": torch.is_grad_enabled,
}
