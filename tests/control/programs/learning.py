"""Decoding, models whose depth or experts data decide, and training loops with conditions."""

import torch
from torch import nn

from tests.control.programs.table import drawn, program

_TABLE = drawn(6, 6, seed=11)
"""Scores of the next token after each token."""

_OTHER = _TABLE + drawn(6, 6, seed=12) * 0.3
"""Those of a smaller model."""


@program(*(drawn(6, seed=seed) for seed in (0, 1, 2)))
def greedy_decoding(bias):
    """Tokens until the end token, in a tensor."""
    tokens, token = torch.full((8,), -1), torch.zeros((), dtype=torch.long)
    for i in range(8):
        token = (_TABLE[token] + bias).argmax()
        tokens[i] = token
        if token == 5:
            break
    return tokens


@program(*(drawn(6, seed=seed) for seed in (0, 1, 2)))
def greedy_decoding_while(bias):
    """The same with `while` and a batch of which each row ends by itself."""
    tokens, done = torch.zeros(3, dtype=torch.long) + torch.arange(3), torch.zeros(3, dtype=torch.bool)
    found, n = torch.full((3, 8), -1), 0
    while not done.all() and n < 8:
        tokens = torch.where(done, tokens, (_TABLE[tokens] + bias).argmax(-1))
        found[:, n] = tokens
        done = done | (tokens == 5)
        n += 1
    return found, n


@program(*(drawn(6, seed=seed) for seed in (0, 1, 2)))
def beam_search(bias):
    """Two beams; one that has ended is kept, and the search ends when both have."""
    scores, tokens = torch.tensor([0.0, -100.0]), torch.zeros(2, 6, dtype=torch.long)
    last, done = torch.zeros(2, dtype=torch.long), torch.zeros(2, dtype=torch.bool)
    for i in range(6):
        if done.all():
            break
        step = torch.log_softmax(_TABLE[last] + bias, -1)
        step = torch.where(done[:, None], torch.full_like(step, -100.0), step)
        for beam in range(2):
            if done[beam]:
                step[beam, 5] = 0.0
        scores, which = (scores[:, None] + step).reshape(-1).topk(2)
        beams, last = which // 6, which % 6
        tokens, done = tokens[beams], done[beams] | (last == 5)
        tokens[:, i] = last
    return tokens, scores


@program(*((drawn(6, seed=seed), torch.rand(4, generator=torch.Generator().manual_seed(seed))) for seed in (0, 1, 2)))
def speculative_decoding(bias, uniforms):
    """Proposals of a small model, of which a larger one accepts the first few."""
    tokens, token, count = torch.full((8,), -1), torch.zeros((), dtype=torch.long), 0
    for _ in range(2):
        drafts, last = [], token
        for _ in range(3):
            last = (_OTHER[last] + bias).argmax()
            drafts.append(last)
        for draft, u in zip(drafts, uniforms, strict=False):
            large = torch.softmax(_TABLE[token] + bias, -1)
            small = torch.softmax(_OTHER[token] + bias, -1)
            if u > large[draft] / small[draft]:
                token = (large - small).argmax()
                tokens[count] = token
                count += 1
                break
            token = draft
            tokens[count] = token
            count += 1
        else:
            token = (_TABLE[token] + bias).argmax()
            tokens[count] = token
            count += 1
    return tokens, count


@program(*(drawn(5, 3, seed=seed) for seed in (0, 1, 2)))
def viterbi(emissions):
    """The best path by loops over states."""
    transitions, score, back = _TABLE[:3, :3], emissions[0], []
    for t in range(1, 5):
        new, pointers = [], []
        for j in range(3):
            best, where = score[0] + transitions[0, j], torch.zeros((), dtype=torch.long)
            for i in range(1, 3):
                other = score[i] + transitions[i, j]
                if other > best:
                    best, where = other, torch.full((), i)
            new.append(best + emissions[t, j])
            pointers.append(where)
        score = torch.stack(new)
        back.append(torch.stack(pointers))
    path = [score.argmax()]
    for pointers in reversed(back):
        path.append(pointers[path[-1]])
    return score.max(), torch.stack(path)


