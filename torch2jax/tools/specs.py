"""Builds a model from a spec such as ``torchvision:resnet18``; nothing is downloaded."""

import importlib
import inspect
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..hints import how_to_install, nearest
from .hub import build_transformers
from .subject import SpecError, Subject, read_inputs, tensors_of_shapes
from .vision import build_timm, build_torchvision, define_vision_operators
from .weights import cast, load_weights

__all__ = ["build", "subject_of"]

_LIBRARIES: dict[str, Callable[[str], Subject]] = {
    "timm": build_timm,
    "torchvision": build_torchvision,
    "transformers": build_transformers,
}

_BROKEN_PAIR = (
    "torchvision's compiled library does not load beside this PyTorch, and its operators do not run in PyTorch: "
    "install both from one index, in versions that belong together"
)


def build(
    spec: str,
    *,
    shapes: Sequence[str] = (),
    inputs: str | Path | None = None,
    weights: str | Path | None = None,
    dtype: str | None = None,
    allow_pickle: bool = False,
) -> Subject:
    """Builds the model of a spec, such as ``torchvision:resnet18`` or ``my_package.models:make``. Downloads nothing.

    Args:
        spec: what to build, as on the command line.
        shapes: the shapes of random inputs, such as ``1,3,224,224`` or ``1,16:int64``; by default the model's own
            examples.
        inputs: a file that holds the inputs instead.
        weights: a file or folder that holds the weights, as for `torch2jax.load_state`; by default they are random.
        dtype: the dtype to cast the module and its floating-point inputs to, such as ``bfloat16``.
        allow_pickle: whether to load a pickle, which can run any code.

    Raises:
        SpecError: with a message of one line.
    """
    started = time.perf_counter()
    args, kwargs = tensors_of_shapes(shapes), {}
    if inputs is not None:
        if shapes:
            raise SpecError("give --shape or --input, not both")
        args, kwargs = read_inputs(Path(inputs))
    torch.manual_seed(0)
    subject = _build_target(spec, allow_pickle, bool(args or kwargs))
    if args or kwargs:
        subject.args, subject.kwargs = _fill(subject, args, kwargs)
    if not subject.args and not subject.kwargs:
        raise SpecError(f"{spec} has no example inputs of its own: give --shape or --input")
    if weights is not None:
        load_weights(subject, Path(weights))
    if dtype is not None:
        cast(subject, dtype)
    subject.seconds = time.perf_counter() - started
    return subject


def subject_of(
    target: Subject | torch.nn.Module | Callable | str, args: tuple = (), kwargs: Mapping[str, Any] | None = None
) -> Subject:
    """What a tool is given, as a model with its inputs.

    Raises:
        SpecError: it is none of these, or there are no inputs.
    """
    if isinstance(target, Subject):
        return target
    if isinstance(target, str):
        subject = build(target) if not (args or kwargs) else _build_target(target, False, True)
    elif callable(target):
        subject = Subject(getattr(target, "__qualname__", type(target).__name__), target)
    else:
        raise SpecError(f"got a {type(target).__name__}; wanted a module, a function of tensors, or a spec")
    if args or kwargs:
        subject.args, subject.kwargs = tuple(args), dict(kwargs or {})
    if not subject.args and not subject.kwargs:
        raise SpecError(f"got no inputs for {subject.name}: give them as args=(tensor,), or by name as kwargs={{...}}")
    return subject


