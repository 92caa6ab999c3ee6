"""Notes on errors of Python, PyTorch and JAX whose own messages do not say what to do.

Nothing here runs before a call has failed.
"""

import contextlib
import difflib
import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.core import Tracer

from . import BranchError, SymbolicSizeError, TracedValueError

_ARRAYS = (jax.Array, np.ndarray, torch.Tensor)
_LISTED = 12
_OF_MODULES = ("state_dict", "rng", "return_state_dict")
_NEAREST = 5


class _Failure(NamedTuple):
    """A call that has raised an error."""

    error: Exception
    message: str
    called: Any
    args: tuple
    kwargs: dict

    @property
    def module(self) -> torch.nn.Module | None:
        """The called module, which has a state; None if a function was called."""
        return getattr(self.called, "_module", None)

    def arguments(self) -> dict[str, Any]:
        """The arrays and tensors among the arguments, by the names of the parameters."""
        return {name: x for name, x in self.given().items() if isinstance(x, _ARRAYS)}

    def given(self) -> dict[str, Any]:
        """The leaves of the arguments, by the names of the parameters."""
        found = {}
        for name, value in self.bound().items():
            for path, x in jax.tree_util.tree_leaves_with_path(value):
                found[name + jax.tree_util.keystr(path)] = x
        return found

    def bound(self) -> dict[str, Any]:
        """The arguments by the names of the parameters; those that have none by their numbers."""
        try:
            signature = inspect.signature(self.called)
            bound = signature.bind_partial(*self.args, **self.kwargs).arguments
        except (TypeError, ValueError):  # it has none, or another
            return {**{f"args[{number}]": x for number, x in enumerate(self.args)}, **self.kwargs}
        found = {}
        for name, value in bound.items():
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                found.update(value)
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                first = len(self.args) - len(value)
                found.update({f"args[{first + number}]": x for number, x in enumerate(value)})
            else:
                found[name] = value
        return found


def hints_at(error: Exception, called: object, args: tuple, kwargs: dict) -> list[str]:
    """The advice on an error, as far as the error and the user's call show it.

    Args:
        called: the function that has raised it, with these arguments.
    """
    message = "".join(traceback.format_exception_only(error))  # also of one that cannot tell it
    failure = _Failure(error, message, called, args, kwargs)
    found = []
    for hint in _HINTS if not _is_explained(error) else ():
        with contextlib.suppress(Exception):  # a signature that cannot be had
            found.append(hint(failure))
            if found[-1] is not None:
                break
    with contextlib.suppress(Exception):
        found.append(_static(failure))
    return list(dict.fromkeys(x for x in found if x is not None))


def _is_explained(error: Exception) -> bool:
    """Returns True if a note of `explain_function_of_jax` says what to do."""
    return any(str(note).startswith(_OF_JAX) for note in getattr(error, "__notes__", ()))


_OF_JAX = "The function given to j2t "
_TAKES_VALUE = ("Concretization", "TracerBoolConversion", "TracerArrayConversion", "TracerIntegerConversion")


def explain_function_of_jax(error: Exception, *, is_compiled: bool) -> None:
    """Notes what to do where a JAX function, given to `j2t`, fails among arrays and tensors.

    Args:
        is_compiled: `j2t` compiles it.
    """
    if _is_explained(error) or isinstance(error, TracedValueError):
        return
    if not is_compiled and type(error).__name__.startswith(_TAKES_VALUE):
        error.add_note(
            f"{_OF_JAX}got traced arrays, as jax.jit, grad and vmap around the call give them, which have no values: "
            "write it with jnp.where or jax.lax.cond, or call it outside of these"
        )
    elif is_compiled and type(error).__name__.startswith(_TAKES_VALUE):
        error.add_note(
            f"{_OF_JAX}is compiled, so its arguments are traced. j2t(function, jit=False) runs it operation by "
            "operation, where it may ask for values; or give it a Python number, which is "
            "known where the function asks for it"
        )
    elif _OF_TENSOR_AND_ARRAY.search(str(error)):
        error.add_note(
            f"{_OF_JAX}computes with arrays, and has met a tensor: does it close over one? Give it as an argument, "
            "j2t(function)(x, tensor)"
        )


