"""PyTorch's operator database of mask selections, against PyTorch: ``python -m tests.ops.chosen_database``.

Each sample's tensors are what a traced mask chooses of longer ones, along the first dimension or along the last. What
is not chosen is nan, or an integer far from all others: it may be in no value and in no gradient. An operator that is
refused is counted by its message. `squeeze` of a dimension that data decide keeps it, as docs/lengths.md says.

    python -m tests.ops.chosen_database                # all entries, their first two samples
    python -m tests.ops.chosen_database softmax amax --samples 20 --show
"""

import argparse
import collections
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tests.compiling import keep_context, set_flags
from tests.ops.database.samples import Case, cases, entries
from torch2jax import Padded, TracedValueError, t2j

Tensor = torch.Tensor
_RANDOM = ("bernoulli", "dropout", "multinomial", "normal", "rand", "uniform", "rrelu", "cauchy", "exponential")
_RANDOM += ("geometric", "log_normal", "empty", "new_empty", "scaled_dot_product_attention")


class Trial(NamedTuple):
    """A case, which of its tensors are chosen, and along which dimension."""

    case: Case
    chosen: tuple[bool, ...]
    dim: int

    @property
    def is_other(self) -> bool:
        """Whether it is documented to differ: a dimension of one is chosen, and squeezed."""
        is_squeezed = any(word in self.case.name for word in ("squeeze", "corrcoef", "cov"))
        return is_squeezed and self.case.tensors[0].shape[self.dim] == 1

    def run(self) -> str:
        """What is wrong: nothing, where the text is empty; or that it is refused."""
        tensors = [x.detach() for x in self.case.tensors]
        count = tensors[0].shape[self.dim]
        mask = _mask(count)
        wholes = [_spread(x, mask, self.dim) if is_it else x for x, is_it in zip(tensors, self.chosen, strict=True)]
        trained = [x for x in wholes if x.is_floating_point()]

        def function(mask, wholes):
            by_mask = (slice(None),) * (self.dim % tensors[0].ndim)
            operands = [x[(*by_mask, mask)] if is_it else x for x, is_it in zip(wholes, self.chosen, strict=True)]
            found = self.case.comparable(self.case.function(*operands), *operands)
            return found if isinstance(found, Tensor) else list(found)

        try:
            wanted = function(mask, [x.clone() for x in wholes])
        except Exception:
            return "left out"  # samples that PyTorch takes with their own strides only

        def loss(trained, mask, wholes):
            at = iter(trained)
            found = t2j(function)(mask, [next(at) if x.dtype.kind == "f" else x for x in wholes])
            leaves = jax.tree.leaves(found, is_leaf=lambda x: isinstance(x, Padded))
            arrays = [x.values if isinstance(x, Padded) else x for x in leaves]
            return sum(
                [(x * 1.0).sum() for x in arrays if jnp.issubdtype(x.dtype, jnp.floating)], jnp.zeros(())
            ), leaves

        slopes = self._slopes(function, mask, wholes)
        given = [t2j(x) for x in trained], t2j(mask), [t2j(x) for x in wholes]
        try:
            if slopes is None:
                (_, leaves), gradients = jax.jit(loss)(*given), []
            else:
                compiled = jax.jit(jax.value_and_grad(loss, has_aux=True, allow_int=True))
                (_, leaves), gradients = compiled(*given)
        except TracedValueError as error:
            return f"refused: {str(error)[:110]}"
        except RuntimeError as error:
            if not any(
                words in str(error) for words in ("mask selection", "mask selected", "data-dependent", "data decide")
            ):
                raise
            return f"refused: {str(error)[:110]}"
        for one, other in zip(leaves, jax.tree.leaves(wanted), strict=True):
            one = np.asarray(one.compact() if isinstance(one, Padded) else one)
            if one.shape != tuple(other.shape):
                return f"got the shape {one.shape}; wanted {tuple(other.shape)}"
            if not _close(one, other):
                return f"got {one.ravel()[:8]}; wanted {other.ravel()[:8]}"
        for one, other in zip(gradients, slopes or (), strict=True):
            if not np.allclose(one, other.numpy(), 1e-3, 1e-3, equal_nan=True):
                return f"gradient {np.asarray(one).ravel()[:12]}; wanted {other.ravel()[:12]}"
        return ""

    def _slopes(self, function, mask: Tensor, wholes: list[Tensor]) -> list[Tensor] | None:
        """PyTorch's gradients; None where it has none."""
        leaves = [x.clone().requires_grad_() if x.is_floating_point() else x for x in wholes]
        trained = [x for x in leaves if x.requires_grad]
        try:
            results = [x for x in jax.tree.leaves(function(mask, leaves)) if x.requires_grad]
            if not results:
                return None
            wanted = torch.autograd.grad(sum(x.sum() for x in results), trained, allow_unused=True)
        except Exception:
            return None  # of an operator that is not differentiated
        return [torch.zeros_like(x) if slope is None else slope for x, slope in zip(trained, wanted, strict=True)]


