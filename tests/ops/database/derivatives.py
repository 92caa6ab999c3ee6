"""The checks of derivatives: gradients, forward mode, and gradients of gradients."""

import functools
from collections.abc import Callable, Generator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch2jax import t2j

from . import exceptions
from .compare import sizes
from .outcome import Refused, compare_results, key, refusing
from .programs import Program, Steps
from .samples import Case, in_precision, twin

__all__ = ["Derivatives", "forward", "gradients", "second", "wide"]


class Derivatives:
    """The derivatives of one case in PyTorch and translated, each computed once for all columns that compare it."""

    def __init__(self, case: Case, like: "Derivatives | None" = None):
        self.case = case
        self._both: tuple[list, list] | None = None
        self.wanted = [i for i, tensor in enumerate(case.tensors) if tensor.requires_grad]
        self.inputs = [t2j(case.tensors[i]) for i in self.wanted]
        tensors = [tensor if tensor.requires_grad else twin(tensor) for tensor in case.tensors]
        outputs = refusing(case.differentiable, *tensors) if self.wanted else []
        self.keep = [i for i, out in enumerate(outputs) if out.requires_grad]
        self.outputs = [outputs[i] for i in self.keep]
        if not self.outputs:
            raise Refused(f"{case}: nothing depends on what requires grad")
        torch.manual_seed(1)
        if like is None:
            self.cotangents = [torch.randn_like(out) for out in self.outputs]
            self.tangents = [torch.randn_like(case.tensors[i]) for i in self.wanted]
        else:
            self.cotangents = [in_precision(x, torch.float64) for x in like.cotangents]
            self.tangents = [in_precision(x, torch.float64) for x in like.tangents]

    @functools.cached_property
    def in_double(self) -> "Derivatives":
        return Derivatives(self.case.in_precision(torch.float64), self)

    def function(self, *arrays) -> list:
        """The case's function of the inputs that want gradients."""
        given: list[Any] = list(self.case.tensors)
        for i, array in zip(self.wanted, arrays, strict=True):
            given[i] = array
        result = t2j(self.case.differentiable)(*given, **key(self.case))
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
        grads = refusing(torch.autograd.grad, self.outputs, of, self.cotangents, allow_unused=True, create_graph=True)
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
        grads = refusing(torch.autograd.grad, first, of, tangents, allow_unused=True, retain_graph=True)
        return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(of, grads, strict=True)]

    def second_pull(self, *arrays) -> list:
        """The gradients of the gradients that depend on the inputs."""
        tangents = [jnp.conj(t2j(self.tangents[i])) for i in self.depends]

        def pulled(*arrays):
            result = self.pull(*arrays)
            return [result[i] for i in self.depends]

        _, vjp = jax.vjp(pulled, *arrays)
        return [jnp.conj(x) for x in vjp(tangents)]

    def run(self, function: Callable) -> Generator[Program, Any, Any]:
        """What a function gives for the inputs."""
        if exceptions.is_data_dependent(self.case):
            return function(*self.inputs)
        return (yield Program(function, self.inputs))

    def both(self) -> Generator[Program, Any, tuple[list, list]]:
        """The gradients, and the tangents of the outputs; compiled together, and only once."""
        if self._both is None:
            self._both = yield from self.run(lambda *arrays: (self.pull(*arrays), self.push(*arrays)))
        return self._both


def _derivatives(case: Case) -> Derivatives:
    if not hasattr(case, "derivatives"):
        case.derivatives = Derivatives(case)
    return case.derivatives


def gradients(case: Case) -> Steps:
    """The gradients for a random cotangent of every input that the sample marks."""
    derivatives = _derivatives(case)
    pulled, _ = yield from derivatives.both()
    expected = derivatives.expected
    compare_results(case, "gradients", pulled, expected, precise=lambda: derivatives.in_double.expected)


def wide(case: Case) -> Steps:
    """The same with ``jax_enable_x64``, whatever the precision of the case."""
    derivatives = Derivatives(case)
    pulled, _ = yield from derivatives.both()
    compare_results(case, "wide", pulled, derivatives.expected, precise=lambda: derivatives.in_double.expected)


def forward(case: Case) -> Steps:
    """`jax.jvp` agrees with `jax.vjp`, which `gradients` checks: <cotangent, pushed> = <gradients, tangent>."""
    derivatives = _derivatives(case)
    pulled, pushed = yield from derivatives.both()
    wanted = sizes(derivatives.outputs)
    assert sizes(pushed) == wanted, f"{case.name}: {sizes(pushed)}, expected {wanted}"
    if not exceptions.has_values(case):
        return
    out, magnitude = _inner(pushed, derivatives.cotangents)
    into, other = _inner(pulled, derivatives.tangents)
    rtol, atol = exceptions.forward_tolerance(case.name, case.dtype)
    np.testing.assert_allclose(out, into, 0, atol + rtol * (magnitude + other), err_msg=f"{case.name}: jvp")


def _inner(these, those) -> tuple[float, float]:
    """The real inner product of two lists, and that of their absolute values."""
    total = magnitude = 0.0
    for a, b in zip(these, those, strict=True):
        products = (np.asarray(a).astype(np.complex128).conj() * np.asarray(t2j(b.detach())).astype(np.complex128)).real
        total, magnitude = total + products.sum(), magnitude + np.abs(products).sum()
    return total, magnitude


def second(case: Case) -> Steps:
    """The gradients of the gradients, against a random tangent, where PyTorch has them and they are numbers."""
    derivatives = _derivatives(case)
    if not exceptions.has_values(case):
        return
    wanted = derivatives.second_expected
    if any(bool(x.isnan().any()) for x in derivatives.in_double.second_expected):
        raise Refused(f"{case}: PyTorch's is not a number")
    actual = yield from derivatives.run(derivatives.second_pull)
    compare_results(case, "second", actual, wanted, precise=lambda: derivatives.in_double.second_expected)
