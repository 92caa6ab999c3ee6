"""The values that two sides have left in one slot, merged into one.

Tensors and numbers are chosen by the condition; lists, tuples, dictionaries and plain objects are made of what is
chosen in them. Anything else has to be the same on both sides. Where it is not, the place holds an `Unmergeable`: every
use of that is refused, so that what code never looks at need not agree.

A container that is made of two is a new object, though on one side it may have been an older one. Such pairs must not
be written to any more (`writes.pair`).
"""

import collections
import types
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..runtime.translation import this_call
from ..tensors.dtypes import canonical
from ..tensors.tensor import Torchish
from ..tracing.tensor_spec import TensorSpec
from ..values.item import Item, is_asked_by_user
from ..values.masked import at_axis, first
from ..values.masked_functions import padded_to
from .ends import Leaf, Node, Tree
from .state import Refused, current_run
from .ties import is_tied
from .writes import UNDEFINED, dict_of, made, pair

_COMPARED_BY_VALUE = (
    *(str, bytes, torch.dtype, torch.device, torch.Size, slice, range, type, frozenset, types.NoneType),
    *(types.BuiltinFunctionType, types.MethodType, np.dtype),
)


class Unmergeable:
    """Stands for what two sides of a condition do not agree on: an error where it is used."""

    def __init__(self, why: str):
        location = current_run().open
        object.__setattr__(self, "why", why)
        object.__setattr__(self, "location", location[0] if location else None)

    def _used(self, *args: Any, **kwargs: Any) -> Any:
        why, location = (object.__getattribute__(self, name) for name in ("why", "location"))
        raise Refused(why, other_paths=True, location=location)

    def __repr__(self) -> str:
        if is_asked_by_user():
            self._used()
        return f"something else on each side ({object.__getattribute__(self, 'why')})"

    __getattr__ = __call__ = __bool__ = __len__ = __iter__ = __getitem__ = __setitem__ = __str__ = __format__ = _used
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __float__ = __int__ = __index__ = _used  # pyright: ignore[reportAssignmentType]
    __next__ = __contains__ = __neg__ = __pos__ = __abs__ = __invert__ = __enter__ = __exit__ = _used
    for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"):
        locals()[f"__{_name}__"] = locals()[f"__r{_name}__"] = _used


def expect_there(*values: object) -> None:
    """Refuses values on which two sides do not agree."""
    for value in values:
        if type(value) is Unmergeable:
            value._used()


def is_one_of_two(value: object) -> bool:
    """True if data decide which object a value is, as `is` asks."""
    if isinstance(value, Torchish):
        return type(value) is Torchish and is_tied(value._node.storage.memory)
    return id(value) in (current_run().tuples if isinstance(value, tuple) else current_run().pairs)


def has_no_identity(value: object) -> bool:
    """True if data decide which object a value is, or has in it, and code would tell: it is equal to itself alone."""
    if not current_run().pairs:
        return isinstance(value, Torchish) and is_one_of_two(value)
    if isinstance(value, (list, tuple, collections.deque)):
        return any(map(has_no_identity, value))
    if isinstance(value, dict):
        return any(map(has_no_identity, value.values()))
    return is_one_of_two(value) and (isinstance(value, Torchish) or type(value).__eq__ is object.__eq__)


