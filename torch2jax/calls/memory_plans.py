"""Plans of operators on memory: views, in-place writes, and writes to a part of a tensor.

How a view comes about, its shape and its strides depend on those of its base and on the other arguments; where it is
in memory besides on where its base is. So a plan has the way from the base's node to the view's, and how far they are
apart.
Whether a tensor may be written to depends on more than metadata, and is asked before each write. Until it is done,
nothing has changed, and the long way may serve instead.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import torch
from jax import lax

from ..internals.dispatch import DisableTorchDispatch, DisableTorchFunction, jit_get_schemas_for_operator
from ..internals.transforms import is_fwd_grad_enabled
from ..rules.inplace import InPlace
from ..rules.options import Tag
from ..rules.plan import NOT_PLANNED, ArrayPlan, Bypass, Meant, plan_of
from ..tensors.array_buffer import ArrayBuffer
from ..tensors.dtypes import canonical, number_in_dtype
from ..tensors.journal import journal
from ..tensors.storage import Storage, View
from ..tensors.tensor import Torchish, make_view_of_shape
from ..tensors.traced import is_traced

if TYPE_CHECKING:
    from .dispatch import Call

_Tensor = torch.Tensor
_BY_MEMORY = frozenset(("as_strided",))  # they depend on what else there is in memory
_FEW = 4096  # elements that a plan may keep
_takes_tangents = is_fwd_grad_enabled


@functools.cache
def is_view(function: Callable[..., object]) -> bool:
    """Returns True if a function of one tensor and constants returns that tensor, a view of it, or a new one."""
    if function is _Tensor.__getitem__:
        return True
    name: Any = getattr(function, "__name__", "")
    if name == "__get__":
        name = {"T": "numpy_T"}.get(function.__self__.__name__, function.__self__.__name__)
    if name in _BY_MEMORY or name.startswith("_"):
        return False
    schemas = jit_get_schemas_for_operator(f"aten::{name}")
    return bool(schemas) and all(map(_gives_view, schemas))


def _gives_view(schema: Any) -> bool:
    """Returns True if an operator returns one tensor, perhaps a view of its first argument, and writes to nothing."""
    if not schema.arguments or len(schema.returns) != 1 or str(schema.returns[0].type) != "Tensor":
        return False
    taken, given = schema.arguments[0].alias_info, schema.returns[0].alias_info
    return taken is not None and given is not None and not taken.is_write


class ViewPlan:
    """The plan of a view: the views that it consists of, or the tensor itself.

    Args:
        steps: the kind and the place of each view on the way, the innermost first; places have offsets from the base's.
        shift: how far the view begins behind its base.
    """

    rule = None
    __slots__ = ("_dtype", "_is_itself", "_shift", "_steps", "_strides", "shape")

    def __init__(
        self,
        steps: tuple,
        shape: Sequence[int],
        dtype: torch.dtype,
        strides: Sequence[int],
        shift: int,
        *,
        is_itself: bool = False,
    ):
        self._steps, self.shape, self._dtype, self._strides = steps, shape, dtype, strides
        self._shift, self._is_itself = shift, is_itself

    def run(self, call: "Call", args: tuple, kwargs: dict | None, tensors: list, arrays: list, is_eager: bool) -> Any:
        """The view of the one tensor among the arguments."""
        del args, kwargs, arrays, is_eager
        if call.transformations:
            return NOT_PLANNED
        base = tensors[0]
        return base if self._is_itself else self.of(base)

    def of(self, base: Torchish) -> Torchish:
        start = int(base.storage_offset())
        return make_view_of_shape(
            base, self.node_of(base, start), self.shape, self._dtype, self._strides, start + self._shift
        )

    def node_of(self, base: Torchish, start: int):
        """The node of the view, for a base that begins at `start`."""
        node = base._node
        for kind, region in self._steps:
            node = View(node, kind)
            node.region = region if start == 0 else region._replace(offset=region.offset + start)
        return node

    def written(self, array: jax.Array, value: object):
        """The base's array, once a value has been written to the view."""
        arrays = [array]
        for kind, _ in self._steps[:-1]:
            arrays.append(kind.read(arrays[-1]))
        for kind, _ in reversed(self._steps):
            value = kind.write(arrays.pop(), value)
        return value


