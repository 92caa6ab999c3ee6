"""PyTorch's loop operators, as JAX's: `while_loop`, `scan`, `map` and `associative_scan`.

PyTorch's `while_loop` is `jax.lax.while_loop`, and Python's own where nothing is staged. Its `scan` and `map` are
`jax.lax.scan`; `associative_scan` is `jax.lax.associative_scan`.

Also here: the carry of a loop from one step to the next.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np
import torch
from jax import lax
from jax.core import eval_jaxpr
from jax.extend.core import Var, jaxpr_as_fun

from ...internals.modules import associative_scan as torch_associative_scan, associative_scan_module, scan as torch_scan
from ...internals.tensors import tree_flatten, tree_leaves
from ...rules.registry import implements_tensors
from ...runtime.patches import replaces, runs_instead_of
from ...runtime.translation import current, lift
from ...tensors.array_buffer import ArrayBuffer
from ...tensors.known import evaluate
from ...tensors.tensor import Torchish
from ...tensors.traced import evaluating, is_traced
from ...tracing.tensor_spec import TensorSpec
from ...values.traced_numbers import Number, number_of
from .conditions import Block, BlockEffects, Given, Tensors, known_number, trace_blocks, uncaptured


class TensorCarry:
    """Tensors and Python integers that a loop carries: the integers become tensors.

    Args:
        operator: PyTorch's name of the loop.
        values: as they are before the first step.
    """

    def __init__(self, operator: str, values: Sequence):
        self._operator = operator
        self._is_number = [isinstance(value, (int, Number)) for value in values]
        self._tensors = [_lifted(value) for value in values]
        self.given = [_given(tensor) for tensor in self._tensors]
        self._is_arranged = False

    @property
    def arrays(self) -> list:
        """The arrays that are carried into the first step."""
        pairs = zip(self._tensors, self.given, strict=True)
        return [_literal(tensor.buffer.arranged(given.spec.layout)) for tensor, given in pairs]

    @property
    def known(self) -> list:
        """The known values of the arrays; None for those that a traced input decides."""
        pairs = zip(self._tensors, self.given, strict=True)
        return [
            None if tensor.known is None else ArrayBuffer(evaluate(tensor.known), None).arranged(given.spec.layout)
            for tensor, given in pairs
        ]

    @property
    def wants_grad(self) -> bool:
        return any(given.spec.wants_grad for given in self.given)

    def tensors(self, arrays: Sequence) -> list[Torchish]:
        """The tensors that a step gets."""
        tensors = [given.spec.tensor(array) for given, array in zip(self.given, arrays, strict=True)]
        return [Number.of(x) if is_number else x for x, is_number in zip(tensors, self._is_number, strict=True)]

    def check(self, values: Sequence) -> None:
        """Checks the results of a step.

        Raises:
            RuntimeError: it is not like what the step got.
        """
        self._check([_given(_lifted(value)) for value in values])

    def next(self, effects: BlockEffects, arrays: Sequence, found: list[Given]) -> list:
        """The arrays of a step's results, as the next step gets them."""
        self._check(found)
        if not self._is_arranged:  # in the order of dimensions that a step gives, once that is known
            self._is_arranged, before = True, self.given
            pairs = zip(self.given, found, strict=True)
            self.given = [mine.in_order_of(other) for mine, other in pairs]
            if self.given != before:
                effects.trace_again()
        triples = zip(self.given, found, arrays, strict=True)
        return [other.arranged(array, mine.spec.layout) for mine, other, array in triples]

    def _check(self, found: list[Given]) -> None:
        if len(found) != len(self.given):
            raise uncaptured(
                self._operator, f"expected {len(self.given)} results to carry, as it began with, but got {len(found)}"
            )
        for number, (mine, other) in enumerate(zip(self.given, found, strict=True)):
            difference = mine.differs_from(other)
            if difference:
                raise uncaptured(
                    self._operator,
                    "expected what is carried to have the same metadata before and after each step, but tensor "
                    f"{number} differs in {difference}",
                )


def _lifted(value) -> Torchish:
    return lift(value) if isinstance(value, torch.Tensor) else number_of(value)


def _given(tensor: Torchish) -> Given:
    return Given(TensorSpec.of(tensor), tensor.shape)


def _literal(array) -> object:
    """A known scalar as the graph shows it best: as a number."""
    return array if array.ndim or is_traced(array) else np.asarray(array)[()]


_MOST = 10**6


def count_steps(condition: object, body: object, known: list) -> int | None:
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
    positions = sorted(needed)

    def filled(values) -> list:
        inputs: list[object] = [None] * len(known)
        for position, value in zip(positions, values, strict=True):
            inputs[position] = value
        return inputs

    def goes_on(state):
        count, values = state
        return lax.bitwise_and(constants.run(filled(values))[0], lax.lt(count, _MOST))

    def step(state):
        count, values = state
        return lax.add(count, 1), of_body.run(filled(values))

    with evaluating():
        count, _ = jax.jit(lambda values: lax.while_loop(goes_on, step, (0, values)))([known[i] for i in positions])
    return int(count) if int(count) < _MOST else None


