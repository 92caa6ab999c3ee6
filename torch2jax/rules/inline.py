"""Traces a rule's body once for each combination of shapes and options, and pastes it in wherever it recurs.

A network calls the same rules on the same shapes again and again. JAX can trace, differentiate and batch such a body
once and reuse what it found, without leaving a nested call in the graph: ``jax.jit(..., inline=...)``. Without a trace
around it, the body is compiled once it has recurred, and costs one call instead of one for each of its operations.

Also here: the equations that a short body adds to a jaxpr, cached, and added again without running the body.

A body asks for shapes and dtypes, and JAX's functions check what they are given; each time that takes as long as the
equations themselves. What a pure body adds follows from the types of its arrays and JAX's settings alone. So it is kept
by these, as primitives with their parameters, and which values each takes. An equation with other operands (a constant
of the jaxpr, a number of a weak type), or with jaxprs inside, is not kept: then the body runs each time.
"""

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.core
import jax.extend.core
import numpy as np
import torch

from ..internals.jax import trace_context
from ..runtime.caches import Cache, remembered
from ..runtime.translation import current
from ..tensors.dtypes import default_dtype
from ..tensors.traced import are_staged, is_traced, noting_equations, noting_tests
from .features import Feature


class _Literal(NamedTuple):
    """An operand that is a number in the jaxpr."""

    value: Any


class _Equation(NamedTuple):
    """One equation of a jaxpr, with the indices of its operands."""

    primitive: Any
    params: dict[str, object]
    operands: tuple[int | _Literal, ...]
    """The places of values: the body's arrays, and then the results of all equations in their order."""


class _Equations(NamedTuple):
    """All equations of a body for arrays of certain types."""

    context: Any
    """JAX's settings while they were found."""
    equations: tuple[_Equation, ...]
    results: tuple[int, ...]
    """The places of the body's results among the values."""
    kind: type | None
    """The type of the sequence of results; None for one result alone."""

    def add(self, arrays: Sequence[Any]) -> object:
        values = [*arrays]
        for primitive, params, operands in self.equations:
            found = primitive.bind(*[values[x] if type(x) is int else x.value for x in operands], **params)  # pyright: ignore
            if primitive.multiple_results:
                values += found
            else:
                values.append(found)
        if self.kind is None:
            return values[self.results[0]]
        return self.kind([values[position] for position in self.results])


class EquationsByTypes:
    """The equations of one body, by the types of its arrays."""

    def __init__(self):
        self._kept: Cache[tuple, _Equations] = Cache("equations of a body", 64)

    def find(self, arrays: Sequence[Any]) -> Callable[[Sequence[Any]], Any] | None:
        """A function that adds the body's equations for such arrays and returns its results; None if not cached."""
        found = self._kept.get(tuple([array.aval for array in arrays]))
        return None if found is None or found.context != trace_context() else found.add

    def keep(self, arrays: Sequence[Any], equations: Sequence[Any], result: jax.Array) -> None:
        """Caches the equations that a body has added for arrays, if they depend on nothing else."""
        if any(isinstance(array.val, jax.extend.core.Literal) for array in arrays):
            return  # JAX casts the number itself, and the equations have what came of it
        positions = {id(array.val): position for position, array in enumerate(arrays)}
        if len(positions) < len(arrays):
            return  # an array that is given twice: which one is meant?
        kept = []
        for equation in equations:
            operands: list[Any] = [_operand(x, positions) for x in equation.invars]
            if None in operands or equation.effects:
                return
            kept.append(_Equation(equation.primitive, equation.params, tuple(operands)))
            for variable in equation.outvars:
                positions[id(variable)] = len(positions)
        kind = type(result) if type(result) in (tuple, list) else None
        results = [positions.get(id(getattr(x, "val", None))) for x in (result if kind else (result,))]
        if None in results:
            return
        types = tuple([array.aval for array in arrays])
        self._kept[types] = _Equations(trace_context(), tuple(kept), tuple(results), kind)  # pyright: ignore


def _operand(traced: Any, positions: dict[int, int]) -> int | _Literal | None:
    """An operand of an equation: the index of a value, or a literal; None if it is anything else."""
    position = positions.get(id(traced.val))
    if position is not None:
        return position
    if isinstance(traced.val, jax.extend.core.Literal) and jax.typeof(traced.val.val) == traced.val.aval:
        return _Literal(traced.val.val)
    return None


