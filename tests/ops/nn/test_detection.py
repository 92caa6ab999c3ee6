"""torchvision's operators for detection, against plain ones, and its Python functions made of them."""

import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.ops.database import compare, compare_trees
from tests.torchvision_library import loaded
from torch2jax import Padded, t2j
from torch2jax.tensors.dtypes import canonical

if importlib.util.find_spec("torchvision") is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)


@pytest.fixture(autouse=True)
def ops():
    with loaded(), jax.enable_x64(True):
        from torchvision import ops

        yield ops


def _boxes(count: int, size: float = 20.0, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    first = torch.rand(count, 2, dtype=torch.float64, generator=generator) * size
    return torch.cat([first, first + 1 + torch.rand(count, 2, dtype=torch.float64, generator=generator) * size / 2], 1)


def _assert_agrees(function, *tensors, jit: bool = True, gradients: tuple[int, ...] = ()):
    """Compares values, and the gradients by some of the arguments."""
    arrays = [t2j(tensor) for tensor in tensors]
    translated = t2j(function)
    compare_trees((jax.jit(translated) if jit else translated)(*arrays), function(*tensors))
    if gradients:
        inputs = [tensor.clone().requires_grad_(i in gradients) for i, tensor in enumerate(tensors)]
        out = function(*inputs)
        cotangent = torch.randn_like(out)
        wanted = torch.autograd.grad(out, [inputs[i] for i in gradients], cotangent)
        loss = lambda *arrays: jnp.vdot(t2j(cotangent), translated(*arrays))
        grad = jax.jit(jax.grad(loss, gradients)) if jit else jax.grad(loss, gradients)
        for got, want in zip(grad(*arrays), wanted, strict=True):
            compare(got, want)


# Boxes.


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 1.0])
def test_nms(ops, threshold):
    boxes, scores = _boxes(40), torch.rand(40, dtype=torch.float64).round(decimals=1)  # with ties
    _assert_agrees(functools.partial(ops.nms, iou_threshold=threshold), boxes, scores, jit=False)


def test_the_first_that_nms_keeps(ops):
    def first(boxes, scores):
        kept = ops.nms(boxes, scores, 0.5)[:2]
        return boxes[kept], kept

    _assert_agrees(first, _boxes(8), torch.rand(8, dtype=torch.float64), jit=False)


def test_nms_of_nothing(ops):
    kept = t2j(ops.nms)(jnp.zeros((0, 4)), jnp.zeros(0), 0.5)
    assert kept.shape == (0,)
    assert kept.dtype == jnp.int64


def test_batched_nms(ops):
    classes = torch.randint(3, (40,))
    function = functools.partial(ops.batched_nms, iou_threshold=0.3)
    _assert_agrees(function, _boxes(40), torch.rand(40, dtype=torch.float64), classes, jit=False)


def test_suppression_under_jit(ops):
    """Also of boxes whose number data decide, of none, and with scores that are no numbers."""
    boxes, scores, classes = _boxes(40), torch.rand(40, dtype=torch.float64).round(decimals=1), torch.randint(3, (40,))
    boxes[3, 2:] = boxes[3, :2]  # without an area

    def kept(boxes, scores, classes, mask):
        some = boxes[mask], scores[mask], classes[mask]
        return {
            "nms": ops.nms(boxes, scores, 0.3),
            "of some": some[0][ops.nms(*some[:2], 0.3)[:5]],
            "by class": ops.batched_nms(boxes, scores, classes, 0.3),
            "of some by class": some[1][ops.batched_nms(*some, 0.3)],
            "large": boxes[ops.remove_small_boxes(boxes, 5.0)],
            "large of some": some[0][ops.remove_small_boxes(some[0], 5.0)],
        }

    function = jax.jit(t2j(kept))
    for mask in (scores > 0.3, scores > 2):
        given = boxes, scores, classes, mask
        got = function(*map(t2j, given))
        for name, wanted in kept(*given).items():
            assert isinstance(got[name], Padded)
            compare(got[name].compact(), wanted, name)
    scores[[5, 7]] = torch.nan
    _assert_agrees(lambda *x: ops.nms(*x, 0.3)[:2] * 1, boxes, scores, jit=False)
    got = jax.jit(t2j(lambda *x: ops.nms(*x, 0.3)))(t2j(boxes), t2j(scores)).compact()
    compare(got, ops.nms(boxes, scores, 0.3))


