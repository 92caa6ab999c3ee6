"""Operators of PyTorch's dispatcher: their classes, kernels and signatures."""

from typing import Any

import torch
from torch._library import simple_registry, utils

__all__ = [
    "DispatchKey",
    "DispatchKeySet",
    "HigherOrderOperator",
    "OpOverload",
    "OpOverloadPacket",
    "dispatch_dump",
    "dispatch_get_all_op_names",
    "dispatch_has_computed_kernel_for_dispatch_key",
    "dispatch_has_kernel",
    "dispatch_has_kernel_for_dispatch_key",
    "find_torch_dispatch_rule",
    "jit_get_schemas_for_operator",
    "jit_resolve_packet",
    "mutated_args_kwargs",
    "nn",
    "parse_to",
]

OpOverload = torch._ops.OpOverload
"""The class of ``torch.ops.aten.add.Tensor``; see `attributes` for what is asked of one."""

OpOverloadPacket = torch._ops.OpOverloadPacket
"""The class of ``torch.ops.aten.add``, all overloads."""

HigherOrderOperator = torch._ops.HigherOrderOperator
"""The class of operators on functions, as of ``torch.ops.higher_order.cond``; its ``py_kernels`` are by keys."""

DispatchKey = torch._C.DispatchKey
"""What kernels are registered for."""

DispatchKeySet = torch._C.DispatchKeySet
"""Several of these, the highest of which a call goes to."""

dispatch_get_all_op_names = torch._C._dispatch_get_all_op_names
"""The names of all overloads, as ``aten::add.Tensor``."""

dispatch_dump = torch._C._dispatch_dump
"""A text with a line for each kernel of an overload: its key, and where it was registered."""

dispatch_has_kernel = torch._C._dispatch_has_kernel
"""Whether there is an operator of this name."""

dispatch_has_kernel_for_dispatch_key = torch._C._dispatch_has_kernel_for_dispatch_key
"""Whether an overload has a kernel that was registered for just this key."""

dispatch_has_computed_kernel_for_dispatch_key = torch._C._dispatch_has_computed_kernel_for_dispatch_key
"""Whether an overload would run under this key, by a kernel for it or by one for several."""

jit_get_schemas_for_operator = torch._C._jit_get_schemas_for_operator
"""The signatures of all overloads of an operator, by its name."""

jit_resolve_packet = torch._C._jit_resolve_packet
"""The name of the overload that takes these arguments."""

find_torch_dispatch_rule = simple_registry.find_torch_dispatch_rule
"""What a library registered for an operator and a class of tensors or modes, None without."""

mutated_args_kwargs = utils.mutated_args_kwargs
"""Which arguments an operator writes to, by its signature: numbers of places, and names."""

nn: Any = torch._C._nn  # pyright: ignore[reportAttributeAccessIssue]
"""The module of the functions in C++ that `torch.nn.functional` calls, each named as its operator."""

parse_to = torch._C._nn._parse_to  # pyright: ignore[reportAttributeAccessIssue]
"""The device, dtype, ``non_blocking`` and memory format that arguments of `torch.Tensor.to` say."""
