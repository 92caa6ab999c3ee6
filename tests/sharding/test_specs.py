"""Plans become partition specs; what is wrong with one is told."""

import collections

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)

from torch2jax import sharding, t2j

MESH = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(32, 16)
        self.norm = nn.LayerNorm(16)
        self.layers = nn.ModuleList([nn.ModuleDict({"up": nn.Linear(16, 64), "down": nn.Linear(64, 16)})])
        self.kernel = nn.Parameter(torch.zeros(8, 6, 16))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, ids):
        x = self.norm(self.table(ids))
        for layer in self.layers:
            x = x + layer["down"](torch.relu(layer["up"](x)))
        return x


def test_no_axes():
    module = Block()
    specs = sharding.specs(module, MESH)
    assert list(specs) == list(module.state_dict())
    assert set(specs.values()) == {P()}


def test_fsdp_splits_the_largest_dimension_that_is_divided():
    specs = sharding.specs(Block(), MESH, fsdp="data")
    assert specs["table.weight"] == P("data", None)
    assert specs["layers.0.up.weight"] == P("data", None)
    assert specs["layers.0.down.weight"] == P(None, "data")
    assert specs["kernel"] == P(None, None, "data")
    assert specs["norm.weight"] == specs["layers.0.up.bias"] == specs["steps"] == P()
    both = sharding.specs(Block(), MESH, fsdp=("data", "model"))
    assert both["table.weight"] == P(("data", "model"), None)
    odd = sharding.specs(nn.Linear(12, 15), MESH, fsdp="model")
    assert odd["weight"] == P(None, "model")
    assert sharding.specs(nn.Linear(5, 7), MESH, fsdp="data")["weight"] == P()


@pytest.mark.parametrize("kind", ["names", "objects"])
def test_plans(kind):
    names = {"table": "embedding_rowwise", "layers.*.up": "colwise", "layers.*.down": "rowwise"}
    objects = {"table": RowwiseParallel(), "layers.*.up": ColwiseParallel(), "layers.*.down": RowwiseParallel()}
    plan = names if kind == "names" else {**objects, "norm": SequenceParallel(), "": PrepareModuleInput()}
    module = Block()
    specs = sharding.specs(module, MESH, tensor="model", plan=plan)
    assert specs["table.weight"] == P("model")
    assert specs["layers.0.up.weight"] == specs["layers.0.up.bias"] == P("model")
    assert specs["layers.0.down.weight"] == P(None, "model")
    assert specs["layers.0.down.bias"] == specs["norm.weight"] == specs["kernel"] == P()
    both = sharding.specs(module, MESH, tensor="model", fsdp="data", plan=plan)
    assert both["table.weight"] == P("model", "data")
    assert both["layers.0.down.weight"] == P("data", "model")
    assert both["layers.0.up.bias"] == P("model")


def test_a_style_for_the_whole_module_and_one_for_a_parameter():
    assert sharding.specs(nn.Linear(8, 8), MESH, tensor="model", plan=ColwiseParallel())["weight"] == P("model")
    specs = sharding.specs(Block(), MESH, tensor="model", experts="data", plan={"kernel": "grouped_gemm"})
    assert specs["kernel"] == P("data")
    packed = sharding.specs(Block(), MESH, tensor="data", plan={"kernel": "packed_colwise"})
    assert packed["kernel"] == P(None, "data")


def test_tied_weights_have_one_spec():
    module = nn.ModuleDict({"table": nn.Embedding(32, 16), "head": nn.Linear(16, 32, bias=False)})
    module["head"].weight = module["table"].weight
    specs = sharding.specs(module, MESH, tensor="model", plan={"head": "colwise"})
    assert specs == {"table.weight": P("model"), "head.weight": P("model")}


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"fsdp": "rows"}, ValueError, "'rows'; the mesh has 'data', 'model'"),
        ({"fsdp": "data", "tensor": "data", "plan": {}}, ValueError, "different axes"),
        ({"tensor": "model"}, ValueError, "Block, which brings no plan .*_tp_plan"),
        ({"tensor": "model", "plan": {"norm": "diagonal"}}, ValueError, "'diagonal' for 'norm'"),
        ({"tensor": "model", "plan": {"norm": 3}}, TypeError, "a int for 'norm'"),
        ({"tensor": "model", "plan": {"kernel": "colwise"}}, ValueError, "dimension 1 of 'kernel'.*'replicate'"),
    ],
)
def test_what_is_wrong_is_told(options, error, words):
    with pytest.raises(error, match=words):
        sharding.specs(Block(), MESH, **options)