_OF_TENSOR_AND_ARRAY = re.compile(
    r"Torchish|'Tensor' and '[\w.]*(ArrayImpl|Tracer)'|(ArrayImpl|Tracer)' and 'Tensor'|torch\.Tensor|"
    r"must be Tensor, not \w*(ArrayImpl|Tracer)"
)


def _state_by_name(failure: _Failure) -> str | None:
    """Parameters that are given as in Flax: before the arguments."""
    if failure.module is None:
        return None
    names = set(failure.module.state_dict(keep_vars=True))
    for number, value in enumerate(failure.args):
        if isinstance(value, Mapping) and value and names.issuperset(value):
            return (
                f"Argument {number} is a state of the module; wanted that by name, behind the arguments of forward: "
                f"t2j({type(failure.module).__name__}(...))(*args, state_dict=state)"
            )
    return None


def _state_first(failure: _Failure) -> str | None:
    """A step with a state that is called without it."""
    if hasattr(failure.called, "_objects") and not (failure.args and isinstance(failure.args[0], Mapping)):
        name = failure.called.__name__
        return (
            f"Wanted the state as the first argument: state = {name}.init(*args), and from then on "
            f"result, state = {name}(state, *args)"
        )
    return None


def _objects_in_order(failure: _Failure) -> str | None:
    """A step whose objects are not in the order in which its function takes them."""
    step = next((x for x in (failure.called, *failure.args[:1]) if hasattr(x, "_objects")), None)
    objects = {} if step is None else step._named
    if not isinstance(failure.error, (AttributeError, TypeError)):
        return None
    if len(objects) > 1 and any(f"'{type(thing).__name__}' object" in failure.message for thing in objects.values()):
        given = ", ".join(f"{name} is a {type(thing).__name__}" for name, thing in objects.items())
        return f"The objects in state= are in the order of the function's parameters: {given}"
    return None


def _branches_of_step(failure: _Failure) -> str | None:
    """A step that changes its objects on one side of a condition only, as one that accumulates gradients."""
    step = next((x for x in (failure.called, *failure.args[:1]) if hasattr(x, "_objects")), None)
    if step is None or not isinstance(failure.error, BranchError):
        return None
    return (
        "A condition on data decides what becomes of the objects in state=. Make the condition a Python value, "
        "jax.jit(step, static_argnames=...), and call step.init(*args) with arguments that change everything; see "
        "docs/training.md on accumulated gradients"
    )


def _examples(failure: _Failure) -> str | None:
    """A bridge that is built without an example for each argument."""
    if getattr(failure.called, "__name__", "") != "torch2jax" or not failure.args:
        return None
    signature = inspect.signature(failure.args[0])
    try:
        signature.bind(*failure.args[1:], **(failure.kwargs.get("example_kw") or {}))
    except TypeError:
        return (
            f"Wanted an example for each of the arguments {_listed(signature)}: torch2jax(function, *examples), such "
            "as arrays, or jax.ShapeDtypeStruct((2, 3), 'float32')"
        )
    return None


def _fitting_arguments(failure: _Failure) -> str | None:
    """Arguments that the function does not take."""
    if not isinstance(failure.error, TypeError):
        return None
    signature = inspect.signature(failure.called)
    try:
        signature.bind(*failure.args, **failure.kwargs)
    except TypeError:
        taken = list(signature.parameters)
        unknown = [name for name in failure.kwargs if name not in taken]
        keys = [number for number, x in enumerate(failure.args) if _is_key(x)]
        wanted = f"Wanted the arguments {_listed(signature)}"
        return "\n".join([*_on_keywords(failure, unknown, taken), *_on_keys(keys), wanted])
    return None


def _on_keywords(failure: _Failure, unknown: list[str], taken: list[str]) -> Iterable[str]:
    for name in unknown:
        if failure.module is not None and _is_state(failure, name):
            yield f"Got {name}=, which is a state of the module; wanted that as state_dict={name}"
            continue
        near = difflib.get_close_matches(name, [*taken, *_OF_MODULES], n=1)
        if getattr(failure.called, "__name__", "") == "t2j" and near and near[0] in _OF_MODULES:
            yield (
                f"Got {name}=, where {near[0]}= is an argument of the function that t2j returns: "
                f"t2j(module)(*args, {near[0]}=...)"
            )
            continue
        if name in ("state_dict", "return_state_dict"):
            yield (
                f"Got {name}= for a function, which has no state of its own: translate the module that has it, "
                "t2j(module)(*args, state_dict=state); or let the function take the state and call "
                "torch.func.functional_call(module, state, args)"
            )
            continue
        near = difflib.get_close_matches(name, taken, n=1)
        yield f"Got {name}=" + (
            f"; did you mean {near[0]}=?" if near else ", which is none of its parameters: leave it out"
        )


