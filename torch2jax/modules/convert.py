"""`t2j`: conversions of functions, modules and values of PyTorch's to JAX's."""

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, cast, overload

import jax
import numpy as np
import torch

from ..calls.logical_dtypes import LogicalDtypes
from ..runtime.errors.tracebacks import boundary
from ..runtime.layers import BRIDGE, COMPILED, DISTRIBUTED, SPARSE, TRAINING
from ..tensors.distributed import is_device_mesh, is_distributed, mesh_of
from ..tensors.dtypes import SPARSE_LAYOUTS, dtype_t2j, tell_of_narrowing
from ..tensors.interop import tensor_to_array, untied, without_values
from ..tensors.tensor import Torchish
from ..tensors.trees import map_results, open_up
from ..tensors.wrapped import is_wrapper, wrapped
from ..tracing.conditions import BranchPolicy
from ..tracing.rolling import Rolling
from .framework_checks import expect_no_code_of_jax, expect_of_pytorch, mapped, stays
from .skeleton import original
from .translated import TranslatedFunction, TranslatedModule

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

P = ParamSpec("P")
K = TypeVar("K")


class _Unknown:
    """A type that no function returns. For a type checker, a result of unknown type may be even this."""


class _OfUnknown(Protocol[P]):
    """A module whose result type is not known."""

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> _Unknown: ...


class _OfTensor(Protocol[P]):
    """A module that returns a tensor."""

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> torch.Tensor: ...


class _OfJax(Protocol):
    """A JAX function that `j2t` has converted."""

    function: Callable
    jit: bool

    def cache_size(self) -> int: ...


class _Step(Protocol):
    """A function of a state: a `StatefulFunction`."""

    def __call__(
        self, state: dict[str, dict[str, Any]], *args: Any, rng: jax.Array | None = None, **kwargs: Any
    ) -> tuple[Any, dict[str, dict[str, Any]]]: ...

    def init(self, *args: Any, rng: jax.Array | None = None, **kwargs: Any) -> dict[str, dict[str, Any]]: ...

    def stack_layers(self, state: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]: ...

    def load(self, state: dict[str, dict[str, Any]]) -> None: ...


class _Options(TypedDict, total=False):
    """The options of a translation; see `t2j`."""

    on_missing: str
    call_torch: Sequence[object]
    vmap_method: str
    compile: Sequence[object]
    checks: str
    branches: Mapping[str, bool] | None
    max_paths: int
    max_steps: int | None
    bounds: Mapping[str, int] | None
    loops: str
    dtypes: Mapping[Any, torch.dtype] | None
    groups: Mapping[Any, str | tuple[str, ...]] | str | tuple[str, ...] | None


