"""`t2j` and `j2t`: what becomes what."""

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

import jax
import numpy as np
import torch

from .branches.paths import BranchPolicy
from .bridge.call_jax import JaxFunction
from .bridge.last_resort import last_resort
from .calls.call import current
from .calls.framework_checks import expect_no_code_of_jax, expect_no_code_of_pytorch, expect_of_jax, expect_of_pytorch
from .calls.logical_dtypes import StandsFor
from .compiled.part import parts_of
from .modules.originals import original
from .modules.translated import TranslatedFunction, TranslatedModule
from .ops.distributed.groups import axes_told
from .tensors.containers import open_up
from .tensors.distributed import is_distributed
from .tensors.dtypes import dtype_j2t, dtype_t2j
from .tensors.interop import array_to_tensor, tensor_to_array, without_values
from .tensors.sparse_arrays import SPARSE_LAYOUTS, is_sparse_array, sparse_array_to_tensor, sparse_tensor_to_array
from .tensors.tensor import Torchish
from .tensors.ties import untied
from .tensors.trees import map_given, map_results
from .tensors.wrapped import Wrapped, is_wrapper, tensor_of, wrapped
from .tracebacks import boundary
from .tracing.rolling import Rolling
from .training.stateful import StatefulFunction
from .values.sparse import Sparse, array_of_sparse, given_sparse

__all__ = ["j2t", "t2j"]


P = ParamSpec("P")
K = TypeVar("K")


class _Unknown:
    """What no function returns. One whose result is not known to a type checker is taken to return even that."""


class _OfUnknown(Protocol[P]):
    """A module whose result is not known."""

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> _Unknown: ...


class _OfTensor(Protocol[P]):
    """A module that gives a tensor."""

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> torch.Tensor: ...