# How jax.jit is asked to leave no nested call in a graph: since JAX 0.11, True leaves one until the graph is compiled.
INLINED: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True  # pyright: ignore[reportAttributeAccessIssue]

_SELDOM = 2  # calls: a scalar that changes with every step is no reason to compile


class _ArraySlot(NamedTuple):
    """The place of an array among the arguments."""

    index: int


_SLOTS = [_ArraySlot(index) for index in range(64)]


class _Constant(NamedTuple):
    """An argument that is no array. Equal ones have equal types and signs too: 1 is not True, 0.0 is not -0.0."""

    value: Any
    kind: type
    text: str | None


class _Sequence(NamedTuple):
    """A list, tuple or dictionary of arguments."""

    kind: type
    keys: tuple | None
    items: tuple


class _Partial(NamedTuple):
    """A function with some of its arguments bound."""

    function: Callable
    args: _Sequence
    keywords: _Sequence


class _BodyCall(NamedTuple):
    """A body and all its arguments."""

    body: Callable | _Partial
    args: tuple
    kwargs: _Sequence | None

    @property
    def takes_arrays(self) -> bool:
        """True if the body takes the arrays, one after the other, and nothing else."""
        is_bound = isinstance(self.body, _Partial) or self.kwargs is not None
        return not is_bound and all(isinstance(x, _ArraySlot) and x.index == i for i, x in enumerate(self.args))

    def run(self, arrays: Sequence[Any]):
        body = _fill(self.body, arrays) if isinstance(self.body, _Partial) else self.body
        args = [_fill(item, arrays) for item in self.args]
        return body(*args) if self.kwargs is None else body(*args, **_fill(self.kwargs, arrays))


def call_inlined(body: Callable, args: Sequence[object], kwargs: dict, name: str):
    """``body(*args, **kwargs)``, compiled as one where it recurs, and without leaving a nested call in a graph.

    `body` must be pure, and if it does without values where an array is traced, it must have asked `is_traced`. What
    it leaves in a graph is under `name`.
    """
    arrays: list[Any] = []
    call = template(body, args, kwargs, arrays)
    if not torch.is_grad_enabled():
        arrays = _without_history(arrays)
    try:
        inlined = _inlined(call, default_dtype()) if arrays else None
    except TypeError:  # a constant that cannot be hashed
        inlined = None
    if inlined is None:
        with jax.named_scope(name):
            return call.run(arrays)
    scalars = _scalars()
    if scalars is None or any(array.ndim for array in arrays):
        return run_inlined(inlined, arrays, name)
    key = (call, *map(id, arrays))
    if key not in scalars.computed:
        scalars.computed[key] = run_inlined(inlined, arrays, name), arrays  # which keep their ids
    return scalars.computed[key][0]


def template(body: Callable, args: Sequence[object], kwargs: dict, arrays: list) -> "_BodyCall":
    """The call of a body without its arrays, which are added to `arrays`."""
    return _BodyCall(
        _template(body, arrays) if type(body) is functools.partial else body,
        tuple([_template(item, arrays) for item in args]),
        _template(kwargs, arrays) if kwargs else None,
    )


def run_inlined(inlined: "Inlined", arrays: list, name: str):
    """The result of a body for its arrays, without a nested call in the graph."""
    if are_staged(arrays) and is_traced(arrays[0]):
        with jax.named_scope(name):
            return inlined.staged(*arrays)
    traced = sum([is_traced(array) for array in arrays])
    if not traced:
        return inlined.eager(*arrays)
    with jax.named_scope(name):
        # where some are not traced, their values may decide what the body does
        return inlined.program(*arrays) if traced == len(arrays) else inlined.run(*arrays)


class Scalars(Feature):
    """The results of bodies of scalars alone, reused while this feature is on a call's stack."""

    def __init__(self):
        self.computed: dict[Any, tuple[Any, list]] = {}


def _scalars() -> Scalars | None:
    """The cache of results of scalars alone, where each parameter repeats the same computation; None elsewhere."""
    call = current()
    return None if call is None else call.scalars


def _without_history(arrays: list) -> list:
    """With gradients off nothing is recorded."""
    call = current()
    if call is None or call.tape is None:
        return arrays
    return [call.tape.primal(array) for array in arrays]


@remembered(1024)
def _is_array(kind: type) -> bool:
    return issubclass(kind, (jax.Array, jax.core.Tracer, np.generic))


