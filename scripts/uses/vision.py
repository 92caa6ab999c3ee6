"""Images."""

import torch

from scripts.uses.use import On, use


@use("einops", "tensors", "patches of images, weighted")
def patches():
    from einops import einsum, rearrange, reduce

    def f(images, weight):
        parts = rearrange(images, "b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4)
        return reduce(einsum(parts, weight, "b n d, d e -> b n e"), "b n e -> b e", "max")

    return f, (torch.randn(2, 3, 8, 8), torch.randn(48, 5))


@use("torchvision", "vision", "a residual network in training mode")
def resnet():
    from torchvision.models.resnet import BasicBlock, ResNet

    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5), (torch.randn(4, 3, 64, 64),)


@use("timm", "vision", "a vision transformer")
def timm_vit():
    import timm

    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=5)
    return model.eval(), (torch.randn(2, 3, 32, 32),)


@use("diffusers", "diffusion", "a conditional U-Net and a step of its sampler")
def denoising():
    from diffusers import UNet2DModel

    sizes = {"sample_size": 8, "block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 4}
    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    model = UNet2DModel(**sizes, **blocks, attention_head_dim=8)
    return On(lambda model, x, t: model(x, t).sample, model), (torch.randn(2, 3, 8, 8), torch.tensor([3, 70]))


@use("efficientnet_pytorch", "vision", "a block of an efficient network")
def efficient_block():
    from efficientnet_pytorch.model import MBConvBlock
    from efficientnet_pytorch.utils import BlockArgs, GlobalParams

    block = BlockArgs(1, 3, [1], 4, 8, 8, 0.25, True)
    settings = GlobalParams(1.0, 1.0, 16, 0.0, 10, 0.99, 1e-3, 0.0, 8, 8, True)
    return MBConvBlock(block, settings, image_size=8).eval(), (torch.randn(2, 8, 8, 8),)


@use("segmentation-models-pytorch", "segmentation", "Dice's and the focal loss of masks")
def mask_losses():
    from segmentation_models_pytorch.losses import DiceLoss, FocalLoss

    dice, focal = DiceLoss("multiclass"), FocalLoss("multiclass")
    labels = torch.randint(3, (2, 8, 8))
    return lambda x: (dice(x, labels), focal(x, labels)), (torch.randn(2, 3, 8, 8),)


@use("segmentation-models-pytorch", "segmentation", "the decoder of a U-Net")
def unet_decoder():
    from segmentation_models_pytorch.decoders.unet.decoder import UnetDecoder

    decoder = UnetDecoder((3, 4, 8, 8), (8, 4, 4), n_blocks=3, use_norm="batchnorm").eval()
    features = (torch.randn(1, 3, 16, 16), torch.randn(1, 4, 8, 8), torch.randn(1, 8, 4, 4), torch.randn(1, 8, 2, 2))
    return On(lambda decoder, *features: decoder(list(features)), decoder), features


@use("monai", "segmentation", "a residual U-Net of volumes and its loss")
def volumes():
    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet

    network = UNet(3, 1, 2, channels=(4, 8), strides=(2,), num_res_units=1)
    loss = DiceCELoss(to_onehot_y=True, softmax=True)
    labels = torch.randint(2, (1, 1, 8, 8, 8))
    return On(lambda network, x: loss(network(x), labels), network.eval().double()), (
        torch.randn(1, 1, 8, 8, 8).double(),  # in single precision, what rounds is as large as small gradients
    )


@use("denoising-diffusion-pytorch", "diffusion", "the loss of a U-Net for given noise")
def diffusion_loss():
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    model = GaussianDiffusion(Unet(8, dim_mults=(1, 2), attn_dim_head=4, attn_heads=2), image_size=8, timesteps=10)
    times = torch.tensor([2, 7])
    return On(lambda model, x, noise: model.p_losses(x, times, noise=noise), model.eval()), (
        torch.rand(2, 3, 8, 8),
        torch.randn(2, 3, 8, 8),
    )


@use("siren-pytorch", "implicit functions", "a network of sines and its gradient in space")
def siren():
    from siren_pytorch import SirenNet

    net = SirenNet(dim_in=2, dim_hidden=16, dim_out=1, num_layers=2, w0_initial=30.0)
    slope = torch.func.vmap(torch.func.grad(lambda net, x: net(x).sum(), argnums=1), in_dims=(None, 0))
    return On(lambda net, x: (net(x), slope(net, x)), net), (torch.rand(6, 2),)


@use("ptwt", "wavelets", "a discrete wavelet transform and its inverse")
def wavelets():
    import ptwt

    def f(x):
        parts = ptwt.wavedec(x, "db2", level=2, mode="zero")
        return (*parts, ptwt.waverec([part * 2 for part in parts], "db2"))

    return f, (torch.randn(2, 32),)


@use("torch-dct", "signals", "cosine transforms of an image")
def cosines():
    import torch_dct

    return lambda x: (torch_dct.dct_2d(x, norm="ortho"), torch_dct.idct(x), torch_dct.dct1(x)), (torch.randn(3, 8, 8),)


@use("julius", "audio", "resampling and a bank of filters")
def resampling():
    import julius

    return lambda x: (julius.resample_frac(x, 4, 5), julius.lowpass_filter(x, 0.2)), (torch.randn(2, 64),)


@use(
    "auraloss",
    "audio",
    "a spectral loss at several resolutions",
)
def spectral_loss():
    from auraloss.freq import MultiResolutionSTFTLoss

    loss = MultiResolutionSTFTLoss(fft_sizes=[32, 16], hop_sizes=[8, 4], win_lengths=[32, 16])
    return loss, (torch.randn(2, 1, 128), torch.randn(2, 1, 128))


@use("nnAudio", "audio", "a spectrogram by convolutions, on the scale of mel")
def mel_spectrogram():
    from nnAudio.features import MelSpectrogram

    return MelSpectrogram(sr=8000, n_fft=64, n_mels=8, hop_length=16, verbose=False), (torch.randn(2, 256),)


@use("asteroid-filterbanks", "audio", "a learned filterbank and its inverse")
def filterbank():
    from asteroid_filterbanks import Decoder, Encoder, FreeFB

    encoder, decoder = Encoder(FreeFB(16, 8, stride=4)), Decoder(FreeFB(16, 8, stride=4))
    return On(lambda encoder, decoder, x: decoder(encoder(x).relu()), encoder, decoder), (torch.randn(2, 1, 64),)


@use("conformer", "audio", "a block of attention and convolution")
def conformer():
    from conformer import ConformerBlock

    block = ConformerBlock(dim=16, dim_head=8, heads=2, ff_mult=2, conv_kernel_size=5)
    return block.eval(), (torch.randn(2, 10, 16),)


@use("opt_einsum", "tensors", "a contraction in the order that costs least")
def contraction():
    from opt_einsum import contract

    operands = torch.randn(3, 4), torch.randn(4, 5, 6), torch.randn(6, 3)
    return lambda *operands: contract("ab,bcd,de->ace", *operands), operands


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


@use("torchvision", "vision", "an image and its boxes, by transforms that know which is which")
def annotated():
    from torchvision.transforms import v2
    from torchvision.tv_tensors import BoundingBoxes, Image

    cut = v2.Compose([v2.Resize(24), v2.CenterCrop(16), v2.Normalize([0.5] * 3, [0.2] * 3)])

    def f(image, boxes):
        boxes = BoundingBoxes(boxes, format="XYXY", canvas_size=(32, 32))
        return [v2.functional.horizontal_flip(x) for x in cut([Image(image), boxes])]

    return f, (torch.rand(3, 32, 32), torch.tensor([[2.0, 3.0, 10.0, 12.0], [5.0, 6.0, 20.0, 30.0]]))


@use("diffusers", "diffusion", "a step of a sampler from noise (DDIM)")
def sampler():
    from diffusers import DDIMScheduler

    scheduler = DDIMScheduler(num_train_timesteps=100)
    scheduler.set_timesteps(5)
    return lambda noise, x: scheduler.step(noise, 40, x).prev_sample, (torch.randn(1, 3, 4, 4), torch.randn(1, 3, 4, 4))


@use("ptwt", "wavelets", "a transform of images and a continuous one of signals")
def two_dimensions():
    import ptwt

    def f(x):
        low, *details = ptwt.wavedec2(x, "haar", level=2)
        return low, *(part for level in details for part in level)

    return f, (torch.randn(2, 16, 16),)


@use("transformers", "vision", "objects in an image, with what is done with a detector's results (DETR)")
def objects():
    from transformers import DetrConfig, DetrForObjectDetection, DetrImageProcessor, ResNetConfig

    backbone = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    config = DetrConfig(
        use_timm_backbone=False,
        backbone_config=backbone,
        d_model=16,
        num_queries=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        num_labels=3,
    )
    processor = DetrImageProcessor()

    def f(model, image):
        found = processor.post_process_object_detection(model(image), threshold=0.2, target_sizes=[(48, 64)] * 2)
        return [part for each in found for part in (each["scores"], each["labels"], each["boxes"])]

    return On(f, DetrForObjectDetection(config).eval()), (torch.randn(2, 3, 64, 64),)


@use("transformers", "segmentation", "regions of an image, with what is done with masks and classes (MaskFormer)")
def regions():
    from transformers import (
        DetrConfig,
        MaskFormerConfig,
        MaskFormerForInstanceSegmentation,
        MaskFormerImageProcessor as Processor,
        SwinConfig,
    )

    stages = [f"stage{i}" for i in range(1, 5)]
    few = {"num_heads": [1, 2, 2, 2], "window_size": 2, "out_features": stages}
    small = {"encoder_layers": 1, "encoder_ffn_dim": 32, "decoder_layers": 1, "decoder_ffn_dim": 32}
    config = MaskFormerConfig(
        backbone_config=SwinConfig(image_size=64, embed_dim=8, depths=[1, 1, 1, 1], **few),
        decoder_config=DetrConfig(d_model=32, num_queries=6, decoder_attention_heads=2, **small),
        fpn_feature_size=32,
        mask_feature_size=32,
        num_labels=3,
    )

    def f(model, image):
        outputs = model(image)
        found = Processor().post_process_semantic_segmentation(outputs, target_sizes=[(48, 64)] * 2)
        return [*found, outputs.class_queries_logits]

    return On(f, MaskFormerForInstanceSegmentation(config).eval()), (torch.randn(2, 3, 64, 64),)


@use(
    "torchkbnufft",
    "images",
    "a non-uniform Fourier transform, at samples that are known, and its adjoint",
    fails="its scripts run on other threads (`torch.jit.fork`), which are not in the call",
)
def nonuniform_transform():
    from torchkbnufft import KbNufft, KbNufftAdjoint

    forward, adjoint, places = KbNufft(im_size=(8, 8)), KbNufftAdjoint(im_size=(8, 8)), torch.rand(2, 20) * 2 - 1

    def f(image):
        samples = forward(torch.complex(image, image.flip(-1)), places)
        return samples.abs(), adjoint(samples, places).real

    return f, (torch.randn(1, 2, 8, 8),)
