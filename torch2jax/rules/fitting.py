"""Checks that a user's rule fits PyTorch's function: its parameters when it is declared, its results when it runs."""

import contextlib
import inspect
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from ..hints import nearest
from ..internals.operators import OpOverload, OpOverloadPacket
from .keywords import schemas, shared_name

__all__ = ["expect_fitting", "expect_no_writes", "results_of"]

_OF_THE_RULE = frozenset(("out", "device", "layout", "pin_memory", "requires_grad", "memory_format", "names"))


class _Parameters(NamedTuple):
    """Parameters by place and by keyword, and whether a call must give them."""

    places: dict[str, bool]
    keywords: dict[str, bool]
    takes_more: bool = False
    """Whether there may be others, whose names are not known."""

    @property
    def names(self) -> list[str]:
        return [*self.places, *self.keywords]

    def needs(self, name: str) -> bool:
        return self.places.get(name, False) or self.keywords.get(name, False)

    def __str__(self) -> str:
        parts = [name if needed else f"{name}=" for name, needed in self.places.items()]
        parts += ["*"] * bool(self.keywords) + [x if needed else f"{x}=" for x, needed in self.keywords.items()]
        return f"({', '.join(parts)})"


def expect_fitting(function: Any, body: Callable, name: str, place: str, skipped: int = 0) -> None:
    """Refuses the body of a rule that no call of PyTorch's function can run, or that names its arguments otherwise.

    What comes by place may have another name, and what may be left out may be lacking.

    Args:
        function: what the rule is declared for; nothing is refused where its parameters are not known.
        name: the function's name.
        place: where the body is.
        skipped: how many parameters the body has before those of the function.

    Raises:
        TypeError: the body does not fit.
    """
    taken = _of_body(body, skipped)
    known = list(_of_function(function))
    if not known or any(given.takes_more for given in known):
        return
    everywhere = [name for given in known for name in given.names]
    problems = [_problem(taken, given) or _misnamed(taken, given, everywhere) for given in known]
    if all(problems):
        raise TypeError(
            f"the rule for {name} at {place} takes {taken}: wanted the parameters of PyTorch's function, "
            f"{' or '.join(dict.fromkeys(map(str, known)))}: {problems[0]}"
        )


def expect_no_writes(function: Any, name: str, place: str) -> None:
    """Refuses a function that writes to its arguments, for a rule that returns new arrays: nothing would be written.

    Args:
        function: what the rule is declared for.
        name: the function's name.
        place: where the rule's body is.

    Raises:
        TypeError: every overload of the function writes, apart from ``out=``.
    """
    written = _written(_loaded(function), name)
    if written:
        raise TypeError(
            f"the rule at {place} is for {name}, which writes to {written}: wanted a function that only returns, since "
            "a rule of implements takes and returns arrays. Declare the rule with implements_tensors and write with "
            "x.copy_(...). In-place forms of PyTorch's functions have the rule of the function itself: that of "
            "torch.add serves add_"
        )


def results_of(function: Any, name: str, place: str) -> Callable[[Any], None] | None:
    """Gives what refuses results of a body that are not those of PyTorch's operator; None if these are not known.

    It raises a TypeError for another number of results, and for results that are no arrays.

    Args:
        function: what the rule is declared for.
        name: the function's name.
        place: where the rule's body is.
    """
    function = _loaded(function)
    if not isinstance(function, (OpOverload, OpOverloadPacket)):
        return None
    returned = {tuple(str(x.type) for x in schema.returns) for schema in schemas(function)}
    if len(returned) != 1 or set(*returned) != {"Tensor"}:
        return None
    count = len(*returned)

    def refusal(given: Any, wanted: str) -> TypeError:
        error = TypeError(f"the rule for {name} at {place} gave {_kind(given)}; wanted {wanted}")
        vars(error)["is_of_results"] = True
        return error

    def expect(result: Any) -> None:
        parts = result if isinstance(result, (tuple, list)) else (result,)
        is_single = not isinstance(result, (tuple, list))
        if len(parts) != count or is_single != (count == 1):
            raise refusal(result, "an array" if count == 1 else f"a tuple of {count} arrays")
        for part in parts:
            if not isinstance(part, (jax.Array, np.ndarray, np.generic)):
                raise refusal(part, "an array")

    return expect


def _kind(result: Any) -> str:
    """What a body gave, in words."""
    if isinstance(result, (tuple, list)):
        return f"a {type(result).__name__} of {len(result)}"
    return "an array" if isinstance(result, (jax.Array, np.ndarray)) else f"a {type(result).__name__}"


