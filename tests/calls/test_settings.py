"""What translated code changes of PyTorch's own state is the call's, and as it was afterwards."""

import threading

import jax
import jax.numpy as jnp
import pytest
import torch

from torch2jax import t2j
from torch2jax.runtime.translation import current
from torch2jax.transforms.outer_state import OuterState


def state():
    """All of PyTorch's state that code may change here."""
    devices = torch._C._autocast_supported_devices()
    depth = torch.autocast_increment_nesting(), torch.autocast_decrement_nesting()
    autocast = [(torch.is_autocast_enabled(x), torch.get_autocast_dtype(x)) for x in devices]
    defaults = torch.get_default_dtype(), torch.get_default_device(), torch._C._len_torch_function_stack()
    functions = torch.get_default_dtype, torch.set_autocast_enabled, torch.autocast.__enter__, torch.Tensor.type
    return depth, autocast, torch.is_autocast_cache_enabled(), defaults, functions, torch.empty(0).dtype


def change_everything(x):
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("cuda:1")
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_enabled("xpu", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    torch.set_autocast_cache_enabled(False)
    torch.autocast_increment_nesting()
    made.append((torch.zeros(2).dtype, torch.zeros(2).device, torch.get_default_dtype(), torch.get_default_device()))
    return x


made = []


@pytest.mark.parametrize("how", [t2j, lambda f: jax.jit(t2j(f)), lambda f: lambda x: jax.grad(t2j(f))(x)])
def test_all_is_as_it_was(how):
    before = state()
    how(lambda x: change_everything(x).sum())(jnp.ones(()))
    device = torch.device("cuda:1")
    assert made[-1] == (torch.float64, device, torch.float64, device)
    assert state() == before


def test_after_an_exception_too():
    def fails(x):
        with torch.autocast("cuda"):
            change_everything(x)
            raise ZeroDivisionError

    before = state()
    with pytest.raises(ZeroDivisionError):
        t2j(fails)(jnp.ones(()))
    assert state() == before


def test_after_a_run_that_is_abandoned():
    """A backward that no name foretells starts the function anew; what it had changed is put back before."""

    def slope(x):
        dtypes.append(torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)
        torch.set_autocast_enabled("cpu", True)
        x.requires_grad_()
        getattr(x.square().sum(), "back" + "ward")()
        return x.grad

    before, dtypes = state(), []
    t2j(slope)(jnp.ones(3))
    assert dtypes == [torch.float32]
    assert state() == before


def test_after_an_error_between_two_runs(monkeypatch):
    def fails(outer):
        raise ZeroDivisionError

    def slope(x):
        torch.set_default_dtype(torch.float64)
        getattr(x.requires_grad_().sum(), "back" + "ward")()
        return x.grad

    monkeypatch.setattr(OuterState, "_restore", fails)
    before = state()
    with pytest.raises(ZeroDivisionError):
        t2j(slope)(jnp.ones(3))
    assert state() == before
    assert current() is None


def test_calls_within_calls_share_their_settings():
    def outer(x):
        torch.set_default_dtype(torch.float64)
        t2j(lambda y: torch.set_default_device("meta") or dtypes.append(torch.zeros(1).dtype) or y)(x)
        dtypes.append(torch.zeros(1).device.type)
        return x

    before, dtypes = state(), []
    t2j(outer)(jnp.ones(1))
    assert dtypes == [torch.float64, "meta"]
    assert state() == before


def test_threads_do_not_see_each_other():
    def in_thread(dtype, device):
        def make(x):
            torch.set_default_dtype(dtype)
            torch.set_default_device(device)
            with torch.autocast("cuda", dtype=dtype):
                for _ in range(20):
                    barrier.wait()
                    like = torch.zeros(2)
                    right.append((like.dtype, like.device.type, (x @ x).dtype) == (dtype, device, dtype))
            return x

        t2j(make)(jnp.ones((2, 2)))

    before, right, barrier = state(), [], threading.Barrier(3, timeout=60)
    chosen = [(torch.float16, "cuda"), (torch.bfloat16, "meta"), (torch.float32, "cpu")]
    threads = [threading.Thread(target=in_thread, args=args) for args in chosen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(right) == 60
    assert all(right)
    assert state() == before


def test_the_default_dtype_is_that_of_all_that_is_made():
    def make(x):
        torch.set_default_dtype(torch.float16)
        found = [torch.tensor(1.0), torch.tensor([1, 2.0]), torch.as_tensor([0.5]), torch.arange(0.0, 1, 0.5)]
        found += [torch.nn.Linear(1, 1).weight, torch.rand(2), torch.ones(2, dtype=torch.int64) / 2]
        seen.append({y.dtype for y in found})
        seen.append((torch.tensor([1]).dtype, torch.ones_like(x).dtype))
        with pytest.warns(UserWarning, match="deprecated"):
            torch.set_default_tensor_type(torch.DoubleTensor)
        seen.append((torch.empty(1).dtype, torch.tensor(1j).dtype))
        return x

    seen = []
    jax.eval_shape(lambda x: t2j(make)(x, rng=jax.random.key(0)), jnp.ones(1))
    assert seen == [{torch.float16}, (torch.int64, torch.float32), (torch.float64, torch.complex128)]


@pytest.mark.parametrize("dtype", [torch.int64, "float32"])
def test_the_default_dtype_is_a_floating_point_one(dtype):
    with pytest.raises(TypeError):
        torch.set_default_dtype(dtype)
    with pytest.raises(TypeError):
        t2j(lambda x: torch.set_default_dtype(dtype))(jnp.ones(1))


def test_default_devices():
    def make(x):
        seen.append(torch.zeros(1).device.type)
        torch.set_default_device("cuda")
        seen.append(
            (torch.zeros(1).device.type, torch.zeros_like(x).device.type, torch.zeros(1, device="cpu").device.type)
        )
        with torch.device("meta"):
            seen.append((torch.zeros(1).device.type, torch.get_default_device().type))
        seen.append(torch.get_default_device().type)
        torch.set_default_device(None)
        seen.append(torch.ones(1).device.type)
        return x

    seen = []
    t2j(make)(jnp.ones(1))
    assert seen == ["cpu", ("cuda", "cpu", "cpu"), ("meta", "meta"), "cuda", "cpu"]
    with torch.device("meta"):
        t2j(lambda x: seen.append(torch.zeros(1).device.type) or x)(jnp.ones(1))
    assert seen[-1] == "meta"
