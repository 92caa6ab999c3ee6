"""PyTorch's own samples of operators of sparse tensors, run in PyTorch and in translated calls.

python -m tests.ops.sparse.database                # all operators and layouts: how many samples agree, and why not
python -m tests.ops.sparse.database mul --show     # one operator, with the failures
"""

import argparse
import collections
import itertools
import unittest
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.testing import assert_close
from torch.testing._internal.common_methods_invocations import op_db

from torch2jax import j2t, t2j

from .table import parts_of

LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


class Sampled(NamedTuple):
    """What became of a sample."""

    operator: str
    layout: torch.layout
    error: str
    """Empty where values and layouts agree."""


def _supports(op: Any, layout: torch.layout) -> bool:
    name = "sparse" if layout is torch.sparse_coo else str(layout).removeprefix("torch.")
    return getattr(op, f"supports_{name}", False)


def operators() -> list[Any]:
    """The entries of the database that are about sparse tensors."""
    return [op for op in op_db if any(_supports(op, x) for x in LAYOUTS)]


def samples(op: Any, layout: torch.layout, most: int | None = None) -> Iterator[Any]:
    """Samples that PyTorch itself serves: of compressed layouts those of matrices, and no masked reductions."""
    if not _supports(op, layout) or (op.name.startswith("masked.") and layout is not torch.sparse_coo):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = (x for x in op.sample_inputs_sparse(layout, "cpu", torch.float32) if _of_matrices(x))
            yield from itertools.islice(found, most)
        except (NotImplementedError, RuntimeError, TypeError, ValueError, unittest.SkipTest):
            return


def _of_matrices(sample: Any) -> bool:
    given = (sample.input, *sample.args, *sample.kwargs.values())
    return not any(isinstance(x, torch.Tensor) and x.layout in LAYOUTS[1:] and x.ndim != 2 for x in given)


def run(op: Any, sample: Any, layout: torch.layout) -> Sampled | None:
    """What became of a sample; None where PyTorch refuses it."""
    call = lambda *args: op(sample.input, *sample.args, **sample.kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = call()
            _expect_valid(expected)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return None
        try:
            found = j2t(t2j(call)())
            _expect_same(found, expected)
        except Exception as error:
            return Sampled(op.name, layout, f"{type(error).__name__}: {error}".replace("\n", " ")[:160])
    return Sampled(op.name, layout, "")


def _expect_valid(result: Any) -> None:
    """That PyTorch's result has the invariants of its layout: means of rows, some masked wholly, are made without."""
    if isinstance(result, torch.Tensor) and result.layout in LAYOUTS[1:]:
        index, values = parts_of(result)
        torch._validate_sparse_compressed_tensor_args(index[0], index[1], values, result.shape, result.layout)


def _expect_same(found: Any, expected: Any) -> None:
    if isinstance(expected, (tuple, list)):
        for one, other in zip(found, expected, strict=True):
            _expect_same(one, other)
        return
    assert found.layout is expected.layout, f"got {found.layout}, wanted {expected.layout}"
    found, expected = (x if x.layout is torch.strided else x.to_dense() for x in (found, expected))
    assert_close(found, expected.detach(), check_dtype=False, check_stride=False, equal_nan=True, rtol=1e-4, atol=1e-5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="operators; all by default")
    parser.add_argument("--most", type=int, help="samples of each operator and layout")
    parser.add_argument("--show", action="store_true", help="print the failures")
    options = parser.parse_args()
    agree, total, errors = collections.Counter(), collections.Counter(), collections.Counter()
    for op in operators():
        if options.names and op.name not in options.names:
            continue
        for layout in LAYOUTS:
            for sample in samples(op, layout, options.most):
                result = run(op, sample, layout)
                if result is None:
                    continue
                total[layout] += 1
                agree[layout] += not result.error
                if result.error:
                    errors[result.operator, str(layout), result.error] += 1
    for layout in LAYOUTS:
        print(f"{layout}: {agree[layout]} of {total[layout]}")
    if options.show:
        for (name, layout, error), count in errors.most_common():
            print(count, name, layout, error)


if __name__ == "__main__":
    main()
