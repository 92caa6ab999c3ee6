"""The backward passes in progress, as PyTorch reports them."""

import itertools
from collections.abc import Callable
from typing import Any

import torch

from ..internals.gradients import autograd_module
from ..patches import exchange, stands_in
from ..tensors.history import Node, Source, reaches
from ..tensors.tensor import Torchish
from .call import current, this_call

__all__ = ["BackwardPass"]

_numbers = itertools.count()


class BackwardPass:
    """A backward pass, while it is under way.

    Args:
        starts: the histories of what is differentiated.
        ends: the ids of those that it is differentiated with respect to; empty for all that lead to it.
        accumulates: whether gradients are added to `Tensor.grad`.
        keeps: whether the graph may be used again.
    """

    def __init__(self, starts: list[Node | None], ends: set[int], accumulates: bool, keeps: bool):
        self.number = next(_numbers)
        self.accumulates, self.keeps = accumulates, keeps
        self.callbacks: list[Callable[[], Any]] = []
        self._starts, self.ends = starts, ends

    def __enter__(self) -> "BackwardPass":
        this_call().passes.append(self)
        return self

    def __exit__(self, *exc_info: object):
        this_call().passes.pop()

    def comes_by(self, node: Node) -> bool:
        """Whether a node is on the way."""
        if not reaches(self._starts, {id(node)}):
            return False
        return not self.ends or id(node) in self.ends or bool(reaches([node], self.ends))

    def call_back(self) -> None:
        """Calls what is to be called at the end, and what that adds."""
        for callback in self.callbacks:
            callback()


def _passes() -> list[BackwardPass]:
    return this_call().passes


@stands_in(torch._C, "_current_graph_task_id")
def _current_pass() -> int:
    """A number for the backward pass under way, -1 without one."""
    return _passes()[-1].number if _passes() else -1


@stands_in(autograd_module, "_get_current_graph_task_keep_graph")
def _keeps_graph() -> bool:
    """Whether the graph may be used again after the backward pass under way; true without one."""
    return _passes()[-1].keeps if _passes() else True


@stands_in(torch._C, "_will_engine_execute_node")
def _is_on_the_way(node: object) -> bool:
    """Whether a node is among those that the backward pass under way comes by."""
    variable = None if isinstance(node, Node) else getattr(node, "variable", None)
    if variable is not None:  # of a tensor from outside, whose hooks are those of what stands for it
        tensor = this_call().constants.standing_for(variable)
        if not isinstance(tensor, Torchish):
            return False
        node = tensor.history
    if not isinstance(node, Node):
        raise RuntimeError(f"_will_engine_execute_node expects an grad_fn, but got {type(node).__name__}")
    if not _passes():
        raise RuntimeError("_get_should_execute_nodes should only be called during the backward pass")
    if isinstance(node, Source) and not _passes()[-1].accumulates:
        raise RuntimeError(
            "A leaf node was passed to _will_engine_execute_node but we are currently running autograd.grad(). This is "
            "currently not supported."
        )
    return _passes()[-1].comes_by(node)


class _Engine:
    """What ``Variable._execution_engine`` offers to code in PyTorch style."""

    def __init__(self, original: Any):
        self._original = original

    def __getattr__(self, name: str):
        return getattr(self._original, name)

    def queue_callback(self, callback: Callable[[], Any]) -> None:
        """Calls `callback` when the backward pass under way has ended."""
        if current() is None:
            self._original.queue_callback(callback)
        elif not _passes():
            raise RuntimeError("Final callbacks can only be installed during backward pass.")
        else:
            _passes()[-1].callbacks.append(callback)


exchange(torch.autograd.Variable, "_execution_engine", _Engine(torch.autograd.Variable._execution_engine))
