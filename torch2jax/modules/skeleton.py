"""The skeleton of a module for one call: its structure, with the caller's arrays as parameters and buffers.

Also here: the module, function or method with the PyTorch code behind an object; and lazy modules.
"""

import collections
import copy
import copyreg
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn

import jax
import torch
from torch.nn.parallel import DistributedDataParallel

from ..calls.dispatch import Call
from ..internals.dispatch import DisableTorchFunction
from ..internals.modules import ScriptMethod
from ..rules.features import HasSparse
from ..runtime.caches import remembered
from ..runtime.errors.locations import user_level
from ..runtime.errors.tracebacks import is_call_of_module
from ..runtime.layers import DISTRIBUTED, SCRIPTED, SPARSE
from ..runtime.patches import replaces, runs_instead_of
from ..runtime.translation import this_call
from ..tensors.dtypes import SPARSE_LAYOUTS, canonical, dtype_j2t
from ..tensors.tensor import OF_NO_SUBCLASS, Torchish
from ..tensors.trees import is_sparse_array
from ..tensors.wrapped import Wrapped, is_wrapper
from ..tracing.user_code import note_copies, of_user
from ..values.wrapper_subclasses import bound, entering, leaving
from .deep_copy import DeepCopy, Uncopyable, take_over
from .states import StateNames, as_array, expect_shape, first_few, named_tensors


def original(thing: Any) -> Any:
    """The thing that is translated in place of another: mostly itself.

    An exported program is the module that it unlifts to, with its names of parameters and buffers. A method of a
    TorchScript module is a method of that.
    """
    export = sys.modules.get("torch.export")
    if export is not None and isinstance(thing, export.ExportedProgram):
        return thing.module()
    return SCRIPTED.bound_method(thing) if isinstance(thing, ScriptMethod) else thing


_Module = torch.nn.Module


@replaces(torch.nn.UninitializedParameter, "__new__")
@replaces(torch.nn.UninitializedBuffer, "__new__")
def _refuse_lazy(cls: type, *args: object, **kwargs: object):
    raise RuntimeError(
        f"an {cls.__name__} was made within a translated call, as lazy modules do; wanted a module of known sizes, as "
        "torch.nn.Linear(3, 2) is, or a lazy one that was made, and called once, before the call"
    )


_PARTS = frozenset(("_parameters", "_buffers", "_modules"))
_CONTAINERS = frozenset((dict, collections.OrderedDict, set))
_CONSTANTS = frozenset((bool, int, float, complex, str, bytes, type(None), torch.dtype))


