"""ResNet-50 in evaluation mode, channels last inside."""

import jax
import jax.numpy as jnp
from jax import lax

STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
EPSILON = 1e-5


def conv(params, name, x, stride=1):
    w = params[name + ".weight"]
    pad = w.shape[2] // 2
    return lax.conv_general_dilated(
        x, w, (stride, stride), [(pad, pad)] * 2, dimension_numbers=("NHWC", "OIHW", "NHWC")
    )


def norm(params, name, x):
    scale = params[name + ".weight"] * lax.rsqrt(params[name + ".running_var"] + EPSILON)
    shift = params[name + ".bias"] - params[name + ".running_mean"] * scale
    return x * scale + shift


def block(params, name, x, stride):
    y = jax.nn.relu(norm(params, name + ".bn1", conv(params, name + ".conv1", x)))
    y = jax.nn.relu(norm(params, name + ".bn2", conv(params, name + ".conv2", y, stride)))
    y = norm(params, name + ".bn3", conv(params, name + ".conv3", y))
    if name + ".downsample.0.weight" in params:
        x = norm(params, name + ".downsample.1", conv(params, name + ".downsample.0", x, stride))
    return jax.nn.relu(x + y)


def apply(params, x):
    """Logits (batch, 1000) of images (batch, 3, height, width)."""
    x = conv(params, "conv1", x.transpose(0, 2, 3, 1), 2)
    x = jax.nn.relu(norm(params, "bn1", x))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))
    for stage, (blocks, _, stride) in enumerate(STAGES, 1):
        for i in range(blocks):
            x = block(params, f"layer{stage}.{i}", x, stride if i == 0 else 1)
    return jnp.mean(x, (1, 2)) @ params["fc.weight"].T + params["fc.bias"]