class _Needs:
    """The inputs and equations that some results of a program depend on, and the program of these alone.

    Args:
        program: a closed jaxpr.
        outputs: the numbers of the results.
    """

    def __init__(self, program: Any, outputs: list[int]):
        jaxpr = program.jaxpr
        wanted = {jaxpr.outvars[i] for i in outputs if isinstance(jaxpr.outvars[i], Var)}
        steps: list[object] = []
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
        """The results, for inputs of which only the needed ones are used."""
        return eval_jaxpr(self._jaxpr, self.constants, *inputs)


_NAME = "while_loop"


@implements_tensors(torch.ops.higher_order.while_loop)
def while_loop(cond_fn, body_fn, carried_inputs, additional_inputs=(), **options):
    del options  # which of its inputs it writes: that is seen

    def ask(*carried):
        decision = cond_fn(*carried, *additional_inputs)
        if not isinstance(decision, bool) and not _is_flag(decision):
            raise RuntimeError(f"cond_fn must return a boolean scalar tensor or a boolean but got {decision}")
        return decision

    def step(*carried):
        return body_fn(*carried, *additional_inputs)

    if is_traced(lax.full((), 0.0)):
        return _staged(ask, step, carried_inputs)
    return _at_once(ask, step, carried_inputs)


def _is_flag(decision) -> bool:
    return isinstance(decision, torch.Tensor) and decision.dtype == torch.bool and decision.dim() == 0


def _at_once(ask: Callable, step: Callable, carried: Sequence) -> object:
    """Takes one step after the other, as PyTorch does; that may be differentiated backwards."""
    carry, result = TensorCarry(_NAME, carried), None
    while True:
        decision = known_number(ask(*carried))
        if decision is None or (not decision and result is None):  # without a step, nobody knows what one gives
            return _staged(ask, step, carried)
        if not decision:
            return result
        result = step(*carried)
        carried, _ = tree_flatten(result)
        carry.check(carried)


def _staged(ask: Callable, step: Callable, carried: Sequence) -> object:
    carry = TensorCarry(_NAME, carried)
    return trace_blocks(lambda effects: _trace_while(effects, ask, step, carry), _NAME)


def _trace_while(effects: BlockEffects, ask: Callable, step: Callable, carry: TensorCarry) -> object:
    def flag(*carried):
        decision = ask(*carried)
        if decision is True:
            raise uncaptured(_NAME, "infinite loop, for cond_fn always returns the same value True")
        return number_of(decision)

    results = Tensors(step, _NAME, integers=True)
    condition = Block(flag, effects, repeats=True, may_write=False)
    body = Block(results, effects, repeats=True)

    def goes_on(state):
        arrays, written, key = state
        ((decision,), _) = condition.trace(carry.tensors(arrays), written, key, taken=2)
        return decision

    def take_step(state):
        arrays, written, key = state
        next_key, own_key = (None, None) if key is None else jax.random.split(key)
        found, written = body.trace(carry.tensors(arrays), written, own_key)
        return carry.next(effects, found, body.given), written, next_key

    arrays, written, _ = _while(goes_on, take_step, (carry.arrays, effects.arrays, effects.key), carry.known)
    effects.leave(written)
    wants_grad = carry.wants_grad or body.wants_grad
    pairs = zip(carry.given, arrays, strict=True)
    return results.restored([given.spec.that_may_want_grad(wants_grad).result(array) for given, array in pairs])


def _while(goes_on: Callable, take_step: Callable, state: tuple, known: list) -> Any:
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


class _Direction:
    """The direction of the next scan."""

    def __init__(self, *, reverse: bool):
        self._reverse = reverse

    def take(self) -> bool:
        """Returns True if the scan that asks first goes backwards; scans within it do not."""
        reverse, self._reverse = self._reverse, False
        return reverse


_direction: ContextVar[_Direction | None] = ContextVar("direction", default=None)


@runs_instead_of(torch_scan, with_original=True)
def _scan(original, combine_fn, init, xs, *, dim=0, reverse=False):
    """Checks the arguments as PyTorch does, moves `dim`, and reverses what JAX can go through backwards."""

    def combine(carry, x):
        result = combine_fn(carry, x)
        if not (isinstance(result, (tuple, list)) and len(result) == 2):
            raise uncaptured("scan", f"expected combine_fn to return a tuple (next_carry, y), but got {type(result)}")
        got, wanted = len(tree_leaves(result[0])), len(tree_leaves(init))
        if got != wanted:
            raise uncaptured("scan", f"expected the next carry to have {wanted} tensors, as init has, but got {got}")
        return tuple(result)

    token = _direction.set(_Direction(reverse=reverse is True))
    try:
        function = combine if callable(combine_fn) else combine_fn
        return original(function, init, xs, dim=dim, reverse=False if reverse is True else reverse)
    finally:
        _direction.reset(token)


