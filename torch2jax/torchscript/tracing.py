"""``torch.jit.trace``, ``freeze`` and ``optimize_for_inference`` in translated code.

PyTorch traces real tensors. Where the values of the examples are known it does so here too, on another thread, which is
outside of the call, and what it gives gets the call's own tensors back. Where they are traced by JAX, the function or
module stands for itself: it does for all inputs what a trace does for those of its examples.
"""

import copy
import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from ..errors import EndedCallError, TracedValueError
from ..patches import stands_in
from ..tensors.tensor import Torchish
from ..tensors.trees import flatten
from ..values.pickled import as_real
from .modules import tensors_in

_trace, _trace_module, _trace_graph = torch.jit.trace, torch.jit.trace_module, torch.jit._get_trace_graph


@stands_in(torch.jit, "trace")
def _traced(*args: Any, **kwargs: Any):
    return _real_trace(_trace, "func", args, kwargs)


@stands_in(torch.jit, "trace_module")
def _traced_module(*args: Any, **kwargs: Any):
    return _real_trace(_trace_module, "mod", args, kwargs)


@stands_in(torch.jit, "_get_trace_graph")
def _traced_graph(*args: Any, **kwargs: Any):
    result = _real_trace(_trace_graph, "f", args, kwargs)
    if not isinstance(result, tuple):
        raise TracedValueError("torch.jit._get_trace_graph")
    return result


def _real_trace(trace: Callable, name: str, args: tuple, kwargs: dict) -> Any:
    bound = inspect.signature(trace).bind(*args, **kwargs)
    thing = bound.arguments.pop(name)
    module = thing.__self__ if inspect.ismethod(thing) else thing
    known: dict[int, Any] = {}
    if isinstance(module, torch.nn.Module):
        tensors = {id(tensor): tensor for tensor in tensors_in(module) if isinstance(tensor, Torchish)}
        known = {key: as_real(tensor) for key, tensor in tensors.items()}
    leaves, structure = flatten(dict(bound.arguments))
    examples = [as_real(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    is_traced = any(real is None and leaf is not None for real, leaf in zip(examples, leaves, strict=True))
    if is_traced or None in known.values():
        return thing
    real_thing = copy.deepcopy(thing, dict(known)) if known else thing
    try:
        with ThreadPoolExecutor(1) as outside:
            result = outside.submit(trace, real_thing, **structure.unflatten(examples)).result()
    except EndedCallError:  # it closes over tensors of the call
        return thing
    if not known:
        return result
    return copy.deepcopy(result, {id(real): tensors[key] for key, real in known.items()})


@stands_in(torch.jit, "freeze")
def _frozen(mod: torch.nn.Module, preserved_attrs: Sequence[str] | None = None, optimize_numerics: bool = True):
    """Parameters become constants of the graph for the sake of optimisations, which are JAX's."""
    return mod


@stands_in(torch._C, "_freeze_module")
def _frozen_object(
    module: torch.nn.Module,
    preserved_attrs: Sequence[str] | None = (),
    freeze_interfaces: bool = True,
    preserve_parameters: bool = False,
):
    return module


@stands_in(torch.jit, "optimize_for_inference")
def _optimized(mod: torch.nn.Module, other_methods: Sequence[str] | None = None):
    return mod
