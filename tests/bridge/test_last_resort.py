"""What `t2j` runs in PyTorch itself: operators without a rule, and what the user names."""

import pickle
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import torch

from torch2jax import NoRuleError, TracedValueError, j2t, t2j

pytestmark = pytest.mark.filterwarnings("ignore:t2j runs in PyTorch itself")

X = jnp.array([-2.0, -0.3, 0.1, 1.5])


# --- Operators that JAX knows nothing of


@torch.library.custom_op("resort::soft_threshold", mutates_args=())
def soft_threshold(x: torch.Tensor, level: float) -> torch.Tensor:
    return torch.from_numpy(np.sign(x.numpy()) * np.maximum(np.abs(x.numpy()) - np.float32(level), 0))


@soft_threshold.register_fake
def _(x, level):
    return torch.empty_like(x)


def _keep(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.level = inputs[1]


soft_threshold.register_autograd(
    lambda ctx, grad: (grad * (ctx.saved_tensors[0].abs() > ctx.level), None), setup_context=_keep
)


@torch.library.custom_op("resort::cube", mutates_args=())
def cube(x: torch.Tensor) -> torch.Tensor:
    """Without a fake implementation and without a derivative."""
    return x * x * x


@torch.library.custom_op("resort::split_signs", mutates_args=())
def split_signs(x: torch.Tensor, others: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    return x.clamp(min=0), (x > 0).sum(), [other + 1 for other in others]


@torch.library.custom_op("resort::positives", mutates_args=())
def positives(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


@torch.library.custom_op("resort::declared_positives", mutates_args=())
def declared_positives(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


@declared_positives.register_fake
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@torch.library.custom_op("resort::count", mutates_args=())
def count(x: torch.Tensor) -> int:
    return int((x > 0).sum())


@torch.library.custom_op("resort::accumulate", mutates_args=("total",))
def accumulate(total: torch.Tensor, x: torch.Tensor) -> None:
    total += 2 * x


@torch.library.custom_op("resort::halve", mutates_args=("x",))
def halve(x: torch.Tensor) -> torch.Tensor:
    old = x.clone()
    x.div_(2)
    return old


@halve.register_fake
def _(x):
    return torch.empty_like(x)


library = torch.library.Library("resort", "FRAGMENT")
library.define("noise(Tensor x) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
library.impl("noise", lambda x: x + torch.rand_like(x), "CompositeExplicitAutograd")
library.define("window(Tensor(a) x) -> Tensor(a)")
library.impl("window", lambda x: x[1:], "CompositeExplicitAutograd")
library.define("square_(Tensor(a!) x) -> Tensor(a!)")
library.impl("square_", lambda x: x.mul_(x), "CompositeExplicitAutograd")
library.define("scale.Tensor(Tensor x, Tensor factor) -> Tensor")
library.impl("scale.Tensor", lambda x, factor: x * factor, "CompositeImplicitAutograd")
library.define("scale.Scalar(Tensor x, Scalar factor) -> Tensor")
library.impl("scale.Scalar", lambda x, factor: x * factor, "CompositeImplicitAutograd")
library.define("sink(Tensor x) -> ()")
library.impl("sink", lambda x: None, "CompositeExplicitAutograd")

ops = torch.ops.resort


def call(function, **options):
    return t2j(function, on_missing="call_torch", **options)


def calls_in(jaxpr) -> list[str]:
    """The functions that a jaxpr calls in PyTorch, also in its inner ones."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "torch_call":
            found.append(str(equation.params["function"]))
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                found += calls_in(inner)
    return found


def _unserved(x: torch.Tensor) -> torch.Tensor:
    """One of PyTorch's operators without a rule, which its own tests have."""
    return torch.ops.aten._test_optional_floatlist(x, [1.0] * x.numel())


# --- Asking for it


def test_the_default_is_an_error_that_names_the_ways_out():
    with pytest.raises(NoRuleError, match='on_missing="call_torch"'):
        t2j(_unserved)(X)
    with pytest.raises(TracedValueError, match="numpy") as error:
        jax.jit(t2j(lambda x: ops.soft_threshold(x, 0.5)))(X)
    assert 'call_torch=["resort::soft_threshold"]' in error.value.__notes__[0]


def test_options_are_checked():
    with pytest.raises(ValueError, match="on_missing='ignore'; wanted one of 'error', 'call_torch'"):
        t2j(torch.sin, on_missing="ignore")
    with pytest.raises(ValueError, match="vmap_method='fast'; wanted one of sequential"):
        t2j(torch.sin, vmap_method="fast")
    with pytest.raises(ValueError, match="'resort::cub', which PyTorch does not know"):
        t2j(torch.sin, call_torch=["resort::cub"])
    with pytest.raises(ValueError, match="no module is translated"):
        t2j(torch.sin, call_torch=["layers.0"])
    with pytest.raises(ValueError, match="no module of that name \\(nearest: 'first'"):
        t2j(Model(), call_torch=["frist"])
    with pytest.raises(TypeError, match="wanted a list"):
        t2j(torch.sin, call_torch="resort::cube")
    with pytest.raises(TypeError, match="In place of your own function"):
        t2j(torch.sin, call_torch=[lambda x: x])
    with pytest.raises(TypeError, match="Translate the module"):
        t2j(torch.sin, call_torch=[torch.nn.Linear])
    with pytest.raises(TypeError, match="TorchScript"):
        t2j(torch.nn.Sequential(torch.jit.script(torch.nn.ReLU())), call_torch=["0"])(X)


def test_one_warning_lists_what_was_called():
    f = call(lambda x: cube(ops.soft_threshold(x, 0.5)) + cube(x))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for run in (f, f, jax.jit(f)):
            run(X)
    (message,) = [str(one.message) for one in caught]
    assert message.count("resort::cube") == message.count("resort::soft_threshold") == 1
    assert "test_last_resort.py" in message
    assert caught[0].filename == __file__


def test_what_is_called_later_is_listed_then():
    f = call(lambda x, cubed: cube(x) if cubed else ops.soft_threshold(x, 0.5))
    with pytest.warns(UserWarning, match="soft_threshold"):
        f(X, False)
    with pytest.warns(UserWarning, match="compiles: resort::cube"):
        f(X, True)


def test_what_has_a_rule_is_translated():
    f = call(lambda x: torch.sin(x) + cube(x))
    with warnings.catch_warnings(record=True):
        assert calls_in(jax.make_jaxpr(f)(X).jaxpr) == ["resort::cube"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert calls_in(jax.make_jaxpr(call(torch.sin))(X).jaxpr) == []


# --- Operators without a rule


@pytest.mark.parametrize("op", [lambda x: soft_threshold(x, 0.5), lambda x: ops.soft_threshold(x, level=0.5)])
def test_values_and_gradients(op):
    f = call(lambda x: op(x * 2) * x)
    x = torch.tensor(np.array(X), requires_grad=True)
    expected = op(x * 2) * x
    expected.sum().backward()
    np.testing.assert_allclose(f(X), expected.detach(), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(f)(X), expected.detach(), rtol=1e-6)
    for grad in (jax.grad, lambda g: jax.jit(jax.grad(g))):
        np.testing.assert_allclose(grad(lambda x: f(x).sum())(X), x.grad, rtol=1e-6)
    np.testing.assert_allclose(jax.jacobian(f)(X).diagonal(), x.grad, rtol=1e-6)


def test_one_equation_and_no_warning_of_the_bridge():
    f = call(lambda x: ops.soft_threshold(x, 0.5))
    assert calls_in(jax.make_jaxpr(f)(X).jaxpr) == ["resort::soft_threshold"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "t2j runs in PyTorch")
        jax.grad(lambda x: f(x).sum())(X)


def test_operators_without_a_derivative():
    with pytest.raises(TypeError, match=r"resort::square_ defines no gradient.*register a derivative"):
        jax.grad(lambda x: call(lambda x: ops.square_(x * 3))(x).sum())(X)
    f = call(cube)
    np.testing.assert_allclose(jax.jit(f)(X), X**3, rtol=1e-6)
    with pytest.raises(jax.errors.JaxRuntimeError, match="no autograd formula was registered"):
        jax.block_until_ready(jax.grad(lambda x: f(x).sum())(X))


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all"])
def test_vmap(method):
    f = call(lambda x: ops.soft_threshold(x, 0.5) * 2, vmap_method=method)
    rows = jnp.arange(-3.0, 3.0).reshape(2, 3)
    expected = 2 * np.sign(rows) * np.maximum(np.abs(rows) - 0.5, 0)
    np.testing.assert_allclose(jax.vmap(f)(rows), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.vmap(f, in_axes=1, out_axes=1))(rows), expected, rtol=1e-6)
    grads = jax.vmap(jax.grad(lambda x: f(x).sum()))(rows)
    np.testing.assert_allclose(grads, 2.0 * (np.abs(rows) > 0.5), rtol=1e-6)


def test_torch_vmap():
    shapes = []

    class Sine(torch.nn.Module):
        def forward(self, x):
            shapes.append((x.shape, torch._C._functorch.is_batchedtensor(x)))
            return x.sin()

    f = t2j(Sine(), call_torch=[Sine], vmap_method="torch_vmap")
    rows = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(jax.vmap(f)(rows), np.sin(rows), rtol=1e-6)
    assert shapes[-1] == ((3,), True)


def test_inside_scan():
    f = call(lambda x: ops.soft_threshold(x, 0.25))
    final, steps = jax.lax.scan(lambda x, _: (f(x), f(x).sum()), X, None, length=3)
    np.testing.assert_allclose(final, np.sign(X) * np.maximum(np.abs(X) - 0.75, 0), rtol=1e-6)
    assert steps.shape == (3,)


def test_inside_other_control_flow():
    f = call(lambda x: ops.soft_threshold(x, 0.25))
    wanted = np.sign(X) * np.maximum(np.abs(X) - 0.25, 0)
    _, looped = jax.lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, f(s[1])), (0, X))
    np.testing.assert_allclose(looped, np.sign(X) * np.maximum(np.abs(X) - 0.5, 0), rtol=1e-6)
    np.testing.assert_allclose(jax.lax.cond(X[0] < 0, f, lambda x: x, X), wanted, rtol=1e-6)
    gradient = jax.grad(lambda x: jax.checkpoint(f)(x).sum())(X)
    np.testing.assert_allclose(gradient, np.abs(X) > 0.25)


def test_forward_mode_is_refused():
    with pytest.raises(TypeError, match="reverse-mode gradients only"):
        jax.jvp(call(lambda x: ops.soft_threshold(x, 0.5)), (X,), (X,))


def test_several_results_lists_and_integers():
    f = call(lambda x: ops.split_signs(x, [x, x[:2]]))
    for run in (f, jax.jit(f)):
        positive, number, (first, second) = run(X)
        np.testing.assert_allclose(positive, np.maximum(X, 0))
        assert number.dtype == jnp.int32
        assert number == 2
        np.testing.assert_allclose(first, X + 1)
        np.testing.assert_allclose(second, X[:2] + 1)


def test_logical_dtypes_reach_pytorch_and_come_back():
    seen = []

    def f(x):
        number = ops.split_signs(x, [])[1]
        seen.append(number.dtype)
        return cube(number)

    assert jax.jit(call(f))(X) == 8
    assert seen == [torch.int64]


def test_no_result():
    f = call(lambda x: (ops.sink(x), x + 1))
    assert f(X)[0] is None
    np.testing.assert_allclose(jax.jit(f)(X)[1], X + 1)


def test_shapes_that_depend_on_data():
    for op in (positives, declared_positives):
        np.testing.assert_allclose(call(op)(X), X[X > 0])
        with pytest.raises(TracedValueError, match=r"resort::.*traced input, at .*test_last_resort|user code"):
            jax.jit(call(lambda x, op=op: op(x)))(X)


def test_python_numbers():
    f = call(lambda x: x * ops.count(x))
    np.testing.assert_allclose(f(X), 2 * X)
    with pytest.raises(TracedValueError, match="resort::count"):
        jax.jit(f)(X)


def test_known_values_stay_known_under_jit():
    def f(x):
        return x * ops.count(torch.arange(5) - 2) + positives(torch.tensor([1.0, -1.0])).shape[0]

    np.testing.assert_allclose(jax.jit(call(f))(X), 2 * X + 1)


def test_overloads_are_resolved_as_in_pytorch():
    f = t2j(lambda x: ops.scale(x, 2) + ops.scale(x, x), call_torch=["resort::scale"])
    assert calls_in(jax.make_jaxpr(f)(X).jaxpr) == ["resort::scale.Scalar", "resort::scale.Tensor"]
    np.testing.assert_allclose(jax.jit(f)(X), 2 * X + X * X, rtol=1e-6)


def test_random_operators_keep_the_error():
    for f in (call(lambda x: ops.noise(x)), t2j(lambda x: ops.noise(x), call_torch=[ops.noise])):
        with pytest.raises(NoRuleError, match="random numbers"):
            f(X)
    with pytest.raises(NoRuleError, match=r"native_dropout|bernoulli"):
        t2j(torch.nn.Sequential(torch.nn.Dropout(0.5)), call_torch=["0"])(X)


def test_sparse_and_quantized_results_are_refused():
    for op in (
        lambda x: torch.ops.aten._to_sparse(x),
        lambda x: torch.ops.aten._make_per_tensor_quantized_tensor(x, 1, 0),
    ):
        for run in (call(op), jax.jit(call(op))):
            with pytest.raises(NoRuleError, match="no array can hold"):
                run(X.astype(jnp.uint8))


def test_views_of_arguments_are_refused():
    for run in (call(lambda x: ops.window(x)), jax.jit(call(lambda x: ops.window(x)))):
        with pytest.raises(NoRuleError, match="view of an argument"):
            run(X)


# --- Writes


def test_writes_are_seen_by_aliases():
    def f(x):
        total = torch.zeros(2, 4)
        row = total[1]
        accumulate(row, x)
        accumulate(row, x)
        return total

    for run in (call(f), jax.jit(call(f))):
        np.testing.assert_allclose(run(X), jnp.stack([0 * X, 4 * X]))


def test_what_is_written_and_what_is_returned():
    def f(x):
        y = x * 2
        before = ops.halve(y)
        same = ops.square_(y)
        assert same is y
        return before, y

    for run in (call(f), jax.jit(call(f)), jax.vmap(call(f))):
        before, after = run(X)
        np.testing.assert_allclose(before, 2 * X)
        np.testing.assert_allclose(after, X * X, rtol=1e-6)


def test_lists_that_are_written_to():
    def step(x):
        parameters, moments = [x * 1, x[:2] * 1], [torch.zeros(4), torch.zeros(2)]
        torch.ops.aten._foreach_add_.Scalar(parameters, 1.0)
        torch.ops.aten._foreach_lerp_.Scalar(moments, parameters, 0.5)
        return parameters, moments

    for run in (call(step), jax.jit(call(step))):
        (first, second), (moment, _) = run(X)
        np.testing.assert_allclose(first, X + 1)
        np.testing.assert_allclose(second, X[:2] + 1)
        np.testing.assert_allclose(moment, (X + 1) / 2)


def test_the_callers_arrays_are_never_written():
    before = np.array(X)
    np.testing.assert_allclose(call(lambda x: ops.square_(x))(X), before**2, rtol=1e-6)
    np.testing.assert_array_equal(X, before)


def test_writes_into_shared_memory_are_refused():
    def f(x):
        y = x * 1
        accumulate(y[1:], y[:-1])
        return y

    with pytest.raises(RuntimeError, match=r"clone\(\)"):
        jax.jit(call(f))(X)


def test_in_place_and_out_forms_of_pytorchs_own():
    def f(x):
        y, out = x * 1, torch.empty(4)
        y.sin_()
        torch.sin(x, out=out)
        return y, out

    g = t2j(f, call_torch=["aten::sin", "aten::sin_"])
    assert len(calls_in(jax.make_jaxpr(g)(X).jaxpr)) == 2
    for result in (*g(X), *jax.jit(g)(X)):
        np.testing.assert_allclose(result, np.sin(X), rtol=1e-6)
    h = t2j(lambda x: (x * 1).sin_() * x, call_torch=["aten::sin_"])
    gradient = jax.jit(jax.grad(lambda x: h(x).sum()))(X)
    np.testing.assert_allclose(gradient, np.cos(X) * X + np.sin(X), rtol=1e-5)


# --- What is named although it could be translated


@pytest.mark.parametrize("named", ["aten::sin", torch.ops.aten.sin, torch.sin, torch.Tensor.sin])
def test_functions_by_any_name(named):
    f = t2j(lambda x: torch.sin(x) + x.sin() + torch.ops.aten.sin.default(x) + torch.cos(x), call_torch=[named])
    assert len(calls_in(jax.make_jaxpr(f)(X).jaxpr)) >= 2
    np.testing.assert_allclose(jax.jit(f)(X), 3 * np.sin(X) + np.cos(X), rtol=1e-6)
    gradient = jax.grad(lambda x: f(x).sum())(X)
    np.testing.assert_allclose(gradient, 3 * np.cos(X) - np.sin(X), rtol=1e-5)


def test_python_functions_of_pytorch():
    f = t2j(lambda x: torch.nn.functional.softplus(x), call_torch=[torch.nn.functional.softplus])
    assert len(calls_in(jax.make_jaxpr(f)(X).jaxpr)) == 1
    hessian = jax.jacobian(jax.jacobian(f))(X)
    sigmoid = 1 / (1 + np.exp(-np.array(X)))
    np.testing.assert_allclose(np.einsum("iii->i", hessian), sigmoid * (1 - sigmoid), rtol=1e-5)


class Symmetric(torch.nn.Module):
    """Leaves PyTorch: its eigenvalues come from scipy, its weights are applied by PyTorch."""

    def __init__(self, size: int = 3):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((size,), 2.0))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        eigenvalues = scipy.linalg.eigvalsh(x.detach().numpy())
        self.calls += 1
        return (x * torch.from_numpy(eigenvalues)) @ self.scale


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(3, 3)
        self.solver = Symmetric()
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, x):
        y = self.first(x)
        return self.solver(y @ y.T) + self.norm(y).square().sum(-1)


def gradients_of(model, x):
    x = torch.tensor(np.array(x), requires_grad=True)
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(model(x).sum(), [x, *parameters.values()])
    return found[0], dict(zip(parameters, found[1:], strict=True))


POINTS = jnp.array([[0.5, -1.0, 2.0], [1.0, 0.3, -0.7], [-0.2, 0.8, 1.1]])


@pytest.mark.parametrize("named", ["solver", Symmetric, "instance"], ids=["name", "class", "instance"])
def test_modules(named):
    model = Model()
    f = t2j(model, call_torch=[model.solver if named == "instance" else named])
    expected = Model()
    wanted = expected(torch.from_numpy(np.array(POINTS)))
    state = t2j(model.state_dict())
    for run in (f, jax.jit(f)):
        np.testing.assert_allclose(run(POINTS, state_dict=state), wanted.detach(), rtol=1e-4)
    result, new = jax.jit(lambda x, s: f(x, state_dict=s, return_state_dict=True))(POINTS, state)
    np.testing.assert_allclose(result, wanted.detach(), rtol=1e-4)
    for name, buffer in expected.named_buffers():
        np.testing.assert_allclose(new[name], buffer, rtol=1e-5, err_msg=name)
    assert model.solver.calls == 0
    assert "_call_impl" not in vars(model.solver)
    jaxpr = jax.make_jaxpr(lambda x, s: f(x, state_dict=s))(POINTS, state)
    assert calls_in(jaxpr.jaxpr) == ["Symmetric solver"]


def test_gradients_of_parameters():
    model = Model()
    f = t2j(model, call_torch=["solver", "norm"])
    wanted_x, wanted = gradients_of(Model(), POINTS)
    parameters = {name: t2j(value) for name, value in model.named_parameters()}
    loss = lambda x, p: f(x, state_dict=p).sum()
    for grad in (jax.grad(loss, (0, 1)), jax.jit(jax.grad(loss, (0, 1)))):
        got_x, got = grad(POINTS, parameters)
        np.testing.assert_allclose(got_x, wanted_x, rtol=1e-3, atol=1e-4)
        for name, value in wanted.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


def test_the_whole_model_and_a_batch_of_it():
    f = t2j(Symmetric(), call_torch=[Symmetric])
    matrices = jnp.stack([POINTS + POINTS.T, jnp.eye(3)])
    wanted = torch.stack([Symmetric()(torch.from_numpy(np.array(one))) for one in matrices])
    np.testing.assert_allclose(jax.jit(jax.vmap(f))(matrices), wanted.detach(), rtol=1e-5)


def test_arguments_and_results_of_modules_are_trees():
    class Labelled(torch.nn.Module):
        def forward(self, pair, *, factor, label=None):
            return {"sum": pair["a"] + pair["b"] * factor, "rest": [None, label, pair["a"].shape[0], pair["b"]]}

    f = t2j(Labelled(), call_torch=[Labelled])
    for run in (f, jax.jit(f, static_argnames=("factor", "label"))):
        result = run({"a": X, "b": X}, factor=2)
        np.testing.assert_allclose(result["sum"], 3 * X, rtol=1e-6)
        assert result["rest"][2] == 4
        np.testing.assert_array_equal(result["rest"][3], X)


def test_errors_of_modules_are_their_own():
    class Broken(torch.nn.Module):
        def forward(self, x):
            raise KeyError("broken")

    for run in (t2j(Broken(), call_torch=[Broken]), jax.jit(t2j(Broken(), call_torch=[Broken]))):
        with pytest.raises(KeyError, match="broken"):
            run(X)


def test_training_mode_set_by_the_code_and_buffers_replaced():
    class Inner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", torch.zeros(4))

        def forward(self, x):
            self.state = self.state + x
            return x * (2 if self.training else 3)

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            first = self.inner(x)
            self.inner.eval()
            return first + self.inner(x)

    module = Outer()
    result, state = t2j(module, call_torch=["inner"])(X, return_state_dict=True)
    np.testing.assert_allclose(result, 5 * X)
    np.testing.assert_allclose(state["inner.state"], 2 * X)
    assert module.inner.training
    assert not module.inner.state.any()


def test_a_signature_is_tried_and_compiled_once():
    runs = []

    class Sine(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0))
            self.register_buffer("lengths", torch.arange(3))

        def forward(self, x):
            runs.append(1)
            return torch.from_numpy(np.sin(x.detach().numpy())) * self.scale * x

    f = t2j(Sine(), call_torch=[Sine])
    gradient = jax.grad(lambda x: f(x).sum())
    np.testing.assert_allclose(gradient(X), 2 * np.sin(X), rtol=1e-6)
    (resort,) = [value for value in vars(f).values() if hasattr(value, "functions")]
    before, programs = len(runs), len(resort._outside._programs)
    for _ in range(3):
        gradient(X)
    assert len(runs) == before + 3 * 2  # the call, and its gradient
    assert len(resort._outside._programs) == programs