def _fill(subject: Subject, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The given arguments; a model whose inputs go by name takes positional ones in that order."""
    if kwargs or not subject.kwargs:
        return args, kwargs
    if len(args) > len(subject.kwargs):
        raise SpecError(f"got {len(args)} inputs; {subject.name} takes {', '.join(subject.kwargs)}")
    filled = {}
    for name, value in zip(subject.kwargs, args, strict=False):
        wanted = subject.kwargs[name].dtype
        filled[name] = value if value.dtype == wanted else value.abs().to(wanted)
    return (), filled


def _build_target(spec: str, allow_pickle: bool, has_inputs: bool) -> Subject:
    library, _, name = spec.partition(":")
    if library in _LIBRARIES and name:
        is_broken = define_vision_operators()
        try:
            subject = _LIBRARIES[library](name)
        except ModuleNotFoundError as error:
            raise SpecError(f"{spec} needs {error.name or library}: {how_to_install('models')}") from None
        subject.note = _BROKEN_PAIR if is_broken and library == "torchvision" else ""
        return subject
    path = Path(spec)
    if path.suffix == ".pt2":
        return _exported(path)
    if path.suffix in (".pt", ".pth", ".pkl"):
        return _pickled(path, allow_pickle)
    if library and name:
        return _imported(library, name, has_inputs)
    raise SpecError(
        f"cannot tell what {spec!r} is: wanted torchvision:NAME, timm:NAME, transformers:CONFIG, "
        "package.module:callable, or a .pt2 or .pt file"
    )


def _exported(path: Path) -> Subject:
    _must_exist(path)
    try:
        program = torch.export.load(path)
    except Exception as error:
        raise SpecError(f"{path} is no exported program: {type(error).__name__}") from None
    args, kwargs = program.example_inputs or ((), {})
    return Subject(str(path), program.module(), tuple(args), dict(kwargs))


def _pickled(path: Path, allow_pickle: bool) -> Subject:
    _must_exist(path)
    if not allow_pickle:
        raise SpecError(f"{path} may be a pickle, which can run any code: pass --allow-pickle if you trust it")
    try:
        target = torch.load(path, weights_only=False, map_location="cpu")
    except Exception as error:
        raise SpecError(f"cannot load {path}: {type(error).__name__}") from None
    if not isinstance(target, torch.nn.Module):
        raise SpecError(f"{path} holds {type(target).__name__}; wanted a module (not its state_dict)")
    return Subject(str(path), target)


def _must_exist(path: Path) -> None:
    if not path.is_file():
        raise SpecError(f"no file {path}")


def _imported(module: str, name: str, has_inputs: bool) -> Subject:
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise SpecError(_without(error.name or module, module)) from None
    for part in name.split("."):
        if not hasattr(found, part):
            raise SpecError(f"{module} has no {name}{nearest(part, _public(found))}")
        found = getattr(found, part)
    if not callable(found):
        raise SpecError(f"{module}:{name} is {type(found).__name__}; wanted a module, a function, or a factory")
    return _called(f"{module}:{name}", found, has_inputs)


def _without(missing: str, module: str) -> str:
    """What to say of a module that is not there: the one that is asked for, or one that it imports."""
    if not f"{module}.".startswith(f"{missing}."):
        return f"no module named {missing}, which {module} imports"
    if module.endswith(".py"):
        return f"no module named {module}: a module is named without .py and with dots, as {_dotted(module)}:NAME"
    return (
        f"no module named {missing}: modules are looked for in {Path.cwd()} and in this environment; run the command "
        "in the folder that holds it, or name that by PYTHONPATH"
    )


def _dotted(path: str) -> str:
    return path.removesuffix(".py").removeprefix("./").replace("/", ".")


def _public(found: object) -> list[str]:
    return [name for name in dir(found) if not name.startswith("_")]


def _called(name: str, found: Callable, has_inputs: bool) -> Subject:
    """A module as it is; a class or a function without parameters is called for the module (and its inputs)."""
    if isinstance(found, torch.nn.Module):
        return Subject(name, found)
    if not isinstance(found, type) and (_requires_arguments(found) or (has_inputs and _parameters(found))):
        return Subject(name, found)
    try:
        made = found()
    except TypeError as error:
        raise SpecError(f"{name} cannot be called without arguments: {error}") from None
    if isinstance(made, tuple) and made and isinstance(made[0], torch.nn.Module):
        inputs = made[1] if len(made) == 2 and isinstance(made[1], (tuple, dict)) else made[1:]
        return Subject(name, made[0], kwargs=inputs) if isinstance(inputs, dict) else Subject(name, made[0], inputs)
    if isinstance(made, torch.nn.Module):
        return Subject(name, made)
    raise SpecError(f"{name}() gave {type(made).__name__}; wanted a module, or a tuple of a module and its inputs")


def _parameters(function: Callable) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:  # compiled functions tell no signature
        return [inspect.Parameter("input", inspect.Parameter.POSITIONAL_ONLY)]


def _requires_arguments(function: Callable) -> bool:
    return any(
        parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        for parameter in _parameters(function)
    )
