"""One run of a side of a condition, or of a loop's body, in a JAX trace of its own: what it leaves, and what it takes.

A side runs once, unless the other one raises: then the code goes on with it, in the trace around. What it has written,
to Python objects and to tensors, is noted where it ends, and undone: the code around it finds all as it was. Then
`lax.cond` runs the two programs, and what is merged is put where it belongs.
"""

import contextlib
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.core import Tracer, eval_jaxpr
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from ..calls.settings import AutocastState
from ..internals.dispatch import DisableTorchDispatch, DisableTorchFunction
from ..internals.jax import varying_axes
from ..runtime.errors import BranchError, TracedValueError
from ..runtime.errors.locations import SourceLine, user_line
from ..runtime.errors.tracebacks import add_note
from ..runtime.translation import Call, this_call
from ..tensors.array_buffer import ArrayBuffer
from ..tensors.history import Source
from ..tensors.journal import Journal, NeedsLeaves, Uncontained
from ..tensors.storage import Storage, lose_traced
from ..tracing.conditions import BranchPolicy
from ..tracing.traces import current_trace, ending_with_errors, is_float, varying
from .collectives import expect_no_collectives
from .ends import Encoder, Leaf, Node, Tree
from .merge import Build, Merge, Pick, Unmergeable, bool_spec
from .programs import sunk
from .purity import watching
from .state import PathOfSource, Refused, current_run, splitting, text_of, within
from .ties import Tie, silently
from .writes import Attribute, JournaledSlot, ObjectJournal, Variable, dict_of, expect_restored, note


class Side:
    """The outcome of one run of some code."""

    def __init__(self):
        self.trees: dict[tuple, tuple[JournaledSlot, Tree]] = {}
        """What each place holds that it has written to."""
        self.outer: set[tuple] = set()
        """The keys of places that are no variables of the function's own."""
        self.storages: dict[int, tuple[Storage, int]] = {}
        """The older storages that it has written to, and the numbers of their arrays."""
        self.given: Any = None
        """The tree of what the code has given."""
        self.raised: BaseException | None = None
        """The exception of the code's own that it has ended with."""
        self.drawn: int = 0
        """How many keys it has taken from the random stream; of a side with loops that draw, `drawn_at` has it."""
        self.drawn_at: int | None = None
        """The number of the array with how many keys it has taken, if data decide that."""
        self.checks: list[int] = []
        """The numbers of the arrays with what is assumed to hold, in a loop's body."""
        self.made: dict[int, object] = {}
        self.program: Any = None

    def arrays(self, *inputs: object) -> list:
        """Its arrays, computed in the current trace."""
        return eval_jaxpr(self.program.jaxpr, self.program.consts, *inputs)


def run_side(
    function: Callable[[], object],
    variables: Sequence[Variable],
    inputs: Sequence = (),
    enter: Callable[[Sequence], None] | None = None,
    slots: Iterable[JournaledSlot] = (),
    counts: bool = False,
) -> Side:
    """Runs code once, notes what it leaves, and undoes that.

    Args:
        variables: those of the function that it may set.
        inputs, enter: arrays, and what takes them in before the code begins: of a loop's body.
        slots: what is noted though it may not have changed.
        counts: whether the last of the inputs counts the keys that were drawn before.
    """
    run, tape = current_run(), this_call().tape
    is_within = run.journal is not None
    while True:
        leaves = 0 if tape is None else tape.leaves()
        try:
            return _run_side(function, variables, inputs, enter, slots, counts)
        except NeedsLeaves as error:  # with them, all that is on this side is on the way back
            if is_within:
                raise
            if tape is None or (run.takes_leaves and leaves == tape.leaves()):
                raise _uncontained(error) from error
            run.takes_leaves = True


def _uncontained(error: Uncontained) -> Refused:
    return Refused(f"{error}, on one side of a condition or in a loop", other_paths=True)


def _run_side(
    function: Callable[[], object],
    variables: Sequence[Variable],
    inputs: Sequence,
    enter: Callable[[Sequence], None] | None,
    slots: Iterable[JournaledSlot],
    counts: bool,
) -> Side:
    run, around, side = current_run(), current_trace(), Side()
    code = _SideCode(function, variables, enter, slots, counts, side)

    def traced(arrays: Sequence) -> list:
        with ending_with_errors(around):
            return code.run(arrays)

    with watching():
        side.program = sunk(jax.make_jaxpr(traced)(list(inputs)))
    if run.journal is not None and side.raised is None:
        run.journal.made.update(side.made)
    return side


