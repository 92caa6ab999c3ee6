"""Nothing that JAX holds changes when PyTorch writes, and the other way round, unless that was asked for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from torch2jax import j2t, load_state, sharding, t2j, torch2jax, tree_j2t, tree_t2j

LARGE = 8192  # known values of fewer elements are copied in any case


class Shift(nn.Module):
    """A weight and a buffer, of which results are the sum, a view or the very same."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(LARGE))
        self.register_buffer("offset", torch.ones(LARGE))

    def forward(self, x):
        return {"sum": x + self.weight + self.offset, "same": self.weight, "view": self.weight[1:], "own": self.offset}


def train(module: nn.Module) -> None:
    """Writes to all that a module has, in some of the ways in which PyTorch writes."""
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    sum(p.sum() for p in module.parameters()).backward()
    optimizer.step()
    for p in module.parameters():
        p.data.mul_(3)
    for buffer in module.buffers():
        buffer.numpy()[...] += 7


def values(tree):
    return jax.tree.map(np.array, tree)


def check(made, write) -> None:
    """Calls `write`, after which arrays are what they were."""
    before = values(made)
    write()
    jax.tree.map(np.testing.assert_array_equal, values(made), before)


class TestArrays:
    @pytest.mark.parametrize("convert", [t2j, tree_t2j])
    @pytest.mark.parametrize(
        "make",
        [
            lambda x: x,
            lambda x: x.t(),
            lambda x: x[1:, ::2],
            lambda x: x.expand(2, *x.shape),
            lambda x: x.view(1, 64, 4, 32).to(memory_format=torch.channels_last),
            lambda x: nn.Parameter(x),
            lambda x: x.view(torch.int32),
            lambda x: x.bfloat16(),
            lambda x: x.view(torch.complex64).conj(),
            lambda x: (x * 1000).long(),
        ],
        ids=[
            "plain",
            "transposed",
            "strided",
            "expanded",
            "channels",
            "parameter",
            "int32",
            "bfloat16",
            "conj",
            "int64",
        ],
    )
    def test_of_tensors(self, make, convert):
        x = make(torch.rand(64, 128))
        check(convert({"x": x}), lambda: x.untyped_storage().fill_(3))

    @pytest.mark.parametrize("convert", [t2j, tree_t2j])
    def test_sharing_is_asked_for(self, convert):
        tensor = torch.zeros(LARGE)
        [array] = convert([tensor], copy=False)
        tensor.fill_(3)
        assert (array == 3).all()

    def test_a_buffer_that_is_filled_again_while_jax_computes(self):
        buffer = torch.zeros(256, 256)

        @jax.jit
        def mean(x):
            return jax.lax.fori_loop(0, 20, lambda _, y: jnp.tanh(y @ x) * 0 + x, x).mean()

        results = []
        for batch in range(5):
            buffer.fill_(batch)
            results.append(mean(t2j(buffer)))
        assert [float(result) for result in results] == [0, 1, 2, 3, 4]

    def test_a_tensor_stays_resizable(self):
        tensor = torch.zeros(8)
        t2j(tensor)
        tensor.resize_(10_000)

    def test_numpy_arrays_in_a_sharded_tree(self):
        mesh = jax.make_mesh((1,), ("x",))
        given = {"np": np.ones(LARGE, np.float32), "torch": torch.ones(LARGE)}
        placed = sharding.put(given, {}, mesh)
        check(placed, lambda: (given["np"].fill(3), given["torch"].fill_(3)))