def test_tied_weights_are_one_input():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(4, 4, bias=False)
            self.b = torch.nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    module = Tied()
    weight = jnp.eye(4) * 2
    f = t2j(module, call_torch=[Tied])
    gradient = jax.grad(lambda w: f(X, state_dict={"a.weight": w}).sum())(weight)
    wanted = jax.grad(lambda w: ((X @ w.T) @ w.T).sum())(weight)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-5)


# --- Together with the rest


def test_nested_translations_inherit_it():
    inner = t2j(lambda x: cube(x) + 1)
    f = call(lambda x: inner(x) * 2)
    np.testing.assert_allclose(jax.jit(f)(X), 2 * X**3 + 2, rtol=1e-6)
    outer = t2j(lambda x: call(_unserved)(x) + _unserved(x))
    with pytest.raises(NoRuleError):
        outer(X)


def test_what_runs_in_pytorch_may_translate():
    class Nested(torch.nn.Module):
        def forward(self, x):
            return torch.from_numpy(np.array(t2j(torch.sin)(jnp.array(x.detach().numpy()))))

    f = t2j(Nested(), call_torch=[Nested])
    np.testing.assert_allclose(f(X), np.sin(X), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(f)(X), np.sin(X), rtol=1e-6)


def test_back_in_pytorch():
    f = j2t(call(lambda x: ops.soft_threshold(x, 0.5) * x))
    x = torch.tensor(np.array(X), requires_grad=True)
    f(x).sum().backward()
    shrunk = np.sign(X) * np.maximum(np.abs(X) - 0.5, 0)
    np.testing.assert_allclose(x.grad, shrunk + X * (np.abs(X) > 0.5), rtol=1e-6)