def _template(value: Any, arrays: list) -> Any:
    kind = type(value)
    if _is_array(kind):
        index = len(arrays)
        arrays.append(value)
        return _SLOTS[index] if index < len(_SLOTS) else _ArraySlot(index)
    if kind is functools.partial:
        return _Partial(value.func, _template(value.args, arrays), _template(value.keywords, arrays))
    if kind is list or kind is tuple:
        return _Sequence(kind, None, tuple([_template(item, arrays) for item in value]))
    if kind is dict:
        return _Sequence(kind, tuple(value), tuple([_template(item, arrays) for item in value.values()]))
    return _Constant(value, kind, repr(value) if kind is float or kind is complex else None)


def _fill(template: Any, arrays: Sequence[object]) -> Any:
    if isinstance(template, _ArraySlot):
        return arrays[template.index]
    if isinstance(template, _Constant):
        return template.value
    if isinstance(template, _Partial):
        return functools.partial(template.function, *_fill(template.args, arrays), **_fill(template.keywords, arrays))
    items = [_fill(item, arrays) for item in template.items]
    return dict(zip(template.keys, items, strict=True)) if template.kind is dict else template.kind(items)


@remembered(4096)
def _inlined(call: _BodyCall, default_dtype: torch.dtype) -> "Inlined":
    del default_dtype  # part of the key: bodies may ask for it
    return Inlined(call)


class NeedsValues(Exception):
    """The body decides something by whether it has values."""


def _are_few(equations: list | None) -> TypeGuard[list]:
    """Returns True if the equations are up to two operations: running the body is then faster than pasting them."""
    return (
        equations is not None
        and len(equations) <= 2
        and not any([*jax.extend.core.jaxprs_in_params(equation.params)] for equation in equations)
    )


class Inlined:
    """One body with all arguments but its arrays."""

    def __init__(self, call: _BodyCall):
        self._call = call
        self._body: Any = call.body if call.takes_arrays else None
        self._calls = self._pastes = 0
        self._pasted_in: Callable = lambda: None  # a weak reference: an id would be that of a later program too
        self._needs_values = False
        self.ready: Callable | None = None
        """The function that `eager` calls once the body has been compiled."""
        self._is_short: bool | None = None  # not known yet
        self._equations = EquationsByTypes()

    @classmethod
    def of(cls, call: _BodyCall) -> "Inlined":
        """The inlined body of a call, shared by equal calls.

        Raises:
            TypeError: a constant among its arguments cannot be hashed.
        """
        return _inlined(call, default_dtype())

    @functools.cached_property  # most bodies need neither, and to make one takes as long as to trace some operations
    def program(self) -> Callable:
        """Traces a body once, to be pasted in wherever it recurs."""
        return jax.jit(self.run, inline=INLINED)

    @functools.cached_property
    def _compiled(self) -> Callable:
        return jax.jit(self._run_without_values, inline=INLINED)

    def run(self, *arrays: object):
        """Runs the body as it is."""
        return self._call.run(arrays) if self._body is None else self._body(*arrays)

    def _run_without_values(self, *arrays: object):
        try:
            result, asked = noting_tests(self.run, *arrays)
        except jax.errors.JAXTypeError as error:  # it took a value
            raise NeedsValues from error
        if asked:
            raise NeedsValues
        return result

    def staged(self, *arrays: Any):
        """Runs a body as it is if it is short, or rare in the program being traced; else traces it once and inlines
        that.
        """
        add = self._equations.find(arrays)
        if add is not None:
            return add(arrays)
        if self._is_short is None:
            program = arrays[0]._trace
            self._pastes = self._pastes + 1 if program is self._pasted_in() else 1
            self._pasted_in = weakref.ref(program)
            if self._pastes > _SELDOM:
                self._is_short = False
        if self._is_short is False:
            return self.program(*arrays)
        result, equations = noting_equations(self.run, *arrays)
        if _are_few(equations):
            self._is_short = True
            self._equations.keep(arrays, equations, result)
        return result

    def eager(self, *arrays: object):
        """Runs a body op by op if it is called rarely, or asks for values; else as one compiled program."""
        self._calls += 1
        if self._needs_values or self._calls <= _SELDOM:
            return self.run(*arrays)
        try:
            result = self._compiled(*arrays)
        except NeedsValues:
            self._needs_values, self.ready = True, None
            return self.run(*arrays)
        self.ready = self._compiled
        return result
