"""Finds the iteration before the first: it may lie among other equations, or begin in another way."""

from collections.abc import Iterable, Mapping, Sequence

from jax.extend.core import JaxprEqn, Var

from .likeness import Atom, Likeness


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
        self._of_first = _places(self._first)
        self._of_second = _places(self._second)
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
        return [self._matched[place] for place in range(len(self._first))]

    def _is_reached(self) -> bool:
        """Matches the equations behind the values that the iteration passes on; false if any differ."""
        waiting = [
            (place, output, x)
            for step, later in zip(self._first, self._second, strict=True)
            for x, y in zip(step.invars, later.invars, strict=True)
            if isinstance(y, Var) and (origin := self._of_first.get(y)) is not None
            for place, output in [origin]
        ]
        while waiting:
            place, output, atom = waiting.pop()
            step = self._makers.get(atom) if isinstance(atom, Var) else None
            if step is None or step.outvars[output] is not atom:
                return False
            if place in self._matched:
                if self._matched[place] is not step:
                    return False
                continue
            if not self._is_alike(step, place):
                return False
            self._matched[place] = step
            waiting.extend(self._same_iteration(step, place))
        return bool(self._matched)

    def _is_alike(self, step: JaxprEqn, place: int) -> bool:
        first = self._first[place]
        is_same = step.primitive is first.primitive and not step.effects
        return is_same and self._likeness.number(step) == self._likeness.number(first)

    def _same_iteration(self, step: JaxprEqn, place: int) -> Iterable[tuple[int, int, Atom]]:
        """The operands of an equation that the same iteration computes."""
        for x, y in zip(step.invars, self._second[place].invars, strict=True):
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
        for place in range(len(self._first)):
            if place in self._matched:
                continue
            known = [
                (number, x)
                for number, y in enumerate(self._second[place].invars)
                if isinstance(y, Var) and (x := self._in_iteration(y)) is not None
            ]
            for user in users.get(known[0][1], ()) if known else ():
                if self._is_alike(user, place) and all(user.invars[number] is var for number, var in known):
                    self._matched[place] = user
                    break

    def _in_iteration(self, later: Var) -> Atom | None:
        """The iteration's counterpart of an operand of the second iteration."""
        origin = self._of_second.get(later)
        if origin is not None:
            step = self._matched.get(origin[0])
            return None if step is None else step.outvars[origin[1]]
        origin = self._of_first.get(later)
        return None if origin is None else self._given.get(origin)


def _places(steps: Sequence[JaxprEqn]) -> Mapping[Var, tuple[int, int]]:
    return {var: (place, output) for place, step in enumerate(steps) for output, var in enumerate(step.outvars)}
