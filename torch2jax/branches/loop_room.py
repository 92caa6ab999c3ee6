"""How much room there is for what loops make longer: as much as their iterations need, or as the user says."""

from typing import Any

from jax.core import Tracer
from jax.extend.core import Var

from ..errors import BranchError
from .loop_bounds import MOST, most_iterations
from .loop_facts import Facts, Loops
from .policy import BranchPolicy


class Learned(Exception):
    """What is known of loops has changed, and paths are gone anew: all of them, or those that lead to one loop."""


def iterations_back(node: Any, values: dict[Var, Any]) -> int | None:
    """How many iterations of a `while` come back at most, as numbers say that count.

    Args:
        node: the one of the tree of paths where the loop begins.
        values: those of constants.
    """

    def known(var: Any) -> Any:
        value = values.get(var)
        return None if isinstance(value, Tracer) else value

    return most_iterations([*node.iteration.paths(node.loop)], node.carried, node.first, known)


def guess_room(loops: Loops, loop: Facts, root: Any, values: dict[Var, Any]) -> None:
    """Lets all paths be gone anew if those that were gone tell how many iterations come back: others may tell more."""
    for node in root.nodes:
        if node.loop is loop and node.iteration is not None and any(True for _ in node.iteration.paths(loop)):
            loop.most = iterations_back(node, values) or None
    if loop.most is not None:
        loops.note(loop)
        raise Learned


def expect_room(loops: Loops, loop: Facts, found: int | None, policy: BranchPolicy) -> None:
    """Expects room for all iterations of a loop that makes something longer; else all paths are gone anew.

    What has been answered meanwhile because of how long it can be, holds in as many iterations as there is room for. So
    the paths that were gone are those of these iterations, and they tell how many come back.

    Args:
        found: how many iterations come back at most, as these paths tell.

    Raises:
        BranchError: nobody knows how many there are.
    """
    most = loop.most
    if loop.is_promised if found is None else most is not None and found <= most < MOST:
        return
    if found is None and most is not None and most < MOST and not loop.is_promised:  # that was a guess
        found = MOST
    if found is None and policy.max_steps is None:
        path = next(path for path, growth in loop.growth.items() if growth)
        raise BranchError(
            f"the loop at {loop.place} makes {path} longer in each iteration, by {loop.growth[path]}, and nothing "
            "bounds the number of iterations, so no array has room for it. Wanted a number that counts the iterations "
            "and is compared with a known one (`while n < 20 and ...`, `x.shape[1] < 20`), or t2j(..., max_steps=N) "
            "with the largest number of iterations that there can be"
        )
    promised = None if policy.max_steps is None else max(policy.max_steps - loop.at, 0)
    loop.most, loop.is_promised = (promised, True) if found is None else (found, False)
    loops.note(loop)
    raise Learned
