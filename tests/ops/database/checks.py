"""One check of one case for each column of ``docs/tested/coverage.md``; it raises what is wrong, or returns."""

import functools
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import torch
from torch.utils import _pytree as pytree

from torch2jax import NoRuleError, Padded, TracedValueError, t2j
from torch2jax.tensors.dtypes import canonical

from . import exceptions
from .compare import describe
from .derivatives import forward, gradients, second, wide
from .keywords import by_keyword
from .outcome import Refused, compare_results, expected_of, key, witnesses
from .programs import Program, Steps
from .samples import Case, full_name, twin

if TYPE_CHECKING:
    from torch.testing._internal.opinfo.core import OpInfo

__all__ = ["CHECKS"]


def values(case: Case, column: str = "values") -> Steps:
    """The same tree, shapes, dtypes and values; also the tree, shapes and dtypes that the code itself sees."""
    expected = expected_of(case)
    sights = describe(case.function(*case.twins()))
    seen, static = [], _Static()

    def function(*tensors):
        result = case.function(*tensors)
        seen.append(describe(result))
        return case.comparable(result, *tensors)

    def run() -> list:
        # Called with tensors, 64-bit types are logical ones even with x64 off.
        return static.split(t2j(function)(*case.twins(), **key(case)))

    arrays = yield Program(run, [], eager=True)
    assert seen == [sights], f"the code sees {seen[0]}, PyTorch's sees {sights}"
    compare_results(case, column, static.join(arrays), expected, **witnesses(case))


def jit(case: Case) -> Steps:
    """The same under `jax.jit`, with every tensor traced; what data decides is refused with the one clear error."""
    expected = expected_of(case)
    static = _Static()
    arrays = yield from static.run(case, lambda function: function, [t2j(tensor) for tensor in case.tensors])
    if arrays is not None:
        compare_results(case, "jit", static.join(arrays), expected, **witnesses(case))


def constants(case: Case) -> Steps:
    """The same where the function closes over PyTorch's tensors: over all of them, and over every second one."""
    expected = expected_of(case)
    if any(isinstance(leaf, bool) for leaf in pytree.tree_leaves(expected)):
        raise Refused(f"{case}: the answer to a question, of which `jit` cannot return both")
    count = len(case.tensors)
    for given in ([], [*range(0, count, 2)], [*range(1, count, 2)]) if count > 1 else ([],):
        static = _Static()
        function = functools.partial(_with_constants, case, case.twins(), given)
        arrays = yield from static.run(case, lambda function: function, [t2j(case.tensors[i]) for i in given], function)
        if arrays is not None:
            what = f"{case.name}, {given} given"
            compare_results(case, "constants", static.join(arrays), expected, what, **witnesses(case))


def _with_constants(case: Case, tensors: list, given: list[int], *arrays):
    filled = list(tensors)
    for i, array in zip(given, arrays, strict=True):
        filled[i] = array.to(tensors[i].dtype)
    return case.comparable(case.function(*filled), *filled)


def vmap(case: Case) -> Steps:
    """`jax.vmap` over two samples gives what PyTorch gives for each: the sample, and one with its numbers halved."""
    rows = [case.twins(), [_halved(tensor) for tensor in case.twins()]]
    expected = [expected_of(case, [twin(tensor) for tensor in row]) for row in rows]
    if not rows[0] or describe(expected[0]) != describe(expected[1]):
        raise Refused(f"{case}: no two samples of one shape")
    static = _Static()
    stacked = [t2j(torch.stack(column)) for column in zip(*rows, strict=True)]
    arrays = yield from static.run(case, jax.vmap, stacked)
    for i in range(2) if arrays is not None else ():
        actual = static.join(_row(arrays, i))
        compare_results(case, "vmap", actual, expected[i], f"{case.name}, row {i}", **witnesses(case, rows[i]))


def _row(arrays: list, i: int) -> list:
    return jax.tree.map(lambda array: np.asarray(array)[i, ...], arrays)


class _Static:
    """Leaves of a result that are no arrays and no `Padded` (numbers, dtypes) pass by what jit can return."""

    def run(
        self, case: Case, transform: Callable, arrays: list, code: Callable | None = None
    ) -> Generator[Program, Any, list | None]:
        """The arrays in what a transformed case gives, or None where data decides and that is refused.

        Args:
            code: what is translated, if not the case with all its tensors given.
        """

        def function(*arrays):
            return self.split(t2j(code or case.traced)(*arrays, **key(case)))

        try:
            return (yield Program(transform(function), arrays))
        except TracedValueError:
            if exceptions.is_data_dependent(case):
                return None
            raise

    def split(self, result) -> list:
        self._leaves, self._spec = pytree.tree_flatten(result)
        self._at = [i for i, leaf in enumerate(self._leaves) if isinstance(leaf, (jax.Array, Padded))]
        arrays = [self._leaves[i] for i in self._at]
        for i in self._at:
            self._leaves[i] = None
        return arrays

    def join(self, arrays: list):
        leaves = list(self._leaves)
        for i, array in zip(self._at, arrays, strict=True):
            leaves[i] = array.compact() if isinstance(array, Padded) else array
        return pytree.tree_unflatten(leaves, self._spec)


