"""Who answers conditions on traced values: a plain run of code gives up at the first, a converted one has operators."""

from typing import Any, NoReturn

from jax import lax

from ..errors import BranchError, SourceLine, TracedValueError, caller_line, user_line
from ..restarts import Restart, RetryBudget
from ..tensors.tensor import Torchish
from ..tracing.traces import current_trace, decides, without_derivatives
from ..translation import Call, this_call
from .idle import idle_decision
from .policy import BranchPolicy
from .state import Refused, asking_way

_SETTLED = 2**11  # answers that the user has said: more are a loop which they do not end


class Path:
    """The path of a plain run, on which every condition has one answer.

    Args:
        trace: what JAX traces the code with.
    """

    def __init__(self, policy: BranchPolicy, trace: Any):
        self.policy, self.trace = policy, trace
        self._retry_budget: RetryBudget | None = None
        self._settled = 0
        """How many conditions had the answer that the user has said."""

    is_one_of_several = False
    """Whether the code runs again for other answers."""

    @property
    def retry_budget(self) -> RetryBudget:
        """The number of times that the code may catch what ends it."""
        if self._retry_budget is None:
            self._retry_budget = RetryBudget()
        return self._retry_budget

    def is_in_its_trace(self, call: Call) -> bool:
        """True if the code runs in the path's own trace, within no transformation that it has started."""
        return self.is_above(call) and (call.tape is None or call.tape.is_beside(self.trace))

    def is_above(self, call: Call) -> bool:
        """The same, also within derivatives that JAX takes of the code."""
        tape = call.tape
        is_there = current_trace() is self.trace if tape is None else tape.is_above(self.trace)
        return is_there and not call.transformations and call.dual is None

    def can_decide(self, tensor: Torchish) -> bool:
        """True if conditions on a tensor can be asked where the code is."""
        return self.policy.max_paths > 1 and decides(deciding_array(tensor), self.trace)

    def decision(self, tensor: Torchish, what: str) -> bool:
        """The answer to ``bool(tensor)``.

        Raises:
            TracedValueError: it cannot be asked there.
            BaseException: to who runs the code.
        """
        if this_call().execution.ended_by is not None:
            raise Restart(follows=True)
        location, asking = user_line(), caller_line()
        idle = idle_decision(asking)
        if idle is not None:
            return idle
        settled = self.policy.decision(location, asking) if self.policy.branches else None
        if settled is not None:
            self._expect_end(location)
        if settled is not None and self.policy.checks == "assume":
            self.expect(tensor, settled, location)
            return settled
        flag = _flag(tensor)
        if not decides(flag, self.trace) or (settled is None and self.policy.max_paths == 1):
            raise TracedValueError(what)
        if settled is not None:
            holds = flag if settled else lax.bitwise_not(flag)
            self.policy.check(holds, f"t2j was told that the answer is {settled}, at {location}")
            return settled
        return self._ask(flag, location)

    def _expect_end(self, location: SourceLine) -> None:
        """Refuses a loop that goes on for ever by what the user has said."""
        self._settled += 1
        if self._settled > _SETTLED:
            raise BranchError(
                f"bool(tensor) at {location} tests a traced value again and again, and `branches=` says the answer: "
                f"got {self._settled} tests. Wanted code that ends with these answers: choose one that ends the loop"
            )

    def expect(self, tensor: Torchish, decision: bool, location: SourceLine) -> None:
        """Lets results of the call tell, by nan, where a condition has another answer than was said."""
        call = this_call()
        if not self.is_in_its_trace(call):
            return
        flag = _flag(tensor)
        if decides(flag, self.trace):
            holds = flag if decision else lax.bitwise_not(flag)
            call.execution.expect_to_fit(holds, f"bool(tensor) at {location} was told that the answer is {decision}")

    def _ask(self, flag: Any, location: SourceLine) -> bool:
        self.discard()

    def convert(self) -> None:
        """Is called where converted code goes on, and other code does not: a first run is over."""
        if self.policy.max_paths > 1:
            self.discard()

    def discard(self) -> NoReturn:
        """Ends the run."""
        raise Restart(follows=True)

    def end(self) -> None:
        """Releases what is of the run that ends."""
        if self._retry_budget is not None:
            self._retry_budget.end()


_UNCONVERTED = (
    "tests a traced value in code that is not converted, since it has no source or is C's, or before an error that the "
    "code catches"
)


class PathOfSource(Path):
    """The path of converted code, on which operators ask. What code asks that is not converted is split.

    Args:
        is_one_of_several: whether the code runs once for each way through conditions that are split.
    """

    def __init__(self, policy: BranchPolicy, trace: Any, is_one_of_several: bool = False):
        super().__init__(policy, trace)
        self.is_one_of_several = is_one_of_several

    def _ask(self, flag: Any, location: SourceLine) -> bool:
        way, why = asking_way(), _UNCONVERTED
        if way is not None:
            return way.ask(flag, location, why)
        raise Refused(f"bool(tensor) at {location} {why}", other_paths=True)

    def convert(self) -> None:
        """Its code is converted."""


def deciding_array(tensor: Torchish) -> Any:
    """The array of a tensor that is asked, without derivatives."""
    tape = this_call().tape
    array = tensor.read()
    return without_derivatives(array if tape is None else tape.primal(array))


def _flag(tensor: Torchish) -> Any:
    array = deciding_array(tensor)
    array = array if array.shape == () else lax.reshape(array, ())
    return array if array.dtype == bool else lax.ne(array, lax.full_like(array, 0))


def decision(tensor: Torchish, what: str) -> bool:
    """The answer to ``bool(tensor)`` of a traced tensor of one element, where the code is.

    Args:
        what: the condition, for errors.

    Raises:
        TracedValueError: it cannot be asked there.
        BaseException: to who runs the code.
    """
    return this_call().paths[-1].decision(tensor, what)
