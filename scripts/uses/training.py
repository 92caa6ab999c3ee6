"""Training, and what is measured then."""

import copy

import torch

from scripts.uses.use import On, use


@use("torchmetrics", "metrics", "the structural similarity of images")
def similarity():
    from torchmetrics.functional.image import structural_similarity_index_measure

    images = torch.rand(2, 3, 16, 16), torch.rand(2, 3, 16, 16)
    return lambda x, y: structural_similarity_index_measure(x, y, data_range=1.0), images


def _trained(make, steps: int = 3):
    """A few steps of an optimizer on a regression, as a function of its data."""

    def train(x, y):
        weight = torch.nn.Parameter(torch.ones(3, 2))
        optimizer = make([weight])
        for _ in range(steps):
            optimizer.zero_grad()
            loss = (x @ weight - y).square().mean()
            loss.backward()
            optimizer.step()
        return weight.detach(), loss.detach()

    return train, (torch.randn(8, 3), torch.randn(8, 2))


@use("torch-optimizer", "optimizers", "steps of AdaBelief", gradients=False)
def belief():
    import torch_optimizer

    return _trained(lambda weights: torch_optimizer.AdaBelief(weights, lr=0.1))


@use("lion-pytorch", "optimizers", "steps of Lion", gradients=False)
def lion():
    from lion_pytorch import Lion

    return _trained(lambda weights: Lion(weights, lr=0.1, weight_decay=0.01))


@use("schedulefree", "optimizers", "steps of schedule-free AdamW", gradients=False)
def schedule_free():
    from schedulefree import AdamWScheduleFree

    def make(weights):
        optimizer = AdamWScheduleFree(weights, lr=0.1, warmup_steps=2)
        optimizer.train()
        return optimizer

    return _trained(make)


@use("prodigyopt", "optimizers", "steps of Prodigy, which finds its rate", gradients=False)
def prodigy():
    from prodigyopt import Prodigy

    return _trained(lambda weights: Prodigy(weights, lr=1.0), steps=2)


@use("higher", "meta-learning", "a step of training that gradients go through")
def inner_step():
    import higher

    model = torch.nn.Linear(3, 2)

    def f(model, x, y):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with higher.innerloop_ctx(model, optimizer, copy_initial_weights=False) as (fast, steps):
            for _ in range(2):
                steps.step((fast(x) - y).square().mean())
            return (fast(x) - y).square().mean()

    return On(f, model), (torch.randn(6, 3), torch.randn(6, 2))


@use("ema-pytorch", "optimizers", "averages of weights", gradients=False)
def averages():
    from ema_pytorch import EMA

    fixed = torch.nn.Linear(3, 2)

    def f(x):
        model = copy.deepcopy(fixed)
        ema = EMA(model, beta=0.9, update_after_step=0, update_every=1, include_online_model=False)
        for scale in (1.0, 2.0):
            model.weight.data.mul_(1 + x.mean() * scale)
            ema.update()
        return ema.ema_model(x)

    return f, (torch.randn(4, 3),)


@use("torch-ema", "optimizers", "averages of weights, put in their place", gradients=False)
def moving_average():
    from torch_ema import ExponentialMovingAverage

    def f(x):
        weight = torch.nn.Parameter(torch.ones(3))
        ema = ExponentialMovingAverage([weight], decay=0.9)
        for row in x:
            weight.data.add_(row)
            ema.update()
        with ema.average_parameters():
            return weight.detach().clone()

    return f, (torch.randn(4, 3),)


@use("torchjd", "optimizers", "a direction that suits all objectives")
def without_conflict():
    from torchjd.aggregation import AlignedMTL

    return lambda x: AlignedMTL()(x), (torch.randn(3, 8),)


@use("captum", "interpretation", "attributions by integrated gradients", gradients=False)
def attributions():
    from captum.attr import IntegratedGradients

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    explain = IntegratedGradients(model, multiply_by_inputs=True)
    return lambda x: explain.attribute(x, target=1, n_steps=5), (torch.randn(3, 4),)


@use("pytorch-metric-learning", "losses", "the contrastive loss of examples of a class")
def contrastive():
    from pytorch_metric_learning import losses

    labels, loss = torch.tensor([0, 0, 1, 1, 2, 2]), losses.NTXentLoss(temperature=0.2)
    return lambda x: loss(x, labels), (torch.randn(6, 8),)


@use("pytorch-metric-learning", "losses", "a loss of triplets, averaged over those that are not met")
def triplets():
    from pytorch_metric_learning import losses

    labels, loss = torch.tensor([0, 0, 1, 1, 2, 2]), losses.TripletMarginLoss(margin=0.3)
    return lambda x: loss(x, labels), (torch.randn(6, 8),)


@use("piq", "metrics", "similarities of images: multi-scale, and of gradients")
def image_quality():
    import piq

    images = torch.rand(2, 3, 48, 48), torch.rand(2, 3, 48, 48)
    return lambda x, y: (piq.ssim(x, y, kernel_size=7), piq.gmsd(x, y), piq.haarpsi(x, y)), images


@use("pytorch-msssim", "metrics", "multi-scale structural similarity")
def multi_scale():
    from pytorch_msssim import ms_ssim

    images = torch.rand(1, 1, 48, 48), torch.rand(1, 1, 48, 48)
    return lambda x, y: ms_ssim(x, y, data_range=1.0, win_size=3), images


