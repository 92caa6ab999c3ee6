"""Programs for symbolic sizes: what they compute for all sizes, and what code they refuse."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from torch2jax import export, j2t, t2j
from torch2jax.modules.exporting.sizes import Sizes


def abstract(shape: str, dtype="float32", constraints=()) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape, constraints=constraints), dtype)


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 3


def _buckets(x):
    """Numbers of positions, the larger ones in steps of a logarithm, which of 0 is an integer of 64 bits."""
    position = torch.arange(x.shape[0])
    large = 4 + (torch.log(position.float() / 4) * 3).to(torch.int64)
    return x + torch.where(position < 4, position, torch.minimum(large, torch.full_like(large, 9)))


def _written(x):
    """A tensor that has many elements for some sizes, and few for others."""
    y = torch.empty(x.shape[0], 1000)
    x = x * 3
    y[:, :1], y[:, 1:] = x[:, None], 2
    return y


def _hashed(x):
    """Other numbers than those of 32 bits."""
    return x + torch.arange(x.shape[0]) * 6364136223846793005 % 1000003


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.convolution = nn.Conv1d(8, 6, 3, padding=1)

    def forward(self, ids):
        x = self.embedding(ids) + torch.arange(ids.shape[1])[:, None] / 10
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        x = self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]
        x = torch.cat([x, x.flip(1)], 1).mT
        x = self.convolution(x).relu()
        return {"pooled": x.mean(2) / ids.shape[0], "rows": x.reshape(-1, 6), "size": torch.tensor(ids.shape[1])}


def test_values_and_gradients():
    torch.manual_seed(0)
    net = Net().eval()
    state = t2j({name: parameter.detach() for name, parameter in net.named_parameters()})
    exported = export(t2j(net))(abstract("b, s", "int32"), state_dict=state)
    assert str(exported.out_avals[0].shape) == "(b, 6)"
    gradient = jax.jit(jax.grad(lambda state, ids: (exported.call(ids, state_dict=state)["rows"] ** 2).sum()))
    for shape in ((1, 2), (3, 33)):
        ids = torch.randint(9, shape)
        expected, found = net(ids), exported.call(t2j(ids), state_dict=state)
        assert set(found) == set(expected)
        for name, tensor in expected.items():
            torch.testing.assert_close(j2t(found[name]), tensor.detach(), check_dtype=False, rtol=1e-4, atol=1e-5)
        net.zero_grad()
        (expected["rows"] ** 2).sum().backward()
        for name, grad in gradient(state, t2j(ids)).items():
            wanted = dict(net.named_parameters())[name].grad
            torch.testing.assert_close(j2t(grad), wanted, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize(
    ("code", "shape", "constraints"),
    [
        (lambda x: x if x.shape[0] > 5 else -x, "b", ["b <= 5"]),
        (lambda x: x if x.shape[0] > 5 else -x, "b", ["b >= 6"]),
        (lambda x: x[0] if x.shape[0] * x.size(1) == x.numel() else x, "b, 3", []),
        (lambda x: x + (1 if x.shape[0] == 1 else 2), "b", ["b >= 2"]),
        (lambda x: x * (min(x.shape[0], 100) + max(x.shape[0], 2)), "b", ["b <= 9", "b >= 2"]),
        (lambda x: x[:, : x.shape[0]], "b, 4*b", []),
        (lambda x: x[:, :10].sum(1) + x[:, -10], "b, s", ["s >= 10"]),
        (lambda x: x[:, -x.shape[0] :] + x[:3, 1:, None].sum(), "b, 2*b", ["b >= 3"]),
        (lambda x: x.relu().sum() / x.numel(), "b, s, s", []),
        (lambda x: x.view(x.shape[0], -1) * float(x.shape[1]), "b, s, 5", []),
        (lambda x: x[: x.shape[0] // 2] - x[x.shape[0] // 2 :].flip(0), "2*b", []),
        (_buckets, "b", []),
        (_written, "b", []),
        (lambda x: torch.full_like(x, x.shape[0]).clamp(max=4) @ torch.eye(x.shape[1]), "b, s", []),
    ],
)
def test_sizes_in_python(code, shape, constraints):
    given = abstract(shape, constraints=constraints)
    exported = export(t2j(code))(given)
    sizes = {"b": 6, "s": 12} if "b >= 6" in constraints else {"b": 3, "s": 12}
    x = torch.randn([int(size) if isinstance(size, int) else int(size._evaluate(sizes)) for size in given.shape])
    torch.testing.assert_close(j2t(exported.call(t2j(x))), code(x))


@pytest.mark.parametrize(
    ("code", "shape", "message"),
    [
        (lambda x: x if x.shape[0] > 500 else -x, "b", r"test_generalized\.py.* asks whether b > 500"),
        (lambda x: x if x.shape[0] < 5 else -x, "b", "does something different for other sizes|b < 5"),
        (lambda x: x.sum() if x.size(0) * x.shape[1] == 1 else x, "b, s", r"asks whether b\*s == 1|s\*b == 1"),
        (lambda x: x * min(x.shape[0], 1000), "b", "asks whether"),
        (lambda x: x.sum(0) if x.numel() % 1000 else x, "b", "asks whether"),
        (lambda x: sum(x[i] for i in range(x.shape[0])), "b", "does something different for other sizes"),
        (lambda x: x * int(x.shape[0]), "b", "asks for the number b"),
        (lambda x: x * (2 ** x.shape[0]), "b", "computes pow with b|no polynomial"),
        (lambda x: x if x.shape[0] ** 2 > 500 else -x, "b", r"asks whether b\^2 > 500|something different"),
        (lambda x: _Double.apply(x), "b", "a backward pass of its own"),
        (lambda x: x + torch.from_numpy(np.arange(x.shape[0])), "b", "array of constants depends on sizes"),
        (_hashed, "b", "array of constants depends on sizes"),
        (lambda x: x / math.sqrt(x.shape[0]), "b", "a number depends on sizes"),
        (lambda x: x.new_zeros(x.shape[0] // 2), "b", "no polynomial"),
        (lambda x: x[:10], "b", "asks whether b >= 10"),
        (lambda x: x.split(1000, dim=-1)[0], "b", "asks whether b > 1000"),
        (lambda x: x[None, ..., :100_000], "b", "asks whether b >= 100000"),
        (lambda x: x[-100_000:], "b", "asks whether b >= 100000"),
        (lambda x: {str(x.shape[0]): x}, "b", "the structure of its results differs"),
    ],
)
def test_refusals(code, shape, message):
    with pytest.raises(ValueError, match=message):
        export(t2j(code))(abstract(shape))


def test_sizes_are_tried_that_are_no_others():
    """Where two sizes are equal by chance, code may do something else."""
    sizes = Sizes([abstract("b, s, 8, 12, 30").shape])
    assert all({8, 12, 30}.isdisjoint({*sample.values(), sample["b"] * sample["s"]}) for sample in sizes.samples)
    every = Sizes([(*abstract("b", constraints=["b >= 2", "b <= 6"]).shape, 3, 4, 5)])  # there are no such
    assert len(every.samples) == 5


def test_truth_of_a_size():
    with pytest.raises(ValueError, match=r"asks whether b - 2 != 0"):
        export(t2j(lambda x: x if x.shape[0] - 2 else -x))(abstract("b", constraints=["b <= 9"]))


def test_code_that_is_jitted_already():
    jitted = jax.jit(t2j(lambda x: x * x.shape[0] if x.shape[0] > 1000 else x))
    for _ in range(2):
        with pytest.raises(ValueError, match="asks whether b > 1000"):
            export(jitted)(abstract("b"))
        exported = export(lambda x: jitted(x) + 1)(abstract("b", constraints=["b <= 1000"]))
    assert (exported.call(jnp.ones(9)) == np.full(9, 2)).all()


def test_constraints_that_leave_few_sizes():
    with pytest.raises(ValueError, match="found 2 sizes for b that satisfy"):
        export(t2j(torch.sin))(abstract("b", constraints=["b >= 2", "b <= 3"]))


@pytest.mark.parametrize("constraints", [["b >= 3000"], ["b >= 100", "b <= 110"], ["b == 2*c", "c >= 7"]])
def test_constraints_that_small_sizes_do_not_satisfy(constraints):
    shape = "b, c" if len(constraints[-1]) < 7 else "b, 3"
    exported = export(t2j(lambda x: x.reshape(-1) * x.shape[0]))(abstract(shape, constraints=constraints))
    assert len(exported.out_avals) == 1


def test_constraints_are_checked_in_the_call():
    exported = export(t2j(torch.sin))(abstract("b", constraints=["b <= 64"]))
    with pytest.raises(ValueError, match="b"):
        exported.call(jnp.ones(65))


def test_sizes_are_plain_integers_afterwards():
    kept = []

    def code(x):
        kept.append(x.shape[0])
        return x

    export(t2j(code))(abstract("b"))
    assert all(size + 1 > size != 1000 for size in kept)