class Skeleton:
    """A copy of a module's Python structure that shares no state with it and copies no weights.

    Args:
        names: those of the user's module, which is only read.
        state: arrays for some or all of its parameters and buffers, as `StateNames.given` gives them; the others are
            constants.
        call: the translated call that the skeleton lives in; it must be the active one.
        parts: those of the module that are compiled (`compiled.part.Parts`), or None.

    Raises:
        RuntimeError: `state` has an array of another shape. What is on the meta device and not in `state` raises one
            where its values are used.
        TypeError: `state` has a `jax.ShapeDtypeStruct`, which has no values.
    """

    def __init__(self, names: StateNames, state: Mapping[str, object], call: Call, parts: Any = None):
        module = names.module
        self._names, self._state, self._call = names, state, call
        self._missing: set[str] = set()
        fsdp = sys.modules.get("torch.distributed.fsdp")
        if fsdp is not None and any(isinstance(part, fsdp.FullyShardedDataParallel) for part in module.modules()):
            refuse_fsdp()
        memo = self._bind(call)
        self.module = copy_structure(module, memo)
        if call.execution.code.is_converted:
            note_copies(memo)
        self._buffers = dict(self.module.named_buffers(remove_duplicate=False)) if names.has_buffers else {}
        if not call.is_top_level:  # what it writes to tensors of the calls is theirs
            self._buffers = {name: x for name, x in self._buffers.items() if isinstance(state.get(name), jax.Array)}
        name_scopes(self.module)
        if call.last_resort is not None:
            call.last_resort.take_over(module, self.module)
        if parts is not None:
            parts.take_over(self.module)

    def _bind(self, call: Call) -> dict[int, object]:
        names, given, memo = self._names, {}, {}
        if not call.is_top_level:
            memo |= self._replacements_of_tensors(call)
        with DisableTorchFunction():
            kinds = {name: _kind_of(tensor) for name, tensor in names.tensors.items()}
        for name, tensor in names.tensors.items():
            if name not in self._state or id(tensor) in memo:
                continue
            with DisableTorchFunction():
                value = as_array(expect_shape(self._state[name], tensor, name, "state_dict", names.module, name))
            if isinstance(value, Wrapped) or kinds[name] == "wrapper":
                memo[id(tensor)] = given[names.first(name)] = bound(call, tensor, value)
                continue
            bind = SPARSE.bound_sparse if kinds[name] == "sparse" or is_sparse_array(value) else call.constants.bind
            memo[id(tensor)] = given[names.first(name)] = bind(tensor, value)
        for name, tensor in names.tensors.items():
            kind = kinds[name]
            if id(tensor) in memo:
                continue
            if given and names.first(name) in given and names.names_full_tensor(name):
                memo[id(tensor)] = call.constants.bind_alias(tensor, given[names.first(name)])
            elif kind == "wrapper":
                memo[id(tensor)] = entering(call, tensor, is_own=True)
            elif kind == "meta":
                self._missing.add(names.first(name))
                memo[id(tensor)] = call.constants.bind_missing(tensor, self._error_of_missing(name, tensor))
            elif kind == "sparse":
                memo[id(tensor)] = SPARSE.lifted_sparse(tensor)
            else:
                memo[id(tensor)] = call.constants.lift_own(tensor)
        return memo

    def _replacements_of_tensors(self, call: Call) -> dict[int, object]:
        """The tensors that the module of a nested call has in place of its own, as with `torch.func.functional_call`.

        A tensor of the calls stands there itself. Nothing stands for the module's own tensors in the rest of the code.
        """
        names, memo, first = self._names, {}, {}
        for name in self._state:
            tensor = names.tensors.get(name)
            if tensor is None or is_wrapper(tensor) or isinstance(self._state[name], Wrapped):
                continue
            value = expect_shape(self._state[name], tensor, name, "state_dict", names.module, name)
            memo[id(tensor)] = first[names.first(name)] = _entered(call, value, tensor.dtype)
        for name, tensor in names.tensors.items():
            if id(tensor) not in memo and names.first(name) in first and names.names_full_tensor(name):
                memo[id(tensor)] = first[names.first(name)]
        return memo

    def _error_of_missing(self, name: str, tensor: torch.Tensor) -> RuntimeError:
        what = f"parameter {name!r}" if isinstance(tensor, torch.nn.Parameter) else f"buffer {name!r}"
        way = "give its array, or a jax.ShapeDtypeStruct where nothing is computed, under this name"
        if name not in self._names.persistent:
            way += (
                "; module.state_dict() leaves it out, t2j(dict(module.named_buffers())) does not. Or make the module "
                "that computes it anew, without the meta device; or put only the parameters on meta, as accelerate's "
                "init_empty_weights() does"
            )
        return RuntimeError(f"the {what} is on the meta device, and state_dict does not have it: {way}")

    def state_dict(self) -> dict[str, object]:
        """The arrays now in the module, under the names of its ``state_dict()`` and of the state that was given.

        A tied weight is under the name under which it was given. As ordered as the given state, so that a jitted step
        takes either.
        """
        tensors, persistent = named_tensors(self.module), self._names.persistent
        names = [name for name in self._names.distinct(self._state) if name in tensors or name in self._state]
        names += [name for name in self._state if name not in persistent]
        self.warn_of_dropped_buffers([tensors[name] for name in names if name in tensors])
        state = {
            name: self._array_of(tensors[name]) if name in tensors else self._state[name]
            for name in names
            if self._names.first(name) not in self._missing
        }
        return collections.OrderedDict(state) if isinstance(self._state, collections.OrderedDict) else state

    def _array_of(self, tensor: torch.Tensor) -> Any:
        if isinstance(tensor, SPARSE.classes):
            return tensor if not self._call.is_top_level else SPARSE.array_of_sparse(tensor)
        if is_wrapper(tensor):
            return leaving(self._call, tensor)
        if not self._call.is_top_level:
            return self._call.constants.lift(tensor)
        return self._call.array_of(self._call.constants.lift(tensor))

    def warn_of_dropped_buffers(self, kept: Sequence[Any] | None = None) -> None:
        """Warns of buffers that the call has written, if their new values are returned to nobody.

        Args:
            kept: the tensors of the state that is given; None if none is.
        """
        if not self._buffers:
            return
        memories = set(map(_memory, kept or ()))
        buffers = dict(self.module.named_buffers(remove_duplicate=False))
        dropped = [
            name
            for name, before in self._buffers.items()
            if _is_written(buffers.get(name), before) and _memory(buffers.get(name)) not in memories
        ]
        if dropped:
            mode = "is in training mode and " if self.module.training else ""
            way = "give their arrays in state_dict= as well" if kept is not None else "give return_state_dict=True"
            warnings.warn(
                f"{type(self.module).__name__} {mode}writes its buffers ({first_few(dropped)}), and what it writes "
                f"is lost: {way}, or call eval() on the module first if you do not need it",
                stacklevel=user_level(),
            )

    def method(self, method: types.MethodType):
        """The skeleton's version of a bound method of the module."""
        name = method.__name__
        if vars(self._names.module).get(name) is method:  # one that something has put there
            return vars(self.module)[name]
        return types.MethodType(method.__func__, self.module)


