"""`.backward()` and `torch.autograd.grad`, below PyTorch's checks of their arguments: gradients from the tape.

Also here: the backward passes in progress, as PyTorch reports them.
"""

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch.autograd import graph

from ..runtime.errors.locations import user_level
from ..runtime.errors.unwinding import Restart
from ..runtime.patches import exchange, replaces
from ..runtime.translation import current, lift, this_call
from ..tensors.history import Node, Saved, Source, reaches, refusing_between
from ..tensors.journal import expect_no_journal
from ..tensors.tensor import Torchish
from ..tensors.wrapped import NestedTensor, like, values_of
from ..tracing.traces import expect_unrecorded
from ..tracing.user_code import of_user
from .backward import BackwardOfTensors, add, is_source, joined, replaced, with_parts
from .inputs import requires_grad
from .tape import Tape, recorded

_numbers = itertools.count()


class BackwardPass:
    """A backward pass, while it is under way.

    Args:
        starts: the histories of what is differentiated.
        ends: the ids of those that it is differentiated with respect to; empty for all that lead to it.
        accumulates: whether gradients are added to `Tensor.grad`.
    """

    def __init__(self, starts: list[Node | None], ends: set[int], accumulates: bool):
        self.number = next(_numbers)
        self.accumulates = accumulates
        self.callbacks: list[Callable[[], object]] = []
        self._starts, self.ends = starts, ends

    def __enter__(self) -> "BackwardPass":
        this_call().passes.append(self)
        return self

    def __exit__(self, *exc_info: object):
        this_call().passes.pop()

    def comes_by(self, node: Node) -> bool:
        """Returns True if a node is on a path of the backward pass."""
        if not reaches(self._starts, {id(node)}):
            return False
        return not self.ends or id(node) in self.ends or bool(reaches([node], self.ends))

    def call_back(self) -> None:
        """Runs the callbacks of the end, and those that they add."""
        for callback in self.callbacks:
            callback()


def _passes() -> list[BackwardPass]:
    return this_call().passes


@replaces(torch._C, "_current_graph_task_id")
def _current_pass() -> int:
    """A number for the backward pass under way, -1 without one."""
    return _passes()[-1].number if _passes() else -1


@replaces(torch._C, "_will_engine_execute_node")
def _is_on_the_way(node: object) -> bool:
    """Returns True if the backward pass under way runs a node."""
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
    """The methods of ``Variable._execution_engine`` that Python code calls."""

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


_SAVED = (
    "within a backward, got a tensor that ctx has saved, to differentiate with respect to, but what is differentiated "
    "does not use it. It may use the tensor that was saved, as a module's own parameter, which is another one here; "
    "wanted code that computes with the saved tensors (torch.func.functional_call for a module)"
)
_CYCLE = (
    "Using backward() with create_graph=True will create a reference cycle between the parameter and its gradient "
    "which can cause a memory leak. We recommend using autograd.grad when creating the graph to avoid this. If you "
    "have to use this function, make sure to reset the .grad fields of your parameters to None after use to break the "
    "cycle and avoid the leak."
)


@replaces(torch.autograd, "_engine_run_backward")
@replaces(graph, "_engine_run_backward")
def run_backward(
    t_outputs: Sequence[torch.Tensor | graph.GradientEdge],
    grad_tensors: Sequence[torch.Tensor | None],
    retain_graph: bool,
    create_graph: bool,
    inputs: Sequence[torch.Tensor] = (),
    allow_unreachable: bool = True,
    accumulate_grad: bool = True,
):
    """Runs a backward pass, as PyTorch's engine does.

    Args:
        t_outputs: tensors to differentiate.
        grad_tensors: the gradient of each, of its shape; None for one.
        retain_graph: whether the graph may be used again.
        create_graph: whether the gradients are differentiable.
        inputs: with respect to what; without, all tensors that require grad by themselves.
        allow_unreachable: whether gradients of inputs that do not lead to the outputs are None.
        accumulate_grad: whether gradients are added to `Tensor.grad` instead of given back.

    Raises:
        RuntimeError: an output or input requires no grad; an input is not used; or the graph was used before.
    """
    call = this_call()
    expect_unrecorded("a backward pass")
    if call.tape is None:
        raise Restart(tape=1)
    outputs, wanted = [_tensor_of(x) for x in t_outputs], [_tensor_of(x) for x in inputs]
    gradients = [None if x is None else lift(values_of(x)) for x in grad_tensors]
    _check(outputs, wanted)
    tape = _tape_of(outputs)
    wanted = with_parts(wanted)
    ends = {id(x.history) for x in wanted}
    wanted = wanted or tape.sources_of(outputs)
    refusing = refusing_between([x.history for x in outputs], ends) if tape.refuses else None
    if refusing is not None:
        refusing.refuse()
    if accumulate_grad:
        for tensor in wanted if inputs else []:
            retain(tensor)
        if create_graph:
            warnings.warn(_CYCLE, UserWarning, stacklevel=user_level())
    with BackwardPass([x.history for x in outputs], ends, accumulate_grad) as under_way:

        def differentiate(number: int) -> tuple:
            return BackwardOfTensors(tape, number, outputs, gradients, retain_graph, create_graph).gradients(wanted)

        found = tape.at_first(differentiate)
        if any(x is None and isinstance(tensor.history, Saved) for x, tensor in zip(found, wanted, strict=True)):
            raise RuntimeError(_SAVED)
        if any(isinstance(x.history, Source) and x.history.part is not None for x in wanted):
            with torch.set_grad_enabled(create_graph):
                wanted, found = joined(wanted, found)
        if accumulate_grad:
            for tensor, gradient in zip(wanted, found, strict=True):
                if gradient is not None and is_source(tensor):
                    accumulate(tensor, cast(Source, tensor.history), gradient, create_graph)
        under_way.call_back()
    if accumulate_grad:
        return ()
    if not allow_unreachable and any(gradient is None for gradient in found):
        raise RuntimeError(
            "One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True if "
            "this is the desired behavior."
        )
    return tuple(
        like(x, gradient) if type(x) is NestedTensor and gradient is not None else gradient
        for x, gradient in zip(inputs, found, strict=True)
    )


