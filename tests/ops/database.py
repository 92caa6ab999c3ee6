"""Runs the samples of PyTorch's operator database in PyTorch and translated, and compares everything that comes out.

As a script it reports on single operators:
``python -m tests.ops.database add 'linalg.*' --dtype float32 --grad --jit``.
"""

import argparse
import fnmatch
import functools
import itertools
import traceback
import warnings
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

from torch2jax import t2j

TOLERANCES = {  # of the coarser dtype of the two compared: (relative, absolute)
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (2e-2, 2e-2),
    torch.float32: (2e-5, 2e-5),
    torch.complex64: (2e-5, 2e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex128: (1e-7, 1e-7),
}


def entries(pattern: str = "*") -> Iterator[OpInfo]:
    """The entries of the operator database whose full name (with variant) matches."""
    for op in op_db:
        name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
        if fnmatch.fnmatch(op.name, pattern) or fnmatch.fnmatch(name, pattern):
            yield op


def samples(op: OpInfo, dtype: torch.dtype, limit: int | None, requires_grad: bool = False) -> list[SampleInput]:
    """The first samples of an operator, the same ones in every run."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=requires_grad), limit))


def compare(actual, expected: torch.Tensor, what: str = "") -> None:
    """Asserts that an array has a tensor's shape and, to tolerance, its values."""
    assert isinstance(actual, (jax.Array, np.ndarray, int, float, bool, complex)), f"{what}: got {type(actual)}"
    if isinstance(expected, torch.Tensor):
        assert tuple(np.shape(actual)) == tuple(expected.shape), f"{what}: {np.shape(actual)} != {expected.shape}"
        assert jnp.asarray(actual).dtype == t2j(expected.dtype), f"{what}: {actual.dtype} != {expected.dtype}"
        rtol, atol = TOLERANCES.get(expected.dtype, (0, 0))
        if not jax.config.jax_enable_x64 and expected.dtype in (torch.float64, torch.complex128):
            rtol, atol = TOLERANCES[torch.float32]
        wide = np.complex128 if expected.is_complex() else np.float64
        want = t2j(expected.detach())
        np.testing.assert_allclose(
            np.asarray(actual).astype(wide), np.asarray(want).astype(wide), rtol, atol, err_msg=what
        )
    else:
        np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), err_msg=what)


def compare_trees(actual, expected, what: str = "") -> None:
    """Asserts that two results agree leaf by leaf."""
    got, want = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    assert len(got) == len(want), f"{what}: {len(got)} results, expected {len(want)}"
    for a, e in zip(got, want, strict=True):
        if isinstance(e, torch.Tensor):
            compare(a, e, what)
        else:
            assert a == e or (a != a and e != e), f"{what}: {a!r} != {e!r}"


def translated(op, sample: SampleInput):
    """The operator on a sample's tensors, as a function of these tensors alone."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def function(*tensors):
        filled = list(leaves)
        for i, tensor in zip(at, tensors, strict=True):
            filled[i] = tensor
        inputs, args, kwargs = pytree.tree_unflatten(filled, spec)
        return op(inputs, *args, **kwargs)

    return function, [leaves[i] for i in at]


def quietly(check):
    """Lets a check pass over what PyTorch and the translation warn of: samples use what is deprecated or writes."""

    @functools.wraps(check)
    def quiet(*args, **kwargs):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return check(*args, **kwargs)

    return quiet


@quietly
def check_values(op: OpInfo, sample: SampleInput, jit: bool = False) -> None:
    """Compares the results of one sample."""
    function, tensors = translated(op, sample)
    expected = function(*(tensor.detach().clone() for tensor in tensors))
    call = t2j(function)
    # Called without jit, real tensors keep 64-bit types logical with x64 off.
    actual = jax.jit(call)(*(t2j(tensor) for tensor in tensors)) if jit else call(*tensors)
    compare_trees(actual, expected, op.name)


@quietly
def check_gradients(op: OpInfo, sample: SampleInput) -> None:
    """Compares the gradients for a random cotangent of every input that requires grad."""
    function, tensors = translated(op, sample)
    wanted = [i for i, tensor in enumerate(tensors) if tensor.requires_grad]
    if not wanted:
        return

    def outputs(*given):
        result = function(*given)
        result = sample.output_process_fn_grad(result) if sample.output_process_fn_grad else result
        return [
            x
            for x in pytree.tree_leaves(result)
            if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())
        ]

    expected = outputs(*tensors)
    keep = [i for i, out in enumerate(expected) if out.requires_grad]
    if not keep:
        return
    cotangents = [torch.randn_like(expected[i]) for i in keep]
    grads = torch.autograd.grad(
        [expected[i] for i in keep], [tensors[i] for i in wanted], cotangents, allow_unused=True
    )

    def of_wanted(*arrays):
        given = list(tensors)
        for i, array in zip(wanted, arrays, strict=True):
            given[i] = array
        result = t2j(outputs)(*given)
        return [result[i] for i in keep]

    _, vjp = jax.vjp(of_wanted, *(t2j(tensors[i]) for i in wanted))
    actual = vjp([jnp.conj(t2j(c)) for c in cotangents])
    for i, (got, want) in enumerate(zip(actual, grads, strict=True)):
        want = torch.zeros_like(tensors[wanted[i]]) if want is None else want
        compare(jnp.conj(got), want, f"{op.name}: gradient {i}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("patterns", nargs="+")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--grad", action="store_true")
    parser.add_argument("--jit", action="store_true")
    parser.add_argument("--x64", action="store_true")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print the traceback of each operator's first failure"
    )
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", options.x64)
    dtype = getattr(torch, options.dtype)
    passed = failed = 0
    for op in (op for pattern in options.patterns for op in entries(pattern)):
        name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
        if dtype not in op.supported_dtypes("cpu"):
            continue
        errors = []
        cases = samples(op, dtype, options.limit)
        for sample in cases:
            try:
                check_values(op, sample, options.jit)
            except Exception as error:
                errors.append((f"value {str(sample)[:300]}", error))
        if options.grad and op.supports_autograd and dtype in op.supported_backward_dtypes("cpu"):
            for sample in samples(op, dtype, options.limit, requires_grad=True):
                try:
                    check_gradients(op, sample)
                except Exception as error:
                    errors.append((f"gradient {str(sample)[:300]}", error))
        if errors:
            failed += 1
            sample, error = errors[0]
            print(
                f"FAIL {name}: {len(errors)} of {len(cases)}; first: {type(error).__name__}: {str(error).strip()[:300]}"
            )
            if options.verbose:
                print(sample)
                traceback.print_exception(error)
        else:
            passed += 1
    print(f"{passed} passed, {failed} failed")


if __name__ == "__main__":
    main()
