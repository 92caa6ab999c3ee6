"""Tracebacks: the module path and the user's line of an error, without torch2jax's own frames.

JAX hides its frames at its own functions, `jax.jit` for one. Its filter is not used: it is private, and what it shows
of a line within a ``with`` or ``try`` is the end of that statement.

Also here: notes on arguments that `jax.jit` refuses. JAX's message names the function, and its name can carry the note.

JAX flattens the arguments of a jitted function before it calls it, so no code of ours runs where one of them is a
tensor or an optimizer; and to register these classes as pytrees would change JAX for everybody. But JAX asks the
function for its text while it handles the error within. Only then is the text longer than the function's ``repr``.
"""

import dataclasses
import dis
import functools
import itertools
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from typing import TypeVar, cast

import jax
import torch

from ...internals.modules import disable_dynamo
from ..translation import current
from . import NoRuleError, TracedValueError
from .hints import hints_at
from .locations import is_library, is_pytorch, is_translator

_OF_A_TENSOR = re.compile(r"torch\.\w+' as a data type|torch\.\w+'? not understood")
_OF_A_CLASS = re.compile(r"Cannot interpret value of type <class '([\w.]+)'> as an abstract array")
_ADVICE: dict[type, str] = {
    torch.nn.Module: "close over the module, or pass its arrays: t2j(module)(*args, state_dict=state)",
    torch.optim.Optimizer: "t2j(step, state=(model, optimizer)) takes its state",
    torch.optim.lr_scheduler.LRScheduler: "t2j(step, state=(model, optimizer, scheduler)) takes its state",
    torch.Generator: "leave it out, and pass a key: rng=jax.random.key(0)",
}


class TellsOfArguments:
    """A function of arrays whose ``repr`` gives advice, where `jax.jit` names it in an error about an argument."""

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
    """The class with this ``repr``; None for one that is defined in a function."""
    module, _, qualified = name.rpartition(".")
    found = getattr(sys.modules.get(module), qualified, None)
    return found if isinstance(found, type) else None


C = TypeVar("C", bound=Callable)

_SWITCH = "JAX_TRACEBACK_FILTERING"
_NOTE = f"--------------------\ntorch2jax has left its own frames out. Set {_SWITCH}=off to see them."
_calls_of_modules: set[types.CodeType] = set()


def is_call_of_module(method: C) -> C:
    """Declares that ``self._path`` of a method is the path of the module that it calls, its argument ``module``."""
    _calls_of_modules.add(method.__code__)
    return method


def add_location(error: Exception) -> None:
    """Notes the module that an error comes from, and the user's line unless its message has that."""
    path = line = module = None
    for step in _steps(error.__traceback__):
        code = step.tb_frame.f_code
        if code in _calls_of_modules:
            path, module = step.tb_frame.f_locals["self"]._path, step.tb_frame.f_locals["module"]
        if not is_library(code.co_filename):
            line = f"{code.co_filename}:{step.tb_lineno}", code.co_name
    if path is None:
        return
    note = f"raised in the module {path}{_described(module)}"
    given = "".join(traceback.format_exception_only(error))
    if note in given:
        return
    if line is not None and line[0] not in given:
        note += f", at {line[0]} in {line[1]}"
    add_note(error, note)


def _described(module: object) -> str:
    """A module without parts, as its ``repr`` shows it: it says what a layer expects."""
    if vars(module).get("_modules", True):  # True: a copy may have lost them by now
        return ""
    try:
        return f" ({module!r})"
    except Exception:  # the user's own text, which may ask for values
        return ""


def hides_frames() -> bool:
    """Returns True if JAX hides its frames; torch2jax then hides its own."""
    mode = jax.config.jax_traceback_filtering  # pyright: ignore[reportAttributeAccessIssue]
    return mode not in ("off", "remove_frames")  # with the latter JAX shows both, and needs all of them


def without_frames(error: BaseException) -> None:
    """Hides the frames of JAX and of this package in an error, and in its causes."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        each = todo.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            kept = None
            for step in reversed(list(_shown(each.__traceback__))):
                kept = types.TracebackType(kept, step.tb_frame, step.tb_lasti, step.tb_lineno)
            each.with_traceback(kept)
            todo += each.__cause__, each.__context__


def boundary(function: C) -> C:
    """A function whose errors leave it without the frames of this package, where no translated code calls it.

    What looks at the frames within, as following the ways through code does, sees all of them.
    """

    @functools.wraps(function)
    def run(*args, **kwargs):
        if torch.compiler.is_dynamo_compiling():  # a call that it leaves out of its graph must not be within a ``try``
            return _outside_graph(function, args, kwargs)
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if current() is None:
                _tell_user(error, function, args, kwargs)
            raise

    return cast(C, run)


@disable_dynamo
def _outside_graph(function: Callable, args: tuple, kwargs: dict):
    """Runs a call as PyTorch runs it eagerly: code of this package is not for PyTorch's compiler to take apart."""
    return function(*args, **kwargs)


