"""Loads test files that were written for another version of PyTorch than the one installed.

A test file imports dozens of helpers, and one that is gone would cost all of its tests. So the files of the tests'
folder are loaded with each import, decorated definition and assignment of a module or class standing on its own: a name
that cannot be had becomes `Gone`, a definition whose decorators fail loses them. PyTorch itself is not changed. A test
that needs what is gone fails in PyTorch as well, and so is not counted.
"""

import ast
import contextlib
import importlib.machinery
import importlib.util
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from scripts.suite.functions import case_of

__all__ = ["Gone", "install", "load", "mended", "tests_of"]

_ASKING_FOR_CUDA = {"requires_cuda", "unittest.skipIf(not SM70OrLater, 'triton')"}
_PLAIN = {"staticmethod", "classmethod", "property"}  # decorators without which a definition means something else


class Gone(list):
    """In place of what is missing: an empty list, false, a base class of nothing, a decorator that changes nothing."""

    def __init__(self, name: str):
        super().__init__()
        self.name = name

    def __call__(self, *args, **_):
        return args[0] if len(args) == 1 and callable(args[0]) else Gone(self.name)

    def __mro_entries__(self, _):
        return ()


class Lost:
    """What a module's code calls when something is missing; keeps the names."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, name: str) -> Any:
        module, _, last = name.rpartition(".")
        # what lists of PyTorch's tests have become: functions, or without those of other implementations
        getter = getattr(sys.modules.get(module), f"get_{last}", None)
        if callable(getter):
            return getter()
        if last.endswith("_and_refs") and hasattr(sys.modules.get(module), last.removesuffix("_and_refs")):
            return getattr(sys.modules[module], last.removesuffix("_and_refs"))
        self.names.append(name)
        return Gone(name)


def mended(source: str, path: str = "<tests>") -> ast.Module:
    """The syntax tree of a test file whose module, and whose classes, are executed as far as they can be."""
    # The class of a device has the classes' own methods, once was their copy: this would call them for ever.
    tree = ast.parse(source.replace("super(self.__class__, self)", "super()"), path)
    tree.body = _statements(tree.body)
    return ast.fix_missing_locations(tree)


def _statements(body: list[ast.stmt]) -> list[ast.stmt]:
    return [mended for statement in body for mended in _mend(statement)]


def _mend(node: ast.stmt) -> Iterator[ast.stmt]:
    match node:
        case ast.ImportFrom(module="__future__"):
            yield node
        case ast.ImportFrom() | ast.Import():
            for alias in node.names:
                yield _import(node, alias)
        case ast.ClassDef():
            node.body = _statements(node.body)
            yield _definition(node)
        case ast.FunctionDef() if node.decorator_list:
            if any(ast.unparse(x).startswith("parametrize('device'") for x in node.decorator_list):
                # of those for each device, the ones for the CPU do not need another
                node.decorator_list = [x for x in node.decorator_list if ast.unparse(x) not in _ASKING_FOR_CUDA]
            yield _definition(node)
        case ast.If():
            node.body, node.orelse = _statements(node.body), _statements(node.orelse)
            yield node
        case ast.Try():  # what is there and does not load is no better than what is missing
            for handler in node.handlers:
                if isinstance(handler.type, ast.Name) and handler.type.id in ("ImportError", "ModuleNotFoundError"):
                    handler.type = ast.Name("Exception", ast.Load())
            yield node
        case ast.For():  # of many tests that a loop adds, one that cannot be made costs only itself
            node.body = [_attempt(node, node.body, [_lost(node, ast.unparse(node.target))])]
            yield node
        case ast.Assign(targets=[ast.Name(id=name)]):
            yield _attempt(node, [node], [_lost(node, name, bind=name)])
        case ast.Expr(value=ast.Call()) | ast.Assign() | ast.With():
            yield _attempt(node, [node], [_lost(node, ast.unparse(node).split("\n")[0])])
        case _:
            yield node


def _import(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> ast.stmt:
    if alias.name == "*":
        return _attempt(node, [node], [_lost(node, f"{ast.unparse(node)}")])
    one: Any = ast.Import([alias])
    name, bind = alias.name, alias.asname or (None if "." in alias.name else alias.name)
    if isinstance(node, ast.ImportFrom):
        one = ast.ImportFrom(node.module, [alias], node.level)
        name, bind = f"{node.module}.{alias.name}", alias.asname or alias.name
    return _attempt(node, [ast.copy_location(one, node)], [_lost(node, name, bind=bind)])


def _definition(node: ast.ClassDef | ast.FunctionDef) -> ast.stmt:
    plain = [x for x in node.decorator_list if isinstance(x, ast.Name) and x.id in _PLAIN]
    kinds: dict[str, Any] = {name: getattr(node, name) for name in node._fields}
    bare = ast.copy_location(type(node)(**(kinds | {"decorator_list": plain})), node)
    return _attempt(node, [node], [_lost(node, f"decorators of {node.name}"), bare])


def _attempt(node: ast.stmt, body: list[ast.stmt], otherwise: list[ast.stmt]) -> ast.stmt:
    handler = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, otherwise)
    return ast.copy_location(ast.Try(body, [handler], [], []), node)


def _lost(node: ast.stmt, name: str, bind: str | None = None) -> ast.stmt:
    call = ast.Call(ast.Name("__lost__", ast.Load()), [ast.Constant(name)], [])
    return ast.copy_location(ast.Assign([ast.Name(bind, ast.Store())], call) if bind else ast.Expr(call), node)


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):
        path = self.get_filename(fullname)
        return compile(mended(self.get_data(path).decode(), path), path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__lost__"] = Lost()
        super().exec_module(module)


class _Finder:
    """Finds the helpers that test files import from each other."""

    def __init__(self, folder: Path):
        self.folder = folder

    def find_spec(self, fullname, path=None, target=None):
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            return None
        if not Path(spec.loader.path).is_relative_to(self.folder):
            return None
        spec.loader = _Loader(fullname, spec.loader.path)
        return spec


def install(folder: Path) -> None:
    """Makes the files in PyTorch's folder ``test/`` importable in this process."""
    sys.path[:0] = [str(folder), str(folder / "functorch")]
    sys.meta_path.insert(0, _Finder(folder))  # type: ignore[arg-type]
    from torch.testing._internal import common_utils

    # What running a test file as a program does; tests of TorchScript ask for it.
    common_utils.GRAPH_EXECUTOR = common_utils.cppProfilingFlagsToProfilingMode()


