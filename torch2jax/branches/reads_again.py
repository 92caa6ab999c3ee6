"""What a path has read before others join it, read again behind the join.

A view keeps its elements once they are taken out of its memory, for later reads. Where paths join, the one that goes on
has kept elements that others have not taken: in the graph they are there on its own side of the branch only. So the
operations that take them appear again behind it.
"""

from typing import Any

from jax.extend.core import Var

from .joined_paths import PathNode
from .joins import AskedAt, JoinPoints
from .loop_room import Learned
from .programs import new_var

_READS = frozenset(
    ("reshape", "transpose", "slice", "squeeze", "broadcast_in_dim", "expand_dims", "rev", "dynamic_slice", "gather")
    + ("copy", "copy_p", "real", "imag", "complex", "conj", "neg", "convert_element_type", "iota")
)
"""Operations that take elements out of memory."""


class ReadsAgain:
    """The reads of a path that goes on for others.

    Args:
        node: where they part.
        asked: the condition.
    """

    def __init__(self, node: PathNode, asked: AskedAt, points: JoinPoints):
        self._node, self._asked, self._points, self._parted = node, asked, points, node.parted

    def again(self, var: Any) -> Any:
        """The variable itself, or one that has the same value behind the join.

        Raises:
            Learned: the path has kept something else there, where nobody looks.
        """
        if not isinstance(var, Var) or var not in self._parted:
            return var
        step = self._parted[var]
        if var not in self._node.found_again:
            if step is None or step.primitive.name not in _READS:
                self._points.refuse(self._asked, "what is computed there is kept where nobody sees it")
                raise Learned
            outvars = [new_var(x.aval) for x in step.outvars]
            self._node.read_again.append(step.replace(invars=[*map(self.again, step.invars)], outvars=outvars))
            self._node.found_again.update(zip(step.outvars, outvars, strict=True))
        return self._node.found_again[var]