def _tensor_of(value: torch.Tensor | graph.GradientEdge) -> Torchish:
    """The tensor at an end of the graph, which may be given by its edge there."""
    if not isinstance(value, graph.GradientEdge):
        return lift(values_of(value))
    node: Any = value.node
    tensor = node.variable if isinstance(node, Source) else None
    if tensor is not None and tensor.history is node:
        return tensor
    end = node.end_of(value.output_nr)
    if end is not None and end.tangents:
        return recorded().tensor_at(end, node)
    if tensor is None:
        raise NotImplementedError(
            "got an edge of the graph that belongs to no tensor of this call; wanted the tensor itself"
        )
    return tensor


def _check(outputs: list[Torchish], inputs: list[Torchish]) -> None:
    for i, output in enumerate(outputs):
        if not requires_grad(output):
            raise RuntimeError(f"element {i} of tensors does not require grad and does not have a grad_fn")
    if not all(map(requires_grad, inputs)):
        raise RuntimeError("One of the differentiated Tensors does not require grad")


def _tape_of(outputs: list[Torchish]) -> Tape:
    """The innermost tape that has one of the outputs."""
    tape = recorded()
    while tape.outer is not None and not any(tape.has(output.buffer.array) for output in outputs):
        tape = tape.outer
    return tape


def retain(tensor: Torchish) -> None:
    """Makes a tensor retain its gradients, unless it is a leaf."""
    tape = cast("Tape | None", this_call().tape)
    if not is_source(tensor) and tape is not None:
        expect_no_journal("a tensor that retains its gradient")
        tape.retaining[id(tensor)] = tensor
    tensor._retains_grad = not is_source(tensor)


def accumulate(tensor: Torchish, source: Source, gradient: Torchish, create_graph: bool) -> None:
    """Adds a gradient to that of a leaf, whose node is `source`."""
    with torch.enable_grad():
        for hook in list(source.prehooks.values()):
            gradient = replaced(of_user(hook)((gradient,)), gradient)
        if (
            tensor._gradient is None
            or create_graph
            or (isinstance(gradient, Torchish) and not isinstance(tensor._gradient, Torchish))
        ):
            add(tensor, gradient)
        else:
            tensor._gradient.add_(gradient)
    with torch.set_grad_enabled(create_graph):
        for hook in list(source.accumulated.values()):
            if of_user(hook)(tensor) is not None:
                raise RuntimeError("Tensor post accumulate grad hooks should return None.")
        for hook in list(source.posthooks.values()):
            of_user(hook)((), (gradient,))


# Hooks on what PyTorch saves for derivatives. What is kept here JAX decides, and XLA where.


@replaces(graph.saved_tensors_hooks, "__enter__")
def _refuse_hooks(self: graph.saved_tensors_hooks) -> None:
    if not isinstance(self, graph.save_on_cpu):
        raise NotImplementedError(
            "got saved_tensors_hooks in translated code, where JAX decides what a derivative keeps; wanted "
            "torch.utils.checkpoint to keep less, or a torch.autograd.Function that saves what its backward needs"
        )


@replaces(graph.saved_tensors_hooks, "__exit__")
def _leave_hooks(self: graph.saved_tensors_hooks, *exc_info: object) -> None:
    pass  # `save_on_cpu`, which changes no number
