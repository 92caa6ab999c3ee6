"""What is known of the loops in some code: it lasts from run to run, until all paths through the code are known."""

from collections import Counter
from types import CodeType, FrameType
from typing import Any, NamedTuple

from ..errors import SourceLine
from ..tracing.carried_floats import CarriedFloat
from .joins import AskedAt
from .loop_bounds import MOST
from .loop_heads import Head, heads_of
from .loop_state import Change
from .meetings import Meetings
from .unaliased import Unaliased, can_unalias


class Variable(NamedTuple):
    """What a `for` assigns to a local variable."""

    name: str
    start: int
    step: int


class Facts:
    """What is known of one loop, where it is on one path."""

    def __init__(self, place: SourceLine):
        self.place = place
        self.refusal: str | None = None
        """Why it is none of the graph."""
        self.unlike: str | None = None
        """What some iterations change that a loop cannot carry: with these it ends."""
        self.is_ready = False
        self.is_guess = False
        """Whether that is taken from another run of the same loop, as of a function that is called again."""
        self.at = 0
        """Before how many iterations it begins."""
        self.begins: list | None = None
        """What lives there is like, where iterations come before: on other paths it may be other things."""
        self.unexecuted: set[CodeType] = set()
        """Code that was not looked into then, since it had not run."""
        self.changes: list[Change] = []
        self.guarded: dict[str, Any] = {}
        """The paths of what is carried that must not be written to, and why."""
        self.is_detached = False
        """Whether it is in the forward of a custom function: nothing of what that computes has a derivative."""
        self.floats: dict[str, CarriedFloat] = {}
        """The Python floats among what is carried, by their paths."""
        self.axes: dict[int, frozenset[str]] = {}
        """Of a mesh: those over which what is carried differs when iterations end, by its place."""
        self.iterations: int | None = None
        """How many a `for` has, where it does not end before."""
        self.variables: list[Variable] = []
        self.script: list[bool] = []
        """The answers with which it goes on to its end."""
        self.growth: dict[str, int] = {}
        """How much longer what it carries becomes in each iteration at most, by the path."""
        self.shrinks: set[str] = set()
        """What may become shorter."""
        self.most: int | None = None
        """How many iterations come back at most, as the paths tell that have been gone, where something grows."""
        self.is_promised = False
        """Whether the user says so."""

    @property
    def grows(self) -> bool:
        return any(self.growth.values())

    @property
    def needs_room(self) -> bool:
        """Whether something grows, and nobody has said for how many iterations."""
        return self.iterations is None and self.most is None and self.grows

    @property
    def room(self) -> int:
        """For how many iterations there is room."""
        if self.iterations is not None:
            return self.iterations - self.at
        return MOST if self.most is None else self.most

    def carried_float(self, path: str) -> CarriedFloat:
        """What is known of a float that it carries."""
        return self.floats.setdefault(path, CarriedFloat(path, self.place))

    def add(self, changes: list[Change]) -> bool:
        """Takes note of what iterations change; false if it was known."""
        known = {change.path: change for change in self.changes}
        new = [x for x in changes if x.path not in known or (x.kind == "sized" != known[x.path].kind)]
        for change in new:
            known[change.path] = change
        self.changes = [*known.values()]
        return bool(new)