def test_many_boxes_are_suppressed_class_by_class(ops):
    boxes, scores, classes = _boxes(1100, 200.0), torch.rand(1100, dtype=torch.float64), torch.randint(2, (1100,))
    mask = scores > 0.05  # more numbers than torchvision moves apart, or fewer
    function = lambda b, s, c, m: ops.batched_nms(b[m], s[m], c[m], 0.2)
    for some in (mask, mask & (scores < 0.9)):
        got = jax.jit(t2j(function))(*map(t2j, (boxes, scores, classes, some))).compact()
        ours = t2j(function)(*map(t2j, (boxes, scores, classes, some)))
        np.testing.assert_array_equal(got, ours)


def test_nms_at_the_peaks_of_a_map(ops):
    heat = torch.rand(2, 6, 6, generator=torch.Generator().manual_seed(0))

    def found(heat):
        size, row, column = torch.where(heat > 0.5)
        centres = torch.stack([column, row], 1).float()
        boxes = torch.cat([centres - 1, centres + 1], 1)
        return ops.nms(boxes, heat[size, row, column], 0.3), ops.batched_nms(boxes, heat[size, row, column], size, 0.3)

    for got, expected in zip(jax.jit(t2j(found))(t2j(heat)), found(heat), strict=True):
        compare(got.compact(), expected)


def test_nms_checks_shapes(ops):
    with pytest.raises(RuntimeError, match=r"\[N, 4\]"):
        t2j(ops.nms)(jnp.ones((3, 5)), jnp.ones(3), 0.5)


@pytest.mark.parametrize("name", ["box_iou", "generalized_box_iou", "distance_box_iou", "complete_box_iou"])
def test_overlaps(ops, name):
    _assert_agrees(getattr(ops, name), _boxes(5), _boxes(4, seed=1), gradients=(0, 1))


@pytest.mark.parametrize("name", ["generalized_box_iou_loss", "distance_box_iou_loss", "complete_box_iou_loss"])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_losses_of_boxes(ops, name, reduction):
    function = functools.partial(getattr(ops, name), reduction=reduction)
    # Not jitted: torchvision reads the pairs that intersect by a mask, x[mask].
    _assert_agrees(function, _boxes(5), _boxes(5, seed=1), jit=False, gradients=(0, 1))


def test_sigmoid_focal_loss(ops):
    inputs, targets = torch.randn(4, 3, dtype=torch.float64), torch.rand(4, 3, dtype=torch.float64).round()
    _assert_agrees(functools.partial(ops.sigmoid_focal_loss, reduction="mean"), inputs, targets, gradients=(0,))


@pytest.mark.parametrize("target", ["xywh", "cxcywh"])
def test_conversions_of_boxes(ops, target):
    to = functools.partial(ops.box_convert, in_fmt="xyxy", out_fmt=target)
    back = functools.partial(ops.box_convert, in_fmt=target, out_fmt="xyxy")
    _assert_agrees(to, _boxes(5))
    _assert_agrees(back, to(_boxes(5)))


def test_areas_and_clipping(ops):
    _assert_agrees(ops.box_area, _boxes(5))
    _assert_agrees(functools.partial(ops.clip_boxes_to_image, size=(12, 9)), _boxes(5))
    _assert_agrees(functools.partial(ops.remove_small_boxes, min_size=5.0), _boxes(9), jit=False)


def test_masks_to_boxes(ops):
    masks = torch.zeros(3, 8, 9, dtype=torch.bool)
    masks[0, 2:5, 1:7] = masks[1, 7, 8] = masks[2, 0:2, 3:4] = True
    _assert_agrees(ops.masks_to_boxes, masks, jit=False)


# Regions.

