"""Notes on arguments that `jax.jit` refuses: JAX's message names the function, and its name can carry the note.

JAX flattens the arguments of a jitted function before it calls it, so no code of ours runs where one of them is a
tensor or an optimizer; and to register these classes as pytrees would change JAX for everybody. But JAX asks the
function for its text while it handles the error within. Only then is the text longer than the function's ``repr``.
"""

import dataclasses
import re
import sys

import torch

_OF_A_TENSOR = re.compile(r"torch\.\w+' as a data type|torch\.\w+'? not understood")
_OF_A_CLASS = re.compile(r"Cannot interpret value of type <class '([\w.]+)'> as an abstract array")
_ADVICE: dict[type, str] = {
    torch.nn.Module: "close over the module, or pass its arrays: t2j(module)(*args, state_dict=state)",
    torch.optim.Optimizer: "t2j(step, state=(model, optimizer)) takes its state",
    torch.optim.lr_scheduler.LRScheduler: "t2j(step, state=(model, optimizer, scheduler)) takes its state",
    torch.Generator: "leave it out, and pass a key: rng=jax.random.key(0)",
}


class TellsOfArguments:
    """A function of arrays whose text says what to do where `jax.jit` names it in an error about an argument."""

    def __str__(self) -> str:
        error = sys.exception()
        advice = _advice(str(error)) if isinstance(error, TypeError) else None
        return repr(self) if advice is None else f"{self!r} ({advice})"


def _advice(message: str) -> str | None:
    if _OF_A_TENSOR.search(message):
        return "got a tensor of PyTorch; wanted an array: t2j(tensor)"
    found = _OF_A_CLASS.search(message)
    kind = _class_of(found[1]) if found else None
    if kind is None:
        return None
    advice = next((_ADVICE[each] for each in kind.__mro__ if each in _ADVICE), None)
    if advice is None and dataclasses.is_dataclass(kind):
        advice = f"jax.tree_util.register_dataclass({kind.__name__}) lets JAX look into it"
    return None if advice is None else f"got a {kind.__name__}; wanted arrays: {advice}"


def _class_of(name: str) -> type | None:
    """A class by the name that its ``repr`` has; None of one that is defined in a function."""
    module, _, qualified = name.rpartition(".")
    found = getattr(sys.modules.get(module), qualified, None)
    return found if isinstance(found, type) else None
