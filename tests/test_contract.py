"""What the package expects of PyTorch and JAX, private names above all. Run it first with a new release of either.

Nothing is compiled here. A failure names what the release has taken away, or added.
"""

import ast
import importlib
import inspect
import pkgutil
import sys
import types
from collections.abc import Iterator

import jax
import pytest
import torch

from tests import watched_patches
from tests.names_of_libraries import ROOT, used_names
from tests.patch_programs import PROGRAMS
from torch2jax import t2j
from torch2jax.internals.prims import prims_module
from torch2jax.rules import registry
from torch2jax.rules.tables import PROVIDED
from torch2jax.runtime import patches

OF_SOME_RELEASES = {
    "aten::_upsample_lanczos2d_aa",
    "aten::cholesky",
    "aten::linalg_matrix_sqrth",
    "aten::linalg_polar",
}
# Keywords that are taken off before a rule sees them, or are always given by place.
TAKEN_OFF = {"out", "device", "layout", "pin_memory", "requires_grad", "memory_format", "names", "generator", "self"}


def _is_there(name: str) -> bool:
    """Whether a name leads to something. What a value has, which is neither a module nor a class, is not looked up."""
    parts = name.split(".")
    found, known = None, 0
    for count in range(1, len(parts) + 1):
        try:
            found, known = importlib.import_module(".".join(parts[:count])), count
        except ImportError:
            break
    for part in parts[known:]:
        if not isinstance(found, (types.ModuleType, type)):
            return True
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return bool(known)


@pytest.mark.filterwarnings("ignore")  # that a name is to go: it is there
@pytest.mark.parametrize("room", sorted({path.relative_to(ROOT).parts[0] for path in ROOT.rglob("*.py")}))
def test_every_name_of_the_libraries_is_there(room):
    paths = (ROOT / room).rglob("*.py") if (ROOT / room).is_dir() else [ROOT / room]
    gone = {
        f"{name}, in {path.relative_to(ROOT)}"
        for path in paths
        for _, name in used_names(ast.parse(path.read_text()), optional=False)
        if not _is_there(name)
    }
    assert not gone


def test_a_name_that_is_gone_is_found():
    found = {name for _, name in used_names(ast.parse("import torch as t\nt.nn.functional.nowhere(1).real"))}
    assert "torch.nn.functional.nowhere" in found
    assert not _is_there("torch.nn.functional.nowhere")
    assert _is_there("torch.nn.functional.relu")


def test_every_patch_has_its_target():
    assert watched_patches.names()
    assert not patches.absent()


def test_a_target_that_is_gone_is_an_error_in_tests():
    for declare in (patches.replaces, lambda owner, name: patches.exchange(owner, name, None)):
        with pytest.raises(AttributeError, match=r"torch\.linalg\.nowhere"):
            declare(torch.linalg, "nowhere")(None)
    assert not patches.absent()


def test_every_patch_has_a_program():
    found = {name for name in watched_patches.names() if name.startswith(("torch.", "warnings."))}
    assert not found - set().union(*PROGRAMS.values())


@pytest.mark.filterwarnings("ignore")  # that something is to go: it is there
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_stand_ins_are_called(program):
    if not watched_patches.names().keys() & set(PROGRAMS[program]):  # what stands in from the first use on
        _trace(program)
    wanted = watched_patches.names().keys() & set(PROGRAMS[program])
    with watched_patches.watching() as called:
        _trace(program)
    assert wanted <= called


def _trace(program) -> None:
    jax.eval_shape(lambda x, key: t2j(program)(x, rng=key), jax.ShapeDtypeStruct((3,), "float32"), jax.random.key(0))


def _arguments(function) -> Iterator[str]:
    """The keywords of a function of Python, and those of an operator that are keywords alone."""
    if isinstance(function, torch._ops.OpOverload):
        yield from (x.name for x in function._schema.arguments if x.kwarg_only and not x.is_out)
    elif isinstance(function, torch._ops.OpOverloadPacket):
        for overload in function.overloads():
            yield from _arguments(getattr(function, overload))
    elif isinstance(function, torch._ops.HigherOrderOperator):
        yield from _arguments(type(function).__call__)
    elif inspect.isfunction(function) and function.__name__.strip("_") in ("call", function.__name__):
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
        yield from (x.name for x in parameters if x.kind in (x.KEYWORD_ONLY, x.POSITIONAL_OR_KEYWORD))


