"""Operators over lists of tensors (``torch._foreach_*``): each is its plain operator, one tensor after the other."""

import inspect
from collections.abc import Callable

import torch

from ..rules.registry import implements_tensors

_PREFIX = "_foreach_"
_LISTS = (list, tuple)


def _norm(tensor, ord=2, dtype=None):
    return torch.linalg.vector_norm(tensor, ord, dtype=dtype)


def _powsum(tensor, ord=2, dtype=None):
    return tensor.abs().pow(ord).sum(dtype=dtype)


def _maximum(tensor, other):
    return torch.maximum(tensor, other) if isinstance(other, torch.Tensor) else tensor.clamp_min(other)


def _minimum(tensor, other):
    return torch.minimum(tensor, other) if isinstance(other, torch.Tensor) else tensor.clamp_max(other)


def _addcmul(tensor, tensor1, tensor2, value=1):
    return torch.addcmul(tensor, tensor1, tensor2, value=value)


def _addcdiv(tensor, tensor1, tensor2, value=1):
    return torch.addcdiv(tensor, tensor1, tensor2, value=value)


def _addcmul_(tensor, tensor1, tensor2, value=1):
    return tensor.addcmul_(tensor1, tensor2, value=value)


def _addcdiv_(tensor, tensor1, tensor2, value=1):
    return tensor.addcdiv_(tensor1, tensor2, value=value)


# Where the plain operator has another signature.
_PLAIN: dict[str, Callable[..., object]] = {
    "addcdiv": _addcdiv,
    "addcdiv_": _addcdiv_,
    "addcmul": _addcmul,
    "addcmul_": _addcmul_,
    "maximum": _maximum,
    "maximum_": torch.Tensor.clamp_min_,
    "minimum": _minimum,
    "minimum_": torch.Tensor.clamp_max_,
    "norm": _norm,
    "powsum": _powsum,
}
_PLAIN_NAME = {"scalars": "value", "weights": "weight", "tensors1": "end"}
_SECOND = ("other", "scalar", "scalars", "exponent", "src")  # of two operands, whatever the plain operator calls it


def _plain(name: str) -> Callable[..., object]:
    if name in _PLAIN:
        return _PLAIN[name]
    return getattr(torch.Tensor if name.endswith("_") else torch, name)


def _foreach(name: str) -> Callable[..., object]:
    plain, in_place = _plain(name), name.endswith("_")
    one_for_each = name.rstrip("_") in ("addcdiv", "addcmul")  # whose last operand may be a tensor of all numbers

    def each(self, *operands, **options):
        operands = [self, *operands]
        if not one_for_each:
            operands += [options.pop(key) for key in _SECOND if key in options]
        named = {_PLAIN_NAME.get(key, key): value for key, value in options.items()}
        count = _count(name, [*operands, *named.values()])
        if one_for_each:
            operands[3:] = map(_numbers, operands[3:])
            named |= {key: _numbers(value) for key, value in named.items() if key == "value"}
        results = []
        for i in range(count):
            args = [_item(x, i) for x in operands]
            results.append(plain(*args, **{key: _item(value, i) for key, value in named.items()}))
        return self if in_place else results

    return each


def _count(name: str, values: list) -> int:
    lists = [value for value in values if isinstance(value, _LISTS)]
    if not lists or not lists[0]:
        raise RuntimeError("Tensor list must have at least one tensor.")
    count = len(lists[0])
    for other in lists:
        if len(other) != count:
            if other is lists[-1] and _takes_numbers(name) and not any(isinstance(x, torch.Tensor) for x in other):
                raise RuntimeError("Tensor list must have same number of elements as scalar list.")
            raise RuntimeError(f"Tensor lists must have the same number of tensors, got {count} and {len(other)}")
    return count


def _takes_numbers(name: str) -> bool:
    return "ScalarList" in getattr(torch.ops.aten, _PREFIX + name).overloads()


def _numbers(value):
    return value.unbind() if isinstance(value, torch.Tensor) and value.ndim else value


def _item(value, index: int):
    return value[index] if isinstance(value, _LISTS) else value


def _operators() -> list[str]:
    return [name for name in dir(torch) if name.startswith(_PREFIX) and inspect.isbuiltin(getattr(torch, name))]


def _with_tuple(function: Callable) -> Callable[..., tuple]:
    def rule(*args, **kwargs):
        return tuple(function(*args, **kwargs))

    return rule


def _without_result(function: Callable) -> Callable[..., None]:
    def operator(*args, **kwargs):
        function(*args, **kwargs)

    return operator


for _name in _operators():
    _function, _in_place = _foreach(_name.removeprefix(_PREFIX)), _name.endswith("_")
    implements_tensors(getattr(torch, _name))(_function if _in_place else _with_tuple(_function))
    # By its name: PyTorch makes the objects of operators when they are asked for.
    implements_tensors(f"aten::{_name}")(_without_result(_function) if _in_place else _function)
