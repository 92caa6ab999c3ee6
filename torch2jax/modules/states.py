"""The state of a module by name: the names, which of them share a tensor, splitting, and loading."""

import copy
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import torch

from ..internals.dispatch import DisableTorchFunction
from ..internals.modules import load_from_state_dict
from ..runtime.errors.locations import nearest
from ..runtime.layers import SPARSE
from ..tensors.distributed import is_distributed, split_like
from ..tensors.dtypes import SPARSE_LAYOUTS, tell_of_narrowing
from ..tensors.interop import Tie, array_to_tensor, tensor_to_array, ties, without_values
from ..tensors.tensor import Torchish
from ..tensors.traced import is_traced
from ..tensors.trees import is_sparse_array
from ..tensors.wrapped import Wrapped, is_wrapper, tensor_of, wrapped
from .layers import has_layers, names_of_layers, unstack_layers

_LISTED = 5


def first_few(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def named_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter and buffer, also non-persistent ones, under each of its names.

    A buffer of one of PyTorch's quantized dtypes is none of them: it is a constant of the code.
    """
    parameters, buffers = _named(module)
    return parameters | buffers


def _named(module: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    parameters, buffers = module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
    return dict(parameters), {name: buffer for name, buffer in buffers if not buffer.is_quantized}


class StateNames:
    """The names of a module's parameters and buffers."""

    def __init__(self, module: torch.nn.Module):
        self.module = module
        parameters, buffers = _named(module)
        self.tensors, self.has_buffers = parameters | buffers, bool(buffers)
        self.persistent: dict[str, object] = module.state_dict(keep_vars=True)

    @cached_property
    def ties(self) -> dict[str, Tie]:
        """The names that share memory with an earlier name in ``state_dict()``, each with its tie to that."""
        names = dict.fromkeys([*self.persistent, *self.tensors])
        return ties({name: self.tensors[name] for name in names if name in self.tensors})

    def names_full_tensor(self, name: str) -> bool:
        """Returns True if a name is one of a whole tensor, not of a part or a view."""
        tie = self.ties.get(name)
        return tie is None or tie.is_same

    def first(self, name: str) -> str:
        """The first name of the tensor with this name."""
        tie = self.ties.get(name)
        return name if tie is None else tie.first

    def distinct(self, given: Mapping[str, object]) -> list[str]:
        """The names of the module's own state, one for each tensor: that under which it is given, if it is."""
        known, names = {self.first(name) for name in given}, []
        for name in self.persistent:
            first = self.first(name)
            if name in given or first not in known:
                known.add(first)
                names.append(name if self.names_full_tensor(name) else first)
        return names

    def given(self, state: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """A state as a call takes it: with one name for each tensor.

        Raises:
            TypeError: it is no mapping.
            RuntimeError: it has a name of no parameter or buffer.
            ValueError: it has two arrays for one tensor, and they are not known to be equal, as
                `torch.func.functional_call` raises it: a gradient would be of one of them; or an array for a part of a
                tensor.
        """
        return self._one_of_each({} if state is None else self._of_inner(state))

    def _of_inner(self, state: Mapping[str, object]) -> Mapping[str, object]:
        """The state with wrappers for entries that files have by inner names, such as ``weight.scale``.

        Raises:
            RuntimeError: it has some of such a tensor's arrays, and lacks others.
        """
        if not isinstance(state, Mapping) or all(name in self.tensors for name in state):
            return state
        found = dict(state)
        for name, tensor in self.tensors.items():
            if is_wrapper(tensor) and any(key.startswith(f"{name}.") for key in state):
                found[name] = _gathered(wrapped(tensor, lambda inner: inner), f"{name}.", found)
        return OrderedDict(found) if _is_ordered(state) else found

    def _expect(self, state: Mapping[str, Any]) -> None:
        _expect_mapping(state)
        unknown = [name for name in state if name not in self.tensors and not self._is_extra(name)]
        if not unknown:
            return
        if unknown[0] in self.persistent:
            raise RuntimeError(
                f"state_dict has {unknown[0]!r}, a name that only {type(self.module).__name__}.state_dict() adds; "
                "wanted names of named_parameters() and named_buffers()"
            )
        lines = [f"  {name!r}{nearest(name, self.tensors)}" for name in unknown[:_LISTED]]
        more = f"\n  and {len(unknown) - _LISTED} more" if len(unknown) > _LISTED else ""
        message = "state_dict has names that the module lacks:\n" + "\n".join(lines) + more
        raise RuntimeError(message + self._remedy(state, unknown))

    def _remedy(self, state: Mapping[str, object], unknown: Sequence[str]) -> str:
        """The advice on unknown names whose origin is seen; or ""."""
        nested = next((name for name in unknown if isinstance(state[name], Mapping)), None)
        if nested is not None:
            return (
                f"\n{nested!r} is a dictionary in the dictionary; wanted one, in which dots join the names: "
                f"{next(iter(self.tensors), 'layer.weight')!r}"
            )
        for prefix in _PREFIXES:
            if all(name.removeprefix(prefix) in self.tensors for name in unknown):
                return (
                    f"\nThey begin with {prefix!r}, the name of a module around this one: give "
                    f"{{name.removeprefix({prefix!r}): x for name, x in state.items()}}"
                )
            if all(prefix + name in self.tensors for name in unknown):
                return (
                    f"\nThe module is one around that of the state: translate the inner one, t2j(module.{prefix[:-1]})"
                )
        return ""

    def _is_extra(self, name: str) -> bool:
        """Returns True if a module's own ``get_extra_state`` makes the entry of this name."""
        return name in self.persistent and name.rpartition(".")[2] == "_extra_state"

    def _one_of_each(self, state: Mapping[str, Any]) -> Mapping[str, object]:
        self._expect(state)
        if not state or not self.ties:
            return state
        kind, names = type(self.module).__name__, {}  # under which a tensor is given, by its first one
        for name in state:
            first = self.first(name)
            if not self.names_full_tensor(name):
                raise ValueError(
                    f"state_dict has {name!r}, which is a view of {first!r} in {kind}: leave it out, and give {first!r}"
                )
            before = names.setdefault(first, name)
            if before != name and not _is_equal(state[before], state[name]):
                raise ValueError(
                    f"state_dict has two arrays for one tensor of {kind}, under {before!r} and {name!r}, which are not "
                    "known to be equal: a gradient would be of one of them alone. Leave one name out, as "
                    "t2j(module.state_dict()) does, or let params, buffers = t2j(module).split(state) do it, outside "
                    "of jax.jit"
                )
        kept = [(name, state[name]) for name in names.values()]
        return state if len(kept) == len(state) else OrderedDict(kept) if _is_ordered(state) else dict(kept)


def _gathered(like: Wrapped, prefix: str, state: dict[str, Any]) -> Wrapped:
    """The arrays of a tensor that wraps others, which are taken out of a state."""
    inner = {}
    for name, each in like.inner.items():
        if isinstance(each, Wrapped):
            inner[name] = _gathered(each, f"{prefix}{name}.", state)
        elif prefix + name in state:
            inner[name] = as_array(state.pop(prefix + name))
        else:
            raise RuntimeError(f"state_dict lacks {prefix + name!r}, and has other arrays of {prefix[:-1]!r}")
    return like.replaced(inner)


def _is_ordered(state: Mapping[str, object]) -> bool:
    return isinstance(state, OrderedDict)  # which JAX takes for another structure than a dict


def _is_one(array: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns True if two entries are one array, or tensors of the same memory."""
    return array is other or bool(ties({"": array, "other": other}).get("other", _NO_TIE).is_same)


_NO_TIE = Tie("", False)


def _is_equal(array: Any, other: Any) -> bool:
    """Returns True if two entries are the same object, or have the same values if these are known."""
    if _is_one(array, other):
        return True
    if any(is_traced(x) or isinstance(x, jax.ShapeDtypeStruct) for x in (array, other)):
        return False
    array, other = as_array(array), as_array(other)
    if (array.shape, array.dtype) != (other.shape, other.dtype):
        return False
    return bool(jnp.array_equal(array, other, equal_nan=jnp.issubdtype(array.dtype, jnp.inexact)))


def split(module: torch.nn.Module, state: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The trained entries of a state, and the rest, each tensor under one name.

    Args:
        state: by default the module's own.

    Raises what `StateNames.given` raises.
    """
    names = StateNames(module)
    if has_layers(state):
        return _split_layers(module, state)  # pyright: ignore[reportArgumentType]
    if state is None:
        own = (name for name in names.distinct({}) if name in names.tensors)
        state = {name: _array_of(names.tensors[name]) for name in own}
    else:
        state = names.given(state)
    parameters = module.named_parameters(remove_duplicate=False)
    trained = {names.first(name) for name, parameter in parameters if parameter.requires_grad}
    params = {name: array for name, array in state.items() if names.first(name) in trained}
    return params, {name: array for name, array in state.items() if name not in params}


def _split_layers(module: torch.nn.Module, state: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """As `split`, of a state with entries for all layers, which stay whole: they are trained if one layer is."""
    params, _ = split(module, unstack_layers(state))
    trained = {
        name for name in state if name in params or any(layer in params for layer in names_of_layers(name, state))
    }
    return (
        {name: value for name, value in state.items() if name in trained},
        {name: value for name, value in state.items() if name not in trained},
    )


def _array_of(tensor: torch.Tensor) -> Any:
    if isinstance(tensor, Torchish):  # in a call: what is computed of it stays differentiable
        return tensor.clone()
    if is_wrapper(tensor) and not is_distributed(tensor):
        return wrapped(tensor, _array_of)
    if tensor.layout in SPARSE_LAYOUTS:
        return SPARSE.sparse_tensor_to_array(tensor, copy=True)
    tell_of_narrowing(tensor.dtype)
    return without_values(tensor) if tensor.is_meta else tensor_to_array(tensor)


_PREFIXES = ("module.", "_orig_mod.", "model.")
"""The prefixes that `torch.nn.DataParallel`, `torch.compile` and trainers put before the names of a state."""


def _expect_mapping(state: object) -> None:
    if not isinstance(state, Mapping):
        raise TypeError(
            f"the state is a {type(state).__name__}; wanted one dictionary of arrays by name, as "
            "t2j(module.state_dict()), or params | buffers of t2j(module).split()"
        )


def load(module: torch.nn.Module, states: Sequence[Mapping[str, Any]], strict: bool) -> None:
    """Writes states into a module.

    Raises:
        RuntimeError: they lack something of the module's own state and `strict` is set, or have a name that the module
            lacks, or an array of another shape; or the module is on the meta device.
        ValueError: they have two values for one tensor.
        TypeError: they have something without values.
    """
    names, given = StateNames(module), {}
    for state in states:
        _expect_mapping(state)
        state = unstack_layers(state) if has_layers(state) else state
        twice = next((name for name in state if name in given and not _is_equal(given[name], state[name])), None)
        if twice is not None:
            raise ValueError(f"load got two values for {twice!r}, in two of the states; wanted one")
        given.update(state)
    given = names.given(given)
    missing = [name for name in names.distinct(given) if name in names.tensors and name not in given]
    if strict and missing:
        raise RuntimeError(
            f"load got no array for {first_few(list(map(repr, missing)))}: pass everything that split() returned, "
            "or strict=False to keep the module's own values"
        )
    writes, extra = [], []
    for name, value in given.items():
        tensor = names.tensors.get(name)
        if tensor is None:
            extra.append((module.get_submodule(name.rpartition(".")[0]), value))
            continue
        if tensor.is_meta:
            raise RuntimeError(f"{name!r} is on the meta device and holds no values: call module.to_empty() first")
        writes.append((tensor, tensor_of_entry(expect_shape(value, tensor, name, "the state", module, name))))
    with torch.no_grad():
        for tensor, value in writes:  # all or none
            overwrite(tensor, value)
    for owner, value in extra:
        owner.set_extra_state(value)


def tensor_of_entry(value: object) -> torch.Tensor:
    """The tensor of PyTorch's own for an entry of a state."""
    if isinstance(value, Wrapped):
        return tensor_of(value, tensor_of_entry)
    if isinstance(value, torch.Tensor):
        return value
    if is_sparse_array(value):
        return SPARSE.sparse_array_to_tensor(value, copy=True)
    return array_to_tensor(value, gathers=True)


def expect_shape(value: Any, tensor: torch.Tensor, name: str, state: str, module: Any, path: str) -> jax.Array:
    """The entry `name` of `state`, a tensor or an array, in the shape of the tensor that it is for.

    As in PyTorch, a list of one number is taken for a number: tensors once had no fewer dimensions. The part of
    `module` that has the tensor (`path` is its name there) may load others, as an observer that has not seen how many
    channels there are.

    Raises:
        RuntimeError: it is of another shape.
        TypeError: it is no array.
    """
    try:
        shape = tuple(value.shape)
    except AttributeError:
        raise TypeError(f"got a {type(value).__name__} for {name} in {state}; wanted an array") from None
    if shape == (1,) and tensor.ndim == 0:
        return value[0]
    if shape != tuple(tensor.shape) and not _loads_shape(module, path, shape):
        raise RuntimeError(
            f"size mismatch for {name}: got an array of shape {shape} in {state}; wanted {tuple(tensor.shape)}"
        )
    return value


def _loads_shape(module: torch.nn.Module, path: str, shape: tuple[int, ...]) -> bool:
    """True if the module that has the tensor of this name would load a tensor of another shape."""
    path, _, own = path.rpartition(".")
    part = module.get_submodule(path) if isinstance(module, torch.nn.Module) else None
    load = load_from_state_dict
    if part is None or type(part)._load_from_state_dict is load:
        return False
    with DisableTorchFunction(), torch.no_grad():
        part = copy.deepcopy(part).to("meta")
        state = {**part._parameters, **part._buffers}
        state = {key: torch.empty_like(each) for key, each in state.items() if each is not None}
        state[own] = torch.empty(shape, dtype=state[own].dtype, device="meta")
        errors: list[str] = []
        part._load_from_state_dict(state, "", {"version": part._version}, False, [], [], errors)
    return not errors


def overwrite(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Writes a value from `expect_shape` to its tensor.

    Raises:
        TypeError: the tensor wraps others, and the value is none of its kind.
    """
    if is_wrapper(tensor):
        if type(value) is not type(tensor):
            raise TypeError(
                f"got a {type(value).__name__} for a {type(tensor).__name__}; wanted the arrays of such a tensor"
            )
        for name, inner in wrapped(tensor, lambda inner: inner).inner.items():
            overwrite(getattr(tensor, name) if isinstance(inner, Wrapped) else inner, getattr(value, name))
        return
    if is_distributed(tensor):
        value = split_like(tensor, value)
    elif tensor.shape != value.shape:
        tensor.resize_(value.shape)
    tensor.copy_(value)


def as_array(value: Any) -> Any:
    """The array of a state's entry, which may be a tensor or any array, sparse, or a `Wrapped`.

    Raises:
        TypeError: it has a shape and a dtype alone.
    """
    if isinstance(value, (jax.Array, Wrapped)):  # jax.numpy would ask twice what it is
        return value
    if is_wrapper(value):
        return wrapped(value, as_array)
    if isinstance(value, jax.ShapeDtypeStruct) or (isinstance(value, torch.Tensor) and value.is_meta):
        raise TypeError(
            f"the state has a {type(value).__name__} of shape {tuple(value.shape)} without values; wanted arrays. Give "
            "it as an argument of jax.eval_shape, or of jit(...).lower"
        )
    if isinstance(value, torch.Tensor):
        return _array_of(value)
    return value if is_sparse_array(value) else jnp.array(value)
