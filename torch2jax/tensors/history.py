"""The history of a tensor, as PyTorch's autograd reports it: `requires_grad`, `is_leaf`, `grad_fn`.

The derivatives themselves are JAX's. This says which tensors are connected, also where the derivative is zero.
"""

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Set
from typing import Any, NamedTuple

import torch
from torch.autograd import graph
from torch.utils.hooks import RemovableHandle

from ..runtime.errors.unwinding import Restart
from ..runtime.translation import this_call

_numbers = itertools.count()


def next_node() -> int:
    """The number of the next node: larger than those of all existing nodes."""
    return next(_numbers)


# What the derivatives of operations depend on. Rules that are tagged so are noted here, by their names.
LINEAR = {"CopySlices", "Clone", "ToCopy", "View"}
"""Operations that are linear in all they take: their derivatives depend on nothing."""
PRODUCTS: set[str] = set()
"""Operations that are linear in each operand: a derivative depends on the other operands."""
QUOTIENTS: set[str] = set()
"""Operations that are linear in the first operand: that derivative depends on the others, the other ones on all."""


def _on_demand(slot: str, make: Callable[[], object]) -> Any:
    """A property whose value is made at the first access: each parameter has a node, and hardly one has hooks."""

    def found(node: object) -> Any:
        value = getattr(node, slot)
        if value is None:
            value = make()
            setattr(node, slot, value)
        return value

    return property(found)


class Node(graph.Node):
    """A node of the autograd graph (`Tensor.grad_fn`): an operation with operands that require grad.

    Args:
        operation: what PyTorch calls it.
        inputs: the histories of its operands; None for those that require no grad.
    """

    __slots__ = (
        *("_leaves", "_metadata", "_number", "_operation", "_posthooks", "_prehooks", "end", "hooked", "inputs"),
        *("operands", "refusal", "undefined"),
    )

    def __init__(self, operation: str, inputs: Iterable["Node | None"] = ()):
        self._operation = operation
        self._number = next(_numbers)
        self.inputs = tuple(inputs)
        self._leaves = [x.variable for x in self.inputs if isinstance(x, Source)]  # which gradients are added to
        self.end: Any = None  # what the operation gave, to a tape; see `transforms.tape.HistoryEnd`
        self.operands: list | None = None  # and what it was computed from, None for what requires no grad
        self.hooked: object = None  # the hooks on the gradient where a history begins; see `transforms.tape.Hooked`
        self.refusal: str | None = None  # the error that its backward is
        self.undefined: Set[int] = frozenset()  # the inputs that its backward gave no gradient for
        self._metadata = self._prehooks = self._posthooks = None

    is_from_afar = False
    """True if nobody knows which tensors the operation took: a condition or a loop, say."""
    is_given = False
    """True if a tensor requires grad because JAX differentiates it: to JAX, an argument is not the user's tensor."""

    metadata = _on_demand("_metadata", dict)
    prehooks = _on_demand("_prehooks", OrderedDict)
    posthooks = _on_demand("_posthooks", OrderedDict)

    def name(self) -> str:
        return f"{self._operation}Backward0"

    def begins_at(self, part: object) -> bool:
        """Returns True if this is the history of the leaf on that part of memory."""
        del part
        return False

    def refuses(self, ends: set[int]) -> bool:
        """Returns True if a backward pass through this node, on its way to the nodes of these ids, is an error."""
        return self.refusal is not None and (not ends or bool(reaches(self.inputs, ends)))

    def refuse(self) -> None:
        """Raises that error."""
        raise RuntimeError(self.refusal)

    def uses(self, position: int, other: int) -> bool:
        """Returns True if the derivative with respect to input `position` depends on input `other`."""
        if self._operation in PRODUCTS or (self._operation in QUOTIENTS and position == 0):
            return position != other
        return self._operation not in LINEAR

    def __repr__(self) -> str:
        return f"<{self.name()}>"

    @property
    def next_functions(self) -> tuple:
        ends = self.operands or [None] * len(self.inputs)
        numbers = [
            0 if node is None or end is None else node.number_of(end)
            for node, end in zip(self.inputs, ends, strict=True)
        ]
        return tuple(zip(self.inputs, numbers, strict=True))

    def number_of(self, end: object) -> int:
        """The index of the result that `end` is."""
        del end  # this has one
        return 0

    def end_of(self, number: int) -> Any:
        """The end of a result."""
        return self.end if number == 0 else None

    def _sequence_nr(self) -> int:
        return self._number

    @property
    def _input_metadata(self) -> list[object]:
        return [] if self.end is None else [self.end]

    def _register_hook_dict(self, tensor: torch.Tensor) -> None:
        del tensor  # hooks of tensors are told of by the tape

    def __call__(self, *gradients: torch.Tensor | None):
        raise NotImplementedError(
            f"{self.name()} cannot be called; wanted torch.autograd.grad(tensor, operands, gradient)"
        )

    def register_prehook(self, hook: Callable) -> RemovableHandle:
        """Calls ``hook(grad_outputs)`` before the backward of this operation."""
        this_call().execution.expect_hook(hook)
        self._show()
        return added(self.prehooks, hook)

    def register_hook(self, hook: Callable) -> RemovableHandle:
        """Calls ``hook(grad_inputs, grad_outputs)`` after the backward of this operation.

        Raises:
            NotImplementedError: it is no leaf's, and not that of a `torch.autograd.Function`.
        """
        del hook
        raise NotImplementedError(
            f"{self.name()} cannot call a hook on the gradients of its inputs; wanted a hook on a tensor "
            "(Tensor.register_hook), grad_fn.register_prehook, or Module.register_full_backward_hook in place of "
            "register_backward_hook"
        )

    def _show(self) -> None:
        """Tells the tape that this node has hooks."""
        tape = this_call().tape
        if self.end is not None and tape is not None:
            tape.show(self)


