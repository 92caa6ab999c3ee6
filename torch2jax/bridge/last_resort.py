"""The last resort of `t2j`: PyTorch runs operators without a rule, and functions that the user names."""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.overrides import get_overridable_functions, resolve_name

from ..internals.dispatch import OpOverload, OpOverloadPacket, dispatch_has_kernel_for_dispatch_key, jit_resolve_packet
from ..modules.skeleton import copy_structure
from ..modules.states import named_tensors
from ..rules.features import NEXT, Feature
from ..runtime.errors import NoRuleError
from ..runtime.errors.locations import nearest, user_level, user_location
from ..runtime.translation import Call
from .call_torch import VMAP_METHODS
from .outside import Outside

_ON_MISSING = ("error", "call_torch")


def last_resort(module: torch.nn.Module | None, *, on_missing: str, call_torch: Sequence, vmap_method: str):
    """The feature that runs functions in PyTorch as `t2j` was told, or None if it was not.

    Args:
        module: what is translated, if that is a module: names in `call_torch` are names of its parts.
        on_missing, call_torch, vmap_method: see `t2j`.

    Raises:
        ValueError: an option has a value that it cannot have, or a name in `call_torch` is unknown.
        TypeError: something else in `call_torch` is none of the things that it may name.
    """
    if on_missing not in _ON_MISSING:
        raise ValueError(
            f"got on_missing={on_missing!r}; wanted one of {', '.join(map(repr, _ON_MISSING))}: a function "
            "without a rule raises an error, or runs in PyTorch"
        )
    if vmap_method not in VMAP_METHODS:
        raise ValueError(f"got vmap_method={vmap_method!r}; wanted one of {', '.join(VMAP_METHODS)}")
    if isinstance(call_torch, str) or not isinstance(call_torch, Iterable):  # a name alone would be taken apart
        raise TypeError(
            f"got call_torch={call_torch!r}; wanted a list of what PyTorch should run, such as "
            f"call_torch=[{call_torch!r}]"
        )
    chosen = tuple(_checked(thing, module) for thing in call_torch)
    return LastResort(on_missing == "call_torch", chosen, vmap_method) if chosen or on_missing != "error" else None


def _checked(thing: object, module: torch.nn.Module | None) -> object:
    """A thing that is to run in PyTorch: an operator's name, a function, a module or a class of modules."""
    if isinstance(thing, str):
        return _checked_name(thing, module)
    thing = getattr(thing, "_opoverload", thing)  # what torch.library.custom_op makes
    if isinstance(thing, OpOverload):
        return thing.name() if thing._overloadname != "default" else f"{thing.name()}.default"
    if isinstance(thing, OpOverloadPacket):
        return thing._qualified_op_name
    if isinstance(thing, torch.nn.Module) or (isinstance(thing, type) and issubclass(thing, torch.nn.Module)):
        if module is None:
            raise TypeError(
                "call_torch has a module or a class of modules, but t2j got a function, whose modules are "
                "constants. Translate the module, or a method of a module that contains it"
            )
        return thing
    if callable(thing) and not isinstance(thing, type) and resolve_name(thing) is not None:
        return thing
    raise TypeError(
        f"call_torch has {thing!r}; wanted an operator or its name, a PyTorch function, or a module, its class or "
        "its name. In place of your own function, call j2t(torch2jax(function, *examples))"
    )


def _checked_name(name: str, module: torch.nn.Module | None) -> object:
    if "::" in name:
        if _operator(name) is None:
            raise ValueError(f"call_torch names the operator {name!r}, which PyTorch does not know; is it imported?")
        return name
    if module is None:
        raise ValueError(f"call_torch names {name!r}, but no module is translated whose part that would be")
    parts = dict(module.named_modules(remove_duplicate=False))
    if name not in parts:
        raise ValueError(f"call_torch names {name!r}, but the model has no module of that name{nearest(name, parts)}")
    return parts[name]


def _operator(name: str) -> OpOverload | OpOverloadPacket | None:
    namespace, _, rest = name.partition("::")
    try:
        return functools.reduce(getattr, rest.split("."), getattr(torch.ops, namespace))
    except AttributeError:
        return None


def _functions(chosen: Iterable) -> frozenset:
    """Everything that must not reach a rule: operators, and the functions that lead to these."""
    found: set[object] = set()
    for thing in chosen:
        if isinstance(thing, str):
            operator: Any = _operator(thing)
            found.add(operator)
            if isinstance(operator, OpOverloadPacket):
                found.update(getattr(operator, name) for name in operator.overloads())
            if thing.startswith("aten::"):
                found.update(_named(getattr(operator, "overloadpacket", operator).__name__))
        elif not isinstance(thing, (torch.nn.Module, type)):
            found.update((thing, *_named(thing.__name__)))
    return frozenset(found)


def _named(name: str) -> list[Callable]:
    """The functions and methods of PyTorch that have a name."""
    every = (function for functions in get_overridable_functions().values() for function in functions)
    return [function for function in every if getattr(function, "__name__", None) == name]


