"""Conversion of Python values to TorchScript's and back, and their types.

TorchScript holds dtypes, layouts and memory formats as numbers, copies the lists that it is given, and has objects of
its own for modules and instances of classes.
"""

import collections
import re
from typing import Any

import torch

from ..internals.torchscript import (
    ScriptDict,
    ScriptList,
    ScriptModule,
    ScriptObject,
    get_python_class,
    get_script_class,
    wrap_cpp_module,
)

__all__ = ["class_of", "enter", "is_of", "leave", "members", "new_instance", "number_of", "unwrapped"]

_DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64")
_DTYPES += ("complex128", "bool", "qint8", "quint8", "qint32", "bfloat16", "quint4x2", "quint2x4", "bits1x8", "bits2x4")
_DTYPES += ("bits4x2", "bits8", "bits16", "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz")
_DTYPES += ("uint16", "uint32", "uint64")
_MEMBERS: dict[str, dict[int, Any]] = {
    "ScalarType": {number: getattr(torch, name) for number, name in enumerate(_DTYPES) if hasattr(torch, name)},
    "Layout": dict(enumerate((torch.strided, torch.sparse_coo, torch.sparse_csr))),
    "MemoryFormat": dict(
        enumerate((torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d))
    ),
}
_NUMBERS = {member: number for members in _MEMBERS.values() for number, member in members.items()}
_HELD_AS_NUMBERS = (torch.dtype, torch.layout, torch.memory_format)


def members(kind: str) -> dict[int, Any] | None:
    """What the numbers of a type of arguments, as ``Optional[ScalarType]``, mean to PyTorch; None if they are that."""
    return next((members for name, members in _MEMBERS.items() if name in kind), None)


def number_of(member: Any) -> int:
    """TorchScript's number of a dtype, layout or memory format."""
    return _NUMBERS[member]


def unwrapped(value: Any) -> Any:
    """A module or an instance of a scripted class as the object of TorchScript's that it wraps."""
    return value._c if isinstance(value, (torch.jit.ScriptModule, torch.jit.RecursiveScriptClass)) else value


class Instance:
    """An instance of a scripted class that Python does not know, as those of modules from a file."""

    def __init__(self, kind: Any):
        self._kind = kind


def new_instance(kind: Any) -> Any:
    """An instance of a scripted class, before its ``__init__``: one of Python's class if there is one."""
    python_class = get_python_class(kind.qualified_name())
    return Instance(kind) if python_class is None else object.__new__(python_class)


def class_of(value: Any) -> Any:
    """The TorchScript type of a value; None if it is no instance of a scripted class."""
    return value._kind if isinstance(value, Instance) else get_script_class(type(value))


def enter(value: Any, kind: Any = None) -> Any:
    """A value of Python's as an argument of a program, of the type `kind` where that is known."""
    value = unwrapped(value)
    if isinstance(value, _HELD_AS_NUMBERS):
        return _NUMBERS[value]
    name = _kind_of(kind)
    if name == "OptionalType":
        return None if value is None else enter(value, kind.getElementType())
    if name == "FloatType" and type(value) is int:
        return float(value)
    if name == "ComplexType" and type(value) in (int, float):
        return complex(value)
    if name == "DeviceObjType" and isinstance(value, str):
        return torch.device(value)
    if isinstance(value, ScriptList):
        value = list(value)
    elif isinstance(value, ScriptDict):
        value = dict(value.items())
    if isinstance(value, dict):
        of_values = kind.getValueType() if name == "DictType" else None
        return {key: enter(item, of_values) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return _entered(value, kind, name)
    return value


def _kind_of(kind: Any) -> str:
    return "" if kind is None else kind.kind()


def _entered(value: list | tuple, kind: Any, name: str) -> list | tuple:
    if name == "TupleType":
        return tuple(enter(item, each) for item, each in zip(value, kind.elements(), strict=True))
    of_items = kind.getElementType() if name == "ListType" else None
    items = [enter(item, of_items) for item in value]
    return items if name == "ListType" or isinstance(value, (list, torch.Size)) else tuple(items)


def leave(value: Any, kind: Any) -> Any:
    """What a program gives, of the type `kind`, as Python has it."""
    if isinstance(value, tuple) and kind.kind() == "TupleType":
        items = [leave(item, each) for item, each in zip(value, kind.elements(), strict=True)]
        # One that an operator gives has no name of its own, and is a plain tuple outside.
        fields = [] if kind.annotation_str.startswith("Tuple[") else _fields(kind)
        return _named(kind.annotation_str, fields)(*items) if fields else tuple(items)
    if isinstance(value, list) and kind.kind() == "ListType":
        return [leave(item, kind.getElementType()) for item in value]
    if isinstance(value, dict) and kind.kind() == "DictType":
        return {key: leave(item, kind.getValueType()) for key, item in value.items()}
    if kind.kind() == "OptionalType" and value is not None:
        return leave(value, kind.getElementType())
    if isinstance(value, ScriptModule):
        return wrap_cpp_module(value)
    return value


def _fields(kind: Any) -> list[str]:
    """The names of a named tuple's fields, which only its text tells."""
    text = kind.str()
    if not text.startswith("NamedTuple("):
        return []
    depth, flat = 0, ""
    for character in text[len("NamedTuple(") : -1]:
        depth += (character in "([") - (character in ")]")
        flat += character if depth == 0 else ""
    return re.findall(r"(\w+) :", flat)


def _named(name: str, fields: list[str]) -> type:
    return collections.namedtuple(name.rpartition(".")[2], fields)


_TYPES: dict[str, Any] = {
    "TensorType": torch.Tensor,
    "IntType": int,
    "FloatType": float,
    "ComplexType": complex,
    "BoolType": bool,
    "StringType": str,
    "NoneType": type(None),
    "DeviceObjType": torch.device,
    "NumberType": (int, float, complex),
}


def is_of(value: Any, kind: Any) -> bool:
    """Whether a value of a program is of a type of TorchScript's."""
    name = kind.kind()
    if name in _TYPES:
        return isinstance(value, _TYPES[name]) and (name == "BoolType" or not isinstance(value, bool))
    if name == "AnyType":
        return True
    if name == "OptionalType":
        return value is None or is_of(value, kind.getElementType())
    if name == "UnionType":
        return any(is_of(value, each) for each in kind.containedTypes())
    if name in ("ListType", "AnyListType"):
        return isinstance(value, list) and (
            name == "AnyListType" or all(is_of(x, kind.getElementType()) for x in value)
        )
    if name == "DictType":
        return isinstance(value, dict) and all(
            is_of(key, kind.getKeyType()) and is_of(item, kind.getValueType()) for key, item in value.items()
        )
    if name in ("TupleType", "AnyTupleType"):
        if name == "AnyTupleType" or not isinstance(value, tuple):
            return isinstance(value, tuple)
        kinds = kind.elements()
        return len(kinds) == len(value) and all(is_of(x, each) for x, each in zip(value, kinds, strict=True))
    if isinstance(value, ScriptObject):
        return f"<{kind.annotation_str}>" in repr(value)
    found = class_of(value)
    return found is not None and found.isSubtypeOf(kind)
