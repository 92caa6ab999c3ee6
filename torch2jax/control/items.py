"""Items of lists, tuples and dictionaries at an index that data decide, in converted code.

What is read is chosen among all that are there, as by conditions one behind another: so data may decide which function
is called, and a write to the tensor that is read is one to the list's. What is written is chosen into each item.
"""

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..runtime.errors import TracedValueError
from ..runtime.errors.locations import user_line
from ..runtime.translation import lift, this_call
from ..tensors.tensor import Torchish
from ..tracing.conditions import deciding_array
from ..values.item import Item
from ..values.lengths import range_of_number
from .calls import is_data
from .numbers import is_integer
from .sides import condition
from .state import current_run, splitting

if TYPE_CHECKING:
    from .operators import Operators

_MOST = 64  # items that are chosen among: each is a condition
_SIZE = 2**16  # numbers of a list that become a constant of the graph


def item_at(operators: "Operators", owner: Any, key: Any) -> object:
    """The item of a list at an index that data decide, or that of a dictionary."""
    if not _is_of_data(key) or (isinstance(owner, dict) and type(key) is not Item):
        return owner[key]
    if isinstance(owner, dict):
        return _value_of(operators, owner, key)
    if isinstance(owner, np.ndarray):
        owner = owner.tolist()
    items = owner if type(owner) in (list, tuple) else list(owner)
    at = _index(operators, key, len(items), "list" if type(owner) is list else type(owner).__name__)
    if items and len(items) <= _SIZE and len({*map(type, items)}) == 1 and type(items[0]) in _DTYPES:
        kind, table = type(items[0]), torch.tensor(items, dtype=_DTYPES[type(items[0])])
        found: Any = lift(table)[at]
        return Item.of(found) if kind is bool else Item.out_of(found)
    _expect_few(items, "the index of a list", "index a tensor: torch.stack(tensors)[i], torch.tensor(numbers)[i]")
    return _chosen(operators, at, range(len(items)), items)


def set_item_at(operators: "Operators", value: object, owner: Any, key: Any) -> None:
    """Sets the item of a list at an index that data decide, or of a dictionary that has all keys that it may be."""
    if isinstance(owner, dict):
        low, high = range_of_number(key) if is_integer(key) else (0, -1)
        keys = range(low, high + 1) if high - low < _MOST else ()
        if not keys or not all(x in owner for x in keys):
            raise TracedValueError("a number that may be a new key of a dictionary", instead="write to a tensor")
        at = key
    elif _is_of_data(key):
        keys, at = range(len(owner)), _index(operators, key, len(owner), "list assignment")
        _expect_few(owner, "the index of a list that is written to", "write to a tensor: values[i] = x")
    else:
        operators.setitem(value, owner, operator.index(key))
        return
    answer = _answer(operators, at, keys)
    if answer is not None:
        operators.setitem(value, owner, answer)
        return
    for i, before in [(i, owner[i]) for i in keys]:
        flag = operators.truth(operators.compare("Eq", at, i))
        if flag is True:
            operators.setitem(value, owner, i)
        elif flag is not False:
            operators.setitem(condition(deciding_array(flag), _giving(value), _giving(before), []), owner, i)


def without_item(operators: "Operators", owner: list, key: Any) -> object:
    """Takes the item at an index that data decide out of a list, and gives it."""
    if type(key) is int:
        return operators.call(owner.pop, key)
    at = _index(operators, key, len(owner), "pop")
    found = item_at(operators, owner, at)
    for i, following in enumerate(owner[1:]):
        is_before = operators.compare("Lt", i, at)
        operators.setitem(operators.choose(is_before, _giving(owner[i]), _giving(following)), owner, i)
    operators.delitem(owner, -1)
    return found


def place_of(operators: "Operators", items: Sequence[object], value: object) -> object:
    """The index of a value in a list or tuple, as its method `index` gives it."""
    flags = [operators.truth(True if x is value else operators.compare("Eq", x, value)) for x in items]
    count = next((i + 1 for i, x in enumerate(flags) if x is True), len(flags))
    places = [i for i in range(count) if flags[i] is not False]
    if not places or flags[places[-1]] is not True:
        is_there = functools.reduce(lambda x, y: x | y, [flags[i] for i in places]) if places else False
        _expect(operators, is_there, lambda: ValueError("a value that data decide is not in the list"))
    found = places[-1] if places else 0
    for i in places[-2::-1]:
        found = operators.choose(Item.of(flags[i]), _giving(i), _giving(found))
    return found


