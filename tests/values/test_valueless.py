"""What PyTorch itself runs within a call: tensors on the meta device, fake ones, checks of operators."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.library import opcheck

from torch2jax import t2j
from torch2jax.runtime.translation import current

X = jnp.array([[0.5, -1.0, 2.0], [1.0, 0.0, 3.0]])
MODES = [t2j, lambda function: jax.jit(t2j(function))]
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")  # the others compile


@torch.library.custom_op("native::grown", mutates_args=())
def grown(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x])


@grown.register_fake
def _(x):
    return x.new_empty(2 * x.shape[0], *x.shape[1:])


grown.register_autograd(lambda ctx, grad: grad[: len(grad) // 2] + grad[len(grad) // 2 :])


@torch.library.custom_op("native::misdescribed", mutates_args=())
def misdescribed(x: torch.Tensor) -> torch.Tensor:
    return x + 1


misdescribed.register_fake(lambda x: x.new_empty(1))


@pytest.mark.parametrize("mode", MODES)
def test_the_meta_device(mode):
    def function(x):
        made = [torch.zeros(2, 3, device="meta"), x.to("meta"), torch.empty_like(x, device="meta")]
        made += [torch.rand(2, 3, device="meta"), (x > 0).to("meta"), made[0] + 1, made[1] @ made[2].mT]
        made += [torch.empty_like(made[0]), made[1] * torch.tensor(2.0), torch.nn.functional.relu(made[2]), made[0][:1]]
        seen.extend((type(y), y.is_meta, tuple(y.shape), y.dtype) for y in made)
        with torch.device("meta"):
            layer = torch.nn.Linear(3, 2)
        result = layer(made[0])
        seen.append((tuple(result.shape), result.requires_grad, type(result.grad_fn).__name__))
        layer = layer.to_empty(device="cpu")
        torch.nn.init.ones_(layer.weight), torch.nn.init.zeros_(layer.bias)
        return layer(x)

    seen, expected = [], []
    result = mode(function)(X)
    np.testing.assert_allclose(result, jnp.stack([X.sum(1)] * 2, 1))
    seen, expected = [], seen
    function(torch.tensor(np.asarray(X)))
    assert expected == seen


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda x: torch.ones(2, 3, device="meta").to("cpu"), NotImplementedError),
        (lambda x: torch.ones(2, 3, device="meta") + x, RuntimeError),
        (lambda x: torch.ones((), device="meta").item(), RuntimeError),
        (lambda x: x.copy_(torch.ones(2, 3, device="meta")), NotImplementedError),
        (lambda x: bool(torch.ones((), device="meta")), RuntimeError),
    ],
)
def test_errors_of_the_meta_device(mode, function, error):
    with pytest.raises(error) as expected:
        function(torch.ones(2, 3))
    with pytest.raises(error) as actual:
        mode(function)(X)
    assert str(actual.value).split("\n")[0] == str(expected.value).split("\n")[0]


def test_new_tensors_of_the_form_of_one_on_meta():
    def function():
        form = torch.empty(3, 4, device="meta")[:, ::2]
        made = torch.rand_like(form, device="cpu"), form.new_zeros(2, device="cpu"), torch.ones_like(form, device="cpu")
        seen.extend((x.device.type, x.stride(), x.is_meta) for x in made)
        return made

    seen = []
    state = torch.get_rng_state()
    first, second = (t2j(function)(rng=jax.random.key(seed))[0] for seed in (0, 1))
    assert (first != second).all()
    assert (torch.get_rng_state() == state).all()
    here, seen[:] = seen[:3], []
    function()
    assert here == seen


def test_a_traced_mask_has_no_shape_on_meta():
    def function(x):
        return torch.ones(3, device="meta")[x[0] > 0].shape[0] * x

    with pytest.raises(TypeError, match="depends on a traced input"):
        jax.jit(t2j(function))(X)
    np.testing.assert_allclose(t2j(function)(X), 2 * X)


def test_a_default_device_of_meta():
    def function(x):
        torch.set_default_device("meta")
        seen.extend((torch.ones(2).is_meta, torch.rand(2).is_meta, torch.tensor([1.0]).is_meta))
        return x

    seen = []
    t2j(function)(X)
    assert seen == [True, True, True]


@pytest.mark.parametrize("mode", MODES)
def test_fake_tensors(mode):
    def function(x, weight):
        fakes = FakeTensorMode()
        with fakes:
            made = torch.ones(3, 2)
            seen.append((type(made), tuple((made @ made.mT).shape), torch.nn.functional.linear(made, made).shape))
            fake, fake_weight = fakes.from_tensor(x), fakes.from_tensor(weight)
            assert fakes.from_tensor(x) is fake
            product = fake @ fake_weight
            seen.append((type(product), tuple(product.shape), product.device.type, product.requires_grad))
            seen.append((tuple(grown(fake).shape), tuple(x.shape)))
        seen.append((type(fake * 2), tuple(torch.relu(fake).shape)))
        with FakeTensorMode(allow_non_fake_inputs=True):
            seen.append((type(x + 1), tuple(x.sum(1).shape)))
        return x @ weight

    weight = torch.ones(3, 4, requires_grad=True)
    seen, expected = [], []
    assert mode(lambda x: function(x, weight))(X).shape == (2, 4)
    seen, expected = [], seen
    function(torch.tensor(np.asarray(X)), weight)
    assert seen == expected
    assert seen[1][0] is FakeTensor


def test_the_call_goes_on_after_an_error():
    def function(x):
        with pytest.raises(AssertionError, match="convert all Tensors to FakeTensors"), FakeTensorMode():
            torch.sin(x)
        assert current() is not None
        return torch.sin(x) + torch.rand(2, 3)

    t2j(function)(X, rng=jax.random.key(0))
    assert current() is None


def test_checks_of_operators():
    def function(x):
        seen.append(opcheck(grown, (x,), test_utils=CHECKS))
        seen.append(opcheck(grown, (x.detach().requires_grad_(),), test_utils=CHECKS))
        outcome = opcheck(misdescribed, (x,), test_utils=CHECKS, raise_exception=False)
        seen.append({name: str(result) == "SUCCESS" for name, result in outcome.items()})
        return x

    seen = []
    t2j(function)(X)
    assert set(seen[0].values()) == set(seen[1].values()) == {"SUCCESS"}
    assert seen[2]["test_schema"]
    assert not seen[2]["test_faketensor"]
    with pytest.raises(TypeError, match="depends on a traced input"):
        jax.jit(t2j(function))(X)
