"""What a mask of unknown values chose of a tensor: its length is unknown under jit, not what may be done with it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ..branches.programs import is_same_value
from ..errors import SourceLine, TracedValueError, user_location, user_place
from ..internals.memory import make_wrapper_subclass
from ..rules.inplace import InPlace, WithFlag, check_cast
from ..rules.rule import Reflected
from ..rules.tags import Tag
from ..tensors.dtypes import is_integral
from ..tensors.tensor import Torchish
from ..tensors.trees import map_arguments
from .call import current

__all__ = [
    "Selected",
    "apply_elementwise",
    "begin",
    "is_same_mask",
    "map_rows",
    "pass_on_origin",
    "refuse_length",
    "select",
]

_MULTIPLES = frozenset((Tag.PRODUCT, Tag.QUOTIENT))


class Origin(NamedTuple):
    """What a selection goes back to, in words, and the user's line that chose it."""

    words: str
    place: SourceLine


class Selected(torch.Tensor):
    """``tensor[mask]``, held as the whole tensor and the mask over its first dimensions.

    What acts on each row acts on all of them. Those that were not chosen must not make trouble on the way: infinite
    derivatives times zero are not zero. They become copies of the first that was chosen (`safe`) before anything but
    sums and multiples is computed of them.
    """

    length_depends_on_values = True
    rows: torch.Tensor
    mask: Torchish
    is_safe: bool
    origin: "Origin | None"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        del types
        call = current()
        if call is None:
            raise RuntimeError("got what a mask chose in a translated call that has ended")
        return call.dispatch_selected(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        del types, args, kwargs
        raise TracedValueError(f"torch.ops.{func} of what a boolean mask chose")

    def __repr__(self, *, tensor_contents=None) -> str:
        del tensor_contents
        return f"<what a mask chose of {self.rows!r}>"

    @property
    def row_ndim(self) -> int:
        return self.rows.ndim - self.mask.ndim

    def is_like(self, other: "Selected") -> bool:
        """Whether both were chosen by one mask."""
        return is_same_mask(self.mask, other.mask)

    def spread_mask(self) -> torch.Tensor:
        """The mask, with dimensions of one for those of a row."""
        return self.mask.reshape(*self.mask.shape, *[1] * self.row_ndim)

    def safe(self) -> torch.Tensor:
        """All rows, in which those that were not chosen are one that was, or ones (zeros if integers) if none was."""
        if self.is_safe:
            return self.rows
        flat = self.mask.reshape(-1)
        first = self.rows.flatten(0, self.mask.ndim - 1)[flat.to(torch.uint8).argmax()]
        harmless = first.new_full((), int(not is_integral(self.dtype)))
        return torch.where(self.spread_mask(), self.rows, torch.where(flat.any(), first, harmless))


def is_same_mask(one: Torchish, other: Torchish) -> bool:
    """Whether two masks are one, or computed alike from the same, as each `~mask` that code writes."""
    return is_same_value(one.read(), other.read())


def select(rows: torch.Tensor, mask: Torchish, is_safe: bool = False, origin: Origin | None = None) -> Selected:
    """The rows of a tensor that a mask over its first dimensions chooses."""
    shape = (0, *rows.shape[mask.ndim :])
    chosen = make_wrapper_subclass(Selected, shape, dtype=rows.dtype)
    chosen.rows, chosen.mask, chosen.is_safe, chosen.origin = rows, mask, is_safe, origin
    return chosen


def begin(chosen: Selected, words: str = "what a boolean mask chose") -> Selected:
    """A selection that the user's line, where code is now, chooses."""
    chosen.origin = Origin(words, user_place())
    return chosen


def pass_on_origin(result: Any, args: tuple, kwargs: dict) -> Any:
    """What a function gives of selections, which goes back to the first of these."""
    for x in result if isinstance(result, tuple) else (result,):
        if type(x) is Selected and x.origin is None:
            given = [*args, *kwargs.values()]
            given += [x for each in given if isinstance(each, (tuple, list)) for x in each]
            x.origin = next(x.origin for x in given if type(x) is Selected)
    return result


def refuse_length(chosen: Selected) -> TracedValueError:
    """The error of a selection that has to have a length: it names the line that chose it."""
    if chosen.origin is None:
        return TracedValueError("what a boolean mask chose")
    return TracedValueError(chosen.origin.words, place=str(chosen.origin.place))


def map_rows(function: Callable, args: tuple, kwargs: dict, what: str, *, safe: bool = True) -> Any:
    """A function of each row, applied to all rows of what one mask chose.

    Args:
        function: takes tensors of whole rows, and gives tensors that begin with the dimensions of the mask.
        args: may hold tensors besides, whose dimensions are those of one row at most.
        kwargs: as `args`.
        what: names the function in errors.
        safe: whether rows that were not chosen could be singular for it.
    """
    chosen = [x for x in (*args, *kwargs.values()) if isinstance(x, Selected)]
    mask, row_ndim = chosen[0].mask, chosen[0].row_ndim
    if not all(x.is_like(chosen[0]) for x in chosen[1:]):
        raise _mismatch(what, "what another boolean mask chose")

    def rows_of(x):
        if isinstance(x, Selected) and x.row_ndim == row_ndim:
            return x.safe() if safe else x.rows
        if isinstance(x, Torchish) and x.ndim == row_ndim + 1 and x.shape[0] == 1:
            return x[0]  # as what keeps a reduced dimension
        if isinstance(x, torch.Tensor) and (isinstance(x, Selected) or x.ndim > row_ndim):
            raise _mismatch(what, f"a tensor of {x.ndim} dimensions")
        return x

    is_safe, origin = safe or all(x.is_safe for x in chosen), chosen[0].origin
    args, kwargs = map_arguments(rows_of, (args, kwargs))
    return map_arguments(
        lambda x: select(x, mask, is_safe, origin) if isinstance(x, torch.Tensor) else x, function(*args, **kwargs)
    )


def _mismatch(what: str, other: str) -> RuntimeError:
    # No TypeError, which operators would take for "not implemented".
    return RuntimeError(
        f"{what} got what a boolean mask chose, whose length depends on a traced input, and {other}, at "
        f"{user_location()}; wanted what the same mask tensor chose, or a tensor that broadcasts to one row"
    )


def apply_elementwise(rule: Any, args: tuple, kwargs: dict) -> Any:
    """An elementwise rule, in one of its forms, of what masks chose."""
    if isinstance(rule, WithFlag):
        rule, args, kwargs = rule.form(args, kwargs)
    what = f"torch.{rule.name}"
    if not isinstance(rule, InPlace):
        return map_rows(lambda *args, **kwargs: rule(args, kwargs), args, kwargs, what, safe=_has_poles(rule, args))
    target = args[0]
    if not isinstance(target, Selected) or "out" in kwargs:
        raise TracedValueError(f"{what} into a tensor of what a boolean mask chose")
    result = apply_elementwise(rule.rule, args, kwargs)
    check_cast(result.rows, target.rows)
    target.rows, target.is_safe = result.rows.to(target.dtype), result.is_safe
    return target


def _has_poles(rule, args: tuple) -> bool:
    """Whether a rule may have infinite derivatives, or values, at some values of its operands."""
    if not rule.tags.isdisjoint(_MULTIPLES) and isinstance(args[0], Selected) and not isinstance(rule, Reflected):
        return any(isinstance(x, torch.Tensor) for x in args[1:])
    return Tag.LINEAR not in rule.tags