@program(*((drawn(6, 2, seed=seed).abs().cumsum(1), drawn(6, seed=seed).sigmoid()) for seed in (0, 3, 5)))
def greedy_nms(boxes, scores):
    keep = torch.zeros(6, dtype=torch.bool)
    scores = scores.clone()
    while scores.max() > 0:
        i = scores.argmax()
        keep[i] = True
        overlap = (torch.minimum(boxes[:, 1], boxes[i, 1]) - torch.maximum(boxes[:, 0], boxes[i, 0])).clamp(min=0)
        union = (boxes[:, 1] - boxes[:, 0]) + (boxes[i, 1] - boxes[i, 0]) - overlap
        scores[overlap / union > 0.5] = 0
        scores[i] = 0
    return keep


@program(*((drawn(5, 2, seed=seed).abs().cumsum(1), drawn(5, seed=seed)) for seed in (0, 1)))
def nms_by_loops(boxes, scores):
    """Two loops with `continue`, as in a reference implementation."""
    order, suppressed = scores.argsort(descending=True), torch.zeros(5, dtype=torch.bool)
    kept = 0
    for a in range(5):
        i = order[a]
        if suppressed[i]:
            continue
        kept += 1
        for b in range(a + 1, 5):
            j = order[b]
            overlap = torch.minimum(boxes[i, 1], boxes[j, 1]) - torch.maximum(boxes[i, 0], boxes[j, 0])
            if overlap > 0.3:
                suppressed[j] = True
    return suppressed, kept


_ROUTER = drawn(3, 3, seed=40)


class _Experts(nn.Module):
    """Experts of which those without tokens are not run."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        for i, expert in enumerate(self.experts):
            expert.load_state_dict({"weight": drawn(3, 3, seed=20 + i), "bias": drawn(3, seed=30 + i)})
        self.register_buffer("used", torch.zeros(3))

    def forward(self, x):
        which = (x @ _ROUTER).argmax(-1)
        counts, result = torch.bincount(which, minlength=3), torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            if counts[i] == 0:
                continue
            self.used[i] += 1
            result = result + expert(x) * (which == i)[:, None]
        return result, self.used * 1


@program(*(drawn(4, 3, seed=seed, scale=2.0) for seed in (0, 1, 2)), makes=True, gradients=1)
def mixture_of_experts():
    return _Experts().forward


@program(*(drawn(3, seed=seed) for seed in (0, 1, 2)), gradients=2)
def adaptive_computation(x):
    """Halts when the probabilities sum to one; what is left is the last weight."""
    state, halted, output, steps = x, torch.zeros(()), torch.zeros(3), 0
    for i in range(6):
        state = torch.tanh(state @ _TABLE[:3, :3] + x)
        p = torch.sigmoid(state.sum())
        steps += 1
        if halted + p > 0.99 or i == 5:
            output = output + (1 - halted) * state
            break
        output, halted = output + p * state, halted + p
    return output, steps


@program(*((drawn(3, seed=seed), torch.rand(6, generator=torch.Generator().manual_seed(seed))) for seed in (0, 1, 2)))
def ponder_net(x, uniforms):
    """Halts by chance, with given numbers, and keeps the probability of having halted there."""
    state, going, outputs = x, torch.ones(()), torch.zeros(3)
    for i in range(6):
        state = torch.tanh(state @ _TABLE[:3, :3])
        chance = torch.sigmoid(state.mean()) if i < 5 else torch.ones(())
        outputs, going = outputs + going * chance * state, going * (1 - chance)
        if uniforms[i] < chance:
            return outputs, going, i
    return outputs, going, 6


@program(*(drawn(3, seed=seed) for seed in (0, 1, 2)), gradients=2)
def early_exit(x):
    """Leaves a stack of layers when a head is sure."""
    for i in range(3):
        x = torch.relu(x @ _TABLE[i : i + 3, :3])
        scores = torch.softmax(x, -1)
        if scores.max() > 0.6:
            return scores
    return torch.softmax(x * 0.1, -1)


class _Scaler:
    """Dynamic scaling of the loss."""

    def __init__(self):
        self.scale, self.good, self.skipped = 2.0**10, 0, 0

    def step(self, w, gradient):
        gradient = gradient / self.scale
        if not torch.isfinite(gradient).all():
            self.scale, self.good = self.scale * 0.5, 0
            self.skipped += 1
            return w
        self.good += 1
        if self.good == 2:
            self.scale, self.good = self.scale * 2.0, 0
        return w - 0.1 * gradient


@program(drawn(3), torch.tensor([1.0, float("inf"), 2.0]), torch.tensor([1e36, 1.0, 2.0]))
def loss_scaling(x):
    scaler, w = _Scaler(), torch.ones(3)
    for _ in range(4):
        w = scaler.step(w, w * x * scaler.scale)
    return w, scaler.scale, scaler.skipped


@program(drawn(3), torch.tensor([1.0, float("nan"), 2.0]), gradients=1)
def nan_guard(x):
    loss = (x * x).sum()
    if torch.isnan(loss):
        loss = torch.nan_to_num(x).sum() * 0
    return loss


@program(drawn(3), drawn(3, scale=5.0), gradients=2)
def clipping_by_norm(x):
    g = x * 2
    norm = g.norm()
    if norm > 1.0:
        g = g / norm
    return g, norm


@program(drawn(3), drawn(3, scale=5.0))
def clip_grad_norm(x):
    """PyTorch's own, after `.backward()`."""
    w = nn.Parameter(torch.ones(3))
    (w * x).pow(2).sum().backward()
    norm = nn.utils.clip_grad_norm_([w], 1.0)
    assert w.grad is not None
    if norm > 10:
        w.grad.mul_(0.5)
    return w.grad, norm


