"""Selective activation checkpointing: a name marks what PyTorch's policy saves, for JAX's policy to save.

A policy is asked about ATen operators. Which ones PyTorch would come to in a function with a rule, it says itself: the
function runs once more, on tensors without data.
"""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import torch
from jax.ad_checkpoint import checkpoint_name
from torch.utils.checkpoint import SAC_IGNORED_OPS, CheckpointPolicy, SelectiveCheckpointContext

from ..calls.modes import AtenMode
from ..internals.dispatch import DisableTorchDispatch, DisableTorchFunction, OpOverload
from ..rules.features import Feature
from ..tensors.physical import PhysicalArray
from ..tensors.storage import Storage
from ..tensors.tensor import Torchish
from ..tensors.traced import is_traced
from ..tensors.trees import flatten, map_arguments
from ..translation import current

_NAMES = {
    CheckpointPolicy.MUST_SAVE: "saved",
    CheckpointPolicy.PREFER_SAVE: "saved",
    CheckpointPolicy.MUST_CPU_OFFLOAD: "offloaded",
    CheckpointPolicy.PREFER_CPU_OFFLOAD: "offloaded",
}
# PyTorch 2.11 does not tell a policy what the operator has given.
_TELLS_OUTPUTS = "op_output" in inspect.signature(SelectiveCheckpointContext).parameters
# Which of these attention becomes depends on the device, that PyTorch would run on.
_ATTENTION = tuple(
    getattr(torch.ops.aten, f"_scaled_dot_product_{kind}").default
    for kind in (
        *("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention"),
        *("fused_attention_overrideable",),
    )
)


class Selection:
    """What a checkpointed function keeps.

    Args:
        policy: as `torch.utils.checkpoint.create_selective_checkpoint_contexts` takes it; it sees tensors without data
            where a rule has computed what PyTorch would.
    """

    jax_policy = staticmethod(
        jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=["saved"],
            names_which_can_be_offloaded=["offloaded"],
            offload_src="device",
            offload_dst="pinned_host",
        )
    )

    def __init__(self, policy: Callable[..., Any]):
        self._policy = policy

    def __call__(self, func, args: tuple, kwargs: dict, result) -> None:
        """Names what a rule gave for a function, if the policy keeps it."""
        tensors = [x for x in flatten(result)[0] if isinstance(x, Torchish)]
        fresh = [x for x in tensors if isinstance(x._node, Storage) and is_traced(x.physical.array)]
        if not fresh:
            return
        name = self._name_of(func, args, kwargs, result)
        if name is None:
            return
        for tensor in fresh:
            (array, layout), storage = tensor.physical, tensor._node.storage
            storage.replace(PhysicalArray(checkpoint_name(array, name), layout), storage.known, is_written=False)

    def _name_of(self, func, args: tuple, kwargs: dict, result) -> str | None:
        if isinstance(func, OpOverload):
            return self._ask(func, args, kwargs, result)
        if func is torch.nn.functional.scaled_dot_product_attention:
            names = [self._ask(attention, args, kwargs, result) for attention in _ATTENTION]
            return next((name for name in names if name is not None), None)
        with DisableTorchFunction(), DisableTorchDispatch():
            args, kwargs = map_arguments(_without_data, (args, kwargs))
        if not any(isinstance(x, torch.Tensor) for x in flatten((args, kwargs))[0]):
            return None
        decomposition = _Decomposition()
        try:
            with DisableTorchFunction(), AtenMode(decomposition):
                given = func(*args, **kwargs)
        except Exception:  # it needs values: PyTorch's operators are not known
            return None
        memory = _memory(given)
        asked = [
            (self._ask(op, args, kwargs, output), _memory(output))
            for op, args, kwargs, output in decomposition.operators
        ]
        return next((name for name, part in asked if name is not None and not memory.isdisjoint(part)), None)

    def _ask(self, op, args, kwargs, output) -> str | None:
        if op in SAC_IGNORED_OPS:
            return None
        told = {"op_output": output} if _TELLS_OUTPUTS else {}
        policy = self._policy(SelectiveCheckpointContext(is_recompute=False, **told), op, *args, **kwargs)
        if isinstance(policy, bool):
            return "saved" if policy else None
        return _NAMES.get(policy)


class _Decomposition:
    """The ATen operators that a function of PyTorch runs, with their arguments and results."""

    def __init__(self):
        self.operators: list[tuple] = []

    def dispatch_aten(self, func, args: tuple, kwargs: dict):
        if func._can_decompose():
            with AtenMode(self):
                return func.decompose(*args, **kwargs)
        output = func(*args, **kwargs)
        self.operators.append((func, args, kwargs, output))
        return output


def _without_data(value):
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(tuple(value.shape), value.stride(), dtype=value.dtype, device="meta")


def _memory(value) -> set[int]:
    return {x.untyped_storage()._cdata for x in flatten(value)[0] if isinstance(x, torch.Tensor)}


class Watching(Feature):
    """Lets somebody see what each rule gives. A rule is one step, whatever it calls.

    Args:
        observer: is called with a function, its arguments and keywords, and what it gives.
    """

    def __init__(self, observer: Callable[..., None]):
        self._observer = observer

    def run_rule(self, call: Any, function: Any, rule: Any, args: tuple, kwargs: dict) -> Any:
        call.on_result = None
        try:
            result = call.run_rule(function, rule, args, kwargs)
            with DisableTorchFunction():
                self._observer(function, args, kwargs, result)
        finally:
            call.on_result = self
        return result


def keeping(selection: Selection | None, function: Callable) -> Callable:
    """`function`, whose results of rules `selection` sees."""
    if selection is None:
        return function

    def run(*args, **kwargs):
        call = current()
        before, call.on_result = call.on_result, Watching(selection)
        try:
            return function(*args, **kwargs)
        finally:
            call.on_result = before

    return run