class _Options(TypedDict, total=False):
    """How code is translated; see `t2j`."""

    on_missing: str
    call_torch: Sequence[Any]
    vmap_method: str
    compile: Sequence[Any]
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
def t2j(thing: _OfUnknown[P], **options: Unpack[_Options]) -> TranslatedModule[P, Any]: ...
@overload
def t2j(thing: _OfTensor[P], **options: Unpack[_Options]) -> TranslatedModule[P, jax.Array]: ...
@overload
def t2j(thing: torch.nn.Module, **options: Unpack[_Options]) -> TranslatedModule[..., Any]: ...
@overload
def t2j(thing: JaxFunction) -> Callable: ...
@overload
def t2j(thing: Callable, *, state: Any, **options: Unpack[_Options]) -> StatefulFunction: ...
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
def t2j(thing: Any, *, copy: bool = True, state: Any = None, **options: Unpack[_Options]) -> Any: ...
@boundary
def t2j(
    thing: Any,
    *,
    copy: bool = True,
    state: Any = None,
    on_missing: str = "error",
    call_torch: Sequence[Any] = (),
    vmap_method: str = "sequential",
    compile: Sequence[Any] = (),
    checks: str = "assume",
    branches: Mapping[str, bool] | None = None,
    max_paths: int = 64,
    max_steps: int | None = None,
    bounds: Mapping[str, int] | None = None,
    loops: str = "auto",
    dtypes: Mapping[Any, torch.dtype] | None = None,
    groups: Mapping[Any, str | tuple[str, ...]] | str | tuple[str, ...] | None = None,
) -> Any:
    """Translates PyTorch code, tensors and weights to JAX.

    Args:
        thing: one of

            - a tensor: the array of the same values. While ``jax_enable_x64`` is off, 64-bit types narrow to 32 bits.
              Of one on the meta device, a `jax.ShapeDtypeStruct`. Of a sparse one, a `BCOO`, `BCSR` or
              `CompressedArray`.
            - a dtype: JAX's dtype of that name, whatever ``jax_enable_x64`` says: arrays narrow, names do not.
            - a module, or a bound method of one: a pure function
              ``f(*args, state_dict=None, rng=None, return_state_dict=False, **kwargs)``. Parameters and buffers that
              `state_dict` does not name are constants. With ``return_state_dict=True`` it gives
              ``(result, new_state_dict)``. The module itself is never changed, but by the function's method ``load``.
              Its method ``split`` gives what is trained, and the rest of the state.
            - a function: a pure function ``f(*args, rng=None, **kwargs)``.
            - such code in another shape: compiled (`torch.compile`), scripted, traced or loaded (`torch.jit`), exported
              (an ``ExportedProgram``), as the function or module that it is.
            - what `j2t` made of a JAX function: that function.
            - what ``module.state_dict()`` gives: arrays by name. A tied weight has one entry, under its first name.
            - any tree of these, also of objects that hold tensors or are to hold some, as caches: other objects with
              the same attributes, whose classes are pytrees of JAX's from then on. Other leaves stay as they are.
        copy: for tensors: give arrays memory of their own. With False they have the tensors' where the layout allows
            it. Such an array changes when PyTorch writes to the tensor (an optimizer's step, a loader that fills its
            buffer again), and what JAX still computes with it, in a call that is back already, may see the change.
        state: for a function: what it takes as its first arguments and changes, or one such thing: modules, optimizers,
            schedulers, gradient scalers. It becomes a pure function ``step(state, *args, rng=None, **kwargs)`` that
            gives ``(result, new_state)``. ``step.init(*args)`` makes the first state, a dictionary of arrays for each
            thing, and ``step.load(state)`` puts one back into the things, which otherwise are never changed.
        on_missing: what becomes of an operator without a rule in a function or module: ``"error"``, or
            ``"call_torch"`` to run it in PyTorch itself, also inside ``jax.jit``, as `torch2jax` does. What was called
            so is listed in one warning.
        call_torch: what runs in PyTorch even where it could be translated: operators (``"demo::op"``,
            ``torch.ops.demo.op``), functions of PyTorch's (``torch.special.airy_ai``), and parts of a module by name,
            as themselves, or by class. Parameters of a part are inputs of the call, and have gradients; buffers that
            it writes to come back.
        vmap_method: how JAX batches what runs in PyTorch; see `torch2jax`.
        checks: what becomes of a check of traced values, which raises an exception for some of them: ``"assume"`` that
            it finds nothing; ``"checkify"``, an error for `jax.experimental.checkify`; or ``"raise"``, an error while
            the compiled program runs.
        branches: which branch a question about traced values takes, instead of both, by where it is
            asked: ``{"file.py:12": True}``, or with the name of the function in place of the line.
        max_paths: how many ways through the code are followed, for all answers to its questions about traced values;
            with 1 such a question is an error.
        max_steps: how many turns a loop may have that ends when traced values say so, and is differentiated backwards:
            with more, the gradient is NaN. Without, only loops that Python's numbers bound have gradients; see
            docs/loops.md.
        bounds: how many there are at most where data decide how many, by where: ``{"file.py:12": 100}``, or with the
            name of the function in place of the line. Where there are more, `checks` says what becomes of it, and
            floating-point results are nan.
        loops: what becomes of turns that are alike, in a program that JAX traces: ``"auto"``, one `jax.lax.scan` of
            those that are long enough to be worth it wherever they run; ``"rolled"``, also of shorter ones, and of
            convolutions; or ``"unrolled"``, all of them stay.
        dtypes: for code that asks for 64-bit dtypes, while ``jax_enable_x64`` is off: what arrays of 32 bits among the
            arguments stand for there, ``{torch.int32: torch.int64}``, or those in one argument,
            ``{"input_ids": torch.int64}``. The code sees that dtype; the arrays are what they are. What is given as
            `state_dict` or `state` has the dtypes of the module without it.
        groups: which axes of the mesh the process groups of `torch.distributed` stand for, within `jax.shard_map`:
            ``{group: "model", "name": ("data", "model")}``, with None for the default group, or a `DeviceMesh` with an
            axis for each of its dimensions; or the axes of the default group alone. Without, they are all axes of
            `jax.shard_map`, and dimensions of a `DeviceMesh` axes of their names. See docs/distributed.md.
        compile: for a module or its method: the parts of it that ``jax.jit`` compiles, once for each signature, while
            Python around them runs as it is. Paths of modules (``""`` is the module itself), names of methods, these as
            themselves, and classes of modules. A function that calls modules becomes the method of a module that holds
            them.

    Arguments and results of the functions are trees with arrays where PyTorch has tensors. `rng` is a JAX key, needed
    only by code that draws random numbers; what runs in PyTorch may draw none.

    Raises:
        TypeError: a tensor is sparse, quantized or nested, or of a dtype that JAX lacks; `call_torch`, `compile` or
            `groups` has something of another kind; `compile` is given for a function, or with `state`; or
            ``copy=False`` for code.
        ValueError: `on_missing`, `vmap_method`, `checks` or `loops` is unknown, or `max_paths` or `max_steps` no
            positive integer; `call_torch`, `compile` or `dtypes` has a name that nothing bears; or `dtypes` has a
            dtype that arrays cannot stand for.

    The functions raise

        - NoRuleError: an operator has no rule; or, with ``on_missing="call_torch"``, it draws random numbers or gives a
          view of an argument.
        - TracedValueError: Python asks for numbers in traced arrays, the shape of a result depends on them, or both
          answers to a question about them cannot be followed.

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
        raise TypeError(f"t2j got dtypes= with a {type(thing).__name__}; wanted code, whose arguments it is about")
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


def _to_jax(
    thing,
    expect,
    *,
    dtypes,
    copy,
    on_missing,
    call_torch,
    vmap_method,
    checks,
    branches,
    max_paths,
    max_steps,
    bounds,
    loops,
    compile,
    groups,
    state=None,
) -> Any:
    """As `t2j`; `expect` refuses what is of neither side, and no tree."""
    thing = original(thing)
    options = {"on_missing": on_missing, "call_torch": call_torch, "vmap_method": vmap_method}
    policy, rolling = BranchPolicy.of(checks, branches, max_paths, max_steps, bounds), Rolling.of(loops)
    policy = policy if groups is None else policy._replace(groups=axes_told(groups))

    def standing(function: Callable, first: int = 0) -> StandsFor | None:
        return None if dtypes is None else StandsFor(dtypes, function, first)

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
        if isinstance(thing, Sparse):
            return array_of_sparse(thing)
        if thing.layout in SPARSE_LAYOUTS and not thing.is_meta:
            return sparse_tensor_to_array(thing, copy=copy)
        return without_values(thing) if thing.is_meta else tensor_to_array(thing, copy=copy)
    if isinstance(thing, torch.dtype):
        return dtype_t2j(thing)
    if isinstance(thing, torch.nn.Module):
        return TranslatedModule(
            thing,
            None,
            last_resort(thing, **options),
            policy,
            parts_of(thing, compile),
            standing(thing.forward),
            rolling,
        )
    if isinstance(thing, types.MethodType) and isinstance(thing.__self__, torch.nn.Module):
        module = thing.__self__
        return TranslatedModule(
            module, thing, last_resort(module, **options), policy, parts_of(module, compile), standing(thing), rolling
        )
    if isinstance(thing, JaxFunction):
        return thing.function
    if compile and state is not None:
        raise TypeError(
            "t2j got compile= with state=, where all derivatives are taken inside: give t2j(function, state=...) to "
            "jax.jit as a whole"
        )
    if compile and callable(thing) and not isinstance(thing, type):
        parts_of(None, compile)
    if state is not None:
        objects = tuple(state) if isinstance(state, (tuple, list)) else (state,)
        return StatefulFunction(
            thing, objects, last_resort(None, **options), policy, standing(thing, len(objects)), rolling
        )
    if callable(thing) and not isinstance(thing, type):
        return TranslatedFunction(thing, last_resort(None, **options), policy, standing(thing), rolling)
    thing = untied(thing)
    open_up(thing)
    others: dict[str, Any] = {
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
    convert = functools.partial(_to_jax, expect=_stays, copy=copy, **options, **others)
    return _mapped(map_results, convert, expect, thing)


@overload
def j2t(thing: jax.Array | np.ndarray, *, copy: bool = True) -> torch.Tensor: ...
@overload
def j2t(thing: np.dtype | type[np.generic]) -> torch.dtype: ...
@overload
def j2t(thing: Callable[P, _Unknown], *, jit: bool = True) -> JaxFunction[P, Any]: ...
@overload
def j2t(thing: Callable[P, jax.Array], *, jit: bool = True) -> JaxFunction[P, torch.Tensor]: ...
@overload
def j2t(thing: Callable[P, object], *, jit: bool = True) -> JaxFunction[P, Any]: ...
@overload
def j2t(thing: Mapping[K, jax.Array], *, copy: bool = True) -> dict[K, torch.Tensor]: ...
@overload
def j2t(thing: list[jax.Array], *, copy: bool = True) -> list[torch.Tensor]: ...
@overload
def j2t(thing: tuple[jax.Array, ...], *, copy: bool = True) -> tuple[torch.Tensor, ...]: ...
@overload
def j2t(thing: Any, *, copy: bool = True, jit: bool = True) -> Any: ...
@boundary
def j2t(thing: Any, *, copy: bool = True, jit: bool = True) -> Any:
    """Gives arrays as tensors, and JAX functions as PyTorch functions.

    Args:
        thing: one of

            - an array, also a sparse one: a tensor of the same values. Inside a translated call, traced arrays become
              tensors too.
            - a dtype: PyTorch's dtype of that name.
            - a function: a function of tensors, which `torch.autograd` and `torch.func` differentiate and batch, to any
              depth, through JAX. Its arguments and results are trees with tensors where JAX has arrays; tensors and
              arrays are traced, anything else is static. Results have memory of their own, and JAX's dtypes, but
              int64 where JAX computes in int32 with an int64 argument. Inside a translated call, `thing` itself is
              called.
            - any tree of these; other leaves stay as they are.
        copy: for arrays: give tensors memory of their own. With False they have the arrays', which JAX takes never to
            change: clone such a tensor before anything writes to it.
        jit: compile the function, once for each signature: the structure, shapes, dtypes and static leaves of its
            arguments. Without, it runs operation by operation, and its Python code may ask for values.

    Raises:
        TypeError: an array is traced, or of a dtype that PyTorch lacks.
        ValueError: an array is sharded over several devices.
        RuntimeError: an array was deleted or donated.

    The function raises what `thing` raises, and

        - TypeError: a tensor is float64 or complex128 while ``jax_enable_x64`` is off; sparse, quantized or nested; of
          a dtype that the other side lacks; or a static argument cannot be hashed.
        - OverflowError: an int64 tensor on the CPU has a value beyond 32 bits while ``jax_enable_x64`` is off.
        - RuntimeError: in the backward pass, an argument was written to since (PyTorch's own error).

    Example:
        >>> import jax, torch
        >>> from torch2jax import j2t
        >>> j2t(jax.numpy.arange(3.0))
        tensor([0., 1., 2.])
        >>> decay = j2t(lambda t, rate: jax.numpy.exp(-rate * t))
        >>> rate = torch.tensor(0.5, requires_grad=True)
        >>> decay(torch.zeros(3), rate).sum().backward()
        >>> rate.grad
        tensor(-0.)
    """
    expect_no_code_of_pytorch(thing)
    return _to_torch(thing, expect_of_jax, copy=copy, jit=jit)


def _to_torch(thing, expect, *, copy: bool, jit: bool) -> Any:
    """As `j2t`; `expect` refuses what is of neither side, and no tree."""
    if isinstance(thing, (jax.Array, np.ndarray)):
        call = current()
        return array_to_tensor(thing, copy=copy) if call is None else call.lift(thing)
    if isinstance(thing, Wrapped):
        return tensor_of(thing, functools.partial(_to_torch, expect=expect, copy=copy, jit=jit))
    if isinstance(thing, np.dtype) or (isinstance(thing, type) and issubclass(thing, np.generic)):
        return dtype_j2t(thing)
    if isinstance(thing, type(jax.numpy.float32)):
        return dtype_j2t(thing)
    if callable(thing) and not isinstance(thing, type):
        return JaxFunction(thing, jit=jit)
    if is_sparse_array(thing):
        return sparse_array_to_tensor(thing, copy=copy) if current() is None else given_sparse(thing)
    return _mapped(map_given, functools.partial(_to_torch, expect=_stays, copy=copy, jit=jit), expect, thing)


def _mapped(mapping: Callable, convert: Callable, expect: Callable[[Any], None], tree: Any) -> Any:
    """A tree with its leaves converted; a tree that is a leaf itself stays as it is, unless `expect` refuses it."""

    def converted(leaf):
        if leaf is not tree:
            return convert(leaf)
        expect(leaf)
        return leaf

    return mapping(converted, tree)


def _stays(leaf: Any) -> None:
    """What is of neither side stays as it is within a tree."""
