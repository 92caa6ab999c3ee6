"""A model as a file: its program, and its weights beside it."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import torch

from ..modules.convert import t2j
from ..modules.exporting.export import PLATFORMS, export
from ..runtime.errors.locations import how_to_install
from ..tensors.trees import map_arguments
from .models import SpecError, Subject, first_line, translating
from .trial import set_mode

_ANY_SIZE = "2"  # of a symbol, where it does not matter
_NEEDED = ("flatbuffers", "safetensors")


@dataclasses.dataclass(frozen=True)
class Written:
    """The files that were written."""

    program: Path
    weights: Path | None
    tensors: int
    call: str
    """The expression that calls the program."""


def write(
    subject: Subject,
    path: Path,
    platforms: Sequence[str],
    *,
    shapes: Sequence[str] = (),
    constraints: Sequence[str] = (),
    grad: bool = False,
    step: Callable[[str], None] = lambda _: None,
) -> Written:
    """Exports a model in evaluation mode to `path`, and its state dict to a ``.safetensors`` file of the same name.

    Args:
        subject: the model and its inputs, which give the shapes and dtypes of the program.
        platforms: the platforms of the program.
        shapes: the shapes of the inputs, such as ``b,3,224,224``, if some are symbolic.
        constraints: constraints on the symbols, such as ``b >= 2``.
        grad: whether the file also holds the gradient.
        step: a function that receives progress messages.

    Raises:
        TranslationError: the model cannot be exported.
        SpecError: a platform is unknown, a library is missing, a shape or constraint cannot be read, or `path` cannot
            be written.
    """
    unknown = [name for name in platforms if name not in PLATFORMS]
    if unknown:
        raise SpecError(f"unknown platform {unknown[0]!r}: wanted some of {', '.join(PLATFORMS)}")
    _expect_libraries()
    if path.suffix == ".safetensors":
        raise SpecError(f"{path} is to hold the program; its weights go to a .safetensors file beside it")
    _expect_writable_path(path)
    module = subject.module
    weights = {} if module is None else _weights(module)
    args, kwargs = map_arguments(_to_jax, (subject.args, subject.kwargs))
    if constraints or any(map(is_symbolic, shapes)):
        args, kwargs = _with_symbols((args, kwargs), shapes, constraints)
    state = {"state_dict": t2j(weights)} if weights else {}
    step(f"exporting {subject.name}")
    with _in_evaluation(subject), translating(f"{subject.name} cannot be exported"):
        exported = export(t2j(subject.target, branches=subject.branches), platforms=platforms)(*args, **kwargs, **state)
    step(f"writing {path}")
    beside = path.with_suffix(".safetensors") if weights else None
    try:
        path.write_bytes(exported.serialize(vjp_order=int(grad)))
        if beside is not None:
            _save(weights, beside)
    except OSError as error:
        raise SpecError(f"{error.filename or path} cannot be written: {error.strerror or error}") from None
    return Written(path, beside, len(weights), _call(args, kwargs, bool(weights)))


def _expect_writable_path(path: Path) -> None:
    """Refuses a path that no file can have, before the model is exported."""
    if path.is_dir():
        raise SpecError(f"{path} is a folder: wanted a file to write, such as {path / 'model.jaxexport'}")
    if not path.parent.is_dir():
        raise SpecError(f"{path.parent} is no folder: make it, or name a file in another one")


def is_symbolic(shape: str) -> bool:
    """Returns True if a shape such as ``b,3,224,224`` has sizes that are no numbers."""
    return with_numbers(shape) != shape


def with_numbers(shape: str) -> str:
    """A shape with numbers in place of symbols."""
    sizes, colon, dtype = shape.partition(":")
    numbers = [_ANY_SIZE if any(map(str.isalpha, size)) else size for size in sizes.split(",")]
    return ",".join(numbers) + colon + dtype


def _with_symbols(arguments: tuple[object, ...], shapes: Sequence[str], constraints: Sequence[str]):
    try:
        scope = jax.export.SymbolicScope(constraints)
        symbolic = [jax.export.symbolic_shape(shape.partition(":")[0], scope=scope) for shape in shapes]
    except Exception as error:
        raise SpecError(f"bad shape or constraint: {first_line(error)}") from None
    remaining = iter(symbolic)

    def abstract(leaf: object):
        return jax.ShapeDtypeStruct(next(remaining), leaf.dtype) if isinstance(leaf, jax.Array) else leaf

    return map_arguments(abstract, arguments)


@contextlib.contextmanager
def _in_evaluation(subject: Subject):
    """The module in evaluation mode, for now: it may be in use."""
    modes = {part: part.training for part in subject.module.modules()} if subject.module is not None else {}
    if subject.module is not None:
        set_mode(subject.module, False, subject.name)
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


def _expect_libraries() -> None:
    for name in _NEEDED:
        try:
            __import__(name)
        except ModuleNotFoundError:
            raise SpecError(f"export needs {name}: {how_to_install('export')}") from None


def _to_jax(leaf: object):
    return t2j(leaf.detach()) if isinstance(leaf, torch.Tensor) else leaf


def _weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The tensors of the state dict, each under the first of its names."""
    found: dict[int, str] = {}
    state = module.state_dict(keep_vars=True)
    for name, tensor in state.items():
        if isinstance(tensor, torch.Tensor):
            found.setdefault(id(tensor), name)
    return {name: state[name].detach() for name in found.values()}


def _save(weights: dict[str, torch.Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    def alone(tensor: torch.Tensor) -> torch.Tensor:  # the format knows no memory that is shared
        tensor = tensor.contiguous()
        return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()

    save_file({name: alone(tensor) for name, tensor in weights.items()}, path)


def _call(args: tuple, kwargs: dict, has_weights: bool) -> str:
    names = [f"x{index}" if index else "x" for index in range(len(args))]
    names += [f"{name}={name}" for name, value in kwargs.items() if hasattr(value, "shape")]
    return f"call({', '.join([*names, *(['state_dict=state'] if has_weights else [])])})"
