"""Items of lists, tuples and dictionaries at an index that data decide, in converted code.

What is read is chosen among all that are there, as by conditions one behind another: so data may decide which function
is called, and a write to the tensor that is read is one to the list's. What is written is chosen into each item.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import TracedValueError
from ..errors.locations import user_line
from ..runtime.translation import lift
from ..tracing.conditions import deciding_array
from ..values.item import Item
from .calls import is_data
from .numbers import is_integer
from .sides import condition
from .state import splitting

_MOST = 64  # items that are chosen among: each is a condition
_SIZE = 2**16  # numbers of a list that become a constant of the graph


def item_at(operators: Any, owner: Any, key: Any) -> Any:
    """The item of a list at an index that data decide, or that of a dictionary."""
    if not _is_of_data(key) or (isinstance(owner, dict) and type(key) is not Item):
        return owner[key]
    if isinstance(owner, dict):
        return _value_of(operators, owner, key)
    items = owner if type(owner) in (list, tuple) else list(owner)
    at = _index(operators, key, len(items), "list" if type(owner) is list else type(owner).__name__)
    if items and len(items) <= _SIZE and len({*map(type, items)}) == 1 and type(items[0]) in _DTYPES:
        kind, table = type(items[0]), torch.tensor(items, dtype=_DTYPES[type(items[0])])
        found = lift(table)[_tensor(at)]
        return Item.of(found) if kind is bool else Item.out_of(found)
    _expect_few(items, "the index of a list", "index a tensor: torch.stack(tensors)[i], torch.tensor(numbers)[i]")
    return _chosen(operators, at, range(len(items)), items)


def set_item_at(operators: Any, value: Any, owner: list, key: Any) -> None:
    """Sets the item of a list at an index that data decide."""
    if not _is_of_data(key):
        operators.setitem(value, owner, operator.index(key))
        return
    at = _index(operators, key, len(owner), "list assignment")
    _expect_few(owner, "the index of a list that is written to", "write to a tensor: values[i] = x")
    location, way = user_line(), splitting(user_line())
    last = len(owner) - 1
    for i, before in enumerate(tuple(owner)):
        flag = True if i == last and way is not None else operators.truth(operators.compare("Eq", at, i))
        if flag is False:
            continue
        if flag is True or (way is not None and way.ask(deciding_array(flag), location)):
            operators.setitem(value, owner, i)
            return
        if way is None:
            operators.setitem(condition(deciding_array(flag), lambda: value, _giving(before), []), owner, i)


def _chosen(operators: Any, at: Any, keys: Sequence[Any], values: Sequence[Any]) -> Any:
    """The value of the key that a number is; it is one of them."""
    location, way = user_line(), splitting(user_line())
    found = values[-1]
    if way is not None:  # which ends where one is found
        for key, value in zip(keys[:-1], values[:-1], strict=True):
            flag = operators.truth(operators.compare("Eq", at, key))
            if flag is True or (flag is not False and way.ask(deciding_array(flag), location)):
                return value
        return found
    for key, value in zip(keys[-2::-1], values[-2::-1], strict=True):
        flag = operators.truth(operators.compare("Eq", at, key))
        if isinstance(flag, bool):
            found = value if flag else found
        else:
            found = condition(deciding_array(flag), _giving(value), _giving(found), [])
    return found


def _value_of(operators: Any, owner: dict, key: Any) -> Any:
    keys = [x for x in owner if is_integer(x)]
    if type(key) is not Item or not is_integer(key) or len(keys) < len(owner) or any(type(x) is Item for x in keys):
        raise TracedValueError("a number looked up in a dictionary or set", instead="index a tensor")
    _expect_few(keys, "a number looked up in a dictionary", "index a tensor")
    is_there: Any = False
    for x in keys:
        is_there = operators.or_(is_there, lambda x=x: operators.compare("Eq", key, x))
    _expect(operators, is_there, lambda: KeyError("a number that data decide"))
    return _chosen(operators, key, keys, [owner[x] for x in keys])


def _index(operators: Any, key: Any, count: int, of: str) -> Any:
    """An index counted from the beginning."""
    number: Any = key if type(key) is Item else Item.out_of(key)
    if number.is_floating_point():
        raise TypeError(f"{of.split()[0]} indices must be integers or slices, not float")
    if number.dtype == torch.bool:
        number = operators.binary("Add", number, 0)
    is_within = operators.and_(operators.compare("GtE", number, -count), lambda: operators.compare("Lt", number, count))
    _expect(operators, is_within, lambda: IndexError(f"{of} index out of range"))
    is_negative = operators.compare("Lt", number, 0)
    return operators.choose(is_negative, lambda: number + count, lambda: number)


def _expect(operators: Any, holds: Any, error: Callable[[], Exception]) -> None:
    """Raises as Python does; where data decide whether, as a side of a condition does that raises."""

    def fails() -> None:
        raise operators.raised(error)

    operators.choose(holds, lambda: None, fails)


def _expect_few(items: Sequence[Any], what: str, instead: str) -> None:
    if len(items) > _MOST:
        raise TracedValueError(f"{what} of more than {_MOST} items", instead=instead)


def _is_of_data(key: Any) -> bool:
    return type(key) is Item or (is_data(key) and key.numel() == 1)


def _giving(value: Any) -> Callable[[], Any]:
    return lambda: value


def _tensor(at: Any) -> Any:
    return Item.tensor(at) if type(at) is Item else at


_DTYPES = {int: torch.int64, float: torch.float64, bool: torch.bool}
