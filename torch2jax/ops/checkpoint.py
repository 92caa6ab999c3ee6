"""`torch.utils.checkpoint`: a checkpointed function is `jax.checkpoint` of it.

PyTorch's `checkpoint` is no function that overrides reach, and it is often bound before a call begins. What it asks for
at each call is who runs it outside `torch.compile`: that stands in. It goes on to PyTorch's own code, for the checks of
the arguments, with a function that knows how to be checkpointed.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import torch
from torch.utils import checkpoint as torch_checkpoint

from ..branches.replayed_answers import ReplayedAnswers
from ..errors import TracedValueError
from ..internals.modules import ALLOWED_DETERMINISM_CHECKS, DEFAULT_DETERMINISM_MODE, checkpoint_debug_enabled
from ..patches import applies, exchange, stands_in
from ..tensors.journal import Uncontained
from ..tensors.physical import PhysicalArray
from ..tensors.tensor import Torchish, make_view
from ..tensors.trees import flatten, map_arguments
from ..tracing.scope import UNSUITED, TraceScope, rehearse
from ..tracing.traces import is_transforming
from ..translation import current
from ..values.selected import Selected
from .selective import Selection, keeping

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

    @stands_in(torch_checkpoint, "_checkpoint_impl")
    def _run_impl(function, *args, **kwargs):
        return _impl(_Checkpointed(function), *args, **kwargs)


@functools.cache
def _in_torch() -> Callable:
    from ..internals.dynamo import disable

    return disable(_body, True, wrapping=False)


if _body is not None:
    exchange(_body, "__dynamo_disable", _run_body, may_lack=True)


class _Checkpointed:
    """A function whose values within are computed anew for the derivative."""

    def __init__(self, function: Callable):
        self.function = function
        self.selection: Selection | None = None
        """What is kept nevertheless."""

    def __call__(self, *args, **kwargs):
        if not torch.is_grad_enabled() or not is_transforming():
            return self.function(*args, **kwargs)
        function = keeping(self.selection, self.function)
        may_ask = False  # in a trace where no answer can be followed
        try:
            return self._in_scope(function, args, kwargs)
        except UNSUITED as error:
            may_ask = isinstance(error, TracedValueError)
        if may_ask:  # outside of the handler: what the code raises now is no consequence of that error
            path = ReplayedAnswers(current().paths[-1])
            with path.asking():
                rehearse(self.function, *args, **kwargs)
            if path.answers:
                with contextlib.suppress(*UNSUITED), path.answering():
                    return self._in_scope(function, args, kwargs)
        return self.function(*args, **kwargs)

    def _in_scope(self, function: Callable, args: tuple, kwargs: dict):
        scope = TraceScope()

        def checkpointed():
            return scope.trace(_without_choices, function, *args, **kwargs)

        policy = None if self.selection is None else Selection.jax_policy
        return scope.close(jax.checkpoint(checkpointed, policy=policy)())


def _without_choices(function: Callable, *args, **kwargs):
    result = function(*args, **kwargs)
    if any(isinstance(x, Selected) for x in flatten(result)[0]):
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
    """What is said to require grad for what went in, but does not."""
    if not isinstance(value, Torchish):
        return value
    result = value.detach()
    result.descend(needed, "Checkpoint")
    result.refuse("none of output has requires_grad=True, this checkpoint() is not necessary")
    return result


def _without_history(value):
    """What requires no grad to PyTorch, but has all the derivatives that JAX may ask for, and requires grad then."""
    if not isinstance(value, Torchish) or value.history is None:
        return value
    (array, layout), tape = value.physical, current().tape
    array = array if tape is None else tape.primal(array)
    if current().attempt.is_differentiated(array):
        return value
    return make_view(value, value._node.grafted(PhysicalArray(array, layout)), value)


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

    @stands_in(torch_checkpoint, "_checkpoint_without_reentrant_generator_impl")
    def _generator(fn, args, kwargs, **options):
        del args, kwargs
        return _without_reentrant(fn, **options)

else:

    @stands_in(torch_checkpoint, "_checkpoint_without_reentrant_generator")
    def _generator(fn, preserve_rng_state=True, *options_and_args, **kwargs):
        names = ("context_fn", "determinism_check", "debug")
        del preserve_rng_state, kwargs
        return _without_reentrant(fn, **dict(zip(names, options_and_args, strict=False)))


def _chosen(everywhere: bool | None, here: bool) -> bool:
    return here if everywhere is None else everywhere
