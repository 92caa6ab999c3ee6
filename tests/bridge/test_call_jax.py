"""JAX functions called from PyTorch: values, memory, signatures, errors."""

import collections
import copy
import dataclasses
import gc
import pickle
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch2jax import j2t
from torch2jax.bridge.differentiable import argument_of, results_of

Pair = collections.namedtuple("Pair", ["left", "right"])


@dataclasses.dataclass
class Record:
    value: torch.Tensor
    name: str = "record"


def wave(x, scale=2.0):
    return jnp.sin(x) * scale


def traces(fn):
    """`fn`, and a list that grows whenever it is run or traced."""
    seen = []

    def counted(*args, **kwargs):
        seen.append(1)
        return fn(*args, **kwargs)

    return counted, seen


def test_a_function_of_tensors():
    x = torch.randn(3, 4)
    y = j2t(wave)(x)
    assert type(y) is torch.Tensor
    assert not y.requires_grad
    torch.testing.assert_close(y, 2 * x.sin())


def test_it_looks_like_the_function():
    assert j2t(wave).__name__ == "wave"
    assert repr(j2t(wave)).startswith("j2t(<function wave")


def test_trees_in_and_out():
    def f(pair, *, record, batch, nothing):
        assert nothing is None
        total = pair.left + record.value + batch["x"][0]
        return {"pair": Pair(total, pair.right), "record": Record(total * 2), "none": None, "list": [total, "text", 3]}

    x = torch.ones(2)
    result = j2t(f)(Pair(x, 2 * x), record=Record(x), batch={"x": (x,)}, nothing=None)
    assert isinstance(result["pair"], Pair)
    assert torch.equal(result["pair"].left, 3 * x)
    assert torch.equal(result["pair"].right, 2 * x)
    assert isinstance(result["record"], Record)
    assert result["record"].name == "record"
    assert torch.equal(result["record"].value, 6 * x)
    assert result["none"] is None
    assert result["list"][1:] == ["text", 3]


def test_no_arguments_and_no_arrays():
    torch.testing.assert_close(j2t(lambda: jnp.arange(3.0))(), torch.arange(3.0))
    assert j2t(lambda x: None)(torch.ones(2)) is None
    assert j2t(lambda x: (x.shape, "text"))(torch.ones(2, requires_grad=True)) == ((2,), "text")


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.uint8,
        torch.int32,
        torch.uint16,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.complex64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(), (64,), (4, 8), (0, 3)], ids=str)
def test_dtypes_and_shapes_and_shared_memory(dtype, shape):
    x = (torch.arange(int(np.prod(shape))) % 2).to(dtype).reshape(shape)
    y = j2t(lambda x: x)(x)
    assert y.dtype == dtype
    assert y.shape == shape
    assert torch.equal(y.to(torch.complex64), x.to(torch.complex64))
    if 0 not in shape:
        assert argument_of(x, False).ctypes.data == x.data_ptr()  # pyright: ignore
        array = jnp.copy(argument_of(x, False))
        assert results_of([array])[0].data_ptr() == array.unsafe_buffer_pointer()


@pytest.mark.parametrize(
    "x",
    [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(12.0)[::2],
        torch.arange(12.0)[1:],
        torch.ones(1, 3).expand(4, 3),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.complex(torch.ones(3), torch.arange(3.0)).conj(),
        torch.complex(torch.ones(3), torch.arange(3.0)).conj().imag,
        torch.nn.Parameter(torch.ones(3)),
    ],
    ids=["transposed", "strided", "offset", "expanded", "channels_last", "conj", "neg", "parameter"],
)
@pytest.mark.parametrize("jit", [True, False], ids=["jit", "eager"])
def test_layouts_and_bits(x, jit):
    torch.testing.assert_close(j2t(lambda x: x * 2, jit=jit)(x), x * 2)


KEPT = jnp.arange(4.0)


