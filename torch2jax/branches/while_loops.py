"""Loops that end on traced conditions, as statements of a program: a JAX ``while_loop``, or a bounded scan.

Backwards a loop needs a bound: then it is a scan of so many iterations, of which those behind its end do nothing. The
iterations are checkpointed in groups of about the square root of the bound, so that memory grows with that alone.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.extend.core import Var

from ..errors import BranchError
from ..loops.program import Atom, Program, evaluated, free, has_effects, zeros
from ..loops.windows import reader
from ..tracing.primitives import linear_call
from ..tracing.traces import is_float
from .collectives import loop_on_devices


class Same(NamedTuple):
    """Other names for values."""

    outvars: list[Var]
    first: list[Atom]

    has_effects = False

    @property
    def operands(self) -> list[Var]:
        return [x for x in self.first if isinstance(x, Var)]

    def pruned(self, needed: set[Var]) -> "Same":
        del needed
        return self

    def evaluated(self, values: dict[Var, Any]) -> list:
        return [*map(reader(values), self.first)]


class While(NamedTuple):
    """A loop that goes on as long as it says so itself.

    With a `test`, this comes before each iteration, and the loop goes on where it gives what is wanted. Without, the
    iteration gives behind its results whether it has come to its end, and what is kept. One that has not gives what it
    began with. There is at least one iteration, so that what is kept is there.
    """

    carried: list[Var]
    first: list[Atom]
    """What the first iteration begins with."""
    test: Program | None
    """Gives the answer, and what of its values is used behind it."""
    kept: list[Var]
    """The latter, as iterations and the code behind the loop know them; without a test, those of the last iteration."""
    wanted: bool
    iteration: Program
    bound: int | None
    """How many iterations it has at most, where that is known."""
    place: str
    is_detached: bool = False
    """Whether nothing of what it computes has a derivative."""

    @property
    def outvars(self) -> list[Var]:
        return [*self.carried, *self.kept]

    @property
    def operands(self) -> set[Var]:
        found = self._needed
        found.update(x for x in self.first if isinstance(x, Var))
        return found

    @property
    def _needed(self) -> set[Var]:
        """What it uses from before but for what it begins with."""
        found = free(self.iteration).difference(self.kept)
        if self.test is not None:
            found |= free(self.test)
        return found.difference(self.carried)

    @property
    def has_effects(self) -> bool:
        programs = [self.iteration] if self.test is None else [self.test, self.iteration]
        return any(has_effects(x) for program in programs for x in program.statements)

    def pruned(self, needed: set[Var]) -> "While":
        del needed
        return self

    def evaluated(self, values: dict[Var, Any]) -> list:
        wanted = self._needed
        outside = [var for var in values if var in wanted]
        read = reader(values)

        def ask(given: list, carried: list) -> tuple[Any, list]:
            if self.test is None:
                return jnp.asarray(True), [*map(zeros, self.kept)]
            within = dict(zip(outside, given, strict=True))
            within.update(zip(self.carried, carried, strict=True))
            answer, *kept = evaluated(self.test, within)
            return answer if self.wanted else lax.bitwise_not(answer), [*map(strong, kept)]

        def step(given: list, state: tuple) -> tuple:
            _, carried, kept = state
            within = dict(zip(outside, given, strict=True))
            within.update(zip(self.carried, carried, strict=True))
            within.update(zip(self.kept, kept, strict=True))
            found = [*map(strong, evaluated(self.iteration, within))]
            if self.test is None:
                count = len(self.carried)
                return found[count], found[:count], found[count + 1 :]
            answer, kept = ask(given, found)
            return answer, found, kept

        given, first = [values[var] for var in outside], [strong(read(x)) for x in self.first]
        if self.is_detached:
            given, first = ([*map(lax.stop_gradient, arrays)] for arrays in (given, first))
        goes_on, kept = ask(given, first)
        state = goes_on, first, kept
        if jax.sharding.get_abstract_mesh().manual_axes:
            programs = [self.iteration] if self.test is None else [self.test, self.iteration]
            step, state = loop_on_devices(step, given, state, [x for program in programs for x in program.statements])
        _, carried, kept = run_while(step, given, state, self.bound, self.place)
        return [*carried, *kept]


def strong(array: Any) -> Any:
    """An array that has its dtype whatever it is computed with."""
    return lax.convert_element_type(array, array.dtype) if getattr(array, "weak_type", True) else array


def run_while(step: Callable, given: list, state: tuple, bound: int | None, place: str) -> tuple:
    """Takes steps until the first of the state says that it is over."""

    def whole(given: list, state: tuple) -> tuple:
        return lax.while_loop(lambda state: state[0], lambda state: step(given, state), state)

    run = jax.custom_jvp(whole)

    @run.defjvp
    def derivative(primals: tuple, tangents: tuple) -> tuple:
        if bound is not None:
            most = bound
            return jax.jvp(lambda given, state: _bounded(step, given, state, most), primals, tangents)
        values, moved = jax.jvp(whole, primals, tangents)
        return values, _only_forwards(moved, place)

    return run(given, state)


@custom_vmap
def _in_batch(goes_on: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Any loop of the batch goes on, and this one does, among these: known to be true where there is no batch.

    A ``cond`` of many answers becomes a ``select``, which JAX cannot transpose in a jvp.
    """
    return goes_on, jnp.ones((), bool)


