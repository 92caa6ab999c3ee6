"""The state of a module: one array for each tensor, whatever its names; apart, trained, saved and put back."""

import collections
import copy
import functools
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import torch
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from safetensors.torch import load_model, save_model
from torch import nn

from torch2jax import j2t, load_state, sharding, t2j

TOKENS = jnp.array([[1, 2, 3], [3, 0, 4]])


class Model(nn.Module):
    """Embeddings, a batch norm with its integer counter, and a head; `tie` shares weights among them."""

    def __init__(self, tie):
        super().__init__()
        torch.manual_seed(0)
        self.emb = nn.Embedding(5, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 5, bias=False)
        tie(self)

    def forward(self, ids):
        x = self.norm(self.emb(ids).flatten(0, 1))
        extra = self.scale(x) if hasattr(self, "scale") else 0
        return self.head(x) + extra


def one_parameter(model):
    model.head.weight = model.emb.weight


def two_parameters(model):
    model.head.weight = nn.Parameter(model.emb.weight.data)


def frozen_parameter(model):
    """PyTorch's gradient goes to one of them alone."""
    model.head.weight = nn.Parameter(model.emb.weight.data, requires_grad=False)


def one_module(model):
    model.scale = model.head
    model.head.weight.data *= 2


def transposed(model):
    del model.head
    model.head = Transposed(model.emb.weight)


def transposed_slice(model):
    """Of a weight that is a slice of a vector, as PyTorch's own function leaves it."""
    vector = nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(vector, model.parameters())
    transposed(model)


def buffers(model):
    model.scale = Scale(torch.full((5,), 2.0))
    model.register_buffer("tied", model.scale.factor)


def buffer_of_parameter(model):
    model.scale = Scale(model.emb.weight.detach().view(-1)[:5])


def buffer_that_is_one(model):
    model.scale = Flat(model.emb.weight.detach())


def untied(model):
    pass


