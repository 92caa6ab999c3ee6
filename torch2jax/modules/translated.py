"""Translated functions and modules: pure functions of arrays that jit, grad, vmap and pickle like any other."""

import contextlib
import functools
import inspect
import types
import warnings
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, overload

import jax
import numpy as np
import torch
from jax.core import Tracer

from ..calls.dispatch import Call
from ..calls.logical_dtypes import LogicalDtypes
from ..calls.outer_modules import visit_reached
from ..rules.features import HasSparse, Incoming, comes_in
from ..runtime.errors.hints import hint_at_axes, hint_at_symbols
from ..runtime.errors.locations import SourceLine, user_level
from ..runtime.errors.tracebacks import TellsOfArguments, boundary
from ..runtime.layers import COMPILED, SELECTIONS, SPARSE
from ..tensors.ended import force_within
from ..tensors.padded import Padded
from ..tensors.tensor import Torchish
from ..tensors.traced import is_traced
from ..tensors.trees import is_sparse_array, map_given, map_results
from ..tensors.wrapped import Wrapped, is_of_call, is_wrapper
from ..tracing.conditions import FOLLOWING, BranchPolicy
from ..tracing.execution import Execution
from ..tracing.rolling import Rolling
from ..transforms.hooks import finished
from ..transforms.inputs import UnaskedInputs
from ..transforms.runs import Runs
from ..values.wrapper_subclasses import entering, leaving
from . import skeleton as skeleton
from .framework_checks import expect_no_state_by_another_name
from .layers import has_layers, restacked, unstack_layers
from .skeleton import Skeleton
from .states import StateNames, load, split

P = ParamSpec("P")
R = TypeVar("R")

_NOTHING = contextlib.nullcontext()
_PLAIN = frozenset((int, float, bool, str, type(None)))
_around: ContextVar[Callable[[], contextlib.AbstractContextManager] | None] = ContextVar("around", default=None)


@contextlib.contextmanager
def entered_around_code(make: Callable[[], contextlib.AbstractContextManager]):
    """Runs the code of translated calls in a context manager that `make` makes for each run."""
    token = _around.set(make)
    try:
        yield
    finally:
        _around.reset(token)


class _ExtendedSignature:
    """The signature of the wrapped function, with keywords that translation adds; static_argnames of jit needs it."""

    def __init__(self, **added: object):
        self._added = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=x) for name, x in added.items()]

    def __get__(self, instance: Any, owner: type | None = None) -> inspect.Signature | None:
        if instance is None:
            return None
        wrapped = inspect.signature(instance.__wrapped__)
        added = {parameter.name: parameter for parameter in self._added}
        own = [parameter for name, parameter in wrapped.parameters.items() if name not in added]
        rest = [own.pop()] if own and own[-1].kind is inspect.Parameter.VAR_KEYWORD else []
        return wrapped.replace(parameters=[*own, *self._added, *rest])


class TranslatedFunction(TellsOfArguments, Generic[P, R]):
    """A PyTorch function as a function of arrays: ``f(*args, rng=None, **kwargs)``.

    To a type checker it has the function's own signature. One that names tensors takes arrays as well.
    """

    __signature__ = _ExtendedSignature(rng=None)

    def __init__(
        self,
        function: Callable,
        last_resort: object = None,
        policy: BranchPolicy = FOLLOWING,
        logical_dtypes: LogicalDtypes | None = None,
        rolling: Rolling | None = None,
    ):
        self._function, self._last_resort, self._runs = function, last_resort, Runs(policy, UnaskedInputs(), rolling)
        self._logical_dtypes = logical_dtypes
        functools.update_wrapper(self, function, updated=())

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload  # a method of a module, which is a function to a type checker
    def __call__(
        self, *args: object, return_state_dict: Literal[True], **kwargs: object
    ) -> tuple[R, dict[str, jax.Array]]: ...
    @overload
    def __call__(self, *args: object, rng: jax.Array | None = None, **kwargs: object) -> R: ...
    @boundary
    def __call__(self, *args, rng=None, **kwargs) -> Any:
        def run(execution: Execution, given: Any):
            args, kwargs, rng = given
            with torch.enable_grad(), Call(rng, self._last_resort, execution) as call:
                result = run_on_arrays(call, self._function, args, kwargs, self._logical_dtypes)
                if execution.left_pytorch is not None:
                    _warn_of_dropped_gradient(execution.left_pytorch, given, result)
                return finished(execution, result) if execution.passes else result

        return self._runs.run(run, (args, kwargs, rng), reached=(self._function, args, kwargs))

    def __repr__(self) -> str:
        return f"t2j({self._function!r})"


