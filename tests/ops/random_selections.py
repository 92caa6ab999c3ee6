"""Random programs of tensors whose length data decide, against PyTorch: ``python -m tests.ops.random_selections``.

A program takes a matrix, a mask and a number, and goes on with what these choose: masks, places, gathers, sorts, parts,
joins, writes, products, reductions, pairs, branches. Each is compiled once, and compared, with its gradient, for masks
that choose some, one, all and none; one in four is also mapped over the masks (`vmap`), and one in four scans them.
Where PyTorch refuses a mask, as a maximum of nothing, that mask is left out. So is a program that differs, if it does
so in PyTorch for a matrix that is as good as the same: there rounding decides about a place or a mask.

    python -m tests.ops.random_selections                      # 200 programs
    python -m tests.ops.random_selections --seeds 2000 --first 0
"""

import argparse
import collections
import operator
import random
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tests.compiling import keep_context, set_flags
from tests.ops.selection_steps import ENDS, ROWS, STARTS
from tests.ops.test_lengths import MASKS, X
from tests.torchvision_library import loaded
from torch2jax import Padded, TracedValueError, t2j

Tensor = torch.Tensor
_MOST = 5
"""The greatest number that a program may get."""


class Program:
    """One program: where it starts, the steps that it goes, and what it gives."""

    def __init__(self, seed: int):
        draw = random.Random(seed)
        self.start, self.end = draw.choice(list(STARTS)), draw.choice(list(ENDS))
        self.steps = draw.choices(list(ROWS), k=draw.randint(1, 5))
        self.names = [self.start, *self.steps, self.end]
        self.seed = seed

    def __call__(self, x, m, k, noise=None):
        k = k.clamp(0, _MOST)
        s = STARTS[self.start](x, m, k)
        for name in self.steps:
            s = ROWS[name](s, x, m, k)
            s = s if noise is None else s * (1 + 2e-7 * torch.randn(s.shape, generator=noise))
        return ENDS[self.end](s, x, m, k)


class Case(NamedTuple):
    """What a program gives in PyTorch for a mask and a number: its tensors, and the gradient of their sum."""

    name: str
    mask: Tensor
    number: int
    tensors: list[Tensor]
    gradient: Tensor


def _of_pytorch(program: Program, x: Tensor, mask: Tensor, number: int, noise=None) -> tuple[list[Tensor], Tensor]:
    x = x.clone().requires_grad_()
    found = [torch.as_tensor(y) for y in jax.tree.leaves(program(x, mask, torch.tensor(number), noise))]
    total = sum([y.sum() for y in found if y.requires_grad], torch.zeros((), requires_grad=True))
    (gradient,) = torch.autograd.grad(total, x, allow_unused=True)
    return [y.detach() for y in found], torch.zeros_like(x) if gradient is None else gradient


def _cases(program: Program) -> Iterator[Case]:
    for name, mask in MASKS.items():
        for number in (2, 0) if name == "some" else (3,):
            try:
                yield Case(name, mask, number, *_of_pytorch(program, X, mask, number))
            except (RuntimeError, IndexError, ValueError):
                continue  # of nothing there is none


def _leaves(found: Any) -> list:
    return jax.tree.leaves(found, is_leaf=lambda x: isinstance(x, Padded))


def _difference(found: list, gradient: Any, tensors: list[Tensor], wanted: Tensor | None) -> str:
    """What differs between what a program gives and what it should; nothing where the text is empty."""
    pairs: list = [("values", x, y) for x, y in zip(found, tensors, strict=True)]
    pairs += [] if wanted is None else [("the gradient", gradient, wanted)]
    for what, one, other in pairs:
        one, other = np.asarray(one.compact() if isinstance(one, Padded) else one), other.numpy()
        if one.shape != other.shape:
            return f"got the shape {one.shape}; wanted {other.shape}"
        scale = max(1.0, np.abs(other[np.isfinite(other)]).max(initial=0.0) / 50)  # sums of large numbers are rounded
        if not np.allclose(one, other, 1e-3, 1e-4 * scale, equal_nan=True):
            return f"{what} {one}; wanted {other}"
    return ""


def _rounding_decides(program: Program, case: Case) -> bool:
    """Whether PyTorch's own results differ as much, where its matrix and each step are as good as the same."""
    for seed in range(8):
        noise = torch.Generator().manual_seed(seed)
        x = X * (1 + 2e-7 * torch.randn(X.shape, generator=noise))
        try:
            tensors, gradient = _of_pytorch(program, x, case.mask, case.number, noise)
        except (RuntimeError, IndexError, ValueError):
            return True
        if _difference(tensors, gradient, case.tensors, case.gradient):
            return True
    return False


def _compared(program: Program, cases: list[Case]) -> Iterator[tuple[Case, str]]:
    """Each case, and what differs where the compiled program runs it alone."""

    def loss(x, m, k):
        found = _leaves(t2j(program)(x, m, k))
        arrays = [jnp.asarray(x.values if isinstance(x, Padded) else x) for x in found]
        return sum([x.sum() for x in arrays if x.dtype.kind == "f"], jnp.zeros(())), found

    compiled = jax.jit(jax.value_and_grad(loss, has_aux=True))
    for case in cases:
        (_, found), gradient = compiled(t2j(X), t2j(case.mask), case.number)
        yield case, _difference(found, gradient, case.tensors, case.gradient)


def _together(program: Program, cases: list[Case]) -> Iterator[tuple[Case, str]]:
    """Each case, and what differs where one program maps over all of them, or scans them."""
    masks, numbers = jnp.stack([t2j(case.mask) for case in cases]), jnp.array([case.number for case in cases])
    function = lambda m, k: _leaves(t2j(program)(t2j(X), m, k))
    if program.seed % 4 == 1:
        found = jax.jit(jax.vmap(function))(masks, numbers)
    else:
        found = jax.jit(lambda masks, numbers: jax.lax.scan(lambda _, y: (0, function(*y)), 0, (masks, numbers))[1])(
            masks, numbers
        )
    for i, case in enumerate(cases):
        own = jax.tree.map(operator.itemgetter(i), found)
        yield case, _difference(own, None, case.tensors, None)


def run(seed: int) -> str:
    """How a program ends: nothing where it agrees, that it is refused or left out, or what differs."""
    program = Program(seed)
    with loaded():
        cases = list(_cases(program))
        if not cases:
            return "left out: PyTorch refuses it"
        ways = [_compared] if seed % 2 == 0 else [_compared, _together]
        try:
            for way in ways:
                for case, difference in way(program, cases):
                    if not difference:
                        continue
                    if _rounding_decides(program, case):
                        return "left out: rounding decides"
                    return f"{program.names} of {case.name}, {case.number} ({way.__name__}): {difference}"
        except TracedValueError as error:
            return f"refused: {program.names} {str(error)[:600]}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200, help="how many programs")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    set_flags()
    keep_context()
    kinds: collections.Counter[str] = collections.Counter()
    for seed in range(options.first, options.first + options.seeds):
        try:
            found = run(seed)
        except Exception as error:
            found = f"{Program(seed).names}: {type(error).__name__}: {str(error)[:300]}"
        kind = found.partition(":")[0]
        kinds["agree" if not found else kind if kind in ("refused", "left out") else "differ"] += 1
        if found:
            print(seed, found, flush=True)
        if seed % 50 == 49:
            print(f"up to {seed}: {dict(kinds)}", flush=True)
            jax.clear_caches()
    print(dict(kinds))
    return int(kinds["differ"] > 0)


if __name__ == "__main__":
    sys.exit(main())
