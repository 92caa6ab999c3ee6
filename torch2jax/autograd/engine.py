"""`.backward()` and `torch.autograd.grad`, below PyTorch's checks of their arguments: gradients from the tape."""

import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import jax.numpy as jnp
import torch
from torch.autograd import graph

from ..errors import user_level
from ..internals.gradients import autograd_module
from ..patches import exchange, stands_in
from ..rules.operands import lift
from ..tensors.dtypes import canonical
from ..tensors.history import NeedsTape, Node, Saved, Source, reaches, refusing_between, used_in_derivatives
from ..tensors.journal import Uncontained, expect_no_journal, journal
from ..tensors.physical import PhysicalArray
from ..tensors.tensor import Torchish, wrap
from ..tracing.recorders import expect_unrecorded
from ..tracing.tensor_spec import TensorSpec, conjugate
from .call import current, recorded, this_call
from .inputs import requires_grad
from .linearization import Var
from .parts import joined, sum_of, with_parts
from .saved_tensors import set_within
from .tape import Hooked, Tape

__all__ = ["Backward", "BackwardPass", "accumulate", "is_source", "retain", "run_backward"]


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


@stands_in(torch.autograd, "_engine_run_backward")
@stands_in(graph, "_engine_run_backward")
def run_backward(
    t_outputs,
    grad_tensors,
    retain_graph: bool,
    create_graph: bool,
    inputs: Sequence[torch.Tensor] = (),
    allow_unreachable: bool = True,
    accumulate_grad: bool = True,
):
    """What PyTorch's engine does.

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
        raise NeedsTape(1)
    outputs, wanted = [_tensor_of(x) for x in t_outputs], [_tensor_of(x) for x in inputs]
    gradients = [None if x is None else lift(x) for x in grad_tensors]
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
    with set_within(), BackwardPass([x.history for x in outputs], ends, accumulate_grad, retain_graph) as under_way:

        def differentiate(number: int) -> tuple:
            return _OfTensors(tape, number, outputs, gradients, retain_graph, create_graph).gradients(wanted)

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
    return tuple(found)


def _tensor_of(value) -> Torchish:
    """The tensor at an end of the graph, which may be given by its edge there."""
    if not isinstance(value, graph.GradientEdge):
        return lift(value)
    node: Any = value.node
    tensor = node.variable if isinstance(node, Source) else None
    if tensor is not None and tensor.history is node:
        return tensor
    end = node.end_of(value.output_nr)
    if end is not None and end.tangents:
        return recorded().tensor_at(end, node)
    if tensor is None:
        raise NotImplementedError("got an edge of the graph that no tensor of this call is at; wanted that tensor")
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
    while tape.outer is not None and not any(tape.has(output.physical.array) for output in outputs):
        tape = tape.outer
    return tape


def is_source(tensor: Torchish) -> bool:
    """Whether a tensor requires grad by itself."""
    return isinstance(tensor.history, Source) and tensor.history.variable is tensor


def _form_of(tensor: Torchish) -> TensorSpec:
    """What the gradient of a tensor is like; that of one that requires grad by itself lies as it did then."""
    spec, history = TensorSpec.of(tensor), tensor.history
    if history is None or history.end is None or not is_source(tensor):
        return spec
    return spec._replace(layout=history.end.spec.layout)


def retain(tensor: Torchish) -> None:
    """Lets a tensor keep the gradients that backward passes find for it, if it does not do so by itself."""
    tape = this_call().tape
    if not is_source(tensor) and tape is not None:
        expect_no_journal("a tensor that retains its gradient")
        tape.retaining[id(tensor)] = tensor
    tensor._retains_grad = not is_source(tensor)


def accumulate(tensor: Torchish, source: Source, gradient: Torchish, create_graph: bool) -> None:
    """Adds a gradient to that of a tensor which requires grad by itself, where `source` begins."""
    with torch.enable_grad():
        for hook in list(source.prehooks.values()):
            gradient = _replaced(hook((gradient,)), gradient)
        if (
            tensor._gradient is None
            or create_graph
            or (isinstance(gradient, Torchish) and not isinstance(tensor._gradient, Torchish))
        ):
            _add(tensor, gradient)
        else:
            tensor._gradient.add_(gradient)
    with torch.set_grad_enabled(create_graph):
        for hook in list(source.accumulated.values()):
            if hook(tensor) is not None:
                raise RuntimeError("Tensor post accumulate grad hooks should return None.")
        for hook in list(source.posthooks.values()):
            hook((), (gradient,))


def _add(tensor: Torchish, gradient: Torchish) -> None:
    """Lets the sum of a tensor's gradient and another be its gradient from now on."""
    tensor.change("_gradient", gradient if tensor._gradient is None else sum_of(tensor._gradient, gradient))