class TranslatedModule(TellsOfArguments, Generic[P, R]):
    """A module, or one method of it, as a function of its arguments and its state.

    Call it as ``f(*args, state_dict=None, rng=None, return_state_dict=False, **kwargs)``.
    """

    __signature__ = _ExtendedSignature(state_dict=None, rng=None, return_state_dict=False)

    def __init__(
        self,
        module: torch.nn.Module,
        method: types.MethodType | None = None,
        last_resort: object = None,
        policy: BranchPolicy = FOLLOWING,
        parts: Any = None,
        logical_dtypes: LogicalDtypes | None = None,
        rolling: Rolling | None = None,
    ):
        self._module, self._method, self._last_resort = module, method, last_resort
        self._runs, self._parts, self._logical_dtypes = Runs(policy, UnaskedInputs(), rolling), parts, logical_dtypes
        named = module.forward if method is None else method
        functools.update_wrapper(self, named, updated=())
        self.__name__ = type(module).__name__ if method is None else method.__name__

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(
        self,
        *args: object,
        state_dict: Mapping[str, object] | None = None,
        rng: jax.Array | None = None,
        return_state_dict: Literal[True],
        **kwargs: object,
    ) -> tuple[R, dict[str, jax.Array]]: ...
    @overload
    def __call__(
        self,
        *args: object,
        state_dict: Mapping[str, object] | None = None,
        rng: jax.Array | None = None,
        return_state_dict: Literal[False] = False,
        **kwargs: object,
    ) -> R: ...
    @boundary
    def __call__(self, *args, state_dict=None, rng=None, return_state_dict=False, **kwargs) -> Any:
        if type(return_state_dict) is not bool and is_traced(return_state_dict):
            raise TypeError(
                "return_state_dict decides what is returned, but got a traced value; wanted a Python bool: "
                'jit with static_argnames="return_state_dict", or a function that passes it'
            )

        names = StateNames(self._module)
        if kwargs:
            expect_no_state_by_another_name(vars(self)["__wrapped__"], kwargs, names.tensors)

        def run(execution: Execution, given: Any):
            args, kwargs, given_state, rng = given
            # Within the run, so that the graph tells which array the layers are of.
            state = names.given(unstack_layers(given_state)) if is_stacked else given_state
            with torch.enable_grad(), Call(rng, self._last_resort, execution) as call:
                if self._parts is not None:
                    COMPILED.begin_parts(call)
                skeleton = Skeleton(names, state, call, self._parts)
                function = skeleton.module if self._method is None else skeleton.method(self._method)
                result = run_on_arrays(call, function, args, kwargs, self._logical_dtypes)
                if execution.left_pytorch is not None:
                    _warn_of_dropped_gradient(execution.left_pytorch, given, result)
                if return_state_dict:
                    left = skeleton.state_dict()
                    result = result, restacked(left, given_state, state) if is_stacked else left
                else:
                    skeleton.warn_of_dropped_buffers()
                return finished(execution, result) if execution.passes else result

        is_stacked = state_dict is not None and has_layers(state_dict)
        given = args, kwargs, state_dict if is_stacked else names.given(state_dict), rng
        return self._runs.run(run, given, is_stacked, (args, kwargs), () if self._parts else (self._module,))

    if not TYPE_CHECKING:  # which would take all names for known

        def __getattr__(self, name: str):
            raise AttributeError(_message_of(self, name), name=name, obj=self)

    def split(self, state: Mapping[str, object] | None = None) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Splits a state into the trainable parameters and the rest: ``params, buffers = t2j(module).split()``.

        Each tensor has one entry. A tied weight has its first name, or the name that it has in `state`. Call the
        function with ``state_dict=params | buffers``.

        Args:
            state: a state that the function takes or returns, or one of a checkpoint; by default the module's own, in
                new arrays.

        Returns:
            Two dictionaries: the parameters that require grad, and everything else in ``module.state_dict()``: frozen
            parameters and buffers.

        Raises:
            RuntimeError: `state` has a name that the module lacks.
            ValueError: it has two values for one tensor.
        """
        return split(self._module, state)

    def load(self, *states: Mapping[str, object], strict: bool = True) -> None:
        """Writes states into the module itself: ``t2j(module).load(params, buffers)``.

        Arrays are cast to the module's dtypes. Sharded arrays are gathered.

        Args:
            strict: raise an error if the states lack a name of ``module.state_dict()``. A tied weight needs only one of
                its names.

        Raises:
            RuntimeError: a name or an array is missing, or the module lacks it; or an array has another shape; or the
                module is on the meta device.
            ValueError: there are two values for one tensor.
        """
        load(self._module, states, strict)

    def __repr__(self) -> str:
        return f"t2j({self._module!r})" if self._method is None else f"t2j({self._method!r})"


def _message_of(function: TranslatedModule, name: str) -> str:
    """The message for an attribute that a translated module lacks."""
    module = vars(function).get("_module")
    text = f"{type(function).__name__!r} object has no attribute {name!r}"
    if name.startswith("_") or module is None:
        return text
    text += f": t2j({type(module).__name__}(...)) is a function of arrays"
    if name in ("apply", "init"):
        return f"{text}. Its state is params | buffers, of params, buffers = f.split(); call f(*args, state_dict=state)"
    for names, advice in _METHOD_REPLACEMENTS.items():
        if name in names.split():
            return f"{text}. {advice.format(name=name)}"
    if isinstance(getattr(module, name, None), types.MethodType):
        return (
            f"{text}. Wanted that of the module, before t2j(module); or, to compute with a method, t2j(module.{name})"
        )
    return f"{text}. Wanted that of the module: module.{name}" if hasattr(module, name) else text


_METHOD_REPLACEMENTS = {
    "eval train requires_grad_": "Wanted that of the module, before t2j(module): module.{name}(), and then t2j(module)",
    "state_dict parameters named_parameters buffers named_buffers": (
        "Its state is a dictionary of arrays: params, buffers = f.split(), and f(*args, state_dict=params | buffers)"
    ),
    "load_state_dict": (
        "A call takes its state: f(*args, state_dict=t2j(state_dict)); f.load(state) writes one into the module"
    ),
    "cuda cpu xpu to_empty": (
        "Arrays are where JAX has them: jax.device_put(params, device), of params, buffers = f.split(). Or wanted that "
        "of the module, before t2j(module)"
    ),
    "to": (
        "Wanted that of the module, before t2j(module): module.to(torch.bfloat16), for a dtype. Arrays are where JAX "
        "has them: jax.device_put(params, device), of params, buffers = f.split()"
    ),
    "half float double bfloat16 type": "Wanted that of the module, before t2j(module): module.{name}(...)",
    "zero_grad": "Gradients are results: jax.grad of a function of params, of params, buffers = f.split()",
    "forward": "Call it as it is: f(*args)",
}
"""The advice for methods of its module that a translated module lacks, by their names."""


def _warn_of_dropped_gradient(location: SourceLine, given: tuple[object, ...], result: object) -> None:
    """Warns where JAX differentiates a call that has computed all of its result outside of PyTorch.

    PyTorch raises in backward there: the result requires no grad.

    Args:
        location: where values left PyTorch.
        given: the arguments and the state.
    """
    is_differentiated = any(isinstance(x, Tracer) and x.to_concrete_value() is not None for x in jax.tree.leaves(given))
    if is_differentiated and not any(isinstance(x, Tracer) for x in jax.tree.leaves(result)):
        warnings.warn(
            f"the gradient is zero, since no gradient leads through numpy or numbers of Python: at {location} the code "
            "takes values out of PyTorch, and the result depends on nothing else. Write it in PyTorch's operations, or "
            "put a torch.autograd.Function with a backward around it; or, if zero is meant, give it "
            "jax.lax.stop_gradient(x)",
            stacklevel=user_level(),
        )


force_within(Call)


@comes_in
class _Selections(Incoming):
    """Selections, whose length data decide: they have no array."""

    def takes(self, kind: type) -> bool:
        return issubclass(kind, SELECTIONS.classes)

    def lift(self, call: Any, tensor: Any) -> Any:
        raise SELECTIONS.refusal(tensor)


def run_on_arrays(
    call: Call, function: Callable, args: tuple, kwargs: dict, logical_dtypes: LogicalDtypes | None = None
):
    """Calls `function` on tensors made from arrays, and returns arrays for its tensors.

    A function that is called by translated code gets its tensors, and gives tensors.
    """
    is_inner, host = False, call.kept.get(COMPILED.HostFunctions) if COMPILED.is_loaded else None

    def enter(value: Any, parameter: str | None = None):
        nonlocal is_inner
        if isinstance(value, Padded):
            return SELECTIONS.entering(call, value)
        if isinstance(value, Wrapped):
            return entering(call, value)
        if isinstance(value, torch.Tensor) and is_wrapper(value):
            is_inner = is_inner or is_of_call(value)
            return entering(call, value)
        is_inner = is_inner or isinstance(value, (Torchish, SPARSE.classes)) or (host is not None and host.owns(value))
        if logical_dtypes is not None and isinstance(value, (jax.Array, np.ndarray)):
            dtype = logical_dtypes.of(value, parameter)
            if dtype is not None:
                return call.constants.given(value, dtype)
        if isinstance(value, jax.Array):
            return call.constants.lift(value)
        if isinstance(value, (torch.Tensor, np.ndarray)):
            try:
                return call.constants.lift_argument(value)
            except HasSparse:
                return SPARSE.lifted_sparse(value)  # pyright: ignore[reportArgumentType] - it is a tensor
        return SPARSE.given_sparse(value) if type(value) not in _PLAIN and is_sparse_array(value) else value

    def leave(value: Any):
        if isinstance(value, SELECTIONS.classes):
            return value if is_inner else SELECTIONS.leaving(call, value)
        if not is_inner and call.execution.fits is not None:
            value = SELECTIONS.expected_to_fit(call, value)
        if isinstance(value, torch.Tensor):
            if type(value) is not Torchish and is_wrapper(value):
                return value if is_inner else leaving(call, value)
            try:
                return call.constants.lift(value) if is_inner else call.array_of(call.constants.lift(value))
            except HasSparse:
                return SPARSE.lifted_sparse(value) if is_inner else SPARSE.array_of_sparse(value)
        return tuple(value) if isinstance(value, torch.Size) else value  # JAX knows tuples

    make = _around.get()
    visit_reached(call, function, args, kwargs)
    try:
        if logical_dtypes is None:
            args, kwargs = map_given(enter, args), map_given(enter, kwargs) if kwargs else kwargs
        else:
            named = zip(args, logical_dtypes.parameters(args), strict=True)
            args = tuple([map_given(functools.partial(enter, parameter=name), value) for value, name in named])
            kwargs = {key: map_given(functools.partial(enter, parameter=key), value) for key, value in kwargs.items()}
        with _NOTHING if make is None or is_inner else make():
            code = call.execution.code
            result = code.result(function, args, kwargs) if code.is_converted else function(*args, **kwargs)
    except Exception as error:
        hint_at_axes(error)
        hint_at_symbols(error)
        raise
    return map_results(leave, result)
