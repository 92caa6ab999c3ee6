"""Densities and processes."""

import torch

from scripts.uses.use import On, use


@use("nflows", "normalizing flows", "the density of a coupling flow of rational quadratic splines")
def neural_splines():
    from nflows.distributions import StandardNormal
    from nflows.flows import Flow
    from nflows.nn.nets import ResidualNet
    from nflows.transforms import PiecewiseRationalQuadraticCouplingTransform

    transform = PiecewiseRationalQuadraticCouplingTransform(
        torch.tensor([1, 0, 1, 0]),
        lambda inside, outside: ResidualNet(inside, outside, hidden_features=16, num_blocks=1),
        num_bins=5,
        tails="linear",
        tail_bound=2.0,
    )
    return On(lambda flow, x: flow.log_prob(x), Flow(transform, StandardNormal([4]))), (torch.randn(8, 4),)


@use("zuko", "normalizing flows", "the conditional density of a neural spline flow")
def zuko():
    import zuko

    flow = zuko.flows.NSF(features=3, context=2, transforms=2, hidden_features=(16, 16))
    return On(lambda flow, x, c: flow(c).log_prob(x), flow), (torch.randn(5, 3), torch.randn(5, 2))


@use("gpytorch", "Gaussian processes", "the exact marginal likelihood with a kernel of lengthscales")
def marginal_likelihood():
    import gpytorch

    class Process(gpytorch.models.ExactGP):
        def __init__(self, x, y, likelihood):
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2))

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    x, y = torch.rand(20, 2), torch.randn(20)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    process = Process(x, y, likelihood)
    total = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, process)

    def value(total, x, y):
        total.model.set_train_data(x, y, strict=False)
        return total(total.model(x), y)

    return On(value, total), (x, y)


@use("normflows", "normalizing flows", "the divergence of a flow of affine couplings")
def couplings():
    import normflows

    flows = []
    for _ in range(2):
        network = normflows.nets.MLP([1, 8, 2], init_zeros=False)
        flows += [normflows.flows.AffineCouplingBlock(network), normflows.flows.Permute(2, mode="swap")]
    model = normflows.NormalizingFlow(normflows.distributions.DiagGaussian(2), flows)
    return On(lambda model, x: model.forward_kld(x), model), (torch.randn(6, 2),)


@use("FrEIA", "normalizing flows", "an invertible network of GLOW's couplings")
def invertible():
    from FrEIA.framework import SequenceINN
    from FrEIA.modules import GLOWCouplingBlock, PermuteRandom

    network = SequenceINN(4)
    for seed in range(2):
        network.append(GLOWCouplingBlock, subnet_constructor=lambda inside, outside: torch.nn.Linear(inside, outside))
        network.append(PermuteRandom, seed=seed)
    return network, (torch.randn(5, 4),)


@use("gpytorch", "Gaussian processes", "a variational bound with inducing points")
def variational():
    import gpytorch
    from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

    class Process(gpytorch.models.ApproximateGP):
        def __init__(self, points):
            distribution = CholeskyVariationalDistribution(len(points))
            super().__init__(VariationalStrategy(self, points, distribution, learn_inducing_locations=True))
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5))

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    process, likelihood = Process(torch.rand(5, 2)), gpytorch.likelihoods.GaussianLikelihood()
    process.variational_strategy.variational_params_initialized.fill_(1)
    bound = gpytorch.mlls.VariationalELBO(likelihood, process, num_data=12)
    return On(lambda bound, x, y: bound(bound.model(x), y), bound), (torch.rand(12, 2), torch.randn(12))


@use(
    "linear_operator",
    "Gaussian processes",
    "solves and determinants of a structured matrix",
    fails="its backward asks which of the tensors that it has saved require a gradient",
)
def structured():
    from linear_operator.operators import DiagLinearOperator, KroneckerProductLinearOperator, to_linear_operator
    from linear_operator.settings import trace_mode

    def f(a, b, d, y):
        a, b = (to_linear_operator(x @ x.mT + torch.eye(3)) for x in (a, b))
        matrix = KroneckerProductLinearOperator(a, b) + DiagLinearOperator(d.exp())
        with trace_mode():  # no second attempts at a factorization
            return matrix.solve(y), matrix.logdet()

    return f, (torch.randn(3, 3), torch.randn(3, 3), torch.randn(9), torch.randn(9))