def added(hooks: OrderedDict, hook: Callable) -> RemovableHandle:
    this_call().execution.code.note_made(hooks)
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


class Saved(Node):
    """The node of a tensor that a custom function's backward gets for a saved one that required grad."""

    __slots__ = ()


class FromAfar(Node):
    """The node of a transformation's result, such as a loop's: nobody knows which tensors it was computed from."""

    __slots__ = ()
    is_from_afar = True


class GradientPart(NamedTuple):
    """A tensor that requires grad as a part of another one."""

    full: Any
    """The tensor that it is of."""
    gradient: Callable[[torch.Tensor], torch.Tensor]
    """Returns the gradient of the whole for one of the part."""


class Source(Node):
    """The node of a leaf: a tensor that requires grad by itself.

    Args:
        variable: that tensor.
        is_given: see `Node.is_given`.
    """

    __slots__ = ("_accumulated", "_parts", "_variable", "is_given", "part", "stale", "variables")

    def __init__(self, variable: torch.Tensor, is_given: bool = False):
        super().__init__("AccumulateGrad")
        self._variable = weakref.ref(variable)  # which has this
        self.is_given = is_given
        self.variables: tuple = ()  # those of its array on a tape, one for each level
        self.part: GradientPart | None = None
        self.stale: torch.Tensor | None = None  # what it stands for, if PyTorch has computed that before the call
        self._accumulated = self._parts = None

    accumulated = _on_demand("_accumulated", OrderedDict)
    """Hooks for when a gradient has been added."""

    parts: "weakref.WeakValueDictionary[int, Any]" = _on_demand("_parts", weakref.WeakValueDictionary)
    """The tensors whose gradients are parts of the leaf's, by number, in order."""

    @property
    def has_parts(self) -> bool:
        """True if parts of the leaf may require grad."""
        return self._parts is not None

    @property
    def is_hooked(self) -> bool:
        """True if there may be hooks that run when a gradient is accumulated."""
        return not (self._accumulated is self._prehooks is self._posthooks is None)

    @property
    def variable(self) -> Any:
        """The tensor; None if neither code nor a graph refers to it any more."""
        return self._variable()

    @variable.setter
    def variable(self, variable: torch.Tensor) -> None:
        self._variable = weakref.ref(variable)

    def name(self) -> str:
        return "torch::autograd::AccumulateGrad"

    def begins_at(self, part: object) -> bool:
        return self.variable is not None and self.variable._node is part

    def register_hook(self, hook: Callable) -> RemovableHandle:
        """Calls ``hook((), (gradient,))`` after the gradient has been added."""
        this_call().execution.expect_hook(hook)
        return added(self.posthooks, hook)

    def _show(self) -> None:
        pass  # its hooks are called where gradients are added