def _tell_user(error: Exception, function: Callable, args: tuple, kwargs: dict) -> None:
    """Prepares an error for the user who called `function`."""
    called = (args[0], args[1:]) if function.__name__ == "__call__" else (function, args)
    for hint in hints_at(error, *called, kwargs):
        add_note(error, hint)
    if hides_frames():
        without_frames(error)
        if not any(_SWITCH in str(note) for note in getattr(error, "__notes__", ())):  # JAX has told of it
            add_note(error, _NOTE)


def _steps(step: types.TracebackType | None) -> Iterator[types.TracebackType]:
    while step is not None:
        yield step
        step = step.tb_next


def _shown(step: types.TracebackType | None) -> Iterator[types.TracebackType]:
    """The frames of the user's code and of code that it calls, without PyTorch code that this package calls."""
    is_ours = False
    for each in _steps(step):
        file = each.tb_frame.f_code.co_filename
        was_ours, is_ours = is_ours, is_translator(file)
        if not is_ours and not (was_ours and is_library(file) and not file.startswith("<")):  # as code typed in a shell
            yield each


def add_note(error: Exception, note: str) -> None:
    try:
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
    except Exception:  # it cannot be written to, as a frozen dataclass
        pass


def is_raised_by_code(error: BaseException, caller_file: str) -> bool:
    """Returns True if code itself raises an exception, with a ``raise`` or ``assert`` of its own, as a check does.

    It does not where an operation fails, or in answer to what PyTorch, JAX or this package raises. PyTorch's Python
    code does where the same file has asked for a value before, as `torch.distributions` does, and in ``torch._check``.

    Args:
        caller_file: the file that has asked for a value last.
    """
    if _fails_while_raising(error, caller_file):
        return True
    raised: BaseException | None = error
    while raised is not None:
        frame = _innermost_of(raised)
        if frame is None:
            return False
        file, operation = frame
        if isinstance(raised, (TracedValueError, NoRuleError)) or is_translator(file):
            return False
        if is_pytorch(file) and file not in (caller_file, str(torch.__file__)):
            return False
        if raised is error and operation != "RAISE_VARARGS":
            return False
        raised = raised.__cause__ or raised.__context__
    return True


def _fails_while_raising(error: BaseException, caller_file: str) -> bool:
    """True if an exception comes while code makes the one that it is about to raise: a message that shows values."""
    for step in _steps(error.__traceback__):
        code = step.tb_frame.f_code
        is_of_code = not is_library(code.co_filename) or code.co_filename == caller_file
        if is_of_code and _is_raising(code, step.tb_lasti):
            return True
    return False


def _is_raising(code: types.CodeType, offset: int) -> bool:
    """Returns True if an instruction is in the expression of a ``raise``, or in the message of an ``assert``.

    A ``raise`` has all of its expression within its place in the source, also loops of comprehensions and conditions.
    The place of an ``assert`` may be its condition: its message lies between the class of its error and the end.
    """
    here = next(itertools.islice(code.co_positions(), offset // 2, None))
    asserted = None
    for instruction in dis.get_instructions(code):
        if instruction.opname in _ASSERTING and instruction.argrepr in ("", "AssertionError"):
            asserted = instruction.offset
        elif instruction.opname == "RAISE_VARARGS":
            if instruction.offset == offset:
                return False
            if asserted is None and _is_within(here, instruction.positions):
                return True
            if asserted is not None and asserted < offset < instruction.offset:
                return True
            asserted = None
    return False


_ASSERTING = ("LOAD_ASSERTION_ERROR", "LOAD_COMMON_CONSTANT")  # the latter of other things too, since Python 3.14


def _is_within(part: tuple, full: dis.Positions | None) -> bool:
    """Returns True if a position in the source lies in another; a file may be compiled without positions."""
    if full is None or None in part or None in full:
        return False
    (first, last, start, end), (begins, ends, left, right) = part, full
    return (begins, left) <= (first, start) and (last, end) <= (ends, right)


def _innermost_of(error: BaseException) -> tuple[str, str] | None:
    """The file that an exception comes from, and the operation of Python that raised it."""
    steps = list(_steps(error.__traceback__))
    if not steps:
        return None
    code = steps[-1].tb_frame.f_code
    return code.co_filename, dis.opname[code.co_code[steps[-1].tb_lasti]]
