"""A PyTorch call within translated code that is not translated: PyTorch runs it.

Where all its tensors have values it runs at once, so that its result may be of any shape. Where JAX traces some, it
becomes one equation, for which the form of its result must be known before: from meta tensors, or else from trying.
"""

import dataclasses
import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from ..internals.dispatch import DisableTorchDispatch, DisableTorchFunction, TorchDispatchMode
from ..rules.inplace import write_in_place
from ..rules.operands import as_result
from ..runtime.caches import Cache
from ..runtime.errors import NoRuleError, TracedValueError
from ..runtime.translation import this_call
from ..tensors.dtypes import canonical, has_doubles, is_integral
from ..tensors.interop import array_to_tensor, tensor_to_array
from ..tensors.known import evaluate
from ..tensors.tensor import Torchish
from ..tensors.trees import flatten, map_arguments
from .function import BridgeOptions, TorchFunction, WriteTracker
from .primitive import Result, call_torch
from .program import Template, take_apart
from .scope import in_fresh_thread

_ANY_DEPTH = 1 << 30  # as often as PyTorch can
_VALUES = (bool, int, float, complex, np.generic, np.ndarray)


class _Refused(Exception):
    """PyTorch would run the call, but with a wrong result here."""


class _DependsOnData(Exception):
    """The form of a result does, or Python gets a value."""


class _NotOnMeta(Exception):
    """A call does not run on meta tensors."""


class _GivenLeaf(NamedTuple):
    """A leaf of a result that is an argument itself."""

    index: int


class _Made(NamedTuple):
    """A leaf of a result that is a new tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class _Form(NamedTuple):
    """The form of a call's results and writes, without values."""

    structure: Any
    leaves: tuple
    written: tuple[int, ...]
    """The arguments that it writes to."""

    def results(self, dtypes: Sequence[torch.dtype], shapes: Sequence[tuple[int, ...]]) -> list[_Made]:
        """The tensors that come back: new ones, and the new values of arguments."""
        made = [leaf for leaf in self.leaves if isinstance(leaf, _Made)]
        return made + [_Made(shapes[index], dtypes[index]) for index in self.written]


class Outside:
    """A runner of calls in PyTorch, with a cache of its findings by signature.

    Args:
        vmap_method: how JAX batches the calls; see `torch2jax`.
    """

    def __init__(self, vmap_method: str):
        self._programs = Cache("single calls of PyTorch functions", 1024)
        self._settings = BridgeOptions(vmap_method, programs=weakref.ref(self._programs))
        self._pieces: Cache[object, _Piece] = Cache("calls in PyTorch", 1024)

    def call(
        self,
        function: Callable,
        name: str,
        args: tuple,
        kwargs: dict,
        *,
        transforms: bool = True,
        depth: int = _ANY_DEPTH,
    ) -> Any:
        """Calls `function` on the real tensors of its arguments: now, or when the program that is being traced runs.

        Args:
            function: an operator, or what is like a function of PyTorch; hashable.
            name: what messages and graphs call it.
            args, kwargs: its arguments: trees with tensors of the active call.
            transforms: whether `torch.func.vjp` can differentiate it; else `torch.autograd.grad` does.
            depth: how often it may be differentiated.

        Raises:
            NoRuleError: it draws random numbers, or gives a view of an argument.
            TracedValueError: JAX traces, and the form of its result depends on data.
            RuntimeError: it writes to an argument whose memory another argument shares.
        """
        call = this_call()
        lift = lambda leaf: call.constants.lift(leaf) if isinstance(leaf, (torch.Tensor, jax.Array)) else leaf
        args, kwargs = map_arguments(lift, (args, kwargs))
        with DisableTorchFunction(), DisableTorchDispatch():
            template, signature, tensors, constants, _ = take_apart(args, kwargs)
            tensors, positions = _distinct(tensors)
            key = function, signature, positions
            piece = None if constants else self._remembered(key)
            if piece is None:
                settings = dataclasses.replace(self._settings, use_torch_vjp=None if transforms else False)
                bound = _bound(function, template, positions, [np.asarray(array) for array in constants])
                piece = _Piece(bound, name, tensors, settings, depth)
                if not constants:
                    self._remember(key, piece)
            try:
                form, arrays = piece.run(tensors)
            except _Refused as error:
                raise NoRuleError(name, str(error)) from None
            except _DependsOnData:
                raise TracedValueError(f"{name}, which runs in PyTorch,") from None
            made = form.results(piece.dtypes, piece.shapes)
            results = [as_result(array, what.dtype, tensors) for array, what in zip(arrays, made, strict=True)]
        return _put_together(form, results, tensors)

    def _remembered(self, key: object) -> "_Piece | None":
        try:
            return self._pieces.get(key)
        except TypeError:  # an argument that cannot be hashed
            return None

    def _remember(self, key: object, piece: "_Piece") -> None:
        try:
            self._pieces[key] = piece
        except TypeError:
            return