def _written(function: Any, name: str) -> str | None:
    """What a function writes to, in words; None if it has a form that writes to nothing, or is unknown."""
    if isinstance(function, (OpOverload, OpOverloadPacket)):
        writes = [[x.name for x in schema.arguments if x.is_write and not x.is_out] for schema in schemas(function)]
        return ", ".join(map(repr, writes[0])) if writes and all(writes) else None
    return "its tensor" if callable(function) and _says_that_it_writes(name) else None


def _says_that_it_writes(name: str) -> bool:
    """Whether a function's name is that of an in-place form: ``add_``, ``__iadd__``, ``__setitem__``."""
    if not name.endswith("__"):
        return name.endswith("_")
    plain = f"__{name[3:]}"  # of ``__iadd__``; ``__invert__`` and ``__index__`` have none
    return name in ("__setitem__", "__delitem__") or (hasattr(operator, name) and hasattr(operator, plain))


def _problem(taken: _Parameters, given: _Parameters) -> str | None:
    """Why no call with these parameters of PyTorch's can run the body; None if one can."""
    places = [*given.places]
    for place, name in enumerate(taken.places):
        own = shared_name(name, given.names)
        if own in places and places.index(own) != place:
            return f"{name!r} is number {places.index(own) + 1} there"
    lacking = [name for name in _apart(taken, given) if taken.needs(name)]
    if lacking:
        return f"{lacking[0]!r} is none of them"
    own = {shared_name(name, given.names) for name in taken.names}
    lacking = [
        name for name in (*places[len(taken.places) :], *given.keywords) if given.needs(name) and name not in own
    ]
    return f"the rule lacks {', '.join(map(repr, lacking))}" if lacking and not taken.takes_more else None


def _misnamed(taken: _Parameters, given: _Parameters, everywhere: list[str]) -> str | None:
    """A parameter of the body's that PyTorch has nowhere, while it has one that the body lacks.

    Where PyTorch has none left, the body has a use of its own for it.
    """
    unknown = [name for name in _apart(taken, given) if shared_name(name, everywhere) not in everywhere]
    own = {shared_name(name, given.names) for name in taken.names}
    left = [name for name in (*[*given.places][len(taken.places) :], *given.keywords) if name not in own]
    return f"{unknown[0]!r} is none of them{nearest(unknown[0], left)}" if unknown and left else None


def _apart(taken: _Parameters, given: _Parameters) -> list[str]:
    """The parameters of a body that get nothing, neither by place nor by name."""
    rest = [*[*taken.places][len(given.places) :], *taken.keywords]
    return [name for name in rest if shared_name(name, given.names) not in given.names]


def _of_body(body: Callable, skipped: int) -> _Parameters:
    found = _of_signature(inspect.signature(body))
    places = dict([*found.places.items()][skipped:])
    return _Parameters(places, {x: y for x, y in found.keywords.items() if x != "channels_last"}, found.takes_more)


def _loaded(function: Any) -> Any:
    """The operator of a name, or None if no library that is loaded has it; anything else as it is."""
    if not isinstance(function, str):
        return function
    namespace, _, name = function.partition("::")
    return getattr(getattr(torch.ops, namespace), name, None)


def _of_function(function: Any) -> Iterator[_Parameters]:
    """The parameters of each overload of a function, as far as they are known."""
    function = _loaded(function)
    if isinstance(function, type) and issubclass(function, torch.nn.Module):
        function = function.forward
    if inspect.isfunction(function):
        with contextlib.suppress(ValueError):  # it wraps one of C++
            yield _of_signature(inspect.signature(function))
    elif callable(function):
        for schema in schemas(function):
            arguments = [x for x in schema.arguments if not x.is_out and x.name not in _OF_THE_RULE]
            if isinstance(function, types.MethodDescriptorType):  # the tensor comes first, wherever it is in the schema
                arguments.sort(key=lambda x: x.name != "self")
            is_documented = not isinstance(
                function, (OpOverload, OpOverloadPacket)
            )  # where the first tensor is "input"
            names = {x.name: "input" if is_documented and x.name == "self" else x.name for x in arguments}
            places = {names[x.name]: not x.has_default_value() for x in arguments if not x.kwarg_only}
            yield _Parameters(places, {x.name: not x.has_default_value() for x in arguments if x.kwarg_only})


def _of_signature(signature: inspect.Signature) -> _Parameters:
    places, keywords, takes_more = {}, {}, False
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            takes_more = True
        elif name not in _OF_THE_RULE:
            found = keywords if parameter.kind is parameter.KEYWORD_ONLY else places
            found[name] = parameter.default is parameter.empty
    return _Parameters(places, keywords, takes_more)
