"""The functions derived from a `TorchFunction`: its gradient, and its batched form."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import get_gradient_edge

from ..internals.transforms import are_functorch_transforms_active
from ..runtime.errors.hints import advised
from ..runtime.errors.locations import user_level
from .function import TorchFunction


def gradient(function: TorchFunction, wanted: tuple[int, ...], given: tuple[int, ...]) -> TorchFunction:
    """The function from the inputs and the cotangents of the results `given` to the gradients of the inputs `wanted`.

    Cotangents and gradients follow JAX's convention for complex numbers, the conjugate of PyTorch's.
    """
    first = len(function.dtypes)
    return function.derived.obtain(
        ("gradient", wanted, given),
        lambda: TorchFunction(
            _Pullback(function, wanted, given),
            f"{function.name}_vjp",
            function.dtypes + (None,) * len(given),
            inputs=tuple(sorted(function.inputs)) + tuple(range(first, first + len(given))),
            results=tuple(range(len(wanted))),
            depth=function.depth - 1,
            settings=function.settings,
            is_gradient=True,
            identity=function.identity and f"{function.identity} vjp {wanted} {given}",
        ),
    )


class _Pullback:
    def __init__(self, function: TorchFunction, wanted: tuple[int, ...], given: tuple[int, ...]):
        self.function = function
        self.wanted = wanted
        self.given = given
        self.count = len(function.dtypes)
        self.transforms = function.settings.use_torch_vjp is not False

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        inputs, cotangents = tensors[: self.count], [_conj(tensor) for tensor in tensors[self.count :]]
        gradients = self._pull_back(inputs, cotangents)
        if gradients is None:
            # A gradient whose steps are all PyTorch's own is constant where it is not connected: the next one is zero.
            if not self.function.is_gradient and any(map(_may_be_nonzero, cotangents)):
                raise self._no_gradient(inputs)
            gradients = [None] * len(self.wanted)
        return [
            torch.zeros_like(inputs[index]) if grad is None else _conj(grad).to(inputs[index].dtype)
            for index, grad in zip(self.wanted, gradients, strict=True)
        ]

    def _pull_back(
        self, inputs: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor | None] | None:
        """The gradients, or None where no input that is wanted reaches a result, for PyTorch."""
        if not self.transforms:
            return self._by_autograd(inputs, cotangents)
        try:
            return self._by_transform(inputs, cotangents)
        except Exception as error:
            try:
                gradients = self._by_autograd(inputs, cotangents)
            except Exception:
                if are_functorch_transforms_active():
                    raise error from None
                raise  # what PyTorch's user knows
            self.transforms = False
            if self.function.settings.use_torch_vjp and gradients is not None:
                warnings.warn(
                    f"torch.func.vjp cannot differentiate {self.function} ({type(error).__name__}: "
                    f"{_first_line(error)}); torch.autograd.grad takes its gradients, more slowly. "
                    "Pass use_torch_vjp=False to choose that",
                    stacklevel=user_level(),
                )
            return gradients

    def _of(self, inputs: Sequence[torch.Tensor]) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The function of the wanted inputs alone, to the results that have cotangents."""

        function = self.function

        def run(*active: torch.Tensor) -> tuple[torch.Tensor, ...]:
            tensors = list(inputs)
            for index, tensor in zip(self.wanted, active, strict=True):
                may_write = function.copies is None or function.copies[index]
                tensors[index] = tensor.clone() if may_write else tensor  # autograd forbids writes to a leaf
            results = function.run(*tensors)
            return tuple(results[index] for index in self.given)

        return run

    def _by_transform(
        self, inputs: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor] | None:
        edges: list = []

        def run(*active: torch.Tensor) -> tuple[torch.Tensor, ...]:
            results = self._of(inputs)(*active)
            # A view is of this transformation, what it is of need not be: a tensor from outside that requires grad.
            edges.extend(_edges([result.view_as(result) for result in results]))
            return results

        made: Any = torch.func.vjp(run, *(inputs[index] for index in self.wanted))
        results, pull_back = made
        if not edges:
            return None
        with advised():
            gradients = pull_back(_like(cotangents, results))
        return self._checked(inputs, edges, gradients)

    def _by_autograd(
        self, inputs: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor | None] | None:
        nested = any(tensor.requires_grad for tensor in (*inputs, *cotangents))
        with torch.enable_grad():
            leaves = [inputs[index] for index in self.wanted]
            leaves = [leaf if leaf.requires_grad else leaf.detach().requires_grad_() for leaf in leaves]
            results = self._of(inputs)(*leaves)
            pairs = [pair for pair in zip(results, _like(cotangents, results), strict=True) if pair[0].requires_grad]
            if not pairs:
                return None
            outputs, weights = zip(*pairs, strict=True)
            edges = _edges(outputs)
            with advised():
                found = torch.autograd.grad(outputs, leaves, weights, create_graph=nested, allow_unused=True)
            gradients = cast(Sequence[torch.Tensor | None], found)
            if all(gradient is None for gradient in gradients) and not _reach(leaves, edges):
                return None
            return self._checked(inputs, edges, gradients)

    def _checked(self, inputs: Sequence[torch.Tensor], edges: Iterable, gradients: Sequence) -> Sequence:
        """The gradients; an error if they must be differentiable and user code has made that impossible."""
        nested = any(tensor.requires_grad for tensor in inputs)
        if not nested or any(gradient is not None and gradient.requires_grad for gradient in gradients):
            return gradients
        if any(isinstance(node, BackwardCFunction) for node, _ in _all_edges(edges)):
            raise self._no_gradient(inputs)
        return gradients

    def _no_gradient(self, inputs: Sequence[torch.Tensor]) -> RuntimeError:
        wanted_inputs = _listed("input", [f"{index} of shape {tuple(inputs[index].shape)}" for index in self.wanted])
        return RuntimeError(
            "element 0 of tensors does not require grad and does not have a grad_fn: JAX differentiates "
            f"{self.function} for its {wanted_inputs}, and in PyTorch its {_listed('result', self.given)} "
            f"{'does' if len(self.given) == 1 else 'do'} not depend on that: the code leaves autograd, as .detach(), "
            "torch.no_grad() and numpy do. Write it in PyTorch's operations, or as a torch.autograd.Function with a "
            "backward; or, if a gradient of zero is meant, pass its result through jax.lax.stop_gradient (.detach() "
            "in code that t2j translates)"
        )


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
            identity=function.identity and f"{function.identity} vmap {key}",
        )
    return function.derived[key]


