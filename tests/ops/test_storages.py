"""Questions of identity, answered as PyTorch does: which memory, where on it, how often written."""

import copy
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from torch2jax import t2j

VIEWS = {
    "itself": lambda x: x,
    "view": lambda x: x.view(4, 6),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "slice": lambda x: x[1:],
    "empty slice": lambda x: x[:0],
    "t": lambda x: x.t(),
    "reshape": lambda x: x.reshape(-1),
    "reshape that copies": lambda x: x.t().reshape(-1),
    "contiguous": lambda x: x.contiguous(),
    "contiguous that copies": lambda x: x.t().contiguous(),
    "expand": lambda x: x[None].expand(2, 4, 6),
    "real": lambda x: torch.view_as_complex(x.reshape(4, 3, 2)).real,
    "to": lambda x: x.to(x.dtype),
    "clone": lambda x: x.clone(),
    "other dtype": lambda x: x.view(torch.int32),
    "same dtype": lambda x: x.view(torch.float32),
    "unfold": lambda x: x.unfold(0, 2, 1),
    "diagonal": lambda x: x.diagonal(),
    "chunk": lambda x: x.chunk(2)[1],
    "unbind": lambda x: x.unbind()[1],
    "as_strided": lambda x: x.as_strided((2, 2), (1, 1), 3),
    "index": lambda x: x[[0, 1]],
    "set_": lambda x: torch.empty(0).set_(x, 1, (3,), (2,)),
    "set_ to a storage": lambda x: torch.empty(0).set_(x.untyped_storage(), 2, (3, 2), (2, 1)),
    "set_ to a typed storage": lambda x: torch.empty(0).set_(x.storage()),
}


def _identity(x: torch.Tensor, view: torch.Tensor) -> list:
    storage, of_view = x.untyped_storage(), view.untyped_storage()
    shares = of_view._cdata == storage._cdata
    return [
        shares,
        view.data_ptr() - x.data_ptr() if shares and view.numel() else view.data_ptr() == x.data_ptr(),
        of_view.data_ptr() == storage.data_ptr(),
        of_view is storage,
        (of_view.nbytes(), len(of_view), len(view.storage()), view.storage().nbytes()),
        view.storage()._cdata == storage._cdata,
        view.storage().data_ptr() == x.storage().data_ptr(),
        StorageWeakRef(of_view) == StorageWeakRef(storage),
        view.is_set_to(x),
        (view._is_view(), view._base is x),
    ]


@pytest.fixture(autouse=True)
def _typed_storages():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TypedStorage is deprecated")
        yield


def _views() -> list:
    x = torch.zeros(4, 6)
    return [(name, _identity(x, view(x))) for name, view in VIEWS.items()]


def test_what_is_a_view_of_what():
    assert _inside(_views, jit=False) == _views()


def test_a_traced_input_is_memory_of_its_own():
    def identity(x, y):
        answers.append([_identity(x, view(x)) for view in VIEWS.values()])
        answers.append([x.data_ptr() == y.data_ptr(), x.is_set_to(y)])
        return x

    answers = []
    identity(torch.zeros(4, 6), torch.zeros(4, 6))
    jax.jit(t2j(identity))(jnp.zeros((4, 6)), jnp.zeros((4, 6)))
    assert answers[2:] == answers[:2]


def _inside(function, jit: bool):
    found = []

    def translated():
        found.append(function())
        return torch.zeros(())

    run = t2j(translated)
    (jax.jit(run) if jit else run)()
    return found[-1]


def _versions() -> list:
    found = []

    def note(*tensors):
        found.append([tensor._version for tensor in tensors])

    x = torch.zeros(4, 6)
    detached, data = x.detach(), x.data
    note(x, detached, data)
    x.add_(1)
    x[0] = 2
    x[0].mul_(2)
    note(x, x[1], detached, data)
    detached.add_(1)
    data.add_(1)
    note(x, detached, data)
    x[0] += 1
    torch.add(x, 1, out=x)
    x.copy_(x + 1).zero_().fill_(3)
    note(x)
    x.transpose_(0, 1).unsqueeze_(0).squeeze_(0)
    x.resize_(8, 6)
    x.set_(torch.ones(3))
    note(x)
    x.index_fill_(0, torch.tensor([0]), 1.0).scatter_(0, torch.tensor([0]), 2.0).masked_fill_(x > 0, 1.0)
    torch.nn.functional.relu_(x)
    note(x, x.clone(), x * 2)
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    weight.grad = torch.ones(3)
    optimizer.step()
    optimizer.step()
    note(weight)
    weight.data = torch.zeros(3)
    weight.data.add_(1)
    note(weight)
    return found


@pytest.mark.parametrize("jit", [False, True])
def test_versions_count_writes(jit):
    assert _inside(_versions, jit) == _versions()


def test_writes_through_a_storage_are_traced():
    def write(x):
        x = x * 1
        torch.empty(0).set_(x.untyped_storage(), 1, (2,)).mul_(10)
        return x

    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(jax.jit(t2j(write))(x), [0, 10, 20, 3])
    # PyTorch's autograd does not see such a write either.
    np.testing.assert_array_equal(jax.grad(lambda x: t2j(write)(x).sum())(x), [1, 1, 1, 1])