class Transposed(nn.Module):
    """A Parameter that is another one's transpose, in its memory."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight.t())

    def forward(self, x):
        return x @ self.weight


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.register_buffer("factor", factor)

    def forward(self, x):
        return self.factor


class Flat(Scale):
    def forward(self, x):
        return self.factor.sum(1)


TIES = [
    untied,
    one_parameter,
    two_parameters,
    frozen_parameter,
    one_module,
    transposed,
    transposed_slice,
    buffers,
    buffer_of_parameter,
    buffer_that_is_one,
]
PARTS = (transposed, transposed_slice, buffer_of_parameter)  # in which a tensor is a view of another
SECOND = {  # names that no state has
    untied: set(),
    one_parameter: {"head.weight"},
    two_parameters: {"head.weight"},
    frozen_parameter: {"head.weight"},
    one_module: {"scale.weight"},
    transposed: {"head.weight"},
    transposed_slice: {"head.weight"},
    buffers: {"scale.factor"},
    buffer_of_parameter: {"scale.factor"},
    buffer_that_is_one: {"scale.factor"},
}
every_tie = pytest.mark.parametrize("tie", TIES, ids=lambda tie: tie.__name__)


def on_meta(tie):
    with torch.device("meta"):
        return Model(tie)


def loss_of(call):
    def loss(params, buffers, ids=TOKENS):
        logits, state = call(ids, state_dict=params | buffers, return_state_dict=True)
        return (logits**2).sum(), state

    return loss


def gradients_in_torch(model):
    """Of each parameter of the state; of those that share its memory the gradients are added up."""
    (model(j2t(TOKENS)) ** 2).sum().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
    if "head.weight" in found and shares(model.head.weight, model.emb.weight):
        added = found.pop("head.weight")
        found["emb.weight"] += added.t() if isinstance(model.head, Transposed) else added
    return found


def shares(first, second):
    return first.data_ptr() == second.data_ptr()


def assert_close(found, expected, rtol=1e-4):
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value.detach(), rtol=rtol, atol=1e-5, err_msg=name)


def trained_in_torch(model, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(j2t(TOKENS)) ** 2).sum().backward()
        optimizer.step()


def trained_in_jax(call, params, buffers, steps=3):
    optimizer, traces = optax.sgd(1e-2), []

    @jax.jit
    def step(params, buffers, opt_state):
        traces.append(None)
        grads, state = jax.grad(loss_of(call), has_aux=True)(params, buffers)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), call.split(state)[1], opt_state

    opt_state = optimizer.init(params)
    for _ in range(steps):
        params, buffers, opt_state = step(params, buffers, opt_state)
    assert len(traces) == 1
    return params, buffers


@pytest.mark.parametrize(
    ("tie", "jit"),
    [*((tie, True) for tie in TIES), (one_parameter, False), (transposed, False)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_gradients(tie, jit):
    model = Model(tie)
    call = t2j(model)
    params, buffers = call.split()
    assert {*params, *buffers} == {*model.state_dict()} - SECOND[tie]
    gradient = jax.grad(loss_of(call), has_aux=True)
    grads, state = (jax.jit(gradient) if jit else gradient)(params, buffers)
    assert set(state) == {*params, *buffers}
    assert state["norm.num_batches_tracked"] == 1
    assert_close(grads, gradients_in_torch(model))
    assert_close({name: state[name] for name in buffers}, {name: model.state_dict()[name] for name in buffers})


@every_tie
def test_training_and_back(tie):
    model = Model(tie)
    expected, call = Model(tie), t2j(model)  # deepcopy would untie two parameters
    params, buffers = trained_in_jax(call, *call.split())
    assert model.norm.num_batches_tracked == 0
    call.load(params, buffers)
    trained_in_torch(expected)
    assert_close(model.state_dict(), expected.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(model(j2t(TOKENS)), expected(j2t(TOKENS)), rtol=1e-4, atol=1e-5)


def train(model, optimizer, ids):
    optimizer.zero_grad()
    loss = (model(ids) ** 2).sum()
    loss.backward()
    optimizer.step()
    return loss


@every_tie
def test_training_steps_of_pytorch(tie):
    model = Model(tie)
    step = t2j(train, state=(model, torch.optim.SGD(model.parameters(), 1e-2)))
    if tie in (two_parameters, frozen_parameter, buffer_that_is_one, *PARTS):
        second = re.escape(*SECOND[tie])
        with pytest.raises(NotImplementedError, match=rf"emb.weight and model.{second} are two tensors that share mem"):
            step.init(TOKENS)
        return
    state, jitted = step.init(TOKENS), jax.jit(step)
    assert not SECOND[tie] & {*state["model"]}
    for _ in range(3):
        _, state = jitted(state, TOKENS)
    step.load(state)
    expected = Model(tie)
    trained_in_torch(expected)
    assert_close(model.state_dict(), expected.state_dict())


class GivesGradients(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, ids):
        (self.module(ids) ** 2).sum().backward()
        return {name: p.grad for name, p in self.module.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("tie", TIES[1:], ids=lambda tie: tie.__name__)
def test_gradients_taken_within(tie):
    """By PyTorch's code each Parameter has its own, also of two on one memory."""
    call = t2j(GivesGradients(Model(tie)))
    params, buffers = call.split()
    found, _ = jax.jit(lambda params: call(TOKENS, state_dict=params | buffers, return_state_dict=True))(params)
    expected = GivesGradients(Model(tie))(j2t(TOKENS))
    assert_close(found, expected)


@pytest.mark.parametrize("tie", [two_parameters, transposed, transposed_slice])
def test_a_write_is_seen_through_the_other(tie):
    """Of two Parameters on one memory."""

    class Writes(Model):
        def forward(self, ids):
            with torch.no_grad():
                self.head.weight.mul_(2)
                self.emb.weight.add_(1)
            return super().forward(ids)

    model = Writes(tie).eval()
    found, state = t2j(model)(TOKENS, state_dict=t2j(model.state_dict()), return_state_dict=True)
    with torch.no_grad():
        np.testing.assert_allclose(found, model(j2t(TOKENS)), rtol=1e-5)
    np.testing.assert_allclose(state["emb.weight"], model.emb.weight.detach(), rtol=1e-6)


