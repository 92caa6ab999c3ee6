"""PyTorch's database of modules: what each gives in PyTorch, and what it gives translated."""

import copy
import itertools
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from torch.testing._internal.common_modules import ModuleInfo, module_db
from torch.utils import _pytree as pytree

from torch2jax import t2j

from . import exceptions
from .compare import compare, compare_trees, sizes
from .outcome import quiet, refusing

__all__ = ["ModuleCase", "check_module", "module_cases", "module_db"]


class ModuleCase(NamedTuple):
    """One module, and the arguments for one call of it."""

    name: str
    module: torch.nn.Module
    args: tuple
    kwargs: dict


def module_cases(
    info: ModuleInfo, dtype: torch.dtype, training: bool, limit: int | None = None, requires_grad: bool = True
) -> Iterator[ModuleCase]:
    """The first cases of a module, the same ones in every run."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = info.module_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=requires_grad, training=training
        )
        for each in itertools.islice((x for x in inputs if x.forward_input is not None), limit):
            built = each.constructor_input
            module = info.module_cls(*built.args, **built.kwargs).to(dtype).train(training)
            if info.is_lazy:
                module(*each.forward_input.args, **each.forward_input.kwargs)
            yield ModuleCase(info.name, module, each.forward_input.args, each.forward_input.kwargs)


@quiet()
def check_module(case: ModuleCase, eager: bool = True) -> None:
    """Compares outputs, buffers afterwards, and gradients of parameters and inputs; under jit, and perhaps eager."""
    leaves, spec = pytree.tree_flatten((case.args, case.kwargs))
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    state = dict(case.module.state_dict())
    trained = {name: state[name] for name, parameter in case.module.named_parameters() if parameter.requires_grad}
    wanted = [i for i in at if leaves[i].requires_grad]
    expected = _Expected(case, leaves, spec, wanted)
    call, fixed = t2j(case.module), {name: t2j(x) for name, x in state.items() if name not in trained}
    static: list[Any] = []

    def run(trained, arrays, fixed):
        filled = [t2j(leaf) if i in at else leaf for i, leaf in enumerate(leaves)]
        for i, array in zip(wanted, arrays, strict=True):
            filled[i] = array
        args, kwargs = pytree.tree_unflatten(filled, spec)
        rng = jax.random.key(0) if expected.is_drawn else None
        result, new = call(*args, state_dict={**fixed, **trained}, return_state_dict=True, rng=rng, **kwargs)
        results, tree = pytree.tree_flatten(result)
        static[:] = [tree]
        return [x for x in results if isinstance(x, jax.Array)], new

    def loss(trained, arrays, fixed):
        results, new = run(trained, arrays, fixed)
        parts = [results[i] for i in expected.keep]
        total = sum((jnp.sum(x * t2j(c.conj())).real for x, c in zip(parts, expected.cotangents, strict=True)), 0.0)
        return total, (results, new)

    given = t2j(trained), [t2j(leaves[i]) for i in wanted], fixed
    (_, under_jit), (of_trained, of_inputs) = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(*given)
    for results, new in (under_jit, run(*given)) if eager else (under_jit,):
        assert static == [expected.spec], f"{case.name}: gives {static[0]}, PyTorch {expected.spec}"
        if expected.is_drawn:
            assert sizes(results) == sizes(expected.outputs)
            continue
        tolerance = exceptions.tolerance_for(case.name, "values", expected.dtype)
        compare_trees(results, expected.outputs, case.name, tolerance=tolerance)
        for name, buffer in expected.buffers.items():
            compare(new[name], buffer, f"{case.name}: buffer {name} afterwards", tolerance=tolerance)
    if expected.is_drawn:
        return
    tolerance = exceptions.tolerance_for(case.name, "gradients", expected.dtype)
    for name in trained:
        compare(
            of_trained[name].conj(), expected.of_trained[name], f"{case.name}: gradient of {name}", tolerance=tolerance
        )
    for i, (got, want) in enumerate(zip(of_inputs, expected.of_inputs, strict=True)):
        compare(got.conj(), want, f"{case.name}: gradient of input {i}", tolerance=tolerance)


class _Expected:
    """What PyTorch gives for a case."""

    def __init__(self, case: ModuleCase, leaves: list, spec, wanted: list[int]):
        module = copy.deepcopy(case.module)
        filled = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        inputs = [filled[i].requires_grad_() for i in wanted]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        before = torch.get_rng_state()
        results, self.spec = pytree.tree_flatten(refusing(module, *args, **kwargs))
        self.is_drawn = not torch.equal(before, torch.get_rng_state())
        self.outputs = [x for x in results if isinstance(x, torch.Tensor)]
        self.keep = [i for i, x in enumerate(self.outputs) if x.requires_grad]
        torch.manual_seed(1)
        self.cotangents = [torch.randn_like(self.outputs[i]) for i in self.keep]
        trained = {name: x for name, x in module.named_parameters() if x.requires_grad}
        of = [*trained.values(), *inputs]
        grads = [None] * len(of)
        if self.keep and of:
            kept = [self.outputs[i] for i in self.keep]
            grads = torch.autograd.grad(kept, of, self.cotangents, allow_unused=True)
        grads = [torch.zeros_like(x) if grad is None else grad.to_dense() for x, grad in zip(of, grads, strict=True)]
        self.of_trained, self.of_inputs = dict(zip(trained, grads, strict=False)), grads[len(trained) :]
        self.buffers = dict(module.named_buffers())
        self.dtype = next((x.dtype for x in self.outputs), torch.float32)