def test_storages_have_the_bytes_of_pytorchs_dtypes():
    for x64 in (False, True):
        with jax.enable_x64(x64):
            assert _inside(lambda: torch.tensor([1, 2]).untyped_storage().nbytes(), jit=False) == 16


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.untyped_storage()._share_filename_cpu_(), "needs memory with an address"),
        (lambda x: x.untyped_storage().resize_(0), r"resize_\(\) needs memory.*write the tensor itself"),
        (lambda x: x.untyped_storage().fill_(0), r"fill_\(\) needs memory"),
        (lambda x: x.untyped_storage().tolist(), "needs memory with an address"),
        (lambda x: x.untyped_storage()[0], "needs memory with an address"),
        (lambda x: copy.deepcopy(x.storage()), "needs memory with an address"),
        (lambda x: x.untyped_storage().clone(), "needs memory with an address"),
        (lambda x: x.set_(x, 0, (4,)), "no room"),
        (lambda x: torch.empty(0).set_(x, 0, (-1,), (1,)), "negative"),
        (lambda x: torch.empty(0, dtype=torch.int32).set_(x), "Could not set tensor of type"),
    ],
)
def test_refusals(function, message):
    with pytest.raises(RuntimeError, match=message):
        t2j(function)(jnp.ones(3))


def set_to(tensor, other):
    tensor.set_(other)


def set_data(tensor, other):
    tensor.data = other


@pytest.mark.parametrize("change", [set_to, set_data])
@pytest.mark.parametrize("shape", [(3, 2), (2, 2)])
def test_a_leaf_that_gets_transposed_memory(change, shape):
    def f(x):
        leaf = torch.zeros(3, 2, requires_grad=True)
        with torch.no_grad():
            change(leaf, x.mT)
        (leaf * x.mT).sum().backward()
        return leaf.grad * torch.arange(2.0), leaf

    x = torch.arange(6.0).view(2, 3)[:, : shape[0]].clone()
    for got, want in zip(t2j(f)(t2j(x)), f(x), strict=True):
        np.testing.assert_allclose(got, want.detach().numpy())


def test_set_without_gradients_keeps_what_requires_grad():
    def f(x):
        leaf, other = torch.nn.Parameter(torch.zeros(2)), x.clone()
        product = leaf.sum() * torch.ones(3)
        with torch.no_grad():
            leaf.set_(other)
            product.set_(other)
        assert (leaf.requires_grad, leaf.is_leaf, product.requires_grad) == (True, True, True)
        (leaf * x).square().sum().backward()
        with torch.no_grad():
            other.add_(1)
        return leaf.grad, leaf, product

    x = torch.tensor([1.0, 2.0, 3.0])
    for translated in (t2j(f), jax.jit(t2j(f))):
        for got, want in zip(translated(t2j(x)), f(x), strict=True):
            np.testing.assert_allclose(got, want.detach().numpy())


def test_set_to_what_requires_grad_has_no_derivative():
    def f(x):
        leaf, tensor = x.clone().requires_grad_(), torch.zeros(3)
        tensor.set_(leaf)
        assert (tensor.requires_grad, tensor.is_leaf, leaf.is_leaf) == (True, False, True)
        loss = (tensor * tensor).sum()
        with pytest.raises(RuntimeError, match="derivative for set_ is not implemented"):
            torch.autograd.grad(loss, leaf, retain_graph=True)
        found = torch.autograd.grad(loss, tensor)[0]
        with torch.no_grad():
            leaf.add_(1)
        return found, tensor

    x = torch.tensor([1.0, 2.0, 3.0])
    for translated in (t2j(f), jax.jit(t2j(f))):
        for got, want in zip(translated(t2j(x)), f(x), strict=True):
            np.testing.assert_allclose(got, want.detach().numpy())


@pytest.mark.parametrize("shape", [(2,), (3, 2), (4, 3, 2), (3,), (2, 1)])
def test_data_of_another_shape_sums_the_gradient(shape):
    """As PyTorch does, where what came about broadcasts to the data."""

    def f(x):
        weight = x.clone().requires_grad_()
        product = weight * 2
        product.data = torch.ones(shape) * 5
        if shape[-1] != 2:
            with pytest.raises(RuntimeError, match="returned an invalid gradient at index 0"):
                product.square().sum().backward()
            return product
        product.square().sum().backward()
        return product, weight.grad

    x = torch.tensor([1.0, 2.0])
    for translated in (t2j(f), jax.jit(t2j(f))):
        for got, want in zip(translated(t2j(x)), f(x), strict=True):
            np.testing.assert_allclose(got, want.detach().numpy())


def test_data_of_another_dtype_casts_the_gradient():
    def f(x):
        leaf = x.clone().requires_grad_()
        view, product = torch.view_as_complex(leaf), leaf * 3
        view.data, product.data = torch.ones(3, 2) * 5, torch.ones(2, 2, dtype=torch.complex64) * 2j
        view.square().sum().backward()
        with pytest.raises(RuntimeError, match=r"gradient|to be true"):
            (product * product.conj()).real.sum().backward()
        return view, leaf.grad

    x = torch.ones(2, 2)
    for translated in (t2j(f), jax.jit(t2j(f))):
        for got, want in zip(translated(t2j(x)), f(x), strict=True):
            np.testing.assert_allclose(got, want.detach().numpy())


def test_storages_of_another_dtype_or_from_outside_are_refused():
    def of_another(x):
        return torch.empty(0, dtype=torch.int32).set_(x.storage())

    with pytest.raises(RuntimeError, match="Expected a Storage of type"):
        t2j(of_another)(jnp.ones(3))
    with pytest.raises(TypeError, match="wanted a tensor, or its storage"):
        t2j(lambda x: x.set_(torch.UntypedStorage(12)))(jnp.ones(3))
