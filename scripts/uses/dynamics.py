"""Differential equations."""

import torch

from scripts.uses.use import On, use


@use("torchdiffeq", "differential equations", "a neural ODE by fixed steps, with its adjoint")
def neural_ode():
    from torchdiffeq import odeint_adjoint

    field = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    right = On(lambda field, t, y: field(y), field)
    times = torch.linspace(0, 1, 4)
    return On(lambda f, y: odeint_adjoint(f, y, times, method="rk4"), right), (torch.randn(3, 2),)


@use("torchdiffeq", "differential equations", "a neural ODE by adaptive steps of Dormand and Prince, with its adjoint")
def adaptive():
    from torchdiffeq import odeint_adjoint

    field = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    right = On(lambda field, t, y: field(y), field)
    times = torch.linspace(0, 1, 3)
    return On(lambda f, y: odeint_adjoint(f, y, times, rtol=1e-4, atol=1e-5), right), (torch.randn(3, 2),)


@use("torchsde", "differential equations", "a path of a neural SDE for given noise")
def stochastic():
    import torchsde

    class Equation(torch.nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self):
            super().__init__()
            self.drift, self.noise = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

        def f(self, t, y):
            return self.drift(y).tanh()

        def g(self, t, y):
            return self.noise(y).sigmoid() / 10

    class Given(torchsde.BaseBrownian):
        dtype, device, shape, levy_area_approximation = torch.float32, torch.device("cpu"), (3, 2), "none"

        def __init__(self, noise):
            self.noise = noise

        def __call__(self, ta, tb=None, return_U=False, return_A=False):
            return self.noise[round(float(ta) * 4)] * (tb - ta) ** 0.5

        def __repr__(self):
            return "given"

    times = torch.linspace(0, 1, 3)

    def path(equation, y, noise):
        return torchsde.sdeint(equation, y, times, bm=Given(noise), dt=0.25, method="euler")

    return On(path, Equation()), (torch.randn(3, 2), torch.randn(4, 3, 2))


@use("snntorch", "spiking networks", "leaky neurons with surrogate gradients over time")
def spikes():
    import snntorch

    layer, neuron = torch.nn.Linear(6, 5), snntorch.Leaky(beta=0.9, threshold=0.3)

    def run(layer, neuron, x):
        memory, spikes = neuron.init_leaky(), []
        for step in x:
            spike, memory = neuron(layer(step), memory)
            spikes.append(spike)
        return torch.stack(spikes), memory

    return On(run, layer, neuron), (torch.randn(4, 3, 6),)


@use("neuraloperator", "physics", "a Fourier neural operator")
def fourier_operator():
    from neuralop.models import FNO

    return FNO(n_modes=(4, 4), in_channels=1, out_channels=1, hidden_channels=8, n_layers=2), (torch.randn(2, 1, 8, 8),)


@use("torchquad", "physics", "an integral by Simpson's rule, in the borders")
def quadrature():
    from torchquad import Simpson

    rule = Simpson()
    return (
        lambda scale: rule.integrate(
            lambda x: (scale * x).sin().prod(1), dim=2, N=81, integration_domain=[[0, 1], [0, 2]], backend="torch"
        ),
        (torch.rand(1),),
    )


@use("torch-harmonics", "physics", "a transform to spherical harmonics and back")
def spherical_transform():
    import torch_harmonics

    there = torch_harmonics.RealSHT(8, 16, grid="equiangular").float()
    back = torch_harmonics.InverseRealSHT(8, 16, grid="equiangular").float()
    return On(lambda there, back, x: back(there(x) * 2), there, back), (torch.randn(2, 8, 16),)


@use("pykan", "physics", "a network of splines (KAN)")
def splines():
    from kan.KANLayer import KANLayer

    return On(lambda layer, x: layer(x)[0], KANLayer(in_dim=3, out_dim=4, num=5, k=3)), (torch.rand(6, 3) * 2 - 1,)


@use("torchode", "differential equations", "a step of Tsitouras' solver, in parallel for each example")
def parallel_steps():
    import torchode

    term = torchode.ODETerm(lambda t, y: -y.sin() * t[:, None].exp())
    method = torchode.Tsit5(term=term)

    def step(y, dt):
        problem, running = torchode.InitialValueProblem(y, torch.zeros(3), torch.ones(3)), torch.ones(3) > 0
        stats = {"n_f_evals": torch.zeros(3, dtype=torch.long)}
        state = method.init(None, problem, None, stats=stats, args=None)
        result, *_ = method.step(None, running, y, problem.t_start, dt, state, stats=stats, args=None)
        return result.y, result.error_estimate

    return step, (torch.randn(3, 2), torch.rand(3) / 10)


@use("torchcde", "differential equations", "a neural controlled equation along a spline of data")
def controlled():
    import torchcde

    class Field(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 8)

        def forward(self, t, z):
            return self.layer(z).tanh().unflatten(-1, (4, 2))

    coefficients = torchcde.hermite_cubic_coefficients_with_backward_differences(torch.randn(3, 5, 2))

    def run(field, coefficients, z):
        path = torchcde.CubicSpline(coefficients)
        return torchcde.cdeint(
            X=path, func=field, z0=z, t=path.interval, adjoint=False, method="rk4", options={"step_size": 1.0}
        )

    return On(run, Field()), (coefficients, torch.randn(3, 4))


@use("torchdiffeq", "differential equations", "a neural ODE by fixed steps, differentiated step by step")
def unrolled():
    from torchdiffeq import odeint

    field = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    times = torch.linspace(0, 1, 4)
    return On(lambda f, y: odeint(lambda t, y: f(y), y, times, method="rk4"), field), (torch.randn(3, 2),)


@use("xitorch", "linear algebra", "eigenpairs and solutions of a symmetric operator")
def symmetric_operator():
    import xitorch.linalg

    def f(matrix, right):
        operator = xitorch.LinearOperator.m(matrix @ matrix.mT + 3 * torch.eye(4), is_hermitian=True)
        values, vectors = xitorch.linalg.symeig(operator, neig=2)
        return values, vectors.abs(), xitorch.linalg.solve(operator, right)

    return f, (torch.randn(4, 4), torch.randn(4, 2))


@use("torchode", "differential equations", "a neural ODE by adaptive steps for each example, with its adjoint")
def parallel_ode():
    import torchode

    class Field(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))

        def forward(self, t, y):
            return self.layers(y)

    term = torchode.ODETerm(Field())
    control = torchode.IntegralController(atol=1e-5, rtol=1e-4, term=term)
    solver = torchode.BacksolveAdjoint(term, torchode.Dopri5(term=term), control)

    def run(solver, y):
        begin = torch.zeros(len(y))
        return solver.solve(torchode.InitialValueProblem(y, begin, begin + 1)).ys

    return On(run, solver), (torch.randn(3, 2),)


@use("torch-kmeans", "clustering", "centers and labels of points", gradients=False)
def centers():
    from torch_kmeans import KMeans

    def run(points):
        found = KMeans(n_clusters=3, max_iter=20, num_init=1, verbose=False)(points, centers=points[:, None, :3])
        return found.centers, found.labels

    return run, (torch.randn(2, 12, 2),)
