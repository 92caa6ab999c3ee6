"""Copies of TorchScript modules that hold tensors of a translated call."""

import copy
import types
from collections.abc import Iterator
from typing import Any

import torch

from ..internals.torchscript import (
    BufferDict,
    ConcreteModuleType,
    ModuleDict,
    ParameterDict,
    ScriptMethod,
    wrap_cpp_module,
)
from ..modules.states import named_tensors
from ..patches import stands_in
from ..tensors.trees import flatten

__all__ = ["tensors_in"]


@stands_in(torch.jit.RecursiveScriptModule, "__deepcopy__")
def _copy_module(module: Any, memo: dict[int, Any]):
    """As PyTorch's, which copies the memory of the tensors instead of what stands for them in `memo`."""
    copied = wrap_cpp_module(_copied(module._c, memo))
    for (_, before), (_, after) in zip(_modules(module), _modules(copied), strict=True):
        _copy_python(before, after)
    return copied


def _modules(module: Any) -> Iterator[tuple[str, Any]]:
    return module.named_modules(remove_duplicate=False)


def _copy_python(module: Any, copied: Any) -> None:
    """Gives a copy what only Python knows of a module: methods that are not compiled, attributes."""
    for name, value in vars(module).items():
        if isinstance(value, types.MethodType) and value.__self__ is module:
            vars(copied)[name] = types.MethodType(value.__func__, copied)
        elif name not in vars(copied) and not isinstance(value, ScriptMethod):
            vars(copied)[name] = value


def _copied(module: Any, memo: dict[Any, Any]) -> Any:
    """A copy of TorchScript's own object, with the copies of its tensors and parts in their places."""
    key = ("torchscript", hash(module))
    if key in memo:
        return memo[key][1]
    result = copy.copy(module)
    memo[key] = (module, result)
    for name, part in ModuleDict(module).items():
        result.setattr(name, _copied(part, memo))
    parameters: Any = ParameterDict(module)
    buffers: Any = BufferDict(module)
    for name, _ in (*parameters.items(), *buffers.items()):
        result.setattr(name, copy.deepcopy(module.getattr(name), memo))
    declared: Any = ConcreteModuleType.from_jit_type(module._type())
    for name, (kind, _) in declared.get_attributes().items():
        if kind.kind() in _HOLDERS:
            result.setattr(name, copy.deepcopy(module.getattr(name), memo))
    return result


_HOLDERS = ("TensorType", "ListType", "DictType", "TupleType", "OptionalType")


def tensors_in(module: torch.nn.Module) -> list[torch.Tensor]:
    """All tensors of a module, those in the attributes of TorchScript's own objects as well."""
    found = list(named_tensors(module).values())
    for part in module.modules():
        if isinstance(part, torch.jit.ScriptModule):
            held: Any = part._c
            declared: Any = ConcreteModuleType.from_jit_type(held._type())
            kinds = declared.get_attributes().items()
            values = [held.getattr(name) for name, (kind, _) in kinds if kind.kind() in _HOLDERS]
            found.extend(leaf for leaf in flatten(values)[0] if isinstance(leaf, torch.Tensor))
    return found
