"""Hooks on gradients, including gradients that JAX computes.

A hook may look at a gradient, change it, and use any tensor of the call. JAX's way back knows nothing of that. So where
it takes the gradient of code with hooks, the way back is another run of the code (`retrace.py`), which makes the
backward pass itself as the call ends, on a level of its tape that is below those of the code's own derivatives.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..rules.features import Feature, in_every_call
from ..runtime.translation import lift, this_call
from ..tensors.history import Source
from ..tensors.tensor import Torchish
from ..tensors.trees import flatten
from ..tracing.execution import Execution, Pass
from ..tracing.traces import is_float
from ..tracing.user_code import set_gradient
from .backward import Backward, is_source
from .engine import BackwardPass, accumulate
from .tape import Tape, recorded


def hooks_of(tensor: Torchish, added: object) -> OrderedDict[int, Callable]:
    """The present hooks on the gradient of a tensor, to add others.

    Args:
        added: these others, one or a container.

    Raises:
        NeedsInputs, NeedsHooks: the gradient may be JAX's; `Runs` catches that.
    """
    call = this_call()
    call.execution.expect_hook(added, tensor)
    tape, history = cast("Tape | None", call.tape), tensor.history
    if tape is None or history is None:
        return OrderedDict()  # which nobody calls
    if isinstance(history, Source) and history.has_parts and history.variable is tensor:
        raise NotImplementedError(
            "got a hook on a gradient that an embedding has already made sparse (sparse=True); wanted the hook "
            "before that, or Tensor.register_post_accumulate_grad_hook"
        )
    begins = is_source(tensor) and history.end is not None
    end: Any = history.end if begins else tape.end_of(tensor)
    return tape.hooked(end, history).hooks


@in_every_call
class _Hooks(Feature):
    """The standing feature that takes over the hooks of a tensor from outside to the leaf that stands for it."""

    def take_hooks(self, tensor: torch.Tensor, lifted: Any) -> None:
        if tensor._backward_hooks:
            hooks_of(lifted, dict(tensor._backward_hooks)).update(tensor._backward_hooks)
        accumulated = tensor._post_accumulate_grad_hooks
        if accumulated:
            this_call().execution.expect_hook(dict(accumulated), lifted)
            lifted.history.accumulated.update(accumulated)


def finished(execution: Execution, tree: object) -> Any:
    """Runs the backward passes at the end of a run; returns the gradients of the last one.

    Args:
        tree: what the function has given, with arrays in the places of tensors.
    """
    tape = recorded()
    histories = {id(array): history for array, history in execution.ends}
    results: list[Any] = [x for x in flatten(tree)[0] if isinstance(x, (jax.Array, np.ndarray)) and is_float(x)]
    nodes = [histories.get(id(x)) for x in results]
    started: list[tuple[object, object]] = []
    for number, backward_pass in enumerate(execution.passes, tape.depth):
        for cotangent in backward_pass.cotangents:
            if cotangent is not None:
                started.append((cotangent, tape.beginning(cotangent, number + 1)))
        ends = {id(source) for _, _, source in execution.given}
        with BackwardPass(nodes, ends, accumulates=True) as under_way:
            results = _CotangentsForJax(tape, number, results, backward_pass, started).cotangents(execution, under_way)
            under_way.call_back()
    return [tape.primal(x, len(tape.levels)) for x in results]


class _CotangentsForJax(Backward):
    """A backward pass that computes JAX's cotangents.

    Args:
        started: the cotangents that were given for this and other passes, and as they are to later ones.
    """

    def __init__(self, tape: Tape, number: int, arrays: list, backward_pass: Pass, started: list[tuple[Any, Any]]):
        given = [(x, y) for x, y in zip(arrays, backward_pass.cotangents, strict=True) if y is not None]
        super().__init__(tape, number, [array for array, _ in given], retain_graph=True, create_graph=True)
        self._wanted, self._started = backward_pass.wanted, started
        self._seeds: dict[Any, Any] = {}
        for array, cotangent in given:
            variable = self._variable_of(array)
            if variable is not None:
                seed = next(y for x, y in started if x is cotangent)
                self._seeds[variable] = self._seeds[variable] + seed if variable in self._seeds else seed

    def _variable_of(self, array: jax.Array):
        return self.level.variable(self.tape.primal(array, self.number))

    def cotangents(self, execution: Execution, under_way: BackwardPass) -> list:
        """The cotangents of the wanted arrays."""
        sources = {source: tensor for array, tensor, source in execution.given if _is_among(array, self._wanted)}
        others = {id(x): self._variable_of(y) for x, y in self._started if _is_among(x, self._wanted)}
        self.accumulated = {source.variables[self.number] for source in sources}
        targets = self.accumulated.union(variable for variable in others.values() if variable is not None)
        visits = self._visits(self._retaining())
        found = self.level.pull_back(self.subgraph, self._seeds, targets, visits, self._constant, self._use)
        parts: dict[int, list] = {id(x): [found.get(others.get(id(x)))] for x in self._wanted}
        for array, _, source in execution.given:
            if source in sources:
                cotangent = found.get(source.variables[self.number])
                parts[id(array)].append(self._accumulated(sources[source], source, cotangent, under_way))
        # One array in two places has its cotangent in the first.
        return [_sum_of([x for x in parts.pop(id(array), ()) if x is not None], array) for array in self._wanted]

    def _accumulated(self, tensor: Torchish, source: Source, cotangent: jax.Array | None, under_way: BackwardPass):
        """The cotangent of a leaf after the hooks on its accumulated gradient."""
        if not source.is_hooked:
            return cotangent
        if cotangent is None:
            if not under_way.comes_by(source):
                return None
            cotangent = jnp.zeros(source.end.shape, source.end.variables[self.number].aval.dtype)
        set_gradient(tensor, None)
        accumulate(tensor, source, self._tensor(cotangent, source.end.spec), create_graph=True)
        gradient = tensor._gradient
        if gradient is None:
            raise NotImplementedError(
                "a hook on an accumulated gradient set x.grad = None, but JAX takes this gradient; wanted a hook "
                "that keeps it, and the optimizer step outside of the hook"
            )
        return self._cotangent(lift(gradient), source.end.spec.layout, cotangent.dtype)


def _sum_of(cotangents: list, array: jax.Array):
    """The cotangent of an array, as the sum of its parts."""
    if not cotangents:
        return jnp.zeros(array.shape, array.dtype)
    total = cotangents[0]
    for cotangent in cotangents[1:]:
        total = total + cotangent
    return total


def _is_among(array: jax.Array, others: list) -> bool:
    return any(array is other for other in others)
