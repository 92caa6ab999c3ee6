"""Compiled parts of a program, whose surrounding Python code runs as usual.

Also here: the differences between two calls of one part, in words.
"""

import copy
import functools
import inspect
import itertools
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import torch

from ...internals.dispatch import DisableTorchFunction, get_current_function_mode_stack
from ...rules import autocast
from ...rules.tables import entered
from ...runtime.caches import Cache
from ...runtime.errors import TracedValueError
from ...runtime.errors.locations import nearest, user_level
from ...runtime.translation import Call, CallMode, this_call
from ...tensors.dtypes import default_dtype
from ...tensors.journal import Located, Uncontained
from ...tensors.objects import Hidden, Identity, codec_of, has_attributes
from .captured import Aliased, CapturedState, GuardedState
from .host_functions import HostFunctions
from .program import PartProgram

_SHOWN = 3
_LONGEST = 60


def listed(function: Callable, module: object, args: tuple, kwargs: dict) -> dict[str, str]:
    """The arguments of a call and the contents of its module, by path. PyTorch's overrides must be off."""
    names = list(inspect.signature(function).parameters) if callable(function) else []
    found: dict[str, str] = {"gradients": "on" if torch.is_grad_enabled() else "off"}
    seen: set[int] = set()
    for number, value in enumerate(args):
        _list(names[number] if number < len(names) else f"argument {number}", value, found, seen)
    for name, value in kwargs.items():
        _list(name, value, found, seen)
    _list("self", module, found, seen)
    return found


def _list(path: str, value: object, found: dict[str, str], seen: set[int]) -> None:
    if isinstance(value, torch.Tensor):
        found[path] = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        return
    codec = codec_of(type(value))
    if codec is None:
        text = repr(value)
        found[path] = text if len(text) < _LONGEST else f"{text[:_LONGEST]}..."
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    head, items = codec.open(value)
    found[path] = f"{type(value).__name__} of {len(items)}"
    for number, item in enumerate(items):
        _list(_extended(path, value, head, number), item, found, seen)


def _extended(path: str, value: object, head: object, number: int) -> str:
    names: tuple = head if isinstance(head, tuple) else ()
    if isinstance(value, dict) and type(value).__dictoffset__:  # its keys, and the names of its attributes
        names = (*names[0], *names[1])
    if number >= len(names) or not isinstance(names[number], str):
        return f"{path}[{number}]"
    return f"{path}[{names[number]!r}]" if isinstance(value, dict) else f"{path}.{names[number]}"


def difference(before: dict[str, str], now: dict[str, str]) -> str:
    """The entries that differ, in words."""
    lines = [
        f"{path} was {before.get(path, 'not there')} and is {now.get(path, 'not there')}"
        for path in (*now, *(path for path in before if path not in now))
        if before.get(path) != now.get(path)
    ]
    more = f", and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return (", ".join(lines[:_SHOWN]) + more) if lines else "which tensors share memory, or what decides their layout"


_MANY = 16
_IN_VAIN = 3  # calls: a cache that is reordered after each of them is another one the next time
_NOT_COMPILED: Any = object()
_LOCATED: Any = object()


def parts_of(module: torch.nn.Module | None, chosen: object) -> "Parts | None":
    """The parts that `t2j` was told to compile, or None if there are none.

    Args:
        module: what is translated; its parts are meant.
        chosen: names of parts and methods, modules, classes of modules.

    Raises:
        TypeError: there is no module, or `chosen` has something of another kind.
        ValueError: no part bears a name.
    """
    if isinstance(chosen, str) or not isinstance(chosen, Iterable):  # a name alone would be taken apart
        way = "compile=[''] for the whole module"
        if isinstance(chosen, (str, type, torch.nn.Module)):
            way = f"as compile=[{chosen!r}]"
        elif not chosen:
            way = "or leave it out"
        raise TypeError(f"got compile={chosen!r}; wanted a list of parts to compile, {way}")
    chosen = tuple(chosen)
    if not chosen:
        return None
    if module is None:
        raise TypeError(
            "compile names parts of a module, but a function is translated. Write the function as the forward pass or "
            "a method of a module that holds the modules it calls: t2j(Holder(model).sample, compile=['model'])"
        )
    return Parts(tuple(found for thing in chosen for found in _found(module, thing)))