@use("lpips", "metrics", "a perceptual distance of images")
def perceptual():
    import lpips

    model = lpips.LPIPS(net="squeeze", pretrained=False, pnet_rand=True, verbose=False)
    return model.eval(), (torch.rand(1, 3, 32, 32), torch.rand(1, 3, 32, 32))


@use("brevitas", "quantisation", "a layer with quantised weights and activations, for training")
def quantised():
    from brevitas.nn import QuantLinear, QuantReLU

    model = torch.nn.Sequential(QuantLinear(6, 5, bias=True, weight_bit_width=4), QuantReLU(bit_width=4))
    return model.eval(), (torch.randn(4, 6),)


@use("stable-baselines3", "reinforcement learning", "actions' values, densities and entropies of a policy")
def policy():
    import gymnasium
    import numpy as np
    from stable_baselines3.common.policies import ActorCriticPolicy

    seen = gymnasium.spaces.Box(-np.ones(4, np.float32), np.ones(4, np.float32))
    done = gymnasium.spaces.Box(-np.ones(2, np.float32), np.ones(2, np.float32))
    model = ActorCriticPolicy(seen, done, lambda _: 1e-3, net_arch=[8])
    return On(lambda model, x, a: model.evaluate_actions(x, a), model), (torch.randn(5, 4), torch.randn(5, 2))


@use("tensordict", "reinforcement learning", "a module that reads and writes a dictionary of tensors")
def dictionaries():
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule, TensorDictSequential

    first = TensorDictModule(torch.nn.Linear(4, 3), in_keys=["seen"], out_keys=["hidden"])
    second = TensorDictModule(torch.nn.Tanh(), in_keys=["hidden"], out_keys=["action"])

    def f(model, x):
        return model(TensorDict({"seen": x}, batch_size=[5]))["action"]

    return On(f, TensorDictSequential(first, second)), (torch.randn(5, 4),)


@use("pytorch-tabnet", "tabular data", "a network that attends to columns")
def tabnet():
    from pytorch_tabnet.tab_network import TabNet

    groups = torch.eye(6)
    return TabNet(6, 2, n_d=4, n_a=4, n_steps=2, group_attention_matrix=groups).eval(), (torch.randn(8, 6),)


@use("rtdl-revisiting-models", "tabular data", "a transformer over columns")
def column_transformer():
    from rtdl_revisiting_models import FTTransformer

    sizes = {"n_blocks": 1, "d_block": 16, "attention_n_heads": 2, "attention_dropout": 0.0, "residual_dropout": 0.0}
    sizes |= {"ffn_d_hidden": None, "ffn_d_hidden_multiplier": 2.0, "ffn_dropout": 0.0}
    model = FTTransformer(n_cont_features=3, cat_cardinalities=[4, 5], d_out=2, **sizes)
    return model.eval(), (torch.randn(6, 3), torch.randint(4, (6, 2)))


@use("rtdl-num-embeddings", "tabular data", "periodic embeddings of numbers")
def number_embeddings():
    from rtdl_num_embeddings import PeriodicEmbeddings

    return PeriodicEmbeddings(3, 8, lite=False), (torch.randn(6, 3),)


@use("tabm", "tabular data", "an ensemble in one network")
def ensemble():
    from tabm import TabM

    model = TabM(
        n_num_features=4,
        cat_cardinalities=[3],
        d_out=2,
        n_blocks=2,
        d_block=16,
        dropout=0.0,
        k=4,
        start_scaling_init="normal",
    )
    return model.eval(), (torch.randn(6, 4), torch.randint(3, (6, 1)))


@use("pytorch-tcn", "time series", "a causal convolutional network")
def causal_convolutions():
    from pytorch_tcn import TCN

    return TCN(num_inputs=3, num_channels=[8, 8], kernel_size=3, dropout=0.0).eval(), (torch.randn(2, 3, 16),)


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


@use("pytorch-metric-learning", "losses", "losses with proxies of classes")
def proxies():
    from pytorch_metric_learning.losses import ArcFaceLoss, ProxyAnchorLoss

    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    return On(lambda a, b, x: (a(x, labels), b(x, labels)), ArcFaceLoss(3, 8), ProxyAnchorLoss(3, 8)), (
        torch.randn(6, 8),
    )


@use("captum", "interpretation", "saliency and the gradient times the input", gradients=False)
def saliency():
    from captum.attr import InputXGradient, Saliency

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    return lambda x: (Saliency(model).attribute(x, target=1), InputXGradient(model).attribute(x, target=0)), (
        torch.randn(3, 4),
    )


@use("torchopt", "training", "a loss after two differentiable steps of Adam")
def differentiable_steps():
    import torchopt

    model = torch.nn.Linear(3, 1)

    def f(model, x, y):
        def loss(parameters):
            return torch.nn.functional.mse_loss(torch.nn.functional.linear(x, *parameters), y)

        optimizer, parameters = torchopt.adam(lr=0.1), tuple(model.parameters())
        state = optimizer.init(parameters)
        for _ in range(2):
            gradients = torch.autograd.grad(loss(parameters), parameters, create_graph=True)
            updates, state = optimizer.update(gradients, state, inplace=False)
            parameters = torchopt.apply_updates(parameters, updates, inplace=False)
        return loss(parameters)

    return On(f, model), (torch.randn(4, 3), torch.randn(4, 1))
