"""What functions are said to be, by tags of their rules and by PyTorch's schemas, and what PyTorch does in them."""

import itertools
import types

import pytest
import torch
from torch.utils import _pytree as pytree

from torch2jax.rules import registry
from torch2jax.rules.options import Tag

from ..ops.database.samples import dtypes_of, entries, full_name

NAMESPACES = (torch, torch.Tensor, torch.nn.functional, torch.linalg, torch.special, torch.fft)
SEEMING = {
    "nn.functional.pad.reflect": "PyTorch says that its gradients depend on the operand, by zero",
    "nn.functional.pad.replicate": "likewise",
    "nn.functional.pad.replicate_negative": "likewise",
}


def functions() -> dict[str, object]:
    """The functions of PyTorch's interface, with those that get and set properties."""
    found = {}
    for owner in NAMESPACES:
        for name in dir(owner):
            function = getattr(owner, name)
            if isinstance(function, (type, types.ModuleType)):
                continue
            if callable(function):
                found[f"{owner.__name__}.{name}"] = function
            elif type(function) is type(torch.Tensor.shape):
                found[f"{owner.__name__}.{name}"] = function.__get__
                found[f"{owner.__name__}.{name} = "] = function.__set__
    return found


FUNCTIONS = {name: function for name, function in functions().items() if function.__hash__ is not None}


def tagged(tag: Tag) -> set[str]:
    return {name for name, function in FUNCTIONS.items() if tag in registry.tags_of(function)}


def _is_operator(function) -> bool:
    """Whether a function of PyTorch stands for operators of the name it bears."""
    name = getattr(function, "__name__", "")
    return not isinstance(function, types.FunctionType) and isinstance(
        getattr(torch.ops.aten, name, None), torch._ops.OpOverloadPacket
    )


def overloads(function) -> list[torch._ops.OpOverload]:
    packet = getattr(torch.ops.aten, function.__name__)
    found = [getattr(packet, name) for name in packet.overloads()]
    return [x for x in found if torch._C._dispatch_has_kernel(x.name())]


def test_what_pytorch_says_to_be_random_is():
    seeded = {
        name
        for name, function in FUNCTIONS.items()
        if _is_operator(function) and any(torch.Tag.nondeterministic_seeded in x.tags for x in overloads(function))
    }
    assert not seeded - tagged(Tag.RANDOM)
    assert len(seeded) > 50


def test_names_decide_nothing():
    for name in ("isfinite", "gradient", "is_grad_enabled", "set_flush_denormal", "init_num_threads"):
        assert not registry.tags_of(getattr(torch, name)) & {Tag.RANDOM, Tag.AUTOGRAD}
    for name in ("__rand__", "isfinite"):
        assert Tag.RANDOM not in registry.tags_of(getattr(torch.Tensor, name))


def test_rules_that_draw_are_random():
    for name, function in FUNCTIONS.items():
        if getattr(registry.lookup(function), "random", False):
            assert Tag.RANDOM in registry.tags_of(function), name


def test_what_schemas_say_to_be_written_is():
    for name, function in FUNCTIONS.items():
        if not _is_operator(function):
            continue
        written = [
            argument
            for x in overloads(function)
            if torch.Tag.inplace_view not in x.tags
            for argument in x._schema.arguments
            if argument.is_write and not argument.is_out
        ]
        tags = registry.tags_of(function)
        assert bool(written) <= bool(tags & {Tag.WRITES, Tag.WRITES_OTHERS}), name
        assert not (written and Tag.FRESH in tags), name


def test_views_of_schemas_are_not_said_to_be_new():
    wrong = set()
    for function in filter(_is_operator, FUNCTIONS.values()):
        gives_views = any(
            result.alias_info is not None and not result.alias_info.is_write
            for x in overloads(function)
            for result in x._schema.returns
        )
        if gives_views and Tag.FRESH in registry.tags_of(function):
            wrong.add(function.__name__)
    assert not wrong


