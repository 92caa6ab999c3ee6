"""The registry of rules: how they are declared and found."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ..internals.dispatch import OpOverload, OpOverloadPacket
from ..runtime.layers import SELECTIONS
from ..tensors.dtypes import Takes, expect
from .options import Tag
from .rule import MetadataRule, OverloadedRule
from .tables import (
    PROVIDED,
    TAGS_WITHOUT_RULE,
    Rules as Rules,
    cached as cached,
    lookup as lookup,
    lookup_aten as lookup_aten,
    name_of,
    tags_of as tags_of,
)

implements = PROVIDED.implements
implements_tensors = PROVIDED.implements_tensors

_PACKAGE = __name__.partition(".")[0] + "."
_masked_rules: dict[object, Callable] = {}
_sparse_rules: dict[object, Callable] = {}
_rules_by_length: dict[object, "ByLength"] = {}
_decomposed: dict[OpOverload, Takes] = {}


def implements_overloads(
    *functions: Callable[..., object] | str, tags: Iterable[Tag] = ()
) -> Callable[[Callable], Callable]:
    """Declares the decorated function to choose, from a call's arguments, the function with a rule that these mean.

    Args:
        functions: as those of `implements`.
        tags: what all of these are, beyond what PyTorch's schemas of them say.
    """

    def register(choose: Callable) -> Callable:
        rule = OverloadedRule(choose, lookup, name_of(functions[0]), tags)
        PROVIDED.functions.update(dict.fromkeys(functions, rule))
        PROVIDED.declared += 1
        return choose

    return register


def implements_masked(*functions: Callable[..., Any] | str) -> Callable[[Callable], Callable]:
    """Declares the decorated function as the rule of functions with a `masked.Masked` among their arguments.

    Rules that are elementwise need no such declaration.
    """

    def register(body: Callable) -> Callable:
        _masked_rules.update(dict.fromkeys(functions, body))
        return body

    return register


def implements_sparse(*functions: Callable[..., Any] | str) -> Callable[[Callable], Callable]:
    """Declares the decorated function as the rule of functions with a sparse argument.

    It gets the tensors. Those of sparse layouts are `sparse.Sparse`, or of PyTorch's own where PyTorch makes them.
    """

    def register(body: Callable) -> Callable:
        _sparse_rules.update(dict.fromkeys(functions, body))
        return body

    return register


class ByLength(NamedTuple):
    """The rule of a function for numbers that data decide; see `implements_by_length`."""

    rule: Callable
    value: int | None
    takes_tensors: bool


def implements_by_length(
    *functions: Callable[..., object] | str, value: int | None = None, takes_tensors: bool = False
) -> Callable[[Callable], Callable]:
    """Declares the decorated function as the rule of functions with a data-dependent number among their arguments.

    A size is meant, a place to begin or end at, or how many of something there are.

    Args:
        value: the place of an argument that is none of these, but what is written.
        takes_tensors: whether a traced tensor that has one whole number is such a number as well.
    """

    def register(body: Callable) -> Callable:
        _rules_by_length.update(dict.fromkeys(functions, ByLength(body, value, takes_tensors)))
        return body

    return register


def implements_metadata(*functions: Callable[..., object]) -> None:
    """Declares that PyTorch itself answers these functions of a tensor's metadata."""
    PROVIDED.declared += 1
    for function in functions:
        PROVIDED.functions[function] = MetadataRule(function, name_of(function))


def tag(*functions: Callable[..., object] | str, tags: Iterable[Tag]) -> None:
    """Declares the tags of functions without a rule."""
    for function in functions:
        TAGS_WITHOUT_RULE[function] = frozenset(tags)


def limit_decomposed(*operators: OpOverload, takes: Takes) -> None:
    """Declares the dtypes that operators without a rule are defined for: PyTorch's decompositions take others too."""
    _decomposed.update(dict.fromkeys(operators, takes))


def check_decomposed(operator: OpOverload, args: tuple) -> None:
    """Refuses a dtype that an operator without a rule is not defined for."""
    if operator in _decomposed:
        expect(name_of(operator), args[0].dtype, _decomposed[operator])


def lookup_masked(function: Callable[..., Any]) -> Callable | None:
    """The rule of a function for a `masked.Masked`, or None; that of an operator may be declared by name."""
    SELECTIONS.load()
    found = _masked_rules.get(function)
    if found is None and isinstance(function, (OpOverload, OpOverloadPacket)):
        packet = function.overloadpacket if isinstance(function, OpOverload) else function
        found = _masked_rules.get(packet._qualified_op_name)
    return found


def lookup_sparse(function: Callable[..., Any]) -> Callable | None:
    """The rule of a function for tensors of a sparse layout, if one is declared."""
    found = _sparse_rules.get(function)
    if found is None and isinstance(function, OpOverload):
        found = _sparse_rules.get(function.overloadpacket)
    return found


def lookup_by_length(function: Callable[..., object]) -> ByLength | None:
    """The rule of a function for data-dependent numbers, if there is one."""
    return _rules_by_length.get(function)


def is_provided(rule: Any) -> bool:
    """Returns True if a rule is the package's, and computes what PyTorch does."""
    body = getattr(rule, "body", None)
    while body is None and hasattr(rule, "rule"):  # a form of another
        rule = rule.rule
        body = getattr(rule, "body", None)
    return body is None or body.__module__.startswith(_PACKAGE)