def view_plan_of(base: Torchish, view: Torchish) -> ViewPlan:
    """The plan that makes a given view of a base.

    Raises:
        Bypass: it is none, or more than that.
    """
    with DisableTorchFunction(), DisableTorchDispatch():
        dtype = base.dtype
        if view is base:
            return ViewPlan((), base.shape, dtype, base.stride(), 0, is_itself=True)
        if type(view) is not Torchish or view.dtype != dtype or dtype.is_complex:
            raise Bypass("no view, or one of another dtype")
        start, steps, node = int(base.storage_offset()), [], view._node
        while node is not base._node:
            if type(node) is not View or node.kind.traced or node.region is None:
                raise Bypass("no view, or one of another kind")
            steps.append((node.kind, node.region._replace(offset=node.region.offset - start)))
            node = node.parent
        plan = ViewPlan(tuple(steps[::-1]), view.shape, dtype, view.stride(), int(view.storage_offset()) - start)
        if not _are_same(view, plan.of(base)):
            raise Bypass("more than a view")
        return plan


def _are_same(view: Torchish, other: Torchish) -> bool:
    """Returns True if two views of one tensor are equal in all but their nodes."""
    mine, others = ({**vars(x), "_node": None} for x in (view, other))
    if mine.keys() != others.keys():
        return False
    return all(x is others[key] or (not isinstance(x, _Tensor) and x == others[key]) for key, x in mine.items())


def _is_open(call: "Call", target: Torchish, is_eager: bool) -> bool:
    """Returns True if a write to a tensor concerns nothing else: outside tensors, gradients, modes or
    transformations.
    """
    storage = target._node.storage
    memory = storage.memory
    if memory.foreign or memory.is_inference or target._node.overlaps or call.transformations or not _takes_tangents():
        return False
    if not torch.is_grad_enabled():
        return is_eager and not storage.differentiable
    viewed = target._viewed
    return target._restriction is None and (not isinstance(viewed, Torchish) or viewed._node.storage.history is None)


class WritePlan:
    """An operator in place: ``x.add_(y)``.

    Args:
        plan: of the operator that gives what is written.
    """

    __slots__ = ("_plan", "rule")

    def __init__(self, plan: ArrayPlan, rule: InPlace):
        self._plan, self.rule = plan, rule

    def run(self, call: "Call", args: tuple, kwargs: dict | None, tensors: list, arrays: list, is_eager: bool) -> Any:
        """Writes to the first argument and returns it."""
        target = args[0]
        memory = target._node.storage.memory
        for tensor in tensors:
            if tensor is not target and tensor._node.storage.memory is memory:
                return NOT_PLANNED
        if not _is_open(call, target, is_eager):
            return NOT_PLANNED
        buffer = self._plan.buffer(args, kwargs, tensors, arrays, is_eager, target.dtype)
        if buffer is None or buffer.shape != target.shape or not (is_eager or is_traced(buffer.array)):
            return NOT_PLANNED
        target._node.write(buffer, None)
        if self._plan.is_constant:
            memory.is_constant = True
        target._writes[0] += 1
        return target


def write_plan_of(meant: Meant) -> WritePlan:
    """The plan of a call that writes the result of a rule to its first argument.

    Raises:
        Bypass: it is none, or has none.
    """
    rule = meant.rule
    if Tag.WRITES_BY_INDEX in rule.tags or type(meant.args[0]) is not Torchish:
        raise Bypass("a write by index, or to no tensor")
    plan = plan_of(meant._replace(rule=rule.rule))
    if plan.requires_grad:
        raise Bypass("a write with gradients")
    return WritePlan(plan, rule)


