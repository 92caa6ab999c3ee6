"""PyTorch's `while_loop` is `jax.lax.while_loop`, and Python's own where nothing is staged."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from jax import lax
from jax.core import eval_jaxpr
from jax.extend.core import Var, jaxpr_as_fun

from ...branches.block import Block, BlockEffects, trace_blocks, uncaptured
from ...internals.pytree import tree_flatten
from ...rules.registry import implements_tensors
from ...tensors.traced import evaluating, is_traced
from ...values.traced_numbers import number_of
from .carry import TensorCarry
from .cond import known_number
from .results import Tensors

_MOST = 10**6


def count_steps(condition: Any, body: Any, known: list) -> int | None:
    """The number of steps, None if it is unknown or very large.

    Args:
        condition: the program (a closed jaxpr) of whether there is one more step.
        body: that of a step.
        known: of what is carried into the first step, the arrays that no traced input decides, and None for others.
    """
    constants = _Needs(condition, [0])
    needed = set(constants.inputs)
    while True:
        of_body = _Needs(body, sorted(needed))
        if needed >= of_body.inputs:
            break
        needed |= of_body.inputs
    if any(known[i] is None for i in needed) or any(map(is_traced, (*constants.constants, *of_body.constants))):
        return None
    places = sorted(needed)

    def filled(values) -> list:
        inputs: list[Any] = [None] * len(known)
        for place, value in zip(places, values, strict=True):
            inputs[place] = value
        return inputs

    def goes_on(state):
        count, values = state
        return lax.bitwise_and(constants.run(filled(values))[0], lax.lt(count, _MOST))

    def step(state):
        count, values = state
        return lax.add(count, 1), of_body.run(filled(values))

    with evaluating():
        count, _ = jax.jit(lambda values: lax.while_loop(goes_on, step, (0, values)))([known[i] for i in places])
    return int(count) if int(count) < _MOST else None


class _Needs:
    """What some results of a program need, and the program of these alone.

    Args:
        program: a closed jaxpr.
        outputs: the numbers of the results.
    """

    def __init__(self, program: Any, outputs: list[int]):
        jaxpr = program.jaxpr
        wanted = {jaxpr.outvars[i] for i in outputs if isinstance(jaxpr.outvars[i], Var)}
        steps: list[Any] = []
        for step in reversed(jaxpr.eqns):
            if not wanted.isdisjoint(step.outvars):
                wanted.update(x for x in step.invars if isinstance(x, Var))
                steps.append(step)
        self.inputs = {i for i, var in enumerate(jaxpr.invars) if var in wanted}
        pairs = zip(jaxpr.constvars, program.consts, strict=True)
        self._constants = [(var, value) for var, value in pairs if var in wanted]
        self._jaxpr = jaxpr.replace(
            constvars=[var for var, _ in self._constants],
            outvars=[jaxpr.outvars[i] for i in outputs],
            eqns=steps[::-1],
            debug_info=jaxpr.debug_info.with_unknown_names(),
        )

    @property
    def constants(self) -> list:
        return [value for _, value in self._constants]

    def run(self, inputs: list) -> list:
        """The results, for inputs of which only those needed are looked at."""
        return eval_jaxpr(self._jaxpr, self.constants, *inputs)


_NAME = "while_loop"


@implements_tensors(torch.ops.higher_order.while_loop)
def while_loop(cond_fn, body_fn, carried_inputs, additional_inputs=(), **options):
    del options  # which of its inputs it writes: that is seen

    def ask(*carried):
        answer = cond_fn(*carried, *additional_inputs)
        if not isinstance(answer, bool) and not _is_flag(answer):
            raise RuntimeError(f"cond_fn must return a boolean scalar tensor or a boolean but got {answer}")
        return answer

    def step(*carried):
        return body_fn(*carried, *additional_inputs)

    if is_traced(lax.full((), 0.0)):
        return _staged(ask, step, carried_inputs)
    return _at_once(ask, step, carried_inputs)


def _is_flag(answer) -> bool:
    return isinstance(answer, torch.Tensor) and answer.dtype == torch.bool and answer.dim() == 0


def _at_once(ask: Callable, step: Callable, carried: Sequence) -> Any:
    """Takes one step after the other, as PyTorch does; that may be differentiated backwards."""
    carry, result = TensorCarry(_NAME, carried), None
    while True:
        answer = known_number(ask(*carried))
        if answer is None or (not answer and result is None):  # without a step, nobody knows what one gives
            return _staged(ask, step, carried)
        if not answer:
            return result
        result = step(*carried)
        carried, _ = tree_flatten(result)
        carry.check(carried)


def _staged(ask: Callable, step: Callable, carried: Sequence) -> Any:
    carry = TensorCarry(_NAME, carried)
    return trace_blocks(lambda effects: _trace(effects, ask, step, carry), _NAME)


def _trace(effects: BlockEffects, ask: Callable, step: Callable, carry: TensorCarry) -> Any:
    def flag(*carried):
        answer = ask(*carried)
        if answer is True:
            raise uncaptured(_NAME, "infinite loop, for cond_fn always returns the same value True")
        return number_of(answer)

    results = Tensors(step, _NAME, integers=True)
    condition = Block(flag, effects, repeats=True, may_write=False)
    body = Block(results, effects, repeats=True)

    def goes_on(state):
        arrays, written, key = state
        ((answer,), _) = condition.trace(carry.tensors(arrays), written, key, taken=2)
        return answer

    def take_step(state):
        arrays, written, key = state
        next_key, own_key = (None, None) if key is None else jax.random.split(key)
        found, written = body.trace(carry.tensors(arrays), written, own_key)
        return carry.next(effects, found, body.given), written, next_key

    arrays, written, _ = _loop(goes_on, take_step, (carry.arrays, effects.arrays, effects.key), carry.known)
    effects.leave(written)
    wants_grad = carry.wants_grad or body.wants_grad
    pairs = zip(carry.given, arrays, strict=True)
    return results.restored([given.spec.that_may_want_grad(wants_grad).result(array) for given, array in pairs])


def _loop(goes_on: Callable, take_step: Callable, state: tuple, known: list) -> Any:
    """``lax.while_loop``; where the number of steps is known, ``lax.scan``, which has derivatives backwards.

    Args:
        known: of the first arrays in `state`, those that no traced input decides, and None for others.
    """
    leaves, structure = jax.tree.flatten(state)
    condition, body = (
        jax.make_jaxpr(lambda *leaves, function=function: function(jax.tree.unflatten(structure, leaves)))(*leaves)
        for function in (goes_on, take_step)
    )
    count = count_steps(condition, body, known + [None] * (len(leaves) - len(known)))
    if count is None:
        leaves = lax.while_loop(lambda xs: jaxpr_as_fun(condition)(*xs)[0], lambda xs: jaxpr_as_fun(body)(*xs), leaves)
    else:
        leaves, _ = lax.scan(lambda xs, _: (jaxpr_as_fun(body)(*xs), None), leaves, length=count)
    return jax.tree.unflatten(structure, leaves)