@pytest.mark.parametrize("jit", [True, False], ids=["jit", "eager"])
def test_results_may_be_written_to(jit):
    x = torch.arange(4.0)
    f = j2t(lambda x: (x, x, KEPT, jnp.zeros(4), x + 1, jax.jit(lambda: KEPT)()), jit=jit)
    expected = [result.clone() for result in f(x)]
    for _ in range(2):
        results = f(x)
        for result, value in zip(results, expected, strict=True):
            torch.testing.assert_close(result, value)
            result.fill_(-1)
        assert torch.equal(x, torch.arange(4.0))
        assert (KEPT == jnp.arange(4.0)).all()


@pytest.mark.parametrize("jit", [True, False], ids=["jit", "eager"])
def test_arguments_may_be_written_to_at_once(jit):
    f = j2t(lambda x: x @ x @ x @ x, jit=jit)
    x = torch.randn(700, 700)
    f(x)
    for _ in range(3):
        kept = x.clone()
        y = f(x)
        x.fill_(torch.nan)
        torch.testing.assert_close(y, kept @ kept @ kept @ kept, rtol=1e-3, atol=1)
        x = kept


def test_arrays_are_traced_and_have_no_derivatives():
    f, seen = traces(lambda x, key, y: x + jax.random.normal(key, x.shape) * 0 + y)
    g = j2t(f)
    for seed in range(3):
        y = np.full(2, seed, np.float32)
        result = g(torch.ones(2, requires_grad=True), jax.random.key(seed), y)
        torch.testing.assert_close(result.detach(), torch.full((2,), 1.0 + seed))
    assert len(seen) == 1


def test_each_signature_is_traced_once():
    f, seen = traces(lambda x, *rest, **options: x * 2)
    g = j2t(f)
    calls = [
        lambda: g(torch.ones(2)),
        lambda: g(torch.ones(3)),
        lambda: g(torch.ones(2, dtype=torch.float16)),
        lambda: g(torch.ones(2), 1),
        lambda: g(torch.ones(2), 1.0),
        lambda: g(torch.ones(2), True),
        lambda: g(torch.ones(2), 0.0),
        lambda: g(torch.ones(2), -0.0),
        lambda: g(torch.ones(2), float("nan")),
        lambda: g(torch.ones(2), mode="a"),
        lambda: g(torch.ones(2), mode="b"),
        lambda: g(torch.ones(2), mode=None),
        lambda: g(torch.ones(2), [torch.ones(2)]),
        lambda: g(torch.ones(2), (torch.ones(2),)),
        lambda: g(torch.ones(2), jnp.tanh),
    ]
    for _ in range(3):
        for call in calls:
            call()
    assert len(seen) == len(calls) - 3  # 1.0, 0.0, -0.0 and nan are one operand


def test_python_numbers_are_operands():
    f, seen = traces(lambda x, scale, n: jnp.where(n > 2, x * scale, x) ** 2)
    g = j2t(f)
    for n in range(1, 5):
        x = torch.tensor([1.0, -2.0], requires_grad=True)
        scale = n / 8
        g(x, scale, n).sum().backward()
        factor = scale**2 if n > 2 else 1.0
        torch.testing.assert_close(x.grad, 2 * factor * x.detach())
    assert len(seen) == 2  # the function, and its derivative
    torch.testing.assert_close(
        torch.func.vmap(g, in_dims=(0, None, None))(torch.ones(2), 0.5, 3), torch.full((2,), 0.25)
    )
    low = j2t(lambda x, scale: x * scale)(torch.ones(2, dtype=torch.bfloat16), 0.5)
    assert low.dtype == torch.bfloat16  # as any Python number


