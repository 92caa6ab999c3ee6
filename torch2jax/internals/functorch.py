"""PyTorch's own transformations: `torch.func`, `torch.vmap`, forward mode, and the older vmap of its autograd."""

import types
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

__all__ = [
    "VmapInfo",
    "add_batch_dim",
    "are_functorch_transforms_active",
    "assert_non_empty_list_of_tensors",
    "assert_non_empty_tensor_output",
    "autograd_function",
    "doesnt_support_saved_tensors_hooks",
    "eager_transforms",
    "forward_mode_module",
    "has_overridden_vmap_rule",
    "is_legacy_batchedtensor",
    "jvp_str",
    "make_fx",
    "peek_interpreter_stack",
    "pyfunctorch",
    "slice_argnums",
    "split_const_subgraphs",
    "unwrap_batched",
    "validate_vmap_returns_tuple_of_two_elements",
    "vmap_internals",
    "vmap_module",
    "wrap_outputs_maintaining_identity",
]

_C: Any = torch._C

are_functorch_transforms_active = torch._C._are_functorch_transforms_active
"""Whether this thread is within any of PyTorch's transformations."""

peek_interpreter_stack = _C._functorch.peek_interpreter_stack
"""The innermost of these, None without."""

# Modules in which something is exchanged: no name is taken from one elsewhere.

eager_transforms = _eager_transforms
"""The module of derivatives: `torch.func.grad` and others look up here, when they are called, what computes them."""


def forward_mode_module(name: str) -> types.ModuleType:
    """The module where `torch.autograd.forward_ad` looks up a function: one of Python since 2.13, of C++ before."""
    return next(module for module in (_predispatch, torch._C, torch._VF) if hasattr(module, name))


vmap_module = _vmap
"""The module of `torch.vmap`, which looks up here what runs all examples."""

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
"""The error for what is to be a list of tensors, and is not."""

assert_non_empty_tensor_output = _eager_transforms.assert_non_empty_tensor_output
"""The error for a function that gives no tensors, or something else."""

jvp_str = _eager_transforms.jvp_str
"""How errors call the transformation."""

make_fx = _eager_transforms.make_fx
"""What `torch.func.linearize` traces its function with."""

split_const_subgraphs = _eager_transforms.const_fold.split_const_subgraphs
"""What it leaves of that what is linear with."""

doesnt_support_saved_tensors_hooks = _vmap.doesnt_support_saved_tensors_hooks
"""A decorator: within the function, hooks on what derivatives keep are an error."""

unwrap_batched = _vmap._unwrap_batched
"""A function's results for all examples, with their batch dimensions where ``out_dims`` has them; its errors."""

VmapInfo = _autograd_function.VmapInfo
"""What an autograd function's ``vmap`` gets: ``batch_size`` and ``randomness``."""

has_overridden_vmap_rule = _autograd_function.has_overridden_vmap_rule
"""Whether an autograd function has a ``vmap`` of its own."""

validate_vmap_returns_tuple_of_two_elements = _autograd_function.validate_vmap_returns_tuple_of_two_elements
"""The error for a ``vmap`` that gives no pair of outputs and their batch dimensions."""

wrap_outputs_maintaining_identity = _autograd_function.wrap_outputs_maintaining_identity
"""A function's results, each wrapped, those that are arguments the arguments themselves."""

# Batches of gradients.

is_legacy_batchedtensor = _C._functorch.is_legacy_batchedtensor
"""Whether a tensor is a batch of the older vmap."""

add_batch_dim = torch._add_batch_dim
"""A batch of a tensor, from its dimension and the level."""
