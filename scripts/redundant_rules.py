"""Lists the rules for which PyTorch's own code leads to as good a graph: its Python bodies and its decompositions.

Each rule is switched off by itself. Then samples of PyTorch's operator database that it serves are traced again, and
their gradients. The table counts the equations of the jaxpr, and the operations of StableHLO, with and without it.

    timeout 1200 python -m scripts.redundant_rules                       # all rules, in about ten minutes
    timeout 600 python -m scripts.redundant_rules 'special.*' nn/loss    # those of names, or of files

A rule that is redundant here may still be needed: for its values, dtypes and errors (`python -m tests.ops.database
NAME --columns all`), for the time that tracing takes, or for what no sample shows.
"""

import argparse
import contextlib
import fnmatch
import signal
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch

from tests.ops.database import Case, cases, dtypes_of, entries, full_name
from tests.ops.database.outcome import key
from torch2jax import t2j
from torch2jax.calls.library_kernels import outputs_of
from torch2jax.calls.modes import observing
from torch2jax.rules import registry
from torch2jax.rules.tables import PROVIDED

SECONDS = 10  # that one trace may take
DTYPES = (torch.float32, torch.int64)


class Counts(NamedTuple):
    """The size of a graph, and of the graph of its gradient; zeros for what has none."""

    equations: int
    operations: int
    gradient: int


def root_of(rule: Any) -> Any:
    """The rule that a form (in place, reflected) is of."""
    while hasattr(rule, "rule"):
        rule = rule.rule
    return rule


def place_of(rule: Any) -> str:
    """The file of a rule and its body's name: ``nn/loss.huber_loss``."""
    body = getattr(rule, "body", None) or getattr(rule, "choose", None)
    return f"{body.__module__.removeprefix('torch2jax.ops.').replace('.', '/')}.{body.__name__}" if body else ""


@contextlib.contextmanager
def without(rule: Any) -> Iterator[None]:
    """Switches a rule off, and all its forms."""
    functions, by_name = dict(PROVIDED.functions), dict(PROVIDED._by_name)
    for table in (PROVIDED.functions, PROVIDED._by_name):
        for name in [name for name, found in table.items() if root_of(found) is rule]:
            del table[name]
    _forget()
    try:
        yield
    finally:
        PROVIDED.functions, PROVIDED._by_name = functions, by_name
        _forget()