@overload
def t2j(thing: torch.Tensor, *, copy: bool = True) -> jax.Array: ...
@overload
def t2j(thing: torch.dtype) -> np.dtype: ...
@overload
def t2j(thing: "DeviceMesh") -> jax.sharding.Mesh: ...
@overload
def t2j(thing: _OfUnknown[P], **options: Unpack[_Options]) -> TranslatedModule[P, Any]: ...
@overload
def t2j(thing: _OfTensor[P], **options: Unpack[_Options]) -> TranslatedModule[P, jax.Array]: ...
@overload
def t2j(thing: torch.nn.Module, **options: Unpack[_Options]) -> TranslatedModule[..., Any]: ...
@overload
def t2j(thing: _OfJax) -> Callable: ...
@overload
def t2j(thing: Callable, *, state: Any, **options: Unpack[_Options]) -> _Step: ...
@overload
def t2j(thing: Callable[P, _Unknown], **options: Unpack[_Options]) -> TranslatedFunction[P, Any]: ...
@overload
def t2j(thing: Callable[P, torch.Tensor], **options: Unpack[_Options]) -> TranslatedFunction[P, jax.Array]: ...
@overload
def t2j(thing: Callable[P, object], **options: Unpack[_Options]) -> TranslatedFunction[P, Any]: ...
@overload
def t2j(thing: Mapping[K, torch.Tensor], *, copy: bool = True) -> dict[K, jax.Array]: ...
@overload
def t2j(thing: list[torch.Tensor], *, copy: bool = True) -> list[jax.Array]: ...
@overload
def t2j(thing: tuple[torch.Tensor, ...], *, copy: bool = True) -> tuple[jax.Array, ...]: ...
@overload
def t2j(thing: object, *, copy: bool = True, state: object = None, **options: Unpack[_Options]) -> Any: ...
@boundary
def t2j(
    thing: object,
    *,
    copy: bool = True,
    state: object = None,
    on_missing: str = "error",
    call_torch: Sequence[object] = (),
    vmap_method: str = "sequential",
    compile: Sequence[object] = (),
    checks: str = "assume",
    branches: Mapping[str, bool] | None = None,
    max_paths: int = 64,
    max_steps: int | None = None,
    bounds: Mapping[str, int] | None = None,
    loops: str = "auto",
    dtypes: Mapping[object, torch.dtype] | None = None,
    groups: Mapping[object, str | tuple[str, ...]] | str | tuple[str, ...] | None = None,
) -> Any:
    """Translates PyTorch code, tensors and weights to JAX.

    Args:
        thing: one of

            - a tensor: returns an array of the same values. While ``jax_enable_x64`` is off, 64-bit types have 32 bits
              (an OverflowError if these do not hold an integer). A tensor on the meta device gives a
              `jax.ShapeDtypeStruct`. A sparse tensor gives a `BCOO`, `BCSR` or `CompressedArray`.
            - a dtype: returns JAX's dtype of that name. It does not depend on ``jax_enable_x64``: arrays are truncated,
              names are not.
            - a module, or a bound method of one: returns a pure function
              ``f(*args, state_dict=None, rng=None, return_state_dict=False, **kwargs)``. Parameters and buffers that
              are not in `state_dict` are constants. With ``return_state_dict=True`` it returns
              ``(result, new_state_dict)``. Only the function's method ``load`` changes the module itself. Its method
              ``split`` returns the trainable parameters, and the rest of the state.
            - a function: returns a pure function ``f(*args, rng=None, **kwargs)``.
            - compiled code (`torch.compile`), scripted, traced or loaded code (`torch.jit`), or an exported program (an
              ``ExportedProgram``): treated as the function or module that it is.
            - a function that `j2t` returned: returns the original JAX function.
            - ``module.state_dict()``: returns arrays by name. A tied weight has one entry, under its first name.
            - a `DeviceMesh`: returns the `jax.sharding.Mesh` of the devices of its ranks, with its names.
            - any tree of these, also of objects that hold tensors or will hold them, such as caches: returns new
              objects with the same attributes. Their classes are registered as pytrees. Other leaves stay unchanged.
        copy: for tensors: whether arrays get their own memory. With False they share the tensors' memory if the layout
            allows it. Such an array changes when PyTorch writes to the tensor (an optimizer's step, a loader that
            refills its buffer), and this also affects JAX computations that have not finished, in calls that have
            already returned.
        state: for a function: the objects that it takes as its first arguments and changes, or one such object:
            modules, optimizers, schedulers, gradient scalers. `t2j` then returns a pure function
            ``step(state, *args, rng=None, **kwargs)`` that returns ``(result, new_state)``. ``step.init(*args)``
            makes the first state, a dictionary of arrays for each object. ``step.load(state)`` writes a state into
            the objects, which otherwise never change.
        on_missing: what to do with an operator without a rule in a function or module: ``"error"``, or
            ``"call_torch"`` to run it in PyTorch, also inside ``jax.jit``, as `torch2jax` does. One warning lists
            these operators.
        call_torch: code to run in PyTorch although it could be translated: operators (``"demo::op"``,
            ``torch.ops.demo.op``), PyTorch functions (``torch.special.airy_ai``), and submodules, by name, as objects,
            or by class. A submodule's parameters are inputs of the call, and have gradients. Buffers that it writes
            are returned.
        vmap_method: how JAX batches code that runs in PyTorch; see `torch2jax`.
        checks: what to do with a check of traced values, which raises an exception for some of them: ``"assume"`` that
            it passes; ``"checkify"``, make it an error for `jax.experimental.checkify`; or ``"raise"``, raise an error
            while the compiled program runs.
        branches: which side to take of a traced condition, instead of tracing both, by the place of the condition:
            ``{"file.py:12": True}``, or the name of the function, alone or instead of the line.
        max_paths: how often the code is traced at most, once for each combination of answers, where the two sides of a
            traced condition leave different things (a list of another length); with 1, traced conditions are errors.
        max_steps: the maximum number of iterations of a loop that ends on traced values, for reverse-mode gradients:
            with more iterations, the gradient is NaN. Without it, only loops that are bounded by Python numbers have
            reverse-mode gradients; see docs/control-flow.md.
        bounds: upper bounds for data-dependent lengths, by their place: ``{"file.py:12": 100}``, or the name of the
            function, alone or instead of the line. If a length exceeds its bound, `checks` decides what happens, and
            floating-point results are NaN.
        loops: what to do with repeated iterations, in a program that JAX traces: ``"auto"``, make one `jax.lax.scan` of
            loops that are long enough to be worth it on every platform; ``"rolled"``, also of shorter loops, and of
            convolutions; or ``"unrolled"``, keep all iterations.
        dtypes: for code that checks for 64-bit dtypes, while ``jax_enable_x64`` is off: which dtype 32-bit arrays among
            the arguments stand for, ``{torch.int32: torch.int64}``, or the arrays in one argument,
            ``{"input_ids": torch.int64}``. The code sees that dtype; the arrays do not change. Arrays in `state_dict`
            or `state` always have the module's dtypes.
        groups: which mesh axes the process groups of `torch.distributed` stand for, within `jax.shard_map`:
            ``{group: "model", "name": ("data", "model")}``, with None for the default group, or a `DeviceMesh` with an
            axis for each of its dimensions; or only the axes of the default group. By default, a group stands for all
            axes of `jax.shard_map`, and the dimensions of a `DeviceMesh` for the axes of their names. See
            docs/distributed.md.
        compile: for a module or its method: the parts that ``jax.jit`` compiles, once for each signature, while the
            Python code around them runs as usual. Pass paths of modules (``""`` is the module itself), names of
            methods, modules and methods as objects, or classes of modules. To use it with a function that calls
            modules, make the function a method of a module that holds them.

    Arguments and results of the functions are trees with arrays in place of PyTorch's tensors. `rng` is a JAX key. Only
    code that draws random numbers needs it. Code that runs in PyTorch cannot draw random numbers. JAX's own
    transformations, such as `jax.jit`, accept arrays only: pass them ``t2j(tensor)``, a key instead of a
    `torch.Generator`, and the state of optimizers (`state=`); see docs/errors.md.

    Raises:
        TypeError: a tensor is sparse, quantized or nested, or has a dtype that JAX lacks; `call_torch`, `compile` or
            `groups` contains an object of another kind; `compile` is used with a function, or with `state`; or
            ``copy=False`` is used with code.
        ValueError: `on_missing`, `vmap_method`, `checks` or `loops` is unknown, or `max_paths` or `max_steps` is not a
            positive integer; `call_torch`, `compile` or `dtypes` contains an unknown name; or `dtypes` contains a
            dtype that arrays cannot stand for.

    The returned functions raise

        - NoRuleError: an operator has no rule; or, with ``on_missing="call_torch"``, it draws random numbers or returns
          a view of an argument.
        - TracedValueError: Python needs numbers from traced arrays, the shape of a result depends on them, or a
          condition or loop on traced values cannot be in the graph.

    Example:
        >>> import jax, torch
        >>> from torch2jax import t2j
        >>> model = torch.nn.Linear(3, 2)
        >>> jax_model = t2j(model)
        >>> params, buffers = jax_model.split()
        >>> x = jax.numpy.ones((4, 3))
        >>> jax.jit(jax_model)(x, state_dict=params).shape
        (4, 2)
        >>> gradients = jax.grad(lambda params: jax_model(x, state_dict=params).sum())(params)
        >>> gradients["weight"].shape
        (2, 3)
    """
    expect_no_code_of_jax(thing)
    if dtypes is not None and isinstance(thing, (torch.Tensor, torch.dtype)):
        raise TypeError(
            f"t2j got dtypes= with a {type(thing).__name__}; wanted it with a function or module, to whose "
            "arguments it applies"
        )
    return _to_jax(
        thing,
        expect_of_pytorch,
        dtypes=dtypes,
        copy=copy,
        state=state,
        on_missing=on_missing,
        call_torch=call_torch,
        vmap_method=vmap_method,
        checks=checks,
        branches=branches,
        max_paths=max_paths,
        max_steps=max_steps,
        bounds=bounds,
        loops=loops,
        compile=compile,
        groups=groups,
    )