def _found(module: torch.nn.Module, thing: object) -> Iterator[tuple[str, str | None]]:
    """The path of each module that something means, and the name of its method, None for the call of the module."""
    parts = dict(module.named_modules(remove_duplicate=False))
    if isinstance(thing, str):
        yield _named(module, parts, thing)
        return
    if isinstance(thing, types.MethodType):
        owner, method = thing.__self__, thing.__name__
    else:
        owner, method = thing, None
    if isinstance(thing, type) and issubclass(thing, torch.nn.Module):
        found = [path for path, part in module.named_modules() if isinstance(part, thing)]
    elif isinstance(owner, torch.nn.Module):
        found = [path for path, part in parts.items() if part is owner][:1]
    else:
        raise TypeError(f"compile has {thing!r}; wanted a part or method, by name or as itself, or a class of modules")
    if not found:
        raise ValueError(f"compile has {thing!r}, which is no part of the module")
    yield from ((path, method) for path in found)


def _named(module: torch.nn.Module, parts: dict[str, torch.nn.Module], name: str) -> tuple[str, str | None]:
    if name in parts:
        return name, None
    path, _, method = name.rpartition(".")
    if path in parts and isinstance(getattr(type(parts[path]), method, None), (types.FunctionType, classmethod)):
        return path, method
    methods = [f"{path}.{x}" if path else x for x in _own_methods(parts.get(path, module))]
    raise ValueError(
        f"compile names {name!r}, but the module has no part and no method of that name"
        + nearest(name, [*parts, *methods])
    )


def _own_methods(module: torch.nn.Module) -> list[str]:
    """The methods that a module's own code defines, without those of PyTorch's classes."""
    bases = [base for base in type(module).__mro__ if base.__module__.partition(".")[0] not in ("torch", "builtins")]
    functions = (types.FunctionType, classmethod)
    return [name for base in bases for name, x in vars(base).items() if isinstance(x, functions) and name[:2] != "__"]


class Parts:
    """The parts of one module that are compiled, and their programs."""

    def __init__(self, chosen: tuple[tuple[str, str | None], ...]):
        self._chosen = chosen
        self._parts = {(path, method): _CompiledPart(path, method) for path, method in chosen}

    def __reduce__(self):
        return Parts, (self._chosen,)

    def take_over(self, skeleton: torch.nn.Module) -> None:
        """Makes the parts of `skeleton`, a copy of the module, run by their programs."""
        for (path, method), part in self._parts.items():
            module = skeleton.get_submodule(path)
            if isinstance(module, torch.jit.ScriptModule):
                raise TypeError(f"compile names {path!r}, a TorchScript module, which is what it was compiled to")
            name = "_call_impl" if method is None else method
            setattr(module, name, _Running(part, module, getattr(module, name)))


class _CompiledPart:
    """A part, and the programs that it has been compiled to."""

    def __init__(self, path: str, method: str | None):
        self.name = ".".join(x for x in (path, method) if x) or "the forward pass"
        self.programs: Cache[tuple, PartProgram | None] = Cache("programs of parts", 4096)
        self._numbers: Cache[tuple, int] = Cache("signatures of parts", 4096)
        self._next = itertools.count()
        self._has_warned = False
        self._last: dict[str, str] = {}

    def numbered(self, signature: tuple) -> int:
        """The number of a signature."""
        number = self._numbers.get(signature)
        return self._numbers.obtain(signature, self._next.__next__) if number is None else number

    def note(self, key: tuple, program: PartProgram | None, listed: dict[str, str]) -> None:
        """Keeps a program.

        Args:
            program: None if the part runs as it is.
            listed: what the call gets for which it was compiled.
        """
        before, self._last = self._last, listed
        self.programs[key] = program
        if len(self.programs) > _MANY and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{self.name} has been compiled {len(self.programs)} times by now. What differed the last time: "
                f"{difference(before, listed)}. Wanted the same shapes, dtypes and Python values each time",
                stacklevel=user_level(),
            )


