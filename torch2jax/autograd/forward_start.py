"""The start of an autograd function's forward pass: what it has recorded since, and how to run it again.

A forward may compute with gradients on, on tensors that it has detached, and keep the results for its backward to
differentiate. That history ends with the call. A backward that runs later lets the forward record it again.
"""

from typing import Any, NamedTuple

import torch
from torch.autograd.function import FunctionCtx

from ..functional.batching_rule import run_rule
from ..functional.vmap import Batch
from ..internals.gradients import set_fwd_grad_enabled
from ..tensors.history import UNRECORDED, next_node
from ..tensors.memory import next_number
from ..tensors.tensor import Torchish
from ..tracing.call import StreamState
from .call import AutogradCall

__all__ = ["Start", "run_forward"]


class Start(NamedTuple):
    """Where a run of an autograd function began."""

    args: tuple
    """Its arguments."""
    stream: StreamState
    """The state of the random stream."""
    memory: int
    node: int
    """Numbers below those of memories and nodes that it has made."""

    @classmethod
    def of(cls, call: AutogradCall, args: tuple) -> "Start":
        return cls(args, call.stream.state, next_number(), next_node())

    def has_recorded(self, tensor: Torchish) -> bool:
        """Whether the history of a tensor is the run's own: it has computed it with gradients on."""
        history, memory = tensor.history, tensor._node.storage.memory
        if history is UNRECORDED:
            return memory.number > self.memory
        return history is not None and history._sequence_nr() > self.node


def run_forward(
    function: type[torch.autograd.Function], ctx: FunctionCtx, args: tuple, batch: Batch | None = None
) -> Any:
    """Runs the forward of an autograd function, with a context for what it saves; for a batch its rule for that."""
    with torch.no_grad(), set_fwd_grad_enabled(False):
        if function.setup_context is torch.autograd.Function.setup_context:
            return function.forward(ctx, *args)
        output = function.forward(*args) if batch is None else run_rule(function.vmap, args, batch)
        function.setup_context(ctx, args, output)
        return output
