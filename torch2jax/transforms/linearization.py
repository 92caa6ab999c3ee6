"""An open JAX linearization: the derivative of everything computed so far, available at any time.

`jax.vjp` linearizes a function from its beginning to its end, and then transposes. PyTorch may ask at any point. So
`Linearization` is that without an end: while its trace is the current one, whatever is computed from a `leaf` leaves
its linear part behind, and `pull_back` transposes as much of that as is asked for.

- An array of a linearization is a `LinearizeTracer`: a primal, computed with the trace below, and a tangent, which is a
  variable of a linear program. The steps of that program are numbered as they are made.
- A step is referred to by the tangents that it computes, and by no list of all steps. So what no tensor leads to is
  freed, with the residuals that it keeps, as in PyTorch. `reach` finds the steps of some arrays from their tangents.
- The way back takes the step with the highest number first, as PyTorch's engine does: the order decides when hooks run.
- Hooks, retained gradients and targets need the complete cotangent of a variable inside of the program, and JAX's
  backward pass returns those of its inputs alone. So it is run from one such variable to the next (`_Transposition`).

Also here: derivatives within `jax.shard_map`, where JAX tracks in types over which axes an array's values differ.

What is the same on all devices of an axis has one cotangent, the same on all of them. What differs has one on each.
Where a value that is the same meets others that differ, JAX sums the cotangents that the devices have for it. A custom
function says itself what is summed, so that types have to be what its backward means: where it sums cotangents over an
axis, each device has its own part of them, and the result counts as one that differs.

In PyTorch each process has derivatives of its own, of what it computes itself. So has each device where code takes them
by `.backward()` and the like: what such a derivative comes by counts as different on all devices, from the leaves on,
and JAX sums nothing. What code reduces is the same on all devices again.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, NamedTuple, Protocol, TypeGuard, cast

import jax
import torch
from jax import lax
from jax.core import Trace, Tracer
from jax.extend import source_info_util
from jax.extend.core import (
    ClosedJaxpr,
    DebugInfo,
    Jaxpr,
    JaxprEqn,
    Primitive,
    TraceTag,
    Var as JaxprVar,
    set_current_trace,
)
from jax.interpreters import ad, partial_eval as pe

from ..internals.jax import (
    DynamicJaxprTrace,
    DynamicJaxprTracer,
    LinearizeTrace,
    LinearizeTracer,
    NullAccum,
    ValAccum,
    VJPNode,
    backward_pass3,
    join_effects,
    varying_axes,
)
from ..runtime.translation import this_call
from ..tensors.tensor import Torchish
from ..tracing.primitives import LevelEnd, stops_levels
from ..tracing.traces import axes_in_types, is_zero, varying

Axes = frozenset[str]


def own_axes(operands: Iterable[Torchish]) -> Axes:
    """The axes over which derivatives differ from device to device, for a result of these tensors.

    There are none where the code itself differentiates none of these.
    """
    call = this_call()
    differentiates = call.tape is not None or any(level.takes_gradients for level in call.transformations)
    if not differentiates or not torch.is_grad_enabled() or all(x.history is None for x in operands):
        return frozenset()
    return axes_in_types()


def matched(cotangent: Any, axes: Axes) -> object:
    """The cotangent of an array whose values differ over some axes."""
    if cotangent is None or not hasattr(cotangent, "dtype") or cotangent.dtype == jax.dtypes.float0:
        return cotangent
    more = tuple(sorted(varying_axes(cotangent) - axes))
    return varying(lax.psum(cotangent, more) if more else cotangent, axes)


def reduced_axes(function: Callable[[], object]) -> Axes:
    """The axes over which a function reduces arrays."""
    return frozenset(_reduced(jax.make_jaxpr(function)().jaxpr))


def _reduced(jaxpr: Any) -> Iterator[str]:
    for step in jaxpr.eqns:
        if step.primitive.name.startswith(("psum", "reduce_scatter", "pmax", "pmin")):
            axes = step.params.get("axes", step.params.get("axis_name"))
            yield from axes if isinstance(axes, tuple) else (axes,)
        for inner in jax.tree.leaves(list(step.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(inner, "eqns"):
                yield from _reduced(inner)


Var = Any
"""A variable of a linear program: one for each array that has a derivative."""


_same_p = Primitive("same")
_same_p.def_abstract_eval(lambda x: x)
ad.deflinear2(_same_p, lambda cotangent, _: [cotangent])


_none_p = Primitive("none")
_none_p.def_abstract_eval(lambda *_, aval: aval)
ad.primitive_transposes[_none_p] = lambda _, *tangents, aval: [None] * len(tangents)


class _StepInputs(list):
    """The inputs of a step with attributes, which JAX's own steps cannot have."""

    number = 0
    """The way back takes the step with the highest first: how many steps were made before."""
    kept: tuple = ()
    """Values that must live as long as the step."""