class _PartWrite:
    """A number or a tensor that is written to a part of a tensor: ``x[0] = 1.0``.

    Args:
        view: of the part.
        array: what is written; None for the last argument's values.
    """

    rule = None
    __slots__ = ("_array", "_view")

    def __init__(self, view: ViewPlan, array: object):
        self._view, self._array = view, array

    def run(self, call: "Call", args: tuple, kwargs: dict | None, tensors: list, arrays: list, is_eager: bool) -> Any:
        """Nothing, once it has been written."""
        del kwargs, arrays
        target, array = args[0], self._array
        if not is_eager or not _is_open(call, target, is_eager):
            return NOT_PLANNED
        if array is None:
            value = tensors[1]
            if value._node.storage.memory is target._node.storage.memory:
                return NOT_PLANNED
            array = value.read()
        storage = target._node
        memory = storage.memory if type(storage) is Storage else storage.storage.memory
        is_constant = memory.is_constant and (self._array is not None or tensors[1]._node.storage.memory.is_constant)
        if type(storage) is Storage and journal() is None:
            storage.receive(ArrayBuffer(self._view.written(storage.read(), array), None))
        else:
            self._view.node_of(target, int(target.storage_offset())).write(ArrayBuffer(array, None), None)
        if is_constant:
            memory.is_constant = True
        target._writes[0] += 1
        return None


class _TracedPartWrite:
    """As `_PartWrite`, for a number in a graph, or a traced tensor of the part's shape and dtype.

    Args:
        view: of the part.
        number: in the array's dtype; None for the last argument's values.
    """

    rule = None
    __slots__ = ("_number", "_view")

    def __init__(self, view: ViewPlan, number: np.ndarray | None):
        self._view, self._number = view, number

    def run(self, call: "Call", args: tuple, kwargs: dict | None, tensors: list, arrays: list, is_eager: bool) -> Any:
        """Nothing, once it has been written."""
        del kwargs, arrays
        target, number = args[0], self._number
        if is_eager or target._node.known is not None or not _is_open(call, target, is_eager):
            return NOT_PLANNED
        if number is not None:
            array = lax.full(tuple(self._view.shape), number, number.dtype)
        else:
            node = tensors[1]._node
            if node.storage.memory is target._node.storage.memory or node.known is not None:
                return NOT_PLANNED
            array = node.read()
        self._view.node_of(target, int(target.storage_offset())).write(ArrayBuffer(array, None), None)
        target._writes[0] += 1
        return None


def traced_part_write_of(base: Torchish, view: Torchish, value: object) -> _TracedPartWrite:
    """As `part_write_of`, for a write in a graph.

    Raises:
        Bypass: there is none.
    """
    plan = _written_view(base, view, value)
    if type(value) is Torchish:
        return _TracedPartWrite(plan, None)
    if type(value) is complex or not view.ndim:  # one element is a constant of the graph
        raise Bypass("a complex number, or one element, that is written in a graph")
    if view.numel() >= base.numel():  # the values are known then
        raise Bypass("a number that is written everywhere")
    return _TracedPartWrite(plan, number_in_dtype(value, canonical(base.dtype)))


def part_write_of(base: Torchish, view: Torchish, value: object) -> _PartWrite:
    """The plan of a write to a view of a tensor, after it has been done.

    Raises:
        Bypass: there is none.
    """
    plan = _written_view(base, view, value)
    with DisableTorchFunction():
        if type(value) is Torchish:
            return _PartWrite(plan, None)
        if view.numel() > _FEW:
            raise Bypass("a number that is written to many elements")
        return _PartWrite(plan, view.read())


def _written_view(base: Torchish, view: Torchish, value: object) -> ViewPlan:
    """The plan of the view that is written to, by a value of its form, or by a number."""
    if any(type(x) is Torchish and x._node.storage.history is not None for x in (base, value)):
        raise Bypass("a write with gradients")
    plan = view_plan_of(base, view)
    with DisableTorchFunction():
        if view._node.overlaps:
            raise Bypass("a write to what overlaps itself")
        if type(value) is Torchish and (value.dtype != base.dtype or value.shape != view.shape):
            raise Bypass("a write of another dtype or shape")
    return plan
