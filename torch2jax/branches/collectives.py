"""Branches within `jax.shard_map`, of which the devices may go different ways.

A collective on one side alone would wait for those that go the other way, for ever.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import jax
from jax import lax

from ..errors import BranchError
from ..internals.jax_traces import DynamicJaxprTracer, varying_axes
from ..loops.program import Program, evaluated
from ..tracing.manual_axes import varying
from ..tracing.traces import without_derivatives

__all__ = ["cond_on_devices"]

_NAMES = frozenset(
    ("psum", "psum_invariant", "pmax", "pmin", "ppermute", "pbroadcast", "all_gather", "all_gather_invariant")
    + ("all_gather_reduced", "all_to_all", "ragged_all_to_all", "reduce_scatter", "unreduced_psum")
)


def cond_on_devices(predicate: Any, yes: Program, no: Program, values: dict[Any, Any]) -> list:
    """What one of two programs gives, on each device.

    Raises:
        BranchError: there is a collective on one side, and the predicate may differ between devices.
    """
    _expect_no_collectives(predicate, [*yes.statements, *no.statements])
    results = zip(yes.results, no.results, strict=True)
    axes = [varying_axes(one) | varying_axes(other) for one, other in results]

    def side(program: Program) -> list:
        return [varying(x, differing) for x, differing in zip(evaluated(program, values), axes, strict=True)]

    return lax.cond(predicate, lambda: side(yes), lambda: side(no))


def _expect_no_collectives(predicate: Any, statements: Iterable[Any]) -> None:
    found = next(_collectives(statements), None)
    if found is not None and (varying_axes(predicate) or _knows_place(predicate)):
        raise BranchError(
            f"got the collective {found!r} on one side of a branch that is not the same on all devices, as if rank == "
            "0: those that go the other way would be waited for. Wanted it behind the branch, or on both sides alike, "
            "with torch.where for what differs"
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
            if hasattr(statement, side):
                yield from _collectives(getattr(statement, side).statements)


def _knows_place(array: Any) -> bool:
    """Whether an array is computed of the device's place on the mesh."""
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