@pytest.mark.parametrize("tie", [one_parameter, two_parameters, transposed_slice])
@pytest.mark.parametrize(
    "way",
    [
        lambda model: t2j(model, compile=["head", "norm"]),
        lambda model: t2j(model, call_torch=["head"]),
        lambda model: t2j(model, call_torch=[""]),
        lambda model: t2j(model.forward),
        lambda model: t2j(nn.DataParallel(model)),
        lambda model: t2j(torch.jit.trace(model, j2t(TOKENS))),
        lambda model: t2j(torch.export.export(model, (j2t(TOKENS),))),
    ],
    ids=["compile", "call_torch", "all of call_torch", "method", "parallel", "traced", "exported"],
)
@pytest.mark.filterwarnings("ignore:t2j runs in PyTorch", "ignore::DeprecationWarning")
def test_ways_to_run_a_module(tie, way):
    model = Model(tie).eval()
    call = way(model)
    params, buffers = call.split()
    params = {name: 1.5 * x for name, x in params.items()}
    found = call(TOKENS, state_dict=params | buffers)
    call.load(params, buffers)
    np.testing.assert_allclose(call(TOKENS), found, rtol=1e-5, atol=1e-6)
    assert len(params) == 3
    expected = Model(tie).eval()
    with torch.no_grad():
        for tensor in {x.data_ptr(): x for x in expected.parameters()}.values():
            tensor.mul_(1.5)
        np.testing.assert_allclose(found, expected(j2t(TOKENS)), rtol=1e-5, atol=1e-6)


@every_tie
def test_names_of_a_state(tie):
    """`state_dict()` in arrays, on devices and of a file has each tensor once, as `split` has it."""
    model = Model(tie)
    call, whole = t2j(model), model.state_dict()
    names = [name for name in whole if name not in SECOND[tie]]
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,))
    states = {
        "t2j": t2j(whole),
        "within": t2j({"model": (whole, jnp.ones(2))})["model"][0],
        "put": sharding.put(whole, sharding.specs(model, mesh, fsdp="x"), mesh),
        "load_state": load_state(whole),
    }
    expected = call(TOKENS, state_dict=states["t2j"], return_state_dict=True)
    for way, state in states.items():
        assert list(state) == names, way
        params, buffers = call.split(state)
        assert {name for name, p in model.named_parameters() if p.requires_grad} - SECOND[tie] == set(params), way
        found = call(TOKENS, state_dict=params | buffers, return_state_dict=True)
        # Arrays on a mesh make another program, whose last bits may differ.
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found[0], expected[0])
    assert isinstance(states["t2j"], collections.OrderedDict)


