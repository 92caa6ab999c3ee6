"""Caches have bounds, are counted and can be cleared; and there are no others than those of `runtime/caches.py`."""

import ast
import gc
import re
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import torch

import torch2jax
from torch2jax import j2t, t2j
from torch2jax.calls import plans
from torch2jax.rules import inline
from torch2jax.runtime import caches
from torch2jax.runtime.caches import Cache, remembered

ROOT = Path(torch2jax.__file__).parent
TREES = {path: ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py")) if path.name != "caches.py"}
X = jnp.ones((2, 3))


def _usage(name: str) -> caches.Usage:
    return next(each for each in caches.usage() if each.name == name)


def test_the_oldest_entry_makes_room():
    cache = Cache("a test's", 3)
    for key in "abc":
        cache[key] = key
    cache["a"] = "another"  # which is there already
    assert [*cache] == ["a", "b", "c"]
    cache["d"] = "d"
    assert [*cache] == ["b", "c", "d"]


def test_what_is_obtained_is_the_newest():
    cache = Cache("a test's", 2)
    made = [cache.obtain(key, lambda key=key: key.upper()) for key in "abac"]
    assert made == ["A", "B", "A", "C"]
    assert [*cache] == ["a", "c"]
    assert cache.obtain("none", lambda: None) is cache.obtain("none", lambda: 1) is None


def test_a_function_remembers_what_it_was_asked_last():
    asked = []
    square = remembered(2)(lambda x: asked.append(x) or x * x)
    assert [square(x) for x in (1, 2, 1, 3, 1, 2)] == [1, 4, 1, 9, 1, 4]
    assert asked == [1, 2, 3, 2]


def test_usage_counts_caches_of_a_name_together():
    first, second = Cache("a test's", 2), Cache("a test's", 2)
    for key in range(3):
        first[key] = second[0] = key
    assert _usage("a test's") == ("a test's", 2, 2, 3, 6)

    @remembered(2)
    def triple(x):
        return 3 * x

    assert [triple(x) for x in (1, 1, 2)] == [3, 3, 6]
    assert _usage("test_caches.triple") == ("test_caches.triple", 2, 1, 2, 2)
    del first, second, triple
    gc.collect()
    assert not {"a test's", "test_caches.triple"} & {each.name for each in caches.usage()}


def test_threads_keep_the_bound():
    cache = Cache("a test's", 16)

    def fill(start):
        for key in range(start, start + 4000):
            cache[key] = cache.obtain(key % 32, lambda: 0)
            if key % 100 == 0:
                cache.clear()

    threads = [threading.Thread(target=fill, args=[1000 * n]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cache["last"] = 0
    assert len(cache) <= 16


def test_no_cache_is_above_its_bound(monkeypatch):
    monkeypatch.setattr(plans._plans, "most", 8)
    caches.clear()
    translated = t2j(lambda x: torch.sin(x) + x)
    for size in range(1, 20):
        assert translated(jnp.zeros(size)).shape == (size,)
    assert len(plans._plans) == 8
    assert not [each for each in caches.usage() if each.entries > each.most * each.caches]


def test_to_clear_frees():
    def function(x):
        return torch.sin(x) + x

    for _ in range(4):  # compiled once it recurs
        t2j(function)(X)
    found = [weakref.ref(x) for x in gc.get_objects() if type(x) is inline.Inlined]
    assert plans._plans
    assert found
    caches.clear()
    gc.collect()
    assert not any(each.entries for each in caches.usage())
    assert not [reference for reference in found if reference() is not None]


class Model(torch.nn.Sequential):
    def forward(self, x):
        caches.clear()
        x = super().forward(x)
        caches.clear()
        x[0] = x[1].view(-1) * 2
        caches.clear()
        x = x * 2 if x.sum() > 0 else x - 1
        caches.clear()
        (gradient,) = torch.autograd.grad(x.square().sum(), x)
        return x[x > 0].sum() + gradient


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "traced"])
def test_a_call_may_clear_them(wrap):
    model = Model(torch.nn.Linear(3, 3), torch.nn.Tanh())
    translated = wrap(t2j(model))
    want = model(torch.ones(2, 3))
    for _ in range(3):
        assert jnp.allclose(translated(X), want.detach().numpy(), atol=1e-5)


def test_programs_are_found_again():
    part, sine = t2j(torch.nn.Sequential(torch.nn.Linear(3, 3)), compile=["0"]), j2t(jnp.sin)
    cosine = torch2jax.torch2jax(torch.cos, X)
    for _ in range(2):
        assert part(X).shape == (2, 3)
        assert torch.allclose(sine(torch.ones(2)), torch.ones(2).sin())
        assert jnp.allclose(jax.grad(lambda x: cosine(x).sum())(X), -jnp.sin(X))
        caches.clear()
        assert sine.cache_size() == 0


# --- There are no others


def _name_of(path: Path, name: str) -> str:
    return f"{path.stem}.{name}"


OPERATORS = {
    "OpOverload",
    "tuple[OpOverload, ...]",
    "Callable",
    "Callable[..., Any]",
    "Callable[..., object]",
    "types.FunctionType",
}
# Functions under `functools.cache` of something else than PyTorch's operators, functions and dtypes.
FEW = {
    "outer_state._kind_of": "kinds of containers that the package knows",
    "distributed.class_of_calls": "the call's own classes of tensors",
    "distributed.class_of_wrapped": "PyTorch's own record of a class: another class is another one for isinstance",
}


def _decorated() -> Iterator[tuple[str, str, ast.FunctionDef]]:
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                for decorator in node.decorator_list:
                    yield ast.unparse(decorator), _name_of(path, node.name), node


def test_functions_under_functools_cache_are_of_the_library():
    others = set()
    for decorator, name, node in _decorated():
        parameters = [*node.args.posonlyargs, *node.args.args]
        if decorator == "functools.cache" and parameters:
            first = parameters[0].annotation
            if first is None or ast.unparse(first) not in {*OPERATORS, "torch.dtype"}:
                others.add(name)
    assert others == FEW.keys()


def test_functions_that_remember_have_a_bound():
    """`functools.lru_cache` elsewhere is only asked for its type; `functools.cache` decorates, or is for rules."""
    found = {
        (_name_of(path, ""), ast.unparse(node))
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and "functools" in (text := ast.unparse(node.func)) and "cache" in text
        if text != "functools.cached_property"
    }
    type_of = "functools.lru_cache(len)"
    assert found == {("calls.", type_of), ("outer_state.", type_of), ("tables.", "functools.cache(conclude)")}
    names = {name for tree in TREES.values() for node in ast.walk(tree) for name in _imported(node)}
    assert not names & {"cache", "lru_cache"}


def _imported(node: ast.AST) -> list[str]:
    return [x.name for x in node.names] if isinstance(node, ast.ImportFrom) and node.module == "functools" else []


# Dictionaries and sets of modules that begin empty, and are no caches.
TABLES = {
    "declared": """conditions._idle trees._OPEN features._without_values history.PRODUCTS history.QUOTIENTS
        patches._around patches._calls plan.FILLED registry._masked_rules registry._decomposed registry._rules_by_length
        registry._sparse_rules rule._replaced tables.TAGS_WITHOUT_RULE
        tracebacks._calls_of_modules wrapper_subclasses._below_classes wrapper_subclasses._of_classes""",
    "in progress": "ffi._held lengths._calls outer_modules._visited python_functions._lent scope._jobs",
    "counted or numbered": "ffi._counts ffi._given ffi._platforms plans.bypassed",
    "as long as a function is there": "j2t._SHARED",
    "must not be forgotten": "convert._made",
}
EMPTY = {"dict", "set", "OrderedDict", "defaultdict", "Counter"}


def test_dictionaries_of_modules_are_caches_or_known():
    found = set()
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and _begins_empty(node.value):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                found.add(_name_of(path, ast.unparse(target)))
    known = " ".join(TABLES.values()).split()
    assert found == {*known}, "wanted a torch2jax.runtime.caches.Cache, which has a bound; or the reason here"


def _begins_empty(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return not value.args and ast.unparse(value.func).rpartition(".")[2] in EMPTY
    return isinstance(value, ast.Dict) and not value.keys


def _caches_in_code() -> Iterator[tuple[str, int]]:
    for decorator, name, _ in _decorated():
        if decorator.startswith("remembered("):
            yield name, eval(decorator.removeprefix("remembered"))
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Cache":
                name, most = node.args
                yield ast.literal_eval(name), eval(ast.unparse(most))


def test_the_page_lists_them():
    page = (ROOT.parent / "docs/in-depth.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| ([\d,]+) \| ([^|]+) \|$", page, flags=re.MULTILINE)
    listed = {(name, int(most.replace(",", ""))) for most, names in rows for name in re.findall(r"`([^`]+)`", names)}
    assert listed == {*_caches_in_code()}
