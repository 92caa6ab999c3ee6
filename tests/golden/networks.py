"""Programs of networks: layers, losses, attention, state, mixed precision, training steps, and compiled parts."""

import copy

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_, parametrizations, rnn
from torch.optim import lr_scheduler, swa_utils

from tests.ops.test_graphs import IMAGE, LABELS, QUERY, ROWS, SIGNAL, M, X
from torch2jax import t2j

from .program import Program, drawing, gradient, of, of_jax, of_module, of_part, of_step

__all__ = ["attention", "autocast", "layers", "losses", "modules", "parts", "steps"]

_VOLUME = jnp.ones((1, 2, 3, 3, 3))
_TOKENS = jnp.ones((2, 3, 4))


def layers() -> dict[str, Program]:
    return {
        "linear": of_module(nn.Linear(4, 2), M),
        "linear, gradient": of_module(nn.Linear(4, 2), M, by=True),
        "bilinear": of_module(nn.Bilinear(4, 4, 2), M, M),
        "conv1d": of_module(nn.Conv1d(4, 2, 3, padding="same", dilation=2), SIGNAL),
        "conv2d of groups": of_module(nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=2), IMAGE),
        "conv2d, gradient": of_module(nn.Conv2d(4, 2, 3), IMAGE, by=True),
        "conv2d padded by reflection": of_module(nn.Conv2d(4, 2, 3, padding=1, padding_mode="reflect"), IMAGE),
        "depthwise": of_module(nn.Conv2d(4, 4, 3, groups=4), IMAGE),
        "conv3d": of_module(nn.Conv3d(2, 1, 2), _VOLUME),
        "conv_transpose1d": of_module(nn.ConvTranspose1d(4, 2, 3, stride=2, output_padding=1), SIGNAL),
        "batch norm in training": of_module(nn.BatchNorm2d(4), IMAGE, train=True),
        "batch norm, gradient": of_module(nn.BatchNorm1d(4), M, train=True, by=True),
        "instance norm": of_module(nn.InstanceNorm2d(4, affine=True), IMAGE),
        "group norm": of_module(nn.GroupNorm(2, 4), IMAGE),
        "layer norm, gradient": of_module(nn.LayerNorm(4), X, by=True),
        "rms norm": of_module(nn.RMSNorm(4), X),
        "local response norm": of_module(nn.LocalResponseNorm(2), IMAGE),
        "embedding": of_module(nn.Embedding(3, 4, padding_idx=0), ROWS),
        "embedding, max_norm": of_module(nn.Embedding(3, 4, max_norm=1.0), ROWS),
        "embedding bag": of_module(nn.EmbeddingBag(3, 4), ROWS),
        "rnn": of_module(nn.RNN(4, 3, batch_first=True), _TOKENS),
        "lstm": of_module(nn.LSTM(4, 3, batch_first=True), _TOKENS),
        "lstm of two layers and directions": of_module(nn.LSTM(4, 3, 2, bidirectional=True), _TOKENS),
        "gru, gradient": of_module(nn.GRU(4, 3), _TOKENS, by=True),
        "gru cell": of_module(nn.GRUCell(4, 3), M),
        "packed sequence": of(
            lambda x: rnn.pad_packed_sequence(rnn.pack_padded_sequence(x * 2, torch.tensor([3, 2]), True), True)[0],
            _TOKENS,
        ),
        "max pool, gradient": gradient(lambda x: F.max_pool2d(x, 2), IMAGE),
        "max pool, overlapping": of(lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE),
        "max pool with indices": of(lambda x: F.max_pool2d(x, 2, return_indices=True), IMAGE),
        "max unpool": of(lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), IMAGE),
        "avg pool, padded": of(lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), IMAGE),
        "adaptive avg pool": of(lambda x: F.adaptive_avg_pool2d(x, 4), IMAGE),
        "adaptive max pool": of(lambda x: F.adaptive_max_pool1d(x, 3), SIGNAL),
        "lp pool": of(lambda x: F.lp_pool1d(x, 2, 2), SIGNAL),
        "bicubic": of(lambda x: F.interpolate(x, size=4, mode="bicubic", align_corners=True), IMAGE),
        "grid_sample": of(lambda x, g: F.grid_sample(x, g, align_corners=False), IMAGE, jnp.zeros((2, 2, 2, 2))),
        "affine_grid": of(lambda t: F.affine_grid(t, (1, 1, 2, 2), align_corners=False), jnp.ones((1, 2, 3))),
        "activations": of(
            lambda x: (F.hardswish(x), F.mish(x), F.selu(x), F.celu(x), F.softsign(x), F.relu6(x), F.hardtanh(x)), M
        ),
        "glu": of(F.glu, M),
        "prelu, gradient": of_module(nn.PReLU(), M, by=True),
        "gelu, gradient": gradient(F.gelu, M),
        "silu, gradient": gradient(F.silu, M),
        "softmax, gradient": gradient(lambda x: F.softmax(x, -1) * torch.arange(4), M),
        "softmin, softmax2d": of(lambda x: (F.softmin(x, 1), nn.Softmax2d()(x)), IMAGE),
        "a block": of_module(
            nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(), nn.Flatten()),
            IMAGE,
            train=True,
        ),
    }