def _distinct(tensors: list) -> tuple[list, tuple[int, ...]]:
    """The tensors without repetitions, and the number of each one among these."""
    numbers: dict[int, int] = {}
    positions = tuple(numbers.setdefault(id(tensor), len(numbers)) for tensor in tensors)
    return list({id(tensor): tensor for tensor in tensors}.values()), positions


def _bound(function: Callable, template: Template, positions: tuple[int, ...], constants: list) -> Callable:
    """`function` as one of its distinct tensors alone."""

    def run(*tensors: torch.Tensor):
        args, kwargs = template.fill([tensors[position] for position in positions], constants)
        return function(*args, **kwargs)

    return run


def _put_together(form: _Form, results: list, tensors: list) -> object:
    values = results[len(results) - len(form.written) :]
    for index, value in zip(form.written, values, strict=True):
        target = tensors[index]
        if any(target is not tensor and _share_memory(target, tensor) for tensor in tensors):
            raise RuntimeError(
                "unsupported operation: a call that runs in PyTorch writes to a tensor whose memory another of its "
                "arguments shares. Please clone() that argument before the call."
            )
        write_in_place(target, value)
    made = iter(results)
    leaves = [
        tensors[leaf.index] if isinstance(leaf, _GivenLeaf) else next(made) if isinstance(leaf, _Made) else leaf
        for leaf in form.leaves
    ]
    return form.structure.unflatten(leaves)


def _share_memory(a: Torchish, b: Torchish) -> bool:
    return a._node.storage.memory is b._node.storage.memory


