"""The dispatch of a function to its rule.

1. A function of PyTorch's Python interface with a rule: the rule.
2. Without one, if it is written in Python: its body, whose calls come back here one by one.
3. Without one, if it is C++: PyTorch runs it, and the ATen operators it reaches arrive in `dispatch_aten`.
4. An ATen operator with a rule: the rule; without one: its kernel, if a library wrote one in Python, or PyTorch's
   decomposition of it, whose calls come back here.
5. Otherwise, one clear error; or, where the user wants that, PyTorch itself runs it: `Call.last_resort`.
"""

import contextlib
import functools
import types
from collections.abc import Callable, Collection
from typing import Any

import jax
import torch
from torch.overrides import TorchFunctionMode

from ..internals.dispatch import (
    AutoDispatchBelowADInplaceOrView,
    DisableTorchFunction,
    EnableTorchFunction,
    HigherOrderOperator,
    OpOverload,
    TorchDispatchModeKey,
    dispatch_tls_local_exclude_set,
    get_current_dispatch_mode_stack,
    get_dispatch_mode,
    is_torch_function_enabled,
    len_torch_dispatch_stack,
)
from ..internals.transforms import is_any_autocast_enabled
from ..rules import registry
from ..rules.features import DIVIDED, NEXT, Changed, InFakeMode, handlers_of, run_without_values
from ..rules.inplace import with_dtype_of_out, write_in_place, write_out
from ..rules.operands import has_numpys, without_numpys
from ..rules.options import DROPPED, by_schema, is_in_old_order, run_named, with_dropped
from ..rules.rule import MetadataRule
from ..runtime.errors import REFUSALS, NoRuleError, WithoutValuesError
from ..runtime.patches import apply_patches, remove_patches
from ..runtime.translation import CallMode, calls_of_thread, current, enter, leave, this_call
from ..tensors.dtypes import dtype_of_type
from ..tensors.tensor import Torchish, is_foreign
from ..tracing.execution import Execution
from ..tracing.traces import current_trace
from .modes import AtenMode, body_of, decomposition_of, functional_of, observer, outputs_of
from .nesting import Nesting, Session
from .plans import NOT_PLANNED, PLAIN, run_planned
from .rng import Stream

_FAKE: Any = TorchDispatchModeKey.FAKE
# What PyTorch's code promotes and broadcasts is for PyTorch to say, whatever a user wants of JAX code around the call.
_PROMOTION = (
    ("jax_numpy_rank_promotion", "allow", jax.numpy_rank_promotion),
    ("jax_numpy_dtype_promotion", "standard", jax.numpy_dtype_promotion),
)