@use(
    "botorch",
    "Gaussian processes",
    "the expected improvement of candidates",
)
def improvement():
    from botorch.acquisition import LogExpectedImprovement
    from botorch.models import SingleTaskGP
    from linear_operator.settings import trace_mode

    x = torch.rand(8, 2, dtype=torch.float64)
    model = SingleTaskGP(x, (x.sin().sum(1, keepdim=True)))
    improvement = LogExpectedImprovement(model.eval(), best_f=0.8)

    def value(improvement, x):
        with trace_mode():  # no second attempts at a factorization
            return improvement(x)

    return On(value, improvement), (torch.rand(4, 1, 2, dtype=torch.float64),)


@use(
    "pyro-ppl",
    "probabilistic programs",
    "the density of a hierarchical model's trace",
    fails="hooks ask each gradient whether it is NaN; with `branches={'util.py:135': False}` it agrees",
)
def hierarchy():
    import pyro
    from pyro.distributions import HalfNormal, Normal

    def model(y):
        scale = pyro.sample("scale", HalfNormal(torch.tensor(2.0)))
        with pyro.plate("groups", 4):
            mean = pyro.sample("mean", Normal(0.0, scale))
            with pyro.plate("examples", 3):
                pyro.sample("y", Normal(mean, 1.0), obs=y)

    def density(y, scale, mean):
        conditioned = pyro.condition(model, data={"scale": scale.exp(), "mean": mean})
        return pyro.poutine.trace(conditioned).get_trace(y).log_prob_sum()

    return density, (torch.randn(3, 4), torch.tensor(0.3), torch.randn(4))


@use("torch-kde", "densities", "a kernel density estimate")
def kernel_density():
    from torchkde import KernelDensity

    return lambda data, x: KernelDensity(bandwidth=0.7).fit(data).score_samples(x), (
        torch.randn(9, 2),
        torch.randn(4, 2),
    )


@use("POT", "optimal transport", "Sinkhorn's divergence between weighted points")
def transport():
    import ot

    def f(x, y):
        weights = x.new_full((len(x),), 1 / len(x))
        return ot.sinkhorn2(weights, weights, ot.dist(x, y), reg=1.0, numItermax=10, warn=False)

    return f, (torch.randn(6, 2), torch.randn(6, 2))


@use(
    "geomloss",
    "optimal transport",
    "a debiased Sinkhorn loss of point clouds",
)
def sinkhorn_loss():
    from geomloss import SamplesLoss

    loss = SamplesLoss("sinkhorn", p=2, blur=0.3, scaling=0.5, diameter=6.0, backend="tensorized")
    return loss, (torch.randn(7, 2), torch.randn(7, 2))


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


@use("backpack-for-pytorch", "curvature", "per-sample gradients and the diagonal of the GGN", gradients=False)
def curvature_by_extensions():
    from backpack import backpack, extend
    from backpack.extensions import BatchGrad, DiagGGNExact

    model = extend(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)))
    loss = extend(torch.nn.CrossEntropyLoss())

    def f(model, x, labels):
        with backpack(BatchGrad(), DiagGGNExact()):
            loss(model(x), labels).backward()
        return [x for p in model.parameters() for x in (p.grad_batch, p.diag_ggn_exact)]

    return On(f, model), (torch.randn(4, 3), torch.randint(0, 2, (4,)))


@use("curvlinops-for-pytorch", "curvature", "products with the Hessian and the GGN", gradients=False)
def curvature_products():
    from curvlinops import GGNLinearOperator, HessianLinearOperator

    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    loss = torch.nn.CrossEntropyLoss()

    def f(model, x, labels, vector):
        of = model, loss, list(model.parameters()), [(x, labels)]
        return [make(*of, check_deterministic=False) @ vector for make in (HessianLinearOperator, GGNLinearOperator)]

    return On(f, model), (torch.randn(4, 3), torch.randint(0, 2, (4,)), torch.randn(26))