@_in_batch.def_vmap
def _in_larger_batch(size: int, is_batched: list, goes_on: jax.Array) -> tuple:
    del size, is_batched
    return (_in_batch(goes_on.any(0))[0], goes_on), (False, True)


def _bounded(step: Callable, given: list, state: tuple, bound: int) -> tuple:
    """As ``while_loop``, of so many steps at most; where that is too few, what has derivatives is NaN."""
    length = max(1, math.isqrt(bound - 1) + 1)

    def kept(state: tuple) -> tuple:
        return state

    def one(state: tuple, _: None) -> tuple[tuple, None]:
        any_goes_on, goes_on = _in_batch(state[0])

        def taken(state: tuple) -> tuple:
            # What is over stays as it is, and what another step would make of it has no derivative.
            held, before = jax.tree.map(lambda x: jnp.where(goes_on, x, lax.stop_gradient(x)), (given, state))
            return jax.tree.map(lambda new, old: jnp.where(goes_on, new, old), step(held, before), state)

        return lax.cond(any_goes_on, taken, kept, state), None

    @jax.checkpoint
    def several(state: tuple) -> tuple:
        return lax.scan(one, state, None, length=length)[0]

    def group(state: tuple, _: None) -> tuple[tuple, None]:
        return lax.cond(_in_batch(state[0])[0], several, kept, state), None

    state, _ = lax.scan(group, state, None, length=-(-bound // length))
    is_over = jnp.where(state[0], jnp.nan, 1.0)
    return jax.tree.map(lambda x: x * is_over.astype(x.dtype) if is_float(x) else x, state)


def _only_forwards(tangents: Any, place: str) -> Any:
    """The tangents, which nobody can go back from."""

    def refuse(*_: Any):
        raise BranchError(
            f"the loop at {place} ends on a traced condition, and a gradient through it needs a bound on its "
            "iterations: t2j(..., max_steps=N). Forward mode (jax.jvp, jax.jacfwd) needs none"
        )

    leaves, structure = jax.tree.flatten(tangents)
    places = [i for i, leaf in enumerate(leaves) if leaf.dtype != jax.dtypes.float0]
    if not places:
        return tangents
    arrays = [leaves[i] for i in places]
    for i, leaf in zip(places, linear_call(lambda _, arrays: arrays, refuse, [], arrays, arrays), strict=True):
        leaves[i] = leaf
    return structure.unflatten(leaves)
