"""The layers: parts of the package that most code never needs, each of which is loaded when code first does.

This is the only file that names them. A layer is some modules, and what code does before these are needed:

- it calls a PyTorch function whose rule they have (`functions`), which the registry asks for only if no rule is known;
- it has imported a library that they serve (`imported`), which the first call after that sees;
- it uses something of theirs, as an attribute of the layer: ``BRIDGE.last_resort(...)``.

All rooms may ask a layer for something, also those below its modules. The core tells objects of a layer from others by
`Layer.classes`, which are none before its modules are imported: then there are no such objects.
"""

import contextlib
import importlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..internals.dispatch import DisableTorchFunction
from .translation import hidden

K = TypeVar("K", bound=type)
_PACKAGE = __name__.partition(".")[0]
_lock = threading.RLock()
_around: list[Callable[[], contextlib.AbstractContextManager[None]]] = []


def around_loading(context: Callable[[], contextlib.AbstractContextManager[None]]) -> Any:
    """Declares the decorated context manager as one in which layers are loaded."""
    _around.append(context)
    return context


class Layer:
    """A part of the package; its attributes are those of its modules.

    Args:
        modules: what is imported, in this order.
        functions: PyTorch functions with a rule there: the paths of functions, and the names of operators, or the
            namespaces of libraries, as "aten::_to_sparse" and "quantized::".
        imported: modules of libraries for which there is something.
    """

    def __init__(
        self,
        *modules: str,
        functions: Sequence[str] = (),
        imported: Sequence[str] = (),
    ):
        self.modules, self.functions, self.imported = modules, functions, imported
        self.is_loaded = False
        self._loaded: list[Any] = []
        self.classes: tuple[type, ...] = ()
        """The classes whose objects the core has to know from others; none before their modules are imported."""

    def has(self, kind: K) -> K:
        """Declares that the decorated class is one of `classes`."""
        self.classes = (*self.classes, kind)
        return kind

    def load(self) -> None:
        """Imports the modules, as if no call was in progress."""
        with _lock:
            if self.is_loaded:
                return
            with contextlib.ExitStack() as stack:
                for context in (hidden, DisableTorchFunction, *_around):
                    stack.enter_context(context())
                self._loaded = [importlib.import_module(f"{_PACKAGE}.{name}") for name in self.modules]
            self.is_loaded = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"a layer has no {name}", name=name, obj=self)
        self.load()
        for module in self._loaded:
            if hasattr(module, name):
                found = self.__dict__[name] = getattr(module, name)
                return found
        raise AttributeError(f"none of {', '.join(self.modules)} has {name}", name=name, obj=self)


BRIDGE = Layer("bridge.call_torch", "bridge.j2t", "bridge.compat", "bridge.last_resort")
"""PyTorch called from JAX, and JAX from PyTorch."""
CONTROL = Layer("control.driver")
"""Conditions and loops on traced values, read from the source."""
GENERATION = Layer("ops.control_flow.generation", imported=("transformers",))
"""``generate`` of transformers, as one loop."""
EXPORTING = Layer("exporting.export", "checkpoints")
"""Programs and weights as files."""
LAYERS = [BRIDGE, CONTROL, GENERATION, EXPORTING]
"""All of them."""
