"""What paths give where they go on as one: each tensor gets the values of the path that is taken.

One of the paths goes on. What it has is put in place of what differs from path to path, and the rest is the same on
all. A tensor that is new on one path and was there before on another is one by itself from then on: nobody may write to
either (`guards`).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..internals.dispatch import DisableTorchDispatch, DisableTorchFunction
from ..tensors.rebinding import set_geometry
from ..tensors.tensor import strides_of_shape
from ..tracing.tensor_spec import TensorSpec
from ..translation import this_call
from .guards import Guards
from .loop_carry import number
from .loop_state import State, Unlike
from .outcomes import FoundResult, ResultTree, joined, with_tensors


class PathResult(NamedTuple):
    """What one path gives, in terms that are the same in all runs."""

    outcome: ResultTree
    specs: list[TensorSpec]
    places: list[tuple[tuple[int, ...], Any]]
    """The strides of its tensors, and where they begin in memory."""
    guarded: tuple[str, ...]
    """What must not be written to from now on, by its path before."""
    are_guarded: tuple[bool, ...]
    """The same of the tensors that it gives."""
    are_differentiable: tuple[bool, ...]
    """Whether these have derivatives."""

    @classmethod
    def of(cls, found: FoundResult, before: State, guards: Guards) -> tuple["PathResult", list[Any]]:
        """What a path gives, and the arrays of its tensors.

        Args:
            before: what lived where the paths parted.
            guards: the path's.
        """
        lifted = [this_call().lift(tensor) for tensor in found.tensors]
        guarded = tuple([before.seen[id(x)] for x in guards.things() if id(x) in before.seen])
        are_guarded = tuple([guards.cause(x._node.storage.memory) is not None for x in lifted])
        specs = [TensorSpec.of(x) for x in lifted]
        with DisableTorchFunction(), DisableTorchDispatch():
            places = [(x.stride(), x.storage_offset()) for x in lifted]
        are_differentiable = tuple([x._node.storage.differentiable for x in lifted])
        result = cls(found.outcome, specs, places, guarded, are_guarded, are_differentiable)
        return result, [x.read() for x in lifted]


class MetPaths:
    """Paths that go on as one.

    Raises:
        Unlike: they do not give the like.
    """

    def __init__(self, paths: Sequence[PathResult]):
        self._paths = paths
        self._differ, self.chosen = joined([path.outcome for path in paths])
        """Which tensors differ, and the number of the path that goes on."""

    @property
    def has_aliases(self) -> bool:
        """Whether some of what differs is the same object as another one on some paths."""
        columns = zip(*[path.outcome.leaves for path in self._paths], strict=True)
        differing = [leaves for leaves, differs in zip(columns, self._differ, strict=True) if differs]
        return any(leaf.existing is not None or leaf.is_entangled for leaves in differing for leaf in leaves)

    def give(self, found: FoundResult, arrays: Sequence, before: State, guards: Guards, cause: Any) -> Any:
        """Lets what the chosen path gives hold the values of all paths.

        Args:
            found: what that path has.
            arrays: the values of its tensors, whichever path is taken.
            before: what lived where the paths parted.
            guards: those of the run that goes on.
            cause: what guards tell of.

        Returns:
            The result, where tensors in its tuples have changed another one.

        Raises:
            Unlike: the run has not gone the path that was chosen.
        """
        if found.outcome != self._paths[self.chosen].outcome:
            raise Unlike("it does not do the same each time")
        giving = _Giving(self._paths, before, guards, cause)
        put: list[Any] = [None] * len(found.tensors)
        columns = [*zip(*[path.outcome.leaves for path in self._paths], strict=True)]
        for i, (leaf, tensor) in enumerate(zip(found.outcome.leaves, found.tensors, strict=True)):
            if self._differ[i] and leaf.number is not None:
                put[i] = number(arrays[i])
            elif self._differ[i]:
                is_again = leaf.same_as < i and len({other.same_as for other in columns[i]}) == 1
                again = put[leaf.same_as] if is_again else None
                new = giving.tensor(i, arrays[i]) if again is None else again
                if leaf.can_be_replaced:
                    put[i] = new
                else:
                    _take(tensor, new)
        result = with_tensors(found.result, iter(put))
        giving.guard_containers(found.containers)
        return result


class _Giving(NamedTuple):
    paths: Sequence[PathResult]
    before: State
    guards: Guards
    cause: Any

    def tensor(self, place: int, array: Any) -> Any:
        """The tensor that holds the values of all paths; where their strides differ, it is contiguous."""
        specs = [path.specs[place] for path in self.paths]
        if len({(spec.dtype, spec.device) for spec in specs}) > 1:
            raise Unlike("it gives tensors of different dtypes")
        spec, tape = specs[0]._replace(wants_grad=False, layout=None), this_call().tape
        if torch.is_grad_enabled() and tape is not None and tape.knows(array):
            raise Unlike("its result requires grad")
        found = {path.places[place] for path in self.paths}
        strides, offset = found.pop() if len(found) == 1 else (strides_of_shape(array.shape), 0)
        new = spec.at(array, strides, offset)
        new._node.storage.differentiable = any(path.are_differentiable[place] for path in self.paths)
        if tape is None and any(spec.wants_grad for spec in specs):
            new.descend_from_afar()
        self._guard(place, new)
        return new

    def _guard(self, place: int, new: Any) -> None:
        leaves = [path.outcome.leaves[place] for path in self.paths]
        is_alias = any(leaf.existing is not None or leaf.shares is not None or leaf.is_entangled for leaf in leaves)
        if is_alias or any(path.are_guarded[place] for path in self.paths):
            self.guards.add(new._node.storage.memory, self.cause)
        for leaf in leaves:
            if leaf.shares is not None:
                self._guard_path(leaf.shares)

    def guard_containers(self, containers: list) -> None:
        """Guards the lists that were there before on some paths only, and what the paths have guarded themselves."""
        for place, container in enumerate(containers):
            existing = {path.outcome.containers[place] for path in self.paths}
            if len(existing) > 1:
                self.guards.add(container, self.cause)
                for path in existing - {None}:
                    self._guard_path(path)
        for path in self.paths:
            for guarded in path.guarded:
                self._guard_path(guarded)

    def _guard_path(self, path: str | None) -> None:
        before: Any = self.before
        storage = before.storages.get(path)
        self.guards.add(before.entries[path].value if storage is None else storage.memory, self.cause)


def _take(tensor: Any, new: Any) -> None:
    """Lets a tensor be where another is."""
    if (tensor.stride(), tensor.storage_offset()) != (new.stride(), new.storage_offset()):
        set_geometry(tensor, new)
    tensor._node, tensor._writes = new._node, new._writes
    tensor._viewed = tensor._restriction = None
