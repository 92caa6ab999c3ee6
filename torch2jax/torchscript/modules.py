"""Copies of TorchScript modules that hold tensors of a translated call."""

import copy
import types
from collections.abc import Iterator
from typing import Any

import torch

from ..seams import stands_in


@stands_in(torch.jit.RecursiveScriptModule, "__deepcopy__")
def _copy_module(module, memo: dict[int, Any]):
    """As PyTorch's, which copies the memory of the tensors instead of what stands for them in `memo`."""
    copied = torch.jit._recursive.wrap_cpp_module(_copied(module._c, memo))
    for (_, before), (_, after) in zip(_modules(module), _modules(copied), strict=True):
        _copy_python(before, after)
    return copied


def _modules(module) -> Iterator[tuple[str, Any]]:
    return module.named_modules(remove_duplicate=False)


def _copy_python(module, copied) -> None:
    """Gives a copy what only Python knows of a module: hooks, methods that are not compiled, attributes."""
    for name, value in vars(module).items():
        if name.endswith("_hooks") or "_hooks_" in name:
            vars(copied)[name] = copy.copy(value)
        elif isinstance(value, types.MethodType) and value.__self__ is module:
            vars(copied)[name] = types.MethodType(value.__func__, copied)
        elif name not in vars(copied) and not isinstance(value, torch._C.ScriptMethod):
            vars(copied)[name] = value


def _copied(module, memo: dict[int, Any]):
    """A copy of TorchScript's own object, with the copies of its tensors and parts in their places."""
    key = ("torchscript", hash(module))
    if key in memo:
        return memo[key][1]  # pyright: ignore[reportArgumentType]
    result = copy.copy(module)
    memo[key] = (module, result)  # pyright: ignore[reportArgumentType]
    for name, part in torch._C.ModuleDict(module).items():
        result.setattr(name, _copied(part, memo))
    for name in (*dict(torch._C.ParameterDict(module).items()), *dict(torch._C.BufferDict(module).items())):
        result.setattr(name, copy.deepcopy(module.getattr(name), memo))
    for name, (kind, _) in torch._C.ConcreteModuleType.from_jit_type(module._type()).get_attributes().items():
        if kind.kind() in _HOLDERS:
            result.setattr(name, copy.deepcopy(module.getattr(name), memo))
    return result


_HOLDERS = ("ListType", "DictType", "TupleType", "OptionalType")