def _is_state(failure: _Failure, name: str) -> bool:
    """True if a keyword has a state of the module, also as Flax has it, below "params"; or a name of one."""
    value, module = failure.kwargs[name], failure.module
    if not isinstance(value, Mapping) or module is None:
        return False
    inner = value.get("params", value)
    keys = set(inner) if isinstance(inner, Mapping) else set()
    return name in ("params", "weights", "variables", "state") or bool(keys & set(module.state_dict(keep_vars=True)))


def _on_keys(numbers: list[int]) -> Iterable[str]:
    return (f"Argument {number} is a random key; wanted that by name: rng=key" for number in numbers)


def _listed(signature: inspect.Signature) -> str:
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    names = [
        marks.get(x.kind, "") + name + "=" * (x.default is not x.empty) for name, x in signature.parameters.items()
    ]
    return f"({', '.join(names[:_LISTED])}{', ...' if len(names) > _LISTED else ''})"


def _is_key(value: object) -> bool:
    return isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def _keys_by_name(failure: _Failure) -> str | None:
    """A random key where an array is wanted."""
    if isinstance(failure.error, TypeError) and re.search("JAX dtype key<", failure.message):
        return "\n".join(_on_keys([i for i, x in enumerate(failure.args) if _is_key(x)])) or None
    return None


def _mixed(failure: _Failure) -> str | None:
    """Functions and arrays of JAX's in code that computes with tensors."""
    if not isinstance(failure.error, TypeError):
        return None
    if "Torchish" in failure.message:
        return (
            "A function of JAX got a tensor (torch.Torchish) of translated code; wanted an array. Give it by j2t, as "
            "in j2t(jnp.sin)(tensor), or call one of PyTorch's"
        )
    tensors = [name for name, x in failure.arguments().items() if isinstance(x, torch.Tensor)]
    if "torch.Tensor" in failure.message and tensors:
        return f"A function of arrays got {tensors[0]}, a tensor of PyTorch; wanted an array: t2j(tensor)"
    others = {name: x for name, x in failure.given().items() if not isinstance(x, _ARRAYS)}
    if "Error interpreting argument to" in failure.message and others:
        name, value = next(iter(others.items()))
        return (
            f"A function of arrays got a {type(value).__name__} for {name}; wanted an array: bind other values before, "
            "with functools.partial"
        )
    if re.search(r"must be Tensor, not (list|tuple|int|float|bool|complex)\b", failure.message) and others:
        name = next(iter(others)).partition("[")[0]
        return f"Wanted an array for {name}: jnp.asarray({name}). JAX takes lists for trees"
    if re.search(r"Tensor.*\b(ArrayImpl|\w+Tracer)\b|(ArrayImpl|Tracer)\b.*Tensor", failure.message):
        return (
            "A function of PyTorch got an array of JAX; wanted a tensor: j2t(array) is one, in translated code too. "
            "An argument of the translated function is a tensor there already"
        )
    return None


def _torchvision(failure: _Failure) -> str | None:
    """A torchvision without its compiled operators: its own Python code stands in, and asks for values."""
    steps = traceback.walk_tb(failure.error.__traceback__)
    runs = any("/torchvision/" in frame.f_code.co_filename.replace("\\", "/") for frame, _ in steps)
    if not (runs or "torchvision::" in failure.message) or hasattr(torch.ops.torchvision, "roi_align"):
        return None
    return (
        "torchvision's compiled operators are missing: it is of another build than torch. `torch2jax doctor` says how "
        "to install both from one index"
    )