def losses() -> dict[str, Program]:
    soft = jnp.full((3, 4), 0.25)
    two = [M, M + 1]
    return {
        "cross entropy, gradient": gradient(F.cross_entropy, M, LABELS),
        "cross entropy of ignored labels": of(
            lambda x, y: F.cross_entropy(x, y, ignore_index=0, weight=torch.ones(4), label_smoothing=0.1), M, LABELS
        ),
        "cross entropy of probabilities": of(F.cross_entropy, M, soft),
        "cross entropy of images": of(lambda x, y: F.cross_entropy(x, y), IMAGE, jnp.zeros((2, 6, 6), int)),
        "cross entropy of known labels": of(lambda x: F.cross_entropy(x, torch.tensor([1, -100, 0])), M),
        "nll": of(lambda x, y: F.nll_loss(x.log_softmax(-1), y, reduction="none"), M, LABELS),
        "binary cross entropy": of(F.binary_cross_entropy, soft, soft),
        "with pos_weight": of(lambda x, y: F.binary_cross_entropy_with_logits(x, y, pos_weight=torch.ones(4)), M, soft),
        "binary, gradient": gradient(F.binary_cross_entropy_with_logits, M, soft),
        "mse, sum": of(lambda x, y: F.mse_loss(x, y, reduction="sum"), *two),
        "smooth l1": of(F.smooth_l1_loss, *two),
        "huber, gradient": gradient(F.huber_loss, *two),
        "kl": of(lambda x, y: F.kl_div(x.log_softmax(-1), y, reduction="batchmean"), M, soft),
        "gaussian nll": of(lambda x, y: F.gaussian_nll_loss(x, y, torch.ones(3, 4)), *two),
        "poisson": of(F.poisson_nll_loss, *two),
        "hinge": of(lambda x, y: F.hinge_embedding_loss(x, y.sign()), *two),
        "margins": of(F.multi_margin_loss, M, LABELS),
        "cosine embedding": of(lambda x, y: F.cosine_embedding_loss(x, y, torch.ones(3)), *two),
        "margin ranking": of(lambda x, y: F.margin_ranking_loss(x, y, torch.ones(3, 4)), *two),
        "triplet": of(lambda x, y: F.triplet_margin_loss(x, y, x.flip(0)), *two),
        "ctc": of(
            lambda x: F.ctc_loss(x.log_softmax(-1), torch.tensor([[1, 2]]), torch.tensor([4]), torch.tensor([2])),
            jnp.ones((4, 1, 4)),
        ),
    }


def _masked(q, mask):
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def _by_hand(q, k, v):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(torch.ones(3, 3, dtype=torch.bool).triu(1), float("-inf"))
    return scores.softmax(-1) @ v


def _cached(q, k, cache, place):
    cache[:, :, place] = k[:, :, 0]
    return F.scaled_dot_product_attention(q, cache, cache), cache


def _flexible(q):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 3, 3, device="cpu")
    return flex_attention(q, q, q, lambda score, b, h, i, j: score - (i - j), block_mask=mask)


def _rotated(x):
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(3.0), 1 / 100 ** (torch.arange(half) / half)).repeat(1, 2)
    return x * angles.cos() + torch.cat([-x[..., half:], x[..., :half]], -1) * angles.sin()


def attention() -> dict[str, Program]:
    few = QUERY[:, :1]
    return {
        "with a mask": of(_masked, QUERY, jnp.ones((3, 3), bool)),
        "with a bias": of(_masked, QUERY, jnp.ones((3, 3))),
        "of shared keys": of(
            lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True, scale=0.5), QUERY, few
        ),
        "causal, gradient": gradient(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), QUERY),
        "with dropout": drawing(lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.1), QUERY),
        "in half": of(F.scaled_dot_product_attention, *[QUERY.astype(jnp.bfloat16)] * 3),
        "by hand": of(_by_hand, QUERY, QUERY, QUERY),
        "a cache that is written": of(_cached, QUERY[:, :, :1], QUERY, QUERY, jnp.int32(1)),
        "multi-head": of_module(nn.MultiheadAttention(4, 2, batch_first=True), _TOKENS, _TOKENS, _TOKENS),
        "multi-head without weights": of_module(
            nn.MultiheadAttention(4, 2), _TOKENS, _TOKENS, _TOKENS, need_weights=False
        ),
        "multi-head of padding": of_module(
            nn.MultiheadAttention(4, 2, batch_first=True), _TOKENS, _TOKENS, _TOKENS, jnp.zeros((2, 3), bool)
        ),
        "encoder layer": of_module(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), _TOKENS),
        "encoder layer, gradient": of_module(
            nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), _TOKENS, train=True, by=True
        ),
        "decoder layer": of_module(nn.TransformerDecoderLayer(4, 2, 8, norm_first=True), _TOKENS, _TOKENS),
        "rotary": of(_rotated, QUERY),
        "flexible": of(_flexible, QUERY),
        "alibi": of(lambda q: _masked(q, -(torch.arange(3)[:, None] - torch.arange(3)).abs().float()), QUERY),
    }