def _edges(results: Iterable[torch.Tensor]) -> list[tuple]:
    """The edges of autograd's graph that tensors come from: nodes, and the indices of their results."""
    edges = [get_gradient_edge(result) for result in results if result.requires_grad]
    return [(edge.node, edge.output_nr) for edge in edges]


def _all_edges(edges: Iterable) -> Iterator[tuple]:
    """These edges, and all that lead to them."""
    found, waiting = set(), list(edges)
    while waiting:
        edge = waiting.pop()
        if edge not in found and edge[0] is not None:
            found.add(edge)
            yield edge
            waiting += edge[0].next_functions


def _reach(leaves: Iterable[torch.Tensor], edges: Iterable) -> bool:
    """Returns True if one of the leaves leads to a result at one of the edges, though its gradient be None."""
    return not set(_edges(leaves)).isdisjoint(_all_edges(edges))


def _may_be_nonzero(cotangent: torch.Tensor) -> bool:
    """True if a gradient of zero might be wrong. JAX asks with zeros where it cannot know them, as in a scan."""
    try:
        return bool(cotangent.any())
    except RuntimeError:  # within torch.vmap, which does not tell
        return True


def _listed(noun: str, things: Sequence) -> str:
    return f"{noun}{'s' if len(things) > 1 else ''} {', '.join(map(str, things))}"


def _like(cotangents: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(weight.to(result.dtype) for weight, result in zip(cotangents, results, strict=True))


def _conj(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.conj() if tensor.is_complex() else tensor


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")