def _counted(operators: "Operators", items: Sequence[object], value: object) -> object:
    found = 0
    for x in items:
        found = operators.binary("Add", found, True if x is value else operators.compare("Eq", x, value))
    return found


def _without(operators: "Operators", owner: list, value: object) -> None:
    without_item(operators, owner, place_of(operators, owner, value))


def _chosen(operators: "Operators", at: object, keys: Sequence[object], owner: Any) -> object:
    """The item of the key that a number is; it is one of them."""
    answer = _answer(operators, at, keys)
    if answer is not None:
        return owner[answer]
    found = owner[keys[-1]]
    for key in keys[-2::-1]:
        flag = operators.truth(operators.compare("Eq", at, key))
        if flag is True:
            found = owner[key]
        elif flag is not False:
            found = condition(deciding_array(flag), _giving(owner[key]), _giving(found), [])
    return found


def _answer(operators: "Operators", at: object, keys: Sequence[object]) -> object:
    """The key that a number is on the way that the code goes, where its conditions are split; else None."""
    location = user_line()
    way = splitting(location)
    if way is None:
        return None
    for key in keys[:-1]:
        flag = operators.truth(operators.compare("Eq", at, key))
        if flag is True or (flag is not False and way.ask(deciding_array(flag), location)):
            return key
    return keys[-1]


def _value_of(operators: "Operators", owner: dict, key: object) -> object:
    _expect(operators, is_among(operators, owner, key), lambda: KeyError("a number that data decide"))
    return _chosen(operators, key, _numbers(owner), owner)


def value_or(operators: "Operators", owner: dict, key: object, default: object = None) -> object:
    """The result of a dictionary's `get` for a number that data decide."""
    is_there = is_among(operators, owner, key)
    return operators.choose(is_there, lambda: _chosen(operators, key, _numbers(owner), owner), _giving(default))


_METHODS: dict[tuple[type, str], Callable] = {
    (list, "pop"): without_item,
    (list, "index"): place_of,
    (list, "count"): _counted,
    (list, "remove"): _without,
    (tuple, "index"): place_of,
    (tuple, "count"): _counted,
    (dict, "get"): value_or,
}
"""Methods of lists, tuples and dictionaries that compare with what data decide, or get an index of that."""


def method_of_data(operators: "Operators", owner: Any, name: str, args: tuple) -> object:
    """The result of a method of a container, if data decide about it; else NotImplemented."""
    method = _METHODS.get((type(owner), name))
    if method is None or len(args) not in ((1, 2) if name == "get" else (1,)):
        return NotImplemented
    is_decided = type(args[0]) is Item if name in ("pop", "get") else any(map(is_data, (args[0], *owner)))
    return method(operators, owner, *args) if is_decided else NotImplemented


def is_among(operators: "Operators", keys: Iterable[object], number: object) -> object:
    """The answer to ``number in keys``, for keys of a set or of a dictionary: what is no number is none of them."""
    numbers = _numbers(keys)
    _expect_few(numbers, "a number looked up in a dictionary or set", "index a tensor")
    found = False
    for x in numbers:
        found = operators.or_(found, lambda x=x: operators.compare("Eq", number, x))
    return found


def _numbers(keys: Iterable[object]) -> list[object]:
    return [x for x in keys if type(x) in (int, float, bool)]


def _index(operators: "Operators", key: Torchish, count: int, of: str) -> Any:
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


def _expect(operators: "Operators", holds: object, error: Callable[[], Exception]) -> None:
    """Raises as Python does; where data decide whether, as a side of a condition does, and results tell by nan."""

    def fails() -> None:
        raise operators.raised(error)

    flag = operators.truth(holds)
    operators.choose(flag, lambda: None, fails)
    path = this_call().paths[-1]
    if not isinstance(flag, bool) and not current_run().trying and path.policy.checks == "assume":
        path.expect(flag, True, user_line())


def _expect_few(items: Sequence[object], what: str, instead: str) -> None:
    if len(items) > _MOST:
        raise TracedValueError(f"{what} of more than {_MOST} items", instead=instead)


def _is_of_data(key: Any) -> bool:
    return type(key) is Item or (is_data(key) and key.numel() == 1)


def _giving(value: object) -> Callable[[], object]:
    return lambda: value


_DTYPES = {int: torch.int64, float: torch.float64, bool: torch.bool}