def _replaced(given, before):
    """The gradient that a hook of a node gave, if it gave any."""
    if given is None:
        return before
    return lift(given[0] if isinstance(given, tuple) else given)


def _arrays_of(gradients: tuple) -> list:
    """What gradients hold, by which it is told whether hooks gave others or wrote to these."""
    return [None if x is None else lift(x).physical.array for x in gradients]


class Backward:
    """A backward pass at one level of a tape.

    Hooks run with gradients on, also without `create_graph`: JAX's derivatives from outside go through them. What they
    give is none of the code's history then.

    Args:
        arrays: what it goes back from.
    """

    def __init__(self, tape: Tape, number: int, arrays: Iterable, retain_graph: bool, create_graph: bool):
        self.tape, self.number, self.level = tape, number, tape.levels[number]
        self.keep, self.create = retain_graph, create_graph
        self.count = number + 1 if create_graph else tape.depth  # of the levels that the gradients are no part of
        self.subgraph = self.level.reach([tape.primal(array, number) for array in arrays])
        self.depends, self.origins, self.dependencies = False, [], []
        self.accumulated: set[Var] = set()

    def _retain(self, tensor: Torchish, cotangent) -> None:
        with torch.enable_grad():
            _add(tensor, self._tensor(cotangent, TensorSpec.of(tensor)))

    def _constant(self, array):
        return self.tape.primal(array, self.count)

    def _use(self, steps: list) -> None:
        self.tape.use(steps, self.keep)
        self.depends = self.depends or bool(steps)

    def _retaining(self) -> dict[Var, Torchish]:
        """The tensors on the way that keep their gradients, by their places."""
        tensors = list(self.tape.retaining.values())
        variables = {self.tape.variable_of(tensor, self.number): tensor for tensor in tensors}
        return {variable: tensor for variable, tensor in variables.items() if variable in self.subgraph.linear}

    def _visits(self, retaining: dict[Var, Torchish]) -> Mapping[Var, Any]:
        return {
            variable: functools.partial(self._visit, variable, retaining.get(variable))
            for variable in {**self.tape.hooks, **retaining}
            if variable in self.subgraph.linear
        }

    def _visit(self, variable: Var, retaining: Torchish | None, cotangent, goes_on: bool):
        """Shows a gradient, None for zeros, to the hooks on it, and to the tensor that retains it."""
        hooked = self.tape.hooks.get(variable)
        if cotangent is None:
            return self._visit_zeros(variable, retaining, hooked, goes_on)
        written = cotangent
        if hooked is not None:
            written, cotangent = self._shown(cotangent, hooked.hooks.values(), hooked.spec)
        if retaining is not None:
            self._retain(retaining, cotangent)
        # As in PyTorch, what hooks return is not seen where the way goes on to other targets; what they write is.
        own, replaced = written if goes_on else cotangent, None
        for node in hooked.nodes if hooked is not None and (goes_on or variable in self.accumulated) else []:
            hooks = [lambda gradient, hook=hook: hook((gradient,)) for hook in node.prehooks.values()]
            _, cotangent = self._shown(cotangent, hooks, node.end.spec)
            if goes_on and node.posthooks and node.operands is not None:
                replaced = self._show_inputs(node, cotangent)
        return own, cotangent if replaced is None else replaced

    def _visit_zeros(self, variable: Var, retaining: Torchish | None, hooked: Hooked | None, goes_on: bool):
        """As `_visit`, where nothing but zeros comes back, or nothing: then hooks get None, as in PyTorch."""
        history = retaining.history if retaining is not None else hooked and hooked.history()
        if history is not None and this_call().passes[-1].comes_by(history):
            zeros = jnp.zeros(variable.aval.shape, variable.aval.dtype)
            own, after = self._visit(variable, retaining, zeros, goes_on)
            return own, None if after is zeros else after
        given = None
        for hook in list(hooked.hooks.values()) if hooked is not None else []:
            with torch.enable_grad():
                given = hook(given)
        if hooked is None or given is None:
            return None, None
        cotangent = self._cotangent(lift(given), hooked.spec.layout, variable.aval.dtype)
        return None if goes_on else cotangent, cotangent

    def _show_inputs(self, node: Node, cotangent) -> dict[Var, Any] | None:
        """Calls the hooks on a node with the gradients that it gives its inputs.

        Returns:
            The cotangents of its inputs, if a hook gave others.
        """
        outputs = (self._tensor(cotangent, node.end.spec),)
        tangent, operands = node.end.tangents[self.number], node.operands or []
        variables = [None if x is None else x.tangents[self.number].val for x in operands]
        ends = frozenset(variable for variable in variables if variable is not None)
        subgraph = self.level.reach_tangents([tangent], ends)
        found = self.level.pull_back(subgraph, {tangent.val: cotangent}, set(ends), {}, self._constant, lambda _: None)
        inputs = tuple(
            self._tensor(found[variable], x.spec) if x is not None and variable in found else None
            for x, variable in zip(operands, variables, strict=True)
        )
        before = _arrays_of(inputs)
        for hook in list(node.posthooks.values()):
            with torch.enable_grad():
                given = hook(inputs, outputs)
            given = inputs if given is None else given
            if not isinstance(given, tuple):
                raise TypeError(f"expected tuple, but hook {getattr(hook, '__name__', hook)!r} returned {type(given)}")
            if len(given) != len(inputs):
                raise RuntimeError(
                    f"hook {getattr(hook, '__name__', hook)!r} has returned an incorrect number of values (got "
                    f"{len(given)}, but expected {len(inputs)})"
                )
            inputs = given
        if all(a is b for a, b in zip(_arrays_of(inputs), before, strict=True)):
            return None
        return {
            variable: self._cotangent(lift(gradient), x.spec.layout, found[variable].dtype)
            for gradient, x, variable in zip(inputs, operands, variables, strict=True)
            if gradient is not None and x is not None and variable in found
        }

    def _shown(self, cotangent, hooks: Iterable[Callable], spec: TensorSpec) -> tuple[Any, Any]:
        """What hooks write into the gradient that they are shown, and what they make of it."""
        hooks = list(hooks)
        if not hooks:
            return cotangent, cotangent
        gradient = shown = self._tensor(cotangent, spec)
        before = shown.physical.array
        with torch.enable_grad():
            for hook in hooks:
                gradient = _replaced(hook(gradient), gradient)

        def found(tensor: Torchish):
            array = tensor.physical.array
            return cotangent if array is before else self._cotangent(tensor, spec.layout, cotangent.dtype)

        return found(shown), found(gradient)

    def _cotangent(self, gradient: Torchish, layout, dtype):
        array, own = gradient.physical
        array = PhysicalArray(conjugate(self.tape.primal(array, self.count)), own).arranged(layout)
        return array if array.dtype == dtype else array.astype(dtype)

    def _tensor(self, cotangent, spec: TensorSpec, origins: list | None = None) -> Torchish:
        origins = self.origins if origins is None else origins
        array = conjugate(self.tape.primal(cotangent, self.count))
        if array.dtype != canonical(spec.dtype):
            array = array.astype(canonical(spec.dtype))
        depends = self.create and self.depends and origins
        if depends:
            array = self.tape.stop_levels(array, self.dependencies, self.count)
        with torch.set_grad_enabled(self.create):
            gradient = wrap(array, spec.dtype, layout=spec.layout, strides=spec.strides, device=spec.device)
        if depends:
            gradient._node.storage.history = Node("Gradient", origins)
        return gradient