@pytest.mark.parametrize(
    ("f", "args"),
    [
        (lambda x, axis, scale: x.sum(axis) * scale, (1, 0.5)),
        (lambda x, axis, scale: x.reshape(axis + 1, -1) * scale, (1, 0.5)),
        (lambda x, n, scale: x * scale if n > 3 else x, (4, 0.5)),
        (lambda x, n, scale: x * n if scale > 0.25 else x, (4, 0.5)),
        (lambda x, n, scale: (x * scale, n + 1, [scale]), (4, 0.5)),  # numbers leave as they came
        (lambda x, n, scale: x + n % 7 * scale, (2**40, 0.5)),
    ],
    ids=["axis", "shape", "condition on an int", "condition on a float", "result", "a large int"],
)
def test_numbers_that_python_must_know_are_static(f, args):
    x = torch.arange(6.0).reshape(2, 3)
    result, expected = j2t(f)(x, *args), f(x, *args)
    torch.testing.assert_close(result, expected)
    assert jax.tree.map(type, result) == jax.tree.map(type, expected)


def test_what_is_kept_is_bounded():
    f = j2t(lambda x, n, scale: x.sum(n % 1) * scale)
    for n in range(200):
        f(torch.ones(2), n % 150, n / 7)
    assert f.cache_size() <= 128
    f.clear_cache()
    assert f.cache_size() == 0
    g = j2t(lambda x, scale: x * scale)
    for n in range(10_000):
        g(torch.ones(2), n / 7)
    assert g.cache_size() == 1


def test_a_function_has_its_programs_once():
    f, seen = traces(lambda x: x * 2)
    for _ in range(5):
        assert torch.equal(j2t(f)(torch.ones(2)), torch.full((2,), 2.0))

    class Model:
        def apply(self, x):
            seen.append(None)
            return x * 3

    models = [Model(), Model()]
    for _ in range(5):
        for model in models:
            assert torch.equal(j2t(model.apply)(torch.ones(2)), torch.full((2,), 3.0))
    assert len(seen) == 3


def test_functions_of_shared_programs_are_freed():
    def made(factor):
        return lambda x: jnp.sin(x) * factor

    f = made(jnp.ones(2))
    alive = weakref.ref(f)
    y = j2t(f)(torch.ones(2, requires_grad=True))
    x = torch.ones(2, requires_grad=True)
    (slope,) = torch.autograd.grad(j2t(made(jnp.ones(2)))(x).sum(), x, create_graph=True)
    del f
    torch.autograd.grad(slope.sum(), x)  # what the graph needs is there
    y.sum().backward()
    del y
    gc.collect()
    assert alive() is None


def test_static_arguments_reach_the_function_as_they_are():
    def f(x, activation, *, axis, mode):
        assert type(axis) is int
        return activation(x).sum(axis) if mode == "sum" else activation(x)

    x = torch.randn(2, 3)
    torch.testing.assert_close(j2t(f)(x, jnp.tanh, axis=1, mode="sum"), x.tanh().sum(1))


def test_static_arguments_that_cannot_be_hashed():
    class Options:
        __hash__ = None  # pyright: ignore

    with pytest.raises(TypeError, match=r"cannot be hashed.*Options.*jit=False"):
        j2t(lambda x, options: x)(torch.ones(2), Options())
    assert torch.equal(j2t(lambda x, options: x, jit=False)(torch.ones(2), Options()), torch.ones(2))


def test_without_jit_python_may_ask_for_values():
    def f(x):
        return x * 2 if x.sum() > 0 else -x

    with pytest.raises(jax.errors.TracerBoolConversionError):
        j2t(f)(torch.ones(2))
    eager = j2t(f, jit=False)
    for value, slope in ((1.0, 2.0), (-1.0, -1.0)):
        x = torch.full((2,), value, requires_grad=True)
        eager(x).sum().backward()
        assert torch.equal(x.grad, torch.full((2,), slope))
    assert j2t(lambda x: float(x.sum()), jit=False)(torch.ones(3)) == 3.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_double_precision_is_never_lost_silently(dtype):
    x = torch.ones(2, dtype=dtype)
    with pytest.raises(TypeError, match=r"jax_enable_x64.*tensor\.float\(\)"):
        j2t(wave)(x)
    with jax.enable_x64(True):
        assert j2t(wave)(x).dtype == dtype