class LastResort(Feature):
    """The feature that runs some functions of a translated one in PyTorch.

    Args:
        calls_missing: whether operators without a rule are.
        chosen: what is even with one: names of operators, functions, modules and classes of these.
        vmap_method: how JAX batches these calls.
    """

    rank = 41

    def __init__(self, calls_missing: bool, chosen: tuple, vmap_method: str):
        self._options = (calls_missing, chosen, vmap_method)
        self.functions = _functions(chosen)
        """The functions that never reach their rules."""
        self._modules = tuple(thing for thing in chosen if isinstance(thing, torch.nn.Module))
        self._classes = tuple(thing for thing in chosen if isinstance(thing, type))
        self.calls_missing = calls_missing
        self._outside = Outside(vmap_method)
        self._called: dict[str, str] = {}
        self._reported: set[str] = set()

    def __reduce__(self):
        return LastResort, self._options

    def concerns(self, function: object) -> bool:
        return function in self.functions

    def run_operator(self, call: Call, function: Callable, args: tuple, kwargs: dict) -> object:
        del call
        return self.run(function, args, kwargs) if function in self.functions else NEXT

    def missing(self, operator: OpOverload, args: tuple, kwargs: dict) -> object:
        """Runs an operator that no rule serves.

        Raises:
            NoRuleError: that was not asked for, or would draw random numbers.
        """
        if not self.calls_missing:
            raise NoRuleError(f"torch.ops.{operator}")
        return self.run(operator, args, kwargs)

    def run(self, function: Callable, args: tuple, kwargs: dict) -> Any:
        """Runs an operator or a function of PyTorch's."""
        if isinstance(function, OpOverloadPacket):
            function = getattr(function, jit_resolve_packet(function._qualified_op_name, *args, **kwargs))
        if torch.Tag.nondeterministic_seeded in getattr(function, "tags", ()):
            raise NoRuleError(f"torch.ops.{function}", "it draws random numbers from PyTorch's own generator")
        name = function.name() if isinstance(function, OpOverload) else resolve_name(function) or str(function)
        self._note(name)
        options: dict[str, Any] = {}
        if isinstance(function, OpOverload) and function.namespace not in ("aten", "prims"):
            options["transforms"] = False  # what torch.library makes differentiable is beyond torch.func
            if not _has_derivative(function):
                options["depth"] = 0
        return self._outside.call(function, name, args, kwargs, **options)

    def take_over(self, module: torch.nn.Module, skeleton: torch.nn.Module) -> None:
        """Makes the parts of `skeleton` that stand for chosen parts of `module` run in PyTorch."""
        if not self._modules and not self._classes:
            return
        for path, part in module.named_modules(remove_duplicate=False):
            if isinstance(part, self._classes) or any(part is chosen for chosen in self._modules):
                if isinstance(part, torch.jit.ScriptModule):
                    raise TypeError(f"call_torch names {path!r}, a TorchScript module: its parameters cannot be inputs")
                replacement = skeleton.get_submodule(path)
                replacement._call_impl = functools.partial(self._run_module, path, part, replacement)

    def _run_module(
        self, path: str, module: torch.nn.Module, replacement: torch.nn.Module, *args: object, **kwargs: object
    ) -> object:
        name = f"{type(module).__name__} {path}" if path else type(module).__name__
        self._note(name)
        own = named_tensors(replacement)
        state = {name: own[name] for name in _distinct_names(module)}
        run = _ModuleCall(module, tuple(part.training for part in replacement.modules()))
        result, replaced = self._outside.call(run, name, (state, args, kwargs), {})
        for buffer, value in replaced.items():
            owner, _, attribute = buffer.rpartition(".")
            setattr(replacement.get_submodule(owner), attribute, value)
        return result

    def _note(self, name: str) -> None:
        if name not in self._called:
            self._called[name] = user_location()

    def report(self) -> None:
        """Warns of functions that PyTorch has run for the first time since the last report."""
        new = {name: location for name, location in list(self._called.items()) if name not in self._reported}
        if new:
            self._reported.update(new)
            listed = ", ".join(f"{name} (at {location})" for name, location in new.items())
            warnings.warn(
                f"t2j runs in PyTorch itself, outside of the program that XLA compiles: {listed}",
                stacklevel=user_level(),
            )


def _has_derivative(operator: OpOverload) -> bool:
    """Returns True if autograd knows an operator; for others its gradients would be zeros, with a warning."""
    keys = ("CompositeImplicitAutograd", "Autograd", "AutogradCPU", "AutogradCUDA")
    return any(dispatch_has_kernel_for_dispatch_key(operator.name(), key) for key in keys)


def _distinct_names(module: torch.nn.Module) -> list[str]:
    """The first name of each parameter and buffer."""
    names: dict[int, str] = {}
    for name, tensor in named_tensors(module).items():
        names.setdefault(id(tensor), name)
    return list(names.values())


@dataclasses.dataclass(frozen=True)
class _ModuleCall:
    """A call of a module as a function of its parameters and buffers as well.

    The module itself is only read: a copy of its structure, made for each run, holds the given tensors.
    """

    module: torch.nn.Module
    training: tuple[bool, ...]

    def __call__(self, state: dict, args: tuple, kwargs: dict) -> tuple[object, dict]:
        """The result, and the buffers in whose place the module has put others."""
        tensors = named_tensors(self.module)
        copied = copy_structure(self.module, {id(tensors[name]): tensor for name, tensor in state.items()})
        for part, training in zip(copied.modules(), self.training, strict=True):
            part.training = training
        before = dict(copied.named_buffers())
        result = copied(*args, **kwargs)
        replaced = {name: buffer for name, buffer in copied.named_buffers() if buffer is not before.get(name)}
        return result, replaced