class Pick(NamedTuple):
    """An array that is chosen: what each side gives, and what is made of it."""

    one: Leaf
    other: Leaf
    kind: str  # tensor, item, unsure (a tensor on one side, and a number on the other), or rows, of which some count
    spec: TensorSpec
    shape: tuple[int, ...]
    axis: int = 0
    """The dimension of a plain tensor that its rows are along."""

    @property
    def aval(self) -> tuple:
        return self.kind, self.spec.dtype, self.shape

    @property
    def is_leaf(self) -> bool:
        """True if both sides give leaves that require grad."""
        return self.one.is_leaf and self.other.is_leaf

    @property
    def is_float(self) -> bool:
        """True for a number of Python's that is a float."""
        return self.kind == "item" and self.spec.dtype.is_floating_point

    @property
    def is_integer(self) -> bool:
        """True for a number of Python's that is an integer."""
        return self.kind == "item" and self.spec.dtype == torch.int64

    @property
    def is_of_numbers(self) -> bool:
        """True if both sides give numbers that Python knows."""
        return self.one.kind == self.other.kind == "number"

    def array(self, leaf: Leaf, found: Any) -> Any:
        """The array of a side."""
        dtype = canonical(self.spec.dtype)
        if leaf.kind == "undefined":  # PyTorch raises where this is read
            return jnp.full(self.shape, np.nan if jnp.issubdtype(dtype, jnp.inexact) else 0, dtype)
        if leaf.kind == "number":
            try:
                return np.asarray(leaf.value, dtype)
            except OverflowError as error:
                raise Refused(f"the integer {leaf.value} is beyond {dtype}", other_paths=True) from error
        if leaf.kind == "plain":
            found = jnp.moveaxis(found, self.axis, 0)
        if self.kind == "rows" and found.shape != self.shape:
            found = padded_to(found, self.shape[0])
        return lax.convert_element_type(found, dtype)

    def value(self, array: object, keeps: bool) -> Any:
        """The value that code gets for the chosen array.

        Args:
            keeps: whether it may be a tensor from outside itself, which has its gradient also where they are off.
        """
        is_older = any(relation.is_older for leaf in (self.one, self.other) for _, relation in leaf.relations)
        make = self.spec.tensor if keeps and is_older and not torch.is_grad_enabled() else self.spec.result
        tensor = make(array)
        wants = {(x.spec.wants_grad, x.is_leaf) for x in (self.one, self.other) if x.kind == "tensor"}
        if len(wants) == 2:
            current_run().unsure_grad[id(tensor)] = tensor
        if self.kind == "unsure":
            current_run().unsure[id(tensor)] = tensor
        return Item.of(tensor) if self.kind == "item" else tensor


class Growth(NamedTuple):
    """That an iteration of a loop makes a tensor longer."""

    start: Leaf
    """The tensor that the loop begins with."""
    axis: int
    step: int
    """By how much."""
    text: str
    """The error where nobody knows how often."""


def _longer_axis(shape: tuple[int, ...], other: tuple[int, ...]) -> int | None:
    """The only dimension in which a shape differs from another one, which is longer."""
    found = [i for i, (x, y) in enumerate(zip(shape, other, strict=False)) if x != y]
    is_one = len(shape) == len(other) and len(found) == 1
    return found[0] if is_one and other[found[0]] > shape[found[0]] else None


Build = Callable[[list], Any]


def _building(x: Any, builders: list[Build]) -> Build:
    """What makes a tuple, which nobody writes to: so nobody keeps it, or what is in it."""

    def build(values: list) -> object:
        found = _rebuilt(x, [y(values) for y in builders])
        current_run().tuples.add(id(found))
        return found

    return build