def test_int64_is_held_in_32_bits_without_x64():
    f = j2t(lambda x, y: (x + 1, y, x > 0, x / 2))
    results = f(torch.tensor([1, 2]), torch.ones(2))
    assert [result.dtype for result in results] == [torch.int64, torch.float32, torch.bool, torch.float32]
    assert torch.equal(results[0], torch.tensor([2, 3]))
    assert j2t(lambda x: x + 1)(torch.ones(2, dtype=torch.int32)).dtype == torch.int32
    assert j2t(jnp.argmax)(torch.ones(2)).dtype == torch.int32
    with pytest.raises(OverflowError, match="int32 cannot hold"):
        f(torch.tensor([1, 2**40]), torch.ones(2))
    with jax.enable_x64(True):
        assert torch.equal(f(torch.tensor([1, 2**40]), torch.ones(2))[0], torch.tensor([2, 2**40 + 1]))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: torch.eye(3).to_sparse(), TypeError, "sparse"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), TypeError, "quantized"),
        (lambda: torch.empty(3, device="meta"), ValueError, "meta"),
        (lambda: torch.empty(3, dtype=torch.complex32), TypeError, "complex32"),
    ],
    ids=["sparse", "quantized", "meta", "complex32"],
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_that_cannot_be_arguments(make, error, words):
    with pytest.raises(error, match=words):
        j2t(lambda x: x)(make())


def test_results_that_cannot_be_tensors():
    with pytest.raises(TypeError, match="key<"):
        j2t(lambda x: jax.random.key(0))(torch.ones(2))


class MyError(Exception):
    pass


@pytest.mark.parametrize("requires_grad", [False, True])
def test_errors_pass_through(requires_grad):
    error = MyError("mine")

    def f(x):
        raise error

    with pytest.raises(MyError, match="mine") as caught:
        j2t(f)(torch.ones(2, requires_grad=requires_grad))
    assert caught.value is error
    with pytest.raises(TypeError, match="incompatible shapes"):
        j2t(jnp.add)(torch.ones(2), torch.ones(3))
    assert torch.equal(j2t(jnp.add)(torch.ones(2), torch.ones(2)), torch.full((2,), 2.0))


def test_modules_that_hold_functions_copy_and_pickle():
    f = j2t(jnp.tanh)
    assert copy.deepcopy(f) is f
    again = pickle.loads(pickle.dumps(j2t(wave, jit=False)))
    assert not again.jit
    torch.testing.assert_close(again(torch.ones(2)), j2t(wave)(torch.ones(2)))


def test_methods():
    class Model:
        scale = 3.0

        @j2t
        def forward(self, x):
            return x * self.scale

    torch.testing.assert_close(Model().forward(torch.ones(2)), torch.full((2,), 3.0))


def test_signatures_keep_no_tensors():
    f = j2t(lambda tree: tree["x"] * 2)
    x = torch.ones(2, requires_grad=True)
    alive = weakref.ref(x)
    f({"x": x}).sum().backward()
    f({"x": x})
    del x
    gc.collect()
    assert alive() is None


def test_functions_are_freed():
    class Big:
        def __call__(self, x):
            return jnp.sin(x)

    big = Big()
    alive = weakref.ref(big)
    x = torch.ones(2, requires_grad=True)
    j2t(big)(x).sum().backward()
    del big
    gc.collect()
    assert alive() is None


def test_called_while_jax_traces():
    x = torch.ones(2)

    @jax.jit
    def outer(y):
        return y + float(j2t(wave)(x)[0])

    np.testing.assert_allclose(outer(jnp.zeros(1)), 2 * np.sin(1), rtol=1e-6)