class _Piece:
    """A call as a function of its tensors alone, for one signature."""

    def __init__(self, run: Callable, name: str, tensors: list, settings: BridgeOptions, depth: int):
        self.dtypes = tuple(tensor.dtype for tensor in tensors)
        self.shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        self._run, self._name, self._settings, self._depth = run, name, settings, depth
        self._observe = self._function(self._observed, (), settings)
        self._on_meta: tuple[_Form, TorchFunction] | None = None
        self._by_trying: Cache[object, tuple[_Form, TorchFunction]] = Cache("forms of results by values", 64)

    def run(self, tensors: list) -> tuple[_Form, list]:
        """The result of the call for `tensors`: its form, and the arrays of its results."""
        knowns = [tensor.known for tensor in tensors]
        if all(known is not None for known in knowns):
            form, reals = self._in_pytorch(lambda: self._observe([*map(_real, knowns)]))
            return form, [tensor_to_array(real) for real in reals]
        form, function = self._on_meta or self._find(knowns)
        made = form.results(self.dtypes, self.shapes)
        if not made:
            return form, []
        with jax.named_scope(self._name):
            results = tuple(Result(what.shape, canonical(what.dtype)) for what in made)
            arrays = call_torch(function, results, *(tensor.read() for tensor in tensors))
        return form, arrays

    def _function(self, run: Callable, results: Sequence[_Made], settings: BridgeOptions) -> TorchFunction:
        return TorchFunction(
            run,
            self._name,
            self.dtypes,
            inputs=tuple(index for index, dtype in enumerate(self.dtypes) if not is_integral(dtype)),
            results=tuple(index for index, what in enumerate(results) if not is_integral(what.dtype)),
            depth=self._depth,
            settings=settings,
        )

    def _repeated(self, form: _Form, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """A run whose result is of a form that is known."""
        leaves, structure = flatten(self._run(*tensors))
        if structure != form.structure:
            raise ValueError(f"{self._name} returned {structure}; wanted {form.structure}, as it returned before")
        made = [leaf for leaf, what in zip(leaves, form.leaves, strict=True) if isinstance(what, _Made)]
        return made + [tensors[index] for index in form.written]

    def _observed(self, *tensors: torch.Tensor) -> tuple[_Form, list]:
        """A run that finds out the form of its result."""
        with WriteTracker(tensors) as tracker, _Deterministic():
            leaves, structure = flatten(self._run(*tensors))
        written = tuple(index for index, is_written in enumerate(tracker.written()) if is_written)
        described = tuple(_described(leaf, tensors) for leaf in leaves)
        made = [leaf for leaf, what in zip(leaves, described, strict=True) if isinstance(what, _Made)]
        return _Form(structure, described, written), made + [tensors[index] for index in written]

    def _find(self, knowns: list) -> tuple[_Form, TorchFunction]:
        """The form of the result where values are traced, and the function with such results."""
        if not self._by_trying:
            try:
                self._on_meta = self._with_function(self._in_pytorch(self._inferred))
                return self._on_meta
            except _NotOnMeta:
                pass
        key = tuple(map(_value_for_shapes, knowns))
        if key not in self._by_trying:
            self._by_trying[key] = self._with_function(self._in_pytorch(lambda: self._tried(knowns)))
        return self._by_trying[key]

    def _with_function(self, form: _Form) -> tuple[_Form, TorchFunction]:
        settings = self._settings
        if form.written:  # torch.func.vjp does not follow writes to what it holds constant
            settings = dataclasses.replace(settings, use_torch_vjp=False)
        run = functools.partial(self._repeated, form)
        return form, self._function(run, form.results(self.dtypes, self.shapes), settings)

    def _inferred(self) -> object:
        try:
            return self._observe([torch.empty(s, dtype=d, device="meta") for s, d in self._types])[0]
        except _Refused:
            raise
        except Exception as error:
            if "data-dependent shape" in str(error):  # what PyTorch says of an operator that has told it so
                raise _DependsOnData from None
            raise _NotOnMeta from None

    @property
    def _types(self):
        return zip(self.shapes, self.dtypes, strict=True)

    def _tried(self, knowns: list) -> _Form:
        """The form of the call for zeros and for other numbers, if these agree."""
        forms, errors = [], []
        for step in (0, 1):
            tensors = [
                _example(shape, dtype, step) if known is None else _real(known).cpu()
                for known, (shape, dtype) in zip(knowns, self._types, strict=True)
            ]
            try:
                with torch.random.fork_rng(devices=[]):
                    forms.append(self._observe(tensors)[0])
            except _Refused:
                raise
            except Exception as error:
                errors.append(error)
        if not forms:
            raise errors[0]
        if any(isinstance(leaf, _VALUES) for leaf in forms[0].leaves) or any(form != forms[0] for form in forms):
            raise _DependsOnData
        return forms[0]

    @staticmethod
    def _in_pytorch(job: Callable) -> Any:
        """The result of `job`, run where no part of the translation is active."""
        given: list = []
        wide = has_doubles()

        def run():
            with jax.enable_x64(wide):
                given.append(job())

        in_fresh_thread(run)
        return given[0]


def _example(shape: tuple[int, ...], dtype: torch.dtype, step: int) -> torch.Tensor:
    count = math.prod(shape)
    return (step * torch.arange(count)).reshape(shape).to(dtype)


def _value_for_shapes(known: Any) -> bytes | None:
    """The values of a known tensor if they may decide shapes: lists of integers. A single one is mostly a counter."""
    if known is None:
        return None
    array = np.asarray(evaluate(known))
    return array.tobytes() if array.ndim and array.dtype.kind in "iub" else None


def _real(known: Any) -> torch.Tensor:
    return array_to_tensor(evaluate(known), gathers=True)


def _described(leaf: object, tensors: Sequence[torch.Tensor]) -> object:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.layout is not torch.strided or leaf.is_quantized:
        kind = "quantized" if leaf.is_quantized else leaf.layout
        raise _Refused(f"its result is a {kind} tensor, which no array can hold")
    for index, tensor in enumerate(tensors):
        if leaf is tensor:
            return _GivenLeaf(index)
        if leaf.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
            raise _Refused("its result is a view of an argument, and would be a copy here; clone() it there")
    return _Made(tuple(leaf.shape), leaf.dtype)


class _Deterministic(TorchDispatchMode):
    """Refuses operators that draw from PyTorch's own generator, which JAX would not know of."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # dynamo would be imported, which takes seconds

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, object] | None = None,
    ):
        if torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()):
            raise _Refused(f"{func} draws random numbers from PyTorch's own generator, and not from the key rng=")
        return func(*args, **(kwargs or {}))