def _strings(failure: _Failure) -> str | None:
    """A text for a model of tokens."""
    given = [name for name, x in failure.given().items() if isinstance(x, str)]
    found = re.search(r"not str\b|'str' object has no attribute", failure.message)
    if not given or not found or not isinstance(failure.error, (TypeError, AttributeError)):
        return None
    return (
        f"Got a string for {given[0]}, which the code computes with; wanted an array. A tokenizer makes one of a "
        'string: tokenizer(text, return_tensors="np")["input_ids"]'
    )


def _mapping(failure: _Failure) -> str | None:
    """The advice on a dictionary as one argument, as a tokenizer or a data loader gives it."""
    if not isinstance(failure.error, (TypeError, AttributeError)):
        return None
    try:
        bound = inspect.signature(failure.called).bind_partial(*failure.args).arguments
    except (TypeError, ValueError):
        return None
    taken = set(inspect.signature(failure.called).parameters)
    for name, value in bound.items():
        if isinstance(value, Mapping) and value and (taken & set(value) or "not dict" in failure.message):
            keys = ", ".join(map(repr, list(value)[:_NEAREST]))
            return (
                f"Got a {type(value).__name__} of {keys} for {name}; wanted an array. If its names are those of "
                "arguments, give it by these: t2j(module)(**batch)"
            )
    return None


_CHANNELS = re.compile(r"expected input\[([\d, ]+)\] to have (\d+) channels, but got (\d+) channels")


def _channels(failure: _Failure) -> str | None:
    """Images as JAX's libraries have them, with their channels last."""
    found = _CHANNELS.search(failure.message)
    shape = [int(size) for size in found[1].split(",")] if found else []
    if not found or len(shape) < 3 or shape[-1] != int(found[2]):
        return None
    last = len(shape) - 1
    return (
        f"The input of shape {tuple(shape)} has its channels last; wanted them behind the batch, as PyTorch has them: "
        f"jnp.moveaxis(x, {last}, 1), or of one image without a batch jnp.moveaxis(x, -1, 0)"
    )


_DEVICES = re.compile(r"at start of device string: (\w+)")


def _devices_and_dtypes(failure: _Failure) -> str | None:
    """Names, devices and dtypes of JAX's in translated code."""
    found = _DEVICES.search(failure.message)
    if found:
        return (
            f"Got the device {found[1]!r}; wanted a name of PyTorch's, as 'cuda'. Where translated code runs, the "
            "arrays say: jax.device_put(x, jax.devices()[0]), and the code needs no name for it"
        )
    if not isinstance(failure.error, TypeError):
        return None
    if re.search(r"got \(.*\bDevice\b.*\)|not Device\b", failure.message):
        return (
            "Got a device of JAX's where PyTorch wants its own. Where translated code runs, the arrays say: "
            "jax.device_put(x, device) before the call"
        )
    if "_ScalarMeta" in failure.message:
        return "Got a dtype of JAX's, as jnp.float32; wanted PyTorch's: torch.float32, or j2t(jnp.float32)"
    return None


def _wrapped_tensors(failure: _Failure) -> str | None:
    """A translated function within transformations of PyTorch's that are outside of it."""
    words = ("data pointer of Tensor that doesn't have storage", "storage of BatchedTensorImpl", "TensorWrapper")
    if any(word in failure.message for word in words):
        return (
            "Got a tensor that torch.func or torch.vmap transforms; wanted an array. t2j's function is JAX's: take "
            "jax.grad or jax.vmap of it; or transform the PyTorch code itself, and translate that: "
            "t2j(torch.func.grad(function))"
        )
    return None


def _static(failure: _Failure) -> str | None:
    """Python numbers and flags that `jax.jit` has made arrays."""
    found = re.search(
        r"must be \w+.*, not Tensor|invalid combination of arguments|type list: \[Tensor", failure.message
    )
    dtypes = {name: _dtype_of_numbers(x, takes_floats=bool(found)) for name, x in failure.bound().items()}
    dtypes = {name: dtype for name, dtype in dtypes.items() if dtype is not None and name not in _OF_MODULES}
    if not dtypes:
        return None
    names = tuple([name for name in dtypes if name.isidentifier()])
    positions = tuple([int(name[len("args[") : -1]) for name in dtypes if not name.isidentifier()])
    ways = [f"static_argnames={names}"] * bool(names) + [f"static_argnums={positions}"] * bool(positions)
    listed = ", ".join(f"{name} ({dtype})" for name, dtype in dtypes.items())
    return (
        f"Traced arguments: {listed}. Where the code wants a Python number or flag, let jax.jit leave it as it is: "
        f"jax.jit(function, {', '.join(ways)}); or bind it before, with functools.partial"
    )


