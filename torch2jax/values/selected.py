"""A selection by a mask of unknown values: under jit its length is unknown, but most functions work.

A selection is held in one of two forms. *In place*, it is a tensor and a mask over its first dimensions, as ``x[mask]``
is: what is elementwise, and what is reduced, needs no more. In *compact order* those that were chosen come first, and
the mask is ``arange(n) < length``: what needs an order, or a smaller bound, makes that of the other (`packed`), by a
cumulative sum and a gather. Invariants: the length is the number of ones in the mask; the bound, how many there are
room for, is the number of its elements; nothing that is not chosen is ever seen in a value or a derivative.

Rows that were not chosen may be anything: nan, infinite, equal to others. What is elementwise is computed of them too.
Where its derivatives may be infinite, it has none with respect to them (`safe`), nor through them with respect to what
is beside the rows: infinity times zero is not zero. Nothing need be known of their values.

The rows of a selection may themselves be chosen along a dimension of theirs, by another mask, which is the same for
all of them: the selection is *nested*, and a tensor with several data-dependent dimensions, as ``x[m] @ x[m].T``. A
function of rows is then one of what was chosen, and is served as any other.
"""

import functools
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import torch
from jax import lax

from ..errors import EndedCallError, TracedValueError
from ..errors.locations import SourceLine, user_line, user_location
from ..internals.dispatch import DisableTorchFunction
from ..internals.tensors import make_wrapper_subclass
from ..rules.array_rule import InnerRule
from ..rules.features import handlers_of
from ..rules.inplace import InPlace, check_cast
from ..rules.keywords import Rule
from ..rules.options import Tag
from ..rules.rule import Reflected
from ..runtime.translation import current
from ..tensors.dtypes import canonical, is_integral
from ..tensors.tensor import Torchish
from ..tensors.trees import map_arguments
from ..tracing.value_ranges import is_same_value, range_of
from .item import Item
from .lengths import Counted, expect_capacity, hinted_bound, is_same_number, track_lengths
from .traced_numbers import Number

_MULTIPLES = frozenset((Tag.PRODUCT, Tag.QUOTIENT))


class Origin(NamedTuple):
    """The origin of a selection, in words, and the user's line that made it."""

    words: str
    location: SourceLine


