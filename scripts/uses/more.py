"""Further kinds of use of libraries that the other files begin with."""

import torch

from scripts.uses.use import On, use


@use("kornia", "images", "the loss of structure between blurred images, in another space of colours")
def kornia_images():
    import kornia

    def f(x, y):
        x, y = (kornia.filters.gaussian_blur2d(kornia.color.rgb_to_lab(z), (3, 3), (1.0, 1.0)) for z in (x, y))
        return kornia.losses.ssim_loss(x / 100, y / 100, 5)

    return f, (torch.rand(1, 3, 12, 12), torch.rand(1, 3, 12, 12))


@use("kornia", "geometry", "edges and corners of images")
def kornia_features():
    import kornia

    return lambda x: (kornia.filters.sobel(x), kornia.feature.harris_response(x)), (torch.rand(1, 1, 12, 12),)


@use("kornia", "geometry", "a projection of points by a camera, and lines through them")
def kornia_cameras():
    from kornia.geometry import project_points
    from kornia.geometry.conversions import axis_angle_to_rotation_matrix

    camera = torch.tensor([[50.0, 0, 8], [0, 50.0, 8], [0, 0, 1]])

    def f(points, turn):
        turned = points @ axis_angle_to_rotation_matrix(turn).mT + torch.tensor([0.0, 0, 5])
        return project_points(turned, camera.expand(2, 1, 3, 3))

    return f, (torch.randn(2, 6, 3), torch.randn(2, 3))


@use(
    "roma",
    "geometry",
    "interpolation between rotations",
)
def slerp():
    import roma

    steps = torch.linspace(0, 1, 4)
    return lambda a, b: roma.rotvec_slerp(a, b, steps), (torch.randn(3, 3), torch.randn(3, 3))


@use("geoopt", "geometry", "points of a sphere and of Stiefel's manifold")
def manifolds():
    import geoopt

    sphere, stiefel = geoopt.Sphere(), geoopt.Stiefel()

    def f(x, y, z):
        x, y = sphere.projx(x), sphere.projx(y)
        return sphere.dist(x, y), sphere.logmap(x, y), stiefel.proju(torch.eye(4, 2), z)

    return f, (torch.randn(5, 3), torch.randn(5, 3), torch.randn(4, 2))


@use("e3nn", "equivariant networks", "a gated nonlinearity and a linear layer of irreducible parts")
def gate():
    from e3nn import nn, o3

    gate = nn.Gate("4x0e", [torch.tanh], "2x0e", [torch.sigmoid], "2x1o")
    return On(lambda gate, last, x: last(gate(x)), gate, o3.Linear(gate.irreps_out, "3x0e + 1x1o")), (
        torch.randn(5, gate.irreps_in.dim),
    )


@use("zuko", "normalizing flows", "the density of a masked autoregressive flow")
def autoregressive():
    import zuko

    flow = zuko.flows.MAF(features=3, transforms=2, hidden_features=(8, 8))
    return On(lambda flow, x: flow().log_prob(x), flow), (torch.randn(5, 3),)


@use("nflows", "normalizing flows", "an invertible linear layer by its triangular factors")
def triangular():
    from nflows.transforms import LULinear

    return LULinear(4, identity_init=False), (torch.randn(5, 4),)


@use("normflows", "normalizing flows", "planar and radial flows")
def planar():
    from normflows.flows import Planar, Radial

    def f(planar, radial, x):
        x, first = planar(x)
        x, second = radial(x)
        return x, first + second

    return On(f, Planar((2,)), Radial((2,))), (torch.randn(6, 2),)


@use("pyro-ppl", "probabilistic programs", "the evidence's bound of a guide, with a given sample")
def guide():
    from pyro.distributions import Gamma, InverseGamma, MultivariateStudentT

    def f(x, y, loc):
        student = MultivariateStudentT(torch.tensor(5.0), loc, torch.eye(3))
        return (
            Gamma(x.exp(), y.exp()).log_prob(y.exp()),
            InverseGamma(x.exp(), y.exp()).log_prob(y.exp()),
            student.log_prob(loc * 2),
        )

    return f, (torch.randn(4), torch.randn(4), torch.randn(3))


@use("gpytorch", "Gaussian processes", "a product and a sum of kernels")
def kernels():
    from gpytorch.kernels import LinearKernel, PeriodicKernel, RQKernel

    kernel = RQKernel() * PeriodicKernel() + LinearKernel()
    return On(lambda kernel, x, y: kernel(x, y).to_dense(), kernel), (torch.rand(6, 2), torch.rand(4, 2))


@use("botorch", "Gaussian processes", "functions to be optimised")
def test_functions():
    from botorch.test_functions import Ackley, Branin, Hartmann

    return On(lambda a, b, c, x, y, z: (a(x), b(y), c(z)), Ackley(dim=2), Branin(), Hartmann(dim=6)), (
        torch.rand(4, 2, dtype=torch.float64),
        torch.rand(4, 2, dtype=torch.float64),
        torch.rand(4, 6, dtype=torch.float64),
    )


@use("POT", "optimal transport", "the sliced distance of points along given directions")
def sliced():
    import ot

    return lambda x, y, d: ot.sliced_wasserstein_distance(x, y, projections=d), (
        torch.randn(6, 2),
        torch.randn(6, 2),
        torch.randn(2, 5),
    )


@use("torchmetrics", "metrics", "errors, correlations and spectral angles")
def regression():
    from torchmetrics.functional import cosine_similarity, explained_variance, pearson_corrcoef, r2_score

    functions = cosine_similarity, explained_variance, pearson_corrcoef, r2_score
    return lambda x, y: tuple(f(x, y) for f in functions), (torch.randn(8, 3), torch.randn(8, 3))