class _Counting(nn.Module):
    """Has a buffer that it writes, and one that it replaces."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x):
        self.calls += 1
        self.last = self.linear(x).mean(0)
        return self.linear(x) + self.last


class _Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(3, 4), nn.Linear(4, 3, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.embedding(x))


class _Attributes(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.seen = torch.ones(4), []

    def forward(self, x):
        self.seen.append(x)
        return sum(self.seen) * self.scale


def _hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    module[0].register_forward_hook(lambda module, args, result: result * 2)
    module[1].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return module


def _without_grad() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    return module


def _returned(module):
    return lambda state, x: t2j(module)(x, state_dict=state, return_state_dict=True)


def modules() -> dict[str, Program]:
    counting, tied = _Counting(), _Tied()
    ensemble = [nn.Linear(4, 2) for _ in range(2)]
    stacked, _ = torch.func.stack_module_state(ensemble)
    return {
        "buffers that are written": of_jax(_returned(counting), t2j(counting.state_dict()), M),
        "weights as constants": of(nn.Linear(4, 2), M),
        "tied weights": of_jax(lambda s, i: t2j(tied)(i, state_dict=s), t2j(tied.state_dict()), ROWS),
        "tied weights, gradient": of_module(tied, ROWS, by=True),
        "attributes and lists": of(_Attributes(), M),
        "hooks": of_module(_hooked(), M),
        "a frozen part, gradient": of_module(_without_grad(), M, by=True),
        "weight norm": of_module(parametrizations.weight_norm(nn.Linear(4, 2)), M),
        "spectral norm": of_module(parametrizations.spectral_norm(nn.Linear(4, 2)), M, train=True),
        "orthogonal": of_module(parametrizations.orthogonal(nn.Linear(4, 4)), M),
        "functional_call": of(lambda w, x: torch.func.functional_call(ensemble[0], {"weight": w}, (x,)), M[:2], M),
        "an ensemble": of(
            lambda s, x: torch.vmap(lambda s, x: torch.func.functional_call(ensemble[0], s, (x,)), (0, None))(s, x),
            t2j({name: x.detach() for name, x in stacked.items()}),
            M,
        ),
        "made within": of(lambda x: nn.LayerNorm(4)(x) + nn.Identity()(x), M),
        "a method": of(_Tied().embedding.forward, ROWS),
        "ParameterList": of(lambda x: sum(nn.ParameterList([torch.ones(4), torch.ones(4)])) * x, M),
        "a copy": of(lambda x: copy.deepcopy(tied.head)(x), M),
        "compiled and scripted": of_module(torch.compile(nn.Linear(4, 2)), M),
        "traced": of(torch.jit.trace(nn.Linear(4, 2), torch.ones(3, 4)), M),
        "exported": of(torch.export.export(nn.Linear(4, 2), (torch.ones(3, 4),)).module(), M),
        "state in a dict": of_module(nn.ModuleDict({"a": nn.Linear(4, 4)})["a"], M),
    }


def _in_region(function, dtype=torch.bfloat16):
    def run(*args):
        with torch.autocast("cpu", dtype):
            return function(*args)

    return run


def autocast() -> dict[str, Program]:
    return {
        "a product": of(_in_region(lambda x, y: x @ y.T + 1), M, M),
        "linear": of_module(_Region(nn.Linear(4, 2)), M),
        "linear, gradient": of_module(_Region(nn.Linear(4, 2)), M, by=True),
        "softmax of a product": of(_in_region(lambda x: (x @ x.T).softmax(-1)), M),
        "a loss": of(_in_region(lambda x, y: F.cross_entropy(x @ torch.eye(4), y)), M, LABELS),
        "conv and norm": of_module(_Region(nn.Sequential(nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4))), IMAGE),
        "attention": of(_in_region(lambda q: F.scaled_dot_product_attention(q, q, q)), QUERY),
        "half on a GPU": of(_on_gpu, M),
        "off within": of(_in_region(_off), M),
        "a weight twice": of(_in_region(lambda x, w: x @ w + x @ w), M, jnp.eye(4)),
    }


class _Region(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return _in_region(self.inner)(x)


def _on_gpu(x):
    with torch.autocast("cuda", torch.float16):
        return x @ x.T


def _off(x):
    y = x @ x.T
    with torch.autocast("cpu", enabled=False):
        return y.float() @ x


def _step(model, optimizer, x, y):
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def _clipped(model, optimizer, scheduler, x, y):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    return loss.detach()


def _scaled(model, optimizer, scaler, x, y):
    scaler.scale(F.mse_loss(model(x), y)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def _accumulated(model, optimizer, x, y):
    for part, wanted in zip(x.split(1), y.split(1), strict=True):
        (F.mse_loss(model(part), wanted) / 3).backward()
    optimizer.step()
    optimizer.zero_grad()


def _averaged(model, optimizer, average, x, y):
    _step(model, optimizer, x, y)
    average.update_parameters(model)


def _adversarial(model, x, y):
    x = x.clone().requires_grad_()
    F.mse_loss(model(x), y).backward()
    return x + 0.1 * x.grad.sign()


def steps() -> dict[str, Program]:
    y = M[:, :2]
    optimizers = {
        "sgd": lambda p: torch.optim.SGD(p, 0.1),
        "sgd, momentum and decay": lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.1, nesterov=True),
        "adam": lambda p: torch.optim.Adam(p),
        "adamw, foreach": lambda p: torch.optim.AdamW(p, foreach=True),
        "adamw, fused": lambda p: torch.optim.AdamW(p, fused=True),
        "adagrad": lambda p: torch.optim.Adagrad(p),
        "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.9),
        "adafactor": lambda p: torch.optim.Adafactor(p),
        "two groups": lambda p: torch.optim.SGD([{"params": p[:1], "lr": 0.5}, {"params": p[1:]}], 0.1),
    }
    programs = {}
    for name, make in optimizers.items():
        model = nn.Linear(4, 2)
        programs[name] = of_step(_step, (model, make([*model.parameters()])), M, y)
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters())
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 7)
    plateau = lr_scheduler.StepLR(sgd, 3)
    scaler = torch.amp.GradScaler("cpu")
    return programs | {
        "clipped and scheduled": of_step(_clipped, (model, optimizer, scheduler), M, y),
        "every third epoch": of_step(_clipped, (model, sgd, plateau), M, y),
        "scaled": of_step(_scaled, (model, sgd, scaler), M, y),
        "accumulated": of_step(_accumulated, (model[0], sgd), M, y),
        "averaged": of_step(_averaged, (model, sgd, swa_utils.AveragedModel(model)), M, y),
        "gradient of the input": of_step(_adversarial, (model[0],), M, y),
    }


class _Solver(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("steps", torch.tensor(0))

    def step(self, x):
        self.steps += 1
        return torch.tanh(self.layer(x)) / 2

    @torch.no_grad()
    def forward(self, x):
        while x.abs().max() > 0.4:
            x = self.step(x)
        return x


class _Cached(nn.Module):
    """Writes what it gets to a cache, an object that it gets too."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def step(self, x, cache):
        cache["keys"][:, cache["place"]] = self.layer(x)
        cache["place"] += 1
        cache["last"] = cache["keys"].sum(1)
        return cache["last"].argmax(-1)

    def forward(self, x):
        cache = {"keys": torch.zeros(x.shape[0], 4, 4), "place": torch.tensor(0)}
        return [self.step(x, cache) for _ in range(2)]


class _Noisy(_Solver):
    def step(self, x):
        return F.dropout(self.layer(x)[:1], 0.5) * 0


class _Views(_Solver):
    def step(self, x):
        y = self.layer(x)
        self.kept = y[0]
        x[0] = 0
        return y.T, y

    def forward(self, x):
        x = x.clone()
        _, y = self.step(x)
        y.add_(1)
        return self.kept + x[0]


def parts() -> dict[str, Program]:
    ones, key = jnp.ones((2, 4)), jax.random.key(0)
    return {
        "a method": of_part(_Solver(), ones, part=["step"]),
        "a submodule": of_part(_Solver(), ones, part=["layer"]),
        "a class": of_part(_Solver(), ones, part=[nn.Linear]),
        "a cache": of_part(_Cached(), ones, part=["step"]),
        "with dropout": of_part(_Noisy(), ones, part=["step"], rng=key),
        "views and writes": of_part(_Views(), ones, part=["step"]),
        "inlined under jit": of(_Cached(), ones, compile=["step"]),
        "inlined under grad": gradient(_Views(), ones, compile=["step"]),
    }
