"""PyTorch's autograd, its transformations (`torch.func`, `torch.vmap`, forward mode), and mixed precision.

The transformations include the older vmap of autograd. Mixed precision is below the functions of `torch` that are
exchanged while calls are translated.
"""

import types
from collections.abc import Sequence
from typing import Any

import torch
from torch import _vmap_internals
from torch._functorch import (
    autograd_function as _autograd_function,
    eager_transforms as _eager_transforms,
    predispatch as _predispatch,
    pyfunctorch as _pyfunctorch,
    vmap as _vmap,
)
from torch.autograd import forward_ad

_C: Any = torch._C

are_functorch_transforms_active = torch._C._are_functorch_transforms_active
"""Returns True if this thread is within any of PyTorch's transformations."""

peek_interpreter_stack = _C._functorch.peek_interpreter_stack
"""The innermost of these, None without."""

# Modules in which something is exchanged: no name is taken from one elsewhere.

eager_transforms = _eager_transforms
"""The module of derivatives, in which `torch.func.grad` and others look up their implementations when called."""


def forward_mode_module(name: str) -> types.ModuleType:
    """The module where `torch.autograd.forward_ad` looks up a function: one of Python since 2.13, of C++ before."""
    return next(module for module in (_predispatch, torch._C, torch._VF) if hasattr(module, name))


vmap_module = _vmap
"""The module of `torch.vmap`, in which it looks up the function that runs all examples."""

vmap_internals = _vmap_internals
"""The module of the older vmap, that `torch.autograd` batches gradients with."""

autograd_function = _autograd_function
"""The module of autograd functions under transformations."""

pyfunctorch = _pyfunctorch
"""The module of PyTorch's stack of transformations."""

# What they check.

slice_argnums = _eager_transforms._slice_argnums
"""The arguments that ``argnums`` chooses; its errors where there are none."""

assert_non_empty_list_of_tensors = _eager_transforms.assert_non_empty_list_of_tensors
"""The error for an argument that must be a list of tensors, and is not."""

assert_non_empty_tensor_output = _eager_transforms.assert_non_empty_tensor_output
"""The error for a function that returns no tensors, or something else."""

jvp_str = _eager_transforms.jvp_str
"""The name of the transformation in errors."""

make_fx = _eager_transforms.make_fx
"""The tracer of `torch.func.linearize`."""

split_const_subgraphs = _eager_transforms.const_fold.split_const_subgraphs
"""Splits off the part of its graph that does not depend on tangents."""

doesnt_support_saved_tensors_hooks = _vmap.doesnt_support_saved_tensors_hooks
"""A decorator: within the function, hooks on saved tensors are an error."""

unwrap_batched = _vmap._unwrap_batched
"""A function's results for all examples, with their batch dimensions where ``out_dims`` has them; its errors."""

VmapInfo = _autograd_function.VmapInfo
"""The first argument of an autograd function's ``vmap``: ``batch_size`` and ``randomness``."""

has_overridden_vmap_rule = _autograd_function.has_overridden_vmap_rule
"""Returns True if an autograd function has a ``vmap`` of its own."""

validate_vmap_returns_tuple_of_two_elements = _autograd_function.validate_vmap_returns_tuple_of_two_elements
"""The error for a ``vmap`` that returns no pair of outputs and their batch dimensions."""

wrap_outputs_maintaining_identity = _autograd_function.wrap_outputs_maintaining_identity
"""A function's results, each wrapped, those that are arguments the arguments themselves."""

# Batches of gradients.

is_legacy_batchedtensor = _C._functorch.is_legacy_batchedtensor
"""Returns True if a tensor is a batch of the older vmap."""

add_batch_dim = torch._add_batch_dim
"""A batch of a tensor, from its dimension and the level."""


set_grad_enabled = torch._C._set_grad_enabled
"""Sets whether autograd records on this thread; function modes see the call."""

is_fwd_grad_enabled = torch._C._is_fwd_grad_enabled
"""Returns True if operators on this thread compute tangents too."""

set_fwd_grad_enabled = forward_ad._set_fwd_grad_enabled
"""A context in which they do, or do not."""


def current_level() -> int:
    """The number of the dual level that is open in PyTorch, below zero without one."""
    return forward_ad._current_level


unsafe_set_version_counter = _C._autograd._unsafe_set_version_counter
"""Sets how often tensors have been written to."""

LegacyVariableBase = torch._C._LegacyVariableBase
"""The class that ``torch.autograd.Variable`` derives from, whose ``__new__`` takes ``volatile``."""


def run_backward(results: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]):
    """The gradients of inputs by PyTorch's own engine, whatever replaces ``torch.autograd.grad``; or None.

    What the engine computes may be differentiated again.
    """
    engine: Any = torch.autograd.Variable._execution_engine  # pyright: ignore[reportAttributeAccessIssue]
    return engine.run_backward(
        tuple(results), tuple(gradients), True, True, tuple(inputs), allow_unreachable=True, accumulate_grad=False
    )


is_any_autocast_enabled = torch._C._is_any_autocast_enabled
"""Returns True if this thread is within an autocast region, of any device."""

autocast_supported_devices = torch._C._autocast_supported_devices
"""The types of devices that have regions."""

set_autocast_enabled = torch._C.set_autocast_enabled
"""Begins or ends a region on a device, for all that follows."""

set_autocast_dtype = torch._C.set_autocast_dtype
"""Sets the dtype that regions of a device cast to."""

set_autocast_cache_enabled = torch._C.set_autocast_cache_enabled
"""Sets whether casts are cached."""

autocast_increment_nesting = torch._C.autocast_increment_nesting
"""Enters one more region, and returns their number."""

autocast_decrement_nesting = torch._C.autocast_decrement_nesting
"""Leaves a region, and returns their number."""