def _close(one: np.ndarray, other: Tensor) -> bool:
    if other.dtype == torch.bfloat16:  # which NumPy has not
        one, other = one.astype(np.float32), other.float()
    return np.allclose(one, other.numpy(), 1e-3, 1e-4, equal_nan=True)


def _mask(count: int) -> Tensor:
    """A mask that chooses so many, with others before, between and behind them."""
    mask = torch.ones(count, dtype=torch.bool)
    nothing = torch.zeros(1, dtype=torch.bool)
    return torch.cat([nothing, mask[:1], nothing, mask[1:], nothing])


def _spread(tensor: Tensor, mask: Tensor, dim: int) -> Tensor:
    """A longer tensor of which the mask chooses this one."""
    front = tensor.movedim(dim, 0)
    whole = torch.full((len(mask), *front.shape[1:]), 0, dtype=tensor.dtype)
    whole[:] = float("nan") if tensor.is_floating_point() else 1 if tensor.dtype == torch.bool else 101
    whole[mask] = front
    return whole.movedim(0, dim).contiguous()


def trials(name: str, samples: int) -> list[Trial]:
    """Of each sample: its first tensor chosen, and all tensors that are as long."""
    found = []
    for op in entries(name):
        if any(word in op.name for word in _RANDOM) or torch.float32 not in op.supported_dtypes("cpu"):
            continue
        few = [x for x in cases(op, torch.float32, 60) if _may_be_chosen(x)]
        for case in few[:samples]:
            first = case.tensors[0]
            for dim in (0, -1)[: first.ndim]:
                alone = (True, *[False] * (len(case.tensors) - 1))
                alike = tuple(x.ndim == first.ndim and x.shape[dim] == first.shape[dim] for x in case.tensors)
                found += [Trial(case, chosen, dim) for chosen in dict.fromkeys((alone, alike))]
    return found


def _may_be_chosen(case: Case) -> bool:
    tensors = case.tensors
    is_dense = all(x.layout == torch.strided for x in tensors)  # no other has a selection by a mask
    return (
        is_dense and bool(tensors) and tensors[0] is case._leaves[0] and tensors[0].ndim > 0 and tensors[0].numel() > 1
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["*"])
    parser.add_argument("--samples", type=int, default=2, help="how many samples of each entry")
    parser.add_argument("--part", default="0/1", help="which part of the entries, as 2/8")
    parser.add_argument("--show", action="store_true", help="what is refused, too")
    options = parser.parse_args()
    set_flags()
    keep_context()
    part, parts = map(int, options.part.split("/"))
    kinds: collections.Counter[str] = collections.Counter()
    names = list(dict.fromkeys(op.name for name in options.names for op in entries(name)))[part::parts]
    for name in names:
        for trial in trials(name, options.samples):
            if trial.is_other:
                continue
            try:
                wrong = trial.run()
            except Exception as error:
                wrong = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            kind = wrong.partition(":")[0] if wrong.startswith(("refused", "left out")) else "differ"
            kinds[kind if wrong else "agree"] += 1
            if wrong and (kind == "differ" or options.show):
                which = f"{list(trial.chosen)} along {trial.dim}"
                print(f"{kind}: {trial.case.name} {[tuple(x.shape) for x in trial.case.tensors]} {which}: {wrong}")
                if kind == "differ":
                    print(f"    {str(trial.case.sample)[:300]}", flush=True)
    print(dict(kinds))
    return int(kinds["differ"] > 0)


if __name__ == "__main__":
    sys.exit(main())