FEATURES = torch.randn(2, 8, 11, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def _rois():
    inside = torch.cat([torch.tensor([[0.0], [1.0], [1.0], [0.0]]), _boxes(4)], 1)
    beyond = torch.tensor([[1.0, -6.0, -5.0, 40.0, 3.0], [0.0, 30.0, 30.0, 50.0, 50.0], [1.0, 4.0, 5.0, 4.2, 5.3]])
    return torch.cat([inside, beyond])


@pytest.mark.parametrize("sampling_ratio", [-1, 2])
@pytest.mark.parametrize("aligned", [False, True])
def test_roi_align(ops, sampling_ratio, aligned):
    pool = ops.RoIAlign((3, 2), 0.6, sampling_ratio, aligned)
    _assert_agrees(pool, FEATURES, _rois(), gradients=(0,))
    if aligned:
        _assert_agrees(pool, FEATURES, _rois(), jit=False)


@pytest.mark.parametrize("name", ["RoIPool", "PSRoIPool"])
def test_pooling_of_rounded_regions(ops, name):
    # torchvision's compiled gradient of PSRoIPool reaches the last row and column, which its values leave out.
    _assert_agrees(getattr(ops, name)((2, 2), 0.6), FEATURES, _rois(), gradients=(0,) if name == "RoIPool" else ())
    _assert_agrees(getattr(ops, name)((2, 2), 0.3), FEATURES, _rois()[:4], gradients=(0,))


@pytest.mark.parametrize("sampling_ratio", [-1, 2])
def test_ps_roi_align(ops, sampling_ratio):
    _assert_agrees(ops.PSRoIAlign((2, 2), 0.6, sampling_ratio), FEATURES, _rois(), gradients=(0,))


def test_regions_given_as_lists(ops):
    function = lambda x, first, second: ops.roi_align(x, [first, second], 2, sampling_ratio=1)
    _assert_agrees(function, FEATURES, _boxes(2), _boxes(3))


@pytest.mark.parametrize("name", ["roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool"])
def test_regions_are_checked(ops, name):
    pool = getattr(torch.ops.torchvision, name)
    options = {"roi_align": (2, True), "ps_roi_align": (2,)}.get(name, ())
    with pytest.raises(RuntimeError, match=r"\[K, 5\]"):
        t2j(lambda x, rois: pool(x, rois, 1.0, 2, 2, *options))(t2j(FEATURES), jnp.ones((3, 4)))
    with pytest.raises(RuntimeError, match="dtype"):
        t2j(lambda x, rois: pool(x, rois, 1.0, 2, 2, *options))(t2j(FEATURES), jnp.ones((3, 5), jnp.float32))


# Deformable convolution.


@pytest.mark.parametrize(
    ("groups", "offset_groups", "stride", "padding", "dilation", "masked"),
    [(1, 1, 1, 0, 1, False), (2, 4, (2, 1), (1, 2), (1, 2), True), (4, 2, 1, 1, 1, True)],
)
def test_deform_conv2d(ops, groups, offset_groups, stride, padding, dilation, masked):
    torch.manual_seed(0)
    x, weight = torch.randn(2, 8, 7, 6, dtype=torch.float64), torch.randn(4, 8 // groups, 3, 2, dtype=torch.float64)
    out = torch.nn.functional.conv2d(x, weight, None, stride, padding, dilation, groups).shape[2:]
    offset = 2 * torch.randn(2, 2 * offset_groups * 6, *out, dtype=torch.float64)
    mask, bias = torch.rand(2, offset_groups * 6, *out, dtype=torch.float64), torch.randn(4, dtype=torch.float64)

    def function(x, offset, weight, bias, mask):
        return ops.deform_conv2d(x, offset, weight, bias, stride, padding, dilation, mask if masked else None)

    gradients = (0, 1, 2, 3, 4) if masked else (0, 1, 2, 3)
    _assert_agrees(function, x, offset, weight, bias, mask, gradients=gradients)


def test_without_offsets_it_is_a_convolution(ops):
    layer = ops.DeformConv2d(3, 4, 3, padding=1).double()
    x = torch.randn(1, 3, 5, 6, dtype=torch.float64)
    expected = torch.nn.functional.conv2d(x, layer.weight, layer.bias, padding=1)
    compare(t2j(layer)(t2j(x), jnp.zeros((1, 18, 5, 6))), expected)


def test_shapes_of_offsets_are_checked(ops):
    with pytest.raises(RuntimeError, match=r"offset of shape \[1, 18, 3, 3\]"):
        t2j(ops.deform_conv2d)(jnp.ones((1, 2, 5, 5)), jnp.ones((1, 18, 4, 3)), jnp.ones((2, 2, 3, 3)))


# Other dtypes, and batches.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_results_are_of_the_input_s_dtype(ops, dtype):
    features, rois = FEATURES.to(dtype), _rois().to(dtype)
    options = {"ps_roi_align": (1.0, 1), "ps_roi_pool": (1.0,), "roi_align": (1.0, 1), "roi_pool": (1.0,)}
    for name, given in options.items():
        result = t2j(getattr(ops, name))(t2j(features), t2j(rois), 2, *given)
        assert result.dtype == canonical(dtype), name
    offset, weight = torch.zeros(2, 8, 10, 12, dtype=dtype), torch.ones(3, 8, 2, 2, dtype=dtype)
    assert t2j(ops.deform_conv2d)(t2j(features), t2j(offset), t2j(weight)).dtype == canonical(dtype)


@pytest.mark.parametrize("name", ["roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool"])
def test_regions_in_batches(ops, name):
    pool = t2j(functools.partial(getattr(ops, name), output_size=2))
    features, rois = jnp.stack([t2j(FEATURES), 2 * t2j(FEATURES)]), jnp.stack([t2j(_rois()), 0.9 * t2j(_rois())])
    batched = jax.jit(jax.vmap(pool))(features, rois)
    for i in range(2):
        np.testing.assert_allclose(batched[i], pool(features[i], rois[i]), atol=1e-12)


# Layers.


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda ops: ops.Conv2dNormActivation(3, 4), (2, 3, 6, 6)),
        (lambda ops: ops.FrozenBatchNorm2d(3), (2, 3, 6, 6)),
        (lambda ops: ops.SqueezeExcitation(8, 2), (2, 8, 6, 6)),
        (lambda ops: ops.MLP(3, [5, 2]), (4, 3)),
        (lambda ops: ops.Permute([0, 2, 1]), (2, 3, 4)),
        (lambda ops: ops.StochasticDepth(0.5, "row").eval(), (2, 3)),
        (lambda ops: ops.DropBlock2d(0.5, 3).eval(), (2, 3, 6, 6)),
    ],
)
def test_layers(ops, build, shape):
    torch.manual_seed(0)
    layer = build(ops).double()
    x = torch.randn(shape, dtype=torch.float64)
    compare_trees(jax.jit(t2j(layer))(t2j(x)), layer(x))