def _halved(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return twin(tensor) * 0.5 if tensor.is_floating_point() or tensor.is_complex() else twin(tensor)


def errors(case: Case) -> None:
    """What PyTorch refuses is refused here with its exception type, before XLA is asked."""
    wanted = _outcome(lambda: case.function(*case.twins()))
    if not isinstance(wanted, Exception):
        raise Refused(f"{case}: PyTorch takes it")
    got = _translated_outcome(case.function, case)
    if not isinstance(got, Exception):
        raise AssertionError(f"returns {describe(got)[1]}; PyTorch raises {_line(wanted)}; {str(case)[:200]}")
    refused = isinstance(got, type(wanted)) and not isinstance(got, (NoRuleError, jax.errors.JaxRuntimeError))
    assert refused, f"raises {_line(got)}; PyTorch raises {_line(wanted)}"


def _translated_outcome(function: Callable, case: Case):
    """What a translated function of a case gives or raises.

    With x64 off, tensors that are held alike may be of two dtypes where PyTorch refuses it (docs/differences.md). They
    are refused with x64 on. So are integers that 32 bits do not hold, for another reason.
    """
    found = _outcome(lambda: t2j(function)(*case.twins(), **key(case)))
    dtypes = {tensor.dtype for tensor in case.tensors}
    is_beyond = isinstance(found, OverflowError) and "jax_enable_x64" in str(found)
    if not is_beyond and (isinstance(found, Exception) or len({canonical(x) for x in dtypes}) == len(dtypes)):
        return found
    with jax.enable_x64(True):
        return _outcome(lambda: t2j(function)(*case.twins(), **key(case)))


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip()[:150]}"


def forms(case: Case) -> Steps:
    """Methods, operators, in-place forms, ``out=``, aliases and arguments by keyword do as in PyTorch."""
    answered, static = [], _Static()
    named = [(what, functools.partial(_plain, form)) for what, form in by_keyword(case.op)]
    for what, form in (*_forms(case.op), *named):
        function = functools.partial(_results_of, form, case)
        expected = _outcome(lambda function=function: function(*case.twins()))
        if isinstance(expected, Exception):
            if (what, form) in named:  # by the names of another overload
                continue
            actual = _translated_outcome(function, case)
            assert isinstance(actual, type(expected)), f"{what}: {actual!r:.300}; PyTorch raises {_line(expected)}"
        else:
            answered.append((what, form, function, expected))

    def run() -> list:
        return static.split([translated(what, function) for what, _, function, _ in answered])

    def translated(what: str, function: Callable):
        try:
            return t2j(function)(*case.twins(), **key(case))
        except Exception as error:
            raise AssertionError(f"{what}: raises {_line(error)}") from error

    if not answered:
        return
    arrays = yield Program(run, [], eager=True)
    for (what, form, _, expected), actual in zip(answered, static.join(arrays), strict=True):
        wide = case.in_precision(torch.float64)
        precise = functools.partial(_results_of, form, wide, *wide.twins())
        compare_results(case, "forms", actual, expected, f"{case.name} as {what}", precise=precise)


def _outcome(function: Callable):
    try:
        return function()
    except Exception as error:
        return error


def _results_of(form: Callable, case: Case, *tensors) -> list:
    return [case.comparable(result, *tensors) for result in case.call(form, *tensors)]


def _forms(op: "OpInfo"):
    """The other forms of an entry: functions of the sample's arguments that list the result and what it changes."""
    for owner, name in ((op, full_name(op)), *((alias, alias.name) for alias in op.aliases)):
        if owner is not op:
            yield name, functools.partial(_plain, owner.op)
        if owner.method_variant is not None:
            yield f"{name} (method)", functools.partial(_plain, owner.method_variant)
        if owner.inplace_variant is not None:
            yield f"{name} (in place)", functools.partial(_in_place, owner.inplace_variant)
    if op.operator_variant is not None:
        yield "operator", functools.partial(_plain, op.operator_variant)
    if op.inplace_operator_variant is not None:
        yield "in-place operator", functools.partial(_in_place, op.inplace_operator_variant)
    if op.supports_out:
        yield "out=", functools.partial(_out, op)


def _plain(form, *args, **kwargs) -> list:
    return [form(*args, **kwargs)]


def _in_place(form, first, *args, **kwargs) -> list:
    target = first.clone()
    return [form(target, *args, **kwargs), target]


def _out(op, *args, **kwargs) -> list:
    out = pytree.tree_map(torch.zeros_like, op(*args, **kwargs))
    return [op(*args, out=out, **kwargs), out]


CHECKS: dict[str, Callable[[Case], Steps | None]] = {
    "values": values,
    "x64": functools.partial(values, column="x64"),
    "jit": jit,
    "gradients": gradients,
    "forward": forward,
    "second": second,
    "wide": wide,
    "errors": errors,
    "vmap": vmap,
    "constants": constants,
    "forms": forms,
}
