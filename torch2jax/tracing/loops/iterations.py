"""The iterations of a loop, operand by operand: where each operand comes from.

One operand of all iterations is one of four things; anything else is a `Misfit`, which tells where to split:

- a value of the same iteration: the body has it;
- the same value from outside in each iteration: the body closes over it;
- another value from outside in each: it is scanned, as windows of one array or, where values are small, as a stack of
  them. Large arrays are not copied into a stack, and so are no loop;
- the value of one equation some iterations before: it is carried, through one carry for each of these iterations. They
  begin with the values from outside that the first iterations have there.

Numbers inside rematerialized iterations become operands first, because they may differ, as random keys do.

Also here: the search for the iteration before the first, which may lie among other equations, or begin otherwise.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import DebugInfo, JaxprEqn, Literal, Var, unmapped_aval

from ...internals.jax import remat_p
from .likeness import Atom, Likeness, is_same, key_of, without_starts
from .program import Carry, Loop, Program, Scanned, new_step
from .windows import Part, Table, Windows, row_of_windows, shape_of, windows

_OperandPosition = tuple[int, int]
"""An equation within, and an operand of it."""
_DEBUG_INFO = DebugInfo("loops", "torch2jax", None, None)


def with_numbers_lifted(iterations: Sequence[Sequence[JaxprEqn]]) -> list[list[JaxprEqn]]:
    """The iterations, whose equations that rematerialize take as operands the numbers which differ within them."""
    rows = [_lifted(row) if row[0].primitive is remat_p else row for row in zip(*iterations, strict=True)]
    return [list(iteration) for iteration in zip(*rows, strict=True)]


def _lifted(row: Sequence[JaxprEqn]) -> Sequence[JaxprEqn]:
    """The equations of one place in all iterations, changed so that they differ in operands alone."""
    first = row[0].params["jaxpr"]
    positions: dict[_OperandPosition, None] = {}
    for step in row[1:]:
        jaxpr = step.params["jaxpr"]
        if len(jaxpr.eqns) != len(first.eqns):
            return row
        for at, (ours, others) in enumerate(zip(first.eqns, jaxpr.eqns, strict=True)):
            if ours is not others:
                operands = enumerate(zip(ours.invars, others.invars, strict=False))
                positions.update(((at, operand), None) for operand, (x, y) in operands if _are_other_numbers(x, y))
    return [_with_operands(step, positions) for step in row] if positions else row


def _are_other_numbers(one: Any, other: Any) -> bool:
    are_numbers = isinstance(one, Literal) and isinstance(other, Literal)
    return are_numbers and one.aval == other.aval and key_of(one) != key_of(other)


def _with_operands(step: JaxprEqn, positions: Mapping[_OperandPosition, None]) -> JaxprEqn:
    jaxpr = step.params["jaxpr"]
    steps, invars, numbers = list(jaxpr.eqns), [], []
    for at, operand in positions:
        number = steps[at].invars[operand]
        if not isinstance(number, Literal):
            return step
        var, taken = Var(number.aval.strip_weak_type()), list(steps[at].invars)
        taken[operand] = var
        steps[at] = steps[at].replace(invars=taken)
        invars.append(var)
        numbers.append(number)
    lifted = jaxpr.replace(invars=[*jaxpr.invars, *invars], eqns=steps, debug_info=_DEBUG_INFO)
    return step.replace(invars=[*step.invars, *numbers], params={**step.params, "jaxpr": lifted})


_FEW_BYTES = 2**14  # of values that are stacked for an iteration: what a copy of them costs is nothing to speak of
_FEW_CONSTANT_BYTES = 2**16  # of constants: a loop that takes its weights from a table reads and writes them once more


class Misfit(Exception):
    """Raised if the iterations are no loop.

    Args:
        iteration: the one that is unlike those before it.
        reason: in words.
    """

    def __init__(self, iteration: int, reason: str):
        super().__init__(reason)
        self.iteration, self.reason = iteration, reason


class Surroundings(NamedTuple):
    """The facts about a program around its loop."""

    parts: Mapping[Var, Part]
    """The values that are parts of an array."""
    used: set[Var]
    """The values that statements outside of the iterations use."""
    constants: Mapping[Var, Any]
    """Values that are known."""


class _From(NamedTuple):
    """The position in the iterations where a value is computed."""

    iteration: int
    position: int
    output: int


class _Fitting:
    """One attempt to make a loop of iterations."""

    def __init__(self, iterations: Sequence[Sequence[JaxprEqn]], around: Surroundings):
        iterations = with_numbers_lifted(iterations)
        self._iterations, self._around = iterations, around
        self._count = len(iterations)
        self._made: dict[Var, _From] = {
            var: _From(iteration, position, output)
            for iteration, steps in enumerate(iterations)
            for position, step in enumerate(steps)
            for output, var in enumerate(step.outvars)
        }
        self._carries: dict[object, Carry] = {}
        self._next: list[Atom] = []
        self._scanned: dict[object, Scanned] = {}
        self._of_blocks: dict[object, Var] = {}
        self._ahead: list[JaxprEqn] = []
        """The equations that take blocks apart."""

    def loop(self) -> tuple[Loop, list[JaxprEqn]]:
        """The loop, and the equations that take its results apart."""
        self._expect_same_steps()
        statements: list = []
        for position in range(len(self._iterations[0])):
            statements.extend(self._statements(position))
        results, outvars, behind = self._outcome()
        carries, scanned = [*self._carries.values()], [*self._scanned.values()]
        body = Program([*self._ahead, *statements], results)
        return Loop(self._count, carries, scanned, body, outvars), behind

    def _expect_same_steps(self) -> None:
        for position, first in enumerate(self._iterations[0]):
            for iteration in range(1, self._count):
                step = self._iterations[iteration][position]
                if step.params is not first.params and not is_same(without_starts(step), without_starts(first)):
                    raise Misfit(iteration, f"{first.primitive.name} has different parameters")

    def _statements(self, position: int) -> list:
        steps = [iteration[position] for iteration in self._iterations]
        first = steps[0]
        rows = zip(*(step.invars for step in steps), strict=True)
        invars = [self._operand(atoms, first.primitive.name) for atoms in rows]
        if first.primitive is lax.slice_p and any(x.params != first.params for x in steps):
            return [self._window(steps, invars[0])]
        return [first.replace(invars=invars)]

    def _window(self, steps: Sequence[JaxprEqn], operand: Atom) -> JaxprEqn:
        """A slice of a computed value, with a different start in each iteration."""
        first = steps[0]
        if first.params["strides"] is not None and any(x != 1 for x in first.params["strides"]):
            raise Misfit(1, "a slice with strides starts at a different place in each iteration")
        starts = [self._number(row) for row in zip(*(step.params["start_indices"] for step in steps), strict=True)]
        sizes = {"slice_sizes": shape_of(first.outvars[0])}
        return new_step([operand, *starts], first.outvars[0], lax.dynamic_slice_p, sizes)

    def _number(self, row: Sequence[int]) -> Atom:
        """A number that may differ between iterations."""
        aval: object = jax.core.ShapedArray((), np.int32)
        numbers = tuple(Literal(np.int32(x), aval) for x in row)
        if len(set(row)) == 1:
            return numbers[0]
        return self._scanned_as(tuple(row), lambda: Table(numbers, {}), aval)

    # Operands.

    def _operand(self, atoms: Sequence[Atom], what: str) -> Atom:
        """The operand in the loop body, for operands that differ between iterations."""
        last = self._position_of(atoms[-1])
        if atoms[-1] is not atoms[-2] and self._origin(atoms, self._count - 1) != self._origin(atoms, self._count - 2):
            raise Misfit(self._count - 1, f"{what} takes a different operand in the last iteration")
        if last is None:
            return self._outer(atoms, what)
        distance = self._count - 1 - last.iteration
        if distance > self._count // 2:  # one iteration has made it for all that come
            raise Misfit(
                min(last.iteration + 1, self._count - 1), f"{what} takes the value of one iteration in several others"
            )
        for iteration in range(distance, self._count):
            if self._position_of(atoms[iteration]) != (iteration - distance, last.position, last.output):
                raise Misfit(max(iteration, 1), f"{what} takes a different operand in some iterations")
        for iteration in range(distance):
            if self._position_of(atoms[iteration]) is not None:
                raise Misfit(iteration + 1, f"{what} takes a different operand in the first iterations")
        made = self._iterations[0][last.position].outvars[last.output]
        for age in range(1, distance + 1):
            made = self._carried(made, atoms[distance - age], (last[1:], age, *map(_key, atoms[:distance])))
        return made

    def _origin(self, atoms: Sequence[Atom], iteration: int) -> _From | None:
        """The place in the iterations where an operand is made; its iteration is counted back from the one that uses
        it.
        """
        position = self._position_of(atoms[iteration])
        return position and position._replace(iteration=iteration - position.iteration)

    def _position_of(self, atom: Atom) -> _From | None:
        return self._made.get(atom) if isinstance(atom, Var) else None

    def _carried(self, made: Var, first: Atom | None, key: tuple[object, ...]) -> Var:
        """The variable in an iteration for the value that the previous iteration computes as `made`."""
        carry = self._carries.get(key)
        if carry is None:
            if first is not None and first.aval.strip_weak_type() != made.aval.strip_weak_type():
                raise Misfit(1, f"the first iteration starts with {first.aval}, the others with {made.aval}")
            carry = self._carries[key] = Carry(Var(made.aval), first)
            self._next.append(made)
        return carry.var

    def _outer(self, atoms: Sequence[Atom], what: str) -> Atom:
        """As `_operand`, for values computed outside of the iterations."""
        inside = next((iteration for iteration, atom in enumerate(atoms) if self._position_of(atom) is not None), None)
        if inside is not None:
            raise Misfit(max(inside, 1), f"{what} takes a different operand in some iterations")
        first = atoms[0]
        changed = [
            iteration for iteration in range(1, self._count) if _key(atoms[iteration]) != _key(atoms[iteration - 1])
        ]
        if not changed:
            return first
        if len({x.aval.strip_weak_type() for x in atoms}) > 1:
            raise Misfit(changed[0], f"{what} takes operands of different types")
        aval, key = first.aval.strip_weak_type(), tuple(map(_key, atoms))
        parts = [self._around.parts.get(x) if isinstance(x, Var) else None for x in atoms]
        if all(part is not None for part in parts):
            found = windows(parts)  # pyright: ignore[reportArgumentType]
            if found is not None:
                blocks = found.blocks if found.step > 1 else None
                return self._scanned_as(key, lambda: found, aval) if blocks is None else self._in_block(found, blocks)
        if is_small(aval, is_constant=self._are_constant(atoms)):
            return self._scanned_as(key, lambda: Table(tuple(atoms), self._around.constants), aval)
        row = row_of_windows(parts, 0) or row_of_windows(parts, 1)
        if row is not None and row.length > 2:
            raise Misfit(
                row.length if row.first is parts[0] else 1, f"{what} takes a different array in each iteration"
            )
        if len(changed) == 1:
            raise Misfit(changed[0], f"{what} takes a different array in each iteration")
        raise Misfit(0, own(what, aval))

    def _in_block(self, parts: Windows, blocks: Windows) -> Var:
        """The slice that an iteration takes from its block."""
        position, (base, _, size, _) = parts.first.starts[0], blocks.first
        known = self._of_blocks.get((base, position, parts.first.shape))
        if known is None:
            aval = base.aval.update(shape=size).strip_weak_type()
            block = self._scanned_as((base, size), lambda: blocks, aval)
            row, known = Var(aval.update(shape=(1, *size[1:]))), Var(aval.update(shape=parts.first.shape))
            limits = {"start_indices": (position, *[0] * (len(size) - 1)), "limit_indices": (position + 1, *size[1:])}
            self._ahead.append(new_step([block], row, lax.slice_p, {**limits, "strides": None}))
            shape = {"new_sizes": parts.first.shape, "dimensions": None, "sharding": None}
            self._ahead.append(new_step([row], known, lax.reshape_p, shape))
            self._of_blocks[base, position, parts.first.shape] = known
        return known

    def _are_constant(self, atoms: Sequence[Atom]) -> bool:
        return all(isinstance(x, Literal) or x in self._around.constants for x in atoms)

    def _scanned_as(
        self, key: tuple[object, ...], make: Callable[[], Windows | Table], aval: jax.core.ShapedArray
    ) -> Var:
        if key not in self._scanned:
            self._scanned[key] = Scanned(Var(aval), make())
        return self._scanned[key].var

    # What comes out.

    def _outcome(self) -> tuple[list[Atom], list[Var], list[JaxprEqn]]:
        """The results of the body and of the loop, and the equations that split the latter into the former values."""
        behind: list[JaxprEqn] = []
        finals: dict[Var, Var] = {}
        stacked: list[tuple[Var, Var]] = []
        last = self._count - 1
        for position, step in enumerate(self._iterations[0]):
            for output, made in enumerate(step.outvars):
                of_iterations = [iteration[position].outvars[output] for iteration in self._iterations]
                used = [iteration for iteration, var in enumerate(of_iterations) if var in self._around.used]
                if not used:
                    continue
                aval: Any = made.aval
                if aval.weak_type:
                    raise Misfit(0, f"{step.primitive.name} returns a Python number without a dtype of its own")
                if used == [last] and (made in self._next or _has_zeros(aval)):
                    if made not in self._next:
                        self._carried(made, None, ("last", position, output))
                    finals[made] = of_iterations[last]
                    continue
                stacked_var = Var(unmapped_aval(self._count, 0, aval))
                stacked.append((made, stacked_var))
                for iteration in used:
                    behind.extend(_element(stacked_var, iteration, of_iterations[iteration]))
        outvars = [Var(made.aval) for made in self._next]
        for made, var in finals.items():
            outvars[self._next.index(made)] = var
        results = [*self._next, *(made for made, _ in stacked)]
        return results, [*outvars, *(stacked_var for _, stacked_var in stacked)], behind


def _has_zeros(aval: Any) -> bool:
    """Returns True if a type has ordinary zeros."""
    is_number = not jnp.issubdtype(aval.dtype, jax.dtypes.extended)
    return is_number and aval == jax.core.ShapedArray(aval.shape, aval.dtype)


def _element(stacked: Var, index: int, element: Var) -> list[JaxprEqn]:
    """The equations that take one element from the first dimension."""
    aval: Any = stacked.aval
    part = Var(unmapped_aval(1, 0, element.aval))
    params = {
        "start_indices": (index, *[0] * (aval.ndim - 1)),
        "limit_indices": (index + 1, *aval.shape[1:]),
        "strides": None,
    }
    return [
        new_step([stacked], part, lax.slice_p, params),
        new_step([part], element, lax.squeeze_p, {"dimensions": (0,)}),
    ]


def _key(atom: Atom) -> Any:
    return key_of(atom) if isinstance(atom, Literal) else atom


def is_small(aval: jax.core.ShapedArray, *, is_constant: bool = False) -> bool:
    """True if values of a type are stacked: they are copied for that, constants once, and others in each step."""
    return aval.size * aval.dtype.itemsize <= (_FEW_CONSTANT_BYTES if is_constant else _FEW_BYTES)


def own(what: str, aval: Any) -> str:
    """The reason why iterations that each take a large array of their own are not a loop."""
    return f"{what} takes a different array of {aval.str_short()} in each iteration"


def fitted(iterations: Sequence[Sequence[JaxprEqn]], around: Surroundings) -> tuple[Loop, list[JaxprEqn]]:
    """The loop that replaces the iterations, and equations that split its results.

    Raises:
        Misfit: they are none.
    """
    return _Fitting(iterations, around).loop()


def earlier_iteration(
    iterations: Sequence[Sequence[JaxprEqn]], before: Sequence, likeness: Likeness
) -> list[JaxprEqn] | None:
    """The equations before some iterations that are one more iteration, wherever they stand.

    They are found from the values that an iteration gives to the next, and from what takes them.
    """
    return _Search(iterations, before, likeness).found()


class _Search:
    def __init__(self, iterations: Sequence[Sequence[JaxprEqn]], before: Sequence, likeness: Likeness):
        self._first, self._second, self._likeness = iterations[0], iterations[1], likeness
        self._makers: dict[Var, JaxprEqn] = {
            var: step for step in before if isinstance(step, JaxprEqn) for var in step.outvars
        }
        self._before = before
        self._of_first = _positions(self._first)
        self._of_second = _positions(self._second)
        self._matched: dict[int, JaxprEqn] = {}
        self._given: dict[tuple[int, int], Atom] = {}
        """The values that the iteration receives from the previous one, by where that computes them."""

    def found(self) -> list[JaxprEqn] | None:
        if not self._is_reached():
            return None
        if len(self._matched) < len(self._first):
            self._follow_users()
        if len(self._matched) < len(self._first) or len({*map(id, self._matched.values())}) < len(self._first):
            return None
        return [self._matched[position] for position in range(len(self._first))]

    def _is_reached(self) -> bool:
        """Matches the equations behind the values that the iteration passes on; false if any differ."""
        waiting = [
            (position, output, x)
            for step, later in zip(self._first, self._second, strict=True)
            for x, y in zip(step.invars, later.invars, strict=True)
            if isinstance(y, Var) and (origin := self._of_first.get(y)) is not None
            for position, output in [origin]
        ]
        while waiting:
            position, output, atom = waiting.pop()
            step = self._makers.get(atom) if isinstance(atom, Var) else None
            if step is None or step.outvars[output] is not atom:
                return False
            if position in self._matched:
                if self._matched[position] is not step:
                    return False
                continue
            if not self._matches(step, position):
                return False
            self._matched[position] = step
            waiting.extend(self._same_iteration(step, position))
        return bool(self._matched)

    def _matches(self, step: JaxprEqn, position: int) -> bool:
        first = self._first[position]
        is_same = step.primitive is first.primitive and not step.effects
        return is_same and self._likeness.number(step) == self._likeness.number(first)

    def _same_iteration(self, step: JaxprEqn, position: int) -> Iterable[tuple[int, int, Atom]]:
        """The operands of an equation that the same iteration computes."""
        for x, y in zip(step.invars, self._second[position].invars, strict=True):
            if isinstance(y, Var) and y in self._of_second:
                yield *self._of_second[y], x
            elif isinstance(y, Var) and isinstance(x, Var) and y in self._of_first:
                self._given.setdefault(self._of_first[y], x)

    def _follow_users(self) -> None:
        """Matches values that only code after the iterations uses, by their operands."""
        users: dict[Var, list[JaxprEqn]] = {}
        for step in self._before:
            for var in {x for x in step.invars if isinstance(x, Var)} if isinstance(step, JaxprEqn) else ():
                users.setdefault(var, []).append(step)
        for position in range(len(self._first)):
            if position in self._matched:
                continue
            known = [
                (number, x)
                for number, y in enumerate(self._second[position].invars)
                if isinstance(y, Var) and (x := self._in_iteration(y)) is not None
            ]
            for user in users.get(known[0][1], ()) if known else ():
                if self._matches(user, position) and all(user.invars[number] is var for number, var in known):
                    self._matched[position] = user
                    break

    def _in_iteration(self, later: Var) -> Atom | None:
        """The iteration's counterpart of an operand of the second iteration."""
        origin = self._of_second.get(later)
        if origin is not None:
            step = self._matched.get(origin[0])
            return None if step is None else step.outvars[origin[1]]
        origin = self._of_first.get(later)
        return None if origin is None else self._given.get(origin)


def _positions(steps: Sequence[JaxprEqn]) -> Mapping[Var, tuple[int, int]]:
    return {var: (position, output) for position, step in enumerate(steps) for output, var in enumerate(step.outvars)}
