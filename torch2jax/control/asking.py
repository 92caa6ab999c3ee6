"""Python's functions that ask numbers and tensors, as converted code calls them: `any`, `max`, `range` and others."""

import builtins
import operator
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..runtime.errors import TracedValueError
from ..runtime.errors.locations import user_line
from ..tracing.conditions import deciding_array
from ..values import lengths
from ..values.item import Item
from .calls import RANGE, is_data, of_flag
from .expressions import Expressions
from .numbers import is_extreme_of_tensors
from .sides import condition, short_circuit
from .state import Refused, current_run, splitting


def _range(operators: Expressions, *bounds: object) -> Any:
    if not any(type(x) is Item for x in bounds):
        return NotImplemented
    start, stop, *step = bounds if len(bounds) > 1 else (0, *bounds)
    if type(step[0] if step else 1) is not int or step == [0]:
        raise TracedValueError("the step of a range")
    return lengths.TracedRange(start, stop, step[0] if step else 1)


def _isinstance(operators: Expressions, value: object, kinds: Any) -> object:
    if type(value) is Item:
        return isinstance(value.python_type(), kinds)
    if id(value) in current_run().unsure:
        raise Refused("data decide whether something is a tensor or a number, which is asked here", other_paths=True)
    return NotImplemented


def _any(operators: Expressions, items: object) -> object:
    return _first(operators, items, stops_at=True)


def _all(operators: Expressions, items: object) -> object:
    return _first(operators, items, stops_at=False)


def _first(operators: Expressions, items: Any, stops_at: bool) -> object:
    if isinstance(items, torch.Tensor):
        return NotImplemented
    is_pure, following = type(items) in (list, tuple), iter(operators.iterated(items))
    is_own = not hasattr(type(items), "__next__") or _is_expression(items)

    def rest(out: Any) -> object:
        """True if one of those that follow stops it, as if all were looked at."""
        for x in following:
            flag = operators.truth(x)
            if flag is stops_at:
                return stops_at
            if not isinstance(flag, bool):
                out = flag if isinstance(out, bool) else (out | flag if stops_at else out & flag)
        return out if isinstance(out, bool) else Item.of(out)

    if is_pure:
        return rest(not stops_at)
    for x in following:
        flag = operators.truth(x)
        if flag is stops_at:
            return stops_at
        if isinstance(flag, bool):
            continue
        location = user_line()
        way = splitting(location)
        if way is None and is_own:
            if isinstance(items, types.GeneratorType):
                current_run().half_read[items] = location
            return _stops_early(flag, rest, stops_at)
        if way is None:
            raise Refused("any() or all() asks data how far an iterator is read", other_paths=True, location=location)
        if way.ask(deciding_array(flag), location) is stops_at:
            return stops_at
    return not stops_at


def _is_expression(items: object) -> bool:
    """True of a generator expression, which seldom has a name: who reads on is refused (`Run.half_read`)."""
    return type(items) is types.GeneratorType and items.gi_code.co_name == "<genexpr>"


def _stops_early(flag: Any, rest: Callable[[object], object], stops_at: bool) -> object:
    own = Item.of(flag)
    return short_circuit(
        deciding_array(flag), lambda: rest(not stops_at), lambda: own, not stops_at, False, is_pure=True
    )


def _have_data(keys: Sequence[object]) -> bool:
    """True if data decide a number that is compared, be it in a tuple."""
    return any(is_data(x) for each in keys for x in (each if type(each) is tuple else (each,)))


def _extreme(kind: str) -> Callable:
    def choose(operators: Expressions, *values: Any, key: Any = None, **options: object) -> Any:
        if len(values) == 1 and type(values[0]) in (list, tuple):
            values = tuple(values[0])
        if len(values) < 2 or options:
            return NotImplemented
        keys = values if key is None else [operators.call(key, x) for x in values]
        if not _have_data(keys):
            return NotImplemented
        best, best_key = values[0], keys[0]
        for x, its_key in zip(values[1:], keys[1:], strict=True):
            if key is None and is_extreme_of_tensors(best, x):
                best = best_key = (lengths.largest if kind == "Gt" else lengths.smallest)(best, x)
                continue
            flag = operators.truth(operators.compare(kind, its_key, best_key))
            if isinstance(flag, bool):
                best, best_key = (x, its_key) if flag else (best, best_key)
            else:
                new, old = (x, its_key), (best, best_key)
                best, best_key = condition(deciding_array(flag), lambda new=new: new, lambda old=old: old, [])
        return best

    return choose


def in_order(operators: Expressions, items: list, key: Any = None, reverse: object = False) -> object:
    """Some items, sorted as Python does; numbers whose keys data decide by one sort of the graph."""
    keys = items if key is None else [operators.call(key, x) for x in items]
    if not _have_data(keys):
        return NotImplemented if key is None else _by_python(items, keys, reverse)
    columns, by = _columns(items), _columns(keys)
    if type(reverse) is not bool or columns is None or by is None:
        return _by_python(items, keys, reverse)
    order = torch.arange(len(items))
    for column in reversed(by):
        order = order[column[order].sort(descending=reverse, stable=True).indices]
    found = [[Item.out_of(column[i]) for column in columns] for i in order]
    return [type(item)(x) if type(item) is tuple else x[0] for item, x in zip(items, found, strict=True)]


def _by_python(items: list, keys: list, reverse: Any) -> list:
    return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__, reverse=reverse)]


def _columns(rows: list) -> list[Any] | None:
    """Numbers, or tuples of them, as tensors of those in one place; None of others, and of integers among floats."""
    if not all(type(x) is tuple and len(x) == len(rows[0]) for x in rows):
        rows = [(x,) for x in rows]
    columns = [*zip(*rows, strict=True)]
    kinds = [{x.python_type if type(x) is Item else type(x) for x in column} for column in columns]
    if not all(kind in ({int}, {float}) for kind in kinds):
        return None
    return [torch.stack([torch.tensor(x) for x in column]) for column in columns]


def _sorted(operators: Expressions, items: Iterable, **options: object) -> object:
    if type(items) not in (list, tuple, RANGE):
        return NotImplemented
    found = in_order(operators, list(items), **options)
    return found if found is NotImplemented else operators.new(found)


def _compared(kind: str) -> Callable:
    return lambda operators, one, other: operators.compare(kind, one, other)


ASKING: dict[object, Callable] = {
    operator.is_: _compared("Is"),
    operator.is_not: _compared("IsNot"),
    operator.contains: lambda operators, items, x: operators.compare("In", x, items),
    operator.truth: lambda operators, value: of_flag(operators.truth(value)),
    operator.not_: lambda operators, value: operators.not_(value),
    builtins.any: _any,
    builtins.all: _all,
    builtins.isinstance: _isinstance,
    builtins.max: _extreme("Gt"),
    builtins.min: _extreme("Lt"),
    builtins.sorted: _sorted,
    RANGE: _range,
}