def test_rules_take_every_keyword():
    missing = set()
    for function, rule in PROVIDED.functions.items():
        if not hasattr(rule, "body"):
            continue
        try:
            parameters = inspect.signature(rule.body).parameters.values()
        except ValueError:  # of a function of PyTorch's, which is run as it is
            continue
        if any(x.kind is x.VAR_KEYWORD for x in parameters):
            continue
        taken = TAKEN_OFF.union(x.name for x in parameters)
        missing |= {
            f"{name}= of {function}" for name in _arguments(function) if not name.startswith("_") and name not in taken
        }
    assert not missing


# Higher-order operators that code does not call: those of compilers and exporters, of kernels, and of PyTorch's own
# transformations, which others stand in for.
UNSERVED = {
    *("_export_tracepoint", "aoti_call_delegate", "auto_functionalized", "auto_functionalized_v2", "call_torchbind"),
    *("autograd_function_apply", "custom_function_call", "dynamo_bypassing_wrapper", "executorch_call_delegate"),
    *("flat_apply", "flex_attention_backward", "foreach_map", "graphsafe_run_with_rng_state", "inductor_compiled_code"),
    *("inline_asm_elementwise", "invoke_leaf_function", "invoke_quant", "invoke_quant_packed", "local_map_hop"),
    *("print", "register_hook", "run_and_save_rng_state", "run_const_graph", "run_dtensor_rng_op"),
    *("run_with_rng_state", "tag_activation_checkpoint", "triton_kernel_wrapper_functional", "with_effects", "wrap"),
    *("triton_kernel_wrapper_mutation", "while_loop_stack_output", "wrap_activation_checkpoint", "wrap_with_autocast"),
    "wrap_with_set_grad_enabled",
}


def test_higher_order_operators_have_rules():
    """One that a release adds is to get a rule, or a place above."""
    for module in pkgutil.iter_modules(torch._higher_order_ops.__path__):
        importlib.import_module(f"torch._higher_order_ops.{module.name}")
    found = torch._ops._higher_order_ops
    new = {name for name, operator in found.items() if operator not in PROVIDED.functions}
    assert not {name for name in new if type(found[name]).__module__.startswith("torch._higher")} - UNSERVED


def test_what_jax_calls_and_names_is_as_expected():
    """Fields of tracers and of steps, and how many things rules are given and give, in traces that compile nothing."""

    def function(x):
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(x.sin().sum(), x, create_graph=True)  # a level upon a level
        (curvature,) = torch.autograd.grad(slope.sum(), x)
        return curvature * 2 if curvature.sum() > 0 else curvature.cumsum(0)  # a question of a traced value

    x = jax.ShapeDtypeStruct((3,), "float32")
    total = lambda x: t2j(function)(x).sum()
    ways = (
        t2j(function),
        jax.grad(total),
        lambda x: jax.jvp(total, (x,), (x,)),
        lambda x: jax.linearize(total, x)[0],
        jax.vmap(lambda x: t2j(torch.sin)(x)),
        jax.checkpoint(total),
        jax.grad(jax.jit(total)),
        jax.hessian(total),
    )
    for way in ways:
        assert jax.make_jaxpr(way)(x).eqns


def test_operators_of_rules_are_there():
    """Rules by name are of operators that a library or another release of PyTorch has."""
    names = [function for function in PROVIDED.functions if isinstance(function, str)]
    assert all(name.count("::") == 1 for name in names)
    ours = [name for name in names if name.startswith("aten::")]
    found = [name for name in ours if hasattr(torch.ops.aten, name.removeprefix("aten::"))]
    assert set(ours) - set(found) <= OF_SOME_RELEASES


def test_every_prim_that_stands_for_functions_has_a_rule():
    prims = [prim for prim in vars(prims_module).values() if isinstance(prim, torch._ops.OpOverload)]
    assert len(prims) > 100
    assert not [prim for prim in prims if registry.lookup_aten(prim) is None]


def test_what_notes_pytorchs_functions_when_it_is_imported_in_a_call_sees_the_originals(tmp_path, monkeypatch):
    original, within = torch.compiler.is_compiling, []
    (tmp_path / "noting_functions.py").write_text("import torch\nnoted = torch.compiler.is_compiling\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(patches, "_NOTING", frozenset(("noting_functions",)))
    finders = list(sys.meta_path)

    def function(x):
        within.append(torch.compiler.is_compiling)
        module = importlib.import_module("noting_functions")
        within.append(torch.compiler.is_compiling)
        assert inspect.getsource(module).startswith("import torch")
        return x * 2

    t2j(function)(jax.numpy.ones(2))
    assert importlib.import_module("noting_functions").noted is original
    assert within[0] is within[1] is not original
    assert torch.compiler.is_compiling is original
    assert sys.meta_path == finders