def test_properties_of_autograd_are_tagged():
    names = {"grad", "requires_grad", "is_leaf", "grad_fn", "retains_grad", "_backward_hooks", "_grad", "_grad_fn"}
    found = {name.split(".")[-1].removesuffix(" = ") for name in tagged(Tag.AUTOGRAD)}
    assert names <= found
    methods = {"backward", "register_hook", "register_post_accumulate_grad_hook", "requires_grad_", "retain_grad"}
    assert found - names - methods <= {"grad_dtype", "_post_accumulate_grad_hooks"}


def _tensors(tree) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor) and x.layout is torch.strided]


def _copied(tree):
    return pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, tree)


@pytest.mark.filterwarnings("ignore")
def test_pytorchs_functions_do_what_their_tags_say():
    wrong, runs = [], 0
    for op in entries():
        dtype = next(iter(dtypes_of(op)), torch.float32)
        samples = op.sample_inputs_func(op, torch.device("cpu"), dtype, requires_grad=False)
        for function, sample in itertools.product((op.op, op.method_variant, op.inplace_variant), _first(samples)):
            if function is None or function.__hash__ is None or _is_of_python(function):
                continue
            args, kwargs = _copied(((sample.input, *sample.args), sample.kwargs))
            given, state = _tensors((args, kwargs)), torch.get_rng_state()
            versions, memories = [x._version for x in given], {x.untyped_storage()._cdata for x in given}
            try:
                result = function(*args, **kwargs)
            except Exception:
                continue
            runs += 1
            written = [i for i, x in enumerate(given) if x._version != versions[i]]
            shares = any(x.untyped_storage()._cdata in memories for x in _tensors(result))
            tags, name = registry.tags_of(function), full_name(op)
            if not torch.equal(state, torch.get_rng_state()) and Tag.RANDOM not in tags:
                wrong.append(f"{name} draws random numbers")
            if shares and Tag.FRESH in tags:
                wrong.append(f"{name} gives old memory")
            if written and not (tags & {Tag.WRITES, Tag.WRITES_OTHERS} or _is_of_form(function)):
                wrong.append(f"{name} writes to {written}")
            if written not in ([], [0]) and Tag.WRITES in tags:
                wrong.append(f"{name} writes to {written}")
    assert not wrong
    assert runs > 1000


def _first(samples) -> list:
    try:
        return [*itertools.islice(samples, 3)]
    except Exception:
        return []


def _is_of_python(function) -> bool:
    """Whether what serves a function is its own body, which calls others."""
    return registry.lookup(function) is None and not isinstance(
        function, (types.BuiltinFunctionType, type(torch.Tensor.add))
    )


def _is_of_form(function) -> bool:
    """Whether a function writes to what a tensor is, as its shape."""
    return any(torch.Tag.inplace_view in x.tags for x in overloads(function))


@pytest.mark.filterwarnings("ignore")
def test_derivatives_of_what_is_linear_depend_on_nothing():
    found = {Tag.LINEAR: set(), Tag.PRODUCT: set(), Tag.QUOTIENT: set()}
    for op in entries():
        tags = {*found} & registry.tags_of(op.op) if op.op.__hash__ is not None else set()
        if not tags or torch.float32 not in op.supported_backward_dtypes("cpu"):
            continue
        (tag,) = tags
        for sample in _first(op.sample_inputs_func(op, torch.device("cpu"), torch.float32, requires_grad=True)):
            given = [x for x in _tensors((sample.input, sample.args, sample.kwargs)) if x.requires_grad]
            result = op.op(sample.input, *sample.args, **sample.kwargs)
            gradients = torch.autograd.grad(result, given, torch.ones_like(result), create_graph=True)
            depends = any(x.requires_grad for x in gradients)
            assert not (tag is Tag.LINEAR and depends and full_name(op) not in SEEMING), full_name(op)
            if depends or tag is Tag.LINEAR:
                found[tag].add(op.name)
    assert len(found[Tag.LINEAR]) >= 19
    assert len(found[Tag.PRODUCT]) > 7
    assert found[Tag.QUOTIENT] == {"div"}