class Merge:
    """Merges pairs of trees.

    Args:
        one, other: the two in words: where a condition is true, and false.
        is_loop: whether a loop carries what is merged: then nothing may be unlike.
        with_capacity: the names of tensors that have room for all that a loop adds to them.
    """

    def __init__(self, one: str, other: str, is_loop: bool = False, with_capacity: Collection[str] = ()):
        self._sides, self._is_loop, self._with_capacity = (one, other), is_loop, with_capacity
        self.growing: dict[str, Growth] = {}
        """Tensors that an iteration of a loop makes longer, by their names; nothing carries them yet."""
        self.picks: list[Pick] = []
        self.names: list[str] = []
        """Where each of them is, for errors."""
        self._known: dict[tuple[int, int], tuple[Build, Tree, Tree]] = {}
        self._parts: dict[int, list[list]] = {}
        """Of objects that new ones are made of: those, where they have been made."""
        self._older: list[tuple[list, object, str]] = []

    def __call__(
        self, a: Tree, b: Tree, name: str, must_be_on_both_sides: bool = False, is_contents: bool = False
    ) -> Build:
        """The function that makes one value of two.

        Args:
            name: of the place, for errors.
            must_be_on_both_sides: whether it is no variable, of which a side that does not set it never reads it.
            is_contents: whether the trees are of what one container holds, which stays the same.
        """
        key = id(a), id(b)
        if key not in self._known:
            self._known[key] = self._merged(a, b, name, must_be_on_both_sides, is_contents), a, b
        return self._known[key][0]

    def _mismatch_text(self, a: Tree, b: Tree, name: str) -> str:
        return f"{name} is {_text(a)} {self._sides[0]}, {_text(b)} {self._sides[1]}"

    def _unmergeable(self, a: Tree, b: Tree, name: str, why: str = "") -> Build:
        text = self._mismatch_text(a, b, name) + why
        if self._is_loop:
            raise Refused(text, other_paths=True)
        unmergeable = Unmergeable(text)
        return lambda _: unmergeable

    def _merged(self, a: Tree, b: Tree, name: str, must_be_on_both_sides: bool, is_contents: bool) -> Build:
        if a.kind == "undefined" or b.kind == "undefined":
            if a.kind == b.kind:
                return lambda _: UNDEFINED
            if must_be_on_both_sides:
                return self._unmergeable(a, b, name)
            return self.alone(b if a.kind == "undefined" else a, a.kind == "undefined")
        if a.kind != "number" and a.value is b.value:
            return lambda _: a.value
        if "sized" in (a.kind, b.kind):
            return self._of_lengths(a, b, name)
        if isinstance(a, Node) and isinstance(b, Node):
            return self._nodes(a, b, name, is_contents)
        if isinstance(a, Leaf) and isinstance(b, Leaf) and {a.kind, b.kind} <= {"number", "tensor", "item"}:
            return self._numbers(a, b, name)
        are_equal = a.kind == b.kind == "object" and type(a.value) is type(b.value) and _are_equal(a.value, b.value)
        if are_equal and (is_contents or _are_one(a, b)):
            return lambda _: a.value
        return self._unmergeable(a, b, name)

    def _pick(
        self,
        one: Leaf,
        other: Leaf,
        kind: str,
        spec: TensorSpec,
        shape: tuple[int, ...],
        name: str = "a number",
        axis: int = 0,
    ) -> Build:
        self.picks.append(Pick(one, other, kind, spec, shape, axis))
        self.names.append(name)
        number = len(self.picks) - 1
        return lambda values: values[number]

    def _of_lengths(self, a: Tree, b: Tree, name: str) -> Build:
        """Two tensors of which one, or each, is as long as data decide: rows with room for the longer, and a length."""
        axis = (a if isinstance(a, Node) else b).names[0]  # pyright: ignore[reportAttributeAccessIssue]
        one, other = _rows_and_length(a, axis), _rows_and_length(b, axis)
        if one is None or other is None:
            return self._unmergeable(a, b, name)
        (rows, length), (rows_too, length_too) = one, other
        are_compatible = rows.shape[1:] == rows_too.shape[1:] and rows.spec.dtype == rows_too.spec.dtype
        grows = self._is_loop and rows_too.shape[0] > rows.shape[0] and name not in self._with_capacity
        if not are_compatible or grows:
            return self._unmergeable(a, b, name)
        capacity = rows.shape[0] if self._is_loop else max(rows.shape[0], rows_too.shape[0])
        shape = (capacity, *rows.shape[1:])
        wants = rows.spec.wants_grad or rows_too.spec.wants_grad
        spec = rows.spec._replace(strides=None, layout=None, wants_grad=wants)
        of_rows = self._pick(rows, rows_too, "rows", spec, shape, name, axis)
        of_length = self._pick(length, length_too, "tensor", _number_spec(torch.int64), (), f"the length of {name}")

        def build(values: list) -> object:
            with this_call().inside():
                return at_axis(first(of_rows(values), of_length(values)), axis)

        return build

    def _numbers(self, a: Leaf, b: Leaf, name: str) -> Build:
        if a.kind == b.kind == "number" and type(a.value) is type(b.value) and _is_same_number(a.value, b.value):
            return lambda _: a.value
        tensors = [x for x in (a, b) if x.kind == "tensor"]
        if len(tensors) == 2:
            is_compatible = a.spec.dtype == b.spec.dtype and a.spec.device == b.spec.device
            if is_compatible and self._is_loop and (axis := _longer_axis(a.shape, b.shape)) is not None:
                self.growing[name] = Growth(a, axis, b.shape[axis] - a.shape[axis], self._mismatch_text(a, b, name))
                return lambda _: UNDEFINED
            if not is_compatible or a.shape != b.shape:
                return self._unmergeable(a, b, name)
            own = {key.replace("_gradient", "grad") for x in (a, b) for key in _attributes_of_tensor(x.value)}
            if own:
                return self._unmergeable(a, b, name, f", and has attributes of its own ({', '.join(sorted(own))})")
            spec = a.spec if a.spec.strides == b.spec.strides else a.spec._replace(strides=None)
            return self._pick(a, b, "tensor", spec._replace(wants_grad=a.spec.wants_grad or b.spec.wants_grad), a.shape)
        if tensors:
            number = b if a.kind == "tensor" else a
            if tensors[0].shape != () or not _holds(tensors[0].spec.dtype, number):
                return self._unmergeable(a, b, name)
            return self._pick(a, b, "unsure", tensors[0].spec, ())
        dtypes = [x.spec.dtype if x.kind == "item" else _DTYPES[type(x.value)] for x in (a, b)]
        if dtypes[0] == dtypes[1] == torch.bool:
            return self._pick(a, b, "item", _number_spec(torch.bool), (), name)
        if torch.bool in dtypes:
            return self._unmergeable(a, b, name)
        wide = torch.promote_types(*dtypes)
        if wide.is_complex:
            return self._unmergeable(a, b, name)
        return self._pick(
            a, b, "item", _number_spec(torch.float64 if wide.is_floating_point else torch.int64), (), name
        )

    def _nodes(self, a: Node, b: Node, name: str, is_contents: bool) -> Build:
        kind = type(a.value)
        if a.kind != b.kind or type(b.value) is not kind or not _are_same_names(a.names, b.names):
            return self._unmergeable(a, b, name)
        if len(a.children) != len(b.children) or not _are_alike(a.value, b.value):
            return self._unmergeable(a, b, name)
        box: list = []
        builders: list[Build] = []
        if a.kind == "object":
            self._known[id(a), id(b)] = (lambda _: box[0] if box else None), a, b
        names = a.names or range(len(a.children))
        for x, y, at in zip(a.children, b.children, names, strict=False):
            inner = f"{name}.{at}" if a.kind == "object" else f"{name}[{at!r}]"
            builders.append(self(x, y, inner, must_be_on_both_sides=True))
        if not is_contents and a.kind != "tuple":
            for node in (a, b):
                self._parts.setdefault(id(node.value), []).append(box)
                if node.is_older:
                    self._older.append((box, node.value, f"{name} is made of two"))

        if a.kind == "tuple":
            return _building(a, builders)

        def build(values: list) -> object:
            if not box:
                if a.kind == "object":
                    is_own = not a.is_older and not b.is_older  # then nobody but the side has had it
                    box.append(a.value if is_own else made(object.__new__(kind)))
                    _set_attributes(box[0], zip(a.names, [x(values) for x in builders], strict=True))
                else:
                    new = _rebuilt(a, [x(values) for x in builders])
                    box.append(new if is_contents else made(new))
            return box[0]

        return build

    def alone(self, x: Tree, is_second: bool) -> Build:
        """The value of one side, where the other has none."""
        if x.kind == "sized":
            rows, length = x.children  # pyright: ignore[reportAttributeAccessIssue]
            alone, count, axis = self.alone(rows, is_second), self.alone(length, is_second), x.names[0]  # pyright: ignore
            return lambda values: at_axis(first(alone(values), count(values)), axis)
        if isinstance(x, Node):
            builders = [self.alone(child, is_second) for child in x.children]
            if x.is_older:
                return lambda _: x.value
            if x.kind == "tuple":
                return _building(x, builders)
            box: list = []

            def build(values: list) -> object:
                if not box:
                    if x.kind == "object":
                        box.append(x.value)
                        _set_attributes(x.value, zip(x.names, [y(values) for y in builders], strict=True))
                    else:
                        box.append(made(_rebuilt(x, [y(values) for y in builders])))
                return box[0]

            return build
        # A detached part of an older tensor is the side's own: its memory is older, and it ends with the side.
        is_fresh = not any(
            relation.is_older and number is None and relation.is_known for number, relation in x.relations
        )
        if x.kind in ("tensor", "item") and is_fresh:
            none = Leaf("undefined", UNDEFINED)
            return self._pick(*((none, x) if is_second else (x, none)), x.kind, x.spec, x.shape)
        return lambda _: x.value

    def note_pairs(self) -> None:
        """Is called when all is made: notes which objects data decide about."""
        for box, value, why in self._older:
            if box and box[0] is not value:
                pair(box[0], value, why)
                current_run().chosen.append((box[0], value, why))
        for boxes in self._parts.values():
            first = next((box[0] for box in boxes if box), None)
            for box in boxes:
                if box and box[0] is not first:
                    pair(first, box[0], "one object on one side of a condition is two on the other")


