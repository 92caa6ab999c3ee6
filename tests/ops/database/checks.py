"""One check of one case for each column of ``docs/coverage.md``; it raises what is wrong, or returns."""

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

from torch2jax import NoRuleError, TracedValueError, t2j

from . import exceptions
from .compare import compare_trees, describe, sizes
from .samples import Case, full_name, in_double, twin

__all__ = [
    "CHECKS",
    "Refused",
    "check_gradients",
    "check_values",
    "errors",
]


class Refused(Exception):
    """PyTorch itself refuses a case, so that there is nothing to compare."""


def quietly(check):
    """Lets a check pass over what PyTorch and the translation warn of: samples use what is deprecated or writes."""

    @functools.wraps(check)
    def quiet(*args, **kwargs):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return check(*args, **kwargs)

    return quiet


def _key(case: Case) -> dict:
    return {} if exceptions.has_values(case) else {"rng": jax.random.key(0)}


def _expected(case: Case, tensors: list[torch.Tensor] | None = None):
    tensors = case.twins() if tensors is None else tensors
    return case.comparable(_refusing(case.function, *tensors), *tensors)


def _refusing(function: Callable, *args, **kwargs):
    """The result of a function of PyTorch's, which may refuse."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise Refused(repr(error)) from error


def _compare(case: Case, column: str, actual, expected, what: str = "", precise: Callable | None = None) -> None:
    if exceptions.has_values(case):
        tolerance = exceptions.tolerance_for(case.name, column, case.dtype)
        scaled = column in exceptions.DERIVATIVES
        compare_trees(actual, expected, what or case.name, precise, tolerance=tolerance, scaled=scaled)
    else:
        assert sizes(actual) == sizes(expected), f"{case.name}: {sizes(actual)}, expected {sizes(expected)}"


def _precise(case: Case, tensors: list[torch.Tensor] | None = None) -> Callable:
    def compute():
        wide = case.in_double()
        return _expected(wide, None if tensors is None else [in_double(tensor) for tensor in tensors])

    return compute


@quietly
def values(case: Case, column: str = "values") -> None:
    """The same tree, shapes, dtypes and values; also the tree, shapes and dtypes that the code itself sees."""
    expected = _expected(case)
    sights = describe(case.function(*case.twins()))
    seen = []

    def function(*tensors):
        result = case.function(*tensors)
        seen.append(describe(result))
        return case.comparable(result, *tensors)

    # Called with tensors, 64-bit types are logical ones even with x64 off.
    actual = t2j(function)(*case.twins(), **_key(case))
    assert seen == [sights], f"the code sees {seen[0]}, PyTorch's sees {sights}"
    _compare(case, column, actual, expected, precise=_precise(case))


def values_x64(case: Case) -> None:
    """As `values`, where JAX holds 64-bit types as what they are."""
    with jax.enable_x64(True):
        values(case, "x64")


@quietly
def jit(case: Case) -> None:
    """The same under `jax.jit`, with every tensor traced; what data decides is refused with the one clear error."""
    expected = _expected(case)
    static = _Static()
    call = jax.jit(lambda *arrays: static.split(t2j(case.traced)(*arrays, **_key(case))))
    try:
        arrays = call(*(t2j(tensor) for tensor in case.tensors))
    except TracedValueError:
        if exceptions.is_data_dependent(case.name):
            return
        raise
    _compare(case, "jit", static.join(arrays), expected, precise=_precise(case))


class _Static:
    """Leaves of a result that are no arrays (Python numbers, dtypes) pass by what jit can return."""

    def split(self, result) -> list:
        self._leaves, self._spec = pytree.tree_flatten(result)
        self._at = [i for i, leaf in enumerate(self._leaves) if isinstance(leaf, jax.Array)]
        arrays = [self._leaves[i] for i in self._at]
        self._leaves = [None if isinstance(leaf, jax.Array) else leaf for leaf in self._leaves]
        return arrays

    def join(self, arrays: list):
        leaves = list(self._leaves)
        for i, array in zip(self._at, arrays, strict=True):
            leaves[i] = array
        return pytree.tree_unflatten(leaves, self._spec)


@quietly
def vmap(case: Case) -> None:
    """`jax.vmap` over two samples gives what PyTorch gives for each: the sample, and one with its numbers halved."""
    rows = [case.twins(), [_halved(tensor) for tensor in case.twins()]]
    expected = [_expected(case, [twin(tensor) for tensor in row]) for row in rows]
    if not rows[0] or describe(expected[0]) != describe(expected[1]):
        raise Refused(f"{case}: no two samples of one shape")
    stacked = [jnp.stack([t2j(tensor) for tensor in column]) for column in zip(*rows, strict=True)]
    static = _Static()

    def function(*arrays):
        return static.split(t2j(case.traced)(*arrays, **_key(case)))

    try:
        arrays = jax.jit(jax.vmap(function))(*stacked)
    except TracedValueError:
        if exceptions.is_data_dependent(case.name):
            return
        raise
    for i in range(2):
        actual = static.join([array[i] for array in arrays])
        _compare(case, "vmap", actual, expected[i], f"{case.name}, row {i}", _precise(case, rows[i]))


def _halved(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return twin(tensor) * 0.5 if tensor.is_floating_point() or tensor.is_complex() else twin(tensor)


class Derivatives:
    """The derivatives of one case in PyTorch and translated, each computed once for all columns that compare it."""

    def __init__(self, case: Case, like: "Derivatives | None" = None):
        self.case = case
        self.wanted = [i for i, tensor in enumerate(case.tensors) if tensor.requires_grad]
        self.inputs = [t2j(case.tensors[i]) for i in self.wanted]
        tensors = [tensor if tensor.requires_grad else twin(tensor) for tensor in case.tensors]
        outputs = _refusing(case.differentiable, *tensors) if self.wanted else []
        self.keep = [i for i, out in enumerate(outputs) if out.requires_grad]
        self.outputs = [outputs[i] for i in self.keep]
        if not self.outputs:
            raise Refused(f"{case}: nothing depends on what requires grad")
        torch.manual_seed(1)
        if like is None:
            self.cotangents = [torch.randn_like(out) for out in self.outputs]
            self.tangents = [torch.randn_like(case.tensors[i]) for i in self.wanted]
        else:
            self.cotangents = [in_double(x) for x in like.cotangents]
            self.tangents = [in_double(x) for x in like.tangents]

    @functools.cached_property
    def in_double(self) -> "Derivatives":
        return Derivatives(self.case.in_double(), self)

    def function(self, *arrays) -> list:
        """The case's function of the inputs that want gradients."""
        given: list[Any] = list(self.case.tensors)
        for i, array in zip(self.wanted, arrays, strict=True):
            given[i] = array
        result = t2j(self.case.differentiable)(*given, **_key(self.case))
        return [result[i] for i in self.keep]

    def pull(self, *arrays):
        """The gradients as PyTorch has them, which are JAX's conjugated."""
        _, vjp = jax.vjp(self.function, *arrays)
        return [jnp.conj(x) for x in vjp([jnp.conj(t2j(c)) for c in self.cotangents])]

    def push(self, *arrays):
        return jax.jvp(self.function, arrays, tuple(t2j(x) for x in self.tangents))[1]

    @functools.cached_property
    def expected(self) -> list[torch.Tensor]:
        of = [self.case.tensors[i] for i in self.wanted]
        grads = _refusing(torch.autograd.grad, self.outputs, of, self.cotangents, allow_unused=True, create_graph=True)
        return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(of, grads, strict=True)]

    @functools.cached_property
    def depends(self) -> list[int]:
        """Which gradients depend on the inputs."""
        depends = [i for i, grad in enumerate(self.expected) if grad.requires_grad]
        if not depends:
            raise Refused(f"{self.case}: its gradient is constant")
        return depends

    @functools.cached_property
    def second_expected(self) -> list[torch.Tensor]:
        of = [self.case.tensors[i] for i in self.wanted]
        first, tangents = [self.expected[i] for i in self.depends], [self.tangents[i] for i in self.depends]
        grads = _refusing(torch.autograd.grad, first, of, tangents, allow_unused=True, retain_graph=True)
        return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(of, grads, strict=True)]

    @functools.cached_property
    def second_actual(self) -> list:
        tangents = [jnp.conj(t2j(self.tangents[i])) for i in self.depends]

        def pulled(*arrays):
            result = self.pull(*arrays)
            return [result[i] for i in self.depends]

        def pull(*arrays):
            _, vjp = jax.vjp(pulled, *arrays)
            return [jnp.conj(x) for x in vjp(tangents)]

        return self._run(pull)

    @functools.cached_property
    def _both(self) -> tuple[list, list]:
        return self._run(lambda *arrays: (self.pull(*arrays), self.push(*arrays)))  # compiled together

    @property
    def actual(self) -> list:
        return self._both[0]

    @property
    def pushed(self) -> list:
        return self._both[1]

    def _run(self, function):
        if exceptions.is_data_dependent(self.case.name):
            return function(*self.inputs)
        return jax.jit(function)(*self.inputs)