class Chosen(torch.Tensor):
    """A selection by a mask of unknown values: along the first axis (`Selected`), or a later one (`SelectedAtAxis`)."""

    length_depends_on_values = True
    """Read by rooms that do not know this class."""
    len_depends_on_values = False
    """True if the data-dependent dimension is the first, which ``len`` returns."""
    words = "a boolean mask chose"
    axis: int | None
    """The dimension that is as long as data decide; None if there are several."""

    @property
    def origin(self) -> "Origin | None":
        """The origin; None as long as no user's line is known."""
        raise NotImplementedError

    @property
    def base(self) -> torch.Tensor:
        """The tensor without any choice that holds the values, its dimensions in some order."""
        raise NotImplementedError

    @property
    def parts(self) -> dict[str, torch.Tensor]:
        """The tensors that hold it, which may be such themselves."""
        raise NotImplementedError

    @property
    def sizes(self) -> tuple[int, ...]:
        """Its shape, with zero for each data-dependent dimension."""
        with DisableTorchFunction():
            return tuple(self.shape)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: Collection[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ):
        del types
        call = current()
        if call is None:
            raise EndedCallError(getattr(func, "__name__", str(func)), "a mask selection")
        return handlers_of((cls,))[0](call, func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Callable[..., object],
        types: Collection[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ):
        del types, args, kwargs
        raise TracedValueError(f"torch.ops.{func} of what {cls.words}")


class Selected(Chosen):
    """``tensor[mask]``, held as the whole tensor and the mask over its first dimensions.

    What acts on each row acts on all of them.
    """

    len_depends_on_values = True
    rows: torch.Tensor
    mask: Torchish
    origin: "Origin | None" = None
    _length: torch.Tensor | None
    is_compact: bool = False
    """True if the chosen rows come first."""
    indices_in: torch.Tensor | None = None
    """The mask among whose chosen rows each row here holds its own rank; None if the rows are no such ranks."""
    refuses_writes: bool = False
    """True if PyTorch's tensor would share memory with another one, and this one does not."""
    shares_memory: bool = False
    """True if the rows, including those not chosen, belong to a tensor that others see."""

    @property
    def base(self) -> torch.Tensor:
        return self.rows.base if isinstance(self.rows, Chosen) else self.rows

    @property
    def axis(self) -> int | None:
        return None if isinstance(self.rows, Chosen) else 0

    @property
    def parts(self):
        return {"rows": self.rows, "mask": self.mask}

    def __repr__(self, *, tensor_contents: object = None) -> str:
        del tensor_contents
        return f"<a mask selection of {self.rows!r}>"

    def __iter__(self) -> Counted:
        return Counted(self.number, self.__getitem__)

    @property
    def row_ndim(self) -> int:
        return self.rows.ndim - self.mask.ndim

    @property
    def length(self) -> torch.Tensor:
        """The number of chosen rows, int64."""
        node = getattr(self._length, "_node", None)
        if self._length is None or (node is not None and node.storage.is_released):  # as of a branch that has ended
            self._length = self.mask.sum()
        return self._length

    @property
    def number(self) -> Item:
        """The same, as a number of Python's."""
        track_lengths()
        capacity: int = self.mask.numel()
        length: Any = self.length
        if range_of(length.read())[1] > capacity:  # whose bound nothing else tells, as of a loop's count
            self._length = length = length.clamp(0, capacity)
        return Item.of(length)

    def is_like(self, other: "Selected") -> bool:
        """Returns True if one mask chose both."""
        return is_same_mask(self.mask, other.mask)

    def assign(self, other: "Selected") -> None:
        """Writes the rows of another selection of the same length."""
        self.overwrite(in_order_of(other, self.mask))

    def overwrite(self, rows: torch.Tensor) -> None:
        """Writes to all rows, chosen or not; where no gradients are recorded, derivatives go through as before."""
        if self.refuses_writes:
            raise TracedValueError("writing to a part of a boolean-mask selection, which others see,")
        if self.shares_memory:
            rows = torch.where(self.spread_mask(), rows, self.rows)
        if self.base._node.overlaps:  # pyright: ignore[reportAttributeAccessIssue] - nobody else sees the grid
            self.rows = rows
        else:
            self.rows.copy_(rows)

    def descend_from(self, other: "Selected") -> None:
        """Takes over who else sees the rows, if these are a view of another's."""
        if self.base._node.storage is other.base._node.storage:  # pyright: ignore[reportAttributeAccessIssue]
            self.shares_memory, self.refuses_writes = other.shares_memory, other.refuses_writes

    def spread_mask(self) -> torch.Tensor:
        """The mask, with dimensions of size one for those of a row."""
        return self.mask.reshape(*self.mask.shape, *[1] * self.row_ndim)

    def safe(self) -> torch.Tensor:
        """All rows, without derivatives with respect to those that were not chosen."""
        if not self.mask.numel() or not _has_derivatives(self.rows):
            return self.rows
        return self.filled(self.rows.detach())

    def filled(self, value: Any) -> torch.Tensor:
        """All rows, with a value in place of those not chosen."""
        return torch.where(self.spread_mask(), self.rows, value)

    def copied(self) -> torch.Tensor:
        """All rows, with a chosen one in place of those not chosen; if none is chosen, ones (zeros for integers).

        For functions that want finite values, or integers within bounds.
        """
        if not self.mask.numel():
            return self.rows
        flat = self.mask.reshape(-1)
        first = self.rows.flatten(0, self.mask.ndim - 1)[flat.to(torch.uint8).argmax()].detach()
        harmless = self.base.new_full((), int(not is_integral(self.dtype)))
        return self.filled(torch.where(flat.any(), first, harmless))

    def within(self, size: Any) -> torch.Tensor:
        """All rows, of which also those that were not chosen are indices of so many elements."""
        if type(size) is int and not isinstance(self.rows, Chosen):
            low, high = range_of(self.rows.read())  # pyright: ignore[reportAttributeAccessIssue]
            if -size <= low and high < size:
                return self.rows
        return self.copied()


def select(rows: torch.Tensor, mask: Torchish, origin: Origin | None = None) -> Selected:
    """The rows of a tensor that a mask over its first dimensions chooses."""
    shape = (0, *(rows.sizes if isinstance(rows, Chosen) else rows.shape)[mask.ndim :])
    chosen = make_wrapper_subclass(Selected, shape, dtype=rows.dtype)
    chosen.rows, chosen.mask, chosen.origin = rows, mask, origin
    chosen._length = None
    return chosen


def first(rows: torch.Tensor, length: torch.Tensor) -> Selected:
    """The first rows of a tensor, `length` of them, which must not exceed their number."""
    mask: Any = torch.arange(len(rows)) < length
    chosen = select(rows, mask)
    chosen._length, chosen.is_compact = length, True
    return chosen


def _positions(mask: jax.Array, size: int):
    """The indices of the true elements of a mask, in order; beyond them, the index of the first."""
    dtype = canonical(torch.int64)
    if not mask.size or not size:
        return lax.full((size,), 0, dtype)
    if 2 * size * mask.size.bit_length() < mask.size:
        return _few_positions(lax.cumsum(lax.convert_element_type(mask, dtype)), size)
    slots = lax.select(mask, lax.cumsum(lax.convert_element_type(mask, dtype)) - 1, lax.full(mask.shape, size, dtype))
    positions = lax.broadcast(lax.argmax(mask, 0, dtype), (size,))
    return positions.at[slots].set(lax.iota(dtype, mask.size), mode="drop")


def _few_positions(counts: jax.Array, size: int):
    """As `_positions`, for cumulative counts: by binary search for each index, without a scatter."""
    wanted, last = lax.iota(counts.dtype, size) + 1, counts.size - 1

    def halved(_, ends: tuple[jax.Array, jax.Array]):
        low, high = ends
        middle = (low + high) // 2
        is_behind = counts[lax.min(middle, lax.full_like(middle, last))] < wanted
        return lax.select(is_behind, middle + 1, low), lax.select(is_behind, high, middle)

    ends = lax.full_like(wanted, 0), lax.full_like(wanted, counts.size)
    positions, _ = lax.fori_loop(0, counts.size.bit_length(), halved, ends)
    first = lax.broadcast(lax.min(positions[0], lax.full_like(positions[0], last)), (size,))
    return lax.select(positions <= last, positions, first)


_POSITIONS = InnerRule(_positions, "nonzero", dtype=torch.int64)


def positions_of(chosen: Selected, size: int) -> torch.Tensor:
    """The first `size` indices of chosen rows among all rows, in order; beyond their number, the index of the first."""
    return _POSITIONS((chosen.mask.reshape(-1), size), {})


def packed(chosen: Selected, size: int | None = None) -> Selected:
    """The same selection in compact order, with room for at most `size` rows, which its length does not exceed."""
    count = chosen.mask.numel()
    size = count if size is None else min(size, count)
    if chosen.is_compact and size == count:
        return chosen
    rows = chosen.rows.flatten(0, chosen.mask.ndim - 1)
    if not chosen.is_compact and count:
        rows = rows.index_select(0, positions_of(chosen, size))
    return first(rows[:size], chosen.length)


def aligned(chosen: list[Selected], what: str) -> list[Selected]:
    """The selections in one order under one mask: their lengths are equal, or one.

    That their lengths fit is not checked: as other checks of traced values it is taken to find nothing.
    """
    if all(x.is_like(chosen[0]) for x in chosen):
        return chosen
    lengths = [x.length for x in chosen]
    if all(is_same_number(x, lengths[0]) for x in lengths):
        size = min(x.mask.numel() for x in chosen)
        return [packed(x, size) for x in chosen]
    size = max(x.mask.numel() for x in chosen)
    empty = next((x for x in chosen if not x.mask.numel()), None)
    if empty is not None:  # the others are as long, or one long
        return [like(packed(x, 0).rows, empty) for x in chosen]
    common = functools.reduce(lambda one, other: torch.where(one == 1, other, one), lengths)
    index, found = torch.arange(size), []
    for each, length in zip(chosen, lengths, strict=True):
        rows = packed(each).rows
        found.append(first(rows[torch.where(length == 1, 0, index.clamp(max=len(rows) - 1))], common))
    return found


def in_order_of(chosen: Selected | torch.Tensor, mask: Torchish) -> torch.Tensor:
    """The rows of a selection, or of a tensor, that is as long as a mask selection: each where the mask is true."""
    if isinstance(chosen, Selected) and is_same_mask(chosen.mask, mask):
        return chosen.rows
    rows = packed(chosen).rows if isinstance(chosen, Selected) else chosen
    ranks = (mask.reshape(-1).cumsum(0) - 1).clamp(0, max(len(rows) - 1, 0))
    return rows[ranks].unflatten(0, tuple(mask.shape)) if mask.ndim > 1 else rows[ranks]


def is_same_mask(one: Torchish, other: Torchish) -> bool:
    """Returns True if two masks are one array, or the same computation on one, as each `~mask` in the code."""
    return is_same_value(one.read(), other.read())


def begin(chosen: Selected, words: str = "a boolean-mask selection") -> Selected:
    """A selection that the user's line, where code is now, chooses."""
    bound = hinted_bound()
    if bound is not None and bound < chosen.mask.numel():
        chosen = _within(chosen, bound)
    chosen.origin = Origin(words, user_line())
    return chosen


def _within(chosen: Selected, bound: int) -> Selected:
    """A selection cut to the bound that the user gave."""
    length = expect_capacity(chosen.length, bound)
    return first(packed(chosen, bound).rows, length)


def pass_on_origin(result: object, args: tuple, kwargs: dict) -> object:
    """The results of a function of selections, each with the origin of the first of these."""
    for x in result if isinstance(result, tuple) else (result,):
        if type(x) is Selected and x.origin is None:
            given = [*args, *kwargs.values()]
            given += [x for each in given if isinstance(each, (tuple, list)) for x in each]
            x.origin = next((x.origin for x in given if isinstance(x, Chosen)), None)
    return result


def refuse_length(chosen: Selected) -> TracedValueError:
    """The error of a selection that needs a known length: it names the line that made it."""
    if chosen.origin is None:
        return TracedValueError("a boolean-mask selection")
    return TracedValueError(chosen.origin.words, location=str(chosen.origin.location))


def _has_derivatives(rows: torch.Tensor) -> bool:
    return rows.is_floating_point() or rows.is_complex()


def _has_shared_derivatives(x: object) -> bool:
    """Returns True if what is beside the rows of a selection may have derivatives."""
    if not isinstance(x, torch.Tensor) or isinstance(x, Number) or getattr(x, "known", None) is not None:
        return False
    return _has_derivatives(x)


def map_rows(
    function: Callable, args: tuple, kwargs: dict, what: str, *, safe: bool = True, copies: bool = False
) -> Selected:
    """A function of each row, applied to all rows of selections by one mask.

    Args:
        function: takes tensors of whole rows, and gives tensors that begin with the dimensions of the mask.
        args: may hold tensors besides, whose dimensions are those of one row at most. Selections are such if they have
            fewer dimensions than others.
        kwargs: as `args`.
        what: names the function in errors.
        safe: whether derivatives may be infinite for rows that were not chosen.
        copies: whether it has parameters besides, or indices, so that these must be finite, or within bounds.
    """
    chosen = [x for x in (*args, *kwargs.values()) if isinstance(x, Selected)]
    row_ndim = max(x.row_ndim for x in chosen)
    chosen = [x for x in chosen if x.row_ndim == row_ndim]
    found = aligned(chosen, what)
    of = dict(zip(map(id, chosen), found, strict=True))

    def rows_of(x: Any):
        if isinstance(x, Selected) and x.row_ndim == row_ndim:
            x = of[id(x)]
            return x.copied() if copies else x.safe() if safe else x.rows
        if isinstance(x, Torchish) and x.ndim == row_ndim + 1 and x.shape[0] == 1:
            x = x[0]  # as what keeps a reduced dimension
        if isinstance(x, torch.Tensor) and x.ndim > row_ndim:
            raise _mismatch(what, f"a tensor of {x.ndim} dimensions")
        return _for_each_row(x, found[0]) if safe and not copies and _has_shared_derivatives(x) else x

    found[0].origin = chosen[0].origin
    args, kwargs = map_arguments(rows_of, (args, kwargs))
    return map_arguments(lambda x: like(x, found[0]) if isinstance(x, torch.Tensor) else x, function(*args, **kwargs))


def _for_each_row(tensor: torch.Tensor, chosen: Selected) -> torch.Tensor:
    """What is beside the rows of a selection, without derivatives through those that were not chosen."""
    if not tensor.ndim:
        tensor = tensor.to(torch.result_type(chosen.base, tensor))  # as dtypes are promoted, of no dimension
    return torch.where(chosen.spread_mask(), tensor, tensor.detach())


def like(rows: torch.Tensor, other: Selected) -> Selected:
    """Rows with the mask of another selection."""
    chosen = select(rows, other.mask, other.origin)
    chosen._length, chosen.is_compact = other._length, other.is_compact
    chosen.descend_from(other)
    return chosen


def _mismatch(what: str, other: str) -> RuntimeError:
    # No TypeError, which operators would take for "not implemented".
    return RuntimeError(
        f"{what} got a boolean-mask selection, whose length depends on a traced input, and {other}, at "
        f"{user_location()}; wanted what the same mask tensor chose, or a tensor that broadcasts to one row"
    )


def apply_elementwise(rule: Rule, args: tuple, kwargs: dict, of_rows: Callable[[Any, tuple, dict], Any]) -> Any:
    """An elementwise rule that does not write, of mask selections; `of_rows` applies it to rows, which may be such."""
    apply = lambda *args, **kwargs: of_rows(rule, args, kwargs)
    return map_rows(apply, args, kwargs, f"torch.{rule.name}", safe=_has_poles(rule, args))


def write_elementwise(rule: InPlace, args: tuple, kwargs: dict, of_rows: Callable[[Any, tuple, dict], Any]) -> Selected:
    """An elementwise rule that writes to its first operand, a mask selection, without another dimension in between."""
    target = args[0]
    if not isinstance(target, Selected) or "out" in kwargs:
        raise TracedValueError(f"torch.{rule.name} into a tensor of a boolean-mask selection")
    result = apply_elementwise(rule.rule, args, kwargs, of_rows)
    check_cast(result.rows, target.rows)
    target.assign(like(result.rows.to(target.dtype), result))
    return target


def _has_poles(rule: Rule, args: tuple) -> bool:
    """Returns True if a rule's values or derivatives may be infinite at some values of its operands."""
    if not rule.tags.isdisjoint(_MULTIPLES) and isinstance(args[0], Selected) and not isinstance(rule, Reflected):
        return any(isinstance(x, torch.Tensor) for x in args[1:])
    return Tag.LINEAR not in rule.tags
