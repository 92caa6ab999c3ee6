"""Python functions of PyTorch that no override reaches, replaced during translated calls.

The exchange is seen by all threads, so that what stands in must do as the original does where no call is translated.

An interrupt by the user (Ctrl-C) may come between any two lines. So everything here can be done once more: a call is
in a set, not a count, and what is put back is forgotten only when all of it is.
"""

import contextlib
import functools
import importlib.abc
import importlib.machinery
import itertools
import sys
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

from .layers import LAYERS, Layer, around_loading
from .translation import current

_ABSENT = object()
_pending: list[tuple[str, Callable]] = []
_patches: list[tuple[object, str, object]] = []
_absent: list[tuple[object, str]] = []
_originals: list[tuple[tuple[object, str, object], object]] = []
_around: dict[int, tuple[types.CodeType, Callable, Callable]] = {}
_lock = threading.RLock()
_calls: set[object] = set()
_expects_targets = False


def exchange(owner, name: str, replacement, *, may_lack: bool = False) -> None:
    """Declares a replacement of ``owner.name``, an attribute of a module, class or function, during translated calls.

    Args:
        owner: itself, or the name of a module, which counts once it has been imported.
        may_lack: the attribute need not be there; by default nothing is exchanged then.
    """
    if isinstance(owner, str):
        _pending.append((owner, lambda module: exchange(module, name, replacement, may_lack=may_lack)))
    elif name in vars(owner) or may_lack:
        with _lock:
            _patches.append((owner, name, replacement))
            if _exchanges.is_put:
                _put(owner, name, replacement)
    else:
        _lack(owner, name)


def replaces(owner, name: str, *, may_lack: bool = False) -> Callable[[Callable], Callable]:
    """Declares that the decorated function replaces a function or property within translated calls.

    Args:
        owner: a module, class or function; or the name of a module, which counts once it has been imported.
        may_lack: the function need not be there: releases of PyTorch that have none need no stand-in.
    """

    def register(body: Callable) -> Callable:
        if isinstance(owner, str):
            _pending.append((owner, lambda module: replaces(module, name, may_lack=may_lack)(body)))
            return body
        original = vars(owner).get(name)
        if original is None and isinstance(owner, types.ModuleType):
            original = getattr(owner, name, None)  # which some modules hand out without having it
        if isinstance(original, property):
            exchange(owner, name, property(_chosen(original.fget, body)))
        elif original is not None:
            exchange(owner, name, _chosen(original, body), may_lack=True)
        elif not may_lack:
            _lack(owner, name)
        return body

    return register


def applies(owner, name: str) -> Callable[[Callable], Callable]:
    """Declares the decorated function as what ``owner.name``, an autograd function, applies in translated calls."""

    def register(body: Callable) -> Callable:
        exchange(owner, name, types.SimpleNamespace(apply=_chosen(vars(owner)[name].apply, body)))
        return body

    return register


def runs_instead_of(
    function: types.FunctionType | str, *, with_original: bool = False, may_lack: bool = False
) -> Callable[[Callable], Callable]:
    """Declares the decorated function to run where `function` is called within translated calls, however it was bound.

    Its code is exchanged, since methods that were bound before keep the function itself.

    Args:
        function: itself, or ``"module.name"`` or ``"module:Class.name"``, which counts once the module has been
            imported.
        with_original: its first argument is what runs otherwise.
        may_lack: the function need not be there: other releases of its library have none.
    """

    def register(body: Callable) -> Callable:
        if isinstance(function, str):
            module, _, path = function.rpartition(":" if ":" in function else ".")

            def run_in(module: types.ModuleType) -> None:
                with contextlib.suppress(*([KeyError] if may_lack else [])):
                    _run_instead(_found(module, path), body, with_original)

            _pending.append((module, run_in))
        else:
            _run_instead(function, body, with_original)
        return body

    return register


def _found(module: types.ModuleType, path: str) -> Callable[..., object]:
    found = functools.reduce(lambda owner, name: vars(owner)[name], path.split("."), module)
    return found.__func__ if isinstance(found, staticmethod) else found


def _run_instead(function: types.FunctionType, body: Callable, with_original: bool) -> None:
    original = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    original.__kwdefaults__ = function.__kwdefaults__
    inside = functools.partial(body, original) if with_original else body
    code = _code_that_calls(_chosen(original, inside), function)
    if with_original:
        _around[id(code)] = code, original, body
    exchange(function, "__code__", code, may_lack=True)


def replacement_around(code: types.CodeType) -> tuple[Callable, Callable] | None:
    """The function whose code was exchanged for this one, and the replacement around it; None for other code."""
    found = _around.get(id(code))
    return None if found is None else found[1:]