def load(folder: Path, file: str) -> ModuleType:
    """The module of a test file; what it lacks is in its ``__lost__.names``."""
    name, text = Path(file).stem, (folder / file).read_text()
    sys.path.insert(0, str((folder / file).parent))  # as where it is run as a program
    if "use_subtests=True" in text and "skip_xfail" not in text:
        _give_one_context()
    loader = _Loader(name, str(folder / file))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _give_one_context() -> None:
    """Operators' samples with one context each, as to PyTorch 2.6: the second, of a sample's own skips, within it."""
    from torch.testing._internal.opinfo.core import OpInfo

    maybe_skip = OpInfo._maybe_skip_or_xfail

    def joined(self, *args):
        subtest, skip = maybe_skip(self, *args)

        @contextlib.contextmanager
        def context(test):
            with subtest(test), contextlib.suppress(unittest.SkipTest), skip(test):
                yield

        return (context,)

    OpInfo._maybe_skip_or_xfail = joined


def tests_of(module: ModuleType) -> dict[str, tuple[type[unittest.TestCase], str]]:
    """``{"Class.method": (class, method)}`` of all that ``unittest`` finds in a module, and of its test functions."""
    find = unittest.TestLoader().getTestCaseNames
    cases = [x for x in vars(module).values() if isinstance(x, type) and issubclass(x, unittest.TestCase)]
    cases.append(case_of(module))
    return {f"{case.__name__}.{name}": (case, name) for case in dict.fromkeys(cases) for name in find(case)}
