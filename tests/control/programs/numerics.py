"""Solvers, searches and iterations that end when they have converged."""

import itertools
import math

import torch

from tests.control.programs.table import drawn, program

SPD = drawn(6, 6) @ drawn(6, 6).T + 4 * torch.eye(6)
"""A matrix that is symmetric and positive."""

_WEIGHT = drawn(3, 3, seed=1) * 0.5


def _field(t, y):
    """A differential equation's right side."""
    return torch.tanh(y @ _WEIGHT.to(y.dtype)) - 0.2 * y + 0.1 * torch.sin(3 * t)


def _error(difference, y, other, rtol=1e-3, atol=1e-4):
    scale = atol + rtol * torch.maximum(y.abs(), other.abs())
    return (difference / scale).pow(2).mean().sqrt()


STARTS = [drawn(3, seed=seed, scale=scale) for seed, scale in ((2, 1.0), (3, 2.0), (4, 0.3))]
"""Where solutions of the differential equation start."""


@program(*STARTS, tolerance=5e-3)
def adaptive_dopri5(y):
    """Dormand and Prince's method, as people write it."""
    a = [
        [1 / 5],
        [3 / 40, 9 / 40],
        [44 / 45, -56 / 15, 32 / 9],
        [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
        [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
        [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
    ]
    c = [1 / 5, 3 / 10, 4 / 5, 8 / 9, 1, 1]
    low = [5179 / 57600, 0, 7571 / 16695, 393 / 640, -92097 / 339200, 187 / 2100, 1 / 40]
    t, h, end = torch.zeros(()), torch.full((), 0.5), 2.0
    first, rejected = _field(t, y), 0
    while t < end - 1e-6:
        h = torch.minimum(h, end - t)
        ks = [first]
        for row, node in zip(a, c, strict=True):
            ks.append(_field(t + node * h, y + h * sum(w * k for w, k in zip(row, ks, strict=True))))
        new = y + h * sum(w * k for w, k in zip(a[-1], ks[:-1], strict=True))
        error = _error(new - y - h * sum(w * k for w, k in zip(low, ks, strict=True)), y, new)
        if error <= 1:
            t, y, first = t + h, new, ks[-1]
        else:
            rejected += 1
        h = h * (0.9 * error.clamp(min=1e-6) ** -0.2).clamp(0.2, 5.0)
    return y, rejected


@program(*STARTS, tolerance=5e-3)
def adaptive_heun(y):
    """Heun's method with Euler's as its estimate, and one return when the end is reached."""
    t, h, steps = torch.zeros(()), torch.full((), 0.2), 0
    while True:
        if t >= 1.0 - 1e-6 or steps >= 400:
            return y, steps
        h = torch.minimum(h, 1.0 - t)
        k1 = _field(t, y)
        k2 = _field(t + h, y + h * k1)
        error = _error(h * (k2 - k1) / 2, y, y + h * k1, 1e-2, 1e-3)
        steps += 1
        if error > 1:
            h = h * 0.5
            continue
        y, t = y + h * (k1 + k2) / 2, t + h
        if error < 0.25:
            h = h * 2


class _Bosh3:
    """Bogacki and Shampine's method as a class with state."""

    def __init__(self, y):
        self.t, self.y, self.h, self.accepted = torch.zeros(()), y, torch.full((), 0.3), 0
        self.first = _field(self.t, y)

    def step(self, end):
        h = torch.minimum(self.h, end - self.t)
        k1 = self.first
        k2 = _field(self.t + h / 2, self.y + h / 2 * k1)
        k3 = _field(self.t + 3 * h / 4, self.y + 3 * h / 4 * k2)
        new = self.y + h * (2 * k1 + 3 * k2 + 4 * k3) / 9
        k4 = _field(self.t + h, new)
        error = _error(h * (-5 * k1 / 72 + k2 / 12 + k3 / 9 - k4 / 8), self.y, new)
        if error <= 1:
            self.t, self.y, self.first = self.t + h, new, k4
            self.accepted += 1
        self.h = h * (0.9 * error.clamp(min=1e-6) ** (-1 / 3)).clamp(0.2, 5.0)


@program(*STARTS, tolerance=5e-3)
def adaptive_bosh3(y):
    solver, found = _Bosh3(y), []
    for end in (0.5, 1.0, 1.5):
        while solver.t < end - 1e-6:
            solver.step(end)
        found.append(solver.y)
    return torch.stack(found), solver.accepted


def _odeint(y, method):
    """By torchdiffeq, whose times are float64; in JAX they are float32, so other steps may be taken."""
    from torchdiffeq import odeint

    return odeint(_field, y, torch.linspace(0, 1, 3), method=method, rtol=1e-3, atol=1e-4)


@program(*STARTS[:2], library="torchdiffeq", tolerance=5e-3)
def torchdiffeq_dopri5(y):
    return _odeint(y, "dopri5")


@program(*STARTS[:2], library="torchdiffeq", tolerance=5e-3)
def torchdiffeq_dopri8(y):
    return _odeint(y, "dopri8")


@program(*STARTS[:2], library="torchdiffeq", tolerance=5e-3)
def torchdiffeq_bosh3(y):
    return _odeint(y, "bosh3")


@program(*STARTS[:2], library="torchdiffeq", tolerance=5e-3)
def torchdiffeq_adaptive_heun(y):
    return _odeint(y, "adaptive_heun")


class _FieldModule(torch.nn.Module):
    def forward(self, t, y):
        return _field(t, y)


@program(*STARTS[:2], library="torchdiffeq", gradients=1, tolerance=5e-3)
def torchdiffeq_adjoint(y):
    from torchdiffeq import odeint_adjoint

    return odeint_adjoint(_FieldModule(), y, torch.linspace(0, 1, 2), rtol=1e-3, atol=1e-4)


@program(*(y[None] for y in STARTS[:2]), library="torchode")
def torchode_dopri5(y):
    import torchode

    term = torchode.ODETerm(lambda t, y: torch.tanh(y) - 0.2 * y)
    method = torchode.Dopri5(term=term)
    solver = torchode.AutoDiffAdjoint(method, torchode.IntegralController(atol=1e-4, rtol=1e-3, term=term))
    problem = torchode.InitialValueProblem(y0=y, t_start=torch.zeros(1), t_end=torch.ones(1))
    return solver.solve(problem).ys


@program(*(y[None] for y in STARTS[:2]), library="torchsde")
def torchsde_adaptive(y):
    """Adaptive steps along a path that is no random one."""
    import torchsde

    class Path(torchsde.BaseBrownian):
        dtype, device, shape, levy_area_approximation = y.dtype, y.device, y.shape, "none"

        def __repr__(self):
            return "Path"

        def __call__(self, ta, tb=None, return_U=False, return_A=False):
            return torch.ones_like(y) * (torch.sin(torch.as_tensor(5.0 * tb)) - torch.sin(torch.as_tensor(5.0 * ta)))

        def size(self):
            return y.shape

    class Equation(torchsde.SDEIto):
        def __init__(self):
            super().__init__(noise_type="diagonal")

        def f(self, t, y):
            return -0.5 * y

        def g(self, t, y):
            return 0.2 * torch.ones_like(y)

    ts = torch.linspace(0, 0.5, 2)
    return torchsde.sdeint(Equation(), y, ts, bm=Path(), method="euler", adaptive=True, rtol=1e-2, atol=1e-2, dt=0.1)


@program(torch.tensor([1.0, 3.0, 9.0]), torch.tensor([0.5, 0.1, 50.0]))
def newton(x):
    """Square roots of two, from anywhere."""
    steps = 0
    while (x * x - 2).abs().max() > 1e-4:
        x = x - (x * x - 2) / (2 * x)
        steps += 1
    return x, steps


@program(*(torch.tensor(c) for c in (1.0, 8.0, 27.0)))
def bisection(c):
    low, high = torch.zeros(()), torch.full((), 10.0)
    while high - low > 1e-4:
        middle = (low + high) / 2
        if middle**3 > c:
            high = middle
        else:
            low = middle
    return low


@program(*(torch.tensor(c) for c in (2.0, 9.0, 0.5)))
def brent(c):
    """Brent's method: inverse quadratic steps where they are good, and bisection elsewhere."""

    def f(x):
        return x**3 + x - c

    a, b = torch.full((), -4.0), torch.full((), 4.0)
    fa, fb = f(a), f(b)
    if fa.abs() < fb.abs():
        a, b, fa, fb = b, a, fb, fa
    last, f_last, before, bisected = a, fa, a, True
    for _ in range(40):
        if fb.abs() < 1e-4 or (b - a).abs() < 1e-5:
            break
        if fa != f_last and fb != f_last:
            s = a * fb * f_last / ((fa - fb) * (fa - f_last)) + b * fa * f_last / ((fb - fa) * (fb - f_last))
            s = s + last * fa * fb / ((f_last - fa) * (f_last - fb))
        else:
            s = b - fb * (b - a) / (fb - fa)
        low, high = torch.minimum((3 * a + b) / 4, b), torch.maximum((3 * a + b) / 4, b)
        step = (b - last).abs() if bisected else (last - before).abs()
        bisected = bool(s < low) or bool(s > high) or bool((s - b).abs() >= step / 2)
        if bisected:
            s = (a + b) / 2
        fs = f(s)
        before, last, f_last = last, b, fb
        if fa * fs < 0:
            b, fb = s, fs
        else:
            a, fa = s, fs
        if fa.abs() < fb.abs():
            a, b, fa, fb = b, a, fb, fa
    return b


@program(*(torch.tensor(c) for c in (2.0, 9.0, 0.5)))
def secant(c):
    x, y = torch.ones(()), torch.full((), 2.0)
    for step in range(30):
        fx, fy = x * x * x - c, y * y * y - c
        if (fy - fx).abs() < 1e-7:
            break
        x, y = y, y - fy * (y - x) / (fy - fx)
        if (y - x).abs() < 1e-4:
            return y, step
    return y, -1


@program(*(torch.tensor(c) for c in (0.3, 1.7, 2.9)))
def golden_section(c):
    ratio = (math.sqrt(5) - 1) / 2
    low, high = torch.zeros(()), torch.full((), 4.0)
    x, y = high - ratio * (high - low), low + ratio * (high - low)
    while high - low > 1e-2:
        if (x - c) ** 2 < (y - c) ** 2:
            high, y = y, x
            x = high - ratio * (high - low)
        else:
            low, x = x, y
            y = low + ratio * (high - low)
    return (low + high) / 2


def _rosenbrock(x):
    return (1 - x[0]) ** 2 + 10 * (x[1] - x[0] ** 2) ** 2


def _rosenbrock_gradient(x):
    slope = 40 * x[0] * (x[1] - x[0] ** 2)
    return torch.stack([-2 * (1 - x[0]) - slope, 20 * (x[1] - x[0] ** 2)])


POINTS = [torch.tensor(x) for x in ([-0.5, 1.0], [0.5, 0.2], [1.0, 1.0])]
"""Where minimizers begin."""


@program(*POINTS, gradients=1)
def armijo(x):
    """One step along the gradient that decreases enough."""
    g, t = _rosenbrock_gradient(x), 1.0
    value = _rosenbrock(x)
    for _ in range(12):
        if _rosenbrock(x - t * g) <= value - 1e-4 * t * (g @ g):
            break
        t = t * 0.5
    return x - t * g, t


@program(*POINTS, tolerance=1e-2)
def lbfgs(x):
    """Limited memory, with a memory of the last three steps and a line search."""
    g, memory = _rosenbrock_gradient(x), []
    for _ in range(6):
        if g.norm() < 1e-3:
            break
        q, alphas = g, []
        for s, y, rho in reversed(memory):
            alphas.append(rho * (s @ q))
            q = q - alphas[-1] * y
        if memory:
            s, y, _ = memory[-1]
            q = q * (s @ y) / (y @ y)
        for (s, y, rho), alpha in zip(memory, reversed(alphas), strict=True):
            q = q + s * (alpha - rho * (y @ q))
        t = 1.0
        for _ in range(8):
            if _rosenbrock(x - t * q) <= _rosenbrock(x) - 1e-4 * t * (g @ q):
                break
            t = t * 0.5
        new = x - t * q
        g_new = _rosenbrock_gradient(new)
        s, y = new - x, g_new - g
        memory = [*memory[-2:], (s, y, 1 / (s @ y).clamp(min=1e-6))]
        x, g = new, g_new
    return _rosenbrock(x)


@program(*POINTS)
def newton_with_damping(x):
    """Newton's method by torch.func, with more damping where a step is worse."""
    damping, value, worse = torch.full((), 1.0), _rosenbrock(x), 0
    for _ in range(15):
        g = torch.func.grad(_rosenbrock)(x)
        if g.norm() < 1e-3:
            break
        h = torch.func.hessian(_rosenbrock)(x)
        new = x - torch.linalg.solve(h + damping * torch.eye(2), g)
        if _rosenbrock(new) < value:
            x, value, damping = new, _rosenbrock(new), damping * 0.3
        else:
            damping = damping * 4
            worse += 1
    return x, worse


@program(*POINTS)
def gradient_descent_by_backward(x):
    """A user's loop with `.backward()` that ends when the gradient is small."""
    x, steps = x.clone().requires_grad_(), 0
    for _ in range(5):
        loss = _rosenbrock(x)
        loss.backward()
        assert x.grad is not None
        with torch.no_grad():
            if x.grad.norm() < 1e-2:
                break
            x -= 0.02 * x.grad
            x.grad.zero_()
        steps += 1
    return x.detach(), steps


@program((SPD, drawn(6)), (SPD * 2, drawn(6, seed=5)))
def conjugate_gradient(a, b):
    x, r = torch.zeros_like(b), b
    p, rs, k = r, r @ r, 0
    while rs.sqrt() > 1e-4 and k < 50:
        ap = a @ p
        alpha = rs / (p @ ap)
        x, r = x + alpha * p, r - alpha * ap
        new = r @ r
        p, rs, k = r + new / rs * p, new, k + 1
    return x


@program(SPD, SPD + torch.diag(torch.arange(6.0)))
def power_iteration(a):
    v = torch.ones(6) / math.sqrt(6)
    for _ in range(300):
        w = a @ v
        w = w / w.norm()
        if (w - v).norm() < 1e-4:
            break
        v = w
    return v @ a @ v


@program(torch.rand(5, 5, generator=torch.Generator().manual_seed(0)), torch.eye(5))
def sinkhorn(cost):
    k, u, v, error = torch.exp(-cost / 0.5), torch.ones(5) / 5, torch.ones(5) / 5, torch.ones(())
    while error > 1e-5:
        u = 0.2 / (k @ v)
        v = 0.2 / (k.T @ u)
        error = (u * (k @ v) - 0.2).abs().sum()
    return u[:, None] * k * v


@program(drawn(12, 2) + torch.tensor([[3.0, 0]]) * (torch.arange(12)[:, None] % 2), drawn(12, 2, seed=8))
def k_means(points):
    """Until no point changes its cluster."""
    centers, labels = points[:3].clone(), torch.full((12,), -1)
    for _ in range(20):
        new = torch.cdist(points, centers).argmin(1)
        if torch.equal(new, labels):
            break
        labels = new
        for i in range(3):
            mask = (labels == i).float()
            if mask.sum() > 0:
                centers[i] = (points * mask[:, None]).sum(0) / mask.sum()
    return centers, labels


@program(*(torch.tensor(x) for x in (0.3, 2.0, 5.0)))
def adaptive_simpson(k):
    """A stack of intervals in a tensor."""

    def rule(a, b):
        return (b - a) / 6 * (torch.sin(k * a) + 4 * torch.sin(k * (a + b) / 2) + torch.sin(k * b))

    stack, top, total = torch.zeros(16, 2), torch.zeros((), dtype=torch.long), torch.zeros(())
    stack[0, 1] = 2.0
    while top >= 0:
        a, b = stack[top]
        middle = (a + b) / 2
        whole, left, right = rule(a, b), rule(a, middle), rule(middle, b)
        if (left + right - whole).abs() < 1e-4 or top >= 14:
            total = total + left + right
            top = top - 1
        else:
            stack[top] = torch.stack([a, middle])
            stack[top + 1] = torch.stack([middle, b])
            top = top + 1
    return total


@program(*(torch.tensor(x) for x in (0.3, 2.0, 5.0)))
def recursive_simpson(k):
    """Recursion to a depth that is known."""

    def rule(a, b):
        return (b - a) / 6 * (torch.sin(k * a) + 4 * torch.sin(k * (a + b) / 2) + torch.sin(k * b))

    def integral(a, b, whole, depth):
        middle = (a + b) / 2
        left, right = rule(a, middle), rule(middle, b)
        if depth == 0 or (left + right - whole).abs() < 1e-4:
            return left + right
        return integral(a, middle, left, depth - 1) + integral(middle, b, right, depth - 1)

    return integral(0.0, 2.0, rule(0.0, 2.0), 3)


@program(*POINTS)
def trust_region(x):
    radius, tried = torch.full((), 0.5), 0
    for _ in range(12):
        g = _rosenbrock_gradient(x)
        step = -g * (radius / g.norm().clamp(min=1e-6)).clamp(max=1.0) * 0.1
        ratio = (_rosenbrock(x) - _rosenbrock(x + step)) / -(g @ step).clamp(max=-1e-6)
        if ratio < 0.25:
            radius = radius * 0.5
        elif ratio > 0.75 and step.norm() > 0.01:
            radius = torch.minimum(radius * 2, torch.ones(()))
        if ratio > 0.1:
            x = x + step
            tried += 1
    return x, radius, tried


@program(*((x, drawn(20, 2, seed=9), torch.rand(20, generator=torch.Generator().manual_seed(1))) for x in POINTS))
def simulated_annealing(x, moves, uniforms):
    best, temperature = x, 1.0
    for move, u in zip(moves, uniforms, strict=True):
        new = x + move * 0.2
        change = _rosenbrock(new) - _rosenbrock(x)
        if change < 0 or u < torch.exp(-change / temperature):
            x = new
            if _rosenbrock(x) < _rosenbrock(best):
                best = x
        temperature *= 0.9
    return best


@program(
    *(
        (drawn(2, seed=i), drawn(15, 2, seed=9), torch.rand(15, generator=torch.Generator().manual_seed(i)))
        for i in (0, 1)
    )
)
def metropolis(x, moves, uniforms):
    """MCMC with rejection; the random numbers are given."""
    samples, accepted = [], 0
    with torch.no_grad():
        for move, u in zip(moves, uniforms, strict=True):
            proposed = x + move
            if u.log() < (x.pow(2).sum() - proposed.pow(2).sum()) / 2:
                x = proposed
                accepted += 1
            samples.append(x)
    return torch.stack(samples), accepted


@program(*(torch.rand(30, generator=torch.Generator().manual_seed(i)) for i in (0, 1)))
def rejection_sampling(uniforms):
    """Draws until one is accepted, from given numbers."""
    i = 0
    while uniforms[2 * i + 1] > uniforms[2 * i] ** 2 and i < 14:
        i += 1
    return uniforms[2 * i], i


@program(*((torch.tensor(a), torch.tensor(b)) for a, b in ((12, 18), (35, 14), (7, 5))))
def greatest_divisor(a, b):
    while b != 0:
        a, b = b, a % b
    return a


@program(*(torch.tensor(n) for n in (1, 6, 7)))
def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@program(torch.rand(5, 5, generator=torch.Generator().manual_seed(0)) * 3, torch.full((5, 5), 2.0))
def shortest_paths(weights):
    """Relaxes until nothing changes."""
    distance = torch.full((5,), 100.0)
    distance[0] = 0.0
    changed = True
    while changed:
        new = torch.minimum(distance, (distance[:, None] + weights).amin(0))
        changed = bool((new < distance).any())
        distance = new
    return distance


@program(*(drawn(3, seed=i) for i in (0, 1, 2)), gradients=2)
def fixed_point(x):
    """An equilibrium, within steps that are bounded."""
    z = torch.zeros(3)
    for _ in range(25):
        new = torch.tanh(z @ _WEIGHT + x)
        if (new - z).norm() < 1e-3:
            z = new
            break
        z = new
    return z


@program(*(drawn(4, seed=i) for i in (0, 1, 2)))
def bubble_sort(x):
    x = x.clone()
    for i, j in itertools.combinations(range(4), 2):
        if x[i] > x[j]:
            x[i], x[j] = x[j].clone(), x[i].clone()
    return x


@program(*(drawn(3, 3, seed=i) for i in (0, 1, 2)))
def gaussian_elimination(a):
    """Elimination with a pivot that data choose."""
    a, sign = a.clone(), 1.0
    for i in range(3):
        pivot = i
        for j in range(i + 1, 3):
            if a[j, i].abs() > a[pivot, i].abs():
                pivot = j
        if pivot != i:
            a[[i, pivot]] = a[[pivot, i]]
            sign = -sign
        for j in range(i + 1, 3):
            a[j] = a[j] - a[i] * (a[j, i] / a[i, i])
    return sign * a.diagonal().prod()
