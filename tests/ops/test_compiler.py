"""``torch.compile``, around translated code and in it."""

import jax
import jax.numpy as jnp
import torch

from torch2jax import t2j

X = jnp.arange(3.0)


def test_what_was_compiled_is_translated_from_what_it_was():
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 3)
    compiled, function = torch.compile(layer), torch.compile(lambda x: x.sin() + 1, fullgraph=True)

    class Parts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.part, self.function = compiled, function
            self.other = torch.nn.Linear(3, 3)
            self.other.compile()

        def forward(self, x):
            return self.other(self.function(self.part(x)))

    parts = Parts()
    expected = t2j(parts.other)(jnp.sin(t2j(layer)(X)) + 1)
    assert jnp.allclose(jax.jit(t2j(function))(X), jnp.sin(X) + 1)
    assert jnp.allclose(t2j(compiled)(X, state_dict=t2j(compiled.state_dict())), t2j(layer)(X))
    params = t2j(parts.state_dict())
    assert jnp.allclose(jax.jit(lambda params: t2j(parts)(X, state_dict=params))(params), expected, atol=1e-6)
    zeros = {name: jnp.zeros_like(value) for name, value in params.items()}
    assert (t2j(parts)(X, state_dict=zeros) == 0).all()


def test_marks_of_the_compiler_do_nothing():
    disabled = torch.compiler.disable(lambda x: x + torch.compiler.is_compiling())
    allowed = torch.compiler.allow_in_graph(lambda x: x * 2)
    assert (t2j(lambda x: disabled(allowed(x)))(X) == 2 * X).all()


def test_what_translated_code_compiles_is_translated():
    def f(x):
        @torch.compile(fullgraph=True)
        def double(x):
            return 2 * x

        return torch.compile(lambda x: double(x) + 1)(x)

    original = torch.compile
    for transform in (lambda f: f, jax.jit):
        assert transform(t2j(f))(jnp.ones(())) == 3
    assert torch.compile is original
