"""Rules of ``torch.ops.prims``, the operators at the bottom of PyTorch's decompositions.

PyTorch says of nearly every prim which functions of its own it stands for (``prim.impl_aten``): its rule calls these,
which have rules of their own. Views come to the view rules that way, and writes to the writing ones.
"""

import math
import threading

import numpy as np
import torch
from jax import lax

from ..calls.call import current
from ..internals.operators import OpOverload
from ..internals.prims import prims_module
from ..rules.promotion import Promotion
from ..rules.registry import implements, implements_tensors

prims = torch.ops.prims


_running = threading.local()


def _stands_for_functions(prim: OpOverload) -> None:
    def rule(*args, **kwargs):
        outer = getattr(_running, "prims", frozenset())
        if prim in outer:  # its function has no rule, and its decomposition is this prim
            return current().run_missing(prim, args, kwargs)
        _running.prims = outer | {prim}
        try:
            return prim.impl_aten(*args, **kwargs)
        finally:
            _running.prims = outer

    implements_tensors(prim.overloadpacket)(rule)


for _prim in vars(prims_module).values():
    if isinstance(_prim, OpOverload):
        _stands_for_functions(_prim)


# Those whose functions would come back to the prim, or would write into new memory.


@implements(prims.cbrt, promote=Promotion.NO_OPMATH)
def cbrt(self):
    return lax.cbrt(self)


@implements(prims.xor_sum)
def xor_sum(inp, dims=None, *, output_dtype=None):
    axes = range(inp.ndim) if dims is None else sorted(dim % inp.ndim for dim in dims)
    return lax.reduce(inp, np.zeros((), inp.dtype), lax.bitwise_xor, tuple(axes))


@implements_tensors(prims.collapse)
def collapse(a, start, end):
    shape = (*a.shape[:start], math.prod(a.shape[start : end + 1]), *a.shape[end + 1 :])
    return a.reshape(shape).clone(memory_format=torch.contiguous_format)


@implements_tensors(prims.as_strided_scatter, torch.as_strided_scatter, torch.Tensor.as_strided_scatter)
def as_strided_scatter(input, src, size, stride, storage_offset=None):
    result = input.clone()
    result.as_strided(size, stride, storage_offset).copy_(src)
    return result


@implements_tensors(prims.item)
def item(a):
    return torch.ops.aten.item(a)