class Loops:
    """What some runs of the same code have found out of its loops."""

    def __init__(self, meetings: Meetings):
        self.meetings = meetings
        """The functions whose paths meet where they return."""
        self.heads: dict[CodeType, dict[int, Head]] = {}
        """The loops that are watched, by their offsets."""
        self.executed: set[CodeType] = set()
        """The code that has run while loops were watched."""
        self.has_learned = False
        """Whether the run that goes on has to begin anew."""
        self.learned_behind: tuple[bool, ...] | None = None
        """The answers behind which alone paths have to be gone anew; None if all have to."""
        self.tries = 0
        """How often paths were gone anew."""
        self.flags: dict[tuple[CodeType, int], set[str]] = {}
        """The paths of Python's bools that loops carry. A condition tells where an iteration begins which it is."""
        self.writes_to_new: set[tuple[CodeType, int]] = set()
        """The loops that write to tensors which they replace: these have to be new when the first iteration begins."""
        self.are_suspected_early = False
        """Whether a loop is looked for at the third condition: a way of some iterations cannot be translated."""
        self.unaliased: dict[Unaliased, set[str] | None] = {}
        """The paths of tensors that get memory of their own in loops; None in one that writes to what they share."""
        self.recounted: Counter[tuple[CodeType, int]] = Counter()
        """How often a `for` was counted again."""
        self.found: Counter[tuple[CodeType, int]] = Counter()
        """How often a loop was found, each time on another path."""
        self._is_everywhere = False  # whether what was learned meanwhile is so on all paths
        self._facts: dict[Any, Facts] = {}
        self._given_up: dict[tuple[CodeType, Head], str] = {}  # why, since the paths are gone
        self._ready: dict[tuple[CodeType, int], Facts] = {}  # what was found last of loops that Python does not end
        self._known: set[tuple[CodeType, int]] = set()  # the loops that are watched, or were

    @property
    def are_watched(self) -> bool:
        """Whether code runs with Python's tracing on."""
        meetings = self.meetings
        return bool(self.heads or meetings.codes or (meetings.are_on and meetings.points.codes))

    def suspect(self, frames: list[FrameType], before: list[FrameType]) -> bool:
        """Watches the loop that asks again and again; false if there is none that could be watched.

        Args:
            frames: those on the stack, from the outermost.
            before: those at the condition before.
        """
        common = [one for one, other in zip(frames, before, strict=False) if one is other]
        if not common:
            return False
        frame = common[-1]
        for head in reversed(heads_of(frame.f_code)):
            if frame.f_lasti in head.within and (frame.f_code, head.entry) not in self._known:
                self._watch(frame.f_code, head)
                return True
        return False

    def suspect_early(self) -> None:
        """Looks for loops of few iterations, as of one over as many rows as a tensor has."""
        if not self.are_suspected_early:
            self.learn_anew()
        self.are_suspected_early = True

    def _watch(self, code: CodeType, head: Head) -> None:
        self._known.add((code, head.entry))
        watched = self.heads.setdefault(code, {})
        watched[head.entry] = head
        if head.again is not None:
            watched[head.again] = head
        self.learn_anew()

    def facts(self, code: CodeType, head: Head, key: Any) -> Facts:
        found = self._facts.get((code, head.entry, key))
        if found is None:
            found = Facts(SourceLine(code.co_filename, head.line, code.co_name))
            like = self._ready.get((code, head.entry))
            if like is not None:
                found.is_ready = found.is_guess = True
                found.at, found.changes, found.axes = like.at, [*like.changes], dict(like.axes)
                found.growth, found.shrinks = {**like.growth}, {*like.shrinks}
                found.most = None if like.is_promised else like.most
            found.refusal = self._given_up.get((code, head))
            self._facts[code, head.entry, key] = found
        return found

    def learn_anew(self) -> None:
        """Lets all paths be gone anew."""
        self.has_learned, self.learned_behind, self._is_everywhere = True, None, True

    def carry_flag(self, loop: tuple[CodeType, int], path: str) -> None:
        """Lets a loop carry a bool of Python's, on all paths."""
        self.flags.setdefault(loop, set()).add(path)
        self.learn_anew()

    def write_to_new(self, loop: tuple[CodeType, int]) -> None:
        """Lets a loop write to tensors which it replaces, on all paths."""
        self._is_everywhere = self._is_everywhere or loop not in self.writes_to_new
        self.writes_to_new.add(loop)

    def note(self, facts: Facts) -> None:
        """What follows on the loop has to be learned again."""
        self._learn_behind(facts)
        if facts.is_ready and facts.iterations is None:
            for code, entry, _ in [key for key, found in self._facts.items() if found is facts]:
                self._ready[code, entry] = facts
        for _, _, (answers, count) in [key for key, found in self._facts.items() if found is facts]:
            for key in [*self._facts]:
                _, _, (others, other_count) = key
                if other_count > count and others[: len(answers)] == answers:
                    del self._facts[key]

    def _learn_behind(self, facts: Facts) -> None:
        """Lets paths that lead to a loop be gone anew."""
        found = [answers for (_, _, (answers, _)), other in self._facts.items() if other is facts]
        if self._is_everywhere or len(found) != 1 or not found[0]:
            self.learn_anew()
        else:
            self.has_learned, self.learned_behind = True, min(found[0], self.learned_behind or found[0], key=len)

    def forget(self, facts: Facts, code: CodeType, head: Head) -> None:
        """Lets what is known of a loop be found again."""
        facts.is_ready, facts.is_guess, facts.begins, facts.iterations, facts.at = False, False, None, None, 0
        facts.changes, facts.variables, facts.script, facts.unexecuted = [], [], [], set()
        facts.growth, facts.shrinks, facts.most = {}, set(), None
        self._ready.pop((code, head.entry), None)
        self.note(facts)

    def unalias(self, code: CodeType, head: Head, paths: set[str]) -> bool:
        """Gives tensors memory of their own in a loop; false if they have it, or must not."""
        if not paths:
            return False
        can = can_unalias((code, *self.executed))
        known = self.unaliased.setdefault(Unaliased(code, head.entry), set() if can else None)
        if known is None or paths <= known:
            return False
        known.update(paths)
        self._forget_all(code, head.entry)
        return True

    def refuse_guarded(self, cause: CodeType | AskedAt | Unaliased, reason: str) -> None:
        """Lets paths not meet, or tensors share memory again: what they share is written to."""
        self.learn_anew()
        for facts in self._facts.values():
            facts.guarded.clear()
        if isinstance(cause, Unaliased):
            self.unaliased[cause] = None
            self._forget_all(*cause)
        elif isinstance(cause, AskedAt):
            self.meetings.points.refuse(cause, reason)
        else:
            self.meetings.refuse(cause, reason)

    def must_keep_aliases(self) -> bool:
        """Whether code has run that asks which objects are the same: then all share memory again."""
        aliased = self.meetings.aliased
        causes = [*(loop for loop, paths in self.unaliased.items() if paths), *aliased]
        if not causes or can_unalias(self.executed):
            return False
        for cause in causes:
            self.refuse_guarded(cause, "the code asks whether tensors are the same")
        aliased.clear()
        return True

    def _forget_all(self, code: CodeType, entry: int) -> None:
        self._ready.pop((code, entry), None)
        self._facts = {key: facts for key, facts in self._facts.items() if key[:2] != (code, entry)}
        self.learn_anew()

    def give_up(self, code: CodeType, head: Head, reason: str) -> None:
        """Lets a loop be none of the graph, wherever it is met for the first time from now on."""
        self._is_everywhere = self._is_everywhere or (code, head) not in self._given_up
        self._given_up[code, head] = reason

    def begin_behind(self) -> None:
        """Is called before some paths are gone anew."""
        self.has_learned, self.learned_behind = False, None
        self.tries += 1

    def begin(self) -> None:
        """Is called before all paths are gone anew. What is watched stays the same until then, as do marks of loops."""
        self.begin_behind()
        self._is_everywhere = False
        for code, head in self._given_up:
            watched = {at: other for at, other in self.heads.get(code, {}).items() if other is not head}
            if watched:
                self.heads[code] = watched
            else:
                self.heads.pop(code, None)
        self._given_up.clear()

    @property
    def refused(self) -> str:
        """What errors say of the loops that are none of the graph; nothing if there are none."""
        return "".join(f". {refusal.removesuffix('.')}" for refusal in self.refusals[:3])

    @property
    def refusals(self) -> list[str]:
        reasons = [(facts.place, facts.refusal or facts.unlike) for facts in self._facts.values()]
        found = [
            f"The loop at {place} is not a loop of the graph: {reason}"
            for place, reason in reasons
            if reason is not None
        ]
        return list(dict.fromkeys(found))