class _SideCode:
    """The code of one side, to be run once. What it leaves is given to `side`."""

    def __init__(
        self,
        function: Callable[[], object],
        variables: Sequence[Variable],
        enter: Callable[[Sequence], None] | None,
        slots: Iterable[JournaledSlot],
        counts: bool,
        side: Side,
    ):
        self._function, self._variables, self._slots = function, variables, slots
        self._enter, self._counts, self._side = enter, counts, side
        self._before = {x.key: x.read() for x in variables}

    def run(self, arrays: Sequence) -> list:
        """Runs the code in the current trace; gives the arrays of what it leaves. All else is as it was before."""
        call, run = this_call(), current_run()
        tensors = Journal(repeats=self._enter is not None)
        objects = ObjectJournal(tensors)
        path, stream = PathOfSource(call.execution.path.policy, current_trace()), call.stream.state
        checks = run.checks
        run.checks = None if self._enter is None else []
        call.paths.append(path)
        run.started.append(self._before)
        try:
            with tensors, call.nested(), objects:
                try:
                    return self._followed(arrays, tensors, objects, is_tried=run.trying > 0)
                except BaseException as error:
                    tensors.cancel()
                    if isinstance(error, Uncontained) and not isinstance(error, NeedsLeaves):
                        raise _uncontained(error) from error
                    raise
                finally:
                    with silently():
                        objects.undo()
                    for x in self._variables:
                        x.write(self._before[x.key])
        finally:
            call.paths.pop()
            path.end()
            call.stream.state = stream
            run.started.pop()
            run.checks = checks
            lose_traced(tensors.survivors(), is_undone=True)

    def _followed(self, arrays: Sequence, tensors: Journal, objects: ObjectJournal, is_tried: bool) -> list:
        call, run = this_call(), current_run()
        settings, generators = _settings(), _states(call)
        if self._counts:
            call.stream.state = call.stream.state._replace(taken=0, before=arrays[-1])
        start = call.stream.state
        if self._enter is not None:
            self._enter(arrays)
        if run.takes_leaves and call.tape is not None:
            call.tape.adopt()
        try:
            given = self._function()
        except Exception as error:
            if not is_tried and (self._enter is not None or error is not run.raised):
                raise  # it is none of the code's own
            if is_tried or _ends_iteration(error):
                raise Refused(
                    f"{text_of(error)} is raised on one side of a condition, and caught outside of it. "
                    "Decide by `if` what the handler does, in place of `try`",
                    other_paths=True,
                ) from error
            self._side.raised = error
            tensors.cancel()
            return []
        if tensors.changes_older:
            raise Refused("a tensor from outside is changed itself (by .data or detach_) on one side")
        if _settings() != settings or _states(call) != generators:
            raise Refused("a setting or a generator of PyTorch's is changed on one side of a condition")
        return self._left(given, start, tensors, objects)

    def _left(self, given: Any, start: Any, tensors: Journal, objects: ObjectJournal) -> list:
        """Notes what the code has left: keys that it has drawn, places, tensors, and what a loop assumes."""
        call, run, side = this_call(), current_run(), self._side
        outs: list = []
        end = call.stream.state
        if end.seed != start.seed or end.key is not start.key:
            raise Refused("the random stream is seeded on one side of a condition")
        side.drawn = end.taken - start.taken + (end.before is not start.before)
        if self._counts:
            outs.append(_count_of(end))
        elif end.before is not start.before:
            side.drawn_at = len(outs)
            outs.append(lax.sub(_count_of(end), _count_of(start)))
        noted = {p.key: p for p in self._slots}
        noted.update((x.key, x) for x in self._variables if x.read() is not self._before[x.key])
        noted.update(objects.slots)
        side.outer.update(objects.slots)
        encode = Encoder(outs)
        for key, slot in noted.items():
            side.trees[key] = slot, encode(slot.read())
        side.given = encode(given)
        for storage in tensors.written.values():
            if not storage.is_older:
                raise Refused("a detached tensor from outside is written to on one side", other_paths=True)
            side.storages[id(storage)] = storage, len(outs)
            outs.append(call.leaving(storage.buffer.arranged(None)))
        side.checks = [len(outs) + i for i in range(len(run.checks or ()))]
        outs.extend(run.checks or ())
        side.made = objects.made
        return outs


