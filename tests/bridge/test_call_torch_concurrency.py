"""PyTorch inside JAX: nested calls, threads and devices end; functions are freed. In processes with a time limit."""

import os
import subprocess
import sys
import textwrap

import pytest

PRELUDE = """
import faulthandler, gc, threading, weakref
faulthandler.dump_traceback_later(50, exit=True)
import jax, jax.numpy as jnp, numpy as np, torch
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from torch2jax import torch2jax
from torch2jax.bridge import ffi

x = jnp.ones((200, 200)) / 200
busy = jax.jit(lambda x: x @ x @ x)  # too long for XLA to run it on the calling thread
busy(x).block_until_ready()

def from_jax(array):
    return torch.from_numpy(np.array(array))
"""


def run(code: str, devices: int = 1, cpus: int | None = None) -> str:
    environment = {
        **os.environ,
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
    }
    code = PRELUDE + textwrap.dedent(code)
    if cpus is not None:
        code = f"import os\nos.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{cpus}])\n" + code
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=80, env=environment
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-5000:]
    return done.stdout


NESTED = """
def calls_jax(t):
    inner = busy(jnp.asarray(t.numpy()))
    return t + from_jax(inner)

outer = jax.jit(lambda x: torch2jax(calls_jax, x, output_shapes=x.shape)(x @ x) @ x)

def level(n):
    def fn(t):
        if n == 0:
            return t + 1
        y = jnp.asarray(t.numpy())
        return from_jax(jax.jit(lambda y: torch2jax(level(n - 1), y, output_shapes=y.shape)(y @ y) @ y)(y))
    return fn

expected = (x @ x + busy(x @ x)) @ x
for _ in range(3):
    np.testing.assert_allclose(outer(x), expected, rtol=1e-4)
jax.block_until_ready([outer(x) for _ in range(16)])
deep = torch2jax(level(4), x, output_shapes=x.shape)
assert jax.jit(lambda x: deep(x @ x) @ x)(x).shape == x.shape
assert deep(x).shape == x.shape
gradient = jax.jit(jax.grad(lambda x: (torch2jax(torch.sin, x)(x @ x) @ x).sum()))
jax.block_until_ready([gradient(x) for _ in range(8)])
"""


@pytest.mark.parametrize("cpus", [1, None], ids=["one-cpu", "all-cpus"])
@pytest.mark.slow("compiles in a process of its own")
def test_nested_calls_end(cpus):
    run(NESTED, cpus=cpus)


def test_eight_threads_end():
    run("""
    def calls_jax(t):
        return t + from_jax(busy(jnp.asarray(t.numpy())))

    outer = jax.jit(lambda x: torch2jax(calls_jax, x, output_shapes=x.shape)(x @ x) @ x)
    plain = torch2jax(lambda a, b: a * b, x, x)
    expected = np.array(outer(x))
    wrong = []

    def work(index):
        for step in range(5):
            scaled = x * (index + step)
            if not np.allclose(outer(x), expected) or not np.allclose(plain(scaled, x), scaled * x):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert not wrong
    """)


def test_eight_devices_end():
    run(
        """
    def calls_jax(t):
        return t + from_jax(busy(jnp.asarray(t.numpy())))

    fn = torch2jax(calls_jax, x, output_shapes=x.shape)
    outer = jax.jit(lambda x: fn(x @ x) @ x)
    for _ in range(3):
        jax.block_until_ready([outer(jax.device_put(x, device)) for device in jax.devices()])
    everywhere = jax.pmap(lambda x: fn(x @ x) + jax.lax.psum(x.sum(), "i"), axis_name="i")
    xs = jnp.stack([x * i for i in range(8)])
    for _ in range(3):
        result = everywhere(xs)
    one = xs[3] @ xs[3]
    np.testing.assert_allclose(result[3], one + busy(one) + xs.sum(), rtol=1e-4)
    """,
        devices=8,
    )


@pytest.mark.slow("thousands of functions in a process of its own")
def test_functions_are_freed_with_the_last_program_that_names_them():
    out = run("""
    import resource
    def measure():
        gc.collect()
        return int(open("/proc/self/statm").read().split()[1]) * 4096

    small = jnp.ones(4)

    def wrap(compile):
        def fn(t):
            return t + 1
        wrapped = torch2jax(fn, small, output_shapes=(4,))
        if compile:
            assert jax.jit(lambda x: wrapped(x) * 2)(small)[0] == 4
            jax.grad(lambda x: wrapped(x).sum())(small)
        return weakref.ref(fn)

    alive = [wrap(True) for _ in range(20)]; jax.clear_caches()
    gc.collect()
    assert not any(ref() for ref in alive), sum(ref() is not None for ref in alive)
    assert ffi.registered() == 0, ffi.registered()

    for _ in range(1000): wrap(False)
    before = measure()
    for _ in range(4_000): wrap(False)
    grown = measure() - before
    assert grown < 2 << 20, grown

    def kept(t):
        return t * 3
    program = jax.jit(torch2jax(kept, small, output_shapes=(4,))).lower(small).compile()
    reference = weakref.ref(kept)
    del kept
    jax.clear_caches(); gc.collect()
    assert reference() is not None and program(small)[0] == 3
    del program
    jax.clear_caches(); gc.collect()
    assert reference() is None
    print("freed")
    """)
    assert "freed" in out


def test_locks():
    """They keep stateful functions apart, and a call under one may make another."""
    run(
        """
    import time
    inside, most = 0, 0

    def stateful(t):
        global inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.01)
        inside -= 1
        return t + 1

    for lock in (True, threading.Lock()):
        most = 0
        fn = torch2jax(stateful, jnp.ones(4), output_shapes=(4,), lock=lock, mutates=False)
        everywhere = jax.pmap(fn)
        for _ in range(3):
            np.testing.assert_allclose(everywhere(jnp.ones((8, 4))), 2)
        assert most == 1, most

    for lock in (True, threading.Lock()):
        inner = torch2jax(torch.sin, x, output_shapes=x.shape, lock=lock)
        big = jax.jit(lambda x: inner(x @ x) @ x)

        def calls_both(t):
            y = jnp.asarray(t.numpy())
            return from_jax(inner(y)) + from_jax(big(y))

        outer = torch2jax(calls_both, x, output_shapes=x.shape, lock=lock)
        program = jax.jit(lambda x: outer(x @ x) @ x)
        for _ in range(3):
            np.testing.assert_allclose(outer(x), jnp.sin(x) + big(x), rtol=1e-5)
            program(x).block_until_ready()
    """,
        devices=8,
    )
