"""PyTorch's `associative_scan` is `jax.lax.associative_scan`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jax import lax

from ...calls.call import current
from ...internals.control_flow import associative_scan as torch_associative_scan, associative_scan_module
from ...internals.pytree import tree_leaves
from ...patches import runs_instead_of, stands_in
from ...rules.registry import implements_tensors
from ...tracing.tensor_spec import TensorSpec

__all__ = []


@runs_instead_of(torch_associative_scan, with_original=True)
def _associative_scan(original, combine_fn, xs, dim, reverse=False, combine_mode="pointwise"):
    """Where PyTorch has a kernel of its own, for CUDA, any function will do."""
    mode = "generic" if combine_mode == "pointwise" else combine_mode
    return original(combine_fn, xs, dim, reverse, mode)


@stands_in(associative_scan_module, "generic_associative_scan")
def generic_associative_scan(operator: Callable, leaves: Sequence, dim=0, additional_inputs=()):
    call: Any = current()
    lifted = [call.lift(leaf) for leaf in leaves]
    specs = [TensorSpec.of(tensor)._replace(layout=None, strides=None) for tensor in lifted]

    def combine(left, right):
        tensors = [spec.tensor(array) for array, spec in zip([*left, *right], [*specs, *specs], strict=True)]
        results = tree_leaves(operator(*tensors, *additional_inputs))
        return [call.lift(result).to(spec.dtype).read() for result, spec in zip(results, specs, strict=True)]

    arrays = lax.associative_scan(combine, [tensor.read() for tensor in lifted], axis=dim)
    return [spec.result(array) for spec, array in zip(specs, arrays, strict=True)]


@implements_tensors(torch.ops.higher_order.associative_scan)
def associative_scan(combine_fn: Callable, xs: Sequence, additional_inputs=()):
    return generic_associative_scan(combine_fn, xs, 0, additional_inputs)