def test_feature_pyramid(ops):
    torch.manual_seed(0)
    layer = ops.FeaturePyramidNetwork([3, 4], 5, ops.feature_pyramid_network.LastLevelMaxPool()).double()
    features = {name: torch.randn(1, 3 + i, 8 >> i, 8 >> i, dtype=torch.float64) for i, name in enumerate("ab")}
    compare_trees(dict(jax.jit(t2j(layer))({k: t2j(v) for k, v in features.items()})), dict(layer(features)))


@pytest.mark.parametrize("mode", ["row", "batch"])
def test_stochastic_depth(ops, mode):
    depth = jax.jit(t2j(functools.partial(ops.stochastic_depth, p=0.25, mode=mode)))
    drops = np.array([depth(jnp.ones((64, 2, 3)), rng=jax.random.key(i)) for i in range(40)])
    rows = drops.reshape(40, 64, -1)
    assert (rows == rows[..., :1]).all(), "parts of a row were dropped"
    assert set(np.unique(drops.round(6))) <= {0.0, round(1 / 0.75, 6)}
    assert abs(drops.mean() - 1) < (0.05 if mode == "row" else 0.3)
    assert mode == "row" or all(len(np.unique(batch)) == 1 for batch in drops)


@pytest.mark.parametrize(("name", "shape"), [("drop_block2d", (4, 3, 12, 12)), ("drop_block3d", (2, 3, 8, 8, 8))])
def test_drop_block(ops, name, shape):
    drop = jax.jit(t2j(functools.partial(getattr(ops, name), p=0.3, block_size=3)))
    dropped = np.asarray(drop(jnp.ones(shape), rng=jax.random.key(0)))
    assert 0.05 < (dropped == 0).mean() < 0.6
    np.testing.assert_allclose(dropped.mean(), 1, rtol=1e-5)