def test_one_axis_for_data_and_tensors_is_refused():
    with pytest.raises(ValueError, match="data='model', tensor='model'; wanted different axes"):
        sharding.constrained(Block(), MESH, data="model", tensor="model", plan={})


def test_no_mesh_and_no_such_path():
    with pytest.raises(ValueError, match="no mesh was given"):
        sharding.specs(Block(), fsdp="data")
    with pytest.warns(UserWarning, match="'layer.up', which no module"):
        sharding.specs(Block(), MESH, tensor="model", plan={"layer.up": "colwise"})


def test_trees_like_the_parameters():
    module = Block()
    specs = sharding.specs(module, MESH, fsdp="data")
    params = t2j(module.to("meta").state_dict())
    Moments = collections.namedtuple("Moments", "count mean")
    state = Moments(jax.ShapeDtypeStruct((), jnp.int32), dict(params))
    placed = sharding.put(state, specs, MESH)
    assert placed.count.sharding.spec == P()
    assert {name: x.sharding.spec for name, x in placed.mean.items()} == specs
    assert placed.mean["kernel"].sharding.shard_shape((8, 6, 16)) == (8, 6, 8)
    scalars = sharding.shardings({name: jax.ShapeDtypeStruct((), jnp.float32) for name in params}, specs, MESH)
    assert {x.spec for x in scalars.values()} == {P()}  # as a norm of each gradient


def constraints(function, *args) -> list[P]:
    """The layouts that a program tells XLA, in order."""
    equations = jax.make_jaxpr(function)(*args).jaxpr.eqns
    return [e.params["sharding"].spec for e in equations if e.primitive.name == "sharding_constraint"]


def test_activations():
    module, free = Block(), P.UNCONSTRAINED
    plan = {"table": "embedding_rowwise", "layers.*.up": "colwise", "layers.*.down": "rowwise"}
    params, ids = t2j(module.state_dict()), jnp.zeros((4, 8), jnp.int32)

    def laid(**options):
        copied = sharding.constrained(module, MESH, **options)
        with torch.no_grad():
            expected = module(torch.zeros(4, 8, dtype=torch.int64))
            assert torch.equal(copied(torch.zeros(4, 8, dtype=torch.int64)), expected)  # no hooks but in JAX
        assert copied.table.weight is module.table.weight
        return constraints(lambda params, ids: t2j(copied)(ids, state_dict=params), params, ids)

    assert laid() == []
    whole, split = P("data", None, None), P("data", None, "model")
    assert laid(data="data", tensor="model", plan=plan) == [
        whole,
        whole,
        split,
        split,
        whole,
        P("data", free, free),  # of what has the kernel
    ]
    assert laid(data="data") == [P("data", free, free)] * 4
    assert laid(tensor="model", plan=plan)[-2:] == [P(free, None, "model"), P(free, None, None)]
    assert not module._forward_hooks
    assert not module.table._forward_hooks


def test_layouts_of_other_arguments_and_results():
    class Two(nn.Module):
        def forward(self, x, y, *, mask):
            return x + mask, y

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.two = Two()

        def forward(self, x):
            return self.two(x * 2, x * 3, mask=x * 4)

    module, x = Outer(), jnp.ones((4, 8, 16))

    def laid(style):
        copied = sharding.constrained(module, MESH, data="data", tensor="model", plan={"two": style})
        return constraints(t2j(copied), x)

    before = {
        "input_layouts": (Replicate(), None),
        "desired_input_layouts": (Shard(1), None),
        "input_kwarg_layouts": {"mask": Replicate()},
        "desired_input_kwarg_layouts": {"mask": Shard(-1)},
    }
    after = {"output_layouts": (Replicate(), Replicate()), "desired_output_layouts": (Shard(2), Shard(0))}
    entering = [P("data", "model", None), P("data", None, "model")]
    leaving = [P("data", None, "model"), P(("data", "model"), None, None)]
    assert laid(PrepareModuleInput(**before)) == entering
    assert laid(PrepareModuleOutput(**after))[-2:] == [leaving[0], P(P.UNCONSTRAINED, None, None)]
    assert laid(PrepareModuleInputOutput(**before, **after))[:2] == entering


def test_what_a_module_writes_to_its_argument_is_seen_outside():
    class Adds(nn.Module):
        def forward(self, x):
            x.add_(1)
            return x.sum()

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.adds = Adds()

        def forward(self, x):
            y = x * 2
            self.adds(y)
            return y

    copied = sharding.constrained(Outer(), MESH, data="data", tensor="model", plan={"adds": "colwise"})
    assert jax.eval_shape(t2j(copied), jnp.ones((4, 8))).shape == (4, 8)
    assert (t2j(copied)(jnp.ones((4, 8))) == 3).all()