class LinearStep(Protocol):
    """An equation that a trace has noted, whose inputs and outputs are still linked to others."""

    in_tracers: Any
    outvars: list[Var]
    primitive: Primitive
    params: dict[str, object]
    effects: object
    source_info: object
    ctx: object


def keep_with(tangent: DynamicJaxprTracer, value: object) -> bool:
    """Keeps a value alive as long as the step that computed a tangent; returns False if no step did."""
    step = _step_of(tangent)
    if step is None:
        return False
    step.in_tracers.kept = (*step.in_tracers.kept, value)
    return True


def _step_of(tangent: DynamicJaxprTracer) -> LinearStep | None:
    """The step that computed a tangent, as `_LinearTrace` has recorded it; None for an input."""
    return cast(Any, tangent.parent)


class Subgraph(NamedTuple):
    """The part of the linear program that leads to some arrays: steps, each after those that it needs, and leaves."""

    steps: list
    linear: set[Var]
    """The variables that depend on leaves."""
    leaves: list[Var]
    """In the order in which the way back reaches them."""


class _LinearTrace(DynamicJaxprTrace):
    """Records a linear program."""

    def __init__(self):
        super().__init__(None, auto_dce=True)
        self._numbers = itertools.count()

    def process_primitive(self, primitive: Primitive, tracers: Sequence[Tracer], params: dict[str, object], /):
        """Records a step without a nested call, so that a rule's body is inlined: its own steps say what they keep."""
        return super().process_primitive(
            cast(Any, primitive).prim if isinstance(primitive, VJPNode) else primitive, tracers, params
        )

    def make_eqn(self, *args: object, **kwargs: object):
        step, tracers = super().make_eqn(*args, **kwargs)
        step.in_tracers = _StepInputs(step.in_tracers)
        step.in_tracers.number = next(self._numbers)
        return step, tracers


