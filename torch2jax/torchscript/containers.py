"""TorchScript's operators on lists, dictionaries and strings, which change Python's own."""

import functools
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["CONTAINERS", "equal"]


def equal(left: Any, right: Any) -> bool:
    """Whether two values of a program are equal; tensors within lists are if all their elements are."""
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return bool(torch.equal(left, right))
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(equal, left, right))
    return left == right


def _item(container: Any, key: Any):
    if isinstance(container, dict):
        if key not in container:
            raise RuntimeError(f"KeyError: {key}")
        return container[key]
    if not -len(container) <= key < len(container):
        raise IndexError("list index out of range")
    return container[key]


def _set_item(container: Any, key: Any, value: Any) -> None:
    if isinstance(container, list) and not -len(container) <= key < len(container):
        raise IndexError("list index out of range")
    container[key] = value


def _delete(container: Any, key: Any) -> None:
    _item(container, key)
    del container[key]


def _changes(method: str) -> Callable:
    """A method that changes a container, and gives the container."""

    def body(container: Any, *args: Any):
        getattr(container, method)(*args)
        return container

    return body


def _pop(container: Any, *args: Any):
    if isinstance(container, dict):
        if len(args) == 1:
            _item(container, *args)
        return container.pop(*args)
    if not container:
        raise IndexError("pop from empty list")
    return container.pop(*args)


def _index(container: list, value: Any) -> int:
    for position, item in enumerate(container):
        if equal(item, value):
            return position
    raise RuntimeError(f"'{value}' is not in list")


def _remove(container: list, value: Any) -> None:
    for position, item in enumerate(container):
        if equal(item, value):
            del container[position]
            return
    raise RuntimeError("list.remove(x): x not in list")


def _contains(container: Any, value: Any) -> bool:
    return value in container if isinstance(container, (dict, str)) else any(equal(item, value) for item in container)


def _sort(container: list, reverse: bool = False) -> None:
    container.sort(reverse=reverse, key=_order(container))


def _sorted(container: list, reverse: bool = False) -> list:
    return sorted(container, reverse=reverse, key=_order(container))


def _order(container: list):
    """How the items of a list are ordered: objects of scripted classes by their own ``__lt__``."""
    if not container or isinstance(container[0], (int, float, str, tuple)):
        return None
    return functools.cmp_to_key(_compare)


def _compare(left: Any, right: Any) -> int:
    return -1 if left < right else int(right < left)


def _plus(left: Any, right: Any):
    return left + right


def _add_in_place(left: list, right: list) -> list:
    left += right
    return left


def _times_in_place(left: list, right: int) -> list:
    left *= right
    return left


def _slice(container: Any, start: int | None = None, end: int | None = None, step: int = 1):
    return container[start:end:step]


def _dictionary(*args: Any) -> dict:
    return dict(*args)


def _update(container: dict, other: Any) -> None:
    container.update(other)


def _sum(container: list):
    return sum(container)


CONTAINERS: dict[str, Callable[..., Any]] = {
    "aten::len": len,
    "aten::__getitem__": _item,
    "aten::_set_item": _set_item,
    "aten::Delete": _delete,
    "aten::__contains__": _contains,
    "aten::append": _changes("append"),
    "aten::extend": _changes("extend"),
    "aten::insert": list.insert,
    "aten::reverse": list.reverse,
    "aten::clear": lambda container: container.clear(),
    "aten::pop": _pop,
    "aten::remove": _remove,
    "aten::index": _index,
    "aten::count": lambda container, value: sum(equal(item, value) for item in container),
    "aten::copy": lambda container: container.copy(),
    "aten::list": list,
    "aten::sort": _sort,
    "aten::sorted": _sorted,
    "aten::slice": _slice,
    "aten::add": _plus,
    "aten::add_": _add_in_place,
    "aten::mul": lambda left, right: left * right,
    "aten::mul_": _times_in_place,
    "aten::eq": equal,
    "aten::ne": lambda left, right: not equal(left, right),
    "aten::sum": _sum,
    "aten::all": all,
    "aten::any": any,
    "aten::keys": list,
    "aten::values": lambda container: list(container.values()),
    "aten::items": lambda container: list(container.items()),
    "aten::get": lambda container, *args: container.get(*args),
    "aten::setdefault": lambda container, key, value: container.setdefault(key, value),
    "aten::update": _update,
    "aten::popitem": lambda container: container.popitem(),
    "aten::dict": _dictionary,
}
