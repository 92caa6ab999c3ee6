"""An ``out=`` tensor of a wrong dtype, or on another device, is refused where PyTorch refuses it.

``python -m tests.calls.test_out_dtypes`` asks every entry of the operator database that takes one.
"""

from collections.abc import Iterator

import jax
import pytest
import torch

from tests.ops.database import Case, cases, dtypes_of, entries, entry, full_name
from tests.refusals import refusal
from torch2jax import t2j

WRONG = (torch.int64, torch.float64, torch.complex64, torch.bool, torch.float16)
BASES = (torch.float32, torch.int64)
NAMES = (
    "add",
    "all",
    "any",
    "cumsum",
    "gather",
    "heaviside",
    "index_reduce.amax",
    "linalg.svd",
    "max.reduction_with_dim",
)
NAMES += ("mm", "msort", "multinomial", "nanmean", "slice_scatter", "sort", "sum", "tensordot", "topk", "where")
# What PyTorch's samples do not need, and what its kernels happen to lack.
FREE = {
    "cholesky": "an operator that later versions of PyTorch lack",
    "normal": "of another type: PyTorch's kernel is not implemented",
}


def outs(case: Case) -> Iterator[tuple]:
    """What makes an out with one wrong tensor in it, and what is wrong with that."""
    if any(x.layout != torch.strided for x in case.tensors) or "out" in case.sample.kwargs:
        return
    try:
        result = case.function(*case.twins())
    except Exception:  # of a sample that is none
        return
    parts = [result] if isinstance(result, torch.Tensor) else list(result) if isinstance(result, (tuple, list)) else []
    if not parts or not all(isinstance(x, torch.Tensor) for x in parts):
        return
    for dtype, device in (*((x, "cpu") for x in WRONG), (None, "meta")):
        for place in range(len(parts)):

            def make(dtype=dtype, device=device, place=place):
                made = [
                    torch.empty(x.shape, dtype=dtype or x.dtype, device=device) if i == place else torch.empty_like(x)
                    for i, x in enumerate(parts)
                ]
                return made[0] if isinstance(result, torch.Tensor) else tuple(made)

            if dtype != parts[place].dtype:
                yield make, f"out {place} of {dtype or device}"


def disagreements(name: str) -> tuple[int, list[str]]:
    """How many wrong outs of an entry there are, and those that are refused by one side alone."""
    op, count, wrong = entry(name), 0, []
    for dtype in BASES:
        for case in cases(op, dtype, 1) if dtype in dtypes_of(op) else []:
            for make, what in outs(case):

                def run(*tensors, case=case, make=make):
                    case.call(lambda *args, **kwargs: op.op(*args, **kwargs, out=make()), *tensors)

                def typed(*tensors, case=case, run=run):
                    run(*(x.to(like.dtype) for x, like in zip(tensors, case.tensors, strict=True)))

                wanted = refusal(run, *case.twins())
                arrays = [t2j(x) for x in case.twins()]
                found = refusal(lambda: t2j(typed)(*arrays, rng=jax.random.key(0)))  # noqa: B023
                count += 1
                if not isinstance(found, type(wanted)) and name not in FREE:
                    wrong.append(f"{case}\n{what}: got {found!r}, wanted {wanted!r}")
    return count, wrong


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_wrong_outs_are_refused_as_in_pytorch(name):
    count, wrong = disagreements(name)
    assert count
    assert wrong == []


def test_an_out_of_many_elements():
    for function in (torch.sort, torch.topk):
        x, outs = torch.ones(2**17), (torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.int64))
        args = (x, 5) if function is torch.topk else (x,)
        with pytest.raises(RuntimeError, match="type"):
            t2j(lambda x, args=args, outs=outs, function=function: function(x, *args[1:], out=outs))(t2j(x))


def _main() -> None:
    for op in entries():
        if op.supports_out:
            for line in disagreements(full_name(op))[1]:
                print(line, flush=True)


if __name__ == "__main__":
    _main()
