"""A backward pass at one level of a tape: which gradients it computes, and which hooks see them.

Also here: rows of a table that require grad in the table's place, so that its gradient is built from theirs.

A gradient with respect to the whole would have its size. One of rows, and where they are, has theirs: a sparse tensor.
So the rows that code takes begin a history of their own, and the whole is none of it. Where a backward pass asks for
the gradient of the whole it asks for those of its parts beside, and adds them up (`with_parts`, `joined`).
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..runtime.translation import lift, this_call
from ..tensors.array_buffer import ArrayBuffer
from ..tensors.dtypes import canonical
from ..tensors.history import GradientPart, Node, Source, leads_through_older, reaches, used_in_derivatives
from ..tensors.journal import NeedsLeaves, Uncontained, journal
from ..tensors.tensor import Torchish, wrap
from ..tracing.tensor_spec import TensorSpec, conjugate
from ..tracing.user_code import of_user, set_gradient
from .linearization import Var
from .tape import Hooked, Tape


def takes_parts(tensor: Torchish) -> bool:
    """Returns True if parts of a tensor may require grad in its place: it is a leaf on the recording tape."""
    call, source = this_call(), tensor.history
    tape = cast("Tape | None", call.tape)
    if tape is None or not isinstance(source, Source) or source.variable is not tensor or source.is_given:
        return False
    if not torch.is_grad_enabled() or call.dual is not None or journal() is not None:
        return False
    return tape.is_current and tape.outer is None and not any(x in tape.hooks for x in source.variables)


def begin_part(tensor: Torchish, part: GradientPart) -> None:
    """Makes a tensor require grad as a part of a leaf."""
    tensor.start_history()
    source = cast(Source, tensor.history)
    source.part = part
    part.full.history.parts[source._sequence_nr()] = tensor


def with_parts(tensors: Sequence[Torchish]) -> list[Torchish]:
    """Tensors, and behind each the parts of it."""
    found: list[Torchish] = []
    for tensor in tensors:
        found.append(tensor)
        source = tensor.history
        if isinstance(source, Source) and source.has_parts and source.variable is tensor:
            found.extend(x for x in source.parts.values() if not any(x is y for y in found))
    return found


def joined(tensors: Sequence[Torchish], gradients: Sequence[torch.Tensor | None]) -> tuple[list[Torchish], list[Any]]:
    """The tensors that are no parts of a leaf, and their gradients, to which those of their parts are added."""
    fulls: list[Torchish] = []
    found: list[Any] = []
    of_parts: dict[int, list] = {}
    for tensor, gradient in zip(tensors, gradients, strict=True):
        part = getattr(tensor.history, "part", None)
        if part is None:
            fulls.append(tensor)
            found.append(gradient)
        elif gradient is not None:
            of_parts.setdefault(id(part.full), []).append(part.gradient(gradient))
            if not any(part.full is x for x in (*fulls, *tensors)):
                fulls.append(part.full)
                found.append(None)
    for i, full in enumerate(fulls):
        for gradient in of_parts.get(id(full), ()):
            found[i] = gradient if found[i] is None else sum_of(found[i], gradient)
    return fulls, found


def sum_of(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The sum of two gradients, which is strided if one of them is."""
    return one + other if isinstance(one, Torchish) else other + one


def is_source(tensor: Torchish) -> bool:
    """Returns True if a tensor is a leaf that requires grad."""
    return isinstance(tensor.history, Source) and tensor.history.variable is tensor