def _ends_iteration(error: Exception) -> bool:
    """True if C, which may have called the code, ends an iteration at an error."""
    names = (frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__))
    return isinstance(error, (StopIteration, StopAsyncIteration)) or (
        isinstance(error, IndexError) and "__getitem__" in names
    )


def _count_of(state: Any) -> jax.Array:
    """The number of keys that have been drawn, as an array."""
    return lax.add(jnp.asarray(state.before, jnp.uint32), jnp.uint32(state.taken))


def _settings() -> tuple:
    """PyTorch's settings that code can change, which belong to no object."""
    return (
        *(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()),
        *(torch.get_default_device(), torch.are_deterministic_algorithms_enabled(), AutocastState.current()),
    )


def _states(call: "Call") -> list[bytes]:
    """The states of the generators that code has drawn from."""
    with DisableTorchFunction(), DisableTorchDispatch():
        return [x.get_state().numpy().tobytes() for x in call.stream.generators]


# Conditions.


def condition(
    flag: jax.Array, then: Callable[[], object], orelse: Callable[[], object], variables: Sequence[Variable]
) -> Any:
    """Runs both sides, and leaves what either of them has left; where one raises, what the other does.

    Returns:
        What the functions give, chosen.
    """
    expect_restored()
    location = user_line()
    way = splitting(location)
    if way is not None:
        return then() if way.ask(flag, location) else orelse()
    with within(location):
        with explaining(location, True):
            one = run_side(then, variables)
        two = one
        if one.raised is None:
            with explaining(location, False):
                two = run_side(orelse, variables)
        if two.raised is None:
            return joined(flag, one, two, location)
    if one.raised is not None:
        _check(lax.bitwise_not(flag), one.raised, location)
        return orelse()
    _check(flag, two.raised, location)
    return then()


@contextlib.contextmanager
def explaining(location: SourceLine, side: bool) -> Iterator[None]:
    """A context of one side. An exception that it ends with, which is no check of the code's own, tells of the side."""
    try:
        yield
    except (BranchError, TracedValueError):
        raise
    except Exception as error:
        if not any(note.startswith(_BOTH) for note in getattr(error, "__notes__", ())):
            add_note(
                error,
                f"{_BOTH}: it was raised where the condition at {location} is {side}. If that is never so, say so: "
                f"{location.always(not side)}",
            )
        raise


_BOTH = "Data decide a condition, so that both of its sides are traced"


def short_circuit(
    flag: jax.Array,
    rest: Callable[[], object],
    own: Callable[[], object],
    is_and: bool,
    is_tensor: bool,
    is_pure: bool = False,
) -> object:
    """The result of ``flag and rest()``, or ``flag or rest()``.

    Args:
        is_tensor: whether `own`, which gives what the flag is of, gives a tensor.
        is_pure: whether the rest must not write to anything.
    """
    expect_restored()
    location = user_line()
    way = splitting(location)
    if way is not None:
        return rest() if way.ask(flag, location) == is_and else own()
    with within(location):
        return _short_circuit(flag, rest, own, is_and, is_tensor, is_pure, location)


def _short_circuit(
    flag: jax.Array,
    rest: Callable[[], object],
    own: Callable[[], object],
    is_and: bool,
    is_tensor: bool,
    is_pure: bool,
    location: SourceLine,
) -> object:
    other = run_side(rest, [])
    if other.raised is not None:
        _check(lax.bitwise_not(flag) if is_and else flag, other.raised, location)
        return own()
    if is_pure and (other.trees or other.storages or other.drawn):
        raise Refused("any() or all() asks data whether to go on, and what follows writes", other_paths=True)
    if _is_plain_bool(other):
        if other.given.kind == "number" and other.given.value is not is_and and not is_tensor:
            return not is_and
        (array,) = (np.asarray(other.given.value),) if other.given.kind == "number" else other.arrays()
        array = lax.bitwise_and(flag, array) if is_and else lax.bitwise_or(flag, array)
        kind = "tensor" if is_tensor and other.given.kind == "tensor" else "item"
        return Pick(other.given, other.given, kind, bool_spec(), ()).value(array, False)
    sides = (other, run_side(own, [])) if is_and else (run_side(own, []), other)
    return joined(flag, *sides, location)


