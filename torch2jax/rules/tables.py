"""A table of rules, and the family of functions that each rule serves.

A rule is written once, for one PyTorch function. From its name the table derives the method, the operator, the
reflected operator, the in-place forms and, when asked, the ATen overloads whose arguments it can take.
"""

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from types import FrameType, FunctionType
from typing import Any, TypeVar, Unpack

import torch

from ..internals.dispatch import OpOverload, OpOverloadPacket, dispatch_get_all_op_names
from ..runtime.errors.locations import nearest
from ..runtime.layers import LAYERS, Layer
from ..tensors import history
from ..tensors.dtypes import Takes
from .array_rule import ArrayRule
from .inplace import InPlace, WithFlag
from .options import NO_TAGS, RuleKeywords, RuleOptions, Tag, Tags, operators_of, tags_of_operators
from .rule import Reflected, TensorRule, expect_no_writes, replace_forward, results_of

_T = TypeVar("_T")

OPERATORS = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "div": "truediv",
    "floor_divide": "floordiv",
    "remainder": "mod",
    "pow": "pow",
    "matmul": "matmul",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
    "bitwise_left_shift": "lshift",
    "bitwise_right_shift": "rshift",
    "eq": "eq",
    "ne": "ne",
    "lt": "lt",
    "le": "le",
    "gt": "gt",
    "ge": "ge",
    "neg": "neg",
    "positive": "pos",
    "bitwise_not": "invert",
    "abs": "abs",
}
"""Functions that operators of Python run, by their names: ``torch.div`` is ``__truediv__``."""
_FACTORY_KEYWORDS = {"device", "layout", "pin_memory", "out", "memory_format", "generator", "names", "dtype"}