def _code_that_calls(target: Callable, function: types.FunctionType) -> types.CodeType:
    """Code with as many free variables as that of another function, which passes its arguments on to `target`."""
    # Python must compile them in: who looks at the variables of a frame, as debuggers do, would end the process else.
    free = [f"free_{number}" for number in range(len(function.__code__.co_freevars))]
    lines = [f"def around({', '.join(free)}):"]
    lines += ["    def hand_on(*args, **kwargs):"]
    lines += [f"        if False: {', '.join(free)}"] if free else []
    lines += ["        return 'target'(*args, **kwargs)", "    return hand_on"]
    namespace: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # text is not callable; what comes in its place is
        exec("\n".join(lines), namespace)
    code = namespace["around"](*free).__code__
    constants = tuple(target if constant == "target" else constant for constant in code.co_consts)
    # A file of this package, for its frames to be left out of tracebacks, that has no lines to show.
    return code.replace(co_consts=constants, co_name=function.__name__, co_filename=f"{__file__}:hand_on")


def _chosen(original, body: Callable) -> Callable:
    @functools.wraps(original)
    def replacement(*args, **kwargs):
        return (original if current() is None else body)(*args, **kwargs)

    return replacement


def _lack(owner, name: str) -> None:
    if _expects_targets:
        raise AttributeError(
            f"{getattr(owner, '__name__', owner)}.{name} is not there in this release of PyTorch, and torch2jax would "
            "stand in for it: the code that called it may go another way now"
        )
    _absent.append((owner, name))


def expect_targets() -> None:
    """Makes missing targets errors, including those found missing before: for tests.

    Raises:
        AttributeError: names the first of them.
    """
    global _expects_targets
    _expects_targets = True
    for owner, name in _absent:
        _lack(owner, name)


def absent() -> list[tuple[object, str]]:
    """The targets that this release of PyTorch lacks: owners and names."""
    return list(_absent)


def awaited() -> list[tuple[str, Callable]]:
    """Modules in which something is exchanged once they are imported, by name."""
    return list(_pending)


class _Exchanges:
    """All declared replacements, in the form in which each call installs them: that must be quick.

    What is in a module is exchanged in its dictionary, which costs less than `setattr` does. Loops over columns of
    owners and names cost less than loops over rows.
    """

    def __init__(self):
        self._count = 0
        self._modules: list[dict[str, object]] = []  # their dictionaries, and what is exchanged in each
        self._names: list[str] = []
        self._in_modules: list[object] = []
        self._in_modules_before: list[object] = []
        self._others: list[tuple[object, str, object]] = []
        self._reads: list[tuple[Callable[[str, object], object], str]] = []
        self._others_before: list[object] = []
        self.is_put = False

    def put(self) -> None:
        if self._count != len(_patches):  # which only grow, but for `forget`
            self._sort()
        self._in_modules_before = [*map(dict.get, self._modules, self._names, itertools.repeat(_ABSENT))]
        self._others_before = [read(name, _ABSENT) for read, name in self._reads]
        self.is_put = True
        for module, name, replacement in zip(self._modules, self._names, self._in_modules):  # noqa: B905
            module[name] = replacement
        for owner, name, replacement in self._others:
            setattr(owner, name, replacement)

    def forget(self) -> None:
        """Lets the next `put` look at all declared replacements."""
        self._count = -1

    def put_back(self) -> None:
        for (owner, name, _), original in *reversed(_originals), *zip(self._others, self._others_before, strict=True):
            if original is not _ABSENT:
                setattr(owner, name, original)
            else:
                with contextlib.suppress(AttributeError):  # it may be back
                    delattr(owner, name)
        for module, name, original in zip(self._modules, self._names, self._in_modules_before):  # noqa: B905
            if original is _ABSENT:
                module.pop(name, None)
            else:
                module[name] = original
        self.is_put = False
        _originals.clear()

    def _sort(self) -> None:
        """Collects the declared replacements, the last one for each name."""
        count = len(_patches)
        patches = {(id(owner), name): (owner, name, replacement) for owner, name, replacement in _patches}.values()
        in_modules = [(vars(x), name, to) for x, name, to in patches if type(x) is types.ModuleType]
        self._modules, self._names = [x for x, _, _ in in_modules], [name for _, name, _ in in_modules]
        self._in_modules = [to for _, _, to in in_modules]
        self._others = [patch for patch in patches if type(patch[0]) is not types.ModuleType]
        self._reads = [(_reader(owner), name) for owner, name, _ in self._others]
        self._count = count


def _reader(owner: object) -> Callable[[str, object], object]:
    """Returns the function from a name to an object's own attribute, or a default."""
    return functools.partial(getattr, owner) if isinstance(owner, types.FunctionType) else vars(owner).get


_exchanges = _Exchanges()