@every_tie
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_a_state_of_tensors(tie, jit):
    """PyTorch's own dictionary, in which names share memory, is taken as it is where nothing is differentiated."""
    model = Model(tie).eval()
    run = jax.jit(lambda ids: t2j(model)(ids, state_dict=whole)) if jit else t2j(model)
    whole = model.state_dict()
    if tie in PARTS:  # a part is not given beside the whole
        with pytest.raises(ValueError, match=r"is a view of 'emb.weight' in Model: leave it out"):
            t2j(model)(TOKENS, state_dict=whole)
        return
    found = run(TOKENS) if jit else run(TOKENS, state_dict=whole)
    np.testing.assert_allclose(found, model(j2t(TOKENS)).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tie", [one_parameter, two_parameters, one_module])
def test_another_name(tie):
    """A state may have any of the names of a tensor, as files of other programs do; it keeps it."""
    model = Model(tie)
    call, (second,) = t2j(model), SECOND[tie]
    params, buffers = call.split()
    (first,) = (name for name in params if shares(dict(model.named_parameters())[name], model.get_parameter(second)))
    other = {second if name == first else name: x for name, x in params.items()}
    assert call.split(other | buffers)[0].keys() == other.keys()
    grads, state = jax.jit(jax.grad(loss_of(call), has_aux=True))(other, buffers)
    assert set(state) == {*other, *buffers}
    expected = gradients_in_torch(model)
    expected[second] = expected.pop(first)
    assert_close(grads, expected)
    trained = trained_in_jax(call, other, buffers)
    call.load(*trained)
    np.testing.assert_array_equal(model.get_parameter(first).detach(), trained[0][second])


@pytest.mark.parametrize("way", ["jit", "grad", "eager", "vmap", "jvp", "eval_shape"])
def test_two_arrays_for_one_tensor(way):
    model = Model(one_parameter)
    call = t2j(model)
    params, buffers = call.split()
    both = params | {"head.weight": params["emb.weight"] + (way == "eager")}
    stacked = {name: x[None] for name, x in both.items()}

    def loss(params):
        return loss_of(call)(params, buffers)[0]

    run = {
        "jit": lambda: jax.jit(loss)(both),
        "grad": lambda: jax.grad(loss)(both),
        "eager": lambda: loss(both),
        "vmap": lambda: jax.vmap(loss)(stacked),
        "jvp": lambda: jax.jvp(loss, (both,), (both,)),
        "eval_shape": lambda: jax.eval_shape(loss, both),
    }[way]
    message = r"two arrays for one tensor of Model, under 'emb.weight' and 'head.weight'.*t2j\(module\).split\(state\)"
    with pytest.raises(ValueError, match=message):
        run()


def test_one_array_under_two_names():
    """As in `torch.func.functional_call`, the same array may be given twice: its gradient is of both."""
    model = Model(one_parameter)
    call = t2j(model)
    params, buffers = call.split()
    weight, rest = params.pop("emb.weight"), params

    def loss(weight):
        return loss_of(call)(rest | {"head.weight": weight, "emb.weight": weight}, buffers)[0]

    expected = gradients_in_torch(model)["emb.weight"]
    for gradient in (jax.grad(loss), jax.jit(jax.grad(loss)), jax.grad(jax.jit(loss)), jax.grad(jax.checkpoint(loss))):
        np.testing.assert_allclose(gradient(weight), expected, rtol=1e-4, atol=1e-5)


def test_split_takes_equal_values_and_refuses_others():
    """A dictionary that somebody has made of both names."""
    model = Model(one_parameter)
    call = t2j(model)
    both = {name: t2j(tensor) for name, tensor in model.state_dict().items()}
    params, buffers = call.split(both)
    assert "head.weight" not in params
    assert set(buffers) == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    both["head.weight"] = both["head.weight"] + 1
    for refused in (lambda: call.split(both), lambda: call.load(both), lambda: jax.jit(call.split)(both)):
        with pytest.raises(ValueError, match="two arrays for one tensor of Model"):
            refused()
    with pytest.raises(TypeError, match=r"the state is a tuple; wanted one dictionary.*params \| buffers"):
        call(TOKENS, state_dict=call.split())
    with pytest.raises(RuntimeError, match=r"'heat.weight' \(nearest: 'head.weight'"):
        call.split({"heat.weight": jnp.ones((5, 4))})


def test_frozen_parameters_and_shapes_alone():
    model = Model(one_parameter)
    model.norm.requires_grad_(False)
    params, buffers = t2j(model).split()
    assert set(params) == {"emb.weight"}
    assert set(buffers) == {name for name in model.state_dict() if name.startswith("norm")}
    empty = on_meta(one_parameter)
    shapes = t2j(empty).split()
    assert set(shapes[0]) == {"emb.weight", "norm.weight", "norm.bias"}
    out, _ = jax.eval_shape(loss_of(t2j(empty)), *shapes)
    assert out.shape == ()
    assert t2j(model.forward).split()[0].keys() == {"emb.weight"}


def test_arrays_of_split_are_copies():
    model = Model(one_parameter)
    params, _ = t2j(model).split()
    before = np.array(params["emb.weight"])
    with torch.no_grad():
        model.emb.weight.zero_()
    np.testing.assert_array_equal(params["emb.weight"], before)


@every_tie
def test_weights_of_another_dtype(tie):
    """What shares the memory of a parameter follows the array that is given for it, whatever its dtype."""
    model = Model(tie).eval()
    call = t2j(model)
    params, rest = (
        {name: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x for name, x in part.items()}
        for part in call.split()
    )
    zeros = jax.tree.map(jnp.zeros_like, params)
    expected = copy.deepcopy(model).bfloat16()
    found = call(TOKENS, state_dict=params | rest)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(np.float32), expected(j2t(TOKENS)).detach().float(), rtol=0.05, atol=0.05)
    if "tied" not in rest:
        assert (call(TOKENS, state_dict=zeros | rest) == 0).all()