class _Running(Hidden):
    """A part of a skeleton, as a callable in its place."""

    def __init__(self, part: _CompiledPart, module: torch.nn.Module, function: Callable):
        self._part, self._module, self._function = part, module, function
        self._guarded: GuardedState | None = None  # what is reached from the module
        self._lasting: GuardedState | None = (
            None  # and from those arguments besides that may be there again the next time
        )
        self._in_vain = 0  # how many calls in a row these had changed
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any):
        call = this_call()
        if not _may_compile(call):
            return self._function(*args, **kwargs)
        with DisableTorchFunction():
            world = self._captured_before((*args, *kwargs.values()))
            for located in (False, True):
                try:
                    captured = CapturedState((args, kwargs), world, located=located)
                except Aliased:
                    captured = CapturedState((args, kwargs), world, shares=True)
                key = world.numbers, captured.signature, captured.described(), located, _settings(call)
                program = self._part.programs.get(key, _NOT_COMPILED)
                if program is _NOT_COMPILED:
                    program = self._compiled(key, args, kwargs, captured)
                if program is not _LOCATED:
                    break
            if program is not None:
                return program.run(call, captured)
        return self._function(*args, **kwargs)

    def _captured_before(self, arguments: tuple) -> GuardedState:
        """Everything reached from the module, and from arguments that are objects with attributes, such as a cache."""
        numbered, world = self._part.numbered, self._guarded
        if world is None or not world.is_current():
            world, self._lasting = GuardedState((self._module,)), None
            self._guarded = world
        world.refresh(numbered)
        objects = [value for value in arguments if has_attributes(type(value))]
        if not objects or self._in_vain == _IN_VAIN:
            return world
        lasting = self._lasting
        if lasting is not None and lasting.is_current(objects):
            self._in_vain = 0
        else:
            lasting = GuardedState(objects, world)
            self._lasting = lasting if lasting.is_settled else None  # it would keep memory of PyTorch's own
            self._in_vain += 1
        if self._lasting is None:
            return world
        lasting.refresh(numbered)
        return lasting

    def _compiled(self, key: tuple, args: tuple, kwargs: dict, captured: CapturedState) -> Any:
        """The program for a signature; None if the part runs uncompiled, after a warning.

        `_LOCATED` if it asks where tensors are.
        """
        name = self._part.name
        listing = listed(self._function, self._module, args, kwargs)
        try:
            program = PartProgram(name, self._function, args, kwargs, captured)
        except (TracedValueError, jax.errors.JAXTypeError) as error:
            error.add_note(f"{name} is a part that is compiled (compile=...), so that it has no values of tensors.")
            raise
        except Located:
            self._part.programs[key] = program = _LOCATED
            return program
        except Uncontained as reason:
            warnings.warn(f"{name} is not compiled but runs as it is, because of {reason}", stacklevel=user_level())
            program = None
        except Exception:  # the code's own, which comes again, after all that the code has done before
            return None
        self._part.note(key, program, listing)
        return program

    def __deepcopy__(self, memo: dict[int, object]):
        module, function = copy.deepcopy(self._module, memo), copy.deepcopy(self._function, memo)
        return _Running(self._part, module, function)


def _may_compile(call: Call) -> bool:
    """True if a part may run by a program now: not where JAX, a tape or a mode must see its operators."""
    host = call.kept.get(HostFunctions)
    if host is None or not host.is_active:
        return False
    return all(isinstance(mode, CallMode) for mode in get_current_function_mode_stack())


def _settings(call: Call) -> tuple:
    """The settings that decide a trace, besides the arguments."""
    region, key = autocast.region(), call.stream.state.key
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        region and (region, torch.get_autocast_dtype(region)),
        default_dtype(),
        tuple(map(Identity, entered())),
        jax.config.jax_enable_x64,  # pyright: ignore[reportAttributeAccessIssue]
        None if key is None else (key.dtype, key.shape),
        call.compiles,
    )