def apply_patches(call: object) -> None:
    """Installs the declared replacements, until `remove_patches`."""
    if not _served.keys().isdisjoint(sys.modules.keys()):
        _load_served()  # without the lock, which a layer takes when it is loaded
    with _lock:
        _calls.add(call)
        if not _exchanges.is_put:
            _install()


def _install() -> None:
    modules = sys.modules
    for pending in [pending for pending in _pending if pending[0] in modules]:
        module, declare = pending
        declare(modules[module])
        _pending.remove(pending)
    _exchanges.put()
    if not all(map(modules.__contains__, _NOTING)) and _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _put(owner: object, name: str, replacement: object) -> None:
    _originals.append(((owner, name, replacement), _reader(owner)(name, _ABSENT)))
    setattr(owner, name, replacement)


def remove_patches(call: object) -> None:
    """Undoes an `apply_patches`, be it interrupted; with the last one, everything is as it was."""
    with _lock:
        _calls.discard(call)
        if not _calls and _exchanges.is_put:
            _exchanges.put_back()
            if _finder in sys.meta_path:
                sys.meta_path.remove(_finder)


# Modules that note PyTorch's functions, by which objects they are, when they are imported. PyTorch imports its compiler
# in the midst of a call, where it comes to a function that this leaves alone.

_NOTING = frozenset(("torch._dynamo",))


@contextlib.contextmanager
def _all_undone():
    """A context in which everything is as it was before the first call began."""
    with _lock:
        is_first = _exchanges.is_put  # where it is not, another thread has undone everything
        if is_first:
            _exchanges.put_back()
    try:
        yield
    finally:
        with _lock:
            if is_first and _calls and not _exchanges.is_put:  # another thread may have ended its call
                _install()


class _Finder(importlib.abc.MetaPathFinder):
    """An import hook: modules imported within a call see PyTorch's own functions, if they keep references to them."""

    def find_spec(self, fullname, path, target=None):
        if fullname not in _NOTING:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with _all_undone():
            self._loader.exec_module(module)


_finder = _Finder()


# What layers replace, before they are loaded.

_awaiting: dict[Layer, list[object]] = {layer: [] for layer in LAYERS}


@around_loading
@contextlib.contextmanager
def _loading(layer: Layer):
    """A context in which a layer notes PyTorch's own functions, and declares its replacements of them."""
    with _all_undone(), _lock:
        awaiting = _awaiting[layer]
        _patches[:] = [patch for patch in _patches if not any(patch[2] is replacement for replacement in awaiting)]
        awaiting.clear()
        _exchanges.forget()
        yield


class _Awaiting:
    """An object of PyTorch's, whose replacement a translated call loads when it asks this for anything."""

    _original: Any
    _load: Callable[[], object]

    def __init__(self, original: object, load: Callable[[], object]):
        vars(self).update(_original=original, _load=load)

    def _found(self) -> Any:
        return self._original if current() is None else self._load()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found(), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._found(), name, value)

    def __contains__(self, key: Any) -> bool:
        return key in self._found()

    def __setitem__(self, key: object, value: object) -> None:
        self._found()[key] = value

    def __delitem__(self, key: object) -> None:
        del self._found()[key]


def _await(layer: Layer, owner: Any, name: str) -> None:
    """Declares a replacement that loads a layer, which declares another one."""

    def load() -> Any:
        layer.load()
        return getattr(owner, name)

    original, count = vars(owner)[name], len(_patches)
    is_defined_here = getattr(original, "__module__", None) == getattr(owner, "__module__", owner.__name__)
    if isinstance(original, types.FunctionType) and is_defined_here:  # and stays itself, as PyTorch compares some
        _run_instead(original, lambda *args, **kwargs: load()(*args, **kwargs), with_original=False)
    elif callable(original):
        exchange(owner, name, _chosen(original, lambda *args, **kwargs: load()(*args, **kwargs)))
    else:
        exchange(owner, name, _Awaiting(original, load))
    _awaiting[layer] += [replacement for _, _, replacement in _patches[count:]]


def _await_in(module: types.ModuleType, layer: Layer, path: str) -> None:
    *owners, name = path.split(".")
    with contextlib.suppress(KeyError):  # other releases of PyTorch may lack it
        if not layer.is_loaded:
            _await(layer, functools.reduce(lambda owner, name: vars(owner)[name], owners, module), name)


_served = {name: layer for layer in LAYERS for name in layer.imported}
"""The layers that serve libraries which are not imported yet, by the names of these."""


def _load_served() -> None:
    for name, layer in list(_served.items()):
        if name in sys.modules:
            layer.load()  # or wait until another thread has
            _served.pop(name, None)


for _layer in LAYERS:
    for _name in _layer.patched:
        _module, _, _path = _name.partition(":")
        _pending.append((_module, functools.partial(_await_in, layer=_layer, path=_path)))
