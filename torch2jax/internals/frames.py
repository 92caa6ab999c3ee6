"""Python frames and code: values that JAX's loops carry, frames being traced, and lists that a copy writes to."""

import copy
import inspect
import sys
import types

import jax
from jax import lax

_LOOPS = {inspect.unwrap(loop).__code__ for loop in (lax.scan, lax.while_loop)}  # as which `lax.fori_loop` runs
_CARRIES = ("init", "init_flat", "init_val", "init_val_flat")
"""The variables of JAX's loops for the carried values: a tree or, later on, an object with ``unflatten()``."""


def loop_that_carries(tree: object) -> str | None:
    """The name of JAX's innermost loop that is being traced, if it carries a tree of this structure; or None."""
    wanted, frame = jax.tree.structure(tree), sys._getframe(1)
    while frame is not None:
        if frame.f_code in _LOOPS:
            found = [frame.f_locals[name] for name in _CARRIES if name in frame.f_locals]
            carried = [x.unflatten() if hasattr(x, "unflatten") else x for x in found]
            leaves = jax.tree.leaves(carried, is_leaf=lambda x: jax.tree.structure(x) == wanted)
            return frame.f_code.co_name if any(jax.tree.structure(x) == wanted for x in leaves) else None
        frame = frame.f_back
    return None


KEEP_ALIVE: types.CodeType = copy._keep_alive.__code__  # pyright: ignore[reportAttributeAccessIssue]
"""The function that `copy.deepcopy` keeps objects alive with: it writes to a list in a dictionary of its own."""