def _is_plain_bool(side: Side) -> bool:
    """Whether all that a side does is to compute a bool, and so little that it may as well be computed always."""
    given, steps = side.given, side.program.jaxpr.eqns
    is_bool = (given.kind in ("tensor", "item") and given.spec.dtype == torch.bool and given.shape == ()) or (
        given.kind == "number" and type(given.value) is bool
    )
    does_more = side.trees or side.storages or side.drawn or side.program.jaxpr.effects
    are_cheap = len(steps) <= _CHEAP and not any(_is_costly(x) for x in steps)
    return is_bool and not does_more and are_cheap and len(side.program.jaxpr.outvars) <= 1


_CHEAP = 32  # equations
_COSTLY = frozenset(("dot_general", "conv_general_dilated", "while", "scan", "cond", "sort", "fft", "pure_callback"))


def _is_costly(step: JaxprEqn) -> bool:
    inner = jax.tree.leaves(list(step.params.values()), is_leaf=lambda x: hasattr(x, "eqns"))
    return step.primitive.name in _COSTLY or any(_is_costly(y) for x in inner for y in getattr(x, "eqns", ()))


def joined(flag: jax.Array, one: Side, two: Side, location: SourceLine) -> Any:
    """Leaves what two sides have left, chosen."""
    run, call = current_run(), this_call()
    merge = Merge(f"where line {location.line} is true", "where it is false")
    encode = {id(side): Encoder(None, side.trees) for side in (one, two)}
    slots = {key: p for side in (one, two) for key, (p, _) in side.trees.items()}

    def tree(side: Side, key: tuple) -> Tree:
        return side.trees[key][1] if key in side.trees else encode[id(side)](slots[key].read())

    merged = {
        key: merge(
            tree(one, key), tree(two, key), p.name, must_be_on_both_sides=not p.is_variable, is_contents=p.is_contents
        )
        for key, p in slots.items()
    }
    for key, p in slots.items():
        if p.is_contents:
            _expect_mergeable(tree(one, key), tree(two, key), p, location)
    given = merge(one.given, two.given, "what is chosen")
    storages = {**one.storages, **two.storages}
    expect_one_of_each(storages.values())
    outside = {key: storage.buffer.arranged(None) for key, (storage, _) in storages.items()}
    found = _links(merge.picks)
    numbered = [link for link in found if link.number is not None]
    computed = [x for x in merge.picks if not x.is_of_numbers]
    counts = one.drawn_at is not None or two.drawn_at is not None or one.drawn != two.drawn

    def branch(side: Side, is_one: bool) -> Callable[[], list]:
        def arrays() -> list:
            outs = side.arrays()
            results = []
            for pick in computed:
                leaf = pick.one if is_one else pick.other
                results.append(pick.array(leaf, _array_of(leaf, side, outs)))
            results += [outs[x.number or 0] if x.is_one == is_one else jnp.zeros((), bool) for x in numbered]
            results += [outs[side.storages[key][1]] if key in side.storages else outside[key] for key in storages]
            if counts:
                results.append(jnp.uint32(side.drawn) if side.drawn_at is None else outs[side.drawn_at])
            return results

        return arrays

    values: list = []
    if merge.picks or storages or counts or _has_effects(one) or _has_effects(two):
        arrays = iter(_chosen(flag, branch(one, True), branch(two, False), one, two))
        run.conditions += 1
        for x in merge.picks:
            is_plain = x.is_of_numbers
            array = _select(flag, x.array(x.one, None), x.array(x.other, None)) if is_plain else next(arrays)
            values.append(x.value(array, True))
        flags = {id(x): next(arrays) for x in numbered}
        with silently():
            for storage, _ in storages.values():
                leave_storage(storage, next(arrays))
        if counts:  # the keys that follow are those that eager code has
            state = call.stream.state
            before = lax.add(jnp.asarray(state.before, jnp.uint32), next(arrays))
            call.stream.state = state._replace(before=before)
        for x in found:
            x.tie(values, flags.get(id(x), flag if x.is_one else lax.bitwise_not(flag)))
    if not counts and one.drawn:
        state = call.stream.state
        call.stream.state = state._replace(taken=state.taken + one.drawn)
    put(slots, merged, values, one.outer | two.outer)
    for p in slots.values():  # attributes that are there on one side only
        if isinstance(p, Attribute) and type(p.read()) is Unmergeable and (_is_empty(one, p) or _is_empty(two, p)):
            run.partial[id(dict_of(p.owner))] = dict_of(p.owner)
    result = given(values)
    merge.note_pairs()
    return result


