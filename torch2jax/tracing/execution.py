"""One run of a function, as the call that it runs in knows it: its path, its inputs and keys, and how it ends.

`transforms/runs.py` says which runs there are, and `transforms/inputs.py` what one may know of its inputs.
"""

import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from jax import lax

from ..runtime.errors.locations import SourceLine
from ..runtime.errors.unwinding import Restart, Unwind
from ..runtime.translation import this_call
from ..tensors.array_buffer import ArrayBuffer
from ..tensors.history import Node, Source
from ..tensors.tensor import Torchish, wrap
from ..tensors.traced import is_traced
from .conditions import BranchPolicy, Path
from .traces import current_trace
from .user_code import PLAIN, UserCode


class Pass(NamedTuple):
    """A backward pass that a run makes in place of JAX."""

    wanted: list
    """The arrays whose cotangents it computes."""
    cotangents: list
    """The cotangents of the floating-point results; None for zero."""


class Inputs:
    """The facts about the arrays from outside that a run begins with: of each event, nothing, by default."""

    passes: tuple[Pass, ...] = ()
    """The backward passes at the end of the run, each with respect to results of the one before."""
    is_over = False
    """True if the call has ended, and the run is for a derivative that JAX takes later."""
    is_forwards = False
    """True if the run is for a forward-mode derivative alone, which no hook sees."""

    def begin(self) -> None:
        """Called when a run begins."""

    def entering(self, array: jax.Array) -> jax.Array:
        """The array that the run uses in place of one from outside."""
        return array

    def is_differentiated(self, array: jax.Array) -> bool:
        """Returns True if JAX differentiates the array that the run uses in place of one from outside."""
        del array
        return False

    def ask(self, tensor: Torchish) -> None:
        """Called before code is told that a tensor requires no grad."""

    def expect_hook(self, tensor: Torchish | None, hooks: object) -> None:
        """Called before code registers hooks on the gradient of a tensor, or of a node."""


class StreamState(NamedTuple):
    """The state from which a random stream continues."""

    key: jax.Array | None
    taken: int
    """The number of keys derived from that one."""
    seed: int | None
    before: Any = 0
    """The number of keys derived before, where that number is traced."""


class Drawing:
    """An interpreter of the keys that some code draws, which lies on their stream: it leaves them, by default."""

    level: Any = None
    """The transformation that it belongs to."""

    def expect_allowed(self) -> None:
        """Called before a key is drawn.

        Raises:
            RuntimeError: the code may draw none.
        """

    def key(self, key: jax.Array) -> jax.Array:
        """The key that the code gets for one from below."""
        return key


