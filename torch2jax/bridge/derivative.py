"""The functions that a `TorchFunction` gives rise to: its gradient, and its batched form."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .function import TorchFunction

__all__ = ["batched", "gradient"]


def gradient(function: TorchFunction, wanted: tuple[int, ...]) -> TorchFunction:
    """The function from the inputs and the cotangents of the differentiable results to the gradients of `wanted`.

    Cotangents and gradients follow JAX's convention for complex numbers, the conjugate of PyTorch's.
    """
    key = ("gradient", wanted)
    if key not in function.derived:
        first = len(function.dtypes)
        inputs = tuple(sorted(function.inputs)) + tuple(range(first, first + len(function.results)))
        function.derived[key] = TorchFunction(
            _Pullback(function, wanted),
            f"{function.name}_vjp",
            function.dtypes + (None,) * len(function.results),
            inputs=inputs,
            results=tuple(range(len(wanted))),
            depth=function.depth - 1,
            settings=function.settings,
            is_gradient=True,
        )
    return function.derived[key]


class _Pullback:
    def __init__(self, function: TorchFunction, wanted: tuple[int, ...]):
        self.function = function
        self.wanted = wanted
        self.count = len(function.dtypes)
        self.transforms = function.settings.use_torch_vjp is not False

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        inputs, cotangents = tensors[: self.count], [_conj(tensor) for tensor in tensors[self.count :]]
        gradients = self._pull_back(inputs, cotangents)
        return [
            torch.zeros_like(inputs[index]) if grad is None else _conj(grad).to(inputs[index].dtype)
            for index, grad in zip(self.wanted, gradients, strict=True)
        ]

    def _pull_back(self, inputs, cotangents) -> Sequence[torch.Tensor | None]:
        if not self.transforms:
            return self._by_autograd(inputs, cotangents)
        try:
            return self._by_transform(inputs, cotangents)
        except Exception as error:
            try:
                gradients = self._by_autograd(inputs, cotangents)
            except Exception:
                raise error from None
            self.transforms = False
            if self.function.settings.use_torch_vjp:
                warnings.warn(
                    f"torch.func.vjp cannot differentiate {self.function} ({type(error).__name__}: "
                    f"{_first_line(error)}); torch.autograd.grad takes its gradients, more slowly. "
                    "Pass use_torch_vjp=False to choose that",
                    stacklevel=2,
                )
            return gradients

    def _of(self, inputs) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The function of the wanted inputs alone, to the differentiable results."""

        function = self.function

        def run(*active: torch.Tensor) -> tuple[torch.Tensor, ...]:
            tensors = list(inputs)
            for index, tensor in zip(self.wanted, active, strict=True):
                may_write = function.copies is None or function.copies[index]
                tensors[index] = tensor.clone() if may_write else tensor  # autograd forbids writes to a leaf
            results = function.run(*tensors)
            return tuple(results[index] for index in function.results)

        return run

    def _by_transform(self, inputs, cotangents) -> Sequence[torch.Tensor]:
        made: Any = torch.func.vjp(self._of(inputs), *(inputs[index] for index in self.wanted))
        results, pull_back = made
        return pull_back(_like(cotangents, results))

    def _by_autograd(self, inputs, cotangents) -> Sequence[torch.Tensor | None]:
        nested = any(tensor.requires_grad for tensor in (*inputs, *cotangents))
        with torch.enable_grad():
            leaves = [inputs[index] for index in self.wanted]
            leaves = [leaf if leaf.requires_grad else leaf.detach().requires_grad_() for leaf in leaves]
            results = self._of(inputs)(*leaves)
            pairs = [pair for pair in zip(results, _like(cotangents, results), strict=True) if pair[0].requires_grad]
            if not pairs:
                return [None] * len(leaves)
            outputs, weights = zip(*pairs, strict=True)
            return torch.autograd.grad(outputs, leaves, weights, create_graph=nested, allow_unused=True)


def batched(function: TorchFunction, axes: tuple[int | None, ...]) -> TorchFunction:
    """The function mapped by `torch.vmap` over the given axes, its results over their first."""
    key = ("batched", axes)
    if key not in function.derived:
        mapped = torch.vmap(lambda *tensors: tuple(function.run(*tensors)), in_dims=axes, randomness="different")
        function.derived[key] = TorchFunction(
            lambda *tensors: list(mapped(*tensors)),
            f"{function.name}_vmap",
            function.dtypes,
            inputs=function.inputs,
            results=function.results,
            depth=function.depth,
            settings=function.settings,
            copies=function.copies,
            is_gradient=function.is_gradient,
        )
    return function.derived[key]


def _like(cotangents, results) -> tuple[torch.Tensor, ...]:
    return tuple(weight.to(result.dtype) for weight, result in zip(cotangents, results, strict=True))


def _conj(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.conj() if tensor.is_complex() else tensor


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")