_IN_JAX = {"on_missing": "error", "call_torch": (), "vmap_method": "sequential"}


def _to_jax(
    thing: Any,
    expect: Callable[[object], None],
    *,
    dtypes: Mapping[Any, torch.dtype] | None,
    copy: bool,
    on_missing: str,
    call_torch: Sequence[object],
    vmap_method: str,
    checks: str,
    branches: Mapping[str, bool] | None,
    max_paths: int,
    max_steps: int | None,
    bounds: Mapping[str, int] | None,
    loops: str,
    compile: Sequence[object],
    groups: Mapping[Any, str | tuple[str, ...]] | str | tuple[str, ...] | None,
    state: Any = None,
) -> object:
    """As `t2j`; `expect` refuses objects of neither framework that are not trees."""
    thing = original(thing)
    options = {"on_missing": on_missing, "call_torch": call_torch, "vmap_method": vmap_method}
    policy, rolling = BranchPolicy.of(checks, branches, max_paths, max_steps, bounds), Rolling.of(loops)
    policy = policy if groups is None else policy._replace(groups=DISTRIBUTED.axes_given(groups))

    def last_resort(module: torch.nn.Module | None) -> Any:
        """The feature that runs functions in PyTorch as the options say; None if they say nothing."""
        return None if options == _IN_JAX else BRIDGE.last_resort(module, **options)

    def parts_of(module: torch.nn.Module | None) -> Any:
        """The parts of a module that are compiled; None if the options name none."""
        return None if compile == () else COMPILED.parts_of(module, compile)

    def standing(function: Callable, first: int = 0) -> LogicalDtypes | None:
        return None if dtypes is None else LogicalDtypes(dtypes, function, first)

    if state is not None and (isinstance(thing, torch.nn.Module) or not callable(thing)):
        raise TypeError(f"t2j got state= with a {type(thing).__name__}; wanted a function that takes it first")
    if not copy and callable(thing) and not isinstance(thing, type):
        raise TypeError(
            f"t2j got copy=False with a {type(thing).__name__}; wanted tensors. The arrays of a module's state may "
            "share memory: t2j(module.state_dict(), copy=False), for state_dict="
        )
    if isinstance(thing, torch.Tensor):
        if isinstance(thing, Torchish):
            return thing.read()
        if is_wrapper(thing) and not is_distributed(thing):
            return wrapped(
                thing, lambda inner: without_values(inner) if inner.is_meta else tensor_to_array(inner, copy=copy)
            )
        if isinstance(thing, SPARSE.classes):
            return SPARSE.array_of_sparse(thing)
        if thing.layout in SPARSE_LAYOUTS and not thing.is_meta:
            return SPARSE.sparse_tensor_to_array(thing, copy=copy)
        tell_of_narrowing(thing.dtype)
        return without_values(thing) if thing.is_meta else tensor_to_array(thing, copy=copy)
    if isinstance(thing, torch.dtype):
        return dtype_t2j(thing)
    if is_device_mesh(thing):
        return mesh_of(thing)
    if isinstance(thing, torch.nn.Module):
        return TranslatedModule(
            thing,
            None,
            last_resort(thing),
            policy,
            parts_of(thing),
            standing(thing.forward),
            rolling,
        )
    if isinstance(thing, types.MethodType) and isinstance(thing.__self__, torch.nn.Module):
        module = thing.__self__
        return TranslatedModule(module, thing, last_resort(module), policy, parts_of(module), standing(thing), rolling)
    if isinstance(thing, BRIDGE.classes):
        return cast(Any, thing).function
    if compile and state is not None:
        raise TypeError(
            "t2j got compile= with state=, but such a step takes all derivatives inside: pass t2j(function, "
            "state=...) to jax.jit as a whole"
        )
    if compile and callable(thing) and not isinstance(thing, type):
        parts_of(None)
    if state is not None:
        objects = tuple(state) if isinstance(state, (tuple, list)) else (state,)
        return TRAINING.StatefulFunction(
            thing, objects, last_resort(None), policy, standing(thing, len(objects)), rolling
        )
    if callable(thing) and not isinstance(thing, type):
        return TranslatedFunction(thing, last_resort(None), policy, standing(thing), rolling)
    thing = untied(thing)
    open_up(thing)
    others: dict[str, object] = {
        "checks": checks,
        "branches": branches,
        "max_paths": max_paths,
        "max_steps": max_steps,
        "bounds": bounds,
        "loops": loops,
        "compile": compile,
        "dtypes": dtypes,
        "groups": groups,
    }
    convert = functools.partial(_to_jax, expect=stays, copy=copy, **options, **others)
    return mapped(map_results, convert, expect, thing)
