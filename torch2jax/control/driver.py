"""Where converted code begins: a call whose plain run has asked for a traced value starts again, converted."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import eval_jaxpr

from ..branches.path import Path
from ..branches.policy import BranchPolicy
from ..errors import BranchError, TracedValueError
from ..tensors.trees import flatten, map_results
from ..tracing.traces import current_trace, ending_with_errors
from ..translation import this_call
from ..values.traced_numbers import Number
from .merge import Unlike, expect_there
from .operators import OPERATORS
from .path import PathOfSource as PathOfSource
from .sink import sunk
from .state import Refused, Run, current_run, running
from .writes import ObjectJournal, can_be_put_back


def converted_run(
    attempt: Callable[[Path, bool], Any], policy: BranchPolicy, restored: Callable[[Any], bool] | None
) -> Any:
    """What a run gives in which code is converted.

    Args:
        attempt: runs the code on a path; gives a tree.
        restored: tells of an object whether it is as it was before the plain run.

    Raises:
        Refused: the code may be followed by running it once for each path.
        BranchError: it cannot be followed.
    """
    around, left = current_trace(), []

    def staged() -> list:
        with ending_with_errors(around):
            leaves, structure = flatten(attempt(PathOfSource(policy, current_trace()), True))
        is_array = [isinstance(x, (jax.Array, np.ndarray)) for x in leaves]
        left.extend((structure, [None if is_one else x for x, is_one in zip(leaves, is_array, strict=True)]))
        return [x for x, is_one in zip(leaves, is_array, strict=True) if is_one]

    with running(Run()) as kept:
        kept.outside, kept.was_restored = ObjectJournal(), restored
        try:
            program = sunk(jax.make_jaxpr(staged)())
            refused = kept.refusal
        except Refused as error:
            refused = kept.refusal or error
        except TracedValueError as error:
            refused = kept.refusal or Refused(str(error), other_paths=True)
            if restored is None or not can_be_put_back(kept, restored):
                raise
    if refused is not None:
        if refused.other_paths and (restored is None or can_be_put_back(kept, restored)):
            raise refused
        raise BranchError(refused.reason)
    structure, static = left
    arrays = iter(eval_jaxpr(program.jaxpr, program.consts))
    return structure.unflatten([next(arrays) if x is None else x for x in static])


def _put_back_traced(journal: ObjectJournal) -> None:
    """Puts back what objects from outside held in place of what is nothing outside of the call."""
    for key, place in journal.places.items():
        left = place.read()
        kind = type(left)  # not by isinstance, which asks what has ended
        parts = left if kind in (list, set) else left.values() if kind is dict else (left,)
        if any(issubclass(type(x), (Number, Unlike)) for x in parts):
            place.write(journal.before[key])


def call_converted(function: Callable, args: tuple, kwargs: dict) -> Any:
    """Calls a function of the user's, converted."""

    def leave(value: Any) -> Any:
        expect_there(value)
        return value

    journal = current_run().outside
    if journal is not None and not journal.places:
        this_call().ends.append(lambda: _put_back_traced(journal))
    return map_results(leave, OPERATORS.call(function, *args, **kwargs))
