"""`torch.optim.LBFGS` in translated code: PyTorch's algorithm with memory of a fixed size, and loops of the graph.

PyTorch keeps the last steps in lists that grow. Here they are the last rows of tensors of `history_size` rows. Which
rows count, and whatever else PyTorch asks of values, are tensors; only its loops ask, and become loops of the graph.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import torch
from jax import lax
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from ..patches import runs_instead_of
from ..tensors.tensor import Torchish, wrap
from .call import this_call

__all__ = ["is_unpadded", "pad", "unpad"]

_LISTS = ("old_dirs", "old_stps", "ro")


# A state of one shape.


def is_unpadded(optimizer: Optimizer) -> bool:
    """Whether it has the state that PyTorch has."""
    return isinstance(optimizer, LBFGS) and any("count" not in state for state in optimizer.state.values())


def pad(optimizer: LBFGS) -> dict[str, Any]:
    """Gives the state of an optimizer the shapes that it keeps, in new tensors, and returns it."""
    group = optimizer.param_groups[0]
    parameters, size = group["params"], group["history_size"]
    state = optimizer.state[parameters[0]]
    if "count" in state:
        return state
    with torch.no_grad():
        like = torch.cat([_flat(x).new_zeros(()).view(1) for x in parameters])
        count = sum(_flat(x).numel() for x in parameters)
        rows = {name: state.get(name) or [] for name in _LISTS}
        for name in ("func_evals", "n_iter"):
            state[name] = torch.tensor(state.get(name, 0))
        for name in ("d", "prev_flat_grad"):
            state[name] = _or(state.get(name), like.new_zeros(count)).clone()
        for name in ("t", "H_diag", "prev_loss"):
            state[name] = torch.as_tensor(_or(state.get(name), 1.0), dtype=like.dtype).clone()
        for name, found in rows.items():
            padded = like.new_zeros((size, count) if name != "ro" else (size,))
            state[name] = torch.cat([padded[: size - len(found)], *(x.reshape(1, *padded.shape[1:]) for x in found)])
        state["count"] = torch.tensor(len(rows["ro"]))
        state.pop("al", None)
    return state


def unpad(optimizer: LBFGS) -> None:
    """Gives an optimizer the state that PyTorch has."""
    state = optimizer.state[optimizer.param_groups[0]["params"][0]]
    if "count" not in state:
        return
    count = int(state.pop("count"))
    for name in _LISTS:
        rows = state[name]
        state[name] = [x.clone() for x in rows[len(rows) - count :]]
    for name in ("func_evals", "n_iter"):
        state[name] = int(state[name])
    state["prev_loss"] = float(state["prev_loss"])
    if state["n_iter"] == 0:  # it has found nothing to do
        for name in (*_LISTS, "d", "t", "H_diag", "prev_flat_grad", "prev_loss"):
            del state[name]


def _or(value: Any, other: Any) -> Any:
    return other if value is None else value


def _flat(tensor: Tensor) -> Tensor:
    """A view as one dimension of real numbers."""
    return (torch.view_as_real(tensor) if torch.is_complex(tensor) else tensor).reshape(-1)


# A step.


class _LbfgsOptions(NamedTuple):
    rate: Any
    most: int
    most_evaluations: int
    tolerance_grad: float
    tolerance_change: float
    searches: bool


class _Function:
    """The function that is minimized, of all parameters in a row."""

    def __init__(self, parameters: list[Tensor], closure: Callable):
        self._parameters, self._closure = parameters, closure

    def __call__(self) -> tuple[Any, Tensor, Tensor]:
        """What the closure returns, the value in it, and the gradient where the parameters are."""
        with torch.enable_grad():
            found = self._closure()
        gradient = torch.cat([self._gradient(x) for x in self._parameters])
        return found, torch.as_tensor(found).detach().to(gradient.dtype).clone(), gradient

    def _gradient(self, parameter: Tensor) -> Tensor:
        if parameter.grad is None:
            return _flat(torch.zeros_like(parameter))
        gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        return _flat(gradient)

    def move(self, step: Any, direction: Tensor) -> None:
        begin = 0
        for parameter in self._parameters:
            parts = torch.view_as_real(parameter) if torch.is_complex(parameter) else parameter
            end = begin + parts.numel()
            parts.add_(step * direction[begin:end].view_as(parts))
            begin = end

    def at(self, step: Any, direction: Tensor) -> tuple[Tensor, Tensor]:
        """The value and the gradient a step from where the parameters are, and stay."""
        before = [x.clone() for x in self._parameters]
        self.move(step, direction)
        _, value, gradient = self()
        for parameter, kept in zip(self._parameters, before, strict=True):
            parameter.copy_(kept)
        return value, gradient


@runs_instead_of(inspect.unwrap(LBFGS.step))
def step(self: LBFGS, closure: Callable) -> Any:
    """Takes one step of an optimizer, with gradients off.

    Raises:
        RuntimeError: the line search is none of PyTorch's.
    """
    group, state = self.param_groups[0], pad(self)
    search = group["line_search_fn"]
    if search not in (None, "strong_wolfe"):
        raise RuntimeError("only 'strong_wolfe' is supported")
    rate = group["lr"].item() if isinstance(group["lr"], Tensor) else group["lr"]
    names = ("max_iter", "max_eval", "tolerance_grad", "tolerance_change")
    given: list[Any] = [group[name] for name in names]
    options = _LbfgsOptions(rate, given[0], given[1], given[2], given[3], search is not None)
    this_call().paths[-1].expect_loops(_iterate.__code__, _bracket.__code__, _zoom.__code__)
    function = _Function(group["params"], closure)
    found, value, gradient = function()
    state["func_evals"] = state["func_evals"] + 1
    apart = {name: tensor.clone() for name, tensor in state.items()}  # as they are in later iterations
    state.update(_iterate(function, options, apart, value, gradient))
    return found


def _iterate(
    function: _Function, options: _LbfgsOptions, state: dict[str, Any], value: Tensor, gradient: Tensor
) -> dict:
    """The state after all iterations of a step."""
    number, evaluations = 0, torch.tensor(1)
    goes_on = ~(gradient.abs().max() <= options.tolerance_grad)
    while number < options.most and goes_on:
        number += 1
        state = _remember(state, value, gradient, options)
        slope = gradient.dot(state["d"])
        if slope > -options.tolerance_change:
            goes_on = torch.tensor(False)
            continue
        before = evaluations
        if options.searches:
            value, gradient, state, evaluations = _search(function, options, state, value, gradient, slope, evaluations)
            function.move(state["t"], state["d"])
        else:
            function.move(state["t"], state["d"])
            if number != options.most:
                _, value, gradient = function()
                evaluations = evaluations + 1
        state = {**state, "func_evals": state["func_evals"] + evaluations - before}
        goes_on = ~(
            (evaluations >= options.most_evaluations)
            | (gradient.abs().max() <= options.tolerance_grad)
            | ((state["d"] * state["t"]).abs().max() <= options.tolerance_change)
            | ((value - state["prev_loss"]).abs() < options.tolerance_change)
        )
    return state


def _remember(state: dict[str, Any], value: Tensor, gradient: Tensor, options: _LbfgsOptions) -> dict[str, Any]:
    """The state with the step before in its memory, the direction that follows, and how far to go at first."""
    iteration = state["n_iter"] + 1
    is_first = iteration == 1
    change, moved = gradient - state["prev_flat_grad"], state["d"] * state["t"]
    product = change.dot(moved)
    counts = (product > 1e-10) & ~is_first
    scale = torch.where(counts, product / change.dot(change), torch.where(is_first, 1.0, state["H_diag"]))
    new = {"old_dirs": change, "old_stps": moved, "ro": 1.0 / product}
    rows = {name: torch.where(counts, torch.cat([state[name][1:], x[None]]), state[name]) for name, x in new.items()}
    count = torch.where(is_first, 0, state["count"] + counts).clamp(max=len(rows["ro"]))
    changes, steps, inverses = rows.values()
    direction = _direction(gradient, changes, steps, inverses, scale, count)
    far = torch.full((), options.rate, dtype=gradient.dtype)
    far = torch.where(is_first, (1.0 / gradient.abs().sum()).clamp(max=1.0) * far, far)
    latest = {"d": direction, "t": far, "H_diag": scale, "n_iter": iteration, "count": count}
    return {**state, **rows, **latest, "prev_flat_grad": gradient.clone(), "prev_loss": value.clone()}


def _direction(
    gradient: Tensor, changes: Tensor, steps: Tensor, inverses: Tensor, scale: Tensor, count: Tensor
) -> Torchish:
    """Minus the gradient times the inverse Hessian that the last rows tell, by the recursion of two loops."""
    tape = this_call().tape
    arrays = [this_call().lift(x).read() for x in (gradient, changes, steps, inverses, scale, count)]
    arrays = [lax.stop_gradient(x if tape is None else tape.primal(x)) for x in arrays]
    result = wrap(_times_inverse_hessian(*arrays), gradient.dtype)
    result._node.storage.differentiable = False
    return result


def _times_inverse_hessian(gradient: Any, changes: Any, steps: Any, inverses: Any, scale: Any, count: Any) -> Any:
    last = len(inverses) - 1
    count = jnp.asarray(count, jnp.int32)

    def dot(x: Any, y: Any):
        return jnp.dot(x, y, precision=lax.Precision.HIGHEST)

    def down(i: Any, carry: Any):
        q, weights = carry
        weight = dot(steps[last - i], q) * inverses[last - i]
        return q - weight * changes[last - i], weights.at[last - i].set(weight)

    def up(i: Any, r: Any):
        at = last + 1 - count + i
        return r + (weights[at] - dot(changes[at], r) * inverses[at]) * steps[at]

    q, weights = lax.fori_loop(0, count, down, (-gradient, jnp.zeros_like(inverses)))
    return lax.fori_loop(0, count, up, q * scale)


# How far to go, by the strong conditions of Wolfe.


class _Point(NamedTuple):
    """A step along the direction: how far, and the value, the gradient and the slope there."""

    far: Tensor
    value: Tensor
    gradient: Tensor
    slope: Tensor

    def copy(self) -> "_Point":
        return _Point(*(x.clone() for x in self))

    def or_else(self, other: "_Point", where: Tensor) -> "_Point":
        """This one where it says so, and otherwise another."""
        return _Point(*(torch.where(where, x, y) for x, y in zip(self, other, strict=True)))


class _Bracket(NamedTuple):
    """Two steps, between which there is one that is good enough."""

    low: _Point
    high: _Point
    is_in_order: Tensor
    """Whether the low one was found before the high one: of two equal values the older is the low one."""
    is_done: Tensor
    """Whether the low one is good enough."""
    tries: Tensor


_ARMIJO, _CURVATURE, _MIN_CHANGE, _MIN_PROGRESS = 1e-4, 0.9, 1e-9, 0.1


def _search(
    function: _Function,
    options: _LbfgsOptions,
    state: dict[str, Any],
    value: Tensor,
    gradient: Tensor,
    slope: Tensor,
    evaluations: Tensor,
) -> tuple:
    """The value and the gradient where the parameters are to go, the state with how far, and how many evaluations."""
    here = _Point(torch.zeros_like(state["t"]), value, gradient, slope)
    most = options.most_evaluations - evaluations
    found = _bracket(function, here, state["d"], state["t"], most, options.most_evaluations)
    bracket = _zoom(function, here, state["d"], found, most, options.most_evaluations)
    low = bracket.low
    return low.value, low.gradient, {**state, "t": low.far}, evaluations + bracket.tries + 1


def _evaluated(function: _Function, far: Tensor, direction: Tensor) -> _Point:
    value, gradient = function.at(far, direction)
    return _Point(far, value, gradient, gradient.dot(direction))


def _is_too_high(point: _Point, here: _Point) -> Tensor:
    return point.value > here.value + _ARMIJO * point.far * here.slope


def _is_flat(point: _Point, here: _Point) -> Tensor:
    return point.slope.abs() <= -_CURVATURE * here.slope


def _bracket(function: _Function, here: _Point, direction: Tensor, far: Tensor, most: Tensor, bound: int) -> _Bracket:
    """Goes further until two steps have one between them that is good enough."""
    before, point, tries = here.copy(), here.copy(), torch.tensor(-1)
    seeks, is_done, number = torch.tensor(True), torch.tensor(False), -1
    while number < bound and seeks:
        number += 1
        tries = tries + 1
        before, point = point, _evaluated(function, far, direction)
        may_go_on = tries < most
        too_high = _is_too_high(point, here) | ((tries > 1) & (point.value >= before.value))
        is_done = may_go_on & ~too_high & _is_flat(point, here)
        seeks = may_go_on & ~too_high & ~is_done & ~(point.slope >= 0)
        least, largest = far + 0.01 * (far - before.far), far * 10
        far = torch.where(seeks, _interpolated(before, point, least, largest), far)
    before = point.or_else(here.or_else(before, ~(tries < most)), is_done)
    in_order = before.value <= point.value
    return _Bracket(before.or_else(point, in_order), point.or_else(before, in_order), in_order, is_done, tries)


def _zoom(function: _Function, here: _Point, direction: Tensor, found: _Bracket, most: Tensor, bound: int) -> _Bracket:
    """Makes a bracket smaller until its low step is good enough."""
    low, high, in_order, is_done, tries = found
    number, reach, stalls = 0, direction.abs().max(), torch.tensor(False)
    while number < bound and ~is_done & (tries < most) & ~((high.far - low.far).abs() * reach < _MIN_CHANGE):
        number += 1
        tries = tries + 1
        least, largest = torch.minimum(low.far, high.far), torch.maximum(low.far, high.far)
        far = _interpolated(low, high, least, largest)
        margin = _MIN_PROGRESS * (largest - least)
        is_near = torch.minimum(largest - far, far - least) < margin
        is_moved = is_near & (stalls | (far >= largest) | (far <= least))
        inside = torch.where((far - largest).abs() < (far - least).abs(), largest - margin, least + margin)
        stalls, far = is_near & ~is_moved, torch.where(is_moved, inside, far)
        point = _evaluated(function, far, direction)
        is_worse = _is_too_high(point, here) | (point.value >= low.value)
        is_done = ~is_worse & _is_flat(point, here)
        turns = ~is_worse & ~is_done & (point.slope * (high.far - low.far) >= 0)
        swaps = is_worse & torch.where(in_order, point.value < low.value, point.value <= low.value)
        high = low.or_else(point.or_else(high, is_worse), turns | swaps)
        low = low.or_else(point, is_worse & ~swaps)
        in_order = in_order ^ swaps
    return _Bracket(low, high, in_order, is_done, tries)


def _interpolated(one: _Point, other: _Point, least: Tensor, largest: Tensor) -> Tensor:
    """Where the cubic polynomial of the values and slopes of two steps is least, within bounds."""
    is_ordered = one.far <= other.far
    left, right = one.or_else(other, is_ordered), other.or_else(one, is_ordered)
    d1 = left.slope + right.slope - 3 * (left.value - right.value) / (left.far - right.far)
    square = d1**2 - left.slope * right.slope
    d2 = torch.where(square >= 0, square, 0.0).sqrt()
    far = right.far - (right.far - left.far) * ((right.slope + d2 - d1) / (right.slope - left.slope + 2 * d2))
    return torch.where(square >= 0, far.maximum(least).minimum(largest), (least + largest) / 2.0)
