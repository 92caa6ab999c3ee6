"""An interatomic potential of e3nn's modules, which are made of scripted and generated code, and the same in JAX.

A network of messages between atoms whose features are scalars, vectors and tensors of second order (Batzner et al.,
E(3)-equivariant graph neural networks, 2022), and one whose features are products of what several neighbours sent
(Batatia et al., MACE, 2022), with random weights.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import torch
from e3nn import o3
from e3nn.math import normalize2mom, soft_one_hot_linspace
from e3nn.nn import FullyConnectedNet, Gate
from torch import nn

CHANNELS, ORDER, LAYERS, BASIS, HIDDEN, CUTOFF, NEIGHBOURS = 16, 2, 3, 8, 32, 4.0, 20.0
HARMONICS = o3.Irreps.spherical_harmonics(ORDER)


class Interaction(nn.Module):
    """Features of atoms, from those of the atoms around them."""

    def __init__(self, irreps: o3.Irreps):
        super().__init__()
        hidden = o3.Irreps([(CHANNELS, (order, (-1) ** order)) for order in range(ORDER + 1)])
        paths = [
            (i, j, kind)
            for i, (_, mine) in enumerate(irreps)
            for j, (_, other) in enumerate(HARMONICS)
            for kind in mine * other
            if kind in hidden
        ]
        products, places, _ = o3.Irreps([(CHANNELS, kind) for _, _, kind in paths]).sort()
        instructions = [(i, j, places[k], "uvu", True) for k, (i, j, _) in enumerate(paths)]
        gated = o3.Irreps([(count, kind) for count, kind in hidden if kind.l > 0])
        gates = o3.Irreps([(count, "0e") for count, _ in gated])
        scalars = o3.Irreps([(count, kind) for count, kind in hidden if kind.l == 0])
        self.mix = o3.Linear(irreps, irreps)
        self.product = o3.TensorProduct(
            irreps, HARMONICS, products, instructions, shared_weights=False, internal_weights=False
        )
        self.radial = FullyConnectedNet([BASIS, HIDDEN, self.product.weight_numel], nn.functional.silu)
        self.gate = Gate(scalars, [nn.functional.silu], gates, [torch.sigmoid] * len(gated), gated)
        self.gather = o3.Linear(products, self.gate.irreps_in)
        self.keep = o3.Linear(irreps, self.gate.irreps_in)
        self.irreps_out = self.gate.irreps_out

    def forward(self, features, first, second, harmonics, basis):
        messages = self.product(self.mix(features)[second], harmonics, self.radial(basis))
        received = torch.zeros(features.shape[0], messages.shape[1]).index_add(0, first, messages)
        return self.gate(self.gather(received / NEIGHBOURS**0.5) + self.keep(features))


class Equivariant(nn.Module):
    """The energy of atoms of one species, and the forces on them."""

    INTERACTION: ClassVar[type[Interaction]] = Interaction
    LAYERS: ClassVar[int] = LAYERS

    def __init__(self):
        super().__init__()
        irreps = o3.Irreps(f"{CHANNELS}x0e")
        self.start = nn.Parameter(torch.randn(CHANNELS))
        self.interactions = nn.ModuleList()
        for _ in range(self.LAYERS):
            self.interactions.append(self.INTERACTION(irreps))
            irreps = self.interactions[-1].irreps_out
        self.readout = o3.Linear(irreps, "1x0e")
        self.harmonics = o3.SphericalHarmonics(HARMONICS, normalize=True, normalization="component")

    def energy(self, positions, first, second):
        vectors = positions[second] - positions[first]
        distances = vectors.norm(dim=-1)
        basis = soft_one_hot_linspace(distances, 0.0, CUTOFF, BASIS, basis="bessel", cutoff=True)
        harmonics = self.harmonics(vectors)
        features = self.start.expand(positions.shape[0], CHANNELS)
        for interaction in self.interactions:
            features = interaction(features, first, second, harmonics, basis)
        return self.readout(features).sum()

    def forward(self, positions, first, second):
        positions.requires_grad_()
        energy = self.energy(positions, first, second)
        (slope,) = torch.autograd.grad(energy, positions)
        return energy, -slope


class Contraction(Interaction):
    """Features of atoms, from products of up to three of what the atoms around them sent."""

    def __init__(self, irreps: o3.Irreps):
        super().__init__(irreps)
        hidden = o3.Irreps([(CHANNELS, (order, (-1) ** order)) for order in range(ORDER + 1)])
        paths = [
            (i, j, k, "uuu", True)
            for i, (_, one) in enumerate(hidden)
            for j, (_, other) in enumerate(hidden)
            for k, (_, kind) in enumerate(hidden)
            if kind in one * other
        ]
        del self.gate
        self.gather = o3.Linear(self.product.irreps_out, hidden)
        self.keep = o3.Linear(irreps, hidden)
        self.irreps_out = hidden
        self.pairs, self.triples = (o3.TensorProduct(hidden, hidden, hidden, paths) for _ in range(2))
        self.sums = nn.ModuleList(o3.Linear(hidden, hidden) for _ in range(3))

    def forward(self, features, first, second, harmonics, basis):
        messages = self.product(self.mix(features)[second], harmonics, self.radial(basis))
        received = torch.zeros(features.shape[0], messages.shape[1]).index_add(0, first, messages)
        ones = self.gather(received / NEIGHBOURS**0.5)
        pairs = self.pairs(ones, ones)
        triples = self.triples(pairs, ones)
        products = sum(weigh(x) for weigh, x in zip(self.sums, (ones, pairs, triples), strict=True))
        return products + self.keep(features)


class Contracted(Equivariant):
    """The same potential, of contractions."""

    INTERACTION, LAYERS = Contraction, 2


def equivariant_in_jax(model: Any) -> Callable:
    """The energy by hand, but for products and linear maps, for which e3nn generates code: that runs on `jax.numpy`."""
    layers = [_layer_in_jax(f"interactions.{i}", interaction) for i, interaction in enumerate(model.interactions)]
    readout = _linear_in_jax("readout", model.readout)

    def energy(params, positions, first, second):
        vectors = positions[second] - positions[first]
        distances = jnp.sqrt(jnp.sum(vectors**2, axis=-1))
        basis, harmonics = _bessel(distances), _harmonics(vectors / distances[:, None])
        features = jnp.broadcast_to(params["start"], (positions.shape[0], CHANNELS))
        for layer in layers:
            features = layer(params, features, first, second, harmonics, basis)
        return jnp.sum(readout(params, features))

    return energy


def _bessel(distances):
    roots = np.arange(1, BASIS + 1, dtype=np.float32) * np.float32(np.pi)
    waves = np.sqrt(2 / CUTOFF, dtype=np.float32) * jnp.sin(roots * distances[:, None] / CUTOFF) / distances[:, None]
    return waves * (distances < CUTOFF)[:, None]


def _harmonics(directions):
    x, y, z = directions.T
    first = [jnp.ones_like(x), 3**0.5 * x, 3**0.5 * y, 3**0.5 * z]
    second = [15**0.5 * x * z, 15**0.5 * x * y, 5**0.5 * (y**2 - (x**2 + z**2) / 2), 15**0.5 * y * z]
    return jnp.stack([*first, *second, 15**0.5 / 2 * (z**2 - x**2)], axis=-1)


def _linear_in_jax(name: str, linear: Any) -> Callable:
    run = _Generated(linear._compiled_main).run
    return lambda params, features: run(features, params[f"{name}.weight"], None)


def _layer_in_jax(name: str, layer: Any) -> Callable:
    mix, gather, keep = (_linear_in_jax(f"{name}.{part}", getattr(layer, part)) for part in ("mix", "gather", "keep"))
    product = _Generated(layer.product._compiled_main_left_right).run
    silu = normalize2mom(nn.functional.silu).cst
    finish = _contraction_in_jax(name, layer) if isinstance(layer, Contraction) else _gate_in_jax(layer)

    def apply(params, features, first, second, harmonics, basis):
        hidden = silu * jax.nn.silu(basis @ (params[f"{name}.radial.layer0.weight"] / BASIS**0.5))
        weights = hidden @ (params[f"{name}.radial.layer1.weight"] / HIDDEN**0.5)
        messages = product(mix(params, features)[second], harmonics, weights)
        received = jnp.zeros((features.shape[0], messages.shape[1])).at[first].add(messages)
        return finish(params, gather(params, received / NEIGHBOURS**0.5), keep(params, features))

    return apply


def _gate_in_jax(layer: Any) -> Callable:
    silu, sigmoid = normalize2mom(nn.functional.silu).cst, normalize2mom(torch.sigmoid).cst
    kinds = [(count, kind.dim) for count, kind in layer.gate.irreps_gated]

    def finish(params, gathered, kept):
        scalars, gates, others = jnp.split(gathered + kept, [CHANNELS, CHANNELS * (1 + len(kinds))], axis=1)
        gates, gated, start = sigmoid * jax.nn.sigmoid(gates), [silu * jax.nn.silu(scalars)], 0
        for i, (count, dim) in enumerate(kinds):
            values = others[:, start : start + count * dim].reshape(-1, count, dim)
            gated.append((values * gates[:, i * count : (i + 1) * count, None]).reshape(-1, count * dim))
            start += count * dim
        return jnp.concatenate(gated, axis=1)

    return finish


def _contraction_in_jax(name: str, layer: Any) -> Callable:
    pairs, triples = (_Generated(part._compiled_main_left_right).run for part in (layer.pairs, layer.triples))
    sums = [_linear_in_jax(f"{name}.sums.{i}", part) for i, part in enumerate(layer.sums)]

    def finish(params, ones, kept):
        two = pairs(ones, ones, params[f"{name}.pairs.weight"])
        three = triples(two, ones, params[f"{name}.triples.weight"])
        return sum(weigh(params, x) for weigh, x in zip(sums, (ones, two, three), strict=True)) + kept

    return finish


class _Generated(torch.fx.Interpreter):
    """Code that e3nn has generated, on `jax.numpy`."""

    FUNCTIONS: ClassVar[dict[Any, Callable]] = {
        torch.functional.broadcast_tensors: jnp.broadcast_arrays,
        torch.functional.einsum: jnp.einsum,
        torch.functional.tensordot: lambda a, b, dims, out: jnp.tensordot(a, b, dims),
        torch.cat: lambda arrays, dim: jnp.concatenate(arrays, axis=dim),
        torch.zeros: lambda shape, **_: jnp.zeros(shape),
    }
    METHODS: ClassVar[dict[str, Callable]] = {
        "reshape": lambda x, *shape: jnp.reshape(x, shape[0] if isinstance(shape[0], tuple) else shape),
        "expand": lambda x, shape: jnp.broadcast_to(x, (*shape[:-1], x.shape[-1])),
        "narrow": lambda x, dim, start, length: jax.lax.slice_in_dim(x, start, start + length, axis=dim),
        "permute": lambda x, *order: jnp.transpose(x, order),
        "new_zeros": lambda x, shape: jnp.zeros(shape, x.dtype),
    }

    def call_function(self, target, args, kwargs):
        return self.FUNCTIONS.get(target, target)(*args, **kwargs)

    def call_method(self, target, args, kwargs):
        return self.METHODS[target](*args, **kwargs)

    def get_attr(self, target, args, kwargs):
        return super().get_attr(target, args, kwargs).numpy()