class Linearization:
    """One linearization of all that is computed while its trace is current.

    Args:
        below: the trace that the values themselves are computed with.
    """

    def __init__(self, below: Trace):
        self.below = below
        tangents: object = _LinearTrace()
        tangents.tag = self.tag = TraceTag()
        self._tangents = tangents
        self.trace = LinearizeTrace(below, tangents, True)
        self.axes = axes_in_types()
        """The axes over which all values with a derivative count as varying: each device has derivatives of its own."""

    def leaf(self, array: jax.Array):
        """An array of the same values, as a leaf: derivatives may be taken with respect to it."""
        if self.axes:
            array = varying(array, self.axes)
        aval = jax.typeof(array).to_tangent_aval()
        return LinearizeTracer(self.trace, array, self._tangents.new_arg(aval, source_info_util.current()))

    def without_derivative(self, array: jax.Array, origins: Iterable):
        """An array of the same values whose derivative is zero, but which a backward pass follows to its origins."""
        tangents = [x.tangent for x in origins if self.has(x)]
        if not tangents:
            return self.leaf(array)
        if self.axes:
            array = varying(array, self.axes)
        aval = jax.typeof(array).to_tangent_aval()
        with set_current_trace(self._tangents):
            tangent = _none_p.bind(*tangents, aval=aval)
        return self.with_tangent(array, tangent)

    def has(self, array: object) -> TypeGuard[LinearizeTracer]:
        return isinstance(array, LinearizeTracer) and array._trace.tag is self.tag

    def gave(self, tangent: DynamicJaxprTracer) -> bool:
        """Returns True if a tangent belongs to this linearization."""
        return tangent._trace is self._tangents

    def values(self, array: jax.Array):
        """The array without its part in this linearization."""
        return array.primal if self.has(array) else array

    def with_values(self, array: jax.Array, values: jax.Array):
        """Other values with the derivatives of `array`."""
        if not self.has(array):
            return values
        if self.axes:
            values = varying(values, varying_axes(array.tangent))
        return LinearizeTracer(self.trace, values, array.tangent)

    def with_tangent(self, values: jax.Array, tangent: DynamicJaxprTracer):
        """Values with the tangent of another array."""
        if self.axes:
            values = varying(values, varying_axes(tangent))
        return LinearizeTracer(self.trace, values, tangent)

    def with_new_variable(self, array: jax.Array, values: jax.Array):
        """As `with_values`, with a new variable."""
        if not self.has(array):
            return values
        with set_current_trace(self._tangents):
            tangent = _same_p.bind(array.tangent)
        return self.with_tangent(values, tangent)

    def variable(self, array: jax.Array) -> Var | None:
        """The variable of an array, None if it has no derivative here."""
        return array.tangent.val if self.has(array) else None

    def reach(self, arrays: Iterable) -> Subgraph:
        """The steps that lead to arrays of this level."""
        steps: list = []
        linear: set[Var] = set()
        leaves: dict[Var, float] = {}  # with the place of the first step that takes them
        seen: set[int] = set()
        pending = [array.tangent for array in arrays if self.has(array)]
        while pending:
            tracer = pending.pop()
            step = tracer.parent
            if step is None:
                if isinstance(tracer.val, JaxprVar) and not self._is_constant(tracer):
                    leaves[tracer.val] = math.inf
            elif id(step) not in seen:
                seen.add(id(step))
                steps.append(step)
                pending.extend(step.in_tracers)
        steps = sorted(steps, key=lambda step: step.in_tracers.number)  # as PyTorch's engine goes back through them
        linear.update(leaves)
        for position, step in enumerate(steps):
            uses = [x.val for x in step.in_tracers if isinstance(x.val, JaxprVar) and x.val in linear]
            if uses:
                linear.update(step.outvars)
            for var in leaves.keys() & uses:
                leaves[var] = min(leaves[var], position)
        return Subgraph(steps, linear, sorted(leaves, key=lambda var: -leaves[var]))

    def _is_constant(self, tracer: DynamicJaxprTracer) -> bool:
        return tracer.val in self._tangents.frame.constvar_to_val

    def pull_back(
        self,
        subgraph: Subgraph,
        cotangents: Mapping[Var, object],
        targets: set[Var],
        visit: Mapping[Var, Callable[[object, bool], tuple[object, object]]],
        constant: Callable[[Any], Any],
        use: Callable[[list], None],
    ) -> dict[Var, Any]:
        """The cotangents of `targets`, computed with the trace that is current.

        Args:
            subgraph: what leads to the outputs.
            cotangents: those of the outputs, by their variables.
            targets: nothing is computed that does not lead to one of these.
            visit: is called with the cotangent of a variable once it is complete (None for zero), and whether the way
                goes on from there, and gives the one that is its own and the one to go on with.
            constant: gives what stands for a value that was computed on the way forward.
            use: is called at first with the steps that need such values.

        Raises:
            LevelEnd: the way leads through a result of `stop_levels`.
        """
        backward = _Transposition(self, subgraph, targets, constant, bool(visit))
        use(backward.steps_with_constants())
        return backward.run(dict(cotangents), visit)

    def constant_of(self, tracer: DynamicJaxprTracer):
        """The value that the linear program keeps at a place."""
        return self._tangents.get_const(tracer)