class _Unrecorded(Node):
    """The node of all tensors that require grad while there is no tape."""

    __slots__ = ()

    @property
    def next_functions(self) -> tuple:
        raise Restart(tape=1)

    def _sequence_nr(self) -> int:
        raise Restart(tape=1)

    def register_hook(self, hook: Callable) -> RemovableHandle:
        this_call().execution.expect_hook(hook)
        raise Restart(tape=1)

    register_prehook = register_hook


UNRECORDED = _Unrecorded("Unrecorded")


def reaches(ends: Iterable[Node | None], wanted: set[int]) -> set[int]:
    """The ids of those `wanted` nodes that lead to some nodes."""
    return wanted.intersection(_leading_to(ends))


def leads_through_older(ends: Iterable[Node | None], wanted: set[int], number: int) -> bool:
    """Returns True if an operation older than `number` is on a path from `ends` to the nodes with ids `wanted`."""
    older = [x for x in _leading_to(ends).values() if x._number < number and not isinstance(x, Source)]
    return bool(older) and (any(x.is_from_afar for x in older) or bool(reaches(older, wanted)))


def used_in_derivatives(ends: Iterable[Node | None], wanted: list[Node | None]) -> list[list[Node]]:
    """For each node of `wanted`: the nodes that the derivatives of `ends` with respect to it depend on."""
    leading: dict[int, int] = {}  # to a node: the bits of those wanted
    for i, node in enumerate(wanted):
        leading[id(node)] = leading.get(id(node), 0) | 1 << i
    used: dict[int, tuple[Node, int]] = {}
    for node in _inputs_first(ends):
        if node.is_from_afar:  # it may come from any of them, in any way
            leading[id(node)] = everything = (1 << len(wanted)) - 1
            used[id(node)] = node, everything
        for position, x in enumerate(node.inputs):
            bits = 0 if x is None or position in node.undefined else leading.get(id(x), 0)
            if bits:
                leading[id(node)] = leading.get(id(node), 0) | bits
                for i, other in enumerate(node.inputs):
                    if other is not None and node.uses(position, i):
                        used[id(other)] = other, used.get(id(other), (other, 0))[1] | bits
    return [[node for node, bits in used.values() if bits >> i & 1] for i in range(len(wanted))]


def _inputs_first(ends: Iterable[Node | None]) -> list[Node]:
    found: dict[int, Node] = {}
    pending = [(node, False) for node in ends if node is not None]
    while pending:
        node, is_last = pending.pop()
        if is_last:
            found.setdefault(id(node), node)
        elif id(node) not in found:
            pending.append((node, True))
            pending.extend((x, False) for x in node.inputs if x is not None and id(x) not in found)
    return list(found.values())


def used_beside(ends: Iterable[Node | None], wanted: Node, operation: str) -> bool:
    """Returns True if `ends` depend on `wanted` in another way than through an operation of that name."""
    ends = list(ends)
    if any(end is wanted for end in ends):
        return True
    return any(
        node._operation != operation and any(x is wanted for x in node.inputs) for node in _leading_to(ends).values()
    )


def made_beside(ends: Iterable[Node | None], wanted: Node) -> bool:
    """Returns True if another node that `ends` depend on is the same operation on the same inputs as `wanted`."""
    return any(
        node is not wanted and node._operation == wanted._operation and list(node.inputs) == list(wanted.inputs)
        for node in _leading_to(ends).values()
    )


def refusing_between(starts: Iterable[Node | None], ends: set[int]) -> Node | None:
    """The node whose error a backward pass comes upon.

    Args:
        starts: what is differentiated.
        ends: the ids of what it is differentiated with respect to; empty for all that leads there.
    """
    return next((node for node in _leading_to(starts).values() if node.refuses(ends)), None)


def sources_among(ends: Iterable[Node | None]) -> list[Source]:
    """The leaves that lead to some nodes."""
    return [node for node in _leading_to(ends).values() if isinstance(node, Source)]


def _leading_to(ends: Iterable[Node | None]) -> dict[int, Node]:
    found: dict[int, Node] = {}
    pending = [node for node in ends if node is not None]
    while pending:
        node = pending.pop()
        if id(node) not in found:
            found[id(node)] = node
            pending.extend(x for i, x in enumerate(node.inputs) if x is not None and i not in node.undefined)
    return found