def replaced(given: Any, before: Torchish):
    """The gradient that a hook of a node returned, if it did; else the one before."""
    if given is None:
        return before
    gradient = given[0] if isinstance(given, tuple) else given
    if gradient.layout is not torch.strided:
        raise RuntimeError(
            f"a hook has changed the type of a gradient: got {gradient.layout}, wanted torch.strided, as "
            "gradient.to_dense() gives"
        )
    return lift(gradient)


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

    def _retain(self, tensor: Torchish, cotangent: jax.Array) -> None:
        with torch.enable_grad():
            add(tensor, self._tensor(cotangent, TensorSpec.of(tensor)))

    def _constant(self, array: jax.Array):
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

    def _visit(self, variable: Var, retaining: Torchish | None, cotangent: jax.Array | None, goes_on: bool):
        """Shows a gradient, None for zeros, to the hooks on it, and to the tensor that retains it."""
        hooked = self.tape.hooks.get(variable)
        if cotangent is None:
            return self._visit_zeros(variable, retaining, hooked, goes_on)
        written, shown = cotangent, cotangent
        if hooked is not None:
            written, shown = self._shown(cotangent, hooked.hooks.values(), hooked.spec)
        if retaining is not None:
            self._retain(retaining, shown)
        # As in PyTorch, what hooks return is not seen where the way goes on to other targets; what they write is.
        own = written if goes_on else shown
        for node in hooked.nodes if hooked is not None and (goes_on or variable in self.accumulated) else []:
            hooks = [lambda gradient, hook=hook: of_user(hook)((gradient,)) for hook in node.prehooks.values()]
            _, shown = self._shown(shown, hooks, node.end.spec)
        return own, shown

    def _visit_zeros(self, variable: Var, retaining: Torchish | None, hooked: Hooked | None, goes_on: bool):
        """As `_visit`, for a cotangent that is zero, or for none: then hooks get None, as in PyTorch."""
        history = retaining.history if retaining is not None else hooked and hooked.history()
        if history is not None and this_call().passes[-1].comes_by(history):
            zeros = jnp.zeros(variable.aval.shape, variable.aval.dtype)
            own, after = self._visit(variable, retaining, zeros, goes_on)
            return own, None if after is zeros else after
        given = None
        for hook in list(hooked.hooks.values()) if hooked is not None else []:
            with torch.enable_grad():
                given = of_user(hook)(given)
        if hooked is None or given is None:
            return None, None
        cotangent = self._cotangent(lift(given), hooked.spec.layout, variable.aval.dtype)
        return None if goes_on else cotangent, cotangent

    def _shown(self, cotangent: jax.Array, hooks: Iterable[Callable], spec: TensorSpec) -> tuple[Any, Any]:
        """The gradient as hooks leave it after writing into it, and the one that they return."""
        hooks = list(hooks)
        if not hooks:
            return cotangent, cotangent
        gradient = shown = self._tensor(cotangent, spec)
        before = shown.buffer.array
        with torch.enable_grad():
            for hook in hooks:
                gradient = replaced(of_user(hook)(gradient), gradient)

        def found(tensor: Torchish):
            array = tensor.buffer.array
            return cotangent if array is before else self._cotangent(tensor, spec.layout, cotangent.dtype)

        return found(shown), found(gradient)

    def _cotangent(self, gradient: Torchish, layout: tuple[int, ...] | None, dtype: np.dtype):
        array, own = gradient.buffer
        array = ArrayBuffer(conjugate(self.tape.primal(array, self.count)), own).arranged(layout)
        return array if array.dtype == dtype else array.astype(dtype)

    def _tensor(self, cotangent: jax.Array, spec: TensorSpec, origins: list | None = None) -> Torchish:
        origins = self.origins if origins is None else origins
        array = conjugate(self.tape.primal(cotangent, self.count))
        if array.dtype != canonical(spec.dtype):
            array = array.astype(canonical(spec.dtype))
        if not self.create and self.tape.outer is not None:
            array = self.tape.constant_around(array)
        depends = self.create and self.depends and origins
        if depends:
            array = self.tape.stop_levels(array, self.dependencies, self.count)
        with torch.set_grad_enabled(self.create):
            gradient = wrap(array, spec.dtype, layout=spec.layout, strides=spec.strides, device=spec.device)
        if depends:
            gradient._node.storage.history = Node("Gradient", origins)
        return gradient


def _form_of(tensor: Torchish) -> TensorSpec:
    """The metadata of a tensor's gradient; a leaf's has the layout that the leaf had at first."""
    spec, history = TensorSpec.of(tensor), tensor.history
    if history is None or history.end is None or not is_source(tensor):
        return spec
    return spec._replace(layout=history.end.spec.layout)