def _rows_and_length(x: Tree, axis: int) -> tuple[Leaf, Leaf] | None:
    """The rows of a tensor along a dimension, and how many there are; None of what has none."""
    if isinstance(x, Node):
        rows, length = x.children if x.kind == "sized" and x.names == (axis,) else (None, None)
        return None if rows is None or length is None else (rows, length)
    if x.kind != "tensor" or len(x.shape) <= axis:
        return None
    shape = (x.shape[axis], *x.shape[:axis], *x.shape[axis + 1 :])
    return x._replace(kind="plain", shape=shape), Leaf("number", x.shape[axis])


def _set_attributes(value: object, attributes: Iterable[tuple[str, object]]) -> None:
    names = dict_of(value)
    for name, x in attributes:
        slot = next((vars(kind)[name] for kind in type(value).__mro__ if name in vars(kind)), None)
        if isinstance(slot, types.MemberDescriptorType):
            slot.__set__(value, x)
        else:
            names[name] = x  # pyright: ignore[reportOptionalSubscript]


def _rebuilt(node: Node, children: list) -> object:
    kind = type(node.value)
    if node.kind == "list":
        return children
    if node.kind == "set":
        return set(node.value)
    if node.kind == "deque":
        return collections.deque(children, node.value.maxlen)
    if node.kind == "dict":
        new = node.value.copy()
        new.update(zip(node.names, children, strict=True))
        return new
    if hasattr(kind, "_make"):
        return kind._make(children)  # pyright: ignore[reportAttributeAccessIssue]
    return tuple(children) if kind is tuple else tuple.__new__(kind, children)