@implements_tensors(torch.ops.higher_order.scan)
def scan(combine_fn, init, xs, additional_inputs=(), **options):
    del options  # which of its inputs it writes: that is seen
    direction = _direction.get()

    def combine(*args):
        return combine_fn(*args, *additional_inputs)

    return _scan_blocks("scan", combine, init, xs, reverse=direction is not None and direction.take())


@implements_tensors(torch.ops.higher_order.map_impl)
def map_impl(f, xs, pos_args=(), **options):
    del options
    return _scan_blocks("map", lambda *args: f(*args, *pos_args), (), xs)


def _scan_blocks(operator: str, function: Callable, init: Sequence, xs: Sequence, *, reverse: bool = False) -> object:
    """Runs ``function(*carry, *slices)`` for one slice after the other; its first results are the next carry."""
    call: Any = current()
    state = TensorCarry(operator, init)
    slices = _Slices([call.constants.lift(x) for x in xs])
    return trace_blocks(lambda effects: _trace_scan(effects, operator, function, state, slices, reverse), operator)


class _Slices:
    """Tensors that a loop goes through along their first dimension."""

    def __init__(self, tensors: list[Torchish]):
        self.length = tensors[0].shape[0]
        self._specs, self.arrays = [], []
        for tensor in tensors:
            spec, array = TensorSpec.of(tensor), tensor.buffer.array
            if spec.layout is not None and spec.layout[0] != 0:
                spec, array = spec._replace(layout=None), tensor.read()
            self._specs.append(spec.example(0))
            self.arrays.append(array)

    @property
    def wants_grad(self) -> bool:
        return any(spec.wants_grad for spec in self._specs)

    def tensors(self, arrays: Sequence) -> list[Torchish]:
        return [spec.tensor(array) for spec, array in zip(self._specs, arrays, strict=True)]


def _trace_scan(
    effects: BlockEffects, operator: str, function: Callable, state: TensorCarry, slices: _Slices, reverse: bool
):
    count = len(state.given)
    function = Tensors(function, operator, integers=False)
    block = Block(function, effects, repeats=True)
    keys = None if effects.key is None else jax.random.split(effects.key, slices.length)

    def step(carry, x):
        arrays, key = x
        args = [*state.tensors(carry[0]), *slices.tensors(arrays)]
        results, written = block.trace(args, carry[1], key)
        carried = state.next(effects, results[:count], block.given[:count])
        return (carried, written), results[count:]

    carry = (state.arrays, effects.arrays)
    (last, written), stacked = lax.scan(step, carry, (slices.arrays, keys), slices.length, reverse)
    effects.leave(written)
    wants_grad = slices.wants_grad or state.wants_grad or block.wants_grad
    specs = [given.spec for given in state.given]
    specs += [given.spec.with_examples(0) for given in block.given[count:]]
    pairs = zip(specs, [*last, *stacked], strict=True)
    return function.restored([spec.that_may_want_grad(wants_grad).result(array) for spec, array in pairs])


@runs_instead_of(torch_associative_scan, with_original=True)
def _associative_scan(original, combine_fn, xs, dim, reverse=False, combine_mode="pointwise"):
    """Accepts any function, also for ``"pointwise"``, the mode of PyTorch's own kernel for CUDA."""
    mode = "generic" if combine_mode == "pointwise" else combine_mode
    return original(combine_fn, xs, dim, reverse, mode)


@replaces(associative_scan_module, "generic_associative_scan")
def generic_associative_scan(operator: Callable, leaves: Sequence, dim=0, additional_inputs=()):
    call: Any = current()
    lifted = [call.constants.lift(leaf) for leaf in leaves]
    specs = [TensorSpec.of(tensor)._replace(layout=None, strides=None) for tensor in lifted]

    def combine(left, right):
        tensors = [spec.tensor(array) for array, spec in zip([*left, *right], [*specs, *specs], strict=True)]
        results = tree_leaves(operator(*tensors, *additional_inputs))
        return [call.constants.lift(result).to(spec.dtype).read() for result, spec in zip(results, specs, strict=True)]

    arrays = lax.associative_scan(combine, [tensor.read() for tensor in lifted], axis=dim)
    return [spec.result(array) for spec, array in zip(specs, arrays, strict=True)]


@implements_tensors(torch.ops.higher_order.associative_scan)
def associative_scan(combine_fn: Callable, xs: Sequence, additional_inputs=()):
    return generic_associative_scan(combine_fn, xs, 0, additional_inputs)