class BackwardOfTensors(Backward):
    """A backward pass that the code runs.

    Args:
        outputs: the tensors that it goes back from.
        gradients: those of each of them.
    """

    def __init__(
        self,
        tape: Tape,
        number: int,
        outputs: list[Torchish],
        gradients: list[Torchish | None],
        retain_graph: bool,
        create_graph: bool,
    ):
        super().__init__(tape, number, [output.buffer.array for output in outputs], retain_graph, create_graph)
        self.outputs: list[Torchish] = outputs
        self.seeds = self._seeds(gradients)
        given = [x for x in (*outputs, *gradients) if x is not None]
        # A gradient that needs nothing of the way forward depends on those of the outputs alone.
        self.depends = any(x is not None and x.history is not None for x in gradients)
        self.origins = [x.history for x in given]
        self.given = [x.history for x in gradients if x is not None and x.history is not None]
        self.dependencies = [array for array in (x.buffer.array for x in given) if tape.has(array)]

    def gradients(self, wanted: list[Torchish]) -> tuple:
        """The gradients of the tensors; None for those that do not lead to the outputs."""
        self._expect_within(wanted)
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
                cotangent = jnp.zeros_like(self.tape.primal(tensor.buffer.array))
                if under_way.accumulates and not is_source(tensor) and tensor._viewed is None:
                    self._retain(tensor, cotangent)
            results.append(None if cotangent is None else self._tensor(cotangent, _form_of(tensor), origins))
        return tuple(results)

    def _expect_within(self, wanted: list[Torchish]) -> None:
        """Refuses a derivative from within a scope that leads through computations before it: that part would be lost.

        Raises:
            Uncontained: it does.
        """
        if self.tape.outer is None or journal() is None:
            return
        ends = {id(x.history) for x in wanted}
        if leads_through_older((x.history for x in self.outputs), ends, self.tape.began):
            raise Uncontained("a derivative that leads through what was computed before")

    def _origins(self, wanted: list[Torchish]) -> Iterable[list]:
        """The arrays that each gradient depends on."""
        if not self.create or self.tape.hooks:  # which may use anything
            return [self.origins] * len(wanted)
        used = used_in_derivatives((x.history for x in self.outputs), [x.history for x in wanted])
        return [[*nodes, *self.given] for nodes in used]

    def _expect_recorded(self, tensor: Torchish, variable: Var | None) -> None:
        """Refuses a derivative with respect to tensors that another tape has recorded: it is not zero.

        Raises:
            Uncontained: that is the tape outside of a scope; `NeedsLeaves` if the scope may take in the leaf.
            RuntimeError: that is the tape inside of one, which has ended.
        """
        if not self.seeds and journal() is not None:  # what leads to the outputs is in a trace within
            raise NeedsLeaves("a derivative of what a checkpointed function within gave")
        if isinstance(tensor.history, Source) and tensor.history.variable is tensor:
            is_recorded = variable is None or variable in self.tape.sources
        else:
            outer, is_recorded = self.tape.outer, variable is not None
            while outer is not None and not is_recorded:
                if outer.has(tensor.buffer.array):
                    break
                outer = outer.outer
            else:
                is_recorded = True
        if is_recorded:
            return
        if journal() is not None:
            raise NeedsLeaves("a derivative with respect to a tensor from outside")
        raise RuntimeError(
            "got a gradient, outside of a checkpointed function, for a tensor that began to require grad inside "
            "it; wanted it to require grad before, as an argument of the function"
        )

    def _seeds(self, gradients: list[Torchish | None]) -> dict[Var, Any]:
        seeds: dict[Var, Any] = {}
        for output, gradient in zip(self.outputs, gradients, strict=True):
            variable = self.tape.variable_of(output, self.number)
            if variable is None:  # its derivative is zero
                continue
            array, layout = output.buffer
            seed = jnp.ones(array.shape, array.dtype)
            if gradient is not None:
                seed = self._cotangent(gradient, layout, array.dtype)
            seeds[variable] = seed if variable not in seeds else seeds[variable] + seed
        return seeds


def add(tensor: Torchish, gradient: Torchish) -> None:
    """Adds a gradient to `Tensor.grad`, out of place."""
    set_gradient(tensor, gradient if tensor._gradient is None else sum_of(tensor._gradient, gradient))