class _Transposition:
    def __init__(self, level: Linearization, subgraph: Subgraph, targets: set[Var], constant: Callable, visits: bool):
        self._level, self._subgraph, self._targets, self._constant = level, subgraph, targets, constant
        self._leads = set(targets & subgraph.linear)
        for step in subgraph.steps:
            if step.primitive is _none_p and not visits:
                continue
            if any(_variable(x) in self._leads for x in step.in_tracers):
                self._leads.update(step.outvars)

    def steps_with_constants(self) -> list:
        """The steps on the way back that need primal values.

        Raises:
            LevelEnd: one of them is the end of what this level knows.
        """
        steps = [step for step in self._subgraph.steps if self._leads.intersection(step.outvars)]
        if any(stops_levels(step) for step in steps):
            raise LevelEnd
        linear = self._subgraph.linear
        return [s for s in steps if _has_code(s) or any(x not in linear for x in _variables_of(s))]

    def run(self, cotangents: dict[Var, object], visit: Mapping[Var, Callable]) -> dict[Var, Any]:
        found: dict[Var, object] = {}
        steps, linear = self._subgraph.steps, self._subgraph.linear
        origin = {var: i for i, step in enumerate(steps) for var in step.outvars}
        points = [var for var in (*visit, *self._targets) if var in linear]
        stops = sorted({origin[var] for var in points if var in origin}, reverse=True)
        end = len(steps)
        for stop in [*stops, -1]:
            self._run_between(stop + 1, end, cotangents)
            end = stop + 1
            at_stop = steps[stop].outvars if stop >= 0 else [var for var in self._subgraph.leaves if var not in origin]
            for var in at_stop:
                if var not in self._leads:
                    continue
                own = after = cotangents.pop(var, None)
                if is_zero(own):
                    own = after = None
                goes_on = stop >= 0 and any(_variable(x) in self._leads for x in steps[stop].in_tracers)
                if var in visit:
                    own, after = visit[var](own, goes_on)
                if after is not None:
                    cotangents[var] = after
                if var in self._targets and own is not None:
                    found[var] = own
        return found

    def _run_between(self, start: int, end: int, cotangents: dict[Var, Any]) -> None:
        """Moves the cotangents back from behind the steps to before them."""
        linear, leads = self._subgraph.linear, self._leads
        chosen = [step for step in self._subgraph.steps[start:end] if leads.intersection(step.outvars)]
        made = {var for step in chosen for var in step.outvars}
        outputs = [var for var in made if var in cotangents]
        if not outputs:
            return
        constants: dict[Var, object] = {}
        inputs: dict[Var, Any] = {}
        beside: list = []
        for step in chosen:
            for x in step.in_tracers:
                var = _variable(x)
                if var is None or var in made:
                    continue
                if var not in linear:
                    self._find_constant(x, constants, beside)
                elif var not in inputs:
                    inputs[var] = _accumulator(var, cotangents.get(var)) if var in leads else NullAccum(var.aval)
        equations = [_equation(step) for step in (*beside, *chosen)]
        effects = join_effects(*(equation.effects for equation in equations))
        program = Jaxpr(list(constants), list(inputs), outputs, equations, effects, _no_names(inputs, outputs))
        if any(equation.primitive in pe.dce_rules for equation in equations):
            # Of what has programs within, JAX transposes only what cotangents come to.
            program, _ = pe.dce_jaxpr(program, [True] * len(outputs), instantiate=True)
        with source_info_util.reset_name_stack():  # the steps have theirs, from what is around this too
            backward_pass3(
                program,
                True,
                list(constants.values()),
                list(inputs.values()),
                [_popped(cotangents, x) if self._level.axes else cotangents.pop(x) for x in outputs],
            )
        for var, accumulator in inputs.items():
            if isinstance(accumulator, ValAccum) and not is_zero(accumulator.freeze()):
                cotangents[var] = accumulator.freeze()

    def _find_constant(self, tracer: DynamicJaxprTracer, constants: dict, beside: list) -> None:
        """Adds a primal value, or the steps that compute it from others, to the inputs of a program."""
        step = tracer.parent
        if step is None:
            constant = self._constant(self._level.constant_of(tracer))
            constants[tracer.val] = varying(constant, varying_axes(tracer.val)) if self._level.axes else constant
        elif not any(step is other for other in beside):
            for x in step.in_tracers:
                if _variable(x) is not None:
                    self._find_constant(x, constants, beside)
            beside.append(step)


def _variable(tracer: DynamicJaxprTracer) -> Var | None:
    return tracer.val if isinstance(tracer.val, JaxprVar) else None


def _has_code(step: LinearStep) -> bool:
    """Returns True if a step has a jaxpr or a function among its parameters, which may hold values too."""
    return any(isinstance(x, (Jaxpr, ClosedJaxpr)) or callable(x) for x in step.params.values())


def _variables_of(step: LinearStep) -> list[Var]:
    """The variables among the inputs of a step; the others are literals."""
    return [x.val for x in step.in_tracers if isinstance(x.val, JaxprVar)]


def _popped(cotangents: dict[Var, object], var: Var) -> object:
    """The cotangent of a variable, typed as JAX's transposes expect; one from code, such as ones, need not be."""
    cotangent = cotangents.pop(var)
    return cotangent if is_zero(cotangent) else matched(cotangent, varying_axes(var))


def _accumulator(var: Var, cotangent: jax.Array | None):
    return ValAccum(var.aval.to_ct_aval(), cotangent)


def _equation(step: LinearStep):
    inputs = [x.val for x in step.in_tracers]
    return JaxprEqn(inputs, step.outvars, step.primitive, step.params, step.effects, step.source_info, step.ctx)


def _no_names(inputs: Sized, outputs: Sized):
    return DebugInfo("backward", "t2j", ("",) * len(inputs), ("",) * len(outputs))