def _is_empty(side: Side, slot: JournaledSlot) -> bool:
    """True if a side leaves nothing in a slot."""
    tree = side.trees.get(slot.key)
    return slot.key not in side.outer if tree is None else tree[1].kind == "undefined"


def expect_one_of_each(storages: Iterable[tuple[Storage, int]]) -> None:
    """Refuses writes to a memory and, elsewhere, to the same memory detached: which is the last depends on data."""
    memories = [id(storage.memory) for storage, _ in storages]
    if len(set(memories)) < len(memories):
        raise Refused("a tensor and a detached one of the same memory are both written to", other_paths=True)


def _expect_mergeable(a: Tree, b: Tree, slot: JournaledSlot, line: Any) -> None:
    """Refuses at once containers that cannot hold what both sides have left: the object is what both have."""
    if a.kind == b.kind and isinstance(a, Node) and isinstance(b, Node) and len(a.children) == len(b.children):
        if a.names == b.names:
            return
    elif a.kind == b.kind == "object" and type(a.value) is type(b.value):
        is_same = a.value == b.value
        if is_same.all() if hasattr(is_same, "all") else is_same:
            return
    raise Refused(
        f"{slot.name} holds something else on each side of the condition at line {line.line}", other_paths=True
    )


def _has_effects(side: Side) -> bool:
    return bool(side.program.jaxpr.effects)


def _are_one(one: ClosedJaxpr, two: ClosedJaxpr) -> bool:
    """True if two programs compute the same."""
    names = [dict(zip(x.jaxpr.constvars, x.consts, strict=True)) for x in (one, two)]
    same: dict[object, object] = {}

    def are_same(x: Any, y: Any) -> bool:
        if isinstance(x, Literal) or isinstance(y, Literal):
            return type(x) is type(y) and x.aval == y.aval and bool(np.all(x.val == y.val))
        if x in names[0] or y in names[1]:
            return names[0].get(x) is names[1].get(y, x)
        return same.get(x) is y

    if len(one.jaxpr.eqns) != len(two.jaxpr.eqns):
        return False
    for x, y in zip(one.jaxpr.eqns, two.jaxpr.eqns, strict=True):
        if x.primitive is not y.primitive or x.effects or not all(map(are_same, x.invars, y.invars)):
            return False
        if any(hasattr(z, "eqns") or hasattr(z, "jaxpr") or callable(z) for z in x.params.values()):
            return False
        if x.params != y.params:
            return False
        same.update(zip(x.outvars, y.outvars, strict=True))
    return all(map(are_same, one.jaxpr.outvars, two.jaxpr.outvars))


def _chosen(flag: jax.Array, one: Callable[[], list], two: Callable[[], list], first: Side, second: Side) -> list:
    if not first.program.jaxpr.eqns and not second.program.jaxpr.eqns:
        pairs = [*zip(one(), two(), strict=True)]
        if not any(is_float(x) for x, _ in pairs):  # else what one of them is computed of may sink into its side
            return [_select(flag, x, y) for x, y in pairs]
    may_be_one = not first.program.effects and len(first.program.eqns) == len(second.program.eqns) <= _CHEAP
    if may_be_one and _are_one(jax.make_jaxpr(one)(), jax.make_jaxpr(two)()):
        return one()
    if jax.sharding.get_abstract_mesh().manual_axes:
        expect_no_collectives(flag, [*first.program.jaxpr.eqns, *second.program.jaxpr.eqns])
        shapes = [jax.make_jaxpr(x)().jaxpr.outvars for x in (one, two)]
        axes = [varying_axes(x) | varying_axes(y) for x, y in zip(*shapes, strict=True)]
        one, two = (lambda f=f: [varying(x, each) for x, each in zip(f(), axes, strict=True)] for f in (one, two))
    return lax.cond(flag, one, two)