def test_eight_threads_at_once():
    f = j2t(lambda x: jnp.tanh(x) * x)
    failures = []

    def work(i):
        try:
            for size in range(1, 6):
                x = torch.full((size,), float(i), requires_grad=True)
                y = f(x)
                y.sum().backward()
                torch.testing.assert_close(y.detach(), x.detach().tanh() * i)
                torch.testing.assert_close(x.grad, x.detach().tanh() + i * (1 - x.detach().tanh() ** 2))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # dynamo looks at it
def test_torch_compile_leaves_the_call_out_of_its_graph():
    f = j2t(wave)

    def step(x):
        return f(x.relu() + 1).cos()

    x = torch.randn(4, requires_grad=True)
    y = torch.compile(step, backend="eager")(x)
    torch.testing.assert_close(y, ((x.relu() + 1).sin() * 2).cos())
    y.sum().backward()
    expected = x.grad.clone()
    x.grad = None
    ((x.relu() + 1).sin() * 2).cos().sum().backward()
    torch.testing.assert_close(x.grad, expected)


def test_torch_compile_says_why_it_cannot_take_it_into_one_graph():
    with pytest.raises(torch._dynamo.exc.Unsupported, match="_outside_graph"):
        torch.compile(lambda x: j2t(wave)(x), backend="eager", fullgraph=True)(torch.ones(2))


@pytest.mark.parametrize(
    "trace",
    [
        lambda x: make_fx(lambda x: j2t(wave)(x))(x),
        lambda x: torch.jit.trace(lambda x: j2t(wave)(x), x),
        lambda x: make_fx(lambda x: j2t(wave)(x), tracing_mode="fake")(x),
    ],
    ids=["make_fx", "jit", "fake"],
)
def test_graphs_of_pytorch_cannot_hold_it(trace):
    with pytest.raises(RuntimeError, match="while PyTorch traces a graph"):
        trace(torch.ones(2))


@pytest.mark.parametrize("jit", [True, False], ids=["jit", "eager"])
def test_donated_arguments_are_not_written_to(jit):
    x = torch.ones(1 << 12)
    y = j2t(jax.jit(lambda x: x * 2, donate_argnums=0), jit=jit)(x)
    assert (x == 1).all()
    assert (y == 2).all()


def test_jax_may_call_pytorch_which_calls_jax():
    inner = j2t(jnp.sin)

    def outer(x):
        def back(x):
            return inner(torch.from_numpy(np.array(x))).numpy()

        return jax.pure_callback(back, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1

    torch.testing.assert_close(j2t(outer)(torch.ones(3)), torch.ones(3).sin() + 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or jax.default_backend() == "cpu", reason="needs a GPU")
def test_cuda_tensors_stay_on_the_gpu_and_cpu_tensors_on_the_cpu():
    f = j2t(lambda x: (x @ x).sum(0))
    for device in ("cuda", "cpu"):
        x = torch.randn(512, 512, device=device, requires_grad=True)
        for _ in range(5):
            with torch.no_grad():
                x.mul_(0.99)  # still on its way when JAX starts to read
            y = f(x)
            assert y.device.type == device
            (gradient,) = torch.autograd.grad(y.sum(), x)
            (expected,) = torch.autograd.grad((x @ x).sum(), x)
            torch.testing.assert_close(y, (x @ x).sum(0), rtol=1e-2, atol=1e-1)
            torch.testing.assert_close(gradient, expected, rtol=1e-2, atol=1e-1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or jax.default_backend() == "cpu", reason="needs a GPU")
def test_cuda_streams():
    f = j2t(lambda x: jnp.cumsum(x))
    with torch.cuda.stream(torch.cuda.Stream()):
        x = torch.zeros(1 << 20, device="cuda")
        for i in range(10):
            y = f(x.fill_(i))
            x.fill_(torch.nan)
            assert y[-1].item() == i * (1 << 20)
