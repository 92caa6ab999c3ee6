"""What a typical use of a library is, and the list of all."""

import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass

import torch

__all__ = ["FILES", "TOLERANCE", "Made", "On", "Use", "all_uses", "use"]

TOLERANCE = 1e-4  # of a difference, relative to the largest element
# Every file registers its uses when it is imported; none imports a library before one of its uses is made.
FILES = ("attention", "dynamics", "geometry", "probability", "training", "vision")
_uses: dict[str, "Use"] = {}

Made = tuple[Callable, tuple]  # a module or function of tensors that gives tensors, and its arguments


@dataclass(frozen=True)
class Use:
    """One typical use of a library.

    Attributes:
        library: the name under which it is installed.
        field: what it is for.
        what: the use, in words.
        make: makes a module or function, and tensors to call it with, from PyTorch's random numbers.
        tolerance: of differences from PyTorch's results.
        because: why `tolerance` is not the one of all.
        gradients: whether there are any to be compared.
        x64: whether the library computes in 64 bits by itself, so that ``jax_enable_x64`` has to be on.
        fails: why it does not agree, where it does not and never will.
    """

    library: str
    field: str
    what: str
    make: Callable[[], Made]
    tolerance: float = TOLERANCE
    because: str = ""
    gradients: bool = True
    x64: bool = False
    fails: str = ""

    @property
    def name(self) -> str:
        return f"{self.library}: {self.what}"

    @property
    def version(self) -> str:
        return importlib.metadata.version(self.library)

    @property
    def installed(self) -> bool:
        try:
            return bool(self.version)
        except importlib.metadata.PackageNotFoundError:
            return False


class On(torch.nn.Module):
    """A function of modules and tensors as a module, so that gradients of the modules' parameters are compared too."""

    def __init__(self, function: Callable, *modules: torch.nn.Module):
        super().__init__()
        self.function, self.modules_of = function, torch.nn.ModuleList(modules)

    def forward(self, *args):
        return self.function(*self.modules_of, *args)


def use(library: str, field: str, what: str, **options) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    """Registers the function below it as a use of a library."""

    def register(make: Callable[[], Made]) -> Callable[[], Made]:
        found = Use(library, field, what, make, **options)
        assert found.name not in _uses, found.name
        assert bool(found.because) == (found.tolerance != TOLERANCE), found.name
        _uses[found.name] = found
        return make

    return register


def all_uses() -> dict[str, Use]:
    """All uses by their names, in the order of fields and libraries."""
    for file in FILES:
        importlib.import_module(f"scripts.uses.{file}")
    return dict(sorted(_uses.items(), key=lambda item: (item[1].field, item[0].lower())))
