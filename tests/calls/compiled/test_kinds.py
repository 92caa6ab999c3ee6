"""Which functions PyTorch runs around compiled parts, and what becomes of what they draw, write and take for views."""

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.declaring import declaring_for_a_while
from torch2jax import implements, t2j
from torch2jax.calls.compiled.host_functions import FunctionKind, kind_of


class Module(torch.nn.Module):
    """Code around a part that gives what it gets.

    Args:
        code: takes the module, and what the part gives.
    """

    def __init__(self, code):
        super().__init__()
        self.code, self.norm = code, torch.nn.BatchNorm1d(4)

    def part(self, x):
        return x * 1

    def forward(self, x, *args):
        return self.code(self, self.part(x), *args)


X = np.arange(16, dtype=np.float32) / 16


@pytest.mark.parametrize("name", ["isfinite", "isnan"])
def test_checks_of_values_compile_nothing_for_their_shapes(name, compilations):
    def code(self, x, counts):
        found = [getattr(torch, name)(x[:count]).all().item() for count in counts]
        return [*found, *[getattr(torch, name)(torch.arange(float(count))).any().item() for count in counts]]

    translated = t2j(Module(code), compile=["part"])
    translated(X, [1, 2])
    compilations.clear()
    assert translated(X, range(3, 9)) == [name == "isfinite"] * 12
    assert not compilations


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.binomial(x + 5, torch.full_like(x, 0.5)),
        lambda x: torch._standard_gamma(x + 1),
        lambda x: torch._sample_dirichlet(x + 1),
        lambda x: F.fractional_max_pool2d(x.reshape(1, 1, 4, 4) + 1, 2, output_size=2),
        lambda x: F.scaled_dot_product_attention(*[x.reshape(1, 4, 4) + 1] * 3, dropout_p=0.5),
        lambda x: F.dropout(x + 1),
        lambda x: torch.rand(4) + x[:4],
    ],
)
def test_what_is_random_is_drawn_by_jax(draw):
    translated, before = t2j(Module(lambda self, x: draw(x)), compile=["part"]), torch.get_rng_state()
    first, again, other = (translated(X, rng=jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert torch.equal(before, torch.get_rng_state())
    assert first.shape != (16,) or not np.array_equal(first, other)


def test_what_is_written_in_place_is():
    def code(self, x):
        y = F.relu(x, inplace=True)
        F.leaky_relu(x, 0.1, True).add_(1)
        return x, y

    x = X - 0.5
    want = Module(code)(torch.from_numpy(x.copy()))
    for got, wanted in zip(t2j(Module(code), compile=["part"])(x), want, strict=True):
        np.testing.assert_allclose(got, wanted)


@pytest.mark.filterwarnings("ignore")
def test_running_statistics_are_written():
    def code(self, x):
        y = self.norm(torch.arange(12.0).reshape(3, 4))
        return self.part(self.norm.running_mean), y

    want, module = Module(code), Module(code)
    wanted = want(torch.ones(4))
    got, state = t2j(module, compile=["part"])(np.ones(4, np.float32), return_state_dict=True)
    for one, other in zip((*got, *state.values()), (*wanted, *want.state_dict().values()), strict=True):
        np.testing.assert_allclose(one, other.detach(), 1e-6, 1e-6)


def test_lists_are_written():
    def code(self, x):
        lists = [torch.arange(3.0), torch.ones(2)], [torch.zeros(4), x[2:5]]
        for each in lists:
            torch._foreach_add_(each, 1.0)
        return [*lists[0], *lists[1], x]

    for got, want in zip(t2j(Module(code), compile=["part"])(X), Module(code)(torch.tensor(X)), strict=True):
        np.testing.assert_allclose(got, want)


def test_views_without_a_word_in_the_schema_stay_views():
    def code(self, x):
        torch.unsafe_split(x, 4)[0].fill_(7.0)
        x.type_as(x).add_(1)
        return x

    np.testing.assert_allclose(t2j(Module(code), compile=["part"])(X), Module(code)(torch.tensor(X)))


def test_rules_of_users_are_not_for_pytorch():
    assert kind_of(torch.erfinv) is FunctionKind.PURE
    with declaring_for_a_while():
        implements(torch.erfinv)(lambda input: input)
        assert kind_of(torch.erfinv) is kind_of(torch.Tensor.erfinv) is FunctionKind.NONE
    assert kind_of(torch.erfinv) is kind_of(torch.Tensor.erfinv) is FunctionKind.PURE


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (torch.isfinite, FunctionKind.PURE),
        (torch.Tensor.__rand__, FunctionKind.PURE),
        (torch.Tensor.item, FunctionKind.PURE),
        (torch.eye, FunctionKind.FACTORY),
        (torch.Tensor.shape.__get__, FunctionKind.METADATA),  # pyright: ignore[reportAttributeAccessIssue]
        (torch.Tensor.__len__, FunctionKind.METADATA),
        (torch.Tensor.add_, FunctionKind.WRITES),
        (torch._foreach_add_, FunctionKind.WRITES_OTHERS),
        (F.relu, FunctionKind.WRITES_IF_INPLACE),
        (torch.Tensor.view, FunctionKind.OTHER),
        (torch.Tensor.to, FunctionKind.CONVERTS),
        (F.gumbel_softmax, FunctionKind.PYTHON),
        (torch.Tensor.normal_, FunctionKind.NONE),
        (torch.Tensor.grad.__get__, FunctionKind.NONE),  # pyright: ignore[reportOptionalMemberAccess]
    ],
)
def test_kinds(function, kind):
    assert kind_of(function) is kind