def _dtype_of_numbers(value: Any, *, takes_floats: bool) -> str | None:
    """The dtype of an argument that may have been a Python number, a flag, or a tuple of them; else None."""
    parts = value if isinstance(value, (list, tuple)) else [value]
    if not parts or not all(_may_be_of_jit(x) for x in parts):
        return None
    if not takes_floats and any(jnp.issubdtype(x.dtype, jnp.inexact) for x in parts):
        return None
    dtypes = ", ".join(dict.fromkeys(str(x.dtype) for x in parts))
    return dtypes if parts is not value else f"{type(value).__name__} of {dtypes}"


def _may_be_of_jit(value: object) -> bool:
    """Returns True if a value is traced, has no dimensions, and is no example of `jax.vmap`, as flags are."""
    return isinstance(value, Tracer) and value.ndim == 0 and not _is_key(value) and not hasattr(value, "batch_dim")


_DTYPES = {
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
}
_OF_DTYPES = re.compile(
    r"(?i)\b(?:torch\.|c10::)?(double|float|half|long|int|short|char|byte|bfloat16|bool|(?:u?int|float|complex)\d+)"
    r"(?:tensor)?\b"
)


def _dtypes(failure: _Failure) -> str | None:
    """Arguments and parameters of dtypes that do not go together."""
    if not isinstance(failure.error, (RuntimeError, TypeError, ValueError)):
        return None
    named = {_DTYPES.get(name, name) for name in map(str.lower, _OF_DTYPES.findall(failure.message))}
    if len(named) < 2:
        return None
    given = {name: str(x.dtype).removeprefix("torch.") for name, x in failure.arguments().items()}
    given = {name: dtype for name, dtype in given.items() if dtype in named and not name.startswith("state_dict")}
    state = _dtype_of_state(failure)
    if state in named:
        given = {name: dtype for name, dtype in given.items() if dtype != state}
    if not given or (state not in named and len(set(given.values())) == 1):
        return None
    listed = ", ".join(f"{name} is {dtype}" for name, dtype in given.items())
    wanted = state if state in named else "float32" if "float32" in given.values() else list(given.values())[-1]
    name = next((name for name, dtype in given.items() if dtype != wanted), next(iter(given)))
    way = f"as in {name}.astype({wanted!r})"
    if state not in named:
        return f"Of the arguments {listed}: convert those that differ, {way}"
    if "int" not in given[name]:
        way += f" or module.to(torch.{given[name]})"
    return f"{listed}, and the module's parameters are {state}: convert one of them, {way}"


_WIDE = {"int64": "int32", "float64": "float32", "complex128": "complex64"}


def _wide(failure: _Failure) -> str | None:
    """64-bit dtypes that the code has or wants, where arrays have 32 bits."""
    x64: bool = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    if x64 or isinstance(failure.error, TracedValueError) or not re.search("(?i)type|tensor|torch", failure.message):
        return None
    named = {_DTYPES.get(name, name) for name in map(str.lower, _OF_DTYPES.findall(failure.message))}
    for wide, narrow in _WIDE.items():
        arrays = {name: x for name, x in failure.arguments().items() if isinstance(x, (jax.Array, np.ndarray))}
        names = [name for name, x in arrays.items() if x.dtype == narrow and not name.startswith("state_dict")]
        if wide in named and names:
            module = ", or module.to(torch.float32)" if wide == "float64" and failure.module is not None else ""
            return (
                f"While jax_enable_x64 is off, arrays have 32 bits: {names[0]} is {narrow}. If it stands for {wide}, "
                f"let the code see that: t2j(..., dtypes={{torch.{narrow}: torch.{wide}}}){module}; or let JAX have 64 "
                "bits: jax.config.update('jax_enable_x64', True)"
            )
    return None


def _dtype_of_state(failure: _Failure) -> str | None:
    """The dtype of a module's parameters of floating point, if that is one."""
    if failure.module is None:
        return None
    own = dict(failure.module.named_parameters())
    state = {**own, **(failure.kwargs.get("state_dict") or {})}
    dtypes = {str(x.dtype).removeprefix("torch.") for name, x in state.items() if name in own}
    return dtypes.pop() if len(dtypes) == 1 else None