def test_shards():
    """Each device calls PyTorch on its own shard; here there is one device, and one shard."""
    mesh = jax.make_mesh((1,), ("rows",))
    spec = jax.sharding.PartitionSpec("rows")
    f = jax.shard_map(call(lambda x: ops.soft_threshold(x, 0.5)), mesh=mesh, in_specs=spec, out_specs=spec)
    sharded = jax.device_put(X, jax.sharding.NamedSharding(mesh, spec))
    np.testing.assert_allclose(jax.jit(f)(sharded), np.sign(X) * np.maximum(np.abs(X) - 0.5, 0), rtol=1e-6)


def test_no_grad_holds():
    def f(x):
        with torch.no_grad():
            y = ops.soft_threshold(x, 0.5)
        return (y * x).sum()

    np.testing.assert_allclose(jax.grad(call(f))(X), np.sign(X) * np.maximum(np.abs(X) - 0.5, 0), rtol=1e-6)


def test_threads():
    f = call(lambda x: ops.soft_threshold(x, 0.5) + cube(x))
    wanted = f(X)
    errors = []

    def work():
        try:
            for _ in range(5):
                np.testing.assert_allclose(f(X), wanted)
                np.testing.assert_allclose(jax.jit(lambda x: f(x))(X), wanted, rtol=1e-6)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not errors
    assert not any(thread.is_alive() for thread in threads)


def test_trees_functions_pickle_and_hash():
    tree = t2j({"f": cube, "x": torch.ones(2), "m": Symmetric()}, on_missing="call_torch")
    assert tree["x"].shape == (2,)
    np.testing.assert_allclose(tree["f"](X), X**3, rtol=1e-6)
    assert {tree["f"]: 1}[tree["f"]] == 1
    model = Model()
    f = t2j(model, call_torch=["solver", ops.soft_threshold, torch.sin])
    again = pickle.loads(pickle.dumps(f))
    np.testing.assert_allclose(again(POINTS), f(POINTS), rtol=1e-6)


def test_64_bits():
    with jax.enable_x64(True):
        x = jnp.arange(3, dtype=jnp.int64)
        assert call(cube)(x).dtype == jnp.int64
        assert jax.jit(call(cube))(x).dtype == jnp.int64
