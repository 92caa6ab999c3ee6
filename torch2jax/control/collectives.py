"""Branches and loops within `jax.shard_map` in which devices may take different paths.

A collective on one side alone would wait for those that go the other way, for ever.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
from jax import lax

from ..internals.jax import DynamicJaxprTracer, varying_axes
from ..runtime.errors import BranchError
from ..tracing.loops.program import Program, evaluated
from ..tracing.traces import varying, without_derivatives

_NAMES = frozenset(
    ("psum", "psum_invariant", "pmax", "pmin", "ppermute", "pbroadcast", "all_gather", "all_gather_invariant")
    + ("all_gather_reduced", "all_to_all", "ragged_all_to_all", "reduce_scatter", "unreduced_psum")
)


def cond_on_devices(predicate: object, yes: Program, no: Program, values: dict[Any, Any]) -> list:
    """The results of one of two programs, on each device.

    Raises:
        BranchError: there is a collective on one side, and the predicate may differ between devices.
    """
    expect_no_collectives(predicate, [*yes.statements, *no.statements])
    results = zip(yes.results, no.results, strict=True)
    axes = [varying_axes(one) | varying_axes(other) for one, other in results]

    def side(program: Program) -> list:
        return [varying(x, differing) for x, differing in zip(evaluated(program, values), axes, strict=True)]

    return lax.cond(predicate, lambda: side(yes), lambda: side(no))


def loop_on_devices(step: Callable, given: list, state: tuple, statements: Iterable[object]) -> tuple[Callable, tuple]:
    """A loop whose types say over which axes its values differ after any number of iterations.

    Args:
        step: gives from `given` and a state what the next iteration begins with.
        state: what the first iteration begins with, and before that whether there is one.
        statements: what the iterations compute.

    Returns:
        The step and the state, of the same types.

    Raises:
        BranchError: there is a collective in the iterations, of which the devices may take different numbers.
    """
    before, structure = jax.tree.flatten(state)

    def leaves(given: list, arrays: list) -> list:
        return jax.tree.leaves(step(given, structure.unflatten(arrays)))

    axes = [*map(varying_axes, before)]
    while True:
        before = [varying(x, differing) for x, differing in zip(before, axes, strict=True)]
        after = jax.make_jaxpr(leaves)(given, before).jaxpr.outvars
        found = [one | varying_axes(var) for one, var in zip(axes, after, strict=True)]
        if found == axes:
            break
        axes = found
    expect_no_collectives(before[0], statements)

    def step_on_devices(given: list, state: tuple) -> tuple:
        found = leaves(given, jax.tree.leaves(state))
        return structure.unflatten([varying(x, differing) for x, differing in zip(found, axes, strict=True)])

    return step_on_devices, structure.unflatten(before)


def expect_no_collectives(predicate: object, statements: Iterable[object]) -> None:
    found = next(_collectives(statements), None)
    if found is not None and (varying_axes(predicate) or _depends_on_device(predicate)):
        raise BranchError(
            f"got the collective {found!r} on one side of a branch that differs between devices, such as if rank == 0, "
            "or in a loop that may run different numbers of iterations on different devices: it would wait forever for "
            "the other devices. Wanted it after the branch, or on both sides, with torch.where for what differs; or a "
            "loop that ends on all devices at once, for example on a result of torch.distributed.all_reduce"
        )


def _collectives(statements: Iterable[Any]) -> Iterator[str]:
    for statement in statements:
        primitive = getattr(statement, "primitive", None)
        if primitive is not None:
            if primitive.name in _NAMES:
                yield primitive.name
            inner = jax.tree.leaves(list(statement.params.values()), is_leaf=lambda x: hasattr(x, "eqns"))
            for jaxpr in inner:
                yield from _collectives(getattr(jaxpr, "eqns", ()))
        for side in ("yes", "no"):
            if getattr(statement, side, None) is not None:
                yield from _collectives(getattr(statement, side).statements)


def _depends_on_device(array: object) -> bool:
    """True if an array is computed from the device's index on the mesh."""
    pending, seen = [array], set()
    while pending:
        array = without_derivatives(pending.pop())
        if not isinstance(array, DynamicJaxprTracer) or array.parent is None or id(array.parent) in seen:
            continue
        step = array.parent
        seen.add(id(step))
        if step.primitive is lax.axis_index_p:
            return True
        pending.extend(step.in_tracers)
    return False