@program(drawn(3), drawn(3, scale=3.0), drawn(3, scale=0.05))
def early_stopping(x):
    """Training that ends when the loss is no better twice."""
    w, best, best_w, bad, epoch = torch.zeros(3), torch.full((), 1e6), torch.zeros(3), 0, 0
    for epoch in range(10):  # noqa: B007, used after the loop
        loss = ((w - x) ** 2).sum() + 0.1 * w.abs().sum()
        if loss < best - 1e-2:
            best, best_w, bad = loss, w, 0
        else:
            bad += 1
            if bad >= 2:
                break
        w = w - 0.4 * (2 * (w - x) + 0.1 * w.sign())
    return best, best_w, epoch


class _Plateau:
    """A learning rate that halves on a plateau."""

    def __init__(self):
        self.rate, self.best, self.wait, self.log = 0.5, None, 0, []

    def __call__(self, loss):
        if self.best is None or loss < self.best - 1e-3:
            self.best, self.wait = loss, 0
        else:
            self.wait += 1
        if self.wait >= 1:
            self.rate *= 0.5
            self.wait = 0
        return self.rate


@program(drawn(3), drawn(3, scale=3.0))
def rate_on_plateau(x):
    plateau, w = _Plateau(), torch.zeros(3)
    for _ in range(5):
        w = w - plateau(((w - x) ** 2).sum()) * 2.2 * (w - x)
    return w, plateau.rate


class _Counting(nn.Module):
    """Counters and statistics in buffers and attributes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("large", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(3))
        self.calls, self.last = 0, None

    def forward(self, x):
        self.calls += 1
        if x.abs().max() > 1:
            self.large += 1
            self.mean = 0.9 * self.mean + 0.1 * x
            self.last = x
            x = x.clamp(-1, 1)
        return x + self.mean


@program(drawn(3), drawn(3, scale=3.0), drawn(3, scale=0.1), makes=True)
def counters_in_modules():
    model = _Counting()

    def run(x):
        y = model(model(x) * 1.5)
        return y, model.large * 1, model.calls, y if model.last is None else model.last

    return run


class _Gate(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else -x


@program(drawn(3), drawn(3, seed=3), drawn(3, seed=4), makes=True, gradients=2)
def sequential_with_hooks():
    model = nn.Sequential(_Gate(), nn.Tanh(), _Gate())
    model[0].register_forward_hook(lambda module, given, out: out + 1 if out.max() > 1 else None)
    model[2].register_forward_pre_hook(lambda module, given: (given[0] * 0.5,) if given[0].min() < 0 else None)
    return lambda x: model(x)


class _RoundsUp(torch.autograd.Function):
    """A function of its own whose two halves ask."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.ceil() if x.sum() > 0 else x.floor()

    @staticmethod
    def backward(ctx, *gradients):
        (x,) = ctx.saved_tensors
        return gradients[0] * 2 if x.max() > 1 else gradients[0]