class Call(TorchFunctionMode, Nesting, CallMode):
    """One translated call: intercepts PyTorch on this thread, and holds the call's constants and random stream.

    Args:
        rng: the JAX key that random operators take theirs from, or None.
        last_resort: what runs in PyTorch itself, and how (`bridge.last_resort.LastResort`); None for nothing but what
            the call around this one lets run there.
        execution: which run of the function it is, where no call is around it.
    """

    def __init__(self, rng: jax.Array | None = None, last_resort: object = None, execution: Execution | None = None):
        TorchFunctionMode.__init__(self)
        outer = current()
        execution = execution or Execution()
        Nesting.__init__(self, outer, execution.depth, len(execution.passes))
        session = self._session = Session(execution) if outer is None else outer._session
        self.execution, self.constants, self.settings = session.execution, session.constants, session.settings
        self.kept = session.kept
        self.registered, self.transformations, self.passes = session.registered, session.transformations, session.passes
        self.paths, self.ends = session.paths, session.ends
        self.is_top_level = outer is None
        self.keys = dispatch_tls_local_exclude_set() if outer is None else outer.keys
        self._owns_stream = rng is not None or outer is None
        self.stream = Stream(rng) if self._owns_stream else outer.stream  # pyright: ignore[reportOptionalMemberAccess]
        self.casts, self.contexts = {}, []
        self._reports = last_resort is not None
        self.last_resort: Any = outer.last_resort if last_resort is None and outer is not None else last_resort
        self._aten_mode: AtenMode | None = None
        self._below_autograd = AutoDispatchBelowADInplaceOrView()
        self._bodies: list = []
        self.steps_abstractly = False
        """True during an optimizer's step in which tensors stand for traced numbers."""
        self.compiles = False
        """The answer to ``torch.compiler.is_compiling()``; see `optimizers`."""
        seen_by = observer()
        if seen_by is not None:
            self.features.push(seen_by)
        if self.last_resort is not None and self.last_resort.functions:
            self.features.push(self.last_resort)
        self._promotion: contextlib.ExitStack | None = None
        self._recording: contextlib.AbstractContextManager[None] | None = None

    run_planned = staticmethod(run_planned)  # for which a check of plans stands in

    def __enter__(self) -> "Call":
        try:
            apply_patches(self)
        except BaseException:  # an interrupt by the user
            remove_patches(self)
            raise
        enter(self)
        try:
            if self.is_top_level:
                for name, ours, context in _PROMOTION:
                    if getattr(jax.config, name) != ours:
                        self._promotion = self._promotion or contextlib.ExitStack()
                        self._promotion.enter_context(context(ours))
            recording = self.nested()
            recording.__enter__()
            self._recording = recording
            if self.is_top_level:
                self._session.begin(current_trace(), self.tape)
                for feature in self.features.beginning:
                    feature.begin(self)
        except BaseException:
            self._leave()
            raise
        if self.is_top_level and self.execution.tracks_lengths:
            for feature in self.features.later:
                feature.begin_later(self)
        self.top_level = self._session.top_level
        self._below_autograd.__enter__()
        TorchFunctionMode.__enter__(self)
        return self

    def __exit__(self, *exc_info: object):
        try:
            TorchFunctionMode.__exit__(self, *exc_info)
            self._below_autograd.__exit__(*exc_info)
            if self.is_top_level and self.execution.ended_by is not None:
                for feature in self.features.discarding:
                    feature.discard(self)
                self.execution.discard()
            elif self.is_top_level and self.execution.path.is_one_of_several:
                self.execution.discard()
        finally:
            self._leave()
        if exc_info[0] is None:
            if self._owns_stream:
                self.stream.report()
            if self._reports:
                self.last_resort.report()

    def _leave(self) -> None:
        try:
            try:
                if self._recording is not None:
                    self._recording.__exit__(None, None, None)
            finally:
                if self._promotion is not None:
                    self._promotion.close()
            leave()
            if not self.is_top_level:
                self.features.return_to(this_call().features)
            if self._owns_stream:
                self.stream.close()
            try:
                if self.is_top_level:
                    ends = self._session.ends
                    if ends:
                        with contextlib.ExitStack() as stack:
                            for end in reversed(ends):  # one may raise, and the others follow
                                stack.callback(end)
            finally:
                if self.is_top_level:
                    for feature in self.features.ending:
                        feature.end(self)
        finally:
            if self in calls_of_thread.stack:  # what comes before has raised
                calls_of_thread.stack.remove(self)
            self._aten_mode = None  # it has the call, whose arrays would live until Python looks for cycles
            try:
                remove_patches(self)
            except BaseException:  # an interrupt by the user, which may come anywhere
                remove_patches(self)
                raise

    @property
    def aten_mode(self) -> AtenMode:
        """The dispatch mode that intercepts the operators which PyTorch's C++ reaches."""
        if self._aten_mode is None:
            self._aten_mode = AtenMode(self)
        return self._aten_mode

    def inside(self) -> "_Inside":
        """A context in which functions are intercepted again, where PyTorch has suspended that."""
        return _Inside(self)

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Collection[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ):
        if not self.features:
            result = self.run_planned(self, func, types, args, kwargs)
            if result is not NOT_PLANNED:
                return result
        for feature in self.features.first:
            result = feature.run_first(self, func, types, args, kwargs or {})
            if result is not NEXT:
                return result
        if func in DROPPED:
            kwargs = with_dropped(func, kwargs or {})
        if types and types != PLAIN:
            if is_foreign(types):
                return NotImplemented
            for handler in handlers_of(tuple(types)):
                result = handler(self, func, args, kwargs or {})
                if type(result) is not Changed:
                    return result
                args, kwargs = result
        if types != PLAIN and (types or not is_torch_function_enabled()):
            for feature in self.features.mixed:
                result = feature.run_mixed(self, func, types, args, kwargs or {})
                if result is not NEXT:
                    return result
        rule = registry.lookup(func)
        metadata = rule if type(rule) is MetadataRule and not kwargs and self.is_plain else None
        if metadata is not None and types:
            return metadata(args, {})
        for feature in self.features.instead:
            result = feature.run_instead(self, func, rule, args, kwargs or {})
            if result is not NEXT:
                return result
        if metadata is not None:
            return metadata(args, {})
        return self.dispatch(func, args, kwargs or {})

    def dispatch(self, func: Callable[..., object], args: tuple, kwargs: dict) -> Any:
        try:
            if len_torch_dispatch_stack() and _is_seen_by_modes():
                return self.run_below_modes(func, args, kwargs)
            if isinstance(func, OpOverload):
                return self.dispatch_aten(func, args, kwargs)
            rule = registry.lookup(func)
            if is_any_autocast_enabled() and (
                rule is not None or any(x.concerns(func) for x in self.features.operators)
            ):
                result = self._run_cast(func, rule, args, kwargs)
                if result is DIVIDED:
                    rule = None
                elif result is not NEXT:
                    return result
            for feature in self.features.operators:
                result = feature.run_operator(self, func, args, kwargs)
                if result is not NEXT:
                    return result
            if kwargs and type(kwargs.get("dtype")) is type:  # PyTorch takes Python's types for its own
                kwargs = {**kwargs, "dtype": dtype_of_type(kwargs["dtype"])}
            if kwargs and kwargs.get("out") is not None and not isinstance(func, types.FunctionType):
                kwargs = kwargs if rule is None else with_dtype_of_out(rule, kwargs)
            if rule is not None and not is_in_old_order(func, args):
                if has_numpys(args, kwargs):
                    args, kwargs = without_numpys(func, rule, args, kwargs)
                return self.run_rule(func, rule, args, kwargs)
            if isinstance(func, types.FunctionType) and not self.is_own_body(func, args):
                return self.run_body(func, args, kwargs)
            if isinstance(func, HigherOrderOperator):
                for feature in self.features.unruled:
                    result = feature.run_unruled(self, func, args, kwargs)
                    if result is not NEXT:
                        return result
            return self.run_compiled(func, args, kwargs)
        except WithoutValuesError as error:
            if isinstance(func, OpOverload):
                raise
            return run_without_values(error, self, func, args, kwargs)

    def _run_cast(self, func: Callable[..., object], rule: object, args: tuple, kwargs: dict) -> object:
        """The result of a function or an operator while PyTorch casts operands; or `NEXT`, or `DIVIDED`."""
        found = NEXT
        for feature in self.features.casting:
            result = feature.run_cast(self, func, rule, args, kwargs)
            if result is DIVIDED:
                found, rule = DIVIDED, None
            elif result is not NEXT:
                return result
        return found

    def dispatch_past_overrides(self, func: object, args: tuple, kwargs: dict) -> object:
        """Dispatches functions that PyTorch's C++ calls without a look for overrides."""
        for feature in self.features.past_overrides:
            feature.run_past_overrides(self, func, args)
        return self.dispatch_aten(func, args, kwargs)

    def dispatch_aten(self, func: Any, args: tuple, kwargs: dict) -> Any:
        try:
            is_divided = False
            if is_any_autocast_enabled():
                result = self._run_cast(func, None, args, kwargs)
                is_divided = result is DIVIDED
                if not is_divided and result is not NEXT:
                    return result
            for feature in self.features.operators:
                result = feature.run_operator(self, func, args, kwargs)
                if result is not NEXT:
                    return result
            if kwargs:
                args, kwargs = by_schema(func, args, kwargs)
            args = tuple(self._lift_argument(x) for x in args)
            outputs = outputs_of(func) if kwargs else None
            if outputs is not None:
                targets = [kwargs[name] for name in outputs.names]
                inputs = {name: value for name, value in kwargs.items() if name not in outputs.names}
                result = self.dispatch_aten(outputs.functional, args, inputs)
                out = targets[0] if len(targets) == 1 else tuple(targets)
                try:
                    written = write_out(result, out, (*args, *inputs.values()))
                except RuntimeError as error:
                    self.features.explain(self, func, None, args, kwargs, error)
                    raise
                return written if func._schema.returns else None
            rule = None if is_divided else registry.lookup_aten(func)
            if rule is not None:
                return self.run_rule(func, rule, args, kwargs)
            for feature in self.features.unruled:
                result = feature.run_unruled(self, func, args, kwargs)
                if result is not NEXT:
                    return result
            registry.check_decomposed(func, args)
            decomposition = decomposition_of(func)
            if decomposition is not None:
                return self.run_decomposition(func, decomposition, args, kwargs)
            if func._can_decompose():
                with DisableTorchFunction(), self.aten_mode:
                    return func.decompose(*args, **kwargs)
            functional = functional_of(func)
            if functional is not None:
                return write_in_place(args[0], self.dispatch_aten(functional, args, kwargs), args[1:])
            return self.run_missing(func, args, kwargs)
        except WithoutValuesError as error:
            return run_without_values(error, self, func, args, kwargs)

    def run_rule(self, func: Callable[..., Any], rule: Any, args: tuple, kwargs: dict) -> Any:
        try:
            for feature in self.features.rules:
                result = feature.run_rule(self, func, rule, args, kwargs)
                if result is not NEXT:
                    return result
            return run_named(func, rule, args, kwargs)
        except WithoutValuesError:
            raise
        except REFUSALS as error:
            run = functools.partial(self.run_rule, func, rule)
            for feature in self.features.again:
                result = feature.run_again(self, func, args, kwargs, error, run)
                if result is not NEXT:
                    return result
            self.features.explain(self, func, rule, args, kwargs, error)
            raise

    def run_decomposition(self, func: Callable[..., object], decomposition: Callable, args: tuple, kwargs: dict):
        try:
            with self.inside():
                return decomposition(*args, **kwargs)
        except WithoutValuesError:
            raise
        except REFUSALS as error:
            self.features.explain(self, func, None, args, kwargs, error)
            raise

    @property
    def is_plain(self) -> bool:
        """True if no feature or dispatch mode sees the functions, and autocast is off."""
        return not (self.features.sees_operators or is_any_autocast_enabled() or len_torch_dispatch_stack())

    def run_below_modes(self, func: Callable[..., object], args: tuple, kwargs: dict) -> object:
        """Runs a function where the code is within dispatch modes, which must see the operators."""
        if get_dispatch_mode(_FAKE) is not None:
            return run_without_values(InFakeMode(), self, func, args, kwargs)
        with DisableTorchFunction():
            return func(*map(self._lift_argument, args), **kwargs)

    def run_missing(self, func: OpOverload, args: tuple, kwargs: dict) -> object:
        """Runs an operator without a rule in PyTorch itself, if the user wants that.

        Raises:
            NoRuleError: the user does not, or it cannot be.
        """
        if self.last_resort is not None:
            return self.last_resort.missing(func, args, kwargs)
        for feature in self.features.missing:
            result = feature.run_missing(self, func, args, kwargs)
            if result is not NEXT:
                return result
        raise NoRuleError(f"torch.ops.{func}")

    def is_own_body(self, func: Callable[..., object], args: tuple[object, ...]) -> bool:
        """Returns True if the body of a function is running and calls the function again, which would never end.

        Only where it does so in a way that `modes.body_of` does not answer.
        """
        return any(func is running and _same_first(args, given) for running, given in self._bodies)

    def runs_body(self, func: Callable[..., object], args: tuple[object, ...]) -> bool:
        """Returns True if a function without a rule is run by its own body, wherever the call is."""
        is_plain = not is_any_autocast_enabled() and not any(x.concerns(func) for x in self.features.operators)
        return is_plain and not self.is_own_body(func, args)

    def run_body(
        self,
        func: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        *,
        checks_classes: bool = True,
    ):
        """Runs the body of a Python function of PyTorch; what it calls comes back to `dispatch`.

        Args:
            checks_classes: whether classes of tensors are asked of these, also where PyTorch has suspended that.
        """
        self._bodies.append((func, args))
        try:
            with _Inside(self, checks_classes):
                return body_of(func)(*args, **kwargs)
        finally:
            self._bodies.pop()

    def run_compiled(self, func: Callable, args: tuple[object, ...], kwargs: dict[str, object]):
        """Runs a function in PyTorch's C++; the ATen operators that it reaches come back to `dispatch_aten`."""
        args = tuple([self._lift_argument(x) for x in args])
        kwargs = {key: self._lift_argument(x) for key, x in kwargs.items()}
        try:
            with DisableTorchFunction(), self.aten_mode:
                result = func(*args, **kwargs)
        except WithoutValuesError:
            raise
        except RuntimeError as error:
            run = functools.partial(self.run_compiled, func)
            for feature in self.features.again:
                again = feature.run_again(self, func, args, kwargs, error, run)
                if again is not NEXT:
                    return again
            raise
        if isinstance(result, torch.Tensor) and not (isinstance(result, Torchish) or handlers_of((type(result),))):
            return self.constants.lift_own(result)  # PyTorch made it just now
        return result

    def _lift_argument(self, value: object) -> object:
        if isinstance(value, (torch.Tensor, jax.Array)):
            return self.constants.lift(value)
        if isinstance(value, (list, tuple)) and any(isinstance(item, (torch.Tensor, jax.Array)) for item in value):
            return type(value)(self._lift_argument(item) for item in value)
        return value


class _Inside:
    """The context of `Call.inside`; a class, since every rule on tensors enters one."""

    __slots__ = ("_call", "_enabled")

    def __init__(self, call: Call, checks_classes: bool = True):
        self._call = call
        self._enabled = EnableTorchFunction() if checks_classes else contextlib.nullcontext()

    def __enter__(self):
        self._enabled.__enter__()
        TorchFunctionMode.__enter__(self._call)

    def __exit__(self, *exc_info: object):
        TorchFunctionMode.__exit__(self._call, None, None, None)
        self._enabled.__exit__(*exc_info)


def _is_seen_by_modes() -> bool:
    """Returns True if the code is within a dispatch mode that must see the operators, such as that of ``make_fx``."""
    return any(not isinstance(mode, CallMode) for mode in get_current_dispatch_mode_stack())


def _same_first(args: tuple, given: tuple) -> bool:
    return len(args) == len(given) and (not args or args[0] is given[0])
