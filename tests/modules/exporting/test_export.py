"""Exported programs: what they are called with, what they give, where they run."""

import dataclasses
import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from torch2jax import export, j2t, t2j, torch2jax

PLATFORMS = ("cpu", "cuda", "tpu")

RUN = """
import sys
sys.modules["torch"] = None  # importing it is an error
from pathlib import Path
import jax, numpy as np

program, arrays, results = sys.argv[1:]
exported = jax.export.deserialize(bytearray(Path(program).read_bytes()))
with np.load(arrays) as file:
    state = {name: file[name] for name in file.files}
x = state.pop("x")

def loss(state, x):
    output = exported.call(x, state_dict=state)
    return (output["logits"] ** 2).sum() + output["more"][0].sum()

assert exported.platforms == ("cpu", "cuda", "tpu")
output = jax.jit(exported.call)(x, state_dict=state)
grads, grad = jax.grad(loss, (0, 1))(state, x)
np.savez(results, logits=output["logits"], more=output["more"][0], x=grad, **grads)
"""


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    more: tuple
    hidden: torch.Tensor | None = None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(2, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.attention = nn.MultiheadAttention(3, 1, batch_first=True)
        self.head = nn.Linear(3, 4)

    def forward(self, x):
        x = self.norm(self.convolution(x)).relu().flatten(2).mT
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return Output(self.head(x), (x.cumsum(1).sort(1).values,))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().eval()


def test_runs_without_pytorch(net, tmp_path):
    pytest.importorskip("flatbuffers")
    x = torch.randn(2, 2, 5, 5)
    parameters = t2j({name: parameter.detach() for name, parameter in net.named_parameters()})
    exported = export(t2j(net), platforms=PLATFORMS)(t2j(x), state_dict=parameters)
    (tmp_path / "net.jaxexport").write_bytes(exported.serialize(vjp_order=1))
    np.savez(tmp_path / "arrays.npz", x=x.numpy(), **parameters)
    paths = [str(tmp_path / name) for name in ("net.jaxexport", "arrays.npz", "results.npz")]
    done = subprocess.run([sys.executable, "-c", RUN, *paths], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr

    x.requires_grad_()
    output = net(x)
    ((output.logits**2).sum() + output.more[0].sum()).backward()
    expected = {"logits": output.logits, "more": output.more[0], "x": x.grad}
    expected |= {name: parameter.grad for name, parameter in net.named_parameters()}
    with np.load(tmp_path / "results.npz") as results:
        assert set(results.files) == set(expected)
        for name, tensor in expected.items():
            np.testing.assert_allclose(results[name], tensor.detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


class TestArguments:
    def test_abstract_ones(self, net):
        state = {name: jax.ShapeDtypeStruct(x.shape, "float32") for name, x in net.named_parameters()}
        exported = export(t2j(net))(jax.ShapeDtypeStruct((2, 2, 5, 5), "float32"), state_dict=state)
        x = torch.randn(2, 2, 5, 5)
        found = exported.call(t2j(x), state_dict=t2j(dict(net.named_parameters())))
        torch.testing.assert_close(j2t(found["logits"]), net(x).logits.detach(), rtol=1e-4, atol=1e-5)
        assert list(found) == ["logits", "more"]

    def test_constants(self):
        def run(x, dim, scale=2.0, *, keepdim, other=None):
            assert type(keepdim) is bool
            return x.sum(dim, keepdim=keepdim) * scale + (0 if other is None else other)

        x = jnp.ones((2, 3))
        exported = export(t2j(run))(x, 1, keepdim=True)
        assert (exported.call(x, None) == np.full((2, 1), 6)).all()
        exported = export(functools.partial(t2j(run), dim=0, keepdim=False))(x, other=jnp.ones(3), scale=3)
        assert (exported.call(x, other=jnp.ones(3)) == 7).all()

    def test_weights_left_out_are_constants(self, net):
        x = torch.randn(1, 2, 4, 4)
        exported = export(t2j(net))(t2j(x))
        torch.testing.assert_close(j2t(exported.call(t2j(x))["logits"]), net(x).logits.detach(), rtol=1e-4, atol=1e-5)

    def test_containers(self):
        """A container is a dictionary in the call, whose leaves JAX orders by name."""

        def run(output):
            return Output(output.logits * 2, (output.hidden + 1,))

        given = t2j(Output(torch.ones(2), (), torch.zeros(3)))  # what holds no arrays is no part of the call
        exported = export(t2j(run))(given)
        found = exported.call({"logits": jnp.ones(2), "hidden": jnp.zeros(3)})
        assert (found["logits"] == np.full(2, 2)).all()
        assert (found["more"][0] == np.ones(3)).all()

    def test_numbered_ones(self):
        states = {number: jnp.full(2, float(number)) for number in (0, 2, 10)}
        exported = export(t2j(lambda states: {i: x - i for i, x in states.items()}))(states)
        found = exported.call({str(number): x for number, x in states.items()})
        assert list(found) == ["0", "10", "2"]
        assert all((x == 0).all() for x in found.values())

    def test_random_keys(self):
        noisy = t2j(lambda x: torch.nn.functional.dropout(x, 0.5))
        exported = export(noisy)(jnp.ones(9), rng=jax.random.key(0))
        assert (exported.call(jnp.ones(9), rng=jax.random.key(3)) == noisy(jnp.ones(9), rng=jax.random.key(3))).all()


class TestRefusals:
    def test_operation_that_a_platform_lacks(self):
        matrix = jax.ShapeDtypeStruct((3, 3), "float32")
        with pytest.raises(NotImplementedError, match="no eig for 'tpu': leave it out of the platforms"):
            export(t2j(torch.linalg.eigvals), platforms=PLATFORMS)(matrix)
        assert export(t2j(torch.linalg.eigvals), platforms=["cpu"])(matrix).platforms == ("cpu",)

    def test_calls_of_pytorch(self):
        called = torch2jax(lambda x: x * 2, jnp.ones(3))
        with pytest.raises(NotImplementedError, match="calls this process"):
            export(called, platforms=["cpu"])(jnp.ones(3))
        with pytest.raises(NotImplementedError, match="PyTorch runs on the CPU and on CUDA"):
            export(called, platforms=["tpu"])(jnp.ones(3))

    def test_custom_calls_are_named(self):
        def run(x):
            return jax.ffi.ffi_call("somebodys_kernel", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

        with pytest.raises(ValueError, match=r"keep from version to version: somebodys_kernel$"):
            export(run, platforms=["cpu"])(jnp.ones(3))

    def test_other_errors_are_those_of_the_code(self):
        with pytest.raises(NotImplementedError, match=r"^not yet"):
            export(t2j(_unfinished))(jnp.ones(3))


def _unfinished(x):
    raise NotImplementedError("not yet")


def test_a_platform_that_there_is_not():
    with pytest.raises(ValueError, match=r"got the platform 'cpo'; wanted some of .*nearest: 'cpu'"):
        export(t2j(torch.sin), platforms=["cpo"])(jnp.ones(2))


@pytest.mark.parametrize("code", [lambda x: x.relu() + 1, nn.Linear(4, 3)], ids=["function", "module"])
@pytest.mark.parametrize("is_within", [False, True])
def test_symbolic_sizes_given_to_jax_alone(code, is_within):
    f = t2j(code)
    given = (lambda x: f(x * 2)) if is_within else f
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 4"), "float32")
    with pytest.raises(TypeError, match=r"torch2jax.export\(f\)\(\*args\) in place of jax.export.export"):
        jax.export.export(jax.jit(given))(x)
    assert export(given)(x).call(jnp.ones((3, 4))).shape[0] == 3