@program(drawn(3), drawn(3, seed=3), drawn(3, scale=3.0), gradients=2)
def custom_function(x):
    return _RoundsUp.apply(x * 1.1) * x


@program(drawn(3), drawn(3, seed=3), drawn(3, scale=3.0), gradients=2)
def checkpointed(x):
    def part(x):
        if x.sum() > 0:
            return torch.sin(x)
        return x * 0.5

    return torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False)


@program(drawn(4, 3), drawn(4, 3, seed=3), gradients=2)
def gradient_skipped_for_outliers(batch):
    """A loop over a batch that leaves out what is too large."""
    total, count = torch.zeros(()), 0
    for row in batch:
        loss = row.pow(2).sum()
        if loss > 3:
            continue
        total = total + loss
        count += 1
    return total / count if count > 0 else total


@program(drawn(3, scale=0.3), drawn(3), drawn(3, scale=3.0))
def optimizer_that_skips(x):
    """An optimizer of the user's with state by parameter."""
    state = {}
    w = torch.ones(3)
    for _ in range(3):
        g = w * x
        if g.norm() > 2:
            state["skipped"] = state.get("skipped", 0) + 1
            continue
        momentum = state.setdefault("momentum", torch.zeros(3))
        momentum.mul_(0.9).add_(g)
        w = w - 0.1 * momentum
    return w


@program(drawn(3), drawn(3, seed=3), drawn(3, scale=3.0))
def trains_until_it_is_good(x):
    """PyTorch's optimizer, which ends when the loss is small."""
    w = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([w], lr=0.2)
    for step in range(100):  # noqa: B007 - it tells when
        optimizer.zero_grad()
        loss = ((w - x) ** 2).sum()
        loss.backward()
        optimizer.step()
        if loss < 1e-2:
            break
    return w.detach(), step


@program(drawn(3), drawn(3, seed=3), drawn(3, scale=3.0))
def stops_early(x):
    """Training that ends when a loss has not become smaller for some steps."""
    w = x.detach().clone().requires_grad_()
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)
    best, patience, steps = float("inf"), 3, 0
    while patience > 0 and steps < 60:
        optimizer.zero_grad()
        loss = (w**4).sum() + (w - 1).abs().sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([w], 1.0)
        optimizer.step()
        if loss.item() < best - 1e-3:
            best, patience = loss.item(), 3
        else:
            patience -= 1
        steps += 1
    return w.detach(), torch.tensor(best), steps


@program(drawn(3), drawn(3, seed=3), drawn(3, scale=3.0))
def descends_along_a_line(x):
    """Steps that are halved until the loss is smaller, by gradients with respect to one tensor."""
    w, steps = x.detach().clone().requires_grad_(), 0
    while steps < 20:
        loss = (w**4).sum() + (w**2).sum()
        (g,) = torch.autograd.grad(loss, w)
        if g.norm() < 1e-2:
            break
        rate = 1.0
        with torch.no_grad():
            for _ in range(20):
                if ((w - rate * g) ** 4).sum() + ((w - rate * g) ** 2).sum() <= loss:
                    break
                rate = rate / 2
            w -= rate * g
        steps += 1
    return w.detach(), steps


@program(*(drawn(6, seed=seed) for seed in (0, 1, 2)))
def decoding_that_appends(bias):
    """Tokens until the end token, each of which is appended to a tensor."""
    tokens = torch.zeros(1, dtype=torch.long)
    for _ in range(12):
        token = (_TABLE[tokens[-1]] + bias + tokens.sum() * 0.01).argmax()
        tokens = torch.cat([tokens, token[None]])
        if token == 5:
            break
    return tokens.sum(), tokens[-1]