class Rules:
    """Scoped rules: inside the ``with`` block they take precedence over all other rules::

        fast = Rules()

        @fast.implements(torch.nn.functional.gelu)
        def gelu(input, approximate="none"):
            return jax.nn.gelu(input, approximate == "tanh")

        with fast:
            result = jax.jit(t2j(model))(x)

    A traced program keeps the rules of its trace: a function that was jitted before is not traced again. The innermost
    block wins. Other threads do not see the rules.
    """

    def __init__(self):
        self.functions: dict[Any, Any] = {}
        self._by_name: dict[str, ArrayRule] = {}
        self._found: dict[OpOverload, Any] = {}
        self.declared = 0
        """The number of declarations so far."""
        self._of_users: set[Any] = set()

    def __enter__(self) -> "Rules":
        _entered.set((self, *_entered.get()))
        return self

    def __exit__(self, *exc_info: object) -> None:
        entered = _entered.get()
        position = entered.index(self)
        _entered.set((*entered[:position], *entered[position + 1 :]))

    def implements(
        self,
        *functions: Callable[..., object] | str,
        replace: bool = False,
        **options: Unpack[RuleKeywords],
    ) -> Callable[[Callable], Callable]:
        """Declares the decorated function, from jax arrays to jax arrays, as the rule for PyTorch functions.

        Args:
            functions: `torch` functions, methods, or operators (``torch.ops.aten.add``, ``torch.ops.aten.add.Tensor``).
                The first one names the rule. The rule also covers methods, operators, in-place and ``out=`` forms and
                ATen overloads. Name an operator with a string if its library may not be loaded, or if older PyTorch
                lacks it: ``"torchvision::nms"``.
            replace: replace another rule of yours for these functions. The package's own rules are always replaced.
            options: further options of the rule; see `RuleOptions`.

        Raises:
            TypeError: one of `functions` is a class, or not a function, or writes to its arguments.
            ValueError: one of them is an unknown name in a library that is loaded; or has another rule already.
        """
        functions, given = _without_classes(_checked(functions)), RuleOptions(**options)
        is_pytorchs = _is_in_package(sys._getframe(1))
        if not is_pytorchs:
            given = dataclasses.replace(given, has_own_values=True)

        def register(body: Callable) -> Callable:
            if not is_pytorchs:
                self._expect_new(functions, body, replace)
                for function in functions:
                    expect_no_writes(function, name_of(function), _location_of(body))
            name = name_of(functions[0])
            rule = ArrayRule(body, name, given)
            if is_pytorchs and not isinstance(functions[0], str):
                rule.function = functions[0]
            if not is_pytorchs and len(functions) == 1:
                rule.expect_results = results_of(functions[0], name, _location_of(body))
            _note_derivatives(rule)
            for function in self._free(functions, is_pytorchs):
                self._add_family(function, rule, is_pytorchs)
            return body

        return register

    def implements_tensors(
        self,
        *functions: Callable[..., object] | str,
        takes: Takes | None = None,
        tags: Iterable[Tag] = (),
        replace: bool = False,
    ) -> Callable[[Callable], Callable]:
        """Declares the decorated function as the rule for exactly these functions. It receives the tensors themselves.

        Args:
            functions: as in `implements`; or classes of modules, whose ``forward`` the rule replaces. The rule then
                receives the module and the arguments of ``forward``. If it calls the module, the module runs its own
                ``forward``.
            takes: the dtypes of the first tensor that the functions are defined for; all by default.
            tags: properties of the functions that PyTorch's schemas do not state.
            replace: as in `implements`.

        Raises the exceptions of `implements`.
        """
        functions, is_pytorchs = _checked(functions), _is_in_package(sys._getframe(1))

        def register(body: Callable) -> Callable:
            if not is_pytorchs:
                self._expect_new(functions, body, replace)
            rule = TensorRule(body, name_of(functions[0]), takes, tags)
            self._forget()
            for function in self._free(functions, is_pytorchs):
                self.functions[function] = rule
                if isinstance(function, type):
                    replace_forward(function, lookup)
            return body

        return register

    def _expect_new(self, functions: tuple, body: Callable, replace: bool) -> None:
        """Refuses a second rule of the user's for a function, unless it declares the first one again, as in a
        notebook.
        """
        for function in functions:
            if isinstance(function, str):
                _expect_operator(function)
            before = getattr(self.functions.get(function), "body", None)
            if before is not None and not (replace or _is_same(before, body) or _is_packages(before)):
                raise ValueError(
                    f"implements got a second rule for {name_of(function)}, {_location_of(body)}; the first is "
                    f"{_location_of(before)}. Give replace=True to let this one stand in its place, or keep it in "
                    "a Rules"
                )

    def _forget(self) -> None:
        """Clears the caches that depend on the rules."""
        self.declared += 1
        self._found.clear()
        for conclusion in _conclusions:
            conclusion.cache_clear()

    def of_operator(self, overload: OpOverload) -> Any:
        """The rule of an operator of PyTorch's dispatcher, or None."""
        try:
            return self._found[overload]
        except KeyError:
            found = self._found[overload] = self._find_operator(overload)
            return found

    def _free(self, functions: tuple, is_pytorchs: bool) -> tuple:
        """The functions that a declaration is for: a rule of a user's stays when a layer declares the package's."""
        if is_pytorchs:
            return tuple([function for function in functions if function not in self._of_users])
        self._of_users.update(functions)
        return functions

    def _add_family(self, function: Callable[..., Any] | str, rule: ArrayRule, is_pytorchs: bool) -> None:
        self._forget()
        self.functions[function] = _with_flag(function, rule)
        if isinstance(function, (OpOverload, OpOverloadPacket, str)):
            return
        name = name_of(function)
        namespace = getattr(function, "__module__", None) or "torch"
        if name not in self._by_name or (not is_pytorchs and _gives_way(self._by_name[name])):
            self._by_name[name] = rule
        owners = [torch, torch.Tensor] if getattr(torch, name, None) is function else []
        if inspect.isfunction(function) and namespace == "torch.nn.functional":
            owners.append(torch.nn.functional)
        if isinstance(function, type(torch.Tensor.add)):
            owners.append(torch.Tensor)
        for owner in owners:
            self._add_forms(owner, name, rule, is_pytorchs)

    def _add_forms(self, owner: Any, name: str, rule: ArrayRule, is_pytorchs: bool) -> None:
        in_place, set_default = functools.partial(InPlace, rule), functools.partial(self._set_default, is_pytorchs)
        if owner is torch.Tensor:
            set_default(owner, name, lambda _: rule)
            operator = OPERATORS.get(name)
            if operator is not None:
                set_default(owner, f"__{operator}__", lambda _: rule)
                set_default(owner, f"__r{operator}__", lambda _: Reflected(rule))
                set_default(owner, f"__i{operator}__", in_place)
        set_default(owner, name + "_", in_place)

    def _set_default(self, is_pytorchs: bool, owner: Any, name: str, rule_of: Callable[[Any], Any]) -> None:
        function = getattr(owner, name, None)
        if function is None or function is getattr(object, name, None):
            return
        if function not in self.functions or (not is_pytorchs and _gives_way(self.functions[function])):
            self.functions[function] = rule_of(function)

    def _find_operator(self, overload: OpOverload):
        packet = overload.overloadpacket
        layer = _in_layers.get(packet._qualified_op_name) or _in_layers.get(overload.namespace + "::")
        if layer is not None and self is PROVIDED:
            layer.load()
        find = self.functions.get
        rule = find(overload) or find(packet) or find(packet._qualified_op_name)
        if isinstance(rule, TensorRule) and _is_out(overload) and "out" not in rule.names.known:
            return None  # the rule of what it writes serves it
        if rule is not None or overload.namespace != "aten":
            return rule
        name = packet.__name__
        rule = self._by_name.get(name)
        if rule is not None and _fits(overload, rule):
            return rule
        if name.endswith("_") and not name.endswith("__"):
            rule = self._by_name.get(name[:-1]) or find(getattr(torch.ops.aten, name[:-1], None))
            if isinstance(rule, ArrayRule) and _fits(overload, rule):
                return InPlace(rule, overload)
        return None


