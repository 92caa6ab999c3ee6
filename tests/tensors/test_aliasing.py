"""Random programs of views, copies, writes in place and gradients: PyTorch and the translation must agree on every
live tensor, and on its gradients.

A program is a list of steps over a growing list of live tensors. A step names its operands by numbers that are taken
modulo what there is, so that almost every program means something; where PyTorch raises, the translation must too.

More programs than the few by default: ``TORCH2JAX_PROGRAMS=10000 pytest tests/tensors/test_aliasing.py``.
"""

import itertools
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import torch
from hypothesis import strategies as st

from torch2jax import t2j

PROGRAMS = int(os.environ.get("TORCH2JAX_PROGRAMS", "80"))
EAGER_SHARE = 8  # every program runs jitted, and one in so many op by op as well
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # most of the time is XLA's
LARGE = 1e4  # values beyond are not compared: rounding errors grow with them


def inputs() -> list[torch.Tensor]:
    """What every program starts from."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(4, 3, generator=generator),
        torch.randn(2, 3, 2, generator=generator),
        torch.randn(3, dtype=torch.complex64, generator=generator),
        torch.arange(6, dtype=torch.int32).reshape(2, 3),
    ]


@dataclass
class State:
    """The tensors a program works on, and what its steps said or raised."""

    live: list[torch.Tensor]
    differentiable: bool = False  # whether the gradients that the program takes can be differentiated, all of them
    raised: list[str | None] = field(default_factory=list)
    answers: list[bool] | None = None  # to the choices of the program, in place of what the values say

    def __getitem__(self, number: int) -> torch.Tensor:
        found = self.live[number % len(self.live)]
        if type(found) is torch.Tensor:  # PyTorch takes a view for a leaf, when its base was one, until it is asked
            _ = found.is_leaf
        return found

    def add(self, result) -> None:
        self.live.extend(result if isinstance(result, (tuple, list)) else [result])
        del self.live[16:]


def random_programs(count: int, *, is_quick: bool) -> hypothesis.settings:
    """How so many programs are drawn: the same each time in a quick run."""
    return hypothesis.settings(
        max_examples=count,
        deadline=None,
        derandomize=is_quick,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


# Views.

BYTES_AS = {
    torch.float32: torch.complex64,
    torch.complex64: torch.float32,
    torch.int32: torch.int16,
    torch.int16: torch.int32,
}  # no floats from integers: XLA takes denormal numbers to be zero

VIEWS: dict[str, Callable] = {
    "select": lambda t, a, b: t.select(a % t.ndim, b % t.shape[a % t.ndim]),
    "index": lambda t, a, b: t[a % 3],
    "slice": lambda t, a, b: t[..., a % 3 : a % 3 + b % 3],
    "step": lambda t, a, b: t[a % 2 :: b % 3 + 1],
    "ellipsis": lambda t, a, b: t[..., a % 2, None],
    "narrow": lambda t, a, b: t.narrow(a % t.ndim, b % 2, 1 + a % 2),
    "transpose": lambda t, a, b: t.transpose(a % t.ndim, b % t.ndim),
    "permute": lambda t, a, b: t.permute(*np.roll(range(t.ndim), a).tolist()),
    "movedim": lambda t, a, b: t.movedim(a % t.ndim, b % t.ndim),
    "mT": lambda t, a, b: t.mT,
    "view": lambda t, a, b: t.view(*((-1, 2), (3, -1), (-1,), (2, 1, -1))[a % 4]),
    "reshape": lambda t, a, b: t.reshape(*((-1, 2), (3, -1), (-1,), (2, 1, -1))[a % 4]),
    "flatten": lambda t, a, b: t.flatten(a % t.ndim),
    "unflatten": lambda t, a, b: t.unflatten(a % t.ndim, (-1, 1 + b % 3)),
    "unsqueeze": lambda t, a, b: t.unsqueeze(a % (t.ndim + 1)),
    "squeeze": lambda t, a, b: t.squeeze(),
    "squeeze_dim": lambda t, a, b: t.squeeze(a % t.ndim),
    "expand": lambda t, a, b: t.expand(1 + a % 3, *t.shape),
    "expand_ones": lambda t, a, b: t.expand([2 if n == 1 else n for n in t.shape]),
    "diagonal": lambda t, a, b: t.diagonal(a % 3 - 1, 0, t.ndim - 1),
    "unfold": lambda t, a, b: t.unfold(a % t.ndim, 2, 1 + b % 2),
    "as_strided": lambda t, a, b: t.as_strided((2, 1 + a % 3), ((2, 1), (1, 2), (3, 1), (1, 1), (0, 1))[b % 5], a % 2),
    "as_strided_here": lambda t, a, b: t.as_strided((1 + a % 3, 2), ((2, 1), (1, 3), (3, 2))[b % 3]),
    "split": lambda t, a, b: t.split(1 + a % 3, b % t.ndim),
    "split_sizes": lambda t, a, b: t.split([1, t.shape[b % t.ndim] - 1], b % t.ndim),
    "chunk": lambda t, a, b: t.chunk(1 + a % 3, b % t.ndim),
    "tensor_split": lambda t, a, b: t.tensor_split(1 + a % 3, b % t.ndim),
    "unbind": lambda t, a, b: t.unbind(a % t.ndim),
    "real": lambda t, a, b: t.real,
    "imag": lambda t, a, b: t.imag,
    "conj": lambda t, a, b: t.conj(),
    "view_as_real": lambda t, a, b: torch.view_as_real(t),
    "view_as_complex": lambda t, a, b: torch.view_as_complex(t),
    "view_dtype": lambda t, a, b: t.view(BYTES_AS[t.dtype]),
    "alias": lambda t, a, b: t.view_as(t),
    "detach": lambda t, a, b: t.detach(),
}


@dataclass(frozen=True)
class View:
    kind: str
    at: int
    a: int
    b: int

    def run(self, state: State) -> None:
        state.add(VIEWS[self.kind](state[self.at], self.a, self.b))


# Results of their own.

COPIES: dict[str, Callable] = {
    "clone": lambda t, u: t.clone(),
    "clone_contiguous": lambda t, u: t.clone(memory_format=torch.contiguous_format),
    "contiguous": lambda t, u: t.contiguous(),
    "resolve_conj": lambda t, u: t.resolve_conj(),
    "to": lambda t, u: t.to(u.dtype),
    "zeros_like": lambda t, u: torch.zeros_like(t),
    "sin": lambda t, u: t.sin(),
    "neg": lambda t, u: -t,
    "add": lambda t, u: t + u,
    "half": lambda t, u: t * 0.5,
    "product": lambda t, u: t * u.sin(),
    "rows": lambda t, u: t.index_select(0, torch.arange(len(t)).flip(0)),
    "rows_by_index": lambda t, u: t[torch.arange(len(t)) // 2],
    "where": lambda t, u: torch.where(t.real > 0, *(x.to(torch.result_type(t, u)) for x in (t, u))),
}


@dataclass(frozen=True)
class Copy:
    kind: str
    at: int
    other: int
    grad: bool

    def run(self, state: State) -> None:
        with torch.set_grad_enabled(self.grad):
            state.add(COPIES[self.kind](state[self.at], state[self.other]))


# Writes.


def overlaps(tensor: torch.Tensor) -> bool:
    """Whether two elements are at one place: PyTorch refuses to write there, or the order of writes counts."""
    places = np.zeros((), int)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = places[..., None] + np.arange(size) * stride
    return np.unique(places).size < places.size


def is_refused(tensor: torch.Tensor) -> bool:
    """Whether PyTorch sees that a tensor overlaps itself."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory without gaps or overlaps."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def apart(operand: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The operand, or a copy where PyTorch does not look whether it overlaps what is written, and results may vary."""
    looks = is_dense(operand) and is_dense(target) and operand.shape == target.shape
    return operand if looks else operand.clone()


WRITES: dict[str, Callable] = {
    "add_": lambda t, u: t.add_(apart(u, t)),
    "add_one": lambda t, u: t.add_(1),
    "sub_": lambda t, u: t.sub_(apart(u, t), alpha=2),
    "mul_": lambda t, u: t.mul_(apart(u, t)),
    "sin_": lambda t, u: t.sin_(),
    "half": lambda t, u: t.mul_(0.5),
    "neg_": lambda t, u: t.neg_(),
    "copy_": lambda t, u: t.copy_(apart(u, t)),
    "fill_": lambda t, u: t.fill_(2),
    "fill_tensor": lambda t, u: t.fill_(u.real.reshape(-1)[0].to(t.dtype)),
    "zero_": lambda t, u: t.zero_(),
    "masked_fill_": lambda t, u: overlaps(t) or t.masked_fill_(t.detach().real > 0, 3),
    "set_all": lambda t, u: t.__setitem__(..., apart(u, t)),
    "set_index": lambda t, u: t.__setitem__(0, apart(u, t[0])),
    "set_slice": lambda t, u: t.__setitem__((..., slice(0, 2)), apart(u, t[..., :2])),
    "set_step": lambda t, u: t.__setitem__(slice(1, None, 2), 4.0),
    "set_mask": lambda t, u: overlaps(t) or t.__setitem__(t.detach().real > 0.5, 5),
    "set_list": lambda t, u: overlaps(t) or len(t) < 2 or t.__setitem__([0, 1], u.to(t.dtype).clone()),
    "out": lambda t, u: torch.add(apart(t, u), u, out=u),
    "out_sin": lambda t, u: torch.sin(apart(t, u), out=u),
}


@dataclass(frozen=True)
class Write:
    kind: str
    at: int
    other: int
    grad: bool

    def run(self, state: State) -> None:
        written = state[self.other if self.kind.startswith("out") else self.at]
        if overlaps(written) and not is_refused(written):
            return  # PyTorch writes in an order of its own; the translation refuses
        if self.kind.startswith("out") and written.is_conj():
            return  # PyTorch computes on a resolved copy, and misses that out= is an operand
        with torch.set_grad_enabled(self.grad):
            WRITES[self.kind](state[self.at], state[self.other])


# Tensors that change themselves.

CHANGES: dict[str, Callable] = {
    "t_": lambda t, u, a: t.t_(),
    "transpose_": lambda t, u, a: t.transpose_(0, a % t.ndim),
    "swapaxes_": lambda t, u, a: t.swapaxes_(a % t.ndim, -1),
    "squeeze_": lambda t, u, a: t.squeeze_(),
    "squeeze_dim_": lambda t, u, a: t.squeeze_(a % t.ndim),
    "unsqueeze_": lambda t, u, a: t.unsqueeze_(a % (t.ndim + 1)),
    "as_strided_": lambda t, u, a: t.as_strided_((1 + a % 3, 2), ((2, 1), (1, 3))[a % 2]),
    "resize_": lambda t, u, a: t.resize_(((2, 1 + a % 2), (3,), (1, 2, 1), ())[a % 4]).zero_(),
    "resize_as_": lambda t, u, a: t.resize_as_(u).zero_(),
    "set_": lambda t, u, a: t.set_(u),
    "set_data": lambda t, u, a: setattr(t, "data", u),
}

# What autograd does not see, or sees within the tensor's own elements only.
STRIDED = {"as_strided", "as_strided_here", "as_strided_"}
WITHOUT_GRADIENTS = {*STRIDED, "resize_", "resize_as_", "set_", "set_data", "out", "out_sin"}


@dataclass(frozen=True)
class Change:
    kind: str
    at: int
    other: int
    a: int

    def run(self, state: State) -> None:
        if self.kind == "set_" and (state[self.at].is_conj() or state[self.at].grad_fn is not None):
            return  # PyTorch leaves the bit of the tensor as it was, and a history that has no derivative
        CHANGES[self.kind](state[self.at], state[self.other], self.a)


@dataclass(frozen=True)
class Drop:
    at: int

    def run(self, state: State) -> None:
        if len(state.live) > 1:
            del state.live[self.at % len(state.live)]


# Gradients that the program itself takes.


@dataclass(frozen=True)
class Leaf:
    """A copy that requires grad."""

    at: int
    detached: bool

    def run(self, state: State) -> None:
        tensor = state[self.at]
        state.add((tensor.detach() if self.detached else tensor).clone().requires_grad_())


def squares(state: State, numbers: tuple[int, ...]) -> torch.Tensor:
    return torch.stack([(t.resolve_conj() * t.conj()).real.sum() * 0.1 for t in map(state.__getitem__, numbers)]).sum()


@dataclass(frozen=True)
class Gradient:
    of: tuple[int, ...]
    to: tuple[int, ...]
    create: bool
    retain: bool

    def run(self, state: State) -> str:
        tensors = [state[number] for number in self.to]
        found = torch.autograd.grad(
            squares(state, self.of),
            tensors,
            create_graph=self.create or state.differentiable,
            retain_graph=self.retain or state.differentiable,
            allow_unused=True,
        )
        for tensor, gradient in zip(tensors, found, strict=True):
            gradient = torch.zeros_like(tensor) if gradient is None else gradient
            # The strides and bits of a gradient are what PyTorch's kernels make of them.
            state.add(gradient.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format))
        # A view that does not lead to the result has a gradient of zeros if what it is a view of does.
        return f"unused: {[x is None for x, tensor in zip(found, tensors, strict=True) if tensor._base is None]}"


@dataclass(frozen=True)
class Backward:
    of: tuple[int, ...]
    create: bool
    retain: bool

    def run(self, state: State) -> None:
        squares(state, self.of).backward(
            create_graph=self.create or state.differentiable, retain_graph=self.retain or state.differentiable
        )


@dataclass(frozen=True)
class Accumulated:
    """What has been added to a ``.grad``."""

    at: int

    def run(self, state: State) -> str:
        gradient = state[self.at].grad
        if gradient is not None:
            state.add(gradient)
        return f"no .grad: {gradient is None}"


class Unsure(Exception):
    """What a choice depends on is too near to where it changes."""


@dataclass(frozen=True)
class Choice:
    """One of two writes: Python asks for values."""

    at: int
    yes: Write
    no: Write

    def run(self, state: State) -> None:
        if state.answers is not None:
            answer = state.answers.pop(0)
        else:
            total = state[self.at].detach().real.sum()
            if type(total) is torch.Tensor and not total.abs() > 1e-2:
                raise Unsure
            answer = bool(total > 0)
        (self.yes if answer else self.no).run(state)


numbers = st.integers(0, 11)
some = st.lists(numbers, min_size=1, max_size=3).map(tuple)
often = st.sampled_from([True, True, True, False])
steps = st.one_of(
    st.builds(View, st.sampled_from(list(VIEWS)), numbers, numbers, numbers),
    st.builds(View, st.sampled_from(list(VIEWS)), numbers, numbers, numbers),
    st.builds(Copy, st.sampled_from(list(COPIES)), numbers, numbers, often),
    st.builds(Write, st.sampled_from(list(WRITES)), numbers, numbers, st.booleans()),
    st.builds(Write, st.sampled_from(list(WRITES)), numbers, numbers, st.just(True)),
    st.builds(Change, st.sampled_from(list(CHANGES)), numbers, numbers, numbers),
    st.builds(Drop, numbers),
)
differentiating_steps = st.one_of(
    steps,
    st.builds(Leaf, numbers, st.booleans()),
    st.builds(Gradient, some, some, st.booleans(), often),
    st.builds(Backward, some, st.booleans(), often),
    st.builds(Accumulated, numbers),
)
programs = st.one_of(
    st.lists(steps, min_size=2, max_size=14),
    st.builds(
        lambda leaf, rest: [leaf, *rest],
        st.builds(Leaf, numbers, st.booleans()),
        st.lists(differentiating_steps, min_size=2, max_size=14),
    ),
)


LIMITS = "modified by an inplace operation", "modified inplace"


class Limit(Exception):
    """PyTorch refuses what the translation can do: a gradient that needs values that were written to in the meantime,
    a write to one of several views that one function gave.

    Args:
        number: of the step.
    """

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


def execute(program, tensors, *, differentiable: bool = False, answers: list[bool] | None = None) -> State:
    """Runs a program on copies of the inputs; what a step raises is noted, and the program goes on."""
    state = State([tensor.clone() for tensor in tensors], differentiable, answers=answers)
    for step in program:
        try:
            state.raised.append(step.run(state))
        except Unsure:
            raise
        except Exception as error:
            if any(limit in str(error) for limit in LIMITS):
                raise Limit(len(state.raised)) from error
            state.raised.append(type(error).__name__)
    return state


def strides(tensor: torch.Tensor) -> list[int]:
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]


def metadata(state: State) -> list:
    """All that PyTorch says of the live tensors but their values, and which of them begin at the same place.

    Strides of dimensions of size one are left out: they mean nothing, and PyTorch's kernels differ in them.
    """
    tensors = state.live
    starts = [tensor.data_ptr() if tensor.numel() else None for tensor in tensors]
    return [
        (tuple(t.shape), strides(t), t.storage_offset(), t.dtype, t.is_contiguous(), t.is_conj(), starts.index(start))
        for t, start in zip(tensors, starts, strict=True)
    ]


def weight(number: int, shape) -> np.ndarray:
    """How a live tensor counts in the scalar that is differentiated."""
    return np.cos(np.arange(np.prod(shape, dtype=int)) + number).astype(np.float32).reshape(shape)


def gradients_in_pytorch(program, expected: State, given=inputs) -> list[torch.Tensor] | None:
    """The gradients of a scalar of all live tensors; None where PyTorch's autograd refuses the program."""
    if any(getattr(step, "kind", None) in WITHOUT_GRADIENTS for step in program):
        return None
    leaves = [t.requires_grad_(t.is_floating_point() or t.is_complex()) for t in given()]
    try:
        state = execute(program, leaves, differentiable=True)
    except Limit:
        return None
    if state.raised != expected.raised:
        return None
    try:
        total = sum(
            (t.resolve_conj() * torch.from_numpy(weight(i, t.shape))).sum().real
            for i, t in enumerate(state.live)
            if t.requires_grad
        )
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        if not isinstance(total, torch.Tensor):
            return [torch.zeros_like(leaf) for leaf in wanted]
        found = torch.autograd.grad(total, wanted, allow_unused=True)
    except RuntimeError:
        return None
    return [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]


def with_gradients(
    program, notes: list, *, differentiated: bool = True, execute: Callable = execute
) -> tuple[Callable, Callable]:
    """A program as a function of tensors, and of arrays, with gradients; metadata and exceptions go to `notes`.

    While JAX differentiates, inputs require grad, so that the program may raise other exceptions; these come last.

    Args:
        execute: runs the program on tensors.
    """

    def run(tensors):
        state = execute(program, tensors)
        notes[:] = [metadata(state), state.raised]
        return list(state.live)

    def values_and_gradients(*arrays):
        def scalar(*differentiated):
            results = t2j(run)([*differentiated, arrays[-1]])
            floats = [(i, x) for i, x in enumerate(results) if jnp.issubdtype(x.dtype, jnp.inexact)]
            return sum((jnp.sum(x * weight(i, x.shape)).real for i, x in floats), jnp.zeros(())), results

        results = t2j(run)(list(arrays))
        if not differentiated:
            return results, None
        noted = list(notes)
        grads, _ = jax.grad(scalar, argnums=(0, 1, 2), has_aux=True)(*arrays[:-1])
        notes[:] = [*noted, notes[1]]
        return results, grads

    return run, values_and_gradients


def translated(program, notes: list, *, jit: bool, differentiated: bool = True, execute: Callable = execute):
    """The arrays of the live tensors and the gradients; metadata and exceptions are left in `notes`."""
    run, values_and_gradients = with_gradients(program, notes, differentiated=differentiated, execute=execute)
    arrays = [t2j(tensor) for tensor in inputs()]
    if jit:
        return jax.jit(values_and_gradients, compiler_options=QUICK)(*arrays)
    return t2j(run)(arrays), None


def assert_close(got, want: torch.Tensor, what: str) -> None:
    want = want.detach().resolve_conj().resolve_neg().numpy()
    got = np.asarray(got)
    assert got.shape == want.shape, what
    small = np.abs(want) < LARGE
    np.testing.assert_allclose(got[small], want[small], 1e-4, 1e-4, err_msg=what)


def check(program, *, jit: bool) -> None:
    """Asserts that PyTorch and the translation agree about a program."""
    try:
        expected = execute(program, inputs())
    except Limit as error:
        program = program[: error.number]
        expected = execute(program, inputs())
    notes: list = []
    wanted = gradients_in_pytorch(program, expected) if jit else None
    results, grads = translated(program, notes, jit=jit, differentiated=wanted is not None)
    for raised in notes[1:]:
        for step, got, want in zip(program, raised, expected.raised, strict=True):
            assert got == want, f"{step}: raised {got}, in PyTorch {want}"
    for i, (got, want) in enumerate(zip(notes[0], metadata(expected), strict=True)):
        assert got == want, f"live tensor {i}: {got}, in PyTorch {want}"
    for i, (got, want) in enumerate(zip(results, expected.live, strict=True)):
        assert_close(got, want, f"live tensor {i}")
    for i, (got, want) in enumerate(zip(grads or (), wanted or (), strict=False)):
        assert_close(jnp.conj(got), want, f"gradient of input {i}")


@random_programs(PROGRAMS, is_quick=PROGRAMS <= 200)
@hypothesis.given(programs, st.integers(0, EAGER_SHARE - 1))
def test_random_programs_agree(program, eager):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(program, jit=True)
        if eager == 1:
            check(program, jit=False)


# Choices: the same compiled program, on inputs that lead to one side and to the other.

writes = st.builds(Write, st.sampled_from(list(WRITES)), numbers, numbers, often)
choices = st.builds(Choice, numbers, writes, writes)
choosing_programs = st.builds(
    lambda start, leaf, before, choice, between, other, after: [
        *([leaf] if start else []),
        *before,
        choice,
        *between,
        *other,
        *after,
    ],
    st.booleans(),
    st.builds(Leaf, numbers, st.booleans()),
    st.lists(steps, min_size=1, max_size=5),
    choices,
    st.lists(steps, max_size=3),
    st.lists(choices, max_size=1),
    st.lists(differentiating_steps, max_size=4),
)


def negated() -> list[torch.Tensor]:
    return [-tensor for tensor in inputs()]


def ends_alike(program, *, differentiable: bool) -> bool:
    """Whether all ways through a program raise the same, and leave tensors of the same shapes and dtypes."""
    count = sum(isinstance(step, Choice) for step in program)
    ends = set()
    for answers in itertools.product((True, False), repeat=count):
        try:
            given = [x.requires_grad_(differentiable and x.dtype.is_floating_point) for x in inputs()]
            state = execute(program, given, differentiable=differentiable, answers=list(answers))
        except Limit:
            return False
        ends.add((tuple(state.raised), tuple((tuple(x.shape), x.dtype) for x in state.live)))
    return len(ends) == 1


def check_choices(program) -> bool:
    """Asserts that PyTorch and the translation agree about a program, whichever answers its questions have.

    Returns:
        Whether they were compared; not where its ways end differently, or PyTorch refuses it.
    """
    compiled = None
    for given in (inputs, negated):
        try:
            expected = execute(program, given())
        except (Limit, Unsure):
            continue
        if not ends_alike(program, differentiable=False):
            return False
        arrays = [t2j(tensor) for tensor in given()]
        if compiled is None:
            differentiated = ends_alike(program, differentiable=True)
            code = with_gradients(program, [], differentiated=differentiated)[1]
            compiled = jax.jit(code, compiler_options=QUICK)
        results, grads = compiled(*arrays)
        for i, (got, want) in enumerate(zip(results, expected.live, strict=True)):
            assert_close(got, want, f"live tensor {i}")
        try:
            wanted = gradients_in_pytorch(program, expected, given)
        except Unsure:
            continue
        for i, (got, want) in enumerate(zip(grads or (), wanted or (), strict=False)):
            assert_close(jnp.conj(got), want, f"gradient of input {i}")
    return compiled is not None


@random_programs(max(PROGRAMS // 8, 1), is_quick=PROGRAMS <= 200)
@hypothesis.given(choosing_programs)
def test_random_choices_agree(program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_choices(program)