@use("torchmetrics", "metrics", "signal to distortion of audio, invariant to its scale")
def audio_metrics():
    from torchmetrics.functional.audio import scale_invariant_signal_distortion_ratio, signal_noise_ratio

    functions = scale_invariant_signal_distortion_ratio, signal_noise_ratio
    return lambda x, y: tuple(f(x, y) for f in functions), (torch.randn(2, 32), torch.randn(2, 32))


@use("segmentation-models-pytorch", "segmentation", "Tversky's and Lovász' losses")
def overlap_losses():
    from segmentation_models_pytorch.losses import LovaszLoss, TverskyLoss

    first, second = TverskyLoss("binary"), LovaszLoss("binary")
    labels = torch.randint(2, (2, 1, 8, 8))
    return lambda x: (first(x, labels), second(x, labels)), (torch.randn(2, 1, 8, 8),)


@use("monai", "segmentation", "a loss of deformation and one of mutual information")
def registration():
    from monai.losses import BendingEnergyLoss, GlobalMutualInformationLoss

    bending, information = BendingEnergyLoss(), GlobalMutualInformationLoss(num_bins=5)
    return lambda field, x, y: (bending(field), information(x, y)), (
        torch.randn(1, 3, 6, 6, 6),
        torch.rand(1, 1, 6, 6),
        torch.rand(1, 1, 6, 6),
    )


@use("pytorch-metric-learning", "losses", "losses with proxies of classes")
def proxies():
    from pytorch_metric_learning.losses import ArcFaceLoss, ProxyAnchorLoss

    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    return On(lambda a, b, x: (a(x, labels), b(x, labels)), ArcFaceLoss(3, 8), ProxyAnchorLoss(3, 8)), (
        torch.randn(6, 8),
    )


@use("torch_geometric", "graphs", "messages over edges with attributes, and a graph's readout")
def edge_messages():
    from torch_geometric.nn import GINEConv, SAGEConv, global_add_pool

    edges, batch = torch.randint(8, (2, 20)), torch.arange(8) // 4

    def f(gine, sage, x, e):
        return global_add_pool(sage(gine(x, edges, e).relu(), edges), batch, size=2)

    return On(f, GINEConv(torch.nn.Linear(5, 6), edge_dim=3), SAGEConv(6, 4)), (torch.randn(8, 5), torch.randn(20, 3))


@use("vit-pytorch", "vision", "attention within and between channels of an image (CvT's depthwise projections)")
def convolutional_attention():
    from vit_pytorch.cvt import Transformer

    return Transformer(8, proj_kernel=3, kv_proj_stride=2, depth=1, heads=2, dim_head=4, mlp_mult=2).eval(), (
        torch.randn(1, 8, 6, 6),
    )


@use("timm", "vision", "a block of a convolutional network with global responses (ConvNeXt V2)")
def convnext_block():
    from timm.models.convnext import ConvNeXtBlock

    return ConvNeXtBlock(8, use_grn=True, ls_init_value=None).eval(), (torch.randn(1, 8, 8, 8),)


@use("torchvision", "vision", "losses of boxes and images turned in space")
def boxes():
    from torchvision.ops import complete_box_iou_loss, sigmoid_focal_loss
    from torchvision.transforms.functional import adjust_hue, gaussian_blur

    def f(first, second, logits, image):
        first, second = (torch.cat([x[:, :2], x[:, :2] + x[:, 2:].exp()], 1) for x in (first, second))
        loss = sigmoid_focal_loss(logits, logits.detach().gt(0).float())
        return complete_box_iou_loss(first, second), loss, gaussian_blur(adjust_hue(image, 0.1), [3, 3])

    return f, (torch.randn(5, 4), torch.randn(5, 4), torch.randn(5, 3), torch.rand(1, 3, 8, 8))


@use("transformers", "language models", "an encoder of texts (BERT) with a padded batch")
def bert():
    from transformers import BertConfig, BertModel

    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    model = BertModel(BertConfig(**sizes, num_attention_heads=2), add_pooling_layer=False).eval()
    mask = (torch.arange(7) < torch.tensor([[7], [4]])).long()
    return On(lambda model, ids: model(ids, attention_mask=mask).last_hidden_state, model), (torch.randint(40, (2, 7)),)


@use("diffusers", "diffusion", "a step of a sampler from noise (DDIM)")
def sampler():
    from diffusers import DDIMScheduler

    scheduler = DDIMScheduler(num_train_timesteps=100)
    scheduler.set_timesteps(5)
    return lambda noise, x: scheduler.step(noise, 40, x).prev_sample, (torch.randn(1, 3, 4, 4), torch.randn(1, 3, 4, 4))


@use("x-transformers", "attention", "an encoder with relative positions and normalised queries and keys")
def relative_positions():
    from x_transformers import Encoder

    encoder = Encoder(dim=16, depth=1, heads=2, attn_dim_head=8, rel_pos_bias=True, attn_qk_norm=True)
    return encoder.eval(), (torch.randn(2, 6, 16),)


@use("captum", "interpretation", "saliency and the gradient times the input", gradients=False)
def saliency():
    from captum.attr import InputXGradient, Saliency

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    return lambda x: (Saliency(model).attribute(x, target=1), InputXGradient(model).attribute(x, target=0)), (
        torch.randn(3, 4),
    )


@use("ptwt", "wavelets", "a transform of images and a continuous one of signals")
def two_dimensions():
    import ptwt

    def f(x):
        low, *details = ptwt.wavedec2(x, "haar", level=2)
        return low, *(part for level in details for part in level)

    return f, (torch.randn(2, 16, 16),)
