"""`torch.utils.checkpoint`: a checkpointed function is `jax.checkpoint` of it.

PyTorch's `checkpoint` is no function that overrides reach, and it is often bound before a call begins. What it asks for
at each call is who runs it outside `torch.compile`: that stands in. It goes on to PyTorch's own code, for the checks of
the arguments, with a function that knows how to be checkpointed.

Selective checkpointing names the results that PyTorch's policy saves, and JAX's policy saves these names.

A policy is asked about ATen operators. Which ones PyTorch would come to in a function with a rule, it says itself: the
function runs once more, on tensors without data.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import torch
from jax.ad_checkpoint import checkpoint_name
from torch.utils import checkpoint as torch_checkpoint
from torch.utils.checkpoint import SAC_IGNORED_OPS, CheckpointPolicy, SelectiveCheckpointContext

from ..calls.modes import AtenMode
from ..internals.dispatch import DisableTorchDispatch, DisableTorchFunction, OpOverload
from ..internals.modules import ALLOWED_DETERMINISM_CHECKS, DEFAULT_DETERMINISM_MODE, checkpoint_debug_enabled
from ..rules.features import Feature
from ..runtime.patches import applies, exchange, replaces
from ..runtime.translation import current, this_call
from ..tensors.array_buffer import ArrayBuffer
from ..tensors.journal import Uncontained
from ..tensors.storage import Storage
from ..tensors.tensor import Torchish, make_view
from ..tensors.traced import is_traced
from ..tensors.trees import flatten, map_arguments
from ..tracing.scope import UNSUITED, TraceScope
from ..tracing.traces import is_transforming
from ..values.masked import Masked

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
    """The results that a checkpointed function saves.

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

    def __init__(self, policy: Callable[..., object]):
        self._policy = policy

    def __call__(self, func, args: tuple, kwargs: dict, result) -> None:
        """Names the results of a rule, if the policy saves them."""
        tensors = [x for x in flatten(result)[0] if isinstance(x, Torchish)]
        fresh = [x for x in tensors if isinstance(x._node, Storage) and is_traced(x.buffer.array)]
        if not fresh:
            return
        name = self._name_of(func, args, kwargs, result)
        if name is None:
            return
        for tensor in fresh:
            (array, layout), storage = tensor.buffer, tensor._node.storage
            storage.replace(ArrayBuffer(checkpoint_name(array, name), layout), storage.known, is_written=False)

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
        candidates = [
            (self._ask(op, args, kwargs, output), _memory(output))
            for op, args, kwargs, output in decomposition.operators
        ]
        return next((name for name, part in candidates if name is not None and not memory.isdisjoint(part)), None)

    def _ask(self, op, args, kwargs, output) -> str | None:
        if op in SAC_IGNORED_OPS:
            return None
        options = {"op_output": output} if _TELLS_OUTPUTS else {}
        policy = self._policy(SelectiveCheckpointContext(is_recompute=False, **options), op, *args, **kwargs)
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
    """The feature that calls an observer with the result of each rule. A rule is one step, whatever it calls.

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


_body: Any = getattr(torch_checkpoint.checkpoint, "__wrapped__", None)  # below @torch._disable_dynamo


_impl: Any = getattr(torch_checkpoint, "_checkpoint_impl", None)  # since 2.14, also of what `checkpoint` decorates


def _run_body(*args, **kwargs):
    if current() is None:  # on another thread
        return _in_torch()(*args, **kwargs)
    if _impl is not None:
        return _body(*args, **kwargs)
    function, *args = args
    return _body(_Checkpointed(function), *args, **kwargs)


if _impl is not None:

    @replaces(torch_checkpoint, "_checkpoint_impl")
    def _run_impl(function, *args, **kwargs):
        return _impl(_Checkpointed(function), *args, **kwargs)


@functools.cache
def _in_torch() -> Callable:
    from ..internals.dynamo import disable

    return disable(_body, True, wrapping=False)


if _body is not None:
    exchange(_body, "__dynamo_disable", _run_body, may_lack=True)


class _Checkpointed:
    """A function whose intermediate values are computed again for the derivative."""

    def __init__(self, function: Callable):
        self.function = function
        self.selection: Selection | None = None
        """The results that are saved nevertheless."""

    def __call__(self, *args, **kwargs):
        if not torch.is_grad_enabled() or not is_transforming():
            return self.function(*args, **kwargs)
        function = keeping(self.selection, self.function)
        with contextlib.suppress(*UNSUITED):
            return self._in_scope(function, args, kwargs)
        return self.function(*args, **kwargs)  # where it asks for the first time, the call begins again, converted

    def _in_scope(self, function: Callable, args: tuple, kwargs: dict):
        scope = TraceScope()

        def checkpointed():
            with this_call().execution.code.asking_within():
                return scope.trace(_without_choices, function, *args, **kwargs)

        policy = None if self.selection is None else Selection.jax_policy
        return scope.close(jax.checkpoint(checkpointed, policy=policy)())


def _without_choices(function: Callable, *args, **kwargs):
    result = function(*args, **kwargs)
    if any(isinstance(x, Masked) for x in flatten(result)[0]):
        raise Uncontained("a mask selection, of which more may be known outside")
    return result


@applies(torch_checkpoint, "CheckpointFunction")
def _reentrant(run_function, preserve_rng_state, *args):
    del preserve_rng_state  # a JAX key gives the same numbers again
    result = run_function(*args)
    needed = [x for x in args if isinstance(x, Torchish) and x.history is not None]
    if needed:
        given = [x for x in flatten(result)[0] if isinstance(x, Torchish)]
        is_unused = current().tape is not None and not any(x.history is not None for x in given)
        return map_arguments(lambda x: _without_use(x, needed), result) if is_unused else result
    if current().tape is not None:  # else the condition is JAX's, and it has gradients
        torch_checkpoint.check_backward_validity(args)
    return map_arguments(_without_history, result)


def _without_use(value, needed: list[Torchish]):
    """A result that reports `requires_grad` because the inputs do; a backward pass through it is an error."""
    if not isinstance(value, Torchish):
        return value
    result = value.detach()
    result.descend(needed, "Checkpoint")
    result.refuse("none of output has requires_grad=True, this checkpoint() is not necessary")
    return result


def _without_history(value):
    """A result without history to PyTorch, with all derivatives for JAX; if JAX takes one, it keeps its history."""
    if not isinstance(value, Torchish) or value.history is None:
        return value
    (array, layout), tape = value.buffer, current().tape
    array = array if tape is None else tape.primal(array)
    if current().execution.is_differentiated(array):
        return value
    return make_view(value, value._node.rebased(ArrayBuffer(array, layout)), value)


def _without_reentrant(
    fn,
    context_fn=torch_checkpoint.noop_context_fn,
    determinism_check=DEFAULT_DETERMINISM_MODE,
    debug=False,
    **options,
):
    del options  # what concerns random numbers, and what is saved for a backward of PyTorch's
    debug = _chosen(checkpoint_debug_enabled(), debug)
    if debug and context_fn is not torch_checkpoint.noop_context_fn:
        raise ValueError("debug=True is incompatible with non-default context_fn")
    allowed = list(ALLOWED_DETERMINISM_CHECKS)
    if determinism_check not in allowed:
        raise ValueError(f"determinism_check should be one of {allowed}, but got {determinism_check}")
    forward_context, _ = context_fn()
    if not torch.is_grad_enabled():
        yield
        return
    policy = getattr(forward_context, "policy_fn", None)
    if policy is not None and isinstance(fn, _Checkpointed):
        fn.selection, forward_context = Selection(policy), contextlib.nullcontext()
    with forward_context:
        yield


if _impl is not None:

    @replaces(torch_checkpoint, "_checkpoint_without_reentrant_generator_impl")
    def _generator(fn, args, kwargs, **options):
        del args, kwargs
        return _without_reentrant(fn, **options)

else:

    @replaces(torch_checkpoint, "_checkpoint_without_reentrant_generator")
    def _generator(fn, preserve_rng_state=True, *options_and_args, **kwargs):
        names = ("context_fn", "determinism_check", "debug")
        del preserve_rng_state, kwargs
        return _without_reentrant(fn, **dict(zip(names, options_and_args, strict=False)))


def _chosen(everywhere: bool | None, here: bool) -> bool:
    return here if everywhere is None else everywhere