def _forget() -> None:
    PROVIDED._forget()
    outputs_of.cache_clear()


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Ends what takes too long with a TimeoutError."""

    def expire(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def equations(jaxpr: Any) -> int:
    """How many equations a jaxpr has, with those of the jaxprs in it; calls of jitted functions are none."""
    count = 0
    for equation in jaxpr.eqns:
        inner = [x for x in jax.tree.leaves(list(equation.params.values())) if hasattr(x, "eqns")]
        count += sum(equations(getattr(x, "jaxpr", x)) for x in inner)
        count += equation.primitive.name not in ("jit", "pjit")
    return count


def counts_of(case: Case) -> Counts:
    """The size of a case's graph.

    Raises:
        Exception: it has none.
    """

    def function(*arrays):
        return [x for x in jax.tree.leaves(t2j(case.traced)(*arrays, **key(case))) if isinstance(x, jax.Array)]

    arrays = [t2j(tensor) for tensor in case.tensors]
    with bounded():
        traced = jax.jit(function).trace(*arrays)
        operations = traced.lower().as_text().count(" = stablehlo.")
        floats = [i for i, x in enumerate(arrays) if jnp.issubdtype(x.dtype, jnp.inexact)]
        gradient = _gradient_of(function, arrays, floats) if floats and case.op.supports_autograd else 0
    return Counts(equations(traced.jaxpr.jaxpr), operations, gradient)


def _gradient_of(function: Any, arrays: list, floats: list[int]) -> int:
    def of_floats(*given):
        filled = list(arrays)
        for i, array in zip(floats, given, strict=True):
            filled[i] = array
        results = [x for x in function(*filled) if jnp.issubdtype(x.dtype, jnp.inexact)]
        return sum((jnp.sum(jnp.abs(x)) for x in results), jnp.float32(0))

    gradient = jax.jit(jax.grad(of_floats, tuple(range(len(floats)))))
    return gradient.trace(*(arrays[i] for i in floats)).lower().as_text().count(" = stablehlo.")


def served(samples: int) -> dict[Any, list[Case]]:
    """The cases that each rule serves, those of entries of its own name first."""
    found = defaultdict(list)
    for op in entries():
        for dtype in (dtype for dtype in DTYPES if dtype in dtypes_of(op)):
            for case in _spread(cases(op, dtype), samples):
                called = [op.op]
                with contextlib.suppress(Exception), bounded(), observing(called.append):
                    jax.make_jaxpr(lambda *arrays, case=case: t2j(case.traced)(*arrays, **key(case)))(
                        *(t2j(tensor) for tensor in case.tensors)
                    )
                for rule in {id(rule): rule for rule in map(_rule_of, called) if rule is not None}.values():
                    found[rule].append(case)
    for rule, of_rule in found.items():
        of_rule.sort(key=lambda case, rule=rule: case.op.name.rpartition(".")[2] != getattr(rule, "name", ""))
    return found


def _rule_of(function: Any) -> Any:
    find = registry.lookup_aten if isinstance(function, torch._ops.OpOverload) else registry.lookup
    with contextlib.suppress(TypeError):  # what cannot be hashed
        return root_of(find(function))
    return None


def _spread(items: list, count: int) -> list:
    """Some of the items: the first, the last, and those between at equal distances."""
    return items if len(items) <= count else [items[i * (len(items) - 1) // (count - 1)] for i in range(count)]


def _apart(of_rule: list[Case], most: int) -> list[Case]:
    """The first cases, of different entries and dtypes before others of the same."""
    rounds, seen = defaultdict(list), defaultdict(int)
    for case in of_rule:
        same = (full_name(case.op), case.dtype)
        rounds[seen[same]].append(case)
        seen[same] += 1
    return [case for i in sorted(rounds) for case in rounds[i]][:most]


def compared(rule: Any, of_rule: list[Case]) -> tuple[str, list[tuple[Counts, Counts]], str]:
    """Whether a rule is redundant, the counts with it and without, and the case that tells that it is not.

    Counting ends with that case.
    """
    pairs = []
    for case in of_rule:
        try:
            kept = counts_of(case)
        except Exception:  # the rule's own business, as where data decide
            continue
        try:
            with without(rule):
                lacking = counts_of(case)
        except (Exception, RecursionError) as error:
            return "no path", pairs, f"{case.name}: {type(error).__name__}: {' '.join(str(error).split())[:80]}"
        pairs.append((kept, lacking))
        if any(b > a for a, b in zip(kept, lacking, strict=True)):
            return "worse", pairs, f"{case.name}, {case.dtype}"
    return ("same or better" if pairs else "unseen"), pairs, ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.redundant_rules", description=__doc__)
    parser.add_argument("patterns", nargs="*", default=["*"], help="names of rules, or files of torch2jax/ops")
    parser.add_argument("--samples", type=int, default=3, help="of each entry and dtype")
    parser.add_argument("--most", type=int, default=6, help="cases of each rule")
    options = parser.parse_args()
    begun = time.perf_counter()
    rules = {id(rule): rule for rule in map(root_of, PROVIDED.functions.values()) if place_of(rule)}
    found = served(options.samples)
    print("| rule | name | without it | cases | equations, operations, those of the gradient: with it, without |")
    print("|---|---|---|---|---|")
    for rule in sorted(rules.values(), key=place_of):
        place = place_of(rule)
        names = (rule.name, place, place.rpartition(".")[0])
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in options.patterns):
            continue
        verdict, pairs, why = compared(rule, _apart(found.get(rule, []), options.most))
        sums = [tuple(map(sum, zip(*column, strict=True))) for column in zip(*pairs, strict=True)]
        print(f"| {place} | {rule.name} | {verdict} | {len(pairs)} | {' '.join(map(str, sums))} {why} |", flush=True)
    print(f"\n{time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
