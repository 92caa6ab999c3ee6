"""Operators that only PyTorch's compilers use, or that compile once: their code runs as it is."""

import torch

from ...internals.control_flow import utils
from ...patches import stands_in
from ...rules.registry import implements_tensors


@stands_in(utils, "_hop_compile_and_call", may_lack=True)  # 2.11 calls torch.compile in its place
def _call(fn, args, kwargs=None):
    """Operators of control flow compile themselves where they are called."""
    return fn(*args, **(kwargs or {}))


@implements_tensors(torch.ops.higher_order.invoke_subgraph)
def invoke_subgraph(subgraph, identifier, *operands):
    del identifier
    return subgraph(*operands)


@implements_tensors(torch.ops.higher_order.hints_wrapper)
def hints_wrapper(body_fn, args, kwargs, hints):
    del hints
    return body_fn(*args, **kwargs)


@implements_tensors(torch.ops.higher_order.strict_mode)
def strict_mode(callable, operands):
    return callable(*operands)


def flex_gemm(gemm_op, body_fn, gemm_args, gemm_kwargs, kernel_options):
    """A product and what becomes of it, in one kernel of PyTorch's; XLA fuses what it can."""
    del gemm_op, gemm_kwargs, kernel_options  # which the body knows, and which are for the kernel
    return body_fn(*gemm_args)


if hasattr(torch.ops.higher_order, "flex_gemm"):
    implements_tensors(torch.ops.higher_order.flex_gemm)(flex_gemm)