def _derivatives(case: Case) -> Derivatives:
    if not hasattr(case, "derivatives"):
        case.derivatives = Derivatives(case)
    return case.derivatives


@quietly
def gradients(case: Case) -> None:
    """The gradients for a random cotangent of every input that the sample marks."""
    both = _derivatives(case)
    _compare(case, "gradients", both.actual, both.expected, precise=lambda: both.in_double.expected)


@quietly
def forward(case: Case) -> None:
    """`jax.jvp` agrees with `jax.vjp`, which `gradients` checks: <cotangent, pushed> = <gradients, tangent>."""
    both = _derivatives(case)
    pushed = both.pushed
    assert sizes(pushed) == sizes(both.outputs), f"{case.name}: {sizes(pushed)}, expected {sizes(both.outputs)}"
    if not exceptions.has_values(case):
        return
    out, magnitude = _inner(pushed, both.cotangents)
    into, other = _inner(both.actual, both.tangents)
    rtol, atol = exceptions.forward_tolerance(case.name, case.dtype)
    np.testing.assert_allclose(out, into, 0, atol + rtol * (magnitude + other), err_msg=f"{case.name}: jvp")


def _inner(these, those) -> tuple[float, float]:
    """The real inner product of two lists, and that of their absolute values."""
    total = magnitude = 0.0
    for a, b in zip(these, those, strict=True):
        products = (np.asarray(a).astype(np.complex128).conj() * np.asarray(t2j(b.detach())).astype(np.complex128)).real
        total, magnitude = total + products.sum(), magnitude + np.abs(products).sum()
    return total, magnitude