class _OfTensors(Backward):
    """One that the code asks for.

    Args:
        outputs: the tensors that it goes back from.
        gradients: those of each of them.
    """

    def __init__(self, tape: Tape, number: int, outputs, gradients, retain_graph: bool, create_graph: bool):
        super().__init__(tape, number, [output.physical.array for output in outputs], retain_graph, create_graph)
        self.outputs: list[Torchish] = outputs
        self.seeds = self._seeds(gradients)
        given = [x for x in (*outputs, *gradients) if x is not None]
        # A gradient that needs nothing of the way forward depends on those of the outputs alone.
        self.depends = any(x is not None and x.history is not None for x in gradients)
        self.origins = [x.history for x in given]
        self.given = [x.history for x in gradients if x is not None and x.history is not None]
        self.dependencies = [array for array in (x.physical.array for x in given) if tape.has(array)]

    def gradients(self, wanted: list[Torchish]) -> tuple:
        """Those with respect to tensors, None for what does not lead to the outputs."""
        for tensor in wanted:
            self.tape.expect_captured_alone(self.outputs, tensor)
        variables = [self.tape.variable_of(tensor, self.number) for tensor in wanted]
        targets = {variable for variable in variables if variable is not None}
        retaining, under_way = self._retaining(), this_call().passes[-1]
        self.accumulated = targets if under_way.accumulates else set()
        found = self.level.pull_back(
            self.subgraph,
            self.seeds,
            targets if under_way.ends else targets.union(retaining),  # before these a derivative may be zero
            self._visits(retaining),
            self._constant,
            self._use,
        )
        connected = reaches((x.history for x in self.outputs), {id(x.history) for x in wanted})
        results = []
        for tensor, variable, origins in zip(wanted, variables, self._origins(wanted), strict=True):
            cotangent = found.get(variable)
            if cotangent is None and id(tensor.history) in connected:
                self._expect_recorded(tensor, variable)
                cotangent = jnp.zeros_like(self.tape.primal(tensor.physical.array))
                if under_way.accumulates and not is_source(tensor) and tensor._viewed is None:
                    self._retain(tensor, cotangent)
            results.append(None if cotangent is None else self._tensor(cotangent, _form_of(tensor), origins))
        return tuple(results)

    def _origins(self, wanted: list[Torchish]) -> Iterable[list]:
        """What each gradient depends on."""
        if not self.create or self.tape.hooks:  # which may use anything
            return [self.origins] * len(wanted)
        used = used_in_derivatives((x.history for x in self.outputs), [x.history for x in wanted])
        return [[*nodes, *self.given] for nodes in used]

    def _expect_recorded(self, tensor: Torchish, variable: Var | None) -> None:
        """Refuses a derivative with respect to what another tape has recorded: it is not zero.

        Raises:
            Uncontained: that is the tape outside of a scope.
            RuntimeError: that is the tape inside of one, which has ended.
        """
        if not self.seeds and journal() is not None:  # what leads to the outputs is in a trace within
            raise Uncontained("a derivative of what a checkpointed function within gave")
        if isinstance(tensor.history, Source) and tensor.history.variable is tensor:
            is_recorded = variable is None or variable in self.tape.sources
        else:
            outer, is_recorded = self.tape.outer, variable is not None
            while outer is not None and not is_recorded:
                if outer.has(tensor.physical.array):
                    break
                outer = outer.outer
            else:
                is_recorded = True
        if is_recorded:
            return
        if journal() is not None:
            raise Uncontained("a derivative with respect to a tensor from outside")
        raise RuntimeError(
            "a tensor that began to require grad within a checkpointed function got a derivative asked for outside of "
            "it; let it require grad before, and pass it in"
        )

    def _seeds(self, gradients: list[Torchish | None]) -> dict[Var, Any]:
        seeds: dict[Var, Any] = {}
        for output, gradient in zip(self.outputs, gradients, strict=True):
            variable = self.tape.variable_of(output, self.number)
            if variable is None:  # its derivative is zero
                continue
            array, layout = output.physical
            seed = jnp.ones(array.shape, array.dtype)
            if gradient is not None:
                seed = self._cotangent(gradient, layout, array.dtype)
            seeds[variable] = seed if variable not in seeds else seeds[variable] + seed
        return seeds


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

    def __exit__(self, *exc_info):
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
def _is_on_the_way(node) -> bool:
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

    def __init__(self, original):
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