@pytest.mark.parametrize("tie", [untied, transposed_slice])
def test_plain_attributes_that_are_views_of_weights(tie):
    class Views(Model):
        def __init__(self):
            super().__init__(tie)
            self.row, self.column = self.emb.weight.detach()[1], self.head.weight.detach()[:, 2:3]

        def forward(self, ids):
            return self.row.sum() + self.column.sum()

    model = Views()
    params, buffers = t2j(model).split()
    tripled = {name: 3 * x.astype(jnp.bfloat16) for name, x in params.items()}
    for state, factor in ((params, 1), (tripled, 3)):
        found = t2j(model)(TOKENS, state_dict=state | buffers)
        np.testing.assert_allclose(found.astype(float), factor * model(TOKENS).double(), rtol=0.02)


@every_tie
def test_checkpoints(tie, tmp_path):
    """Through orbax, and through files of PyTorch's and of safetensors', which have a tensor once as well."""
    model, other = Model(tie), Model(tie)
    params, buffers = trained_in_jax(t2j(model), *t2j(model).split(), steps=1)
    state = params | buffers
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "orbax", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "orbax", jax.eval_shape(lambda: state))
    t2j(other).load(restored)
    t2j(model).load(params, buffers)
    assert_close(other.state_dict(), model.state_dict(), rtol=0)

    torch.save(model.state_dict(), tmp_path / "model.pt")
    assert list(load_state(tmp_path / "model.pt")) == [n for n in model.state_dict() if n not in SECOND[tie]]
    saved = [load_state(tmp_path / "model.pt")]
    if tie not in PARTS:  # which safetensors does not save
        save_model(model, tmp_path / "model.safetensors")
        saved.append(load_state(tmp_path / "model.safetensors"))
        fresh = Model(tie)
        load_model(fresh, tmp_path / "model.safetensors")
        assert_close(fresh.state_dict(), model.state_dict(), rtol=0)
    expected = model(j2t(TOKENS)).detach()
    for state in saved:
        fresh = Model(tie)
        found = jax.jit(lambda state, fresh=fresh: loss_of(t2j(fresh))(state, {})[0])(state)
        np.testing.assert_allclose(found, (expected**2).sum(), rtol=1e-4)
        t2j(fresh).load(state)
        assert torch.equal(fresh.head.weight, model.head.weight)


@every_tie
def test_load_state_dict_of_pytorch_loses_nothing(tie):
    """It names what a state leaves out, unless it is not strict; then the tie gives the value."""
    model, other = Model(tie), Model(tie)
    params, buffers = trained_in_jax(t2j(model), *t2j(model).split())
    if SECOND[tie]:
        (second,) = SECOND[tie]
        with pytest.raises(RuntimeError, match=rf"Missing key\(s\) in state_dict: \"{re.escape(second)}\""):
            other.load_state_dict(j2t(params | buffers))
    other.load_state_dict(j2t(params | buffers), strict=False)
    t2j(model).load(params, buffers)
    assert_close(other.state_dict(), model.state_dict(), rtol=0)


def test_load():
    model = Model(one_parameter)
    call = t2j(model)
    params, buffers = call.split()
    before = copy.deepcopy(model.state_dict())
    doubled = {name: 2 * x for name, x in params.items()}
    with pytest.raises(
        RuntimeError, match=r"load got no array for 'norm.running_mean', 'norm.running_var'.*strict=Fal"
    ):
        call.load(doubled)
    with pytest.raises(ValueError, match=r"two values for 'emb.weight'"):
        call.load(doubled, params, buffers)
    with pytest.raises(RuntimeError, match=r"size mismatch for norm.weight"):
        call.load(doubled | {"norm.weight": jnp.ones(3)}, buffers)
    with pytest.raises(RuntimeError, match="names that the module lacks"):
        call.load(doubled, buffers, {"bias": jnp.ones(3)})
    with pytest.raises(TypeError, match="traced"):
        jax.jit(lambda params: call.load(params, buffers))(params)
    assert_close(model.state_dict(), before, rtol=0)
    call.load(doubled, strict=False)
    np.testing.assert_array_equal(model.head.weight.detach(), 2 * before["head.weight"])
    call.load(params, {}, buffers)
    assert_close(model.state_dict(), before, rtol=0)
    call.load({name: x.astype(jnp.bfloat16) for name, x in params.items()}, jax.tree.map(np.array, buffers))
    assert model.emb.weight.dtype == torch.float32
    with pytest.raises(RuntimeError, match=r"meta device.*to_empty"):
        t2j(on_meta(one_parameter)).load(params, buffers)