class TestCalls:
    """What eager calls give and keep, while PyTorch trains on."""

    @pytest.mark.parametrize("compile", [(), [""]], ids=["", "compiled"])
    def test_constants(self, compile):
        module = Shift()
        check(t2j(module, compile=compile)(jnp.ones(LARGE)), lambda: train(module))

    def test_a_closure(self):
        module = Shift()
        check(t2j(lambda x: module(x))(jnp.ones(LARGE)), lambda: train(module))

    def test_tensors_as_a_state(self):
        module = Shift()
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        check(t2j(module)(jnp.ones(LARGE), state_dict=state, return_state_dict=True), lambda: train(module))

    def test_numpy_arrays_as_a_state(self):
        module, weight = Shift(), np.ones(LARGE, np.float32)
        check(t2j(module)(jnp.ones(LARGE), state_dict={"weight": weight}), lambda: weight.fill(3))

    @pytest.mark.parametrize("make", [torch.ones, np.ones], ids=["torch", "numpy"])
    def test_arguments(self, make):
        x = make(LARGE)
        check(t2j(lambda x: (x, x[1:], x + 1))(x), lambda: x.__setitem__(slice(None), 3))

    def test_bfloat16_of_numpy(self):
        x = np.ones(LARGE, jnp.bfloat16)
        check(t2j(lambda x: (x, x[1:], x + 1))(x), lambda: x.fill(3))

    def test_state_that_comes_back(self):
        module = Shift()
        check(t2j(module)(jnp.ones(LARGE), return_state_dict=True), lambda: train(module))

    @pytest.mark.parametrize("transform", [jax.vjp, jax.linearize], ids=["vjp", "linearize"])
    def test_derivatives(self, transform):
        """The forward pass keeps weights for the backward pass."""
        layer, x = nn.Linear(128, 64), jnp.ones(128)
        _, derivative = transform(t2j(layer), x)
        given = jnp.ones(64 if transform is jax.vjp else 128)
        before = values(derivative(given))
        train(layer)
        jax.tree.map(np.testing.assert_array_equal, values(derivative(given)), before)

    def test_graphs(self):
        module = Shift()
        graph = jax.make_jaxpr(t2j(module))(jnp.ones(LARGE))
        jitted = jax.jit(t2j(module))
        before = values(jitted(jnp.ones(LARGE)))
        train(module)
        jax.tree.map(np.testing.assert_array_equal, values(jitted(jnp.ones(LARGE))), before)
        run = jax.core.eval_jaxpr(graph.jaxpr, graph.consts, jnp.ones(LARGE))
        jax.tree.map(np.testing.assert_array_equal, run, jax.tree.leaves(before))

    def test_steps(self):
        module = Shift()

        def step(module, x):
            module.offset += 1
            return module(x)["sum"]

        step = t2j(step, state=module)
        state = step.init(jnp.ones(LARGE))
        check(state, lambda: train(module))
        step.load(state)
        check(state, lambda: train(module))
        check(step(state, jnp.ones(LARGE)), lambda: train(module))


class TestTensors:
    @pytest.mark.parametrize("convert", [j2t, tree_j2t])
    @pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32], ids=str)
    def test_of_arrays(self, convert, dtype):
        array = jnp.ones(LARGE, dtype)
        tensor = convert({"x": array})["x"]
        check(array, lambda: tensor.fill_(3))

    def test_of_numpy(self):
        array = np.ones(LARGE, np.float32)
        check(array, lambda: j2t(array).fill_(3))

    def test_sharing_is_asked_for(self):
        array = jnp.ones(LARGE)
        assert j2t([array], copy=False)[0].data_ptr() == array.unsafe_buffer_pointer()
        assert tree_j2t([array], copy=False)[0].data_ptr() == array.unsafe_buffer_pointer()

    def test_it_waits_for_values(self):
        x = jnp.ones((256, 256)) / 256
        late = jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda _, y: y @ x, x) * 256)(x)
        np.testing.assert_allclose(j2t(late), 1, rtol=1e-4)

    @pytest.mark.parametrize("assign", [False, True])
    def test_a_state_that_a_module_has_taken(self, assign):
        module = Shift()
        state = load_state(module.state_dict())
        module.load_state_dict(j2t(state), assign=assign)
        check(state, lambda: train(module))

    def test_results_of_functions(self):
        kept = jnp.ones(LARGE)
        for jit in (True, False):
            check(kept, lambda jit=jit: j2t(lambda x: kept, jit=jit)(torch.ones(2)).fill_(3))

    def test_arguments_that_a_function_keeps(self):
        kept, x = [], torch.ones(LARGE)
        j2t(lambda x: kept.append(x) or x, jit=False)(x)
        check(kept, lambda: x.fill_(3))


class TestBridge:
    def test_results(self):
        module = Shift().requires_grad_(False)
        f = torch2jax(module, jnp.ones(LARGE))
        check(jax.jit(f)(jnp.ones(LARGE)), lambda: train_without_gradients(module))

    def test_arguments(self):
        x = jnp.ones(LARGE)
        check(x, lambda: jax.block_until_ready(jax.jit(torch2jax(lambda x: x.mul_(3), x))(x)))


def train_without_gradients(module: nn.Module) -> None:
    for tensor in module.state_dict().values():
        tensor.fill_(5)
