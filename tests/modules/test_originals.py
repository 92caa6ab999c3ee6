"""Code in other shapes: exported programs, fx graphs, wrappers of parallel training."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from torch2jax import t2j

X = jnp.arange(6.0).reshape(2, 3) / 4


def real(array):
    return torch.tensor(np.asarray(array))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, options):
        self.calls.add_(1)
        return {"y": self.norm(self.linear(x)), "pair": (x, options["shift"] + 1)}


def expect_state_and_result(translated, names):
    """`translated` is of a module like `Net`, in training, whose state has these names."""
    shift = {"shift": jnp.ones(1)}
    net = Net()
    state = {name: t2j(net.state_dict())[name.rpartition("module.")[2]] for name in names}
    result, new = jax.jit(lambda state: translated(X, shift, state_dict=state, return_state_dict=True))(state)
    expected = net(real(X), {"shift": torch.ones(1)})
    np.testing.assert_allclose(result["y"], expected["y"].detach(), rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(result["pair"][1], [2.0])
    for name, value in new.items():
        np.testing.assert_allclose(value, net.state_dict()[name.rpartition("module.")[2]].detach(), rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch.export's own
def test_exported_programs():
    program = torch.export.export(Net(), (torch.ones(2, 3), {"shift": torch.ones(1)}))
    for thing in (program, program.module(), program.run_decompositions()):
        expect_state_and_result(t2j(thing), program.state_dict)
    assert program.state_dict["calls"] == 0


@pytest.mark.parametrize("wrap", [nn.DataParallel, "distributed"])
def test_wrappers_of_parallel_training(wrap):
    import torch.distributed as distributed

    if wrap == "distributed":
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        wrap = nn.parallel.DistributedDataParallel
    try:
        wrapped = wrap(Net())
        expect_state_and_result(t2j(wrapped), wrapped.state_dict())
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def test_symbolic_tracing_within_a_call():
    def function(x):
        offset = x.sum()
        graph = torch.fx.symbolic_trace(lambda y: torch.relu(y).add(1) + offset)
        assert [node.op for node in graph.graph.nodes].count("placeholder") == 1
        return graph(x), copy.deepcopy(graph)(x), torch.fx.experimental.proxy_tensor.make_fx(torch.sin)(x)(x)

    for run in (t2j(function), jax.jit(t2j(function))):
        first, second, third = run(X)
        np.testing.assert_allclose(first, jax.nn.relu(X) + 1 + X.sum(), rtol=1e-6)
        np.testing.assert_allclose(second, first)
        np.testing.assert_allclose(third, jnp.sin(X), rtol=1e-6)


def test_dispatch_modes_see_the_operators():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    def function(x):
        seen.clear()  # make_fx asks what requires grad, so that the code may run again
        with Seen():
            y = torch.relu(x) + 1
        graph = torch.fx.experimental.proxy_tensor.make_fx(lambda x: torch.relu(x).add_(1))(x)
        return y, graph(x - 1)

    seen: list = []
    for run in (t2j(function), jax.jit(t2j(function))):
        first, second = run(X)
        np.testing.assert_allclose(first, jax.nn.relu(X) + 1)
        np.testing.assert_allclose(second, jax.nn.relu(X - 1) + 1)
        assert seen == [torch.ops.aten.relu.default, torch.ops.aten.add.Tensor]


def test_graph_modules():
    graph = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))
    params = t2j(graph.state_dict())
    expected = graph(real(X)).detach()
    for module in (graph, pickle.loads(pickle.dumps(graph))):
        np.testing.assert_allclose(t2j(module)(X, state_dict=params), expected, rtol=1e-5)


class Answers:
    """What is no tensor and overrides PyTorch."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return f"{func.__name__} of {len(args)}"


def test_what_overrides_pytorch_answers_itself():
    assert t2j(lambda x: (torch.add(Answers(), x), torch.sin(Answers())))(X) == ("add of 2", "sin of 1")


@pytest.mark.parametrize(
    "function",
    [
        torch.func.grad(lambda x: x.sin().sum()),
        torch.vmap(torch.sin),
        lambda x: torch.autograd.grad(x.clone().requires_grad_().sin().sum(), x, allow_unused=True),
        lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
    ],
    ids=["grad", "vmap", "backward", "cond"],
)
def test_make_fx_of_what_jax_transforms_is_refused(function):
    def recorded(x):
        return torch.fx.experimental.proxy_tensor.make_fx(function)(x)(x * 2)

    with pytest.raises(NotImplementedError) as raised:
        jax.jit(t2j(recorded))(jnp.ones((2, 3)))
    chain = [raised.value]
    while chain[-1].__context__ is not None:  # PyTorch, which describes what it has so far, meets another
        chain.append(chain[-1].__context__)
    assert any("within make_fx" in str(error) for error in chain)