def _select(flag: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    if x is y:
        return x
    if x.dtype == bool and x.shape == ():
        if y is flag or _is_constant(y, False):
            return flag if _is_constant(x, True) else lax.bitwise_and(flag, x)
        if x is flag or _is_constant(x, True):
            return lax.bitwise_or(flag, y)
        if _is_constant(x, False) and _is_constant(y, True):
            return lax.bitwise_not(flag)
    return lax.select(lax.broadcast_in_dim(flag, x.shape, ()), x, y)


def _is_constant(x: jax.Array, value: bool) -> bool:
    return not isinstance(x, Tracer) and bool(x) is value


def _check(is_right: jax.Array, error: BaseException, location: SourceLine) -> None:
    """Checks that the side is not taken which raises an exception of the code's own."""
    policy: BranchPolicy = this_call().execution.path.policy
    run = current_run()
    run.assumed += 1
    if run.checks is not None:
        run.checks.append(is_right)
    if policy.checking is not None:
        policy.check(is_right, f"{text_of(error)} (at {location})")


def _array_of(leaf: Leaf, side: Side, outs: list) -> object:
    """The array of a tensor that a side leaves; one of outside may be in its place, and have been written to."""
    if isinstance(leaf.at, int):
        return outs[leaf.at]
    if leaf.relations:
        ((_, relation),) = leaf.relations
        storage = relation.base
        if id(storage) in side.storages:
            array = outs[side.storages[id(storage)][1]]
            for kind in relation.steps:
                array = kind.read(array)
            return array
        if any(other.memory is storage.memory for other, _ in side.storages.values()):
            raise Refused("a tensor is written to on one side of a condition, and is read detached", other_paths=True)
    return leaf.at


def put(slots: dict, merged: dict[tuple, Build], values: list, outer: set[tuple]) -> None:
    for key, slot in slots.items():
        if key in outer:
            note(slot)
        value = merged[key](values)
        if isinstance(slot, Attribute) and slot.is_of_c and isinstance(value, (Unmergeable, torch.Tensor)):
            raise Refused(f"{slot.name} is C's, which keeps no value that depends on data")
        slot.write(value)


def leave_storage(storage: Storage, array: object) -> None:
    """Leaves values in a storage that sides have written to."""
    history, tape = storage.history, this_call().tape
    if tape is not None and isinstance(history, Source):  # what is written there has no gradient
        array = tape.with_values(storage.buffer.arranged(None), tape.primal(array))
    storage.write(ArrayBuffer(array, None), None)
    storage.mark_synced()
    storage.history = storage.history or history


class _Link:
    """That a chosen tensor is another one on one side, or may be."""

    def __init__(self, target: int, is_one: bool, number: int | None, base: Any, steps: list, is_known: bool):
        self.target, self.is_one, self.number, self.base, self.steps = target, is_one, number, base, steps
        self.is_known = is_known

    def tie(self, values: list, flag: Any) -> None:
        node = values[self.target]._node
        base = values[self.base]._node.storage if isinstance(self.base, int) else self.base
        if base.memory is not node.storage.memory:
            is_full = isinstance(node, Storage)
            Tie(flag if self.is_known and is_full else None, node.storage, base, self.steps)


def _links(picks: list[Pick]) -> list[_Link]:
    found = []
    for is_one in (True, False):
        fresh: dict[int, int] = {}
        for n, pick in enumerate(picks):
            if pick.kind not in ("tensor", "unsure", "rows"):
                continue
            for number, relation in (pick.one if is_one else pick.other).relations:
                if relation.is_older:
                    is_known = relation.is_known and pick.kind != "rows"
                    found.append(_Link(n, is_one, number, relation.base, relation.steps, is_known))
                    continue
                memory = id(relation.base.memory)
                if memory in fresh and fresh[memory] != n:
                    found.append(_Link(n, is_one, None, fresh[memory], [], False))
                fresh.setdefault(memory, n)
    return found
