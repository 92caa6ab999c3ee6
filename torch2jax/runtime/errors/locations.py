"""The lines, objects and names of the user's that messages name, and the nearest names to unknown ones.

The search for what keeps an object alive begins when the error is raised.

Of unknown names, docs/coming-from.md has the table of the packages that connect PyTorch and JAX.
"""

import difflib
import dis
import gc
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import optree
import torch

from ..caches import remembered


def folders_of(*paths: Any) -> tuple[str, ...]:
    """Folders as frames may name them: through links, as in an environment that is one, or without."""
    found = [str(each) + os.sep for path in paths for each in (Path(path).absolute(), Path(path).resolve())]
    return tuple(dict.fromkeys(found))


_TORCH = folders_of(Path(str(torch.__file__)).parent)
_JAX = folders_of(Path(str(jax.__file__)).parent)
_TRANSLATORS = _JAX + folders_of(Path(__file__).parents[2], Path(str(optree.__file__)).parent)
_LIBRARIES = _TORCH + _TRANSLATORS
_STANDARD = folders_of(sysconfig.get_paths()["stdlib"])
# An installed package lives below the standard library's folder, yet is the user's model code.
_SITE_PACKAGES = folders_of(sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"])


@remembered(4096)
def is_library(filename: str) -> bool:
    """Returns True if a file is of torch, jax, the standard library or this package."""
    if filename.startswith("<"):
        return True
    if filename.startswith(_LIBRARIES):
        return True
    return filename.startswith(_STANDARD) and not filename.startswith(_SITE_PACKAGES)


@remembered(4096)
def is_users(filename: str) -> bool:
    """Returns True if a file has code of the user's, or is what a user types in."""
    return filename.startswith("<") or not is_library(filename)


class SourceLine(NamedTuple):
    """A line of source code, and the function that it is in."""

    file: str
    line: int
    function: str
    is_loop: bool = False
    """True for a loop, as opposed to a condition in the same line, such as its test."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}" if self.file else "<unknown location>"

    def always(self, decision: bool) -> str:
        """The call by which a user says that the condition in this line always has one answer."""
        branches = {f"{os.path.basename(self.file)}:{self.line}": decision}
        return f"t2j(..., branches={branches})"


def _innermost(is_skipped: Callable[[str], bool]) -> SourceLine:
    frame = sys._getframe(2)
    while frame is not None:
        if not is_skipped(frame.f_code.co_filename):
            return SourceLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return SourceLine("", 0, "")


def user_line() -> SourceLine:
    """The innermost line on the stack outside torch, jax, the standard library and this package."""
    return _innermost(is_library)


def caller_line() -> SourceLine:
    """The innermost line on the stack outside jax and this package."""
    return _innermost(is_translator)


def user_location() -> str:
    """Names the innermost ``file:line`` on the stack outside torch, jax, the standard library and this package."""
    return str(user_line())


def line_that_calls(location: SourceLine) -> SourceLine | None:
    """The innermost line on the stack outside of installed packages, if another line is in one; else None."""
    if not location.file.startswith(_SITE_PACKAGES):
        return None
    line = _innermost(lambda file: is_library(file) or file.startswith(_SITE_PACKAGES))
    return line if line.file else None


def user_level() -> int:
    """The ``stacklevel`` of a warning that is given by who calls this, for the user's innermost line to be named."""
    frame, level = sys._getframe(1), 1
    while frame is not None and is_library(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return level


def is_pytorch(filename: str) -> bool:
    """Returns True if a file is of PyTorch."""
    return filename.startswith(_TORCH)


def is_jax(filename: str) -> bool:
    """Returns True if a file is of JAX."""
    return filename.startswith(_JAX)


def is_translator(filename: str) -> bool:
    """Returns True if a file is of JAX or of this package."""
    return filename.startswith(_TRANSLATORS)


def keeper_of(value: object) -> str | None:
    """The user's holder of an object, in words: an attribute, a global name, a container of that name, a cache."""
    holders = _holders(value)
    for holder in holders:
        name = _name_in(holder, value)
        if name is not None:
            return name
    for holder in holders:
        if isinstance(holder, (dict, list, tuple, set)):
            entry = _entry_in(holder, value)
            for outer in _holders(holder):
                name = _name_in(outer, holder)
                if name is not None:
                    return f"{entry} of {name}"
    return None


def _holders(value: object) -> list[object]:
    """The referrers of an object that the garbage collector knows, without frames and this package's own objects."""
    return [
        x
        for x in gc.get_referrers(value)
        if not isinstance(x, types.FrameType) and not type(x).__module__.startswith("torch2jax")
    ]


def _entry_in(container: object, value: object) -> str:
    if isinstance(container, dict):
        return next((f"the entry {key!r}" for key, item in container.items() if item is value), "a key")
    if isinstance(container, (list, tuple)):
        return next((f"item {i}" for i, item in enumerate(container) if item is value), "an item")
    return "an item"


def _name_in(holder: Any, value: object) -> str | None:
    """The name of an object in its holder."""
    if isinstance(holder, types.CellType):
        for outer in gc.get_referrers(holder):
            for function in gc.get_referrers(outer) if isinstance(outer, tuple) else ():
                if isinstance(function, types.FunctionType) and function.__closure__ is outer:
                    names = function.__code__.co_freevars
                    return next((f"the variable {n}" for n, c in zip(names, outer, strict=True) if c is holder), None)
        return None
    if hasattr(type(holder), "cache_info") and "__wrapped__" in vars(holder):
        return f"the cache of {holder.__wrapped__.__qualname__}"
    if isinstance(holder, dict):
        module = sys.modules.get(str(holder.get("__name__")))
        if module is not None and vars(module) is holder:
            key = next((key for key, item in holder.items() if item is value), None)
            return None if key is None else f"the global {key}"
        owners = [x for x in _holders(holder) if getattr(x, "__dict__", None) is holder]
        return _attribute_of(owners[0], value) if owners else None
    return _attribute_of(holder, value) if not isinstance(holder, (list, tuple, set)) else None


def _attribute_of(owner: object, value: object) -> str | None:
    attributes = getattr(owner, "__dict__", None) or {}
    name = next((key for key, item in attributes.items() if item is value), None)
    if name is None:
        return None
    return f"the attribute {name} of {owner.__qualname__ if isinstance(owner, type) else f'a {type(owner).__name__}'}"


_LISTED = 5

INSTEAD: dict[str, tuple[str, str]] = {
    "Environment": ("torchax", "nothing: translated code needs no environment, t2j(module) is a JAX function"),
    "JittableModule": ("torchax", "jax.jit(t2j(module)), with the weights in state_dict="),
    "call_jax": ("torchax", "j2t(function)(tensor)"),
    "call_torch": ("torchax", "t2j(function)(array); torch2jax(function, *examples) runs it in PyTorch"),
    "default_env": ("torchax", "nothing: translated code needs no environment, t2j(module) is a JAX function"),
    "disable_globally": ("torchax", "nothing: PyTorch stays as it is outside of translated calls"),
    "disable_temporarily": ("torchax", "nothing: PyTorch stays as it is outside of translated calls"),
    "enable_globally": ("torchax", "nothing: t2j(module) is a JAX function, and the module stays as it is"),
    "enable_temporarily": ("torchax", "nothing: t2j(module) is a JAX function, and the module stays as it is"),
    "extract_jax": ("torchax", "f = t2j(model); params, buffers = f.split(); f(x, state_dict=params | buffers)"),
    "interop": ("torchax", "t2j and j2t, of tensors, arrays and functions"),
    "jax_jit": ("torchax", "jax.jit(t2j(function)); j2t(jax.jit(t2j(function))) for tensors"),
    "jax_value_and_grad": ("torchax", "jax.value_and_grad(t2j(function))"),
    "jax_view": ("torchax", "t2j(tensor)"),
    "torch_view": ("torchax", "j2t(array)"),
    "RngPooper": ("the other torch2jax", "a key for each call: f(x, rng=jax.random.key(0))"),
    "Torchish": ("the other torch2jax", "torch.Tensor, of which tensors in translated code are instances"),
    "auto_implements": ("the other torch2jax", "implements(torch_function)(jax_function)"),
    "connect": ("the other torch2jax", "implements(torch_function)(jax_function)"),
    "j2t_array": ("the other torch2jax", "j2t(array)"),
    "j2t_function": ("the other torch2jax", "j2t(function)"),
    "t2j_array": ("the other torch2jax", "t2j(tensor)"),
    "t2j_function": ("the other torch2jax", "t2j(function)"),
    "t2j_module": ("the other torch2jax", "t2j(module)"),
    "wrap_torch2jax": ("wrap-torch2jax", "torch2jax(function, *examples)"),
    "compile_extension": ("wrap-torch2jax", "nothing: there is nothing to compile"),
    "jax2torch": ("jax2torch", "j2t(function)"),
    "jax_to_torch": ("torch-jax-interop", "j2t(array)"),
    "jax_to_torch_function": ("torch-jax-interop", "j2t(function)"),
    "torch_module_to_jax": ("torch-jax-interop", "t2j(module)"),
    "torch_to_jax": ("torch-jax-interop", "t2j(tensor)"),
}
"""For each name its package, and what to write here."""


def error_of(module: str, name: str) -> Exception:
    """The exception for an attribute that `module` lacks: for ``from module import name``, an ImportError.

    Called by the module's ``__getattr__``.
    """
    package, instead = INSTEAD.get(name, ("", ""))
    given = f"{name} is of {package}. Here: {instead}; see docs/coming-from.md"
    frame = sys._getframe(2)
    if instead and dis.opname[frame.f_code.co_code[frame.f_lasti]] == "IMPORT_FROM":
        return ImportError(f"cannot import name {name!r} from {module!r}: {given}", name=module)
    missing = f"module {module!r} has no attribute {name!r}"
    return AttributeError(f"{missing}: {given}" if instead else missing, name=name)


def how_to_install(extra: str) -> str:
    """The command that installs an extra of this package; on PyPI its name is another project's."""
    return f"pip install '.[{extra}]' in the folder of torch2jax's source"


def nearest(name: str, names: Iterable[str], count: int = 3) -> str:
    """The names that may have been meant by an unknown one, for the end of a message: or else those that there are."""
    names = [each for each in names if each]
    near = difflib.get_close_matches(name, names, n=count, cutoff=0.6)
    if near:
        return f" (nearest: {', '.join(map(repr, near))})"
    more = ", ..." if len(names) > _LISTED else ""
    return f" (there are {', '.join(map(repr, names[:_LISTED]))}{more})" if names else ""