_conclusions: list[Any] = []


def cached(conclude: Callable[[Any], _T]) -> Callable[[Any], _T]:
    """Caches a function of a PyTorch function that depends on its rule, until rules change."""
    conclusion = functools.cache(conclude)
    _conclusions.append(conclusion)
    return conclusion


def _found(path: str) -> Any:
    """The function of a path, or None if this release of PyTorch lacks it."""
    try:
        return functools.reduce(getattr, path.split(".")[1:], torch)
    except AttributeError:
        return None


_in_layers: dict[object, Layer] = {
    name if "::" in name else _found(name): layer for layer in LAYERS for name in layer.functions
}
"""Functions whose rules are in a layer; operators by their names, or their namespaces, as "quantized::"."""
_entered: ContextVar[tuple[Rules, ...]] = ContextVar("entered", default=())
entered_rules = _entered.get
"""As `entered`, without the time of a call of a Python function."""
PROVIDED = Rules()
"""The package's own rules, and those that users declare for good."""
TAGS_WITHOUT_RULE: dict[object, Tags] = {}
"""The tags of functions without a rule."""


def entered() -> tuple[Rules, ...]:
    """The rules that hold before the others here, the first first."""
    return _entered.get()


def lookup(function: Callable[..., object]):
    """The rule of a function of PyTorch's Python interface, or None."""
    for rules in _entered.get():
        rule = rules.functions.get(function)
        if rule is not None:
            return rule
    rule = PROVIDED.functions.get(function)
    if rule is None and function in _in_layers:
        _in_layers[function].load()
        return PROVIDED.functions.get(function)
    return rule


def tags_of(function: Callable[..., Any]) -> Tags:
    """The tags of a PyTorch function: those of its rule, and those that follow from the schemas of its operators."""
    rule = lookup(function)
    declared = TAGS_WITHOUT_RULE.get(function, NO_TAGS) if rule is None else rule.tags
    if isinstance(function, (OpOverload, OpOverloadPacket)):
        operators = operators_of(function)
    elif rule is None and isinstance(function, FunctionType):  # which may bear the name of an operator by chance
        operators = ()
    else:
        operators = operators_of(getattr(function, "__name__", "") if rule is None else rule.name)
    found = declared | tags_of_operators(operators)
    is_perhaps_old = not found.isdisjoint((Tag.VIEW, Tag.WRITES_OTHERS)) or isinstance(rule, WithFlag)
    return found - {Tag.FRESH} if is_perhaps_old else found


def lookup_aten(overload: OpOverload):
    """The rule of an operator of PyTorch's dispatcher, or None."""
    for rules in _entered.get():
        rule = rules.of_operator(overload)
        if rule is not None:
            return rule
    return PROVIDED.of_operator(overload)


def name_of(function: Callable[..., object] | str) -> str:
    if isinstance(function, str):
        return function.rpartition("::")[2]
    if isinstance(function, OpOverload):
        return function.overloadpacket.__name__
    return function.__name__