class Execution:
    """One of the runs of a function.

    Args:
        depth: how deep a tape it keeps.
        left: the tensors that began to require grad by themselves in the run before, which was abandoned: the code may
            have put them aside, and find them there.
        path: how conditions on traced values are answered.
        constants: copies of tensors from outside, and the arrays of these, that runs have in common.
        inputs: what it knows of its arrays from outside; None where nobody is to be told more.
        tracks_lengths: whether ``len`` and the like take data-dependent lengths from the beginning.
        number_modules: the modules in which functions of Python's take numbers that data decide from the beginning, by
            their dictionaries, and whether ``float`` and ``int`` do, too.
        code: the user's code as the run has it.
    """

    def __init__(
        self,
        depth: int = 0,
        left: Iterable[Torchish] = (),
        path: Path | None = None,
        constants: dict[int, tuple[torch.Tensor, torch.Tensor, jax.Array]] | None = None,
        inputs: Inputs | None = None,
        tracks_lengths: bool = False,
        number_modules: list[tuple[dict[str, object], bool]] | None = None,
        code: UserCode = PLAIN,
    ):
        self.code = code
        self.depth, self.left, self.constants, self.inputs = depth, list(left), constants, inputs
        self.tracks_lengths = tracks_lengths
        self.number_modules = [] if number_modules is None else number_modules
        self.fits: Torchish | None = None
        """True, as a tensor, if all that data decide fits. Code writes to it as to any tensor, so that loops carry it,
        and checkpoints and branches return it. None where lengths are not heeded from the beginning."""
        self.path = path or Path(BranchPolicy(max_paths=1), None)
        self.ended_by: Unwind | None = None
        """Why it is over, even if the code has caught that."""
        self.left_pytorch: SourceLine | None = None
        """The line where code first took floats out of PyTorch, as NumPy arrays or Python lists."""
        self._started: weakref.WeakSet[Source] | None = None
        self.given: list[tuple[Any, Torchish, Source]] = []
        """The inputs that its backward passes end at, if it runs some: arrays, with their tensors and nodes."""
        self.stays: list[tuple[bool, Any, Any, Any]] = []
        """Changes that it has left in modules from outside, for other runs of the same call to undo: `outer_state`."""
        self.ends: list[tuple[Any, Node | None]] = []
        """The outputs that these backward passes begin at: arrays that leave the call, with their nodes."""

    @property
    def started(self) -> "weakref.WeakSet[Source]":
        """The leaves that were made in this run."""
        if self._started is None:
            self._started = weakref.WeakSet()
        return self._started

    @property
    def passes(self) -> "tuple[Pass, ...]":
        """The backward passes that the run makes in place of JAX."""
        return () if self.inputs is None else self.inputs.passes

    def entering(self, array: jax.Array) -> jax.Array:
        """The array that the run uses in place of one from outside."""
        return array if self.inputs is None else self.inputs.entering(array)

    def is_differentiated(self, array: jax.Array) -> bool:
        """Returns True if the run knows that JAX differentiates the array that it uses in place of one from outside."""
        return self.inputs is not None and self.inputs.is_differentiated(array)

    def expect_to_fit(self, fits: Any, text: str) -> None:
        """Makes results of the call report where a traced bool is false.

        Args:
            fits: whether what data decide fits, as an array.
            text: what is said where it does not and somebody checks that.

        Raises:
            Restart: lengths are not supported from the beginning of the run; `Runs` catches that.
        """
        if self.fits is None:
            raise Restart
        self.path.policy.check(fits, text)
        storage = self.fits._node.storage
        storage.write(ArrayBuffer(lax.bitwise_and(storage.read(), fits), None), None)

    def expect_hook(self, hooks: object, tensor: Torchish | None = None) -> None:
        """Called before hooks on the gradient of a tensor, or of a node, are registered.

        Raises:
            NeedsInputs, NeedsHooks: the gradient may be JAX's; `Runs` catches that.
            NotImplementedError: it is one of `torch.func`.
        """
        call = this_call()
        if current_trace() is not call.top_level[0] and any(level.takes_gradients for level in call.transformations):
            raise NotImplementedError(
                "got a hook on a gradient in a function that torch.func differentiates, which would not call the "
                "hook; wanted torch.autograd.grad, which calls hooks, or a torch.autograd.Function whose "
                "backward does what the hook does"
            )
        if self.inputs is not None:
            self.inputs.expect_hook(tensor, hooks)

    def note_given(self, array: jax.Array, tensor: Torchish) -> None:
        """Notes the leaf for an array that JAX differentiates."""
        if self.passes and self.is_differentiated(array) and isinstance(tensor.history, Source):
            self.given.append((array, tensor, tensor.history))

    def note_end(self, array: jax.Array, tensor: Torchish) -> None:
        """Notes which array of a tensor leaves the call."""
        if self.passes:
            self.ends.append((array, tensor.history))

    def begin(self) -> None:
        """Makes tensors that the abandoned run left leaves of this one."""
        if self.tracks_lengths:
            self.fits = wrap(np.array(True), torch.bool)  # pyright: ignore[reportArgumentType] - no value that JAX traces
        for tensor in self.left:
            tensor.start_history()

    def discard(self) -> None:
        """Removes derivatives, which no other run knows, from this run's tensors; traced tensors end with it."""
        tape, self.left = this_call().tape, []
        for source in self.started:
            tensor = source.variable
            if tensor is None:  # its storage lives on in others, as one that was made of it without gradients
                continue
            storage = tensor._node.storage
            if storage.is_released:  # it was made in a branch, which has ended
                continue
            array, layout = storage.buffer
            values = array if tape is None else tape.primal(array)
            if storage.history is source and not is_traced(values):
                storage.history = None
                storage.write(ArrayBuffer(values, layout), None, keeps_derivatives=True)
                tensor._gradient = None
                self.left.append(tensor)