class WithExtraState(nn.Linear):
    def get_extra_state(self):
        return {"note": getattr(self, "note", 1)}

    def set_extra_state(self, state):
        self.note = state["note"]


def test_extra_state():
    model = nn.Sequential(WithExtraState(2, 2))
    call = t2j(model)
    params, buffers = call.split()
    assert set(params) == {"0.weight", "0.bias"}
    assert not buffers
    call.load(params, buffers)
    assert not hasattr(model[0], "note")
    given = t2j(model.state_dict()) | {"0._extra_state": {"note": 3}}
    assert set(call(jnp.ones(2), return_state_dict=True)[1]) == {"0.weight", "0.bias"}
    assert call(jnp.ones(2), state_dict=given, return_state_dict=True)[1]["0._extra_state"] == {"note": 3}
    call.load(given)
    assert model[0].note == 3


def test_names_that_state_dict_makes_by_itself():
    """Nothing would tell that their arrays are not used."""
    model = nn.Linear(2, 2)
    model._register_state_dict_hook(lambda module, state, *rest: state.update(weights=state.pop("weight")))
    call, state = t2j(model), t2j(model.state_dict())
    for given in (lambda: call(jnp.ones(2), state_dict=state), lambda: call.split(state), lambda: call.load(state)):
        with pytest.raises(RuntimeError, match=r"has 'weights', a name that only Linear.state_dict\(\) adds"):
            given()


def test_buffers_that_require_grad_are_not_trained():
    model = nn.BatchNorm1d(2)
    model.running_mean.requires_grad_()
    params, buffers = t2j(model).split()
    assert set(params) == {"weight", "bias"}
    assert "running_mean" in buffers


class Replaces(nn.Module):
    """Writes a buffer that a state does not have by itself."""

    def __init__(self, **how):
        super().__init__()
        self.register_buffer("count", torch.zeros(()), **how)

    def forward(self, x):
        self.count = self.count + 1
        return x


class Tied(nn.Module):
    """Writes one of two names of a buffer, which then are no longer one."""

    def __init__(self):
        super().__init__()
        self.first = Replaces()
        self.second = Replaces()
        self.second.count = self.first.count

    def forward(self, x):
        return self.second(x)


@pytest.mark.parametrize(("module", "name"), [(Replaces(persistent=False), "count"), (Tied(), "second.count")])
def test_buffers_that_the_new_state_does_not_have_are_warned_of(module, name):
    with pytest.warns(UserWarning, match=rf"writes its buffers \({name}\).*give their arrays in state_dict="):
        t2j(module)(1.0, return_state_dict=True)


def test_buffers_that_it_has_under_another_name_are_not():
    model = Model(buffers)
    model.scale.forward = lambda x: model.scale.factor.mul_(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, state = t2j(model)(TOKENS, return_state_dict=True)
    assert "tied" in state


@pytest.mark.usefixtures("eight_devices")
def test_sharded_states_go_back():
    model = Model(one_parameter)
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    specs = sharding.specs(model, mesh, fsdp="x")
    assert specs["emb.weight"] == specs["head.weight"] == P(None, "x")
    params, buffers = t2j(model).split(sharding.put(model.state_dict(), specs, mesh))
    assert params["emb.weight"].sharding == NamedSharding(mesh, P(None, "x"))
    params = jax.tree.map(lambda x: 2 * x, params)
    t2j(model).load(params, buffers)
    np.testing.assert_array_equal(model.head.weight.detach(), params["emb.weight"])


class _TakesAnything(torch.nn.Linear):
    def forward(self, x, **kwargs):
        return super().forward(x) * kwargs.get("scale", 1)


def test_a_state_by_another_name_is_not_swallowed():
    f, x = t2j(_TakesAnything(2, 2)), jnp.ones(2)
    params, _ = f.split()
    assert f(x, scale=2, state_dict=params).tolist() == (2 * f(x)).tolist()
    for keywords, meant in (
        ({"state_dcit": params}, "state_dict"),
        ({"params": params}, "state_dict"),
        ({"key": jax.random.key(0)}, "rng"),
        ({"return_state": True, "return_statedict": True}, "return_state_dict"),
    ):
        with pytest.raises(TypeError, match=f"no parameter of _TakesAnything.forward; did you mean {meant}="):
            f(x, **keywords)