_DERIVATIVES = (
    (Tag.LINEAR, history.LINEAR),
    (Tag.PRODUCT, history.PRODUCTS),
    (Tag.QUOTIENT, history.QUOTIENTS),
)
_PACKAGE = __name__.partition(".")[0] + "."


def _checked(functions: tuple) -> tuple:
    """The functions of a declaration, with those of `torch.library.custom_op` replaced by their operators."""
    found = tuple([getattr(getattr(x, "_opoverload", None), "overloadpacket", x) for x in functions])
    wrong = [x for x in found if not (isinstance(x, str) or callable(x))]
    if wrong or not found:
        got = repr(wrong[0]) if wrong else "nothing"
        raise TypeError(f"implements got {got}; wanted functions of PyTorch's, or operators' names: 'torchvision::nms'")
    return found


def _without_classes(functions: tuple) -> tuple:
    kinds = [function for function in functions if isinstance(function, type)]
    if kinds:
        raise TypeError(
            f"implements got the class {kinds[0].__name__}; wanted functions. Declare the rule of a class of "
            "modules with implements_tensors, and call JAX functions there through j2t"
        )
    return functions


def _expect_operator(name: str) -> None:
    """Refuses the name of no operator, where its library is loaded.

    Raises:
        ValueError: it is such a name, or not one of the form that operators have.
    """
    namespace, colons, _ = name.partition("::")
    if not colons:
        raise ValueError(f"implements got the name {name!r}; wanted that of an operator, as 'torchvision::nms'")
    names = {x.partition(".")[0] for x in dispatch_get_all_op_names() if x.startswith(namespace + "::")}
    if names and name not in names:
        raise ValueError(f"implements got the name {name!r}, which no operator bears{nearest(name, sorted(names))}")


def _note_derivatives(rule: ArrayRule) -> None:
    for tag, names in _DERIVATIVES:
        if tag in rule.tags:
            names.add(rule.name)


def _gives_way(rule: Any) -> bool:
    """Returns True if a rule is the package's."""
    while hasattr(rule, "rule"):  # a form of another
        rule = rule.rule
    body = getattr(rule, "body", None)
    return body is not None and _is_packages(body)


def _is_in_package(frame: FrameType) -> bool:
    """Returns True for code of the package's, whose rules compute what PyTorch's functions do."""
    return frame.f_globals.get("__name__", "").startswith(_PACKAGE)


def _is_same(before: Callable, body: Callable) -> bool:
    if before.__name__.isidentifier() and before.__name__ != "_":
        return (before.__module__, before.__qualname__) == (body.__module__, body.__qualname__)
    return _location_of(before) == _location_of(body)


def _is_packages(body: Callable) -> bool:
    return body.__module__.startswith(_PACKAGE)


def _location_of(body: Callable) -> str:
    code = getattr(body, "__code__", None)
    return f"{body.__module__}.{body.__qualname__}" + (f" at {code.co_filename}:{code.co_firstlineno}" if code else "")


def _with_flag(function: object, rule: ArrayRule):
    if inspect.isfunction(function) and "inplace" not in rule.parameters:
        parameters = list(inspect.signature(function).parameters)
        if "inplace" in parameters:
            return WithFlag(rule, function, parameters.index("inplace"))
    return rule


def _is_out(overload: OpOverload) -> bool:
    return any(argument.is_out for argument in overload._schema.arguments)


def _fits(overload: OpOverload, rule: ArrayRule) -> bool:
    """Returns True if an overload's arguments mean the same as the rule's parameters of that position and name."""
    if rule.names.spread or rule.names.is_open:
        return True
    arguments = overload._schema.arguments
    names = ["input" if argument.name == "self" else argument.name for argument in arguments]
    positional = [name for name, argument in zip(names, arguments, strict=True) if not argument.kwarg_only]
    keywords = {
        name for name, argument in zip(names, arguments, strict=True) if argument.kwarg_only and not argument.is_out
    }
    if rule.promote is not None:  # operands are taken by place: schemas spell them in many ways
        options = positional[len(rule.names.positional) :]
        return tuple(options) == rule.names.options[: len(options)] and keywords <= rule.parameters | _FACTORY_KEYWORDS
    return (
        positional == list(rule.names.positional[: len(positional)]) and keywords <= rule.parameters | _FACTORY_KEYWORDS
    )