_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def _number_spec(dtype: torch.dtype) -> TensorSpec:
    return TensorSpec(dtype, None, None, torch.device("cpu"), False)


def bool_spec() -> TensorSpec:
    return _number_spec(torch.bool)


def _holds(dtype: torch.dtype, number: Leaf) -> bool:
    """True if a tensor of a dtype may stand for a number."""
    other = number.spec.dtype if number.kind == "item" else _DTYPES[type(number.value)]
    return torch.can_cast(other, dtype) and (other == torch.bool) == (dtype == torch.bool)


def _is_same_number(one: object, other: object) -> bool:
    """True of numbers of one type that no code tells apart: 0.0 and -0.0 are equal, and two."""
    return one == other if isinstance(one, int) else repr(one) == repr(other)


def _are_alike(one: object, other: Any) -> bool:
    """True of two containers of one class if nothing but what is in them tells them apart."""
    if isinstance(one, collections.deque):
        return one.maxlen == other.maxlen
    if isinstance(one, collections.defaultdict):
        return one.default_factory is other.default_factory
    return not isinstance(one, tuple) or not (dict_of(one) or dict_of(other))  # attributes of a subclass


def _are_one(one: Tree, other: Tree) -> bool:
    """True of arrays if nobody can tell which one it is: both are the sides' own, or in one place of memory."""
    if isinstance(one, Leaf) and isinstance(other, Leaf) and (one.is_shared or other.is_shared):
        return one.value.__array_interface__ == other.value.__array_interface__
    return True


def _are_equal(one: object, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, (slice, range)):
        pairs = [(getattr(one, name), getattr(other, name)) for name in ("start", "stop", "step")]
        return all(type(x) is type(y) and x == y for x, y in pairs)
    if isinstance(one, frozenset):
        return {(type(x), x) for x in one} == {(type(x), x) for x in other}
    return isinstance(one, _COMPARED_BY_VALUE) and one == other


def _are_same_names(one: tuple, other: tuple) -> bool:
    """True if two dictionaries have the same keys in one order."""
    if len(one) != len(other):
        return False
    pairs = zip(one, other, strict=True)
    return all(x is y or (type(x) is type(y) and not isinstance(x, torch.Tensor) and x == y) for x, y in pairs)


def _attributes_of_tensor(value: object) -> set[str]:
    return value.attributes.keys() - {"_restriction"} if isinstance(value, Torchish) else set()


def _text(x: Tree) -> str:
    if x.kind == "undefined":
        return "not there"
    if x.kind == "set":
        return f"the set {x.value!r}"[:60]
    if isinstance(x, Node):
        return f"a {type(x.value).__name__}" + ("" if x.kind == "object" else f" of length {len(x.children)}")
    if x.kind in ("tensor", "item"):
        return f"{str(x.spec.dtype).removeprefix('torch.')}{list(x.shape)}"
    if isinstance(x.value, (torch.nn.Module, types.FunctionType)):
        return f"a {type(x.value).__name__}"
    try:
        return repr(x.value)[:60]
    except Exception:  # of the user's class
        return f"a {type(x.value).__name__}"