_OF_JAGGED = (
    "Of a jagged tensor, give it x.values(), x.to_padded_tensor(0.0), or each of the rows, x.unbind(): docs/sparse.md "
    "lists what they can do"
)
_OF_NUMBER = (
    "What .item() gives of a traced tensor has no value before the compiled program runs. Python's operators and "
    "`math` take it; for anything else return it from the function, and go on with it outside of jax.jit"
)
_ADVICE = {
    **dict.fromkeys(("'Item'", "from Item", "component: Item", "is not JSON serializable"), _OF_NUMBER),
    "for NestedTensor": _OF_JAGGED,
    "for nested tensors": _OF_JAGGED,
    "for jagged NT": _OF_JAGGED,
    "Expected more than 1 value per channel when training": (
        "Batch norm in training mode takes its statistics of the batch: give it more than one example, or call "
        "module.eval() before t2j(module)"
    ),
    "'NestedIntNode' object has no attribute": (
        "The ragged size of a jagged tensor is no number, but stands for the lengths of its rows: these are "
        "x.offsets().diff(), and x.to_padded_tensor(0.0).shape has numbers"
    ),
    "format: a real number is required, not Tensor": (
        "Under jax.jit a text has no values to show. Print them when they are there: j2t(jax.debug.print)('{}', tensor)"
    ),
    ".numpy() is not supported for tensor subclasses": (
        "The tensor holds others: ask these, as x.values().numpy() of a jagged tensor"
    ),
    "one of the following scalar types: Long, Int": "Indices are whole numbers: give array.astype('int32')",
    "no autograd formula was registered": (
        "Give the operator a derivative, torch.library.register_autograd(name, backward); or write a rule, whose "
        "derivative is JAX's: @torch2jax.implements(name). torch2jax(function, ...) runs it in PyTorch, and needs "
        "register_autograd too"
    ),
    "a leaf Variable that requires grad is being used in an in-place operation": (
        "Write to parameters within torch.no_grad(), as in PyTorch, or to a copy, parameter.clone(); the function "
        "gives what it changes back with t2j(function, state=module)"
    ),
}


def _of_pytorch(failure: _Failure) -> str | None:
    """The advice on an error of PyTorch's own, found by its words."""
    return next((advice for words, advice in _ADVICE.items() if words in failure.message), None)


@contextlib.contextmanager
def advised() -> Iterator[None]:
    """A context whose errors of PyTorch's get the same notes where no call of the user's is there to add them."""
    try:
        yield
    except RuntimeError as error:
        advice = next((advice for words, advice in _ADVICE.items() if words in str(error)), None)
        if advice is not None and advice not in getattr(error, "__notes__", ()):
            error.add_note(advice)
        raise


_HINTS: tuple[Callable[[_Failure], str | None], ...] = (
    _state_by_name,
    _state_first,
    _objects_in_order,
    _branches_of_step,
    _examples,
    _fitting_arguments,
    _keys_by_name,
    _devices_and_dtypes,
    _wrapped_tensors,
    _torchvision,
    _strings,
    _mapping,
    _channels,
    _mixed,
    _of_pytorch,
    _wide,
    _dtypes,
)


_AXES_HINT = (
    "PyTorch's code says nothing of shardings, which JAX's types have on a mesh with explicit axes. Give the function "
    "that calls it to jax.sharding.auto_axes(function, out_sharding=...), or make the mesh with "
    "axis_types=(jax.sharding.AxisType.Auto,) for each axis"
)


def hint_at_axes(error: Exception) -> None:
    """Adds advice on JAX's sharded types to an error about them."""
    if type(error).__name__ == "ShardingTypeError" and _AXES_HINT not in getattr(error, "__notes__", ()):
        error.add_note(_AXES_HINT)


def hint_at_symbols(error: Exception) -> None:
    """Says how to export symbolic sizes, if an error shows that PyTorch received one.

    Raises:
        SymbolicSizeError: it does.
    """
    if isinstance(error, TypeError) and "_DimExpr" in str(error):
        raise SymbolicSizeError from None