def _entered(call: Call, value: Any, dtype: torch.dtype) -> object:
    """The call's tensor for an entry of a state, whose tensor in the module has this dtype."""
    if isinstance(value, torch.Tensor):
        try:
            return call.constants.lift(value)
        except HasSparse:
            return SPARSE.lifted_sparse(value)
    array = as_array(value)
    if is_sparse_array(array):
        return SPARSE.given_sparse(array)
    return call.constants.given(array, dtype if array.dtype == canonical(dtype) else dtype_j2t(array.dtype))


def refuse_fsdp() -> NoReturn:
    """Refuses the old FSDP wrapper, which keeps parameters as parts of one flat tensor, and names its successor."""
    raise NotImplementedError(
        "FullyShardedDataParallel keeps the parameters of a module as parts of one flat tensor; wanted "
        "torch.distributed.fsdp.fully_shard, or the module without a wrapper: specs = sharding.specs(module, mesh, "
        "fsdp='data'), then jax.jit of t2j(sharding.constrained(module, mesh, data='data')) with "
        "sharding.put(t2j(module.state_dict()), specs, mesh) as its state"
    )


def _kind_of(tensor: torch.Tensor) -> Literal["wrapper", "meta", "sparse", "dense"]:
    """The kind of a module's tensor that decides how it enters a call."""
    if type(tensor) not in OF_NO_SUBCLASS and is_wrapper(tensor):
        return "wrapper"
    if tensor.is_meta:
        return "meta"
    return "sparse" if tensor.layout in SPARSE_LAYOUTS else "dense"


def copy_structure(module: torch.nn.Module, memo: dict[int, object]) -> torch.nn.Module:
    """A copy of a module's Python structure, in which `memo` gives the replacements of its tensors, by id.

    What has been copied is added to `memo`.
    """
    is_split = False
    for part in module.modules():
        if isinstance(part, DistributedDataParallel):
            memo[id(part)] = _copied_wrapper(part, memo)
        is_split = is_split or _is_fully_sharded(type(part))
    kept = DISTRIBUTED.states_of(module) if is_split else {}
    copying, result = _copied(module, {**memo, **kept})
    if copying.may_alias:
        if aliased := copying.aliased():
            copying, result = _copied(module, {**memo, **kept}, aliased)
        copying.freeze(list(named_tensors(module).values()))
    if is_split:
        DISTRIBUTED.give_states(module, copying.memo)
    take_over(memo, copying.memo)
    return result


def _is_fully_sharded(kind: type) -> bool:
    """Returns True if a class of modules is one that `fully_shard` has made; whoever does that has imported it."""
    return "torch.distributed.fsdp" in sys.modules and DISTRIBUTED.is_fully_sharded(kind)


def _copied(
    module: torch.nn.Module, memo: dict[int, object], within: frozenset[int] = frozenset()
) -> "tuple[_StructureCopy, torch.nn.Module]":
    shared: dict[int, object] = {}
    while True:
        copying = _StructureCopy({**shared, **memo}, within)
        try:
            return copying, copying.of_module(module)
        except Uncopyable:
            if copying.attribute is None or id(copying.attribute) in shared:
                raise
            shared[id(copying.attribute)] = copying.attribute


class _StructureCopy(DeepCopy):
    """A copy of a module, in a fifth of the time: a module has mostly constants, and empty containers for hooks."""

    attribute: object = None
    """The attribute of a module that is being copied."""

    def of_module(self, module: torch.nn.Module) -> Any:
        memo = self.memo
        if id(module) in memo:
            return memo[id(module)]
        cls = type(module)
        # e3nn's modules pickle parts that are TorchScript, and what is in them, whose tensors `memo` would not replace.
        has_scripts = any(isinstance(part, torch.jit.ScriptModule) for part in module._modules.values())
        has_own_copy = not _copies_attributes(cls) and not (
            _is_fully_sharded(cls) and _copies_attributes(DISTRIBUTED.wrapped_class(cls))
        )
        if has_own_copy and (not has_scripts or isinstance(module, torch.jit.ScriptModule)):
            return self._by_own_class(module)
        made = memo[id(module)] = object.__new__(cls)
        attributes = {}
        for name, value in _Module.__getstate__(module).items():
            kind = type(value)
            if kind in _CONSTANTS:
                attributes[name] = value
            elif id(value) in memo:
                attributes[name] = memo[id(value)]
            elif kind in _CONTAINERS and not value and not (kind is collections.OrderedDict and vars(value)):
                attributes[name] = memo[id(value)] = kind()
            elif kind is dict and name in _PARTS:
                parts = attributes[name] = memo[id(value)] = {}
                copied = self.of_module if name == "_modules" else self.copied
                for key, part in value.items():
                    parts[key] = None if part is None else memo[id(part)] if id(part) in memo else copied(part)
            else:
                self.attribute = value
                attributes[name] = self.copied(value)
        if has_own_copy or cls.__setstate__ is _Module.__setstate__:
            vars(made).update(attributes)
        else:
            made.__setstate__(attributes)
        return made

    def _by_own_class(self, module: torch.nn.Module) -> object:
        memo = dict(self.memo)
        try:
            made = copy.deepcopy(module, memo)
        except Exception:
            attributes = [x for part in module.modules() for name, x in vars(part).items() if name not in _PARTS]
            shared = [x for x in attributes if not isinstance(x, (_Module, torch.Tensor)) and not _is_copyable(x)]
            if not shared:
                raise
            memo = {**{id(x): x for x in shared}, **self.memo}
            made = copy.deepcopy(module, memo)
        take_over(self.memo, memo)
        return made