@quietly
def second(case: Case) -> None:
    """The gradients of the gradients, against a random tangent, where PyTorch has them and they are numbers."""
    both = _derivatives(case)
    if exceptions.has_values(case):
        expected = both.second_expected
        if any(bool(x.isnan().any()) for x in both.in_double.second_expected):
            raise Refused(f"{case}: PyTorch's is not a number")
        _compare(case, "second", both.second_actual, expected, precise=lambda: both.in_double.second_expected)


@quietly
def errors(case: Case) -> None:
    """What PyTorch refuses is refused here with its exception type, before XLA is asked."""
    wanted = _outcome(lambda: case.function(*case.twins()))
    if not isinstance(wanted, Exception):
        raise Refused(f"{case}: PyTorch takes it")
    got = _outcome(lambda: t2j(case.function)(*case.twins(), **_key(case)))
    if not isinstance(got, Exception):
        raise AssertionError(f"returns {describe(got)[1]}; PyTorch raises {_line(wanted)}; {str(case)[:200]}")
    refused = isinstance(got, type(wanted)) and not isinstance(got, (NoRuleError, jax.errors.JaxRuntimeError))
    assert refused, f"raises {_line(got)}; PyTorch raises {_line(wanted)}"


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip()[:150]}"


@quietly
def forms(case: Case) -> None:
    """Methods, operators, in-place forms, ``out=`` and aliases do as in PyTorch."""
    for what, form in _forms(case.op):
        expected = _outcome(lambda form=form: case.call(form, *case.twins()))
        actual = _outcome(
            lambda form=form: t2j(lambda *tensors: case.call(form, *tensors))(*case.twins(), **_key(case))
        )
        if isinstance(expected, Exception):
            assert isinstance(actual, type(expected)), f"{what}: {actual!r:.300}; PyTorch raises {_line(expected)}"
        elif isinstance(actual, Exception):
            raise AssertionError(f"{what}: raises {_line(actual)}") from actual
        else:
            wide = case.in_double()
            precise = functools.partial(wide.call, form, *wide.twins())
            _compare(case, "forms", actual, expected, f"{case.name} as {what}", precise)


def _outcome(function: Callable):
    try:
        return function()
    except Exception as error:
        return error


def _forms(op: OpInfo):
    """The other forms of an entry: each a function of the sample's arguments, which gives all that it changes."""
    for owner, name in ((op, full_name(op)), *((alias, alias.name) for alias in op.aliases)):
        if owner is not op:
            yield name, owner.op
        if owner.method_variant is not None:
            yield f"{name} (method)", owner.method_variant
        if owner.inplace_variant is not None:
            yield f"{name} (in place)", functools.partial(_in_place, owner.inplace_variant)
    if op.operator_variant is not None:
        yield "operator", op.operator_variant
    if op.inplace_operator_variant is not None:
        yield "in-place operator", functools.partial(_in_place, op.inplace_operator_variant)
    if op.supports_out:
        yield "out=", functools.partial(_out, op)


def _in_place(form, first, *args, **kwargs):
    target = first.clone()
    return form(target, *args, **kwargs), target


def _out(op, *args, **kwargs):
    out = pytree.tree_map(torch.zeros_like, op(*args, **kwargs))
    return op(*args, out=out, **kwargs), out


CHECKS: dict[str, Callable[[Case], None]] = {
    "values": values,
    "x64": values_x64,
    "jit": jit,
    "gradients": gradients,
    "forward": forward,
    "second": second,
    "errors": errors,
    "vmap": vmap,
    "forms": forms,
}


def check_values(op: OpInfo, sample: SampleInput, jit: bool = False) -> None:
    """Compares the results of one sample."""
    (CHECKS["jit"] if jit else values)(Case(op, torch.float32, sample))


def check_gradients(op: OpInfo, sample: SampleInput) -> None:
    """Compares the gradients for a random cotangent of every input that requires grad."""
    with contextlib.suppress(Refused):
        gradients(Case(op, torch.float32, sample))