def _is_copyable(value: object) -> bool:
    try:
        copy.deepcopy(value)
    except Exception:
        return False
    return True


@remembered(1024)
def _copies_attributes(kind: type) -> bool:
    """True if a copy of an object of a class copies its attributes and nothing else, as that of a `torch.nn.Module`."""
    return (
        kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ is object.__reduce__
        and kind.__getstate__ is _Module.__getstate__
        and kind.__new__ is object.__new__
        and not any(hasattr(kind, name) for name in ("__deepcopy__", "__getnewargs__", "__getnewargs_ex__"))
        and not any(vars(base).get("__slots__") for base in kind.__mro__)
        and kind not in copyreg.dispatch_table
    )


def _copied_wrapper(wrapper: DistributedDataParallel, memo: dict[int, object]) -> DistributedDataParallel:
    """A wrapper around a copy of its module, without the processes that it talks to."""
    copied = object.__new__(type(wrapper))
    vars(copied).update(vars(wrapper), _modules={"module": copy.deepcopy(wrapper.module, memo)})
    return copied


@replaces(torch.nn.DataParallel, "forward")
def _forward_of_wrapper(self: Any, *inputs: object, **kwargs: object):
    """JAX alone decides where arrays are."""
    return self.module(*inputs, **kwargs)


def _memory(tensor: object) -> int:
    return id(tensor._node.storage.memory if isinstance(tensor, Torchish) else tensor)


def _is_written(tensor: object, before: object) -> bool:
    """Returns True if the buffer that a call began with was written to or replaced."""
    return tensor is not before or (isinstance(before, Torchish) and before._writes[0] > 0)


class _Named:
    """A module's call, whose operations are named after its path below the module that calls it."""

    def __init__(self, module: torch.nn.Module, path: str, stack: list[str]):
        # The module has this: else its arrays would live until Python looks for cycles.
        self._module: Any = weakref.ref(module)
        self._path, self._stack = path, stack

    def __call__(self, *args: object, **kwargs: object):
        return self.call(self._module(), args, kwargs)

    @is_call_of_module
    def call(self, module: torch.nn.Module, args: tuple, kwargs: dict):
        outer = self._stack[-1]
        self._stack.append(self._path)
        try:
            with jax.named_scope(self._path.removeprefix(outer + "." if outer else "")):
                if this_call().execution.code.is_converted:
                    return of_user(module._call_impl)(*args, **kwargs)
                return module._call_impl(*args, **kwargs)
        finally:
            self._stack.pop()


def name_scopes(skeleton: torch.nn.Module) -> None:
    """Names the operations of a module's parts by their paths."""
    stack, made = [""], this_call().settings.modules.made
    for path, module in skeleton.named_modules():
        made[id(module)] = weakref.ref(module)
        if path and not isinstance(module, torch.jit.ScriptModule):
            # The hook that Module.compile() uses: it wraps the whole call, with the user's hooks.
            named = _Named(module, path, stack)
            vars(module)["_compiled_call_impl"] = named


@runs_instead_of(torch.nn.Module._wrapped_call_impl, with_original=True)
def _call(original: Callable[..., object], self: torch.nn.Module, *args: object, **kwargs: object):
    """Calls a module in its named scope. One with the attributes of another has the other's hook, but runs itself."""
    named = vars(self).get("_compiled_call_impl")
    if isinstance(named, _Named):
        return named.call(self, args, kwargs)
    call = this_call()
    call.settings.modules.visit(self)
    if call.execution.code.is_converted and named is None:
        return of_user(self._call_impl)(*args, **kwargs)
    return original(self, *args, **kwargs)
